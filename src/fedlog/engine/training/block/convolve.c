/* Convolution with pooling, bias and ReLU for a stack of clients, and its gradients. `convolve.py` calls it.

   A map is (clients, channels, rows, columns, batch), contiguous. The batch is innermost, so that one row of one
   channel is a single run of columns * batch numbers, and moving the kernel by a column means reading the same run
   `batch` numbers further on: a convolution needs neither unrolled windows nor a batch size that suits the vectors.

   The passes are written once, in convolve_passes.h, for a number type and an instruction set; here they are made for
   float and double, plain and with AVX2, and the processor is asked which it has. */

#include <stdint.h>
#include <string.h>

struct sizes { /* the same in convolve.py */
    int64_t clients, batch, channels_in, channels_out, rows_in, columns_in;
    int64_t kernel_rows, kernel_columns, pool_rows, pool_columns;
    int64_t rectify;
};

/* Room for the weights in another order; what lies behind it begins at a cache line. */
static int64_t packed_size(const struct sizes *s)
{
    return (s->channels_out * s->channels_in * s->kernel_rows * s->kernel_columns + 15) / 16 * 16;
}

int convolve_plainly = 0; /* set by tests: use the plain passes on any machine */

#define JOIN3(a, b, c) a##_##b##_##c
#define EXPAND3(a, b, c) JOIN3(a, b, c)
#define NAME(function) EXPAND3(function, REAL, TARGET)
#define ALWAYS static inline __attribute__((always_inline))

#define TARGET plain
#define REAL float
#include "convolve_passes.h"
#undef REAL
#define REAL double
#include "convolve_passes.h"
#undef REAL
#undef TARGET

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define TARGET avx2
#define REAL float
#include "convolve_passes.h"
#undef REAL
#define REAL double
#include "convolve_passes.h"
#undef REAL
#undef TARGET
#pragma GCC pop_options
#define WITH_AVX2 (!convolve_plainly && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define CHOSEN(function, real) (WITH_AVX2 ? function##_##real##_avx2 : function##_##real##_plain)
#else
#define CHOSEN(function, real) function##_##real##_plain
#endif

/* Numbers of scratch space that a pass may use, for either direction. */
int64_t convolve_scratch(const struct sizes *s)
{
    int64_t rows = s->rows_in - s->kernel_rows + 1;
    return packed_size(s) + s->channels_out * rows * (s->columns_in + s->kernel_columns - 1) * s->batch + 8;
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
