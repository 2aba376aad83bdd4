/* simulate.c - training steps of the compiled program on simulated ranks.
 *
 * The evaluator gives each rank's own gradients from each rank's own weights.
 * What follows is runtime/optim.c once more, in doubles and over the same flat
 * ranges of the same buckets:
 *
 *   gradients of rank r -> its flat range of each bucket
 *   added up over the devices that hold copies, over `sum` without `zero`,
 *   and over `zero`, where each rank keeps its part of the range
 *   the norm: each element counted once
 *   the update of the part; the parts gathered over `zero`
 *
 * A reduction that a bucket lacks, a parameter in no bucket or one that is
 * counted twice thus gives wrong numbers here as it does there.
 */
#include "passes.h"

#include <math.h>
#include <string.h>

/* ---- ranks --------------------------------------------------------------- */

static double **at(double **flat, const nd_sim *s, int bucket, int rank)
{
    return &flat[bucket * s->nranks + rank];
}

static bool has_bucket(const nd_sim *s, const nd_bucket *b, int rank)
{
    return b->devices >> nd_device_of(s->c->m, rank) & 1;
}

static uint32_t pipe_bit(const nd_module *m)
{
    return m->mesh.pipe < 0 ? 0 : 1u << m->mesh.pipe;
}

/* Do two ranks differ in the mesh axes of `over` alone? */
static bool same_group(const nd_module *m, int a, int b, uint32_t over)
{
    int x[ND_MAX_MESH], y[ND_MAX_MESH];
    nd_mesh_coords(&m->mesh, a, x);
    nd_mesh_coords(&m->mesh, b, y);
    for (int i = 0; i < m->mesh.n; i++)
        if (!(over >> i & 1) && x[i] != y[i])
            return false;
    return true;
}

/* The part of the flat range whose state this rank has. */
static void my_part(const nd_sim *s, const nd_bucket *b, int rank,
                    size_t *from, size_t *n)
{
    const nd_mesh *mesh = &s->c->m->mesh;
    int coord[ND_MAX_MESH];
    size_t parts = 1, me = 0;
    nd_mesh_coords(mesh, rank, coord);
    for (int i = 0; i < mesh->n; i++)
        if (b->zero >> i & 1) {
            parts *= (size_t)mesh->size[i];
            me = me * (size_t)mesh->size[i] + (size_t)coord[i];
        }
    *n = b->n / parts;
    *from = me * *n;
}

/* ---- a parameter's place in its flat range ------------------------------- */

typedef enum { GET, PUT, ADD } copy_kind;

/* Copies a stage's piece out of the range, into it, or adds it there. Elements
 * are spaced by the largest length of each axis, so that all ranks agree on the
 * places; a stage's iterations follow those of its device's earlier stages. */
static void copy(nd_sim *s, const nd_param *p, int stage, size_t start,
                 nd_piece *x, double *flat, size_t room, copy_kind kind)
{
    const nd_type *t = &p->value->type;
    int64_t i[ND_MAX_RANK] = {0}, first[ND_MAX_RANK] = {0}, cap[ND_MAX_RANK];
    for (int d = 0; d < t->rank; d++) {
        cap[d] = nd_param_cap(s->c, t, d);
        if (s->c->exts.v[nd_ext_of(s->c, t, d)].piped)
            first[d] = nd_range_at(s->c->m, stage, t->axis[d]);
    }
    for (int64_t k = 0; k < x->count; k++) {
        size_t place = 0;
        for (int d = 0; d < t->rank; d++)
            place = place * (size_t)cap[d] + (size_t)(first[d] + i[d]);
        place += start;
        if (place >= room)
            ;                        /* a bucket that is too short */
        else if (kind == GET)
            x->v[k] = flat[place];
        else
            flat[place] = x->v[k] + (kind == ADD ? flat[place] : 0);
        for (int d = t->rank - 1; d >= 0 && ++i[d] == x->n[d]; d--)
            i[d] = 0;
    }
}

/* The parameter's last place, if it has several. */
static bool place_of(const nd_sim *s, const nd_param *p, int *bucket,
                     size_t *start)
{
    bool found = false;
    for (int j = 0; j < s->c->mem.buckets.n; j++) {
        const nd_bucket *b = &s->c->mem.buckets.v[j];
        for (int k = 0; k < b->params.n; k++)
            if (b->params.v[k] == p) {
                *bucket = j;
                *start = b->at.v[k];
                found = true;
            }
    }
    return found;
}

/* Does the rank run this stage, and does the stage have the parameter? */
static bool has_param(const nd_sim *s, const nd_param *p, int rank, int stage)
{
    const nd_stage *st = &s->c->m->program->stage[stage];
    return st->device == nd_device_of(s->c->m, rank) && nd_stage_has(st, p);
}

