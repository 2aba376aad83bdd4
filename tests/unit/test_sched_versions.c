/* test_sched_versions.c - how many versions of its weights a stage holds, and
 * that one less is found to be too few. */
#include "sched_test.h"

/* p - s on stage s, or as many as there are microbatches; microbatch b runs on
 * the version that so many updates have left. */
static void test_pipedream(void **state)
{
    (void)state;
    sched_error e;
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 17; m++) {
            sched *s = made("pipedream", p, m);
            int *of = calloc((size_t)m, sizeof *of);
            for (int i = 0; i < p; i++) {
                int want = m < p - i ? m : p - i;
                int n = sched_versions(s, i, of);
                assert_int_equal(n, want);
                for (int mb = 0; mb < m; mb++) {
                    int late = mb - (p - 1 - i);
                    assert_int_equal(of[mb], late > 0 ? late : 0);
                }
                assert_true(sched_check_versions(s, i, n, &e));
                assert_true(sched_check_versions(s, i, n + 1, &e));
                assert_false(sched_check_versions(s, i, n - 1, &e));
            }
            free(of);
            sched_free(s);
        }
}

static void test_without_updates(void **state)
{
    (void)state;
    sched_error e;
    int of[8];
    sched *s = made("zb_h1", 3, 8);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sched_versions(s, i, of), 1);
        assert_true(sched_check_versions(s, i, 1, &e));
    }
    sched_free(s);
}

static void test_what_is_said(void **state)
{
    (void)state;
    static const char text[] = "0F0 0F1 0F2 0B0 0U0 0B1 0U1 0B2 0U2";
    sched_error e;
    sched *s = sched_read(text, strlen(text), "text", &e);
    assert_false(sched_check_versions(s, 0, 1, &e));
    assert_int_equal(e.rank, 0);
    assert_int_equal(e.at, 5);
    assert_string_equal(e.text, "rank 0: 0B1 needs weights that are 1 older "
                        "than the newest: stage 0 has 1 version");
    assert_false(sched_check_versions(s, 0, 2, &e));
    assert_int_equal(e.at, 7);
    assert_true(sched_check_versions(s, 0, 3, &e));
    sched_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipedream),
        cmocka_unit_test(test_without_updates),
        cmocka_unit_test(test_what_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
