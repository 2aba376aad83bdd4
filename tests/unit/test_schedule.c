/* The schedules: published figures, every small p and m, and a simulation of
 * a runtime with blocking sends that shares no code with the pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "passes/schedule.h"

typedef struct messages {
    int n;
    char first[256];
} messages;

static void keep_message(void *user, nd_severity severity, const char *text)
{
    messages *k = user;
    (void)severity;
    if (k->n++ == 0)
        snprintf(k->first, sizeof k->first, "%s", text);
}

/* A module with nothing but a pipeline whose boundaries carry one value. */
static nd_module *module_of(sched_kind kind, int p, int m, messages *k)
{
    nd_ctx *c = nd_ctx_new();
    *k = (messages){0};
    c->sink = keep_message;
    c->sink_user = k;
    nd_module *mod = ND_NEW(c->arena, nd_module);
    mod->ctx = c;
    mod->plan.schedule = kind;
    mod->program = ND_NEW(c->arena, nd_program);
    mod->program->nstages = mod->program->ndevices = p;
    mod->program->nmicro = m;
    mod->program->stage = ND_NEWN(c->arena, nd_stage, p);
    for (int s = 0; s < p; s++) {
        nd_stage *st = &mod->program->stage[s];
        if (s + 1 < p)
            ND_PUSH(c->arena, &st->send_fwd, (nd_cross){0});
        if (s > 0)
            ND_PUSH(c->arena, &st->send_bwd, (nd_cross){0});
    }
    return mod;
}

static nd_module *scheduled(sched_kind kind, int p, int m)
{
    static messages k;
    nd_options o = {0};
    nd_module *mod = module_of(kind, p, m, &k);
    if (!pass_schedule(mod, &o))
        fail_msg("p = %d, m = %d: %s", p, m, k.first);
    return mod;
}

static void release(nd_module *m)
{
    nd_ctx_free(m->ctx);
}

/* Runs all lists with one in-order stream per stage and sends that wait for
 * the receive, both at no cost. Returns the makespan, or -1 if stuck. */
static int rendezvous(const nd_program *pr)
{
    int at[16] = {0}, clock[16] = {0}, left = 0, end = 0;
    for (int s = 0; s < pr->nstages; s++)
        left += pr->sched->row[s].n;
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < pr->nstages; s++) {
            const sched_row *me = &pr->sched->row[s];
            if (at[s] == me->n)
                continue;
            sched_action a = me->v[at[s]];
            if (a.op == SCHED_F || a.op == SCHED_B) {
                clock[s] += a.op == SCHED_F ? 1 : 2;
            } else if (a.op == SCHED_SEND_F || a.op == SCHED_SEND_B) {
                int to = a.op == SCHED_SEND_F ? s + 1 : s - 1;
                const sched_row *you = &pr->sched->row[to];
                if (at[to] == you->n)
                    continue;
                sched_action r = you->v[at[to]];
                if (r.op != (a.op == SCHED_SEND_F ? SCHED_RECV_F
                                                  : SCHED_RECV_B))
                    continue;
                assert_int_equal(r.mb, a.mb);
                int both = clock[s] > clock[to] ? clock[s] : clock[to];
                clock[s] = clock[to] = both;
                at[to]++;
                left--;
            } else {
                continue;            /* a receive: its sender moves both */
            }
            at[s]++;
            left--;
            moved = true;
            if (clock[s] > end)
                end = clock[s];
        }
    }
    return left ? -1 : end;
}

static void test_table(void **state)
{
    (void)state;
    static const int held[2][4] = {{8, 8, 8, 8}, {4, 3, 2, 1}};
    for (int kind = 0; kind < 2; kind++) {
        nd_module *m = scheduled(kind, 4, 8);
        assert_int_equal(nd_schedule_timeline(m->program->sched), 33);
        assert_true(nd_schedule_bubble(m) > .27272 &&
                    nd_schedule_bubble(m) < .27273);
        for (int s = 0; s < 4; s++) {
            assert_int_equal(nd_schedule_in_flight(&m->program->sched->row[s]),
                             held[kind][s]);
            assert_int_equal(m->program->stage[s].slots[SCHED_UNTIL_I],
                             held[kind][s]);
        }
        release(m);
    }
}

