package server

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/fetch"
)

var weatherTools = []any{
	fields{"type": "function", "function": fields{"name": "get_weather", "description": "Get it", "parameters": fields{"type": "object", "properties": fields{"city": fields{"type": "string"}}}}},
	fields{"type": "function", "function": fields{"name": "now", "description": "The time", "parameters": fields{"type": "object", "properties": fields{}}}},
}

func called(name, arguments string) (c toolCall) {
	c.Type = "function"
	c.Function.Name, c.Function.Arguments = name, arguments
	return c
}

func ask(text string) fields { return fields{"messages": []fields{{"role": "user", "content": text}}} }

// Whole answers and streams of them say the same, in every format.
func TestChat(t *testing.T) {
	tools := fields{"tools": weatherTools}
	for _, c := range []struct {
		name, template, say string
		more                fields
		want                said
	}{
		{"text", "qwen25", "Hello <there> 日本!\n", nil, said{Content: "Hello <there> 日本!\n", Finish: "stop"}},
		{"length", "qwen25", strings.Repeat("word ", 50), fields{"max_completion_tokens": 3, "ignore_eos": true}, said{Content: "word word", Finish: "length"}},
		{"stop", "qwen25", "one two three", fields{"stop": " th"}, said{Content: "one two", Finish: "stop"}},
		{"tools are not looked for", "qwen25", `<tool_call>{"name": "now"}</tool_call>`, nil, said{Content: `<tool_call>{"name": "now"}</tool_call>`, Finish: "stop"}},
		{"none", "qwen25", `<tool_call>{"name": "now"}</tool_call>`, tools.with(fields{"tool_choice": "none"}), said{Content: `<tool_call>{"name": "now"}</tool_call>`, Finish: "stop"}},
		{"reasoning", "qwen3", "<think>\nhm\n</think>\n\nYes.", nil, said{Reasoning: "hm", Content: "Yes.", Finish: "stop"}},
		{"reasoning begun by the prompt", "deepseek", "hm</think>Yes.", fields{"chat_template_kwargs": fields{"thinking": true}}, said{Reasoning: "hm", Content: "Yes.", Finish: "stop"}},
		{"reasoning and calls", "qwen3", "<think>hm</think>Look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", tools,
			said{Reasoning: "hm", Content: "Look.", Finish: "tool_calls", Calls: []toolCall{called("get_weather", `{"city": "Zürich"}`), called("now", "{}")}}},
		{"one call only", "qwen3", "<tool_call>{\"name\": \"now\"}</tool_call><tool_call>{\"name\": \"now\"}</tool_call>", tools.with(fields{"parallel_tool_calls": false}),
			said{Finish: "tool_calls", Calls: []toolCall{called("now", "{}")}}},
		{"a call that is cut off", "qwen3", "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a b c d e f g h i j k l m n o p", tools.with(fields{"max_tokens": 40}),
			said{Finish: "length"}},
		{"llama", "llama3", `{"name": "get_weather", "parameters": {"city": "Bern"}}`, tools, said{Finish: "tool_calls", Calls: []toolCall{called("get_weather", `{"city": "Bern"}`)}}},
		{"mistral", "mistral", `[TOOL_CALLS] [{"name": "now", "arguments": {}}]`, tools, said{Finish: "tool_calls", Calls: []toolCall{called("now", "{}")}}},
		{"kimi", "kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>", tools,
			said{Finish: "tool_calls", Calls: []toolCall{called("now", "{}")}}},
		{"deepseek", "deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", tools,
			said{Finish: "tool_calls", Calls: []toolCall{called("now", "{}")}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			model, in := newScripted(t, c.template, nil)
			model.says(c.say)
			f := ask("Hi").with(c.more).with(fields{"return_token_ids": true, "logprobs": true, "top_logprobs": 2})
			whole, used := in.chat(t, f)
			streamed, usedStreaming := in.chatStream(t, f)
			if d := cmp.Diff(whole, streamed); d != "" {
				t.Errorf("whole and streamed differ: %s", d)
			}
			if used.CompletionTokens != usedStreaming.CompletionTokens || used.CompletionTokens != whole[0].IDs || len(whole[0].Tokens) != whole[0].IDs {
				t.Errorf("usage %d and %d, %d token ids, %d log probabilities: want the same", used.CompletionTokens, usedStreaming.CompletionTokens, whole[0].IDs, len(whole[0].Tokens))
			}
			got := whole[0]
			got.IDs, got.Tokens = 0, nil
			if c.name == "a call that is cut off" {
				if len(got.Calls) != 1 || !strings.HasPrefix(got.Calls[0].Function.Arguments, `{"city": "a b`) {
					t.Errorf("got %+v", got)
				}
				got.Calls = nil
			}
			if c.name == "length" {
				got.Content = strings.TrimSpace(got.Content)
				c.want.Content = strings.TrimSpace(strings.Join(whole[0].Tokens, ""))
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("%s", d)
			}
		})
	}
}

