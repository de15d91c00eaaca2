/* The passes of maps.c for numbers of type REAL on instruction set TARGET. No include guard: included for each. */

#define SQUARE_ROOT(x) __builtin_choose_expr(sizeof(REAL) == 4, __builtin_sqrtf(x), __builtin_sqrt(x))
#define VECTOR NAME(map_vector)
#define LANES ((int64_t)(32 / sizeof(REAL)))
typedef REAL VECTOR __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
typedef __typeof__((VECTOR){0} < (VECTOR){0}) NAME(map_mask);
#define CHOOSE(when, yes, no) ((VECTOR)(((when) & (NAME(map_mask))(yes)) | (~(when) & (NAME(map_mask))(no))))
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
            const NAME(map_mask) better = ~(value <= highest) & (highest == highest);
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

/* Normalisation goes along whole runs of places * batch numbers. What belongs to each record is written down as a
   pattern: repeated until it fills whole vectors, `period` numbers. */
static int64_t NAME(period)(int64_t batch)
{
    int64_t period = batch;
    while (period % LANES)
        period += batch;
    return period;
}

/* The pattern of one number per record, repeated. */
ALWAYS void NAME(repeat)(REAL *pattern, int64_t batch, int64_t period)
{
    for (int64_t at = batch; at < period; at++)
        pattern[at] = pattern[at - batch];
}

/* Each record's sum of what stands in a pattern, at its beginning; all of it is then zero but for that. */
ALWAYS void NAME(fold)(REAL *pattern, int64_t batch, int64_t period)
{
    for (int64_t at = batch; at < period; at++)
        pattern[at % batch] += pattern[at];
}

/* Do VECTORS for whole vectors and SINGLES for what is left, `at` in the run and `t` in the pattern. */
#define ALONG(run, period, VECTORS, SINGLES)                                                                       \
    for (int64_t start = 0; start < (run); start += (period)) {                                                   \
        const int64_t end = (run)-start < (period) ? (run)-start : (period);                                       \
        int64_t t = 0;                                                                                             \
        for (; t + LANES <= end; t += LANES) {                                                                     \
            const int64_t at = start + t;                                                                          \
            VECTORS                                                                                                \
        }                                                                                                          \
        for (; t < end; t++) {                                                                                     \
            const int64_t at = start + t;                                                                          \
            SINGLES                                                                                                \
        }                                                                                                          \
    }

/* The mean of each record over one group as a pattern, and 1 / its standard deviation. */
static void NAME(group_moments)(const struct norm *n, const REAL *values, int64_t period, REAL *mean, REAL *scale)
{
    const int64_t batch = n->batch, count = n->channels * n->places, run = count * batch;
    memset(mean, 0, (size_t)period * sizeof(REAL));
    memset(scale, 0, (size_t)period * sizeof(REAL));
    ALONG(run, period, AT(mean + t) += READ(values + at);, mean[t] += values[at];)
    NAME(fold)(mean, batch, period);
    for (int64_t b = 0; b < batch; b++)
        mean[b] /= (REAL)count;
    NAME(repeat)(mean, batch, period);
    ALONG(run, period, const VECTOR apart = READ(values + at) - READ(mean + t); AT(scale + t) += apart * apart;
          , const REAL apart = values[at] - mean[t]; scale[t] += apart * apart;)
    NAME(fold)(scale, batch, period);
    for (int64_t b = 0; b < batch; b++)
        scale[b] = 1 / SQUARE_ROOT(scale[b] / (REAL)count + (REAL)n->epsilon);
    NAME(repeat)(scale, batch, period);
}

/* What a record's values become: value * slope + offset, then ReLU. The same in both directions, so that they agree on
   which values ReLU stops. */
ALWAYS void NAME(slopes)(const REAL *mean, const REAL *scale, REAL weight, REAL bias, int64_t period, REAL *slope,
                         REAL *offset)
{
    for (int64_t at = 0; at < period; at++) {
        slope[at] = scale[at] * weight;
        offset[at] = bias - mean[at] * slope[at];
    }
}

ALWAYS void NAME(normalise_run)(const int rectify, const REAL *values, int64_t run, int64_t period, const REAL *slope,
                                const REAL *offset, REAL *outputs)
{
    ALONG(run, period, VECTOR value = READ(values + at) * READ(slope + t) + READ(offset + t);
          if (rectify) value = CHOOSE(value <= 0, (VECTOR){0}, value); AT(outputs + at) = value;
          , const REAL value = values[at] * slope[t] + offset[t]; outputs[at] = rectify && value <= 0 ? 0 : value;)
}

static void NAME(norm_forward)(const struct norm *n, const REAL *inputs, const REAL *weight, const REAL *bias,
                               REAL *outputs, REAL *means, REAL *scales, REAL *scratch)
{
    const int64_t batch = n->batch, run = n->places * batch, period = NAME(period)(batch);
    REAL *slope = scratch, *offset = slope + period, *mean = offset + period, *scale = mean + period;
    for (int64_t group = 0; group < n->clients * n->groups; group++) {
        NAME(group_moments)(n, inputs, period, mean, scale);
        memcpy(means + group * batch, mean, (size_t)batch * sizeof(REAL));
        memcpy(scales + group * batch, scale, (size_t)batch * sizeof(REAL));
        for (int64_t channel = group * n->channels; channel < (group + 1) * n->channels; channel++) {
            NAME(slopes)(mean, scale, weight ? weight[channel] : 1, bias ? bias[channel] : 0, period, slope, offset);
            if (n->rectify)
                NAME(normalise_run)(1, inputs, run, period, slope, offset, outputs);
            else
                NAME(normalise_run)(0, inputs, run, period, slope, offset, outputs);
            inputs += run;
            outputs += run;
        }
    }
}

