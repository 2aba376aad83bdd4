/* shard.c - give every value and op its cut, in one walk over the ops.
 *
 * An op runs at the cut of its iteration space (all axes of operands and
 * result). Operands convert to that; a cut axis that is reduced leaves a
 * pending sum (rules.c says so); whoever reads the result converts it. Pending
 * sums pass through what is linear and scalar, and equal ones are added before
 * they are resolved, so the input gradients of q, k and v make one reduction.
 *
 *   %h = contract [d] %x, %w : f32[batch/dp, seq, ffn/tp]
 *   %y = contract [ffn] %h, %v : f32[batch/dp, seq, d]+tp
 *   %y_2 = reduce_scatter [seq] over tp %y : f32[batch/dp, seq/tp, d]
 *   %z = add %x, %y_2 : f32[batch/dp, seq/tp, d]
 */
#include "shard.h"

static void block(nd_sh *s, nd_sh_level *up, nd_block *b);

/* ---- iteration space ----------------------------------------------------- */

static void add_axis(nd_sh_space *sp, nd_axis *a)
{
    for (int i = 0; i < sp->n; i++)
        if (sp->axis[i] == a)
            return;
    if (sp->n < 2 * ND_MAX_RANK)
        sp->axis[sp->n++] = a;
}

static void add_axes(nd_sh_space *sp, const nd_type *t, const nd_axis *skip)
{
    for (int i = 0; i < t->rank; i++)
        if (t->axis[i] != skip)
            add_axis(sp, t->axis[i]);
}

nd_cut nd_sh_cut_of(const nd_sh_space *sp, const nd_axis *a)
{
    for (int i = 0; i < sp->n; i++)
        if (sp->axis[i] == a)
            return sp->cut[i];
    return (nd_cut){0};
}

/* A rename is one axis under two names, and so are a whole axis and its major
 * part: the new name counts. */
static nd_axis *name_in_space(const nd_op *op, nd_axis *a)
{
    return op->nto && a == op->axes[0] ? op->to[0] : a;
}

static void set_cut(nd_sh_space *sp, const nd_axis *a, nd_cut cut)
{
    for (int i = 0; i < sp->n; i++)
        if (sp->axis[i] == a)
            sp->cut[i] = cut;
}

/* A whole axis and its major part are cut alike, at multiples of the minor
 * part: by the rules of the new name or, if there are none, of the old one. */
static void cut_major(const nd_sh *s, const nd_op *op, uint32_t taken,
                      nd_sh_space *sp)
{
    const nd_axis *major = op->kind == OP_SPLIT ? op->to[0] : op->axes[0];
    nd_cut cut = nd_sh_cut_of(sp, op->to[0]);
    for (int i = 0; i < sp->n && !cut.n; i++)
        if (sp->axis[i] == op->to[0]) {
            sp->axis[i] = op->axes[0];
            nd_sh_walk(s->m, sp->n, sp->axis, taken, op->phase, sp->cut);
            sp->axis[i] = op->to[0];
            cut = sp->cut[i];
        }
    while (!nd_cuts_alike(s->m, cut, major))
        cut.m[--cut.n] = 0;
    set_cut(sp, op->to[0], cut);
}

/* Rows that travelled are with the rank that holds their expert. */
static void meet_experts(const nd_op *op, nd_sh_space *sp)
{
    const nd_axis *r = nd_routed_axis(&op->in[2]->type);
    if (r && r->route->experts == op->axes[0])
        set_cut(sp, op->axes[0], (nd_cut){1, {(uint8_t)r->route->over}});
}

/* Does each rank along one mesh axis have one element of `a`? */
static bool one_per_rank(const nd_module *m, const nd_axis *a, nd_cut cut)
{
    return cut.n == 1 && m->mesh.size[cut.m[0]] == a->size;
}

/* Axes that the op cannot cut, because it runs along them, or not as the rules
 * say. */
