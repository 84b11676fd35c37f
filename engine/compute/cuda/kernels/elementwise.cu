// Operations on rows of activations.

struct Embed {
    View dst;
    const void *table;
    const int *tokens;
    int dtype, first, out, cols;
};

// embed: dst[i] = table[tokens[i] − first], or zero outside it. A block a row.
extern "C" __global__ void __launch_bounds__(256) embed(const Embed p) {
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x, at = p.tokens[i] - p.first;
    bool here = at >= 0 && at < p.out;
    for (int j = threadIdx.x; j < p.cols; j += 256) {
        size_t k = (size_t)(here ? at : 0) * p.cols + j;
        float x = 0;
        if (here) {
            if (p.dtype == F32)
                x = ((const float *)p.table)[k];
            else if (p.dtype == F16)
                x = half(((const u16 *)p.table)[k]);
            else
                x = __uint_as_float((u32)((const u16 *)p.table)[k] << 16);
        }
        store(p.dst, i, j, x);
    }
}

struct Norm {
    View dst, residual, feature, x;
    const float *w;
    ulonglong2 *clear; // the sums of squares that the next product before a norm adds to
    float eps;
    int cols, add;
};

// clearSquares comes after wait_for_earlier.
DEV void clearSquares(const Norm &p) {
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < SLOTS * MOST_DIVIDED; i += blockDim.x) p.clear[i] = make_ulonglong2(0, 0);
}

DEV float blockSum(float x) {
    __shared__ float part[32];
    int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    x = warpSum(x);
    if (lane == 0) part[threadIdx.x >> 5] = x;
    __syncthreads();
    return warpSum(lane < warps ? part[lane] : 0);
}

// rms_norm: with add, residual += x first, and x is then the residual, which goes to
// feature too, if that has data; dst = x / sqrt(mean(x²) + eps) · w. A block a row.
extern "C" __global__ void __launch_bounds__(1024) rms_norm(const Norm p) {
    let_next_begin();
    wait_for_earlier();
    clearSquares(p);
    int i = blockIdx.x;
    float sum = 0;
    for (int j = threadIdx.x; j < p.cols; j += blockDim.x) {
        float v = load(p.x, i, j);
        if (p.add) {
            v += load(p.residual, i, j);
            store(p.residual, i, j, v);
            v = load(p.residual, i, j); // as rounded
            if (p.feature.data) store(p.feature, i, j, v);
        }
        sum += v * v;
    }
    float scale = 1 / sqrtf(blockSum(sum) / p.cols + p.eps);
    const View &from = p.add ? p.residual : p.x;
    for (int j = threadIdx.x; j < p.cols; j += blockDim.x) store(p.dst, i, j, load(from, i, j) * scale * p.w[j]);
}

// rms_norm4 is rms_norm for columns and strides that are multiples of 4, up to 4 · 4 a
// thread: the row stays in registers.
extern "C" __global__ void __launch_bounds__(1024) rms_norm4(const Norm p) {
    let_next_begin();
    float4 w[4], v[4];
    uint4 x[4], residual[4];
    int i = blockIdx.x, step = 4 * blockDim.x;
#pragma unroll
    for (int u = 0; u < 4; u++) {
        int j = 4 * threadIdx.x + u * step;
        if (j < p.cols) w[u] = *(const float4 *)(p.w + j);
    }
    wait_for_earlier();
    clearSquares(p);
    // All is asked for before the first store, which the compiler lets no load pass.
#pragma unroll
    for (int u = 0; u < 4; u++) {
        int j = 4 * threadIdx.x + u * step;
        if (j >= p.cols) break;
        x[u] = fetch4(p.x, i, j);
        if (p.add) residual[u] = fetch4(p.residual, i, j);
    }
    float sum = 0;
#pragma unroll
    for (int u = 0; u < 4; u++) {
        int j = 4 * threadIdx.x + u * step;
        if (j >= p.cols) break;
        v[u] = floats4(p.x, x[u]);
        if (p.add) {
            float4 r = floats4(p.residual, residual[u]);
            v[u] = make_float4(v[u].x + r.x, v[u].y + r.y, v[u].z + r.z, v[u].w + r.w);
            store4(p.residual, i, j, v[u]);
            if (p.feature.data) store4(p.feature, i, j, v[u]);
        }
        sum += v[u].x * v[u].x + v[u].y * v[u].y + v[u].z * v[u].z + v[u].w * v[u].w;
    }
    float scale = 1 / sqrtf(blockSum(sum) / p.cols + p.eps);
#pragma unroll
    for (int u = 0; u < 4; u++) {
        int j = 4 * threadIdx.x + u * step;
        if (j >= p.cols) break;
        store4(p.dst, i, j, make_float4(v[u].x * scale * w[u].x, v[u].y * scale * w[u].y, v[u].z * scale * w[u].z, v[u].w * scale * w[u].w));
    }
}

