package model

import (
	"context"
	"fmt"
	"io/fs"
	"sync/atomic"
	"testing"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/fetch/builtin"
)

// scale is a device that weighs what is asked of it.
type scale struct {
	compute.Device
	bytes *atomic.Int64
}

func (s scale) NewTensor(rows, cols int) compute.Tensor {
	s.bytes.Add(4 * int64(rows) * int64(cols))
	return s.Device.NewTensor(rows, cols)
}

func (s scale) NewSums(rows, cols int) compute.Tensor {
	s.bytes.Add(4 * int64(rows) * int64(cols))
	return s.Device.NewSums(rows, cols)
}

func (s scale) Close() { s.Device.(interface{ Close() }).Close() }

// What is planned for must be what a device is asked for.
func TestWorkspaceBytes(t *testing.T) {
	open := func(name string) fs.FS {
		files, err := builtin.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	target := open("gocode-7m")
	config, err := ReadConfig(target, "target")
	if err != nil {
		t.Fatal(err)
	}
	head, err := ReadEagle3Config(open("gocode-7m-eagle3"), "head", config)
	if err != nil {
		t.Fatal(err)
	}
	lim := Limits{MaxRows: 24, MaxLogits: 12, MaxDrafts: 6, Pages: 4, PageSize: 8, Kept: 32}
	for name, spec := range map[string]Spec{
		"plain": {},
		"head":  {Draft: Source{"head", open("gocode-7m-eagle3")}, DraftConfig: head},
		"whole": {Draft: Source{"small", target}, DraftConfig: config, DraftWhole: true},
	} {
		for _, ranks := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("%s tp %d", name, ranks), func(t *testing.T) {
				var asked atomic.Int64
				spec.Target, spec.Config, spec.Ranks = Source{"target", target}, config, ranks
				spec.Plan = func(int64, int) (Limits, error) { return lim, nil }
				spec.NewDevice = func(comm collective.Communicator) (compute.Device, error) {
					d, err := cpu.New(comm, 1)
					return scale{d, &asked}, err
				}
				r, err := Load(context.Background(), spec)
				if err != nil {
					t.Fatal(err)
				}
				r.Close()
				if got := WorkspaceBytes(spec, lim, 4); got != asked.Load() {
					t.Errorf("planned for %d bytes, asked for %d", got, asked.Load())
				}
			})
		}
	}
}
