/* optim.c - from gradients to new weights: reduce, norm, update.
 *
 * Per bucket, in the order that every rank follows:
 *   1. over `zero` gradients are reduced and scattered: each rank keeps the
 *      part of the flat range whose optimizer state it owns,
 *   2. copies on several devices of a pipeline add that part,
 *   3. it is added up over the other mesh axes that it is pending over,
 *   4. the part is updated, 5. the new weights are gathered over `zero`.
 * The updates themselves are in optim_rules.c; muon.c has its own steps 4, 5.
 */
#include "ndrt_internal.h"

#include <math.h>

enum { LINE = 16 };               /* floats of a cache line */

/* ---- the learning rate ------------------------------------------------ */

/* How far from the start of the decay (0) to the last update (1). */
static double progress(int64_t t, int64_t from, int64_t to)
{
    if (t >= to)
        return 1.0;
    return t <= from ? 0.0 : (double)(t - from) / (double)(to - from);
}

/* The update after which wsd decays. Steps may have been changed since the
 * fraction was made of a whole number: the slack undoes its rounding. */
static int64_t decay_from(const ndrt_train *t)
{
    double part = t->decay_fraction == 0.0 ? 0.2 : t->decay_fraction;
    double length = floor(part * (double)t->steps + 1e-6);
    int64_t from = t->steps - (length > 0.0 ? (int64_t)length : 0);

    return from < t->warmup ? t->warmup : from;
}

double ndrt_lr(const ndrt_train *t, int64_t update)
{
    const double pi = 3.14159265358979323846;
    double span = t->lr - t->lr_min;

    if (t->warmup > 0 && update <= t->warmup)
        return t->lr * (double)update / (double)t->warmup;
    switch (t->lr_kind) {
    case NDRT_LR_CONST:
        break;
    case NDRT_LR_COSINE:
        return t->lr_min + span * 0.5 *
               (1.0 + cos(pi * progress(update, t->warmup, t->steps)));
    case NDRT_LR_LINEAR:
        return t->lr_min +
               span * (1.0 - progress(update, t->warmup, t->steps));
    case NDRT_LR_WSD:
        if (t->decay_fraction < 0.0)
            break;
        return t->lr_min +
               span * (1.0 - progress(update, decay_from(t), t->steps));
    }
    return t->lr;
}

/* ---- reducing --------------------------------------------------------- */

static float *at(const ndrt_rank *r, size_t offset)
{
    return (float *)(void *)(r->arena + offset);
}

void ndrt_my_part(const ndrt_rank *r, int bucket, size_t *from, size_t *n)
{
    const ndrt_bucket *b = &r->program->buckets[bucket];
    const ndrt_group *z = &r->state->zero[bucket];
    size_t parts = b->zero ? (size_t)z->n : 1;

    *n = b->n / parts;
    *from = b->zero ? *n * (size_t)z->me : 0;
}

static ndrt_status all_reduce(ndrt_rank *r, ndrt_group *g, float *x, size_t n)
{
    ndrt_comm *c = r->state->comm;

    if (g->n <= 1 || n == 0)
        return NDRT_OK;
    return ndrt_comm_check(r, c->ops->all_reduce(c, g, x, (int64_t)n,
                                                NDRT_SUM));
}

ndrt_status ndrt_gather_parts(ndrt_rank *r, int bucket, float *x)
{
    ndrt_comm *c = r->state->comm;
    ndrt_group *g = &r->state->zero[bucket];
    size_t from, n;

    if (g->n <= 1)
        return NDRT_OK;
    ndrt_my_part(r, bucket, &from, &n);
    ndrt_layout l = {.outer = 1, .inner = (int64_t)n, .n = r->state->ones,
                     .x = x + from, .y = x};
    return ndrt_comm_check(r, c->ops->all_gather(c, g, &l));
}

/* The range that both have; from its end on, if they have none. */
static void common(size_t *from, size_t *to, size_t lo, size_t hi)
{
    *from = *from > lo ? *from : lo;
    *to = *to < hi ? *to : hi;
    if (*from > *to)
        *from = *to;
}

/* Each member's part of the range; they lie one after another. */
static ndrt_status scatter(ndrt_rank *r, int bucket, float *x, size_t from,
                           size_t to)
{
    ndrt_comm *c = r->state->comm;
    ndrt_group *g = &r->state->zero[bucket];
    size_t n = r->program->buckets[bucket].n / (size_t)g->n, mine = from;

    if (g->n <= 1)
        return NDRT_OK;
    for (int i = 0; i < g->n; i++) {
        size_t lo = from, hi = to;
        common(&lo, &hi, n * (size_t)i, n * (size_t)(i + 1));
        r->state->share[i] = (int64_t)(hi - lo);
        mine += i < g->me ? hi - lo : 0;
    }
    ndrt_layout l = {.outer = 1, .inner = 1, .n = r->state->share,
                     .x = x + from, .y = x + mine};
    return ndrt_comm_check(r, c->ops->reduce_scatter(c, g, &l));
}

ndrt_status ndrt_reduce_range(ndrt_rank *r, int bucket, float *x, size_t from,
                              size_t to)
{
    const ndrt_bucket *b = &r->program->buckets[bucket];
    size_t lo, n, first = from, end = to;
    ndrt_status s = NDRT_OK;

    ndrt_my_part(r, bucket, &lo, &n);
    common(&first, &end, lo, lo + n);
    if (b->zero & b->sum)
        s = scatter(r, bucket, x, from, to);
    if (s == NDRT_OK)
        s = all_reduce(r, &r->state->tied[bucket], x + first, end - first);
    if (s == NDRT_OK)
        s = all_reduce(r, &r->state->sum[bucket], x + first, end - first);
    return s;
}

