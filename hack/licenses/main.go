// Command licenses reports under which licences the modules are that the
// binaries are linked of, and fails for one that the project does not take.
//
//	go run ./hack/licenses > docs/licenses.md   a table
//	go run ./hack/licenses -texts               all texts and notices, which go with the binaries
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	texts := flag.Bool("texts", false, "print all texts and notices instead of the table")
	flag.Parse()
	modules, err := linked(context.Background(), ".")
	if err == nil {
		write := report
		if *texts {
			write = notices
		}
		err = write(os.Stdout, modules)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

// module is one of which packages are linked.
type module struct {
	path, version string
	files         map[string]string // texts of licences and notices, by the file's path in the module
	licences      []string          // SPDX identifiers, sorted
}

// allowed are the licences that the project takes, by SPDX identifier.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// named are the names of files with licences and notices.
var named = regexp.MustCompile(`(?i)^(licen[sc]es?|copying|notice|patents)([.-][a-z0-9.-]+)?$`)

// linked are the modules of the commands of the module in dir, sorted by path,
// with the build tag cuda, which only adds to them. Go's own library is "std".
func linked(ctx context.Context, dir string) ([]*module, error) {
	const format = `{{if .Standard}}{{else if not .Module.Main}}{{.Module.Path}}	{{.Module.Version}}	{{.Module.Dir}}	{{.Dir}}{{end}}`
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-tags", "cuda", "-f", format, "./cmd/...")
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	byPath := map[string]*module{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 4 {
			continue // the line of a package of Go's library or of ours is empty
		}
		m := byPath[f[0]]
		if m == nil {
			m = &module{path: f[0], version: f[1], files: map[string]string{}}
			byPath[f[0]] = m
		}
		if err := m.collect(f[2], f[3]); err != nil {
			return nil, err
		}
	}
	cmd = exec.CommandContext(ctx, "go", "env", "GOROOT")
	cmd.Dir = dir
	root, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	std := &module{path: "std", files: map[string]string{}}
	byPath[std.path] = std
	if err := std.collect(strings.TrimSpace(string(root)), strings.TrimSpace(string(root))); err != nil {
		return nil, err
	}
	modules := slices.SortedFunc(maps.Values(byPath), func(a, b *module) int { return strings.Compare(a.path, b.path) })
	var wrong []error
	for _, m := range modules {
		wrong = append(wrong, m.judge())
	}
	return modules, errors.Join(wrong...)
}

// collect reads the texts in the package's folder and those above it, up to the module's.
func (m *module) collect(root, dir string) error {
	for {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.IsDir() || !named.MatchString(e.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, filepath.Join(dir, e.Name()))
			if err != nil {
				return err
			}
			m.files[filepath.ToSlash(name)] = string(text)
		}
		if dir == root || dir == filepath.Dir(dir) {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

// judge finds the module's licences, and says what is wrong with them.
func (m *module) judge() error {
	found := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(m.files)) {
		base := strings.ToLower(filepath.Base(name))
		if strings.HasPrefix(base, "notice") || strings.HasPrefix(base, "patents") {
			continue // beside a licence, none of their own
		}
		ids := classify(m.files[name])
		if len(ids) == 0 {
			return fmt.Errorf("%s %s: %s is no licence that is known: the project takes %s", m.path, m.version, name, strings.Join(allowed, ", "))
		}
		for _, id := range ids {
			if !slices.Contains(allowed, id) {
				return fmt.Errorf("%s %s: %s is %s: the project takes %s", m.path, m.version, name, id, strings.Join(allowed, ", "))
			}
			found[id] = true
		}
	}
	if len(found) == 0 {
		return fmt.Errorf("%s %s: it has no file with a licence", m.path, m.version)
	}
	m.licences = slices.Sorted(maps.Keys(found))
	return nil
}

var space = regexp.MustCompile(`[\s*#/>]+`)

// classify finds which licences a text has, by sentences that each must have.
func classify(text string) []string {
	t := space.ReplaceAllString(strings.ToLower(text), " ")
	has := func(s string) bool { return strings.Contains(t, s) }
	var ids []string
	add := func(id string, is bool) {
		if is {
			ids = append(ids, id)
		}
	}
	add("AGPL", has("gnu affero general public license"))
	add("Apache-2.0", has("apache license version 2.0") || has("apache license, version 2.0"))
	bsd := has("redistribution and use in source and binary forms")
	three := has("neither the name") || has("names of its contributors may") || has("names of contributors may")
	add("BSD-2-Clause", bsd && !three)
	add("BSD-3-Clause", bsd && three)
	add("GPL", has("gnu general public license"))
	add("ISC", has("permission to use, copy, modify, and distribute this software for any purpose") ||
		has("permission to use, copy, modify, and or distribute this software for any purpose"))
	add("LGPL", has("gnu lesser general public license"))
	add("MIT", has("permission is hereby granted, free of charge"))
	add("MPL-2.0", has("mozilla public license"))
	return ids
}

// report writes the table, without versions, which would change it with each update.
func report(w io.Writer, modules []*module) error {
	var b strings.Builder
	b.WriteString("<!-- Made by hack/licenses. -->\n\n# Licences\n\n" +
		"The modules that the binaries are linked of, and their licences by SPDX identifier. Texts and notices go with every release, in `third-party.txt`. " +
		"A module under another licence than " + strings.Join(allowed, ", ") + " fails the build.\n\n| module | licence |\n| --- | --- |\n")
	for _, m := range modules {
		name := "`" + m.path + "`"
		if m.path == "std" {
			name = "Go's own library"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", name, strings.Join(m.licences, ", "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// notices writes every text, each once, under the modules that have it.
func notices(w io.Writer, modules []*module) error {
	of, order := map[string][]string{}, []string{}
	for _, m := range modules {
		for _, name := range slices.Sorted(maps.Keys(m.files)) {
			text := strings.TrimSpace(strings.ReplaceAll(m.files[name], "\r\n", "\n"))
			if of[text] == nil {
				order = append(order, text)
			}
			of[text] = append(of[text], strings.TrimSpace(m.path+" "+m.version)+": "+name)
		}
	}
	var b strings.Builder
	for _, text := range order {
		fmt.Fprintf(&b, "%s\n%s\n%s\n\n%s\n\n", strings.Repeat("=", 80), strings.Join(of[text], "\n"), strings.Repeat("=", 80), text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
