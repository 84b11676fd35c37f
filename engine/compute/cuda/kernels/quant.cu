// Products of a few rows of activations and a matrix of codes, and products of any
// shape.

// Bits are constants that stay in registers: the compiler would else set them anew
// for each use.
struct Bits {
    u32 mask, with;
};
template <int DTYPE> DEV Bits bits() {
    Bits b = {DTYPE == I4 ? 0x00780078u : 0x07f007f0u, DTYPE == I4 ? 0x41804180u : 0x80008000u};
    inRegisters(b.mask, b.with);
    return b;
}

// A float8's bits are taken for a bfloat16 that is too small by 2^120: activations
// are made 2^64 times larger, so that no product is too small, and sums are set
// right at last.
#define FLOAT8_UP 0x5f805f80u
#define FLOAT8_SUM 72057594037927936.f

// raw is decode in fewer instructions: int4 codes come out as 16 + code, of which
// 24 times the activations are too much, and float8 as said above.
template <int DTYPE> DEV void raw(uint2 w, u32 *v, const Bits &b) {
    if (DTYPE == I4) {
        v[0] = and_or(w.x << 3, b.mask, b.with);
        v[1] = and_or(w.x >> 1, b.mask, b.with);
        v[2] = and_or(w.x >> 5, b.mask, b.with);
        v[3] = and_or(w.x >> 9, b.mask, b.with);
    } else if (DTYPE == F8E4M3) {
        v[0] = and_or(w.x, b.with, w.x >> 4 & b.mask);
        v[1] = and_or(w.x << 8, b.with, w.x << 4 & b.mask);
        v[2] = and_or(w.y, b.with, w.y >> 4 & b.mask);
        v[3] = and_or(w.y << 8, b.with, w.y << 4 & b.mask);
    } else {
        decode<DTYPE>(w, v);
    }
}
#define MINUS24 0xc1c0c1c0u

// Codes is what a thread has read ahead: of UNROLL tiles its 16 bytes of each of
// two rows, and their scales, which are zero where there is no tile.
template <int SCALES, int UNROLL> struct Codes {
    uint4 a[UNROLL], b[UNROLL];
    float fa[UNROLL][SCALES], fb[UNROLL][SCALES];
};

// multiply adds the products of tile u of what was read ahead to sum. x[i] is where
// the thread's activations of row i, and the tile, begin; left is how many columns
// there are from the first of them on.
template <int DTYPE, int TILES, int SCALES, int UNROLL>
DEV void multiply(float (*sum)[4], const Codes<SCALES, UNROLL> &c, int u, const u16 *const *x, int left, const Bits &masks) {
    constexpr int BLOCKS = DTYPE == I4 ? 4 : 2, PER = BLOCKS / SCALES, COLS = 32 * BLOCKS;
    // With one tile of rows the tensor cores have the time to take 24 away. The chains of
    // products that wait for each other, d and e, are equally long.
    constexpr bool OFFSET = DTYPE == I4 && TILES == 1;
    uint4 v[TILES][BLOCKS];
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            v[i][j] = u * COLS + j * 32 < left ? loadNow(x[i] + u * COLS + j * 32) : make_uint4(0, 0, 0, 0);
            if (DTYPE == F8E4M3) v[i][j] = make_uint4(mul2(v[i][j].x, FLOAT8_UP), mul2(v[i][j].y, FLOAT8_UP), mul2(v[i][j].z, FLOAT8_UP), mul2(v[i][j].w, FLOAT8_UP));
        }
#pragma unroll
    for (int s = 0; s < SCALES; s++) {
        float d[TILES][4] = {}, e[4] = {}; // e: what does not wait for d
#pragma unroll
        for (int k = 0; k < PER; k++) {
            int j = s * PER + k;
            u32 a[4], b[4];
            if (DTYPE == I4 && !OFFSET) {
                decode<DTYPE>(part<DTYPE>(c.a[u], j), a);
                decode<DTYPE>(part<DTYPE>(c.b[u], j), b);
            } else {
                raw<DTYPE>(part<DTYPE>(c.a[u], j), a, masks);
                raw<DTYPE>(part<DTYPE>(c.b[u], j), b, masks);
            }
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                const uint4 &y = v[i][j];
                mma<false>(d[i], a[0], b[0], a[1], b[1], y.x, y.y);
                mma<false>(TILES == 1 && !OFFSET ? e : d[i], a[2], b[2], a[3], b[3], y.z, y.w);
                if (OFFSET) {
                    mma<false>(d[i], MINUS24, MINUS24, MINUS24, MINUS24, y.x, y.y);
                    mma<false>(e, MINUS24, MINUS24, MINUS24, MINUS24, y.z, y.w);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) sum[i][k] += (TILES == 1 ? d[i][k] + e[k] : d[i][k]) * (k < 2 ? c.fa[u][s] : c.fb[u][s]);
    }
}

