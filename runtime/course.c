/* course.c - the schedule that a run follows, and what goes with it: the
 * program's own one, or what --schedule and --microbatches ask for.
 *
 *   ./train --schedule zb_h1 --microbatches 16
 *   ./train --schedule mine.csv
 *
 * It is made once for all ranks, before anything else is, and never changes.
 */
#include "ndrt_internal.h"

#include <stdlib.h>

/* The rows that the compiler wrote. */
static sched *own_schedule(const ndrt_program *p)
{
    sched *s = sched_new("", p->nstages, p->nstages, p->nmicro, SCHED_LOOP);

    for (int d = 0; s && d < p->nstages; d++) {
        const ndrt_stage *stage = &p->stages[d];
        for (int i = 0; i < stage->nactions; i++)
            sched_push(s, d, (sched_op)stage->actions[i].kind, d,
                       stage->actions[i].mb);
    }
    if (s)
        s->lowered = true;
    return s;
}

static bool set_slots(ndrt_course *c)
{
    c->slots = calloc((size_t)c->sched->stages, sizeof *c->slots);
    for (int s = 0; c->slots && s < c->sched->stages; s++)
        for (int i = 0; i < SCHED_NSPANS; i++)
            c->slots[s][i] = c->program.stages[s].slots;
    return c->slots;
}

static bool set_needs(ndrt_course *c)
{
    const sched *s = c->sched;
    bool ok = (c->needs = calloc((size_t)s->ranks, sizeof *c->needs));

    for (int d = 0; ok && d < s->ranks; d++) {
        c->needs[d] = calloc((size_t)s->row[d].n + 1, sizeof **c->needs);
        ok = c->needs[d] && ndrt_order(s, d, (const int (*)[SCHED_NSPANS])
                                       c->slots, c->needs[d]);
    }
    return ok;
}

ndrt_status ndrt_course_open(ndrt_course *c, const ndrt_program *p,
                             const ndrt_config *config, FILE *err)
{
    (void)config;
    *c = (ndrt_course){.program = *p};
    c->sched = own_schedule(p);
    if (!c->sched || !set_slots(c) || !set_needs(c)) {
        if (err)
            fprintf(err, "%s: error: out of memory for the schedule\n",
                    p->name);
        return NDRT_EINTERNAL;
    }
    return NDRT_OK;
}

void ndrt_course_close(ndrt_course *c)
{
    for (int d = 0; c->needs && d < c->sched->ranks; d++)
        free(c->needs[d]);
    free(c->needs);
    free(c->slots);
    sched_free(c->sched);
}
