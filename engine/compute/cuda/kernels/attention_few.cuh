// Attention of items of few rows, decoding and verifying, whose positions are split:
// put before the sources that make kernels of it, for bfloat16 caches and float8.

// A Block is the keys and values of 16 positions, or of 32 of float8, so that a
// warp has as many bytes on their way. They go from memory straight to where the tensor cores want them: the order
// of a key's dimensions in the products is that of a thread's 16 bytes.
template <int DIM, bool F8> struct Block;

template <int DIM> struct Block<DIM, false> {
    static constexpr int POSITIONS = 16;
    typedef uint4 Keys[2][DIM / 32];
    typedef uint4 Values[4][DIM / 64];
};

template <int DIM> struct Block<DIM, true> {
    static constexpr int POSITIONS = 32;
    typedef uint4 Keys[4][DIM / 64];
    typedef u32 Values[8][DIM / 32];
};

// Starts are the places of a block's first position and of the one 16 after it. Each
// 16 lie within a page if pages are of 16 positions or twice as many. They wait for
// the table, so they are asked for early.
struct Starts {
    u32 at[2];
};

template <bool F8> DEV Starts start(const Attention &p, const int *table, int kv, int base, int to) {
    Starts s = {{0, 0}};
    if (p.pageShift < 4) return s;
    s.at[0] = s.at[1] = place(p, table, kv, base);
    if (F8 && base + 16 < to) s.at[1] = place(p, table, kv, base + 16);
    return s;
}

// where is the first element of position base + i of a block.
template <bool F8> DEV size_t where(const Attention &p, const int *table, int kv, int base, int i, const Starts &s) {
    u32 at = F8 && i >= 16 ? s.at[1] + i - 16 : s.at[0] + i;
    return (size_t)(p.pageShift < 4 ? place(p, table, kv, base + i) : at) * p.dim;
}

// fetchKeys reads the keys from base, a multiple of 16, on; those from to on are
// read from the last before it.
template <int DIM, bool F8> DEV void fetchKeys(const Attention &p, typename Block<DIM, F8>::Keys &k, const int *table, int kv, int base, int to, const Starts &first) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, last = to - 1 - base;
#pragma unroll
    for (int n = 0; n < Block<DIM, F8>::POSITIONS / 8; n++) {
        size_t at = where<F8>(p, table, kv, base, min(8 * n + g, last), first);
        if constexpr (F8) {
#pragma unroll
            for (int c = 0; c < DIM / 64; c++) k[n][c] = *(const uint4 *)((const u8 *)p.keys + at + 64 * c + 16 * t);
        } else {
#pragma unroll
            for (int c = 0; c < DIM / 32; c++) k[n][c] = *(const uint4 *)((const u16 *)p.keys + at + 32 * c + 8 * t);
        }
    }
}

template <int DIM, bool F8> DEV void fetchValues(const Attention &p, typename Block<DIM, F8>::Values &v, const int *table, int kv, int base, int to, const Starts &first) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, last = to - 1 - base;
#pragma unroll
    for (int n = 0; n < Block<DIM, F8>::POSITIONS / 4; n++) {
        size_t at = where<F8>(p, table, kv, base, min(16 * (n >> 2) + 2 * t + (n & 1) + 8 * (n >> 1 & 1), last), first);
        if constexpr (F8) {
            const u8 *value = (const u8 *)p.values + at + DIM / 8 * g;
            if constexpr (DIM == 128) {
                uint4 w = *(const uint4 *)value;
                v[n][0] = w.x, v[n][1] = w.y, v[n][2] = w.z, v[n][3] = w.w;
            } else {
                uint2 w = *(const uint2 *)value;
                v[n][0] = w.x, v[n][1] = w.y;
            }
        } else {
#pragma unroll
            for (int h = 0; h < DIM / 64; h++) v[n][h] = *(const uint4 *)((const u16 *)p.values + at + 8 * g + 64 * h);
        }
    }
}

