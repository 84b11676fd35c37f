// Package tokenizer turns text into a model's token ids and back, as its
// tokenizer.json says (the format of huggingface/tokenizers): byte-level BPE.
package tokenizer

import (
	"strings"
	"sync"
	"unicode/utf8"
)

// Tokenizer encodes and decodes. It may be used from several goroutines.
type Tokenizer struct {
	ids     map[string]int32 // token bytes, as in text, to id; added tokens are apart
	bytes   []string         // by id: what a token stands for; empty for unused ids
	special []bool           // by id: left out of texts for people
	unit    [256]int32       // id of each single byte
	merges  map[pair]merge
	ignore  bool // a piece that is a token is not merged up to it
	split   splitter
	added   addedTokens
	prefix  []int32 // special tokens around an encoded text
	suffix  []int32

	mu    sync.RWMutex
	cache map[string][]int32 // of short pieces
}

type pair struct{ left, right int32 }

// merge says that a pair becomes id; pairs of a lower rank are merged first.
type merge struct{ rank, id int32 }

// The cache of pieces is emptied when it is full: real texts repeat few pieces
// often, and hostile ones must not fill the memory.
const (
	cacheEntries = 20000
	cachePiece   = 48 // longest piece, in bytes
)

// Encode is the tokens of text, with the model's special tokens around it if
// addSpecial. Bytes that are not UTF-8 count as U+FFFD.
func (t *Tokenizer) Encode(text string, addSpecial bool) []int32 {
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	var out []int32
	if addSpecial {
		out = append(out, t.prefix...)
	}
	for text != "" {
		at, token := t.added.find(text)
		out = t.plain(text[:at], out)
		if token.content == "" {
			break
		}
		out = append(out, token.id)
		text = text[at+len(token.content):]
	}
	if addSpecial {
		out = append(out, t.suffix...)
	}
	return out
}

// plain encodes text without added tokens in it.
func (t *Tokenizer) plain(text string, out []int32) []int32 {
	t.split(text, func(piece string) { out = t.piece(piece, out) })
	return out
}

// piece encodes a piece, which no merge crosses.
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
func (t *Tokenizer) VocabSize() int { return len(t.bytes) }

// TokenBytes is what a token stands for: bytes that may be part of a code
// point. Nothing for an id without a token.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if id < 0 || int(id) >= len(t.bytes) {
		return nil
	}
	return []byte(t.bytes[id])
}

// IsSpecial tells whether a token is left out of texts for people.
func (t *Tokenizer) IsSpecial(id int32) bool {
	return id >= 0 && int(id) < len(t.special) && t.special[id]
}

// TokenID finds an added token, such as "<|eot_id|>", or a token by its bytes.
func (t *Tokenizer) TokenID(content string) (int32, bool) {
	if id, ok := t.added.id(content); ok {
		return id, true
	}
	id, ok := t.ids[content]
	return id, ok
}
