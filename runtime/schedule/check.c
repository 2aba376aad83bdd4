/* check.c - is a schedule right? Looks at the finished rows only.
 *
 * On each row: every stage of it takes each microbatch forward once and
 * backward once (B, or I and then W), after what it reads was made or received;
 * what is sent was made. Updates (U) take whole ranges of microbatches, the
 * same on all stages.
 * Between each two ranks: messages are received in the order they are sent, so
 * that they need no tags.
 * Over all rows: the graph of all actions, each send merged with its receive
 * (they happen together, or block together), edges along every row, has no
 * cycle. Running the rows with blocking messages is a topological sort of that
 * graph: it gets stuck exactly if there is one.
 */
#include "sched.h"

#include <stdlib.h>
#include <string.h>

typedef struct proof {
    const sched *s;
    const uint8_t *cross;
    sched_error *err;
    int *at[SCHED_NOPS];         /* index in the row, by stage and microbatch;
                                    -1: nowhere */
    int *seq[2];                 /* of messages ahead and back, by the receiving
                                    stage and microbatch: the how manieth
                                    between two ranks */
    int *count;                  /* by rank or stage */
    int *next;                   /* by rank: the first action not done */
    int *todo;                   /* ranks that may go on */
    bool *listed;                /* those in todo */
} proof;

/* ---- actions ------------------------------------------------------------- */

static size_t cell_of(const proof *p, int stage, int mb)
{
    return (size_t)stage * (size_t)p->s->micro + (size_t)mb;
}

static int *place(const proof *p, sched_op op, int stage, int mb)
{
    return &p->at[op][cell_of(p, stage, mb)];
}

/* What gives the gradient of the stage's input: its B, or its I. */
static sched_op back_op(const proof *p, int stage, int mb)
{
    return *place(p, SCHED_I, stage, mb) >= 0 ? SCHED_I : SCHED_B;
}

static sched_op weight_op(const proof *p, int stage, int mb)
{
    return *place(p, SCHED_W, stage, mb) >= 0 ? SCHED_W : SCHED_B;
}

static bool wrong(const proof *p, int rank, int at, const char *what)
{
    char name[SCHED_NAME];
    return sched_fail(p->err, rank, at, "rank %d: %s %s", rank,
                      sched_name(p->s->row[rank].v[at], name), what);
}

/* Does the schedule need this message? */
static bool is_expected(const proof *p, sched_op op, int stage)
{
    bool up = op == SCHED_SEND_F || op == SCHED_RECV_B;
    int lower = up ? stage : stage - 1;
    int bit = op == SCHED_SEND_F || op == SCHED_RECV_F ? SCHED_AHEAD
                                                       : SCHED_BACK;
    return p->s->lowered && sched_crosses(p->s, p->cross, lower, bit) &&
           p->s->rank_of[lower] != p->s->rank_of[lower + 1];
}

/* ---- every row by itself ------------------------------------------------- */

static bool check_joined(const proof *p, int r, int i)
{
    const sched_row *row = &p->s->row[r];
    if (row->v[i].op == SCHED_F && i + 1 < row->n &&
        sched_is_back(row->v[i + 1].op) && !row->v[i + 1].joined)
        return true;
    return wrong(p, r, i, "is one cell with what follows: that is for a "
                 "forward before a backward");
}

/* Puts it into p->at. */
static bool check_single(proof *p, int r, int i)
{
    const sched *s = p->s;
    sched_action a = s->row[r].v[i];
    char name[SCHED_NAME];
    if (a.stage < 0 || a.stage >= s->stages)
        return sched_fail(p->err, r, i, "rank %d: %s: stages are 0 to %d", r,
                          sched_name(a, name), s->stages - 1);
    if (a.mb < 0 || a.mb >= s->micro)
        return sched_fail(p->err, r, i, "rank %d: %s: microbatches are 0 to "
                          "%d", r, sched_name(a, name), s->micro - 1);
    if (s->rank_of[a.stage] != r)
        return sched_fail(p->err, r, i, "rank %d: %s: stage %d is on rank %d",
                          r, sched_name(a, name), a.stage, s->rank_of[a.stage]);
    if (a.joined && !check_joined(p, r, i))
        return false;
    if (!sched_is_compute(a.op) && !is_expected(p, a.op, a.stage))
        return wrong(p, r, i, s->lowered ? "carries nothing"
                     : "is a message in a schedule of computations alone");
    if (*place(p, a.op, a.stage, a.mb) >= 0)
        return wrong(p, r, i, "occurs twice");
    *place(p, a.op, a.stage, a.mb) = i;
    if ((a.op == SCHED_B && (*place(p, SCHED_I, a.stage, a.mb) >= 0 ||
                             *place(p, SCHED_W, a.stage, a.mb) >= 0)) ||
        ((a.op == SCHED_I || a.op == SCHED_W) &&
         *place(p, SCHED_B, a.stage, a.mb) >= 0))
        return wrong(p, r, i, "occurs beside B, which is I and W at once");
    return true;
}

