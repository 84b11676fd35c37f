package server

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrider-dev/outrider/engine/chat"
	"github.com/outrider-dev/outrider/engine/chat/answer"
	"github.com/outrider-dev/outrider/engine/grammar"
)

// talking is the engine with a chat template, for tests in which the model
// itself answers. It was never taught to call tools.
type talking struct {
	Backend
	template *chat.Template
}

func (b talking) ChatTemplate() (*chat.Template, error) { return b.template, nil }

func newTalking(t *testing.T, template, parser string) *instance {
	t.Helper()
	parsed, err := chat.Parse(template, nil)
	if err != nil {
		t.Fatal(err)
	}
	base := sharedInstance(t)
	in := &instance{Engine: base.Engine, registry: base.registry, metrics: base.metrics}
	in.server = New(Config{Backend: talking{base.Engine, parsed}, Metrics: base.metrics, Gatherer: base.registry, Log: slog.New(slog.DiscardHandler), ToolParser: parser})
	in.public = httptest.NewServer(in.server.Public())
	t.Cleanup(in.public.Close)
	return in
}

const plainTemplate = `{% for m in messages %}{{ m.content }}{% endfor %}`

var cityTools = []any{
	fields{"type": "function", "function": fields{"name": "get_weather", "strict": true, "parameters": fields{"type": "object", "required": []string{"city", "days"}, "additionalProperties": false,
		"properties": fields{"city": fields{"type": "string", "maxLength": 8}, "days": fields{"type": "integer", "minimum": 1, "maximum": 9}}}}},
	fields{"type": "function", "function": fields{"name": "now", "parameters": fields{"type": "object", "properties": fields{"zone": fields{"enum": []string{"UTC", "CET"}}}}}},
}

// A model that knows nothing of tools calls one, with arguments as described, in
// each format, where tool_choice asks for it.
func TestForcedCallsHaveTheForm(t *testing.T) {
	named := fields{"type": "function", "function": fields{"name": "get_weather"}}
	for _, format := range answer.ToolFormats() {
		in := newTalking(t, plainTemplate, format)
		for _, c := range []struct {
			choice any
			more   fields
		}{{named, nil}, {"required", nil}, {"required", fields{"parallel_tool_calls": false, "temperature": 0}}} {
			f := ask("package main\n").with(fields{"tools": cityTools, "tool_choice": c.choice, "seed": 3, "max_tokens": 400}).with(c.more)
			whole, _ := in.chat(t, f)
			if streamed, _ := in.chatStream(t, f); !cmp.Equal(whole, streamed) {
				t.Errorf("%s, %v: whole and streamed differ: %s", format, c.choice, cmp.Diff(whole, streamed))
			}
			got := whole[0]
			if got.Content != "" {
				t.Errorf("%s, %v: beside the calls there is %q", format, c.choice, got.Content)
			}
			if got.Finish == "length" && len(got.Calls) > 1 { // this model does not know when it is enough
				got.Calls = got.Calls[:len(got.Calls)-1]
			} else if len(got.Calls) == 0 || got.Finish != "tool_calls" {
				t.Errorf("%s, %v: got %+v", format, c.choice, got)
			}
			for _, call := range got.Calls {
				checkCall(t, call)
			}
			if c.choice != "required" && (len(got.Calls) != 1 || got.Calls[0].Function.Name != "get_weather") {
				t.Errorf("%s: called %+v", format, got.Calls)
			}
		}
	}
}

func checkCall(t *testing.T, call toolCall) {
	t.Helper()
	var v struct {
		City *string `json:"city"`
		Days *int    `json:"days"`
		Zone *string `json:"zone"`
	}
	d := json.NewDecoder(strings.NewReader(call.Function.Arguments))
	d.DisallowUnknownFields()
	err := d.Decode(&v)
	switch name := call.Function.Name; {
	case err != nil:
		t.Errorf("%s: %v in %s", name, err, call.Function.Arguments)
	case name == "get_weather" && v.City != nil && v.Days != nil && *v.Days >= 1 && *v.Days <= 9 && v.Zone == nil:
	case name == "now" && v.City == nil && v.Days == nil && (v.Zone == nil || *v.Zone == "UTC" || *v.Zone == "CET"):
	default:
		t.Errorf("%s is called with %s", name, call.Function.Arguments)
	}
}

func TestChatForms(t *testing.T) {
	in := newTalking(t, plainTemplate, ParserNone)
	f := ask("package main\n").with(fields{"seed": 4, "max_tokens": 300, "response_format": fields{"type": "json_schema", "json_schema": fields{"name": "p", "schema": personSchema}}})
	whole, _ := in.chat(t, f)
	var v map[string]any
	if err := json.Unmarshal([]byte(whole[0].Content), &v); err != nil || v["name"] == nil || whole[0].Finish != "stop" {
		t.Errorf("got %+v", whole[0])
	}
	hermes := newTalking(t, plainTemplate, answer.Hermes)
	f = ask("package main\n").with(fields{"seed": 4, "max_tokens": 300, "tools": cityTools, "guided_regex": `[ab]{3}`})
	whole, _ = hermes.chat(t, f)
	if got := whole[0]; len(got.Calls) == 0 && !regexp.MustCompile(`^[ab]{3}$`).MatchString(got.Content) {
		t.Errorf("neither a call nor of the form: %+v", got)
	}
	for _, c := range []struct {
		format, field, param, message string
	}{
		{answer.KimiK2, `"guided_regex":"a"`, "guided_regex", "beside tools"},
		{answer.Hermes, `"guided_regex":"a","tool_choice":"required"`, "tool_choice", "guided_regex and tool_choice"},
	} {
		b, err := json.Marshal(cityTools)
		if err != nil {
			t.Fatal(err)
		}
		refuses(t, newTalking(t, plainTemplate, c.format), string(b), c.field, c.param, c.message)
	}
	strange := func(strict string) string {
		return `[{"type":"function","function":{"name":"f","strict":` + strict + `,"parameters":{"type":"object","not":{}}}}]`
	}
	refuses(t, hermes, strange("true"), `"tool_choice":"required"`, "tools", "tools[0].function.parameters: #/not")
	f = ask("package main\n").with(fields{"tools": json.RawMessage(strange("false")), "tool_choice": "required", "max_tokens": 20})
	if whole, _ = hermes.chat(t, f); len(whole[0].Calls) != 1 || !strings.HasPrefix(strings.TrimSpace(whole[0].Calls[0].Function.Arguments), "{") {
		t.Errorf("arguments of a schema that is not understood: %+v", whole[0])
	}
}

