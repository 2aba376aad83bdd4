/* muon.c - momentum made orthogonal, for parameters that are matrices.
 *
 * As torch.optim.Muon (PyTorch 2.9) with its defaults, which is Keller Jordan's
 * optimizer (https://kellerjordan.github.io/posts/muon/), but in f32:
 *
 *   m += (1 - mu) (x - m);  d = x + mu (m - x)        without nesterov d = m
 *   X  = d / max(|d|, 1e-7), at most as many rows as columns; `steps` times
 *        A = X X';  X = (3.4445 I - 4.7750 A + 2.0315 A A) X
 *   w -= lr wd w + lr sqrt(max(1, fan_out / fan_in)) X
 *
 * PyTorch's weight is [out, in], so its rows / columns is fan_out / fan_in. A
 * parameter is a list of matrices [fan_in, fan_out], one per index of its
 * leading axes and of its repeat; each is a case by itself.
 *
 * The momentum is element by element, so `zero` cuts it like other state: the
 * ranks then gather d, in place of the gradient. Where mesh axes cut a matrix,
 * its ranks gather the pieces of one matrix at a time. All ranks that hold a
 * piece compute the same bits and take theirs. The threads of a rank share out
 * all loops over elements and all products.
 */
#include "ndrt_internal.h"

#include <math.h>
#include <string.h>

enum { LINE = 16 };               /* floats of a cache line */

/* Room for one matrix; must agree with passes/memplan.c. */
typedef struct room {
    float *x, *y;                 /* [fan_in, fan_out] */
    float *a, *b;                 /* [less, less] */
    float *pieces;                /* of all ranks of the group */
} room;

static int64_t up16(int64_t n)
{
    return (n + 15) / 16 * 16;
}

/* ---- which ranks hold the pieces ---------------------------------------- */

static uint32_t matrix_cut(const ndrt_program *p, int param)
{
    const ndrt_param *q = &p->params[param];

    return ndrt_cut_mask(p, q->extent + q->lead, q->naxes - q->lead);
}

static bool is_here(const ndrt_rank *r, int param)
{
    return r->program->params[param].muon &&
           ndrt_weights_at(r->program, r->device, param) != NDRT_NONE;
}

/* The first parameter here that is cut in the same way: its group serves. */
static int same_cut(const ndrt_rank *r, int param)
{
    uint32_t mask = matrix_cut(r->program, param);
    int i = 0;

    while (!is_here(r, i) || matrix_cut(r->program, i) != mask)
        i++;
    return i;
}

const ndrt_group *ndrt_whole_group(const ndrt_rank *r, int param)
{
    const ndrt_group *g = &r->state->whole[same_cut(r, param)];

    return g->n > 1 ? g : NULL;
}

ndrt_status ndrt_open_whole(ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    ndrt_status s = NDRT_OK;

    for (int i = 0; i < p->nparams && s == NDRT_OK; i++)
        if (is_here(r, i) && same_cut(r, i) == i && matrix_cut(p, i))
            s = ndrt_group_open(r, &r->state->whole[i], matrix_cut(p, i), 0);
    return s;
}

/* ---- pieces of a matrix ------------------------------------------------ */

/* The leading axes: every element of its runs is a matrix. */
static ndrt_walk walk_list(const ndrt_rank *r, int param)
{
    ndrt_walk w = ndrt_walk_param(r->program, r->rank, param, -1);

    w.naxes = r->program->params[param].lead;
    return w;
}

/* The piece of one matrix that `rank` holds. */
static ndrt_walk walk_piece(const ndrt_program *p, int rank, int param)
{
    ndrt_walk w = ndrt_walk_param(p, rank, param, -1);
    int lead = p->params[param].lead;
    size_t bytes = (size_t)(w.naxes - lead) * sizeof *w.off;

    w.naxes -= lead;
    w.piped = -1;                 /* it leads */
    memmove(w.off, w.off + lead, bytes);
    memmove(w.n, w.n + lead, bytes);
    memmove(w.cap, w.cap + lead, bytes);
    memmove(w.size, w.size + lead, bytes);
    return w;
}

