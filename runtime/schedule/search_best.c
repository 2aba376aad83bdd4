/* search_best.c - the best of several answers: other placements, other numbers
 * of stages per rank, other schedules.
 *
 *   {auto(2) over a loop, auto(2) over a vee}  ->  which, and its rows
 */
#include "sched.h"

#include <math.h>
#include <stdlib.h>

double sched_step_time(sched *s, const sched_ask *ask)
{
    static const sched_costs ones = {0};
    sched_times t;
    sched_error ignored;
    double most = 0;
    if (!sched_time(s, ask->costs ? ask->costs : &ones, &t, &ignored))
        return INFINITY;
    for (int r = 0; r < s->ranks; r++)
        most = fmax(most, t.rank[r].last - (ask->sync ? 0 : t.rank[r].first));
    free(t.rank);
    return most;
}

sched *sched_make_best(const sched_ask *asks, int n, int *which,
                       sched_error *err)
{
    sched *best = NULL;
    sched_error why;
    double least = INFINITY;
    for (int i = 0; i < n; i++) {
        sched *s = sched_make(&asks[i], &why);
        double time = s ? sched_step_time(s, &asks[i]) : INFINITY;
        if (!s && !best)
            *err = why;
        if (!s || (best && time >= least * (1 - 1e-9))) {
            sched_free(s);
            continue;
        }
        sched_free(best);
        best = s;
        least = time;
        *which = i;
    }
    return best;
}
