/* Normalisation, with the pooling and ReLU behind it. Included by maps_passes.h, which names the vectors.

   It goes along whole runs of places * batch numbers. What belongs to each record is written down as a pattern: repeated
   until it fills whole vectors, `period` numbers. A few neighbouring vectors of the pattern stay in registers while the
   run is read, one period after the other. */

#define SQUARE_ROOT(x) __builtin_choose_expr(sizeof(REAL) == 4, __builtin_sqrtf(x), __builtin_sqrt(x))
enum { NAME(columns_at_once) = 5 }; /* vectors of a pattern that stay in registers */
enum { NAME(near_numbers) = 4096 }; /* of a run, which stay in the first cache */

static int64_t NAME(period)(int64_t batch)
{
    int64_t period = batch;
    while (period % LANES || period < 4 * LANES)
        period += batch;
    return period;
}

/* The pattern of one number per record, repeated. */
ALWAYS void NAME(repeat)(REAL *pattern, int64_t batch, int64_t period)
{
    for (int64_t at = batch; at < period; at++)
        pattern[at] = pattern[at - batch];
}

/* Each record's sum of what stands in a pattern, at its beginning. */
ALWAYS void NAME(fold)(REAL *pattern, int64_t batch, int64_t period)
{
    for (int64_t from = batch; from < period; from += batch)
        for (int64_t at = 0; at < batch; at++)
            pattern[at] += pattern[from + at];
}

/* Do COLUMNS(n) for n neighbouring vectors of the pattern from `t` on, in `count` periods of the run from `start` on, and
   SINGLES for what is left, `at` in the run and `t` in the pattern. */
#define ALONG(run, period, COLUMNS, SINGLES)                                                                        \
    const int64_t whole = (run) / (period), beside = NAME(near_numbers) / (period) + 1;                             \
    for (int64_t one = 0; one < whole; one += beside) {                                                             \
        const int64_t start = one * (period), count = whole - one < beside ? whole - one : beside;                  \
        for (int64_t t = 0, n = 0; t < (period); t += n * LANES) {                                                  \
            n = ((period)-t) / LANES;                                                                               \
            n = n > NAME(columns_at_once) ? NAME(columns_at_once) : n;                                              \
            switch (n) {                                                                                            \
            case 1: COLUMNS(1); break;                                                                              \
            case 2: COLUMNS(2); break;                                                                              \
            case 3: COLUMNS(3); break;                                                                              \
            case 4: COLUMNS(4); break;                                                                              \
            default: COLUMNS(5); break;                                                                             \
            }                                                                                                       \
        }                                                                                                           \
    }                                                                                                               \
    for (int64_t t = 0, at = whole * (period); at < (run); t++, at++) {                                             \
        SINGLES                                                                                                     \
    }
#define EACH(n) _Pragma("GCC unroll 5") for (int k = 0; k < (n); k++)

/* sum += the values. */
ALWAYS void NAME(sum_columns)(const int n, const REAL *values, int64_t count, int64_t period, REAL *sum)
{
    VECTOR total[5];
    EACH(n) total[k] = READ(sum + k * LANES);
    for (; count > 0; count--, values += period)
        EACH(n) total[k] += READ(values + k * LANES);
    EACH(n) AT(sum + k * LANES) = total[k];
}

/* sum += the squares of the values' distances from their mean. */
ALWAYS void NAME(square_columns)(const int n, const REAL *values, int64_t count, int64_t period, const REAL *mean,
                                 REAL *sum)
{
    VECTOR total[5], middle[5];
    EACH(n) total[k] = READ(sum + k * LANES);
    EACH(n) middle[k] = READ(mean + k * LANES);
    for (; count > 0; count--, values += period)
        EACH(n) {
            const VECTOR apart = READ(values + k * LANES) - middle[k];
            total[k] += apart * apart;
        }
    EACH(n) AT(sum + k * LANES) = total[k];
}

