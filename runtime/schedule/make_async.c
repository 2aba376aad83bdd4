/* make_async.c - the asynchronous schedules, which change what is computed.
 *
 *   pipedream       rank 1 of 3: F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 B3 U3
 *   pipedream_2bw                F0 F1 B0 F2 B1 F3 B2 B3
 *
 * Which weights. Let w[s] be those of stage s, and count versions by updates.
 *
 * pipedream: version k of a step is what U(s, k - 1) left; version 0 what the
 * step before left. F(s, mb) runs on the newest there is, which is version
 * max(0, mb - (p - 1 - s)): so many U(s, ..) stand before it in the row. B(s,
 * mb) runs on the version that F(s, mb) ran on, so that a stage holds up to
 * min(p - s, m) versions. U(s, mb) applies the gradient of microbatch mb alone
 * to the newest weights. At the end of a step the pipeline runs empty, where
 * the paper's never does: the first p - 1 - s microbatches of each step see
 * weights that are less late than the paper's, and p = 1 is plain training with
 * one microbatch per update.
 *
 * pipedream_2bw: all F and all B of step t run on the weights that were current
 * when step t - 1 began, version t - 1 (step 0: version 0), on all stages. The
 * update at the end of the step, one for all microbatches like that of a
 * synchronous schedule and hence no action of the rows, goes
 *     w(t + 1) = w(t) - lr * gradient(w(t - 1))
 * Two versions are held. m >= p, as in the paper: a gradient is then never
 * later than by one update.
 */
#include "make.h"

void make_pipedream_2bw(sched *s)
{
    make_1f1b(s);
}

void make_pipedream(sched *s)
{
    for (int r = 0; r < s->ranks; r++) {
        int f = 0, warm = s->ranks - 1 - r;
        for (int mb = 0; mb < s->micro; mb++) {
            for (; f < s->micro && f <= warm + mb; f++)
                sched_push(s, r, SCHED_F, r, f);
            sched_push(s, r, SCHED_B, r, mb);
            sched_push(s, r, SCHED_U, r, mb);
        }
    }
}
