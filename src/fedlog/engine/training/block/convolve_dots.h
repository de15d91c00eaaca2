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

#include "turn.h"

#if SIZE(REAL) == 4
typedef REAL NAME(quarter) __attribute__((vector_size(16), aligned(sizeof(REAL)), may_alias));

/* The rests of runs that have exactly a quarter of a cache line left: four of them side by side, which are rounded as in
   `dot_rest`. */
static __attribute__((noinline)) UNFUSED void NAME(quarters)(int m, int n, const struct NAME(runs) *r,
                                                             const int64_t *reads, REAL *rest)
{
    UNFUSED_HERE
    const int64_t at = r->length / LANES * LANES;
    for (int first = 0; first < m * n; first += 4) {
        const REAL *gradients[4], *inputs[4];
        for (int k = 0; k < 4; k++) {
            const int one = first + k < m * n ? first + k : m * n - 1;
            gradients[k] = r->gradient + one / n * r->step + at;
            inputs[k] = r->inputs + reads[one % n] + at;
        }
        NAME(quarter) sum = {0};
        for (int64_t row = 0; row < r->rows; row++) {
            NAME(quarter) each[4], pairs[4];
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++)
                each[k] = *(const NAME(quarter) *)(gradients[k] + row * r->gradient_row) *
                          *(const NAME(quarter) *)(inputs[k] + row * r->input_row);
#pragma GCC unroll 2
            for (int k = 0; k < 4; k += 2) {
                pairs[k] = __builtin_shufflevector(each[k], each[k + 1], 0, 4, 1, 5);
                pairs[k + 1] = __builtin_shufflevector(each[k], each[k + 1], 2, 6, 3, 7);
            }
            sum += __builtin_shufflevector(pairs[0], pairs[2], 0, 1, 4, 5);
            sum += __builtin_shufflevector(pairs[0], pairs[2], 2, 3, 6, 7);
            sum += __builtin_shufflevector(pairs[1], pairs[3], 0, 1, 4, 5);
            sum += __builtin_shufflevector(pairs[1], pairs[3], 2, 3, 6, 7);
        }
        for (int k = 0; k < 4 && first + k < m * n; k++)
            rest[first + k] = sum[k];
    }
}
#endif

/* What is left of all runs behind their last whole vector. Apart from the tile's own loop, which would have to leave
   its registers to a call. */
static __attribute__((noinline)) void NAME(rests)(int m, int n, const struct NAME(runs) *r, const int64_t *reads,
                                                  REAL *rest)
{
    const int64_t at = r->length / LANES * LANES;
    const REAL *gradient = r->gradient + at, *inputs = r->inputs + at;
#if SIZE(REAL) == 4
    if (r->length - at == 4) {
        NAME(quarters)(m, n, r, reads, rest);
        return;
    }
#endif
    for (int64_t row = 0; row < r->rows; row++, gradient += r->gradient_row, inputs += r->input_row)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++)
                rest[i * n + j] =
                    NAME(dot_rest)(gradient + i * r->step, inputs + reads[j], r->length - at, rest[i * n + j]);
}

/* sums[writes[j]] of channel i += dot product of the i-th run of gradients with the inputs at reads[j]. */
ALWAYS void NAME(dot_tile)(const int m, const int n, const struct NAME(runs) *r, const int64_t *reads, REAL *sums,
                           const int64_t *writes, int64_t sums_step)
{
    VECTOR totals[40];
    REAL found[40] = {0};
    const REAL *gradient = r->gradient, *inputs = r->inputs;
    const int64_t whole = r->zeros_follow ? r->length : r->length - LANES + 1;
#pragma GCC unroll 40
    for (int k = 0; k < 40; k++)
        totals[k] = (VECTOR){0};
    for (int64_t row = 0; row < r->rows; row++, gradient += r->gradient_row, inputs += r->input_row)
        for (int64_t at = 0; at < whole; at += LANES) {
            VECTOR own[6];
#pragma GCC unroll 6
            for (int i = 0; i < m; i++)
                own[i] = *(const VECTOR *)(gradient + i * r->step + at);
#pragma GCC unroll 6
            for (int j = 0; j < n; j++) {
                const VECTOR seen = *(const VECTOR *)(inputs + reads[j] + at);
#pragma GCC unroll 6
                for (int i = 0; i < m; i++)
                    totals[i * n + j] += own[i] * seen;
            }
        }
    if (!r->zeros_follow && r->length % LANES)
        NAME(rests)(m, n, r, reads, found);
    /* Lane by lane, as many sums side by side as a vector has lanes. */
#pragma GCC unroll 10
    for (int k = 0; k < m * n; k += LANES) {
        NAME(turn)(totals + k);
        VECTOR sum = *(const VECTOR *)(found + k);
#pragma GCC unroll 8
        for (int lane = 0; lane < LANES; lane++)
            sum += totals[k + lane];
        *(VECTOR *)(found + k) = sum;
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            sums[i * sums_step + writes[j]] += found[i * n + j];
}

/* How many channels of gradients are taken at once, and how many dot products of each: as many as registers hold. */
#ifdef LONG_VECTORS
static int64_t NAME(runs_at_once)(int64_t channels)
{
    return channels % 5 == 0 ? 5 : channels % 4 && channels % 6 == 0 ? 6 : 4;
}
static int64_t NAME(dots_beside)(int64_t runs) { return runs == 4 ? 6 : runs == 5 ? 5 : 4; }
#else
/* 4 x 3 sums read least per multiplication; six channels are better taken as twice three than as four and two. */
static int64_t NAME(runs_at_once)(int64_t channels) { return channels % 4 && channels % 3 == 0 ? 3 : 4; }
static int64_t NAME(dots_beside)(int64_t runs) { return runs > 0 ? 3 : 0; }
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
        CASE(5, 1) CASE(5, 2) CASE(5, 3) CASE(5, 4) CASE(5, 5)
        CASE(6, 1) CASE(6, 2) CASE(6, 3) CASE(6, 4)
#endif
    }
#undef CASE
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
