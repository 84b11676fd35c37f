//go:build linux

package emulation

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/compute/cuda/nvrtc"
)

// What kernels of these tests begin with: a parameter of two addresses.
const head = `
struct P { unsigned *out; unsigned *in; };
`

// run compiles a kernel "f", runs it on one block after a kernel "before", if there is
// one, and returns the first n words of its memory, which is 64 of them.
func run(t *testing.T, source string, threads uint32, n int) ([]uint32, error) {
	t.Helper()
	return runOn(t, source, threads, n, nil)
}

// runOn is run where p.in is what other gives.
func runOn(t *testing.T, source string, threads uint32, n int, other func() driver.Ptr) ([]uint32, error) {
	t.Helper()
	if err := Loaded(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(driver.Open())
	must(nvrtc.Open())
	code, log, err := nvrtc.Compile("test.cu", head+source, "sm_90a")
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	c, err := driver.OpenDevice(0)
	must(err)
	must(c.Enter())
	defer c.Leave()
	m, err := driver.LoadModule(code)
	must(err)
	s, err := driver.NewStream()
	must(err)
	out, err := driver.Alloc(256)
	must(err)
	in, err := driver.Alloc(256)
	must(err)
	must(s.Fill(in, 0, 256))
	if other != nil {
		in = other()
	}
	l := driver.NewLauncher(s, true)
	parameter := &struct{ out, in driver.Ptr }{out, in}
	// A recording, since a launch that comes after the one before has run cannot begin
	// early. Twice: a kernel that lets the next one begin is known after its first launch.
	g, err := s.Capture(func() error {
		for range 2 {
			for _, name := range []string{"before", "f"} {
				f, err := m.Function(name)
				if err != nil && name == "before" {
					continue
				}
				if err == nil {
					err = l.Launch(f, driver.Dim{X: 1, Y: 1, Z: 1}, driver.Dim{X: threads, Y: 1, Z: 1}, 0, unsafe.Pointer(parameter), unsafe.Sizeof(*parameter))
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
	must(err)
	must(s.Launch(g))
	if err := s.Wait(); err != nil {
		return nil, err
	}
	host, err := driver.AllocHost(256)
	must(err)
	must(s.Download(host, out))
	must(s.Wait())
	words := make([]uint32, n)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(host[4*i:])
	}
	return words, nil
}

// again runs the calling test of that name in a process of its own, with every
// access looked up if check says so. It must pass; the result is what it printed.
func again(t *testing.T, name string, check bool) string {
	t.Helper()
	if err := Loaded(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
	cmd.Env = append(os.Environ(), "OUTRIDER_TEST_FAULT="+name)
	if check {
		cmd.Env = append(cmd.Env, "OUTRIDER_EMULATION_CHECK=1")
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestWhatIsWrongIsFound(t *testing.T) {
	const never = ^uint32(0)
	for _, c := range []struct {
		name, source string
		threads      uint32
		want         []uint32
	}{
		{"with a barrier", `extern "C" __global__ void f(const P p) {
			__shared__ unsigned x[64];
			x[threadIdx.x] = threadIdx.x;
			__syncthreads();
			p.out[threadIdx.x] = x[63 - threadIdx.x];
		}`, 64, []uint32{63, 62, 61}},
		{"shared memory that nobody wrote", `extern "C" __global__ void f(const P p) {
			__shared__ unsigned x[64];
			p.out[threadIdx.x] = x[threadIdx.x];
		}`, 64, []uint32{never, never}},
		{"a kernel that waits for the one before", `
		extern "C" __global__ void before(const P p) { let_next_begin(); wait_for_earlier(); p.in[threadIdx.x] += 1; }
		extern "C" __global__ void f(const P p) { wait_for_earlier(); p.out[threadIdx.x] = p.in[threadIdx.x]; }`, 32, []uint32{2, 2}},
		{"a kernel that does not wait", `
		extern "C" __global__ void before(const P p) { let_next_begin(); wait_for_earlier(); p.in[threadIdx.x] += 1; }
		extern "C" __global__ void f(const P p) { unsigned early = p.in[threadIdx.x]; wait_for_earlier(); p.out[threadIdx.x] = early; }`, 32, []uint32{1, 1}},
		{"copies that are waited for at a barrier", `extern "C" __global__ void f(const P p) {
			__shared__ uint4 x[8];
			__shared__ u64 b;
			p.in[threadIdx.x] = 5 + threadIdx.x;
			if (threadIdx.x == 0) {
				makeBarrier(&b, 8);
				barriersMade();
			}
			__syncthreads();
			if (threadIdx.x < 8) {
				copy16(&x[threadIdx.x], p.in + 4 * threadIdx.x, true);
				arriveCopied(&b);
			}
			while (!passed(&b, 0)) {}
			p.out[threadIdx.x] = passed(&b, 1) ? 0 : ((u32 *)x)[31 - threadIdx.x];
		}`, 32, []uint32{36, 35, 34}},
		{"a barrier of many turns", `extern "C" __global__ void f(const P p) {
			__shared__ u32 x;
			__shared__ u64 full, empty;
			if (threadIdx.x == 0) {
				makeBarrier(&full, 1);
				makeBarrier(&empty, 1);
				barriersMade();
			}
			__syncthreads();
			if (threadIdx.x == 32)
				for (u32 i = 0; i < 5; i++) {
					while (i && !passed(&empty, i - 1 & 1)) {}
					x = i * i;
					arrive(&full);
				}
			if (threadIdx.x == 0)
				for (u32 i = 0; i < 5; i++) {
					while (!passed(&full, i & 1)) {}
					p.out[i] = x;
					arrive(&empty);
				}
		}`, 64, []uint32{0, 1, 4, 9, 16}},
		{"a meeting of some warps", `extern "C" __global__ void f(const P p) {
			__shared__ unsigned x[32];
			if (threadIdx.x >= 32) return;
			x[threadIdx.x] = threadIdx.x;
			someMeet<32>();
			p.out[threadIdx.x] = x[31 - threadIdx.x];
		}`, 64, []uint32{31, 30, 29}},
		{"a product of four warps", `extern "C" __global__ void f(const P p) {
			alignas(1024) __shared__ u8 rows[16][128]; // row n has 1 in column n alone
			u32 lane = threadIdx.x & 31, one = 0x3f80, col = 2 * (lane & 3), row = threadIdx.x / 32 * 16 + lane / 4;
			if (threadIdx.x < 16)
				for (int k = 0; k < 8; k++)
					for (int i = 0; i < 4; i++)
						((u32 *)(rows[threadIdx.x] + (k ^ threadIdx.x & 7) * 16))[i] = k * 8 + i * 2 == (threadIdx.x & ~1) ? threadIdx.x & 1 ? one << 16 : one : 0;
			shareWithFour();
			__syncthreads();
			float d[2][4];
			auto two = [&](u32 r, u32 c) { return pack(r + c, r + c + 1); }; // weight (r, c) is r + c
			beginFour();
			mmaFour<16>(d, two(row, col), two(row + 8, col), two(row, col + 8), two(row + 8, col + 8), rows, false);
			endFour();
			awaitFour<16, 0>(d);
			u32 *to = p.out + 2 * threadIdx.x; // of outputs 0 to 7 of the first warp
			if (threadIdx.x < 16) to[0] = (u32)d[0][0], to[1] = (u32)d[1][3];
		}`, 128, []uint32{0, 8 + 9, 2, 8 + 11, 4, 8 + 13, 6, 8 + 15, 1, 9 + 9}},
		{"a sum over a warp", `extern "C" __global__ void f(const P p) {
			unsigned x = threadIdx.x;
			for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
			p.out[threadIdx.x] = x;
		}`, 32, []uint32{496, 496}},
		{"a vote of a part", `extern "C" __global__ void f(const P p) {
			p.out[threadIdx.x] = threadIdx.x < 8 ? __ballot_sync(0xffu, threadIdx.x & 1) : 0;
		}`, 32, []uint32{0xaa, 0xaa}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := run(t, c.source, c.threads, len(c.want))
			if err != nil {
				t.Fatal(err)
			}
			for i := range c.want {
				if got[i] != c.want[i] {
					t.Fatalf("%d, want %d", got, c.want)
				}
			}
		})
	}
}

// A fault ends the device for good, so each is of a process of its own.
func TestFaultsAreNamed(t *testing.T) {
	for _, c := range []struct {
		name, source string
		code         driver.Code
		text         string
		check        bool
	}{
		{"beyond", `extern "C" __global__ void f(const P p) { p.out[1024 + threadIdx.x] = 0; }`, 700,
			"of 256 bytes of device memory", false},
		{"the first byte beyond", `extern "C" __global__ void f(const P p) { if (threadIdx.x == 3) p.out[64] = 0; }`, 700,
			"kernel f, block (0, 0, 0) of (1, 1, 1), thread (3, 0, 0): an access to ", true},
		{"the last byte before", `extern "C" __global__ void f(const P p) { if (threadIdx.x == 3) ((char *)p.out)[-1] = 0; }`, 700,
			"byte -1 of 256 bytes of device memory", true},
		{"beyond shared memory", `extern "C" __global__ void f(const P p) {
			__shared__ unsigned x[32];
			x[threadIdx.x + 1] = 0;
			__syncthreads();
			p.out[threadIdx.x] = x[threadIdx.x];
		}`, 719, "thread (31, 0, 0): 4 bytes at byte 128 of a block's shared memory, of which 128 are used", true},
		{"barrier", `extern "C" __global__ void f(const P p) {
			if (threadIdx.x < 8) __syncthreads();
			__syncwarp();
			p.out[0] = 0;
		}`, 719, "kernel f, block (0, 0, 0): its threads wait for each other for ever: of 32 that have not ended, 8 are at __syncthreads", false},
		{"mask", `extern "C" __global__ void f(const P p) { p.out[threadIdx.x] = __shfl_sync(0xffu << (threadIdx.x & 24), threadIdx.x, 31); }`, 719,
			"a shuffle reads lane 31, which is not among those of the mask", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if os.Getenv("OUTRIDER_TEST_FAULT") != c.name {
				out := again(t, c.name, c.check)
				if !strings.Contains(out, c.text) {
					t.Errorf("%s\ndoes not say %q", out, c.text)
				}
				return
			}
			_, err := run(t, c.source, 32, 0)
			var call *driver.Error
			if !errors.As(err, &call) || call.Code != c.code {
				t.Errorf("%v, want code %d", err, c.code)
			}
		})
	}
}

// Memory that the process has beside that of a device is not the device's: a kernel's
// own, such as its parameters, may lie there.
func TestOtherMemoryIsNoFault(t *testing.T) {
	const page, size = 4096, 1 << 20
	if os.Getenv("OUTRIDER_TEST_FAULT") == "" {
		again(t, "other", true)
		return
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.WriteString("five"); err != nil {
		t.Fatal(err)
	}
	other := func() driver.Ptr {
		var all []driver.Ptr
		for range 100 {
			at, err := driver.Alloc(size)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, at)
			// Of two that lie beside each other, with a page at the end of each that nobody
			// can touch, the upper one is freed, which leaves room.
			for _, lower := range all {
				beside := uintptr(lower) + size + page
				upper := driver.Ptr(beside + page)
				if !slices.Contains(all, upper) {
					continue
				}
				if err := driver.FreeMemory(upper); err != nil {
					t.Fatal(err)
				}
				_, _, errno := unix.Syscall6(unix.SYS_MMAP, beside, page, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_FIXED_NOREPLACE, file.Fd(), 0)
				if errno != 0 {
					t.Fatal(errno)
				}
				return driver.Ptr(beside)
			}
		}
		t.Fatalf("of %#x no two lie beside each other", all)
		return 0
	}
	got, err := runOn(t, `extern "C" __global__ void f(const P p) { p.out[threadIdx.x] = p.in[0]; }`, 32, 2, other)
	if want := binary.LittleEndian.Uint32([]byte("five")); err != nil || got[0] != want || got[1] != want {
		t.Errorf("%d, %v; want the number that lies there, %d", got, err, want)
	}
}
