/* cost.c - work and traffic of one op on the busiest rank.
 *
 * Sizes are the largest local ones, so a figure is an upper bound that even
 * shards attain. A contraction counts a multiply and an add per point of its
 * iteration space; collectives are ring algorithms on n ranks with S bytes of
 * the whole array: reduce_scatter and all_gather send S (n-1)/n, all_reduce
 * twice that (Thakur, Rabenseifner, Gropp, IJHPCA 2005); all_to_all sends all
 * but its own part of what a rank holds.
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

double nd_op_flops(const nd_op *op, const nd_mesh *mesh)
{
    double sum = 0;
    switch (op->kind) {
    case OP_CONTRACT:
        return 2 * points(op, mesh);
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

double nd_comm_bytes(nd_opcode kind, uint32_t over, const nd_type *in,
                     const nd_type *out, const nd_mesh *mesh)
{
    double n = 1, size = (double)nd_dtype_size(in->dtype);
    for (int i = 0; i < mesh->n; i++)
        if (over >> i & 1)
            n *= mesh->size[i];
    double one = (n - 1) / n;
    switch (kind) {
    case OP_ALL_REDUCE:
        return 2 * one * local_numel(in, mesh) * size;
    case OP_REDUCE_SCATTER:
    case OP_ALL_TO_ALL:
        return one * local_numel(in, mesh) * size;
    case OP_ALL_GATHER:
        return one * local_numel(out, mesh) * size;
    case OP_SHIFT_RING:
        return n > 1 ? local_numel(out, mesh) * size : 0;
    default:
        return 0;
    }
}

double nd_op_comm_bytes(const nd_op *op, const nd_mesh *mesh)
{
    if (!nd_has_trait(op, 'k'))
        return 0;
    return nd_comm_bytes(op->kind, op->mesh, &op->in[0]->type,
                         &op->out[0]->type, mesh);
}
