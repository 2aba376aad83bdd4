/* stages.c - the lists of every stage, and what crosses between them.
 *
 *   stage 0   [embedding] [layers 0..3)            sends %x    receives %dx
 *   stage 1               [layers 3..6) [loss]     receives %x sends %dx
 *
 * A value that a stage reads and another one made crosses every boundary in
 * between; what a repeat carries is received in the place of its operand. A
 * parameter read on several stages is held by each.
 */
#include "pipeline.h"

typedef struct filler {
    pipe *pp;
    int s;                           /* the stage at hand */
    bool **has_op;                   /* [stage][op index] */
    bool **has_param;                /* [stage][param index] */
} filler;

static bool runs_on(const pipe *pp, const nd_op *op, int s)
{
    pipe_place at = pipe_place_of(pp, op);
    return !at.demand && at.first <= s && s <= at.last;
}

/* Does the repeat go on here with what another stage carried? */
static bool goes_on(const pipe *pp, const nd_op *op, int s)
{
    pipe_place at = pipe_place_of(pp, op);
    return pipe_is_piped(pp, op) && s != (op->reverse ? at.last : at.first);
}

typedef void read_fn(filler *f, nd_op *reader, nd_value *v);

static void body_reads(filler *f, nd_op *reader, nd_op *op, read_fn *each)
{
    nd_block *step = f->pp->m->step;
    for (int i = 0; op->body && i < op->body->ops.n; i++) {
        nd_op *inner = op->body->ops.v[i];
        for (int k = 0; k < inner->nin; k++)
            if (nd_block_of(inner->in[k]) == step)
                each(f, reader, inner->in[k]);
        if (inner->kind == OP_ACCUM)
            each(f, reader, inner->param->value);
        body_reads(f, reader, inner, each);
    }
    for (int i = 0; op->body && i < op->body->yields.n; i++)
        if (nd_block_of(op->body->yields.v[i]) == step)
            each(f, reader, op->body->yields.v[i]);
}

/* What the stage itself must have of what op reads. */
static void stage_reads(filler *f, nd_op *op, read_fn *each)
{
    for (int i = goes_on(f->pp, op, f->s) ? op->ncarry : 0; i < op->nin; i++)
        each(f, op, op->in[i]);
    if (op->kind == OP_ACCUM)
        each(f, op, op->param->value);
    body_reads(f, op, op, each);
}

/* ---- lists --------------------------------------------------------------- */

static void need_op(filler *f, nd_op *op);

static void need_value(filler *f, nd_op *reader, nd_value *v)
{
    (void)reader;
    if (v->def->kind == OP_PARAM)
        f->has_param[f->s][v->def->param->index] = true;
    else if (pipe_place_of(f->pp, v->def).demand)
        need_op(f, v->def);
}

static void need_op(filler *f, nd_op *op)
{
    if (f->has_op[f->s][op->mark])
        return;
    f->has_op[f->s][op->mark] = true;
    stage_reads(f, op, need_value);
}

static void fill_lists(filler *f)
{
    nd_module *m = f->pp->m;
    nd_stage *st = &m->program->stage[f->s];
    for (int i = 0; i < m->step->ops.n; i++) {
        nd_op *op = m->step->ops.v[i];
        if (!f->has_op[f->s][i])
            continue;
        if (op->phase == PH_PRE)
            ND_PUSH(f->pp->a, &st->pre, op);
        else if (op->phase == PH_FWD)
            ND_PUSH(f->pp->a, &st->fwd, op);
        else if (op->phase == PH_BWD)
            ND_PUSH(f->pp->a, &st->bwd, op);
        else
            ND_PUSH(f->pp->a, &st->wgt, op);
    }
    for (int i = 0; i < m->params.n; i++)
        if (f->has_param[f->s][i])
            ND_PUSH(f->pp->a, &st->params, m->params.v[i]);
}

/* ---- what crosses, what is kept ------------------------------------------ */

static void cross(filler *f, nd_stage *st, bool forward, nd_value *from,
                  nd_value *to)
{
    nd_cross c = {from, to};
    if (forward) {
        for (int i = 0; i < st->send_fwd.n; i++)
            if (st->send_fwd.v[i].from == from)
                return;
        ND_PUSH(f->pp->a, &st->send_fwd, c);
    } else {
        for (int i = 0; i < st->send_bwd.n; i++)
            if (st->send_bwd.v[i].from == from)
                return;
        ND_PUSH(f->pp->a, &st->send_bwd, c);
    }
}

