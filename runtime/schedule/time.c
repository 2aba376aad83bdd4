/* time.c - when everything happens, if every action takes the time that the
 * costs say.
 *
 *   0F0 0F1 0B0 0B1      F = 1, B = 2:   F0 0-1, F1 1-2, B0 4-6, B1 7-9
 *   1F0 1B0 1F1 1B1                      F0 1-2, B0 2-4, F1 4-5, B1 5-7
 *
 * No clock ticks. A rank does its row until an action has to wait for one of
 * another rank, and is taken up again when that one is done: every action is
 * looked at once, or twice if it had to wait.
 *
 * A joined pair is one cell: it starts when both have what they need, takes the
 * time of both, and what either makes is there at its end.
 */
#include "sched.h"

#include <stdlib.h>

typedef struct sim {
    sched *s;
    const sched_costs *c;
    size_t cells;                    /* stages * micro */
    double *forward, *backward;      /* end of F; of I or B; < 0: not yet */
    double *free_at;                 /* by rank */
    int *next;                       /* by rank: index into its row */
    int *list, listed;               /* ranks to take up */
    bool *waits;                     /* by rank: in the list */
} sim;

static double cost(const double *of, int stage, double otherwise)
{
    return of ? of[stage] : otherwise;
}

double sched_takes(const sched_costs *c, const sched_action *a)
{
    static const sched_costs none;

    c = c ? c : &none;
    switch (a->op) {
    case SCHED_F:
        return cost(c->f, a->stage, 1);
    case SCHED_I:
        return cost(c->i, a->stage, 1);
    case SCHED_W:
        return cost(c->w, a->stage, 1);
    case SCHED_B:
        return cost(c->i, a->stage, 1) + cost(c->w, a->stage, 1);
    case SCHED_SEND_F:
        return cost(c->ahead, a->stage, 0);
    case SCHED_RECV_F:
        return cost(c->ahead, a->stage - 1, 0);
    case SCHED_SEND_B:
        return cost(c->back, a->stage, 0);
    case SCHED_RECV_B:
        return cost(c->back, a->stage + 1, 0);
    default:
        return 0;
    }
}

static size_t cell(const sim *x, int stage, int mb)
{
    return (size_t)stage * (size_t)x->s->micro + (size_t)mb;
}

/* When what crosses from `from` to `to` is there; < 0: it is not made yet. */
static double arrives(const sim *x, int from, int to, int mb)
{
    bool ahead = to > from;
    double made = (ahead ? x->forward : x->backward)[cell(x, from, mb)];
    if (made < 0 || x->s->rank_of[from] == x->s->rank_of[to])
        return made;
    return made + cost(ahead ? x->c->ahead : x->c->back, from, 0);
}

/* When its operands are there; < 0: not yet. */
static double ready(const sim *x, const sched_action *a)
{
    int s = a->stage, mb = a->mb;
    double own, other = 0;
    switch (a->op) {
    case SCHED_F:
        return sched_crosses(x->s, x->c->cross, s - 1, SCHED_AHEAD)
               ? arrives(x, s - 1, s, mb) : 0;
    case SCHED_B:
    case SCHED_I:
        own = x->forward[cell(x, s, mb)];
        if (sched_crosses(x->s, x->c->cross, s, SCHED_BACK))
            other = arrives(x, s + 1, s, mb);
        return own < 0 || other < 0 ? -1 : own > other ? own : other;
    case SCHED_W:
    case SCHED_U:
        return x->backward[cell(x, s, mb)];
    default:                         /* messages: set at the end */
        return 0;
    }
}

static void take_up(sim *x, int rank)
{
    if (x->waits[rank])
        return;
    x->waits[rank] = true;
    x->list[x->listed++] = rank;
}

