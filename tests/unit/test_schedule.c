/* Pass schedule: what a program's devices do, under a simulation of a runtime
 * with blocking sends that shares no code with it. The schedules themselves are
 * tested in test_sched_*.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "passes/passes.h"

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
    mod->plan.microbatches = m;
    mod->program = ND_NEW(c->arena, nd_program);
    mod->program->nstages = mod->program->ndevices = p;
    mod->program->nmicro = m;
    mod->program->stage = ND_NEWN(c->arena, nd_stage, p);
    for (int s = 0; s < p; s++) {
        nd_stage *st = &mod->program->stage[s];
        st->device = s;
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

static int in_flight(const sched_row *r)
{
    int now = 0, peak = 0;
    for (int i = 0; i < r->n; i++) {
        if (r->v[i].op == SCHED_F && ++now > peak)
            peak = now;
        now -= r->v[i].op == SCHED_B;
    }
    return peak;
}

static void test_table(void **state)
{
    (void)state;
    static const int held[2][4] = {{8, 8, 8, 8}, {4, 3, 2, 1}};
    for (int kind = 0; kind < 2; kind++) {
        nd_module *m = scheduled(kind, 4, 8);
        assert_int_equal(rendezvous(m->program), 33);
        assert_true(nd_schedule_bubble(m) > .27272 &&
                    nd_schedule_bubble(m) < .27273);
        for (int s = 0; s < 4; s++) {
            assert_int_equal(in_flight(&m->program->sched->row[s]),
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

/* What does not cross a boundary has no messages. */
static void test_no_crossing(void **state)
{
    (void)state;
    messages k;
    nd_options o = {0};
    nd_module *m = module_of(SCHED_KIND_1F1B, 3, 4, &k);
    m->program->stage[0].send_fwd.n = 0;
    m->program->stage[1].send_bwd.n = 0;
    m->program->stage[2].send_bwd.n = 0;
    assert_true(pass_schedule(m, &o));
    assert_int_equal(m->program->sched->row[0].n, 8);
    assert_int_equal(m->program->sched->row[1].n, 12);
    assert_int_equal(m->program->sched->row[2].n, 12);
    assert_int_not_equal(rendezvous(m->program), -1);
    release(m);
}

/* ---- faults, and what is shown ------------------------------------------- */

static void expect(nd_module *m, bool ok, const char *text)
{
    messages *k = m->ctx->sink_user;
    assert_false(ok);
    if (!strstr(k->first, text))
        fail_msg("'%s' does not say '%s'", k->first, text);
}

static void test_faults(void **state)
{
    (void)state;
    nd_module *m = scheduled(SCHED_KIND_1F1B, 3, 4);
    m->program->sched->row[2].n--;
    expect(m, nd_schedule_check(m), "schedule: rank 2: 2SEND_B3 is missing");
    /* The table is a note for each of its lines. */
    assert_int_equal(((messages *)m->ctx->sink_user)->n, 5);
    release(m);
    m = scheduled(SCHED_KIND_1F1B, 3, 4);
    m->program->stage[0].slots[SCHED_UNTIL_I]--;
    expect(m, nd_slots_check(m), "0F2 overwrites microbatch 0");
    release(m);
}

static nd_module *from_file(const char *text, int p, int m, messages *k)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/test_schedule_%ld.csv", (long)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    nd_module *mod = module_of(SCHED_KIND_FILE, p, m, k);
    mod->plan.schedule_file = path;
    return mod;
}

/* A file may have its messages or not, and is proved. */
static void test_file(void **state)
{
    (void)state;
    nd_options o = {0};
    messages k;
    nd_module *m = from_file("0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n", 2, 2,
                             &k);
    assert_true(pass_schedule(m, &o));
    assert_int_equal(m->program->sched->row[0].n, 8);
    assert_int_not_equal(rendezvous(m->program), -1);
    release(m);
    m = from_file("0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0\n", 2,
                  1, &k);
    assert_true(pass_schedule(m, &o));
    assert_int_equal(m->program->sched->row[0].n, 4);
    release(m);
    m = from_file("0F0,0B0\n1B0,1F0\n", 2, 1, &k);
    expect(m, pass_schedule(m, &o), "rank 1: 1B0 needs 1F0 first, which comes "
           "later");
    release(m);
    m = from_file("0F0,0B0\n1F0,1B0\n", 2, 3, &k);
    expect(m, pass_schedule(m, &o), "is for 1 microbatch, the program has "
           "3: write microbatches = 1");
    unlink(m->plan.schedule_file);
    release(m);
    m = module_of(SCHED_KIND_FILE, 2, 1, &k);
    m->plan.schedule_file = "/nowhere/at.csv";
    expect(m, pass_schedule(m, &o), "/nowhere/at.csv: cannot read it");
    release(m);
}

static void test_shown(void **state)
{
    (void)state;
    nd_module *m = scheduled(SCHED_KIND_1F1B, 4, 3);
    nd_buf b = {.arena = m->ctx->arena}, csv = b, comms = b;
    nd_schedule_show(&b, m, ND_SCHEDULE_DRAWN);
    assert_string_equal(b.s,
        "1f1b: 4 stages, 3 microbatches, 18 slots, bubble 50.0% of the time, "
        "100.0% of the work, in flight 3 3 2 1\n"
        "stage 0 | F0 F1 F2 .. .. .. .. .. .. .. B0 -  .. B1 -  .. B2 -\n"
        "stage 1 | .. F0 F1 F2 .. .. .. .. B0 -  .. B1 -  .. B2 -  .. ..\n"
        "stage 2 | .. .. F0 F1 .. .. B0 -  F2 B1 -  .. B2 -  .. .. .. ..\n"
        "stage 3 | .. .. .. F0 B0 -  F1 B1 -  F2 B2 -  .. .. .. .. .. ..\n");
    nd_schedule_show(&csv, m, ND_SCHEDULE_CSV);
    assert_non_null(strstr(csv.s, "\n,,,3F0,3B0,,3F1,3B1,,3F2,3B2\n"));
    nd_schedule_show(&comms, m, ND_SCHEDULE_COMMS);
    assert_non_null(strstr(comms.s, "3RECV_F0,3F0,3B0,3SEND_B0,"));
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
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
