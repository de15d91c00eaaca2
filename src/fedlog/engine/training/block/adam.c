/* AdamW for stacked clients in one pass, gradients read where the backward pass left them. `adam.py` calls it.

   Every operation and its rounding is that of PyTorch's fused AdamW for float32 with AVX-512, so that parameters keep
   their bits. PyTorch computes the last numbers of a row, fewer than eight, with another rounding of the second moment;
   so does this pass. `adam.py` compares both before it uses this one. */

#include <stdint.h>
#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include <immintrin.h>
#endif

struct adam { /* the same in adam.py */
    int64_t clients, size, parts; /* numbers of one client, and the parameters that they belong to */
    double decay; /* what parameters are multiplied by */
    double beta1, beta2, epsilon;
};

int convolve_instructions(void);

#if defined(__x86_64__) && defined(__GNUC__)
/* `count` numbers of one client; `gradient` is NULL where a parameter has none. `rounds_last` is for the last numbers of
   a row. */
static __attribute__((target("avx512f,fma"))) void move_avx512(const struct adam *a, int64_t count, int rounds_last,
                                                               const float *gradient, float step, float correction,
                                                               float *values, float *first, float *second)
{
    const __m512 share1 = _mm512_set1_ps((float)(1 - a->beta1)), share2 = _mm512_set1_ps((float)(1 - a->beta2));
    const __m512 beta2 = _mm512_set1_ps((float)a->beta2), epsilon = _mm512_set1_ps((float)a->epsilon);
    for (int64_t at = 0; at < count; at += 16) {
        const __mmask16 own = count - at >= 16 ? 0xffff : (__mmask16)((1 << (count - at)) - 1);
        const __m512 g = gradient ? _mm512_maskz_loadu_ps(own, gradient + at) : _mm512_setzero_ps();
        __m512 value = _mm512_maskz_loadu_ps(own, values + at), mean = _mm512_maskz_loadu_ps(own, first + at);
        __m512 square = _mm512_maskz_loadu_ps(own, second + at);
        const __m512 weighted = _mm512_mul_ps(share2, g);
        if (a->decay != 1)
            value = _mm512_mul_ps(value, _mm512_set1_ps((float)a->decay));
        mean = _mm512_fmadd_ps(share1, _mm512_sub_ps(g, mean), mean);
        square = rounds_last ? _mm512_fmadd_ps(square, beta2, _mm512_mul_ps(weighted, g))
                             : _mm512_fmadd_ps(weighted, g, _mm512_mul_ps(square, beta2));
        const __m512 root = _mm512_div_ps(_mm512_sqrt_ps(square), _mm512_set1_ps(correction));
        value = _mm512_sub_ps(value, _mm512_div_ps(_mm512_mul_ps(_mm512_set1_ps(step), mean),
                                                   _mm512_add_ps(root, epsilon)));
        _mm512_mask_storeu_ps(values + at, own, value);
        _mm512_mask_storeu_ps(first + at, own, mean);
        _mm512_mask_storeu_ps(second + at, own, square);
    }
}
#endif

/* One step of all clients, whose numbers lie one behind the other, part by part. `gradients` holds each part's own
   tensor, `corrections` each client's step size and the root of its second correction. Returns whether this processor
   can do it. */
int adam_step(const struct adam *a, const int64_t *sizes, const float *const *gradients, const double *corrections,
              float *values, float *first, float *second)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (convolve_instructions() != 5)
        return 0;
    const int64_t whole = a->size / 8 * 8;
    for (int64_t client = 0; client < a->clients; client++)
        for (int64_t part = 0, at = 0; part < a->parts; at += sizes[part++]) {
            const float step = (float)corrections[2 * client], correction = (float)corrections[2 * client + 1];
            const int64_t before = whole - at < 0 ? 0 : whole - at < sizes[part] ? whole - at : sizes[part];
            const int64_t row = client * a->size + at;
            const float *gradient = gradients[part] ? gradients[part] + client * sizes[part] : 0;
            move_avx512(a, before, 0, gradient, step, correction, values + row, first + row, second + row);
            move_avx512(a, sizes[part] - before, 1, gradient ? gradient + before : 0, step, correction,
                        values + row + before, first + row + before, second + row + before);
        }
    return 1;
#else
    (void)a, (void)sizes, (void)gradients, (void)corrections, (void)values, (void)first, (void)second;
    return 0;
#endif
}
