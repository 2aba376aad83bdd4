/* recompute.c - which forward values backward keeps, and which it makes again.
 *
 * Elementwise work costs little, so a value is kept only if that is the
 * cheapest way, in bytes, to have everything that backward reads: a minimum
 * cut between what cannot be made again (matrix products, reductions, what a
 * collective brought) and what backward reads.
 *
 *   %u = contract ...   %g = gelu(%u) in a dozen maps   backward reads %u, %g
 *   -> keep %u, compute the maps again next to their use
 *
 * `recompute attention` also makes products of two activations again that are
 * larger than both (scores); `recompute block` everything but what a repeat
 * carries. The same ops on the same operands give the same bits, dropout
 * included: its numbers depend on indices alone.
 */
#include "passes.h"

#include <string.h>

/* One forward block and the backward block that reads it. At the top they are
 * the same; for a repeat they are the bodies, joined by stacked values. */
typedef struct remat {
    nd_module *m;
    nd_block *from, *to;
    nd_op *fwd, *bwd;                /* the repeats, or NULL at the top */
    ND_VEC(nd_value *) values;       /* of `from`; a value's mark is 1 + this */
    bool *fenced;                    /* by value: made before the fence */
    bool *kept;
    nd_value **again;                /* the copy in `to`, by value */
    int at;                          /* where copies go in `to` */
} remat;

static int64_t local_bytes(const nd_module *m, const nd_type *t)
{
    int64_t n = (int64_t)nd_dtype_size(t->dtype);
    for (int i = 0; i < t->rank; i++)
        n *= nd_extent_max(&m->mesh, t->axis[i]->size, t->cut[i]);
    return n > 0 ? n : 1;
}

static bool product_of_activations(const remat *r, const nd_op *op)
{
    int64_t out = local_bytes(r->m, &op->out[0]->type);
    for (int i = 0; i < 2; i++) {
        const nd_value *x = op->in[i];
        if (nd_param_of(x) || nd_is_weight_copy(x) ||
            local_bytes(r->m, &x->type) >= out)
            return false;
    }
    return true;
}

/* What stands before a pipelined repeat runs on the first stage; the last one
 * would need its parameters to make it again. */
static bool other_stage(const remat *r, const nd_value *v)
{
    return !r->fwd && v->mark && r->fenced[v->mark - 1] && !nd_is_free(v) &&
           !nd_is_weight_copy(v);
}

static bool can_repeat(const remat *r, const nd_value *v)
{
    if (!v->def || other_stage(r, v))
        return false;
    /* A parameter that was gathered for one use is gathered for the next. */
    if (nd_is_weight_copy(v))
        return true;
    nd_remat how = r->m->plan.recompute;
    bool inside = how == REMAT_BLOCK && r->fwd;
    /* By what travelled with them the rows are known again in backward. */
    if (v->def->kind == OP_DISPATCH && !nd_is_float(v->type.dtype))
        return false;
    if (v->def->kind == OP_CONTRACT)
        return inside ||
               (how == REMAT_ATTENTION && product_of_activations(r, v->def));
    return nd_has_trait(v->def, 'c') || (inside && nd_has_trait(v->def, 'b'));
}

/* What backward has at no cost: outer values, parameters, inputs, hoisted. */
static bool at_hand(const remat *r, const nd_value *v)
{
    if (nd_block_of(v) != r->from)
        return true;
    if (nd_param_of(v))
        return true;
    return v->def && (v->def->kind == OP_INPUT || v->def->phase == PH_PRE);
}

/* ---- the cut ------------------------------------------------------------- */

static const nd_op *pipelined_repeat(const nd_module *m)
{
    if (m->mesh.pipe < 0 || m->mesh.size[m->mesh.pipe] == 1)
        return NULL;
    for (int i = 0; i < m->step->ops.n; i++)
        if (m->step->ops.v[i]->kind == OP_REPEAT &&
            nd_is_piped(m, m->step->ops.v[i]->axes[0]))
            return m->step->ops.v[i];
    return NULL;
}

static void collect(remat *r)
{
    nd_arena *a = r->m->ctx->arena;
    for (int i = 0; i < r->from->args.n; i++)
        ND_PUSH(a, &r->values, r->from->args.v[i]);
    for (int i = 0; i < r->from->ops.n; i++)
        for (int k = 0; k < r->from->ops.v[i]->nout; k++)
            if (r->from->ops.v[i]->phase != PH_BWD)
                ND_PUSH(a, &r->values, r->from->ops.v[i]->out[k]);
    const nd_op *fence = pipelined_repeat(r->m);
    r->fenced = ND_NEWN(a, bool, r->values.n + 1);
    bool before = fence && !r->fwd;
    for (int i = 0; i < r->values.n; i++) {
        r->values.v[i]->mark = i + 1;
        before &= r->values.v[i]->def != fence;
        r->fenced[i] = before;
    }
}

static void decide(remat *r, const bool *read)
{
    nd_arena *a = r->m->ctx->arena;
    int n = r->values.n;
    nd_mincut *c = nd_mincut_new(a, n);
    for (int i = 0; i < n; i++) {
        nd_value *v = r->values.v[i];
        if (at_hand(r, v))
            continue;
        nd_mincut_node(c, i, local_bytes(r->m, &v->type));
        if (read[i])
            nd_mincut_sink(c, i);
        if (!can_repeat(r, v)) {
            nd_mincut_source(c, i);
            continue;
        }
        for (int k = 0; k < v->def->nin; k++)
            if (!at_hand(r, v->def->in[k]))
                nd_mincut_edge(c, v->def->in[k]->mark - 1, i);
    }
    r->kept = ND_NEWN(a, bool, n + 1);
    r->again = ND_NEWN(a, nd_value *, n + 1);
    nd_mincut_solve(c, r->kept);
}

