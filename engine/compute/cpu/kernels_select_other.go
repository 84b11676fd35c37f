//go:build !amd64

package cpu

// supportedKernels are the sets that this processor runs, fastest first.
func supportedKernels() []*kernels { return []*kernels{genericKernels} }
