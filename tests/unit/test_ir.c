/* test_ir.c - the text form and the verifier: what is printed reads back the
 * same, what is wrong is refused with a message, and no text crashes. */
#include "../../ir/ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static void collect(void *user, nd_severity sev, const char *text)
{
    (void)sev;
    nd_put(user, text);
}

typedef struct world {
    nd_ctx *c;
    nd_buf messages;
} world;

static world *world_new(void)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->c = nd_ctx_new();
    w->messages.arena = w->c->arena;
    nd_put(&w->messages, "");
    w->c->sink = collect;
    w->c->sink_user = &w->messages;
    return w;
}

static void world_free(world *w)
{
    nd_ctx_free(w->c);
    free(w);
}

static nd_module *parse(world *w, const char *text)
{
    int file = nd_add_file(w->c, "t.ndir", text, strlen(text));
    return nd_parse_ir(w->c, file);
}

static const char *print(nd_module *m)
{
    nd_buf b = {.arena = m->ctx->arena};
    nd_print(&b, m);
    return b.s;
}

static const char whole[] =
    "module gpt\n"
    "axis batch = 8\n"
    "axis seq = 4\n"
    "axis kv = 4 like seq\n"
    "axis d = 6\n"
    "axis vocab = 5\n"
    "axis layers = 3\n"
    "sample batch\n"
    "mesh pp = 1, dp = 2, tp = 2, micro = 2\n"
    "pipe pp\n"
    "rule batch -> dp\n"
    "rule params d -> (dp, tp)\n"
    "rule \"layers.*\" d -> tp\n"
    "pipeline layers -> pp, schedule = 1f1b, microbatches = 2, stages = [3]\n"
    "zero 1 over dp\n"
    "recompute attention\n"
    "state grads, phases, sharded\n"
    "step {\n"
    "  %tokens = input \"tokens\" : i32[batch/dp, seq]\n"
    "  %wte = param \"wte\" normal(0.02) fan(5, 6) matrix decay : "
    "f32[vocab/tp, d]\n"
    "  %w = param \"layers.w\" xavier frozen layer(layers) : "
    "f32[layers, d]\n"
    "  %c = const -inf : f32\n"
    "  %i = index [seq] : i32[seq]\n"
    "  pre %t = slice [batch] over micro %tokens : i32[batch/(dp,micro), seq]\n"
    "  %x = gather [vocab] %wte, %t : f32[batch/(dp,micro), seq, d]+tp "
    "@emb.\n"
    "  %y = reduce_scatter [seq] over tp %x : "
    "f32[batch/(dp,micro), seq/tp, d]\n"
    "  %m = dropout_mask 0.1 \"layers.drop\" : "
    "f32[batch/(dp,micro), seq/tp, d]\n"
    "  %h, %st = repeat [layers] carry(%y) scan(%w) : "
    "f32[batch/(dp,micro), seq/tp, d], "
    "f32[layers, batch/(dp,micro), seq/tp, d] @layers {\n"
    "    (%h_1: f32[batch/(dp,micro), seq/tp, d], %w_1: f32[d])\n"
    "    %k = index [layers] : i32\n"
    "    %mul = mul %h_1, %w_1 : f32[batch/(dp,micro), seq/tp, d]\n"
    "    %mul_1 = mul %mul, %m : f32[batch/(dp,micro), seq/tp, d]\n"
    "    yield %mul_1, %h_1\n"
    "  }\n"
    "  %r = rename [seq -> kv] %h : f32[batch/(dp,micro), kv/tp, d]\n"
    "  %top = reduce max [kv] %r : f32[batch/(dp,micro), d]^tp\n"
    "  %all = all_reduce max over tp %top : f32[batch/(dp,micro), d]\n"
    "  %s = reduce sum [batch, d] %all : f32+dp+micro\n"
    "  output \"top\" %all\n"
    "  bwd %g = scatter_add [vocab] %x, %t : f32[vocab/tp, d]+dp+micro\n"
    "  bwd accumulate \"wte\" %g\n"
    "  loss %s\n"
    "}\n"
    "grad \"wte\" : f32[vocab/tp, d]+dp+micro\n"
    "grad \"layers.w\" : f32[layers, d]\n";

static void round_trip(void **state)
{
    (void)state;
    world *w = world_new();
    nd_module *m = parse(w, whole);
    assert_string_equal(w->messages.s, "");
    assert_non_null(m);
    assert_string_equal(print(m), whole);
    assert_string_equal(print(parse(w, print(m))), whole);
    assert_int_equal(m->params.v[0]->fan_out, 6);
    assert_true(m->params.v[1]->frozen);
    assert_int_equal(m->plan.stages_given[0], 3);
    world_free(w);
}

