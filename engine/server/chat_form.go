package server

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/outrider-dev/outrider/engine/chat/answer"
	"github.com/outrider-dev/outrider/engine/grammar"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// setForm finds the form of a chat's answer: that of a call where tool_choice
// asks for one, else what the request says, after the reasoning. begin is what
// the prompt has of the answer already.
func (s *Server) setForm(c *chatRequest, shape *answer.Config, template, begin string, tok *tokenizer.Tokenizer) *apiError {
	switch {
	case begin != "":
		calls, err := s.calls(c, shape.Tools, template, tok)
		if err != nil {
			return err
		}
		return c.form.require("tool_choice", after(calls, begin))
	case c.form.param == "":
		return nil
	case len(c.tools) > 0:
		if shape.Tools != answer.Hermes && shape.Tools != answer.Llama3 {
			return invalid(c.form.param, "%s beside tools is not supported for the calls that this model writes: leave one of them out, or set tool_choice to \"none\" or \"required\"", c.form.param)
		}
		calls, err := s.calls(c, shape.Tools, template, tok)
		if err != nil {
			return err
		}
		c.form.source = grammar.Either(c.form.source, after(calls, ""))
	}
	if shape.Think {
		c.form.source = reasoned(c.form.source, shape.Thinking)
		c.form.shown = shownTokens(tok, answer.Config{Think: true})
	}
	return nil
}

// reasoned is the form of an answer after its reasoning, which the prompt may
// have begun, and which there need not be otherwise.
func reasoned(form grammar.Source, begun bool) grammar.Source {
	open, shut := answer.ThinkMarks()
	rest := grammar.Concat(grammar.Until(shut), grammar.Regex(`\s{0,4}`), form)
	if begun {
		return rest
	}
	return grammar.Either(form, grammar.Concat(grammar.Regex(`\s{0,4}`), grammar.Text(open), rest))
}

// maxCalls is the most calls of one answer, where its form is that of calls.
const maxCalls = 16

// calls are the forms of an answer that calls tools.
type calls struct {
	first []callText // one for each tool that may be called
	frame answer.Frame
	again bool // there may be several
}

// callText is a call: a text, and the arguments after it.
type callText struct {
	open      string
	arguments grammar.Source
}

func (s *Server) calls(c *chatRequest, format, template string, tok *tokenizer.Tokenizer) (calls, *apiError) {
	all := calls{frame: answer.FrameOf(format, template), again: c.parallel && c.choice != toolsNamed}
	for i := range c.tools {
		t := &c.tools[i]
		if c.choice == toolsNamed && t.Function.Name != c.named {
			continue
		}
		arguments, err := s.arguments(t, i, tok)
		if err != nil {
			return calls{}, err
		}
		all.first = append(all.first, callText{answer.Opening(format, t.Function.Name, template), arguments})
	}
	return all, nil
}

// arguments is the form of a tool's arguments: what its parameters describe. A
// schema that is not understood is an error where the tool is strict, and any
// object where it is not.
func (s *Server) arguments(t *tool, i int, tok *tokenizer.Tokenizer) (grammar.Source, *apiError) {
	parameters := t.Function.Parameters
	if len(parameters) == 0 || isNull(parameters) {
		parameters = json.RawMessage(`{"type":"object"}`)
	}
	if _, typed := schemaType(parameters); !typed { // {} would be any value
		rest := bytes.TrimSpace(parameters[1:])
		if parameters = json.RawMessage(`{"type":"object"`); rest[0] != '}' {
			parameters = append(parameters, ',')
		}
		parameters = append(parameters, rest...)
	}
	src := grammar.Schema(parameters)
	if _, err := s.grammars(tok, nil).Get(src); err == nil {
		return src, nil
	} else if t.Function.Strict {
		return src, invalid("tools", "tools[%d].function.parameters: %v", i, err)
	}
	return grammar.JSONObject(), nil
}

// after is the form of the answer after its begin, which stands in the prompt.
func after(c calls, begin string) grammar.Source {
	form := func(opened func(open string) string) grammar.Source {
		all := make([]grammar.Source, len(c.first))
		for i, t := range c.first {
			all[i] = grammar.Concat(grammar.Text(opened(t.open)), t.arguments, grammar.Text(c.frame.Close))
		}
		return grammar.Either(all...)
	}
	first := form(func(open string) string { return open[overlap(begin, open):] })
	if !c.again || c.frame.More == "" {
		return grammar.Concat(first, grammar.Text(c.frame.End))
	}
	list := ""
	if c.frame.End != "" { // the list is opened once
		list, _, _ = strings.Cut(c.first[0].open, "{")
	}
	further := form(func(open string) string { return c.frame.More + strings.TrimPrefix(open, list) })
	return grammar.Concat(first, grammar.Repeat(further, 0, maxCalls-1), grammar.Text(c.frame.End))
}

// overlap is how much of open a text ends with.
func overlap(text, open string) int {
	for n := min(len(text), len(open)); n > 0; n-- {
		if strings.HasSuffix(text, open[:n]) {
			return n
		}
	}
	return 0
}
