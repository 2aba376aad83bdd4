/* context_zigzag.c - the same order of positions for everyone, in balance.
 *
 * Under a causal mask the rank with the last queries has most to do. So an axis
 * is cut in 2 n chunks, and rank c gets chunks c and 2 n - 1 - c:
 *
 *   position   0 1 | 2 3 | 4 5 | 6 7        n = 2, two of each chunk
 *   holds      0 1   6 7   2 3   4 5
 *
 * The axis keeps its name and its cut; what lies at a position changes. What
 * works position by position does not notice. An index becomes the index of
 * what lies there; inputs, parameters and random numbers are gathered into the
 * new order; what runs along the axis gets the old order and its result is
 * brought into the new one again.
 */
#include "context.h"

typedef struct order {
    nd_module *m;
    const nd_axis *root;
    int n;
    const nd_table *rows;
    ND_VEC(nd_op *) ops;             /* of the module as it was */
    const char *why;                 /* no such order is possible: why */
} order;

/* Is `a` the axis or one that follows it? */
static bool moves(const order *o, const nd_axis *a)
{
    return a->size == o->root->size && cx_root(o->m, a) == o->root;
}

/* ---- the two permutations ------------------------------------------------ */

static nd_value *num(nd_builder *b, int64_t x)
{
    return nd_const(b, ND_I32, (double)x);
}

static nd_value *map2(nd_builder *b, nd_ew e, nd_value *x, nd_value *y)
{
    return nd_map(b, e, x, y, NULL);
}

/* Position -> index of what lies there, or with `back` index -> position. */
static nd_value *lookup(const order *o, nd_builder *b, nd_axis *a, bool back)
{
    int64_t size = a->size / (2 * o->n), last = 2 * o->n - 1;
    nd_value *at = nd_positions(b, a);
    nd_value *j = map2(b, EW_IDIV, at, num(b, size)), *chunk;
    if (back) {
        nd_value *low = map2(b, EW_LT, j, num(b, o->n));
        nd_value *up = map2(b, EW_MUL, j, num(b, 2));
        chunk = nd_map(b, EW_WHERE, low, up,
                       map2(b, EW_SUB, num(b, 2 * last + 1), up));
    } else {
        nd_value *even = map2(b, EW_EQ, map2(b, EW_MOD, j, num(b, 2)),
                              num(b, 0));
        nd_value *half = map2(b, EW_IDIV, j, num(b, 2));
        chunk = nd_map(b, EW_WHERE, even, half,
                       map2(b, EW_SUB, num(b, last), half));
    }
    return map2(b, EW_ADD, map2(b, EW_MUL, chunk, num(b, size)),
                map2(b, EW_MOD, at, num(b, size)));
}

/* v with axis a in the new order or, with `back`, in the old one. */
static nd_value *permuted(const order *o, nd_builder *b, nd_value *v,
                          nd_axis *a, bool back)
{
    const char *name = v->name;
    nd_axis *twin = nd_axis_twin(o->m, a);
    v = nd_gather(b, v, a, lookup(o, b, twin, back));
    b->hint = name;
    return nd_rename(b, v, twin, a);
}

/* ---- places of the graph ------------------------------------------------- */

static nd_builder beside(const order *o, nd_op *op, bool after)
{
    nd_builder b = {.m = o->m, .block = op->block, .phase = op->phase,
                    .loc = op->loc, .path = op->path};
    while (op->block->ops.v[b.at] != op)
        b.at++;
    b.at += after;
    return b;
}

static void old_order(const order *o, nd_op *op, int i, nd_axis *a)
{
    nd_builder b = beside(o, op, false);
    op->in[i] = permuted(o, &b, op->in[i], a, true);
}

/* Readers get the result with these of its axes in the new order. */
static void new_order(const order *o, nd_op *op, nd_axis *const *axes, int n)
{
    nd_builder b = beside(o, op, true);
    nd_value *v = op->out[0], *w = v;
    nd_op *first = NULL;
    for (int i = 0; i < n; i++) {
        if (!moves(o, axes[i]))
            continue;
        w = permuted(o, &b, w, axes[i], false);
        first = first ? first : w->def->in[0]->def;
    }
    if (!first)
        return;
    nd_replace_uses(o->m, v, w);
    first->in[0] = v;
}

