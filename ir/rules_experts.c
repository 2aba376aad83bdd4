/* rules_experts.c - typing rules of products by groups, and of rows that travel
 * to the rank that holds their group.
 *
 *   x: f32[batch/dp, d]  w: f32[expert/ep, d, ffn]  i: i32[batch/dp]
 *   grouped x, w, i          -> f32[batch/dp, ffn]+ep     others add 0
 *   x: f32[routed/(dp,ep), d], where the route is over ep
 *   grouped x, w, i          -> f32[routed/(dp,ep), ffn]  all are at home
 */
#include "rules.h"

#include <string.h>

/* The mesh axis (a bit) along which each row is with the rank that holds its
 * part of `a`: there, no rank has a part of what belongs to another. */
static const char *met_over(nd_module *m, const nd_type *rows, nd_axis *a,
                            nd_cut cut, uint32_t *met)
{
    nd_axis *r = nd_routed_axis(rows);
    *met = !r ? 0 : nd_cut_bits(nd_cut_at(rows, r)) & 1u << r->route->over;
    if (*met && (r->route->experts != a || nd_cut_bits(cut) != *met))
        return nd_fmt(m->ctx->arena, "the rows of %s are with the ranks that "
                      "hold their %s, which is cut in another way here",
                      ty_text(m, rows), r->route->experts->name);
    return NULL;
}

static bool settled_ids(const nd_type *i)
{
    return i->dtype == ND_I32 && !i->sum && !i->max && i->rank;
}

static bool is_summed(const nd_op *op, const nd_axis *a)
{
    for (int k = 1; k < op->naxes; k++)
        if (op->axes[k] == a)
            return true;
    return false;
}

/* x[rows, in], w[a, in, out], i[rows]: x has rows of i alone. */
const char *rule_grouped(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = ty_in(op, 0), *w = ty_in(op, 1), *ix = ty_in(op, 2);
    nd_type rows, all;
    const char *why = ty_join(m, x, ix, &rows);
    why = why ? why : ty_join(m, x, w, &all);
    if (why)
        return why;
    if (!op->naxes || nd_axis_at(w, op->axes[0]) < 0 || !settled_ids(ix))
        return ty_wrong(m, "no groups", w, ix);
    if (x->dtype != w->dtype || x->max || w->max || (x->sum && w->sum))
        return ty_wrong(m, "no product", x, w);
    int summed = 0;
    for (int k = 0; k < rows.rank; k++) {
        nd_axis *a = rows.axis[k];
        bool in_x = nd_axis_at(x, a) >= 0, in_w = nd_axis_at(w, a) >= 0;
        bool row = nd_axis_at(ix, a) >= 0, over = is_summed(op, a);
        if (over ? row || !in_x || !in_w : !row || in_w)
            return ty_wrong(m, "rows and groups do not fit", &rows, w);
        summed += over;
    }
    if (summed + 1 != op->naxes)
        return ty_wrong(m, "rows and groups do not fit", &rows, w);
    nd_cut cut = nd_cut_at(w, op->axes[0]);
    uint32_t met = 0;
    why = met_over(m, &rows, op->axes[0], cut, &met);
    uint32_t sum = nd_cut_bits(cut) & ~met;
    *out = (nd_type){.dtype = nd_is_narrow(x->dtype) ? ND_F32 : x->dtype};
    const nd_type *of[2] = {&rows, w};
    for (int s = 0; s < 2; s++)
        for (int k = 0; k < of[s]->rank; k++) {
            nd_axis *a = of[s]->axis[k];
            if (is_summed(op, a)) {
                sum |= nd_cut_bits(of[s]->cut[k]);
            } else if (a != op->axes[0]) {
                if (out->rank == ND_MAX_RANK)
                    return ty_wrong(m, "too many axes together", x, w);
                out->axis[out->rank] = a;
                out->cut[out->rank++] = of[s]->cut[k];
            }
        }
    out->sum = x->sum | w->sum | sum;
    return why;
}

/* The axes of i are the rows; those of x and g that are left are w's. Each rank
 * makes the sums of its own a, however that is cut. */
