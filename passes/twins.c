/* twins.c - an axis of its own for each repeat that is cut in stages.
 *
 *   pipeline layers -> pp
 *   %x = repeat [layers] ...      ->   %x = repeat [layers] ...
 *   %y = repeat [layers] ...           %y = repeat [layers_2] ...
 *
 * A stage has a range of iterations for each pipelined axis. Two repeats over
 * one axis, an encoder's and a decoder's layers, have ranges of their own: so
 * the second one, with the parameters that are its own, gets another axis of
 * the same size.
 */
#include "passes.h"

typedef struct twin {
    nd_module *m;
    nd_op *repeat;
    nd_axis *from, *to;
} twin;

static void swap_axis(const twin *t, nd_type *type)
{
    for (int i = 0; i < type->rank; i++)
        if (type->axis[i] == t->from)
            type->axis[i] = t->to;
}

/* The iteration, read inside. */
static void swap_index(nd_op *op, void *user)
{
    const twin *t = user;
    if (op->kind == OP_INDEX && op->axes[0] == t->from)
        op->axes[0] = t->to;
}

typedef struct readers {
    const nd_value *v;
    const nd_op *repeat;
    int others;
} readers;

static void count_others(nd_op *op, void *user)
{
    readers *r = user;
    for (int i = 0; i < op->nin; i++)
        r->others += op->in[i] == r->v && op != r->repeat;
}

static bool read_elsewhere(const twin *t, const nd_value *v)
{
    readers r = {v, t->repeat, 0};
    nd_walk(t->m->step, count_others, &r);
    return r.others > 0;
}

static nd_builder beside(const twin *t, bool behind)
{
    nd_block *b = t->m->step;
    nd_builder at = {.m = t->m, .block = b, .phase = t->repeat->phase,
                     .loc = t->repeat->loc, .path = t->repeat->path};
    while (b->ops.v[at.at] != t->repeat)
        at.at++;
    at.at += behind;
    return at;
}

static bool swap_scanned(const twin *t, int i)
{
    nd_value *v = t->repeat->in[i];
    nd_param *p = v->def && v->def->kind == OP_PARAM ? v->def->param : NULL;
    if (!p) {
        nd_builder at = beside(t, false);
        t->repeat->in[i] = nd_rename(&at, v, t->from, t->to);
        return true;
    }
    if (read_elsewhere(t, v)) {
        nd_error(t->m->ctx, t->repeat->loc, "two repeats over the pipelined "
                 "axis `%s` read the parameter %s, each on stages of its own",
                 t->from->name, p->name);
        nd_note(t->m->ctx, p->loc, "the parameter is here");
        return false;
    }
    swap_axis(t, &v->type);
    swap_axis(t, &p->grad);
    for (int k = 0; k < p->nlayers; k++)
        if (p->layer[k].axis == t->from)
            p->layer[k].axis = t->to;
    return true;
}

/* What the repeat stacks keeps its axis for those who read it. */
static void swap_stacked(const twin *t, int i)
{
    nd_value *v = t->repeat->out[i];
    swap_axis(t, &v->type);
    if (!read_elsewhere(t, v) && t->m->loss != v)
        return;
    nd_builder at = beside(t, true);
    nd_value *as = nd_rename(&at, v, t->to, t->from);
    nd_op *rename = as->def;
    nd_replace_uses(t->m, v, as);
    rename->in[0] = v;
}

static bool make_twin(nd_module *m, nd_op *r)
{
    twin t = {m, r, r->axes[0], nd_axis_twin(m, r->axes[0])};
    r->axes[0] = t.to;
    nd_walk(r->body, swap_index, &t);
    for (int i = r->ncarry; i < r->nin; i++)
        if (!swap_scanned(&t, i))
            return false;
    for (int i = r->ncarry; i < r->nout; i++)
        swap_stacked(&t, i);
    ND_PUSH(m->ctx->arena, &m->plan.piped, t.to);
    return true;
}

bool pass_twins(nd_module *m, const nd_options *o)
{
    (void)o;
    int n = m->plan.piped.n;
    if (m->mesh.pipe < 0 || m->mesh.size[m->mesh.pipe] == 1 ||
        m->state & ND_HAS_GRADS)
        return true;
    for (int k = 0; k < n; k++) {
        bool first = true;
        for (int i = 0; i < m->step->ops.n; i++) {
            nd_op *op = m->step->ops.v[i];
            if (op->kind != OP_REPEAT || op->axes[0] != m->plan.piped.v[k])
                continue;
            if (!first && !make_twin(m, op))
                return false;
            first = false;
            while (m->step->ops.v[i] != op)
                i++;
        }
    }
    return true;
}
