/* rules.c - one local typing rule per op.
 *
 * A rule looks at the operand types alone and says the result type: axes, how
 * each is cut, which sums are pending. On a graph without cuts this is shape
 * inference; on a sharded one it is the proof that no collective is missing:
 *
 *   x: f32[batch/dp, d]  w: f32[d, ffn/tp]
 *   contract [d] x, w     -> f32[batch/dp, ffn/tp]
 *   h: f32[batch/dp, ffn/tp]  v: f32[ffn/tp, d]
 *   contract [ffn] h, v   -> f32[batch/dp, d]+tp      the sum is pending
 *
 * bf16 and f16 are for storage: what computes with them is refused, but for a
 * product, whose result is f32. A pending sum is not rounded to them before it
 * is resolved: parts would be rounded that nobody rounds on one device.
 *
 * Operands that share an axis must cut it alike. A pending sum passes through
 * what is linear in it. A mesh axis appears once in a type: it cuts one axis,
 * or a sum is pending over it.
 */
#include "ir.h"

#include <string.h>

typedef const char *rule_fn(nd_module *m, const nd_op *op, nd_type *out);

static char *text(nd_module *m, const nd_type *t)
{
    nd_buf b = {.arena = m->ctx->arena};
    nd_print_type(&b, m, t);
    return b.s;
}

static const char *wrong(nd_module *m, const char *why, const nd_type *a,
                         const nd_type *b)
{
    return nd_fmt(m->ctx->arena, "%s: %s and %s", why, text(m, a), text(m, b));
}

static const nd_type *in(const nd_op *op, int i)
{
    return &op->in[i]->type;
}

/* Copies into u the cuts of those of its axes that t has; false if u already
 * holds another cut for one. `seen` marks the axes of u that have been set. */
static bool merge_cuts(nd_type *u, const nd_type *t, uint32_t *seen)
{
    for (int i = 0; i < u->rank; i++) {
        int j = nd_axis_at(t, u->axis[i]);
        if (j < 0)
            continue;
        if (*seen >> i & 1) {
            if (!nd_cut_eq(u->cut[i], t->cut[j]))
                return false;
        } else {
            u->cut[i] = t->cut[j];
            *seen |= 1u << i;
        }
    }
    return true;
}

/* Union of two operands with agreeing cuts. */
static const char *join(nd_module *m, const nd_type *a, const nd_type *b,
                        nd_type *u)
{
    int extra = 0;
    for (int i = 0; i < b->rank; i++)
        extra += nd_axis_at(a, b->axis[i]) < 0;
    if (a->rank + extra > ND_MAX_RANK)
        return wrong(m, "too many axes together", a, b);
    uint32_t seen = 0;
    *u = nd_union(a, b);
    if (!merge_cuts(u, a, &seen) || !merge_cuts(u, b, &seen))
        return wrong(m, "a shared axis is cut in two ways", a, b);
    return NULL;
}

/* Why an op cannot compute with operand i, or NULL. */
static const char *too_narrow(nd_module *m, const nd_op *op, int i)
{
    if (!nd_is_narrow(in(op, i)->dtype))
        return NULL;
    return nd_fmt(m->ctx->arena, "%s of %s; it is computed in f32",
                  nd_op_name(op), text(m, in(op, i)));
}

static const char *rule_given(nd_module *m, const nd_op *op, nd_type *out)
{
    (void)m;
    *out = op->out[0]->type;
    return NULL;
}

static const char *rule_none(nd_module *m, const nd_op *op, nd_type *out)
{
    (void)m;
    (void)op;
    (void)out;
    return NULL;
}

static const char *rule_same(nd_module *m, const nd_op *op, nd_type *out)
{
    (void)m;
    *out = *in(op, 0);
    return NULL;
}

static const char *rule_cast(nd_module *m, const nd_op *op, nd_type *out)
{
    nd_dtype t = op->out[0]->type.dtype;
    *out = *in(op, 0);
    if (out->max || (out->sum && !nd_is_linear(op)))
        return nd_fmt(m->ctx->arena, "a cast of %s before its sum is resolved",
                      text(m, in(op, 0)));
    out->dtype = t;
    return NULL;
}

