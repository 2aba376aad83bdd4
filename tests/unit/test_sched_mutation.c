/* test_sched_mutation.c - whatever one breaks in a right schedule is found,
 * unless it breaks nothing: unless a machine that follows the rows to the
 * letter still computes the same.
 *
 * The machine knows no rules of schedules. It moves values that carry what was
 * done to them; messages have no tags and block until both sides are there.
 */
#include "sched_test.h"

enum { RANKS = 4, CELLS = 64 };

/* ---- the machine --------------------------------------------------------- */

/* A value says what made it: 0 nothing, else a stage and microbatch; negative,
 * backward. */
typedef struct machine {
    const sched *s;
    int at[RANKS];
    int input[CELLS], output[CELLS];     /* of forward, by stage and mb */
    int grad_in[CELLS], grad_out[CELLS]; /* of backward */
    int split[CELLS];                    /* I was done, W was not */
    int weights[CELLS];                  /* gradients in the sum */
    int updated[CELLS];
    bool broken;
} machine;

static int cell(const machine *x, int stage, int mb)
{
    return stage * x->s->micro + mb;
}

static int value(const machine *x, int stage, int mb)
{
    return 1 + cell(x, stage, mb);
}

/* Where something is that must not be there, or is not what must be there. */
static void want(machine *x, bool fine)
{
    x->broken = x->broken || !fine;
}

static void put(machine *x, int *at, int what)
{
    want(x, !*at);
    *at = what;
}

static bool local(const machine *x, int stage, int other)
{
    return other >= 0 && other < x->s->stages &&
           x->s->rank_of[other] == x->s->rank_of[stage];
}

static bool is_last(const machine *x, int stage)
{
    return stage == x->s->stages - 1;
}

static void forward(machine *x, int stage, int mb)
{
    int k = cell(x, stage, mb);
    if (local(x, stage, stage - 1))
        x->input[k] = x->output[cell(x, stage - 1, mb)];
    want(x, stage == 0 || x->input[k] == value(x, stage - 1, mb));
    put(x, &x->output[k], value(x, stage, mb));
}

static void backward(machine *x, int stage, int mb)
{
    int k = cell(x, stage, mb);
    if (local(x, stage, stage + 1))
        x->grad_in[k] = x->grad_out[cell(x, stage + 1, mb)];
    want(x, is_last(x, stage) || x->grad_in[k] == -value(x, stage + 1, mb));
    want(x, x->output[k] != 0);
    put(x, &x->grad_out[k], -value(x, stage, mb));
}

static void compute(machine *x, sched_action a)
{
    int k = cell(x, a.stage, a.mb);
    if (a.op == SCHED_F) {
        forward(x, a.stage, a.mb);
    } else if (sched_is_back(a.op)) {
        backward(x, a.stage, a.mb);
        *(a.op == SCHED_I ? &x->split[k] : &x->weights[k]) += 1;
    } else if (a.op == SCHED_W) {
        want(x, x->split[k]-- == 1);
        x->weights[k]++;
    } else {
        for (int mb = 0; mb < x->s->micro; mb++)
            want(x, x->weights[cell(x, a.stage, mb)] -
                    x->updated[cell(x, a.stage, mb)] == (mb == a.mb));
        x->updated[k]++;
    }
}

static bool sends(sched_op op)
{
    return op == SCHED_SEND_F || op == SCHED_SEND_B;
}

/* The rank at the other end, or -1. */
static int peer(const machine *x, sched_action a)
{
    int to = a.stage + (a.op == SCHED_SEND_F || a.op == SCHED_RECV_B ? 1 : -1);
    return to < 0 || to >= x->s->stages ? -1 : x->s->rank_of[to];
}

/* Rank r sends to q, which is at a receive from r: whatever it expects. */
static void carry(machine *x, sched_action a, sched_action b)
{
    int from = cell(x, a.stage, a.mb), to = cell(x, b.stage, b.mb);
    int what = a.op == SCHED_SEND_F ? x->output[from] : x->grad_out[from];
    want(x, what != 0);
    put(x, b.op == SCHED_RECV_F ? &x->input[to] : &x->grad_in[to], what);
}

