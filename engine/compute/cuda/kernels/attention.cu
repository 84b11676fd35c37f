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

// fetch reads the positions from base, a multiple of 16, on; those from to on
// are read from the last before it.
template <int DIM> DEV void fetch(const Attention &p, Block<DIM> &b, const int *table, int kv, int base, int to) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, last = to - 1 - base;
    bool together = p.pageShift >= 4; // a block lies within a page
    size_t first = together ? entry(p, table, kv, base) : 0;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        int i = min(8 * n + g, last);
        const u16 *key = p.keys + (together ? first + i * DIM : entry(p, table, kv, base + i)) + 8 * t;
#pragma unroll
        for (int c = 0; c < DIM / 32; c++) b.k[n][c] = *(const uint4 *)(key + 32 * c);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        int i = min(2 * t + (n & 1) + 8 * (n >> 1), last);
        const u16 *value = p.values + (together ? first + i * DIM : entry(p, table, kv, base + i)) + 8 * g;
#pragma unroll
        for (int h = 0; h < DIM / 64; h++) b.v[n][h] = *(const uint4 *)(value + 64 * h);
    }
}

// attend takes a block into a tile, its positions before to.
template <int DIM> DEV void attend(const Attention &p, Tile<DIM> &s, const Block<DIM> &b, int base, int to) {
    int t = threadIdx.x & 3;
    float x[2][4] = {};
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

// totals adds up what the four threads of a query have of its sum.
template <int DIM> DEV void totals(Tile<DIM> &s) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        s.total[r] += __shfl_xor_sync(~0u, s.total[r], 1);
        s.total[r] += __shfl_xor_sync(~0u, s.total[r], 2);
    }
}

// attend_long: items of many rows. A block has 4 warps of 16 queries of one KV
// head, which pass over the positions together. Blocks: KV heads × tiles / 4 ×
// items.
template <int DIM> DEV void attend_long(const Attention &p) {
    let_next_begin();
    int kv = blockIdx.x, warp = threadIdx.x >> 5, t = threadIdx.x & 3;
    const int *item = p.items + 3 * blockIdx.z;
    const int *table = p.tables + item[2];
    // The last tiles see the most: they go first.
    int tile = (gridDim.y - 1 - blockIdx.y) * 4 + warp;
    bool is = tile * 16 < item[1] * (p.heads / p.kvHeads);
    Tile<DIM> s;
    if (is) begin(p, s, kv, item[0], item[1], tile);
    wait_for_earlier();
    if (!is) return;
    queries(p, s);
    for (int base = s.from; base < s.to; base += 16) {
        Block<DIM> b;
        fetch(p, b, table, kv, base, s.to);
        attend(p, s, b, base, s.to);
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

// attend_split: items of few rows. A block has one tile and one of the splits of
// its positions, which its 4 warps share; the last block of a tile to arrive
// puts the splits together. Blocks: KV heads × tiles of all items × splits, at
// most 32.
template <int DIM> DEV void attend_split(const Attention &p) {
    __shared__ float sums[4][16][PARTIAL(DIM)];
    __shared__ float weights[32][16];
    __shared__ bool last;
    let_next_begin();
    int kv = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int *item = p.items + 3 * (blockIdx.y / p.tiles);
    const int *table = p.tables + item[2];
    int tile = blockIdx.y % p.tiles, group = p.heads / p.kvHeads, first = item[0];
    bool is = tile * 16 < item[1] * group;
    Tile<DIM> s;
    Block<DIM> b;
    int splits = 1, split = blockIdx.z, base = 0, to = 0;
    bool early = false;
    if (is) {
        begin(p, s, kv, first, item[1], tile);
        // Splits are of whole rounds of the 4 warps; those beyond the last are not used.
        int per = ((s.to - s.from + p.splits - 1) / p.splits + 63) / 64 * 64;
        splits = max(1, (s.to - s.from + per - 1) / per);
        base = s.from + split * per + 16 * warp;
        to = min(s.to, s.from + split * per + per);
        // What the pass itself writes begins with the first row's entry.
        int fresh = p.masks[first] ? p.ends[first] : p.ends[first] - 1;
        early = base < to && base + 16 <= fresh;
        if (early) fetch(p, b, table, kv, base, to);
    }
    wait_for_earlier();
    if (!is || split >= splits) return;
    queries(p, s);
    for (; base < to; base += 64) {
        if (!early) fetch(p, b, table, kv, base, to);
        early = false;
        attend(p, s, b, base, to);
    }
    totals(s);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (s.row[r] < 0) continue;
        float *row = sums[warp][g + 8 * r];
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
    __syncthreads();
    int unit = blockIdx.y * p.kvHeads + kv, queries = min(16, item[1] * group - tile * 16);
    float *mine = p.partial + ((size_t)unit * p.splits + split) * 16 * PARTIAL(DIM);
    for (int k = threadIdx.x; k < queries * (DIM / 4); k += 128) {
        int q = k / (DIM / 4), d = k % (DIM / 4) * 4;
        float top = fmaxf(fmaxf(sums[0][q][DIM], sums[1][q][DIM]), fmaxf(sums[2][q][DIM], sums[3][q][DIM])), total = 0;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            float f = exp2f(sums[w][q][DIM] - top);
            float4 v = *(const float4 *)&sums[w][q][d];
            sum = make_float4(sum.x + v.x * f, sum.y + v.y * f, sum.z + v.z * f, sum.w + v.w * f);
            total += sums[w][q][DIM + 1] * f;
        }
        if (splits == 1) {
            int query = tile * 16 + q;
            store4(p.out, first + query / group, (kv * group + query % group) * DIM + d, make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total));
            continue;
        }
        *(float4 *)(mine + q * PARTIAL(DIM) + d) = sum;
        if (d == 0) *(float2 *)(mine + q * PARTIAL(DIM) + DIM) = make_float2(top, total);
    }
    if (splits == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(p.arrived + unit, 1) == splits - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (threadIdx.x == 0) p.arrived[unit] = 0;
    const float *all = p.partial + (size_t)unit * p.splits * 16 * PARTIAL(DIM);
    share(weights, all + DIM, 16 * PARTIAL(DIM), PARTIAL(DIM), splits, queries);
    __syncthreads();
    for (int k = threadIdx.x; k < queries * (DIM / 4); k += 128) {
        int q = k / (DIM / 4), d = k % (DIM / 4) * 4;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (int i = 0; i < splits; i++) {
            float4 v = __ldcg((const float4 *)(all + (i * 16 + q) * PARTIAL(DIM) + d));
            float f = weights[i][q];
            sum = make_float4(sum.x + v.x * f, sum.y + v.y * f, sum.z + v.z * f, sum.w + v.w * f);
        }
        int query = tile * 16 + q;
        store4(p.out, first + query / group, (kv * group + query % group) * DIM + d, sum);
    }
}

extern "C" __global__ void __launch_bounds__(128) attend_long_64(const Attention p) { attend_long<64>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) attend_long_128(const Attention p) { attend_long<128>(p); }
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
