/* test_sched_draw.c - what schedules look like: on a terminal, as SVG, in a
 * trace viewer. */
#include "sched_test.h"

static void expect(sched *s, const sched_costs *c, double seconds,
                   const char *want)
{
    sched_times t = timed(s, c);
    sched_text x = {0};
    sched_draw(s, &t, seconds, &x);
    assert_string_equal(x.s, want);
    free(x.s);
    free(t.rank);
    sched_free(s);
}

static void test_slots(void **state)
{
    (void)state;
    expect(made("1f1b", 2, 3), NULL, 0,
        "1f1b: 2 stages, 3 microbatches, 12 slots, bubble 25.0% of the time, "
        "33.3% of the work, in flight 2 1\n"
        "stage 0 | F0 F1 .. .. B0 -  F2 B1 -  .. B2 -\n"
        "stage 1 | .. F0 B0 -  F1 B1 -  F2 B2 -  .. ..\n");
    expect(made("gpipe", 1, 1), NULL, 0,
        "gpipe: 1 stage, 1 microbatch, 3 slots, bubble 0.0% of the time, 0.0% "
        "of the work, in flight 1\n"
        "stage 0 | F0 B0 -\n");
    expect(made("pipedream", 2, 2), NULL, 0,
        "pipedream: 2 stages, 2 microbatches, 9 slots, bubble 33.3% of the "
        "time, 50.0% of the work, in flight 2 1\n"
        "stage 0 | F0 F1 .. .. B0 U0 .. B1 U1\n"
        "stage 1 | .. F0 B0 U0 F1 B1 U1 .. ..\n");
}

/* With its messages, a schedule looks the same. */
static void test_messages(void **state)
{
    (void)state;
    sched *s = made("zb_h1", 2, 2);
    sched_error e;
    assert_true(sched_lower(s, NULL, &e));
    expect(s, NULL, 0,
        "zb_h1: 2 stages, 2 microbatches, 7 slots, bubble 14.3% of the time, "
        "16.7% of the work, in flight 2 2\n"
        "stage 0 | F0 F1 .. I0 W0 I1 W1\n"
        "stage 1 | .. F0 I0 F1 I1 W0 W1\n");
}

static void test_chunks(void **state)
{
    (void)state;
    expect(made("zb_v", 2, 2), NULL, 0,
        "zb_v: 4 stages on 2 devices, 2 microbatches, 14 slots, bubble 14.3% "
        "of the time, 16.7% of the work, in flight 3 4\n"
        "device 0 | F0 F1 .. f0 i0 w0 f1 i1 w1 I0 W0 .. I1 W1\n"
        "device 1 | .. F0 f0 F1 f1 i0 w0 I0 W0 i1 w1 I1 W1 ..\n"
        "capitals: the first stage of a device; small letters: its second\n");
    expect(made("interleaved(3)", 2, 2), NULL, 0,
        "interleaved(3): 6 stages on 2 devices, 2 microbatches, 21 slots, "
        "bubble 14.3% of the time, 16.7% of the work, in flight 6 5\n"
        "device 0 | 0F0 0F1 2F0 2F1 4F0 4F1 ..  ..  4B0 -   ..  4B1 -   2B0 -  "
        " 2B1 -   0B0 -   0B1 -\n"
        "device 1 | ..  1F0 1F1 3F0 3F1 5F0 5B0 -   5F1 5B1 -   3B0 -   3B1 -  "
        " 1B0 -   1B1 -   ..  ..\n"
        "5F3: stage 5, forward of microbatch 3\n");
    expect(made("dualpipe_v", 2, 4), NULL, 0,
        "dualpipe_v: 4 stages on 2 devices, 4 microbatches, 26 slots, bubble "
        "7.7% of the time, 8.3% of the work, in flight 5 5\n"
        "device 0 | F0  F1  F2  f0  i0  w0  f1  F3  +b1 -   ..  f2  +B0 -   b2"
        "  -   ..  f3  +B1 -   b3  -   I2  W2  I3  W3\n"
        "device 1 | ..  F0  f0  F1  f1  F2  b0  -   f2  +B0 -   F3  +b1 -   f3"
        "  +B1 -   b2  -   B2  -   ..  i3  I3  w3  W3\n"
        "capitals: the first stage of a device; small letters: its second\n"
        "+: in one cell with what is before it\n");
}

/* Stage 0 is not on rank 0: then rows are devices. */
static void test_other_places(void **state)
{
    (void)state;
    sched_error e;
    const char *text = "1F0,1B0\n0F0,0B0";
    expect(sched_read(text, strlen(text), "x.csv", &e), NULL, 0,
        "x.csv: 2 stages, 1 microbatch, 6 slots, bubble 50.0% of the time, "
        "100.0% of the work, in flight 1 1\n"
        "device 0 | .. F0 B0 -  .. ..\n"
        "device 1 | F0 .. .. .. B0 -\n");
}

