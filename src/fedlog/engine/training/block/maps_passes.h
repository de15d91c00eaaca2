/* The passes of maps.c for numbers of type REAL on instruction set TARGET. No include guard: included for each. */

#define VECTOR NAME(map_vector)
#define LANES ((int64_t)(32 / sizeof(REAL)))
typedef REAL VECTOR __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
typedef __typeof__((VECTOR){0} < (VECTOR){0}) NAME(mask);
#define CHOOSE(when, yes, no) ((VECTOR)(((when) & (NAME(mask))(yes)) | (~(when) & (NAME(mask))(no))))
#define AT(pointer) (*(VECTOR *)(pointer))
#define READ(pointer) (*(const VECTOR *)(pointer))

/* The maximum of one window for neighbouring records, and which of its places reached it first; a NaN wins. */
ALWAYS void NAME(window_maximum)(const REAL *window, int64_t rows, int64_t columns, int64_t run, int64_t batch,
                                 REAL *best, REAL *winner)
{
    VECTOR highest = READ(window), first = {0}, place = {0};
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++, place += 1) {
            const VECTOR value = READ(window + row * run + column * batch);
            const NAME(mask) better = ~(value <= highest) & (highest == highest);
            highest = CHOOSE(better, value, highest);
            first = CHOOSE(better, place, first);
        }
    AT(best) = highest;
    AT(winner) = first;
}

ALWAYS void NAME(window_mean)(const REAL *window, int64_t rows, int64_t columns, int64_t run, int64_t batch,
                              REAL divisor, REAL *mean)
{
    VECTOR sum = {0};
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++)
            sum += READ(window + row * run + column * batch);
    AT(mean) = sum / divisor;
}

/* The same for one record, where a batch is smaller than a vector. */
static void NAME(window_single)(const REAL *window, int64_t rows, int64_t columns, int64_t run, int64_t batch,
                                REAL divisor, REAL *best, REAL *winner)
{
    REAL highest = *window, first = 0, sum = 0;
    for (int64_t at = 0; at < rows * columns; at++) {
        const REAL value = window[at / columns * run + at % columns * batch];
        const int better = !(value <= highest) && highest == highest;
        highest = better ? value : highest;
        first = better ? (REAL)at : first;
        sum += value;
    }
    *best = winner ? highest : sum / divisor;
    if (winner)
        *winner = first;
}

static void NAME(pool_forward)(const struct pooling *p, const REAL *inputs, REAL *outputs, REAL *winners)
{
    const int64_t batch = p->batch, run = p->columns_in * batch;
    for (int64_t plane = 0; plane < p->planes; plane++, inputs += p->rows_in * run)
        for (int64_t row = 0; row < p->rows_out; row++)
            for (int64_t column = 0; column < p->columns_out; column++, outputs += batch) {
                const int64_t top = p->row_from[row], left = p->column_from[column];
                const int64_t rows = p->row_to[row] - top, columns = p->column_to[column] - left;
                const REAL *window = inputs + top * run + left * batch;
                const REAL divisor = p->mean ? (REAL)p->divisor[row * p->columns_out + column] : 1;
                for (int64_t b = 0; b < batch && batch < LANES; b++)
                    NAME(window_single)(window + b, rows, columns, run, batch, divisor, outputs + b,
                                        p->mean ? NULL : winners + b);
                for (int64_t b = 0; b < batch && batch >= LANES; b += LANES) {
                    /* The last vector begins earlier and repeats a few records. */
                    const int64_t from = b + LANES <= batch ? b : batch - LANES;
                    if (p->mean)
                        NAME(window_mean)(window + from, rows, columns, run, batch, divisor, outputs + from);
                    else
                        NAME(window_maximum)(window + from, rows, columns, run, batch, outputs + from, winners + from);
                }
                winners += p->mean ? 0 : batch;
            }
}

/* One window's gradient, added where it came from. */
ALWAYS void NAME(unpool_window)(const struct pooling *p, const REAL *gradient, const REAL *winners, REAL divisor,
                                int64_t rows, int64_t columns, REAL *window)
{
    const int64_t batch = p->batch, run = p->columns_in * batch;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++) {
            REAL *to = window + row * run + column * batch, place = (REAL)(row * columns + column);
            int64_t b = 0;
            for (; b + LANES <= batch; b += LANES) {
                VECTOR own = READ(gradient + b);
                if (p->mean)
                    own /= divisor;
                else
                    own = CHOOSE(READ(winners + b) == place, own, (VECTOR){0});
                AT(to + b) += own;
            }
            for (; b < batch; b++)
                to[b] += p->mean ? gradient[b] / divisor : winners[b] == place ? gradient[b] : 0;
        }
}

static void NAME(pool_backward)(const struct pooling *p, const REAL *gradient, const REAL *winners, REAL *of_inputs)
{
    const int64_t run = p->columns_in * p->batch;
    for (int64_t plane = 0; plane < p->planes; plane++, of_inputs += p->rows_in * run) {
        memset(of_inputs, 0, (size_t)(p->rows_in * run) * sizeof(REAL));
        for (int64_t row = 0; row < p->rows_out; row++)
            for (int64_t column = 0; column < p->columns_out; column++, gradient += p->batch) {
                const int64_t top = p->row_from[row], left = p->column_from[column];
                const REAL divisor = p->mean ? (REAL)p->divisor[row * p->columns_out + column] : 1;
                NAME(unpool_window)(p, gradient, winners, divisor, p->row_to[row] - top, p->column_to[column] - left,
                                    of_inputs + top * run + left * p->batch);
                winners += p->mean ? 0 : p->batch;
            }
    }
}

#include "convolve_pools.h"
#include "maps_norms.h"

#undef READ
#undef AT
#undef CHOOSE
#undef LANES
#undef VECTOR
