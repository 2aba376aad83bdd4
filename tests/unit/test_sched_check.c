/* test_sched_check.c - what is wrong with a schedule is found and named. */
#include "sched_test.h"

/* ---- each rule ----------------------------------------------------------- */

static void expect(const char *text, int rank, int at, const char *want)
{
    sched_error e;
    sched *s = sched_read(text, strlen(text), "text", &e);
    if (!s)
        fail_msg("%s", e.text);
    if (sched_check(s, NULL, &e))
        fail_msg("no fault in %s", text);
    if (!strstr(e.text, want))
        fail_msg("'%s' does not say '%s'", e.text, want);
    assert_int_equal(e.rank, rank);
    assert_int_equal(e.at, at);
    sched_free(s);
}

static void test_rules(void **state)
{
    (void)state;
    expect("0F0 0B0 0F0", 0, 2, "rank 0: 0F0 occurs twice");
    expect("0F0 0B0\n1F0 1B0 0F1", 1, 2, "0F1: stage 0 is on rank 0");
    expect("0B0 0F0", 0, 0, "0B0 needs 0F0 first, which comes later");
    expect("0F0 0B0 0B1", 0, 2, "0B1 needs 0F1 first, which is nowhere");
    expect("0F0 0W0 0I0", 0, 1, "0W0 needs 0I0 first, which comes later");
    expect("0F0 0I0", 0, 2, "0W0 is missing");
    expect("0F0 0F1 0B0", 0, 3, "0B1 is missing");
    expect("0F0 0B0 0I0", 0, 2, "occurs beside B, which is I and W at once");
    expect("0F0 1F0 0B0 1B0", 0, 2, "0B0 needs 1B0 first");
    expect("1F0 0F0 1B0 0B0", 0, 0, "1F0 needs 0F0 first");
    expect("0F0 0RECV_B0 0B0\n1F0 1B0 1SEND_B0", 1, 0,
           "1F0 needs 1RECV_F0 first, which is nowhere");
    expect("0F0 0SEND_F0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0", 0, 2,
           "0B0 needs 0RECV_B0 first, which is nowhere");
    expect("0SEND_F0 0F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0", 0, 0,
           "0SEND_F0 needs 0F0 first, which comes later");
    expect("0F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0", 0, 3,
           "0SEND_F0 is missing");
    expect("0F0 0SEND_F0 1F0 1B0 0B0", 0, 1, "0SEND_F0 carries nothing");
    expect("0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1SEND_F0 1B0 1SEND_B0", 1,
           2, "1SEND_F0 carries nothing");
}

static void test_pairs(void **state)
{
    (void)state;
    sched_error e;
    sched *s = made("1f1b", 2, 2);
    s->row[0].v[0].joined = true;
    assert_false(sched_check(s, NULL, &e));
    assert_non_null(strstr(e.text, "0F0 is one cell with what follows: that is "
                           "for a forward before a backward"));
    sched_free(s);
}

static void test_updates(void **state)
{
    (void)state;
    expect("0F0 0U0 0B0", 0, 1, "0U0 needs 0B0 first");
    expect("0F0 0F1 0B0 0U0 0B1", 0, 5, "0U1 is missing");
    expect("0F0 0F1 0B0 0B1 0U1 0U0", 0, 5, "0U0 comes after a later update");
    expect("0F0 0F1 0B1 0U1 0B0", 0, 3, "0U1 does not take the gradients up to "
           "its microbatch, and those alone");
    expect("0F0 0F1 0B0 0B1 0U0 0U1", 0, 4, "0U0 does not take");
    expect("0F0 0F1 0B0 0U0 0B1 0U1\n1F0 1B0 1F1 1B1 1U1", 1, 5,
           "1U0 is missing");
    sched_error e;
    sched *s = sched_read("0F0 0F1 0B0 0B1 0U1", 19, "x", &e);
    assert_true(sched_check(s, NULL, &e));
    sched_free(s);
}

/* Between two ranks there is one line of messages each way, whatever the stage:
 * 0 -> 1 and 2 -> 3 share it. */
