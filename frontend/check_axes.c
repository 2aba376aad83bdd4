/* check_axes.c - reductions over named axes, and products under a sum.
 *
 *   sum[d](x * w)  ->  %y = contract [d] %x, %w
 *   mean[batch](l) ->  %s = reduce sum [batch] %l; %m = mul %s, 1/size
 *
 * A sum of a product becomes one matrix product where both factors have the
 * summed axes and an axis of their own; otherwise it stays elementwise. A
 * factor written cast[f32](x) makes it `exact`. Narrow values are summed in
 * f32 and the sum, or mean, is rounded once.
 */
#include "frontend.h"

#include <math.h>
#include <string.h>

/* The user's place for an axis that came in through groups: out of library
 * functions, or one call up. */
static nd_loc origin(ck *c, nd_loc at, ck_bind *src, nd_axis *a,
                     const char **label)
{
    ck_frame *f = c->f;
    *label = NULL;
    while (f && f->fn && src && src->group) {
        int k = 0;
        while (k < src->n - 1 && src->axis[k] != a)
            k++;
        *label = f->label;
        at = src->at[k];
        src = src->src[k];
        f = f->up;
        if (!f || !f->file->lib)
            break;
    }
    return at;
}

static void note_gone(ck *c, nd_axis *a, ck_val x)
{
    for (ck_gone *g = x.gone; g; g = g->next)
        if (g->axis == a) {
            ck_note(c, g->loc, "`%s` was %s here", a->name, g->how);
            return;
        }
}

/* An `axis` of a body that has the name of another one. */
static void note_namesake(ck *c, const nd_axis *a, ck_val x)
{
    const nd_loc *p = &a->loc;
    for (int i = 0; x.kind == VAL_TENSOR && i < x.v->type.rank; i++) {
        const nd_loc *q = &x.v->type.axis[i]->loc;
        uint32_t n = p->end - p->begin;
        if (!p->file || !q->file || n != q->end - q->begin ||
            (p->file == q->file && p->begin == q->begin) ||
            memcmp(c->ctx->files.v[p->file - 1].text + p->begin,
                   c->ctx->files.v[q->file - 1].text + q->begin, n))
            continue;
        ck_note(c, *p, "`%s` is another axis of that name, declared here",
                a->name);
        return;
    }
}

void ck_missing(ck *c, nd_axis *a, nd_loc at, ck_bind *src, ck_val x)
{
    const char *label;
    nd_loc where = origin(c, at, src, a, &label);
    if (label)
        ck_say(c, where, "%s: the argument has no axis `%s`", label,
               a->name);
    else
        ck_error(c, where, "the value has no axis `%s`", a->name);
    if (x.kind == VAL_TENSOR && x.v->type.rank)
        ck_note(c, nd_nowhere, "it is %s",
                ck_type(c, &x.v->type));
    else if (x.kind == VAL_TENSOR && x.weak && c->nrep)
        ck_note(c, c->rep[c->nrep - 1]->loc, "it enters this `repeat` as a "
                "scalar; begin with one that has the axis: 0.0 * index[%s]",
                a->name);
    note_namesake(c, a, x);
    note_gone(c, a, x);
}

/* ---- sums of products ---------------------------------------------------- */

/* Does x have an axis of its own, neither summed nor shared? */
static bool own_axis(const nd_type *x, const nd_type *y, const ck_axes *ax)
{
    for (int i = 0; i < x->rank; i++) {
        bool summed = false;
        for (int k = 0; k < ax->n; k++)
            summed |= ax->a[k] == x->axis[i];
        if (!summed && nd_axis_at(y, x->axis[i]) < 0)
            return true;
    }
    return false;
}

/* How many left axes stand before those that are summed; -1 if some stand
 * behind. */
static int leading(const ck_param *w, int nsummed, nd_axis *const *summed)
{
    int lead = w->left.n - nsummed;
    for (int i = 0; i < lead; i++)
        for (int k = 0; k < nsummed; k++)
            if (w->left.a[i] == summed[k])
                return -1;
    return lead;
}

