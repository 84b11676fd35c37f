// Attention over the paged cache. A page holds, for each KV head, its positions'
// keys (or values) one after the other: [page][KV head][offset][dim].

struct Attention {
    View qkv, out;
    const u16 *keys, *values; // of the layer
    // By row: it sees the positions [starts, ends), and ends + j for each bit j of masks.
    const int *starts, *ends;
    const u64 *masks;
    const int *items;  // [items][3]: first row, rows, and where its table begins
    const int *tables;
    float *partial;    // [KV heads · tiles of all items][splits][16][dim + 4]
    u32 *arrived;      // [KV heads · tiles of all items], zero between launches
    int heads, kvHeads, dim, pageSize, pageShift; // pageShift: −1 if the size is no power of two
    int window, tiles, splits;                    // tiles of an item, at most
    float scale;                                  // times log2(e)
    int wide;                                     // the cache is of float32: attend_any only
};

#define NEVER (-1e30f)

struct Sight {
    int from, to;
    u64 mask;
};

// sight is what a row sees: the last window of its positions, or all.
DEV Sight sight(const Attention &p, int row) {
    Sight s = {p.starts[row], p.ends[row], p.masks[row]};
    if (p.window > 0) {
        int n = __popcll(s.mask);
        s.from = min(max(s.from, s.to + n - p.window), s.to);
        for (; n > p.window; n--) s.mask &= s.mask - 1;
    }
    return s;
}

DEV int end(const Sight &s) { return s.to + 64 - __clzll(s.mask); }

DEV bool sees(const Sight &s, int position) {
    int j = position - s.to;
    return position >= s.from && (j < 0 || (j < 64 && (s.mask >> j & 1)));
}

// entry is where a position's key or value begins.
DEV size_t entry(const Attention &p, const int *table, int kv, int position) {
    int page, offset;
    if (p.pageShift >= 0) {
        page = position >> p.pageShift;
        offset = position & (p.pageSize - 1);
    } else {
        page = position / p.pageSize;
        offset = position % p.pageSize;
    }
    return (((size_t)table[page] * p.kvHeads + kv) * p.pageSize + offset) * p.dim;
}

// Tile is 16 queries of one KV head, and what a warp has summed for them. A
// query is a row of the item and one of the KV head's query heads. The thread
// with g and t has queries g and g + 8; of the outputs dimension
// 64h + 16t + 8c + i is sums[8h + i][c] and, of the second query, [2 + c].
template <int DIM> struct Tile {
    uint4 q[DIM / 32][2];
    float sums[DIM / 8][4];
    float top[2], total[2];
    Sight sight[2];
    int row[2], col[2];  // of the query in qkv; row −1 if there is none
    int from, to;        // positions that any query sees
    int allFrom, allTo;  // and that every one does
};

// begin finds the queries and what they see. It reads nothing that an earlier
// kernel of the pass has written.
template <int DIM> DEV void begin(const Attention &p, Tile<DIM> &s, int kv, int first, int rows, int tile) {
    int lane = threadIdx.x & 31, g = lane >> 2, group = p.heads / p.kvHeads;
    s.from = s.allTo = 0x7fffffff;
    s.to = s.allFrom = 0;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int query = tile * 16 + g + 8 * k, r = query / group;
        s.row[k] = r < rows ? first + r : -1;
        s.col[k] = (kv * group + query % group) * DIM;
        s.sight[k] = Sight{0, 0, 0};
        if (r < rows) {
            s.sight[k] = sight(p, first + r);
            s.from = min(s.from, s.sight[k].from);
            s.to = max(s.to, end(s.sight[k]));
            s.allFrom = max(s.allFrom, s.sight[k].from);
            s.allTo = min(s.allTo, s.sight[k].to);
        }
        s.top[k] = NEVER;
        s.total[k] = 0;
    }
    for (int o = 4; o < 32; o <<= 1) {
        s.from = min(s.from, __shfl_xor_sync(~0u, s.from, o));
        s.to = max(s.to, __shfl_xor_sync(~0u, s.to, o));
        s.allFrom = max(s.allFrom, __shfl_xor_sync(~0u, s.allFrom, o));
        s.allTo = min(s.allTo, __shfl_xor_sync(~0u, s.allTo, o));
    }
    s.from = min(s.from, s.to) & ~15; // blocks of 16 begin where they may lie within a page
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) s.sums[i][j] = 0;
}

