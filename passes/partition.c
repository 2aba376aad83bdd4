/* partition.c - cut a chain of units into stages, as numbers alone.
 *
 * Dynamic programming over (stage, first unit), from the last stage back,
 * twice: once for the least time of the heaviest stage, once, none being
 * heavier than that, for the least sum of squares. A stage grows unit by unit
 * and stops where it is too heavy, so that a pass costs about units^2 steps,
 * whatever the number of stages. Time and memory of a stage only grow with it.
 *
 * Devices with several stages: the same, then steps that move one unit between
 * two stages as long as they help the heaviest device. That is exact for equal
 * units, and otherwise the best that single moves find.
 */
#include "partition.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct cutter {
    const part_ask *q;
    int n, s;
    double *best;                    /* [stage * (n + 1) + unit] */
    int *next;                       /* ... where the next stage begins */
    int *first;                      /* by unit: its first share */
    double limit;                    /* seconds of a stage */
    double room;                     /* bytes of a stage */
    bool squares;
} cutter;

/* Sums in another order differ by so much of themselves. */
static const double slack = 1e-9;

static bool more(double x, double y)
{
    return x > y + slack * fabs(y);
}

static void grow(const cutter *c, part_stage *st)
{
    int u = st->end++;
    st->seconds += c->q->seconds[u];
    for (int i = c->first[u]; i < c->first[u + 1]; i++)
        if (c->q->share[i].before < st->begin) {
            st->fixed += c->q->share[i].fixed;
            st->held += c->q->share[i].held;
        }
}

static double bytes_of(const cutter *c, int s, const part_stage *st)
{
    return st->fixed + st->held * (c->q->flight ? c->q->flight[s] : 1);
}

static bool may_begin(const cutter *c, int s, int u)
{
    if (s < c->s && c->q->least && (u < c->q->least[s] || u > c->q->most[s]))
        return false;
    return u == c->n ? s == c->s : u == 0 ? s == 0
           : s > 0 && s < c->s && c->q->opens[u];
}

/* The best for stages s and on, when s begins with unit u. */
static void solve_one(cutter *c, int s, int u)
{
    part_stage st = {.begin = u, .end = u};
    double best = INFINITY;
    int next = -1;
    while (st.end < c->n) {
        grow(c, &st);
        if (more(st.seconds, c->limit) ||
            (c->room > 0 && bytes_of(c, s, &st) > c->room))
            break;
        double rest = c->best[(s + 1) * (c->n + 1) + st.end];
        if (!isfinite(rest))
            continue;
        double x = c->squares ? rest + st.seconds * st.seconds
                   : rest > st.seconds ? rest : st.seconds;
        if (next < 0 || !more(x, best)) {
            best = next >= 0 && best < x ? best : x;
            next = st.end;
        }
    }
    c->best[s * (c->n + 1) + u] = best;
    c->next[s * (c->n + 1) + u] = next;
}

/* The value of the best cut; INFINITY: there is none. */
static double solve(cutter *c)
{
    int row = c->n + 1;
    for (int i = 0; i < (c->s + 1) * row; i++)
        c->best[i] = INFINITY;
    c->best[c->s * row + c->n] = 0;
    for (int s = c->s - 1; s >= 0; s--)
        for (int u = 0; u < c->n; u++)
            if (may_begin(c, s, u))
                solve_one(c, s, u);
    return c->best[0];
}

/* ---- devices ------------------------------------------------------------- */

static void measure(const cutter *c, const int *begin, part_result *out)
{
    double load[c->q->devices], bytes[c->q->devices];
    memset(load, 0, sizeof load);
    memset(bytes, 0, sizeof bytes);
    for (int s = 0; s < c->s; s++) {
        part_stage *st = &out->stage[s];
        *st = (part_stage){.begin = begin[s], .end = begin[s]};
        while (st->end < begin[s + 1])
            grow(c, st);
        load[c->q->device[s]] += st->seconds;
        bytes[c->q->device[s]] += bytes_of(c, s, st);
    }
    out->heaviest = out->bytes = 0;
    for (int d = 0; d < c->q->devices; d++) {
        out->heaviest = load[d] > out->heaviest ? load[d] : out->heaviest;
        out->bytes = bytes[d] > out->bytes ? bytes[d] : out->bytes;
    }
    out->fits = c->q->room <= 0 || out->bytes <= c->q->room;
}

static double squares_of(const cutter *c, const part_result *r)
{
    double load[c->q->devices], sum = 0;
    memset(load, 0, sizeof load);
    for (int s = 0; s < c->s; s++)
        load[c->q->device[s]] += r->stage[s].seconds;
    for (int d = 0; d < c->q->devices; d++)
        sum += load[d] * load[d];
    return sum;
}

/* The next place before or behind u where stage s may begin, or -1. */
static int step_from(const cutter *c, int s, int u, int by)
{
    do
        u += by;
    while (u > 0 && u < c->n && !may_begin(c, s, u));
    return u > 0 && u < c->n ? u : -1;
}

