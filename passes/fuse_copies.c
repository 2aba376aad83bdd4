/* fuse_copies.c - copies where an op needs memory and its operand has none.
 *
 * A product of a mask, a message that is a slice, a value that a repeat yields
 * twice: a copy goes in front, a stop_gradient with sub = 1. sub = 2 is an
 * output, which the runtime reads with the strides of the largest rank. What a
 * collective moves becomes float.
 */
#include "passes.h"

#include <string.h>

static bool is_packed(nd_code *c, const nd_value *v)
{
    nd_ref r;
    return nd_ref_of(c, v, &r) && nd_is_packed(c, &r);
}

/* Do strides by own lengths and by the largest lengths agree? */
static bool even_inside(nd_code *c, const nd_value *v)
{
    for (int i = 1; i < v->type.rank; i++)
        if (c->exts.v[nd_ext_of(c, &v->type, i)].fixed < 0)
            return false;
    return true;
}

/* ---- putting ops in place ----------------------------------------------- */

typedef ND_VEC(nd_op *) op_list;

/* New ops wait beside the op that they go with, and new values for readers to
 * take them, until `settle` rewrites every list and operand once. */
typedef struct copier {
    nd_code *c;
    bool any;
    nd_table before, after;          /* op (or block: its end) -> op_list */
    nd_table instead;                /* value -> what its readers take */
} copier;

static copier copier_new(nd_code *c)
{
    nd_table t = {.arena = c->a};
    return (copier){.c = c, .before = t, .after = t, .instead = t};
}

static void wait_beside(copier *k, const void *beside, nd_op *op, bool after)
{
    nd_table *t = after ? &k->after : &k->before;
    op_list *l = nd_table_get(t, beside);
    if (!l)
        nd_table_put(t, beside, l = ND_NEW(k->c->a, op_list));
    ND_PUSH(k->c->a, l, op);
    k->any = true;
}

static void put_list(copier *k, op_list *out, nd_op *const *v, int n)
{
    for (int i = 0; i < n; i++) {
        op_list *x = nd_table_get(&k->before, v[i]);
        if (x)
            put_list(k, out, x->v, x->n);
        ND_PUSH(k->c->a, out, v[i]);
        x = nd_table_get(&k->after, v[i]);
        for (int j = x ? x->n - 1 : -1; j >= 0; j--)
            put_list(k, out, &x->v[j], 1);       /* the last one is nearest */
    }
}

static void settle_list(copier *k, nd_op ***v, int *n, int *cap)
{
    op_list out = {0};
    put_list(k, &out, *v, *n);
    *v = out.v;
    *n = out.n;
    *cap = out.cap;
}

/* What `reader` takes in the place of v; the op that makes it takes v. */
static nd_value *instead_of(const copier *k, nd_value *v, const nd_op *reader)
{
    nd_value *w;
    while ((w = nd_table_get(&k->instead, v)) && w->def != reader)
        v = w;
    return v;
}

static void read_instead(copier *k, nd_op *op)
{
    for (int i = 0; i < op->nin; i++)
        op->in[i] = instead_of(k, op->in[i], op);
    for (int i = 0; op->body && i < op->body->yields.n; i++)
        op->body->yields.v[i] = instead_of(k, op->body->yields.v[i], NULL);
}

static void settle_block(copier *k, nd_block *b)
{
    settle_list(k, &b->ops.v, &b->ops.n, &b->ops.cap);
    op_list *end = nd_table_get(&k->before, b);
    for (int i = 0; end && i < end->n; i++)
        ND_PUSH(k->c->a, &b->ops, end->v[i]);
    for (int i = 0; i < b->ops.n; i++) {
        read_instead(k, b->ops.v[i]);
        if (b->ops.v[i]->body)
            settle_block(k, b->ops.v[i]->body);
    }
}

