/* Pooling with bias and ReLU, and the way back. Included by convolve_passes.h and maps_passes.h, which name the vectors. */

/* The maximum of a pooling window for neighbouring records, plus bias, rectified; `winners` (or NULL) says which place
   of the window reached it first, row by row, or -1 where ReLU stops the gradient. A NaN wins, so that a run that
   diverged stays visible. */
ALWAYS void NAME(pool_vector)(const struct pool_windows *s, const REAL *window, int64_t row_step, REAL bias, REAL *pooled,
                              REAL *winners)
{
    VECTOR best = *(const VECTOR *)window, winner = {0}, place = {0};
    for (int64_t row = 0; row < s->pool_rows; row++)
        for (int64_t column = 0; column < s->pool_columns; column++, place += 1) {
            const VECTOR value = *(const VECTOR *)(window + row * row_step + column * s->batch);
            const NAME(mask) better = ~(value <= best) & (best == best);
            best = CHOOSE(better, value, best);
            winner = CHOOSE(better, place, winner);
        }
    best += bias;
    if (s->rectify) {
        const NAME(mask) stopped = best <= 0;
        best = CHOOSE(stopped, (VECTOR){0}, best);
        winner = CHOOSE(stopped, (VECTOR){0} - 1, winner);
    }
    *(VECTOR *)pooled = best;
    if (winners)
        *(VECTOR *)winners = winner;
}

#if defined(LONG_VECTORS) && SIZE(REAL) == 4
/* All windows of one row, sixteen records at a time, for a pool that the compiler knows; the same as below. */
ALWAYS void NAME(pool_known)(const int rows, const int columns, const int rectify, const int keep, int64_t batch,
                             const REAL *convolved, int64_t row_step, int64_t windows, REAL bias, REAL *pooled,
                             REAL *winners)
{
    const __m512 shift = _mm512_set1_ps(bias), zero = _mm512_setzero_ps();
    for (int64_t window = 0; window < windows; window++, convolved += columns * batch, pooled += batch, winners += batch)
        for (int64_t b = 0; b < batch; b += 16) {
            const __mmask16 own = batch - b >= 16 ? 0xffff : (__mmask16)((1 << (batch - b)) - 1);
            const REAL *first = convolved + b;
            __m512 best = _mm512_maskz_loadu_ps(own, first), winner = zero;
#pragma GCC unroll 3
            for (int place = 1; place < rows * columns; place++) {
                const __m512 value =
                    _mm512_maskz_loadu_ps(own, first + place / columns * row_step + place % columns * batch);
                const __mmask16 better =
                    _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(best, best, _CMP_ORD_Q), value, best, _CMP_NLE_UQ);
                best = _mm512_mask_mov_ps(best, better, value);
                if (keep)
                    winner = _mm512_mask_mov_ps(winner, better, _mm512_set1_ps((REAL)place));
            }
            best = _mm512_add_ps(best, shift);
            if (rectify) {
                const __mmask16 stopped = _mm512_cmp_ps_mask(best, zero, _CMP_LE_OQ);
                best = _mm512_mask_mov_ps(best, stopped, zero);
                if (keep)
                    winner = _mm512_mask_mov_ps(winner, stopped, _mm512_set1_ps(-1));
            }
            _mm512_mask_storeu_ps(pooled + b, own, best);
            if (keep)
                _mm512_mask_storeu_ps(winners + b, own, winner);
        }
}

#define POOL_KNOWN(ROWS, COLUMNS)                                                                                  \
    static void NAME(pool_##ROWS##_##COLUMNS)(int64_t rectify, int64_t batch, const REAL *convolved,               \
                                              int64_t row_step, int64_t windows, REAL bias, REAL *pooled,          \
                                              REAL *winners)                                                       \
    {                                                                                                              \
        if (rectify && winners)                                                                                    \
            NAME(pool_known)(ROWS, COLUMNS, 1, 1, batch, convolved, row_step, windows, bias, pooled, winners);     \
        else if (rectify)                                                                                          \
            NAME(pool_known)(ROWS, COLUMNS, 1, 0, batch, convolved, row_step, windows, bias, pooled, pooled);      \
        else if (winners)                                                                                          \
            NAME(pool_known)(ROWS, COLUMNS, 0, 1, batch, convolved, row_step, windows, bias, pooled, winners);     \
        else                                                                                                       \
            NAME(pool_known)(ROWS, COLUMNS, 0, 0, batch, convolved, row_step, windows, bias, pooled, pooled);      \
    }