template <int DIM> DEV void queries(const Attention &p, Tile<DIM> &s) {
    int t = threadIdx.x & 3;
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int c = 0; c < DIM / 32; c++)
            s.q[c][k] = s.row[k] >= 0 ? *(const uint4 *)((const u16 *)p.qkv.data + (size_t)s.row[k] * p.qkv.stride + s.col[k] + 32 * c + 8 * t)
                                      : make_uint4(0, 0, 0, 0);
}

// Block is the keys and values of 16 positions. They go from memory straight to
// where the tensor cores want them: the order of a key's dimensions in the
// products is that of a thread's 16 bytes.
template <int DIM> struct Block {
    uint4 k[2][DIM / 32], v[4][DIM / 64];
};

// where is the first element of position base + i; together says that the block
// lies within a page, where first is position base's.
DEV size_t where(const Attention &p, const int *table, int kv, int base, int i, bool together, size_t first) {
    return together ? first + i * p.dim : entry(p, table, kv, base + i);
}

// fetchKeys reads the keys from base, a multiple of 16, on; those from to on are
// read from the last before it.
template <int DIM> DEV void fetchKeys(const Attention &p, Block<DIM> &b, const int *table, int kv, int base, int to) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, last = to - 1 - base;
    bool together = p.pageShift >= 4;
    size_t first = together ? entry(p, table, kv, base) : 0;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const u16 *key = p.keys + where(p, table, kv, base, min(8 * n + g, last), together, first) + 8 * t;
#pragma unroll
        for (int c = 0; c < DIM / 32; c++) b.k[n][c] = *(const uint4 *)(key + 32 * c);
    }
}

template <int DIM> DEV void fetchValues(const Attention &p, Block<DIM> &b, const int *table, int kv, int base, int to) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, last = to - 1 - base;
    bool together = p.pageShift >= 4;
    size_t first = together ? entry(p, table, kv, base) : 0;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const u16 *value = p.values + where(p, table, kv, base, min(2 * t + (n & 1) + 8 * (n >> 1), last), together, first) + 8 * g;
#pragma unroll
        for (int h = 0; h < DIM / 64; h++) b.v[n][h] = *(const uint4 *)(value + 64 * h);
    }
}

// score sets x to the scores of a block's keys.
template <int DIM> DEV void score(const Attention &p, const Tile<DIM> &s, const Block<DIM> &b, float (*x)[4], int base, int to) {
    int t = threadIdx.x & 3;
#pragma unroll
    for (int c = 0; c < DIM / 32; c++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma<false>(x[n], s.q[c][0].x, s.q[c][1].x, s.q[c][0].y, s.q[c][1].y, b.k[n][c].x, b.k[n][c].y);
            mma<false>(x[n], s.q[c][0].z, s.q[c][1].z, s.q[c][0].w, s.q[c][1].w, b.k[n][c].z, b.k[n][c].w);
        }
    bool all = base >= s.allFrom && base + 16 <= min(s.allTo, to);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int position = base + 8 * n + 2 * t + (j & 1);
            x[n][j] = all || (position < to && sees(s.sight[j >> 1], position)) ? x[n][j] * p.scale : NEVER;
        }
}

