/* search_improve.c - a schedule changed where it hurts: along the path of
 * actions that wait for each other until the end.
 *
 *   rank 2: .. I3 W0 W1 I4 ..   ->   .. I3 W0 I4 W1 ..
 *
 * Only a change of order within a block, actions of one rank on that path
 * without a gap, can make it shorter. An action is moved to another place of
 * its block; what is worse is accepted now and then, less and less (simulated
 * annealing), by a generator of random numbers that always starts alike.
 */
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return (uint32_t)(*seed >> 32);
}

/* Positions on the path that ends last, latest first. */
static int critical(const search_problem *q, const search_run *run, int *path)
{
    int last = 0, n = 0;
    double most = -INFINITY;
    for (int r = 0; r < q->ranks; r++) {
        int at = r * q->length + q->length - 1;
        double end = run->end[at] - q->off[r];
        if (end > most) {
            most = end;
            last = at;
        }
    }
    for (int at = last; at >= 0; at = run->cause[at])
        path[n++] = at;
    return n;
}

/* Takes the action at `from` out and puts it at `to`. */
static void shift(uint8_t *order, int from, int to)
{
    uint8_t code = order[from];
    if (from < to)
        memmove(order + from, order + from + 1, (size_t)(to - from));
    else
        memmove(order + to + 1, order + to, (size_t)(from - to));
    order[to] = code;
}

/* Two places of one block, the ends of a move; false where the drawn block has
 * one action or the move changes nothing. */
static bool draw_move(const search_run *run, const uint8_t *order,
                      const int *path, int n, uint64_t *seed, int *from,
                      int *to)
{
    int i = (int)(draw(seed) % (uint32_t)n), lo = i, hi = i;
    while (hi + 1 < n && run->cause[path[hi]] == path[hi] - 1)
        hi++;
    while (lo > 0 && run->cause[path[lo - 1]] == path[lo - 1] - 1)
        lo--;
    if (lo == hi)
        return false;
    /* Most moves are short: far ones break more than they mend. */
    int reach = draw(seed) % 2 ? 1 : 1 + (int)(draw(seed) % 8);
    int j = draw(seed) % 2 ? i + reach : i - reach;
    j = j < lo ? lo : j > hi ? hi : j;
    *from = path[i];
    *to = path[j];
    return order[*from] != order[*to];
}

/* One number to anneal. */
static double energy(const search_problem *q, search_value v)
{
    return v.time + 0.02 * v.sum / q->ranks;
}

typedef struct walk {
    uint8_t *order;              /* where it is */
    int *path;
    search_run *run, *trial;     /* of order; of the one that is tried */
    search_value value;
} walk;

static void anneal(const search_problem *q, walk *w, int tries, uint8_t *order)
{
    search_value best = w->value;
    uint64_t seed = 88172645463325252u;
    double heat = 0.01 * w->value.time;
    int n = critical(q, w->run, w->path);
    for (int t = 0; t < tries && best.time > q->bound * (1 + 1e-9); t++) {
        int from, to;
        if (!draw_move(w->run, w->order, w->path, n, &seed, &from, &to))
            continue;
        int rank = from / q->length;
        shift(w->order, from, to);
        search_value v = {INFINITY, INFINITY};
        if (search_fits(q, rank, w->order + rank * q->length))
            v = search_eval(q, w->order, w->trial);
        double worse = energy(q, v) - energy(q, w->value);
        double left = 1 - (double)t / tries;
        double chance = (draw(&seed) + 1.0) / 4294967297.0;
        if (worse > -heat * left * log(chance)) {
            shift(w->order, to, from);
            continue;
        }
        search_run *run = w->run;
        w->run = w->trial;
        w->trial = run;
        w->value = v;
        n = critical(q, w->run, w->path);
        if (search_better(v, best)) {
            best = v;
            memcpy(order, w->order, (size_t)(q->ranks * q->length));
        }
    }
}

void search_improve(const search_problem *q, int tries, uint8_t *order)
{
    size_t n = (size_t)(q->ranks * q->length);
    walk w = {.order = malloc(n), .path = malloc(n * sizeof *w.path),
              .run = search_run_new(q), .trial = search_run_new(q)};
    if (w.order && w.path && w.run && w.trial) {
        memcpy(w.order, order, n);
        w.value = search_eval(q, w.order, w.run);
        anneal(q, &w, tries, order);
    }
    free(w.order);
    free(w.path);
    search_run_free(w.run);
    search_run_free(w.trial);
}