static void settle(copier *k)
{
    nd_module *m = k->c->m;
    if (!k->any)
        return;
    settle_block(k, m->step);
    for (int s = 0; s < m->program->nstages; s++) {
        nd_stage *t = &m->program->stage[s];
        settle_list(k, &t->pre.v, &t->pre.n, &t->pre.cap);
        settle_list(k, &t->fwd.v, &t->fwd.n, &t->fwd.cap);
        settle_list(k, &t->bwd.v, &t->bwd.n, &t->bwd.cap);
        settle_list(k, &t->wgt.v, &t->wgt.n, &t->wgt.cap);
    }
    if (m->loss)
        m->loss = instead_of(k, m->loss, NULL);
}

/* ---- making them -------------------------------------------------------- */

/* op(v) beside an op of the block (NULL: at the block's end). */
static nd_value *unary_at(copier *k, nd_opcode kind, nd_value *v, nd_type t,
                          nd_block *b, nd_op *beside, bool after)
{
    const nd_op *like = beside ? beside : b->parent;
    nd_block aside = {0};
    nd_builder bld = {.m = k->c->m, .block = &aside, .at = -1,
                      .phase = like->phase, .loc = like->loc,
                      .path = like->path, .hint = v->name};
    nd_op *op = nd_op_new(&bld, kind, 1, &v, 1, &t);
    op->block = b;
    wait_beside(k, beside ? (void *)beside : (void *)b, op, after);
    op->out[0]->mark = v->mark;      /* until everything is numbered again */
    return op->out[0];
}

static nd_value *copy_at(copier *k, nd_value *v, nd_block *b, nd_op *beside,
                         bool after)
{
    nd_value *w = unary_at(k, OP_STOP_GRAD, v, v->type, b, beside, after);
    w->def->sub = 1;
    return w;
}

static void copy_operand(copier *k, nd_op *op, int i)
{
    op->in[i] = copy_at(k, op->in[i], op->block, op, false);
}

/* Does each axis that is flattened step over exactly the next one? */
static bool is_nested(nd_code *c, const nd_op *op)
{
    nd_ref r;
    if (!nd_ref_of(c, op->in[0], &r))
        return false;
    const nd_type *t = &op->in[0]->type;
    for (int i = 0; i + 1 < op->naxes; i++) {
        nd_len in = r.stride[nd_axis_at(t, op->axes[i + 1])];
        nd_len_mul(c, &in, r.ext[nd_axis_at(t, op->axes[i + 1])]);
        if (!nd_len_eq(&in, &r.stride[nd_axis_at(t, op->axes[i])]))
            return false;
    }
    return true;
}

/* The operand's type with the axes that are flattened side by side. */
static nd_type nested_type(const nd_op *op)
{
    const nd_type *x = &op->in[0]->type, *y = &op->out[0]->type;
    nd_type t = *x;
    int n = 0;
    for (int i = 0; i < y->rank; i++) {
        bool flat = y->axis[i] == op->to[0];
        for (int j = 0; j < (flat ? op->naxes : 1); j++) {
            nd_axis *a = flat ? op->axes[j] : y->axis[i];
            t.axis[n] = a;
            t.cut[n++] = x->cut[nd_axis_at(x, a)];
        }
    }
    return t;
}

/* A copy of operand i whose axes are those that `last` does not name, then
 * those. */
static void copy_ordered(copier *k, nd_op *op, int i, int n,
                         nd_axis *const *last)
{
    nd_type t = op->in[i]->type, with = t;
    with.rank = 0;
    for (int j = 0; j < t.rank; j++) {
        bool named = false;
        for (int l = 0; l < n; l++)
            named |= last[l] == t.axis[j];
        if (!named) {
            with.axis[with.rank] = t.axis[j];
            with.cut[with.rank++] = t.cut[j];
        }
    }
    for (int l = 0; l < n; l++) {
        with.axis[with.rank] = last[l];
        with.cut[with.rank++] = t.cut[nd_axis_at(&t, last[l])];
    }
    copy_operand(k, op, i);
    op->in[i]->type = with;
}

