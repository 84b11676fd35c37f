// Sums over the GPUs of one process: each writes to and reads from the memory of
// the others, and adds up in the order of the ranks, so that all have the same
// bits.
//
// Every sum has a number, one higher than the last one's, which the rank's state
// holds. What is exchanged lies in one of two halves by turns: a rank that writes
// sum n + 2 has ended sum n + 1, for which every other rank must have begun that,
// and so have ended n and all its reading.

enum { MOST_RANKS = 16 };

// Sum is a message of rows of x. cols and strides are multiples of 4 columns
// (bfloat16) or 2 (float32): of 8 bytes, a pair of words.
struct Sum {
    View x, dst;
    View residual, feature; // of sum_norm; feature may have no data
    const float *w;
    float eps;
    int rows, cols;
    int rank, ranks;
    int lines;        // the pairs that a half of push has room for, of each rank
    int stage;        // the bytes that a half of read has room for
    u32 *state;       // the number of the next sum, and how many blocks have ended this one
    const u32 *stop;  // not 0 when the others will not come; in host memory
    char *areas[MOST_RANKS]; // of all ranks: push's lines, read's bytes, read's flags
};

DEV u32 number(const Sum &p) { return loadGPU(p.state); }

// end_sum lets the next sum have its number, when the last block has ended.
DEV void end_sum(const Sum &p, u32 n) {
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(p.state + 1, 1) == gridDim.x - 1) {
        p.state[1] = 0;
        p.state[0] = n + 1 ? n + 1 : 1; // what was never written has number 0
    }
}

DEV bool stopped(const Sum &p, u32 tries) {
    return (tries & 1023) == 1023 && *(volatile const u32 *)p.stop != 0;
}

// The pair of words at column 8 bytes · k of a row.
DEV uint2 pairAt(const View &v, int row, int k) {
    int size = v.wide ? 4 : 2;
    return *(const uint2 *)((const char *)v.data + ((size_t)row * v.stride * size + 8 * k));
}

// Pairs are added as float32.
struct Pair {
    float a, b, c, d; // of float32 a and b only
};
template <bool WIDE> DEV void add(Pair &s, uint2 v) {
    if (WIDE) {
        s.a += __uint_as_float(v.x);
        s.b += __uint_as_float(v.y);
    } else {
        s.a += low(v.x);
        s.b += high(v.x);
        s.c += low(v.y);
        s.d += high(v.y);
    }
}
template <bool WIDE> DEV uint2 rounded(const Pair &s) {
    return WIDE ? make_uint2(__float_as_uint(s.a), __float_as_uint(s.b)) : make_uint2(pack(s.a, s.b), pack(s.c, s.d));
}

// push: a rank writes each pair into every other's memory, with the number of
// the sum beside each word. 8 bytes arrive at once, so a word is there when its
// number is: no other sign is needed, and one way over the link is all it takes.
DEV uint4 *line(const Sum &p, int owner, int from, u32 n, int at) {
    return (uint4 *)p.areas[owner] + ((size_t)(n & 1) * p.ranks + from) * p.lines + at;
}
DEV void push(const Sum &p, u32 n, int at, uint2 v) {
    for (int r = 0; r < p.ranks; r++)
        if (r != p.rank)
            storePush(line(p, r, p.rank, n, at), v.x, n, v.y);
}
DEV uint2 pushed(const Sum &p, u32 n, int from, int at) {
    const uint4 *l = line(p, p.rank, from, n, at);
    for (u32 tries = 0;; tries++) {
        uint4 v = loadPush(l);
        if (v.y == n && v.w == n || stopped(p, tries)) return make_uint2(v.x, v.z);
    }
}
template <bool WIDE> DEV Pair sumOf(const Sum &p, u32 n, int at, uint2 own) {
    Pair s = {0, 0, 0, 0};
    for (int r = 0; r < p.ranks; r++) add<WIDE>(s, r == p.rank ? own : pushed(p, n, r, at));
    return s;
}

template <bool WIDE> DEV void sum_push(const Sum &p) {
    let_next_begin();
    int per = p.cols / (WIDE ? 2 : 4), all = p.rows * per;
    wait_for_earlier();
    u32 n = number(p);
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < all; at += gridDim.x * blockDim.x) {
        int i = at / per, k = at % per;
        uint2 own = pairAt(p.x, i, k);
        push(p, n, at, own);
        uint2 s = rounded<WIDE>(sumOf<WIDE>(p, n, at, own));
        *(uint2 *)((char *)p.dst.data + ((size_t)i * p.dst.stride * (WIDE ? 4 : 2) + 8 * k)) = s;
    }
    end_sum(p, n);
}
extern "C" __global__ void __launch_bounds__(512) sum_push_narrow(const Sum p) { sum_push<false>(p); }
extern "C" __global__ void __launch_bounds__(512) sum_push_wide(const Sum p) { sum_push<true>(p); }

