/* test_sched_text.c - schedules as text: what is written is read as the same,
 * what PyTorch writes is understood, what is wrong is named with its place. */
#include "sched_test.h"

static const char *const names[] = {
    "gpipe", "1f1b", "interleaved(2)", "interleaved(3)", "bfs(2)", "zb_h1",
    "zb_h2", "zb_v", "v_half", "v_min", "dualpipe_v", "pipedream",
    "pipedream_2bw",
};
enum { NAMES = sizeof names / sizeof *names };

static sched *reread(const char *text)
{
    sched_error e;
    sched *s = sched_read(text, strlen(text), "text", &e);
    if (!s)
        fail_msg("%s\n%s", e.text, text);
    return s;
}

static void assert_same(const sched *a, const sched *b)
{
    assert_int_equal(a->ranks, b->ranks);
    assert_int_equal(a->stages, b->stages);
    assert_int_equal(a->micro, b->micro);
    assert_memory_equal(a->rank_of, b->rank_of,
                        (size_t)a->stages * sizeof *a->rank_of);
    for (int r = 0; r < a->ranks; r++) {
        assert_int_equal(a->row[r].n, b->row[r].n);
        for (int i = 0; i < a->row[r].n; i++) {
            sched_action x = a->row[r].v[i], y = b->row[r].v[i];
            assert_true(x.op == y.op && x.stage == y.stage && x.mb == y.mb &&
                        x.joined == y.joined);
        }
    }
}

/* All kinds, computations with their idle cells and rows with messages. */
static void test_round_trip(void **state)
{
    (void)state;
    for (int k = 0; k < NAMES; k++)
        for (int p = 1; p <= 5; p++) {
            int m = 3 * p + (k < 3 ? p : 0);
            sched *s = made(names[k], p, m);
            sched_times t = timed(s, NULL);
            sched_error e;
            sched_text csv = {0}, comms = {0}, rows = {0};
            sched_write(s, true, &csv);
            sched *again = reread(csv.s);
            assert_same(s, again);
            sched_free(again);
            assert_true(sched_lower(s, NULL, &e));
            sched_write(s, false, &comms);
            again = reread(comms.s);
            assert_same(s, again);
            sched_free(again);
            for (int r = 0; r < p; r++) {
                sched_write_row(s, r, &rows);
                sched_put(&rows, "\n");
            }
            again = reread(rows.s);
            assert_same(s, again);
            assert_true(again->lowered || p == 1);
            sched_free(again);
            free(t.rank);
            free(csv.s);
            free(comms.s);
            free(rows.s);
            sched_free(s);
        }
}

/* A column of the CSV is a slot; there are no idle cells where times are no
 * whole numbers, or where messages are written. */
static void test_idle_cells(void **state)
{
    (void)state;
    sched *s = made("1f1b", 2, 2);
    sched_times t = timed(s, NULL);
    sched_text x = {0}, y = {0}, z = {0};
    sched_error e;
    sched_write(s, true, &x);
    assert_string_equal(x.s, "0F0,0F1,,,0B0,,,0B1\n,1F0,1B0,,1F1,1B1\n");
    assert_true(sched_lower(s, NULL, &e));
    free(t.rank);
    t = timed(s, NULL);
    sched_write(s, true, &y);
    assert_string_equal(x.s, y.s);
    double f[] = {1.5, 1.5};
    free(t.rank);
    t = timed(s, &(sched_costs){.f = f});
    sched_write(s, true, &z);
    assert_string_equal(z.s, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    free(t.rank);
    free(x.s);
    free(y.s);
    free(z.s);
    sched_free(s);
}

static void expect_rows(const char *text, const char *want)
{
    sched *s = reread(text);
    sched_text x = {0};
    sched_write(s, false, &x);
    assert_string_equal(x.s, want);
    free(x.s);
    sched_free(s);
}

/* The forms that PyTorch writes, and what spreadsheets make of them. */
static void test_foreign(void **state)
{
    (void)state;
    expect_rows("0F0,0F1,2F0,,2F1,2B0,2W0,0B0,0W0,2B1,2W1,0B1,0W1\n"
                ",1F0,1F1,3F0,3B0,3W0,3F1,3B1,3W1,1B0,1W0,1B1,1W1\n",
                "0F0,0F1,2F0,2F1,2I0,2W0,0I0,0W0,2I1,2W1,0I1,0W1\n"
                "1F0,1F1,3F0,3I0,3W0,3F1,3I1,3W1,1I0,1W0,1I1,1W1\n");
    expect_rows("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
                "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,,1REDUCE_GRAD\n",
                "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
    expect_rows("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n",
                "0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n");
    expect_rows("\xef\xbb\xbf" "0F0,,0B0,,\r\n,1F0,1B0,\r\n\r\n",
                "0F0,0B0\n1F0,1B0\n");
    expect_rows(" 0F0 \t0B0\n1F0  1B0", "0F0,0B0\n1F0,1B0\n");
}

static void expect_error(const char *text, size_t n, const char *want)
{
    sched_error e;
    sched *s = sched_read(text, n, "text", &e);
    assert_null(s);
    if (!strstr(e.text, want))
        fail_msg("'%s' does not say '%s'", e.text, want);
}

static void test_errors(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"0F0,0B0\n0F1,,2BW0", "row 2, column 6: `2BW0` is no action: those "
         "are F, B, I, W, U, SEND_F"},
        {"0FOO1", "row 1, column 1: `0FOO1` is no action"},
        {"0F0 3B1junk", "row 1, column 5: `3B1junk` goes on after its "
         "microbatch"},
        {"0F", "`0F` has no microbatch"},
        {"F0", "`F0` is no action: those are <stage><what><microbatch>"},
        {"0f0", "`0f0` is no action"},
        {"0F-1", "`0F-1` has no microbatch"},
        {"-1F0", "`-1F0` is no action"},
        {"0F0;0B0", "`0F0;0B0` goes on after its microbatch; commas separate"},
        {"0UNSHARD1", "`0UNSHARD1` is no action"},
        {"0SEND_F", "`0SEND_F` has no microbatch"},
        {"0F1000000", "`0F1000000` has a number above 999999"},
        {"99999999999999999999F0", "has a number above 999999"},
        {"(0F1;1B0)", "`(0F1;1B0)` is no pair"},
        {"(0F1;1B0)OVERLAP_F_Bx", "is no pair"},
        {"(0F1;1F0)OVERLAP_F_B", "is no pair of a forward and a backward"},
        {"(0F1)OVERLAP_F_B", "is no pair"},
        {"(0UNSHARD;1B0)OVERLAP_F_B", "is no pair of"},
        {"(0F1;1BB)OVERLAP_F_B", "is no action"},
        {"", "the schedule is empty"},
        {"\n , ,\r\n", "the schedule is empty"},
        {"0F0,0B0\n,,\n1F0,1B0", "row 2 has no action"},
        {"0F0,0B0\n2F0,2B0", "stage 1 of 3 is in no row"},
        {"0F0,9999F9999", "most are missing"},
        {"0F\x01zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz", "`0F?zzz"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_error(wrong[i][0], strlen(wrong[i][0]), wrong[i][1]);
    expect_error("0F0\0" "0B0", 7, "row 1, column 1: `0F0?0B0` goes on");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_idle_cells),
        cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
