/* Batches of stacked clients out of a pool of 8-bit records: brought to numbers, cropped and flipped on the way.
   `pixels.py` calls it. Nothing is computed: each of a channel's 256 levels has its number in a table. */

#include <stddef.h>
#include <stdint.h>

struct pixels { /* the same in pixels.py */
    int64_t clients, batch, records; /* records of the pool */
    int64_t channels, rows, columns; /* of one record */
    int64_t innermost; /* whether the batch lies innermost; or else the records, one behind the other */
    int64_t padding; /* of the black frame that crops are taken from */
};

/* The part of a row that lies inside its image: from `first` on, `inside` places, the first of them from `start`. */
struct span {
    int64_t first, inside, start;
};

static struct span span_of(int64_t columns, int64_t shift, int64_t flipped)
{
    const int64_t left = flipped ? shift : -shift, cut = left > 0 ? left : -left, first = left > 0 ? left : 0;
    if (cut >= columns)
        return (struct span){0, 0, 0};
    return (struct span){first, columns - cut, flipped ? columns - 1 - first + shift : first + shift};
}

/* One row of one record, its numbers `step` apart; `from` is NULL where the row lies in the frame. */
#define ROW(REAL)                                                                                                  \
    static void row_##REAL(const uint8_t *from, int64_t columns, struct span at, int64_t flipped,                  \
                           const REAL *levels, int64_t step, REAL *to)                                             \
    {                                                                                                              \
        const int64_t direction = flipped ? -1 : 1, last = from ? at.first + at.inside : 0;                        \
        int64_t column = 0;                                                                                        \
        for (; column < at.first && from; column++)                                                                \
            to[column * step] = levels[0];                                                                         \
        if (from)                                                                                                  \
            from += at.start;                                                                                      \
        for (; column < last; column++, from += direction)                                                         \
            to[column * step] = levels[*from];                                                                     \
        for (; column < columns; column++)                                                                         \
            to[column * step] = levels[0];                                                                         \
    }

/* Ask for the records of one client all at once: row by row, each record would be waited for. */
static void fetch(const struct pixels *p, const uint8_t *pool, const int64_t *positions)
{
    const int64_t size = p->channels * p->rows * p->columns;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t at = 0; at < size; at += 64)
            __builtin_prefetch(pool + positions[b] * size + at, 0, 2);
}

/* Ask for memory that is written soon, column by column: one place after another, each would be waited for. */
static void expect(const void *first, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch((const char *)first + at, 1, 3);
}

/* `crops` holds every record's row and column in the frame and whether it is flipped, (3, clients, batch); NULL: no
   crops. Returns whether all positions are in the pool; nothing is written for one that is not. */
#define GATHER(REAL)                                                                                               \
    int gather_pixels_##REAL(const struct pixels *p, const uint8_t *pool, const int64_t *positions,                \
                             const int64_t *crops, const REAL *levels, REAL *out)                                  \
    {                                                                                                              \
        const int64_t map = p->rows * p->columns, size = p->channels * map, all = p->clients * p->batch;           \
        const int64_t step = p->innermost ? p->batch : 1;                                                          \
        int known = 1;                                                                                             \
        for (int64_t one = 0; one < all; one++)                                                                    \
            known = known && positions[one] >= 0 && positions[one] < p->records;                                   \
        for (int64_t client = 0; client < p->clients && known; client++) {                                         \
            fetch(p, pool, positions + client * p->batch);                                                         \
            for (int64_t line = 0; line < p->channels * p->rows; line++) {                                         \
                const int64_t channel = line / p->rows, above = channel * p->rows;                                 \
                if (p->innermost && line + 1 < p->channels * p->rows)                                              \
                    expect(out + client * p->batch * size + (line + 1) * p->columns * p->batch,                    \
                           p->columns * p->batch * (int64_t)sizeof(REAL));                                         \
                for (int64_t b = 0; b < p->batch; b++) {                                                           \
                    const int64_t one = client * p->batch + b;                                                     \
                    const int64_t down = crops ? crops[one] - p->padding : 0, row = line - above + down;           \
                    const int64_t shift = crops ? crops[all + one] - p->padding : 0;                               \
                    const int64_t flipped = crops ? crops[2 * all + one] : 0;                                      \
                    const uint8_t *from = pool + positions[one] * size + channel * map + row * p->columns;         \
                    REAL *to = out + client * p->batch * size +                                                    \
                               (p->innermost ? line * p->columns * p->batch + b : b * size + line * p->columns);   \
                    row_##REAL(row >= 0 && row < p->rows ? from : NULL, p->columns,                                \
                               span_of(p->columns, shift, flipped), flipped, levels + 256 * channel, step, to);    \
                }                                                                                                  \
            }                                                                                                      \
        }                                                                                                          \
        return known;                                                                                              \
    }

ROW(float)
ROW(double)
GATHER(float)
GATHER(double)
