//go:build linux

package cuda

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/outrider-dev/outrider/engine/compute/cuda/blas"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/compute/cuda/kernels"
	"github.com/outrider-dev/outrider/engine/compute/cuda/nccl"
	"github.com/outrider-dev/outrider/engine/compute/cuda/nvrtc"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/internal/dl"
)

// minCapability is the oldest compute capability that the kernels are for:
// bfloat16 on tensor cores.
const minCapability = 80

// image is the one that has all libraries but the driver's.
const image = "outrider-engine-cuda"

// Available says why no GPU can be used, or nil.
func Available() error {
	_, err := Count()
	return err
}

// Count is the number of GPUs that this process sees; it is an error if there is none.
func Count() (int, error) {
	if err := driver.Open(); err != nil {
		return 0, missing(err)
	}
	n, err := driver.Count()
	return n, missing(err)
}

// Memory is the free memory of a GPU, in bytes, and its PCI address.
func Memory(ordinal int) (free int64, pci string, err error) {
	if err := Available(); err != nil {
		return 0, "", err
	}
	c, err := openContext(ordinal)
	if err != nil {
		return 0, "", err
	}
	if err := c.Enter(); err != nil {
		c.Leave()
		return 0, "", missing(err)
	}
	defer c.Leave()
	free, _, err = c.Free()
	return free, c.Info.PCI, missing(err)
}

// Ready says why GPU 0 to n-1 cannot be computed on, or what they are called: what would
// else end a start whose model is there already. Joined GPUs need NCCL, too.
func Ready(n int, joined bool) (names []string, err error) {
	if err := Available(); err != nil {
		return nil, err
	}
	var infos []driver.Info
	for i := range n {
		info, err := driver.Describe(i)
		if err == nil {
			err = supported(i, info)
		}
		if err != nil {
			return nil, missing(err)
		}
		infos, names = append(infos, info), append(names, info.Name)
	}
	for _, open := range []func() error{nvrtc.Open, blas.Open} {
		if err := library(open); err != nil {
			return nil, err
		}
	}
	if joined {
		if err := library(nccl.Open); err != nil {
			return nil, err
		}
	}
	if err := served(); err != nil {
		return nil, missing(err)
	}
	for i, info := range infos {
		if err := compiles(i, info); err != nil {
			return nil, missing(err)
		}
	}
	return names, nil
}

// supported says why a GPU is none that the kernels are for, or nil.
func supported(ordinal int, i driver.Info) error {
	if 10*i.Major+i.Minor < minCapability {
		return fmt.Errorf("GPU %d (%s) has compute capability %d.%d: supported is 8.0 (Ampere) and newer", ordinal, i.Name, i.Major, i.Minor)
	}
	return nil
}

// leastDrivers are the oldest drivers that serve a major version of CUDA.
var leastDrivers = map[int]string{12: "525", 13: "580"}

// leastCUDA is the oldest major version of CUDA whose libraries the kernels are for: a
// driver that serves none of them is of no use with older ones, either.
const leastCUDA = 12

// served says which library is of a newer CUDA than the driver serves, or nil. Within
// a major version all of them work together.
func served() error {
	serves, err := driver.Version()
	if err != nil {
		return err
	}
	compiler, err := nvrtc.Major()
	if err != nil {
		return err
	}
	return tooOld(serves, []versioned{{"NVRTC", compiler}, {"cuBLASLt", blas.Major()}})
}

// versioned is a library and the major version of CUDA that it is of.
type versioned struct {
	name  string
	major int
}

// tooOld is served for a driver that serves a version as 12080, which is 12.8.
func tooOld(serves int, libraries []versioned) error {
	for _, l := range libraries {
		if serves/1000 < l.major {
			least, ok := leastDrivers[l.major]
			if !ok {
				least = fmt.Sprintf("one for CUDA %d", l.major)
			}
			says := fmt.Sprintf("the NVIDIA driver serves CUDA %s, and %s is of CUDA %d: update the driver to %s or newer", inWords(serves), l.name, l.major, least)
			if serves/1000 >= leastCUDA {
				says += fmt.Sprintf(", or take libraries of CUDA %d (CUDA=12 make images-cuda makes the image with CUDA 12)", serves/1000)
			}
			return errors.New(says)
		}
	}
	return nil
}

// inWords is a version of CUDA: 12080 is 12.8.
func inWords(version int) string { return fmt.Sprintf("%d.%d", version/1000, version%1000/10) }

// compiles says why the compiler makes no code for a GPU, or nil.
func compiles(ordinal int, i driver.Info) error {
	knows, err := nvrtc.Knows(i.Major, i.Minor)
	if err != nil || knows {
		return err
	}
	version, err := nvrtc.Version()
	if err != nil {
		return err
	}
	return fmt.Errorf("NVRTC %s makes no code for compute capability %d.%d, which GPU %d (%s) has: take a newer NVRTC, which may need a newer driver", version, i.Major, i.Minor, ordinal, i.Name)
}

// library opens a library that the image has.
func library(open func() error) error {
	err := open()
	if errors.As(err, new(*dl.MissingError)) {
		err = fmt.Errorf("%w; the image %s has it", err, image)
	}
	return missing(err)
}

