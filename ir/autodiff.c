/* autodiff.c - reverse mode over the graph, through repeats.
 *
 * The backward ops follow the forward ops in the same block. A parameter's
 * gradient is an effect, `accumulate`, at every place that contributes: so a
 * parameter used on two pipeline stages has two contributions that need never
 * meet before the update.
 *
 *   %y = repeat [layers] carry(%x) scan(%w) { (%x1, %w1) ... yield %x2 }
 *   ->
 *   %y, %kept = repeat [layers] carry(%x) scan(%w) { ... yield %x2, %h }
 *   bwd %dx = repeat reverse [layers] carry(%dy) scan(%kept, %w) {
 *     (%dx2, %h, %w1)
 *     accumulate "layers.w" %dw1
 *     yield %dx1
 *   }
 *
 * Forward values that the backward body reads become stacked results of the
 * forward repeat; passes/recompute.c later decides which of them are worth
 * their memory. Captured outer values gain their gradient through an extra
 * carried sum.
 *
 * A carried value that each iteration only rolls is the same blocks in another
 * order: it is not stacked, but carried by the backward repeat as well and
 * rolled back from where forward left it. A body that does so is a turn of a
 * ring, and under `recompute` it is made again from what it carries.
 */
#include "ir.h"

#include <string.h>

/* One nesting level: a forward block and where its backward ops go. */
struct nd_ad {
    nd_module *m;
    nd_ad *parent;                   /* the level around it, or NULL */
    nd_op *fwd, *bwd;                /* the two repeats; NULL at the top */
    bool ring;                       /* a carried value is rolled in it */
    nd_block *block;                 /* the forward block */
    nd_builder b;
    bool *active;                    /* by value mark, shared by all levels */
    nd_value **adj;                  /* by value mark, shared by all levels */
    nd_value **seen;                 /* by value mark: nd_ad_use's answers */
    int *next_mark;                  /* for values stacked on the way */
    ND_VEC(nd_value *) captured;     /* outer values that gain gradients here */
    ND_VEC(nd_value *) captured_adj;
};

/* ---- numbering and activity ---------------------------------------------- */

static void number_values(nd_op *op, void *user)
{
    int *next = user;
    for (int i = 0; i < op->nout; i++)
        op->out[i]->mark = (*next)++;
    for (int i = 0; op->body && i < op->body->args.n; i++)
        op->body->args.v[i]->mark = (*next)++;
}

static bool set_active(nd_ad *d, const nd_value *v, bool on)
{
    if (!on || d->active[v->mark] || !nd_is_float(v->type.dtype))
        return false;
    d->active[v->mark] = true;
    return true;
}

/* One pass over a block; true if anything became active. */
static bool spread(nd_ad *d, nd_block *b)
{
    bool changed = false;
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        if (op->kind == OP_REPEAT) {
            nd_block *body = op->body;
            for (int k = 0; k < op->nin; k++)
                changed |= set_active(d, body->args.v[k],
                                      d->active[op->in[k]->mark]);
            changed |= spread(d, body);
            for (int k = 0; k < op->nout; k++) {
                bool on = d->active[body->yields.v[k]->mark];
                changed |= set_active(d, op->out[k], on);
                if (k < op->ncarry)
                    changed |= set_active(d, body->args.v[k], on);
            }
            continue;
        }
        bool on = op->kind == OP_PARAM &&
                  !nd_param_of(op->out[0])->frozen;
        for (int k = 0; k < op->nin; k++)
            on |= d->active[op->in[k]->mark];
        if (op->kind == OP_STOP_GRAD)
            on = false;
        for (int k = 0; k < op->nout; k++)
            changed |= set_active(d, op->out[k], on);
    }
    return changed;
}

/* ---- the interface of the rules ------------------------------------------ */

nd_builder *nd_ad_builder(nd_ad *d)
{
    return &d->b;
}

bool nd_ad_active(const nd_ad *d, const nd_value *v)
{
    return d->active[v->mark];
}

/* What depends on inputs alone costs less to compute again than to keep. */
static nd_value *make_again(nd_ad *d, const nd_value *v)
{
    nd_value **in = ND_NEWN(d->m->ctx->arena, nd_value *, v->def->nin);
    for (int i = 0; i < v->def->nin; i++)
        in[i] = nd_ad_use(d, v->def->in[i]);
    return nd_clone(&d->b, v->def, in)->out[v->index];
}

/* A kept value may have the axis of the repeat itself: stacked, it has that
 * one under another name. */
