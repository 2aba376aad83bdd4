/* make.c - which numbers a schedule can have, and who makes it.
 *
 *   {kind 1f1b, 4 ranks, 8 microbatches}          -> 1f1b
 *   {kind interleaved, 4 ranks, v 2, 9 of them}   -> refused, with the rule
 */
#include "make.h"
#include "search.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

static void (*const maker[SCHED_NKINDS])(sched *) = {
    [SCHED_KIND_GPIPE] = make_gpipe,
    [SCHED_KIND_1F1B] = make_1f1b,
    [SCHED_KIND_INTERLEAVED] = make_interleaved,
    [SCHED_KIND_BFS] = make_bfs,
    [SCHED_KIND_ZB_H1] = make_zb_h1,
    [SCHED_KIND_ZB_H2] = make_zb_h2,
    [SCHED_KIND_ZB_V] = make_zb_v,
    [SCHED_KIND_V_HALF] = make_v_half,
    [SCHED_KIND_V_MIN] = make_v_min,
    [SCHED_KIND_DUALPIPE_V] = make_dualpipe_v,
    [SCHED_KIND_PIPEDREAM] = make_pipedream,
    [SCHED_KIND_PIPEDREAM_2BW] = make_pipedream_2bw,
};

void *make_room(int count, size_t size)
{
    void *room = calloc((size_t)count + 1, size);
    if (!room)
        abort();
    return room;
}

static void full_name(const sched_ask *ask, char *name, size_t n)
{
    const sched_info *k = &sched_kinds[ask->kind];
    if (k->v)
        snprintf(name, n, "%s", k->name);
    else
        snprintf(name, n, "%s(%d)", k->name, ask->v);
}

static bool groups_even(int p, int m)
{
    return m < p || m % (m / p) == 0;
}

/* m / p rounds of equal size. There is a legal number within p of any. */
static bool interleaved_rule(const sched_ask *ask, const char *name,
                             sched_error *err)
{
    int p = ask->ranks, m = ask->micro, below = m, above = m;
    if (groups_even(p, m))
        return true;
    while (!groups_even(p, below))
        below--;
    while (!groups_even(p, above))
        above++;
    return sched_fail(err, -1, 0, "%s over p = %d ranks: m = %d microbatches "
                      "are not m / p = %d groups of equal size; legal are m < "
                      "2 p and m %% (m / p) = 0, the nearest %d and %d",
                      name, p, m, m / p, below, above);
}

static bool least_micro(const sched_ask *ask, const char *name, int least,
                        const char *rule, sched_error *err)
{
    if (ask->micro >= least)
        return true;
    return sched_fail(err, -1, 0, "%s over p = %d ranks: %s, and m = %d "
                      "microbatches are too few; legal are m = %d and more",
                      name, ask->ranks, rule, ask->micro, least);
}

bool sched_legal(const sched_ask *ask, sched_error *err)
{
    char name[64];
    if (ask->kind == SCHED_KIND_AUTO)
        return sched_search_legal(ask, err);
    if (ask->kind >= SCHED_NKINDS)
        return sched_fail(err, -1, 0, "this schedule is not made by a rule");
    const sched_info *k = &sched_kinds[ask->kind];
    if (ask->ranks < 1 || ask->micro < 1)
        return sched_fail(err, -1, 0, "%s: p = %d ranks and m = %d "
                          "microbatches; both are at least 1", k->name,
                          ask->ranks, ask->micro);
    if (k->v && ask->v && ask->v != k->v)
        return sched_fail(err, -1, 0, "%s has v = %d stage%s per rank, not %d",
                          k->name, k->v, k->v == 1 ? "" : "s", ask->v);
    if (!k->v && ask->v < 1)
        return sched_fail(err, -1, 0, "%s(v) needs v, the stages per rank: 1 "
                          "or more", k->name);
    full_name(ask, name, sizeof name);
    int v = sched_per_rank(ask->kind, ask->v);
    if ((double)ask->ranks * v * ask->micro > INT_MAX / 8)
        return sched_fail(err, -1, 0, "%s: p * v * m = %.0f forwards; at most "
                          "%d", name, (double)ask->ranks * v * ask->micro,
                          INT_MAX / 8);
    if (ask->kind == SCHED_KIND_INTERLEAVED)
        return interleaved_rule(ask, name, err);
    if (ask->kind == SCHED_KIND_DUALPIPE_V)
        return least_micro(ask, name, 2 * ask->ranks, "m >= 2 p", err);
    if (ask->kind == SCHED_KIND_PIPEDREAM_2BW)
        return least_micro(ask, name, ask->ranks, "m >= p", err);
    return true;
}

sched *sched_make(const sched_ask *ask, sched_error *err)
{
    char name[64];
    if (!sched_legal(ask, err))
        return NULL;
    if (ask->kind == SCHED_KIND_AUTO)
        return sched_search(ask, err);
    full_name(ask, name, sizeof name);
    sched *s = sched_new(name, ask->ranks,
                         ask->ranks * sched_per_rank(ask->kind, ask->v),
                         ask->micro, sched_kinds[ask->kind].where);
    if (s)
        maker[ask->kind](s);
    else
        sched_fail(err, -1, 0, "no memory for a schedule");
    return s;
}
