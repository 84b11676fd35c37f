// Products of 17 to 64 rows of activations with codes by instructions that four warps
// give together (wgmma: compute capability 9.0 alone). The codes are read and decoded
// once for all rows.
//
// The weights are the left operand, in registers, and the rows the right one, in
// shared memory. A block has two groups of four warps that multiply; each warp has two
// times 16 outputs. With HALVES = 1 a tile is 256 outputs; with 2 it is 128, and the groups
// each have the same ones over their half of a step's columns. Eight more warps bring
// codes, scales and rows of the next steps; barriers of a stage tell when it is full, and
// when all have done with it, so that some warps decode while others multiply. Where
// there are fewer tiles than multiprocessors, `parts` blocks share the columns of a tile:
// each leaves its sums in memory, and whoever comes last adds them up, always in the
// same order.

#define THREADS 256
#define BRINGERS 256

struct Wide {
    Quant q;
    float4 *partial; // [tiles · parts][2 · rows / 8 / HALVES][THREADS]
    u32 *arrived;    // by tile of outputs; zero between kernels
    int parts;
};

// Way goes through a block's steps. A unit is a part of a tile's columns; a block has
// every gridDim'th of them.
struct Way {
    int of, parts, units; // steps of a tile; of all blocks
    int unit, k, to;
    DEV Way(const Wide &p, int cols, int outs) {
        of = (p.q.in + cols - 1) / cols;
        parts = p.parts;
        units = (p.q.o.out + outs - 1) / outs * parts;
        unit = blockIdx.x;
        begin();
    }
    DEV void begin() {
        int part = unit % parts;
        k = of * part / parts;
        to = of * (part + 1) / parts;
    }
    DEV bool left() const { return unit < units; }
    DEV int tile() const { return unit / parts; }
    // next says whether another unit begins.
    DEV bool next() {
        if (++k < to) return false;
        unit += gridDim.x;
        begin();
        return true;
    }
};

// WideStage is what a step needs. Rows are of 64 columns, whose 16 bytes lie swizzled;
// codes and scales are of 8 outputs each, as in memory.
template <int DTYPE, int ROWS, int GROUPS, int HALVES> struct WideStage {
    static constexpr int OWN = 128, COLS = OWN * HALVES; // columns of a step: a warp's, all
    static constexpr int OUTS = 256 / HALVES, EIGHTS = OUTS / 8;
    static constexpr int LOADS = DTYPE == I4 ? 1 : 2; // tiles of codes of a warp's columns
    static constexpr int TILES = LOADS * HALVES;
    static constexpr int STAGES = HALVES == 1 ? DTYPE == I4 ? 6 : 4 : DTYPE == I4 ? 4 : 3;
    u8 x[COLS / 64][ROWS][128];
    u8 codes[EIGHTS][TILES][TOGETHER][64];
    float scales[HALVES][GROUPS][EIGHTS][TOGETHER];
};

