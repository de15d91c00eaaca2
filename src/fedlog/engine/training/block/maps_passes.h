/* The passes of maps.c for numbers of type REAL on instruction set TARGET. No include guard: included for each.
   Plain loops over the records of a batch, which lie side by side: the compiler makes vectors of them. */

#define SQUARE_ROOT(x) __builtin_choose_expr(sizeof(REAL) == 4, __builtin_sqrtf(x), __builtin_sqrt(x))

/* The maximum of one window, and which of its places reached it first; a NaN wins. */
ALWAYS void NAME(window_maximum)(const REAL *restrict window, int64_t rows, int64_t columns, int64_t run, int64_t batch,
                                 REAL *restrict best, REAL *restrict winner)
{
    for (int64_t b = 0; b < batch; b++) {
        best[b] = window[b];
        winner[b] = 0;
    }
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = row == 0; column < columns; column++) {
            const REAL *value = window + row * run + column * batch, place = (REAL)(row * columns + column);
            for (int64_t b = 0; b < batch; b++) {
                const int better = !(value[b] <= best[b]) & (best[b] == best[b]);
                best[b] = better ? value[b] : best[b];
                winner[b] = better ? place : winner[b];
            }
        }
}

ALWAYS void NAME(window_mean)(const REAL *restrict window, int64_t rows, int64_t columns, int64_t run, int64_t batch,
                              REAL divisor, REAL *restrict mean)
{
    for (int64_t b = 0; b < batch; b++)
        mean[b] = 0;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++)
            for (int64_t b = 0; b < batch; b++)
                mean[b] += window[row * run + column * batch + b];
    for (int64_t b = 0; b < batch; b++)
        mean[b] /= divisor;
}

static void NAME(pool_forward)(const struct pooling *p, const REAL *inputs, REAL *outputs, REAL *winners)
{
    const int64_t run = p->columns_in * p->batch;
    for (int64_t plane = 0; plane < p->planes; plane++, inputs += p->rows_in * run)
        for (int64_t row = 0; row < p->rows_out; row++)
            for (int64_t column = 0; column < p->columns_out; column++, outputs += p->batch) {
                const int64_t top = p->row_from[row], left = p->column_from[column];
                const REAL *window = inputs + top * run + left * p->batch;
                const int64_t rows = p->row_to[row] - top, columns = p->column_to[column] - left;
                if (p->mean) {
                    NAME(window_mean)(window, rows, columns, run, p->batch,
                                      (REAL)p->divisor[row * p->columns_out + column], outputs);
                } else {
                    NAME(window_maximum)(window, rows, columns, run, p->batch, outputs, winners);
                    winners += p->batch;
                }
            }
}

static void NAME(pool_backward)(const struct pooling *p, const REAL *gradient, const REAL *winners, REAL *of_inputs)
{
    const int64_t run = p->columns_in * p->batch, batch = p->batch;
    for (int64_t plane = 0; plane < p->planes; plane++, of_inputs += p->rows_in * run) {
        memset(of_inputs, 0, (size_t)(p->rows_in * run) * sizeof(REAL));
        for (int64_t row = 0; row < p->rows_out; row++)
            for (int64_t column = 0; column < p->columns_out; column++, gradient += batch) {
                const int64_t left = p->column_from[column], columns = p->column_to[column] - left;
                const REAL divisor = p->mean ? (REAL)p->divisor[row * p->columns_out + column] : 1;
                for (int64_t at = 0; at < columns * (p->row_to[row] - p->row_from[row]); at++) {
                    REAL *restrict to = of_inputs + (p->row_from[row] + at / columns) * run + (left + at % columns) * batch;
                    for (int64_t b = 0; b < batch; b++)
                        to[b] += p->mean ? gradient[b] / divisor : winners[b] == (REAL)at ? gradient[b] : 0;
                }
                winners += p->mean ? 0 : batch;
            }
    }
}

/* What a record's values become: value * slope + offset, rectified. The same in both directions, so that they agree on
   which values ReLU stops. */
ALWAYS void NAME(slopes)(const REAL *restrict mean, const REAL *restrict scale, REAL weight, REAL bias, int64_t batch,
                         REAL *restrict slope, REAL *restrict offset)
{
    for (int64_t b = 0; b < batch; b++) {
        slope[b] = scale[b] * weight;
        offset[b] = bias - mean[b] * slope[b];
    }
}

