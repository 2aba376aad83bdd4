/* test_sched_search.c - `auto` against brute force, and against the schedules
 * with names. */
#include "sched_brute.h"
#include "sched_test.h"

static uint64_t seed;

static double drawn(double low, double high)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * (double)(seed >> 40) / (1 << 24);
}

/* ---- questions ----------------------------------------------------------- */

typedef struct question {
    sched_ask ask;
    sched_costs costs;
    double f[64], i[64], w[64], ahead[64], back[64];
    double until_i[64], until_w[64], i_to_w[64], room[16];
} question;

static void point(question *q)
{
    q->costs = (sched_costs){q->f, q->i, q->w, q->ahead, q->back, q->until_i,
                             q->until_w, q->i_to_w, NULL};
    q->ask.costs = &q->costs;
    q->ask.kind = SCHED_KIND_AUTO;
}

/* Costs in [1 - spread, 1 + spread], some of memory; messages take `wire`. */
static void draw_costs(question *q, double spread, double wire)
{
    for (int s = 0; s < q->ask.ranks * q->ask.v; s++) {
        q->f[s] = drawn(1 - spread, 1 + spread);
        q->i[s] = drawn(1 - spread, 1 + spread);
        q->w[s] = drawn(1 - spread, 1 + spread);
        q->ahead[s] = drawn(0, wire);
        q->back[s] = drawn(0, wire);
        q->until_i[s] = spread > 0 ? drawn(0, 1) : 0;
        q->until_w[s] = spread > 0 ? drawn(0, 1) : 1;
        q->i_to_w[s] = spread > 0 ? drawn(0, .5) : 0;
    }
    point(q);
}

/* Room for `times` microbatches, or somewhat more. */
static void draw_room(question *q, double times)
{
    for (int r = 0; r < q->ask.ranks; r++)
        q->room[r] = 0;
    for (int s = 0; s < q->ask.ranks * q->ask.v; s++)
        q->room[sched_rank_of(q->ask.where, q->ask.ranks, s)] +=
            q->until_i[s] + q->until_w[s] + q->i_to_w[s];
    for (int r = 0; r < q->ask.ranks; r++)
        q->room[r] *= drawn(1, times);
    q->ask.room = q->room;
}

static double room_used(const question *q, const sched *s,
                        const sched_times *t, int rank)
{
    if (!q->ask.slots)
        return t->rank[rank].kept;
    const double *keep[] = {q->until_i, q->until_w, q->i_to_w};
    double sum = 0;
    for (int stage = 0; stage < s->stages; stage++)
        for (int k = 0; k < SCHED_NSPANS && s->rank_of[stage] == rank; k++)
            sum += keep[k][stage] * sched_slots(s, stage, (sched_span)k);
    return sum;
}

/* The time of a schedule as sched_time sees it; INFINITY if it does not fit. */
static double worth(const question *q, sched *s)
{
    sched_times t = timed(s, q->ask.costs);
    double most = 0;
    for (int r = 0; r < s->ranks; r++) {
        double time = q->ask.sync ? t.rank[r].last : span(&t, r);
        most = time > most ? time : most;
        if (q->ask.room &&
            room_used(q, s, &t, r) > q->room[r] * (1 + 1e-9))
            most = INFINITY;
    }
    free(t.rank);
    return most;
}

static sched *searched(const question *q)
{
    sched_error err;
    sched *s = sched_make(&q->ask, &err);
    if (!s)
        fail_msg("auto: %s", err.text);
    if (!sched_check(s, q->costs.cross, &err))
        fail_msg("auto: %s", err.text);
    return s;
}

/* ---- against brute force ------------------------------------------------- */

static void against_brute_force(question *q, const char *what, int number)
{
    sched *s = searched(q);
    double have = worth(q, s), best = brute_force(&q->ask, have);
    if (!(have <= best * 1.01))
        fail_msg("%s %d (p = %d, v = %d, m = %d): %g, and %g is possible",
                 what, number, q->ask.ranks, q->ask.v, q->ask.micro, have,
                 best);
    sched_free(s);
}

