/* cost.c - work and time of one op on the busiest rank, and of a message.
 *
 * Sizes are the largest local ones, so a figure is an upper bound that even
 * shards attain. A contraction counts a multiply and an add per point of its
 * iteration space. To choose between collectives, n ranks with S bytes of the
 * whole array: reduce_scatter and all_gather send S (n-1)/n, all_reduce twice
 * that (rings: Thakur, Rabenseifner, Gropp, IJHPCA 2005), all_to_all all but
 * its own part of what a rank holds; comm_bytes.c has them to the byte. A
 * message costs a latency for every round and its bytes over the bandwidth of
 * the slowest link on its way (the alpha-beta model). An op takes the time of
 * its arithmetic and that of the bytes which it moves through memory, one after
 * the other; operands of loop nests are taken to be at hand.
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

double nd_comm_bytes(nd_opcode kind, uint32_t over, const nd_type *in,
                     const nd_type *out, const nd_mesh *mesh)
{
    double n = nd_group_size(mesh, over), one = (n - 1) / n;
    double size = (double)nd_dtype_size(in->dtype);
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

/* ---- time --------------------------------------------------------------- */

const char *const nd_comm_names[COMM_NKINDS] = {
    [COMM_ALL_REDUCE] = "all_reduce",
    [COMM_REDUCE_SCATTER] = "reduce_scatter",
    [COMM_ALL_GATHER] = "all_gather",
    [COMM_ALL_TO_ALL] = "all_to_all",
    [COMM_SHIFT] = "shift",
    [COMM_SEND] = "send",
    [COMM_RECV] = "recv",
};

/* A host of eight devices, and a network between hosts; a device of 67 (narrow:
 * 989) Tflop/s and 3.35 TB/s. */
const nd_cluster nd_default_cluster = {8, 450e9, 3e-6, 50e9, 8e-6,
                                       67e12, 989e12, 3.35e12};

/* Messages that wait for each other in one call of n members. */
static double rounds(nd_comm_kind k, int n)
{
    switch (k) {
    case COMM_ALL_REDUCE:
        return 2 * (n - 1);
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_GATHER:
    case COMM_ALL_TO_ALL:
        return n - 1;
    default:
        return 1;
    }
}

/* Do the members stand within `near` neighbours? The last mesh axis numbers
 * neighbours. */
static bool is_near(const nd_cluster *c, const nd_mesh *m, uint32_t mesh)
{
    int64_t span = 1;
    uint32_t left = mesh;
    for (int i = m->micro - 1; i >= 0 && left; i--) {
        span *= m->size[i];
        left &= ~(1u << i);
    }
    return span <= c->near;
}

double nd_comm_seconds(const nd_cluster *c, const nd_mesh *m, nd_comm_kind k,
                       uint32_t mesh, int members, double bytes)
{
    bool near = is_near(c, m, mesh);
    double latency = near ? c->near_latency : c->far_latency;
    double bandwidth = near ? c->near_bandwidth : c->far_bandwidth;
    return rounds(k, members) * latency + bytes / bandwidth;
}

/* ---- the time of an op --------------------------------------------------- */

double nd_local_bytes(const nd_type *t, const nd_mesh *mesh)
{
    return local_numel(t, mesh) * (double)nd_dtype_size(t->dtype);
}

/* Through memory: all that products read and write, what loop nests write, and
 * what they sum. */
static double moved(const nd_op *op, const nd_mesh *mesh)
{
    double read = 0, made = 0;
    for (int i = 0; i < op->nin; i++)
        read += nd_local_bytes(&op->in[i]->type, mesh);
    for (int i = 0; i < op->nout; i++)
        made += nd_local_bytes(&op->out[i]->type, mesh);
    switch (op->kind) {
    case OP_CONTRACT:
    case OP_GROUPED:
    case OP_GROUPED_SUM:
        return read + made;
    case OP_REDUCE:
        return read;
    case OP_ACCUM:
        return 2 * read;
    case OP_GATHER:
        return 2 * made;
    case OP_SCATTER_ADD:
        return 2 * nd_local_bytes(&op->in[0]->type, mesh);
    default:
        return nd_has_trait(op, 'n') ? made : 0;
    }
}

static double comm_seconds(const nd_module *m, const nd_cluster *c,
                           const nd_op *op)
{
    nd_spot s = nd_spot_of(m, 0);
    int members = nd_group_size(&m->mesh, op->mesh);
    if (members == 1)
        return 0;
    nd_message x = nd_op_message(op, &s);
    double calls = x.calls ? (double)x.calls : 1;
    return calls * nd_comm_seconds(c, &m->mesh, x.kind, op->mesh, members,
                                   (double)x.bytes / calls);
}

double nd_op_seconds(const nd_module *m, const nd_cluster *c, const nd_op *op)
{
    double sum = 0;
    if (op->kind == OP_REPEAT) {
        for (int i = 0; i < op->body->ops.n; i++)
            sum += nd_op_seconds(m, c, op->body->ops.v[i]);
        return sum * (double)op->axes[0]->size;
    }
    if (nd_has_trait(op, 'k'))
        sum = comm_seconds(m, c, op);
    bool narrow = op->kind == OP_CONTRACT &&
                  nd_is_narrow(op->in[0]->type.dtype);
    return sum + nd_op_flops(op, &m->mesh) / (narrow ? c->narrow_flops
                                                     : c->flops) +
           moved(op, &m->mesh) / c->memory_bandwidth;
}
