// Package tokenizer turns text into a model's token ids and back, as its
// tokenizer.json says (the format of huggingface/tokenizers): byte-pair
// encoding, byte-level or over code points with a fall-back to bytes.
package tokenizer

import (
	"strings"
	"sync"
	"unicode/utf8"
)

// Tokenizer encodes and decodes. It may be used from several goroutines.
type Tokenizer struct {
	vocabulary
	merges merges
	ignore bool // a piece that is a token is not merged up to it

	// The way of a text: added tokens are cut out of it, then out of what the
	// normaliser (if there is one) makes of the rest; what is left is split
	// into pieces, which no merge crosses.
	added           addedTokens
	normalize       func(string) string
	addedNormalized addedTokens
	addedIDs        map[string]int32 // of both, by content
	split           splitter

	prefix, suffix []int32 // special tokens around an encoded text
	decoding       decoding

	mu    sync.RWMutex
	cache map[string][]int32 // of short pieces
}

// vocabulary is the tokens and their ids.
type vocabulary struct {
	ids     map[string]int32 // the model's tokens, as they are in a piece
	tokens  []string         // by id: what a token is decoded to; empty for unused ids
	special []bool           // by id: left out of texts for people

	byteLevel bool       // a piece is bytes, not code points
	bytes     [256]int32 // ids of single bytes; -1 for none
	unknown   int32      // id for what no token stands for; -1 for none
	fuse      bool       // unknowns in a row are one
}

// The cache of pieces is emptied when it is full: real texts repeat few pieces
// often, and hostile ones must not fill the memory.
const (
	cacheEntries = 20000
	cachePiece   = 48 // longest piece, in bytes
)

// Encode is the tokens of text, with the model's special tokens around it if
// addSpecial. Added tokens, special ones too, are recognised in the text. Bytes
// that are not UTF-8 count as U+FFFD.
func (t *Tokenizer) Encode(text string, addSpecial bool) []int32 {
	if !utf8.ValidString(text) {
		text = validate(text)
	}
	var out []int32
	if addSpecial {
		out = append(out, t.prefix...)
	}
	token := func(id int32) { out = append(out, id) }
	t.added.cut(text, true, func(text string, first bool) {
		if t.normalize != nil {
			text = t.normalize(text)
		}
		t.addedNormalized.cut(text, first, func(text string, first bool) {
			t.split(text, first, func(piece string, _ bool) { out = t.piece(piece, out) })
		}, token)
	}, token)
	if addSpecial {
		out = append(out, t.suffix...)
	}
	return out
}

// validate replaces what is not UTF-8.
func validate(text string) string {
	b, _ := decodeUTF8(make([]byte, 0, len(text)+8), []byte(text), true, false)
	return string(b)
}

// piece encodes a piece.
func (t *Tokenizer) piece(piece string, out []int32) []int32 {
	if len(piece) > cachePiece {
		return t.bpe(piece, out)
	}
	t.mu.RLock()
	ids, ok := t.cache[piece]
	t.mu.RUnlock()
	if ok {
		return append(out, ids...)
	}
	n := len(out)
	out = t.bpe(piece, out)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.cache) >= cacheEntries {
		clear(t.cache)
	}
	t.cache[strings.Clone(piece)] = append([]int32(nil), out[n:]...)
	return out
}

// VocabSize is the number of ids, used or not: one more than the highest.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// TokenBytes is what a token stands for within a text: bytes that may be part
// of a code point. Nothing for an id without a token.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if id < 0 || int(id) >= len(t.tokens) {
		return nil
	}
	return t.decoding.append(nil, t.tokens[id], false)
}

// FirstTokenBytes is what a token stands for at the begin of a text, where some
// tokenizers drop a space.
func (t *Tokenizer) FirstTokenBytes(id int32) []byte {
	if id < 0 || int(id) >= len(t.tokens) {
		return nil
	}
	b := t.decoding.append(nil, t.tokens[id], true)
	for range t.decoding.strip {
		r, n := utf8.DecodeRune(b)
		if n == 0 || r != t.decoding.char {
			break
		}
		b = b[n:]
	}
	return b
}

// IsSpecial tells whether a token is left out of texts for people.
func (t *Tokenizer) IsSpecial(id int32) bool {
	return id >= 0 && int(id) < len(t.special) && t.special[id]
}

// TokenID finds an added token, such as "<|eot_id|>", or else one of the
// model's by what it stands for.
func (t *Tokenizer) TokenID(content string) (int32, bool) {
	if id, ok := t.addedIDs[content]; ok {
		return id, true
	}
	id, ok := t.ids[content]
	return id, ok
}
