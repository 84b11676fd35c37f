// What the card can do, for figures to be a share of.

struct Read {
    const uint4 *p;
    u64 n; // of 16 bytes
    u32 *out;
};

// read_all reads n times 16 bytes once. Its result is never written, which the
// compiler cannot know.
extern "C" __global__ void __launch_bounds__(256) read_all(const Read r) {
    wait_for_earlier();
    u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
    u32 a = 0;
    for (; i + 7 * step < r.n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int u = 0; u < 8; u++) v[u] = loadWeights(r.p + i + u * step);
#pragma unroll
        for (int u = 0; u < 8; u++) a ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    if (a == 0x12345) *r.out = a;
}

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
