package main

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

const root = "../.."

// stages reads the Dockerfile as BuildKit does.
func stages(t *testing.T) []instructions.Stage {
	t.Helper()
	f, err := os.Open(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	parsed, err := parser.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	all, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A setting is how containers of a stage run.
type setting struct {
	entrypoint, user, dir string
	ports                 []string
	env, labels           map[string]string
}

// settingOf follows a stage down to scratch.
func settingOf(t *testing.T, all []instructions.Stage, name string) setting {
	t.Helper()
	i := slices.IndexFunc(all, func(s instructions.Stage) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("the Dockerfile has no stage %s", name)
	}
	s := setting{env: map[string]string{}, labels: map[string]string{}}
	if all[i].BaseName != "scratch" {
		s = settingOf(t, all[:i], all[i].BaseName)
	}
	for _, c := range all[i].Commands {
		switch c := c.(type) {
		case *instructions.EnvCommand:
			for _, kv := range c.Env {
				s.env[kv.Key] = kv.Value
			}
		case *instructions.LabelCommand:
			for _, kv := range c.Labels {
				s.labels[kv.Key] = strings.Trim(kv.Value, `"`)
			}
		case *instructions.EntrypointCommand:
			if c.PrependShell {
				t.Errorf("stage %s: the entry point needs a shell, and the image has none", name)
			}
			s.entrypoint = strings.Join(c.CmdLine, " ")
		case *instructions.UserCommand:
			s.user = c.User
		case *instructions.WorkdirCommand:
			s.dir = c.Path
		case *instructions.ExposeCommand:
			s.ports = append(s.ports, c.Ports...)
		}
	}
	return s
}

// TestDockerfile: its three images run as those of hack/images.sh do.
func TestDockerfile(t *testing.T) {
	script, err := os.ReadFile(filepath.Join(root, "hack/images.sh"))
	if err != nil {
		t.Fatal(err)
	}
	platform := &v1.Platform{OS: "linux", Architecture: "amd64"}
	image, _, err := build(options{user: "65532:65532", files: []file{{program(t) + "/app", "/app"}}}, platform, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	// Only the image with CUDA has variables of its own.
	of := func(pattern string) []string {
		var words []string
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(script), -1) {
			words = append(words, m[1])
		}
		return words
	}
	source := of(`-label (org\.opencontainers\.image\.source=\S+)`)
	if len(source) != 1 {
		t.Fatalf("hack/images.sh has the sources %q, want one", source)
	}
	licenses := of(`-label '?(org\.opencontainers\.image\.licenses=(?:[^'\n]*[^')\n]))`)
	if len(licenses) != 2 {
		t.Fatalf("hack/images.sh has the licences %q, want two", licenses)
	}
	pairs := func(m map[string]string) []string {
		var all []string
		for k, v := range m {
			all = append(all, k+"="+v)
		}
		slices.Sort(all)
		return all
	}
	all := stages(t)
	for name, want := range map[string]struct {
		entrypoint, license string
		env                 []string
	}{
		"outrider":             {"/outrider", licenses[1], nil},
		"outrider-engine":      {"/outrider-engine", licenses[1], nil},
		"outrider-engine-cuda": {"/outrider-engine", licenses[0], of(`-env (\S+?)\)?(?:\s)`)},
	} {
		s := settingOf(t, all, name)
		if s.entrypoint != want.entrypoint || s.user != config.Config.User {
			t.Errorf("%s runs %q as %q, want %q as %q", name, s.entrypoint, s.user, want.entrypoint, config.Config.User)
		}
		env := slices.Concat(config.Config.Env, want.env)
		slices.Sort(env)
		if got := pairs(s.env); !slices.Equal(got, env) {
			t.Errorf("%s has the environment\n%q, want\n%q", name, got, env)
		}
		wantLabels := []string{want.license, source[0]}
		if got := pairs(s.labels); !slices.Equal(got, wantLabels) {
			t.Errorf("%s has the labels\n%q, want\n%q", name, got, wantLabels)
		}
		if len(s.ports) != len(config.Config.ExposedPorts) || s.dir != config.Config.WorkingDir {
			t.Errorf("%s exposes %v and works in %s, want %v and %s", name, s.ports, s.dir, config.Config.ExposedPorts, config.Config.WorkingDir)
		}
	}
	if last := all[len(all)-1].Name; last != "outrider" {
		t.Errorf("without a target %s is built, want outrider", last)
	}
}

// makes are the files and folders of a stage, by what it runs: programs of
// hack/build.sh, libraries of hack/cuda/runtime.sh, and folders.
func makes(t *testing.T, s instructions.Stage) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, "cmd"))
	if err != nil {
		t.Fatal(err)
	}
	libraries, err := os.ReadFile(filepath.Join(root, "hack/cuda/runtime.sh"))
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	for _, c := range s.Commands {
		r, ok := c.(*instructions.RunCommand)
		if !ok {
			continue
		}
		line := strings.Join(r.CmdLine, " ")
		if m := regexp.MustCompile(`(?:OUT=(\S+) )?hack/build\.sh`).FindStringSubmatch(line); m != nil {
			out := m[1]
			if out == "" {
				out = "bin"
			}
			for _, e := range entries {
				made[path.Join("/src", out, e.Name())] = true
			}
		}
		if m := regexp.MustCompile(`runtime\.sh \S+ (/\S+)`).FindStringSubmatch(line); m != nil {
			for _, f := range regexp.MustCompile(`(?m)^  local out=\$folder/(\w+)`).FindAllStringSubmatch(string(libraries), -1) {
				made[path.Join(m[1], f[1])] = true
			}
		}
		for _, m := range regexp.MustCompile(`mkdir (?:-\S+ (?:\d+ )?)*(/\S+)`).FindAllStringSubmatch(line, -1) {
			made["/"+strings.Split(m[1], "/")[1]] = true
		}
	}
	return made
}

