/* experts.c - a weight that each row chooses, as one product per choice.
 *
 *   %u = gather [expert] %w, %e : f32[batch, slot, d, ffn]
 *   %p = mul %x, %u : f32[batch, slot, d, ffn]
 *   %y = reduce sum [d] %p : f32[batch, slot, ffn]
 *   ->
 *   %y = grouped [expert, d] %x, %w, %e : f32[batch, slot, ffn]
 *
 * where %e chooses by rows that w does not have and that stay. Nothing as large
 * as a weight per row is made, and each row costs one product. Before autodiff,
 * so that the backward products are of the same kind.
 */
#include "passes.h"

static bool has(const nd_type *t, const nd_axis *a)
{
    return nd_axis_at(t, a) >= 0;
}

/* What a sum of products multiplies: a contract's operands, or, where one has
 * all axes of the other, those of the product that is then summed. */
static nd_value *const *factors(const nd_op *op)
{
    if (op->kind == OP_CONTRACT)
        return op->in;
    const nd_op *p = op->kind == OP_REDUCE && op->sub == RED_SUM
                         ? op->in[0]->def
                         : NULL;
    return p && p->kind == OP_MAP && p->sub == EW_MUL &&
                   nd_is_float(p->out[0]->type.dtype)
               ? p->in
               : NULL;
}

/* Is factor `i` a gather by rows, and the other one rows of some of the same
 * axes? */
static bool is_grouped(const nd_module *m, const nd_op *op, int i)
{
    const nd_op *g = factors(op)[i]->def;
    if (!g || g->kind != OP_GATHER)
        return false;
    const nd_type *x = &factors(op)[1 - i]->type, *w = &g->in[0]->type;
    const nd_type *ids = &g->in[1]->type;
    const nd_axis *a = g->axes[0];
    int rows = 0, out = 0;
    for (int k = 0; k < ids->rank; k++) {
        if (has(w, ids->axis[k]) || nd_has_axis(op, ids->axis[k]))
            return false;
        rows += has(x, ids->axis[k]);
    }
    for (int k = 0; k < x->rank; k++)
        if (has(w, x->axis[k]) ? !nd_has_axis(op, x->axis[k])
                               : !has(ids, x->axis[k]))
            return false;
    for (int k = 0; k < w->rank; k++) {
        if (w->axis[k] == a)
            continue;
        if (!has(x, w->axis[k]) && nd_has_axis(op, w->axis[k]))
            return false;
        out += !has(x, w->axis[k]);
    }
    return rows && out && op->naxes && !has(x, a) && a != m->sample &&
           (!m->sample || !nd_has_axis(op, m->sample));
}

static void group_product(nd_module *m, nd_op *op, int i, int at)
{
    nd_value *const *in = factors(op);
    const nd_op *g = in[i]->def;
    nd_builder b = {.m = m, .block = op->block, .at = at, .phase = op->phase,
                    .loc = op->loc, .path = op->path,
                    .hint = op->out[0]->name};
    nd_type order = op->out[0]->type;
    nd_value *y = nd_grouped(&b, in[1 - i], g->in[0], g->axes[0], g->in[1],
                             op->naxes, op->axes);
    if (!y)
        return;
    y->def->sub = op->kind == OP_CONTRACT && op->sub;
    if (!nd_same_axes(&y->type, &order))
        y = nd_broadcast(&b, y, &order);
    nd_replace_uses(m, op->out[0], y);
}

static void group_products(nd_module *m, nd_block *block)
{
    for (int k = 0; k < block->ops.n; k++) {
        nd_op *op = block->ops.v[k];
        int n = block->ops.n;
        if (op->body)
            group_products(m, op->body);
        if (!factors(op))
            continue;
        for (int i = 1; i >= 0; i--)
            if (is_grouped(m, op, i)) {
                group_product(m, op, i, k);
                break;
            }
        k += block->ops.n - n;
    }
}

bool pass_experts(nd_module *m, const nd_options *o)
{
    int errors = m->ctx->nerrors;
    (void)o;
    if (m->state & ND_HAS_GRADS)
        return true;
    group_products(m, m->step);
    nd_dce(m);
    nd_route_experts(m);
    return m->ctx->nerrors == errors;
}