const char *rule_grouped_sum(nd_module *m, const nd_op *op,
                             nd_type *out)
{
    const nd_type *x = ty_in(op, 0), *g = ty_in(op, 1), *ix = ty_in(op, 2);
    nd_type rows, all;
    *out = op->out[0]->type;
    const char *why = ty_join(m, x, ix, &rows);
    why = why ? why : ty_join(m, g, ix, &rows);
    why = why ? why : ty_join(m, x, g, &all);
    if (why)
        return why;
    int a = op->naxes ? nd_axis_at(out, op->axes[0]) : -1, left = 1;
    if (a < 0 || !settled_ids(ix) || op->naxes != ix->rank + 1)
        return ty_wrong(m, "no groups", out, ix);
    if (x->dtype != g->dtype || x->max || g->max || (x->sum && g->sum))
        return ty_wrong(m, "no product", x, g);
    uint32_t met = 0, parts = 0;
    why = met_over(m, ix, op->axes[0], out->cut[a], &met);
    for (int k = 0; k < ix->rank; k++) {
        if (!is_summed(op, ix->axis[k]))
            return ty_wrong(m, "rows that are not summed", ix, out);
        parts |= nd_cut_bits(ix->cut[k]);
    }
    parts &= ~met;
    for (int k = 0; k < all.rank; k++) {
        if (is_summed(op, all.axis[k]))
            continue;
        int at = nd_axis_at(out, all.axis[k]);
        if (at < 0 || (nd_axis_at(x, all.axis[k]) >= 0 &&
                       nd_axis_at(g, all.axis[k]) >= 0))
            return ty_wrong(m, "the sums do not fit", &all, out);
        out->cut[at] = all.cut[k];
        left++;
    }
    if (left != out->rank)
        return ty_wrong(m, "the sums do not fit", &all, out);
    out->sum = x->sum | g->sum | parts;
    out->max = 0;
    out->dtype = nd_is_narrow(x->dtype) ? ND_F32 : x->dtype;
    return why;
}

/* Do the rows of this op lie on the ranks that the route names, or on one? */
static bool on_ranks(const nd_module *m, const nd_op *op)
{
    return m->state & ND_IS_SHARDED || nd_cut_mask(ty_in(op, 1));
}

/* The route of a dispatch or combine; its rows as they are cut here. */
static const char *route_of(nd_module *m, const nd_op *op, nd_type *rows)
{
    const nd_route *r = op->axes[0]->route;
    const nd_type *ix = ty_in(op, 1);
    if (!r || op->mesh != 1u << r->over)
        return nd_fmt(m->ctx->arena, "%s is no axis of rows that travel so",
                      op->axes[0]->name);
    *rows = r->rows;
    for (int k = 0; k < rows->rank; k++)
        if (!on_ranks(m, op))
            rows->cut[k] = (nd_cut){0};
    if (!settled_ids(ix) || ix->rank != rows->rank)
        return ty_wrong(m, "not the rows that travel", ix, rows);
    for (int k = 0; k < rows->rank; k++) {
        int at = nd_axis_at(ix, rows->axis[k]);
        if (at < 0)
            return ty_wrong(m, "not the rows that travel", ix, rows);
        if (!nd_cut_eq(ix->cut[at], rows->cut[k]))
            return ty_wrong(m, "rows travel from where they do not lie", ix,
                            rows);
    }
    return NULL;
}

const char *rule_dispatch(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = ty_in(op, 0), *ix = ty_in(op, 1);
    nd_type rows, both;
    const char *why = route_of(m, op, &rows);
    why = why ? why : ty_join(m, x, ix, &both);
    if (why)
        return why;
    if (nd_routed_axis(x) || x->max)
        return ty_wrong(m, "not the rows that travel", x, ix);
    *out = (nd_type){.dtype = x->dtype, .sum = x->sum, .rank = 1};
    out->axis[0] = op->axes[0];
    if (on_ranks(m, op))
        out->cut[0] = nd_route_cut(op->axes[0]->route);
    for (int k = 0; k < x->rank; k++)
        if (nd_axis_at(&rows, x->axis[k]) < 0) {
            out->axis[out->rank] = x->axis[k];
            out->cut[out->rank++] = x->cut[k];
        }
    return NULL;
}

const char *rule_combine(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *y = ty_in(op, 0);
    const char *why = route_of(m, op, out);
    nd_cut cut = {0};
    if (why)
        return why;
    if (on_ranks(m, op))
        cut = nd_route_cut(op->axes[0]->route);
    int at = nd_axis_at(y, op->axes[0]);
    if (at < 0 || y->max || !nd_cut_eq(y->cut[at], cut) ||
        out->rank + y->rank > ND_MAX_RANK)
        return ty_wrong(m, "not the rows that travelled", y, out);
    out->dtype = y->dtype;
    out->sum = y->sum;
    for (int k = 0; k < y->rank; k++) {
        if (k == at)
            continue;
        if (nd_axis_at(out, y->axis[k]) >= 0)
            return ty_wrong(m, "not the rows that travelled", y, out);
        out->axis[out->rank] = y->axis[k];
        out->cut[out->rank++] = y->cut[k];
    }
    return NULL;
}
