/* test_eval.c - the evaluator against numbers worked out by hand, and sharded
 * modules against the same module on one device. */
#include "../../ir/priv.h"
#include "../../runtime/ndrt_math.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
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
    nd_feed feed[8];
    nd_eval_options o;
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
    w->o = (nd_eval_options){.training = true, .seed = 7, .step = 1};
    w->o.feeds = w->feed;
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
    nd_module *m = nd_parse_ir(w->c, file);
    assert_string_equal(w->messages.s, "");
    return m;
}

/* Feeds f(i) = i * scale + shift, wrapped at `wrap` for indices. */
static void feed(world *w, const char *name, int rank, const int64_t *dim,
                 double scale, double shift, int wrap)
{
    nd_tensor *t = ND_NEW(w->c->arena, nd_tensor);
    t->rank = rank;
    t->n = 1;
    for (int i = 0; i < rank; i++)
        t->n *= t->dim[i] = dim[i];
    t->v = ND_NEWN(w->c->arena, double, t->n + 1);
    for (int64_t i = 0; i < t->n; i++)
        t->v[i] = wrap ? (double)(i * 3 % wrap)
                       : scale * (double)i + shift + 0.1 * sin((double)i);
    if (scale == 1 && !wrap)
        for (int64_t i = 0; i < t->n; i++)
            t->v[i] = (double)i + shift;
    w->feed[w->o.nfeeds++] = (nd_feed){nd_strdup(w->c->arena, name), t};
}
#define DIM(...) (const int64_t[]){__VA_ARGS__}

static nd_eval_result eval(world *w, nd_module *m)
{
    nd_eval_result r;
    bool ok = nd_eval(m, &w->o, &r);
    assert_string_equal(w->messages.s, "");
    assert_true(ok);
    return r;
}

static void expect(const nd_tensor *t, int n, const double *v)
{
    assert_int_equal(t->n, n);
    for (int i = 0; i < n; i++)
        if (fabs(t->v[i] - v[i]) > 1e-12)
            fail_msg("element %d is %.17g, not %.17g", i, t->v[i], v[i]);
}
#define EXPECT(t, ...) \
    expect(t, (int)(sizeof(double[]){__VA_ARGS__} / sizeof(double)), \
           (const double[]){__VA_ARGS__})

/* ---- one device ---------------------------------------------------------- */

static void by_hand(void **state)
{
    (void)state;
    world *w = world_new();
    nd_module *m = nd_module_new(w->c, "t");
    nd_axis *a = nd_axis_new(m, "a", 2, (nd_loc){0});
    nd_axis *b = nd_axis_new(m, "b", 3, (nd_loc){0});
    nd_axis *ab[2] = {a, b};
    nd_builder u = {.m = m, .block = m->step, .at = -1};
    nd_value *x = nd_input(&u, "x", nd_type_of(ND_F32, 2, ab));
    nd_value *y = nd_input(&u, "y", nd_type_of(ND_F32, 1, &b));
    nd_output(&u, "sum", nd_map(&u, EW_ADD, y, x, NULL));
    nd_output(&u, "dot", nd_contract(&u, x, y, 1, &b, NULL));
    nd_output(&u, "max", nd_reduce(&u, RED_MAX, x, 1, &a));
    nd_value *i = nd_index(&u, b);
    nd_value *j = nd_map(&u, EW_SUB, i, nd_const(&u, ND_I32, 1), NULL);
    nd_output(&u, "shift", nd_gather(&u, y, b, nd_rename(&u, j, b,
              nd_axis_new(m, "c", 3, (nd_loc){0}))));
    nd_type ty = nd_type_of(ND_F32, 1, &b);
    nd_value *two = nd_map(&u, EW_MOD, nd_rename(&u, i, b, m->axes.v[2]),
                           nd_const(&u, ND_I32, 2), NULL);
    nd_value *g = nd_rename(&u, y, b, m->axes.v[2]);
    nd_output(&u, "scatter", nd_scatter_add(&u, g, b, two, &ty));
    feed(w, "x", 2, DIM(2, 3), 1, 0, 0);
    feed(w, "y", 1, DIM(3), 1, 10, 0);
    nd_eval_result r = eval(w, m);
    EXPECT(r.outputs[0], 10, 12, 14, 13, 15, 17);   /* x leads: more axes */
    EXPECT(r.outputs[1], 0 * 10 + 1 * 11 + 2 * 12, 3 * 10 + 4 * 11 + 5 * 12);
    EXPECT(r.outputs[2], 3, 4, 5);
    EXPECT(r.outputs[3], 0, 10, 11);
    EXPECT(r.outputs[4], 10 + 12, 11, 0);
    assert_null(r.grads);
    world_free(w);
}

