/* slots.c - how many slots the microbatches of a stage need.
 *
 *   F0 F1 B0 F2 B1 ..    microbatch 2 may have the slot of 0: 2 slots
 */
#include "lives.h"

#include <limits.h>
#include <stdlib.h>

static bool fits(const sched_life *l, int n, int slots, int *busy_until)
{
    for (int i = 0; i < slots; i++)
        busy_until[i] = -1;
    for (int i = 0; i < n; i++) {
        int *busy = &busy_until[l[i].mb % slots];
        if (l[i].begin <= *busy)
            return false;
        *busy = l[i].end;
    }
    return true;
}

/* Those that begin before the first one ends live at the same time. */
static int at_least(const sched_life *l, int n)
{
    int first_end = INT_MAX, together = 0;
    for (int i = 0; i < n; i++)
        first_end = l[i].end < first_end ? l[i].end : first_end;
    while (together < n && l[together].begin <= first_end)
        together++;
    return together;
}

/* The least n for which no two microbatches that live at the same time share
 * slot mb % n. */
int sched_slots(const sched *s, int stage, sched_span span)
{
    size_t m = (size_t)s->micro;
    sched_life *l = malloc((m + 1) * sizeof *l);
    int *work = malloc((m + 1) * sizeof *work);
    if (!l || !work)
        abort();
    int n = sched_lives(s, stage, span, l, work), slots = at_least(l, n);
    while (n && !fits(l, n, slots, work))
        slots++;
    free(l);
    free(work);
    return slots;
}
