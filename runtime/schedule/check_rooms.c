/* check_rooms.c - is the memory of a device's slots enough, and is nothing in
 * it overwritten that is still needed? Walks the rows as a machine would.
 */
#include "check.h"

#include <stdlib.h>

typedef struct walker {
    const sched *s;
    const size_t (*bytes)[SCHED_NSPANS];
    const sched_rooms *r;
    sched_error *err;
    int *left;                   /* by place: actions that still need it */
    int *owner;                  /* by slot: the place that it holds; or -1 */
    size_t *lo, *hi;             /* by slot: where it lies */
} walker;

static int place_of(const walker *w, int stage, int mb, int span)
{
    return (stage * w->s->micro + mb) * SCHED_NSPANS + span;
}

/* A slot lies in one place, after the one before it, and all of it is there. */
static bool check_slots(const walker *w, int rank)
{
    int n = w->r->slots[rank];
    for (int k = 0; k < n; k++)
        w->lo[k] = SIZE_MAX, w->hi[k] = 0;
    for (int i = 0; i < w->s->stages * w->s->micro * SCHED_NSPANS; i++) {
        int stage = i / SCHED_NSPANS / w->s->micro, k = w->r->slot[i];
        size_t bytes = w->bytes[stage][i % SCHED_NSPANS], at = w->r->at[i];
        if (w->s->rank_of[stage] != rank || !bytes)
            continue;
        if (k < 0 || k >= n)
            return sched_fail(w->err, -1, 0, "stage %d has no slot", stage);
        if (w->lo[k] != SIZE_MAX && w->lo[k] != at)
            return sched_fail(w->err, -1, 0, "rank %d: slot %d lies in two "
                              "places", rank, k);
        w->lo[k] = at;
        w->hi[k] = at + bytes > w->hi[k] ? at + bytes : w->hi[k];
    }
    size_t behind = w->r->bytes[rank];
    for (int k = n - 1; k >= 0; k--) {
        if (w->hi[k] > behind)
            return sched_fail(w->err, -1, 0, "rank %d: slot %d reaches into "
                              "what is behind it", rank, k);
        behind = w->lo[k] < behind ? w->lo[k] : behind;
    }
    return true;
}

static bool take(walker *w, int rank, int at, int span)
{
    const sched_action *a = &w->s->row[rank].v[at];
    int i = place_of(w, a->stage, a->mb, span), *who;
    char name[SCHED_NAME];
    if (!w->bytes[a->stage][span])
        return true;
    who = &w->owner[w->r->slot[i]];
    if (*who >= 0 && *who != i && w->left[*who] > 0)
        return sched_fail(w->err, rank, at, "rank %d: %s overwrites what "
                          "microbatch %d of stage %d still needs", rank,
                          sched_name(*a, name),
                          *who / SCHED_NSPANS % w->s->micro,
                          *who / SCHED_NSPANS / w->s->micro);
    *who = i;
    w->left[i]--;
    return true;
}

static bool walk(walker *w, int rank)
{
    const sched_row *row = &w->s->row[rank];
    for (int k = 0; k < w->r->slots[rank]; k++)
        w->owner[k] = -1;
    for (int i = 0; i < row->n; i++)
        for (int k = 0; k < SCHED_NSPANS; k++)
            if (sched_needs_slot((sched_span)k, &row->v[i]))
                w->left[place_of(w, row->v[i].stage, row->v[i].mb, k)]++;
    for (int i = 0; i < row->n; i++)
        for (int k = 0; k < SCHED_NSPANS; k++)
            if (sched_needs_slot((sched_span)k, &row->v[i]) &&
                !take(w, rank, i, k))
                return false;
    return true;
}

bool sched_check_rooms(const sched *s, const size_t (*bytes)[SCHED_NSPANS],
                       const sched_rooms *r, sched_error *err)
{
    size_t most = 0, all = (size_t)s->stages * (size_t)s->micro * SCHED_NSPANS;
    for (int d = 0; d < s->ranks; d++)
        most = (size_t)r->slots[d] > most ? (size_t)r->slots[d] : most;
    walker w = {s, bytes, r, err, calloc(all + 1, sizeof *w.left),
                calloc(most + 1, sizeof *w.owner),
                calloc(most + 1, sizeof *w.lo), calloc(most + 1, sizeof *w.hi)};
    bool ok = w.left && w.owner && w.lo && w.hi;
    if (!ok)
        sched_fail(err, -1, 0, "no memory");
    for (int d = 0; ok && d < s->ranks; d++)
        ok = check_slots(&w, d) && walk(&w, d);
    free(w.left);
    free(w.owner);
    free(w.lo);
    free(w.hi);
    return ok;
}
