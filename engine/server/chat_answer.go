package server

import (
	"github.com/outrider-dev/outrider/engine/chat/answer"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// chatChoice is one answer of a chat, or, with a delta, a piece of one.
type chatChoice struct {
	Index          int                     `json:"index"`
	Message        *chatMessage            `json:"message,omitempty"`
	Delta          *chatDelta              `json:"delta,omitempty"`
	Logprobs       *chatLogprobs           `json:"logprobs"`
	FinishReason   *scheduler.FinishReason `json:"finish_reason"`
	TokenIDs       []int32                 `json:"token_ids,omitzero"`
	PromptTokenIDs []int32                 `json:"prompt_token_ids,omitzero"`
}

// chatMessage is a whole message.
type chatMessage struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"` // null if there are only calls
	Refusal   *string    `json:"refusal"` // always null: in OpenAI's shape
	Reasoning string     `json:"reasoning_content,omitempty"`
	Calls     []toolCall `json:"tool_calls,omitempty"`
}

// chatDelta is what a piece adds to a message.
type chatDelta struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	Calls     []toolCall `json:"tool_calls,omitempty"`
}

// toolCall is a call, or more of its arguments.
type toolCall struct {
	Index    *int   `json:"index,omitempty"` // in pieces only
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// chatLogprobs are log probabilities in the shape of OpenAI's chats.
type chatLogprobs struct {
	Content []tokenLogprob `json:"content"`
	Refusal *string        `json:"refusal"` // always null
}

type tokenLogprob struct {
	Token   string         `json:"token"`
	Logprob float32        `json:"logprob"`
	Bytes   []int          `json:"bytes"`
	Top     []tokenLogprob `json:"top_logprobs,omitzero"`
}

// chatRenderer is a renderer of chats.
type chatRenderer struct {
	c      *chatRequest
	req    *scheduler.Request
	index  int
	tok    *tokenizer.Tokenizer
	parser *answer.Parser
	begin  string // of the answer, that the prompt has already
	forced bool   // the answer is calls alone
}

func newChatRenderer(c *chatRequest, req *scheduler.Request, index int, tok *tokenizer.Tokenizer, shape answer.Config, begin string) (*chatRenderer, error) {
	shape.NewID = func() string { return "call_" + newID() }
	parser, err := answer.New(shape)
	return &chatRenderer{c: c, req: req, index: index, tok: tok, parser: parser, begin: begin, forced: begin != ""}, err
}

// first tells the role.
func (r *chatRenderer) first() any {
	empty := ""
	piece := chatChoice{Index: r.index, Delta: &chatDelta{Role: "assistant", Content: &empty}}
	if r.c.tokenIDs {
		piece.PromptTokenIDs = r.req.PromptIDs
	}
	return piece
}

// parse takes the event's text apart.
func (r *chatRenderer) parse(ev *scheduler.Event) answer.Delta {
	var m answer.Delta
	for _, text := range []string{r.begin, ev.Text} {
		gather(&m, r.parser.Push(text))
	}
	r.begin = ""
	if ev.Finish != "" {
		gather(&m, r.parser.Flush())
	}
	if r.forced {
		m.Content = "" // what the length limit left of a further call
	}
	if !r.c.parallel || r.c.choice == toolsNamed { // the first call alone
		n := 0
		for n < len(m.Calls) && m.Calls[n].Index == 0 {
			n++
		}
		m.Calls = m.Calls[:n]
	}
	return m
}

// gather adds d to what a message has so far.
func gather(m *answer.Delta, d answer.Delta) {
	m.Reasoning += d.Reasoning
	m.Content += d.Content
	for _, c := range d.Calls {
		if n := len(m.Calls); n > 0 && c.ID == "" && m.Calls[n-1].Index == c.Index {
			m.Calls[n-1].Arguments += c.Arguments
			continue
		}
		m.Calls = append(m.Calls, c)
	}
}

func (r *chatRenderer) finish(ev *scheduler.Event) *scheduler.FinishReason {
	why := ev.Finish
	switch {
	case why == "":
		return nil
	case why == scheduler.FinishStop && r.parser.Calls() > 0:
		why = finishCalls
	}
	return &why
}

// render makes a piece of each kind of news, as OpenAI does: some clients look
// at one thing in a piece. Token ids and log probabilities go with the first.
func (r *chatRenderer) render(ev *scheduler.Event) []any {
	d := r.parse(ev)
	var deltas []chatDelta
	if d.Reasoning != "" {
		deltas = append(deltas, chatDelta{Reasoning: d.Reasoning})
	}
	if d.Content != "" {
		deltas = append(deltas, chatDelta{Content: &d.Content})
	}
	for _, call := range d.Calls {
		t := newToolCall(call)
		t.Index = &call.Index
		deltas = append(deltas, chatDelta{Calls: []toolCall{t}})
	}
	probs := r.logprobs(ev.Logprobs)
	if len(deltas) == 0 && len(ev.TokenIDs) > 0 && ev.Finish == "" && (r.c.tokenIDs || probs != nil) {
		deltas = append(deltas, chatDelta{})
	}
	if ev.Finish != "" {
		deltas = append(deltas, chatDelta{})
	}
	pieces := make([]any, len(deltas))
	for i := range deltas {
		piece := chatChoice{Index: r.index, Delta: &deltas[i]}
		if i == 0 {
			piece.Logprobs = probs
			if r.c.tokenIDs {
				piece.TokenIDs = notNil(ev.TokenIDs)
			}
		}
		if i == len(deltas)-1 {
			piece.FinishReason = r.finish(ev)
		}
		pieces[i] = piece
	}
	return pieces
}

func (r *chatRenderer) whole(ev *scheduler.Event, index int) any {
	d := r.parse(ev)
	m := &chatMessage{Role: "assistant", Reasoning: d.Reasoning}
	if d.Content != "" || len(d.Calls) == 0 {
		m.Content = &d.Content
	}
	for _, call := range d.Calls {
		m.Calls = append(m.Calls, newToolCall(call))
	}
	c := chatChoice{Index: index, Message: m, FinishReason: r.finish(ev), Logprobs: r.logprobs(ev.Logprobs)}
	if r.c.tokenIDs {
		c.TokenIDs, c.PromptTokenIDs = notNil(ev.TokenIDs), r.req.PromptIDs
	}
	return c
}

func newToolCall(c answer.Call) (t toolCall) {
	t.ID = c.ID
	if c.ID != "" {
		t.Type = "function"
	}
	t.Function.Name, t.Function.Arguments = c.Name, c.Arguments
	return t
}

func notNil(ids []int32) []int32 {
	if ids == nil {
		return []int32{}
	}
	return ids
}

func (r *chatRenderer) logprobs(tokens []scheduler.TokenLogprob) *chatLogprobs {
	if r.c.logprobs == scheduler.NoLogprobs {
		return nil
	}
	l := &chatLogprobs{Content: make([]tokenLogprob, 0, len(tokens))}
	for _, t := range tokens {
		one := r.logprob(t)
		one.Top = make([]tokenLogprob, 0, len(t.Top))
		for _, alternative := range t.Top {
			one.Top = append(one.Top, r.logprob(alternative))
		}
		l.Content = append(l.Content, one)
	}
	return l
}

func (r *chatRenderer) logprob(t scheduler.TokenLogprob) tokenLogprob {
	l := tokenLogprob{Token: tokenName(r.tok, t.ID), Logprob: finite(t.Logprob)}
	for _, b := range r.tok.TokenBytes(t.ID) {
		l.Bytes = append(l.Bytes, int(b))
	}
	return l
}
