//go:build soak && (!cuda || !linux)

package server

import "testing"

// deviceFree is 0: this build computes on the CPU.
func deviceFree(*testing.T, *instance) int64 { return 0 }
