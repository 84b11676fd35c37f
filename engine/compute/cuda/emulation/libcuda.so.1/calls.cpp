// What a kernel calls, and what is said of its faults.
#include <immintrin.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "engine.h"

namespace emulated {

static std::string format(const char *f, ...) __attribute__((format(printf, 1, 2)));
static std::string format(const char *f, ...) {
    char text[1024];
    va_list args;
    va_start(args, f);
    vsnprintf(text, sizeof text, f, args);
    va_end(args);
    return text;
}

std::string Engine::where() const {
    const Thread &t = *emulated_self;
    return format("kernel %s, block (%u, %u, %u) of (%u, %u, %u), thread (%u, %u, %u)", launch->function->kernel->name, t.block.x, t.block.y, t.block.z, t.blocks.x,
                  t.blocks.y, t.blocks.z, t.thread.x, t.thread.y, t.thread.z);
}

void Engine::stop(int c, const std::string &what) {
    code = c;
    said = where() + ": " + what;
    siglongjmp(out, 1);
}

// place says where an address lies, or how far from what is beside or before it.
static std::string place(uintptr_t at) {
    Region near, r = regionOf(at, &near);
    if (r.kind == Region::NONE) r = beside(at);
    const char *kinds[] = {"nothing", "device memory", "page-locked memory", "reserved addresses"};
    if (r.kind == Region::NONE && near.kind == Region::NONE) return format("%#lx, before everything that was allocated", at);
    if (r.kind == Region::NONE) r = near;
    return format("%#lx, byte %ld of %zu bytes of %s at %#lx", at, (long)(at - r.at), r.size, kinds[r.kind], r.at);
}

void Engine::stopAt(void *address) {
    code = ILLEGAL_ADDRESS;
    said = where() + ": an access to " + place((uintptr_t)address);
}

void Engine::deadlock(const Unit &u) {
    std::string text;
    for (auto &b : u.blocks) {
        unsigned barrier = 0, cluster = 0;
        std::string meets;
        for (size_t i = 0; i < b->warps.size(); i++) {
            const Warp &w = b->warps[i];
            barrier += (unsigned)__builtin_popcount(w.atBarrier);
            cluster += (unsigned)__builtin_popcount(w.atCluster);
            for (auto &e : w.exchanges)
                if (e->arrived && meets.empty()) meets = format(", lanes %08x of warp %zu at an operation of the lanes %08x", e->arrived, i, e->mask);
        }
        if (b->alive == 0) continue;
        text = format("kernel %s, block (%u, %u, %u): its threads wait for each other for ever: of %u that have not ended, %u are at __syncthreads, %u at the cluster's barrier%s",
                      launch->function->kernel->name, b->index.x, b->index.y, b->index.z, b->alive, barrier, cluster, meets.c_str());
        break;
    }
    code = LAUNCH_FAILED;
    said = text;
    siglongjmp(out, 1);
}

// multiply adds a · b to c for the whole warp. a and b are of 16 bits, which widen makes
// float32 numbers of. The lane with g = lane / 4 and t = lane % 4 has rows g and g + 8
// of a and c, and column g of b.
template <typename W> static void multiply(Slots *s, W widen) {
    if (s->there != ~0u) emulated_stop("mma of the lanes %08x: all 32 are needed", s->there);
    uint64_t any = 0; // what is multiplied is often all zero, beyond a matrix's end
    for (int lane = 0; lane < 32; lane++) any |= s->of[lane][2] | s->of[lane][3] | s->of[lane][4];
    if (!any) return;
    alignas(32) float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const uint32_t *w = (const uint32_t *)s->of[lane];
        int g = lane >> 2, t = lane & 3;
        memcpy(&c[g][2 * t], w, 8);
        memcpy(&c[g + 8][2 * t], w + 2, 8);
        for (int i = 0; i < 2; i++) {
            a[g][2 * t + i] = widen(w[4] >> 16 * i), a[g + 8][2 * t + i] = widen(w[5] >> 16 * i);
            a[g][2 * t + 8 + i] = widen(w[6] >> 16 * i), a[g + 8][2 * t + 8 + i] = widen(w[7] >> 16 * i);
            b[2 * t + i][g] = widen(w[8] >> 16 * i), b[2 * t + 8 + i][g] = widen(w[9] >> 16 * i);
        }
    }
    __m256 col[16];
    for (int k = 0; k < 16; k++) col[k] = _mm256_load_ps(b[k]);
    for (int r = 0; r < 16; r++) {
        __m256 even = _mm256_setzero_ps(), odd = even;
        for (int k = 0; k < 16; k += 2) {
            even = _mm256_fmadd_ps(_mm256_broadcast_ss(&a[r][k]), col[k], even);
            odd = _mm256_fmadd_ps(_mm256_broadcast_ss(&a[r][k + 1]), col[k + 1], odd);
        }
        _mm256_store_ps(c[r], _mm256_add_ps(_mm256_load_ps(c[r]), _mm256_add_ps(even, odd)));
    }
    for (int lane = 0; lane < 32; lane++) {
        int g = lane >> 2, t = lane & 3;
        memcpy(s->of[lane], &c[g][2 * t], 8);
        memcpy((char *)s->of[lane] + 8, &c[g + 8][2 * t], 8);
    }
}
} // namespace emulated

