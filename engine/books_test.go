package engine

import (
	"context"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/fault"
)

// An idle engine whose pages do not add up ends with a fault, if it is asked to look.
func TestBooksAreCheckedWhileIdle(t *testing.T) {
	e := loaded(t, Config{})
	if _, ok := e.pool.Alloc(nil, 1); !ok { // a page that no request holds
		t.Fatal("no pages")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := e.loop(ctx)
	if err == nil || fault.ReasonOf(err) != fault.Internal || !strings.Contains(err.Error(), "books do not add up") {
		t.Errorf("the step loop ended with %v", err)
	}
	e.cfg.CheckInvariants = false
	if err := e.checkIdle(); err != nil {
		t.Errorf("without being asked to look: %v", err)
	}
}
