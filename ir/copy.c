/* copy.c - a module once more, to try on it what may not be kept.
 *
 * Blocks, ops, values and parameters are copied, and what refers to them is led
 * to the copies; axes, names and types mean the same in both.
 */
#include "ir.h"

#include <string.h>

typedef struct copier {
    nd_arena *a;
    nd_table values;                 /* value -> its copy */
    nd_param **param;                /* by index */
} copier;

static void *dup(nd_arena *a, const void *x, size_t bytes)
{
    void *y = nd_alloc(a, bytes);
    if (bytes)
        memcpy(y, x, bytes);
    return y;
}

#define DUP_VEC(arena, vec) \
    ((vec)->v = dup(arena, (vec)->v, sizeof *(vec)->v * (size_t)(vec)->n), \
     (vec)->cap = (vec)->n)

static nd_value *copy_of(copier *c, const nd_value *v)
{
    nd_value *y = nd_table_get(&c->values, v);
    if (!y) {
        y = dup(c->a, v, sizeof *v);
        nd_table_put(&c->values, v, y);
    }
    return y;
}

static void copy_values(copier *c, nd_value ***v, int n)
{
    *v = dup(c->a, *v, sizeof **v * (size_t)n);
    for (int i = 0; i < n; i++)
        (*v)[i] = copy_of(c, (*v)[i]);
}

static nd_block *copy_block(copier *c, const nd_block *from, nd_op *parent);

static nd_op *copy_op(copier *c, const nd_op *from, nd_block *block)
{
    nd_op *op = dup(c->a, from, sizeof *from);
    op->block = block;
    copy_values(c, &op->in, op->nin);
    copy_values(c, &op->out, op->nout);
    for (int i = 0; i < op->nout; i++)
        op->out[i]->def = op;
    op->axes = dup(c->a, op->axes, sizeof *op->axes * (size_t)op->naxes);
    op->to = dup(c->a, op->to, sizeof *op->to * (size_t)op->nto);
    if (op->param)
        op->param = c->param[op->param->index];
    if (op->body)
        op->body = copy_block(c, op->body, op);
    return op;
}

static nd_block *copy_block(copier *c, const nd_block *from, nd_op *parent)
{
    nd_block *b = dup(c->a, from, sizeof *from);
    b->parent = parent;
    copy_values(c, &b->args.v, b->args.n);
    b->args.cap = b->args.n;
    for (int i = 0; i < b->args.n; i++)
        b->args.v[i]->owner = b;
    DUP_VEC(c->a, &b->ops);
    for (int i = 0; i < b->ops.n; i++)
        b->ops.v[i] = copy_op(c, b->ops.v[i], b);
    copy_values(c, &b->yields.v, b->yields.n);
    b->yields.cap = b->yields.n;
    return b;
}

static void copy_table(nd_arena *a, nd_table *t)
{
    t->key = dup(a, t->key, sizeof *t->key * (size_t)t->cap);
    t->val = dup(a, t->val, sizeof *t->val * (size_t)t->cap);
}

nd_module *nd_module_copy(const nd_module *from)
{
    nd_arena *a = from->ctx->arena;
    nd_module *m = dup(a, from, sizeof *from);
    copier c = {.a = a, .values = {.arena = a},
                .param = ND_NEWN(a, nd_param *, m->params.n + 1)};
    DUP_VEC(a, &m->axes);
    DUP_VEC(a, &m->params);
    for (int i = 0; i < m->params.n; i++) {
        nd_param *p = dup(a, m->params.v[i], sizeof *p);
        c.param[p->index] = m->params.v[i] = p;
        p->value = copy_of(&c, p->value);
    }
    m->step = copy_block(&c, m->step, NULL);
    copy_values(&c, &m->inputs.v, m->inputs.n);
    m->inputs.cap = m->inputs.n;
    DUP_VEC(a, &m->outputs);
    for (int i = 0; i < m->outputs.n; i++) {
        const nd_op *op = m->outputs.v[i];
        int at = 0;
        while (from->step->ops.v[at] != op)
            at++;
        m->outputs.v[i] = m->step->ops.v[at];
    }
    if (m->loss)
        m->loss = copy_of(&c, m->loss);
    copy_table(a, &m->taken);
    copy_table(a, &m->asked);
    return m;
}
