//go:build cuda && linux

package gpu

import (
	"bytes"
	"fmt"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/internal/dl"
)

// Codes of nvmlReturn_t that are told apart.
const (
	success      = 0
	notSupported = 3
	timeout      = 10
)

// Values of NVML's enumerations.
const (
	sensorCore    = 0   // NVML_TEMPERATURE_GPU
	notCorrected  = 1   // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
	sinceLoaded   = 0   // NVML_VOLATILE_ECC
	byNVLink      = 2   // NVML_P2P_CAPS_INDEX_NVLINK
	eventMemory   = 0x2 // nvmlEventTypeDoubleBitEccError
	eventXID      = 0x8 // nvmlEventTypeXidCriticalError
	uuidSize      = 96
	nameSize      = 96
	unitMilliwatt = 1e-3
)

// levels are the values of nvmlGpuTopologyLevel_t.
var levels = map[uint32]string{0: LinkBoard, 10: LinkSwitch, 20: LinkSwitch, 30: LinkHost, 40: LinkNode, 50: LinkSystem}

// library is libnvidia-ml, started.
type library struct {
	init, shutdown, errorString, handleByPCI, getName, getUUID, memoryInfo, temperature, power, utilization, eccErrors, p2p, topology,
	eventSet, freeSet, register, supported, wait uintptr
	set uintptr // of events; 0 before listen
}

// Open watches the GPUs at PCI addresses ("0000:1B:00.0"). NVML's functions end the
// process if they are called without a start that succeeded: nothing but the words
// for its error is asked for then.
func Open(pci []string) (*Monitor, error) {
	file, err := dl.Open("the NVIDIA driver", "libnvidia-ml.so.1")
	if err != nil {
		return nil, err
	}
	l := &library{}
	if err := file.Symbols(map[string]*uintptr{
		"nvmlInit_v2": &l.init, "nvmlShutdown": &l.shutdown, "nvmlErrorString": &l.errorString, "nvmlDeviceGetHandleByPciBusId_v2": &l.handleByPCI,
		"nvmlDeviceGetName": &l.getName, "nvmlDeviceGetUUID": &l.getUUID, "nvmlDeviceGetMemoryInfo": &l.memoryInfo, "nvmlDeviceGetTemperature": &l.temperature,
		"nvmlDeviceGetPowerUsage": &l.power, "nvmlDeviceGetUtilizationRates": &l.utilization, "nvmlDeviceGetTotalEccErrors": &l.eccErrors,
		"nvmlDeviceGetP2PStatus": &l.p2p, "nvmlDeviceGetTopologyCommonAncestor": &l.topology, "nvmlEventSetCreate": &l.eventSet, "nvmlEventSetFree": &l.freeSet,
		"nvmlDeviceRegisterEvents": &l.register, "nvmlDeviceGetSupportedEventTypes": &l.supported, "nvmlEventSetWait_v2": &l.wait,
	}); err != nil {
		return nil, fmt.Errorf("%w: install NVIDIA driver 525 or newer", err)
	}
	if err := l.check("nvmlInit", dl.Call(l.init)); err != nil {
		return nil, err
	}
	return newMonitor(l, pci)
}

func (l *library) check(call string, code int32) error {
	if code == success {
		return nil
	}
	return fmt.Errorf("%s: %s (%d)", call, dl.GoString(dl.Pointer(l.errorString, uintptr(code))), code)
}

func (l *library) handle(pci string) (uintptr, error) {
	var h uintptr
	id := dl.CString(pci)
	err := l.check("nvmlDeviceGetHandleByPciBusId", dl.Call(l.handleByPCI, uintptr(unsafe.Pointer(&id[0])), uintptr(unsafe.Pointer(&h))))
	return h, err
}

