// What all kernels share: put before each source, behind ptx.cuh.

// Weight types, in the order of compute.DType.
enum { BF16 = 0, F32 = 1, F16 = 2, I4 = 3, I8 = 4, F8E4M3 = 5 };

// View is rows of activations, stride elements apart: bfloat16, or float32 if wide.
struct View {
    void *data;
    int stride;
    int wide;
};

// The two bfloat16 numbers of a word.
DEV float low(u32 v) { return __uint_as_float(v << 16); }
DEV float high(u32 v) { return __uint_as_float(v & 0xffff0000u); }

// packHalf rounds two numbers to float16, a into the lower half; what is too
// large becomes the largest.
DEV u32 packHalf(float a, float b) { return halves(fminf(fmaxf(a, -65504.f), 65504.f), fminf(fmaxf(b, -65504.f), 65504.f)); }

// mul2 is of two bfloat16 numbers each.
DEV u32 mul2(u32 a, u32 b) { return fma2(a, b, 0x80008000u); }

// float8 is a float8 e4m3 number, exactly. Its bits, shifted, are those of a
// float32 whose exponent is too small by 120.
DEV float float8(u8 b) {
    return __uint_as_float((u32)(b & 0x80) << 24 | (u32)(b & 0x7f) << 20) * 1.329227995784916e36f;
}

// toFloat8 is the float8 e4m3 number nearest to x, ties to even; what is beyond the
// largest becomes that, and a NaN stays one: compute.ToFloat8.
DEV u8 toFloat8(float x) {
    u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7f;
    if (magnitude < 121u << 23) return sign | __float2uint_rn(__uint_as_float(magnitude) * 512.f); // below 2^-6
    return sign | min(((magnitude + 0x7ffffu + (magnitude >> 20 & 1)) >> 20) - (120u << 3), 0x7eu);
}

// How a cache keeps its numbers.
enum { CACHE_BF16 = 0, CACHE_F32 = 1, CACHE_F8 = 2 };

DEV float load(const View &v, int row, int col) {
    size_t at = (size_t)row * v.stride + col;
    return v.wide ? ((const float *)v.data)[at] : __uint_as_float((u32)((const u16 *)v.data)[at] << 16);
}
DEV void store(const View &v, int row, int col, float x) {
    size_t at = (size_t)row * v.stride + col;
    if (v.wide)
        ((float *)v.data)[at] = x;
    else
        ((u16 *)v.data)[at] = round16(x);
}

// Four neighbours at once; col and the stride are multiples of 4, and the data
// lies on a multiple of 16 bytes. fetch4 reads them as they lie, and floats4 makes numbers
// of that: what is between the two need not wait for memory.
DEV uint4 fetch4(const View &v, int row, int col) {
    size_t at = (size_t)row * v.stride + col;
    if (v.wide) return *(const uint4 *)((const float *)v.data + at);
    uint2 w = *(const uint2 *)((const u16 *)v.data + at);
    return make_uint4(w.x, w.y, 0, 0);
}
DEV float4 floats4(const View &v, uint4 w) {
    if (v.wide) return make_float4(__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w));
    return make_float4(low(w.x), high(w.x), low(w.y), high(w.y));
}
DEV float4 load4(const View &v, int row, int col) { return floats4(v, fetch4(v, row, col)); }
DEV void store4(const View &v, int row, int col, float4 x) {
    size_t at = (size_t)row * v.stride + col;
    if (v.wide)
        *(float4 *)((float *)v.data + at) = x;
    else
        *(uint2 *)((u16 *)v.data + at) = make_uint2(pack(x.x, x.y), pack(x.z, x.w));
}

DEV float warpSum(float x) {
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    return x;
}

// MOST_DIVIDED is the most rows whose division a norm leaves to a product.
#define MOST_DIVIDED 16

// What becomes of a product's outputs.
enum { PLAIN = 0, GATED = 1, ROTARY = 2, NORM = 3 };

// Output is where a block's 16 outputs of each row go: two times 8 of them.
// GATED: of the first and of the second half of all outputs, for y = silu(first) ·
// second. ROTARY: of the first and of the second half of a head of dim outputs,
// which the row's rotary angles turn; queries go to y, keys and values to the
// cache. NORM: they are added to the residual stream, of out columns, which goes
// to y with the weights of its norm, but not yet divided by its root mean square:
// squares has, of each row, the sums of squares of every 16 columns, or they are added to
// sums. The stream goes to feature too, if that has data.
struct Output {
    View y;
    int out, mode;
    const float *cos, *sin;
    const int *slots;
    u16 *keys, *values;  // of the layer: [page][KV head][offset][dim]
    const float *scales; // of keys by KV head, then of values: the cache is of float8; or null: bfloat16
    int heads, kvHeads, dim, pageSize;
    View residual, feature;
    const float *norm;
    float *squares;    // as Divisors has them, or null
    ulonglong2 *sums;  // or null
    ulonglong2 *clear; // the sums that the next product adds to
};