// take adds a block's values to a tile, by their scores.
template <int DIM> DEV void take(Tile<DIM> &s, const Block<DIM> &b, float (*x)[4]) {
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = fmaxf(fmaxf(x[0][2 * r], x[0][2 * r + 1]), fmaxf(x[1][2 * r], x[1][2 * r + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        top = fmaxf(top, s.top[r]);
        shrink[r] = exp2f(s.top[r] - top);
        s.top[r] = top;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float e = x[n][2 * r + c] <= NEVER ? 0 : exp2f(x[n][2 * r + c] - top);
                x[n][2 * r + c] = e;
                sum += e;
            }
        s.total[r] = s.total[r] * shrink[r] + sum;
    }
    if (__any_sync(~0u, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) s.sums[i][j] *= shrink[j >> 1];
    }
    u32 a0 = pack(x[0][0], x[0][1]), a1 = pack(x[0][2], x[0][3]), a2 = pack(x[1][0], x[1][1]), a3 = pack(x[1][2], x[1][3]);
#pragma unroll
    for (int h = 0; h < DIM / 64; h++) {
        const u32 *v0 = (const u32 *)&b.v[0][h], *v1 = (const u32 *)&b.v[1][h], *v2 = (const u32 *)&b.v[2][h], *v3 = (const u32 *)&b.v[3][h];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int order = i & 1 ? 0x7632 : 0x5410;
            mma<false>(s.sums[8 * h + i], a0, a1, a2, a3, __byte_perm(v0[i / 2], v1[i / 2], order), __byte_perm(v2[i / 2], v3[i / 2], order));
        }
    }
}

// pass takes the blocks from base on, step positions apart, up to to. early says
// that the first block is there already. While a block's scores are computed its
// values are on their way, and the next one's keys while its values are taken.
template <int DIM> DEV void pass(const Attention &p, Tile<DIM> &s, Block<DIM> &b, const int *table, int kv, int base, int step, int to, bool early) {
    if (base < to && !early) fetchKeys(p, b, table, kv, base, to);
    for (; base < to; base += step) {
        if (!early) fetchValues(p, b, table, kv, base, to);
        early = false;
        float x[2][4] = {};
        score(p, s, b, x, base, to);
        if (base + step < to) fetchKeys(p, b, table, kv, base + step, to);
        take(s, b, x);
    }
}

// totals adds up what the four threads of a query have of its sum.
template <int DIM> DEV void totals(Tile<DIM> &s) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        s.total[r] += __shfl_xor_sync(~0u, s.total[r], 1);
        s.total[r] += __shfl_xor_sync(~0u, s.total[r], 2);
    }
}

// Stage is 64 positions' keys and values in shared memory. Rows are filled up so
// that a warp's reads of fragments meet no bank twice.
template <int DIM> struct Stage {
    static constexpr int KEY = DIM * 2 + 64, VALUE = DIM * 2 + 16, BYTES = 64 * (KEY + VALUE);
};

