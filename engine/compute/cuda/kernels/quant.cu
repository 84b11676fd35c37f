// Products with quantised weights, and their decoding.
//
// A row of codes is stored as tiles of 64 bytes: 128 columns of int4, 64 of the
// others; columns that fill up the last tile are zero. A tile's bytes lie so
// that each of four threads has its part of every 32 columns, 8 neighbours, in
// 16 neighbouring bytes. See pack in quant.go.

struct Quant {
    const u8 *codes;     // [out][tiles][64]
    const float *scales; // [out][groups]
    View x;
    int in, rows, dtype, group, groups, tiles;
    int shift, unused; // tiles of a group, as a power of two
    Output o;
};

DEV u32 fma2(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// The codes of 8 columns as bfloat16 pairs, exactly.
template <int DTYPE> DEV void decode(uint2 w, u32 *v) {
    if (DTYPE == I4) {
#pragma unroll
        for (int i = 0; i < 4; i++) // 128 + code has the code in its last bits
            v[i] = fma2((w.x >> (4 * i) & 0x000f000fu) | 0x43004300u, 0x3f803f80u, 0xc308c308u);
    } else if (DTYPE == F8E4M3) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 b = __byte_perm(i < 2 ? w.x : w.y, 0, i & 1 ? 0x3424 : 0x1404);
            v[i] = fma2((b & 0x80008000u) | (b & 0x7f007f00u) >> 4, 0x7b807b80u, 0x80008000u); // · 2^120
        }
    } else {
        u32 word[2] = {w.x ^ 0x80808080u, w.y ^ 0x80808080u};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 u = word[i / 2];
            float a = __uint_as_float(__byte_perm(u, 0x4b000000u, 0x7440 | (i & 1) * 2)) - 8388736.f;
            float b = __uint_as_float(__byte_perm(u, 0x4b000000u, 0x7441 | (i & 1) * 2)) - 8388736.f;
            v[i] = pack(a, b);
        }
    }
}

// part is a thread's bytes of 32-column block j of a tile.
template <int DTYPE> DEV uint2 part(const uint4 &w, int j) {
    if (DTYPE == I4) return make_uint2(j == 0 ? w.x : j == 1 ? w.y : j == 2 ? w.z : w.w, 0);
    return j == 0 ? make_uint2(w.x, w.y) : make_uint2(w.z, w.w);
}

// quant_skinny is skinny for codes. SCALES is the number of groups that a tile
// lies in: 1, or as many as it has 32-column blocks, or half of that. UNROLL
// is even.
template <int DTYPE, int TILES, int SCALES, int UNROLL, int WARPS> DEV void quant_skinny(const Quant &p) {
    constexpr int BLOCKS = DTYPE == I4 ? 4 : 2, PER = BLOCKS / SCALES, COLS = 32 * BLOCKS;
    __shared__ float sums[WARPS][16][8 * TILES + 1];
    let_next_begin();
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int from = p.tiles * warp / WARPS, to = p.tiles * (warp + 1) / WARPS;
    int ra, rb;
    outputs(p.o, g, ra, rb);
    const u8 *wa = p.codes + (size_t)ra * p.tiles * 64 + t * 16, *wb = p.codes + (size_t)rb * p.tiles * 64 + t * 16;
    const float *sa = p.scales + (size_t)ra * p.groups, *sb = p.scales + (size_t)rb * p.groups;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 A[UNROLL], B[UNROLL];
    float fa[UNROLL][SCALES], fb[UNROLL][SCALES];
    auto fetch = [&](int u, int c) {
        bool in = c < to;
        A[u] = in ? loadWeights(wa + c * 64) : zero;
        B[u] = in ? loadWeights(wb + c * 64) : zero;
#pragma unroll
        for (int s = 0; s < SCALES; s++) {
            int k = SCALES == 1 ? c >> p.shift : min(c * SCALES + s, p.groups - 1);
            fa[u][s] = in ? __ldg(sa + k) : 0;
            fb[u][s] = in ? __ldg(sb + k) : 0;
        }
    };
#pragma unroll
    for (int u = 0; u < UNROLL; u++) fetch(u, from + u);
    wait_for_earlier();
    float sum[TILES][4] = {};
    const u16 *x[TILES];
    bool on[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        on[i] = i * 8 + g < p.rows;
        x[i] = (const u16 *)p.x.data + (size_t)(on[i] ? i * 8 + g : 0) * p.x.stride + t * 8;
    }
    // The rows' part of a tile is read a tile ahead too.
    uint4 X[2][TILES][BLOCKS];
    auto rows = [&](int turn, int c) {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < BLOCKS; j++) {
                int col = c * COLS + j * 32;
                X[turn][i][j] = on[i] && c < to && col + t * 8 < p.in ? loadNow(x[i] + col) : zero;
            }
    };
    rows(0, from);
    for (int c = from; c < to; c += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            rows((u + 1) & 1, c + u + 1);
#pragma unroll
            for (int s = 0; s < SCALES; s++) {
                float d[TILES][4] = {};
#pragma unroll
                for (int k = 0; k < PER; k++) {
                    int j = s * PER + k;
                    u32 a[4], b[4];
                    decode<DTYPE>(part<DTYPE>(A[u], j), a);
                    decode<DTYPE>(part<DTYPE>(B[u], j), b);
#pragma unroll
                    for (int i = 0; i < TILES; i++) {
                        uint4 v = X[u & 1][i][j];
                        mma<false>(d[i], a[0], b[0], a[1], b[1], v.x, v.y);
                        mma<false>(d[i], a[2], b[2], a[3], b[3], v.z, v.w);
                    }
                }
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    sum[i][0] += d[i][0] * fa[u][s];
                    sum[i][1] += d[i][1] * fa[u][s];
                    sum[i][2] += d[i][2] * fb[u][s];
                    sum[i][3] += d[i][3] * fb[u][s];
                }
            }
            fetch(u, c + u + UNROLL);
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        sums[warp][g][i * 8 + t * 2] = sum[i][0];
        sums[warp][g][i * 8 + t * 2 + 1] = sum[i][1];
        sums[warp][g + 8][i * 8 + t * 2] = sum[i][2];
        sums[warp][g + 8][i * 8 + t * 2 + 1] = sum[i][3];
    }
    __syncthreads();
    finish<WARPS>(p.o, sums, p.rows);
}

