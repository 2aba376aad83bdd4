/* routes.c - rows that travel to their experts, and back.
 *
 *   %h = grouped [expert, d] %x, %w, %e : f32[batch, slot, ffn]
 *   %g = tanh %h
 *   %y = grouped [expert, ffn] %g, %v, %e : f32[batch, slot, d]
 *   -> where the plan cuts batch and expert by ep
 *   %i = dispatch [routed] over ep %e, %e : i32[routed]
 *   %u = dispatch [routed] over ep %x, %e : f32[routed, d]
 *   %h = grouped [expert, d] %u, %w, %i : f32[routed, ffn]
 *   %g = tanh %h
 *   %o = grouped [expert, ffn] %g, %v, %i : f32[routed, d]
 *   %y = combine [routed] over ep %o, %e : f32[batch, slot, d]
 *
 * Without that the weights would be gathered, for a mesh axis cuts one axis of
 * an op. dispatch and combine are each other's adjoints, so backward travels by
 * itself. Elementwise work between two products stays with the rows.
 */
#include "shard.h"

typedef struct router {
    nd_module *m;
    nd_block *block;
    nd_value *ids;                   /* i32[batch, slot] */
    nd_axis *routed;
    nd_builder b;
    nd_table there;                  /* value -> the same rows where they are
                                        sent, or where they are now */
    nd_table moves;                  /* value -> itself: made of such */
} router;

/* ---- does the plan ask for it -------------------------------------------- */

static bool chooses(const nd_op *op, const nd_value *ids)
{
    return op->kind == OP_GROUPED && op->in[2] == ids;
}

typedef struct space {
    int n;
    nd_axis *axis[4 * ND_MAX_RANK];
    nd_cut cut[4 * ND_MAX_RANK];
} space;

static void add_axes(space *s, const nd_type *t, const nd_axis *skip)
{
    for (int i = 0; i < t->rank; i++) {
        bool known = s->n == 4 * ND_MAX_RANK || t->axis[i] == skip;
        for (int k = 0; k < s->n; k++)
            known |= s->axis[k] == t->axis[i];
        if (!known)
            s->axis[s->n++] = t->axis[i];
    }
}

/* The one mesh axis that cuts the experts where their weight is at home, or -1.
 */
static int home_of(const nd_module *m, const nd_op *op)
{
    const nd_type *w = &op->in[1]->type;
    nd_type home = nd_sh_home(m, w, PH_PRE);
    nd_cut c = home.cut[nd_axis_at(w, op->axes[0])];
    return c.n == 1 && m->mesh.size[c.m[0]] > 1 ? c.m[0] : -1;
}

/* How the rows of these products lie, the rule for experts aside, and the mesh
 * axis over which they travel; false if they need not. */
static bool wants_route(const router *t, nd_route *r)
{
    space s = {0};
    int cuts = 0;
    *r = (nd_route){.over = -1};
    add_axes(&s, &t->ids->type, NULL);
    for (int i = 0; i < t->block->ops.n; i++) {
        const nd_op *op = t->block->ops.v[i];
        if (!chooses(op, t->ids))
            continue;
        int home = home_of(t->m, op);
        if (r->experts && (r->experts != op->axes[0] || r->over != home))
            return false;
        r->experts = op->axes[0];
        r->over = home;
        add_axes(&s, &op->in[0]->type, NULL);
        add_axes(&s, &op->in[1]->type, op->axes[0]);
    }
    if (r->over < 0 || s.n == 4 * ND_MAX_RANK)
        return false;
    nd_sh_walk(t->m, s.n, s.axis, 0, PH_FWD, s.cut);
    r->rows = t->ids->type;
    for (int i = 0; i < r->rows.rank; i++)
        for (int k = 0; k < s.n; k++)
            if (s.axis[k] == r->rows.axis[i]) {
                r->rows.cut[i] = s.cut[k];
                cuts += s.cut[k].n;
            }
    return cuts <= ND_MAX_CUT && nd_cut_mask(&r->rows) >> r->over & 1;
}

/* ---- moving -------------------------------------------------------------- */

