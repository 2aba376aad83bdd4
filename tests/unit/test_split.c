/* test_split.c - backward in two halves: what waits, and that the check sees
 * whatever is wrong with the halves.
 */
#include "../../passes/split.h"
#include "compile.h"

static const char *const CHAIN =
    "use nn\naxis batch = 6\naxis d = 5\naxis layers = 3\n"
    "model m(x: f32[batch, d]) {\n"
    "  y = linear[d -> d](x) as first\n"
    "  repeat layers {\n"
    "    y = y + tanh(linear[d -> d](tanh(linear[d -> d](y) as up)) as down)\n"
    "  }\n"
    "  return mean[batch](mse[d](y, x))\n}\n"
    "plan {\n  mesh pp = 2\n"
    "  pipeline layers -> pp, schedule = 1f1b, microbatches = 3\n}\n";

/* Messages are kept back: what is broken here is meant to be. */
static void keep_back(void *user, nd_severity severity, const char *text)
{
    (void)user;
    (void)severity;
    (void)text;
}

static nd_module *compile(nd_ctx *c, sched_kind kind)
{
    nd_options o = {0};
    nd_module *m = checked(c, CHAIN);
    m->plan.schedule = kind;
    assert_true(nd_run_until(m, &o, "pipeline"));
    c->sink = keep_back;
    return m;
}

/* ---- what waits ---------------------------------------------------------- */

typedef struct counts {
    int products[2], sums[2];        /* of BWD, of WGT */
} counts;

static void count_op(nd_op *op, void *user)
{
    counts *c = user;
    if (op->phase != PH_BWD && op->phase != PH_WGT)
        return;
    c->products[op->phase == PH_WGT] += op->kind == OP_CONTRACT;
    c->sums[op->phase == PH_WGT] += op->kind == OP_ACCUM;
}

static counts counts_of(sched_kind kind)
{
    nd_ctx *c = nd_ctx_new();
    counts n = {0};
    nd_walk(compile(c, kind)->step, count_op, &n);
    nd_ctx_free(c);
    return n;
}

static void one_half_has_the_products_of_weights(void **state)
{
    (void)state;
    counts whole = counts_of(SCHED_KIND_1F1B);
    assert_int_equal(whole.products[0], 5);  /* the first has no input's */
    assert_int_equal(whole.products[1] + whole.sums[1], 0);
    counts half = counts_of(SCHED_KIND_ZB_H1);
    assert_int_equal(half.products[0], 2);
    assert_int_equal(half.products[1], 3);
    assert_int_equal(half.sums[0], 0);
    assert_int_equal(half.sums[1], whole.sums[0]);
}

/* ---- what the check sees ------------------------------------------------- */

typedef struct broken {
    nd_ctx *c;
    nd_module *m;
    nd_sums before;
    nd_op *first, *second;           /* the repeats of the two halves */
} broken;

static broken whole(void)
{
    broken x = {.c = nd_ctx_new()};
    x.m = compile(x.c, SCHED_KIND_ZB_H1);
    nd_sums_of(x.m, &x.before);
    for (int i = 0; i < x.m->step->ops.n; i++) {
        nd_op *op = x.m->step->ops.v[i];
        if (op->kind == OP_REPEAT && op->phase != PH_FWD)
            *(op->phase == PH_WGT ? &x.second : &x.first) = op;
    }
    assert_non_null(x.first);
    assert_non_null(x.second);
    assert_true(nd_split_check(x.m, &x.before));
    return x;
}

static void is_seen(broken x)
{
    assert_false(nd_split_check(x.m, &x.before));
    nd_ctx_free(x.c);
}

static nd_op *sum_in(nd_block *b, int n)
{
    for (int i = 0; i < b->ops.n; i++)
        if (b->ops.v[i]->kind == OP_ACCUM && n-- == 0)
            return b->ops.v[i];
    return NULL;
}

static void a_reader_of_what_waits_is_seen(void **state)
{
    (void)state;
    broken x = whole();
    nd_op *late = sum_in(x.second->body, 0)->in[0]->def;
    x.first->body->yields.v[0] = late->out[0];
    is_seen(x);
}

static void an_early_sum_is_seen(void **state)
{
    (void)state;
    broken x = whole();
    sum_in(x.second->body, 0)->phase = PH_BWD;
    is_seen(x);
}

static void a_lost_sum_is_seen(void **state)
{
    (void)state;
    broken x = whole();
    nd_block *b = x.second->body;
    assert_int_equal(b->ops.v[b->ops.n - 1]->kind, OP_ACCUM);
    b->ops.n--;
    is_seen(x);
}

static void a_sum_that_is_there_twice_is_seen(void **state)
{
    (void)state;
    broken x = whole();
    ND_PUSH(x.c->arena, &x.second->body->ops, sum_in(x.second->body, 0));
    is_seen(x);
}

/* Two sums of one parameter: as of one that is used twice. */
static void another_order_is_seen(void **state)
{
    (void)state;
    broken x = whole();
    nd_op *a = sum_in(x.second->body, 0), *b = sum_in(x.second->body, 2);
    b->param = a->param;
    x.before = (nd_sums){.op.v = NULL};
    nd_sums_of(x.m, &x.before);
    assert_true(nd_split_check(x.m, &x.before));
    for (int i = 0; i < x.second->body->ops.n; i++) {
        nd_op **op = &x.second->body->ops.v[i];
        *op = *op == a ? b : *op == b ? a : *op;
    }
    is_seen(x);
}

static void other_turns_are_seen(void **state)
{
    (void)state;
    broken x = whole();
    nd_op *a = sum_in(x.second->body, 0), *b = sum_in(x.second->body, 2);
    b->param = a->param;
    x.before = (nd_sums){.op.v = NULL};
    nd_sums_of(x.m, &x.before);
    b->block = x.m->step;            /* first all of the one, then the other */
    is_seen(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_half_has_the_products_of_weights),
        cmocka_unit_test(a_reader_of_what_waits_is_seen),
        cmocka_unit_test(an_early_sum_is_seen),
        cmocka_unit_test(a_lost_sum_is_seen),
        cmocka_unit_test(a_sum_that_is_there_twice_is_seen),
        cmocka_unit_test(another_order_is_seen),
        cmocka_unit_test(other_turns_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
