/* Linear layers with ReLU for stacked clients and small batches, and their gradients. `linear.py` calls it.

   Units are (clients, batch, units), weights (clients, units out, units in), contiguous. With ten records a batch a
   matrix library spends much of its time on copying the weights into an order of its own; here they are read where they
   lie, each number once for five records. */

#include <stdint.h>

struct linear { /* the same in linear.py */
    int64_t clients, batch, in, out, rectify;
};

/* The products of a linear layer alone, in the order of a matrix library: `passes.py` compares them before it uses
   them. Inputs are (batch, units), or (units, batch) where `innermost`; steps are from a client to the next. */
struct product { /* the same in passes.py */
    int64_t clients, batch, in, out, innermost, weight_step, bias_step;
};
enum { PRODUCT_UNITS = 192 };

#define PASSES "linear_passes.h"
#include "targets.h"

void linear_forward_float(const struct linear *l, const float *inputs, const float *weight, const float *bias,
                          float *outputs)
{
    CHOSEN(linear_forward, float)(l, inputs, weight, bias, outputs);
}

void linear_forward_double(const struct linear *l, const double *inputs, const double *weight, const double *bias,
                           double *outputs)
{
    CHOSEN(linear_forward, double)(l, inputs, weight, bias, outputs);
}

/* `scratch` has room for one client's gradient. */
void linear_backward_float(const struct linear *l, const float *inputs, const float *weight, const float *outputs,
                           const float *gradient, float *of_inputs, float *of_weight, float *of_bias, float *scratch)
{
    CHOSEN(linear_backward, float)(l, inputs, weight, outputs, gradient, of_inputs, of_weight, of_bias, scratch);
}

void linear_backward_double(const struct linear *l, const double *inputs, const double *weight, const double *outputs,
                            const double *gradient, double *of_inputs, double *of_weight, double *of_bias,
                            double *scratch)
{
    CHOSEN(linear_backward, double)(l, inputs, weight, outputs, gradient, of_inputs, of_weight, of_bias, scratch);
}

void product_forward_float(const struct product *p, const float *inputs, const float *weight, const float *bias,
                           float *outputs, float *scratch)
{
    CHOSEN(product_forward, float)(p, inputs, weight, bias, outputs, scratch);
}

void product_backward_float(const struct product *p, const float *inputs, const float *weight, const float *gradient,
                            float *of_inputs, float *of_weight, float *scratch)
{
    CHOSEN(product_backward, float)(p, inputs, weight, gradient, of_inputs, of_weight, scratch);
}

/* Returns whether all positions are in the pool, which has `records`; if not, nothing is written. */
int gather_turned_float(int64_t clients, int64_t batch, int64_t records, int64_t units, const float *pool,
                        const int64_t *positions, float *to)
{
    for (int64_t at = 0; at < clients * batch; at++)
        if (positions[at] < 0 || positions[at] >= records)
            return 0;
    CHOSEN(gather_turned, float)(clients, batch, units, pool, positions, to);
    return 1;
}

#include "steps.h"
STEPS(linear_forward, t[0], t[1], t[2], t[3])
STEPS(linear_backward, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7])
