/* vjp.c - one short rule per differentiable op: given g, the gradient of the
 * result, what the operands gain. Named by ops.def.
 *
 * Gradients are f32, also those of narrow values: a cast to bf16 rounds the
 * value and not its gradient. Only a product of narrow operands rounds g to
 * their width, because that is the width it multiplies in.
 *
 * U(v) is the forward value as the backward block may read it. Sums over
 * broadcast axes are nd_ad_add's work, so the rules read like the calculus.
 */
#include "ir.h"

#include <math.h>

typedef void vjp_fn(nd_ad *d, nd_op *op, nd_value *g);
#define U(v) nd_ad_use(d, v)

static nd_value *map2(nd_ad *d, nd_ew e, nd_value *x, nd_value *y)
{
    return nd_map(nd_ad_builder(d), e, x, y, NULL);
}

static nd_value *map1(nd_ad *d, nd_ew e, nd_value *x)
{
    return nd_map(nd_ad_builder(d), e, x, NULL, NULL);
}

static nd_value *num(nd_ad *d, double v)
{
    return nd_const(nd_ad_builder(d), ND_F32, v);
}

static nd_value *mul(nd_ad *d, nd_value *x, nd_value *y)
{
    return map2(d, EW_MUL, x, y);
}

static nd_value *select_or_zero(nd_ad *d, nd_value *c, nd_value *g)
{
    return nd_map(nd_ad_builder(d), EW_WHERE, c, g, num(d, 0));
}

/* Operand i gains g, if a gradient flows there. */
#define GAIN(i, g) \
    do { \
        if (nd_ad_active(d, op->in[i])) \
            nd_ad_add(d, op->in[i], g); \
    } while (0)

/* ---- elementwise --------------------------------------------------------- */

static void vjp_add(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, g);
    GAIN(1, g);
}

static void vjp_sub(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, g);
    GAIN(1, map1(d, EW_NEG, g));
}

static void vjp_mul(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, mul(d, g, U(op->in[1])));
    GAIN(1, mul(d, g, U(op->in[0])));
}

/* d(a/b) = da/b - (a/b) db/b */
static void vjp_div(nd_ad *d, nd_op *op, nd_value *g)
{
    nd_value *q = map2(d, EW_DIV, g, U(op->in[1]));
    GAIN(0, q);
    GAIN(1, map1(d, EW_NEG, mul(d, q, U(op->out[0]))));
}

/* d(a^b) = b a^(b-1) da + a^b ln(a) db */
static void vjp_pow(nd_ad *d, nd_op *op, nd_value *g)
{
    if (nd_ad_active(d, op->in[0])) {
        nd_value *b = U(op->in[1]);
        nd_value *less = map2(d, EW_SUB, b, num(d, 1));
        nd_value *p = map2(d, EW_POW, U(op->in[0]), less);
        nd_ad_add(d, op->in[0], mul(d, g, mul(d, p, b)));
    }
    if (nd_ad_active(d, op->in[1])) {
        nd_value *l = map1(d, EW_LOG, U(op->in[0]));
        nd_ad_add(d, op->in[1], mul(d, g, mul(d, U(op->out[0]), l)));
    }
}

static void vjp_neg(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, map1(d, EW_NEG, g));
}

static void vjp_exp(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, mul(d, g, U(op->out[0])));
}

static void vjp_log(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, map2(d, EW_DIV, g, U(op->in[0])));
}

static void vjp_sqrt(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, mul(d, map2(d, EW_DIV, g, U(op->out[0])), num(d, 0.5)));
}

/* d(x^-1/2) = -1/2 y^3 dx */
static void vjp_rsqrt(nd_ad *d, nd_op *op, nd_value *g)
{
    nd_value *y = U(op->out[0]);
    nd_value *cube = mul(d, mul(d, y, y), y);
    GAIN(0, mul(d, g, mul(d, cube, num(d, -0.5))));
}

static void vjp_tanh(nd_ad *d, nd_op *op, nd_value *g)
{
    nd_value *y = U(op->out[0]);
    GAIN(0, mul(d, g, map2(d, EW_SUB, num(d, 1), mul(d, y, y))));
}

static void vjp_sigmoid(nd_ad *d, nd_op *op, nd_value *g)
{
    nd_value *y = U(op->out[0]);
    GAIN(0, mul(d, g, mul(d, y, map2(d, EW_SUB, num(d, 1), y))));
}

/* d erf(x) = 2/sqrt(pi) e^(-x^2) dx */
static void vjp_erf(nd_ad *d, nd_op *op, nd_value *g)
{
    nd_value *x = U(op->in[0]);
    nd_value *e = map1(d, EW_EXP, map1(d, EW_NEG, mul(d, x, x)));
    GAIN(0, mul(d, g, mul(d, e, num(d, 2 / sqrt(acos(-1))))));
}

static void vjp_sin(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, mul(d, g, map1(d, EW_COS, U(op->in[0]))));
}

static void vjp_cos(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, mul(d, g, map1(d, EW_NEG, map1(d, EW_SIN, U(op->in[0])))));
}

