/* rank.c - where a rank stands in the mesh, and which pieces it holds.
 *
 * Rank numbers count the mesh with the last axis fastest. An extent is the
 * piece of one axis: cut by its mesh axes in turn, the first is the major one,
 * and the first pieces are one longer where sizes do not divide. NDRT_MICRO
 * among the cuts stands for the microbatch.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

int ndrt_mesh_ranks(const ndrt_program *p)
{
    int n = 1;

    for (int a = 0; a < p->nmesh; a++)
        n *= p->mesh_size[a];
    return n;
}

int ndrt_coord(const ndrt_program *p, int rank, int axis)
{
    for (int a = p->nmesh - 1; a > axis; a--)
        rank /= p->mesh_size[a];
    return rank % p->mesh_size[axis];
}

int ndrt_device_of(const ndrt_program *p, int rank)
{
    return p->pipe < 0 ? 0 : ndrt_coord(p, rank, p->pipe);
}

const ndrt_device *ndrt_here(const ndrt_rank *r)
{
    return &r->program->devices[r->device];
}

void ndrt_extent_of(const ndrt_program *p, int extent, int rank, int stage,
                    int mb, int64_t *off, int64_t *n)
{
    const ndrt_extent *e = &p->extents[extent];

    *off = 0;
    *n = e->size;
    for (int i = 0; i < e->ncut; i++) {
        bool micro = e->cut[i] == NDRT_MICRO;
        int64_t parts = micro ? p->nmicro : p->mesh_size[e->cut[i]];
        int64_t c = micro ? mb : ndrt_coord(p, rank, e->cut[i]);
        if (i == 0 && e->bounds) {
            *off = e->bounds[stage];
            *n = e->bounds[stage + 1] - e->bounds[stage];
            continue;
        }
        int64_t q = *n / parts, rem = *n % parts;
        *off += c * q + (c < rem ? c : rem);
        *n = q + (c < rem);
    }
}

bool ndrt_follows_micro(const ndrt_extent *e)
{
    for (int i = 0; i < e->ncut; i++)
        if (e->cut[i] == NDRT_MICRO)
            return true;
    return false;
}

uint32_t ndrt_cut_mask(const ndrt_program *p, const int *extent, int n)
{
    uint32_t mask = 0;

    for (int i = 0; i < n; i++) {
        const ndrt_extent *e = &p->extents[extent[i]];
        for (int c = 0; c < e->ncut; c++)
            if (e->cut[c] != NDRT_MICRO)
                mask |= 1u << e->cut[c];
    }
    return mask;
}

bool ndrt_is_sample(const ndrt_program *p, const ndrt_tensor *t, int a)
{
    return p->sample_axis && t->axis[a] &&
           strcmp(t->axis[a], p->sample_axis) == 0;
}

/* ---- parameters ------------------------------------------------------- */

/* The first of a device's stages that has the parameter has its beginning. */
static size_t param_at(const ndrt_program *p, int device, int param, bool grad)
{
    for (int s = 0; s < p->nstages; s++) {
        const ndrt_stage *stage = &p->stages[s];
        if (stage->device == device && stage->weights[param] != NDRT_NONE)
            return grad ? stage->grads[param] : stage->weights[param];
    }
    return NDRT_NONE;
}

size_t ndrt_weights_at(const ndrt_program *p, int device, int param)
{
    return param_at(p, device, param, false);
}

size_t ndrt_grads_at(const ndrt_program *p, int device, int param)
{
    return param_at(p, device, param, true);
}

static int first_device(const ndrt_program *p, int param)
{
    int d = 0;

    while (d < p->ndevices && ndrt_weights_at(p, d, param) == NDRT_NONE)
        d++;
    return d;
}

