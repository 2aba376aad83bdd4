/* check_expr.c - expressions, and elementwise operations by axis name.
 *
 *   x: f32[batch, d]   g: f32[d]   x * g  ->  %m = mul %x, %g : f32[batch, d]
 *
 * Compile-time constants (literals, axis sizes, lets) fold; they are weak:
 * next to a tensor they take its dtype. bool < integer < float otherwise.
 *
 *   h: bf16[batch]   h * g  ->  mul of the two in f32, cast to bf16
 */
#include "frontend.h"

#include <math.h>
#include <string.h>

ck_val ck_bad(void)
{
    return (ck_val){.kind = VAL_BAD};
}

bool ck_weak(ck_val x)
{
    return x.kind == VAL_CONST || x.weak;
}

ck_val ck_int(int64_t i)
{
    return (ck_val){.kind = VAL_CONST, .dtype = ND_I32, .i = i,
                    .f = (double)i, .idx = true};
}

ck_val ck_num(nd_dtype t, double f)
{
    return (ck_val){.kind = VAL_CONST, .dtype = t,
                    .i = t == ND_F32 ? 0 : (int64_t)f, .f = f, .idx = true};
}

/* A builder that failed returns NULL and has reported why. */
ck_val ck_tensor(nd_value *v)
{
    return (ck_val){.kind = v ? VAL_TENSOR : VAL_BAD, .v = v};
}

int ck_class(nd_dtype t)
{
    return t == ND_BOOL ? 0 : nd_is_float(t) ? 2 : 1;
}

nd_dtype ck_dtype(ck_val x)
{
    return x.kind == VAL_TENSOR ? x.v->type.dtype : x.dtype;
}

bool ck_is_value(ck *c, nd_loc at, ck_val x)
{
    if (x.kind == VAL_TUPLE)
        ck_error(c, at, "this has %d results; name them: a, b = ...", x.n);
    return x.kind == VAL_CONST || x.kind == VAL_TENSOR;
}

nd_value *ck_strong(ck *c, ck_val x, nd_dtype t)
{
    if (x.kind == VAL_TENSOR)
        return nd_cast(&c->b, x.v, t);
    if (x.kind == VAL_CONST && t == ND_I32 && x.i != (int32_t)x.i) {
        ck_error(c, c->b.loc, "the constant %lld does not fit in i32",
                 (long long)x.i);
        return NULL;
    }
    if (x.kind == VAL_CONST && nd_is_narrow(t))
        return nd_cast(&c->b, nd_const(&c->b, ND_F32, x.f), t);
    if (x.kind == VAL_CONST)
        return nd_const(&c->b, t, x.f);
    return NULL;
}

ck_val ck_widen(ck *c, ck_val x)
{
    if (x.kind == VAL_TENSOR && nd_is_narrow(ck_dtype(x)))
        x.v = nd_cast(&c->b, x.v, ND_F32);
    return x;
}

ck_val ck_narrow(ck *c, ck_val x, nd_dtype t)
{
    if (x.kind == VAL_TENSOR && nd_is_narrow(t)) {
        x.v = nd_cast(&c->b, x.v, t);
        x.exact = false;
    }
    return x;
}

/* The dtype that two operands meet in. */
bool ck_common(ck *c, nd_loc at, ck_val x, ck_val y, nd_dtype *t)
{
    nd_dtype a = ck_dtype(x), b = ck_dtype(y);
    int ca = ck_class(a), cb = ck_class(b);
    bool sa = x.kind == VAL_TENSOR, sb = y.kind == VAL_TENSOR;
    if (ca != cb) {
        *t = ca > cb ? a : b;
        return true;
    }
    if (sa && sb && ca == 2 && a != b) {
        ck_error(c, at, "%s meets %s; cast one of them", nd_dtype_name(a),
                 nd_dtype_name(b));
        return false;
    }
    *t = sa && sb && ca == 1 && a != b ? ND_I64 : sa ? a : b;
    return true;
}

ck_gone *ck_lose(ck *c, ck_gone *list, nd_axis *a, nd_loc at, const char *how)
{
    ck_gone *g = ND_NEW(c->ctx->arena, ck_gone);
    g->axis = a;
    g->loc = at;
    g->how = how;
    g->next = list;
    g->n = list ? list->n + 1 : 1;
    return g;
}

ck_gone *ck_merge(ck *c, ck_gone *x, ck_gone *y)
{
    enum { KEEP = 12 };
    if (!x || x == y)
        return y;
    for (; y && x->n < KEEP; y = y->next) {
        bool known = false;
        for (ck_gone *g = x; g && !known; g = g->next)
            known = g->axis == y->axis && g->loc.begin == y->loc.begin;
        if (!known)
            x = ck_lose(c, x, y->axis, y->loc, y->how);
    }
    return x;
}

static nd_axis *lacks(const nd_type *a, const nd_type *b)
{
    for (int i = 0; i < b->rank; i++)
        if (nd_axis_at(a, b->axis[i]) < 0)
            return b->axis[i];
    return NULL;
}

