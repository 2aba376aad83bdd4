/* trace.c - a timed schedule for the trace viewers of Chrome and Perfetto: JSON
 * of events.
 *
 *   {"name":"2F3","cat":"F","ph":"X","pid":2,"tid":0,"ts":9.000,"dur":3.000,..}
 *
 * A device is a process (pid) with two lanes (tid): 0 computes, 1 carries
 * messages. Arrows lead from what is made to who reads it on another device,
 * and a counter shows what the device keeps. Times are microseconds. Copies of
 * a schedule that ran beside each other are devices of other numbers.
 */
#include "sched.h"

#include <stdlib.h>

typedef struct tracer {
    const sched *s;
    const sched_costs *costs;
    double us;                   /* microseconds in a unit of time */
    sched_text *out;
    const sched_action **made[2];    /* F; B or I; by stage and microbatch */
    int copy;
    int64_t arrows;
} tracer;

static int pid_of(const tracer *t, int rank)
{
    return t->copy * t->s->ranks + rank;
}

static void put_lanes(tracer *t, int rank)
{
    static const char *const lane[] = {"compute", "messages"};
    int pid = pid_of(t, rank);
    sched_put(t->out, "%s\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,"
              "\"args\":{\"name\":\"device %d", pid ? "," : "", pid, rank);
    if (t->copy)
        sched_put(t->out, ", copy %d", t->copy);
    sched_put(t->out, "\"}}");
    for (int k = 0; k < 2; k++)
        sched_put(t->out, ",\n{\"name\":\"thread_name\",\"ph\":\"M\","
                  "\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", pid, k,
                  lane[k]);
}

static void put_event(tracer *t, int rank, const sched_action *a)
{
    char name[SCHED_NAME];
    sched_put(t->out, ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\","
              "\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":"
              "{\"stage\":%d,\"microbatch\":%d}}", sched_name(*a, name),
              sched_op_name[a->op], pid_of(t, rank), !sched_is_compute(a->op),
              a->start * t->us, (a->end - a->start) * t->us, a->stage, a->mb);
}

static const sched_action **made_by(const tracer *t, int back, int stage,
                                    int mb)
{
    return &t->made[back][(size_t)stage * (size_t)t->s->micro + (size_t)mb];
}

/* An arrow begins within what makes it: at its very end, viewers would not
 * find the event. */
static void put_arrow(tracer *t, int rank, const sched_action *a)
{
    int back = a->op != SCHED_F;
    int from = sched_source(t->s, t->costs ? t->costs->cross : NULL, *a);
    if (from < 0 || t->s->rank_of[from] == rank)
        return;
    const sched_action *maker = *made_by(t, back, from, a->mb);
    if (!maker)
        return;
    double begin = maker->start + 0.99 * (maker->end - maker->start);
    const char *name = back ? "gradient" : "activation";
    sched_put(t->out, ",\n{\"name\":\"%s\",\"cat\":\"message\",\"ph\":\"s\","
              "\"id\":%lld,\"pid\":%d,\"tid\":0,\"ts\":%.3f}", name,
              (long long)t->arrows, pid_of(t, t->s->rank_of[from]),
              begin * t->us);
    sched_put(t->out, ",\n{\"name\":\"%s\",\"cat\":\"message\",\"ph\":\"f\","
              "\"bp\":\"e\",\"id\":%lld,\"pid\":%d,\"tid\":0,\"ts\":%.3f}",
              name, (long long)t->arrows++, pid_of(t, rank), a->start * t->us);
}

static void put_level(tracer *t, int rank, double time, double kept)
{
    sched_put(t->out, ",\n{\"name\":\"kept\",\"ph\":\"C\",\"pid\":%d,"
              "\"ts\":%.3f,\"args\":{\"bytes\":%.0f}}", pid_of(t, rank),
              time * t->us, kept);
}

static void put_rank(tracer *t, int rank)
{
    const sched_row *row = &t->s->row[rank];
    double kept = 0;
    for (int i = 0; i < row->n; i++) {
        const sched_action *a = &row->v[i];
        double more = sched_keeps(t->costs, a), less = sched_frees(t->costs, a);
        put_event(t, rank, a);
        put_arrow(t, rank, a);
        if (more != 0)
            put_level(t, rank, a->start, kept += more);
        if (less != 0)
            put_level(t, rank, a->end, kept -= less);
    }
}

void sched_trace_copy(const sched *s, const sched_costs *costs, double seconds,
                      int copy, sched_text *out)
{
    size_t cells = (size_t)s->stages * (size_t)s->micro + 1;
    tracer t = {.s = s, .costs = costs, .out = out, .copy = copy,
                .arrows = (int64_t)(2 * cells) * copy,
                .us = seconds > 0 ? 1e6 * seconds : 1e3,
                .made = {calloc(cells, sizeof **t.made),
                         calloc(cells, sizeof **t.made)}};
    for (int r = 0; t.made[0] && t.made[1] && r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++) {
            const sched_action *a = &s->row[r].v[i];
            if (a->op == SCHED_F || sched_is_back(a->op))
                *made_by(&t, a->op != SCHED_F, a->stage, a->mb) = a;
        }
    for (int r = 0; r < s->ranks; r++)
        put_lanes(&t, r);
    for (int r = 0; t.made[0] && t.made[1] && r < s->ranks; r++)
        put_rank(&t, r);
    free(t.made[0]);
    free(t.made[1]);
}

void sched_trace_begin(sched_text *out)
{
    sched_put(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
}

void sched_trace_end(sched_text *out)
{
    sched_put(out, "\n]}\n");
}

void sched_trace(const sched *s, const sched_costs *costs, double seconds,
                 sched_text *out)
{
    sched_trace_begin(out);
    sched_trace_copy(s, costs, seconds, 0, out);
    sched_trace_end(out);
}
