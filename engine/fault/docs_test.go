package fault

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// rows are a page's table rows that begin with exit codes and name reasons: the
// codes of each reason in backquotes.
func rows(t *testing.T, page string) map[string][]int {
	t.Helper()
	doc, err := os.ReadFile("../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(doc), "\n| exit code | ")
	if !ok {
		t.Fatalf("docs/%s has no table of exit codes", page)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	got := map[string][]int{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| ([^|]*)`).FindAllStringSubmatch(table, -1) {
		code, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range regexp.MustCompile("`([A-Za-z]+)`").FindAllStringSubmatch(m[2], -1) {
			got[r[1]] = append(got[r[1]], code)
		}
	}
	return got
}

// Every reason has words for the reference.
func TestReasonsHaveMeanings(t *testing.T) {
	for _, r := range Reasons() {
		if r.Meaning() == "" {
			t.Errorf("no words for %s", r)
		}
	}
	if len(meanings) != len(exitCodes) {
		t.Errorf("%d meanings of %d reasons", len(meanings), len(exitCodes))
	}
}

// The engine's reference has exactly the reasons that there are, each once and with its exit code.
func TestExitCodesAreDocumented(t *testing.T) {
	got, want := rows(t, "engine-api.md"), map[string][]int{}
	for r, code := range exitCodes {
		want[string(r)] = []int{code}
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("docs/engine-api.md has the reasons and exit codes %v\nwant %v", got, want)
	}
}

// The operator's guide says of every reason what happens, but for Internal, which is among the others.
func TestOperatorsGuideHasEachExitCode(t *testing.T) {
	got := rows(t, "operator.md")
	for r, code := range exitCodes {
		if want := []int{code}; r != Internal && !slices.Equal(got[string(r)], want) {
			t.Errorf("docs/operator.md has %s with the exit codes %v, want %v", r, got[string(r)], want)
		}
	}
}

// A reason without a code of its own would end as 1, anything else.
func TestEachReasonHasAnExitCode(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "fault.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v, ok := s.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				continue
			}
			lit, ok := v.Values[0].(*ast.BasicLit)
			if !ok {
				continue
			}
			name, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			found++
			if _, ok := exitCodes[Reason(name)]; !ok {
				t.Errorf("%s has no exit code", name)
			}
		}
	}
	if found != len(exitCodes) {
		t.Errorf("fault.go has %d reasons, and %d have an exit code", found, len(exitCodes))
	}
}