/* Floats from one matrix of the list to the next, as stored. */
static int64_t piece_floats(const ndrt_param *q)
{
    int64_t n = 1;

    for (int a = q->lead; a < q->naxes; a++)
        n *= q->cap[a];
    return n;
}

static void place(const ndrt_program *p, int rank, int param,
                  const float *piece, float *whole)
{
    ndrt_walk w = walk_piece(p, rank, param);

    while (ndrt_walk_next(&w))
        memcpy(whole + w.global, piece + w.local,
               (size_t)w.length * sizeof *whole);
}

static ndrt_status gather(ndrt_rank *r, int param, const float *piece,
                          const room *k)
{
    const ndrt_group *g = ndrt_whole_group(r, param);
    ndrt_comm *c = r->state->comm;
    int64_t n = piece_floats(&r->program->params[param]);

    if (!g) {
        place(r->program, r->rank, param, piece, k->x);
        return NDRT_OK;
    }
    ndrt_layout l = {.outer = 1, .inner = n, .n = r->state->ones, .x = piece,
                     .y = k->pieces};
    ndrt_status s = ndrt_comm_check(
        r, c->ops->all_gather(c, (ndrt_group *)g, &l));
    for (int i = 0; i < g->n && s == NDRT_OK; i++)
        place(r->program, g->ranks[i], param, k->pieces + i * n, k->x);
    return s;
}

/* ---- one matrix -------------------------------------------------------- */

typedef struct job {              /* of all threads */
    const ndrt_param *q;
    int param;
    const ndrt_rule *rule;
    const room *room;
    double sums[NDRT_SUMS];
    float *weights;
} job;

static void scale(ndrt_rank *r, float *x, int64_t n, float by)
{
    ndrt_span s = ndrt_share(r, n, LINE);

    for (int64_t i = s.from; i < s.to; i++)
        x[i] *= by;
    ndrt_barrier(r);
}

/* Each thread's own view of the room: x and y change places. Leaves the
 * orthogonal matrix in k->x. Rows of X are the shorter side; X lies in memory
 * as the weight does. */
static void orthogonalise(ndrt_rank *r, job *j, room *k)
{
    const ndrt_param *q = j->q;
    bool swap = q->fan_in > q->fan_out;
    int64_t rows = swap ? q->fan_out : q->fan_in;
    int64_t cols = swap ? q->fan_in : q->fan_out;
    int64_t xr = swap ? 1 : cols, xc = swap ? rows : 1, n = rows * cols;

    ndrt_add_squares(r, k->x, (size_t)n, j->sums);
    ndrt_barrier(r);
    double norm = sqrt(ndrt_total(j->sums));
    scale(r, k->x, n, (float)(1.0 / (norm > 1e-7 ? norm : 1e-7)));
    for (int64_t step = 0; step < j->rule->train->ns_steps; step++) {
        float *x = k->x;
        ndrt_gemm(r, false, rows, rows, cols, x, xr, xc, x, xc, xr, k->a,
                  rows, 1);
        ndrt_gemm(r, false, rows, rows, rows, k->a, rows, 1, k->a, rows, 1,
                  k->b, rows, 1);
        ndrt_span s = ndrt_share(r, rows, 1);
        for (int64_t i = s.from * rows; i < s.to * rows; i++)
            k->b[i] = -4.7750f * k->a[i] + 2.0315f * k->b[i];
        for (int64_t i = s.from; i < s.to; i++)
            k->b[i * rows + i] += 3.4445f;
        ndrt_barrier(r);
        ndrt_gemm(r, false, rows, cols, rows, k->b, rows, 1, x, xr, xc, k->y,
                  xr, xc);
        k->x = k->y;
        k->y = x;
    }
}

static void use_matrix(ndrt_rank *r, void *arg)
{
    job *j = arg;
    const ndrt_rule *u = j->rule;
    double tall = (double)j->q->fan_out / (double)j->q->fan_in;
    const float rate = (float)(u->lr * sqrt(tall > 1.0 ? tall : 1.0));
    const float shrink = (float)(u->lr * u->weight_decay);
    room k = *j->room;
    ndrt_walk w = walk_piece(r->program, r->rank, j->param);
    int64_t all = ndrt_walk_count(&w), at = 0;

    orthogonalise(r, j, &k);
    for (; ndrt_walk_next(&w); at += w.length) {
        float *to = j->weights + w.local;
        const float *x = k.x + w.global;
        ndrt_span s = ndrt_share_run(r, all, at, w.length);
        for (int64_t i = s.from; i < s.to; i++)
            to[i] = to[i] - shrink * to[i] - rate * x[i];
    }
}

