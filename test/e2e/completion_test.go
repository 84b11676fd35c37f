//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// golden is what the reference implementation generates, from
// engine/internal/golden/gocode.json.
type golden struct {
	Text      string  `json:"text"`
	PromptIDs []int32 `json:"prompt_ids"`
	OutputIDs []int32 `json:"output_ids"`
	Output    string  `json:"output_text"`
}

func (e *env) goldens() []golden {
	e.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "engine", "internal", "golden", "gocode.json"))
	if err != nil {
		e.Fatal(err)
	}
	var file struct {
		Speculation []golden `json:"speculation"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		e.Fatal(err)
	}
	if len(file.Speculation) == 0 {
		e.Fatal("the golden file has no speculation cases")
	}
	return file.Speculation
}

// completion is the part of an answer that the tests look at.
type completion struct {
	Choices []struct {
		Text           string  `json:"text"`
		FinishReason   string  `json:"finish_reason"`
		TokenIDs       []int32 `json:"token_ids"`
		PromptTokenIDs []int32 `json:"prompt_token_ids"`
	} `json:"choices"`
	Usage struct {
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
	Speculation struct {
		Verifies int `json:"verifies"`
		Drafted  int `json:"drafted"`
		Accepted int `json:"accepted"`
	} `json:"speculation"`
}

// address is the server's Service, as clients in the cluster reach it.
func (e *env) address() string {
	e.Helper()
	var svc corev1.Service
	if err := k8s.Get(e.Context(), types.NamespacedName{Namespace: e.namespace, Name: "s"}, &svc); err != nil {
		e.Fatal(err)
	}
	return fmt.Sprintf("http://%s:8000", svc.Spec.ClusterIP)
}

// complete asks for a greedy completion through the Service.
func complete(ctx context.Context, address, prompt string, tokens int) (*completion, error) {
	return completeWith(ctx, http.DefaultClient, address, prompt, tokens)
}

// completeWith is complete through a client of one's own.
func completeWith(ctx context.Context, client *http.Client, address, prompt string, tokens int) (*completion, error) {
	body, err := json.Marshal(map[string]any{
		"model": "gocode-7m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "return_token_ids": true,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true // a new connection each time, so that kube-proxy chooses again
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	var c completion
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("%w in %s", err, text)
	}
	if len(c.Choices) != 1 {
		return nil, fmt.Errorf("%d choices in %s", len(c.Choices), text)
	}
	return &c, nil
}

// checkGolden is checkTexts, once all engines are of the depth asked for, and
// tells whether there were drafts.
func (e *env) checkGolden(speculated bool) {
	e.Helper()
	if e.server().Spec.Speculation.Adaptation != nil && speculated {
		e.within(3*time.Minute, "engines of the depth asked for", func() string {
			f := e.server().Status.Speculation
			if f == nil {
				return "not asked yet"
			}
			if n, of, ok := strings.Cut(f.Confirmed, "/"); !ok || n != of || n == "0" {
				return "confirmed by " + f.Confirmed
			}
			return ""
		})
	}
	for text, accepted := range e.checkTexts() {
		if (accepted > 0) != speculated {
			e.Errorf("%q: %d tokens accepted from drafts; speculation is %v", text, accepted, speculated)
		}
	}
}

// checkTexts asks for each golden completion and compares text and token ids. It
// returns how many tokens of each prompt's answer came from drafts.
func (e *env) checkTexts() map[string]int {
	e.Helper()
	address, accepted := e.address(), map[string]int{}
	for _, g := range e.goldens() {
		c, err := complete(e.Context(), address, g.Text, len(g.OutputIDs))
		if err != nil {
			e.Errorf("%q: %v", g.Text, err)
			continue
		}
		choice := c.Choices[0]
		if choice.Text != g.Output || !slices.Equal(choice.TokenIDs, g.OutputIDs) || !slices.Equal(choice.PromptTokenIDs, g.PromptIDs) {
			e.Errorf("%q was completed with %q, %v\nwant %q, %v", g.Text, choice.Text, choice.TokenIDs, g.Output, g.OutputIDs)
		}
		if c.Usage.CompletionTokens != len(g.OutputIDs) {
			e.Errorf("%q: usage has %d tokens, want %d", g.Text, c.Usage.CompletionTokens, len(g.OutputIDs))
		}
		accepted[g.Text] = c.Speculation.Accepted
	}
	return accepted
}
