package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// A completionRequest is the body of POST /v1/completions. Temperature is always
// sent: 0 is greedy decoding, and the API's own default is 1.
type completionRequest struct {
	Model         string         `json:"model"`
	Prompt        string         `json:"prompt"`
	MaxTokens     int            `json:"max_tokens"`
	Temperature   float64        `json:"temperature"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options,omitempty"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// A chunk is one event of the stream.
type chunk struct {
	Choices []struct {
		Text         string `json:"text"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
	Speculation *struct {
		Verifies int `json:"verifies"`
		Drafted  int `json:"drafted"`
		Accepted int `json:"accepted"`
	} `json:"speculation"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// A result is what the stream said of the whole completion.
type result struct {
	tokens, verifies, drafted, accepted int
	finish                              string
}

// summary says what the completion took. The accept length counts the target's
// own token of each verify pass.
func (r result) summary(took time.Duration) string {
	s := fmt.Sprintf("%d tokens in %.2f s (%.0f tokens/s)", r.tokens, took.Seconds(), float64(r.tokens)/max(took.Seconds(), 1e-3))
	if r.verifies > 0 {
		s += fmt.Sprintf("; %d of %d drafted tokens accepted in %d verify passes, accept length %.2f",
			r.accepted, r.drafted, r.verifies, 1+float64(r.accepted)/float64(r.verifies))
	}
	return s
}

// stream sends the request and writes the text to out as it arrives.
func stream(ctx context.Context, base string, req completionRequest, out io.Writer) (result, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return result{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return result{}, fmt.Errorf("completion: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return result{}, fmt.Errorf("completion: the server answered %s: %s", resp.Status, strings.TrimSpace(string(b)))
	}
	return readStream(resp.Body, out)
}

// readStream reads server-sent events up to "data: [DONE]", as OpenAI's API
// streams completions, and writes their text to out. A stream that ends without
// it is an error: the text may be cut short.
func readStream(in io.Reader, out io.Writer) (result, error) {
	var r result
	s := bufio.NewScanner(in)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		data, ok := strings.CutPrefix(s.Text(), "data:")
		if !ok {
			continue // a comment, or the empty line after an event
		}
		data = strings.TrimSpace(data)
		if data == "[DONE]" {
			return r, nil
		}
		var c chunk
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return r, fmt.Errorf("completion: event %.100q: %w", data, err)
		}
		if c.Error != nil {
			return r, fmt.Errorf("completion: the server ended the stream: %s", c.Error.Message)
		}
		for _, choice := range c.Choices {
			if _, err := io.WriteString(out, choice.Text); err != nil {
				return r, err
			}
			if choice.FinishReason != "" {
				r.finish = choice.FinishReason
			}
		}
		if c.Usage != nil {
			r.tokens = c.Usage.CompletionTokens
		}
		if c.Speculation != nil {
			r.verifies, r.drafted, r.accepted = c.Speculation.Verifies, c.Speculation.Drafted, c.Speculation.Accepted
		}
	}
	if err := s.Err(); err != nil {
		return r, fmt.Errorf("completion: %w", err)
	}
	return r, errors.New("completion: the stream ended before data: [DONE]")
}
