package server

import (
	"encoding/json"
	"net/http"
)

// tokenized is the answer of /tokenize.
type tokenized struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []int32  `json:"tokens"`
	TokenStrs   []string `json:"token_strs,omitzero"`
}

// tokenize is POST /tokenize: the tokens of a prompt, or of messages as the
// chat template makes them a prompt.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	body, done, err := s.readBody(w, r)
	var all tokenized
	if err == nil {
		defer done()
		all, err = s.tokens(body)
	}
	if err != nil {
		err.write(w)
		return
	}
	writeJSON(w, http.StatusOK, all)
}

func (s *Server) tokens(body []byte) (tokenized, *apiError) {
	var text string
	var given, special, names bool
	c := &chatRequest{completion: completion{special: true}}
	c.input.AddGenerationPrompt = true
	err := eachField(body, func(name string, value json.RawMessage) *apiError {
		switch name {
		case "model":
			return stringField(name, value, &c.model)
		case "prompt":
			given = !isNull(value)
			return stringField(name, value, &text)
		case "add_special_tokens":
			special = !isNull(value)
			return boolField(name, value, &c.special)
		case "return_token_strs":
			return boolField(name, value, &names)
		case "messages", "tools", "documents", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt", "continue_final_message":
			_, err := c.setChat(name, value)
			return err
		}
		return invalid(shorten(name), "/tokenize has no %q: see the API reference for what it has", shorten(name))
	})
	info := s.backend.Info()
	tok := s.backend.Tokenizer()
	chats := len(c.input.Messages) > 0
	switch {
	case err != nil:
		return tokenized{}, err
	case c.model != "" && c.model != info.ServedModelName:
		return tokenized{}, checkModel(c.model, info.ServedModelName)
	case given == chats:
		return tokenized{}, invalid("prompt", "give either prompt, a string, or messages")
	case s.backend.Ready() != nil && tok == nil:
		return tokenized{}, unavailable(s.backend.Ready())
	case tok == nil:
		return tokenized{}, invalid("prompt", "this model has no tokenizer")
	}
	if chats {
		template, _, err := s.talks()
		if err != nil {
			return tokenized{}, err
		}
		c.input.Variables = c.templateVariables()
		if text, err = renderChat(template, c.input); err != nil {
			return tokenized{}, err
		}
		c.special = c.special && special // the template has them already
	}
	ids, refused := s.encoder.encode(tok, text, c.special)
	if refused != nil {
		return tokenized{}, refused
	}
	all := tokenized{MaxModelLen: info.ContextLength, Tokens: notNil(ids)}
	all.Count = len(all.Tokens)
	if names {
		all.TokenStrs = make([]string, 0, all.Count)
		for _, id := range all.Tokens {
			all.TokenStrs = append(all.TokenStrs, tokenName(tok, id))
		}
	}
	return all, nil
}

// detokenize is POST /detokenize: the text of tokens, special ones included.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	body, done, err := s.readBody(w, r)
	var text string
	if err == nil {
		defer done()
		text, err = s.text(body)
	}
	if err != nil {
		err.write(w)
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Prompt string `json:"prompt"`
	}{text})
}

func (s *Server) text(body []byte) (string, *apiError) {
	var model string
	var ids []int32
	err := eachField(body, func(name string, value json.RawMessage) (err *apiError) {
		switch {
		case name == "model":
			err = stringField(name, value, &model)
		case name != "tokens":
			err = invalid(shorten(name), "/detokenize has no %q: allowed are model and tokens", shorten(name))
		case value[0] != '[':
			err = invalid(name, "tokens is %s: allowed is a list of token ids", shorten(string(value)))
		default:
			ids, err = tokenIDs(name, value)
		}
		return err
	})
	info := s.backend.Info()
	tok := s.backend.Tokenizer()
	switch {
	case err != nil:
		return "", err
	case model != "" && model != info.ServedModelName:
		return "", checkModel(model, info.ServedModelName)
	case ids == nil:
		return "", invalid("tokens", "tokens is missing: give a list of token ids")
	case s.backend.Ready() != nil && tok == nil:
		return "", unavailable(s.backend.Ready())
	case tok == nil:
		return "", invalid("tokens", "this model has no tokenizer")
	}
	for i, id := range ids {
		if int(id) >= info.VocabSize {
			return "", invalid("tokens", "tokens[%d] is %d: this model's tokens are 0 to %d", i, id, info.VocabSize-1)
		}
	}
	return tok.Decode(ids, false), nil
}
