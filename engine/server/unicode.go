package server

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
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
// is of the field name. encoding/json would put U+FFFD in its place, and the model would
// read another text than the client wrote.
func lone(name string, text []byte, from, to int64) *apiError {
	at := loneSurrogate(text[from:to])
	if at < 0 {
		return nil
	}
	at += int(from)
	return invalid(shorten(name), "%s has the escape %s at byte %d, which is half of a surrogate pair and no character: write both halves, or the character itself", shorten(name), text[at:at+6], at)
}

// loneSurrogate is where the first escape of half a surrogate pair is in a JSON value; -1
// for nowhere.
func loneSurrogate(value []byte) int {
	for at := 0; ; {
		next := bytes.IndexByte(value[at:], '\\')
		if next < 0 {
			return -1
		}
		at += next
		first := escaped(value[at:])
		switch {
		case first < 0:
			at += 2 // an escape of two characters, of which the second may be a backslash
		case !utf16.IsSurrogate(first):
			at += 6
		case utf16.DecodeRune(first, escaped(value[at+6:])) != utf8.RuneError:
			at += 12
		default:
			return at
		}
		if at >= len(value) {
			return -1
		}
	}
}

// escaped is the code unit of an escape such as \u00e9 at the begin of a text; -1 for
// anything else.
func escaped(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}
