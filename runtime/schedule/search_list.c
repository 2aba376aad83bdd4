/* search_list.c - one schedule, made action by action in the order of time: the
 * rank that can start something first does, and a rule says what.
 *
 *   {gap = 1, ahead = .5}: W where it delays nothing, forwards as in 1f1b
 *
 * The heuristic of zero-bubble schedules (arXiv 2401.10241) is one of these
 * rules, for each of which one pass over all actions is enough.
 */
#include "search.h"

#include <math.h>
#include <stdlib.h>

typedef struct lister {
    const search_problem *q;
    const search_rule *rule;
    search_state st;
    search_move *move;           /* room for what one rank can do */
    search_move *best;           /* by rank: what it does next */
    int *limit;                  /* by rank: microbatches ahead */
} lister;

/* How many F of a rank come before the I that the first of them leads to: the
 * way to the loss and back in units of the rank's own work, times `ahead`. */
static void set_limits(lister *l)
{
    const search_problem *q = l->q;
    double *way = calloc((size_t)q->stages, sizeof *way);
    for (int s = q->stages - 1; way && s >= 0; s--) {
        if (s + 1 == q->stages)
            continue;
        way[s] = way[s + 1] + q->cost[STEP_F][s + 1] + q->cost[STEP_I][s + 1];
        way[s] += q->lag[0][s + 1] > 0 ? q->lag[0][s + 1] : 0;
        way[s] += q->lag[1][s] > 0 ? q->lag[1][s] : 0;
    }
    for (int r = 0; r < q->ranks; r++) {
        double unit = 0;
        for (int c = 0; c < q->v; c++) {
            int s = q->stage_at[r * q->v + c];
            unit += (q->cost[STEP_F][s] + q->cost[STEP_I][s]) / (2 * q->v);
        }
        double n = way ? l->rule->ahead * way[q->stage_at[r * q->v]] / unit : 0;
        l->limit[r] = n < q->v * q->micro ? 1 + (int)ceil(n - 1e-9)
                                          : q->v * q->micro;
        if (l->limit[r] < q->v)      /* one microbatch must come through */
            l->limit[r] = q->v;
    }
    free(way);
}

/* May the rank take one more? Its oldest microbatch always may go on. */
static bool ahead_ok(const lister *l, int rank, int stage)
{
    const search_problem *q = l->q;
    int inside = 0, oldest = q->micro;
    for (int c = 0; c < q->v; c++) {
        int s = q->stage_at[rank * q->v + c];
        int back = l->st.n[STEP_I][s];
        inside += l->st.n[STEP_F][s] - back;
        oldest = back < oldest ? back : oldest;
    }
    return inside < l->limit[rank] || l->st.n[STEP_F][stage] == oldest;
}

/* Which of two that can start at once: groups of microbatches one after the
 * other, each through all stages of the rank. */
static bool sooner(const lister *l, search_move a, search_move b)
{
    const search_problem *q = l->q;
    if ((a.step == STEP_F) != (b.step == STEP_F))
        return (a.step == STEP_F) == l->rule->forward_first;
    int ga = l->st.n[a.step][a.stage] / l->rule->group;
    int gb = l->st.n[b.step][b.stage] / l->rule->group;
    if (ga != gb)
        return ga < gb;
    int ca = q->chunk_of[a.stage], cb = q->chunk_of[b.stage];
    return a.step == STEP_F ? ca < cb : ca > cb;
}

/* What a rank does next; start INFINITY: nothing that is known by now. */
static search_move choose(lister *l, int rank)
{
    const search_problem *q = l->q;
    search_move none = {rank, 0, 0, INFINITY}, main = none, weight = none;
    int n = search_moves(q, &l->st, rank, l->move);
    for (int i = 0; i < n; i++) {
        search_move m = l->move[i];
        if (m.step == STEP_W) {
            if (isinf(weight.start) ||
                l->st.n[STEP_W][m.stage] < l->st.n[STEP_W][weight.stage])
                weight = m;
            continue;
        }
        if (m.step == STEP_F && !ahead_ok(l, rank, m.stage))
            continue;
        if (m.start < main.start ||
            (m.start == main.start && sooner(l, m, main)))
            main = m;
    }
    if (isinf(weight.start))
        return main;
    double gap = main.start - l->st.free[rank];
    return gap > 0 && gap >= l->rule->gap * q->cost[STEP_W][weight.stage]
               ? weight
           : l->rule->gap == 0 ? weight
                               : main;
}

static bool make(lister *l, uint8_t *order)
{
    const search_problem *q = l->q;
    int *n = calloc((size_t)q->ranks, sizeof *n);
    int left = n ? q->ranks * q->length : -1;
    for (int r = 0; n && r < q->ranks; r++)
        l->best[r] = choose(l, r);
    for (; left > 0; left--) {
        int r = 0;
        for (int i = 1; i < q->ranks; i++)
            if (l->best[i].start < l->best[r].start)
                r = i;
        search_move m = l->best[r];
        if (isinf(m.start))
            break;
        search_apply(q, &l->st, m);
        order[r * q->length + n[r]++] =
            search_code(q->chunk_of[m.stage], m.step);
        l->best[r] = choose(l, r);
        int to = m.step == STEP_F   ? m.stage + 1
                 : m.step == STEP_I ? m.stage - 1
                                    : -1;
        if (to >= 0 && to < q->stages && q->rank_of[to] != r)
            l->best[q->rank_of[to]] = choose(l, q->rank_of[to]);
    }
    free(n);
    return left == 0;
}

bool search_list(const search_problem *q, const search_rule *rule,
                 uint8_t *order)
{
    lister l = {.q = q, .rule = rule};
    size_t ranks = (size_t)q->ranks;
    l.move = malloc((size_t)q->v * NSTEPS * sizeof *l.move);
    l.best = malloc(ranks * sizeof *l.best);
    l.limit = malloc(ranks * sizeof *l.limit);
    bool ok = l.move && l.best && l.limit && search_state_new(q, &l.st);
    if (ok) {
        set_limits(&l);
        ok = make(&l, order);
    }
    search_state_free(&l.st);
    free(l.move);
    free(l.best);
    free(l.limit);
    return ok;
}
