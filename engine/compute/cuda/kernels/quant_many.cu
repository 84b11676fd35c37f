// Products of up to 64 rows of activations and a matrix of codes, which are read
// and decoded once for all rows.
//
// A block computes tiles of 128 outputs. Four warps have 32 of them each, and
// four more the same ones over the other half of the columns. A step is two
// tiles of codes, one for either half; codes, their scales and the rows'
// activations wait for it in shared memory, some steps ahead. The blocks share
// the steps of all outputs evenly, so that one may begin and end within a tile:
// what it has of that goes to memory, and whoever comes last adds it up, always
// in the same order.

#define OUTPUTS 128

struct Many {
    Quant q;
    float4 *partial; // [2 · blocks][rows / 8][256]: of a tile that a block did not begin, and of one that it did not end
    u32 *arrived;   // by tile of outputs; zero between kernels
    int stages;
};

// awaitStage waits for the stage that is next: the copies of stages − 2 later ones may
// still be under way.
DEV void awaitStage(int stages) {
    if (stages == 4)
        await<2>();
    else if (stages == 3)
        await<1>();
    else
        await<0>();
}

// Stage is the shared memory of a step. Its strides let whatever is read at once
// lie in different banks.
template <int DTYPE, int ROWS, int SCALES> struct Stage {
    static constexpr int COLS = DTYPE == I4 ? 128 : 64; // of each half
    static constexpr int STRIDE = 2 * COLS * 2 + 64;
    u8 x[ROWS][STRIDE];
    uint4 codes[4][256]; // a thread's 16 bytes of a tile of outputs g, g + 8, g + 16 and g + 24
    float4 scales[SCALES][8][8];
};

// Steps goes through a block's steps: of tile of outputs at tile, step at k.
struct Steps {
    int tile, k, left;
    DEV void next(int of) {
        left--;
        if (++k == of) {
            k = 0;
            tile++;
        }
    }
};

