/* lower.c - gives a schedule its messages.
 *
 *   0F0 0F1 0B0 0B1      0F0 0F1 0SEND_F0 0RECV_B0 0SEND_F1 0B0 ...
 *   1F0 1B0 1F1 1B1      1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 ...
 *
 * A machine as simple as can be runs its row in order, and a send blocks until
 * the other side receives. The obvious placement (receive right before what
 * reads it, send right after what makes it) hangs there for nearly every
 * schedule: two neighbours both send. So all ranks are simulated under exactly
 * these rules, and what happens in the simulation is written down: a pair is
 * placed when the receiver wants it and the sender is between two computations.
 * All rows follow one common order in time, hence nobody waits in a circle, and
 * between two ranks messages arrive in the order they were sent; check.c proves
 * both afterwards without trusting this file.
 *
 * The receiver wants it when it needs it: then a received input is not held
 * before its turn. But if the sender computes at that time, the receiver would
 * wait for its end. Therefore it wants it at the last time before at which, in
 * a run where messages block nobody, both ranks are between computations; if
 * there is none, when it needs it.
 */
#include "sched.h"

#include <stdlib.h>

/* Before computation `before` of its row, a rank receives what `reader`
 * reads. */
typedef struct want {
    int before, reader;
} want;

typedef struct rank_sim {
    int next;                        /* index into the row of computations */
    want *want;                      /* in order */
    int nwant, got;
    double clock;                    /* when it is free */
    bool waits;                      /* not in the heap: operand not made */
} rank_sim;

/* What a rank does next, and when it can; the least goes first. */
typedef struct event {
    double time;
    int turn, rank;
} event;

typedef struct sim {
    sched *s;                        /* rows are written */
    sched *from;                     /* rows are read, with their times */
    const sched_costs *costs;
    const uint8_t *cross;
    rank_sim *rank;
    double *made[2];                 /* by stage and microbatch: when F, and B
                                        or I, were done; -1: not yet */
    event *heap;
    int n;
} sim;

/* ---- a heap -------------------------------------------------------------- */

static bool before(event a, event b)
{
    if (a.time != b.time)
        return a.time < b.time;
    return a.turn != b.turn ? a.turn < b.turn : a.rank < b.rank;
}

static void put(sim *x, event e)
{
    int i = x->n++;
    for (; i > 0 && before(e, x->heap[(i - 1) / 2]); i = (i - 1) / 2)
        x->heap[i] = x->heap[(i - 1) / 2];
    x->heap[i] = e;
}

static event take(sim *x)
{
    event least = x->heap[0], e = x->heap[--x->n];
    int i = 0;
    for (;;) {
        int k = 2 * i + 1;
        k += k + 1 < x->n && before(x->heap[k + 1], x->heap[k]);
        if (k >= x->n || !before(x->heap[k], e))
            break;
        x->heap[i] = x->heap[k];
        i = k;
    }
    x->heap[i] = e;
    return least;
}

/* ---- what a rank does next ----------------------------------------------- */

static size_t cell_of(const sim *x, int stage, int mb)
{
    return (size_t)stage * (size_t)x->s->micro + (size_t)mb;
}

/* When what `a` reads has come from another stage; -1: it is not made. */
static double arrival(const sim *x, sched_action a)
{
    int from = sched_source(x->from, x->cross, a), back = a.op != SCHED_F;
    double made = x->made[back][cell_of(x, from, a.mb)];
    const double *way = !x->costs ? NULL
                        : back ? x->costs->back : x->costs->ahead;
    return made < 0 ? -1 : made + (way ? way[from] : 0);
}

/* The rank that sends what `a` reads; -1: none does. */
static int sender_of(const sim *x, sched_action a)
{
    int from = sched_source(x->from, x->cross, a);
    int peer = from < 0 ? -1 : x->s->rank_of[from];
    return peer == x->s->rank_of[a.stage] ? -1 : peer;
}

/* Does it receive before it computes? */
static bool wants(const rank_sim *me)
{
    return me->got < me->nwant && me->want[me->got].before <= me->next;
}