/* [a] + [b] -> [a, b] is legal and rarely meant. */
void ck_outer_warning(ck *c, nd_loc at, ck_val x, ck_val y)
{
    if (x.kind != VAL_TENSOR || y.kind != VAL_TENSOR || x.idx || y.idx ||
        (c->f && c->f->file->lib))
        return;
    nd_axis *a = lacks(&y.v->type, &x.v->type);
    nd_axis *b = lacks(&x.v->type, &y.v->type);
    if (!a || !b || !ck_warn_once(c, at))
        return;
    nd_warning(c->ctx, at,
               "only the left operand has `%s`, only the right one `%s`: is "
               "this outer form meant?", a->name, b->name);
}

static int64_t floor_div(int64_t a, int64_t b)
{
    if (b == -1)
        return a == INT64_MIN ? a : -a;
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static ck_val fold(ck *c, nd_ew op, nd_loc at, ck_val x, ck_val y)
{
    bool ints = ck_class(x.dtype) < 2 && ck_class(y.dtype) < 2;
    int64_t r;
    if (nd_ews[op].result == 'b')
        return ck_num(ND_BOOL, nd_ew_eval(op, x.f, y.f, 0) != 0);
    if ((op == EW_IDIV || op == EW_MOD) && y.f == 0) {
        ck_error(c, at, "division by zero");
        return ck_bad();
    }
    bool exact = op == EW_ADD || op == EW_SUB || op == EW_MUL ||
                 op == EW_IDIV || op == EW_MOD || op == EW_MIN ||
                 op == EW_MAX;
    if (ints && exact) {
        bool over = false;
        switch (op) {
        case EW_ADD:
            over = __builtin_add_overflow(x.i, y.i, &r);
            break;
        case EW_SUB:
            over = __builtin_sub_overflow(x.i, y.i, &r);
            break;
        case EW_MUL:
            over = __builtin_mul_overflow(x.i, y.i, &r);
            break;
        case EW_IDIV:
        case EW_MOD:
            r = floor_div(x.i, y.i);
            r = op == EW_IDIV ? r : y.i == -1 ? 0 : x.i - r * y.i;
            break;
        default:
            r = x.f == nd_ew_eval(op, x.f, y.f, 0) ? x.i : y.i;
        }
        if (!over)
            return ck_int(r);
        ck_error(c, at, "this integer does not fit in 64 bits");
        return ck_bad();
    }
    double f = nd_ew_eval(op, x.f, y.f, 0);
    if (ints && op == EW_POW && y.i >= 0 && fabs(f) < 9e15)
        return ck_int((int64_t)f);
    return ck_num(ND_F32, f);
}

/* x ^ n for a small whole n is a product: cheaper, and its derivative is
 * right at 0. NULL where it is not such a power. */
static nd_value *small_power(ck *c, ck_val x, ck_val y)
{
    if (y.kind != VAL_CONST || x.kind != VAL_TENSOR)
        return NULL;
    nd_value *v = x.v;
    if (y.f == 1)
        return v;
    if (y.f == 2 || y.f == 3 || y.f == 4) {
        nd_value *two = nd_map(&c->b, EW_MUL, v, v, NULL);
        return y.f == 2 ? two : nd_map(&c->b, EW_MUL, two,
                                       y.f == 3 ? v : two, NULL);
    }
    if (y.f == 0.5 && ck_class(v->type.dtype) == 2)
        return nd_map(&c->b, EW_SQRT, v, NULL, NULL);
    return NULL;
}

static bool wants(ck *c, nd_loc at, const char *who, const char *what,
                  int klass, ck_val x)
{
    if (ck_class(ck_dtype(x)) == klass)
        return true;
    ck_error(c, at, "`%s` needs %s, this is %s", who, what,
             nd_dtype_name(ck_dtype(x)));
    return false;
}

static const char *spelled(nd_ew op)
{
    return op == EW_IDIV ? "//" : op == EW_MOD ? "%" : nd_ews[op].name;
}

/* One elementwise op over one or two operands; y is ignored for unary ops. */
ck_val ck_ew(ck *c, nd_ew op, nd_loc at, ck_val x, ck_val y)
{
    bool unary = nd_ews[op].nin == 1;
    nd_dtype t, meet;
    if (unary)
        y = x;
    if (!ck_is_value(c, at, x) || !ck_is_value(c, at, y))
        return ck_bad();
    if (op == EW_AND || op == EW_OR || op == EW_NOT) {
        if (!wants(c, at, nd_ews[op].name, "conditions", 0, x) ||
            !wants(c, at, nd_ews[op].name, "conditions", 0, y))
            return ck_bad();
    }
    if ((op == EW_IDIV || op == EW_MOD) &&
        (ck_class(ck_dtype(x)) == 2 || ck_class(ck_dtype(y)) == 2)) {
        ck_error(c, at, "`%s` is for integers; this is float", spelled(op));
        return ck_bad();
    }
    if (x.kind == VAL_CONST && y.kind == VAL_CONST) {
        if (unary && (op == EW_NEG || op == EW_ABS) && x.dtype != ND_F32)
            return op == EW_NEG || x.i < 0 ? fold(c, EW_SUB, at, ck_int(0), x)
                                           : x;
        return fold(c, op, at, x, y);
    }
    if (!ck_common(c, at, x, y, &t))
        return ck_bad();
    bool logic = op == EW_AND || op == EW_OR || op == EW_NOT;
    bool number = op == EW_ADD || op == EW_SUB || op == EW_MUL ||
                  op == EW_IDIV || op == EW_MOD || op == EW_NEG ||
                  op == EW_ABS || op == EW_MIN || op == EW_MAX ||
                  op == EW_LT || op == EW_LE || op == EW_EQ || op == EW_NE;
    if (number && t == ND_BOOL)
        t = ND_I32;
    bool whole = op == EW_POW && y.kind == VAL_CONST && y.f >= 0 &&
                 y.dtype != ND_F32 && y.f <= 4;
    if (!number && !logic && !whole && ck_class(t) < 2)
        t = ND_F32;
    meet = t;
    if (nd_is_narrow(meet))
        t = ND_F32;
    ck_at(c, at);
    if (op == EW_ADD || op == EW_SUB)
        ck_outer_warning(c, at, x, y);
    ck_val r;
    if (op == EW_POW) {
        ck_val xs = x;
        xs.v = ck_strong(c, x, t);
        nd_value *p = small_power(c, xs, y);
        r = ck_tensor(p ? p : nd_map(&c->b, op, xs.v, ck_strong(c, y, t),
                                     NULL));
    } else {
        nd_value *xv = ck_strong(c, x, t);
        r = ck_tensor(nd_map(&c->b, op, xv,
                             unary ? NULL : ck_strong(c, y, t), NULL));
    }
    if (nd_ews[op].result != 'b')
        r = ck_narrow(c, r, meet);
    r.idx = x.idx && y.idx;
    r.weak = ck_weak(x) && ck_weak(y);
    r.gone = ck_merge(c, x.gone, y.gone);
    return r;
}

static ck_val name_value(ck *c, ast_expr *e)
{
    ck_val v;
    ck_var *var = ck_find_var(c, e->str);
    if (var) {
        ck_force(c, var);
        return var->val;
    }
    ck_bind *b = ck_find_bind(c, e->str);
    if (b) {
        int64_t n;
        if (ck_count(b->n, b->axis, &n))
            return ck_int(n);
        ck_error(c, e->loc, "this integer does not fit in 64 bits");
        return ck_bad();
    }
    if (ck_find_let(c, e->str, &v))
        return v;
    ck_unknown(c, e->loc, "name", e->str);
    return ck_bad();
}

static ck_val binary(ck *c, ast_expr *e)
{
    static const nd_ew op[] = {
        [E_ADD] = EW_ADD, [E_SUB] = EW_SUB,   [E_MUL] = EW_MUL,
        [E_DIV] = EW_DIV, [E_IDIV] = EW_IDIV, [E_MOD] = EW_MOD,
        [E_POW] = EW_POW, [E_LT] = EW_LT,     [E_LE] = EW_LE,
        [E_GT] = EW_LT,   [E_GE] = EW_LE,     [E_EQ] = EW_EQ,
        [E_NE] = EW_NE,   [E_AND] = EW_AND,   [E_OR] = EW_OR,
    };
    ck_val x = ck_expr(c, e->a), y = ck_expr(c, e->b);
    if (x.kind == VAL_BAD || y.kind == VAL_BAD)
        return ck_bad();
    if (e->kind == E_GT || e->kind == E_GE)
        return ck_ew(c, op[e->kind], e->loc, y, x);
    return ck_ew(c, op[e->kind], e->loc, x, y);
}

static ck_val eval(ck *c, ast_expr *e)
{
    ck_val x;
    switch (e->kind) {
    case E_NAME:
        return name_value(c, e);
    case E_NUM:
        return e->integer ? ck_int(e->inum) : ck_num(ND_F32, e->num);
    case E_INF:
        return ck_num(ND_F32, INFINITY);
    case E_TRUE:
    case E_FALSE:
        return ck_num(ND_BOOL, e->kind == E_TRUE);
    case E_STR:
        ck_error(c, e->loc, "a string is not a value");
        return ck_bad();
    case E_LIST:
    case E_MAP:
        ck_error(c, e->loc, "a list is not a value");
        return ck_bad();
    case E_PARAM:
        ck_error(c, e->loc, "`param` stands alone on the right of `name =`");
        return ck_bad();
    case E_NEG:
    case E_NOT:
        x = ck_expr(c, e->a);
        return ck_ew(c, e->kind == E_NEG ? EW_NEG : EW_NOT, e->loc, x, x);
    case E_INDEX:
        return ck_index(c, e);
    case E_CALL:
        return ck_call(c, e);
    default:
        return binary(c, e);
    }
}

ck_val ck_expr(ck *c, ast_expr *e)
{
    if (c->depth >= CK_MAX_DEPTH) {
        ck_error(c, e->loc, "calls and expressions nest too deeply");
        return ck_bad();
    }
    c->depth++;
    ck_val v = eval(c, e);
    c->depth--;
    return v;
}
