/* pipeline.c - cut the chain [ops][repeat iterations][ops] into stages.
 *
 * The repeat over the pipelined axis runs on every stage, iterations
 * [lo, hi) each. What it needs runs on the first stage, everything else
 * forward on the last; backward mirrors that around the reverse repeat. Ops
 * that depend on inputs alone run on any stage that reads them.
 *
 *   stage 0   [embedding] [layers 0..3)            sends %x    receives %dx
 *   stage 1               [layers 3..6) [loss]     receives %x sends %dx
 *
 * A value that a stage reads and an earlier one made crosses every boundary in
 * between; a parameter read on several stages is held by each (its gradient is
 * then pending over those stages).
 */
#include "passes.h"

#include <string.h>

enum { EVERYWHERE = -1, ON_DEMAND = -2 };

typedef struct pipe {
    nd_module *m;
    nd_arena *a;
    int p;                           /* stages */
    nd_op *fwd, *bwd;                /* the pipelined repeats, or NULL */
    bool **has_op;                   /* [stage][op index] */
    bool **has_param;                /* [stage][param index] */
} pipe;

static int last(const pipe *pp)
{
    return pp->p - 1;
}

/* ---- the repeats and their iterations ------------------------------------ */

/* What the masks of buckets hold. */
enum { MAX_DEVICES = 32 };

static bool check_plan(pipe *pp)
{
    nd_module *m = pp->m;
    if (m->program->ndevices > MAX_DEVICES) {
        nd_error(m->ctx, m->plan.pipe_loc, "%d devices along the pipeline, at "
                 "most %d; a device can have several stages",
                 m->program->ndevices, MAX_DEVICES);
        return false;
    }
    if (pp->p > 1 && m->plan.zero && (m->plan.zero_mesh >> m->mesh.pipe & 1)) {
        nd_error(m->ctx, m->plan.zero_loc,
                 "stages hold different parameters: nothing can be shared "
                 "over `%s`", m->mesh.name[m->mesh.pipe]);
        nd_note(m->ctx, m->plan.pipe_loc, "it is the pipeline's axis");
        return false;
    }
    return true;
}

static bool find_repeats(pipe *pp)
{
    nd_module *m = pp->m;
    const nd_axis *axis = m->plan.pipe_axis;
    for (int i = 0; axis && i < m->step->ops.n; i++) {
        nd_op *op = m->step->ops.v[i];
        if (op->kind != OP_REPEAT || op->axes[0] != axis)
            continue;
        nd_op **slot = op->reverse ? &pp->bwd : &pp->fwd;
        if (*slot) {
            nd_error(m->ctx, op->loc,
                     "two repeats over the pipelined axis `%s`", axis->name);
            nd_note(m->ctx, (*slot)->loc, "the other one is here");
            return false;
        }
        *slot = op;
    }
    if (axis && !pp->fwd) {
        nd_error(m->ctx, m->plan.pipe_loc,
                 "no repeat over the pipelined axis `%s`", axis->name);
        return false;
    }
    if (axis && pp->p > axis->size) {
        nd_error(m->ctx, m->plan.pipe_loc,
                 "%d pipeline stages for %lld iterations of `%s`: a stage "
                 "would be empty", pp->p, (long long)axis->size, axis->name);
        return false;
    }
    return true;
}

/* ---- what else has the pipelined axis ------------------------------------ */

typedef struct holders {
    pipe *pp;
    bool ok;
} holders;

static bool has_axis(const holders *h, const nd_value *v)
{
    return nd_axis_at(&v->type, h->pp->m->plan.pipe_axis) >= 0;
}

/* A stage holds its own iterations of the axis alone. That is right for what
 * the pipelined repeats scan and stack, and for nothing else. */
static void check_holder(nd_op *op, void *user)
{
    holders *h = user;
    nd_module *m = h->pp->m;
    const nd_axis *axis = m->plan.pipe_axis;
    bool piped = op == h->pp->fwd || op == h->pp->bwd;
    const nd_value *found = NULL;
    if (op->kind == OP_PARAM) {
        const nd_param *p = nd_param_of(op->out[0]);
        piped = p->nlayers && p->layer[0].axis == axis;
    }
    if (op->nout == 1 && nd_is_weight_copy(op->out[0]))
        piped = true;                /* its parameter's op answers for it */
    for (int i = 0; i < op->nin && !piped; i++)
        found = has_axis(h, op->in[i]) ? op->in[i] : found;
    for (int i = 0; i < op->nout && !piped; i++)
        found = has_axis(h, op->out[i]) ? op->out[i] : found;
    if (!h->ok || !found)
        return;
    h->ok = false;
    nd_error(m->ctx, op->loc, "`%s` has the pipelined axis `%s`, of which a "
             "stage holds its own iterations alone; give it an axis of its "
             "own: `axis other = %s`", found->name, axis->name, axis->name);
    nd_note(m->ctx, m->plan.pipe_loc, "the axis is cut in stages here");
}

