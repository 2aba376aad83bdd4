/* test_in_place.c - what may be written in place of what, and that a plan or a
 * kernel that does it where it must not is found. */
#include "compile.h"

#define HEAD "use nn\naxis batch = 6\naxis a = 13\naxis b = 13\n" \
             "model m(x: f32[batch, a]) {\n" \
             "  u = param [a -> b] ~ normal(0.5)\n" \
             "  v = param [b -> a] ~ normal(0.5)\n" \
             "  s = sum[a](x * u)\n"

static const nd_value *find(const cg *g, const char *name)
{
    for (int i = 0; i < g->c->nvalues; i++)
        if (g->c->info[i].v->name &&
            strcmp(g->c->info[i].v->name, name) == 0)
            return g->c->info[i].v;
    fail_msg("no value %s", name);
    return NULL;
}

static nd_kernel *maker(const cg *g, const nd_value *v)
{
    const nd_kernels *list = &g->c->stage[0].list[LIST_FWD];
    for (int i = 0; i < list->v.n; i++)
        if (nd_node_of(list->v.v[i], v))
            return list->v.v[i];
    fail_msg("no kernel makes %s", v->name);
    return NULL;
}

/* In the forward list of a program: may y be written in place of s, and is it?
 */
typedef struct expected {
    const char *text;
    bool may, is;
} expected;

static void only_what_is_read_as_it_lies(void **state)
{
    (void)state;
    static const expected all[] = {
        {HEAD "  y = softmax[b](s) as y\n  return sum[batch, a](sum[b](y * v))"
              "\n}\n", true, true},
        /* read again by the last product */
        {HEAD "  y = softmax[b](s) as y\n"
              "  return sum[batch, a](sum[b](y * v) + sum[b](s * v))\n}\n",
         true, false},
        /* at another index */
        {HEAD "  y = tanh(roll[b: 1](s))\n"
              "  return sum[batch, a](sum[b](y * v))\n}\n", false, false},
        /* stored in a pass before the one that reads s again */
        {HEAD "  y = sin(s)\n  z = s * sum[b](y)\n"
              "  return sum[batch, a](sum[b](y * v) * sum[b](z * v))\n}\n",
         false, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cg *g = emitted(nd_ctx_new(), all[i].text);
        const nd_value *s = find(g, "s"), *y = find(g, "y");
        assert_int_equal(nd_may_take_place(g->c, maker(g, y), y, s),
                         all[i].may);
        assert_int_equal(nd_share_bytes(g->c, y, s), all[i].is);
        nd_ctx_free(g->m->ctx);
    }
}

static void a_wrong_place_is_found(void **state)
{
    (void)state;
    cg *g = emitted(nd_ctx_new(), HEAD
                    "  y = softmax[b](s) as y\n"
                    "  return sum[batch, a](sum[b](y * v) + sum[b](s * v))"
                    "\n}\n");
    nd_stage_mem *mem = &g->c->mem.stage[0];
    nd_place *s = (nd_place *)nd_place_of(mem, find(g, "s"));
    nd_place *y = (nd_place *)nd_place_of(mem, find(g, "y"));
    nd_place was = *y;
    assert_true(nd_places_check(g->c));
    y->room = s->room;
    y->base = s->base;
    assert_false(nd_places_check(g->c));
    *y = was;
    assert_true(nd_places_check(g->c));
    nd_ctx_free(g->m->ctx);
}

/* Each reads the place after, or elsewhere than, it is written. */
static void a_wrong_kernel_is_found(void **state)
{
    (void)state;
    cg *g = emitted(nd_ctx_new(), HEAD
                    "  y = softmax[b](s) as y\n"
                    "  return sum[batch, a](sum[b](y * v))\n}\n");
    int broken = 0;
    for (int n = 0; n < g->by_llvm.n; n++) {
        kir_kernel *k = g->by_llvm.v[n]->ir;
        for (int i = 0; i < k->inst.n; i++) {
            kir_inst *x = &k->inst.v[i], old = *x;
            if (!x->place || k->params.v[x->place->param].shares < 0)
                continue;
            kir_term first = x->place->term[0];
            x->place->term[0].shift = 1;
            assert_non_null(kir_check(g, k));
            x->place->term[0] = first;
            x->place->term[0].stride.k++;
            assert_non_null(kir_check(g, k));
            x->place->term[0] = first;
            x->op = x->op == KIR_STORE ? KIR_ADD : KIR_PICK;
            assert_non_null(kir_check(g, k));
            *x = old;
            assert_null(kir_check(g, k));
            broken++;
        }
        for (int i = 0; i < k->params.n; i++) {
            int pair = k->params.v[i].shares;
            if (pair < 0)
                continue;
            k->params.v[i].shares = -1;
            assert_non_null(kir_check(g, k));
            k->params.v[i].shares = pair;
        }
    }
    assert_true(broken > 2);
    nd_ctx_free(g->m->ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_read_as_it_lies),
        cmocka_unit_test(a_wrong_place_is_found),
        cmocka_unit_test(a_wrong_kernel_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
