/* check_slots.c - is the room of a stage enough? Walks its row as a machine
 * would: who is in each slot, and how much of it is still to come?
 *
 *   0F0 0F1 0F2 0B0 ..     with 2 slots, 0F2 overwrites microbatch 0
 */
#include "check.h"

#include <stdlib.h>

bool sched_needs_slot(sched_span span, const sched_action *a)
{
    if (a->op == SCHED_U)
        return false;
    if (a->op == SCHED_W)
        return span != SCHED_UNTIL_I;
    return sched_is_back(a->op) || a->op == SCHED_SEND_B ||
           span != SCHED_I_TO_W;
}

static bool needs_slot(sched_span span, const sched_action *a, int stage)
{
    return a->stage == stage && sched_needs_slot(span, a);
}

/* left: by microbatch, how many actions still need it. owner: by slot. */
static bool walk(const sched *s, int stage, sched_span span, int n, int *left,
                 int *owner, sched_error *err)
{
    int rank = s->rank_of[stage];
    const sched_row *row = &s->row[rank];
    char name[SCHED_NAME];
    for (int k = 0; k < n; k++)
        owner[k] = -1;
    for (int i = 0; i < row->n; i++)
        if (needs_slot(span, &row->v[i], stage))
            left[row->v[i].mb]++;
    for (int i = 0; i < row->n; i++) {
        sched_action a = row->v[i];
        if (!needs_slot(span, &a, stage))
            continue;
        int *who = &owner[a.mb % n];
        if (*who >= 0 && *who != a.mb && left[*who] > 0)
            return sched_fail(err, rank, i, "rank %d: %s overwrites "
                              "microbatch %d, which is still needed: stage %d "
                              "has %d slots", rank, sched_name(a, name), *who,
                              stage, n);
        *who = a.mb;
        left[a.mb]--;
    }
    return true;
}

bool sched_check_slots(const sched *s, int stage, sched_span span, int n,
                       sched_error *err)
{
    if (n < 1)
        return sched_fail(err, -1, 0, "stage %d has no slot", stage);
    int *left = calloc((size_t)s->micro + 1, sizeof *left);
    int *owner = malloc((size_t)n * sizeof *owner);
    bool ok = left && owner;
    if (ok)
        ok = walk(s, stage, span, n, left, owner, err);
    else
        sched_fail(err, -1, 0, "no memory");
    free(left);
    free(owner);
    return ok;
}
