/* Sizes of Winograd's tiles, the same for all number types. Included by convolve.c. */

enum { PIECE = 64 }; /* kernels that are transformed at once */

/* Numbers of both sides of a block of tiles: what stays in the second cache; dot products are better long. With many
   channels a block is larger than that rather than less than SHORTEST numbers long. */
enum { BLOCK_NUMBERS = 3 << 16, DOTS_NUMBERS = 3 << 17, SHORTEST = 192 };

/* A map of `rows` x `columns` places in `tall` x `wide` tiles, computed from `in` channels to `out` in blocks of
   `rows_at_once` x `tiles_at_once`. A framed map has `frame_rows` rows of two runs a channel. A block has `span`
   numbers a channel and point, kernels have `kernels` a point. */
struct tiles {
    int64_t in, out, batch, rows, columns, tall, wide, frame_rows, run;
    int64_t rows_at_once, tiles_at_once, span, kernels;
};

struct block {
    int64_t row, rows, tile, tiles;
};

static struct tiles tiles_of(int64_t in, int64_t out, int64_t batch, int64_t rows, int64_t columns,
                             int64_t numbers)
{
    struct tiles t = {in, out, batch, rows, columns, (rows + 1) / 2, (columns + 1) / 2, 0, 0, 1, 1, 0, 0};
    const int64_t fitting = numbers / (16 * (in + out) * batch), least = (SHORTEST + batch - 1) / batch;
    const int64_t most = fitting > least ? fitting : least;
    t.frame_rows = 2 * t.tall + 2;
    t.run = (t.wide + 1) * batch;
    if (most >= t.wide) {
        const int64_t blocks = (t.tall + most / t.wide - 1) / (most / t.wide);
        t.rows_at_once = (t.tall + blocks - 1) / blocks;
        t.tiles_at_once = t.wide;
    } else {
        const int64_t blocks = (t.wide + most - 1) / most;
        t.tiles_at_once = (t.wide + blocks - 1) / blocks;
    }
    t.span = rounded(t.rows_at_once * t.tiles_at_once * batch) + SLACK;
    if (t.span % 256 == 0) /* rows a page apart would share few places of the first cache */
        t.span += SLACK;
    t.kernels = (in * out + PIECE - 1) / PIECE * PIECE;
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

static int64_t frame_size(const struct tiles *t, int64_t channels)
{
    return rounded(channels * t->frame_rows * 2 * t->run) + 2 * SLACK;
}

/* Both sides of a block, and two rows of it brought back. */
static int64_t blocks_size(const struct tiles *t) { return (16 * (t->in + t->out) + 4) * t->span; }

/* The tiles of the outputs, those of the kernels' gradient, and those of the inputs' gradient. */
static struct tiles tiles_forward(const struct sizes *s, const struct geometry *g, int64_t numbers)
{
    return tiles_of(s->channels_in, s->channels_out, s->batch, g->rows, g->columns_out * s->pool_columns, numbers);
}

static struct tiles tiles_backward(const struct sizes *s)
{
    return tiles_of(s->channels_out, s->channels_in, s->batch, s->rows_in, s->columns_in, BLOCK_NUMBERS);
}

static int64_t tiles_scratch(const struct sizes *s, const struct geometry *g)
{
    const struct tiles there = tiles_forward(s, g, BLOCK_NUMBERS), dots = tiles_forward(s, g, DOTS_NUMBERS);
    const struct tiles back = tiles_backward(s);
    return 16 * there.kernels + blocks_size(&there) + blocks_size(&dots) + blocks_size(&back) +
           frame_size(&there, s->channels_in) + frame_size(&there, s->channels_out) +
           frame_size(&back, s->channels_out) + rounded(s->channels_out * g->rows * g->length);
}
