/* cut.c - the units of every stage.
 *
 *   pipeline layers -> pp                      the partition with least time
 *   pipeline layers -> pp, stages = [1, 2, 4]  so many iterations each
 *
 * Stages begin with iterations and around repeats. Inside other ops one begins
 * if that makes the heaviest device 3% lighter, or if nothing else will do.
 * What stands between two repeats goes where it balances, also when the
 * iterations are given.
 */
#include "pipeline.h"

#include <stdlib.h>

static const double gain = 0.97;

typedef struct asking {
    part_ask q;
    double *seconds;
    bool *opens;
    int *device, *flight, *least, *most;
} asking;

/* Microbatches that each stage holds at once, by the schedule; of one that is
 * not known yet, by 1f1b. */
static void count_flights(const pipe *pp, int *flight)
{
    const nd_plan *p = &pp->m->plan;
    sched_ask ask = {.kind = p->schedule, .ranks = pp->devices,
                     .v = p->per_device, .micro = p->microbatches};
    sched_error err;
    sched *x = p->schedule < SCHED_NKINDS && pp->p > 1 ? sched_make(&ask, &err)
                                                       : NULL;
    const sched *file = pp->m->program->sched;
    for (int s = 0; s < pp->p; s++) {
        int ahead = pp->p - s;
        flight[s] = file && file->stages == pp->p
                        ? sched_slots(file, s, SCHED_UNTIL_W)
                    : x ? sched_slots(x, s, SCHED_UNTIL_W)
                    : ahead < p->microbatches ? ahead : p->microbatches;
    }
    if (x)
        sched_free(x);
}

/* The unit of iteration i of all repeats, one after another. */
static int unit_of(const pipe *pp, int i)
{
    for (int k = 0; k < pp->repeats.n; k++) {
        const pipe_repeat *r = &pp->repeats.v[k];
        if (i < r->n)
            return r->base + i;
        i -= r->n;
    }
    return pp->n;
}

/* Where stages may begin that have so many iterations. */
static void set_windows(const pipe *pp, asking *x)
{
    int done = 0;
    for (int s = 0; s < pp->p; s++) {
        x->least[s] = done ? unit_of(pp, done - 1) + 1 : s > 0;
        x->most[s] = unit_of(pp, done);
        done += pp->m->plan.stages_given[s];
    }
    x->q.least = x->least;
    x->q.most = x->most;
}

/* Of a device. `auto` tries stages that are as equal as can be, too, for it can
 * have fewer microbatches in flight instead. */
static double room_of(const nd_plan *p)
{
    bool tight = p->schedule != SCHED_KIND_AUTO ||
                 (p->searched && p->searched->tight);
    return tight ? p->memory : 0;
}

static asking ask(const pipe *pp)
{
    asking x = {.seconds = ND_NEWN(pp->a, double, pp->n),
                .opens = ND_NEWN(pp->a, bool, pp->n),
                .device = ND_NEWN(pp->a, int, pp->p),
                .flight = ND_NEWN(pp->a, int, pp->p),
                .least = ND_NEWN(pp->a, int, pp->p),
                .most = ND_NEWN(pp->a, int, pp->p)};
    x.q = (part_ask){.n = pp->n, .seconds = x.seconds, .opens = x.opens,
                     .nshares = pp->shares.n, .share = pp->shares.v,
                     .stages = pp->p, .devices = pp->devices,
                     .device = x.device, .flight = x.flight,
                     .room = room_of(&pp->m->plan)};
    for (int u = 0; u < pp->n; u++)
        x.seconds[u] = pp->unit[u].seconds;
    for (int s = 0; s < pp->p; s++)
        x.device[s] = pp->m->program->stage[s].device;
    count_flights(pp, x.flight);
    if (pp->m->plan.nstages_given)
        set_windows(pp, &x);
    return x;
}

static void allow(const pipe *pp, asking *x, bool inner)
{
    for (int u = 0; u < pp->n; u++)
        x->opens[u] = pp->unit[u].opens && (inner || !pp->unit[u].inner);
}

