/* weigh.c - what the units of a chain cost: time, bytes, and where a cut
 * between two of them would be a good one.
 *
 * An iteration has its part of the repeat's time. Weights, their gradients and
 * the optimizer's state lie on each stage that uses them, once; so does what
 * backward reads of forward, for each microbatch in flight. A stage may begin
 * with an iteration, in front of a repeat or behind it; elsewhere if no more
 * crosses there than where the most crosses at those places.
 */
#include "pipeline.h"

#include <stdlib.h>

typedef struct span {
    int first, last;
} span;
typedef ND_VEC(span) spans;

static const pipe_place *at_of(const pipe *pp, const nd_op *op)
{
    return nd_table_get(&pp->places, op);
}

/* ---- time ---------------------------------------------------------------- */

static void weigh_time(pipe *pp)
{
    for (int i = 0; i < pp->m->step->ops.n; i++) {
        const nd_op *op = pp->m->step->ops.v[i];
        const pipe_place *at = at_of(pp, op);
        if (at->demand)
            continue;
        int n = at->last - at->first + 1;
        double each = nd_op_seconds(pp->m, &nd_default_cluster, op) / n;
        for (int u = at->first; u <= at->last; u++)
            pp->unit[u].seconds += each;
    }
}

/* ---- bytes that units share ---------------------------------------------- */

static int by_first(const void *x, const void *y)
{
    const span *a = x, *b = y;
    return a->first != b->first ? (a->first < b->first ? -1 : 1)
           : (a->last > b->last) - (a->last < b->last);
}

/* So many bytes on every stage that has one of these units. */
static void share(pipe *pp, spans *at, double fixed, double held)
{
    int before = -1;
    if (at->n)
        qsort(at->v, (size_t)at->n, sizeof *at->v, by_first);
    for (int i = 0; i < at->n; i++)
        for (int u = at->v[i].first; u <= at->v[i].last; u++) {
            part_share x = {u, before, fixed, held};
            if (u <= before)
                continue;
            ND_PUSH(pp->a, &pp->shares, x);
            before = u;
        }
}

/* An equal part of so many bytes with each iteration. */
static void spread(pipe *pp, const pipe_repeat *r, double fixed, double held)
{
    for (int u = r->base; u < r->base + r->n; u++) {
        part_share x = {u, -1, fixed / r->n, held / r->n};
        ND_PUSH(pp->a, &pp->shares, x);
    }
}

static const pipe_repeat *repeat_over(const pipe *pp, const nd_axis *a)
{
    for (int k = 0; k < pp->repeats.n; k++)
        if (pp->repeats.v[k].fwd->axes[0] == a)
            return &pp->repeats.v[k];
    return NULL;
}

typedef struct uses {
    spans *param;                    /* by index */
    nd_table kept;                   /* value -> spans: what backward reads */
    ND_VEC(nd_value *) values;       /* ... in order */
} uses;

static void note(pipe *pp, nd_op *op, nd_value *v, void *user)
{
    uses *x = user;
    const pipe_place *at = at_of(pp, op);
    span s = {at->first, at->last};
    const nd_value *w = v;
    while (w->def && w->def->kind != OP_PARAM && nd_is_weight_copy(w))
        w = w->def->in[0];
    if (w->def && w->def->kind == OP_PARAM) {
        ND_PUSH(pp->a, &x->param[w->def->param->index], s);
    } else if (op->phase != PH_FWD && v->def->phase == PH_FWD &&
               !at_of(pp, v->def)->demand) {
        spans *kept = nd_table_get(&x->kept, v);
        if (!kept) {
            kept = ND_NEW(pp->a, spans);
            nd_table_put(&x->kept, v, kept);
            ND_PUSH(pp->a, &x->values, v);
        }
        ND_PUSH(pp->a, kept, s);
    }
}

/* What a stage has of a parameter once, and for each microbatch in flight: an
 * older version of it, where there are as many. */
static double state_bytes(const nd_module *m, const nd_param *p, double *held)
{
    double weights = nd_local_bytes(&p->value->type, &m->mesh);
    double grads = nd_local_bytes(&p->grad, &m->mesh);
    double parts = m->plan.zero ? nd_group_size(&m->mesh, nd_zero_mesh(m, p))
                                : 1;
    *held = 0;
    if (!m->loss)
        return weights;
    *held = nd_is_stashed(m) ? weights : 0;
    int states = nd_states_of(&m->train, p->frozen, p->muon);
    return weights * (1 + nd_is_behind(m) - nd_is_stashed(m)) + grads +
           states * weights / parts;
}

