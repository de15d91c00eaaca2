/* Winograd's minimal filtering F(2 x 2, 3 x 3): 16 multiplications for four places where windows take 36. Included by
   convolve_passes.h, which names the vectors.

   Two rows and two columns of places are a tile, whose windows cover 4 x 4 values d. With

       B' = 1  0 -1  0     G = 1    0    0      A' = 1  1  1  0
            0  1  1  0         1/2  1/2  1/2         0  1 -1 -1
            0 -1  1  0         1/2 -1/2  1/2
            0  1  0 -1         0    0    1

   the tile is A' [(G g G') * (B' d B)] A, products point by point; the gradient of the kernel g is
   G' [(A y A') * (B' d B)] G with the tile's gradient y. All factors are 1 or 1/2, so little is lost to rounding.
   Neighbouring tiles of all records lie behind each other, and each of the 16 points is a matrix product over channels.

   A map is copied into a frame of zeros first, even and odd columns apart: the values that a tile's place reads are
   runs of whole vectors. */

#ifdef LONG_VECTORS
#define WIDE NAME(vector_long)
#else
#define WIDE NAME(vector_short)
#endif
#define WIDE_LANES ((int64_t)(sizeof(WIDE) / sizeof(REAL)))
#define WIDE_AT(pointer) (*(WIDE *)(pointer))
#define WIDE_READ(pointer) (*(const WIDE *)(pointer))

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

/* The map between zeros that are there already: rows of two runs, even columns and odd ones. */
static void NAME(frame_tiles)(const struct tiles *t, const struct NAME(map) *map, int64_t top, int64_t left,
                              REAL *frame)
{
    const int64_t rows = map->rows + top < t->frame_rows ? map->rows : t->frame_rows - top;
    const int64_t columns = map->columns + left < 2 * t->wide + 2 ? map->columns : 2 * t->wide + 2 - left;
    for (int64_t channel = 0; channel < map->channels; channel++)
        for (int64_t row = 0; row < rows; row++) {
            const REAL *from = map->first + channel * map->channel_step + row * map->row_step;
            REAL *to = frame + (channel * t->frame_rows + row + top) * 2 * t->run;
            for (int64_t first = 0; first < 2; first++)
                NAME(copy_columns)(from + first * t->batch, 2,
                                   to + (first + left) % 2 * t->run + (first + left) / 2 * t->batch, 1,
                                   (columns - first + 1) / 2, t->batch);
        }
}

/* B' d B for `length` numbers of one row of tiles; behind them a few more are written. */
ALWAYS void NAME(transform_values)(const struct tiles *t, const REAL *row, int64_t length, REAL *to, int64_t point)
{
    for (int64_t at = 0; at < length; at += WIDE_LANES) {
        WIDE across[4][4]; /* B' d */
        for (int column = 0; column < 4; column++) {
            const REAL *from = row + column % 2 * t->run + column / 2 * t->batch + at;
            const WIDE d0 = WIDE_READ(from), d1 = WIDE_READ(from + 2 * t->run);
            const WIDE d2 = WIDE_READ(from + 4 * t->run), d3 = WIDE_READ(from + 6 * t->run);
            across[0][column] = d0 - d2;
            across[1][column] = d1 + d2;
            across[2][column] = d2 - d1;
            across[3][column] = d1 - d3;
        }
        for (int i = 0; i < 4; i++) {
            REAL *place = to + 4 * i * point + at;
            WIDE_AT(place) = across[i][0] - across[i][2];
            WIDE_AT(place + point) = across[i][1] + across[i][2];
            WIDE_AT(place + 2 * point) = across[i][2] - across[i][1];
            WIDE_AT(place + 3 * point) = across[i][1] - across[i][3];
        }
    }
}

/* A y A' for `length` numbers of one row of tiles. */
ALWAYS void NAME(transform_gradient)(const struct tiles *t, const REAL *row, int64_t length, REAL *to, int64_t point)
{
    for (int64_t at = 0; at < length; at += WIDE_LANES) {
        WIDE across[4][2];
        for (int column = 0; column < 2; column++) {
            const WIDE y0 = WIDE_READ(row + column * t->run + at), y1 = WIDE_READ(row + (2 + column) * t->run + at);
            across[0][column] = y0;
            across[1][column] = y0 + y1;
            across[2][column] = y0 - y1;
            across[3][column] = -y1;
        }
        for (int i = 0; i < 4; i++) {
            REAL *place = to + 4 * i * point + at;
            WIDE_AT(place) = across[i][0];
            WIDE_AT(place + point) = across[i][0] + across[i][1];
            WIDE_AT(place + 2 * point) = across[i][0] - across[i][1];
            WIDE_AT(place + 3 * point) = -across[i][1];
        }
    }
}

/* One block of tiles of all channels at the 16 points: (16, channels, span). */
ALWAYS void NAME(transform_block)(const struct tiles *t, const struct block *b, const REAL *frame, int64_t channels,
                                  const int of_gradient, REAL *to)
{
    const int64_t length = b->tiles * t->batch;
    for (int64_t channel = 0; channel < channels; channel++)
        for (int64_t row = 0; row < b->rows; row++) {
            const REAL *from = frame + (channel * t->frame_rows + 2 * (b->row + row)) * 2 * t->run +
                               b->tile * t->batch;
            REAL *place = to + channel * t->span + row * length;
            if (of_gradient)
                NAME(transform_gradient)(t, from, length, place, channels * t->span);
            else
                NAME(transform_values)(t, from, length, place, channels * t->span);
        }
}

