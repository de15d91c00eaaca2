/* Pooling and normalisation of maps (planes, rows, columns, batch) of stacked clients, and their gradients.
   `map_passes.py` calls it. As in convolve.c, the batch is innermost. */

#include <stdint.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "pools.h"

struct pooling { /* the same in map_passes.py */
    int64_t planes, batch, rows_in, columns_in, rows_out, columns_out, mean;
    /* The first row of each output row's windows and the one behind their last, then the same for columns. */
    const int64_t *row_from, *row_to, *column_from, *column_to;
    const double *divisor; /* of each output place, for the mean */
};

struct norm { /* the same in map_passes.py */
    int64_t clients, groups, channels, rows, columns, batch; /* channels of one group */
    int64_t rectify, pool_rows, pool_columns; /* what follows */
    double epsilon;
};

#define PASSES "maps_passes.h"
#include "targets.h"

void pool_forward_float(const struct pooling *p, const float *inputs, float *outputs, float *winners)
{
    CHOSEN(pool_forward, float)(p, inputs, outputs, winners);
}

void pool_forward_double(const struct pooling *p, const double *inputs, double *outputs, double *winners)
{
    CHOSEN(pool_forward, double)(p, inputs, outputs, winners);
}

void pool_backward_float(const struct pooling *p, const float *gradient, const float *winners, float *of_inputs)
{
    CHOSEN(pool_backward, float)(p, gradient, winners, of_inputs);
}

void pool_backward_double(const struct pooling *p, const double *gradient, const double *winners, double *of_inputs)
{
    CHOSEN(pool_backward, double)(p, gradient, winners, of_inputs);
}

/* Numbers of scratch space that a norm may use, for either direction: eight patterns, and a group before pooling. */
int64_t norm_scratch(const struct norm *n)
{
    return 8 * (9 * n->batch + 32) + n->channels * n->rows * n->columns * n->batch + 16;
}

void norm_forward_float(const struct norm *n, const float *inputs, const float *weight, const float *bias,
                        float *outputs, float *means, float *scales, float *winners, float *scratch)
{
    CHOSEN(norm_forward, float)(n, inputs, weight, bias, outputs, means, scales, winners, scratch);
}

void norm_forward_double(const struct norm *n, const double *inputs, const double *weight, const double *bias,
                         double *outputs, double *means, double *scales, double *winners, double *scratch)
{
    CHOSEN(norm_forward, double)(n, inputs, weight, bias, outputs, means, scales, winners, scratch);
}

void norm_backward_float(const struct norm *n, const float *inputs, const float *weight, const float *bias,
                         const float *means, const float *scales, const float *winners, const float *gradient,
                         float *of_inputs, float *of_weight, float *of_bias, float *scratch)
{
    CHOSEN(norm_backward, float)(n, inputs, weight, bias, means, scales, winners, gradient, of_inputs, of_weight,
                                 of_bias, scratch);
}

void norm_backward_double(const struct norm *n, const double *inputs, const double *weight, const double *bias,
                          const double *means, const double *scales, const double *winners, const double *gradient,
                          double *of_inputs, double *of_weight, double *of_bias, double *scratch)
{
    CHOSEN(norm_backward, double)(n, inputs, weight, bias, means, scales, winners, gradient, of_inputs, of_weight,
                                  of_bias, scratch);
}

#include "steps.h"
STEPS(pool_forward, t[0], t[1], t[2])
STEPS(pool_backward, t[0], t[1], t[2])
STEPS(norm_forward, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7])
STEPS(norm_backward, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10])
