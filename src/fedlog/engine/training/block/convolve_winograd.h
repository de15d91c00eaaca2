/* Winograd's minimal filtering F(4 x 4, 3 x 3): 36 multiplications for sixteen places where windows take 144. Included
   by convolve_passes.h, which names the vectors.

   Four rows and four columns of places are a tile, whose windows cover 6 x 6 values d. A polynomial of degree five is
   known by its values at the points 0, a, -a, b, -b and infinity. With p = a b, q = a^2 + b^2, and Na, Nb the products
   of a point's distances from the other four,

       B' = p^2    0   -q    0   1  0     G = 1/p^2    0        0        A' = 1   1   1   1   1   0
              0 -a b^2 -b^2  a   1  0         1/Na   a/Na   a^2/Na            0   a  -a   b  -b   0
              0  a b^2 -b^2 -a   1  0         1/Na  -a/Na   a^2/Na            0  a^2 a^2 b^2 b^2  0
              0 -b a^2 -a^2  b   1  0         1/Nb   b/Nb   b^2/Nb            0  a^3 -a^3 b^3 -b^3 1
              0  b a^2 -a^2 -b   1  0         1/Nb  -b/Nb   b^2/Nb
              0   p^2    0  -q   0  1           0      0        1

   the tile is A' [(G g G') * (B' d B)] A, products point by point; the gradient of the kernel g is
   G' [(A y A') * (B' d B)] G with the tile's gradient y. With a = 5/8 and b = 3/2 all factors of B and A are exact, and
   little is lost to rounding. Neighbouring tiles of all records lie behind each other, and each of the 36 points is a
   matrix product over channels.

   Both transforms go down first and then across, or the other way round. Down, whole rows of the map are runs, read or
   written where they lie; across, a tile's column is the numbers of one batch. Between them are six lines of one row of
   tiles, which stay in the nearest cache. */

#ifdef LONG_VECTORS
#define WIDE NAME(vector_long)
#else
#define WIDE NAME(vector_short)
#endif
#define WIDE_LANES ((int64_t)(sizeof(WIDE) / sizeof(REAL)))
#define WIDE_AT(pointer) (*(WIDE *)(pointer))
#define WIDE_READ(pointer) (*(const WIDE *)(pointer))

#define A1 ((REAL)0.625)
#define A2 (A1 * A1)
#define A3 (A1 * A2)
#define B1 ((REAL)1.5)
#define B2 (B1 * B1)
#define B3 (B1 * B2)
#define NA (2 * A2 * (A2 - B2))
#define NB (2 * B2 * (B2 - A2))

/* A map of one client: `columns` x batch numbers a row. */
struct NAME(map) {
    const REAL *first;
    int64_t channels, rows, columns, channel_step, row_step;
};

/* Every `from_step`-th column's numbers, one for each record, to every `to_step`-th column. */
ALWAYS void NAME(copy_columns)(const REAL *from, int64_t from_step, REAL *to, int64_t to_step, int64_t columns,
                               int64_t batch)
{
    const int64_t rest = batch - LANES;
    for (int64_t column = 0; column < columns; column++, from += from_step * batch, to += to_step * batch) {
        for (int64_t b = 0; b < rest; b += LANES)
            *(VECTOR *)(to + b) = *(const VECTOR *)(from + b);
        if (rest >= 0)
            *(VECTOR *)(to + rest) = *(const VECTOR *)(from + rest);
        for (int64_t b = 0; rest < 0 && b < batch; b++)
            to[b] = from[b];
    }
}

/* B' d of six values. */
ALWAYS void NAME(six_values)(const WIDE d0, const WIDE d1, const WIDE d2, const WIDE d3, const WIDE d4, const WIDE d5,
                             WIDE *to, const int step)
{
    const WIDE even_a = d4 - d2 * B2, odd_a = d3 - d1 * B2, even_b = d4 - d2 * A2, odd_b = d3 - d1 * A2;
    to[0] = d0 * (A2 * B2) + (d4 - d2 * (A2 + B2));
    to[step] = even_a + odd_a * A1;
    to[2 * step] = even_a - odd_a * A1;
    to[3 * step] = even_b + odd_b * B1;
    to[4 * step] = even_b - odd_b * B1;
    to[5 * step] = d1 * (A2 * B2) + (d5 - d3 * (A2 + B2));
}

