package collective

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// NCCL are the settings of NVIDIA's collective library. Zero values leave the
// choice to it, or to the environment variable that each of them stands for.
type NCCL struct {
	Algorithm   string // NCCL_ALGO, one of NCCLAlgorithms
	Protocol    string // NCCL_PROTO, one of NCCLProtocols
	P2PLevel    string // NCCL_P2P_LEVEL, one of NCCLP2PLevels
	MinChannels int    // NCCL_MIN_NCHANNELS, 1 to MaxNCCLChannels
	MaxChannels int    // NCCL_MAX_NCHANNELS, at least MinChannels
	Debug       string // NCCL_DEBUG, one of NCCLDebugs
}

// What NCCL takes, which is also what the operator's spec.nccl takes.
var (
	NCCLAlgorithms = []string{"Ring", "Tree", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT"}
	NCCLProtocols  = []string{"LL", "LL128", "Simple"}
	NCCLP2PLevels  = []string{"LOC", "NVL", "PIX", "PXB", "PHB", "SYS"}
	NCCLDebugs     = []string{"VERSION", "WARN", "INFO", "TRACE"}
)

// MaxNCCLChannels is the most channels that NCCL has.
const MaxNCCLChannels = 64

// Check reports the first value that NCCL does not have, by its flag.
func (n NCCL) Check() error {
	for _, v := range []struct {
		flag, value string
		allowed     []string
	}{
		{"nccl-algorithm", n.Algorithm, NCCLAlgorithms}, {"nccl-protocol", n.Protocol, NCCLProtocols},
		{"nccl-p2p-level", n.P2PLevel, NCCLP2PLevels}, {"nccl-debug", n.Debug, NCCLDebugs},
	} {
		if v.value != "" && !slices.Contains(v.allowed, v.value) {
			return fmt.Errorf("--%s is %q: allowed are %s", v.flag, v.value, strings.Join(v.allowed, ", "))
		}
	}
	for _, v := range []struct {
		flag  string
		value int
	}{{"nccl-min-channels", n.MinChannels}, {"nccl-max-channels", n.MaxChannels}} {
		if v.value < 0 || v.value > MaxNCCLChannels {
			return fmt.Errorf("--%s is %d: allowed is 1 to %d, or 0 for what NCCL chooses", v.flag, v.value, MaxNCCLChannels)
		}
	}
	if n.MaxChannels > 0 && n.MinChannels > n.MaxChannels {
		return fmt.Errorf("--nccl-min-channels is %d, above --nccl-max-channels, which is %d", n.MinChannels, n.MaxChannels)
	}
	return nil
}

// Environ are the variables of the settings that are given, by name.
func (n NCCL) Environ() map[string]string {
	env := map[string]string{}
	number := func(v int) string {
		if v == 0 {
			return ""
		}
		return strconv.Itoa(v)
	}
	for name, value := range map[string]string{
		"NCCL_ALGO": n.Algorithm, "NCCL_PROTO": n.Protocol, "NCCL_P2P_LEVEL": n.P2PLevel, "NCCL_DEBUG": n.Debug,
		"NCCL_MIN_NCHANNELS": number(n.MinChannels), "NCCL_MAX_NCHANNELS": number(n.MaxChannels),
	} {
		if value != "" {
			env[name] = value
		}
	}
	return env
}

// Apply sets the variables, for NCCL to read when its first group is made.
func (n NCCL) Apply() error {
	for name, value := range n.Environ() {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("%s cannot be set: %w", name, err)
		}
	}
	return nil
}

// NCCLInForce are the variables of NCCL that a process has, NAME=value, sorted:
// what its flags, its pod or its image brought.
func NCCLInForce(environ []string) []string {
	var in []string
	for _, v := range environ {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "NCCL_") && value != "" {
			in = append(in, v)
		}
	}
	slices.SortFunc(in, cmp.Compare)
	return in
}

// PeersBarred says why GPUs shall not reach into each other's memory, by the
// variables of NCCL that a process has; empty if they may.
func PeersBarred(lookup func(string) (string, bool)) string {
	if v, _ := lookup("NCCL_P2P_DISABLE"); v != "" && v != "0" {
		return "NCCL_P2P_DISABLE is " + v
	}
	if v, _ := lookup("NCCL_P2P_LEVEL"); strings.EqualFold(v, "LOC") || v == "0" {
		return "NCCL_P2P_LEVEL is " + v
	}
	return ""
}
