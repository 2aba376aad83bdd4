/* random_shapes.h - makers of nd_random.c that regroup, build and move along
 * axes. `flat` has the positions of `a` times those of `c`, `joined` those of
 * `a` and `b` one behind the other.
 */
#ifndef RANDOM_SHAPES_H
#define RANDOM_SHAPES_H

/* split[flat -> a, c] of a variable or, if none has the axis, of its index. */
static void make_split(gen *g)
{
    mask flat = 1u << A_FLAT, parts = 1u << A_A | 1u << A_C;
    const var *v = some_var(g, 'f', ~parts, flat);
    assign(g, v ? 'f' : 'i', ((v ? v->axes : flat) & ~flat) | parts,
           nd_fmt(g->arena, "split[flat -> a, c](%s)",
                  v ? v->name : "index[flat]"));
}

static void make_flatten(gen *g)
{
    mask flat = 1u << A_FLAT, parts = 1u << A_A | 1u << A_C;
    const var *v = some_var(g, 'f', ~flat, parts);
    if (v)
        assign(g, 'f', (v->axes & ~parts) | flat,
               nd_fmt(g->arena, "flatten[a, c -> flat](%s)", v->name));
}

static void make_cumsum(gen *g)
{
    const var *v = some_var(g, 'f', ~0u, 0);
    int a = v ? one_axis(g, reducible(g, v->axes)) : -1;
    if (a >= 0)
        assign(g, 'f', v->axes,
               nd_fmt(g->arena, "tanh(0.5 * cumsum[%s](%s))", pool[a].name,
                      v->name));
}

static void make_roll(gen *g)
{
    const var *v = some_var(g, chance(g, 80) ? 'f' : 'i', ~0u, 0);
    int a = v ? one_axis(g, reducible(g, v->axes)) : -1;
    if (a >= 0)
        assign(g, v->cls, v->axes,
               nd_fmt(g->arena, "roll[%s: %d](%s)", pool[a].name,
                      below(g, 9) - 4, v->name));
}

static void make_normal(gen *g)
{
    mask m = some_axes(g);
    if (m)
        assign(g, 'f', m, nd_fmt(g->arena, "0.5 * random_normal[%s]",
                                 list(g, m)));
}

static void make_shift(gen *g)
{
    const var *v = some_var(g, chance(g, 80) ? 'f' : 'i', ~0u, 0);
    int a = v ? one_axis(g, reducible(g, v->axes)) : -1;
    if (a >= 0)
        assign(g, v->cls, v->axes,
               nd_fmt(g->arena, "shift[%s: %d](%s)", pool[a].name,
                      below(g, 5) - 2, v->name));
}

static void make_concat(gen *g)
{
    mask a = 1u << A_A, b = 1u << A_B, joined = 1u << A_JOINED;
    const var *x = some_var(g, 'f', ~(joined | b), a);
    const var *y = some_var(g, 'f', ~(joined | a), b);
    if (!x || !y)
        return;
    mask all = (x->axes & ~a) | (y->axes & ~b) | joined;
    if (elements(g, all) <= MAX_ELEMENTS && count(all) <= MAX_AXES_OF)
        assign(g, 'f', all, nd_fmt(g->arena, "concat[a, b -> joined](%s, %s)",
                                   x->name, y->name));
}

static void make_part(gen *g)
{
    bool head = chance(g, 50);
    mask part = head ? 1u << A_A : 1u << A_B, joined = 1u << A_JOINED;
    const var *v = some_var(g, 'f', ~part, joined);
    if (v)
        assign(g, 'f', (v->axes & ~joined) | part,
               nd_fmt(g->arena, head ? "%s[joined -> a: 0..a]"
                                     : "%s[joined -> b: a..joined]", v->name));
}

static void make_stack(gen *g)
{
    mask m = some_axes(g) & ~(1u << A_C), axes = 0;
    nd_buf b = {.arena = g->arena};
    if (elements(g, m | 1u << A_C) > MAX_ELEMENTS || count(m) == MAX_AXES_OF)
        return;
    for (int i = 0; i < g->size[A_C]; i++)
        nd_putf(&b, "%s%s", i ? ", " : "", tame_expr(g, m, &axes));
    assign(g, 'f', axes | 1u << A_C, nd_fmt(g->arena, "stack[c](%s)", b.s));
}

static void make_one_hot(gen *g)
{
    mask m = some_axes(g) & ~(1u << A_B), axes = 0;
    if (elements(g, m | 1u << A_B) > MAX_ELEMENTS || count(m) == MAX_AXES_OF)
        return;
    const char *e = expr(g, 'i', m, 1, &axes);
    assign(g, 'f', axes | 1u << A_B, nd_fmt(g->arena, "one_hot[b](%s)", e));
}

static void make_argmax(gen *g)
{
    const var *v = some_var(g, 'f', ~0u, 0);
    int a = v ? one_axis(g, reducible(g, v->axes)) : -1;
    if (a >= 0)
        assign(g, 'i', v->axes & ~(1u << a),
               nd_fmt(g->arena, "argmax[%s](%s)", pool[a].name, v->name));
}

/* The values, and where they stood. `vocab` is never shorter than `b`. */
static void make_top_k(gen *g)
{
    mask from = 1u << A_VOCAB, to = 1u << A_B;
    const var *v = some_var(g, 'f', ~to, from);
    if (!v)
        return;
    const char *x = fresh(g, "v"), *i = fresh(g, "n");
    mask axes = (v->axes & ~from) | to;
    indent(g);
    nd_putf(&g->out, "%s, %s = top_k[vocab -> b](%s)\n", x, i, v->name);
    remember(g, x, 'f', axes);
    remember(g, i, 'i', axes);
}

/* Rows that choose their weight, and some that choose none. */
static void make_grouped(gen *g)
{
    mask rows = 1u << A_BATCH | 1u << A_A | 1u << A_C, in = 1u << A_B;
    mask groups = 1u << A_VOCAB, out = 1u << A_COPY_B, slot = 1u << A_COPY_A;
    const var *v = some_var(g, 'f', rows | in, in);
    if (!v || !(v->axes & rows))
        return;
    mask ids = v->axes & rows, axes = 0;
    if (chance(g, 50) && elements(g, ids | slot | out) <= MAX_ELEMENTS)
        ids |= slot;
    nd_buf e = {.arena = g->arena};
    nd_putf(&e, "%s", expr(g, 'i', ids, 1, &axes));
    for (int i = 0; i < NAXES; i++)
        if (ids >> i & 1)
            nd_putf(&e, " + index[%s]", pool[i].name);
    const char *w = fresh(g, "w"), *n = fresh(g, "n");
    indent(g);
    nd_putf(&g->out, "%s = (%s) %% 9 - 1\n", n, e.s);
    indent(g);
    nd_putf(&g->out, "%s = param [%s] ~ normal(0.5)\n", w,
            list(g, groups | in | out));
    assign(g, 'f', ids | out,
           nd_fmt(g->arena, "tanh(0.6 * sum[b](%s * %s[vocab: %s]))", v->name,
                  w, n));
}

/* What becomes other ops. */
static void make_composed(gen *g)
{
    static void (*const makers_of[])(gen *) = {
        make_shift, make_concat, make_part, make_stack, make_one_hot,
        make_argmax, make_top_k, make_grouped,
    };
    makers_of[below(g, sizeof makers_of / sizeof *makers_of)](g);
}

#endif