static void check_inner(nd_op *op, void *user)
{
    holders *h = user;
    nd_module *m = h->pp->m;
    if (!h->ok || op->kind != OP_REPEAT || !op->block->parent ||
        op->axes[0] != m->plan.pipe_axis)
        return;
    h->ok = false;
    nd_error(m->ctx, op->loc, "a repeat over the pipelined axis `%s` inside "
             "another repeat", op->axes[0]->name);
    nd_note(m->ctx, m->plan.pipe_loc, "the axis is cut in stages here");
}

static bool check_holders(pipe *pp)
{
    holders h = {pp, true};
    if (pp->fwd && pp->p > 1) {
        nd_walk(pp->m->step, check_inner, &h);
        nd_walk(pp->m->step, check_holder, &h);
    }
    return h.ok;
}

/* ---- where each op runs -------------------------------------------------- */

static void mark_reads(nd_op *op, int bit);

static void mark_value(nd_value *v, int bit)
{
    if (v->def && !(v->def->mark & bit)) {
        v->def->mark |= bit;
        mark_reads(v->def, bit);
    }
}

/* Marks all ancestors of op. */
static void mark_reads(nd_op *op, int bit)
{
    for (int i = 0; i < op->nin; i++)
        mark_value(op->in[i], bit);
    for (int i = 0; op->body && i < op->body->ops.n; i++)
        mark_reads(op->body->ops.v[i], bit);
    for (int i = 0; op->body && i < op->body->yields.n; i++)
        mark_value(op->body->yields.v[i], bit);
}

enum { BEFORE_FWD = 1, AFTER_BWD = 2, OF_FIRST = 4 };

/* Does everything that this op reads, and that is not at hand on any stage,
 * come from the first one? Then the op belongs there too. */
static bool reads_first_only(const nd_op *op)
{
    bool some = false;
    if (op->body)
        return false;
    for (int i = 0; i < op->nin; i++) {
        const nd_op *d = op->in[i]->def;
        if (d->kind == OP_PARAM || op->in[i]->mark ||
            nd_is_weight_copy(op->in[i]))
            continue;
        if (!(d->mark & (d->phase == PH_BWD ? OF_FIRST : BEFORE_FWD)))
            return false;
        some = true;
    }
    return some;
}

static bool reads_after_bwd(const nd_op *op)
{
    for (int i = 0; i < op->nin; i++)
        if (op->in[i]->def && (op->in[i]->def->mark & AFTER_BWD))
            return true;
    for (int i = 0; op->body && i < op->body->ops.n; i++)
        if (reads_after_bwd(op->body->ops.v[i]))
            return true;
    return false;
}

/* A backward op on the last stage cannot wait for one that the first stage runs
 * at the end: what it reads runs with it, from values that crossed forward. */
static void pull_to_last(const nd_op *reader, const nd_op *op)
{
    if (reader->mark & (OF_FIRST | AFTER_BWD) && !reader->body)
        return;
    for (int i = 0; i < op->nin; i++)
        if (op->in[i]->def && op->in[i]->def->phase == PH_BWD)
            op->in[i]->def->mark &= ~OF_FIRST;
    for (int i = 0; op->body && i < op->body->ops.n; i++)
        pull_to_last(reader, op->body->ops.v[i]);
}

static void relate(pipe *pp)
{
    nd_block *b = pp->m->step;
    nd_mark_free(pp->m);             /* values; ops have marks of their own */
    if (pp->fwd)
        mark_reads(pp->fwd, BEFORE_FWD);
    if (!pp->bwd)
        return;
    pp->bwd->mark |= AFTER_BWD;
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        if (op->phase != PH_BWD)
            continue;
        if (reads_after_bwd(op))
            op->mark |= AFTER_BWD;
        if (reads_first_only(op))
            op->mark |= OF_FIRST;
    }
    for (int i = b->ops.n - 1; i >= 0; i--)
        if (b->ops.v[i]->phase == PH_BWD)
            pull_to_last(b->ops.v[i], b->ops.v[i]);
}

/* Hoisted ops depend on inputs alone even where a collective brought them. A
 * weight is cast on each stage that reads it rather than sent. */