/* x lies so that what each row is multiplied with is one dimension; the weight,
 * so that there are three. */
static void copies_for_groups(copier *k, nd_op *op)
{
    nd_code *c = k->c;
    nd_axis *last[2 * ND_MAX_RANK];
    nd_ref r;
    int n = nd_group_axes(op, true, last);
    if (!nd_ref_of(c, op->in[0], &r) || !nd_group_nests(c, op, true, &r))
        copy_ordered(k, op, 0, n, last);
    bool sum = op->kind == OP_GROUPED_SUM, there = nd_ref_of(c, op->in[1], &r);
    n = sum ? 0 : n;
    n += nd_group_axes(op, false, last + n);
    if (!there || !(sum ? nd_group_nests(c, op, false, &r)
                        : nd_weight_nests(c, op, &r)))
        copy_ordered(k, op, 1, n, last);
    if (nd_class_of(c, op->in[2]) == V_INLINE)
        copy_operand(k, op, 2);
}

/* What is sent of a row lies side by side; what comes back, row after row. */
static void copies_for_travel(copier *k, nd_op *op)
{
    nd_code *c = k->c;
    nd_axis *row[ND_MAX_RANK];
    nd_ref r;
    int n = nd_travel_axes(op, row);
    if (!nd_ref_of(c, op->in[0], &r) || !nd_travel_nests(c, op, &r))
        copy_ordered(k, op, 0, n, row);
    if (nd_class_of(c, op->in[1]) == V_INLINE)
        copy_operand(k, op, 1);
}

static void copies_for_repeat(copier *k, nd_op *op)
{
    nd_code *c = k->c;
    for (int i = 0; i < op->nin; i++)
        if (i < op->ncarry ? !is_packed(c, op->in[i])
                           : nd_class_of(c, op->in[i]) == V_INLINE)
            copy_operand(k, op, i);
    nd_block *b = op->body;
    for (int i = 0; i < b->yields.n; i++) {
        nd_value *y = b->yields.v[i], *made = nd_behind(c, y);
        bool first = true;
        for (int j = 0; j < i; j++)
            first &= nd_behind(c, b->yields.v[j]) != made;
        bool kept = i >= op->ncarry && !y->def && y->owner == b &&
                    y->index < op->ncarry &&
                    nd_kept_carry(op, y->index) == op->out[i];
        bool here = nd_is_direct(c, made) && nd_block_of(made) == b;
        if (!kept && !(first && here))
            b->yields.v[i] = copy_at(k, y, b, NULL, false);
    }
}

/* The runtime reduces floats and integers, gathers elements of 4 bytes, and
 * moves any bytes from all to all or around; an all_reduce names no axis. */
static bool moves_as_is(nd_code *c, const nd_op *op)
{
    const nd_type *t = &op->in[0]->type;
    nd_len inner = {.k = (int64_t)nd_dtype_size(t->dtype)};
    if (t->dtype == ND_F32 || op->kind == OP_ALL_TO_ALL ||
        op->kind == OP_SHIFT_RING)
        return true;
    if (op->kind == OP_ALL_REDUCE || op->kind == OP_REDUCE_SCATTER)
        return t->dtype == ND_I32 || t->dtype == ND_I64;
    for (int i = nd_axis_at(t, op->axes[0]) + 1; i < t->rank; i++)
        nd_len_mul(c, &inner, nd_ext_of(c, t, i));
    return inner.k % 4 == 0;
}

/* Anything else goes as floats: conditions and narrow values exactly. */
static void move_as_float(copier *k, nd_op *op)
{
    nd_value *x = op->in[0], *y = op->out[0];
    nd_type as = x->type, back = y->type;
    as.dtype = ND_F32;
    op->in[0] = unary_at(k, OP_CAST, x, as, op->block, op, false);
    nd_value *w = unary_at(k, OP_CAST, y, back, op->block, op, true);
    nd_table_put(&k->instead, y, w);
    y->type.dtype = ND_F32;
}

