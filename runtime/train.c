/* train.c - the step loop.
 *
 * A step loads the batch, forgets the gradients, runs `pre`, walks the device's
 * row of actions, then reduces, checks and updates. Nothing is allocated, but
 * by the first step what products need beside the arena.
 *
 * Generated functions return nothing. A failure inside one (a collective that
 * meets a stopped rank) leaves it by longjmp to ndrt_call, or in joint work to
 * where the thread began; generated code holds nothing that would need freeing.
 */
#include "ndrt_internal.h"

#include <math.h>
#include <string.h>

_Static_assert((int)NDRT_U == (int)SCHED_U &&
                   (int)NDRT_RECV_B == (int)SCHED_RECV_B &&
                   (int)NDRT_NACTIONS == (int)SCHED_NOPS,
               "generated code and schedules number actions alike");

_Noreturn void ndrt_raise(ndrt_rank *r)
{
    longjmp(ndrt_mine(r)->jump, 1);
}

ndrt_status ndrt_call(ndrt_rank *r, void (*f)(ndrt_rank *))
{
    if (!f)
        return NDRT_OK;
    if (setjmp(r->state->own.jump))
        return r->state->status;
    f(r);
    return NDRT_OK;
}

typedef struct stage_call {
    void (*f)(ndrt_rank *);
} stage_call;

static void run_stage(ndrt_rank *r, void *arg)
{
    ((const stage_call *)arg)->f(r);
}

ndrt_status ndrt_compute(ndrt_rank *r, void (*f)(ndrt_rank *))
{
    stage_call call = {f};

    return f ? ndrt_together(r, run_stage, &call) : NDRT_OK;
}

float *ndrt_loss_at(const ndrt_rank *r)
{
    size_t at = ndrt_here(r)->loss;

    return at == NDRT_NONE ? NULL : (float *)(void *)(r->arena + at);
}

static ndrt_status begin(ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    float *loss = ndrt_loss_at(r);
    ndrt_status s = NDRT_OK;

    if (loss)
        *loss = 0.0f;
    for (int k = 0; k < p->nstages && s == NDRT_OK; k++) {
        if (p->stages[k].device != r->device)
            continue;
        ndrt_set_cell(r, k, 0);
        ndrt_choose_weights(r, SCHED_F, k, 0);
        s = ndrt_compute(r, p->stages[k].pre);
    }
    return s;
}

/* Weights, and what is made of them once where they do not change. */
static ndrt_status set_weights(ndrt_rank *r, const sched_action *a)
{
    const ndrt_stage *stage = &r->program->stages[a->stage];

    if (!sched_is_compute(a->op))
        return NDRT_OK;
    ndrt_choose_weights(r, a->op, a->stage, a->mb);
    if (!stage->fresh || !r->training)
        return NDRT_OK;
    ndrt_set_cell(r, a->stage, 0);
    return ndrt_compute(r, stage->pre);
}

/* Messages are the business of one thread. */
static ndrt_status run_action(ndrt_rank *r, sched_op op)
{
    void (*f)(ndrt_rank *) = r->program->stages[r->stage].run[op];

    if (op == SCHED_F)
        return ndrt_micro_forward(r, f);
    return sched_is_compute(op) ? ndrt_compute(r, f) : ndrt_call(r, f);
}

/* A stage fetches what the one before it has made on the same device, and hands
 * it the gradients, without being told to. */
