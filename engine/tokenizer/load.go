package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

const (
	tokenizerFile = "tokenizer.json"
	configFile    = "tokenizer_config.json"
	maxFile       = 256 << 20 // bytes of each
)

// file is tokenizer.json.
type file struct {
	Normalizer    component `json:"normalizer"`
	PreTokenizer  component `json:"pre_tokenizer"`
	PostProcessor component `json:"post_processor"`
	Decoder       component `json:"decoder"`
	Model         model     `json:"model"`
	AddedTokens   []struct {
		ID         int64  `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
}

type model struct {
	Type                    string           `json:"type"`
	Vocab                   map[string]int64 `json:"vocab"`
	Merges                  []rawMerge       `json:"merges"`
	IgnoreMerges            bool             `json:"ignore_merges"`
	ByteFallback            bool             `json:"byte_fallback"`
	UnkToken                *string          `json:"unk_token"`
	FuseUnk                 bool             `json:"fuse_unk"`
	ContinuingSubwordPrefix string           `json:"continuing_subword_prefix"`
	EndOfWordSuffix         string           `json:"end_of_word_suffix"`
	Dropout                 float64          `json:"dropout"`
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

// Load reads tokenizer.json of a model folder, and from tokenizer_config.json,
// if there is one, whether texts get a begin and an end token; or, without
// tokenizer.json, tiktoken.model. The error is fs.ErrNotExist's if there is
// neither; otherwise it names the part that is wrong or not supported.
func Load(fsys fs.FS) (*Tokenizer, error) {
	t, err := loadJSON(fsys)
	if errors.Is(err, fs.ErrNotExist) {
		return loadTiktoken(fsys)
	}
	return t, err
}

func loadJSON(fsys fs.FS) (*Tokenizer, error) {
	b, err := read(fsys, tokenizerFile)
	if err != nil {
		return nil, err
	}
	t, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tokenizerFile, err)
	}
	b, err = read(fsys, configFile)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil {
		err = t.readConfig(b)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	return t, nil
}

func read(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes, which are allowed", name, maxFile)
	}
	return b, err
}

func parse(b []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, err
	}
	if err := f.Model.understood(); err != nil {
		return nil, err
	}
	t := &Tokenizer{ignore: f.Model.IgnoreMerges, cache: map[string][]int32{}}
	var err error
	if t.normalize, err = readNormalizer(f.Normalizer); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if t.split, t.byteLevel, err = readPreTokenizer(f.PreTokenizer); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	var text func(string) string
	if t.decoding, text, err = readDecoder(f.Decoder); err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	if err := t.readVocabulary(&f, text); err != nil {
		return nil, err
	}
	if err := t.readBytes(&f.Model); err != nil {
		return nil, err
	}
	if t.merges, err = f.Model.merges(); err != nil {
		return nil, err
	}
	if err := t.readPostProcessor(f.PostProcessor); err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	return t, nil
}

// understood refuses, by name, what this package does not do.
func (m *model) understood() error {
	switch {
	case m.Type != "BPE" && (m.Type != "" || m.Merges == nil):
		return fmt.Errorf("model.type %.60q is not supported: supported is BPE", m.Type)
	case m.ContinuingSubwordPrefix != "" || m.EndOfWordSuffix != "":
		return errors.New("model.continuing_subword_prefix and model.end_of_word_suffix are not supported: they must be empty")
	case m.Dropout != 0:
		return fmt.Errorf("model.dropout is %v: supported is null", m.Dropout)
	}
	return nil
}

// readVocabulary fills in the tokens of the vocabulary and the added ones; text
// makes what a token stands for out of its name.
func (t *Tokenizer) readVocabulary(f *file, text func(string) string) error {
	// Ids may leave gaps, but memory follows what the file has, not what it says.
	limit := 4*int64(len(f.Model.Vocab)+len(f.AddedTokens)) + 1<<16
	highest := int64(-1)
	check := func(token string, id int64) error {
		if id < 0 || id >= limit {
			return fmt.Errorf("token %.60q has id %d: allowed here are 0 to %d", token, id, limit-1)
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
	t.tokens, t.special = make([]string, highest+1), make([]bool, highest+1)
	t.ids = make(map[string]int32, len(f.Model.Vocab))
	taken := make([]bool, highest+1)
	for token, id := range f.Model.Vocab {
		if taken[id] {
			return fmt.Errorf("id %d has two tokens in model.vocab: it must have one", id)
		}
		taken[id] = true
		t.tokens[id] = text(token)
		if t.byteLevel {
			// Tokens with other code points are in no piece.
			b, ok := byteLevel(token)
			if !ok {
				continue
			}
			token = b
		}
		t.ids[token] = int32(id)
	}
	return t.readAdded(f, text)
}

// readAdded fills in the added tokens. They may take the place of one of the
// vocabulary, but the two must not call one token differently.
func (t *Tokenizer) readAdded(f *file, text func(string) string) error {
	var plain, normalized []addedToken
	t.addedIDs = make(map[string]int32, len(f.AddedTokens))
	for _, a := range f.AddedTokens {
		if a.Content == "" {
			return fmt.Errorf("added token %d has no content", a.ID)
		}
		id, ok := f.Model.Vocab[a.Content]
		if other, twice := t.addedIDs[a.Content]; twice {
			id, ok = int64(other), true
		}
		if ok && id != a.ID {
			return fmt.Errorf("added token %.60q has the ids %d and %d: it must have one", a.Content, id, a.ID)
		}
		t.addedIDs[a.Content] = int32(a.ID)
		token := addedToken{a.Content, int32(a.ID), a.SingleWord, a.LStrip, a.RStrip}
		if a.Normalized && t.normalize != nil {
			token.content = t.normalize(token.content)
		}
		if a.Normalized {
			normalized = append(normalized, token)
		} else {
			plain = append(plain, token)
		}
		// What is found in texts is also what is decoded to, as in the reference.
		t.tokens[a.ID], t.special[a.ID] = text(token.content), a.Special
	}
	t.added, t.addedNormalized = newAddedTokens(plain), newAddedTokens(normalized)
	return nil
}

// readBytes finds the tokens of single bytes and the unknown one, and refuses a
// vocabulary that would lose parts of texts without a sign.
func (t *Tokenizer) readBytes(m *model) error {
	t.unknown, t.fuse = -1, m.FuseUnk
	if m.UnkToken != nil {
		id, ok := m.Vocab[*m.UnkToken]
		if !ok {
			return fmt.Errorf("model.unk_token %.60q is not in model.vocab", *m.UnkToken)
		}
		t.unknown = int32(id)
	}
	for i := range t.bytes {
		b := byte(i)
		t.bytes[b] = -1
		if t.byteLevel {
			if id, ok := t.ids[string([]byte{b})]; ok {
				t.bytes[b] = id
			}
		} else if id, ok := m.Vocab[byteToken(b)]; ok && m.ByteFallback {
			t.bytes[b] = int32(id)
		}
		inUTF8 := b < 0xc0 || b > 0xc1 && b < 0xf5
		if t.bytes[b] >= 0 || t.unknown >= 0 || !inUTF8 {
			continue
		}
		if t.byteLevel {
			return fmt.Errorf("model.vocab has no token for byte 0x%02x, and model.unk_token is null: byte-level BPE needs a token for each byte", b)
		}
		return fmt.Errorf("model.unk_token is null: that is supported with a ByteLevel pre_tokenizer, or with model.byte_fallback and a token for each byte (there is none for %s)", byteToken(b))
	}
	return nil
}

// merges reads the merges; of equal pairs the last counts, as in the reference.
func (m *model) merges() (merges, error) {
	all := make(merges, len(m.Merges))
	for rank, two := range m.Merges {
		var ids [3]int32
		for i, token := range [3]string{two[0], two[1], two[0] + two[1]} {
			id, ok := m.Vocab[token]
			if !ok {
				return nil, fmt.Errorf("model.merges: merge %d (%.60q and %.60q): token %.60q is not in model.vocab", rank, two[0], two[1], token)
			}
			ids[i] = int32(id)
		}
		all[pair{ids[0], ids[1]}] = merge{int32(rank), ids[2]}
	}
	return all, nil
}
