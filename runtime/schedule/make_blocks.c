/* make_blocks.c - v_half and v_min: the pipeline as one block that repeats.
 *
 * Rank r has the stages r and 2p - 1 - r. A block is what a microbatch does on
 * it: F down, F up, I up, I down, each in a slot of its own, and W twice. All
 * take one slot, and microbatch k does its block 6 k slots later. The shorter a
 * block, the less it keeps:
 *
 *   v_min, 2 ranks     slot  0   1   2   3   4   5   6   7
 *                      r0    F0          f0  i0  w0  F1  I0 ..
 *                      r1        F0  f0          i0  I0  w0 ..
 *
 * Where the blocks begin and end, slots are left empty. So the ranks do their
 * slots as early as the others allow, and until the first gradient has come
 * back to rank 0, and after the last microbatch has entered, they need not keep
 * to the order: a rank does the first thing of its row that it can. An F may
 * be done early only if the rank then keeps no more than the blocks would make
 * the worst rank keep. At the end, W waits until there is nothing else to do,
 * because no other rank waits for it.
 */
#include "make.h"

#include <stdlib.h>
#include <string.h>

enum { PERIOD = 6 };

typedef enum { FILL, STEADY, DRAIN } phase;

typedef struct cell {
    bool any;
    sched_op op;
    int stage, mb;
    phase phase;
} cell;

typedef struct line {
    cell *v;
    int n, next;                     /* v[0 .. next - 1] are done */
    int held;
} line;

typedef struct blocks {
    sched *s;
    bool half;
    line *rank;
    int most;                        /* that a rank may hold */
    int *done[2];                    /* F, I by stage and mb: when; 0: not */
} blocks;

/* ---- the blocks in their slots ------------------------------------------- */

/* Slots of F down, F up, I up, I down of microbatch 0. `gap` keeps the six of
 * them apart modulo the period. */
static void offsets(const blocks *x, int r, int slot[4])
{
    int p = x->s->ranks;
    if (x->half) {
        int gap = p % 2 == 0 ? 3 : 0;
        slot[0] = 2 * r;
        slot[1] = 3 * p - 2 - r;
        slot[2] = 3 * p - 1 + gap + 2 * r;
        slot[3] = 6 * p - 2 + gap - r;
    } else {
        int gap = p % 3 == 0 ? 2 : 0;
        slot[0] = r;
        slot[1] = 2 * p - 1 - r;
        slot[2] = 2 * p + gap + r;
        slot[3] = 4 * p - 1 + gap - r;
    }
}

static phase phase_of(const blocks *x, int slot)
{
    int first[4];
    offsets(x, 0, first);
    return slot < first[3]                                 ? FILL
           : slot <= first[0] + PERIOD * (x->s->micro - 1) ? STEADY
                                                           : DRAIN;
}

/* W goes to the first free slot after its I, in the order of the I. */
static void put_w(cell *v, int n)
{
    int free_slot = 0;
    for (int i = 0; i < n; i++) {
        if (!v[i].any || v[i].op != SCHED_I)
            continue;
        if (free_slot < i)
            free_slot = i;
        while (v[free_slot].any)
            free_slot++;
        v[free_slot] = v[i];
        v[free_slot].op = SCHED_W;
    }
}

/* The row of a rank: its slots without the empty ones. */
static void lay(blocks *x, int r)
{
    static const sched_op op[4] = {SCHED_F, SCHED_F, SCHED_I, SCHED_I};
    int p = x->s->ranks, m = x->s->micro, slot[4];
    int n = (PERIOD + 2) * (m + p) + 4;
    line *l = &x->rank[r];
    l->v = make_room(n, sizeof *l->v);
    offsets(x, r, slot);
    for (int mb = 0; mb < m; mb++)
        for (int i = 0; i < 4; i++)
            l->v[slot[i] + PERIOD * mb] = (cell){
                true, op[i], i == 0 || i == 3 ? r : 2 * p - 1 - r, mb, FILL};
    put_w(l->v, n);
    int held = 0;
    for (int i = 0; i < n; i++) {
        cell c = l->v[i];
        if (!c.any)
            continue;
        c.phase = phase_of(x, i);
        l->v[l->n++] = c;
        held += (c.op == SCHED_F) - (c.op == SCHED_W);
        if (x->most < held)
            x->most = held;
    }
}

/* ---- as early as can be -------------------------------------------------- */

static int *when(const blocks *x, sched_op op, int stage, int mb)
{
    size_t at = (size_t)stage * (size_t)x->s->micro + (size_t)mb;
    return &x->done[op == SCHED_I][at];
}

static bool is_done(const blocks *x, sched_op op, int stage, int mb, int now)
{
    int t = *when(x, op, stage, mb);
    return t > 0 && t <= now;
}

static bool ready(const blocks *x, const cell *c, int now)
{
    int s = c->stage, last = x->s->stages - 1;
    switch (c->op) {
    case SCHED_F:
        return s == 0 || is_done(x, SCHED_F, s - 1, c->mb, now);
    case SCHED_I:
        return is_done(x, SCHED_F, s, c->mb, now) &&
               (s == last || is_done(x, SCHED_I, s + 1, c->mb, now));
    default:
        return is_done(x, SCHED_I, s, c->mb, now);
    }
}

/* What to do now: an index into the row, or -1 for nothing. `peak` is what the
 * rank holds until then at most if the row goes on as it is. */
static int pick(const blocks *x, const line *l, int now)
{
    phase ph = l->v[l->next].phase;
    int held = l->held, peak = held, late = -1;
    for (int i = l->next; i < l->n && l->v[i].phase == ph; i++) {
        const cell *c = &l->v[i];
        if (ready(x, c, now) && (c->op != SCHED_F || peak < x->most)) {
            if (c->op != SCHED_W || ph != DRAIN)
                return i;
            if (late < 0)
                late = i;
        }
        if (ph == STEADY)
            break;
        held += (c->op == SCHED_F) - (c->op == SCHED_W);
        if (peak < held)
            peak = held;
    }
    return late;
}

static void take(blocks *x, int r, int i, int now)
{
    line *l = &x->rank[r];
    cell c = l->v[i];
    memmove(&l->v[l->next + 1], &l->v[l->next],
            (size_t)(i - l->next) * sizeof *l->v);
    l->v[l->next++] = c;
    l->held += (c.op == SCHED_F) - (c.op == SCHED_W);
    if (c.op != SCHED_W)
        *when(x, c.op, c.stage, c.mb) = now + 1;
    sched_push(x->s, r, c.op, c.stage, c.mb);
}

static void make_blocks(sched *s, bool half)
{
    blocks x = {.s = s, .half = half};
    int left = 0;
    x.rank = make_room(s->ranks, sizeof *x.rank);
    for (int i = 0; i < 2; i++)
        x.done[i] = make_room(s->stages * s->micro, sizeof *x.done[i]);
    for (int r = 0; r < s->ranks; r++) {
        lay(&x, r);
        left += x.rank[r].n;
    }
    for (int now = 0; left > 0; now++)
        for (int r = 0; r < s->ranks; r++) {
            const line *l = &x.rank[r];
            int i = l->next < l->n ? pick(&x, l, now) : -1;
            if (i < 0)
                continue;
            take(&x, r, i, now);
            left--;
        }
    for (int r = 0; r < s->ranks; r++)
        free(x.rank[r].v);
    free(x.done[0]);
    free(x.done[1]);
    free(x.rank);
}

void make_v_half(sched *s)
{
    make_blocks(s, true);
}

void make_v_min(sched *s)
{
    make_blocks(s, false);
}
