/* comm_report.c - everything that one rank sends and receives in a step: the
 * collectives of the program, the messages of the pipeline, and what the
 * runtime does for the update.
 *
 *   forward    all_gather      over tp   8 calls   the program's op
 *   forward    send            over pp   2 calls   a value for the next stage
 *   gradients  reduce_scatter  over dp   1 call    a bucket, runtime/optim.c
 *
 * The order of calls and their sizes are the runtime's own: a test runs it and
 * compares. Nothing here visits all ranks of the mesh.
 */
#include "passes.h"

#include <string.h>

typedef struct lister {
    nd_code *c;
    nd_module *m;
    nd_spot at;
    int device;
    const nd_cluster *cluster;
    nd_comm_rows *rows;
} lister;

int nd_first_rank(const nd_module *m, int device)
{
    int each = 1;
    for (int i = m->mesh.pipe + 1; i < m->mesh.micro; i++)
        each *= m->mesh.size[i];
    return device * each;
}

static uint32_t all_axes(const nd_module *m)
{
    return (1u << m->mesh.micro) - 1;
}

/* ---- rows ---------------------------------------------------------------- */

static uint32_t without_ones(const nd_mesh *m, uint32_t mesh)
{
    for (int i = 0; i < m->n; i++)
        if (m->size[i] == 1)
            mesh &= ~(1u << i);
    return mesh;
}

static nd_comm_row row_of(lister *l, const char *when, const char *name,
                          uint32_t mesh)
{
    return (nd_comm_row){.when = when, .name = name, .loc = nd_nowhere,
                         .mesh = without_ones(&l->m->mesh, mesh),
                         .members = nd_group_size(&l->m->mesh, mesh)};
}

/* The same message `times` times. */
static void count(lister *l, nd_comm_row *r, nd_message x, int64_t times)
{
    int64_t once = x.calls ? x.bytes / x.calls : 0;
    r->kind = x.kind;
    if (!r->name)
        r->name = nd_comm_names[x.kind];
    r->calls += times * x.calls;
    r->bytes += times * x.bytes;
    r->about |= x.about;
    r->once = once > r->once ? once : r->once;
    if (x.kind != COMM_RECV)
        r->seconds += (double)(times * x.calls) *
                      nd_comm_seconds(l->cluster, &l->m->mesh, x.kind, r->mesh,
                                      r->members, (double)once);
}

static void push(lister *l, nd_comm_row r)
{
    ND_PUSH(l->c->a, l->rows, r);
}

/* A message of the runtime's own; none where the group is one rank. */
static void push_own(lister *l, nd_comm_row r, nd_message x, int64_t times)
{
    if (r.members == 1 || !times)
        return;
    count(l, &r, x, times);
    push(l, r);
}

/* ---- the program --------------------------------------------------------- */

static bool is_cut_in_time(const lister *l, const nd_value *v)
{
    return nd_cut_mask(&v->type) >> l->m->mesh.micro & 1;
}

/* Microbatches differ in size where rows do not divide. */
static void push_op(lister *l, const char *when, const nd_kernel *k,
                    int64_t times, int64_t micro)
{
    const nd_op *op = k->nodes.v[0].op;
    nd_comm_row r = row_of(l, when, nd_ops[op->kind].name, op->mesh);
    nd_spot s = l->at;
    if (r.members == 1)              /* it sorts rows, and sends none */
        return;
    r.loc = op->loc;
    r.flight = k->flight;
    if (!is_cut_in_time(l, op->in[0]) && !is_cut_in_time(l, op->out[0])) {
        count(l, &r, nd_op_message(op, &s), times * micro);
    } else {
        for (int i = 0; i < micro; i++) {
            s.coord[l->m->mesh.micro] = i;
            count(l, &r, nd_op_message(op, &s), times);
        }
    }
    push(l, r);
}

static void walk(lister *l, const char *when, const nd_kernels *list,
                 int64_t times, int64_t micro)
{
    for (int i = 0; i < list->v.n; i++) {
        const nd_kernel *k = list->v.v[i];
        const nd_op *op = k->nodes.v[0].op;
        if (k->kind == K_REPEAT) {
            walk(l, when, k->body,
                 times * nd_spot_iterations(&l->at, op->axes[0]), micro);
        } else if (k->kind == K_COMM && times) {
            push_op(l, when, k, times, micro);
        }
    }
}

