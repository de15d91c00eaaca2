/* Pooling with bias and ReLU, and the way back. Included by convolve_passes.h, which names the vectors. */

/* The maximum of a pooling window for neighbouring records, plus bias, rectified; `winners` (or NULL) says which place
   of the window reached it first, row by row, or -1 where ReLU stops the gradient. A NaN wins, so that a run that
   diverged stays visible. */
ALWAYS void NAME(pool_vector)(const struct sizes *s, const REAL *window, int64_t row_step, REAL bias, REAL *pooled,
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

/* All windows of one row. The last vector of a window begins earlier and repeats a few records; a batch smaller than a
   vector is computed beside its place, with whatever lies behind it in the scratch space. */
static void NAME(pool_row)(const struct sizes *s, const REAL *convolved, int64_t row_step, int64_t windows, REAL bias,
                           REAL *pooled, REAL *winners)
{
    const int64_t batch = s->batch, step = s->pool_columns * batch;
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
static void NAME(unpool_row)(const struct sizes *s, const REAL *gradient, const REAL *winners, int64_t windows,
                             REAL *spread, int64_t row_step)
{
    const int64_t batch = s->batch, places = s->pool_rows * s->pool_columns;
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

/* The sum of the gradients that ReLU lets through; of all where there are no winners. */
static REAL NAME(sum_of_passed)(const REAL *gradient, const REAL *winners, int64_t length)
{
    VECTOR total = {0};
    REAL sum = 0;
    int64_t at = 0;
    for (; at + LANES <= length; at += LANES) {
        const VECTOR own = *(const VECTOR *)(gradient + at);
        total += winners ? CHOOSE(*(const VECTOR *)(winners + at) >= 0, own, (VECTOR){0}) : own;
    }
    for (; at < length; at++)
        sum += !winners || winners[at] >= 0 ? gradient[at] : 0;
    for (int lane = 0; lane < LANES; lane++)
        sum += total[lane];
    return sum;
}