static nd_value *rename_at_end(nd_ad *d, nd_value *v, nd_axis *from,
                               nd_axis *to)
{
    nd_builder b = {.m = d->m, .block = d->block, .at = -1, .phase = PH_FWD,
                    .loc = d->fwd->loc, .path = d->fwd->path,
                    .hint = v->name};
    return nd_rename(&b, v, from, to);
}

/* What a turn of a ring makes again in backward: copies at least, and with
 * recompute all but what a reduction or an inner repeat brings. */
static bool made_again(const nd_ad *d, const nd_value *v)
{
    if (!d->ring || !v->def || nd_has_trait(v->def, 'e'))
        return false;
    return v->def->kind == OP_CAST || v->def->kind == OP_GATHER ||
           nd_has_trait(v->def, 'v') ||
           (d->m->plan.recompute != REMAT_NONE && v->def->kind != OP_REDUCE);
}

nd_value *nd_ad_use(nd_ad *d, nd_value *v)
{
    if (!d->parent || !v)
        return v;
    if (nd_block_of(v) != d->block)
        return nd_ad_use(d->parent, v);
    if (d->seen[v->mark])
        return d->seen[v->mark];
    if (nd_is_free(v) || made_again(d, v))
        return d->seen[v->mark] = make_again(d, v);
    nd_value *whole;
    nd_axis *a = d->fwd->axes[0], *spare = NULL;
    if (!v->def && v->index >= d->fwd->ncarry) {
        whole = d->fwd->in[v->index];        /* scanned there, scanned here */
    } else {
        nd_value *kept = v;
        if (nd_axis_at(&v->type, a) >= 0) {
            spare = nd_axis_twin(d->m, a);
            kept = rename_at_end(d, v, a, spare);
        }
        whole = nd_repeat_stack(d->m, d->fwd, kept);
    }
    if (!whole->mark)
        whole->mark = (*d->next_mark)++;
    whole = nd_ad_use(d->parent, whole);
    nd_value *here = nd_repeat_scan(d->m, d->bwd, whole);
    if (spare)
        here = nd_rename(&d->b, here, spare, a);
    return d->seen[v->mark] = here;
}

/* g with exactly the axes of v: extra ones summed, missing ones repeated. */
static nd_value *fit(nd_ad *d, nd_value *g, const nd_value *v)
{
    nd_axis *extra[ND_MAX_RANK];
    int n = 0;
    for (int i = 0; i < g->type.rank; i++)
        if (nd_axis_at(&v->type, g->type.axis[i]) < 0)
            extra[n++] = g->type.axis[i];
    if (n)
        g = nd_reduce(&d->b, RED_SUM, g, n, extra);
    if (g && g->type.rank < v->type.rank) {
        nd_type like = v->type;
        g = nd_broadcast(&d->b, g, &like);
    }
    return g;
}

static nd_value *plus(nd_ad *d, nd_value *x, nd_value *y)
{
    return x ? nd_map(&d->b, EW_ADD, x, y, NULL) : y;
}

void nd_ad_add(nd_ad *d, nd_value *v, nd_value *g)
{
    if (!g || !d->active[v->mark])
        return;
    g = fit(d, g, v);
    if (!g)
        return;
    nd_param *p = nd_param_of(v);
    if (p) {
        nd_accumulate(&d->b, p, g);
        return;
    }
    if (nd_block_of(v) == d->block) {
        d->adj[v->mark] = plus(d, d->adj[v->mark], g);
        return;
    }
    for (int i = 0; i < d->captured.n; i++)
        if (d->captured.v[i] == v) {
            d->captured_adj.v[i] = plus(d, d->captured_adj.v[i], g);
            return;
        }
    nd_error(d->m->ctx, d->b.loc,
             "the gradient of `%s` is lost: a fault of ndc, please report it",
             v->name);
}

/* ---- repeats ------------------------------------------------------------- */

static bool inside(const nd_block *b, const nd_block *outer)
{
    for (; b; b = b->parent ? b->parent->block : NULL)
        if (b == outer)
            return true;
    return false;
}

static void capture(nd_ad *d, nd_value *v)
{
    if (inside(nd_block_of(v), d->block) || !d->active[v->mark] ||
        nd_param_of(v))
        return;
    for (int j = 0; j < d->captured.n; j++)
        if (d->captured.v[j] == v)
            return;
    ND_PUSH(d->m->ctx->arena, &d->captured, v);
    ND_PUSH(d->m->ctx->arena, &d->captured_adj, NULL);
}

/* Outer values that the body reads or yields and into which gradient flows,
 * parameters aside. */
static void find_captured(nd_ad *d, nd_block *b)
{
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        for (int k = 0; k < op->nin; k++)
            capture(d, op->in[k]);
        if (op->body)
            find_captured(d, op->body);
    }
    for (int k = 0; k < b->yields.n; k++)
        capture(d, b->yields.v[k]);
}