static void vjp_abs(nd_ad *d, nd_op *op, nd_value *g)
{
    nd_value *below = map2(d, EW_LT, U(op->in[0]), num(d, 0));
    GAIN(0, nd_map(nd_ad_builder(d), EW_WHERE, below, map1(d, EW_NEG, g), g));
}

/* The first operand wins a tie. */
static void extreme(nd_ad *d, nd_op *op, nd_value *g, nd_value *first_wins)
{
    nd_value *not = map1(d, EW_NOT, first_wins);
    GAIN(0, select_or_zero(d, first_wins, g));
    GAIN(1, select_or_zero(d, not, g));
}

static void vjp_min(nd_ad *d, nd_op *op, nd_value *g)
{
    extreme(d, op, g, map2(d, EW_LE, U(op->in[0]), U(op->in[1])));
}

static void vjp_max(nd_ad *d, nd_op *op, nd_value *g)
{
    extreme(d, op, g, map2(d, EW_LE, U(op->in[1]), U(op->in[0])));
}

static void vjp_where(nd_ad *d, nd_op *op, nd_value *g)
{
    nd_value *c = U(op->in[0]);
    GAIN(1, select_or_zero(d, c, g));
    if (nd_ad_active(d, op->in[2]))
        nd_ad_add(d, op->in[2], select_or_zero(d, map1(d, EW_NOT, c), g));
}

/* ---- shape --------------------------------------------------------------- */

/* Between floats: what else is cast has no gradient. */
static void vjp_cast(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, g);
}

static void vjp_rename(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, nd_rename(nd_ad_builder(d), g, op->to[0], op->axes[0]));
}

static void vjp_split(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, nd_flatten(nd_ad_builder(d), g, op->nto, op->to, op->axes[0]));
}

static void vjp_flatten(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, nd_split(nd_ad_builder(d), g, op->to[0], op->naxes, op->axes));
}

/* The sum over the repeated axes is nd_ad_add's. */
static void vjp_broadcast(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, g);
}

/* ---- reductions and products --------------------------------------------- */

/* The row-major index over `axes`, as f32, exact below 2^24. */
static nd_value *linear_index(nd_ad *d, int n, nd_axis *const *axes)
{
    nd_builder *b = nd_ad_builder(d);
    nd_value *at = NULL;
    for (int i = 0; i < n; i++) {
        nd_value *x = nd_cast(b, nd_positions(b, axes[i]), ND_F32);
        if (at)
            x = map2(d, EW_ADD,
                     mul(d, at, num(d, (double)axes[i]->size)), x);
        at = x;
    }
    return at;
}

/* An extreme sends its gradient to the first element that attains it. */
static void extreme_of_axes(nd_ad *d, nd_op *op, nd_value *g)
{
    nd_builder *b = nd_ad_builder(d);
    nd_value *hit = map2(d, EW_EQ, U(op->in[0]), U(op->out[0]));
    nd_value *order = map1(d, EW_NEG, linear_index(d, op->naxes, op->axes));
    nd_value *mine =
        nd_map(b, EW_WHERE, hit, order, num(d, -INFINITY));
    nd_value *first = nd_reduce(b, RED_MAX, mine, op->naxes, op->axes);
    GAIN(0, select_or_zero(d, map2(d, EW_EQ, mine, first), g));
}

static void vjp_reduce(nd_ad *d, nd_op *op, nd_value *g)
{
    if (op->sub == RED_SUM)
        GAIN(0, g);
    else
        extreme_of_axes(d, op, g);
}

/* Operand `i` of sum_R x y gains sum(g * other), over what it lacks; in f32 if
 * the product is. */
static void product_gain(nd_ad *d, nd_op *op, int i, nd_value *g)
{
    nd_value *v = op->in[i];
    if (!nd_ad_active(d, v))
        return;
    nd_value *other = U(op->in[1 - i]);
    nd_type u = nd_union(&g->type, &other->type);
    nd_axis *sum[ND_MAX_RANK];
    int n = 0;
    for (int k = 0; k < u.rank; k++)
        if (nd_axis_at(&v->type, u.axis[k]) < 0)
            sum[n++] = u.axis[k];
    /* In v's own axis order: gradients are laid out like their values. */
    nd_type order = v->type;
    nd_builder *b = nd_ad_builder(d);
    nd_value *r = nd_contract(b, nd_cast(b, g, other->type.dtype), other, n,
                              sum, &order);
    if (r)
        r->def->sub = op->sub;
    nd_ad_add(d, v, r);
}

static void vjp_contract(nd_ad *d, nd_op *op, nd_value *g)
{
    product_gain(d, op, 0, g);
    product_gain(d, op, 1, g);
}

/* g in another width; rows that travelled are cast before they go. */
static nd_value *cast_to_travel(nd_builder *b, nd_value *g, nd_dtype t)
{
    const nd_op *go = g->def;
    if (!go || go->kind != OP_DISPATCH || go->block != b->block ||
        g->type.dtype == t)
        return nd_cast(b, g, t);
    return nd_dispatch(b, nd_cast(b, go->in[0], t), go->in[1], go->axes[0]);
}

