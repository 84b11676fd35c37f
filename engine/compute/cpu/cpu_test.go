package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
)

// onEach runs f with every kernel set of this processor.
func onEach(t *testing.T, f func(t *testing.T, k *kernels)) {
	for _, k := range supportedKernels() {
		t.Run(k.name, func(t *testing.T) { f(t, k) })
	}
}

func device(t testing.TB, k *kernels, threads int) *Device {
	d := newDevice(collective.NewLocal(1, 0)[0], threads, k)
	t.Cleanup(d.Close)
	return d
}

func random(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

func fill(t compute.Tensor, x []float32) { copy(t.(*tensor).data, x) }

// matrix makes a weight of the values, rounded to bfloat16, and returns those.
func matrix(t testing.TB, d *Device, dtype compute.DType, out, in int, values []float32) (compute.Weight, []float32) {
	rounded := make([]float32, len(values))
	w, err := d.NewWeight(dtype, out, in, func(row, rows int, dst []byte) error {
		for i, v := range values[row*in : (row+rows)*in] {
			bits := math.Float32bits(v) &^ 0xffff
			rounded[row*in+i] = math.Float32frombits(bits)
			if dtype == compute.BF16 {
				binary.LittleEndian.PutUint16(dst[2*i:], uint16(bits>>16))
			} else {
				binary.LittleEndian.PutUint32(dst[4*i:], bits)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return w, rounded
}

func TestLinearEqualsTheSum(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		rng := rand.New(rand.NewPCG(1, 2))
		for _, dtype := range []compute.DType{compute.BF16, compute.F32} {
			for _, c := range []struct{ rows, in, out int }{
				{1, 256, 512}, {2, 256, 9}, {3, 64, 7}, {4, 96, 4}, {5, 24, 6}, {7, 100, 3}, {70, 16, 33}, {9, 5, 1}, {1, 1, 1}, {130, 768, 256},
			} {
				d := device(t, k, 2)
				values := random(rng, c.in*c.out)
				w, values := matrix(t, d, dtype, c.out, c.in, values)
				x, y := d.NewTensor(c.rows, c.in), d.NewTensor(c.rows, c.out)
				xs := random(rng, c.rows*c.in)
				fill(x, xs)
				d.Linear(y, x, w, c.rows)
				for i := range c.rows {
					for r, got := range d.Floats(y, i) {
						var want, size float64
						for j := range c.in {
							p := float64(values[r*c.in+j]) * float64(xs[i*c.in+j])
							want += p
							size += math.Abs(p)
						}
						if math.Abs(float64(got)-want) > 1e-6*size+1e-30 {
							t.Fatalf("%v %+v: output (%d, %d) is %v, want %v", dtype, c, i, r, got, want)
						}
					}
				}
			}
		}
	})
}

// A row's result must be the same bits alone and among others, on one thread
// and on several: exact speculation rests on it.
func TestLinearDoesNotDependOnBatchOrThreads(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		rng := rand.New(rand.NewPCG(3, 4))
		for _, in := range []int{256, 100, 24, 7} {
			const rows, out = 11, 531
			one, three := device(t, k, 1), device(t, k, 3)
			values := random(rng, in*out)
			w1, _ := matrix(t, one, compute.BF16, out, in, values)
			w3, _ := matrix(t, three, compute.BF16, out, in, values)
			xs := random(rng, rows*in)
			x, y := three.NewTensor(rows, in), three.NewTensor(rows, out)
			fill(x, xs)
			three.pool.do(&linearTask{k: setFor(k, in), dst: y.(*tensor), x: x.(*tensor), w: w3.(*weight), rows: rows})
			for i := range rows {
				xi, yi := one.NewTensor(1, in), one.NewTensor(1, out)
				fill(xi, xs[i*in:(i+1)*in])
				one.Linear(yi, xi, w1, 1)
				if !slices.Equal(one.Floats(yi, 0), three.Floats(y, i)) {
					t.Fatalf("width %d: row %d differs alone and in a batch of %d", in, i, rows)
				}
			}
		}
	})
}

func setFor(k *kernels, in int) *kernels {
	if in < k.lanes {
		return genericKernels
	}
	return k
}

// attend computes one sequence of n positions with the last rows rows as queries.
func attend(t *testing.T, k *kernels, threads, pageSize, n, rows, window int, shape compute.AttentionShape, qkv []float32) [][]float32 {
	d := device(t, k, threads)
	pages := (n + pageSize - 1) / pageSize
	c := d.NewCache(2, pages+1, pageSize, shape, compute.CacheFormat{})
	table := make([]int32, pages)
	for i := range table {
		table[i] = int32(pages - i) // out of order; page 0 is not used
	}
	var out [][]float32
	cols := shape.QKVCols()
	pass := func(from, to int) {
		var r compute.Rows
		seq := r.AddSequence(table, 0)
		for p := from; p < to; p++ {
			r.Add(seq, 0, int32(p), pageSize)
		}
		x, y := d.NewTensor(to-from, cols), d.NewTensor(to-from, shape.Heads*shape.HeadDim)
		fill(x, qkv[from*cols:to*cols])
		freqs := make([]float32, shape.HeadDim/2)
		for i := range freqs {
			freqs[i] = float32(math.Pow(10000, -2*float64(i)/float64(shape.HeadDim)))
		}
		d.Prepare(&r, freqs, 1)
		d.RopeAndCache(x, c, 1, &r)
		d.Attention(y, x, c, 1, window, &r)
		for i := range to - from {
			out = append(out, slices.Clone(d.Floats(y, i)))
		}
	}
	if n > rows {
		pass(0, n-rows)
	}
	pass(n-rows, n)
	return out
}

// reference computes attention in float64, with queries and keys turned to their positions.
func reference(shape compute.AttentionShape, n, window int, qkv []float32) [][]float64 {
	cols, dim := shape.QKVCols(), shape.HeadDim
	turn := func(x []float32, p int) []float64 {
		y := make([]float64, dim)
		for j := range dim / 2 {
			angle := float64(p) * math.Pow(10000, -2*float64(j)/float64(dim))
			s, c := math.Sincos(angle)
			a, b := float64(x[j]), float64(x[j+dim/2])
			y[j], y[j+dim/2] = a*c-b*s, b*c+a*s
		}
		return y
	}
	out := make([][]float64, n)
	for i := range n {
		out[i] = make([]float64, shape.Heads*dim)
		for h := range shape.Heads {
			q := turn(qkv[i*cols+h*dim:], i)
			kv := h / (shape.Heads / shape.KVHeads)
			weights, top := make([]float64, i+1), math.Inf(-1)
			first := 0
			if window > 0 {
				first = max(0, i+1-window)
			}
			for p := first; p <= i; p++ {
				for j, k := range turn(qkv[p*cols+(shape.Heads+kv)*dim:], p) {
					weights[p] += q[j] * k * float64(shape.Scale)
				}
				top = max(top, weights[p])
			}
			var sum float64
			for p := first; p <= i; p++ {
				weights[p] = math.Exp(weights[p] - top)
				sum += weights[p]
			}
			for p := first; p <= i; p++ {
				w := weights[p]
				for j := range dim {
					out[i][h*dim+j] += w / sum * float64(qkv[p*cols+(shape.Heads+shape.KVHeads+kv)*dim+j])
				}
			}
		}
	}
	return out
}

func TestAttention(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		for _, c := range []struct {
			shape     compute.AttentionShape
			n, window int
		}{
			{compute.AttentionShape{Heads: 4, KVHeads: 2, HeadDim: 64, Scale: 0.125}, 37, 0},
			{compute.AttentionShape{Heads: 6, KVHeads: 1, HeadDim: 16, Scale: 0.25}, 21, 0},
			{compute.AttentionShape{Heads: 3, KVHeads: 3, HeadDim: 20, Scale: 0.2}, 9, 0},
			{compute.AttentionShape{Heads: 8, KVHeads: 1, HeadDim: 128, Scale: 0.08}, 70, 0},
			{compute.AttentionShape{Heads: 4, KVHeads: 2, HeadDim: 32, Scale: 0.18}, 50, 7},
			{compute.AttentionShape{Heads: 4, KVHeads: 2, HeadDim: 32, Scale: 0.18}, 50, 1},
		} {
			qkv := random(rand.New(rand.NewPCG(5, uint64(c.n))), c.n*c.shape.QKVCols())
			want := reference(c.shape, c.n, c.window, qkv)
			whole := attend(t, k, 1, 16, c.n, c.n, c.window, c.shape, qkv)
			for i := range want {
				for j, w := range want[i] {
					if math.Abs(float64(whole[i][j])-w) > 2e-5*(1+math.Abs(w)) {
						t.Fatalf("%+v: row %d, value %d is %v, want %v", c, i, j, whole[i][j], w)
					}
				}
			}
			for _, split := range []struct{ threads, pageSize, rows int }{{1, 1, 1}, {3, 5, 4}, {2, 16, 2}, {4, 128, c.n}} {
				got := attend(t, k, split.threads, split.pageSize, c.n, split.rows, c.window, c.shape, qkv)
				for i := range got {
					if !slices.Equal(got[i], whole[i]) {
						t.Fatalf("%+v split %+v: row %d differs from one pass with pages of 16", c, split, i)
					}
				}
			}
		}
	})
}