static void weigh_bytes(pipe *pp)
{
    nd_module *m = pp->m;
    uses x = {ND_NEWN(pp->a, spans, m->params.n + 1), {.arena = pp->a}, {0}};
    for (int i = 0; i < m->step->ops.n; i++)
        if (!at_of(pp, m->step->ops.v[i])->demand)
            pipe_reads(pp, m->step->ops.v[i], note, &x);
    for (int i = 0; i < m->params.n; i++) {
        const nd_param *p = m->params.v[i];
        const pipe_repeat *r = p->nlayers ? repeat_over(pp, p->layer[0].axis)
                                          : NULL;
        double held, once = state_bytes(m, p, &held);
        if (r)
            spread(pp, r, once, held);
        else
            share(pp, &x.param[i], once, held);
    }
    for (int i = 0; i < x.values.n; i++) {
        const nd_value *v = x.values.v[i];
        const nd_op *d = v->def;
        double bytes = nd_local_bytes(&v->type, &m->mesh);
        if (pipe_is_piped(pp, d) && v->index >= d->ncarry)
            spread(pp, repeat_over(pp, d->axes[0]), 0, bytes);
        else
            share(pp, nd_table_get(&x.kept, v), 0, bytes);
    }
}

static int by_unit(const void *x, const void *y)
{
    const part_share *a = x, *b = y;
    return a->unit != b->unit ? (a->unit < b->unit ? -1 : 1)
           : (a->before > b->before) - (a->before < b->before);
}

/* ---- places to cut ------------------------------------------------------- */

typedef struct crossing {
    double *bytes;                   /* by unit: what crosses in front of it */
    nd_table far;                    /* value -> where it is read, the last */
} crossing;

/* What forward reads from v->def's unit on. What a repeat goes on with is not
 * read by its later iterations. */
static void see_far(pipe *pp, nd_op *op, nd_value *v, void *user)
{
    crossing *x = user;
    bool carried = false;
    for (int i = 0; pipe_is_piped(pp, op) && i < op->ncarry; i++)
        carried |= op->in[i] == v;
    if (op->phase != PH_FWD || at_of(pp, v->def)->demand)
        return;
    int to = carried ? at_of(pp, op)->first : at_of(pp, op)->last;
    if (to > (int)(intptr_t)nd_table_get(&x->far, v))
        nd_table_put(&x->far, v, (void *)(intptr_t)to);
}

static void add(crossing *x, const pipe *pp, const nd_value *v, int from,
                int to)
{
    double bytes = nd_local_bytes(&v->type, &pp->m->mesh);
    for (int u = from + 1; u <= to; u++)
        x->bytes[u] += bytes;
}

static void weigh_crossings(pipe *pp, crossing *x)
{
    nd_block *b = pp->m->step;
    for (int i = 0; i < b->ops.n; i++)
        pipe_reads(pp, b->ops.v[i], see_far, x);
    for (int i = 0; i < b->ops.n; i++) {
        const nd_op *op = b->ops.v[i];
        const pipe_place *at = at_of(pp, op);
        bool piped = pipe_is_piped(pp, op);
        for (int k = 0; k < op->nout && op->phase == PH_FWD; k++) {
            if (piped && k < op->ncarry)
                add(x, pp, op->out[k], at->first, at->last);
            if (!at->demand && !(piped && k >= op->ncarry))
                add(x, pp, op->out[k], at->last,
                    (int)(intptr_t)nd_table_get(&x->far, op->out[k]));
        }
    }
}

static void find_openings(pipe *pp)
{
    crossing x = {ND_NEWN(pp->a, double, pp->n + 1), {.arena = pp->a}};
    double most = 0;
    weigh_crossings(pp, &x);
    for (int k = 0; k < pp->repeats.n; k++) {
        const pipe_repeat *r = &pp->repeats.v[k];
        for (int u = r->base; u <= r->base + r->n && u < pp->n; u++) {
            pp->unit[u].opens = true;
            most = x.bytes[u] > most ? x.bytes[u] : most;
        }
    }
    for (int u = 0; u < pp->n; u++)
        if (!pp->unit[u].opens && x.bytes[u] <= most)
            pp->unit[u].opens = pp->unit[u].inner = true;
}

void pipe_weigh(pipe *pp)
{
    pp->unit = ND_NEWN(pp->a, pipe_unit, pp->n);
    weigh_time(pp);
    weigh_bytes(pp);
    if (pp->shares.n)
        qsort(pp->shares.v, (size_t)pp->shares.n, sizeof *pp->shares.v,
              by_unit);
    find_openings(pp);
}