ndrt_status ndrt_act(ndrt_rank *r, const sched_action *a)
{
    const ndrt_stage *stage = &r->program->stages[a->stage];
    bool local = a->stage > 0 && stage[-1].device == r->device;
    bool back = sched_is_back(a->op);

    if (a->op == SCHED_U)
        return ndrt_update_now(r, a);
    ndrt_status s = set_weights(r, a);
    if (s != NDRT_OK)
        return s;
    ndrt_set_cell(r, a->stage, a->mb);
    if (a->op == SCHED_F && stage->again)
        ndrt_put_aside(r);
    if (local && a->op == SCHED_F)
        s = ndrt_call(r, stage->run[NDRT_RECV_F]);
    if (back && stage->again)
        s = ndrt_micro_again(r, stage->run[NDRT_F]);
    ndrt_early_begin(r, a);
    if (sched_is_compute(a->op))
        r->adds = r->state->made[a->stage];
    if (s == NDRT_OK)
        s = run_action(r, a->op);
    ndrt_grads_made(r, a);
    if (s == NDRT_OK)
        s = ndrt_early_end(r, a);
    if (s == NDRT_OK && local && back)
        s = ndrt_call(r, stage->run[NDRT_SEND_B]);
    return s;
}

ndrt_status ndrt_forward(ndrt_rank *r, int only_mb)
{
    bool training = r->training;

    r->training = false;
    ndrt_status s = begin(r);
    if (s == NDRT_OK)
        s = ndrt_follow(r, &(ndrt_pass){true, only_mb});
    r->training = training;
    return s;
}

/* ---- a step ----------------------------------------------------------- */

static bool all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static bool piece_finite(const ndrt_rank *r, int param, size_t at)
{
    if (at == NDRT_NONE)
        return true;
    const float *x = (const float *)(const void *)(r->arena + at);
    ndrt_walk w = ndrt_walk_param(r->program, r->rank, param, -1);

    while (ndrt_walk_next(&w))
        if (!all_finite(x + w.local, (size_t)w.length))
            return false;
    return true;
}

/* The first weights (0 .. np), else gradients (np ..), that hold an infinity or
 * a NaN on this rank; 2 np if none does. */
static int first_bad(const ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    int np = p->nparams;

    for (int i = 0; i < np; i++)
        if (!piece_finite(r, i, ndrt_weights_at(p, r->device, i)))
            return i;
    for (int i = 0; i < np; i++)
        if (!p->params[i].frozen &&
            !piece_finite(r, i, ndrt_grads_at(p, r->device, i)))
            return np + i;
    return 2 * np;
}

/* All ranks know of it, as the sums are the same everywhere; the tensor is
 * looked for on all, and rank 0 reports. */
static ndrt_status not_finite(ndrt_rank *r, double loss, double norm)
{
    ndrt_state *st = r->state;
    const ndrt_program *p = r->program;
    int np = p->nparams, bad = 2 * np;

    for (int q = 0; q < st->world.n; q++) {
        double v = q == r->rank ? first_bad(r) : 0.0;
        ndrt_status s = ndrt_sum_doubles(r, &v, 1);
        if (s != NDRT_OK)
            return s;
        bad = (int)v < bad ? (int)v : bad;
    }
    const char *what = bad < np ? "the weights of " :
                       bad < 2 * np ? "the gradient of " : "the loss";
    const char *name = bad < 2 * np ? p->params[bad % np].name : "";
    return ndrt_agree(r, ndrt_fail(
        r, NDRT_EINPUT, "step %lld: loss %g, gradient norm %g: not finite; "
        "first seen in %s%s", (long long)r->step, loss, norm, what, name));
}

static ndrt_status run_actions(ndrt_rank *r)
{
    r->state->updated = 0;
    r->state->squares = 0.0;
    ndrt_status s = ndrt_no_grads(r);

    ndrt_spent(r, NDRT_PART_ZERO);
    if (s == NDRT_OK)
        s = begin(r);
    if (s == NDRT_OK)
        s = ndrt_trace_begin(r);
    if (s == NDRT_OK)
        s = ndrt_follow(r, &(ndrt_pass){false, -1});
    if (s == NDRT_OK)
        ndrt_trace_end(r);
    return s;
}

/* One update for all microbatches. */
static ndrt_status update(ndrt_rank *r, const ndrt_step_line *line)
{
    double clip = r->state->config->train.clip, scale = 1.0;

    if (clip > 0.0 && line->grad_norm > clip)
        scale = clip / line->grad_norm;
    return ndrt_update(r, scale, line->lr);
}

