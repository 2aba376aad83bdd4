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
 * or a sum is pending over it. Products by groups and rows that travel are in
 * rules_experts.c, collectives in rules_comm.c.
 */
#include "rules.h"

#include <string.h>

char *ty_text(nd_module *m, const nd_type *t)
{
    nd_buf b = {.arena = m->ctx->arena};
    nd_print_type(&b, m, t);
    return b.s;
}

const char *ty_wrong(nd_module *m, const char *why, const nd_type *a,
                     const nd_type *b)
{
    return nd_fmt(m->ctx->arena, "%s: %s and %s", why, ty_text(m, a),
                  ty_text(m, b));
}

const nd_type *ty_in(const nd_op *op, int i)
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
const char *ty_join(nd_module *m, const nd_type *a, const nd_type *b,
                    nd_type *u)
{
    int extra = 0;
    for (int i = 0; i < b->rank; i++)
        extra += nd_axis_at(a, b->axis[i]) < 0;
    if (a->rank + extra > ND_MAX_RANK)
        return ty_wrong(m, "too many axes together", a, b);
    uint32_t seen = 0;
    *u = nd_union(a, b);
    if (!merge_cuts(u, a, &seen) || !merge_cuts(u, b, &seen))
        return ty_wrong(m, "a shared axis is cut in two ways", a, b);
    return NULL;
}

/* Why an op cannot compute with operand i, or NULL. */
const char *ty_too_narrow(nd_module *m, const nd_op *op, int i)
{
    if (!nd_is_narrow(ty_in(op, i)->dtype))
        return NULL;
    return nd_fmt(m->ctx->arena, "%s of %s; it is computed in f32",
                  nd_op_name(op), ty_text(m, ty_in(op, i)));
}

const char *rule_given(nd_module *m, const nd_op *op, nd_type *out)
{
    (void)m;
    *out = op->out[0]->type;
    return NULL;
}

const char *rule_none(nd_module *m, const nd_op *op, nd_type *out)
{
    (void)m;
    (void)op;
    (void)out;
    return NULL;
}

const char *rule_same(nd_module *m, const nd_op *op, nd_type *out)
{
    (void)m;
    *out = *ty_in(op, 0);
    return NULL;
}

const char *rule_cast(nd_module *m, const nd_op *op, nd_type *out)
{
    nd_dtype t = op->out[0]->type.dtype;
    *out = *ty_in(op, 0);
    if (out->max || (out->sum && !nd_is_linear(op)))
        return nd_fmt(m->ctx->arena, "a cast of %s before its sum is resolved",
                      ty_text(m, ty_in(op, 0)));
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
        if (ty_in(op, i)->max)
            return "a pending maximum is used";
        if (op->sub == EW_WHERE && i == 0 && ty_in(op, 0)->sum)
            return "a condition with a pending sum";
        if (ty_in(op, i)->sum) {
            pending++;
            which = i;
        }
    }
    if (!pending)
        return NULL;
    out->sum = ty_in(op, which)->sum;
    for (int i = op->sub == EW_WHERE; i < op->nin; i++)
        if (ty_in(op, i)->sum != out->sum && !nd_is_const(op->in[i], 0))
            equal = false;
    switch (op->sub) {
    case EW_NEG:
        return NULL;
    case EW_ADD:
    case EW_SUB:
    case EW_WHERE:
        return equal ? NULL
                     : ty_wrong(m, "a pending sum meets a value without it",
                                ty_in(op, op->nin - 2), ty_in(op, op->nin - 1));
    case EW_MUL:
        return pending == 1 ? NULL : "a product of two pending sums";
    case EW_DIV:
        return pending == 1 && which == 0 ? NULL : "division by a pending sum";
    default:
        return nd_fmt(m->ctx->arena, "%s of a pending sum is not linear",
                      nd_ews[op->sub].name);
    }
}

