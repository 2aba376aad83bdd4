/* stages_check.c - does every stage have what its ops read?
 *
 *   stage 0: %h = repeat layers ... %x   sends out[0] of the repeat
 *   stage 1: receives it as in[0]        %y = contract %h, %w
 *
 * Looks at the finished lists only. Per stage: what an op reads is made above
 * it on this stage, by its phase or an earlier one, or received, or needs
 * nothing. Per crossing: the receiver takes what the sender has, of one type,
 * as the same value or as the operand of the repeat that goes on. What a
 * pipelined repeat carries is final only on the stage that runs the last
 * iterations, and is read there alone or sent from there. Over all stages: the
 * iterations are each run once, what is accumulated or put out is so once.
 */
#include "passes.h"

typedef struct stages {
    nd_module *m;
    nd_arena *a;
    int s;                           /* the stage at hand */
    int losses;                      /* stages that compute the loss */
    nd_table held;                   /* values of the stage's parameters */
    nd_table have;                   /* values that are there, ops that ran */
    nd_table partial;                /* ... but not yet final */
    bool ok;
} stages;

static void complain(stages *st, const nd_op *op, const nd_value *v,
                     const char *what)
{
    if (st->ok)
        nd_error(st->m->ctx, op ? op->loc : st->m->plan.pipe_loc,
                 "stage %d: %%%s %s", st->s, v && v->name ? v->name : "?",
                 what);
    st->ok = false;
}

static bool is_piped(const nd_module *m, const nd_op *op)
{
    return op && op->kind == OP_REPEAT && op->block == m->step &&
           nd_is_piped(m, op->axes[0]);
}

static void read_value(stages *st, const nd_op *reader, nd_value *v)
{
    bool param = v->def && v->def->kind == OP_PARAM;
    if (!nd_table_get(param ? &st->held : &st->have, v))
        complain(st, reader, v,
                 param ? "is a parameter that the stage lacks"
                       : "is read where nothing made it or sent it");
    else if (nd_table_get(&st->partial, v))
        complain(st, reader, v, "is read before the last stage made it final");
}

/* Of the step's values alone: those of a body are nd_verify's matter. */
static void read_all(stages *st, const nd_op *op, const nd_op *reader)
{
    for (int i = 0; i < op->nin; i++)
        if (nd_block_of(op->in[i]) == st->m->step)
            read_value(st, reader, op->in[i]);
    if (!op->body)
        return;
    for (int i = 0; i < op->body->ops.n; i++)
        read_all(st, op->body->ops.v[i], reader);
    for (int i = 0; i < op->body->yields.n; i++)
        if (nd_block_of(op->body->yields.v[i]) == st->m->step)
            read_value(st, reader, op->body->yields.v[i]);
}

/* Does a stage run the iterations of a repeat that come last? */
static bool ends_on(const stages *st, const nd_op *op, int s)
{
    int64_t lo, hi;
    nd_stage_range(st->m, s, op->axes[0], &lo, &hi);
    return hi > lo && (op->reverse ? lo == 0 : hi == op->axes[0]->size);
}

static void make(stages *st, const nd_op *op)
{
    for (int i = 0; i < op->nout; i++) {
        nd_table_put(&st->have, op->out[i], op->out[i]);
        if (is_piped(st->m, op) && i < op->ncarry &&
            !ends_on(st, op, st->s))
            nd_table_put(&st->partial, op->out[i], op->out[i]);
    }
}

static void run(stages *st, nd_op *const *op, int n, nd_phase phase)
{
    for (int i = 0; i < n && st->ok; i++) {
        if (op[i]->phase != phase || op[i]->block != st->m->step)
            complain(st, op[i], op[i]->nout ? op[i]->out[0] : NULL,
                     "is in the list of another phase");
        if (nd_table_get(&st->have, op[i]) ||
            (op[i]->nout && nd_table_get(&st->have, op[i]->out[0])))
            complain(st, op[i], op[i]->nout ? op[i]->out[0] : NULL,
                     "is made twice");
        nd_table_put(&st->have, op[i], op[i]);
        read_all(st, op[i], op[i]);
        make(st, op[i]);
    }
}

/* ---- crossings ----------------------------------------------------------- */

static bool goes_on(const nd_module *m, const nd_cross *x)
{
    const nd_op *r = x->from->def;
    return is_piped(m, r) && x->from->index < r->ncarry &&
           r->in[x->from->index] == x->to;
}

static void send(stages *st, const nd_cross *x, int n, int peer)
{
    if (n && (peer < 0 || peer >= st->m->program->nstages))
        complain(st, NULL, x->from, "is sent where no stage is");
    for (int i = 0; i < n && st->ok; i++) {
        const nd_value *v = x[i].from;
        bool on = goes_on(st->m, &x[i]);
        if (x[i].from != x[i].to && !on)
            complain(st, v->def, v, "is received as another value");
        else if (v->type.dtype != x[i].to->type.dtype ||
                 !nd_same_axes(&v->type, &x[i].to->type) ||
                 !nd_same_cut(&v->type, &x[i].to->type))
            complain(st, v->def, v, "is received as another type");
        else if (on && peer != st->s + (v->def->reverse ? -1 : 1))
            complain(st, v->def, v, "goes on where it came from");
        else if (!nd_table_get(&st->have, v))
            complain(st, v->def, v, "is sent, but is not here");
        else if (!on && nd_table_get(&st->partial, v))
            complain(st, v->def, v, "is sent before it is final");
        for (int k = 0; k < i; k++)
            if (x[k].to == x[i].to)
                complain(st, v->def, v, "is sent twice");
    }
}