/* Which of `n` operands may be pending, by elementwise op: linear in it while
 * the others stay fixed. */
static const char *map_pending(nd_module *m, const nd_op *op, nd_type *out)
{
    int pending = 0, which = -1;
    bool equal = true;
    for (int i = 0; i < op->nin; i++) {
        if (in(op, i)->max)
            return "a pending maximum is used";
        if (op->sub == EW_WHERE && i == 0 && in(op, 0)->sum)
            return "a condition with a pending sum";
        if (in(op, i)->sum) {
            pending++;
            which = i;
        }
    }
    if (!pending)
        return NULL;
    out->sum = in(op, which)->sum;
    for (int i = op->sub == EW_WHERE; i < op->nin; i++)
        if (in(op, i)->sum != out->sum && !nd_is_const(op->in[i], 0))
            equal = false;
    switch (op->sub) {
    case EW_NEG:
        return NULL;
    case EW_ADD:
    case EW_SUB:
    case EW_WHERE:
        return equal ? NULL
                     : wrong(m, "a pending sum meets a value without it",
                             in(op, op->nin - 2), in(op, op->nin - 1));
    case EW_MUL:
        return pending == 1 ? NULL : "a product of two pending sums";
    case EW_DIV:
        return pending == 1 && which == 0 ? NULL : "division by a pending sum";
    default:
        return nd_fmt(m->ctx->arena, "%s of a pending sum is not linear",
                      nd_ews[op->sub].name);
    }
}

static const char *rule_map(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_ew_info *e = &nd_ews[op->sub];
    if (op->nin != e->nin)
        return nd_fmt(m->ctx->arena, "%s takes %d operands", e->name, e->nin);
    bool logic = op->sub == EW_AND || op->sub == EW_OR || op->sub == EW_NOT;
    int first = e->result == 's';
    if (first && in(op, 0)->dtype != ND_BOOL)
        return "the condition of where is not bool";
    for (int i = first; i < op->nin; i++) {
        if (too_narrow(m, op, i))
            return too_narrow(m, op, i);
        if (in(op, i)->dtype != in(op, first)->dtype)
            return wrong(m, "operands of different dtypes", in(op, first),
                         in(op, i));
        if (logic && in(op, i)->dtype != ND_BOOL)
            return nd_fmt(m->ctx->arena, "%s of %s", e->name,
                          text(m, in(op, i)));
    }
    /* The operand with most axes leads, so that a mask or a scalar on the left
     * does not turn the layout around; the first of equals. */
    int lead = 0;
    for (int i = 1; i < op->nin; i++)
        if (in(op, i)->rank > in(op, lead)->rank)
            lead = i;
    *out = *in(op, lead);
    out->sum = out->max = 0;
    for (int i = 0; i < op->nin; i++) {
        nd_type u;
        const char *why = join(m, out, in(op, i), &u);
        if (why)
            return why;
        *out = u;
    }
    out->dtype = e->result == 'b' ? ND_BOOL : in(op, first)->dtype;
    return map_pending(m, op, out);
}

static const char *rule_rename(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *in(op, 0);
    int i = nd_axis_at(out, op->axes[0]);
    if (i < 0 || nd_axis_at(out, op->to[0]) >= 0)
        return nd_fmt(m->ctx->arena, "cannot rename %s to %s in %s",
                      op->axes[0]->name, op->to[0]->name, text(m, out));
    if (op->axes[0]->size != op->to[0]->size)
        return "rename between axes of different sizes";
    out->axis[i] = op->to[0];
    return NULL;
}

bool nd_cuts_alike(const nd_module *m, nd_cut cut, const nd_axis *major)
{
    int64_t parts = 1;
    for (int i = 0; i < cut.n; i++)
        parts *= m->mesh.size[cut.m[i]];
    return major->size % parts == 0;
}

static bool sizes_multiply(int n, nd_axis *const *part, const nd_axis *whole)
{
    int64_t size = 1;
    for (int i = 0; i < n; i++)
        if (__builtin_mul_overflow(size, part[i]->size, &size))
            return false;
    return n > 0 && size == whole->size;
}