using namespace emulated;

extern "C" {

void emulated_stop(const char *f, ...) {
    char text[512];
    va_list args;
    va_start(args, f);
    vsnprintf(text, sizeof text, f, args);
    va_end(args);
    Engine::here().stop(LAUNCH_FAILED, text);
}

void *emulated_shared(const void *key, size_t n, size_t align) { return Engine::here().variable(key, n, align); }
void *emulated_dynamic(void) { return ((Fiber *)emulated_self)->warp->block->shared; }
void emulated_barrier(void) { Engine::here().barrier(); }
void emulated_cluster_barrier(void) { Engine::here().clusterBarrier(); }

void *emulated_remote(const void *p, int rank) {
    Block &own = *((Fiber *)emulated_self)->warp->block;
    size_t at = (size_t)((const char *)p - own.shared);
    if (at >= own.used) emulated_stop("%p is not in the block's shared memory", p);
    if (rank < 0 || rank >= (int)own.unit->blocks.size()) emulated_stop("block %d of a cluster of %zu", rank, own.unit->blocks.size());
    Block &other = *own.unit->blocks[(size_t)rank];
    if (other.alive == 0) emulated_stop("block %d of the cluster has ended, and its shared memory is read", rank);
    return other.shared + at;
}

Slots *emulated_exchange(unsigned mask, int op, const void *data, size_t n, void (*combine)(Slots *)) { return Engine::here().exchange(mask, op, data, n, combine); }
void emulated_spin(void) { Engine::here().spin(); }
void emulated_make_barrier(void *b, unsigned threads) { Engine::here().makeBarrier(b, threads); }
void emulated_arrive(void *b) { Engine::here().arrive(b); }
void emulated_arrive_copied(void *b) { Engine::here().arriveCopied(b); }
bool emulated_passed(void *b, unsigned parity) { return Engine::here().passed(b, parity); }
void emulated_some_meet(unsigned threads) { Engine::here().someMeet(threads); }
void emulated_copy(void *to, const void *from, size_t n, bool is) { Engine::here().copy({to, from, n, is}); }
void emulated_commit(void) { Engine::here().commit(); }
void emulated_await(unsigned groups) { Engine::here().await(groups); }
void emulated_wait_for_earlier(void) { Engine::here().waitForEarlier(); }
void emulated_let_next_begin(void) {
    auto &releases = Engine::here().launch->function->releases;
    if (!releases.load(std::memory_order_relaxed)) releases = true;
}

void emulated_mma(Slots *s) {
    multiply(s, [](uint32_t v) {
        v <<= 16;
        float f;
        memcpy(&f, &v, 4);
        return f;
    });
}
void emulated_mma_half(Slots *s) {
    multiply(s, [](uint32_t v) { return _cvtsh_ss((unsigned short)v); });
}
}
