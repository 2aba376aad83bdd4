/* schedule.c - which schedule the stages run: made by its name or read from a
 * file, with messages where something crosses between devices, and proved. All
 * of that is runtime/schedule's, which knows no models; here are the questions
 * and, where they have no answer, the errors.
 *
 *   stage 0   sends %h        crosses: ahead, back
 *   stage 1   sends %dh back
 */
#include "passes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void free_sched(void *x)
{
    sched_free(x);
}

/* With the table around what is wrong, if there is one. */
static bool refuse(nd_module *m, const sched *s, const sched_error *err)
{
    nd_error(m->ctx, m->plan.pipe_loc, "schedule: %s", err->text);
    char *table = s ? sched_table_around(s, err) : NULL;
    for (char *line = table; line && *line;) {
        size_t n = strcspn(line, "\n");
        nd_note(m->ctx, nd_nowhere, "%.*s", (int)n, line);
        line += n + (line[n] == '\n');
    }
    free(table);
    return false;
}

/* ---- what it is asked for ------------------------------------------------ */

/* Until something better is known, I and W take as long as F. */
static void set_costs(nd_module *m)
{
    nd_program *p = m->program;
    uint8_t *cross = ND_NEWN(m->ctx->arena, uint8_t, p->nstages + 1);
    for (int s = 0; s + 1 < p->nstages; s++) {
        cross[s] |= p->stage[s].send_fwd.n ? SCHED_AHEAD : 0;
        cross[s] |= p->stage[s + 1].send_bwd.n ? SCHED_BACK : 0;
    }
    p->costs.cross = cross;
}

static char *read_file(nd_module *m, const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    nd_buf b = {.arena = m->ctx->arena};
    char part[4096];
    size_t got;
    nd_put(&b, "");
    while (f && (got = fread(part, 1, sizeof part, f)) > 0)
        nd_putn(&b, part, got);
    if (!f || ferror(f)) {
        nd_error(m->ctx, m->plan.pipe_loc, "cannot read \"%s\": %s", path,
                 strerror(errno));
        b.s = NULL;
    }
    if (f)
        fclose(f);
    *n = b.n;
    return b.s;
}

sched *nd_schedule_file(nd_module *m)
{
    const nd_program *p = m->program;
    const char *path = m->plan.schedule_file;
    sched_error err = {.rank = -1};
    size_t n;
    char *text = read_file(m, path, &n);
    sched *s = text ? sched_read(text, n, path, &err) : NULL;
    if (text && !s)
        refuse(m, NULL, &err);
    if (!s)
        return NULL;
    bool same = s->ranks == p->ndevices && s->stages == p->nstages;
    for (int i = 0; same && i < s->stages; i++)
        same = s->rank_of[i] == p->stage[i].device;
    bool ok = true;
    nd_ctx_keep(m->ctx, free_sched, s);
    if (!same)
        ok = sched_fail(&err, -1, 0, "\"%s\" has %d stages on %d ranks, the "
                        "plan %d on %d, or they are placed otherwise", path,
                        s->stages, s->ranks, p->nstages, p->ndevices);
    else if (s->micro != p->nmicro)
        ok = sched_fail(&err, -1, 0, "\"%s\" has %d microbatches, the plan %d",
                        path, s->micro, p->nmicro);
    return ok || refuse(m, NULL, &err) ? s : NULL;
}

static sched *make(nd_module *m)
{
    const nd_program *p = m->program;
    sched_error err = {.rank = -1};
    sched_ask ask = {.kind = m->plan.schedule, .ranks = p->ndevices,
                     .v = m->plan.per_device, .micro = p->nmicro,
                     .costs = &p->costs, .sync = m->train.clip > 0};
    /* Without a pipeline, holding more than one microbatch gains nothing. */
    if (p->nstages == 1)
        ask.kind = SCHED_KIND_1F1B;
    sched *s = sched_make(&ask, &err);
    if (s)
        nd_ctx_keep(m->ctx, free_sched, s);
    else
        refuse(m, NULL, &err);
    return s;
}

/* ---- the pass ------------------------------------------------------------ */

bool nd_schedule_check(nd_module *m)
{
    const nd_program *p = m->program;
    sched_error err = {.rank = -1};
    bool ok = sched_check(p->sched, p->costs.cross, &err);
    for (int s = 0; ok && s < p->nstages; s++)
        for (int k = 0; ok && k < SCHED_NSPANS; k++)
            ok = sched_check_slots(p->sched, s, (sched_span)k,
                                   p->stage[s].slots[k], &err);
    return ok || refuse(m, p->sched, &err);
}

bool pass_schedule(nd_module *m, const nd_options *o)
{
    (void)o;
    nd_program *p = m->program;
    sched_error err = {.rank = -1};
    set_costs(m);
    /* What is read from a file is there: pass pipeline looks into it. */
    if (!p->sched && !(p->sched = make(m)))
        return false;
    if (!p->sched->lowered && !sched_lower(p->sched, &p->costs, &err))
        return refuse(m, p->sched, &err);
    for (int s = 0; s < p->nstages; s++)
        for (int k = 0; k < SCHED_NSPANS; k++)
            p->stage[s].slots[k] = sched_slots(p->sched, s, (sched_span)k);
    return nd_schedule_check(m);
}

/* ---- what is shown of it ------------------------------------------------- */

void nd_schedule_draw(nd_buf *b, const nd_module *m)
{
    sched_times t;
    sched_error err;
    sched_text text = {0};
    if (!sched_time(m->program->sched, &m->program->costs, &t, &err))
        return;
    sched_draw(m->program->sched, &t, 0, &text);
    nd_putn(b, text.s, text.n);
    free(text.s);
    free(t.rank);
}

double nd_schedule_bubble(const nd_module *m)
{
    sched_times t;
    sched_error err;
    if (!sched_time(m->program->sched, &m->program->costs, &t, &err))
        return 0;
    free(t.rank);
    return t.bubble_total;
}