struct QKNorm {
    View qkv;
    const float *q, *k;
    float eps;
    int heads, kvHeads, dim, rows;
};

// qk_norm: each query and key head becomes its norm. A warp a head.
extern "C" __global__ void __launch_bounds__(256) qk_norm(const QKNorm p) {
    let_next_begin();
    wait_for_earlier();
    int all = p.heads + p.kvHeads, unit = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (unit >= all * p.rows) return;
    int i = unit / all, h = unit % all;
    const float *w = h < p.heads ? p.q : p.k;
    float sum = 0;
    for (int j = lane; j < p.dim; j += 32) {
        float v = load(p.qkv, i, h * p.dim + j);
        sum += v * v;
    }
    float scale = 1 / sqrtf(warpSum(sum) / p.dim + p.eps);
    for (int j = lane; j < p.dim; j += 32) store(p.qkv, i, h * p.dim + j, load(p.qkv, i, h * p.dim + j) * scale * w[j]);
}

struct Move {
    View dst, x;
    const int *to, *from; // rows; null: the row itself; to: −1: none
    const float *bias;    // a row to add to every one, instead of x; or null
    int cols, add;
};

// move: dst[to[i]] = x[from[i]], or adds it, or adds bias. Blocks: rows × columns.
extern "C" __global__ void __launch_bounds__(256) move(const Move p) {
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x, to = p.to ? p.to[i] : i, from = p.from ? p.from[i] : i;
    if (to < 0) return;
    for (int j = blockIdx.y * 256 + threadIdx.x; j < p.cols; j += 256 * gridDim.y) {
        float v = p.bias ? p.bias[j] : load(p.x, from, j);
        if (p.add) v += load(p.dst, to, j);
        store(p.dst, to, j, v);
    }
}

struct SiluMul {
    View dst, gateUp;
    int cols;
};

DEV float silu(float g) { return g / (1 + __expf(-g)); }

// silu_mul: dst = silu(gate) · up. Blocks: rows × columns.
extern "C" __global__ void __launch_bounds__(256) silu_mul(const SiluMul p) {
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x;
    for (int j = blockIdx.y * 256 + threadIdx.x; j < p.cols; j += 256 * gridDim.y)
        store(p.dst, i, j, silu(load(p.gateUp, i, j)) * load(p.gateUp, i, p.cols + j));
}

// silu_mul8 is silu_mul for bfloat16 and columns and strides that are multiples
// of 8: a thread has 8 neighbours.
extern "C" __global__ void __launch_bounds__(256) silu_mul8(const SiluMul p) {
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x;
    const u16 *gate = (const u16 *)p.gateUp.data + (size_t)i * p.gateUp.stride, *up = gate + p.cols;
    u16 *dst = (u16 *)p.dst.data + (size_t)i * p.dst.stride;
    for (int j = 8 * (blockIdx.y * 256 + threadIdx.x); j < p.cols; j += 8 * 256 * gridDim.y) {
        uint4 a = *(const uint4 *)(gate + j), b = *(const uint4 *)(up + j);
        uint4 y;
        y.x = pack(silu(low(a.x)) * low(b.x), silu(high(a.x)) * high(b.x));
        y.y = pack(silu(low(a.y)) * low(b.y), silu(high(a.y)) * high(b.y));
        y.z = pack(silu(low(a.z)) * low(b.z), silu(high(a.z)) * high(b.z));
        y.w = pack(silu(low(a.w)) * low(b.w), silu(high(a.w)) * high(b.w));
        *(uint4 *)(dst + j) = y;
    }
}

struct Angles {
    const int *positions;
    const float *freqs;
    float *cos, *sin;
    float scale;
    int half, rows;
};

