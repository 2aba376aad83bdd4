/* comm_opt.c - fewer collectives for the same values.
 *
 * One does as well as two:
 *
 *   %b = reduce_scatter [seq] over tp %a     %b read by the gather alone
 *   %c = all_gather [seq] over tp %b         -> %c = all_reduce over tp %a
 *
 *   %b = all_reduce sum over tp %a           %b read by the slice alone
 *   %c = slice [seq] over tp %b              -> %c = reduce_scatter ... %a
 *
 * The first moves the same bytes in one call; the second half of them. The
 * sharding pass settles a value at the cut of its own axes before anyone knows
 * who else will read it, which is where such pairs come from.
 *
 * Once per step does as well as once per microbatch where no row is involved:
 *
 *   %v = all_gather [vocab] over tp %w       %w a parameter
 *   -> pre %v = ...
 *
 * Only outside repeats: of what a body gathers there would be a copy for every
 * iteration. Nor what is stored in pieces to be gathered at each use, which is
 * how a plan asks for less memory.
 */
#include "passes.h"

/* How a value is used, by its mark. */
typedef struct use {
    int n;                           /* operands and yields that are it */
    nd_op *op;                       /* the last op that reads it */
} use;

typedef struct uses {
    nd_arena *arena;
    ND_VEC(use) v;
} uses;

static void number(nd_op *op, void *user)
{
    uses *u = user;
    for (int i = 0; i < op->nout; i++) {
        op->out[i]->mark = u->v.n;
        ND_PUSH(u->arena, &u->v, (use){0});
    }
    for (int i = 0; op->body && i < op->body->args.n; i++) {
        op->body->args.v[i]->mark = u->v.n;
        ND_PUSH(u->arena, &u->v, (use){0});
    }
}

static void count(nd_op *op, void *user)
{
    uses *u = user;
    for (int i = 0; i < op->nin; i++) {
        use *x = &u->v.v[op->in[i]->mark];
        x->n++;
        x->op = op;
    }
    for (int i = 0; op->body && i < op->body->yields.n; i++)
        u->v.v[op->body->yields.v[i]->mark].n++;
}

static bool single(uint32_t mesh)
{
    return mesh && (mesh & (mesh - 1)) == 0;
}

/* The op that alone reads this collective's result, if it is a `kind` over the
 * same mesh axis in the same block. */
static nd_op *only_reader(const uses *u, const nd_op *op, nd_opcode kind)
{
    const use *x = &u->v.v[op->out[0]->mark];
    return x->n == 1 && x->op && x->op->kind == kind &&
                   x->op->mesh == op->mesh && x->op->block == op->block
               ? x->op
               : NULL;
}

/* `second` becomes `kind` of the first one's operand; dead code removal takes
 * the first. */
static bool join(nd_module *m, const nd_op *first, nd_op *second,
                 nd_opcode kind)
{
    second->kind = kind;
    second->sub = RED_SUM;
    second->in[0] = first->in[0];
    if (kind == OP_ALL_REDUCE)
        second->naxes = 0;
    return nd_retype(m, second);
}

typedef struct job {
    nd_module *m;
    uses u;
    bool failed;
} job;

static void pair(nd_op *op, void *user)
{
    job *j = user;
    nd_op *next = NULL;
    nd_opcode kind = OP_ALL_REDUCE;
    if (op->kind == OP_REDUCE_SCATTER) {
        next = only_reader(&j->u, op, OP_ALL_GATHER);
        if (next && next->axes[0] != op->axes[0])
            next = NULL;
    } else if (op->kind == OP_ALL_REDUCE && op->sub == RED_SUM &&
               single(op->mesh)) {
        next = only_reader(&j->u, op, OP_SLICE);
        kind = OP_REDUCE_SCATTER;
    }
    if (next && !join(j->m, op, next, kind))
        j->failed = true;
}

/* ---- once per step ------------------------------------------------------- */

/* Is v there before the first microbatch, if the casts and renames that it
 * alone is read through are made then as well? */
static bool is_early(const job *j, const nd_value *v)
{
    const nd_op *op = v->def;
    if (!op)
        return false;
    if (op->phase == PH_PRE)
        return true;
    if (op->kind == OP_PARAM)
        return !nd_is_in_pieces(j->m, op->param);
    return (op->kind == OP_CAST || op->kind == OP_RENAME) &&
           j->u.v.v[v->mark].n == 1 && is_early(j, op->in[0]);
}

static void hoist(nd_op *op, void *user)
{
    const job *j = user;
    bool gathers = op->kind == OP_ALL_GATHER || op->kind == OP_ALL_TO_ALL;
    if (!gathers || op->block->parent || !is_early(j, op->in[0]))
        return;
    for (; op->phase != PH_PRE && op->kind != OP_PARAM; op = op->in[0]->def)
        op->phase = PH_PRE;
}

bool pass_comm_opt(nd_module *m, const nd_options *o)
{
    (void)o;
    job j = {.m = m, .u = {.arena = m->ctx->arena}};
    nd_walk(m->step, number, &j.u);
    nd_walk(m->step, count, &j.u);
    nd_walk(m->step, pair, &j);
    if (m->plan.microbatches > 1)
        nd_walk(m->step, hoist, &j);
    nd_dce(m);
    return !j.failed;
}
