// Drawing tokens, and finding the highest logits: what compute.Draw says, in whole
// numbers, so that the order of a sum does not matter.

enum { OCTAVES = 44, MASS_BITS = 42, BIN_BITS = 27, BINS = OCTAVES << (32 - BIN_BITS), NO_BIN = 0xffff };
// Tokens of a bin that a block puts in order, and parts of a bin where there are
// more, of which one is looked at as closely again, until its tokens are equal.
enum { LISTED = 1536, PART_BITS = 10 };
enum { GREEDY = 1, SEARCH = 2, BINNED = 4 }; // Job.flags
enum { REPEATS = 1, NEVER = 2 };             // Edit.flags
enum { MAX_TOPS = 20 };
// The order of minus infinity.
#define NO_VALUE 0x007fffffu

struct Edit {
    int id;
    float add, minus;
    u32 flags;
    float before; // the logit, while it is changed
};

// Job is one row to draw from, or to find the highest logits of.
struct Job {
    u64 factor, least, uniform, topP; // the decay's factor; a weight; shares
    const u64 *allowed;               // a bit a token; null: all
    Edit *edits;
    int shift, row, edited, topK, tops, flags, out;
    float repetition;
};

struct Result {
    u64 mass;
    int token; // −1: none, or the host must see for itself
    float logit;
    int tops; // −1: the same
    float highest;
    int ids[MAX_TOPS];
    float logits[MAX_TOPS];
};

struct Draws {
    const Job *jobs;
    View x;
    u64 *best;    // by job: zero between launches
    u32 *arrived; // the same
    u64 *top;     // by job: the key of its highest logit, if it is a SEARCH
    const u64 *found; // by row: the keys that argmax found
    u64 *sums;        // by job and part of the columns
    u64 *masses;      // by job and bin: zero between launches
    u32 *counts;      // the same
    u16 *bins;        // by job and column
    Result *results;  // in the host's memory
    int *tokens;      // by result: its token, for take
    const u32 *points; // compute.DecayPoints
    int cols, chunk, parts;
    int stride; // of bins: a multiple of 8, as that of x
};

// orderOf is above another's where the value is higher, or equal and more to the
// left; all ones for what is no number or infinite.
DEV u64 orderOf(float x, int j) {
    u32 bits = __float_as_uint(x + 0.f); // no negative zero
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) return ~0ull;
    return (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | (u32)~j;
}
DEV float valueOf(u64 order) {
    u32 o = order >> 32;
    return __uint_as_float(o & 0x80000000u ? o & 0x7fffffffu : ~o);
}
DEV bool usable(u64 order) { return order != ~0ull && (u32)(order >> 32) > NO_VALUE; }
DEV u64 topOf(const Draws &p, int i) { return p.jobs[i].flags & SEARCH ? p.top[i] : p.found[p.jobs[i].row]; }

// octaves is compute.Decay.At, mass compute.Mass.
DEV u64 octaves(u64 factor, int shift, float distance) {
    u32 b = __float_as_uint(distance);
    int exponent = b >> 23, by = shift - exponent;
    if (exponent == 0 || by >= 64) return 0;
    return by <= 0 ? ~0ull : (u64)(b & 0x7fffffu | 0x800000u) * factor >> by;
}
DEV u64 mass(const u32 *points, u64 y) {
    u32 octave = min(y >> 32, (u64)OCTAVES);
    if (octave == OCTAVES) return 0;
    u32 i = (u32)y >> 22, part = (u32)y & ((1u << 22) - 1), at = points[i], shift = 53 - MASS_BITS + octave;
    return (((u64)at << 22) - (u64)(at - points[i + 1]) * part + (1ull << (shift - 1))) >> shift;
}

DEV u64 partOf(u64 share, u64 mass) { return __umul64hi(share, mass) << 11 | share * mass >> 53; }
DEV u64 needed(u64 share, u64 mass) {
    u64 n = partOf(share, mass) + (share * mass << 11 != 0);
    return n ? n : 1;
}

DEV bool isAllowed(const Job &job, int j) { return !job.allowed || job.allowed[j >> 6] >> (j & 63) & 1; }

