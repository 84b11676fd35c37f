package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// methods are those of Python's strings, lists and mappings. The first argument
// is the object. In the library a mapping's member wins over a method, and
// members called items or keys are common in JSON schemas.
var methods = map[string]fn{
	"strip": stripping(true, true), "lstrip": stripping(true, false), "rstrip": stripping(false, true),
	"removeprefix": onString(func(s string, p params) (jinja.Value, error) {
		return stringOf(strings.TrimPrefix(s, str(p.get(0, "prefix"))), nil)
	}),
	"removesuffix": onString(func(s string, p params) (jinja.Value, error) {
		return stringOf(strings.TrimSuffix(s, str(p.get(0, "suffix"))), nil)
	}),
	"startswith": onString(func(s string, p params) (jinja.Value, error) {
		return jinja.NewBool(slices.ContainsFunc(oneOrMore(p.get(0, "")), func(x string) bool { return strings.HasPrefix(s, x) })), nil
	}),
	"endswith": onString(func(s string, p params) (jinja.Value, error) {
		return jinja.NewBool(slices.ContainsFunc(oneOrMore(p.get(0, "")), func(x string) bool { return strings.HasSuffix(s, x) })), nil
	}),
	"upper": onString(func(s string, _ params) (jinja.Value, error) { return stringOf(strings.ToUpper(s), nil) }),
	"lower": onString(func(s string, _ params) (jinja.Value, error) { return stringOf(strings.ToLower(s), nil) }),
	"title": onString(func(s string, _ params) (jinja.Value, error) { return stringOf(title(s), nil) }),
	"capitalize": onString(func(s string, _ params) (jinja.Value, error) {
		_, n := utf8.DecodeRuneInString(s)
		return stringOf(strings.ToTitle(s[:n])+strings.ToLower(s[n:]), nil)
	}),
	"isdigit": onString(func(s string, _ params) (jinja.Value, error) {
		return jinja.NewBool(s != "" && strings.Trim(s, "0123456789") == ""), nil
	}),
	"replace": onString(replace), "split": onString(splitString), "rsplit": onString(splitRight), "splitlines": onString(splitLines),
	"find":  onString(find(strings.Index)),
	"rfind": onString(find(strings.LastIndex)),
	"count": onString(func(s string, p params) (jinja.Value, error) {
		return jinja.NewInt(int64(strings.Count(s, str(p.get(0, ""))))), nil
	}),
	"join": func(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
		return filterJoin([]jinja.Value{params{args[1:], kwargs}.get(0, ""), args[0]}, nil)
	},
	"items": filterItems,
	"keys": onDict(func(d *jinja.Dict, _ params) (jinja.Value, error) {
		v := jinja.NewDict()
		*v.AsDict() = *d
		return jinja.NewList(elements(v)), nil
	}),
	"values": onDict(func(d *jinja.Dict, _ params) (jinja.Value, error) {
		var all []jinja.Value
		for _, k := range d.Keys {
			all = append(all, d.Data[k])
		}
		return jinja.NewList(all), nil
	}),
	"get": onDict(func(d *jinja.Dict, p params) (jinja.Value, error) {
		if v, ok := d.Get(str(p.get(0, "key"))); ok {
			return v, nil
		}
		if v := p.get(1, "default"); !v.IsUndefined() {
			return v, nil
		}
		return jinja.None(), nil
	}),
}

func onString(f func(s string, p params) (jinja.Value, error)) fn {
	return func(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
		if args[0].IsUndefined() || args[0].IsNone() {
			return jinja.Undefined(), fmt.Errorf("a string's method is called on %s", args[0].String())
		}
		return f(str(args[0]), params{args[1:], kwargs})
	}
}

func onDict(f func(d *jinja.Dict, p params) (jinja.Value, error)) fn {
	return func(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
		if !args[0].IsDict() {
			return jinja.Undefined(), fmt.Errorf("a mapping's method is called on %.60s", args[0].String())
		}
		return f(args[0].AsDict(), params{args[1:], kwargs})
	}
}

func stripping(left, right bool) fn {
	return onString(func(s string, p params) (jinja.Value, error) {
		return stringOf(strip(s, p.get(0, "chars"), left, right), nil)
	})
}

// oneOrMore is a string, or those of a list.
func oneOrMore(v jinja.Value) []string {
	if !v.IsList() {
		return []string{str(v)}
	}
	var all []string
	for _, item := range v.AsList().Items {
		all = append(all, str(item))
	}
	return all
}

// limit is an argument that says how often; −1 without it.
func limit(v jinja.Value) int {
	if v.IsInt() && v.AsInt() >= 0 {
		return int(min(v.AsInt(), 1<<30))
	}
	return -1
}

func replace(s string, p params) (jinja.Value, error) {
	old, with := str(p.get(0, "old")), str(p.get(1, "new"))
	if len(with) > len(old) && strings.Count(s, old)*(len(with)-len(old)) > maxOutput {
		return jinja.Undefined(), &limitError{fmt.Sprintf("replace makes more than %d bytes, which are allowed", maxOutput)}
	}
	return stringOf(strings.Replace(s, old, with, limit(p.get(2, "count"))), nil)
}

func stringList(parts []string) (jinja.Value, error) {
	items := make([]jinja.Value, len(parts))
	for i, part := range parts {
		items[i] = jinja.NewString(part)
	}
	return jinja.NewList(items), nil
}

func splitString(s string, p params) (jinja.Value, error) {
	separator, most := p.get(0, "sep"), limit(p.get(1, "maxsplit"))
	if !separator.IsString() {
		var parts []string
		for s = strings.TrimLeftFunc(s, isSpace); s != ""; s = strings.TrimLeftFunc(s, isSpace) {
			end := strings.IndexFunc(s, isSpace)
			if end < 0 || len(parts) == most {
				parts = append(parts, strings.TrimRightFunc(s, isSpace))
				break
			}
			parts = append(parts, s[:end])
			s = s[end:]
		}
		return stringList(parts)
	}
	if separator.AsString() == "" {
		return jinja.Undefined(), errors.New("split: the separator is empty")
	}
	if most >= 0 {
		most++
	}
	return stringList(strings.SplitN(s, separator.AsString(), most))
}

func splitRight(s string, p params) (jinja.Value, error) {
	separator, most := p.get(0, "sep"), limit(p.get(1, "maxsplit"))
	if !separator.IsString() || separator.AsString() == "" || most < 0 {
		return splitString(s, p)
	}
	var parts []string
	for ; most > 0; most-- {
		i := strings.LastIndex(s, separator.AsString())
		if i < 0 {
			break
		}
		parts = append(parts, s[i+len(separator.AsString()):])
		s = s[:i]
	}
	parts = append(parts, s)
	slices.Reverse(parts)
	return stringList(parts)
}

func splitLines(s string, _ params) (jinja.Value, error) {
	if s == "" {
		return stringList(nil)
	}
	s = strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
	return stringList(strings.Split(strings.TrimSuffix(s, "\n"), "\n"))
}

// find is where a string is, in code points, or −1.
func find(index func(s, part string) int) func(s string, p params) (jinja.Value, error) {
	return func(s string, p params) (jinja.Value, error) {
		i := index(s, str(p.get(0, "sub")))
		if i > 0 {
			i = utf8.RuneCountInString(s[:i])
		}
		return jinja.NewInt(int64(i)), nil
	}
}
