package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/ardanlabs/jinja"
)

// nativeFilters are those that the library computes as Jinja does.
var nativeFilters = []string{"abs", "batch", "capitalize", "count", "d", "default", "e", "escape", "float", "length", "lower", "max", "min", "round", "safe", "sum", "title", "unique", "upper", "wordcount"}

// filters are those that it does not have or computes otherwise. The first
// argument is the value.
var filters map[string]fn

func init() { // filters call each other by name
	filters = map[string]fn{
		"tojson": toJSON, "fromjson": fromJSON, "from_json": fromJSON,
		"trim": filterTrim, "items": filterItems, "dictsort": filterDictSort, "join": filterJoin,
		"first": filterFirst, "last": filterLast, "list": filterList, "int": filterInt, "string": filterString,
		"replace": methods["replace"], "reverse": filterReverse, "sort": filterSort, "indent": filterIndent, "format": filterFormat,
		"map": filterMap, "select": selecting(true, false), "reject": selecting(false, false),
		"selectattr": selecting(true, true), "rejectattr": selecting(false, true),
	}
}

// params are the arguments after the value.
type params struct {
	args   []jinja.Value
	kwargs map[string]jinja.Value
}

// get is the argument in place i or by name; undefined if it is not there.
func (p params) get(i int, name string) jinja.Value {
	if i < len(p.args) {
		return p.args[i]
	}
	if v, ok := p.kwargs[name]; ok {
		return v
	}
	return jinja.Undefined()
}

func stringOf(s string, err error) (jinja.Value, error) { return jinja.NewString(s), err }

// elements are what a value gives in a loop.
func elements(v jinja.Value) []jinja.Value {
	switch {
	case v.IsList():
		return v.AsList().Items
	case v.IsDict():
		keys := make([]jinja.Value, 0, v.AsDict().Len())
		for _, k := range v.AsDict().Keys {
			keys = append(keys, jinja.NewString(k))
		}
		return keys
	case v.IsString():
		var chars []jinja.Value
		for _, r := range v.AsString() {
			chars = append(chars, jinja.NewString(string(r)))
		}
		return chars
	}
	return nil
}

// attribute is the member of v at a path such as "function.name".
func attribute(v jinja.Value, path string) jinja.Value {
	for name := range strings.SplitSeq(path, ".") {
		if !v.IsDict() {
			return jinja.Undefined()
		}
		next, ok := v.AsDict().Get(name)
		if !ok {
			return jinja.Undefined()
		}
		v = next
	}
	return v
}

func fromJSON(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if !args[0].IsString() {
		return jinja.Undefined(), errors.New("fromjson takes a string")
	}
	return decodeJSON([]byte(args[0].AsString()), false)
}

func filterTrim(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	chars := params{args[1:], kwargs}.get(0, "chars")
	return stringOf(strip(str(args[0]), chars, true, true), nil)
}

