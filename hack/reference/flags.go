package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// A flag as a program's help has it.
type flag struct {
	name  string
	value string // what stands for the value; empty for a switch
	usage string
	def   string // default; empty for none
}

var (
	pflagLine = regexp.MustCompile(`^ +(?:-\w, )?--([a-z0-9-]+)(?: (\S+))? {2,}(.*)$`)
	stdLine   = regexp.MustCompile(`^ {2}-([a-z0-9-]+)(?: (\S+))?$`)
	// The default of a string is quoted, unless the flag's value names a type of its own.
	defaultAt = regexp.MustCompile(` \(default "?([^"]*?)"?\)$`)
)

func newFlag(name, value, usage string) flag {
	f := flag{name: name, value: value, usage: usage}
	if m := defaultAt.FindStringSubmatch(usage); m != nil {
		f.usage, f.def = strings.TrimSuffix(usage, m[0]), m[1]
	}
	return f
}

// pflags are those of a help by pflag, a line each, but for help itself.
func pflags(help string) ([]flag, error) {
	_, list, ok := strings.Cut(help, "\nFlags:\n")
	if !ok {
		return nil, errors.New("it has no line \"Flags:\"")
	}
	var flags []flag
	for line := range strings.Lines(list) {
		line = strings.TrimRight(line, "\n")
		if line == "" {
			break
		}
		m := pflagLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("%q is no line of a flag", line)
		}
		if m[1] != "help" {
			flags = append(flags, newFlag(m[1], m[2], m[3]))
		}
	}
	return flags, nil
}

// stdFlags are those of a help by Go's package flag: a line with the name, then
// one with the usage.
func stdFlags(help string) ([]flag, error) {
	_, list, _ := strings.Cut(help, "\n")
	lines := strings.Split(strings.TrimRight(list, "\n"), "\n")
	if len(lines)%2 != 0 {
		return nil, fmt.Errorf("it has %d lines of flags, want two for each", len(lines))
	}
	var flags []flag
	for i := 0; i < len(lines); i += 2 {
		m := stdLine.FindStringSubmatch(lines[i])
		usage, ok := strings.CutPrefix(lines[i+1], "    \t")
		if m == nil || !ok {
			return nil, fmt.Errorf("%q and %q are no lines of a flag", lines[i], lines[i+1])
		}
		flags = append(flags, newFlag(m[1], m[2], usage))
	}
	return flags, nil
}

func flagTable(w io.Writer, flags []flag, variables bool) {
	header := []string{"flag", "default", ""}
	if variables {
		header = []string{"flag", "variable", "default", ""}
	}
	var rows [][]string
	for _, f := range flags {
		name := "--" + f.name
		if f.value != "" {
			name += " " + strings.ToUpper(f.value)
		}
		row := []string{quote(name), quote(f.def), f.usage}
		if variables {
			row = []string{quote(name), quote("OUTRIDER_" + strings.ToUpper(strings.ReplaceAll(f.name, "-", "_"))), quote(f.def), f.usage}
		}
		rows = append(rows, row)
	}
	table(w, header, rows)
}