/* A' m A plus the bias for one row of tiles: two rows of the map, even and odd columns apart. */
ALWAYS void NAME(transform_back)(const REAL *points, int64_t point, int64_t length, REAL bias, REAL *to, int64_t step)
{
    for (int64_t at = 0; at < length; at += WIDE_LANES) {
        WIDE down[2][4];
        for (int j = 0; j < 4; j++) {
            const REAL *m = points + j * point + at;
            const WIDE m1 = WIDE_READ(m + 4 * point), m2 = WIDE_READ(m + 8 * point);
            down[0][j] = WIDE_READ(m) + m1 + m2;
            down[1][j] = m1 - m2 - WIDE_READ(m + 12 * point);
        }
        for (int i = 0; i < 2; i++) {
            WIDE_AT(to + 2 * i * step + at) = down[i][0] + down[i][1] + down[i][2] + bias;
            WIDE_AT(to + (2 * i + 1) * step + at) = down[i][1] - down[i][2] - down[i][3] + bias;
        }
    }
}

/* One channel's block of tiles, brought back and dealt out to its rows and columns. */
static void NAME(write_block)(const struct tiles *t, const struct block *b, const REAL *points, REAL bias, REAL *pairs,
                              REAL *out, int64_t out_row)
{
    const int64_t length = b->tiles * t->batch, rest = t->columns - 2 * b->tile;
    const int64_t columns = rest < 2 * b->tiles ? rest : 2 * b->tiles;
    for (int64_t row = 0; row < b->rows; row++) {
        NAME(transform_back)(points + row * length, t->out * t->span, length, bias, pairs, t->span);
        for (int64_t part = 0; part < 2 && 2 * (b->row + row) + part < t->rows; part++) {
            REAL *to = out + (2 * (b->row + row) + part) * out_row + 2 * b->tile * t->batch;
            for (int64_t first = 0; first < 2; first++)
                NAME(copy_columns)(pairs + (2 * part + first) * t->span, 1, to + first * t->batch, 2,
                                   (columns - first + 1) / 2, t->batch);
        }
    }
}

/* G g G' of `PIECE` kernels that lie side by side, place by place. */
static void NAME(transform_kernels)(REAL taps[9][PIECE], REAL *to, int64_t point)
{
    for (int64_t at = 0; at < PIECE; at += WIDE_LANES) {
        WIDE down[4][3];
        for (int j = 0; j < 3; j++) {
            const WIDE g0 = WIDE_READ(taps[j] + at), g1 = WIDE_READ(taps[3 + j] + at), g2 = WIDE_READ(taps[6 + j] + at);
            down[0][j] = g0;
            down[1][j] = (g0 + g1 + g2) * (REAL)0.5;
            down[2][j] = (g0 - g1 + g2) * (REAL)0.5;
            down[3][j] = g2;
        }
        for (int i = 0; i < 4; i++) {
            REAL *place = to + 4 * i * point + at;
            WIDE_AT(place) = down[i][0];
            WIDE_AT(place + point) = (down[i][0] + down[i][1] + down[i][2]) * (REAL)0.5;
            WIDE_AT(place + 2 * point) = (down[i][0] - down[i][1] + down[i][2]) * (REAL)0.5;
            WIDE_AT(place + 3 * point) = down[i][2];
        }
    }
}

/* The kernels at the 16 points, in the order in which the sums need them; turned round, inputs and outputs exchanged,
   for the way back. */
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

/* The convolution of a framed map with packed kernels. `scratch` holds the blocks of both sides. */
static void NAME(convolve_tiles)(const struct tiles *t, const REAL *frame, const REAL *packed, const REAL *bias,
                                 REAL *scratch, REAL *out, int64_t out_channel, int64_t out_row)
{
    REAL *values = scratch, *points = values + 16 * t->in * t->span, *pairs = points + 16 * t->out * t->span;
    int64_t offsets[t->in];
    for (int64_t channel = 0; channel < t->in; channel++)
        offsets[channel] = channel * t->span;
    for (struct block b = first_block(t); b.rows > 0; next_block(t, &b)) {
        NAME(transform_block)(t, &b, frame, t->in, 0, values);
        for (int64_t point = 0; point < 16; point++) {
            const struct NAME(windows) w = {values + point * t->in * t->span, 0, 0, 1, 1, t->in, offsets, NULL, NULL};
            NAME(output_row)(t->out, b.rows * b.tiles * t->batch, &w, packed + point * t->kernels, t->in, 0,
                             points + point * t->out * t->span, t->span);
        }
        for (int64_t channel = 0; channel < t->out; channel++)
            NAME(write_block)(t, &b, points + channel * t->span, bias ? bias[channel] : 0, pairs,
                              out + channel * out_channel, out_row);
    }
}
