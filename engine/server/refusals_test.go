package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// refusal is a request and what the error must say.
type refusal struct {
	name    string
	body    string
	param   string
	message string // part of it
	code    string
}

func refusals() []refusal {
	with := func(field string) string { return `{"model":"gocode-7m","prompt":[1,2],` + field + `}` }
	prompt := func(p string) string { return `{"model":"gocode-7m","prompt":` + p + `}` }
	return []refusal{
		{"empty", ``, "", "ends too early", ""},
		{"cut", `{"model":`, "", "ends too early", ""},
		{"no JSON", `model=x`, "", "not valid JSON", ""},
		{"NaN", with(`"temperature":NaN`), "", "not valid JSON", ""},
		{"array", `[]`, "", "not a JSON object", ""},
		{"two values", with(`"n":1`) + `{}`, "", "goes on after", ""},
		{"not UTF-8", prompt("\"\xff\""), "", "not valid UTF-8 at byte 31", ""},
		{"half a surrogate pair, as CESU-8", prompt("\"\xed\xa0\x80\""), "", "not valid UTF-8 at byte 31", ""},
		{"the first half of a surrogate pair", prompt(`"a\ud800"`), "prompt", `prompt has the escape \ud800 at byte 32, which is half of a surrogate pair`, ""},
		{"the second half", prompt(`["a","\uDC00"]`), "prompt", `the escape \uDC00`, ""},
		{"the halves the wrong way round", prompt(`"\udc00\ud800"`), "prompt", `the escape \udc00 at byte 31`, ""},
		{"a half before another escape", prompt(`"\ud83d\n\ude00"`), "prompt", `the escape \ud83d`, ""},
		{"a half after a backslash", prompt(`"\\\ud800"`), "prompt", `the escape \ud800 at byte 33`, ""},
		{"a half in stop", with(`"stop":["a","\udfff"]`), "stop", `the escape \udfff`, ""},
		{"a half in a name", with(`"\ud800":1`), "\uFFFD", `the escape \ud800`, ""},
		{"a half in a schema", with(`"guided_json":{"const":"\ud800"}`), "guided_json", `the escape \ud800`, ""},
		{"a half in the text of a schema", with(`"guided_json":"{\"const\":\"\\ud800\"}"`), "guided_json", `the escape \ud800 at byte 10`, ""},
		{"a byte order mark", "\uFEFF" + prompt(`"a"`), "", "byte order mark", ""},
		{"deep", prompt(strings.Repeat("[", 100000)), "", "not valid JSON", ""},
		{"deep and closed", prompt(strings.Repeat("[", 5000) + strings.Repeat("]", 5000)), "prompt", "token id", ""},
		{"duplicate", with(`"seed":1,"seed":2`), "seed", "given twice", ""},
		{"unknown", with(`"max_token":5`), "max_token", "no parameter", ""},
		{"other case", with(`"Max_Tokens":5`), "Max_Tokens", "no parameter", ""},

		{"no model", `{"prompt":[1]}`, "model", "missing", ""},
		{"model of a wrong type", `{"model":1,"prompt":[1]}`, "model", "allowed is a string", ""},
		{"no prompt", `{"model":"gocode-7m"}`, "prompt", "missing", ""},
		{"null prompt", prompt(`null`), "prompt", "missing", ""},
		{"empty text", prompt(`[[]]`), "prompt", "empty", ""},
		{"empty list", prompt(`[ ]`), "prompt", "empty", ""},
		{"number prompt", prompt(`5`), "prompt", "allowed is a string or a list of token ids", ""},
		{"object prompt", prompt(`{"a":1}`), "prompt", "allowed is", ""},
		{"null id", prompt(`[1,null]`), "prompt", "prompt[1] is null", ""},
		{"fraction id", prompt(`[1,2.5]`), "prompt", "prompt[1] is 2.5", ""},
		{"negative id", prompt(`[-1]`), "prompt", "prompt[0] is -1", ""},
		{"huge id", prompt(`[99999999999999999999]`), "prompt", "prompt[0] is 99999999999999999999: a token id is a whole number from 0 to 2147483647", ""},
		{"id out of the vocabulary", prompt(`[4096]`), "prompt", "0 to 4095", ""},
		{"mixed", prompt(`["a",5]`), "prompt", "prompt[1]", ""},
		{"mixed the other way", prompt(`[5,"a"]`), "prompt", "prompt[1]", ""},
		{"nested mixed", prompt(`[[1],["a"]]`), "prompt", "prompt[1][0]", ""},
		{"too many prompts", prompt("[" + strings.Repeat(`"a",`, 128) + `"a"]`), "prompt", "more than 128", ""},
		{"too long in ids", prompt("[" + strings.Repeat("1,", 1023) + "1]"), "prompt", "1024 tokens", codeContextLength},
		{"too long with the answer", with(`"max_tokens":1023`), "max_tokens", "1024", codeContextLength},
		{"too long in text", prompt(`"` + strings.Repeat("a b ", 1000) + `"`), "prompt", "context length is 1024", codeContextLength},
		{"far too long in text", prompt(`"` + strings.Repeat("a b ", 200000) + `"`), "prompt", "context length is 1024", codeContextLength},

		{"max_tokens 0", with(`"max_tokens":0`), "max_tokens", "from 1", ""},
		{"max_tokens text", with(`"max_tokens":"5"`), "max_tokens", "whole number", ""},
		{"max_tokens fraction", with(`"max_tokens":5.5`), "max_tokens", "whole number", ""},
		{"max_tokens huge", with(`"max_tokens":1e400`), "max_tokens", "whole number", ""},
		{"max_tokens true", with(`"max_tokens":true`), "max_tokens", "whole number", ""},
		{"min above max", with(`"max_tokens":5,"min_tokens":6`), "min_tokens", "max_tokens", ""},
		{"temperature", with(`"temperature":2.1`), "temperature", "0 to 2", ""},
		{"temperature below", with(`"temperature":-0.1`), "temperature", "0 to 2", ""},
		{"temperature text", with(`"temperature":"hot"`), "temperature", "a number", ""},
		{"temperature huge", with(`"temperature":1e999`), "temperature", "a number", ""},
		{"top_p 0", with(`"top_p":0`), "top_p", "above 0", ""},
		{"top_p list", with(`"top_p":[1]`), "top_p", "a number", ""},
		{"top_k", with(`"top_k":-2`), "top_k", "from -1", ""},
		{"min_p", with(`"min_p":1.5`), "min_p", "0 to 1", ""},
		{"seed fraction", with(`"seed":1.5`), "seed", "whole number", ""},
		{"seed huge", with(`"seed":99999999999999999999`), "seed", "64 bits", ""},
		{"seed text", with(`"seed":"1"`), "seed", "whole number", ""},
		{"stop empty", with(`"stop":""`), "stop", "1 to 256 bytes", ""},
		{"stop number", with(`"stop":5`), "stop", "stop is 5: allowed is a string", ""},
		{"stop mixed", with(`"stop":["a",null]`), "stop", "stop[1] is null: allowed is a string", ""},
		{"stop long", with(`"stop":"` + strings.Repeat("x", 257) + `"`), "stop", "256", ""},
		{"stops", with(`"stop":[` + strings.Repeat(`"a",`, 16) + `"a"]`), "stop", "more than 16", ""},
		{"stop_token_ids", with(`"stop_token_ids":5`), "stop_token_ids", "list", ""},
		{"stop_token_ids many", with(`"stop_token_ids":[` + strings.Repeat(`1,`, 64) + `1]`), "stop_token_ids", "allowed are 64", ""},
		{"logprobs", with(`"logprobs":21`), "logprobs", "0 to 20", ""},
		{"logprobs bool", with(`"logprobs":true`), "logprobs", "whole number", ""},
		{"stream", with(`"stream":"yes"`), "stream", "true or false", ""},
		{"stream_options", with(`"stream_options":true`), "stream_options", "object", ""},
		{"stream_options unknown", with(`"stream_options":{"x":1}`), "stream_options", "include_usage", ""},
		{"stream_options without stream", with(`"stream_options":{"include_usage":true}`), "stream_options", "stream is false", ""},
		{"stop_token_ids out of the vocabulary", with(`"stop_token_ids":[1,4096]`), "stop_token_ids", "stop_token_ids[1] is 4096", ""},
		{"n", with(`"n":0`), "n", "from 1", ""},
		{"n many", with(`"n":129`), "n", "to 128", ""},
		{"n and prompts", `{"model":"gocode-7m","n":65,"prompt":["a","b"]}`, "n", "130 choices", ""},
		{"best_of below n", with(`"best_of":2,"n":3`), "best_of", "allowed is n or more", ""},
		{"best_of of a stream", with(`"best_of":2,"stream":true`), "best_of", "only at the end", ""},
		{"best_of too large", with(`"best_of":129`), "best_of", "to 128", ""},
		{"echo with logprobs", with(`"echo":true,"logprobs":1`), "echo", "not supported", ""},
		{"suffix", with(`"suffix":"x"`), "suffix", "not supported", ""},
		{"presence", with(`"presence_penalty":2.5`), "presence_penalty", "-2 to 2", ""},
		{"frequency", with(`"frequency_penalty":-3`), "frequency_penalty", "-2 to 2", ""},
		{"repetition", with(`"repetition_penalty":0`), "repetition_penalty", "0.01 to 100", ""},
		{"repetition below", with(`"repetition_penalty":-1`), "repetition_penalty", "0.01 to 100", ""},
		{"logit_bias", with(`"logit_bias":{"5":101}`), "logit_bias", "-100 to 100", ""},
		{"logit_bias list", with(`"logit_bias":[5]`), "logit_bias", "an object", ""},
		{"logit_bias null", with(`"logit_bias":{"5":null}`), "logit_bias", "null", ""},
		{"logit_bias text", with(`"logit_bias":{"7":1,"5":"1"}`), "logit_bias", `logit_bias of token 5 is "1": allowed is a number`, ""},
		{"logit_bias huge", with(`"logit_bias":{"5":1e999}`), "logit_bias", "logit_bias of token 5 is 1e999", ""},
		{"logit_bias of a huge token", with(`"logit_bias":{"99999999999":1}`), "logit_bias", "from 0 to 2147483647", ""},
		{"logit_bias key", with(`"logit_bias":{"x":1}`), "logit_bias", `"x"`, ""},
		{"logit_bias twice", with(`"logit_bias":{"5":1,"5":1}`), "logit_bias", "twice", ""},
		{"logit_bias twice hidden", with(`"logit_bias":{"5":1,"05":1}`), "logit_bias", `"05"`, ""},
		{"logit_bias out of the vocabulary", with(`"logit_bias":{"4096":1}`), "logit_bias", "0 to 4095", ""},
	}
}

