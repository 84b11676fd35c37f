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
    float *partial;    // [KV heads · tiles of all items][splits][16][dim + 2]
    u32 *arrived;      // [KV heads · tiles of all items], zero between launches
    int heads, kvHeads, dim, pageSize, pageShift; // pageShift: −1 if the size is no power of two
    int window, tiles, splits;                    // tiles of an item, at most
    float scale;                                  // times log2(e)
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
    int row[2], col[2]; // of the query in qkv; row −1 if there is none
    int from, to;       // positions that any query sees
};

template <int DIM> DEV void begin(const Attention &p, Tile<DIM> &s, int kv, int first, int rows, int tile) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, group = p.heads / p.kvHeads;
    s.from = 0x7fffffff;
    s.to = 0;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int query = tile * 16 + g + 8 * k, r = query / group;
        bool is = r < rows;
        s.row[k] = is ? first + r : -1;
        s.col[k] = (kv * group + query % group) * DIM;
        s.sight[k] = Sight{0, 0, 0};
        if (is) {
            s.sight[k] = sight(p, first + r);
            s.from = min(s.from, s.sight[k].from);
            s.to = max(s.to, end(s.sight[k]));
        }
#pragma unroll
        for (int c = 0; c < DIM / 32; c++)
            s.q[c][k] = is ? *(const uint4 *)((const u16 *)p.qkv.data + (size_t)s.row[k] * p.qkv.stride + s.col[k] + 32 * c + 8 * t)
                           : make_uint4(0, 0, 0, 0);
        s.top[k] = NEVER;
        s.total[k] = 0;
    }
    for (int o = 4; o < 32; o <<= 1) {
        s.from = min(s.from, __shfl_xor_sync(~0u, s.from, o));
        s.to = max(s.to, __shfl_xor_sync(~0u, s.to, o));
    }
    s.from = min(s.from, s.to);
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) s.sums[i][j] = 0;
}

// attend takes the 16 positions from base on into a tile, those before to. Keys
// and values go from memory straight to where the tensor cores want them: the
// order of a key's dimensions in the products is that of a thread's 16 bytes.
template <int DIM> DEV void attend(const Attention &p, Tile<DIM> &s, const int *table, int kv, int base, int to) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    uint4 k[2][DIM / 32], v[4][DIM / 64];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const u16 *key = p.keys + entry(p, table, kv, min(base + 8 * n + g, to - 1)) + 8 * t;
#pragma unroll
        for (int c = 0; c < DIM / 32; c++) k[n][c] = *(const uint4 *)(key + 32 * c);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const u16 *value = p.values + entry(p, table, kv, min(base + 2 * t + (n & 1) + 8 * (n >> 1), to - 1)) + 8 * g;
