/* shard_convert.c - the collectives between two sharding types of one value.
 *
 *   +tp            -> seq/tp     reduce_scatter
 *   +tp            -> settled    all_reduce
 *   seq/tp         -> seq        all_gather
 *   seq/tp, heads  -> heads/tp   all_to_all
 *   seq            -> seq/tp     slice, which moves nothing
 *
 * shard_search.c finds the cheapest ones. They start at any copy of the value
 * that there is: the three products q, k, v share one all_gather. A pending
 * value settles at the cut of its own axes first and goes on from there, where
 * that costs no more, so two readers share the reduction. Values made from
 * inputs alone are never moved: each use computes them at its own cut.
 */
#include "shard.h"

enum { MOST_COPIES = 8 };            /* to start from */

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

/* ---- one move after the other ------------------------------------------- */

/* What needs no microbatch is made once per step, for all readers. */
static nd_phase phase_of(const nd_sh *s, const nd_builder *b,
                         const nd_value *v, uint32_t cuts)
{
    bool early = v->def && v->def->phase == PH_PRE &&
                 !(cuts >> s->m->mesh.micro & 1);
    return early ? PH_PRE : b->phase;
}

static nd_value *collective(nd_sh *s, nd_builder *b, nd_value *v,
                            const nd_sh_move *move, nd_red red)
{
    nd_type t = v->type;
    int naxes = move->kind == OP_ALL_REDUCE ? 0
                : move->kind == OP_ALL_TO_ALL ? 2 : 1;
    b->hint = v->name;
    nd_op *op = nd_op_new(b, move->kind, 1, &v, 1, &t);
    op->phase = phase_of(s, b, v, nd_cut_mask(&t) | move->mesh);
    op->naxes = naxes;
    op->axes = ND_NEWN(s->m->ctx->arena, nd_axis *, naxes + 1);
    if (naxes > 0)
        op->axes[0] = t.axis[move->axis];
    if (naxes > 1)
        op->axes[1] = t.axis[move->to];
    op->mesh = move->mesh;
    op->sub = red;
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

/* Is a mesh axis of the sample axis that of another one, too? */
static bool is_contended(const nd_module *m)
{
    const nd_rule *rows = nd_rule_of(&m->plan, m->sample);
    uint32_t mesh = 0;
    for (int i = 0; rows && i < rows->mesh.n; i++)
        mesh |= 1u << rows->mesh.m[i];
    for (int k = 0; k < m->plan.rules.n; k++) {
        const nd_rule *q = &m->plan.rules.v[k];
        for (int i = 0; q->axis != m->sample && i < q->mesh.n; i++)
            if (mesh >> q->mesh.m[i] & 1)
                return true;
    }
    return false;
}

/* The first lookup along the sample axis, or NULL. */
static const nd_op *lookup_of_rows(const nd_module *m, const nd_block *b)
{
    const nd_op *found = NULL;
    for (int i = 0; i < b->ops.n && !found; i++) {
        const nd_op *op = b->ops.v[i];
        if (op->kind == OP_GATHER && op->axes[0] == m->sample)
            found = op;
        else if (op->body)
            found = lookup_of_rows(m, op->body);
    }
    return found;
}

/* Why rows would have to move, where no other rule makes them: the whole batch
 * is read or written at once. */
static void note_whole_batch(const nd_module *m, const nd_type *want)
{
    const char *rows = m->sample->name;
    int at = nd_axis_at(want, m->sample);
    bool micro = at >= 0 && (nd_cut_mask(want) >> m->mesh.micro & 1);
    const nd_op *lookup = lookup_of_rows(m, m->step);
    for (int i = 0; !micro && i < m->params.n; i++) {
        const nd_param *q = m->params.v[i];
        if (nd_axis_at(&q->value->type, m->sample) < 0)
            continue;
        nd_note(m->ctx, q->loc, "the parameter `%s` has the axis `%s`: a rank "
                "keeps rows of all microbatches at once; use microbatches = 1",
                q->name, rows);
        return;
    }
    if (lookup)
        nd_note(m->ctx, lookup->loc, "a lookup along `%s` may take any row of "
                "the batch; use microbatches = 1", rows);
    else
        nd_note(m->ctx, m->plan.loc, "rows of all microbatches are needed at "
                "once here; use microbatches = 1");
}

/* A microbatch is the same rows everywhere: those of a rank, cut in time. */
static nd_value *reject_recut(nd_sh *s, nd_builder *b, nd_value *v,
                              const nd_type *want)
{
    const nd_module *m = s->m;
    if (!s->failed) {
        nd_error(m->ctx, b->loc,
                 "with microbatches = %d the rows of `%s` cannot move: `%s` "
                 "cuts `%s` over other mesh axes than what is made here",
                 m->plan.microbatches, m->sample->name, v->name,
                 m->sample->name);
        if (is_contended(m))
            nd_note(m->ctx, m->plan.loc,
                    "another rule takes these mesh axes first here; put the "
                    "one for `%s` before it", m->sample->name);
        else
            note_whole_batch(m, want);
    }
    s->failed = true;
    return v;
}

/* Copies that something was paid for are kept: a later reader may start from
 * them. */
static nd_value *follow(nd_sh *s, nd_builder *b, nd_sh_info *info, nd_value *v,
                        const nd_sh_path *path)
{
    for (int i = 0; i < path->moves.n && !s->failed; i++) {
        const nd_sh_move *move = &path->moves.v[i];
        v = collective(s, b, v, move, RED_SUM);
        if (move->kind != OP_SLICE && i + 1 < path->moves.n)
            ND_PUSH(s->m->ctx->arena, &info->variants, v);
    }
    return v;
}

/* ---- where to start, what to pass by ------------------------------------ */

typedef struct copies {
    int n;
    nd_value *v[MOST_COPIES];
    const nd_type *type[MOST_COPIES];
} copies;

/* Copies that `want` can be made from: the value itself and what was made from
 * it before. */
static copies copies_of(const nd_sh_info *info, nd_value *v,
                        const nd_type *want)
{
    copies c = {0};
    for (int i = -1; i < info->variants.n && c.n < MOST_COPIES; i++) {
        nd_value *x = i < 0 ? v : info->variants.v[i];
        if (x->type.max || (want->sum & ~x->type.sum))
            continue;
        c.v[c.n] = x;
        c.type[c.n++] = &x->type;
    }
    return c;
}

static bool is_settled(const copies *c, const nd_type *want)
{
    for (int i = 0; i < c->n; i++)
        if (c->type[i]->sum == want->sum)
            return true;
    return false;
}

/* v settled at the cut of its own axes, as far as that needs a reduction only:
 * where the others who read it start from. */
static nd_type settled_type(const nd_sh *s, const nd_builder *b,
                            const nd_value *v, const nd_type *want)
{
    nd_type home = *want, t = v->type;
    uint32_t due = t.sum & ~want->sum;
    nd_phase phase = v->def && v->def->phase == PH_PRE ? PH_PRE : b->phase;
    nd_sh_walk(s->m, home.rank, home.axis, want->sum, phase, home.cut);
    for (int i = 0; i < t.rank; i++)
        while (nd_cut_begins(home.cut[i], t.cut[i]) &&
               t.cut[i].n < home.cut[i].n &&
               due >> home.cut[i].m[t.cut[i].n] & 1) {
            uint8_t k = home.cut[i].m[t.cut[i].n];
            t.cut[i].m[t.cut[i].n++] = k;
            due &= ~(1u << k);
        }
    t.sum = want->sum;
    return t;
}

/* Pending sums are settled for all who read v, unless the way past that type is
 * the longer one. */
static nd_value *settle(nd_sh *s, nd_builder *b, nd_sh_info *info, nd_value *v,
                        const nd_type *want, double direct)
{
    nd_type home = settled_type(s, b, v, want);
    const nd_type *from = &v->type, *half = &home;
    nd_sh_path first, rest;
    if (!nd_sh_search(s->m, 1, &from, &home, &first) ||
        !nd_sh_search(s->m, 1, &half, want, &rest) ||
        first.bytes + rest.bytes > direct * (1 + 1e-9))
        return v;
    nd_value *r = follow(s, b, info, v, &first);
    if (!s->failed && !nd_same_cut(&r->type, want))
        ND_PUSH(s->m->ctx->arena, &info->variants, r);
    return r;
}

/* A pending maximum becomes the largest of all ranks before anything else. */
static nd_value *all_max(nd_sh *s, nd_builder *b, nd_sh_info *info, nd_value *v)
{
    nd_sh_move all = {.kind = OP_ALL_REDUCE, .mesh = v->type.max};
    v = collective(s, b, v, &all, RED_MAX);
    ND_PUSH(s->m->ctx->arena, &info->variants, v);
    return v;
}

static nd_value *move(nd_sh *s, nd_sh_level *lv, nd_builder *b,
                      nd_sh_info *info, nd_value *v, const nd_type *wanted)
{
    uint32_t micro = 1u << s->m->mesh.micro;
    nd_type t = *wanted, *want = &t;
    t.sum &= v->type.sum;            /* what is settled stays so */
    copies c = copies_of(info, v, want);
    nd_sh_path path;
    if (v->type.max && !c.n) {
        v = all_max(s, b, info, v);
        c = copies_of(info, v, want);
    }
    if (v->type.sum & ~want->sum & micro)
        return reject_micro(s, b, v);
    if (!nd_sh_search(s->m, c.n, c.type, want, &path))
        return reject_recut(s, b, v, want);
    if (!is_settled(&c, want)) {
        v = settle(s, b, info, v, want, path.bytes);
        c = copies_of(info, v, want);
        if (!nd_sh_search(s->m, c.n, c.type, want, &path))
            return reject_recut(s, b, v, want);
    }
    nd_sh_notice(s, current(lv), lv->block, c.v[path.from], want, &path);
    return follow(s, b, info, c.v[path.from], &path);
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
            t.cut[k] = nd_cut_at(want, a);
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

/* Can the op make its result at that cut? */
static bool runs_at(const nd_module *m, const nd_op *op, const nd_type *want)
{
    switch (op->kind) {
    case OP_CUMSUM:
    case OP_ROLL:
        return !nd_cut_at(want, op->axes[0]).n;
    case OP_SPLIT:
        for (int i = 1; i < op->nto; i++)
            if (nd_cut_at(want, op->to[i]).n)
                return false;
        return nd_cuts_alike(m, nd_cut_at(want, op->to[0]), op->to[0]);
    case OP_FLATTEN:
        return nd_cuts_alike(m, nd_cut_at(want, op->to[0]), op->axes[0]);
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
    nd_value *r;
    if (recomputable(s->m, v, want)) {
        b.phase = phase_of(s, &b, v, nd_cut_mask(want));
        r = compute_at(s, lv, &b, v, want);
    } else if (!(r = kept_copy(s, v, want))) {
        r = move(s, lv, &b, info, v, want);
    }
    if (b.at > lv->at)
        lv->at = b.at;
    if (s->failed)
        return v;
    ND_PUSH(s->m->ctx->arena, &info->variants, r);
    return r;
}

nd_value *nd_sh_settle_max(nd_sh *s, nd_sh_level *lv, nd_value *v)
{
    const nd_op *def = v->def;
    nd_builder b = {.m = s->m, .block = lv->block, .at = ++lv->at,
                    .phase = def->phase, .loc = def->loc, .path = def->path};
    v = all_max(s, &b, nd_sh_info_of(s, v), v);
    lv->at = b.at - 1;
    return v;
}
