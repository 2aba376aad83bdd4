/* search.c - `auto`: the best schedule that can be found for the costs at hand.
 *
 *   {4 ranks, 8 microbatches, F = 3, I = 2, W = 4, room for 5}  ->  rows
 *
 * Schedules with names and many rules are tried first, so that nothing with a
 * name is better; then, by what the size allows, many half-made schedules side
 * by side, and changes of the best ones. Effort is counted in actions and never
 * in time, so that the same question has the same answer everywhere. The search
 * ends where a bound shows that there is nothing better.
 */
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Actions looked at, in all: about two seconds for the largest. */
enum {
    RULE_WORK = 60000000,        /* by rules: each all actions once */
    BEAM_WORK = 400000,          /* by beams: states times branches */
    CHANGE_WORK = 100000000,     /* by changes: each all actions once */
    MAX_WIDTH = 2000,
    MAX_CHANGES = 60000,
    PERIODS = 64,
    NBEST = 3,                   /* of so many schedules changes are tried */
    MAX_V = 80,                  /* codes are bytes */
    MAX_ACTIONS = 12000000
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct pool {
    const search_problem *q;
    search_run *run;
    uint8_t *order[NBEST];       /* best first */
    search_value value[NBEST];   /* sum: what all ranks hold at most */
    uint8_t *try;
} pool;

static bool pool_new(pool *p, const search_problem *q)
{
    size_t n = (size_t)(q->ranks * q->length);
    bool ok = (p->run = search_run_new(q)) && (p->try = malloc(n));
    p->q = q;
    for (int i = 0; i < NBEST; i++) {
        ok = ok && (p->order[i] = malloc(n));
        p->value[i] = (search_value){INFINITY, INFINITY};
    }
    return ok;
}

static void pool_free(pool *p)
{
    search_run_free(p->run);
    free(p->try);
    for (int i = 0; i < NBEST; i++)
        free(p->order[i]);
}

/* Microbatches that the ranks hold at most, over all of them: of two schedules
 * that take the same time, the one that holds less is of more use. */
static double held(const search_problem *q, const uint8_t *order)
{
    int last = q->steps == 3 ? STEP_W : STEP_I;
    double sum = 0;
    for (int r = 0; r < q->ranks; r++) {
        int now = 0, most = 0;
        for (int i = 0; i < q->length; i++) {
            int step = order[r * q->length + i] % NSTEPS;
            now += step == STEP_F ? 1 : step == last ? -1 : 0;
            most = now > most ? now : most;
        }
        sum += most;
    }
    return sum;
}

/* Takes p->try up if it is among the best and not there yet. */
static void offer(pool *p)
{
    const search_problem *q = p->q;
    for (int r = 0; r < q->ranks; r++)
        if (!search_fits(q, r, p->try + r * q->length))
            return;
    search_value v = search_eval(q, p->try, p->run);
    v.sum = held(q, p->try);
    int at = 0;
    while (at < NBEST && !search_better(v, p->value[at]))
        at++;
    if (at == NBEST || isinf(v.time) ||
        (at > 0 && v.time == p->value[at - 1].time &&
         v.sum == p->value[at - 1].sum))
        return;
    uint8_t *last = p->order[NBEST - 1];
    for (int i = NBEST - 1; i > at; i--) {
        p->order[i] = p->order[i - 1];
        p->value[i] = p->value[i - 1];
    }
    memcpy(last, p->try, (size_t)(q->ranks * q->length));
    p->order[at] = last;
    p->value[at] = v;
}

static bool proved(const pool *p)
{
    return p->value[0].time <= p->q->bound * (1 + 1e-9);
}

/* ---- where schedules come from ------------------------------------------- */

static void try_names(pool *p, const sched_ask *ask)
{
    for (int k = 0; k < SCHED_NKINDS; k++) {
        sched_ask named = *ask;
        sched_error ignored;
        named.kind = (sched_kind)k;
        named.v = p->q->v;
        if (sched_has(named.kind, 'a') ||
            sched_per_rank(named.kind, named.v) != named.v)
            continue;
        sched *s = sched_make(&named, &ignored);
        if (s && search_from_sched(p->q, s, p->try))
            offer(p);
        sched_free(s);
    }
}

/* Actions that may be looked at in that way. */
static long rule_work(const sched_ask *ask)
{
    return ask->quick ? RULE_WORK / 16 : RULE_WORK;
}

static void try_rules(pool *p, long most)
{
    static const double ahead[] = {.5, INFINITY, 1, .7, .35, 0};
    static const double gap[] = {1, .5, 0, .01};
    const search_problem *q = p->q;
    const int group[] = {1, q->ranks, q->micro};
    int groups = q->v == 1 ? 1 : 3;
    long work = 0, each = (long)q->ranks * q->length * (4 + q->ranks / 8);
    for (size_t g = 0; g < (q->steps == 2 ? 1 : COUNT(gap)); g++)
        for (int f = 0; f < 2; f++)
            for (size_t a = 0; a < COUNT(ahead); a++)
                for (int i = 0; i < groups; i++) {
                    search_rule rule = {f, group[i], ahead[a], gap[g]};
                    if (work > most || proved(p))
                        return;
                    work += each;
                    if (search_list(q, &rule, p->try))
                        offer(p);
                }
}

/* Periods from the shortest possible on: those that fit their room are long. */
static void try_cycles(pool *p, long most)
{
    const search_problem *q = p->q;
    long each = (long)q->ranks * q->length * 16;
    for (int i = 0; i < PERIODS && i * each < most && !proved(p); i++)
        if (search_cycle(q, q->work * (1 + i / 16.), p->try))
            offer(p);
}

static void try_beam(pool *p)
{
    search_problem q = *p->q;
    long layers = (long)q.ranks * q.length;
    long width = BEAM_WORK / layers * 36 / (36 + layers);
    width = width > MAX_WIDTH ? MAX_WIDTH : width;
    /* Care costs something where stages of one rank share scarce room. */
    bool shared = q.v > 1 && !q.slots && !isinf(q.room[0]);
    for (int careless = 0; careless < (shared ? 2 : 1); careless++) {
        search_value best = p->value[0];
        q.careful = !careless;
        if (!proved(p) && width >= 4 &&
            search_beam(&q, (int)width, p->try, &best))
            offer(p);
    }
}

static void try_changes(pool *p)
{
    const search_problem *q = p->q;
    long tries = CHANGE_WORK / NBEST / ((long)q->ranks * q->length);
    tries = tries > MAX_CHANGES ? MAX_CHANGES : tries;
    for (int i = 0; i < NBEST && tries > 100 && !proved(p); i++) {
        if (isinf(p->value[i].time))
            return;
        memcpy(p->try, p->order[i], (size_t)(q->ranks * q->length));
        search_improve(q, (int)tries, p->try);
        offer(p);
    }
}

/* ---- the whole ----------------------------------------------------------- */

static bool set_bound(search_problem *q, sched_error *err)
{
    search_state none;
    double *scratch = malloc(2 * (size_t)q->stages * sizeof *scratch);
    bool ok = search_state_new(q, &none) && scratch;
    if (ok)
        q->bound = search_bound(q, &none, scratch).time;
    search_state_free(&none);
    free(scratch);
    return ok || sched_fail(err, -1, 0, "no memory to search for a schedule");
}

bool sched_search_legal(const sched_ask *ask, sched_error *err)
{
    double actions = (double)ask->ranks * ask->micro * NSTEPS;
    if (ask->ranks >= 1 && ask->micro >= 1 && ask->v >= 0 && ask->v <= MAX_V &&
        actions * (ask->v ? ask->v : 1) <= MAX_ACTIONS)
        return true;
    return sched_fail(err, -1, 0, "auto: p = %d ranks, m = %d microbatches, v "
                      "= %d stages per rank; p and m are at least 1, v is at "
                      "most %d, and p * v * m at most %d",
                      ask->ranks, ask->micro, ask->v, MAX_V,
                      MAX_ACTIONS / NSTEPS);
}

sched *sched_search(const sched_ask *ask, sched_error *err)
{
    search_problem q;
    pool p = {0};
    sched *s = NULL;
    if (!search_problem_make(&q, ask, ask->whole, err))
        return NULL;
    if (pool_new(&p, &q) && set_bound(&q, err)) {
        try_names(&p, ask);
        try_cycles(&p, rule_work(ask));
        try_rules(&p, rule_work(ask));
        if (!ask->quick) {
            try_beam(&p);
            try_changes(&p);
        }
        if (!isinf(p.value[0].time))
            s = search_to_sched(&q, p.order[0]);
    }
    if (!s)
        sched_fail(err, -1, 0, "no memory to search for a schedule");
    pool_free(&p);
    search_problem_free(&q);
    return s;
}
