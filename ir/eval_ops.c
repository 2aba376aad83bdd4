/* eval_ops.c - sources, elementwise ops, reductions, products, gather and
 * scatter: the ops that each rank runs on its own pieces.
 *
 * All are a walk (eval_walk.c) over the axes of the result and of what is
 * summed. Values are found by axis name, so nothing here depends on layout.
 */
#include "priv.h"

#include <math.h>
#include <string.h>

static const nd_type *in_type(const nd_op *op, int i)
{
    return &op->in[i]->type;
}

static bool misfit(ev_stage *s, const nd_op *op)
{
    return ev_error(s, op, "the operands hold different pieces");
}

/* ---- sources ------------------------------------------------------------- */

static const nd_tensor *feed(const ev_stage *s, const nd_op *op)
{
    for (int i = 0; i < s->w->o->nfeeds; i++)
        if (strcmp(s->w->o->feeds[i].name, op->name) == 0)
            return s->w->o->feeds[i].t;
    return NULL;
}

/* Every rank takes its piece of a global tensor. */
static bool spread(ev_stage *s, const nd_op *op, const nd_tensor *t)
{
    const nd_type *ty = &op->out[0]->type;
    bool fits = t->rank == ty->rank;
    for (int i = 0; fits && i < t->rank; i++)
        fits = t->dim[i] == ty->axis[i]->size;
    if (!fits)
        return ev_error(s, op, "what is fed to \"%s\" has other dimensions",
                        op->name);
    ev_piece whole = ev_whole(t), *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++) {
        ev_overlap(&whole, &out[r], t->rank, false);
        for (int64_t i = 0; i < out[r].count; i++)
            out[r].v[i] = ev_round(s, ty->dtype, out[r].v[i]);
    }
    return true;
}

bool eval_input(ev_stage *s, const nd_op *op)
{
    const nd_tensor *t = feed(s, op);
    if (!t)
        return ev_error(s, op, "no value for the input \"%s\"", op->name);
    return spread(s, op, t);
}

/* Every rank reads what it holds itself. */
static bool read_held(ev_stage *s, const nd_op *op, const nd_piece *held)
{
    ev_piece *out = ev_result(s, op, 0);
    int first = s->index * nd_mesh_ranks(&s->w->m->mesh);
    for (int r = 0; r < s->nranks; r++) {
        const nd_piece *p = &held[first + s->rank[r]];
        if (!p->v || p->count != out[r].count)
            return ev_error(s, op, "rank %d does not hold \"%s\"", s->rank[r],
                            op->name);
        memcpy(out[r].v, p->v, sizeof(double) * (size_t)p->count);
    }
    return true;
}

bool eval_param(ev_stage *s, const nd_op *op)
{
    const nd_tensor *t = feed(s, op);
    nd_module *m = s->w->m;
    int i = 0;
    while (i < m->params.n && m->params.v[i]->value != op->out[0])
        i++;
    if (s->w->o->held && i < m->params.n)
        return read_held(s, op, s->w->o->held[i]);
    if (!t && i < m->params.n)
        t = nd_eval_init(m, m->params.v[i], s->w->o->seed);
    return spread(s, op, t);
}

bool eval_const(ev_stage *s, const nd_op *op)
{
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++)
        for (int64_t i = 0; i < out[r].count; i++)
            out[r].v[i] = ev_round(s, op->out[0]->type.dtype, op->num);
    return true;
}

bool eval_index(ev_stage *s, const nd_op *op)
{
    ev_piece *out = ev_result(s, op, 0);
    const ev_frame *f = s->cur;
    if (op->out[0]->type.rank == 0)
        while (f && f->axis != op->axes[0])
            f = f->up;
    if (!f)
        return ev_error(s, op, "not inside a repeat over %s",
                        op->axes[0]->name);
    for (int r = 0; r < s->nranks; r++) {
        if (op->out[0]->type.rank == 0)
            out[r].v[0] = (double)f->iter;
        for (int64_t i = 0; op->out[0]->type.rank && i < out[r].n[0]; i++)
            out[r].v[i] = (double)(out[r].off[0] + i);
    }
    return true;
}

/* 0 or 1/(1-p). The comparison is the runtime's, in float; the value is in the
 * width that the evaluation runs in. */
static double mask(const ev_stage *s, const nd_op *op, uint64_t index,
                   uint32_t stream)
{
    uint32_t c[2];
    if (!s->w->o->training)
        return 1;
    nd_philox_draw(s->w->o->seed, index, (uint32_t)s->w->o->step, stream, c);
    float p = (float)op->num;
    if ((float)(c[0] >> 8) * 0x1p-24f < p)
        return 0;
    return s->w->o->f32 ? (double)(1.0f / (1.0f - p)) : 1 / (1 - op->num);
}

