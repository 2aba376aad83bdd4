/* sched_brute.h - the best schedule there is, found by trying all: all orders
 * of all ranks, action by action, in layers of as many actions. Of two
 * beginnings that have done the same, one that is nowhere later makes the other
 * pointless; so does a bound that is not below the best time known.
 */
#ifndef SCHED_BRUTE_H
#define SCHED_BRUTE_H

#include "runtime/schedule/sched.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, STAGES = 8, MICRO = 6, STEPS = 3, TABLE = 1 << 14 };

typedef struct label {
    double free[RANKS];
    double end[2][STAGES][MICRO];    /* of F and I */
    int done[STEPS][STAGES];         /* F, I, W */
    int peak[SCHED_NSPANS][STAGES];
    struct label *next;              /* of the same bucket */
} label;

typedef struct brute {
    int ranks, stages, micro, steps;
    bool slots;
    int rank_of[STAGES];
    double cost[STEPS][STAGES], keep[SCHED_NSPANS][STAGES];
    double ahead[STAGES], back[STAGES], room[RANKS], off[RANKS];
    double best;
    label **table;
} brute;

static double given(const double *x, int s, double otherwise)
{
    return x ? x[s] : otherwise;
}

static int in_span(const brute *o, const label *l, int s, int span)
{
    int weights = l->done[o->steps == 3 ? 2 : 1][s];
    int since = l->done[span == SCHED_I_TO_W ? 1 : 0][s];
    return since - (span == SCHED_UNTIL_I ? l->done[1][s] : weights);
}

/* What a rank keeps when it has done one more `step` of stage `next`. */
static double kept(const brute *o, const label *l, int r, int step, int next)
{
    double sum = 0;
    for (int s = 0; s < o->stages; s++)
        for (int k = 0; k < SCHED_NSPANS && o->rank_of[s] == r; k++) {
            int starts = k == SCHED_I_TO_W ? 1 : 0;
            int n = in_span(o, l, s, k) + (s == next && step == starts);
            if (o->slots && n < l->peak[k][s])
                n = l->peak[k][s];
            sum += n * o->keep[k][s];
        }
    return sum;
}

