/* split.c - backward in two halves: gradients of inputs, then of weights.
 *
 *   bwd %dx = repeat reverse [layers] carry(%dy) scan(%h, %w) { (%g, ...)
 *     accumulate "layers.w" (contract %h1, %g)
 *     yield contract %g, %w1
 *   }
 *   ->
 *   bwd %dx, %gs = repeat reverse [layers] carry(%dy) scan(%w) { (%g, ...)
 *     yield contract %g, %w1, %g
 *   }
 *   wgt repeat reverse [layers] scan(%h, %gs) { (%h1, %g)
 *     accumulate "layers.w" (contract %h1, %g)
 *   }
 *
 * The first half (phase BWD, action I) has what an earlier stage waits for: all
 * that a gradient which crosses to it is made from, in bodies too. A repeat
 * over several stages hands over what it carries. The rest (phase WGT, action
 * W) may run at any time after it. Nothing is computed that was not, on the
 * same operands and in the same order, so that gradients keep their bits; what
 * W needs of I is kept for it, or made again where that keeps fewer bytes
 * (recompute.c).
 */
#include "split.h"

typedef struct split {
    nd_module *m;
    nd_arena *a;
    pipe *places;
    nd_table needed;                 /* values and ops of the first half */
} split;

/* ---- the first half ------------------------------------------------------ */

static bool needed(const split *s, const void *x)
{
    return nd_table_get(&s->needed, x) != NULL;
}

static void need_value(split *s, nd_value *v);

static void need_op(split *s, nd_op *op)
{
    if (needed(s, op))
        return;
    nd_table_put(&s->needed, op, op);
    if (op->block->parent)
        need_op(s, op->block->parent);
    /* Of a repeat only what leads to the needed results. */
    for (int i = 0; op->kind != OP_REPEAT && i < op->nin; i++)
        need_value(s, op->in[i]);
}

static void need_value(split *s, nd_value *v)
{
    nd_op *op = v->def ? v->def : v->owner->parent;
    if (!op || op->phase != PH_BWD || needed(s, v))
        return;
    nd_table_put(&s->needed, v, v);
    need_op(s, op);
    if (op->kind != OP_REPEAT)
        return;
    bool carried = v->index < op->ncarry;
    if (v->def || carried)
        need_value(s, op->body->yields.v[v->index]);
    if (!v->def || carried)
        need_value(s, op->in[v->index]);
    if (carried) {
        need_value(s, op->out[v->index]);
        need_value(s, op->body->args.v[v->index]);
    }
}

static pipe_place place_of(const split *s, const nd_op *op)
{
    return pipe_place_of(s->places, op);
}

/* A result that a repeat over several stages carries is final on the first of
 * them; each has its part of what is stacked. */
static pipe_place final_on(const split *s, const nd_value *v)
{
    pipe_place at = place_of(s, v->def);
    if (at.first < at.last && v->index < v->def->ncarry)
        at.last = at.first;
    return at;
}

static void need_crossing(split *s, const nd_op *reader, nd_value *v)
{
    pipe_place to = place_of(s, reader);
    if (to.demand || !v->def || v->def->block != s->m->step ||
        v->def->phase != PH_BWD || place_of(s, v->def).demand)
        return;
    pipe_place from = final_on(s, v);
    if (from.first != to.first || from.last != to.last)
        need_value(s, v);
}

static void need_crossings(split *s, const nd_op *reader, const nd_op *op)
{
    for (int i = 0; i < op->nin; i++)
        need_crossing(s, reader, op->in[i]);
    if (!op->body)
        return;
    for (int i = 0; i < op->body->ops.n; i++)
        need_crossings(s, reader, op->body->ops.v[i]);
    for (int i = 0; i < op->body->yields.n; i++)
        need_crossing(s, reader, op->body->yields.v[i]);
}

static void find_needed(split *s)
{
    nd_block *b = s->m->step;
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        if (op->phase != PH_BWD || place_of(s, op).demand)
            continue;
        pipe_place at = place_of(s, op);
        need_crossings(s, op, op);
        for (int k = 0; at.first < at.last && k < op->ncarry; k++)
            need_value(s, op->out[k]);
    }
}

static void set_phase(nd_op *op, void *user)
{
    if (op->phase == PH_BWD && !needed(user, op))
        op->phase = PH_WGT;
}

/* ---- a repeat in two ----------------------------------------------------- */

/* The two halves of a repeat, while one is taken out of the other. */
typedef struct halves {
    split *s;
    nd_pair p;
    nd_builder b;                    /* at the start of the later body */
    nd_table now;                    /* value of the first -> in the second */
} halves;

static bool waits(const split *s, const nd_value *v)
{
    return v->def ? v->def->phase == PH_WGT
                  : v->owner->parent && !needed(s, v) &&
                        v->index < v->owner->parent->ncarry &&
                        v->owner->parent->phase == PH_BWD;
}

/* Does result k belong to the second half? */
static bool result_waits(const split *s, const nd_op *r, int k)
{
    return !needed(s, r->out[k]) &&
           (k < r->ncarry || waits(s, r->body->yields.v[k]));
}

static bool divides(const split *s, const nd_op *r)
{
    bool some = false;
    if (r->kind != OP_REPEAT || r->phase != PH_BWD)
        return false;
    for (int i = 0; i < r->body->ops.n; i++)
        some |= r->body->ops.v[i]->phase == PH_WGT;
    for (int k = 0; k < r->nout; k++)
        some |= result_waits(s, r, k);
    return some;
}

