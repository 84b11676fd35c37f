package main

import (
	"os"
	"regexp"
	"testing"

	"github.com/spf13/pflag"
)

// The reference lists exactly the flags that there are, with their defaults.
func TestFlagsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/engine-api.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `--([a-z0-9-]+)` \\| (.*?) \\|").FindAllStringSubmatch(string(doc), -1) {
		documented[row[1]] = row[2]
	}
	flags := newFlagSet()
	newOptions(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, ok := documented[f.Name]
		delete(documented, f.Name)
		switch {
		case !ok:
			t.Errorf("docs/engine-api.md does not list --%s", f.Name)
		case f.DefValue != "" && f.DefValue != "0" && value != "`"+f.DefValue+"`":
			t.Errorf("docs/engine-api.md has %s as the default of --%s: want `%s`", value, f.Name, f.DefValue)
		}
	})
	for name := range documented {
		t.Errorf("docs/engine-api.md lists --%s, which there is not", name)
	}
}

func newFlagSet() *pflag.FlagSet { return pflag.NewFlagSet("serve", pflag.ContinueOnError) }