static void test_all_small(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (int p = 1; p <= 8; p++)
            for (int m = 1; m <= 9; m++) {
                nd_module *mod = scheduled(kind, p, m);
                const nd_program *pr = mod->program;
                assert_int_equal(nd_schedule_timeline(pr->sched),
                                 3 * (m + p - 1));
                assert_int_equal(rendezvous(pr), 3 * (m + p - 1));
                for (int s = 0; s < p; s++) {
                    int all = kind == SCHED_KIND_GPIPE && p > 1;
                    int most = all || m < p - s ? m : p - s;
                    assert_int_equal(pr->stage[s].slots[SCHED_UNTIL_I], most);
                }
                release(mod);
            }
}

/* Long pipelines and many microbatches, and sizes around each other. */
static void test_large(void **state)
{
    (void)state;
    static const int size[][2] = {{16, 15}, {16, 16}, {16, 17}, {16, 200},
                                  {2, 500}, {15, 64}, {3, 64}};
    for (int kind = 0; kind < 2; kind++)
        for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
            nd_module *m = scheduled(kind, size[i][0], size[i][1]);
            assert_int_equal(rendezvous(m->program),
                             3 * (size[i][0] + size[i][1] - 1));
            release(m);
        }
}

/* Gradients accumulate in ascending microbatch order, whatever the plan. */
static void test_ascending(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        nd_module *m = scheduled(kind, 3, 7);
        for (int s = 0; s < 3; s++) {
            int next[SCHED_NOPS] = {0};
            const sched_row *st = &m->program->sched->row[s];
            for (int i = 0; i < st->n; i++) {
                sched_action a = st->v[i];
                assert_int_equal(a.mb, next[a.op]++);
            }
        }
        release(m);
    }
}

/* A boundary that nothing crosses has no messages. */
static void test_no_crossing(void **state)
{
    (void)state;
    messages k;
    nd_options o = {0};
    nd_module *m = module_of(SCHED_KIND_1F1B, 3, 4, &k);
    m->program->stage[0].send_fwd.n = 0;
    m->program->stage[1].send_bwd.n = 0;
    m->program->stage[2].send_bwd.n = 0;    /* the pair stays, empty */
    assert_true(pass_schedule(m, &o));
    assert_int_equal(m->program->sched->row[0].n, 8);
    assert_int_equal(m->program->sched->row[1].n, 16);
    assert_int_equal(m->program->sched->row[2].n, 16);
    assert_int_not_equal(rendezvous(m->program), -1);
    release(m);
}

/* ---- the checker finds what is wrong ------------------------------------- */

static int find(const sched_row *s, sched_op kind, int mb)
{
    for (int i = 0; i < s->n; i++)
        if (s->v[i].op == kind && s->v[i].mb == mb)
            return i;
    fail_msg("no such action");
    return -1;
}

static void swap(sched_row *s, int i, int j)
{
    sched_action a = s->v[i];
    s->v[i] = s->v[j];
    s->v[j] = a;
}

static void expect(nd_module *m, const char *text)
{
    messages *k = m->ctx->sink_user;
    assert_false(nd_schedule_check(m));
    assert_int_equal(k->n, 1);
    if (!strstr(k->first, text))
        fail_msg("'%s' does not say '%s'", k->first, text);
    release(m);
}

static void test_faults(void **state)
{
    (void)state;
    nd_module *m = scheduled(SCHED_KIND_1F1B, 3, 4);
    sched_row *st = &m->program->sched->row[1];
    swap(st, find(st, SCHED_F, 2), find(st, SCHED_B, 2));
    expect(m, "stage 1, F2: comes after the backward");

    m = scheduled(SCHED_KIND_1F1B, 3, 4);
    m->program->sched->row[2].n--;
    expect(m, "stage 2, SEND_B3: is missing");

    m = scheduled(SCHED_KIND_GPIPE, 3, 4);
    st = &m->program->sched->row[0];
    st->v[find(st, SCHED_F, 3)].mb = 2;
    expect(m, "stage 0, F2: occurs twice");

    m = scheduled(SCHED_KIND_GPIPE, 3, 4);
    st = &m->program->sched->row[0];
    st->v[find(st, SCHED_F, 3)].mb = 4;
    expect(m, "stage 0, F4: no such microbatch");

    m = scheduled(SCHED_KIND_GPIPE, 3, 4);
    st = &m->program->sched->row[1];
    swap(st, find(st, SCHED_RECV_F, 2), find(st, SCHED_F, 2));
    expect(m, "stage 1, RECV_F2: comes after the forward that reads it");

    m = scheduled(SCHED_KIND_GPIPE, 3, 4);
    st = &m->program->sched->row[2];
    swap(st, find(st, SCHED_SEND_B, 1), find(st, SCHED_B, 1));
    expect(m, "stage 2, B1: comes after its result is sent");

    m = scheduled(SCHED_KIND_GPIPE, 2, 4);
    st = &m->program->sched->row[0];
    swap(st, find(st, SCHED_RECV_B, 0), find(st, SCHED_RECV_B, 1));
    expect(m, "stage 0, RECV_B0: comes after the backward that reads it");
}

