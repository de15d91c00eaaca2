/* Sums, changes of layout, norms of units, activations, the loss and Adam's step of one client, for chains. `links.py`
   and `chain_training.py` name them.

   Maps are (channels, places, batch), units (batch, units). */

#include <stdint.h>

struct extent { /* the same in links.py */
    int64_t rows, columns, depth; /* what they are stands at each pass */
    int64_t kind;                 /* what follows a sum (1: ReLU), or which activation */
    double number;                /* a norm's epsilon, an activation's slope */
};

struct adam_rule { /* the same in chain_training.py */
    int64_t count;
    double beta1, beta2, epsilon;
};

#define PASSES "units_passes.h"
#include "targets.h"

#define BOTH(name, parameters, arguments)                                                                          \
    TYPED(name, float, parameters(float), arguments)                                                               \
    TYPED(name, double, parameters(double), arguments)
#define TYPED(name, real, parameters, arguments)                                                                   \
    void name##_##real parameters { CHOSEN(name, real) arguments; }
#define THREE(real) (const struct extent *e, const real *one, const real *other, real *to)
#define TWO(real) (const struct extent *e, const real *from, real *to)
#define NORM(real)                                                                                                 \
    (const struct extent *e, const real *inputs, const real *weight, const real *bias, real *outputs, real *means,  \
     real *scales)
#define NORM_BACK(real)                                                                                            \
    (const struct extent *e, const real *inputs, const real *weight, const real *means, const real *scales,         \
     const real *gradient, real *of_inputs, real *of_weight, real *of_bias, real *scratch)
#define LOSS(real)                                                                                                 \
    (const struct extent *e, const real *features, const real *head, const int64_t *labels, const real *weights,    \
     real *of_features, real *of_head, real *scratch)
#define ADAM(real)                                                                                                 \
    (const struct adam_rule *rule, const real *gradient, const double *corrections, real *values, real *first,      \
     real *second)

BOTH(cross_entropy, LOSS, (e, features, head, labels, weights, of_features, of_head, scratch))
BOTH(adam_update, ADAM, (rule, gradient, corrections, values, first, second))
BOTH(sum_forward, THREE, (e, one, other, to))
BOTH(sum_backward, THREE, (e, one, other, to))
BOTH(activate, THREE, (e, one, other, to))
BOTH(copy_or_zero, TWO, (e, from, to))
BOTH(turn_over, TWO, (e, from, to))
BOTH(mean_forward, TWO, (e, from, to))
BOTH(mean_backward, TWO, (e, from, to))
BOTH(unit_norm_forward, NORM, (e, inputs, weight, bias, outputs, means, scales))
BOTH(unit_norm_backward, NORM_BACK,
     (e, inputs, weight, means, scales, gradient, of_inputs, of_weight, of_bias, scratch))

#include "steps.h"
STEPS(cross_entropy, t[0], t[1], t[2], t[3], t[4], t[5], t[6])
STEPS(adam_update, t[0], t[1], t[2], t[3], t[4])
STEPS(sum_forward, t[0], t[1], t[2])
STEPS(sum_backward, t[0], t[1], t[2])
STEPS(activate, t[0], t[1], t[2])
STEPS(copy_or_zero, t[0], t[1])
STEPS(turn_over, t[0], t[1])
STEPS(mean_forward, t[0], t[1])
STEPS(mean_backward, t[0], t[1])
STEPS(unit_norm_forward, t[0], t[1], t[2], t[3], t[4], t[5])
STEPS(unit_norm_backward, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8])
