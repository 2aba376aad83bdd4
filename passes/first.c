/* first.c - which gradients need not be cleared before a step?
 *
 *   d_up[l] += x' d_h         a product, all of the layer's: the first time in
 *                             a step it writes, then it adds
 *   d_head  += x' d_y         the first of two in its list: the same
 *   d_head  += z' d_y         always adds
 *   d_table[token] += d_x     some rows: cleared when the step begins
 *   nothing adds to d_bias    cleared, too
 *
 * A list of kernels is told whether it has run before in the step (r->adds), of
 * any microbatch. So the first to add to a gradient in its list may write if it
 * writes all of it, and no other list of the device adds to the same part:
 * other stages may have iterations of their own. All of a stage's gradients are
 * in one list. What a device holds and nothing writes so is on its list of what
 * is cleared. first_check.c proves it.
 */
#include "passes.h"

const nd_op *nd_added_by(const nd_code *c, const nd_node *n)
{
    if (n->op->kind == OP_ACCUM)
        return n->op;
    return n->op->nout ? nd_info(c, n->op->out[0])->accum : NULL;
}

/* ---- does a kernel write all of what it adds to? ------------------------- */

/* A sum over several axes may be made by loops, which may be empty: then the
 * emitter clears the result, if it is one range. */
static bool product_writes(nd_code *c, const nd_op *op, const nd_ref *to)
{
    bool empty = false;
    for (int i = 0; i < op->naxes; i++) {
        const nd_type *t = &op->in[0]->type;
        if (nd_axis_at(t, op->axes[i]) < 0)
            t = &op->in[1]->type;
        empty |= c->exts.v[nd_ext_of(c, t, nd_axis_at(t, op->axes[i]))].fixed
                 <= 0;
    }
    return op->naxes <= 1 || !empty || nd_is_packed(c, to);
}

bool nd_writes_all(nd_code *c, const nd_kernel *k, const nd_node *n)
{
    const nd_op *accum = nd_added_by(c, n);
    nd_ref to;
    if (n->op == accum)
        return false;
    to = nd_grad_ref(c, accum);
    switch (k->kind) {
    case K_GEMM:
        return product_writes(c, n->op, &to);
    case K_GROUPED:
        return n->op->kind == OP_GROUPED_SUM;
    case K_LOOP:
        return n->in_parts && nd_is_packed(c, &to);
    case K_COMM:
    case K_TILES:
    case K_REPEAT:
        break;
    }
    return false;
}

/* ---- who may be first? --------------------------------------------------- */

typedef struct finder {
    nd_code *c;
    int stage;
    const nd_kernel **seen;          /* by parameter: the first that adds */
    nd_value **writer;               /* ... and what writes there, or NULL */
    bool drop;                       /* second walk: not first after all */
} finder;

static bool is_on_one_stage(const nd_module *m, int stage, const nd_param *p)
{
    const nd_program *all = m->program;
    int n = 0;
    for (int s = 0; s < all->nstages; s++)
        n += all->stage[s].device == all->stage[stage].device &&
             nd_stage_has(&all->stage[s], p);
    return n == 1;
}

/* All that the stage has of the parameter, iteration by iteration, and nobody
 * else on its device? */
static bool covers(const finder *f, const nd_op *accum)
{
    const nd_module *m = f->c->m;
    const nd_param *p = accum->param;
    bool apart = false;
    int depth = 0;
    for (const nd_block *b = accum->block; b->parent; b = b->parent->block)
        depth++;
    for (int i = 0; i < p->nlayers; i++) {
        nd_axis *a = p->layer[i].axis;
        bool inside = nd_enclosing(accum->block, a) &&
                      nd_axis_at(&accum->in[0]->type, a) < 0;
        if (!inside && nd_is_piped(m, a))
            return false;
        if (inside && nd_cut_at(&p->value->type, a).n)
            return false;
        apart |= inside && nd_is_piped(m, a);
        depth -= inside;
    }
    return depth == 0 && (apart || is_on_one_stage(m, f->stage, p));
}

static void look(finder *f, nd_kernel *k, nd_node *n)
{
    const nd_op *accum = nd_added_by(f->c, n);
    if (!accum)
        return;
    int i = accum->param->index;
    nd_value *v = n->op->nout ? n->op->out[0] : NULL;
    if (f->drop) {
        if (v && f->writer[i] != v)
            nd_info(f->c, v)->first = false;
    } else if (!f->seen[i]) {
        f->seen[i] = k;
        if (nd_writes_all(f->c, k, n) && covers(f, accum))
            f->writer[i] = v;
    } else if (f->seen[i] == k) {
        f->writer[i] = NULL;         /* which of the two would be first? */
    }
}

static void look_list(finder *f, const nd_kernels *list)
{
    for (int i = 0; i < list->v.n; i++) {
        nd_kernel *k = list->v.v[i];
        if (k->body)
            look_list(f, k->body);
        for (int j = 0; j < k->nodes.n && !k->body; j++)
            look(f, k, &k->nodes.v[j]);
    }
}

static void look_stage(finder *f)
{
    for (int l = 0; l < NLISTS; l++)
        look_list(f, &f->c->stage[f->stage].list[l]);
}

/* ---- what is cleared ----------------------------------------------------- */

static bool is_written(nd_code *c, const finder *stages, int device,
                       const nd_param *p)
{
    const nd_program *all = c->m->program;
    for (int s = 0; s < all->nstages; s++) {
        const nd_value *v = stages[s].writer[p->index];
        if (all->stage[s].device == device &&
            nd_stage_has(&all->stage[s], p) && !(v && nd_info(c, v)->first))
            return false;
    }
    return true;
}

static void find_cleared(nd_code *c, const finder *stages, int device)
{
    nd_device_mem *mem = &c->mem.device[device];
    for (int i = 0; i < c->m->params.n; i++) {
        const nd_bucket *b = c->mem.bucket_of[i] < 0
                                 ? NULL
                                 : &c->mem.buckets.v[c->mem.bucket_of[i]];
        if (b && !b->frozen && b->devices >> device & 1 &&
            !is_written(c, stages, device, c->m->params.v[i]))
            ND_PUSH(c->a, &mem->cleared, i);
    }
}

void nd_first_sums(nd_code *c)
{
    const nd_program *p = c->m->program;
    int n = c->m->params.n + 1;
    finder *stages = ND_NEWN(c->a, finder, p->nstages);
    c->mem.device = ND_NEWN(c->a, nd_device_mem, p->ndevices);
    if (!c->m->loss)
        return;
    for (int s = 0; s < p->nstages; s++) {
        finder *f = &stages[s];
        *f = (finder){.c = c, .stage = s,
                      .seen = ND_NEWN(c->a, const nd_kernel *, n),
                      .writer = ND_NEWN(c->a, nd_value *, n)};
        look_stage(f);
        for (int i = 0; i < c->m->params.n; i++)
            if (f->writer[i])
                nd_info(c, f->writer[i])->first = true;
    }
    for (int s = 0; s < p->nstages; s++) {
        stages[s].drop = true;
        look_stage(&stages[s]);
    }
    for (int d = 0; d < p->ndevices; d++)
        find_cleared(c, stages, d);
}