/* Stages a .. b begin one place earlier or later: about a unit goes from stage
 * b to a - 1, or back. */
static bool shift(const cutter *c, int *begin, int a, int b, int by)
{
    for (int s = a; s <= b; s++)
        if ((begin[s] = step_from(c, s, begin[s], by)) < 0)
            return false;
    for (int s = a; s <= b + 1; s++)
        if (begin[s] <= begin[s - 1])
            return false;
    return true;
}

/* The best single move. False: none helps. */
static bool improve(const cutter *c, int *begin, part_result *now)
{
    int trial[c->s + 1], best[c->s + 1];
    double squares = squares_of(c, now);
    bool found = false;
    part_result r = {.stage = malloc(sizeof *r.stage * (size_t)c->s)};
    for (int i = 0; r.stage && i < 2 * c->s * c->s; i++) {
        int a = i / 2 / c->s, b = i / 2 % c->s;
        memcpy(trial, begin, sizeof trial);
        if (a < 1 || b < a || !shift(c, trial, a, b, i % 2 ? 1 : -1))
            continue;
        measure(c, trial, &r);
        double sq = squares_of(c, &r);
        if ((now->fits && !r.fits) || more(r.heaviest, now->heaviest) ||
            (!more(now->heaviest, r.heaviest) && !more(squares, sq)))
            continue;
        found = true;
        now->heaviest = r.heaviest;
        squares = sq;
        memcpy(best, trial, sizeof best);
    }
    free(r.stage);
    if (found)
        memcpy(begin, best, sizeof best);
    measure(c, begin, now);
    return found;
}

/* ---- all ----------------------------------------------------------------- */

static void read_cut(const cutter *c, int *begin)
{
    begin[0] = 0;
    for (int s = 0; s < c->s; s++)
        begin[s + 1] = c->next[s * (c->n + 1) + begin[s]];
}

/* A bound that some cut is likely to keep: it makes stages short. */
static double first_limit(const cutter *c)
{
    double sum = 0, most = 0;
    for (int u = 0; u < c->n; u++) {
        sum += c->q->seconds[u];
        most = c->q->seconds[u] > most ? c->q->seconds[u] : most;
    }
    return sum / c->s + most;
}

static bool cut_under(cutter *c, double room, int *begin)
{
    double all = 0, best = INFINITY;
    c->room = room;
    c->squares = false;
    for (int u = 0; u < c->n; u++)
        all += c->q->seconds[u];
    for (c->limit = first_limit(c); !isfinite(best); c->limit *= 2) {
        best = solve(c);
        if (!isfinite(best) && c->limit >= all)
            return false;
    }
    c->limit = best;
    c->squares = true;
    solve(c);
    read_cut(c, begin);
    return true;
}

/* The cut that needs the least room, to say how much that is: within 1%. */
static bool cut_smallest(cutter *c, int *begin, part_result *out)
{
    double low = 0, high = c->q->room;
    while (!cut_under(c, high, begin)) {
        low = high;
        high *= 2;
        if (!isfinite(high))
            return false;
    }
    for (int i = 0; i < 8; i++) {
        double half = (low + high) / 2;
        if (cut_under(c, half, begin))
            high = half;
        else
            low = half;
    }
    cut_under(c, high, begin);
    measure(c, begin, out);
    return true;
}

static void cut_devices(cutter *c, int *begin, part_result *out)
{
    double each = c->q->room * c->q->devices / c->s;
    measure(c, begin, out);
    if (c->s > c->q->devices)
        while (improve(c, begin, out))
            ;
    if (!out->fits && c->s > c->q->devices && cut_under(c, each, begin)) {
        measure(c, begin, out);
        while (improve(c, begin, out))
            ;
    }
}

static bool cut(cutter *c, int *begin, part_result *out)
{
    bool any = cut_under(c, 0, begin);
    if (!any)
        return false;
    if (c->q->room > 0 && !cut_under(c, c->q->room, begin))
        return cut_smallest(c, begin, out);
    cut_devices(c, begin, out);
    return true;
}

bool part_cut(const part_ask *q, part_result *out)
{
    size_t cells = (size_t)(q->stages + 1) * (size_t)(q->n + 1);
    cutter c = {.q = q, .n = q->n, .s = q->stages};
    int *begin = calloc((size_t)q->stages + 1, sizeof *begin);
    c.best = calloc(cells, sizeof *c.best);
    c.next = calloc(cells, sizeof *c.next);
    c.first = calloc((size_t)q->n + 2, sizeof *c.first);
    out->stage = calloc((size_t)q->stages, sizeof *out->stage);
    bool ok = begin && c.best && c.next && c.first && out->stage && q->n > 0;
    for (int i = 0; ok && i < q->nshares; i++)
        c.first[q->share[i].unit + 1]++;
    for (int u = 0; ok && u < q->n; u++)
        c.first[u + 1] += c.first[u];
    ok = ok && cut(&c, begin, out);
    free(begin);
    free(c.best);
    free(c.next);
    free(c.first);
    return ok;
}
