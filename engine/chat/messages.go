package chat

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ardanlabs/jinja"

	"github.com/outrider-dev/outrider/engine/internal/surrogate"
)

// messages reads OpenAI's messages for the template. Members that are not
// OpenAI's reach it unchanged.
func (t *Template) messages(raw json.RawMessage) (jinja.Value, error) {
	if !given(raw) {
		return jinja.Undefined(), wrong("messages", "messages is missing: give a list of at least one message")
	}
	v, err := parseJSON(raw)
	if err != nil {
		return v, wrong("messages", "messages is not JSON that a template can take: %v", err)
	}
	if !v.IsList() || v.AsList().Len() == 0 {
		return v, wrong("messages", "messages is %s: allowed is a list of at least one message", shown(v))
	}
	for i, m := range v.AsList().Items {
		if err := t.message(m, fmt.Sprintf("messages[%d]", i)); err != nil {
			return v, err
		}
	}
	return v, nil
}

func (t *Template) message(m jinja.Value, at string) error {
	role := attribute(m, "role")
	switch {
	case !m.IsDict():
		return wrong("messages", "%s is %s: allowed is an object with role and content", at, shown(m))
	case role.IsUndefined():
		return wrong("messages", "%s needs a role, such as \"user\"", at)
	case !role.IsString() || role.AsString() == "":
		return wrong("messages", "%s.role is %s: allowed is a string, such as \"user\"", at, shown(role))
	}
	d := m.AsDict()
	if role.AsString() == "developer" && !t.develops {
		d.Set("role", jinja.NewString("system"))
	}
	if err := t.content(d, at); err != nil {
		return err
	}
	calls := attribute(m, "tool_calls")
	switch {
	case calls.IsNone():
		d.Data["tool_calls"] = jinja.NewList(nil)
	case !calls.IsUndefined() && !calls.IsList():
		return wrong("messages", "%s.tool_calls is %s: allowed is a list", at, shown(calls))
	}
	for i, call := range elements(calls) {
		if err := arguments(call, fmt.Sprintf("%s.tool_calls[%d]", at, i)); err != nil {
			return err
		}
	}
	return nil
}

// content checks a message's content, and joins its parts for a template that
// takes only strings.
func (t *Template) content(d *jinja.Dict, at string) error {
	content, ok := d.Get("content")
	switch {
	case !ok && (d.Has("tool_calls") || d.Has("refusal")):
		d.Set("content", jinja.None())
		return nil
	case !ok:
		return wrong("messages", "%s has no content", at)
	case content.IsString(), content.IsNone():
		return nil
	case !content.IsList():
		return wrong("messages", "%s.content is %s: allowed is a string or a list of parts", at, shown(content))
	}
	var texts []string
	for i, part := range content.AsList().Items {
		text := attribute(part, "text")
		if refusal := attribute(part, "refusal"); refusal.IsString() {
			text = refusal
		}
		kind := attribute(part, "type")
		if !kind.IsString() || kind.AsString() != "text" && kind.AsString() != "refusal" || !text.IsString() {
			return wrong("messages", "%s.content[%d] is not a text: this server takes parts of the form {\"type\": \"text\", \"text\": …}", at, i)
		}
		texts = append(texts, text.AsString())
	}
	if !t.parts {
		d.Set("content", jinja.NewString(strings.Join(texts, "\n")))
	}
	return nil
}

// arguments makes the arguments of a call, which OpenAI has as a string of
// JSON, the object that templates expect.
func arguments(call jinja.Value, at string) error {
	function := attribute(call, "function")
	if !function.IsDict() || !attribute(function, "name").IsString() {
		return wrong("messages", "%s needs a function with a name", at)
	}
	text := attribute(function, "arguments")
	if !text.IsString() {
		return nil
	}
	if strings.TrimFunc(text.AsString(), isSpace) == "" {
		function.AsDict().Set("arguments", jinja.NewDict())
		return nil
	}
	written := []byte(text.AsString())
	if v, err := decodeJSON(written, false); err == nil && v.IsDict() {
		// The request's own escapes have been looked at; these are within one of its strings.
		if says := surrogate.Refusal(written, 0, int64(len(written))); says != "" {
			return wrong("messages", "%s.function.arguments %s", at, says)
		}
		function.AsDict().Set("arguments", v)
	}
	return nil
}
