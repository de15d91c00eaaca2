/* Batches of stacked clients out of a pool of 8-bit records: brought to numbers, cropped and flipped on the way.
   `pixels.py` calls it. Nothing is computed: each of a channel's 256 levels has its number in a table. With AVX-512 the
   table lies in registers, and sixteen columns of sixteen records are turned over and looked up at once. */

#include <stddef.h>
#include <stdint.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

int convolve_instructions(void);

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

#if defined(__x86_64__) && defined(__GNUC__)
#define AVX512 static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512vbmi")))

/* One row of one record, which has at most 64 columns, as `ROW` takes it; zeros where it lies in the frame. */
AVX512 __m512i cropped(const uint8_t *from, struct span at, int64_t flipped)
{
    const __mmask64 inside = at.inside ? ~(__mmask64)0 >> (64 - at.inside) : 0;
    if (!flipped)
        return _mm512_maskz_loadu_epi8(inside << at.first, from + at.start - at.first);
    /* Loaded at the end of the vector, then read backwards. */
    const __m512i found = _mm512_maskz_loadu_epi8(at.inside ? inside << (64 - at.first - at.inside) : 0,
                                                  from + at.start + at.first - 63);
    const __m512i turned = _mm512_set4_epi32(0x00010203, 0x04050607, 0x08090a0b, 0x0c0d0e0f);
    return _mm512_shuffle_i64x2(_mm512_shuffle_epi8(found, turned), _mm512_shuffle_epi8(found, turned), 0x1b);
}

/* Turn a square of 16 x 16 bytes over: four times, rows of the first and of the second half are interleaved. */
AVX512 void turn_bytes(__m128i rows[16])
{
#pragma GCC unroll 4
    for (int time = 0; time < 4; time++) {
        __m128i dealt[16];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            dealt[2 * i] = _mm_unpacklo_epi8(rows[i], rows[i + 8]);
            dealt[2 * i + 1] = _mm_unpackhi_epi8(rows[i], rows[i + 8]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            rows[i] = dealt[i];
    }
}

/* The 256 numbers of a channel, taken apart into their bytes: all first bytes, all second ones, and so on. */
static void bytes_of(const float *levels, uint8_t bytes[4][256])
{
    for (int level = 0; level < 256; level++)
        for (int i = 0; i < 4; i++)
            bytes[i][level] = ((const uint8_t *)(levels + level))[i];
}

/* The numbers of four columns' levels, sixteen records each: looked up byte by byte, then joined. A table of 256 bytes
   lies in four registers. */
AVX512 void look_up(const __m512i table[16], __m512i levels, __m512i found[4])
{
    const __mmask64 upper = _mm512_movepi8_mask(levels);
    __m512i bytes[4], joined[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        bytes[i] = _mm512_mask_mov_epi8(_mm512_permutex2var_epi8(table[4 * i], levels, table[4 * i + 1]), upper,
                                        _mm512_permutex2var_epi8(table[4 * i + 2], levels, table[4 * i + 3]));
    const __m512i low = _mm512_unpacklo_epi8(bytes[0], bytes[1]), high = _mm512_unpackhi_epi8(bytes[0], bytes[1]);
    const __m512i upper_low = _mm512_unpacklo_epi8(bytes[2], bytes[3]);
    const __m512i upper_high = _mm512_unpackhi_epi8(bytes[2], bytes[3]);
    joined[0] = _mm512_unpacklo_epi16(low, upper_low); /* records 0 to 3 of all four columns, and so on */
    joined[1] = _mm512_unpackhi_epi16(low, upper_low);
    joined[2] = _mm512_unpacklo_epi16(high, upper_high);
    joined[3] = _mm512_unpackhi_epi16(high, upper_high);
    const __m512i first = _mm512_shuffle_i32x4(joined[0], joined[1], 0x44);
    const __m512i second = _mm512_shuffle_i32x4(joined[2], joined[3], 0x44);
    const __m512i third = _mm512_shuffle_i32x4(joined[0], joined[1], 0xee);
    const __m512i last = _mm512_shuffle_i32x4(joined[2], joined[3], 0xee);
    found[0] = _mm512_shuffle_i32x4(first, second, 0x88);
    found[1] = _mm512_shuffle_i32x4(first, second, 0xdd);
    found[2] = _mm512_shuffle_i32x4(third, last, 0x88);
    found[3] = _mm512_shuffle_i32x4(third, last, 0xdd);
}

/* One line of one channel for all records of a client, sixteen records and sixteen columns at a time. The last columns
   begin earlier. `row` is the row of the line in its image, `bytes` the channel's table. */
static __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi"))) void line_avx512(
    const struct pixels *p, const uint8_t *channel, const int64_t *positions, const int64_t *crops, int64_t row,
    uint8_t bytes[4][256], float *out)
{
    const int64_t size = p->channels * p->rows * p->columns, all = p->clients * p->batch;
    uint8_t lines[16][64] __attribute__((aligned(64)));
    __m512i table[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        table[i] = _mm512_loadu_si512(bytes[i / 4] + i % 4 * 64);
    for (int64_t first = 0; first < p->batch; first += 16) {
        const __mmask16 own = p->batch - first >= 16 ? 0xffff : (__mmask16)((1 << (p->batch - first)) - 1);
        for (int64_t b = first; b < first + 16 && b < p->batch; b++) {
            const int64_t from = row + (crops ? crops[b] - p->padding : 0);
            const int64_t shift = crops ? crops[all + b] - p->padding : 0, flipped = crops ? crops[2 * all + b] : 0;
            const struct span at =
                from >= 0 && from < p->rows ? span_of(p->columns, shift, flipped) : (struct span){0, 0, 0};
            const uint8_t *image = channel + positions[b] * size + (at.inside ? from * p->columns : 0);
            _mm512_store_si512(lines[b - first], cropped(image, at, flipped));
        }
        for (int64_t column = 0; column < p->columns; column += 16) {
            const int64_t start = column + 16 <= p->columns ? column : p->columns - 16;
            __m128i square[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                square[i] = _mm_loadu_si128((const __m128i *)(lines[i] + start));
            turn_bytes(square);
#pragma GCC unroll 4
            for (int i = 0; i < 16; i += 4) {
                __m512i levels = _mm512_castsi128_si512(square[i]), found[4];
                levels = _mm512_inserti32x4(levels, square[i + 1], 1);
                levels = _mm512_inserti32x4(levels, square[i + 2], 2);
                levels = _mm512_inserti32x4(levels, square[i + 3], 3);
                look_up(table, levels, found);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++)
                    _mm512_mask_storeu_epi32(out + (start + i + j) * p->batch + first, own, found[j]);
            }
        }
    }
}

/* One channel of all records of a client, uncropped, the records one behind the other: `count` places of each. */
static __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi"))) void records_avx512(
    const struct pixels *p, const uint8_t *channel, const int64_t *positions, const float *levels, float *out)
{
    const int64_t count = p->rows * p->columns, size = p->channels * count;
    uint8_t bytes[4][256];
    __m512i table[16];
    bytes_of(levels, bytes);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        table[i] = _mm512_loadu_si512(bytes[i / 4] + i % 4 * 64);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t at = 0; at < count; at += 64) {
            const __mmask64 own = count - at >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << (count - at)) - 1;
            __m512i found[4];
            look_up(table, _mm512_maskz_loadu_epi8(own, channel + positions[b] * size + at), found);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                _mm512_mask_storeu_epi32(out + b * size + at + 16 * i, (__mmask16)(own >> 16 * i), found[i]);
        }
}

