/* shard_micro.c - which values are sums over microbatches that are not whole
 * before the step's end: what sums over rows, and what is made from that.
 *
 *   repeat carry(%zero, %zero) { (%r, %s) ... %t = reduce sum [batch] ...
 *     %s2 = add %s, %t
 *     yield %s, %s2 }             %t, %s2, %s and then %r
 *
 * A carried value has one type at entry and exit, so this must be known before
 * the body is typed.
 */
#include "shard.h"

static bool has_rows(const nd_sh *s, const nd_value *v)
{
    return nd_axis_at(&v->type, s->m->sample) >= 0 || nd_routed_axis(&v->type);
}

static bool set(nd_sh *s, nd_value *v, bool on)
{
    nd_sh_info *info = nd_sh_info_of(s, v);
    bool changed = on && !info->partial;
    info->partial |= on;
    return changed;
}

static bool is_partial(nd_sh *s, nd_value *v)
{
    return nd_sh_info_of(s, v)->partial;
}

static bool spread(nd_sh *s, nd_block *b);

static bool spread_repeat(nd_sh *s, nd_op *op)
{
    nd_block *body = op->body;
    bool changed = false;
    for (int i = 0; i < op->nin; i++)
        changed |= set(s, body->args.v[i], is_partial(s, op->in[i]));
    changed |= spread(s, body);
    for (int i = 0; i < op->nout; i++) {
        bool on = is_partial(s, body->yields.v[i]);
        if (i < op->ncarry)
            changed |= set(s, body->args.v[i], on);
        changed |= set(s, op->out[i], on);
    }
    return changed;
}

static bool spread(nd_sh *s, nd_block *b)
{
    bool changed = false;
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        if (op->body) {
            changed |= spread_repeat(s, op);
            continue;
        }
        if (op->phase == PH_PRE || !op->nout)
            continue;
        bool rows = false, on = false;
        for (int k = 0; k < op->nin; k++) {
            rows |= has_rows(s, op->in[k]);
            on |= is_partial(s, op->in[k]);
        }
        changed |= set(s, op->out[0], on || (rows &&
                                             !has_rows(s, op->out[0])));
    }
    return changed;
}

void nd_sh_find_partial(nd_sh *s)
{
    if (s->m->sample && s->m->plan.microbatches > 1)
        while (spread(s, s->m->step))
            ;
}
