/* Gradients by lists of winners: of the places that are pooled one wins at most, so of 2 x 2 three of four products with
   the gradient before pooling are zero, and more behind ReLU and dropout. Here only the others are computed. Included by
   convolve_passes.h for float and AVX-512.

   Adding a product with zero changes no sum. What is added here is added in the order of `weight_gradient` and
   `input_gradient`, with their rounding, so the bits are theirs. */

/* A gradient that is not zero, and where the kernel's window of its place begins in a map that lies by record. */
struct NAME(winner) {
    float value;
    int32_t place;
};

/* found += sum over the list of gradient * window. */
ALWAYS void NAME(sum_windows)(const int rows, const int vectors, const struct NAME(winner) *list, int64_t count,
                              const REAL *maps, int64_t line, REAL *found)
{
    NAME(vector_long) sums[20]; /* rows x vectors */
#pragma GCC unroll 5
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 10
        for (int v = 0; v < vectors; v++)
            sums[row * vectors + v] = (NAME(vector_long)){0};
    for (int64_t k = 0; k < count; k++) {
        const REAL *window = maps + list[k].place;
#pragma GCC unroll 5
        for (int row = 0; row < rows; row++)
#pragma GCC unroll 10
            for (int v = 0; v < vectors; v++)
                sums[row * vectors + v] += list[k].value * *(const NAME(vector_long) *)(window + row * line + 16 * v);
    }
#pragma GCC unroll 5
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 10
        for (int v = 0; v < vectors; v++)
            *(NAME(vector_long) *)(found + 16 * (row * vectors + v)) += sums[row * vectors + v];
}

/* Each winner's gradient times the kernel, added to the window that its place was computed from; of the last vector of a
   row only the numbers in `last` belong to it. */
ALWAYS void NAME(add_windows)(const int rows, const int vectors, __mmask16 last, const REAL *values,
                              const int32_t *codes, int64_t count, const REAL *kernel, REAL *maps, int64_t line)
{
    __m512 weights[20];
#pragma GCC unroll 5
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 10
        for (int v = 0; v < vectors; v++)
            weights[row * vectors + v] = _mm512_loadu_ps(kernel + 16 * (row * vectors + v));
    for (int64_t k = 0; k < count; k++) {
        const __m512 value = _mm512_set1_ps(values[k]);
        REAL *window = maps + (codes[k] >> WINNER_BITS);
#pragma GCC unroll 5
        for (int row = 0; row < rows; row++)
#pragma GCC unroll 10
            for (int v = 0; v < vectors; v++) {
                REAL *to = window + row * line + 16 * v;
                _mm512_storeu_ps(to, _mm512_mask3_fmadd_ps(weights[row * vectors + v], value, _mm512_loadu_ps(to),
                                                           v < vectors - 1 ? 0xffff : last));
            }
    }
}

/* The passes for each number of rows and vectors, so that their sums stay in registers. */
#define CASES(CALL)                                                                                                \
    switch (16 * s->kernel_rows + l->vectors) {                                                                    \
        CALL(1, 1) CALL(1, 2) CALL(1, 3) CALL(1, 4) CALL(1, 5)                                                     \
        CALL(1, 6) CALL(1, 7) CALL(1, 8) CALL(1, 9) CALL(1, 10)                                                    \
        CALL(3, 1) CALL(3, 2) CALL(3, 3) CALL(3, 4)                                                                \
        CALL(5, 1) CALL(5, 2) CALL(5, 3) CALL(5, 4)                                                                \
    }

static __attribute__((noinline)) void NAME(sum_list)(const struct sizes *s, const struct lists *l,
                                                     const struct NAME(winner) *list, int64_t count, const REAL *maps,
                                                     REAL *found)
{
#define CALL(ROWS, VECTORS)                                                                                        \
    case 16 * ROWS + VECTORS: NAME(sum_windows)(ROWS, VECTORS, list, count, maps, l->line, found); break;
    CASES(CALL)
#undef CALL
}

