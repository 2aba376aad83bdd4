/* check_builtin.c - indexing, and the built-in functions but for reductions.
 *
 *   wte[vocab: t]         ->  %x = gather [vocab] %wte, %t
 *   rename[seq -> kv](x)  ->  %k = rename [seq -> kv] %x
 */
#include "frontend.h"

#include <math.h>
#include <string.h>

static ck_val one_arg(ck *c, ast_expr *e, const char *name)
{
    if (e->args->n != 1 || e->args->v[0].name.s) {
        ck_error(c, e->loc, "`%s` takes one argument", name);
        return ck_bad();
    }
    return ck_expr(c, e->args->v[0].e);
}

/* ---- indexing ------------------------------------------------------------ */

static bool wide_enough(ck *c, nd_loc at, ck_val x, ck_val i)
{
    int extra = 0;
    if (i.kind != VAL_TENSOR)
        return true;
    for (int k = 0; k < i.v->type.rank; k++)
        extra += nd_axis_at(&x.v->type, i.v->type.axis[k]) < 0;
    if (x.v->type.rank + extra <= ND_MAX_RANK)
        return true;
    ck_error(c, at, "more than %d axes", ND_MAX_RANK);
    return false;
}

typedef struct entry {               /* one entry of x[a: i, b: j] */
    const ast_item *item;
    nd_axis *axis;
    nd_axis *own;                    /* stands for `axis` in the indices */
    ck_val val;
} entry;

/* The axis that an entry names, and its value. */
static bool read_index(ck *c, ck_val x, const ast_item *it, entry *out)
{
    ck_axes ax;
    ast_items one = {(ast_item[]){{it->name, NULL, NULL}}, 1, 1};
    if (!ck_bracket(c, &one, &ax))
        return false;
    if (ax.n != 1) {
        ck_error(c, it->name.loc, "an index needs one axis, `%s` has %d",
                 it->name.s, ax.n);
        return false;
    }
    nd_axis *a = ax.a[0];
    ck_val i = ck_expr(c, it->lo);
    if (!ck_is_value(c, it->lo->loc, i) || !ck_has_axes(c, x, &ax))
        return false;
    if (ck_class(ck_dtype(i)) != 1) {
        ck_error(c, it->lo->loc, "an index is an integer, this is %s",
                 nd_dtype_name(ck_dtype(i)));
        return false;
    }
    if (i.kind == VAL_CONST && ck_any_unsized(c, 1, &a))
        return false;
    if (i.kind == VAL_CONST && (i.i < 0 || i.i >= a->size)) {
        ck_error(c, it->lo->loc, "%lld is outside the axis `%s` of size %lld",
                 (long long)i.i, a->name, (long long)a->size);
        return false;
    }
    *out = (entry){.item = it, .axis = a, .val = i};
    return true;
}

static bool same_index(ck *c, const entry *v, int n)
{
    for (int k = 0; k < n; k++)
        if (v[k].axis == v[n].axis) {
            ck_error(c, v[n].item->name.loc, "`%s` is indexed twice",
                     v[n].axis->name);
            ck_note(c, v[k].item->name.loc, "it is indexed here already");
            return true;
        }
    return false;
}

/* An index may have an axis that is itself indexed: x[a: index[k], k: 0] is a
 * value over k. Meanwhile that axis of the indices is a spare one. */
static void spare_axes(ck *c, entry *v, int n)
{
    for (int k = 0; k < n; k++)
        for (int i = 0; i < n; i++) {
            nd_value *iv = v[i].val.v;
            if (v[i].val.kind != VAL_TENSOR || !iv ||
                nd_axis_at(&iv->type, v[k].axis) < 0)
                continue;
            if (!v[k].own)
                v[k].own = nd_axis_twin(c->m, v[k].axis);
            v[i].val.v = nd_rename(&c->b, iv, v[k].axis, v[k].own);
        }
}