static const char *rule_split(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = in(op, 0);
    int k = nd_axis_at(x, op->axes[0]), extra = op->nto - 1;
    if (k < 0 || !sizes_multiply(op->nto, op->to, op->axes[0]))
        return nd_fmt(m->ctx->arena, "cannot split %s of %s",
                      op->axes[0]->name, text(m, x));
    if (x->rank + extra > ND_MAX_RANK)
        return "too many axes";
    if (!nd_cuts_alike(m, x->cut[k], op->to[0]))
        return nd_fmt(m->ctx->arena, "%s is not cut at multiples of its parts",
                      text(m, x));
    *out = *x;
    out->rank += extra;
    for (int i = x->rank - 1; i > k; i--) {
        out->axis[i + extra] = x->axis[i];
        out->cut[i + extra] = x->cut[i];
    }
    for (int i = 0; i <= extra; i++) {
        if (nd_axis_at(x, op->to[i]) >= 0)
            return nd_fmt(m->ctx->arena, "%s has an axis %s already",
                          text(m, x), op->to[i]->name);
        for (int j = 0; j < i; j++)
            if (op->to[j] == op->to[i])
                return "an axis is named twice";
        out->axis[k + i] = op->to[i];
        out->cut[k + i] = i ? (nd_cut){0} : x->cut[k];
    }
    return NULL;
}

/* The flat axis takes the place of its major part. */
static const char *rule_flatten(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = in(op, 0);
    nd_axis *a = op->to[0];
    *out = *x;
    if (!sizes_multiply(op->naxes, op->axes, a) || nd_axis_at(x, a) >= 0)
        return nd_fmt(m->ctx->arena, "cannot flatten %s to %s", text(m, x),
                      a->name);
    for (int i = 0; i < op->naxes; i++) {
        int k = nd_axis_at(out, op->axes[i]);
        if (i && op->axes[i] == op->axes[0])
            return "an axis is named twice";
        if (k < 0)
            return nd_fmt(m->ctx->arena, "%s has no axis %s", text(m, x),
                          op->axes[i]->name);
        if (i ? out->cut[k].n : !nd_cuts_alike(m, out->cut[k], op->axes[0]))
            return nd_fmt(m->ctx->arena, "%s is cut inside %s", text(m, x),
                          a->name);
        if (i)
            nd_drop_axis(out, k);
    }
    out->axis[nd_axis_at(out, op->axes[0])] = a;
    return NULL;
}

static const char *rule_cumsum(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *in(op, 0);
    int k = nd_axis_at(out, op->axes[0]);
    if (too_narrow(m, op, 0))
        return too_narrow(m, op, 0);
    if (k < 0 || out->cut[k].n || out->max || out->dtype == ND_BOOL)
        return nd_fmt(m->ctx->arena, "no running sum along %s of %s",
                      op->axes[0]->name, text(m, out));
    return NULL;
}

static const char *rule_roll(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *in(op, 0);
    int k = nd_axis_at(out, op->axes[0]);
    if (k < 0 || out->cut[k].n)
        return nd_fmt(m->ctx->arena, "no roll along %s of %s",
                      op->axes[0]->name, text(m, out));
    return NULL;
}

static const char *rule_broadcast(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = in(op, 0);
    *out = op->out[0]->type;
    for (int i = 0; i < x->rank; i++) {
        int j = nd_axis_at(out, x->axis[i]);
        if (j < 0 || !nd_cut_eq(out->cut[j], x->cut[i]))
            return wrong(m, "broadcast loses or cuts an axis", x, out);
    }
    if (x->max || (x->sum != out->sum && !nd_is_const(op->in[0], 0)))
        return wrong(m, "broadcast changes what is pending", x, out);
    return NULL;
}

