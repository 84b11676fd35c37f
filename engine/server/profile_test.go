package server

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// The profile names the parts of real cycles on two ranks, and the trace has
// events of both, collectives among them.
func TestProfileAndTrace(t *testing.T) {
	in := newInstance(t, engine.Config{TPSize: 2}, nil)
	trace := make(chan []byte, 1)
	go func() {
		_, b := do(t, http.MethodGet, in.admin.URL+"/v1/trace?seconds=2", "", nil)
		trace <- b
	}()
	var traced []byte
	for traced == nil {
		in.post(t, fields{"prompt": "func main() {\n", "max_tokens": 20, "temperature": 0})
		select {
		case traced = <-trace:
		default:
		}
	}
	var p telemetry.Profile
	_, b := do(t, http.MethodGet, in.admin.URL+"/v1/profile", "", nil)
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	var sum float64
	for _, phase := range []string{"schedule", "prefill", "verify", "sample", "extend", "draft", "collective"} {
		i := slices.IndexFunc(p.Phases, func(r telemetry.PhaseReport) bool { return r.Phase == phase })
		if i < 0 {
			t.Fatalf("no phase %s: %s", phase, b)
		}
		r := p.Phases[i]
		if r.Count == 0 || r.Mean <= 0 || r.P50 <= 0 || r.P99 < r.P50 || r.Share <= 0 || r.Share > 1 {
			t.Errorf("%+v", r)
		}
		if phase != "collective" {
			sum += r.Share
		}
	}
	if sum > 1.0001 {
		t.Errorf("the shares add up to %v", sum)
	}
	if len(p.Ranks) != 2 || p.Ranks[1].Passes <= p.Ranks[1].Collective || p.Ranks[1].Collective <= 0 {
		t.Errorf("ranks: %+v", p.Ranks)
	}
	if len(p.Acceptance) != 3 || p.Acceptance[0].Drafts < 3 || len(p.Tokens) != 4 || p.Tokens[3] <= 1 || p.Costs == nil || len(p.Costs.Cells) < 8 || p.Costs.Cells[0].Seconds <= 0 {
		t.Errorf("acceptance %+v, costs %+v", p.Acceptance, p.Costs)
	}
	var events struct {
		TraceEvents []struct {
			Name string
			TID  int
		}
	}
	if err := json.Unmarshal(traced, &events); err != nil {
		t.Fatal(err)
	}
	seen := map[string][2]bool{}
	for _, e := range events.TraceEvents {
		ranks := seen[e.Name]
		ranks[e.TID] = true
		seen[e.Name] = ranks
	}
	both := [2]bool{true, true}
	for name, want := range map[string][2]bool{"forward": both, "extend": both, "draft step": both, "all_reduce": both, "all_gather": both, "verify": {true, false}, "sample": {true, false}} {
		if seen[name] != want {
			t.Errorf("%s is in the trace of ranks %v, want %v", name, seen[name], want)
		}
	}
}

func TestTraceRefuses(t *testing.T) {
	in := sharedInstance(t)
	for query, says := range map[string]string{
		"seconds=0": "above 0 up to 30", "seconds=31": "above 0 up to 30", "seconds=x": "above 0 up to 30", "seconds=NaN": "above 0",
		"seconds=1&seconds=2": "once", "minutes=1": "allowed is seconds",
	} {
		resp, b := do(t, http.MethodGet, in.admin.URL+"/v1/trace?"+query, "", nil)
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), says) {
			t.Errorf("%s: %d %s; want 400 saying %q", query, resp.StatusCode, b, says)
		}
	}
	// Two at once: one of them is refused, whichever comes second.
	statuses := make(chan int, 2)
	for range 2 {
		go func() {
			resp, _ := do(t, http.MethodGet, in.admin.URL+"/v1/trace?seconds=3", "", nil)
			statuses <- resp.StatusCode
		}()
	}
	if first, second := <-statuses, <-statuses; first != http.StatusConflict || second != http.StatusOK {
		t.Errorf("two traces at once: %d, then %d; want %d for one at once, and %d", first, second, http.StatusConflict, http.StatusOK)
	}
}

// An answer says where its time went and what drafting did for it, whole and
// streamed.
func TestAnswersAccount(t *testing.T) {
	in := sharedInstance(t)
	type account struct {
		Speculation speculation
		Timings     *timings
		Usage       *usage
	}
	check := func(kind string, a account, total time.Duration) {
		t.Helper()
		s := a.Speculation
		if s.Verifies == 0 || math.Abs(s.AcceptLength-1-float64(s.Accepted)/float64(s.Verifies)) > 1e-9 {
			t.Errorf("%s: %+v", kind, s)
		}
		if a.Timings == nil {
			t.Fatalf("%s: no timings", kind)
		}
		sum := a.Timings.Queue + a.Timings.Prefill + a.Timings.Decode
		if a.Timings.Queue < 0 || a.Timings.Prefill <= 0 || a.Timings.Decode <= 0 || sum > total.Seconds() {
			t.Errorf("%s: %+v of %s", kind, *a.Timings, total)
		}
	}
	body := func(more string) *strings.Reader {
		return strings.NewReader(`{"model": "` + servedName + `", "prompt": "func main() {\n", "max_tokens": 40, "temperature": 0, "ignore_eos": true` + more + `}`)
	}
	url := in.public.URL + "/v1/completions"
	start := time.Now()
	_, b := do(t, http.MethodPost, url, "application/json", body(""))
	var whole account
	if err := json.Unmarshal(b, &whole); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	check("whole", whole, time.Since(start))

	start = time.Now()
	_, b = do(t, http.MethodPost, url, "application/json", body(`, "stream": true, "stream_options": {"include_usage": true}`))
	took := time.Since(start)
	found := false
	for _, line := range strings.Split(string(b), "\n") {
		data, ok := strings.CutPrefix(line, "data: {")
		var a account
		if !ok || json.Unmarshal([]byte("{"+data), &a) != nil {
			continue
		}
		if a.Usage != nil {
			check("streamed", a, took)
			found = true
		} else if a.Timings != nil {
			t.Errorf("timings before the end: %s", line)
		}
	}
	if !found {
		t.Errorf("no chunk with the usage: %s", b)
	}
}