bool ndrt_owns_param(const ndrt_program *p, int rank, int param)
{
    const ndrt_param *q = &p->params[param];
    uint32_t cut = ndrt_cut_mask(p, q->extent, q->naxes);

    if (ndrt_weights_at(p, ndrt_device_of(p, rank), param) == NDRT_NONE)
        return false;
    for (int a = 0; a < p->nmesh; a++) {
        if (cut >> a & 1)
            continue;
        int c = ndrt_coord(p, rank, a);
        if (a == p->pipe ? c != first_device(p, param) : c != 0)
            return false;
    }
    return true;
}

/* A bucket whose parameters are cut over the pipeline holds other layers on
 * each device; only one that is not, and is on several, has copies. */
uint32_t ndrt_tied_devices(const ndrt_program *p, int bucket)
{
    const ndrt_bucket *b = &p->buckets[bucket];
    uint32_t cut = b->cut;

    for (int i = 0; i < b->nparams; i++) {
        const ndrt_param *q = &p->params[b->params[i]];
        cut |= ndrt_cut_mask(p, q->extent, q->naxes);
    }
    if (p->pipe < 0 || (cut >> p->pipe & 1) ||
        (b->devices & (b->devices - 1)) == 0)
        return 0;
    return b->devices;
}

/* ---- walking a piece -------------------------------------------------- */

/* The iterations that a device has of an axis cut in stages: how many, the
 * global index of the k-th, and which one has a global index, or -1. */
static int64_t held_iterations(const ndrt_program *p, int device,
                               const int64_t *bounds)
{
    int64_t n = 0;

    for (int s = 0; s < p->nstages; s++)
        if (p->stages[s].device == device)
            n += bounds[s + 1] - bounds[s];
    return n;
}

static int64_t global_iteration(const ndrt_program *p, int device,
                                const int64_t *bounds, int64_t k)
{
    int s = 0;

    for (;; s++) {
        int64_t n = bounds[s + 1] - bounds[s];
        if (p->stages[s].device != device)
            continue;
        if (k < n)
            return bounds[s] + k;
        k -= n;
    }
}

static int64_t local_iteration(const ndrt_program *p, int device,
                               const int64_t *bounds, int64_t i)
{
    int64_t before = 0;

    for (int s = 0; s < p->nstages; s++) {
        if (p->stages[s].device != device)
            continue;
        if (i >= bounds[s] && i < bounds[s + 1])
            return before + i - bounds[s];
        before += bounds[s + 1] - bounds[s];
    }
    return -1;
}

static void walk_axis(ndrt_walk *w, int extent, int64_t cap, int rank, int mb)
{
    const ndrt_extent *e = &w->p->extents[extent];
    int a = w->naxes++;

    if (e->bounds) {
        w->piped = a;
        w->bounds = e->bounds;
        w->n[a] = held_iterations(w->p, w->device, e->bounds);
    } else {
        ndrt_extent_of(w->p, extent, rank, 0, mb, &w->off[a], &w->n[a]);
    }
    w->cap[a] = cap;
    w->size[a] = e->size;
}

static ndrt_walk start(const ndrt_program *p, int rank)
{
    return (ndrt_walk){.p = p, .device = ndrt_device_of(p, rank), .piped = -1};
}

/* Where index i of a layer's axis is held, or -1. */
static int64_t local_layer(const ndrt_walk *w, int extent, int rank, int64_t i)
{
    const ndrt_extent *e = &w->p->extents[extent];
    int64_t off, n;

    if (e->bounds)
        return local_iteration(w->p, w->device, e->bounds, i);
    ndrt_extent_of(w->p, extent, rank, 0, 0, &off, &n);
    return i >= off && i < off + n ? i - off : -1;
}