const char *rule_map(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_ew_info *e = &nd_ews[op->sub];
    if (op->nin != e->nin)
        return nd_fmt(m->ctx->arena, "%s takes %d operands", e->name, e->nin);
    bool logic = op->sub == EW_AND || op->sub == EW_OR || op->sub == EW_NOT;
    int first = e->result == 's';
    if (first && ty_in(op, 0)->dtype != ND_BOOL)
        return "the condition of where is not bool";
    for (int i = first; i < op->nin; i++) {
        if (ty_too_narrow(m, op, i))
            return ty_too_narrow(m, op, i);
        if (ty_in(op, i)->dtype != ty_in(op, first)->dtype)
            return ty_wrong(m, "operands of different dtypes", ty_in(op, first),
                            ty_in(op, i));
        if (logic && ty_in(op, i)->dtype != ND_BOOL)
            return nd_fmt(m->ctx->arena, "%s of %s", e->name,
                          ty_text(m, ty_in(op, i)));
    }
    /* The operand with most axes leads, so that a mask or a scalar on the left
     * does not turn the layout around; the first of equals. */
    int lead = 0;
    for (int i = 1; i < op->nin; i++)
        if (ty_in(op, i)->rank > ty_in(op, lead)->rank)
            lead = i;
    *out = *ty_in(op, lead);
    out->sum = out->max = 0;
    for (int i = 0; i < op->nin; i++) {
        nd_type u;
        const char *why = ty_join(m, out, ty_in(op, i), &u);
        if (why)
            return why;
        *out = u;
    }
    out->dtype = e->result == 'b' ? ND_BOOL : ty_in(op, first)->dtype;
    return map_pending(m, op, out);
}