func TestRefusals(t *testing.T) {
	in := sharedInstance(t)
	for _, c := range refusals() {
		t.Run(c.name, func(t *testing.T) {
			before := testutil.ToFloat64(in.metrics.Outcome(telemetry.OutcomeRejected))
			resp, b := do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json", strings.NewReader(c.body))
			e := apiErrorIn(t, b)
			if resp.StatusCode != http.StatusBadRequest || e.Type != typeInvalid || !strings.Contains(e.Message, c.message) {
				t.Errorf("status %d: %s, want 400 and %q", resp.StatusCode, b, c.message)
			}
			if got := value(e.Param); got != c.param {
				t.Errorf("param %q, want %q", got, c.param)
			}
			if got := value(e.Code); got != c.code {
				t.Errorf("code %q, want %q", got, c.code)
			}
			if len(e.Message) > 400 || strings.Contains(e.Message, "\n") {
				t.Errorf("the message is not one short line: %s", e.Message)
			}
			if got := testutil.ToFloat64(in.metrics.Outcome(telemetry.OutcomeRejected)); got != before+1 {
				t.Errorf("%v more rejected requests, want 1", got-before)
			}
		})
	}
}

// TestNeutral sends what clients send though they ask for nothing with it.
func TestNeutral(t *testing.T) {
	in := sharedInstance(t)
	in.post(t, fields{"prompt": []int{1}, "echo": false, "suffix": nil, "best_of": 1, "n": 1, "frequency_penalty": 0, "presence_penalty": 0.0,
		"logit_bias": fields{}, "repetition_penalty": 1, "user": "me", "stop": nil, "seed": nil, "max_tokens": nil, "logprobs": nil, "stream_options": nil, "temperature": nil, "stream": nil})
}

