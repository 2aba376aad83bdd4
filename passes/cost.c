/* cost.c - work and traffic of one op on the busiest rank.
 *
 * Sizes are the largest local ones, so a figure is an upper bound that even
 * shards attain. A contraction counts a multiply and an add per point of its
 * iteration space; collectives are ring algorithms on n ranks with S bytes of
 * the whole array: reduce_scatter and all_gather send S (n-1)/n, all_reduce
 * twice that (Thakur, Rabenseifner, Gropp, IJHPCA 2005).
 */
#include "passes.h"

static double local_numel(const nd_type *t, const nd_mesh *mesh)
{
    double n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= (double)nd_extent_max(mesh, t->axis[i]->size, t->cut[i]);
    return n;
}

/* The union of the operands' axes, each at its cut. */
static double points(const nd_op *op, const nd_mesh *mesh)
{
    const nd_type *x = &op->in[0]->type, *y = &op->in[1]->type;
    double n = local_numel(x, mesh);
    for (int i = 0; i < y->rank; i++)
        if (nd_axis_at(x, y->axis[i]) < 0)
            n *= (double)nd_extent_max(mesh, y->axis[i]->size, y->cut[i]);
    return n;
}

/* Each row takes one of the groups, and a rank has its part of those. */
static double grouped_points(const nd_op *op, const nd_mesh *mesh)
{
    bool sum = op->kind == OP_GROUPED_SUM;
    const nd_type *w = sum ? &op->out[0]->type : &op->in[1]->type;
    const nd_axis *a = op->axes[0];
    double n = local_numel(&op->in[2]->type, mesh);
    for (int i = 0; i < w->rank; i++) {
        double most =
            (double)nd_extent_max(mesh, w->axis[i]->size, w->cut[i]);
        n *= w->axis[i] == a ? most / (double)a->size : most;
    }
    return n;
}

double nd_op_flops(const nd_op *op, const nd_mesh *mesh)
{
    double sum = 0;
    switch (op->kind) {
    case OP_CONTRACT:
        return 2 * points(op, mesh);
    case OP_GROUPED:
    case OP_GROUPED_SUM:
        return 2 * grouped_points(op, mesh);
    case OP_REDUCE:
    case OP_SCATTER_ADD:
        return local_numel(&op->in[0]->type, mesh);
    case OP_REPEAT:
        for (int i = 0; i < op->body->ops.n; i++)
            sum += nd_op_flops(op->body->ops.v[i], mesh);
        return sum * (double)op->axes[0]->size;
    case OP_MAP:
        return local_numel(&op->out[0]->type, mesh) * nd_ews[op->sub].cost;
    default:
        return nd_has_trait(op, 'w') ? local_numel(&op->out[0]->type, mesh) : 0;
    }
}

/* A rank's own rows, once for each slot. */
static double traveller_bytes(const nd_op *op, const nd_mesh *mesh)
{
    const nd_type *x = &op->in[0]->type, *ids = &op->in[1]->type;
    double n = local_numel(ids, mesh) * (double)nd_dtype_size(x->dtype);
    for (int i = 0; i < x->rank; i++)
        if (x->axis[i] != op->axes[0] && nd_axis_at(ids, x->axis[i]) < 0)
            n *= (double)nd_extent_max(mesh, x->axis[i]->size, x->cut[i]);
    return n;
}

double nd_op_comm_bytes(const nd_op *op, const nd_mesh *mesh)
{
    double n = 1;
    for (int i = 0; i < mesh->n; i++)
        if (op->mesh >> i & 1)
            n *= mesh->size[i];
    double one = (n - 1) / n;
    bool travels = op->kind == OP_DISPATCH || op->kind == OP_COMBINE;
    if (travels)                     /* balanced: each rank gets its share */
        return one * traveller_bytes(op, mesh);
    switch (op->kind) {
    case OP_ALL_REDUCE:
        return 2 * one * local_numel(&op->in[0]->type, mesh) *
               (double)nd_dtype_size(op->in[0]->type.dtype);
    case OP_REDUCE_SCATTER:
        return one * local_numel(&op->in[0]->type, mesh) *
               (double)nd_dtype_size(op->in[0]->type.dtype);
    case OP_ALL_GATHER:
        return one * local_numel(&op->out[0]->type, mesh) *
               (double)nd_dtype_size(op->out[0]->type.dtype);
    default:
        return 0;
    }
}
