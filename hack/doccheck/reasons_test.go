package doccheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// docs/troubleshooting.md explains every phase and every reason that a status can have.
func TestPhasesAndReasonsAreExplained(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	const types = "api/v1alpha1/speculativeserver_status.go"
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, types), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 || !strings.HasPrefix(spec.Names[0].Name, "Phase") && !strings.HasPrefix(spec.Names[0].Name, "Reason") {
			return true
		}
		lit, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			return true
		}
		value, err := strconv.Unquote(lit.Value)
		if err != nil {
			t.Fatal(err)
		}
		found++
		if !strings.Contains(string(page), "`"+value+"`") {
			t.Errorf("docs/troubleshooting.md does not explain %s", value)
		}
		return true
	})
	if found < 40 {
		t.Errorf("only %d phases and reasons were found in %s", found, types)
	}
}

// docs/troubleshooting.md has under each condition a row for each reason that the
// condition can have, and no other.
func TestReasonsByCondition(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "api/v1alpha1/speculativeserver_status.go"), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	word := regexp.MustCompile("[A-Za-z]+")
	conditions := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Condition") {
			return true
		}
		conditions++
		name := strings.TrimPrefix(spec.Names[0].Name, "Condition")
		_, text, _ := strings.Cut(spec.Doc.Text(), "Reasons:")
		reasons := word.FindAllString(text, -1)
		_, section, found := strings.Cut(string(page), "\n### "+name+"\n")
		if !found || len(reasons) == 0 {
			t.Errorf("%s: section found %v, reasons %v", name, found, reasons)
			return true
		}
		section, _, _ = strings.Cut(section, "\n#")
		var rows []string
		for line := range strings.SplitSeq(section, "\n") {
			if cells := strings.Split(line, "|"); len(cells) > 2 && strings.Contains(cells[1], "`") {
				rows = append(rows, word.FindAllString(cells[1], -1)...)
			}
		}
		for _, r := range reasons {
			if !slices.Contains(rows, r) {
				t.Errorf("docs/troubleshooting.md does not say under %s what to do about %s", name, r)
			}
		}
		for _, r := range rows {
			if !slices.Contains(reasons, r) {
				t.Errorf("docs/troubleshooting.md has %s under %s, which never has that reason", r, name)
			}
		}
		return true
	})
	if conditions < 5 {
		t.Errorf("only %d conditions were found", conditions)
	}
}
