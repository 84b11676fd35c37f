// Products of 17 to 32 rows with int4 weights.
#ifdef FOUR_WARPS
WIDE(wide_i4_32_1_1, I4, 32, 1, 1)
WIDE(wide_i4_32_1_2, I4, 32, 1, 2)
WIDE(wide_i4_32_2_1, I4, 32, 2, 1)
WIDE(wide_i4_32_2_2, I4, 32, 2, 2)
WIDE(wide_i4_32_4_1, I4, 32, 4, 1)
WIDE(wide_i4_32_4_2, I4, 32, 4, 2)
#endif