static __attribute__((noinline)) void NAME(add_list)(const struct sizes *s, const struct lists *l, const REAL *values,
                                                     const int32_t *codes, int64_t count, const REAL *kernel, REAL *maps)
{
    const __mmask16 last = (__mmask16)((1 << (l->taps - 16 * (l->vectors - 1))) - 1);
#define CALL(ROWS, VECTORS)                                                                                        \
    case 16 * ROWS + VECTORS:                                                                                       \
        NAME(add_windows)(ROWS, VECTORS, last, values, codes, count, kernel, maps, l->line);                       \
        break;
    CASES(CALL)
#undef CALL
}
#undef CASES

ALWAYS __mmask16 NAME(first_records)(int64_t count) { return count >= 16 ? 0xffff : (__mmask16)((1 << count) - 1); }

/* Turn a square of 16 x 16 numbers over. */
ALWAYS void NAME(turn_square)(__m512 rows[16])
{
    __m512 pairs[16], fours[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const __m512d one = (__m512d)pairs[i + half], other = (__m512d)pairs[i + 2 + half];
            fours[i + 2 * half] = (__m512)_mm512_unpacklo_pd(one, other);
            fours[i + 2 * half + 1] = (__m512)_mm512_unpackhi_pd(one, other);
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* quarters of vectors: 4 x 4 of them */
        const __m512 even = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0x88);
        const __m512 odd = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0xdd);
        const __m512 next_even = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0x88);
        const __m512 next_odd = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0xdd);
        rows[i] = _mm512_shuffle_f32x4(even, next_even, 0x88);
        rows[i + 4] = _mm512_shuffle_f32x4(odd, next_odd, 0x88);
        rows[i + 8] = _mm512_shuffle_f32x4(even, next_even, 0xdd);
        rows[i + 12] = _mm512_shuffle_f32x4(odd, next_odd, 0xdd);
    }
}

/* One client's map, (channels, places, batch), record by record. */
static void NAME(by_record)(const struct sizes *s, const struct lists *l, const REAL *map, REAL *to)
{
    const int64_t places = s->rows_in * s->columns_in, batch = s->batch;
    for (int64_t first = 0; first < places * s->channels_in; first += 16) {
        const REAL *from[16]; /* NULL: behind the last place */
        for (int i = 0; i < 16; i++) {
            const int64_t place = (first + i) / s->channels_in, channel = (first + i) % s->channels_in;
            from[i] = place < places ? map + (channel * places + place) * batch : NULL;
        }
        for (int64_t b = 0; b < batch; b += 16) {
            const __mmask16 own = NAME(first_records)(batch - b);
            __m512 rows[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                rows[i] = from[i] ? _mm512_maskz_loadu_ps(own, from[i] + b) : _mm512_setzero_ps();
            NAME(turn_square)(rows);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                if (b + i < batch)
                    _mm512_storeu_ps(to + (b + i) * l->record + first, rows[i]);
        }
    }
}

/* The way back. */
static void NAME(by_channel)(const struct sizes *s, const struct lists *l, const REAL *from, REAL *map)
{
    const int64_t places = s->rows_in * s->columns_in, batch = s->batch;
    for (int64_t first = 0; first < places * s->channels_in; first += 16)
        for (int64_t b = 0; b < batch; b += 16) {
            const __mmask16 own = NAME(first_records)(batch - b);
            __m512 rows[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                rows[i] = b + i < batch ? _mm512_loadu_ps(from + (b + i) * l->record + first) : _mm512_setzero_ps();
            NAME(turn_square)(rows);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                const int64_t place = (first + i) / s->channels_in, channel = (first + i) % s->channels_in;
                if (place < places)
                    _mm512_mask_storeu_ps(map + (channel * places + place) * batch + b, own, rows[i]);
            }
        }
}

/* For each number of a row before pooling: its place in a record-by-record map and its lane in the sums of `dots`. The
   lane behind the last is for what is left behind whole vectors. */
static void NAME(codes_of_row)(const struct sizes *s, const struct geometry *g, const struct lists *l, int32_t *codes)
{
    for (int64_t at = 0; at < g->length; at++) {
        const int64_t place = at / s->batch * s->channels_in + at % s->batch * l->record;
        const int64_t lane = at < g->length / WINNER_LANES * WINNER_LANES ? at % WINNER_LANES : WINNER_LANES;
        codes[at] = (int32_t)(place << WINNER_BITS | lane);
    }
}

/* The winners of one row before pooling, by column and record: their gradients and codes. Returns how many. */
static int64_t NAME(list_row)(const struct sizes *s, const struct geometry *g, const struct lists *l, int64_t row,
                              const REAL *gradient, const REAL *winners, const int32_t *codes_of_row, REAL *values,
                              int32_t *codes)
{
    const __m512i down = _mm512_set1_epi32((int32_t)(row * l->line << WINNER_BITS));
    const int64_t beside = s->pool_columns;
    int64_t count = 0;
    for (int64_t column = 0; column < beside * g->columns_out; column++) {
        const __m512 here = _mm512_set1_ps((REAL)(row % s->pool_rows * beside + column % beside));
        for (int64_t b = 0; b < s->batch; b += 16) {
            const __mmask16 own = NAME(first_records)(s->batch - b);
            const __m512 value = _mm512_maskz_loadu_ps(own, gradient + column / beside * s->batch + b);
            const __m512 won = _mm512_maskz_loadu_ps(own, winners + column / beside * s->batch + b);
            const __mmask16 listed = _mm512_mask_cmp_ps_mask(
                _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_NEQ_UQ), won, here, _CMP_EQ_OQ);
            const __m512i code = _mm512_add_epi32(_mm512_loadu_si512(codes_of_row + column * s->batch + b), down);
            _mm512_storeu_ps(values + count, _mm512_maskz_compress_ps(listed, value));
            _mm512_storeu_si512(codes + count, _mm512_maskz_compress_epi32(listed, code));
            count += __builtin_popcount(listed);
        }
    }
    return count;
}

