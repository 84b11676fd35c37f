// Command chart writes what the Helm chart has from other sources: the
// dashboards from Go code, CRDs and roles from config, the README from the
// comments of values.yaml.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/outrider-dev/outrider/hack/chart/dashboards"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "chart: give the repository's root: go run . ../..")
		os.Exit(2)
	}
	if err := generate(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func generate(root string) error {
	chart := filepath.Join(root, "charts", "outrider")
	for name, d := range dashboards.All() {
		out, err := d.JSON()
		if err != nil {
			return err
		}
		if err := write(filepath.Join(chart, "dashboards", name+".json"), out); err != nil {
			return err
		}
	}
	return nil
}

func write(name string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, content, 0o644)
}
