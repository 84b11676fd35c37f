package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/ardanlabs/jinja"
)

// dumper writes JSON as json.dumps of Python does.
type dumper struct {
	b        strings.Builder
	item     string // between members
	key      string // between a key and its value
	indent   string // of one level
	indented bool
	ascii    bool // escape what is not ASCII
	sorted   bool
}

// toJSON is the filter tojson with the arguments that it has in transformers:
// ensure_ascii=False, indent=None, separators=None, sort_keys=False.
func toJSON(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Undefined(), errors.New("tojson has no value")
	}
	p := params{args[1:], kwargs}
	d := dumper{item: ", ", key: ": ", ascii: p.get(0, "ensure_ascii").IsTruthy(), sorted: p.get(3, "sort_keys").IsTruthy()}
	switch indent := p.get(1, "indent"); {
	case indent.IsInt():
		if n := indent.AsInt(); n > 16 {
			return jinja.Undefined(), fmt.Errorf("tojson: indent is %d: allowed are up to 16", n)
		}
		d.item, d.indented, d.indent = ",", true, strings.Repeat(" ", int(max(0, indent.AsInt())))
	case indent.IsString():
		d.item, d.indented, d.indent = ",", true, indent.AsString()
	}
	if separators := p.get(2, "separators"); separators.IsList() {
		items := separators.AsList().Items
		if len(items) != 2 || !items[0].IsString() || !items[1].IsString() {
			return jinja.Undefined(), errors.New("tojson: separators must be two strings")
		}
		d.item, d.key = items[0].AsString(), items[1].AsString()
	}
	if err := d.dump(args[0], 1); err != nil {
		return jinja.Undefined(), err
	}
	return jinja.NewString(d.b.String()), nil
}

// shown is a value for a message: JSON, or the begin of it if it is long.
func shown(v jinja.Value) string {
	const most = 60
	d := dumper{item: ",", key: ":"}
	if d.dump(v, 1) != nil {
		return "no JSON"
	}
	s := d.b.String()
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

func (d *dumper) dump(v jinja.Value, level int) error {
	switch {
	case level > 2*maxNesting: // a list can be made to hold itself
		return fmt.Errorf("tojson: the value is nested deeper than %d, which are allowed", 2*maxNesting)
	case v.IsUndefined(), v.IsCallable():
		return errors.New("tojson: the value is undefined")
	case v.IsNone():
		d.b.WriteString("null")
	case v.IsBool():
		d.b.WriteString(strings.ToLower(v.String()))
	case v.IsFloat():
		d.b.WriteString(jsonFloat(v.AsFloat()))
	case v.IsString():
		d.quote(v.AsString())
	case v.IsList():
		return d.members('[', ']', v.AsList().Len(), level, func(i int) error { return d.dump(v.AsList().Items[i], level+1) })
	case v.IsDict():
		keys := v.AsDict().Keys
		if d.sorted {
			keys = slices.Sorted(slices.Values(keys))
		}
		return d.members('{', '}', len(keys), level, func(i int) error {
			d.quote(keys[i])
			d.b.WriteString(d.key)
			return d.dump(v.AsDict().Data[keys[i]], level+1)
		})
	default:
		d.b.WriteString(v.String())
	}
	return nil
}

func (d *dumper) members(open, end byte, n, level int, member func(int) error) error {
	d.b.WriteByte(open)
	for i := range n {
		if i > 0 {
			d.b.WriteString(d.item)
		}
		d.newline(level)
		if err := member(i); err != nil {
			return err
		}
	}
	if n > 0 {
		d.newline(level - 1)
	}
	d.b.WriteByte(end)
	return nil
}

func (d *dumper) newline(level int) {
	if d.indented {
		d.b.WriteByte('\n')
		for range level {
			d.b.WriteString(d.indent)
		}
	}
}

func jsonFloat(f float64) string {
	switch s := pythonFloat(f); s {
	case "nan":
		return "NaN"
	case "inf":
		return "Infinity"
	case "-inf":
		return "-Infinity"
	default:
		return s
	}
}

func (d *dumper) quote(s string) {
	d.b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			d.b.WriteByte('\\')
			d.b.WriteRune(r)
		case r == '\n':
			d.b.WriteString(`\n`)
		case r == '\r':
			d.b.WriteString(`\r`)
		case r == '\t':
			d.b.WriteString(`\t`)
		case r == '\b':
			d.b.WriteString(`\b`)
		case r == '\f':
			d.b.WriteString(`\f`)
		case r >= 0x10000 && d.ascii:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&d.b, `\u%04x\u%04x`, high, low)
		case r < ' ' || r >= 0x7f && d.ascii && r != 0x7f:
			fmt.Fprintf(&d.b, `\u%04x`, r)
		default:
			d.b.WriteRune(r)
		}
	}
	d.b.WriteByte('"')
}