/* Notes the end of an action and takes up the rank that may wait for it. */
static void done(sim *x, sched_action *a, double start, double end)
{
    int s = a->stage;
    a->start = start;
    a->end = end;
    if (a->op == SCHED_F) {
        x->forward[cell(x, s, a->mb)] = end;
        if (s + 1 < x->s->stages)
            take_up(x, x->s->rank_of[s + 1]);
    } else if (a->op == SCHED_B || a->op == SCHED_I) {
        x->backward[cell(x, s, a->mb)] = end;
        if (s > 0)
            take_up(x, x->s->rank_of[s - 1]);
    }
}

/* Messages lie between two computations and take no time of the rank. */
static int skip_messages(const sched_row *row, int i)
{
    while (i < row->n && !sched_is_compute(row->v[i].op))
        i++;
    return i;
}

static void advance(sim *x, int rank)
{
    sched_row *row = &x->s->row[rank];
    for (;;) {
        int i = x->next[rank] = skip_messages(row, x->next[rank]);
        if (i == row->n)
            return;
        sched_action *a = &row->v[i], *b = NULL;
        double start = ready(x, a), end;
        if (start < 0)
            return;
        if (start < x->free_at[rank])
            start = x->free_at[rank];
        if (a->joined && i + 1 < row->n) {
            b = a + 1;
            double also = ready(x, b);
            if (also < 0)
                return;
            if (start < also)
                start = also;
        }
        end = start + sched_takes(x->c, a) + (b ? sched_takes(x->c, b) : 0);
        done(x, a, start, end);
        if (b)
            done(x, b, start, end);
        x->free_at[rank] = end;
        x->next[rank] = i + (b ? 2 : 1);
    }
}

/* A message is under way from when it was made. */
static void time_messages(sim *x)
{
    for (int r = 0; r < x->s->ranks; r++)
        for (int i = 0; i < x->s->row[r].n; i++) {
            sched_action *a = &x->s->row[r].v[i];
            if (sched_is_compute(a->op))
                continue;
            bool ahead = a->op == SCHED_SEND_F || a->op == SCHED_RECV_F;
            int from = a->op == SCHED_RECV_F   ? a->stage - 1
                       : a->op == SCHED_RECV_B ? a->stage + 1
                                               : a->stage;
            a->start = (ahead ? x->forward : x->backward)
                [cell(x, from, a->mb)];
            a->end = a->start + sched_takes(x->c, a);
        }
}

/* ---- what a rank does and holds ------------------------------------------ */

typedef struct held {
    double kept;
    int chunks;
} held;

/* Adds what an action makes (sign 1), or takes away what it frees (-1). */
static void hold(const sched_costs *c, const sched_action *a, int sign,
                 held *h)
{
    h->kept += sign > 0 ? sched_keeps(c, a) : -sched_frees(c, a);
    if (sign > 0)
        h->chunks += a->op == SCHED_F;
    else
        h->chunks -= a->op == SCHED_W || a->op == SCHED_B;
}

static void rank_time(const sim *x, int rank, sched_rank_time *t)
{
    const sched_row *row = &x->s->row[rank];
    held now = {0};
    bool any = false;
    *t = (sched_rank_time){0};
    for (int i = 0; i < row->n; i++) {
        const sched_action *a = &row->v[i];
        if (!sched_is_compute(a->op))
            continue;
        t->busy += sched_takes(x->c, a);
        if (!any)
            t->first = a->start;
        any = true;
        t->last = a->end;
        hold(x->c, a, 1, &now);
        if (t->kept < now.kept)
            t->kept = now.kept;
        if (t->chunks < now.chunks)
            t->chunks = now.chunks;
        /* The first of a joined pair frees nothing before the cell ends. */
        if (a->joined)
            continue;
        if (i > 0 && row->v[i - 1].joined)
            hold(x->c, a - 1, -1, &now);
        hold(x->c, a, -1, &now);
    }
}

static int64_t count_messages(const sim *x)
{
    const sched *s = x->s;
    int64_t n = 0;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++) {
            const sched_action *a = &s->row[r].v[i];
            bool ahead = a->op == SCHED_F;
            int edge = ahead ? a->stage - 1 : a->stage;
            if (ahead || a->op == SCHED_B || a->op == SCHED_I)
                n += sched_crosses(s, x->c->cross, edge,
                                   ahead ? SCHED_AHEAD : SCHED_BACK) &&
                     s->rank_of[edge] != s->rank_of[edge + 1];
        }
    return n;
}