static bool on_demand(const nd_op *op)
{
    return op->kind == OP_PARAM || op->phase == PH_PRE ||
           (op->nout == 1 &&
            (op->out[0]->mark || nd_is_weight_copy(op->out[0])));
}

static int place_of(const pipe *pp, const nd_op *op)
{
    if (op == pp->fwd || op == pp->bwd)
        return EVERYWHERE;
    if (on_demand(op))
        return ON_DEMAND;
    if (op->phase == PH_BWD)
        return (op->mark & (AFTER_BWD | OF_FIRST)) ? 0 : last(pp);
    return (op->mark & BEFORE_FWD) ? 0 : last(pp);
}

static bool runs_on(const pipe *pp, const nd_op *op, int s)
{
    int at = place_of(pp, op);
    return at == EVERYWHERE || at == s;
}

/* ---- balance ------------------------------------------------------------- */

/* One more iteration to the cheapest stage until none is left: with equal
 * iterations that minimises the heaviest stage. Ties go to earlier stages. */
static void balance(pipe *pp, int *count)
{
    nd_module *m = pp->m;
    double *load = ND_NEWN(pp->a, double, pp->p);
    double layers = (double)pp->fwd->axes[0]->size;
    double each = nd_op_flops(pp->fwd, &m->mesh) / layers;
    for (int i = 0; i < m->step->ops.n; i++) {
        nd_op *op = m->step->ops.v[i];
        int at = place_of(pp, op);
        if (op->phase == PH_FWD && at >= 0)
            load[at] += nd_op_flops(op, &m->mesh);
    }
    for (int s = 0; s < pp->p; s++) {
        count[s] = 1;
        load[s] += each;
    }
    for (int64_t left = pp->fwd->axes[0]->size - pp->p; left > 0; left--) {
        int best = 0;
        for (int s = 1; s < pp->p; s++)
            if (load[s] < load[best])
                best = s;
        count[best]++;
        load[best] += each;
    }
}

static void set_ranges(pipe *pp)
{
    nd_module *m = pp->m;
    if (!pp->fwd)
        return;
    int *count = ND_NEWN(pp->a, int, pp->p);
    if (m->plan.nstages_given)
        memcpy(count, m->plan.stages_given, sizeof *count * (size_t)pp->p);
    else
        balance(pp, count);
    for (int s = 0, at = 0; s < pp->p; s++) {
        m->program->stage[s].lo = at;
        at += count[s];
        m->program->stage[s].hi = at;
    }
}

/* ---- what each stage needs ----------------------------------------------- */

static void need_op(pipe *pp, int s, nd_op *op);

static void need_value(pipe *pp, int s, const nd_value *v)
{
    nd_op *d = v->def;
    if (!d || d->block != pp->m->step)
        return;
    if (d->kind == OP_PARAM)
        pp->has_param[s][d->param->index] = true;
    else if (on_demand(d))
        need_op(pp, s, d);
}

static void need_reads(pipe *pp, int s, nd_op *op)
{
    /* On later stages what a repeat carries is received. */
    bool later = op == pp->fwd ? s > 0 : op == pp->bwd && s < last(pp);
    for (int i = later ? op->ncarry : 0; i < op->nin; i++)
        need_value(pp, s, op->in[i]);
    if (op->kind == OP_ACCUM)
        pp->has_param[s][op->param->index] = true;
    if (!op->body)
        return;
    for (int i = 0; i < op->body->ops.n; i++)
        need_reads(pp, s, op->body->ops.v[i]);
    for (int i = 0; i < op->body->yields.n; i++)
        need_value(pp, s, op->body->yields.v[i]);
}

static void need_op(pipe *pp, int s, nd_op *op)
{
    if (pp->has_op[s][op->mark])
        return;
    pp->has_op[s][op->mark] = true;
    need_reads(pp, s, op);
}

static void fill_lists(pipe *pp, int s)
{
    nd_module *m = pp->m;
    nd_stage *st = &m->program->stage[s];
    for (int i = 0; i < m->step->ops.n; i++) {
        nd_op *op = m->step->ops.v[i];
        if (!pp->has_op[s][i])
            continue;
        if (op->phase == PH_PRE)
            ND_PUSH(pp->a, &st->pre, op);
        else if (op->phase == PH_FWD)
            ND_PUSH(pp->a, &st->fwd, op);
        else
            ND_PUSH(pp->a, &st->bwd, op);
    }
    for (int i = 0; i < m->params.n; i++)
        if (pp->has_param[s][i])
            ND_PUSH(pp->a, &st->params, m->params.v[i]);
}

