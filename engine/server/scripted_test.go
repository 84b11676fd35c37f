package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/chat"
	"github.com/outrider-dev/outrider/engine/kvcache"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// scripted is a backend whose model says what a test tells it to; the scheduler
// and the tokenizer are real.
type scripted struct {
	Backend
	tok       *tokenizer.Tokenizer
	template  *chat.Template
	scheduler *scheduler.Scheduler

	mu     sync.Mutex
	say    string // the answer to any prompt
	prompt string // the last prompt, with special tokens
}

// newScripted serves a model with a chat template that is a file of package chat's tests.
func newScripted(t testing.TB, template string, change func(*Config)) (*scripted, *instance) {
	t.Helper()
	base := sharedInstance(t)
	b, err := os.ReadFile("../chat/testdata/templates/" + template + ".jinja")
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{Backend: base.Engine, tok: base.Tokenizer()}
	if s.template, err = chat.Parse(string(b), map[string]string{"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}); err != nil {
		t.Fatal(err)
	}
	eos, ok := s.tok.TokenID("<|eot_id|>")
	if !ok {
		t.Fatal("the tokenizer has no <|eot_id|>")
	}
	info := s.Info()
	s.scheduler = scheduler.New(scheduler.Config{
		MaxRunning: 8, MaxQueued: 8, ChunkSize: 256, MaxDepth: 2, ContextLength: info.ContextLength, Vocab: info.VocabSize, EOS: []int32{eos}, Now: time.Now,
		Decoder: func(shown []int32) scheduler.Decoder { return s.tok.NewDecoder(true, shown...) },
	}, kvcache.NewPool(8*info.ContextLength/16, 16))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.loop(ctx, eos)
	}()
	cfg := Config{Backend: s, Metrics: base.metrics, Gatherer: base.registry, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	in := &instance{Engine: base.Engine, registry: base.registry, metrics: base.metrics, server: New(cfg)}
	in.public = httptest.NewServer(in.server.Public())
	t.Cleanup(func() {
		in.public.Close()
		cancel()
		<-ended
	})
	return s, in
}

// Info has room for long prompts: none of a real model's positions are used.
func (s *scripted) Info() telemetry.Info {
	info := s.Backend.Info()
	info.ContextLength = 16384
	return info
}

func (s *scripted) ChatTemplate() (*chat.Template, error) { return s.template, nil }

func (s *scripted) Submit(r *scheduler.Request) (*scheduler.Stream, error) {
	s.mu.Lock()
	s.prompt = s.tok.Decode(r.PromptIDs, false)
	s.mu.Unlock()
	return s.scheduler.Submit(r)
}

// says sets what the model answers from now on.
func (s *scripted) says(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.say = text
}

func (s *scripted) lastPrompt() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prompt
}

// loop is the step loop of an engine, with drafts that are right now and then.
func (s *scripted) loop(ctx context.Context, eos int32) {
	for ctx.Err() == nil {
		b := s.scheduler.Plan(func(*scheduler.Sequence) {})
		if b == nil {
			select {
			case <-s.scheduler.Wake():
			case <-ctx.Done():
			}
			continue
		}
		s.mu.Lock()
		script := append(s.tok.Encode(s.say, false), eos)
		s.mu.Unlock()
		for _, q := range b.Sequences {
			if q.Finished() {
				continue
			}
			if q.Logit < 0 {
				q.Advance()
			} else if _, err := q.Verify(script2sampler(script)); err != nil {
				q.Fail(err)
			}
			q.Emit()
			if n := q.Generated(); !q.Finished() && q.Logit >= 0 && n+1 < len(script) && q.Room() >= 2 {
				q.Draft = append(q.Draft[:0], script[n], script[n+1]%3)
			}
		}
		s.scheduler.Reap()
	}
}

// script2sampler draws a script's tokens.
type script2sampler []int32

func (s script2sampler) Sample(q *scheduler.Sequence, _ int) (int32, error) {
	id := s[min(q.Generated(), len(s)-1)]
	if q.Logprobs != scheduler.NoLogprobs {
		q.AddLogprob(id, -0.25, []sampling.TokenProb{{ID: id, Logprob: -0.25}, {ID: 5, Logprob: -2}}[:min(2, q.Logprobs)])
	}
	return id, nil
}

