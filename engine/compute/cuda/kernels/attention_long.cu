// Attention of items of many rows: prompts.

// Stage is 64 positions' keys and values in shared memory. Rows are filled up so
// that a warp's reads of fragments meet no bank twice.
template <int DIM> struct Stage {
    static constexpr int KEY = DIM * 2 + 64, VALUE = DIM * 2 + 16, BYTES = 64 * (KEY + VALUE);
};

// load begins to copy the 64 positions from base on, those before to, to a stage.
template <int DIM> DEV void load(const Attention &p, char *stage, const int *table, int kv, int base, int to) {
    constexpr int PIECES = DIM / 8; // of 16 bytes, of a row
    for (int k = threadIdx.x; k < 64 * PIECES; k += 256) {
        int i = k / PIECES, piece = k % PIECES;
        size_t at = entry(p, table, kv, min(base + i, to - 1)) + 8 * piece;
        copyAsync(stage + i * Stage<DIM>::KEY + 16 * piece, (const u16 *)p.keys + at);
        copyAsync(stage + 64 * Stage<DIM>::KEY + i * Stage<DIM>::VALUE + 16 * piece, (const u16 *)p.values + at);
    }
    copied();
}

// Codes are a thread's part of 64 positions of a float8 cache: 16 bytes of a row at
// a time.
template <int DIM> struct Codes {
    uint4 k[DIM / 64], v[DIM / 64];
};

// fetch8 reads the codes of the 64 positions from base on, those before to.
template <int DIM> DEV void fetch8(const Attention &p, Codes<DIM> &c, const int *table, int kv, int base, int to) {
    constexpr int PIECES = DIM / 16; // of a row
#pragma unroll
    for (int j = 0; j < DIM / 64; j++) {
        int k = threadIdx.x + 256 * j;
        size_t at = entry(p, table, kv, min(base + k / PIECES, to - 1)) + 16 * (k % PIECES);
        c.k[j] = *(const uint4 *)((const u8 *)p.keys + at);
        c.v[j] = *(const uint4 *)((const u8 *)p.values + at);
    }
}

// spread8 writes 16 codes as bfloat16 numbers, exactly.
DEV void spread8(char *to, uint4 codes) {
    const u32 *w = (const u32 *)&codes, times = 0x7b807b80u; // 2^120
    u32 v[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = mul2(bits8(__byte_perm(w[i], 0, 0x1404)), times);
        v[2 * i + 1] = mul2(bits8(__byte_perm(w[i], 0, 0x3424)), times);
    }
    *(uint4 *)to = make_uint4(v[0], v[1], v[2], v[3]);
    *(uint4 *)(to + 16) = make_uint4(v[4], v[5], v[6], v[7]);
}

// put8 writes what fetch8 has read to a stage.
template <int DIM> DEV void put8(char *stage, const Codes<DIM> &c) {
    constexpr int PIECES = DIM / 16;
#pragma unroll
    for (int j = 0; j < DIM / 64; j++) {
        int k = threadIdx.x + 256 * j, i = k / PIECES, piece = k % PIECES;
        spread8(stage + i * Stage<DIM>::KEY + 32 * piece, c.k[j]);
        spread8(stage + 64 * Stage<DIM>::KEY + i * Stage<DIM>::VALUE + 32 * piece, c.v[j]);
    }
}

// attend32 takes positions base to base + 31, those before to, into a tile; they
// are positions at to at + 31 of a stage.
template <int DIM> DEV void attend32(Tile<DIM, 2> &s, const char *stage, float scale, int at, int base, int to) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float x[4][4] = {};
#pragma unroll
    for (int c = 0; c < DIM / 32; c++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint4 k = *(const uint4 *)(stage + (at + 8 * n + g) * Stage<DIM>::KEY + 64 * c + 16 * t);
            mma<false>(x[n], s.q[c][0].x, s.q[c][1].x, s.q[c][0].y, s.q[c][1].y, k.x, k.y);
            mma<false>(x[n], s.q[c][0].z, s.q[c][1].z, s.q[c][0].w, s.q[c][1].w, k.z, k.w);
        }
    if (base >= s.allFrom && base + 32 <= min(s.allTo, to)) {
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) x[n][j] *= scale;
    } else {
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int position = base + 8 * n + 2 * t + (j & 1);
                x[n][j] = position < to && sees(s.sight[j >> 1], position) ? x[n][j] * scale : NEVER;
            }
    }
    weigh<4>(s, x);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const char *row = stage + 64 * Stage<DIM>::KEY + (at + 16 * m + 2 * t) * Stage<DIM>::VALUE + 16 * g;
        uint4 v[4][DIM / 64];
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int h = 0; h < DIM / 64; h++) v[n][h] = *(const uint4 *)(row + ((n & 1) + 8 * (n >> 1)) * Stage<DIM>::VALUE + 128 * h);
        take(s, v, x + 2 * m);
    }
}

