// Package chat turns messages into a model's prompt by its own template, and a
// model's answer back into a message: its reasoning, its content and its calls
// of tools.
//
// Templates are Jinja as transformers renders it. github.com/ardanlabs/jinja
// computes them; this package rewrites a template before and supplies what the
// library does otherwise (see rewriter), so that prompts are the reference's,
// byte for byte. What it does not do is refused by name when the template is
// read: recursive loops, do, with, include, unknown filters and tests. Four
// things differ, which no known template relies on: a tuple shows as a list, **
// gives a float, a minus sign binds less than a filter, and a value that is
// none or undefined counts as an empty text or as nothing where Python would
// fail.
package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// Template is a model's chat template. It may be used from several goroutines.
type Template struct {
	source   string // of the default one
	plain    *compiled
	tools    *compiled         // for requests with tools, if there is one of its own
	special  map[string]string // bos_token, eos_token and the like
	parts    bool              // it takes a content that is a list of parts
	develops bool              // it knows the role developer
}

// compiled is one template ready to render.
type compiled struct {
	template *jinja.Template
	texts    []string
}

// Parse makes a Template of Jinja source. special are the special tokens that
// it may name, such as bos_token.
func Parse(source string, special map[string]string) (*Template, error) {
	return parseNamed(map[string]string{nameDefault: source}, special)
}

// Names of the templates of a model that has several.
const (
	nameDefault = "default"
	nameTools   = "tool_use"
)

func parseNamed(sources map[string]string, special map[string]string) (*Template, error) {
	source, ok := sources[nameDefault]
	if !ok {
		return nil, fmt.Errorf("chat template: there is none called %q", nameDefault)
	}
	t := &Template{source: source, special: special, develops: strings.Contains(source, "developer")}
	var err error
	if t.plain, err = compile(source); err != nil {
		return nil, err
	}
	if source, ok := sources[nameTools]; ok {
		if t.tools, err = compile(source); err != nil {
			return nil, fmt.Errorf("%s: %w", nameTools, err)
		}
	}
	t.parts = t.takesParts()
	return t, nil
}

func compile(source string) (c *compiled, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("chat template: %v", p)
		}
	}()
	rewritten, texts, err := rewrite(source)
	if err != nil {
		return nil, err
	}
	t, err := jinja.Compile(rewritten)
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	return &compiled{t, texts}, nil
}

// Source is the template's text.
func (t *Template) Source() string { return t.source }

// takesParts finds out, by trying, whether the template shows the text of a
// content that is a list of parts.
func (t *Template) takesParts() bool {
	const needle = "\u2063needle\u2063"
	in := Input{Messages: json.RawMessage(`[{"role":"user","content":[{"type":"text","text":"` + needle + `"}]}]`)}
	was := t.parts
	defer func() { t.parts = was }()
	t.parts = true
	out, err := t.Render(in)
	return err == nil && strings.Contains(out, needle) && !strings.Contains(out, `'type'`) && !strings.Contains(out, `"type"`)
}

// Input is what a prompt is made of.
type Input struct {
	Messages  json.RawMessage // a list of messages, as OpenAI has them
	Tools     json.RawMessage // a list of tools, or nil
	Documents json.RawMessage // a list, or nil
	Variables json.RawMessage // an object of more variables for the template, or nil

	AddGenerationPrompt bool // begin the answer
	ContinueFinal       bool // the prompt ends within the last message
	Now                 time.Time
}

// InputError says which part of an Input is wrong.
type InputError struct {
	Param   string // such as "messages"
	Message string
}

func (e *InputError) Error() string { return e.Message }

func wrong(param, format string, args ...any) error {
	return &InputError{param, fmt.Sprintf(format, args...)}
}

