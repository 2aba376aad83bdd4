/* course.c - the schedule that a run follows, and the slots that it takes. Made
 * once for all ranks, before anything else is; it never changes.
 */
#include "ndrt_internal.h"

#include <stdlib.h>

/* The rows that the compiler wrote. */
static sched *own_schedule(const ndrt_program *p, sched_error *err)
{
    sched_text rows = {0};

    for (int d = 0; d < p->ndevices; d++)
        sched_put(&rows, "%s\n", p->schedule[d]);
    sched *s = sched_read(rows.s, rows.n, p->schedule_name, err);
    free(rows.s);
    if (s && (s->stages != p->nstages || s->ranks != p->ndevices)) {
        sched_fail(err, -1, 0, "%d stages on %d devices, not %d on %d",
                   s->stages, s->ranks, p->nstages, p->ndevices);
        sched_free(s);
        s = NULL;
    }
    return s;
}

ndrt_status ndrt_course_open(ndrt_course *c, const ndrt_program *p, FILE *err)
{
    sched_error why = {.text = "out of memory"};

    *c = (ndrt_course){.program = *p};
    c->sched = own_schedule(p, &why);
    if (c->sched)
        c->slots = calloc((size_t)p->nstages, sizeof *c->slots);
    if (!c->slots) {
        if (err)
            fprintf(err, "%s: error: the schedule: %s\n", p->name, why.text);
        ndrt_course_close(c);
        return NDRT_EINTERNAL;
    }
    c->program.nmicro = c->sched->micro;
    for (int s = 0; s < p->nstages; s++)
        for (int k = 0; k < SCHED_NSPANS; k++)
            c->slots[s][k] = sched_slots(c->sched, s, (sched_span)k);
    return NDRT_OK;
}

void ndrt_course_close(ndrt_course *c)
{
    free(c->slots);
    sched_free(c->sched);
    c->slots = NULL;
    c->sched = NULL;
}
