/* The passes of convolve.c for numbers of type REAL on instruction set TARGET. No include guard: included for each. */

/* Where a weighted sum over windows reads: `rows` x `channels` runs, in each at `columns` offsets. Outside of places
   begins[column] to ends[column] only zeros are read, and need not be; NULL: everything is. */
struct NAME(windows) {
    const REAL *first;
    int64_t row_step, channel_step;
    int64_t rows, channels, columns;
    const int64_t *offsets, *begins, *ends;
};

/* The sums of m channels for one place, where a run is shorter than a vector. */
static void NAME(single)(int m, const struct NAME(windows) *w, int64_t at, const REAL *packed, REAL *out,
                         int64_t out_step)
{
    for (int i = 0; i < m; i++) {
        const REAL *weight = packed + i;
        REAL sum = 0;
        for (int64_t row = 0; row < w->rows; row++)
            for (int64_t channel = 0; channel < w->channels; channel++)
                for (int64_t column = 0; column < w->columns; column++, weight += m)
                    sum += *weight * w->first[row * w->row_step + channel * w->channel_step + w->offsets[column] + at];
        out[i * out_step] = sum;
    }
}

/* How many channels are summed at once: a number that divides them evenly if there is one. */
static int NAME(channels_at_once)(int64_t channels)
{
#ifdef LONG_VECTORS /* and twice as many registers */
    if (channels % 8 == 0)
        return 8;
#endif
    static const int tried[] = {4, 6, 5, 3};
    for (int i = 0; i < 4; i++)
        if (channels % tried[i] == 0)
            return tried[i];
    return 4;
}

#define WIDTH short
#define BYTES 32
#include "convolve_sums.h"
#undef BYTES
#undef WIDTH
#ifdef LONG_VECTORS
#define WIDTH long
#define BYTES 64
#include "convolve_sums.h"
#undef BYTES
#undef WIDTH
#endif

#define VECTOR NAME(vector_short)
#define LANES ((int64_t)(32 / sizeof(REAL)))
typedef __typeof__((VECTOR){0} < (VECTOR){0}) NAME(mask); /* all ones or all zeros in each lane */
#define CHOOSE(when, yes, no) ((VECTOR)(((when) & (NAME(mask))(yes)) | (~(when) & (NAME(mask))(no))))
#include "convolve_pools.h"
#include "convolve_dots.h"

/* One row of all output channels, by the longest vectors that it fills. */
static void NAME(output_row)(int64_t channels, int64_t length, const struct NAME(windows) *w, const REAL *packed,
                             int64_t group_step, int64_t skipped, REAL *out, int64_t out_step)
{
#ifdef LONG_VECTORS
    if (length >= (int64_t)(64 / sizeof(REAL))) {
        NAME(sum_row_long)(channels, length, w, packed, group_step, skipped, out, out_step);
        return;
    }
#endif
    NAME(sum_row_short)(channels, length, w, packed, group_step, skipped, out, out_step);
}

#if defined(LONG_VECTORS) && SIZE(REAL) == 4
#include "convolve_winners.h"
#endif
#include "convolve_winograd.h"
#include "convolve_pairs.h"
#include "convolve_tiled.h"

/* Weights in the order in which the sums need them: by group of output channels, then kernel row, input channel and
   kernel column, then the channels of the group. */
static void NAME(pack)(const struct sizes *s, const REAL *weight, REAL *packed)
{
    const int64_t rows = s->kernel_rows, columns = s->kernel_columns, in = s->channels_in;
    const int most = NAME(channels_at_once)(s->channels_out);
    for (int64_t group = 0; group < s->channels_out; group += most)
        for (int64_t row = 0; row < rows; row++)
            for (int64_t channel = 0; channel < in; channel++)
                for (int64_t column = 0; column < columns; column++)
                    for (int64_t one = group; one < group + most && one < s->channels_out; one++)
                        *packed++ = weight[((one * in + channel) * rows + row) * columns + column];
}

/* The same for the way back: inputs and outputs exchanged, kernels turned round, of them only the rows and columns that
   meet inputs of these phases. */