/* Sends and receives are calls between two ranks of the pipeline's axis: with
 * the stage of number `peer`, if there is one and another device has it. */
static void walk_messages(lister *l, const char *when, nd_comm_kind kind,
                          bool ahead, int peer)
{
    const nd_program *p = l->m->program;
    if (peer < 0 || peer >= p->nstages || p->stage[peer].device == l->device)
        return;
    const nd_stage *from = &p->stage[kind == COMM_SEND ? l->at.stage : peer];
    const nd_cross *x = ahead ? from->send_fwd.v : from->send_bwd.v;
    int n = ahead ? from->send_fwd.n : from->send_bwd.n;
    for (int i = 0; i < n; i++) {
        const nd_value *v = kind == COMM_SEND ? x[i].from : x[i].to;
        nd_comm_row r = row_of(l, when, NULL, 1u << l->m->mesh.pipe);
        nd_spot s = l->at;
        r.loc = x[i].from->def ? x[i].from->def->loc : nd_nowhere;
        r.what = nd_fmt(l->c->a, "%s stage %d",
                        kind == COMM_SEND ? "to" : "from", peer);
        for (int mb = 0; mb < p->nmicro; mb++) {
            s.coord[l->m->mesh.micro] = mb;
            int64_t bytes = nd_spot_numel(&s, &v->type) *
                            (int64_t)nd_dtype_size(v->type.dtype);
            count(l, &r, (nd_message){kind, 1, bytes, false}, 1);
        }
        push(l, r);
    }
}

/* ---- the update: runtime/optim.c, muon.c --------------------------------- */

/* In a step. */
static int64_t updates(const lister *l)
{
    return nd_is_stashed(l->m) ? l->m->program->nmicro : 1;
}

static const char *name_bucket(lister *l, const nd_bucket *b)
{
    const char *first = b->params.v[0]->name;
    int more = b->params.n - 1;
    return more ? nd_fmt(l->c->a, "%s and %d more", first, more) : first;
}

/* The group of the devices that hold copies, which need not be all: the members
 * are counted here and the axis only names them. */
static void push_tied(lister *l, const nd_bucket *b, const char *what,
                      int64_t words)
{
    uint32_t devices = nd_tied_devices(l->m, b);
    int n = 0, me = 0;
    if (!devices)
        return;
    for (int d = 0; d < l->m->program->ndevices; d++)
        if (devices >> d & 1) {
            me = d == l->device ? n : me;
            n++;
        }
    nd_mesh line = {.n = 1, .size = {n}};
    nd_spot at = {.mesh = &line, .coord = {me}};
    nd_comm_row r = row_of(l, "gradients", NULL, 1u << l->m->mesh.pipe);
    r.members = n;
    r.what = what;
    push_own(l, r, nd_sum_message(&at, 1, words), 1);
}

static void push_gradients(lister *l, const nd_bucket *b)
{
    uint32_t pipe = l->m->mesh.pipe >= 0 ? 1u << l->m->mesh.pipe : 0;
    uint32_t sum = b->sum & ~b->zero & ~pipe, zero = b->zero & b->sum;
    const char *what = name_bucket(l, b);
    int64_t n = (int64_t)b->n, part = n / nd_group_size(&l->m->mesh, zero);
    nd_comm_row r = row_of(l, "gradients", NULL, sum);
    nd_comm_row z = row_of(l, "gradients", NULL, zero);
    r.what = z.what = what;
    push_own(l, z, nd_parts_message(&l->at, COMM_REDUCE_SCATTER, zero, n),
             updates(l));
    push_tied(l, b, what, part);
    push_own(l, r, nd_sum_message(&l->at, sum, part), updates(l));
}

/* How many there are of `list` on the device: of layers that are cut in stages,
 * those of all its stages. */
static int64_t count_on_device(const lister *l, const nd_type *list)
{
    const nd_program *p = l->m->program;
    bool in_stages = false;
    int64_t n = 0;
    for (int i = 0; i < list->rank; i++)
        in_stages |= nd_is_piped(l->m, list->axis[i]);
    if (!in_stages)
        return nd_spot_numel(&l->at, list);
    for (int s = 0; s < p->nstages; s++) {
        nd_spot at = l->at;
        at.stage = s;
        n += p->stage[s].device == l->device ? nd_spot_numel(&at, list) : 0;
    }
    return n;
}

