package nccl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/compute/cuda/emulation"
	"github.com/outrider-dev/outrider/internal/seed"
)

// TestMain gives the emulation of CUDA, where it is used, as many GPUs as tests want.
func TestMain(m *testing.M) {
	const devices = "OUTRIDER_EMULATION_DEVICES"
	if os.Getenv(devices) == "" {
		if err := os.Setenv(devices, "4"); err != nil {
			panic(err)
		}
	}
	m.Run()
}

// rank is a GPU's end of a group in a test. Its methods are for one goroutine, but
// for those of comm.
type rank struct {
	number  int
	context *driver.Context
	stream  driver.Stream
	comm    Comm
}

// group makes a group of n GPUs, or reports the test as not run; each runs f for
// all ranks at once.
func group(t *testing.T, n int) (all []*rank, each func(f func(r *rank) error)) {
	t.Helper()
	library(t)
	if err := driver.Open(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	if have, err := driver.Count(); err != nil || have < n {
		t.Skipf("NOT RUN: it wants %d GPUs, and there are %d: %v", n, have, err)
	}
	var devices []int
	for i := range n {
		devices = append(devices, i)
		all = append(all, &rank{number: i})
	}
	each = func(f func(r *rank) error) {
		t.Helper()
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i, r := range all {
			wg.Go(func() {
				if errs[i] = r.context.Enter(); errs[i] == nil {
					errs[i] = f(r)
				}
				r.context.Leave()
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range all {
		var err error
		if r.context, err = driver.OpenDevice(i); err != nil {
			t.Fatal(err)
		}
	}
	comms, err := InitAll(devices)
	if err != nil {
		t.Fatal(err)
	}
	each(func(r *rank) (err error) {
		r.comm = comms[r.number]
		r.stream, err = driver.NewStream()
		return err
	})
	return all, each
}

// closeGroup ends a group whose work has ended.
func closeGroup(each func(f func(r *rank) error)) {
	each(func(r *rank) error {
		return errors.Join(r.stream.Wait(), r.comm.Close(), r.stream.Close(), r.context.Close())
	})
}

// emulated reports a test as not run on GPUs: it is of the emulation alone.
func emulated(t *testing.T) {
	t.Helper()
	if err := emulation.Loaded(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
}

func (t Type) encode(values []float32) []byte {
	var b []byte
	for _, v := range values {
		bits := math.Float32bits(v)
		if t == F32 {
			b = binary.LittleEndian.AppendUint32(b, bits)
		} else {
			b = binary.LittleEndian.AppendUint16(b, uint16((bits+0x7fff+bits>>16&1)>>16))
		}
	}
	return b
}

func (t Type) decode(b []byte) []float64 {
	var values []float64
	for len(b) > 0 {
		if t == F32 {
			values = append(values, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
			b = b[4:]
		} else {
			values = append(values, float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b))<<16)))
			b = b[2:]
		}
	}
	return values
}

// collective is one of those that are tested, of n elements of a type.
type collective struct {
	name    string
	inPlace bool
	whole   int // the result is so many times as long as what is sent
	queue   func(r *rank, recv, send driver.Ptr, n int, t Type) error
	want    func(in [][]float64) []float64
	exact   bool
}

func collectives(ranks int) []collective {
	sum := func(in [][]float64) []float64 {
		y := make([]float64, len(in[0]))
		for _, x := range in {
			for i, v := range x {
				y[i] += v
			}
		}
		return y
	}
	add := func(r *rank, recv, send driver.Ptr, n int, t Type) error {
		return r.comm.AllReduce(recv, send, n, t, r.stream)
	}
	return []collective{
		{"sum", false, 1, add, sum, false},
		{"sum in place", true, 1, add, sum, false},
		{"gathering", false, ranks, func(r *rank, recv, send driver.Ptr, n int, t Type) error {
			return r.comm.AllGather(recv, send, n, t, r.stream)
		}, func(in [][]float64) []float64 { return slices.Concat(in...) }, true},
		{"broadcast", false, 1, func(r *rank, recv, send driver.Ptr, n int, t Type) error {
			return r.comm.Broadcast(recv, send, n, t, ranks-1, r.stream)
		}, func(in [][]float64) []float64 { return in[ranks-1] }, true},
	}
}

// Every collective gives every rank the same, and what it should, as one call and
// in recordings.
func TestCollectives(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4} {
		t.Run(fmt.Sprintf("%d GPUs", n), func(t *testing.T) {
			_, each := group(t, n)
			from := seed.Of(t)
			for _, c := range collectives(n) {
				for _, dtype := range []Type{F32, BF16} {
					for _, count := range []int{1, 7, 4096} {
						tryCollective(t, n, each, c, dtype, count, from)
					}
				}
			}
			closeGroup(each)
		})
	}
}

func tryCollective(t *testing.T, n int, each func(func(*rank) error), c collective, dtype Type, count int, seed uint64) {
	t.Helper()
	in, got, again := make([][]float64, n), make([][]byte, n), make([][]byte, n)
	each(func(r *rank) error {
		rng := rand.New(rand.NewPCG(seed, uint64(r.number)))
		values := make([]float32, count)
		for i := range values {
			values[i] = float32(rng.NormFloat64())
		}
		b := dtype.encode(values)
		in[r.number] = dtype.decode(b)
		send, err := driver.Alloc(len(b))
		if err != nil {
			return err
		}
		recv, err := driver.Alloc(n * len(b))
		if err != nil {
			return err
		}
		host, err := driver.AllocHost(n * len(b))
		if err != nil {
			return err
		}
		from, size := send, c.whole*len(b)
		read := func(to *[]byte) error {
			err := errors.Join(r.stream.Download(host[:size], recv), r.stream.Wait())
			*to = slices.Clone(host[:size])
			return err
		}
		prepare := func() error {
			err := r.stream.Fill(recv, 0xff, n*len(b))
			if c.inPlace {
				from = recv
				err = errors.Join(err, r.stream.Upload(recv, b))
			}
			return errors.Join(err, r.stream.Upload(send, b), r.stream.Wait())
		}
		if err := errors.Join(prepare(), c.queue(r, recv, from, count, dtype), read(&got[r.number]), prepare()); err != nil {
			return err
		}
		g, err := r.stream.Capture(func() error { return c.queue(r, recv, from, count, dtype) })
		if err != nil {
			return err
		}
		launches := 3
		if c.inPlace {
			launches = 1
		}
		for range launches {
			if err := r.stream.Launch(g); err != nil {
				return err
			}
		}
		return errors.Join(read(&again[r.number]), g.Close(), driver.FreeMemory(send), driver.FreeMemory(recv), driver.FreeHost(host), r.comm.AsyncError())
	})
	want := c.want(in)
	for k := range n {
		what := fmt.Sprintf("%s of %d elements of type %d, rank %d", c.name, count, dtype, k)
		if !slices.Equal(got[k], got[0]) || !slices.Equal(again[k], got[0]) {
			t.Fatalf("%s: not what rank 0 has, or not in a recording", what)
		}
		for i, v := range dtype.decode(got[k]) {
			allowed := 0.0
			if !c.exact { // rounded on the way from rank to rank
				last := map[Type]float64{F32: 0x1p-24, BF16: 0x1p-8}[dtype]
				for _, x := range in {
					allowed += math.Abs(x[i]) * last * float64(n)
				}
			}
			if !(math.Abs(v-want[i]) <= allowed) {
				t.Fatalf("%s: element %d is %v, want %v within %.2g", what, i, v, want[i], allowed)
			}
		}
	}
}

// A rank that never comes has the other one wait until that is aborted.
func TestAbortEndsAWait(t *testing.T) {
	all, each := group(t, 2)
	x := make([]driver.Ptr, 2)
	each(func(r *rank) (err error) {
		x[r.number], err = driver.Alloc(64)
		return err
	})
	each(func(r *rank) error {
		if r.number == 1 {
			return nil // for good
		}
		if err := r.comm.AllReduce(x[0], x[0], 16, F32, r.stream); err != nil {
			return err
		}
		for range 1000 {
			if ended, err := r.stream.Done(); ended || err != nil {
				return fmt.Errorf("a sum without the other rank has ended: %w", err)
			}
		}
		return nil
	})
	each(func(r *rank) error { return r.comm.Abort() })
	each(func(r *rank) error {
		return errors.Join(r.stream.Wait(), driver.FreeMemory(x[r.number]), r.stream.Close())
	})
	for _, r := range all {
		if err := r.context.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Ranks that come to different collectives have a fault, and so has one of which the
// library is told so.
func TestAsyncErrors(t *testing.T) {
	emulated(t)
	all, each := group(t, 2)
	state := filepath.Join(t.TempDir(), "state")
	t.Setenv("OUTRIDER_EMULATION_NCCL", state)
	for _, r := range all {
		if err := r.comm.AsyncError(); err != nil {
			t.Errorf("rank %d: %v", r.number, err)
		}
	}
	if err := os.WriteFile(state, []byte("1 6\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var call *Error
	if err := all[1].comm.AsyncError(); !errors.As(err, &call) || call.Code != 6 || !strings.Contains(err.Error(), "remote process exited") {
		t.Errorf("rank 1: %v", err)
	}
	if err := all[0].comm.AsyncError(); err != nil {
		t.Errorf("rank 0: %v", err)
	}
	if err := os.Remove(state); err != nil {
		t.Fatal(err)
	}
	x := make([]driver.Ptr, 2)
	each(func(r *rank) (err error) {
		if x[r.number], err = driver.Alloc(64); err != nil {
			return err
		}
		return r.comm.AllReduce(x[r.number], x[r.number], 8+r.number, F32, r.stream)
	})
	for all[0].comm.AsyncError() == nil { // the limit of all tests ends it otherwise
		time.Sleep(time.Millisecond)
	}
	if err := all[1].comm.AsyncError(); !errors.As(err, &call) || !strings.Contains(err.Error(), "elements of type 7, another one differs") {
		t.Errorf("ranks that disagree: %v", err)
	}
	each(func(r *rank) error {
		return errors.Join(r.comm.Abort(), r.stream.Wait(), driver.FreeMemory(x[r.number]))
	})
}

// NCCL_ALGO has an algorithm that gathers, or gathering is an error in words.
func TestAlgorithmsOfCollectives(t *testing.T) {
	for algo, gathers := range map[string]bool{"": true, "Tree": true, "Ring;allreduce:Tree": true, "allgather:Tree": false, "^Ring": false} {
		t.Run(algo, func(t *testing.T) {
			t.Setenv("NCCL_ALGO", algo)
			emulated(t)
			_, each := group(t, 1)
			each(func(r *rank) error {
				x, err := driver.Alloc(64)
				if err != nil {
					return err
				}
				err = r.comm.AllGather(x, x, 4, F32, r.stream)
				if (err == nil) != gathers || err != nil && !strings.Contains(err.Error(), "NCCL_ALGO="+algo) {
					return fmt.Errorf("gathering says %w", err)
				}
				return driver.FreeMemory(x)
			})
			closeGroup(each)
		})
	}
}
