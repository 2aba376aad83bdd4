/* comm.c - what every communicator shares: groups of the mesh, the calls of
 * generated code, and how a failure spreads; fold.c has the order of additions.
 *
 * A group along mesh mask M holds the ranks that agree with this one on every
 * axis outside M. Ranks number the mesh with the last axis fastest, so rank
 * order inside a group is coordinate order.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1024 };            /* numbers of 8 bytes that travel at a time */

ndrt_status ndrt_comm_check(ndrt_rank *r, ndrt_status s)
{
    if (s == NDRT_OK)
        return NDRT_OK;
    if (s == NDRT_ESTOPPED)
        return ndrt_fail(r, s, "another rank failed");
    return ndrt_fail(r, s, "%s", r->state->comm->error);
}

static bool is_member(const ndrt_rank *r, int q, uint32_t mask,
                      uint32_t devices)
{
    const ndrt_program *p = r->program;

    for (int a = 0; a < p->nmesh; a++) {
        if (devices && a == p->pipe) {
            if (!(devices >> ndrt_coord(p, q, a) & 1))
                return false;
        } else if (!(mask >> a & 1) &&
                   ndrt_coord(p, q, a) != r->state->coord[a]) {
            return false;
        }
    }
    return true;
}

ndrt_status ndrt_group_open(ndrt_rank *r, ndrt_group *g, uint32_t mask,
                            uint32_t devices)
{
    ndrt_comm *c = r->state->comm;
    int *ranks = malloc((size_t)c->size * sizeof *ranks);

    if (!ranks)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for groups");
    g->ranks = ranks;
    g->n = 0;
    for (int q = 0; q < c->size; q++) {
        if (q == c->rank)
            g->me = g->n;
        if (is_member(r, q, mask, devices))
            ranks[g->n++] = q;
    }
    return g->n > 1 ? ndrt_comm_check(r, c->ops->group(c, g)) : NDRT_OK;
}

void ndrt_group_free(ndrt_group *g)
{
    free((void *)g->ranks);
    memset(g, 0, sizeof *g);
}

/* Doubles travel as pairs of floats: an all_gather moves bytes only. */
ndrt_status ndrt_gather_doubles(ndrt_rank *r, const double *v, int n)
{
    ndrt_state *st = r->state;
    ndrt_layout l = {.outer = 1, .inner = 2 * (int64_t)n, .n = st->ones,
                     .x = (const float *)(const void *)v,
                     .y = (float *)(void *)st->all};

    if (st->world.n == 1) {
        memcpy(st->all, v, (size_t)n * sizeof *v);
        return NDRT_OK;
    }
    return ndrt_comm_check(r, st->comm->ops->all_gather(st->comm, &st->world,
                                                        &l));
}

ndrt_status ndrt_sum_doubles(ndrt_rank *r, double *v, int n)
{
    const ndrt_state *st = r->state;
    ndrt_status s = ndrt_gather_doubles(r, v, n);

    if (s != NDRT_OK)
        return s;
    memset(v, 0, (size_t)n * sizeof *v);
    for (int q = 0; q < st->world.n; q++)
        for (int i = 0; i < n; i++)
            v[i] += st->all[q * n + i];
    return NDRT_OK;
}

ndrt_status ndrt_agree(ndrt_rank *r, ndrt_status mine)
{
    ndrt_state *st = r->state;
    double me = mine;
    ndrt_status s = ndrt_gather_doubles(r, &me, 1);

    for (int q = 0; q < st->world.n && s == NDRT_OK; q++) {
        if (st->all[q] == (double)NDRT_OK)
            continue;
        s = (ndrt_status)st->all[q];
        if (q == r->rank)
            fprintf(stderr, "%s: error: rank %d: %s\n", r->program->name, q,
                    st->error);
        st->reported = true;
        st->status = s;
    }
    return s;
}

/* ---- calls of generated code ------------------------------------------ */

/* main.c has NDRT_FAIL_AT. */
void ndrt_count_down(ndrt_rank *r)
{
    ndrt_state *st = r->state;

    if (st->fail_at > 0 && --st->fail_at == 0) {
        ndrt_fail(r, NDRT_EINTERNAL, "made-up failure (NDRT_FAIL_AT)");
        ndrt_raise(r);
    }
}

ndrt_comm *ndrt_enter(ndrt_rank *r)
{
    if (!ndrt_alone(r))
        return NULL;
    ndrt_count_down(r);
    return r->state->comm;
}

void ndrt_leave(ndrt_rank *r, ndrt_status s)
{
    if (ndrt_comm_check(r, s) != NDRT_OK)
        ndrt_raise(r);
    ndrt_barrier(r);
}

/* Communicators fold elements of 4 bytes. Those of 8 are few: each rank gathers
 * all copies, as pairs of floats and block by block, and folds them itself. */
static ndrt_status reduce_wide(ndrt_state *st, ndrt_group *g, int64_t *x,
                               int64_t n, bool max)
{
    ndrt_comm *c = st->comm;
    int64_t *all = malloc((size_t)g->n * BLOCK * sizeof *all);
    ndrt_status s = NDRT_OK;

    if (!all) {
        snprintf(c->error, sizeof c->error, "out of memory for an all_reduce");
        return NDRT_EINTERNAL;
    }
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t len = n - at < BLOCK ? n - at : BLOCK, *y = x + at;
        ndrt_layout l = {.outer = 1, .inner = 2 * len, .n = st->ones,
                         .x = (const float *)(const void *)y,
                         .y = (float *)(void *)all};
        s = c->ops->all_gather(c, g, &l);
        if (s != NDRT_OK)
            break;
        memcpy(y, all, (size_t)len * sizeof *y);
        for (int64_t i = len; i < g->n * len; i++) {
            int64_t v = all[i], *to = &y[i % len];
            *to = !max      ? (int64_t)((uint64_t)*to + (uint64_t)v)
                  : v > *to ? v
                            : *to;
        }
    }
    free(all);
    return s;
}

