/* rules_comm.c - typing rules of collectives: each changes how a value is cut,
 * or what is pending.
 *
 *   +tp            -> settled    all_reduce
 *   +tp            -> seq/tp     reduce_scatter
 *   seq/tp         -> seq        all_gather
 *   seq/cp, heads  -> heads/cp   all_to_all
 */
#include "rules.h"

const char *rule_all_reduce(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *ty_in(op, 0);
    uint32_t *pending = op->sub == RED_MAX ? &out->max : &out->sum;
    if (op->sub == RED_MIN || !op->mesh || (*pending & op->mesh) != op->mesh)
        return nd_fmt(m->ctx->arena, "%s is not pending over what is reduced",
                      ty_text(m, ty_in(op, 0)));
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

const char *rule_slice(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *ty_in(op, 0);
    int i = nd_axis_at(out, op->axes[0]), k = only_bit(op->mesh);
    if (i < 0 || k < 0 || out->cut[i].n == ND_MAX_CUT)
        return nd_fmt(m->ctx->arena, "cannot cut %s of %s", op->axes[0]->name,
                      ty_text(m, out));
    out->cut[i].m[out->cut[i].n++] = (uint8_t)k;
    return NULL;
}

const char *rule_reduce_scatter(nd_module *m, const nd_op *op,
                                nd_type *out)
{
    const char *why = rule_slice(m, op, out);
    if (why)
        return why;
    if (!(out->sum & op->mesh))
        return nd_fmt(m->ctx->arena, "%s is not pending over what is reduced",
                      ty_text(m, ty_in(op, 0)));
    out->sum &= ~op->mesh;
    return NULL;
}

const char *rule_all_gather(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *ty_in(op, 0);
    int i = nd_axis_at(out, op->axes[0]), k = only_bit(op->mesh);
    if (i < 0 || k < 0 || !out->cut[i].n ||
        out->cut[i].m[out->cut[i].n - 1] != k)
        return nd_fmt(m->ctx->arena, "%s is not cut last by what is gathered",
                      ty_text(m, ty_in(op, 0)));
    out->cut[i].m[--out->cut[i].n] = 0;
    return NULL;
}

/* Each rank has one element of the axis and gives it to another one. */
const char *rule_shift_ring(nd_module *m, const nd_op *op, nd_type *out)
{
    *out = *ty_in(op, 0);
    int i = nd_axis_at(out, op->axes[0]), k = only_bit(op->mesh);
    if (i < 0 || k < 0 || !nd_cut_eq(out->cut[i], (nd_cut){1, {(uint8_t)k}}) ||
        out->axis[i]->size != m->mesh.size[k])
        return nd_fmt(m->ctx->arena,
                      "%s is not cut in one element of %s per rank",
                      ty_text(m, out), op->axes[0]->name);
    return NULL;
}

/* The first axis is gathered, the second is cut: every rank keeps as much. */
const char *rule_all_to_all(nd_module *m, const nd_op *op, nd_type *out)
{
    const nd_type *x = ty_in(op, 0);
    int i = op->naxes == 2 ? nd_axis_at(x, op->axes[1]) : -1;
    if (i < 0 || op->axes[0] == op->axes[1] || x->cut[i].n == ND_MAX_CUT)
        return nd_fmt(m->ctx->arena, "all_to_all cuts no other axis of %s",
                      ty_text(m, x));
    const char *why = rule_all_gather(m, op, out);
    if (!why)
        out->cut[i].m[out->cut[i].n++] = (uint8_t)only_bit(op->mesh);
    return why;
}
