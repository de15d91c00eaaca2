/* The kernels' gradient by Winograd's tiles: dot products of all pairs of channels at the 16 points. Included by
   convolve_passes.h behind convolve_winograd.h. */

/* The sums over the lanes of LANES vectors, as one vector: neighbours are added until each vector is one number. */
ALWAYS VECTOR NAME(sum_lanes)(VECTOR *each)
{
#if SIZE(REAL) == 4
    VECTOR two[4], four[2];
    for (int i = 0; i < 4; i++)
        two[i] = __builtin_shufflevector(each[2 * i], each[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                 __builtin_shufflevector(each[2 * i], each[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    for (int i = 0; i < 2; i++)
        four[i] = __builtin_shufflevector(two[2 * i], two[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                  __builtin_shufflevector(two[2 * i], two[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
#else
    VECTOR two[2];
    for (int i = 0; i < 2; i++)
        two[i] = __builtin_shufflevector(each[2 * i], each[2 * i + 1], 0, 4, 2, 6) +
                 __builtin_shufflevector(each[2 * i], each[2 * i + 1], 1, 5, 3, 7);
    return __builtin_shufflevector(two[0], two[1], 0, 1, 4, 5) + __builtin_shufflevector(two[0], two[1], 2, 3, 6, 7);
#endif
}

/* sums[i * in + j] += the dot product of the i-th run of gradients with the j-th run of values. */
ALWAYS void NAME(pair_tile)(const int m, const int n, const struct tiles *t, int64_t length, const REAL *gradient,
                            const REAL *values, REAL *sums)
{
    VECTOR totals[24];
    REAL summed[24];
#pragma GCC unroll 24
    for (int k = 0; k < 24; k++)
        totals[k] = (VECTOR){0};
    for (int64_t at = 0; at < length; at += LANES) {
        VECTOR own[4];
#pragma GCC unroll 4
        for (int i = 0; i < m; i++)
            own[i] = *(const VECTOR *)(gradient + i * t->span + at);
#pragma GCC unroll 6
        for (int j = 0; j < n; j++) {
            const VECTOR seen = *(const VECTOR *)(values + j * t->span + at);
#pragma GCC unroll 4
            for (int i = 0; i < m; i++)
                totals[i * n + j] += own[i] * seen;
        }
    }
#pragma GCC unroll 6
    for (int k = 0; k < m * n; k += (int)LANES)
        *(VECTOR *)(summed + k) = NAME(sum_lanes)(totals + k);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            sums[i * t->in + j] += summed[i * n + j];
}

static void NAME(pairs)(int m, int n, const struct tiles *t, int64_t length, const REAL *gradient, const REAL *values,
                        REAL *sums)
{
#define CASE(M, N) case 8 * M + N: NAME(pair_tile)(M, N, t, length, gradient, values, sums); break;
    switch (8 * m + n) {
        CASE(1, 1) CASE(1, 2) CASE(1, 3)
        CASE(2, 1) CASE(2, 2) CASE(2, 3)
        CASE(3, 1) CASE(3, 2) CASE(3, 3)
        CASE(4, 1) CASE(4, 2) CASE(4, 3)
#ifdef LONG_VECTORS
        CASE(1, 4) CASE(1, 5) CASE(1, 6)
        CASE(2, 4) CASE(2, 5) CASE(2, 6)
        CASE(3, 4) CASE(3, 5) CASE(3, 6)
        CASE(4, 4) CASE(4, 5) CASE(4, 6)
#endif
    }
#undef CASE
}

/* G' p G of all kernels, from their 16 points. */
static void NAME(gather_kernels)(const struct tiles *t, const REAL *points, REAL *of_weight)
{
    for (int64_t from = 0; from < t->in * t->out; from += PIECE) {
        REAL taps[9][PIECE];
        for (int64_t at = 0; at < PIECE; at += WIDE_LANES) {
            WIDE down[3][4];
            for (int j = 0; j < 4; j++) {
                const REAL *p = points + j * t->kernels + from + at;
                const WIDE p1 = WIDE_READ(p + 4 * t->kernels), p2 = WIDE_READ(p + 8 * t->kernels);
                down[0][j] = WIDE_READ(p) + (p1 + p2) * (REAL)0.5;
                down[1][j] = (p1 - p2) * (REAL)0.5;
                down[2][j] = (p1 + p2) * (REAL)0.5 + WIDE_READ(p + 12 * t->kernels);
            }
            for (int i = 0; i < 3; i++) {
                const WIDE both = (down[i][1] + down[i][2]) * (REAL)0.5;
                WIDE_AT(taps[3 * i] + at) = down[i][0] + both;
                WIDE_AT(taps[3 * i + 1] + at) = (down[i][1] - down[i][2]) * (REAL)0.5;
                WIDE_AT(taps[3 * i + 2] + at) = both + down[i][3];
            }
        }
        for (int64_t at = 0; at < PIECE && from + at < t->in * t->out; at++)
            for (int tap = 0; tap < 9; tap++)
                of_weight[(from + at) * 9 + tap] = taps[tap][at];
    }
}

/* The kernels' gradient of one client from its framed values and gradient. */
static void NAME(tiles_weight_gradient)(const struct tiles *t, const REAL *frame, const REAL *framed_gradient,
                                        REAL *sums, REAL *scratch, REAL *of_weight)
{
    REAL *values = scratch, *gradient = values + 16 * t->in * t->span;
    memset(sums, 0, (size_t)(16 * t->kernels) * sizeof(REAL));
    for (struct block b = first_block(t); b.rows > 0; next_block(t, &b)) {
        const int64_t length = b.rows * b.tiles * t->batch, whole = rounded(length);
        NAME(transform_block)(t, &b, frame, t->in, 0, values);
        NAME(transform_block)(t, &b, framed_gradient, t->out, 1, gradient);
        for (int64_t run = 0; run < 16 * t->in; run++)
            memset(values + run * t->span + length, 0, (size_t)(whole - length) * sizeof(REAL));
        for (int64_t run = 0; run < 16 * t->out; run++)
            memset(gradient + run * t->span + length, 0, (size_t)(whole - length) * sizeof(REAL));
        for (int64_t point = 0; point < 16; point++)
            for (int64_t out = 0; out < t->out; out += 4)
                for (int64_t in = 0; in < t->in; in += NAME(dots_at_once))
                    NAME(pairs)((int)(t->out - out < 4 ? t->out - out : 4),
                                (int)(t->in - in < NAME(dots_at_once) ? t->in - in : NAME(dots_at_once)), t, whole,
                                gradient + (point * t->out + out) * t->span, values + (point * t->in + in) * t->span,
                                sums + point * t->kernels + out * t->in + in);
    }
    NAME(gather_kernels)(t, sums, of_weight);
}

#undef WIDE
#undef WIDE_LANES
#undef WIDE_AT
#undef WIDE_READ