static void old_orders(const order *o, nd_op *op, nd_axis *const *axes, int n)
{
    for (int i = 0; i < n; i++)
        if (moves(o, axes[i]))
            old_order(o, op, 0, axes[i]);
}

static void other_index(const order *o, nd_op *op)
{
    nd_builder b = beside(o, op, true);
    nd_replace_uses(o->m, op->out[0], lookup(o, &b, op->axes[0], false));
}

typedef struct readers {
    const nd_value *v;
    bool others;
} readers;

static void look(nd_op *op, void *user)
{
    readers *r = user;
    for (int i = 0; i < op->nin; i++)
        r->others |= op->in[i] == r->v && op->kind != OP_STOP_GRAD;
    for (int i = 0; op->body && i < op->body->yields.n; i++)
        r->others |= op->body->yields.v[i] == r->v;
}

/* An extreme is the same in any order; but its gradient goes to the first of
 * equals. Has it none? */
static bool is_constant(const order *o, const nd_op *op)
{
    readers r = {.v = op->out[0]};
    const nd_op *from = op->in[0]->def;
    if (!nd_is_float(r.v->type.dtype) || nd_is_free(r.v) ||
        (from && from->kind == OP_STOP_GRAD) ||
        nd_table_get(o->rows, op->out[0]))
        return true;
    nd_walk(o->m->step, look, &r);
    return !r.others;
}

/* ---- the module ---------------------------------------------------------- */

static void reorder(const order *o, nd_op *op)
{
    const nd_type *t = op->nout ? &op->out[0]->type : NULL;
    nd_type in;
    switch (op->kind) {
    case OP_INDEX:
        if (t->rank && moves(o, op->axes[0]))
            other_index(o, op);
        break;
    case OP_INPUT:
    case OP_PARAM:
    case OP_RANDOM:
    case OP_NORMAL:
        new_order(o, op, t->axis, t->rank);
        break;
    case OP_OUTPUT:
        in = op->in[0]->type;
        old_orders(o, op, in.axis, in.rank);
        break;
    case OP_REDUCE:
        if (op->sub != RED_SUM && !is_constant(o, op))
            old_orders(o, op, op->axes, op->naxes);
        break;
    case OP_GATHER:
        old_orders(o, op, op->axes, 1);
        break;
    case OP_CUMSUM:
    case OP_ROLL:
        old_orders(o, op, op->axes, 1);
        new_order(o, op, op->axes, 1);
        break;
    case OP_RENAME:
        if (moves(o, op->axes[0]) == moves(o, op->to[0]))
            break;
        /* fall through */
    case OP_SPLIT:
    case OP_FLATTEN:
        old_orders(o, op, op->axes, op->naxes);
        new_order(o, op, op->to, op->nto);
        break;
    default:
        break;
    }
}

static void collect(nd_op *op, void *user)
{
    order *o = user;
    ND_PUSH(o->m->ctx->arena, &o->ops, op);
    if (op->kind == OP_REPEAT && moves(o, op->axes[0]))
        o->why = nd_fmt(o->m->ctx->arena, "`%s` is repeated over",
                        op->axes[0]->name);
}

const char *cx_zigzag(nd_module *m, const nd_axis *root, int n,
                      const nd_table *rows)
{
    order o = {.m = m, .root = root, .n = n, .rows = rows};
    if (root->size % (2 * n))
        return nd_fmt(m->ctx->arena, "%d chunks do not divide the %lld of `%s`",
                      2 * n, (long long)root->size, root->name);
    nd_walk(m->step, collect, &o);
    if (!o.why && m->sample && moves(&o, m->sample))
        o.why = nd_fmt(m->ctx->arena, "`%s` counts samples", m->sample->name);
    for (int i = 0; i < o.ops.n && !o.why; i++)
        reorder(&o, o.ops.v[i]);
    return o.why;
}
