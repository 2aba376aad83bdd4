/* pipeline.c - cut the chain [ops][iterations][ops][iterations][ops] into
 * stages.
 *
 *   stage 0   [embedding] [layers 0..3)            sends %x    receives %dx
 *   stage 1               [layers 3..6) [loss]     receives %x sends %dx
 *
 * What the pass does, in this order: the plan and the repeats are checked; each
 * op finds its place in the chain (chain.c); the parts of the chain are weighed
 * (weigh.c) and given to stages (cut.c, partition.c); what waits of backward is
 * set apart (split.c), where the schedule wants it; the lists of every stage
 * follow (stages.c); stages_check.c proves them.
 */
#include "split.h"

/* ---- the repeats and their iterations ------------------------------------ */

/* What the masks of buckets hold; and computations of a step, on all stages. */
enum { MAX_DEVICES = 32, MAX_ACTIONS = 20000000 };

/* A graph that was read may list anything. */
static bool check_stages(const pipe *pp)
{
    const nd_module *m = pp->m;
    const nd_plan *p = &m->plan;
    int64_t have = 0, given = 0;
    if (!p->nstages_given)
        return true;
    for (int k = 0; k < pp->repeats.n; k++)
        have += pp->repeats.v[k].fwd->axes[0]->size;
    for (int s = 0; s < p->nstages_given; s++)
        given += p->stages_given[s];
    if (p->nstages_given != pp->p)
        nd_error(m->ctx, p->pipe_loc, "a list of %d stages, not %d",
                 p->nstages_given, pp->p);
    else if (given != have)
        nd_error(m->ctx, p->pipe_loc, "the stages hold %lld of %lld "
                 "iterations", (long long)given, (long long)have);
    return p->nstages_given == pp->p && given == have;
}

