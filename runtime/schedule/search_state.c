/* search_state.c - a schedule half made: what each rank can do next, what that
 * changes, and how soon the whole can end at best.
 *
 *   rank 1 of 2, after F F: F needs room and F of rank 0; I needs nothing
 *
 * Room: F may only run if the microbatches of its rank could then be finished
 * one after another, with all W that wait done first. The oldest of all is the
 * oldest on every rank that it has not left, so it never waits for room, and no
 * state is a dead end. With slots each stage has one of each span from the
 * beginning. With several stages on a rank a younger microbatch might make room
 * for an older one: who can afford dead ends may ask for such states too
 * (`careful` off).
 */
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- states -------------------------------------------------------------- */

bool search_state_new(const search_problem *q, search_state *st)
{
    size_t ranks = (size_t)q->ranks, stages = (size_t)q->stages;
    size_t ends = stages * (size_t)q->micro;
    size_t doubles = 2 * ranks + 2 * ends;
    size_t ints = (NSTEPS + SCHED_NSPANS) * stages;
    st->bytes = doubles * sizeof(double) + ints * sizeof(int) + 2 * stages;
    st->mem = calloc(1, st->bytes);
    if (!st->mem)
        return false;
    st->free = st->mem;
    st->kept = st->free + ranks;
    st->end[0] = st->kept + ranks;
    st->end[1] = st->end[0] + ends;
    st->n[0] = (int *)(st->end[1] + ends);
    st->n[1] = st->n[0] + stages;
    st->n[2] = st->n[1] + stages;
    st->peak = st->n[2] + stages;
    st->hold[0] = (uint8_t *)(st->peak + SCHED_NSPANS * stages);
    st->hold[1] = st->hold[0] + stages;
    for (int s = 0; q->slots && s < q->stages; s++)
        for (int k = 0; k < SCHED_NSPANS; k++) {
            st->peak[s * SCHED_NSPANS + k] = 1;
            st->kept[q->rank_of[s]] += q->keep[k][s];
        }
    return true;
}

void search_state_free(search_state *st)
{
    free(st->mem);
    st->mem = NULL;
}

void search_state_copy(search_state *to, const search_state *from)
{
    memcpy(to->mem, from->mem, from->bytes);
}

/* ---- room ---------------------------------------------------------------- */

static bool has_room(const search_problem *q, int rank, double kept)
{
    return kept <= q->room[rank] + 1e-9 * q->room[rank];
}

/* Microbatches in a span of a stage. */
static int in_span(const search_state *st, int s, int span)
{
    int from = span == SCHED_I_TO_W ? STEP_I : STEP_F;
    int until = span == SCHED_UNTIL_I ? STEP_I : STEP_W;
    return st->n[from][s] - st->n[until][s];
}

/* What an action adds to what its rank keeps. */
static double growth(const search_problem *q, const search_state *st, int s,
                     int step)
{
    double d = 0;
    for (int k = 0; k < SCHED_NSPANS; k++) {
        if (step != (k == SCHED_I_TO_W ? STEP_I : STEP_F))
            continue;
        if (!q->slots || in_span(st, s, k) == st->peak[s * SCHED_NSPANS + k])
            d += q->keep[k][s];
    }
    return d;
}

/* Could the rank finish microbatch `mb` once all before it are, and all W that
 * wait, if F of `stage` ran now? */
static bool ends(const search_problem *q, const search_state *st, int rank,
                 int stage, int mb)
{
    const double *until_i = q->keep[SCHED_UNTIL_I];
    const double *until_w = q->keep[SCHED_UNTIL_W];
    const int *own = &q->stage_at[rank * q->v];
    double kept = 0;
    for (int c = 0; c < q->v; c++) {
        int s = own[c], from = st->n[STEP_I][s];
        int until = st->n[STEP_F][s] + (s == stage);
        from = from > mb ? from : mb;
        until = until > mb ? until : mb + 1;         /* its own F */
        kept += (until - from) * (until_i[s] + until_w[s]);
    }
    if (!has_room(q, rank, kept))
        return false;
    for (int c = q->v - 1; c >= 0; c--) {
        int s = own[c];
        if (st->n[STEP_I][s] > mb)
            continue;
        if (!has_room(q, rank, kept + q->keep[SCHED_I_TO_W][s]))
            return false;
        kept -= until_i[s] + until_w[s];
    }
    return true;
}

/* And all others, one after another? Of those that lack the same actions, the
 * first has the least room. */
static bool all_end(const search_problem *q, const search_state *st, int rank,
                    int stage)
{
    for (int c = 0; c < q->v; c++) {
        int s = q->stage_at[rank * q->v + c];
        int started = st->n[STEP_F][s] + (s == stage);
        if (!ends(q, st, rank, stage, st->n[STEP_I][s]))
            return false;
        if (started < q->micro && !ends(q, st, rank, stage, started))
            return false;
    }
    return true;
}

static bool may(const search_problem *q, const search_state *st, int rank,
                int s, int step)
{
    if (step == STEP_W || isinf(q->room[rank]))
        return true;
    if (!has_room(q, rank, st->kept[rank] + growth(q, st, s, step)))
        return false;
    return step == STEP_I || q->slots || !q->careful ||
           all_end(q, st, rank, s);
}

/* ---- moves --------------------------------------------------------------- */

