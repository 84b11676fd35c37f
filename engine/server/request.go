package server

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// Limits of a request's values, so that none of them sizes work by itself.
const (
	maxStops        = 16
	maxStopBytes    = 256
	maxStopIDs      = 64
	defaultMaxToken = 16 // OpenAI's
	unlimited       = math.MaxInt32
)

// completion is the body of POST /v1/completions.
type completion struct {
	model        string
	prompts      []prompt
	n            int
	bestOf       int // answers of which the n best are returned; 0: n
	echo         bool
	maxTokens    int // 0: not given
	minTokens    int
	stop         []string
	stopIDs      []int32
	ignoreEOS    bool
	logprobs     int
	sampling     sampling.Params
	seeded       bool
	stream       bool
	includeUsage bool
	tokenIDs     bool // return_token_ids
	form         form
	special      bool // add_special_tokens

	streamOptions bool // given
}

// prompt is a text, or token ids if they are not nil.
type prompt struct {
	text string
	ids  []int32
}

// parseCompletion reads a body of at most maxChoices choices. What depends on
// the model is checked later.
func parseCompletion(body []byte, maxChoices int) (*completion, *apiError) {
	c := &completion{n: 1, logprobs: scheduler.NoLogprobs, sampling: sampling.Params{Temperature: 1, TopP: 1}, special: true}
	err := eachField(body, func(name string, value json.RawMessage) *apiError {
		switch name {
		case "prompt":
			return c.setPrompt(value, maxChoices)
		case "best_of":
			return intField(name, value, 1, maxChoices, &c.bestOf)
		case "echo":
			return boolField(name, value, &c.echo)
		case "n":
			return intField(name, value, 1, maxChoices, &c.n)
		}
		if done, err := c.set(name, value); done {
			return err
		}
		return ignored(name, value)
	})
	switch {
	case err != nil:
		return nil, err
	case c.model == "":
		return nil, invalid("model", "model is missing: GET /v1/models lists what there is")
	case c.prompts == nil:
		return nil, invalid("prompt", "prompt is missing: give a string, token ids, or a list of these")
	case c.bestOf != 0 && c.bestOf < c.n:
		return nil, invalid("best_of", "best_of is %d and n is %d: allowed is n or more", c.bestOf, c.n)
	case c.bestOf > c.n && c.stream:
		return nil, invalid("best_of", "best_of is above n, and stream is true: the best are known only at the end: leave one of them out")
	case c.echo && c.logprobs != scheduler.NoLogprobs:
		return nil, invalid("echo", "echo with logprobs is not supported: prompts have no log probabilities here: leave one of them out")
	case len(c.prompts)*c.choices() > maxChoices:
		param := "n"
		if c.bestOf > c.n {
			param = "best_of"
		}
		return nil, invalid(param, "%d prompts with %s %d are %d choices: allowed are %d in a request", len(c.prompts), param, c.choices(), len(c.prompts)*c.choices(), maxChoices)
	}
	return c, c.check()
}

// check reports what does not go together in any kind of request.
func (c *completion) check() *apiError {
	if c.streamOptions && !c.stream {
		return invalid("stream_options", "stream_options is given but stream is false: leave one of them out")
	}
	if err := c.sampling.Validate(); err != nil {
		param, _, _ := strings.Cut(err.Error(), " ") // Validate begins with the name
		return invalid(param, "%s", err.Error())
	}
	return nil
}

// choices are the answers that are made for each prompt.
func (c *completion) choices() int { return max(c.n, c.bestOf) }

// set takes a field; done is false for one that it does not know.
func (c *completion) set(name string, value json.RawMessage) (done bool, err *apiError) {
	switch name {
	case "model":
		err = stringField(name, value, &c.model)
	case "max_tokens":
		err = intField(name, value, 1, unlimited, &c.maxTokens)
	case "min_tokens":
		err = intField(name, value, 0, unlimited, &c.minTokens)
	case "temperature":
		err = floatField(name, value, &c.sampling.Temperature)
	case "top_p":
		err = floatField(name, value, &c.sampling.TopP)
	case "top_k":
		err = intField(name, value, -1, unlimited, &c.sampling.TopK)
	case "min_p":
		err = floatField(name, value, &c.sampling.MinP)
	case "presence_penalty":
		err = floatField(name, value, &c.sampling.Presence)
	case "frequency_penalty":
		err = floatField(name, value, &c.sampling.Frequency)
	case "repetition_penalty":
		err = c.setRepetition(value)
	case "logit_bias":
		err = c.setBias(value)
	case "seed":
		err = c.setSeed(value)
	case "stop":
		err = c.setStop(value)
	case "stop_token_ids":
		err = c.setStopIDs(value)
	case "ignore_eos":
		err = boolField(name, value, &c.ignoreEOS)
	case "logprobs":
		err = intField(name, value, 0, scheduler.MaxLogprobs, &c.logprobs)
	case "stream":
		err = boolField(name, value, &c.stream)
	case "stream_options":
		err = c.setStreamOptions(value)
	case "return_token_ids":
		err = boolField(name, value, &c.tokenIDs)
	case "add_special_tokens":
		err = boolField(name, value, &c.special)
	default:
		return c.form.set(name, value)
	}
	return true, err
}

