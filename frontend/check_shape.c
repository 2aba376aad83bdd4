/* check_shape.c - built-in functions that regroup, build and move along axes.
 *
 *   split[head -> half, two](x)    %y = split [head -> half, two] %x
 *   shift[seq: 1](x)               %y = gather [seq] %x, index[seq] - 1
 *   concat[a, b -> c](x, y)        where(index[c] < a, x[a: index[c]], ...)
 *   v, i = top_k[expert -> slot](x)
 *
 * Most are indexing, comparisons and sums, so that their gradients, cuts and
 * kernels follow from those of a few ops.
 */
#include "frontend.h"

#include <math.h>
#include <string.h>

/* ---- reading calls ------------------------------------------------------- */

/* `form` is how the call is written; what is wrong is said where the brackets
 * tell. */
static bool bad_form(ck *c, const ast_expr *e, const char *form)
{
    const ast_brk *brk = e->kind == E_INDEX ? e->brk
                         : e->a->kind == E_INDEX ? e->a->brk : NULL;
    bool arrow = strstr(form, "->") != NULL;
    const char *why = !brk ? "the axes are missing: "
                      : arrow && !brk->right ? "the arrow is missing: "
                      : !arrow && brk->right ? "there is no arrow here: " : "";
    ck_error(c, e->loc, "%sthis is written %s", why, form);
    return false;
}

/* "3 values", "1 axis" */
static const char *count(ck *c, int n, const char *one, const char *many)
{
    return nd_fmt(c->ctx->arena, "%d %s", n, n == 1 ? one : many);
}

static bool bad_side(ck *c, const ast_expr *e, const char *form, int n,
                     const char *side)
{
    ck_error(c, e->a->brk->loc, "%s %s of the arrow: this is written %s",
             count(c, n, "axis", "axes"), side, form);
    return false;
}

/* The only argument, as a tensor with the axes; dtype is kept. */
static bool tensor_arg(ck *c, ast_expr *e, const ck_axes *ax, const char *form,
                       ck_val *x)
{
    if (e->args->n != 1) {
        ck_error(c, e->loc, "%s: this is written %s",
                 count(c, e->args->n, "value", "values"), form);
        return false;
    }
    if (e->args->v[0].name.s)
        return bad_form(c, e, form);
    *x = ck_expr(c, e->args->v[0].e);
    if (!ck_is_value(c, e->args->v[0].e->loc, *x) || !ck_has_axes(c, *x, ax))
        return false;
    ck_at(c, e->loc);
    return true;
}

static bool lacks_axis(ck *c, nd_loc at, ck_val x, nd_axis *a)
{
    if (x.kind != VAL_TENSOR || nd_axis_at(&x.v->type, a) < 0)
        return true;
    ck_error(c, at, "the value already has an axis `%s`: %s", a->name,
             ck_type(c, &x.v->type));
    ck_note(c, a->loc, "`%s` is declared here", a->name);
    return false;
}

static bool room_for(ck *c, nd_loc at, ck_val x, int extra)
{
    if (x.kind != VAL_TENSOR || x.v->type.rank + extra <= ND_MAX_RANK)
        return true;
    ck_error(c, at, "more than %d axes", ND_MAX_RANK);
    return false;
}

/* [from -> to] with that many axes on each side; 0: any number but none. */
static bool two_sides(ck *c, ast_expr *e, ast_brk *brk, int nfrom, int nto,
                      const char *form, ck_axes *from, ck_axes *to)
{
    if (!brk || !brk->right)
        return bad_form(c, e, form);
    if (!ck_bracket(c, brk->left, from) || !ck_bracket(c, brk->right, to))
        return false;
    if (!from->n || (nfrom && from->n != nfrom))
        return bad_side(c, e, form, from->n, "left");
    if (!to->n || (nto && to->n != nto))
        return bad_side(c, e, form, to->n, "right");
    return true;
}

