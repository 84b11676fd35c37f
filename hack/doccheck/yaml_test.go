package doccheck

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

var yamlFence = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// decode reads a SpeculativeServer, whole or only its spec; an unknown field is an error.
func decode(text string) error {
	b, err := yaml.ToJSON([]byte(text))
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(&v1alpha1.SpeculativeServer{})
}

// Every server that a page shows has only fields that there are, of their types.
func TestServersInPages(t *testing.T) {
	checked := 0
	for _, page := range pages(t) {
		content, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range yamlFence.FindAllSubmatchIndex(content, -1) {
			text := string(content[m[2]:m[3]])
			if !strings.Contains(text, "kind: SpeculativeServer") && !strings.HasPrefix(text, "spec:\n") {
				continue
			}
			checked++
			if err := decode(text); err != nil {
				t.Errorf("%s:%d: %v", page, 1+bytes.Count(content[:m[0]], []byte("\n")), err)
			}
		}
	}
	if checked < 3 {
		t.Errorf("only %d servers were found in the pages", checked)
	}
}

func TestDecode(t *testing.T) {
	for text, want := range map[string]string{
		"spec:\n  replicas: 2\n":                 "",
		"spec:\n  replica: 2\n":                  `unknown field "replica"`,
		"spec:\n  replicas: many\n":              "cannot unmarshal",
		"spec: {extraArgs: [--admin-only=true]}": "",
	} {
		err := decode(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want one with %q", text, err, want)
		}
	}
}