static void keep_whole(const nd_sh *s, const nd_op *op, uint32_t taken,
                       nd_sh_space *sp)
{
    switch (op->kind) {
    case OP_REDUCE:
        for (int i = 0; op->sub == RED_MIN && i < op->naxes; i++)
            set_cut(sp, op->axes[i], (nd_cut){0});
        break;
    case OP_CUMSUM:
        set_cut(sp, op->axes[0], (nd_cut){0});
        break;
    case OP_GROUPED:
    case OP_GROUPED_SUM:
        meet_experts(op, sp);
        break;
    case OP_DISPATCH:
    case OP_COMBINE:
        for (int i = 0; i < op->axes[0]->route->rows.rank; i++)
            set_cut(sp, op->axes[0]->route->rows.axis[i],
                    op->axes[0]->route->rows.cut[i]);
        break;
    case OP_ROLL:
        if (nd_is_free(op->out[0]) ||
            !one_per_rank(s->m, op->axes[0], nd_sh_cut_of(sp, op->axes[0])))
            set_cut(sp, op->axes[0], (nd_cut){0});
        break;
    case OP_SPLIT:
    case OP_FLATTEN:
        cut_major(s, op, taken, sp);
        for (int i = 1; i < op->naxes; i++)
            set_cut(sp, op->axes[i], (nd_cut){0});
        for (int i = 1; i < op->nto; i++)
            set_cut(sp, op->to[i], (nd_cut){0});
        break;
    default:
        break;
    }
}

static nd_sh_space space_of(nd_sh *s, const nd_op *op, uint32_t taken)
{
    nd_sh_space sp = {0};
    nd_axis *skip = op->nto ? op->axes[0] : NULL;
    for (int i = 0; i < op->nin; i++)
        add_axes(&sp, &op->in[i]->type, skip);
    for (int i = 0; i < op->nout; i++)
        add_axes(&sp, &op->out[i]->type, skip);
    nd_sh_walk(s->m, sp.n, sp.axis, taken, op->phase, sp.cut);
    keep_whole(s, op, taken, &sp);
    return sp;
}

/* ---- pending sums that pass through -------------------------------------- */

/* Is the sum what the body carries on? */
static bool accumulates(const nd_value *arg, const nd_op *add)
{
    return arg->owner->yields.v[arg->index] == add->out[0];
}

/* A carried zero takes the type of what is first added to it; but a sum stays
 * pending only where it is carried on as it is, for a settled value cannot
 * become a pending one at the body's end. */
static void close_open(nd_sh *s, nd_op *op)
{
    for (int i = 0; i < op->nin; i++) {
        nd_sh_info *info = nd_sh_info_of(s, op->in[i]);
        if (!info->open)
            continue;
        info->open = false;
        if (op->kind != OP_MAP || op->sub != EW_ADD ||
            !nd_same_axes(&op->in[0]->type, &op->in[1]->type))
            continue;
        nd_type t = op->in[!i]->type;
        t.dtype = op->in[i]->type.dtype;
        t.max = 0;
        if (!accumulates(op->in[i], op))
            t.sum = op->in[i]->type.sum;
        op->in[i]->type = t;
    }
}

/* Has somebody paid for every pending operand's settled copy already? */
static bool settled_before(nd_sh *s, const nd_op *op)
{
    for (int i = 0; i < op->nin; i++) {
        if (!op->in[i]->type.sum)
            continue;
        nd_sh_info *info = nd_sh_info_of(s, op->in[i]);
        bool found = false;
        for (int k = 0; k < info->variants.n; k++)
            found |= !info->variants.v[k]->type.sum;
        if (!found)
            return false;
    }
    return true;
}

/* Will an op further down, which is not linear in the sum, settle it anyway, at
 * the cut of these axes? What reads it before that need not stay pending: the
 * gradient of a bias beside that of a gain. */
static bool settled_later(const nd_sh_level *lv, const nd_op *op)
{
    const nd_value *v = op->in[0];
    for (int i = lv->at + 1; i < lv->block->ops.n; i++) {
        const nd_op *x = lv->block->ops.v[i];
        if (x->kind != OP_MAP || x->sub != EW_MUL || x->phase != op->phase ||
            (x->in[0] != v && x->in[1] != v))
            continue;
        const nd_type *other = &x->in[x->in[0] == v]->type;
        nd_type all = nd_union(&v->type, other);
        if (other->rank && all.rank == v->type.rank)
            return true;
    }
    return false;
}