static bool one_side(ck *c, ast_expr *e, ast_brk *brk, const char *form,
                     ck_axes *ax)
{
    if (!brk || brk->right || !brk->left->n)
        return bad_form(c, e, form);
    return ck_bracket(c, brk->left, ax);
}

/* ---- small graphs -------------------------------------------------------- */

static nd_value *number(ck *c, int64_t i)
{
    return nd_const(&c->b, ND_I32, (double)i);
}

/* x[a: index[b] - by], and b in the place of a. */
static nd_value *moved(ck *c, nd_value *x, nd_axis *a, nd_axis *b, int64_t by)
{
    nd_value *at = nd_positions(&c->b, b);
    if (by)
        at = nd_map(&c->b, EW_SUB, at, number(c, by), NULL);
    return nd_gather(&c->b, x, a, at);
}

/* The row-major index over the axes. */
static nd_value *joint_index(ck *c, const ck_axes *ax)
{
    nd_value *at = NULL;
    for (int i = 0; i < ax->n; i++) {
        nd_value *x = nd_positions(&c->b, ax->a[i]);
        if (at)
            x = nd_map(&c->b, EW_ADD,
                       nd_map(&c->b, EW_MUL, at, number(c, ax->a[i]->size),
                              NULL), x, NULL);
        at = x;
    }
    return at;
}

/* ---- regrouping ---------------------------------------------------------- */

static bool sizes_agree(ck *c, nd_loc at, nd_axis *whole, const ck_axes *part)
{
    int64_t n;
    if (ck_count(part->n, part->a, &n) && n == whole->size)
        return true;
    if (ck_any_unsized(c, 1, &whole) || ck_any_unsized(c, part->n, part->a))
        return false;
    ck_error(c, at, "`%s` has the size %lld, its parts have %lld",
             whole->name, (long long)whole->size, (long long)n);
    ck_note(c, whole->loc, "`%s` is declared here", whole->name);
    for (int i = 0; i < part->n; i++)
        ck_note(c, part->a[i]->loc, "`%s` of size %lld is declared here",
                part->a[i]->name, (long long)part->a[i]->size);
    return false;
}

static ck_val split_axis(ck *c, ast_expr *e, ast_brk *brk)
{
    static const char form[] = "split[a -> b, c](x)";
    ck_axes from, to;
    ck_val x;
    if (!two_sides(c, e, brk, 1, 0, form, &from, &to) ||
        !tensor_arg(c, e, &from, form, &x) ||
        !sizes_agree(c, brk->loc, from.a[0], &to) ||
        !room_for(c, e->loc, x, to.n - 1))
        return ck_bad();
    for (int i = 0; i < to.n; i++)
        if (!lacks_axis(c, to.at[i], x, to.a[i]))
            return ck_bad();
    ck_val r = ck_tensor(nd_split(&c->b, x.v, from.a[0], to.n, to.a));
    r.idx = x.idx;
    r.gone = ck_lose(c, x.gone, from.a[0], ck_place(c, e->loc), "split");
    return r;
}

static ck_val flatten_axes(ck *c, ast_expr *e, ast_brk *brk)
{
    static const char form[] = "flatten[b, c -> a](x)";
    ck_axes from, to;
    ck_val x;
    if (!two_sides(c, e, brk, 0, 1, form, &from, &to) ||
        !tensor_arg(c, e, &from, form, &x) ||
        !sizes_agree(c, brk->loc, to.a[0], &from) ||
        !lacks_axis(c, to.at[0], x, to.a[0]))
        return ck_bad();
    ck_val r = ck_tensor(nd_flatten(&c->b, x.v, from.n, from.a, to.a[0]));
    r.idx = x.idx;
    r.gone = x.gone;
    for (int i = 0; i < from.n; i++)
        r.gone = ck_lose(c, r.gone, from.a[i], ck_place(c, e->loc),
                         "flattened");
    return r;
}

/* ---- building ------------------------------------------------------------ */

