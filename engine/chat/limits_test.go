package chat

import (
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

const hello = `[{"role":"user","content":"hello"}]`

func parse(t testing.TB, source string) *Template {
	t.Helper()
	template, err := Parse(source, map[string]string{"bos_token": "<s>"})
	if err != nil {
		t.Fatal(err)
	}
	return template
}

func TestWrongTemplates(t *testing.T) {
	for name, c := range map[string]struct{ source, message string }{
		"open if":          {"a\n{% if x %}", "line 2: if has no end"},
		"open tag":         {"{{ x", "line 1: a tag has no end"},
		"open string":      {"{{ 'x }}", "a string has no end"},
		"open comment":     {"{# x", "a comment has no end"},
		"open raw":         {"{% raw %}", "raw has no end"},
		"endif alone":      {"\n\n{% endif %}", "line 3: statement \"endif\""},
		"wrong end":        {"{% for x in y %}{% endif %}", "\"endif\" is not supported here"},
		"else alone":       {"{% else %}", "else is not within if or for"},
		"break alone":      {"{% break %}", "break is not within for"},
		"do":               {"{% do x.append(1) %}", "statement \"do\""},
		"include":          {"{% include 'x' %}", "statement \"include\""},
		"unknown filter":   {"{{ x | nope }}", "there is no filter \"nope\""},
		"unknown test":     {"{{ x is nope }}", "there is no test \"nope\""},
		"empty":            {"{{ }}", "an expression is empty"},
		"brackets":         {"{{ (x] ) ) }}", "brackets do not match"},
		"deep brackets":    {"{{ " + strings.Repeat("(", 5000) + " }}", "brackets do not match"},
		"deep blocks":      {strings.Repeat("{% if x %}", 5000), "more than 100 blocks"},
		"long tag":         {"{{ x" + strings.Repeat(" + x", 50000) + " }}", "a tag is longer"},
		"large":            {strings.Repeat("x", 2<<20), "bytes: allowed are"},
		"recursive":        {"{% for x in y recursive %}{% endfor %}", "recursive is not supported"},
		"three targets":    {"{% for x, y, z in w %}{% endfor %}", "one or two names"},
		"strange sign":     {"{{ x ; y }}", "\";\" is not allowed"},
		"syntax":           {"{{ x y }}", "chat template: jinja parse"},
		"set of two":       {"{% set a, b = 1, 2 %}", "set takes one name"},
		"call of no macro": {"{% call x %}{% endcall %}", "call needs the form"},
	} {
		if _, err := Parse(c.source, nil); err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: got %v: want an error with %q", name, err, c.message)
		}
	}
}

