/* search_beam.c - schedules made action by action, many side by side: of all
 * that have n actions, those that promise the earliest end are carried on.
 *
 *   width 1 is greedy; a width that drops nothing finds the best
 *
 * Branches are those of Giffler and Thompson: on the rank that can end
 * something first, everything that can start before that end; nothing better
 * is left out, as long as room is plenty. Where it is not, waiting may pay, so
 * that a rank may also refuse what would need more room until it has done
 * something else.
 */
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STAGES = 64 };        /* bits of holds */

/* F and I of stages that their ranks refuse. */
typedef struct holds {
    uint64_t of[2];
} holds;

/* How a state came about: by what, from which state of the layer before. */
typedef struct origin {
    int parent;
    uint8_t rank, code;
} origin;

typedef struct child {
    search_move move;
    search_value bound;
    uint64_t hash;
    int parent;
    int born;                    /* ties are broken by age */
    holds holds;
} child;

typedef struct beam {
    const search_problem *q;
    int width;
    search_state *now, *next;    /* width of each */
    search_state try;
    child *children;
    int n, cap;
    search_move *move;
    double *scratch;
    double best;
} beam;

/* ---- branches ------------------------------------------------------------ */

static uint64_t mix(uint64_t h, uint64_t x)
{
    h ^= x + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    return h * 0xff51afd7ed558ccdu;
}

static uint64_t hash_of(const search_problem *q, const search_state *st)
{
    uint64_t h = 1;
    for (int k = 0; k < NSTEPS; k++)
        for (int s = 0; s < q->stages; s++)
            h = mix(h, (uint64_t)st->n[k][s]);
    return h;
}

/* What is refused was not so before. */
static void set_holds(const search_problem *q, search_state *st, holds h,
                      uint8_t to)
{
    for (int step = 0; step < 2; step++)
        for (int s = 0; h.of[step] && s < q->stages; s++)
            if (h.of[step] >> s & 1)
                st->hold[step][s] = to;
}

static bool add_child(beam *b, int parent, search_move mv, holds h)
{
    const search_problem *q = b->q;
    if (b->n == b->cap) {
        int cap = b->cap ? 2 * b->cap : 256;
        child *more = realloc(b->children, (size_t)cap * sizeof *more);
        if (!more)
            return false;
        b->children = more;
        b->cap = cap;
    }
    search_state_copy(&b->try, &b->now[parent]);
    search_apply(q, &b->try, mv);
    search_value v = search_bound(q, &b->try, b->scratch);
    if (v.time < b->best * (1 - 1e-12)) {
        b->children[b->n] = (child){.move = mv, .bound = v, .parent = parent,
                                    .born = b->n, .holds = h};
        b->children[b->n++].hash = hash_of(q, &b->try);
    }
    return true;
}

/* The rank that ends something first; false: no rank can do anything. */
static bool first_to_end(beam *b, const search_state *st, int *rank,
                         double *end)
{
    const search_problem *q = b->q;
    *end = INFINITY;
    for (int r = 0; r < q->ranks; r++) {
        int n = search_moves(q, st, r, b->move);
        for (int i = 0; i < n; i++) {
            search_move m = b->move[i];
            double e = m.start + q->cost[m.step][m.stage];
            if (e < *end) {
                *end = e;
                *rank = r;
            }
        }
    }
    return !isinf(*end);
}

static bool branch(beam *b, int parent)
{
    const search_problem *q = b->q;
    search_state *st = &b->now[parent];
    holds h = {{0, 0}};
    for (;;) {
        int rank = 0;
        double end;
        if (!first_to_end(b, st, &rank, &end))
            break;
        int n = search_moves(q, st, rank, b->move);
        holds refused = {{0, 0}};
        for (int i = 0; i < n; i++) {
            search_move m = b->move[i];
            if (m.start >= end && m.start + q->cost[m.step][m.stage] > end)
                continue;
            if (!add_child(b, parent, m, h))
                return false;
            if (m.step != STEP_W)
                refused.of[m.step] |= (uint64_t)1 << m.stage;
        }
        if (!(refused.of[0] | refused.of[1]) || isinf(q->room[rank]))
            break;
        set_holds(q, st, refused, 1);
        h.of[0] |= refused.of[0];
        h.of[1] |= refused.of[1];
    }
    set_holds(q, st, h, 0);
    return true;
}

/* ---- choosing ------------------------------------------------------------ */

static int by_bound(const void *pa, const void *pb)
{
    const child *a = pa, *b = pb;
    if (search_better(a->bound, b->bound))
        return -1;
    if (search_better(b->bound, a->bound))
        return 1;
    return a->born - b->born;
}

