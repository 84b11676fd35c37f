//go:build !cuda || !linux

package gpu

import "errors"

// Open watches the GPUs at PCI addresses. This binary has no CUDA, and so no NVML.
func Open([]string) (*Monitor, error) {
	return nil, errors.New("this binary was built without CUDA (go build -tags cuda has it)")
}
