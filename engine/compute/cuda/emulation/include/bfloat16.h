// bfloat16 of the emulation's kernels and libraries: one rounding for all of them. No
// other header is needed, since kernels have none.
#pragma once

namespace emulated {
// toBfloat16 rounds to the nearest, ties to even; what is no number becomes the one NaN
// that the GPU's instruction gives.
inline unsigned short toBfloat16(float a) {
    unsigned bits;
    __builtin_memcpy(&bits, &a, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline float fromBfloat16(unsigned short a) {
    unsigned bits = (unsigned)a << 16;
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
}
} // namespace emulated
