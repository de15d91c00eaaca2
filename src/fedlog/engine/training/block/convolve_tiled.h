/* Both directions by Winograd's tiles. Included by convolve_passes.h, which chooses between them and windows. */

/* The forward pass by Winograd's tiles. */
static void NAME(forward_tiles)(const struct sizes *s, const struct geometry *g, const REAL *inputs,
                                const REAL *weight, const REAL *bias, REAL *pooled, REAL *winners, REAL *scratch)
{
    const struct tiles t = tiles_forward(s, g);
    const struct pool_windows behind = pool_of(s);
    const int64_t run_in = s->columns_in * s->batch, run_out = g->columns_out * s->batch;
    const int64_t out_channel = g->rows_out * run_out, map_out = s->channels_out * out_channel;
    REAL *packed = scratch, *blocks = packed + POINTS * t.kernels;
    REAL *convolved = blocks + blocks_size(&t);
    for (int64_t client = 0; client < s->clients; client++) {
        const struct NAME(map) map = {inputs + client * s->channels_in * s->rows_in * run_in, s->channels_in,
                                      s->rows_in, s->columns_in, s->rows_in * run_in, run_in};
        const REAL *shift = bias ? bias + client * s->channels_out : NULL;
        REAL *own = pooled + client * map_out, *won = winners ? winners + client * map_out : NULL;
        NAME(pack_tiles)(&t, weight + client * s->channels_out * s->channels_in * 9, 0, packed);
        if (g->direct) {
            NAME(convolve_tiles)(&t, &map, s->pad_top, s->pad_left, packed, shift, blocks, own, out_channel, run_out);
            continue;
        }
        NAME(convolve_tiles)(&t, &map, s->pad_top, s->pad_left, packed, NULL, blocks, convolved, g->rows * g->length,
                             g->length);
        for (int64_t row = 0; row < s->channels_out * g->rows_out; row++)
            NAME(pool_row)(&behind, convolved + row * s->pool_rows * g->length, g->length, g->columns_out,
                           shift ? shift[row / g->rows_out] : 0, own + row * run_out,
                           won ? won + row * run_out : NULL);
    }
}

/* The gradients of the kernels and the inputs by Winograd's tiles. */
static void NAME(backward_tiles)(const struct sizes *s, const struct geometry *g, const REAL *inputs,
                                 const REAL *weight, const REAL *winners, const REAL *gradient, REAL *of_inputs,
                                 REAL *of_weight, REAL *of_bias, REAL *scratch)
{
    const struct pool_windows behind = pool_of(s);
    const struct tiles there = tiles_forward(s, g), back = tiles_backward(s);
    const int64_t run_in = s->columns_in * s->batch, map_in = s->channels_in * s->rows_in * run_in;
    const int64_t run_out = g->columns_out * s->batch, out_channel = g->rows_out * run_out;
    const int64_t kernels = s->channels_out * s->channels_in * 9;
    struct NAME(turned) seen = {.map = {NULL, s->channels_in, s->rows_in, s->columns_in, s->rows_in * run_in, run_in},
                                .tiles = tiles_turned(&there, there.in), .top = s->pad_top, .left = s->pad_left};
    struct NAME(turned) given = {.map = {NULL, s->channels_out, g->rows, g->length / s->batch, g->rows * g->length,
                                         g->length}, .tiles = tiles_turned(&there, there.out)};
    REAL *spread = scratch, *tables = spread + rounded(s->channels_out * g->rows * g->length);
    seen.places = (int64_t *)tables;
    given.places = (int64_t *)(tables + places_size(&there));
    seen.frame = tables + 2 * places_size(&there);
    given.frame = seen.frame + frame_size(&seen.tiles);
    REAL *blocks = given.frame + frame_size(&given.tiles), *packed = blocks + blocks_size(&back);
    NAME(find_places)(&seen.tiles, s->batch, seen.left, seen.places);
    NAME(find_places)(&given.tiles, s->batch, given.left, given.places);
    if (rounded(s->channels_in) > s->channels_in || rounded(s->channels_out) > s->channels_out)
        memset(seen.frame, 0, (size_t)(blocks - seen.frame) * sizeof(REAL)); /* channels that do not exist */
    for (int64_t client = 0; client < s->clients; client++) {
        const REAL *own = gradient + client * s->channels_out * out_channel;
        const REAL *won = winners ? winners + client * s->channels_out * out_channel : NULL;
        for (int64_t row = 0; !g->direct && row < s->channels_out * g->rows_out; row++)
            NAME(unpool_row)(&behind, own + row * run_out, won + row * run_out, g->columns_out,
                             spread + row * s->pool_rows * g->length, g->length);
        for (int64_t channel = 0; of_bias && channel < s->channels_out; channel++)
            of_bias[client * s->channels_out + channel] = NAME(sum_of_passed)(
                own + channel * out_channel, won ? won + channel * out_channel : NULL, out_channel);
        seen.map.first = inputs + client * map_in;
        given.map.first = g->direct ? own : spread;
        if (of_weight)
            NAME(tiles_weight_gradient)(&there, &seen, &given, blocks, of_weight + client * kernels);
        if (of_inputs) {
            NAME(pack_tiles)(&back, weight + client * kernels, 1, packed);
            NAME(convolve_tiles)(&back, &given.map, 2 - s->pad_top, 2 - s->pad_left, packed, NULL, blocks,
                                 of_inputs + client * map_in, s->rows_in * run_in, run_in);
        }
    }
}