ndrt_walk ndrt_walk_param(const ndrt_program *p, int rank, int param,
                          int64_t layer)
{
    const ndrt_param *q = &p->params[param];
    ndrt_walk w = start(p, rank);
    bool held = true;
    int64_t stride = 1;

    for (int a = layer >= 0 ? q->nlayers : 0; a < q->naxes; a++)
        walk_axis(&w, q->extent[a], q->cap[a], rank, 0);
    for (int a = 0; a < w.naxes; a++)
        stride *= w.cap[a];
    for (int a = q->nlayers - 1; a >= 0 && layer >= 0; a--) {
        int64_t size = p->extents[q->extent[a]].size;
        int64_t i = local_layer(&w, q->extent[a], rank, layer % size);
        layer /= size;
        held &= i >= 0;
        w.base += i * stride;
        stride *= q->cap[a];
    }
    if (!held)
        w.started = true, w.naxes = -1;
    return w;
}

ndrt_walk ndrt_walk_tensor(const ndrt_program *p, int rank,
                           const ndrt_tensor *t, int mb)
{
    ndrt_walk w = start(p, rank);

    for (int a = 0; a < t->naxes; a++)
        walk_axis(&w, t->extent[a], t->cap[a], rank, mb);
    return w;
}

/* The iterations of a device need not follow each other. */
static bool last_is_run(const ndrt_walk *w)
{
    return w->naxes > 0 && w->piped != w->naxes - 1;
}

/* Steps all axes but one that is the run. */
static bool step(ndrt_walk *w)
{
    for (int a = w->naxes - 1 - last_is_run(w); a >= 0; a--) {
        if (++w->i[a] < w->n[a])
            return true;
        w->i[a] = 0;
    }
    return false;
}

int64_t ndrt_walk_count(const ndrt_walk *w)
{
    int64_t n = 1;

    for (int a = 0; a < w->naxes; a++)
        n *= w->n[a];
    return n;
}

bool ndrt_walk_next(ndrt_walk *w)
{
    if (!w->started) {
        w->started = true;
        for (int a = 0; a < w->naxes; a++)
            if (w->n[a] == 0)
                return false;
    } else if (!step(w)) {
        return false;
    }
    w->local = w->global = 0;
    for (int a = 0; a < w->naxes; a++) {
        int64_t at = w->off[a] + w->i[a];
        if (a == w->piped)
            at = global_iteration(w->p, w->device, w->bounds, w->i[a]);
        w->local = w->local * w->cap[a] + w->i[a];
        w->global = w->global * w->size[a] + at;
    }
    w->local += w->base;
    w->length = last_is_run(w) ? w->n[w->naxes - 1] : 1;
    return true;
}

/* ---- making a rank ---------------------------------------------------- */

ndrt_status ndrt_open_buckets(ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    ndrt_state *st = r->state;
    uint32_t pipe = p->pipe < 0 ? 0 : 1u << p->pipe;
    ndrt_status s = NDRT_OK;

    for (int i = 0; i < p->nbuckets && s == NDRT_OK; i++) {
        const ndrt_bucket *b = &p->buckets[i];
        uint32_t tied = ndrt_tied_devices(p, i);
        uint32_t sum = b->sum & ~b->zero & ~pipe;
        if (!(b->devices >> r->device & 1))
            continue;
        if (tied)
            s = ndrt_group_open(r, &st->tied[i], 0, tied);
        if (s == NDRT_OK && sum)
            s = ndrt_group_open(r, &st->sum[i], sum, 0);
        if (s == NDRT_OK && b->zero)
            s = ndrt_group_open(r, &st->zero[i], b->zero, 0);
    }
    return s;
}

void ndrt_free_bucket(ndrt_rank *r, int bucket)
{
    ndrt_group_free(&r->state->sum[bucket]);
    ndrt_group_free(&r->state->zero[bucket]);
    ndrt_group_free(&r->state->tied[bucket]);
}

ndrt_status ndrt_open_world(ndrt_rank *r)
{
    return ndrt_group_open(r, &r->state->world, ~0u, 0);
}