// What lies before a sequence's start is as if it were not there.
func TestAttentionFromAStart(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		shape := compute.AttentionShape{Heads: 4, KVHeads: 2, HeadDim: 32, Scale: 0.18}
		const n, start = 40, 13
		rng := rand.New(rand.NewPCG(11, 12))
		d := device(t, k, 2)
		c := d.NewCache(1, 8, 8, shape, compute.CacheFormat{})
		x, y := d.NewTensor(n, shape.QKVCols()), d.NewTensor(n, shape.Heads*shape.HeadDim)
		qkv := random(rng, n*shape.QKVCols())
		freqs := make([]float32, shape.HeadDim/2) // no turning: positions may shift
		run := func(from int) []float32 {
			var r compute.Rows
			seq := r.AddSequence([]int32{3, 1, 4, 0, 5, 2}, from)
			for p := from; p < n; p++ {
				r.Add(seq, 0, int32(p), 8)
			}
			fill(x, qkv[from*shape.QKVCols():])
			d.Prepare(&r, freqs, 1)
			d.RopeAndCache(x, c, 0, &r)
			d.Attention(y, x, c, 0, 0, &r)
			return slices.Clone(d.Floats(y, n-1-from))
		}
		var moved compute.Rows // the same rows as a sequence that begins there
		got := run(start)
		seq := moved.AddSequence([]int32{0, 1, 2, 3, 4}, 0)
		for p := range n - start {
			moved.Add(seq, 0, int32(p), 8)
		}
		fill(x, qkv[start*shape.QKVCols():])
		d.Prepare(&moved, freqs, 1)
		d.RopeAndCache(x, c, 0, &moved)
		d.Attention(y, x, c, 0, 0, &moved)
		if !slices.Equal(got, d.Floats(y, n-1-start)) {
			t.Error("a row sees what lies before its sequence's start")
		}
	})
}

