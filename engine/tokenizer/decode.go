package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// decoding is how the tokens' texts are put together; see readDecoder.
type decoding struct {
	space string // stands for a space in tokens, but is dropped from the first one; empty for none
	strip int    // number of strip's at the text's begin to leave out
	char  rune   // the code point to strip
	// each: a byte that is not UTF-8 becomes one U+FFFD, instead of each longest
	// beginning of a code point.
	each bool
}

// append adds to text the bytes that a token stands for there.
func (d *decoding) append(text []byte, token string, first bool) []byte {
	if d.space == "" {
		return append(text, token...)
	}
	for {
		before, after, found := strings.Cut(token, d.space)
		text = append(text, before...)
		if !found {
			return text
		}
		if !first {
			text = append(text, ' ')
		}
		token = after
	}
}

// Decode is the text of tokens; special ones are left out if skipSpecial. Ids
// without a token are nothing. Bytes that are not UTF-8 become U+FFFD: in a
// byte-level vocabulary one for each longest beginning of a code point, as
// Unicode recommends (chapter 3, "U+FFFD substitution of maximal subparts"), in
// others one for each byte. (The reference, with byte tokens such as <0xE2>,
// also replaces code points that are whole if they are next to broken ones; a
// stream would have to hold them back without end.)
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	d := t.NewDecoder(skipSpecial)
	var text []byte
	for _, id := range ids {
		text = d.Push(text, id)
	}
	return string(d.Flush(text))
}

// Decoder decodes one text token by token. What it appends, put together, is
// what Decode gives. A token costs the same however long the text is, and
// allocates nothing where there is room for it.
type Decoder struct {
	t     *Tokenizer
	skip  bool
	shown []int32
	begun bool   // a token was there
	strip int    // code points still to leave out at the begin
	tail  []byte // the beginning of a code point, at most 3 bytes between calls
}

// NewDecoder starts a text; shown are special tokens that are not left out.
func (t *Tokenizer) NewDecoder(skipSpecial bool, shown ...int32) *Decoder {
	return &Decoder{t: t, skip: skipSpecial, shown: shown, strip: t.decoding.strip}
}

// Push takes a token and appends to text the code points that are complete.
func (d *Decoder) Push(text []byte, id int32) []byte {
	if id < 0 || int(id) >= len(d.t.tokens) || d.skip && d.t.special[id] && !slices.Contains(d.shown, id) || d.t.tokens[id] == "" {
		return text
	}
	d.tail = d.t.decoding.append(d.tail, d.t.tokens[id], !d.begun)
	d.begun = true
	return d.take(text, false)
}

// Flush ends the text: an incomplete code point becomes U+FFFD.
func (d *Decoder) Flush(text []byte) []byte { return d.take(text, true) }

// take decodes tail, up to an incomplete code point unless it is the end.
func (d *Decoder) take(text []byte, end bool) []byte {
	from := len(text)
	text, rest := decodeUTF8(text, d.tail, end, d.t.decoding.each)
	d.tail = append(d.tail[:0], rest...)
	return d.stripped(text, from)
}

// stripped leaves out what the decoder strips from the begin of all texts; of this
// one what is before from is given out already.
func (d *Decoder) stripped(text []byte, from int) []byte {
	for d.strip > 0 && len(text) > from {
		r, n := utf8.DecodeRune(text[from:])
		if r != d.t.decoding.char {
			d.strip = 0
			break
		}
		text = append(text[:from], text[from+n:]...)
		d.strip--
	}
	return text
}

// decodeUTF8 appends b to text with U+FFFD for what is not UTF-8, and returns
// the incomplete code point at its end, which counts as not UTF-8 if this is
// the end. Each U+FFFD is for one byte if each, else for a maximal subpart.
func decodeUTF8(text, b []byte, end, each bool) (decoded, rest []byte) {
	if utf8.Valid(b) {
		return append(text, b...), nil
	}
	for len(b) > 0 {
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			text = append(text, b[:n]...)
			b = b[n:]
			continue
		}
		if !utf8.FullRune(b) && !end {
			break
		}
		text = utf8.AppendRune(text, utf8.RuneError)
		if each {
			b = b[1:]
		} else {
			b = b[subpart(b):]
		}
	}
	return text, b
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