// draw_edit changes the jobs' logits, and keeps what they were. A block a job.
extern "C" __global__ void __launch_bounds__(256) draw_edit(const Draws p) {
    let_next_begin();
    wait_for_earlier();
    const Job &job = p.jobs[blockIdx.x];
    for (int i = threadIdx.x; i < job.edited; i += 256) {
        Edit &e = job.edits[i];
        float *at = (float *)p.x.data + (size_t)job.row * p.x.stride + e.id, v = *at;
        e.before = v;
        if (orderOf(v, 0) == ~0ull) continue; // whoever looks at the row shall see it
        v = __fadd_rn(v, e.add);
        if (e.flags & REPEATS) v = v > 0 ? __fdiv_rn(v, job.repetition) : __fmul_rn(v, job.repetition);
        v = __fsub_rn(v, e.minus);
        *at = e.flags & NEVER ? __uint_as_float(0xff800000u) : v;
    }
}

// draw_top finds the highest logit that a SEARCH may draw. Blocks: jobs × parts.
extern "C" __global__ void __launch_bounds__(256) draw_top(const Draws p) {
    __shared__ u64 part[8];
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x;
    const Job &job = p.jobs[i];
    if (!(job.flags & SEARCH)) return;
    u64 best = 0;
    for (int j = blockIdx.y * 256 + threadIdx.x; j < p.cols; j += 256 * gridDim.y) {
        u64 key = orderOf(load(p.x, job.row, j), j);
        if (key != ~0ull && !isAllowed(job, j)) continue;
        best = max(best, key);
    }
    for (int o = 16; o; o >>= 1) best = max(best, __shfl_xor_sync(~0u, best, o));
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < 8; w++) best = max(best, part[w]);
    atomicMax(p.best + i, best);
    __threadfence();
    if (atomicAdd(p.arrived + i, 1) != gridDim.y - 1) return;
    __threadfence();
    p.top[i] = atomicExch(p.best + i, 0ull);
    p.arrived[i] = 0;
}

// draw_weigh sums up the weights of a part of the columns; where the job is
// BINNED also by bins, and says in which one each column is. Blocks: jobs × parts.
extern "C" __global__ void __launch_bounds__(256) draw_weigh(const Draws p) {
    __shared__ u32 points[1025];
    __shared__ u64 masses[BINS], warps[8];
    __shared__ u32 counts[BINS];
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x;
    const Job job = p.jobs[i];
    u64 top = topOf(p, i);
    if (!usable(top) || job.flags & GREEDY) return;
    bool binned = job.flags & BINNED;
    for (int k = threadIdx.x; k < 1025; k += 256) points[k] = p.points[k];
    for (int k = threadIdx.x; binned && k < BINS; k += 256) masses[k] = 0, counts[k] = 0;
    __syncthreads();
    float highest = valueOf(top);
    u64 sum = 0;
    int from = blockIdx.y * p.chunk, to = min(from + p.chunk, p.stride);
    for (int j = from + 4 * threadIdx.x; j < to; j += 4 * 256) {
        float4 x = load4(p.x, job.row, j);
        float v[4] = {x.x, x.y, x.z, x.w};
        u64 allowed = job.allowed && j < p.cols ? job.allowed[j >> 6] >> (j & 63) : ~0ull;
        u16 bin[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            bin[u] = NO_BIN;
            if (j + u >= p.cols || !(allowed >> u & 1)) continue;
            u64 y = octaves(job.factor, job.shift, __fsub_rn(highest, v[u])), w = mass(points, y);
            if (w < job.least) continue;
            sum += w;
            if (!binned) continue;
            bin[u] = y >> BIN_BITS;
            atomicAdd(masses + bin[u], w);
            atomicAdd(counts + bin[u], 1);
        }
        if (binned) *(ushort4 *)(p.bins + (size_t)i * p.stride + j) = make_ushort4(bin[0], bin[1], bin[2], bin[3]);
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = sum;
    __syncthreads();
    for (int k = threadIdx.x; binned && k < BINS; k += 256) {
        if (counts[k] == 0) continue;
        atomicAdd(p.masses + (size_t)i * BINS + k, masses[k]);
        atomicAdd(p.counts + (size_t)i * BINS + k, counts[k]);
    }
    if (threadIdx.x != 0) return;
    for (int w = 1; w < 8; w++) sum += warps[w];
    p.sums[i * p.parts + blockIdx.y] = sum;
}

// Picker is what a block shares that decides for a row. Its threads are 1,024.
struct Picker {
    u32 points[1025];
    u64 keys[LISTED], weights[LISTED]; // of tokens; or masses and counts of a bin's parts
    u64 warps[32];
    // The last token kept: its key and bin, and the mass and number of all that
    // are; ALL where that is every one, MANY where it cannot be told.
    u64 key, mass;
    int bin, state;
    // The tokens looked at are those of whose octaves this is what stands before the
    // last bits of them: a bin, or a part of it.
    u64 prefix;
    u64 beforeMass, beforeCount; // of the bins before, then of the parts
    u32 members, listed;
    u64 total, count;
    int found;
};
enum { ALL, CUT, MANY };

// sumBefore is the sum of x over the threads before this one; all is over all.
DEV u64 sumBefore(u64 *warps, u64 x, u64 &all) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u64 v = x;
    for (int o = 1; o < 32; o *= 2) {
        u64 n = __shfl_up_sync(~0u, v, o);
        if (lane >= o) v += n;
    }
    __syncthreads();
    if (lane == 31) warps[warp] = v;
    __syncthreads();
    u64 before = 0;
    all = 0;
    for (int w = 0; w < 32; w++) {
        if (w == warp) before = all;
        all += warps[w];
    }
    return before + v - x;
}