// A call that tool_choice asks for is begun by the prompt.
func TestForcedCalls(t *testing.T) {
	named := fields{"type": "function", "function": fields{"name": "get_weather"}}
	for _, c := range []struct {
		template string
		choice   any
		prompt   string // its end
		say      string
		want     toolCall
	}{
		{"qwen25", named, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": ", `{"city": "Bern"}}`, called("get_weather", `{"city": "Bern"}`)},
		{"qwen25", "required", "<tool_call>\n{\"name\": \"", `now", "arguments": {}}</tool_call>`, called("now", `{}`)},
		{"llama3", named, `{"name": "get_weather", "parameters": `, `{"city": "Bern"}}`, called("get_weather", `{"city": "Bern"}`)},
		{"mistral", named, `[TOOL_CALLS] [{"name": "get_weather", "arguments": `, `{"city": "Bern"}}]`, called("get_weather", `{"city": "Bern"}`)},
		{"kimi-k2", named, "functions.get_weather:0<|tool_call_argument_begin|>", `{"city": "Bern"}<|tool_call_end|>`, called("get_weather", `{"city": "Bern"}`)},
		{"kimi-k2", "required", "<|tool_call_begin|>functions.", `now:0<|tool_call_argument_begin|>{}`, called("now", `{}`)},
		{"deepseek", named, "get_weather<｜tool▁sep｜>", `{"city": "Bern"}`, called("get_weather", `{"city": "Bern"}`)},
	} {
		model, in := newScripted(t, c.template, nil)
		model.says(c.say)
		f := ask("Hi").with(fields{"tools": weatherTools, "tool_choice": c.choice})
		whole, _ := in.chat(t, f)
		if !strings.HasSuffix(model.lastPrompt(), c.prompt) {
			t.Errorf("%s, %v: the prompt ends with %q: want %q", c.template, c.choice, model.lastPrompt()[max(0, len(model.lastPrompt())-80):], c.prompt)
		}
		want := []said{{Finish: "tool_calls", Calls: []toolCall{c.want}}}
		if d := cmp.Diff(want, whole); d != "" {
			t.Errorf("%s, %v: %s", c.template, c.choice, d)
		}
		if streamed, _ := in.chatStream(t, f); !cmp.Equal(whole, streamed) {
			t.Errorf("%s, %v: whole and streamed differ: %s", c.template, c.choice, cmp.Diff(whole, streamed))
		}
	}
}

// A forced call comes after the reasoning, which it ends.
func TestForcedCallEndsReasoning(t *testing.T) {
	model, in := newScripted(t, "deepseek", nil)
	model.says(`{}`)
	f := ask("Hi").with(fields{"tools": weatherTools[1:], "tool_choice": "required", "chat_template_kwargs": fields{"thinking": true}})
	whole, _ := in.chat(t, f)
	if want := []said{{Finish: "tool_calls", Calls: []toolCall{called("now", "{}")}}}; !cmp.Equal(want, whole) || !strings.Contains(model.lastPrompt(), "<think>\n</think>\n\n<｜tool▁calls▁begin｜>") {
		t.Errorf("got %+v of prompt %q", whole, model.lastPrompt())
	}
}

