// Products of a few rows of activations and a matrix of bfloat16 or float16
// weights, which are read once.

struct Linear {
    const void *w; // [out, in]
    View x;
    int in, rows;
    Divisors d;
    Output o;
};

// skinny computes 16 outputs of up to 8 rows with tensor cores: the
// weights are the left operand, straight from memory, and the rows the right
// one. A block's 8 warps share the columns: a thread reads 8 neighbouring
// weights at a time, UNROLL of them ahead. in is a multiple of 32, and rows
// begin on multiples of 16 bytes.
template <bool HALF, int UNROLL> DEV void skinny(const Linear &p) {
    __shared__ float sums[8][16][9], factor[8];
    __shared__ ulonglong2 squares[8][SLOTS];
    let_next_begin();
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int chunks = p.in >> 5, from = chunks * warp / 8, to = chunks * (warp + 1) / 8;
    int ra, rb;
    outputs(p.o, blockIdx.x, g, ra, rb);
    const u16 *wa = (const u16 *)p.w + (size_t)ra * p.in + t * 8, *wb = (const u16 *)p.w + (size_t)rb * p.in + t * 8;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 A[UNROLL], B[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int c = from + u;
        A[u] = c < to ? loadWeights(wa + c * 32) : zero;
        B[u] = c < to ? loadWeights(wb + c * 32) : zero;
    }
    wait_for_earlier();
    askSums(p.d, squares, p.rows);
    float c0[4] = {}, c1[4] = {};
    bool on = g < p.rows;
    const u16 *x = (const u16 *)p.x.data + (size_t)(on ? g : 0) * p.x.stride + t * 8;
    for (int c = from; c < to; c += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int k = c + u;
            uint4 v = on && k < to ? *(const uint4 *)(x + k * 32) : zero;
            if (HALF) {
                v.x = packHalf(low(v.x), high(v.x));
                v.y = packHalf(low(v.y), high(v.y));
                v.z = packHalf(low(v.z), high(v.z));
                v.w = packHalf(low(v.w), high(v.w));
            }
            mma<HALF>(c0, A[u].x, B[u].x, A[u].y, B[u].y, v.x, v.y);
            mma<HALF>(c1, A[u].z, B[u].z, A[u].w, B[u].w, v.z, v.w);
            int n = k + UNROLL;
            A[u] = n < to ? loadWeights(wa + n * 32) : zero;
            B[u] = n < to ? loadWeights(wb + n * 32) : zero;
        }
    }
    sums[warp][g][t * 2] = c0[0] + c1[0];
    sums[warp][g][t * 2 + 1] = c0[1] + c1[1];
    sums[warp][g + 8][t * 2] = c0[2] + c1[2];
    sums[warp][g + 8][t * 2 + 1] = c0[3] + c1[3];
    factorsOfSums(p.d, squares, factor, p.rows);
    __syncthreads();
    finish<8>(p.o, earlyOwn(p.o, blockIdx.x, p.rows), blockIdx.x, sums, factor, p.rows);
}

// With a block's threads as the only bound the compiler keeps more loads in
// flight, which is worth more than more blocks (seen on an H200).
extern "C" __global__ void __launch_bounds__(256, 1) linear_bf16(const Linear p) { skinny<false, 4>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) linear_f16(const Linear p) { skinny<true, 4>(p); }