// read: a rank puts its message into its own memory and gives a sign to the
// others, block by block; then each reads all. Rows lie one after the other: the
// strides are cols.
DEV u32 *flag(const Sum &p, int owner, int from) {
    return (u32 *)(p.areas[owner] + (size_t)2 * p.ranks * p.lines * 16 + 2 * (size_t)p.stage) + blockIdx.x * MOST_RANKS + from;
}
template <bool WIDE> DEV void sum_read(const Sum &p) {
    let_next_begin();
    int all = p.rows * p.cols / (WIDE ? 4 : 8); // of 16 bytes
    int from = (long long)all * blockIdx.x / gridDim.x, to = (long long)all * (blockIdx.x + 1) / gridDim.x;
    wait_for_earlier();
    u32 n = number(p);
    size_t base = (size_t)2 * p.ranks * p.lines * 16 + (n & 1) * (size_t)p.stage;
    uint4 *own = (uint4 *)(p.areas[p.rank] + base);
    for (int at = from + threadIdx.x; at < to; at += blockDim.x) own[at] = ((const uint4 *)p.x.data)[at];
    __syncthreads();
    if (threadIdx.x < p.ranks) {
        int r = threadIdx.x;
        storeSign(flag(p, r, p.rank), n);
        for (u32 tries = 0;; tries++) {
            u32 seen = loadSign(flag(p, p.rank, r));
            if ((int)(seen - n) >= 0 || stopped(p, tries)) break;
        }
    }
    __syncthreads();
    for (int at = from + threadIdx.x; at < to; at += blockDim.x) {
        Pair s = {0, 0, 0, 0}, t = {0, 0, 0, 0};
        for (int r = 0; r < p.ranks; r++) {
            uint4 v = loadSigned((const uint4 *)(p.areas[r] + base) + at);
            add<WIDE>(s, make_uint2(v.x, v.y));
            add<WIDE>(t, make_uint2(v.z, v.w));
        }
        uint2 a = rounded<WIDE>(s), b = rounded<WIDE>(t);
        ((uint4 *)p.dst.data)[at] = make_uint4(a.x, a.y, b.x, b.y);
    }
    end_sum(p, n);
}
extern "C" __global__ void __launch_bounds__(512) sum_read_narrow(const Sum p) { sum_read<false>(p); }
extern "C" __global__ void __launch_bounds__(512) sum_read_wide(const Sum p) { sum_read<true>(p); }

// sum_norm is sum_push_narrow and then rms_norm with add: residual += the sum, and
// goes to feature too; dst = its norm. A block a row, up to 4 pairs a thread.
extern "C" __global__ void __launch_bounds__(1024) sum_norm(const Sum p) {
    let_next_begin();
    __shared__ float part[2][32];
    float4 w[4];
    int per = p.cols / 4, turn = 0;
#pragma unroll
    for (int u = 0; u < 4; u++) {
        int k = threadIdx.x + u * blockDim.x;
        if (k < per) w[u] = *(const float4 *)(p.w + 4 * k);
    }
    wait_for_earlier();
    u32 n = number(p);
    for (int i = blockIdx.x; i < p.rows; i += gridDim.x, turn ^= 1) {
        uint2 own[4];
        float4 v[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            int k = threadIdx.x + u * blockDim.x;
            if (k < per) own[u] = pairAt(p.x, i, k);
        }
#pragma unroll
        for (int u = 0; u < 4; u++) {
            int k = threadIdx.x + u * blockDim.x;
            if (k < per) push(p, n, i * per + k, own[u]);
            if (k < per) v[u] = load4(p.residual, i, 4 * k);
        }
        float squares = 0;
#pragma unroll
        for (int u = 0; u < 4; u++) {
            int k = threadIdx.x + u * blockDim.x;
            if (k >= per) break;
            uint2 s = rounded<false>(sumOf<false>(p, n, i * per + k, own[u]));
            v[u] = make_float4(low(s.x) + v[u].x, high(s.x) + v[u].y, low(s.y) + v[u].z, high(s.y) + v[u].w);
            store4(p.residual, i, 4 * k, v[u]);
            if (p.feature.data) store4(p.feature, i, 4 * k, v[u]);
            squares += v[u].x * v[u].x + v[u].y * v[u].y + v[u].z * v[u].z + v[u].w * v[u].w;
        }
        squares = warpSum(squares);
        if ((threadIdx.x & 31) == 0) part[turn][threadIdx.x >> 5] = squares;
        __syncthreads();
        float all = 0;
        for (int k = 0; k < blockDim.x >> 5; k++) all += part[turn][k];
        float scale = 1 / sqrtf(all / p.cols + p.eps);
#pragma unroll
        for (int u = 0; u < 4; u++) {
            int k = threadIdx.x + u * blockDim.x;
            if (k >= per) break;
            store4(p.dst, i, 4 * k, make_float4(v[u].x * scale * w[u].x, v[u].y * scale * w[u].y, v[u].z * scale * w[u].z, v[u].w * scale * w[u].w));
        }
    }
    end_sum(p, n);
}
