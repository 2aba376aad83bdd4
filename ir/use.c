/* use.c - questions about the graph, replacing values, dead code. */
#include "ir.h"

#include <string.h>

nd_block *nd_block_of(const nd_value *v)
{
    return v->def ? v->def->block : v->owner;
}

bool nd_is_const(const nd_value *v, double c)
{
    while (v->def && (v->def->kind == OP_BROADCAST || v->def->kind == OP_CAST))
        v = v->def->in[0];
    return v->def && v->def->kind == OP_CONST && v->def->num == c;
}

/* A body argument's operand at the repeat, or NULL for a value with an op. */
static const nd_value *behind(const nd_value *v)
{
    return v->def || !v->owner->parent ? NULL
                                       : v->owner->parent->in[v->index];
}

nd_param *nd_param_of(const nd_value *v)
{
    const nd_value *outer;
    while ((outer = behind(v)) && v->index >= v->owner->parent->ncarry)
        v = outer;
    if (!v->def || v->def->kind != OP_PARAM)
        return NULL;
    return v->def->param;
}

bool nd_is_weight_copy(const nd_value *v)
{
    if (!v->def || v->def->kind == OP_PARAM)
        return false;
    while (v->def && (v->def->kind == OP_CAST || v->def->kind == OP_SLICE ||
                      v->def->kind == OP_STOP_GRAD ||
                      nd_has_trait(v->def, 'k')))
        v = v->def->in[0];
    return nd_param_of(v) != NULL;
}

int nd_layer_at(const nd_param *p, const nd_axis *a)
{
    size_t len = strlen(a->name);
    for (const char *s = p->name;;) {
        size_t n = strcspn(s, ".");
        if (n == len && strncmp(s, a->name, n) == 0)
            return (int)(s - p->name) + (int)n;
        if (!s[n])
            return (int)strcspn(p->name, ".");
        s += n + 1;
    }
}

typedef enum { NEVER_FREE, ALWAYS_FREE, FREE_IF_OPERANDS } freedom;

static freedom freedom_of(const nd_op *op)
{
    return nd_has_trait(op, 'f')   ? ALWAYS_FREE
           : nd_has_trait(op, 'h') ? NEVER_FREE
                                   : FREE_IF_OPERANDS;
}

bool nd_is_free(const nd_value *v)
{
    freedom f = v->def ? freedom_of(v->def) : NEVER_FREE;
    if (f != FREE_IF_OPERANDS)
        return f == ALWAYS_FREE;
    if (v->def->free)
        return v->def->free > 0;
    v->def->free = 1;
    for (int i = 0; i < v->def->nin && v->def->free > 0; i++)
        v->def->free = nd_is_free(v->def->in[i]) ? 1 : -1;
    return v->def->free > 0;
}

static void mark_free(nd_op *op, void *user)
{
    freedom f = freedom_of(op);
    bool is = f == ALWAYS_FREE;
    (void)user;
    if (f == FREE_IF_OPERANDS) {
        is = true;
        for (int i = 0; i < op->nin; i++)
            is &= op->in[i]->mark != 0;
    }
    for (int i = 0; i < op->nout; i++)
        op->out[i]->mark = is;
}

void nd_mark_free(nd_module *m)
{
    nd_clear_marks(m);
    nd_walk(m->step, mark_free, NULL);
}

void nd_walk(nd_block *b, void (*f)(nd_op *, void *), void *user)
{
    for (int i = 0; i < b->ops.n; i++) {
        f(b->ops.v[i], user);
        if (b->ops.v[i]->body)
            nd_walk(b->ops.v[i]->body, f, user);
    }
}

typedef struct swap {
    nd_value *from, *to;
} swap;

static void swap_op(nd_op *op, void *user)
{
    const swap *s = user;
    for (int i = 0; i < op->nin; i++)
        if (op->in[i] == s->from)
            op->in[i] = s->to;
    for (int i = 0; op->body && i < op->body->yields.n; i++)
        if (op->body->yields.v[i] == s->from)
            op->body->yields.v[i] = s->to;
}

void nd_replace_uses(nd_module *m, nd_value *from, nd_value *to)
{
    swap s = {from, to};
    nd_walk(m->step, swap_op, &s);
    if (m->loss == from)
        m->loss = to;
}

/* ---- dead code: mark from the roots, then sweep -------------------------- */

static void clear_marks(nd_op *op, void *user)
{
    (void)user;
    op->mark = op->free = 0;
    for (int i = 0; i < op->nout; i++)
        op->out[i]->mark = 0;
    for (int i = 0; op->body && i < op->body->args.n; i++)
        op->body->args.v[i]->mark = 0;
}

void nd_clear_marks(nd_module *m)
{
    nd_walk(m->step, clear_marks, NULL);
}

static void mark_value(nd_value *v);

static void mark_op(nd_op *op)
{
    if (op->mark)
        return;
    op->mark = 1;
    if (op->block->parent)
        mark_op(op->block->parent);
    /* A repeat needs only the operands whose body arguments are read. */
    if (op->kind != OP_REPEAT)
        for (int i = 0; i < op->nin; i++)
            mark_value(op->in[i]);
}

static void mark_value(nd_value *v)
{
    if (v->mark)
        return;
    v->mark = 1;
    nd_op *r = v->def ? v->def : v->owner->parent;
    if (r)
        mark_op(r);
    if (!r || r->kind != OP_REPEAT)
        return;
    if (v->def) {
        mark_value(r->body->yields.v[v->index]);
        if (v->index < r->ncarry)
            mark_value(r->body->args.v[v->index]);
    } else {
        mark_value(r->in[v->index]);
        if (v->index < r->ncarry) {
            mark_value(r->out[v->index]);
            mark_value(r->body->yields.v[v->index]);
        }
    }
}

static void mark_roots(nd_op *op, void *user)
{
    (void)user;
    if (op->kind == OP_ACCUM || op->kind == OP_OUTPUT || op->kind == OP_INPUT ||
        op->kind == OP_PARAM)
        mark_op(op);
}

/* Drops the operands, arguments, yields and results of a repeat that nobody
 * reads. */
static void shrink_repeat(nd_op *r)
{
    nd_block *b = r->body;
    int keep = 0, carry = 0, nin = r->nin;
    for (int i = 0; i < nin; i++) {
        if (!b->args.v[i]->mark)
            continue;
        carry += i < r->ncarry;
        r->in[keep] = r->in[i];
        b->args.v[keep] = b->args.v[i];
        b->args.v[keep]->index = keep;
        keep++;
    }
    r->nin = b->args.n = keep;
    keep = 0;
    for (int i = 0; i < r->nout; i++) {
        if (!r->out[i]->mark)
            continue;
        r->out[keep] = r->out[i];
        r->out[keep]->index = keep;
        b->yields.v[keep] = b->yields.v[i];
        keep++;
    }
    r->nout = b->yields.n = keep;
    r->ncarry = carry;
}

static void sweep(nd_block *b)
{
    int keep = 0;
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        if (!op->mark)
            continue;
        if (op->body) {
            shrink_repeat(op);
            sweep(op->body);
        }
        b->ops.v[keep++] = op;
    }
    b->ops.n = keep;
}

void nd_dce(nd_module *m)
{
    nd_clear_marks(m);
    nd_walk(m->step, mark_roots, NULL);
    if (m->loss)
        mark_value(m->loss);
    sweep(m->step);
}
