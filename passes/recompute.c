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
 * Of what costs the same, that is kept which forward writes in any case, so
 * that nothing is written for backward alone: the input of a norm, not its
 * difference from the mean; logits, not their exponentials (written.c).
 *
 * A product of two activations that is far larger than both, such as the
 * scores of attention, is made again as well: of a softmax backward keeps the
 * maximum and the sum of each row then, and nothing as long as all keys.
 * `recompute attention` asks for that wherever it is larger at all; `recompute
 * block` makes everything again but what a repeat carries. The same ops on the
 * same operands give the same bits, dropout included: its numbers depend on
 * indices alone.
 *
 * The same choice is made for gradients of weights that wait (split.c): what of
 * the gradients of inputs is kept for them. Their products are not made again.
 */
#include "recompute.h"

#include <string.h>

typedef struct remat {
    nd_module *m;
    const nd_pair *p;
    ND_VEC(nd_value *) values;       /* of `from`; a value's mark is 1 + this */
    bool *fixed;                     /* by value: what makes it is elsewhere */
    bool *of_grads;                  /* by value: depends on a gradient */
    bool *compared;                  /* by value: it must be the same bits */
    bool *there;                     /* by value: in memory, kept or not */
    bool *kept;
    nd_value **again;                /* the copy in `to`, by value */
    int at;                          /* where copies go in `to` */
    const nd_op *reading;            /* the op of `to` at hand */
} remat;

static int64_t local_bytes(const nd_module *m, const nd_type *t)
{
    int64_t n = (int64_t)nd_dtype_size(t->dtype);
    for (int i = 0; i < t->rank; i++)
        n *= nd_extent_max(&m->mesh, t->axis[i]->size, t->cut[i]);
    return n > 0 ? n : 1;
}

/* Is it one of two activations, and larger than `times` either? */
static bool outgrows(const remat *r, const nd_op *op, int times)
{
    int64_t out = local_bytes(r->m, &op->out[0]->type);
    for (int i = 0; i < 2; i++) {
        const nd_value *x = op->in[i];
        if (nd_param_of(x) || nd_is_weight_copy(x) ||
            times * local_bytes(r->m, &x->type) >= out)
            return false;
    }
    return true;
}

/* What runs before the ops that read. */
static bool is_early(const remat *r, const nd_op *op)
{
    return op->phase == PH_PRE || op->phase < r->p->reader;
}

static bool can_repeat(const remat *r, const nd_value *v)
{
    if (!v->def)
        return false;
    /* A parameter that was gathered for one use is gathered for the next. */
    if (nd_is_weight_copy(v))
        return true;
    if (v->mark && r->fixed[v->mark - 1] && !nd_is_free(v))
        return false;
    /* Forward work may be done again, and no other. */
    bool forward = !v->mark || !r->of_grads[v->mark - 1];
    nd_remat how = forward ? r->m->plan.recompute : REMAT_NONE;
    bool inside = how == REMAT_BLOCK && r->p->early;
    /* By what travelled with them the rows are known again in backward. */
    if (v->def->kind == OP_DISPATCH && !nd_is_float(v->type.dtype))
        return false;
    if (v->def->kind == OP_CONTRACT && v->mark && r->compared[v->mark - 1] &&
        outgrows(r, v->def, ND_FAR_LARGER))
        return false;
    if (v->def->kind == OP_CONTRACT)
        return inside ||
               (forward &&
                outgrows(r, v->def,
                         how == REMAT_ATTENTION ? 1 : ND_FAR_LARGER));
    return nd_has_trait(v->def, 'c') || (inside && nd_has_trait(v->def, 'b'));
}