/* All arguments in their common dtype `t`, as tensors to compute with. */
static nd_value **parts(ck *c, ast_expr *e, int n, ck_val *x, nd_dtype *common)
{
    nd_value **v = ND_NEWN(c->ctx->arena, nd_value *, n);
    nd_dtype t = ND_BOOL;
    for (int i = 0; i < n; i++) {
        ast_arg *a = &e->args->v[i];
        x[i] = a->name.s ? ck_bad() : ck_expr(c, a->e);
        if (a->name.s)
            ck_error(c, a->name.loc, "this takes values without names");
        if (!ck_is_value(c, a->e->loc, x[i]))
            return NULL;
    }
    ck_val all = x[0];
    for (int i = 0; i < n; i++) {
        if (!ck_common(c, e->args->v[i].e->loc, all, x[i], &t))
            return NULL;
        if (ck_dtype(x[i]) == t && x[i].kind == VAL_TENSOR)
            all = x[i];
        else if (all.kind == VAL_CONST)
            all.dtype = t;
    }
    ck_at(c, e->loc);
    *common = t;
    for (int i = 0; i < n; i++)
        if (!(v[i] = ck_strong(c, ck_widen(c, x[i]), nd_is_narrow(t) ? ND_F32
                                                                     : t)))
            return NULL;
    return v;
}

static ck_val collected(ck *c, nd_value *v, nd_dtype t, int n, const ck_val *x)
{
    ck_val r = ck_narrow(c, ck_tensor(v), t);
    r.idx = true;
    for (int i = 0; i < n; i++) {
        r.idx &= x[i].idx;
        r.gone = ck_merge(c, r.gone, x[i].gone);
    }
    return r;
}

/* where(index[a] == 0, x, where(index[a] == 1, y, ...)) */
static ck_val stack_values(ck *c, ast_expr *e, ast_brk *brk)
{
    static const char form[] = "stack[a](x, y, ...)";
    ck_axes ax;
    int n = e->args->n;
    if (!one_side(c, e, brk, form, &ax))
        return ck_bad();
    if (ax.n != 1 || !n) {
        bad_form(c, e, form);
        return ck_bad();
    }
    if (ck_any_unsized(c, 1, ax.a))
        return ck_bad();
    if (ax.a[0]->size != n) {
        ck_error(c, e->loc, "`%s` has the size %lld, here %s %s",
                 ax.a[0]->name, (long long)ax.a[0]->size,
                 n == 1 ? "is" : "are", count(c, n, "value", "values"));
        ck_note(c, ax.a[0]->loc, "`%s` is declared here", ax.a[0]->name);
        return ck_bad();
    }
    ck_val *x = ND_NEWN(c->ctx->arena, ck_val, n);
    nd_dtype t;
    nd_value **v = parts(c, e, n, x, &t);
    for (int i = 0; v && i < n; i++)
        if (!lacks_axis(c, e->args->v[i].e->loc, x[i], ax.a[0]) ||
            !room_for(c, e->loc, x[i], 1))
            return ck_bad();
    if (!v)
        return ck_bad();
    nd_value *at = nd_positions(&c->b, ax.a[0]), *r = v[n - 1];
    for (int i = n - 2; i >= 0; i--)
        r = nd_map(&c->b, EW_WHERE,
                   nd_map(&c->b, EW_EQ, at, number(c, i), NULL), v[i], r);
    if (r && nd_axis_at(&r->type, ax.a[0]) < 0) {        /* of one value */
        nd_type like = r->type;
        like.axis[like.rank++] = ax.a[0];
        r = nd_broadcast(&c->b, r, &like);
    }
    return collected(c, r, t, n, x);
}

/* The axes of the left side, where one may stand twice. */
static bool concat_axes(ck *c, ast_expr *e, const ast_items *items,
                        nd_axis **out)
{
    for (int i = 0; i < items->n; i++) {
        ast_items one = {&items->v[i], 1, 1};
        ck_axes ax;
        if (!ck_bracket(c, &one, &ax))
            return false;
        if (ax.n != 1)
            return bad_form(c, e, "concat[a, b -> c](x, y)");
        out[i] = ax.a[0];
    }
    return true;
}