/* The better of two ways; r: what is chosen. */
static bool choose(const pipe *pp, asking *x, part_result *r)
{
    part_result inner = {0}, outer = {0};
    allow(pp, x, false);
    bool any = part_cut(&x->q, &outer);
    allow(pp, x, true);
    bool some = (!any || !outer.fits || !x->q.least) &&
                part_cut(&x->q, &inner);
    bool better = some && (!any || (inner.fits && !outer.fits) ||
                           (inner.fits == outer.fits &&
                            inner.heaviest < gain * outer.heaviest));
    *r = better ? inner : outer;
    free(better ? outer.stage : inner.stage);
    return any || some;
}

/* What is searched for later may have fewer microbatches in flight, at least
 * one. */
static bool has_fewer(const pipe *pp, asking *x)
{
    bool any = false;
    if (pp->m->plan.schedule != SCHED_KIND_AUTO)
        return false;
    for (int s = 0; s < pp->p; s++) {
        any |= x->flight[s] > 1;
        x->flight[s] = (x->flight[s] + 1) / 2;
    }
    return any;
}

/* ---- what cannot be ------------------------------------------------------ */

static int places_to_cut(const pipe *pp)
{
    int n = 0;
    for (int u = 1; u < pp->n; u++)
        n += pp->unit[u].opens;
    return n;
}

static void refuse(const pipe *pp)
{
    const nd_plan *p = &pp->m->plan;
    int n = places_to_cut(pp);
    if (n + 1 < pp->p)
        nd_error(pp->m->ctx, p->pipe_loc, "%d pipeline stages of a program "
                 "that can be cut at %d place%s: a stage would be empty",
                 pp->p, n, n == 1 ? "" : "s");
    else
        nd_error(pp->m->ctx, p->pipe_loc, "stages of so many iterations: one "
                 "without any would be empty");
}

static void refuse_memory(const pipe *pp, const asking *x,
                          const part_result *r)
{
    const nd_module *m = pp->m;
    int worst = 0;
    double most = 0;
    for (int s = 0; s < pp->p; s++) {
        const part_stage *st = &r->stage[s];
        double bytes = st->fixed + st->held * x->flight[s];
        worst = bytes > most ? s : worst;
        most = bytes > most ? bytes : most;
    }
    nd_error(m->ctx, m->plan.pipe_loc, "%d stages need %.0f bytes on a device "
             "at least, more than its %.0f", pp->p, r->bytes,
             m->plan.memory);
    nd_note(m->ctx, m->plan.pipe_loc, "stage %d: %.0f bytes of weights, "
            "gradients and optimizer state, and %.0f of activations for each "
            "of %d microbatches", worst, r->stage[worst].fixed,
            r->stage[worst].held, x->flight[worst]);
}

/* ---- the answer ---------------------------------------------------------- */

static void set_stages(pipe *pp, const part_result *r)
{
    for (int s = 0; s < pp->p; s++)
        for (int u = r->stage[s].begin; u < r->stage[s].end; u++)
            pp->stage_of[u] = s;
}

static int clamp(int x, int n)
{
    return x < 0 ? 0 : x > n ? n : x;
}

static void set_iterations(pipe *pp, const part_result *r)
{
    const nd_module *m = pp->m;
    for (int k = 0; k < pp->repeats.n; k++) {
        const pipe_repeat *x = &pp->repeats.v[k];
        int axis = 0;
        while (m->plan.piped.v[axis] != x->fwd->axes[0])
            axis++;
        for (int s = 0; s < pp->p; s++) {
            nd_iters *it = &m->program->stage[s].iters[axis];
            it->lo = clamp(r->stage[s].begin - x->base, x->n);
            it->hi = clamp(r->stage[s].end - x->base, x->n);
        }
    }
}

bool pipe_cut(pipe *pp)
{
    part_result r = {0};
    asking x = ask(pp);
    bool ok = choose(pp, &x, &r);
    while (ok && !r.fits && has_fewer(pp, &x)) {
        free(r.stage);
        ok = choose(pp, &x, &r);
    }
    if (!ok)
        refuse(pp);
    else if (!r.fits)
        refuse_memory(pp, &x, &r);
    ok = ok && r.fits;
    pp->stage_of = ND_NEWN(pp->a, int, pp->n);
    if (ok) {
        set_stages(pp, &r);
        set_iterations(pp, &r);
    }
    free(r.stage);
    return ok;
}
