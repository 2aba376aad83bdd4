/* schedule.c - what each device does, in which order: the plan's schedule by
 * name or from a file, with its messages, proved; and the slots that its stages
 * need.
 *
 *   gpipe  0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
 *   1f1b   0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3
 *
 * The schedule itself is the work of runtime/schedule; here it meets a program:
 * which boundaries values cross, and what its actions cost.
 */
#include "passes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool tell(nd_module *m, const sched *s, const sched_error *e)
{
    return nd_schedule_error(m->ctx, m->plan.schedule_loc, "schedule", s, e);
}

/* ---- the plan's schedule ------------------------------------------------- */

/* As the plan says it; beside the file in which it says so. */
static const char *path_of(const nd_module *m)
{
    const nd_ctx *c = m->ctx;
    const char *path = m->plan.schedule_file;
    int file = m->plan.schedule_loc.file;
    if (*path == '/' || file < 1 || file > c->files.n)
        return path;
    const char *from = c->files.v[file - 1].name;
    const char *slash = strrchr(from, '/');
    return slash ? nd_fmt(c->arena, "%.*s%s", (int)(slash + 1 - from), from,
                          path) : path;
}

static sched *read_schedule(nd_module *m, sched_error *e)
{
    enum { MOST = 1 << 26 };
    const char *path = path_of(m);
    nd_buf text = {.arena = m->ctx->arena};
    char part[4096];
    FILE *f = fopen(path, "r");
    if (!f) {
        sched_fail(e, -1, 0, "cannot read it: %s", strerror(errno));
        return NULL;
    }
    for (size_t n; text.n < MOST && (n = fread(part, 1, sizeof part, f)) > 0;)
        nd_putn(&text, part, n);
    int failed = ferror(f) ? errno : 0;
    fclose(f);
    if (failed) {
        sched_fail(e, -1, 0, "cannot read it: %s", strerror(failed));
        return NULL;
    }
    return sched_read(text.n ? text.s : "", text.n, m->plan.schedule_file, e);
}

sched *nd_schedule_new(nd_module *m, int devices)
{
    sched_error e = {.rank = -1};
    sched_ask ask = {.kind = m->plan.schedule, .ranks = devices,
                     .v = m->plan.per_device, .micro = m->plan.microbatches,
                     .sync = m->train.clip > 0};
    const nd_searched *x = m->plan.searched;
    if (m->program)
        ask.costs = &m->program->costs;
    if (x) {                         /* a trial wants no more than any */
        ask.where = x->where;
        ask.whole = x->whole;
        ask.quick = true;
    }
    /* Without a pipeline, holding more than one microbatch gains nothing. */
    if (devices == 1 && (!m->program || m->program->nstages == 1) &&
        !nd_is_stashed(m)) {
        ask.kind = SCHED_KIND_1F1B;
        ask.v = 1;
    }
    bool file = ask.kind == SCHED_KIND_FILE;
    sched *s = file              ? read_schedule(m, &e)
               : x && x->sched   ? sched_copy(x->sched)
                                 : sched_make(&ask, &e);
    if (!s)
        nd_schedule_error(m->ctx, m->plan.schedule_loc,
                          file ? m->plan.schedule_file : "schedule", NULL, &e);
    else
        nd_ctx_keep(m->ctx, (void (*)(void *))sched_free, s);
    return s;
}

/* A schedule from a file is for some numbers of devices, stages, microbatches,
 * and puts each stage on a device. */
static bool fits(nd_module *m, const sched *s)
{
    const nd_program *p = m->program;
    sched_error e;
    bool same = s->ranks == p->ndevices && s->stages == p->nstages;
    if (same && s->micro != p->nmicro) {
        sched_fail(&e, -1, 0, "%s is for %d microbatch%s, the program has %d: "
                   "write microbatches = %d", s->name, s->micro,
                   s->micro == 1 ? "" : "es", p->nmicro, s->micro);
        return tell(m, NULL, &e);
    }
    if (!same) {
        sched_fail(&e, -1, 0, "%s is for %d devices, %d stages and %d "
                   "microbatches; the program has %d, %d and %d", s->name,
                   s->ranks, s->stages, s->micro, p->ndevices, p->nstages,
                   p->nmicro);
        return tell(m, NULL, &e);
    }
    for (int i = 0; i < s->stages; i++)
        if (s->rank_of[i] != p->stage[i].device) {
            sched_fail(&e, -1, 0, "%s has stage %d on device %d, the program "
                       "on device %d", s->name, i, s->rank_of[i],
                       p->stage[i].device);
            return tell(m, NULL, &e);
        }
    return true;
}

/* ---- proofs -------------------------------------------------------------- */

/* What crosses after each stage. */
static uint8_t *crossings(const nd_module *m)
{
    const nd_program *p = m->program;
    uint8_t *cross = ND_NEWN(m->ctx->arena, uint8_t, p->nstages);
    for (int s = 0; s + 1 < p->nstages; s++)
        cross[s] = (p->stage[s].send_fwd.n > 0 ? SCHED_AHEAD : 0) |
                   (p->stage[s + 1].send_bwd.n > 0 ? SCHED_BACK : 0);
    return cross;
}