/* Action i of rank r comes after `op` of that stage, on the same row. */
static bool needs(const proof *p, int r, int i, sched_op op, int stage)
{
    sched_action a = p->s->row[r].v[i];
    sched_action before = {.op = op, .stage = stage, .mb = a.mb};
    int at = *place(p, op, stage, a.mb);
    char name[SCHED_NAME], other[SCHED_NAME];
    if (at >= 0 && at < i)
        return true;
    return sched_fail(p->err, r, i, "rank %d: %s needs %s first, which %s", r,
                      sched_name(a, name), sched_name(before, other),
                      at < 0 ? "is nowhere" : "comes later");
}

static bool check_order(const proof *p, int r, int i)
{
    const sched *s = p->s;
    sched_action a = s->row[r].v[i];
    sched_op back = back_op(p, a.stage, a.mb);
    int from = sched_source(s, p->cross, a);
    if (from >= 0 && s->rank_of[from] == r &&
        !needs(p, r, i, a.op == SCHED_F ? SCHED_F : back_op(p, from, a.mb),
               from))
        return false;
    switch (a.op) {
    case SCHED_F:
        return !is_expected(p, SCHED_RECV_F, a.stage) ||
               needs(p, r, i, SCHED_RECV_F, a.stage);
    case SCHED_B:
    case SCHED_I:
        return needs(p, r, i, SCHED_F, a.stage) &&
               (!is_expected(p, SCHED_RECV_B, a.stage) ||
                needs(p, r, i, SCHED_RECV_B, a.stage));
    case SCHED_W:
        return needs(p, r, i, SCHED_I, a.stage);
    case SCHED_U:
        return needs(p, r, i, weight_op(p, a.stage, a.mb), a.stage);
    case SCHED_SEND_F:
        return needs(p, r, i, SCHED_F, a.stage);
    case SCHED_SEND_B:
        return needs(p, r, i, back, a.stage);
    default:
        return true;
    }
}

/* ---- all of it is there -------------------------------------------------- */

static bool is_there(const proof *p, sched_op op, int stage, int mb)
{
    sched_action a = {.op = op, .stage = stage, .mb = mb};
    int rank = p->s->rank_of[stage];
    char name[SCHED_NAME];
    if (*place(p, op, stage, mb) >= 0)
        return true;
    return sched_fail(p->err, rank, p->s->row[rank].n,
                      "rank %d: %s is missing", rank, sched_name(a, name));
}

static bool check_complete(const proof *p)
{
    for (int stage = 0; stage < p->s->stages; stage++)
        for (int mb = 0; mb < p->s->micro; mb++) {
            sched_op back = back_op(p, stage, mb);
            if (!is_there(p, SCHED_F, stage, mb) ||
                !is_there(p, back, stage, mb) ||
                (back == SCHED_I && !is_there(p, SCHED_W, stage, mb)))
                return false;
            for (sched_op op = SCHED_SEND_F; op <= SCHED_RECV_B; op++)
                if (is_expected(p, op, stage) && !is_there(p, op, stage, mb))
                    return false;
        }
    return true;
}

/* ---- updates ------------------------------------------------------------- */

/* The update U(k) of a stage takes the gradients of all microbatches since the
 * one before, up to k, and no other. */