static nd_piece read_flat(nd_sim *s, double **flat, const nd_param *p,
                          int rank, int stage)
{
    int bucket;
    size_t start;
    nd_piece x = {0};
    if (!has_param(s, p, rank, stage) || !place_of(s, p, &bucket, &start) ||
        !*at(flat, s, bucket, rank))
        return x;
    x = nd_piece_new(s->c->m, s->a, &p->value->type, rank, stage);
    copy(s, p, stage, start, &x, *at(flat, s, bucket, rank),
         s->c->mem.buckets.v[bucket].n, GET);
    return x;
}

nd_piece nd_sim_weight(nd_sim *s, const nd_param *p, int rank, int stage)
{
    return read_flat(s, s->weights, p, rank, stage);
}

nd_piece nd_sim_grad(nd_sim *s, const nd_param *p, int rank, int stage)
{
    return read_flat(s, s->grads, p, rank, stage);
}

nd_code *nd_sim_code(nd_module *m)
{
    nd_code *c = ND_NEW(m->ctx->arena, nd_code);
    c->m = m;
    c->a = m->ctx->arena;
    nd_extents(c);
    nd_buckets(c);
    return c;
}

/* The rank's range of a bucket, filled by f for each of its parameters and
 * stages. */
typedef bool fill_fn(nd_sim *s, const nd_param *p, int rank, int stage,
                     size_t start, double *flat, size_t room, void *user);

static double *fill(nd_sim *s, const nd_bucket *b, int rank, fill_fn *f,
                    void *user)
{
    double *flat = ND_NEWN(s->a, double, b->n + 1);
    for (int k = 0; k < b->params.n; k++)
        for (int t = 0; t < s->c->m->program->nstages; t++)
            if (has_param(s, b->params.v[k], rank, t) &&
                !f(s, b->params.v[k], rank, t, b->at.v[k], flat, b->n, user))
                return NULL;
    return flat;
}

static bool put_weight(nd_sim *s, const nd_param *p, int rank, int stage,
                       size_t start, double *flat, size_t room, void *user)
{
    nd_tensor *const *weights = user;
    nd_piece x = nd_piece_new(s->c->m, s->a, &p->value->type, rank, stage);
    nd_piece_fill(&x, weights[p->index]);
    copy(s, p, stage, start, &x, flat, room, PUT);
    return true;
}

nd_sim *nd_sim_new(nd_code *c, nd_arena *a, nd_tensor *const *weights)
{
    nd_sim *s = ND_NEW(a, nd_sim);
    s->c = c;
    s->a = a;
    s->nranks = nd_mesh_ranks(&c->m->mesh);
    int n = c->mem.buckets.n * s->nranks;
    s->weights = ND_NEWN(a, double *, n + 1);
    s->grads = ND_NEWN(a, double *, n + 1);
    for (int j = 0; j < c->mem.buckets.n; j++) {
        const nd_bucket *b = &c->mem.buckets.v[j];
        for (int r = 0; r < s->nranks; r++) {
            if (has_bucket(s, b, r))
                *at(s->weights, s, j, r) = fill(s, b, r, put_weight,
                                                (void *)weights);
        }
    }
    return s;
}

/* ---- reducing ------------------------------------------------------------ */

/* Two stages of a device that use the same parameter add to the same place. */
static bool add_gradient(nd_sim *s, const nd_param *p, int rank, int stage,
                         size_t start, double *flat, size_t room, void *user)
{
    nd_module *m = s->c->m;
    nd_piece *g = &s->result.held_grads[p->index][stage * s->nranks + rank];
    nd_piece w = nd_piece_new(m, s->a, &p->value->type, rank, stage);
    (void)user;
    if (!g->v)
        return true;                 /* nothing flows into it */
    if (g->count != w.count) {
        nd_error(m->ctx, p->loc, "the gradient of \"%s\" is not cut as the "
                 "parameter is", p->name);
        return false;
    }
    copy(s, p, stage, start, g, flat, room, ADD);
    return true;
}

static bool take_gradients(nd_sim *s)
{
    for (int j = 0; j < s->c->mem.buckets.n; j++) {
        nd_bucket *b = &s->c->mem.buckets.v[j];
        for (int r = 0; r < s->nranks; r++)
            if (has_bucket(s, b, r) &&
                !(*at(s->grads, s, j, r) = fill(s, b, r, add_gradient, NULL)))
                return false;
    }
    return true;
}

/* Each rank's range becomes the sum over its group, added in rank order. */
static void all_reduce(nd_sim *s, int bucket, uint32_t over)
{
    const nd_bucket *b = &s->c->mem.buckets.v[bucket];
    double **sum = ND_NEWN(s->a, double *, s->nranks);
    for (int r = 0; over && r < s->nranks; r++) {
        if (!has_bucket(s, b, r))
            continue;
        int first = -1;
        for (int q = 0; q < s->nranks; q++) {
            if (!has_bucket(s, b, q) || !same_group(s->c->m, q, r, over))
                continue;
            if (first < 0 && q < r) {
                first = q;           /* it has the sum */
                break;
            }
            if (first < 0) {
                first = q;
                sum[r] = ND_NEWN(s->a, double, b->n + 1);
                s->reductions++;
            }
            for (size_t i = 0; i < b->n; i++)
                sum[r][i] += (*at(s->grads, s, bucket, q))[i];
        }
        if (first < r) {
            sum[r] = ND_NEWN(s->a, double, b->n + 1);
            memcpy(sum[r], sum[first], b->n * sizeof(double));
        }
    }
    for (int r = 0; over && r < s->nranks; r++)
        *at(s->grads, s, bucket, r) = sum[r];
}