/* When the operands of the next action are there; INFINITY: nobody knows. */
static double ready(const search_problem *q, const search_state *st, int s,
                    int step)
{
    int k = st->n[step][s];
    if (k == q->micro || (step && st->n[step - 1][s] <= k))
        return INFINITY;
    if (step == STEP_W || q->lag[step][s] < 0)
        return 0;
    int from = step == STEP_F ? s - 1 : s + 1;
    if (st->n[step][from] <= k)
        return INFINITY;
    return st->end[step][from * q->micro + k] + q->lag[step][s];
}

int search_moves(const search_problem *q, const search_state *st, int rank,
                 search_move *out)
{
    int n = 0;
    for (int c = 0; c < q->v; c++) {
        int s = q->stage_at[rank * q->v + c];
        for (int step = 0; step < q->steps; step++) {
            if (step != STEP_W && st->hold[step][s])
                continue;
            double t = ready(q, st, s, step);
            if (isinf(t) || !may(q, st, rank, s, step))
                continue;
            t = t > st->free[rank] ? t : st->free[rank];
            out[n++] = (search_move){rank, s, step, t};
        }
    }
    return n;
}

void search_apply(const search_problem *q, search_state *st, search_move mv)
{
    int s = mv.stage, r = mv.rank, k = st->n[mv.step][s]++;
    bool whole = mv.step == STEP_I && q->steps == 2;
    st->free[r] = mv.start + q->cost[mv.step][s];
    if (mv.step != STEP_W)
        st->end[mv.step][s * q->micro + k] = st->free[r];
    for (int c = 0; c < q->v; c++) {
        int own = q->stage_at[r * q->v + c];
        st->hold[0][own] = st->hold[1][own] = 0;
    }
    st->n[STEP_W][s] += whole;
    if (q->slots) {
        for (int span = 0; span < SCHED_NSPANS; span++) {
            int *peak = &st->peak[s * SCHED_NSPANS + span];
            if (in_span(st, s, span) <= *peak)
                continue;
            *peak = in_span(st, s, span);
            st->kept[r] += q->keep[span][s];
        }
        return;
    }
    if (mv.step == STEP_F)
        st->kept[r] += q->keep[SCHED_UNTIL_I][s] + q->keep[SCHED_UNTIL_W][s];
    if (mv.step == STEP_I)
        st->kept[r] += q->keep[SCHED_I_TO_W][s] - q->keep[SCHED_UNTIL_I][s];
    if (mv.step == STEP_W || whole)
        st->kept[r] -= q->keep[SCHED_UNTIL_W][s] + q->keep[SCHED_I_TO_W][s];
}

/* ---- bounds -------------------------------------------------------------- */

/* For each stage the earliest moment of its next F and I, `next`. */
static void earliest(const search_problem *q, const search_state *st,
                     double *next_f, double *next_i)
{
    for (int s = 0; s < q->stages; s++) {
        double t = ready(q, st, s, STEP_F);
        if (isinf(t) && st->n[STEP_F][s] < q->micro && s > 0)
            t = next_f[s - 1] + q->cost[STEP_F][s - 1] + q->lag[0][s];
        next_f[s] = t > st->free[q->rank_of[s]] ? t : st->free[q->rank_of[s]];
    }
    for (int s = q->stages - 1; s >= 0; s--) {
        double t = ready(q, st, s, STEP_I);
        if (isinf(t) && st->n[STEP_I][s] < q->micro) {
            bool made = st->n[STEP_F][s] > st->n[STEP_I][s];
            t = made ? 0 : next_f[s] + q->cost[STEP_F][s];
            if (s + 1 < q->stages && q->lag[1][s] >= 0 &&
                st->n[STEP_I][s + 1] <= st->n[STEP_I][s]) {
                double u = next_i[s + 1] + q->cost[STEP_I][s + 1] +
                           q->lag[1][s];
                t = u > t ? u : t;
            }
        }
        next_i[s] = t > st->free[q->rank_of[s]] ? t : st->free[q->rank_of[s]];
    }
}

/* A rank does its work, and its last I is followed by those of all stages
 * before it: all forwards and all I of this and later stages come first. */
search_value search_bound(const search_problem *q, const search_state *st,
                          double *scratch)
{
    double *next_f = scratch, *next_i = scratch + q->stages;
    search_value b = {0, 0};
    earliest(q, st, next_f, next_i);
    for (int r = 0; r < q->ranks; r++) {
        double start = INFINITY, all = 0, f = 0, end = 0;
        for (int c = 0; c < q->v; c++) {
            int s = q->stage_at[r * q->v + c];
            double left[NSTEPS];
            for (int k = 0; k < NSTEPS; k++) {
                left[k] = (q->micro - st->n[k][s]) * q->cost[k][s];
                all += left[k];
            }
            f += left[STEP_F];
            if (st->n[STEP_F][s] < q->micro && next_f[s] < start)
                start = next_f[s];
            if (st->n[STEP_I][s] < q->micro && next_i[s] < start)
                start = next_i[s];
            if (st->n[STEP_I][s] > st->n[STEP_W][s])
                start = st->free[r];
        }
        if (isinf(start))
            start = st->free[r];
        end = start + all - q->off[r];
        b.sum += end;
        double before = start + f;
        for (int c = q->v - 1; c >= 0; c--) {
            int s = q->stage_at[r * q->v + c];
            int left = q->micro - st->n[STEP_I][s];
            before += left * q->cost[STEP_I][s];
            if (left && before + q->tail[s] > end)
                end = before + q->tail[s];
        }
        b.time = end > b.time ? end : b.time;
    }
    return b;
}
