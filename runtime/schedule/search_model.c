/* search_model.c - the question that a search answers, as tables; what an order
 * of actions costs in time and memory.
 *
 *   rank 0: F F I W I W     ->  time 9, and it fits into its room, or not
 *   rank 1: F I F I W W
 *
 * See search.h for orders and codes.
 */
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sums of seconds and of bytes are equal up to rounding. */
static bool within(double x, double limit)
{
    return x <= limit + 1e-9 * fabs(limit);
}

bool search_better(search_value a, search_value b)
{
    double eps = 1e-12 * fabs(b.time);
    if (isinf(b.time))
        return !isinf(a.time);
    if (a.time < b.time - eps)
        return true;
    return a.time <= b.time + eps && a.sum < b.sum - 1e-12 * fabs(b.sum);
}

/* ---- tables -------------------------------------------------------------- */

static double cost_of(const double *given, int stage, double otherwise)
{
    return given ? given[stage] : otherwise;
}

static void set_costs(search_problem *q, const sched_costs *c, bool whole)
{
    for (int s = 0; s < q->stages; s++) {
        double w = cost_of(c->w, s, 1);
        q->cost[STEP_F][s] = cost_of(c->f, s, 1);
        q->cost[STEP_I][s] = cost_of(c->i, s, 1) + (whole ? w : 0);
        q->cost[STEP_W][s] = whole ? 0 : w;
        q->keep[SCHED_UNTIL_I][s] = cost_of(c->until_i, s, 0);
        q->keep[SCHED_UNTIL_W][s] = cost_of(c->until_w, s, 0);
        q->keep[SCHED_I_TO_W][s] = cost_of(c->i_to_w, s, 0);
    }
}

static void set_lags(search_problem *q, const sched_costs *c)
{
    for (int s = 0; s < q->stages; s++)
        q->lag[0][s] = q->lag[1][s] = -1;
    for (int s = 0; s + 1 < q->stages; s++) {
        bool near = q->rank_of[s] == q->rank_of[s + 1];
        int bits = c->cross ? c->cross[s] : SCHED_AHEAD | SCHED_BACK;
        if (bits & SCHED_AHEAD)
            q->lag[0][s + 1] = near ? 0 : cost_of(c->ahead, s, 0);
        if (bits & SCHED_BACK)
            q->lag[1][s] = near ? 0 : cost_of(c->back, s + 1, 0);
    }
}

/* When each rank starts, if all do as soon as they can; what is left to do
 * after a stage's last I. */
static void set_ends(search_problem *q, bool sync)
{
    double head = 0;
    for (int r = 0; r < q->ranks; r++)
        q->off[r] = INFINITY;
    for (int s = 0; s < q->stages; s++) {
        double *off = &q->off[q->rank_of[s]];
        head = q->lag[0][s] < 0 ? 0
                                : head + q->cost[STEP_F][s - 1] + q->lag[0][s];
        *off = head < *off ? head : *off;
    }
    for (int r = 0; r < q->ranks; r++) {
        double work = 0;
        for (int c = 0; c < q->v; c++)
            for (int k = 0; k < NSTEPS; k++)
                work += q->cost[k][q->stage_at[r * q->v + c]];
        q->work = work > q->work ? work : q->work;
        q->off[r] = sync ? 0 : q->off[r];
    }
    for (int s = 0; s < q->stages; s++) {
        q->tail[s] = q->cost[STEP_W][s] - q->off[q->rank_of[s]];
        if (s > 0 && q->lag[1][s - 1] >= 0) {
            double t = q->lag[1][s - 1] + q->cost[STEP_I][s - 1] +
                       q->tail[s - 1];
            q->tail[s] = t > q->tail[s] ? t : q->tail[s];
        }
    }
}

