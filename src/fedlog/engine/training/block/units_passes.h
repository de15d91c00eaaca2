/* The passes of units.c for numbers of type REAL on instruction set TARGET. No include guard: included for each. */

#define SQUARE_ROOT(x) __builtin_choose_expr(sizeof(REAL) == 4, __builtin_sqrtf(x), __builtin_sqrt(x))

/* The sum of `rows` numbers each, rectified where a ReLU follows. */
static void NAME(sum_forward)(const struct extent *e, const REAL *one, const REAL *other, REAL *to)
{
    if (e->kind)
        for (int64_t at = 0; at < e->rows; at++) {
            const REAL sum = one[at] + other[at];
            to[at] = sum <= 0 ? 0 : sum; /* NaN stays */
        }
    else
        for (int64_t at = 0; at < e->rows; at++)
            to[at] = one[at] + other[at];
}

/* The gradient of both, where the sum was not stopped by ReLU. */
static void NAME(sum_backward)(const struct extent *e, const REAL *sums, const REAL *gradient, REAL *to)
{
    for (int64_t at = 0; at < e->rows; at++)
        to[at] = sums[at] <= 0 ? 0 : gradient[at];
}

/* `rows` numbers, or zeros where there are none. */
static void NAME(copy_or_zero)(const struct extent *e, const REAL *from, REAL *to)
{
    if (from)
        memcpy(to, from, (size_t)e->rows * sizeof(REAL));
    else
        memset(to, 0, (size_t)e->rows * sizeof(REAL));
}

/* (rows, columns) -> (columns, rows). */
static void NAME(turn_over)(const struct extent *e, const REAL *restrict from, REAL *restrict to)
{
    enum { SIDE = 8 };
    for (int64_t top = 0; top < e->rows; top += SIDE)
        for (int64_t left = 0; left < e->columns; left += SIDE)
            for (int64_t row = top; row < e->rows && row < top + SIDE; row++)
                for (int64_t column = left; column < e->columns && column < left + SIDE; column++)
                    to[column * e->rows + row] = from[row * e->columns + column];
}

/* The means of channels (rows) over their places (columns) for each record (depth): (channels, batch). */
static void NAME(mean_forward)(const struct extent *e, const REAL *restrict from, REAL *restrict to)
{
    for (int64_t row = 0; row < e->rows; row++, to += e->depth) {
        memset(to, 0, (size_t)e->depth * sizeof(REAL));
        for (int64_t column = 0; column < e->columns; column++, from += e->depth)
            for (int64_t b = 0; b < e->depth; b++)
                to[b] += from[b];
        for (int64_t b = 0; b < e->depth; b++)
            to[b] /= (REAL)e->columns;
    }
}

static void NAME(mean_backward)(const struct extent *e, const REAL *restrict from, REAL *restrict to)
{
    for (int64_t row = 0; row < e->rows; row++, from += e->depth)
        for (int64_t column = 0; column < e->columns; column++, to += e->depth)
            for (int64_t b = 0; b < e->depth; b++)
                to[b] = from[b] / (REAL)e->columns;
}

/* The sum of `count` products one[at] * (other[at] - shift), a vector's lanes side by side; of the first alone without
   `other`. In the same order on all instruction sets. */
ALWAYS REAL NAME(sum_of)(const REAL *one, const REAL *other, REAL shift, int64_t count)
{
    enum { BESIDE = 128 / sizeof(REAL) };
    REAL sums[BESIDE] = {0}, rest = 0;
    int64_t at = 0;
    for (; at + BESIDE <= count; at += BESIDE)
        for (int k = 0; k < BESIDE; k++)
            sums[k] += other ? one[at + k] * (other[at + k] - shift) : one[at + k];
    for (; at < count; at++)
        rest += other ? one[at] * (other[at] - shift) : one[at];
    for (int width = BESIDE / 2; width > 0; width /= 2)
        for (int k = 0; k < width; k++)
            sums[k] += sums[k + width];
    return sums[0] + rest;
}

