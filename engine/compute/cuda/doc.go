//go:build !linux

// Package cuda is the compute device for NVIDIA GPUs, on Linux.
package cuda
