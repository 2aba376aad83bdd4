/* trace.c - when each action ran: --trace writes the timeline of one step, as
 * `ndc` writes the one that it predicts; --times writes, per stage, how long
 * the actions of each kind took.
 *
 *   ./train --trace out.json --trace-step 5 --times times.csv
 *
 * Clocks are read around every action (messages.c), nowhere else, and only if
 * one of the two is asked for. Ranks meet before the step that is traced, which
 * is where their clocks are set to zero.
 */
#include "ndrt_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 32 };               /* steps; the last ones */

/* What rank 0 gets of each action. */
typedef struct line {
    ndrt_stamp stamp;             /* in the step that is traced */
    double took;                  /* the median */
} line;

struct ndrt_trace {
    int n;                        /* actions in the list */
    int64_t first, step;          /* of the run; that is traced */
    double zero;                  /* when that began */
    ndrt_stamp *stamps, *traced;
    double *took;                 /* KEPT times n */
    int64_t steps;                /* taken so far */
};

static const sched_row *row_of(const ndrt_course *c, int device)
{
    return &c->sched->row[device];
}

/* ---- taking times ---------------------------------------------------- */

/* The third step, or the last one of a shorter run. */
static int64_t step_to_trace(const ndrt_rank *r)
{
    const ndrt_config *c = r->state->config;
    int64_t third = r->state->start + 3, last = c->train.steps;

    return c->trace_step       ? c->trace_step
           : third < last      ? third
                               : last;
}

ndrt_status ndrt_trace_open(ndrt_rank *r)
{
    ndrt_state *st = r->state;
    const ndrt_config *c = st->config;

    if (!c->trace_path && !c->times_path)
        return NDRT_OK;
    ndrt_trace *t = st->trace = calloc(1, sizeof *t);
    size_t n = (size_t)row_of(st->course, r->device)->n;
    if (t) {
        t->n = (int)n;
        t->first = st->start + 1;
        t->step = step_to_trace(r);
        t->stamps = calloc(n + 1, sizeof *t->stamps);
        t->traced = calloc(n + 1, sizeof *t->traced);
        t->took = calloc(n * KEPT + 1, sizeof *t->took);
    }
    if (!t || !t->stamps || !t->traced || !t->took)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for the trace");
    if (c->train.steps < t->first || t->step < t->first ||
        t->step > c->train.steps)
        return ndrt_fail(r, NDRT_EUSAGE, "step %lld cannot be traced: the run "
                         "has steps %lld to %lld", (long long)t->step,
                         (long long)t->first, (long long)c->train.steps);
    return NDRT_OK;
}

ndrt_status ndrt_trace_begin(ndrt_rank *r)
{
    ndrt_state *st = r->state;
    ndrt_trace *t = st->trace;

    if (!t)
        return NDRT_OK;
    st->stamps = t->stamps;
    if (r->step != t->step)
        return NDRT_OK;
    ndrt_status s = NDRT_OK;
    if (st->world.n > 1)
        s = st->comm->ops->barrier(st->comm, &st->world);
    t->zero = ndrt_now();
    return ndrt_comm_check(r, s);
}

/* A first step prepares what later ones use: it counts only if it is alone. */
void ndrt_trace_end(ndrt_rank *r)
{
    ndrt_trace *t = r->state->trace;

    r->state->stamps = NULL;
    if (!t)
        return;
    if (r->step == t->step)
        memcpy(t->traced, t->stamps, (size_t)t->n * sizeof *t->traced);
    if (r->step == t->first + 1)
        t->steps = 0;
    double *took = t->took + t->steps++ % KEPT * t->n;
    for (int i = 0; i < t->n; i++)
        took[i] = t->stamps[i].end - t->stamps[i].start;
}

void ndrt_trace_free(ndrt_rank *r)
{
    ndrt_trace *t = r->state->trace;

    if (!t)
        return;
    free(t->stamps);
    free(t->traced);
    free(t->took);
    free(t);
}