// A template that would go on for ever, or fill the memory, ends with an error.
func TestLimits(t *testing.T) {
	for name, c := range map[string]struct{ source, message string }{
		"endless loops":   {"{% for a in range(100000) %}{% for b in range(100000) %}{{ b }}{% endfor %}{% endfor %}", "allowed"},
		"silent loops":    {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "longer than 2s"},
		"a huge range":    {"{% for a in range(1000000000000) %}{% endfor %}", "range has more than"},
		"a recursion":     {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "macros called each other"},
		"a growing text":  {"{% set ns = namespace(x='0123456789abcdef') %}{% for i in range(30) %}{% set ns.x = ns.x.replace('0', ns.x) %}{% endfor %}", "replace makes more than"},
		"a panic":         {"{{ 'x' * -1 }}", "negative Repeat count"},
		"a wide indent":   {"{{ 'x' | indent(1000000000) }}", "indent: width"},
		"raise_exception": {"{{ raise_exception('no such thing') }}", "the chat template refuses this request: no such thing"},
		"lines":           {"\n\n{{ 1 }}\n{{ x.y() }}", "after its line 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			_, err := parse(t, c.source).Render(Input{Messages: json.RawMessage(hello)})
			var wrong *InputError
			if !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.message) {
				t.Errorf("got %v: want an error with %q", err, c.message)
			}
			if took := time.Since(begin); took > 2*time.Minute {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestWrongInputs(t *testing.T) {
	template := parse(t, "{% for m in messages %}{{ m.content }}{% endfor %}")
	for name, c := range map[string]struct {
		in             Input
		param, message string
	}{
		"nothing":       {Input{}, "messages", "messages is missing"},
		"empty":         {Input{Messages: json.RawMessage(`[]`)}, "messages", "at least one message"},
		"no list":       {Input{Messages: json.RawMessage(`{}`)}, "messages", "messages is {}: allowed is a list of at least one message"},
		"a number":      {Input{Messages: json.RawMessage(`1`)}, "messages", "messages is 1: allowed is a list of at least one message"},
		"no object":     {Input{Messages: json.RawMessage(`["x"]`)}, "messages", `messages[0] is "x": allowed is an object with role and content`},
		"role":          {Input{Messages: json.RawMessage(`[{"role":[5]}]`)}, "messages", "messages[0].role is [5]: allowed is a string"},
		"no role":       {Input{Messages: json.RawMessage(`[{"content":"x"}]`)}, "messages", "messages[0] needs a role"},
		"no content":    {Input{Messages: json.RawMessage(`[{"role":"user"}]`)}, "messages", "messages[0] has no content"},
		"number":        {Input{Messages: json.RawMessage(`[{"role":"user","content":1}]`)}, "messages", "messages[0].content is 1: allowed is a string or a list of parts"},
		"image":         {Input{Messages: json.RawMessage(`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]`)}, "messages", "messages[0].content[0] is not a text"},
		"nameless call": {Input{Messages: json.RawMessage(`[{"role":"assistant","tool_calls":[{"function":{}}]}]`)}, "messages", "messages[0].tool_calls[0] needs a function"},
		"half a pair":   {Input{Messages: json.RawMessage(`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":\"\\ud800\"}"}}]}]`)}, "messages", `messages[0].tool_calls[0].function.arguments has the escape \ud800 at byte 6, which is half of a surrogate pair`},
		"half a name":   {Input{Messages: json.RawMessage(`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"\\udc00\":1}"}}]}]`)}, "messages", `arguments has the escape \udc00 at byte 2`},
		"deep":          {Input{Messages: json.RawMessage(`[{"role":"user","content":"x","y":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}]`)}, "messages", "nested deeper"},
		"tools":         {Input{Messages: json.RawMessage(hello), Tools: json.RawMessage(`{}`)}, "tools", "tools is {}: allowed is a list"},
		"variables":     {Input{Messages: json.RawMessage(hello), Variables: json.RawMessage(`[]`)}, "chat_template_kwargs", "chat_template_kwargs is []: allowed is an object"},
		"documents":     {Input{Messages: json.RawMessage(hello), Documents: json.RawMessage(`5`)}, "documents", "documents is 5: allowed is a list"},
		"calls":         {Input{Messages: json.RawMessage(`[{"role":"assistant","tool_calls":5}]`)}, "messages", "messages[0].tool_calls is 5: allowed is a list"},
		"a long one":    {Input{Messages: json.RawMessage(`"` + strings.Repeat("é", 100) + `"`)}, "messages", `messages is "` + strings.Repeat("é", 29) + "…: allowed"},
		"twice":         {Input{Messages: json.RawMessage(`[{"role":"user","role":"system","content":"x"}]`)}, "messages", `"role" is given twice`},
		"tool twice":    {Input{Messages: json.RawMessage(hello), Tools: json.RawMessage(`[{"a":{"b":1,"b":2}}]`)}, "tools", `"b" is given twice`},
		"kwargs twice":  {Input{Messages: json.RawMessage(hello), Variables: json.RawMessage(`{"a":1,"a":2}`)}, "chat_template_kwargs", `"a" is given twice`},
		"own":           {Input{Messages: json.RawMessage(hello), Variables: json.RawMessage(`{"a":1,"messages":[]}`)}, "chat_template_kwargs", `has "messages", which is a parameter`},
		"own tools":     {Input{Messages: json.RawMessage(hello), Variables: json.RawMessage(`{"tools":[]}`)}, "chat_template_kwargs", `has "tools", which is a parameter`},
		"helper":        {Input{Messages: json.RawMessage(hello), Variables: json.RawMessage(`{"_or_show":1}`)}, "chat_template_kwargs", "names do not begin"},
		"no final":      {Input{Messages: json.RawMessage(`[{"role":"assistant","content":""}]`), ContinueFinal: true}, "continue_final_message", "no text to go on from"},
	} {
		_, err := template.Render(c.in)
		var wrong *InputError
		if !errors.As(err, &wrong) || wrong.Param != c.param || !strings.Contains(wrong.Message, c.message) {
			t.Errorf("%s: got %v: want an error of %s with %q", name, err, c.param, c.message)
		}
	}
}

func TestContinueFinalMessage(t *testing.T) {
	template := parse(t, "{% for m in messages %}<{{ m.role }}>{{ m.content | trim if m.role == 'assistant' else m.content }}<end>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
	plain := parse(t, "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}")
	messages := func(last string) json.RawMessage {
		return json.RawMessage(`[{"role":"user","content":"go on"},{"role":"assistant","content":"` + last + `"}]`)
	}
	for _, c := range []struct {
		template   *Template
		last, want string
	}{
		{template, "The answer", "<user>go on<end>\n<assistant>The answer"},
		{template, " The answer is ", "<user>go on<end>\n<assistant>The answer is"},
		{plain, "The answer is ", "<user>go on<end>\n<assistant>The answer is "},
		{plain, "go on", "<user>go on<end>\n<assistant>go on"},
	} {
		out, err := c.template.Render(Input{Messages: messages(c.last), ContinueFinal: true})
		if err != nil || out != c.want {
			t.Errorf("%q: got %q, %v: want %q", c.last, out, err, c.want)
		}
	}
}

func TestParts(t *testing.T) {
	parts := json.RawMessage(`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`)
	for name, c := range map[string]struct{ source, want string }{
		"strings": {"{% for m in messages %}{{ m.content }}{% endfor %}", "a\nb"},
		"parts":   {"{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}{% endfor %}", "(a)(b)"},
		"fails":   {"{% for m in messages %}{{ m.content.strip() }}{% endfor %}", "a\nb"},
	} {
		if out, err := parse(t, c.source).Render(Input{Messages: parts}); err != nil || out != c.want {
			t.Errorf("%s: got %q, %v: want %q", name, out, err, c.want)
		}
	}
}

func TestLoad(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	const show = "{{ bos_token }}|{{ eos_token }}|"
	for name, c := range map[string]struct {
		files fstest.MapFS
		tools bool
		want  string
	}{
		"config":            {fstest.MapFS{"tokenizer_config.json": file(`{"chat_template":"` + show + `config","bos_token":"<b>","eos_token":{"content":"<e>"}}`)}, false, "<b>|<e>|config"},
		"jinja wins":        {fstest.MapFS{"tokenizer_config.json": file(`{"chat_template":"config"}`), "chat_template.jinja": file("jinja"), "chat_template.json": file(`{"chat_template":"json"}`)}, false, "jinja"},
		"json":              {fstest.MapFS{"tokenizer_config.json": file(`{"bos_token":"<b>","eos_token":null}`), "chat_template.json": file(`{"chat_template":"` + show + `"}`)}, false, "<b>||"},
		"special map":       {fstest.MapFS{"special_tokens_map.json": file(`{"bos_token":"<m>","eos_token":{"content":"<e>"}}`), "chat_template.jinja": file(show)}, false, "<m>|<e>|"},
		"named":             {fstest.MapFS{"tokenizer_config.json": file(`{"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"{{ tools | length }} tools"}]}`)}, false, "plain"},
		"named, with tools": {fstest.MapFS{"tokenizer_config.json": file(`{"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"{{ tools | length }} tools"}]}`)}, true, "2 tools"},
	} {
		template, err := Load(c.files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		in := Input{Messages: json.RawMessage(hello)}
		if c.tools {
			in.Tools = json.RawMessage(`[{},{}]`)
		}
		if out, err := template.Render(in); err != nil || out != c.want {
			t.Errorf("%s: got %q, %v: want %q", name, out, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		files   fstest.MapFS
		message string
	}{
		"not JSON":   {fstest.MapFS{"tokenizer_config.json": file(`{`)}, "tokenizer_config.json: "},
		"a number":   {fstest.MapFS{"tokenizer_config.json": file(`{"chat_template":5}`)}, "neither a string nor a list"},
		"no default": {fstest.MapFS{"tokenizer_config.json": file(`{"chat_template":[{"name":"x","template":"y"}]}`)}, "none called \"default\""},
		"syntax":     {fstest.MapFS{"chat_template.jinja": file("{{")}, "line 1"},
	} {
		if _, err := Load(c.files); err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: got %v: want an error with %q", name, err, c.message)
		}
	}
	if _, err := Load(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no template at all: %v", err)
	}
}

// No template and no messages bring the process down, or hold it up.
func FuzzRender(f *testing.F) {
	for _, source := range []string{"{{ messages[0].content }}", "{% for m in messages %}{% set x = m | tojson %}{{ x }}{% endfor %}", "{%- macro m(a='b') -%}{{ a }}{%- endmacro -%}{{ m() }}", "{% raw %}{{{% endraw %}", "{# #}{{ 'x' is sameas 'y' }}"} {
		f.Add(source, hello)
	}
	f.Fuzz(func(t *testing.T, source, messages string) {
		template, err := Parse(source, nil)
		if err != nil {
			return
		}
		if _, err := template.Render(Input{Messages: json.RawMessage(messages), AddGenerationPrompt: true}); err != nil {
			var wrong *InputError
			if !errors.As(err, &wrong) {
				t.Errorf("an error of another type: %v", err)
			}
		}
	})
}
