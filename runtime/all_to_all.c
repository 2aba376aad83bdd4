/* all_to_all.c - one axis is joined while another is cut.
 *
 *   [batch/x, seq] -> [batch, seq/x] on 2 ranks, B = 3, S = 5
 *
 *   rank 0 holds 2 rows of 5 and sends 2 of every row  [2, 2] to rank 1
 *   rank 1 holds 1 row  of 5 and sends 3 of it         [1, 3] to rank 0
 *
 * Seen from either side the whole is rows of bytes, and what one member has of
 * it is the same few columns of every row. On the side where there is but one
 * row these lie together already; the other side goes through a buffer in which
 * each member's part is contiguous.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct side {
    int64_t rows;
    int64_t stride;               /* bytes of a row: the columns of all */
    int64_t unit;                 /* bytes of one index of the axis */
    const int64_t *n;             /* per member: its indices */
    size_t *at, *bytes;           /* per member: its part, packed */
} side;

static size_t bytes_of(const side *s)
{
    return (size_t)(s->rows * s->stride);
}

static void find_parts(const ndrt_group *g, side *s)
{
    int64_t at = 0;

    s->stride = 0;
    for (int i = 0; i < g->n; i++) {
        int64_t bytes = s->rows * s->n[i] * s->unit;
        s->at[i] = (size_t)at;
        s->bytes[i] = (size_t)bytes;
        at += bytes;
        s->stride += s->n[i] * s->unit;
    }
}

/* Between rows in `x` and parts in `packed`. */
static void move_parts(const ndrt_group *g, const side *s, char *x,
                       char *packed, bool pack)
{
    int64_t column = 0;

    for (int i = 0; i < g->n; i++) {
        int64_t width = s->n[i] * s->unit;
        char *part = packed + s->at[i];
        for (int64_t r = 0; r < s->rows && width > 0; r++) {
            char *row = x + r * s->stride + column;
            memcpy(pack ? part : row, pack ? row : part, (size_t)width);
            part += width;
        }
        column += width;
    }
}

/* Room for both sides' parts. It stays where it is for as long as no rank asks
 * for more, and no other rank reads it between two calls. */
static bool room(ndrt_state *st, size_t bytes)
{
    size_t ranks = (size_t)st->comm->size;

    if (!st->parts)
        st->parts = malloc(4 * ranks * sizeof *st->parts);
    if (bytes > st->packed_bytes) {
        free(st->packed);
        st->packed = malloc(bytes);
        st->packed_bytes = st->packed ? bytes : 0;
    }
    if (st->parts && (st->packed || bytes == 0))
        return true;
    snprintf(st->comm->error, sizeof st->comm->error,
             "out of memory for an all_to_all (%zu bytes)", bytes);
    return false;
}

static ndrt_status exchange(ndrt_state *st, ndrt_group *g, side *out,
                            const void *x, side *in, void *y)
{
    size_t ranks = (size_t)st->comm->size;

    if (!room(st, 0))
        return NDRT_EINTERNAL;
    out->at = st->parts;
    out->bytes = st->parts + ranks;
    in->at = st->parts + 2 * ranks;
    in->bytes = st->parts + 3 * ranks;
    find_parts(g, out);
    find_parts(g, in);
    bool pack = out->rows != 1, unpack = in->rows != 1;
    size_t sent = pack ? bytes_of(out) : 0;
    if (!room(st, sent + (unpack ? bytes_of(in) : 0)))
        return NDRT_EINTERNAL;
    ndrt_exchange e = {
        pack ? st->packed : x, out->at, out->bytes,
        unpack ? st->packed + sent : y, in->at, in->bytes,
    };
    if (pack)
        move_parts(g, out, (char *)x, st->packed, true);
    ndrt_status s = st->comm->ops->exchange(st->comm, g, &e);
    if (s == NDRT_OK && unpack)
        move_parts(g, in, y, e.recv, false);
    return s;
}

void ndrt_all_to_all(ndrt_rank *r, int group, const void *x, void *y,
                     int64_t outer, const int64_t *p, int64_t mid,
                     const int64_t *q, int64_t inner, bool joins_first)
{
    ndrt_group *g = &r->state->groups[group];

    if (!ndrt_enter(r))
        return;
    side coarse = {.rows = outer, .unit = mid * q[g->me] * inner, .n = p};
    side fine = {.rows = outer * p[g->me] * mid, .unit = inner, .n = q};
    ndrt_leave(r, joins_first
                      ? exchange(r->state, g, &fine, x, &coarse, y)
                      : exchange(r->state, g, &coarse, x, &fine, y));
}
