/* emit_loop.c - loop kernels: each is built once, checked and printed. */
#include "kir.h"

static bool same_kernel(const nd_kernel *a, const nd_kernel *b)
{
    if (a->nodes.n != b->nodes.n)
        return false;
    for (int i = 0; i < a->nodes.n; i++)
        if (a->nodes.v[i].op != b->nodes.v[i].op ||
            a->nodes.v[i].stored != b->nodes.v[i].stored)
            return false;
    return a->tiles == b->tiles;
}

/* Normal numbers come from libm, in double: the C compiler's. */
static bool is_for_llvm(const kir_kernel *k)
{
    for (int i = 0; i < k->inst.n; i++)
        if (k->inst.v[i].op == KIR_NORMAL)
            return false;
    return true;
}

cg_kernel *cg_loop_kernel(cg *g, nd_kernel *k)
{
    /* Stages share kernels; within one, each is called in one place. */
    const nd_op *key = k->nodes.v[0].op;
    cg_kernel *first = nd_table_get(&g->kernels, key);
    for (cg_kernel *x = first; x; x = x->other)
        if (g->m->program->nstages > 1 && same_kernel(x->k, k))
            return x;
    static const char *const phase[] = {"fwd", "bwd", "wgt", "pre"};
    cg_kernel *out = ND_NEW(g->a, cg_kernel);
    const char *base = *k->name ? k->name : g->m->name;
    out->k = k;
    out->name = nd_fmt(g->a, "%s_%s", base, phase[k->phase]);
    out->other = first;
    nd_table_put(&g->kernels, key, out);
    out->ir = kir_build(g, k);
    const char *wrong = kir_check(g, out->ir);
    if (wrong) {
        nd_error(g->m->ctx, k->loc, "internal error: kernel '%s': %s",
                 out->name, wrong);
        return out;
    }
    bool llvm = g->llvm && is_for_llvm(out->ir);
    kir_print_c(g, out->ir, out, llvm);
    if (llvm)
        ND_PUSH(g->a, &g->by_llvm, out);
    else if (g->llvm)
        ND_PUSH(g->a, &g->by_c, out);
    return out;
}
