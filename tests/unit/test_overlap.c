/* test_overlap.c - collectives beside kernels: what is chosen, and that the
 * check of what is in flight sees whatever is wrong with it.
 */
#include "compile.h"

static const char *const SHARDED =
    "use nn\naxis batch = 6\naxis d = 5\naxis ffn = 13\naxis layers = 3\n"
    "model m(x: f32[batch, d]) {\n"
    "  y = linear[d -> d](x) as first\n"
    "  repeat layers {\n"
    "    h = relu(linear[d -> ffn](rmsnorm[d](y) as n) as up)\n"
    "    y = y + linear[ffn -> d](h) as down\n  }\n"
    "  return mean[batch](mse[d](y, x))\n}\n"
    "plan {\n  mesh dp = 2\n  shard batch -> dp\n  zero 3 over dp\n}\n";

static nd_code *compile(nd_ctx *c)
{
    return nd_code_new(compiled(c, SHARDED));
}

static nd_kernels *body_of(nd_kernels *list)
{
    for (int i = 0; i < list->v.n; i++)
        if (list->v.v[i]->body)
            return list->v.v[i]->body;
    return NULL;
}

/* The first flight of a list that is ahead, or that is not. */
static nd_flight *flight_of(const nd_kernels *list, bool ahead)
{
    for (int i = 0; i < list->flights.n; i++)
        if ((list->flights.v[i]->ahead != NULL) == ahead)
            return list->flights.v[i];
    return NULL;
}

static nd_place *place_of(nd_code *c, const nd_value *v)
{
    nd_ref r;
    assert_true(nd_ref_of(c, v, &r));
    return (nd_place *)nd_place_of(&c->mem.stage[0], r.value);
}

static void layers_are_gathered_ahead(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx);
    const nd_kernels *body = body_of(&c->stage[0].list[LIST_FWD]);
    int ahead = 0;
    for (int i = 0; i < body->flights.n; i++) {
        const nd_flight *x = body->flights.v[i];
        const nd_value *v = x->k->nodes.v[0].op->out[0];
        ahead += x->ahead != NULL;
        assert_int_equal(place_of(c, v)->bytes, 2 * nd_bytes_on(c, v, -1));
    }
    assert_int_equal(ahead, 4);      /* all but up.w, whose rows are uneven: a
                                        copy is made of it first */
    assert_non_null(flight_of(body_of(&c->stage[0].list[LIST_BWD]), false));
    assert_true(nd_overlap_check(c));
    nd_ctx_free(ctx);
}

static int broken(nd_code *c)
{
    return !nd_overlap_check(c);
}

static void waits_too_late(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        nd_ctx *ctx = nd_ctx_new();
        nd_code *c = compile(ctx);
        nd_kernels *body = body_of(&c->stage[0].list[LIST_BWD]);
        flight_of(body, ahead)->wait = body->v.n;
        assert_true(broken(c));
        nd_ctx_free(ctx);
    }
}

static void starts_too_early(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx);
    nd_flight *x = flight_of(body_of(&c->stage[0].list[LIST_BWD]), false);
    x->start = 0;
    assert_true(broken(c));
    nd_ctx_free(ctx);
}

static void does_not_cover_its_place(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx);
    nd_flight *x = flight_of(body_of(&c->stage[0].list[LIST_BWD]), false);
    x->start = x->k->index + 1;
    assert_true(broken(c));
    nd_ctx_free(ctx);
}

/* Somebody else's memory: of a kernel beside it, of another call in flight, of
 * a kernel beside the first one of a repeat. */
static void shares_memory(void **state)
{
    (void)state;
    for (int which = 0; which < 3; which++) {
        nd_ctx *ctx = nd_ctx_new();
        nd_code *c = compile(ctx);
        nd_kernels *body = body_of(&c->stage[0].list[LIST_FWD]);
        const nd_flight *x = flight_of(body, true);
        nd_place *p = place_of(c, x->k->nodes.v[0].op->out[0]);
        const nd_value *other = NULL;
        if (which == 0)
            other = body->v.v[body->v.n - 2]->nodes.v[0].op->out[0];
        else if (which == 1)
            other = body->flights.v[1]->k->nodes.v[0].op->out[0];
        const nd_kernels *fwd = &c->stage[0].list[LIST_FWD];
        for (int i = 0; which == 2 && i < fwd->v.n; i++)
            if (fwd->v.v[i]->kind == K_GEMM)
                other = fwd->v.v[i]->nodes.v[0].op->out[0];
        assert_non_null(other);
        p->base = place_of(c, other)->base;
        assert_true(broken(c));
        nd_ctx_free(ctx);
    }
}

/* What gathers the next layer has but one place: both halves of the next
 * buffer behind it are taken. */
static void second_place_is_missing(void **state)
{
    (void)state;
    nd_ctx *ctx = nd_ctx_new();
    nd_code *c = compile(ctx);
    nd_kernels *body = body_of(&c->stage[0].list[LIST_FWD]);
    nd_place *p = place_of(c, body->flights.v[0]->k->nodes.v[0].op->out[0]);
    nd_place *q = place_of(c, body->flights.v[1]->k->nodes.v[0].op->out[0]);
    q->base = p->base + p->bytes / 2;
    assert_true(broken(c));
    nd_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_gathered_ahead),
        cmocka_unit_test(waits_too_late),
        cmocka_unit_test(starts_too_early),
        cmocka_unit_test(does_not_cover_its_place),
        cmocka_unit_test(shares_memory),
        cmocka_unit_test(second_place_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
