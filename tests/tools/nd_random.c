/* nd_random.c - random programs that are valid by construction.
 *
 *   nd_random --seed N [--plan K]    prints program N, with its K-th plan:
 *                                    0 one rank; 1 mesh, pipeline and
 *                                    microbatches; 2 no pipeline; 3 mesh alone
 *   nd_random --coverage N           do programs 1..N have every op together?
 *
 * A program is a list of statements over a pool of variables. Each statement is
 * made by a row of `makers`, which belongs to a row of ops.def; elementwise
 * expressions come from nd_forms.h. A row of ops.def that no maker and no form
 * knows fails every call. A new op takes one function here:
 *
 *   static void make_cumsum(gen *g) { ... assign(g, 'f', axes, "cumsum..."); }
 */
#include "../../frontend/frontend.h"
#include "nd_forms.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_VARS = 200,
    MAX_ELEMENTS = 700, MAX_AXES_OF = 4,     /* of a value */
    DEPTH = 3                        /* of an expression */
};

typedef uint32_t mask;               /* a set of axes of the pool */
#define TENSOR (1u << 31)            /* with it: it is no constant */

/* The axes of all programs; a program draws the sizes of the first ones. */
enum {
    A_BATCH, A_A, A_B, A_C, A_VOCAB, A_COPY_A, A_COPY_B, A_FLAT, A_JOINED,
    A_OUTER, A_INNER, NAXES
};
static const struct {
    const char *name, *size;         /* NULL: drawn */
    bool value;                      /* values have it; else for repeats */
} pool[NAXES] = {
    [A_BATCH] = {"batch", NULL, true},
    [A_A] = {"a", NULL, true},
    [A_B] = {"b", NULL, true},
    [A_C] = {"c", NULL, true},
    [A_VOCAB] = {"vocab", "7", true},    /* the tools' integers are below */
    [A_COPY_A] = {"copy_a", "a", true},
    [A_COPY_B] = {"copy_b", "b", true},
    [A_FLAT] = {"flat", "a * c", true},
    [A_JOINED] = {"joined", "a + b", true},
    [A_OUTER] = {"outer", NULL, false},
    [A_INNER] = {"inner", NULL, false},
};

typedef struct var {
    char name[16];
    char cls;                        /* f, i, b */
    mask axes;
} var;

typedef struct gen {
    nd_arena *arena;
    nd_buf out;
    uint64_t state;
    int size[NAXES];
    int nvars, id;
    var vars[MAX_VARS];
    int depth;                       /* repeats that are open */
    bool joint;                      /* statements may mix samples */
} gen;

/* ---- chance ------------------------------------------------------------- */