/* Matrices that a mesh axis cuts are gathered one after another. */
static void push_matrices(lister *l, const nd_param *p)
{
    const nd_type *t = &p->value->type;
    nd_type list = *t;
    int64_t words = nd_group_size(&l->m->mesh, nd_matrix_cut(p));
    nd_comm_row r = row_of(l, "momenta", NULL, nd_matrix_cut(p));
    list.rank = p->lead + p->nlayers;
    for (int i = list.rank; i < t->rank; i++)
        words *= l->c->exts.v[nd_ext_of(l->c, t, i)].max;
    r.what = p->name;
    push_own(l, r, nd_parts_message(&l->at, COMM_ALL_GATHER, r.mesh, words),
             count_on_device(l, &list) * updates(l));
}

static void push_update(lister *l, const nd_bucket *b)
{
    const char *when = b->muon ? "momenta" : "parameters";
    nd_comm_row r = row_of(l, when, NULL, b->zero);
    r.what = name_bucket(l, b);
    push_own(l, r, nd_parts_message(&l->at, COMM_ALL_GATHER, b->zero,
                                    (int64_t)b->n), updates(l));
    for (int i = 0; i < b->params.n && b->muon; i++)
        push_matrices(l, b->params.v[i]);
}

/* The loss and the squared norm, as doubles, of every rank. */
static void push_norm(lister *l)
{
    enum { WORDS = 4 };
    nd_comm_row r = row_of(l, "norm", NULL, all_axes(l->m));
    r.what = "the loss and the norm of the gradients";
    push_own(l, r, nd_parts_message(&l->at, COMM_ALL_GATHER, r.mesh,
                                    WORDS * (int64_t)nd_mesh_ranks(
                                                &l->m->mesh)), 1);
}

static void walk_buckets(lister *l, void (*f)(lister *, const nd_bucket *))
{
    for (int i = 0; i < l->c->mem.buckets.n; i++) {
        const nd_bucket *b = &l->c->mem.buckets.v[i];
        if ((b->devices >> l->device & 1) && !b->frozen)
            f(l, b);
    }
}

/* ---- all ----------------------------------------------------------------- */

static void walk_stage(lister *l)
{
    const nd_program *p = l->m->program;
    const nd_kernels *list = l->c->stage[l->at.stage].list;
    int s = l->at.stage;
    /* Once more before each forward and backward, where weights change. */
    bool fresh = nd_is_stashed(l->m) && nd_prepares_weights(l->m, s);
    walk(l, "before", &list[LIST_PRE], fresh ? 1 + 2 * p->nmicro : 1, 1);
    walk_messages(l, "forward", COMM_RECV, true, s - 1);
    walk(l, "forward", &list[LIST_FWD], 1, p->nmicro);
    walk_messages(l, "forward", COMM_SEND, true, s + 1);
    walk_messages(l, "backward", COMM_RECV, false, s + 1);
    if (nd_runs_again(&l->m->plan, s))
        walk(l, "again", &list[LIST_FWD], 1, p->nmicro);
    walk(l, "backward", &list[LIST_BWD], 1, p->nmicro);
    walk_messages(l, "backward", COMM_SEND, false, s - 1);
    walk(l, "backward", &list[LIST_WGT], 1, p->nmicro);
}

void nd_comm_rows_of(nd_code *c, int rank, const nd_cluster *cluster,
                     nd_comm_rows *rows)
{
    nd_module *m = c->m;
    const nd_program *p = m->program;
    lister l = {.c = c, .m = m, .at = nd_spot_of(m, rank), .cluster = cluster,
                .rows = rows};
    l.device = nd_device_of(m, rank);
    for (l.at.stage = 0; l.at.stage < p->nstages; l.at.stage++)
        if (p->stage[l.at.stage].device == l.device)
            walk_stage(&l);
    l.at.stage = nd_spot_of(m, rank).stage;
    walk_buckets(&l, push_gradients);
    push_norm(&l);
    walk_buckets(&l, push_update);
}