/* h <- h * w[l] + l, forward and back; the stack holds what went in. */
static void repeats(void **state)
{
    (void)state;
    world *w = world_new();
    nd_module *m = parse(w,
        "module m\naxis layers = 3\naxis d = 2\nstep {\n"
        "%x = input \"x\" : f32[d]\n"
        "%w = param \"w\" ones layer(layers) : f32[layers]\n"
        "%h, %st = repeat [layers] carry(%x) scan(%w) : f32[d], "
        "f32[layers, d] {\n(%a: f32[d], %v: f32)\n"
        "%i = index [layers] : i32\n%f = cast %i : f32\n"
        "%m = mul %a, %v : f32[d]\n%n = add %m, %f : f32[d]\nyield %n, %a\n}\n"
        "%r = repeat [layers] reverse carry(%x) scan(%st) : f32[d] {\n"
        "(%b: f32[d], %s: f32[d])\n%t = mul %b, %s : f32[d]\n"
        "bwd %g = reduce sum [d] %t : f32\nbwd accumulate \"w\" %g\n"
        "yield %t\n}\n"
        "output \"h\" %h\noutput \"st\" %st\noutput \"r\" %r\n}\n"
        "grad \"w\" : f32[layers]\n");
    feed(w, "x", 1, DIM(2), 1, 1, 0);
    feed(w, "w", 1, DIM(3), 1, 1, 0);
    nd_eval_result r = eval(w, m);
    EXPECT(r.outputs[0], 11, 17);
    EXPECT(r.outputs[1], 1, 2, 1, 2, 3, 5);
    EXPECT(r.outputs[2], 3, 40);
    EXPECT(r.grads[0], 3 + 40, 3 + 20, 3 + 10);
    world_free(w);
}

/* ---- ranks --------------------------------------------------------------- */

/* Evaluates both texts with the same feeds; outputs must agree, bit for bit
 * when sums run in the same order. */
static void same_outputs(world *w, const char *one, const char *many,
                         nd_opcode op, int64_t times)
{
    nd_eval_result r = eval(w, parse(w, one));
    nd_eval_result q = eval(w, parse(w, many));
    for (int64_t i = 0; i < r.outputs[0]->n; i++)
        assert_true(fabs(r.outputs[0]->v[i] - q.outputs[0]->v[i]) < 1e-12);
    assert_int_equal(r.outputs[0]->n, q.outputs[0]->n);
    assert_int_equal(q.collectives[op], times);
    assert_int_equal(r.collectives[op], 0);
}

#define PRODUCT "module m\naxis i = 4\naxis k = 5\naxis j = 5\n"

static void sharded_products(void **state)
{
    (void)state;
    static const char one[] = PRODUCT "step {\n"
        "%x = input \"x\" : f32[i, k]\n%y = input \"y\" : f32[k, j]\n"
        "%p = contract [k] %x, %y : f32[i, j]\noutput \"p\" %p\n}\n";
    for (int ranks = 2; ranks <= 3; ranks++) {
        world *w = world_new();
        feed(w, "x", 2, DIM(4, 5), 0.3, -1, 0);
        feed(w, "y", 2, DIM(5, 5), -0.2, 2, 0);
        const char *head = nd_fmt(w->c->arena, PRODUCT
            "mesh dp = 2, tp = %d, micro = 1\nstep {\n"
            "%%x = input \"x\" : f32[i/dp, k/tp]\n"
            "%%y = input \"y\" : f32[k/tp, j]\n"
            "%%p = contract [k] %%x, %%y : f32[i/dp, j]+tp\n", ranks);
        same_outputs(w, one, nd_fmt(w->c->arena, "%s"
            "%%q = all_reduce sum over tp %%p : f32[i/dp, j]\n"
            "output \"p\" %%q\n}\n", head), OP_ALL_REDUCE, 2);
        same_outputs(w, one, nd_fmt(w->c->arena, "%s"
            "%%q = reduce_scatter [j] over tp %%p : f32[i/dp, j/tp]\n"
            "output \"p\" %%q\n}\n", head), OP_REDUCE_SCATTER, 2);
        same_outputs(w, one, nd_fmt(w->c->arena, "%s"
            "%%q = reduce_scatter [j] over tp %%p : f32[i/dp, j/tp]\n"
            "%%r = all_gather [j] over tp %%q : f32[i/dp, j]\n"
            "%%s = slice [j] over tp %%r : f32[i/dp, j/tp]\n"
            "output \"p\" %%s\n}\n", head), OP_ALL_GATHER, 2);
        same_outputs(w, one, nd_fmt(w->c->arena, "%s"
            "%%q = reduce_scatter [j] over tp %%p : f32[i/dp, j/tp]\n"
            "%%r = all_to_all [j, i] over tp %%q : f32[i/(dp,tp), j]\n"
            "output \"p\" %%r\n}\n", head), OP_ALL_TO_ALL, 2);
        /* What is left pending is summed when the output is put together. */
        same_outputs(w, one, nd_fmt(w->c->arena, "%soutput \"p\" %%p\n}\n",
                                    head), OP_ALL_REDUCE, 0);
        world_free(w);
    }
}

