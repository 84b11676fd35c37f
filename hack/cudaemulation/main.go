// Command cudaemulation makes the emulation's libraries in a folder:
//
//	go run ./hack/cudaemulation bin/emulation
//	OUTRIDER_CUDA_PATH=$PWD/bin/emulation go test -tags cuda ./engine/compute/cuda/...
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/outrider-dev/outrider/engine/compute/cuda/emulation"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: cudaemulation FOLDER")
		os.Exit(2)
	}
	if err := emulation.Build(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
