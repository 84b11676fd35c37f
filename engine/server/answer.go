package server

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// usage counts tokens in OpenAI's shape.
type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	Details          struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// add counts a choice; its prompt only if it is the first of that prompt.
func (u *usage) add(v scheduler.Usage, withPrompt bool) {
	if withPrompt {
		u.PromptTokens += v.PromptTokens
		u.Details.CachedTokens += v.CachedTokens
	}
	u.CompletionTokens += v.CompletionTokens
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
}

// speculation counts what drafting did for an answer.
type speculation struct {
	Verifies int `json:"verifies"` // target passes that checked a draft
	Drafted  int `json:"drafted"`  // draft tokens proposed
	Accepted int `json:"accepted"` // of these, accepted

	AcceptLength float64 `json:"accept_length,omitzero"` // tokens that a verified draft settled on average
}

func (s *speculation) add(v scheduler.Usage) {
	s.Verifies += v.Verifies
	s.Drafted += v.Drafted
	s.Accepted += v.Accepted
	all := scheduler.Usage{Verifies: s.Verifies, Accepted: s.Accepted}
	s.AcceptLength = all.AcceptLength()
}

// timings say where an answer's time went, in seconds: of the choice that each
// took longest for.
type timings struct {
	Queue   float64 `json:"queue_seconds"`
	Prefill float64 `json:"prefill_seconds"`
	Decode  float64 `json:"decode_seconds"`
}

func (t *timings) add(v scheduler.Usage) {
	t.Queue, t.Prefill, t.Decode = max(t.Queue, v.Queue.Seconds()), max(t.Prefill, v.Prefill.Seconds()), max(t.Decode, v.Decode.Seconds())
}

// envelope is what goes around choices: an answer, or a chunk of one.
type envelope struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"` // Unix seconds
	Model       string       `json:"model"`
	Choices     []any        `json:"choices"`
	Usage       any          `json:"usage,omitempty"` // *usage, or noUsage
	Speculation *speculation `json:"speculation,omitempty"`
	Timings     *timings     `json:"timings,omitempty"`
}

// noUsage is the null that chunks carry beside the one with the usage.
var noUsage = (*usage)(nil)

// choice is one answer to a prompt, or a piece of one.
type choice struct {
	Index          int                     `json:"index"`
	Text           string                  `json:"text"`
	Logprobs       *logprobs               `json:"logprobs"`
	FinishReason   *scheduler.FinishReason `json:"finish_reason"`
	TokenIDs       []int32                 `json:"token_ids,omitzero"`
	PromptTokenIDs []int32                 `json:"prompt_token_ids,omitzero"`
}

// logprobs are log probabilities in the shape of OpenAI's completions: an
// element for each token.
type logprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []float32            `json:"token_logprobs"`
	TopLogprobs   []map[string]float32 `json:"top_logprobs"` // the chosen token is always in it
	TextOffset    []int                `json:"text_offset"`  // code points of the answer before the token
}

// renderer turns the events of one request into its choice.
type renderer interface {
	// first is a piece before the model's first, or nil.
	first() any
	// render is the pieces that ev adds; none when a client would see nothing
	// new in them.
	render(ev *scheduler.Event) []any
	// whole is the choice of an answer that is all in ev, under number index.
	whole(ev *scheduler.Event, index int) any
}

// textRenderer is a renderer of completions.
type textRenderer struct {
	c       *completion
	req     *scheduler.Request
	index   int
	tok     *tokenizer.Tokenizer
	decoder *tokenizer.Decoder // counts the code points before each token
	token   []byte             // what the last one added
	offset  int
	begun   bool
	echo    string // begins the text
}

func newRenderer(c *completion, req *scheduler.Request, index int, tok *tokenizer.Tokenizer) *textRenderer {
	r := &textRenderer{c: c, req: req, index: index, tok: tok}
	if tok != nil && c.logprobs != scheduler.NoLogprobs {
		r.decoder = tok.NewDecoder(true)
	}
	return r
}

