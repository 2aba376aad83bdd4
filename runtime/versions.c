/* versions.c - the weights that a step runs on, where older ones are kept.
 *
 *   arena   weights, the newest | .. | slots | aside | copy 0 | copy 1 | ..
 *
 * The newest are where they always are: updates, files, evaluation and
 * generation know no others. Training alone looks at copies (r->weights).
 *
 * Stashed (pipedream): each microbatch has an update of its own, right after
 * its backward pass. F runs on the newest weights, B on those that F of the
 * same microbatch found; an update copies the newest before it changes them, if
 * a microbatch in flight has seen them.
 * The gradient applied is that of the microbatch's share of the loss, times the
 * number of microbatches m: shares add up to the loss, so the mean of the m
 * gradients is the gradient of the step, however targets are spread.
 *
 * Behind (pipedream_2bw): all of a step runs on the weights before the last
 * update, and the update goes from the newest.
 *     w(t + 1) = w(t) - lr * gradient(w(t - 1))
 */
#include "ndrt_internal.h"

#include <string.h>

static const ndrt_course *course_of(const ndrt_rank *r)
{
    return r->state->course;
}

static char *copy_of(const ndrt_rank *r, int version)
{
    int places = course_of(r)->versions[r->device] - 1;

    return r->arena + ndrt_older_at(course_of(r), r->device) +
           (size_t)(version % places) * ndrt_here(r)->version_bytes;
}

static void keep(const ndrt_rank *r, int version)
{
    memcpy(copy_of(r, version), r->arena, ndrt_here(r)->version_bytes);
}

void ndrt_choose_weights(ndrt_rank *r, sched_op op, int stage, int mb)
{
    ndrt_weights_kind kind = r->program->weights;

    r->weights = r->arena;
    if (!r->training)
        return;
    if (kind == NDRT_BEHIND)
        r->weights = copy_of(r, 0);
    if (kind == NDRT_STASHED && op != SCHED_F) {
        int version = course_of(r)->ran_on[stage][mb];
        if (version != r->state->updated)
            r->weights = copy_of(r, version);
    }
}

void ndrt_keep_behind(ndrt_rank *r)
{
    if (r->program->weights == NDRT_BEHIND)
        keep(r, 0);
}

char *ndrt_behind(const ndrt_rank *r)
{
    return r->program->weights == NDRT_BEHIND ? copy_of(r, 0) : NULL;
}

/* Has a microbatch in flight seen the newest weights? Later microbatches have
 * found the same ones or newer. */
static bool is_in_use(const ndrt_rank *r, const sched_action *a)
{
    const int *ran_on = course_of(r)->ran_on[a->stage];
    int newest = r->state->updated, mb = a->mb + 1;

    while (mb < r->program->nmicro && ran_on[mb] < newest)
        mb++;
    return mb < r->program->nmicro && ran_on[mb] == newest;
}

ndrt_status ndrt_update_now(ndrt_rank *r, const sched_action *a)
{
    ndrt_state *st = r->state;
    double m = r->program->nmicro;

    if (is_in_use(r, a))
        keep(r, st->updated);
    ndrt_status s = ndrt_reduce_grads(r);
    if (s != NDRT_OK)
        return s;
    st->squares += ndrt_square_norm(r) * m;
    s = ndrt_update(r, m, ndrt_lr(&st->config->train, r->step));
    if (s == NDRT_OK)
        s = ndrt_no_grads(r);
    st->updated++;
    return s;
}