/* Messages in another order than they are sent in, and a circle. */
static void test_message_faults(void **state)
{
    (void)state;
    nd_module *m = scheduled(SCHED_KIND_GPIPE, 2, 2);
    sched_row *st = &m->program->sched->row[0];
    swap(st, find(st, SCHED_SEND_F, 0), find(st, SCHED_F, 1));
    swap(st, find(st, SCHED_SEND_F, 0), find(st, SCHED_SEND_F, 1));
    expect(m, "stage 1, RECV_F0: another message is sent first");

    /* The obvious placement for 1F1B: receive just before the consumer, send
     * just after the producer. */
    m = scheduled(SCHED_KIND_1F1B, 2, 3);
    sched *order = nd_schedule_order(SCHED_KIND_1F1B, 2, 3), *x;
    x = m->program->sched;
    for (int s = 0; s < 2; s++) {
        st = &m->program->sched->row[s];
        st->n = 0;
        for (int i = 0; i < 6; i++) {
            sched_action a = order->row[s].v[i];
            bool f = a.op == SCHED_F;
            if (f == (s == 1))
                sched_push(x, s, f ? SCHED_RECV_F : SCHED_RECV_B, s, a.mb);
            sched_push(x, s, a.op, s, a.mb);
            if (f == (s == 0))
                sched_push(x, s, f ? SCHED_SEND_F : SCHED_SEND_B, s, a.mb);
        }
    }
    sched_free(order);
    assert_int_equal(rendezvous(m->program), -1);
    expect(m, "stage 0, SEND_F1: waits for ever");
}

static void test_draw(void **state)
{
    (void)state;
    nd_module *m = scheduled(SCHED_KIND_1F1B, 4, 3);
    nd_buf b = {.arena = m->ctx->arena};
    nd_schedule_draw(&b, m);
    assert_string_equal(b.s,
        "1f1b: 4 stages, 3 microbatches, 18 slots, bubble 50.0%, "
        "in flight 3 3 2 1\n"
        "stage 0 | F0 F1 F2 .. .. .. .. .. .. .. B0 -  .. B1 -  .. B2 -\n"
        "stage 1 | .. F0 F1 F2 .. .. .. .. B0 -  .. B1 -  .. B2 -  .. ..\n"
        "stage 2 | .. .. F0 F1 .. .. B0 -  F2 B1 -  .. B2 -  .. .. .. ..\n"
        "stage 3 | .. .. .. F0 B0 -  F1 B1 -  F2 B2 -  .. .. .. .. .. ..\n");
    release(m);
}

/* A long one is folded; every line stays within a terminal's width. */
static void test_draw_folded(void **state)
{
    (void)state;
    nd_module *m = scheduled(SCHED_KIND_GPIPE, 2, 100);
    nd_buf b = {.arena = m->ctx->arena};
    nd_schedule_draw(&b, m);
    assert_non_null(strstr(b.s, "gpipe: 2 stages, 100 microbatches, "
                                "303 slots, bubble 1.0%, in flight 100 100\n"));
    assert_non_null(strstr(b.s, "\n~~ stands for slots 15 to 286\n"));
    for (char *line = b.s, *end; (end = strchr(line, '\n')); line = end + 1)
        assert_true(end - line <= 140);
    assert_null(strstr(b.s, " \n"));
    release(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_all_small),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_ascending),
        cmocka_unit_test(test_no_crossing),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_message_faults),
        cmocka_unit_test(test_draw),
        cmocka_unit_test(test_draw_folded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