func (l *library) describe(h uintptr) (name, uuid string, err error) {
	text := func(call string, fn uintptr, size int) string {
		b := make([]byte, size)
		if e := l.check(call, dl.Call(fn, h, uintptr(unsafe.Pointer(&b[0])), uintptr(size))); e != nil {
			err = e
		}
		b, _, _ = bytes.Cut(b, []byte{0})
		return string(b)
	}
	return text("nvmlDeviceGetName", l.getName, nameSize), text("nvmlDeviceGetUUID", l.getUUID, uuidSize), err
}

func (l *library) read(h uintptr) (Reading, error) {
	r := Reading{Temperature: -1, Power: -1, Busy: -1, ECCErrors: -1}
	var memory struct{ total, free, used uint64 }
	if err := l.check("nvmlDeviceGetMemoryInfo", dl.Call(l.memoryInfo, h, uintptr(unsafe.Pointer(&memory)))); err != nil {
		return r, err
	}
	r.MemoryUsed, r.MemoryTotal = int64(memory.used), int64(memory.total)
	var degrees, milliwatts uint32
	var rates struct{ gpu, memory uint32 }
	var errors uint64
	// Not every device tells all of these.
	if dl.Call(l.temperature, h, sensorCore, uintptr(unsafe.Pointer(&degrees))) == success {
		r.Temperature = float64(degrees)
	}
	if dl.Call(l.power, h, uintptr(unsafe.Pointer(&milliwatts))) == success {
		r.Power = float64(milliwatts) * unitMilliwatt
	}
	if dl.Call(l.utilization, h, uintptr(unsafe.Pointer(&rates))) == success {
		r.Busy = float64(rates.gpu) / 100
	}
	if dl.Call(l.eccErrors, h, notCorrected, sinceLoaded, uintptr(unsafe.Pointer(&errors))) == success {
		r.ECCErrors = int64(errors)
	}
	return r, nil
}

func (l *library) link(a, b uintptr) (string, error) {
	var status, level uint32
	if dl.Call(l.p2p, a, b, byNVLink, uintptr(unsafe.Pointer(&status))) == success && status == 0 {
		return LinkNVLink, nil
	}
	if err := l.check("nvmlDeviceGetTopologyCommonAncestor", dl.Call(l.topology, a, b, uintptr(unsafe.Pointer(&level)))); err != nil {
		return "", err
	}
	if name := levels[level]; name != "" {
		return name, nil
	}
	return LinkOther, nil
}

func (l *library) listen(handles []uintptr) error {
	if err := l.check("nvmlEventSetCreate", dl.Call(l.eventSet, uintptr(unsafe.Pointer(&l.set)))); err != nil {
		return err
	}
	for _, h := range handles {
		var can uint64
		if err := l.check("nvmlDeviceGetSupportedEventTypes", dl.Call(l.supported, h, uintptr(unsafe.Pointer(&can)))); err != nil {
			return err
		}
		code := dl.Call(l.register, h, uintptr(can&(eventMemory|eventXID)), l.set)
		if code == notSupported {
			continue
		}
		if err := l.check("nvmlDeviceRegisterEvents", code); err != nil {
			return err
		}
	}
	return nil
}

func (l *library) next() (h uintptr, xid int, ok bool, err error) {
	var event struct { // nvmlEventData_t
		device               uintptr
		kind, data           uint64
		instance, subsection uint32
	}
	code := dl.Call(l.wait, l.set, uintptr(unsafe.Pointer(&event)), 0)
	if code == timeout {
		return 0, 0, false, nil
	}
	if err := l.check("nvmlEventSetWait", code); err != nil {
		return 0, 0, false, err
	}
	if event.kind == eventXID {
		xid = int(event.data)
	}
	return event.device, xid, true, nil
}

func (l *library) close() {
	if l.set != 0 {
		_ = l.check("nvmlEventSetFree", dl.Call(l.freeSet, l.set)) // the shutdown frees it too
	}
	_ = l.check("nvmlShutdown", dl.Call(l.shutdown)) // the process ends, or goes on without it
}