#define LOOKUP "module m\naxis batch = 5\naxis vocab = 5\naxis d = 2\n"

/* An embedding cut by rows of the table, looked up and added to, in two
 * microbatches of uneven size. */
static void sharded_lookup(void **state)
{
    (void)state;
    world *w = world_new();
    feed(w, "i", 1, DIM(5), 0, 0, 5);
    feed(w, "w", 2, DIM(5, 2), 0.3, -1, 0);
    nd_eval_result r = eval(w, parse(w, LOOKUP "step {\n"
        "%i = input \"i\" : i32[batch]\n"
        "%w = param \"w\" zeros : f32[vocab, d]\n"
        "%x = gather [vocab] %w, %i : f32[batch, d]\n"
        "%m = dropout_mask 0.5 \"drop\" : f32[batch, d]\n"
        "%y = mul %x, %m : f32[batch, d]\n"
        "%l = reduce sum [batch, d] %y : f32\n"
        "bwd %g = scatter_add [vocab] %y, %i : f32[vocab, d]\n"
        "bwd accumulate \"w\" %g\noutput \"y\" %y\nloss %l\n}\n"));
    nd_eval_result q = eval(w, parse(w, LOOKUP
        "sample batch\nmesh dp = 2, tp = 3, micro = 2\nstep {\n"
        "%i = input \"i\" : i32[batch/dp]\n"
        "%j = slice [batch] over micro %i : i32[batch/(dp,micro)]\n"
        "%w = param \"w\" zeros : f32[vocab/tp, d]\n"
        "%x = gather [vocab] %w, %j : f32[batch/(dp,micro), d]+tp\n"
        "%z = all_reduce sum over tp %x : f32[batch/(dp,micro), d]\n"
        "%m = dropout_mask 0.5 \"drop\" : f32[batch/(dp,micro), d]\n"
        "%y = mul %z, %m : f32[batch/(dp,micro), d]\n"
        "%l = reduce sum [batch, d] %y : f32+dp+micro\n"
        "bwd %g = scatter_add [vocab] %y, %j : f32[vocab/tp, d]+dp+micro\n"
        "bwd accumulate \"w\" %g\noutput \"y\" %y\nloss %l\n}\n"
        "grad \"w\" : f32[vocab/tp, d]+dp+micro\n"));
    assert_true(fabs(r.loss - q.loss) < 1e-12);
    for (int i = 0; i < 10; i++) {
        assert_true(r.outputs[0]->v[i] == q.outputs[0]->v[i]);
        assert_true(fabs(r.grads[0]->v[i] - q.grads[0]->v[i]) < 1e-12);
    }
    assert_int_equal(q.collectives[OP_ALL_REDUCE], 2 * 2);
    world_free(w);
}

static void refused(void **state)
{
    (void)state;
    world *w = world_new();
    nd_module *m = parse(w, "module m\naxis a = 4\nstep {\n"
        "%x = input \"x\" : f32[a]\noutput \"x\" %x\n}\n");
    nd_eval_result r;
    assert_false(nd_eval(m, &w->o, &r));
    assert_non_null(strstr(w->messages.s, "no value for the input \"x\""));
    feed(w, "x", 1, DIM(3), 1, 0, 0);
    assert_false(nd_eval(m, &w->o, &r));
    assert_non_null(strstr(w->messages.s, "has other dimensions"));
    world_free(w);
}

/* ---- stages -------------------------------------------------------------- */