static int has_byte_tables(void) { return convolve_instructions() == 5 && __builtin_cpu_supports("avx512vbmi"); }

/* Whether `line_avx512` can take the records. */
static int suits_lines(const struct pixels *p)
{
    return p->innermost && p->columns >= 16 && p->columns <= 64 && has_byte_tables();
}

/* Whether `records_avx512` can take the records. */
static int suits_records(const struct pixels *p, const int64_t *crops)
{
    return !p->innermost && !crops && has_byte_tables();
}
#define LINE_float(...) line_avx512(__VA_ARGS__)
#define RECORDS_float(...) records_avx512(__VA_ARGS__)
#else
static int suits_lines(const struct pixels *p) { return p->columns < 0; }
static int suits_records(const struct pixels *p, const int64_t *crops) { return crops && p->columns < 0; }
#define LINE_float(...) (void)0
#define RECORDS_float(...) (void)0
#endif
#define SUITS_LINES_float(p) suits_lines(p)
#define SUITS_RECORDS_float(p, crops) suits_records(p, crops)
#define LINE_double(...) (void)0
#define RECORDS_double(...) (void)0
#define SUITS_LINES_double(p) 0
#define SUITS_RECORDS_double(p, crops) 0

/* `crops` holds every record's row and column in the frame and whether it is flipped, (3, clients, batch); NULL: no
   crops. Returns whether all positions are in the pool; nothing is written for one that is not. */
#define GATHER(REAL)                                                                                               \
    int gather_pixels_##REAL(const struct pixels *p, const uint8_t *pool, const int64_t *positions,                \
                             const int64_t *crops, const REAL *levels, REAL *out)                                  \
    {                                                                                                              \
        const int64_t map = p->rows * p->columns, size = p->channels * map, all = p->clients * p->batch;           \
        const int64_t step = p->innermost ? p->batch : 1;                                                          \
        const int by_vectors = SUITS_LINES_##REAL(p), by_records = SUITS_RECORDS_##REAL(p, crops);                 \
        uint8_t bytes[4][256];                                                                                     \
        int known = 1;                                                                                             \
        for (int64_t one = 0; one < all; one++)                                                                    \
            known = known && positions[one] >= 0 && positions[one] < p->records;                                   \
        for (int64_t client = 0; client < p->clients && known; client++) {                                         \
            fetch(p, pool, positions + client * p->batch);                                                         \
            for (int64_t channel = 0; channel < p->channels && by_records; channel++)                              \
                RECORDS_##REAL(p, pool + channel * map, positions + client * p->batch, levels + 256 * channel,     \
                               out + client * p->batch * size + channel * map);                                    \
            if (by_records)                                                                                        \
                continue;                                                                                          \
            for (int64_t line = 0; line < p->channels * p->rows; line++) {                                         \
                const int64_t channel = line / p->rows, above = channel * p->rows;                                 \
                if (p->innermost && line + 1 < p->channels * p->rows)                                              \
                    expect(out + client * p->batch * size + (line + 1) * p->columns * p->batch,                    \
                           p->columns * p->batch * (int64_t)sizeof(REAL));                                         \
                if (by_vectors && line == above)                                                                   \
                    bytes_of((const float *)(levels + 256 * channel), bytes);                                      \
                if (by_vectors) {                                                                                  \
                    LINE_##REAL(p, pool + channel * map, positions + client * p->batch,                            \
                                crops ? crops + client * p->batch : NULL, line - above, bytes,                     \
                                out + (client * p->channels * p->rows + line) * p->columns * p->batch);            \
                    continue;                                                                                      \
                }                                                                                                  \
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
