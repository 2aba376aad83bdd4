/* stage_times.c - measured times in place of those of the cost model.
 *
 *   ndc model.nd --times times.csv      after   ./model --times times.csv
 *
 * The schedule is searched for, and drawn, with what the stages have taken on
 * the machine; what they keep is known without.
 */
#include "passes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool wrong(nd_module *m, const char *path, const char *what)
{
    nd_error(m->ctx, nd_nowhere, "--times %s: %s", path, what);
    return false;
}

static const double *kept(nd_module *m, const double *v)
{
    size_t n = (size_t)m->program->nstages;
    double *copy = ND_NEWN(m->ctx->arena, double, n);
    memcpy(copy, v, n * sizeof *copy);
    return copy;
}

bool nd_stage_times(nd_module *m, const char *path)
{
    enum { MOST = 1 << 24 };
    nd_program *p = m->program;
    nd_buf text = {.arena = m->ctx->arena};
    char part[4096];
    sched_measured t;
    sched_error e;
    FILE *f = fopen(path, "r");
    if (!f)
        return wrong(m, path, strerror(errno));
    for (size_t n; text.n < MOST && (n = fread(part, 1, sizeof part, f)) > 0;)
        nd_putn(&text, part, n);
    fclose(f);
    if (!sched_times_read(text.n ? text.s : "", text.n, &t, &e))
        return wrong(m, path, e.text);
    bool same = t.stages == p->nstages;
    if (same) {
        p->measured = true;
        p->costs.f = kept(m, t.costs.f);
        p->costs.i = kept(m, t.costs.i);
        p->costs.w = kept(m, t.costs.w);
        p->costs.ahead = kept(m, t.costs.ahead);
        p->costs.back = kept(m, t.costs.back);
    }
    free(t.v);
    if (!same && m->plan.schedule == SCHED_KIND_AUTO && !m->plan.searched)
        return wrong(m, path, nd_fmt(m->ctx->arena, "it is of %d stages; auto "
                                     "tries 1, 2 and 4 on each of %d devices, "
                                     "as far as there are layers, and auto(V) "
                                     "V", t.stages, p->ndevices));
    return same || wrong(m, path, nd_fmt(m->ctx->arena, "it is of %d stages; "
                                         "the program has %d", t.stages,
                                         p->nstages));
}
