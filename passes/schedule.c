/* schedule.c - the order of forward, backward and messages on every stage.
 *
 * Two steps. nd_schedule_order lists the computations of each stage:
 *
 *   gpipe  F0 F1 F2 F3 B0 B1 B2 B3         Huang et al., arXiv 1811.06965
 *   1f1b   F0 F1 B0 F2 B1 F3 B2 B3         Narayanan et al., SOSP 2019 and
 *                                          arXiv 2104.04473, stage 2 of 4
 *
 * Then messages are inserted. The runtime is as simple as can be: a stage runs
 * its list in order, and a send blocks until the peer receives. The obvious
 * placement (receive right before the consumer, send right after the producer)
 * deadlocks there for 1F1B: two neighbours both send. So the whole pipeline is
 * simulated under exactly these rules, and what happens in the simulation is
 * written down: a pair is placed when the receiver needs it next and the
 * sender is between two computations. Both lists follow one common order in
 * time, hence nobody waits in a circle; schedule_check.c proves it afterwards
 * without trusting this file.
 *
 * Receiving no earlier than needed also keeps 1F1B's promise about memory: a
 * stage holds min(p - s, m) microbatches, received inputs included.
 */
#include "schedule.h"

bool nd_schedule_crosses(const nd_program *p, int s)
{
    return p->stage[s].send_fwd.n > 0 || p->stage[s + 1].send_bwd.n > 0;
}

sched *nd_schedule_order(sched_kind k, int p, int m)
{
    sched *x = sched_new(sched_kinds[k].name, p, p, m, SCHED_LOOP);
    for (int s = 0; s < p; s++) {
        /* Forwards before the first backward. One per later stage fills the
         * pipeline; fewer microbatches than that are all there is. */
        int warm = m;
        if (k == SCHED_KIND_1F1B && p - 1 - s < m)
            warm = p - 1 - s;
        int f = 0, b = 0;
        while (f < warm)
            sched_push(x, s, SCHED_F, s, f++);
        while (b < m) {
            if (f < m)
                sched_push(x, s, SCHED_F, s, f++);
            sched_push(x, s, SCHED_B, s, b++);
        }
    }
    return x;
}

/* ---- simulation ---------------------------------------------------------- */

typedef struct sim_stage {
    const sched_action *order;
    int next;                        /* index into order */
    int clock;                       /* when it is free */
    bool *done[2], *got[2];          /* per microbatch; 0 forward, 1 backward */
} sim_stage;

typedef struct sim {
    nd_program *program;
    sched *out;
    sim_stage *stage;
} sim;

/* What stage s does next: compute, or first receive from `peer` (else -1).
 * Returns the time at which it can, or -1: the peer has not computed it. */
static int candidate(const sim *x, int s, int *peer)
{
    const sim_stage *me = &x->stage[s];
    sched_action a = me->order[me->next];
    int dir = a.op == SCHED_B;
    *peer = dir ? s + 1 : s - 1;
    if (*peer < 0 || *peer == x->program->nstages ||
        !nd_schedule_crosses(x->program, dir ? s : s - 1) ||
        me->got[dir][a.mb]) {
        *peer = -1;
        return me->clock;
    }
    const sim_stage *you = &x->stage[*peer];
    if (!you->done[dir][a.mb])
        return -1;
    return me->clock > you->clock ? me->clock : you->clock;
}

/* Of two candidates at the same time, the message goes first because it is
 * free, and a gradient before an activation because it releases memory. */
static int rank_of(const sim *x, int s, int peer)
{
    if (peer < 0)
        return 2;
    const sim_stage *me = &x->stage[s];
    return me->order[me->next].op == SCHED_B ? 0 : 1;
}

static void put(sim *x, int s, sched_op op, int mb, int from, int takes)
{
    sched_push(x->out, s, op, s, mb);
    sched_action *a = &x->out->row[s].v[x->out->row[s].n - 1];
    a->start = from;
    a->end = from + takes;
}

