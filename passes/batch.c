/* batch.c - what is per row along the sample axis, what sums over rows, what
 * depends on inputs alone.
 *
 * 1. Reductions over the sample axis that depend on inputs alone (a count of
 *    unmasked targets) are hoisted: they run once per step on the whole global
 *    batch, phase PRE, so a microbatch is divided by the global count.
 *
 *      %n = reduce sum [batch, seq] %mask    ->   pre %n = ...
 *
 * 2. With more than one microbatch, the loss must be a sum over rows scaled by
 *    something that is known beforehand. Each value is classed
 *
 *      KNOWN  has no rows: parameters, constants, hoisted values
 *      ROWS   has the sample axis, row i depends on row i alone
 *      SUM    a sum over rows: only linear ops may follow
 *      ZERO   carried into a repeat from 0, or made from that by linear ops:
 *             becomes what is added to it
 *
 *    and what fits none of them is refused, naming the value.
 */
#include "passes.h"

typedef enum { KNOWN, ROWS, SUM, ZERO } row_class;

/* Rows that travel are rows of the axes that they come from. */
static bool has(const nd_value *v, const nd_axis *a)
{
    const nd_axis *r = nd_routed_axis(&v->type);
    return nd_axis_at(&v->type, a) >= 0 ||
           (r && nd_axis_at(&r->route->rows, a) >= 0);
}

/* ---- 1. hoisting --------------------------------------------------------- */

static bool reduces_over(const nd_op *op, const nd_axis *a)
{
    return nd_has_trait(op, 'm') && nd_has_axis(op, a);
}

/* A PRE twin of a free value; marks (index + 1) remember the twins. */
typedef struct twin {
    nd_value *v;
    bool hoisted;                    /* takes the place of the value */
} twin;

typedef struct hoist {
    nd_builder b;
    ND_VEC(twin) twin;
} hoist;

static nd_value *twin_of(hoist *h, nd_value *v)
{
    nd_arena *a = h->b.m->ctx->arena;
    if (v->def->kind == OP_INPUT || v->def->phase == PH_PRE)
        return v;
    if (v->mark)
        return h->twin.v[v->mark - 1].v;
    nd_value **in = ND_NEWN(a, nd_value *, v->def->nin);
    for (int i = 0; i < v->def->nin; i++)
        in[i] = twin_of(h, v->def->in[i]);
    nd_value *t = nd_clone(&h->b, v->def, in)->out[v->index];
    ND_PUSH(a, &h->twin, ((twin){.v = t}));
    v->mark = h->twin.n;
    return t;
}

/* Free, without rows, and made from something already hoisted. */
static bool follows_hoisted(const nd_op *op, const nd_axis *sample)
{
    bool hoisted = false;
    if (op->nout != 1 || has(op->out[0], sample))
        return false;
    for (int i = 0; i < op->nin; i++) {
        if (has(op->in[i], sample))
            return false;
        hoisted |= op->in[i]->def->phase == PH_PRE &&
                   op->in[i]->def->kind != OP_INPUT;
    }
    return hoisted && nd_is_free(op->out[0]);
}

static nd_value *hoisted(const hoist *h, nd_value *v)
{
    return v->mark && h->twin.v[v->mark - 1].hoisted
               ? h->twin.v[v->mark - 1].v
               : v;
}

static void read_hoisted(nd_op *op, void *user)
{
    for (int i = 0; i < op->nin; i++)
        op->in[i] = hoisted(user, op->in[i]);
    for (int i = 0; op->body && i < op->body->yields.n; i++)
        op->body->yields.v[i] = hoisted(user, op->body->yields.v[i]);
}

static void hoist_globals(nd_module *m)
{
    hoist h = {.b = {.m = m, .block = m->step, .phase = PH_PRE}};
    nd_clear_marks(m);
    for (int i = 0; i < m->step->ops.n; i++) {
        nd_op *op = m->step->ops.v[i];
        read_hoisted(op, &h);
        if (op->kind == OP_INPUT)
            op->phase = PH_PRE;
        if (op->phase == PH_PRE || op->nout != 1)
            continue;
        /* A backward sum over rows is a gradient: each microbatch owns its
         * part of it, and hoisting would count the whole once for each. */
        bool root = op->phase == PH_FWD && reduces_over(op, m->sample) &&
                    nd_is_free(op->out[0]);
        if (!root && !follows_hoisted(op, m->sample))
            continue;
        h.b.at = i;
        h.b.loc = op->loc;
        h.b.path = op->path;
        twin_of(&h, op->out[0]);
        h.twin.v[op->out[0]->mark - 1].hoisted = true;
        i = h.b.at;
    }
    nd_walk(m->step, read_hoisted, &h);
    if (m->loss)
        m->loss = hoisted(&h, m->loss);
    nd_dce(m);
}