static nd_value *zeros(nd_builder *b, const nd_type *like)
{
    return nd_broadcast(b, nd_const(b, ND_F32, 0), like);
}

/* g with its axes in the order of `like`: what is carried keeps its type. */
static nd_value *ordered(nd_builder *b, nd_value *g, const nd_type *like)
{
    return nd_same_axes(&g->type, like) ? g : nd_broadcast(b, g, like);
}

static void backward_block(nd_ad *d);

/* The initial values of the reverse repeat: gradients of what the forward one
 * carries, then a zero for each captured value. Returns how many are carried
 * gradients; carry[i] is the index of the forward carry. */
static int reverse_inits(nd_ad *up, nd_ad *d, nd_value **init, int *carry)
{
    nd_op *r = d->fwd;
    int n = 0;
    for (int i = 0; i < r->ncarry; i++) {
        if (!d->active[r->body->args.v[i]->mark])
            continue;
        nd_value *g = up->adj[r->out[i]->mark];
        nd_type like = r->out[i]->type;
        init[n] = g ? g : zeros(&up->b, &like);
        carry[n++] = i;
    }
    for (int i = 0; i < d->captured.n; i++) {
        nd_type like = d->captured.v[i]->type;
        init[n + i] = zeros(&up->b, &like);
    }
    return n;
}

/* Is the carried value i a roll of what it was? */
static bool is_rolled(const nd_op *r, int i)
{
    const nd_op *next = r->body->yields.v[i]->def;
    return next && next->kind == OP_ROLL && next->block == r->body &&
           next->in[0] == r->body->args.v[i];
}

static int count_rolled(const nd_op *r)
{
    int n = 0;
    for (int i = 0; i < r->ncarry; i++)
        n += is_rolled(r, i);
    return n;
}

/* Rolled values as the backward body has them: `arg` holds what the iteration
 * yielded, and rolled back what it was given, which is carried on. */
static void roll_back(nd_ad *d, nd_value *const *arg, nd_value **next)
{
    nd_block *body = d->fwd->body;
    for (int i = 0, k = 0; i < d->fwd->ncarry; i++) {
        if (!is_rolled(d->fwd, i))
            continue;
        const nd_op *roll = body->yields.v[i]->def;
        d->b.loc = roll->loc;
        next[k] = nd_roll(&d->b, arg[k], roll->axes[0], (int64_t)-roll->num);
        d->seen[body->yields.v[i]->mark] = arg[k];
        d->seen[body->args.v[i]->mark] = next[k++];
    }
}

/* Rolled back all the way they are what the repeat began with: the level above
 * needs no copy of that. */
static void give_back(nd_ad *up, nd_ad *d, nd_value *const *out)
{
    for (int i = 0, k = 0; i < d->fwd->ncarry; i++) {
        if (!is_rolled(d->fwd, i))
            continue;
        nd_value *first = d->fwd->in[i], *whole = out[k++];
        if (up->parent && nd_block_of(first) == up->block &&
            !up->seen[first->mark])
            up->seen[first->mark] = whole;
    }
}

/* What the body asked of the level above was put behind the repeat. */
static void move_to_end(nd_block *b, nd_op *op)
{
    int at = 0;
    while (b->ops.v[at] != op)
        at++;
    for (; at + 1 < b->ops.n; at++)
        b->ops.v[at] = b->ops.v[at + 1];
    b->ops.v[at] = op;
}

/* What the body gives nothing has no gradient: that is less than a zero, which
 * the level above could not tell from a sum over rows. */
static void add_above(nd_ad *up, nd_ad *d, const int *carry, int ncarry)
{
    const nd_op *r = d->fwd;
    for (int i = 0; i < ncarry; i++)
        if (d->adj[r->body->args.v[carry[i]]->mark])
            nd_ad_add(up, r->in[carry[i]], d->bwd->out[i]);
    for (int i = 0; i < d->captured.n; i++)
        if (d->captured_adj.v[i])
            nd_ad_add(up, d->captured.v[i], d->bwd->out[ncarry + i]);
    for (int i = r->ncarry; i < r->nin; i++) {
        nd_value *g = d->adj[r->body->args.v[i]->mark];
        if (g)
            nd_ad_add(up, r->in[i], nd_repeat_stack(d->m, d->bwd, g));
    }
}

