/* prove.c - does the compiled program compute what one device computes?
 *
 * One device runs the source graph, all simulated ranks the program after the
 * passes (simulate.c), both in f64 without any rounding, for three steps of
 * gradient descent with a clip that acts, on inputs that differ from step to
 * step. Weights begin where the program says, plus noise where zeros and ones
 * would hide a mistake.
 *
 * Compared are the loss, the norm, the outputs, and on every rank that holds a
 * piece of it each parameter's gradient and new weight. The difference of two
 * tensors is the largest difference of two elements, over the largest element
 * of the right one; what is smaller than a millionth of the largest gradient
 * of the step (of the largest weight) counts as if it had that size. Copies of
 * a piece on several ranks must have the same bits.
 *
 * A gradient that is 0 because large terms cancel is 1e-17 on one machine and
 * 0 on another. So each step also runs on a coarse grid: what moves there by
 * 1e-8 may move by 1e-15 here, and that is no difference.
 */
#include "passes.h"

#include <math.h>
#include <string.h>

const double nd_prove_room = 1e-9;

static const double noise = 0.1, stride = 0.05, decay = 0.1;

/* Sums in another order, 53 bits instead of 24, and room for bad luck. */
static const double less_coarse = 0x1p-29 * 64;

static double largest(const nd_tensor *t)
{
    double most = 0;
    for (int64_t i = 0; i < t->n; i++)
        most = fmax(most, fabs(t->v[i]));
    return most;
}

static double square(const nd_tensor *t)
{
    double sum = 0;
    for (int64_t i = 0; i < t->n; i++)
        sum += t->v[i] * t->v[i];
    return sum;
}

/* ---- one device ---------------------------------------------------------- */

static nd_tensor *copy_of(nd_arena *a, const nd_tensor *t)
{
    nd_tensor *x = ND_NEW(a, nd_tensor);
    *x = *t;
    x->v = ND_NEWN(a, double, t->n + 1);
    memcpy(x->v, t->v, sizeof(double) * (size_t)t->n);
    return x;
}

static nd_tensor *first_weight(const nd_answers *x, const nd_param *p)
{
    nd_tensor *t = copy_of(x->a, nd_eval_init(x->m, p, x->seed));
    uint32_t stream = nd_stream(p->name, -1), u[2];
    for (int64_t i = 0; i < t->n; i++) {
        nd_philox_draw(x->seed, (uint64_t)i, 1, stream, u);
        t->v[i] += noise * (u[0] * 0x1p-31 - 1);
    }
    return t;
}

static void make_inputs(nd_answers *x, int step)
{
    nd_module *m = x->m;
    x->nfeeds = m->inputs.n;
    x->feeds[step] = ND_NEWN(x->a, nd_feed, m->inputs.n + m->params.n);
    for (int i = 0; i < m->inputs.n; i++) {
        const nd_value *v = m->inputs.v[i];
        nd_tensor *t = nd_made_up(m, v, x->seed, step + 1);
        nd_leave_out(m, v, x->seed, step + 1, t);
        x->feeds[step][i] = (nd_feed){v->def->name, t};
    }
}

static nd_eval_options options_of(const nd_answers *x, int step)
{
    return (nd_eval_options){.exact = true, .training = true, .seed = x->seed,
                             .step = step + 1, .nfeeds = x->nfeeds,
                             .feeds = x->feeds[step]};
}

/* A clip below the norm, and a rate that moves the weights by a twentieth. */
static void choose_sgd(nd_answers *x)
{
    double weights = 0;
    for (int i = 0; i < x->m->params.n; i++)
        if (!x->m->params.v[i]->frozen)
            weights += square(x->weights[0][i]);
    bool zero = x->norm[0] <= x->slack.norm;
    x->sgd = (nd_sgd){.lr = 0.1, .clip = zero ? 0 : x->norm[0] / 2,
                      .decay = decay};
    if (x->sgd.clip > 0)
        x->sgd.lr = stride * sqrt(weights) / x->sgd.clip;
}

static double furthest(const nd_tensor *a, const nd_tensor *b)
{
    double most = 0;
    for (int64_t i = 0; i < a->n; i++)
        most = fmax(most, fabs(a->v[i] - b->v[i]));
    return isfinite(most) ? most : 0;
}

