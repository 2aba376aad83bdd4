/* buckets_check.c - do the buckets do what the parameters' types demand?
 *
 * What is pending in a gradient's type is what its bucket must add up, what
 * cuts the parameter is what its bucket must count as pieces, and the devices
 * that hold it are those whose copies meet. Each parameter has one place, of
 * its own, and the parts of ZeRO fill the range. Written against the types
 * alone: buckets.c is not asked.
 */
#include "passes.h"

static bool wrong(nd_code *c, const nd_param *p, int bucket, const char *what)
{
    nd_error(c->m->ctx, p ? p->loc : nd_nowhere, "bucket %d%s%s%s: %s", bucket,
             p ? ", parameter \"" : "", p ? p->name : "", p ? "\"" : "", what);
    return false;
}

/* By parameter: the devices that hold it. */
static uint32_t *find_holders(const nd_code *c)
{
    const nd_program *p = c->m->program;
    uint32_t *mask = ND_NEWN(c->a, uint32_t, c->m->params.n + 1);
    for (int s = 0; s < p->nstages; s++)
        for (int i = 0; i < p->stage[s].params.n; i++)
            mask[p->stage[s].params.v[i]->index] |=
                1u << p->stage[s].device;
    return mask;
}

/* The mesh axes along which ranks hold different pieces. */
static uint32_t pieces_of(const nd_module *m, const nd_param *p)
{
    const nd_type *t = &p->value->type;
    uint32_t mask = 0;
    for (int i = 0; i < t->rank; i++) {
        mask |= nd_cut_bits(t->cut[i]);
        if (!t->cut[i].n && nd_is_piped(m, t->axis[i]) &&
            m->program->nstages > 1)
            mask |= 1u << m->mesh.pipe;
    }
    return mask;
}

/* Mesh axes of one rank change nothing. */
static uint32_t real(const nd_module *m, uint32_t mask)
{
    for (int i = 0; i < m->mesh.n; i++)
        if (m->mesh.size[i] == 1)
            mask &= ~(1u << i);
    return mask;
}

/* The most iterations of an axis that one device's stages have together. */
static int64_t most_iterations(const nd_code *c, const nd_axis *a)
{
    const nd_program *p = c->m->program;
    int64_t *have = ND_NEWN(c->a, int64_t, p->ndevices), most = 0;
    for (int s = 0; s < p->nstages; s++) {
        int64_t lo, hi, *n = &have[p->stage[s].device];
        nd_stage_range(c->m, s, a, &lo, &hi);
        *n += hi - lo;
        most = *n > most ? *n : most;
    }
    return most;
}

static size_t room_of(const nd_code *c, const nd_param *p)
{
    const nd_module *m = c->m;
    const nd_type *t = &p->value->type;
    size_t n = 1;
    for (int i = 0; i < t->rank; i++) {
        int64_t most = nd_extent_max(&m->mesh, t->axis[i]->size, t->cut[i]);
        if (!t->cut[i].n && nd_is_piped(m, t->axis[i]))
            most = most_iterations(c, t->axis[i]);
        n *= (size_t)most;
    }
    return n;
}

/* The devices that have iterations of an axis. */
static uint32_t devices_with(const nd_module *m, const nd_axis *a)
{
    uint32_t mask = 0;
    for (int s = 0; s < m->program->nstages; s++) {
        int64_t lo, hi;
        nd_stage_range(m, s, a, &lo, &hi);
        mask |= (uint32_t)(hi > lo) << m->program->stage[s].device;
    }
    return mask;
}