template <int DTYPE, int ROWS, int SCALES> struct Block {
    typedef Stage<DTYPE, ROWS, SCALES> Shared;
    static constexpr int NT = ROWS / 8, COLS = Shared::COLS, BLOCKS = COLS / 32, PER = BLOCKS / SCALES;
    int warp, lane, g, t, wide, half; // the warp's place along outputs, and its half of the columns
    const u8 *codes[4];
    const float *scales;
    float sum[2][NT][4];

    DEV Block() {
        warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, wide = warp & 3, half = warp >> 2;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[0][n][i] = sum[1][n][i] = 0;
    }

    // point is for a tile of outputs that begins to be copied.
    DEV void point(const Quant &p, int tile) {
        int rows[4];
        outputs(p.o, tile * 8 + wide * 2, g, rows[0], rows[1]);
        outputs(p.o, tile * 8 + wide * 2 + 1, g, rows[2], rows[3]);
#pragma unroll
        for (int i = 0; i < 4; i++) codes[i] = tileAt(p, rows[i], half) + t * 16;
        scales = scaleAt(p, t < 2 ? t == 0 ? rows[0] : rows[1] : t == 2 ? rows[2] : rows[3], 0);
    }

    // copyCodes and copyRows copy what step k needs.
    DEV void copyCodes(const Quant &p, Shared &s, int k) {
        int at = 2 * k + half;
        bool is = at < p.tiles;
        u32 from = is ? k * 2 * TOGETHER * 64 : 0;
#pragma unroll
        for (int i = 0; i < 4; i++) copy16(&s.codes[i][threadIdx.x], codes[i] + from, is);
#pragma unroll
        for (int c = 0; c < SCALES; c++) {
            int group = SCALES == 1 ? at >> p.shift : min(at * SCALES + c, p.groups - 1);
            copy4((float *)&s.scales[c][warp][g] + t, scales + (is ? group * TOGETHER : 0), is);
        }
    }
    DEV void copyRows(const Quant &p, Shared &s, int k) {
        constexpr int PIECES = 2 * COLS / 8;
#pragma unroll
        for (int i = 0; i < ROWS * PIECES / 256; i++) {
            int n = i * 256 + threadIdx.x, row = n / PIECES, piece = n % PIECES, col = k * 2 * COLS + piece * 8;
            // Beyond the last row it is copied again: what comes of that is not stored.
            const u16 *from = (const u16 *)p.x.data + (u32)(min(row, p.rows - 1) * p.x.stride);
            bool is = col < p.in;
            copy16(&s.x[row][piece * 16], from + (is ? col : 0), is);
        }
    }

    // multiply adds a step's products to sum.
    DEV void multiply(const Shared &s) {
        uint4 c[4];
#pragma unroll
        for (int i = 0; i < 4; i++) c[i] = s.codes[i][threadIdx.x];
        const u8 *x = s.x[g] + half * COLS * 2 + t * 16;
#pragma unroll
        for (int f = 0; f < SCALES; f++) {
            float d[2][NT][4] = {};
#pragma unroll
            for (int k = 0; k < PER; k++) {
                int j = f * PER + k;
                u32 w[4][4];
#pragma unroll
                for (int i = 0; i < 4; i++) decode<DTYPE>(part<DTYPE>(c[i], j), w[i]);
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    uint4 v = *(const uint4 *)(x + n * 8 * Shared::STRIDE + j * 64);
                    mma<false>(d[0][n], w[0][0], w[1][0], w[0][1], w[1][1], v.x, v.y);
                    mma<false>(d[1][n], w[2][0], w[3][0], w[2][1], w[3][1], v.x, v.y);
                    mma<false>(d[0][n], w[0][2], w[1][2], w[0][3], w[1][3], v.z, v.w);
                    mma<false>(d[1][n], w[2][2], w[3][2], w[2][3], w[3][3], v.z, v.w);
                }
            }
            float4 scale = s.scales[f][warp][g];
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sum[0][n][i] += d[0][n][i] * (i < 2 ? scale.x : scale.y);
                    sum[1][n][i] += d[1][n][i] * (i < 2 ? scale.z : scale.w);
                }
        }
    }

    // join puts the sums of both halves of the columns together, and sets them to
    // zero: each half of the threads comes to have 16 of its warp's 32 outputs, in
    // its own columns of swap.
    DEV void join(float (*swap)[256]) {
        __syncthreads();
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) swap[n * 4 + i][threadIdx.x ^ 128] = half ? sum[0][n][i] : sum[1][n][i];
        __syncthreads();
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                swap[n * 4 + i][threadIdx.x] += half ? sum[1][n][i] : sum[0][n][i];
                sum[0][n][i] = sum[1][n][i] = 0;
            }
    }

    // emitAll stores what join gave.
    DEV void emitAll(const Quant &p, int tile, float (*swap)[256]) {
        int block = tile * 8 + wide * 2 + half;
        if (block * 16 >= p.o.out) return;
#pragma unroll 4
        for (int k = 0; k < 2 * NT; k++) {
            int m = k / 2 * 8 + t * 2 + k % 2, i = k / 2 * 4 + k % 2;
            if (m < p.rows) emit(p.o, early(p.o, block, g, m), block, g, m, swap[i][threadIdx.x], swap[i + 2][threadIdx.x]);
        }
    }
};

// owner is the block that has a step, of all that the blocks share.
DEV int owner(int step, int steps, int blocks) {
    int b = (int)((long long)step * blocks / steps);
    while ((int)((long long)steps * (b + 1) / blocks) <= step) b++;
    return b;
}

