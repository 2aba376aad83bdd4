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

static int find_op(nd_op *const *v, int n, const nd_op *op)
{
    for (int i = 0; i < n; i++)
        if (v[i] == op)
            return i;
    return -1;
}

/* Inserts `op` next to `beside` if the list holds that. */
static void insert_beside(nd_code *c, nd_op ***v, int *n, int *cap, nd_op *op,
                          const nd_op *beside, bool after)
{
    int at = find_op(*v, *n, beside);
    if (at < 0)
        return;
    at += after;
    nd_op **longer = ND_NEWN(c->a, nd_op *, *n + 1);
    memcpy(longer, *v, sizeof *longer * (size_t)at);
    longer[at] = op;
    memcpy(longer + at + 1, *v + at, sizeof *longer * (size_t)(*n - at));
    *v = longer;
    *cap = *n += 1;
}

/* The same in every stage's lists. */
static void list_beside(nd_code *c, nd_op *op, const nd_op *beside, bool after)
{
    const nd_program *p = c->m->program;
    for (int s = 0; s < p->nstages; s++) {
        nd_stage *t = &p->stage[s];
        insert_beside(c, &t->pre.v, &t->pre.n, &t->pre.cap, op, beside, after);
        insert_beside(c, &t->fwd.v, &t->fwd.n, &t->fwd.cap, op, beside, after);
        insert_beside(c, &t->bwd.v, &t->bwd.n, &t->bwd.cap, op, beside, after);
    }
}

/* op(v) beside an op of the block (NULL: at the block's end). */
static nd_value *unary_at(nd_code *c, nd_opcode kind, nd_value *v, nd_type t,
                          nd_block *b, nd_op *beside, bool after)
{
    int at = beside ? find_op(b->ops.v, b->ops.n, beside) + after : b->ops.n;
    const nd_op *like = beside ? beside : b->parent;
    nd_builder bld = {.m = c->m, .block = b, .at = at, .phase = like->phase,
                      .loc = like->loc, .path = like->path, .hint = v->name};
    nd_op *op = nd_op_new(&bld, kind, 1, &v, 1, &t);
    if (beside && !b->parent)
        list_beside(c, op, beside, after);
    op->out[0]->mark = v->mark;      /* until everything is numbered again */
    return op->out[0];
}

static nd_value *copy_at(nd_code *c, nd_value *v, nd_block *b, nd_op *beside,
                         bool after)
{
    nd_value *w = unary_at(c, OP_STOP_GRAD, v, v->type, b, beside, after);
    w->def->sub = 1;
    return w;
}

static void copy_operand(nd_code *c, nd_op *op, int i)
{
    op->in[i] = copy_at(c, op->in[i], op->block, op, false);
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

static void copies_for_repeat(nd_code *c, nd_op *op)
{
    for (int i = 0; i < op->nin; i++)
        if (i < op->ncarry ? !is_packed(c, op->in[i])
                           : nd_class_of(c, op->in[i]) == V_INLINE)
            copy_operand(c, op, i);
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
            b->yields.v[i] = copy_at(c, y, b, NULL, false);
    }
}

bool nd_moves_pairs(nd_code *c, const nd_op *op)
{
    const nd_type *t = &op->in[0]->type;
    nd_len inner = {.k = 1};
    if (op->kind != OP_ALL_GATHER || !nd_is_narrow(t->dtype))
        return false;
    for (int i = nd_axis_at(t, op->axes[0]) + 1; i < t->rank; i++)
        nd_len_mul(c, &inner, nd_ext_of(c, t, i));
    return inner.k % 2 == 0;
}

/* The runtime moves floats; what else is moved (positions that were looked up
 * in a cut table, narrow values) goes as floats, exact below 2^24. */
static void move_as_float(nd_code *c, nd_op *op)
{
    nd_value *x = op->in[0], *y = op->out[0];
    nd_type as = x->type, back = y->type;
    as.dtype = ND_F32;
    op->in[0] = unary_at(c, OP_CAST, x, as, op->block, op, false);
    nd_value *w = unary_at(c, OP_CAST, y, back, op->block, op, true);
    nd_replace_uses(c->m, y, w);
    w->def->in[0] = y;
    y->type.dtype = ND_F32;
}

