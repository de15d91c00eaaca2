/* Sizes of Winograd's tiles, the same for all number types. Included by convolve.c. */

enum { TILE = 4, POINTS = 36 }; /* a tile has TILE x TILE places and is computed at POINTS points */
enum { PIECE = 64 }; /* kernels that are transformed at once */

/* Numbers of both sides of a block of tiles: what stays in the second cache. With many channels a block is larger than
   that rather than less than SHORTEST numbers long. */
enum { BLOCK_NUMBERS = 3 << 16, SHORTEST = 40 };

/* A map of `rows` x `columns` places in `tall` x `wide` tiles, computed from `in` channels to `out` in blocks of
   `rows_at_once` x `tiles_at_once`. The frame of a block has rows of TILE runs of `run` numbers. A block has `span`
   numbers a channel and point, kernels have `kernels` a point. */
struct tiles {
    int64_t in, out, batch, rows, columns, tall, wide;
    int64_t rows_at_once, tiles_at_once, run, span, kernels;
};

struct block {
    int64_t row, rows, tile, tiles;
};

/* A step of an odd number of cache lines: steps of many pages would share few places of the first cache. */
static int64_t odd_lines(int64_t numbers) { return rounded(numbers) | SLACK; }

static struct tiles tiles_of(int64_t in, int64_t out, int64_t batch, int64_t rows, int64_t columns)
{
    struct tiles t = {in, out, batch, rows, columns, (rows + TILE - 1) / TILE, (columns + TILE - 1) / TILE,
                      1, 1, 0, 0, 0};
    const int64_t fitting = BLOCK_NUMBERS / (POINTS * (in + out) * batch), least = (SHORTEST + batch - 1) / batch;
    const int64_t most = fitting > least ? fitting : least;
    if (most >= t.wide) {
        const int64_t blocks = (t.tall + most / t.wide - 1) / (most / t.wide);
        t.rows_at_once = (t.tall + blocks - 1) / blocks;
        t.tiles_at_once = t.wide;
    } else {
        const int64_t blocks = (t.wide + most - 1) / most;
        t.tiles_at_once = (t.wide + blocks - 1) / blocks;
    }
    t.run = (t.tiles_at_once + 1) * batch;
    t.span = odd_lines(t.rows_at_once * t.tiles_at_once * batch + SLACK);
    t.kernels = odd_lines((in * out + PIECE - 1) / PIECE * PIECE);
    return t;
}

static struct block first_block(const struct tiles *t)
{
    return (struct block){0, t->rows_at_once, 0, t->tiles_at_once};
}

/* The block behind `b`; one without rows behind the last. */
static void next_block(const struct tiles *t, struct block *b)
{
    b->tile += t->tiles_at_once;
    if (b->tile >= t->wide) {
        b->tile = 0;
        b->row += t->rows_at_once;
    }
    b->tiles = t->wide - b->tile < t->tiles_at_once ? t->wide - b->tile : t->tiles_at_once;
    b->rows = t->tall - b->row < t->rows_at_once ? t->tall - b->row : t->rows_at_once;
}

/* Room for one line of a row of tiles, and for six lines and one of zeros. */
static int64_t line_size(const struct tiles *t)
{
    return odd_lines((TILE * t->tiles_at_once + 2) * t->batch + SLACK);
}

static int64_t lines_size(const struct tiles *t) { return 7 * line_size(t); }

/* Room for the framed values of one block, all channels innermost. */
static int64_t frame_size(const struct tiles *t)
{
    return rounded((TILE * t->rows_at_once + 2) * TILE * t->run) + 2 * SLACK;
}

/* From a point of a block to the next. */
static int64_t point_step(const struct tiles *t, int64_t channels) { return odd_lines(channels * t->span); }

/* Lines and both sides of a block. */
static int64_t blocks_size(const struct tiles *t)
{
    return lines_size(t) + POINTS * (point_step(t, t->in) + point_step(t, t->out));
}

/* The tiles of the outputs, and those of the inputs' gradient. */
static struct tiles tiles_forward(const struct sizes *s, const struct geometry *g)
{
    return tiles_of(s->channels_in, s->channels_out, s->batch, g->rows, g->columns_out * s->pool_columns);
}

static struct tiles tiles_backward(const struct sizes *s)
{
    return tiles_of(s->channels_out, s->channels_in, s->batch, s->rows_in, s->columns_in);
}

/* The same tiles as `t` of a map with `channels` innermost, as if each channel were another record. */
static struct tiles tiles_turned(const struct tiles *t, int64_t channels)
{
    struct tiles turned = *t;
    turned.batch = t->batch * rounded(channels);
    turned.run = (t->tiles_at_once + 1) * turned.batch;
    turned.span = odd_lines(t->rows_at_once * t->tiles_at_once * turned.batch + SLACK);
    return turned;
}

/* Sums of the kernels' gradient at one point: a row of whole cache lines for each output channel. */
static int64_t sums_step(const struct tiles *t) { return odd_lines(rounded(t->out) * rounded(t->in)); }

/* Room for the places of one row's numbers, as 64-bit integers: two floats each. */
static int64_t places_size(const struct tiles *t) { return rounded(2 * (TILE * t->wide + 2) * t->batch); }

static int64_t tiles_scratch(const struct sizes *s, const struct geometry *g)
{
    const struct tiles there = tiles_forward(s, g), back = tiles_backward(s);
    const struct tiles seen = tiles_turned(&there, there.in), given = tiles_turned(&there, there.out);
    const int64_t convolving = POINTS * there.kernels + blocks_size(&there) + blocks_size(&back);
    const int64_t summing = POINTS * (sums_step(&there) + seen.span + given.span) + frame_size(&seen) +
                            frame_size(&given) + 2 * places_size(&there);
    return convolving + summing + rounded(s->channels_out * g->rows * g->length);
}
