package collective

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestNCCLSettingsAreChecked(t *testing.T) {
	for _, c := range []struct {
		name string
		n    NCCL
		want string // part of the error; empty: none
	}{
		{"nothing", NCCL{}, ""},
		{"everything", NCCL{"Ring", "LL128", "SYS", 2, 8, "INFO"}, ""},
		{"as many channels", NCCL{MinChannels: 64, MaxChannels: 64}, ""},
		{"algorithm", NCCL{Algorithm: "ring"}, `--nccl-algorithm is "ring": allowed are Ring, Tree`},
		{"protocol", NCCL{Protocol: "LL64"}, `--nccl-protocol is "LL64": allowed are LL, LL128, Simple`},
		{"level", NCCL{P2PLevel: "3"}, `--nccl-p2p-level is "3": allowed are LOC`},
		{"debug", NCCL{Debug: "on"}, `--nccl-debug is "on": allowed are VERSION`},
		{"channels", NCCL{MinChannels: 65}, "--nccl-min-channels is 65: allowed is 1 to 64"},
		{"fewer than none", NCCL{MaxChannels: -1}, "--nccl-max-channels is -1: allowed is 1 to 64"},
		{"crossed", NCCL{MinChannels: 4, MaxChannels: 2}, "--nccl-min-channels is 4, above --nccl-max-channels, which is 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			switch err := c.n.Check(); {
			case err == nil && c.want != "":
				t.Errorf("taken: want %q", c.want)
			case err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v: want %q", err, c.want)
			}
		})
	}
}

func TestNCCLSettingsBecomeVariables(t *testing.T) {
	want := map[string]string{"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "NVL", "NCCL_MIN_NCHANNELS": "2", "NCCL_MAX_NCHANNELS": "16", "NCCL_DEBUG": "WARN"}
	for name := range want {
		t.Setenv(name, "before")
	}
	n := NCCL{"Tree", "LL", "NVL", 2, 16, "WARN"}
	if got := n.Environ(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := n.Apply(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for name, value := range want {
		if os.Getenv(name) != value {
			t.Errorf("%s is %q, want %q", name, os.Getenv(name), value)
		}
		lines = append(lines, name+"="+value)
	}
	slices.Sort(lines)
	if got := NCCLInForce(append([]string{"PATH=/bin", "NCCLX=1", "NCCL_EMPTY="}, lines...)); !slices.Equal(got, lines) {
		t.Errorf("in force: %v, want %v", got, lines)
	}
	if err := (NCCL{}).Apply(); err != nil || os.Getenv("NCCL_ALGO") != "Tree" {
		t.Errorf("settings that are not given changed NCCL_ALGO to %q, %v", os.Getenv("NCCL_ALGO"), err)
	}
}

func TestPeersBarred(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{nil, ""},
		{map[string]string{"NCCL_P2P_LEVEL": "NVL"}, ""},
		{map[string]string{"NCCL_P2P_DISABLE": "0"}, ""},
		{map[string]string{"NCCL_P2P_LEVEL": "LOC"}, "NCCL_P2P_LEVEL is LOC"},
		{map[string]string{"NCCL_P2P_LEVEL": "0"}, "NCCL_P2P_LEVEL is 0"},
		{map[string]string{"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE is 1"},
	} {
		if got := PeersBarred(func(k string) (string, bool) { v, ok := c.env[k]; return v, ok }); got != c.want {
			t.Errorf("%v: %q, want %q", c.env, got, c.want)
		}
	}
}

// The operator sets the same variables, to the same values: spec.nccl and the
// flags mean one thing.
func TestOperatorHasTheSameSettings(t *testing.T) {
	types, err := os.ReadFile("../../api/v1alpha1/speculativeserver_types.go")
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string][]string{"Algorithm": NCCLAlgorithms, "Protocol": NCCLProtocols, "P2PLevel": NCCLP2PLevels, "Debug": NCCLDebugs} {
		_, spec, _ := strings.Cut(string(types), "type NCCLSpec struct {")
		m := regexp.MustCompile(`validation:Enum=(\S+)\n\t` + field + ` `).FindStringSubmatch(spec)
		if m == nil || !slices.Equal(strings.Split(m[1], ";"), want) {
			t.Errorf("spec.nccl's %s is one of %v, want %v", field, m, want)
		}
	}
	build, err := os.ReadFile("../../controllers/speculativeserver/build/engine.go")
	if err != nil {
		t.Fatal(err)
	}
	for name := range (NCCL{"Ring", "LL", "SYS", 1, 1, "INFO"}).Environ() {
		if !strings.Contains(string(build), `"`+name+`"`) {
			t.Errorf("the operator does not set %s", name)
		}
	}
}
