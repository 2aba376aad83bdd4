/* test_lend.c - what lies over gradients is gone when they are made, and the
 * check sees whatever lies there too long, in a gap or at all.
 */
#include "compile.h"

static const char *const MODEL =
    "use nn\naxis batch = 6\naxis vocab = 32\naxis d = %d\naxis e = d\n"
    "axis layers = 4\n"
    "model m(t: i32[batch], y: i32[batch]) {\n"
    "  table = param [vocab -> d] ~ normal(0.5)\n"
    "  x = table[vocab: t]\n"
    "  repeat layers {\n"
    "    own = param [d -> e] ~ normal(0.5)\n"
    "    x = x + rename[e -> d](tanh(sum[d](x * own)))\n  }\n"
    "  logits = sum[d](x * table)\n"
    "  return mean[batch](cross_entropy[vocab](logits, y))\n}\n";

static nd_code *compile(nd_ctx *c, int d, const char *plan)
{
    return nd_code_new(planned(c, nd_fmt(c->arena, MODEL, d), plan));
}

/* Where gradients are: the only bucket's. */
static size_t grads(const nd_code *c)
{
    return c->mem.device[0].buckets.v[0].grads;
}

static size_t grad_of(const nd_code *c, const char *name)
{
    const nd_bucket *b = &c->mem.buckets.v[0];
    for (int i = 0; i < b->params.n; i++)
        if (strcmp(b->params.v[i]->name, name) == 0)
            return grads(c) + b->at.v[i] * 4;
    fail_msg("no parameter %s", name);
    return 0;
}

static nd_place *logits_of(nd_code *c)
{
    nd_stage_mem *mem = &c->mem.stage[0];
    for (int i = 0; i < mem->places.n; i++)
        if (strcmp(mem->places.v[i].value->name, "logits") == 0)
            return &mem->places.v[i];
    fail_msg("no logits");
    return NULL;
}

/* What begins in front of gradients and ends among them, or NULL. */
static nd_place *stack_of(nd_code *c)
{
    nd_stage_mem *mem = &c->mem.stage[0];
    for (int i = 0; i < mem->places.n; i++) {
        nd_place *p = &mem->places.v[i];
        if (p->room == ROOM_FIXED && p->base < grads(c) &&
            p->base + p->bytes > grads(c))
            return p;
    }
    return NULL;
}

static bool is_clear(nd_code *c)
{
    return nd_lend_check(c) && nd_places_check(c);
}

static void logits_lie_over_layers(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx, 16, "mesh dp = 1");
    const nd_place *p = logits_of(c);
    assert_int_equal(p->room, ROOM_FIXED);
    assert_true(p->base >= grad_of(c, "layers.own"));
    assert_true(p->base + p->bytes <=
                grad_of(c, "layers.own") + 4 * 16 * 16 * 4);
    assert_true(c->mem.device[0].lent_bytes >= p->bytes);
    assert_true(nd_lend_check(c) && nd_places_check(c));
    nd_ctx_free(ctx);
}

/* Several microbatches or stages; layers of which not every rank has as many.
 */
static void nothing_is_lent(void **state)
{
    static const char *const plan[] = {
        "microbatches 3", ("mesh pp = 2\n  pipeline layers -> pp, schedule = "
                          "1f1b, microbatches = 1"),
        "mesh tp = 3\n  shard d -> tp"};
    (void)state;
    for (size_t i = 0; i < sizeof plan / sizeof *plan; i++) {
        nd_ctx *ctx = nd_ctx_new();
        nd_code *c = compile(ctx, 16, plan[i]);
        assert_int_equal(c->mem.device[0].lent_bytes, 0);
        assert_true(nd_lend_check(c));
        nd_ctx_free(ctx);
    }
}

/* Moves what is in one place: the logits, and what is made in place of them. */
static void move(nd_code *c, size_t from, size_t to)
{
    nd_stage_mem *mem = &c->mem.stage[0];
    for (int i = 0; i < mem->places.n; i++)
        if (mem->places.v[i].base == from)
            mem->places.v[i].base = to;
}

/* 64 bytes before or behind its gradients, and over that of the table. */
static void a_wrong_place_is_found(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx, 16, "mesh dp = 1");
    const nd_place *p = logits_of(c);
    size_t was = p->base, own = grad_of(c, "layers.own");
    size_t end = own + 4 * 16 * 16 * 4;
    size_t wrong[] = {own - 64, end - p->bytes + 64, grad_of(c, "table")};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        move(c, was, wrong[i]);
        assert_false(is_clear(c));
        move(c, wrong[i], was);
        assert_true(is_clear(c));
    }
    c->m->program->nmicro = 2;
    assert_false(nd_lend_check(c));
    nd_ctx_free(ctx);
}

/* The layers have 676 floats, and 12 more behind them. */
static void a_gap_is_none_to_lie_on(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx, 13, "mesh dp = 1");
    const nd_place *p = logits_of(c);
    size_t was = p->base, end = grad_of(c, "layers.own") + 688 * 4;
    assert_true(was + p->bytes <= end - 48);
    for (size_t at = end - 64; at < end + 64; at += 64) {
        move(c, was, at - p->bytes + 64);
        assert_false(nd_lend_check(c));
        move(c, at - p->bytes + 64, was);
        assert_true(nd_lend_check(c));
    }
    nd_ctx_free(ctx);
}