#define CHAIN "module m\naxis batch = 4\naxis layers = 3\nsample batch\n"
#define CHAIN_OPS(B) \
    "%w = param \"w\" ones layer(layers) : f32[layers]\n" \
    "%e = param \"e\" ones : f32\n" \
    "%x0 = mul %x, %e : f32[" B "]\n" \
    "%h, %st = repeat [layers] carry(%x0) scan(%w) : f32[" B "], " \
    "f32[layers, " B "] {\n(%a: f32[" B "], %v: f32)\n" \
    "%m = mul %a, %v : f32[" B "]\nyield %m, %a\n}\n" \
    "%y = mul %h, %e : f32[" B "]\n"

static const char chain_one[] = CHAIN "step {\n"
    "%x = input \"x\" : f32[batch]\n" CHAIN_OPS("batch")
    "%l = reduce sum [batch] %y : f32\n"
    "bwd %ge = reduce sum [batch] %h : f32\nbwd accumulate \"e\" %ge\n"
    "bwd %z = broadcast %e : f32[batch]\n"
    "bwd %gh = repeat [layers] reverse carry(%z) scan(%w, %st) : f32[batch] "
    "{\n(%g: f32[batch], %u: f32, %s: f32[batch])\n"
    "bwd %gw = contract [batch] %g, %s : f32\nbwd accumulate \"w\" %gw\n"
    "bwd %n = mul %g, %u : f32[batch]\nyield %n\n}\n"
    "bwd %ge1 = contract [batch] %gh, %x : f32\nbwd accumulate \"e\" %ge1\n"
    "loss %l\n}\n";

#define BM "batch/micro"
static const char chain_many[] = CHAIN
    "mesh pp = 2, micro = 2\npipe pp\npipeline layers -> pp, "
    "schedule = gpipe, microbatches = 2\nstep {\n"
    "%xi = input \"x\" : f32[batch]\n"
    "%x = slice [batch] over micro %xi : f32[" BM "]\n" CHAIN_OPS(BM)
    "%l = reduce sum [batch] %y : f32+micro\n"
    "bwd %ge = reduce sum [batch] %h : f32+micro\nbwd accumulate \"e\" %ge\n"
    "bwd %z = broadcast %e : f32[" BM "]\n"
    "bwd %gh = repeat [layers] reverse carry(%z) scan(%w, %st) : f32[" BM "] "
    "{\n(%g: f32[" BM "], %u: f32, %s: f32[" BM "])\n"
    "bwd %gw = contract [batch] %g, %s : f32+micro\n"
    "bwd accumulate \"w\" %gw\n"
    "bwd %n = mul %g, %u : f32[" BM "]\nyield %n\n}\n"
    "bwd %ge1 = contract [batch] %gh, %x : f32+micro\n"
    "bwd accumulate \"e\" %ge1\nloss %l\n}\n"
    "grad \"w\" : f32[layers]+micro\ngrad \"e\" : f32+micro\n";

static nd_op *op_of(nd_module *m, const char *name)
{
    for (int i = 0; i < m->step->ops.n; i++) {
        nd_op *op = m->step->ops.v[i];
        if (op->nout && strcmp(op->out[0]->name, name) == 0)
            return op;
    }
    fail_msg("no op makes %%%s", name);
    return NULL;
}

static void list(nd_module *m, nd_stage *s, int last)
{
    for (int i = 0; i < m->step->ops.n; i++) {
        nd_op *op = m->step->ops.v[i];
        const char *name = op->nout ? op->out[0]->name : "";
        const nd_value *g = op->nout ? NULL : op->in[0];
        bool repeat = op->kind == OP_REPEAT;
        bool tail = strcmp(name, "y") == 0 || strcmp(name, "l") == 0 ||
                    strcmp(name, "ge") == 0 || strcmp(name, "z") == 0 ||
                    (g && strcmp(g->name, "ge") == 0);
        if (op->kind == OP_INPUT || op->kind == OP_PARAM ||
            (!repeat && tail != last))
            continue;
        if (op->phase == PH_BWD)
            ND_PUSH(m->ctx->arena, &s->bwd, op);
        else
            ND_PUSH(m->ctx->arena, &s->fwd, op);
    }
}

static void act(nd_module *m, int device, const char *what)
{
    static const char kinds[] = "FBIWUsrtq";
    for (; what[0]; what += 2)
        sched_push(m->program->sched, device,
                   (sched_op)(strchr(kinds, what[0]) - kinds), device,
                   what[1] - '0');
}

