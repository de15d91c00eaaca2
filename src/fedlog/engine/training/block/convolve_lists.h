/* Sizes of the gradients by lists of winners. Included by convolve.c; the passes are in convolve_winners.h. */

enum { WINNER_LANES = 8, WINNER_BITS = 4 }; /* lanes of the sums in convolve_dots.h; bits for them and for the rests */

/* One record's map lies by rows, columns and then channels, so that what one row of the kernel reads is a single run of
   `taps` numbers, read by `vectors` vectors of 16. Sums begin anew every `at_once` rows, as in `weight_gradient`. */
struct lists {
    int64_t taps, vectors;
    int64_t line, record; /* from a row to the next, from a record to the next */
    int64_t at_once, room; /* rows, and how many winners of one lane they have at most */
};

static struct lists lists_of(const struct sizes *s, const struct geometry *g)
{
    struct lists l;
    l.taps = s->kernel_columns * s->channels_in;
    l.vectors = (l.taps + 15) / 16;
    l.line = s->columns_in * s->channels_in;
    l.record = odd_lines(s->rows_in * l.line + 2 * SLACK);
    l.at_once = g->length >= 2048 ? 1 : 2048 / g->length;
    l.room = l.at_once * (g->length / WINNER_LANES + WINNER_LANES);
    return l;
}

/* Whether lists are faster than windows: maps with pools of 2 x 2, or signals with any pool, and vectors along columns and
   channels that are filled well enough. */
static int suits_lists(const struct sizes *s, const struct geometry *g)
{
    const struct lists l = lists_of(s, g);
    const int maps = s->pool_rows == 2 && s->pool_columns == 2 && l.vectors <= 4 &&
                     (s->kernel_rows == 3 || s->kernel_rows == 5);
    const int signals = s->kernel_rows == 1 && s->pool_rows == 1 && s->pool_columns >= 2 && l.vectors <= 10;
    return !g->framed && !g->tiled && (maps || signals) && l.taps >= 12 && g->length % 4 == 0 &&
           (s->batch * l.record) >> (31 - WINNER_BITS) == 0;
}

/* Numbers of one kernel in this order. */
static int64_t kernel_size(const struct sizes *s, const struct lists *l) { return 16 * s->kernel_rows * l->vectors; }

/* Room for all winners. */
static int64_t most_winners(const struct sizes *s, const struct geometry *g)
{
    return rounded(s->channels_out * g->rows_out * g->columns_out * s->batch + SLACK);
}

/* Where a row's winners begin and its codes, which are the same for all rows up to a number. */
static int64_t starts_size(const struct sizes *s, const struct geometry *g)
{
    return rounded(2 * (s->channels_out * g->rows + 1)); /* two floats each */
}

static int64_t codes_size(const struct sizes *s, const struct geometry *g)
{
    return rounded(s->pool_columns * g->columns_out * s->batch + SLACK);
}

static int64_t lists_scratch(const struct sizes *s, const struct geometry *g)
{
    const struct lists l = lists_of(s, g);
    return 2 * (s->batch * l.record + SLACK) + 2 * most_winners(s, g) + starts_size(s, g) + codes_size(s, g) +
           rounded(2 * (WINNER_LANES + 1) * l.room) + (s->channels_out + 2) * kernel_size(s, &l);
}
