/* test_sched_formulas.c - the schedules against the formulas of the papers, for
 * 2 to 16 ranks, 1 to 64 microbatches, 1 to 4 stages per rank, F = I = W = 1
 * unless it says otherwise. `t` below is a stage's F: a chunk where a rank has
 * v stages, so that bubbles in stages are v times shorter. */
#include "sched_test.h"

#include <math.h>
#include <time.h>

static int least(int a, int b)
{
    return a < b ? a : b;
}

typedef struct result {
    sched *s;
    sched_times t;
} result;

static result run(const char *name, int p, int m)
{
    result x = {.s = made(name, p, m)};
    x.t = timed(x.s, NULL);
    return x;
}

static void release(result *x)
{
    free(x->t.rank);
    sched_free(x->s);
}

static void expect(const result *x, const char *what, double have, double want)
{
    if (!(fabs(have - want) < 1e-9))
        fail_msg("%s, p = %d, m = %d: %s is %g, not %g", x->s->name,
                 x->s->ranks, x->s->micro, what, have, want);
}

/* Makespan with both bubbles, from the idle time of a rank. */
static void expect_idle(const result *x, double idle)
{
    double work = 3.0 * x->s->stages / x->s->ranks * x->s->micro;
    expect(x, "the makespan", x->t.makespan, work + idle);
    expect(x, "the ideal", x->t.ideal, work);
    expect(x, "bubble/ideal", x->t.bubble_ideal, idle / work);
    expect(x, "bubble/total", x->t.bubble_total, idle / (work + idle));
}

static void expect_messages(const result *x, int boundaries)
{
    expect(x, "messages", (double)x->t.messages,
           2.0 * boundaries * x->s->micro);
}

static void gpipe_and_1f1b(void **state)
{
    (void)state;
    for (int p = 2; p <= 16; p++)
        for (int m = 1; m <= 64; m++) {
            result g = run("gpipe", p, m), f = run("1f1b", p, m);
            expect_idle(&g, 3 * (p - 1));
            expect_idle(&f, 3 * (p - 1));
            expect_messages(&g, p - 1);
            expect_messages(&f, p - 1);
            for (int r = 0; r < p; r++) {
                int held = least(p - r, m);
                expect(&g, "held", g.t.rank[r].chunks, m);
                expect(&f, "held", f.t.rank[r].chunks, held);
                expect(&f, "slots", sched_slots(f.s, r, SCHED_UNTIL_I), held);
                expect(&f, "span", span(&f.t, r), 3 * (m + p - 1 - r));
            }
            release(&g);
            release(&f);
        }
}

/* bubble/ideal (p - 1) / (v m), of the time of v chunks of F and B each. */
static void interleaved_and_bfs(void **state)
{
    (void)state;
    for (int p = 2; p <= 16; p++)
        for (int v = 1; v <= 4; v++)
            for (int m = 1; m <= 64; m++) {
                char name[32];
                snprintf(name, sizeof name, "bfs(%d)", v);
                result b = run(name, p, m);
                if (m >= p)
                    expect_idle(&b, 3 * (p - 1));
                expect_messages(&b, p * v - 1);
                for (int r = 0; r < p; r++)
                    expect(&b, "held", b.t.rank[r].chunks, m * v);
                release(&b);
                if (m >= p && m % (m / p))
                    continue;
                snprintf(name, sizeof name, "interleaved(%d)", v);
                result x = run(name, p, m);
                expect_messages(&x, p * v - 1);
                for (int r = 0; r < p && m % p == 0; r++)
                    expect(&x, "held", x.t.rank[r].chunks,
                           least(m * v, 2 * (p - 1 - r) + (v - 1) * p + 1));
                if (m % p == 0)
                    expect_idle(&x, 3 * (p - 1));
                release(&x);
            }
}

/* H1: (p - 1)(tF + tI - tW); H2: (p - 1)(tF + tI - 2 tW) on every rank, and no
 * better than H1 where all wait for all. Full from h (p - 1) + 1 on. */
static void zero_bubble(void **state)
{
    (void)state;
    for (int p = 2; p <= 16; p++)
        for (int m = 1; m <= 64; m++) {
            result a = run("zb_h1", p, m), b = run("zb_h2", p, m);
            expect_messages(&a, p - 1);
            expect_messages(&b, p - 1);
            if (m >= p)
                expect_idle(&a, p - 1);
            if (m >= 2 * p - 1)
                expect_idle(&b, p - 1);
            for (int r = 0; r < p; r++) {
                expect(&a, "held", a.t.rank[r].chunks, least(p, m));
                expect(&b, "held", b.t.rank[r].chunks, least(2 * p - 1, m));
                expect(&a, "slots", sched_slots(a.s, r, SCHED_UNTIL_I),
                       least(p - r, m));
                if (m >= 2 * p - 1)
                    expect(&b, "span", span(&b.t, r), 3 * m);
            }
            release(&a);
            release(&b);
        }
}

static void bubbles_of_ten(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double idle;
    } want[] = {{"1f1b", 90}, {"zb_h1", 30}, {"zb_h2", 0}};
    double *ten = all(4, 10);
    for (int i = 0; i < 3; i++) {
        sched *s = made(want[i].name, 4, 12);
        sched_costs c = {.f = ten, .i = ten, .w = ten};
        sched_times t = timed(s, &c);
        assert_true(span(&t, 0) - t.rank[0].busy == want[i].idle);
        free(t.rank);
        sched_free(s);
    }
    free(ten);
}