DEV void copyAsync(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

// load begins to copy the 64 positions from base on, those before to, to a stage.
template <int DIM> DEV void load(const Attention &p, char *stage, const int *table, int kv, int base, int to) {
    constexpr int PIECES = DIM / 8; // of 16 bytes, of a row
    for (int k = threadIdx.x; k < 64 * PIECES; k += 256) {
        int i = k / PIECES, piece = k % PIECES;
        size_t at = entry(p, table, kv, min(base + i, to - 1)) + 8 * piece;
        copyAsync(stage + i * Stage<DIM>::KEY + 16 * piece, p.keys + at);
        copyAsync(stage + 64 * Stage<DIM>::KEY + i * Stage<DIM>::VALUE + 16 * piece, p.values + at);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// attend32 takes positions base to base + 31, those before to, into a tile; they
// are positions at to at + 31 of a stage.
template <int DIM> DEV void attend32(const Attention &p, Tile<DIM> &s, const char *stage, int at, int base, int to) {
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
            for (int j = 0; j < 4; j++) x[n][j] *= p.scale;
    } else {
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int position = base + 8 * n + 2 * t + (j & 1);
                x[n][j] = position < to && sees(s.sight[j >> 1], position) ? x[n][j] * p.scale : NEVER;
            }
    }
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = s.top[r];
#pragma unroll
        for (int n = 0; n < 4; n++) top = fmaxf(top, fmaxf(x[n][2 * r], x[n][2 * r + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        shrink[r] = exp2f(s.top[r] - top);
        s.top[r] = top;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float e = x[n][2 * r + c] <= NEVER ? 0 : exp2f(x[n][2 * r + c] - top);
                x[n][2 * r + c] = e;
                sum += e;
            }
        s.total[r] = s.total[r] * shrink[r] + sum;
    }
    if (__any_sync(~0u, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) s.sums[i][j] *= shrink[j >> 1];
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
        float(*y)[4] = x + 2 * m;
        u32 a0 = pack(y[0][0], y[0][1]), a1 = pack(y[0][2], y[0][3]), a2 = pack(y[1][0], y[1][1]), a3 = pack(y[1][2], y[1][3]);
        const char *row = stage + 64 * Stage<DIM>::KEY + (at + 16 * m + 2 * t) * Stage<DIM>::VALUE + 16 * g;
#pragma unroll
        for (int h = 0; h < DIM / 64; h++) {
            uint4 v0 = *(const uint4 *)(row + 128 * h), v1 = *(const uint4 *)(row + Stage<DIM>::VALUE + 128 * h);
            uint4 v2 = *(const uint4 *)(row + 8 * Stage<DIM>::VALUE + 128 * h), v3 = *(const uint4 *)(row + 9 * Stage<DIM>::VALUE + 128 * h);
            const u32 *w0 = (const u32 *)&v0, *w1 = (const u32 *)&v1, *w2 = (const u32 *)&v2, *w3 = (const u32 *)&v3;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                int order = i & 1 ? 0x7632 : 0x5410;
                mma<false>(s.sums[8 * h + i], a0, a1, a2, a3, __byte_perm(w0[i / 2], w1[i / 2], order), __byte_perm(w2[i / 2], w3[i / 2], order));
            }
        }
    }
}

// attend_long: items of many rows. A block has 8 warps of 16 queries of one KV
// head, which pass over the positions together, in shared memory. Blocks: KV
// heads × tiles / 8 × items.
template <int DIM> DEV void attend_long(const Attention &p) {
    extern __shared__ float4 memory[];
    __shared__ int ranges[8][2];
    let_next_begin();
    char *stages = (char *)memory;
    int kv = blockIdx.x, warp = threadIdx.x >> 5, t = threadIdx.x & 3;
    const int *item = p.items + 3 * blockIdx.z;
    const int *table = p.tables + item[2];
    // The last tiles see the most: they go first.
    int tile = (gridDim.y - 1 - blockIdx.y) * 8 + warp;
    Tile<DIM> s;
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
    load<DIM>(p, stages, table, kv, from, to);
    for (int base = from, turn = 0; base < to; base += 64, turn ^= 1) {
        if (base + 64 < to) {
            load<DIM>(p, stages + (turn ^ 1) * Stage<DIM>::BYTES, table, kv, base + 64, to);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        __syncthreads();
        for (int i = 0; i < 64; i += 32)
            if (base + i < s.to && base + i + 32 > s.from) attend32(p, s, stages + turn * Stage<DIM>::BYTES, i, base + i, s.to);
        __syncthreads();
    }
    totals(s);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (s.row[r] < 0) continue;
        u16 *out = (u16 *)p.out.data + (size_t)s.row[r] * p.out.stride + s.col[r] + 16 * t;
        float f = 1 / s.total[r];
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

// Where the partial sums of a split lie: 16 queries of DIM sums, and then, of
// each, the highest score and the total. A row is whole vectors.
#define PARTIAL(DIM) (DIM + 4)

// share sets weights[i][q] to what sum i of query q, of n, counts: the share of
// its total in the whole, divided by it. top and total are where sum 0 of query 0
// has them, step apart from one to the next and row from query to query.
DEV void share(float (*weights)[16], const float *top, int step, int row, int n, int queries) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int q = warp; q < queries; q += 4) {
        bool is = lane < n;
        float x = is ? __ldcg(top + lane * step + q * row) : NEVER, sum = is ? __ldcg(top + lane * step + q * row + 1) : 0, most = x;
        for (int o = 16; o; o >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
        float f = exp2f(x - most);
        float all = warpSum(sum * f);
        if (is) weights[lane][q] = f / all;
    }
}

// Part is a block's part in an item of few rows: one tile, and one of the splits
// of its positions, which WARPS warps share.
template <int DIM, int WARPS> struct Part {
    Tile<DIM> s;
    const int *table;
    int kv, tile, group, first, queries; // queries 0: no part
    int split, splits;
};

// run computes what a warp has of the part, and waits for earlier kernels on the
// way. What it reads before is of earlier passes.
template <int DIM, int WARPS> DEV void run(const Attention &p, Part<DIM, WARPS> &a) {
    let_next_begin();
    int warp = threadIdx.x >> 5;
    const int *item = p.items + 3 * (blockIdx.y / p.tiles);
    a.table = p.tables + item[2];
    a.kv = blockIdx.x;
    a.tile = blockIdx.y % p.tiles;
    a.group = p.heads / p.kvHeads;
    a.first = item[0];
    a.queries = max(0, min(16, item[1] * a.group - a.tile * 16));
    a.split = blockIdx.z;
    a.splits = 1;
    Block<DIM> b;
    int base = 0, to = 0;
    bool early = false;
    if (a.queries > 0) {
        begin(p, a.s, a.kv, a.first, item[1], a.tile);
        // Splits are of whole rounds of the warps; those beyond the last are not used.
        const int round = 16 * WARPS;
        int n = a.s.to - a.s.from, per = ((n + p.splits - 1) / p.splits + round - 1) / round * round;
        a.splits = max(1, (n + per - 1) / per);
        base = a.s.from + a.split * per + 16 * warp;
        to = min(a.s.to, a.s.from + a.split * per + per);
        // What the pass itself writes begins with the first row's entry.
        int fresh = p.masks[a.first] ? p.ends[a.first] : p.ends[a.first] - 1;
        early = base < to && base + 16 <= fresh;
        if (early) {
            fetchKeys(p, b, a.table, a.kv, base, to);
            fetchValues(p, b, a.table, a.kv, base, to);
        }
    }
    wait_for_earlier();
    if (a.queries == 0) return;
    queries(p, a.s);
    pass(p, a.s, b, a.table, a.kv, base, 16 * WARPS, to, early);
    totals(a.s);
}

// spread writes a warp's sums to shared memory.
template <int DIM> DEV void spread(const Tile<DIM> &s, float (*rows)[PARTIAL(DIM)]) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (s.row[r] < 0) continue;
        float *row = rows[g + 8 * r];
        if (t == 0) {
            row[DIM] = s.top[r];
            row[DIM + 1] = s.total[r];
        }
#pragma unroll
        for (int h = 0; h < DIM / 64; h++)
#pragma unroll
            for (int c = 0; c < 2; c++)
#pragma unroll
                for (int i = 0; i < 8; i += 4)
                    *(float4 *)(row + 64 * h + 16 * t + 8 * c + i) = make_float4(s.sums[8 * h + i][2 * r + c], s.sums[8 * h + i + 1][2 * r + c],
                                                                                s.sums[8 * h + i + 2][2 * r + c], s.sums[8 * h + i + 3][2 * r + c]);
    }
}

