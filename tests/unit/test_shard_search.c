/* test_shard_search.c - the moves between two sharding types, one fact a line,
 * and against a search that tries every sequence.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "passes/shard.h"

enum { AXES = 3, MESH = 3 };

typedef struct world {
    nd_ctx *c;
    nd_module *m;
    nd_axis *axis[AXES];
} world;

static world world_new(const int64_t size[AXES], const int mesh[MESH])
{
    static const char *const names[] = {"a", "b", "c"};
    static const char *const mesh_names[] = {"x", "y", "z", "micro"};
    world w = {.c = nd_ctx_new()};

    w.m = nd_module_new(w.c, "m");
    for (int i = 0; i < AXES; i++)
        w.axis[i] = nd_axis_new(w.m, names[i], size[i], nd_nowhere);
    w.m->mesh = (nd_mesh){.n = MESH + 1, .micro = MESH, .pipe = -1};
    for (int k = 0; k <= MESH; k++) {
        w.m->mesh.name[k] = mesh_names[k];
        w.m->mesh.size[k] = k < MESH ? mesh[k] : 2;
    }
    w.m->sample = w.axis[0];
    return w;
}

/* "xy,z,+m": a/(x,y), b/z, c with a sum over micro pending. */
static nd_type type_of(const world *w, const char *text)
{
    nd_type t = nd_type_of(ND_F32, AXES, w->axis);
    int i = 0;
    for (bool sum = false; *text; text++) {
        int k = *text == 'm' ? MESH : *text - 'x';
        if (*text == ',')
            i++;
        else if (*text == '+')
            sum = true;
        else if (sum)
            t.sum |= 1u << k;
        else
            t.cut[i].m[t.cut[i].n++] = (uint8_t)k;
    }
    return t;
}

static const char *text_of(const world *w, const nd_sh_path *p)
{
    static const char *const letters[OP_COUNT] = {
        [OP_ALL_REDUCE] = "AR", [OP_REDUCE_SCATTER] = "RS",
        [OP_ALL_GATHER] = "AG", [OP_ALL_TO_ALL] = "A2A", [OP_SLICE] = "S"};
    nd_buf b = {.arena = w->c->arena};
    nd_put(&b, "");
    for (int i = 0; i < p->moves.n; i++) {
        const nd_sh_move *v = &p->moves.v[i];
        nd_putf(&b, "%s%s ", i ? "; " : "", letters[v->kind]);
        for (int k = 0; k <= MESH; k++)
            if (v->mesh >> k & 1)
                nd_putf(&b, "%c", "xyzm"[k]);
        if (v->kind != OP_ALL_REDUCE)
            nd_putf(&b, " %c", "abc"[v->axis]);
        if (v->kind == OP_ALL_TO_ALL)
            nd_putf(&b, ">%c", "abc"[v->to]);
    }
    return b.s;
}

static void expect(const world *w, const char *from, const char *to,
                   const char *moves)
{
    nd_type x = type_of(w, from), y = type_of(w, to);
    const nd_type *p = &x;
    nd_sh_path path;

    if (!nd_sh_search(w->m, 1, &p, &y, &path)) {
        assert_string_equal("none", moves);
        return;
    }
    assert_string_equal(text_of(w, &path), moves);
}

static void facts(void **state)
{
    (void)state;
    world w = world_new((int64_t[]){8, 8, 8}, (int[]){2, 2, 2});

    expect(&w, "x,,", "x,,", "");
    expect(&w, "x,,", ",x,", "A2A x a>b");
    expect(&w, ",,", "x,,", "S x a");
    expect(&w, "x,,", ",,", "AG x a");
    expect(&w, ",,+x", ",,", "AR x");
    expect(&w, ",,+x", ",x,", "RS x b");
    expect(&w, ",,+xy", ",,", "AR xy");
    expect(&w, ",,+xy", "y,,", "RS y a; AR x");
    expect(&w, ",,+xy", "yx,,", "RS y a; RS x a");
    expect(&w, ",,+xy", ",,+y", "AR x");
    expect(&w, "y,,+x", "yx,,", "RS x a");
    expect(&w, "xy,,", "x,y,", "A2A y a>b");
    expect(&w, "xy,,", "x,,", "AG y a");
    expect(&w, "x,y,", "y,x,", "A2A x a>c; A2A y b>a; A2A x c>b");
    expect(&w, "xy,,", "yx,,", "A2A y a>b; A2A x a>c; A2A y b>a; A2A x c>a");
    /* Two pieces more are cut off before the rest is reduced. */
    expect(&w, "x,,+y", ",,y", "RS y c; AG x a");
    /* Microbatches are cut last and never joined. */
    expect(&w, ",x,", "xm,,", "A2A x b>a; S m a");
    expect(&w, "xm,,", "x,,", "none");
    expect(&w, "xm,,", "ym,,", "none");
    expect(&w, "m,,+x", "m,x,", "RS x b");
    expect(&w, "m,,+m", "m,,", "none");
    nd_ctx_free(w.c);
}

