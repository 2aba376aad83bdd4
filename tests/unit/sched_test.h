/* sched_test.h - shared by the tests of schedules. */
#ifndef SCHED_TEST_H
#define SCHED_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/schedule/sched.h"

static inline sched *made(const char *name, int p, int m)
{
    sched_ask ask = {.ranks = p, .micro = m};
    sched_error err;
    if (!sched_parse_name(name, &ask.kind, &ask.v))
        fail_msg("no schedule %s", name);
    sched *s = sched_make(&ask, &err);
    if (!s)
        fail_msg("%s, p = %d, m = %d: %s", name, p, m, err.text);
    return s;
}

static inline sched_times timed(sched *s, const sched_costs *costs)
{
    sched_times t;
    sched_error err;
    if (!sched_time(s, costs, &t, &err))
        fail_msg("%s, p = %d, m = %d: %s", s->name, s->ranks, s->micro,
                 err.text);
    return t;
}

static inline void unjoin(sched *s)
{
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++)
            s->row[r].v[i].joined = false;
}

/* n times x; free() it. */
static inline double *all(int n, double x)
{
    double *v = malloc((size_t)n * sizeof *v);
    for (int i = 0; i < n; i++)
        v[i] = x;
    return v;
}

static inline double span(const sched_times *t, int r)
{
    return t->rank[r].last - t->rank[r].first;
}

#endif
