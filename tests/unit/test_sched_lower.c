/* test_sched_lower.c - schedules with messages, on a machine whose sends block
 * until the other side receives. The machine shares no code with what placed
 * the messages. */
#include "sched_test.h"

#include <time.h>

enum { MOST = 64 };

static double took(const sched_action *a)
{
    return a->op == SCHED_B ? 2 : a->op <= SCHED_W ? 1 : 0;
}

/* One stream of actions per rank, messages take no time. Returns the makespan,
 * or -1 if it is stuck. */
static double rendezvous(const sched *s)
{
    int at[MOST] = {0}, left = 0;
    double clock[MOST] = {0}, end = 0;
    for (int r = 0; r < s->ranks; r++)
        left += s->row[r].n;
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->ranks; r++) {
            if (at[r] == s->row[r].n)
                continue;
            sched_action a = s->row[r].v[at[r]];
            bool ahead = a.op == SCHED_SEND_F;
            if (a.op == SCHED_RECV_F || a.op == SCHED_RECV_B)
                continue;            /* its sender moves both */
            if (ahead || a.op == SCHED_SEND_B) {
                int to = a.stage + (ahead ? 1 : -1), q = s->rank_of[to];
                sched_action b = {.op = SCHED_NOPS};
                if (at[q] < s->row[q].n)
                    b = s->row[q].v[at[q]];
                if (b.op != (ahead ? SCHED_RECV_F : SCHED_RECV_B) ||
                    b.stage != to || b.mb != a.mb)
                    continue;
                double both = clock[r] > clock[q] ? clock[r] : clock[q];
                clock[r] = clock[q] = both;
                at[q]++;
                left--;
            }
            clock[r] += took(&a);
            end = clock[r] > end ? clock[r] : end;
            at[r]++;
            left--;
            moved = true;
        }
    }
    return left ? -1 : end;
}

static sched *lowered(const char *name, int p, int m, const sched_costs *c)
{
    sched *s = made(name, p, m);
    sched_error e;
    if (!sched_lower(s, c, &e) || !sched_check(s, c ? c->cross : NULL, &e))
        fail_msg("%s, p = %d, m = %d: %s", name, p, m, e.text);
    return s;
}

/* Blocking costs nothing in any of them. */
static void test_table(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int makespan;
    } row[] = {
        {"gpipe", 33}, {"1f1b", 33}, {"interleaved(2)", 57}, {"bfs(2)", 57},
        {"zb_h1", 27}, {"zb_h2", 27}, {"zb_v", 51}, {"dualpipe_v", 54},
        {"interleaved(3)", 81}, {"pipedream", 33}, {"pipedream_2bw", 33},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        sched *s = lowered(row[i].name, 4, 8, NULL);
        assert_int_equal((int)rendezvous(s), row[i].makespan);
        sched_free(s);
    }
}

/* Nothing hangs; what blocking costs, where it costs anything, is little. */
static void test_sizes(void **state)
{
    (void)state;
    static const char *const names[] = {
        "gpipe", "1f1b", "interleaved(2)", "interleaved(3)", "interleaved(4)",
        "bfs(2)", "bfs(3)", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min",
        "dualpipe_v", "pipedream", "pipedream_2bw",
    };
    int ideal = 0, all = 0;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        for (int p = 2; p <= 8; p++)
            for (int m = 1; m <= 24; m++) {
                sched_ask ask = {.ranks = p, .micro = m};
                sched_error e;
                sched_parse_name(names[k], &ask.kind, &ask.v);
                if (!sched_legal(&ask, &e))
                    continue;
                sched *s = lowered(names[k], p, m, NULL);
                sched_times t = timed(s, NULL);
                double end = rendezvous(s);
                assert_true(end >= t.makespan);
                if (end > 1.1 * t.makespan)
                    fail_msg("%s, p = %d, m = %d: %g, not %g", names[k], p, m,
                             end, t.makespan);
                ideal += end == t.makespan;
                all++;
                free(t.rank);
                sched_free(s);
            }
    print_message("%d of %d as if nobody blocked\n", ideal, all);
    assert_true(ideal > all * 9 / 10);
}