/* The mesh axes whose pending sums this op lets through. Not a broadcast: the
 * sum is smaller before it. */
static uint32_t passes_through(nd_sh *s, const nd_sh_level *lv,
                               const nd_op *op)
{
    uint32_t first = op->nin ? op->in[0]->type.sum : 0;
    bool whole = !(first >> s->m->mesh.micro & 1);
    if (settled_before(s, op) || (op->kind == OP_REDUCE && first && whole &&
                                  settled_later(lv, op)))
        return 0;
    if ((op->nin == 1 || op->kind == OP_COMBINE) && nd_is_linear(op) &&
        op->kind != OP_BROADCAST)
        return first;
    if (op->kind != OP_MAP)
        return 0;
    switch (op->sub) {
    case EW_NEG:
        return first;
    case EW_ADD:
    case EW_SUB:
        return first == op->in[1]->type.sum ? first : 0;
    case EW_MUL:
        if (op->in[0]->type.rank == 0 && !first)
            return op->in[1]->type.sum;
        return op->in[1]->type.rank == 0 && !op->in[1]->type.sum ? first : 0;
    case EW_DIV:
        return op->in[1]->type.rank == 0 && !op->in[1]->type.sum ? first : 0;
    default:
        return 0;
    }
}

/* A sum over microbatches cannot be resolved before the step's end: it passes
 * through everything that is linear in it, tensors included. */
static uint32_t micro_through(const nd_module *m, const nd_op *op)
{
    uint32_t bit = 1u << m->mesh.micro;
    int pending = 0;
    for (int i = 0; i < op->nin; i++)
        pending += (op->in[i]->type.sum & bit) != 0;
    if (!pending)
        return 0;
    bool first = op->in[0]->type.sum & bit;
    switch (op->kind) {
    case OP_CONTRACT:
    case OP_GROUPED:
    case OP_GROUPED_SUM:
        return pending == 1 ? bit : 0;
    case OP_BROADCAST:
        return bit;
    case OP_GATHER:
    case OP_SCATTER_ADD:
    case OP_DISPATCH:
    case OP_COMBINE:
        return pending == 1 && first ? bit : 0;
    case OP_MAP:
        if (op->sub == EW_ADD || op->sub == EW_SUB)
            return pending == 2 ? bit : 0;
        if (op->sub == EW_MUL)
            return pending == 1 ? bit : 0;
        if (op->sub == EW_DIV)
            return pending == 1 && first ? bit : 0;
        return op->sub == EW_WHERE && !first ? bit : 0;
    default:
        return 0;
    }
}

/* ---- ops ----------------------------------------------------------------- */

static void set_cuts(nd_type *t, const nd_sh_space *sp)
{
    for (int i = 0; i < t->rank; i++)
        t->cut[i] = nd_sh_cut_of(sp, t->axis[i]);
}

/* Where rows come from must be known: only what travels may be pending. */
static bool ids_of_route(const nd_op *op, int i)
{
    return op->kind == OP_COMBINE && i > 0;
}

static void computing_op(nd_sh *s, nd_sh_level *lv, nd_op *op)
{
    close_open(s, op);
    uint32_t through = passes_through(s, lv, op) | micro_through(s->m, op);
    nd_sh_space sp = space_of(s, op, through);
    s->space = &sp;
    for (int i = 0; i < op->nin; i++) {
        nd_type t = op->in[i]->type;
        t.sum = ids_of_route(op, i) ? 0 : t.sum & through;
        t.max = 0;
        for (int k = 0; k < t.rank; k++)
            t.cut[k] = nd_sh_cut_of(&sp, name_in_space(op, t.axis[k]));
        op->in[i] = nd_sh_convert(s, lv, op->in[i], &t);
    }
    s->space = NULL;
    if (op->kind == OP_ROLL && nd_sh_cut_of(&sp, op->axes[0]).n) {
        op->kind = OP_SHIFT_RING;
        op->mesh = 1u << nd_sh_cut_of(&sp, op->axes[0]).m[0];
    }
    for (int i = 0; i < op->nout; i++) {
        set_cuts(&op->out[i]->type, &sp);
        op->out[i]->type.sum = through;
    }
    if (!s->failed && !nd_retype(s->m, op))
        s->failed = true;
}

