package server

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestPaths: each path has a summary for the reference, no summary is of a path
// that there is not, and the guide explains each.
func TestPaths(t *testing.T) {
	doc, err := os.ReadFile("../../docs/engine-api.md")
	if err != nil {
		t.Fatal(err)
	}
	// In the guide names are in capitals, and the profiles of Go are one path.
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`(?:GET|PUT|POST) .*?) \\| (?:public|admin|both)").FindAllStringSubmatch(string(doc), -1) {
		for _, p := range regexp.MustCompile("`(\\w+ [^`?]+)").FindAllStringSubmatch(row[1], -1) {
			documented[strings.Replace(p[1], "/NAME", "/{name...}", 1)] = true
		}
	}
	for _, p := range Paths() {
		key := p.Method + " " + p.Path
		if p.Summary == "" {
			t.Errorf("no summary of %s", key)
		}
		if !p.Public && !p.Admin {
			t.Errorf("%s is on no port", key)
		}
		guide := strings.Replace(key, "{$}", "", 1)
		if strings.HasPrefix(p.Path, "/debug/pprof/") {
			guide = "GET /debug/pprof/"
		}
		if !documented[guide] {
			t.Errorf("docs/engine-api.md does not list %s", guide)
		}
		delete(documented, guide)
		if strings.HasPrefix(p.Path, "/debug/pprof/") {
			documented[guide] = true
		}
	}
	delete(documented, "GET /debug/pprof/")
	for p := range documented {
		t.Errorf("docs/engine-api.md lists %s, which there is not", p)
	}
	if got, want := len(Paths()), len(summaries); got != want {
		t.Errorf("%d paths and %d summaries", got, want)
	}
}
