package chat

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds on a template, so that parsing it cannot exhaust the stack.
const (
	maxTemplate = 1 << 20 // bytes
	maxTag      = 64 << 10
	maxDepth    = 100 // brackets and blocks within each other
)

// segment is a piece of a template: a text, or what is within {{ }} or {% %}.
// Comments and the white space that the tags take away are gone already.
type segment struct {
	kind   byte // 't' text, '{' expression, '%' statement
	text   string
	tokens []token
	line   int // where it begins, from 1
	lines  int // line ends from its begin to that of the next
}

// token is a word of an expression.
type token struct {
	kind byte   // 'n' name, 's' string, 'i' integer, 'f' float, 'o' operator
	text string // of a string, its value
}

func (t token) is(kind byte, text string) bool { return t.kind == kind && t.text == text }

// templateError is a fault in a template's text.
type templateError struct {
	line    int
	message string
}

func (e *templateError) Error() string {
	return fmt.Sprintf("chat template: line %d: %s", e.line, e.message)
}

// lexer cuts a template as Jinja's does with trim_blocks and lstrip_blocks,
// which is what transformers compiles chat templates with.
type lexer struct {
	src      string
	at       int
	line     int
	lineHead bool // at is the begin of a line
	segments []segment
}

// lex cuts a template into segments.
func lex(src string) ([]segment, error) {
	if len(src) > maxTemplate {
		return nil, fmt.Errorf("chat template: %d bytes: allowed are %d", len(src), maxTemplate)
	}
	src = strings.ReplaceAll(src, "\r\n", "\n")
	src = strings.ReplaceAll(src, "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(src, "\n"), line: 1, lineHead: true}
	for l.at < len(l.src) {
		if err := l.next(); err != nil {
			return nil, err
		}
	}
	return l.segments, nil
}

func (l *lexer) fail(format string, args ...any) error {
	return &templateError{l.line, fmt.Sprintf(format, args...)}
}

// step moves on to position to.
func (l *lexer) step(to int) {
	part := l.src[l.at:to]
	l.line += strings.Count(part, "\n")
	if part != "" {
		l.lineHead = part[len(part)-1] == '\n'
	}
	l.at = to
}

// add appends a segment that began at line.
func (l *lexer) add(s segment, line int) {
	s.line = line
	if n := len(l.segments); n > 0 {
		l.segments[n-1].lines = line - l.segments[n-1].line
	}
	l.segments = append(l.segments, s)
}

// next takes the text up to a tag, and the tag.
func (l *lexer) next() error {
	open := l.at
	for {
		i := strings.IndexByte(l.src[open:], '{')
		if i < 0 || open+i+1 >= len(l.src) {
			line := l.line
			text := l.src[l.at:]
			l.step(len(l.src))
			l.add(segment{kind: 't', text: text}, line)
			return nil
		}
		open += i
		if c := l.src[open+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		open++
	}
	kind := l.src[open+1]
	sign := byte(0)
	if open+2 < len(l.src) && (l.src[open+2] == '-' || l.src[open+2] == '+') {
		sign = l.src[open+2]
	}
	l.before(l.src[l.at:open], sign, kind != '{')
	l.step(open)
	body := open + 2
	if sign != 0 {
		body++
	}
	switch kind {
	case '#':
		return l.comment(body)
	case '%':
		if end := rawBegin(l.src[body:]); end > 0 {
			return l.raw(body + end)
		}
	}
	return l.tag(kind, body)
}

// before adds the text before a tag, less what the tag takes from it.
func (l *lexer) before(text string, sign byte, block bool) {
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, isSpace)
	case sign != '+' && block:
		head := strings.LastIndexByte(text, '\n') + 1
		if (head > 0 || l.lineHead) && strings.TrimLeftFunc(text[head:], isSpace) == "" {
			text = text[:head]
		}
	}
	if text != "" {
		l.add(segment{kind: 't', text: text}, l.line)
	}
}

// after skips what a tag that ends at end takes from the text behind it.
func (l *lexer) after(end int, sign byte, block bool) {
	rest := l.src[end:]
	switch {
	case sign == '-':
		end += len(rest) - len(strings.TrimLeftFunc(rest, isSpace))
	case block && sign != '+' && strings.HasPrefix(rest, "\n"):
		end++
	}
	l.step(end)
}

func (l *lexer) comment(body int) error {
	end := strings.Index(l.src[body:], "#}")
	if end < 0 {
		return l.fail("a comment has no end: write #}")
	}
	end += body
	sign := byte(0)
	if end > body && (l.src[end-1] == '-' || l.src[end-1] == '+') {
		sign = l.src[end-1]
	}
	l.after(end+2, sign, true)
	return nil
}

