/* test_sched_oracle.c - the schedules against printed figures and timelines,
 * tests/fixtures/schedules/. */
#include "sched_test.h"

#include <ctype.h>
#include <math.h>

enum { P = 4, M = 8 };

/* ---- the table ----------------------------------------------------------- */

static void near(const char *what, const char *want, double have, double by)
{
    if (strcmp(want, "-") && !(fabs(atof(want) - have) <= by))
        fail_msg("%s is %s, not %g", what, want, have);
}

static void check_row(char *word[], int n)
{
    bool split = !strcmp(word[0], "split");
    assert_int_equal(n, 5 + 3 * P + 1);
    sched *s = made(split ? "dualpipe_v" : word[0], P, M);
    if (split)
        unjoin(s);
    else
        assert_string_equal(s->name, word[0]);
    double *one = all(s->stages, 1);
    sched_times t = timed(s, &(sched_costs){.until_i = one});
    char what[80];
    snprintf(what, sizeof what, "a figure of %s", word[0]);
    near(what, word[1], t.makespan, 0);
    near(what, word[2], t.ideal, 0);
    near(what, word[3], t.bubble_ideal, 5e-4);
    near(what, word[4], t.bubble_total, 5e-5);
    for (int r = 0; r < P; r++) {
        near(what, word[5 + r], span(&t, r), 0);
        near(what, word[5 + P + r], t.rank[r].chunks, 0);
        near(what, word[5 + 2 * P + r], t.rank[r].kept, 0);
    }
    near(what, word[5 + 3 * P], (double)t.messages, 0);
    free(t.rank);
    free(one);
    sched_free(s);
}

static int words(char *line, char *word[], int most)
{
    int n = 0;
    char *save = NULL;
    for (char *w = strtok_r(line, " \n", &save); w && n < most;
         w = strtok_r(NULL, " \n", &save))
        word[n++] = w;
    return n;
}

static void the_table(void **state)
{
    (void)state;
    char line[512], *word[64];
    int rows = 0;
    FILE *f = fopen("tests/fixtures/schedules/table.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        int n = line[0] == '#' ? 0 : words(line, word, 64);
        if (n == 0)
            continue;
        check_row(word, n);
        rows++;
    }
    fclose(f);
    assert_int_equal(rows, 11);
}

/* ---- timelines ----------------------------------------------------------- */

enum { CELLS = 100 };

/* What a rank does in each slot, as in the fixture. */
static void draw(const sched *s, int r, char cell[CELLS][8])
{
    for (int i = 0; i < CELLS; i++)
        strcpy(cell[i], "..");
    for (int i = 0; i < s->row[r].n; i++) {
        const sched_action *a = &s->row[r].v[i];
        char c = sched_op_name[a->op][0];
        int at = (int)a->start;
        snprintf(cell[at], sizeof *cell, "%c%d",
                 a->stage < s->ranks ? c : tolower(c), a->mb);
        if (a->op == SCHED_B)
            strcpy(cell[at + 1], "-");
    }
}

static void check_timeline(const sched *s, int r, char *word[], int n)
{
    char cell[CELLS][8];
    draw(s, r, cell);
    for (int i = 0; i < CELLS; i++)
        if (strcmp(cell[i], i < n ? word[i] : ".."))
            fail_msg("%s, rank %d, slot %d: %s and not %s", s->name, r, i,
                     i < n ? word[i] : "..", cell[i]);
}

static void the_timelines(void **state)
{
    (void)state;
    char line[1024], *word[CELLS];
    int rows = 0;
    sched *s = NULL;
    FILE *f = fopen("tests/fixtures/schedules/timelines.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        int n = line[0] == '#' ? 0 : words(line, word, CELLS);
        if (n == 1) {
            sched_free(s);
            s = made(word[0], P, M);
            free(timed(s, NULL).rank);
        } else if (n) {
            check_timeline(s, word[0][1] - '0', word + 1, n - 1);
            rows++;
        }
    }
    sched_free(s);
    fclose(f);
    assert_int_equal(rows, 5 * P + 2);   /* of zb_v, two ranks are printed */
}

/* ---- single figures ------------------------------------------------------ */

/* Bubbles against the makespan, in percent; rows: 2, 4, 8, 16, 32 ranks. */
static void bubbles_of_1f1b(void **state)
{
    (void)state;
    static const double percent[5][7] = {
        {50, 33.33, 20, 11.11, 5.88, 3.03, 1.54},
        {75, 60, 42.86, 27.27, 15.79, 8.57, 4.48},
        {87.5, 77.78, 63.64, 46.67, 30.43, 17.95, 9.86},
        {93.75, 88.24, 78.95, 65.22, 48.39, 31.91, 18.99},
        {96.88, 93.94, 88.57, 79.49, 65.96, 49.21, 32.63},
    };
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 7; k++)
            for (int kind = 0; kind < 2; kind++) {
                sched *s = made(kind ? "1f1b" : "gpipe", 2 << i, 1 << k);
                sched_times t = timed(s, NULL);
                assert_true(fabs(100 * t.bubble_total - percent[i][k]) <=
                            0.0051);
                free(t.rank);
                sched_free(s);
            }
}

/* 8 and 16 ranks: bubble against the makespan (0: not known), and the peak in
 * stages, two chunks each. */
static void half_and_third_of_the_memory(void **state)
{
    (void)state;
    static const struct figure {
        const char *name;
        int p;
        double bubble, stages;
    } figure[] = {
        {"v_half", 8, .1504, 5}, {"v_min", 8, .2195, 4},
        {"v_half", 4, .0943, 3}, {"v_min", 4, .1864, 2},
        {"v_half", 16, 0, 9}, {"v_min", 16, 0, 6},
    };
    for (size_t i = 0; i < sizeof figure / sizeof *figure; i++) {
        const struct figure *f = &figure[i];
        sched *s = made(f->name, f->p, 2 * f->p);
        sched_times t = timed(s, NULL);
        int peak = 0;
        for (int r = 0; r < f->p; r++)
            if (peak < t.rank[r].chunks)
                peak = t.rank[r].chunks;
        assert_true(peak == 2 * f->stages);
        assert_true(!f->bubble || fabs(t.bubble_total - f->bubble) <= 5e-5);
        free(t.rank);
        sched_free(s);
    }
}

/* Slots of one length both ways: 2 m + 2 (p - 1). */
static void unit_slots(void **state)
{
    (void)state;
    sched *s = made("1f1b", 4, 4);
    double *zero = all(4, 0);
    sched_times t = timed(s, &(sched_costs){.w = zero});
    assert_true(t.makespan == 14);
    free(t.rank);
    free(zero);
    sched_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table),
        cmocka_unit_test(the_timelines),
        cmocka_unit_test(bubbles_of_1f1b),
        cmocka_unit_test(half_and_third_of_the_memory),
        cmocka_unit_test(unit_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
