/* test_sched_time.c - times and slots of schedules, against slow ways to the
 * same numbers: for times, starts are pushed later until nothing has to wait;
 * for slots, all pairs of microbatches are looked at. */
#include "sched_test.h"

#include <math.h>

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* ---- times --------------------------------------------------------------- */

/* Multiples of 1/4, so that sums are exact. */
static double *some(int n, uint32_t *seed)
{
    double *v = all(n, 0);
    for (int i = 0; i < n; i++)
        v[i] = next(seed) % 13 / 4.0;
    return v;
}

static double takes(const sched_costs *c, const sched_action *a)
{
    double f = c->f[a->stage], i = c->i[a->stage], w = c->w[a->stage];
    return a->op == SCHED_F ? f : a->op == SCHED_I ? i
         : a->op == SCHED_W ? w : a->op == SCHED_B ? i + w : 0;
}

static const sched_action *find(const sched *s, int stage, int mb, bool fwd)
{
    const sched_row *row = &s->row[s->rank_of[stage]];
    for (int i = 0; i < row->n; i++) {
        const sched_action *a = &row->v[i];
        if (a->stage == stage && a->mb == mb &&
            (fwd ? a->op == SCHED_F
                 : a->op == SCHED_B || a->op == SCHED_I))
            return a;
    }
    return NULL;
}

/* When what a needs from another stage is there. */
static double operand(const sched *s, const sched_costs *c,
                      const sched_action *a)
{
    bool fwd = a->op == SCHED_F;
    int from = fwd ? a->stage - 1 : a->stage + 1;
    int edge = fwd ? from : a->stage;
    if (a->op == SCHED_W || a->op == SCHED_U || from < 0 ||
        from == s->stages ||
        !(c->cross[edge] & (fwd ? SCHED_AHEAD : SCHED_BACK)))
        return 0;
    double there = find(s, from, a->mb, fwd)->end;
    if (s->rank_of[from] != s->rank_of[a->stage])
        there += (fwd ? c->ahead : c->back)[from];
    return there;
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

static void relax(sched *s, const sched_costs *c)
{
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++)
            s->row[r].v[i].start = s->row[r].v[i].end = 0;
    for (bool again = true; again;) {
        again = false;
        for (int r = 0; r < s->ranks; r++)
            for (int i = 0; i < s->row[r].n; i++) {
                sched_action *a = &s->row[r].v[i];
                double at = operand(s, c, a), end = takes(c, a);
                if (i > 0)
                    at = later(at, a[-1].end);
                if (a->joined) {
                    at = later(at, operand(s, c, a + 1));
                    end += takes(c, a + 1);
                }
                if (i > 0 && a[-1].joined) {
                    at = a[-1].start;
                    end = a[-1].end - at;
                }
                again |= a->start != at || a->end != at + end;
                a->start = at;
                a->end = at + end;
            }
    }
}

static void check_times(const char *name, int p, int m, uint32_t *seed)
{
    sched *s = made(name, p, m), *slow = sched_copy(s);
    int n = s->stages;
    uint8_t *cross = malloc((size_t)n);
    for (int i = 0; i < n; i++)
        cross[i] = next(seed) % 8 ? 3 : (uint8_t)(next(seed) % 4);
    double *c[5];
    for (int i = 0; i < 5; i++)
        c[i] = some(n, seed);
    sched_costs costs = {.f = c[0], .i = c[1], .w = c[2], .ahead = c[3],
                         .back = c[4], .cross = cross};
    free(timed(s, &costs).rank);
    relax(slow, &costs);
    for (int r = 0; r < p; r++)
        for (int i = 0; i < s->row[r].n; i++) {
            const sched_action *a = &s->row[r].v[i], *b = &slow->row[r].v[i];
            if (a->start != b->start || a->end != b->end)
                fail_msg("%s, p = %d, m = %d: %d%s%d of rank %d is %g to %g, "
                         "not %g to %g", name, p, m, a->stage,
                         sched_op_name[a->op], a->mb, r, a->start, a->end,
                         b->start, b->end);
        }
    for (int i = 0; i < 5; i++)
        free(c[i]);
    free(cross);
    sched_free(s);
    sched_free(slow);
}

