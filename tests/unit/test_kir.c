/* test_kir.c - the kernel IR: what is built is sound, and what is broken is
 * found. */
#include "../../runtime/ndrt.h"
#include "compile.h"

_Static_assert((int)ND_PARTS == (int)NDRT_PARTS,
               "scratch is planned for as many parts as a sum is cut into");

static cg *compile(void)
{
    static const char text[] =
        "use nn\naxis batch = 6\naxis a = 37\n"
        "model m(x: f32[batch, a], k: i32[batch]) {\n"
        "  w = param [a] ~ normal(0.5)\n"
        "  h = softmax[a](x * w) * where(k > 3, 2.0, 1.0)\n"
        "  y = layernorm[a](h) as ln * h * w[a: k]\n"
        "  return sum[batch, a](y + dropout(roll[a: 5](x), 0.3) * w)\n}\n"
        "train m {\n  steps = 1\n}\n";
    cg *g = emitted(nd_ctx_new(), text);
    assert_true(g->by_llvm.n > 1);
    return g;
}

static void what_is_built_is_sound(void **state)
{
    (void)state;
    cg *g = compile();
    int seen[KIR_NOPS] = {0};
    for (int i = 0; i < g->by_llvm.n; i++) {
        const kir_kernel *k = g->by_llvm.v[i]->ir;
        assert_null(kir_check(g, k));
        for (int j = 0; j < k->inst.n; j++)
            seen[k->inst.v[j].op]++;
    }
    assert_true(seen[KIR_FOLD] && seen[KIR_TOTAL] && seen[KIR_KEEP] &&
                seen[KIR_PICK] && seen[KIR_ADD] && seen[KIR_STORE]);
    nd_ctx_free(g->m->ctx);
}

/* Breaks instruction i; false if there is nothing of that kind to break. */
typedef bool breaks(kir_kernel *k, int i);

static bool reads_itself(kir_kernel *k, int i)
{
    kir_inst *x = &k->inst.v[i];
    if (x->nin)
        x->in[x->nin - 1] = i;
    return x->nin > 0;
}

static bool reads_another_pass(kir_kernel *k, int i)
{
    kir_inst *x = &k->inst.v[i];
    for (int p = 0; p < k->passes.n && x->nin; p++)
        if (k->passes.v[p].after <= i &&
            k->passes.v[p].body < k->passes.v[p].after) {
            x->in[0] = k->passes.v[p].body;
            return true;
        }
    return false;
}

static bool writes_another_type(kir_kernel *k, int i)
{
    kir_inst *x = &k->inst.v[i];
    if (x->op != KIR_STORE && x->op != KIR_ADD && x->op != KIR_FOLD)
        return false;
    x->type = x->type == ND_F32 ? ND_I32 : ND_F32;
    return true;
}

static bool maps_another_type(kir_kernel *k, int i)
{
    kir_inst *x = &k->inst.v[i];
    x->type = x->type == ND_F32 ? ND_I64 : ND_F32;
    return x->op == KIR_MAP;
}

static bool names_nothing(kir_kernel *k, int i)
{
    kir_inst *x = &k->inst.v[i];
    if (x->place)
        x->place->param = k->params.n;
    else
        x->slot = 99;
    return x->place || x->op == KIR_FOLD || x->op == KIR_TOTAL ||
           x->op == KIR_KEEP || x->op == KIR_KEPT || x->op == KIR_INDEX;
}

static bool writes_what_is_read(kir_kernel *k, int i)
{
    kir_inst *x = &k->inst.v[i];
    if (x->op != KIR_STORE)
        return false;
    k->params.v[x->place->param].written = false;
    return true;
}

static bool counts_wrongly(kir_kernel *k, int i)
{
    kir_inst *x = &k->inst.v[i];
    x->nin += x->nin ? -1 : 1;
    return true;
}

static bool has_a_strange_index(kir_kernel *k, int i)
{
    kir_inst *x = &k->inst.v[i];
    if (!x->place || !x->place->n)
        return false;
    x->place->term[0].loop = -2;
    return true;
}

static bool has_two_indices(kir_kernel *k, int i)
{
    kir_place *p = k->inst.v[i].place;
    for (int t = 0; p && t < p->n; t++)
        if (p->term[t].inst >= 0) {
            p->term[t].loop = 0;
            return true;
        }
    return false;
}

static bool shifts_a_loop(kir_kernel *k, int i)
{
    kir_place *p = k->inst.v[i].place;
    for (int t = 0; p && t < p->n; t++)
        if (p->term[t].loop >= 0) {
            p->term[t].shift = 1;
            p->term[t].size = 0;
            return true;
        }
    return false;
}

static bool draws_along_no_loop(kir_kernel *k, int i)
{
    kir_inst *x = &k->inst.v[i];
    if (x->draw)
        x->draw->loop[0] = -1;
    return x->draw != NULL;
}

static bool tests_no_extent(kir_kernel *k, int i)
{
    kir_inst *x = &k->inst.v[i];
    x->slot = -1;
    return x->op == KIR_AT || x->op == KIR_PICK;
}

static bool reduces_strangely(kir_kernel *k, int i)
{
    k->inst.v[i].sub = RED_MIN + 1;
    return k->inst.v[i].op == KIR_ADD;
}

static bool is_no_instruction(kir_kernel *k, int i)
{
    k->inst.v[i].op = KIR_NOPS;
    return true;
}

static void what_is_broken_is_found(void **state)
{
    (void)state;
    breaks *const all[] = {reads_itself, reads_another_pass,
                           writes_another_type, maps_another_type,
                           names_nothing, writes_what_is_read,
                           counts_wrongly, has_a_strange_index,
                           has_two_indices, shifts_a_loop, draws_along_no_loop,
                           tests_no_extent, reduces_strangely,
                           is_no_instruction};
    cg *g = compile();
    for (size_t b = 0; b < sizeof all / sizeof *all; b++) {
        int broken = 0;
        for (int n = 0; n < g->by_llvm.n; n++) {
            kir_kernel *k = g->by_llvm.v[n]->ir;
            for (int i = 0; i < k->inst.n; i++) {
                kir_inst old = k->inst.v[i];
                kir_place place = {0};
                kir_draw draw = {0};
                kir_term term[ND_MAX_RANK];
                if (old.place) {
                    place = *old.place;
                    memcpy(term, place.term, sizeof *term * (size_t)place.n);
                }
                if (old.draw)
                    draw = *old.draw;
                bool written = old.place && k->params.v[place.param].written;
                if (all[b](k, i)) {
                    broken++;
                    assert_non_null(kir_check(g, k));
                }
                k->inst.v[i] = old;
                if (old.draw)
                    *old.draw = draw;
                if (old.place) {
                    *old.place = place;
                    memcpy(place.term, term, sizeof *term * (size_t)place.n);
                    k->params.v[place.param].written = written;
                }
                assert_null(kir_check(g, k));
            }
        }
        assert_true(broken > 0);
    }
    nd_ctx_free(g->m->ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_built_is_sound),
        cmocka_unit_test(what_is_broken_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
