//go:build cuda && linux

package engine

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/compute/cuda/kernels"
	"github.com/outrider-dev/outrider/engine/fault"
)

// cudaBuilt is nil: this binary has CUDA.
func cudaBuilt() error { return nil }

// cudaBackend takes GPU 0, 1, … for this process's ranks.
func cudaBackend(cfg Config, built func(rank, done, of int), log *slog.Logger) (backend, error) {
	ranks := cfg.localRanks()
	first := cfg.Node * ranks
	n, err := cuda.Count()
	if err != nil {
		return backend{}, err
	}
	if ranks > n {
		return backend{}, fault.Errorf(fault.DeviceMissing, "this node has %d of the ranks of --tp-size and sees %s: allowed is up to %d", ranks, gpus(n), n)
	}
	b := backend{name: DeviceCUDA, element: 2, why: gpus(n) + " are there"}
	if n == 1 {
		b.why = gpus(n) + " is there"
	}
	var group *cuda.Group // nil: one GPU, or they meet in the host's memory, as those of several nodes do
	if ranks > 1 && cfg.Nodes == 1 && cfg.AllReduce != AllReduceHost {
		if err := cfg.NCCL.Apply(); err != nil {
			return backend{}, err
		}
		group = cuda.NewGroup(ranks, cuda.GroupOptions{Timeout: cfg.CollectiveTimeout, NCCLOnly: cfg.AllReduce == AllReduceNCCL,
			Barred: collective.PeersBarred(os.LookupEnv)})
	}
	names, err := cuda.Ready(ranks, group != nil)
	if err != nil {
		return backend{}, err
	}
	b.where = fmt.Sprintf("GPU 0 (%s)", names[0])
	if ranks > 1 {
		b.where = fmt.Sprintf("%s (%s)", gpus(ranks), strings.Join(slices.Compact(names), ", "))
	}
	pages := cfg.firstPages()
	var once sync.Once // the ranks have one folder
	unkept := func(err error) {
		once.Do(func() {
			log.Warn("the compiled kernels cannot be kept, and each start compiles them anew: set XDG_CACHE_HOME to a folder that can be written to and stays, such as one of a volume", "err", err)
		})
	}
	b.newDevice = func(comm collective.Communicator) (compute.Device, error) {
		built(comm.Rank(), 0, len(kernels.Sources()))
		return cuda.New(comm, cuda.Options{Ordinal: comm.Rank() - first, Group: group, FirstPages: pages, Compiled: func(done, of int) { built(comm.Rank(), done, of) }, Unkept: unkept})
	}
	if cfg.Nodes > 1 {
		pages = 0 // the plan, on which the nodes have agreed, is kept to
	}
	least := int64(0) // every rank has as much to hold
	for i := range ranks {
		free, pci, err := cuda.Memory(i)
		if err != nil {
			return backend{}, err
		}
		b.gpus = append(b.gpus, pci)
		if i == 0 || free < least {
			least = free
		}
	}
	b.memory = least * int64(ranks)
	return b, nil
}

// gpus is a number of GPUs in words.
func gpus(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}