/* The mean and 1 / the standard deviation of each record over one group. */
static void NAME(group_moments)(const struct norm *n, const REAL *restrict values, REAL *restrict mean,
                                REAL *restrict scale)
{
    const int64_t batch = n->batch, count = n->channels * n->places;
    memset(mean, 0, (size_t)batch * sizeof(REAL));
    memset(scale, 0, (size_t)batch * sizeof(REAL));
    for (int64_t at = 0; at < count; at++)
        for (int64_t b = 0; b < batch; b++)
            mean[b] += values[at * batch + b];
    for (int64_t b = 0; b < batch; b++)
        mean[b] /= (REAL)count;
    for (int64_t at = 0; at < count; at++)
        for (int64_t b = 0; b < batch; b++) {
            const REAL apart = values[at * batch + b] - mean[b];
            scale[b] += apart * apart;
        }
    for (int64_t b = 0; b < batch; b++)
        scale[b] = 1 / SQUARE_ROOT(scale[b] / (REAL)count + (REAL)n->epsilon);
}

static void NAME(norm_forward)(const struct norm *n, const REAL *inputs, const REAL *weight, const REAL *bias,
                               REAL *outputs, REAL *means, REAL *scales, REAL *scratch)
{
    const int64_t batch = n->batch;
    REAL *restrict slope = scratch, *restrict offset = scratch + batch;
    for (int64_t group = 0; group < n->clients * n->groups; group++, means += batch, scales += batch) {
        NAME(group_moments)(n, inputs, means, scales);
        for (int64_t channel = group * n->channels; channel < (group + 1) * n->channels; channel++) {
            NAME(slopes)(means, scales, weight ? weight[channel] : 1, bias ? bias[channel] : 0, batch, slope, offset);
            for (int64_t place = 0; place < n->places; place++, inputs += batch, outputs += batch)
                for (int64_t b = 0; b < batch; b++) {
                    const REAL value = inputs[b] * slope[b] + offset[b];
                    outputs[b] = n->rectify && value <= 0 ? 0 : value;
                }
        }
    }
}

static void NAME(norm_backward)(const struct norm *n, const REAL *inputs, const REAL *weight, const REAL *bias,
                                const REAL *means, const REAL *scales, const REAL *gradient, REAL *of_inputs,
                                REAL *of_weight, REAL *of_bias, REAL *scratch)
{
    const int64_t batch = n->batch, run = n->places * batch;
    REAL *restrict slope = scratch, *restrict offset = slope + batch, *restrict plain = offset + batch;
    REAL *restrict along = plain + batch, *restrict own = along + batch, *restrict leaning = own + batch;
    for (int64_t group = 0; group < n->clients * n->groups; group++, means += batch, scales += batch) {
        const int64_t first = group * n->channels;
        memset(own, 0, (size_t)(2 * batch) * sizeof(REAL)); /* and leaning */
        for (int64_t one = 0; one < n->channels; one++) {
            const REAL factor = weight ? weight[first + one] : 1, *value = inputs + one * run, *g = gradient + one * run;
            NAME(slopes)(means, scales, factor, bias ? bias[first + one] : 0, batch, slope, offset);
            memset(plain, 0, (size_t)(2 * batch) * sizeof(REAL)); /* and along */
            for (int64_t place = 0; place < n->places; place++, value += batch, g += batch)
                for (int64_t b = 0; b < batch; b++) {
                    const REAL passed = n->rectify && value[b] * slope[b] + offset[b] <= 0 ? 0 : g[b];
                    plain[b] += passed;
                    along[b] += passed * (value[b] - means[b]);
                }
            REAL of_one_weight = 0, of_one_bias = 0;
            for (int64_t b = 0; b < batch; b++) {
                of_one_weight += along[b] * scales[b];
                of_one_bias += plain[b];
                own[b] += factor * plain[b];
                leaning[b] += factor * along[b] * scales[b];
            }
            if (of_weight)
                of_weight[first + one] = of_one_weight;
            if (of_bias)
                of_bias[first + one] = of_one_bias;
        }
        const REAL count = (REAL)(n->channels * n->places);
        for (int64_t b = 0; b < batch; b++) { /* what all values of the group get: own + leaning * value */
            leaning[b] *= -scales[b] * scales[b] / count;
            own[b] = -scales[b] * own[b] / count - leaning[b] * means[b];
        }
        for (int64_t one = 0; one < n->channels && of_inputs; one++) {
            const REAL factor = weight ? weight[first + one] : 1, *value = inputs + one * run, *g = gradient + one * run;
            REAL *restrict to = of_inputs + one * run;
            NAME(slopes)(means, scales, factor, bias ? bias[first + one] : 0, batch, slope, offset);
            for (int64_t place = 0; place < n->places; place++, value += batch, g += batch, to += batch)
                for (int64_t b = 0; b < batch; b++) {
                    const REAL passed = n->rectify && value[b] * slope[b] + offset[b] <= 0 ? 0 : g[b];
                    to[b] = passed * slope[b] + (own[b] + leaning[b] * value[b]);
                }
        }
        inputs += n->channels * run;
        gradient += n->channels * run;
        if (of_inputs)
            of_inputs += n->channels * run;
    }
}

#undef SQUARE_ROOT
