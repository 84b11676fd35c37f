package answer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// message is an answer put together.
type message struct {
	Reasoning, Content string
	Calls              []Call
}

// add puts a delta to the message, as a client does.
func (m *message) add(t testing.TB, d Delta) {
	t.Helper()
	m.Reasoning += d.Reasoning
	m.Content += d.Content
	for _, c := range d.Calls {
		if c.ID != "" {
			if c.Index != len(m.Calls) || c.Name == "" {
				t.Fatalf("call %+v begins after %d calls", c, len(m.Calls))
			}
			m.Calls = append(m.Calls, c)
			continue
		}
		if c.Index >= len(m.Calls) || c.Name != "" {
			t.Fatalf("more of call %+v after %d calls", c, len(m.Calls))
		}
		m.Calls[c.Index].Arguments += c.Arguments
	}
}

// parse pushes an answer in the pieces that cut gives.
func parse(t testing.TB, c Config, pieces []string) message {
	t.Helper()
	n := 0
	c.NewID = func() string { n++; return fmt.Sprintf("id%d", n) }
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	var m message
	for _, piece := range pieces {
		d := p.Push(piece)
		for _, s := range []string{d.Reasoning, d.Content} {
			if utf8.ValidString(strings.Join(pieces, "")) && !utf8.ValidString(s) {
				t.Fatalf("a broken code point in %q", s)
			}
		}
		m.add(t, d)
	}
	m.add(t, p.Flush())
	if p.Calls() != len(m.Calls) {
		t.Fatalf("Calls is %d: want %d", p.Calls(), len(m.Calls))
	}
	return m
}

func call(id, name, arguments string) Call { return Call{ID: id, Name: name, Arguments: arguments} }

func calls(all ...Call) []Call {
	for i := range all {
		all[i].Index = i
	}
	return all
}

var names = map[string]bool{"get_weather": true, "now": true}