static void copies_for(nd_op *op, void *user)
{
    nd_code *c = user;
    if (nd_is_same(c, op))
        return;
    switch (op->kind) {
    case OP_CONTRACT:
        for (int i = 0; i < 2; i++)
            if (nd_class_of(c, op->in[i]) == V_INLINE)
                copy_operand(c, op, i);
        break;
    case OP_GATHER:
    case OP_CUMSUM:
    case OP_SPLIT:
        if (nd_class_of(c, op->in[0]) == V_INLINE)
            copy_operand(c, op, 0);
        break;
    case OP_FLATTEN:
        if (!is_nested(c, op)) {
            copy_operand(c, op, 0);
            op->in[0]->type = nested_type(op);
        }
        break;
    case OP_ALL_REDUCE:
    case OP_REDUCE_SCATTER:
    case OP_ALL_GATHER:
        if (op->in[0]->type.dtype != ND_F32 && !nd_moves_pairs(c, op))
            move_as_float(c, op);
        else if (!is_packed(c, op->in[0]))
            copy_operand(c, op, 0);
        break;
    case OP_OUTPUT:
        if (!is_packed(c, op->in[0]) || !even_inside(c, op->in[0])) {
            copy_operand(c, op, 0);
            op->in[0]->def->sub = 2;
        }
        break;
    case OP_REPEAT:
        copies_for_repeat(c, op);
        break;
    default:
        break;
    }
}

/* The copy goes beside the op that makes v, or first in the step. */
static nd_value *copy_crossing(nd_code *c, nd_value *v, bool everywhere)
{
    nd_value *w = copy_at(c, v, c->m->step, v->def, true);
    if (everywhere) {
        nd_replace_uses(c->m, v, w);
        w->def->in[0] = v;
    }
    const nd_program *p = c->m->program;
    for (int s = 0; s < p->nstages; s++) {
        nd_stage *st = &p->stage[s];
        for (int k = 0; k < st->send_fwd.n; k++) {
            nd_cross *x = &st->send_fwd.v[k];
            x->from = x->from == v ? w : x->from;
            x->to = everywhere && x->to == v ? w : x->to;
        }
        for (int k = 0; k < st->send_bwd.n; k++) {
            nd_cross *x = &st->send_bwd.v[k];
            x->from = x->from == v ? w : x->from;
            x->to = everywhere && x->to == v ? w : x->to;
        }
    }
    return w;
}

static void copies_for_cross(nd_code *c, nd_cross *x)
{
    if (!nd_is_direct(c, nd_behind(c, x->to)))
        copy_crossing(c, x->to, true);
    if (!nd_is_direct(c, nd_behind(c, x->from)))
        copy_crossing(c, x->from, false);
}

void nd_insert_copies(nd_code *c)
{
    const nd_program *p = c->m->program;
    for (int s = 0; s < p->nstages; s++) {
        nd_stage *st = &p->stage[s];
        for (int k = 0; k < st->send_fwd.n; k++)
            copies_for_cross(c, &st->send_fwd.v[k]);
        for (int k = 0; k < st->send_bwd.n; k++)
            copies_for_cross(c, &st->send_bwd.v[k]);
    }
    nd_number(c);
    /* Copies are inserted in the list being walked: walk a snapshot. */
    ND_VEC(nd_op *) ops = {0};
    ND_VEC(nd_block *) todo = {0};
    ND_PUSH(c->a, &todo, c->m->step);
    for (int i = 0; i < todo.n; i++)
        for (int k = 0; k < todo.v[i]->ops.n; k++) {
            nd_op *op = todo.v[i]->ops.v[k];
            ND_PUSH(c->a, &ops, op);
            if (op->body)
                ND_PUSH(c->a, &todo, op->body);
        }
    for (int i = 0; i < ops.n; i++)
        copies_for(ops.v[i], c);
}