static const char *rule_reduce(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *in(op, 0);
    if (too_narrow(m, op, 0))
        return too_narrow(m, op, 0);
    if (out->max || (out->sum && op->sub != RED_SUM))
        return "a reduction over a pending value";
    uint32_t over = 0;
    for (int k = 0; k < op->naxes; k++) {
        int i = nd_axis_at(out, op->axes[k]);
        if (i < 0)
            return nd_fmt(m->ctx->arena, "%s has no axis %s",
                          text(m, in(op, 0)), op->axes[k]->name);
        over |= nd_cut_bits(out->cut[i]);
        nd_drop_axis(out, i);
    }
    if (op->sub == RED_SUM)
        out->sum |= over;
    else if (op->sub == RED_MAX)
        out->max = over;
    else if (over)
        return "a minimum over a cut axis";
    return NULL;
}

/* A product may be stored in any axis order: the one that its result declares,
 * if that names the same axes. */
static void order_like(nd_type *t, const nd_type *declared)
{
    nd_type r = *t;
    if (declared->rank != t->rank)
        return;
    for (int i = 0; i < t->rank; i++) {
        int k = nd_axis_at(t, declared->axis[i]);
        if (k < 0)
            return;
        r.axis[i] = t->axis[k];
        r.cut[i] = t->cut[k];
    }
    *t = r;
}

static const char *rule_contract(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = in(op, 0), *y = in(op, 1);
    const char *why = join(m, x, y, out);
    if (why)
        return why;
    if (x->max || y->max || (x->sum && y->sum))
        return wrong(m, "a product of pending values", x, y);
    if (x->dtype != y->dtype)
        return wrong(m, "operands of different dtypes", x, y);
    out->dtype = nd_is_narrow(x->dtype) ? ND_F32 : x->dtype;
    out->sum = x->sum | y->sum;
    for (int k = 0; k < op->naxes; k++) {
        int i = nd_axis_at(out, op->axes[k]);
        if (i < 0)
            return nd_fmt(m->ctx->arena, "neither operand has the axis %s",
                          op->axes[k]->name);
        out->sum |= nd_cut_bits(out->cut[i]);
        nd_drop_axis(out, i);
    }
    order_like(out, &op->out[0]->type);
    return NULL;
}

static const char *rule_gather(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = in(op, 0), *ix = in(op, 1);
    nd_type both;
    const char *why = join(m, x, ix, &both);
    if (why)
        return why;
    int a = nd_axis_at(x, op->axes[0]);
    if (a < 0 || nd_axis_at(ix, op->axes[0]) >= 0)
        return nd_fmt(m->ctx->arena, "cannot index axis %s of %s",
                      op->axes[0]->name, text(m, x));
    if (ix->dtype != ND_I32 || ix->sum || ix->max || x->max)
        return wrong(m, "the index is not a settled i32", x, ix);
    /* The index's own axes take the place of the indexed one. */
    *out = (nd_type){.dtype = x->dtype, .sum = x->sum};
    for (int i = 0; i < x->rank; i++) {
        if (i != a) {
            out->axis[out->rank] = x->axis[i];
            out->cut[out->rank++] = x->cut[i];
            continue;
        }
        for (int j = 0; j < ix->rank; j++)
            if (nd_axis_at(x, ix->axis[j]) < 0) {
                out->axis[out->rank] = ix->axis[j];
                out->cut[out->rank++] = ix->cut[j];
            }
    }
    out->sum |= nd_cut_bits(x->cut[a]);
    return NULL;
}

/* ---- experts ------------------------------------------------------------- */

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
                      text(m, rows), r->route->experts->name);
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
static const char *rule_grouped(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = in(op, 0), *w = in(op, 1), *ix = in(op, 2);
    nd_type rows, all;
    const char *why = join(m, x, ix, &rows);
    why = why ? why : join(m, x, w, &all);
    if (why)
        return why;
    if (!op->naxes || nd_axis_at(w, op->axes[0]) < 0 || !settled_ids(ix))
        return wrong(m, "no groups", w, ix);
    if (x->dtype != w->dtype || x->max || w->max || (x->sum && w->sum))
        return wrong(m, "no product", x, w);
    int summed = 0;
    for (int k = 0; k < rows.rank; k++) {
        nd_axis *a = rows.axis[k];
        bool in_x = nd_axis_at(x, a) >= 0, in_w = nd_axis_at(w, a) >= 0;
        bool row = nd_axis_at(ix, a) >= 0, over = is_summed(op, a);
        if (over ? row || !in_x || !in_w : !row || in_w)
            return wrong(m, "rows and groups do not fit", &rows, w);
        summed += over;
    }
    if (summed + 1 != op->naxes)
        return wrong(m, "rows and groups do not fit", &rows, w);
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
                    return wrong(m, "too many axes together", x, w);
                out->axis[out->rank] = a;
                out->cut[out->rank++] = of[s]->cut[k];
            }
        }
    out->sum = x->sum | w->sum | sum;
    return why;
}

