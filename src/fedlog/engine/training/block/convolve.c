/* Convolution with pooling, bias and ReLU for a stack of clients, and its gradients. `convolve.py` calls it.

   A map is (clients, channels, rows, columns, batch), contiguous. The batch is innermost, so that one row of one
   channel is a single run of columns * batch numbers, and moving the kernel by a column means reading the same run
   `batch` numbers further on: a convolution needs neither unrolled windows nor a batch size that suits the vectors.

   Padding and strides are met by a copy of one client's map, framed by zeros, its columns sorted by their remainder
   modulo the stride: the columns that one place of the kernel reads are neighbours again.

   Convolutions of 3 x 3 with many channels go by Winograd's tiles (convolve_winograd.h), all others by windows. The
   gradients behind pools of 2 x 2 go by lists of the places that won (convolve_winners.h), with the bits of windows.

   The passes are written once, in convolve_*.h; targets.h makes them for two number types and three instruction sets.
   Sums over lanes are 32 bytes wide in all of them, and longer vectors only serve sums that are separate per lane: AVX2
   and AVX-512 give the same bits. */

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "pools.h"

struct sizes { /* the same in convolve.py */
    int64_t clients, batch, channels_in, channels_out, rows_in, columns_in;
    int64_t kernel_rows, kernel_columns, pool_rows, pool_columns;
    int64_t rectify;
    int64_t pad_top, pad_left, pad_bottom, pad_right, stride_rows, stride_columns;
};

/* What follows from the sizes. A framed map has `rows_framed` rows of `run` numbers a channel: `stride_columns` phases
   of `phase_columns` columns. The gradient before pooling, "spread", has `rows` rows of `spread_run` numbers a channel,
   of which `length` follow a frame of `left` columns. */
struct geometry {
    int64_t framed, direct, tiled, rows_framed, phase_columns, run;
    int64_t rows_out, columns_out, rows, length;
    int64_t left, spread_run;
};

enum { SLACK = 16 }; /* zeros behind a run that the last vector of a sum may read */

/* Whether Winograd's tiles of 4 x 4 places multiply less than half as often as windows do: 3 x 3, enough channels, few
   places beyond the edges. */
static int64_t suits_tiles(const struct sizes *s, int64_t rows, int64_t columns)
{
    return s->kernel_rows == 3 && s->kernel_columns == 3 && s->stride_rows == 1 && s->stride_columns == 1 &&
           s->pad_top <= 2 && s->pad_left <= 2 && s->pad_bottom <= 2 && s->pad_right <= 2 && s->channels_in >= 8 &&
           s->channels_out >= 8 && rows > 3 && columns > 3 && 8 * ((rows + 3) / 4) * ((columns + 3) / 4) <= rows * columns;
}

static struct geometry geometry_of(const struct sizes *s)
{
    struct geometry g;
    const int64_t columns = s->columns_in + s->pad_left + s->pad_right;
    g.rows_framed = s->rows_in + s->pad_top + s->pad_bottom;
    g.framed = g.rows_framed != s->rows_in || columns != s->columns_in || s->stride_rows > 1 || s->stride_columns > 1;
    g.phase_columns = (columns + s->stride_columns - 1) / s->stride_columns;
    g.run = s->stride_columns * g.phase_columns * s->batch;
    g.rows_out = ((g.rows_framed - s->kernel_rows) / s->stride_rows + 1) / s->pool_rows;
    g.columns_out = ((columns - s->kernel_columns) / s->stride_columns + 1) / s->pool_columns;
    g.rows = g.rows_out * s->pool_rows;
    g.length = g.columns_out * s->pool_columns * s->batch;
    g.left = (s->kernel_columns + s->stride_columns - 1) / s->stride_columns - 1;
    g.spread_run = (g.left + g.phase_columns) * s->batch + (g.framed ? SLACK : 0);
    g.direct = s->pool_rows == 1 && s->pool_columns == 1 && !s->rectify;
    g.tiled = suits_tiles(s, g.rows, g.columns_out * s->pool_columns);
    return g;
}

