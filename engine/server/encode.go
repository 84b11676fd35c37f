package server

import (
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// encoder has large texts encoded one at a time: one of millions of characters
// without a break takes seconds, and many at once would leave the step loop no
// processor.
type encoder struct {
	mu      sync.Mutex
	waiting atomic.Int32 // the one under way among them
}

const (
	largeText   = 256 << 10 // bytes
	mostWaiting = 16        // large texts; more are answered 429
)

// encode is the tokens of a text.
func (e *encoder) encode(tok *tokenizer.Tokenizer, text string, special bool) ([]int32, *apiError) {
	if len(text) <= largeText {
		return tok.Encode(text, special), nil
	}
	defer e.waiting.Add(-1)
	if e.waiting.Add(1) > mostWaiting {
		busy := newError(http.StatusTooManyRequests, typeRateLimit, codeRateLimit, "too many large texts are being encoded: try again")
		busy.retryAfter = 1
		return nil, busy
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return tok.Encode(text, special), nil
}