/* The axes of i are the rows; those of x and g that are left are w's. Each rank
 * makes the sums of its own a, however that is cut. */
static const char *rule_grouped_sum(nd_module *m, const nd_op *op,
                                    nd_type *out)
{
    const nd_type *x = in(op, 0), *g = in(op, 1), *ix = in(op, 2);
    nd_type rows, all;
    *out = op->out[0]->type;
    const char *why = join(m, x, ix, &rows);
    why = why ? why : join(m, g, ix, &rows);
    why = why ? why : join(m, x, g, &all);
    if (why)
        return why;
    int a = op->naxes ? nd_axis_at(out, op->axes[0]) : -1, left = 1;
    if (a < 0 || !settled_ids(ix) || op->naxes != ix->rank + 1)
        return wrong(m, "no groups", out, ix);
    if (x->dtype != g->dtype || x->max || g->max || (x->sum && g->sum))
        return wrong(m, "no product", x, g);
    uint32_t met = 0, parts = 0;
    why = met_over(m, ix, op->axes[0], out->cut[a], &met);
    for (int k = 0; k < ix->rank; k++) {
        if (!is_summed(op, ix->axis[k]))
            return wrong(m, "rows that are not summed", ix, out);
        parts |= nd_cut_bits(ix->cut[k]);
    }
    parts &= ~met;
    for (int k = 0; k < all.rank; k++) {
        if (is_summed(op, all.axis[k]))
            continue;
        int at = nd_axis_at(out, all.axis[k]);
        if (at < 0 || (nd_axis_at(x, all.axis[k]) >= 0 &&
                       nd_axis_at(g, all.axis[k]) >= 0))
            return wrong(m, "the sums do not fit", &all, out);
        out->cut[at] = all.cut[k];
        left++;
    }
    if (left != out->rank)
        return wrong(m, "the sums do not fit", &all, out);
    out->sum = x->sum | g->sum | parts;
    out->max = 0;
    out->dtype = nd_is_narrow(x->dtype) ? ND_F32 : x->dtype;
    return why;
}

/* Do the rows of this op lie on the ranks that the route names, or on one? */
static bool on_ranks(const nd_module *m, const nd_op *op)
{
    return m->state & ND_IS_SHARDED || nd_cut_mask(in(op, 1));
}

/* The route of a dispatch or combine; its rows as they are cut here. */
static const char *route_of(nd_module *m, const nd_op *op, nd_type *rows)
{
    const nd_route *r = op->axes[0]->route;
    const nd_type *ix = in(op, 1);
    if (!r || op->mesh != 1u << r->over)
        return nd_fmt(m->ctx->arena, "%s is no axis of rows that travel so",
                      op->axes[0]->name);
    *rows = r->rows;
    for (int k = 0; k < rows->rank; k++)
        if (!on_ranks(m, op))
            rows->cut[k] = (nd_cut){0};
    if (!settled_ids(ix) || ix->rank != rows->rank)
        return wrong(m, "not the rows that travel", ix, rows);
    for (int k = 0; k < rows->rank; k++) {
        int at = nd_axis_at(ix, rows->axis[k]);
        if (at < 0)
            return wrong(m, "not the rows that travel", ix, rows);
        if (!nd_cut_eq(ix->cut[at], rows->cut[k]))
            return wrong(m, "rows travel from where they do not lie", ix,
                         rows);
    }
    return NULL;
}