// angles: cosines and sines of the rows' rotary angles, which are rounded to
// float32 as where the models were trained.
extern "C" __global__ void __launch_bounds__(256) angles(const Angles p) {
    let_next_begin();
    wait_for_earlier();
    int at = blockIdx.x * 256 + threadIdx.x;
    if (at >= p.rows * p.half) return;
    float s, c;
    sincosf(__fmul_rn((float)p.positions[at / p.half], p.freqs[at % p.half]), &s, &c);
    p.cos[at] = c * p.scale;
    p.sin[at] = s * p.scale;
}

struct Rope {
    View qkv;
    const float *cos, *sin;
    const int *slots;
    void *keys, *values; // of the layer: [page][KV head][offset][dim]
    const float *scales; // of CACHE_F8: of keys by KV head, then of values
    int heads, kvHeads, dim, pageSize;
    int kind; // of the cache
};

// keep writes a number of KV head kv, or, counted on from the keys', of a value.
DEV void keep(const Rope &p, int kv, size_t at, float x) {
    void *cache = kv < p.kvHeads ? p.keys : p.values;
    if (p.kind == CACHE_F32)
        ((float *)cache)[at] = x;
    else if (p.kind == CACHE_F8)
        ((u8 *)cache)[at] = toFloat8(x / p.scales[kv]);
    else
        ((u16 *)cache)[at] = round16(x);
}

// rope_cache: turns queries and keys and writes keys and values to the cache. A
// block a row and head: queries, keys, values.
extern "C" __global__ void rope_cache(const Rope p) {
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x, h = blockIdx.y, half = p.dim / 2, col = h * p.dim;
    int slot = p.slots[i], page = slot / p.pageSize, offset = slot % p.pageSize;
    int kv = h - p.heads;
    if (kv >= p.kvHeads) { // a value
        size_t to = (((size_t)page * p.kvHeads + kv - p.kvHeads) * p.pageSize + offset) * p.dim;
        for (int j = threadIdx.x; j < p.dim; j += blockDim.x) keep(p, kv, to + j, load(p.qkv, i, col + j));
        return;
    }
    size_t to = (((size_t)page * p.kvHeads + max(kv, 0)) * p.pageSize + offset) * p.dim;
    for (int j = threadIdx.x; j < half; j += blockDim.x) {
        float c = p.cos[i * half + j], s = p.sin[i * half + j];
        float a = load(p.qkv, i, col + j), b = load(p.qkv, i, col + half + j);
        float x = a * c - b * s, y = b * c + a * s;
        store(p.qkv, i, col + j, x);
        store(p.qkv, i, col + half + j, y);
        if (kv >= 0) {
            keep(p, kv, to + j, x);
            keep(p, kv, to + half + j, y);
        }
    }
}

// keep8 writes 8 neighbours.
DEV void keep8(const Rope &p, int kv, size_t at, const float *x) {
    void *cache = kv < p.kvHeads ? p.keys : p.values;
    if (p.kind == CACHE_F8) {
        float scale = p.scales[kv];
        u32 w[2] = {};
#pragma unroll
        for (int u = 0; u < 8; u++) w[u / 4] |= (u32)toFloat8(x[u] / scale) << 8 * (u % 4);
        *(uint2 *)((u8 *)cache + at) = make_uint2(w[0], w[1]);
    } else {
        *(uint4 *)((u16 *)cache + at) = make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
    }
}