/* x[a: i, b: j]: all indices are worked out before the first is used. */
static ck_val gather(ck *c, ast_expr *e, ck_val x, const ast_items *items)
{
    entry v[ND_MAX_RANK];
    nd_loc at = ck_place(c, e->loc);
    int n = items->n;
    if (n > ND_MAX_RANK) {
        ck_error(c, e->loc, "more than %d axes", ND_MAX_RANK);
        return ck_bad();
    }
    for (int k = 0; k < n; k++)
        if (!read_index(c, x, &items->v[k], &v[k]) || same_index(c, v, k))
            return ck_bad();
    ck_at(c, e->loc);
    spare_axes(c, v, n);
    for (int k = 0; k < n && x.kind == VAL_TENSOR; k++) {
        if (!wide_enough(c, e->loc, x, v[k].val))
            return ck_bad();
        ck_val r = ck_tensor(nd_gather(&c->b, x.v, v[k].axis,
                                       ck_strong(c, v[k].val, ND_I32)));
        r.idx = x.idx && v[k].val.idx;
        r.gone = v[k].own ? x.gone : ck_lose(c, x.gone, v[k].axis, at,
                                             "indexed away");
        x = r;
    }
    for (int k = 0; k < n && x.kind == VAL_TENSOR; k++)
        if (v[k].own) {
            x.v = nd_rename(&c->b, x.v, v[k].own, v[k].axis);
            x.kind = x.v ? VAL_TENSOR : VAL_BAD;
        }
    return x;
}

static ck_val index_of(ck *c, ast_expr *e)
{
    ck_axes ax;
    if (!ck_bracket(c, e->brk->left, &ax))
        return ck_bad();
    if (e->brk->right || ax.n != 1) {
        ck_error(c, e->loc, "`index` takes one axis");
        return ck_bad();
    }
    if (c->const_only) {
        ck_error(c, e->loc, "this is not a compile-time constant");
        return ck_bad();
    }
    ck_at(c, e->loc);
    ck_val r = ck_tensor(nd_index(&c->b, ax.a[0]));
    r.idx = true;
    return r;
}

ck_val ck_index(ck *c, ast_expr *e)
{
    const ast_expr *base = e->a;
    if (base->kind == E_NAME && !ck_find_var(c, base->str) &&
        !ck_find_bind(c, base->str)) {
        ck_file *file;
        if (!strcmp(base->str, "index"))
            return index_of(c, e);
        if (!strcmp(base->str, "random_normal") && !c->const_only)
            return ck_random_normal(c, e);
        if (ck_is_builtin(base->str) || ck_find_fn(c, base->str, &file)) {
            ck_error(c, e->loc, "`%s` is a function: `%s[...](...)`",
                     base->str, base->str);
            return ck_bad();
        }
    }
    ck_val x = ck_expr(c, e->a);
    if (!ck_is_value(c, e->a->loc, x))
        return ck_bad();
    if (x.kind == VAL_CONST) {
        ck_error(c, e->loc, "a constant has no axes to index");
        return ck_bad();
    }
    if (!e->brk->left->n) {
        ck_error(c, e->brk->loc, "an index is written x[axis: i]");
        return ck_bad();
    }
    if (e->brk->right)
        return ck_slice(c, e, x);
    for (int i = 0; i < e->brk->left->n; i++) {
        const ast_item *it = &e->brk->left->v[i];
        if (!it->lo || it->hi) {
            ck_error(c, it->name.loc, it->hi
                         ? "a slice names its new axis: x[%s -> b: p..q]"
                         : "an index is written x[%s: i]", it->name.s);
            return ck_bad();
        }
    }
    return gather(c, e, x, e->brk->left);
}

/* ---- other built-in functions -------------------------------------------- */

