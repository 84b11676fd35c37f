//go:build linux

package cuda

import (
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/fault"
)

// Without a GPU, or one that is too far down the list, the error says what is
// missing and what to do, and its reason is DeviceMissing.
func TestMissingDeviceIsExplained(t *testing.T) {
	_, err := New(collective.NewLocal(1, 0)[0], Options{Ordinal: 1000})
	if err == nil {
		t.Fatal("opened GPU 1000")
	}
	if got := fault.ReasonOf(err); got != fault.DeviceMissing {
		t.Errorf("reason %s, want %s", got, fault.DeviceMissing)
	}
	if text := err.Error(); !strings.Contains(text, "install") && !strings.Contains(text, "--tp-size") && !strings.Contains(text, "--device cpu") {
		t.Errorf("%q does not say what to do", text)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has several lines", err)
	}
}