static const char *rule_dispatch(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = in(op, 0), *ix = in(op, 1);
    nd_type rows, both;
    const char *why = route_of(m, op, &rows);
    why = why ? why : join(m, x, ix, &both);
    if (why)
        return why;
    if (nd_routed_axis(x) || x->max)
        return wrong(m, "not the rows that travel", x, ix);
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

static const char *rule_combine(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *y = in(op, 0);
    const char *why = route_of(m, op, out);
    nd_cut cut = {0};
    if (why)
        return why;
    if (on_ranks(m, op))
        cut = nd_route_cut(op->axes[0]->route);
    int at = nd_axis_at(y, op->axes[0]);
    if (at < 0 || y->max || !nd_cut_eq(y->cut[at], cut) ||
        out->rank + y->rank > ND_MAX_RANK)
        return wrong(m, "not the rows that travelled", y, out);
    out->dtype = y->dtype;
    out->sum = y->sum;
    for (int k = 0; k < y->rank; k++) {
        if (k == at)
            continue;
        if (nd_axis_at(out, y->axis[k]) >= 0)
            return wrong(m, "not the rows that travelled", y, out);
        out->axis[out->rank] = y->axis[k];
        out->cut[out->rank++] = y->cut[k];
    }
    return NULL;
}

static const char *rule_scatter_add(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *g = in(op, 0), *ix = in(op, 1);
    nd_type both;
    const char *why = join(m, g, ix, &both);
    if (!why)
        why = too_narrow(m, op, 0);
    if (why)
        return why;
    *out = op->out[0]->type;
    if (nd_axis_at(out, op->axes[0]) < 0 || ix->sum || ix->max || g->max)
        return wrong(m, "scatter_add does not fit", g, out);
    uint32_t sum = g->sum;
    for (int i = 0; i < both.rank; i++) {
        int j = nd_axis_at(out, both.axis[i]);
        if (j < 0)
            sum |= nd_cut_bits(both.cut[i]);
        else if (!nd_cut_eq(both.cut[i], out->cut[j]))
            return wrong(m, "a kept axis changes its cut", g, out);
    }
    out->sum = sum;
    out->max = 0;
    return NULL;
}

/* The body's argument types follow the operands; the yields must agree. */
static const char *rule_repeat(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_block *b = op->body;
    if (b->args.n != op->nin || b->yields.n < op->ncarry ||
        b->yields.n != op->nout)
        return "the body does not match the operands or results";
    for (int i = 0; i < op->nin; i++) {
        nd_type want = *in(op, i);
        const nd_type *arg = &b->args.v[i]->type;
        if (i >= op->ncarry) {
            int k = nd_axis_at(&want, op->axes[0]);
            if (k < 0)
                return "a scanned operand lacks the repeat's axis";
            nd_drop_axis(&want, k);
        }
        if (!nd_same_axes(&want, arg) || !nd_same_cut(&want, arg))
            return wrong(m, "operand and body argument differ", &want, arg);
    }
    for (int i = 0; i < op->nout; i++) {
        const nd_type *y = &b->yields.v[i]->type;
        out[i] = *y;
        if (i < op->ncarry) {
            const nd_type *arg = &b->args.v[i]->type;
            if (!nd_same_axes(y, arg) || !nd_same_cut(y, arg))
                return wrong(m, "a carried value changes its type", arg, y);
            continue;
        }
        if (y->rank == ND_MAX_RANK)
            return "too many axes to stack";
        memmove(out[i].axis + 1, y->axis, sizeof *y->axis * (size_t)y->rank);
        memmove(out[i].cut + 1, y->cut, sizeof *y->cut * (size_t)y->rank);
        out[i].axis[0] = op->axes[0];
        out[i].cut[0] = (nd_cut){0};
        out[i].rank++;
    }
    return NULL;
}

static const char *rule_all_reduce(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *in(op, 0);
    uint32_t *pending = op->sub == RED_MAX ? &out->max : &out->sum;
    if (op->sub == RED_MIN || !op->mesh || (*pending & op->mesh) != op->mesh)
        return nd_fmt(m->ctx->arena, "%s is not pending over what is reduced",
                      text(m, in(op, 0)));
    *pending &= ~op->mesh;
    return NULL;
}

static int only_bit(uint32_t mask)
{
    for (int i = 0; i < ND_MAX_MESH; i++)
        if (mask == 1u << i)
            return i;
    return -1;
}

static const char *rule_slice(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *in(op, 0);
    int i = nd_axis_at(out, op->axes[0]), k = only_bit(op->mesh);
    if (i < 0 || k < 0 || out->cut[i].n == ND_MAX_CUT)
        return nd_fmt(m->ctx->arena, "cannot cut %s of %s", op->axes[0]->name,
                      text(m, out));
    out->cut[i].m[out->cut[i].n++] = (uint8_t)k;
    return NULL;
}

static const char *rule_reduce_scatter(nd_module *m, const nd_op *op,
                                       nd_type *out)
{
    const char *why = rule_slice(m, op, out);
    if (why)
        return why;
    if (!(out->sum & op->mesh))
        return nd_fmt(m->ctx->arena, "%s is not pending over what is reduced",
                      text(m, in(op, 0)));
    out->sum &= ~op->mesh;
    return NULL;
}

static const char *rule_all_gather(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *in(op, 0);
    int i = nd_axis_at(out, op->axes[0]), k = only_bit(op->mesh);
    if (i < 0 || k < 0 || !out->cut[i].n ||
        out->cut[i].m[out->cut[i].n - 1] != k)
        return nd_fmt(m->ctx->arena, "%s is not cut last by what is gathered",
                      text(m, in(op, 0)));
    out->cut[i].m[--out->cut[i].n] = 0;
    return NULL;
}

/* Each rank has one element of the axis and gives it to another one. */
static const char *rule_shift_ring(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *in(op, 0);
    int i = nd_axis_at(out, op->axes[0]), k = only_bit(op->mesh);
    if (i < 0 || k < 0 || !nd_cut_eq(out->cut[i], (nd_cut){1, {(uint8_t)k}}) ||
        out->axis[i]->size != m->mesh.size[k])
        return nd_fmt(m->ctx->arena,
                      "%s is not cut in one element of %s per rank",
                      text(m, out), op->axes[0]->name);
    return NULL;
}

/* The first axis is gathered, the second is cut: every rank keeps as much. */
static const char *rule_all_to_all(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = in(op, 0);
    int i = op->naxes == 2 ? nd_axis_at(x, op->axes[1]) : -1;
    if (i < 0 || op->axes[0] == op->axes[1] || x->cut[i].n == ND_MAX_CUT)
        return nd_fmt(m->ctx->arena, "all_to_all cuts no other axis of %s",
                      text(m, x));
    const char *why = rule_all_gather(m, op, out);
    if (!why)
        out->cut[i].m[out->cut[i].n++] = (uint8_t)only_bit(op->mesh);
    return why;
}

static rule_fn *const rules[OP_COUNT] = {
#define OP(K, name, nin, attrs, traits, rule, vjp, eval, doc) \
    [OP_##K] = rule_##rule,
#define EW(...)
#include "ops.def"
#undef OP
#undef EW
};

/* Every mesh axis at most once: as a cut, or as pending. */
static const char *mesh_used_once(nd_module *m, const nd_type *t)
{
    uint32_t seen = t->sum;
    if (t->sum & t->max)
        return "a mesh axis is pending twice";
    seen |= t->max;
    for (int i = 0; i < t->rank; i++) {
        if (seen & nd_cut_bits(t->cut[i]))
            return nd_fmt(m->ctx->arena, "%s uses a mesh axis twice",
                          text(m, t));
        seen |= nd_cut_bits(t->cut[i]);
    }
    return NULL;
}

const char *nd_infer(nd_module *m, const nd_op *op, nd_type *out)
{
    if (nd_ops[op->kind].nin >= 0 && op->nin != nd_ops[op->kind].nin)
        return "wrong number of operands";
    const char *why = rules[op->kind](m, op, out);
    for (int i = 0; !why && i < op->nout; i++)
        why = mesh_used_once(m, &out[i]);
    return why;
}