/* What a rank keeps at least: one microbatch on its way through all of it. */
static double least_room(const search_problem *q, int rank)
{
    double held = 0, most = 0;
    for (int c = 0; c < q->v; c++) {
        int s = q->stage_at[rank * q->v + c];
        held += q->keep[SCHED_UNTIL_I][s] + q->keep[SCHED_UNTIL_W][s];
    }
    if (q->slots) {
        for (int c = 0; c < q->v; c++)
            held += q->keep[SCHED_I_TO_W][q->stage_at[rank * q->v + c]];
        return held;
    }
    for (int c = q->v - 1; c >= 0; c--) {
        int s = q->stage_at[rank * q->v + c];
        double at = held + q->keep[SCHED_I_TO_W][s];
        most = at > most ? at : most;
        held -= q->keep[SCHED_UNTIL_I][s] + q->keep[SCHED_UNTIL_W][s];
    }
    return most > held ? most : held;
}

bool search_problem_make(search_problem *q, const sched_ask *ask, bool whole,
                         sched_error *err)
{
    static const sched_costs ones = {0};
    const sched_costs *c = ask->costs ? ask->costs : &ones;
    *q = (search_problem){
        .ranks = ask->ranks, .v = ask->v > 0 ? ask->v : 1, .micro = ask->micro,
        .steps = whole ? 2 : 3, .where = ask->where, .slots = ask->slots,
        .careful = true};
    q->stages = q->ranks * q->v;
    q->length = q->v * q->micro * q->steps;
    size_t n = (size_t)q->stages;
    double **tables[] = {&q->cost[0], &q->cost[1], &q->cost[2], &q->lag[0],
                         &q->lag[1],  &q->keep[0], &q->keep[1], &q->keep[2],
                         &q->room,    &q->off,     &q->tail};
    size_t count = sizeof tables / sizeof *tables;
    double *d = q->tables = calloc(n, count * sizeof(double) + 3 * sizeof(int));
    if (!d)
        return sched_fail(err, -1, 0, "no memory to search for a schedule");
    for (size_t i = 0; i < count; i++, d += n)
        *tables[i] = d;
    q->rank_of = (int *)d;
    q->chunk_of = q->rank_of + n;
    q->stage_at = q->chunk_of + n;
    for (int s = 0; s < q->stages; s++) {
        q->rank_of[s] = sched_rank_of(q->where, q->ranks, s);
        q->chunk_of[s] = s / q->ranks;
        q->stage_at[q->rank_of[s] * q->v + q->chunk_of[s]] = s;
    }
    set_costs(q, c, whole);
    set_lags(q, c);
    set_ends(q, ask->sync);
    for (int r = 0; r < q->ranks; r++) {
        q->room[r] = ask->room ? ask->room[r] : INFINITY;
        double least = least_room(q, r);
        if (within(least, q->room[r]))
            continue;
        search_problem_free(q);
        return sched_fail(err, r, 0,
                          "rank %d keeps at least %g for one microbatch; "
                          "its room is %g",
                          r, least, ask->room[r]);
    }
    return true;
}

void search_problem_free(search_problem *q)
{
    free(q->tables);
    q->tables = NULL;
}

/* ---- orders and schedules ------------------------------------------------ */

sched *search_to_sched(const search_problem *q, const uint8_t *order)
{
    static const sched_op split[] = {SCHED_F, SCHED_I, SCHED_W};
    static const sched_op whole[] = {SCHED_F, SCHED_B};
    const sched_op *op = q->steps == 3 ? split : whole;
    sched *s = sched_new("auto", q->ranks, q->stages, q->micro, q->where);
    int *n = calloc((size_t)q->stages * NSTEPS, sizeof *n);
    for (int at = 0; s && n && at < q->ranks * q->length; at++) {
        int r = at / q->length, stage = search_stage(q, r, order[at]);
        int step = order[at] % NSTEPS;
        sched_push(s, r, op[step], stage, n[stage * NSTEPS + step]++);
    }
    if (!n) {
        sched_free(s);
        s = NULL;
    }
    free(n);
    return s;
}

