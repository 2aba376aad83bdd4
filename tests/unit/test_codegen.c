/* test_codegen.c - fusion, memory plan and text of small programs. */
#include "compile.h"

#define HEAD "use nn\naxis batch = 6\naxis a = 8\naxis b = 4\naxis layers = 3\n"

static int count(const nd_kernels *list, nd_kernel_kind kind)
{
    int n = 0;
    for (int i = 0; i < list->v.n; i++)
        n += list->v.v[i]->kind == kind;
    return n;
}

static void softmax_is_one_nest(void **state)
{
    (void)state;
    nd_module *m = compiled(nd_ctx_new(), HEAD
        "model m(x: f32[batch, a]) {\n"
        "  w = param [a] ~ normal(0.5)\n"
        "  return sum[batch, a](softmax[a](x * w) * x)\n}\n");
    nd_code *c = nd_code_new(m);
    assert_int_equal(c->stage[0].list[LIST_FWD].v.n, 1);
    const nd_kernel *k = c->stage[0].list[LIST_FWD].v.v[0];
    assert_int_equal(k->kind, K_LOOP);
    assert_int_equal(k->npasses, 3);
    assert_int_equal(k->ninner, 1);
    assert_string_equal(k->inner_axis[0]->name, "a");
    assert_int_equal(c->stage[0].list[LIST_BWD].v.n, 1);
    nd_ctx_free(m->ctx);
}

static void residual_norm_is_one_nest(void **state)
{
    (void)state;
    nd_module *m = compiled(nd_ctx_new(), HEAD
        "model m(x: f32[batch, a]) {\n"
        "  h = x + linear[b -> a](linear[a -> b](x) as up) as down\n"
        "  return sum[batch, a](layernorm[a](h) as ln * h)\n}\n");
    nd_code *c = nd_code_new(m);
    assert_int_equal(count(&c->stage[0].list[LIST_FWD], K_GEMM), 2);
    assert_int_equal(count(&c->stage[0].list[LIST_FWD], K_LOOP), 2);
    nd_ctx_free(m->ctx);
}

static void gradients_go_straight_into_place(void **state)
{
    (void)state;
    nd_module *m = compiled(nd_ctx_new(), HEAD
        "model m(x: f32[batch, a]) {\n"
        "  return sum[batch, b](linear[a -> b](x) as l^2)\n}\n");
    nd_code *c = nd_code_new(m);
    const nd_kernels *bwd = &c->stage[0].list[LIST_BWD];
    for (int i = 0; i < bwd->v.n; i++)
        if (bwd->v.v[i]->kind == K_GEMM)
            assert_non_null(
                nd_info(c, bwd->v.v[i]->nodes.v[0].op->out[0])->accum);
    nd_ctx_free(m->ctx);
}

static const char *const PIPELINE = HEAD
    "model m(x: f32[batch, a]) {\n"
    "  repeat layers {\n"
    "    x = x + linear[b -> a](tanh(linear[a -> b](x) as up)) as down\n  }\n"
    "  return sum[batch, a](x * x)\n}\n"
    "plan {\n  mesh pp = 2, dp = 2\n  shard batch -> dp\n"
    "  pipeline layers -> pp, schedule = 1f1b, microbatches = 3\n"
    "  zero 1 over dp\n}\n";

typedef struct lasting {
    bool *in[NLISTS];                /* by mark: touched in that list */
    int list;
} lasting;

static void note_list(void *user, const nd_ref *at, bool write, int index)
{
    lasting *l = user;
    (void)write;
    (void)index;
    if (at->root == AT_BUFFER)
        l->in[l->list][at->value->mark] = true;
}

/* By mark: is it touched in several lists? */
static bool *find_lasting(nd_code *c, int stage)
{
    lasting l = {.list = 0};
    bool *lasts = ND_NEWN(c->a, bool, c->nvalues);
    for (; l.list < NLISTS; l.list++) {
        l.in[l.list] = ND_NEWN(c->a, bool, c->nvalues);
        nd_touch_list(c, &c->stage[stage].list[l.list], note_list, &l, -1);
    }
    for (int i = 0; i < c->nvalues; i++)
        for (int a = 0; a < NLISTS; a++)
            for (int b = 0; b < a; b++)
                lasts[i] |= l.in[a][i] && l.in[b][i];
    return lasts;
}