/* ---- what crosses, what is kept ------------------------------------------ */

static void cross(pipe *pp, nd_stage *st, bool forward, nd_value *from,
                  nd_value *to)
{
    nd_cross c = {from, to};
    if (forward) {
        for (int i = 0; i < st->send_fwd.n; i++)
            if (st->send_fwd.v[i].from == from)
                return;
        ND_PUSH(pp->a, &st->send_fwd, c);
    } else {
        for (int i = 0; i < st->send_bwd.n; i++)
            if (st->send_bwd.v[i].from == from)
                return;
        ND_PUSH(pp->a, &st->send_bwd, c);
    }
}

static void keep(pipe *pp, nd_stage *st, nd_value *v)
{
    for (int i = 0; i < st->saved.n; i++)
        if (st->saved.v[i] == v)
            return;
    ND_PUSH(pp->a, &st->saved, v);
}

/* The stage on which an outer value is final. */
static int made_on(const pipe *pp, const nd_value *v)
{
    if (v->def == pp->fwd)
        return last(pp);
    if (v->def == pp->bwd)
        return 0;
    return place_of(pp, v->def);
}

static void route(pipe *pp, int s, nd_op *reader, nd_value *v)
{
    nd_stage *stage = pp->m->program->stage;
    nd_op *d = v->def;
    if (!d || d->block != pp->m->step || d->kind == OP_PARAM ||
        d->kind == OP_INPUT || d->phase == PH_PRE)
        return;
    bool stacked = (d == pp->fwd || d == pp->bwd) && v->index >= d->ncarry;
    int from = stacked || place_of(pp, d) == ON_DEMAND ? s : made_on(pp, v);
    for (int k = from; k < s; k++)
        cross(pp, &stage[k], true, v, v);
    for (int k = from; k > s; k--)
        cross(pp, &stage[k], false, v, v);
    if (reader->phase == PH_BWD && d->phase == PH_FWD)
        keep(pp, &stage[s], v);
}

static void route_reads(pipe *pp, int s, nd_op *op, nd_op *reader)
{
    bool later = op == pp->fwd ? s > 0 : op == pp->bwd && s < last(pp);
    for (int i = later ? op->ncarry : 0; i < op->nin; i++)
        route(pp, s, reader, op->in[i]);
    if (!op->body)
        return;
    for (int i = 0; i < op->body->ops.n; i++)
        route_reads(pp, s, op->body->ops.v[i], reader);
    for (int i = 0; i < op->body->yields.n; i++)
        route(pp, s, reader, op->body->yields.v[i]);
}

static void carried_across(pipe *pp)
{
    nd_stage *stage = pp->m->program->stage;
    for (int s = 0; pp->fwd && s < last(pp); s++)
        for (int i = 0; i < pp->fwd->ncarry; i++)
            cross(pp, &stage[s], true, pp->fwd->out[i], pp->fwd->in[i]);
    for (int s = last(pp); pp->bwd && s > 0; s--)
        for (int i = 0; i < pp->bwd->ncarry; i++)
            cross(pp, &stage[s], false, pp->bwd->out[i], pp->bwd->in[i]);
}

/* ---- operands that stages after the first receive ------------------------ */

typedef struct counting {
    const nd_value *v;
    int uses;
} counting;

static void count_uses(nd_op *op, void *user)
{
    counting *c = user;
    for (int i = 0; i < op->nin; i++)
        c->uses += op->in[i] == c->v;
    for (int i = 0; op->body && i < op->body->yields.n; i++)
        c->uses += op->body->yields.v[i] == c->v;
}

/* A received value is bound in the place of the initial operand, so nothing
 * else may read that operand: where something does, the repeat gets a copy. */
static void own_operands(pipe *pp, nd_op *r)
{
    for (int i = 0; r && i < r->ncarry; i++) {
        counting c = {r->in[i], 0};
        nd_walk(pp->m->step, count_uses, &c);
        nd_op *d = r->in[i]->def;
        if (c.uses == 1 && d->phase == r->phase && !on_demand(d))
            continue;
        nd_block *b = pp->m->step;
        nd_builder at = {.m = pp->m, .block = b, .phase = r->phase,
                         .loc = r->loc, .path = r->path,
                         .hint = r->in[i]->name};
        while (b->ops.v[at.at] != r)
            at.at++;
        nd_type like = r->in[i]->type;
        nd_op *copy = nd_op_new(&at, OP_BROADCAST, 1, &r->in[i], 1, &like);
        r->in[i] = copy->out[0];
    }
}