/* zb_v keeps p stages, two chunks each, and no rank waits once it has begun. */
static void vee(void **state)
{
    (void)state;
    for (int p = 2; p <= 16; p++)
        for (int m = 1; m <= 64; m++) {
            result z = run("zb_v", p, m);
            expect_messages(&z, 2 * p - 2);
            if (m >= 2 * p - 1)
                expect_idle(&z, p - 1);
            for (int r = 0; r < p; r++) {
                assert_in_range(z.t.rank[r].chunks, 1, 2 * least(p, m));
                if (m < 2 * p - 1)
                    continue;
                expect(&z, "span", span(&z.t, r), 6 * m);
                expect(&z, "held", z.t.rank[r].chunks, 2 * p);
            }
            release(&z);
        }
}

static int most_held(const result *x)
{
    int most = 0;
    for (int r = 0; r < x->s->ranks; r++)
        if (most < x->t.rank[r].chunks)
            most = x->t.rank[r].chunks;
    return most;
}

/* About half and two thirds of the bubble of 1f1b, 6 (p - 1) chunks, for about
 * half and a third of its memory, 2 p chunks; a little else where p is even, or
 * a multiple of 3. However few the microbatches, never worse than one at a time
 * would be. */
static void controllable_memory(void **state)
{
    (void)state;
    for (int p = 2; p <= 16; p++)
        for (int m = 1; m <= 64; m++) {
            result half = run("v_half", p, m), min = run("v_min", p, m);
            int odd = p % 2, third = p % 3 == 0;
            expect_messages(&half, 2 * p - 2);
            expect_messages(&min, 2 * p - 2);
            assert_in_range(most_held(&half), 2, p + 2 - odd);
            assert_in_range(most_held(&min), 2, 2 * ((p + 1) / 3 + 1));
            assert_true(half.t.makespan <= 6 * m + 4 * (p - 1));
            assert_true(min.t.makespan <= 6 * m + 4 * (p - 1));
            if (m >= 2 * p) {
                expect_idle(&half, p == 2 ? 1 : 3 * p - (odd ? 4 : 7));
                expect_idle(&min, 4 * p - (third ? 7 : 5));
                expect(&half, "held", most_held(&half), p + 2 - odd);
                expect(&min, "held", most_held(&min), 2 * ((p + 1) / 3 + 1));
            }
            release(&half);
            release(&min);
        }
}

/* Cells that cannot be divided: 2 (p - 1) idle; half of it if they can, on 4
 * ranks. Peak 2 p + 1 chunks. */
static void dualpipe_v(void **state)
{
    (void)state;
    for (int p = 2; p <= 16; p++)
        for (int m = 2 * p; m <= 64; m++) {
            result x = run("dualpipe_v", p, m);
            expect_idle(&x, 2 * (p - 1));
            expect_messages(&x, 2 * p - 2);
            for (int r = 0; r < p; r++)
                expect(&x, "held", x.t.rank[r].chunks, 2 * p + 1);
            unjoin(x.s);
            free(x.t.rank);
            x.t = timed(x.s, NULL);
            if (x.t.makespan > 6 * m + 2 * (p - 1))
                fail_msg("p = %d, m = %d: divided cells cost time", p, m);
            release(&x);
        }
}

#ifdef __SANITIZE_ADDRESS__
enum { SECONDS = 60 };               /* instrumented code is slow */
#else
enum { SECONDS = 1 };
#endif

static void check_rooms(const sched *s)
{
    static size_t bytes[256][SCHED_NSPANS];
    const size_t (*of)[SCHED_NSPANS] = (const size_t (*)[SCHED_NSPANS])bytes;
    sched_error err;
    sched_rooms r;
    assert_in_range(s->stages, 1, 256);
    for (int i = 0; i < s->stages * SCHED_NSPANS; i++)
        bytes[i / SCHED_NSPANS][i % SCHED_NSPANS] = 64;
    assert_true(sched_rooms_new(s, of, &r));
    if (!sched_check_rooms(s, of, &r, &err))
        fail_msg("%s: %s", s->name, err.text);
    sched_rooms_free(&r);
}

/* 64 ranks, 512 microbatches, 4 stages per rank: each kind is made, proved,
 * timed, given messages, proved again and given memory in less than a
 * second. */
static void large(void **state)
{
    (void)state;
    for (int k = 0; k < SCHED_NKINDS; k++) {
        char name[32];
        sched_error err = {0};
        clock_t begin = clock();
        snprintf(name, sizeof name, sched_kinds[k].v ? "%s" : "%s(4)",
                 sched_kinds[k].name);
        result x = run(name, 64, 512);
        assert_true(x.t.bubble_ideal < 0.13);
        for (int s = 0; s < x.s->stages; s++)
            assert_in_range(sched_slots(x.s, s, SCHED_UNTIL_W), 1, 512);
        if (!sched_check(x.s, NULL, &err) || !sched_lower(x.s, NULL, &err) ||
            !sched_check(x.s, NULL, &err))
            fail_msg("%s: %s", name, err.text);
        check_rooms(x.s);
        release(&x);
        assert_true(clock() - begin < SECONDS * CLOCKS_PER_SEC);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpipe_and_1f1b),
        cmocka_unit_test(interleaved_and_bfs),
        cmocka_unit_test(zero_bubble),
        cmocka_unit_test(bubbles_of_ten),
        cmocka_unit_test(vee),
        cmocka_unit_test(controllable_memory),
        cmocka_unit_test(dualpipe_v),
        cmocka_unit_test(large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