static uint64_t draw(gen *g)
{
    uint64_t z = g->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int below(gen *g, int n)
{
    return (int)((draw(g) >> 33) % (uint64_t)n);
}

static bool chance(gen *g, int percent)
{
    return below(g, 100) < percent;
}

/* ---- sets of axes ------------------------------------------------------- */

static int elements(const gen *g, mask m)
{
    int n = 1;
    for (int i = 0; i < NAXES; i++)
        if (m >> i & 1)
            n *= g->size[i];
    return n;
}

static int count(mask m)
{
    int n = 0;
    for (; m; m &= m - 1)
        n++;
    return n;
}

/* A set of axes that values have, small enough to work with. */
static mask some_axes(gen *g)
{
    mask m = 0;
    for (int tries = 2 + below(g, 4); tries > 0; tries--) {
        int i = chance(g, 30) ? A_BATCH : below(g, NAXES);
        mask with = m | 1u << i;
        if (pool[i].value && count(with) <= MAX_AXES_OF &&
            elements(g, with) <= MAX_ELEMENTS)
            m = with;
    }
    return m;
}

/* One axis of the set, or -1. */
static int one_axis(gen *g, mask m)
{
    int k = m ? below(g, count(m)) : 0;
    for (int i = 0; i < NAXES; i++)
        if (m >> i & 1 && k-- == 0)
            return i;
    return -1;
}

/* Axes that may be summed away: rows stay apart unless the program mixes. */
static mask reducible(const gen *g, mask m)
{
    return g->joint ? m : m & ~(1u << A_BATCH);
}

static const char *list(gen *g, mask m)
{
    nd_buf b = {.arena = g->arena};
    nd_put(&b, "");
    for (int i = 0; i < NAXES; i++)
        if (m >> i & 1)
            nd_putf(&b, "%s%s", b.n ? ", " : "", pool[i].name);
    return b.s;
}

/* ---- statements --------------------------------------------------------- */

static void indent(gen *g)
{
    nd_putf(&g->out, "%*s", 2 + 2 * g->depth, "");
}

static const char *fresh(gen *g, const char *stem)
{
    return nd_fmt(g->arena, "%s%d", stem, ++g->id);
}

static void remember(gen *g, const char *name, char cls, mask axes)
{
    if (g->nvars == MAX_VARS)
        return;
    var *v = &g->vars[g->nvars++];
    snprintf(v->name, sizeof v->name, "%s", name);
    v->cls = cls;
    v->axes = axes;
}

/* A statement `v12 = text`. */
static void assign(gen *g, char cls, mask axes, const char *text)
{
    const char *name = fresh(g, cls == 'f' ? "v" : cls == 'i' ? "n" : "is");
    indent(g);
    nd_putf(&g->out, "%s = %s\n", name, text);
    remember(g, name, cls, axes & ~TENSOR);
}

/* A variable of the class whose axes lie in `within` and contain `with`; the
 * late ones more often. */
static const var *some_var(gen *g, char cls, mask within, mask with)
{
    const var *found = NULL;
    int n = 0;
    for (int i = 0; i < g->nvars; i++) {
        const var *v = &g->vars[i];
        if (v->cls != cls || v->axes & ~within || with & ~v->axes)
            continue;
        n += i + 1;
        if (below(g, n) <= i)
            found = v;
    }
    return found;
}

/* ---- expressions -------------------------------------------------------- */

static const char *expr(gen *g, char cls, mask within, int depth, mask *axes);

static const char *float_leaf(gen *g, mask within, mask *axes)
{
    const var *v = some_var(g, 'f', within, 0);
    if (v && !chance(g, 10)) {
        *axes |= v->axes | TENSOR;
        return v->name;
    }
    int i = one_axis(g, within);
    if (i >= 0 && chance(g, 50)) {
        *axes |= 1u << i | TENSOR;
        return nd_fmt(g->arena, "(0.21 * index[%s] - 0.4)", pool[i].name);
    }
    return nd_fmt(g->arena, "%d.%d", below(g, 2), 1 + below(g, 99));
}

static const char *int_leaf(gen *g, mask within, mask *axes)
{
    const var *v = some_var(g, 'i', within, 0);
    if (v && chance(g, 50)) {
        *axes |= v->axes | TENSOR;
        return v->name;
    }
    if (g->depth && chance(g, 40)) {
        *axes |= TENSOR;
        return g->depth == 2 && chance(g, 50) ? "index[inner]"
                                              : "index[outer]";
    }
    int i = one_axis(g, within);
    if (i < 0 || chance(g, 20))
        return nd_fmt(g->arena, "%d", 1 + below(g, 5));
    *axes |= 1u << i | TENSOR;
    return nd_fmt(g->arena, "index[%s]", pool[i].name);
}

static const char *bool_leaf(gen *g, mask within, mask *axes)
{
    const var *v = some_var(g, 'b', within, 0);
    if (v && chance(g, 60)) {
        *axes |= v->axes | TENSOR;
        return v->name;
    }
    return nd_fmt(g->arena, "(%s > 0.1%d)", float_leaf(g, within, axes),
                  1 + below(g, 99));
}

static bool fits(int row, char cls)
{
    char r = nd_ews[row].result;
    const char *args = ew_forms[row].args;
    if (r == 'b' || cls == 'b')
        return r == 'b' && cls == 'b';
    return strchr(args, 'n') || strchr(args, cls);
}

/* An elementwise expression of the class over axes in `within`; adds those it
 * has to *axes. Every row that makes the class is as likely. */
static const char *expr(gen *g, char cls, mask within, int depth, mask *axes)
{
    if (depth == 0 || chance(g, 15))
        return cls == 'f'   ? float_leaf(g, within, axes)
               : cls == 'i' ? int_leaf(g, within, axes)
                            : bool_leaf(g, within, axes);
    int row;
    do
        row = below(g, EW_COUNT);
    while (!fits(row, cls));
    mask inner[3] = {0};
    char n = cls != 'b' ? cls : chance(g, 60) ? 'f' : 'i';
    const char *operand[3];
    for (int k = 0; ew_forms[row].args[k]; k++) {
        char want = ew_forms[row].args[k];
        operand[k] = expr(g, want == 'n' ? n : want, within, depth - 1,
                          &inner[k]);
    }
    if (row == EW_WHERE && !(inner[0] & TENSOR)) {
        *axes |= inner[1];           /* a constant choice: one side is left */
        return operand[1];
    }
    *axes |= inner[0] | inner[1] | inner[2];
    nd_buf b = {.arena = g->arena};
    ew_say(&b, row, operand);
    return cls == 'i' ? nd_fmt(g->arena, "(%s %% 23)", b.s) : b.s;
}

/* Floats between about -2 and 2, whatever the expression is. */
static const char *tame(gen *g, const char *text)
{
    static const char *const by[] = {"tanh(%s)", "2 * sin(0.7 * (%s))",
                                     "1.5 * erf(%s)"};
    return nd_fmt(g->arena, by[below(g, 3)], text);
}

static const char *tame_expr(gen *g, mask within, mask *axes)
{
    return tame(g, expr(g, 'f', within, 1 + below(g, DEPTH), axes));
}

/* ---- makers: one per row of ops.def ------------------------------------- */

static void make_param(gen *g)
{
    static const char *const init[] = {"normal(0.5)", "uniform(0.8)", "ones",
                                       "zeros", "const(0.3)"};
    mask m = some_axes(g) & ~(1u << A_BATCH);
    if (!m)
        return;
    const char *name = fresh(g, "w");
    int lead = count(m) > 1 ? one_axis(g, m) : -1;
    indent(g);
    if (lead >= 0 && chance(g, 50))
        nd_putf(&g->out, "%s = param [%s -> %s] ~ %s\n", name,
                pool[lead].name, list(g, m & ~(1u << lead)),
                chance(g, 50) ? "xavier" : init[below(g, 5)]);
    else
        nd_putf(&g->out, "%s = param [%s] ~ %s\n", name, list(g, m),
                init[below(g, 5)]);
    remember(g, name, 'f', m);
}

static void make_index(gen *g)
{
    mask within = some_axes(g), axes = 0;
    int i = one_axis(g, within);
    if (i < 0)
        return;
    axes = 1u << i;
    const char *e = expr(g, 'i', within, 2, &axes);
    assign(g, 'i', axes, nd_fmt(g->arena, "index[%s] + %s", pool[i].name, e));
}

static void make_dropout(gen *g)
{
    mask axes = 0;
    const char *e = tame_expr(g, some_axes(g), &axes);
    if (axes & ~TENSOR)
        assign(g, 'f', axes, nd_fmt(g->arena, "dropout(%s, 0.%d)", e,
                                    1 + below(g, 4)));
}

static void make_map(gen *g)
{
    mask axes = 0, within = some_axes(g);
    char cls = "fffib"[below(g, 5)];
    const char *e = cls == 'f' ? tame_expr(g, within, &axes)
                               : expr(g, cls, within, DEPTH, &axes);
    if (axes & TENSOR)
        assign(g, cls, axes, e);
}

static void make_cast(gen *g)
{
    mask axes = 0;
    char from = "fib"[below(g, 3)], to = from == 'f' ? 'i' : 'f';
    const char *e = expr(g, from, some_axes(g), 1, &axes);
    if (axes & TENSOR && from == 'f')
        assign(g, to, axes, nd_fmt(g->arena, "cast[i32](3.37 * tanh(%s))", e));
    else if (axes & TENSOR)
        assign(g, to, axes, nd_fmt(g->arena, "0.1 * cast[f32](%s)", e));
}

static void make_stop_gradient(gen *g)
{
    mask axes = 0;
    const char *e = tame_expr(g, some_axes(g), &axes);
    if (axes & TENSOR)
        assign(g, 'f', axes, nd_fmt(g->arena, "stop_gradient(%s)", e));
}

static void make_rename(gen *g)
{
    static const int pairs[][2] = {
        {A_A, A_COPY_A}, {A_COPY_A, A_A}, {A_B, A_COPY_B}, {A_COPY_B, A_B}};
    const int *p = pairs[below(g, 4)];
    mask from = 1u << p[0], to = 1u << p[1];
    const var *v = some_var(g, chance(g, 80) ? 'f' : 'i', ~to, from);
    if (v)
        assign(g, v->cls, (v->axes & ~from) | to,
               nd_fmt(g->arena, "rename[%s -> %s](%s)", pool[p[0]].name,
                      pool[p[1]].name, v->name));
}

static void make_reduce(gen *g)
{
    static const char *const kinds[] = {"sum", "mean", "max", "min"};
    mask axes = 0, over = 0;
    const char *e = tame_expr(g, some_axes(g), &axes);
    for (int i = 0; i < NAXES; i++)
        if (reducible(g, axes) >> i & 1 &&
            (!over || chance(g, 30)))
            over |= 1u << i;
    if (!over)
        return;
    const char *kind = kinds[below(g, 4)];
    const char *text = nd_fmt(g->arena, "%s[%s](%s)", kind, list(g, over), e);
    if (*kind == 's')
        text = nd_fmt(g->arena, "%s / %d", text, elements(g, over));
    assign(g, 'f', axes & ~over, text);
}

/* A layer: a variable times a weight that shares an axis, or two variables. */
static void make_contract(gen *g)
{
    const var *x = some_var(g, 'f', ~0u, 0), *y;
    int r = x ? one_axis(g, reducible(g, x->axes)) : -1;
    if (r < 0)
        return;
    mask over = 1u << r;
    int s = one_axis(g, some_axes(g) & ~x->axes & ~(1u << A_BATCH));
    if (s >= 0 && chance(g, 60)) {
        const char *w = fresh(g, "w");
        indent(g);
        nd_putf(&g->out, "%s = param [%s -> %s] ~ xavier\n", w, pool[r].name,
                pool[s].name);
        remember(g, w, 'f', over | 1u << s);
        y = &g->vars[g->nvars - 1];
    } else {
        y = some_var(g, 'f', ~0u, over);
    }
    mask all = x->axes | y->axes;
    for (int i = 0; i < NAXES; i++)
        if (reducible(g, x->axes & y->axes) >> i & 1 && chance(g, 40))
            over |= 1u << i;
    if (elements(g, all) > 10 * MAX_ELEMENTS ||
        elements(g, all & ~over) > MAX_ELEMENTS ||
        count(all & ~over) > MAX_AXES_OF)
        return;
    assign(g, 'f', all & ~over,
           nd_fmt(g->arena, "tanh(0.%d * sum[%s](%s * %s))", 3 + below(g, 6),
                  list(g, over), x->name, y->name));
}

/* Rows by a computed index, which may be out of range; an input that indexes
 * directly holds legal ids. */
static void make_gather(gen *g)
{
    int a = one_axis(g, some_axes(g));
    if (a < 0 || (a == A_BATCH && !g->joint))
        return;
    const var *v = some_var(g, chance(g, 85) ? 'f' : 'i', ~0u, 1u << a);
    if (!v)
        return;
    mask rest = v->axes & ~(1u << a), axes = 0, within = rest;
    mask more = some_axes(g);
    if (elements(g, rest | more) <= MAX_ELEMENTS &&
        count(rest | more) <= MAX_AXES_OF)
        within |= more;
    const char *i = a == A_VOCAB && within & 1u << A_BATCH && chance(g, 50)
                        ? NULL : expr(g, 'i', within, 1, &axes);
    if (!i) {
        const var *ids = some_var(g, 't', within, 0);
        if (!ids)
            return;
        i = ids->name;
        axes = ids->axes;
    } else if (axes & TENSOR) {
        i = nd_fmt(g->arena, "%s - 1", i);
    } else if (g->depth && chance(g, 50)) {
        i = "index[outer]";
    } else {
        i = nd_fmt(g->arena, "%d", below(g, g->size[a]));
    }
    assign(g, v->cls, rest | axes,
           nd_fmt(g->arena, "%s[%s: %s]", v->name, pool[a].name, i));
}

static void statements(gen *g, int n);

/* `+ 0.01 * index[a] + ...`: brings the axes that a value lacks. */
static const char *widen(gen *g, mask missing)
{
    const char *text = "";
    for (int i = 0; i < NAXES; i++)
        if (missing >> i & 1)
            text = nd_fmt(g->arena, "%s + 0.01 * index[%s]", text,
                          pool[i].name);
    return text;
}

/* Carries h, perhaps k too, which may change places. A value that starts from a
 * literal takes the type that it leaves the body with. */
static void make_repeat(gen *g)
{
    if (g->depth == 2)
        return;
    const char *axis = pool[g->depth ? A_INNER : A_OUTER].name;
    const char *h = fresh(g, "h"), *k = fresh(g, "k");
    const var *start = some_var(g, 'f', ~0u, 0);
    bool literal = !start || chance(g, 25), two = !literal && chance(g, 50);
    mask m = literal ? some_axes(g) : start->axes, axes = 0;
    indent(g);
    nd_putf(&g->out, literal ? "%s = 0\n" : "%s = 0.5 * %s\n", h,
            literal ? "" : start->name);
    if (two) {
        indent(g);
        nd_putf(&g->out, "%s = 0.3\n", k);
    }
    indent(g);
    nd_putf(&g->out, "repeat %s {\n", axis);
    int outside = g->nvars;
    g->depth++;
    if (!literal)
        remember(g, h, 'f', m);
    make_param(g);
    statements(g, 1 + below(g, 4));
    const char *next = tame_expr(g, m, &axes);
    if (two) {
        indent(g);
        nd_putf(&g->out, "%s = 0.5 * %s + 0.1 * %s\n", k, k, h);
    }
    indent(g);
    nd_putf(&g->out, "%s = 0.5 * %s + %s%s\n", h,
            two && chance(g, 50) ? k : h, next,
            widen(g, literal ? m & ~axes : 0));
    g->depth--;
    g->nvars = outside;
    indent(g);
    nd_put(&g->out, "}\n");
    remember(g, h, 'f', m);
    if (two)
        remember(g, k, 'f', m);
}

/* No op of its own: functions of the library, which codegen fuses. */
static void make_library(gen *g)
{
    static const char *const calls[] = {
        "softmax[%s](%s)", "log_softmax[%s](%s)", "layernorm[%s](%s)",
        "rmsnorm[%s](%s)"};
    const var *v = some_var(g, 'f', ~0u, 0);
    int a = v ? one_axis(g, reducible(g, v->axes)) : -1;
    if (a >= 0)
        assign(g, 'f', v->axes,
               nd_fmt(g->arena, calls[below(g, 4)],
                      pool[a].name, v->name));
}

#include "random_shapes.h"

typedef struct maker {
    void (*make)(gen *g);            /* NULL: the op comes without asking */
    int weight;
    bool known, by_passes;           /* by_passes: no program says it */
} maker;

#define MAKER(f, weight) {f, weight, true, false}
#define ELSEWHERE {NULL, 0, true, false}
#define BY_PASSES {NULL, 0, true, true}

static const maker makers[OP_COUNT] = {
    [OP_INPUT] = ELSEWHERE,          /* the model's header */
    [OP_PARAM] = MAKER(make_param, 3),
    [OP_CONST] = ELSEWHERE,          /* leaves of expressions */
    [OP_INDEX] = MAKER(make_index, 1),
    [OP_RANDOM] = MAKER(make_dropout, 1),
    [OP_NORMAL] = MAKER(make_normal, 1),
    [OP_MAP] = MAKER(make_map, 6),
    [OP_CAST] = MAKER(make_cast, 1),
    [OP_STOP_GRAD] = MAKER(make_stop_gradient, 1),
    [OP_RENAME] = MAKER(make_rename, 2),
    [OP_SPLIT] = MAKER(make_split, 1),
    [OP_FLATTEN] = MAKER(make_flatten, 1),
    [OP_CUMSUM] = MAKER(make_cumsum, 1),
    [OP_ROLL] = MAKER(make_roll, 1),
    [OP_BROADCAST] = ELSEWHERE,      /* repeats that start from literals */
    [OP_REDUCE] = MAKER(make_reduce, 3),
    [OP_CONTRACT] = MAKER(make_contract, 4),
    [OP_GROUPED] = BY_PASSES,        /* made of make_grouped's gathers */
    [OP_GROUPED_SUM] = BY_PASSES,
    [OP_DISPATCH] = BY_PASSES,
    [OP_COMBINE] = BY_PASSES,
    [OP_GATHER] = MAKER(make_gather, 3),
    [OP_SCATTER_ADD] = BY_PASSES,
    [OP_REPEAT] = MAKER(make_repeat, 2),
    [OP_ACCUM] = BY_PASSES,
    [OP_OUTPUT] = ELSEWHERE,         /* before the loss */
    [OP_ALL_REDUCE] = BY_PASSES,
    [OP_REDUCE_SCATTER] = BY_PASSES,
    [OP_ALL_GATHER] = BY_PASSES,
    [OP_SHIFT_RING] = BY_PASSES,
    [OP_ALL_TO_ALL] = BY_PASSES,
    [OP_SLICE] = BY_PASSES,
};

enum { LIBRARY_WEIGHT = 2, COMPOSED_WEIGHT = 5 };

static void statements(gen *g, int n)
{
    int total = LIBRARY_WEIGHT + COMPOSED_WEIGHT;
    for (int i = 0; i < OP_COUNT; i++)
        total += makers[i].weight;
    while (n-- > 0) {
        int pick = below(g, total), i = -1;
        if (pick < LIBRARY_WEIGHT) {
            make_library(g);
            continue;
        }
        if ((pick -= LIBRARY_WEIGHT) < COMPOSED_WEIGHT) {
            make_composed(g);
            continue;
        }
        for (pick -= COMPOSED_WEIGHT; pick >= 0;)
            pick -= makers[++i].weight;
        makers[i].make(g);
    }
}

/* ---- a whole program ---------------------------------------------------- */

static void make_axes(gen *g)
{
    static const int sizes[] = {2, 3, 5, 7};
    nd_put(&g->out, "use nn\n");
    for (int i = 0; i < NAXES; i++) {
        g->size[i] = i >= A_OUTER ? 2 + below(g, 3) : sizes[below(g, 4)];
        nd_putf(&g->out, "axis %s = ", pool[i].name);
        if (pool[i].size)
            nd_putf(&g->out, "%s\n", pool[i].size);
        else
            nd_putf(&g->out, "%d\n", g->size[i]);
    }
    g->size[A_VOCAB] = 7;
    g->size[A_COPY_A] = g->size[A_A];
    g->size[A_COPY_B] = g->size[A_B];
    g->size[A_FLAT] = g->size[A_A] * g->size[A_C];
    g->size[A_JOINED] = g->size[A_A] + g->size[A_B];
}

static void make_inputs(gen *g)
{
    int floats = 1 + below(g, 2), ints = 1 + below(g, 2);
    for (int i = 0; i < floats + ints; i++) {
        const char *name = fresh(g, i < floats ? "x" : "t");
        mask m = some_axes(g) | 1u << A_BATCH;
        while (elements(g, m) > MAX_ELEMENTS || count(m) > 3)
            m = some_axes(g) | 1u << A_BATCH;
        nd_putf(&g->out, "%s%s: %s[%s]", i ? ", " : "", name,
                i < floats ? "f32" : "i32", list(g, m));
        remember(g, name, i < floats ? 'f' : 'i', m);
        if (i >= floats)             /* legal ids of `vocab` */
            remember(g, name, 't', m);
    }
}

/* Means of the last variables and of some others. What lacks the batch meets an
 * input, so that the loss stays a sum over samples. */
static void make_loss(gen *g)
{
    const char *input = g->vars[0].name;
    nd_buf b = {.arena = g->arena};
    for (int i = g->nvars - 1, n = 0; i >= 0; i--) {
        const var *v = &g->vars[i];
        mask all = v->axes | g->vars[0].axes;
        bool own = v->axes >> A_BATCH & 1 || g->joint;
        if (v->cls != 'f' || (n >= 3 && !chance(g, 30)) ||
            (!own && elements(g, all) > 10 * MAX_ELEMENTS))
            continue;
        const char *with = !own ? input : chance(g, 50) ? v->name : "0.7";
        if (own)
            all = v->axes;
        nd_putf(&b, all ? "%smean[%s](%s * %s)" : "%s%s(%s * %s)",
                n ? " + " : "", list(g, all), v->name, with);
        if (n++ == 0 && chance(g, 50))
            nd_putf(&g->out, "  output %s\n", v->name);
    }
    const var *w = &g->vars[0];      /* a program trains something */
    while (w < g->vars + g->nvars - 1 && w->name[0] != 'w')
        w++;
    nd_putf(&b, " + mean[%s](%s * %s)", list(g, w->axes | g->vars[0].axes),
            w->name, input);
    nd_putf(&g->out, "  return %s\n}\n", b.s);
}

/* How parameters, gradients or state are stored, over what cuts the batch. */
static void make_zero(gen *g, const char *to)
{
    static const char *const scope[] = {"params", "grads", "optimizer"};
    const var *w = &g->vars[0];
    int level = below(g, 6), axis;
    while (w < g->vars + g->nvars - 1 && w->name[0] != 'w')
        w++;
    axis = one_axis(g, w->axes);
    if (level < 3)
        nd_putf(&g->out, "  zero %d over %.*s\n", level + 1,
                (int)strcspn(to + (*to == '('), ")"), to + (*to == '('));
    else if (w->name[0] == 'w' && axis >= 0)
        nd_putf(&g->out, "  shard %s %s -> %s\n", scope[level - 3],
                pool[axis].name, to);
}

static void make_plan(gen *g, int k)
{
    static const char *const to[] = {"x", "y", "(x, y)", "(y, x)"};
    const char *batch = NULL;
    int x = 2 + below(g, 2), y = 1 + below(g, 3), rules = 0;
    int micro = below(g, 3) + 1;
    bool f1b = chance(g, 50), zero = chance(g, 50), block = chance(g, 30);
    nd_putf(&g->out, "plan {\n  mesh %sx = %d, y = %d\n",
            k == 1 ? "pp = 2, " : "", x, y);
    for (int i = 0; i < NAXES; i++)
        if (pool[i].value && chance(g, i == A_BATCH ? 70 : 40)) {
            const char *mesh = to[below(g, 4)];
            batch = i == A_BATCH ? mesh : batch;
            nd_putf(&g->out, "%s %s -> %s", rules++ ? "," : "  shard",
                    pool[i].name, mesh);
        }
    nd_put(&g->out, rules ? "\n" : "");
    if (k == 1)
        nd_putf(&g->out, "  pipeline outer -> pp, schedule = %s, "
                "microbatches = %d\n", f1b ? "1f1b" : "gpipe", micro);
    else if (k == 2)
        nd_putf(&g->out, "  microbatches %d\n", micro);
    if (zero && batch)
        make_zero(g, batch);
    if (block)
        nd_put(&g->out, "  recompute block\n");
    nd_put(&g->out, "}\n");
}

static const char *program(nd_arena *a, uint64_t seed, int plan)
{
    gen g = {.arena = a, .out = {.arena = a}, .state = seed * 7919};
    g.joint = chance(&g, 25);
    make_axes(&g);
    nd_put(&g.out, "model m(");
    make_inputs(&g);
    nd_put(&g.out, ") {\n");
    int inputs = g.nvars;
    while (g.nvars < inputs + 2)
        make_param(&g);
    statements(&g, 5 + below(&g, 12));
    make_repeat(&g);
    statements(&g, below(&g, 6));
    make_loss(&g);
    if (plan)
        make_plan(&g, plan);
    return g.out.s;
}

/* ---- is everything made? ------------------------------------------------ */

static bool knows_table(void)
{
    const char *row = ew_without_form();
    for (int i = 0; i < OP_COUNT && !row; i++)
        if (!makers[i].known)
            row = nd_ops[i].name;
    if (row)
        fprintf(stderr, "nd_random: no program would have `%s`: it needs a "
                "form in nd_forms.h or a maker in nd_random.c\n", row);
    return !row;
}

typedef struct seen {
    int op[OP_COUNT], ew[EW_COUNT];
} seen;

static void see(nd_op *op, void *user)
{
    seen *s = user;
    s->op[op->kind]++;
    if (op->kind == OP_MAP)
        s->ew[op->sub]++;
}

static void only_errors(void *user, nd_severity s, const char *text)
{
    (void)user;
    if (s == ND_ERROR)
        fputs(text, stderr);
}

static int coverage(int n)
{
    seen s = {0};
    int bad = 0;
    for (int seed = 1; seed <= n; seed++) {
        nd_ctx *c = nd_ctx_new();
        c->sink = only_errors;
        const char *text = program(c->arena, (uint64_t)seed, 0);
        nd_front_options o = {.sealed = true};
        nd_module *m = nd_frontend(c, nd_add_file(c, "random.nd", text,
                                                  strlen(text)), &o);
        if (m)
            nd_walk(m->step, see, &s);
        else
            fprintf(stderr, "nd_random: program %d is refused\n", seed);
        bad += !m;
        nd_ctx_free(c);
    }
    for (int i = 0; i < OP_COUNT; i++)
        if (!s.op[i] && !makers[i].by_passes) {
            fprintf(stderr, "nd_random: no program has `%s`\n",
                    nd_ops[i].name);
            bad++;
        }
    for (int i = 0; i < EW_COUNT; i++)
        if (!s.ew[i]) {
            fprintf(stderr, "nd_random: no program has `%s`\n",
                    nd_ews[i].name);
            bad++;
        }
    return bad != 0;
}

int main(int argc, char **argv)
{
    int seed = 0, plan = 0, cover = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            seed = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--plan") == 0)
            plan = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--coverage") == 0)
            cover = atoi(argv[i + 1]);
    }
    if (!knows_table() || (seed < 1 && cover < 1))
        return 2;
    if (cover)
        return coverage(cover);
    nd_arena *a = nd_arena_new();
    fputs(program(a, (uint64_t)seed, plan), stdout);
    nd_arena_free(a);
    return 0;
}
