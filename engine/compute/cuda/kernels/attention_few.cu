// Attention of items of few rows, decoding and verifying, whose positions are split.

// Block is the keys and values of 16 positions. They go from memory straight to
// where the tensor cores want them: the order of a key's dimensions in the
// products is that of a thread's 16 bytes.
template <int DIM> struct Block {
    uint4 k[2][DIM / 32], v[4][DIM / 64];
};

// start is where the block from base on begins, if it lies within a page, as it
// does if pages are of 16 positions or twice as many. It waits for the table, so it
// is asked for early.
DEV size_t start(const Attention &p, const int *table, int kv, int base) { return p.pageShift >= 4 ? entry(p, table, kv, base) : 0; }

// where is the first element of position base + i of the block that begins at first.
DEV size_t where(const Attention &p, const int *table, int kv, int base, int i, size_t first) {
    return p.pageShift >= 4 ? first + i * p.dim : entry(p, table, kv, base + i);
}

// fetchKeys reads the keys from base, a multiple of 16, on; those from to on are
// read from the last before it.
template <int DIM> DEV void fetchKeys(const Attention &p, uint4 (*k)[DIM / 32], const int *table, int kv, int base, int to, size_t first) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, last = to - 1 - base;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const u16 *key = p.keys + where(p, table, kv, base, min(8 * n + g, last), first) + 8 * t;
#pragma unroll
        for (int c = 0; c < DIM / 32; c++) k[n][c] = *(const uint4 *)(key + 32 * c);
    }
}

template <int DIM> DEV void fetchValues(const Attention &p, uint4 (*v)[DIM / 64], const int *table, int kv, int base, int to, size_t first) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, last = to - 1 - base;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const u16 *value = p.values + where(p, table, kv, base, min(2 * t + (n & 1) + 8 * (n >> 1), last), first) + 8 * g;
#pragma unroll
        for (int h = 0; h < DIM / 64; h++) v[n][h] = *(const uint4 *)(value + 64 * h);
    }
}

// score sets x to the scores of a block's keys.
template <int DIM, int HALVES> DEV void score(const Attention &p, const Tile<DIM, HALVES> &s, const uint4 (*k)[DIM / 32], float (*x)[2 * HALVES], int base, int to) {
    constexpr int SECOND = HALVES - 1;
    int t = threadIdx.x & 3;
#pragma unroll
    for (int c = 0; c < DIM / 32; c++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mmaHalves<HALVES>(x[n], s.q[c][0].x, s.q[c][SECOND].x, s.q[c][0].y, s.q[c][SECOND].y, k[n][c].x, k[n][c].y);
            mmaHalves<HALVES>(x[n], s.q[c][0].z, s.q[c][SECOND].z, s.q[c][0].w, s.q[c][SECOND].w, k[n][c].z, k[n][c].w);
        }
    bool all = base >= s.allFrom && base + 16 <= min(s.allTo, to);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int j = 0; j < 2 * HALVES; j++) {
            int position = base + 8 * n + 2 * t + (j & 1);
            x[n][j] = all || (position < to && sees(s.sight[j >> 1], position)) ? x[n][j] * p.scale : NEVER;
        }
}

// round takes the block at base into a tile: its keys are in b, its values in v.
// Before it takes the values it asks for the next block's keys and, into next, its
// values.
template <int DIM, int HALVES> DEV void round(const Attention &p, Tile<DIM, HALVES> &s, uint4 (*k)[DIM / 32], const uint4 (*v)[DIM / 64], uint4 (*next)[DIM / 64], const int *table, int kv, int base, int step, int to) {
    bool more = base + step < to;
    size_t first = more ? start(p, table, kv, base + step) : 0;
    float x[2][2 * HALVES] = {};
    score(p, s, k, x, base, to);
    if (more) {
        fetchKeys<DIM>(p, k, table, kv, base + step, to, first);
        if (HALVES == 1) fetchValues<DIM>(p, next, table, kv, base + step, to, first);
    }
    weigh<2>(s, x);
    take(s, v, x);
    // With two halves there are no registers for two blocks' values.
    if (HALVES == 2 && more) fetchValues<DIM>(p, next, table, kv, base + step, to, first);
}