/* Counted over all repeats around it; -1 outside. */
static int64_t iteration(const ev_frame *f)
{
    int64_t i = 0, each = 1;
    bool inside = false;
    for (; f; f = f->up)
        if (f->axis) {
            i += f->iter * each;
            each *= f->axis->size;
            inside = true;
        }
    return inside ? i : -1;
}

/* The row-major index in the whole value of where the walk stands. */
static uint64_t whole_index(const nd_type *t, const ev_piece *p,
                            const ev_walk *w)
{
    uint64_t index = 0;
    for (int d = 0; d < t->rank; d++)
        index = index * (uint64_t)t->axis[d]->size +
                (uint64_t)(p->off[d] + w->i[d]);
    return index;
}

/* A number per element, by its place, the step and the iteration. */
static bool random_values(ev_stage *s, const nd_op *op,
                          double (*number)(const ev_stage *, const nd_op *,
                                           uint64_t, uint32_t))
{
    const nd_type *t = &op->out[0]->type;
    uint32_t stream = nd_stream(op->name, iteration(s->cur));
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++) {
        ev_walk w = {0};
        ev_over(&w, t, &out[r], NULL);
        ev_bind(&w, t, &out[r], NULL);
        for (bool go = ev_start(&w); go; go = ev_step(&w))
            w.v[0][w.at[0]] =
                number(s, op, whole_index(t, &out[r], &w), stream);
    }
    return true;
}

bool eval_random(ev_stage *s, const nd_op *op)
{
    return random_values(s, op, mask);
}

static double normal(const ev_stage *s, const nd_op *op, uint64_t index,
                     uint32_t stream)
{
    uint32_t c[2];
    nd_philox_draw(s->w->o->seed, index, (uint32_t)s->w->o->step, stream, c);
    return ev_round(s, op->out[0]->type.dtype, nd_normal_of(c));
}

bool eval_normal(ev_stage *s, const nd_op *op)
{
    return random_values(s, op, normal);
}

/* ---- elementwise --------------------------------------------------------- */

/* A float that does not fit becomes the nearest integer that does; NaN 0. */
static double to_integer(nd_dtype t, double x)
{
    double least = t == ND_I32 ? -0x1p31 : -0x1p63;
    double most = t == ND_I32 ? 0x1p31 - 1 : 0x1p63;
    return isnan(x) ? 0 : fmin(fmax(trunc(x), least), most);
}

/* What the op makes of its operands, before it is rounded. */
static double value_of(const nd_op *op, const double a[3])
{
    nd_dtype t = op->out[0]->type.dtype;
    bool whole = t == ND_I32 || t == ND_I64;
    if (op->kind != OP_MAP)
        return whole && nd_is_float(in_type(op, 0)->dtype)
                   ? to_integer(t, a[0])
                   : a[0];
    if (op->sub == EW_MUL && t == ND_I32)      /* exact, as 64 bits */
        return (int32_t)(uint32_t)((int64_t)a[0] * (int64_t)a[1]);
    return nd_ew_eval((nd_ew)op->sub, a[0], a[1], a[2]);
}

static double convert(const ev_stage *s, nd_dtype t, double x)
{
    if (t == ND_BOOL)
        return x != 0;
    return ev_round(s, t, nd_is_float(t) ? x : trunc(x));
}

/* out = f(operands), broadcast by name; f is an elementwise op or, for cast
 * and broadcast, the value itself. */
static bool elementwise(ev_stage *s, const nd_op *op)
{
    const nd_type *t = &op->out[0]->type;
    ev_piece *x[3] = {NULL};
    for (int k = 0; k < op->nin; k++)
        if (!(x[k] = ev_get(s, op, op->in[k])))
            return false;
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++) {
        ev_walk w = {0};
        double a[3] = {0};
        ev_over(&w, t, &out[r], NULL);
        ev_bind(&w, t, &out[r], NULL);
        for (int k = 0; k < op->nin; k++)
            ev_bind(&w, in_type(op, k), &x[k][r], NULL);
        if (w.bad)
            return misfit(s, op);
        for (bool go = ev_start(&w); go; go = ev_step(&w)) {
            for (int k = 0; k < op->nin; k++)
                a[k] = w.v[k + 1][w.at[k + 1]];
            w.v[0][w.at[0]] = convert(s, t->dtype, value_of(op, a));
        }
    }
    return true;
}

bool eval_map(ev_stage *s, const nd_op *op)
{
    return elementwise(s, op);
}

bool eval_cast(ev_stage *s, const nd_op *op)
{
    return elementwise(s, op);
}

bool eval_broadcast(ev_stage *s, const nd_op *op)
{
    return elementwise(s, op);
}