/* ---- 2. classes ---------------------------------------------------------- */

static void set_class(nd_value *v, row_class c)
{
    v->mark = c;
}

static row_class class_of(const nd_value *v)
{
    return (row_class)v->mark;
}

static bool refuse(nd_module *m, const nd_op *op, const nd_value *v,
                   const char *why)
{
    nd_error(m->ctx, op->loc,
             "microbatches = %d would change the result: %s",
             m->plan.microbatches, why);
    if (v && v->def)
        nd_note(m->ctx, v->def->loc, "`%s` is made here", v->name);
    nd_note(m->ctx, m->plan.micro_loc,
            "the batch is cut in time here; use microbatches = 1, or make the "
            "loss a sum over rows of `%s`", m->sample->name);
    return false;
}

static bool sum_or_zero(const nd_value *v)
{
    return class_of(v) == SUM || class_of(v) == ZERO || nd_is_const(v, 0);
}

static bool linear_in_sums(const nd_op *op)
{
    int sums = 0, known = 0, zero = 0;
    for (int i = 0; i < op->nin; i++) {
        zero += class_of(op->in[i]) == ZERO;
        sums += class_of(op->in[i]) == SUM;
        known += class_of(op->in[i]) == KNOWN;
    }
    if (nd_is_linear(op))            /* a gather: in the table */
        return op->nin == 1 || class_of(op->in[1]) != SUM;
    switch (op->kind) {
    case OP_CONTRACT:
        return sums == 1 && known + zero == 1;
    case OP_GROUPED:
        return sums == 1 && known + zero == 2 && class_of(op->in[2]) != SUM;
    case OP_MAP:
        if (op->sub == EW_ADD || op->sub == EW_SUB)
            return sums + zero == 2;
        if (op->sub == EW_MUL)
            return sums == 1 && known + zero == 1;
        if (op->sub == EW_DIV)
            return class_of(op->in[0]) == SUM && known + zero == 1;
        if (op->sub == EW_WHERE)
            return class_of(op->in[0]) == KNOWN && sum_or_zero(op->in[1]) &&
                   sum_or_zero(op->in[2]);
        return op->sub == EW_NEG;
    default:
        return false;
    }
}

/* Is the result 0 where its operands are? */
static bool stays_zero(const nd_op *op)
{
    bool zero[3] = {false};
    for (int i = 0; i < op->nin && i < 3; i++)
        zero[i] = class_of(op->in[i]) == ZERO;
    if (nd_is_linear(op) || op->kind == OP_CAST)
        return zero[0];
    switch (op->kind) {
    case OP_CONTRACT:
    case OP_GROUPED:
        return zero[0] || zero[1];
    case OP_MAP:
        if (op->sub == EW_ADD || op->sub == EW_SUB)
            return zero[0] && zero[1];
        if (op->sub == EW_MUL)
            return zero[0] || zero[1];
        return zero[0] && (op->sub == EW_DIV || op->sub == EW_NEG);
    default:
        return false;
    }
}

static bool classify_block(nd_module *m, nd_block *b);

static bool classify_repeat(nd_module *m, nd_op *op)
{
    nd_block *body = op->body;
    for (int i = 0; i < op->nin; i++)
        set_class(body->args.v[i],
                  i < op->ncarry && nd_is_const(op->in[i], 0)
                      ? ZERO
                      : class_of(op->in[i]));
    /* A carried zero may turn into a sum over rows, e.g. a balance loss; and
     * then what is carried from it does: until nothing changes. */
    for (bool changed = true; changed;) {
        if (!classify_block(m, body))
            return false;
        changed = false;
        for (int i = 0; i < op->ncarry; i++) {
            nd_value *arg = body->args.v[i], *next = body->yields.v[i];
            if (class_of(next) == class_of(arg))
                continue;
            if (class_of(arg) != ZERO && class_of(next) != ZERO)
                return refuse(m, op, next,
                              "a carried value mixes sums over rows with "
                              "values that are not");
            changed |= class_of(arg) == ZERO;
            if (class_of(arg) == ZERO)
                set_class(arg, class_of(next));
        }
    }
    for (int i = 0; i < op->nout; i++)
        set_class(op->out[i], class_of(i < op->ncarry ? body->args.v[i]
                                                      : body->yields.v[i]));
    return true;
}

