//go:build browser

package server

import (
	"context"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// In a real browser the page fills in from a busy engine: make test-browser.
func TestPageInChromium(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is missing: apt-get install chromium")
	}
	in := sharedInstance(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	busy := make(chan struct{})
	go func() { // load, so that there are cycles to draw
		defer close(busy)
		for ctx.Err() == nil {
			in.post(t, fields{"prompt": []string{"func ", "type "}, "max_tokens": 200, "ignore_eos": true})
		}
	}()
	out, err := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir="+t.TempDir(),
		"--virtual-time-budget=6000", "--dump-dom", in.admin.URL+"/").Output()
	cancel()
	<-busy
	if err != nil {
		t.Fatal(err)
	}
	dom := string(out)
	for what, pattern := range map[string]string{
		"live":       `<body data-state="live">`,
		"model":      `<span id="name">gocode-7m</span>`,
		"numbers":    `<dt>accept length</dt><dd>[0-9.]+</dd>`,
		"timeline":   `(?s)id="timeline".*?<rect [^>]*><title>[^<]+: [0-9.]+ ms`,
		"depth":      `(?s)id="depth".*?<path d="M[0-9]`,
		"acceptance": `(?s)id="acceptance".*?<rect [^>]*><title>position 0: [0-9.]+ %`,
		"kv":         `(?s)id="kv".*?<path d="M[0-9]`,
		"costs":      `(?s)id="costs".*?<td[^>]*>[0-9.]+</td>`,
		"phases":     `(?s)id="phases".*?<th>verify</th><td>[0-9]+</td>`,
	} {
		if !regexp.MustCompile(pattern).MatchString(dom) {
			t.Errorf("no %s: %s is not in the page", what, pattern)
		}
	}
	colours := map[string]string{} // of kinds of events: no two alike
	for _, m := range regexp.MustCompile(`<i style="background:([^"]+)"></i>([^<]+)<`).FindAllStringSubmatch(dom, -1) {
		if other := colours[m[1]]; other != "" {
			t.Errorf("%s and %s have one colour, %s", other, m[2], m[1])
		}
		colours[m[1]] = m[2]
	}
	if len(colours) < 4 {
		t.Errorf("the legend has %v: want what a cycle consists of", colours)
	}
	if i := strings.Index(dom, `id="fault"`); i < 0 || !strings.HasPrefix(dom[i:], `id="fault" role="alert"></p>`) {
		t.Errorf("the page shows a fault: %.200s", dom[max(0, i):])
	}
}
