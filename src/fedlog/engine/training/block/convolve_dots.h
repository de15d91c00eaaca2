/* Dot products of runs, for the kernels' gradient. Included by convolve_passes.h, which names the vectors. */

/* Runs of gradients, `step` apart by output channel, and the rows of both maps that are multiplied. */
struct NAME(runs) {
    const REAL *gradient, *inputs;
    int64_t step, rows, gradient_row, input_row, length;
    int zeros_follow; /* behind a run of gradients: its last vector may be read whole */
};

/* The dot product of what is left of a run, one number after another. How products are rounded is written out, so that
   all compilers and instruction sets with fused multiplication give the same bits: in whole quarters of a cache line
   before they are added, behind them not at all. */
static __attribute__((noinline)) UNFUSED REAL NAME(dot_rest)(const REAL *gradient, const REAL *inputs, int64_t length,
                                                             REAL sum)
{
    UNFUSED_HERE
    const int64_t quarter = 16 / sizeof(REAL), separate = length / quarter * quarter;
    for (int64_t at = 0; at < separate; at++)
        sum += gradient[at] * inputs[at];
    for (int64_t at = separate; at < length; at++)
        sum = MULTIPLY_ADD(gradient[at], inputs[at], sum);
    return sum;
}

/* sums[writes[j]] of channel i += dot product of the i-th run of gradients with the inputs at reads[j]. */
ALWAYS void NAME(dot_tile)(const int m, const int n, const struct NAME(runs) *r, const int64_t *reads, REAL *sums,
                           const int64_t *writes, int64_t sums_step)
{
    VECTOR totals[4][6];
    REAL rest[4][6];
    const REAL *gradient = r->gradient, *inputs = r->inputs;
    const int64_t whole = r->zeros_follow ? r->length : r->length - LANES + 1;
#pragma GCC unroll 4
    for (int i = 0; i < m; i++)
#pragma GCC unroll 6
        for (int j = 0; j < n; j++) {
            totals[i][j] = (VECTOR){0};
            rest[i][j] = 0;
        }
    for (int64_t row = 0; row < r->rows; row++, gradient += r->gradient_row, inputs += r->input_row) {
        int64_t at = 0;
        for (; at < whole; at += LANES) {
            VECTOR own[4];
#pragma GCC unroll 4
            for (int i = 0; i < m; i++)
                own[i] = *(const VECTOR *)(gradient + i * r->step + at);
#pragma GCC unroll 6
            for (int j = 0; j < n; j++) {
                const VECTOR seen = *(const VECTOR *)(inputs + reads[j] + at);
#pragma GCC unroll 4
                for (int i = 0; i < m; i++)
                    totals[i][j] += own[i] * seen;
            }
        }
        if (at < r->length)
            for (int i = 0; i < m; i++)
                for (int j = 0; j < n; j++)
                    rest[i][j] = NAME(dot_rest)(gradient + i * r->step + at, inputs + reads[j] + at, r->length - at,
                                                rest[i][j]);
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            REAL sum = rest[i][j];
            for (int lane = 0; lane < LANES; lane++)
                sum += totals[i][j][lane];
            sums[i * sums_step + writes[j]] += sum;
        }
}

/* How many dot products per channel stay in registers beside those of four channels. */
#ifdef LONG_VECTORS
enum { NAME(dots_at_once) = 6 };
#else
enum { NAME(dots_at_once) = 3 };
#endif

static void NAME(dots)(int m, int n, const struct NAME(runs) *r, const int64_t *reads, REAL *sums,
                       const int64_t *writes, int64_t sums_step)
{
#define CASE(M, N) case 8 * M + N: NAME(dot_tile)(M, N, r, reads, sums, writes, sums_step); break;
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