static void widen(double *slack, double moved)
{
    *slack = fmax(*slack, less_coarse * moved);
}

/* The same step on the coarse grid: what moves, and how far. */
static bool note_slack(nd_answers *x, const nd_eval_options *o,
                       const nd_eval_result *right)
{
    const nd_module *m = x->m;
    nd_eval_options coarse = *o;
    nd_eval_result r;
    double total = 0;
    coarse.coarse = true;
    if (!nd_eval(x->m, &coarse, &r))
        return false;
    if (isfinite(r.loss))
        widen(&x->slack.loss, fabs(r.loss - right->loss));
    for (int i = 0; i < m->outputs.n; i++)
        widen(&x->slack.outputs[i],
              furthest(right->outputs[i], r.outputs[i]));
    for (int i = 0; i < m->params.n; i++) {
        double moved = furthest(right->grads[i], r.grads[i]);
        widen(&x->slack.grads[i], moved);
        if (!m->params.v[i]->frozen)
            total += moved * moved * (double)r.grads[i]->n;
    }
    widen(&x->slack.norm, sqrt(total));
    return true;
}

static bool step_alone(nd_answers *x, int step)
{
    nd_module *m = x->m;
    nd_eval_result r;
    make_inputs(x, step);
    nd_eval_options o = options_of(x, step);
    nd_feed *feed = x->feeds[step];
    for (int i = 0; i < m->params.n; i++)
        feed[o.nfeeds++] = (nd_feed){m->params.v[i]->name,
                                     x->weights[step][i]};
    if (!nd_eval(m, &o, &r))
        return false;
    double total = 0;
    for (int i = 0; i < m->params.n; i++)
        total += m->params.v[i]->frozen ? 0 : square(r.grads[i]);
    x->loss[step] = r.loss;
    x->norm[step] = sqrt(total);
    x->grads[step] = r.grads;
    x->outputs[step] = r.outputs;
    if (!isfinite(r.loss) || !isfinite(total)) {
        nd_error(m->ctx, m->loss->def ? m->loss->def->loc : nd_nowhere,
                 "on one device the loss of step %d is %g, the norm %g: "
                 "nothing to compare with", step + 1, r.loss, sqrt(total));
        return false;
    }
    if (!note_slack(x, &o, &r))
        return false;
    if (step == 0)
        choose_sgd(x);
    const nd_sgd *g = &x->sgd;
    double scale = x->norm[step] > g->clip ? g->clip / x->norm[step] : 1;
    x->weights[step + 1] = ND_NEWN(x->a, nd_tensor *, m->params.n);
    for (int i = 0; i < m->params.n; i++) {
        const nd_param *p = m->params.v[i];
        nd_tensor *w = copy_of(x->a, x->weights[step][i]);
        for (int64_t k = 0; !p->frozen && k < w->n; k++)
            w->v[k] -= g->lr * (r.grads[i]->v[k] * scale +
                                (p->decay ? g->decay : 0) * w->v[k]);
        x->weights[step + 1][i] = w;
    }
    return true;
}

nd_answers *nd_answers_new(nd_module *m, uint64_t seed)
{
    nd_arena *a = nd_arena_new();
    nd_answers *x = ND_NEW(a, nd_answers);
    *x = (nd_answers){.m = m, .a = a, .seed = seed};
    x->slack.outputs = ND_NEWN(a, double, m->outputs.n + 1);
    x->slack.grads = ND_NEWN(a, double, m->params.n + 1);
    x->weights[0] = ND_NEWN(a, nd_tensor *, m->params.n);
    for (int i = 0; i < m->params.n; i++)
        x->weights[0][i] = first_weight(x, m->params.v[i]);
    for (int k = 0; k < ND_PROVE_STEPS; k++)
        if (!step_alone(x, k)) {
            nd_arena_free(a);
            return NULL;
        }
    return x;
}

/* Zeros are equal to zeros, whatever the plan makes of the program. */
bool nd_answers_flat(const nd_answers *x)
{
    for (int k = 0; k < ND_PROVE_STEPS; k++)
        if (x->norm[k] > x->slack.norm)
            return false;
    return true;
}

