/* remat_auto.c - recompute auto(bytes): the cheapest way to fit the memory.
 *
 * Two things are chosen. How much of a block backward computes again (none,
 * attention, block) is the same on all stages. On top of it a stage may keep
 * nothing but what it received, and run its forward pass again right before its
 * backward pass: then one microbatch's values are there, not those of all in
 * flight. Early stages of a pipeline have most in flight and gain most.
 *
 *   recompute auto(300000)      stage 0, 4 in flight   396 KB -> 287 KB, again
 *                               stage 3, 1 in flight   212 KB, kept
 *
 * Every choice is compiled to the end on a copy of the module, so bytes are
 * those of the program, not an estimate. Of what fits, that one is taken by
 * which the plan's schedule takes the least time. Forward run again is the same
 * code on the same operands, dropout included: results are the same to the bit.
 */
#include "passes.h"

#include <math.h>
#include <stdlib.h>

enum {
    NLEVELS = REMAT_AUTO,            /* none, attention, block */
    MOST_ASKED = 6                   /* stages of a device, of which every set
                                        is looked at */
};

/* How a module turns out at one level. */
typedef struct trial {
    bool ran, fits;
    nd_module *module;
    nd_program *program;
    size_t *bytes;                   /* of a rank, by device */
    const nd_stage_mem *stage;
    bool *again;                     /* the choice, and its seconds */
    double seconds;
} trial;

typedef struct choice {
    nd_module *m;
    nd_arena *a;
    trial level[NLEVELS];
} choice;

/* ---- one level ----------------------------------------------------------- */

static void try_level(choice *c, nd_remat level, const nd_options *o)
{
    trial *t = &c->level[level];
    nd_module *m = nd_module_copy(c->m);
    m->plan.recompute = level;
    if (!nd_run_quietly(m, o, "recompute"))
        return;
    nd_code *code = nd_code_new(m);
    const nd_program *p = t->program = m->program;
    t->module = m;
    t->ran = true;
    t->stage = code->mem.stage;
    t->bytes = ND_NEWN(c->a, size_t, p->ndevices);
    t->again = ND_NEWN(c->a, bool, p->nstages);
    for (int d = 0; d < p->ndevices; d++)
        t->bytes[d] = code->mem.device[d].arena_bytes;
}

/* ---- the choice ---------------------------------------------------------- */

/* The stages of a device, ascending. */
static int stages_on(const nd_program *p, int device, int *stage)
{
    int n = 0;
    for (int s = 0; s < p->nstages; s++)
        if (p->stage[s].device == device)
            stage[n++] = s;
    return n;
}

/* Which of a device's n stages run forward again, by number of the set: every
 * set there is, or, of many stages, the first ones, which have most in flight.
 */
static int sets_of(int n)
{
    return n <= MOST_ASKED ? 1 << n : n + 1;
}

static bool in_set(int n, int set, int i)
{
    return n <= MOST_ASKED ? set >> i & 1 : i < set;
}

/* What microbatches keep there when those of `set` run forward again. */
static double kept_with(choice *c, const trial *t, int device,
                        const int *stage, int n, int set)
{
    bool *again = ND_NEWN(c->a, bool, t->program->nstages);
    double fixed = 0;
    for (int i = 0; i < n; i++) {
        bool is = again[stage[i]] = in_set(n, set, i);
        fixed += (double)t->stage[stage[i]].kept[is][ROOM_FIXED];
    }
    return fixed + (double)nd_slots_bytes(t->module, t->stage, device, again);
}

/* Of the sets of stages by which the device fits, the one that costs least, and
 * of those that do not, the one with the fewest bytes, which are returned. */