static ck_val rename_axes(ck *c, ast_expr *e, ast_brk *brk)
{
    ck_axes from, to;
    if (!brk || !brk->right) {
        ck_error(c, e->oploc, "%s: `rename` is written rename[a -> b](x)",
                 brk ? "the arrow is missing" : "the axes are missing");
        return ck_bad();
    }
    if (!ck_bracket(c, brk->left, &from) || !ck_bracket(c, brk->right, &to))
        return ck_bad();
    if (from.n != to.n) {
        ck_error(c, brk->loc, "rename of %d %s to %d", from.n,
                 from.n == 1 ? "axis" : "axes", to.n);
        return ck_bad();
    }
    ck_val x = one_arg(c, e, "rename");
    if (x.kind == VAL_CONST)         /* the same at all positions of any axis */
        return x;
    if (!ck_is_value(c, e->loc, x) || !ck_has_axes(c, x, &from))
        return ck_bad();
    for (int k = 0; k < from.n; k++) {
        nd_axis *a = from.a[k], *b = to.a[k];
        if (ck_any_unsized(c, 1, &a) || ck_any_unsized(c, 1, &b))
            return ck_bad();
        if (a->size != b->size) {
            ck_error(c, to.at[k], "`%s` has the size %lld, `%s` has %lld",
                     a->name, (long long)a->size, b->name,
                     (long long)b->size);
            ck_note(c, a->loc, "`%s` is declared here", a->name);
            ck_note(c, b->loc, "`%s` is declared here", b->name);
            return ck_bad();
        }
        if (nd_axis_at(&x.v->type, b) >= 0) {
            ck_error(c, to.at[k], "the value already has an axis `%s`: %s",
                     b->name, ck_type(c, &x.v->type));
            ck_note(c, b->loc, "`%s` is declared here", b->name);
            return ck_bad();
        }
        ck_at(c, e->loc);
        ck_val r = ck_tensor(nd_rename(&c->b, x.v, a, b));
        r.idx = x.idx;
        r.exact = x.exact;
        r.gone = ck_lose(c, x.gone, a, ck_place(c, e->loc), "renamed");
        x = r;
    }
    return x;
}

/* A constant of i64, bf16 or f16 is a scalar of that dtype: literals are weak,
 * and it is not. */
static ck_val cast_constant(ck *c, ast_expr *e, ck_val x, nd_dtype t)
{
    double whole = trunc(x.f);
    if (t == ND_I32 && !(whole >= -0x1p31 && whole < 0x1p31)) {
        ck_error(c, e->loc, "the constant %g does not fit in i32", x.f);
        return ck_bad();
    }
    if (t == ND_I64 && !(fabs(x.f) <= 0x1p53)) {
        ck_error(c, e->loc, "the constant %g is not exact in i64", x.f);
        return ck_bad();
    }
    if (t == ND_F32 || t == ND_I32 || t == ND_BOOL)
        return ck_num(t, t == ND_BOOL ? x.f != 0
                         : t == ND_I32 ? trunc(x.f) : x.f);
    if (c->const_only) {
        ck_error(c, e->loc, "this is not a compile-time constant");
        return ck_bad();
    }
    ck_at(c, e->loc);
    x.f = t == ND_I64 ? trunc(x.f) : x.f;
    ck_val r = ck_tensor(ck_strong(c, x, t));
    r.idx = true;
    return r;
}

static ck_val cast_to(ck *c, ast_expr *e, ast_brk *brk)
{
    nd_dtype t;
    if (!brk || brk->right || brk->left->n != 1 || brk->left->v[0].lo) {
        ck_error(c, e->oploc, "`cast` is written cast[f32](x)");
        return ck_bad();
    }
    ast_name n = brk->left->v[0].name;
    if (!nd_dtype_parse(n.s, &t)) {
        ck_error(c, n.loc, "unknown dtype `%s`; there are f32 f16 bf16 i32 "
                 "i64 bool", n.s);
        return ck_bad();
    }
    ck_val x = one_arg(c, e, "cast");
    if (!ck_is_value(c, e->loc, x))
        return ck_bad();
    if (x.kind == VAL_CONST)
        return cast_constant(c, e, x, t);
    ck_at(c, e->loc);
    ck_val r = x;
    r.v = nd_cast(&c->b, x.v, t);
    r.exact = t == ND_F32;
    return r;
}

