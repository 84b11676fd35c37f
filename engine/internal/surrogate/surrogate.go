// Package surrogate finds escapes of JSON that are no character: encoding/json would put
// U+FFFD in their place, and the model would read another text than the client wrote.
package surrogate

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Refusal says where the first escape of half a surrogate pair is between two offsets of a
// JSON text, after a word for what has it; "" is for nowhere.
func Refusal(text []byte, from, to int64) string {
	at := lone(text[from:to])
	if at < 0 {
		return ""
	}
	at += int(from)
	return fmt.Sprintf("has the escape %s at byte %d, which is half of a surrogate pair and no character: write both halves, or the character itself", text[at:at+6], at)
}

// lone is where the first escape of half a surrogate pair is in a JSON value; -1
// for nowhere.
func lone(value []byte) int {
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