ndrt_status ndrt_open_groups(ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    ndrt_state *st = r->state;
    ndrt_status s = st->world.n ? NDRT_OK : ndrt_open_world(r);

    for (int g = 0; g < p->ngroups && s == NDRT_OK; g++)
        s = ndrt_group_open(r, &st->groups[g], p->groups[g], 0);
    if (s == NDRT_OK)
        s = ndrt_open_buckets(r);
    if (s == NDRT_OK)
        s = ndrt_open_whole(r);
    if (s == NDRT_OK)
        s = ndrt_air_open(r);
    return s == NDRT_OK ? ndrt_early_open(r) : s;
}

ndrt_rank *ndrt_rank_new(const ndrt_program *p, const ndrt_config *config,
                         ndrt_comm *comm)
{
    ndrt_rank *r = calloc(1, sizeof *r);
    ndrt_state *st = calloc(1, sizeof *st);
    size_t ne = (size_t)p->nextents + 1, nb = (size_t)p->nbuckets + 1;

    if (!r || !st) {
        free(r);
        free(st);
        return NULL;
    }
    r->state = st;
    r->program = p;
    r->rank = comm->rank;
    r->nthreads = 1;
    r->device = ndrt_device_of(p, comm->rank);
    while (p->stages[r->stage].device != r->device)
        r->stage++;
    r->seed = config->train.seed;
    st->config = config;
    st->course = config->course;
    st->lent = true;
    st->jitter = ndrt_jitter_new(comm->rank);
    st->comm = comm;
    st->off = calloc(2 * ne, sizeof *st->off);
    st->groups = calloc((size_t)p->ngroups + 1, sizeof *st->groups);
    st->sum = calloc(3 * nb, sizeof *st->sum);
    st->whole = calloc((size_t)p->nparams + 1, sizeof *st->whole);
    st->made = calloc((size_t)p->nstages + 1, sizeof *st->made);
    st->ones = calloc((size_t)comm->size, sizeof *st->ones);
    st->share = calloc((size_t)comm->size, sizeof *st->share);
    st->all = calloc((size_t)comm->size * NDRT_WIDE, sizeof *st->all);
    if (config->comm_path) {
        st->count = ndrt_count_new(p, comm);
        st->comm = st->count ? ndrt_count_comm(st->count) : comm;
    }
    if (!st->off || !st->groups || !st->sum || !st->whole || !st->made ||
        !st->ones || !st->share || !st->all ||
        (config->comm_path && !st->count)) {
        ndrt_rank_free(r);
        return NULL;
    }
    st->n = st->off + ne;
    st->zero = st->sum + nb;
    st->tied = st->zero + nb;
    r->off = st->off;
    r->n = st->n;
    for (int q = 0; q < comm->size; q++)
        st->ones[q] = 1;
    for (int a = 0; a < p->nmesh; a++)
        st->coord[a] = ndrt_coord(p, r->rank, a);
    for (int e = 0; e < p->nextents; e++)
        ndrt_extent_of(p, e, r->rank, r->stage, 0, &st->off[e], &st->n[e]);
    return r;
}

void ndrt_rank_free(ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    ndrt_state *st = r->state;

    ndrt_air_free(r);
    ndrt_early_free(r);
    ndrt_lane_free(r);
    ndrt_trace_free(r);
    ndrt_products_free(st->products);
    ndrt_profile_free(r);
    for (int g = 0; st->groups && g < p->ngroups; g++)
        ndrt_group_free(&st->groups[g]);
    for (int b = 0; st->tied && b < p->nbuckets; b++)
        ndrt_free_bucket(r, b);
    for (int i = 0; st->whole && i < p->nparams; i++)
        ndrt_group_free(&st->whole[i]);
    ndrt_group_free(&st->world);
    free(st->groups);
    free(st->sum);
    free(st->whole);
    free(st->off);
    free(st->made);
    free(st->ones);
    free(st->share);
    free(st->all);
    ndrt_count_free(st->count);
    free(st->micro_loss);
    free(st->tiles);
    free(st->packed);
    free(st->parts);
    free(r->arena);
    free(st);
    free(r);
}
