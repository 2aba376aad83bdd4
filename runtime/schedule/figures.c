/* figures.c - what a schedule comes to on each rank, as a table.
 *
 *   rank      busy     first      last  bubble of time  of work  in flight
 *      0  24 slots   0 slots  33 slots           27.3%    37.5%          4
 *
 * The bubble of the time is idle time over all of it; that of the work is the
 * same idle time over the rank's work. Papers mean the one or the other.
 */
#include "sched.h"

#include <stdlib.h>

static void put_right(sched_text *out, int width, double time, double seconds)
{
    sched_text cell = {0};
    sched_put_time(&cell, time, seconds);
    sched_put(out, "%*s", width, cell.s);
    free(cell.s);
}

void sched_figures(const sched *s, const sched_times *t, double seconds,
                   sched_text *out)
{
    sched_headline(s, t, seconds, out);
    sched_put(out, "rank        busy       first        last  "
              "bubble of time  of work  in flight\n");
    for (int r = 0; r < s->ranks; r++) {
        const sched_rank_time *x = &t->rank[r];
        double idle = t->makespan - x->busy;
        sched_put(out, "%4d", r);
        put_right(out, 12, x->busy, seconds);
        put_right(out, 12, x->first, seconds);
        put_right(out, 12, x->last, seconds);
        sched_put(out, "%15.1f%%%8.1f%%%11d\n",
                  t->makespan > 0 ? 100 * idle / t->makespan : 0.0,
                  x->busy > 0 ? 100 * idle / x->busy : 0.0, x->chunks);
    }
}
