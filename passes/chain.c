/* chain.c - the chain of units, and the unit of every op.
 *
 *   %x = gather              0           %dx = repeat reverse   1 .. 3
 *   %h = repeat layers [3]   1 .. 3      accumulate "embed"     0
 *   %y = contract %h, %w     4           accumulate "w"         4
 *
 * Forward: a repeat needs some ops, which stand in front of it as late as can
 * be: in front of the first repeat that needs them. What no repeat needs stands
 * at the end. What depends on inputs alone, and copies of weights, have no
 * unit: each stage makes them.
 *
 * Backward: gradients come down the chain. An op stands at the lowest unit at
 * which its operands are at hand: not below forward values that it reads, nor
 * below the place of a parameter that it reads or accumulates to (the highest
 * use that its gradients can have come from), nor below what reads its result.
 * So weight gradients stand with their weights, and what is sent down is what
 * was sent up.
 */
#include "pipeline.h"

#include <string.h>

/* ---- what is read -------------------------------------------------------- */

static void reads_in(pipe *pp, nd_op *op, nd_op *inner, pipe_read_fn *f,
                     void *user)
{
    for (int i = 0; i < inner->nin; i++)
        if (nd_block_of(inner->in[i]) == pp->m->step)
            f(pp, op, inner->in[i], user);
    if (inner->kind == OP_ACCUM)
        f(pp, op, inner->param->value, user);
    if (!inner->body)
        return;
    for (int i = 0; i < inner->body->ops.n; i++)
        reads_in(pp, op, inner->body->ops.v[i], f, user);
    for (int i = 0; i < inner->body->yields.n; i++)
        if (nd_block_of(inner->body->yields.v[i]) == pp->m->step)
            f(pp, op, inner->body->yields.v[i], user);
}

void pipe_reads(pipe *pp, nd_op *op, pipe_read_fn *f, void *user)
{
    reads_in(pp, op, op, f, user);
}

bool pipe_on_demand(const nd_op *op)
{
    return op->kind == OP_PARAM || op->phase == PH_PRE ||
           (op->nout == 1 &&
            (op->out[0]->mark || nd_is_weight_copy(op->out[0])));
}

bool pipe_is_piped(const pipe *pp, const nd_op *op)
{
    return op->kind == OP_REPEAT && op->block == pp->m->step &&
           nd_is_piped(pp->m, op->axes[0]);
}

/* ---- places -------------------------------------------------------------- */

static pipe_place *put(pipe *pp, const nd_op *op, int first, int last)
{
    pipe_place *at = ND_NEW(pp->a, pipe_place);
    *at = (pipe_place){first, last, false};
    nd_table_put(&pp->places, op, at);
    return at;
}

static const pipe_place *get(const pipe *pp, const nd_op *op)
{
    return nd_table_get(&pp->places, op);
}

pipe_place pipe_place_of(const pipe *pp, const nd_op *op)
{
    const pipe_place *at = get(pp, op);
    return (pipe_place){pp->stage_of[at->first], pp->stage_of[at->last],
                        at->demand};
}

void pipe_place_like(pipe *pp, nd_op *op, const nd_op *other)
{
    const pipe_place *at = get(pp, other);
    put(pp, op, at->first, at->last)->demand = at->demand;
}

/* Where a value is first at hand. What a repeat stacks is there with each of
 * its iterations, for repeats over the same ones. */
static int made_at(const pipe *pp, const nd_value *v)
{
    const pipe_place *at = get(pp, v->def);
    if (!pipe_is_piped(pp, v->def))
        return at->first;
    bool stacked = v->index >= v->def->ncarry;
    return v->def->reverse != stacked ? at->first : at->last;
}

/* ---- forward ------------------------------------------------------------- */

typedef struct need {
    bool *is;                        /* by the op's mark: its index */
} need;

static void needs(pipe *pp, nd_op *op, nd_value *v, void *user)
{
    need *n = user;
    (void)pp, (void)op;
    n->is[v->def->mark] = true;
}

/* By op: in front of which repeat it stands. */
static int *segments(pipe *pp)
{
    nd_block *b = pp->m->step;
    int *segment = ND_NEWN(pp->a, int, b->ops.n + 1);
    for (int i = 0; i < b->ops.n; i++)
        segment[i] = pp->repeats.n;
    for (int k = pp->repeats.n - 1; k >= 0; k--) {
        need n = {ND_NEWN(pp->a, bool, b->ops.n + 1)};
        n.is[pp->repeats.v[k].fwd->mark] = true;
        for (int i = pp->repeats.v[k].fwd->mark; i >= 0; i--) {
            if (!n.is[i])
                continue;
            segment[i] = k;
            pipe_reads(pp, b->ops.v[i], needs, &n);
        }
    }
    return segment;
}

