/* kept.c - what the stages of a rank keep between two actions: the room that an
 * action takes when it begins and gives back when it ends.
 *
 *   F takes until_i and until_w, I takes i_to_w and frees until_i, W frees
 *   until_w and i_to_w; B is both
 */
#include "sched.h"

static double of(const double *by_stage, const sched_action *a)
{
    return by_stage ? by_stage[a->stage] : 0;
}

double sched_keeps(const sched_costs *c, const sched_action *a)
{
    if (!c)
        return 0;
    if (a->op == SCHED_F)
        return of(c->until_i, a) + of(c->until_w, a);
    return sched_is_back(a->op) ? of(c->i_to_w, a) : 0;
}

double sched_frees(const sched_costs *c, const sched_action *a)
{
    double freed = 0;
    if (!c)
        return 0;
    if (sched_is_back(a->op))
        freed += of(c->until_i, a);
    if (a->op == SCHED_B || a->op == SCHED_W)
        freed += of(c->until_w, a) + of(c->i_to_w, a);
    return freed;
}