/* A y of four values. */
ALWAYS void NAME(four_gradients)(const WIDE y0, const WIDE y1, const WIDE y2, const WIDE y3, WIDE *to, const int step)
{
    const WIDE even_a = y0 + y2 * A2, odd_a = y1 + y3 * A2, even_b = y0 + y2 * B2, odd_b = y1 + y3 * B2;
    to[0] = y0;
    to[step] = even_a + odd_a * A1;
    to[2 * step] = even_a - odd_a * A1;
    to[3 * step] = even_b + odd_b * B1;
    to[4 * step] = even_b - odd_b * B1;
    to[5 * step] = y3;
}

/* B' d B for `length` numbers of one row of tiles; behind them a few more are written. */
ALWAYS void NAME(transform_values)(const struct tiles *t, const REAL *row, int64_t length, REAL *to, int64_t point)
{
    for (int64_t at = 0; at < length; at += WIDE_LANES) {
        WIDE across[6][6], each[6]; /* across: B' d */
#pragma GCC unroll 6
        for (int column = 0; column < 6; column++) {
            const REAL *from = row + column % TILE * t->run + column / TILE * t->batch + at;
            const int64_t down = TILE * t->run;
            NAME(six_values)(WIDE_READ(from), WIDE_READ(from + down), WIDE_READ(from + 2 * down),
                             WIDE_READ(from + 3 * down), WIDE_READ(from + 4 * down), WIDE_READ(from + 5 * down),
                             &across[0][column], 6);
        }
#pragma GCC unroll 6
        for (int i = 0; i < 6; i++) {
            const WIDE *d = across[i];
            NAME(six_values)(d[0], d[1], d[2], d[3], d[4], d[5], each, 1);
#pragma GCC unroll 6
            for (int j = 0; j < 6; j++)
                WIDE_AT(to + (6 * i + j) * point + at) = each[j];
        }
    }
}

/* A y A' for `length` numbers of one row of tiles. */
ALWAYS void NAME(transform_gradient)(const struct tiles *t, const REAL *row, int64_t length, REAL *to, int64_t point)
{
    for (int64_t at = 0; at < length; at += WIDE_LANES) {
        WIDE across[6][4], each[6];
#pragma GCC unroll 4
        for (int column = 0; column < 4; column++) {
            const REAL *from = row + column * t->run + at;
            const int64_t down = TILE * t->run;
            NAME(four_gradients)(WIDE_READ(from), WIDE_READ(from + down), WIDE_READ(from + 2 * down),
                                 WIDE_READ(from + 3 * down), &across[0][column], 4);
        }
#pragma GCC unroll 6
        for (int i = 0; i < 6; i++) {
            NAME(four_gradients)(across[i][0], across[i][1], across[i][2], across[i][3], each, 1);
#pragma GCC unroll 6
            for (int j = 0; j < 6; j++)
                WIDE_AT(to + (6 * i + j) * point + at) = each[j];
        }
    }
}

/* A' m of six values. */
ALWAYS void NAME(four_places)(const WIDE m0, const WIDE m1, const WIDE m2, const WIDE m3, const WIDE m4, const WIDE m5,
                              WIDE *to, const int step)
{
    const WIDE even_a = m1 + m2, odd_a = m1 - m2, even_b = m3 + m4, odd_b = m3 - m4;
    to[0] = m0 + even_a + even_b;
    to[step] = odd_a * A1 + odd_b * B1;
    to[2 * step] = even_a * A2 + even_b * B2;
    to[3 * step] = odd_a * A3 + (odd_b * B3 + m5);
}

/* What is left of a run that is shorter than a vector, and zeros behind it. */
ALWAYS WIDE NAME(read_short)(const REAL *from, int64_t count)
{
    WIDE values = {0};
    memcpy(&values, from, (size_t)count * sizeof(REAL));
    return values;
}

/* Where the vector at `at` begins in `length` numbers: the last one begins earlier. */
ALWAYS int64_t NAME(begin)(int64_t at, int64_t length)
{
    return at + WIDE_LANES <= length || length < WIDE_LANES ? at : length - WIDE_LANES;
}

/* B' d of all columns that one row of tiles reads of a channel. Lines begin with the first column of the block; columns
   outside of the map are left as they are. Rows outside of it are read from `zeros`. */
