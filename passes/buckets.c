/* buckets.c - parameters grouped so that each group is one flat range.
 *
 * Gradients of a bucket need the same reductions and its state is cut the same
 * way, so the runtime handles a bucket as one array of floats: one collective,
 * one update loop. Buckets are numbered over the whole program; a parameter
 * held by several devices (tied) sits in a bucket of its own kind. A device
 * with several stages holds a parameter once: of a stacked one the iterations
 * of its stages, one after another.
 *
 * The parameter with the largest iterations comes first, if values may lie over
 * gradients: what backward reads iteration by iteration may begin in front of
 * the bucket then (lend_stack.c).
 */
#include "passes.h"

#include <string.h>

enum { ALIGN = 16 };                 /* floats: one cache line */

static size_t up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static size_t floats_of(nd_code *c, const nd_param *p)
{
    const nd_type *t = &p->value->type;
    size_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= (size_t)nd_param_cap(c, t, i);
    return up(n, ALIGN);
}

int64_t nd_param_cap(nd_code *c, const nd_type *t, int i)
{
    return c->exts.v[nd_ext_of(c, t, i)].device;
}

/* By parameter: the devices that hold it. */
static uint32_t *find_devices(const nd_code *c)
{
    const nd_program *prog = c->m->program;
    uint32_t *mask = ND_NEWN(c->a, uint32_t, c->m->params.n);
    for (int s = 0; s < prog->nstages; s++)
        for (int i = 0; i < prog->stage[s].params.n; i++)
            mask[prog->stage[s].params.v[i]->index] |=
                1u << prog->stage[s].device;
    return mask;
}

static uint32_t cut_of(nd_code *c, const nd_param *p)
{
    const nd_type *t = &p->value->type;
    uint32_t mask = nd_cut_mask(t);
    for (int i = 0; i < t->rank; i++)
        if (c->exts.v[nd_ext_of(c, t, i)].piped)
            mask |= 1u << c->m->mesh.pipe;
    return mask;
}

uint32_t nd_matrix_cut(const nd_param *p)
{
    const nd_type *t = &p->value->type;
    uint32_t mask = 0;
    for (int i = p->lead + p->nlayers; i < t->rank; i++)
        for (int j = 0; j < t->cut[i].n; j++)
            mask |= 1u << t->cut[i].m[j];
    return mask;
}

uint32_t nd_tied_devices(const nd_module *m, const nd_bucket *b)
{
    bool piped = m->mesh.pipe >= 0 && b->cut >> m->mesh.pipe & 1;
    bool several = b->devices & (b->devices - 1);
    return several && !piped ? b->devices : 0;
}

static nd_bucket kind_of(nd_code *c, const nd_param *p, uint32_t devices)
{
    uint32_t micro = 1u << c->m->mesh.micro;
    nd_bucket b = {
        .sum = p->grad.sum & ~micro,
        .cut = cut_of(c, p),
        .devices = devices,
        .decay = p->decay,
        .frozen = p->frozen,
        .muon = p->muon && !p->frozen,
    };
    /* Only ranks that sum a gradient share its state among them. */
    if (!b.frozen)
        b.zero = nd_zero_mesh(c->m, p) & b.sum;
    return b;
}

static bool same_kind(const nd_bucket *a, const nd_bucket *b)
{
    return a->sum == b->sum && a->cut == b->cut && a->zero == b->zero &&
           a->devices == b->devices && a->decay == b->decay &&
           a->frozen == b->frozen && a->muon == b->muon;
}

/* Floats of an iteration of the outermost repeat. */
static size_t floats_of_iteration(nd_code *c, const nd_param *p)
{
    return p->nlayers ? floats_of(c, p) /
                            (size_t)nd_param_cap(c, &p->value->type, 0)
                      : 0;
}

static void largest_first(nd_code *c, nd_bucket *b)
{
    int first = 0;
    for (int i = 1; i < b->params.n; i++)
        if (floats_of_iteration(c, b->params.v[i]) >
            floats_of_iteration(c, b->params.v[first]))
            first = i;
    nd_param *p = b->params.v[first];
    memmove(b->params.v + 1, b->params.v, sizeof p * (size_t)first);
    b->params.v[0] = p;
    b->n = 0;
    for (int i = 0; i < b->params.n; i++) {
        b->at.v[i] = b->n;
        c->mem.member_of[b->params.v[i]->index] = i;
        b->n += floats_of(c, b->params.v[i]);
    }
}

void nd_buckets(nd_code *c)
{
    const uint32_t *devices = find_devices(c);
    c->mem.bucket_of = ND_NEWN(c->a, int, c->m->params.n);
    c->mem.member_of = ND_NEWN(c->a, int, c->m->params.n);
    for (int i = 0; i < c->m->params.n; i++) {
        nd_param *p = c->m->params.v[i];
        nd_bucket kind = kind_of(c, p, devices[i]), *b = NULL;
        c->mem.bucket_of[i] = -1;
        if (!kind.devices)
            continue;
        for (int j = 0; j < c->mem.buckets.n; j++)
            if (same_kind(&c->mem.buckets.v[j], &kind))
                b = &c->mem.buckets.v[j];
        if (!b) {
            ND_PUSH(c->a, &c->mem.buckets, kind);
            b = &c->mem.buckets.v[c->mem.buckets.n - 1];
        }
        c->mem.bucket_of[i] = (int)(b - c->mem.buckets.v);
        c->mem.member_of[i] = b->params.n;
        ND_PUSH(c->a, &b->params, p);
        ND_PUSH(c->a, &b->at, b->n);
        b->n += floats_of(c, p);
    }
    for (int j = 0; j < c->mem.buckets.n; j++) {
        nd_bucket *b = &c->mem.buckets.v[j];
        if (nd_may_lend(c->m))
            largest_first(c, b);
        b->n = up(b->n, ALIGN * (size_t)nd_group_size(&c->m->mesh, b->zero));
    }
}