// strip removes code points from the ends of s: those of chars, or white space.
func strip(s string, chars jinja.Value, left, right bool) string {
	out := isSpace
	if chars.IsString() {
		out = func(r rune) bool { return strings.ContainsRune(chars.AsString(), r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, out)
	}
	if right {
		s = strings.TrimRightFunc(s, out)
	}
	return s
}

func filterItems(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	switch {
	case args[0].IsUndefined():
		return jinja.NewList(nil), nil
	case !args[0].IsDict():
		return jinja.Undefined(), errors.New("can only get item pairs from a mapping")
	}
	return pairs(args[0].AsDict(), args[0].AsDict().Keys), nil
}

func pairs(d *jinja.Dict, keys []string) jinja.Value {
	all := make([]jinja.Value, 0, len(keys))
	for _, k := range keys {
		all = append(all, jinja.NewList([]jinja.Value{jinja.NewString(k), d.Data[k]}))
	}
	return jinja.NewList(all)
}

func filterDictSort(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	if !args[0].IsDict() {
		return jinja.Undefined(), errors.New("dictsort takes a mapping")
	}
	p := params{args[1:], kwargs}
	d := args[0].AsDict()
	keys := d.OrderedKeys()
	by := p.get(1, "by")
	order := ordering(p.get(0, "case_sensitive").IsTruthy(), p.get(2, "reverse").IsTruthy())
	slices.SortStableFunc(keys, func(a, b string) int {
		if by.IsString() && by.AsString() == "value" {
			return order(d.Data[a], d.Data[b])
		}
		return order(jinja.NewString(a), jinja.NewString(b))
	})
	return pairs(d, keys), nil
}

// ordering compares values for sorting.
func ordering(cased, reverse bool) func(a, b jinja.Value) int {
	return func(a, b jinja.Value) int {
		if reverse {
			a, b = b, a
		}
		if a.IsString() && b.IsString() {
			if cased {
				return strings.Compare(a.AsString(), b.AsString())
			}
			return strings.Compare(strings.ToLower(a.AsString()), strings.ToLower(b.AsString()))
		}
		switch d := float(a) - float(b); {
		case d < 0:
			return -1
		case d > 0:
			return 1
		}
		return 0
	}
}

// float is a number's value.
func float(v jinja.Value) float64 {
	switch {
	case v.IsInt():
		return float64(v.AsInt())
	case v.IsFloat():
		return v.AsFloat()
	case v.IsBool() && v.AsBool():
		return 1
	}
	return 0
}

func filterSort(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	p := params{args[1:], kwargs}
	items := slices.Clone(elements(args[0]))
	path := p.get(2, "attribute")
	order := ordering(p.get(1, "case_sensitive").IsTruthy(), p.get(0, "reverse").IsTruthy())
	slices.SortStableFunc(items, func(a, b jinja.Value) int {
		if path.IsString() {
			a, b = attribute(a, path.AsString()), attribute(b, path.AsString())
		}
		return order(a, b)
	})
	return jinja.NewList(items), nil
}

func filterJoin(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	p := params{args[1:], kwargs}
	var parts []string
	for _, v := range elements(args[0]) {
		if path := p.get(1, "attribute"); path.IsString() {
			v = attribute(v, path.AsString())
		}
		parts = append(parts, str(v))
	}
	return stringOf(strings.Join(parts, str(p.get(0, "d"))), nil)
}

func filterFirst(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if all := elements(args[0]); len(all) > 0 {
		return all[0], nil
	}
	return jinja.Undefined(), nil
}

func filterLast(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if all := elements(args[0]); len(all) > 0 {
		return all[len(all)-1], nil
	}
	return jinja.Undefined(), nil
}

func filterList(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	return jinja.NewList(slices.Clone(elements(args[0]))), nil
}

func filterReverse(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	all := slices.Clone(elements(args[0]))
	slices.Reverse(all)
	if !args[0].IsString() {
		return jinja.NewList(all), nil
	}
	return filterJoin([]jinja.Value{jinja.NewList(all)}, nil)
}

func filterInt(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	if !args[0].IsString() {
		return jinja.NewInt(int64(float(args[0]))), nil
	}
	switch v := numberValue(strings.TrimFunc(args[0].AsString(), isSpace)); {
	case v.IsInt():
		return v, nil
	case v.AsFloat() != 0:
		return jinja.NewInt(int64(v.AsFloat())), nil
	}
	if d := (params{args[1:], kwargs}).get(0, "default"); d.IsInt() {
		return d, nil
	}
	return jinja.NewInt(0), nil
}

func filterString(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	return stringOf(str(args[0]), nil)
}

func filterIndent(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	p := params{args[1:], kwargs}
	pad := "    "
	switch width := p.get(0, "width"); {
	case width.IsString():
		pad = width.AsString()
	case width.IsInt():
		if width.AsInt() > 1000 {
			return jinja.Undefined(), fmt.Errorf("indent: width is %d: allowed are up to 1000", width.AsInt())
		}
		pad = strings.Repeat(" ", int(max(0, width.AsInt())))
	}
	first, blank := p.get(1, "first").IsTruthy(), p.get(2, "blank").IsTruthy()
	lines := strings.Split(str(args[0]), "\n")
	for i, line := range lines {
		if i == 0 && first || i > 0 && (blank || line != "") {
			lines[i] = pad + line
		}
	}
	return stringOf(strings.Join(lines, "\n"), nil)
}

// filterFormat is Python's % for strings, with values in their order.
func filterFormat(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	format, rest := str(args[0]), args[1:]
	var b strings.Builder
	for {
		text, after, ok := strings.Cut(format, "%")
		b.WriteString(text)
		if !ok {
			return stringOf(b.String(), nil)
		}
		n := strings.IndexAny(after, "sdifgexXr%")
		if n < 0 || n > 8 || strings.Trim(after[:n], "+-# 0123456789.") != "" {
			return jinja.Undefined(), fmt.Errorf("format: %.20q is not supported", "%"+after)
		}
		verb := after[n]
		format = after[n+1:]
		if verb == '%' {
			b.WriteByte('%')
			continue
		}
		if len(rest) == 0 {
			return jinja.Undefined(), errors.New("format: there are fewer values than the format has")
		}
		v := rest[0]
		rest = rest[1:]
		switch spec := "%" + after[:n]; verb {
		case 's':
			fmt.Fprintf(&b, spec+"s", str(v))
		case 'r':
			var quoted strings.Builder
			repr(&quoted, v)
			fmt.Fprintf(&b, spec+"s", quoted.String())
		case 'd', 'i':
			fmt.Fprintf(&b, spec+"d", int64(float(v)))
		case 'x', 'X':
			fmt.Fprintf(&b, spec+string(verb), int64(float(v)))
		default:
			fmt.Fprintf(&b, spec+string(verb), float(v))
		}
	}
}

// filterMap is map(attribute=…) or map(a filter, its arguments…).
func filterMap(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	var all []jinja.Value
	for _, v := range elements(args[0]) {
		path, byAttribute := kwargs["attribute"]
		switch {
		case byAttribute:
			v = attribute(v, str(path))
			if d, ok := kwargs["default"]; ok && v.IsUndefined() {
				v = d
			}
		case len(args) < 2:
			return jinja.Undefined(), errors.New("map needs a filter's name, or attribute")
		default:
			var err error
			if v, err = applyFilter(str(args[1]), append([]jinja.Value{v}, args[2:]...), kwargs); err != nil {
				return v, err
			}
		}
		all = append(all, v)
	}
	return jinja.NewList(all), nil
}

// applyFilter computes a filter whose name is a value.
func applyFilter(name string, args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	if f, ok := filters[name]; ok {
		return f(args, kwargs)
	}
	s := str(args[0])
	switch name {
	case "upper":
		return stringOf(strings.ToUpper(s), nil)
	case "lower":
		return stringOf(strings.ToLower(s), nil)
	case "length", "count":
		return jinja.NewInt(int64(len(elements(args[0])))), nil
	case "capitalize":
		return methods["capitalize"](args, nil)
	case "title":
		return methods["title"](args, nil)
	}
	return jinja.Undefined(), fmt.Errorf("there is no filter %q for map", name)
}

// selecting is select, reject, selectattr and rejectattr.
func selecting(wanted, byAttribute bool) fn {
	return func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		rest := args[1:]
		path := ""
		if byAttribute {
			if len(rest) == 0 {
				return jinja.Undefined(), errors.New("selectattr and rejectattr need an attribute")
			}
			path, rest = str(rest[0]), rest[1:]
		}
		var all []jinja.Value
		for _, v := range elements(args[0]) {
			of := v
			if byAttribute {
				of = attribute(v, path)
			}
			ok := of.IsTruthy()
			if len(rest) > 0 {
				var err error
				if ok, err = applyTest(str(rest[0]), of, rest[1:]); err != nil {
					return jinja.Undefined(), err
				}
			}
			if ok == wanted {
				all = append(all, v)
			}
		}
		return jinja.NewList(all), nil
	}
}

