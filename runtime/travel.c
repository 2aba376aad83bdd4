/* travel.c - rows that go to the ranks that hold their experts, and back.
 *
 *   id = 2 0 | 1 2      two rows, two slots; experts 0 1 here, 2 on the other
 *   sorted: 0 1 | 2 2   2 rows stay, 2 leave; how many, all ranks tell first
 *
 * Every rank takes part, however many rows it has or gets. What arrives lies in
 * the order of the ranks it comes from, by expert inside. The rows there are
 * then the length of the axis that they travelled along, until another dispatch
 * or ndrt_arrived says otherwise. Rows of which this rank has no elements (d is
 * cut, and it has none of it) say nothing: the experts' numbers went before.
 */
#include "ndrt_internal.h"

#include <string.h>

typedef struct trip {
    ndrt_rank *r;
    const ndrt_travel *t;
    int n, me;                        /* members of the group */
    int64_t rows;                     /* of this rank, slots counted each */
    int64_t *order;                   /* where they lie, those of expert 0
                                         first, in elements */
    size_t *out, *out_at;             /* bytes for each member, and where */
    size_t *in, *in_at;               /* bytes from each member */
    char *bag;                        /* the rows in that order */
} trip;

/* The member that holds an expert; what is none goes to the first or last. */
static int owner(const trip *p, int64_t id)
{
    int64_t q = p->t->experts / p->n, rem = p->t->experts % p->n;

    if (id < 0)
        return 0;
    if (id >= p->t->experts)
        return p->n - 1;
    return (int)(id < rem * (q + 1) ? id / (q + 1)
                                    : rem + (id - rem * (q + 1)) / q);
}

/* 0 for what is no expert and stands before them all, ... experts + 1. */
static int64_t rank_of(const ndrt_travel *t, int32_t id)
{
    return id < 0 ? 0 : id >= t->experts ? t->experts + 1 : (int64_t)id + 1;
}

static void sort_rows(trip *p, const ndrt_rows *rows, const int32_t *id,
                      int64_t *begin)
{
    size_t row = (size_t)p->t->len * p->t->width;
    ndrt_row_step s = {{0}, 0, 0, 0};

    memset(begin, 0, (size_t)(p->t->experts + 3) * sizeof *begin);
    memset(p->out, 0, (size_t)p->n * sizeof *p->out);
    for (int64_t i = 0; i < p->rows; i++, ndrt_next_row(rows, &s)) {
        begin[rank_of(p->t, id[s.id]) + 1]++;
        p->out[owner(p, id[s.id])] += row;
    }
    for (int64_t k = 0; k < p->t->experts + 2; k++)
        begin[k + 1] += begin[k];
    s = (ndrt_row_step){{0}, 0, 0, 0};
    for (int64_t i = 0; i < p->rows; i++, ndrt_next_row(rows, &s))
        p->order[begin[rank_of(p->t, id[s.id])]++] = s.x;
}

/* What each member will send: a number from everyone to everyone. */
static void tell(trip *p, size_t *eight, size_t *at)
{
    ndrt_exchange e = {p->out, at, eight, p->in, at, eight};

    for (int i = 0; i < p->n; i++) {
        eight[i] = sizeof *p->out;
        at[i] = (size_t)i * sizeof *p->out;
    }
    ndrt_swap(p->r, p->t->group, &e);
    p->out_at[0] = p->in_at[0] = 0;
    for (int i = 1; i < p->n; i++) {
        p->out_at[i] = p->out_at[i - 1] + p->out[i - 1];
        p->in_at[i] = p->in_at[i - 1] + p->in[i - 1];
    }
}