// Escapes of whole characters are read, and what only looks like one is left alone.
func TestEscapes(t *testing.T) {
	for prompt, want := range map[string]string{
		`"\ud83d\ude00"`: "😀", `"\\ud800"`: `\ud800`, `"\\\\ud800"`: `\\ud800`, `"\ufffd\u00e9"`: "\uFFFDé", `"\ud83d\ude00\ud83d\ude00"`: "😀😀",
	} {
		c, err := parseCompletion([]byte(`{"model":"m","prompt":`+prompt+`}`), 1)
		if err != nil || c.prompts[0].text != want {
			t.Errorf("%s: %v, want %q", prompt, err, want)
		}
	}
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func apiErrorIn(t testing.TB, b []byte) *apiError {
	t.Helper()
	var r struct {
		Error map[string]any `json:"error"`
	}
	if err := json.Unmarshal(b, &r); err != nil || r.Error == nil {
		t.Fatalf("not an error in OpenAI's shape: %s", b)
	}
	for _, key := range []string{"message", "type", "param", "code"} {
		if _, ok := r.Error[key]; !ok {
			t.Fatalf("the error has no %s: %s", key, b)
		}
	}
	var whole reply
	if err := json.Unmarshal(b, &whole); err != nil {
		t.Fatal(err)
	}
	return whole.Error
}

func TestStatuses(t *testing.T) {
	in := sharedInstance(t)
	const good = `{"model":"gocode-7m","prompt":[1],"max_tokens":1}`
	large := io.MultiReader(strings.NewReader(`{"model":"gocode-7m","prompt":"`), bytes.NewReader(bytes.Repeat([]byte("a"), 100<<20)), strings.NewReader(`"}`))
	for _, c := range []struct {
		name, method, path, contentType string
		body                            io.Reader
		status                          int
		message                         string
	}{
		{"good", "POST", "/v1/completions", "application/json; charset=utf-8", strings.NewReader(good), 200, ""},
		{"no content type", "POST", "/v1/completions", "", strings.NewReader(good), 200, ""},
		{"another writing of it", "POST", "/v1/completions", `application/json; charset="UTF-8"`, strings.NewReader(good), 200, ""},
		{"another charset", "POST", "/v1/completions", "application/json; charset=latin1", strings.NewReader(good), 415, "charset=utf-8"},
		{"another charset of tokens", "POST", "/tokenize", "application/json;charset=utf-16", strings.NewReader(`{"prompt":"a"}`), 415, "charset=utf-8"},
		{"form", "POST", "/v1/completions", "application/x-www-form-urlencoded", strings.NewReader(good), 415, "application/json"},
		{"bad content type", "POST", "/v1/completions", ";;", strings.NewReader(good), 415, "application/json"},
		{"large", "POST", "/v1/completions", "application/json", large, 413, "8388608 bytes"},
		{"half a surrogate pair in messages", "POST", "/v1/chat/completions", "application/json", strings.NewReader(`{"model":"gocode-7m","messages":[{"role":"user","content":"\ud800"}]}`), 400, "messages has the escape \\ud800 at byte 59"},
		{"half a surrogate pair in arguments", "POST", "/v1/chat/completions", "application/json", strings.NewReader(`{"model":"gocode-7m","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":\"\\ud800\"}"}}]}]}`), 400, "messages[0].tool_calls[0].function.arguments has the escape \\ud800 at byte 6"},
		{"messages that are none", "POST", "/v1/chat/completions", "application/json", strings.NewReader(`{"model":"gocode-7m","messages":1}`), 400, "messages is 1: allowed is a list"},
		{"other model", "POST", "/v1/completions", "application/json", strings.NewReader(`{"model":"gpt","prompt":[1]}`), 404, `"gpt" does not exist`},
		{"method", "GET", "/v1/completions", "", nil, 405, "allowed is POST"},
		{"method of models", "DELETE", "/v1/models", "", nil, 405, "allowed is GET"},
		{"path", "GET", "/v2/completions", "", nil, 404, "/v2/completions"},
		{"model", "GET", "/v1/models/gocode-7m", "", nil, 200, ""},
		{"unknown model", "GET", "/v1/models/org/other", "", nil, 404, "org/other"},
		{"drain is not public", "POST", "/drain", "", nil, 404, "/drain"},
		{"pprof is not public", "GET", "/debug/pprof/", "", nil, 404, "pprof"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, b := do(t, c.method, in.public.URL+c.path, c.contentType, c.body)
			if resp.StatusCode != c.status {
				t.Fatalf("status %d, want %d: %.200s", resp.StatusCode, c.status, b)
			}
			if resp.Header.Get("X-Request-Id") == "" {
				t.Error("no X-Request-Id")
			}
			if c.status == http.StatusOK {
				return
			}
			if e := apiErrorIn(t, b); !strings.Contains(e.Message, c.message) {
				t.Errorf("message %q, want %q in it", e.Message, c.message)
			}
			if c.status == http.StatusMethodNotAllowed && resp.Header.Get("Allow") == "" {
				t.Error("no Allow")
			}
		})
	}
}