// Bringer is a thread of those that bring.
template <typename Stage, int ROWS, int GROUPS, int HALVES> struct Bringer {
    static constexpr int WARPS = BRINGERS / 32;
    const Quant &p;
    int n, warp, lane;
    int codes, scales; // where 8 outputs are: of the codes of the warp's lane'th copies, and of the thread's scales

    DEV Bringer(const Quant &p) : p(p), n(threadIdx.x - THREADS), warp(n >> 5), lane(n & 31) {}

    // point is for a tile of outputs that begins to be brought.
    DEV void point(int tile) {
        codes = eight(tile, (lane * WARPS + warp) % Stage::EIGHTS);
        scales = eight(tile, n / 2 % Stage::EIGHTS);
    }
    DEV int eight(int tile, int k) {
        int rows[2];
        outputs(p.o, tile * (Stage::OUTS / 16) + k / 2, 0, rows[0], rows[1]);
        return (u32)(k & 1 ? rows[1] : rows[0]) / TOGETHER;
    }

    // weights brings the codes of step k, a warp the tile of 8 outputs at a time, and their
    // scales.
    DEV void weights(Stage &s, int k) {
        int first = k * Stage::TILES;
        const u8 *from = p.codes + (u32)(first * TOGETHER * 64 + lane * 16);
        u8 *to = s.codes[warp][0][0] + lane * 16;
        u32 row = p.tiles * TOGETHER * 64;
#pragma unroll
        for (int i = 0; i < Stage::EIGHTS / WARPS; i++) {
            const u8 *at = from + (size_t)row * (u32)__shfl_sync(~0u, codes, i);
#pragma unroll
            for (int j = 0; j < Stage::TILES; j++) copy16(to + (i * WARPS * Stage::TILES + j) * TOGETHER * 64, at + j * TOGETHER * 64, first + j < p.tiles);
        }
        constexpr int PIECES = 2 * Stage::EIGHTS * GROUPS * HALVES;
#pragma unroll
        for (int i = 0; i < (PIECES + BRINGERS - 1) / BRINGERS; i++) {
            int m = i * BRINGERS + n, at = m / 2 / Stage::EIGHTS, f = at % GROUPS, half = at / GROUPS;
            if (m >= PIECES) break;
            int tile = first + half * Stage::LOADS, group = GROUPS == 1 ? tile >> p.shift : tile * GROUPS / Stage::LOADS + f;
            bool is = tile < p.tiles && group < p.groups;
            copy16(&s.scales[half][f][m / 2 % Stage::EIGHTS][m % 2 * 4], p.scales + (is ? ((size_t)scales * p.groups + group) * TOGETHER + m % 2 * 4 : 0), is);
        }
    }

    // rows brings the rows' columns of step k, a warp 64 of a row at a time. A thread of
    // the product has 8 neighbours of every 32 columns, two for each of two instructions
    // in two places: so every four words of one become the same words of four. What lies
    // beyond the last row is multiplied, too, but not stored.
    DEV void rows(Stage &s, int k) {
        int piece = lane >> 4 << 2 | lane & 3, word = lane >> 2 & 3, col = k * Stage::COLS + lane * 2;
        bool is[Stage::COLS / 64];
#pragma unroll
        for (int c = 0; c < Stage::COLS / 64; c++) is[c] = col + c * 64 < p.in;
        const u8 *from = (const u8 *)p.x.data + (u32)(warp * p.x.stride + col) * 2;
        u32 apart = WARPS * p.x.stride * 2;
        static_assert(WARPS % 8 == 0, "the last bits of all of a warp's rows are equal");
        u8 *to = s.x[0][warp] + (piece ^ warp & 7) * 16 + word * 4;
#pragma unroll
        for (int i = 0; i < ROWS / WARPS; i++) {
#pragma unroll
            for (int c = 0; c < Stage::COLS / 64; c++)
                copy4((float *)(to + (c * ROWS + i * WARPS) * 128), (const float *)(from + c * 128), is[c] && i * WARPS + warp < p.rows);
            from += apart;
        }
    }

    DEV void run(const Wide &all, Stage *stages, u64 *full, u64 *empty) {
        Way ahead(all, Stage::COLS, Stage::OUTS), now = ahead;
        point(now.tile());
#pragma unroll 1
        for (int i = 0; i < Stage::STAGES && ahead.left(); i++) { // weights are of no earlier kernel
            weights(stages[i], ahead.k);
            if (ahead.next() && ahead.left()) point(ahead.tile());
        }
        wait_for_earlier();
#pragma unroll 1
        for (int stage = 0, turn = 0; now.left();) {
            if (turn) {
                while (!passed(&empty[stage], turn - 1 & 1)) {
                }
                weights(stages[stage], now.k);
            }
            rows(stages[stage], now.k);
            arriveCopied(&full[stage]);
            if (now.next() && turn && now.left()) point(now.tile());
            if (++stage == Stage::STAGES) {
                stage = 0;
                turn++;
                if (turn == 1 && now.left()) point(now.tile());
            }
        }
        await<0>(); // nothing of a thread that has ended is under way
    }
};

