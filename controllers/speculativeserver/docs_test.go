package speculativeserver

import (
	"fmt"
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

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
)

// guide is docs/operator.md.
func guide(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "operator.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// section is what is under a heading of the guide, up to the next one.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, "\n"+heading+"\n")
	if !found {
		t.Fatalf("docs/operator.md has no heading %q", heading)
	}
	body, _, _ := strings.Cut(rest, "\n#")
	return body
}

// declared are the string constants of a Go file, by name, with the comment of each.
func declared(t *testing.T, file string) map[string]constant {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]constant{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			for i, name := range v.Names {
				if i >= len(v.Values) {
					continue
				}
				if lit, ok := v.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					value, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					found[name.Name] = constant{value, v.Doc.Text()}
				}
			}
		}
	}
	return found
}

type constant struct{ value, doc string }

// statusTypes declares conditions, reasons and phases.
var statusTypes = filepath.Join("..", "..", "api", "v1alpha1", "speculativeserver_status.go")

var word = regexp.MustCompile("[A-Za-z]+")

// TestConditionsAreDocumented: the guide's table of conditions has a row for each
// condition that the API declares, with the reasons that its comment lists, and
// each declared reason is one of a condition or of an event.
func TestConditionsAreDocumented(t *testing.T) {
	text := guide(t)
	rows := map[string]string{}
	for line := range strings.SplitSeq(section(t, text, "### Conditions"), "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			rows[strings.TrimSpace(cells[1])] = line
		}
	}
	constants := declared(t, statusTypes)
	known := map[string]bool{}
	conditions := 0
	for name, c := range constants {
		if !strings.HasPrefix(name, "Condition") {
			continue
		}
		conditions++
		row, ok := rows[c.value]
		if !ok {
			t.Errorf("docs/operator.md has no row for the condition %s", c.value)
			continue
		}
		_, reasons, found := strings.Cut(c.doc, "Reasons:")
		if !found {
			t.Errorf("the comment of %s lists no reasons", name)
		}
		for _, reason := range word.FindAllString(reasons, -1) {
			known[reason] = true
			if !strings.Contains(row, "`"+reason+"`") {
				t.Errorf("docs/operator.md does not have the reason %s in the row of the condition %s", reason, c.value)
			}
		}
		for _, cell := range regexp.MustCompile("`([A-Za-z]+)`").FindAllStringSubmatch(row, -1) {
			if !known[cell[1]] && !strings.Contains(reasons, cell[1]) {
				t.Errorf("docs/operator.md has a reason %s in the row of the condition %s, whose comment does not", cell[1], c.value)
			}
		}
	}
	if conditions < 5 {
		t.Fatalf("%d conditions found in %s", conditions, statusTypes)
	}
	events := section(t, text, "### Events")
	for name, c := range constants {
		if strings.HasPrefix(name, "Reason") && !known[c.value] && !strings.Contains(events, "`"+c.value+"`") {
			t.Errorf("%s is the reason of no condition by its comment, and of no event in docs/operator.md", name)
		}
	}
}

// TestPhasesAreDocumented: the guide's table of phases has every phase.
func TestPhasesAreDocumented(t *testing.T) {
	table := section(t, guide(t), "## Reading the status")
	var rows []string
	for line := range strings.SplitSeq(table, "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			rows = append(rows, word.FindAllString(cells[1], -1)...)
		}
	}
	phases := 0
	for name, c := range declared(t, statusTypes) {
		if strings.HasPrefix(name, "Phase") {
			phases++
			if !slices.Contains(rows, c.value) {
				t.Errorf("docs/operator.md has no row for the phase %s", c.value)
			}
		}
	}
	if phases < 10 {
		t.Fatalf("%d phases found", phases)
	}
}