/* At the same time messages go first, because they are free, and gradients
 * before activations, because they release memory; then what takes no time.
 * False: it waits for what is not made. */
static bool next_event(const sim *x, int r, event *e)
{
    const rank_sim *me = &x->rank[r];
    const sched_row *row = &x->from->row[r];
    *e = (event){me->clock, 0, r};
    if (!wants(me)) {
        e->turn = sched_takes(x->costs, &row->v[me->next]) == 0 ? 2 : 3;
        return true;
    }
    sched_action a = row->v[me->want[me->got].reader];
    double there = arrival(x, a), free = x->rank[sender_of(x, a)].clock;
    e->turn = a.op == SCHED_F;
    e->time = free > e->time ? free : e->time;
    e->time = there > e->time ? there : e->time;
    return there >= 0;
}

/* ---- doing it ------------------------------------------------------------ */

static void list(sim *x, int r)
{
    event e;
    if (x->rank[r].next == x->from->row[r].n)
        return;
    x->rank[r].waits = !next_event(x, r, &e);
    if (!x->rank[r].waits)
        put(x, e);
}

static void carry(sim *x, int r, double time)
{
    rank_sim *me = &x->rank[r];
    sched_action a = x->from->row[r].v[me->want[me->got++].reader];
    sched_action recv = {.op = a.op == SCHED_F ? SCHED_RECV_F : SCHED_RECV_B,
                         .stage = a.stage};
    sched_action send = sched_other_end(recv);
    int peer = x->s->rank_of[send.stage];
    sched_push(x->s, peer, send.op, send.stage, a.mb);
    sched_push(x->s, r, recv.op, recv.stage, a.mb);
    me->clock = x->rank[peer].clock = time;
}

/* The rank of a stage that may wait for what its neighbour made. */
static void wake(sim *x, int stage)
{
    int r = stage >= 0 && stage < x->s->stages ? x->s->rank_of[stage] : -1;
    if (r >= 0 && x->rank[r].waits)
        list(x, r);
}

static void compute(sim *x, int r)
{
    const sched_row *row = &x->from->row[r];
    bool joined = true;
    while (joined && x->rank[r].next < row->n) {
        sched_action a = row->v[x->rank[r].next++];
        sched_push(x->s, r, a.op, a.stage, a.mb);
        x->s->row[r].v[x->s->row[r].n - 1].joined = joined = a.joined;
        x->rank[r].clock += sched_takes(x->costs, &a);
        if (a.op == SCHED_F) {
            x->made[0][cell_of(x, a.stage, a.mb)] = x->rank[r].clock;
            wake(x, a.stage + 1);
        } else if (sched_is_back(a.op)) {
            x->made[1][cell_of(x, a.stage, a.mb)] = x->rank[r].clock;
            wake(x, a.stage - 1);
        }
    }
}

/* Clocks only go forward, so an entry of the heap is never too late; if it is
 * too early, it goes back with its right time. */
static void simulate(sim *x)
{
    for (int r = 0; r < x->s->ranks; r++)
        list(x, r);
    while (x->n > 0) {
        event e = take(x), now;
        next_event(x, e.rank, &now);
        if (before(e, now)) {
            put(x, now);
            continue;
        }
        if (wants(&x->rank[e.rank]))
            carry(x, e.rank, now.time);
        else
            compute(x, e.rank);
        list(x, e.rank);
    }
}

/* ---- what to receive when ------------------------------------------------ */