// WideBlock is a thread of those that multiply. GROUPS is the groups of scales that a
// warp's columns of a step lie in.
template <int DTYPE, int ROWS, int GROUPS, int HALVES> struct WideBlock {
    typedef WideStage<DTYPE, ROWS, GROUPS, HALVES> Stage;
    static constexpr int OUTS = Stage::OUTS, LOADS = Stage::LOADS;
    static constexpr int NT = ROWS / 8, PIECES = 2 * NT / HALVES, BLOCKS = Stage::OWN / 32, PER = BLOCKS / GROUPS;

    int g, t, half, place;                      // place: of the warp's first 16 outputs in the tile; the others are 4 · 16 on
    u32 mask = 0x000f000fu, with = 0x43004300u; // of int4: 128 + code has the code in its last bits
    float sum[2][NT][4];

    DEV WideBlock() {
        int warp = threadIdx.x >> 5;
        g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
        half = HALVES == 2 ? warp >> 2 : 0;
        place = HALVES == 2 ? warp & 3 : (warp >> 2) * 8 + (warp & 3);
        inRegisters(mask, with);
        clear();
    }
    DEV void clear() {
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[0][n][i] = sum[1][n][i] = 0;
    }

    // weights decodes part j of a thread's 16 bytes. For int4 it is decode with constants that
    // stay in registers, which the compiler would else copy for each use.
    DEV void weights(const uint4 &c, int j, u32 *to) {
        uint2 w = part<DTYPE>(c, j);
        if (DTYPE == I4) {
#pragma unroll
            for (int i = 0; i < 4; i++) to[i] = fma2(and_or(w.x >> (4 * i), mask, with), 0x3f803f80u, 0xc308c308u);
        } else {
            decode<DTYPE>(w, to);
        }
    }

    // begin begins the products of the first or the second 16 outputs and the columns of
    // group f. They are in d later.
    DEV void begin(const Stage &s, float (*d)[4], int second, int f) {
        const u8 *x = s.x[half * (Stage::OWN / 64)][0];
        uint4 c[2];
#pragma unroll
        for (int k = 0; k < PER; k++) {
            int j = f * PER + k, load = LOADS == 1 ? 0 : j / 2;
            if (k % 2 == 0)
#pragma unroll
                for (int r = 0; r < 2; r++) c[r] = loadShared(s.codes[2 * (place + 4 * second) + r][half * LOADS + load][g] + t * 16);
            const u8 *at = x + j / 2 * ROWS * 128 + j % 2 * 64;
            u32 a[4], b[4];
            weights(c[0], LOADS == 1 ? j : j % 2, a);
            weights(c[1], LOADS == 1 ? j : j % 2, b);
            beginFour();
            mmaFour<ROWS>(d, a[0], b[0], a[1], b[1], at, k > 0);
            mmaFour<ROWS>(d, a[2], b[2], a[3], b[3], at + 32, true);
        }
        endFour();
    }

    // add adds them, times the outputs' scales.
    DEV void add(const Stage &s, float (*d)[4], int second, int f) {
        const float(*scales)[TOGETHER] = s.scales[half][f] + 2 * (place + 4 * second);
        float a = scales[0][g], b = scales[1][g];
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[second][n][i] += d[n][i] * (i < 2 ? a : b);
    }

    // multiply adds a step's products to sum. The second 16 outputs' weights are decoded while
    // the first ones are multiplied.
    DEV void multiply(const Stage &s) {
#pragma unroll
        for (int f = 0; f < GROUPS; f++) {
            float d[NT][4], e[NT][4];
            begin(s, d, 0, f);
            begin(s, e, 1, f);
            awaitFour<ROWS, 1>(d);
            add(s, d, 0, f);
            awaitFour<ROWS, 0>(e);
            add(s, e, 1, f);
        }
    }

    // join gives the thread's sums over all columns of the step's halves: of both times 16
    // outputs, or, with two halves, of the half'th. swap is memory that no other needs.
    DEV void join(float4 (*swap)[THREADS], float4 (&own)[PIECES]) {
        if constexpr (HALVES == 1) {
#pragma unroll
            for (int i = 0; i < PIECES; i++) own[i] = chosen(0, i / NT, i % NT);
        } else {
            someMeet<THREADS>();
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                swap[i][threadIdx.x ^ THREADS / 2] = chosen(half, 1, i);
                own[i] = chosen(half, 0, i);
            }
            someMeet<THREADS>();
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                float4 v = swap[i][threadIdx.x];
                own[i] = make_float4(own[i].x + v.x, own[i].y + v.y, own[i].z + v.z, own[i].w + v.w);
            }
        }
    }
    // chosen is sum[turned ^ second][n], of which turned is known late.
    DEV float4 chosen(int turned, int second, int n) const {
        const float *a = sum[second][n], *b = sum[second ^ 1][n];
        return make_float4(turned ? b[0] : a[0], turned ? b[1] : a[1], turned ? b[2] : a[2], turned ? b[3] : a[3]);
    }

    // emitAll stores what join gave. It is long, so that its sums come from memory, some at a
    // time; at first they lie where a stage was that nobody reads any longer.
    DEV void emitAll(const Output &o, int rows, int tile, const float4 (&own)[PIECES], float4 (*kept)[THREADS]) {
#pragma unroll
        for (int second = 0; second < PIECES / NT; second++) {
            int at = tile * (OUTS / 16) + place + 4 * (HALVES == 2 ? half : second);
#pragma unroll
            for (int n = 0; n < NT; n++) kept[n][threadIdx.x] = own[second * NT + n];
            if (at * 16 >= o.out) continue;
            if (o.mode == ROTARY) {
#pragma unroll 1
                for (int n = 0; n < NT; n += 4) emitRotary(o, rows, at, n, kept + n);
                continue;
            }
#pragma unroll 2
            for (int n = 0; n < NT; n++) {
                float4 v = kept[n][threadIdx.x];
                int m = n * 8 + t * 2;
                if (m < rows) emitSimple(o, at, m, v.x, v.z);
                if (m + 1 < rows) emitSimple(o, at, m + 1, v.y, v.w);
            }
        }
    }
    // emitRotary is for four sums, whose angles and slots are asked for together.
    DEV void emitRotary(const Output &o, int rows, int at, int first, const float4 (*kept)[THREADS]) {
        Early e[4][2];
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) e[n][i] = early(o, at, g, min((first + n) * 8 + t * 2 + i, rows - 1));
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float4 v = kept[n][threadIdx.x];
            int m = (first + n) * 8 + t * 2;
            if (m < rows) emit(o, e[n][0], at, g, m, v.x, v.z);
            if (m + 1 < rows) emit(o, e[n][1], at, g, m + 1, v.y, v.w);
        }
    }
    DEV void emitSimple(const Output &o, int at, int m, float a, float b) {
        if (o.mode == GATED)
            emitGated(o, at, g, m, a, b);
        else
            emitPlain(o, at, g, m, a, b);
    }
};