// applyTest computes a test whose name is a value.
func applyTest(name string, v jinja.Value, args []jinja.Value) (bool, error) {
	switch name {
	case "defined":
		return !v.IsUndefined(), nil
	case "undefined":
		return v.IsUndefined(), nil
	case "none":
		return v.IsNone(), nil
	case "string":
		return v.IsString(), nil
	case "mapping":
		return v.IsDict(), nil
	case "iterable", "sequence":
		return v.IsList() || v.IsDict() || v.IsString(), nil
	case "number":
		return v.IsNumber(), nil
	case "boolean":
		return v.IsBool(), nil
	case "true":
		return v.IsBool() && v.AsBool(), nil
	case "false":
		return v.IsBool() && !v.AsBool(), nil
	}
	if len(args) == 0 {
		return false, fmt.Errorf("there is no test %q without an argument", name)
	}
	order := ordering(true, false)
	switch name {
	case "eq", "equalto", "==", "sameas":
		return v.Equals(args[0]), nil
	case "ne", "!=":
		return !v.Equals(args[0]), nil
	case "gt", "greaterthan", ">":
		return order(v, args[0]) > 0, nil
	case "ge", ">=":
		return order(v, args[0]) >= 0, nil
	case "lt", "lessthan", "<":
		return order(v, args[0]) < 0, nil
	case "le", "<=":
		return order(v, args[0]) <= 0, nil
	case "in":
		if args[0].IsString() && v.IsString() {
			return strings.Contains(args[0].AsString(), v.AsString()), nil
		}
		return slices.ContainsFunc(elements(args[0]), v.Equals), nil
	}
	return false, fmt.Errorf("there is no test %q", name)
}

// title is str.title: a capital at the begin of each word of letters.
func title(s string) string {
	inWord := false
	return strings.Map(func(r rune) rune {
		was := inWord
		inWord = unicode.IsLetter(r)
		if was {
			return unicode.ToLower(r)
		}
		return unicode.ToTitle(r)
	}, s)
}