/* The mean of each record over one group as a pattern. */
static void NAME(group_means)(const REAL *values, int64_t run, int64_t batch, int64_t period, REAL *mean)
{
    memset(mean, 0, (size_t)period * sizeof(REAL));
#define COLUMNS(n) NAME(sum_columns)(n, values + start + t, count, period, mean + t)
    ALONG(run, period, COLUMNS, mean[t] += values[at];)
#undef COLUMNS
    NAME(fold)(mean, batch, period);
    for (int64_t b = 0; b < batch; b++)
        mean[b] /= (REAL)(run / batch);
    NAME(repeat)(mean, batch, period);
}

/* 1 / each record's standard deviation. */
static void NAME(group_scales)(const REAL *values, int64_t run, int64_t batch, int64_t period, double epsilon,
                               const REAL *mean, REAL *scale)
{
    memset(scale, 0, (size_t)period * sizeof(REAL));
#define COLUMNS(n) NAME(square_columns)(n, values + start + t, count, period, mean + t, scale + t)
    ALONG(run, period, COLUMNS, const REAL apart = values[at] - mean[t]; scale[t] += apart * apart;)
#undef COLUMNS
    NAME(fold)(scale, batch, period);
    for (int64_t b = 0; b < batch; b++)
        scale[b] = 1 / SQUARE_ROOT(scale[b] / (REAL)(run / batch) + (REAL)epsilon);
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

ALWAYS void NAME(normalise_columns)(const int n, const int rectify, const REAL *values, int64_t count, int64_t period,
                                    const REAL *slope, const REAL *offset, REAL *outputs)
{
    VECTOR slopes[5], offsets[5];
    EACH(n) slopes[k] = READ(slope + k * LANES);
    EACH(n) offsets[k] = READ(offset + k * LANES);
    for (; count > 0; count--, values += period, outputs += period)
        EACH(n) {
            VECTOR value = READ(values + k * LANES) * slopes[k] + offsets[k];
            if (rectify)
                value = CHOOSE(value <= 0, (VECTOR){0}, value);
            AT(outputs + k * LANES) = value;
        }
}

ALWAYS void NAME(normalise_run)(const int rectify, const REAL *values, int64_t run, int64_t period, const REAL *slope,
                                const REAL *offset, REAL *outputs)
{
#define COLUMNS(n)                                                                                                 \
    NAME(normalise_columns)(n, rectify, values + start + t, count, period, slope + t, offset + t, outputs + start + t)
    ALONG(run, period, COLUMNS, const REAL value = values[at] * slope[t] + offset[t];
          outputs[at] = rectify && value <= 0 ? 0 : value;)
#undef COLUMNS
}

/* One channel, normalised a few rows at a time, which are pooled while they are in the cache. */
static void NAME(normalise_pooled)(const struct norm *n, const struct pool_windows *behind, const REAL *values,
                                   int64_t period, const REAL *slope, const REAL *offset, REAL *rows, REAL *outputs,
                                   REAL *winners)
{
    const int64_t run = n->columns * n->batch, windows = n->columns / n->pool_columns;
    for (int64_t row = 0; row < n->rows / n->pool_rows; row++, outputs += windows * n->batch) {
        NAME(normalise_run)(0, values + row * n->pool_rows * run, n->pool_rows * run, period, slope, offset, rows);
        NAME(pool_row)(behind, rows, run, windows, 0, outputs, winners);
        if (winners)
            winners += windows * n->batch;
    }
}

static void NAME(norm_forward)(const struct norm *n, const REAL *inputs, const REAL *weight, const REAL *bias,
                               REAL *outputs, REAL *means, REAL *scales, REAL *winners, REAL *scratch)
{
    const int64_t batch = n->batch, run = n->rows * n->columns * batch, period = NAME(period)(batch);
    const int64_t pooled = n->rows / n->pool_rows * (n->columns / n->pool_columns) * batch;
    const struct pool_windows behind = {batch, n->pool_rows, n->pool_columns, n->rectify};
    REAL *slope = scratch, *offset = slope + period, *mean = offset + period, *scale = mean + period;
    REAL *rows = scale + period;
    for (int64_t group = 0; group < n->clients * n->groups; group++) {
        NAME(group_means)(inputs, n->channels * run, batch, period, mean);
        NAME(group_scales)(inputs, n->channels * run, batch, period, n->epsilon, mean, scale);
        memcpy(means + group * batch, mean, (size_t)batch * sizeof(REAL));
        memcpy(scales + group * batch, scale, (size_t)batch * sizeof(REAL));
        for (int64_t channel = group * n->channels; channel < (group + 1) * n->channels; channel++) {
            NAME(slopes)(mean, scale, weight ? weight[channel] : 1, bias ? bias[channel] : 0, period, slope, offset);
            if (n->pool_rows * n->pool_columns > 1)
                NAME(normalise_pooled)(n, &behind, inputs, period, slope, offset, rows, outputs,
                                       winners ? winners + channel * pooled : NULL);
            else if (n->rectify)
                NAME(normalise_run)(1, inputs, run, period, slope, offset, outputs);
            else
                NAME(normalise_run)(0, inputs, run, period, slope, offset, outputs);
            inputs += run;
            outputs += pooled;
        }
    }
}

/* Sums of the gradient that ReLU lets through, and of its products with the values' distance from their mean. */
ALWAYS void NAME(add_columns)(const int n, const int rectify, const REAL *values, const REAL *gradient, int64_t count,
                              int64_t period, const REAL *mean, const REAL *slope, const REAL *offset, REAL *plain,
                              REAL *along)
{
    VECTOR plains[5], alongs[5], middle[5], slopes[5], offsets[5];
    EACH(n) plains[k] = READ(plain + k * LANES);
    EACH(n) alongs[k] = READ(along + k * LANES);
    EACH(n) middle[k] = READ(mean + k * LANES);
    EACH(n) slopes[k] = READ(slope + k * LANES);
    EACH(n) offsets[k] = READ(offset + k * LANES);
    for (; count > 0; count--, values += period, gradient += period)
        EACH(n) {
            const VECTOR value = READ(values + k * LANES);
            VECTOR own = READ(gradient + k * LANES);
            if (rectify)
                own = CHOOSE(value * slopes[k] + offsets[k] <= 0, (VECTOR){0}, own);
            plains[k] += own;
            alongs[k] += own * (value - middle[k]);
        }
    EACH(n) AT(plain + k * LANES) = plains[k];
    EACH(n) AT(along + k * LANES) = alongs[k];
}

ALWAYS void NAME(add_run)(const int rectify, const REAL *values, const REAL *gradient, int64_t run, int64_t period,
                          const REAL *mean, const REAL *slope, const REAL *offset, REAL *plain, REAL *along)
{
    memset(plain, 0, (size_t)period * sizeof(REAL));
    memset(along, 0, (size_t)period * sizeof(REAL));
#define COLUMNS(n)                                                                                                 \
    NAME(add_columns)(n, rectify, values + start + t, gradient + start + t, count, period, mean + t, slope + t,     \
                      offset + t, plain + t, along + t)
    ALONG(run, period, COLUMNS,
          const REAL own = rectify && values[at] * slope[t] + offset[t] <= 0 ? 0 : gradient[at];
          plain[t] += own; along[t] += own * (values[at] - mean[t]);)
#undef COLUMNS
}

/* The gradient of the values: what comes through ReLU * slope, and own + leaning * value for all of a group. */
ALWAYS void NAME(spread_columns)(const int n, const int rectify, const REAL *values, const REAL *gradient,
                                 int64_t count, int64_t period, const REAL *slope, const REAL *offset, const REAL *own,
                                 const REAL *leaning, REAL *to)
{
    VECTOR slopes[5], offsets[5], owns[5], leanings[5];
    EACH(n) slopes[k] = READ(slope + k * LANES);
    EACH(n) offsets[k] = READ(offset + k * LANES);
    EACH(n) owns[k] = READ(own + k * LANES);
    EACH(n) leanings[k] = READ(leaning + k * LANES);
    for (; count > 0; count--, values += period, gradient += period, to += period)
        EACH(n) {
            const VECTOR value = READ(values + k * LANES);
            VECTOR passed = READ(gradient + k * LANES);
            if (rectify)
                passed = CHOOSE(value * slopes[k] + offsets[k] <= 0, (VECTOR){0}, passed);
            AT(to + k * LANES) = passed * slopes[k] + (owns[k] + leanings[k] * value);
        }
}

ALWAYS void NAME(spread_run)(const int rectify, const REAL *values, const REAL *gradient, int64_t run, int64_t period,
                             const REAL *slope, const REAL *offset, const REAL *own, const REAL *leaning, REAL *to)
{
#define COLUMNS(n)                                                                                                 \
    NAME(spread_columns)(n, rectify, values + start + t, gradient + start + t, count, period, slope + t,            \
                         offset + t, own + t, leaning + t, to + start + t)
    ALONG(run, period, COLUMNS,
          const REAL passed = rectify && values[at] * slope[t] + offset[t] <= 0 ? 0 : gradient[at];
          to[at] = passed * slope[t] + (own[t] + leaning[t] * values[at]);)
#undef COLUMNS
}

/* The gradient of one group before pooling. */
static void NAME(unpool_group)(const struct norm *n, const REAL *gradient, const REAL *winners, REAL *spread)
{
    const struct pool_windows behind = {n->batch, n->pool_rows, n->pool_columns, n->rectify};
    const int64_t run = n->columns * n->batch, windows = n->columns / n->pool_columns;
    for (int64_t channel = 0; channel < n->channels; channel++)
        for (int64_t row = 0; row < n->rows / n->pool_rows; row++) {
            NAME(unpool_row)(&behind, gradient, winners, windows,
                             spread + (channel * n->rows + row * n->pool_rows) * run, run);
            gradient += windows * n->batch;
            winners += windows * n->batch;
        }
}

static void NAME(norm_backward)(const struct norm *n, const REAL *inputs, const REAL *weight, const REAL *bias,
                                const REAL *means, const REAL *scales, const REAL *winners, const REAL *gradient,
                                REAL *of_inputs, REAL *of_weight, REAL *of_bias, REAL *scratch)
{
    const int64_t batch = n->batch, run = n->rows * n->columns * batch, period = NAME(period)(batch);
    const int64_t pooled = n->rows / n->pool_rows * (n->columns / n->pool_columns) * batch;
    const int pools = n->pool_rows * n->pool_columns > 1, rectify = n->rectify && !pools;
    const REAL count = (REAL)(n->channels * n->rows * n->columns);
    REAL *slope = scratch, *offset = slope + period, *mean = offset + period, *scale = mean + period;
    REAL *plain = scale + period, *along = plain + period, *own = along + period, *leaning = own + period;
    REAL *spread = leaning + period;
    if (pools) /* rows and columns that are in no window stay zero */
        memset(spread, 0, (size_t)(n->channels * run) * sizeof(REAL));
    for (int64_t group = 0; group < n->clients * n->groups; group++) {
        const int64_t first = group * n->channels;
        const REAL *before = pools ? spread : gradient + first * run;
        if (pools)
            NAME(unpool_group)(n, gradient + first * pooled, winners + first * pooled, spread);
        memcpy(mean, means + group * batch, (size_t)batch * sizeof(REAL));
        memcpy(scale, scales + group * batch, (size_t)batch * sizeof(REAL));
        NAME(repeat)(mean, batch, period);
        NAME(repeat)(scale, batch, period);
        memset(own, 0, (size_t)(2 * period) * sizeof(REAL)); /* and leaning */
        for (int64_t one = first; one < first + n->channels; one++) {
            const REAL factor = weight ? weight[one] : 1, *values = inputs + one * run;
            const REAL *g = before + (one - first) * run;
            REAL of_one_weight = 0, of_one_bias = 0;
            NAME(slopes)(mean, scale, factor, bias ? bias[one] : 0, period, slope, offset);
            if (rectify)
                NAME(add_run)(1, values, g, run, period, mean, slope, offset, plain, along);
            else
                NAME(add_run)(0, values, g, run, period, mean, slope, offset, plain, along);
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
            const REAL *g = before + (one - first) * run;
            NAME(slopes)(mean, scale, weight ? weight[one] : 1, bias ? bias[one] : 0, period, slope, offset);
            if (rectify)
                NAME(spread_run)(1, inputs + one * run, g, run, period, slope, offset, own, leaning,
                                 of_inputs + one * run);
            else
                NAME(spread_run)(0, inputs + one * run, g, run, period, slope, offset, own, leaning,
                                 of_inputs + one * run);
        }
    }
}

#undef EACH
#undef ALONG
#undef SQUARE_ROOT
