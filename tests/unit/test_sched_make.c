/* test_sched_make.c - names of schedules, the numbers that they can have, and
 * that every one is whole: each microbatch once through each stage both ways,
 * gradients in ascending order. */
#include "sched_test.h"

/* ---- names --------------------------------------------------------------- */

static void names(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        sched_kind kind;
        int v;
    } t[] = {
        {"gpipe", true, SCHED_KIND_GPIPE, 0},
        {"1f1b", true, SCHED_KIND_1F1B, 0},
        {"1f1b(1)", true, SCHED_KIND_1F1B, 1},
        {"interleaved(13)", true, SCHED_KIND_INTERLEAVED, 13},
        {"bfs(2)", true, SCHED_KIND_BFS, 2},
        {"zb_v(2)", true, SCHED_KIND_ZB_V, 2},
        {"pipedream", true, SCHED_KIND_PIPEDREAM, 0},
        {"pipedream_2bw", true, SCHED_KIND_PIPEDREAM_2BW, 0},
        {"auto", true, SCHED_KIND_AUTO, 0},
        {"auto(3)", true, SCHED_KIND_AUTO, 3},
        {.text = ""}, {.text = "1f1"}, {.text = "1f1b "}, {.text = "1f1b()"},
        {.text = "1f1b(2)"}, {.text = "zb_v(3)"}, {.text = "interleaved"},
        {.text = "interleaved(0)"}, {.text = "interleaved(-1)"},
        {.text = "interleaved(2"}, {.text = "interleaved(2)x"},
        {.text = "interleaved(99999999999999999999)"}, {.text = "(2)"},
        {.text = "file"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        sched_kind kind;
        int v;
        bool ok = sched_parse_name(t[i].text, &kind, &v);
        if (ok != t[i].ok || (ok && (kind != t[i].kind || v != t[i].v)))
            fail_msg("\"%s\"", t[i].text);
    }
}

/* ---- what is refused ----------------------------------------------------- */

static void refusals(void **state)
{
    (void)state;
    static const struct {
        sched_ask ask;
        const char *says[3];
    } t[] = {
        {{.kind = SCHED_KIND_INTERLEAVED, .ranks = 4, .v = 2, .micro = 9},
         {"interleaved(2) over p = 4 ranks: m = 9", "m % (m / p) = 0",
          "8 and 10"}},
        {{.kind = SCHED_KIND_INTERLEAVED, .ranks = 5, .micro = 5},
         {"interleaved(v) needs v"}},
        {{.kind = SCHED_KIND_DUALPIPE_V, .ranks = 3, .micro = 5},
         {"m >= 2 p", "m = 5", "m = 6 and more"}},
        {{.kind = SCHED_KIND_PIPEDREAM_2BW, .ranks = 5, .micro = 3},
         {"m >= p", "m = 3", "m = 5 and more"}},
        {{.kind = SCHED_KIND_ZB_V, .ranks = 2, .v = 3, .micro = 4},
         {"zb_v has v = 2 stages per rank, not 3"}},
        {{.kind = SCHED_KIND_1F1B, .ranks = 2, .v = 2, .micro = 4},
         {"1f1b has v = 1 stage per rank, not 2"}},
        {{.kind = SCHED_KIND_GPIPE, .ranks = 2, .micro = 0},
         {"m = 0", "at least 1"}},
        {{.kind = SCHED_KIND_BFS, .ranks = 65536, .v = 64, .micro = 1 << 20},
         {"at most"}},
        {{.kind = SCHED_KIND_FILE, .ranks = 2, .micro = 2},
         {"not made by a rule"}},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        sched_error err = {0};
        assert_null(sched_make(&t[i].ask, &err));
        for (int k = 0; k < 3 && t[i].says[k]; k++)
            if (!strstr(err.text, t[i].says[k]))
                fail_msg("\"%s\" does not say \"%s\"", err.text,
                         t[i].says[k]);
    }
}

