package model

import (
	"context"
	"io/fs"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/fetch/builtin"
)

// copying is a device that keeps what goes beside the residual stream. Its device
// does not see that, so that only what is kept here is compared.
type copying struct {
	compute.Device
	moves  int         // operations that only move rows
	inputs [][]float32 // row 0 of the stream at the input of each layer but the first
	layer  int
	copies map[int][]float32 // by layer, what the stream's copy has
}

func (c *copying) Copy(dst, x compute.Tensor, rows int) { c.moves++; c.Device.Copy(dst, x, rows) }

func (c *copying) LinearNorm(dst compute.Tensor, to compute.Residual, sum, x compute.Tensor, w, norm compute.Weight, eps float32, next compute.Weight, rows int) {
	c.Device.LinearNorm(dst, to, sum, x, w, norm, eps, next, rows)
	if c.layer++; c.layer%2 == 1 {
		return // the attention's
	}
	c.inputs = append(c.inputs, slices.Clone(c.Floats(to.Sum, 0)))
	if to.Copy != nil {
		c.copies[c.layer/2] = slices.Clone(c.Floats(to.Copy, 0))
	}
}

// bundled is the bundled model, and its head.
func bundled(t *testing.T) (target, head fs.FS, config, headConfig *Config) {
	t.Helper()
	open := func(name string) fs.FS {
		files, err := builtin.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	target, head = open("gocode-7m"), open("gocode-7m-eagle3")
	var err error
	if config, err = ReadConfig(target, "target"); err != nil {
		t.Fatal(err)
	}
	if headConfig, err = ReadEagle3Config(head, "head", config); err != nil {
		t.Fatal(err)
	}
	return target, head, config, headConfig
}

// A target with a head brings the inputs of the layers that the head reads to where
// they are kept, with no operation more than one without a head.
func TestFeaturesCostNoOperation(t *testing.T) {
	target, head, config, headConfig := bundled(t)
	layers, err := headConfig.FeatureLayers(config)
	if err != nil {
		t.Fatal(err)
	}
	var moves []int
	for _, spec := range []Spec{{}, {Draft: Source{"head", head}, DraftConfig: headConfig}} {
		d := &copying{copies: map[int][]float32{}}
		spec.Target, spec.Config, spec.Ranks = Source{"target", target}, config, 1
		spec.Plan = func(int64, int) (Limits, error) {
			return Limits{MaxRows: 8, MaxLogits: 8, MaxDrafts: 8, Pages: 4, PageSize: 8, Kept: 8}, nil
		}
		spec.NewDevice = func(comm collective.Communicator) (compute.Device, error) {
			var err error
			d.Device, err = cpu.New(comm, 1)
			return d, err
		}
		r, err := Load(context.Background(), spec)
		if err != nil {
			t.Fatal(err)
		}
		pass(t, r, []int32{17, 4, 300}, 0)
		moves = append(moves, d.moves)
		want := layers
		if spec.DraftConfig == nil {
			want = nil
		}
		if len(d.copies) != len(want) {
			t.Errorf("%d streams are copied, want those at the inputs of layers %v", len(d.copies), want)
		}
		for _, i := range want {
			if !slices.Equal(d.copies[i], d.inputs[i-1]) {
				t.Errorf("the copy of layer %d's input is not that", i)
			}
		}
		r.Close()
	}
	if moves[0] != moves[1] {
		t.Errorf("%d operations only move rows with a head, and %d without", moves[1], moves[0])
	}
}
