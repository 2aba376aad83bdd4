/* emit_final.c - what backward is done with: calls that say so.
 *
 *   static const int layers_done[] = {P_layers_up_w, P_layers_down_w};
 *   ..
 *       for (int64_t l = 5; l >= 0; l--) {
 *           ..
 *           ndrt_gradients_done(r, layers_done, 2, l);
 *       }
 */
#include "codegen.h"

/* The list of those whose last kernel is in [from, to), or NULL if there are
 * none; how many. */
static const char *list_of(cg_fn *f, const char *name, int from, int to,
                           bool layered, int *n)
{
    cg *g = f->g;
    nd_buf s = {.arena = g->a};
    const char *sep = "";
    *n = 0;
    for (int i = 0; i < g->m->params.n; i++) {
        const nd_final *x = &f->finals[i];
        if (x->last < from || x->last >= to || x->layered != layered)
            continue;
        nd_putf(&s, "%s%s", sep, g->param_name[i]);
        sep = ", ";
        ++*n;
    }
    if (!*n)
        return NULL;
    name = cg_fresh(&g->global, name);
    cg_fold(g->out, 0, nd_fmt(g->a, "static const int %s[] = {%s};", name,
                              s.s));
    nd_put(g->out, "\n");
    return name;
}

static void call(cg_fn *f, const char *list, int n, const char *layer)
{
    f->uses_rank = f->g->early = true;
    cg_line(f, "ndrt_gradients_done(r, %s, %d, %s);", list, n, layer);
}

void cg_done_before(cg_fn *f, const nd_kernels *list, int i)
{
    const nd_kernel *k = list->v.v[i];
    int from = i, n;
    if (!f->finals || k->kind != K_REPEAT)
        return;
    while (from > 0 && list->v.v[from - 1]->kind != K_REPEAT)
        from--;
    from -= from > 0;                /* and the repeat before */
    const char *axis = k->nodes.v[0].op->axes[0]->name;
    const char *of = list_of(f, nd_fmt(f->g->a, "before_%s_done", axis), from,
                             i, false, &n);
    if (of)
        call(f, of, n, "NDRT_WHOLE");
}

void cg_done_layer(cg_fn *f, nd_kernel *k, int64_t lo)
{
    nd_op *op = k->nodes.v[0].op;
    int n;
    if (!f->finals)
        return;
    const char *of = list_of(f, nd_fmt(f->g->a, "%s_done", op->axes[0]->name),
                             k->index, k->index + 1, true, &n);
    const char *l = cg_iter(f, op);
    if (of)
        call(f, of, n, lo ? nd_fmt(f->g->a, "%s - %lld", l, (long long)lo)
                          : l);
}
