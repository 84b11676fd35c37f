// Attention of any shape, and the copying of cache entries.

// number is a number of the cache, without its scale.
DEV float number(const Attention &p, const void *values, size_t at) {
    if (p.kind == CACHE_F8) return float8(((const u8 *)values)[at]);
    return p.kind == CACHE_F32 ? ((const float *)values)[at] : __uint_as_float((u32)((const u16 *)values)[at] << 16);
}

// attend_any: one query a warp, of any dimension up to 512. Blocks: items × rows
// of one, at most × query heads.
extern "C" __global__ void __launch_bounds__(32) attend_any(const Attention p) {
    let_next_begin();
    wait_for_earlier();
    const int *item = p.items + 3 * blockIdx.x;
    int h = blockIdx.z, lane = threadIdx.x, kv = h / (p.heads / p.kvHeads);
    const int *table = p.tables + item[2];
    float scale = p.scale, shown = 1;
    if (p.kind == CACHE_F8) {
        scale = keyScale<true>(p, kv);
        shown = valueScale<true>(p, kv);
    }
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
            x = warpSum(x) * scale;
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
            if (d < p.dim) store(p.out, row, h * p.dim + d, sums[i] / total * shown);
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