// Divisors are what rows of activations are still to be divided by, or null: NORM's squares
// of each, [rows][parts], or its sums, [SLOTS][MOST_DIVIDED].
struct Divisors {
    const float *squares;
    const ulonglong2 *sums;
    int parts;
    float eps;
};

// MOST_PARTS is the most sums of squares of a row that are asked for ahead.
#define MOST_PARTS 256

// asksAhead tells whether the sums of squares are asked for ahead.
DEV bool asksAhead(const Divisors &d) { return d.squares && d.parts <= MOST_PARTS && d.parts % 4 == 0; }

// askSquares asks for the sums of squares that factors wants.
template <int WARPS> DEV void askSquares(const Divisors &d, float (*squares)[MOST_PARTS], int rows) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (!asksAhead(d)) return;
    for (int m = warp; m < rows; m += WARPS)
        for (int k = 4 * lane; k < d.parts; k += 128) copyAsync(&squares[m][k], d.squares + m * d.parts + k);
    copied();
}

// factors sets to[m] to what the products of row m are to be multiplied by. It is
// for a block's WARPS warps, and comes before a barrier. squares is what was asked for.
template <int WARPS> DEV void factors(const Divisors &d, float (*squares)[MOST_PARTS], float *to, int rows) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    bool asked = asksAhead(d);
    if (asked) {
        await<0>();
        __syncwarp();
    }
    for (int m = warp; m < rows; m += WARPS) {
        float sum = 0;
        if (d.squares) {
            const float *from = asked ? squares[m] : d.squares + m * d.parts;
#pragma unroll 8
            for (int k = lane; k < d.parts; k += 32) sum += from[k];
            sum = 1 / sqrtf(warpSum(sum) / (16 * d.parts) + d.eps);
        } else {
            sum = 1;
        }
        if (lane == 0) to[m] = sum;
    }
}

// A sum of squares is two whole numbers, so that it is the same in whatever order blocks
// add theirs: of 1 / SMALL, and of LARGE. A block adds less than LARGE of the first, of which
// a sum of 1,024 fits, and its rounding is far below any eps. Each SLOTS'th block adds to
// another line of memory, since blocks that end at once wait for each other there.
#define SMALL 1073741824.0f
#define LARGE 1048576.0f
#define SLOTS 8
DEV void addSquares(ulonglong2 *sums, int block, int row, float sum) {
    ulonglong2 *to = sums + block % SLOTS * MOST_DIVIDED + row;
    float large = floorf(sum / LARGE);
    atomicAdd(&to->x, (u64)((sum - large * LARGE) * SMALL + 0.5f));
    if (large > 0) atomicAdd(&to->y, (u64)fminf(large, 1e15f)); // numbers beyond 1e10 are no model's
}

// askSums asks for what factorsOfSums wants, to shared memory: there are no registers to spare
// until then. It comes after wait_for_earlier. A thread has one row.
DEV void askSums(const Divisors &d, ulonglong2 (*sums)[SLOTS], int rows) {
    if (d.sums && threadIdx.x < rows)
        for (int i = 0; i < SLOTS; i++) copyAsync(&sums[threadIdx.x][i], d.sums + i * MOST_DIVIDED + threadIdx.x);
    copied();
}

// factorsOfSums is factors for sums that are one a row.
DEV void factorsOfSums(const Divisors &d, const ulonglong2 (*sums)[SLOTS], float *to, int rows) {
    if (threadIdx.x >= rows) return;
    float factor = 1;
    if (d.sums) {
        await<0>();
        u64 small = 0, large = 0;
        for (int i = 0; i < SLOTS; i++) small += sums[threadIdx.x][i].x, large += sums[threadIdx.x][i].y;
        factor = 1 / sqrtf(((float)small / SMALL + (float)large * LARGE) / (16 * d.parts) + d.eps);
    }
    to[threadIdx.x] = factor;
}

// outputs are the two outputs of a thread with that g, of the block'th 16.
DEV void outputs(const Output &o, int block, int g, int &a, int &b) {
    if (o.mode == GATED) {
        a = block * 8 + g;
        b = a + o.out / 2;
    } else if (o.mode == ROTARY) {
        int per = o.dim / 16;
        a = block / per * o.dim + block % per * 8 + g;
        b = a + o.dim / 2;
    } else {
        a = block * 16 + g;
        b = a + 8;
    }
    a = min(a, o.out - 1);
    b = min(b, o.out - 1);
}