/* In rows without messages, a computation waits for what other ranks make. */
static bool waits(const machine *x, sched_action a)
{
    if (x->s->lowered)
        return false;
    if (a.op == SCHED_F && a.stage > 0)
        return !x->output[cell(x, a.stage - 1, a.mb)];
    return sched_is_back(a.op) && !is_last(x, a.stage) &&
           !x->grad_out[cell(x, a.stage + 1, a.mb)];
}

static bool step(machine *x, int r)
{
    const sched *s = x->s;
    if (x->at[r] == s->row[r].n)
        return false;
    sched_action a = s->row[r].v[x->at[r]];
    if (a.stage < 0 || a.stage >= s->stages || a.mb < 0 || a.mb >= s->micro ||
        s->rank_of[a.stage] != r) {
        x->broken = true;            /* it does not have that stage */
        return false;
    }
    if (sched_is_compute(a.op)) {
        if (waits(x, a))
            return false;
        if (!s->lowered) {           /* what it waited for arrives by itself */
            int k = cell(x, a.stage, a.mb);
            if (a.op == SCHED_F && a.stage > 0)
                x->input[k] = x->output[cell(x, a.stage - 1, a.mb)];
            if (sched_is_back(a.op) && !is_last(x, a.stage))
                x->grad_in[k] = x->grad_out[cell(x, a.stage + 1, a.mb)];
        }
        compute(x, a);
    } else {
        int q = peer(x, a);
        if (!sends(a.op) || q < 0 || q == r || x->at[q] == s->row[q].n)
            return false;
        sched_action b = s->row[q].v[x->at[q]];
        if (sched_is_compute(b.op) || sends(b.op) || b.stage < 0 ||
            b.stage >= s->stages || b.mb < 0 || b.mb >= s->micro ||
            s->rank_of[b.stage] != q || peer(x, b) != r)
            return false;
        carry(x, a, b);
        x->at[q]++;
    }
    x->at[r]++;
    return true;
}

/* Does it compute what it should? */
static bool runs(const sched *s)
{
    machine x = {.s = s};
    bool any = false;
    for (bool moved = true; moved && !x.broken;) {
        moved = false;
        for (int r = 0; r < s->ranks; r++)
            while (!x.broken && step(&x, r))
                moved = true;
    }
    for (int r = 0; r < s->ranks; r++)
        want(&x, x.at[r] == s->row[r].n);
    for (int k = 0; k < s->stages * s->micro; k++)
        any |= x.updated[k] > 0;
    for (int k = 0; k < s->stages * s->micro; k++)
        want(&x, x.output[k] && x.grad_out[k] && x.weights[k] == 1 &&
                 x.split[k] == 0 && x.updated[k] == any);
    return !x.broken;
}

/* ---- what is broken ------------------------------------------------------ */

static void drop(sched *s, int r, int i)
{
    sched_row *row = &s->row[r];
    memmove(row->v + i, row->v + i + 1,
            (size_t)(row->n - i - 1) * sizeof *row->v);
    row->n--;
}

static void insert(sched *s, int r, int i, sched_action a)
{
    sched_push(s, r, a.op, a.stage, a.mb);
    sched_row *row = &s->row[r];
    memmove(row->v + i + 1, row->v + i,
            (size_t)(row->n - 1 - i) * sizeof *row->v);
    row->v[i] = a;
}

enum { DROP, TWICE, TWICE_LATER, SWAP, FAR, STAGE_UP, STAGE_DOWN, MB_UP,
       MB_DOWN, MOVE, LAST, OP, KINDS = OP + SCHED_NOPS };

static const char *const what[] = {
    "dropped", "twice", "twice, later", "swapped with the next",
    "swapped with one further on", "stage + 1", "stage - 1", "microbatch + 1",
    "microbatch - 1", "on another rank", "at the end", "another action",
};

