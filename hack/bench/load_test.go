package main

import (
	"strings"
	"testing"
	"time"
)

// A turn lasts until there is a token, and ends with an error where none comes.
func TestWaitForATokenEnds(t *testing.T) {
	defer func(d time.Duration) { patience = d }(patience)
	looks := 0
	if err := wait(time.Millisecond, func() bool { looks++; return looks == 3 }); err != nil || looks != 3 {
		t.Errorf("after %d looks: %v", looks, err)
	}
	patience = 20 * time.Millisecond
	begin := time.Now()
	err := wait(time.Millisecond, func() bool { return false })
	if err == nil || !strings.Contains(err.Error(), "no request had a token for ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("without a token: %v", err)
	}
	if took := time.Since(begin); took < patience {
		t.Errorf("it gave up after %s", took)
	}
}
