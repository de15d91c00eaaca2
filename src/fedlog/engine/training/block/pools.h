/* Pooling by windows that neither overlap nor leave gaps, and ReLU: what convolutions and norms do after their own
   work, by convolve_pools.h. */

#ifndef POOLS_H
#define POOLS_H

#include <stdint.h>

struct pool_windows {
    int64_t batch, pool_rows, pool_columns, rectify;
};

#endif
