/* comm_bytes.c - the bytes that one rank sends for a collective, exactly.
 *
 * Collectives are rings of n members; S bytes are the whole array, member i has
 * the piece p_i of it:
 *
 *   reduce_scatter   a member sends on all pieces but its own:  S - p_me
 *   all_gather       all pieces but that of the next member:    S - p_(me+1)
 *   all_reduce       one after the other, in pieces of any elements
 *   send, shift      the block
 *   all_to_all       what does not stay on the rank
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
    nd_spot s = {.mesh = &m->mesh};
    nd_mesh_coords(&m->mesh, rank, s.coord);
    s.coord[m->mesh.micro] = 0;
    if (p && p->nstages > 1) {
        const nd_stage *st = &p->stage[s.coord[m->mesh.pipe]];
        s.piped = m->plan.pipe_axis;
        s.iterations = st->hi - st->lo;
    }
    return s;
}

int64_t nd_spot_numel(const nd_spot *s, const nd_type *t)
{
    int64_t all = 1;
    for (int i = 0; i < t->rank; i++) {
        int64_t off, n = s->iterations;
        if (t->axis[i] != s->piped || t->cut[i].n)
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
    return (nd_message){COMM_ALL_REDUCE, 1, sent * WORD};
}

nd_message nd_parts_message(const nd_spot *s, nd_comm_kind k, uint32_t mesh,
                            int64_t words)
{
    int64_t own = words / nd_group_size(s->mesh, mesh);
    return (nd_message){k, 1, (words - own) * WORD};
}

/* ---- collectives --------------------------------------------------------- */

/* From a value of type x to one of type y, over mesh axes. */
typedef nd_message message_fn(const nd_spot *s, uint32_t mesh,
                              const nd_type *x, const nd_type *y);

/* Integers of 64 bits are gathered, block by block, and added by each. */
static nd_message reduce_wide(const nd_spot *s, uint32_t mesh,
                              const nd_type *x)
{
    int64_t blocks = (nd_spot_numel(s, x) + BLOCK - 1) / BLOCK;
    int64_t others = nd_group_size(s->mesh, mesh) - 1;
    return (nd_message){COMM_ALL_GATHER, blocks, bytes_of(s, x) * others};
}

static nd_message all_reduce(const nd_spot *s, uint32_t mesh, const nd_type *x,
                             const nd_type *y)
{
    (void)y;
    return x->dtype == ND_I64 ? reduce_wide(s, mesh, x)
                              : nd_sum_message(s, mesh, bytes_of(s, x) / WORD);
}

static nd_message reduce_scatter(const nd_spot *s, uint32_t mesh,
                                 const nd_type *x, const nd_type *y)
{
    int64_t sent = bytes_of(s, x) - bytes_of(s, y);
    return x->dtype == ND_I64 ? reduce_wide(s, mesh, x)
                              : (nd_message){COMM_REDUCE_SCATTER, 1, sent};
}

static nd_message all_gather(const nd_spot *s, uint32_t mesh, const nd_type *x,
                             const nd_type *y)
{
    nd_spot next = next_member(s, mesh);
    int64_t sent = bytes_of(s, y) - bytes_of(&next, x);
    return (nd_message){COMM_ALL_GATHER, 1, sent};
}

/* What stays is the rank's piece of both axes. */
static nd_message all_to_all(const nd_spot *s, uint32_t mesh, const nd_type *x,
                             const nd_type *y)
{
    nd_type both = *x;
    (void)mesh;
    for (int i = 0; i < x->rank; i++)
        if (y->cut[i].n > x->cut[i].n)
            both.cut[i] = y->cut[i];
    int64_t sent = bytes_of(s, x) - bytes_of(s, &both);
    return (nd_message){COMM_ALL_TO_ALL, 1, sent};
}

static nd_message shift(const nd_spot *s, uint32_t mesh, const nd_type *x,
                        const nd_type *y)
{
    (void)mesh;
    (void)y;
    return (nd_message){COMM_SHIFT, 1, bytes_of(s, x)};
}

/* A row for every op that moves data between ranks (trait k). */
static message_fn *const messages[OP_COUNT] = {
    [OP_ALL_REDUCE] = all_reduce,
    [OP_REDUCE_SCATTER] = reduce_scatter,
    [OP_ALL_GATHER] = all_gather,
    [OP_ALL_TO_ALL] = all_to_all, [OP_SHIFT_RING] = shift,
};

nd_message nd_type_message(const nd_spot *s, nd_opcode kind, uint32_t mesh,
                           const nd_type *x, const nd_type *y)
{
    return messages[kind](s, mesh, x, y);
}

nd_message nd_op_message(const nd_spot *s, const nd_op *op)
{
    return nd_type_message(s, op->kind, op->mesh, &op->in[0]->type,
                           &op->out[0]->type);
}