/* A weight fixes which axes its factor must have, and which it may not. Only
 * groups bind a caller: sum[c](x * v) is also the sum of what x lacks. */
static bool fits_weight(ck *c, ck_param *w, ck_val x, const ck_axes *ax)
{
    nd_axis *summed[ND_MAX_RANK];
    int nsummed = 0;
    int64_t fan;
    if (!w || !w->arrow)
        return true;
    for (int k = 0; k < ax->n; k++) {
        if (ax->src[k]->group && nd_axis_at(&x.v->type, ax->a[k]) < 0 &&
            nd_axis_at(&w->v->type, ax->a[k]) >= 0) {
            ck_missing(c, ax->a[k], ax->at[k], ax->src[k], x);
            return false;
        }
        for (int i = 0; i < w->left.n; i++)
            if (w->left.a[i] == ax->a[k])
                summed[nsummed++] = ax->a[k];
    }
    if (!nsummed)
        return true;
    if (!ck_count(nsummed, summed, &fan))
        fan = INT64_MAX;
    /* Left axes that are not summed are leading ones: one matrix for each. */
    if (!w->fan_known) {
        w->p->fan_in = fan;
        w->p->lead = leading(w, nsummed, summed);
    }
    w->fan_known = true;
    for (int i = 0; i < w->right.n && w->right.src[i]->group; i++) {
        nd_axis *a = w->right.a[i];
        bool drops = false;
        for (int k = 0; k < ax->n; k++)
            drops |= ax->a[k] == a;
        if (!drops && nd_axis_at(&x.v->type, a) >= 0) {
            const char *label;
            nd_loc at = origin(c, w->right.at[i], w->right.src[i], a, &label);
            ck_say(c, at, "%s: the argument already has the axis `%s`",
                   label ? label : "product", a->name);
            ck_note(c, nd_nowhere, "it is %s",
                    ck_type(c, &x.v->type));
            return false;
        }
    }
    return true;
}

/* sum[ax](x * y) as one product; BAD with *done false where it is none. */
static ck_val product(ck *c, ast_expr *e, ck_val x, ck_val y,
                      const ck_axes *ax, bool *done)
{
    nd_dtype t;
    *done = false;
    if (x.kind != VAL_TENSOR || y.kind != VAL_TENSOR)
        return ck_bad();
    ck_param *px = ck_param_of(c, x.v), *py = ck_param_of(c, y.v);
    if (!(px && py) &&
        (!fits_weight(c, py, x, ax) || !fits_weight(c, px, y, ax))) {
        *done = true;
        return ck_bad();
    }
    for (int k = 0; k < ax->n; k++)
        if (nd_axis_at(&x.v->type, ax->a[k]) < 0 ||
            nd_axis_at(&y.v->type, ax->a[k]) < 0)
            return ck_bad();
    if (!own_axis(&x.v->type, &y.v->type, ax) ||
        !own_axis(&y.v->type, &x.v->type, ax))
        return ck_bad();
    if (!ck_common(c, e->loc, x, y, &t)) {
        *done = true;
        return ck_bad();
    }
    if (ck_class(t) < 2)
        return ck_bad();
    *done = true;
    nd_value *xv = ck_strong(c, x, t), *yv = ck_strong(c, y, t);
    ck_at(c, e->loc);
    ck_val r = ck_tensor(nd_contract(&c->b, xv, yv, ax->n, ax->a, NULL));
    if (r.v)
        r.v->def->sub = x.exact || y.exact;
    r.gone = ck_merge(c, x.gone, y.gone);
    return r;
}

bool ck_has_axes(ck *c, ck_val x, const ck_axes *ax)
{
    for (int k = 0; k < ax->n; k++)
        if (x.kind != VAL_TENSOR || nd_axis_at(&x.v->type, ax->a[k]) < 0) {
            ck_missing(c, ax->a[k], ax->at[k], ax->src[k], x);
            return false;
        }
    return true;
}

