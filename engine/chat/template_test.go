package chat

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// goldenCase is a request of cases.json.
type goldenCase struct {
	Name      string          `json:"name"`
	Messages  json.RawMessage `json:"messages"`
	Tools     json.RawMessage `json:"tools"`
	Documents json.RawMessage `json:"documents"`
	Variables json.RawMessage `json:"chat_template_kwargs"`
	Generate  *bool           `json:"add_generation_prompt"`
}

func readJSON(t testing.TB, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

func (c goldenCase) input() Input {
	return Input{
		Messages: c.Messages, Tools: c.Tools, Documents: c.Documents, Variables: c.Variables,
		AddGenerationPrompt: c.Generate == nil || *c.Generate, Now: time.Date(2025, 3, 7, 9, 5, 2, 0, time.UTC),
	}
}

// Prompts are those of Jinja2, byte for byte; see make_goldens.py. CHAT_GOLDENS
// names another folder with templates that it rendered.
func TestGoldens(t *testing.T) {
	folder := "testdata"
	if f := os.Getenv("CHAT_GOLDENS"); f != "" {
		folder = f
	}
	var cases []goldenCase
	readJSON(t, filepath.Join(folder, "cases.json"), &cases)
	inputs := map[string]goldenCase{}
	for _, c := range cases {
		inputs[c.Name] = c
	}
	var goldens []struct {
		Template    string  `json:"template"`
		Case        string  `json:"case"`
		Text        *string `json:"text"`
		Error       *string `json:"error"`
		PythonError *string `json:"python_error"`
	}
	readJSON(t, filepath.Join(folder, "goldens.json"), &goldens)
	if len(goldens) < 50 {
		t.Fatalf("only %d goldens", len(goldens))
	}
	templates := map[string]*Template{}
	for _, g := range goldens {
		t.Run(g.Template+"/"+g.Case, func(t *testing.T) {
			template := templates[g.Template]
			if template == nil {
				source, err := os.ReadFile(filepath.Join(folder, "templates", g.Template+".jinja"))
				if err != nil {
					t.Fatal(err)
				}
				if template, err = Parse(string(source), map[string]string{"bos_token": "<s>", "eos_token": "</s>"}); err != nil {
					t.Fatal(err)
				}
				templates[g.Template] = template
			}
			out, err := template.Render(inputs[g.Case].input())
			var refused *InputError
			switch {
			case g.PythonError != nil: // Python's types fail where ours go on: no prompt to compare
			case g.Error != nil:
				if !errors.As(err, &refused) || !strings.Contains(err.Error(), *g.Error) {
					t.Errorf("got %q, %v: want the error %q", out, err, *g.Error)
				}
			case err != nil:
				t.Error(err)
			case out != *g.Text:
				t.Error(cmp.Diff(*g.Text, out))
			}
		})
	}
}
