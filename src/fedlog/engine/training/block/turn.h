/* Squares of LANES x LANES numbers. No include guard: included for each number type and instruction set. */

/* Turn a square of numbers over: rows[i][j] and rows[j][i] change places. */
ALWAYS void NAME(turn)(VECTOR rows[LANES])
{
    VECTOR pairs[LANES];
#if SIZE(REAL) == 4
    VECTOR fours[LANES];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = __builtin_shufflevector(rows[i], rows[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        pairs[i + 1] = __builtin_shufflevector(rows[i], rows[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const int at = i / 2 * 4 + i % 2;
        fours[at] = __builtin_shufflevector(pairs[at], pairs[at + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        fours[at + 2] = __builtin_shufflevector(pairs[at], pairs[at + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        rows[i] = __builtin_shufflevector(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        rows[i + 4] = __builtin_shufflevector(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#else
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
        pairs[i] = __builtin_shufflevector(rows[i], rows[i + 1], 0, 4, 2, 6);
        pairs[i + 1] = __builtin_shufflevector(rows[i], rows[i + 1], 1, 5, 3, 7);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        rows[i] = __builtin_shufflevector(pairs[i], pairs[i + 2], 0, 1, 4, 5);
        rows[i + 2] = __builtin_shufflevector(pairs[i], pairs[i + 2], 2, 3, 6, 7);
    }
#endif
}
