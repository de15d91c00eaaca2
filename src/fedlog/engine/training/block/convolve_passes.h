/* The passes of convolve.c for numbers of type REAL on instruction set TARGET. No include guard: included for each. */

#define VECTOR NAME(vector)
#define LANES ((int64_t)(32 / sizeof(REAL)))

/* Loads and stores go to any address; the compiler keeps sums of this type in registers all the same. */
typedef REAL VECTOR __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
typedef __typeof__((VECTOR){0} < (VECTOR){0}) NAME(mask); /* all ones or all zeros in each lane */
#define CHOOSE(when, yes, no) ((VECTOR)(((when) & (NAME(mask))(yes)) | (~(when) & (NAME(mask))(no))))

/* Where a weighted sum over windows reads: `rows` x `channels` runs, each shifted `columns` times by `shift`. */
struct NAME(windows) {
    const REAL *first;
    int64_t row_step, channel_step, shift;
    int64_t rows, channels, columns;
};

/* For m channels and n vectors of neighbouring places: out = sum over the window of weight * value.
   m * n sums stay in registers; each value that is read serves m of them. */
ALWAYS void NAME(tile)(const int m, const int n, const struct NAME(windows) *w, int64_t at, const REAL *packed,
                       REAL *out, int64_t out_step)
{
    VECTOR sums[6][4];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            sums[i][j] = (VECTOR){0};
    for (int64_t row = 0; row < w->rows; row++)
        for (int64_t channel = 0; channel < w->channels; channel++) {
            const REAL *run = w->first + row * w->row_step + channel * w->channel_step + at;
            for (int64_t column = 0; column < w->columns; column++, run += w->shift, packed += m) {
                VECTOR values[4];
                for (int j = 0; j < n; j++)
                    values[j] = *(const VECTOR *)(run + j * LANES);
                for (int i = 0; i < m; i++)
                    for (int j = 0; j < n; j++)
                        sums[i][j] += packed[i] * values[j];
            }
        }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            *(VECTOR *)(out + i * out_step + j * LANES) = sums[i][j];
}

/* The same for one place, where a run is shorter than a vector. */
static void NAME(single)(int m, const struct NAME(windows) *w, int64_t at, const REAL *packed, REAL *out,
                         int64_t out_step)
{
    for (int i = 0; i < m; i++) {
        const REAL *weight = packed + i;
        REAL sum = 0;
        for (int64_t row = 0; row < w->rows; row++)
            for (int64_t channel = 0; channel < w->channels; channel++)
                for (int64_t column = 0; column < w->columns; column++, weight += m)
                    sum += *weight * w->first[row * w->row_step + channel * w->channel_step + column * w->shift + at];
        out[i * out_step] = sum;
    }
}

/* m * n must be at least 8 or so to hide the latency of a multiplication, and leave registers for the operands. */
ALWAYS int NAME(vectors_at_once)(int m) { return m > 4 ? 2 : m == 4 ? 3 : 4; }

static void NAME(tiles)(int m, int n, const struct NAME(windows) *w, int64_t at, const REAL *packed, REAL *out,
                        int64_t step)
{
#define CASE(M, N) case 8 * M + N: NAME(tile)(M, N, w, at, packed, out, step); break;
    switch (8 * m + n) {
        CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4)
        CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4)
        CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(3, 4)
        CASE(4, 1) CASE(4, 2) CASE(4, 3)
        CASE(5, 1) CASE(5, 2)
        CASE(6, 1) CASE(6, 2)
    }
#undef CASE
}

/* How many channels are summed at once: a number that divides them evenly if there is one. */
static int NAME(channels_at_once)(int64_t channels)
{
    static const int tried[] = {4, 6, 5, 3};
    for (int i = 0; i < 4; i++)
        if (channels % tried[i] == 0)
            return tried[i];
    return 4;
}

/* One row of all output channels. `packed` holds one matrix per group of channels, `group_step` numbers per channel
   apart, of which the rows from `skipped` on are used. */