static void brute_force_knows_formulas(void **state)
{
    (void)state;
    for (int p = 1; p <= 3; p++)
        for (int m = p; m <= 4; m++) {
            sched_ask ask = {.ranks = p, .v = 1, .micro = m, .sync = true};
            assert_float_equal(brute_force(&ask, INFINITY), 3 * m + p - 1,
                               1e-9);
            ask.whole = true;
            assert_float_equal(brute_force(&ask, INFINITY), 3 * (m + p - 1),
                               1e-9);
        }
}

static void equal_costs_are_optimal(void **state)
{
    (void)state;
    for (int p = 1; p <= 3; p++)
        for (int m = 1; m <= 4; m++)
            for (int bits = 0; bits < 24; bits++) {
                question q = {.ask = {.ranks = p, .v = 1, .micro = m,
                                      .sync = bits & 1, .whole = bits & 2}};
                draw_costs(&q, 0, 0);
                if (bits / 4)                    /* microbatches that fit */
                    q.ask.room = q.room;
                for (int r = 0; r < p; r++)
                    q.room[r] = bits / 4;
                against_brute_force(&q, "equal costs", bits);
            }
}

static void random_costs_are_optimal(void **state)
{
    (void)state;
    seed = 1;
    for (int n = 0; n < 300; n++) {
        question q = {.ask = {.ranks = 2 + n % 2, .v = 1,
                              .micro = (int)drawn(1, 4.99),
                              .sync = drawn(0, 1) < .6,
                              .whole = drawn(0, 1) < .25}};
        draw_costs(&q, .9, n % 4 < 2 ? 0 : 1);
        if (n % 3)
            draw_room(&q, n % 3 == 1 ? 2 : 4);
        q.ask.slots = n % 5 == 0;
        against_brute_force(&q, "random costs", n);
    }
}

static void random_costs_of_two_stages_per_rank(void **state)
{
    (void)state;
    seed = 2;
    for (int n = 0; n < 60; n++) {
        int p = 2 + n % 2;
        question q = {.ask = {.ranks = p, .v = 2,
                              .micro = (int)drawn(1, p == 2 ? 3.99 : 2.99),
                              .where = n % 4 < 2 ? SCHED_LOOP : SCHED_VEE,
                              .sync = drawn(0, 1) < .6,
                              .whole = drawn(0, 1) < .25}};
        draw_costs(&q, .9, n % 3 ? 0 : 1);
        if (n % 5)
            draw_room(&q, n % 5 == 1 ? 2 : 4);
        q.ask.slots = n % 7 == 0;
        against_brute_force(&q, "two stages", n);
    }
}

/* ---- against names ------------------------------------------------------- */

static void no_name_is_better(void **state)
{
    (void)state;
    seed = 3;
    for (int n = 0; n < 36; n++) {
        int p = 2 + n % 7;
        question q = {.ask = {.ranks = p, .v = 1 + n % 3 % 2,
                              .micro = (int)drawn(1, 12.99),
                              .sync = n % 2}};
        q.ask.where = q.ask.v == 2 && n % 4 < 2 ? SCHED_VEE : SCHED_LOOP;
        draw_costs(&q, n % 5 ? .4 : 0, n % 7 ? 0 : .3);
        if (n % 4)
            draw_room(&q, 2 * p);
        sched *s = searched(&q);
        double have = worth(&q, s);
        for (int k = 0; k < SCHED_NKINDS; k++) {
            sched_ask named = q.ask;
            sched_error err;
            named.kind = (sched_kind)k;
            if (sched_has(named.kind, 'a') || !sched_legal(&named, &err) ||
                (q.ask.v > 1 && sched_kinds[k].where != q.ask.where))
                continue;
            sched *other = sched_make(&named, &err);
            if (!(have <= worth(&q, other) * (1 + 1e-9)))
                fail_msg("case %d: auto takes %g, %s %g", n, have, other->name,
                         worth(&q, other));
            sched_free(other);
        }
        sched_free(s);
    }
}

