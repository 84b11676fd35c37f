package server

import (
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestLargeTextsAreEncodedOneAtATime(t *testing.T) {
	tok := sharedInstance(t).Engine.Tokenizer()
	small, large := "func main() {", strings.Repeat("func ", largeText/5+1)
	var e encoder
	e.mu.Lock() // one is under way, and does not end
	if ids, err := e.encode(tok, small, false); err != nil || !slices.Equal(ids, tok.Encode(small, false)) {
		t.Errorf("a small text meanwhile: %v, %v", ids, err)
	}
	var wg sync.WaitGroup
	for range mostWaiting {
		wg.Go(func() {
			if ids, err := e.encode(tok, large, false); err != nil || len(ids) == 0 {
				t.Errorf("a large text that waits: %d tokens, %v", len(ids), err)
			}
		})
	}
	for e.waiting.Load() < mostWaiting {
		runtime.Gosched()
	}
	if _, err := e.encode(tok, large, false); err == nil || err.status != http.StatusTooManyRequests || err.retryAfter == 0 {
		t.Errorf("one more than may wait: %v", err)
	}
	e.mu.Unlock()
	wg.Wait()
	if n := e.waiting.Load(); n != 0 {
		t.Errorf("%d wait in the end", n)
	}
}