static bool check_update(proof *p, int r, int i, int *last, int *taken)
{
    sched_action a = p->s->row[r].v[i];
    int *after = &last[a.stage], *n = &taken[a.stage];
    if (a.op == SCHED_B || a.op == SCHED_W) {
        if (a.mb <= *after)
            return wrong(p, r, i, "comes after the update that takes it");
        ++*n;
    } else if (a.op == SCHED_U) {
        if (a.mb <= *after)
            return wrong(p, r, i, "comes after a later update");
        if (*n != a.mb - *after)
            return wrong(p, r, i, "does not take the gradients up to its "
                         "microbatch, and those alone");
        *after = a.mb;
        *n = 0;
    }
    return true;
}

static bool check_updates(proof *p)
{
    const sched *s = p->s;
    bool any = false;
    int *last = p->count, *taken = p->count + s->stages;
    for (int stage = 0; stage < s->stages; stage++) {
        last[stage] = -1;
        taken[stage] = 0;
        for (int mb = 0; mb < s->micro; mb++)
            any |= *place(p, SCHED_U, stage, mb) >= 0;
    }
    if (!any)
        return true;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++)
            if (!check_update(p, r, i, last, taken))
                return false;
    for (int stage = 0; stage < s->stages; stage++)
        for (int mb = 0; mb < s->micro; mb++)
            if ((mb + 1 == s->micro || *place(p, SCHED_U, 0, mb) >= 0) &&
                !is_there(p, SCHED_U, stage, mb))
                return false;
            else if (*place(p, SCHED_U, stage, mb) >= 0 &&
                     !is_there(p, SCHED_U, 0, mb))
                return false;
    return true;
}

/* ---- first in, first out ------------------------------------------------- */

static int *sequence(const proof *p, sched_action recv)
{
    return &p->seq[recv.op == SCHED_RECV_B][cell_of(p, recv.stage, recv.mb)];
}

static void number_sends(proof *p, int r)
{
    const sched_row *row = &p->s->row[r];
    memset(p->count, 0, (size_t)p->s->ranks * sizeof *p->count);
    for (int i = 0; i < row->n; i++) {
        sched_action a = row->v[i], to = sched_other_end(a);
        if (a.op == SCHED_SEND_F || a.op == SCHED_SEND_B)
            *sequence(p, to) = p->count[p->s->rank_of[to.stage]]++;
    }
}

static bool check_receives(proof *p, int r)
{
    const sched_row *row = &p->s->row[r];
    memset(p->count, 0, (size_t)p->s->ranks * sizeof *p->count);
    for (int i = 0; i < row->n; i++) {
        sched_action a = row->v[i];
        if ((a.op == SCHED_RECV_F || a.op == SCHED_RECV_B) &&
            *sequence(p, a) !=
                p->count[p->s->rank_of[sched_other_end(a).stage]]++)
            return wrong(p, r, i, "is not the message that its rank sends "
                         "next: messages arrive in order");
    }
    return true;
}

static bool check_channels(proof *p)
{
    for (int r = 0; r < p->s->ranks; r++)
        number_sends(p, r);
    for (int r = 0; r < p->s->ranks; r++)
        if (!check_receives(p, r))
            return false;
    return true;
}

/* ---- nobody waits in a circle -------------------------------------------- */

static void list(proof *p, int rank, int *n)
{
    if (!p->listed[rank])
        p->todo[(*n)++] = rank;
    p->listed[rank] = true;
}

/* What the next action of rank r waits for; false: nothing. */
static bool waits_for(const proof *p, int r, sched_action *what)
{
    const sched *s = p->s;
    sched_action a = s->row[r].v[p->next[r]];
    if (sched_is_compute(a.op)) {
        int from = sched_source(s, p->cross, a);
        if (from < 0 || s->lowered)
            return false;            /* the row received it */
        *what = (sched_action){.stage = from, .mb = a.mb,
                               .op = a.op == SCHED_F ? SCHED_F
                                     : back_op(p, from, a.mb)};
        return p->next[s->rank_of[from]] <= *place(p, what->op, from, a.mb);
    }
    *what = sched_other_end(a);
    return p->next[s->rank_of[what->stage]] !=
           *place(p, what->op, what->stage, what->mb);
}

/* Does one action of rank r, a message with its other end. */
static void advance(proof *p, int r, int *n)
{
    const sched *s = p->s;
    sched_action a = s->row[r].v[p->next[r]++];
    if (!sched_is_compute(a.op)) {
        int peer = s->rank_of[sched_other_end(a).stage];
        p->next[peer]++;
        list(p, peer, n);
    } else if (a.op == SCHED_F && a.stage + 1 < s->stages) {
        list(p, s->rank_of[a.stage + 1], n);
    } else if (sched_is_back(a.op) && a.stage > 0) {
        list(p, s->rank_of[a.stage - 1], n);
    }
}