/* Views: the same numbers in the same order under another type. */
bool eval_copy(ev_stage *s, const nd_op *op)
{
    const ev_piece *x = ev_get(s, op, op->in[0]);
    if (!x)
        return false;
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++) {
        if (out[r].count != x[r].count)
            return misfit(s, op);
        memcpy(out[r].v, x[r].v, sizeof(double) * (size_t)x[r].count);
    }
    return true;
}

/* The result in row-major order, its flat axis spelled out in its parts. */
bool eval_flatten(ev_stage *s, const nd_op *op)
{
    const nd_type *t = &op->out[0]->type;
    const ev_piece *x = ev_get(s, op, op->in[0]);
    if (!x)
        return false;
    int flat = nd_axis_at(t, op->to[0]), k = 0;
    nd_type spelled = {.dtype = t->dtype};
    for (int i = 0; i < t->rank; i++)
        for (int j = 0; j < (i == flat ? op->naxes : 1); j++)
            spelled.axis[spelled.rank++] =
                i == flat ? op->axes[j] : t->axis[i];
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++) {
        ev_walk w = {0};
        ev_piece p = {0};
        for (k = 0; k < spelled.rank; k++) {
            int i = nd_axis_at(in_type(op, 0), spelled.axis[k]);
            p.off[k] = x[r].off[i];
            p.n[k] = x[r].n[i];
        }
        p.v = out[r].v;
        ev_over(&w, &spelled, &p, NULL);
        ev_bind(&w, &spelled, &p, NULL);
        ev_bind(&w, in_type(op, 0), &x[r], NULL);
        if (w.bad || out[r].count != x[r].count)
            return misfit(s, op);
        for (bool go = ev_start(&w); go; go = ev_step(&w))
            w.v[0][w.at[0]] = w.v[1][w.at[1]];
    }
    return true;
}

/* ---- reductions and products --------------------------------------------- */

static void finish(const ev_stage *s, nd_dtype t, ev_piece *p)
{
    for (int64_t i = 0; i < p->count; i++)
        p->v[i] = ev_round(s, t, p->v[i]);
}

/* Of no elements. An integer has no infinity: that would wrap to another. */
static double identity(nd_red red, nd_dtype t)
{
    double most = nd_is_float(t) ? INFINITY : t == ND_I64 ? 0x1p63 : 0x1p31 - 1;
    if (red == RED_SUM)
        return 0;
    return red != RED_MAX ? most : t == ND_I32 ? -0x1p31 : -most;
}

bool eval_reduce(ev_stage *s, const nd_op *op)
{
    const nd_type *t = &op->out[0]->type;
    const ev_piece *x = ev_get(s, op, op->in[0]);
    if (!x)
        return false;
    double empty = identity((nd_red)op->sub, t->dtype);
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++) {
        ev_walk w = {0};
        ev_over(&w, t, &out[r], NULL);
        ev_over(&w, in_type(op, 0), &x[r], NULL);
        ev_bind(&w, t, &out[r], NULL);
        ev_bind(&w, in_type(op, 0), &x[r], NULL);
        if (w.bad)
            return misfit(s, op);
        ev_only_arrived(s, &w, r);
        for (int64_t i = 0; i < out[r].count; i++)
            out[r].v[i] = empty;
        for (bool go = ev_start(&w); go; go = ev_step(&w)) {
            double *y = &w.v[0][w.at[0]], a = w.v[1][w.at[1]];
            if (op->sub == RED_SUM)
                *y += a;
            else if (op->sub == RED_MAX ? a > *y || isnan(a)
                                        : a < *y || isnan(a))
                *y = a;
        }
        finish(s, t->dtype, &out[r]);
    }
    return true;
}

bool eval_contract(ev_stage *s, const nd_op *op)
{
    const nd_type *t = &op->out[0]->type;
    const ev_piece *x = ev_get(s, op, op->in[0]);
    const ev_piece *y = x ? ev_get(s, op, op->in[1]) : NULL;
    if (!y)
        return false;
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++) {
        ev_walk w = {0};
        ev_over(&w, t, &out[r], NULL);
        ev_over(&w, in_type(op, 0), &x[r], NULL);
        ev_over(&w, in_type(op, 1), &y[r], NULL);
        ev_bind(&w, t, &out[r], NULL);
        ev_bind(&w, in_type(op, 0), &x[r], NULL);
        ev_bind(&w, in_type(op, 1), &y[r], NULL);
        if (w.bad)
            return misfit(s, op);
        for (bool go = ev_start(&w); go; go = ev_step(&w))
            w.v[0][w.at[0]] += w.v[1][w.at[1]] * w.v[2][w.at[2]];
        finish(s, t->dtype, &out[r]);
    }
    return true;
}

/* A walk over all but the op's own axis, along which the result and the operand
 * step by by[0] and by[1]. */
