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
 * placed when the receiver needs it next and the sender is between two
 * computations. All rows follow one common order in time, hence nobody waits in
 * a circle, and between two ranks messages arrive in the order they were sent;
 * check.c proves both afterwards without trusting this file.
 *
 * Receiving no earlier than needed also keeps what a schedule promises about
 * memory: a received input is not held before its turn.
 */
#include "sched.h"

#include <stdlib.h>
#include <string.h>

typedef struct rank_sim {
    int next;                        /* index into the row of computations */
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
    const sched *from;               /* rows are read */
    const sched_costs *costs;
    const uint8_t *cross;
    rank_sim *rank;
    double *made[2];                 /* by stage and microbatch: when F, and B
                                        or I, were done; -1: not yet */
    bool *got[2];                    /* what it reads was received */
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

static double cost_of(const double *by_stage, int stage, double otherwise)
{
    return by_stage ? by_stage[stage] : otherwise;
}

static double time_of(const sim *x, sched_action a)
{
    static const sched_costs none;
    const sched_costs *c = x->costs ? x->costs : &none;
    switch (a.op) {
    case SCHED_F:
        return cost_of(c->f, a.stage, 1);
    case SCHED_I:
        return cost_of(c->i, a.stage, 1);
    case SCHED_W:
        return cost_of(c->w, a.stage, 1);
    case SCHED_B:
        return cost_of(c->i, a.stage, 1) + cost_of(c->w, a.stage, 1);
    default:
        return 0;
    }
}

static size_t cell_of(const sim *x, int stage, int mb)
{
    return (size_t)stage * (size_t)x->s->micro + (size_t)mb;
}

/* A message that action `a` waits for: has it come, and if it has not, when is
 * it made and carried here? */
static bool is_open(const sim *x, sched_action a, double *there)
{
    int from = sched_source(x->from, x->cross, a);
    int back = a.op != SCHED_F;
    if (from < 0 || x->s->rank_of[from] == x->s->rank_of[a.stage] ||
        x->got[back][cell_of(x, a.stage, a.mb)])
        return false;
    double made = x->made[back][cell_of(x, from, a.mb)];
    const double *way = !x->costs ? NULL
                        : back ? x->costs->back : x->costs->ahead;
    *there = made < 0 ? -1 : made + cost_of(way, from, 0);
    return true;
}

/* The first message that the next cell of rank r waits for: a cell of two
 * actions begins when it has both. Returns the index of who reads it, or -1. */
static int reader_of(const sim *x, int r, double *there)
{
    const sched_row *row = &x->from->row[r];
    for (int i = x->rank[r].next; i < row->n; i++) {
        if (is_open(x, row->v[i], there))
            return i;
        if (!row->v[i].joined)
            break;
    }
    return -1;
}

/* At the same time messages go first, because they are free, and gradients
 * before activations, because they release memory; then what takes no time.
 * False: it waits for what is not made. */
static bool next_event(const sim *x, int r, event *e, int *reader)
{
    const rank_sim *me = &x->rank[r];
    double there = 0;
    *reader = reader_of(x, r, &there);
    bool free = time_of(x, x->from->row[r].v[me->next]) == 0;
    *e = (event){me->clock, free ? 2 : 3, r};
    if (*reader < 0)
        return true;
    if (there < 0)
        return false;
    sched_action a = x->from->row[r].v[*reader];
    int peer = x->s->rank_of[sched_source(x->from, x->cross, a)];
    e->turn = a.op == SCHED_F;
    e->time = x->rank[peer].clock > e->time ? x->rank[peer].clock : e->time;
    e->time = there > e->time ? there : e->time;
    return true;
}

/* ---- doing it ------------------------------------------------------------ */

static void list(sim *x, int r)
{
    event e;
    int reader;
    if (x->rank[r].next == x->from->row[r].n)
        return;
    x->rank[r].waits = !next_event(x, r, &e, &reader);
    if (!x->rank[r].waits)
        put(x, e);
}

static void carry(sim *x, int r, int reader, double time)
{
    sched_action a = x->from->row[r].v[reader];
    sched_action recv = {.op = a.op == SCHED_F ? SCHED_RECV_F : SCHED_RECV_B,
                         .stage = a.stage};
    sched_action send = sched_other_end(recv);
    int peer = x->s->rank_of[send.stage];
    sched_push(x->s, peer, send.op, send.stage, a.mb);
    sched_push(x->s, r, recv.op, recv.stage, a.mb);
    x->got[a.op != SCHED_F][cell_of(x, a.stage, a.mb)] = true;
    x->rank[r].clock = x->rank[peer].clock = time;
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
        x->rank[r].clock += time_of(x, a);
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
        int reader;
        next_event(x, e.rank, &now, &reader);
        if (before(e, now)) {
            put(x, now);
            continue;
        }
        if (reader >= 0)
            carry(x, e.rank, reader, now.time);
        else
            compute(x, e.rank);
        list(x, e.rank);
    }
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
    sched *from = sched_copy(s);
    sim x = {.s = s, .from = from, .costs = costs, .cross = cross};
    x.rank = calloc(ranks, sizeof *x.rank);
    x.heap = calloc(ranks, sizeof *x.heap);
    bool ok = from && x.rank && x.heap;
    for (int k = 0; k < 2; k++) {
        x.made[k] = malloc(cells * sizeof *x.made[k]);
        x.got[k] = calloc(cells, sizeof *x.got[k]);
        ok = ok && x.made[k] && x.got[k];
        for (size_t i = 0; ok && i < cells; i++)
            x.made[k][i] = -1;
    }
    if (ok) {
        for (int r = 0; r < s->ranks; r++)
            s->row[r].n = 0;
        simulate(&x);
        s->lowered = true;
    } else {
        sched_fail(err, -1, 0, "no memory");
    }
    sched_free(from);
    free(x.rank);
    free(x.heap);
    for (int k = 0; k < 2; k++) {
        free(x.made[k]);
        free(x.got[k]);
    }
    return ok;
}