// TestUnavailable: what Submit and Ready answer becomes a status and a time to
// wait, and no request is left behind.
func TestUnavailable(t *testing.T) {
	s, in := stubbed(t)
	submit := func(err error) func(*stub) {
		return func(s *stub) {
			s.submit = func(*scheduler.Request) (*scheduler.Stream, error) { return nil, err }
		}
	}
	for _, c := range []struct {
		name   string
		set    func(*stub)
		status int
		retry  string
	}{
		{"loading", func(s *stub) { s.ready = errors.New("not serving yet") }, 503, "5"},
		{"draining", func(s *stub) { s.ready = scheduler.ErrDraining }, 503, "1"},
		{"draining meanwhile", submit(scheduler.ErrDraining), 503, "1"},
		{"not ready meanwhile", submit(scheduler.ErrNotReady), 503, "5"},
		{"full", submit(scheduler.ErrQueueFull), 429, "1"},
		{"ended", submit(errors.New("rank 1 is gone")), 503, "5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.set(func(s *stub) { s.ready, s.submit = nil, nil; c.set(s) })
			resp, b := do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json", fields{"prompt": []int{1}}.reader(t))
			if resp.StatusCode != c.status || resp.Header.Get("Retry-After") != c.retry {
				t.Errorf("status %d, Retry-After %q: %s, want %d and %s", resp.StatusCode, resp.Header.Get("Retry-After"), b, c.status, c.retry)
			}
			apiErrorIn(t, b)
		})
	}
}

