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

// BenchmarkToken is a token of one stream on gocode-7m: read from the engine
// itself, and over HTTP by a client that only reads, in this process. What the
// second takes longer is the server's, the kernel's and the client's part.
func BenchmarkToken(b *testing.B) {
	in := sharedInstance(b)
	const n = 400
	params := sampling.Params{TopP: 1}
	prompt := in.Tokenizer().Encode("package main\n", true)
	b.Run("engine", func(b *testing.B) {
		for b.Loop() {
			stream, err := in.Submit(&scheduler.Request{PromptIDs: prompt, MaxTokens: n, IgnoreEOS: true, Sampling: params, Logprobs: scheduler.NoLogprobs})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := readAll(b.Context(), stream, nil); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/token")
	})
	for path, f := range map[string]fields{
		"/v1/completions":      {"prompt": "package main\n"},
		"/v1/chat/completions": {"messages": []fields{{"role": "user", "content": "package main\n"}}},
	} {
		f = f.with(fields{"max_tokens": n, "ignore_eos": true, "temperature": 0, "stream": true})
		b.Run("http"+path, func(b *testing.B) {
			for b.Loop() {
				if resp, body := do(b, http.MethodPost, in.public.URL+path, "application/json", f.reader(b)); resp.StatusCode != http.StatusOK {
					b.Fatalf("status %d: %s", resp.StatusCode, body)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/token")
		})
	}
}