template <int DTYPE, int ROWS, int SCALES> DEV void quant_many(const Many &p) {
    typedef Block<DTYPE, ROWS, SCALES> Own;
    extern __shared__ uint4 memory[];
    __shared__ bool last;
    typename Own::Shared *stages = (typename Own::Shared *)memory;
    float(*swap)[256] = (float(*)[256])(stages + p.stages);
    let_next_begin();
    const Quant &q = p.q;
    Own own;
    int of = (q.tiles + 1) / 2, steps = (q.o.out + OUTPUTS - 1) / OUTPUTS * of; // steps of a tile, of all
    int from = (int)((long long)steps * blockIdx.x / gridDim.x), to = (int)((long long)steps * (blockIdx.x + 1) / gridDim.x);
    Steps now = {from / of, from % of, to - from}, next = now;
    int first = now.k; // of the present tile
    own.point(q, next.tile);
    Steps early = next;
    for (int i = 0; i < p.stages - 1 && early.left > 0; i++) { // codes are of no earlier kernel
        own.copyCodes(q, stages[i], early.k);
        early.next(of);
        if (early.k == 0) own.point(q, early.tile);
    }
    wait_for_earlier();
    for (int i = 0; i < p.stages - 1; i++) {
        if (next.left > 0) {
            own.copyRows(q, stages[i], next.k);
            next.next(of);
        }
        copied();
    }
    int read = 0, write = p.stages - 1;
#pragma unroll 1
    while (now.left > 0) {
        awaitStage(p.stages);
        __syncthreads();
        if (next.left > 0) {
            own.copyCodes(q, stages[write], next.k);
            own.copyRows(q, stages[write], next.k);
            next.next(of);
            if (next.k == 0) own.point(q, next.tile);
        }
        copied();
        if (++write == p.stages) write = 0;
        own.multiply(stages[read]);
        if (++read == p.stages) read = 0;
        int tile = now.tile;
        bool ends = now.k == of - 1;
        now.next(of);
        if (!ends && now.left > 0) continue;
        own.join(swap);
        bool whole = first == 0 && ends;
        if (!whole) {
            const int size = Own::NT * 256;
            float4 *to = p.partial + (size_t)(2 * blockIdx.x + (first == 0)) * size + threadIdx.x;
#pragma unroll
            for (int n = 0; n < Own::NT; n++)
                to[n * 256] = make_float4(swap[n * 4][threadIdx.x], swap[n * 4 + 1][threadIdx.x], swap[n * 4 + 2][threadIdx.x], swap[n * 4 + 3][threadIdx.x]);
            int a = owner(tile * of, steps, gridDim.x), b = owner(tile * of + of - 1, steps, gridDim.x);
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) last = atomicAdd(p.arrived + tile, 1) == b - a;
            __syncthreads();
            if (last) {
                __threadfence();
                if (threadIdx.x == 0) p.arrived[tile] = 0;
                float4 all[Own::NT] = {};
#pragma unroll 1
                for (int k = a; k <= b; k++) { // the first has begun the tile, the others have not
                    const float4 *part = p.partial + (size_t)(2 * k + (k == a)) * size + threadIdx.x;
#pragma unroll
                    for (int n = 0; n < Own::NT; n++) {
                        float4 v = __ldcg(part + n * 256);
                        all[n] = make_float4(all[n].x + v.x, all[n].y + v.y, all[n].z + v.z, all[n].w + v.w);
                    }
                }
#pragma unroll
                for (int n = 0; n < Own::NT; n++) {
                    swap[n * 4][threadIdx.x] = all[n].x;
                    swap[n * 4 + 1][threadIdx.x] = all[n].y;
                    swap[n * 4 + 2][threadIdx.x] = all[n].z;
                    swap[n * 4 + 3][threadIdx.x] = all[n].w;
                }
                whole = true;
            }
        }
        if (whole) own.emitAll(q, tile, swap);
        first = 0;
    }
}

#define MANY(name, dtype, rows, scales) \
    extern "C" __global__ void __launch_bounds__(256, 1) name(const Many p) { quant_many<dtype, rows, scales>(p); }
MANY(quant_i4_32_1, I4, 32, 1)
MANY(quant_i4_32_2, I4, 32, 2)
MANY(quant_i4_32_4, I4, 32, 4)
MANY(quant_i4_64_1, I4, 64, 1)
MANY(quant_i4_64_2, I4, 64, 2)
MANY(quant_i4_64_4, I4, 64, 4)
MANY(quant_i8_32_1, I8, 32, 1)
MANY(quant_i8_32_2, I8, 32, 2)
MANY(quant_i8_64_1, I8, 64, 1)
MANY(quant_i8_64_2, I8, 64, 2)
MANY(quant_f8_32_1, F8E4M3, 32, 1)
MANY(quant_f8_32_2, F8E4M3, 32, 2)
MANY(quant_f8_64_1, F8E4M3, 64, 1)
MANY(quant_f8_64_2, F8E4M3, 64, 2)