static void receive(stages *st, const nd_cross *x, int n)
{
    for (int i = 0; i < n; i++) {
        nd_table_put(&st->have, x[i].to, x[i].to);
        nd_table_put(&st->partial, x[i].to, NULL);
    }
}

static void check_stage(stages *st)
{
    const nd_program *p = st->m->program;
    const nd_stage *me = &p->stage[st->s];
    const nd_stage *up = st->s > 0 ? me - 1 : NULL;
    const nd_stage *down = st->s + 1 < p->nstages ? me + 1 : NULL;
    st->held = st->have = st->partial = (nd_table){.arena = st->a};
    for (int i = 0; i < me->params.n; i++)
        nd_table_put(&st->held, me->params.v[i]->value, st);
    run(st, me->pre.v, me->pre.n, PH_PRE);
    if (up)
        receive(st, up->send_fwd.v, up->send_fwd.n);
    run(st, me->fwd.v, me->fwd.n, PH_FWD);
    send(st, me->send_fwd.v, me->send_fwd.n, st->s + 1);
    if (down)
        receive(st, down->send_bwd.v, down->send_bwd.n);
    for (int i = 0; st->m->loss && i < me->fwd.n; i++)
        st->losses += me->fwd.v[i] == st->m->loss->def;
    run(st, me->bwd.v, me->bwd.n, PH_BWD);
    send(st, me->send_bwd.v, me->send_bwd.n, st->s - 1);
    run(st, me->wgt.v, me->wgt.n, PH_WGT);
}

/* ---- all stages ---------------------------------------------------------- */

/* On how many stages an op runs: numbers, kept as pointers. */
static int times(const nd_table *runs, const nd_op *op)
{
    return (int)(intptr_t)nd_table_get(runs, op);
}

static void count(nd_table *runs, nd_op *const *op, int n)
{
    for (int i = 0; i < n; i++)
        nd_table_put(runs, op[i], (void *)(intptr_t)(times(runs, op[i]) + 1));
}

static bool has_effect(const nd_op *op)
{
    bool found = op->kind == OP_ACCUM || op->kind == OP_OUTPUT;
    for (int i = 0; op->body && !found && i < op->body->ops.n; i++)
        found = has_effect(op->body->ops.v[i]);
    return found;
}

static int stages_of(const stages *st, const nd_op *op)
{
    int n = 0;
    for (int s = 0; s < st->m->program->nstages; s++) {
        int64_t lo, hi;
        nd_stage_range(st->m, s, op->axes[0], &lo, &hi);
        n += hi > lo;
    }
    return n;
}

static void check_effects(stages *st)
{
    const nd_program *p = st->m->program;
    nd_table runs = {.arena = st->a};
    for (int s = 0; s < p->nstages; s++) {
        count(&runs, p->stage[s].pre.v, p->stage[s].pre.n);
        count(&runs, p->stage[s].fwd.v, p->stage[s].fwd.n);
        count(&runs, p->stage[s].bwd.v, p->stage[s].bwd.n);
        count(&runs, p->stage[s].wgt.v, p->stage[s].wgt.n);
    }
    for (int i = 0; i < st->m->step->ops.n; i++) {
        const nd_op *op = st->m->step->ops.v[i];
        int want = is_piped(st->m, op) ? stages_of(st, op) : 1;
        int is = times(&runs, op);
        if (st->ok && has_effect(op) && is != want) {
            nd_error(st->m->ctx, op->loc, "%s runs on %d stages, not on %d",
                     nd_op_name(op), is, want);
            st->ok = false;
        }
    }
}

static void check_ranges(stages *st)
{
    const nd_module *m = st->m;
    for (int i = 0; i < m->plan.piped.n && st->ok; i++) {
        int64_t at = 0, lo, hi;
        for (int s = 0; s < m->program->nstages; s++) {
            nd_stage_range(m, s, m->plan.piped.v[i], &lo, &hi);
            st->ok &= lo == at && hi >= lo;
            at = hi;
        }
        st->ok &= at == m->plan.piped.v[i]->size;
        if (!st->ok)
            nd_error(m->ctx, m->plan.pipe_loc, "the stages do not run each "
                     "iteration of %s once", m->plan.piped.v[i]->name);
    }
}

bool nd_stages_check(nd_module *m)
{
    stages st = {.m = m, .a = nd_arena_new(), .ok = true};
    check_ranges(&st);
    for (st.s = 0; st.ok && st.s < m->program->nstages; st.s++)
        check_stage(&st);
    check_effects(&st);
    if (st.ok && m->loss && st.losses != 1) {
        nd_error(m->ctx, m->plan.pipe_loc, "%d stages compute the loss, not "
                 "one", st.losses);
        st.ok = false;
    }
    nd_arena_free(st.a);
    return st.ok;
}
