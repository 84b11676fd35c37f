package main

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The layer of the emulation runs tests of some packages by their names: all of those
// packages that are built for CUDA, or ask for the emulation, are among them.
func TestTheLayerHasAllTestsOfTheEmulation(t *testing.T) {
	script, err := os.ReadFile("../test.sh")
	if err != nil {
		t.Fatal(err)
	}
	whole, named := layer(t, string(script))
	found := map[string]int{} // by package
	for _, top := range []string{"engine", "cmd", "hack"} {
		err := filepath.WalkDir(filepath.Join("../..", top), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			tests := emulated(t, path)
			folder, err := filepath.Rel("../..", filepath.Dir(path))
			if err != nil {
				return err
			}
			folder = "./" + filepath.ToSlash(folder)
			found[folder] += len(tests)
			if slices.ContainsFunc(whole, func(w string) bool {
				parent, deep := strings.CutSuffix(w, "/...")
				return folder == parent || deep && strings.HasPrefix(folder, parent+"/")
			}) {
				return nil
			}
			for _, name := range tests {
				if !slices.Contains(named.packages, folder) || !named.tests.MatchString(name) {
					t.Errorf("%s: %s is none of the tests that hack/test.sh runs over the emulation: packages %q, names %s", path, name, named.packages, named.tests)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range named.packages {
		if found[p] == 0 {
			t.Errorf("hack/test.sh: %s has no test that is run over the emulation", p)
		}
	}
}

// byName are tests of packages that are run by their names.
type byName struct {
	tests    *regexp.Regexp
	packages []string
}

// layer reads what the layer runs in hack/test.sh: whole packages, and tests by name.
func layer(t *testing.T, script string) (whole []string, named byName) {
	t.Helper()
	_, body, _ := strings.Cut(script, "\ncuda-emulated() {\n")
	body, _, _ = strings.Cut(body, "\n}\n")
	packages := regexp.MustCompile(`\./[a-z/.-]+`)
	names := regexp.MustCompile(` -run '([^']*)'`)
	for line := range strings.Lines(body) {
		if !strings.Contains(line, "go test ") {
			continue
		}
		if m := names.FindStringSubmatch(line); m != nil {
			named = byName{regexp.MustCompile(m[1]), packages.FindAllString(line, -1)}
		} else if !strings.Contains(line, " -run ") { // those tests are of packages that run as a whole too
			whole = packages.FindAllString(line, -1)
		}
	}
	if len(whole) == 0 || named.tests == nil || len(named.packages) == 0 {
		t.Fatalf("hack/test.sh: the layer cuda-emulated has the packages %q and %+v", whole, named)
	}
	return whole, named
}

// emulated are the tests of a file that are built for CUDA or ask for the emulation.
func emulated(t *testing.T, path string) (tests []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	asks := slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return strings.HasSuffix(i.Path.Value, `/cuda/emulation"`) })
	for _, group := range f.Comments {
		for _, c := range group.List {
			if x, err := constraint.Parse(c.Text); err == nil && c.Pos() < f.Package {
				asks = asks || !x.Eval(func(tag string) bool { return tag != "cuda" })
			}
		}
	}
	if !asks {
		return nil
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") && fn.Name.Name != "TestMain" {
			tests = append(tests, fn.Name.Name)
		}
	}
	return tests
}
