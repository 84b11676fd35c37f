package server

import (
	"bytes"
	"encoding/json"
	"regexp"

	"github.com/outrider-dev/outrider/engine/chat"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// maxTools is the most tools of a request; OpenAI's.
const maxTools = 128

// Values of tool_choice.
const (
	toolsAuto     = "auto"
	toolsNone     = "none"
	toolsRequired = "required"
	toolsNamed    = "named" // an object names the one
)

// chatRequest is the body of POST /v1/chat/completions.
type chatRequest struct {
	completion
	input       chat.Input
	variables   json.RawMessage // chat_template_kwargs
	effort      string          // reasoning_effort
	maxNew      int             // max_completion_tokens
	withProbs   bool            // logprobs
	topLogprobs int

	tools    []tool
	choice   string // one of tools*
	named    string // the tool of toolsNamed
	parallel bool
}

// tool is a tool of a request; the template gets it as the client wrote it.
type tool struct {
	Type     string
	Function struct {
		Name       string
		Parameters json.RawMessage
		Strict     bool
	}
}

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// parseChat reads a body of at most maxChoices choices.
func parseChat(body []byte, maxChoices int) (*chatRequest, *apiError) {
	c := &chatRequest{parallel: true}
	c.completion = completion{n: 1, logprobs: scheduler.NoLogprobs, sampling: sampling.Params{Temperature: 1, TopP: 1}}
	c.input.AddGenerationPrompt = true
	err := eachField(body, func(name string, value json.RawMessage) *apiError {
		if name == "n" {
			return intField(name, value, 1, maxChoices, &c.n)
		}
		if done, err := c.setChat(name, value); done {
			return err
		}
		if done, err := c.set(name, value); done {
			return err
		}
		return ignored(name, value)
	})
	if err != nil {
		return nil, err
	}
	return c, c.checkChat()
}

// setChat takes a field that completions have not, or have otherwise.
func (c *chatRequest) setChat(name string, value json.RawMessage) (done bool, err *apiError) {
	switch name {
	case "messages":
		c.input.Messages = value
	case "documents":
		c.input.Documents = value
	case "tools":
		err = c.setTools(value)
	case "tool_choice":
		err = c.setToolChoice(value)
	case "parallel_tool_calls":
		err = boolField(name, value, &c.parallel)
	case "max_completion_tokens":
		err = intField(name, value, 1, unlimited, &c.maxNew)
	case "logprobs":
		err = boolField(name, value, &c.withProbs)
	case "top_logprobs":
		err = intField(name, value, 0, scheduler.MaxLogprobs, &c.topLogprobs)
	case "reasoning_effort":
		err = stringField(name, value, &c.effort)
	case "chat_template_kwargs":
		if !isNull(value) && value[0] != '{' {
			return true, invalid(name, "%s is %s: allowed is an object", name, shorten(string(value)))
		}
		c.variables = value
	case "add_generation_prompt":
		err = boolField(name, value, &c.input.AddGenerationPrompt)
	case "continue_final_message":
		err = boolField(name, value, &c.input.ContinueFinal)
	default:
		return false, nil
	}
	return true, err
}

func (c *chatRequest) setTools(value json.RawMessage) *apiError {
	if isNull(value) {
		return nil
	}
	if value[0] != '[' {
		return invalid("tools", "tools is %s: allowed is a list", shorten(string(value)))
	}
	all, err := elements("tools", value, maxTools)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for i, v := range all {
		t, err := readTool(v)
		switch {
		case err != nil:
			return invalid("tools", "tools[%d]: %s", i, err.Message)
		case t.Type != "function" || !toolName.MatchString(t.Function.Name):
			return invalid("tools", "tools[%d] is not {\"type\": \"function\", \"function\": {\"name\": …}} with a name of 1 to 64 letters, digits, \"_\", \"-\" and \".\"", i)
		case !ofObjects(t.Function.Parameters):
			return invalid("tools", "tools[%d].function.parameters is %s: allowed is a JSON schema of the type \"object\"", i, shorten(string(t.Function.Parameters)))
		}
		if seen[t.Function.Name] {
			return invalid("tools", "tools[%d] has the name %q, which an earlier one has", i, t.Function.Name)
		}
		seen[t.Function.Name] = true
		c.tools = append(c.tools, t)
	}
	c.input.Tools = value
	return nil
}

// readTool reads a tool, by exact names. Its other members are the template's.
func readTool(value json.RawMessage) (t tool, err *apiError) {
	if value[0] != '{' {
		return t, nil // which is no tool
	}
	return t, eachField(value, func(name string, value json.RawMessage) *apiError {
		switch {
		case name == "type":
			return stringField(name, value, &t.Type)
		case name != "function" || value[0] != '{':
			return nil
		}
		return eachField(value, func(name string, value json.RawMessage) *apiError {
			switch name {
			case "name":
				return stringField("function.name", value, &t.Function.Name)
			case "strict":
				return boolField("function.strict", value, &t.Function.Strict)
			case "parameters":
				t.Function.Parameters = value
			}
			return nil
		})
	})
}

// ofObjects tells whether a tool's parameters can be: arguments are an object.
func ofObjects(parameters json.RawMessage) bool {
	if len(parameters) == 0 || isNull(parameters) {
		return true
	}
	kind, typed := schemaType(parameters)
	return parameters[0] == '{' && (!typed || kind == `"object"`)
}

// schemaType is a schema's type, as it is written.
func schemaType(schema json.RawMessage) (kind string, typed bool) {
	_ = eachField(schema, func(name string, value json.RawMessage) *apiError {
		if name == "type" {
			kind, typed = string(value), true
		}
		return nil
	})
	return kind, typed
}

func (c *chatRequest) setToolChoice(value json.RawMessage) *apiError {
	var word string
	named, err := readTool(value)
	switch {
	case isNull(value):
	case json.Unmarshal(value, &word) == nil && (word == toolsAuto || word == toolsNone || word == toolsRequired):
		c.choice = word
	case err == nil && named.Type == "function" && named.Function.Name != "":
		c.choice, c.named = toolsNamed, named.Function.Name
	default:
		return invalid("tool_choice", "tool_choice is %s: allowed are \"auto\", \"none\", \"required\" and {\"type\": \"function\", \"function\": {\"name\": …}}", shorten(string(value)))
	}
	return nil
}

// checkChat reports what does not go together.
func (c *chatRequest) checkChat() *apiError {
	if c.choice == "" {
		c.choice = toolsAuto
	}
	if c.withProbs {
		c.logprobs = c.topLogprobs
	}
	known := false
	for _, t := range c.tools {
		known = known || t.Function.Name == c.named
	}
	switch {
	case c.model == "":
		return invalid("model", "model is missing: GET /v1/models lists what there is")
	case len(c.input.Messages) == 0:
		return invalid("messages", "messages is missing: give a list of at least one message")
	case c.topLogprobs > 0 && !c.withProbs:
		return invalid("top_logprobs", "top_logprobs is %d but logprobs is false: set logprobs to true", c.topLogprobs)
	case c.maxNew > 0 && c.maxTokens > 0 && c.maxNew != c.maxTokens:
		return invalid("max_tokens", "max_tokens is %d and max_completion_tokens is %d: leave max_tokens out", c.maxTokens, c.maxNew)
	case c.input.ContinueFinal && c.input.AddGenerationPrompt:
		return invalid("continue_final_message", "continue_final_message and add_generation_prompt are both true: set add_generation_prompt to false")
	case c.choice == toolsRequired && len(c.tools) == 0:
		return invalid("tool_choice", "tool_choice is \"required\" but there are no tools")
	case c.choice == toolsNamed && !known:
		return invalid("tool_choice", "tool_choice names %q, which is none of tools", shorten(c.named))
	}
	if c.maxNew > 0 {
		c.maxTokens = c.maxNew
	}
	if c.choice == toolsNone { // the model shall not think of calls
		c.tools, c.input.Tools = nil, nil
	}
	c.input.Variables = c.templateVariables()
	return c.check()
}

// templateVariables are chat_template_kwargs with reasoning_effort, unless it
// is there already.
func (c *chatRequest) templateVariables() json.RawMessage {
	if c.effort == "" || given(c.variables, "reasoning_effort") {
		return c.variables
	}
	effort, _ := json.Marshal(c.effort) // strings never fail
	all := append([]byte(`{"reasoning_effort":`), effort...)
	if rest := bytes.TrimSpace(c.variables); len(rest) > 0 && !isNull(rest) && first(rest) != '}' {
		all = append(append(all, ','), rest[1:]...)
		return all
	}
	return append(all, '}')
}

// given tells whether an object has a member.
func given(object json.RawMessage, member string) (has bool) {
	_ = eachField(object, func(name string, _ json.RawMessage) *apiError {
		has = has || name == member
		return nil
	})
	return has
}
