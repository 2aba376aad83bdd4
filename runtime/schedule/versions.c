/* versions.c - how many versions of its weights a stage holds, under a schedule
 * that updates on its way; and a proof that so many are enough.
 *
 *   0F0 0F1 0B0 0U0 0F2 0B1 0U1 ..     0B1 runs on what 0F1 ran on, version 0,
 *                                      when 0U0 has made version 1: two
 *
 * Versions are counted by updates of the step. The newest lies where it always
 * does; an update first copies it into a ring of n - 1 places, version v to
 * place v % (n - 1).
 */
#include "sched.h"

#include <stdlib.h>

int sched_versions(const sched *s, int stage, int *of)
{
    const sched_row *row = &s->row[s->rank_of[stage]];
    int newest = 0, most = 1;
    for (int i = 0; i < row->n; i++) {
        const sched_action *a = &row->v[i];
        if (a->stage != stage || !sched_is_compute(a->op))
            continue;
        if (a->op == SCHED_U)
            newest++;
        else if (a->op == SCHED_F)
            of[a->mb] = newest;
        else if (newest - of[a->mb] + 1 > most)
            most = newest - of[a->mb] + 1;
    }
    return most;
}

/* ring: which version each place holds. */
static bool walk(const sched *s, int stage, int n, int *of, int *ring,
                 sched_error *err)
{
    int rank = s->rank_of[stage], newest = 0;
    const sched_row *row = &s->row[rank];
    char name[SCHED_NAME];
    for (int i = 0; i < row->n; i++) {
        sched_action a = row->v[i];
        if (a.stage != stage || !sched_is_compute(a.op))
            continue;
        if (a.op == SCHED_F) {
            of[a.mb] = newest;
        } else if (a.op == SCHED_U) {
            if (n > 1)
                ring[newest % (n - 1)] = newest;
            newest++;
        } else if (of[a.mb] != newest &&
                   (n < 2 || ring[of[a.mb] % (n - 1)] != of[a.mb])) {
            return sched_fail(err, rank, i, "rank %d: %s needs weights that "
                              "are %d older than the newest: stage %d has %d "
                              "version%s", rank, sched_name(a, name),
                              newest - of[a.mb], stage, n, n == 1 ? "" : "s");
        }
    }
    return true;
}

bool sched_check_versions(const sched *s, int stage, int n, sched_error *err)
{
    if (n < 1)
        return sched_fail(err, -1, 0, "stage %d has no weights", stage);
    int *of = calloc((size_t)s->micro + 1, sizeof *of);
    int *ring = malloc((size_t)n * sizeof *ring);
    bool ok = of && ring;
    for (int k = 0; ok && k < n; k++)
        ring[k] = -1;
    if (ok)
        ok = walk(s, stage, n, of, ring, err);
    else
        sched_fail(err, -1, 0, "no memory");
    free(of);
    free(ring);
    return ok;
}