// answers are whole answers and what they mean.
var answers = []struct {
	name   string
	config Config
	text   string
	want   message
}{
	{"plain", Config{}, " Hello <tool_call> 日本 \n", message{Content: " Hello <tool_call> 日本 \n"}},
	{"reasoning", Config{Think: true}, "<think>\nLet me see.\n\n</think>\n\nFour.\n", message{Reasoning: "Let me see.", Content: "Four.\n"}},
	{"no reasoning", Config{Think: true}, "\n Four <think> x", message{Content: "\n Four <think> x"}},
	{"almost reasoning", Config{Think: true}, "<<think>x", message{Content: "<<think>x"}},
	{"empty reasoning", Config{Think: true}, "<think>\n\n</think>\n\nFour.", message{Content: "Four."}},
	{"begun by the prompt", Config{Thinking: true}, "Let me <see>.</thin </think>Four.", message{Reasoning: "Let me <see>.</thin", Content: "Four."}},
	{"begun twice", Config{Thinking: true}, "<think>see</think>4", message{Reasoning: "see", Content: "4"}},
	{"cut in the reasoning", Config{Thinking: true}, "Let me\n", message{Reasoning: "Let me"}},
	{"cut in a marker", Config{Thinking: true}, "Let me </thi", message{Reasoning: "Let me </thi"}},

	{"hermes", Config{Tools: Hermes}, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"n\": [1, {\"a\": null}]}}\n</tool_call>",
		message{Calls: calls(call("id1", "get_weather", `{"city": "Paris", "n": [1, {"a": null}]}`))}},
	{"hermes, content and two calls", Config{Tools: Hermes, Think: true}, "<think>hm</think>\nLet me look.\n\n<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>\n<tool_call>{\"name\":\"b\",\"arguments\":{\"x\":\"</tool_call> \\\" {\"}}</tool_call>\n",
		message{Reasoning: "hm", Content: "Let me look.", Calls: calls(call("id1", "a", "{}"), call("id2", "b", `{"x":"</tool_call> \" {"}`))}},
	{"hermes, other order", Config{Tools: Hermes}, `<tool_call>{"arguments": {"x": 1}, "id": "own", "name": "a"}</tool_call>`, message{Calls: calls(call("own", "a", `{"x": 1}`))}},
	{"hermes, JSON in a string", Config{Tools: Hermes}, `<tool_call>{"name": "a", "arguments": "{\"x\": 1}"}</tool_call>`, message{Calls: calls(call("id1", "a", `{"x": 1}`))}},
	{"hermes, no arguments", Config{Tools: Hermes}, `<tool_call>{"name": "now"}</tool_call>`, message{Calls: calls(call("id1", "now", `{}`))}},
	{"hermes, null arguments", Config{Tools: Hermes}, `<tool_call>{"name": "now", "arguments": null}</tool_call>`, message{Calls: calls(call("id1", "now", `{}`))}},
	{"hermes, no closing marker", Config{Tools: Hermes}, `<tool_call>{"name": "a", "arguments": {"x": 1}}`, message{Calls: calls(call("id1", "a", `{"x": 1}`))}},
	{"hermes, two without closing markers", Config{Tools: Hermes}, `<tool_call>{"name": "a", "arguments": {}}<tool_call>{"name": "b", "arguments": {}}`, message{Calls: calls(call("id1", "a", `{}`), call("id2", "b", `{}`))}},
	{"hermes, cut in the arguments", Config{Tools: Hermes}, `<tool_call>{"name": "a", "arguments": {"x": "yz`, message{Calls: calls(call("id1", "a", `{"x": "yz`))}},
	{"hermes, cut before the name", Config{Tools: Hermes}, `ok <tool_call>{"nam`, message{Content: `ok <tool_call>{"nam`}},
	{"hermes, no JSON", Config{Tools: Hermes}, "<tool_call>run it</tool_call> done", message{Content: "<tool_call>run it</tool_call> done"}},
	{"hermes, no call", Config{Tools: Hermes}, "a <tool_call b> c \n", message{Content: "a <tool_call b> c \n"}},
	{"hermes, content after", Config{Tools: Hermes}, `<tool_call>{"name": "a", "arguments": {}}</tool_call> and more`, message{Content: "and more", Calls: calls(call("id1", "a", "{}"))}},
	{"hermes, names in code points", Config{Tools: Hermes}, `<tool_call>{"name": "größe", "arguments": {"é": "日\u00e9"}}</tool_call>`, message{Calls: calls(call("id1", "größe", `{"é": "日\u00e9"}`))}},

	{"llama", Config{Tools: Llama3, Names: names}, `{"name": "get_weather", "parameters": {"city": "Paris"}}`, message{Calls: calls(call("id1", "get_weather", `{"city": "Paris"}`))}},
	{"llama, tag and two", Config{Tools: Llama3, Names: names}, "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"get_weather\", \"arguments\": {\"a\": 1}}\n", message{Calls: calls(call("id1", "now", `{}`), call("id2", "get_weather", `{"a": 1}`))}},
	{"llama, other JSON", Config{Tools: Llama3, Names: names}, `{"name": "Ada", "parameters": {"x": 1}} {`, message{Content: `{"name": "Ada", "parameters": {"x": 1}} {`}},
	{"llama, no name", Config{Tools: Llama3, Names: names}, ` {"x": [1, "}"]} `, message{Content: ` {"x": [1, "}"]} `}},
	{"llama, cut", Config{Tools: Llama3, Names: names}, `{"name": "no`, message{Content: `{"name": "no`}},
	{"llama, text", Config{Tools: Llama3, Names: names}, `Use {"name": "now", "parameters": {}}.`, message{Content: `Use {"name": "now", "parameters": {}}.`}},

	{"mistral", Config{Tools: Mistral}, `[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, {"name": "now", "arguments": {}}]`,
		message{Calls: calls(call("id1", "get_weather", `{"city": "Paris"}`), call("id2", "now", `{}`))}},
	{"mistral, id first", Config{Tools: Mistral}, `Ok.[TOOL_CALLS][{"id": "abcdefghi", "name": "now", "arguments": {}}]`, message{Content: "Ok.", Calls: calls(call("abcdefghi", "now", `{}`))}},
	{"mistral, newer", Config{Tools: Mistral}, `[TOOL_CALLS]get_weather[ARGS]{"city": "]}"}[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}`,
		message{Calls: calls(call("id1", "get_weather", `{"city": "]}"}`), call("123456789", "now", `{}`))}},
	{"mistral, one object", Config{Tools: Mistral}, `[TOOL_CALLS]{"name": "now", "arguments": {}}`, message{Calls: calls(call("id1", "now", `{}`))}},
	{"mistral, cut", Config{Tools: Mistral}, `[TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}}, {"na`, message{Content: `{"na`, Calls: calls(call("id1", "a", `{"x": 1}`))}},
	{"mistral, cut in the name", Config{Tools: Mistral}, `[TOOL_CALLS]get_w`, message{Content: `[TOOL_CALLS]get_w`}},
	{"mistral, no call", Config{Tools: Mistral}, `[TOOL] x`, message{Content: `[TOOL] x`}},

	{"kimi", Config{Tools: KimiK2}, "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"<|tool_call_end|>\"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|> {} <|tool_call_end|><|tool_calls_section_end|>",
		message{Content: "I look.", Calls: calls(call("functions.get_weather:0", "get_weather", `{"city": "<|tool_call_end|>"}`), call("functions.now:1", "now", "{}"))}},
	{"kimi, no end", Config{Tools: KimiK2}, "<|tool_calls_section_begin|><|tool_call_begin|>functions.a.b:7<|tool_call_argument_begin|>{}", message{Calls: calls(call("functions.a.b:7", "a.b", "{}"))}},
	{"kimi, no arguments", Config{Tools: KimiK2}, "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>", message{Calls: calls(call("functions.a:0", "a", "{}"))}},
	{"kimi, cut in the header", Config{Tools: KimiK2}, "x<|tool_calls_section_begin|><|tool_call_begin|>functions.a", message{Content: "x<|tool_call_begin|>functions.a"}},

	{"deepseek v3.1", Config{Tools: DeepSeek, Think: true}, "<think>hm</think>Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
		message{Reasoning: "hm", Content: "Ok.", Calls: calls(call("id1", "get_weather", `{"city": "Paris"}`), call("id2", "now", "{}"))}},
	{"deepseek v3", Config{Tools: DeepSeek}, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
		message{Calls: calls(call("id1", "get_weather", `{"city": "Paris"}`), call("id2", "now", "{}"))}},
	{"deepseek, a tool called function", Config{Tools: DeepSeek}, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{\"x\": 1}<｜tool▁call▁end｜>", message{Calls: calls(call("id1", "function", `{"x": 1}`))}},
	{"deepseek, no call", Config{Tools: DeepSeek}, "a <｜tool b", message{Content: "a <｜tool b"}},
}

func TestParse(t *testing.T) {
	for _, a := range answers {
		t.Run(a.name, func(t *testing.T) {
			got := parse(t, a.config, []string{a.text})
			if d := cmp.Diff(a.want, got); d != "" {
				t.Errorf("%s", d)
			}
		})
	}
}

// However an answer is cut, it means the same.
func TestAnyCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, a := range answers {
		t.Run(a.name, func(t *testing.T) {
			chars := strings.Split(a.text, "")
			check := func(pieces []string) {
				t.Helper()
				if d := cmp.Diff(a.want, parse(t, a.config, pieces)); d != "" {
					t.Fatalf("cut as %q: %s", pieces, d)
				}
			}
			check(chars)
			for i := range chars {
				check([]string{strings.Join(chars[:i], ""), strings.Join(chars[i:], "")})
			}
			for range 50 {
				check(cut(chars, rng))
			}
		})
	}
}