/* The sum of the squares of `count` distances from `mean`. */
ALWAYS REAL NAME(squares_of)(const REAL *values, REAL mean, int64_t count)
{
    enum { BESIDE = 128 / sizeof(REAL) };
    REAL sums[BESIDE] = {0}, rest = 0;
    int64_t at = 0;
    for (; at + BESIDE <= count; at += BESIDE)
        for (int k = 0; k < BESIDE; k++)
            sums[k] += (values[at + k] - mean) * (values[at + k] - mean);
    for (; at < count; at++)
        rest += (values[at] - mean) * (values[at] - mean);
    for (int width = BESIDE / 2; width > 0; width /= 2)
        for (int k = 0; k < width; k++)
            sums[k] += sums[k + width];
    return sums[0] + rest;
}

/* Each record's (rows) units, normalised in groups (columns) of `depth` units, times a weight plus a bias. */
static void NAME(unit_norm_forward)(const struct extent *e, const REAL *inputs, const REAL *weight, const REAL *bias,
                                    REAL *outputs, REAL *means, REAL *scales)
{
    const int64_t size = e->depth;
    for (int64_t group = 0; group < e->rows * e->columns; group++, inputs += size, outputs += size) {
        const int64_t first = group % e->columns * size;
        const REAL mean = NAME(sum_of)(inputs, NULL, 0, size) / (REAL)size;
        const REAL variance = NAME(squares_of)(inputs, mean, size) / (REAL)size;
        const REAL scale = 1 / SQUARE_ROOT(variance + (REAL)e->number);
        for (int64_t at = 0; at < size; at++)
            outputs[at] = (inputs[at] - mean) * scale;
        for (int64_t at = 0; at < size && weight; at++)
            outputs[at] *= weight[first + at];
        for (int64_t at = 0; at < size && bias; at++)
            outputs[at] += bias[first + at];
        means[group] = mean;
        scales[group] = scale;
    }
}

static void NAME(unit_norm_backward)(const struct extent *e, const REAL *inputs, const REAL *weight, const REAL *means,
                                     const REAL *scales, const REAL *gradient, REAL *of_inputs, REAL *of_weight,
                                     REAL *of_bias, REAL *scratch)
{
    const int64_t size = e->depth, units = e->columns * size;
    if (of_weight)
        memset(of_weight, 0, (size_t)units * sizeof(REAL));
    if (of_bias)
        memset(of_bias, 0, (size_t)units * sizeof(REAL));
    for (int64_t group = 0; group < e->rows * e->columns; group++, inputs += size, gradient += size) {
        const int64_t first = group % e->columns * size;
        const REAL mean = means[group], scale = scales[group];
        for (int64_t at = 0; at < size && of_weight; at++)
            of_weight[first + at] += gradient[at] * ((inputs[at] - mean) * scale);
        for (int64_t at = 0; at < size && of_bias; at++)
            of_bias[first + at] += gradient[at];
        if (!of_inputs)
            continue;
        for (int64_t at = 0; at < size; at++) /* the gradient of the normalised units */
            scratch[at] = weight ? gradient[at] * weight[first + at] : gradient[at];
        const REAL plain = NAME(sum_of)(scratch, NULL, 0, size) / (REAL)size;
        const REAL along = NAME(sum_of)(scratch, inputs, mean, size) * scale * scale / (REAL)size;
        for (int64_t at = 0; at < size; at++)
            of_inputs[at] = scale * (scratch[at] - plain - (inputs[at] - mean) * along);
        of_inputs += size;
    }
}

#define VECTOR NAME(unit_vector)
#define LANES ((int64_t)(32 / sizeof(REAL)))
typedef REAL VECTOR __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
typedef __typeof__((VECTOR){0} < (VECTOR){0}) NAME(unit_mask);
#define CHOOSE(when, yes, no) ((VECTOR)(((when) & (NAME(unit_mask))(yes)) | (~(when) & (NAME(unit_mask))(no))))
#if SIZE(REAL) == 4
enum { NAME(fraction_bits) = 23 };
#define ROUNDING ((REAL)12582912) /* 1.5 * 2^23: adding it rounds to whole numbers, which the last bits then hold */
#define LOWEST ((REAL)-87)
#else
enum { NAME(fraction_bits) = 52 };
#define ROUNDING ((REAL)6755399441055744)
#define LOWEST ((REAL)-708)
#endif

