package server

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// official is OpenAI's own client for Go, unmodified.
func (in *instance) official() openai.Client {
	return openai.NewClient(option.WithBaseURL(in.public.URL+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
}

func TestOfficialClientCompletes(t *testing.T) {
	in := sharedInstance(t)
	client := in.official()
	g := golden.Cases()[0]
	params := openai.CompletionNewParams{
		Model: servedName, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(g.Text)},
		MaxTokens: openai.Int(16), Temperature: openai.Float(0), Seed: openai.Int(1), Logprobs: openai.Int(1), N: openai.Int(1),
	}
	whole, err := client.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	text := whole.Choices[0].Text
	if !strings.HasPrefix(g.OutputText, text) || text == "" || len(whole.Choices[0].Logprobs.TokenLogprobs) != 16 || whole.Usage.CompletionTokens != 16 {
		t.Errorf("got %q, %+v", text, whole.Usage)
	}
	stream := client.Completions.NewStreaming(t.Context(), params)
	defer func() { _ = stream.Close() }()
	streamed := ""
	for stream.Next() {
		streamed += stream.Current().Choices[0].Text
	}
	if stream.Err() != nil || streamed != text {
		t.Errorf("streamed %q, %v: want %q", streamed, stream.Err(), text)
	}
	models, err := client.Models.List(t.Context())
	if err != nil || len(models.Data) != 1 || models.Data[0].ID != servedName {
		t.Errorf("models %+v, %v", models, err)
	}
}

func chatParams(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:    servedName,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage(text)},
	}
}

func TestOfficialClientChats(t *testing.T) {
	model, in := newScripted(t, "qwen25", nil)
	client := in.official()
	model.says("Good day, 世界!")
	params := chatParams("Hi")
	params.Logprobs, params.TopLogprobs = openai.Bool(true), openai.Int(2)
	whole, err := client.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	choice := whole.Choices[0]
	if choice.Message.Content != "Good day, 世界!" || choice.FinishReason != "stop" || len(choice.Logprobs.Content) != int(whole.Usage.CompletionTokens) {
		t.Errorf("got %+v", choice)
	}
	if top := choice.Logprobs.Content[0].TopLogprobs; len(top) != 2 || top[0].Token != choice.Logprobs.Content[0].Token {
		t.Errorf("alternatives %+v", top)
	}
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	defer func() { _ = stream.Close() }()
	all := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		if !all.AddChunk(stream.Current()) {
			t.Fatalf("chunk %s does not fit", stream.Current().RawJSON())
		}
	}
	if stream.Err() != nil || all.Choices[0].Message.Content != "Good day, 世界!" || all.Usage.CompletionTokens != whole.Usage.CompletionTokens {
		t.Errorf("streamed %+v, %v", all.ChatCompletion, stream.Err())
	}
}

func TestOfficialClientCallsTools(t *testing.T) {
	model, in := newScripted(t, "qwen25", nil)
	client := in.official()
	model.says("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>")
	params := chatParams("Weather in Bern and Rome?")
	params.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
		Name: "get_weather", Parameters: openai.FunctionParameters{"type": "object", "properties": map[string]any{"city": map[string]string{"type": "string"}}},
	})}
	whole, err := client.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	defer func() { _ = stream.Close() }()
	all := openai.ChatCompletionAccumulator{}
	finished := 0
	for stream.Next() {
		all.AddChunk(stream.Current())
		if _, ok := all.JustFinishedToolCall(); ok {
			finished++
		}
	}
	if stream.Err() != nil || finished != 2 {
		t.Errorf("%d calls, %v: want 2", finished, stream.Err())
	}
	for kind, m := range map[string]openai.ChatCompletion{"whole": *whole, "streamed": all.ChatCompletion} {
		c := m.Choices[0]
		if c.FinishReason != "tool_calls" || len(c.Message.ToolCalls) != 2 || c.Message.ToolCalls[1].Function.Arguments != `{"city": "Rome"}` || c.Message.ToolCalls[0].ID == "" {
			t.Errorf("%s: %+v", kind, c)
		}
	}
	// The calls and their results go back.
	model.says("Sunny in both.")
	params.Messages = append(params.Messages, whole.Choices[0].Message.ToParam())
	for _, call := range whole.Choices[0].Message.ToolCalls {
		params.Messages = append(params.Messages, openai.ToolMessage("sunny", call.ID))
	}
	last, err := client.Chat.Completions.New(t.Context(), params)
	if err != nil || last.Choices[0].Message.Content != "Sunny in both." {
		t.Fatalf("%+v, %v", last, err)
	}
	if want := "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response>"; !strings.Contains(model.lastPrompt(), want) {
		t.Errorf("the prompt is %q", model.lastPrompt())
	}
}

func TestOfficialClientSeesErrors(t *testing.T) {
	_, in := newScripted(t, "qwen25", nil)
	client := in.official()
	params := chatParams(strings.Repeat("a b ", 20000))
	_, err := client.Chat.Completions.New(t.Context(), params)
	var refused *openai.Error
	if !errors.As(err, &refused) || refused.StatusCode != http.StatusBadRequest || refused.Code != codeContextLength || refused.Param != "messages" {
		t.Errorf("a prompt that is too long: %v", err)
	}
	params = chatParams("Hi")
	params.Model = "gpt-4"
	if _, err = client.Chat.Completions.New(t.Context(), params); !errors.As(err, &refused) || refused.StatusCode != http.StatusNotFound || refused.Code != codeModelNotFound {
		t.Errorf("an unknown model: %v", err)
	}
}

// A client that gives up its stream frees the request.
func TestOfficialClientCancels(t *testing.T) {
	in := sharedInstance(t)
	client := in.official()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{
		Model: servedName, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("package main")}, MaxCompletionTokens: openai.Int(900), Temperature: openai.Float(1.9),
	})
	if !stream.Next() {
		t.Fatal(stream.Err())
	}
	cancel()
	_ = stream.Close()
	waitFor(t, "the request to end", func() bool { return testutil.ToFloat64(in.metrics.Running) == 0 })
}