// rope_cache8 is rope_cache for bfloat16 rows, caches of that or float8, and heads
// of a multiple of 16: a thread has 8 neighbours of a head's first half and of its
// second. Blocks: rows × threads of all heads.
extern "C" __global__ void __launch_bounds__(256) rope_cache8(const Rope p) {
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x, half = p.dim / 2, per = half / 8, k = blockIdx.y * blockDim.x + threadIdx.x;
    int h = k / per, j = k % per * 8, kv = h - p.heads;
    if (kv >= 2 * p.kvHeads) return;
    int slot = p.slots[i];
    u16 *head = (u16 *)p.qkv.data + (size_t)i * p.qkv.stride + h * p.dim + j;
    uint4 a = *(const uint4 *)head, b = *(const uint4 *)(head + half);
    u32 *wa = (u32 *)&a, *wb = (u32 *)&b;
    float x[8], y[8];
#pragma unroll
    for (int u = 0; u < 4; u++) {
        x[2 * u] = low(wa[u]), x[2 * u + 1] = high(wa[u]);
        y[2 * u] = low(wb[u]), y[2 * u + 1] = high(wb[u]);
    }
    if (kv < p.kvHeads) {
        float4 c[2], s[2];
#pragma unroll
        for (int u = 0; u < 2; u++) {
            c[u] = ((const float4 *)(p.cos + (size_t)i * half + j))[u];
            s[u] = ((const float4 *)(p.sin + (size_t)i * half + j))[u];
        }
#pragma unroll
        for (int u = 0; u < 8; u++) {
            float cos = ((const float *)c)[u], sin = ((const float *)s)[u], v = x[u];
            x[u] = v * cos - y[u] * sin;
            y[u] = y[u] * cos + v * sin;
        }
#pragma unroll
        for (int u = 0; u < 4; u++) {
            wa[u] = pack(x[2 * u], x[2 * u + 1]);
            wb[u] = pack(y[2 * u], y[2 * u + 1]);
        }
        *(uint4 *)head = a;
        *(uint4 *)(head + half) = b;
    }
    if (kv < 0) return;
    int page = slot / p.pageSize, offset = slot % p.pageSize;
    size_t to = (((size_t)page * p.kvHeads + kv % p.kvHeads) * p.pageSize + offset) * p.dim + j;
    keep8(p, kv, to, x);
    keep8(p, kv, to + half, y);
}

struct ArgMax {
    View x;
    u64 *best;    // by row: zero between launches
    u32 *arrived; // by row: blocks; zero between launches
    u64 *found, *host;
    int cols;
};

// argmax: the first of the highest values of each row goes to found, and to the
// host's memory: the order of the value, then ~column; all ones where a value is no
// number or infinite. Blocks: rows × parts.
extern "C" __global__ void __launch_bounds__(256) argmax(const ArgMax p) {
    __shared__ u64 part[8];
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x;
    u64 best = 0;
    for (int j = blockIdx.y * 256 + threadIdx.x; j < p.cols; j += 256 * gridDim.y) {
        u32 bits = __float_as_uint(load(p.x, i, j));
        u64 key;
        if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u)
            key = ~0ull;
        else
            key = (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | (u32)~j;
        best = key > best ? key : best;
    }
    for (int o = 16; o; o >>= 1) {
        u64 other = __shfl_xor_sync(~0u, best, o);
        best = other > best ? other : best;
    }
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < 8; w++) best = part[w] > best ? part[w] : best;
    atomicMax(p.best + i, best);
    __threadfence();
    if (atomicAdd(p.arrived + i, 1) != gridDim.y - 1) return;
    __threadfence();
    best = atomicExch(p.best + i, 0ull);
    p.arrived[i] = 0;
    p.found[i] = best;
    p.host[i] = best;
}

// The order of minus infinity.
#define NO_VALUE 0x007fffffu

struct Follow {
    const u64 *found; // of argmax
    const int *ids, *keep, *from;
    int *tokens, *kept; // kept: in the host's memory
    int rows, n;
};

// follow: the best token of row from[i] becomes the token of row i, and number
// keep[i] of the kept ones, which is −1 if there is none.
extern "C" __global__ void __launch_bounds__(256) follow(const Follow p) {
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= p.n) return;
    u64 key = p.found[p.from[i]];
    bool ok = key != ~0ull && (u32)(key >> 32) > NO_VALUE;
    int id = ok ? p.ids[(u32) ~(u32)key] : -1;
    if (i < p.rows) p.tokens[i] = max(id, 0);
    p.kept[p.keep[i]] = id;
}

struct Convert {
    View dst, x;
    int cols;
    int half; // dst is float16
};

// convert: dst = x in dst's type.
extern "C" __global__ void __launch_bounds__(256) convert(const Convert p) {
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x;
    for (int j = blockIdx.y * 256 + threadIdx.x; j < p.cols; j += 256 * gridDim.y) {
        float v = load(p.x, i, j);
        if (p.half)
            ((u16 *)p.dst.data)[(size_t)i * p.dst.stride + j] = (u16)packHalf(v, 0);
        else
            store(p.dst, i, j, v);
    }
}