// pass takes the blocks from base on, step positions apart, up to to. early says
// that the first block is there already.
template <int DIM, int HALVES> DEV void pass(const Attention &p, Tile<DIM, HALVES> &s, Block<DIM> &b, const int *table, int kv, int base, int step, int to, bool early) {
    if (base < to && !early) {
        size_t first = start(p, table, kv, base);
        fetchKeys<DIM>(p, b.k, table, kv, base, to, first);
        fetchValues<DIM>(p, b.v, table, kv, base, to, first);
    }
    if constexpr (HALVES == 2) {
        for (; base < to; base += step) round(p, s, b.k, b.v, b.v, table, kv, base, step, to);
    } else {
        uint4 other[4][DIM / 64];
        for (; base < to; base += 2 * step) {
            round(p, s, b.k, b.v, other, table, kv, base, step, to);
            if (base + step < to) round(p, s, b.k, other, b.v, table, kv, base + step, step, to);
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
template <int DIM, int WARPS, int HALVES> DEV void run(const Attention &p, Part<DIM, WARPS, HALVES> &a) {
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
            size_t at = start(p, a.table, a.kv, base);
            fetchKeys<DIM>(p, b.k, a.table, a.kv, base, to, at);
            fetchValues<DIM>(p, b.v, a.table, a.kv, base, to, at);
        }
    }
    wait_for_earlier();
    if (a.queries == 0) return;
    queries(p, a.s);
    pass(p, a.s, b, a.table, a.kv, base, 16 * WARPS, to, early);
    totals(a.s);
}

// spread writes a warp's sums to shared memory.
template <int DIM, int HALVES> DEV void spread(const Tile<DIM, HALVES> &s, float (*rows)[PARTIAL(DIM)]) {
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
                    *(float4 *)(row + 64 * h + 16 * t + 8 * c + i) = make_float4(s.sums[8 * h + i][2 * r + c], s.sums[8 * h + i + 1][2 * r + c],
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

// answer stores query q's output, dimensions d to d + 3.
template <int DIM, int WARPS, int HALVES> DEV void answer(const Attention &p, const Part<DIM, WARPS, HALVES> &a, int q, int d, float4 v) {
    int query = a.tile * 8 * HALVES + q;
    store4(p.out, a.first + query / a.group, (a.kv * a.group + query % a.group) * DIM + d, v);
}

// attend_split: the last block of a tile to arrive puts the splits together.
// Blocks: KV heads × tiles of all items × splits, at most 32.
template <int DIM, int HALVES> DEV void attend_split(const Attention &p) {
    __shared__ float sums[4][8 * HALVES][PARTIAL(DIM)];
    __shared__ float weights[32][16];
    __shared__ bool last;
    Part<DIM, 4, HALVES> a;
    run(p, a);
    if (a.queries == 0 || a.split >= a.splits) return;
    spread(a.s, sums[threadIdx.x >> 5]);
    __syncthreads();
    int unit = blockIdx.y * p.kvHeads + a.kv;
    float *mine = p.partial + ((size_t)unit * p.splits + a.split) * 16 * PARTIAL(DIM);
    for (int k = threadIdx.x; k < a.queries * (DIM / 4); k += 128) {
        int q = k / (DIM / 4), d = k % (DIM / 4) * 4;
        float top, total;
        float4 sum = merge<DIM, 4, 8 * HALVES>(sums, q, d, top, total);
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
// together in its shared memory. Blocks: KV heads × tiles of all items
// × CLUSTER.
template <int DIM, int WARPS, int HALVES> DEV void attend_cluster(const Attention &p) {
    extern __shared__ float4 memory[];
    float(*sums)[8 * HALVES][PARTIAL(DIM)] = (float(*)[8 * HALVES][PARTIAL(DIM)])memory;
    float(*mine)[PARTIAL(DIM)] = sums[WARPS];
    Part<DIM, WARPS, HALVES> a;
    run(p, a);
    if (a.queries == 0) return; // as all blocks of the cluster
    spread(a.s, sums[threadIdx.x >> 5]);
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

// By dimension, halves and warps: 8, or 4 that leave room for more clusters.
#define CLUSTERED(name, dim, halves, warps) \
    extern "C" __global__ void __cluster_dims__(1, 1, CLUSTER) __launch_bounds__(32 * warps, 1) name(const Attention p) { attend_cluster<dim, warps, halves>(p); }
CLUSTERED(attend_cluster_64_1_8, 64, 1, 8)
CLUSTERED(attend_cluster_64_2_8, 64, 2, 8)
CLUSTERED(attend_cluster_128_1_8, 128, 1, 8)
CLUSTERED(attend_cluster_128_2_8, 128, 2, 8)
CLUSTERED(attend_cluster_64_1_4, 64, 1, 4)
CLUSTERED(attend_cluster_64_2_4, 64, 2, 4)
CLUSTERED(attend_cluster_128_1_4, 128, 1, 4)
CLUSTERED(attend_cluster_128_2_4, 128, 2, 4)
#endif

#define SPLIT(name, dim, halves, blocks) \
    extern "C" __global__ void __launch_bounds__(128, blocks) name(const Attention p) { attend_split<dim, halves>(p); }
SPLIT(attend_split_64_1, 64, 1, 3)
SPLIT(attend_split_64_2, 64, 2, 4)
SPLIT(attend_split_128_1, 128, 1, 2)
SPLIT(attend_split_128_2, 128, 2, 2)
