// CUDA's language for a kernel that is compiled for a processor: put before its source.
// A thread of a block is a fiber, which runs until it waits for others.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace emulated {

struct Index {
    unsigned x, y, z;
};

// Thread is what a kernel sees of the thread that it runs as.
struct Thread {
    Index thread, block, threads, blocks;
    unsigned lane;
};

// Kernel is a kernel of a module, whose table ends with one without a name.
struct Kernel {
    const char *name;
    void (*run)(const void *parameter);
    size_t size;      // of the parameter, in bytes
    int bounds[2];    // of __launch_bounds__; 0: none
    int cluster[3];   // of __cluster_dims__; 0: none
};

// Slots are what the lanes of a warp have brought to an exchange.
struct Slots {
    unsigned there; // by bit: the lanes that have come
    int op;
    uint64_t of[32][6];
};
} // namespace emulated

extern "C" {
extern thread_local emulated::Thread *emulated_self __attribute__((tls_model("initial-exec")));

// emulated_shared is the block's memory of a variable, which key stands for; it is
// poisoned when the block comes there first. emulated_dynamic is what the launch gives.
void *emulated_shared(const void *key, size_t n, size_t align);
void *emulated_dynamic(void);

// emulated_barrier waits for all threads of the block that have not ended, and
// emulated_cluster_barrier for those of the cluster.
void emulated_barrier(void);
void emulated_cluster_barrier(void);

// emulated_remote is the address, in that block of the cluster, of what lies at p here.
void *emulated_remote(const void *p, int rank);

// emulated_exchange waits until all lanes of the mask that have not ended bring n bytes,
// at most 48, to the same op. combine, if any, sees them once. They stay until the
// second exchange of the same mask after this one.
emulated::Slots *emulated_exchange(unsigned mask, int op, const void *data, size_t n, void (*combine)(emulated::Slots *));

// emulated_spin says that the thread looks for what others write, and has not found it.
void emulated_spin(void);

// emulated_copy copies n bytes to shared memory, or sets them to zero: now or, as the
// seed has it, when the thread waits for it. A commit ends a group of copies;
// emulated_await waits until at most so many groups are under way.
void emulated_copy(void *to, const void *from, size_t n, bool is);
void emulated_commit(void);
void emulated_await(unsigned groups);

// Barriers in shared memory: emulated_make_barrier makes one of so many threads.
// emulated_arrive counts the thread; emulated_arrive_copied, too, once its copies are made:
// now or, as the seed has it, when a thread waits. emulated_passed tells whether the turn of
// a parity is over, and waits if it is not.
void emulated_make_barrier(void *b, unsigned threads);
void emulated_arrive(void *b);
void emulated_arrive_copied(void *b);
bool emulated_passed(void *b, unsigned parity);

// emulated_some_meet is emulated_barrier for so many threads of the block.
void emulated_some_meet(unsigned threads);

// emulated_wait_for_earlier waits for the kernels before this one in the stream;
// emulated_let_next_begin lets the next one begin.
void emulated_wait_for_earlier(void);
void emulated_let_next_begin(void);

// emulated_stop ends the launch with a fault: what the thread does is not allowed.
void emulated_stop(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

// Of bfloat16 or float16 numbers: d = a · b + c, of 16 × 16, 16 × 8 and 16 × 8.
void emulated_mma(emulated::Slots *s);
void emulated_mma_half(emulated::Slots *s);
}

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define threadIdx (emulated_self->thread)
#define blockIdx (emulated_self->block)
#define blockDim (emulated_self->threads)
#define gridDim (emulated_self->blocks)

// Vectors, aligned as CUDA's are.
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) { return {x, y, z, w}; }

template <typename A, typename B> constexpr std::common_type_t<A, B> min(A a, B b) {
    std::common_type_t<A, B> x = a, y = b;
    return y < x ? y : x;
}
template <typename A, typename B> constexpr std::common_type_t<A, B> max(A a, B b) {
    std::common_type_t<A, B> x = a, y = b;
    return x < y ? y : x;
}

