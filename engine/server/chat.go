package server

import (
	"errors"
	"net/http"
	"strings"

	"github.com/outrider-dev/outrider/engine/chat"
	"github.com/outrider-dev/outrider/engine/chat/answer"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// Values of Config.ToolParser and Config.ReasoningParser beside the formats.
const (
	ParserAuto = "auto"
	ParserNone = "none"
	Think      = "think"
)

// chatCompletions is POST /v1/chat/completions.
func (s *Server) chatCompletions(w http.ResponseWriter, r *http.Request) {
	s.generate(w, r, s.chatCompletion)
}

// chatCompletion reads the body of POST /v1/chat/completions.
func (s *Server) chatCompletion(body []byte) (*job, *apiError) {
	c, err := parseChat(body, s.cfg.MaxChoices)
	if err != nil {
		return nil, err
	}
	if err := checkModel(c.model, s.backend.Info().ServedModelName); err != nil {
		return nil, err
	}
	template, tok, err := s.talks()
	if err != nil {
		return nil, err
	}
	text, err := renderChat(template, c.input)
	if err != nil {
		return nil, err
	}
	shape := s.shape(c, template, text)
	if len(c.tools) > 0 && shape.Tools == "" {
		return nil, invalid("tools", "it is not known how this model writes calls of tools: start the server with --tool-call-parser, one of %s", strings.Join(answer.ToolFormats(), ", "))
	}
	begin := c.forced(&shape, template.Source())
	window := s.backend.Info().ContextLength
	ids, err := s.encode(prompt{text: text + begin}, tok, c.special, window)
	if err != nil {
		param := chatPrompt
		err.Param = &param
		return nil, err
	}
	if err := s.setForm(c, &shape, template.Source(), begin, tok); err != nil {
		return nil, err
	}
	j := &job{c: &c.completion, id: "chatcmpl-" + newID(), object: "chat.completion", chunks: "chat.completion.chunk", prompt: chatPrompt}
	if j.reqs, err = s.requests(j.c, j.id, [][]int32{ids}, window-len(ids)); err != nil {
		return nil, err
	}
	shown := shownTokens(tok, shape)
	for i, req := range j.reqs {
		req.Shown = shown
		r, err := newChatRenderer(c, req, i, tok, shape, begin)
		if err != nil {
			return nil, newError(http.StatusInternalServerError, typeServer, "", err.Error())
		}
		j.renderers = append(j.renderers, r)
	}
	return j, nil
}

// chatPrompt is the parameter that a chat's prompt is made of.
const chatPrompt = "messages"

// talks is what chats need of the model.
func (s *Server) talks() (*chat.Template, *tokenizer.Tokenizer, *apiError) {
	template, err := s.backend.ChatTemplate()
	if err != nil {
		return nil, nil, invalid("messages", "%s", err.Error())
	}
	tok := s.backend.Tokenizer()
	if tok == nil {
		return nil, nil, invalid("messages", "this model has no tokenizer, and so no text to chat in: use /v1/completions with token ids")
	}
	return template, tok, nil
}

// renderChat makes the prompt.
func renderChat(template *chat.Template, in chat.Input) (string, *apiError) {
	text, err := template.Render(in)
	var wrong *chat.InputError
	if errors.As(err, &wrong) {
		return "", invalid(wrong.Param, "%s", wrong.Message)
	}
	if err != nil {
		return "", newError(http.StatusInternalServerError, typeServer, "", err.Error())
	}
	return text, nil
}

// shape is what the answer to a prompt looks like.
func (s *Server) shape(c *chatRequest, template *chat.Template, text string) answer.Config {
	tools, think := answer.Detect(template.Source())
	if s.cfg.ToolParser != ParserAuto {
		tools = strings.TrimPrefix(s.cfg.ToolParser, ParserNone)
	}
	if s.cfg.ReasoningParser != ParserAuto {
		think = s.cfg.ReasoningParser == Think
	}
	shape := answer.Config{Think: think, Thinking: think && strings.HasSuffix(strings.TrimSpace(text), "<think>")}
	if len(c.tools) > 0 {
		shape.Tools, shape.Names = tools, map[string]bool{}
		for _, t := range c.tools {
			shape.Names[t.Function.Name] = true
		}
	}
	return shape
}

// forced is the begin of the answer that tool_choice asks for, which becomes
// part of the prompt; empty if the model decides.
func (c *chatRequest) forced(shape *answer.Config, template string) string {
	if c.choice != toolsRequired && c.choice != toolsNamed {
		return ""
	}
	name := c.named
	if len(c.tools) == 1 {
		name = c.tools[0].Function.Name
	}
	begin := answer.Opening(shape.Tools, name, template)
	if shape.Thinking {
		begin = "\n</think>\n\n" + begin
	}
	return begin
}

// shownTokens are the special tokens that the parts of an answer are told by.
func shownTokens(tok *tokenizer.Tokenizer, shape answer.Config) []int32 {
	var ids []int32
	for _, marker := range answer.Markers(shape.Tools, shape.Think) {
		if id, ok := tok.TokenID(marker); ok && tok.IsSpecial(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// finishCalls is finish_reason where the answer has calls.
const finishCalls scheduler.FinishReason = "tool_calls"
