/* early.c - gradients that are added up over ranks while backward goes on.
 *
 *   backward of the last microbatch
 *     .. head | layer 5 | layer 4 | layer 3 | layer 2 ..
 *   the thread of calls in flight
 *             | head    | layer 5, 4        | layer 3, 2 ..
 *
 * The last time that a stage runs backward in a step, it tells which gradients
 * it will not touch again: of a parameter, or of one layer of a parameter that
 * has one per iteration of a repeat (ndrt_gradients_done; the emitter knows,
 * see passes/final.c). These are ranges of a bucket. What is final of one
 * parameter grows, layer by layer, at one of its ends; a part that is worth a
 * call is handed to the thread. ndrt_reduce_grads waits for those calls and
 * does the rest: what backward ends with, and what is small.
 *
 *   bucket    | a, layers 0 .. 5       | b  | c, layers 0 .. 5    |
 *   in flight |        2 3 | 4 5 |     |    |  0 1 2 | 3 4 | 5    |
 *   the rest  | 0 1              | b        |
 *
 * Every element is added up once, in the order of the ranks, in whichever call:
 * the bits are those of one call per bucket. All ranks of a device have the
 * same ranges and start them in the same order. Left to the end are parameters
 * that several devices or several stages of this one hold, and all of them
 * where the schedule updates on its way, or --comm counts calls.
 */
#include "ndrt_internal.h"

#include <stdlib.h>

typedef struct span {             /* floats of a bucket */
    size_t from, to;
} span;

typedef struct piece {            /* what this device has of a parameter */
    int place;                    /* its bucket's; -1: left to the end */
    span all;                     /* up to where the next one begins */
    size_t end, layer;            /* without that gap; floats per iteration */
    span done, started;           /* of this step; started is part of done */
} piece;

struct ndrt_early {
    piece *piece;                 /* per parameter */
    int *last;                    /* per stage: the index of its last backward
                                     action in the device's row, or -1 */
    int end;                      /* of the row's last computation */
    size_t least;                 /* floats that are worth a call */
    int calls;                    /* of this step */
    bool on;                      /* what runs is a last backward action */
};

/* ---- what there is ------------------------------------------------------ */

/* A megabyte; NDRT_EARLY makes it less, for tests. */
static size_t least_floats(void)
{
    const char *text = getenv("NDRT_EARLY");
    long long n = text ? strtoll(text, NULL, 10) : 0;

    return n > 0 ? (size_t)n : (size_t)1 << 18;
}

static bool is_summed(const ndrt_program *p, int bucket)
{
    const ndrt_bucket *b = &p->buckets[bucket];
    uint32_t pipe = p->pipe < 0 ? 0 : 1u << p->pipe;

    return !b->frozen && (b->sum & ~pipe) && !ndrt_tied_devices(p, bucket);
}

/* Calls of a step, each of at least so many floats. */
static int most_of(const ndrt_rank *r, int device)
{
    const ndrt_program *p = r->program;
    const ndrt_device *d = &p->devices[device];
    size_t n = 0;

    if (!p->early || p->weights == NDRT_STASHED || r->state->count)
        return 0;
    for (int i = 0; i < d->nplaces; i++)
        if (is_summed(p, d->places[i].bucket))
            n += p->buckets[d->places[i].bucket].n / least_floats();
    return (int)n;
}

int ndrt_early_most(const ndrt_rank *r)
{
    return most_of(r, r->device);
}

bool ndrt_early_any(const ndrt_rank *r)
{
    for (int d = 0; d < r->program->ndevices; d++)
        if (most_of(r, d) > 0)
            return true;
    return false;
}

static bool is_on_one_stage(const ndrt_program *p, int device, int param)
{
    int n = 0;

    for (int s = 0; s < p->nstages; s++)
        n += p->stages[s].device == device &&
             p->stages[s].grads[param] != NDRT_NONE;
    return n == 1;
}

/* One that is cut in stages: each has iterations of its own. */
static bool is_piped(const ndrt_program *p, int param)
{
    const ndrt_param *q = &p->params[param];

    return q->naxes > 0 && p->extents[q->extent[0]].bounds;
}