// openContext opens a GPU.
func openContext(ordinal int) (*driver.Context, error) {
	info, err := driver.Describe(ordinal)
	if err != nil {
		return nil, missing(fmt.Errorf("GPU %d: %w", ordinal, err))
	}
	c, err := driver.OpenDevice(ordinal)
	if err != nil {
		return nil, missing(fmt.Errorf("GPU %d (%s): %w", ordinal, info.Name, err))
	}
	return c, nil
}

// missing makes a DeviceMissing of an error that ended the opening of a device. One
// that is full is there: it stays an OutOfMemory.
func missing(err error) error {
	switch {
	case err == nil || errors.As(err, new(*fault.Error)):
		return err
	case outOfMemory(err):
		return fault.Errorf(fault.OutOfMemory, "%w: the GPU is full before anything was loaded: end what else uses it (nvidia-smi shows that), or give --device cpu", err)
	}
	return fault.Errorf(fault.DeviceMissing, "%w; --device cpu does without", err)
}

// compiledCode is what the compiler made.
type compiledCode struct {
	images [][]byte
	err    error
}

// compile makes the kernels' code, or finds it in the cache.
func compile(i driver.Info, o Options) compiledCode {
	before := nvrtc.Compiled()
	images, err := kernels.ForCapability(i.Major, i.Minor, o.CacheFolder, o.Compiled)
	if err != nil {
		return compiledCode{err: first(err)}
	}
	if o.Unkept != nil && nvrtc.Compiled() > before {
		if err := kept(o.CacheFolder, images[0]); err != nil {
			o.Unkept(err)
		}
	}
	return compiledCode{images: images}
}

// first is the first of errors that were joined: of sources that do not compile most
// have the same cause, and an error is one line.
func first(err error) error {
	var refused *nvrtc.ArchitectureError
	if errors.As(err, &refused) {
		return refused // whatever the source
	}
	all, ok := err.(interface{ Unwrap() []error })
	if !ok || len(all.Unwrap()) == 0 {
		return err
	}
	if more := len(all.Unwrap()) - 1; more > 0 {
		return fmt.Errorf("%w (and %d more)", all.Unwrap()[0], more)
	}
	return all.Unwrap()[0]
}

// kept says why a folder keeps no code of that size, or nil.
func kept(folder string, code []byte) error {
	if folder == "" {
		folder = kernels.DefaultFolder()
	}
	if folder == "" {
		_, err := os.UserCacheDir()
		return err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(code)
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// unloaded explains why a source's code, n bytes, was not loaded.
func (d *Device) unloaded(err error, source string, n int) error {
	if !driver.Refused(err) {
		return d.explain(err, n, "kernels")
	}
	serves, verr := driver.Version()
	version, cerr := nvrtc.Version()
	if verr != nil || cerr != nil {
		return err // the cause of all
	}
	return missing(fmt.Errorf("GPU %d (%s): the driver, which serves CUDA %s, refuses the code that NVRTC %s made of %s: update the driver, or take the NVRTC of an older CUDA (CUDA=12 make images-cuda makes the image with CUDA 12): %w",
		d.options.Ordinal, d.context.Info.Name, inWords(serves), version, source, err))
}

// outOfMemory tells whether a call failed for lack of memory.
func outOfMemory(err error) bool {
	var call *driver.Error
	var product *blas.Error
	return errors.As(err, &call) && call.Code == driver.OutOfMemory || errors.As(err, &product) && product.OutOfMemory()
}

// mib is a size in MiB, rounded up: what is needed is never 0.
func mib(n int64) int64 { return (n + 1<<20 - 1) >> 20 }

// full is how an error of a device without memory begins.
func (d *Device) full() string {
	return fmt.Sprintf("GPU %d (%s) is out of memory", d.options.Ordinal, d.context.Info.Name)
}

// explain says of a call that found no memory for n bytes of what how much there is and
// what would help.
func (d *Device) explain(err error, n int, what string) error {
	if !outOfMemory(err) {
		return err
	}
	free, total, ferr := d.context.Free()
	if ferr != nil {
		return err // the cause of both
	}
	size := "more memory is" // how much a library takes is unknown
	if n > 0 {
		size = fmt.Sprintf("%d MiB more are", mib(int64(n)))
	}
	return fault.Errorf(fault.OutOfMemory, "%s: %s needed for %s, beside the %d MiB that this rank has, and %d MiB of %d are free: %s",
		d.full(), size, what, mib(d.held), free>>20, total>>20, lighten(int64(n), what, total-free, total, d.held, d.grown))
}

// lighten is what would help where n bytes of what do not fit on a GPU of total bytes,
// of which used are taken, held of them by this rank; grown says that its caches have
// the rest. What batch would fit only the engine can calculate. It has done so before
// the weights came: what fails at the start needs less on each GPU, or less beside it.
func lighten(n int64, what string, used, total, held int64, grown bool) string {
	if grown {
		return fmt.Sprintf("give a --mem-fraction-static that is %.2f smaller", math.Ceil(100*float64(n)/float64(total))/100)
	}
	advice := "give it GPUs with more memory, or a larger --tp-size"
	if what == "weights" {
		advice += ", or a model with quantised weights"
	}
	const own = 1 << 30 // what the driver and the libraries may take beside the tensors
	if others := used - held; others > own {
		advice += fmt.Sprintf(", or end what else uses the GPU, which is %d MiB", others>>20)
	}
	return advice
}
