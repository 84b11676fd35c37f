package scheduler

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/engine/grammar"
	"github.com/outrider-dev/outrider/engine/sampling"
)

// NoLogprobs in Request.Logprobs asks for no log probabilities at all.
const NoLogprobs = -1

// Request is one prompt to complete.
type Request struct {
	ID        string
	PromptIDs []int32 // token ids, special tokens included; at least one
	MaxTokens int     // most tokens to generate; at least 1
	MinTokens int     // no stop token, EOS or stop string ends the text earlier
	Sampling  sampling.Params
	Stop      []string         // strings that end the text and are not part of it
	StopIDs   []int32          // tokens that end the text, beside the model's own EOS
	IgnoreEOS bool             // the model's EOS is an ordinary token
	Shown     []int32          // special tokens that the text shows all the same
	Grammar   *grammar.Grammar // form of the text; nil: any
	Logprobs  int              // alternatives to report for each token, 0 to MaxLogprobs, or NoLogprobs
	Probe     bool             // of the engine itself: not counted in the metrics
	Again     bool             // another choice for a prompt that is counted already
}

// MaxLogprobs is the largest Request.Logprobs.
const MaxLogprobs = 20

// FinishReason says why a request ended, in OpenAI's words.
type FinishReason string

const (
	FinishStop   FinishReason = "stop"   // EOS, a stop token or a stop string
	FinishLength FinishReason = "length" // MaxTokens, or the context length
	FinishAbort  FinishReason = "abort"  // cancelled by the client, or the engine ended
)

// TokenLogprob is a token, its log probability under the target's unmodified
// distribution (natural logarithm), and the most likely alternatives.
type TokenLogprob struct {
	ID      int32
	Logprob float32
	Top     []TokenLogprob // best first; Top of these is nil
}

// Usage counts a request's tokens and its speculation.
type Usage struct {
	PromptTokens     int
	CachedTokens     int // prompt tokens whose KV entries were already there
	CompletionTokens int
	Verifies         int // target passes that checked a draft for this request
	Drafted          int // draft tokens proposed
	Accepted         int // draft tokens accepted, 0 … Drafted

	// Of a request that has ended: waiting, from its admission to its first
	// token, and from there to its last one.
	Queue, Prefill, Decode time.Duration
}

// AcceptLength is the mean number of tokens that a verified draft settled, the
// target's own included; 0 without one.
func (u Usage) AcceptLength() float64 {
	if u.Verifies == 0 {
		return 0
	}
	return 1 + float64(u.Accepted)/float64(u.Verifies)
}

// Event is what a request produced since the one before.
type Event struct {
	TokenIDs []int32        // new tokens; the stop token that ended the text is included
	Text     string         // new text, whole code points; empty without a tokenizer
	Logprobs []TokenLogprob // one for each of TokenIDs when asked for
	Finish   FinishReason   // set on the last event only
	Usage    Usage          // so far
	Admitted time.Time      // when the request began to be computed, first
	Err      error          // the request failed; set on the last event only
}

// Stream delivers a request's events. The step loop never waits for a reader:
// what was not read yet is merged into one event.
type Stream struct {
	mu      sync.Mutex
	pending Event // its slices are copied for the reader and used again
	text    []byte
	has     bool
	closed  bool          // the last event is in pending or was delivered
	ready   chan struct{} // capacity 1: something to read
	cancel  func()        // frees the request's slot and pages within two steps
	ended   func()        // if set, is called once after the last event came
}

// NewStream makes an empty stream; cancel is called at most once for each Close.
func NewStream(cancel func()) *Stream {
	return &Stream{ready: make(chan struct{}, 1), cancel: cancel}
}

// publish adds ev, whose Text is text, to what the reader has not seen. Events
// after the last are dropped.
func (s *Stream) publish(ev *Event, text []byte) {
	if s.add(ev, text) && s.ended != nil {
		s.ended()
	}
}

// add is publish; it tells whether ev was the last event.
func (s *Stream) add(ev *Event, text []byte) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	p := &s.pending
	p.TokenIDs = append(p.TokenIDs, ev.TokenIDs...)
	s.text = append(s.text, text...)
	p.Logprobs = append(p.Logprobs, ev.Logprobs...)
	p.Finish, p.Usage, p.Err, p.Admitted = ev.Finish, ev.Usage, ev.Err, ev.Admitted
	s.has = true
	s.closed = ev.Finish != "" || ev.Err != nil
	select {
	case s.ready <- struct{}{}:
	default:
	}
	return s.closed
}

// Next waits for an event. The last one has Finish or Err set; after it Next
// must not be called again. The error is ctx's.
func (s *Stream) Next(ctx context.Context) (Event, error) {
	for {
		s.mu.Lock()
		if s.has {
			ev := s.take()
			s.mu.Unlock()
			return ev, nil
		}
		s.mu.Unlock()
		select {
		case <-s.ready:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// take is a copy of what is pending; nothing is pending afterwards. The step
// loop's part allocates nothing that way.
func (s *Stream) take() Event {
	p := &s.pending
	ev := *p
	ev.TokenIDs, ev.Logprobs, ev.Text = slices.Clone(p.TokenIDs), slices.Clone(p.Logprobs), string(s.text)
	clear(p.Logprobs)
	*p = Event{TokenIDs: p.TokenIDs[:0], Logprobs: p.Logprobs[:0]}
	s.text, s.has = s.text[:0], false
	return ev
}

// Close gives the request up: whatever it still holds is freed within two
// steps. It does nothing after the last event.
func (s *Stream) Close() {
	s.mu.Lock()
	done := s.closed
	s.mu.Unlock()
	if !done {
		s.cancel()
	}
}