/* When the next action of a step and stage can start; -1: it cannot. */
static double start(const brute *o, const label *l, int step, int s)
{
    int k = l->done[step][s], r = o->rank_of[s];
    double t = l->free[r];
    if (k == o->micro || (step && l->done[step - 1][s] == k))
        return -1;
    int from = step == 0 ? s - 1 : s + 1;
    if (step < 2 && from >= 0 && from < o->stages) {
        if (l->done[step][from] <= k)
            return -1;
        double there = l->end[step][from][k];
        if (o->rank_of[from] != r)
            there += step == 0 ? o->ahead[from] : o->back[from];
        t = there > t ? there : t;
    }
    return step < 2 && kept(o, l, r, step, s) > o->room[r] * (1 + 1e-9) ? -1
                                                                       : t;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* All work of a rank; all F and I of it up to a stage's last I, then the I of
 * all stages before that one. */
static double at_least(const brute *o, const label *l)
{
    double b = 0, chain[STAGES];
    for (int s = 0; s < o->stages; s++) {
        chain[s] = o->cost[2][s] - o->off[o->rank_of[s]];
        if (s) {
            bool near = o->rank_of[s - 1] == o->rank_of[s];
            chain[s] = larger(chain[s], (near ? 0 : o->back[s]) +
                                            o->cost[1][s - 1] + chain[s - 1]);
        }
    }
    for (int r = 0; r < o->ranks; r++) {
        double all = l->free[r], part = l->free[r];
        for (int s = 0; s < o->stages; s++) {
            if (o->rank_of[s] != r)
                continue;
            for (int k = 0; k < o->steps; k++)
                all += (o->micro - l->done[k][s]) * o->cost[k][s];
            part += (o->micro - l->done[0][s]) * o->cost[0][s];
        }
        b = larger(b, all - o->off[r]);
        for (int s = o->stages - 1; s >= 0; s--)
            if (o->rank_of[s] == r && l->done[1][s] < o->micro) {
                part += (o->micro - l->done[1][s]) * o->cost[1][s];
                b = larger(b, part + chain[s]);
            }
    }
    return b;
}

static bool no_later(const brute *o, const label *a, const label *b)
{
    for (int r = 0; r < o->ranks; r++)
        if (a->free[r] > b->free[r])
            return false;
    for (int s = 0; s < o->stages; s++) {
        int f = s + 1 < o->stages ? a->done[0][s + 1] : o->micro;
        int i = s ? a->done[1][s - 1] : o->micro;
        for (; f < a->done[0][s]; f++)
            if (a->end[0][s][f] > b->end[0][s][f])
                return false;
        for (; i < a->done[1][s]; i++)
            if (a->end[1][s][i] > b->end[1][s][i])
                return false;
        for (int k = 0; o->slots && k < SCHED_NSPANS; k++)
            if (a->peak[k][s] > b->peak[k][s])
                return false;
    }
    return true;
}

static void add(brute *o, const label *l)
{
    unsigned h = 17;
    for (int k = 0; k < STEPS; k++)
        for (int s = 0; s < o->stages; s++)
            h = h * 31 + (unsigned)l->done[k][s];
    label **head = &o->table[(h ^ h >> 13) % TABLE];
    for (label **p = head; *p;) {
        label *x = *p;
        bool same = memcmp(x->done, l->done, sizeof x->done) == 0;
        if (same && no_later(o, x, l))
            return;
        if (same && no_later(o, l, x)) {
            *p = x->next;
            free(x);
        } else {
            p = &x->next;
        }
    }
    label *c = malloc(sizeof *c);
    *c = *l;
    c->next = *head;
    *head = c;
}

static void expand(brute *o, const label *l)
{
    for (int s = 0; s < o->stages; s++)
        for (int step = 0; step < o->steps; step++) {
            double t = start(o, l, step, s);
            if (t < 0)
                continue;
            label c = *l;
            t += o->cost[step][s];
            c.free[o->rank_of[s]] = t;
            if (step < 2)
                c.end[step][s][c.done[step][s]] = t;
            c.done[step][s]++;
            for (int k = 0; k < SCHED_NSPANS; k++)
                if (in_span(o, &c, s, k) > c.peak[k][s])
                    c.peak[k][s] = in_span(o, &c, s, k);
            if (at_least(o, &c) < o->best * (1 - 1e-9))
                add(o, &c);
        }
}

static void set(brute *o, const sched_ask *ask)
{
    static const sched_costs ones;
    const sched_costs *c = ask->costs ? ask->costs : &ones;
    double head = 0;
    for (int s = 0; s < o->stages; s++) {
        double w = given(c->w, s, 1);
        o->rank_of[s] = sched_rank_of(ask->where, o->ranks, s);
        o->cost[0][s] = given(c->f, s, 1);
        o->cost[1][s] = given(c->i, s, 1) + (ask->whole ? w : 0);
        o->cost[2][s] = ask->whole ? 0 : w;
        o->keep[SCHED_UNTIL_I][s] = given(c->until_i, s, 0);
        o->keep[SCHED_UNTIL_W][s] = given(c->until_w, s, 0);
        o->keep[SCHED_I_TO_W][s] = given(c->i_to_w, s, 0);
        o->ahead[s] = given(c->ahead, s, 0);
        o->back[s] = given(c->back, s, 0);
        if (s < o->ranks) {
            o->off[s] = ask->sync ? 0 : head;
            o->room[s] = ask->room ? ask->room[s] : INFINITY;
        }
        head += o->cost[0][s] + o->ahead[s];
    }
}

/* The least time (see sched_ask.sync), or at_most if none is less. */
static double brute_force(const sched_ask *ask, double at_most)
{
    brute o = {.ranks = ask->ranks, .stages = ask->ranks * ask->v,
               .micro = ask->micro, .steps = ask->whole ? 2 : 3,
               .slots = ask->slots, .best = at_most};
    label first = {0};
    set(&o, ask);
    for (int s = 0; s < o.stages; s++)   /* a slot each: none runs without */
        for (int k = 0; k < SCHED_NSPANS; k++)
            first.peak[k][s] = 1;
    o.table = calloc(TABLE, sizeof *o.table);
    if (at_least(&o, &first) < o.best * (1 - 1e-9))
        add(&o, &first);
    int layers = o.stages * o.micro * o.steps;
    for (int layer = 0; layer <= layers; layer++) {
        label *now = NULL;
        for (int i = 0; i < TABLE; i++)
            while (o.table[i]) {
                label *x = o.table[i];
                o.table[i] = x->next;
                x->next = now;
                now = x;
            }
        while (now) {
            label *x = now;
            now = x->next;
            if (layer == layers && at_least(&o, x) < o.best)
                o.best = at_least(&o, x);
            else if (layer < layers)
                expand(&o, x);
            free(x);
        }
    }
    free(o.table);
    return o.best;
}

#endif