// cut joins code points into pieces of some length.
func cut(chars []string, rng *rand.Rand) []string {
	var pieces []string
	for len(chars) > 0 {
		n := 1 + rng.IntN(min(12, len(chars)))
		pieces = append(pieces, strings.Join(chars[:n], ""))
		chars = chars[n:]
	}
	return pieces
}

// What is certain is passed on at once: the name before the arguments are
// there, arguments while they come, text but for what may be a marker.
func TestPassesOnAtOnce(t *testing.T) {
	p, err := New(Config{Tools: Hermes, NewID: func() string { return "id" }})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		push string
		want Delta
	}{
		{"Hello", Delta{Content: "Hello"}},
		{" <to", Delta{}},
		{"ast>", Delta{Content: " <toast>"}},
		{"<tool_call>{\"name\": \"f\", ", Delta{}},
		{"\"arguments\": {", Delta{Calls: []Call{{ID: "id", Name: "f", Arguments: "{"}}}},
		{"\"x\": 1", Delta{Calls: []Call{{Arguments: "\"x\": 1"}}}},
		{"}", Delta{Calls: []Call{{Arguments: "}"}}}},
		{"}</tool_call>", Delta{}},
	} {
		if d := cmp.Diff(step.want, p.Push(step.push)); d != "" {
			t.Errorf("%q: %s", step.push, d)
		}
	}
}

