//go:build cuda && linux

package engine

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrider-dev/outrider/engine/compute/cuda/emulation"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/internal/dl"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// choice is the device that a process took, or why it took none.
type choice struct {
	Device, Why string
	Reason      fault.Reason
}

// chooseVariable has TestChooseOnGPU choose for so many ranks.
const chooseVariable = "OUTRIDER_TEST_CHOOSE"

// TestChooseOnGPU is TestDeviceReasonOnGPUs in a process of its own: what auto and cuda
// take, and what ends an engine that has no model either.
func TestChooseOnGPU(t *testing.T) {
	ranks, err := strconv.Atoi(os.Getenv(chooseVariable))
	if err != nil {
		t.Skip("NOT RUN: it is a part of TestDeviceReasonOnGPUs")
	}
	all := map[string]choice{}
	of := func(b backend, err error) choice {
		if err != nil {
			return choice{Why: err.Error(), Reason: fault.ReasonOf(err)}
		}
		return choice{Device: b.name, Why: b.why}
	}
	for _, device := range []string{DeviceAuto, DeviceCUDA} {
		all[device] = of(chooseBackend(Config{Device: device, TPSize: ranks}.withDefaults(), nil, slog.Default()))
	}
	e, err := New(Config{Device: DeviceCUDA, TPSize: ranks, Model: "/no/such/model"}, quiet(), telemetry.NewMetrics(prometheus.NewRegistry(), "m", time.Now), telemetry.NewProgress(ranks, time.Now))
	if err != nil {
		t.Fatal(err)
	}
	all["serve"] = of(backend{}, e.Run(t.Context()))
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\nchoices %s\n", b)
}

// without is a folder with the emulation's libraries but for those of a name.
func without(t *testing.T, name string) string {
	t.Helper()
	from, folder := os.Getenv(dl.PathVariable), t.TempDir()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), name) {
			if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(folder, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	return folder
}

// Whatever the device lacks, auto serves on the CPU and says why, and cuda ends with the
// same reason before it looks for a model. A GPU that is full ends both.
func TestDeviceReasonOnGPUs(t *testing.T) {
	if err := emulation.Loaded(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	path := dl.PathVariable + "="
	for _, c := range []struct {
		name, env string
		ranks     int
		says      string // empty: the GPU is taken
		full      bool
	}{
		{name: "a GPU", ranks: 1},
		{name: "no GPU", env: "OUTRIDER_EMULATION_DEVICES=0", ranks: 1, says: "the NVIDIA driver sees no GPU: give the container one"},
		{name: "one of two GPUs", env: "OUTRIDER_EMULATION_DEVICES=1", ranks: 2, says: "sees 1 GPU: allowed is up to 1"},
		{name: "an old GPU", env: "OUTRIDER_EMULATION_CAPABILITY=75", ranks: 1, says: "GPU 0 (Emulated GPU) has compute capability 7.5: supported is 8.0 (Ampere) and newer; --device cpu does without"},
		{name: "a GPU of the future", env: "OUTRIDER_EMULATION_CAPABILITY=130", ranks: 1, says: "makes no code for compute capability 13.0"},
		{name: "another driver", env: "OUTRIDER_EMULATION_INIT=803", ranks: 1, says: "libcuda.so.1 and the node's NVIDIA driver are of different versions"},
		{name: "an old driver", env: "OUTRIDER_EMULATION_DRIVER=12080", ranks: 1, says: "the NVIDIA driver serves CUDA 12.8, and NVRTC is of CUDA 13: update the driver to 580 or newer, or take libraries of CUDA 12 "},
		{name: "no compiler", env: path + without(t, "libnvrtc"), ranks: 1, says: "libnvrtc.so.13 or libnvrtc.so.12 or libnvrtc.so cannot be opened: install CUDA's run-time compiler"},
		{name: "no cuBLASLt", env: path + without(t, "libcublasLt"), ranks: 1, says: "; the image outrider-engine-cuda has it; --device cpu does without"},
		{name: "one GPU needs no NCCL", env: path + without(t, "libnccl"), ranks: 1},
		{name: "no NCCL", env: path + without(t, "libnccl"), ranks: 2, says: "libnccl.so.2 cannot be opened: install NCCL"},
		{name: "a full GPU", env: "OUTRIDER_EMULATION_MEMORY=0", ranks: 1, says: "the GPU is full before anything was loaded", full: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := again(t, "^TestChooseOnGPU$", "OUTRIDER_EMULATION_DEVICES=2", c.env, fmt.Sprintf("%s=%d", chooseVariable, c.ranks))
			var got map[string]choice
			_, text, _ := strings.Cut(out, "\nchoices ")
			if line, _, ok := strings.Cut(text, "\n"); !ok || json.Unmarshal([]byte(line), &got) != nil {
				t.Fatalf("no choices in %s", out)
			}
			auto, cuda, serve := got[DeviceAuto], got[DeviceCUDA], got["serve"]
			switch {
			case c.says == "":
				if auto.Device != DeviceCUDA || cuda.Device != DeviceCUDA || serve.Reason != fault.ModelNotFound {
					t.Errorf("%+v", got)
				}
			case c.full:
				if auto.Reason != fault.OutOfMemory || cuda != auto || !strings.Contains(auto.Why, c.says) {
					t.Errorf("%+v", got)
				}
			default:
				if auto.Device != DeviceCPU || !strings.Contains(auto.Why, c.says) || strings.Contains(auto.Why, "\n") {
					t.Errorf("auto: %+v, want the CPU for %q", auto, c.says)
				}
				if want := (choice{Why: "--device cuda: " + auto.Why, Reason: fault.DeviceMissing}); cuda != want || serve != want {
					t.Errorf("cuda: %+v, and of a start %+v, want %+v", cuda, serve, want)
				}
			}
		})
	}
	t.Run("served without a GPU", func(t *testing.T) {
		again(t, "^TestDeviceReason$", "OUTRIDER_EMULATION_DEVICES=0")
	})
}

// again runs a test of this package in a process of its own, which must pass.
func again(t *testing.T, test string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", test, "-test.v")
	cmd.Env = os.Environ()
	for _, e := range env {
		if e != "" {
			cmd.Env = append(cmd.Env, e)
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}
