package server

import (
	"net/http"
	"testing"

	"github.com/outrider-dev/outrider/engine/chat/answer"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// nowhere is a ResponseWriter for what the server itself costs.
type nowhere struct{ h http.Header }

func (n nowhere) Header() http.Header         { return n.h }
func (n nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (n nowhere) WriteHeader(int)             {}
func (n nowhere) FlushError() error           { return nil }

// BenchmarkChunk is what the server adds to a step of one stream: an event of
// three tokens becomes a chunk.
func BenchmarkChunk(b *testing.B) {
	logprob := scheduler.TokenLogprob{ID: 5, Logprob: -1, Top: []scheduler.TokenLogprob{{ID: 5, Logprob: -1}, {ID: 6, Logprob: -2}}}
	for name, c := range map[string]*completion{
		"text":     {model: servedName, n: 1, logprobs: scheduler.NoLogprobs},
		"ids":      {model: servedName, n: 1, logprobs: scheduler.NoLogprobs, tokenIDs: true},
		"logprobs": {model: servedName, n: 1, logprobs: 2},
	} {
		b.Run(name, func(b *testing.B) {
			j := &job{c: c, id: "cmpl-" + newID()}
			r := newRenderer(c, &scheduler.Request{PromptIDs: []int32{1}, Sampling: sampling.Params{TopP: 1}}, 0, nil)
			out := newSSE(nowhere{http.Header{}})
			ev := &scheduler.Event{TokenIDs: []int32{5, 6, 7}, Text: "func main() {\n", Logprobs: []scheduler.TokenLogprob{logprob, logprob, logprob}}
			b.ReportAllocs()
			for b.Loop() {
				for _, piece := range r.render(ev) {
					if err := out.send(j.chunk(piece)); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkChatChunk is the same for a chat whose answer is looked through for
// reasoning and calls.
func BenchmarkChatChunk(b *testing.B) {
	tok := sharedInstance(b).Tokenizer()
	c := &chatRequest{parallel: true}
	c.completion = completion{model: servedName, n: 1, logprobs: scheduler.NoLogprobs}
	for name, shape := range map[string]answer.Config{"plain": {}, "tools": {Tools: answer.Hermes, Think: true}} {
		b.Run(name, func(b *testing.B) {
			j := &job{c: &c.completion, id: "chatcmpl-" + newID(), chunks: "chat.completion.chunk"}
			r, err := newChatRenderer(c, &scheduler.Request{PromptIDs: []int32{1}}, 0, tok, shape, "")
			if err != nil {
				b.Fatal(err)
			}
			out := newSSE(nowhere{http.Header{}})
			ev := &scheduler.Event{TokenIDs: []int32{5, 6, 7}, Text: "func main() {\n"}
			b.ReportAllocs()
			for b.Loop() {
				for _, piece := range r.render(ev) {
					if err := out.send(j.chunk(piece)); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkParse is what a request of a thousand token ids costs.
func BenchmarkParse(b *testing.B) {
	body := []byte(`{"model":"m","prompt":[1`)
	for range 999 {
		body = append(body, ",1234"...)
	}
	body = append(body, "]}"...)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseCompletion(body, 1); err != nil {
			b.Fatal(err)
		}
	}
}