/* What stands beside a sum over rows would count once per microbatch. */
static bool refuse_sum(nd_module *m, const nd_op *op, const nd_value *sum)
{
    bool term = op->kind == OP_MAP && (op->sub == EW_ADD || op->sub == EW_SUB);
    for (int i = 0; i < op->nin && term; i++)
        term = op->in[i] == sum || class_of(op->in[i]) == KNOWN;
    return refuse(m, op, sum,
                  term ? nd_fmt(m->ctx->arena,
                                "`%s` sums over rows of the batch and meets a "
                                "term without rows; put the term inside the "
                                "sum or mean over `%s`",
                                sum->name, m->sample->name)
                       : nd_fmt(m->ctx->arena,
                                "`%s` sums over rows of the batch and is then "
                                "used by `%s`, which is not linear in it",
                                sum->name, nd_op_name(op)));
}

static bool classify_op(nd_module *m, nd_op *op)
{
    if (op->kind == OP_REPEAT)
        return classify_repeat(m, op);
    nd_value *sum = NULL;
    bool rows = false;
    for (int i = 0; i < op->nin; i++) {
        if (class_of(op->in[i]) == SUM)
            sum = op->in[i];
        rows |= has(op->in[i], m->sample);
    }
    if (op->nout == 0)
        return true;
    nd_value *out = op->out[0];
    if (sum) {
        set_class(out, SUM);
        if (rows || !linear_in_sums(op))
            return refuse_sum(m, op, sum);
        return true;
    }
    if (stays_zero(op)) {
        set_class(out, ZERO);
        return true;
    }
    set_class(out, has(out, m->sample) ? ROWS : KNOWN);
    if (!reduces_over(op, m->sample))
        return true;
    set_class(out, SUM);
    if (op->kind == OP_CONTRACT ||
        (op->kind == OP_REDUCE && op->sub == RED_SUM))
        return true;
    return refuse(m, op, out,
                  nd_fmt(m->ctx->arena, "`%s` along `%s` sees all rows",
                         nd_ops[op->kind].name, m->sample->name));
}

static bool classify_block(nd_module *m, nd_block *b)
{
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        if (op->phase == PH_FWD && !classify_op(m, op))
            return false;
        if (op->phase == PH_PRE && op->nout)
            set_class(op->out[0], has(op->out[0], m->sample) ? ROWS : KNOWN);
    }
    return true;
}

/* What stays zero is written as one: it may meet sums over rows, which are not
 * whole before the step's end, and only a constant can be taken for a part of
 * such a sum. */
static void write_zeros(nd_op *op, void *user)
{
    nd_builder b = {.m = user, .block = op->block, .phase = PH_FWD,
                    .loc = op->loc, .path = op->path};
    for (int i = 0; op->phase == PH_FWD && i < op->nout; i++) {
        nd_value *v = op->out[i];
        if (class_of(v) != ZERO || nd_is_const(v, 0) ||
            nd_is_narrow(v->type.dtype))
            continue;
        for (b.at = 1; b.block->ops.v[b.at - 1] != op;)
            b.at++;
        nd_value *zero = nd_const(&b, v->type.dtype, 0);
        if (v->type.rank)
            zero = nd_broadcast(&b, zero, &v->type);
        nd_replace_uses(user, v, zero);
    }
}

bool pass_batch(nd_module *m, const nd_options *o)
{
    (void)o;
    if (m->sample)
        hoist_globals(m);
    if (!m->sample || m->plan.microbatches == 1)
        return true;
    if (!classify_block(m, m->step))
        return false;
    nd_walk(m->step, write_zeros, m);
    if (m->loss && class_of(m->loss) != SUM)
        return refuse(m, m->loss->def, m->loss,
                      "the loss is not a sum over rows of the batch");
    return true;
}