/* ---- the norm --------------------------------------------------------- */

/* Does this rank speak for its piece of the bucket? On every mesh axis that
 * does not cut it, coordinate 0 does; along `zero` each has a part. */
static bool counts(const ndrt_rank *r, int bucket)
{
    const ndrt_program *p = r->program;
    const ndrt_bucket *b = &p->buckets[bucket];
    uint32_t split = b->cut | b->zero, tied = ndrt_tied_devices(p, bucket);

    if (tied && (tied & ((1u << r->device) - 1)))
        return false;
    for (int a = 0; a < p->nmesh; a++)
        if (a != p->pipe && !(split >> a & 1) && r->state->coord[a] != 0)
            return false;
    return true;
}

/* The first parts are whole cache lines. */
void ndrt_add_squares(const ndrt_rank *r, const float *x, size_t n,
                      double sums[NDRT_SUMS])
{
    size_t part = (n / NDRT_SUMS + LINE) / LINE * LINE;
    ndrt_span s = ndrt_share(r, NDRT_SUMS, 1);

    for (int64_t k = s.from; k < s.to && (size_t)k * part < n; k++) {
        size_t from = (size_t)k * part, left = n - from;
        sums[k] += ndrt_sum_squares(x + from, left < part ? left : part);
    }
}

double ndrt_total(const double sums[NDRT_SUMS])
{
    double total = 0.0;

    for (int k = 0; k < NDRT_SUMS; k++)
        total += sums[k];
    return total;
}

static void add_norm(ndrt_rank *r, void *sums)
{
    const ndrt_program *p = r->program;
    const ndrt_device *here = ndrt_here(r);

    for (int i = 0; i < here->nplaces; i++) {
        const ndrt_place *pl = &here->places[i];
        const ndrt_bucket *b = &p->buckets[pl->bucket];
        size_t from, n;
        if (b->frozen || !counts(r, pl->bucket))
            continue;
        ndrt_my_part(r, pl->bucket, &from, &n);
        ndrt_add_squares(r, at(r, pl->grads) + from, n, sums);
    }
}

double ndrt_square_norm(ndrt_rank *r)
{
    double sums[NDRT_SUMS] = {0};

    ndrt_together(r, add_norm, sums);
    return ndrt_total(sums);
}

/* ---- the update ------------------------------------------------------- */

typedef struct update {
    ndrt_rule rule;
    size_t n;
    float *w, *g, *m, *v;
} update;

/* Every element is read and written once. */
static void update_share(ndrt_rank *r, void *arg)
{
    const update *p = arg;
    const ndrt_rule *u = &p->rule;
    ndrt_span s = ndrt_share(r, (int64_t)p->n, LINE);
    float *w = p->w + s.from, *m = p->m ? p->m + s.from : NULL;
    float *g = p->g + s.from, *v = p->v ? p->v + s.from : NULL;
    size_t n = (size_t)(s.to - s.from);

    switch (u->train->opt) {
    case NDRT_SGD:
        ndrt_sgd(u, n, w, g, u->train->momentum != 0.0 ? m : NULL);
        break;
    case NDRT_LION:
        ndrt_lion(u, n, w, g, m);
        break;
    case NDRT_ADAM:
    case NDRT_ADAMW:
    case NDRT_MUON:
        ndrt_adam(u, u->train->opt != NDRT_ADAM, n, w, g, m, v);
        break;
    }
}

static ndrt_status update_bucket(ndrt_rank *r, const ndrt_place *pl,
                                 double scale, double lr)
{
    const ndrt_train *t = &r->state->config->train;
    const ndrt_bucket *b = &r->program->buckets[pl->bucket];
    float *w = at(r, pl->weights);
    update u = {.m = pl->state1 == NDRT_NONE ? NULL : at(r, pl->state1),
                .v = pl->state2 == NDRT_NONE ? NULL : at(r, pl->state2)};
    bool moments = t->opt != NDRT_SGD && t->opt != NDRT_LION && !b->muon;
    size_t from;

    u.rule = (ndrt_rule){t, r->state->updates, lr,
                         b->decay ? t->weight_decay : 0.0, (float)scale};
    if ((!u.m && (t->opt != NDRT_SGD || t->momentum != 0.0)) ||
        (!u.v && moments))
        return ndrt_fail(r, NDRT_EINTERNAL, "no room for optimizer state");
    if (b->muon)
        return ndrt_muon(r, pl, &u.rule);
    if (t->opt == NDRT_MUON)
        u.rule.lr *= t->adamw_ratio;
    ndrt_my_part(r, pl->bucket, &from, &u.n);
    u.w = w + from;
    u.g = at(r, pl->grads) + from;
    ndrt_status s = ndrt_together(r, update_share, &u);
    if (s == NDRT_OK && b->zero)
        s = ndrt_gather_parts(r, pl->bucket, w);
    return s;
}

ndrt_status ndrt_update(ndrt_rank *r, double scale, double lr)
{
    const ndrt_device *here = ndrt_here(r);
    ndrt_status s = NDRT_OK;

    r->state->updates++;
    for (int i = 0; i < here->nplaces && s == NDRT_OK; i++)
        if (!r->program->buckets[here->places[i].bucket].frozen)
            s = update_bucket(r, &here->places[i], scale, lr);
    return s;
}