// TestAllOrNone: when the queue takes only some of a request's prompts, these
// are given up.
func TestAllOrNone(t *testing.T) {
	s, in := stubbed(t)
	var taken []*scheduler.Stream
	s.set(func(s *stub) {
		s.submit = func(r *scheduler.Request) (*scheduler.Stream, error) {
			if len(taken) == 2 {
				return nil, scheduler.ErrQueueFull
			}
			stream, err := s.Backend.Submit(r)
			taken = append(taken, stream)
			return stream, err
		}
	})
	resp, b := do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json",
		fields{"prompt": []string{"a", "b", "c"}, "max_tokens": 1000, "ignore_eos": true}.reader(t))
	if resp.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("status %d: %s", resp.StatusCode, b)
	}
	for i, stream := range taken {
		all, err := readAll(t.Context(), stream, nil)
		if err != nil || all.Finish != scheduler.FinishAbort {
			t.Errorf("prompt %d ended with %q, %v, want abort", i, all.Finish, err)
		}
	}
}

// TestPanic: a bug in a handler is a 500 and no end of the process.
func TestPanic(t *testing.T) {
	s, in := stubbed(t)
	s.set(func(s *stub) {
		s.submit = func(*scheduler.Request) (*scheduler.Stream, error) { panic("a bug") }
	})
	resp, b := do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json", fields{"prompt": []int{1}}.reader(t))
	e := apiErrorIn(t, b)
	if resp.StatusCode != http.StatusInternalServerError || !strings.Contains(e.Message, resp.Header.Get("X-Request-Id")) || strings.Contains(e.Message, "a bug") {
		t.Errorf("status %d: %s", resp.StatusCode, b)
	}
}