// gather leaves a unit's sums to the last block that has a part of the tile. That one has
// the sums of all of them then; the others are told that they are done.
template <int PIECES> DEV bool gather(const Wide &p, int unit, float4 (&own)[PIECES]) {
    __shared__ bool last;
    int tile = unit / p.parts;
    float4 *to = p.partial + (size_t)unit * PIECES * THREADS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PIECES; i++) to[i * THREADS] = own[i];
    __threadfence();
    someMeet<THREADS>();
    if (threadIdx.x == 0) last = atomicAdd(p.arrived + tile, 1) == p.parts - 1;
    someMeet<THREADS>();
    if (!last) return false;
    __threadfence();
    if (threadIdx.x == 0) p.arrived[tile] = 0;
    const float4 *from = p.partial + (size_t)tile * p.parts * PIECES * THREADS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PIECES; i++) own[i] = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int k = 0; k < p.parts; k++)
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            float4 v = __ldcg(from + (k * PIECES + i) * THREADS);
            own[i] = make_float4(own[i].x + v.x, own[i].y + v.y, own[i].z + v.z, own[i].w + v.w);
        }
    return true;
}

template <int DTYPE, int ROWS, int GROUPS, int HALVES> DEV void wide(const Wide &p) {
    typedef WideBlock<DTYPE, ROWS, GROUPS, HALVES> Own;
    typedef typename Own::Stage Stage;
    extern __shared__ uint4 memory[];
    __shared__ u64 full[Stage::STAGES], empty[Stage::STAGES];
    Stage *stages = (Stage *)((u8 *)memory + (1024 - (size_t)memory % 1024) % 1024);
    static_assert(sizeof(Stage) % 1024 == 0, "rows lie on multiples of 1,024");
    static_assert(Own::NT * THREADS * 16 <= sizeof stages->x + sizeof stages->codes, "sums lie where a stage was");
    let_next_begin();
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stage::STAGES; i++) {
            makeBarrier(&full[i], BRINGERS);
            makeBarrier(&empty[i], THREADS / 32);
        }
        barriersMade();
    }
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        fewerRegisters<40>();
        Bringer<Stage, ROWS, GROUPS, HALVES>(p.q).run(p, stages, full, empty);
        return;
    }
    moreRegisters<216>();
    wait_for_earlier();
    Own own;
    Way now(p, Stage::COLS, Stage::OUTS);
    int stage = 0, turn = 0;
#pragma unroll 1
    while (now.left()) {
        while (!passed(&full[stage], turn)) {
        }
        shareWithFour();
        own.multiply(stages[stage]);
        int unit = now.unit;
        if (now.next()) {
            float4 sums[Own::PIECES], (*memory)[THREADS] = (float4(*)[THREADS]) & stages[stage];
            own.join(memory, sums);
            own.clear();
            if (p.parts == 1 || gather(p, unit, sums)) {
                someMeet<THREADS>(); // nobody reads the stage any longer
                own.emitAll(p.q.o, p.q.rows, unit / p.parts, sums, memory);
            }
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(&empty[stage]);
        if (++stage == Stage::STAGES) {
            stage = 0;
            turn ^= 1;
        }
    }
}

#define WIDE(name, dtype, rows, groups, halves) \
    extern "C" __global__ void __launch_bounds__(THREADS + BRINGERS, 1) name(const Wide p) { wide<dtype, rows, groups, halves>(p); }