// Column is a token that has a weight.
struct Column {
    u64 key, y;
};
DEV Column column(const Draws &p, const Job &job, float highest, int j) {
    float v = load(p.x, job.row, j);
    return {orderOf(v, j), octaves(job.factor, job.shift, __fsub_rn(highest, v))};
}

// eachOf calls f for the columns that are in the bins [from, to] of job i.
template <typename F> DEV void eachOf(const Draws &p, int i, int from, int to, F f) {
    const u16 *bins = p.bins + (size_t)i * p.stride;
    for (int j = 8 * threadIdx.x; j < p.stride; j += 8 * 1024) {
        uint4 b = *(const uint4 *)(bins + j);
        u32 w[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int u = 0; u < 8; u++) {
            int bin = w[u / 2] >> (u & 1) * 16 & 0xffff;
            if (bin >= from && bin <= to) f(j + u);
        }
    }
}

// cut finds the last token that is kept: the first one with which their number, or
// their mass, reaches limit.
DEV void cut(const Draws &p, const Job &job, int i, float highest, Picker &s, bool byMass, u64 limit) {
    int t = threadIdx.x;
    u64 m[2] = {}, c[2] = {}, all;
    for (int u = 0; u < 2; u++) {
        if (2 * t + u < BINS) {
            m[u] = p.masses[(size_t)i * BINS + 2 * t + u];
            c[u] = p.counts[(size_t)i * BINS + 2 * t + u];
        }
    }
    u64 masses = sumBefore(s.warps, m[0] + m[1], all);
    if (t == 0) s.total = all, s.state = ALL, s.listed = 0;
    u64 counts = sumBefore(s.warps, c[0] + c[1], all);
    if (t == 0) s.count = all;
    __syncthreads();
    for (int u = 0; u < 2; u++) {
        u64 before = byMass ? masses : counts, own = byMass ? m[u] : c[u];
        if (before < limit && limit <= before + own) s.state = CUT, s.bin = s.prefix = 2 * t + u, s.members = c[u], s.beforeMass = masses, s.beforeCount = counts;
        masses += m[u];
        counts += c[u];
    }
    __syncthreads();
    if (s.state == ALL) return;
    int last = BIN_BITS; // of the octaves, that do not matter
    while (s.members > LISTED) {
        if (last == 0) {
            if (t == 0) s.state = MANY;
            __syncthreads();
            return;
        }
        u64 prefix = s.prefix;
        int bits = min(last, PART_BITS), rest = last - bits;
        s.keys[t] = 0, s.weights[t] = 0;
        __syncthreads();
        eachOf(p, i, s.bin, s.bin, [&](int j) {
            u64 y = column(p, job, highest, j).y;
            if (y >> last != prefix) return;
            int part = y >> rest & ((1 << bits) - 1);
            atomicAdd(s.keys + part, mass(s.points, y));
            atomicAdd(s.weights + part, 1ull);
        });
        __syncthreads();
        u64 ownMass = s.keys[t], ownCount = s.weights[t];
        masses = s.beforeMass + sumBefore(s.warps, ownMass, all);
        counts = s.beforeCount + sumBefore(s.warps, ownCount, all);
        __syncthreads();
        u64 before = byMass ? masses : counts, own = byMass ? ownMass : ownCount;
        if (before < limit && limit <= before + own) s.prefix = prefix << bits | t, s.members = ownCount, s.beforeMass = masses, s.beforeCount = counts;
        __syncthreads();
        last = rest;
    }
    eachOf(p, i, s.bin, s.bin, [&](int j) {
        Column a = column(p, job, highest, j);
        if (a.y >> last != s.prefix) return;
        u32 at = atomicAdd(&s.listed, 1);
        s.keys[at] = a.key;
        s.weights[at] = mass(s.points, a.y);
    });
    __syncthreads();
    for (int k = t; k < s.listed; k += 1024) {
        u64 key = s.keys[k], own = s.weights[k];
        masses = s.beforeMass, counts = s.beforeCount;
        for (int l = 0; l < s.listed; l++) {
            if (s.keys[l] > key) masses += s.weights[l], counts++;
        }
        u64 before = byMass ? masses : counts;
        if (before < limit && limit <= before + (byMass ? own : 1)) s.key = key, s.mass = masses + own;
    }
    __syncthreads();
}

