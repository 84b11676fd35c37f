package engine

import (
	"log/slog"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/fault"
)

// The devices of Config.Device.
const (
	DeviceAuto = "auto" // CUDA where there is a GPU for each rank, else the CPU
	DeviceCPU  = "cpu"
	DeviceCUDA = "cuda"
)

// backend is where the ranks compute.
type backend struct {
	name      string // the device, as --device names it
	newDevice func(comm collective.Communicator) (compute.Device, error)
	memory    int64    // bytes that weights and cache may take a share of, on all ranks; 0: unknown
	element   int64    // bytes of a number in activations
	float8    bool     // the KV cache keeps float8, not such numbers
	gpus      []string // PCI addresses of this process's GPUs, by rank
	where     string   // whose memory it is, in messages; empty: the process's
	why       string
}

// chooseBackend finds the device that cfg asks for. built hears how many of
// its sources of kernels a rank has compiled, and log of what makes a start slow.
//
// A GPU that is not there, or not for this engine, is no error of auto. One that is
// full is: it would serve when it is free, and the CPU for good.
func chooseBackend(cfg Config, built func(rank, done, of int), log *slog.Logger) (backend, error) {
	if cfg.Device == DeviceCPU {
		return cpuBackend("as asked", cfg.localRanks()), nil
	}
	b, err := cudaBackend(cfg, built, log)
	switch {
	case err == nil || fault.ReasonOf(err) != fault.DeviceMissing:
		return b, err
	case cfg.Device == DeviceAuto:
		return cpuBackend(err.Error(), cfg.localRanks()), nil
	}
	return b, notThere(cfg.Device, err)
}

// notThere is the error of a device that was asked for, and why it is not there.
func notThere(device string, why error) error {
	return fault.Errorf(fault.DeviceMissing, "--device %s: %w", device, why)
}

func cpuBackend(why string, ranks int) backend {
	return backend{
		name: DeviceCPU,
		newDevice: func(comm collective.Communicator) (compute.Device, error) {
			return cpu.New(comm, cpu.Threads(ranks))
		},
		memory: memoryLimit(), element: cpuElement, why: why,
	}
}

// cpuElement is the size of a number in the CPU's caches and activations, bytes.
const cpuElement = 4