static nd_value *in_second(halves *h, nd_value *v)
{
    if (nd_block_of(v) != h->p.from)
        return v;                    /* of an outer block, or moved here */
    nd_value *x = nd_table_get(&h->now, v);
    if (!x) {
        x = nd_hand_over(&h->p, &h->b, v);
        nd_table_put(&h->now, v, x);
    }
    return x;
}

static void rewrite(halves *h, nd_op *op)
{
    for (int i = 0; i < op->nin; i++)
        op->in[i] = in_second(h, op->in[i]);
    if (!op->body)
        return;
    for (int i = 0; i < op->body->ops.n; i++)
        rewrite(h, op->body->ops.v[i]);
    for (int i = 0; i < op->body->yields.n; i++)
        op->body->yields.v[i] = in_second(h, op->body->yields.v[i]);
}

static void move_ops(halves *h)
{
    nd_block *from = h->p.from, *to = h->p.to;
    int keep = 0;
    for (int i = 0; i < from->ops.n; i++) {
        nd_op *op = from->ops.v[i];
        if (op->phase != PH_WGT) {
            from->ops.v[keep++] = op;
            continue;
        }
        op->block = to;
        ND_PUSH(h->s->a, &to->ops, op);
    }
    from->ops.n = keep;
}

/* The later half, with what it carries. */
static nd_op *begin(halves *h, nd_op *r, int at)
{
    split *s = h->s;
    nd_value **init = ND_NEWN(s->a, nd_value *, r->ncarry);
    int n = 0;
    for (int k = 0; k < r->ncarry; k++)
        if (result_waits(s, r, k))
            init[n++] = r->in[k];
    nd_builder b = {.m = s->m, .block = r->block, .at = at + 1,
                    .phase = PH_WGT, .loc = r->loc, .path = r->path};
    nd_op *w = nd_repeat_begin(&b, r->axes[0], n, init);
    w->reverse = r->reverse;
    for (int k = 0, j = 0; k < r->ncarry; k++) {
        if (!result_waits(s, r, k))
            continue;
        nd_value *arg = w->body->args.v[j++];
        arg->name = r->body->args.v[k]->name;
        arg->turn = r->body->args.v[k]->turn;
        nd_table_put(&h->now, r->body->args.v[k], arg);
    }
    return w;
}

static void yield(halves *h, nd_op *r, nd_op *w)
{
    split *s = h->s;
    nd_value **next = ND_NEWN(s->a, nd_value *, w->ncarry + 1);
    nd_value **old = ND_NEWN(s->a, nd_value *, r->nout + 1);
    int n = 0, nout = r->nout;
    for (int k = 0; k < nout; k++)
        if (result_waits(s, r, k))
            old[n++] = r->out[k];
    for (int j = 0; j < w->ncarry; j++)
        next[j] = in_second(h, r->body->yields.v[old[j]->index]);
    nd_repeat_yield(s->m, w, next);
    for (int j = 0; j < n; j++) {
        nd_value *y = r->body->yields.v[old[j]->index];
        nd_value *whole = j < w->ncarry
                              ? w->out[j]
                              : nd_repeat_stack(s->m, w, in_second(h, y));
        nd_replace_uses(s->m, old[j], whole);
    }
}

/* What the first half computed for the second alone goes with nd_dce: its
 * arguments and results have no reader left. */
static void divide(split *s, nd_op *r, int at)
{
    halves h = {.s = s, .now = {.arena = s->a}};
    nd_op *w = begin(&h, r, at);
    h.p = (nd_pair){r->body, w->body, r, w, PH_WGT, s->places};
    h.b = (nd_builder){.m = s->m, .block = w->body, .phase = PH_WGT,
                       .loc = r->loc, .path = r->path};
    move_ops(&h);
    for (int i = h.b.at; i < w->body->ops.n; i++) {
        int before = h.b.at;
        rewrite(&h, w->body->ops.v[i]);
        i += h.b.at - before;
    }
    yield(&h, r, w);
    if (r->block == s->m->step)
        pipe_place_like(s->places, w, r);
    nd_dce(s->m);
    nd_keep_or_repeat(s->m, &h.p);
    nd_dce(s->m);
}

/* Inner ones first: what their halves hand over is then one value more. */
static void divide_all(split *s, nd_block *b)
{
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        if (op->kind != OP_REPEAT || op->phase != PH_BWD)
            continue;
        divide_all(s, op->body);
        if (!divides(s, op))
            continue;
        i = 0;
        while (b->ops.v[i] != op)
            i++;
        divide(s, op, i);
        i = 0;
        while (b->ops.v[i] != op)
            i++;
    }
}

bool nd_in_halves(const sched *x)
{
    for (int d = 0; d < x->ranks; d++)
        for (int i = 0; i < x->row[d].n; i++)
            if (x->row[d].v[i].op == SCHED_I || x->row[d].v[i].op == SCHED_W)
                return true;
    return false;
}

bool nd_wants_split(const nd_module *m)
{
    sched_kind k = m->plan.schedule;
    const nd_searched *x = m->plan.searched;
    return m->program->nstages > 1 &&
           ((x ? !x->whole : k == SCHED_KIND_AUTO) || sched_has(k, 'w') ||
            (m->program->sched && nd_in_halves(m->program->sched)));
}

bool nd_split_backward(pipe *places)
{
    nd_module *m = places->m;
    split s = {.m = m, .a = m->ctx->arena, .places = places,
               .needed = {.arena = m->ctx->arena}};
    nd_sums before = {.op.v = NULL};
    nd_sums_of(m, &before);
    find_needed(&s);
    nd_walk(m->step, set_phase, &s);
    divide_all(&s, m->step);
    nd_keep_or_repeat(m, &(nd_pair){m->step, m->step, NULL, NULL, PH_WGT,
                                    places});
    nd_dce(m);
    return nd_split_check(m, &before);
}
