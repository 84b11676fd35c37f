package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
)

// Files of a model folder that a template can be in, in the order in which they
// count, and those of the special tokens.
const (
	jinjaFile     = "chat_template.jinja"
	jsonFile      = "chat_template.json"
	configFile    = "tokenizer_config.json"
	specialFile   = "special_tokens_map.json"
	maxConfigFile = 64 << 20 // bytes
)

// Load reads the chat template of a model folder. The error is fs.ErrNotExist's
// if it has none.
func Load(fsys fs.FS) (*Template, error) {
	special, sources, err := config(fsys)
	if err != nil {
		return nil, err
	}
	if b, err := read(fsys, jsonFile); err == nil {
		var c struct {
			Template json.RawMessage `json:"chat_template"`
		}
		if err = json.Unmarshal(b, &c); err == nil {
			sources, err = named(c.Template)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", jsonFile, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if b, err := read(fsys, jinjaFile); err == nil {
		if sources == nil {
			sources = map[string]string{}
		}
		sources[nameDefault] = string(b)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if sources == nil {
		return nil, fmt.Errorf("chat template: %w: none of %s, %s and %s has one", fs.ErrNotExist, jinjaFile, jsonFile, configFile)
	}
	return parseNamed(sources, special)
}

// LoadFile is Parse of a template with the special tokens of a model folder.
func LoadFile(fsys fs.FS, source string) (*Template, error) {
	special, _, err := config(fsys)
	if err != nil {
		return nil, err
	}
	return Parse(source, special)
}

func read(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxConfigFile+1))
	if err == nil && len(b) > maxConfigFile {
		err = fmt.Errorf("%s is longer than %d bytes, which are allowed", name, maxConfigFile)
	}
	return b, err
}

// config is the special tokens of a model folder and the templates of its
// tokenizer_config.json, nil without any.
func config(fsys fs.FS) (special, sources map[string]string, err error) {
	special = map[string]string{}
	for _, name := range []string{specialFile, configFile} {
		b, err := read(fsys, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var members map[string]json.RawMessage
		if err == nil {
			err = json.Unmarshal(b, &members)
		}
		if err == nil {
			maps.Copy(special, specialTokens(members))
			if name == configFile {
				sources, err = named(members["chat_template"])
			}
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return special, sources, nil
}

// specialTokens are the members that templates may name: each a string, or an
// object with the member content.
func specialTokens(members map[string]json.RawMessage) map[string]string {
	tokens := map[string]string{}
	for _, name := range []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"} {
		var s string
		var object struct {
			Content *string `json:"content"`
		}
		raw := members[name]
		switch {
		case len(raw) == 0 || string(raw) == "null":
		case json.Unmarshal(raw, &s) == nil:
			tokens[name] = s
		case json.Unmarshal(raw, &object) == nil && object.Content != nil:
			tokens[name] = *object.Content
		}
	}
	return tokens
}

// named reads chat_template: a string, or a list of templates with names.
func named(raw json.RawMessage) (map[string]string, error) {
	if !given(raw) {
		return nil, nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return map[string]string{nameDefault: one}, nil
	}
	var list []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if err := json.Unmarshal(raw, &list); err != nil || len(list) == 0 {
		return nil, errors.New("chat_template is neither a string nor a list of objects with name and template")
	}
	all := map[string]string{}
	for _, t := range list {
		all[t.Name] = t.Template
	}
	return all, nil
}