// TestEventsAreDocumented: the reasons of events, other than phases, that the
// controller's source names are in the guide's table of events, and the other way
// round.
func TestEventsAreDocumented(t *testing.T) {
	events := section(t, guide(t), "### Events")
	named := map[string]string{} // reason: where
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{filepath.Join("decide", "*.go"), filepath.Join("rollout", "*.go")} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, more...)
	}
	constants := declared(t, statusTypes)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			for _, reason := range reasonsOf(n, constants) {
				named[reason] = file
			}
			// What transitions compares a condition's reason with is one that it reports.
			if sel, ok := n.(*ast.SelectorExpr); ok && filepath.Base(file) == "transitions.go" && strings.HasPrefix(sel.Sel.Name, "Reason") {
				if c, ok := constants[sel.Sel.Name]; ok {
					named[c.value] = file
				}
			}
			return true
		})
	}
	for _, o := range build.Optionals(&v1alpha1.SpeculativeServer{}) { // applyOptional makes the reason of the kind
		named["No"+o.Kind.Kind] = "optional.go"
	}
	for _, want := range []string{"PodCreated", "NoPodMonitor", "SpeculationBounds", "Forced", "DraftFailed"} {
		if named[want] == "" {
			t.Errorf("no event %s was found in the source: mend this test", want)
		}
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Za-z]+)`((?:, `[A-Za-z]+`)*) \\|").FindAllStringSubmatch(events, -1) {
		for _, reason := range word.FindAllString(m[1]+m[2], -1) {
			documented[reason] = true
		}
	}
	for reason, file := range named {
		if !documented[reason] {
			t.Errorf("%s reports events %s, and docs/operator.md does not say what they are", file, reason)
		}
	}
	for reason := range documented {
		if named[reason] == "" {
			t.Errorf("docs/operator.md has events %s, and the source has none", reason)
		}
	}
}

// reasonsOf are the reasons of events that a node of the source makes: the fourth
// argument of Eventf, the second of remove, and Reason of an Event or a Deletion.
func reasonsOf(n ast.Node, constants map[string]constant) []string {
	literal := func(e ast.Expr) []string {
		switch v := e.(type) {
		case *ast.BasicLit:
			if s, err := strconv.Unquote(v.Value); err == nil {
				return []string{s}
			}
		case *ast.SelectorExpr:
			if c, ok := constants[v.Sel.Name]; ok && strings.HasPrefix(v.Sel.Name, "Reason") {
				return []string{c.value}
			}
		}
		return nil // computed: a phase, or the reason of a deletion
	}
	switch v := n.(type) {
	case *ast.CallExpr:
		f, ok := v.Fun.(*ast.SelectorExpr)
		switch {
		case ok && f.Sel.Name == "Eventf" && len(v.Args) > 3:
			return literal(v.Args[3])
		case ok && f.Sel.Name == "remove" && len(v.Args) > 1:
			return literal(v.Args[1])
		}
	case *ast.CompositeLit:
		fields := map[string]ast.Expr{}
		for _, e := range v.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				fields[fmt.Sprint(kv.Key)] = kv.Value
			}
		}
		// In a list of events the type is left out; only an event has both fields.
		if name := fmt.Sprint(v.Type); name == "Event" || name == "Deletion" || v.Type == nil && fields["Type"] != nil {
			return literal(fields["Reason"])
		}
	}
	return nil
}

// TestColumnsAreDocumented: the guide shows what kubectl get prints.
func TestColumnsAreDocumented(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "api", "v1alpha1", "speculativeserver_types.go"))
	if err != nil {
		t.Fatal(err)
	}
	columns, wide := []string{"NAME"}, []string{}
	for _, m := range regexp.MustCompile(`printcolumn:name="([^"]+)",type=\w+(,priority=1)?`).FindAllStringSubmatch(string(b), -1) {
		if m[2] == "" {
			columns = append(columns, m[1])
		} else {
			wide = append(wide, m[1])
		}
	}
	if len(columns) < 5 || len(wide) < 2 {
		t.Fatalf("columns %v and %v found", columns, wide)
	}
	text := section(t, guide(t), "## Reading the status")
	var shown []string
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "NAME ") {
			shown = strings.Fields(line)
			break
		}
	}
	if !slices.Equal(shown, columns) {
		t.Errorf("docs/operator.md shows the columns %v, kubectl get %v", shown, columns)
	}
	for _, name := range wide {
		if !strings.Contains(text, name) {
			t.Errorf("docs/operator.md does not say what the column %s of -o wide is", name)
		}
	}
}
