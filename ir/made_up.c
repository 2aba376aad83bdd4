/* made_up.c - inputs nobody has data for.
 *
 *   step 1, x f32[batch]       0.71, 0.02, 0.55 ...   uniform in [0, 1)
 *           tokens i32[seq]    3, 0, 12 ...           below the vocabulary
 *   left out: targets          3, 0, -1, 12, -1 ...   -1 is what is ignored
 *   compared: kind == 7        7, 201, 6, 7, 0 ...    7, what is beside it, all
 *
 * The numbers are those that a program with `data = synthetic` trains on.
 * Leaving some out gives the rows unequal counts, without which a mean of means
 * looks right; and what is compared with a constant must be that at times, or
 * the mean is one of no rows.
 */
#include "ir.h"

#include <math.h>

enum { DEFAULT_LIMIT = 256 };

nd_tensor *nd_made_up(nd_module *m, const nd_value *input, uint64_t seed,
                      int64_t step)
{
    nd_arena *a = m->ctx->arena;
    nd_tensor *t = ND_NEW(a, nd_tensor);
    int64_t limit = nd_range_of(m, input).limit;
    uint32_t stream = nd_stream(input->def->name, -1), u[2];
    t->rank = input->type.rank;
    t->n = nd_numel(&input->type);
    for (int i = 0; i < t->rank; i++)
        t->dim[i] = input->type.axis[i]->size;
    t->v = ND_NEWN(a, double, t->n + 1);
    for (int64_t i = 0; i < t->n; i++) {
        nd_philox_draw(seed, (uint64_t)i, (uint32_t)step, stream, u);
        if (nd_is_float(input->type.dtype))
            t->v[i] = (u[0] >> 8) * 0x1p-24;
        else if (input->type.dtype == ND_BOOL)
            t->v[i] = u[0] >> 31;
        else
            t->v[i] = u[0] % (uint32_t)(limit ? limit : DEFAULT_LIMIT);
    }
    return t;
}

/* ---- what it is compared with -------------------------------------------- */

enum { MOST_CONSTANTS = 16, FURTHEST = 1 << 24 };

typedef struct compared {
    const nd_value *input;
    int n;
    double v[MOST_CONSTANTS];
} compared;

static const nd_op *constant(const nd_value *v)
{
    while (v->def && (v->def->kind == OP_BROADCAST || v->def->kind == OP_CAST))
        v = v->def->in[0];
    return v->def && v->def->kind == OP_CONST ? v->def : NULL;
}

/* What v has its numbers from: they lie elsewhere there, or are no floats. */
static const nd_value *source_of(const nd_value *v)
{
    const nd_op *op = v->def;
    if (!op)
        return v->owner->parent ? v->owner->parent->in[v->index] : NULL;
    switch (op->kind) {
    case OP_BROADCAST:
    case OP_CAST:
    case OP_FLATTEN:
    case OP_GATHER:
    case OP_RENAME:
    case OP_ROLL:
    case OP_SLICE:
    case OP_SPLIT:
        return op->in[0];
    default:
        return NULL;
    }
}

static bool is_of(const nd_value *v, const nd_value *input)
{
    while (v && v != input)
        v = source_of(v);
    return v;
}

static void note_constant(nd_op *op, void *user)
{
    compared *c = user;
    if (op->kind != OP_MAP || op->nin != 2 || op->out[0]->type.dtype != ND_BOOL)
        return;
    for (int i = 0; i < 2; i++) {
        const nd_op *k = constant(op->in[!i]);
        bool known = !k || fabs(k->num) > FURTHEST || c->n == MOST_CONSTANTS;
        for (int j = 0; !known && j < c->n; j++)
            known = c->v[j] == floor(k->num);
        if (!known && is_of(op->in[i], c->input))
            c->v[c->n++] = floor(k->num);
    }
}

/* A half of the elements become a constant, a quarter what is one above or
 * below it, where an index may be that. */
static void meet_constants(nd_module *m, const nd_value *input, int64_t limit,
                           uint64_t seed, int64_t step, nd_tensor *t)
{
    static const int beside[8] = {0, 0, 0, 0, 1, -1};
    compared c = {.input = input};
    uint32_t stream = nd_stream(input->def->name, 0), u[2];
    nd_walk(m->step, note_constant, &c);
    for (int64_t i = 0; i < t->n && c.n; i++) {
        nd_philox_draw(seed, (uint64_t)i, (uint32_t)step, stream, u);
        double x = c.v[u[1] % (uint32_t)c.n] + beside[u[0] % 8];
        if (u[0] % 8 < 6 && (!limit || (x >= 0 && x < (double)limit)))
            t->v[i] = x;
    }
}

/* ---- what is left out ---------------------------------------------------- */

/* Row 0 stays, and of the next three 1/8, 2/8 and 3/8 go. */
void nd_leave_out(nd_module *m, const nd_value *input, uint64_t seed,
                  int64_t step, nd_tensor *t)
{
    nd_range r = nd_range_of(m, input);
    bool ignores = r.limit && (r.ignore < 0 || r.ignore >= r.limit);
    double out = ignores ? (double)r.ignore : 0;
    int64_t rows = t->rank ? t->dim[0] : 1, each = rows ? t->n / rows : 0;
    uint32_t stream = nd_stream(input->def->name, -1), u[2];
    if (nd_is_float(input->type.dtype))
        return;
    if (input->type.dtype != ND_BOOL)
        meet_constants(m, input, r.limit, seed, step, t);
    if (r.limit && !ignores)
        return;
    for (int64_t i = 0; i < t->n; i++) {
        nd_philox_draw(seed, (uint64_t)i, (uint32_t)step, stream, u);
        if ((int64_t)(u[1] % 8) < i / each % 4)
            t->v[i] = out;
    }
}