static void backward_repeat(nd_ad *up, nd_op *r)
{
    nd_arena *a = up->m->ctx->arena;
    nd_ad d = {.m = up->m, .parent = up, .fwd = r, .block = r->body,
               .active = up->active, .adj = up->adj, .seen = up->seen,
               .next_mark = up->next_mark};
    find_captured(&d, r->body);

    int nrolled = count_rolled(r);
    d.ring = nrolled > 0;
    nd_value **init =
        ND_NEWN(a, nd_value *, r->ncarry + d.captured.n + nrolled);
    int *carry = ND_NEWN(a, int, r->ncarry + 1);
    int fwd_outs = r->nout;
    int ncarry = reverse_inits(up, &d, init, carry);
    int n = ncarry + d.captured.n;
    for (int i = 0; i < r->ncarry; i++)
        if (is_rolled(r, i))
            init[n++] = nd_ad_use(up, r->out[i]);
    up->b.loc = r->loc;
    up->b.path = r->path;
    d.bwd = nd_repeat_begin(&up->b, r->axes[0], n, init);
    if (!d.bwd)
        return;
    d.bwd->reverse = true;
    d.b = (nd_builder){.m = up->m, .block = d.bwd->body, .at = -1,
                       .phase = PH_BWD, .loc = r->loc, .path = r->path};

    nd_block *body = d.bwd->body;
    nd_value **next = ND_NEWN(a, nd_value *, n);
    roll_back(&d, body->args.v + n - nrolled, next + n - nrolled);
    for (int i = 0; i < ncarry; i++)
        nd_ad_add(&d, r->body->yields.v[carry[i]], body->args.v[i]);
    for (int i = r->ncarry; i < fwd_outs; i++) {
        nd_value *g = up->adj[r->out[i]->mark];
        if (g)
            nd_ad_add(&d, r->body->yields.v[i],
                      nd_repeat_scan(d.m, d.bwd, g));
    }
    backward_block(&d);

    for (int i = 0; i < ncarry; i++) {
        nd_value *arg = r->body->args.v[carry[i]];
        nd_value *g = d.adj[arg->mark];
        const nd_type *like = &body->args.v[i]->type;
        next[i] = g ? ordered(&d.b, g, like) : zeros(&d.b, like);
    }
    for (int i = 0; i < d.captured.n; i++) {
        nd_value *g = d.captured_adj.v[i], *sum = body->args.v[ncarry + i];
        next[ncarry + i] = g ? nd_map(&d.b, EW_ADD, sum, g, NULL) : sum;
    }
    nd_repeat_yield(d.m, d.bwd, next);
    move_to_end(up->b.block, d.bwd);
    give_back(up, &d, d.bwd->out + n - nrolled);
    add_above(up, &d, carry, ncarry);
}

/* ---- blocks -------------------------------------------------------------- */

static void backward_block(nd_ad *d)
{
    for (int i = d->block->ops.n - 1; i >= 0; i--) {
        nd_op *op = d->block->ops.v[i];
        if (op->phase == PH_BWD)
            continue;
        bool wanted = false;
        for (int k = 0; k < op->nout; k++)
            wanted |= d->active[op->out[k]->mark] && d->adj[op->out[k]->mark];
        if (!wanted)
            continue;
        d->b.loc = op->loc;
        d->b.path = op->path;
        if (op->kind == OP_REPEAT)
            backward_repeat(d, op);
        else
            nd_vjp(d, op, d->adj[op->out[0]->mark]);
    }
}

static int depth(const nd_block *b)
{
    int deepest = 0;
    for (int i = 0; i < b->ops.n; i++) {
        int below = b->ops.v[i]->body ? 1 + depth(b->ops.v[i]->body) : 0;
        deepest = below > deepest ? below : deepest;
    }
    return deepest;
}

bool nd_autodiff(nd_module *m)
{
    if (!m->loss)
        return true;
    int next = 1, errors = m->ctx->nerrors;
    nd_walk(m->step, number_values, &next);
    /* A value is stacked at most once per level of nesting. */
    int n = next * (depth(m->step) + 1);
    nd_ad d = {.m = m, .block = m->step,
               .active = ND_NEWN(m->ctx->arena, bool, n),
               .adj = ND_NEWN(m->ctx->arena, nd_value *, n),
               .seen = ND_NEWN(m->ctx->arena, nd_value *, n),
               .next_mark = &next,
               .b = {.m = m, .block = m->step, .at = -1, .phase = PH_BWD}};
    while (spread(&d, m->step))
        ;
    d.b.loc = m->loss->def->loc;
    if (!d.active[m->loss->mark]) {
        nd_error(m->ctx, d.b.loc, "the loss does not depend on any parameter");
        return false;
    }
    d.adj[m->loss->mark] = nd_const(&d.b, ND_F32, 1);
    backward_block(&d);
    return m->ctx->nerrors == errors;
}
