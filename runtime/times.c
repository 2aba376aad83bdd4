/* times.c - --times FILE: how long the actions of each stage took, in seconds,
 * the median over microbatches, steps and ranks.
 *
 *   stage,F,I,W,B,ahead,back
 *   0,0.0021,0,0,0.0043,0.0001,0
 *
 * The schedule's simulator is told these times, and what it expects of a step
 * is said beside what a step took.
 */
#include "trace.h"

#include <math.h>
#include <stdlib.h>

typedef enum { F, I, W, B, AHEAD, BACK, NCOLUMNS } column;

static const sched_op op_of[NCOLUMNS] = {
    [F] = SCHED_F, [I] = SCHED_I, [W] = SCHED_W, [B] = SCHED_B,
    [AHEAD] = SCHED_SEND_F, [BACK] = SCHED_SEND_B,
};

typedef struct table {
    const trace_gathered *g;
    double *received;             /* how long receives took */
    double *x;                    /* room to find a median in */
    double *of[NCOLUMNS];         /* by stage */
} table;

/* ---- messages ------------------------------------------------------------ */

/* A copy's ranks send to each other alone: where in `received` is it? */
static size_t place(const table *t, int rank, int stage, bool back, int mb)
{
    const sched *s = t->g->course->sched;
    size_t at = (size_t)trace_copy(t->g, rank) * (size_t)s->stages +
                (size_t)stage;

    return (2 * at + back) * (size_t)s->micro + (size_t)mb;
}

static void note_receives(table *t, int rank)
{
    const sched_row *row = trace_row(t->g, rank);

    for (int i = 0; i < row->n; i++) {
        const sched_action *a = &row->v[i];
        if (a->op == SCHED_RECV_F || a->op == SCHED_RECV_B)
            t->received[place(t, rank, a->stage, a->op == SCHED_RECV_B,
                              a->mb)] = t->g->of[rank]->line[i].took;
    }
}

/* A message takes as long as for the one of the two that came to it later; the
 * other one has waited. */
static double time_of(const table *t, int rank, int i)
{
    const sched_action *a = &trace_row(t->g, rank)->v[i];
    double took = t->g->of[rank]->line[i].took;
    bool back = a->op == SCHED_SEND_B;

    if (sched_is_compute(a->op))
        return took;
    return fmin(took, t->received[place(t, rank, a->stage + (back ? -1 : 1),
                                        back, a->mb)]);
}

/* ---- the table ----------------------------------------------------------- */

static double cell(const table *t, int stage, sched_op op)
{
    const trace_gathered *g = t->g;
    int n = 0;

    for (int q = 0; q < g->ranks; q++) {
        const sched_row *row = trace_row(g, q);
        if (ndrt_device_of(g->r->program, q) !=
            g->course->sched->rank_of[stage])
            continue;
        for (int i = 0; i < row->n; i++)
            if (row->v[i].stage == stage && row->v[i].op == op)
                t->x[n++] = time_of(t, q, i);
    }
    return trace_median(t->x, n);
}

static bool make_table(table *t)
{
    const sched *s = t->g->course->sched;
    size_t copies = (size_t)(t->g->ranks / s->ranks);
    size_t cells = (size_t)s->stages * (size_t)s->micro;

    t->received = calloc(2 * copies * cells + 1, sizeof *t->received);
    t->x = calloc(copies * (size_t)s->micro + (size_t)t->g->steps + 1,
                  sizeof *t->x);
    t->of[0] = calloc((size_t)s->stages * NCOLUMNS, sizeof *t->of[0]);
    if (!t->received || !t->x || !t->of[0])
        return false;
    for (int q = 0; q < t->g->ranks; q++)
        note_receives(t, q);
    for (int k = 0; k < NCOLUMNS; k++) {
        t->of[k] = t->of[0] + k * s->stages;
        for (int stage = 0; stage < s->stages; stage++)
            t->of[k][stage] = cell(t, stage, op_of[k]);
    }
    return true;
}

static ndrt_status put_table(ndrt_rank *r, const table *t)
{
    sched_text text = {0};

    sched_put(&text, "stage,F,I,W,B,ahead,back\n");
    for (int s = 0; s < t->g->course->sched->stages; s++) {
        sched_put(&text, "%d", s);
        for (int k = 0; k < NCOLUMNS; k++)
            sched_put(&text, ",%.6g", t->of[k][s]);
        sched_put(&text, "\n");
    }
    ndrt_status status =
        trace_put_file(r, r->state->config->times_path, &text);
    free(text.s);
    return status;
}

/* ---- what a step should take, and took ----------------------------------- */

/* The slowest rank's list, the median over steps. */
static double step_took(const table *t)
{
    const trace_gathered *g = t->g;

    for (int k = 0; k < g->steps; k++) {
        t->x[k] = 0.0;
        for (int q = 0; q < g->ranks; q++)
            t->x[k] = fmax(t->x[k], g->of[q]->list[k]);
    }
    return trace_median(t->x, g->steps);
}

/* Backward in one takes what the simulator knows as I and W. */
static void compare_step(ndrt_rank *r, table *t)
{
    const sched *s = t->g->course->sched;
    sched_costs costs = {.f = t->of[F], .i = t->of[I], .w = t->of[W],
                         .ahead = t->of[AHEAD], .back = t->of[BACK],
                         .cross = t->g->course->cross};
    sched *expected = sched_copy(s);
    sched_times times;
    sched_error err;

    for (int stage = 0; stage < s->stages; stage++)
        if (t->of[I][stage] == 0.0)
            t->of[I][stage] = t->of[B][stage];
    if (expected && sched_time(expected, &costs, &times, &err)) {
        double took = step_took(t);
        ndrt_log_note(r, "the actions of a step took %.3f ms; by the times of "
                      "each, %.3f ms were expected (ratio %.3f)", 1e3 * took,
                      1e3 * times.makespan, took / times.makespan);
        free(times.rank);
    }
    sched_free(expected);
}

ndrt_status trace_put_times(ndrt_rank *r, const trace_gathered *g)
{
    table t = {.g = g};
    ndrt_status s = NDRT_OK;

    if (!make_table(&t))
        s = ndrt_fail(r, NDRT_EINTERNAL, "out of memory for the times");
    if (s == NDRT_OK)
        s = put_table(r, &t);
    if (s == NDRT_OK)
        compare_step(r, &t);
    free(t.received);
    free(t.x);
    free(t.of[0]);
    return s;
}
