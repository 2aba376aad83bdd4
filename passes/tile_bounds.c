/* tile_bounds.c - where the inner axis of a tile may begin and end.
 *
 *   x = where(kv <= seq, s, -inf)    kv > every seq of the tile: x is -inf,
 *   m = max x                        which no maximum sees,
 *   e = exp(x - m)                   e is 0, which no sum sees,
 *   o = sum[kv](e v)                 nor a product
 *
 * So the tile ends behind its last seq: kernels inside run over fewer kv, and
 * what lies beyond is never computed. With |kv - seq| < w it also begins later.
 *
 * A bound is a guess, proved or dropped: some comparison of the two indices is
 * decided beyond it. What that makes of every value there is found by computing
 * with the constants; each sum, maximum and product over the inner axis must
 * then add nothing. Infinities and NaN that the skipped part would have brought
 * in by 0 * x are left out.
 */
#include "passes.h"

#include <math.h>
#include <stdlib.h>

/* All kv and seq with kv - seq > at, or < at. */
typedef struct region {
    bool above;
    int64_t at;
} region;

typedef struct known {
    bool is;
    double v;
} known;

typedef struct finder {
    nd_code *c;
    const nd_tiles *t;
    const nd_axis *block;            /* the axis that is taken in blocks */
    region r;
    nd_table seen;                   /* value -> known, in the region */
    ND_VEC(region) guess;
} finder;

/* ---- comparisons of the two indices -------------------------------------- */

/* What is compared steps by 1; on the way there it may step by more. Doubling
 * ends here, too. */
enum { MOST = 4 };

/* inner * kv + block * seq + c; or its absolute value. */
typedef struct affine {
    bool ok, abs;
    int inner, block;
    double c;
} affine;

static affine renamed(const finder *f, const nd_op *op, affine x)
{
    bool across = op->axes[0] == f->block && op->to[0] == f->t->inner;
    if (x.inner || (x.block && !across))
        x.ok = false;
    x.inner = x.block;
    x.block = 0;
    return x;
}

static affine affine_of(const finder *f, const nd_value *v)
{
    affine none = {0}, x, y;
    const nd_op *op = v->def;
    if (!op)
        return none;
    if (op->kind == OP_CONST)
        return (affine){.ok = !nd_is_float(v->type.dtype) &&
                              fabs(op->num) < 1 << 28, .c = op->num};
    if (op->kind == OP_INDEX && v->type.rank == 1)
        return (affine){.ok = op->axes[0] == f->t->inner ||
                              op->axes[0] == f->block,
                        .inner = op->axes[0] == f->t->inner,
                        .block = op->axes[0] == f->block};
    if (op->kind == OP_STOP_GRAD || op->kind == OP_SLICE ||
        op->kind == OP_BROADCAST)
        return affine_of(f, op->in[0]);
    if (op->kind == OP_RENAME) {
        x = affine_of(f, op->in[0]);
        return x.ok && !x.abs ? renamed(f, op, x) : none;
    }
    if (op->kind != OP_MAP)
        return none;
    bool binary = op->sub == EW_ADD || op->sub == EW_SUB;
    if (!binary && op->sub != EW_NEG && op->sub != EW_ABS)
        return none;
    x = affine_of(f, op->in[0]);
    if (!x.ok || x.abs)
        return none;
    y = binary ? affine_of(f, op->in[1]) : (affine){.ok = true};
    if (!y.ok || y.abs)
        return none;
    if (op->sub == EW_ABS) {
        x.abs = true;
        return x;
    }
    if (op->sub == EW_NEG)
        return (affine){.ok = true, .inner = -x.inner, .block = -x.block,
                        .c = -x.c};
    int sign = op->sub == EW_SUB ? -1 : 1;
    x.inner += sign * y.inner;
    x.block += sign * y.block;
    x.c += sign * y.c;
    x.ok = abs(x.inner) <= MOST && abs(x.block) <= MOST;
    return x;
}

/* With d = kv - seq: lo <= d <= hi, as far as each is there. */
typedef struct span {
    bool ok, has_lo, has_hi;
    int64_t lo, hi;
} span;

