// Command reference writes docs/reference.md: the flags, metrics, paths and exit
// codes that the programs have, out of the programs themselves.
//
//	go run ./hack/reference > docs/reference.md
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

const head = `<!-- Made out of the programs by hack/reference (make generate). -->

# Reference: flags, paths, exit codes, metrics

In short what there is. [engine-api.md](engine-api.md), [operator.md](operator.md) and [metrics.md](metrics.md) explain it; the fields of the resource are in [api.md](api.md), the values of the chart in [its README](../charts/outrider/README.md#values).
`

func main() {
	var out bytes.Buffer
	err := write(&out)
	if err == nil {
		_, err = out.WriteTo(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func write(w io.Writer) error {
	fmt.Fprint(w, head)
	for _, p := range []struct {
		title, text string
		command     []string
		parse       func(string) ([]flag, error)
		variables   bool
	}{
		{"outrider-engine serve", "A flag wins over its variable; an empty variable counts as none.", []string{"./cmd/outrider-engine", "serve", "--help"}, pflags, true},
		{"outrider-engine fetch", "Downloads what serve would, and ends.", []string{"./cmd/outrider-engine", "fetch", "--help"}, pflags, false},
		{"outrider", "The operator.", []string{"./cmd/outrider", "-help"}, stdFlags, false},
	} {
		help, err := run(context.Background(), p.command)
		if err != nil {
			return err
		}
		flags, err := p.parse(help)
		if err != nil {
			return fmt.Errorf("the help of %s: %w", p.title, err)
		}
		fmt.Fprintf(w, "\n## Flags of `%s`\n\n%s\n\n", p.title, p.text)
		flagTable(w, flags, p.variables)
	}
	paths(w)
	exitCodes(w)
	return metrics(w)
}

// run is what a program of this repository prints.
func run(ctx context.Context, command []string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"run"}, command...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "COLUMNS=")
	b, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go run %s: %w: %s", strings.Join(command, " "), err, b)
	}
	return string(b), nil
}

// table writes a Markdown table; bars in cells are escaped.
func table(w io.Writer, header []string, rows [][]string) {
	line := func(cells []string) {
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
	}
	line(header)
	fmt.Fprintf(w, "|%s\n", strings.Repeat(" --- |", len(header)))
	for _, r := range rows {
		line(r)
	}
}

func quote(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}