/* Asked for quickly, a schedule fits and takes no longer than one with a name;
 * asked for in full, it takes no longer than that. */
static void quick_is_no_worse_than_names(void **state)
{
    (void)state;
    seed = 11;
    for (int n = 0; n < 24; n++) {
        int p = 2 + n % 5;
        question q = {.ask = {.ranks = p, .v = 1, .micro = 5 + n % 9,
                              .sync = n % 2, .whole = n % 3 == 0}};
        draw_costs(&q, .3, .2);
        if (n % 4)
            draw_room(&q, 2 * p);
        double full, quick, named = INFINITY;
        sched *s = searched(&q);
        full = worth(&q, s);
        sched_free(s);
        q.ask.quick = true;
        s = searched(&q);
        quick = worth(&q, s);
        sched_free(s);
        sched_ask ask = q.ask;
        sched_error err;
        ask.kind = q.ask.whole ? SCHED_KIND_1F1B : SCHED_KIND_ZB_H1;
        s = sched_make(&ask, &err);
        named = worth(&q, s);
        sched_free(s);
        assert_true(quick < INFINITY);
        assert_true(quick <= named * (1 + 1e-9));
        assert_true(full <= quick * (1 + 1e-9));
    }
}

/* With a sum before the update zb_h2 wins nothing over zb_h1, so its room is
 * not taken; without one it has no bubble. */
static void knows_what_a_sum_before_the_update_costs(void **state)
{
    (void)state;
    for (int sync = 0; sync < 2; sync++) {
        question q = {.ask = {.ranks = 4, .v = 1, .micro = 8, .sync = sync}};
        draw_costs(&q, 0, 0);
        sched *s = searched(&q);
        sched_times t = timed(s, &q.costs);
        assert_float_equal(t.makespan, 27, 1e-9);
        assert_int_equal(t.rank[0].chunks, sync ? 4 : 7);
        assert_float_equal(span(&t, 0), sync ? 27 : 24, 1e-9);
        free(t.rank);
        sched_free(s);
    }
}

/* Slow stages in the middle and little room: a form without a name. */
static void finds_what_has_no_name(void **state)
{
    (void)state;
    question q = {.ask = {.ranks = 4, .v = 1, .micro = 12, .sync = true}};
    static const double f[] = {1, 2, 3, 1}, w[] = {2, 1, 1, 4};
    draw_costs(&q, 0, 0);
    for (int s = 0; s < 4; s++) {
        q.f[s] = f[s];
        q.w[s] = w[s];
        q.room[s] = 3;
    }
    q.ask.room = q.room;
    sched *s = searched(&q);
    assert_true(worth(&q, s) < INFINITY);
    for (int k = 0; k < SCHED_NKINDS; k++) {
        sched_ask named = q.ask;
        sched_error err;
        named.kind = (sched_kind)k;
        sched *other = sched_has(named.kind, 'a') ? NULL
                                                  : sched_make(&named, &err);
        if (other && !sched_has(named.kind, 'a'))
            assert_true(worth(&q, s) < worth(&q, other));
        sched_free(other);
    }
    sched_free(s);
}

/* One stage per rank, or two half as long over a loop or a vee, in the same
 * room: the vee has no bubble. */
