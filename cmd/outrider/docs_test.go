package main

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The operator's guide lists exactly the flags that there are, with their defaults.
func TestFlagsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operator.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{} // the defaults of a row, by flag
	for _, row := range regexp.MustCompile("(?m)^\\| (`--.*?) \\| (.*?) \\|").FindAllStringSubmatch(string(doc), -1) {
		for _, name := range regexp.MustCompile("`--([a-z0-9-]+)`").FindAllStringSubmatch(row[1], -1) {
			if _, twice := documented[name[1]]; twice {
				t.Errorf("docs/operator.md lists --%s twice", name[1])
			}
			documented[name[1]] = row[2]
		}
	}
	flagSet(&options{}).VisitAll(func(f *flag.Flag) {
		cell, ok := documented[f.Name]
		delete(documented, f.Name)
		if !ok {
			t.Errorf("docs/operator.md does not list --%s", f.Name)
			return
		}
		want := f.DefValue
		switch {
		case want == "false":
			want = "off"
		case want == "":
			return // said in words, such as "all" or "the pod's own"
		}
		if d, err := time.ParseDuration(want); err == nil && d == time.Minute {
			want = "1m"
		}
		for _, word := range strings.FieldsFunc(cell, func(r rune) bool { return strings.ContainsRune(" ,`(", r) }) {
			if word == want {
				return
			}
		}
		t.Errorf("docs/operator.md has %s as the default of --%s, want %s", cell, f.Name, want)
	})
	for name := range documented {
		t.Errorf("docs/operator.md lists --%s, which there is not", name)
	}
}
