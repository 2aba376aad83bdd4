/* made_up.c - inputs nobody has data for.
 *
 *   step 1, x f32[batch]       0.71, 0.02, 0.55 ...   uniform in [0, 1)
 *           tokens i32[seq]    3, 0, 12 ...           below the vocabulary
 *   left out: targets          3, 0, -1, 12, -1 ...   -1 is what is ignored
 *
 * The numbers are those that a program with `data = synthetic` trains on.
 * Leaving some out gives the rows unequal counts, without which a mean of means
 * looks right.
 */
#include "ir.h"

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

/* Row 0 stays, and of the next three 1/8, 2/8 and 3/8 go. */
void nd_leave_out(nd_module *m, const nd_value *input, uint64_t seed,
                  int64_t step, nd_tensor *t)
{
    nd_range r = nd_range_of(m, input);
    bool ignores = r.limit && (r.ignore < 0 || r.ignore >= r.limit);
    double out = ignores ? (double)r.ignore : 0;
    int64_t rows = t->rank ? t->dim[0] : 1, each = rows ? t->n / rows : 0;
    uint32_t stream = nd_stream(input->def->name, -1), u[2];
    if (nd_is_float(input->type.dtype) || (r.limit && !ignores))
        return;
    for (int64_t i = 0; i < t->n; i++) {
        nd_philox_draw(seed, (uint64_t)i, (uint32_t)step, stream, u);
        if ((int64_t)(u[1] % 8) < i / each % 4)
            t->v[i] = out;
    }
}
