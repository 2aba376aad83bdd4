/* eval_walk.c - loops over named axes, for every op of the evaluator.
 *
 * A walk is a list of axes with ranges, and operands that are addressed by
 * axis name: an operand without some axis does not move along it, which is
 * what broadcasting by name means.
 *
 *   out[i, j] += x[i, k] * y[k, j]      walk over i, j, k with three operands
 */
#include "priv.h"

#include <string.h>

static int find(const ev_walk *w, const nd_axis *a)
{
    for (int d = 0; d < w->rank; d++)
        if (w->axis[d] == a)
            return d;
    return -1;
}

void ev_over(ev_walk *w, const nd_type *t, const ev_piece *p,
             const nd_axis *except)
{
    for (int i = 0; i < t->rank; i++) {
        if (t->axis[i] == except || find(w, t->axis[i]) >= 0)
            continue;
        if (w->rank == EV_AXES) {
            w->bad = true;
            return;
        }
        w->axis[w->rank] = t->axis[i];
        w->off[w->rank] = p->off[i];
        w->n[w->rank++] = p->n[i];
    }
}

int64_t ev_bind(ev_walk *w, const nd_type *t, const ev_piece *p,
                const nd_axis *except)
{
    int k = w->nops++;
    int64_t stride = 1, kept = 0;
    w->v[k] = p->v;
    for (int i = t->rank - 1; i >= 0; i--) {
        int d = find(w, t->axis[i]);
        if (t->axis[i] == except)
            kept = stride;
        else if (d < 0 || w->off[d] != p->off[i] || w->n[d] != p->n[i])
            w->bad = true;
        else
            w->stride[k][d] = stride;
        stride *= p->n[i];
    }
    return kept;
}

bool ev_start(ev_walk *w)
{
    w->left = 1;
    for (int d = 0; d < w->rank; d++) {
        w->i[d] = 0;
        w->left *= w->n[d];
    }
    return w->left > 0 && !w->bad;
}

bool ev_step(ev_walk *w)
{
    if (--w->left == 0)
        return false;
    for (int d = w->rank - 1; d >= 0; d--) {
        bool wrap = ++w->i[d] == w->n[d];
        int64_t by = wrap ? 1 - w->n[d] : 1;
        for (int k = 0; k < w->nops; k++)
            w->at[k] += by * w->stride[k][d];
        if (!wrap)
            break;
        w->i[d] = 0;
    }
    return true;
}

int64_t ev_overlap(const ev_piece *from, const ev_piece *to, int rank, bool add)
{
    int64_t lo[ND_MAX_RANK], n[ND_MAX_RANK], i[ND_MAX_RANK] = {0}, total = 1;
    for (int d = 0; d < rank; d++) {
        int64_t hi = from->off[d] + from->n[d], end = to->off[d] + to->n[d];
        lo[d] = from->off[d] > to->off[d] ? from->off[d] : to->off[d];
        hi = hi < end ? hi : end;
        n[d] = hi > lo[d] ? hi - lo[d] : 0;
        total *= n[d];
    }
    for (int64_t left = total; left > 0; left--) {
        int64_t f = 0, t = 0;
        for (int d = 0; d < rank; d++) {
            f = f * from->n[d] + lo[d] + i[d] - from->off[d];
            t = t * to->n[d] + lo[d] + i[d] - to->off[d];
        }
        to->v[t] = add ? to->v[t] + from->v[f] : from->v[f];
        for (int d = rank - 1; d >= 0 && ++i[d] == n[d]; d--)
            i[d] = 0;
    }
    return total;
}