/* Inputs are stored as the ranks' rows, whole otherwise. */
static void input(nd_sh *s, nd_op *op)
{
    nd_type *t = &op->out[0]->type;
    for (int i = 0; i < t->rank; i++)
        if (t->axis[i] == s->m->sample)
            nd_sh_walk(s->m, 1, &t->axis[i], 0, PH_PRE, &t->cut[i]);
}

/* The gradient takes the parameter's own cut; other sums stay pending until
 * the update. */
static void accumulate(nd_sh *s, nd_sh_level *lv, nd_op *op)
{
    nd_param *p = op->param;
    nd_type t = op->in[0]->type;
    s->summed[p->index] |= t.sum;
    t.sum &= ~nd_cut_mask(&p->value->type);
    t.max = 0;
    for (int i = 0; i < t.rank; i++)
        t.cut[i] = p->value->type.cut[nd_axis_at(&p->value->type, t.axis[i])];
    op->in[0] = nd_sh_convert(s, lv, op->in[0], &t);
    uint32_t sum = op->in[0]->type.sum;
    p->grad.sum = s->graded[p->index] ? p->grad.sum & sum : sum;
    s->graded[p->index] = true;
    ND_PUSH(s->m->ctx->arena, &s->accumulates, op);
}

static void output(nd_sh *s, nd_sh_level *lv, nd_op *op)
{
    nd_type t = nd_sh_home(s->m, &op->in[0]->type, op->phase);
    op->in[0] = nd_sh_convert(s, lv, op->in[0], &t);
}

/* A parameter that is gathered once per step is scanned whole. */
static void gather_scanned(nd_sh *s, nd_sh_level *lv, nd_op *op, int i)
{
    const nd_op *def = op->in[i]->def;
    if (!def || def->kind != OP_PARAM || def->phase != PH_PRE)
        return;
    nd_type t = nd_sh_home(s->m, &op->in[i]->type, PH_PRE);
    op->in[i] = nd_sh_convert(s, lv, op->in[i], &t);
}

static void repeat(nd_sh *s, nd_sh_level *lv, nd_op *op)
{
    nd_block *b = op->body;
    int nin = op->nin;
    for (int i = 0; i < nin; i++) {
        nd_type *t = &b->args.v[i]->type;
        if (i >= op->ncarry) {
            gather_scanned(s, lv, op, i);
            nd_dtype keep = t->dtype;
            *t = op->in[i]->type;
            t->dtype = keep;
            nd_drop_axis(t, nd_axis_at(t, op->axes[0]));
            continue;
        }
        *t = nd_sh_home(s->m, t, op->phase);
        if (nd_sh_info_of(s, b->args.v[i])->partial)
            t->sum |= 1u << s->m->mesh.micro;
        if (nd_is_const(op->in[i], 0))
            nd_sh_info_of(s, b->args.v[i])->open = true;
        else
            op->in[i] = nd_sh_convert(s, lv, op->in[i], t);
    }
    block(s, lv, b);
    nd_sh_level end = {lv, b, b->ops.n};
    for (int i = 0; i < op->ncarry; i++) {
        nd_type *t = &b->args.v[i]->type;
        b->yields.v[i] = nd_sh_convert(s, &end, b->yields.v[i], t);
        op->in[i] = nd_sh_convert(s, lv, op->in[i], t);
    }
    if (!s->failed && !nd_retype(s->m, op))
        s->failed = true;
    nd_note_turns(s->m, op);
}

/* The step ends with the sum of the ranks' losses, never with the largest. */
static void loss(nd_sh *s, nd_sh_level *lv, const nd_op *op)
{
    nd_value *l = s->m->loss;
    if (l && !s->failed && l->def == op && l->type.max)
        s->m->loss = nd_sh_settle_max(s, lv, l);
}

