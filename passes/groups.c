/* groups.c - how the operands of a product by groups lie in memory, and what
 * rows that travel take along.
 *
 *   grouped [expert, d] %x, %w, %e    x[rows, d], w[expert, d, heads head]
 *
 * The runtime sees the weight as a list of matrices: the axes that x has are
 * their rows, the others their columns. Each must be one dimension, and so must
 * the axes of x and of the result that the matrices meet.
 */
#include "passes.h"

#include <string.h>

static const nd_type *weight_of(const nd_op *op)
{
    return op->kind == OP_GROUPED ? &op->in[1]->type : &op->out[0]->type;
}

int nd_group_axes(const nd_op *op, bool of_x, nd_axis **axes)
{
    const nd_type *w = weight_of(op);
    int n = 0;
    for (int i = 0; i < w->rank; i++)
        if (w->axis[i] != op->axes[0] &&
            (nd_axis_at(&op->in[0]->type, w->axis[i]) >= 0) == of_x)
            axes[n++] = w->axis[i];
    return n;
}

bool nd_group_nests(nd_code *c, const nd_op *op, bool of_x, const nd_ref *r)
{
    nd_axis *axes[ND_MAX_RANK];
    int n = nd_group_axes(op, of_x, axes);
    for (int i = 0; i + 1 < n; i++) {
        int out = nd_ref_axis(r, axes[i]), in = nd_ref_axis(r, axes[i + 1]);
        if (out < 0 || in < 0)
            return false;
        nd_len step = r->stride[in];
        nd_len_mul(c, &step, r->ext[in]);
        if (!nd_len_eq(&step, &r->stride[out]))
            return false;
    }
    return true;
}

bool nd_weight_nests(nd_code *c, const nd_op *op, const nd_ref *r)
{
    return nd_group_nests(c, op, true, r) && nd_group_nests(c, op, false, r);
}

/* ---- rows that travel ---------------------------------------------------- */

int nd_travel_axes(const nd_op *op, nd_axis **axes)
{
    const nd_type *t = &op->in[0]->type;
    int n = 0;
    for (int i = 0; i < t->rank; i++)
        if (t->axis[i] != op->axes[0] &&
            nd_axis_at(&op->in[1]->type, t->axis[i]) < 0)
            axes[n++] = t->axis[i];
    return n;
}

/* The axes of a row step over exactly one another, and rows that come back over
 * exactly one row. */
bool nd_travel_nests(nd_code *c, const nd_op *op, const nd_ref *r)
{
    nd_axis *axes[ND_MAX_RANK + 1];
    int n = nd_travel_axes(op, axes + 1);
    bool back = op->kind == OP_COMBINE;
    axes[0] = op->axes[0];
    nd_len step = {.k = 1};
    for (int i = n; i >= !back; i--) {
        int at = nd_ref_axis(r, axes[i]);
        if (at < 0 || !nd_len_eq(&step, &r->stride[at]))
            return false;
        nd_len_mul(c, &step, r->ext[at]);
    }
    return true;
}

/* ---- room aside ---------------------------------------------------------- */

static int64_t most(nd_code *c, const nd_type *t, nd_axis *const *only, int n)
{
    int64_t size = 1;
    for (int i = 0; i < t->rank; i++) {
        bool in = !only;
        for (int k = 0; k < n; k++)
            in |= only[k] == t->axis[i];
        if (in)
            size *= c->exts.v[nd_ext_of(c, t, i)].max;
    }
    return size;
}

/* As runtime/experts.c lays it out: where each group begins, where the operands
 * of each row lie, and a block of rows of both, packed. */
static size_t product_bytes(nd_code *c, const nd_op *op)
{
    enum { BLOCK = 256 };
    const nd_type *w = weight_of(op);
    nd_axis *in[ND_MAX_RANK], *out[ND_MAX_RANK], *a = op->axes[0];
    int nin = nd_group_axes(op, true, in), nout = nd_group_axes(op, false, out);
    int64_t groups = most(c, w, &a, 1);
    int64_t rows = most(c, &op->in[2]->type, NULL, 0);
    return (size_t)(groups + 2) * 8 + (size_t)rows * 16 +
           (size_t)((most(c, w, in, nin) + most(c, w, out, nout)) * BLOCK) * 4 +
           256;
}

/* Counts by expert and by member, the order of the rows, and the rows. */
static size_t travel_bytes(nd_code *c, const nd_op *op)
{
    const nd_route *r = op->axes[0]->route;
    nd_axis *row[ND_MAX_RANK];
    int n = nd_travel_axes(op, row);
    int64_t rows = most(c, &op->in[1]->type, NULL, 0);
    int64_t len = most(c, &op->in[0]->type, row, n);
    return (size_t)(r->experts->size + 3) * 8 + (size_t)rows * 8 +
           (size_t)c->m->mesh.size[r->over] * 48 +
           (size_t)(rows * len) * nd_dtype_size(op->in[0]->type.dtype) + 640;
}

size_t nd_scratch_bytes(nd_code *c, const nd_kernel *k)
{
    const nd_op *op = k->nodes.v[0].op;
    if (k->kind == K_LOOP)
        return k->share.bytes;
    switch (op->kind) {
    case OP_GROUPED:
    case OP_GROUPED_SUM:
        return product_bytes(c, op);
    case OP_DISPATCH:
    case OP_COMBINE:
        return travel_bytes(c, op);
    default:
        return 0;
    }
}
