// Products of 17 to 64 rows with float8 weights, in groups of a multiple of 128 columns.
#ifdef FOUR_WARPS
WIDE(wide_f8_32_1_1, F8E4M3, 32, 1, 1)
WIDE(wide_f8_32_1_2, F8E4M3, 32, 1, 2)
WIDE(wide_f8_64_1_1, F8E4M3, 64, 1, 1)
WIDE(wide_f8_64_1_2, F8E4M3, 64, 1, 2)
#endif
