/* report_auto.c - what `schedule = auto` has found, and what else there was.
 *
 *   schedule auto, at most 60,000 bytes per rank: zb_h1
 *     1 stage on a device, backward in two halves
 *     zb_h1         1.2 ms a step       58,240 bytes  chosen
 *     gpipe         1.3 ms a step       91,008 bytes  too many
 */
#include "codegen.h"

#include <string.h>

const char *cg_schedule_name(const nd_module *m)
{
    const char *found = m->program->sched->name;
    return !m->plan.searched       ? nd_schedule_name(m->ctx->arena, &m->plan)
           : strcmp(found, "auto") ? nd_fmt(m->ctx->arena, "auto: %s", found)
                                   : "auto";
}

static const char *bytes_text(const nd_module *m, double bytes)
{
    return cg_commas(m->ctx->arena, (int64_t)bytes);
}

/* A row for each candidate; seconds are those of the cost model. */
void cg_put_searched(const nd_module *m, const char *before, nd_buf *b)
{
    const nd_searched *x = m->plan.searched;
    if (!x)
        return;
    nd_putf(b, "%sschedule auto", before);
    if (x->limit > 0)
        nd_putf(b, ", at most %s bytes per rank", bytes_text(m, x->limit));
    nd_putf(b, ": %s\n%s  %d stage%s on a device%s, backward in %s\n",
            m->program->sched->name, before, x->v, x->v == 1 ? "" : "s",
            x->where == SCHED_VEE ? " in a vee" : "",
            x->whole ? "one" : "two halves");
    if (x->measured)
        nd_putf(b, "%s  times of %d stages are given: no other number was "
                "tried\n", before, m->program->nstages);
    for (int i = 0; i < x->n; i++)
        nd_putf(b, "%s  %-17s %10s a step  %15s bytes%s\n", before,
                x->row[i].name, cg_seconds(m->ctx->arena, x->row[i].seconds),
                bytes_text(m, x->row[i].bytes),
                x->row[i].chosen ? "  chosen"
                : x->row[i].fits ? "" : "  too many");
}