func (c *completion) setPrompt(value json.RawMessage, most int) *apiError {
	switch {
	case isNull(value):
		return nil
	case value[0] != '[':
		p, err := onePrompt("prompt", value)
		c.prompts = []prompt{p}
		return err
	case first(value) == ']':
		return invalid("prompt", "prompt is an empty list: give at least one prompt")
	case first(value) != '"' && first(value) != '[':
		ids, err := tokenIDs("prompt", value)
		c.prompts = []prompt{{ids: ids}}
		return err
	}
	all, err := elements("prompt", value, most)
	if err != nil {
		return err
	}
	for i, v := range all {
		p, err := onePrompt(fmt.Sprintf("prompt[%d]", i), v)
		if err != nil {
			return err
		}
		c.prompts = append(c.prompts, p)
	}
	return nil
}

func onePrompt(name string, value json.RawMessage) (p prompt, err *apiError) {
	switch value[0] {
	case '"':
		err = stringField(name, value, &p.text)
	case '[':
		p.ids, err = tokenIDs(name, value)
	default:
		err = invalid("prompt", "%s is %s: allowed is a string or a list of token ids", name, shorten(string(value)))
	}
	if err != nil {
		param := "prompt"
		err.Param = &param
	}
	return p, err
}

// setRepetition refuses the 0 that means "none" inside.
func (c *completion) setRepetition(value json.RawMessage) *apiError {
	const name = "repetition_penalty"
	if err := floatField(name, value, &c.sampling.Repetition); err != nil || isNull(value) {
		return err
	}
	if c.sampling.Repetition == 0 {
		return invalid(name, "%s is 0: allowed is 0.01 to 100; 1 is none", name)
	}
	return nil
}

// setBias reads an object of token ids, which are strings there, and numbers.
func (c *completion) setBias(value json.RawMessage) *apiError {
	const name = "logit_bias"
	if isNull(value) {
		return nil
	}
	if value[0] != '{' {
		return invalid(name, "%s is %s: allowed is an object of token ids and numbers", name, shorten(string(value)))
	}
	err := eachField(value, func(key string, value json.RawMessage) *apiError {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 || strconv.FormatInt(id, 10) != key { // "05" would be a second "5"
			return invalid(name, "%s has %q: a token id is a whole number from 0 to %d", name, shorten(key), math.MaxInt32)
		}
		if len(c.sampling.Bias) == sampling.MaxBiases {
			return invalid(name, "%s has more than %d tokens, which is the most", name, sampling.MaxBiases)
		}
		bias := sampling.Bias{ID: int32(id)}
		if isNull(value) {
			return invalid(name, "%s of token %d is null: allowed is a number", name, id)
		}
		if err := floatField(fmt.Sprintf("%s of token %d", name, id), value, &bias.Value); err != nil {
			return err
		}
		c.sampling.Bias = append(c.sampling.Bias, bias)
		return nil
	})
	return about(name, err) // not the token that is given twice
}

func (c *completion) setSeed(value json.RawMessage) *apiError {
	if isNull(value) {
		return nil
	}
	var n int64
	if err := json.Unmarshal(value, &n); err != nil || value[0] == '"' {
		return invalid("seed", "seed is %s: allowed is a whole number of 64 bits", shorten(string(value)))
	}
	c.sampling.Seed, c.seeded = uint64(n), true
	return nil
}

func (c *completion) setStop(value json.RawMessage) *apiError {
	all := []json.RawMessage{value}
	if isNull(value) {
		return nil
	}
	if value[0] == '[' {
		var err *apiError
		if all, err = elements("stop", value, maxStops); err != nil {
			return err
		}
	}
	c.stop = nil
	for i, v := range all {
		var s string
		if v[0] != '"' || json.Unmarshal(v, &s) != nil || s == "" || len(s) > maxStopBytes {
			name := "stop"
			if value[0] == '[' {
				name = fmt.Sprintf("stop[%d]", i)
			}
			return invalid("stop", "%s is %s: allowed is a string of 1 to %d bytes, and at most %d of them in a list", name, shorten(string(v)), maxStopBytes, maxStops)
		}
		c.stop = append(c.stop, s)
	}
	return nil
}

func (c *completion) setStopIDs(value json.RawMessage) (err *apiError) {
	if isNull(value) {
		return nil
	}
	if value[0] != '[' {
		return invalid("stop_token_ids", "stop_token_ids is %s: allowed is a list of token ids", shorten(string(value)))
	}
	if c.stopIDs, err = tokenIDs("stop_token_ids", value); err == nil && len(c.stopIDs) > maxStopIDs {
		err = invalid("stop_token_ids", "stop_token_ids has %d elements: allowed are %d", len(c.stopIDs), maxStopIDs)
	}
	return err
}

