/* The pass that schedules a pipeline: what it asks runtime/schedule for, what
 * becomes of the answer, and how refusals read. That schedules are right is
 * for test_sched_*. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "passes/passes.h"

static char messages[4096];

static void keep_message(void *user, nd_severity severity, const char *text)
{
    (void)user;
    (void)severity;
    size_t n = strlen(messages);
    snprintf(messages + n, sizeof messages - n, "%s", text);
}

/* A module with nothing but stages whose boundaries carry a value each way. */
static nd_module *module_of(sched_kind kind, int devices, int v, int micro)
{
    nd_ctx *c = nd_ctx_new();
    nd_module *m = ND_NEW(c->arena, nd_module);
    c->sink = keep_message;
    messages[0] = 0;
    m->ctx = c;
    m->plan.schedule = kind;
    m->plan.per_device = v;
    m->plan.microbatches = micro;
    m->program = nd_program_new(m, devices);
    for (int s = 0; s < m->program->nstages; s++) {
        nd_stage *st = &m->program->stage[s];
        if (s + 1 < m->program->nstages)
            ND_PUSH(c->arena, &st->send_fwd, (nd_cross){0});
        if (s > 0)
            ND_PUSH(c->arena, &st->send_bwd, (nd_cross){0});
    }
    return m;
}

static bool run(nd_module *m)
{
    nd_options o = {0};
    return pass_schedule(m, &o);
}

static int count(const nd_module *m, int device, sched_op op)
{
    const sched_row *r = &m->program->sched->row[device];
    int n = 0;
    for (int i = 0; i < r->n; i++)
        n += r->v[i].op == op;
    return n;
}

static void slots_follow_the_schedule(void **state)
{
    (void)state;
    static const int held[2][4] = {{8, 8, 8, 8}, {4, 3, 2, 1}};
    for (int kind = SCHED_KIND_GPIPE; kind <= SCHED_KIND_1F1B; kind++) {
        nd_module *m = module_of((sched_kind)kind, 4, 0, 8);
        assert_true(run(m));
        for (int s = 0; s < 4; s++)
            assert_int_equal(m->program->stage[s].slots[SCHED_UNTIL_I],
                             held[kind][s]);
        assert_true(nd_schedule_bubble(m) > .27272 &&
                    nd_schedule_bubble(m) < .27273);
        nd_ctx_free(m->ctx);
    }
}

static void several_stages_of_a_device(void **state)
{
    (void)state;
    nd_module *m = module_of(SCHED_KIND_INTERLEAVED, 2, 2, 4);
    assert_true(run(m));
    assert_int_equal(m->program->sched->ranks, 2);
    assert_int_equal(m->program->sched->stages, 4);
    for (int s = 0; s < 4; s++)
        assert_int_equal(m->program->stage[s].device, s % 2);
    assert_int_equal(count(m, 0, SCHED_SEND_F), 8);
    assert_int_equal(count(m, 1, SCHED_SEND_F), 4);
    nd_ctx_free(m->ctx);

    m = module_of(SCHED_KIND_ZB_V, 2, 0, 4);
    assert_true(run(m));
    static const int vee[] = {0, 1, 1, 0};
    for (int s = 0; s < 4; s++)
        assert_int_equal(m->program->stage[s].device, vee[s]);
    /* 1 and 2 are on one device: no message there. */
    assert_int_equal(count(m, 1, SCHED_SEND_F), 4);
    assert_int_equal(count(m, 1, SCHED_RECV_F), 4);
    nd_ctx_free(m->ctx);
}

/* A boundary that nothing crosses has no messages. */
static void nothing_crosses(void **state)
{
    (void)state;
    nd_module *m = module_of(SCHED_KIND_1F1B, 3, 0, 4);
    m->program->stage[0].send_fwd.n = 0;
    m->program->stage[1].send_bwd.n = 0;
    m->program->stage[2].send_bwd.n = 0;    /* the pair stays, empty */
    assert_true(run(m));
    assert_int_equal(m->program->sched->row[0].n, 8);
    assert_int_equal(count(m, 1, SCHED_SEND_F), 4);
    assert_int_equal(count(m, 1, SCHED_RECV_B), 0);
    nd_ctx_free(m->ctx);
}

/* One stage takes one microbatch at a time, whatever the plan says. */
static void without_a_pipeline(void **state)
{
    (void)state;
    nd_module *m = module_of(SCHED_KIND_GPIPE, 1, 0, 5);
    assert_true(run(m));
    assert_int_equal(m->program->stage[0].slots[SCHED_UNTIL_I], 1);
    nd_ctx_free(m->ctx);
}

static void refused(nd_module *m, const char *text)
{
    assert_false(run(m));
    if (!strstr(messages, text))
        fail_msg("'%s' does not say '%s'", messages, text);
    nd_ctx_free(m->ctx);
}

static void put_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void files(void **state)
{
    (void)state;
    static const char path[] = "test_schedule.csv";
    nd_module *m = module_of(SCHED_KIND_FILE, 2, 1, 2);
    m->plan.schedule_file = path;
    put_file(path, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    assert_true(run(m));
    assert_int_equal(m->program->stage[0].slots[SCHED_UNTIL_I], 2);
    assert_int_equal(count(m, 0, SCHED_SEND_F), 2);
    nd_ctx_free(m->ctx);

    m = module_of(SCHED_KIND_FILE, 2, 1, 3);
    m->plan.schedule_file = path;
    refused(m, "has 2 microbatches, the plan 3");
    m = module_of(SCHED_KIND_FILE, 3, 1, 2);
    m->plan.schedule_file = path;
    refused(m, "has 2 stages on 2 ranks, the plan 3 on 3");
    put_file(path, "0F0,0F1,0B0,0B1\n1F0,1F1,1B1\n");
    m = module_of(SCHED_KIND_FILE, 2, 1, 2);
    m->plan.schedule_file = path;
    refused(m, "1B0");
    remove(path);
    m = module_of(SCHED_KIND_FILE, 2, 1, 2);
    m->plan.schedule_file = path;
    refused(m, "cannot read \"test_schedule.csv\"");
}

/* ---- what is broken afterwards ------------------------------------------- */

static void faults(void **state)
{
    (void)state;
    nd_module *m = module_of(SCHED_KIND_1F1B, 3, 0, 4);
    assert_true(run(m));
    m->program->sched->row[2].n--;
    assert_false(nd_schedule_check(m));
    assert_non_null(strstr(messages, "2SEND_B3"));
    nd_ctx_free(m->ctx);

    m = module_of(SCHED_KIND_1F1B, 3, 0, 4);
    assert_true(run(m));
    m->program->stage[0].slots[SCHED_UNTIL_I]--;
    assert_false(nd_schedule_check(m));
    assert_non_null(strstr(messages, "overwrites microbatch 0"));
    nd_ctx_free(m->ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_follow_the_schedule),
        cmocka_unit_test(several_stages_of_a_device),
        cmocka_unit_test(nothing_crosses),
        cmocka_unit_test(without_a_pipeline),
        cmocka_unit_test(files),
        cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
