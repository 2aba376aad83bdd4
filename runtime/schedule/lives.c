/* lives.c - when a microbatch keeps something on a stage.
 *
 *   0RECV_F3 0F3 .. 0B3 0SEND_B3     received to sent: all of it
 *
 * A microbatch that is received lives from then on; one whose gradient is sent
 * lives until then, because the gradient lies in the same room.
 */
#include "lives.h"

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

int sched_lives(const sched *s, int stage, sched_span span, sched_life *out,
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
                out[n++] = (sched_life){a->mb, place, place};
            }
            out[of_mb[a->mb]].end = place;
        }
        place += !a->joined;
    }
    return n;
}