static bool concat_fits(ck *c, ast_expr *e, nd_axis *const *from, int n,
                        nd_axis *to, const ck_val *x)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        nd_loc at = e->a->brk->left->v[i].name.loc;
        ck_axes ax = {.n = 1, .a = {from[i]}, .at = {at},
                      .src = {ck_find_bind(c, e->a->brk->left->v[i].name.s)}};
        sum += from[i]->size;
        if (!ck_has_axes(c, x[i], &ax) ||
            !lacks_axis(c, e->args->v[i].e->loc, x[i], to))
            return false;
    }
    if (sum == to->size)
        return true;
    if (ck_any_unsized(c, 1, &to) || ck_any_unsized(c, n, from))
        return false;
    ck_error(c, e->a->brk->loc, "`%s` has the size %lld, its parts have %lld",
             to->name, (long long)to->size, (long long)sum);
    ck_note(c, to->loc, "`%s` is declared here", to->name);
    return false;
}

/* where(index[c] < end of x, x[a: index[c]], ...), the last part last. */
static ck_val concat_values(ck *c, ast_expr *e, ast_brk *brk)
{
    static const char form[] = "concat[a, b -> c](x, y)";
    ck_axes to;
    int n = e->args->n;
    nd_axis **from = ND_NEWN(c->ctx->arena, nd_axis *, n + 1);
    if (!brk || !brk->right) {
        bad_form(c, e, form);
        return ck_bad();
    }
    if (brk->left->n != n) {
        ck_error(c, e->loc, "%s left of the arrow for %s: this is written %s",
                 count(c, brk->left->n, "axis", "axes"),
                 count(c, n, "value", "values"), form);
        return ck_bad();
    }
    ck_val *x = ND_NEWN(c->ctx->arena, ck_val, n);
    if (!concat_axes(c, e, brk->left, from) ||
        !ck_bracket(c, brk->right, &to))
        return ck_bad();
    if (to.n != 1) {
        bad_side(c, e, form, to.n, "right");
        return ck_bad();
    }
    nd_dtype t;
    nd_value **v = parts(c, e, n, x, &t);
    if (!v || !concat_fits(c, e, from, n, to.a[0], x))
        return ck_bad();
    int64_t start = to.a[0]->size - from[n - 1]->size;
    nd_value *r = moved(c, v[n - 1], from[n - 1], to.a[0], start);
    for (int i = n - 2; i >= 0; i--) {
        nd_value *end = number(c, start);
        start -= from[i]->size;
        nd_value *here = nd_map(&c->b, EW_LT, nd_positions(&c->b, to.a[0]), end,
                                NULL);
        r = nd_map(&c->b, EW_WHERE, here,
                   moved(c, v[i], from[i], to.a[0], start), r);
    }
    ck_val all = collected(c, r, t, n, x);
    for (int i = 0; i < n && all.kind == VAL_TENSOR; i++)
        all.gone = ck_lose(c, all.gone, from[i], ck_place(c, e->loc),
                           "concatenated");
    return all;
}

static ck_val one_hot(ck *c, ast_expr *e, ast_brk *brk)
{
    static const char form[] = "one_hot[a](i)";
    ck_axes ax;
    if (!one_side(c, e, brk, form, &ax))
        return ck_bad();
    if (ax.n != 1 || e->args->n != 1 || e->args->v[0].name.s) {
        bad_form(c, e, form);
        return ck_bad();
    }
    ck_val i = ck_expr(c, e->args->v[0].e);
    if (!ck_is_value(c, e->args->v[0].e->loc, i) ||
        !lacks_axis(c, e->loc, i, ax.a[0]) || !room_for(c, e->loc, i, 1))
        return ck_bad();
    if (ck_class(ck_dtype(i)) != 1) {
        ck_error(c, e->args->v[0].e->loc, "an index is an integer, this is %s",
                 nd_dtype_name(ck_dtype(i)));
        return ck_bad();
    }
    ck_at(c, e->loc);
    nd_value *hit = nd_map(&c->b, EW_EQ, ck_strong(c, i, ND_I32),
                           nd_positions(&c->b, ax.a[0]), NULL);
    ck_val r = ck_tensor(nd_cast(&c->b, hit, ND_F32));
    r.idx = i.idx;
    r.gone = i.gone;
    return r;
}