func TestScatter(t *testing.T) {
	d := device(t, genericKernels, 1)
	x, y := d.NewTensor(3, 2), d.NewTensor(4, 2)
	fill(x, []float32{1, 2, 3, 4, 5, 6})
	d.Scatter(y, x, []int32{3, 0}, []int32{1, 2})
	if got := y.(*tensor).data; !slices.Equal(got, []float32{5, 6, 0, 0, 0, 0, 3, 4}) {
		t.Errorf("got %v", got)
	}
}

func TestRMSNormAndSilu(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	d := device(t, genericKernels, 1)
	const n = 37
	x, r, y := d.NewTensor(2, n), d.NewTensor(2, n), d.NewTensor(2, 2*n)
	xs, rs, g := random(rng, 2*n), random(rng, 2*n), random(rng, n)
	fill(x, xs)
	fill(r, rs)
	w, g := matrix(t, d, compute.F32, 1, n, g)
	right := d.Columns(y, n, n)
	wide := d.NewTensor(2, 3*n)
	d.AddRMSNorm(right, compute.Residual{Sum: r, Copy: d.Columns(wide, n, n)}, x, w, 1e-5, 2)
	for i := range 2 {
		if row := d.Floats(wide, i); !slices.Equal(row[n:2*n], d.Floats(r, i)) || slices.ContainsFunc(slices.Concat(row[:n], row[2*n:]), func(v float32) bool { return v != 0 }) {
			t.Fatalf("the stream is %v, and its copy among zeros %v", d.Floats(r, i), row)
		}
	}
	for i := range 2 {
		var sum float64
		for j := range n {
			v := float64(xs[i*n+j]) + float64(rs[i*n+j])
			sum += v * v
		}
		for j := range n {
			v := float64(xs[i*n+j]) + float64(rs[i*n+j])
			want := v / math.Sqrt(sum/n+1e-5) * float64(g[j])
			if got := d.Floats(y, i)[n+j]; math.Abs(float64(got)-want) > 1e-5 {
				t.Fatalf("row %d, value %d is %v, want %v", i, j, got, want)
			}
			if d.Floats(y, i)[j] != 0 {
				t.Fatal("a view of columns wrote beside itself")
			}
		}
	}
	out := d.NewTensor(2, n)
	gateUp := random(rng, 4*n)
	gateUp[0], gateUp[1] = 200, -200
	fill(y, gateUp)
	d.SiluMul(out, y, 2)
	for i := range 2 {
		for j := range n {
			gate, up := float64(gateUp[i*2*n+j]), float64(gateUp[i*2*n+n+j])
			want := gate / (1 + math.Exp(-gate)) * up
			if got := float64(d.Floats(out, i)[j]); math.Abs(got-want) > 1e-6*(1+math.Abs(want)) {
				t.Errorf("silu(%v)·%v is %v, want %v", gate, up, got, want)
			}
		}
	}
}