/* Ranks that are stuck wait for ranks that are stuck: follow them until they
 * come round, and name who waits on the lowest rank of the circle. */
static bool tell_circle(const proof *p, int r)
{
    const sched *s = p->s;
    sched_action what;
    char a[SCHED_NAME], b[SCHED_NAME], c[SCHED_NAME];
    for (int i = 0; i < s->ranks; i++)
        if (waits_for(p, r, &what))
            r = s->rank_of[what.stage];
    int low = r, at = r;
    do {
        waits_for(p, at, &what);
        at = s->rank_of[what.stage];
        low = at < low ? at : low;
    } while (at != r);
    waits_for(p, low, &what);
    int peer = s->rank_of[what.stage];
    return sched_fail(
        p->err, low, p->next[low], "rank %d: %s waits for ever: for %s, which "
        "comes after %s on rank %d, and that waits for it in turn", low,
        sched_name(s->row[low].v[p->next[low]], a), sched_name(what, b),
        sched_name(s->row[peer].v[p->next[peer]], c), peer);
}

static bool check_circles(proof *p)
{
    const sched *s = p->s;
    sched_action what;
    int n = 0;
    for (int r = 0; r < s->ranks; r++)
        list(p, r, &n);
    while (n > 0) {
        int r = p->todo[--n];
        p->listed[r] = false;
        while (p->next[r] < s->row[r].n && !waits_for(p, r, &what))
            advance(p, r, &n);
    }
    for (int r = 0; r < s->ranks; r++)
        if (p->next[r] < s->row[r].n)
            return tell_circle(p, r);
    return true;
}

/* ---- all of it ----------------------------------------------------------- */

static bool check_all(proof *p)
{
    const sched *s = p->s;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++)
            if (!check_single(p, r, i))
                return false;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++)
            if (!check_order(p, r, i))
                return false;
    return check_complete(p) && check_updates(p) &&
           (!s->lowered || check_channels(p)) && check_circles(p);
}

bool sched_check(const sched *s, const uint8_t *cross, sched_error *err)
{
    proof p = {.s = s, .cross = cross, .err = err};
    size_t cells = (size_t)s->stages * (size_t)s->micro;
    size_t ranks = (size_t)s->ranks;
    size_t tables = SCHED_NOPS + 2;
    int *at = malloc((tables * cells + 1) * sizeof *at);
    p.count = calloc(2 * (size_t)s->stages + ranks + 1, sizeof *p.count);
    p.next = calloc(ranks + 1, sizeof *p.next);
    p.todo = calloc(ranks + 1, sizeof *p.todo);
    p.listed = calloc(ranks + 1, sizeof *p.listed);
    bool ok = at && p.count && p.next && p.todo && p.listed;
    if (!ok)
        sched_fail(err, -1, 0, "no memory");
    for (size_t k = 0; ok && k < SCHED_NOPS; k++)
        p.at[k] = at + k * cells;
    for (size_t k = 0; ok && k < 2; k++)
        p.seq[k] = at + (SCHED_NOPS + k) * cells;
    for (size_t k = 0; ok && k < tables * cells; k++)
        at[k] = -1;
    ok = ok && check_all(&p);
    free(at);
    free(p.count);
    free(p.next);
    free(p.todo);
    free(p.listed);
    return ok;
}

void sched_crossings(const sched *s, uint8_t *cross)
{
    for (int i = 0; i + 1 < s->stages; i++)
        cross[i] = s->rank_of[i] == s->rank_of[i + 1]
                       ? SCHED_AHEAD | SCHED_BACK : 0;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++) {
            const sched_action *a = &s->row[r].v[i];
            bool up = a->op == SCHED_RECV_F || a->op == SCHED_SEND_B;
            int lower = a->stage - up;
            if (sched_is_compute(a->op) || lower < 0 || lower + 1 >= s->stages)
                continue;
            cross[lower] |= a->op == SCHED_SEND_F || a->op == SCHED_RECV_F
                                ? SCHED_AHEAD : SCHED_BACK;
        }
}