#pragma unroll
        for (int h = 0; h < DIM / 64; h++) v[n][h] = *(const uint4 *)(value + 64 * h);
    }
    float x[2][4] = {};
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int c = 0; c < DIM / 32; c++) {
            mma<false>(x[n], s.q[c][0].x, s.q[c][1].x, s.q[c][0].y, s.q[c][1].y, k[n][c].x, k[n][c].y);
            mma<false>(x[n], s.q[c][0].z, s.q[c][1].z, s.q[c][0].w, s.q[c][1].w, k[n][c].z, k[n][c].w);
        }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int position = base + 8 * n + 2 * t + (j & 1);
            x[n][j] = position < to && sees(s.sight[j >> 1], position) ? x[n][j] * p.scale : NEVER;
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = fmaxf(fmaxf(x[0][2 * r], x[0][2 * r + 1]), fmaxf(x[1][2 * r], x[1][2 * r + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        top = fmaxf(top, s.top[r]);
        float shrink = exp2f(s.top[r] - top), sum = 0;
        s.top[r] = top;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float e = x[n][2 * r + c] <= NEVER ? 0 : exp2f(x[n][2 * r + c] - top);
                x[n][2 * r + c] = e;
                sum += e;
            }
        s.total[r] = s.total[r] * shrink + sum;
#pragma unroll
        for (int i = 0; i < DIM / 8; i++) {
            s.sums[i][2 * r] *= shrink;
            s.sums[i][2 * r + 1] *= shrink;
        }
    }
    u32 a0 = pack(x[0][0], x[0][1]), a1 = pack(x[0][2], x[0][3]), a2 = pack(x[1][0], x[1][1]), a3 = pack(x[1][2], x[1][3]);
#pragma unroll
    for (int h = 0; h < DIM / 64; h++) {
        const u32 *v0 = (const u32 *)&v[0][h], *v1 = (const u32 *)&v[1][h], *v2 = (const u32 *)&v[2][h], *v3 = (const u32 *)&v[3][h];
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
    wait_for_earlier();
    int kv = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
    const int *item = p.items + 3 * blockIdx.z;
    const int *table = p.tables + item[2];
    // The last tiles see the most: they go first.
    int tile = (gridDim.y - 1 - blockIdx.y) * 4 + warp;
    if (tile * 16 >= item[1] * (p.heads / p.kvHeads)) return;
    Tile<DIM> s;
    begin(p, s, kv, item[0], item[1], tile);
    for (int base = s.from; base < s.to; base += 16) attend(p, s, table, kv, base, s.to);
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

// attend_split: items of few rows. A block has one tile and one of the splits of
// its positions, which its 4 warps share; the last block of a tile to arrive
// puts the splits together. Blocks: KV heads × tiles of all items × splits.
template <int DIM> DEV void attend_split(const Attention &p) {
    __shared__ float sums[4][16][DIM];
    __shared__ float tops[4][16], parts[4][16];
    __shared__ bool last;
    let_next_begin();
    wait_for_earlier();
    int kv = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int *item = p.items + 3 * (blockIdx.y / p.tiles);
    const int *table = p.tables + item[2];
    int tile = blockIdx.y % p.tiles, group = p.heads / p.kvHeads;
    if (tile * 16 >= item[1] * group) return;
    Tile<DIM> s;
    begin(p, s, kv, item[0], item[1], tile);
    // Splits are of whole rounds of the 4 warps; those beyond the last are not used.
    int per = ((s.to - s.from + p.splits - 1) / p.splits + 63) / 64 * 64, splits = max(1, (s.to - s.from + per - 1) / per);
    int split = blockIdx.z, from = s.from + split * per, to = min(s.to, from + per);
    if (split >= splits) return;
    for (int base = from + 16 * warp; base < to; base += 64) attend(p, s, table, kv, base, to);
    totals(s);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (t == 0) {
            tops[warp][g + 8 * r] = s.top[r];
            parts[warp][g + 8 * r] = s.total[r];
        }
#pragma unroll
        for (int h = 0; h < DIM / 64; h++)
#pragma unroll
            for (int c = 0; c < 2; c++)
#pragma unroll
                for (int i = 0; i < 8; i++) sums[warp][g + 8 * r][64 * h + 16 * t + 8 * c + i] = s.sums[8 * h + i][2 * r + c];
    }
    __syncthreads();
    int unit = blockIdx.y * p.kvHeads + kv, queries = min(16, item[1] * group - tile * 16);
    float *mine = p.partial + ((size_t)unit * p.splits + split) * 16 * (DIM + 2);
    for (int k = threadIdx.x; k < queries * DIM; k += 128) {
        int q = k / DIM, d = k % DIM;
        float top = fmaxf(fmaxf(tops[0][q], tops[1][q]), fmaxf(tops[2][q], tops[3][q])), sum = 0, total = 0;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            float f = exp2f(tops[w][q] - top);
            sum += sums[w][q][d] * f;
            total += parts[w][q] * f;
        }
        if (splits == 1) {
            int query = tile * 16 + q;
            store(p.out, item[0] + query / group, (kv * group + query % group) * DIM + d, sum / total);
            continue;
        }
        mine[q * (DIM + 2) + d] = sum;
        if (d == 0) {
            mine[q * (DIM + 2) + DIM] = top;
            mine[q * (DIM + 2) + DIM + 1] = total;
        }
    }
    if (splits == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(p.arrived + unit, 1) == splits - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (threadIdx.x == 0) p.arrived[unit] = 0;
    const float *all = p.partial + (size_t)unit * p.splits * 16 * (DIM + 2);
    for (int k = threadIdx.x; k < queries * DIM; k += 128) {
        int q = k / DIM, d = k % DIM;
        float top = NEVER, sum = 0, total = 0;
        for (int i = 0; i < splits; i++) top = fmaxf(top, __ldcg(all + (i * 16 + q) * (DIM + 2) + DIM));
        for (int i = 0; i < splits; i++) {
            const float *part = all + (i * 16 + q) * (DIM + 2);
            float f = exp2f(__ldcg(part + DIM) - top);
            sum += __ldcg(part + d) * f;
            total += __ldcg(part + DIM + 1) * f;
        }
        int query = tile * 16 + q;
        store(p.out, item[0] + query / group, (kv * group + query % group) * DIM + d, sum / total);
    }
}

extern "C" __global__ void __launch_bounds__(128) attend_long_64(const Attention p) { attend_long<64>(p); }
extern "C" __global__ void __launch_bounds__(128) attend_long_128(const Attention p) { attend_long<128>(p); }
extern "C" __global__ void __launch_bounds__(128) attend_split_64(const Attention p) { attend_split<64>(p); }
extern "C" __global__ void __launch_bounds__(128) attend_split_128(const Attention p) { attend_split<128>(p); }

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
                if (d < p.dim) x += q[i] * __uint_as_float((u32)p.keys[at + d] << 16);
            }
            x = warpSum(x) * p.scale;
            float next = fmaxf(top, x), shrink = exp2f(top - next), e = exp2f(x - next);
            top = next;
            total = total * shrink + e;
#pragma unroll
            for (int i = 0; i < 16; i++) {
                int d = lane + 32 * i;
                if (d < p.dim) sums[i] = sums[i] * shrink + e * __uint_as_float((u32)p.values[at + d] << 16);
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