static bool along_axis(ev_walk *w, const nd_op *op, const ev_piece *out,
                       const ev_piece *x, int64_t by[2])
{
    const nd_type *t = &op->out[0]->type;
    ev_over(w, t, out, op->axes[0]);
    by[0] = ev_bind(w, t, out, op->axes[0]);
    by[1] = ev_bind(w, in_type(op, 0), x, op->axes[0]);
    return !w->bad;
}

bool eval_cumsum(ev_stage *s, const nd_op *op)
{
    const nd_type *t = &op->out[0]->type;
    const ev_piece *x = ev_get(s, op, op->in[0]);
    if (!x)
        return false;
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++) {
        ev_walk w = {0};
        int64_t by[2], n = out[r].n[nd_axis_at(t, op->axes[0])];
        if (!along_axis(&w, op, &out[r], &x[r], by))
            return misfit(s, op);
        for (bool go = ev_start(&w); go; go = ev_step(&w)) {
            double sum = 0;
            for (int64_t k = 0; k < n; k++) {
                int64_t i = op->reverse ? n - 1 - k : k;
                sum = ev_round(s, t->dtype, sum + w.v[1][w.at[1] + i * by[1]]);
                w.v[0][w.at[0] + i * by[0]] = sum;
            }
        }
    }
    return true;
}

bool eval_roll(ev_stage *s, const nd_op *op)
{
    const ev_piece *x = ev_get(s, op, op->in[0]);
    if (!x)
        return false;
    int64_t size = op->axes[0]->size, turn = nd_roll_by(op);
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++) {
        ev_walk w = {0};
        int64_t by[2];
        if (!along_axis(&w, op, &out[r], &x[r], by))
            return misfit(s, op);
        for (bool go = ev_start(&w); go; go = ev_step(&w))
            for (int64_t i = 0; i < size; i++)
                w.v[0][w.at[0] + i * by[0]] =
                    w.v[1][w.at[1] + (i + turn) % size * by[1]];
    }
    return true;
}

/* ---- gather and scatter -------------------------------------------------- */

/* Where a global index lies in the piece, or -1. NaN lies nowhere. */
int64_t ev_row_in(const ev_piece *p, int axis, double index)
{
    double k = index - (double)p->off[axis];
    return k >= 0 && k < (double)p->n[axis] ? (int64_t)k : -1;
}

/* A rank that holds a part of the indexed axis reads 0 for indices elsewhere:
 * the sum over the ranks is pending. */
bool eval_gather(ev_stage *s, const nd_op *op)
{
    const nd_type *t = &op->out[0]->type, *tx = in_type(op, 0);
    const ev_piece *x = ev_get(s, op, op->in[0]);
    const ev_piece *ix = x ? ev_get(s, op, op->in[1]) : NULL;
    if (!ix)
        return false;
    const nd_axis *a = op->axes[0];
    int k = nd_axis_at(tx, a);
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++) {
        ev_walk w = {0};
        ev_over(&w, t, &out[r], NULL);
        ev_bind(&w, t, &out[r], NULL);
        ev_bind(&w, in_type(op, 1), &ix[r], NULL);
        int64_t stride = ev_bind(&w, tx, &x[r], a);
        if (w.bad)
            return misfit(s, op);
        for (bool go = ev_start(&w); go; go = ev_step(&w)) {
            int64_t row = ev_row_in(&x[r], k, w.v[1][w.at[1]]);
            w.v[0][w.at[0]] = row < 0 ? 0 : w.v[2][w.at[2] + row * stride];
        }
    }
    return true;
}

bool eval_scatter_add(ev_stage *s, const nd_op *op)
{
    const nd_type *t = &op->out[0]->type;
    const ev_piece *g = ev_get(s, op, op->in[0]);
    const ev_piece *ix = g ? ev_get(s, op, op->in[1]) : NULL;
    if (!ix)
        return false;
    const nd_axis *a = op->axes[0];
    int k = nd_axis_at(t, a);
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++) {
        ev_walk w = {0};
        ev_over(&w, in_type(op, 1), &ix[r], NULL);
        ev_over(&w, in_type(op, 0), &g[r], NULL);
        ev_over(&w, t, &out[r], a);
        int64_t stride = ev_bind(&w, t, &out[r], a);
        ev_bind(&w, in_type(op, 0), &g[r], NULL);
        ev_bind(&w, in_type(op, 1), &ix[r], NULL);
        if (w.bad)
            return misfit(s, op);
        for (bool go = ev_start(&w); go; go = ev_step(&w)) {
            int64_t row = ev_row_in(&out[r], k, w.v[2][w.at[2]]);
            if (row >= 0)
                w.v[0][w.at[0] + row * stride] += w.v[1][w.at[1]];
        }
        finish(s, t->dtype, &out[r]);
    }
    return true;
}