func TestChatRefusals(t *testing.T) {
	_, in := newScripted(t, "qwen25", nil)
	_, bare := newScripted(t, "smollm2", nil)
	with := func(field string) string {
		return `{"model":"gocode-7m","messages":[{"role":"user","content":"x"}],` + field + `}`
	}
	tool := `{"type":"function","function":{"name":"f"}}`
	for name, c := range map[string]struct {
		in             *instance
		body           string
		param, message string
	}{
		"no messages":      {in, `{"model":"gocode-7m"}`, "messages", "messages is missing"},
		"no model":         {in, `{"messages":[]}`, "model", "model is missing"},
		"empty messages":   {in, `{"model":"gocode-7m","messages":[]}`, "messages", "at least one message"},
		"image":            {in, `{"model":"gocode-7m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, "messages", "messages[0].content[0] is not a text"},
		"prompt":           {in, with(`"prompt":"x"`), "prompt", "there is no parameter"},
		"best_of":          {in, with(`"best_of":2`), "best_of", "there is no parameter"},
		"functions":        {in, with(`"functions":[]`), "functions", "there is no parameter"},
		"top_logprobs":     {in, with(`"top_logprobs":2`), "top_logprobs", "logprobs is false"},
		"many logprobs":    {in, with(`"logprobs":true,"top_logprobs":21`), "top_logprobs", "to 20"},
		"logprobs number":  {in, with(`"logprobs":2`), "logprobs", "true or false"},
		"two limits":       {in, with(`"max_tokens":1,"max_completion_tokens":2`), "max_tokens", "leave max_tokens out"},
		"choice, no tools": {in, with(`"tool_choice":"required"`), "tool_choice", "there are no tools"},
		"unknown choice":   {in, with(`"tool_choice":"maybe"`), "tool_choice", `allowed are "auto"`},
		"unknown tool":     {in, with(`"tools":[` + tool + `],"tool_choice":{"type":"function","function":{"name":"g"}}`), "tool_choice", `names "g"`},
		"tools object":     {in, with(`"tools":{}`), "tools", "allowed is a list"},
		"tool of a type":   {in, with(`"tools":[{"type":"web_search"}]`), "tools", "tools[0] is not"},
		"tool's name":      {in, with(`"tools":[{"type":"function","function":{"name":"a b"}}]`), "tools", "tools[0] is not"},
		"tool's case":      {in, with(`"tools":[{"Type":"function","Function":{"NAME":"f"}}]`), "tools", "tools[0] is not"},
		"tool's type 2x":   {in, with(`"tools":[{"type":"function","type":"function","function":{"name":"f"}}]`), "tools", `tools[0]: "type" is given twice`},
		"tool's name 2x":   {in, with(`"tools":[{"type":"function","function":{"name":"f","name":"g"}}]`), "tools", `tools[0]: "name" is given twice`},
		"tool, a number":   {in, with(`"tools":[5]`), "tools", "tools[0] is not"},
		"strict":           {in, with(`"tools":[{"type":"function","function":{"name":"f","strict":"yes"}}]`), "tools", "tools[0]: function.strict is"},
		"parameters":       {in, with(`"tools":[{"type":"function","function":{"name":"f","parameters":5}}]`), "tools", "tools[0].function.parameters is 5"},
		"array parameters": {in, with(`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"array"}}}]`), "tools", `of the type "object"`},
		"choice's case":    {in, with(`"tools":[` + tool + `],"tool_choice":{"Type":"function","Function":{"Name":"f"}}`), "tool_choice", "allowed are"},
		"choice twice":     {in, with(`"tools":[` + tool + `],"tool_choice":{"type":"function","function":{"name":"g","name":"f"}}`), "tool_choice", "allowed are"},
		"two alike":        {in, with(`"tools":[` + tool + `,` + tool + `]`), "tools", "an earlier one has"},
		"unknown format":   {bare, with(`"tools":[` + tool + `]`), "tools", "--tool-call-parser"},
		"kwargs":           {in, with(`"chat_template_kwargs":[]`), "chat_template_kwargs", "allowed is an object"},
		"both ends":        {in, with(`"continue_final_message":true`), "continue_final_message", "set add_generation_prompt to false"},
		"too long":         {in, `{"model":"gocode-7m","messages":[{"role":"user","content":"` + strings.Repeat("a b ", 20000) + `"}]}`, "messages", "16384"},
		"stream options":   {in, with(`"stream_options":{}`), "stream_options", "stream is false"},
		"audio":            {in, with(`"modalities":["audio"]`), "modalities", "not supported"},
		"temperature":      {in, with(`"temperature":9`), "temperature", "0 to 2"},
	} {
		resp, b := do(t, http.MethodPost, c.in.public.URL+"/v1/chat/completions", "application/json", strings.NewReader(c.body))
		var r chatReply
		if err := json.Unmarshal(b, &r); err != nil || resp.StatusCode != http.StatusBadRequest || r.Error == nil {
			t.Errorf("%s: status %d, %s", name, resp.StatusCode, b)
			continue
		}
		if r.Error.Param == nil || *r.Error.Param != c.param || !strings.Contains(r.Error.Message, c.message) {
			t.Errorf("%s: got %s: want an error of %s with %q", name, b, c.param, c.message)
		}
	}
}

// A model without a template, or with one that cannot be used, says so, and what to do.
func TestNoChatTemplate(t *testing.T) {
	source, err := fetch.Open(t.Context(), "builtin:gocode-7m", fetch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for config, message := range map[string]string{
		`{}`:                              "no chat template: start the server with --chat-template FILE",
		`{"chat_template": "{% if x %}"}`: "chat template: line 1: if has no end",
	} {
		folder := filepath.Join(t.TempDir(), "model")
		if err := os.CopyFS(folder, source.Files); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "tokenizer_config.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		in := newInstance(t, engine.Config{Model: folder}, nil)
		resp, b := do(t, http.MethodPost, in.public.URL+"/v1/chat/completions", "application/json", ask("Hi").reader(t))
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), message) {
			t.Errorf("%s: status %d: %s: want %q", config, resp.StatusCode, b, message)
		}
		in.post(t, fields{"prompt": "func ", "max_tokens": 2})
	}
}

// On a real engine a chat is the completion of its prompt.
func TestChatIsACompletion(t *testing.T) {
	const template = "{% for m in messages %}// {{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}func {% endif %}"
	in := newInstance(t, engine.Config{ChatTemplate: template}, nil)
	f := fields{"seed": 7, "temperature": 0.8, "n": 2, "max_tokens": 20, "frequency_penalty": 0.2, "return_token_ids": true}
	text := in.post(t, f.with(fields{"prompt": "// user: sort\nfunc ", "add_special_tokens": false}))
	said, used := in.chat(t, ask("sort").with(f))
	streamed, _ := in.chatStream(t, ask("sort").with(f))
	if !cmp.Equal(said, streamed) {
		t.Errorf("whole and streamed differ: %s", cmp.Diff(said, streamed))
	}
	for i, c := range text.Choices {
		if said[i].Content != c.Text || said[i].IDs != len(c.TokenIDs) {
			t.Errorf("choice %d: got %q: want %q", i, said[i].Content, c.Text)
		}
	}
	if used.PromptTokens != text.Usage.PromptTokens {
		t.Errorf("prompt of %d tokens: want %d", used.PromptTokens, text.Usage.PromptTokens)
	}
}

func TestTokenize(t *testing.T) {
	model, in := newScripted(t, "qwen25", nil)
	post := func(path string, f any) (int, tokenized, string) {
		t.Helper()
		b, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		resp, b := do(t, http.MethodPost, in.public.URL+path, "application/json", strings.NewReader(string(b)))
		var got struct {
			tokenized
			Prompt string
		}
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusOK {
			got.Prompt = string(b)
		}
		return resp.StatusCode, got.tokenized, got.Prompt
	}
	tok := model.Tokenizer()
	_, got, _ := post("/tokenize", fields{"prompt": "func main", "return_token_strs": true})
	if want := tok.Encode("func main", true); !slices.Equal(got.Tokens, want) || got.Count != len(want) || len(got.TokenStrs) != len(want) || got.MaxModelLen != 16384 {
		t.Errorf("got %+v: want %v", got, want)
	}
	_, plain, _ := post("/tokenize", fields{"prompt": "func main", "add_special_tokens": false})
	if want := tok.Encode("func main", false); !slices.Equal(plain.Tokens, want) {
		t.Errorf("got %v: want %v", plain.Tokens, want)
	}
	_, chat, _ := post("/tokenize", ask("Hi"))
	_, _, text := post("/detokenize", fields{"tokens": chat.Tokens})
	if want := "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"; text != want {
		t.Errorf("got %q: want %q", text, want)
	}
	for _, c := range []struct {
		path    string
		f       fields
		message string
	}{
		{"/tokenize", fields{}, "either prompt"},
		{"/tokenize", ask("x").with(fields{"prompt": "x"}), "either prompt"},
		{"/tokenize", fields{"prompt": 5}, "allowed is a string"},
		{"/tokenize", fields{"prompt": "x", "temperature": 1}, "has no"},
		{"/tokenize", fields{"model": "other", "prompt": "x"}, "does not exist"},
		{"/detokenize", fields{}, "tokens is missing"},
		{"/detokenize", fields{"tokens": "x"}, "allowed is a list"},
		{"/detokenize", fields{"tokens": []int{4096}}, "0 to 4095"},
		{"/detokenize", fields{"prompt": "x"}, "has no"},
	} {
		if status, _, text := post(c.path, c.f); status < 400 || status > 404 || !strings.Contains(text, c.message) {
			t.Errorf("%s %v: status %d, %s: want %q", c.path, c.f, status, text, c.message)
		}
	}
}

// Neither bodies of chats nor of tokenize bring the server down.
func FuzzChat(f *testing.F) {
	f.Add(`{"model":"gocode-7m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto"}`)
	f.Add(`{"model":"gocode-7m","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}],"chat_template_kwargs":{"a":1},"reasoning_effort":"low"}`)
	f.Fuzz(func(t *testing.T, body string) {
		c, err := parseChat([]byte(body), 4)
		if err == nil && !json.Valid(c.input.Messages) {
			t.Errorf("messages %q", c.input.Messages)
		}
		if err == nil && len(c.input.Variables) > 0 && !json.Valid(c.input.Variables) {
			t.Errorf("variables %q", c.input.Variables)
		}
	})
}