/* ---- moving along an axis ------------------------------------------------ */

/* f[a: n](x): the axis, the number and the value. */
static bool along(ck *c, ast_expr *e, ast_brk *brk, const char *name,
                  ck_axes *ax, double *by, ck_val *x)
{
    const char *form = nd_fmt(c->ctx->arena, "%s[a: n](x)", name);
    if (!brk || brk->right || brk->left->n != 1 || !brk->left->v[0].lo ||
        brk->left->v[0].hi) {
        bad_form(c, e, form);
        return false;
    }
    const ast_item *it = &brk->left->v[0];
    ast_items one = {(ast_item[]){{it->name, NULL, NULL}}, 1, 1};
    if (!ck_bracket(c, &one, ax) || !ck_cfg_num(c, it->lo, by))
        return false;
    if (ax->n != 1 || !(fabs(*by) < 0x1p31) || *by != floor(*by)) {
        bad_form(c, e, nd_fmt(c->ctx->arena, "%s, with one axis and an integer",
                              form));
        return false;
    }
    return tensor_arg(c, e, ax, form, x);
}

/* y[i] = x[i - n], and 0 where x has nothing. */
static ck_val shift_along(ck *c, ast_expr *e, ast_brk *brk)
{
    ck_axes ax;
    ck_val x;
    double by;
    if (!along(c, e, brk, "shift", &ax, &by, &x))
        return ck_bad();
    nd_axis *other = nd_axis_twin(c->m, ax.a[0]);
    ck_val r = x;
    r.v = nd_rename(&c->b, moved(c, x.v, ax.a[0], other, (int64_t)by), other,
                    ax.a[0]);
    return r.v ? r : ck_bad();
}

/* y[i] = x[(i - n) mod size]. */
static ck_val roll_along(ck *c, ast_expr *e, ast_brk *brk)
{
    ck_axes ax;
    ck_val x;
    double by;
    if (!along(c, e, brk, "roll", &ax, &by, &x) ||
        ck_any_unsized(c, 1, ax.a))
        return ck_bad();
    ck_val r = x;
    r.v = nd_roll(&c->b, x.v, ax.a[0], -(int64_t)by);
    return r.v ? r : ck_bad();
}

/* One entry of x[a -> b: p..q]. */
static ck_val slice_one(ck *c, ast_expr *e, ck_val x, ast_name from,
                        const ast_item *to)
{
    ck_axes a, b;
    ast_items left = {(ast_item[]){{from, NULL, NULL}}, 1, 1};
    ast_items right = {(ast_item[]){{to->name, NULL, NULL}}, 1, 1};
    int64_t lo, hi;
    if (!ck_bracket(c, &left, &a) || !ck_bracket(c, &right, &b) ||
        !ck_axis_size(c, to->lo, &lo) || !ck_axis_size(c, to->hi, &hi))
        return ck_bad();
    if (a.n != 1 || b.n != 1) {
        bad_form(c, e, "x[a -> b: p..q]");
        return ck_bad();
    }
    if (!ck_has_axes(c, x, &a) || !lacks_axis(c, to->name.loc, x, b.a[0]))
        return ck_bad();
    if (ck_any_unsized(c, 1, a.a) || ck_any_unsized(c, 1, b.a))
        return ck_bad();
    if (lo < 0 || hi > a.a[0]->size || lo > hi) {
        ck_error(c, to->lo->loc, "%lld..%lld is not inside the axis `%s` of "
                 "size %lld", (long long)lo, (long long)hi, a.a[0]->name,
                 (long long)a.a[0]->size);
        return ck_bad();
    }
    if (hi - lo != b.a[0]->size) {
        ck_error(c, to->name.loc, "`%s` has the size %lld, %lld..%lld has "
                 "%lld", b.a[0]->name, (long long)b.a[0]->size, (long long)lo,
                 (long long)hi, (long long)(hi - lo));
        ck_note(c, b.a[0]->loc, "`%s` is declared here", b.a[0]->name);
        return ck_bad();
    }
    ck_at(c, e->loc);
    ck_val r = ck_tensor(moved(c, x.v, a.a[0], b.a[0], -lo));
    r.idx = x.idx;
    r.gone = ck_lose(c, x.gone, a.a[0], ck_place(c, e->loc), "sliced");
    return r;
}