// score sets x to the scores of a block's keys.
template <int DIM, int HALVES, bool F8>
DEV void score(const Tile<DIM, HALVES> &s, const typename Block<DIM, F8>::Keys &k, float (*x)[2 * HALVES], float scale, int base, int to) {
    constexpr int SECOND = HALVES - 1, POSITIONS = Block<DIM, F8>::POSITIONS;
    int t = threadIdx.x & 3;
    if constexpr (F8) {
#pragma unroll
        for (int c = 0; c < DIM / 64; c++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const u32 *words = (const u32 *)&k[n][c];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint4 *q = s.q[2 * c + i / 2];
                    u32 first, last;
                    halves8(words[i], first, last);
                    if (i % 2 == 0)
                        mmaHalves<HALVES, true>(x[n], q[0].x, q[SECOND].x, q[0].y, q[SECOND].y, first, last);
                    else
                        mmaHalves<HALVES, true>(x[n], q[0].z, q[SECOND].z, q[0].w, q[SECOND].w, first, last);
                }
            }
    } else {
#pragma unroll
        for (int c = 0; c < DIM / 32; c++)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                mmaHalves<HALVES>(x[n], s.q[c][0].x, s.q[c][SECOND].x, s.q[c][0].y, s.q[c][SECOND].y, k[n][c].x, k[n][c].y);
                mmaHalves<HALVES>(x[n], s.q[c][0].z, s.q[c][SECOND].z, s.q[c][0].w, s.q[c][SECOND].w, k[n][c].z, k[n][c].w);
            }
    }
    bool all = base >= s.allFrom && base + POSITIONS <= min(s.allTo, to);
#pragma unroll
    for (int n = 0; n < POSITIONS / 8; n++)
#pragma unroll
        for (int j = 0; j < 2 * HALVES; j++) {
            int position = base + 8 * n + 2 * t + (j & 1);
            x[n][j] = all || (position < to && sees(s.sight[j >> 1], position)) ? x[n][j] * scale : NEVER;
        }
}

// round takes the block at base into a tile: its keys are in k, its values in v.
// Before it takes the values it asks for the next block's keys and, into next, its
// values.
template <int DIM, int HALVES, bool F8>
DEV void round(const Attention &p, Tile<DIM, HALVES> &s, typename Block<DIM, F8>::Keys &k, const typename Block<DIM, F8>::Values &v,
               typename Block<DIM, F8>::Values &next, const int *table, int kv, float scale, int base, int step, int to) {
    bool more = base + step < to;
    Starts first;
    if (more) first = start<F8>(p, table, kv, base + step, to);
    float x[Block<DIM, F8>::POSITIONS / 8][2 * HALVES] = {};
    score<DIM, HALVES, F8>(s, k, x, scale, base, to);
    if (more) {
        fetchKeys<DIM, F8>(p, k, table, kv, base + step, to, first);
        if (HALVES == 1) fetchValues<DIM, F8>(p, next, table, kv, base + step, to, first);
    }
    weigh<Block<DIM, F8>::POSITIONS / 8>(s, x);
    if constexpr (F8) {
        take8(s, v, x);
        take8(s, v + 4, x + 2);
    } else {
        take(s, v, x);
    }
    // With two halves there are no registers for two blocks' values.
    if (HALVES == 2 && more) fetchValues<DIM, F8>(p, next, table, kv, base + step, to, first);
}