static ndrt_status update_matrix(ndrt_rank *r, int param, const ndrt_rule *u,
                                 const float *d, float *weights, const room *k)
{
    job j = {.q = &r->program->params[param], .param = param, .rule = u,
             .room = k, .weights = weights};
    ndrt_status s = gather(r, param, d, k);

    return s == NDRT_OK ? ndrt_together(r, use_matrix, &j) : s;
}

/* ---- a bucket ---------------------------------------------------------- */

static ndrt_status make_room(ndrt_rank *r, int param, room *k)
{
    const ndrt_device *here = ndrt_here(r);
    const ndrt_param *q = &r->program->params[param];
    const ndrt_group *g = ndrt_whole_group(r, param);
    int64_t less = q->fan_in < q->fan_out ? q->fan_in : q->fan_out;
    int64_t n = up16(q->fan_in * q->fan_out), nn = up16(less * less);

    k->x = (float *)(void *)(r->arena + here->work);
    k->y = k->x + n;
    k->a = k->y + n;
    k->b = k->a + nn;
    k->pieces = k->b + nn;
    int64_t all = 2 * (n + nn) + (g ? g->n * piece_floats(q) : 0);
    if ((size_t)all * sizeof(float) > here->work_bytes)
        return ndrt_fail(r, NDRT_EINTERNAL, "no room for the matrices of %s",
                         q->name);
    return NDRT_OK;
}

static ndrt_status update_param(ndrt_rank *r, int param, const ndrt_rule *u)
{
    float *w = ndrt_tensor_at(r, param, 0);
    const float *d = ndrt_tensor_at(r, param, 1);
    int64_t n = piece_floats(&r->program->params[param]);
    ndrt_walk list = walk_list(r, param);
    room k;
    ndrt_status s = make_room(r, param, &k);

    while (s == NDRT_OK && ndrt_walk_next(&list))
        for (int64_t i = 0; i < list.length && s == NDRT_OK; i++)
            s = update_matrix(r, param, u, d + (list.local + i) * n,
                              w + (list.local + i) * n, &k);
    return s;
}

/* The direction takes the place of the gradient. */
static void momentum(const ndrt_rule *u, int64_t n, float *restrict g,
                     float *restrict m)
{
    const float mu = (float)u->train->momentum;
    const float rest = (float)(1.0 - u->train->momentum), by = u->scale;
    const bool nesterov = u->train->nesterov;

    for (int64_t i = 0; i < n; i++) {
        float x = g[i] * by;
        m[i] += rest * (x - m[i]);
        g[i] = nesterov ? x + mu * (m[i] - x) : m[i];
    }
}

typedef struct direction {
    const ndrt_place *place;
    const ndrt_rule *rule;
} direction;

static void find_direction(ndrt_rank *r, void *arg)
{
    const direction *d = arg;
    size_t from, n;

    ndrt_my_part(r, d->place->bucket, &from, &n);
    ndrt_span s = ndrt_share(r, (int64_t)n, LINE);
    float *g = (float *)(void *)(r->arena + d->place->grads) + from;
    float *m = (float *)(void *)(r->arena + d->place->state1);
    momentum(d->rule, s.to - s.from, g + s.from, m + s.from);
}

ndrt_status ndrt_muon(ndrt_rank *r, const ndrt_place *pl, const ndrt_rule *u)
{
    const ndrt_bucket *b = &r->program->buckets[pl->bucket];
    direction d = {pl, u};
    ndrt_status s = ndrt_together(r, find_direction, &d);

    if (s == NDRT_OK && b->zero)
        s = ndrt_gather_parts(r, pl->bucket,
                              (float *)(void *)(r->arena + pl->grads));
    for (int i = 0; i < b->nparams && s == NDRT_OK; i++)
        s = update_param(r, b->params[i], u);
    return s;
}