/* Reduces all of it and keeps one piece; lengths count floats, two of which are
 * one number. */
static ndrt_status scatter_wide(ndrt_state *st, ndrt_group *g,
                                const ndrt_layout *l)
{
    int64_t whole = 0, off = 0;

    for (int i = 0; i < g->n; i++) {
        off += i < g->me ? l->n[i] * l->inner : 0;
        whole += l->n[i] * l->inner;
    }
    float *all = malloc((size_t)(l->outer * whole + 1) * sizeof *all);
    if (!all) {
        snprintf(st->comm->error, sizeof st->comm->error,
                 "out of memory for a reduce_scatter");
        return NDRT_EINTERNAL;
    }
    for (int64_t o = 0; o < l->outer; o++)
        memcpy(all + o * whole, l->x + o * l->x_o,
               (size_t)whole * sizeof *all);
    ndrt_status s = reduce_wide(st, g, (int64_t *)(void *)all,
                                l->outer * whole / 2, false);
    for (int64_t o = 0; o < l->outer && s == NDRT_OK; o++)
        memcpy(l->y + o * l->y_o, all + o * whole + off,
               (size_t)(l->n[g->me] * l->inner) * sizeof *all);
    free(all);
    return s;
}

void ndrt_all_reduce(ndrt_rank *r, int group, void *x, int64_t n,
                     ndrt_fold_kind how)
{
    ndrt_comm *c = ndrt_enter(r);
    ndrt_group *g = &r->state->groups[group];

    if (!c)
        return;
    if (g->n == 1)
        ndrt_leave(r, NDRT_OK);
    else if (how == NDRT_SUM_I64 || how == NDRT_MAX_I64)
        ndrt_leave(r, reduce_wide(r->state, g, x, n, how == NDRT_MAX_I64));
    else
        ndrt_leave(r, c->ops->all_reduce(c, g, x, n, how));
}

void ndrt_reduce_scatter(ndrt_rank *r, int group, const float *x, int64_t x_o,
                         float *y, int64_t y_o, int64_t outer,
                         const int64_t *n, int64_t inner, ndrt_fold_kind how)
{
    ndrt_comm *c = ndrt_enter(r);
    ndrt_group *g = &r->state->groups[group];
    ndrt_layout l = {outer, inner, n, x, x_o, y, y_o, how};

    if (!c)
        return;
    if (g->n > 1) {
        ndrt_leave(r, how == NDRT_SUM_I64
                          ? scatter_wide(r->state, g, &l)
                          : c->ops->reduce_scatter(c, g, &l));
        return;
    }
    for (int64_t o = 0; o < outer; o++)
        memmove(y + o * y_o, x + o * x_o,
                (size_t)(n[0] * inner) * sizeof *y);
    ndrt_leave(r, NDRT_OK);
}

void ndrt_all_gather(ndrt_rank *r, int group, const float *x, int64_t x_o,
                     float *y, int64_t y_o, int64_t outer, const int64_t *n,
                     int64_t inner)
{
    ndrt_comm *c = ndrt_enter(r);
    ndrt_group *g = &r->state->groups[group];
    ndrt_layout l = {.outer = outer, .inner = inner, .n = n, .x = x,
                     .x_o = x_o, .y = y, .y_o = y_o};

    if (!c)
        return;
    if (g->n > 1) {
        ndrt_leave(r, c->ops->all_gather(c, g, &l));
        return;
    }
    for (int64_t o = 0; o < outer; o++)
        memmove(y + o * y_o, x + o * x_o,
                (size_t)(n[0] * inner) * sizeof *y);
    ndrt_leave(r, NDRT_OK);
}

void ndrt_shift_ring(ndrt_rank *r, int group, int by, const void *x, void *y,
                     size_t bytes)
{
    ndrt_comm *c = ndrt_enter(r);

    if (c)
        ndrt_leave(r, c->ops->shift(c, &r->state->groups[group], by, x, y,
                                    bytes, bytes));
}

void ndrt_swap(ndrt_rank *r, int group, const ndrt_exchange *e)
{
    ndrt_comm *c = ndrt_enter(r);

    if (c)
        ndrt_leave(r, c->ops->exchange(c, &r->state->groups[group], e));
}

void ndrt_pieces(const ndrt_rank *r, int group, int extent, int64_t *n)
{
    const ndrt_group *g = &r->state->groups[group];
    int64_t off;

    for (int i = 0; i < g->n; i++)
        ndrt_extent_of(r->program, extent, g->ranks[i], r->stage, r->mb, &off,
                       &n[i]);
}

/* The rank with this one's coordinates on another stage's device. */
static int peer(const ndrt_rank *r, int stage)
{
    const ndrt_program *p = r->program;
    int step = 1;

    for (int a = p->pipe + 1; a < p->nmesh; a++)
        step *= p->mesh_size[a];
    return r->rank + (p->stages[stage].device - r->device) * step;
}

void ndrt_send(ndrt_rank *r, int stage, const void *x, size_t bytes)
{
    ndrt_comm *c = ndrt_enter(r);

    if (c)
        ndrt_leave(r, c->ops->send(c, peer(r, stage), x, bytes));
}

void ndrt_recv(ndrt_rank *r, int stage, void *x, size_t bytes)
{
    ndrt_comm *c = ndrt_enter(r);

    if (c)
        ndrt_leave(r, c->ops->recv(c, peer(r, stage), x, bytes));
}