bool search_from_sched(const search_problem *q, const sched *s, uint8_t *order)
{
    if (s->ranks != q->ranks || s->stages != q->stages ||
        s->micro != q->micro ||
        memcmp(s->rank_of, q->rank_of, sizeof(int) * (size_t)q->stages))
        return false;
    for (int r = 0; r < q->ranks; r++) {
        int n = 0;
        for (int i = 0; i < s->row[r].n; i++) {
            const sched_action *a = &s->row[r].v[i];
            int chunk = q->chunk_of[a->stage];
            bool back = a->op == SCHED_B || a->op == SCHED_I;
            bool weights = (a->op == SCHED_B || a->op == SCHED_W) &&
                           q->steps == 3;
            if (n + back + weights > q->length ||
                (a->op == SCHED_F && n == q->length))
                return false;
            if (a->op == SCHED_F)
                order[r * q->length + n++] = search_code(chunk, STEP_F);
            if (back)
                order[r * q->length + n++] = search_code(chunk, STEP_I);
            if (weights)
                order[r * q->length + n++] = search_code(chunk, STEP_W);
        }
        if (n != q->length)
            return false;
    }
    return true;
}

/* ---- time ---------------------------------------------------------------- */

search_run *search_run_new(const search_problem *q)
{
    size_t n = (size_t)(q->ranks * q->length), ranks = (size_t)q->ranks;
    size_t kinds = (size_t)q->stages * NSTEPS;
    search_run *run = calloc(1, sizeof *run);
    if (!run)
        return NULL;
    run->start = malloc(n * sizeof *run->start);
    run->end = malloc(n * sizeof *run->end);
    run->cause = malloc(n * sizeof *run->cause);
    run->pos = malloc(ranks * sizeof *run->pos);
    run->queue = malloc(ranks * sizeof *run->queue);
    run->queued = malloc(ranks * sizeof *run->queued);
    run->count = malloc(kinds * sizeof *run->count);
    run->where = malloc(kinds * (size_t)q->micro * sizeof *run->where);
    if (!run->start || !run->end || !run->cause || !run->pos || !run->queue ||
        !run->queued || !run->count || !run->where) {
        search_run_free(run);
        return NULL;
    }
    return run;
}

void search_run_free(search_run *run)
{
    if (!run)
        return;
    free(run->start);
    free(run->end);
    free(run->cause);
    free(run->pos);
    free(run->queue);
    free(run->queued);
    free(run->count);
    free(run->where);
    free(run);
}

/* Where the k-th action of a stage and step stands; -1: not run yet. */
static int place(const search_problem *q, const search_run *run, int stage,
                 int step, int k)
{
    int kind = stage * NSTEPS + step;
    return run->count[kind] > k ? run->where[kind * q->micro + k] : -1;
}

/* Runs a rank until it waits for another; those that it feeds are queued. */
static bool run_rank(const search_problem *q, const uint8_t *order,
                     search_run *run, int r, int *queued)
{
    int base = r * q->length;
    for (; run->pos[r] < q->length; run->pos[r]++) {
        int at = base + run->pos[r], step = order[at] % NSTEPS;
        int s = search_stage(q, r, order[at]);
        int *k = &run->count[s * NSTEPS + step];
        if (*k == q->micro || (step && run->count[s * NSTEPS + step - 1] <= *k))
            return false;
        double start = run->pos[r] ? run->end[at - 1] : 0;
        run->cause[at] = run->pos[r] ? at - 1 : -1;
        if (step != STEP_W && q->lag[step][s] >= 0) {
            int from = place(q, run, step == STEP_F ? s - 1 : s + 1, step, *k);
            if (from < 0)
                return true;
            if (run->end[from] + q->lag[step][s] > start) {
                start = run->end[from] + q->lag[step][s];
                run->cause[at] = from;
            }
        }
        run->start[at] = start;
        run->end[at] = start + q->cost[step][s];
        run->where[(s * NSTEPS + step) * q->micro + (*k)++] = at;
        int to = step == STEP_F ? s + 1 : step == STEP_I ? s - 1 : -1;
        if (to < 0 || to == q->stages || run->queued[q->rank_of[to]])
            continue;
        run->queued[q->rank_of[to]] = true;
        run->queue[(*queued)++] = q->rank_of[to];
    }
    return true;
}

