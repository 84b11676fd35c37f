package server

import (
	"bytes"
	"unicode/utf8"

	"github.com/outrider-dev/outrider/engine/internal/surrogate"
)

// unreadable reports a text that is not UTF-8, or not JSON from its first bytes on.
func unreadable(text []byte) *apiError {
	if bytes.HasPrefix(text, []byte("\uFEFF")) {
		return invalid("", "the body begins with a byte order mark, the bytes EF BB BF: send the JSON without it")
	}
	if utf8.Valid(text) {
		return nil
	}
	at := 0
	for {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size == 1 {
			return invalid("", "the body is not valid UTF-8 at byte %d", at)
		}
		at += size
	}
}

// lone reports the first half of a surrogate pair between two offsets of a JSON text, which
// is of the field name.
func lone(name string, text []byte, from, to int64) *apiError {
	says := surrogate.Refusal(text, from, to)
	if says == "" {
		return nil
	}
	return invalid(shorten(name), "%s %s", shorten(name), says)
}
