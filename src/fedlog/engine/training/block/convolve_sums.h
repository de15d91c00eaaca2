/* Weighted sums over windows, for vectors of BYTES bytes that are called WIDTH. Included by convolve_passes.h. */

#define JOIN2(a, b) a##_##b
#define EXPAND2(a, b) JOIN2(a, b)
#define SUMS(function) NAME(EXPAND2(function, WIDTH))
#define VECTOR SUMS(vector)
#define LANES ((int64_t)(BYTES / sizeof(REAL)))

/* Loads and stores go to any address; the compiler keeps sums of this type in registers all the same. */
typedef REAL VECTOR __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));

/* For m channels and n vectors of neighbouring places: out = sum over the window of weight * value.
   m * n sums stay in registers; each value that is read serves m of them. */
ALWAYS void SUMS(tile)(const int m, const int n, const struct NAME(windows) *w, int64_t at, const REAL *packed,
                       REAL *out, int64_t out_step)
{
    VECTOR sums[6][4];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            sums[i][j] = (VECTOR){0};
    for (int64_t row = 0; row < w->rows; row++)
        for (int64_t channel = 0; channel < w->channels; channel++) {
            const REAL *run = w->first + row * w->row_step + channel * w->channel_step + at;
            for (int64_t column = 0; column < w->columns; column++, packed += m) {
                VECTOR values[4];
#pragma GCC unroll 4
                for (int j = 0; j < n; j++)
                    values[j] = *(const VECTOR *)(run + w->offsets[column] + j * LANES);
#pragma GCC unroll 6
                for (int i = 0; i < m; i++)
#pragma GCC unroll 4
                    for (int j = 0; j < n; j++)
                        sums[i][j] += packed[i] * values[j];
            }
        }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            *(VECTOR *)(out + i * out_step + j * LANES) = sums[i][j];
}

/* m * n must be at least 8 or so to hide the latency of a multiplication, and leave registers for the operands. */
ALWAYS int SUMS(vectors_at_once)(int m) { return BYTES > 32 ? 4 : m > 4 ? 2 : m == 4 ? 3 : 4; }

static void SUMS(tiles)(int m, int n, const struct NAME(windows) *w, int64_t at, const REAL *packed, REAL *out,
                        int64_t step)
{
#define CASE(M, N) case 8 * M + N: SUMS(tile)(M, N, w, at, packed, out, step); break;
    switch (8 * m + n) {
        CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4)
        CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4)
        CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(3, 4)
        CASE(4, 1) CASE(4, 2) CASE(4, 3)
        CASE(5, 1) CASE(5, 2)
        CASE(6, 1) CASE(6, 2)
#if BYTES > 32
        CASE(4, 4) CASE(5, 3) CASE(5, 4) CASE(6, 3) CASE(6, 4)
#endif
    }
#undef CASE
}

/* One row of all output channels, `length` places. `packed` holds one matrix per group of channels, `group_step`
   numbers per channel apart, of which the rows from `skipped` on are used. */
static void SUMS(sum_row)(int64_t channels, int64_t length, const struct NAME(windows) *w, const REAL *packed,
                          int64_t group_step, int64_t skipped, REAL *out, int64_t out_step)
{
    const int most = NAME(channels_at_once)(channels);
    const int64_t skip = skipped * w->channels * w->columns;
    for (int64_t at = 0; at < length;) {
        int64_t whole = (length - at) / LANES;
        int64_t n = whole < SUMS(vectors_at_once)(most) ? whole : SUMS(vectors_at_once)(most);
        if (n == 0 && length >= LANES) { /* the last vector begins earlier and repeats a few places */
            at = length - LANES;
            n = 1;
        }
        for (int64_t channel = 0; channel < channels; channel += most) {
            int m = channels - channel < most ? (int)(channels - channel) : most;
            const REAL *weights = packed + channel * group_step + m * skip;
            REAL *place = out + channel * out_step + at;
            if (n == 0)
                NAME(single)(m, w, at, weights, place, out_step);
            else
                SUMS(tiles)(m, (int)n, w, at, weights, place, out_step);
        }
        at += n == 0 ? 1 : n * LANES;
    }
}

#undef SUMS
#undef EXPAND2
#undef JOIN2
#undef VECTOR
#undef LANES
