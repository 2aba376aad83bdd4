/* shard_convert.c - the collectives between two sharding types of one value.
 *
 *   +tp            -> seq/tp     reduce_scatter
 *   +tp            -> settled    all_reduce
 *   seq/tp         -> seq        all_gather
 *   seq            -> seq/tp     slice, which moves nothing
 *
 * A pending value settles at the cut of its own axes first and goes on from
 * there, so two readers share the reduction. Every copy is kept and found
 * again: the three products q, k, v share one all_gather. Values made from
 * inputs alone are never moved: each use computes them at its own cut.
 */
#include "shard.h"

nd_sh_info *nd_sh_info_of(nd_sh *s, nd_value *v)
{
    nd_arena *a = s->m->ctx->arena;
    if (!s->info.n)
        ND_PUSH(a, &s->info, NULL);
    if (!v->mark) {
        v->mark = s->info.n;
        ND_PUSH(a, &s->info, ND_NEW(a, nd_sh_info));
    }
    return s->info.v[v->mark];
}

static nd_sh_level *level_of(nd_sh_level *lv, const nd_value *v)
{
    const nd_block *b = nd_block_of(v);
    while (lv && lv->block != b)
        lv = lv->up;
    return lv;
}

/* The op on whose behalf a conversion is made; at a body's end, the repeat. */
static const nd_op *current(const nd_sh_level *lv)
{
    return lv->at < lv->block->ops.n ? lv->block->ops.v[lv->at]
                                     : lv->block->parent;
}

static bool is_prefix(nd_cut a, nd_cut b)
{
    if (a.n > b.n)
        return false;
    for (int i = 0; i < a.n; i++)
        if (a.m[i] != b.m[i])
            return false;
    return true;
}

/* ---- one step ------------------------------------------------------------ */

static nd_value *step(nd_sh *s, nd_builder *b, nd_opcode k, nd_value *v,
                      nd_axis *axis, uint32_t mesh)
{
    nd_type t = v->type;
    b->hint = v->name;
    nd_op *op = nd_op_new(b, k, 1, &v, 1, &t);
    if (axis) {
        op->naxes = 1;
        op->axes = ND_NEW(s->m->ctx->arena, nd_axis *);
        op->axes[0] = axis;
    }
    op->mesh = mesh;
    if (!nd_retype(s->m, op))
        s->failed = true;
    return op->out[0];
}

static nd_value *all_reduce(nd_sh *s, nd_builder *b, nd_value *v,
                            uint32_t mesh, nd_red red)
{
    nd_type t = v->type;
    b->hint = v->name;
    nd_op *op = nd_op_new(b, OP_ALL_REDUCE, 1, &v, 1, &t);
    op->sub = red;
    op->mesh = mesh;
    if (!nd_retype(s->m, op))
        s->failed = true;
    return op->out[0];
}

static nd_value *reject_micro(nd_sh *s, nd_builder *b, nd_value *v)
{
    if (!s->failed)
        nd_error(s->m->ctx, b->loc,
                 "microbatches = %d would change the result: `%s` mixes rows "
                 "of the batch before it is used here",
                 s->m->plan.microbatches, v->name);
    s->failed = true;
    return v;
}

/* A microbatch is the same rows everywhere: those of a rank, cut in time. */
static nd_value *reject_recut(nd_sh *s, nd_builder *b, nd_value *v)
{
    const nd_module *m = s->m;
    if (!s->failed) {
        nd_error(m->ctx, b->loc,
                 "with microbatches = %d the rows of `%s` cannot move: `%s` "
                 "cuts `%s` over other mesh axes than what is made here",
                 m->plan.microbatches, m->sample->name, v->name,
                 m->sample->name);
        nd_note(m->ctx, m->plan.loc,
                "another rule takes these mesh axes first here; put the one "
                "for `%s` before it", m->sample->name);
    }
    s->failed = true;
    return v;
}

/* Resolves what is pending in v and not in `want`. Integers are few: they are
 * reduced everywhere, then cut. */