// quant_skinny is skinny for codes, of TILES times 8 rows. A block has turns times
// 16 outputs, one after the other; its warps read on beyond the end of one, so
// that loads are in flight while a sum is put together. SCALES is the number of
// groups that a tile lies in: 1, or as many as it has 32-column blocks, or half of
// that.
template <int DTYPE, int TILES, int SCALES, int UNROLL> DEV void quant_skinny(const Quant &p) {
    constexpr int COLS = DTYPE == I4 ? 128 : 64;
    __shared__ float sums[2][8][16][8 * TILES + 1], factor[8 * TILES];
    alignas(16) __shared__ float squares[8 * TILES][MOST_PARTS];
    let_next_begin();
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int from = p.tiles * warp / 8, count = p.tiles * (warp + 1) / 8 - from;
    int first = blockIdx.x * p.turns, last = min(first + p.turns, (p.o.out + 15) / 16);
    Codes<SCALES, UNROLL> c;
    const u8 *wa, *wb;
    const float *sa, *sb;
    auto point = [&](int turn) {
        int ra, rb;
        outputs(p.o, turn, g, ra, rb);
        wa = tileAt(p, ra, from) + t * 16;
        wb = tileAt(p, rb, from) + t * 16;
        sa = scaleAt(p, ra, 0);
        sb = scaleAt(p, rb, 0);
    };
    auto fetch = [&](int u, int at) { // tile at + u of the warp's, whose first UNROLL begin at wa and wb
        bool in = at + u < count;
        const uint4 zero = make_uint4(0, 0, 0, 0);
        c.a[u] = in ? loadWeights(wa + u * TOGETHER * 64) : zero;
        c.b[u] = in ? loadWeights(wb + u * TOGETHER * 64) : zero;
#pragma unroll
        for (int s = 0; s < SCALES; s++) {
            int k = SCALES == 1 ? (from + at + u) >> p.shift : min((from + at + u) * SCALES + s, p.groups - 1);
            c.fa[u][s] = in ? __ldg(sa + k * TOGETHER) : 0;
            c.fb[u][s] = in ? __ldg(sb + k * TOGETHER) : 0;
        }
    };
    point(first);
#pragma unroll
    for (int u = 0; u < UNROLL; u++) fetch(u, 0);
    wait_for_earlier();
    askSquares<8>(p.d, squares, p.rows);
    const Bits masks = bits<DTYPE>();
    const u16 *row[TILES]; // beyond the last it is read again: what comes of that is not stored
#pragma unroll
    for (int i = 0; i < TILES; i++) row[i] = (const u16 *)p.x.data + (size_t)min(i * 8 + g, p.rows - 1) * p.x.stride + from * COLS + t * 8;
    int left = p.in - from * COLS - t * 8;
#pragma unroll 1
    for (int turn = first; turn < last; turn++) {
        float sum[TILES][4] = {};
        const Early ahead = earlyOwn(p.o, turn, p.rows); // beside weights that are on their way
#pragma unroll 1
        for (int at = 0; at < count; at += UNROLL) {
            int next = at + UNROLL;
            wa += UNROLL * TOGETHER * 64;
            wb += UNROLL * TOGETHER * 64;
            if (next >= count) {
                next = turn + 1 < last ? 0 : count;
                if (turn + 1 < last) point(turn + 1);
            }
            const u16 *x[TILES];
#pragma unroll
            for (int i = 0; i < TILES; i++) x[i] = row[i] + at * COLS;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                multiply<DTYPE, TILES, SCALES, UNROLL>(sum, c, u, x, left - at * COLS, masks);
                fetch(u, next);
            }
        }
        constexpr float set = DTYPE == F8E4M3 ? FLOAT8_SUM : 1;
        float(*to)[16][8 * TILES + 1] = sums[turn & 1];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            to[warp][g][i * 8 + t * 2] = sum[i][0] * set;
            to[warp][g][i * 8 + t * 2 + 1] = sum[i][1] * set;
            to[warp][g + 8][i * 8 + t * 2] = sum[i][2] * set;
            to[warp][g + 8][i * 8 + t * 2 + 1] = sum[i][3] * set;
        }
        if (turn == first) factors<8>(p.d, squares, factor, p.rows);
        __syncthreads();
        finish<8>(p.o, ahead, turn, to, factor, p.rows);
    }
}

#define QUANT(name, dtype, tiles, scales, unroll) \
    extern "C" __global__ void __launch_bounds__(256, 2) name(const Quant p) { quant_skinny<dtype, tiles, scales, unroll>(p); }