const char *rule_rename(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *ty_in(op, 0);
    int i = nd_axis_at(out, op->axes[0]);
    if (i < 0 || nd_axis_at(out, op->to[0]) >= 0)
        return nd_fmt(m->ctx->arena, "cannot rename %s to %s in %s",
                      op->axes[0]->name, op->to[0]->name, ty_text(m, out));
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

const char *rule_split(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = ty_in(op, 0);
    int k = nd_axis_at(x, op->axes[0]), extra = op->nto - 1;
    if (k < 0 || !sizes_multiply(op->nto, op->to, op->axes[0]))
        return nd_fmt(m->ctx->arena, "cannot split %s of %s",
                      op->axes[0]->name, ty_text(m, x));
    if (x->rank + extra > ND_MAX_RANK)
        return "too many axes";
    if (!nd_cuts_alike(m, x->cut[k], op->to[0]))
        return nd_fmt(m->ctx->arena, "%s is not cut at multiples of its parts",
                      ty_text(m, x));
    *out = *x;
    out->rank += extra;
    for (int i = x->rank - 1; i > k; i--) {
        out->axis[i + extra] = x->axis[i];
        out->cut[i + extra] = x->cut[i];
    }
    for (int i = 0; i <= extra; i++) {
        if (nd_axis_at(x, op->to[i]) >= 0)
            return nd_fmt(m->ctx->arena, "%s has an axis %s already",
                          ty_text(m, x), op->to[i]->name);
        for (int j = 0; j < i; j++)
            if (op->to[j] == op->to[i])
                return "an axis is named twice";
        out->axis[k + i] = op->to[i];
        out->cut[k + i] = i ? (nd_cut){0} : x->cut[k];
    }
    return NULL;
}

/* The flat axis takes the place of its major part. */
const char *rule_flatten(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = ty_in(op, 0);
    nd_axis *a = op->to[0];
    *out = *x;
    if (!sizes_multiply(op->naxes, op->axes, a) || nd_axis_at(x, a) >= 0)
        return nd_fmt(m->ctx->arena, "cannot flatten %s to %s", ty_text(m, x),
                      a->name);
    for (int i = 0; i < op->naxes; i++) {
        int k = nd_axis_at(out, op->axes[i]);
        if (i && op->axes[i] == op->axes[0])
            return "an axis is named twice";
        if (k < 0)
            return nd_fmt(m->ctx->arena, "%s has no axis %s", ty_text(m, x),
                          op->axes[i]->name);
        if (i ? out->cut[k].n : !nd_cuts_alike(m, out->cut[k], op->axes[0]))
            return nd_fmt(m->ctx->arena, "%s is cut inside %s", ty_text(m, x),
                          a->name);
        if (i)
            nd_drop_axis(out, k);
    }
    out->axis[nd_axis_at(out, op->axes[0])] = a;
    return NULL;
}

const char *rule_cumsum(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *ty_in(op, 0);
    int k = nd_axis_at(out, op->axes[0]);
    if (ty_too_narrow(m, op, 0))
        return ty_too_narrow(m, op, 0);
    if (k < 0 || out->cut[k].n || out->max || out->dtype == ND_BOOL)
        return nd_fmt(m->ctx->arena, "no running sum along %s of %s",
                      op->axes[0]->name, ty_text(m, out));
    return NULL;
}

const char *rule_roll(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *ty_in(op, 0);
    int k = nd_axis_at(out, op->axes[0]);
    if (k < 0 || out->cut[k].n)
        return nd_fmt(m->ctx->arena, "no roll along %s of %s",
                      op->axes[0]->name, ty_text(m, out));
    return NULL;
}

const char *rule_broadcast(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = ty_in(op, 0);
    *out = op->out[0]->type;
    for (int i = 0; i < x->rank; i++) {
        int j = nd_axis_at(out, x->axis[i]);
        if (j < 0 || !nd_cut_eq(out->cut[j], x->cut[i]))
            return ty_wrong(m, "broadcast loses or cuts an axis", x, out);
    }
    if (x->max || (x->sum != out->sum && !nd_is_const(op->in[0], 0)))
        return ty_wrong(m, "broadcast changes what is pending", x, out);
    return NULL;
}

const char *rule_reduce(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *ty_in(op, 0);
    if (ty_too_narrow(m, op, 0))
        return ty_too_narrow(m, op, 0);
    if (out->max || (out->sum && op->sub != RED_SUM))
        return "a reduction over a pending value";
    uint32_t over = 0;
    for (int k = 0; k < op->naxes; k++) {
        int i = nd_axis_at(out, op->axes[k]);
        if (i < 0)
            return nd_fmt(m->ctx->arena, "%s has no axis %s",
                          ty_text(m, ty_in(op, 0)), op->axes[k]->name);
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

const char *rule_contract(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = ty_in(op, 0), *y = ty_in(op, 1);
    const char *why = ty_join(m, x, y, out);
    if (why)
        return why;
    if (x->max || y->max || (x->sum && y->sum))
        return ty_wrong(m, "a product of pending values", x, y);
    if (x->dtype != y->dtype)
        return ty_wrong(m, "operands of different dtypes", x, y);
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

const char *rule_gather(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = ty_in(op, 0), *ix = ty_in(op, 1);
    nd_type both;
    const char *why = ty_join(m, x, ix, &both);
    if (why)
        return why;
    int a = nd_axis_at(x, op->axes[0]);
    if (a < 0 || nd_axis_at(ix, op->axes[0]) >= 0)
        return nd_fmt(m->ctx->arena, "cannot index axis %s of %s",
                      op->axes[0]->name, ty_text(m, x));
    if (ix->dtype != ND_I32 || ix->sum || ix->max || x->max)
        return ty_wrong(m, "the index is not a settled i32", x, ix);
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

const char *rule_scatter_add(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *g = ty_in(op, 0), *ix = ty_in(op, 1);
    nd_type both;
    const char *why = ty_join(m, g, ix, &both);
    if (!why)
        why = ty_too_narrow(m, op, 0);
    if (why)
        return why;
    *out = op->out[0]->type;
    if (nd_axis_at(out, op->axes[0]) < 0 || ix->sum || ix->max || g->max)
        return ty_wrong(m, "scatter_add does not fit", g, out);
    uint32_t sum = g->sum;
    for (int i = 0; i < both.rank; i++) {
        int j = nd_axis_at(out, both.axis[i]);
        if (j < 0)
            sum |= nd_cut_bits(both.cut[i]);
        else if (!nd_cut_eq(both.cut[i], out->cut[j]))
            return ty_wrong(m, "a kept axis changes its cut", g, out);
    }
    out->sum = sum;
    out->max = 0;
    return NULL;
}

/* The body's argument types follow the operands; the yields must agree. */
const char *rule_repeat(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_block *b = op->body;
    if (b->args.n != op->nin || b->yields.n < op->ncarry ||
        b->yields.n != op->nout)
        return "the body does not match the operands or results";
    for (int i = 0; i < op->nin; i++) {
        nd_type want = *ty_in(op, i);
        const nd_type *arg = &b->args.v[i]->type;
        if (i >= op->ncarry) {
            int k = nd_axis_at(&want, op->axes[0]);
            if (k < 0)
                return "a scanned operand lacks the repeat's axis";
            nd_drop_axis(&want, k);
        }
        if (!nd_same_axes(&want, arg) || !nd_same_cut(&want, arg))
            return ty_wrong(m, "operand and body argument differ", &want, arg);
    }
    for (int i = 0; i < op->nout; i++) {
        const nd_type *y = &b->yields.v[i]->type;
        out[i] = *y;
        if (i < op->ncarry) {
            const nd_type *arg = &b->args.v[i]->type;
            if (!nd_same_axes(y, arg) || !nd_same_cut(y, arg))
                return ty_wrong(m, "a carried value changes its type", arg, y);
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
                          ty_text(m, t));
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