static void NAME(pack_turned)(const struct sizes *s, const REAL *weight, int64_t row_phase, int64_t column_phase,
                              REAL *packed)
{
    const int64_t rows = places_at(s->kernel_rows, s->stride_rows, row_phase);
    const int64_t columns = places_at(s->kernel_columns, s->stride_columns, column_phase);
    const int64_t out = s->channels_in, in = s->channels_out, kernel = s->kernel_rows * s->kernel_columns;
    const int most = NAME(channels_at_once)(out);
    for (int64_t group = 0; group < out; group += most)
        for (int64_t row = rows - 1; row >= 0; row--)
            for (int64_t channel = 0; channel < in; channel++)
                for (int64_t column = columns - 1; column >= 0; column--) {
                    const int64_t at = (row_phase + row * s->stride_rows) * s->kernel_columns + column_phase +
                                       column * s->stride_columns;
                    for (int64_t one = group; one < group + most && one < out; one++)
                        *packed++ = weight[(channel * out + one) * kernel + at];
                }
}

/* One client's map where the passes read it: as it is, or copied into its frame. With strides that are larger than the
   kernel, rows and columns that no window reads are left out. */
static const REAL *NAME(framed)(const struct sizes *s, const struct geometry *g, const REAL *map, REAL *frame)
{
    const int64_t batch = s->batch, columns = s->columns_in * batch;
    if (!g->framed)
        return map;
    for (int64_t channel = 0; channel < s->channels_in; channel++)
        for (int64_t row = 0; row < s->rows_in; row++, map += columns) {
            REAL *to = frame + (channel * g->rows_framed + s->pad_top + row) * g->run;
            if ((s->pad_top + row) % s->stride_rows >= s->kernel_rows)
                continue;
            if (s->stride_columns == 1)
                memcpy(to + s->pad_left * batch, map, (size_t)columns * sizeof(REAL));
            for (int64_t first = 0; s->stride_columns > 1 && first < s->stride_columns; first++)
                if ((first + s->pad_left) % s->stride_columns < s->kernel_columns)
                    NAME(copy_columns)(map + first * batch, s->stride_columns,
                                       to + column_offset(s, g, first + s->pad_left), 1,
                                       places_at(s->columns_in, s->stride_columns, first), batch);
        }
    return frame;
}

static void NAME(forward)(const struct sizes *s, const REAL *inputs, const REAL *weight, const REAL *bias,
                          REAL *pooled, REAL *winners, REAL *scratch)
{
    const struct geometry g = geometry_of(s);
    const struct pool_windows behind = pool_of(s);
    const int64_t map_in = s->channels_in * s->rows_in * s->columns_in * s->batch;
    const int64_t kernel = s->channels_in * s->kernel_rows * s->kernel_columns;
    const int64_t run_out = g.columns_out * s->batch, out_channel = g.rows_out * run_out;
    REAL *packed = scratch, *frame = scratch + packed_size(s), *convolved = frame + framed_size(s, &g);
    if (g.tiled) {
        NAME(forward_tiles)(s, &g, inputs, weight, bias, pooled, winners, scratch);
        return;
    }
    int64_t offsets[s->kernel_columns];
    for (int64_t column = 0; column < s->kernel_columns; column++)
        offsets[column] = column_offset(s, &g, column);
    memset(frame, 0, (size_t)framed_size(s, &g) * sizeof(REAL));
    for (int64_t client = 0; client < s->clients; client++) {
        const REAL *map = NAME(framed)(s, &g, inputs + client * map_in, frame);
        REAL *own = pooled + client * s->channels_out * out_channel;
        const REAL *shift = bias ? bias + client * s->channels_out : NULL;
        NAME(pack)(s, weight + client * s->channels_out * kernel, packed);
        for (int64_t row = 0; row < g.rows_out; row++) {
            for (int64_t part = 0; part < s->pool_rows; part++) {
                const struct NAME(windows) w = {
                    map + (row * s->pool_rows + part) * s->stride_rows * g.run, g.run, g.rows_framed * g.run,
                    s->kernel_rows, s->channels_in, s->kernel_columns, offsets, NULL, NULL};
                REAL *to = g.direct ? own + row * run_out : convolved + part * g.length;
                NAME(output_row)(s->channels_out, g.length, &w, packed, kernel, 0, to,
                                 g.direct ? out_channel : s->pool_rows * g.length);
            }
            for (int64_t channel = 0; channel < s->channels_out; channel++) {
                const int64_t at = channel * out_channel + row * run_out;
                if (!g.direct)
                    NAME(pool_row)(&behind, convolved + channel * s->pool_rows * g.length, g.length, g.columns_out,
                                   shift ? shift[channel] : 0, own + at,
                                   winners ? winners + client * s->channels_out * out_channel + at : NULL);
                else if (shift)
                    for (int64_t place = 0; place < run_out; place++)
                        own[at + place] += shift[channel];
            }
        }
    }
}