static void message(sim *x, int s, int peer, int time)
{
    sim_stage *me = &x->stage[s];
    sched_action a = me->order[me->next];
    int dir = a.op == SCHED_B;
    put(x, peer, dir ? SCHED_SEND_B : SCHED_SEND_F, a.mb, time, 0);
    put(x, s, dir ? SCHED_RECV_B : SCHED_RECV_F, a.mb, time, 0);
    me->got[dir][a.mb] = true;
    me->clock = x->stage[peer].clock = time;
}

static void compute(sim *x, int s)
{
    sim_stage *me = &x->stage[s];
    sched_action a = me->order[me->next++];
    int takes = a.op == SCHED_B ? ND_SLOTS_B : ND_SLOTS_F;
    put(x, s, a.op, a.mb, me->clock, takes);
    me->done[a.op == SCHED_B][a.mb] = true;
    me->clock += takes;
}

/* Does the earliest thing that can happen, until nothing can. Orders that
 * wait for each other stop early; the checker then says so. */
static void simulate(sim *x)
{
    for (;;) {
        int best = -1, best_peer = -1, best_time = 0, best_rank = 0;
        for (int s = 0; s < x->program->nstages; s++) {
            int peer;
            if (x->stage[s].next == 2 * x->program->nmicro)
                continue;
            int time = candidate(x, s, &peer);
            int rank = rank_of(x, s, peer);
            if (time < 0 || (best >= 0 && (time > best_time ||
                (time == best_time && rank >= best_rank))))
                continue;
            best = s, best_peer = peer, best_time = time, best_rank = rank;
        }
        if (best < 0)
            return;
        if (best_peer >= 0)
            message(x, best, best_peer, best_time);
        else
            compute(x, best);
    }
}

/* ---- memory -------------------------------------------------------------- */

/* Microbatch mb lives in slot mb % n: the smallest n for which its last action
 * comes before the first one of mb + n. */
static int slots_needed(nd_arena *arena, const sched_row *row, int m)
{
    int *first = ND_NEWN(arena, int, m), *last = ND_NEWN(arena, int, m);
    for (int i = row->n - 1; i >= 0; i--)
        first[row->v[i].mb] = i;
    for (int i = 0; i < row->n; i++)
        last[row->v[i].mb] = i;
    for (int n = 1; n < m; n++) {
        int mb = 0;
        while (mb + n < m && last[mb] < first[mb + n])
            mb++;
        if (mb + n == m)
            return n;
    }
    return m;
}

static void free_sched(void *x)
{
    sched_free(x);
}

bool pass_schedule(nd_module *m, const nd_options *o)
{
    (void)o;
    nd_arena *arena = m->ctx->arena;
    nd_program *pr = m->program;
    int p = pr->nstages, n = pr->nmicro;
    /* Without a pipeline, holding more than one microbatch gains nothing. */
    sched_kind kind = p == 1 ? SCHED_KIND_1F1B : m->plan.schedule;
    sched *order = nd_schedule_order(kind, p, n);

    pr->sched = sched_new(order->name, p, p, n, SCHED_LOOP);
    nd_ctx_keep(m->ctx, free_sched, pr->sched);
    sim x = {pr, pr->sched, ND_NEWN(arena, sim_stage, p)};
    for (int s = 0; s < p; s++) {
        x.stage[s].order = order->row[s].v;
        for (int dir = 0; dir < 2; dir++) {
            x.stage[s].done[dir] = ND_NEWN(arena, bool, n);
            x.stage[s].got[dir] = ND_NEWN(arena, bool, n);
        }
    }
    simulate(&x);
    pr->sched->lowered = true;
    sched_free(order);
    if (!nd_schedule_check(m))
        return false;
    for (int s = 0; s < p; s++)
        for (int k = 0; k < SCHED_NSPANS; k++)
            pr->stage[s].slots[k] = slots_needed(arena, &pr->sched->row[s], n);
    return nd_slots_check(m);
}