// merge puts together what the warps have of query q, dimensions d to d + 3.
template <int DIM, int WARPS> DEV float4 merge(float (*sums)[16][PARTIAL(DIM)], int q, int d, float &top, float &total) {
    top = NEVER;
    total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, sums[w][q][DIM]);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        float f = exp2f(sums[w][q][DIM] - top);
        float4 v = *(const float4 *)&sums[w][q][d];
        sum = make_float4(sum.x + v.x * f, sum.y + v.y * f, sum.z + v.z * f, sum.w + v.w * f);
        total += sums[w][q][DIM + 1] * f;
    }
    return sum;
}

// answer stores query q's output, dimensions d to d + 3.
template <int DIM, int WARPS> DEV void answer(const Attention &p, const Part<DIM, WARPS> &a, int q, int d, float4 v) {
    int query = a.tile * 16 + q;
    store4(p.out, a.first + query / a.group, (a.kv * a.group + query % a.group) * DIM + d, v);
}

// attend_split: the last block of a tile to arrive puts the splits together.
// Blocks: KV heads × tiles of all items × splits, at most 32.
template <int DIM> DEV void attend_split(const Attention &p) {
    __shared__ float sums[4][16][PARTIAL(DIM)];
    __shared__ float weights[32][16];
    __shared__ bool last;
    Part<DIM, 4> a;
    run(p, a);
    if (a.queries == 0 || a.split >= a.splits) return;
    spread(a.s, sums[threadIdx.x >> 5]);
    __syncthreads();
    int unit = blockIdx.y * p.kvHeads + a.kv;
    float *mine = p.partial + ((size_t)unit * p.splits + a.split) * 16 * PARTIAL(DIM);
    for (int k = threadIdx.x; k < a.queries * (DIM / 4); k += 128) {
        int q = k / (DIM / 4), d = k % (DIM / 4) * 4;
        float top, total;
        float4 sum = merge<DIM, 4>(sums, q, d, top, total);
        if (a.splits == 1) {
            answer(p, a, q, d, make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total));
            continue;
        }
        *(float4 *)(mine + q * PARTIAL(DIM) + d) = sum;
        if (d == 0) *(float2 *)(mine + q * PARTIAL(DIM) + DIM) = make_float2(top, total);
    }
    if (a.splits == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(p.arrived + unit, 1) == a.splits - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (threadIdx.x == 0) p.arrived[unit] = 0;
    const float *all = p.partial + (size_t)unit * p.splits * 16 * PARTIAL(DIM);
    share(weights, all + DIM, 16 * PARTIAL(DIM), PARTIAL(DIM), a.splits, a.queries);
    __syncthreads();
    for (int k = threadIdx.x; k < a.queries * (DIM / 4); k += 128) {
        int q = k / (DIM / 4), d = k % (DIM / 4) * 4;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (int i = 0; i < a.splits; i++) {
            float4 v = __ldcg((const float4 *)(all + (i * 16 + q) * PARTIAL(DIM) + d));
            float f = weights[i][q];
            sum = make_float4(sum.x + v.x * f, sum.y + v.y * f, sum.z + v.z * f, sum.w + v.w * f);
        }
        answer(p, a, q, d, sum);
    }
}