// Early is what emit and emitNorm read, asked for before the outputs are there: the
// residual stream and the norm's weights, or a cosine, a sine and a slot.
struct Early {
    float a, b, x, y;
    int slot;
};
DEV Early early(const Output &o, int block, int r, int m) {
    Early e = {0, 0, 0, 0, 0};
    if (o.mode == NORM) {
        int at = block * 16 + r;
        const float *residual = (const float *)o.residual.data + (size_t)m * o.residual.stride + at;
        e.a = loadNow4(residual);
        e.b = loadNow4(residual + 8);
        e.x = loadNow4(o.norm + at);
        e.y = loadNow4(o.norm + at + 8);
    } else if (o.mode == ROTARY) {
        int per = o.dim / 16, at = m * (o.dim / 2) + block % per * 8 + r;
        e.x = loadNow4(o.cos + at);
        e.y = loadNow4(o.sin + at);
        e.slot = __float_as_uint(loadNow4(o.slots + m));
    }
    return e;
}

// emitPlain and emitGated are emit for PLAIN and for GATED, which ask for nothing early.
DEV void emitPlain(const Output &o, int block, int r, int m, float a, float b) {
    int at = block * 16 + r;
    if (at < o.out) store(o.y, m, at, a);
    if (at + 8 < o.out) store(o.y, m, at + 8, b);
}
DEV void emitGated(const Output &o, int block, int r, int m, float a, float b) {
    int at = block * 8 + r;
    if (at < o.out / 2) store(o.y, m, at, a / (1 + __expf(-a)) * b);
}

// emit stores outputs r and r + 8 of the block'th 16, which are a and b, of row m.
DEV void emit(const Output &o, const Early &e, int block, int r, int m, float a, float b) {
    if (o.mode == PLAIN) {
        emitPlain(o, block, r, m, a, b);
    } else if (o.mode == GATED) {
        emitGated(o, block, r, m, a, b);
    } else {
        int per = o.dim / 16, half = o.dim / 2, head = block / per, i = block % per * 8 + r, kv = head - o.heads;
        if (kv < o.kvHeads) { // no value
            float x = a * e.x - b * e.y;
            b = b * e.x + a * e.y;
            a = x;
        }
        if (kv < 0) {
            store(o.y, m, head * o.dim + i, a);
            store(o.y, m, head * o.dim + half + i, b);
        } else {
            int slot = e.slot;
            u16 *to = kv < o.kvHeads ? o.keys : o.values;
            size_t at = (((size_t)(slot / o.pageSize) * o.kvHeads + kv % o.kvHeads) * o.pageSize + slot % o.pageSize) * o.dim + i;
            if (o.scales) {
                float scale = o.scales[kv];
                ((u8 *)to)[at] = toFloat8(a / scale);
                ((u8 *)to)[at + half] = toFloat8(b / scale);
            } else {
                to[at] = round16(a);
                to[at + half] = round16(b);
            }
        }
    }
}

// emitNorm is emit for NORM, where the residual stream is of float32. Eight neighbouring
// threads have the outputs of the row.
DEV void emitNorm(const Output &o, const Early &e, int block, int r, int m, float a, float b) {
    int at = block * 16 + r;
    a += e.a;
    b += e.b;
    store(o.residual, m, at, a);
    store(o.residual, m, at + 8, b);
    if (o.feature.data) {
        store(o.feature, m, at, a);
        store(o.feature, m, at + 8, b);
    }
    store(o.y, m, at, a * e.x);
    store(o.y, m, at + 8, b * e.y);
    float sum = a * a + b * b;
    u32 eight = 0xffu << (threadIdx.x & 24);
#pragma unroll
    for (int k = 4; k; k >>= 1) sum += __shfl_xor_sync(eight, sum, k);
    if (!o.sums) {
        if (r == 0) o.squares[m * (o.out / 16) + block] = sum;
        return;
    }
    if (r == 0) addSquares(o.sums, block, m, sum);
    if (m == 0)
        for (int i = 8 * block + r; i < SLOTS * MOST_DIVIDED; i += o.out / 2) o.clear[i] = make_ulonglong2(0, 0);
}

// finish adds up what the block's warps have of the block'th 16 outputs, multiplies
// each row with its factor, and stores them. Thread 8m + r has those of row m, and
// earlyOwn what it asks for ahead.
template <int WARPS, int COLS> DEV void finish(const Output &o, const Early &e, int block, float (*sums)[16][COLS], const float *factor, int rows) {
    static_assert(8 * (COLS - 1) <= 32 * WARPS, "a thread has one row");
    int r = threadIdx.x & 7, m = threadIdx.x >> 3;
    if (m >= rows) return;
    float a = 0, b = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        a += sums[w][r][m];
        b += sums[w][r + 8][m];
    }
    a *= factor[m];
    b *= factor[m];
    if (o.mode == NORM)
        emitNorm(o, e, block, r, m, a, b);
    else
        emit(o, e, block, r, m, a, b);
}
DEV Early earlyOwn(const Output &o, int block, int rows) {
    int r = threadIdx.x & 7, m = threadIdx.x >> 3;
    if (m >= rows || block * 16 >= o.out) return Early{0, 0, 0, 0, 0};
    return early(o, block, r, m);
}