func (r *textRenderer) first() any { return nil }

func (r *textRenderer) whole(ev *scheduler.Event, index int) any {
	r.index = index
	piece, _ := r.piece(ev)
	return piece
}

func (r *textRenderer) render(ev *scheduler.Event) []any {
	if piece, ok := r.piece(ev); ok {
		return []any{piece}
	}
	return nil
}

// piece is what ev adds; ok is false when a client would see nothing new in it.
func (r *textRenderer) piece(ev *scheduler.Event) (choice, bool) {
	piece := choice{Index: r.index, Text: ev.Text}
	if !r.begun {
		piece.Text = r.echo + piece.Text
	}
	if ev.Finish != "" {
		piece.FinishReason = &ev.Finish
	}
	if r.c.tokenIDs {
		piece.TokenIDs = ev.TokenIDs
		if piece.TokenIDs == nil {
			piece.TokenIDs = []int32{}
		}
		if !r.begun {
			piece.PromptTokenIDs = r.req.PromptIDs
		}
	}
	if r.c.logprobs != scheduler.NoLogprobs {
		piece.Logprobs = r.logprobs(ev.Logprobs)
	}
	ok := piece.Text != "" || ev.Finish != "" || len(ev.TokenIDs) > 0 && (r.c.tokenIDs || piece.Logprobs != nil || r.tok == nil)
	r.begun = r.begun || ok
	return piece, ok
}

func (r *textRenderer) logprobs(tokens []scheduler.TokenLogprob) *logprobs {
	l := &logprobs{Tokens: []string{}, TokenLogprobs: []float32{}, TopLogprobs: []map[string]float32{}, TextOffset: []int{}}
	for _, t := range tokens {
		name := tokenName(r.tok, t.ID)
		top := make(map[string]float32, len(t.Top)+1)
		top[name] = finite(t.Logprob)
		for _, alternative := range t.Top {
			// Best first: of two tokens of one name the likelier stays.
			if n := tokenName(r.tok, alternative.ID); n != name {
				if _, taken := top[n]; !taken {
					top[n] = finite(alternative.Logprob)
				}
			}
		}
		l.Tokens = append(l.Tokens, name)
		l.TokenLogprobs = append(l.TokenLogprobs, finite(t.Logprob))
		l.TopLogprobs = append(l.TopLogprobs, top)
		l.TextOffset = append(l.TextOffset, r.offset)
		if r.decoder != nil {
			r.token = r.decoder.Push(r.token[:0], t.ID)
			r.offset += utf8.RuneCount(r.token)
		}
	}
	return l
}

// finite puts the number that other servers use in the place of minus
// infinity, which JSON cannot hold.
func finite(logprob float32) float32 {
	if math.IsInf(float64(logprob), -1) {
		return -9999
	}
	return logprob
}

// tokenName is a token's text; "bytes:\xe2\x80", as OpenAI writes it, for one
// that is not whole code points; "token_id:7" for one without text.
func tokenName(tok *tokenizer.Tokenizer, id int32) string {
	var b []byte
	if tok != nil {
		b = tok.TokenBytes(id)
	}
	switch {
	case len(b) == 0:
		return fmt.Sprintf("token_id:%d", id)
	case utf8.Valid(b):
		return string(b)
	}
	var s strings.Builder
	s.WriteString("bytes:")
	for _, x := range b {
		fmt.Fprintf(&s, `\x%02x`, x)
	}
	return s.String()
}

// merge adds ev to what a choice has so far.
func merge(all *scheduler.Event, ev scheduler.Event) {
	all.TokenIDs = append(all.TokenIDs, ev.TokenIDs...)
	all.Text += ev.Text
	all.Logprobs = append(all.Logprobs, ev.Logprobs...)
	all.Finish, all.Usage, all.Err = ev.Finish, ev.Usage, ev.Err
}