bool nd_schedule_check(nd_module *m)
{
    sched_error e;
    return sched_check(m->program->sched, crossings(m), &e) ||
           tell(m, m->program->sched, &e);
}

bool nd_slots_check(nd_module *m)
{
    const nd_program *p = m->program;
    sched_error e;
    for (int s = 0; s < p->nstages; s++)
        for (int k = 0; k < SCHED_NSPANS; k++)
            if (!sched_check_slots(p->sched, s, (sched_span)k,
                                   p->stage[s].slots[k], &e))
                return tell(m, p->sched, &e);
    return true;
}

/* ---- what it looks like -------------------------------------------------- */

/* Every F, I and W takes a slot, messages none: the picture of the textbooks.
 * A model's own seconds are for pictures to scale. */
static sched_costs slots_of(const nd_module *m)
{
    return (sched_costs){.cross = m->program->costs.cross};
}

static bool times_of(const nd_module *m, const sched_costs *c, sched_times *t)
{
    sched_error e;
    return sched_time(m->program->sched, c, t, &e);
}

double nd_schedule_bubble(const nd_module *m)
{
    sched_costs slots = slots_of(m);
    sched_times t;
    if (!times_of(m, &slots, &t))
        return 0;
    free(t.rank);
    return t.bubble_total;
}

double nd_schedule_seconds(const nd_module *m)
{
    sched_times t;
    if (!times_of(m, &m->program->costs, &t))
        return 0;
    free(t.rank);
    return t.makespan;
}

/* The model's seconds, and the bytes that a microbatch keeps on each stage. */
static sched_costs bytes_of(nd_module *m)
{
    const nd_program *p = m->program;
    const nd_stage_mem *mem = nd_code_new(m)->mem.stage;
    double *kept = ND_NEWN(m->ctx->arena, double, SCHED_NSPANS * p->nstages);
    for (int s = 0; s < p->nstages; s++) {
        const size_t *room = mem[s].kept[nd_runs_again(&m->plan, s)];
        for (int k = 0; k < SCHED_NSPANS; k++)
            kept[k * p->nstages + s] = (double)room[ROOM_UNTIL_I + k];
    }
    sched_costs c = p->costs;
    c.until_i = kept;
    c.until_w = kept + p->nstages;
    c.i_to_w = kept + 2 * p->nstages;
    return c;
}

void nd_schedule_show(nd_buf *b, nd_module *m, nd_schedule_form form)
{
    bool to_scale = form == ND_SCHEDULE_SVG || form == ND_SCHEDULE_JSON ||
                    (form == ND_SCHEDULE_DRAWN && m->program->measured);
    sched_costs slots = slots_of(m), bytes;
    const sched_costs *costs = to_scale ? &m->program->costs : &slots;
    if (form == ND_SCHEDULE_SVG) {
        bytes = bytes_of(m);
        costs = &bytes;
    }
    sched *s = m->program->sched;
    sched_times t;
    sched_text text = {0};
    if (!times_of(m, costs, &t))
        return;
    if (form == ND_SCHEDULE_DRAWN)
        sched_draw(s, &t, to_scale, &text);
    else if (form == ND_SCHEDULE_SVG)
        sched_svg(s, &t, costs, 1, &text);
    else if (form == ND_SCHEDULE_JSON)
        sched_trace(s, costs, 1, &text);
    else
        sched_write(s, form == ND_SCHEDULE_CSV, &text);
    nd_put(b, text.s);
    free(text.s);
    free(t.rank);
}

/* The order of messages is that of the slots, whatever the model's times: a
 * stage then keeps as many microbatches as its schedule promises. */
bool nd_schedule_lower(const nd_module *m, sched *s, sched_error *e)
{
    sched_costs slots = slots_of(m);
    return s->lowered || sched_lower(s, &slots, e);
}

/* ---- the pass ------------------------------------------------------------ */

bool pass_schedule(nd_module *m, const nd_options *o)
{
    (void)o;
    nd_program *p = m->program;
    sched_error e;
    sched_times t;
    p->costs.cross = crossings(m);
    /* One from a file is there: pass pipeline looks into it. */
    if (!p->sched)
        p->sched = nd_schedule_new(m, p->ndevices);
    if (!p->sched || !fits(m, p->sched))
        return false;
    if (p->nstages == 1)
        snprintf(p->sched->name, sizeof p->sched->name, "no pipeline");
    if (!nd_schedule_lower(m, p->sched, &e))
        return tell(m, p->sched, &e);
    if (!nd_schedule_check(m))
        return false;
    sched_costs slots = slots_of(m);
    if (!sched_time(p->sched, &slots, &t, &e))
        return tell(m, p->sched, &e);
    free(t.rank);
    for (int s = 0; s < p->nstages; s++)
        for (int k = 0; k < SCHED_NSPANS; k++)
            p->stage[s].slots[k] = sched_slots(p->sched, s, (sched_span)k);
    return nd_slots_check(m) && nd_async_check(m);
}
