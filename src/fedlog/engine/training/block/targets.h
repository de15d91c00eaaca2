/* Includes the file PASSES for float and double, for plain vectors, for AVX2 and for AVX-512, and chooses at run time.

   Plain vectors are what the compiler makes of them: SSE2 on any x86-64, NEON on ARM. In the included file REAL is the
   number type of SIZE(REAL) bytes, NAME(x) a name of its own, MULTIPLY_ADD(a, b, c) one fused operation where there is
   one, and LONG_VECTORS is defined where vectors of 64 bytes have registers. */

#include <stdint.h>
#include <string.h>

#define JOIN3(a, b, c) a##_##b##_##c
#define EXPAND3(a, b, c) JOIN3(a, b, c)
#define NAME(function) EXPAND3(function, REAL, TARGET)
#define SIZE_OF_float 4
#define SIZE_OF_double 8
#define JOIN_SIZE(real) SIZE_OF_##real
#define SIZE(real) JOIN_SIZE(real)
#define ALWAYS static inline __attribute__((always_inline))

#ifdef __clang__
#define UNFUSED
#define UNFUSED_HERE _Pragma("clang fp contract(off)")
#else
#define UNFUSED __attribute__((optimize("fp-contract=off")))
#define UNFUSED_HERE
#endif

#define TARGET plain
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#define REAL float
#include PASSES
#undef REAL
#define REAL double
#include PASSES
#undef REAL
#undef TARGET
#undef MULTIPLY_ADD

#if defined(__x86_64__) && defined(__GNUC__)
#define MULTIPLY_ADD(a, b, c) __builtin_choose_expr(sizeof(REAL) == 4, __builtin_fmaf(a, b, c), __builtin_fma(a, b, c))
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define TARGET avx2
#define REAL float
#include PASSES
#undef REAL
#define REAL double
#include PASSES
#undef REAL
#undef TARGET
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw")
#endif
#define TARGET avx512
#define LONG_VECTORS
#define REAL float
#include PASSES
#undef REAL
#define REAL double
#include PASSES
#undef REAL
#undef LONG_VECTORS
#undef TARGET
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#define CHOSEN(function, real)                                                                                     \
    (convolve_instructions() == 5   ? function##_##real##_avx512                                                   \
     : convolve_instructions() == 2 ? function##_##real##_avx2                                                     \
                                    : function##_##real##_plain)
#else
#define CHOSEN(function, real) function##_##real##_plain
#endif

/* 0: plain vectors, 2: AVX2, 5: AVX-512. Defined in convolve.c. */
int convolve_instructions(void);