/* If the gradient below is cleared, or made of what lies there. */
static void a_gradient_that_is_there_is_found(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx, 16, "mesh dp = 1");
    const nd_bucket *b = &c->mem.buckets.v[0];
    for (int i = 0; i < b->params.n; i++)
        if (strcmp(b->params.v[i]->name, "layers.own") == 0)
            ND_PUSH(c->a, &c->mem.device[0].cleared, b->params.v[i]->index);
    assert_false(nd_lend_check(c));
    nd_ctx_free(ctx);
}

/* Of 4 layers, a value has 6 * d floats each, up to a whole cache line, and the
 * gradient d * d: with fewer the value begins by one part in front of it, with
 * more by 4 parts less 3 of the gradient's. */
static void a_stack_lies_over_earlier_layers(void **state)
{
    static const struct {
        int d;
        size_t part, front;
    } of[] = {{16, 384, 384}, {13, 320, 320}, {5, 128, 256}};
    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        nd_ctx *ctx = nd_ctx_new();
        nd_code *c = compile(ctx, of[i].d, "mesh dp = 1");
        const nd_bucket_place *at = &c->mem.device[0].buckets.v[0];
        const nd_place *p = stack_of(c);
        assert_non_null(p);
        assert_int_equal(grad_of(c, "layers.own"), grads(c));
        assert_int_equal(p->bytes, 4 * of[i].part);
        assert_int_equal(grads(c) - p->base, of[i].front);
        assert_true(at->weights + c->mem.buckets.v[0].n * 4 <= p->base);
        assert_true(is_clear(c));
        nd_ctx_free(ctx);
    }
}

/* Of bf16, whose parts are half a cache line, behind the end of what a tiny
 * gradient has. */
static void a_stack_is_no_longer_than_the_gradients(void **state)
{
    static const int layers[] = {7, 23, 31};
    (void)state;
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        nd_ctx *ctx = nd_ctx_new();
        nd_code *c = nd_code_new(compiled(ctx, nd_fmt(ctx->arena,
            "use nn\naxis batch = 5\naxis d = 2\naxis e = d\n"
            "axis layers = %d\n"
            "model m(x: f32[batch, d]) {\n"
            "  repeat layers {\n"
            "    own = param [d -> e] ~ normal(0.5)\n"
            "    t = tanh(cast[bf16](sum[d](x * own)))\n"
            "    x = x + cast[f32](rename[e -> d](t))\n  }\n"
            "  return mean[batch, d](x * x)\n}\n", layers[i])));
        assert_true(is_clear(c));
        nd_ctx_free(ctx);
    }
}

/* 64 bytes too far, or among weights. */
static void a_stack_at_a_wrong_place_is_found(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx, 16, "mesh dp = 1");
    size_t was = stack_of(c)->base;
    size_t wrong[] = {was + 64, was - 64, grads(c), 0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        move(c, was, wrong[i]);
        assert_false(nd_lend_check(c));
        move(c, wrong[i], was);
        assert_true(is_clear(c));
    }
    nd_ctx_free(ctx);
}

/* If backward took the layers in the other order. */
static void a_stack_needs_layers_in_reverse(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx, 16, "mesh dp = 1");
    const nd_kernels *bwd = &c->stage[0].list[LIST_BWD];
    for (int i = 0; i < bwd->v.n; i++)
        if (bwd->v.v[i]->kind == K_REPEAT)
            bwd->v.v[i]->nodes.v[0].op->reverse = false;
    assert_false(nd_lend_check(c));
    nd_ctx_free(ctx);
}

/* Temporaries that are gone before the layers begin, too: of the forward list,
 * and the loss is none of them. */
static void temporaries_lie_there_as_well(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx, 64, "mesh dp = 1");
    const nd_stage_mem *mem = &c->mem.stage[0];
    size_t end = grads(c) + c->mem.buckets.v[0].n * 4;
    int n = 0;
    for (int i = 0; i < mem->places.n; i++) {
        const nd_place *p = &mem->places.v[i];
        const nd_op *def = p->value->def;
        bool body = !def || def->block != c->m->step;
        n += body && p->base >= grads(c) && p->base < end;
    }
    assert_true(n > 0);
    assert_true(is_clear(c));
    nd_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_lie_over_layers),
        cmocka_unit_test(nothing_is_lent),
        cmocka_unit_test(a_wrong_place_is_found),
        cmocka_unit_test(a_gap_is_none_to_lie_on),
        cmocka_unit_test(a_gradient_that_is_there_is_found),
        cmocka_unit_test(temporaries_lie_there_as_well),
        cmocka_unit_test(a_stack_lies_over_earlier_layers),
        cmocka_unit_test(a_stack_is_no_longer_than_the_gradients),
        cmocka_unit_test(a_stack_at_a_wrong_place_is_found),
        cmocka_unit_test(a_stack_needs_layers_in_reverse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