static void lay_out(pipe *pp)
{
    nd_block *b = pp->m->step;
    const int *segment = segments(pp);
    for (int k = 0; k <= pp->repeats.n; k++) {
        for (int i = 0; i < b->ops.n; i++) {
            nd_op *op = b->ops.v[i];
            if (pipe_on_demand(op))
                put(pp, op, 0, 0)->demand = true;
            else if (op->phase == PH_FWD && segment[i] == k &&
                     !pipe_is_piped(pp, op))
                put(pp, op, pp->n, pp->n), pp->n++;
        }
        if (k == pp->repeats.n)
            break;
        pipe_repeat *r = &pp->repeats.v[k];
        r->base = pp->n;
        r->n = (int)r->fwd->axes[0]->size;
        put(pp, r->fwd, r->base, r->base + r->n - 1);
        pp->n += r->n;
    }
    pp->n += !pp->n;
}

/* ---- backward ------------------------------------------------------------ */

typedef struct span {
    int first, last;
} span;
typedef ND_VEC(span) spans;

typedef struct back {
    spans *uses;                     /* by parameter */
    int *high, *low;                 /* by the op's mark */
} back;

static const nd_param *param_behind(const nd_value *v)
{
    while (v->def && v->def->kind != OP_PARAM && nd_is_weight_copy(v))
        v = v->def->in[0];
    return v->def && v->def->kind == OP_PARAM ? v->def->param : NULL;
}

static void note_use(pipe *pp, nd_op *op, nd_value *v, void *user)
{
    back *x = user;
    const nd_param *p = param_behind(v);
    const pipe_place *at = get(pp, op);
    span s = {at->first, at->last};
    if (p)
        ND_PUSH(pp->a, &x->uses[p->index], s);
}

static bool is_back(const nd_op *op)
{
    return op->phase != PH_FWD && op->phase != PH_PRE;
}

/* The highest unit at which the op can stand: below it there are gradients. */
static void see_high(pipe *pp, nd_op *op, nd_value *v, void *user)
{
    back *x = user;
    nd_op *d = v->def;
    if (!is_back(d) || pipe_on_demand(d))
        return;
    int high = pipe_is_piped(pp, d) ? made_at(pp, v) : x->high[d->mark];
    if (high < x->high[op->mark])
        x->high[op->mark] = high;
}

/* The highest use of a parameter up to `high`, or 0. */
static int use_below(const back *x, const nd_param *p, int high)
{
    int best = 0;
    for (int i = 0; i < x->uses[p->index].n; i++) {
        span s = x->uses[p->index].v[i];
        int at = s.last < high ? s.last : high;
        if (s.first <= high && at > best)
            best = at;
    }
    return best;
}

static void see_low(pipe *pp, nd_op *op, nd_value *v, void *user)
{
    back *x = user;
    const nd_param *p = param_behind(v);
    int low = 0;
    if (p)
        low = use_below(x, p, x->high[op->mark]);
    else if (!is_back(v->def) && !pipe_on_demand(v->def))
        low = made_at(pp, v);
    if (low > x->low[op->mark])
        x->low[op->mark] = low;
}

static void raise(pipe *pp, nd_op *op, nd_value *v, void *user)
{
    back *x = user;
    nd_op *d = v->def;
    int low = pipe_is_piped(pp, op) ? get(pp, op)->last : x->low[op->mark];
    if (is_back(d) && !pipe_on_demand(d) && low > x->low[d->mark])
        x->low[d->mark] = low;
}

/* A reverse repeat runs where its forward one does. */
static void place_reverse(pipe *pp, nd_op *op)
{
    for (int k = 0; k < pp->repeats.n; k++) {
        const pipe_repeat *r = &pp->repeats.v[k];
        if (r->fwd->axes[0] == op->axes[0])
            put(pp, op, r->base, r->base + r->n - 1);
    }
}

void pipe_chain_back(pipe *pp)
{
    nd_block *b = pp->m->step;
    back x = {ND_NEWN(pp->a, spans, pp->m->params.n + 1),
              ND_NEWN(pp->a, int, b->ops.n + 1),
              ND_NEWN(pp->a, int, b->ops.n + 1)};
    for (int i = 0; i < b->ops.n; i++)
        b->ops.v[i]->mark = i;
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        x.high[i] = pp->n - 1;
        if (pipe_on_demand(op))
            continue;
        if (!is_back(op))
            pipe_reads(pp, op, note_use, &x);
        else if (pipe_is_piped(pp, op))
            place_reverse(pp, op);
        else
            pipe_reads(pp, op, see_high, &x);
    }
    for (int i = b->ops.n - 1; i >= 0; i--) {
        nd_op *op = b->ops.v[i];
        if (!is_back(op) || pipe_on_demand(op))
            continue;
        if (!pipe_is_piped(pp, op)) {
            pipe_reads(pp, op, see_low, &x);
            if (x.low[i] > x.high[i])
                x.low[i] = x.high[i];
            put(pp, op, x.low[i], x.low[i]);
        }
        pipe_reads(pp, op, raise, &x);
    }
}

void pipe_chain(pipe *pp)
{
    nd_block *b = pp->m->step;
    pp->places = (nd_table){.arena = pp->a};
    nd_mark_free(pp->m);             /* values; ops have marks of their own */
    for (int i = 0; i < b->ops.n; i++)
        b->ops.v[i]->mark = i;
    lay_out(pp);
    pipe_chain_back(pp);
}