/* From the nearest of several copies. */
static void copies(void **state)
{
    (void)state;
    world w = world_new((int64_t[]){5, 7, 3}, (int[]){2, 3, 2});
    nd_type sum = type_of(&w, ",,+x"), cut = type_of(&w, "x,,");
    nd_type whole = type_of(&w, ",,"), other = type_of(&w, ",x,");
    const nd_type *from[] = {&sum, &cut, &whole};
    nd_sh_path path;

    assert_true(nd_sh_search(w.m, 3, from, &other, &path));
    assert_int_equal(path.from, 2);
    assert_string_equal(text_of(&w, &path), "S x b");
    assert_true(nd_sh_search(w.m, 2, from, &other, &path));
    assert_int_equal(path.from, 1);
    assert_string_equal(text_of(&w, &path), "A2A x a>b");
    nd_ctx_free(w.c);
}

/* ---- against all sequences ----------------------------------------------- */

static bool legal(const nd_type *t, const nd_sh_move *v, int k)
{
    nd_cut c = t->cut[v->axis];
    bool used = (nd_cut_mask(t) | t->sum) >> k & 1;
    switch (v->kind) {
    case OP_ALL_REDUCE:
        return v->axis == 0 && v->to == 0 && t->sum >> k & 1;
    case OP_REDUCE_SCATTER:
        return v->to == 0 && t->sum >> k & 1;
    case OP_SLICE:
        return v->to == 0 && !used;
    case OP_ALL_GATHER:
        return v->to == 0 && c.n && c.m[c.n - 1] == k;
    default:
        return v->axis != v->to && c.n && c.m[c.n - 1] == k;
    }
}

/* The least bytes of at most `depth` single moves. */
static double least(const world *w, const nd_type *t, const nd_type *want,
                    int depth, double bound)
{
    static const nd_opcode kinds[] = {OP_ALL_REDUCE, OP_REDUCE_SCATTER,
                                      OP_ALL_GATHER, OP_ALL_TO_ALL, OP_SLICE};
    if (nd_same_cut(t, want))
        return 0;
    for (int i = 0; i < 5 * AXES * AXES * 2 && depth; i++) {
        int k = i % 2;
        nd_sh_move v = {kinds[i / 2 % 5], i / 10 % AXES, i / 10 / AXES,
                        1u << k};
        if (!legal(t, &v, k) ||
            (v.kind == OP_ALL_REDUCE && want->sum >> k & 1))
            continue;
        nd_type u = nd_sh_moved(t, &v);
        double one = nd_comm_bytes(v.kind, v.mesh, t, &u, &w->m->mesh);
        if (one >= bound)
            continue;
        double all = one + least(w, &u, want, depth - 1, bound - one);
        bound = all < bound ? all : bound;
    }
    return bound;
}

static void all_sequences(void **state)
{
    static const char *const texts[] = {
        ",,", "x,,", ",y,", "xy,,", "yx,,", "x,y,", "y,x,", ",,xy", ",x,y",
        ",,+x", "y,,+x", ",,x+y", ",,+xy"};
    enum { N = sizeof texts / sizeof *texts };
    (void)state;
    world w = world_new((int64_t[]){5, 6, 7}, (int[]){2, 3, 1});

    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) {
            nd_type x = type_of(&w, texts[i]), y = type_of(&w, texts[j]);
            const nd_type *p = &x;
            nd_sh_path path;
            if (y.sum & ~x.sum)
                continue;
            assert_true(nd_sh_search(w.m, 1, &p, &y, &path));
            double best = least(&w, &x, &y, 5, 1e9);
            assert_true(fabs(path.bytes - best) < 1e-6);
            for (int q = 0; q < path.moves.n; q++) {
                x = nd_sh_moved(&x, &path.moves.v[q]);
            }
            assert_true(nd_same_cut(&x, &y));
        }
    }
    nd_ctx_free(w.c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts),
        cmocka_unit_test(copies),
        cmocka_unit_test(all_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
