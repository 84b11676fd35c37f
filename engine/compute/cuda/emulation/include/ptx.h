// The functions of kernels/ptx.cuh, for a processor.
#pragma once
#define NO_PTX

#include "bfloat16.h"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

inline void wait_for_earlier() { emulated_wait_for_earlier(); }
inline void let_next_begin() { emulated_let_next_begin(); }

inline u16 round16(float a) { return emulated::toBfloat16(a); }
inline u32 pack(float a, float b) { return (u32)round16(b) << 16 | round16(a); }

namespace emulated {
typedef float floats4 __attribute__((vector_size(16)));
typedef short shorts8 __attribute__((vector_size(16)));
inline u16 toHalf(float a) { return a != a ? 0x7fff : (u16)__builtin_ia32_vcvtps2ph(floats4{a, 0, 0, 0}, 0)[0]; }

// odd is x as a float32 of which the last bit says whether it is not exact: what is
// rounded from it to fewer bits is rounded as from x.
inline float odd(double x) {
    float f = (float)x;
    if ((double)f == x || x != x) return f;
    u32 bits = __float_as_uint(f);
    if (fabs((double)f) > fabs(x)) bits--;
    return __uint_as_float(bits | 1);
}

// fused is a · b + c, rounded once to bfloat16.
inline u16 fused(u16 a, u16 b, u16 c) {
    double p = (double)__uint_as_float((u32)a << 16) * (double)__uint_as_float((u32)b << 16), q = __uint_as_float((u32)c << 16);
    double s = p + q;
    if (s - s == 0) { // what the sum lost, by Knuth
        double t = s - p, lost = (p - (s - t)) + (q - t);
        uint64_t bits;
        memcpy(&bits, &s, 8);
        if (lost != 0 && !(bits & 1)) {
            bits += (lost > 0) == (s > 0) ? 1 : -1;
            memcpy(&s, &bits, 8);
        }
    }
    return round16(odd(s));
}
} // namespace emulated

inline u32 halves(float a, float b) { return (u32)emulated::toHalf(b) << 16 | emulated::toHalf(a); }
inline float half(u16 h) { return __builtin_ia32_vcvtph2ps(emulated::shorts8{(short)h})[0]; }

// halvesOf8: a float16 number has the bits of a float8 one 2^8 times as large.
inline void halvesOf8(u32 w, u32 &first, u32 &last) {
    u16 h[4];
    for (int i = 0; i < 4; i++) {
        u32 b = w >> 8 * i & 255;
        h[i] = (b & 0x7f) == 0x7f ? 0x7fff : emulated::toHalf(half((u16)((b & 0x80) << 8 | (b & 0x7f) << 7)) * 256);
    }
    first = (u32)h[1] << 16 | h[0];
    last = (u32)h[3] << 16 | h[2];
}

inline u32 fma2(u32 a, u32 b, u32 c) {
    return (u32)emulated::fused((u16)(a >> 16), (u16)(b >> 16), (u16)(c >> 16)) << 16 | emulated::fused((u16)a, (u16)b, (u16)c);
}
inline u32 and_or(u32 a, u32 b, u32 c) { return (a & b) | c; }
inline void inRegisters(u32 &, u32 &) {}

namespace emulated {
// aligned stops where a vector does not lie on a multiple of its size.
template <typename T> inline const T *aligned(const void *p) {
    if ((uintptr_t)p % sizeof(T)) emulated_stop("%zu bytes at %p, which is no multiple of that", sizeof(T), p);
    return (const T *)p;
}
} // namespace emulated

inline uint4 loadWeights(const void *p) { return *emulated::aligned<uint4>(p); }
inline uint4 loadNow(const void *p) { return *emulated::aligned<uint4>(p); }
inline float loadNow4(const void *p) { return *emulated::aligned<float>(p); }

