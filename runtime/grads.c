/* grads.c - what gradients hold before a step: nothing.
 *
 *   cleared       d_table                  0 0 0 0 ..
 *   written       d_up, d_down, ..         whatever lay there: the last
 *                                          step's, or values (lend.c)
 *
 * Those that a step only adds to are cleared. All others are written by what
 * makes them for the first microbatch that their stage runs backward, whichever
 * the schedule takes first, and added to from then on (passes/first.c). Nobody
 * writes the gaps between parameters, which count as gradients of 0: so all is
 * cleared in the first step, and again after the memory was lent to state of
 * the optimizer on its way to or from a file.
 *
 * NDRT_STALE, for tests: what is not cleared becomes NaN.
 */
#include "ndrt_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t ndrt_param_floats(const ndrt_param *q, int first)
{
    size_t n = 1;

    for (int a = first; a < q->naxes; a++)
        n *= (size_t)q->cap[a];
    return n;
}

static void clear_all(ndrt_rank *r, void *arg)
{
    const ndrt_device *here = ndrt_here(r);

    (void)arg;
    for (int i = 0; i < here->nplaces; i++) {
        const ndrt_place *pl = &here->places[i];
        const ndrt_bucket *b = &r->program->buckets[pl->bucket];
        if (!b->frozen && pl->grads != NDRT_NONE)
            ndrt_clear(r, r->arena + pl->grads, b->n * sizeof(float));
    }
}

static void clear(ndrt_rank *r, void *arg)
{
    const ndrt_device *here = ndrt_here(r);

    (void)arg;
    for (int i = 0; i < here->ncleared; i++) {
        int param = here->cleared[i];
        size_t at = ndrt_grads_at(r->program, r->device, param);
        size_t n = ndrt_param_floats(&r->program->params[param], 0);
        ndrt_clear(r, r->arena + at, n * sizeof(float));
    }
}

static bool is_cleared(const ndrt_rank *r, int param)
{
    const ndrt_device *here = ndrt_here(r);
    int i = 0;

    while (i < here->ncleared && here->cleared[i] != param)
        i++;
    return i < here->ncleared;
}

static void make_stale(const ndrt_rank *r)
{
    const ndrt_program *p = r->program;

    for (int i = 0; i < p->nparams; i++) {
        size_t at = ndrt_grads_at(p, r->device, i);
        if (at == NDRT_NONE || p->params[i].frozen || is_cleared(r, i))
            continue;
        float *g = (float *)(void *)(r->arena + at);
        ndrt_walk w = ndrt_walk_param(p, r->rank, i, -1);
        while (ndrt_walk_next(&w))
            for (int64_t k = 0; k < w.length; k++)
                g[w.local + k] = NAN;
    }
}

ndrt_status ndrt_no_grads(ndrt_rank *r)
{
    ndrt_state *st = r->state;
    ndrt_status s = ndrt_together(r, st->lent ? clear_all : clear, NULL);

    memset(st->made, 0, sizeof *st->made * (size_t)r->program->nstages);
    st->lent = false;
    if (getenv("NDRT_STALE"))
        make_stale(r);
    return s;
}

/* Where backward is in two halves, the second one makes all of them. */
void ndrt_grads_made(ndrt_rank *r, const sched_action *a)
{
    const ndrt_stage *stage = &r->program->stages[a->stage];

    if (a->op == SCHED_B || a->op == SCHED_W ||
        (a->op == SCHED_I && !stage->run[NDRT_W]))
        r->state->made[a->stage] = true;
}
