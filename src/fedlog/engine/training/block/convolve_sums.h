/* Weighted sums over windows, for vectors of BYTES bytes that are called WIDTH. Included by convolve_passes.h. */

#define JOIN2(a, b) a##_##b
#define EXPAND2(a, b) JOIN2(a, b)
#define SUMS(function) NAME(EXPAND2(function, WIDTH))
#define VECTOR SUMS(vector)
#define LANES ((int64_t)(BYTES / sizeof(REAL)))

/* Loads and stores go to any address; the compiler keeps sums of this type in registers all the same. */
typedef REAL VECTOR __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));

/* For m channels and n vectors of neighbouring places, the last of them `last` numbers behind the first: out = sum over
   the window of weight * value. m * n sums stay in registers; each value that is read serves m of them. Where `skips`,
   bit j of read[column] says whether the j-th vector meets anything but zeros there. */
ALWAYS void SUMS(tile)(const int m, const int n, const int skips, const struct NAME(windows) *w, int64_t at,
                       int64_t last, const REAL *packed, const uint8_t *read, REAL *out, int64_t out_step)
{
    VECTOR sums[8][4];
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < n; j++)
            sums[i][j] = (VECTOR){0};
    for (int64_t row = 0; row < w->rows; row++)
        for (int64_t channel = 0; channel < w->channels; channel++) {
            const REAL *run = w->first + row * w->row_step + channel * w->channel_step + at;
            for (int64_t column = 0; column < w->columns; column++, packed += m) {
                VECTOR values[4];
                if (skips && read[column] != (1 << n) - 1) {
#pragma GCC unroll 4
                    for (int j = 0; j < n; j++)
                        if (read[column] >> j & 1) {
                            values[j] = *(const VECTOR *)(run + w->offsets[column] + (j < n - 1 ? j * LANES : last));
#pragma GCC unroll 8
                            for (int i = 0; i < m; i++)
                                sums[i][j] += packed[i] * values[j];
                        }
                    continue;
                }
#pragma GCC unroll 4
                for (int j = 0; j < n; j++)
                    values[j] = *(const VECTOR *)(run + w->offsets[column] + (j < n - 1 ? j * LANES : last));
#pragma GCC unroll 8
                for (int i = 0; i < m; i++)
#pragma GCC unroll 4
                    for (int j = 0; j < n; j++)
                        sums[i][j] += packed[i] * values[j];
            }
        }
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < n; j++)
            *(VECTOR *)(out + i * out_step + (j < n - 1 ? j * LANES : last)) = sums[i][j];
}

/* m * n must be at least 8 or so to hide the latency of a multiplication, and leave registers for the operands. */
ALWAYS int SUMS(vectors_at_once)(int m) { return m == 8 ? 3 : BYTES > 32 ? 4 : m > 4 ? 2 : m == 4 ? 3 : 4; }

static void SUMS(tiles)(int m, int n, const struct NAME(windows) *w, int64_t at, int64_t last, const REAL *packed,
                        const uint8_t *read, REAL *out, int64_t step)
{
#define CASE(M, N)                                                                                                 \
    case 8 * M + N: SUMS(tile)(M, N, 0, w, at, last, packed, NULL, out, step); break;                              \
    case 64 + 8 * M + N: SUMS(tile)(M, N, 1, w, at, last, packed, read, out, step); break;
    switch ((read ? 64 : 0) + 8 * m + n) {
        CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4)
        CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4)
        CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(3, 4)
        CASE(4, 1) CASE(4, 2) CASE(4, 3)
        CASE(5, 1) CASE(5, 2)
        CASE(6, 1) CASE(6, 2)
#ifdef LONG_VECTORS
        CASE(8, 1) CASE(8, 2) CASE(8, 3)
#endif
#if BYTES > 32
        CASE(4, 4) CASE(5, 3) CASE(5, 4) CASE(6, 3) CASE(6, 4)
#endif
    }
#undef CASE
}

/* One row of all output channels, `length` places. `packed` holds one matrix per group of channels, `group_step`
   numbers per channel apart, of which the rows from `skipped` on are used. Vectors are shared out evenly among tiles,
   since one or two at once would wait for their own sums; the last begins earlier and repeats a few places. */
static void SUMS(sum_row)(int64_t channels, int64_t length, const struct NAME(windows) *w, const REAL *packed,
                          int64_t group_step, int64_t skipped, REAL *out, int64_t out_step)
{
    const int most = NAME(channels_at_once)(channels);
    const int64_t skip = skipped * w->channels * w->columns, vectors = (length + LANES - 1) / LANES;
    const int64_t widest = SUMS(vectors_at_once)(most), tiles = (vectors + widest - 1) / widest;
    const int is_short = length < LANES;
    uint8_t read[w->columns];
    for (int64_t tile = 0, at = 0; tile < (is_short ? length : tiles); tile++) {
        const int64_t n = is_short ? 0 : vectors / tiles + (tile < vectors % tiles);
        const int64_t last = at + n * LANES <= length ? (n - 1) * LANES : length - LANES - at;
        int skips = 0;
        for (int64_t column = 0; column < w->columns && w->begins; column++) {
            read[column] = 0;
            for (int j = 0; j < n; j++) {
                const int64_t first = at + (j < n - 1 ? j * LANES : last);
                read[column] |= (uint8_t)((first < w->ends[column] && first + LANES > w->begins[column]) << j);
            }
            skips |= read[column] != (1 << n) - 1;
        }
        for (int64_t channel = 0; channel < channels; channel += most) {
            int m = channels - channel < most ? (int)(channels - channel) : most;
            const REAL *weights = packed + channel * group_step + m * skip;
            REAL *place = out + channel * out_step + at;
            if (is_short)
                NAME(single)(m, w, at, weights, place, out_step);
            else
                SUMS(tiles)(m, (int)n, w, at, last, weights, skips ? read : NULL, place, out_step);
        }
        at += is_short ? 1 : n * LANES;
    }
}

#undef SUMS
#undef EXPAND2
#undef JOIN2
#undef VECTOR
#undef LANES
