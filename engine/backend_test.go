package engine

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/fault"
)

// An engine says why it computes where it does: without a flag on the CPU only for
// want of a GPU, of the driver, or of CUDA in the binary.
func TestDeviceReason(t *testing.T) {
	e := start(t, Config{Device: DeviceAuto})
	info := e.Info()
	want := regexp.MustCompile(`built without CUDA|libcuda\.so\.1 cannot be opened: install the NVIDIA driver|sees no GPU`)
	if strings.HasPrefix(info.Device, "cuda") {
		want = regexp.MustCompile(`^(1 GPU is|\d+ GPUs are) there$`)
	}
	if !want.MatchString(info.DeviceReason) {
		t.Errorf("--device auto took %s for the reason %q; want one that matches %s", info.Device, info.DeviceReason, want)
	}
	if p := e.Progress(); !strings.HasPrefix(info.Device, p.Device) || p.Device == "" || p.DeviceReason != info.DeviceReason {
		t.Errorf("/progress has the device %q for the reason %q, /server_info %q and %q", p.Device, p.DeviceReason, info.Device, info.DeviceReason)
	}
	if strings.Contains(info.DeviceReason, "--device cuda") {
		t.Errorf("the reason names a flag that nobody gave: %s", info.DeviceReason)
	}
	if !strings.HasPrefix(info.Device, "cuda") {
		_, err := chooseBackend(Config{Device: DeviceCUDA, TPSize: 1}, nil, slog.Default())
		if text := fmt.Sprint(err); text != "--device cuda: "+info.DeviceReason || fault.ReasonOf(err) != fault.DeviceMissing {
			t.Errorf("--device cuda says %q (%s), --device auto %q", text, fault.ReasonOf(err), info.DeviceReason)
		}
	}
	info = start(t, Config{Device: DeviceCPU}).Info()
	if !strings.HasPrefix(info.Device, "cpu") || info.DeviceReason != "as asked" {
		t.Errorf("--device cpu took %s for the reason %q", info.Device, info.DeviceReason)
	}
}
