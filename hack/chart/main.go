// Command chart writes the files of the Helm chart that follow from others; see
// package generate.
package main

import (
	"fmt"
	"os"

	"github.com/outrider-dev/outrider/hack/chart/generate"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "chart: give the repository's root: go run . ../..")
		os.Exit(2)
	}
	if err := generate.Write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}
