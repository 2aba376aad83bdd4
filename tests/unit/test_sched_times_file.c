/* test_sched_times_file.c - measured costs read from text. */
#include "sched_test.h"

#define HEAD "stage,F,I,W,B,ahead,back\n"

static void reads(void **state)
{
    (void)state;
    static const char text[] = HEAD "0,2.5e-3,0,0,4e-3,1e-4,0\r\n"
                                    "1,.5,.25,0,,0,2e-4";
    sched_measured m;
    sched_error err;
    if (!sched_times_read(text, strlen(text), &m, &err))
        fail_msg("%s", err.text);
    assert_int_equal(m.stages, 2);
    assert_float_equal(m.costs.f[0], 2.5e-3, 0);
    assert_float_equal(m.costs.i[0], 2e-3, 0);       /* halves of B */
    assert_float_equal(m.costs.w[0], 2e-3, 0);
    assert_float_equal(m.costs.i[1], .25, 0);        /* no weights */
    assert_float_equal(m.costs.w[1], 0, 0);
    assert_float_equal(m.costs.ahead[0], 1e-4, 0);
    assert_float_equal(m.costs.back[1], 2e-4, 0);
    free(m.v);
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"", "row 1 must be `stage,F,I,W,B,ahead,back`"},
        {"stage,F,I,W,B\n0,1,1,1,2\n",
         "row 1 must be `stage,F,I,W,B,ahead,back`"},
        {HEAD, "no stage after row 1"},
        {HEAD "0,1,1,1,2,0\n", "row 2: less cells than 7"},
        {HEAD "0,1,1,1,2,0,0,0\n", "row 2: more cells than 7"},
        {HEAD "0,1,1,1,,0,0\n2,1,1,1,,0,0\n",
         "row 3, column 1 (stage): `2` is not 1; stages are in order"},
        {HEAD "0,1,1,1x,,0,0\n",
         "row 2, column 4 (W): `1x` is not a number of seconds"},
        {HEAD "0,,1,1,,0,0\n",
         "row 2, column 2 (F): `` is not a number of seconds"},
        {HEAD "0,1,1,1,,-1,0\n",
         "row 2, column 6 (ahead): `-1` is not a number of seconds"},
        {HEAD "0,1,1,1,,0,1e999\n",
         "row 2, column 7 (back): `1e999` is not a number of seconds"},
        {HEAD "0,1,,,,0,0\n",
         "row 2: neither I and W nor B was measured"},
        {HEAD "0,1,1,1,,0,0\n\n",
         "row 3: less cells than 7"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sched_measured m;
        sched_error err;
        assert_false(sched_times_read(wrong[i][0], strlen(wrong[i][0]), &m,
                                      &err));
        assert_string_equal(err.text, wrong[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads),
        cmocka_unit_test(says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
