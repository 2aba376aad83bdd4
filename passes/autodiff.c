/* autodiff.c - the pass around ir/autodiff.c: backward ops, then a look at
 * which parameters received a gradient. */
#include "passes.h"

static void note_accumulate(nd_op *op, void *user)
{
    (void)user;
    if (op->kind == OP_ACCUM)
        op->param->value->mark = 1;
}

bool pass_autodiff(nd_module *m, const nd_options *o)
{
    (void)o;
    if (!nd_autodiff(m))
        return false;
    for (int i = 0; i < m->params.n; i++)
        m->params.v[i]->value->mark = 0;
    nd_walk(m->step, note_accumulate, NULL);
    for (int i = 0; m->loss && i < m->params.n; i++) {
        nd_param *p = m->params.v[i];
        if (p->value->mark || p->frozen)
            continue;
        nd_warning(m->ctx, p->loc, "parameter `%s` receives no gradient",
                   p->name);
        p->frozen = true;            /* nothing to update it with */
    }
    return true;
}