/* Breaks action i of row r; false: there is nothing to break in this way. */
static bool mutate(sched *s, int r, int i, int kind)
{
    sched_row *row = &s->row[r];
    sched_action *a = &row->v[i], old = *a;
    int other = (r + 1) % s->ranks;
    if (kind == DROP) {
        drop(s, r, i);
    } else if (kind == TWICE) {
        insert(s, r, i, old);
    } else if (kind == TWICE_LATER || kind == LAST) {
        if (kind == LAST && i + 1 == row->n)
            return false;
        if (kind == LAST)
            drop(s, r, i);
        insert(s, r, row->n, old);
    } else if (kind == SWAP || kind == FAR) {
        int k = i + (kind == SWAP ? 1 : 3);
        if (k >= row->n)
            return false;
        *a = row->v[k];
        row->v[k] = old;
    } else if (kind <= STAGE_DOWN) {
        a->stage += kind == STAGE_UP ? 1 : -1;
    } else if (kind <= MB_DOWN) {
        a->mb += kind == MB_UP ? 1 : -1;
    } else if (kind == MOVE) {
        if (other == r)
            return false;
        drop(s, r, i);
        insert(s, other, i < s->row[other].n ? i : s->row[other].n, old);
    } else {
        a->op = (sched_op)(kind - OP);
        return a->op != old.op;
    }
    return true;
}

typedef struct tally {
    int made, found, harmless;       /* of those not found */
} tally;

static void one(const sched *s, int r, int i, int kind, tally *t)
{
    sched *x = sched_copy(s);
    sched_error e;
    char name[SCHED_NAME];
    if (mutate(x, r, i, kind)) {
        bool ok = sched_check(x, NULL, &e), fine = runs(x);
        t->made++;
        t->found += !ok;
        t->harmless += ok && fine;
        if (ok && !fine)
            fail_msg("%s, %d ranks, %d microbatches%s: %s of rank %d is %s, "
                     "and nobody finds out", s->name, s->ranks, s->micro,
                     s->lowered ? ", with messages" : "",
                     sched_name(s->row[r].v[i], name), r,
                     what[kind < OP ? kind : OP]);
        if (!ok)
            assert_true(e.rank >= 0 && e.rank < x->ranks && e.at >= 0 &&
                        e.at <= x->row[e.rank].n);
        if (!ok && fine)
            fail_msg("%s, %d ranks: %s of rank %d is %s, which harms nobody, "
                     "but: %s", s->name, s->ranks,
                     sched_name(s->row[r].v[i], name), r,
                     what[kind < OP ? kind : OP], e.text);
    }
    sched_free(x);
}

static void every(const char *name, int p, int m, tally *t)
{
    sched_error e;
    for (int lower = 0; lower < 2; lower++) {
        sched *s = made(name, p, m);
        unjoin(s);
        if (lower && !sched_lower(s, NULL, &e))
            fail_msg("%s: %s", name, e.text);
        assert_true(s->ranks <= RANKS && s->stages * s->micro <= CELLS);
        assert_true(sched_check(s, NULL, &e));
        if (!runs(s))
            fail_msg("%s, %d ranks, %d microbatches: the machine does not run "
                     "it", name, p, m);
        for (int r = 0; r < p; r++)
            for (int i = 0; i < s->row[r].n; i++)
                for (int kind = 0; kind < KINDS; kind++)
                    one(s, r, i, kind, t);
        sched_free(s);
    }
}

static void test_mutations(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int p, m;
    } row[] = {
        {"gpipe", 1, 3}, {"gpipe", 3, 4}, {"1f1b", 2, 4}, {"1f1b", 4, 6},
        {"interleaved(2)", 2, 4}, {"interleaved(2)", 3, 6},
        {"interleaved(3)", 2, 4}, {"bfs(2)", 3, 3}, {"bfs(3)", 2, 2},
        {"zb_h1", 3, 5}, {"zb_h2", 3, 7}, {"zb_v", 2, 5}, {"zb_v", 3, 7},
        {"v_half", 3, 5}, {"v_min", 3, 5}, {"dualpipe_v", 2, 5},
        {"dualpipe_v", 3, 7}, {"pipedream", 3, 5}, {"pipedream_2bw", 3, 5},
    };
    tally all = {0};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        every(row[i].name, row[i].p, row[i].m, &all);
    print_message("%d broken: %d found, %d harmless\n", all.made, all.found,
                  all.harmless);
    assert_int_equal(all.made, all.found + all.harmless);
    assert_true(all.harmless > 0 && all.harmless < all.made / 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mutations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