static span span_of(const finder *f, const nd_op *op)
{
    span s = {0};
    if (op->kind != OP_MAP || (op->sub != EW_LT && op->sub != EW_LE))
        return s;
    affine x = affine_of(f, op->in[0]), y = affine_of(f, op->in[1]);
    if (!x.ok || !y.ok || y.abs || nd_is_float(op->in[0]->type.dtype))
        return s;
    double less = op->sub == EW_LT;
    if (x.abs) {                     /* |+-d + 0| <= most */
        int64_t most = (int64_t)(y.c - less);
        s.ok = !x.c && x.inner * x.block == -1 && !y.inner && !y.block;
        s.has_lo = s.has_hi = true;
        s.lo = -most;
        s.hi = most;
        return s;
    }
    int inner = x.inner - y.inner, block = x.block - y.block;
    double c = y.c - x.c - less;     /* inner * kv + block * seq <= c */
    s.ok = inner * block == -1;
    s.has_hi = inner == 1;
    s.has_lo = inner == -1;
    s.hi = (int64_t)c;
    s.lo = (int64_t)-c;
    return s;
}

/* The comparison, everywhere in the region. */
static known decided(const finder *f, const nd_op *op)
{
    span s = span_of(f, op);
    int64_t at = f->r.at;
    if (!s.ok)
        return (known){0};
    if (f->r.above ? s.has_hi && s.hi <= at : s.has_lo && s.lo >= at)
        return (known){true, 0};
    bool all = f->r.above ? !s.has_hi && s.lo <= at + 1
                          : !s.has_lo && s.hi >= at - 1;
    return (known){all, 1};
}

/* ---- values in the region ------------------------------------------------ */

static known known_of(finder *f, const nd_value *v);

static bool is_value(known x, double v)
{
    return x.is && x.v == v;
}

static known known_map(finder *f, const nd_op *op)
{
    known x[3] = {{0}}, none = {0};
    bool all = true;
    for (int i = 0; i < op->nin; i++) {
        x[i] = known_of(f, op->in[i]);
        all &= x[i].is;
    }
    if (all)
        return (known){true, nd_ew_eval((nd_ew)op->sub, x[0].v, x[1].v,
                                        x[2].v)};
    bool zero = is_value(x[0], 0) || (op->nin > 1 && is_value(x[1], 0));
    switch (op->sub) {
    case EW_WHERE:
        return !x[0].is ? none : x[0].v != 0 ? x[1] : x[2];
    case EW_AND:
    case EW_MUL:
        return (known){zero, 0};
    case EW_OR:
        return (known){is_value(x[0], 1) || is_value(x[1], 1), 1};
    case EW_DIV:
        return (known){is_value(x[0], 0), 0};
    case EW_SUB:
        return (known){is_value(x[0], -INFINITY), -INFINITY};
    case EW_ADD:
        return (known){is_value(x[0], -INFINITY) || is_value(x[1], -INFINITY),
                       -INFINITY};
    default:
        return none;
    }
}

/* Casts that change no bit of what matters here. */
static known known_cast(finder *f, const nd_op *op)
{
    known x = known_of(f, op->in[0]);
    nd_dtype to = op->out[0]->type.dtype;
    bool exact = x.v == 0 || x.v == 1 || (isinf(x.v) && nd_is_float(to));
    return (known){x.is && exact, x.v};
}

static known know(finder *f, const nd_value *v)
{
    const nd_op *op = v->def;
    known x = {0};
    if (!op)
        return x;
    switch (op->kind) {
    case OP_CONST:
        return (known){true, op->num};
    case OP_MAP:
        x = decided(f, op);
        return x.is ? x : known_map(f, op);
    case OP_CAST:
        return known_cast(f, op);
    case OP_STOP_GRAD:
    case OP_BROADCAST:
    case OP_SLICE:
        return known_of(f, op->in[0]);
    default:
        return x;
    }
}

