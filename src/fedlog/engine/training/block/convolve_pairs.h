/* The kernels' gradient by Winograd's tiles: products of all pairs of channels, summed over all tiles and records, at
   each of the points. Included by convolve_passes.h behind convolve_winograd.h.

   Both maps are turned over into their frames, channels innermost: the sums of neighbouring input channels are the
   lanes of one vector, and nothing is added up across lanes. */

/* Where the numbers of one row of a map go in a row of the frame: places[at] for each column and record. */
static void NAME(find_places)(const struct tiles *t, int64_t batch, int64_t left, int64_t *places)
{
    const int64_t columns = TILE * t->wide + 2 - left;
    for (int64_t at = 0; at < columns * batch; at++) {
        const int64_t column = at / batch + left;
        places[at] = column % TILE * t->run + column / TILE * t->batch + at % batch * (t->batch / batch);
    }
}

/* One row of LANES channels (`channels` of them exist), turned over from `count` numbers each. */
ALWAYS void NAME(turn_row)(const REAL *from, int64_t channel_step, int64_t channels, int64_t count,
                           const int64_t *places, REAL *to)
{
    for (int64_t at = 0; at < count && count >= LANES; at += LANES) {
        const int64_t first = at + LANES <= count ? at : count - LANES; /* the last begins earlier */
        VECTOR square[LANES];
#pragma GCC unroll 8
        for (int k = 0; k < LANES; k++)
            square[k] = k < channels ? *(const VECTOR *)(from + k * channel_step + first) : (VECTOR){0};
        NAME(turn)(square);
#pragma GCC unroll 8
        for (int k = 0; k < LANES; k++)
            *(VECTOR *)(to + places[first + k]) = square[k];
    }
    for (int64_t at = 0; at < count && count < LANES; at++)
        for (int k = 0; k < LANES; k++)
            to[places[at] + k] = k < channels ? from[k * channel_step + at] : 0;
}

/* The values of all channels that `height` rows of a block read, channels innermost. */
static void NAME(frame_turned)(const struct tiles *t, const struct block *b, int64_t height, const struct NAME(map) *map,
                               int64_t batch, int64_t top, int64_t left, const int64_t *places, REAL *frame)
{
    const int64_t start = TILE * b->tile - left, first = start < 0 ? 0 : start;
    const int64_t behind = start + TILE * b->tiles + 2, end = behind < map->columns ? behind : map->columns;
    for (int64_t down = 0; down < height; down++, frame += TILE * t->run) {
        const int64_t row = TILE * b->row + down - top;
        const int is_inside = row >= 0 && row < map->rows && first < end;
        for (int64_t column = start; column < behind; column++)
            if (!is_inside || column < first || column >= end)
                memset(frame + (column - start) % TILE * t->run + (column - start) / TILE * t->batch, 0,
                       (size_t)t->batch * sizeof(REAL));
        for (int64_t channel = 0; channel < map->channels && is_inside; channel += LANES) {
            const REAL *from = map->first + channel * map->channel_step + row * map->row_step + first * batch;
            const int64_t *own = places + first * batch, count = (end - first) * batch;
            REAL *to = frame + channel - b->tile * t->batch;
            if (map->channels - channel >= LANES)
                NAME(turn_row)(from, map->channel_step, LANES, count, own, to);
            else
                NAME(turn_row)(from, map->channel_step, map->channels - channel, count, own, to);
        }
    }
}

/* For m output channels and n vectors of input channels: sums (+)= the products of `count` gradients with values, which
   are `given` and `seen` numbers apart. */
ALWAYS void NAME(outer_tile)(const int m, const int n, int64_t count, const REAL *gradient, int64_t given,
                             const REAL *values, int64_t seen, int first, REAL *sums)
{
    WIDE totals[8][3];
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 3
        for (int j = 0; j < n; j++)
            totals[i][j] = first ? (WIDE){0} : WIDE_READ(sums + i * seen + j * WIDE_LANES);
    for (int64_t at = 0; at < count; at++, gradient += given, values += seen) {
        WIDE own[3];
#pragma GCC unroll 3
        for (int j = 0; j < n; j++)
            own[j] = WIDE_READ(values + j * WIDE_LANES);
#pragma GCC unroll 8
        for (int i = 0; i < m; i++)
#pragma GCC unroll 3
            for (int j = 0; j < n; j++)
                totals[i][j] += gradient[i] * own[j];
    }
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 3
        for (int j = 0; j < n; j++)
            WIDE_AT(sums + i * seen + j * WIDE_LANES) = totals[i][j];
}

#ifdef LONG_VECTORS
enum { NAME(outer_runs) = 8 };
#else
enum { NAME(outer_runs) = 4 };
#endif

/* All pairs at one point. Vectors are shared out evenly, at most three at once; gradients of channels that do not exist
   are zero, and so are their sums. */