static void NAME(output_row)(int64_t channels, int64_t length, const struct NAME(windows) *w, const REAL *packed,
                             int64_t group_step, int64_t skipped, REAL *out, int64_t out_step)
{
    const int most = NAME(channels_at_once)(channels);
    const int64_t skip = skipped * w->channels * w->columns;
    for (int64_t at = 0; at < length;) {
        int64_t whole = (length - at) / LANES;
        int64_t n = whole < NAME(vectors_at_once)(most) ? whole : NAME(vectors_at_once)(most);
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
                NAME(tiles)(m, (int)n, w, at, weights, place, out_step);
        }
        at += n == 0 ? 1 : n * LANES;
    }
}

/* Weights in the order in which the sums need them: by group of output channels, then kernel row, input channel and
   kernel column, then the channels of the group. `flip` turns kernels round and exchanges input and output. */
static void NAME(pack)(const struct sizes *s, const REAL *weight, int flip, REAL *packed)
{
    const int64_t out = flip ? s->channels_in : s->channels_out, in = flip ? s->channels_out : s->channels_in;
    const int64_t rows = s->kernel_rows, columns = s->kernel_columns;
    const int64_t from_out = flip ? rows * columns : in * rows * columns;
    const int64_t from_in = flip ? out * rows * columns : rows * columns;
    const int most = NAME(channels_at_once)(out);
    for (int64_t group = 0; group < out; group += most)
        for (int64_t row = 0; row < rows; row++)
            for (int64_t channel = 0; channel < in; channel++)
                for (int64_t column = 0; column < columns; column++)
                    for (int64_t one = group; one < group + most && one < out; one++) {
                        int64_t at = flip ? (rows - 1 - row) * columns + columns - 1 - column : row * columns + column;
                        *packed++ = weight[one * from_out + channel * from_in + at];
                    }
}

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