/* What the reader has at no cost: outer values, parameters, inputs, hoisted. */
static bool at_hand(const remat *r, const nd_value *v)
{
    if (nd_block_of(v) != r->p->from)
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

/* What stands before the first pipelined repeat runs on early stages; others
 * would need its parameters to make it again. */
static void find_fenced(remat *r)
{
    const nd_op *fence = pipelined_repeat(r->m);
    bool before = fence && !r->p->early && r->p->reader == PH_BWD;
    for (int i = 0; i < r->values.n; i++) {
        before &= r->values.v[i]->def != fence;
        r->fixed[i] = before;
    }
}

/* What a carried or scanned value of the earlier body is made from. */
static bool arg_of_grads(const remat *r, const nd_value *v)
{
    const nd_op *early = r->p->early;
    if (!early || early->phase == PH_FWD)
        return false;
    const nd_op *d = early->in[v->index]->def;
    return v->index < early->ncarry || !d || d->phase == PH_BWD;
}

static bool made_of_grads(const remat *r, const nd_value *v)
{
    if (v->mark)
        return r->of_grads[v->mark - 1];
    const nd_op *op = v->def ? v->def : v->owner->parent;
    return op && op->phase == PH_BWD;
}

static void find_of_grads(remat *r)
{
    for (int i = 0; i < r->values.n; i++) {
        const nd_value *v = r->values.v[i];
        bool of = !v->def ? arg_of_grads(r, v)
                          : v->def->kind == OP_REPEAT &&
                                v->def->phase == PH_BWD;
        for (int k = 0; v->def && !v->def->body && k < v->def->nin; k++)
            of |= made_of_grads(r, v->def->in[k]);
        r->of_grads[i] = of;
    }
}

/* Is v made on other stages than those on which op reads it? */
static bool elsewhere(const remat *r, const nd_op *op, const nd_value *v)
{
    if (!r->p->places || r->p->early || !v->def)
        return false;
    pipe_place at = pipe_place_of(r->p->places, op);
    pipe_place made = pipe_place_of(r->p->places, v->def);
    return !made.demand && (at.demand || at.first != made.first ||
                            at.last != made.last);
}

static void find_elsewhere(remat *r)
{
    for (int i = 0; i < r->values.n; i++) {
        const nd_op *op = r->values.v[i]->def;
        for (int k = 0; op && !op->body && k < op->nin; k++)
            if (op->in[k]->mark && elsewhere(r, op, op->in[k]))
                r->fixed[op->in[k]->mark - 1] = true;
    }
}

/* For gradients of weights: what forward keeps for those of inputs, and what
 * these write for a product. */
static void find_saved(remat *r)
{
    const nd_block *from = r->p->from;
    for (int i = 0; i < from->args.n; i++)
        r->there[i] = r->p->early && i >= r->p->early->ncarry;
    for (int i = 0; i < from->ops.n; i++) {
        const nd_op *op = from->ops.v[i];
        for (int k = 0; op->phase == PH_BWD && k < op->nin; k++) {
            const nd_value *v = op->in[k];
            if (v->mark && v->def && !nd_has_trait(v->def, 'v') &&
                (v->def->phase == PH_FWD || op->kind == OP_CONTRACT))
                r->there[v->mark - 1] = true;
        }
    }
}

static nd_value *stands_for(const remat *r, nd_value *v);

/* The gradient of a maximum asks which element is equal to it. A product that
 * may be made in tiles is not the same to the last bit when it is made again
 * (tiles.c): what such a question depends on is kept. */
static void mark_compared(remat *r, nd_value *v)
{
    nd_value *early = v->mark ? v : stands_for(r, v);
    v = early ? early : v;
    if (v->mark && r->compared[v->mark - 1])
        return;
    if (v->mark)
        r->compared[v->mark - 1] = true;
    const nd_op *op = v->def;
    if (!op || op->body || op->kind == OP_CONTRACT || (!v->mark && op->nin > 1))
        return;
    for (int i = 0; i < op->nin; i++)
        mark_compared(r, op->in[i]);
}

static bool is_constant(const nd_value *v)
{
    while (v->def && v->def->kind == OP_BROADCAST)
        v = v->def->in[0];
    return v->def && v->def->kind == OP_CONST;
}

static void find_compared(remat *r)
{
    for (int i = 0; i < r->p->to->ops.n; i++) {
        const nd_op *op = r->p->to->ops.v[i];
        if (op->phase != r->p->reader || op->kind != OP_MAP ||
            (op->sub != EW_EQ && op->sub != EW_NE) ||
            !nd_is_float(op->in[0]->type.dtype) || is_constant(op->in[0]) ||
            is_constant(op->in[1]))
            continue;
        mark_compared(r, op->in[0]);
        mark_compared(r, op->in[1]);
    }
}

static void collect(remat *r)
{
    nd_arena *a = r->m->ctx->arena;
    const nd_block *from = r->p->from;
    for (int i = 0; i < from->args.n; i++)
        ND_PUSH(a, &r->values, from->args.v[i]);
    for (int i = 0; i < from->ops.n; i++)
        for (int k = 0; k < from->ops.v[i]->nout; k++)
            if (is_early(r, from->ops.v[i]))
                ND_PUSH(a, &r->values, from->ops.v[i]->out[k]);
    for (int i = 0; i < r->values.n; i++)
        r->values.v[i]->mark = i + 1;
    r->fixed = ND_NEWN(a, bool, r->values.n + 1);
    r->of_grads = ND_NEWN(a, bool, r->values.n + 1);
    find_fenced(r);
    find_elsewhere(r);
    find_of_grads(r);
    r->compared = ND_NEWN(a, bool, r->values.n + 1);
    find_compared(r);
    r->there = ND_NEWN(a, bool, r->values.n + 1);
    if (r->p->reader == PH_BWD)
        nd_find_written(a, r->values.v, r->values.n, from, r->there);
    else
        find_saved(r);
}

/* By value: the ops of backward that read it if what is made of it is made
 * again. */
static int *count_uses(const remat *r, const int *reads)
{
    int n = r->values.n;
    int *uses = ND_NEWN(r->m->ctx->arena, int, n + 1);
    memcpy(uses, reads, sizeof *uses * (size_t)n);
    for (int i = n - 1; i >= 0; i--) {
        const nd_value *v = r->values.v[i];
        for (int k = 0; uses[i] && can_repeat(r, v) && k < v->def->nin; k++)
            if (v->def->in[k]->mark)
                uses[v->def->in[k]->mark - 1]++;
    }
    return uses;
}

static bool reads_gathered(const nd_value *v)
{
    for (int k = 0; v->def && !v->def->body && k < v->def->nin; k++)
        if (nd_is_weight_copy(v->def->in[k]))
            return true;
    return false;
}

/* Its bytes; a little more if nothing else wants it written, but what is dear
 * to make and has two uses would be written in backward, and a bias that lies
 * in pieces would be gathered again. What gradients of weights need may be
 * there for those of inputs. What a repeat carries is kept rather than another
 * name of it: it lies in its stack then, without a copy. */
static int64_t weight_of(const remat *r, const nd_value *v, int uses)
{
    bool renamed = v->def && v->def->kind == OP_RENAME && !v->def->in[0]->def;
    bool again = reads_gathered(v) ||
                 (uses > 1 && can_repeat(r, v) && !nd_is_cheap(v->def));
    bool there = r->there[v->mark - 1];
    int times = r->p->reader != PH_BWD ? 2 - there : 5 - (there || again);
    return times * local_bytes(r->m, &v->type) + renamed;
}

static void decide(remat *r, const int *reads)
{
    nd_arena *a = r->m->ctx->arena;
    int n = r->values.n, *uses = count_uses(r, reads);
    nd_mincut *c = nd_mincut_new(a, n);
    for (int i = 0; i < n; i++) {
        nd_value *v = r->values.v[i];
        if (at_hand(r, v))
            continue;
        nd_mincut_node(c, i, weight_of(r, v, uses[i]));
        if (reads[i])
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

static nd_value *scanned_already(const nd_op *late, const nd_value *whole)
{
    for (int i = late->ncarry; i < late->nin; i++)
        if (late->in[i] == whole)
            return late->body->args.v[i];
    return NULL;
}

/* Stacked by `early`, or by it scanned. */
static nd_value *whole_of(nd_module *m, nd_op *early, nd_value *v)
{
    if (!v->def && v->index >= early->ncarry)
        return early->in[v->index];
    for (int i = early->ncarry; i < early->nout; i++)
        if (early->body->yields.v[i] == v)
            return early->out[i];
    return nd_repeat_stack(m, early, v);
}

/* A stack may not have the axis of the repeat twice: there it has a twin. */
nd_value *nd_hand_over(const nd_pair *p, nd_builder *b, nd_value *v)
{
    nd_axis *a = p->early->axes[0], *twin = NULL;
    nd_value *kept = v;
    if (nd_axis_at(&v->type, a) >= 0 &&
        (v->def || v->index < p->early->ncarry)) {
        nd_builder end = {.m = b->m, .block = p->from, .at = -1,
                          .phase = p->early->phase, .loc = p->early->loc,
                          .path = p->early->path, .hint = v->name};
        twin = nd_axis_twin(b->m, a);
        kept = nd_rename(&end, v, a, twin);
    }
    nd_value *whole = whole_of(b->m, p->early, kept);
    nd_value *arg = scanned_already(p->late, whole);
    arg = arg ? arg : nd_repeat_scan(b->m, p->late, whole);
    return twin ? nd_rename(b, arg, twin, a) : arg;
}

/* v as it is, in the later block. */
static nd_value *bring(remat *r, nd_value *v)
{
    if (!r->p->early || nd_block_of(v) != r->p->from)
        return v;
    nd_builder b = {.m = r->m, .block = r->p->to, .at = r->at,
                    .phase = r->p->reader, .loc = r->p->late->loc,
                    .path = r->p->late->path};
    v = nd_hand_over(r->p, &b, v);
    r->at = b.at;
    return v;
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
    nd_builder b = {.m = r->m, .block = r->p->to, .at = r->at,
                    .phase = r->p->reader, .loc = op->loc, .path = op->path};
    nd_op *c = nd_clone(&b, op, in);
    c->loc = op->loc;
    r->at = b.at;
    if (r->p->places && !r->p->early)
        pipe_place_like(r->p->places, c, op);
    return r->again[i] = c->out[v->index];
}

/* The earlier value that is read as v: an argument of the later body stands for
 * what is scanned. */
static nd_value *stands_for(const remat *r, nd_value *v)
{
    const nd_op *early = r->p->early, *late = r->p->late;
    if (!early)
        return v->def && is_early(r, v->def) ? v : NULL;
    if (v->def || v->owner != r->p->to || v->index < late->ncarry)
        return NULL;
    nd_value *whole = late->in[v->index];
    if (whole->def == early && whole->index >= early->ncarry)
        return early->body->yields.v[whole->index];
    return scanned_already(early, whole);
}

/* Every place in the later block, nested bodies included, that reads an earlier
 * value: counted in `reads`, or given what `have` finds. */
static void visit(remat *r, nd_value **place, int *reads)
{
    nd_value *v = stands_for(r, *place);
    if (!v || !v->mark)
        return;
    if (!reads)
        *place = have(r, v);
    else if (elsewhere(r, r->reading, v))
        r->fixed[v->mark - 1] = true;
    if (reads)
        reads[v->mark - 1]++;
}

static void visit_op(remat *r, nd_op *op, int *reads)
{
    /* What a repeat scans is decided with its body. */
    int nin = op->kind == OP_REPEAT && !reads ? op->ncarry : op->nin;
    for (int k = 0; k < nin; k++)
        visit(r, &op->in[k], reads);
    if (!op->body)
        return;
    for (int i = 0; i < op->body->ops.n; i++)
        visit_op(r, op->body->ops.v[i], reads);
    for (int i = 0; i < op->body->yields.n; i++)
        visit(r, &op->body->yields.v[i], reads);
}

static void visit_block(remat *r, int *reads)
{
    nd_block *to = r->p->to;
    for (r->at = 0; r->at < to->ops.n; r->at++)
        if (to->ops.v[r->at]->phase == r->p->reader) {
            r->reading = to->ops.v[r->at];
            visit_op(r, to->ops.v[r->at], reads);
        }
    for (int i = 0; i < to->yields.n; i++)
        visit(r, &to->yields.v[i], reads);
}

void nd_keep_or_repeat(nd_module *m, const nd_pair *p)
{
    remat r = {.m = m, .p = p};
    nd_clear_marks(m);
    collect(&r);
    int *reads = ND_NEWN(m->ctx->arena, int, r.values.n + 1);
    visit_block(&r, reads);
    decide(&r, reads);
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
    if (m->plan.recompute == REMAT_AUTO && !nd_choose_recompute(m, o))
        return false;
    for (int i = 0; i < m->step->ops.n; i++) {
        nd_op *bwd = m->step->ops.v[i];
        if (bwd->kind != OP_REPEAT || !bwd->reverse)
            continue;
        nd_op *fwd = forward_of(bwd);
        if (fwd)
            nd_keep_or_repeat(m, &(nd_pair){fwd->body, bwd->body, fwd, bwd,
                                            PH_BWD, NULL});
    }
    nd_keep_or_repeat(m, &(nd_pair){m->step, m->step, NULL, NULL, PH_BWD,
                                    NULL});
    /* Copies may repeat what backward has already, such as a mask. */
    return pass_simplify(m, o);
}