static void lay_out(ndrt_rank *r, int place)
{
    const ndrt_program *p = r->program;
    const ndrt_place *pl = &ndrt_here(r)->places[place];
    const ndrt_bucket *b = &p->buckets[pl->bucket];
    size_t next = b->n;

    for (int k = b->nparams - 1; k >= 0 && is_summed(p, pl->bucket); k--) {
        int i = b->params[k];
        piece *x = &r->state->early->piece[i];
        size_t at = ndrt_grads_at(p, r->device, i) - pl->grads;
        x->all = (span){at / sizeof(float), next};
        x->end = x->all.from + ndrt_param_floats(&p->params[i], 0);
        x->layer = ndrt_param_floats(&p->params[i], 1);
        if (is_piped(p, i) || is_on_one_stage(p, r->device, i))
            x->place = place;
        next = x->all.from;
    }
}

static bool is_backward(sched_op op)
{
    return op == SCHED_B || op == SCHED_I || op == SCHED_W;
}

static void find_last(ndrt_rank *r)
{
    const sched_row *row = &r->state->course->sched->row[r->device];
    ndrt_early *e = r->state->early;

    for (int s = 0; s < r->program->nstages; s++)
        e->last[s] = -1;
    for (int i = 0; i < row->n; i++) {
        if (is_backward(row->v[i].op))
            e->last[row->v[i].stage] = i;
        if (sched_is_compute(row->v[i].op))
            e->end = i;
    }
}

ndrt_status ndrt_early_open(ndrt_rank *r)
{
    const ndrt_program *p = r->program;

    if (!r->state->air || !ndrt_early_most(r))
        return NDRT_OK;
    ndrt_early *e = r->state->early = calloc(1, sizeof *e);
    if (e) {
        e->piece = calloc((size_t)p->nparams + 1, sizeof *e->piece);
        e->last = calloc((size_t)p->nstages, sizeof *e->last);
    }
    if (!e || !e->piece || !e->last)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for gradients");
    e->least = least_floats();
    for (int i = 0; i < p->nparams; i++)
        e->piece[i].place = -1;
    for (int i = 0; i < ndrt_here(r)->nplaces; i++)
        lay_out(r, i);
    find_last(r);
    return NDRT_OK;
}

void ndrt_early_free(ndrt_rank *r)
{
    ndrt_early *e = r->state->early;

    if (!e)
        return;
    free(e->piece);
    free(e->last);
    free(e);
}

/* ---- what is final ------------------------------------------------------ */

static float *grads_of(const ndrt_rank *r, const ndrt_place *pl)
{
    return (float *)(void *)(r->arena + pl->grads);
}

static ndrt_status start(ndrt_rank *r, const piece *x, size_t from, size_t to)
{
    const ndrt_place *pl = &ndrt_here(r)->places[x->place];

    return ndrt_start_reduce(r, r->state->early->calls++, pl->bucket,
                             grads_of(r, pl), from, to);
}

/* What was started grows at either end as far as what is final. */
static ndrt_status start_worthy(ndrt_rank *r, piece *x)
{
    size_t least = r->state->early->least;
    const span *done = &x->done;
    span *begun = &x->started;
    ndrt_status s = NDRT_OK;

    if (begun->from == begun->to)
        begun->from = begun->to = done->from;
    if (done->to - begun->to >= least) {
        s = start(r, x, begun->to, done->to);
        begun->to = done->to;
    }
    if (s == NDRT_OK && begun->from - done->from >= least) {
        s = start(r, x, done->from, begun->from);
        begun->from = done->from;
    }
    return s;
}

/* What lies apart from what was final before is left to the end. */
static ndrt_status add(ndrt_rank *r, piece *x, span part)
{
    span *done = &x->done;

    if (part.to == x->end)
        part.to = x->all.to;
    if (done->from == done->to)
        *done = part;
    if (part.from > done->to || part.to < done->from)
        return NDRT_OK;
    done->from = part.from < done->from ? part.from : done->from;
    done->to = part.to > done->to ? part.to : done->to;
    return start_worthy(r, x);
}