POOL_KNOWN(2, 2)
POOL_KNOWN(1, 2)
POOL_KNOWN(1, 4)
#undef POOL_KNOWN

/* The gradient of a pooled row of 2 x 2 windows, brought back to the places that won. */
ALWAYS void NAME(unpool_pairs)(int64_t batch, const REAL *gradient, const REAL *winners, int64_t windows, REAL *spread,
                               int64_t row_step)
{
    for (int64_t window = 0; window < windows; window++, gradient += batch, winners += batch, spread += 2 * batch)
        for (int64_t b = 0; b < batch; b += 16) {
            const __mmask16 own = batch - b >= 16 ? 0xffff : (__mmask16)((1 << (batch - b)) - 1);
            const __m512 value = _mm512_maskz_loadu_ps(own, gradient + b);
            const __m512 won = _mm512_maskz_loadu_ps(own, winners + b);
#pragma GCC unroll 4
            for (int place = 0; place < 4; place++) {
                const __mmask16 here = _mm512_cmp_ps_mask(won, _mm512_set1_ps((REAL)place), _CMP_EQ_OQ);
                _mm512_mask_storeu_ps(spread + b + place / 2 * row_step + place % 2 * batch, own,
                                      _mm512_maskz_mov_ps(here, value));
            }
        }
}
#endif

/* All windows of one row. The last vector of a window begins earlier and repeats a few records; a batch smaller than a
   vector is computed beside its place, with whatever lies behind it in the scratch space. */
static void NAME(pool_row)(const struct pool_windows *s, const REAL *convolved, int64_t row_step, int64_t windows, REAL bias,
                           REAL *pooled, REAL *winners)
{
    const int64_t batch = s->batch, step = s->pool_columns * batch;
#if defined(LONG_VECTORS) && SIZE(REAL) == 4
#define KNOWN(ROWS, COLUMNS)                                                                                       \
    if (s->pool_rows == ROWS && s->pool_columns == COLUMNS) {                                                      \
        NAME(pool_##ROWS##_##COLUMNS)(s->rectify, batch, convolved, row_step, windows, bias, pooled, winners);     \
        return;                                                                                                    \
    }
    KNOWN(2, 2)
    KNOWN(1, 2)
    KNOWN(1, 4)
#undef KNOWN
#endif
    for (int64_t window = 0; window < windows; window++) {
        REAL *best = pooled + window * batch, *won = winners ? winners + window * batch : NULL;
        if (batch < LANES) {
            REAL beside[2][LANES];
            NAME(pool_vector)(s, convolved + window * step, row_step, bias, beside[0], beside[1]);
            memcpy(best, beside[0], (size_t)batch * sizeof(REAL));
            if (won)
                memcpy(won, beside[1], (size_t)batch * sizeof(REAL));
            continue;
        }
        for (int64_t b = 0; b < batch; b += LANES) {
            int64_t from = b + LANES <= batch ? b : batch - LANES;
            NAME(pool_vector)(s, convolved + window * step + from, row_step, bias, best + from, won ? won + from : NULL);
        }
    }
}

/* One pooled row's gradient, brought back to the places that won; the others get zero. */
static void NAME(unpool_row)(const struct pool_windows *s, const REAL *gradient, const REAL *winners, int64_t windows,
                             REAL *spread, int64_t row_step)
{
    const int64_t batch = s->batch, places = s->pool_rows * s->pool_columns;
#if defined(LONG_VECTORS) && SIZE(REAL) == 4
    if (s->pool_rows == 2 && s->pool_columns == 2) {
        NAME(unpool_pairs)(batch, gradient, winners, windows, spread, row_step);
        return;
    }
#endif
    for (int64_t window = 0; window < windows; window++, gradient += batch, winners += batch)
        for (int64_t place = 0; place < places; place++) {
            REAL *to = spread + place / s->pool_columns * row_step;
            to += (window * s->pool_columns + place % s->pool_columns) * batch;
            for (int64_t b = 0; b < batch && batch >= LANES; b += LANES) {
                int64_t from = b + LANES <= batch ? b : batch - LANES;
                const VECTOR own = *(const VECTOR *)(gradient + from), won = *(const VECTOR *)(winners + from);
                *(VECTOR *)(to + from) = CHOOSE(won == (REAL)place, own, (VECTOR){0});
            }
            for (int64_t b = 0; b < batch && batch < LANES; b++)
                to[b] = winners[b] == (REAL)place ? gradient[b] : 0;
        }
}