/* Where each microbatch had an update, its gradient times their number counts:
 * the norm is the root of the mean square of those. */
static ndrt_status one_step(ndrt_rank *r)
{
    bool on_its_way = r->program->weights == NDRT_STASHED;
    ndrt_step_line line = {.step = r->step,
                           .tokens = ndrt_step_tokens(r->program)};
    ndrt_status s = ndrt_data_batch(r, r->step - 1, false);

    ndrt_spent(r, NDRT_PART_DATA);
    if (s == NDRT_OK)
        s = run_actions(r);
    ndrt_spent(r, NDRT_PART_OTHER);
    if (s == NDRT_OK && !on_its_way)
        s = ndrt_reduce_grads(r);
    if (s != NDRT_OK)
        return s;
    ndrt_spent(r, NDRT_PART_REDUCE);
    double sums[2] = {ndrt_loss_share(r), on_its_way ? r->state->squares
                                                     : ndrt_square_norm(r)};
    ndrt_spent(r, NDRT_PART_NORM);
    s = ndrt_sum_doubles(r, sums, 2);
    ndrt_spent(r, NDRT_PART_SUMS);
    if (s != NDRT_OK)
        return s;
    line.loss = sums[0];
    line.grad_norm = sqrt(sums[1]);
    line.lr = ndrt_lr(&r->state->config->train, r->step);
    if (!isfinite(line.loss) || !isfinite(line.grad_norm))
        return not_finite(r, line.loss, line.grad_norm);
    bool empty = line.loss == 0.0 && line.grad_norm == 0.0;
    if (empty)
        ndrt_log_note(r, "warning: step %lld: no unmasked targets%s",
                      (long long)r->step, on_its_way ? "" : ", no update");
    ndrt_keep_behind(r);
    if (!empty && !on_its_way)
        s = update(r, &line);
    ndrt_spent(r, NDRT_PART_UPDATE);
    if (s == NDRT_OK)
        ndrt_log_step(r, &line);
    ndrt_spent(r, NDRT_PART_LOG);
    r->state->last = line;
    return s;
}

/* Weights that are not finite would only show in the next loss: they must not
 * take the place of good ones. */
static ndrt_status save(ndrt_rank *r)
{
    double bad = first_bad(r) < r->program->nparams;
    ndrt_status s = ndrt_sum_doubles(r, &bad, 1);

    if (s == NDRT_OK && bad > 0.0)
        s = not_finite(r, r->state->last.loss, r->state->last.grad_norm);
    return s == NDRT_OK ? ndrt_checkpoint(r) : s;
}

static ndrt_status check_loss(ndrt_rank *r)
{
    for (int d = 0; d < r->program->ndevices; d++)
        if (r->program->devices[d].loss != NDRT_NONE)
            return NDRT_OK;
    return ndrt_agree(r, ndrt_fail(r, NDRT_EINPUT, "the program has no loss "
                                   "to train; use --steps 0"));
}

ndrt_status ndrt_train_loop(ndrt_rank *r)
{
    int64_t steps = r->state->config->train.steps;
    ndrt_status s = steps > 0 ? check_loss(r) : NDRT_OK;

    r->step = r->state->start + 1;
    for (; r->step <= steps && s == NDRT_OK; r->step++) {
        r->training = true;
        ndrt_count_step(r, true);
        ndrt_products_begin(r);
        ndrt_profile_step(r, true);
        s = one_step(r);
        ndrt_profile_step(r, false);
        ndrt_count_step(r, false);
        if (s == NDRT_OK)
            s = ndrt_products_end(r);
        if (s == NDRT_OK)
            s = ndrt_micro_report(r);
        if (s == NDRT_OK)
            s = ndrt_evaluate(r);
        if (s == NDRT_OK && ndrt_checkpoint_due(r))
            s = save(r);
    }
    r->training = false;
    return s;
}