static void free_sched(void *x)
{
    sched_free(x);
}

static nd_module *pipelined(world *w, const char *first, const char *second)
{
    nd_module *m = parse(w, chain_many);
    nd_program *p = ND_NEW(w->c->arena, nd_program);
    p->nstages = p->ndevices = p->nmicro = 2;
    p->stage = ND_NEWN(w->c->arena, nd_stage, 2);
    p->stage[1].device = 1;
    for (int s = 0; s < 2; s++)
        p->stage[s].iters = ND_NEW(w->c->arena, nd_iters);
    p->stage[0].iters->hi = p->stage[1].iters->lo = 2;
    p->stage[1].iters->hi = 3;
    nd_op *f = op_of(m, "h"), *b = op_of(m, "gh");
    list(m, &p->stage[0], false);
    list(m, &p->stage[1], true);
    nd_cross ahead = {f->out[0], f->in[0]}, back = {b->out[0], b->in[0]};
    ND_PUSH(w->c->arena, &p->stage[0].send_fwd, ahead);
    ND_PUSH(w->c->arena, &p->stage[1].send_bwd, back);
    m->program = p;
    if (first[0]) {
        p->sched = sched_new("by hand", 2, 2, 2, SCHED_LOOP);
        nd_ctx_keep(m->ctx, free_sched, p->sched);
        act(m, 0, first);
        act(m, 1, second);
    }
    m->state |= ND_HAS_STAGES;
    return m;
}

static void check_stages(const char *first, const char *second)
{
    world *w = world_new();
    feed(w, "x", 1, DIM(4), 0.5, 1, 0);
    feed(w, "w", 1, DIM(3), 0.25, 1, 0);
    nd_eval_result r = eval(w, parse(w, chain_one));
    nd_eval_result q = eval(w, pipelined(w, first, second));
    assert_true(fabs(r.loss - q.loss) < 1e-12);
    for (int p = 0; p < 2; p++)
        for (int64_t i = 0; i < r.grads[p]->n; i++)
            assert_true(fabs(r.grads[p]->v[i] - q.grads[p]->v[i]) < 1e-12);
    world_free(w);
}

/* A tied parameter on both stages, iterations 0, 1 and 2 apart. */
static void stages(void **state)
{
    (void)state;
    check_stages("", "");
    check_stages("F0s0F1s1q0B0q1B1", "r0F0r1F1B0t0B1t1");
    check_stages("F0s0F1s1q0B0q1B1", "r0F0r1B0t0F1B1t1");
}

static void deadlocks(void **state)
{
    (void)state;
    static const char *const bad[][3] = {
        {"F0s0q0B0F1s1q1B1", "r0F0r1F1B0t0B1t1", "deadlocks"},
        {"F0s0F1s1q0B0q1B1", "r1F1r0F0B0t0B1t1", "expects 1"},
        {"F0F1s0s1q0B0q1B1", "F0r0r1F1B0t0B1t1", "is not on stage 1"},
    };
    for (int i = 0; i < 3; i++) {
        world *w = world_new();
        feed(w, "x", 1, DIM(4), 0.5, 1, 0);
        nd_eval_result r;
        assert_false(nd_eval(pipelined(w, bad[i][0], bad[i][1]), &w->o, &r));
        assert_non_null(strstr(w->messages.s, bad[i][2]));
        world_free(w);
    }
}

/* ---- random numbers, rounding -------------------------------------------- */

/* The compiler's numbers and the runtime's are written apart: the published
 * answer for key 0 and counter 0, then each against the other. */
static void philox(void **state)
{
    (void)state;
    uint32_t c[2], second;
    nd_philox_draw(0, 0, 0, 0, c);
    assert_int_equal(c[0], 0x6627e8d5);
    assert_int_equal(c[1], 0xe169c58d);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t seed = i * 0x9e3779b97f4a7c15u, index = ~seed >> (i % 40);
        uint32_t step = (uint32_t)(i * 77), stream = nd_stream("a.b", -1);
        nd_philox_draw(seed, index, step, stream, c);
        assert_int_equal(nd_philox(seed, index, step, stream, &second), c[0]);
        assert_int_equal(second, c[1]);
    }
}

