// Products of a few rows of activations and a matrix of bfloat16 or float16
// weights, which are read once.

struct Linear {
    const void *w; // [out, in]
    View x;
    int in, rows;
    Divisors d;
    Output o;
};

// skinny computes TILES times 16 outputs of up to 8 rows with tensor cores: the
// weights are the left operand, straight from memory, and the rows the right
// one. A block's 8 warps share the columns: a thread reads 8 neighbouring
// weights at a time, UNROLL of them ahead, and the same rows for all tiles. in is a multiple
// of 32, and rows begin on multiples of 16 bytes.
template <bool HALF, int UNROLL, int TILES> DEV void skinny(const Linear &p) {
    __shared__ float sums[TILES][8][16][9], factor[8];
    __shared__ ulonglong2 squares[8][SLOTS];
    let_next_begin();
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int chunks = p.in >> 5, from = chunks * warp / 8, to = chunks * (warp + 1) / 8;
    const u16 *wa[TILES], *wb[TILES];
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 A[UNROLL][TILES], B[UNROLL][TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        int ra, rb;
        outputs(p.o, blockIdx.x * TILES + i, g, ra, rb);
        wa[i] = (const u16 *)p.w + (size_t)ra * p.in + t * 8, wb[i] = (const u16 *)p.w + (size_t)rb * p.in + t * 8;
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            int c = from + u;
            A[u][i] = c < to ? loadWeights(wa[i] + c * 32) : zero;
            B[u][i] = c < to ? loadWeights(wb[i] + c * 32) : zero;
        }
    wait_for_earlier();
    askSums(p.d, squares, p.rows);
    float c0[TILES][4] = {}, c1[TILES][4] = {};
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
            int n = k + UNROLL;
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                uint4 &a = A[u][i], &b = B[u][i];
                mma<HALF>(c0[i], a.x, b.x, a.y, b.y, v.x, v.y);
                mma<HALF>(c1[i], a.z, b.z, a.w, b.w, v.z, v.w);
                a = n < to ? loadWeights(wa[i] + n * 32) : zero;
                b = n < to ? loadWeights(wb[i] + n * 32) : zero;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        float(*own)[9] = sums[i][warp];
        own[g][t * 2] = c0[i][0] + c1[i][0];
        own[g][t * 2 + 1] = c0[i][1] + c1[i][1];
        own[g + 8][t * 2] = c0[i][2] + c1[i][2];
        own[g + 8][t * 2 + 1] = c0[i][3] + c1[i][3];
    }
    factorsOfSums(p.d, squares, factor, p.rows);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        int block = blockIdx.x * TILES + i;
        if (block * 16 < p.o.out) finish<8>(p.o, earlyOwn(p.o, block, p.rows), block, sums[i], factor, p.rows);
    }
}

// With a block's threads as the only bound the compiler keeps more loads in
// flight, which is worth more than more blocks (seen on an H200).
extern "C" __global__ void __launch_bounds__(256, 1) linear_bf16(const Linear p) { skinny<false, 4, 1>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) linear_f16(const Linear p) { skinny<true, 4, 1>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) linear_bf16_2(const Linear p) { skinny<false, 2, 2>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) linear_f16_2(const Linear p) { skinny<true, 2, 2>(p); }