// Render is the prompt. The error is *InputError's if the input is wrong, or
// the template refuses it or fails on it.
func (t *Template) Render(in Input) (string, error) {
	vars := map[string]jinja.Value{}
	if err := t.variables(vars, in); err != nil {
		return "", err
	}
	if in.Now.IsZero() {
		in.Now = time.Now()
	}
	c := t.plain
	if t.tools != nil && vars["tools"].IsList() {
		c = t.tools
	}
	r := &rendering{texts: c.texts, now: in.Now, deadline: time.Now().Add(maxTime)}
	r.bind(vars)
	out, err := c.render(vars)
	if err != nil {
		var refused *raised
		if errors.As(err, &refused) {
			return "", wrong("messages", "the chat template refuses this request: %s", refused.message)
		}
		return "", wrong("messages", "the chat template failed (after its line %d): %v", r.line, err)
	}
	if in.ContinueFinal {
		return untilFinal(out, vars["messages"])
	}
	return out, nil
}

func (c *compiled) render(vars map[string]jinja.Value) (out string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return c.template.RenderValues(vars)
}

// own are the variables that a request has parameters for.
var own = []string{"messages", "tools", "documents", "add_generation_prompt"}

// variables fills in what the template sees. More variables cannot take the
// place of those that a request has parameters for.
func (t *Template) variables(vars map[string]jinja.Value, in Input) error {
	for name, token := range t.special {
		vars[name] = jinja.NewString(token)
	}
	if given(in.Variables) {
		more, err := parseJSON(in.Variables)
		switch {
		case err != nil:
			return wrong("chat_template_kwargs", "chat_template_kwargs is not a JSON object that a template can take: %v", err)
		case !more.IsDict():
			return wrong("chat_template_kwargs", "chat_template_kwargs is %s: allowed is an object", shown(more))
		}
		for _, name := range more.AsDict().Keys {
			if strings.HasPrefix(name, helper) {
				return wrong("chat_template_kwargs", "chat_template_kwargs has %q: names do not begin with %q", name, helper)
			}
			if slices.Contains(own, name) {
				return wrong("chat_template_kwargs", "chat_template_kwargs has %q, which is a parameter of the request itself: give it there", name)
			}
		}
		maps.Copy(vars, more.AsDict().Data)
	}
	vars["tools"], vars["documents"] = jinja.None(), jinja.None()
	for name, list := range map[string]json.RawMessage{"tools": in.Tools, "documents": in.Documents} {
		if !given(list) {
			continue
		}
		v, err := parseJSON(list)
		switch {
		case err != nil:
			return wrong(name, "%s is not JSON that a template can take: %v", name, err)
		case !v.IsList():
			return wrong(name, "%s is %s: allowed is a list", name, shown(v))
		}
		if v.AsList().Len() > 0 {
			vars[name] = v
		}
	}
	messages, err := t.messages(in.Messages)
	if err != nil {
		return err
	}
	vars["messages"] = messages
	vars["add_generation_prompt"] = jinja.NewBool(in.AddGenerationPrompt)
	return nil
}

func given(b json.RawMessage) bool {
	b = bytes.TrimSpace(b)
	return len(b) > 0 && !bytes.Equal(b, []byte("null"))
}

// untilFinal cuts a prompt after the text of its last message, as
// continue_final_message of transformers does.
func untilFinal(out string, messages jinja.Value) (string, error) {
	last := elements(messages)[messages.AsList().Len()-1]
	content := attribute(last, "content")
	if content.IsList() && content.AsList().Len() > 0 {
		content = attribute(content.AsList().Items[content.AsList().Len()-1], "text")
	}
	text := str(content)
	bare := strings.TrimFunc(text, isSpace)
	if !content.IsString() || bare == "" {
		return "", wrong("continue_final_message", "continue_final_message is true, but the last message has no text to go on from")
	}
	i := strings.LastIndex(out, bare)
	if i < 0 {
		return "", wrong("continue_final_message", "continue_final_message is true, but the chat template does not show the last message as it is")
	}
	if ahead := strings.TrimLeftFunc(text, isSpace); strings.HasPrefix(out[i:], ahead) && ahead == text {
		return out[:i+len(ahead)], nil
	}
	return out[:i+len(bare)], nil
}
