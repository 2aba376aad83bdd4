/* optim.c - from gradients to new weights: reduce, norm, update.
 *
 * Per bucket, in the order that every rank follows:
 *   1. copies on several pipeline stages add their gradients,
 *   2. what is pending over mesh axes other than `zero` is added up,
 *   3. over `zero` it is reduced and scattered: each rank keeps the part of
 *      the flat range whose optimizer state it owns,
 *   4. the part is updated, 5. the new weights are gathered over `zero`.
 *
 * AdamW: Loshchilov and Hutter, arXiv 1711.05101. The decay is a factor on the
 * old weight and is not seen by the moments.
 */
#include "ndrt_internal.h"
#include "ndrt_math.h"

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

/* The part of the flat range that this rank updates. */
static void my_part(const ndrt_rank *r, const ndrt_bucket *b, int bucket,
                    size_t *from, size_t *n)
{
    const ndrt_group *z = &r->state->zero[bucket];
    size_t parts = b->zero ? (size_t)z->n : 1;

    *n = b->n / parts;
    *from = b->zero ? *n * (size_t)z->me : 0;
}

static ndrt_status all_reduce(ndrt_rank *r, ndrt_group *g, float *x, size_t n)
{
    ndrt_comm *c = r->state->comm;

    if (g->n <= 1)
        return NDRT_OK;
    return ndrt_comm_check(r, c->ops->all_reduce(c, g, x, (int64_t)n, false));
}

static ndrt_status over_zero(ndrt_rank *r, int bucket, bool gather, float *x)
{
    ndrt_comm *c = r->state->comm;
    ndrt_group *g = &r->state->zero[bucket];
    const ndrt_bucket *b = &r->program->buckets[bucket];
    size_t from, n;

    if (g->n <= 1)
        return NDRT_OK;
    my_part(r, b, bucket, &from, &n);
    ndrt_layout l = {.outer = 1, .inner = (int64_t)n, .n = r->state->ones,
                     .x = gather ? x + from : x,
                     .y = gather ? x : x + from};
    ndrt_status s = gather ? c->ops->all_gather(c, g, &l)
                           : c->ops->reduce_scatter(c, g, &l);
    return ndrt_comm_check(r, s);
}

ndrt_status ndrt_reduce_grads(ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    const ndrt_stage *stage = &p->stages[r->stage];
    ndrt_status s = NDRT_OK;

    for (int i = 0; i < stage->nplaces && s == NDRT_OK; i++) {
        const ndrt_place *pl = &stage->places[i];
        const ndrt_bucket *b = &p->buckets[pl->bucket];
        if (b->frozen)
            continue;
        float *g = at(r, pl->grads);
        s = all_reduce(r, &r->state->tied[pl->bucket], g, b->n);
        if (s == NDRT_OK)
            s = all_reduce(r, &r->state->sum[pl->bucket], g, b->n);
        if (s == NDRT_OK && (b->zero & b->sum))
            s = over_zero(r, pl->bucket, false, g);
    }
    return s;
}

/* ---- the norm --------------------------------------------------------- */

/* Does this rank speak for its piece of the bucket? On every mesh axis that
 * does not cut it, coordinate 0 does; along `zero` each has a part. */
static bool counts(const ndrt_rank *r, int bucket)
{
    const ndrt_program *p = r->program;
    const ndrt_bucket *b = &p->buckets[bucket];
    uint32_t split = b->cut | b->zero, tied = ndrt_tied_stages(p, bucket);

    if (tied && (tied & ((1u << r->stage) - 1)))
        return false;
    for (int a = 0; a < p->nmesh; a++)
        if (a != p->pipe && !(split >> a & 1) && r->state->coord[a] != 0)
            return false;
    return true;
}

/* Eight running sums, because one would wait for itself at every addition. */
static double sum_squares(const float *x, size_t n)
{
    double s[8] = {0}, total = 0.0;
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            s[j] += (double)x[i + j] * (double)x[i + j];
    for (; i < n; i++)
        s[0] += (double)x[i] * (double)x[i];
    for (int j = 0; j < 8; j++)
        total += s[j];
    return total;
}