/* What lasts has bytes that nothing else has that does; everything lies in the
 * arena, aligned. */
static void lasting_buffers_do_not_overlap(void **state)
{
    (void)state;
    nd_module *m = compiled(nd_ctx_new(), PIPELINE);
    nd_code *c = nd_code_new(m);
    for (int s = 0; s < m->program->nstages; s++) {
        const nd_stage_mem *mem = &c->mem.stage[s];
        const nd_device_mem *d = &c->mem.device[s];
        const bool *lasts = find_lasting(c, s);
        int nlasting = 0;
        for (int i = 0; i < mem->places.n; i++) {
            const nd_place *p = &mem->places.v[i];
            size_t end = p->room ? mem->kept[false][p->room] : d->fixed_bytes;
            assert_int_equal(p->base % 64, 0);
            assert_true(p->base + p->bytes <= end);
            nlasting += lasts[p->value->mark] && p->room;
            for (int j = 0; j < mem->places.n && p->room; j++) {
                const nd_place *q = &mem->places.v[j];
                assert_true(i == j || !lasts[p->value->mark] ||
                            !lasts[q->value->mark] || q->room != p->room ||
                            q->base + q->bytes <= p->base ||
                            q->base >= p->base + p->bytes);
            }
        }
        assert_true(nlasting > 1);
        size_t slots = (size_t)m->program->stage[s].slots[SCHED_UNTIL_I];
        assert_true(slots == (s ? 1 : 2));
        assert_int_equal(d->arena_bytes, d->fixed_bytes + slots *
                                         mem->kept[false][ROOM_UNTIL_I]);
        assert_int_equal(d->weight_bytes, d->grad_bytes);
        assert_int_equal(d->arena_bytes % 64, 0);
    }
    for (int i = 0; i < c->mem.buckets.n; i++) {
        const nd_bucket *b = &c->mem.buckets.v[i];
        assert_int_equal(b->n % (b->zero ? 32 : 16), 0);
    }
    assert_true(nd_places_check(c));
    nd_ctx_free(m->ctx);
}

/* The plan may be made twice, and the text is the same. */
static void text_is_reproducible(void **state)
{
    (void)state;
    nd_module *m = compiled(nd_ctx_new(), PIPELINE);
    nd_module *n = compiled(nd_ctx_new(), PIPELINE);
    nd_buf x = {.arena = m->ctx->arena}, y = {.arena = n->ctx->arena};
    nd_buf plan = {.arena = n->ctx->arena};
    cg_report_plan(n, &plan);
    assert_true(cg_emit_c(m, &x));
    assert_true(cg_emit_c(n, &y));
    assert_string_equal(x.s, y.s);
    nd_ctx_free(m->ctx);
    nd_ctx_free(n->ctx);
}

static void lines_are_folded(void **state)
{
    (void)state;
    nd_arena *a = nd_arena_new();
    nd_buf b = {.arena = a};
    cg_fold(&b, 4, "call(first_argument, second_argument, third_argument, "
                   "fourth_argument, fifth);");
    assert_string_equal(b.s, "    call(first_argument, second_argument, "
                             "third_argument, fourth_argument,\n"
                             "        fifth);\n");
    cg_names names = {.arena = a};
    assert_string_equal(cg_fresh(&names, "for"), "v_for");
    assert_string_equal(cg_fresh(&names, "a.b"), "a_b");
    assert_string_equal(cg_fresh(&names, "a_b"), "a_b_2");
    assert_string_equal(cg_number(a, ND_F32, 0.1), "0.1f");
    assert_string_equal(cg_number(a, ND_F32, 3), "3.0f");
    assert_string_equal(cg_number(a, ND_I32, -3), "-3");
    nd_arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_is_one_nest),
        cmocka_unit_test(residual_norm_is_one_nest),
        cmocka_unit_test(gradients_go_straight_into_place),
        cmocka_unit_test(lasting_buffers_do_not_overlap),
        cmocka_unit_test(text_is_reproducible),
        cmocka_unit_test(lines_are_folded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