search_value search_eval(const search_problem *q, const uint8_t *order,
                         search_run *run)
{
    const search_value never = {INFINITY, INFINITY};
    int queued = 0;
    memset(run->count, 0, (size_t)q->stages * NSTEPS * sizeof *run->count);
    for (int r = q->ranks - 1; r >= 0; r--) {
        run->pos[r] = 0;
        run->queued[r] = true;
        run->queue[queued++] = r;
    }
    while (queued) {
        int r = run->queue[--queued];
        run->queued[r] = false;
        if (!run_rank(q, order, run, r, &queued))
            return never;
    }
    search_value v = {0, 0};
    for (int r = 0; r < q->ranks; r++) {
        if (run->pos[r] < q->length)
            return never;
        double end = run->end[r * q->length + q->length - 1] - q->off[r];
        v.time = end > v.time ? end : v.time;
        v.sum += end;
    }
    return v;
}

/* ---- memory -------------------------------------------------------------- */

static bool fits_kept(const search_problem *q, int rank, const uint8_t *row)
{
    bool whole = q->steps == 2;
    double kept = 0;
    for (int i = 0; i < q->length; i++) {
        int s = search_stage(q, rank, row[i]), step = row[i] % NSTEPS;
        double until_i = q->keep[SCHED_UNTIL_I][s];
        double until_w = q->keep[SCHED_UNTIL_W][s];
        double i_to_w = q->keep[SCHED_I_TO_W][s];
        kept += step == STEP_F ? until_i + until_w : 0;
        kept += step == STEP_I ? i_to_w : 0;
        if (!within(kept, q->room[rank]))
            return false;
        kept -= step == STEP_I ? until_i : 0;
        kept -= step == STEP_W || (step == STEP_I && whole) ? until_w + i_to_w
                                                            : 0;
    }
    return true;
}

static int most(int a, int b)
{
    return a > b ? a : b;
}

static bool fits_slots(const search_problem *q, int rank, const uint8_t *row)
{
    double kept = 0;
    for (int c = 0; c < q->v; c++) {
        int s = q->stage_at[rank * q->v + c];
        int n[NSTEPS] = {0}, peak[SCHED_NSPANS] = {0};
        for (int i = 0; i < q->length; i++) {
            if (row[i] / NSTEPS != c)
                continue;
            int *p = &peak[0];
            switch (row[i] % NSTEPS) {
            case STEP_F:
                n[STEP_F]++;
                p[SCHED_UNTIL_I] =
                    most(p[SCHED_UNTIL_I], n[STEP_F] - n[STEP_I]);
                p[SCHED_UNTIL_W] =
                    most(p[SCHED_UNTIL_W], n[STEP_F] - n[STEP_W]);
                break;
            case STEP_I:
                n[STEP_I]++;
                p[SCHED_I_TO_W] = most(p[SCHED_I_TO_W], n[STEP_I] - n[STEP_W]);
                n[STEP_W] += q->steps == 2;
                break;
            default:
                n[STEP_W]++;
            }
        }
        for (int k = 0; k < SCHED_NSPANS; k++)
            kept += peak[k] * q->keep[k][s];
    }
    return within(kept, q->room[rank]);
}

bool search_fits(const search_problem *q, int rank, const uint8_t *row)
{
    if (isinf(q->room[rank]))
        return true;
    return q->slots ? fits_slots(q, rank, row) : fits_kept(q, rank, row);
}