static void test_scaled(void **state)
{
    (void)state;
    double f[] = {1, 1}, i[] = {.7, .7}, w[] = {.8, .8};
    sched_costs c = {.f = f, .i = i, .w = w};
    expect(made("1f1b", 2, 3), &c, 2e-3,
        "1f1b: 2 stages, 3 microbatches, 20 ms, bubble 25.0% of the time, "
        "33.3% of the work, in flight 2 1\n"
        "stage 0 | F0-F1-.....B0---F2-B1---...B2---\n"
        "stage 1 | ...F0-B0---F1-B1---F2-B2---.....\n");
    double none[] = {0, 0};
    expect(made("gpipe", 2, 1), &(sched_costs){.f = none, .i = none,
           .w = none}, 0,
        "gpipe: 2 stages, 1 microbatch, 0 slots, bubble 0.0% of the time, 0.0% "
        "of the work, in flight 1 1\n"
        "stage 0 |\n"
        "stage 1 |\n");
}

/* What is long is folded; every line stays within a terminal's width. */
static void test_folded(void **state)
{
    (void)state;
    static const char *const names[] = {"gpipe", "interleaved(3)", "zb_v",
                                        "dualpipe_v"};
    double f[12], w[12];
    for (int k = 0; k < 12; k++)
        f[k] = 1 + k * .01, w[k] = 1;
    for (int k = 0; k < 8; k++) {
        sched *s = made(names[k / 2], 4, 100);
        sched_costs c = {.f = k % 2 ? f : w, .i = w, .w = w};
        sched_times t = timed(s, &c);
        sched_text x = {0};
        sched_draw(s, &t, 0, &x);
        char *row = strchr(x.s, '\n') + 1;
        for (char *end; (end = strchr(row, '\n')); row = end + 1)
            assert_true(end - row <= 140 && end[-1] != ' ');
        assert_non_null(strstr(x.s, k == 0 ? "\n~~ stands for slots 15 to 292\n"
                                           : "\n~~ stands for "));
        free(x.s);
        free(t.rank);
        sched_free(s);
    }
}

static void test_times(void **state)
{
    (void)state;
    static const struct {
        double time, seconds;
        const char *text;
    } row[] = {
        {1, 0, "1 slot"}, {12, 0, "12 slots"}, {1.5, 0, "1.5 slots"},
        {3, 1, "3 s"}, {0, 1, "0 s"}, {3.0512, 1e-3, "3.05 ms"},
        {3, 1e-6, "3 us"}, {.5, 2, "1 s"},
    };
    for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
        sched_text x = {0};
        sched_put_time(&x, row[k].time, row[k].seconds);
        assert_string_equal(x.s, row[k].text);
        free(x.s);
    }
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text++)
        n++;
    return n;
}

/* A box for each computation, a curve for each device; the same bytes again;
 * names of files are no XML. */
static void test_svg(void **state)
{
    (void)state;
    sched *s = made("zb_v", 3, 7);
    snprintf(s->name, sizeof s->name, "a<&\">.csv");
    double *keep = all(6, 1000);
    sched_costs c = {.until_w = keep};
    sched_times t = timed(s, &c);
    sched_text x = {0}, y = {0}, z = {0};
    sched_svg(s, &t, &c, 1e-3, &x);
    sched_svg(s, &t, &c, 1e-3, &y);
    sched_svg(s, &t, NULL, 0, &z);
    assert_string_equal(x.s, y.s);
    assert_int_equal(count(x.s, "<title>"), 3 * 6 * 7);
    assert_int_equal(count(x.s, "class=\"kept\""), 3);
    assert_int_equal(count(x.s, " KiB</text>"), 3);
    assert_non_null(strstr(x.s, ">a&lt;&amp;&quot;&gt;.csv: 6 stages"));
    assert_non_null(strstr(x.s, "<title>3F0: 3 ms to 4 ms</title>"));
    assert_int_equal(count(z.s, "ms"), 0);
    free(x.s);
    free(y.s);
    free(z.s);
    free(keep);
    free(t.rank);
    sched_free(s);
}

/* Every action, an arrow for each message, the memory as it changes. */
static void test_trace(void **state)
{
    (void)state;
    sched *s = made("1f1b", 2, 3);
    sched_error e;
    double *keep = all(2, 64);
    sched_costs c = {.until_i = keep};
    assert_true(sched_lower(s, &c, &e));
    sched_times t = timed(s, &c);
    sched_text x = {0};
    sched_trace(s, &c, 1e-6, &x);
    assert_int_equal(count(x.s, "\"ph\":\"X\""), 2 * 6 + 2 * 6);
    assert_int_equal(count(x.s, "\"ph\":\"s\""), 6);
    assert_int_equal(count(x.s, "\"ph\":\"f\""), 6);
    assert_int_equal(count(x.s, "\"ph\":\"C\""), 12);
    assert_int_equal(count(x.s, "\"bytes\":128}"), 2);
    assert_non_null(strstr(x.s, "{\"name\":\"0B0\",\"cat\":\"B\",\"ph\":\"X\","
        "\"pid\":0,\"tid\":0,\"ts\":4.000,\"dur\":2.000,\"args\":{\"stage\":0,"
        "\"microbatch\":0}}"));
    free(x.s);
    free(keep);
    free(t.rank);
    sched_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_other_places),
        cmocka_unit_test(test_scaled),
        cmocka_unit_test(test_folded),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_svg),
        cmocka_unit_test(test_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