ck_val ck_slice(ck *c, ast_expr *e, ck_val x)
{
    const ast_items *l = e->brk->left, *r = e->brk->right;
    bool fits = l->n == r->n;
    for (int i = 0; fits && i < l->n; i++)
        fits = !l->v[i].lo && r->v[i].lo && r->v[i].hi;
    if (!fits) {
        bad_form(c, e, "x[a -> b: p..q]");
        return ck_bad();
    }
    for (int i = 0; i < l->n && x.kind == VAL_TENSOR; i++)
        x = slice_one(c, e, x, l->v[i].name, &r->v[i]);
    return x;
}

static ck_val running_sum(ck *c, ast_expr *e, ast_brk *brk)
{
    static const char form[] = "cumsum[axes](x)";
    ck_axes ax;
    ck_val x;
    if (!one_side(c, e, brk, form, &ax) || !tensor_arg(c, e, &ax, form, &x))
        return ck_bad();
    ck_val r = ck_widen(c, x);
    if (r.v && r.v->type.dtype == ND_BOOL)
        r.v = nd_cast(&c->b, r.v, ND_I32);
    for (int i = 0; i < ax.n; i++)
        r.v = nd_cumsum(&c->b, r.v, ax.a[i], false);
    return r.v ? ck_narrow(c, r, ck_dtype(x)) : ck_bad();
}

/* ---- selection ----------------------------------------------------------- */

/* The greatest of minus the index among those that attain the maximum. */
static ck_val first_of_max(ck *c, ast_expr *e, ast_brk *brk)
{
    static const char form[] = "argmax[axes](x)";
    ck_axes ax;
    ck_val x;
    int64_t n;
    if (!one_side(c, e, brk, form, &ax) || !tensor_arg(c, e, &ax, form, &x))
        return ck_bad();
    if (!ck_count(ax.n, ax.a, &n) || n > INT32_MAX) {
        ck_error(c, e->loc, "more than %d positions", INT32_MAX);
        return ck_bad();
    }
    nd_value *v = nd_stop_gradient(&c->b, ck_widen(c, x).v);
    if (v && v->type.dtype == ND_BOOL)
        v = nd_cast(&c->b, v, ND_I32);
    nd_value *most = nd_reduce(&c->b, RED_MAX, v, ax.n, ax.a);
    nd_value *hit = nd_map(&c->b, EW_EQ, v, most, NULL);
    nd_value *back = nd_map(&c->b, EW_NEG, joint_index(c, &ax), NULL, NULL);
    nd_value *best = nd_reduce(&c->b, RED_MAX,
                               nd_map(&c->b, EW_WHERE, hit, back,
                                      number(c, 1 - n)), ax.n, ax.a);
    ck_val r = ck_tensor(nd_map(&c->b, EW_NEG, best, NULL, NULL));
    r.idx = x.idx;
    r.gone = x.gone;
    for (int k = 0; k < ax.n; k++)
        r.gone = ck_lose(c, r.gone, ax.a[k], ck_place(c, e->loc),
                         "reduced away");
    return r;
}

