// OUTRIDER_EMULATION_CHECK: kernels are compiled so that they call these before every
// access. What lies beside memory that was given away must lie in it, and in shared
// memory in the part that is used.
#include "engine.h"

namespace emulated {

// accessed stops the kernel where n bytes at p are not its to touch.
static void accessed(uintptr_t p, size_t n) {
    Engine &e = Engine::here();
    if (!e.running || !emulated_self) return;
    const Fiber *f = (const Fiber *)emulated_self;
    if (e.stacked(p)) return;
    if (int other = e.sharedAt(p, n); other) {
        if (other < 0) emulated_stop("%zu bytes at byte %zu of a block's shared memory, of which %zu are used", n, (size_t)(p - (uintptr_t)f->warp->block->shared), f->warp->block->used);
        return;
    }
    // Other memory is the module's or the emulation's.
    if (within(p, n) || beside(p).kind == Region::NONE) return;
    e.stopAt((void *)p);
    siglongjmp(e.out, 1);
}
} // namespace emulated

extern "C" {
#define ACCESS(n)                                                                                  \
    void __asan_load##n##_noabort(uintptr_t p) { emulated::accessed(p, n); }                      \
    void __asan_store##n##_noabort(uintptr_t p) { emulated::accessed(p, n); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
void __asan_loadN_noabort(uintptr_t p, size_t n) { emulated::accessed(p, n); }
void __asan_storeN_noabort(uintptr_t p, size_t n) { emulated::accessed(p, n); }
void __asan_handle_no_return(void) {}
}