// pass takes the blocks from base on, step positions apart, up to to. early says
// that the first block is there already.
template <int DIM, int HALVES, bool F8>
DEV void pass(const Attention &p, Tile<DIM, HALVES> &s, typename Block<DIM, F8>::Keys &k, typename Block<DIM, F8>::Values &v, const int *table, int kv, int base, int step,
              int to, bool early) {
    if (base < to && !early) {
        Starts first = start<F8>(p, table, kv, base, to);
        fetchKeys<DIM, F8>(p, k, table, kv, base, to, first);
        fetchValues<DIM, F8>(p, v, table, kv, base, to, first);
    }
    float scale = keyScale<F8>(p, kv) * (F8 ? SUM8 : 1);
    if constexpr (HALVES == 2) {
        for (; base < to; base += step) round<DIM, HALVES, F8>(p, s, k, v, v, table, kv, scale, base, step, to);
    } else {
        typename Block<DIM, F8>::Values other;
        for (; base < to; base += 2 * step) {
            round<DIM, HALVES, F8>(p, s, k, v, other, table, kv, scale, base, step, to);
            if (base + step < to) round<DIM, HALVES, F8>(p, s, k, other, v, table, kv, scale, base + step, step, to);
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
template <int DIM, int WARPS, int HALVES> struct Part {
    Tile<DIM, HALVES> s;
    const int *table;
    int kv, tile, group, first, queries; // queries 0: no part
    int split, splits;
};

// run computes what a warp has of the part, and waits for earlier kernels on the
// way. What it reads before is of earlier passes.
template <int DIM, int WARPS, int HALVES, bool F8> DEV void run(const Attention &p, Part<DIM, WARPS, HALVES> &a) {
    let_next_begin();
    int warp = threadIdx.x >> 5;
    const int *item = p.items + 3 * (blockIdx.y / p.tiles);
    a.table = p.tables + item[2];
    a.kv = blockIdx.x;
    a.tile = blockIdx.y % p.tiles;
    a.group = p.heads / p.kvHeads;
    a.first = item[0];
    a.queries = max(0, min(8 * HALVES, item[1] * a.group - a.tile * 8 * HALVES));
    a.split = blockIdx.z;
    a.splits = 1;
    constexpr int POSITIONS = Block<DIM, F8>::POSITIONS;
    typename Block<DIM, F8>::Keys k;
    typename Block<DIM, F8>::Values v;
    int base = 0, to = 0;
    bool early = false;
    if (a.queries > 0) {
        begin(p, a.s, a.kv, a.first, item[1], a.tile);
        // Splits are of whole rounds of the warps; those beyond the last are not used.
        const int round = POSITIONS * WARPS;
        int n = a.s.to - a.s.from, per = ((n + p.splits - 1) / p.splits + round - 1) / round * round;
        a.splits = max(1, (n + per - 1) / per);
        base = a.s.from + a.split * per + POSITIONS * warp;
        to = min(a.s.to, a.s.from + a.split * per + per);
        // What the pass itself writes begins with the first row's entry.
        int fresh = p.masks[a.first] ? p.ends[a.first] : p.ends[a.first] - 1;
        early = base < to && base + POSITIONS <= fresh;
        if (early) {
            Starts at = start<F8>(p, a.table, a.kv, base, to);
            fetchKeys<DIM, F8>(p, k, a.table, a.kv, base, to, at);
            fetchValues<DIM, F8>(p, v, a.table, a.kv, base, to, at);
        }
    }
    wait_for_earlier();
    if (a.queries == 0) return;
    if constexpr (F8) {
        queries8(p, a.s);
    } else {
        queries(p, a.s);
    }
    pass<DIM, HALVES, F8>(p, a.s, k, v, a.table, a.kv, base, POSITIONS * WARPS, to, early);
    totals(a.s);
}

// spread writes a warp's sums to shared memory.
template <int DIM, bool F8, int HALVES> DEV void spread(const Tile<DIM, HALVES> &s, float (*rows)[PARTIAL(DIM)]) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int r = 0; r < HALVES; r++) {
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
                    *(float4 *)(row + column<DIM, F8>(h, t, c) + i) = make_float4(s.sums[8 * h + i][2 * r + c], s.sums[8 * h + i + 1][2 * r + c],
                                                                                s.sums[8 * h + i + 2][2 * r + c], s.sums[8 * h + i + 3][2 * r + c]);
    }
}

// merge puts together what the warps have of query q, dimensions d to d + 3.
template <int DIM, int WARPS, int QUERIES> DEV float4 merge(float (*sums)[QUERIES][PARTIAL(DIM)], int q, int d, float &top, float &total) {
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

// answer stores query q's output, dimensions d to d + 3, for sums that lack scale.
template <int DIM, int WARPS, int HALVES> DEV void answer(const Attention &p, const Part<DIM, WARPS, HALVES> &a, float scale, int q, int d, float4 v) {
    int query = a.tile * 8 * HALVES + q;
    store4(p.out, a.first + query / a.group, (a.kv * a.group + query % a.group) * DIM + d, make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale));
}

// attend_split: the last block of a tile to arrive puts the splits together.
// Blocks: KV heads × tiles of all items × splits, at most 32.
template <int DIM, int HALVES, bool F8> DEV void attend_split(const Attention &p) {
    __shared__ float sums[4][8 * HALVES][PARTIAL(DIM)];
    __shared__ float weights[32][16];
    __shared__ bool last;
    Part<DIM, 4, HALVES> a;
    run<DIM, 4, HALVES, F8>(p, a);
    if (a.queries == 0 || a.split >= a.splits) return;
    float scale = valueScale<F8>(p, a.kv) * (F8 ? SUM8 : 1);
    spread<DIM, F8>(a.s, sums[threadIdx.x >> 5]);
    __syncthreads();
    int unit = blockIdx.y * p.kvHeads + a.kv;
    float *mine = p.partial + ((size_t)unit * p.splits + a.split) * 16 * PARTIAL(DIM);
    for (int k = threadIdx.x; k < a.queries * (DIM / 4); k += 128) {
        int q = k / (DIM / 4), d = k % (DIM / 4) * 4;
        float top, total;
        float4 sum = merge<DIM, 4, 8 * HALVES>(sums, q, d, top, total);
        if (a.splits == 1) {
            answer(p, a, scale, q, d, make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total));
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
        answer(p, a, scale, q, d, sum);
    }
}

#if __CUDA_ARCH__ >= 900
// The blocks of a cluster, which are the splits of a tile.
#define CLUSTER 8

// attend_cluster is attend_split whose splits are a cluster: they put themselves
// together in its shared memory. Blocks: KV heads × tiles of all items
// × CLUSTER.
template <int DIM, int WARPS, int HALVES, bool F8> DEV void attend_cluster(const Attention &p) {
    extern __shared__ float4 memory[];
    float(*sums)[8 * HALVES][PARTIAL(DIM)] = (float(*)[8 * HALVES][PARTIAL(DIM)])memory;
    float(*mine)[PARTIAL(DIM)] = sums[WARPS];
    Part<DIM, WARPS, HALVES> a;
    run<DIM, WARPS, HALVES, F8>(p, a);
    if (a.queries == 0) return; // as all blocks of the cluster
    float scale = valueScale<F8>(p, a.kv) * (F8 ? SUM8 : 1);
    spread<DIM, F8>(a.s, sums[threadIdx.x >> 5]);
    __syncthreads();
    for (int k = threadIdx.x; k < a.queries * (DIM / 4); k += 32 * WARPS) {
        int q = k / (DIM / 4), d = k % (DIM / 4) * 4;
        float top, total;
        *(float4 *)&mine[q][d] = merge<DIM, WARPS, 8 * HALVES>(sums, q, d, top, total);
        if (d == 0) *(float4 *)&mine[q][DIM] = make_float4(top, total, 0, 0);
    }
    cluster_sync();
    for (int k = threadIdx.x * CLUSTER + a.split; k < a.queries * (DIM / 4); k += 32 * WARPS * CLUSTER) {
        int q = k / (DIM / 4), d = k % (DIM / 4) * 4;
        float4 end[CLUSTER], part[CLUSTER], sum = make_float4(0, 0, 0, 0);
        float top = NEVER, total = 0;
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) {
            end[i] = remote4(&mine[q][DIM], i);
            part[i] = remote4(&mine[q][d], i);
        }
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) top = fmaxf(top, end[i].x);
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) {
            float f = exp2f(end[i].x - top);
            total += end[i].y * f;
            sum = make_float4(sum.x + part[i].x * f, sum.y + part[i].y * f, sum.z + part[i].z * f, sum.w + part[i].w * f);
        }
        answer(p, a, scale, q, d, make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total));
    }
    cluster_sync(); // until then others read this block's memory
}

// By dimension, halves and warps: 8, or 4 that leave room for more clusters.
#define CLUSTERED(name, dim, halves, warps, f8) \
    extern "C" __global__ void __cluster_dims__(1, 1, CLUSTER) __launch_bounds__(32 * warps, 1) name(const Attention p) { attend_cluster<dim, warps, halves, f8>(p); }
#else
#define CLUSTERED(name, dim, halves, warps, f8)
#endif

#define SPLIT(name, dim, halves, blocks, f8) \
    extern "C" __global__ void __launch_bounds__(128, blocks) name(const Attention p) { attend_split<dim, halves, f8>(p); }