static void NAME(values_down)(const struct tiles *t, const struct block *b, const struct NAME(map) *map,
                              int64_t channel, int64_t top, int64_t left, const REAL *zeros, REAL *lines)
{
    const int64_t line = line_size(t), start = TILE * b->tile - left, behind = start + TILE * b->tiles + 2;
    const int64_t first = start < 0 ? 0 : start, end = behind < map->columns ? behind : map->columns;
    const int64_t run = (end - first) * t->batch;
    const REAL *d[6];
    REAL *to = lines + (first - start) * t->batch;
    for (int k = 0; k < 6; k++)
        d[k] = top + k < 0 || top + k >= map->rows ? zeros : map->first + channel * map->channel_step +
                                                             (top + k) * map->row_step + first * t->batch;
    for (int64_t place = 0; place < run; place += WIDE_LANES) {
        const int64_t at = NAME(begin)(place, run);
        WIDE values[6], each[6];
#pragma GCC unroll 6
        for (int k = 0; k < 6; k++)
            values[k] = run < WIDE_LANES ? NAME(read_short)(d[k], run) : WIDE_READ(d[k] + at);
        NAME(six_values)(values[0], values[1], values[2], values[3], values[4], values[5], each, 1);
#pragma GCC unroll 6
        for (int k = 0; k < 6; k++)
            WIDE_AT(to + k * line + at) = each[k];
    }
}

/* (B' d) B of one row of tiles, from its lines to the points. Batches that are shorter than a vector write a few numbers
   more, which the next tile overwrites. */
static void NAME(values_across)(const struct tiles *t, int64_t tiles, const REAL *lines, REAL *to, int64_t point)
{
    const int64_t line = line_size(t), batch = t->batch;
    for (int64_t i = 0; i < 6; i++, lines += line, to += 6 * point)
        for (int64_t tile = 0; tile < tiles; tile++)
            for (int64_t record = 0; record < batch; record += WIDE_LANES) {
                const int64_t at = tile * batch + NAME(begin)(record, batch);
                const REAL *d = lines + (TILE - 1) * tile * batch + at;
                WIDE each[6];
                NAME(six_values)(WIDE_READ(d), WIDE_READ(d + batch), WIDE_READ(d + 2 * batch),
                                 WIDE_READ(d + 3 * batch), WIDE_READ(d + 4 * batch), WIDE_READ(d + 5 * batch), each, 1);
#pragma GCC unroll 6
                for (int j = 0; j < 6; j++)
                    WIDE_AT(to + j * point + at) = each[j];
            }
}

/* m A of one row of tiles, from its points to lines of columns in the map's order. */
static void NAME(places_across)(const struct tiles *t, int64_t tiles, const REAL *points, int64_t point, REAL *lines)
{
    const int64_t line = line_size(t), batch = t->batch;
    for (int64_t i = 0; i < 6; i++, lines += line, points += 6 * point)
        for (int64_t tile = 0; tile < tiles; tile++)
            for (int64_t record = 0; record < batch; record += WIDE_LANES) {
                const int64_t at = tile * batch + NAME(begin)(record, batch);
                const REAL *m = points + at;
                REAL *to = lines + (TILE - 1) * tile * batch + at;
                WIDE each[4];
                NAME(four_places)(WIDE_READ(m), WIDE_READ(m + point), WIDE_READ(m + 2 * point),
                                  WIDE_READ(m + 3 * point), WIDE_READ(m + 4 * point), WIDE_READ(m + 5 * point), each, 1);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++)
                    WIDE_AT(to + j * batch) = each[j];
            }
}

/* A' (m A) plus the bias: `rows` rows of a map, `run` numbers each. */
static void NAME(places_down)(const struct tiles *t, const REAL *lines, REAL bias, int64_t rows, int64_t run, REAL *out,
                              int64_t out_row)
{
    const int64_t line = line_size(t);
    for (int64_t place = 0; place < run; place += WIDE_LANES) {
        const int64_t at = NAME(begin)(place, run);
        const REAL *m = lines + at;
        WIDE each[4];
        NAME(four_places)(WIDE_READ(m), WIDE_READ(m + line), WIDE_READ(m + 2 * line), WIDE_READ(m + 3 * line),
                          WIDE_READ(m + 4 * line), WIDE_READ(m + 5 * line), each, 1);
#pragma GCC unroll 4
        for (int row = 0; row < TILE; row++) {
            each[row] += bias;
            if (row < rows && run >= WIDE_LANES)
                WIDE_AT(out + row * out_row + at) = each[row];
            else if (row < rows)
                memcpy(out + row * out_row, &each[row], (size_t)run * sizeof(REAL));
        }
    }
}

/* One channel's block of tiles, brought back to its rows. */
static void NAME(write_block)(const struct tiles *t, const struct block *b, const REAL *points, REAL bias, REAL *lines,
                              REAL *out, int64_t out_row)
{
    const int64_t rest = t->columns - TILE * b->tile, columns = rest < TILE * b->tiles ? rest : TILE * b->tiles;
    for (int64_t row = 0; row < b->rows; row++) {
        const int64_t first = TILE * (b->row + row), rows = t->rows - first < TILE ? t->rows - first : TILE;
        NAME(places_across)(t, b->tiles, points + row * b->tiles * t->batch, point_step(t, t->out), lines);
        NAME(places_down)(t, lines, bias, rows, columns * t->batch, out + first * out_row + TILE * b->tile * t->batch,
                          out_row);
    }
}

