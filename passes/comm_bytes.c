/* comm_bytes.c - the bytes that one rank sends for a collective, exactly.
 *
 * Collectives are rings of n members; S bytes are the whole array, member i has
 * the piece p_i of it:
 *
 *   reduce_scatter   a member sends on all pieces but its own:  S - p_me
 *   all_gather       all pieces but that of the next member:    S - p_(me+1)
 *   all_reduce       one after the other, in pieces of any elements
 *   send, shift      the block
 *   all_to_all       what does not stay on the rank; of rows that travel to
 *                    experts only the run knows it, and an even share is taken
 *
 * For equal pieces these are (n-1)/n S, the same, and 2 (n-1)/n S. The runtime
 * counts its calls by the same rules (runtime/count.c).
 */
#include "passes.h"

enum {
    WORD = 4,                        /* bytes of what the runtime adds up */
    BLOCK = 1024                     /* numbers of 8 bytes that it gathers */
};

/* ---- where --------------------------------------------------------------- */

nd_spot nd_spot_of(const nd_module *m, int rank)
{
    const nd_program *p = m->program;
    nd_spot s = {.m = m, .mesh = &m->mesh};
    nd_mesh_coords(&m->mesh, rank, s.coord);
    s.coord[m->mesh.micro] = 0;
    while (p && p->stage[s.stage].device != nd_device_of(m, rank))
        s.stage++;
    return s;
}

int64_t nd_spot_iterations(const nd_spot *s, const nd_axis *a)
{
    int64_t lo, hi;
    nd_stage_range(s->m, s->stage, a, &lo, &hi);
    return hi - lo;
}

/* Of rows that travel there are as many as if they were spread evenly. */
int64_t nd_spot_numel(const nd_spot *s, const nd_type *t)
{
    int64_t all = 1;
    for (int i = 0; i < t->rank; i++) {
        int64_t off, n;
        if (t->axis[i]->route)
            n = nd_spot_numel(s, &t->axis[i]->route->rows);
        else if (!t->cut[i].n)
            n = nd_spot_iterations(s, t->axis[i]);
        else
            nd_extent(s->mesh, t->axis[i]->size, t->cut[i], s->coord, &off, &n);
        all *= n;
    }
    return all;
}

int nd_group_size(const nd_mesh *m, uint32_t mesh)
{
    int n = 1;
    for (int i = 0; i < m->n; i++)
        if (mesh >> i & 1)
            n *= m->size[i];
    return n;
}

/* Which member of its group it is: the last mesh axis counts fastest. */
static int member(const nd_spot *s, uint32_t mesh)
{
    int me = 0;
    for (int i = 0; i < s->mesh->n; i++)
        if (mesh >> i & 1)
            me = me * s->mesh->size[i] + s->coord[i];
    return me;
}

static nd_spot next_member(const nd_spot *s, uint32_t mesh)
{
    nd_spot next = *s;
    int k = (member(s, mesh) + 1) % nd_group_size(s->mesh, mesh);
    for (int i = s->mesh->n - 1; i >= 0; i--)
        if (mesh >> i & 1) {
            next.coord[i] = k % s->mesh->size[i];
            k /= s->mesh->size[i];
        }
    return next;
}

static int64_t bytes_of(const nd_spot *s, const nd_type *t)
{
    return nd_spot_numel(s, t) * (int64_t)nd_dtype_size(t->dtype);
}

/* ---- arrays that the runtime cuts itself --------------------------------- */

static nd_message one(nd_comm_kind k, int64_t bytes)
{
    return (nd_message){k, 1, bytes, false};
}

/* Piece i of n elements: the first ones are longer. */
static int64_t piece(int64_t n, int64_t parts, int64_t i)
{
    return n / parts + (i < n % parts);
}

nd_message nd_sum_message(const nd_spot *s, uint32_t mesh, int64_t words)
{
    int n = nd_group_size(s->mesh, mesh), me = member(s, mesh);
    int64_t sent = 2 * words - piece(words, n, me) -
                   piece(words, n, (me + 1) % n);
    return one(COMM_ALL_REDUCE, sent * WORD);
}

