package engine

import (
	"regexp"
	"strings"
	"testing"
)

// An engine says why it computes where it does: without a flag on the CPU only for
// want of a GPU, of the driver, or of CUDA in the binary.
func TestDeviceReason(t *testing.T) {
	info := start(t, Config{Device: DeviceAuto}).Info()
	want := regexp.MustCompile(`built without CUDA|libcuda\.so\.1 cannot be opened: install the NVIDIA driver|sees no GPU`)
	if strings.HasPrefix(info.Device, "cuda") {
		want = regexp.MustCompile(`^\d+ GPUs are there$`)
	}
	if !want.MatchString(info.DeviceReason) {
		t.Errorf("--device auto took %s for the reason %q; want one that matches %s", info.Device, info.DeviceReason, want)
	}
	info = start(t, Config{Device: DeviceCPU}).Info()
	if !strings.HasPrefix(info.Device, "cpu") || info.DeviceReason != "as asked" {
		t.Errorf("--device cpu took %s for the reason %q", info.Device, info.DeviceReason)
	}
}