static bool check_member(nd_code *c, int j, int k, uint32_t holders)
{
    const nd_module *m = c->m;
    const nd_bucket *b = &c->mem.buckets.v[j];
    const nd_param *p = b->params.v[k];
    uint32_t micro = 1u << m->mesh.micro;
    uint32_t zero = p->frozen ? 0 : nd_zero_mesh(m, p);
    uint32_t sum = real(m, p->grad.sum & ~micro);
    if (!nd_same_axes(&p->value->type, &p->grad) || p->grad.max)
        return wrong(c, p, j, "the gradient is not of the parameter's axes");
    if (real(m, nd_cut_mask(&p->value->type)) & sum)
        return wrong(c, p, j, "what cuts the parameter is pending in its "
                     "gradient");
    if (real(m, b->sum) != sum)
        return wrong(c, p, j, "adds up over other mesh axes than are pending "
                     "in the gradient");
    if (real(m, b->cut) != real(m, pieces_of(m, p)))
        return wrong(c, p, j, "counts other pieces than the parameter has");
    if (b->devices != holders)
        return wrong(c, p, j, "other devices hold the parameter");
    if (m->mesh.pipe >= 0 && b->cut >> m->mesh.pipe & 1 &&
        b->devices != devices_with(m, p->layer[0].axis))
        return wrong(c, p, j, "a device lacks its layers");
    if (b->zero & ~zero)
        return wrong(c, p, j, "shares its state over mesh axes that the plan "
                     "does not name");
    if ((zero & sum) != real(m, b->zero))
        return wrong(c, p, j, "does not share its state as the plan says");
    if (b->zero & ~b->sum)
        return wrong(c, p, j, "scatters over mesh axes that it does not add "
                     "up over");
    if (b->decay != p->decay || b->frozen != p->frozen)
        return wrong(c, p, j, "decays or is frozen unlike the parameter");
    if (b->at.v[k] + room_of(c, p) > b->n)
        return wrong(c, p, j, "reaches over the end of the range");
    if (k && b->at.v[k] < b->at.v[k - 1] + room_of(c, b->params.v[k - 1]))
        return wrong(c, p, j, "shares its place with the one before it");
    return true;
}

static bool check_parts(nd_code *c, int j)
{
    const nd_bucket *b = &c->mem.buckets.v[j];
    size_t parts = (size_t)nd_group_size(&c->m->mesh, b->zero);
    return b->n % parts == 0 || wrong(c, NULL, j, "the parts are unequal");
}

typedef struct lengths {
    int64_t least, most;
} lengths;

static void see_length(lengths *l, int64_t n)
{
    l->most = n > l->most ? n : l->most;
    l->least = n < l->least ? n : l->least;
}

/* The lengths into which member `j` of the cut, and those behind it, cut n
 * elements: the first pieces are one longer, if there are any. */
static void see_pieces(const nd_mesh *m, const nd_ext *e, int j, int64_t n,
                       lengths *l)
{
    if (j == e->cut.n) {
        see_length(l, n);
        return;
    }
    int64_t parts = m->size[e->cut.m[j]];
    if (n % parts)
        see_pieces(m, e, j + 1, n / parts + 1, l);
    see_pieces(m, e, j + 1, n / parts, l);
}

static lengths lengths_of(const nd_module *m, const nd_ext *e)
{
    lengths l = {INT64_MAX, 0};
    for (int s = 0; e->piped && s < m->program->nstages; s++) {
        int64_t lo, hi;
        nd_stage_range(m, s, e->axis, &lo, &hi);
        see_length(&l, hi - lo);
    }
    if (!e->piped)
        see_pieces(&m->mesh, e, 0, e->axis->size, &l);
    return l;
}

bool nd_extents_check(nd_code *c)
{
    const nd_module *m = c->m;
    for (int i = 0; i < c->exts.n; i++) {
        const nd_ext *e = &c->exts.v[i];
        if (e->tile)
            continue;
        lengths l = lengths_of(m, e);
        int64_t most = l.most, least = l.least;
        /* How many rows travel is known at run time only. */
        bool even = least == most && !e->axis->route;
        if (e->max != most || (e->fixed >= 0 && (!even || e->fixed != most))) {
            nd_error(m->ctx, e->axis->loc, "pieces of %s have %lld elements at "
                     "most, not %lld", e->axis->name, (long long)most,
                     (long long)e->max);
            return false;
        }
    }
    return true;
}

bool nd_buckets_check(nd_code *c)
{
    int *places = ND_NEWN(c->a, int, c->m->params.n + 1);
    const uint32_t *holders = find_holders(c);
    for (int j = 0; j < c->mem.buckets.n; j++) {
        const nd_bucket *b = &c->mem.buckets.v[j];
        for (int k = 0; k < b->params.n; k++) {
            int i = b->params.v[k]->index;
            if (!check_member(c, j, k, holders[i]))
                return false;
            if (places[i]++)
                return wrong(c, b->params.v[k], j, "has a place already");
            if (c->mem.bucket_of[i] != j || c->mem.member_of[i] != k)
                return wrong(c, b->params.v[k], j, "is looked for elsewhere");
        }
        if (!check_parts(c, j))
            return false;
    }
    for (int i = 0; i < c->m->params.n; i++)
        if (!places[i])
            return wrong(c, c->m->params.v[i], c->mem.bucket_of[i],
                         "is in no bucket");
    return true;
}
