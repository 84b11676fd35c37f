// Devices, contexts and errors.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace emulated {

long long setting(const char *name, long long otherwise) {
    const char *v = getenv(name);
    if (!v || !*v) return otherwise;
    char *end;
    errno = 0;
    long long n = strtoll(v, &end, 10);
    if (errno || *end || n < 0) {
        fprintf(stderr, "emulation: %s is \"%s\": a whole number is allowed\n", name, v);
        exit(2);
    }
    return n;
}

namespace {
std::vector<Device *> all;
std::once_flag made;
thread_local Device *entered = nullptr;
bool started = false;

// most devices: a bit each, and addresses of 16 in the kernels that sum.
constexpr long long MOST = 16;

void make() {
    long long n = setting("OUTRIDER_EMULATION_DEVICES", 1), bytes = setting("OUTRIDER_EMULATION_MEMORY", 2ll << 30);
    if (n > MOST) {
        fprintf(stderr, "emulation: OUTRIDER_EMULATION_DEVICES is %lld: up to %lld is allowed\n", n, MOST);
        exit(2);
    }
    for (int i = 0; i < n; i++) {
        Device *d = new Device;
        d->ordinal = i;
        d->total = bytes;
        all.push_back(d);
    }
}
} // namespace

int devices() {
    std::call_once(made, make);
    return (int)all.size();
}

Device *device(int ordinal) { return ordinal >= 0 && ordinal < devices() ? all[ordinal] : nullptr; }

Device *current() { return entered; }

bool Device::take(size_t n) {
    size_t was = used.load();
    do {
        if (n > total - was) return false;
    } while (!used.compare_exchange_weak(was, was + n));
    return true;
}

void Device::settle() {
    std::vector<Stream *> mine;
    {
        std::lock_guard<std::mutex> l(lock);
        mine = streams;
    }
    for (Stream *s : mine) s->wait();
}

int fault(Device *d, int code, const std::string &text) {
    int none = 0;
    if (d->fault.compare_exchange_strong(none, code)) fprintf(stderr, "emulation: GPU %d: %s\n", d->ordinal, text.c_str());
    return code;
}

namespace {
struct Named {
    int code;
    const char *name, *text;
};
const Named names[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {PEER_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {PEER_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
};

int text(int code, const char **to, const char *Named::*what) {
    for (const Named &n : names) {
        if (n.code == code) {
            *to = n.*what;
            return SUCCESS;
        }
    }
    *to = nullptr;
    return INVALID_VALUE;
}
} // namespace
} // namespace emulated

using namespace emulated;

extern "C" {

int outrider_emulation_devices(void) { return devices(); }

int outrider_emulation_memory(int ordinal, size_t *free, size_t *total) {
    Device *d = device(ordinal);
    if (!d) return INVALID_DEVICE;
    *total = d->total;
    *free = d->total - d->used;
    return SUCCESS;
}

int cuInit(unsigned) {
    int code = (int)setting("OUTRIDER_EMULATION_INIT", SUCCESS);
    started = code == SUCCESS;
    return code == SUCCESS && devices() == 0 ? NO_DEVICE : code;
}

int cuDriverGetVersion(int *v) {
    *v = (int)setting("OUTRIDER_EMULATION_DRIVER", 13000);
    return SUCCESS;
}

int cuDeviceGetCount(int *n) {
    *n = devices();
    return started ? SUCCESS : NOT_INITIALIZED;
}

int cuDeviceGet(int *handle, int ordinal) {
    *handle = ordinal;
    return device(ordinal) ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetName(char *name, int n, int d) {
    if (!device(d)) return INVALID_DEVICE;
    snprintf(name, n, "Emulated GPU");
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *id, int n, int d) {
    if (!device(d)) return INVALID_DEVICE;
    snprintf(id, n, "0000:%02X:00.0", d + 1);
    return SUCCESS;
}

int cuDeviceGetAttribute(int *v, int id, int d) {
    if (!device(d)) return INVALID_DEVICE;
    long long capability = setting("OUTRIDER_EMULATION_CAPABILITY", 90);
    switch (id) {
    case 16: *v = 8; break;                        // multiprocessors
    case 38: *v = 4 << 20; break;                  // L2
    case 75: *v = (int)capability / 10; break;     // compute capability
    case 76: *v = (int)capability % 10; break;
    case 97: *v = (capability == 90 ? 227 : capability == 80 ? 163 : 99) << 10; break; // shared memory of a block
    case 102: *v = 1; break;                       // virtual memory
    default: return INVALID_VALUE;
    }
    return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *n, int d) {
    if (!device(d)) return INVALID_DEVICE;
    *n = device(d)->total;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int d) {
    if (!device(d)) return INVALID_DEVICE;
    if (device(d)->total == 0) return OUT_OF_MEMORY; // a context takes some
    *context = device(d);
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int d) { return device(d) ? SUCCESS : INVALID_DEVICE; }

int cuCtxSetCurrent(void *context) {
    entered = (Device *)context;
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    if (!current()) return INVALID_CONTEXT;
    return outrider_emulation_memory(current()->ordinal, free, total);
}

int cuDeviceCanAccessPeer(int *can, int a, int b) {
    if (!device(a) || !device(b)) return INVALID_DEVICE;
    *can = a != b;
    return SUCCESS;
}

int cuCtxEnablePeerAccess(void *context, unsigned) {
    if (!current() || !context) return INVALID_CONTEXT;
    unsigned bit = 1u << ((Device *)context)->ordinal;
    if (context == current()) return PEER_UNSUPPORTED;
    return current()->peers.fetch_or(bit) & bit ? PEER_ENABLED : SUCCESS;
}

int cuProfilerStart(void) { return SUCCESS; }
int cuProfilerStop(void) { return SUCCESS; }

int cuGetErrorName(int code, const char **to) { return text(code, to, &Named::name); }
int cuGetErrorString(int code, const char **to) { return text(code, to, &Named::text); }
}