/* e^x for x <= 0: 2^n e^r with |r| <= log(2) / 2, and e^r by its series. */
ALWAYS VECTOR NAME(exponential)(VECTOR x)
{
    x = CHOOSE(x < LOWEST, (VECTOR){0} + LOWEST, x);
    const VECTOR shifted = x * (REAL)1.4426950408889634 + ROUNDING, n = shifted - ROUNDING;
    const VECTOR r = (x - n * (REAL)0.693145751953125) - n * (REAL)1.428606820309417232e-6;
    VECTOR sum = {0};
#pragma GCC unroll 13
    for (int k = 13; k > 0; k--)
        sum = (sum + 1) * (r * (1 / (REAL)k));
    sum += 1;
    return (VECTOR)((NAME(unit_mask))sum + ((NAME(unit_mask))shifted << NAME(fraction_bits)));
}

/* The normal density at x, and the distribution function at -|x| by a polynomial in 1 / (1 + 0.3 |x|): 1e-15 off. */
ALWAYS VECTOR NAME(lower_tail)(VECTOR x, VECTOR *density)
{
    static const REAL terms[] = {
    (REAL)-2.4345446952427267e-09, (REAL)1.1127342287263711e-08, (REAL)5.940464812965826e-09,
    (REAL)-9.5782113578690001e-08, (REAL)8.3224184850491089e-08, (REAL)4.0506470447874082e-07,
    (REAL)-8.8115149442713875e-07, (REAL)-9.7848462340048845e-07, (REAL)5.4947961307803253e-06,
    (REAL)-2.0896814386899104e-07, (REAL)-3.0437835911035052e-05, (REAL)2.0200419355488194e-05,
    (REAL)0.00018688871065496103, (REAL)-0.0001460034717899692, (REAL)-0.0014997695540052904,
    (REAL)-0.00030338030798332202, (REAL)0.014788750634968475, (REAL)0.057155001442911364, (REAL)0.12556456075233333,
    (REAL)0.19327504896034153, (REAL)0.11098530691721617};
    const VECTOR bell = NAME(exponential)(x * x * (REAL)-0.5), size = CHOOSE(x < 0, -x, x);
    const VECTOR u = 2 / (1 + size * (REAL)0.3) - 1;
    VECTOR sum = {0};
#pragma GCC unroll 21
    for (int k = 0; k < 21; k++)
        sum = sum * u + terms[k];
    *density = bell * (REAL)0.3989422804014327;
    return sum * bell;
}

/* The activation (1: GELU, otherwise ReLU) of a vector, or its derivative times the gradient. */
ALWAYS VECTOR NAME(activate_vector)(int64_t kind, VECTOR x, const VECTOR *gradient)
{
    if (kind != 1)
        return CHOOSE(x <= 0, (VECTOR){0}, gradient ? *gradient : x);
    VECTOR density;
    const VECTOR tail = NAME(lower_tail)(x, &density), below = CHOOSE(x < 0, tail, 1 - tail);
    return gradient ? *gradient * (below + x * density) : x * below;
}

/* The activation of `rows` numbers; times their gradient, the derivative. */
static void NAME(activate)(const struct extent *e, const REAL *from, const REAL *gradient, REAL *to)
{
    int64_t at = 0;
    for (; at + LANES <= e->rows; at += LANES)
        *(VECTOR *)(to + at) = NAME(activate_vector)(e->kind, *(const VECTOR *)(from + at),
                                                     gradient ? (const VECTOR *)(gradient + at) : NULL);
    if (at < e->rows) {
        const size_t rest = (size_t)(e->rows - at) * sizeof(REAL);
        VECTOR last = {0}, given = {0};
        memcpy(&last, from + at, rest);
        if (gradient)
            memcpy(&given, gradient + at, rest);
        last = NAME(activate_vector)(e->kind, last, gradient ? &given : NULL);
        memcpy(to + at, &last, rest);
    }
}