static void initial_values(void **state)
{
    (void)state;
    world *w = world_new();
    nd_module *m = parse(w, "module m\naxis a = 10000\nstep {\n"
        "%n = param \"n\" normal(2) : f32[a]\n"
        "%u = param \"u\" uniform(3) : f32[a]\n"
        "%x = param \"x\" xavier fan(2, 4) : f32[a]\n"
        "%c = param \"c\" const(0.1) : f32[a]\n}\n");
    double want[] = {2, sqrt(3.0), sqrt(1.0 / 3), 0.1};
    for (int p = 0; p < 4; p++) {
        nd_tensor *t = nd_eval_init(m, m->params.v[p], 5);
        double s = 0, q = 0;
        for (int64_t i = 0; i < t->n; i++) {
            s += t->v[i] / (double)t->n;
            q += t->v[i] * t->v[i] / (double)t->n;
            assert_true(t->v[i] == (double)(float)t->v[i]);
        }
        assert_true(fabs(sqrt(q) - want[p]) < 0.02 * want[p]);
        assert_true(p == 3 || fabs(s) < 0.03 * want[p]);
    }
    world_free(w);
}

static void rounding(void **state)
{
    (void)state;
    world *w = world_new();
    nd_module *m = parse(w, "module m\nstep {\n%a = const 0.1 : f32\n"
        "%b = cast %a : bf16\n%h = cast %a : f16\n%e = const 70000 : f32\n"
        "%f = cast %e : f16\n%i = const -2.5 : f32\n%j = cast %i : i32\n"
        "output \"a\" %a\noutput \"b\" %b\noutput \"h\" %h\n"
        "output \"f\" %f\noutput \"j\" %j\n}\n");
    w->o.f32 = true;
    nd_eval_result r = eval(w, m);
    assert_true(r.outputs[0]->v[0] == (double)0.1f);
    assert_true(r.outputs[1]->v[0] == 0x1.9ap-4);
    assert_true(r.outputs[2]->v[0] == 0x1.998p-4);
    assert_true(isinf(r.outputs[3]->v[0]));
    assert_true(r.outputs[4]->v[0] == -2);
    w->o.f32 = false;                /* narrow values are rounded anyway */
    r = eval(w, m);
    assert_true(r.outputs[0]->v[0] == 0.1);
    assert_true(r.outputs[1]->v[0] == 0x1.9ap-4);
    assert_true(r.outputs[2]->v[0] == 0x1.998p-4);
    assert_true(isinf(r.outputs[3]->v[0]));
    world_free(w);
}

/* Ties to even, the largest numbers, what has no leading 1, no number. */
static void narrow_edges(void **state)
{
    static const struct {
        double x, bf16, f16;
    } t[] = {
        {0x1.01p0, 0x1p0, 0x1.01p0},        {0x1.03p0, 0x1.04p0, 0x1.03p0},
        {0x1.010002p0, 0x1.02p0, 0x1.01p0}, {0x1.002p0, 1, 1},
        {0x1.006p0, 1, 0x1.008p0},          {-0x1.006p0, -1, -0x1.008p0},
        {65519, 65536, 65504},              {65520, 65536, INFINITY},
        {0x1.fefffep127, 0x1.fep127, INFINITY},
        {0x1.ffp127, INFINITY, INFINITY},   {0x1p-24, 0x1p-24, 0x1p-24},
        {0x1p-25, 0x1p-25, 0},              {0x1.8p-24, 0x1.8p-24, 0x1p-23},
        {-INFINITY, -INFINITY, -INFINITY},  {NAN, NAN, NAN},
        {0x1p-133, 0x1p-133, 0},            {0x1p-134, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char text[400];
        world *w = world_new();
        snprintf(text, sizeof text, "module m\nstep {\n%%a = const %.17g : f32"
                 "\n%%b = cast %%a : bf16\n%%h = cast %%a : f16\n"
                 "output \"b\" %%b\noutput \"h\" %%h\n}\n", t[i].x);
        nd_eval_result r = eval(w, parse(w, text));
        double b = r.outputs[0]->v[0], h = r.outputs[1]->v[0];
        assert_true(isnan(t[i].x) ? isnan(b) && isnan(h)
                                  : b == t[i].bf16 && h == t[i].f16);
        world_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(narrow_edges),
        cmocka_unit_test(by_hand),          cmocka_unit_test(repeats),
        cmocka_unit_test(sharded_products), cmocka_unit_test(sharded_lookup),
        cmocka_unit_test(refused),          cmocka_unit_test(stages),
        cmocka_unit_test(deadlocks),        cmocka_unit_test(initial_values),
        cmocka_unit_test(rounding),         cmocka_unit_test(philox),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
