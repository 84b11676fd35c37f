package nccl

import (
	"fmt"
	"os"
	"strings"
)

// perFunction is the version from which on NCCL_ALGO can differ by function, and
// an algorithm that a function does not have is an error instead of Ring: 2.24.
const perFunction = 22400

// prepare completes the environment for NCCL, as far as it is not given.
func prepare(version int) error {
	set := map[string]string{}
	if a := gathers(os.Getenv("NCCL_ALGO")); a != "" && version >= perFunction {
		set["NCCL_ALGO"] = a
	}
	// Work of a communicator is on one stream, and nothing is queued anew while a
	// graph is under way. So NCCL need not order the two, which takes it 1 µs a call.
	if os.Getenv("NCCL_GRAPH_MIXING_SUPPORT") == "" {
		set["NCCL_GRAPH_MIXING_SUPPORT"] = "0"
	}
	for name, value := range set {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("%s cannot be set: %w", name, err)
		}
	}
	return nil
}

// gathers is NCCL_ALGO for sums alone, where it names algorithms that do not
// gather: Ring does. Empty if the value can stay.
func gathers(algo string) string {
	if algo == "" || strings.ContainsAny(algo, ":;^") {
		return ""
	}
	for name := range strings.SplitSeq(algo, ",") {
		if strings.EqualFold(name, "Ring") {
			return ""
		}
	}
	return "Ring;allreduce:" + algo
}
