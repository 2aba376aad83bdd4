/* context_heads.c - attention where each rank has all keys of some heads.
 *
 *   heads -> heads_2     shard heads_2 -> (tp, cp), before any other rule
 *   q, k, v: rename [heads -> heads_2]     O: rename [heads_2 -> heads]
 *
 * Inside the region cp cuts the heads and so no longer queries and keys; the
 * shard pass moves each value between the two cuts at the region's border,
 * which is an all_to_all of what one rank holds.
 */
#include "context.h"

#include <string.h>

nd_cut cx_cut_of(const nd_module *m, const nd_type *t, const nd_axis *a)
{
    nd_cut cut[ND_MAX_RANK];
    nd_sh_walk(m, t->rank, t->axis, 0, PH_FWD, cut);
    return cut[nd_axis_at(t, a)];
}

static bool in_all(const cx_values *list, const nd_axis *a)
{
    for (int i = 0; i < list->n; i++)
        if (!cx_has(list->v[i], a))
            return false;
    return true;
}

int64_t cx_parts(const nd_module *m, const cx_region *r, const nd_axis *a)
{
    nd_cut cut = cx_cut_of(m, &r->attend->out[0]->type, a);
    int64_t parts = r->n;
    for (int i = 0; i < cut.n; i++)
        parts *= m->mesh.size[cut.m[i]];
    return parts;
}

nd_axis *cx_heads_of(const nd_module *m, const cx_region *r)
{
    const nd_type *t = &r->attend->out[0]->type;
    nd_axis *best = NULL;
    for (int i = 0; i < t->rank; i++) {
        nd_axis *a = t->axis[i];
        if (a == r->query || a == m->sample || !cx_has(r->x, a) ||
            !in_all(&r->moving, a) || !in_all(&r->queries, a) ||
            cx_cut_of(m, t, a).n >= ND_MAX_CUT - 1)
            continue;
        if (!best || a->size * cx_parts(m, r, best) >
                         best->size * cx_parts(m, r, a))
            best = a;
    }
    return best;
}

/* ---- the rewrite --------------------------------------------------------- */

typedef struct swap {
    nd_builder b;
    nd_axis *from, *to;
    nd_table inside, done;           /* the region's values; their copies */
} swap;

/* The twin of the heads with a rule of its own. */
static nd_axis *twin_of(cx *c, const cx_region *r, nd_axis *heads)
{
    nd_module *m = c->m;
    nd_axis *twin = nd_table_get(&c->heads, heads);
    if (twin)
        return twin;
    twin = nd_axis_twin(m, heads);
    nd_rule first = {.scope = SCOPE_ALL, .axis = twin, .loc = nd_nowhere,
                     .mesh = cx_cut_of(m, &r->attend->out[0]->type, heads)};
    first.mesh.m[first.mesh.n++] = (uint8_t)r->mesh;
    cx_first_rule(m, first);
    nd_table_put(&c->heads, heads, twin);
    return twin;
}

static bool names_axis(const nd_op *op, const nd_axis *a)
{
    if (nd_has_axis(op, a))
        return true;
    for (int i = 0; i < op->nto; i++)
        if (op->to[i] == a)
            return true;
    return false;
}

static nd_value *swapped(swap *s, nd_value *v);

static nd_value *copy(swap *s, nd_op *op)
{
    nd_value **in = ND_NEWN(s->b.m->ctx->arena, nd_value *, op->nin);
    for (int i = 0; i < op->nin; i++)
        in[i] = swapped(s, op->in[i]);
    nd_op *c = nd_clone(&s->b, op, in);
    nd_type *t = &c->out[0]->type;
    int at = nd_axis_at(t, s->from);
    if (at >= 0)
        t->axis[at] = s->to;
    nd_retype(s->b.m, c);
    return c->out[0];
}

static nd_value *swapped(swap *s, nd_value *v)
{
    if (!cx_has(v, s->from))
        return v;
    nd_value *w = nd_table_get(&s->done, v);
    if (w)
        return w;
    bool made_here = nd_table_get(&s->inside, v) && v->def->nout == 1 &&
                     !v->def->body && !names_axis(v->def, s->from);
    s->b.hint = v->name;
    w = made_here ? copy(s, v->def) : nd_rename(&s->b, v, s->from, s->to);
    nd_table_put(&s->done, v, w);
    return w;
}

static void put_all(swap *s, const cx_values *list)
{
    for (int i = 0; i < list->n; i++)
        if (list->v[i]->def)
            nd_table_put(&s->inside, list->v[i], list->v[i]);
}

void cx_heads(cx *c, const cx_region *r, nd_axis *heads)
{
    nd_arena *a = c->m->ctx->arena;
    nd_block *block = r->attend->block;
    nd_value *o = r->attend->out[0];
    swap s = {.from = heads, .to = twin_of(c, r, heads),
              .inside = {.arena = a}, .done = {.arena = a},
              .b = {.m = c->m, .block = block, .phase = PH_FWD,
                    .loc = r->attend->loc, .path = r->attend->path}};
    while (block->ops.v[s.b.at] != r->attend)
        s.b.at++;
    put_all(&s, &r->inside);
    put_all(&s, &r->row);
    nd_value *w = copy(&s, r->attend);
    s.b.hint = o->name;
    nd_replace_uses(c->m, o, nd_rename(&s.b, w, s.to, heads));
}