static nd_value *resolve(nd_sh *s, nd_builder *b, nd_value *v,
                         const nd_type *want)
{
    uint32_t micro = 1u << s->m->mesh.micro;
    if (v->type.max)
        v = all_reduce(s, b, v, v->type.max, RED_MAX);
    uint32_t due = v->type.sum & ~want->sum;
    if (due & micro)
        return reject_micro(s, b, v);
    for (int i = 0; i < want->rank; i++) {
        for (;;) {
            nd_cut have = v->type.cut[i];
            if (!is_prefix(have, want->cut[i]) || have.n == want->cut[i].n)
                break;
            uint32_t next = 1u << want->cut[i].m[have.n];
            if (!(due & next) || !nd_is_float(v->type.dtype))
                break;
            v = step(s, b, OP_REDUCE_SCATTER, v, v->type.axis[i], next);
            due &= ~next;
        }
    }
    return due ? all_reduce(s, b, v, due, RED_SUM) : v;
}

static nd_value *recut(nd_sh *s, nd_builder *b, nd_value *v,
                       const nd_type *want)
{
    for (int i = 0; i < want->rank && !s->failed; i++)
        while (!is_prefix(v->type.cut[i], want->cut[i])) {
            nd_cut c = v->type.cut[i];
            if (c.m[c.n - 1] == s->m->mesh.micro)
                return reject_recut(s, b, v);
            v = step(s, b, OP_ALL_GATHER, v, v->type.axis[i],
                     1u << c.m[c.n - 1]);
        }
    for (int i = 0; i < want->rank; i++)
        while (v->type.cut[i].n < want->cut[i].n && !s->failed)
            v = step(s, b, OP_SLICE, v, v->type.axis[i],
                     1u << want->cut[i].m[v->type.cut[i].n]);
    return v;
}

/* ---- without moving anything --------------------------------------------- */

/* The same free op computed at `want`; operands keep whole what want lacks. */
static nd_value *compute_at(nd_sh *s, nd_sh_level *lv, nd_builder *b,
                            nd_value *v, const nd_type *want)
{
    nd_op *op = v->def;
    nd_value **in = ND_NEWN(s->m->ctx->arena, nd_value *, op->nin);
    for (int i = 0; i < op->nin; i++) {
        nd_type t = op->in[i]->type;
        t.sum = t.max = 0;
        for (int k = 0; k < t.rank; k++) {
            nd_axis *a = t.axis[k];
            if (op->nto && a == op->axes[0])
                a = op->to[0];
            int at = nd_axis_at(want, a);
            t.cut[k] = at < 0 ? (nd_cut){0} : want->cut[at];
        }
        in[i] = nd_sh_convert(s, lv, op->in[i], &t);
    }
    b->at = lv->at;
    nd_op *c = nd_clone(b, op, in);
    nd_type *t = &c->out[0]->type;
    for (int i = 0; i < t->rank; i++)
        t->cut[i] = want->cut[i];
    t->sum = want->sum;
    if (!nd_retype(s->m, c))
        s->failed = true;
    return c->out[0];
}

/* A backward body reads a forward value through a stacked copy. If the forward
 * body made the wanted copy already, stack that one instead of moving again. */
static nd_value *kept_copy(nd_sh *s, nd_value *v, const nd_type *want)
{
    if (v->def || !v->owner->parent || v->index < v->owner->parent->ncarry)
        return NULL;
    nd_op *bwd = v->owner->parent;
    nd_value *stacked = bwd->in[v->index];
    nd_op *fwd = stacked->def;
    if (!fwd || fwd->kind != OP_REPEAT || stacked->index < fwd->ncarry)
        return NULL;
    nd_sh_info *info =
        nd_sh_info_of(s, fwd->body->yields.v[stacked->index]);
    for (int i = 0; i < info->variants.n; i++)
        if (nd_same_cut(&info->variants.v[i]->type, want))
            return nd_repeat_scan(
                s->m, bwd,
                nd_repeat_stack(s->m, fwd, info->variants.v[i]));
    return NULL;
}

/* A copy of v that is pending over no more than `want`: one of which `want` is
 * a piece, one that was settled before, or one settled now at the cut of its
 * own axes. */