static void test_channels(void **state)
{
    (void)state;
    expect("0F0 0F1 0SEND_F1 0SEND_F0 0RECV_B0 0B0 0RECV_B1 0B1\n"
           "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1", 1, 0,
           "rank 1: 1RECV_F0 is not the message that its rank sends next");
    expect("0F0 0SEND_F0 2RECV_F0 2F0 2SEND_F0 0F1 0SEND_F1 2RECV_F1 2F1 "
           "2SEND_F1 2RECV_B0 2B0 2SEND_B0 2RECV_B1 2B1 2SEND_B1 0RECV_B0 0B0 "
           "0RECV_B1 0B1\n"
           "1RECV_F0 1F0 1SEND_F0 1RECV_F1 3RECV_F0 3F0 1F1 1SEND_F1 3RECV_F1 "
           "3F1 3B0 3SEND_B0 3B1 3SEND_B1 1RECV_B0 1B0 1SEND_B0 1RECV_B1 1B1 "
           "1SEND_B1", 1, 3, "1RECV_F1 is not the message");
}

static void test_circles(void **state)
{
    (void)state;
    expect("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0", 0, 1, "rank 0: 0B0 waits for "
           "ever: for 1B0, which comes after 1F1 on rank 1, and that waits for "
           "it in turn");
    /* The obvious placement: receive just before, send just after. */
    expect("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0SEND_F2 0RECV_B1 0B1 "
           "0RECV_B2 0B2\n"
           "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F2 1F2 "
           "1B2 1SEND_B2", 0, 3, "rank 0: 0SEND_F1 waits for ever: for "
           "1RECV_F1, which comes after 1SEND_B0 on rank 1, and that waits for "
           "it in turn");
}

static void test_table_around(void **state)
{
    (void)state;
    sched_error e;
    sched *s = made("1f1b", 12, 14);
    s->row[6].v[9].mb = 1;
    assert_false(sched_check(s, NULL, &e));
    char *table = sched_table_around(s, &e);
    assert_string_equal(table,
        "step        5    6    7    8    9   10   11   12   13\n"
        "rank  2   2F5  2F6  2F7  2F8  2F9  2B0 2F10  2B1 2F11\n"
        "rank  3   3F5  3F6  3F7  3F8  3B0  3F9  3B1 3F10  3B2\n"
        "rank  4   4F5  4F6  4F7  4B0  4F8  4B1  4F9  4B2 4F10\n"
        "rank  5   5F5  5F6  5B0  5F7  5B1  5F8  5B2  5F9  5B3\n"
        "rank  6   6F5  6B0  6F6  6B1  6F1  6B2  6F8  6B3  6F9   <-- 6F1\n"
        "rank  7   7B0  7F5  7B1  7F6  7B2  7F7  7B3  7F8  7B4\n"
        "rank  8   8F4  8B1  8F5  8B2  8F6  8B3  8F7  8B4  8F8\n"
        "rank  9   9B1  9F4  9B2  9F5  9B3  9F6  9B4  9F7  9B5\n"
        "rank 10  10F3 10B2 10F4 10B3 10F5 10B4 10F6 10B5 10F7\n");
    free(table);
    e.at = s->row[6].n;
    table = sched_table_around(s, &e);
    assert_non_null(strstr(table, "<-- ends here\n"));
    free(table);
    e.rank = -1;
    table = sched_table_around(s, &e);
    assert_string_equal(table, "");
    free(table);
    sched_free(s);
}

/* One slot less than sched_slots says is too few, on every stage and span. */
static void test_slots(void **state)
{
    (void)state;
    static const char *const names[] = {"gpipe", "1f1b", "interleaved(2)",
                                        "zb_h2", "zb_v", "dualpipe_v",
                                        "bfs(2)"};
    sched_error e;
    for (int k = 0; k < 7; k++)
        for (int lower = 0; lower < 2; lower++) {
            sched *s = made(names[k], 3, 9);
            assert_true(!lower || sched_lower(s, NULL, &e));
            for (int i = 0; i < s->stages; i++)
                for (int span = 0; span < SCHED_NSPANS; span++) {
                    int n = sched_slots(s, i, (sched_span)span);
                    assert_true(sched_check_slots(s, i, (sched_span)span, n,
                                                  &e));
                    assert_true(sched_check_slots(s, i, (sched_span)span, 9,
                                                  &e));
                    assert_false(sched_check_slots(s, i, (sched_span)span,
                                                   n - 1, &e));
                }
            sched_free(s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_updates),
        cmocka_unit_test(test_channels),
        cmocka_unit_test(test_circles),
        cmocka_unit_test(test_table_around),
        cmocka_unit_test(test_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