/* The kernels' gradient of one client; `spread` is the gradient before pooling. A few rows at a time, so that what
   all kernel rows and input channels read again is still in the nearest cache. */
static void NAME(weight_gradient)(const struct sizes *s, const struct geometry *g, const REAL *map, const REAL *spread,
                                  int64_t spread_run, REAL *of_weight)
{
    const int64_t kernel = s->kernel_rows * s->kernel_columns, pairs = s->channels_in * s->kernel_columns;
    const int64_t at_once = g->length >= 2048 ? 1 : 2048 / g->length;
    const int64_t most = NAME(runs_at_once)(s->channels_out), beside = NAME(dots_beside)(most);
    memset(of_weight, 0, (size_t)(s->channels_out * s->channels_in * kernel) * sizeof(REAL));
    for (int64_t row = 0; row < g->rows; row += at_once)
        for (int64_t out = 0; out < s->channels_out; out += most)
            for (int64_t pair = 0; pair < pairs; pair += beside)
                for (int64_t down = 0; down < s->kernel_rows; down++) {
                    const int64_t m = s->channels_out - out < most ? s->channels_out - out : most;
                    int64_t n = 0, reads[6], writes[6];
                    for (; n < beside && pair + n < pairs; n++) {
                        const int64_t in = (pair + n) / s->kernel_columns, along = (pair + n) % s->kernel_columns;
                        reads[n] = in * g->rows_framed * g->run + column_offset(s, g, along);
                        writes[n] = in * kernel + along;
                    }
                    const struct NAME(runs) r = {
                        spread + (out * g->rows + row) * spread_run, map + (row * s->stride_rows + down) * g->run,
                        g->rows * spread_run, g->rows - row < at_once ? g->rows - row : at_once, spread_run,
                        s->stride_rows * g->run, g->length, (int)g->framed};
                    NAME(dots)((int)m, (int)n, &r, reads,
                               of_weight + out * s->channels_in * kernel + down * s->kernel_columns, writes,
                               s->channels_in * kernel);
                }
}

/* One row of the inputs' gradient for the columns of one phase: a convolution of the spread gradient, framed by zeros,
   with turned kernels. */
static void NAME(phase_row)(const struct sizes *s, const struct geometry *g, const REAL *packed, const REAL *spread,
                            int64_t spread_run, int64_t row, int64_t columns, int64_t from, int64_t length, REAL *out,
                            int64_t out_step)
{
    const int64_t tall = places_at(s->kernel_rows, s->stride_rows, row % s->stride_rows);
    const int64_t top = row / s->stride_rows - (tall - 1);
    const int64_t first = top < 0 ? -top : 0, end = g->rows - top < tall ? g->rows - top : tall;
    int64_t offsets[s->kernel_columns], begins[s->kernel_columns], ends[s->kernel_columns];
    for (int64_t column = 0; column < columns; column++) {
        offsets[column] = column * s->batch;
        begins[column] = (columns - 1 - from - column) * s->batch; /* before and behind: the frame */
        ends[column] = begins[column] + g->length;
    }
    const struct NAME(windows) w = {spread + (top + first) * spread_run + (g->left - (columns - 1) + from) * s->batch,
                                    spread_run, g->rows * spread_run, end > first ? end - first : 0, s->channels_out,
                                    columns, offsets, begins, ends};
    NAME(output_row)(s->channels_in, length, &w, packed, s->channels_out * tall * columns, first, out, out_step);
}

/* The inputs' gradient of one client. With strides each phase of columns is computed by itself, then dealt out. */
static void NAME(input_gradient)(const struct sizes *s, const struct geometry *g, const REAL *weight, REAL *packed,
                                 const REAL *spread, int64_t spread_run, REAL *phase, REAL *of_inputs)
{
    const int64_t run = s->columns_in * s->batch, wide = g->phase_columns * s->batch, map = s->rows_in * run;
    for (int64_t across = 0; across < s->stride_columns; across++) {
        const int64_t columns = places_at(s->kernel_columns, s->stride_columns, across);
        /* The first place of this phase that is no padding, and its column of the inputs. */
        const int64_t at = across < s->pad_left ? (s->pad_left - across + s->stride_columns - 1) / s->stride_columns : 0;
        const int64_t column = at * s->stride_columns + across - s->pad_left;
        for (int64_t down = 0; down < s->stride_rows; down++) {
            const int64_t before = (down + s->stride_rows - s->pad_top % s->stride_rows) % s->stride_rows;
            NAME(pack_turned)(s, weight, down, across, packed);
            for (int64_t row = before; row < s->rows_in; row += s->stride_rows) {
                if (s->stride_columns == 1) {
                    NAME(phase_row)(s, g, packed, spread, spread_run, row + s->pad_top, columns, s->pad_left, run,
                                    of_inputs + row * run, map);
                    continue;
                }
                NAME(phase_row)(s, g, packed, spread, spread_run, row + s->pad_top, columns, 0, wide, phase, wide);
                for (int64_t channel = 0; channel < s->channels_in; channel++)
                    NAME(copy_columns)(phase + channel * wide + at * s->batch, 1,
                                       of_inputs + channel * map + row * run + column * s->batch, s->stride_columns,
                                       places_at(s->columns_in, s->stride_columns, column), s->batch);
            }
        }
    }
}