/* How many are before x: greater, or equal with a lower index. */
static nd_value *rank_along(ck *c, nd_value *x, nd_axis *a)
{
    nd_builder *b = &c->b;
    nd_axis *other = nd_axis_twin(c->m, a);
    nd_value *v = nd_stop_gradient(b, x), *w = nd_rename(b, v, a, other);
    nd_value *lower = nd_map(b, EW_LT, nd_positions(b, other),
                             nd_positions(b, a), NULL);
    nd_value *tie = nd_map(b, EW_AND, nd_map(b, EW_EQ, w, v, NULL), lower,
                           NULL);
    nd_value *before = nd_map(b, EW_OR, nd_map(b, EW_LT, v, w, NULL), tie,
                              NULL);
    return nd_reduce(b, RED_SUM, nd_cast(b, before, ND_I32), 1, &other);
}

/* The values by descending size and where they stood. */
static ck_val top_of(ck *c, ast_expr *e, ast_brk *brk)
{
    static const char form[] = "v, i = top_k[a -> slot](x)";
    ck_axes from, to;
    ck_val x;
    nd_builder *b = &c->b;
    if (!two_sides(c, e, brk, 1, 1, form, &from, &to) ||
        !tensor_arg(c, e, &from, form, &x) ||
        !lacks_axis(c, to.at[0], x, to.a[0]) || !room_for(c, e->loc, x, 1))
        return ck_bad();
    nd_axis *a = from.a[0], *slot = to.a[0];
    if (ck_any_unsized(c, 1, &a) || ck_any_unsized(c, 1, &slot))
        return ck_bad();
    if (slot->size > a->size) {
        ck_error(c, to.at[0], "the %lld largest of %lld along `%s`",
                 (long long)slot->size, (long long)a->size, a->name);
        ck_note(c, slot->loc, "`%s` is declared here", slot->name);
        return ck_bad();
    }
    nd_dtype t = ck_dtype(x);
    x = ck_widen(c, x);
    if (x.v && t == ND_BOOL)
        x.v = nd_cast(b, x.v, t = ND_I32);
    if (!x.v)
        return ck_bad();
    nd_value *mine = nd_map(b, EW_EQ, rank_along(c, x.v, a),
                            nd_positions(b, slot), NULL);
    nd_value *zero = nd_const(b, x.v->type.dtype, 0);
    ck_val *r = ND_NEWN(c->ctx->arena, ck_val, 2);
    r[0] = ck_narrow(c, ck_tensor(nd_reduce(b, RED_SUM, nd_map(b, EW_WHERE,
                         mine, x.v, zero), 1, &a)), t);
    r[1] = ck_tensor(nd_reduce(b, RED_SUM,
                               nd_map(b, EW_WHERE, mine, nd_positions(b, a),
                                      number(c, 0)), 1, &a));
    for (int i = 0; i < 2; i++)
        r[i].gone = ck_lose(c, x.gone, a, ck_place(c, e->loc), "selected from");
    return (ck_val){.kind = VAL_TUPLE, .n = 2, .item = r};
}

/* ---- the table ----------------------------------------------------------- */

static const struct {
    const char *name;
    ck_val (*call)(ck *c, ast_expr *e, ast_brk *brk);
} shapes[] = {
    {"split", split_axis},     {"flatten", flatten_axes},
    {"stack", stack_values},   {"concat", concat_values},
    {"shift", shift_along},    {"roll", roll_along},
    {"cumsum", running_sum},   {"argmax", first_of_max},
    {"top_k", top_of},         {"one_hot", one_hot},
};
enum { NSHAPES = sizeof shapes / sizeof *shapes };

bool ck_is_shape(const char *name)
{
    for (int i = 0; i < NSHAPES; i++)
        if (!strcmp(name, shapes[i].name))
            return true;
    return false;
}

ck_val ck_shape(ck *c, ast_expr *e, const char *name, ast_brk *brk)
{
    for (int i = 0; i < NSHAPES; i++)
        if (!strcmp(name, shapes[i].name))
            return shapes[i].call(c, e, brk);
    return ck_bad();
}