template <bool HALF> inline void mma(float *c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    u32 words[10] = {__float_as_uint(c[0]), __float_as_uint(c[1]), __float_as_uint(c[2]), __float_as_uint(c[3]), a0, a1, a2, a3, b0, b1};
    emulated::Slots *s = emulated_exchange(~0u, HALF ? emulated::MMA_HALF : emulated::MMA, words, sizeof words, HALF ? emulated_mma_half : emulated_mma);
    memcpy(c, s->of[emulated_self->lane], 16);
}

inline void makeBarrier(u64 *b, u32 threads) { emulated_make_barrier(b, threads); }
inline void barriersMade() {}
inline void arrive(u64 *b) { emulated_arrive(b); }
inline void arriveCopied(u64 *b) { emulated_arrive_copied(b); }
inline bool passed(u64 *b, u32 parity) { return emulated_passed(b, parity); }
template <int THREADS> inline void someMeet() { emulated_some_meet(THREADS); }
template <int N> inline void fewerRegisters() {}
template <int N> inline void moreRegisters() {}

// Of four warps each does its own part, at once: the sums are there before awaitFour.
inline void shareWithFour() {}
inline void beginFour() {}
inline void endFour() {}
template <int ROWS, int LEFT> inline void awaitFour(float (*)[4]) {}
inline uint4 loadShared(const void *p) { return *emulated::aligned<uint4>(p); }
template <int ROWS> inline void mmaFour(float (*d)[4], u32 a0, u32 a1, u32 a2, u32 a3, const void *x, bool add) {
    uintptr_t at = (uintptr_t)x;
    if (at % 1024 >= 128 || at % 32) emulated_stop("rows whose columns begin at %p: a multiple of 1,024 and 0, 32, 64 or 96 are allowed", x);
    unsigned g = emulated_self->lane >> 2, t = emulated_self->lane & 3;
    for (int n = 0; n < ROWS / 8; n++) {
        if (!add) d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0;
        u32 b[2];
        for (unsigned i = 0; i < 2; i++) {
            uintptr_t from = at + (8 * n + g) * 128 + i * 16 + t * 4;
            b[i] = *(const u32 *)(from ^ (from >> 7 & 7) << 4);
        }
        mma<false>(d[n], a0, a1, a2, a3, b[0], b[1]);
    }
}

inline void copyAsync(void *to, const void *from) { emulated_copy(to, from, 16, true); }
inline void copy16(void *to, const void *from, bool is) { emulated_copy(to, from, 16, is); }
inline void copy4(void *to, const void *from, bool is) { emulated_copy(to, from, 4, is); }
inline void copied() { emulated_commit(); }
template <int GROUPS> inline void await() { emulated_await(GROUPS); }

inline void cluster_sync() { emulated_cluster_barrier(); }
inline float4 remote4(const void *p, int rank) { return *(const float4 *)emulated_remote(emulated::aligned<float4>(p), rank); }

// 8 bytes at once, as they arrive on a GPU.
inline u32 loadGPU(const u32 *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
inline void storePush(uint4 *to, u32 a, u32 n, u32 b) {
    u64 *words = (u64 *)emulated::aligned<uint4>(to);
    __atomic_store_n(words, (u64)n << 32 | a, __ATOMIC_RELEASE);
    __atomic_store_n(words + 1, (u64)n << 32 | b, __ATOMIC_RELEASE);
}
inline uint4 loadPush(const uint4 *p) {
    const u64 *words = (const u64 *)emulated::aligned<uint4>(p);
    u64 a = __atomic_load_n(words, __ATOMIC_ACQUIRE), b = __atomic_load_n(words + 1, __ATOMIC_ACQUIRE);
    emulated_spin();
    return make_uint4((u32)a, (u32)(a >> 32), (u32)b, (u32)(b >> 32));
}
inline void storeSign(u32 *to, u32 n) { __atomic_store_n(to, n, __ATOMIC_RELEASE); }
inline u32 loadSign(const u32 *p) {
    u32 v = __atomic_load_n(p, __ATOMIC_ACQUIRE);
    emulated_spin();
    return v;
}
inline uint4 loadSigned(const uint4 *p) { return *emulated::aligned<uint4>(p); }
