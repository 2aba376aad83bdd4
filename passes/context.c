/* context.c - attention whose keys lie on several ranks.
 *
 * `shard seq -> cp` cuts queries and, since `axis key = seq` follows, keys.
 * Left alone, the keys and values are gathered; this pass finds each attention
 * (context_match.c) and rewrites it before there are gradients, so nothing
 * behind it knows of context parallelism:
 *
 *   ring        blocks of keys and values move on, n - 1 hops (context_ring.c)
 *   gather      as it is
 */
#include "context.h"

#include <string.h>

static const nd_context *asked_for(const nd_plan *p, int mesh)
{
    for (int i = 0; i < p->context.n; i++)
        if (p->context.v[i].mesh == mesh)
            return &p->context.v[i];
    return NULL;
}

/* Why keys cannot move in a ring, or NULL. */
static const char *against_ring(const nd_module *m, const cx_region *r)
{
    const nd_axis *uneven = r->query->size % r->n ? r->query
                            : r->key->size % r->n ? r->key : NULL;
    if (uneven)
        return nd_fmt(m->ctx->arena, "%d ranks do not divide the %lld of `%s`",
                      r->n, (long long)uneven->size, uneven->name);
    return r->no_ring;
}

static void region(cx *c, const cx_region *r)
{
    const nd_context *ask = asked_for(&c->m->plan, r->mesh);
    nd_context_form form = ask ? ask->form : CONTEXT_AUTO;
    const char *why = against_ring(c->m, r);
    c->changed |= form != CONTEXT_GATHER && !why;
    if (form != CONTEXT_GATHER && !why)
        cx_ring(c, r);
}

static void block(cx *c, nd_block *b)
{
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        cx_region r;
        if (op->body)
            block(c, op->body);
        else if (cx_match(c->m, op, &r)) {
            region(c, &r);
            while (b->ops.v[i] != op)
                i++;
        }
    }
}

bool pass_context(nd_module *m, const nd_options *o)
{
    int errors = m->ctx->nerrors;
    cx c = {.m = m, .block = {.arena = m->ctx->arena},
            .heads = {.arena = m->ctx->arena}};
    (void)o;
    if (m->state & ND_HAS_GRADS)
        return true;
    nd_clear_marks(m);
    block(&c, m->step);
    if (c.changed)
        nd_dce(m);
    return m->ctx->nerrors == errors;
}
