/* partition.c - cut a chain of units into stages, as numbers alone.
 *
 * Dynamic programming over (stage, first unit), from the last stage back,
 * twice: once for the least time of the heaviest stage, once, none being
 * heavier than that, for the least sum of squares. A stage grows unit by unit
 * and stops where it is too heavy, and begins only where the stages in front of
 * it and those behind it are not too heavy either: of equal units a pass costs
 * units * stages steps, and never more than units^2. Time and memory of a stage
 * only grow with it.
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
    double *upto;                    /* by unit: seconds of those before it */
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

/* Can stages that are not too heavy have all units before u, and all others? */
static bool in_reach(const cutter *c, int s, int u)
{
    double before = c->upto[u], after = c->upto[c->n] - before;
    return !more(before, s * c->limit) && !more(after, (c->s - s) * c->limit);
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
            if (may_begin(c, s, u) && in_reach(c, s, u))
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
typedef struct move {
    int *begin;                      /* of all stages, moved */
    double *load;                    /* of all devices then */
    int by;
    bool ends;                       /* no more stages can be moved so */
} move;

static void set_load(const cutter *c, double *load, const int *begin)
{
    memset(load, 0, sizeof *load * (size_t)c->q->devices);
    for (int s = 0; s < c->s; s++)
        load[c->q->device[s]] += c->upto[begin[s + 1]] - c->upto[begin[s]];
}

static void start(const cutter *c, move *m, const int *begin)
{
    memcpy(m->begin, begin, sizeof *begin * (size_t)(c->s + 1));
    set_load(c, m->load, begin);
    m->ends = false;
}

/* Stage s too. False: that is not a cut. */
static bool shift(const cutter *c, move *m, int s)
{
    int was = m->begin[s], now = m->ends ? -1 : step_from(c, s, was, m->by);
    m->ends = now <= m->begin[s - 1];
    if (m->ends)
        return false;
    double more_before = c->upto[now] - c->upto[was];
    m->begin[s] = now;
    m->load[c->q->device[s - 1]] += more_before;
    m->load[c->q->device[s]] -= more_before;
    return now < m->begin[s + 1];
}

typedef struct score {
    double heaviest, squares;
} score;

static score score_of(const cutter *c, const double *load)
{
    score x = {0, 0};
    for (int d = 0; d < c->q->devices; d++) {
        x.heaviest = load[d] > x.heaviest ? load[d] : x.heaviest;
        x.squares += load[d] * load[d];
    }
    return x;
}

static bool better(score x, score now)
{
    return !more(x.heaviest, now.heaviest) &&
           (more(now.heaviest, x.heaviest) || more(now.squares, x.squares));
}

/* Would a cut have room that the one at hand may have already? */
static bool may_be(const cutter *c, const int *begin, bool fits,
                   part_result *r)
{
    if (fits && c->q->room > 0)
        measure(c, begin, r);
    return !fits || c->q->room <= 0 || r->fits;
}

/* The best single move. False: none helps. */
static bool improve(const cutter *c, int *begin, part_result *now)
{
    int moved[2][c->s + 1], best[c->s + 1];
    double load[2][c->q->devices];
    move m[2] = {{moved[0], load[0], -1, false}, {moved[1], load[1], 1, false}};
    part_result r = {.stage = malloc(sizeof *r.stage * (size_t)c->s)};
    bool found = false;
    set_load(c, load[0], begin);
    score least = score_of(c, load[0]);
    for (int a = 1; r.stage && a < c->s; a++) {
        start(c, &m[0], begin);
        start(c, &m[1], begin);
        for (int i = 2 * a; i < 2 * c->s && !(m[0].ends && m[1].ends); i++) {
            move *x = &m[i % 2];
            if (!shift(c, x, i / 2))
                continue;
            score is = score_of(c, x->load);
            if (!better(is, least) || !may_be(c, x->begin, now->fits, &r))
                continue;
            found = true;
            least = is;
            memcpy(best, x->begin, sizeof best);
        }
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
    double most = 0;
    for (int u = 0; u < c->n; u++)
        most = c->q->seconds[u] > most ? c->q->seconds[u] : most;
    return c->upto[c->n] / c->s + most;
}

static bool cut_under(cutter *c, double room, int *begin)
{
    double all = c->upto[c->n], best = INFINITY;
    c->room = room;
    c->squares = false;
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
    c.upto = calloc((size_t)q->n + 1, sizeof *c.upto);
    out->stage = calloc((size_t)q->stages, sizeof *out->stage);
    bool ok = begin && c.best && c.next && c.first && c.upto && out->stage &&
              q->n > 0;
    for (int i = 0; ok && i < q->nshares; i++)
        c.first[q->share[i].unit + 1]++;
    for (int u = 0; ok && u < q->n; u++) {
        c.first[u + 1] += c.first[u];
        c.upto[u + 1] = c.upto[u] + q->seconds[u];
    }
    ok = ok && cut(&c, begin, out);
    free(begin);
    free(c.best);
    free(c.next);
    free(c.first);
    free(c.upto);
    return ok;
}