static void copies_for(copier *k, nd_op *op)
{
    nd_code *c = k->c;
    read_instead(k, op);
    if (nd_is_same(c, op))
        return;
    if (op->kind == OP_DISPATCH || op->kind == OP_COMBINE) {
        copies_for_travel(k, op);
        return;
    }
    if (nd_has_trait(op, 'k')) {
        if (!moves_as_is(c, op))
            move_as_float(k, op);
        else if (!is_packed(c, op->in[0]))
            copy_operand(k, op, 0);
        return;
    }
    switch (op->kind) {
    case OP_CONTRACT:
        for (int i = 0; i < 2; i++)
            if (nd_class_of(c, op->in[i]) == V_INLINE)
                copy_operand(k, op, i);
        break;
    case OP_GROUPED:
    case OP_GROUPED_SUM:
        copies_for_groups(k, op);
        break;
    case OP_GATHER:
    case OP_CUMSUM:
    case OP_ROLL:
    case OP_SPLIT:
        if (nd_class_of(c, op->in[0]) == V_INLINE)
            copy_operand(k, op, 0);
        break;
    case OP_FLATTEN:
        if (!is_nested(c, op)) {
            copy_operand(k, op, 0);
            op->in[0]->type = nested_type(op);
        }
        break;
    case OP_OUTPUT:
        if (!is_packed(c, op->in[0]) || !even_inside(c, op->in[0])) {
            copy_operand(k, op, 0);
            op->in[0]->def->sub = 2;
        }
        break;
    case OP_REPEAT:
        copies_for_repeat(k, op);
        break;
    default:
        break;
    }
}

/* The copy goes beside the op that makes v, or first in the step. */
static nd_value *copy_crossing(copier *k, nd_value *v, bool everywhere)
{
    nd_module *m = k->c->m;
    nd_value *w = copy_at(k, v, m->step, v->def, true);
    if (everywhere)
        nd_table_put(&k->instead, v, w);
    const nd_program *p = m->program;
    for (int s = 0; s < p->nstages; s++) {
        nd_stage *st = &p->stage[s];
        for (int i = 0; i < st->send_fwd.n; i++) {
            nd_cross *x = &st->send_fwd.v[i];
            x->from = x->from == v ? w : x->from;
            x->to = everywhere && x->to == v ? w : x->to;
        }
        for (int i = 0; i < st->send_bwd.n; i++) {
            nd_cross *x = &st->send_bwd.v[i];
            x->from = x->from == v ? w : x->from;
            x->to = everywhere && x->to == v ? w : x->to;
        }
    }
    return w;
}

static void copies_for_cross(copier *k, nd_cross *x)
{
    if (!nd_is_direct(k->c, nd_behind(k->c, x->to)))
        copy_crossing(k, x->to, true);
    if (!nd_is_direct(k->c, nd_behind(k->c, x->from)))
        copy_crossing(k, x->from, false);
}

void nd_insert_copies(nd_code *c)
{
    const nd_program *p = c->m->program;
    copier cross = copier_new(c), inside = copier_new(c);
    for (int s = 0; s < p->nstages; s++) {
        nd_stage *st = &p->stage[s];
        for (int i = 0; i < st->send_fwd.n; i++)
            copies_for_cross(&cross, &st->send_fwd.v[i]);
        for (int i = 0; i < st->send_bwd.n; i++)
            copies_for_cross(&cross, &st->send_bwd.v[i]);
    }
    settle(&cross);
    nd_number(c);
    ND_VEC(nd_block *) todo = {0};
    ND_PUSH(c->a, &todo, c->m->step);
    for (int i = 0; i < todo.n; i++)
        for (int j = 0; j < todo.v[i]->ops.n; j++) {
            nd_op *op = todo.v[i]->ops.v[j];
            copies_for(&inside, op);
            if (op->body)
                ND_PUSH(c->a, &todo, op->body);
        }
    settle(&inside);
}
