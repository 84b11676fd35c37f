//go:build !cuda || !linux

package engine

import (
	"log/slog"

	"github.com/outrider-dev/outrider/engine/fault"
)

// cudaBuilt says why there is no CUDA in this binary.
func cudaBuilt() error {
	return fault.Errorf(fault.DeviceMissing, "this binary was built without CUDA, which the image outrider-engine-cuda has, and go build -tags cuda: allowed are auto and cpu")
}

func cudaBackend(Config, func(rank, done, of int), *slog.Logger) (backend, error) {
	return backend{}, cudaBuilt()
}
