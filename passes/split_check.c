/* split_check.c - is backward still what it was, in two halves?
 *
 * Looks at the finished graph only. What is computed for an input's gradient
 * waits for no weight's: an op of the first half, in bodies too, reads nothing
 * of the second. Every accumulate is there once, and those of one parameter are
 * met in the same order, iteration by iteration: what shared a body before does
 * so now. Sums of floats depend on their order, so that is what keeps the bits.
 */
#include "split.h"

static void note_sum(nd_op *op, void *user)
{
    nd_sums *s = ((void **)user)[0];
    nd_module *m = ((void **)user)[1];
    if (op->kind != OP_ACCUM)
        return;
    ND_PUSH(m->ctx->arena, &s->op, op);
    ND_PUSH(m->ctx->arena, &s->in, op->block);
}

void nd_sums_of(nd_module *m, nd_sums *out)
{
    void *user[] = {out, m};
    nd_walk(m->step, note_sum, user);
}

static bool wrong(nd_module *m, const nd_op *op, const char *what)
{
    nd_error(m->ctx, op->loc, "%s %s: a fault of ndc, please report it",
             op->kind == OP_ACCUM ? op->name : nd_op_name(op), what);
    return false;
}

/* The next sum of parameter p, from number i on. */
static int next_of(const nd_sums *s, const nd_param *p, int i)
{
    while (i < s->op.n && s->op.v[i]->param != p)
        i++;
    return i;
}

static bool same_order(nd_module *m, const nd_param *p, const nd_sums *x,
                       const nd_sums *y)
{
    int i = next_of(x, p, 0), j = next_of(y, p, 0);
    while (i < x->op.n && j < y->op.n) {
        int after = next_of(x, p, i + 1), now = next_of(y, p, j + 1);
        if (x->op.v[i] != y->op.v[j])
            return wrong(m, y->op.v[j], "is added up in another order");
        if (after < x->op.n && now < y->op.n &&
            (x->in.v[i] == x->in.v[after]) != (y->in.v[j] == y->in.v[now]))
            return wrong(m, y->op.v[j], "is added up in other turns");
        i = after;
        j = now;
    }
    if (i < x->op.n)
        return wrong(m, x->op.v[i], "is not added up any more");
    return j == y->op.n || wrong(m, y->op.v[j], "is added up twice");
}

typedef struct reads {
    nd_module *m;
    bool ok;
} reads;

static void check_read(reads *r, const nd_op *op, const nd_value *v)
{
    const nd_op *made = v->def ? v->def : v->owner->parent;
    if (r->ok && made && made->phase == PH_WGT)
        r->ok = wrong(r->m, op, "does not wait, but what it reads does");
}

static void check_op(nd_op *op, void *user)
{
    reads *r = user;
    if (op->phase == PH_WGT)
        return;
    if (op->block->parent && op->block->parent->phase == PH_WGT)
        r->ok = wrong(r->m, op, "does not wait, but its repeat does");
    if (op->kind == OP_ACCUM)
        r->ok = wrong(r->m, op, "is added up without waiting");
    for (int i = 0; i < op->nin; i++)
        check_read(r, op, op->in[i]);
    for (int i = 0; op->body && i < op->body->yields.n; i++)
        check_read(r, op, op->body->yields.v[i]);
}

bool nd_split_check(nd_module *m, const nd_sums *before)
{
    reads r = {m, true};
    nd_sums now = {.op.v = NULL};
    nd_sums_of(m, &now);
    nd_walk(m->step, check_op, &r);
    for (int i = 0; r.ok && i < m->params.n; i++)
        r.ok = same_order(m, m->params.v[i], before, &now);
    return r.ok;
}