/* G g of three values. */
ALWAYS void NAME(six_kernels)(const WIDE g0, const WIDE g1, const WIDE g2, WIDE *to, const int step)
{
    const WIDE even_a = (g0 + g2 * A2) * (1 / NA), even_b = (g0 + g2 * B2) * (1 / NB);
    to[0] = g0 * (1 / (A2 * B2));
    to[step] = even_a + g1 * (A1 / NA);
    to[2 * step] = even_a - g1 * (A1 / NA);
    to[3 * step] = even_b + g1 * (B1 / NB);
    to[4 * step] = even_b - g1 * (B1 / NB);
    to[5 * step] = g2;
}

/* G g G' of `PIECE` kernels that lie side by side, place by place. */
static void NAME(transform_kernels)(REAL taps[9][PIECE], REAL *to, int64_t point)
{
    for (int64_t at = 0; at < PIECE; at += WIDE_LANES) {
        WIDE down[6][3], each[6];
        for (int j = 0; j < 3; j++)
            NAME(six_kernels)(WIDE_READ(taps[j] + at), WIDE_READ(taps[3 + j] + at), WIDE_READ(taps[6 + j] + at),
                              &down[0][j], 3);
        for (int i = 0; i < 6; i++) {
            NAME(six_kernels)(down[i][0], down[i][1], down[i][2], each, 1);
            for (int j = 0; j < 6; j++)
                WIDE_AT(to + (6 * i + j) * point + at) = each[j];
        }
    }
}

/* The kernels at all points, in the order in which the sums need them; turned round, inputs and outputs exchanged, for
   the way back. */
static void NAME(pack_tiles)(const struct tiles *t, const REAL *weight, int turned, REAL *packed)
{
    const int most = NAME(channels_at_once)(t->out);
    REAL taps[9][PIECE] = {{0}};
    int64_t held = 0;
    for (int64_t group = 0; group < t->out; group += most)
        for (int64_t channel = 0; channel < t->in; channel++)
            for (int64_t one = group; one < group + most && one < t->out; one++) {
                const REAL *kernel = weight + 9 * (turned ? channel * t->out + one : one * t->in + channel);
                for (int tap = 0; tap < 9; tap++)
                    taps[tap][held] = kernel[turned ? 8 - tap : tap];
                if (++held == PIECE) {
                    NAME(transform_kernels)(taps, packed, t->kernels);
                    packed += PIECE;
                    held = 0;
                }
            }
    if (held)
        NAME(transform_kernels)(taps, packed, t->kernels);
}

/* The convolution of a map with packed kernels, `top` and `left` zeros around it. `scratch` holds lines of one row of
   tiles, a line of zeros and the blocks of both sides. */
static void NAME(convolve_tiles)(const struct tiles *t, const struct NAME(map) *map, int64_t top, int64_t left,
                                 const REAL *packed, const REAL *bias, REAL *scratch, REAL *out, int64_t out_channel,
                                 int64_t out_row)
{
    const int64_t from_point = point_step(t, t->in), to_point = point_step(t, t->out);
    REAL *lines = scratch, *zeros = lines + 6 * line_size(t), *values = lines + lines_size(t);
    REAL *points = values + POINTS * from_point;
    int64_t offsets[t->in];
    for (int64_t channel = 0; channel < t->in; channel++)
        offsets[channel] = channel * t->span;
    for (struct block b = first_block(t); b.rows > 0; next_block(t, &b)) {
        const int64_t length = b.tiles * t->batch;
        memset(lines, 0, (size_t)lines_size(t) * sizeof(REAL));
        for (int64_t channel = 0; channel < t->in; channel++)
            for (int64_t row = 0; row < b.rows; row++) {
                NAME(values_down)(t, &b, map, channel, TILE * (b.row + row) - top, left, zeros, lines);
                NAME(values_across)(t, b.tiles, lines, values + channel * t->span + row * length, from_point);
            }
        for (int64_t point = 0; point < POINTS; point++) {
            const struct NAME(windows) w = {values + point * from_point, 0, 0, 1, 1, t->in, offsets, NULL, NULL};
            NAME(output_row)(t->out, b.rows * length, &w, packed + point * t->kernels, t->in, 0,
                             points + point * to_point, t->span);
        }
        for (int64_t channel = 0; channel < t->out; channel++)
            NAME(write_block)(t, &b, points + channel * t->span, bias ? bias[channel] : 0, lines,
                              out + channel * out_channel, out_row);
    }
}
