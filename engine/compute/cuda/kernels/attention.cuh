// What the kernels of attention over the paged cache share: it is put before their
// sources. A page holds, for each KV head, its positions' keys (or values) one after
// the other: [page][KV head][offset][dim].

struct Attention {
    View qkv, out;
    const void *keys, *values; // of the layer
    // By row: it sees the positions [starts, ends), and ends + j for each bit j of masks.
    const int *starts, *ends;
    const u64 *masks;
    const int *items;  // [items][3]: first row, rows, and where its table begins
    const int *tables;
    float *partial;    // [KV heads · tiles of all items][splits][16][dim + 4]
    u32 *arrived;      // [KV heads · tiles of all items], zero between launches
    const float *scales; // of CACHE_F8: of keys by KV head, then of values
    int heads, kvHeads, dim, pageSize, pageShift; // pageShift: −1 if the size is no power of two
    int window, tiles, splits;                    // tiles of an item, at most
    float scale;                                  // times log2(e)
    int kind;                                     // of the cache; CACHE_F32: attend_any only
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

// place is the number of a position's key or value among the layer's.
DEV u32 place(const Attention &p, const int *table, int kv, int position) {
    int page, offset;
    if (p.pageShift >= 0) {
        page = position >> p.pageShift;
        offset = position & (p.pageSize - 1);
    } else {
        page = position / p.pageSize;
        offset = position % p.pageSize;
    }
    return (table[page] * p.kvHeads + kv) * p.pageSize + offset;
}

// entry is where a position's key or value begins.
DEV size_t entry(const Attention &p, const int *table, int kv, int position) { return (size_t)place(p, table, kv, position) * p.dim; }

// halves8 makes float16 numbers of a word's first two codes and of its last two. A
// card that cannot convert them takes their bits for float16 numbers, which are then
// too small by 2^8.
#if __CUDA_ARCH__ >= 890
#define SUM8 1.f
DEV void halves8(u32 w, u32 &first, u32 &last) { halvesOf8(w, first, last); }
#else
#define SUM8 256.f
DEV void halves8(u32 w, u32 &first, u32 &last) {
    w = __byte_perm(w, 0, 0x3120);
    first = (w << 8 & 0x80008000u) | (w << 7 & 0x3f803f80u);
    last = (w & 0x80008000u) | (w >> 1 & 0x3f803f80u);
}
#endif

// bits8 makes bfloat16 numbers of the codes in the upper bytes of a word's halves,
// 2^120 too small.
DEV u32 bits8(u32 w) { return (w & 0x80008000u) | (w >> 4 & 0x07f007f0u); }

// keyScale is what scores of a KV head's queries and keys are multiplied by.
template <bool F8> DEV float keyScale(const Attention &p, int kv) { return F8 ? p.scale * p.scales[kv] : p.scale; }

// valueScale is the same of sums of values.
template <bool F8> DEV float valueScale(const Attention &p, int kv) { return F8 ? p.scales[p.kvHeads + kv] : 1; }

// Tile is HALVES times 8 queries of one KV head, and what a warp has summed for
// them. A query is a row of the item and one of the KV head's query heads. The
// thread with g and t has queries g and, of the second half, g + 8; of the outputs
// dimension column(h, t, c) + i is sums[8h + i][c] and, of the second query, [2 + c].
// With one half the tensor cores compute the other too, from zeros; but the
// registers that it would take leave room for more loads in flight.
template <int DIM, int HALVES> struct Tile {
    uint4 q[DIM / 32][HALVES];
    float sums[DIM / 8][2 * HALVES];
    float top[HALVES], total[HALVES];
    Sight sight[HALVES];
    int row[HALVES], col[HALVES]; // of the query in qkv; row −1 if there is none
    int from, to;                 // positions that any query sees
    int allFrom, allTo;           // and that every one does
};

// column is where 8 of a thread's outputs begin. With VALUES8 a thread reads the
// codes of DIM / 8 neighbouring dimensions, otherwise 8 of each 64.
template <int DIM, bool VALUES8> DEV int column(int h, int t, int c) { return VALUES8 ? DIM / 8 * (2 * t + c) + 8 * h : 64 * h + 16 * t + 8 * c; }

// mmaHalves is mma for a tile's queries on the left, of which the second half may
// be missing.
template <int HALVES, bool HALF = false> DEV void mmaHalves(float *c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    if (HALVES == 2) {
        mma<HALF>(c, a0, a1, a2, a3, b0, b1);
    } else {
        float d[4] = {c[0], c[1], 0, 0};
        mma<HALF>(d, a0, 0, a2, 0, b0, b1);
        c[0] = d[0];
        c[1] = d[1];
    }
}

// begin finds the queries and what they see. It reads nothing that an earlier
// kernel of the pass has written.
template <int DIM, int HALVES> DEV void begin(const Attention &p, Tile<DIM, HALVES> &s, int kv, int first, int rows, int tile) {
    int lane = threadIdx.x & 31, g = lane >> 2, group = p.heads / p.kvHeads;
    s.from = s.allTo = 0x7fffffff;
    s.to = s.allFrom = 0;
#pragma unroll
    for (int k = 0; k < HALVES; k++) {
        int query = tile * 8 * HALVES + g + 8 * k, r = query / group;
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
        for (int j = 0; j < 2 * HALVES; j++) s.sums[i][j] = 0;
}

template <int DIM, int HALVES> DEV void queries(const Attention &p, Tile<DIM, HALVES> &s) {
    int t = threadIdx.x & 3;
#pragma unroll
    for (int k = 0; k < HALVES; k++)
#pragma unroll
        for (int c = 0; c < DIM / 32; c++)
            s.q[c][k] = s.row[k] >= 0 ? *(const uint4 *)((const u16 *)p.qkv.data + (size_t)s.row[k] * p.qkv.stride + s.col[k] + 32 * c + 8 * t)
                                      : make_uint4(0, 0, 0, 0);
}

// halfWord makes float16 numbers of a word of bfloat16 ones.
DEV u32 halfWord(u32 w) { return packHalf(low(w), high(w)); }

// queries8 is queries, in float16, for keys of float8, of which a thread reads 16
// neighbours.
template <int DIM, int HALVES> DEV void queries8(const Attention &p, Tile<DIM, HALVES> &s) {
    int t = threadIdx.x & 3;
#pragma unroll
    for (int k = 0; k < HALVES; k++)
#pragma unroll
        for (int c = 0; c < DIM / 32; c++) {
            uint4 q = s.row[k] >= 0 ? *(const uint4 *)((const u16 *)p.qkv.data + (size_t)s.row[k] * p.qkv.stride + s.col[k] + 64 * (c / 2) + 16 * t + 8 * (c & 1))
                                    : make_uint4(0, 0, 0, 0);
            s.q[c][k] = make_uint4(halfWord(q.x), halfWord(q.y), halfWord(q.z), halfWord(q.w));
        }
}

// weigh turns the scores of N times 8 positions into weights, and a tile's sums so
// far into ones for the same highest score.
template <int N, int DIM, int HALVES> DEV void weigh(Tile<DIM, HALVES> &s, float (*x)[2 * HALVES]) {
    float shrink[HALVES];
    bool any = false;
#pragma unroll
    for (int r = 0; r < HALVES; r++) {
        float top = s.top[r];
#pragma unroll
        for (int n = 0; n < N; n++) top = fmaxf(top, fmaxf(x[n][2 * r], x[n][2 * r + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        shrink[r] = exp2f(s.top[r] - top);
        any = any || shrink[r] != 1;
        s.top[r] = top;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float e = x[n][2 * r + c] <= NEVER ? 0 : exp2f(x[n][2 * r + c] - top);
                x[n][2 * r + c] = e;
                sum += e;
            }
        s.total[r] = s.total[r] * shrink[r] + sum;
    }
    if (__any_sync(~0u, any)) {
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
#pragma unroll
            for (int j = 0; j < 2 * HALVES; j++) s.sums[i][j] *= shrink[j >> 1];
    }
}

// take adds 16 positions' values to a tile, by their weights: v[n][h] is 8
// dimensions of position 2t + (n & 1) + 8 (n >> 1).
template <int DIM, int HALVES> DEV void take(Tile<DIM, HALVES> &s, const uint4 (*v)[DIM / 64], const float (*x)[2 * HALVES]) {
    constexpr int SECOND = 2 * HALVES - 2;
    u32 a0 = pack(x[0][0], x[0][1]), a1 = pack(x[0][SECOND], x[0][SECOND + 1]), a2 = pack(x[1][0], x[1][1]), a3 = pack(x[1][SECOND], x[1][SECOND + 1]);
#pragma unroll
    for (int h = 0; h < DIM / 64; h++) {
        const u32 *v0 = (const u32 *)&v[0][h], *v1 = (const u32 *)&v[1][h], *v2 = (const u32 *)&v[2][h], *v3 = (const u32 *)&v[3][h];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int order = i & 1 ? 0x7632 : 0x5410;
            mmaHalves<HALVES>(s.sums[8 * h + i], a0, a1, a2, a3, __byte_perm(v0[i / 2], v1[i / 2], order), __byte_perm(v2[i / 2], v3[i / 2], order));
        }
    }
}

// take8 is take for values of float8: v[n] is the codes of DIM / 8 dimensions of
// position 2t + (n & 1) + 8 (n >> 1).
template <int DIM, int HALVES> DEV void take8(Tile<DIM, HALVES> &s, const u32 (*v)[DIM / 32], const float (*x)[2 * HALVES]) {
    constexpr int SECOND = 2 * HALVES - 2;
    u32 a0 = packHalf(x[0][0], x[0][1]), a1 = packHalf(x[0][SECOND], x[0][SECOND + 1]);
    u32 a2 = packHalf(x[1][0], x[1][1]), a3 = packHalf(x[1][SECOND], x[1][SECOND + 1]);
#pragma unroll
    for (int j = 0; j < DIM / 32; j++)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            int order = i ? 0x7362 : 0x5140;
            u32 first0, last0, first1, last1;
            halves8(__byte_perm(v[0][j], v[1][j], order), first0, last0);
            halves8(__byte_perm(v[2][j], v[3][j], order), first1, last1);
            mmaHalves<HALVES, true>(s.sums[4 * j + i], a0, a1, a2, a3, first0, first1);
            mmaHalves<HALVES, true>(s.sums[4 * j + i + 1], a0, a1, a2, a3, last0, last1);
        }
}

// totals adds up what the four threads of a query have of its sum.
template <int DIM, int HALVES> DEV void totals(Tile<DIM, HALVES> &s) {
#pragma unroll
    for (int r = 0; r < HALVES; r++) {
        s.total[r] += __shfl_xor_sync(~0u, s.total[r], 1);
        s.total[r] += __shfl_xor_sync(~0u, s.total[r], 2);
    }
}
