/* simplify.c - fold constants, share common subexpressions, drop dead code.
 *
 *   %c = mul %two, %half   -> %c = const 1
 *   %y = mul %x, %one      -> %x
 *   %a = exp %x  %b = exp %x -> one of them
 *
 * Sharing works within a block, backward ops with forward ones included: what
 * that costs in memory is decided later, by recompute.
 */
#include "passes.h"

#include <string.h>

static bool same_list(int n, nd_axis *const *a, nd_axis *const *b)
{
    return n == 0 || memcmp(a, b, sizeof *a * (size_t)n) == 0;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool pure(const nd_op *op)
{
    return !nd_has_trait(op, 'e');
}

bool nd_same_work(const nd_op *a, const nd_op *b)
{
    if (a->kind != b->kind || a->sub != b->sub || a->nin != b->nin ||
        a->naxes != b->naxes || a->nto != b->nto || a->mesh != b->mesh ||
        a->reverse != b->reverse ||
        memcmp(&a->num, &b->num, sizeof a->num) != 0)
        return false;
    const nd_type *s = &a->out[0]->type, *t = &b->out[0]->type;
    return same_list(a->naxes, a->axes, b->axes) &&
           same_list(a->nto, a->to, b->to) &&
           same_text(a->name, b->name) && s->dtype == t->dtype &&
           nd_same_axes(s, t) && nd_same_cut(s, t);
}

static bool same_op(const nd_op *a, const nd_op *b)
{
    if (a->phase != b->phase || !nd_same_work(a, b))
        return false;
    for (int i = 0; i < a->nin; i++)
        if (a->in[i] != b->in[i])
            return false;
    return true;
}

static uint32_t op_hash(const nd_op *op)
{
    uint64_t h = (uint64_t)op->kind * 31 + (uint64_t)op->sub;
    uint64_t num;
    memcpy(&num, &op->num, sizeof num);  /* all that tells constants apart */
    h = h * 0x9e3779b97f4a7c15u + num;
    for (int i = 0; i < op->nin; i++)
        h = h * 0x9e3779b97f4a7c15u + ((uintptr_t)op->in[i] >> 4);
    for (int i = 0; i < op->naxes; i++)
        h = h * 0x9e3779b97f4a7c15u + ((uintptr_t)op->axes[i] >> 4);
    h *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

/* A narrow value that was widened and is narrowed again; else the operand. */
static nd_value *before_casts(const nd_op *op)
{
    nd_value *x = op->in[0];
    bool widens = x->def && x->def->kind == OP_CAST &&
                  x->type.dtype == ND_F32 &&
                  nd_is_narrow(x->def->in[0]->type.dtype);
    return widens ? x->def->in[0] : x;
}

/* What an op is when it needs no work: an operand of the same type. Once the
 * gradients are there, stop_gradient has done its work. */
static nd_value *trivial(const nd_module *m, const nd_op *op)
{
    nd_value *r = NULL;
    if (op->kind == OP_CAST)
        r = before_casts(op);
    else if (op->kind == OP_BROADCAST ||
             (op->kind == OP_STOP_GRAD && (m->state & ND_HAS_GRADS)))
        r = op->in[0];
    else if (op->kind != OP_MAP)
        return NULL;
    else if ((op->sub == EW_MUL || op->sub == EW_DIV) &&
             nd_is_const(op->in[1], 1))
        r = op->in[0];
    else if (op->sub == EW_MUL && nd_is_const(op->in[0], 1))
        r = op->in[1];
    else if ((op->sub == EW_ADD || op->sub == EW_SUB) &&
             nd_is_const(op->in[1], 0))
        r = op->in[0];
    else if (op->sub == EW_ADD && nd_is_const(op->in[0], 0))
        r = op->in[1];
    else if (op->sub == EW_AND || op->sub == EW_OR)
        for (int i = 0; i < 2; i++)
            if (nd_is_const(op->in[i], op->sub == EW_AND))
                r = op->in[!i];
    const nd_type *t = &op->out[0]->type;
    return r && r->type.dtype == t->dtype && nd_same_axes(&r->type, t) &&
                   nd_same_cut(&r->type, t)
               ? r
               : NULL;
}

/* A map of constants becomes a constant in place. */
static void fold(nd_op *op)
{
    double x[3] = {0};
    if (op->kind != OP_MAP || op->out[0]->type.rank)
        return;
    for (int i = 0; i < op->nin; i++) {
        if (!op->in[i]->def || op->in[i]->def->kind != OP_CONST)
            return;
        x[i] = op->in[i]->def->num;
    }
    if (op->sub == EW_DIV && !nd_is_float(op->out[0]->type.dtype))
        return;
    double v = nd_ew_eval((nd_ew)op->sub, x[0], x[1], x[2]);
    if (op->out[0]->type.dtype == ND_I32 && !(v >= -0x1p31 && v < 0x1p31))
        return;                      /* wraps at run time */
    op->num = v;
    op->kind = OP_CONST;
    op->nin = op->sub = 0;
}

/* Values that stand for another one, found by marks: index + 1 into `to`. */
typedef struct shared {
    const nd_module *m;
    nd_arena *arena;
    ND_VEC(nd_value *) to;
} shared;

static nd_value *resolve(const shared *s, nd_value *v)
{
    while (v->mark)
        v = s->to.v[v->mark - 1];
    return v;
}

static void alias(shared *s, nd_value *from, nd_value *to)
{
    ND_PUSH(s->arena, &s->to, to);
    from->mark = s->to.n;
}

static void simplify_block(shared *s, nd_block *b)
{
    uint32_t cap = 16;
    while (cap < (uint32_t)b->ops.n * 2)
        cap *= 2;
    nd_op **table = ND_NEWN(s->arena, nd_op *, cap);
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        for (int k = 0; k < op->nin; k++)
            op->in[k] = resolve(s, op->in[k]);
        if (op->body) {
            simplify_block(s, op->body);
            for (int k = 0; k < op->body->yields.n; k++)
                op->body->yields.v[k] = resolve(s, op->body->yields.v[k]);
        }
        if (!pure(op))
            continue;
        fold(op);
        nd_value *r = trivial(s->m, op);
        if (r) {
            alias(s, op->out[0], r);
            continue;
        }
        uint32_t h = op_hash(op) & (cap - 1);
        while (table[h] && !same_op(table[h], op))
            h = (h + 1) & (cap - 1);
        if (table[h])
            alias(s, op->out[0], table[h]->out[0]);
        else
            table[h] = op;
    }
}

bool pass_simplify(nd_module *m, const nd_options *o)
{
    (void)o;
    shared s = {.m = m, .arena = m->ctx->arena};
    nd_clear_marks(m);
    simplify_block(&s, m->step);
    if (m->loss)
        m->loss = resolve(&s, m->loss);
    nd_dce(m);
    return true;
}