/* As `sum_list`, behind whole vectors, where products are rounded before they are added: see `dot_rest`. */
static __attribute__((noinline)) UNFUSED void NAME(sum_rests)(const struct sizes *s, const struct lists *l,
                                                              const struct NAME(winner) *list, int64_t count,
                                                              const REAL *maps, REAL *found)
{
    UNFUSED_HERE
    const int64_t row_size = 16 * l->vectors;
    for (int64_t k = 0; k < count; k++)
        for (int64_t row = 0; row < s->kernel_rows; row++)
            for (int64_t at = 0; at < row_size; at++)
                found[row * row_size + at] += list[k].value * maps[list[k].place + row * l->line + at];
}

/* Where a kernel's number for a row, column and channel stands in the order of the windows. */
ALWAYS int64_t NAME(turned_place)(const struct sizes *s, const struct lists *l, int64_t row, int64_t column,
                                  int64_t channel)
{
    return row * 16 * l->vectors + column * s->channels_in + channel;
}

/* The gradient of one output channel's kernel. `starts` says where the winners of each row begin. `dealt` has room for
   the lists of all lanes, `sums` for two kernels. */
static void NAME(kernel_gradient)(const struct sizes *s, const struct geometry *g, const struct lists *l,
                                  const REAL *values, const int32_t *codes, const int64_t *starts, const REAL *maps,
                                  struct NAME(winner) *dealt, REAL *sums, REAL *of_weight)
{
    const int64_t size = kernel_size(s, l);
    REAL *found = sums + size;
    memset(sums, 0, (size_t)size * sizeof(REAL));
    for (int64_t row = 0; row < g->rows; row += l->at_once) {
        const int64_t end = starts[row + l->at_once < g->rows ? row + l->at_once : g->rows];
        int64_t counts[WINNER_LANES + 1] = {0};
        for (int64_t k = starts[row]; k < end; k++) {
            const int64_t lane = codes[k] & ((1 << WINNER_BITS) - 1);
            dealt[lane * l->room + counts[lane]++] = (struct NAME(winner)){values[k], codes[k] >> WINNER_BITS};
        }
        memset(found, 0, (size_t)size * sizeof(REAL));
        NAME(sum_rests)(s, l, dealt + WINNER_LANES * l->room, counts[WINNER_LANES], maps, found);
        for (int lane = 0; lane < WINNER_LANES; lane++)
            NAME(sum_list)(s, l, dealt + lane * l->room, counts[lane], maps, found);
        for (int64_t at = 0; at < size; at++)
            sums[at] += found[at];
    }
    for (int64_t channel = 0; channel < s->channels_in; channel++)
        for (int64_t row = 0; row < s->kernel_rows; row++)
            for (int64_t column = 0; column < s->kernel_columns; column++)
                *of_weight++ = sums[NAME(turned_place)(s, l, row, column, channel)];
}