// forget zeroes the bins of job i.
DEV void forget(const Draws &p, int i) {
    for (int k = threadIdx.x; k < BINS; k += 1024) p.masses[(size_t)i * BINS + k] = 0, p.counts[(size_t)i * BINS + k] = 0;
}

// Range is where a token is looked for: columns [from, to) of which those are
// kept that have a weight, and, if they are binned, lie before the last one.
struct Range {
    int from, to;
    bool binned;
    int bin;
    u64 key;
};

// weights8 are the weights of the kept ones of 8 columns; the result is their sum.
DEV u64 weights8(const Draws &p, const Job &job, int i, float highest, const Picker &s, const Range &r, int j, u64 *w) {
    u64 sum = 0;
    uint4 b = {};
    if (r.binned) b = *(const uint4 *)(p.bins + (size_t)i * p.stride + j);
    u32 bins[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int u = 0; u < 8; u++) {
        int bin = bins[u / 2] >> (u & 1) * 16 & 0xffff;
        w[u] = 0;
        if (j + u >= p.cols || (r.binned ? bin > r.bin : !isAllowed(job, j + u))) continue;
        Column c = column(p, job, highest, j + u);
        u64 own = mass(s.points, c.y);
        if (own < job.least || (r.binned && bin == r.bin && c.key < r.key)) continue;
        w[u] = own;
        sum += own;
    }
    return sum;
}

// find is the column at which the sum of the kept weights passes at.
DEV int find(const Draws &p, const Job &job, int i, float highest, Picker &s, const Range &r, u64 at) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, per = ((r.to - r.from + 31) / 32 + 7) / 8 * 8;
    int from = r.from + warp * per, to = min(from + per, r.to);
    u64 w[8], sum = 0, all;
    for (int j = from + 8 * lane; j < to; j += 256) sum += weights8(p, job, i, highest, s, r, j, w);
    u64 before = sumBefore(s.warps, sum, all);
    if (threadIdx.x == 0) s.found = -1;
    // The warp's sum before its first lane's, and after its last one's.
    u64 begin = __shfl_sync(~0u, before, 0), end = __shfl_sync(~0u, before + sum, 31);
    __syncthreads();
    if (begin <= at && at < end) {
        for (int k = from; k < to; k += 256) {
            int j = k + 8 * lane;
            u64 own = j < to ? weights8(p, job, i, highest, s, r, j, w) : 0, v = own;
            for (int o = 1; o < 32; o *= 2) {
                u64 n = __shfl_up_sync(~0u, v, o);
                if (lane >= o) v += n;
            }
            u64 here = begin + v - own;
            if (here <= at && at < here + own) {
                for (int u = 0; u < 8; u++) {
                    if (w[u] > at - here) {
                        s.found = j + u;
                        break;
                    }
                    here += w[u];
                }
            }
            begin += __shfl_sync(~0u, v, 31);
            if (begin > at) break;
        }
    }
    __syncthreads();
    return s.found;
}

