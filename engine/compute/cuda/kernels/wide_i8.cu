// Products of 17 to 64 rows with int8 weights, in groups of a multiple of 128 columns.
#ifdef FOUR_WARPS
WIDE(wide_i8_32_1_1, I8, 32, 1, 1)
WIDE(wide_i8_32_1_2, I8, 32, 1, 2)
WIDE(wide_i8_64_1_1, I8, 64, 1, 1)
WIDE(wide_i8_64_1_2, I8, 64, 1, 2)
#endif
