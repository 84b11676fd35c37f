package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/outrider-dev/outrider/"

// rows are the product's packages from top to bottom, with all that lies under
// each. A package imports packages of lower rows, and of its own folder.
var rows = [][]string{
	{"cmd", "hack", "test"},
	{"engine/server", "controllers"},
	{"engine"},
	{"engine/scheduler", "engine/speculation"},
	{"engine/model", "engine/kvcache", "engine/sampling", "engine/grammar", "engine/chat"},
	{"engine/compute", "engine/weights", "engine/tokenizer"},
	{"engine/collective", "engine/telemetry", "engine/gpu", "engine/fetch"},
	{"engine/fault", "engine/internal/golden", "engine/internal/dl", "engine/internal/surrogate", "engine/internal/tick", "api", "internal/freeport", "internal/seed"},
}

// beside are the imports within a row, and the one direction that each has.
var beside = map[[2]string]bool{
	{"engine/scheduler", "engine/speculation"}: true, // the scheduler steps the speculation
	{"engine/model", "engine/kvcache"}:         true, // attention reads the pages
}

// pure are packages that decide from values alone.
var pure = []string{
	"controllers/speculativeserver/decide", "controllers/speculativeserver/failure", "controllers/speculativeserver/rollout",
	"controllers/speculativeserver/adapt", "controllers/speculativeserver/build",
}

// talks are imports that a pure package must not have.
var talks = []string{"net/http", "sigs.k8s.io/controller-runtime/pkg/client", "k8s.io/client-go/kubernetes", "k8s.io/client-go/rest"}

type pkg struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
	Deps                               []string
}

// list returns the packages of the module, with every build tag.
func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-tags", "apiserver,e2e,cuda", "-json=ImportPath,Imports,TestImports,XTestImports,Deps", module+"...")
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	var pkgs []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// place returns the row of a package and the entry there that it belongs to:
// the longest, since engine holds the packages under it.
func place(name string) (row int, entry string) {
	row = -1
	for i, r := range rows {
		for _, e := range r {
			if (name == e || strings.HasPrefix(name, e+"/")) && len(e) > len(entry) {
				row, entry = i, e
			}
		}
	}
	// engine alone is the package; a folder under it needs a row of its own.
	if entry == "engine" && name != "engine" {
		return -1, ""
	}
	return row, entry
}

// allowed says whether a package may import another of the module.
func allowed(from, to string) bool {
	i, a := place(from)
	j, b := place(to)
	return i < j || a == b || beside[[2]string{a, b}]
}

func TestImportsRunDownward(t *testing.T) {
	pkgs := list(t)
	if len(pkgs) < 10 {
		t.Fatalf("go list gave only %d packages", len(pkgs))
	}
	for _, p := range pkgs {
		from := strings.TrimPrefix(p.ImportPath, module)
		if row, _ := place(from); row < 0 {
			t.Errorf("package %s has no row: add it to rows in hack/imports, where the design has it", from)
			continue
		}
		for _, i := range p.Imports { // tests may look up: they drive a package as those above it do
			to, ours := strings.CutPrefix(i, module)
			if ours && !allowed(from, to) {
				t.Errorf("%s imports %s, which is not below it", from, to)
			}
		}
	}
}

// The operator knows the engine by its HTTP contract alone: either may be upgraded without the other.
func TestOperatorAndEngineAreApart(t *testing.T) {
	for _, p := range list(t) {
		from := strings.TrimPrefix(p.ImportPath, module)
		for _, d := range p.Deps {
			to, ours := strings.CutPrefix(d, module)
			if !ours {
				continue
			}
			operator := from == "cmd/outrider" || strings.HasPrefix(from, "controllers") || strings.HasPrefix(from, "api/")
			if operator && strings.HasPrefix(to, "engine") {
				t.Errorf("%s depends on %s: the operator must not need the engine's code", from, to)
			}
			engine := from == "cmd/outrider-engine" || strings.HasPrefix(from, "engine")
			if engine && (strings.HasPrefix(to, "controllers") || strings.HasPrefix(to, "api/")) {
				t.Errorf("%s depends on %s: the engine must not need the operator's code", from, to)
			}
		}
	}
}

// forTests are packages that only tests and the programs in hack import.
var forTests = []string{"engine/compute/cuda/emulation", "internal/freeport", "internal/seed", "engine/internal/golden"}

func TestProgramsHaveNothingForTests(t *testing.T) {
	pkgs, found := list(t), map[string]bool{}
	for _, p := range pkgs {
		from := strings.TrimPrefix(p.ImportPath, module)
		for _, f := range forTests {
			found[f] = found[f] || from == f
			if strings.HasPrefix(from, "cmd/") && slices.Contains(p.Deps, module+f) {
				t.Errorf("%s depends on %s, which is for tests", from, f)
			}
		}
	}
	for _, f := range forTests {
		if !found[f] {
			t.Errorf("there is no package %s", f)
		}
	}
}

func TestPurePackagesDoNotTalk(t *testing.T) {
	found := 0
	for _, p := range list(t) {
		from := strings.TrimPrefix(p.ImportPath, module)
		for _, name := range pure {
			if from != name {
				continue
			}
			found++
			for _, i := range p.Imports {
				for _, bad := range talks {
					if i == bad {
						t.Errorf("%s imports %s: it decides from values alone", from, i)
					}
				}
			}
		}
	}
	if found != len(pure) {
		t.Errorf("found %d of the %d packages that must be pure: correct the list", found, len(pure))
	}
}

// The rule itself, on cases whose answer is plain.
func TestAllowed(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"cmd/outrider-engine", "engine/server", true},
		{"engine/server", "engine", true},
		{"engine", "engine/server", false},
		{"engine/scheduler", "engine/sampling", true},
		{"engine/sampling", "engine/scheduler", false},
		{"engine/speculation", "engine/scheduler", false},
		{"engine/compute/cpu", "engine/compute", true},
		{"engine/compute", "engine/compute/cpu", true}, // Go itself refuses cycles
		{"engine/weights", "engine/tokenizer", false},
		{"engine/telemetry", "engine/fault", true},
		{"api/v1alpha1", "controllers/speculativeserver", false},
		{path.Join("engine", "model"), "api/v1alpha1", true}, // refused by TestOperatorAndEngineAreApart
	} {
		if got := allowed(c.from, c.to); got != c.want {
			t.Errorf("allowed(%s, %s) is %t, want %t", c.from, c.to, got, c.want)
		}
	}
}