#if __CUDA_ARCH__ >= 900
DEV void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// remote is the address, in block rank of the cluster, of what lies at p here.
DEV u32 remote(const void *p, int rank) {
    u32 r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"((u32)__cvta_generic_to_shared(p)), "r"(rank));
    return r;
}
DEV float4 remote4(u32 at) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}

// The blocks of a cluster, which are the splits of a tile.
#define CLUSTER 8

// attend_cluster is attend_split whose splits are a cluster: they put themselves
// together in its shared memory. Blocks of 8 warps: KV heads × tiles of all items
// × CLUSTER.
template <int DIM> DEV void attend_cluster(const Attention &p) {
    extern __shared__ float4 memory[];
    float(*sums)[16][PARTIAL(DIM)] = (float(*)[16][PARTIAL(DIM)])memory;
    float(*mine)[PARTIAL(DIM)] = sums[8];
    Part<DIM, 8> a;
    run(p, a);
    if (a.queries == 0) return; // as all blocks of the cluster
    spread(a.s, sums[threadIdx.x >> 5]);
    __syncthreads();
    for (int k = threadIdx.x; k < a.queries * (DIM / 4); k += 256) {
        int q = k / (DIM / 4), d = k % (DIM / 4) * 4;
        float top, total;
        *(float4 *)&mine[q][d] = merge<DIM, 8>(sums, q, d, top, total);
        if (d == 0) *(float4 *)&mine[q][DIM] = make_float4(top, total, 0, 0);
    }
    cluster_sync();
    for (int k = threadIdx.x * CLUSTER + a.split; k < a.queries * (DIM / 4); k += 256 * CLUSTER) {
        int q = k / (DIM / 4), d = k % (DIM / 4) * 4;
        float4 end[CLUSTER], part[CLUSTER], sum = make_float4(0, 0, 0, 0);
        float top = NEVER, total = 0;
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) {
            end[i] = remote4(remote(&mine[q][DIM], i));
            part[i] = remote4(remote(&mine[q][d], i));
        }
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) top = fmaxf(top, end[i].x);
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) {
            float f = exp2f(end[i].x - top);
            total += end[i].y * f;
            sum = make_float4(sum.x + part[i].x * f, sum.y + part[i].y * f, sum.z + part[i].z * f, sum.w + part[i].w * f);
        }
        answer(p, a, q, d, make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total));
    }
    cluster_sync(); // until then others read this block's memory
}

