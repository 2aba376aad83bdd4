/* test_first.c - gradients that a step need not clear: the check sees whatever
 * is wrong with what was chosen.
 */
#include "compile.h"

static const char *const MODEL =
    "axis batch = 6\naxis seq = 16\naxis words = 4000\naxis d = 5\n"
    "axis e = d\naxis layers = 4\n"
    "model m(t: i32[batch, seq]) {\n"
    "  table = param [words -> d] ~ normal(0.5)\n"
    "  twice = param [d -> e] ~ normal(0.5)\n"
    "  x = table[words: t]\n"
    "  x = rename[e -> d](tanh(sum[d](x * twice)))\n"
    "  repeat layers {\n"
    "    own = param [d -> e] ~ normal(0.5)\n"
    "    x = x + rename[e -> d](tanh(sum[d](x * own)))\n  }\n"
    "  y = rename[e -> d](tanh(sum[d](x * twice)))\n"
    "  return mean[batch, seq, d](y * y)\n}\n";

static nd_code *compile(nd_ctx *c, const char *plan)
{
    return nd_code_new(planned(c, MODEL, plan));
}

static const nd_param *param(nd_code *c, const char *name)
{
    for (int i = 0; i < c->m->params.n; i++)
        if (strcmp(c->m->params.v[i]->name, name) == 0)
            return c->m->params.v[i];
    return NULL;
}

/* On any device. */
static bool is_cleared(nd_code *c, const char *name)
{
    bool found = false;
    for (int d = 0; d < c->m->program->ndevices; d++) {
        const nd_device_mem *mem = &c->mem.device[d];
        for (int i = 0; i < mem->cleared.n; i++)
            found |= mem->cleared.v[i] == param(c, name)->index;
    }
    return found;
}

/* The value that is the sum number n to be added to a gradient, in any list. */
static nd_vinfo *sum_of(nd_code *c, const char *name, int n)
{
    for (int i = 0; i < c->nvalues; i++)
        if (c->info[i].accum && c->info[i].accum->param == param(c, name) &&
            n-- == 0)
            return &c->info[i];
    return NULL;
}

static void is_as_chosen(const char *plan, bool table, bool twice, bool own)
{
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx, plan);
    assert_int_equal(is_cleared(c, "table"), table);
    assert_int_equal(is_cleared(c, "twice"), twice);
    assert_int_equal(is_cleared(c, "layers.own"), own);
    assert_true(nd_first_check(c));
    nd_ctx_free(ctx);
}

/* zb_v has both uses on two stages of one device, and which one is first the
 * schedule says. */
static void what_is_cleared(void **state)
{
    (void)state;
    is_as_chosen("mesh dp = 1", true, false, false);
    is_as_chosen("microbatches 3", true, false, false);
    is_as_chosen("mesh pp = 2\n  pipeline layers -> pp, schedule = 1f1b, "
                 "microbatches = 3", true, false, false);
    is_as_chosen("mesh pp = 2\n  pipeline layers -> pp, schedule = zb_h1, "
                 "microbatches = 3", true, false, false);
    is_as_chosen("mesh pp = 2\n  pipeline layers -> pp, schedule = zb_v, "
                 "microbatches = 3", true, true, false);
    is_as_chosen("mesh dp = 2\n  shard batch -> dp\n  zero 1 over dp", true,
                 false, false);
}

static int broken(nd_code *c)
{
    return !nd_first_check(c);
}

static void nobody_is_first(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx, "mesh dp = 1");
    nd_vinfo *own = sum_of(c, "layers.own", 0);
    assert_true(own->first);
    own->first = false;
    assert_true(broken(c));
    nd_ctx_free(ctx);
}

static void the_second_writes(void **state)
{
    (void)state;
    for (int both = 0; both < 2; both++) {
        nd_ctx *ctx = nd_ctx_new();
        nd_code *c = compile(ctx, "mesh dp = 1");
        nd_vinfo *x = sum_of(c, "twice", 0), *y = sum_of(c, "twice", 1);
        assert_int_equal(x->first + y->first, 1);
        x->first = both || !x->first;
        y->first = both || !y->first;
        assert_true(broken(c));
        nd_ctx_free(ctx);
    }
}

/* Cleared or not: the schedule may run the other stage before. */
static void one_of_two_stages_writes(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx, "mesh pp = 2\n  pipeline layers -> pp, schedule "
                              "= zb_v, microbatches = 3");
    sum_of(c, "twice", 0)->first = true;
    assert_true(broken(c));
    nd_ctx_free(ctx);
}

static void rows_alone_are_written(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx, "mesh dp = 1");
    nd_vinfo *table = sum_of(c, "table", 0);
    assert_false(table->first);
    table->first = true;
    assert_true(broken(c));
    nd_ctx_free(ctx);
}

static void is_not_cleared(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx, "mesh dp = 1");
    assert_int_equal(c->mem.device[0].cleared.n, 1);
    c->mem.device[0].cleared.n = 0;
    assert_true(broken(c));
    nd_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_cleared),
        cmocka_unit_test(nobody_is_first),
        cmocka_unit_test(the_second_writes),
        cmocka_unit_test(one_of_two_stages_writes),
        cmocka_unit_test(rows_alone_are_written),
        cmocka_unit_test(is_not_cleared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