static void fill_crossings(pipe *pp)
{
    nd_block *b = pp->m->step;
    carried_across(pp);
    for (int s = 0; s < pp->p; s++)
        for (int i = 0; i < b->ops.n; i++)
            if (runs_on(pp, b->ops.v[i], s))
                route_reads(pp, s, b->ops.v[i], b->ops.v[i]);
}

static void fill_stages(pipe *pp)
{
    nd_block *b = pp->m->step;
    int *place = ND_NEWN(pp->a, int, b->ops.n + 1);
    for (int i = 0; i < b->ops.n; i++)
        place[i] = place_of(pp, b->ops.v[i]);
    /* From here on a mark is the op's index in the block. */
    for (int i = 0; i < b->ops.n; i++)
        b->ops.v[i]->mark = i;
    pp->has_op = ND_NEWN(pp->a, bool *, pp->p);
    pp->has_param = ND_NEWN(pp->a, bool *, pp->p);
    for (int s = 0; s < pp->p; s++) {
        pp->has_op[s] = ND_NEWN(pp->a, bool, b->ops.n + 1);
        pp->has_param[s] = ND_NEWN(pp->a, bool, pp->m->params.n + 1);
        for (int i = 0; i < b->ops.n; i++)
            if (place[i] == EVERYWHERE || place[i] == s)
                need_op(pp, s, b->ops.v[i]);
        fill_lists(pp, s);
    }
}

/* Every parameter has a home, also one that nothing reads: it is initialised
 * and saved like the others. Of a stacked one each stage holds its layers. */
static void house_unused(pipe *pp)
{
    nd_module *m = pp->m;
    for (int i = 0; i < m->params.n; i++) {
        bool held = false;
        for (int s = 0; s < pp->p; s++)
            held |= pp->has_param[s][i];
        const nd_param *p = m->params.v[i];
        bool stacked = p->nlayers && p->layer[0].axis == m->plan.pipe_axis;
        for (int s = 0; s < (held ? 0 : stacked ? pp->p : 1); s++)
            ND_PUSH(pp->a, &m->program->stage[s].params, m->params.v[i]);
    }
}

/* A loss that the repeat carries is final on the last stage alone: a copy
 * there takes its place. */
static void own_loss(pipe *pp)
{
    nd_module *m = pp->m;
    if (!m->loss || !pp->fwd || m->loss->def != pp->fwd)
        return;
    nd_builder at = {.m = m, .block = m->step, .phase = PH_FWD,
                     .loc = pp->fwd->loc, .path = pp->fwd->path,
                     .hint = m->loss->name};
    while (m->step->ops.v[at.at++] != pp->fwd)
        ;
    nd_type like = m->loss->type;
    m->loss = nd_op_new(&at, OP_BROADCAST, 1, &m->loss, 1, &like)->out[0];
}

nd_program *nd_program_new(nd_module *m)
{
    nd_arena *a = m->ctx->arena;
    int devices = m->mesh.pipe >= 0 ? m->mesh.size[m->mesh.pipe] : 1;
    nd_program *p = ND_NEW(a, nd_program);
    sched_kind kind = m->plan.schedule;
    sched_where where = kind < SCHED_NKINDS ? sched_kinds[kind].where
                                            : SCHED_LOOP;
    p->ndevices = devices;
    p->nstages = devices;
    if (devices > 1)
        p->nstages *= sched_per_rank(kind, m->plan.per_device);
    p->nmicro = m->plan.microbatches;
    p->stage = ND_NEWN(a, nd_stage, p->nstages);
    for (int s = 0; s < p->nstages; s++)
        p->stage[s].device = sched_rank_of(where, devices, s);
    return p;
}

bool pass_pipeline(nd_module *m, const nd_options *o)
{
    (void)o;
    nd_arena *a = m->ctx->arena;
    pipe pp = {.m = m, .a = a};
    m->program = nd_program_new(m);
    pp.p = m->program->nstages;
    if (!check_plan(&pp) || !find_repeats(&pp) || !check_holders(&pp))
        return false;
    if (pp.p > 1) {
        own_loss(&pp);
        nd_mark_free(m);
        own_operands(&pp, pp.fwd);
        nd_mark_free(m);
        own_operands(&pp, pp.bwd);
    }
    relate(&pp);
    set_ranges(&pp);
    fill_crossings(&pp);
    fill_stages(&pp);
    house_unused(&pp);
    return nd_stages_check(m);
}
