package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
)

// readPreTokenizer makes the splitter of a pre-tokenizer: ByteLevel, alone or
// after a Split in a Sequence.
func readPreTokenizer(raw json.RawMessage) (splitter, error) {
	kind, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	if kind != "Sequence" {
		return readByteLevel(kind, raw)
	}
	var sequence struct {
		Parts []json.RawMessage `json:"pretokenizers"`
	}
	if err := json.Unmarshal(raw, &sequence); err != nil {
		return nil, err
	}
	if len(sequence.Parts) != 2 {
		return nil, fmt.Errorf("a Sequence of %d: supported is a Split and a ByteLevel", len(sequence.Parts))
	}
	split, err := readSplit(sequence.Parts[0])
	if err != nil {
		return nil, err
	}
	kind, err = kindOf(sequence.Parts[1])
	if err != nil {
		return nil, err
	}
	byteLevel, err := readByteLevel(kind, sequence.Parts[1])
	if err != nil {
		return nil, err
	}
	return func(text string, yield func(string)) {
		split(text, func(piece string) { byteLevel(piece, yield) })
	}, nil
}

// readByteLevel makes the splitter of a ByteLevel pre-tokenizer.
func readByteLevel(kind string, raw json.RawMessage) (splitter, error) {
	if kind != "ByteLevel" {
		if kind == "" {
			kind = "null"
		}
		return nil, fmt.Errorf("%s is not supported here: supported are ByteLevel, and a Sequence of Split and ByteLevel", kind)
	}
	b := struct {
		AddPrefixSpace bool  `json:"add_prefix_space"`
		UseRegex       *bool `json:"use_regex"`
	}{}
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, err
	}
	if b.AddPrefixSpace {
		return nil, errors.New("ByteLevel with add_prefix_space true is not supported: it must be false")
	}
	if b.UseRegex != nil && !*b.UseRegex {
		return whole, nil
	}
	return newSplitter(gpt2Pattern)
}

func readSplit(raw json.RawMessage) (splitter, error) {
	var s struct {
		Type    string `json:"type"`
		Pattern struct {
			Regex  *string `json:"Regex"`
			String *string `json:"String"`
		} `json:"pattern"`
		Behavior string `json:"behavior"`
		Invert   bool   `json:"invert"`
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, err
	}
	switch {
	case s.Type != "Split":
		return nil, fmt.Errorf("%s is not supported here: supported is a Split before ByteLevel", s.Type)
	case s.Pattern.Regex == nil:
		return nil, errors.New("Split: supported is a pattern of the kind Regex")
	case s.Behavior != "Isolated" || s.Invert:
		return nil, fmt.Errorf("Split with behavior %q and invert %v: %w", s.Behavior, s.Invert, errBehavior)
	}
	return newSplitter(*s.Pattern.Regex)
}

// readPostProcessor finds the special tokens around an encoded text.
func (t *Tokenizer) readPostProcessor(raw json.RawMessage) error {
	kind, err := kindOf(raw)
	if err != nil {
		return err
	}
	switch kind {
	case "", "ByteLevel": // the latter concerns offsets only
		return nil
	case "TemplateProcessing":
		return t.readTemplate(raw)
	case "Sequence":
		var sequence struct {
			Processors []json.RawMessage `json:"processors"`
		}
		if err := json.Unmarshal(raw, &sequence); err != nil {
			return err
		}
		for _, p := range sequence.Processors {
			if kind, _ := kindOf(p); kind == "Sequence" {
				return errors.New("a Sequence within a Sequence is not supported")
			}
			if err := t.readPostProcessor(p); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%s is not supported: supported are TemplateProcessing, ByteLevel and a Sequence of these", kind)
}

// readTemplate reads the template of a single text.
func (t *Tokenizer) readTemplate(raw json.RawMessage) error {
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
	if err := json.Unmarshal(raw, &template); err != nil {
		return err
	}
	texts := 0
	for _, part := range template.Single {
		switch {
		case part.Sequence != nil:
			texts++
		case part.SpecialToken == nil:
			return errors.New("a part of the template is neither Sequence nor SpecialToken")
		default:
			token, ok := template.Tokens[part.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("special token %.60q is not in special_tokens", part.SpecialToken.ID)
			}
			for _, id := range token.IDs {
				if id < 0 || id >= int64(len(t.bytes)) {
					return fmt.Errorf("special token %.60q has id %d: allowed is 0 to %d", part.SpecialToken.ID, id, len(t.bytes)-1)
				}
				if texts == 0 {
					t.prefix = append(t.prefix, int32(id))
				} else {
					t.suffix = append(t.suffix, int32(id))
				}
			}
		}
	}
	if texts != 1 {
		return fmt.Errorf("the template has the text %d times: it must be there once", texts)
	}
	return nil
}
