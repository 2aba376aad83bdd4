/* search_cycle.c - a schedule that repeats itself: the same places for every
 * microbatch, one period after those of the one before.
 *
 *   period 3, 2 ranks:  F0 at 0, F1 at 1, I1 at 2, I0 at 4, W1 at 3, W0 at 5
 *   rank 0:  F . . F I W F I W ..        period by period, F at 0, 3, 6, ..
 *
 * What a microbatch keeps is kept for so many periods: a longer period keeps
 * less, and no microbatch waits for another. In the building blocks of v_half
 * and v_min (arXiv 2405.15362) such places are written down for equal costs;
 * here they are found for any.
 */
#include "search.h"

#include <math.h>
#include <stdlib.h>

typedef struct place {
    double at;
    int mb;
    uint8_t code;
} place;

typedef struct cycle {
    const search_problem *q;
    double period;
    double *at[NSTEPS];          /* by stage: of microbatch 0 */
    bool *done[NSTEPS];
} cycle;

/* Is a rank free from t on, for as long as it takes, in every period? */
static bool is_free(const cycle *c, int rank, double t, double takes)
{
    const search_problem *q = c->q;
    double eps = 1e-9 * c->period;
    for (int i = 0; i < q->v; i++) {
        int s = q->stage_at[rank * q->v + i];
        for (int k = 0; k < q->steps; k++) {
            if (!c->done[k][s])
                continue;
            double since = fmod(t - c->at[k][s], c->period);
            since += since < -eps ? c->period : 0;
            if (c->period - since < eps)
                since = 0;
            if (since < q->cost[k][s] - eps || since + takes > c->period + eps)
                return false;
        }
    }
    return true;
}

/* The first place from `ready` on: there, or right after something else. */
static bool put(cycle *c, int s, int step, double ready)
{
    const search_problem *q = c->q;
    int rank = q->rank_of[s];
    double takes = q->cost[step][s], first = INFINITY;
    if (is_free(c, rank, ready, takes))
        first = ready;
    for (int i = 0; i < q->v && isinf(first); i++)
        for (int k = 0; k < q->steps; k++) {
            int other = q->stage_at[rank * q->v + i];
            if (!c->done[k][other])
                continue;
            double end = c->at[k][other] + q->cost[k][other];
            double t = end + c->period * ceil((ready - end) / c->period - 1e-9);
            if (t < first && is_free(c, rank, t, takes))
                first = t;
        }
    if (isinf(first))
        return false;
    c->at[step][s] = first;
    return c->done[step][s] = true;
}

static bool put_all(cycle *c)
{
    const search_problem *q = c->q;
    double t = 0;
    for (int s = 0; s < q->stages; s++) {
        t = q->lag[0][s] < 0 ? 0 : t + q->lag[0][s];
        if (!put(c, s, STEP_F, t))
            return false;
        t = c->at[STEP_F][s] + q->cost[STEP_F][s];
    }
    for (int s = q->stages - 1; s >= 0; s--) {
        double own = c->at[STEP_F][s] + q->cost[STEP_F][s];
        t = q->lag[1][s] < 0 || t + q->lag[1][s] < own ? own
                                                       : t + q->lag[1][s];
        if (!put(c, s, STEP_I, t))
            return false;
        t = c->at[STEP_I][s] + q->cost[STEP_I][s];
    }
    for (int s = 0; q->steps == 3 && s < q->stages; s++)
        if (!put(c, s, STEP_W, c->at[STEP_I][s] + q->cost[STEP_I][s]))
            return false;
    return true;
}

static int by_time(const void *pa, const void *pb)
{
    const place *a = pa, *b = pb;
    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    return a->mb != b->mb ? a->mb - b->mb : a->code - b->code;
}

static void write_rows(const cycle *c, place *row, uint8_t *order)
{
    const search_problem *q = c->q;
    for (int r = 0; r < q->ranks; r++) {
        int n = 0;
        for (int i = 0; i < q->v; i++)
            for (int k = 0; k < q->steps; k++)
                for (int mb = 0; mb < q->micro; mb++) {
                    double at = c->at[k][q->stage_at[r * q->v + i]];
                    row[n++] = (place){at + mb * c->period, mb,
                                       search_code(i, k)};
                }
        qsort(row, (size_t)n, sizeof *row, by_time);
        for (int i = 0; i < n; i++)
            order[r * q->length + i] = row[i].code;
    }
}

bool search_cycle(const search_problem *q, double period, uint8_t *order)
{
    cycle c = {.q = q, .period = period};
    size_t n = (size_t)q->stages;
    double *at = malloc(NSTEPS * n * sizeof *at);
    bool *done = calloc(NSTEPS * n, sizeof *done);
    place *row = malloc((size_t)q->length * sizeof *row);
    bool ok = at && done && row;
    for (size_t k = 0; ok && k < NSTEPS; k++) {
        c.at[k] = at + k * n;
        c.done[k] = done + k * n;
    }
    ok = ok && put_all(&c);
    if (ok)
        write_rows(&c, row, order);
    free(at);
    free(done);
    free(row);
    return ok;
}