/* d sum(x w[a: i]): in x the product with the same w over what x lacks, in w
 * the sums of x g over the rows of each a. */
static void vjp_grouped(nd_ad *d, nd_op *op, nd_value *g)
{
    nd_builder *b = nd_ad_builder(d);
    nd_value *x = op->in[0], *w = op->in[1], *ids = U(op->in[2]), *r;
    nd_value *narrow = cast_to_travel(b, g, x->type.dtype);
    nd_axis *sum[ND_MAX_RANK];
    int n = 0;
    for (int k = 0; k < w->type.rank; k++)
        if (w->type.axis[k] != op->axes[0] &&
            nd_axis_at(&x->type, w->type.axis[k]) < 0)
            sum[n++] = w->type.axis[k];
    if (nd_ad_active(d, x)) {
        r = nd_grouped(b, narrow, U(w), op->axes[0], ids, n, sum);
        if (r)
            r->def->sub = op->sub;
        nd_ad_add(d, x, r);
    }
    if (nd_ad_active(d, w)) {
        r = nd_grouped_sum(b, U(x), narrow, op->axes[0], ids, &w->type);
        if (r)
            r->def->sub = op->sub;
        nd_ad_add(d, w, r);
    }
}

/* The slots of a row that travelled once for each are summed by nd_ad_add. */
static void vjp_dispatch(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, nd_combine(nd_ad_builder(d), g, U(op->in[1]), op->axes[0]));
}

static void vjp_combine(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, nd_dispatch(nd_ad_builder(d), g, U(op->in[1]), op->axes[0]));
}

static void vjp_cumsum(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, nd_cumsum(nd_ad_builder(d), g, op->axes[0], !op->reverse));
}

static void vjp_roll(nd_ad *d, nd_op *op, nd_value *g)
{
    GAIN(0, nd_roll(nd_ad_builder(d), g, op->axes[0], (int64_t)-op->num));
}

/* Is v the index of one axis plus a constant? */
static nd_axis *shifted_index(const nd_value *v, double *by)
{
    *by = 0;
    while (v->def && v->def->kind == OP_MAP &&
           (v->def->sub == EW_ADD || v->def->sub == EW_SUB)) {
        const nd_op *c = v->def->in[1]->def;
        if (!c || c->kind != OP_CONST)
            return NULL;
        *by += v->def->sub == EW_ADD ? c->num : -c->num;
        v = v->def->in[0];
    }
    bool index = v->def && v->def->kind == OP_INDEX && v->type.rank == 1;
    return index ? v->type.axis[0] : NULL;
}

/* The adjoint of x[a: index[b] + p] is g[b: index[a] - p]: outside it reads 0.
 * With one index per kept element no two rows collide, and the adjoint is a
 * comparison, which fuses; otherwise rows are added. */
static void vjp_gather(nd_ad *d, nd_op *op, nd_value *g)
{
    nd_builder *b = nd_ad_builder(d);
    nd_value *x = op->in[0], *ix = U(op->in[1]);
    double by;
    if (!nd_ad_active(d, x))
        return;
    bool aligned = true;
    for (int i = 0; i < ix->type.rank; i++)
        aligned &= nd_axis_at(&x->type, ix->type.axis[i]) >= 0;
    nd_axis *moved = aligned ? NULL : shifted_index(op->in[1], &by);
    if (moved) {
        nd_value *back = map2(d, EW_SUB, nd_positions(b, op->axes[0]),
                              nd_const(b, ND_I32, by));
        nd_ad_add(d, x, nd_gather(b, g, moved, back));
    } else if (aligned) {
        nd_value *hit = map2(d, EW_EQ, ix, nd_positions(b, op->axes[0]));
        nd_ad_add(d, x, select_or_zero(d, hit, g));
    } else {
        nd_type like = x->type;
        like.dtype = g->type.dtype;
        nd_ad_add(d, x, nd_scatter_add(b, g, op->axes[0], ix, &like));
    }
}

/* ---- the table ----------------------------------------------------------- */

#define vjp_NOGRAD NULL
#define vjp_repeat NULL              /* autodiff.c takes repeats apart */

static void vjp_map(nd_ad *d, nd_op *op, nd_value *g)
{
    static vjp_fn *const rules[EW_COUNT] = {
#define OP(...)
#define EW(K, name, nin, result, c, cost, value, vjp, doc) [EW_##K] = vjp_##vjp,
#include "ops.def"
#undef OP
#undef EW
    };
    if (rules[op->sub])
        rules[op->sub](d, op, g);
}

void nd_vjp(nd_ad *d, nd_op *op, nd_value *g)
{
    static vjp_fn *const rules[OP_COUNT] = {
#define OP(K, name, nin, attrs, traits, rule, vjp, eval, doc) \
    [OP_##K] = vjp_##vjp,
#define EW(...)
#include "ops.def"
#undef OP
#undef EW
    };
    if (rules[op->kind])
        rules[op->kind](d, op, g);
}
