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
 * which m microbatches are soonest through: (m - 1) * slowest stage + the sum
 * of all. Forward run again is the same code on the same operands, dropout
 * included: results are the same to the bit.
 */
#include "passes.h"

enum { NLEVELS = REMAT_AUTO };       /* none, attention, block */

typedef struct stage_trial {
    size_t keeps, again;             /* bytes of a rank of its device */
    double forward, backward;        /* work of a microbatch */
} stage_trial;

typedef struct trial {
    bool ran, fits;
    stage_trial *stage;
    double cost;
} trial;

typedef struct choice {
    nd_module *m;
    nd_arena *a;
    int nstages;
    trial level[NLEVELS];
} choice;

/* ---- one level ----------------------------------------------------------- */

static double work_of(const nd_module *m, int stage, nd_op *const *op, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double work = nd_op_flops(op[i], &m->mesh);
        int64_t lo, hi;
        if (op[i]->kind == OP_REPEAT &&
            nd_stage_range(m, stage, op[i]->axes[0], &lo, &hi))
            work *= (double)(hi - lo) / (double)op[i]->axes[0]->size;
        sum += work;
    }
    return sum;
}

static void ignore(void *user, nd_severity sev, const char *text)
{
    (void)user;
    (void)sev;
    (void)text;
}

/* What is wrong with the program itself is told when it is compiled. */
static bool run_quietly(nd_module *m, const nd_options *o)
{
    nd_ctx *x = m->ctx, was = *x;
    nd_options plain = {.verify_each = o && o->verify_each};
    x->sink = ignore;
    bool ok = nd_run_from(m, &plain, "recompute");
    x->sink = was.sink;
    x->nerrors = was.nerrors;
    x->nwarnings = was.nwarnings;
    x->muted = was.muted;
    x->note_file = was.note_file;
    return ok;
}

/* All stages of a device run forward again, or none. */
static size_t spare_of(const nd_code *c, int device)
{
    const nd_program *p = c->m->program;
    size_t bytes = 0;
    for (int s = 0; s < p->nstages; s++)
        if (p->stage[s].device == device)
            bytes += c->mem.stage[s].spare_bytes;
    return bytes;
}

static void try_level(choice *c, nd_remat level, const nd_options *o)
{
    nd_module *m = nd_module_copy(c->m);
    m->plan.recompute = level;
    if (!run_quietly(m, o))
        return;
    trial *t = &c->level[level];
    nd_code *code = nd_code_new(m);
    const nd_program *p = m->program;
    t->ran = true;
    c->nstages = p->nstages;
    t->stage = ND_NEWN(c->a, stage_trial, p->nstages);
    for (int s = 0; s < p->nstages; s++) {
        const nd_stage *st = &p->stage[s];
        size_t keeps = code->mem.device[st->device].arena_bytes;
        t->stage[s] = (stage_trial){
            keeps, keeps - spare_of(code, st->device),
            work_of(m, s, st->fwd.v, st->fwd.n),
            work_of(m, s, st->bwd.v, st->bwd.n)};
    }
}

/* ---- the choice ---------------------------------------------------------- */

static bool runs_again(const stage_trial *s, double room)
{
    return (double)s->keeps > room;
}

static void rate(choice *c, trial *t, double room)
{
    double sum = 0, most = 0;
    t->fits = t->ran;
    for (int s = 0; t->ran && s < c->nstages; s++) {
        const stage_trial *x = &t->stage[s];
        bool again = runs_again(x, room);
        double work = x->forward + x->backward + (again ? x->forward : 0);
        t->fits &= (double)x->again <= room;
        sum += work;
        most = work > most ? work : most;
    }
    t->cost = (c->m->plan.microbatches - 1) * most + sum;
}

static bool refuse(choice *c)
{
    nd_ctx *x = c->m->ctx;
    nd_plan *p = &c->m->plan;
    nd_error(x, p->remat_loc, "no way to recompute fits a rank in %.0f bytes",
             p->room);
    for (int s = 0; s < c->nstages; s++) {
        size_t least = SIZE_MAX, keeps = 0;
        for (int l = 0; l < NLEVELS; l++) {
            const trial *t = &c->level[l];
            if (t->ran && t->stage[s].again < least)
                least = t->stage[s].again;
            if (t->ran && l == REMAT_NONE)
                keeps = t->stage[s].keeps;
        }
        const char *who = c->nstages > 1 ? nd_fmt(c->a, "stage %d", s) : "it";
        nd_note(x, nd_nowhere, "%s needs at least %zu bytes, and %zu if it "
                "recomputes nothing", who, least, keeps);
    }
    return false;
}

static void take(choice *c, nd_remat level)
{
    nd_plan *p = &c->m->plan;
    const trial *t = &c->level[level], *none = &c->level[REMAT_NONE];
    p->recompute = level;
    p->again = ND_NEWN(c->a, bool, c->nstages);
    p->unspared = ND_NEWN(c->a, size_t, c->nstages);
    p->nagain = c->nstages;
    for (int s = 0; s < c->nstages; s++) {
        p->again[s] = runs_again(&t->stage[s], p->room);
        p->unspared[s] = none->ran ? none->stage[s].keeps : 0;
    }
}

bool nd_choose_recompute(nd_module *m, const nd_options *o)
{
    choice c = {.m = m, .a = m->ctx->arena};
    int best = -1;
    bool ran = false;
    for (int l = 0; l < NLEVELS; l++) {
        try_level(&c, (nd_remat)l, o);
        rate(&c, &c.level[l], m->plan.room);
        ran |= c.level[l].ran;
        if (c.level[l].fits &&
            (best < 0 || c.level[l].cost < c.level[best].cost))
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