/* What a schedule promises about memory stays true with its messages. */
static void test_memory(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p++)
        for (int m = 1; m <= 12; m++) {
            sched *s = lowered("1f1b", p, m, NULL);
            for (int i = 0; i < p; i++)
                assert_int_equal(sched_slots(s, i, SCHED_UNTIL_I),
                                 m < p - i ? m : p - i);
            sched_free(s);
        }
}

/* Any costs, with ties or without: the order is one that cannot hang. */
static void test_costs(void **state)
{
    (void)state;
    static const char *const names[] = {"1f1b", "interleaved(3)", "zb_v",
                                        "dualpipe_v", "pipedream", "v_min"};
    unsigned seed = 1;
    for (int n = 0; n < 600; n++) {
        double v[5][MOST];
        int p = 2 + n % 4, m = 12;
        for (int k = 0; k < 5; k++)
            for (int i = 0; i < MOST; i++) {
                seed = seed * 1103515245u + 12345u;
                unsigned x = seed >> 16;
                v[k][i] = n % 3 == 0 ? x % 3 : n % 3 == 1 ? x % 2 * 0.37
                                                          : x / 65536.0;
            }
        sched_costs c = {.f = v[0], .i = v[1], .w = v[2]};
        if (n % 2)
            c.ahead = v[3], c.back = v[4];
        sched *s = lowered(names[n % 6], p, m, &c);
        assert_true(rendezvous(s) > 0);
        sched_free(s);
    }
}

static int count(const sched *s, sched_op op, int stage)
{
    int n = 0;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++)
            n += s->row[r].v[i].op == op && s->row[r].v[i].stage == stage;
    return n;
}

/* Stages on one rank exchange nothing; nor does a boundary that nothing
 * crosses, in either direction. */
static void test_crossings(void **state)
{
    (void)state;
    const uint8_t cross[] = {SCHED_AHEAD, 0, SCHED_AHEAD | SCHED_BACK};
    sched *s = lowered("zb_v", 2, 5, NULL);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(count(s, SCHED_SEND_F, i), i == 0 || i == 2 ? 5 : 0);
        assert_int_equal(count(s, SCHED_RECV_B, i), i == 0 || i == 2 ? 5 : 0);
        assert_int_equal(count(s, SCHED_RECV_F, i), i == 1 || i == 3 ? 5 : 0);
        assert_int_equal(count(s, SCHED_SEND_B, i), i == 1 || i == 3 ? 5 : 0);
    }
    sched_free(s);
    s = lowered("1f1b", 4, 3, &(sched_costs){.cross = cross});
    for (int i = 0; i < 4; i++) {
        assert_int_equal(count(s, SCHED_SEND_F, i), i == 0 || i == 2 ? 3 : 0);
        assert_int_equal(count(s, SCHED_SEND_B, i), i == 3 ? 3 : 0);
    }
    assert_true(rendezvous(s) > 0);
    sched_free(s);
}

static void test_refused(void **state)
{
    (void)state;
    sched_error e;
    sched *s = lowered("1f1b", 2, 2, NULL);
    assert_false(sched_lower(s, NULL, &e));
    assert_non_null(strstr(e.text, "has its messages already"));
    sched_free(s);
    s = sched_read("0F0,0B0\n1B0,1F0", 15, "x", &e);
    assert_non_null(s);
    assert_false(sched_lower(s, NULL, &e));
    assert_int_equal(e.rank, 1);
    assert_int_equal(e.at, 0);
    sched_free(s);
}

/* 400,000 actions and their 260,000 messages. */
static void test_large(void **state)
{
    (void)state;
    clock_t from = clock();
    sched *s = lowered("interleaved(4)", 64, 512, NULL);
    sched_times t = timed(s, NULL);
    double seconds = (double)(clock() - from) / CLOCKS_PER_SEC;
    print_message("p = 64, m = 512, v = 4: %.2f s\n", seconds);
    assert_int_equal(t.messages, 2 * 255 * 512);
    assert_true(seconds < (getenv("NDC_HAVE") &&
                           !strstr(getenv("NDC_HAVE"), "fast") ? 10 : 1));
    free(t.rank);
    sched_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_costs),
        cmocka_unit_test(test_crossings),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