// TestDockerfileFiles: what its stages copy and run is there, and so are the
// arguments that they name.
func TestDockerfileFiles(t *testing.T) {
	named := regexp.MustCompile(`\$\{?([A-Za-z_]+)`)
	known := map[string]map[string]bool{} // arguments and variables of each stage
	made := map[string]map[string]bool{}
	copies, runs := 0, 0
	ignored, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stages(t) {
		arguments := maps.Clone(known[s.BaseName])
		if arguments == nil {
			arguments = map[string]bool{}
		}
		known[s.Name], made[s.Name] = arguments, makes(t, s)
		if s.Platform != "" && s.Platform != "$BUILDPLATFORM" {
			t.Errorf("stage %s is of the platform %s: a stage that computes is of $BUILDPLATFORM, since others are slow", s.Name, s.Platform)
		}
		for _, c := range s.Commands {
			switch c := c.(type) {
			case *instructions.ArgCommand:
				for _, a := range c.Args {
					arguments[a.Key] = true
				}
			case *instructions.CopyCommand:
				copies++
				if _, ok := known[c.From]; c.From != "" && !ok {
					t.Errorf("stage %s copies from %s, which is no stage before it", s.Name, c.From)
				}
				for _, p := range c.SourcePaths {
					if c.From != "" && !made[c.From][p] {
						t.Errorf("stage %s copies %s from %s, which makes %v", s.Name, p, c.From, slices.Sorted(maps.Keys(made[c.From])))
					}
					for line := range strings.Lines(string(ignored)) {
						if c.From == "" && strings.HasPrefix("/"+p+"/", strings.TrimSpace(line)+"/") {
							t.Errorf("stage %s copies %s, and .dockerignore leaves out %s", s.Name, p, strings.TrimSpace(line))
						}
					}
					if _, err := os.Stat(filepath.Join(root, p)); c.From == "" && err != nil {
						t.Errorf("stage %s: %v", s.Name, err)
					}
				}
			case *instructions.RunCommand:
				runs++
				line := strings.Join(c.CmdLine, " ")
				for _, m := range named.FindAllStringSubmatch(line, -1) {
					if !arguments[m[1]] {
						t.Errorf("stage %s runs %q, and %s is no ARG of it", s.Name, line, m[1])
					}
				}
				for _, m := range regexp.MustCompile(`(?:^|\s)/?((?:hack|cuda)/\S+\.sh)`).FindAllStringSubmatch(line, -1) {
					name := strings.Replace("/"+m[1], "/cuda/", "/hack/cuda/", 1) // where COPY puts it
					if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode()&0o111 == 0 {
						t.Errorf("stage %s runs %s, which is no script of the repository (%v)", s.Name, m[1], err)
					}
				}
			}
		}
	}
	if copies < 9 || runs < 5 {
		t.Errorf("only %d copies and %d commands were found", copies, runs)
	}
}
