// Weights of codes, and their decoding.
//
// A row of codes is stored as tiles of 64 bytes: 128 columns of int4, 64 of the
// others; columns that fill up the last tile are zero. A tile's bytes lie so
// that each of four threads has its part of every 32 columns, 8 neighbours, in
// 16 neighbouring bytes. The same tile of 8 rows lies together, and so do their
// scales, so that a warp reads them in whole lines. See pack in weight.go.

// TOGETHER is the rows whose tiles lie together.
#define TOGETHER 8

struct Quant {
    const u8 *codes;     // [out / 8][tiles][8][64]
    const float *scales; // [out / 8][groups][8]
    View x;
    int in, rows, dtype, group, groups, tiles;
    int shift; // tiles of a group, as a power of two
    int turns; // times 16 outputs of a block
    Divisors d;
    Output o;
};

// tileAt is where a tile of a row begins, and scaleAt where its scale of a group is.
DEV const u8 *tileAt(const Quant &p, int row, int tile) {
    u32 r = row;
    return p.codes + (((size_t)(r / TOGETHER) * p.tiles + tile) * TOGETHER + r % TOGETHER) * 64;
}
DEV const float *scaleAt(const Quant &p, int row, int group) {
    u32 r = row;
    return p.scales + ((size_t)(r / TOGETHER) * p.groups + group) * TOGETHER + r % TOGETHER;
}

// The codes of 8 columns as bfloat16 pairs, exactly.
template <int DTYPE> DEV void decode(uint2 w, u32 *v) {
    if (DTYPE == I4) {
#pragma unroll
        for (int i = 0; i < 4; i++) // 128 + code has the code in its last bits
            v[i] = fma2((w.x >> (4 * i) & 0x000f000fu) | 0x43004300u, 0x3f803f80u, 0xc308c308u);
    } else if (DTYPE == F8E4M3) {
#pragma unroll
        for (int i = 0; i < 4; i++) { // a word has columns 2, 0, 3, 1 of its four
            u32 b = (i < 2 ? w.x : w.y) << (i & 1) * 8;
            v[i] = fma2((b & 0x80008000u) | (b & 0x7f007f00u) >> 4, 0x7b807b80u, 0x80008000u); // · 2^120
        }
    } else {
        u32 word[2] = {w.x ^ 0x80808080u, w.y ^ 0x80808080u};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 u = word[i / 2];
            float a = __uint_as_float(__byte_perm(u, 0x4b000000u, 0x7440 | (i & 1) * 2)) - 8388736.f;
            float b = __uint_as_float(__byte_perm(u, 0x4b000000u, 0x7441 | (i & 1) * 2)) - 8388736.f;
            v[i] = pack(a, b);
        }
    }
}

// part is a thread's bytes of 32-column block j of a tile.
template <int DTYPE> DEV uint2 part(const uint4 &w, int j) {
    if (DTYPE == I4) return make_uint2(j == 0 ? w.x : j == 1 ? w.y : j == 2 ? w.z : w.w, 0);
    return j == 0 ? make_uint2(w.x, w.y) : make_uint2(w.z, w.w);
}