static ck_val where_call(ck *c, ast_expr *e)
{
    const ast_args *a = e->args;
    nd_dtype t;
    if (a->n != 3 || a->v[0].name.s || a->v[1].name.s || a->v[2].name.s) {
        ck_error(c, e->loc, "`where` is written where(condition, a, b)");
        return ck_bad();
    }
    ck_val m = ck_expr(c, a->v[0].e);
    if (!ck_is_value(c, a->v[0].e->loc, m))
        return ck_bad();
    if (ck_dtype(m) != ND_BOOL) {
        ck_error(c, a->v[0].e->loc, "`where` needs a condition, this is %s",
                 nd_dtype_name(ck_dtype(m)));
        return ck_bad();
    }
    if (m.kind == VAL_CONST)         /* only the chosen side exists */
        return ck_expr(c, a->v[m.f != 0 ? 1 : 2].e);
    ck_val x = ck_expr(c, a->v[1].e), y = ck_expr(c, a->v[2].e);
    if (!ck_is_value(c, a->v[1].e->loc, x) ||
        !ck_is_value(c, a->v[2].e->loc, y) ||
        !ck_common(c, e->loc, x, y, &t))
        return ck_bad();
    ck_outer_warning(c, e->loc, x, y);
    ck_at(c, e->loc);
    nd_dtype wide = nd_is_narrow(t) ? ND_F32 : t;
    nd_value *xv = ck_strong(c, x, wide), *yv = ck_strong(c, y, wide);
    ck_val r = ck_tensor(nd_map(&c->b, EW_WHERE, m.v, xv, yv));
    r = ck_narrow(c, r, t);
    r.idx = m.idx && x.idx && y.idx;
    r.gone = ck_merge(c, x.gone, y.gone);
    return r;
}

static ck_val elementwise(ck *c, ast_expr *e, nd_ew op)
{
    ck_val x[2];
    for (int i = 0; i < e->args->n; i++)
        if (e->args->v[i].name.s || e->args->n != nd_ews[op].nin) {
            ck_error(c, e->loc, "`%s` takes %d argument%s", nd_ews[op].name,
                     nd_ews[op].nin, nd_ews[op].nin == 1 ? "" : "s");
            return ck_bad();
        }
    if (!e->args->n) {
        ck_error(c, e->loc, "`%s` without arguments", nd_ews[op].name);
        return ck_bad();
    }
    for (int i = 0; i < e->args->n; i++)
        x[i] = ck_expr(c, e->args->v[i].e);
    if (e->args->n == 1)
        x[1] = x[0];
    return ck_ew(c, op, e->loc, x[0], x[1]);
}

static ck_val no_gradient(ck *c, ast_expr *e)
{
    ck_val x = one_arg(c, e, "stop_gradient");
    if (!ck_is_value(c, e->loc, x) || x.kind == VAL_CONST)
        return x;
    ck_at(c, e->loc);
    ck_val r = x;
    r.v = nd_stop_gradient(&c->b, x.v);
    return r.v ? r : ck_bad();
}

static bool is_reduction(const char *name)
{
    return !strcmp(name, "sum") || !strcmp(name, "mean") ||
           !strcmp(name, "max") || !strcmp(name, "min");
}

ck_val ck_builtin(ck *c, ast_expr *e, const char *name, ast_brk *brk)
{
    int op = ck_ew_function(name);
    bool axes = is_reduction(name) || ck_is_shape(name) ||
                !strcmp(name, "rename") || !strcmp(name, "cast");
    if (!axes && brk) {
        ck_error(c, brk->loc, "`%s` takes no axes", name);
        return ck_bad();
    }
    if ((e->as.s || e->like.s) && strcmp(name, "dropout")) {
        ck_error(c, e->as.s ? e->as.loc : e->like.loc,
                 "`%s` has no parameters to name", name);
        return ck_bad();
    }
    if (ck_is_shape(name))
        return ck_shape(c, e, name, brk);
    if (is_reduction(name))
        return ck_reduction(c, e, name, brk);
    if (op >= 0)
        return elementwise(c, e, (nd_ew)op);
    if (!strcmp(name, "rename"))
        return rename_axes(c, e, brk);
    if (!strcmp(name, "cast"))
        return cast_to(c, e, brk);
    if (!strcmp(name, "dropout"))
        return ck_dropout(c, e);
    if (!strcmp(name, "where"))
        return where_call(c, e);
    if (!strcmp(name, "stop_gradient"))
        return no_gradient(c, e);
    ck_error(c, e->loc, !strcmp(name, "index")
                 ? "`index` is written index[axis]"
                 : "`%s` is written %s[axes]", name, name);
    return ck_bad();
}