/* The gradient that ReLU lets through. */
ALWAYS VECTOR NAME(passed)(const int rectify, VECTOR gradient, VECTOR value, VECTOR slope, VECTOR offset)
{
    if (rectify)
        gradient = CHOOSE(value * slope + offset <= 0, (VECTOR){0}, gradient);
    return gradient;
}
#define PASSED_VECTOR                                                                                              \
    NAME(passed)(rectify, READ(gradient + at), READ(values + at), READ(slope + t), READ(offset + t))
#define PASSED_SINGLE (rectify && values[at] * slope[t] + offset[t] <= 0 ? 0 : gradient[at])

/* Sums of the gradient, and of its products with the values' distance from their mean, as patterns. */
ALWAYS void NAME(sum_run)(const int rectify, const REAL *values, const REAL *gradient, int64_t run, int64_t period,
                          const REAL *mean, const REAL *slope, const REAL *offset, REAL *plain, REAL *along)
{
    memset(plain, 0, (size_t)period * sizeof(REAL));
    memset(along, 0, (size_t)period * sizeof(REAL));
    ALONG(run, period, const VECTOR own = PASSED_VECTOR; AT(plain + t) += own;
          AT(along + t) += own * (READ(values + at) - READ(mean + t));
          , const REAL own = PASSED_SINGLE; plain[t] += own; along[t] += own * (values[at] - mean[t]);)
}

ALWAYS void NAME(spread_run)(const int rectify, const REAL *values, const REAL *gradient, int64_t run, int64_t period,
                             const REAL *slope, const REAL *offset, const REAL *own, const REAL *leaning, REAL *to)
{
    ALONG(run, period,
          AT(to + at) = PASSED_VECTOR * READ(slope + t) + (READ(own + t) + READ(leaning + t) * READ(values + at));
          , to[at] = PASSED_SINGLE * slope[t] + (own[t] + leaning[t] * values[at]);)
}

static void NAME(norm_backward)(const struct norm *n, const REAL *inputs, const REAL *weight, const REAL *bias,
                                const REAL *means, const REAL *scales, const REAL *gradient, REAL *of_inputs,
                                REAL *of_weight, REAL *of_bias, REAL *scratch)
{
    const int64_t batch = n->batch, run = n->places * batch, period = NAME(period)(batch);
    const REAL count = (REAL)(n->channels * n->places);
    REAL *slope = scratch, *offset = slope + period, *mean = offset + period, *scale = mean + period;
    REAL *plain = scale + period, *along = plain + period, *own = along + period, *leaning = own + period;
    for (int64_t group = 0; group < n->clients * n->groups; group++) {
        const int64_t first = group * n->channels;
        memcpy(mean, means + group * batch, (size_t)batch * sizeof(REAL));
        memcpy(scale, scales + group * batch, (size_t)batch * sizeof(REAL));
        NAME(repeat)(mean, batch, period);
        NAME(repeat)(scale, batch, period);
        memset(own, 0, (size_t)(2 * period) * sizeof(REAL)); /* and leaning */
        for (int64_t one = first; one < first + n->channels; one++) {
            const REAL factor = weight ? weight[one] : 1, *values = inputs + one * run, *g = gradient + one * run;
            REAL of_one_weight = 0, of_one_bias = 0;
            NAME(slopes)(mean, scale, factor, bias ? bias[one] : 0, period, slope, offset);
            if (n->rectify)
                NAME(sum_run)(1, values, g, run, period, mean, slope, offset, plain, along);
            else
                NAME(sum_run)(0, values, g, run, period, mean, slope, offset, plain, along);
            NAME(fold)(plain, batch, period);
            NAME(fold)(along, batch, period);
            for (int64_t b = 0; b < batch; b++) {
                of_one_weight += along[b] * scale[b];
                of_one_bias += plain[b];
                own[b] += factor * plain[b];
                leaning[b] += factor * along[b] * scale[b];
            }
            if (of_weight)
                of_weight[one] = of_one_weight;
            if (of_bias)
                of_bias[one] = of_one_bias;
        }
        for (int64_t b = 0; b < batch; b++) { /* what all values of the group get: own + leaning * value */
            leaning[b] *= -scale[b] * scale[b] / count;
            own[b] = -scale[b] * own[b] / count - leaning[b] * mean[b];
        }
        NAME(repeat)(own, batch, period);
        NAME(repeat)(leaning, batch, period);
        for (int64_t one = first; one < first + n->channels && of_inputs; one++) {
            NAME(slopes)(mean, scale, weight ? weight[one] : 1, bias ? bias[one] : 0, period, slope, offset);
            if (n->rectify)
                NAME(spread_run)(1, inputs + one * run, gradient + one * run, run, period, slope, offset, own, leaning,
                                 of_inputs + one * run);
            else
                NAME(spread_run)(0, inputs + one * run, gradient + one * run, run, period, slope, offset, own, leaning,
                                 of_inputs + one * run);
        }
    }
}

#undef PASSED_VECTOR
#undef PASSED_SINGLE
#undef ALONG
#undef READ
#undef AT
#undef CHOOSE
#undef LANES
#undef VECTOR
#undef SQUARE_ROOT