// FuzzCompletion: any body is refused with a message, or is a request within
// the limits.
func FuzzCompletion(f *testing.F) {
	for _, c := range refusals() {
		if len(c.body) < 2000 {
			f.Add([]byte(c.body))
		}
	}
	f.Add([]byte(`{"model":"m","prompt":["a","b"],"n":2,"stream":true,"stream_options":{"include_usage":true},"stop":["x"],"logprobs":3,"seed":1}`))
	f.Add([]byte(`{"model":"m","prompt":[[1, 2],[3]],"stop_token_ids":[ ],"temperature":0.5,"top_k":5,"top_p":0.5,"min_p":0.1,"user":{"a":[1]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		const most = 8
		c, err := parseCompletion(body, most)
		if err != nil {
			if err.status != http.StatusBadRequest || err.Message == "" || len(err.Message) > 1000 {
				t.Fatalf("%d %q", err.status, err.Message)
			}
			return
		}
		switch {
		case !json.Valid(body):
			t.Fatal("not JSON, but taken")
		case c.model == "" || len(c.prompts) == 0 || c.n < 1 || len(c.prompts)*c.n > most:
			t.Fatalf("model %q, %d prompts, n %d", c.model, len(c.prompts), c.n)
		case c.sampling.Validate() != nil || c.maxTokens < 0 || c.minTokens < 0 || len(c.stop) > maxStops || len(c.stopIDs) > maxStopIDs:
			t.Fatalf("out of the limits: %+v", c)
		}
		for _, p := range c.prompts {
			for _, id := range p.ids {
				if id < 0 {
					t.Fatalf("id %d", id)
				}
			}
		}
	})
}

// A request that waits in parts is refused for good where more parts than may wait are sent,
// and is answered where they are as many.
func TestMoreThanMayWait(t *testing.T) {
	in := newInstance(t, engine.Config{MaxRunningRequests: 1, MaxQueuedRequests: 2}, nil)
	for body, want := range map[string]string{
		`"prompt": "package", "n": 3`:                    "n: the prompts and their choices are 3 requests: 2 may wait here at once (--max-queued-requests): send fewer in a request",
		`"prompt": ["package", "func", "var"]`:           "n: the prompts and their choices are 3 requests: 2 may wait here at once (--max-queued-requests): send fewer in a request",
		`"prompt": "package", "n": 2`:                    "",
		`"prompt": ["a", "b"], "best_of": 100, "n": 1`:   "best_of: 2 prompts with best_of 100 are 200 choices: allowed are 128 in a request",
		`"prompt": ["a", "b"], "n": 100, "best_of": 100`: "n: 2 prompts with n 100 are 200 choices: allowed are 128 in a request",
	} {
		answer, err := http.Post(in.public.URL+"/v1/completions", "application/json", strings.NewReader(`{"model": "`+servedName+`", "max_tokens": 1, `+body+`}`))
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Error struct{ Message, Param string }
		}
		err = errors.Join(json.NewDecoder(answer.Body).Decode(&got), answer.Body.Close())
		if err != nil || want == "" != (answer.StatusCode == http.StatusOK) || want != "" && got.Error.Param+": "+got.Error.Message != want {
			t.Errorf("%s: %d, %s: %s, %v; want %q", body, answer.StatusCode, got.Error.Param, got.Error.Message, err, want)
		}
	}
}