static bool check_plan(pipe *pp)
{
    nd_module *m = pp->m;
    if (pp->devices > MAX_DEVICES) {
        nd_error(m->ctx, m->plan.pipe_loc, "%d devices along the pipeline, at "
                 "most %d; a device can have several stages", pp->devices,
                 MAX_DEVICES);
        return false;
    }
    if (2 * (int64_t)pp->p * m->plan.microbatches > MAX_ACTIONS) {
        nd_error(m->ctx, m->plan.pipe_loc, "%d stages and %d microbatches: a "
                 "schedule of more than %d computations", pp->p,
                 m->plan.microbatches, MAX_ACTIONS);
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

static bool find_repeat(pipe *pp, const nd_axis *axis)
{
    nd_module *m = pp->m;
    const nd_op *there = NULL, *back = NULL;
    for (int i = 0; i < m->step->ops.n; i++) {
        nd_op *op = m->step->ops.v[i];
        if (op->kind != OP_REPEAT || op->axes[0] != axis)
            continue;
        const nd_op **slot = op->reverse ? &back : &there;
        if (*slot) {
            nd_error(m->ctx, op->loc,
                     "two repeats over the pipelined axis `%s`", axis->name);
            nd_note(m->ctx, (*slot)->loc, "the other one is here");
            return false;
        }
        *slot = op;
    }
    if (!there)
        nd_error(m->ctx, m->plan.pipe_loc,
                 "no repeat over the pipelined axis `%s`", axis->name);
    return there;
}

/* The forward ones, in the order of the program. */
static bool find_repeats(pipe *pp)
{
    nd_module *m = pp->m;
    for (int i = 0; i < m->plan.piped.n; i++)
        if (!find_repeat(pp, m->plan.piped.v[i]))
            return false;
    for (int i = 0; i < m->step->ops.n; i++) {
        pipe_repeat r = {.fwd = m->step->ops.v[i]};
        if (pipe_is_piped(pp, r.fwd) && !r.fwd->reverse)
            ND_PUSH(pp->a, &pp->repeats, r);
    }
    return true;
}

/* ---- what else has the pipelined axis ------------------------------------ */

typedef struct holders {
    pipe *pp;
    bool ok;
} holders;

static const nd_axis *axis_of(const holders *h, const nd_value *v)
{
    for (int i = 0; i < v->type.rank; i++)
        if (nd_is_piped(h->pp->m, v->type.axis[i]))
            return v->type.axis[i];
    return NULL;
}

/* A stage holds its own iterations of the axis alone. That is right for what
 * the pipelined repeats scan and stack, and for nothing else. */
static void check_holder(nd_op *op, void *user)
{
    holders *h = user;
    nd_module *m = h->pp->m;
    const nd_axis *own = pipe_is_piped(h->pp, op) ? op->axes[0] : NULL;
    const nd_value *found = NULL;
    if (op->kind == OP_PARAM && nd_param_of(op->out[0])->nlayers)
        own = nd_param_of(op->out[0])->layer[0].axis;
    if (op->nout == 1 && nd_is_weight_copy(op->out[0]))
        return;                      /* its parameter's op answers for it */
    for (int i = 0; i < op->nin; i++)
        if (axis_of(h, op->in[i]) && axis_of(h, op->in[i]) != own)
            found = op->in[i];
    for (int i = 0; i < op->nout; i++)
        if (axis_of(h, op->out[i]) && axis_of(h, op->out[i]) != own)
            found = op->out[i];
    if (!h->ok || !found)
        return;
    h->ok = false;
    const char *axis = axis_of(h, found)->name;
    nd_error(m->ctx, op->loc, "`%s` has the pipelined axis `%s`, of which a "
             "stage holds its own iterations alone; give it an axis of its "
             "own: `axis other = %s`", found->name, axis, axis);
    nd_note(m->ctx, m->plan.pipe_loc, "the axis is cut in stages here");
}

static void check_inner(nd_op *op, void *user)
{
    holders *h = user;
    nd_module *m = h->pp->m;
    if (!h->ok || op->kind != OP_REPEAT || !op->block->parent ||
        !nd_is_piped(m, op->axes[0]))
        return;
    h->ok = false;
    nd_error(m->ctx, op->loc, "a repeat over the pipelined axis `%s` inside "
             "another repeat", op->axes[0]->name);
    nd_note(m->ctx, m->plan.pipe_loc, "the axis is cut in stages here");
}

static bool check_holders(pipe *pp)
{
    holders h = {pp, true};
    if (pp->p > 1) {
        nd_walk(pp->m->step, check_inner, &h);
        nd_walk(pp->m->step, check_holder, &h);
    }
    return h.ok;
}

/* ---- values that only some stages have ----------------------------------- */

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
        if (c.uses == 1 && d->phase == r->phase && !pipe_on_demand(d))
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

/* A loss that the repeat carries is final on the last stage alone: a copy
 * there takes its place. */
static void own_loss(pipe *pp)
{
    nd_module *m = pp->m;
    const nd_op *r = m->loss ? m->loss->def : NULL;
    if (!r || !pipe_is_piped(pp, r))
        return;
    nd_builder at = {.m = m, .block = m->step, .phase = PH_FWD,
                     .loc = r->loc, .path = r->path,
                     .hint = m->loss->name};
    while (m->step->ops.v[at.at++] != r)
        ;
    nd_type like = m->loss->type;
    m->loss = nd_op_new(&at, OP_BROADCAST, 1, &m->loss, 1, &like)->out[0];
}

static void own_values(pipe *pp)
{
    nd_block *b = pp->m->step;
    own_loss(pp);
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        if (!pipe_is_piped(pp, op))
            continue;
        nd_mark_free(pp->m);
        own_operands(pp, op);
        while (b->ops.v[i] != op)
            i++;
    }
}

static int stage_count(const nd_plan *p, int devices)
{
    return devices > 1 ? devices * sched_per_rank(p->schedule, p->per_device)
                       : 1;
}

nd_program *nd_program_new(nd_module *m, int devices)
{
    nd_arena *a = m->ctx->arena;
    nd_program *p = ND_NEW(a, nd_program);
    sched_kind kind = m->plan.schedule;
    sched_where where = kind < SCHED_NKINDS ? sched_kinds[kind].where
                        : m->plan.searched  ? m->plan.searched->where
                                            : SCHED_LOOP;
    p->ndevices = devices;
    p->nstages = stage_count(&m->plan, devices);
    p->nmicro = m->plan.microbatches;
    p->stage = ND_NEWN(a, nd_stage, p->nstages);
    for (int s = 0; s < p->nstages; s++) {
        p->stage[s].device = sched_rank_of(where, devices, s);
        p->stage[s].iters = ND_NEWN(a, nd_iters, m->plan.piped.n + 1);
    }
    return p;
}

/* A file says how many stages a device has, unless the plan does; and which. If
 * it does not go with the plan at all, pass schedule tells. */
static sched *read_file(nd_module *m, int devices)
{
    sched *s = nd_schedule_new(m, devices);
    if (s && !m->plan.per_device && s->stages > devices)
        m->plan.per_device = s->stages / devices;
    return s;
}

static void place_as(nd_program *p, sched *s)
{
    p->sched = s;
    for (int i = 0; i < p->nstages && s->stages == p->nstages &&
                    s->ranks == p->ndevices; i++)
        p->stage[i].device = s->rank_of[i];
}

bool pass_pipeline(nd_module *m, const nd_options *o)
{
    pipe pp = {.m = m, .a = m->ctx->arena};
    pp.devices = m->mesh.pipe >= 0 ? m->mesh.size[m->mesh.pipe] : 1;
    sched *given = NULL;
    if (m->plan.schedule == SCHED_KIND_AUTO && !m->plan.searched &&
        pp.devices > 1 && !nd_choose_schedule(m, o))
        return false;
    if (m->plan.schedule == SCHED_KIND_FILE && pp.devices > 1 &&
        !(given = read_file(m, pp.devices)))
        return false;
    pp.p = stage_count(&m->plan, pp.devices);
    if (!check_plan(&pp) || !find_repeats(&pp) || !check_stages(&pp) ||
        !check_holders(&pp))
        return false;
    if (pp.p > 1)
        own_values(&pp);
    pipe_chain(&pp);
    pipe_weigh(&pp);
    m->program = nd_program_new(m, pp.devices);
    if (given)
        place_as(m->program, given);
    if (!pipe_cut(&pp))
        return false;
    pipe_use_at_hand(&pp);
    if (nd_wants_split(m) && !nd_split_backward(&pp))
        return false;
    pipe_fill(&pp);
    nd_stage_costs(m);
    if (o && o->times && !nd_stage_times(m, o->times))
        return false;
    return nd_stages_check(m);
}
