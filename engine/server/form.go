package server

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/outrider-dev/outrider/engine/grammar"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// Limits of the forms of texts.
const (
	maxChoiceTexts = 4096
	keptGrammars   = 32
)

// form is what a request says of the form of its text; without a parameter it
// says nothing.
type form struct {
	param  string // that says it
	source grammar.Source
	shown  []int32 // special tokens that are text
}

// set takes a field; done is false for one that is not about the form.
func (f *form) set(name string, value json.RawMessage) (done bool, err *apiError) {
	switch name {
	case "response_format":
		err = f.setResponseFormat(value)
	case "guided_json":
		err = f.setJSON(name, value)
	case "guided_regex":
		var pattern string
		if err = stringField(name, value, &pattern); err == nil && !isNull(value) {
			err = f.require(name, grammar.Regex(pattern))
		}
	case "guided_choice":
		err = f.setChoice(name, value)
	default:
		return false, nil
	}
	return true, err
}

// require asks for a form; there can be one.
func (f *form) require(param string, source grammar.Source) *apiError {
	if f.param != "" {
		return invalid(param, "%s and %s both say what form the text has: leave one of them out", f.param, param)
	}
	f.param, f.source = param, source
	return nil
}

// setJSON takes a JSON schema, or a string that holds one.
func (f *form) setJSON(name string, value json.RawMessage) *apiError {
	if isNull(value) {
		return nil
	}
	if value[0] == '"' {
		var text string
		if err := stringField(name, value, &text); err != nil {
			return err
		}
		value = json.RawMessage(text)
		if fail := lone(name, value, 0, int64(len(value))); fail != nil {
			return fail
		}
	}
	return f.require(name, grammar.Schema(value))
}

func (f *form) setChoice(name string, value json.RawMessage) *apiError {
	if isNull(value) {
		return nil
	}
	if value[0] != '[' {
		return invalid(name, "%s is %s: allowed is a list of strings", name, shorten(string(value)))
	}
	all, err := elements(name, value, maxChoiceTexts)
	if err != nil {
		return err
	}
	texts := make([]string, len(all))
	for i, v := range all {
		if v[0] != '"' || json.Unmarshal(v, &texts[i]) != nil || texts[i] == "" {
			return invalid(name, "%s[%d] is %s: allowed is a string that is not empty", name, i, shorten(string(v)))
		}
	}
	if len(texts) == 0 {
		return invalid(name, "%s is an empty list: give at least one string", name)
	}
	return f.require(name, grammar.Choice(texts...))
}

// setResponseFormat reads OpenAI's way to say it.
func (f *form) setResponseFormat(value json.RawMessage) *apiError {
	const name = "response_format"
	if isNull(value) {
		return nil
	}
	if value[0] != '{' {
		return invalid(name, "%s is %s: allowed is an object", name, shorten(string(value)))
	}
	kind := ""
	var schema json.RawMessage
	err := eachField(value, func(key string, value json.RawMessage) *apiError {
		switch key {
		case "type":
			return stringField(name+".type", value, &kind)
		case "json_schema":
			schema = value
			return nil
		}
		return invalid(name, "%s has no %q: allowed are type and json_schema", name, shorten(key))
	})
	if err == nil && schema != nil && kind != "json_schema" {
		err = invalid(name, "%s has a json_schema, but its type is %q", name, shorten(kind))
	}
	if err == nil {
		switch kind {
		case "text":
		case "json_object":
			err = f.require(name, grammar.JSONObject())
		case "json_schema":
			err = f.setNamedSchema(name, schema)
		default:
			err = invalid(name, "%s.type is %q: allowed are text, json_object and json_schema", name, shorten(kind))
		}
	}
	return about(name, err)
}

// about makes an error one of a parameter, not of a field within it.
func about(param string, err *apiError) *apiError {
	if err != nil {
		err.Param = &param
	}
	return err
}

// setNamedSchema reads response_format.json_schema.
func (f *form) setNamedSchema(name string, value json.RawMessage) *apiError {
	if len(value) == 0 || value[0] != '{' {
		return invalid(name, "%s.json_schema is missing or no object: give {\"name\": …, \"schema\": …}", name)
	}
	var schema json.RawMessage
	err := eachField(value, func(key string, value json.RawMessage) *apiError {
		var text string
		var strict bool
		switch key {
		case "schema":
			schema = value
			return nil
		case "name", "description":
			return stringField(name+".json_schema."+key, value, &text)
		case "strict": // a text always satisfies the schema
			return boolField(name+".json_schema.strict", value, &strict)
		}
		return invalid(name, "%s.json_schema has no %q: allowed are name, description, schema and strict", name, shorten(key))
	})
	switch {
	case err != nil:
		return err
	case schema == nil || isNull(schema):
		return invalid(name, "%s.json_schema.schema is missing: give a JSON schema", name)
	}
	return f.require(name, grammar.Schema(schema))
}

// grammar compiles what a request says of the form of its text; nil is any.
func (s *Server) grammar(f *form, tok *tokenizer.Tokenizer) (*grammar.Grammar, *apiError) {
	switch {
	case f.param == "":
		return nil, nil
	case tok == nil:
		return nil, invalid(f.param, "this model has no tokenizer, and so no text that could have a form: leave %s out", f.param)
	}
	g, err := s.grammars(tok, f.shown).Get(f.source)
	if err != nil {
		return nil, invalid(f.param, "%s: %v", f.param, err)
	}
	return g, nil
}

// showing is a tokenizer some of whose special tokens are text.
type showing struct {
	*tokenizer.Tokenizer
	shown []int32
}

func (t showing) IsSpecial(id int32) bool {
	return t.Tokenizer.IsSpecial(id) && !slices.Contains(t.shown, id)
}

// grammars are the compiled grammars over a tokenizer's vocabulary, in which
// shown are text. A model has one or two such sets: none, and those around its
// reasoning.
func (s *Server) grammars(tok *tokenizer.Tokenizer, shown []int32) *grammar.Cache {
	s.forms.Lock()
	defer s.forms.Unlock()
	if s.forms.tokenizer != tok {
		s.forms.tokenizer, s.forms.caches = tok, map[string]*grammar.Cache{}
	}
	key := fmt.Sprint(shown)
	if s.forms.caches[key] == nil {
		s.forms.caches[key] = grammar.NewCache(grammar.NewVocabulary(showing{tok, shown}), keptGrammars)
	}
	return s.forms.caches[key]
}