static void keep(filler *f, nd_stage *st, nd_value *v)
{
    for (int i = 0; i < st->saved.n; i++)
        if (st->saved.v[i] == v)
            return;
    ND_PUSH(f->pp->a, &st->saved, v);
}

/* The stage on which a value of the step is final; what a repeat stacks is
 * where its iteration is. */
static int made_on(const filler *f, const nd_value *v)
{
    pipe_place at = pipe_place_of(f->pp, v->def);
    if (!pipe_is_piped(f->pp, v->def))
        return at.demand ? f->s : at.first;
    if (v->index >= v->def->ncarry)
        return f->s;
    return v->def->reverse ? at.first : at.last;
}

static void route(filler *f, nd_op *reader, nd_value *v)
{
    nd_stage *stage = f->pp->m->program->stage;
    nd_op *d = v->def;
    if (d->kind == OP_PARAM || d->kind == OP_INPUT || d->phase == PH_PRE)
        return;
    int from = made_on(f, v);
    for (int k = from; k < f->s; k++)
        cross(f, &stage[k], true, v, v);
    for (int k = from; k > f->s; k--)
        cross(f, &stage[k], false, v, v);
    if (reader->phase != PH_FWD && d->phase == PH_FWD) {
        keep(f, &stage[f->s], v);
        if (from > f->s)
            keep(f, &stage[from], v);
    }
}

/* Before all others, so that what a repeat carries is sent first. */
static void cross_carried(filler *f)
{
    nd_stage *stage = f->pp->m->program->stage;
    nd_block *b = f->pp->m->step;
    for (int i = 0; i < b->ops.n; i++) {
        const nd_op *op = b->ops.v[i];
        if (!pipe_is_piped(f->pp, op))
            continue;
        pipe_place at = pipe_place_of(f->pp, op);
        for (int s = at.first; s < at.last; s++)
            for (int k = 0; k < op->ncarry; k++)
                cross(f, &stage[op->reverse ? at.last - (s - at.first) : s],
                      !op->reverse, op->out[k], op->in[k]);
    }
}

static void fill_crossings(filler *f)
{
    nd_block *b = f->pp->m->step;
    cross_carried(f);
    for (f->s = 0; f->s < f->pp->p; f->s++)
        for (int i = 0; i < b->ops.n; i++)
            if (runs_on(f->pp, b->ops.v[i], f->s))
                stage_reads(f, b->ops.v[i], route);
}

/* ---- all ----------------------------------------------------------------- */

static bool has_layers(const pipe *pp, const nd_param *p, int s)
{
    int64_t lo, hi;
    return p->nlayers &&
           nd_stage_range(pp->m, s, p->layer[0].axis, &lo, &hi) && hi > lo;
}

/* Every parameter has a home, also one that nothing reads: it is initialised
 * and saved like the others. Of a stacked one each stage holds its layers. */
static void house_unused(filler *f)
{
    pipe *pp = f->pp;
    for (int i = 0; i < pp->m->params.n; i++) {
        nd_param *p = pp->m->params.v[i];
        bool held = false, stacked = false;
        for (int s = 0; s < pp->p; s++) {
            held |= f->has_param[s][i];
            stacked |= has_layers(pp, p, s);
        }
        for (int s = 0; s < pp->p && !held; s++)
            if (stacked ? has_layers(pp, p, s) : s == 0)
                ND_PUSH(pp->a, &pp->m->program->stage[s].params, p);
    }
}

void pipe_fill(pipe *pp)
{
    nd_block *b = pp->m->step;
    filler f = {pp, 0, ND_NEWN(pp->a, bool *, pp->p),
                ND_NEWN(pp->a, bool *, pp->p)};
    for (int i = 0; i < b->ops.n; i++)
        b->ops.v[i]->mark = i;
    fill_crossings(&f);
    for (f.s = 0; f.s < pp->p; f.s++) {
        f.has_op[f.s] = ND_NEWN(pp->a, bool, b->ops.n + 1);
        f.has_param[f.s] = ND_NEWN(pp->a, bool, pp->m->params.n + 1);
        for (int i = 0; i < b->ops.n; i++)
            if (runs_on(pp, b->ops.v[i], f.s))
                need_op(&f, b->ops.v[i]);
        fill_lists(&f);
    }
    house_unused(&f);
}
