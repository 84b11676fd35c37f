package doccheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
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
