package tokenizer

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// A splitter cuts text into pieces and gives each to yield. first says whether
// the text, or the piece, is at the begin of the whole one.
type splitter func(text string, first bool, yield func(piece string, first bool))

// The patterns of known models that have a scanner of their own.
const (
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Pattern  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	gpt2Pattern   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
)

// scanners give the length of their pattern's match at the begin of a text that
// is valid UTF-8 and not empty. These patterns match every text.
var scanners = map[string]func(string) int{
	llama3Pattern: func(s string) int { return scanLlama3(s, 3) },
	qwen2Pattern:  func(s string) int { return scanLlama3(s, 1) },
	gpt2Pattern:   scanGPT2,
	o200kPattern:  cased{slash: true}.scan,
	kimiPattern:   cased{han: true}.scan,
}

// Bounds on what a pattern from a model's file may take: for one match, and for
// one text. Real patterns take about half a second for a megabyte.
const (
	matchTimeout = 2 * time.Second
	textTimeout  = 20 * time.Second
)

// span is a part of a text in bytes: a match of a pattern, or what is between two.
type span struct {
	start, end int
	match      bool
}

// spans calls f for each of the spans of a pattern; together they are the text.
type spans func(text string, f func(span))

// literalSpans is the spans of a fixed text.
func literalSpans(literal string) spans {
	return func(text string, f func(span)) {
		at := 0
		for {
			i := strings.Index(text[at:], literal)
			if i < 0 {
				break
			}
			if i > 0 {
				f(span{at, at + i, false})
			}
			f(span{at + i, at + i + len(literal), true})
			at += i + len(literal)
		}
		if at < len(text) {
			f(span{at, len(text), false})
		}
	}
}

// patternSpans is the spans of a regular expression.
func patternSpans(pattern string) (spans, error) {
	scan, ok := scanners[pattern]
	if !ok {
		return regexpSpans(pattern)
	}
	return func(text string, f func(span)) {
		for at := 0; at < len(text); {
			n := scan(text[at:])
			f(span{at, at + n, true})
			at += n
		}
	}, nil
}

func regexpSpans(pattern string) (spans, error) {
	re, err := regexp2.Compile(pattern, regexp2.None)
	if err != nil {
		return nil, fmt.Errorf("pattern %.200q is not supported: %w", pattern, err)
	}
	re.MatchTimeout = matchTimeout
	return func(text string, f func(span)) {
		runes := []rune(text) // matches are told in code points
		at, bytes := 0, 0
		emit := func(to int, match bool) {
			if to > at {
				start := bytes
				for _, r := range runes[at:to] {
					bytes += utf8.RuneLen(r)
				}
				f(span{start, bytes, match})
				at = to
			}
		}
		begin := time.Now()
		m, err := re.FindRunesMatch(runes)
		for ; m != nil && err == nil && time.Since(begin) < textTimeout; m, err = re.FindNextMatch(m) {
			emit(m.Index, false)
			emit(m.Index+m.Length, true)
		}
		// What took too long leaves the rest in one piece: the tokens still
		// spell the text.
		emit(len(runes), false)
	}, nil
}

// behaviors say which spans make a piece, by their names in tokenizer.json;
// the rules are those of the reference (NormalizedString::split).
var behaviors = map[string]func(text string, of spans, f func(span)){
	"Isolated": func(text string, of spans, f func(span)) { of(text, f) },
	"Removed": func(text string, of spans, f func(span)) {
		of(text, func(s span) {
			if !s.match {
				f(s)
			}
		})
	},
	"Contiguous": merging(func(last, s span) bool { return s.match == last.match }),
	// A match goes with what is before it, but not with another match.
	"MergedWithPrevious": merging(func(last, s span) bool { return s.match && !last.match }),
	// What follows a match goes with it, unless it is a match too.
	"MergedWithNext": merging(func(last, s span) bool { return last.match && !s.match }),
}

// merging joins a span to the one before it where joins says so; what was
// joined counts as a match if its last span is one.
func merging(joins func(last, s span) bool) func(text string, of spans, f func(span)) {
	return func(text string, of spans, f func(span)) {
		var last span
		of(text, func(s span) {
			if last.end > 0 && joins(last, s) {
				last.end, last.match = s.end, s.match
				return
			}
			if last.end > 0 {
				f(last)
			}
			last = s
		})
		if last.end > 0 {
			f(last)
		}
	}
}

// newSplitter is the splitter of a pattern's spans; with invert, what does not
// match counts as the match. The behavior must be one of behaviors.
func newSplitter(of spans, behavior string, invert bool) splitter {
	if inner := of; invert {
		of = func(text string, f func(span)) {
			inner(text, func(s span) {
				s.match = !s.match
				f(s)
			})
		}
	}
	cut := behaviors[behavior]
	return func(text string, first bool, yield func(string, bool)) {
		cut(text, of, func(s span) { yield(text[s.start:s.end], first && s.start == 0) })
	}
}

// chain splits the pieces of each splitter by the next one.
func chain(parts []splitter) splitter {
	switch len(parts) {
	case 0:
		return whole
	case 1:
		return parts[0]
	}
	head, rest := parts[0], chain(parts[1:])
	return func(text string, first bool, yield func(string, bool)) {
		head(text, first, func(piece string, first bool) { rest(piece, first, yield) })
	}
}

// whole is the splitter that does not split.
func whole(text string, first bool, yield func(string, bool)) {
	if text != "" {
		yield(text, first)
	}
}

// prefixed puts a prefix before each text that does not begin with it, or, if
// onlyFirst, before the one at the begin.
func prefixed(prefix string, onlyFirst bool, next splitter) splitter {
	return func(text string, first bool, yield func(string, bool)) {
		if text != "" && !strings.HasPrefix(text, prefix) && (first || !onlyFirst) {
			text = prefix + text
		}
		next(text, first, yield)
	}
}
