package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What ends the driver's start is said with what to do, in one line that keeps the
// driver's own words; a code without advice stays as it is.
func TestStartIsExplained(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "null"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		code    Code
		visible *string
		closed  string // the device file that may not be opened
		says    []string
		not     string
	}{
		{code: 34, says: []string{"is the toolkit's stub"}},
		{code: 100, says: []string{"the NVIDIA driver sees no GPU: give the container one (nvidia.com/gpu: 1) (cuInit failed with CUresult 100)"}},
		{code: 100, visible: new(string), says: []string{`CUDA_VISIBLE_DEVICES is "", and only what it names is seen: unset it for all`}},
		{code: 100, closed: "nvidiactl", says: []string{"may not open " + filepath.Join(folder, "nvidiactl") + ": that is likely why"}, not: "nvidia0"},
		{code: 101, says: []string{"cannot take a GPU that it was shown", "MIG mode"}},
		{code: 304, says: []string{"the GPU's device files", "nvidia-uvm"}},
		{code: 802, says: []string{"fabric manager"}},
		{code: 803, visible: new(string), says: []string{"of different versions", "restart of the node"}, not: "CUDA_VISIBLE_DEVICES"},
		{code: 804, says: []string{"compatibility libraries", "cuda-compat"}},
		{code: 999, closed: "nvidia-uvm", says: []string{"nvidia-modprobe", "dmesg", "may not open " + filepath.Join(folder, "nvidia-uvm")}},
		{code: 1, says: []string{"cuInit failed with CUresult 1"}, not: ":"},
	} {
		t.Run(fmt.Sprint(c.code), func(t *testing.T) {
			t.Setenv(visible, "") // so that it is put back
			if c.visible == nil {
				if err := os.Unsetenv(visible); err != nil {
					t.Fatal(err)
				}
			}
			err := explain(&Error{Call: "cuInit", Code: c.code}, folder, func(path string) error {
				if filepath.Base(path) == c.closed {
					return &os.PathError{Op: "open", Path: path, Err: unix.EPERM}
				}
				return nil
			})
			text := err.Error()
			for _, want := range append(c.says, fmt.Sprintf("CUresult %d", c.code)) {
				if !strings.Contains(text, want) {
					t.Errorf("%q does not say %q", text, want)
				}
			}
			if c.not != "" && strings.Contains(text, c.not) || strings.Contains(text, "\n") {
				t.Errorf("%q has several lines, or %q", text, c.not)
			}
		})
	}
	if err := explain(nil, folder, openFile); err != nil {
		t.Error(err)
	}
}
