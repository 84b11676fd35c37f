// Products of 33 to 64 rows with int4 weights.
#ifdef FOUR_WARPS
WIDE(wide_i4_64_1_1, I4, 64, 1, 1)
WIDE(wide_i4_64_1_2, I4, 64, 1, 2)
WIDE(wide_i4_64_2_1, I4, 64, 2, 1)
WIDE(wide_i4_64_2_2, I4, 64, 2, 2)
WIDE(wide_i4_64_4_1, I4, 64, 4, 1)
WIDE(wide_i4_64_4_2, I4, 64, 4, 2)
#endif