func (c *completion) setStreamOptions(value json.RawMessage) *apiError {
	if isNull(value) {
		return nil
	}
	if value[0] != '{' {
		return invalid("stream_options", "stream_options is %s: allowed is an object", shorten(string(value)))
	}
	c.streamOptions = true
	return eachField(value, func(name string, value json.RawMessage) *apiError {
		switch name {
		case "include_usage":
			return boolField("stream_options.include_usage", value, &c.includeUsage)
		case "include_obfuscation": // padding against traffic analysis: there is none
			return nil
		}
		return invalid("stream_options", "stream_options has no %q: allowed is include_usage", shorten(name))
	})
}

// neutral are the values that OpenAI's and other servers' fields may have
// though they are not supported here: those that ask for nothing. nil is any.
var neutral = map[string][]string{
	"user":         nil,
	"metadata":     nil, // OpenAI keeps it with a stored answer
	"store":        {"false"},
	"service_tier": {`"auto"`, `"default"`},
	"modalities":   {`["text"]`},

	"prompt_cache_key": nil, "safety_identifier": nil, // a hint and a label
	"suffix":          {`""`},
	"use_beam_search": {"false"},
}

// ignored refuses a field that would change the answer if it were supported.
func ignored(name string, value json.RawMessage) *apiError {
	values, known := neutral[name]
	switch {
	case !known:
		return invalid(shorten(name), "there is no parameter %q: see the API reference for those there are", shorten(name))
	case values == nil || isNull(value) || slices.Contains(values, string(value)):
		return nil
	}
	return invalid(name, "%s is not supported: leave it out", name)
}

// requests makes the scheduler's requests, those of each prompt one after the
// other, as the choices are numbered. usual is max_tokens where it is not given
// and there is room.
func (s *Server) requests(c *completion, id string, prompts [][]int32, usual int) ([]*scheduler.Request, *apiError) {
	tok := s.backend.Tokenizer()
	if len(c.stop) > 0 && tok == nil {
		return nil, invalid("stop", "this model has no tokenizer, and so no text to find stop strings in: use stop_token_ids")
	}
	info := s.backend.Info()
	for i, id := range c.stopIDs {
		if int(id) >= info.VocabSize {
			return nil, invalid("stop_token_ids", "stop_token_ids[%d] is %d: this model's tokens are 0 to %d", i, id, info.VocabSize-1)
		}
	}
	for _, b := range c.sampling.Bias {
		if int(b.ID) >= info.VocabSize {
			return nil, invalid("logit_bias", "logit_bias has token %d: this model's tokens are 0 to %d", b.ID, info.VocabSize-1)
		}
	}
	form, err := s.grammar(&c.form, tok)
	if err != nil {
		return nil, err
	}
	if !c.seeded {
		c.sampling.Seed = rand.Uint64()
	}
	window := info.ContextLength
	logprobs := c.logprobs
	if c.bestOf > c.n {
		logprobs = max(logprobs, 0) // to choose by
	}
	reqs := make([]*scheduler.Request, 0, len(prompts)*c.choices())
	for i, ids := range prompts {
		maxTokens := c.maxTokens
		if maxTokens == 0 {
			maxTokens = max(1, c.minTokens, min(usual, window-len(ids)))
		}
		for k := range c.choices() {
			params := c.sampling
			params.Seed = choiceSeed(params.Seed, k)
			reqs = append(reqs, &scheduler.Request{
				ID: fmt.Sprintf("%s-%d", id, i*c.choices()+k), PromptIDs: ids, MaxTokens: maxTokens, MinTokens: c.minTokens,
				Sampling: params, Stop: c.stop, StopIDs: c.stopIDs, IgnoreEOS: c.ignoreEOS, Logprobs: logprobs, Grammar: form,
				Again: k > 0,
			})
		}
	}
	return reqs, nil
}

// choiceSeed is the key of choice k of a prompt. Choice 0 has the request's
// own, so that it equals the answer with n 1; the others are spread over all
// keys (the constant is SplitMix64's), so that they meet no neighbour's seed.
func choiceSeed(seed uint64, k int) uint64 { return seed + uint64(k)*0x9E3779B97F4A7C15 }

// encode is the tokens of a prompt. A text that is too long at any rate is
// refused before the work of encoding it.
func (s *Server) encode(p prompt, tok *tokenizer.Tokenizer, special bool, window int) ([]int32, *apiError) {
	if p.ids != nil {
		return p.ids, nil
	}
	if tok == nil {
		return nil, invalid("prompt", "this model has no tokenizer: send the prompt as token ids")
	}
	if longest := s.longestToken(tok); len(p.text) > window*longest {
		return nil, tooLong(invalid("prompt", "the prompt has at least %d tokens, but this model's context length is %d: shorten the prompt", len(p.text)/longest, window))
	}
	return s.encoder.encode(tok, p.text, special)
}

// longestToken is the most bytes that a token stands for.
func (s *Server) longestToken(tok *tokenizer.Tokenizer) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tokenizer != tok {
		s.tokenizer, s.longest = tok, 1
		for id := range tok.VocabSize() {
			s.longest = max(s.longest, len(tok.TokenBytes(int32(id))))
		}
	}
	return s.longest
}

// tooLong marks an error as OpenAI does, for clients that shorten the prompt
// and try again.
func tooLong(e *apiError) *apiError {
	code := codeContextLength
	e.Code = &code
	return e
}
