/* The passes of linear.c for numbers of type REAL on instruction set TARGET. No include guard: included for each. */

#define VECTOR NAME(linear_vector)
#define LANES ((int64_t)(32 / sizeof(REAL)))
typedef REAL VECTOR __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
typedef __typeof__((VECTOR){0} < (VECTOR){0}) NAME(linear_mask);
#define READ(pointer) (*(const VECTOR *)(pointer))

#ifdef LONG_VECTORS
typedef REAL NAME(linear_wide) __attribute__((vector_size(64), aligned(sizeof(REAL)), may_alias));
#define WIDE NAME(linear_wide)
enum { NAME(dot_records) = 5, NAME(dot_units) = 5, NAME(outer_rows) = 8 };
#else
#define WIDE VECTOR
enum { NAME(dot_records) = 3, NAME(dot_units) = 4, NAME(outer_rows) = 4 };
#endif
#define WIDE_LANES ((int64_t)(sizeof(WIDE) / sizeof(REAL)))

/* The sums over the lanes of LANES vectors, as one vector: neighbours are added until each vector is one number. */
ALWAYS VECTOR NAME(sum_lanes)(const VECTOR *each)
{
#if SIZE(REAL) == 4
    VECTOR two[4], four[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        two[i] = __builtin_shufflevector(each[2 * i], each[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                 __builtin_shufflevector(each[2 * i], each[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        four[i] = __builtin_shufflevector(two[2 * i], two[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                  __builtin_shufflevector(two[2 * i], two[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
#else
    VECTOR two[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        two[i] = __builtin_shufflevector(each[2 * i], each[2 * i + 1], 0, 4, 2, 6) +
                 __builtin_shufflevector(each[2 * i], each[2 * i + 1], 1, 5, 3, 7);
    return __builtin_shufflevector(two[0], two[1], 0, 1, 4, 5) + __builtin_shufflevector(two[0], two[1], 2, 3, 6, 7);
#endif
}

/* found[i * n + j] = the dot product of the i-th of m records with the j-th of n units, each `length` numbers. The last
   vector begins earlier; of it only the lanes count that are new. */
ALWAYS void NAME(dot_units_tile)(const int m, const int n, int64_t length, const REAL *inputs, const REAL *weight,
                                 REAL *found)
{
    VECTOR totals[32];
    const int64_t whole = length / LANES * LANES, last = length - LANES;
#pragma GCC unroll 32
    for (int k = 0; k < 32; k++)
        totals[k] = (VECTOR){0};
    for (int64_t at = 0; at < whole; at += LANES) {
        VECTOR own[5];
#pragma GCC unroll 5
        for (int i = 0; i < m; i++)
            own[i] = READ(inputs + i * length + at);
#pragma GCC unroll 5
        for (int j = 0; j < n; j++) {
            const VECTOR seen = READ(weight + j * length + at);
#pragma GCC unroll 5
            for (int i = 0; i < m; i++)
                totals[i * n + j] += own[i] * seen;
        }
    }
    if (whole < length) {
        NAME(linear_mask) fresh;
        for (int lane = 0; lane < LANES; lane++)
            fresh[lane] = last + lane >= whole ? -1 : 0;
#pragma GCC unroll 5
        for (int j = 0; j < n; j++) {
            const VECTOR seen = (VECTOR)((NAME(linear_mask))READ(weight + j * length + last) & fresh);
#pragma GCC unroll 5
            for (int i = 0; i < m; i++) /* masked as well: what is infinite is counted once */
                totals[i * n + j] += (VECTOR)((NAME(linear_mask))READ(inputs + i * length + last) & fresh) * seen;
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < m * n; k += (int)LANES)
        *(VECTOR *)(found + k) = NAME(sum_lanes)(totals + k);
}

static void NAME(dots_of_units)(int m, int n, int64_t length, const REAL *inputs, const REAL *weight, REAL *found)
{
    if (length < LANES) {
        for (int k = 0; k < m * n; k++) {
            found[k] = 0;
            for (int64_t at = 0; at < length; at++)
                found[k] += inputs[k / n * length + at] * weight[k % n * length + at];
        }
        return;
    }
#define CASE(M, N) case 8 * M + N: NAME(dot_units_tile)(M, N, length, inputs, weight, found); break;
    switch (8 * m + n) {
        CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4)
        CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4)
        CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(3, 4)
#ifdef LONG_VECTORS
        CASE(1, 5) CASE(2, 5) CASE(3, 5)
        CASE(4, 1) CASE(4, 2) CASE(4, 3) CASE(4, 4) CASE(4, 5)
        CASE(5, 1) CASE(5, 2) CASE(5, 3) CASE(5, 4) CASE(5, 5)
#endif
    }
#undef CASE
}

static void NAME(linear_forward)(const struct linear *l, const REAL *inputs, const REAL *weight, const REAL *bias,
                                 REAL *outputs)
{
    const int64_t at_once = NAME(dot_records), units = NAME(dot_units);
    for (int64_t client = 0; client < l->clients; client++) {
        const REAL *own = inputs + client * l->batch * l->in, *kernel = weight + client * l->out * l->in;
        REAL *to = outputs + client * l->batch * l->out;
        for (int64_t unit = 0; unit < l->out; unit += units)
            for (int64_t record = 0; record < l->batch; record += at_once) {
                const int64_t m = l->batch - record < at_once ? l->batch - record : at_once;
                const int64_t n = l->out - unit < units ? l->out - unit : units;
                REAL found[32];
                NAME(dots_of_units)((int)m, (int)n, l->in, own + record * l->in, kernel + unit * l->in, found);
                for (int64_t i = 0; i < m; i++)
                    for (int64_t j = 0; j < n; j++) {
                        const REAL value = found[i * n + j] + (bias ? bias[client * l->out + unit + j] : 0);
                        to[(record + i) * l->out + unit + j] = l->rectify && value <= 0 ? 0 : value;
                    }
            }
    }
}

/* to[r][c] = sum over k of left(r, k) * right[k][c] for m rows and n vectors of columns, the last of them `last` numbers
   behind the first. */
ALWAYS void NAME(outer_units_tile)(const int m, const int n, int64_t count, const REAL *left, int64_t row_step,
                                   int64_t step, const REAL *right, int64_t right_step, int64_t last, REAL *to,
                                   int64_t to_step)
{
    WIDE totals[8][3];
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 3
        for (int j = 0; j < n; j++)
            totals[i][j] = (WIDE){0};
    for (int64_t k = 0; k < count; k++, left += step, right += right_step) {
        WIDE own[3];
#pragma GCC unroll 3
        for (int j = 0; j < n; j++)
            own[j] = *(const WIDE *)(right + (j < n - 1 ? j * WIDE_LANES : last));
#pragma GCC unroll 8
        for (int i = 0; i < m; i++)
#pragma GCC unroll 3
            for (int j = 0; j < n; j++)
                totals[i][j] += left[i * row_step] * own[j];
    }
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 3
        for (int j = 0; j < n; j++)
            *(WIDE *)(to + i * to_step + (j < n - 1 ? j * WIDE_LANES : last)) = totals[i][j];
}

static void NAME(outer_of_units)(int m, int n, int64_t count, const REAL *left, int64_t row_step, int64_t step,
                                 const REAL *right, int64_t right_step, int64_t last, REAL *to, int64_t to_step)
{
#define CASE(M)                                                                                                    \
    case 4 * M + 1: NAME(outer_units_tile)(M, 1, count, left, row_step, step, right, right_step, last, to, to_step); break; \
    case 4 * M + 2: NAME(outer_units_tile)(M, 2, count, left, row_step, step, right, right_step, last, to, to_step); break; \
    case 4 * M + 3: NAME(outer_units_tile)(M, 3, count, left, row_step, step, right, right_step, last, to, to_step); break;
    switch (4 * m + n) {
        CASE(1) CASE(2) CASE(3) CASE(4)
#ifdef LONG_VECTORS
        CASE(5) CASE(6) CASE(7) CASE(8)
#endif
    }
#undef CASE
}

/* The product of (rows, count) and (count, columns), vectors and rows shared out evenly among tiles. */
static void NAME(multiply_units)(int64_t rows, int64_t count, int64_t columns, const REAL *left, int64_t row_step,
                                 int64_t step, const REAL *right, REAL *to)
{
    if (columns < WIDE_LANES) {
        for (int64_t at = 0; at < rows * columns; at++) {
            REAL sum = 0;
            for (int64_t k = 0; k < count; k++)
                sum += left[at / columns * row_step + k * step] * right[k * columns + at % columns];
            to[at] = sum;
        }
        return;
    }
    const int64_t vectors = (columns + WIDE_LANES - 1) / WIDE_LANES, tiles = (vectors + 2) / 3;
    const int64_t bands = (rows + NAME(outer_rows) - 1) / NAME(outer_rows);
    for (int64_t tile = 0, at = 0; tile < tiles; tile++) {
        const int64_t n = vectors / tiles + (tile < vectors % tiles);
        const int64_t last = at + n * WIDE_LANES <= columns ? (n - 1) * WIDE_LANES : columns - WIDE_LANES - at;
        for (int64_t band = 0, row = 0; band < bands; band++) {
            const int64_t m = rows / bands + (band < rows % bands);
            NAME(outer_of_units)((int)m, (int)n, count, left + row * row_step, row_step, step, right + at, columns,
                                 last, to + row * columns + at, columns);
            row += m;
        }
        at += n * WIDE_LANES;
    }
}

static void NAME(linear_backward)(const struct linear *l, const REAL *inputs, const REAL *weight, const REAL *outputs,
                                  const REAL *gradient, REAL *of_inputs, REAL *of_weight, REAL *of_bias, REAL *scratch)
{
    const int64_t before = l->batch * l->in, behind = l->batch * l->out, kernel = l->out * l->in;
    for (int64_t client = 0; client < l->clients; client++) {
        const REAL *passed = gradient + client * behind;
        if (l->rectify) {
            for (int64_t at = 0; at < behind; at++)
                scratch[at] = outputs[client * behind + at] <= 0 ? 0 : passed[at];
            passed = scratch;
        }
        for (int64_t unit = 0; of_bias && unit < l->out; unit++) {
            REAL sum = 0;
            for (int64_t record = 0; record < l->batch; record++)
                sum += passed[record * l->out + unit];
            of_bias[client * l->out + unit] = sum;
        }
        if (of_weight)
            NAME(multiply_units)(l->out, l->batch, l->in, passed, 1, l->out, inputs + client * before,
                                 of_weight + client * kernel);
        if (of_inputs)
            NAME(multiply_units)(l->batch, l->out, l->in, passed, l->out, 1, weight + client * kernel,
                                 of_inputs + client * before);
    }
}

#if SIZE(REAL) == 4
#include "turn.h"

/* (rows, columns) -> (columns, rows), by squares; the last ones begin earlier. The rows are those at `positions`, or
   one behind the other if it is NULL. */
static void NAME(turn_rows)(int64_t rows, int64_t columns, const REAL *from, const int64_t *positions, REAL *to)
{
    if (rows < LANES || columns < LANES) {
        for (int64_t row = 0; row < rows; row++)
            for (int64_t column = 0; column < columns; column++)
                to[column * rows + row] = from[(positions ? positions[row] : row) * columns + column];
        return;
    }
    for (int64_t column = 0; column < columns; column += LANES)
        for (int64_t row = 0; row < rows; row += LANES) {
            const int64_t first = row + LANES <= rows ? row : rows - LANES;
            const int64_t left = column + LANES <= columns ? column : columns - LANES;
            VECTOR square[LANES];
#pragma GCC unroll 8
            for (int i = 0; i < LANES; i++)
                square[i] = READ(from + (positions ? positions[first + i] : first + i) * columns + left);
            NAME(turn)(square);
#pragma GCC unroll 8
            for (int i = 0; i < LANES; i++)
                *(VECTOR *)(to + (left + i) * rows + first) = square[i];
        }
}

static void NAME(turn_units)(int64_t rows, int64_t columns, const REAL *from, REAL *to)
{
    NAME(turn_rows)(rows, columns, from, NULL, to);
}

/* The records at `positions` (clients, batch) out of a pool (records, units), each client's turned over: (units, batch). */
static void NAME(gather_turned)(int64_t clients, int64_t batch, int64_t units, const REAL *pool,
                                const int64_t *positions, REAL *to)
{
    for (int64_t client = 0; client < clients; client++, positions += batch, to += batch * units) {
        for (int64_t b = 0; b < batch; b++) /* asked for all at once: square by square, each would be waited for */
            for (int64_t at = 0; at < units; at += 64 / (int64_t)sizeof(REAL))
                __builtin_prefetch(pool + positions[b] * units + at, 0, 2);
        NAME(turn_rows)(batch, units, pool, positions, to);
    }
}

/* Forward without ReLU, in the order of a matrix library: sums over PRODUCT_UNITS units of the input, one after the
   other, each added to what is there. `scratch` has room for the inputs and twice the outputs of a client. */
static void NAME(product_forward)(const struct product *p, const REAL *inputs, const REAL *weight, const REAL *bias,
                                  REAL *outputs, REAL *scratch)
{
    const int64_t before = p->batch * p->in, behind = p->batch * p->out;
    REAL *turned = scratch, *sums = turned + before, *found = sums + behind;
    for (int64_t client = 0; client < p->clients; client++) {
        const REAL *own = inputs + client * before;
        if (!p->innermost) {
            NAME(turn_units)(p->batch, p->in, own, turned);
            own = turned;
        }
        for (int64_t unit = 0; unit < p->in; unit += PRODUCT_UNITS) {
            const int64_t count = p->in - unit < PRODUCT_UNITS ? p->in - unit : PRODUCT_UNITS;
            NAME(multiply_units)(p->out, count, p->batch, weight + client * p->weight_step + unit, p->in, 1,
                                 own + unit * p->batch, found);
            for (int64_t at = 0; at < behind && unit; at++)
                sums[at] += found[at];
            for (int64_t one = 0; one < p->out && !unit; one++)
                for (int64_t b = 0; b < p->batch; b++)
                    sums[one * p->batch + b] = found[one * p->batch + b] + bias[client * p->bias_step + one];
        }
        NAME(turn_units)(p->out, p->batch, sums, outputs + client * behind);
    }
}

/* The gradients of the inputs, which lie as the inputs do, and of the weights. `scratch` as before. */
static void NAME(product_backward)(const struct product *p, const REAL *inputs, const REAL *weight,
                                   const REAL *gradient, REAL *of_inputs, REAL *of_weight, REAL *scratch)
{
    const int64_t before = p->batch * p->in, behind = p->batch * p->out;
    for (int64_t client = 0; client < p->clients; client++) {
        const REAL *own = inputs + client * before, *passed = gradient + client * behind;
        if (of_weight && p->innermost) {
            NAME(turn_units)(p->in, p->batch, own, scratch);
            own = scratch;
        }
        if (of_weight)
            NAME(multiply_units)(p->out, p->batch, p->in, passed, 1, p->out, own, of_weight + client * p->out * p->in);
        if (!of_inputs)
            continue;
        REAL *to = p->innermost ? scratch : of_inputs + client * before;
        NAME(multiply_units)(p->batch, p->out, p->in, passed, p->out, 1, weight + client * p->weight_step, to);
        if (p->innermost)
            NAME(turn_units)(p->batch, p->in, scratch, of_inputs + client * before);
    }
}
#endif

#undef WIDE_LANES
#undef WIDE
#undef READ
#undef LANES
#undef VECTOR