static void times_are_the_longest_paths(void **state)
{
    (void)state;
    static const char *const name[] = {
        "gpipe", "1f1b", "interleaved(3)", "bfs(2)", "zb_h1", "zb_h2", "zb_v",
        "v_half", "v_min", "dualpipe_v", "pipedream", "pipedream_2bw"};
    uint32_t seed = 5;
    for (size_t k = 0; k < sizeof name / sizeof *name; k++)
        for (int p = 1; p <= 4; p++)
            for (int m = 8; m <= 12; m += 4)
                check_times(name[k], p, m, &seed);
}

/* Messages take no time of a rank: they are under way from when they are made,
 * wherever they stand. */
static void messages_are_under_way(void **state)
{
    (void)state;
    sched *s = sched_new("two", 2, 2, 1, SCHED_LOOP);
    double *half = all(2, 0.5);
    sched_times t;
    sched_push(s, 0, SCHED_F, 0, 0);
    sched_push(s, 0, SCHED_SEND_F, 0, 0);
    sched_push(s, 0, SCHED_RECV_B, 0, 0);
    sched_push(s, 0, SCHED_B, 0, 0);
    sched_push(s, 1, SCHED_RECV_F, 1, 0);
    sched_push(s, 1, SCHED_F, 1, 0);
    sched_push(s, 1, SCHED_B, 1, 0);
    sched_push(s, 1, SCHED_SEND_B, 1, 0);
    t = timed(s, &(sched_costs){.ahead = half, .back = half});
    static const double start[2][4] = {{0, 1, 4.5, 5}, {1, 1.5, 2.5, 4.5}};
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < 4; i++)
            assert_true(s->row[r].v[i].start == start[r][i]);
    assert_true(t.makespan == 7 && t.messages == 2);
    free(t.rank);
    free(half);
    sched_free(s);
}

/* What waits for itself is said, with its place. */
static void circles_are_found(void **state)
{
    (void)state;
    sched *s = sched_new("circle", 2, 2, 2, SCHED_LOOP);
    sched_times t;
    sched_error err;
    sched_push(s, 0, SCHED_F, 0, 0);
    sched_push(s, 0, SCHED_B, 0, 0);
    sched_push(s, 1, SCHED_B, 1, 0);
    sched_push(s, 1, SCHED_F, 1, 0);
    assert_false(sched_time(s, NULL, &t, &err));
    assert_true(err.rank == 0 && err.at == 1);
    assert_non_null(strstr(err.text, "0B0"));
    assert_null(t.rank);
    sched_push(s, 1, SCHED_F, 2, 0);     /* no such stage */
    assert_false(sched_time(s, NULL, &t, &err));
    assert_true(err.rank == 1 && err.at == 2);
    sched_free(s);
}

/* ---- what is kept -------------------------------------------------------- */

/* zb_h1 on rank 0 of 2: F0 F1 I0 W0 F2 I1 W1 I2 W2. */
static void kept(void **state)
{
    (void)state;
    sched *s = made("zb_h1", 2, 3);
    double i[2] = {10, 0}, w[2] = {1, 0}, iw[2] = {100, 0};
    sched_times t = timed(s, &(sched_costs){.until_i = i, .until_w = w,
                                            .i_to_w = iw});
    assert_true(t.rank[0].kept == 122);   /* during I0: two F and its I_TO_W */
    assert_true(t.rank[1].kept == 0);
    assert_true(t.rank[0].chunks == 2 && t.rank[1].chunks == 2);
    free(t.rank);
    sched_free(s);
}

/* ---- slots --------------------------------------------------------------- */

