// Memory: every piece lies between pages that cannot be touched, ends within 256 bytes
// of one, and is filled with 0xff, which are NaNs and −1s, until it is written.
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <shared_mutex>

#include "state.h"

namespace emulated {
namespace {
constexpr size_t PAGE = 4096, ALIGN = 256, GRANULARITY = 2 << 20;

std::shared_mutex lock; // of regions
std::map<uintptr_t, Region> regions;
std::map<uintptr_t, size_t> mapped; // of reserved ranges: parts that have memory

size_t up(size_t n, size_t of) { return (n + of - 1) / of * of; }

void note(uintptr_t at, size_t n, Region::Kind kind, int device) {
    std::unique_lock<std::shared_mutex> l(lock);
    regions[at] = Region{at, n, kind, device};
}

// forget takes the region out that begins at p, if it is of that kind.
Region forget(uintptr_t p, Region::Kind kind) {
    std::unique_lock<std::shared_mutex> l(lock);
    auto it = regions.find(p);
    if (it == regions.end() || it->second.kind != kind) return Region{};
    Region r = it->second;
    regions.erase(it);
    return r;
}

// fence gives n bytes between pages that cannot be touched.
void *fence(size_t n) {
    size_t body = up(n, PAGE);
    char *p = (char *)mmap(nullptr, body + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    if (mprotect(p + PAGE, body, PROT_READ | PROT_WRITE)) {
        munmap(p, body + 2 * PAGE);
        return nullptr;
    }
    char *at = p + PAGE + body - up(n, ALIGN);
    memset(p + PAGE, 0xff, body);
    return at;
}

void unfence(uintptr_t at, size_t n) {
    size_t body = up(n, PAGE);
    munmap((void *)(at + up(n, ALIGN) - body - PAGE), body + 2 * PAGE);
}

// Handle is memory that was made to be mapped.
struct Handle {
    size_t size;
    Device *device;
};
std::mutex handlesLock;
std::map<uintptr_t, std::pair<size_t, Device *>> backed; // by address

struct Copy : Work {
    char *dst;
    const char *src;
    size_t n;
    std::vector<char> own; // what src was, if it is not page-locked
    int run(Stream &, Work *) override {
        memcpy(dst, own.empty() ? src : own.data(), n);
        return SUCCESS;
    }
};

struct Fill : Work {
    char *dst;
    size_t n, size;
    uint32_t with;
    int run(Stream &, Work *) override {
        if (size == 1)
            memset(dst, (int)with, n);
        else
            for (size_t i = 0; i < n; i++) memcpy(dst + 4 * i, &with, 4);
        return SUCCESS;
    }
};

int copy(uintptr_t dst, uintptr_t src, size_t n, void *stream) {
    Stream *s = (Stream *)stream;
    if (!s) return INVALID_HANDLE;
    auto c = std::make_shared<Copy>();
    c->dst = (char *)dst, c->src = (const char *)src, c->n = n;
    return s->add(c);
}
} // namespace

Region regionOf(uintptr_t at, Region *near) {
    std::shared_lock<std::shared_mutex> l(lock);
    auto it = regions.upper_bound(at);
    if (it == regions.begin()) return Region{};
    --it;
    if (near) *near = it->second;
    const Region &r = it->second;
    if (at >= r.at + r.size) return Region{};
    if (r.kind == Region::RESERVED) {
        auto m = mapped.upper_bound(at);
        if (m == mapped.begin()) return Region{};
        --m;
        if (at >= m->first + m->second) return Region{};
    }
    return r;
}

Region beside(uintptr_t at) {
    std::shared_lock<std::shared_mutex> l(lock);
    auto next = regions.upper_bound(at);
    if (next != regions.end() && next->first - at <= PAGE) return next->second;
    if (next == regions.begin()) return Region{};
    const Region &r = std::prev(next)->second;
    return at < r.at + r.size + PAGE ? r : Region{};
}

bool within(uintptr_t p, size_t n) {
    Region r = regionOf(p);
    if (r.kind == Region::NONE) return false;
    if (r.kind == Region::RESERVED) { // parts that follow each other are one
        for (uintptr_t at = p / GRANULARITY * GRANULARITY; at < p + n; at += GRANULARITY)
            if (regionOf(at < p ? p : at).kind == Region::NONE) return false;
        return true;
    }
    return n <= r.at + r.size - p;
}
} // namespace emulated

using namespace emulated;

extern "C" {

int cuMemAlloc_v2(uintptr_t *to, size_t n) {
    Device *d = current();
    if (!d) return INVALID_CONTEXT;
    if (capturing) return refuse("cuMemAlloc");
    if (n == 0) return INVALID_VALUE;
    if (d->fault) return d->fault;
    if (!d->take(up(n, 512))) return OUT_OF_MEMORY;
    void *p = fence(n);
    if (!p) {
        d->give(up(n, 512));
        return OUT_OF_MEMORY;
    }
    note((uintptr_t)p, n, Region::DEVICE, d->ordinal);
    *to = (uintptr_t)p;
    return SUCCESS;
}

int cuMemFree_v2(uintptr_t p) {
    if (capturing) return refuse("cuMemFree");
    if (!p) return SUCCESS;
    Region r = regionOf(p);
    if (r.kind != Region::DEVICE || r.at != p) return INVALID_VALUE;
    Device *d = device(r.device);
    d->settle();
    forget(p, Region::DEVICE);
    unfence(p, r.size);
    d->give(up(r.size, 512));
    return d->fault;
}

int cuMemHostAlloc(void **to, size_t n, unsigned) {
    if (!current()) return INVALID_CONTEXT;
    if (capturing) return refuse("cuMemHostAlloc");
    if (n == 0) return INVALID_VALUE;
    void *p = fence(n);
    if (!p) return OUT_OF_MEMORY;
    note((uintptr_t)p, n, Region::HOST, 0);
    *to = p;
    return SUCCESS;
}

int cuMemFreeHost(void *p) {
    if (capturing) return refuse("cuMemFreeHost");
    for (int i = 0; i < devices(); i++) device(i)->settle();
    Region r = forget((uintptr_t)p, Region::HOST);
    if (r.kind == Region::NONE) return INVALID_VALUE;
    unfence(r.at, r.size);
    return SUCCESS;
}

int cuMemHostGetDevicePointer_v2(uintptr_t *to, void *p, unsigned) {
    if (regionOf((uintptr_t)p).kind != Region::HOST) return INVALID_VALUE;
    *to = (uintptr_t)p;
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uintptr_t dst, const void *src, size_t n, void *stream) {
    Stream *s = (Stream *)stream;
    if (!s) return INVALID_HANDLE;
    if (!within(dst, n)) return INVALID_VALUE;
    bool locked = within((uintptr_t)src, n);
    if (s->capture && !locked) return refuse("a copy of memory that is not page-locked");
    auto c = std::make_shared<Copy>();
    c->dst = (char *)dst, c->src = (const char *)src, c->n = n;
    if (!locked) c->own.assign((const char *)src, (const char *)src + n);
    return s->add(c);
}

int cuMemcpyDtoHAsync_v2(void *dst, uintptr_t src, size_t n, void *stream) {
    if (!within(src, n)) return INVALID_VALUE;
    bool locked = within((uintptr_t)dst, n);
    Stream *s = (Stream *)stream;
    if (s && s->capture && !locked) return refuse("a copy to memory that is not page-locked");
    int status = copy((uintptr_t)dst, src, n, stream);
    return status || locked ? status : s->wait();
}

int cuMemcpyDtoDAsync_v2(uintptr_t dst, uintptr_t src, size_t n, void *stream) {
    if (!within(dst, n) || !within(src, n)) return INVALID_VALUE;
    return copy(dst, src, n, stream);
}

static int fill(uintptr_t dst, uint32_t with, size_t n, size_t size, void *stream) {
    Stream *s = (Stream *)stream;
    if (!s) return INVALID_HANDLE;
    if (n == 0) return SUCCESS;
    if (!within(dst, n * size) || dst % size) return INVALID_VALUE;
    auto f = std::make_shared<Fill>();
    f->dst = (char *)dst, f->n = n, f->size = size, f->with = with;
    return s->add(f);
}
int cuMemsetD8Async(uintptr_t dst, unsigned char with, size_t n, void *stream) { return fill(dst, with, n, 1, stream); }
int cuMemsetD32Async(uintptr_t dst, unsigned with, size_t n, void *stream) { return fill(dst, with, n, 4, stream); }

int cuMemGetAllocationGranularity(size_t *n, const void *, int) {
    *n = GRANULARITY;
    return SUCCESS;
}

int cuMemAddressReserve(uintptr_t *to, size_t n, size_t, uintptr_t, unsigned long long) {
    if (n == 0 || n % GRANULARITY) return INVALID_VALUE;
    char *p = (char *)mmap(nullptr, n + 2 * GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return OUT_OF_MEMORY;
    uintptr_t at = up((uintptr_t)p + PAGE, GRANULARITY); // what is beside it cannot be touched either
    note(at, n, Region::RESERVED, current() ? current()->ordinal : 0);
    *to = at;
    return SUCCESS;
}

int cuMemAddressFree(uintptr_t p, size_t n) {
    {
        std::shared_lock<std::shared_mutex> l(lock);
        auto m = mapped.lower_bound(p);
        if (m != mapped.end() && m->first < p + n) return INVALID_VALUE; // it still has memory
    }
    Region r = forget(p, Region::RESERVED);
    if (r.kind == Region::NONE || r.size != n) return INVALID_VALUE;
    munmap((void *)p, n);
    return SUCCESS;
}

// The head of CUmemAllocationProp.
struct Prop {
    int kind, handles, locationKind, device;
};

int cuMemCreate(unsigned long long *handle, size_t n, const Prop *prop, unsigned long long) {
    Device *d = device(prop->device);
    if (!d || n == 0 || n % GRANULARITY) return INVALID_VALUE;
    if (capturing) return refuse("cuMemCreate");
    if (!d->take(n)) return OUT_OF_MEMORY;
    *handle = (unsigned long long)(uintptr_t) new Handle{n, d};
    return SUCCESS;
}

int cuMemMap(uintptr_t at, size_t n, size_t offset, unsigned long long handle, unsigned long long) {
    Handle *h = (Handle *)(uintptr_t)handle;
    Region near;
    regionOf(at, &near);
    if (offset || n != h->size || near.kind != Region::RESERVED || at % GRANULARITY || at + n > near.at + near.size) return INVALID_VALUE;
    std::unique_lock<std::shared_mutex> l(lock);
    auto m = mapped.lower_bound(at);
    if (m != mapped.end() && m->first < at + n) return INVALID_VALUE;
    if (m != mapped.begin() && (--m)->first + m->second > at) return INVALID_VALUE;
    mapped[at] = n;
    std::lock_guard<std::mutex> hl(handlesLock);
    backed[at] = {n, h->device};
    h->device = nullptr; // the mapping has the memory now
    return SUCCESS;
}

int cuMemRelease(unsigned long long handle) {
    Handle *h = (Handle *)(uintptr_t)handle;
    if (h->device) h->device->give(h->size);
    delete h;
    return SUCCESS;
}

int cuMemSetAccess(uintptr_t at, size_t n, const int *, size_t) {
    {
        std::shared_lock<std::shared_mutex> l(lock);
        auto m = mapped.find(at);
        if (m == mapped.end() || m->second != n) return INVALID_VALUE;
    }
    if (mprotect((void *)at, n, PROT_READ | PROT_WRITE)) return OUT_OF_MEMORY;
    memset((void *)at, 0xff, n);
    return SUCCESS;
}

int cuMemUnmap(uintptr_t at, size_t n) {
    Device *d;
    {
        std::unique_lock<std::shared_mutex> l(lock);
        auto m = mapped.find(at);
        if (m == mapped.end() || m->second != n) return INVALID_VALUE;
        mapped.erase(m);
        std::lock_guard<std::mutex> hl(handlesLock);
        d = backed[at].second;
        backed.erase(at);
    }
    d->settle();
    mmap((void *)at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    d->give(n);
    return SUCCESS;
}
}