/* One client's gradient before pooling, written between the zeros of its frame. */
static void NAME(spread_out)(const struct sizes *s, const struct geometry *g, const REAL *gradient,
                             const REAL *winners, REAL *spread)
{
    const struct pool_windows behind = pool_of(s);
    const int64_t run = g->columns_out * s->batch;
    for (int64_t row = 0; row < s->channels_out * g->rows_out; row++) {
        REAL *to = spread + row * s->pool_rows * g->spread_run + g->left * s->batch;
        if (g->direct)
            memcpy(to, gradient + row * run, (size_t)run * sizeof(REAL));
        else
            NAME(unpool_row)(&behind, gradient + row * run, winners + row * run, g->columns_out, to, g->spread_run);
    }
}

static void NAME(backward)(const struct sizes *s, const REAL *inputs, const REAL *weight, const REAL *winners,
                           const REAL *gradient, REAL *of_inputs, REAL *of_weight, REAL *of_bias, REAL *scratch)
{
    const struct geometry g = geometry_of(s);
    const int64_t map_in = s->channels_in * s->rows_in * s->columns_in * s->batch;
    const int64_t out_channel = g.rows_out * g.columns_out * s->batch, map_out = s->channels_out * out_channel;
    const int64_t kernels = s->channels_out * s->channels_in * s->kernel_rows * s->kernel_columns;
    /* Where nothing was pooled and nothing needs a frame, the gradient is read as it is. */
    const int as_it_is = g.direct && !g.framed && g.left == 0;
    const int64_t spread_run = as_it_is ? g.length : g.spread_run;
    REAL *packed = scratch, *frame = scratch + packed_size(s), *spread = frame + framed_size(s, &g);
    REAL *phase = spread + rounded(s->channels_out * g.rows * g.spread_run);
    if (g.tiled) {
        NAME(backward_tiles)(s, &g, inputs, weight, winners, gradient, of_inputs, of_weight, of_bias, scratch);
        return;
    }
#if defined(LONG_VECTORS) && SIZE(REAL) == 4
    const int listed = suits_lists(s, &g);
#else
    const int listed = 0;
#endif
    memset(frame, 0, (size_t)framed_size(s, &g) * sizeof(REAL));
    if (!as_it_is && !listed) /* the frame is written once, the inside per client */
        memset(spread, 0, (size_t)(s->channels_out * g.rows * g.spread_run) * sizeof(REAL));
    for (int64_t client = 0; client < s->clients; client++) {
        const REAL *own = gradient + client * map_out, *won = winners ? winners + client * map_out : NULL;
        const REAL *before = as_it_is ? own : spread;
        for (int64_t channel = 0; of_bias && channel < s->channels_out; channel++)
            of_bias[client * s->channels_out + channel] = NAME(sum_of_passed)(
                own + channel * out_channel, won ? won + channel * out_channel : NULL, out_channel);
#if defined(LONG_VECTORS) && SIZE(REAL) == 4
        if (listed) {
            NAME(backward_lists)(s, &g, inputs + client * map_in, weight + client * kernels, won, own,
                                 of_inputs ? of_inputs + client * map_in : NULL,
                                 of_weight ? of_weight + client * kernels : NULL, scratch);
            continue;
        }
#endif
        if (!as_it_is)
            NAME(spread_out)(s, &g, own, won, spread);
        if (of_weight)
            NAME(weight_gradient)(s, &g, NAME(framed)(s, &g, inputs + client * map_in, frame),
                                  before + g.left * s->batch, spread_run, of_weight + client * kernels);
        if (of_inputs)
            NAME(input_gradient)(s, &g, weight + client * kernels, packed, before, spread_run, phase,
                                 of_inputs + client * map_in);
    }
}

#undef CHOOSE
#undef VECTOR
#undef LANES
