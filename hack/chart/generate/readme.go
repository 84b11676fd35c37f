package generate

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed readme.md.in
var intro string

func newReader(raw []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(raw)) }

// readme is the chart's README: readme.md.in and a table of the values, from the
// comments that begin with "# --".
func readme(values []byte) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(values, &doc); err != nil {
		return nil, fmt.Errorf("values.yaml: %w", err)
	}
	if len(doc.Content) != 1 {
		return nil, errors.New("values.yaml: want a mapping")
	}
	var b strings.Builder
	b.WriteString(intro)
	b.WriteString("\n| value | default | |\n| --- | --- | --- |\n")
	if err := rows(&b, "", doc.Content[0]); err != nil {
		return nil, err
	}
	return []byte(b.String()), nil
}

// rows writes a row for each value that has a comment; what has none must hold
// some that do.
func rows(b *strings.Builder, path string, m *yaml.Node) error {
	for i := 0; i+1 < len(m.Content); i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		name := path + key.Value
		text := ""
		for line := range strings.Lines(key.HeadComment) {
			if t, ok := strings.CutPrefix(strings.TrimSpace(line), "# -- "); ok {
				text = t
			}
		}
		if text == "" {
			if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
				return fmt.Errorf("values.yaml, line %d: %s has no comment: write \"# -- what it does\" above it", key.Line, name)
			}
			if err := rows(b, name+".", value); err != nil {
				return err
			}
			continue
		}
		var v any
		if err := value.Decode(&v); err != nil {
			return fmt.Errorf("values.yaml, %s: %w", name, err)
		}
		shown, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("values.yaml, %s: %w", name, err)
		}
		fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", name, shown, strings.ReplaceAll(text, "|", `\|`))
	}
	return nil
}