static void count(nd_op *op, void *user)
{
    (void)op;
    ++*(int *)user;
}

/* A copy reads the same, and shares no op, value or parameter: what is done to
 * it leaves the first one as it was. */
static void copies(void **state)
{
    (void)state;
    world *w = world_new();
    nd_module *m = parse(w, whole), *c = nd_module_copy(m);
    assert_string_equal(print(c), whole);
    int ops = 0, left = 0;
    nd_walk(m->step, count, &ops);
    nd_value *x = nd_const(&(nd_builder){.m = c, .block = c->step}, ND_F32, 3);
    nd_replace_uses(c, c->params.v[0]->value, x);
    nd_replace_uses(c, c->loss, x);
    c->params.v[1]->frozen = false;
    c->outputs.v[0]->name = "else";
    c->inputs.v[0]->def->name = "else";
    nd_block *body = NULL;
    for (int i = 0; i < c->step->ops.n; i++)
        if (c->step->ops.v[i]->kind == OP_REPEAT)
            body = c->step->ops.v[i]->body;
    assert_non_null(body);
    body->args.v[0]->type.dtype = ND_BF16;
    body->yields.v[0] = body->args.v[0];
    body->ops.n = c->step->ops.n = 0;
    assert_ptr_not_equal(nd_axis_new(c, "more", 3, nd_nowhere), NULL);
    nd_walk(m->step, count, &left);
    assert_int_equal(left, ops);
    assert_string_equal(print(m), whole);
    assert_string_equal(w->messages.s, "");
    world_free(w);
}

static const char again[] =
    "module m\n"
    "axis d = 3\n"
    "recompute none again 0, 2\n"
    "step {\n"
    "  %x = input \"x\" : f32[d]\n"
    "}\n";

static void recompute(void **state)
{
    (void)state;
    world *w = world_new();
    nd_module *m = parse(w, again);
    assert_string_equal(w->messages.s, "");
    assert_string_equal(print(m), again);
    for (int s = 0; s < 5; s++)
        assert_int_equal(nd_runs_again(&m->plan, s), s == 0 || s == 2);
    m = parse(w, "module m\nrecompute auto 2e9\nstep {\n}\n");
    assert_non_null(m);
    assert_int_equal(m->plan.recompute, REMAT_AUTO);
    assert_non_null(strstr(print(m), "\nrecompute auto 2000000000\n"));
    assert_null(parse(w, "module m\nrecompute auto\nstep {\n}\n"));
    assert_null(parse(w, "module m\nrecompute none again -1\nstep {\n}\n"));
    world_free(w);
}

/* Clashing and odd names get new ones; printing again changes nothing. */
static void names(void **state)
{
    (void)state;
    world *w = world_new();
    nd_module *m = nd_module_new(w->c, "a b");
    nd_axis *d = nd_axis_new(m, "d", 3, (nd_loc){0});
    nd_builder b = {.m = m, .block = m->step, .at = -1};
    nd_value *x = nd_input(&b, "x y", nd_type_of(ND_F32, 1, &d));
    for (int i = 0; i < 3; i++) {
        b.hint = "z";
        x = nd_map(&b, EW_ADD, x, x, NULL);
    }
    b.hint = "z_1";
    m->loss = nd_reduce(&b, RED_SUM, x, 1, &d);
    const char *text = print(m);
    assert_non_null(strstr(text, "module \"a b\"\n"));
    assert_non_null(strstr(text, "%x_y = input \"x y\" : f32[d]\n"));
    assert_non_null(strstr(text, "%z_2 = add %z_1, %z_1 : f32[d]\n"));
    assert_non_null(strstr(text, "%z_3 = reduce sum [d] %z_2 : f32\n"));
    assert_string_equal(print(m), text);
    assert_string_equal(print(parse(w, text)), text);
    assert_true(nd_verify(m));
    world_free(w);
}

static void refuse(const char *text, const char *why)
{
    world *w = world_new();
    nd_module *m = parse(w, text);
    bool ok = m && nd_verify(m);
    if (ok || !strstr(w->messages.s, why))
        print_error("for\n%s\nexpected \"%s\", got\n%s", text, why,
                    w->messages.s);
    assert_false(ok);
    assert_non_null(strstr(w->messages.s, why));
    world_free(w);
}

#define HEAD "module m\naxis a = 4\naxis b = 4\nmesh tp = 2, micro = 2\n"
#define STEP HEAD "step {\n  %x = input \"x\" : f32[a]\n"
#define CUT HEAD "step {\n  %x = input \"x\" : f32[a/tp]\n"

