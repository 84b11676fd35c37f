package blas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/internal/seed"
)

// rig is a device with a handle.
type rig struct {
	t      *testing.T
	stream driver.Stream
	h      *Handle
	rng    *rand.Rand
}

// openRig has the device, or reports the test as not run.
func openRig(t *testing.T) *rig {
	t.Helper()
	if err := driver.Open(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	if n, err := driver.Count(); err != nil || n == 0 {
		t.Skipf("NOT RUN: the driver sees no GPU: %v", err)
	}
	c, err := driver.OpenDevice(0)
	must(t, err)
	must(t, c.Enter())
	r := &rig{t: t}
	r.stream, err = driver.NewStream()
	must(t, err)
	workspace, err := driver.Alloc(Workspace)
	must(t, err)
	r.h, err = New(r.stream, workspace)
	must(t, err)
	r.rng = seed.Numbers(t)
	t.Cleanup(func() {
		r.h.Close()
		must(t, driver.FreeMemory(workspace))
		must(t, r.stream.Close())
		must(t, c.Close())
		c.Leave()
	})
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (t Type) size() int {
	if t == F32 {
		return 4
	}
	return 2
}

// encode rounds v to the nearest number of a type, ties to even, and is its bits.
func (t Type) encode(v float64) uint32 {
	switch t {
	case F32:
		return math.Float32bits(float32(v))
	case BF16:
		bits := math.Float32bits(float32(v))
		return (bits + 0x7fff + bits>>16&1) >> 16
	}
	sign := uint32(0)
	if math.Signbit(v) {
		sign, v = 0x8000, -v
	}
	if v == 0 {
		return sign
	}
	_, e := math.Frexp(v)
	e = max(e-1, -14)
	units := uint32(math.RoundToEven(math.Ldexp(v, 10-e))) // of the last place: 1,024 of them is 2^e
	return sign | min(units+uint32(e+14)<<10, 0x7c00)
}

func (t Type) decode(bits uint32) float64 {
	switch t {
	case F32:
		return float64(math.Float32frombits(bits))
	case BF16:
		return float64(math.Float32frombits(bits << 16))
	}
	sign := 1 - 2*float64(bits>>15)
	e, m := int(bits>>10&31), float64(bits&0x3ff)
	switch e {
	case 0:
		return sign * math.Ldexp(m, -24)
	case 31:
		if m != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+m, e-25)
}

// matrix is rows of a type on the device, with room between them that holds no
// numbers.
type matrix struct {
	t      Type
	ptr    driver.Ptr
	stride int
	values [][]float64 // as the type has them
}

func (r *rig) matrix(t Type, stride int, values [][]float64) *matrix {
	r.t.Helper()
	m := &matrix{t: t, stride: stride}
	var err error
	m.ptr, err = driver.Alloc(len(values)*stride*t.size() + 16)
	must(r.t, err)
	r.t.Cleanup(func() { must(r.t, driver.FreeMemory(m.ptr)) })
	r.set(m, values)
	return m
}

// set changes the values of a matrix.
func (r *rig) set(m *matrix, values [][]float64) {
	r.t.Helper()
	b := slices.Repeat([]byte{0xff}, len(values)*m.stride*m.t.size())
	m.values = nil
	for i, row := range values {
		held := make([]float64, len(row))
		for k, v := range row {
			bits := m.t.encode(v)
			held[k] = m.t.decode(bits)
			at := b[(i*m.stride+k)*m.t.size():]
			if m.t == F32 {
				binary.LittleEndian.PutUint32(at, bits)
			} else {
				binary.LittleEndian.PutUint16(at, uint16(bits))
			}
		}
		m.values = append(m.values, held)
	}
	must(r.t, r.stream.Upload(m.ptr, b))
	must(r.t, r.stream.Wait())
}

// bits are those of a matrix of rows of out numbers, and of what lies between them.
func (r *rig) bits(m *matrix, rows int) [][]uint32 {
	r.t.Helper()
	b, err := driver.AllocHost(rows * m.stride * m.t.size())
	must(r.t, err)
	defer func() { must(r.t, driver.FreeHost(b)) }()
	must(r.t, r.stream.Download(b, m.ptr))
	must(r.t, r.stream.Wait())
	all := make([][]uint32, rows)
	for i := range all {
		for k := range m.stride {
			at := b[(i*m.stride+k)*m.t.size():]
			if m.t == F32 {
				all[i] = append(all[i], binary.LittleEndian.Uint32(at))
			} else {
				all[i] = append(all[i], uint32(binary.LittleEndian.Uint16(at)))
			}
		}
	}
	return all
}

func (r *rig) normals(rows, cols int) [][]float64 {
	all := make([][]float64, rows)
	for i := range all {
		for range cols {
			all[i] = append(all[i], r.rng.NormFloat64())
		}
	}
	return all
}

// check fails unless y, of [rows, out], is x · wᵀ, with nothing beside it written.
func (r *rig) check(what string, y, x, w *matrix) {
	r.t.Helper()
	untouched := uint32(1)<<(8*y.t.size()) - 1
	last := map[Type]float64{F32: 0x1p-24, F16: 0x1p-11, BF16: 0x1p-8}[y.t]
	for i, row := range r.bits(y, len(x.values)) {
		for k, bits := range row {
			if k >= len(w.values) {
				if bits != untouched {
					r.t.Fatalf("%s: row %d is written at column %d, beyond its end", what, i, k)
				}
				continue
			}
			var sum, size float64
			for j, v := range x.values[i] {
				sum += v * w.values[k][j]
				size += math.Abs(v * w.values[k][j])
			}
			got := y.t.decode(bits)
			allowed := size*float64(len(x.values[i]))*0x1p-24 + math.Abs(sum)*last + 0x1p-25
			if !(math.Abs(got-sum) <= allowed) {
				r.t.Fatalf("%s: row %d, column %d is %v, want %v within %.2g", what, i, k, got, sum, allowed)
			}
		}
	}
}

// blank is room for results, which are no numbers yet.
func (r *rig) blank(p Product) *matrix {
	return r.matrix(p.Output, p.YStride, make([][]float64, p.Rows))
}

// Every pair of types and every kind of shape gives the sums of float64, whichever
// way is taken, in a recording too.
func TestProducts(t *testing.T) {
	r := openRig(t)
	for _, types := range [][2]Type{{BF16, BF16}, {BF16, F32}, {F16, F32}, {F16, F16}, {F32, F32}} {
		for _, s := range []struct{ rows, out, in, x, y int }{
			{17, 64, 64, 64, 64}, {9, 40, 24, 32, 48}, {33, 8, 200, 200, 8}, {300, 24, 72, 80, 26}, {21, 72, 1024, 1032, 72},
		} {
			p := Product{Rows: s.rows, Out: s.out, In: s.in, XStride: s.x, YStride: s.y, Input: types[0], Output: types[1]}
			what := fmt.Sprintf("%+v", p)
			x, w := r.matrix(p.Input, p.XStride, r.normals(p.Rows, p.In)), r.matrix(p.Input, p.In, r.normals(p.Out, p.In))
			y := r.blank(p)
			// Ways are timed for what comes often, once, also if it did not at first.
			for i, often := range []bool{false, true, true, false} {
				r.set(y, make([][]float64, p.Rows))
				ok, err := r.h.Multiply(p, y.ptr, x.ptr, w.ptr, often, true)
				if err != nil || !ok {
					t.Fatalf("%s: %t, %v", what, ok, err)
				}
				if timed := r.h.plans[p].timed; timed != (i > 0 && p.Rows <= timedRows) {
					t.Errorf("%s, time %d: the ways were timed: %t", what, i+1, timed)
				}
				r.check(what, y, x, w)
			}
			pl, ways, err := r.h.plan(p, true)
			must(t, err)
			for i, way := range ways {
				r.set(y, make([][]float64, p.Rows))
				pl.algorithm = way.algorithm
				if st := r.h.run(pl, y.ptr, x.ptr, w.ptr); st != 0 {
					t.Fatalf("%s: way %d: %d", what, i, st)
				}
				r.check(fmt.Sprintf("%s, way %d of %d", what, i+1, len(ways)), y, x, w)
			}
			pl.close()
			g, err := r.stream.Capture(func() error {
				_, err := r.h.Multiply(p, y.ptr, x.ptr, w.ptr, true, false)
				return err
			})
			must(t, err)
			r.set(x, r.normals(p.Rows, p.In))
			r.set(y, make([][]float64, p.Rows))
			must(t, r.stream.Launch(g))
			r.check(what+", recorded", y, x, w)
			must(t, g.Close())
		}
	}
}

// Results are rounded to the nearest number of their type, ties to even.
func TestProductsAreRounded(t *testing.T) {
	r := openRig(t)
	for _, types := range [][2]Type{{BF16, BF16}, {F16, F16}} {
		p := Product{Rows: 16, Out: 256, In: 32, XStride: 32, YStride: 256, Input: types[0], Output: types[1]}
		x, w := make([][]float64, p.Rows), make([][]float64, p.Out)
		for i := range x {
			x[i] = make([]float64, p.In)
			x[i][0], x[i][1] = math.Ldexp(1, -i), math.Ldexp(1, -i)
		}
		for k := range w {
			w[k] = make([]float64, p.In) // two numbers whose sum is exact in float32, and often a tie
			w[k][0], w[k][1] = float64(128+k/2)/32, float64(r.rng.IntN(256))/64
		}
		mx, mw, y := r.matrix(p.Input, p.XStride, x), r.matrix(p.Input, p.In, w), r.blank(p)
		if ok, err := r.h.Multiply(p, y.ptr, mx.ptr, mw.ptr, false, true); err != nil || !ok {
			t.Fatal(ok, err)
		}
		for i, row := range r.bits(y, p.Rows) {
			for k, got := range row {
				sum := mx.values[i][0] * (mw.values[k][0] + mw.values[k][1])
				if want := p.Output.encode(sum); got != want {
					t.Fatalf("types %v: %v is rounded to %#x, want %#x", types, sum, got, want)
				}
			}
		}
	}
}

// What cannot be multiplied is an error or a refusal, and never a wrong product.
func TestProductsThatAreRefused(t *testing.T) {
	r := openRig(t)
	good := Product{Rows: 17, Out: 32, In: 64, XStride: 64, YStride: 32, Input: BF16, Output: BF16}
	for name, change := range map[string]func(*Product){
		"rows of x that overlap":     func(p *Product) { p.XStride = 32 },
		"rows of y that overlap":     func(p *Product) { p.YStride = 16 },
		"no rows":                    func(p *Product) { p.Rows = 0 },
		"float16 to bfloat16":        func(p *Product) { p.Input = F16 },
		"a type that is none":        func(p *Product) { p.Output = 99 },
		"float32 to bfloat16":        func(p *Product) { p.Input = F32 },
		"results at odd addresses":   func(p *Product) { p.YStride = 33 },
		"rows of x at odd addresses": func(p *Product) { p.XStride = 65 },
	} {
		p := good
		change(&p)
		x, w := r.matrix(BF16, 128, r.normals(17, 128)), r.matrix(BF16, 128, r.normals(32, 128))
		y := r.matrix(BF16, 64, make([][]float64, 17))
		ok, err := r.h.Multiply(p, y.ptr, x.ptr, w.ptr, true, true)
		var failed *Error
		if ok && err == nil && p.YStride%2 == 0 && p.XStride%2 == 0 { // cards may have a way for the last two
			t.Errorf("%s is multiplied", name)
		}
		if err != nil && (!errors.As(err, &failed) || failed.Status == 0) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, r.stream.Wait())
	}
	if ok, err := r.h.Multiply(good, 0, 0, 0, false, true); err == nil {
		t.Errorf("a product of nothing: %t", ok)
	}
}

// A heuristic's result is laid out as cublasLtMatmulHeuristicResult_t.
func TestHeuristicResultIsLaidOut(t *testing.T) {
	if n := unsafe.Sizeof(heuristicResult{}); n != 96 {
		t.Errorf("it takes %d bytes, want 96", n)
	}
}

// Of what was not expected to come often the ways are timed when it has, though not in a
// recording; and what is planned anew takes no other plan's place.
func TestPlansByUse(t *testing.T) {
	most := maxPlans
	maxPlans = 2
	defer func() { maxPlans = most }()
	r := openRig(t)
	product := func(rows int) (Product, func(often, wait bool)) {
		p := Product{Rows: rows, Out: 64, In: 64, XStride: 64, YStride: 64, Input: BF16, Output: BF16}
		x, w, y := r.matrix(BF16, 64, r.normals(rows, 64)), r.matrix(BF16, 64, r.normals(64, 64)), r.blank(p)
		return p, func(often, wait bool) {
			t.Helper()
			if ok, err := r.h.Multiply(p, y.ptr, x.ptr, w.ptr, often, wait); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}
	}
	a, multiply := product(17)
	for range manyUses {
		multiply(false, true)
	}
	multiply(false, false)
	if r.h.plans[a].timed {
		t.Error("the ways were timed where nothing may wait")
	}
	multiply(false, true)
	if !r.h.plans[a].timed {
		t.Errorf("the ways were not timed after %d uses", manyUses+1)
	}
	b, other := product(33)
	other(false, true)
	other(true, true)
	if len(r.h.plans) != 2 || !r.h.plans[b].timed || !r.h.plans[a].timed {
		t.Errorf("%d plans, timed: %t", len(r.h.plans), r.h.plans[b].timed)
	}
}