/* ---- what rank 0 makes of all ranks' times ---------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts x; 0 if there is nothing. */
static double median(double *x, size_t n)
{
    qsort(x, n, sizeof *x, compare);
    return n == 0 ? 0.0 : n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static void fill(const ndrt_trace *t, line *out)
{
    int64_t steps = t->steps < KEPT ? t->steps : KEPT;
    double x[KEPT];

    for (int i = 0; i < t->n; i++) {
        for (int64_t k = 0; k < steps; k++)
            x[k] = t->took[k * t->n + i];
        out[i].stamp = (ndrt_stamp){t->traced[i].start - t->zero,
                                    t->traced[i].end - t->zero};
        out[i].took = median(x, (size_t)steps);
    }
}

/* All ranks' lines, one rank after another; on rank 0. */
typedef struct gathered {
    const ndrt_rank *r;
    const ndrt_course *course;
    int ranks;
    line **of;                    /* by rank */
} gathered;

static int device(const gathered *g, int rank)
{
    return ndrt_device_of(g->r->program, rank);
}

static int length(const gathered *g, int rank)
{
    return row_of(g->course, device(g, rank))->n;
}

static const sched_action *action(const gathered *g, int rank, int i)
{
    return &row_of(g->course, device(g, rank))->v[i];
}

/* Which of the lines of ranks along the pipeline it is in. */
static int copy_of(const gathered *g, int rank)
{
    const ndrt_program *p = g->r->program;
    int step = 1;

    for (int a = p->pipe + 1; a < p->nmesh; a++)
        step *= p->mesh_size[a];
    return p->pipe < 0 ? rank
                       : rank / (step * g->course->sched->ranks) * step +
                             rank % step;
}

static ndrt_status gather(ndrt_rank *r, gathered *g)
{
    ndrt_comm *c = r->state->comm;
    ndrt_status s = NDRT_OK;

    for (int q = 0; q < g->ranks && s == NDRT_OK; q++) {
        size_t bytes = (size_t)length(g, q) * sizeof **g->of;
        g->of[q] = malloc(bytes + 1);
        if (!g->of[q])
            return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for the trace");
        if (q == 0)
            fill(r->state->trace, g->of[q]);
        else
            s = ndrt_comm_check(r, c->ops->recv(c, q, g->of[q], bytes));
    }
    return s;
}

static ndrt_status send_mine(ndrt_rank *r)
{
    const ndrt_trace *t = r->state->trace;
    ndrt_comm *c = r->state->comm;
    size_t bytes = (size_t)t->n * sizeof(line);
    line *mine = malloc(bytes + 1);

    if (!mine)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for the trace");
    fill(t, mine);
    ndrt_status s = ndrt_comm_check(r, c->ops->send(c, 0, mine, bytes));
    free(mine);
    return s;
}

/* ---- the files --------------------------------------------------------- */

static ndrt_status put_file(ndrt_rank *r, const char *path,
                            const sched_text *text)
{
    FILE *f = fopen(path, "we");
    bool ok = f && fwrite(text->s, 1, text->n, f) == text->n;

    if (f)
        ok &= fclose(f) == 0;
    return ok ? NDRT_OK
              : ndrt_fail(r, NDRT_EINPUT, "cannot write \"%s\": %s", path,
                          strerror(errno));
}

/* Along other mesh axes than the pipeline's, other ranks follow the same rows:
 * copies. */
static ndrt_status put_trace(ndrt_rank *r, const gathered *g)
{
    const sched *s = g->course->sched;
    sched_costs costs = {.cross = g->course->cross};
    sched *ran = sched_copy(s);
    sched_text text = {0};

    if (!ran)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for the trace");
    sched_trace_begin(&text);
    for (int copy = 0; copy < g->ranks / s->ranks; copy++) {
        for (int q = 0; q < g->ranks; q++) {
            if (copy_of(g, q) != copy)
                continue;
            for (int i = 0; i < length(g, q); i++) {
                sched_action *a = &ran->row[device(g, q)].v[i];
                a->start = g->of[q][i].stamp.start;
                a->end = g->of[q][i].stamp.end;
            }
        }
        sched_trace_copy(ran, &costs, 1.0, copy, &text);
    }
    sched_trace_end(&text);
    sched_free(ran);
    ndrt_status status = put_file(r, r->state->config->trace_path, &text);
    free(text.s);
    return status;
}

/* ---- how long a message takes ------------------------------------------ */

/* Along the pipeline alone, ranks send to each other: where in `came` is what
 * this one received? */
static size_t place(const gathered *g, int rank, int stage, bool back, int mb)
{
    const sched *s = g->course->sched;

    return (((size_t)copy_of(g, rank) * (size_t)s->stages + (size_t)stage) * 2 +
            back) * (size_t)s->micro + (size_t)mb;
}

static double *times_of_receives(const gathered *g)
{
    const sched *s = g->course->sched;
    size_t n = (size_t)(g->ranks / s->ranks) * (size_t)s->stages * 2 *
               (size_t)s->micro;
    double *came = calloc(n + 1, sizeof *came);

    for (int q = 0; came && q < g->ranks; q++) {
        for (int i = 0; i < length(g, q); i++) {
            const sched_action *a = action(g, q, i);
            if (a->op == SCHED_RECV_F || a->op == SCHED_RECV_B)
                came[place(g, q, a->stage, a->op == SCHED_RECV_B, a->mb)] =
                    g->of[q][i].took;
        }
    }
    return came;
}

/* A message takes as long as for the one of the two that came to it later; the
 * other one has waited. */
static double message(const gathered *g, const double *came, int rank,
                      const sched_action *a, double took)
{
    bool back = a->op == SCHED_SEND_B;
    int to = a->stage + (back ? -1 : 1);

    return fmin(took, came[place(g, rank, to, back, a->mb)]);
}

/* ---- the table of times ------------------------------------------------- */

/* The median over microbatches and ranks; x has room for all of them. */
static double time_of(const gathered *g, const double *came, int stage,
                      sched_op op, double *x)
{
    size_t n = 0;

    for (int q = 0; q < g->ranks; q++) {
        if (device(g, q) != g->course->sched->rank_of[stage])
            continue;
        for (int i = 0; i < length(g, q); i++) {
            const sched_action *a = action(g, q, i);
            double took = g->of[q][i].took;
            if (a->stage == stage && a->op == op)
                x[n++] = sched_is_compute(op)
                             ? took : message(g, came, q, a, took);
        }
    }
    return median(x, n);
}

static ndrt_status put_times(ndrt_rank *r, const gathered *g)
{
    static const sched_op ops[] = {SCHED_F, SCHED_I, SCHED_W, SCHED_B,
                                   SCHED_SEND_F, SCHED_SEND_B};
    const sched *s = g->course->sched;
    double *came = times_of_receives(g);
    double *x = calloc((size_t)g->ranks * (size_t)s->micro + 1, sizeof *x);
    sched_text text = {0};

    sched_put(&text, "stage,F,I,W,B,ahead,back\n");
    for (int stage = 0; came && x && stage < s->stages; stage++) {
        sched_put(&text, "%d", stage);
        for (int k = 0; k < 6; k++)
            sched_put(&text, ",%.9g", time_of(g, came, stage, ops[k], x));
        sched_put(&text, "\n");
    }
    ndrt_status status =
        came && x ? put_file(r, r->state->config->times_path, &text)
                  : ndrt_fail(r, NDRT_EINTERNAL, "out of memory for the times");
    free(text.s);
    free(came);
    free(x);
    return status;
}

ndrt_status ndrt_trace_write(ndrt_rank *r)
{
    const ndrt_config *c = r->state->config;
    int n = r->state->comm->size;

    if (!r->state->trace)
        return NDRT_OK;
    if (r->rank != 0)
        return send_mine(r);
    gathered g = {r, r->state->course, n, calloc((size_t)n, sizeof *g.of)};
    ndrt_status s = g.of ? gather(r, &g)
                         : ndrt_fail(r, NDRT_EINTERNAL,
                                     "out of memory for the trace");
    if (s == NDRT_OK && c->trace_path)
        s = put_trace(r, &g);
    if (s == NDRT_OK && c->times_path)
        s = put_times(r, &g);
    for (int q = 0; g.of && q < n; q++)
        free(g.of[q]);
    free(g.of);
    return s;
}