static void block(nd_sh *s, nd_sh_level *up, nd_block *b)
{
    nd_sh_level lv = {up, b, 0};
    for (lv.at = 0; lv.at < b->ops.n && !s->failed; lv.at++) {
        nd_op *op = b->ops.v[lv.at];
        switch (op->kind) {
        case OP_INPUT:
            input(s, op);
            break;
        case OP_PARAM:
            nd_sh_store(s, op);
            break;
        case OP_CONST:
            break;
        case OP_ACCUM:
            accumulate(s, &lv, op);
            break;
        case OP_OUTPUT:
            output(s, &lv, op);
            break;
        case OP_REPEAT:
            repeat(s, &lv, op);
            break;
        default:
            computing_op(s, &lv, op);
        }
        loss(s, &lv, op);
    }
}

static nd_sh_level *level_at(nd_sh *s, const nd_op *op)
{
    nd_sh_level *lv = ND_NEW(s->m->ctx->arena, nd_sh_level);
    lv->block = op->block;
    while (lv->block->ops.v[lv->at] != op)
        lv->at++;
    lv->up = op->block->parent ? level_at(s, op->block->parent) : NULL;
    return lv;
}

/* Contributions to one gradient must be pending over the same mesh axes: what
 * only some of them lack is resolved in the others. The walk is over: a copy
 * that it made may stand below the place that wants it now, so none is used. */
static void unify_gradients(nd_sh *s)
{
    for (int i = 0; i < s->accumulates.n && !s->failed; i++) {
        nd_op *op = s->accumulates.v[i];
        const nd_param *p = op->param;
        nd_type t = op->in[0]->type;
        if (t.sum == p->grad.sum)
            continue;
        t.sum = p->grad.sum;
        for (int k = 1; k < s->info.n; k++)
            s->info.v[k]->variants.n = 0;
        op->in[0] = nd_sh_convert(s, level_at(s, op), op->in[0], &t);
    }
}

/* Iterations are cut into pipeline stages, not by a shard rule. */
static void check_repeat(nd_op *op, void *user)
{
    nd_sh *s = user;
    if (op->body)
        nd_table_put(&s->repeated, op->axes[0], op);
    for (int i = 0; op->body && i < s->m->plan.rules.n; i++) {
        const nd_rule *r = &s->m->plan.rules.v[i];
        if (r->axis != op->axes[0] || s->failed)
            continue;
        nd_error(s->m->ctx, r->loc,
                 "`%s` is repeated over: cut it with `pipeline`, not `shard`",
                 r->axis->name);
        nd_note(s->m->ctx, op->loc, "the repeat is here");
        s->failed = true;
    }
}

/* A microbatch is one more cut of the sample axis. */
static void check_room(nd_sh *s)
{
    nd_module *m = s->m;
    for (int i = 0; i < m->plan.rules.n && m->plan.microbatches > 1; i++) {
        const nd_rule *r = &m->plan.rules.v[i];
        if (r->axis != m->sample || r->mesh.n < ND_MAX_CUT)
            continue;
        nd_error(m->ctx, r->loc, "at most %d mesh axes may cut `%s` beside "
                 "microbatches", ND_MAX_CUT - 1, r->axis->name);
        s->failed = true;
    }
}

bool pass_shard(nd_module *m, const nd_options *o)
{
    (void)o;
    nd_sh s = {.m = m, .repeated = {.arena = m->ctx->arena},
               .graded = ND_NEWN(m->ctx->arena, bool, m->params.n),
               .summed = ND_NEWN(m->ctx->arena, uint32_t, m->params.n)};
    nd_walk(m->step, check_repeat, &s);
    check_room(&s);
    nd_clear_marks(m);
    nd_sh_find_partial(&s);
    block(&s, NULL, m->step);
    if (!s.failed)
        unify_gradients(&s);
    nd_sh_check_store(&s);
    for (int i = 0; i < m->params.n; i++) {
        nd_param *p = m->params.v[i];
        uint32_t sum = p->grad.sum;
        p->grad = p->value->type;
        p->grad.sum = sum;
    }
    if (!s.failed) {
        nd_sh_tell(&s);
        nd_dce(m);
    }
    return !s.failed;
}