inline unsigned __float_as_uint(float f) {
    unsigned u;
    memcpy(&u, &f, 4);
    return u;
}
inline float __uint_as_float(unsigned u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
inline unsigned __float2uint_rn(float f) { return (unsigned)lrintf(f); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    unsigned long long all = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned k = s >> 4 * i & 15, byte = (unsigned)(all >> 8 * (k & 7)) & 255;
        if (k & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}

// Rounded each by itself: never part of a fused operation.
inline float __fmul_rn(float a, float b) {
    float r = a * b;
    asm("" : "+x"(r));
    return r;
}
inline float __fadd_rn(float a, float b) {
    asm("" : "+x"(a), "+x"(b));
    float r = a + b;
    asm("" : "+x"(r));
    return r;
}
inline float __fsub_rn(float a, float b) { return __fadd_rn(a, -b); }
inline float __fdiv_rn(float a, float b) {
    float r = a / b;
    asm("" : "+x"(r));
    return r;
}
inline float __expf(float x) { return expf(x); }

template <typename T> inline T __ldg(const T *p) { return *p; }
template <typename T> inline T __ldcg(const T *p) { return *p; }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __syncthreads() { emulated_barrier(); }

template <typename T> inline T atomicAdd(T *p, std::common_type_t<T> v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
template <typename T> inline T atomicExch(T *p, std::common_type_t<T> v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
template <typename T> inline T atomicMax(T *p, std::common_type_t<T> v) {
    T was = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (was < v && !__atomic_compare_exchange_n(p, &was, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return was;
}

namespace emulated {
enum { SHUFFLE = 1, VOTE, SYNC, MMA, MMA_HALF };

template <typename T> inline T brought(const Slots *s, unsigned lane, unsigned mask) {
    if (!(s->there >> lane & 1)) emulated_stop("a shuffle reads lane %u, which is not among those of the mask %08x that came: %08x", lane, mask, s->there);
    T v;
    memcpy(&v, s->of[lane], sizeof v);
    return v;
}
template <typename T> inline T shuffle(unsigned mask, T v, unsigned from) {
    static_assert(sizeof(T) <= 8, "a shuffle is of 8 bytes at most");
    return brought<T>(emulated_exchange(mask, SHUFFLE, &v, sizeof v, nullptr), from, mask);
}
inline void vote(Slots *s) {
    uint64_t bits = 0;
    for (unsigned i = 0; i < 32; i++)
        if (s->there >> i & 1 && (int)s->of[i][0]) bits |= 1u << i;
    s->of[0][1] = bits;
}
} // namespace emulated

template <typename T> inline T __shfl_sync(unsigned mask, T v, int from) { return emulated::shuffle(mask, v, from & 31); }
template <typename T> inline T __shfl_xor_sync(unsigned mask, T v, int with) { return emulated::shuffle(mask, v, (emulated_self->lane ^ with) & 31); }
template <typename T> inline T __shfl_up_sync(unsigned mask, T v, unsigned by) {
    unsigned lane = emulated_self->lane;
    return emulated::shuffle(mask, v, lane >= by ? lane - by : lane);
}
template <typename T> inline T __shfl_down_sync(unsigned mask, T v, unsigned by) {
    unsigned lane = emulated_self->lane;
    return emulated::shuffle(mask, v, lane + by < 32 ? lane + by : lane);
}
inline unsigned __ballot_sync(unsigned mask, int is) {
    uint64_t v = is != 0;
    return (unsigned)emulated_exchange(mask, emulated::VOTE, &v, 8, emulated::vote)->of[0][1];
}
inline int __any_sync(unsigned mask, int is) { return __ballot_sync(mask, is) != 0; }
inline int __all_sync(unsigned mask, int is) { return __ballot_sync(mask, !is) == 0; }
inline void __syncwarp(unsigned mask = ~0u) { emulated_exchange(mask, emulated::SYNC, &mask, 0, nullptr); }

#include "ptx.h"