func TestExp32(t *testing.T) {
	for x := float32(-87); x < 88; x += 0.00371 {
		want := math.Exp(float64(x))
		if got := float64(exp32(x)); math.Abs(got-want) > 2.4e-7*want {
			t.Fatalf("exp32(%v) = %v, want %v", x, got, want)
		}
	}
	if exp32(-1000) != 0 || !(exp32(1000) > 1e38) || exp32(0) != 1 {
		t.Errorf("ends: %v, %v, %v", exp32(-1000), exp32(1000), exp32(0))
	}
}

// TestKernelsFollowTheProcessor switches processor features off, in a process
// of its own since they are read at start. Products of integers stay the same.
func TestKernelsFollowTheProcessor(t *testing.T) {
	if os.Getenv("OUTRIDER_TEST_PRINT_KERNELS") != "" {
		fmt.Printf("kernels=%s integers=%s\n", supportedKernels()[0].name, intDigest(t))
		return
	}
	run := func(godebug string) (name, integers string) {
		c := exec.Command(os.Args[0], "-test.run=^TestKernelsFollowTheProcessor$", "-test.v")
		c.Env = append(os.Environ(), "GODEBUG="+godebug, "OUTRIDER_TEST_PRINT_KERNELS=1")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		_, after, _ := strings.Cut(string(out), "kernels=")
		if _, err := fmt.Sscanf(after, "%s integers=%s", &name, &integers); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return name, integers
	}
	_, want := run("")
	for _, c := range []struct{ godebug, not string }{
		{"cpu.avx512vnni=off", "avx512vnni"},
		{"cpu.avx512f=off", "avx512"},
		{"cpu.avx512f=off,cpu.avx2=off", "avx2"},
		{"cpu.avx512f=off,cpu.fma=off", "avx2"},
	} {
		got, integers := run(c.godebug)
		if got == "" || got == c.not || strings.Contains(c.godebug, "avx512f") && strings.HasPrefix(got, "avx512") {
			t.Errorf("with %s the kernels are %q", c.godebug, got)
		}
		if integers != want {
			t.Errorf("with %s the kernels are %s, and products of integers are others than with all features", c.godebug, got)
		}
	}
}

func TestForcedKernels(t *testing.T) {
	t.Setenv(KernelsEnv, "generic")
	k, err := chooseKernels()
	if err != nil || k.name != "generic" {
		t.Errorf("got %v, %v", k, err)
	}
	t.Setenv(KernelsEnv, "sse1")
	if _, err := chooseKernels(); err == nil || !strings.Contains(err.Error(), "generic") {
		t.Errorf("an unknown set gives %v; want what is allowed", err)
	}
}

func TestOperationsAllocateNothing(t *testing.T) {
	d := device(t, supportedKernels()[0], 2)
	shape := compute.AttentionShape{Heads: 4, KVHeads: 2, HeadDim: 64, Scale: 0.125}
	c := d.NewCache(1, 4, 16, shape, compute.CacheFormat{})
	w, _ := matrix(t, d, compute.BF16, 512, 256, make([]float32, 512*256))
	x, qkv, y := d.NewTensor(4, 256), d.NewTensor(4, 512), d.NewTensor(4, 256)
	var r compute.Rows
	seq := r.AddSequence([]int32{0, 1, 2, 3}, 0)
	for p := range int32(4) {
		r.Add(seq, 0, 60+p, 16)
	}
	freqs := make([]float32, 32)
	if n := testing.AllocsPerRun(20, func() {
		d.Prepare(&r, freqs, 1)
		d.Linear(qkv, x, w, 4)
		d.RopeAndCache(qkv, c, 0, &r)
		d.Attention(y, qkv, c, 0, 0, &r)
		d.SiluMul(x, qkv, 4)
	}); n != 0 {
		t.Errorf("%v allocations for each pass, want 0", n)
	}
}

// BenchmarkLinear reports how verifying m tokens compares with one: the
// weights are larger than the caches, as a real model's.
func BenchmarkLinear(b *testing.B) {
	const in, out = 4096, 16384
	for _, k := range supportedKernels()[:1] {
		d := device(b, k, 1)
		w, _ := matrix(b, d, compute.BF16, out, in, make([]float32, in*out))
		for _, m := range []int{1, 2, 3, 4, 6, 8} {
			x, y := d.NewTensor(m, in), d.NewTensor(m, out)
			b.Run(fmt.Sprintf("%s/rows=%d", k.name, m), func(b *testing.B) {
				b.SetBytes(2 * in * out)
				for b.Loop() {
					d.Linear(y, x, w, m)
				}
			})
		}
	}
}