static bool has_rows(const router *t, const nd_value *v)
{
    for (int i = 0; i < v->type.rank; i++)
        if (nd_axis_at(&t->ids->type, v->type.axis[i]) >= 0)
            return true;
    return false;
}

/* Elementwise on rows that have travelled, so that it can be done there. */
static bool done_there(router *t, nd_value *v)
{
    if (nd_table_get(&t->there, v) || nd_table_get(&t->moves, v))
        return true;
    if (!v->def || v->def->block != t->block ||
        (v->def->kind != OP_MAP && v->def->kind != OP_CAST))
        return false;
    for (int i = 0; i < v->def->nin; i++)
        if (done_there(t, v->def->in[i])) {
            nd_table_put(&t->moves, v, v);
            return true;
        }
    return false;
}

/* The rows of v where their experts are. */
static nd_value *there(router *t, nd_value *v)
{
    nd_value *r = nd_table_get(&t->there, v);
    if (r || !has_rows(t, v))
        return r ? r : v;
    if (!done_there(t, v)) {
        t->b.hint = v->name;
        r = nd_dispatch(&t->b, v, t->ids, t->routed);
    } else {
        nd_value *in[3] = {NULL};
        for (int i = 0; i < v->def->nin; i++)
            in[i] = there(t, v->def->in[i]);
        t->b.hint = v->name;
        r = v->def->kind == OP_CAST
                ? nd_cast(&t->b, in[0], v->type.dtype)
                : nd_map(&t->b, (nd_ew)v->def->sub, in[0], in[1], in[2]);
    }
    nd_table_put(&t->there, v, r);
    return r;
}

static void route_product(router *t, nd_op *op)
{
    nd_value *y = op->out[0];
    t->b.loc = op->loc;
    t->b.path = op->path;
    t->b.phase = op->phase;
    nd_value *ids = there(t, t->ids), *x = there(t, op->in[0]);
    t->b.hint = y->name;
    nd_value *r = nd_grouped(&t->b, x, op->in[1], op->axes[0], ids,
                             op->naxes - 1, op->axes + 1);
    if (!r)
        return;
    r->def->sub = op->sub;
    t->b.hint = y->name;
    nd_value *back = nd_combine(&t->b, r, t->ids, t->routed);
    nd_table_put(&t->there, back, r);
    if (back && !nd_same_axes(&back->type, &y->type)) {
        back = nd_broadcast(&t->b, back, &y->type);
        nd_table_put(&t->there, back, r);
    }
    nd_replace_uses(t->m, y, back);
}

/* All products of the block that choose by `ids`; notes them in `done`. */
static void route(nd_module *m, nd_block *block, nd_value *ids, nd_table *done)
{
    nd_arena *a = m->ctx->arena;
    nd_route *r = ND_NEW(a, nd_route);
    router t = {.m = m, .block = block, .ids = ids, .there.arena = a,
                .moves.arena = a, .b = {.m = m, .block = block}};
    for (int i = 0; i < block->ops.n; i++)
        if (chooses(block->ops.v[i], ids))
            nd_table_put(done, block->ops.v[i], block->ops.v[i]);
    if (!wants_route(&t, r))
        return;
    t.routed = nd_axis_new(m, "routed", nd_route_size(&m->mesh, r),
                           ids->type.axis[0]->loc);
    t.routed->route = r;
    for (t.b.at = 0; t.b.at < block->ops.n; t.b.at++)
        if (chooses(block->ops.v[t.b.at], ids)) {
            nd_op *op = block->ops.v[t.b.at];
            route_product(&t, op);
            if (block->ops.v[t.b.at] != op)
                return;              /* an error was reported */
        }
}

static void route_block(nd_module *m, nd_block *block, nd_table *done)
{
    for (int i = 0; i < block->ops.n; i++) {
        nd_op *op = block->ops.v[i];
        if (op->body)
            route_block(m, op->body, done);
        if (op->kind == OP_GROUPED && !nd_routed_axis(&op->in[2]->type) &&
            !nd_table_get(done, op))
            route(m, block, op->in[2], done);
    }
}

void nd_route_experts(nd_module *m)
{
    nd_table done = {.arena = m->ctx->arena};
    route_block(m, m->step, &done);
    nd_dce(m);
}