/* The scores of a record (`depth` features) for `columns` classes under a head (classes, 1 + features). */
ALWAYS void NAME(score)(const struct extent *e, const REAL *features, const REAL *head, REAL *scores)
{
    for (int64_t class = 0; class < e->columns; class++, head += 1 + e->depth)
        scores[class] = head[0] + NAME(sum_of)(features, head + 1, 0, e->depth);
}

/* Turn a record's scores into the gradient of its cross-entropy, times a weight. There is room for whole vectors. */
ALWAYS void NAME(softmax_gradient)(int64_t classes, int64_t label, REAL weight, REAL *scores)
{
    REAL most = scores[0], total = 0;
    for (int64_t class = 1; class < classes; class++)
        most = scores[class] > most ? scores[class] : most;
    for (int64_t class = 0; class < classes; class += LANES) {
        const VECTOR below = *(const VECTOR *)(scores + class) - most, found = NAME(exponential)(below);
        for (int64_t k = 0; k < LANES && class + k < classes; k++) /* NaN stays, and infinity becomes NaN */
            total += below[k] != below[k] ? below[k] : found[k];
        *(VECTOR *)(scores + class) = found;
    }
    for (int64_t class = 0; class < classes; class++)
        scores[class] *= weight / total;
    scores[label] -= weight;
}

/* The gradients of the cross-entropy of `rows` records behind a linear head: of their features, and of the head if
   asked for. `scratch` has room for every record's scores, in whole vectors. */
static void NAME(cross_entropy)(const struct extent *e, const REAL *features, const REAL *head, const int64_t *labels,
                                const REAL *weights, REAL *of_features, REAL *of_head, REAL *scratch)
{
    const int64_t width = e->depth, step = (e->columns + LANES - 1) / LANES * LANES;
    memset(scratch, 0, (size_t)(e->rows * step) * sizeof(REAL));
    memset(of_features, 0, (size_t)(e->rows * width) * sizeof(REAL));
    if (of_head)
        memset(of_head, 0, (size_t)(e->columns * (1 + width)) * sizeof(REAL));
    for (int64_t record = 0; record < e->rows; record++) {
        const REAL *own = features + record * width;
        REAL *scores = scratch + record * step, *to = of_features + record * width;
        NAME(score)(e, own, head, scores);
        NAME(softmax_gradient)(e->columns, labels[record], weights[record], scores);
        for (int64_t class = 0; class < e->columns; class++) {
            const REAL share = scores[class], *row = head + class * (1 + width) + 1;
            for (int64_t at = 0; at < width; at++)
                to[at] += share * row[at];
            if (!of_head)
                continue;
            REAL *of_row = of_head + class * (1 + width);
            of_row[0] += share;
            for (int64_t at = 0; at < width; at++)
                of_row[1 + at] += share * own[at];
        }
    }
}

/* One step of AdamW for `count` numbers; without `gradient` it is zero. `corrections` are the step size divided by
   1 - beta1^t, the root of 1 - beta2^t, and what the weight decay multiplies the numbers by. */
static void NAME(adam_update)(const struct adam_rule *rule, const REAL *restrict gradient, const double *corrections,
                              REAL *restrict values, REAL *restrict first, REAL *restrict second)
{
    const REAL decay = (REAL)corrections[2], share1 = (REAL)(1 - rule->beta1), share2 = (REAL)(1 - rule->beta2);
    const REAL beta2 = (REAL)rule->beta2, rate = (REAL)(corrections[0] * corrections[1]);
    const REAL epsilon = (REAL)(rule->epsilon * corrections[1]);
    for (int64_t at = 0; at < rule->count; at++) {
        const REAL own = gradient ? gradient[at] : 0;
        const REAL mean = first[at] + share1 * (own - first[at]), square = second[at] * beta2 + share2 * own * own;
        first[at] = mean;
        second[at] = square;
        values[at] = values[at] * decay - rate * mean / (SQUARE_ROOT(square) + epsilon);
    }
}

#undef LOWEST
#undef ROUNDING
#undef CHOOSE
#undef LANES
#undef VECTOR
#undef SQUARE_ROOT