/* The inputs' gradient, record by record: winners by row, then output channel, then column, as in `phase_row`. */
static void NAME(window_gradients)(const struct sizes *s, const struct geometry *g, const struct lists *l,
                                   const REAL *weight, const REAL *values, const int32_t *codes, const int64_t *starts,
                                   REAL *kernels, REAL *of_maps)
{
    const int64_t size = kernel_size(s, l);
    memset(of_maps, 0, (size_t)(s->batch * l->record) * sizeof(REAL));
    memset(kernels, 0, (size_t)(s->channels_out * size) * sizeof(REAL));
    for (int64_t one = 0; one < s->channels_out * s->channels_in; one++) {
        REAL *kernel = kernels + one / s->channels_in * size;
        for (int64_t row = 0; row < s->kernel_rows; row++)
            for (int64_t column = 0; column < s->kernel_columns; column++)
                kernel[NAME(turned_place)(s, l, row, column, one % s->channels_in)] = *weight++;
    }
    for (int64_t row = 0; row < g->rows; row++)
        for (int64_t channel = 0; channel < s->channels_out; channel++) {
            const int64_t first = starts[channel * g->rows + row], end = starts[channel * g->rows + row + 1];
            NAME(add_list)(s, l, values + first, codes + first, end - first, kernels + channel * size, of_maps);
        }
}

/* The gradients of one client. */
static void NAME(backward_lists)(const struct sizes *s, const struct geometry *g, const REAL *inputs, const REAL *weight,
                                 const REAL *winners, const REAL *gradient, REAL *of_inputs, REAL *of_weight,
                                 REAL *scratch)
{
    const struct lists l = lists_of(s, g);
    const int64_t run = g->columns_out * s->batch, out = s->channels_out, most = most_winners(s, g);
    const int64_t kernel = s->channels_in * s->kernel_rows * s->kernel_columns;
    const int64_t all = s->batch * l.record + SLACK;
    REAL *maps = scratch, *of_maps = maps + all, *values = of_maps + all;
    int32_t *codes = (int32_t *)(values + most), *every = codes + most;
    int64_t *starts = (int64_t *)(every + codes_size(s, g));
    struct NAME(winner) *dealt = (struct NAME(winner) *)(starts + starts_size(s, g) / 2);
    REAL *sums = (REAL *)dealt + rounded(2 * (WINNER_LANES + 1) * l.room), *kernels = sums + 2 * kernel_size(s, &l);
    NAME(codes_of_row)(s, g, &l, every);
    starts[0] = 0;
    for (int64_t row = 0; row < out * g->rows; row++) {
        const int64_t pooled = row / g->rows * g->rows_out + row % g->rows / s->pool_rows, at = starts[row];
        starts[row + 1] = at + NAME(list_row)(s, g, &l, row % g->rows, gradient + pooled * run, winners + pooled * run,
                                              every, values + at, codes + at);
    }
    if (of_weight) {
        NAME(by_record)(s, &l, inputs, maps);
        for (int64_t channel = 0; channel < out; channel++)
            NAME(kernel_gradient)(s, g, &l, values, codes, starts + channel * g->rows, maps, dealt, sums,
                                  of_weight + channel * kernel);
    }
    if (of_inputs) {
        NAME(window_gradients)(s, g, &l, weight, values, codes, starts, kernels, of_maps);
        NAME(by_channel)(s, &l, of_maps, of_inputs);
    }
}
