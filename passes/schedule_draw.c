/* schedule_draw.c - the timeline of a schedule for a terminal, and the figures
 * that go with it.
 *
 *   1f1b: 2 stages, 3 microbatches, 12 slots, bubble 25.0%, in flight 2 1
 *   stage 0 | F0 F1 .. B0 -  F2 B1 -  .. B2 -
 *   stage 1 | .. F0 B0 -  F1 B1 -  F2 B2 -  ..
 *
 * F is a forward, B a backward (`-` its second half), `..` an idle slot. Long
 * schedules are folded in the middle, where they repeat themselves.
 */
#include "schedule.h"

int nd_schedule_in_flight(const nd_stage *s)
{
    int now = 0, peak = 0;
    for (int i = 0; i < s->actions.n; i++) {
        if (s->actions.v[i].kind == ACT_F && ++now > peak)
            peak = now;
        if (s->actions.v[i].kind == ACT_B)
            now--;
    }
    return peak;
}

double nd_schedule_bubble(const nd_module *m)
{
    const nd_program *p = m->program;
    int64_t busy = (int64_t)p->nstages * p->nmicro * (ND_SLOTS_F + ND_SLOTS_B);
    int64_t all = (int64_t)p->nstages * p->timeline;
    return all > 0 ? 1.0 - (double)busy / (double)all : 0.0;
}

static int digits(int n)
{
    int d = 1;
    for (; n > 9; n /= 10)
        d++;
    return d;
}

/* The computation that runs on a stage in each slot; kind F, B, or mb -1. */
static nd_action *slots_of(nd_arena *arena, const nd_program *p, int s)
{
    nd_action *at = ND_NEWN(arena, nd_action, p->timeline);
    for (int t = 0; t < p->timeline; t++)
        at[t].mb = -1;
    for (int i = 0; i < p->stage[s].actions.n; i++) {
        nd_action a = p->stage[s].actions.v[i];
        if (a.kind != ACT_F && a.kind != ACT_B)
            continue;
        int n = a.kind == ACT_F ? ND_SLOTS_F : ND_SLOTS_B;
        for (int t = a.slot; t < a.slot + n; t++)
            at[t] = a;
    }
    return at;
}

static void draw_cell(nd_buf *b, nd_action a, int t, int width, bool last)
{
    char text[16];
    if (a.mb < 0)
        snprintf(text, sizeof text, "..");
    else if (a.slot < t)
        snprintf(text, sizeof text, "-");
    else
        snprintf(text, sizeof text, "%c%d", a.kind == ACT_F ? 'F' : 'B',
                 a.mb);
    if (last)
        nd_putf(b, " %s\n", text);
    else
        nd_putf(b, " %-*s", width, text);
}

void nd_schedule_draw(nd_buf *b, const nd_module *m)
{
    enum { LINE = 124, MAX_SLOTS = 40 };
    const nd_program *p = m->program;
    int width = 1 + digits(p->nmicro - 1), total = p->timeline;
    int shown = LINE / (width + 1);
    if (shown > MAX_SLOTS)
        shown = MAX_SLOTS;
    /* Slots [head, total - tail) are left out. */
    int head = total, tail = 0;
    if (total > shown) {
        head = shown / 2;
        tail = shown - head;
    }
    nd_putf(b, "%s: %d stage%s, %d microbatch%s, %d slots, bubble %.1f%%, "
            "in flight",
            p->nstages == 1 ? "no pipeline" :
            m->plan.schedule == SCHED_GPIPE ? "gpipe" : "1f1b", p->nstages,
            p->nstages == 1 ? "" : "s", p->nmicro,
            p->nmicro == 1 ? "" : "es", total,
            100.0 * nd_schedule_bubble(m));
    for (int s = 0; s < p->nstages; s++)
        nd_putf(b, " %d", nd_schedule_in_flight(&p->stage[s]));
    nd_put(b, "\n");
    for (int s = 0; s < p->nstages; s++) {
        const nd_action *at = slots_of(b->arena, p, s);
        nd_putf(b, "stage %*d |", digits(p->nstages - 1), s);
        for (int t = 0; t < head; t++)
            draw_cell(b, at[t], t, width, t == total - 1);
        if (tail > 0)
            nd_put(b, " ~~");
        for (int t = total - tail; t < total; t++)
            draw_cell(b, at[t], t, width, t == total - 1);
    }
    if (tail > 0)
        nd_putf(b, "~~ stands for slots %d to %d\n", head, total - tail - 1);
}
