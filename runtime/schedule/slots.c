/* slots.c - how many slots the microbatches of a stage need.
 *
 *   F0 F1 B0 F2 B1 ..    microbatch 2 may have the slot of 0: 2 slots
 *
 * A microbatch that is received lives from then on; one whose gradient is sent
 * lives until then, because the gradient lies in the same room.
 */
#include "sched.h"

#include <stdlib.h>
#include <string.h>

static bool lives_in(sched_span span, sched_op op)
{
    switch (span) {
    case SCHED_UNTIL_I:
        return op != SCHED_W && op != SCHED_U;
    case SCHED_UNTIL_W:
        return op != SCHED_U;
    default:
        return op == SCHED_B || op == SCHED_I || op == SCHED_W ||
               op == SCHED_SEND_B;
    }
}

typedef struct life {
    int mb, begin, end;              /* places in the row, both within */
} life;

/* The lives of a stage's microbatches as they begin. A joined pair has one
 * place: its two actions run beside each other. */
static int lives(const sched *s, int stage, sched_span span, life *out,
                 int *of_mb)
{
    const sched_row *row = &s->row[s->rank_of[stage]];
    int n = 0, place = 0;
    memset(of_mb, -1, (size_t)s->micro * sizeof *of_mb);
    for (int i = 0; i < row->n; i++) {
        const sched_action *a = &row->v[i];
        if (a->stage == stage && a->mb >= 0 && a->mb < s->micro &&
            lives_in(span, a->op)) {
            if (of_mb[a->mb] < 0) {
                of_mb[a->mb] = n;
                out[n++] = (life){a->mb, place, place};
            }
            out[of_mb[a->mb]].end = place;
        }
        place += !a->joined;
    }
    return n;
}

static bool fits(const life *l, int n, int slots, int *busy_until)
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

/* The least n for which no two microbatches that live at the same time share
 * slot mb % n. */
int sched_slots(const sched *s, int stage, sched_span span)
{
    size_t m = (size_t)s->micro;
    life *l = malloc((m + 1) * sizeof *l);
    int *work = malloc((m + 1) * sizeof *work);
    if (!l || !work)
        abort();
    int n = lives(s, stage, span, l, work), slots = n > 0;
    while (n && !fits(l, n, slots, work))
        slots++;
    free(l);
    free(work);
    return slots;
}