static bool summarize(const sim *x, sched_times *out, sched_error *err)
{
    double sum = 0;
    int p = x->s->ranks;
    out->messages = count_messages(x);
    out->rank = calloc((size_t)p + 1, sizeof *out->rank);
    if (!out->rank)
        return sched_fail(err, -1, 0, "no memory for the times of %s",
                          x->s->name);
    for (int r = 0; r < p; r++) {
        sched_rank_time *t = &out->rank[r];
        rank_time(x, r, t);
        sum += t->busy;
        if (out->makespan < t->last)
            out->makespan = t->last;
        if (out->ideal < t->busy)
            out->ideal = t->busy;
    }
    if (out->makespan > 0) {
        out->bubble_ideal = (out->makespan - out->ideal) / out->ideal;
        out->bubble_total = (out->makespan - sum / p) / out->makespan;
    }
    return true;
}

/* ---- all of it ----------------------------------------------------------- */

static bool in_range(const sched *s, sched_error *err)
{
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++) {
            const sched_action *a = &s->row[r].v[i];
            bool message = !sched_is_compute(a->op);
            int low = message && a->op == SCHED_RECV_F;
            int high = s->stages - (a->op == SCHED_RECV_B);
            if (a->stage < low || a->stage >= high || a->mb < 0 ||
                a->mb >= s->micro || s->rank_of[a->stage] != r)
                return sched_fail(err, r, i, "%d%s%d is not an action of rank "
                                  "%d: %d stages, %d microbatches", a->stage,
                                  sched_op_name[a->op], a->mb, r, s->stages,
                                  s->micro);
        }
    return true;
}

static bool finished(const sim *x, sched_error *err)
{
    for (int r = 0; r < x->s->ranks; r++) {
        int i = x->next[r];
        if (i == x->s->row[r].n)
            continue;
        const sched_action *a = &x->s->row[r].v[i];
        return sched_fail(err, r, i, "the ranks wait for each other: %d%s%d of "
                          "rank %d never has its operands", a->stage,
                          sched_op_name[a->op], a->mb, r);
    }
    return true;
}

static bool simulate(sim *x, sched_times *out, sched_error *err)
{
    for (size_t i = 0; i < x->cells; i++)
        x->forward[i] = x->backward[i] = -1;
    for (int r = 0; r < x->s->ranks; r++)
        take_up(x, r);
    while (x->listed) {
        int r = x->list[--x->listed];
        x->waits[r] = false;
        advance(x, r);
    }
    if (!finished(x, err))
        return false;
    time_messages(x);
    return summarize(x, out, err);
}

bool sched_time(sched *s, const sched_costs *costs, sched_times *out,
                sched_error *err)
{
    static const sched_costs all_one;
    size_t p = (size_t)s->ranks;
    sim x = {.s = s, .c = costs ? costs : &all_one,
             .cells = (size_t)s->stages * (size_t)s->micro};
    *out = (sched_times){0};
    if (!in_range(s, err))
        return false;
    x.forward = malloc((x.cells + 1) * sizeof *x.forward);
    x.backward = malloc((x.cells + 1) * sizeof *x.backward);
    x.free_at = calloc(p + 1, sizeof *x.free_at);
    x.next = calloc(p + 1, sizeof *x.next);
    x.list = calloc(p + 1, sizeof *x.list);
    x.waits = calloc(p + 1, sizeof *x.waits);
    bool ok = x.forward && x.backward && x.free_at && x.next && x.list &&
              x.waits;
    if (ok)
        ok = simulate(&x, out, err);
    else
        sched_fail(err, -1, 0, "no memory for the times of %s", s->name);
    free(x.forward);
    free(x.backward);
    free(x.free_at);
    free(x.next);
    free(x.list);
    free(x.waits);
    return ok;
}
