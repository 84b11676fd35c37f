package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// operators are names that are not values.
var operators = []string{"and", "or", "not", "in", "is", "if", "else"}

// tests are those of "is", as the library calls them, and whether they take an
// argument.
var tests = map[string]struct {
	name string
	arg  bool
}{
	"defined": {"defined", false}, "undefined": {"undefined", false}, "none": {"none", false}, "None": {"none", false},
	"boolean": {"boolean", false}, "integer": {"integer", false}, "float": {"float", false}, "number": {"number", false},
	"string": {"string", false}, "mapping": {"mapping", false}, "iterable": {"iterable", false}, "callable": {"callable", false},
	"sequence": {"iterable", false}, // what has a length: also strings and mappings, as in Jinja
	"true":     {"true", false}, "false": {"false", false}, "odd": {"odd", false}, "even": {"even", false},
	"upper": {"upper", false}, "lower": {"lower", false}, "sameas": {"sameas", true},
	"eq": {"eq", true}, "equalto": {"eq", true}, "ne": {"ne", true}, "gt": {"gt", true}, "greaterthan": {"gt", true},
	"ge": {"ge", true}, "lt": {"lt", true}, "lessthan": {"lt", true}, "le": {"le", true}, "in": {"in", true},
}

// writer writes an expression's tokens for the library.
type writer struct {
	out   strings.Builder
	stack []bool // of the open brackets: they are the arguments of dict
}

// expression is an expression for the library.
func expression(tokens []token) (string, error) {
	if len(tokens) == 0 {
		return "", errors.New("an expression is empty")
	}
	w := &writer{}
	for i := 0; i < len(tokens); {
		n, err := w.write(tokens, i)
		if err != nil {
			return "", err
		}
		i += n
	}
	if len(w.stack) != 0 {
		return "", errors.New("brackets do not match")
	}
	return strings.TrimSpace(w.out.String()), nil
}

func (w *writer) put(s string) {
	w.out.WriteString(s)
	w.out.WriteByte(' ')
}

// at is tokens[i], or a token that is nothing.
func at(tokens []token, i int) token {
	if i < 0 || i >= len(tokens) {
		return token{}
	}
	return tokens[i]
}

// write writes the token at i, or what a few from there mean, and returns how
// many these are.
func (w *writer) write(tokens []token, i int) (int, error) {
	t, next := tokens[i], at(tokens, i+1)
	switch t.kind {
	case 's':
		value, n := t.text, 1
		for at(tokens, i+n).kind == 's' { // literals in a row are one
			value += tokens[i+n].text
			n++
		}
		literal(&w.out, value)
		w.out.WriteByte(' ')
		return n, nil
	case 'f':
		f := t.text
		if !strings.Contains(f, ".") { // the library wants a point
			f = strings.Replace(strings.ToLower(f), "e", ".0e", 1)
		}
		w.put(f)
		return 1, nil
	case 'i':
		w.put(t.text)
		return 1, nil
	case 'n':
		return w.writeName(tokens, i)
	}
	switch {
	case t.text == "|":
		if next.kind != 'n' {
			return 0, errors.New("a filter's name is missing after |")
		}
		if _, ok := filters[next.text]; ok {
			w.put("| " + helper + "f_" + next.text)
		} else if slices.Contains(nativeFilters, next.text) || strings.HasPrefix(next.text, helper) {
			w.put("| " + next.text)
		} else {
			return 0, fmt.Errorf("there is no filter %q", next.text)
		}
		return 2, nil
	case t.text == "." && next.kind == 'i': // a.0 is a[0]
		w.put("[" + next.text + "]")
		return 2, nil
	case t.text == "." && next.kind == 'n':
		if _, ok := methods[next.text]; ok && at(tokens, i+2).is('o', "(") {
			w.put("| " + helper + "m_" + next.text)
		} else {
			w.put("." + next.text)
		}
		return 2, nil
	case t.text == "[" && next.kind == 's' && at(tokens, i+2).is('o', "]") && isValue(at(tokens, i-1)):
		w.put("| " + helper + "item (")
		literal(&w.out, next.text)
		w.put(")")
		return 3, nil
	}
	switch bracket(t) {
	case 1:
		before := at(tokens, i-1)
		w.stack = append(w.stack, t.text == "(" && before.is('n', "dict") && !at(tokens, i-2).is('o', "."))
	case -1:
		if len(w.stack) == 0 {
			return 0, errors.New("brackets do not match")
		}
		w.stack = w.stack[:len(w.stack)-1]
	}
	w.put(t.text)
	return 1, nil
}

func (w *writer) writeName(tokens []token, i int) (int, error) {
	t, next := tokens[i], at(tokens, i+1)
	n := len(w.stack)
	switch {
	case t.text == "is":
		return w.writeTest(tokens, i)
	case t.text == "dict" && next.is('o', "(") && !at(tokens, i-1).is('o', "."):
		w.put(helper + "dict")
	case n > 0 && w.stack[n-1] && next.is('o', "="): // an argument of dict: the library forgets their order
		literal(&w.out, t.text)
		w.put(",")
		return 2, nil
	default:
		w.put(t.text)
	}
	return 1, nil
}

// writeTest writes "is", "not" if it is there, the test, and its argument,
// which needs no brackets in Jinja.
func (w *writer) writeTest(tokens []token, i int) (int, error) {
	w.put("is")
	n := 1
	if at(tokens, i+n).is('n', "not") {
		w.put("not")
		n++
	}
	name := at(tokens, i+n)
	test, ok := tests[name.text]
	if name.kind != 'n' || !ok {
		return 0, fmt.Errorf("there is no test %q after is", name.text)
	}
	w.put(test.name)
	n++
	if arg := at(tokens, i+n); test.arg && !arg.is('o', "(") {
		if arg.kind == 'o' || arg.kind == 0 {
			return 0, fmt.Errorf("test %q needs an argument", name.text)
		}
		w.put("(")
		if _, err := w.write(tokens, i+n); err != nil {
			return 0, err
		}
		w.put(")")
		n++
	}
	return n, nil
}

// isValue tells whether a token can end a value, so that "[" after it is a subscript.
func isValue(t token) bool {
	switch t.kind {
	case 'n':
		return !slices.Contains(operators, t.text)
	case 'o':
		return t.text == ")" || t.text == "]" || t.text == "}"
	}
	return t.kind == 's'
}