/* The part of a parameter that a stage has, or one layer of it. */
static span part_of(const ndrt_rank *r, int stage, int param, int64_t layer)
{
    const ndrt_program *p = r->program;
    const ndrt_stage *here = &p->stages[stage];
    const piece *x = &r->state->early->piece[param];
    const ndrt_place *pl = &ndrt_here(r)->places[x->place];
    size_t from = (here->grads[param] - pl->grads) / sizeof(float);
    size_t n = x->end - x->all.from;

    if (layer != NDRT_WHOLE) {
        from += (size_t)layer * x->layer;
        n = x->layer;
    } else if (is_piped(p, param)) {
        const ndrt_extent *e = &p->extents[p->params[param].extent[0]];
        n = (size_t)(e->bounds[stage + 1] - e->bounds[stage]) * x->layer;
    }
    return (span){from, from + n};
}

static ndrt_status finish(ndrt_rank *r, int stage, int param, int64_t layer)
{
    piece *x = &r->state->early->piece[param];

    if (x->place < 0 || r->program->stages[stage].grads[param] == NDRT_NONE)
        return NDRT_OK;
    return add(r, x, part_of(r, stage, param, layer));
}

void ndrt_gradients_done(ndrt_rank *r, const int *params, int n, int64_t layer)
{
    const ndrt_early *e = r->state->early;
    ndrt_status s = NDRT_OK;

    if (!e || !e->on || r->thread != 0)
        return;
    ndrt_count_down(r);
    for (int i = 0; i < n && s == NDRT_OK; i++)
        s = finish(r, r->stage, params[i], layer);
    if (s != NDRT_OK)
        ndrt_raise(r);
}

/* ---- around an action, and at the end ------------------------------------ */

void ndrt_early_begin(ndrt_rank *r, const sched_action *a)
{
    ndrt_early *e = r->state->early;
    const sched_row *row = &r->state->course->sched->row[r->device];

    if (e)
        e->on = is_backward(a->op) && &row->v[e->last[a->stage]] == a;
}

/* Nothing in the stage's function said so of what it has ended with; only if
 * the rank computes something else meanwhile it is worth a call. */
ndrt_status ndrt_early_end(ndrt_rank *r, const sched_action *a)
{
    ndrt_early *e = r->state->early;
    ndrt_status s = NDRT_OK;

    if (!e || !e->on)
        return NDRT_OK;
    for (int i = 0; i < r->program->nparams && s == NDRT_OK; i++)
        if (e->last[a->stage] < e->end)
            s = finish(r, a->stage, i, NDRT_WHOLE);
    e->on = false;
    return s;
}

/* The parts of a bucket that no call in flight has added up. */
static ndrt_status reduce_rest(ndrt_rank *r, const ndrt_place *pl)
{
    const ndrt_bucket *b = &r->program->buckets[pl->bucket];
    const ndrt_early *e = r->state->early;
    size_t at = 0;
    ndrt_status s = NDRT_OK;

    for (int i = 0; e && i < b->nparams && s == NDRT_OK; i++) {
        const span *begun = &e->piece[b->params[i]].started;
        if (begun->from == begun->to)
            continue;
        if (at < begun->from)
            s = ndrt_reduce_range(r, pl->bucket, grads_of(r, pl), at,
                                  begun->from);
        at = begun->to;
    }
    return s == NDRT_OK && at < b->n
               ? ndrt_reduce_range(r, pl->bucket, grads_of(r, pl), at, b->n)
               : s;
}

ndrt_status ndrt_reduce_grads(ndrt_rank *r)
{
    const ndrt_device *here = ndrt_here(r);
    ndrt_early *e = r->state->early;
    ndrt_status s = NDRT_OK;

    for (int i = 0; e && i < e->calls && s == NDRT_OK; i++)
        s = ndrt_await_reduce(r, i);
    for (int i = 0; i < here->nplaces && s == NDRT_OK; i++)
        if (!r->program->buckets[here->places[i].bucket].frozen)
            s = reduce_rest(r, &here->places[i]);
    for (int i = 0; e && i < r->program->nparams; i++)
        e->piece[i].done = e->piece[i].started = (span){0, 0};
    if (e)
        e->calls = 0;
    return s;
}