static void best_of_several(void **state)
{
    (void)state;
    question one = {.ask = {.ranks = 4, .v = 1, .micro = 8}};
    question two = {.ask = {.ranks = 4, .v = 2, .micro = 8}};
    int which = -1;
    sched_error err;
    draw_costs(&one, 0, 0);
    draw_costs(&two, 0, 0);
    for (int s = 0; s < 8; s++)
        two.f[s] = two.i[s] = two.w[s] = two.until_w[s] = .5;
    for (int r = 0; r < 4; r++)
        one.room[r] = 4;
    one.ask.room = two.ask.room = one.room;
    sched_ask asks[3] = {one.ask, two.ask, two.ask};
    asks[2].where = SCHED_VEE;
    sched *s = sched_make_best(asks, 3, &which, &err);
    assert_int_equal(which, 2);
    assert_int_equal(s->rank_of[7], 0);
    sched_free(s);
    asks[0].micro = asks[1].micro = 0;
    s = sched_make_best(asks, 2, &which, &err);
    assert_null(s);
    assert_non_null(strstr(err.text, "m = 0 microbatches"));
}

/* ---- the rest ------------------------------------------------------------ */

static void same_question_same_answer(void **state)
{
    (void)state;
    seed = 4;
    question q = {.ask = {.ranks = 5, .v = 2, .micro = 13, .sync = true}};
    draw_costs(&q, .5, .2);
    draw_room(&q, 6);
    sched_text a = {0}, b = {0};
    sched *one = searched(&q), *two = searched(&q);
    sched_write(one, false, &a);
    sched_write(two, false, &b);
    assert_string_equal(a.s, b.s);
    free(a.s);
    free(b.s);
    sched_free(one);
    sched_free(two);
}

static void what_does_not_cross_is_not_waited_for(void **state)
{
    (void)state;
    static const uint8_t cross[] = {0, SCHED_AHEAD};
    question q = {.ask = {.ranks = 3, .v = 1, .micro = 4, .sync = true}};
    draw_costs(&q, 0, 0);
    q.costs.cross = cross;
    sched *s = searched(&q);
    assert_float_equal(worth(&q, s), 13, 1e-9);  /* 12, and stage 1's F */
    sched_free(s);
}

static void large_ones_are_made(void **state)
{
    (void)state;
    seed = 5;
    static const int size[][3] = {{16, 1, 64}, {8, 4, 64}, {61, 1, 61}};
    for (int n = 0; n < 3; n++) {
        question *q = calloc(1, sizeof *q);
        q->ask = (sched_ask){.ranks = size[n][0], .v = size[n][1],
                             .micro = size[n][2], .sync = true};
        draw_costs(q, .3, .1);
        sched *s = searched(q);
        assert_true(worth(q, s) < INFINITY);
        sched_free(s);
        free(q);
    }
}

static void says_what_does_not_fit(void **state)
{
    (void)state;
    question q = {.ask = {.ranks = 2, .v = 1, .micro = 3}};
    sched_error err;
    draw_costs(&q, 0, 0);
    q.room[0] = 1;
    q.room[1] = .5;
    q.ask.room = q.room;
    assert_null(sched_make(&q.ask, &err));
    assert_string_equal(err.text, "rank 1 keeps at least 1 for one "
                                  "microbatch; its room is 0.5");
    assert_int_equal(err.rank, 1);
    q.ask.micro = 0;
    assert_null(sched_make(&q.ask, &err));
    assert_non_null(strstr(err.text, "p and m are at least 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(brute_force_knows_formulas),
        cmocka_unit_test(equal_costs_are_optimal),
        cmocka_unit_test(random_costs_are_optimal),
        cmocka_unit_test(random_costs_of_two_stages_per_rank),
        cmocka_unit_test(no_name_is_better),
        cmocka_unit_test(quick_is_no_worse_than_names),
        cmocka_unit_test(knows_what_a_sum_before_the_update_costs),
        cmocka_unit_test(finds_what_has_no_name),
        cmocka_unit_test(best_of_several),
        cmocka_unit_test(same_question_same_answer),
        cmocka_unit_test(what_does_not_cross_is_not_waited_for),
        cmocka_unit_test(large_ones_are_made),
        cmocka_unit_test(says_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
