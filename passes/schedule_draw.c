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

int nd_schedule_in_flight(const sched_row *r)
{
    int now = 0, peak = 0;
    for (int i = 0; i < r->n; i++) {
        if (r->v[i].op == SCHED_F && ++now > peak)
            peak = now;
        if (r->v[i].op == SCHED_B)
            now--;
    }
    return peak;
}

int nd_schedule_timeline(const sched *s)
{
    double end = 0;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++)
            end = s->row[r].v[i].end > end ? s->row[r].v[i].end : end;
    return (int)end;
}

double nd_schedule_bubble(const nd_module *m)
{
    const nd_program *p = m->program;
    int64_t busy = (int64_t)p->nstages * p->nmicro * (ND_SLOTS_F + ND_SLOTS_B);
    int64_t all = (int64_t)p->nstages * nd_schedule_timeline(p->sched);
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
static sched_action *slots_of(nd_arena *arena, const sched *x, int s)
{
    int total = nd_schedule_timeline(x);
    sched_action *at = ND_NEWN(arena, sched_action, total);
    for (int t = 0; t < total; t++)
        at[t].mb = -1;
    for (int i = 0; i < x->row[s].n; i++) {
        sched_action a = x->row[s].v[i];
        if (!sched_is_compute(a.op))
            continue;
        for (int t = (int)a.start; t < (int)a.end; t++)
            at[t] = a;
    }
    return at;
}

static void draw_cell(nd_buf *b, sched_action a, int t, int width, bool last)
{
    char text[16];
    if (a.mb < 0)
        snprintf(text, sizeof text, "..");
    else if ((int)a.start < t)
        snprintf(text, sizeof text, "-");
    else
        snprintf(text, sizeof text, "%s%d", sched_op_name[a.op], a.mb);
    if (last)
        nd_putf(b, " %s\n", text);
    else
        nd_putf(b, " %-*s", width, text);
}

void nd_schedule_draw(nd_buf *b, const nd_module *m)
{
    enum { LINE = 124, MAX_SLOTS = 40 };
    const nd_program *p = m->program;
    int width = 1 + digits(p->nmicro - 1);
    int total = nd_schedule_timeline(p->sched);
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
            nd_schedule_name(b->arena, &m->plan), p->nstages,
            p->nstages == 1 ? "" : "s", p->nmicro,
            p->nmicro == 1 ? "" : "es", total,
            100.0 * nd_schedule_bubble(m));
    for (int s = 0; s < p->nstages; s++)
        nd_putf(b, " %d", nd_schedule_in_flight(&p->sched->row[s]));
    nd_put(b, "\n");
    for (int s = 0; s < p->nstages; s++) {
        const sched_action *at = slots_of(b->arena, p->sched, s);
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