/* ---- rewriting backward -------------------------------------------------- */

static nd_value *scanned_already(const nd_op *bwd, const nd_value *whole)
{
    for (int i = bwd->ncarry; i < bwd->nin; i++)
        if (bwd->in[i] == whole)
            return bwd->body->args.v[i];
    return NULL;
}

/* v as it is, in the backward block: kept by stacking, or scanned again. */
static nd_value *bring(remat *r, nd_value *v)
{
    if (!r->fwd || nd_block_of(v) != r->from)
        return v;
    nd_value *whole = NULL, *arg;
    if (!v->def && v->index >= r->fwd->ncarry)
        whole = r->fwd->in[v->index];
    for (int i = r->fwd->ncarry; !whole && i < r->fwd->nout; i++)
        if (r->fwd->body->yields.v[i] == v)
            whole = r->fwd->out[i];
    if (!whole)
        whole = nd_repeat_stack(r->m, r->fwd, v);
    arg = scanned_already(r->bwd, whole);
    return arg ? arg : nd_repeat_scan(r->m, r->bwd, whole);
}

static nd_value *have(remat *r, nd_value *v)
{
    if (at_hand(r, v))
        return bring(r, v);
    int i = v->mark - 1;
    if (r->again[i])
        return r->again[i];
    if (r->kept[i] || !can_repeat(r, v))
        return r->again[i] = bring(r, v);
    nd_op *op = v->def;
    nd_value **in = ND_NEWN(r->m->ctx->arena, nd_value *, op->nin);
    for (int k = 0; k < op->nin; k++)
        in[k] = have(r, op->in[k]);
    nd_builder b = {.m = r->m, .block = r->to, .at = r->at, .phase = PH_BWD,
                    .loc = op->loc, .path = op->path};
    nd_op *c = nd_clone(&b, op, in);
    c->loc = op->loc;
    r->at = b.at;
    return r->again[i] = c->out[v->index];
}

/* The forward value that a scanned argument of the backward body stands for. */
static nd_value *stands_for(const remat *r, nd_value *v)
{
    if (!r->fwd)
        return v->def && v->def->phase != PH_BWD ? v : NULL;
    if (v->def || v->owner != r->to || v->index < r->bwd->ncarry)
        return NULL;
    nd_value *whole = r->bwd->in[v->index];
    if (whole->def != r->fwd || whole->index < r->fwd->ncarry)
        return NULL;
    return r->fwd->body->yields.v[whole->index];
}

/* Every place in the backward block, nested bodies included, that reads a
 * forward value: noted in `read`, or given what `have` finds. */
static void visit(remat *r, nd_value **place, bool *read)
{
    nd_value *v = stands_for(r, *place);
    if (!v || !v->mark)
        return;
    if (read)
        read[v->mark - 1] = true;
    else
        *place = have(r, v);
}

static void visit_op(remat *r, nd_op *op, bool *read)
{
    /* What a repeat scans is decided with its body. */
    int nin = op->kind == OP_REPEAT && !read ? op->ncarry : op->nin;
    for (int k = 0; k < nin; k++)
        visit(r, &op->in[k], read);
    if (!op->body)
        return;
    for (int i = 0; i < op->body->ops.n; i++)
        visit_op(r, op->body->ops.v[i], read);
    for (int i = 0; i < op->body->yields.n; i++)
        visit(r, &op->body->yields.v[i], read);
}

static void visit_block(remat *r, bool *read)
{
    for (r->at = 0; r->at < r->to->ops.n; r->at++)
        if (r->to->ops.v[r->at]->phase == PH_BWD)
            visit_op(r, r->to->ops.v[r->at], read);
    for (int i = 0; i < r->to->yields.n; i++)
        visit(r, &r->to->yields.v[i], read);
}

static void run(nd_module *m, nd_block *from, nd_block *to, nd_op *fwd,
                nd_op *bwd)
{
    remat r = {.m = m, .from = from, .to = to, .fwd = fwd, .bwd = bwd};
    nd_clear_marks(m);
    collect(&r);
    bool *read = ND_NEWN(m->ctx->arena, bool, r.values.n + 1);
    visit_block(&r, read);
    decide(&r, read);
    visit_block(&r, NULL);
}

/* The forward repeat whose stacked values this one scans, or NULL. */
static nd_op *forward_of(const nd_op *bwd)
{
    for (int i = bwd->ncarry; i < bwd->nin; i++)
        if (bwd->in[i]->def && bwd->in[i]->def->kind == OP_REPEAT)
            return bwd->in[i]->def;
    return NULL;
}

bool pass_recompute(nd_module *m, const nd_options *o)
{
    for (int i = 0; i < m->step->ops.n; i++) {
        nd_op *bwd = m->step->ops.v[i];
        if (bwd->kind != OP_REPEAT || !bwd->reverse)
            continue;
        nd_op *fwd = forward_of(bwd);
        if (fwd)
            run(m, fwd->body, bwd->body, fwd, bwd);
    }
    run(m, m->step, m->step, NULL, NULL);
    /* Copies may repeat what backward has already, such as a mask. */
    return pass_simplify(m, o);
}
