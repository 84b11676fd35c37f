package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

const (
	tokenizerFile = "tokenizer.json"
	maxFile       = 256 << 20 // bytes of it
)

// file is tokenizer.json; components are decoded by their type.
type file struct {
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         struct {
		Type                    string           `json:"type"`
		Vocab                   map[string]int64 `json:"vocab"`
		Merges                  []rawMerge       `json:"merges"`
		IgnoreMerges            bool             `json:"ignore_merges"`
		ByteFallback            bool             `json:"byte_fallback"`
		ContinuingSubwordPrefix string           `json:"continuing_subword_prefix"`
		EndOfWordSuffix         string           `json:"end_of_word_suffix"`
		Dropout                 *float64         `json:"dropout"`
	} `json:"model"`
	AddedTokens []struct {
		ID         int64  `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
}

// rawMerge is a pair of tokens: "a b" in older files, ["a", "b"] in newer.
type rawMerge [2]string

func (m *rawMerge) UnmarshalJSON(b []byte) error {
	if b[0] != '"' {
		var two []string
		if err := json.Unmarshal(b, &two); err != nil || len(two) != 2 {
			return fmt.Errorf("merge %.60s is not a pair of strings", b)
		}
		*m = rawMerge(two)
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	left, right, ok := strings.Cut(s, " ")
	if !ok || strings.Contains(right, " ") {
		return fmt.Errorf("merge %.60q is not two tokens with a space between", s)
	}
	*m = rawMerge{left, right}
	return nil
}

// Load reads tokenizer.json of a model folder. The error is fs.ErrNotExist's if
// there is none; otherwise it names the part that is wrong or not supported.
func Load(fsys fs.FS) (*Tokenizer, error) {
	info, err := fs.Stat(fsys, tokenizerFile)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes: allowed are %d", tokenizerFile, info.Size(), maxFile)
	}
	b, err := fs.ReadFile(fsys, tokenizerFile)
	if err != nil {
		return nil, err
	}
	t, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tokenizerFile, err)
	}
	return t, nil
}

func parse(b []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, err
	}
	if err := f.understood(); err != nil {
		return nil, err
	}
	t := &Tokenizer{ignore: f.Model.IgnoreMerges, cache: map[string][]int32{}}
	var err error
	if t.split, err = readPreTokenizer(f.PreTokenizer); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	if err := t.readVocabulary(&f); err != nil {
		return nil, err
	}
	if err := t.readMerges(&f); err != nil {
		return nil, err
	}
	if err := t.readPostProcessor(f.PostProcessor); err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	return t, nil
}

// understood refuses, by name, what this package does not do.
func (f *file) understood() error {
	m := &f.Model
	switch {
	case m.Type != "BPE" && (m.Type != "" || m.Merges == nil):
		return fmt.Errorf("model type %q is not supported: supported is BPE", m.Type)
	case m.ByteFallback:
		return errors.New("model.byte_fallback is true: supported is byte-level BPE, where it is false")
	case m.ContinuingSubwordPrefix != "" || m.EndOfWordSuffix != "":
		return errors.New("model.continuing_subword_prefix and end_of_word_suffix are not supported: they must be empty")
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("model.dropout is %v: supported is null", *m.Dropout)
	}
	if kind, err := kindOf(f.Normalizer); err != nil || kind != "" {
		return fmt.Errorf("normalizer %s is not supported: supported is null", describe(kind, err))
	}
	if kind, err := kindOf(f.Decoder); err != nil || kind != "" && kind != "ByteLevel" {
		return fmt.Errorf("decoder %s is not supported: supported is ByteLevel", describe(kind, err))
	}
	return nil
}

func describe(kind string, err error) string {
	if err != nil {
		return err.Error()
	}
	return kind
}

// kindOf is the type of a component; empty for null.
func kindOf(raw json.RawMessage) (string, error) {
	var c *struct {
		Type string `json:"type"`
	}
	if len(raw) == 0 {
		return "", nil
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", err
	}
	switch {
	case c == nil:
		return "", nil
	case c.Type == "":
		return "", errors.New("without a type")
	}
	return c.Type, nil
}

// readVocabulary fills in the tokens of the vocabulary and the added ones.
func (t *Tokenizer) readVocabulary(f *file) error {
	// Ids may leave gaps, but memory follows what the file has, not what it says.
	limit := 4*int64(len(f.Model.Vocab)+len(f.AddedTokens)) + 1<<16
	highest := int64(-1)
	check := func(token string, id int64) error {
		if id < 0 || id >= limit {
			return fmt.Errorf("token %.60q has id %d: allowed here is 0 to %d", token, id, limit-1)
		}
		highest = max(highest, id)
		return nil
	}
	for token, id := range f.Model.Vocab {
		if err := check(token, id); err != nil {
			return err
		}
	}
	for _, a := range f.AddedTokens {
		if err := check(a.Content, a.ID); err != nil {
			return err
		}
	}
	t.bytes, t.special = make([]string, highest+1), make([]bool, highest+1)
	t.ids = make(map[string]int32, len(f.Model.Vocab))
	taken := make([]bool, highest+1)
	for token, id := range f.Model.Vocab {
		if taken[id] {
			return fmt.Errorf("id %d has two tokens in model.vocab", id)
		}
		taken[id] = true
		b := fromByteLevel(token)
		t.bytes[id] = b
		t.ids[b] = int32(id)
	}
	var added []addedToken
	for _, a := range f.AddedTokens {
		switch {
		case a.Content == "":
			return fmt.Errorf("added token %d is empty", a.ID)
		case a.SingleWord || a.LStrip || a.RStrip:
			return fmt.Errorf("added token %.60q has single_word, lstrip or rstrip: supported is false", a.Content)
		}
		t.bytes[a.ID], t.special[a.ID] = a.Content, a.Special
		added = append(added, addedToken{a.Content, int32(a.ID)})
	}
	t.added = newAddedTokens(added)
	for b := range t.unit {
		id, ok := t.ids[string([]byte{byte(b)})]
		if !ok {
			return fmt.Errorf("model.vocab has no token for byte 0x%02x: byte-level BPE needs all 256", b)
		}
		t.unit[b] = id
	}
	return nil
}

// readMerges fills in the merges; of equal pairs the first counts.
func (t *Tokenizer) readMerges(f *file) error {
	t.merges = make(map[pair]merge, len(f.Model.Merges))
	for rank, m := range f.Model.Merges {
		var ids [3]int32
		for i, token := range [3]string{m[0], m[1], m[0] + m[1]} {
			id, ok := f.Model.Vocab[token]
			if !ok {
				return fmt.Errorf("merge %d (%.60q and %.60q): token %.60q is not in model.vocab", rank, m[0], m[1], token)
			}
			ids[i] = int32(id)
		}
		p := pair{ids[0], ids[1]}
		if _, ok := t.merges[p]; !ok {
			t.merges[p] = merge{int32(rank), ids[2]}
		}
	}
	return nil
}

// byteOf maps the code points that stand for bytes in byte-level vocabularies
// (openai/gpt-2, encoder.py, bytes_to_unicode): printable bytes stand for
// themselves, the others are code points from 256 on.
var byteOf = func() map[rune]byte {
	m := make(map[rune]byte, 256)
	next := rune(256)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			m[rune(b)] = byte(b)
		} else {
			m[next] = byte(b)
			next++
		}
	}
	return m
}()

// fromByteLevel is the bytes that a token of a byte-level vocabulary stands
// for. A token with other code points, such as a special one, is itself.
func fromByteLevel(token string) string {
	b := make([]byte, 0, len(token))
	for _, r := range token {
		c, ok := byteOf[r]
		if !ok {
			return token
		}
		b = append(b, c)
	}
	return string(b)
}
