package tokenizer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
)

const (
	tiktokenFile = "tiktoken.model"
	// kimiClass is the class that Kimi's models name, with kimiPattern.
	kimiClass = "TikTokenTokenizer"
	// kimiReserved is the number of special tokens after the ranks; those that
	// tokenizer_config.json does not name are called by their ids.
	kimiReserved = 256 + 2
	// maxTiktoken is the longest token, in bytes: merging looks at each place in it.
	maxTiktoken = 1 << 10
)

// loadTiktoken reads tiktoken.model, a line of base64 and rank for each token,
// with the special tokens of tokenizer_config.json. The file says nothing of the
// pattern that splits texts, so only a known tokenizer_class is taken.
func loadTiktoken(fsys fs.FS) (*Tokenizer, error) {
	b, err := read(fsys, tiktokenFile)
	if err != nil {
		return nil, err
	}
	of, err := patternSpans(kimiPattern)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{ignore: true, cache: map[string][]int32{}, split: newSplitter(of, "Isolated", false)}
	t.byteLevel, t.unknown = true, -1
	if err := t.readRanks(b); err != nil {
		return nil, fmt.Errorf("%s: %w", tiktokenFile, err)
	}
	config, err := read(fsys, configFile)
	if errors.Is(err, fs.ErrNotExist) { // there is a tokenizer, but it is not whole
		return nil, fmt.Errorf("%s needs a %s beside it, with its special tokens", tiktokenFile, configFile)
	}
	if err == nil {
		err = t.readTiktokenConfig(config)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	return t, nil
}

// readRanks fills in the vocabulary. A pair merges if the two together are a
// token, at that token's rank, which is its id.
func (t *Tokenizer) readRanks(b []byte) error {
	t.ids = map[string]int32{}
	for line := range bytes.Lines(b) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		text, number, ok := bytes.Cut(line, []byte(" "))
		token, err := base64.StdEncoding.DecodeString(string(text))
		rank, notNumber := strconv.ParseInt(string(number), 10, 32)
		switch {
		case !ok || err != nil || notNumber != nil || len(token) == 0 || len(token) > maxTiktoken:
			return fmt.Errorf("line %d (%.40q) is not a token in base64 and its rank", len(t.tokens)+1, line)
		case rank != int64(len(t.tokens)):
			return fmt.Errorf("line %d has rank %d: ranks must go from 0 up, without gaps", len(t.tokens)+1, rank)
		}
		if _, twice := t.ids[string(token)]; twice {
			return fmt.Errorf("line %d has a token that an earlier one has", rank+1)
		}
		t.ids[string(token)] = int32(rank)
		t.tokens = append(t.tokens, string(token))
	}
	for i := range t.bytes {
		id, ok := t.ids[string([]byte{byte(i)})]
		if !ok {
			return fmt.Errorf("there is no token for byte 0x%02x: each byte needs one", i)
		}
		t.bytes[i] = id
	}
	t.merges = merges{}
	for id, token := range t.tokens {
		for i := 1; i < len(token); i++ {
			left, ok := t.ids[token[:i]]
			right, too := t.ids[token[i:]]
			if ok && too {
				t.merges[pair{left, right}] = merge{int32(id), int32(id)}
			}
		}
	}
	t.special = make([]bool, len(t.tokens))
	return nil
}

// readTiktokenConfig adds the special tokens.
func (t *Tokenizer) readTiktokenConfig(b []byte) error {
	var c struct {
		Class string `json:"tokenizer_class"`
		Added map[string]struct {
			Content string `json:"content"`
			Special bool   `json:"special"`
		} `json:"added_tokens_decoder"`
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return err
	}
	if c.Class != kimiClass {
		return fmt.Errorf("tokenizer_class is %.60q, whose pattern is not known: supported is %q; other models need a %s", c.Class, kimiClass, tokenizerFile)
	}
	base := len(t.tokens)
	t.addedIDs = map[string]int32{}
	var added []addedToken
	for id := base; id < base+kimiReserved; id++ {
		content, special := fmt.Sprintf("<|reserved_token_%d|>", id), true
		if a, ok := c.Added[strconv.Itoa(id)]; ok {
			content, special = a.Content, a.Special
			delete(c.Added, strconv.Itoa(id))
		}
		if content == "" {
			return fmt.Errorf("added_tokens_decoder: token %d has no content", id)
		}
		if _, twice := t.addedIDs[content]; twice {
			return fmt.Errorf("added_tokens_decoder: token %.60q is there twice", content)
		}
		added = append(added, addedToken{content: content, id: int32(id)})
		t.addedIDs[content] = int32(id)
		t.tokens, t.special = append(t.tokens, content), append(t.special, special)
	}
	for id, a := range c.Added {
		return fmt.Errorf("added_tokens_decoder: token %.60q has id %.20s: allowed here are %d to %d", a.Content, id, base, base+kimiReserved-1)
	}
	t.added, t.addedNormalized = newAddedTokens(added), newAddedTokens(nil)
	return t.readConfig(b)
}