static nd_value *settled(nd_sh *s, nd_builder *b, nd_sh_info *info,
                         nd_value *v, const nd_type *want)
{
    if (v->type.sum == want->sum && !v->type.max)
        return v;
    nd_value *found = NULL;
    for (int i = 0; i < info->variants.n; i++) {
        nd_value *c = info->variants.v[i];
        if (c->type.sum != want->sum || c->type.max)
            continue;
        bool piece = true;
        for (int k = 0; k < want->rank; k++)
            piece &= is_prefix(c->type.cut[k], want->cut[k]);
        if (piece)
            return c;
        found = c;
    }
    if (found)
        return found;
    nd_type home = *want;
    nd_sh_walk(s->m, home.rank, home.axis, want->sum, b->phase, home.cut);
    nd_value *r = resolve(s, b, v, &home);
    if (!s->failed && !nd_same_cut(&r->type, want))
        ND_PUSH(s->m->ctx->arena, &info->variants, r);
    return r;
}

static nd_cut cut_in(const nd_type *t, const nd_axis *a)
{
    int i = nd_axis_at(t, a);
    return i < 0 ? (nd_cut){0} : t->cut[i];
}

/* Can the op make its result at that cut? */
static bool runs_at(const nd_module *m, const nd_op *op, const nd_type *want)
{
    switch (op->kind) {
    case OP_CUMSUM:
    case OP_ROLL:
        return !cut_in(want, op->axes[0]).n;
    case OP_SPLIT:
        for (int i = 1; i < op->nto; i++)
            if (cut_in(want, op->to[i]).n)
                return false;
        return nd_cuts_alike(m, cut_in(want, op->to[0]), op->to[0]);
    case OP_FLATTEN:
        return nd_cuts_alike(m, cut_in(want, op->to[0]), op->axes[0]);
    default:
        return true;
    }
}

/* Free values are made where they are wanted. Of the hoisted ones only those
 * without a reduction: the whole batch is summed once. Nor a gradient that sums
 * over rows, even of inputs alone: each rank and microbatch owes its part. */
static bool recomputable(const nd_module *m, const nd_value *v,
                         const nd_type *want)
{
    if (!v->def || v->def->kind == OP_INPUT || !nd_is_free(v) ||
        !runs_at(m, v->def, want))
        return false;
    if (v->type.sum && (v->def->phase == PH_BWD || want->sum))
        return false;
    switch (v->def->kind) {
    case OP_CONST:
    case OP_INDEX:
    case OP_MAP:
    case OP_CAST:
    case OP_RENAME:
    case OP_BROADCAST:
        return true;
    default:
        return v->def->phase != PH_PRE;
    }
}

nd_value *nd_sh_convert(nd_sh *s, nd_sh_level *lv, nd_value *v,
                        const nd_type *want)
{
    if (s->failed || nd_same_cut(&v->type, want))
        return v;
    /* A piece of something free is better made from the whole again. */
    while (v->def && v->def->kind == OP_SLICE && nd_is_free(v))
        v = v->def->in[0];
    if (nd_same_cut(&v->type, want))
        return v;
    nd_sh_info *info = nd_sh_info_of(s, v);
    for (int i = 0; i < info->variants.n; i++)
        if (nd_same_cut(&info->variants.v[i]->type, want))
            return info->variants.v[i];
    lv = level_of(lv, v);
    const nd_op *user = current(lv);
    nd_builder b = {.m = s->m, .block = lv->block, .at = lv->at,
                    .phase = user->phase, .loc = user->loc, .path = user->path};
    /* What needs no microbatch is made once per step, for all readers. */
    if (v->def && v->def->phase == PH_PRE &&
        !(nd_cut_mask(want) >> s->m->mesh.micro & 1))
        b.phase = PH_PRE;
    nd_value *r;
    if (recomputable(s->m, v, want))
        r = compute_at(s, lv, &b, v, want);
    else if (!(r = kept_copy(s, v, want)))
        r = recut(s, &b, settled(s, &b, info, v, want), want);
    if (b.at > lv->at)
        lv->at = b.at;
    if (s->failed)
        return v;
    ND_PUSH(s->m->ctx->arena, &info->variants, r);
    return r;
}
