package grammar

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// regexFlags are RE2's syntax with Perl's classes, such as \d. A dot is any
// code point but a newline.
const regexFlags = syntax.Perl

// anchored says to which ends of the text a match reaches.
type anchored struct{ begin, end bool }

// regex is the texts that a pattern matches. With search it may match anywhere
// in the text, unless it says ^ or $; else it matches the whole. Each code point
// is written by point, which is given the code points that are allowed.
func regex(pattern string, search bool, point func([]span) expr) (expr, error) {
	re, err := syntax.Parse(pattern, regexFlags)
	var wrong *syntax.Error
	if errors.As(err, &wrong) {
		return nil, fmt.Errorf("the pattern %s is not a regular expression in RE2 syntax: %s: %s%s", quote(pattern), wrong.Code, quote(wrong.Expr), allowedRepeat(wrong.Code))
	}
	if err != nil {
		return nil, err
	}
	r := &regexReader{point: point}
	var all []expr
	for _, alternative := range alternatives(re) {
		rest, anchors := unanchor(alternative)
		e, err := r.read(rest)
		if err != nil {
			return nil, fmt.Errorf("the pattern %s: %w", quote(pattern), err)
		}
		if search && !anchors.begin {
			e = concat(repeat(point(anyPoint), 0, -1), e)
		}
		if search && !anchors.end {
			e = concat(e, repeat(point(anyPoint), 0, -1))
		}
		all = append(all, e)
	}
	return either(all...), nil
}

// allowedRepeat says how often RE2 lets an expression repeat, where that is what is wrong.
func allowedRepeat(code syntax.ErrorCode) string {
	if code != syntax.ErrInvalidRepeatSize {
		return ""
	}
	return ": allowed is {n,m} with n at most m, and up to 1000 times, those of repeats within each other multiplied"
}

var anyPoint = []span{{0, unicode.MaxRune}}

// alternatives are those of an expression at its top.
func alternatives(re *syntax.Regexp) []*syntax.Regexp {
	switch re.Op {
	case syntax.OpCapture:
		return alternatives(re.Sub[0])
	case syntax.OpAlternate:
		var all []*syntax.Regexp
		for _, sub := range re.Sub {
			all = append(all, alternatives(sub)...)
		}
		return all
	}
	return []*syntax.Regexp{re}
}

// unanchor takes ^ from the begin and $ from the end of an expression.
func unanchor(re *syntax.Regexp) (rest []*syntax.Regexp, a anchored) {
	rest = []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		rest = slices.Clone(re.Sub)
	}
	for len(rest) > 0 && rest[0].Op == syntax.OpBeginText {
		rest, a.begin = rest[1:], true
	}
	for n := len(rest) - 1; n >= 0 && rest[n].Op == syntax.OpEndText; n-- {
		rest, a.end = rest[:n], true
	}
	return rest, a
}

// regexReader turns parsed expressions into pieces.
type regexReader struct{ point func([]span) expr }

// read is one expression after the other.
func (r *regexReader) read(all []*syntax.Regexp) (expr, error) {
	pieces := make([]expr, 0, len(all))
	for _, re := range all {
		e, err := r.one(re)
		if err != nil {
			return nil, err
		}
		pieces = append(pieces, e)
	}
	return concat(pieces...), nil
}

func (r *regexReader) one(re *syntax.Regexp) (expr, error) {
	switch re.Op {
	case syntax.OpNoMatch:
		return nothing, nil
	case syntax.OpEmptyMatch:
		return empty, nil
	case syntax.OpLiteral:
		pieces := make([]expr, 0, len(re.Rune))
		for _, c := range re.Rune {
			pieces = append(pieces, r.point(folded(c, re.Flags&syntax.FoldCase != 0)))
		}
		return concat(pieces...), nil
	case syntax.OpCharClass:
		var spans []span
		for i := 0; i+1 < len(re.Rune); i += 2 {
			spans = append(spans, span{re.Rune[i], re.Rune[i+1]})
		}
		return r.point(spans), nil
	case syntax.OpAnyChar:
		return r.point(anyPoint), nil
	case syntax.OpAnyCharNotNL:
		return r.point([]span{{0, '\n' - 1}, {'\n' + 1, unicode.MaxRune}}), nil
	case syntax.OpConcat:
		return r.read(re.Sub)
	case syntax.OpAlternate:
		all := make([]expr, 0, len(re.Sub))
		for _, sub := range re.Sub {
			e, err := r.one(sub)
			if err != nil {
				return nil, err
			}
			all = append(all, e)
		}
		return either(all...), nil
	case syntax.OpCapture, syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		return r.repeated(re)
	case syntax.OpBeginText, syntax.OpEndText:
		return nil, fmt.Errorf("%s within it is not supported: allowed are ^ where it begins and $ where it ends", re)
	}
	return nil, fmt.Errorf("%s is not supported: there are no word boundaries and line anchors here", re)
}

func (r *regexReader) repeated(re *syntax.Regexp) (expr, error) {
	if re.Op == syntax.OpRepeat && re.Max >= 0 {
		if inner := ungroup(re.Sub[0]); inner.Op == syntax.OpQuest { // (x?){a,b} is x{0,b}, which needs no ways past many x
			e, err := r.one(inner.Sub[0])
			return repeat(e, 0, re.Max), err
		}
	}
	e, err := r.one(re.Sub[0])
	if err != nil {
		return nil, err
	}
	switch re.Op {
	case syntax.OpStar:
		return repeat(e, 0, -1), nil
	case syntax.OpPlus:
		return repeat(e, 1, -1), nil
	case syntax.OpQuest:
		return optional(e), nil
	case syntax.OpRepeat:
		return repeat(e, re.Min, re.Max), nil
	}
	return e, nil // a group
}

// ungroup is an expression without the groups around it.
func ungroup(re *syntax.Regexp) *syntax.Regexp {
	for re.Op == syntax.OpCapture {
		re = re.Sub[0]
	}
	return re
}

// folded is a code point, with those that differ from it only in case if fold.
func folded(c rune, fold bool) []span {
	all := []span{{c, c}}
	if fold {
		for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
			all = append(all, span{f, f})
		}
	}
	return all
}

// shown is a value for an error, as JSON: its begin, if it is long.
func shown(d *document) string {
	const most = 60
	s := d.String()
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// quote is a text for an error: its begin, if it is long.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		return fmt.Sprintf("%q…", s[:most])
	}
	return fmt.Sprintf("%q", s)
}