/* Where the column of a framed run lies that the kernel's `column` reads for the first place. */
static int64_t column_offset(const struct sizes *s, const struct geometry *g, int64_t column)
{
    return (column % s->stride_columns * g->phase_columns + column / s->stride_columns) * s->batch;
}

/* How many of a kernel's `size` places lie at `phase` modulo the stride. */
static int64_t places_at(int64_t size, int64_t stride, int64_t phase)
{
    return phase < size ? (size - phase + stride - 1) / stride : 0;
}

/* What follows the convolution, for convolve_pools.h. */
static struct pool_windows pool_of(const struct sizes *s)
{
    return (struct pool_windows){s->batch, s->pool_rows, s->pool_columns, s->rectify};
}

static int64_t rounded(int64_t size) { return (size + SLACK - 1) / SLACK * SLACK; }

/* Room for the weights in another order; what lies behind it begins at a cache line. */
static int64_t packed_size(const struct sizes *s)
{
    return rounded(s->channels_out * s->channels_in * s->kernel_rows * s->kernel_columns);
}

static int64_t framed_size(const struct sizes *s, const struct geometry *g)
{
    return g->framed ? rounded(s->channels_in * g->rows_framed * g->run) + SLACK : 0;
}

#include "convolve_tiles.h"
#include "convolve_lists.h"

#define PASSES "convolve_passes.h"
#include "targets.h"

int convolve_plainly = 0; /* set by tests: use the plain passes on any machine */
int convolve_narrowly = 0; /* set by tests: do not use AVX-512 */

int convolve_instructions(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (convolve_plainly || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    return !convolve_narrowly && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") ? 5 : 2;
#else
    return 0;
#endif
}

/* Whether a convolution goes by Winograd's tiles. */
int convolve_is_tiled(const struct sizes *s) { return (int)geometry_of(s).tiled; }

/* Whether its gradients go by lists of winners, for float and with AVX-512. */
int convolve_is_listed(const struct sizes *s)
{
    const struct geometry g = geometry_of(s);
    return suits_lists(s, &g);
}

/* Numbers of scratch space that a pass may use, for either direction. */
int64_t convolve_scratch(const struct sizes *s)
{
    const struct geometry g = geometry_of(s);
    const int64_t rows = (g.rows_framed - s->kernel_rows) / s->stride_rows + 1;
    const int64_t phase = s->channels_in * g.phase_columns * s->batch; /* one row of the inputs' gradient, by phase */
    if (g.tiled)
        return tiles_scratch(s, &g);
    const int64_t windows =
        packed_size(s) + framed_size(s, &g) + rounded(s->channels_out * rows * g.spread_run) + phase + SLACK;
    const int64_t lists = suits_lists(s, &g) ? lists_scratch(s, &g) : 0;
    return windows > lists ? windows : lists;
}

void convolve_forward_float(const struct sizes *s, const float *inputs, const float *weight, const float *bias,
                            float *pooled, float *winners, float *scratch)
{
    CHOSEN(forward, float)(s, inputs, weight, bias, pooled, winners, scratch);
}

void convolve_forward_double(const struct sizes *s, const double *inputs, const double *weight, const double *bias,
                             double *pooled, double *winners, double *scratch)
{
    CHOSEN(forward, double)(s, inputs, weight, bias, pooled, winners, scratch);
}

void convolve_backward_float(const struct sizes *s, const float *inputs, const float *weight, const float *winners,
                             const float *gradient, float *of_inputs, float *of_weight, float *of_bias, float *scratch)
{
    CHOSEN(backward, float)(s, inputs, weight, winners, gradient, of_inputs, of_weight, of_bias, scratch);
}

void convolve_backward_double(const struct sizes *s, const double *inputs, const double *weight, const double *winners,
                              const double *gradient, double *of_inputs, double *of_weight, double *of_bias,
                              double *scratch)
{
    CHOSEN(backward, double)(s, inputs, weight, winners, gradient, of_inputs, of_weight, of_bias, scratch);
}

#include "steps.h"
STEPS(convolve_forward, t[0], t[1], t[2], t[3], t[4], t[5])
STEPS(convolve_backward, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7])
