// What the card can do, for figures to be a share of.

struct Read {
    const uint4 *p;
    u64 n; // of 16 bytes
    u32 *out;
};

// read_all reads n times 16 bytes once, UNROLL at a time: a block a stretch of its
// own. The result is never written, which the compiler cannot know.
template <int UNROLL> DEV void read_all(const Read &r) {
    wait_for_earlier();
    u64 per = r.n / gridDim.x, i = blockIdx.x * per + threadIdx.x, end = (blockIdx.x + 1) * per;
    u32 a = 0;
    for (; i < end; i += 256 * UNROLL) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) v[u] = i + 256 * u < end ? loadWeights(r.p + i + 256 * u) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) a ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    if (a == 0x12345) *r.out = a;
}

extern "C" __global__ void __launch_bounds__(256) read_all_4(const Read r) { read_all<4>(r); }
extern "C" __global__ void __launch_bounds__(256) read_all_8(const Read r) { read_all<8>(r); }

struct Noise {
    u16 *p;
    u64 n;
    u32 seed;
    float scale;
};

// noise fills p with bfloat16 numbers within ± scale.
extern "C" __global__ void __launch_bounds__(256) noise(const Noise f) {
    wait_for_earlier();
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < f.n; i += (u64)gridDim.x * blockDim.x) {
        u32 h = (u32)(i * 2654435761u) ^ f.seed;
        h ^= h >> 16;
        h *= 0x85ebca6bu;
        h ^= h >> 13;
        h *= 0xc2b2ae35u;
        h ^= h >> 16;
        f.p[i] = round16(((h & 0xffff) / 32768.f - 1.f) * f.scale);
    }
}