nd_message nd_parts_message(const nd_spot *s, nd_comm_kind k, uint32_t mesh,
                            int64_t words)
{
    int64_t own = words / nd_group_size(s->mesh, mesh);
    return one(k, (words - own) * WORD);
}

/* ---- ops ----------------------------------------------------------------- */

typedef nd_message message_fn(const nd_op *op, const nd_spot *s);

static const nd_type *in(const nd_op *op)
{
    return &op->in[0]->type;
}

static const nd_type *out(const nd_op *op)
{
    return &op->out[0]->type;
}

/* Integers of 64 bits are gathered, block by block, and added by each. */
static nd_message reduce_wide(const nd_op *op, const nd_spot *s)
{
    int64_t blocks = (nd_spot_numel(s, in(op)) + BLOCK - 1) / BLOCK;
    int64_t others = nd_group_size(s->mesh, op->mesh) - 1;
    return (nd_message){COMM_ALL_GATHER, blocks, bytes_of(s, in(op)) * others,
                        false};
}

static nd_message all_reduce(const nd_op *op, const nd_spot *s)
{
    if (in(op)->dtype == ND_I64)
        return reduce_wide(op, s);
    return nd_sum_message(s, op->mesh, bytes_of(s, in(op)) / WORD);
}

static nd_message reduce_scatter(const nd_op *op, const nd_spot *s)
{
    if (in(op)->dtype == ND_I64)
        return reduce_wide(op, s);
    return one(COMM_REDUCE_SCATTER, bytes_of(s, in(op)) - bytes_of(s, out(op)));
}

static nd_message all_gather(const nd_op *op, const nd_spot *s)
{
    nd_spot next = next_member(s, op->mesh);
    return one(COMM_ALL_GATHER, bytes_of(s, out(op)) - bytes_of(&next, in(op)));
}

/* What stays is the rank's piece of both axes. */
static nd_message all_to_all(const nd_op *op, const nd_spot *s)
{
    nd_type both = *in(op);
    for (int i = 0; i < both.rank; i++)
        if (out(op)->cut[i].n > both.cut[i].n)
            both.cut[i] = out(op)->cut[i];
    return one(COMM_ALL_TO_ALL, bytes_of(s, in(op)) - bytes_of(s, &both));
}

static nd_message shift_ring(const nd_op *op, const nd_spot *s)
{
    return one(COMM_SHIFT, bytes_of(s, in(op)));
}

/* A number for each member, then the rows: as if every member got as many. */
static nd_message travel(const nd_op *op, const nd_spot *s)
{
    enum { NUMBER = 8 };
    const nd_type *there = op->kind == OP_DISPATCH ? out(op) : in(op);
    nd_type row = *there;
    int64_t n = nd_group_size(s->mesh, op->mesh);
    int64_t rows = nd_spot_numel(s, &op->axes[0]->route->rows);
    nd_drop_axis(&row, nd_axis_at(&row, op->axes[0]));
    int64_t each = rows * bytes_of(s, &row) / n;
    return (nd_message){COMM_ALL_TO_ALL, 2, (n - 1) * (NUMBER + each), true};
}

/* A row for every op that moves data between ranks (trait k). */
static message_fn *const messages[OP_COUNT] = {
    [OP_ALL_REDUCE] = all_reduce,
    [OP_REDUCE_SCATTER] = reduce_scatter,
    [OP_ALL_GATHER] = all_gather,
    [OP_ALL_TO_ALL] = all_to_all,
    [OP_SHIFT_RING] = shift_ring,
    [OP_DISPATCH] = travel,
    [OP_COMBINE] = travel,
};

nd_message nd_op_message(const nd_op *op, const nd_spot *s)
{
    nd_message x = messages[op->kind](op, s);
    x.about |= nd_routed_axis(in(op)) || nd_routed_axis(out(op));
    return x;
}