// rawBegin is the length of "raw %}" at the begin of s, or 0.
func rawBegin(s string) int {
	rest, ok := strings.CutPrefix(strings.TrimLeftFunc(s, isSpace), "raw")
	rest = strings.TrimLeftFunc(rest, isSpace)
	if !ok {
		return 0
	}
	if after, trims := strings.CutPrefix(rest, "-%}"); trims {
		return len(s) - len(strings.TrimLeftFunc(after, isSpace))
	}
	if after, ends := strings.CutPrefix(rest, "%}"); ends {
		return len(s) - len(after)
	}
	return 0
}

// raw takes the text up to {% endraw %} as it is.
func (l *lexer) raw(begin int) error {
	l.step(begin)
	for open := begin; ; open += 2 {
		i := strings.Index(l.src[open:], "{%")
		if i < 0 {
			return l.fail("raw has no end: write {%% endraw %%}")
		}
		open += i
		rest := l.src[open+2:]
		sign := byte(0)
		if rest != "" && (rest[0] == '-' || rest[0] == '+') {
			sign, rest = rest[0], rest[1:]
		}
		rest, ok := strings.CutPrefix(strings.TrimLeftFunc(rest, isSpace), "endraw")
		rest = strings.TrimLeftFunc(rest, isSpace)
		if !ok {
			continue
		}
		ending := byte(0)
		if rest != "" && (rest[0] == '-' || rest[0] == '+') {
			ending, rest = rest[0], rest[1:]
		}
		if rest, ok = strings.CutPrefix(rest, "%}"); !ok {
			continue
		}
		l.before(l.src[begin:open], sign, true)
		l.after(len(l.src)-len(rest), ending, true)
		return nil
	}
}

// tag takes an expression or a statement up to its end, which does not count
// within brackets.
func (l *lexer) tag(kind byte, body int) error {
	closing := "}}"
	if kind == '%' {
		closing = "%}"
	}
	s := segment{kind: kind}
	line, depth := l.line, 0
	for i := body; i < len(l.src); {
		rest := l.src[i:]
		if depth == 0 {
			sign := byte(0)
			if rest[0] == '-' || rest[0] == '+' && kind == '%' {
				sign = rest[0]
			}
			if strings.HasPrefix(rest, closing) {
				l.add(s, line)
				l.after(i+2, 0, kind == '%')
				return nil
			}
			if sign != 0 && strings.HasPrefix(rest[1:], closing) {
				l.add(s, line)
				l.after(i+3, sign, kind == '%')
				return nil
			}
		}
		if i-body > maxTag {
			return l.fail("a tag is longer than %d bytes, which are allowed", maxTag)
		}
		t, n, err := l.token(rest)
		if err != nil {
			return err
		}
		i += n
		if t.kind == 0 {
			continue
		}
		if t.kind == 'o' && strings.Contains("([{", t.text) {
			depth++
		} else if t.kind == 'o' && strings.Contains(")]}", t.text) {
			depth--
		}
		if depth < 0 || depth > maxDepth {
			return l.fail("brackets do not match, or there are more than %d within each other", maxDepth)
		}
		s.tokens = append(s.tokens, t)
	}
	return l.fail("a tag has no end: write %s", closing)
}

// token is the first token of s and its length; kind 0 is white space.
func (l *lexer) token(s string) (token, int, error) {
	r, n := utf8.DecodeRuneInString(s)
	switch {
	case isSpace(r):
		return token{}, n, nil
	case r == '_' || unicode.IsLetter(r):
		end := strings.IndexFunc(s, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		if end < 0 {
			end = len(s)
		}
		return token{'n', s[:end]}, end, nil
	case r >= '0' && r <= '9':
		t, n := number(s)
		return t, n, nil
	case r == '"' || r == '\'':
		value, n := quoted(s)
		if n == 0 {
			return token{}, 0, l.fail("a string has no end")
		}
		return token{'s', value}, n, nil
	}
	for _, op := range [...]string{"**", "//", "==", "!=", "<=", ">="} {
		if strings.HasPrefix(s, op) {
			return token{'o', op}, 2, nil
		}
	}
	if strings.ContainsRune("+-*/%<>=~|.,:()[]{}", r) {
		return token{'o', s[:1]}, 1, nil
	}
	return token{}, 0, l.fail("%q is not allowed in a tag", s[:n])
}

// number is an integer or a float at the begin of s.
func number(s string) (token, int) {
	digits := func(i int) int {
		for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '_') {
			i++
		}
		return i
	}
	kind, n := byte('i'), digits(0)
	if n+1 < len(s) && s[n] == '.' && s[n+1] >= '0' && s[n+1] <= '9' {
		kind, n = 'f', digits(n+1)
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		e := n + 1
		if e < len(s) && (s[e] == '+' || s[e] == '-') {
			e++
		}
		if end := digits(e); end > e {
			kind, n = 'f', end
		}
	}
	return token{kind, strings.ReplaceAll(s[:n], "_", "")}, n
}

// isSpace is str.isspace of Python, for a code point.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