static void parse_errors(void **state)
{
    (void)state;
    refuse("", "expected `module`");
    refuse("module m\nstep {", "expected `}`");
    refuse("module m\naxis a = 0\n", "expected a size");
    refuse("module m\naxis a = 1\naxis a = 1\n", "declared twice");
    refuse("module m\nmesh tp = 2\n", "the last mesh axis is not `micro`");
    refuse(HEAD "rule a -> dp\n", "the mesh has no axis `dp`");
    refuse(STEP "%y = add %x, %z : f32[a]\n}", "no value %z is defined above");
    refuse(STEP "%y = add %x : f32[a]\n}", "add takes 2 operands");
    refuse(STEP "%x = neg %x : f32[a]\n}", "%x is defined twice");
    refuse(STEP "%y = frob %x : f32[a]\n}", "no op is called `frob`");
    refuse(STEP "%y = neg %x : f32[c]\n}", "no axis is called `c`");
    refuse(STEP "%y = neg %x : f32[a, a]\n}", "axis `a` twice");
    refuse(STEP "%y = neg %x : f33[a]\n}", "`f33` is not a dtype");
    refuse(STEP "%y = const 1x : f32\n}", "`1x` is not a number");
    refuse(STEP "%y = reduce avg [a] %x : f32\n}", "is not sum, max or min");
    refuse(STEP "%y = index [] : i32[a]\n}", "index takes one axis");
    refuse(STEP "output \"x %x\n}", "expected a name in quotes");
    refuse(STEP "}\ngrad \"w\" : f32\n", "no parameter is called `w`");
}

static void verify_errors(void **state)
{
    (void)state;
    refuse(STEP "%y = neg %x : f32[b]\n}", "%y should have the type f32[a]");
    refuse(STEP "%y = reduce sum [b] %x : f32\n}", "has no axis b");
    refuse(STEP "loss %x\n}", "the loss is no scalar");
    refuse(STEP "%i = index [b] : i32\n}", "an index is i32[b]");
    refuse(STEP "accumulate \"w\" %x\n}", "no parameter is called \"w\"");
    refuse(STEP "bwd %y = neg %x : f32[a]\n%z = neg %y : f32[a]\n}",
           "forward reads %y from backward");
    refuse(CUT "%y = reduce sum [a] %x : f32\n}",
           "%y should have the type f32+tp");
    refuse(CUT "%y = mul %x, %x : f32[a/tp]\n"
           "%z = reduce sum [a] %y : f32+tp\n%e = exp %z : f32+tp\n}",
           "exp of a pending sum is not linear");
    refuse(CUT "%y = rename [a -> b] %x : f32[b/tp]\n"
           "%z = mul %x, %y : f32[a/tp, b/tp]\n}", "mesh axis");
    refuse(HEAD "step {\n  %x = input \"x\" : f32[a/micro]\n"
           "  %s = reduce sum [a] %x : f32+micro\n"
           "  %t = all_reduce sum over micro %s : f32\n}",
           "microbatches run at different times");
    refuse(STEP "%h = repeat [b] carry(%x) : f32[a] {\n"
           "(%h_1: f32[a])\n%k = neg %h_1 : f32[a]\nyield %k\n}\n"
           "%z = neg %k : f32[a]\n}", "%k is not defined above");
    refuse(STEP "%h = repeat [b] carry(%x) : f32[a] {\n"
           "(%h_1: f32[a])\n%k = reduce sum [a] %h_1 : f32\nyield %k\n}\n}",
           "a carried value changes its type");
}

/* Cut and damaged texts: an error or a module, never a crash. */
static void damaged(void **state)
{
    (void)state;
    uint32_t seed = 1;
    size_t n = sizeof whole - 1;
    for (int i = 0; i < 4000; i++) {
        char text[sizeof whole];
        memcpy(text, whole, sizeof whole);
        size_t len = n;
        for (int k = i % 4; k >= 0; k--) {
            seed = seed * 1664525u + 1013904223u;
            size_t at = (seed >> 8) % n;
            seed = seed * 1664525u + 1013904223u;
            if (i % 3 == 0)
                len = at;
            else if (i % 3 == 1)
                text[at] = "%[](){}:,=+^/@# \n\"az09-."[(seed >> 8) % 25];
            else
                text[at] = whole[(seed >> 8) % n];
        }
        world *w = world_new();
        nd_module *m = nd_parse_ir(w->c, nd_add_file(w->c, "t", text, len));
        if (m && nd_verify(m))
            assert_non_null(print(m));
        else
            assert_true(w->messages.n > 0);
        world_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(copies),
        cmocka_unit_test(recompute),    cmocka_unit_test(names),
        cmocka_unit_test(parse_errors),  cmocka_unit_test(verify_errors),
        cmocka_unit_test(damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