void nd_answers_free(nd_answers *x)
{
    if (x)
        nd_arena_free(x->a);
}

/* ---- comparing ----------------------------------------------------------- */

static void differs(nd_proof *out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The first difference is the one that is told. */
static void differs(nd_proof *out, const char *fmt, ...)
{
    va_list ap;
    if (!out->equal)
        return;
    out->equal = false;
    va_start(ap, fmt);
    vsnprintf(out->what, sizeof out->what, fmt, ap);
    va_end(ap);
}

static double apart(double right, double got, double scale)
{
    double d = right == got ? 0 : fabs(right - got) / fmax(scale, 1e-300);
    return isnan(d) ? INFINITY : d;
}

/* The size of a number that may be off by so much. */
static double size_for(double slack)
{
    return slack / nd_prove_room;
}

static double scalar(nd_proof *out, const char *what, int step, double right,
                     double got, double slack)
{
    double d = apart(right, got, fmax(fabs(right), size_for(slack)));
    if (d > nd_prove_room)
        differs(out, "step %d: the %s is %.12g, not %.12g", step + 1, what, got,
                right);
    out->worst = fmax(out->worst, d);
    return d;
}

/* Place k of a parameter's pieces: that of a rank for a stage. */
static int rank_of(const nd_sim *s, int k)
{
    return k % s->nranks;
}

static int stage_of(const nd_sim *s, int k)
{
    return k / s->nranks;
}

/* A piece against the same piece of the right tensor. */
static double piece(nd_proof *out, nd_sim *s, const nd_param *p, int k,
                    int step, const char *what, const nd_piece *got,
                    const nd_tensor *right, double floor_)
{
    double worst = 0, scale = fmax(largest(right), floor_);
    nd_piece want = nd_piece_new(s->c->m, s->a, &p->value->type, rank_of(s, k),
                                 stage_of(s, k));
    nd_piece_fill(&want, right);
    int64_t at = 0;
    for (int64_t i = 0; i < want.count; i++) {
        double d = apart(want.v[i], got->v[i], scale);
        if (d > worst) {
            worst = d;
            at = i;
        }
    }
    if (worst > nd_prove_room)
        differs(out, "step %d, rank %d: the %s \"%s\" has %.12g, not %.12g, "
                "at element %lld of its piece", step + 1, rank_of(s, k), what,
                p->name,
                got->v[at], want.v[at], (long long)at);
    out->worst = fmax(out->worst, worst);
    return worst;
}

static bool same_place(const nd_piece *a, const nd_piece *b, int rank)
{
    for (int i = 0; i < rank; i++)
        if (a->off[i] != b->off[i] || a->n[i] != b->n[i])
            return false;
    return true;
}

/* Ranks with the same piece hold the same bits. */
static void replicas(nd_proof *out, const nd_sim *s, const nd_param *p,
                     int step, const nd_piece *w)
{
    for (int r = 1; r < s->c->m->program->nstages * s->nranks; r++)
        for (int q = 0; q < r; q++) {
            if (!w[q].v || !w[r].v ||
                !same_place(&w[q], &w[r], p->value->type.rank))
                continue;
            if (memcmp(w[q].v, w[r].v, sizeof(double) * (size_t)w[r].count))
                differs(out, "step %d: the copies of \"%s\" on the ranks %d "
                        "and %d differ", step + 1, p->name, rank_of(s, q),
                        rank_of(s, r));
            break;
        }
}

static int index_of(const nd_module *m, const char *name)
{
    int i = 0;
    while (i < m->params.n && strcmp(m->params.v[i]->name, name))
        i++;
    return i;
}

static void compare_param(const nd_answers *x, nd_sim *s, int step,
                          const nd_param *p, int from, double grads,
                          double weights, nd_proof *out)
{
    const nd_tensor *grad = x->grads[step][from];
    const nd_tensor *weight = x->weights[step + 1][from];
    nd_proof_row *row = &out->row[p->index];
    int n = s->c->m->program->nstages * s->nranks, holders = 0;
    nd_piece *w = ND_NEWN(s->a, nd_piece, n);
    row->live |= largest(grad) > x->slack.grads[from];
    grads = fmax(grads, size_for(x->slack.grads[from]));
    for (int r = 0; r < n; r++) {
        nd_piece g = nd_sim_grad(s, p, rank_of(s, r), stage_of(s, r));
        w[r] = nd_sim_weight(s, p, rank_of(s, r), stage_of(s, r));
        if (!w[r].v)
            continue;
        holders++;
        if (g.v && !p->frozen)
            row->grad = fmax(row->grad, piece(out, s, p, r, step,
                                              "gradient of", &g, grad, grads));
        row->weight = fmax(row->weight, piece(out, s, p, r, step, "parameter",
                                              &w[r], weight, weights));
    }
    if (!holders)
        differs(out, "no rank holds \"%s\"", p->name);
    replicas(out, s, p, step, w);
}

static void compare_outputs(const nd_answers *x, const nd_sim *s, int step,
                            nd_proof *out)
{
    const nd_module *a = x->m, *b = s->c->m;
    for (int i = 0; i < a->outputs.n; i++) {
        const nd_tensor *right = x->outputs[step][i];
        int k = 0;
        while (k < b->outputs.n &&
               strcmp(a->outputs.v[i]->name, b->outputs.v[k]->name))
            k++;
        if (k == b->outputs.n) {
            differs(out, "the output `%s` is gone", a->outputs.v[i]->name);
            continue;
        }
        double scale = fmax(largest(right), size_for(x->slack.outputs[i]));
        double worst = 0;
        for (int64_t j = 0; j < right->n; j++)
            worst = fmax(worst, apart(right->v[j], s->result.outputs[k]->v[j],
                                      scale));
        if (worst > nd_prove_room)
            differs(out, "step %d: the output `%s` differs", step + 1,
                    a->outputs.v[i]->name);
        out->worst = fmax(out->worst, worst);
    }
}

static void compare_step(const nd_answers *x, nd_sim *s, int step,
                         nd_proof *out)
{
    const nd_module *b = s->c->m;
    double grads = 0, weights = 0;
    out->loss[step] = s->loss;
    out->norm[step] = s->norm;
    scalar(out, "loss", step, x->loss[step], s->loss, x->slack.loss);
    for (int i = 0; i < x->m->params.n; i++) {
        grads = fmax(grads, largest(x->grads[step][i]));
        weights = fmax(weights, largest(x->weights[step + 1][i]));
    }
    compare_outputs(x, s, step, out);
    for (int i = 0; i < b->params.n; i++) {
        const nd_param *p = b->params.v[i];
        int from = index_of(x->m, p->name);
        if (from < x->m->params.n)
            compare_param(x, s, step, p, from, 1e-6 * grads, 1e-6 * weights,
                          out);
    }
    scalar(out, "norm of the gradients", step, x->norm[step], s->norm,
           x->slack.norm);
    for (int i = 0; i < OP_COUNT; i++)
        out->collectives[i] += s->result.collectives[i];
}

bool nd_prove(const nd_answers *x, nd_code *c, nd_proof *out)
{
    nd_module *m = c->m;
    nd_arena *a = nd_arena_new();
    nd_tensor **first = ND_NEWN(a, nd_tensor *, m->params.n);
    *out = (nd_proof){.equal = true, .nrows = m->params.n};
    out->row = ND_NEWN(m->ctx->arena, nd_proof_row, m->params.n);
    for (int i = 0; i < m->params.n; i++) {
        int from = index_of(x->m, m->params.v[i]->name);
        out->row[i].p = m->params.v[i];
        if (from < x->m->params.n)
            first[i] = x->weights[0][from];
    }
    if (m->params.n != x->m->params.n)
        differs(out, "%d parameters, not %d", m->params.n, x->m->params.n);
    bool ok = out->equal;
    nd_sim *s = ok ? nd_sim_new(c, a, first) : NULL;
    for (int k = 0; s && ok && k < ND_PROVE_STEPS && out->equal; k++) {
        nd_eval_options o = options_of(x, k);
        ok = nd_sim_step(s, &o, &x->sgd);
        if (ok)
            compare_step(x, s, k, out);
    }
    out->reductions = s ? s->reductions : 0;
    nd_arena_free(a);
    return ok || !out->equal;
}
