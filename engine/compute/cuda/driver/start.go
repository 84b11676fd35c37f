package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The codes that cuInit has advice for.
const (
	stubLibrary     Code = 34
	noDevice        Code = 100
	invalidDevice   Code = 101
	operatingSystem Code = 304
	systemNotReady  Code = 802
	driverMismatch  Code = 803
	compatNotThere  Code = 804
	unknown         Code = 999
)

// fromNode is where the driver's library must come from: its kernel module is the node's.
const fromNode = "libcuda.so.1 must be of the node's driver, as NVIDIA's container toolkit brings it"

// advice says of a code of cuInit what is wrong and what to do.
var advice = map[Code]string{
	stubLibrary:     "the libcuda.so.1 that was found is the toolkit's stub, which is no driver: take its folder out of LD_LIBRARY_PATH; " + fromNode,
	noDevice:        "the NVIDIA driver sees no GPU: give the container one (nvidia.com/gpu: 1)",
	invalidDevice:   "the NVIDIA driver cannot take a GPU that it was shown: name GPUs that are there, and of one in MIG mode a slice",
	operatingSystem: "the system refuses the NVIDIA driver a call: give the container the GPU's device files, as NVIDIA's container toolkit does, nvidia-uvm among them",
	systemNotReady:  "the GPUs are not ready: where NVSwitch joins them, start NVIDIA's fabric manager, of the driver's version, on the node",
	driverMismatch:  "libcuda.so.1 and the node's NVIDIA driver are of different versions: " + fromNode + "; a driver that was updated needs a restart of the node",
	compatNotThere:  "CUDA's compatibility libraries do not serve this GPU: take their folder (cuda-compat) out of LD_LIBRARY_PATH, or update the node's driver",
	unknown:         "the NVIDIA driver failed and does not know why: load its modules anew on the node (nvidia-modprobe -u -c=0, or a restart), and see the kernel's log there (dmesg)",
}

// visible is the variable that has the driver show a process some GPUs only.
const visible = "CUDA_VISIBLE_DEVICES"

// explain puts advice before an error of cuInit. Where the environment hides GPUs or the
// device files in folder cannot be opened, that is the likely cause, and it is named.
func explain(err error, folder string, open func(path string) error) error {
	var call *Error
	if !errors.As(err, &call) {
		return err
	}
	said, ok := advice[call.Code]
	if !ok {
		return err
	}
	if v, set := os.LookupEnv(visible); set && (call.Code == noDevice || call.Code == invalidDevice) {
		said += fmt.Sprintf("; %s is %q, and only what it names is seen: unset it for all", visible, v)
	}
	if files := refused(folder, open); len(files) > 0 {
		said += fmt.Sprintf("; user %d may not open %s: that is likely why", os.Getuid(), strings.Join(files, ", "))
	}
	return fmt.Errorf("%s (%w)", said, err)
}

// openFile opens a device file as the driver does, and closes it.
func openFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = f.Close()
	}
	return err
}

// refused are the driver's device files that this process may not open.
func refused(folder string, open func(path string) error) (files []string) {
	for _, pattern := range []string{"nvidia[0-9]*", "nvidiactl", "nvidia-uvm"} {
		// Without an error: the pattern is well formed.
		all, _ := filepath.Glob(filepath.Join(folder, pattern))
		for _, path := range all {
			if errors.Is(open(path), fs.ErrPermission) {
				files = append(files, path)
			}
		}
	}
	return files
}

// Refused tells whether an error is of machine code that the driver does not take:
// CUDA_ERROR_INVALID_IMAGE, …_NO_BINARY_FOR_GPU and …_UNSUPPORTED_PTX_VERSION.
func Refused(err error) bool {
	var call *Error
	return errors.As(err, &call) && slices.Contains([]Code{200, 209, 222}, call.Code)
}