static known known_of(finder *f, const nd_value *v)
{
    known *x = nd_table_get(&f->seen, v);
    if (!x) {
        x = ND_NEW(f->c->a, known);
        nd_table_put(&f->seen, v, x);
        *x = know(f, v);
    }
    return *x;
}

/* ---- the proof ----------------------------------------------------------- */

static bool has(const nd_value *v, const nd_axis *a)
{
    return nd_axis_at(&v->type, a) >= 0;
}

static bool is_inside(const finder *f, const nd_value *v)
{
    return nd_info(f->c, v)->tiles == f->t;
}

/* Does nothing of the region reach what the nest makes? */
static bool loop_ignores(finder *f, const nd_kernel *k)
{
    for (int i = 0; i < k->nodes.n; i++) {
        const nd_node *n = &k->nodes.v[i];
        static const double nothing[] = {[RED_SUM] = 0, [RED_MAX] = -INFINITY,
                                         [RED_MIN] = INFINITY};
        if (n->fold ? !is_value(known_of(f, n->op->in[0]), nothing[n->op->sub])
                    : n->stored && has(n->op->out[0], f->t->inner) &&
                          !is_inside(f, n->op->out[0]))
            return false;
    }
    return true;
}

static bool product_ignores(finder *f, const nd_op *op)
{
    const nd_axis *inner = f->t->inner;
    bool zero = false;
    for (int i = 0; i < 2; i++)
        zero |= has(op->in[i], inner) && is_value(known_of(f, op->in[i]), 0);
    if (nd_has_axis(op, inner))
        return zero;
    /* Rows that a tile has no part in: 0 is added to them. */
    return is_inside(f, op->out[0]) || !has(op->out[0], inner) ||
           (zero && nd_has_axis(op, f->block));
}

static bool holds(finder *f, region r)
{
    f->r = r;
    f->seen = (nd_table){.arena = f->c->a};
    for (int i = 0; i < f->t->v.n; i++) {
        const nd_kernel *k = f->t->v.v[i];
        if (k->kind == K_LOOP ? !loop_ignores(f, k)
                              : !product_ignores(f, k->nodes.v[0].op))
            return false;
    }
    return true;
}

/* ---- guesses ------------------------------------------------------------- */

static void guess(finder *f, const nd_value *v)
{
    const nd_op *op = v->def;
    if (!op || op->body || nd_table_get(&f->seen, v))
        return;
    nd_table_put(&f->seen, v, f);
    span s = span_of(f, op);
    if (s.ok && s.has_hi)
        ND_PUSH(f->c->a, &f->guess, ((region){true, s.hi}));
    if (s.ok && s.has_lo)
        ND_PUSH(f->c->a, &f->guess, ((region){false, s.lo}));
    if (op->kind == OP_MAP || op->kind == OP_CAST || nd_has_trait(op, 'v'))
        for (int i = 0; i < op->nin; i++)
            guess(f, op->in[i]);
}

static void guess_all(finder *f)
{
    f->seen = (nd_table){.arena = f->c->a};
    for (int i = 0; i < f->t->v.n; i++)
        for (int j = 0; j < f->t->v.v[i]->nodes.n; j++) {
            const nd_op *op = f->t->v.v[i]->nodes.v[j].op;
            for (int k = 0; k < op->nin; k++)
                guess(f, op->in[k]);
        }
}

void nd_bound_tiles(nd_code *c, nd_tiles *t)
{
    finder f = {.c = c, .t = t, .block = t->axis[t->blocked].axis};
    guess_all(&f);
    for (int i = 0; i < f.guess.n; i++) {
        region r = f.guess.v[i];
        bool nearer = r.above ? !t->ends || r.at < t->end
                              : !t->begins || r.at > t->begin;
        if (!nearer || !holds(&f, r))
            continue;
        *(r.above ? &t->ends : &t->begins) = true;
        *(r.above ? &t->end : &t->begin) = r.at;
    }
    if (t->ends || t->begins)
        t->inner_part = nd_tile_ext(c, t->inner_ext,
                                    c->exts.v[t->inner_ext].max, false,
                                    !t->begins);
}
