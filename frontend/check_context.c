/* check_context.c - how attention finds keys that lie on other ranks.
 *
 *   context ring over cp           ->  m->plan.context
 *   context ring zigzag over cp        and the causal mask in balance
 *
 * Whether any attention has such keys is seen in the graph: passes/context.c.
 */
#include "frontend.h"

#include <string.h>

static bool read_form(ck *c, const ast_pent *e, nd_context *x)
{
    int n = 0;
    while (nd_context_names[n])
        n++;
    for (int i = 0; i < n; i++)
        if (!strcmp(nd_context_names[i], e->scope.s)) {
            x->form = (nd_context_form)i;
            return true;
        }
    ck_near_error(c, e->scope.loc, "form of context", e->scope.s,
                  nd_context_names, n);
    return false;
}

static bool read_more(ck *c, const ast_pent *e, nd_context *x)
{
    static const char *const names[] = {"zigzag"};
    if (!e->more.s)
        return true;
    if (strcmp(e->more.s, names[0])) {
        ck_near_error(c, e->more.loc, "order of context", e->more.s, names, 1);
        return false;
    }
    if (x->form == CONTEXT_ALL_TO_ALL || x->form == CONTEXT_GATHER) {
        ck_say(c, e->more.loc, "`zigzag` is an order for a ring");
        return false;
    }
    x->zigzag = true;
    return true;
}

void ck_context(ck *c, const ast_pent *e)
{
    nd_plan *p = &c->m->plan;
    nd_context x = {.loc = e->loc};
    if (!read_form(c, e, &x) || !read_more(c, e, &x))
        return;
    for (int i = 0; i < e->names->n; i++) {
        ast_name at = e->names->v[i];
        x.mesh = ck_mesh_axis(c, at);
        for (int k = 0; x.mesh >= 0 && k < p->context.n; k++)
            if (p->context.v[k].mesh == x.mesh) {
                ck_say(c, at.loc, "a second `context` over `%s`", at.s);
                ck_note(c, p->context.v[k].loc, "the first one is here");
                x.mesh = -1;
            }
        if (x.mesh >= 0)
            ND_PUSH(c->ctx->arena, &p->context, x);
    }
}