/* ---- every schedule is whole --------------------------------------------- */

typedef struct seen {
    int f, i, w, u;                  /* of a stage: done so far */
} seen;

static void in_order(const sched *s, const sched_action *a, int done)
{
    if (a->mb != done)
        fail_msg("%s, p = %d, m = %d: %d%s%d comes after %d others", s->name,
                 s->ranks, s->micro, a->stage, sched_op_name[a->op], a->mb,
                 done);
}

/* Microbatches ascend in each stage; backwards of bfs descend. */
static void whole(sched *s, bool descends)
{
    seen *n = calloc((size_t)s->stages, sizeof *n);
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++) {
            const sched_action *a = &s->row[r].v[i];
            seen *x = &n[a->stage];
            assert_int_equal(s->rank_of[a->stage], r);
            if (a->op == SCHED_F)
                in_order(s, a, x->f++);
            if (a->op == SCHED_B || a->op == SCHED_I)
                in_order(s, a, descends ? s->micro - 1 - x->i : x->i), x->i++;
            if (a->op == SCHED_B || a->op == SCHED_W)
                in_order(s, a, descends ? s->micro - 1 - x->w : x->w), x->w++;
            if (a->op == SCHED_U)
                in_order(s, a, x->u++);
            if (a->joined)
                assert_true(a->op == SCHED_F && a[1].op == SCHED_B &&
                            a[1].mb != a->mb && !a[1].joined);
        }
    for (int i = 0; i < s->stages; i++)
        assert_true(n[i].f == s->micro && n[i].i == s->micro &&
                    n[i].w == s->micro);
    free(n);
    free(timed(s, NULL).rank);           /* nobody waits for ever */
}

static void all_are_whole(void **state)
{
    (void)state;
    static const int micro[] = {1, 2, 3, 5, 8, 13, 16, 33, 61, 64};
    for (int p = 1; p <= 16; p++)
        for (int k = 0; k < SCHED_NKINDS; k++)
            for (int v = 1; v <= (sched_kinds[k].v ? 1 : 4); v++)
                for (size_t i = 0; i < sizeof micro / sizeof *micro; i++) {
                    sched_error err;
                    sched_ask ask = {.kind = (sched_kind)k, .ranks = p,
                                     .v = sched_kinds[k].v ? 0 : v,
                                     .micro = micro[i]};
                    sched *s = sched_make(&ask, &err);
                    assert_true((s != NULL) == sched_legal(&ask, &err));
                    if (s)
                        whole(s, sched_has(ask.kind, 'd'));
                    sched_free(s);
                }
}

/* ---- pipedream ----------------------------------------------------------- */

/* F(s, mb) runs on the version that its comment says; up to p - s versions. */
static void versions_of_pipedream(void **state)
{
    (void)state;
    for (int p = 1; p <= 5; p++)
        for (int m = 1; m <= 13; m++) {
            sched *s = made("pipedream", p, m);
            for (int r = 0; r < p; r++) {
                int updates = 0, most = 0, version[16];
                for (int i = 0; i < s->row[r].n; i++) {
                    const sched_action *a = &s->row[r].v[i];
                    int late = a->mb - (p - 1 - r);
                    if (a->op == SCHED_F) {
                        version[a->mb] = updates;
                        assert_int_equal(updates, late > 0 ? late : 0);
                    }
                    if (a->op == SCHED_B && most < updates - version[a->mb])
                        most = updates - version[a->mb];
                    if (a->op == SCHED_U) {
                        assert_true(a[-1].op == SCHED_B &&
                                    a[-1].mb == a->mb);
                        updates++;
                    }
                }
                assert_int_equal(updates, m);
                assert_int_equal(most + 1, p - r < m ? p - r : m);
            }
            sched_free(s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(refusals),
        cmocka_unit_test(all_are_whole),
        cmocka_unit_test(versions_of_pipedream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
