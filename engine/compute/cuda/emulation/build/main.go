// Command build makes the emulation's libraries in a folder:
//
//	go run ./engine/compute/cuda/emulation/build bin/emulation
//	OUTRIDER_CUDA_PATH=$PWD/bin/emulation go test -tags cuda ./engine/compute/cuda/...
package main

import (
	"fmt"
	"os"

	"github.com/outrider-dev/outrider/engine/compute/cuda/emulation"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: build FOLDER")
		os.Exit(2)
	}
	if err := emulation.Build(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