#define QUANT(name, dtype, tiles, scales, unroll, warps) \
    extern "C" __global__ void __launch_bounds__(32 * warps) name(const Quant p) { quant_skinny<dtype, tiles, scales, unroll, warps>(p); }
QUANT(quant_i4_8_1, I4, 1, 1, 4, 8)
QUANT(quant_i4_8_2, I4, 1, 2, 2, 8)
QUANT(quant_i4_8_4, I4, 1, 4, 2, 8)
QUANT(quant_i4_16_1, I4, 2, 1, 2, 8)
QUANT(quant_i4_16_2, I4, 2, 2, 2, 8)
QUANT(quant_i4_16_4, I4, 2, 4, 2, 8)
QUANT(quant_i8_8_1, I8, 1, 1, 4, 8)
QUANT(quant_i8_8_2, I8, 1, 2, 2, 8)
QUANT(quant_i8_16_1, I8, 2, 1, 2, 8)
QUANT(quant_i8_16_2, I8, 2, 2, 2, 8)
QUANT(quant_f8_8_1, F8E4M3, 1, 1, 4, 8)
QUANT(quant_f8_8_2, F8E4M3, 1, 2, 2, 8)
QUANT(quant_f8_16_1, F8E4M3, 2, 1, 2, 8)
QUANT(quant_f8_16_2, F8E4M3, 2, 2, 2, 8)

// code is one code as stored, times 1.
DEV float code(const Quant &p, int row, int col) {
    const u8 *line = p.codes + (size_t)row * p.tiles * 64;
    if (p.dtype == I4) {
        int tile = col / 128, in = col % 128, j = in / 32, t = in % 32 / 8, k = in % 8;
        u32 word = *(const u32 *)(line + tile * 64 + t * 16 + j * 4);
        return (float)(int)(word >> (k / 2 * 4 + k % 2 * 16) & 15) - 8;
    }
    int tile = col / 64, in = col % 64, j = in / 32, t = in % 32 / 8, k = in % 8;
    u8 b = line[tile * 64 + t * 16 + j * 8 + k];
    return p.dtype == I8 ? (float)(signed char)b : float8(b);
}

// dequantise: y, [out, in] of bfloat16, is the weight. A block a row.
extern "C" __global__ void __launch_bounds__(256) dequantise(const Quant p) {
    let_next_begin();
    wait_for_earlier();
    int r = blockIdx.x;
    const float *scale = p.scales + (size_t)r * p.groups;
    for (int j = threadIdx.x; j < p.in; j += 256) store(p.o.y, r, j, code(p, r, j) * scale[j / p.group]);
}

// quant_any computes one output a warp for 8 rows, for any shape. Blocks:
// outputs / 8 × rows / 8.
extern "C" __global__ void __launch_bounds__(256) quant_any(const Quant p) {
    let_next_begin();
    wait_for_earlier();
    int r = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31, first = blockIdx.y * 8, n = min(8, p.rows - first);
    if (r >= p.o.out) return;
    const float *scale = p.scales + (size_t)r * p.groups;
    float sum[8] = {};
    for (int j = lane; j < p.in; j += 32) {
        float w = code(p, r, j) * scale[j / p.group];
#pragma unroll
        for (int m = 0; m < 8; m++)
            if (m < n) sum[m] += w * load(p.x, first + m, j);
    }
#pragma unroll
    for (int m = 0; m < 8; m++) {
        float s = warpSum(sum[m]);
        if (lane == 0 && m < n) store(p.o.y, first + m, r, s);
    }
}

struct AnyLinear {
    const void *w;
    View x, y;
    int out, in, rows, dtype;
};

// linear_any is quant_any for weights that are not quantised.
extern "C" __global__ void __launch_bounds__(256) linear_any(const AnyLinear p) {
    let_next_begin();
    wait_for_earlier();
    int r = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31, first = blockIdx.y * 8, n = min(8, p.rows - first);
    if (r >= p.out) return;
    float sum[8] = {};
    for (int j = lane; j < p.in; j += 32) {
        size_t at = (size_t)r * p.in + j;
        float w = p.dtype == F32 ? ((const float *)p.w)[at] : p.dtype == F16 ? half(((const u16 *)p.w)[at]) : __uint_as_float((u32)((const u16 *)p.w)[at] << 16);
#pragma unroll
        for (int m = 0; m < 8; m++)
            if (m < n) sum[m] += w * load(p.x, first + m, j);
    }
#pragma unroll
    for (int m = 0; m < 8; m++) {
        float s = warpSum(sum[m]);
        if (lane == 0 && m < n) store(p.y, first + m, r, s);
    }
}
