package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Decode is the text of tokens; special ones are left out if skipSpecial. Ids
// without a token are nothing. Bytes that are not UTF-8 become U+FFFD, one for
// each longest beginning of a code point, as Unicode recommends (chapter 3,
// "U+FFFD substitution of maximal subparts").
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	d := t.NewDecoder(skipSpecial)
	var text strings.Builder
	for _, id := range ids {
		text.WriteString(d.Push(id))
	}
	text.WriteString(d.Flush())
	return text.String()
}

// Decoder decodes one text token by token. What it returns, put together, is
// what Decode gives. A token costs the same however long the text is.
type Decoder struct {
	t    *Tokenizer
	skip bool
	tail []byte // the beginning of a code point, at most 3 bytes between calls
}

// NewDecoder starts a text.
func (t *Tokenizer) NewDecoder(skipSpecial bool) *Decoder {
	return &Decoder{t: t, skip: skipSpecial}
}

// Push adds a token and returns the code points that are complete.
func (d *Decoder) Push(id int32) string {
	if id < 0 || int(id) >= len(d.t.bytes) || d.skip && d.t.special[id] {
		return ""
	}
	token := d.t.bytes[id]
	if len(d.tail) == 0 && utf8.ValidString(token) {
		return token
	}
	d.tail = append(d.tail, token...)
	return d.take(false)
}

// Flush ends the text: an incomplete code point becomes U+FFFD.
func (d *Decoder) Flush() string { return d.take(true) }

// take decodes tail, up to an incomplete code point unless it is the end.
func (d *Decoder) take(end bool) string {
	var text strings.Builder
	b := d.tail
	for len(b) > 0 {
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			text.Write(b[:n])
			b = b[n:]
			continue
		}
		if !utf8.FullRune(b) && !end {
			break
		}
		text.WriteRune(utf8.RuneError)
		b = b[subpart(b):]
	}
	d.tail = append(d.tail[:0], b...)
	return text.String()
}

// subpart is the length of the longest beginning of b that begins some code
// point, at least 1. b does not begin with a whole one.
func subpart(b []byte) int {
	n := 1
	for n < len(b) && n < utf8.UTFMax && !utf8.FullRune(b[:n+1]) {
		n++
	}
	return n
}