/* From each member of the group over `zero` its own part. */
static void gather_parts(nd_sim *s, int bucket, double **flat)
{
    const nd_bucket *b = &s->c->mem.buckets.v[bucket];
    for (int r = 0; b->zero && r < s->nranks; r++)
        for (int q = 0; q < s->nranks; q++) {
            size_t from, n;
            if (q == r || !has_bucket(s, b, r) || !has_bucket(s, b, q) ||
                !same_group(s->c->m, q, r, b->zero))
                continue;
            my_part(s, b, q, &from, &n);
            memcpy(*at(flat, s, bucket, r) + from,
                   *at(flat, s, bucket, q) + from, n * sizeof(double));
        }
}

/* A scatter is the whole sum, of which a rank uses its part alone. */
static void reduce(nd_sim *s)
{
    const nd_module *m = s->c->m;
    for (int j = 0; j < s->c->mem.buckets.n; j++) {
        const nd_bucket *b = &s->c->mem.buckets.v[j];
        if (b->frozen)
            continue;
        if (nd_tied_devices(m, b))
            all_reduce(s, j, pipe_bit(m));
        all_reduce(s, j, b->sum & ~b->zero & ~pipe_bit(m));
        all_reduce(s, j, b->sum & b->zero);
    }
}

/* Does this rank speak for its piece of the bucket? */
static bool counts(const nd_sim *s, const nd_bucket *b, int rank)
{
    const nd_module *m = s->c->m;
    uint32_t split = b->cut | b->zero | pipe_bit(m);
    uint32_t tied = nd_tied_devices(m, b);
    int coord[ND_MAX_MESH];
    nd_mesh_coords(&m->mesh, rank, coord);
    if (tied & ((1u << nd_device_of(m, rank)) - 1))
        return false;
    for (int i = 0; i < m->mesh.n; i++)
        if (i != m->mesh.micro && !(split >> i & 1) && coord[i])
            return false;
    return true;
}

static double norm_of(const nd_sim *s)
{
    double total = 0;
    for (int j = 0; j < s->c->mem.buckets.n; j++) {
        const nd_bucket *b = &s->c->mem.buckets.v[j];
        for (int r = 0; r < s->nranks; r++) {
            size_t from, n;
            if (b->frozen || !has_bucket(s, b, r) || !counts(s, b, r))
                continue;
            const double *g = *at(s->grads, (nd_sim *)s, j, r);
            my_part(s, b, r, &from, &n);
            for (size_t i = from; i < from + n; i++)
                total += g[i] * g[i];
        }
    }
    return sqrt(total);
}

/* ---- the step ------------------------------------------------------------ */

static void update(nd_sim *s, const nd_sgd *o)
{
    double scale = s->norm > o->clip ? o->clip / s->norm : 1;
    for (int j = 0; j < s->c->mem.buckets.n; j++) {
        const nd_bucket *b = &s->c->mem.buckets.v[j];
        for (int r = 0; !b->frozen && r < s->nranks; r++) {
            size_t from, n;
            if (!has_bucket(s, b, r))
                continue;
            double *w = *at(s->weights, s, j, r);
            const double *g = *at(s->grads, s, j, r);
            my_part(s, b, r, &from, &n);
            for (size_t i = from; i < from + n; i++)
                w[i] -= o->lr * (g[i] * scale + (b->decay ? o->decay : 0) *
                                                    w[i]);
        }
        if (!b->frozen) {
            gather_parts(s, j, s->weights);
            gather_parts(s, j, s->grads);    /* for whoever asks */
        }
    }
}

bool nd_sim_step(nd_sim *s, const nd_eval_options *inputs, const nd_sgd *g)
{
    nd_module *m = s->c->m;
    nd_piece **held = ND_NEWN(s->a, nd_piece *, m->params.n);
    int n = m->program->nstages * s->nranks;
    for (int i = 0; i < m->params.n; i++) {
        held[i] = ND_NEWN(s->a, nd_piece, n);
        for (int k = 0; k < n; k++)
            held[i][k] = nd_sim_weight(s, m->params.v[i], k % s->nranks,
                                       k / s->nranks);
    }
    nd_eval_options o = *inputs;
    o.held = held;
    if (!nd_eval(m, &o, &s->result) || !take_gradients(s))
        return false;
    s->loss = s->result.loss;
    reduce(s);
    s->norm = norm_of(s);
    update(s, g);
    return true;
}
