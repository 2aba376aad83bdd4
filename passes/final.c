/* final.c - when is backward done with a gradient?
 *
 *   d_head += ..                     head: done, whole, before the repeat
 *   repeat layers, in reverse        w of layer l: done after iteration l
 *     d_w[l] += ..
 *   d_table += ..                    at the end of the list: nothing to say
 *
 * Of gradients that are pending over ranks the list says so where work follows
 * that the sum can run beside: at the end of each iteration of a repeat, for
 * the parameters that have one per iteration, and in front of a repeat, for
 * others. It holds for one run of the list; which run is the last of a step,
 * the runtime knows (runtime/early.c).
 *
 * A kernel of a kind that is not known here may touch every gradient.
 */
#include "passes.h"

typedef struct finder {
    nd_code *c;
    nd_final *of;                    /* by parameter */
} finder;

static void touch(finder *f, const nd_param *p, int at, bool layer)
{
    nd_final *x = &f->of[p->index];
    x->layered = layer && (x->last < 0 || (x->layered && x->last == at));
    x->last = at;
}

/* Does it add to what belongs to this iteration of `outer` alone? */
static bool is_of_layer(const nd_op *accum, const nd_op *outer)
{
    const nd_param *p = accum->param;
    return outer && p->nlayers && p->layer[0].axis == outer->axes[0] &&
           nd_enclosing(accum->block, outer->axes[0]) == outer &&
           p->value->type.axis[0] == outer->axes[0] &&
           p->value->type.cut[0].n == 0 &&
           nd_axis_at(&accum->in[0]->type, outer->axes[0]) < 0;
}

static void touch_op(finder *f, const nd_op *op, int at, const nd_op *outer)
{
    if (op->kind == OP_ACCUM)
        touch(f, op->param, at, is_of_layer(op, outer));
    for (int i = 0; i < op->nout; i++) {
        const nd_op *accum = nd_info(f->c, op->out[i])->accum;
        if (accum)
            touch(f, accum->param, at, is_of_layer(accum, outer));
    }
}

/* at: the position in the stage's list; outer: the repeat there, or NULL. */
static void touch_kernel(finder *f, const nd_kernel *k, int at,
                         const nd_op *outer)
{
    switch (k->kind) {
    case K_LOOP:
    case K_GEMM:
    case K_GROUPED:
    case K_COMM:
    case K_TILES:
        for (int i = 0; i < k->nodes.n; i++)
            touch_op(f, k->nodes.v[i].op, at, outer);
        return;
    case K_REPEAT:
        for (int i = 0; i < k->body->v.n; i++)
            touch_kernel(f, k->body->v.v[i], at,
                         outer ? outer : k->nodes.v[0].op);
        return;
    }
    for (int i = 0; i < f->c->m->params.n; i++)
        touch(f, f->c->m->params.v[i], at, false);
}

static uint32_t real_axes(const nd_mesh *m, uint32_t mask)
{
    for (int i = 0; i < m->n; i++)
        if (m->size[i] == 1 || i == m->pipe || i == m->micro)
            mask &= ~(1u << i);
    return mask;
}

/* Will it be added up over ranks, by those of one device? */
static bool is_summed(const nd_code *c, int param)
{
    int in = c->mem.bucket_of[param];
    const nd_bucket *b = in < 0 ? NULL : &c->mem.buckets.v[in];
    return b && !b->frozen && real_axes(&c->m->mesh, b->sum) &&
           !nd_tied_devices(c->m, b);
}

/* The list that says so: gradients of weights come in the last one. */
static bool is_telling(const nd_code *c, int stage, const nd_kernels *list)
{
    const nd_kernels *of = c->stage[stage].list;
    return list == &of[of[LIST_WGT].v.n ? LIST_WGT : LIST_BWD];
}

nd_final *nd_finals(nd_code *c, int stage, const nd_kernels *list)
{
    finder f = {.c = c};
    bool any = false;
    if (!is_telling(c, stage, list) || nd_is_stashed(c->m))
        return NULL;
    f.of = ND_NEWN(c->a, nd_final, c->m->params.n + 1);
    for (int i = 0; i < c->m->params.n; i++)
        f.of[i] = (nd_final){.last = -1};
    for (int i = 0; i < list->v.n; i++)
        touch_kernel(&f, list->v.v[i], i, NULL);
    for (int i = 0; i < c->m->params.n; i++) {
        if (!is_summed(c, i))
            f.of[i] = (nd_final){.last = -1};
        any |= f.of[i].last >= 0;
    }
    return any ? f.of : NULL;
}