static trip start(ndrt_rank *r, const ndrt_travel *t, const ndrt_rows *rows,
                  const int32_t *id)
{
    const ndrt_device *st = ndrt_here(r);
    const ndrt_group *g = &r->state->groups[t->group];
    char *room = r->arena + st->scratch;
    trip p = {.r = r, .t = t, .n = g->n, .me = g->me,
              .rows = ndrt_count_rows(rows)};
    size_t each = (size_t)p.n * sizeof *p.out;

    int64_t *begin = ndrt_take(&room, (size_t)(t->experts + 3) * sizeof *begin);
    p.order = ndrt_take(&room, (size_t)p.rows * sizeof *p.order);
    p.out = ndrt_take(&room, each);
    p.out_at = ndrt_take(&room, each);
    p.in = ndrt_take(&room, each);
    p.in_at = ndrt_take(&room, each);
    size_t *eight = ndrt_take(&room, each), *at = ndrt_take(&room, each);
    p.bag = ndrt_take(&room, (size_t)(p.rows * t->len) * t->width);
    if ((size_t)(room - r->arena) > st->scratch + st->scratch_bytes) {
        ndrt_fail(r, NDRT_EINTERNAL, "rows that travel need more room than "
                  "was planned");
        ndrt_raise(r);
    }
    sort_rows(&p, rows, id, begin);
    tell(&p, eight, at);
    return p;
}

static int64_t arrived(const trip *p)
{
    size_t bytes = p->in_at[p->n - 1] + p->in[p->n - 1];

    return p->t->len ? (int64_t)(bytes / p->t->width) / p->t->len : 0;
}

static void dispatch(ndrt_rank *r, const ndrt_travel *t, const ndrt_rows *rows,
                     const void *x, const int32_t *id, void *y)
{
    trip p = start(r, t, rows, id);
    ndrt_exchange e = {p.bag, p.out_at, p.out, y, p.in_at, p.in};
    size_t row = (size_t)t->len * t->width;
    int64_t n = arrived(&p);

    if (n > t->room) {
        ndrt_fail(r, NDRT_EINTERNAL, "%lld rows arrive where there is room "
                  "for %lld", (long long)n, (long long)t->room);
        ndrt_raise(r);
    }
    for (int64_t i = 0; i < p.rows; i++) {
        memcpy(p.bag + (size_t)i * row,
               (const char *)x + (size_t)p.order[i] * t->width, row);
        int32_t *to = (int32_t *)(void *)(p.bag + (size_t)i * row);
        if (t->ids && *to == NDRT_NO_ROW)
            *to = -1;                 /* no expert either way */
    }
    ndrt_swap(r, t->group, &e);
    if (t->len)                       /* else nobody can tell how many came */
        r->state->n[t->extent] = n;
    for (int64_t i = n; t->ids && i < t->room; i++)
        ((int32_t *)y)[i] = NDRT_NO_ROW;
}

void ndrt_dispatch(ndrt_rank *r, const ndrt_travel *t, const ndrt_rows *rows,
                   const void *x, const int32_t *id, void *y)
{
    ndrt_rank *one = ndrt_alone(r);

    if (!one)
        return;
    dispatch(one, t, rows, x, id, y);
    ndrt_barrier(r);
}

static void combine(ndrt_rank *r, const ndrt_travel *t, const ndrt_rows *rows,
                    const void *y, const int32_t *id, void *x)
{
    trip p = start(r, t, rows, id);
    ndrt_exchange e = {y, p.in_at, p.in, p.bag, p.out_at, p.out};
    size_t row = (size_t)t->len * t->width;

    ndrt_swap(r, t->group, &e);
    for (int64_t i = 0; i < p.rows; i++)
        memcpy((char *)x + (size_t)p.order[i] * t->width,
               p.bag + (size_t)i * row, row);
}

void ndrt_combine(ndrt_rank *r, const ndrt_travel *t, const ndrt_rows *rows,
                  const void *y, const int32_t *id, void *x)
{
    ndrt_rank *one = ndrt_alone(r);

    if (!one)
        return;
    combine(one, t, rows, y, id, x);
    ndrt_barrier(r);
}

void ndrt_arrived(ndrt_rank *r, int extent, int64_t room, const int32_t *id)
{
    int64_t n = 0;

    if (!ndrt_alone(r))
        return;
    while (n < room && id[n] != NDRT_NO_ROW)
        n++;
    r->state->n[extent] = n;
    ndrt_barrier(r);
}
