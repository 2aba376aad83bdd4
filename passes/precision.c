/* precision.c - train { precision = bf16 }: products multiply bf16 operands and
 * sum in f32; everything else stays f32, weights included.
 *
 *   %y = contract [d] %x, %w : f32[batch, e]
 *   ->
 *   %xb = cast %x : bf16[batch, d]    one for all products of the block
 *   %wb = cast %w : bf16[d, e]
 *   %y = contract [d] %xb, %wb : f32[batch, e]
 *
 * It runs before autodiff, so backward products follow by themselves: they read
 * %xb and %wb, which is also what is kept for them, half as large, and round
 * the gradient that comes in (vjp.c).
 *
 * Three kinds of products stay f32:
 *
 *   exact          the program says so: a factor is written cast[f32](x)
 *   free           of inputs, indices and constants alone: masks, positions
 *   without rows   of weights alone: done once per step, and their gradients
 *                  are sums over microbatches and ranks, which could only be
 *                  rounded part by part. What is computed would depend on the
 *                  plan.
 */
#include "passes.h"

/* A value's mark: these bits, later FIRST_CAST + its index in `casts`. */
enum { FREE = 1, ROWS = 2, FIRST_CAST = 4 };

typedef struct work {
    nd_module *m;
    nd_dtype to;
    ND_VEC(nd_value *) casts;
} work;

static bool has_rows(const nd_value *v)
{
    return v->mark & ROWS;
}

/* ---- what depends on the rows of the batch ------------------------------- */

static bool set_rows(nd_value *v, bool rows)
{
    if (!rows || has_rows(v))
        return false;
    v->mark |= ROWS;
    return true;
}

/* A sum of inputs over the rows is known before the step begins, as if it were
 * an input without rows; a sum of anything else is not. */
static bool depends(const work *w, const nd_op *op)
{
    bool rows = !w->m->sample ||
                nd_axis_at(&op->out[0]->type, w->m->sample) >= 0;
    for (int i = 0; i < op->nin && !(op->out[0]->mark & FREE); i++)
        rows |= has_rows(op->in[i]);
    return rows;
}

static bool spread(const work *w, nd_block *b);

/* Until nothing changes: what a repeat carries may gain rows on the way. */
static bool spread_repeat(const work *w, nd_op *op)
{
    nd_block *b = op->body;
    bool changed = false;
    for (int i = 0; i < op->nin; i++)
        changed |= set_rows(b->args.v[i], has_rows(op->in[i]));
    changed |= spread(w, b);
    for (int i = 0; i < op->nout; i++) {
        bool rows = has_rows(b->yields.v[i]);
        changed |= set_rows(op->out[i], rows);
        if (i < op->ncarry)
            changed |= set_rows(b->args.v[i], rows);
    }
    return changed;
}

static bool spread(const work *w, nd_block *b)
{
    bool changed = false;
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        if (op->body)
            changed |= spread_repeat(w, op);
        else if (op->nout)
            changed |= set_rows(op->out[0], depends(w, op));
    }
    return changed;
}

/* ---- casts --------------------------------------------------------------- */

/* v in bf16, made in front of the op that the builder stands at, or found: a
 * block makes its own, because a weight is cheaper to cast again than to keep
 * across iterations. Rows that travel to their experts are cast before. */
static nd_value *narrow(work *w, nd_builder *b, nd_value *v)
{
    if (v->mark >= FIRST_CAST) {
        nd_value *known = w->casts.v[v->mark - FIRST_CAST];
        if (nd_block_of(known) == b->block)
            return known;
    }
    const nd_op *go = v->def && v->def->kind == OP_DISPATCH &&
                              v->def->block == b->block ? v->def : NULL;
    nd_value *x = go ? narrow(w, b, go->in[0]) : NULL;
    b->hint = v->name;
    nd_value *c = go ? nd_dispatch(b, x, go->in[1], go->axes[0])
                     : nd_cast(b, v, w->to);
    v->mark = FIRST_CAST + w->casts.n;
    ND_PUSH(w->m->ctx->arena, &w->casts, c);
    return c;
}

static bool stays_f32(const nd_op *op)
{
    return (op->kind != OP_CONTRACT && op->kind != OP_GROUPED) || op->sub ||
           op->in[0]->type.dtype != ND_F32 || !has_rows(op->out[0]) ||
           op->out[0]->mark & FREE;
}

static void rewrite(work *w, nd_block *block)
{
    for (int i = 0; i < block->ops.n; i++) {
        nd_op *op = block->ops.v[i];
        if (op->body)
            rewrite(w, op->body);
        if (stays_f32(op))
            continue;
        nd_builder b = {.m = w->m, .block = block, .at = i,
                        .phase = op->phase, .loc = op->loc, .path = op->path};
        op->in[0] = narrow(w, &b, op->in[0]);
        op->in[1] = narrow(w, &b, op->in[1]);
        i = b.at;
    }
}

bool pass_precision(nd_module *m, const nd_options *o)
{
    (void)o;
    work w = {.m = m, .to = m->train.precision};
    if (!nd_is_narrow(w.to) || m->state & ND_HAS_GRADS)
        return true;
    nd_mark_free(m);
    while (spread(&w, m->step))
        ;
    rewrite(&w, m->step);
    return true;
}