extern "C" __global__ void __cluster_dims__(1, 1, CLUSTER) __launch_bounds__(256, 1) attend_cluster_64(const Attention p) { attend_cluster<64>(p); }
extern "C" __global__ void __cluster_dims__(1, 1, CLUSTER) __launch_bounds__(256, 1) attend_cluster_128(const Attention p) { attend_cluster<128>(p); }
#endif

extern "C" __global__ void __launch_bounds__(256, 2) attend_long_64(const Attention p) { attend_long<64>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) attend_long_128(const Attention p) { attend_long<128>(p); }
extern "C" __global__ void __launch_bounds__(128) attend_split_64(const Attention p) { attend_split<64>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) attend_split_128(const Attention p) { attend_split<128>(p); }

// number is a value of the cache.
DEV float number(const Attention &p, const u16 *values, size_t at) {
    return p.wide ? ((const float *)values)[at] : __uint_as_float((u32)values[at] << 16);
}

// attend_any: one query a warp, of any dimension up to 512. Blocks: items × rows
// of one, at most × query heads.
extern "C" __global__ void __launch_bounds__(32) attend_any(const Attention p) {
    let_next_begin();
    wait_for_earlier();
    const int *item = p.items + 3 * blockIdx.x;
    int h = blockIdx.z, lane = threadIdx.x, kv = h / (p.heads / p.kvHeads);
    const int *table = p.tables + item[2];
    for (int r = blockIdx.y; r < item[1]; r += gridDim.y) {
        int row = item[0] + r;
        Sight s = sight(p, row);
        float q[16], sums[16], top = NEVER, total = 0;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int d = lane + 32 * i;
            q[i] = d < p.dim ? load(p.qkv, row, h * p.dim + d) : 0;
            sums[i] = 0;
        }
        for (int position = s.from, last = end(s); position < last; position++) {
            if (!sees(s, position)) continue;
            size_t at = entry(p, table, kv, position);
            float x = 0;
#pragma unroll
            for (int i = 0; i < 16; i++) {
                int d = lane + 32 * i;
                if (d < p.dim) x += q[i] * number(p, p.keys, at + d);
            }
            x = warpSum(x) * p.scale;
            float next = fmaxf(top, x), shrink = exp2f(top - next), e = exp2f(x - next);
            top = next;
            total = total * shrink + e;
#pragma unroll
            for (int i = 0; i < 16; i++) {
                int d = lane + 32 * i;
                if (d < p.dim) sums[i] = sums[i] * shrink + e * number(p, p.values, at + d);
            }
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int d = lane + 32 * i;
            if (d < p.dim) store(p.out, row, h * p.dim + d, sums[i] / total);
        }
    }
}

struct MoveCache {
    u16 *keys, *values; // of all layers
    const int *to, *from;
    u64 layer; // elements of a layer
    int n, kvHeads, dim, pageSize;
};

// move_cache: slot to[i] becomes slot from[i], i = 0, 1, …; a thread's elements
// are its own, so the order holds. Blocks: layers × KV heads.
extern "C" __global__ void __launch_bounds__(128) move_cache(const MoveCache p) {
    let_next_begin();
    wait_for_earlier();
    size_t base = (size_t)blockIdx.x * p.layer;
    for (int d = threadIdx.x; d < p.dim; d += 128)
        for (int i = 0; i < p.n; i++) {
            size_t from = base + (((size_t)(p.from[i] / p.pageSize) * p.kvHeads + blockIdx.y) * p.pageSize + p.from[i] % p.pageSize) * p.dim + d;
            size_t to = base + (((size_t)(p.to[i] / p.pageSize) * p.kvHeads + blockIdx.y) * p.pageSize + p.to[i] % p.pageSize) * p.dim + d;
            p.keys[to] = p.keys[from];
            p.values[to] = p.values[from];
        }
}