static double sizes(const ck_axes *ax)
{
    double n = 1;
    for (int k = 0; k < ax->n; k++)
        n *= (double)ax->a[k]->size;
    return n;
}

/* One reduction of a tensor; bool counts as integers. The result remembers
 * where its axes went and which indices it is made of. */
static ck_val reduce_over(ck *c, ast_expr *e, nd_red red, ck_val x,
                          const ck_axes *ax)
{
    if (!ck_has_axes(c, x, ax))
        return ck_bad();
    ck_at(c, e->loc);
    nd_value *v = x.v;
    if (v->type.dtype == ND_BOOL)
        v = nd_cast(&c->b, v, ND_I32);
    ck_val r = ck_tensor(nd_reduce(&c->b, red, v, ax->n, ax->a));
    r.gone = x.gone;
    r.idx = x.idx;
    return r;
}

/* The sum, as a product of matrices where the argument is a product. If the
 * argument is narrow, *t, the sum is still f32. */
static ck_val sum_of(ck *c, ast_expr *e, ast_expr *arg, const ck_axes *ax,
                     nd_dtype *t)
{
    bool done = false;
    ck_val x;
    *t = ND_F32;
    if (arg->kind == E_MUL) {
        ck_val a = ck_expr(c, arg->a), b = ck_expr(c, arg->b);
        if (!ck_is_value(c, arg->a->loc, a) ||
            !ck_is_value(c, arg->b->loc, b) ||
            !ck_common(c, arg->loc, a, b, t))
            return ck_bad();
        x = product(c, e, a, b, ax, &done);
        if (!done) {
            a = ck_widen(c, a);
            b = ck_widen(c, b);
            x = ck_ew(c, EW_MUL, arg->loc, a, b);
        }
    } else {
        x = ck_expr(c, arg);
        *t = ck_dtype(x);
        x = ck_widen(c, x);
    }
    if (!ck_is_value(c, arg->loc, x) || done)
        return x.kind == VAL_TENSOR && done ? x : ck_bad();
    if (x.kind == VAL_CONST) {
        int64_t k = 0;
        bool fits = ck_count(ax->n, ax->a, &k);
        ck_val n = x.dtype == ND_F32 || !fits ? ck_num(ND_F32, sizes(ax))
                                              : ck_int(k);
        return ck_ew(c, EW_MUL, e->loc, x, n);
    }
    return reduce_over(c, e, RED_SUM, x, ax);
}

/* sum(where(m, x, 0)) / max(sum(m), 1), over the sizes that m lacks too. */
static ck_val masked_mean(ck *c, ast_expr *e, ast_expr *arg, ast_expr *where,
                          const ck_axes *ax)
{
    ck_val x = ck_expr(c, arg), m = ck_expr(c, where);
    nd_axis *both[ND_MAX_RANK];
    int n = 0;
    double missing = 1;
    if (!ck_is_value(c, arg->loc, x) || !ck_is_value(c, where->loc, m))
        return ck_bad();
    if (ck_dtype(m) != ND_BOOL) {
        ck_error(c, where->loc, "`where` needs a condition, this is %s",
                 nd_dtype_name(ck_dtype(m)));
        return ck_bad();
    }
    ck_at(c, e->loc);
    nd_value *mv = ck_strong(c, m, ND_BOOL), *xv = ck_strong(c, x, ND_F32);
    nd_dtype t = ck_dtype(x);
    nd_value *picked = nd_map(&c->b, EW_WHERE, mv, xv,
                              nd_const(&c->b, ND_F32, 0));
    if (!picked)
        return ck_bad();
    ck_val p = ck_tensor(picked);
    p.gone = x.gone;
    if (!ck_has_axes(c, p, ax))
        return ck_bad();
    for (int k = 0; k < ax->n; k++) {
        if (nd_axis_at(&mv->type, ax->a[k]) >= 0)
            both[n++] = ax->a[k];
        else
            missing *= (double)ax->a[k]->size;
    }
    nd_value *top = nd_reduce(&c->b, RED_SUM, picked, ax->n, ax->a);
    nd_value *count = nd_cast(&c->b, mv, ND_F32);
    if (n)
        count = nd_reduce(&c->b, RED_SUM, count, n, both);
    if (missing != 1)
        count = nd_map(&c->b, EW_MUL, count,
                       nd_const(&c->b, ND_F32, missing), NULL);
    count = nd_map(&c->b, EW_MAX, count, nd_const(&c->b, ND_F32, 1), NULL);
    ck_val r = ck_tensor(nd_map(&c->b, EW_DIV, top, count, NULL));
    r.gone = x.gone;
    return ck_narrow(c, r, t);
}