static void NAME(forward)(const struct sizes *s, const REAL *inputs, const REAL *weight, const REAL *bias,
                          REAL *pooled, REAL *winners, REAL *scratch)
{
    const int64_t rows_out = (s->rows_in - s->kernel_rows + 1) / s->pool_rows;
    const int64_t columns_out = (s->columns_in - s->kernel_columns + 1) / s->pool_columns;
    const int64_t run = s->columns_in * s->batch, length = columns_out * s->pool_columns * s->batch;
    const int64_t kernel = s->channels_in * s->kernel_rows * s->kernel_columns;
    const int64_t out_channel = rows_out * columns_out * s->batch;
    REAL *packed = scratch, *convolved = scratch + packed_size(s);
    for (int64_t client = 0; client < s->clients; client++) {
        NAME(pack)(s, weight + client * s->channels_out * kernel, 0, packed);
        for (int64_t row = 0; row < rows_out; row++) {
            for (int64_t part = 0; part < s->pool_rows; part++) {
                const struct NAME(windows) w = {
                    inputs + client * s->channels_in * s->rows_in * run + (row * s->pool_rows + part) * run,
                    run, s->rows_in * run, s->batch, s->kernel_rows, s->channels_in, s->kernel_columns};
                NAME(output_row)(s->channels_out, length, &w, packed, kernel, 0, convolved + part * length,
                                 s->pool_rows * length);
            }
            for (int64_t channel = 0; channel < s->channels_out; channel++) {
                int64_t at = (client * s->channels_out + channel) * out_channel + row * columns_out * s->batch;
                NAME(pool_row)(s, convolved + channel * s->pool_rows * length, length, columns_out,
                               bias ? bias[client * s->channels_out + channel] : 0, pooled + at,
                               winners ? winners + at : NULL);
            }
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

/* The sum of the gradients that ReLU lets through. */
static REAL NAME(sum_of_passed)(const REAL *gradient, const REAL *winners, int64_t length)
{
    VECTOR total = {0};
    REAL sum = 0;
    int64_t at = 0;
    for (; at + LANES <= length; at += LANES)
        total += CHOOSE(*(const VECTOR *)(winners + at) >= 0, *(const VECTOR *)(gradient + at), (VECTOR){0});
    for (; at < length; at++)
        sum += winners[at] >= 0 ? gradient[at] : 0;
    for (int lane = 0; lane < LANES; lane++)
        sum += total[lane];
    return sum;
}

/* sums[i][j] += dot product of the i-th run of gradients with the inputs shifted by j columns, over some rows. */
ALWAYS void NAME(dot_tile)(const int m, const int n, const REAL *gradient, int64_t gradient_step, const REAL *inputs,
                           int64_t shift, int64_t rows, int64_t gradient_row, int64_t input_row, int64_t length,
                           REAL *sums, int64_t sums_step)
{
    VECTOR totals[4][3];
    REAL rest[4][3];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            totals[i][j] = (VECTOR){0};
            rest[i][j] = 0;
        }
    for (int64_t row = 0; row < rows; row++, gradient += gradient_row, inputs += input_row) {
        int64_t at = 0;
        for (; at + LANES <= length; at += LANES) {
            VECTOR own[4];
            for (int i = 0; i < m; i++)
                own[i] = *(const VECTOR *)(gradient + i * gradient_step + at);
            for (int j = 0; j < n; j++) {
                const VECTOR seen = *(const VECTOR *)(inputs + j * shift + at);
                for (int i = 0; i < m; i++)
                    totals[i][j] += own[i] * seen;
            }
        }
        for (; at < length; at++)
            for (int i = 0; i < m; i++)
                for (int j = 0; j < n; j++)
                    rest[i][j] += gradient[i * gradient_step + at] * inputs[j * shift + at];
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            REAL sum = rest[i][j];
            for (int lane = 0; lane < LANES; lane++)
                sum += totals[i][j][lane];
            sums[i * sums_step + j] += sum;
        }
}

static void NAME(dots)(int m, int n, const REAL *gradient, int64_t gradient_step, const REAL *inputs, int64_t shift,
                       int64_t rows, int64_t gradient_row, int64_t input_row, int64_t length, REAL *sums,
                       int64_t sums_step)
{
#define CASE(M, N) \
    case 8 * M + N: \
        NAME(dot_tile)(M, N, gradient, gradient_step, inputs, shift, rows, gradient_row, input_row, length, sums, \
                       sums_step); \
        break;
    switch (8 * m + n) {
        CASE(1, 1) CASE(1, 2) CASE(1, 3)
        CASE(2, 1) CASE(2, 2) CASE(2, 3)
        CASE(3, 1) CASE(3, 2) CASE(3, 3)
        CASE(4, 1) CASE(4, 2) CASE(4, 3)
    }
#undef CASE
}

/* The kernels' gradient of one client; `spread` is the gradient before pooling. A few rows at a time, so that what
   all kernel rows and input channels read again is still in the nearest cache. */
static void NAME(weight_gradient)(const struct sizes *s, const REAL *inputs, const REAL *spread, int64_t rows,
                                  int64_t spread_run, int64_t length, REAL *of_weight)
{
    const int64_t run = s->columns_in * s->batch, kernel = s->kernel_rows * s->kernel_columns;
    const int64_t at_once = length >= 2048 ? 1 : 2048 / length;
    /* 4 x 3 sums read least per multiplication; six channels are better taken as twice three than as four and two. */
    const int64_t most = s->channels_out % 4 && s->channels_out % 3 == 0 ? 3 : 4, wide = 3;
    memset(of_weight, 0, (size_t)(s->channels_out * s->channels_in * kernel) * sizeof(REAL));
    for (int64_t row = 0; row < rows; row += at_once)
        for (int64_t out = 0; out < s->channels_out; out += most)
            for (int64_t down = 0; down < s->kernel_rows; down++)
                for (int64_t in = 0; in < s->channels_in; in++)
                    for (int64_t along = 0; along < s->kernel_columns; along += wide) {
                        int64_t m = s->channels_out - out < most ? s->channels_out - out : most;
                        int64_t n = s->kernel_columns - along < wide ? s->kernel_columns - along : wide;
                        int64_t now = rows - row < at_once ? rows - row : at_once;
                        NAME(dots)((int)m, (int)n, spread + (out * rows + row) * spread_run, rows * spread_run,
                                   inputs + (in * s->rows_in + row + down) * run + along * s->batch, s->batch, now,
                                   spread_run, run, length,
                                   of_weight + (out * s->channels_in + in) * kernel + down * s->kernel_columns + along,
                                   s->channels_in * kernel);
                    }
}

/* The inputs' gradient of one client: a convolution of the spread gradient, framed by zeros, with turned kernels. */
static void NAME(input_gradient)(const struct sizes *s, const REAL *packed, const REAL *spread, int64_t rows,
                                 int64_t spread_run, REAL *of_inputs)
{
    const int64_t run = s->columns_in * s->batch, kernel = s->channels_out * s->kernel_rows * s->kernel_columns;
    for (int64_t row = 0; row < s->rows_in; row++) {
        const int64_t top = row - (s->kernel_rows - 1);
        const int64_t first = top < 0 ? -top : 0, end = rows - top < s->kernel_rows ? rows - top : s->kernel_rows;
        const struct NAME(windows) w = {spread + (top + first) * spread_run, spread_run, rows * spread_run, s->batch,
                                        end > first ? end - first : 0, s->channels_out, s->kernel_columns};
        NAME(output_row)(s->channels_in, run, &w, packed, kernel, first, of_inputs + row * run, s->rows_in * run);
    }
}

static void NAME(backward)(const struct sizes *s, const REAL *inputs, const REAL *weight, const REAL *winners,
                           const REAL *gradient, REAL *of_inputs, REAL *of_weight, REAL *of_bias, REAL *scratch)
{
    const int64_t rows_out = (s->rows_in - s->kernel_rows + 1) / s->pool_rows, rows = rows_out * s->pool_rows;
    const int64_t columns_out = (s->columns_in - s->kernel_columns + 1) / s->pool_columns;
    const int64_t pooled_run = columns_out * s->batch, length = pooled_run * s->pool_columns;
    const int64_t frame = (s->kernel_columns - 1) * s->batch, spread_run = s->columns_in * s->batch + frame;
    const int64_t map_in = s->channels_in * s->rows_in * s->columns_in * s->batch;
    const int64_t map_out = s->channels_out * rows_out * pooled_run;
    const int64_t kernels = s->channels_out * s->channels_in * s->kernel_rows * s->kernel_columns;
    REAL *packed = scratch, *spread = scratch + packed_size(s);
    for (int64_t run = 0; run < s->channels_out * rows; run++) { /* the frame is written once, the inside per client */
        memset(spread + run * spread_run, 0, (size_t)frame * sizeof(REAL));
        memset(spread + run * spread_run + frame + length, 0, (size_t)(spread_run - frame - length) * sizeof(REAL));
    }
    for (int64_t client = 0; client < s->clients; client++) {
        const REAL *own = gradient + client * map_out, *won = winners + client * map_out;
        for (int64_t row = 0; row < s->channels_out * rows_out; row++)
            NAME(unpool_row)(s, own + row * pooled_run, won + row * pooled_run, columns_out,
                             spread + row * s->pool_rows * spread_run + frame, spread_run);
        for (int64_t channel = 0; of_bias && channel < s->channels_out; channel++)
            of_bias[client * s->channels_out + channel] = NAME(sum_of_passed)(
                own + channel * rows_out * pooled_run, won + channel * rows_out * pooled_run, rows_out * pooled_run);
        if (of_weight)
            NAME(weight_gradient)(s, inputs + client * map_in, spread + frame, rows, spread_run, length,
                                  of_weight + client * kernels);
        if (of_inputs) {
            NAME(pack)(s, weight + client * kernels, 1, packed);
            NAME(input_gradient)(s, packed, spread, rows, spread_run, of_inputs + client * map_in);
        }
    }
}

#undef CHOOSE
#undef VECTOR
#undef LANES