func refuses(t *testing.T, in *instance, tools, field, param, message string) {
	t.Helper()
	body := `{"model":"gocode-7m","messages":[{"role":"user","content":"x"}],"tools":` + tools + `,` + field + `}`
	resp, b := do(t, http.MethodPost, in.public.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
	var r chatReply
	if err := json.Unmarshal(b, &r); err != nil || resp.StatusCode != http.StatusBadRequest || r.Error == nil || r.Error.Param == nil || *r.Error.Param != param || !strings.Contains(r.Error.Message, message) {
		t.Errorf("%s: status %d, %s", field, resp.StatusCode, b)
	}
}

// The form holds after the reasoning, however the model writes its marks.
func TestFormAfterReasoning(t *testing.T) {
	tok := sharedInstance(t).Tokenizer()
	v := grammar.NewVocabulary(showing{tok, nil})
	for _, c := range []struct {
		begun bool
		text  string
		want  bool
	}{
		{true, "hm {\"x\"</think>\n\n{}", true}, {true, "{}", false}, {true, "hm</think>no", false}, {true, "</think>{\"a\": \"</think>\"}", true},
		{false, "{}", true}, {false, "<think>hm</think>{}", true}, {false, "<think>hm", false}, {false, "hm</think>{}", false},
	} {
		g, err := grammar.Compile(v, reasoned(grammar.JSONObject(), c.begun))
		if err != nil {
			t.Fatal(err)
		}
		s, ok := g.Start(), true
		for _, id := range tok.Encode(c.text, false) {
			if s, ok, err = s.Next(id); err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
		}
		if got := ok && s.Accepting(); got != c.want {
			t.Errorf("begun %t, %q is %t, want %t", c.begun, c.text, got, c.want)
		}
	}
}

// Wherever the length limit cuts a forced answer, what is left of a call's frame
// is no content.
func TestForcedCallsCutShort(t *testing.T) {
	for _, format := range []string{answer.Hermes, answer.Llama3, answer.Mistral} {
		in := newTalking(t, plainTemplate, format)
		for most := 1; most < 60; most++ {
			f := ask("package main\n").with(fields{"tools": cityTools, "tool_choice": "required", "seed": 3, "max_tokens": most})
			whole, _ := in.chat(t, f)
			streamed, _ := in.chatStream(t, f)
			if whole[0].Content != "" || !cmp.Equal(whole, streamed) {
				t.Errorf("%s, %d tokens: got %+v, streamed %+v", format, most, whole, streamed)
			}
		}
	}
}

// Arguments are an object also where the parameters do not say so.
func TestArgumentsAreAnObject(t *testing.T) {
	in := newTalking(t, plainTemplate, answer.Hermes)
	for _, parameters := range []string{`{ }`, `{"description":"none"}`, `null`, `{"properties":{"a":{"const":1}},"required":["a"],"additionalProperties":false}`,
		`{"anyOf":[{"type":"object","properties":{"a":{"const":1}},"required":["a"],"additionalProperties":false},{"type":"integer"}]}`,
		`{"$ref":"#/$defs/x","$defs":{"x":{"type":["object","string"],"maxProperties":0}}}`} {
		tools := json.RawMessage(`[{"type":"function","function":{"name":"f","strict":true,"parameters":` + parameters + `}}]`)
		for seed := range 3 {
			f := ask("package main\n").with(fields{"tools": tools, "tool_choice": "required", "parallel_tool_calls": false, "seed": seed, "max_tokens": 60})
			whole, _ := in.chat(t, f)
			if calls := whole[0].Calls; len(calls) != 1 || !strings.HasPrefix(strings.TrimSpace(calls[0].Function.Arguments), "{") {
				t.Errorf("parameters %s: got %+v", parameters, whole[0])
			}
		}
	}
}

// reasoning_effort reaches the template; one in chat_template_kwargs goes before it.
func TestReasoningEffort(t *testing.T) {
	for _, c := range []struct{ variables, effort, want string }{
		{``, ``, ``}, {``, `low`, `{"reasoning_effort":"low"}`}, {`null`, `low`, `{"reasoning_effort":"low"}`}, {`{ }`, `low`, `{"reasoning_effort":"low"}`},
		{`{"a":1}`, `low`, `{"reasoning_effort":"low","a":1}`}, {`{"a":1,"reasoning_effort":"high"}`, `low`, `{"a":1,"reasoning_effort":"high"}`}, {`{"a":1}`, ``, `{"a":1}`},
	} {
		r := chatRequest{variables: json.RawMessage(c.variables), effort: c.effort}
		if got := string(r.templateVariables()); got != c.want {
			t.Errorf("%s with effort %q: got %s, want %s", c.variables, c.effort, got, c.want)
		}
	}
}