static void NAME(outer_products)(const struct tiles *t, int64_t count, const REAL *gradient, const REAL *values,
                                 int first, REAL *sums)
{
    const int64_t seen = rounded(t->in), given = rounded(t->out), vectors = seen / WIDE_LANES, parts = (vectors + 2) / 3;
    for (int64_t part = 0, at = 0; part < parts; part++) {
        const int64_t n = vectors / parts + (part < vectors % parts);
        for (int64_t out = 0; out < t->out; out += NAME(outer_runs)) {
            REAL *to = sums + out * seen + at;
            const REAL *own = gradient + out, *beside = values + at;
            if (n == 1)
                NAME(outer_tile)(NAME(outer_runs), 1, count, own, given, beside, seen, first, to);
            else if (n == 2)
                NAME(outer_tile)(NAME(outer_runs), 2, count, own, given, beside, seen, first, to);
            else
                NAME(outer_tile)(NAME(outer_runs), 3, count, own, given, beside, seen, first, to);
        }
        at += n * WIDE_LANES;
    }
}

/* G' p of six values. */
ALWAYS void NAME(three_taps)(const WIDE p0, const WIDE p1, const WIDE p2, const WIDE p3, const WIDE p4, const WIDE p5,
                             WIDE *to, const int step)
{
    const WIDE even_a = (p1 + p2) * (1 / NA), even_b = (p3 + p4) * (1 / NB);
    to[0] = p0 * (1 / (A2 * B2)) + (even_a + even_b);
    to[step] = (p1 - p2) * (A1 / NA) + (p3 - p4) * (B1 / NB);
    to[2 * step] = even_a * A2 + (even_b * B2 + p5);
}

/* G' p G of all kernels, from their points. */
static void NAME(gather_kernels)(const struct tiles *t, const REAL *points, int64_t step, REAL *of_weight)
{
    const int64_t seen = rounded(t->in);
    for (int64_t out = 0; out < t->out; out++)
        for (int64_t from = 0; from < t->in; from += WIDE_LANES) {
            REAL taps[9][WIDE_LANES];
            WIDE down[3][6], each[3];
            for (int j = 0; j < 6; j++) {
                const REAL *p = points + j * step + out * seen + from;
                NAME(three_taps)(WIDE_READ(p), WIDE_READ(p + 6 * step), WIDE_READ(p + 12 * step),
                                 WIDE_READ(p + 18 * step), WIDE_READ(p + 24 * step), WIDE_READ(p + 30 * step),
                                 &down[0][j], 6);
            }
            for (int i = 0; i < 3; i++) {
                const WIDE *p = down[i];
                NAME(three_taps)(p[0], p[1], p[2], p[3], p[4], p[5], each, 1);
                for (int j = 0; j < 3; j++)
                    WIDE_AT(taps[3 * i + j]) = each[j];
            }
            for (int64_t at = 0; at < WIDE_LANES && from + at < t->in; at++)
                for (int tap = 0; tap < 9; tap++)
                    of_weight[(out * t->in + from + at) * 9 + tap] = taps[tap][at];
        }
}

/* The two maps of one client whose channels are multiplied with each other, their tiles with channels innermost, and
   where their numbers go in a row of the frame. */
struct NAME(turned) {
    struct NAME(map) map;
    struct tiles tiles;
    int64_t top, left;
    int64_t *places;
    REAL *frame;
};

/* The kernels' gradient of one client. */
static void NAME(tiles_weight_gradient)(const struct tiles *t, const struct NAME(turned) *seen,
                                        const struct NAME(turned) *given, REAL *scratch, REAL *of_weight)
{
    const int64_t step = sums_step(t), from = seen->tiles.span, to = given->tiles.span;
    REAL *sums = scratch, *values = sums + POINTS * step, *gradient = values + POINTS * from;
    for (struct block b = first_block(t); b.rows > 0; next_block(t, &b)) {
        const int64_t seen_row = b.tiles * seen->tiles.batch, given_row = b.tiles * given->tiles.batch;
        NAME(frame_turned)(&seen->tiles, &b, TILE * b.rows + 2, &seen->map, t->batch, seen->top, seen->left,
                           seen->places, seen->frame);
        NAME(frame_turned)(&given->tiles, &b, TILE * b.rows, &given->map, t->batch, given->top, given->left,
                           given->places, given->frame);
        for (int64_t row = 0; row < b.rows; row++) {
            NAME(transform_values)(&seen->tiles, seen->frame + TILE * row * TILE * seen->tiles.run, seen_row,
                                   values + row * seen_row, from);
            NAME(transform_gradient)(&given->tiles, given->frame + TILE * row * TILE * given->tiles.run, given_row,
                                     gradient + row * given_row, to);
        }
        for (int64_t point = 0; point < POINTS; point++)
            NAME(outer_products)(t, b.rows * b.tiles * t->batch, gradient + point * to, values + point * from,
                                 b.row == 0 && b.tile == 0, sums + point * step);
    }
    NAME(gather_kernels)(t, sums, step, of_weight);
}

#undef A1
#undef A2
#undef A3
#undef B1
#undef B2
#undef B3
#undef NA
#undef NB
#undef WIDE
#undef WIDE_LANES
#undef WIDE_AT
#undef WIDE_READ