/* The first action of the row that starts at `time` or later. */
static int first_from(const sched_row *row, double time)
{
    int lo = 0, hi = row->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (row->v[mid].start < time)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Walks back over both ranks' free times, from when action `reader` of rank r
 * needs what it reads, but not for ever. */
static int receive_before(const sim *x, int r, int reader)
{
    enum { FAR = 64 };
    const sched_row *me = &x->from->row[r];
    const sched_row *you = &x->from->row[sender_of(x, me->v[reader])];
    double made = arrival(x, me->v[reader]), need = me->v[reader].start;
    int last = reader - (reader > 0 && me->v[reader - 1].joined);
    int i = last, k = first_from(you, need);
    for (int n = 0; n < FAR; n++) {
        double from = i ? me->v[i - 1].end : 0, to = me->v[i].start;
        double your_from = k ? you->v[k - 1].end : 0;
        double your_to = k < you->n ? you->v[k].start : need;
        bool inside = i && me->v[i - 1].joined;
        if (to < made || your_to < made)
            break;
        if (!inside && from <= your_to && your_from <= to)
            return i;
        if (inside || from > your_to)
            i--;
        else
            k--;
    }
    return last;
}

static bool plan_row(sim *x, int r)
{
    const sched_row *row = &x->from->row[r];
    rank_sim *me = &x->rank[r];
    int *first = malloc(((size_t)row->n + 1) * sizeof *first);
    int *next = malloc(((size_t)row->n + 1) * sizeof *next);
    me->want = malloc(((size_t)row->n + 1) * sizeof *me->want);
    bool ok = first && next && me->want;
    for (int i = 0; ok && i < row->n; i++)
        first[i] = -1;
    for (int i = row->n - 1; ok && i >= 0; i--)
        if (sender_of(x, row->v[i]) >= 0) {
            int at = receive_before(x, r, i);
            next[i] = first[at];
            first[at] = i;
        }
    for (int i = 0; ok && i < row->n; i++)
        for (int k = first[i]; k >= 0; k = next[k])
            me->want[me->nwant++] = (want){i, k};
    free(first);
    free(next);
    return ok;
}

static bool plan(sim *x, sched_error *err)
{
    sched_times t;
    size_t cells = (size_t)x->s->stages * (size_t)x->s->micro;
    bool ok = true;
    if (!sched_time(x->from, x->costs, &t, err))
        return false;
    free(t.rank);
    for (int r = 0; r < x->s->ranks; r++)
        for (int i = 0; i < x->from->row[r].n; i++) {
            sched_action a = x->from->row[r].v[i];
            if (a.op == SCHED_F || sched_is_back(a.op))
                x->made[a.op != SCHED_F][cell_of(x, a.stage, a.mb)] = a.end;
        }
    for (int r = 0; ok && r < x->s->ranks; r++)
        ok = plan_row(x, r);
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < cells; i++)
            x->made[k][i] = -1;
    return ok || sched_fail(err, -1, 0, "no memory");
}

/* ---- all of it ----------------------------------------------------------- */

static bool lower(sim *x, sched_error *err)
{
    sched *s = x->s;
    if (!plan(x, err))
        return false;
    for (int r = 0; r < s->ranks; r++)
        s->row[r].n = 0;
    simulate(x);
    s->lowered = true;
    return true;
}

bool sched_lower(sched *s, const sched_costs *costs, sched_error *err)
{
    const uint8_t *cross = costs ? costs->cross : NULL;
    if (s->lowered)
        return sched_fail(err, -1, 0, "the schedule has its messages already");
    /* What is right does not get stuck in the simulation. */
    if (!sched_check(s, cross, err))
        return false;
    size_t cells = (size_t)s->stages * (size_t)s->micro + 1;
    size_t ranks = (size_t)s->ranks;
    sim x = {.s = s, .from = sched_copy(s), .costs = costs, .cross = cross,
             .rank = calloc(ranks, sizeof *x.rank),
             .heap = calloc(ranks, sizeof *x.heap),
             .made = {malloc(cells * sizeof **x.made),
                      malloc(cells * sizeof **x.made)}};
    bool ok = x.from && x.rank && x.heap && x.made[0] && x.made[1];
    if (ok)
        ok = lower(&x, err);
    else
        sched_fail(err, -1, 0, "no memory");
    for (int r = 0; x.rank && r < s->ranks; r++)
        free(x.rank[r].want);
    sched_free(x.from);
    free(x.rank);
    free(x.heap);
    free(x.made[0]);
    free(x.made[1]);
    return ok;
}