/* From the first to the last action in the row that the span knows. */
static bool alive(const sched *s, int stage, sched_span span, int mb,
                  int ends[2])
{
    static const char *const ops[] = {"FIB", "FIBW", "IBW"};
    const sched_row *row = &s->row[s->rank_of[stage]];
    ends[0] = ends[1] = -1;
    for (int i = 0; i < row->n; i++) {
        const sched_action *a = &row->v[i];
        if (a->stage != stage || a->mb != mb ||
            !strchr(ops[span], sched_op_name[a->op][0]))
            continue;
        if (ends[0] < 0)
            ends[0] = i;
        ends[1] = i;
    }
    return ends[0] >= 0;
}

static bool enough(const sched *s, int stage, sched_span span, int n)
{
    for (int a = 0; a < s->micro; a++)
        for (int b = a + n; b < s->micro; b += n) {
            int x[2], y[2];
            if (alive(s, stage, span, a, x) && alive(s, stage, span, b, y) &&
                x[0] <= y[1] && y[0] <= x[1])
                return false;
        }
    return true;
}

static void slots_are_the_least(void **state)
{
    (void)state;
    for (int k = 0; k < SCHED_NKINDS; k++) {
        char name[32];
        snprintf(name, sizeof name, sched_kinds[k].v ? "%s" : "%s(2)",
                 sched_kinds[k].name);
        sched *s = made(name, 3, 9);
        unjoin(s);
        for (int stage = 0; stage < s->stages; stage++)
            for (int span = 0; span < SCHED_NSPANS; span++) {
                int n = sched_slots(s, stage, (sched_span)span);
                if (!enough(s, stage, (sched_span)span, n) ||
                    (n > 1 && enough(s, stage, (sched_span)span, n - 1)))
                    fail_msg("%s, stage %d, span %d: %d slots", name, stage,
                             span, n);
            }
        sched_free(s);
    }
}

/* What is received early and sent late lies in a slot meanwhile. */
static void messages_take_slots(void **state)
{
    (void)state;
    sched *s = sched_new("two", 2, 2, 2, SCHED_LOOP);
    for (int mb = 0; mb < 2; mb++) {
        sched_push(s, 1, SCHED_F, 1, mb);
        sched_push(s, 1, SCHED_B, 1, mb);
    }
    for (int span = 0; span < SCHED_NSPANS; span++)
        assert_int_equal(sched_slots(s, 1, (sched_span)span), 1);
    assert_int_equal(sched_slots(s, 0, SCHED_UNTIL_I), 0);   /* no actions */
    sched_push(s, 1, SCHED_SEND_B, 1, 0);
    sched_push(s, 1, SCHED_SEND_B, 1, 1);
    for (int span = 0; span < SCHED_NSPANS; span++)
        assert_int_equal(sched_slots(s, 1, (sched_span)span), 2);
    sched_free(s);
}

/* The two of a cell are there at the same time. */
static void cells_take_both(void **state)
{
    (void)state;
    sched *s = sched_new("one", 1, 1, 2, SCHED_LOOP);
    sched_push(s, 0, SCHED_F, 0, 0);
    sched_push(s, 0, SCHED_B, 0, 0);
    sched_push(s, 0, SCHED_F, 0, 1);
    sched_push(s, 0, SCHED_B, 0, 1);
    assert_int_equal(sched_slots(s, 0, SCHED_UNTIL_I), 1);
    s->row[0].v[1].joined = true;
    assert_int_equal(sched_slots(s, 0, SCHED_UNTIL_I), 2);
    sched_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_the_longest_paths),
        cmocka_unit_test(messages_are_under_way),
        cmocka_unit_test(circles_are_found),
        cmocka_unit_test(kept),
        cmocka_unit_test(slots_are_the_least),
        cmocka_unit_test(messages_take_slots),
        cmocka_unit_test(cells_take_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