func TestDetect(t *testing.T) {
	for template, want := range map[string]struct {
		tools string
		think bool
	}{
		"nothing": {"", false},
		"<tool_call>{{ x }}</tool_call> {% if '</think>' in content %}": {Hermes, true},
		"<|start_header_id|> {\"name\": ..., \"parameters\": ...}":      {Llama3, false},
		"[AVAILABLE_TOOLS] [TOOL_CALLS]":                                {Mistral, false},
		"<|tool_calls_section_begin|>":                                  {KimiK2, false},
		"<｜tool▁calls▁begin｜></think>":                                  {DeepSeek, true},
	} {
		if tools, think := Detect(template); tools != want.tools || think != want.think {
			t.Errorf("%q: got %q, %t: want %q, %t", template, tools, think, want.tools, want.think)
		}
	}
	if _, err := New(Config{Tools: "nope"}); err == nil || !strings.Contains(err.Error(), "allowed are deepseek_v3, hermes") {
		t.Errorf("an unknown format: %v", err)
	}
	if m := Markers(KimiK2, true); !slices.Contains(m, "<|tool_call_argument_begin|>") || !slices.Contains(m, "</think>") {
		t.Errorf("markers are %q", m)
	}
}

// Text never gets lost or doubled whatever it is, and no cut matters. Arguments
// of calls that ended are JSON where the model's object was.
func FuzzParse(f *testing.F) {
	for i, a := range answers {
		f.Add(a.text, uint64(i))
	}
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 3))
		for _, tools := range append(ToolFormats(), "") {
			for _, think := range []bool{false, true} {
				c := Config{Tools: tools, Names: names, Think: think, Thinking: think && seed%2 == 1}
				whole := parse(t, c, []string{text})
				if d := cmp.Diff(whole, parse(t, c, cut(strings.Split(text, ""), rng))); d != "" {
					t.Fatalf("%s, think %t: %s", tools, think, d)
				}
				if tools == "" && !think && whole.Content != text {
					t.Fatalf("%q became %q", text, whole.Content)
				}
			}
		}
		if json.Valid([]byte(text)) && strings.HasPrefix(text, "{") {
			m := parse(t, Config{Tools: Hermes}, []string{`<tool_call>{"name": "f", "arguments": ` + text + `}</tool_call>`})
			if len(m.Calls) != 1 || m.Calls[0].Arguments != strings.TrimRight(text, " \t\r\n") {
				t.Fatalf("arguments %q became %+v", text, m)
			}
		}
	})
}