static double choose(choice *c, trial *t, int device)
{
    const nd_program *p = t->program;
    double room = c->m->plan.room, best_bytes = 0, best_cost = 0;
    int *stage = ND_NEWN(c->a, int, p->nstages);
    int n = stages_on(p, device, stage);
    double others = (double)t->bytes[device] -
                    kept_with(c, t, device, stage, n, 0);
    int best = 0;
    for (int set = 0; set < sets_of(n); set++) {
        double bytes = others + kept_with(c, t, device, stage, n, set),
               cost = 0;
        for (int i = 0; i < n; i++)
            cost += in_set(n, set, i) ? p->costs.f[stage[i]] : 0;
        bool better = best_bytes <= room
                          ? bytes <= room && cost < best_cost
                          : bytes < best_bytes;
        if (set && !better)
            continue;
        best = set;
        best_bytes = bytes;
        best_cost = cost;
    }
    for (int i = 0; i < n; i++)
        t->again[stage[i]] = in_set(n, best, i);
    return best_bytes;
}

/* From start to end of the schedule. */
static double makespan(choice *c, const trial *t)
{
    const nd_program *p = t->program;
    double *back = ND_NEWN(c->a, double, p->nstages);
    sched_costs costs = p->costs;
    sched_times times;
    sched_error err;
    for (int s = 0; s < p->nstages; s++)
        back[s] = p->costs.i[s] + (t->again[s] ? p->costs.f[s] : 0);
    costs.i = back;
    if (!sched_time(p->sched, &costs, &times, &err))
        return INFINITY;
    free(times.rank);
    return times.makespan;
}

static void rate(choice *c, trial *t)
{
    t->fits = t->ran;
    for (int d = 0; t->ran && d < t->program->ndevices; d++)
        t->fits &= choose(c, t, d) <= c->m->plan.room;
    if (t->fits)
        t->seconds = makespan(c, t);
}

/* The bytes of the fullest device, at least. */
static double fullest(choice *c, trial *t)
{
    double most = 0;
    for (int d = 0; d < t->program->ndevices; d++)
        most = fmax(most, choose(c, t, d));
    return most;
}

/* The level that lacks least; NULL: none could be compiled. */
static trial *nearest(choice *c)
{
    trial *best = NULL;
    for (int l = 0; l < NLEVELS; l++) {
        trial *t = &c->level[l];
        if (t->ran && (!best || fullest(c, t) < fullest(c, best)))
            best = t;
    }
    return best;
}

/* Levels may have stages of their own: what is told is of each device. */
static bool refuse(choice *c)
{
    nd_ctx *x = c->m->ctx;
    const nd_plan *p = &c->m->plan;
    trial *near = nearest(c);
    nd_error(x, p->remat_loc, "no way to recompute fits a rank in %.0f bytes",
             p->room);
    for (int d = 0; near && d < near->program->ndevices; d++) {
        const nd_program *q = near->program;
        const char *who = q->ndevices == 1 ? "it"
                          : nd_fmt(c->a, "%s %d", q->nstages > q->ndevices
                                                      ? "device" : "stage", d);
        const trial *none = &c->level[REMAT_NONE];
        nd_note(x, nd_nowhere, "%s needs at least %.0f bytes, and %zu if it "
                "recomputes nothing", who, choose(c, near, d),
                none->ran ? none->bytes[d] : near->bytes[d]);
    }
    return false;
}

static void take(choice *c, nd_remat level)
{
    nd_plan *p = &c->m->plan;
    const trial *t = &c->level[level], *none = &c->level[REMAT_NONE];
    p->recompute = level;
    p->searched = t->module->plan.searched;
    p->per_device = t->module->plan.per_device;
    p->again = t->again;
    p->nagain = t->program->nstages;
    p->unspared = none->ran ? none->bytes : NULL;
}

bool nd_choose_recompute(nd_module *m, const nd_options *o)
{
    choice c = {.m = m, .a = m->ctx->arena};
    int best = -1;
    bool ran = false;
    for (int l = 0; l < NLEVELS; l++) {
        try_level(&c, (nd_remat)l, o);
        rate(&c, &c.level[l]);
        ran |= c.level[l].ran;
        if (c.level[l].fits &&
            (best < 0 || c.level[l].seconds < c.level[best].seconds))
            best = l;
    }
    if (!ran)
        m->plan.recompute = REMAT_NONE;
    else if (best < 0)
        return refuse(&c);
    else
        take(&c, (nd_remat)best);
    return true;
}