QUANT(quant_i4_8_1, I4, 1, 1, 4)
QUANT(quant_i4_8_2, I4, 1, 2, 2)
QUANT(quant_i4_8_4, I4, 1, 4, 2)
QUANT(quant_i4_16_1, I4, 2, 1, 2)
QUANT(quant_i4_16_2, I4, 2, 2, 2)
QUANT(quant_i4_16_4, I4, 2, 4, 2)
QUANT(quant_i8_8_1, I8, 1, 1, 4)
QUANT(quant_i8_8_2, I8, 1, 2, 2)
QUANT(quant_i8_16_1, I8, 2, 1, 2)
QUANT(quant_i8_16_2, I8, 2, 2, 2)
QUANT(quant_f8_8_1, F8E4M3, 1, 1, 4)
QUANT(quant_f8_8_2, F8E4M3, 1, 2, 2)
QUANT(quant_f8_16_1, F8E4M3, 2, 1, 2)
QUANT(quant_f8_16_2, F8E4M3, 2, 2, 2)

// code is one code as stored, times 1.
DEV float code(const Quant &p, int row, int col) {
    if (p.dtype == I4) {
        int in = col % 128, j = in / 32, t = in % 32 / 8, k = in % 8;
        u32 word = *(const u32 *)(tileAt(p, row, col / 128) + t * 16 + j * 4);
        return (float)(int)(word >> (k / 2 * 4 + k % 2 * 16) & 15) - 8;
    }
    int in = col % 64, j = in / 32, t = in % 32 / 8, k = in % 8;
    if (p.dtype == F8E4M3) k = (k & 4) | (0x2031 >> (k & 3) * 4 & 3); // bytes have columns 2, 0, 3, 1
    u8 b = tileAt(p, row, col / 64)[t * 16 + j * 8 + k];
    return p.dtype == I8 ? (float)(signed char)b : float8(b);
}

// decoded is 8 columns of codes times their scales; in is a multiple of 8.
template <int DTYPE> DEV uint4 decoded(const Quant &p, uint2 codes, int row, int col) {
    u32 v[4], r[4];
    decode<DTYPE>(codes, v);
    const float *scale = scaleAt(p, row, col / p.group);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float a = *scale, b = a;
        if (p.group % 8 != 0) {
            a = *scaleAt(p, row, (col + 2 * i) / p.group);
            b = *scaleAt(p, row, (col + 2 * i + 1) / p.group);
        }
        r[i] = pack(low(v[i]) * a, high(v[i]) * b);
    }
    return make_uint4(r[0], r[1], r[2], r[3]);
}

// dequantise: y, [out, in] of bfloat16, is the weight. A warp a tile of 8 rows.
// Blocks: tiles / 8 × out / 8.
template <int DTYPE> DEV void dequantise(const Quant &p) {
    let_next_begin();
    int lane = threadIdx.x & 31, row = blockIdx.y * TOGETHER + lane / 4, t = lane & 3, tile = blockIdx.x * 8 + (threadIdx.x >> 5);
    bool is = tile < p.tiles && row < p.o.out;
    uint4 codes = is ? loadWeights(tileAt(p, row, tile) + t * 16) : make_uint4(0, 0, 0, 0);
    wait_for_earlier();
    if (!is) return;
    constexpr int BLOCKS = DTYPE == I4 ? 4 : 2;
#pragma unroll
    for (int j = 0; j < BLOCKS; j++) {
        int col = (tile * BLOCKS + j) * 32 + t * 8;
        if (col < p.in) *(uint4 *)((u16 *)p.o.y.data + (size_t)row * p.o.y.stride + col) = decoded<DTYPE>(p, part<DTYPE>(codes, j), row, col);
    }
}

extern "C" __global__ void __launch_bounds__(256) dequantise_i4(const Quant p) { dequantise<I4>(p); }
extern "C" __global__ void __launch_bounds__(256) dequantise_i8(const Quant p) { dequantise<I8>(p); }
extern "C" __global__ void __launch_bounds__(256) dequantise_f8(const Quant p) { dequantise<F8E4M3>(p); }

// quant_any computes one output a warp for 8 rows, for any shape. Blocks:
// outputs / 8 × rows / 8.
extern "C" __global__ void __launch_bounds__(256) quant_any(const Quant p) {
    let_next_begin();
    wait_for_earlier();
    int r = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31, first = blockIdx.y * 8, n = min(8, p.rows - first);
    if (r >= p.o.out) return;
    const float *scale = scaleAt(p, r, 0);
    float sum[8] = {};
    for (int j = lane; j < p.in; j += 32) {
        float w = code(p, r, j) * scale[j / p.group * TOGETHER];
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
