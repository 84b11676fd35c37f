package chat

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// Limits of a rendering. A template comes with the model, so they are there
// against faults in it and against inputs that bring these out.
const (
	maxOutput = 32 << 20 // bytes
	maxMacros = 100      // within each other
	maxRange  = 1 << 20
	maxTime   = 2 * time.Second
)

// limitError says which limit a rendering has met.
type limitError struct{ message string }

func (e *limitError) Error() string { return e.message }

// raised is what a template itself refuses, by raise_exception.
type raised struct{ message string }

func (e *raised) Error() string { return e.message }

// rendering is the state of one.
type rendering struct {
	texts    []string
	now      time.Time
	deadline time.Time
	line     int // of what was shown last
	output   int // bytes
	calls    int
	macros   int
}

type fn = func(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error)

// bind adds this package's functions to a template's variables.
func (r *rendering) bind(vars map[string]jinja.Value) {
	for name, f := range map[string]fn{
		helper + "text": r.text, helper + "show": r.show, helper + "turn": r.turn, helper + "enter": r.enter, helper + "leave": r.leave,
		helper + "dict": makeDict, helper + "item": item,
		"range": rangeOf, "raise_exception": raise, "strftime_now": r.strftime,
	} {
		vars[name] = jinja.NewCallable(name, f)
	}
	for name, f := range filters {
		vars[helper+"f_"+name] = jinja.NewCallable(name, f)
	}
	for name, f := range methods {
		vars[helper+"m_"+name] = jinja.NewCallable(name, f)
	}
}

// check reports a limit that is met.
func (r *rendering) check() error {
	if r.calls++; r.calls%64 == 0 && time.Now().After(r.deadline) {
		return &limitError{fmt.Sprintf("it took longer than %s, which is allowed", maxTime)}
	}
	if r.output > maxOutput {
		return &limitError{fmt.Sprintf("it made more than %d bytes, which are allowed", maxOutput)}
	}
	return nil
}

// text shows a text of the template.
func (r *rendering) text(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	s := r.texts[args[0].AsInt()]
	r.output += len(s)
	return jinja.NewString(s), r.check()
}

// show is {{ }}: its arguments are the line and the value.
func (r *rendering) show(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	r.line = int(args[0].AsInt())
	s := str(args[1])
	r.output += len(s)
	return jinja.NewString(s), r.check()
}

// turn begins a turn of a loop.
func (r *rendering) turn(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	r.line = int(args[0].AsInt())
	return jinja.Undefined(), r.check()
}

func (r *rendering) enter(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	r.line = int(args[0].AsInt())
	if r.macros++; r.macros > maxMacros {
		return jinja.Undefined(), &limitError{fmt.Sprintf("more than %d macros called each other, which are allowed", maxMacros)}
	}
	return jinja.Undefined(), r.check()
}

func (r *rendering) leave([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	r.macros--
	return jinja.Undefined(), nil
}

// makeDict is dict with its arguments as keys and values in turn.
func makeDict(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	d := jinja.NewDict()
	if len(args) == 1 && args[0].IsDict() {
		for _, k := range args[0].AsDict().Keys {
			d.AsDict().Set(k, args[0].AsDict().Data[k])
		}
	}
	for i := 0; i+1 < len(args); i += 2 {
		d.AsDict().Set(str(args[i]), args[i+1])
	}
	return d, nil
}

// item is a subscript that is a string: a member of a mapping, and of anything
// else nothing.
func item(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if args[0].IsDict() {
		if v, ok := args[0].AsDict().Get(args[1].AsString()); ok {
			return v, nil
		}
	}
	return jinja.Undefined(), nil
}

func rangeOf(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	var n [3]int64
	for i, a := range args {
		if !a.IsInt() || i == 3 {
			return jinja.Undefined(), errors.New("range takes one to three integers")
		}
		n[i] = a.AsInt()
	}
	start, stop, step := n[0], n[1], int64(1)
	switch len(args) {
	case 0:
		return jinja.Undefined(), errors.New("range takes one to three integers")
	case 1:
		start, stop = 0, n[0]
	case 3:
		step = n[2]
	}
	if step == 0 {
		return jinja.Undefined(), errors.New("range: the step is 0")
	}
	items := []jinja.Value{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(items) == maxRange {
			return jinja.Undefined(), &limitError{fmt.Sprintf("range has more than %d numbers, which are allowed", maxRange)}
		}
		items = append(items, jinja.NewInt(i))
	}
	return jinja.NewList(items), nil
}

func raise(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	message := "the template refuses these messages"
	if len(args) > 0 {
		message = str(args[0])
	}
	return jinja.Undefined(), &raised{message}
}

// strftime is strftime_now: the time by a format of C's strftime.
func (r *rendering) strftime(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Undefined(), errors.New("strftime_now needs a format")
	}
	return jinja.NewString(strftime(r.now, str(args[0]))), nil
}

// directives are those of strftime, in Go's layouts.
var directives = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon",
	'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'Z': "MST", 'z': "-0700", 'f': "000000", 'j': "002",
	'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
}

func strftime(now time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		bare := format[i] == '-' && i+1 < len(format) // without the zero before it
		if bare {
			i++
		}
		layout, ok := directives[format[i]]
		switch {
		case format[i] == '%':
			b.WriteByte('%')
		case !ok:
			b.WriteString("%" + format[i:i+1])
		case format[i] == 'f':
			fmt.Fprintf(&b, "%06d", now.Nanosecond()/1000)
		case bare:
			s := strings.TrimLeft(now.Format(layout), "0 ")
			if s == "" {
				s = "0"
			}
			b.WriteString(s)
		default:
			b.WriteString(now.Format(layout))
		}
	}
	return b.String()
}
