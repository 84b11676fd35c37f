package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"

	"github.com/ardanlabs/jinja"
)

// maxNesting is how deep JSON may be: the library and templates go down it
// recursively.
const maxNesting = 200

// parseJSON reads a JSON value and keeps the order of its members, which
// templates show the model. A member that is there twice is an error: a template
// would show one of them, and whoever wrote it may have meant the other.
func parseJSON(b []byte) (jinja.Value, error) { return decodeJSON(b, true) }

// decodeJSON is parseJSON; without unique the last of two members counts, as in
// Python.
func decodeJSON(b []byte, unique bool) (jinja.Value, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	v, err := decodeValue(dec, maxNesting, unique)
	if err != nil {
		return v, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return v, errors.New("there is something after the JSON value")
	}
	return v, nil
}

func decodeValue(dec *json.Decoder, depth int, unique bool) (jinja.Value, error) {
	t, err := dec.Token()
	if err != nil {
		return jinja.Undefined(), err
	}
	switch t := t.(type) {
	case nil:
		return jinja.None(), nil
	case bool:
		return jinja.NewBool(t), nil
	case string:
		return jinja.NewString(t), nil
	case json.Number:
		return numberValue(string(t)), nil
	}
	if depth == 0 {
		return jinja.Undefined(), fmt.Errorf("JSON is nested deeper than %d, which are allowed", maxNesting)
	}
	if t == json.Delim('[') {
		list := []jinja.Value{}
		for dec.More() {
			v, err := decodeValue(dec, depth-1, unique)
			if err != nil {
				return v, err
			}
			list = append(list, v)
		}
		_, err = dec.Token()
		return jinja.NewList(list), err
	}
	dict := jinja.NewDict()
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return dict, err
		}
		name, _ := key.(string) // the decoder takes nothing else for a key
		if unique && dict.AsDict().Has(name) {
			return dict, fmt.Errorf("%.60q is given twice in an object", name)
		}
		v, err := decodeValue(dec, depth-1, unique)
		if err != nil {
			return v, err
		}
		dict.AsDict().Set(name, v)
	}
	_, err = dec.Token()
	return dict, err
}

// numberValue keeps integers and floats apart, as Python does.
func numberValue(s string) jinja.Value {
	if !strings.ContainsAny(s, ".eE") {
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			return jinja.NewInt(i)
		}
	}
	f, _ := strconv.ParseFloat(s, 64) // out of range: infinite, as in Python
	return jinja.NewFloat(f)
}

// pythonFloat is repr of a float.
func pythonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 0):
		return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'f', -1, 64), "+"))
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	exponent, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	if f != 0 && (exponent < -4 || exponent >= 16) {
		return s
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// str is Python's str of a value: what {{ }} shows.
func str(v jinja.Value) string {
	switch {
	case v.IsUndefined(), v.IsCallable():
		return ""
	case v.IsString():
		return v.AsString()
	}
	var b strings.Builder
	repr(&b, v)
	return b.String()
}

// repr writes Python's repr of a value.
func repr(b *strings.Builder, v jinja.Value) {
	switch {
	case v.IsString():
		reprString(b, v.AsString())
	case v.IsFloat():
		b.WriteString(pythonFloat(v.AsFloat()))
	case v.IsList():
		b.WriteByte('[')
		for i, item := range v.AsList().Items {
			if i > 0 {
				b.WriteString(", ")
			}
			repr(b, item)
		}
		b.WriteByte(']')
	case v.IsDict():
		b.WriteByte('{')
		for i, key := range v.AsDict().Keys {
			if i > 0 {
				b.WriteString(", ")
			}
			reprString(b, key)
			b.WriteString(": ")
			repr(b, v.AsDict().Data[key])
		}
		b.WriteByte('}')
	default:
		b.WriteString(v.String())
	}
}

func reprString(b *strings.Builder, s string) {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xff:
			fmt.Fprintf(b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}
	b.WriteRune(quote)
}
