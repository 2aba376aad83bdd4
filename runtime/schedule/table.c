/* table.c - the table of ranks and steps around an action that is wrong.
 *
 *   step      3   4   5   6
 *   rank 0  0F3 0B0 0F4 0B1
 *   rank 1  1F2 1B0 1F2 1F3        <-- 1F2
 *
 * Steps count the actions of each row; they are no times.
 */
#include "sched.h"

#include <stdio.h>
#include <string.h>

enum { BESIDE = 4 };                 /* steps and ranks, on each side */

static int least(int a, int b) { return a < b ? a : b; }
static int most(int a, int b) { return a > b ? a : b; }

char *sched_table_around(const sched *s, const sched_error *err)
{
    sched_text t = {0};
    sched_put(&t, "%s", "");
    if (err->rank < 0 || err->rank >= s->ranks)
        return t.s;
    int lo = most(err->at - BESIDE, 0), hi = err->at + BESIDE;
    int from = most(err->rank - BESIDE, 0);
    int to = least(err->rank + BESIDE, s->ranks - 1);
    int label = snprintf(NULL, 0, "%d", to), longest = err->at + 1;
    char name[SCHED_NAME];
    for (int r = from; r <= to; r++)
        longest = most(longest, s->row[r].n);
    hi = least(hi, longest - 1);
    int wide = snprintf(NULL, 0, "%d", hi);
    for (int r = from; r <= to; r++)
        for (int i = lo; i <= hi && i < s->row[r].n; i++)
            wide = most(wide, (int)strlen(sched_name(s->row[r].v[i], name)));
    sched_put(&t, "step %*s ", label, "");
    for (int i = lo; i <= hi; i++)
        sched_put(&t, " %*d", wide, i);
    sched_put(&t, "\n");
    for (int r = from; r <= to; r++) {
        const sched_row *row = &s->row[r];
        bool guilty = r == err->rank;
        sched_put(&t, "rank %*d ", label, r);
        for (int i = lo; i <= hi && (guilty || i < row->n); i++)
            sched_put(&t, " %*s", wide, i < row->n
                      ? sched_name(row->v[i], name) : "");
        if (guilty)
            sched_put(&t, "   <-- %s", err->at < row->n
                      ? sched_name(row->v[err->at], name) : "ends here");
        sched_put(&t, "\n");
    }
    return t.s;
}
