/* trace.c - when each action ran: --trace writes the timeline of one step, as
 * `ndc` writes the one that it predicts; --times (times.c) writes how long the
 * actions of each stage took.
 *
 *   ./train --trace out.json --trace-step 5 --times times.csv
 *
 * Clocks are read around every action (messages.c), nowhere else, and only if
 * one of the two is asked for. Ranks meet before each step then, which is where
 * the clocks of the one that is traced are set to zero.
 */
#include "trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ndrt_trace {
    int n;                        /* actions in the list */
    int64_t first, step;          /* of the run; that is traced */
    double begin, zero;           /* of the current step; of that one */
    ndrt_stamp *stamps, *traced;
    double *took;                 /* TRACE_KEPT times n */
    double list[TRACE_KEPT];
    int64_t steps;                /* taken so far */
};

/* ---- taking times ------------------------------------------------------ */

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
    size_t n = (size_t)st->course->sched->row[r->device].n;
    if (t) {
        t->n = (int)n;
        t->first = st->start + 1;
        t->step = step_to_trace(r);
        t->stamps = calloc(n + 1, sizeof *t->stamps);
        t->traced = calloc(n + 1, sizeof *t->traced);
        t->took = calloc(n * TRACE_KEPT + 1, sizeof *t->took);
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
    ndrt_status s = NDRT_OK;

    if (!t)
        return NDRT_OK;
    st->stamps = t->stamps;
    if (st->world.n > 1)
        s = st->comm->ops->barrier(st->comm, &st->world);
    t->begin = ndrt_now();
    if (r->step == t->step)
        t->zero = t->begin;
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
    int64_t at = t->steps++ % TRACE_KEPT;
    t->list[at] = ndrt_now() - t->begin;
    for (int i = 0; i < t->n; i++)
        t->took[at * t->n + i] = t->stamps[i].end - t->stamps[i].start;
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

/* ---- what rank 0 gets --------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double trace_median(double *x, int n)
{
    if (n == 0)
        return 0.0;
    qsort(x, (size_t)n, sizeof *x, compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static int steps_kept(const ndrt_trace *t)
{
    return t->steps < TRACE_KEPT ? (int)t->steps : TRACE_KEPT;
}

static void fill(const ndrt_trace *t, trace_taken *out)
{
    double x[TRACE_KEPT];

    memcpy(out->list, t->list, sizeof out->list);
    for (int i = 0; i < t->n; i++) {
        for (int k = 0; k < steps_kept(t); k++)
            x[k] = t->took[k * t->n + i];
        out->line[i].stamp = (ndrt_stamp){t->traced[i].start - t->zero,
                                          t->traced[i].end - t->zero};
        out->line[i].took = trace_median(x, steps_kept(t));
    }
}

const sched_row *trace_row(const trace_gathered *g, int rank)
{
    return &g->course->sched->row[ndrt_device_of(g->r->program, rank)];
}

int trace_copy(const trace_gathered *g, int rank)
{
    const ndrt_program *p = g->r->program;
    int step = 1;

    if (p->pipe < 0)
        return rank;
    for (int a = p->pipe + 1; a < p->nmesh; a++)
        step *= p->mesh_size[a];
    return rank / (step * g->course->sched->ranks) * step + rank % step;
}

static size_t bytes_of(int actions)
{
    return sizeof(trace_taken) + (size_t)actions * sizeof(trace_line);
}

static ndrt_status no_memory(ndrt_rank *r)
{
    return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for the trace");
}

static ndrt_status gather(ndrt_rank *r, trace_gathered *g)
{
    ndrt_comm *c = r->state->comm;
    ndrt_status s = NDRT_OK;

    for (int q = 0; q < g->ranks && s == NDRT_OK; q++) {
        size_t bytes = bytes_of(trace_row(g, q)->n);
        g->of[q] = malloc(bytes);
        if (!g->of[q])
            return no_memory(r);
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
    trace_taken *mine = malloc(bytes_of(t->n));

    if (!mine)
        return no_memory(r);
    fill(t, mine);
    ndrt_status s = c->ops->send(c, 0, mine, bytes_of(t->n));
    free(mine);
    return ndrt_comm_check(r, s);
}

/* ---- the files ----------------------------------------------------------- */

ndrt_status trace_put_file(ndrt_rank *r, const char *path,
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

/* Times of the step that is traced, on the ranks of one copy. */
static void set_times(const trace_gathered *g, int copy, sched *ran)
{
    for (int q = 0; q < g->ranks; q++) {
        int row = ndrt_device_of(g->r->program, q);
        for (int i = 0; i < ran->row[row].n && trace_copy(g, q) == copy; i++) {
            ran->row[row].v[i].start = g->of[q]->line[i].stamp.start;
            ran->row[row].v[i].end = g->of[q]->line[i].stamp.end;
        }
    }
}

static ndrt_status put_trace(ndrt_rank *r, const trace_gathered *g)
{
    sched_costs costs = {.cross = g->course->cross};
    sched *ran = sched_copy(g->course->sched);
    sched_text text = {0};

    if (!ran)
        return no_memory(r);
    sched_trace_begin(&text);
    for (int copy = 0; copy < g->ranks / ran->ranks; copy++) {
        set_times(g, copy, ran);
        sched_trace_copy(ran, &costs, 1.0, copy, &text);
    }
    sched_trace_end(&text);
    sched_free(ran);
    ndrt_status s = trace_put_file(r, r->state->config->trace_path, &text);
    free(text.s);
    return s;
}

ndrt_status ndrt_trace_write(ndrt_rank *r)
{
    const ndrt_config *c = r->state->config;
    int n = r->state->comm->size;

    if (!r->state->trace)
        return NDRT_OK;
    if (r->rank != 0)
        return send_mine(r);
    trace_gathered g = {r, r->state->course, n, steps_kept(r->state->trace),
                        calloc((size_t)n, sizeof *g.of)};
    ndrt_status s = g.of ? gather(r, &g) : no_memory(r);
    if (s == NDRT_OK && c->trace_path)
        s = put_trace(r, &g);
    if (s == NDRT_OK && c->times_path)
        s = trace_put_times(r, &g);
    for (int q = 0; g.of && q < n; q++)
        free(g.of[q]);
    free(g.of);
    return s;
}