double ndrt_square_norm(const ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    const ndrt_stage *stage = &p->stages[r->stage];
    double total = 0.0;

    for (int i = 0; i < stage->nplaces; i++) {
        const ndrt_place *pl = &stage->places[i];
        const ndrt_bucket *b = &p->buckets[pl->bucket];
        size_t from, n;
        if (b->frozen || !counts(r, pl->bucket))
            continue;
        my_part(r, b, pl->bucket, &from, &n);
        total += sum_squares(at(r, pl->grads) + from, n);
    }
    return total;
}

/* ---- the update ------------------------------------------------------- */

static void adam(const ndrt_train *t, int64_t update, double lr, double decay,
                 float scale, size_t n, float *restrict w,
                 const float *restrict g, float *restrict m,
                 float *restrict v)
{
    const float b1 = (float)t->beta1, b2 = (float)t->beta2;
    const float c1 = (float)(1.0 - t->beta1), c2 = (float)(1.0 - t->beta2);
    const float rate = (float)(lr / (1.0 - pow(t->beta1, (double)update)));
    const float root =
        (float)(1.0 / sqrt(1.0 - pow(t->beta2, (double)update)));
    const float eps = (float)t->eps, shrink = (float)(lr * decay);

    for (size_t i = 0; i < n; i++) {
        float x = g[i] * scale;
        m[i] = b1 * m[i] + c1 * x;
        v[i] = b2 * v[i] + c2 * x * x;
        float step = rate * m[i] / (nd_sqrt(v[i]) * root + eps);
        w[i] = w[i] - shrink * w[i] - step;
    }
}

static void sgd(const ndrt_train *t, double lr, float scale, size_t n,
                float *restrict w, const float *restrict g, float *restrict m)
{
    const float rate = (float)lr, mu = (float)t->momentum;

    for (size_t i = 0; i < n && !m; i++)
        w[i] -= rate * (g[i] * scale);
    for (size_t i = 0; i < n && m; i++) {
        float x = g[i] * scale;
        m[i] = mu * m[i] + x;
        w[i] -= rate * (t->nesterov ? x + mu * m[i] : m[i]);
    }
}

static ndrt_status update_bucket(ndrt_rank *r, const ndrt_place *pl,
                                 double scale, double lr)
{
    const ndrt_train *t = &r->state->config->train;
    const ndrt_bucket *b = &r->program->buckets[pl->bucket];
    float *w = at(r, pl->weights), *g = at(r, pl->grads);
    float *m = pl->state1 == NDRT_NONE ? NULL : at(r, pl->state1);
    float *v = pl->state2 == NDRT_NONE ? NULL : at(r, pl->state2);
    size_t from, n;

    my_part(r, b, pl->bucket, &from, &n);
    if (t->opt == NDRT_SGD) {
        if (t->momentum != 0.0 && !m)
            return ndrt_fail(r, NDRT_EINTERNAL, "no room for momentum");
        sgd(t, lr, (float)scale, n, w + from, g + from,
            t->momentum != 0.0 ? m : NULL);
    } else {
        double decay = t->opt == NDRT_ADAMW && b->decay ? t->weight_decay
                                                        : 0.0;
        if (!m || !v)
            return ndrt_fail(r, NDRT_EINTERNAL, "no room for moments");
        adam(t, r->state->updates, lr, decay, (float)scale, n, w + from,
             g + from, m, v);
    }
    return b->zero ? over_zero(r, pl->bucket, true, w) : NDRT_OK;
}

ndrt_status ndrt_update(ndrt_rank *r, double scale, double lr)
{
    const ndrt_stage *stage = &r->program->stages[r->stage];
    ndrt_status s = NDRT_OK;

    r->state->updates++;
    for (int i = 0; i < stage->nplaces && s == NDRT_OK; i++)
        if (!r->program->buckets[stage->places[i].bucket].frozen)
            s = update_bucket(r, &stage->places[i], scale, lr);
    return s;
}