/* Is `a` nowhere later than `b`, of which the same is done? */
static bool dominates(const search_problem *q, const search_state *a,
                      const search_state *b)
{
    for (int r = 0; r < q->ranks; r++)
        if (a->free[r] > b->free[r] || a->kept[r] > b->kept[r])
            return false;
    for (int s = 0; s < q->stages; s++) {
        if (a->hold[0][s] > b->hold[0][s] || a->hold[1][s] > b->hold[1][s])
            return false;
        int from = s + 1 < q->stages ? a->n[STEP_F][s + 1] : q->micro;
        for (int k = from; k < a->n[STEP_F][s]; k++)
            if (a->end[0][s * q->micro + k] > b->end[0][s * q->micro + k])
                return false;
        from = s > 0 ? a->n[STEP_I][s - 1] : q->micro;
        for (int k = from; k < a->n[STEP_I][s]; k++)
            if (a->end[1][s * q->micro + k] > b->end[1][s * q->micro + k])
                return false;
        for (int k = 0; q->slots && k < SCHED_NSPANS; k++)
            if (a->peak[s * SCHED_NSPANS + k] > b->peak[s * SCHED_NSPANS + k])
                return false;
    }
    return true;
}

/* The next layer: the best children that no better one makes pointless. */
static int select_next(beam *b, origin *history)
{
    const search_problem *q = b->q;
    uint64_t *hash = malloc((size_t)b->width * sizeof *hash);
    int kept = 0;
    qsort(b->children, (size_t)b->n, sizeof *b->children, by_bound);
    for (int i = 0; hash && i < b->n && kept < b->width; i++) {
        const child *c = &b->children[i];
        search_state *st = &b->next[kept];
        search_state_copy(st, &b->now[c->parent]);
        set_holds(q, st, c->holds, 1);
        search_apply(q, st, c->move);
        bool pointless = false;
        for (int j = 0; j < kept && !pointless; j++)
            pointless = hash[j] == c->hash && dominates(q, &b->next[j], st);
        if (pointless)
            continue;
        hash[kept] = c->hash;
        history[kept++] = (origin){
            c->parent, (uint8_t)c->move.rank,
            search_code(q->chunk_of[c->move.stage], c->move.step)};
    }
    free(hash);
    return kept;
}

/* ---- the whole ----------------------------------------------------------- */

static void write_order(const search_problem *q, const origin *history,
                        int width, int layers, uint8_t *order)
{
    int *n = malloc((size_t)q->ranks * sizeof *n);
    for (int r = 0; n && r < q->ranks; r++)
        n[r] = q->length;
    for (int at = 0, l = layers - 1; n && l >= 0; l--) {
        const origin *h = &history[l * width + at];
        order[h->rank * q->length + --n[h->rank]] = h->code;
        at = h->parent;
    }
    free(n);
}

static bool run_beam(beam *b, origin *history, uint8_t *order,
                     search_value *best)
{
    const search_problem *q = b->q;
    int layers = q->ranks * q->length, live = 1;
    for (int l = 0; l < layers; l++) {
        b->n = 0;
        for (int i = 0; i < live; i++)
            if (!branch(b, i))
                return false;
        live = select_next(b, history + l * b->width);
        if (!live)
            return false;
        search_state *t = b->now;
        b->now = b->next;
        b->next = t;
    }
    write_order(q, history, b->width, layers, order);
    *best = search_bound(q, &b->now[0], b->scratch);
    return true;
}

bool search_beam(const search_problem *q, int width, uint8_t *order,
                 search_value *best)
{
    beam b = {.q = q, .width = width, .best = best->time};
    size_t layers = (size_t)(q->ranks * q->length), w = (size_t)width;
    if (q->stages > MAX_STAGES)
        return false;
    origin *history = malloc(layers * w * sizeof *history);
    b.now = calloc(w, sizeof *b.now);
    b.next = calloc(w, sizeof *b.next);
    b.move = malloc((size_t)q->v * NSTEPS * sizeof *b.move);
    b.scratch = malloc(2 * (size_t)q->stages * sizeof *b.scratch);
    bool ok = history && b.now && b.next && b.move && b.scratch &&
              search_state_new(q, &b.try);
    for (int i = 0; ok && i < width; i++)
        ok = search_state_new(q, &b.now[i]) && search_state_new(q, &b.next[i]);
    ok = ok && run_beam(&b, history, order, best);
    for (int i = 0; i < width; i++) {
        if (b.now)
            search_state_free(&b.now[i]);
        if (b.next)
            search_state_free(&b.next[i]);
    }
    search_state_free(&b.try);
    free(b.now);
    free(b.next);
    free(b.children);
    free(b.move);
    free(b.scratch);
    free(history);
    return ok;
}