static ck_val mean_of(ck *c, ast_expr *e, ast_expr *arg, const ck_axes *ax)
{
    nd_dtype t;
    ck_val s = sum_of(c, e, arg, ax, &t);
    if (s.kind == VAL_BAD)
        return s;
    s = ck_ew(c, EW_MUL, e->loc, s, ck_num(ND_F32, 1 / sizes(ax)));
    return ck_narrow(c, s, t);
}

static ck_val extreme(ck *c, ast_expr *e, ast_expr *arg, nd_red red,
                      const ck_axes *ax)
{
    ck_val x = ck_expr(c, arg);
    if (!ck_is_value(c, arg->loc, x))
        return ck_bad();
    if (x.kind == VAL_CONST)
        return x;
    ck_val r = reduce_over(c, e, red, ck_widen(c, x), ax);
    return ck_narrow(c, r, ck_dtype(x));
}

ck_val ck_reduction(ck *c, ast_expr *e, const char *name, ast_brk *brk)
{
    ck_axes ax;
    ast_expr *arg = NULL, *where = NULL;
    bool mean = !strcmp(name, "mean");
    if (!brk || brk->right || !brk->left->n) {
        bool ext = name[0] == 'm' && !mean;
        ck_error(c, e->oploc, ext ? "`%s` needs axes: %s[axis](x); "
                                    "elementwise it is %simum(x, y)"
                                  : "`%s` needs axes: %s[axis](x)",
                 name, name, name);
        return ck_bad();
    }
    if (!ck_bracket(c, brk->left, &ax))
        return ck_bad();
    for (int i = 0; i < e->args->n; i++) {
        ast_arg *a = &e->args->v[i];
        if (!a->name.s && !arg) {
            arg = a->e;
        } else if (a->name.s && mean && !strcmp(a->name.s, "where")) {
            where = a->e;
        } else {
            ck_error(c, a->name.s ? a->name.loc : a->e->loc,
                     "`%s[...]` takes one argument%s", name,
                     mean ? " and `where = condition`" : "");
            return ck_bad();
        }
    }
    if (!arg) {
        ck_error(c, e->loc, "`%s[...]` takes one argument", name);
        return ck_bad();
    }
    const char *how = "reduced away";
    nd_dtype t = ND_F32;             /* what a sum is rounded to */
    ck_val r;
    if (where)
        r = masked_mean(c, e, arg, where, &ax);
    else if (mean)
        r = mean_of(c, e, arg, &ax);
    else if (!strcmp(name, "sum"))
        r = sum_of(c, e, arg, &ax, &t);
    else
        r = extreme(c, e, arg, !strcmp(name, "max") ? RED_MAX : RED_MIN, &ax);
    r = ck_narrow(c, r, t);
    if (mean || !strcmp(name, "sum"))
        how = mean ? "averaged away" : "summed away";
    nd_loc at = ck_place(c, e->loc);
    for (int k = 0; k < ax.n && r.kind == VAL_TENSOR; k++)
        r.gone = ck_lose(c, r.gone, ax.a[k], at, how);
    return r;
}
