// Package seed gives tests numbers that differ from run to run, and the same again
// to who wants to see a failure again.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Variable names the environment variable that says the seed, a decimal number of
// 64 bits. Each test that draws numbers logs its own.
const Variable = "OUTRIDER_TEST_SEED"

// Of is the seed of a test: that of the environment, or a new one. It fails the
// test if what the environment says is no seed.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv(Variable); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s is %q, want a number from 0 to 2^64 − 1", Variable, s)
		}
	}
	t.Logf("%s=%d", Variable, seed)
	return seed
}

// Numbers are random numbers of the test's seed.
func Numbers(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Of(t), 1))
}