// chatReply is a chat's answer as a client reads it.
type chatReply struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Choices []struct {
		Index        int           `json:"index"`
		Message      *chatMessage  `json:"message"`
		Delta        *chatDelta    `json:"delta"`
		Logprobs     *chatLogprobs `json:"logprobs"`
		FinishReason *string       `json:"finish_reason"`
		TokenIDs     []int32       `json:"token_ids"`
	} `json:"choices"`
	Usage *usage    `json:"usage"`
	Error *apiError `json:"error"`
}

// said is one choice of a chat, put together.
type said struct {
	Content, Reasoning, Finish string
	Calls                      []toolCall // without their ids
	Tokens                     []string   // of the log probabilities
	IDs                        int        // number of token ids
}

// chat asks for a whole answer.
func (in *instance) chat(t testing.TB, f fields) ([]said, *usage) {
	t.Helper()
	resp, b := do(t, http.MethodPost, in.public.URL+"/v1/chat/completions", "application/json", f.reader(t))
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, b)
	}
	var r chatReply
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	if r.Object != "chat.completion" || !strings.HasPrefix(r.ID, "chatcmpl-") {
		t.Fatalf("object %q, id %q", r.Object, r.ID)
	}
	all := make([]said, len(r.Choices))
	for i, c := range r.Choices {
		if c.Index != i || c.Message.Role != "assistant" || c.FinishReason == nil {
			t.Fatalf("choice %d: %+v", i, c)
		}
		if c.Message.Content == nil && len(c.Message.Calls) == 0 {
			t.Fatalf("choice %d has neither content nor calls", i)
		}
		s := said{Reasoning: c.Message.Reasoning, Finish: *c.FinishReason, IDs: len(c.TokenIDs)}
		if c.Message.Content != nil {
			s.Content = *c.Message.Content
		}
		for _, call := range c.Message.Calls {
			if call.ID == "" || call.Type != "function" || call.Index != nil {
				t.Fatalf("call %+v", call)
			}
			call.ID = ""
			s.Calls = append(s.Calls, call)
		}
		s.Tokens = c.Logprobs.tokens()
		all[i] = s
	}
	return all, r.Usage
}

func (l *chatLogprobs) tokens() (names []string) {
	if l != nil {
		for _, t := range l.Content {
			names = append(names, t.Token)
		}
	}
	return names
}

// chatStream asks for a streamed answer and puts it together.
func (in *instance) chatStream(t testing.TB, f fields) ([]said, *usage) {
	t.Helper()
	f = f.with(fields{"stream": true, "stream_options": fields{"include_usage": true}})
	resp, b := do(t, http.MethodPost, in.public.URL+"/v1/chat/completions", "application/json", f.reader(t))
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, b)
	}
	var all []said
	var total *usage
	parts := chunks(t, b)
	for i, chunk := range parts {
		if chunk == "[DONE]" {
			if i != len(parts)-1 {
				t.Fatal("[DONE] is not at the end")
			}
			continue
		}
		var r chatReply
		if err := json.Unmarshal([]byte(chunk), &r); err != nil || r.Object != "chat.completion.chunk" || r.Error != nil || total != nil {
			t.Fatalf("%v in %q", err, chunk)
		}
		total = r.Usage
		for _, c := range r.Choices {
			for len(all) <= c.Index {
				all = append(all, said{})
			}
			addDelta(t, &all[c.Index], c.Delta, c.FinishReason)
			all[c.Index].Tokens = append(all[c.Index].Tokens, c.Logprobs.tokens()...)
			all[c.Index].IDs += len(c.TokenIDs)
		}
	}
	return all, total
}

func addDelta(t testing.TB, s *said, d *chatDelta, finish *string) {
	t.Helper()
	if s.Finish != "" {
		t.Fatal("a choice goes on after its finish_reason")
	}
	if finish != nil {
		s.Finish = *finish
	}
	if d.Content != nil {
		s.Content += *d.Content
	}
	s.Reasoning += d.Reasoning
	for _, call := range d.Calls {
		if call.Index == nil || (call.ID != "") != (*call.Index == len(s.Calls)) {
			t.Fatalf("call %+v after %d", call, len(s.Calls))
		}
		if call.ID != "" {
			call.ID = ""
			index := call
			index.Index = nil
			s.Calls = append(s.Calls, index)
			continue
		}
		s.Calls[*call.Index].Function.Arguments += call.Function.Arguments
	}
}