// attend_long: items of many rows. A block has 8 warps of 16 queries of one KV
// head, which pass over the positions together, in shared memory. Blocks: KV
// heads × tiles / 8 × items.
template <int DIM, bool F8> DEV void attend_long(const Attention &p) {
    extern __shared__ float4 memory[];
    __shared__ int ranges[8][2];
    let_next_begin();
    char *stages = (char *)memory;
    int kv = blockIdx.x, warp = threadIdx.x >> 5, t = threadIdx.x & 3;
    const int *item = p.items + 3 * blockIdx.z;
    const int *table = p.tables + item[2];
    // The last tiles see the most: they go first.
    int tile = (gridDim.y - 1 - blockIdx.y) * 8 + warp;
    Tile<DIM, 2> s;
    begin(p, s, kv, item[0], item[1], tile);
    if ((threadIdx.x & 31) == 0) {
        ranges[warp][0] = s.to > 0 ? s.from : 0x7fffffff;
        ranges[warp][1] = s.to;
    }
    wait_for_earlier();
    queries(p, s);
    __syncthreads();
    int from = 0x7fffffff, to = 0;
    for (int w = 0; w < 8; w++) {
        from = min(from, ranges[w][0]);
        to = max(to, ranges[w][1]);
    }
    if (from >= to) return;
    float scale = keyScale<F8>(p, kv), shown = valueScale<F8>(p, kv);
    auto attend64 = [&](int base, int turn) {
        for (int i = 0; i < 64; i += 32)
            if (base + i < s.to && base + i + 32 > s.from) attend32(s, stages + turn * Stage<DIM>::BYTES, scale, i, base + i, s.to);
    };
    if constexpr (F8) {
        // Codes wait in registers until they are numbers in the other stage.
        Codes<DIM> c;
        fetch8(p, c, table, kv, from, to);
        put8(stages, c);
        __syncthreads();
        for (int base = from, turn = 0; base < to; base += 64, turn ^= 1) {
            if (base + 64 < to) fetch8(p, c, table, kv, base + 64, to);
            attend64(base, turn);
            if (base + 64 < to) put8(stages + (turn ^ 1) * Stage<DIM>::BYTES, c);
            __syncthreads();
        }
    } else {
        load<DIM>(p, stages, table, kv, from, to);
        for (int base = from, turn = 0; base < to; base += 64, turn ^= 1) {
            if (base + 64 < to) {
                load<DIM>(p, stages + (turn ^ 1) * Stage<DIM>::BYTES, table, kv, base + 64, to);
                await<1>();
            } else {
                await<0>();
            }
            __syncthreads();
            attend64(base, turn);
            __syncthreads();
        }
    }
    totals(s);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (s.row[r] < 0) continue;
        u16 *out = (u16 *)p.out.data + (size_t)s.row[r] * p.out.stride + s.col[r] + 16 * t;
        float f = shown / s.total[r];
#pragma unroll
        for (int h = 0; h < DIM / 64; h++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                u32 w[4];
#pragma unroll
                for (int i = 0; i < 4; i++) w[i] = pack(s.sums[8 * h + 2 * i][2 * r + c] * f, s.sums[8 * h + 2 * i + 1][2 * r + c] * f);
                *(uint4 *)(out + 64 * h + 8 * c) = make_uint4(w[0], w[1], w[2], w[3]);
            }
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) attend_long_64(const Attention p) { attend_long<64, false>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) attend_long_128(const Attention p) { attend_long<128, false>(p); }
extern "C" __global__ void __launch_bounds__(256, 2) attend_long_64_f8(const Attention p) { attend_long<64, true>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) attend_long_128_f8(const Attention p) { attend_long<128, true>(p); }
