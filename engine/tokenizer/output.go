package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// readDecoder finds how tokens become text. It returns a function that makes
// what a token stands for out of its name in the vocabulary.
func readDecoder(c component) (d decoding, text func(token string) string, err error) {
	const supported = "ByteLevel, Metaspace, and a Sequence of Replace, ByteFallback, ByteLevel, Metaspace, Fuse and Strip"
	parts, err := c.flat("decoders")
	if err != nil {
		return d, nil, err
	}
	if len(parts) == 0 {
		return d, nil, c.notSupported(supported)
	}
	var steps []func(string) string
	fused := false
	for _, p := range parts {
		step := func(s string) string { return s }
		switch {
		case p.kind == "Fuse":
			fused = true
		case p.kind == "Strip":
			err = d.readStrip(p, fused)
		case fused:
			err = errors.New("Sequence: after Fuse only Strip is supported")
		case p.kind == "ByteLevel":
			step = fromByteLevel
		case p.kind == "ByteFallback":
			step, d.each = fromByteToken, true
		case p.kind == "Replace":
			step, err = p.replacer()
		case p.kind == "Metaspace":
			step, err = d.readMetaspace(p)
		default:
			err = p.notSupported(supported)
		}
		if err != nil {
			return d, nil, err
		}
		steps = append(steps, step)
	}
	return d, func(token string) string {
		for _, step := range steps {
			token = step(token)
		}
		return token
	}, nil
}

func (d *decoding) readMetaspace(c component) (step func(string) string, err error) {
	m, err := c.metaspace()
	if err != nil {
		return nil, err
	}
	if *m.PrependScheme == "never" {
		return func(s string) string { return strings.ReplaceAll(s, m.Replacement, " ") }, nil
	}
	d.space = m.Replacement // depends on where in a text a token is
	return func(s string) string { return s }, nil
}

func (d *decoding) readStrip(c component, fused bool) error {
	var m struct {
		Content string `json:"content"`
		Start   int    `json:"start"`
		Stop    int    `json:"stop"`
	}
	if err := c.decode(&m); err != nil {
		return err
	}
	switch {
	case !fused:
		return errors.New("Sequence: Strip is supported after Fuse only")
	case m.Stop != 0 || m.Start < 0 || d.strip > 0:
		return errors.New("Strip: supported is one with a start of at least 0 and a stop of 0")
	case utf8.RuneCountInString(m.Content) != 1:
		return fmt.Errorf("Strip: content %.60q must be one code point", m.Content)
	}
	d.char, _ = utf8.DecodeRuneInString(m.Content)
	d.strip = m.Start
	return nil
}

// byteToken is the token of a byte in a vocabulary with byte_fallback.
func byteToken(b byte) string { return fmt.Sprintf("<0x%02X>", b) }

// fromByteToken is the byte of a token of the form <0xE2>; others are themselves.
func fromByteToken(token string) string {
	if len(token) == 6 && strings.HasPrefix(token, "<0x") && token[5] == '>' {
		if b, err := strconv.ParseUint(token[3:5], 16, 8); err == nil {
			return string([]byte{byte(b)})
		}
	}
	return token
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
	if b, ok := byteLevel(token); ok {
		return b
	}
	return token
}

// byteLevel is the bytes of a byte-level token, unless it has other code points.
func byteLevel(token string) (string, bool) {
	b := make([]byte, 0, len(token))
	for _, r := range token {
		c, ok := byteOf[r]
		if !ok {
			return "", false
		}
		b = append(b, c)
	}
	return string(b), true
}

// readPostProcessor finds the special tokens around an encoded text.
func (t *Tokenizer) readPostProcessor(c component) error {
	parts, err := c.flat("processors")
	if err != nil {
		return err
	}
	for _, p := range parts {
		switch p.kind {
		case "ByteLevel": // concerns offsets only
		case "TemplateProcessing":
			err = t.readTemplate(p)
		default:
			err = p.notSupported("TemplateProcessing, ByteLevel and a Sequence of these")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readTemplate puts the tokens of the template for one text around what earlier
// processors put there.
func (t *Tokenizer) readTemplate(c component) error {
	var template struct {
		Single []struct {
			SpecialToken *struct {
				ID string `json:"id"`
			} `json:"SpecialToken"`
			Sequence *struct{} `json:"Sequence"`
		} `json:"single"`
		Tokens map[string]struct {
			IDs []int64 `json:"ids"`
		} `json:"special_tokens"`
	}
	if err := c.decode(&template); err != nil {
		return err
	}
	var around [2][]int32
	texts := 0
	for _, part := range template.Single {
		switch {
		case part.Sequence != nil && part.SpecialToken == nil:
			if texts++; texts > 1 {
				return errors.New("TemplateProcessing: single has the text more than once")
			}
		case part.SpecialToken == nil || part.Sequence != nil:
			return errors.New("TemplateProcessing: a part of single is not one of Sequence and SpecialToken")
		default:
			token, ok := template.Tokens[part.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("TemplateProcessing: special token %.60q is not in special_tokens", part.SpecialToken.ID)
			}
			for _, id := range token.IDs {
				if id < 0 || id >= int64(len(t.tokens)) {
					return fmt.Errorf("TemplateProcessing: special token %.60q has id %d: allowed are 0 to %d", part.SpecialToken.ID, id, len(t.tokens)-1)
				}
				around[texts] = append(around[texts], int32(id))
			}
		}
	}
	if texts == 0 {
		return errors.New("TemplateProcessing: single does not have the text")
	}
	t.prefix = append(around[0], t.prefix...)
	t.suffix = append(t.suffix, around[1]...)
	return nil
}

// readConfig applies tokenizer_config.json: if it says whether to add the
// begin-of-text or the end-of-text token, these take the place of the post
// processor's, as in transformers 5 (TokenizersBackend.update_post_processor).
func (t *Tokenizer) readConfig(b []byte) error {
	var c struct {
		AddBOS *bool           `json:"add_bos_token"`
		AddEOS *bool           `json:"add_eos_token"`
		BOS    json.RawMessage `json:"bos_token"`
		EOS    json.RawMessage `json:"eos_token"`
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return err
	}
	if c.AddBOS == nil && c.AddEOS == nil {
		return nil
	}
	bos, err := t.configured("bos_token", c.AddBOS, c.BOS)
	if err != nil {
		return err
	}
	eos, err := t.configured("eos_token", c.AddEOS, c.EOS)
	if err != nil {
		return err
	}
	t.prefix, t.suffix = bos, eos
	return nil
}

// configured is the token of a member of tokenizer_config.json if it is to be
// added: a string, an object with the member content, or null for none.
func (t *Tokenizer) configured(name string, add *bool, raw json.RawMessage) ([]int32, error) {
	if add == nil || !*add || len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var content string
	if json.Unmarshal(raw, &content) != nil {
		var token struct {
			Content *string `json:"content"`
		}
		if json.Unmarshal(raw, &token) != nil || token.Content == nil {
			return nil, fmt.Errorf("%s must be a string, or an object with the member content", name)
		}
		content = *token.Content
	}
	id, ok := t.TokenID(content)
	if !ok {
		return nil, fmt.Errorf("%s %.60q is not a token of %s", name, content, tokenizerFile)
	}
	return []int32{id}, nil
}