// pick is the token that is drawn.
DEV int pick(const Draws &p, const Job &job, int i, float highest, Picker &s) {
    Range r = {0, p.cols, (job.flags & BINNED) != 0, NO_BIN - 1, 0};
    u64 total = 0;
    if (r.binned) {
        bool cuts = false;
        if (job.topK > 0) {
            cut(p, job, i, highest, s, false, job.topK);
            cuts = s.state == CUT;
        } else
            cut(p, job, i, highest, s, false, ~0ull); // for the sum
        total = cuts ? s.mass : s.total;
        if (cuts) r.bin = s.bin, r.key = s.key;
        if (s.state != MANY && job.topP < 1ull << 53) {
            __syncthreads();
            cut(p, job, i, highest, s, true, needed(job.topP, total));
            total = s.mass, r.bin = s.bin, r.key = s.key;
        }
        bool many = s.state == MANY;
        __syncthreads();
        forget(p, i);
        if (many) return -1;
        return find(p, job, i, highest, s, r, partOf(job.uniform, total));
    }
    const u64 *sums = p.sums + i * p.parts;
    for (int k = 0; k < p.parts; k++) total += sums[k];
    u64 at = partOf(job.uniform, total);
    int k = 0;
    while (k < p.parts - 1 && at >= sums[k]) at -= sums[k++];
    r.from = k * p.chunk, r.to = min(r.from + p.chunk, p.stride);
    return find(p, job, i, highest, s, r, at);
}

// draw_pick draws the jobs' tokens, and puts their rows back as they were. A
// block a job.
extern "C" __global__ void __launch_bounds__(1024) draw_pick(const Draws p) {
    __shared__ Picker s;
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x, token = -1;
    const Job job = p.jobs[i];
    u64 top = topOf(p, i);
    for (int k = threadIdx.x; k < 1025; k += 1024) s.points[k] = p.points[k];
    __syncthreads();
    if (usable(top)) token = job.flags & GREEDY ? (int)~(u32)top : pick(p, job, i, valueOf(top), s);
    __syncthreads();
    float *row = (float *)p.x.data + (size_t)job.row * p.x.stride;
    for (int k = threadIdx.x; k < job.edited; k += 1024) row[job.edits[k].id] = job.edits[k].before;
    __syncthreads();
    if (threadIdx.x != 0) return;
    p.results[job.out].token = token;
    p.tokens[job.out] = token;
    p.results[job.out].logit = token >= 0 ? row[token] : 0;
}

// draw_tops finds the jobs' highest logits, and their mass. A block a job.
extern "C" __global__ void __launch_bounds__(1024) draw_tops(const Draws p) {
    __shared__ Picker s;
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x, t = threadIdx.x;
    const Job job = p.jobs[i];
    u64 top = topOf(p, i);
    Result &to = p.results[job.out];
    if (!usable(top)) {
        if (t == 0) to.tops = -1;
        return;
    }
    for (int k = t; k < 1025; k += 1024) s.points[k] = p.points[k];
    __syncthreads();
    float highest = valueOf(top);
    cut(p, job, i, highest, s, false, job.tops ? (u64)job.tops : ~0ull);
    __syncthreads();
    bool ok = job.tops == 0 || s.state == CUT;
    if (ok && job.tops > 0) {
        u64 least = s.key;
        __syncthreads();
        if (t == 0) s.listed = 0;
        __syncthreads();
        eachOf(p, i, 0, s.bin, [&](int j) {
            u64 key = orderOf(load(p.x, job.row, j), j);
            if (key >= least) s.keys[atomicAdd(&s.listed, 1)] = key;
        });
        __syncthreads();
        if (t < job.tops) {
            int place = 0;
            for (int l = 0; l < job.tops; l++) place += s.keys[l] > s.keys[t];
            to.ids[place] = (int)~(u32)s.keys[t];
            to.logits[place] = valueOf(s.keys[t]);
        }
    }
    if (t == 0) to.mass = s.total, to.highest = highest, to.tops = ok ? job.tops : -1;
    forget(p, i);
}

struct Take {
    const u64 *found; // of argmax
    const int *drawn; // of draw_pick
    const int *from;
    int *tokens;
    int n;
};

// take makes row i's token that of draw from[i], or the best of row −1 − from[i].
extern "C" __global__ void __launch_bounds__(256) take(const Take p) {
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= p.n) return;
    int from = p.from[i], token;
    if (from >= 0)
        token = p.drawn[from];
    else {
        u64 key = p.found[-1 - from];
        token = usable(key) ? (int)~(u32)key : 0;
    }
    p.tokens[i] = max(token, 0);
}
