/* mutate_graph.h - ways to break the graph: collectives, types, numbers.
 *
 * Which ops are collectives and which attributes they have is read from
 * ops.def (trait k, the letters of attrs), so that new ones are broken too.
 */
#ifndef MUTATE_GRAPH_H
#define MUTATE_GRAPH_H

#include "mutate.h"

static bool moves_data(nd_opcode k)
{
    return strchr(nd_ops[k].traits, 'k') || k == OP_SLICE;
}

static nd_op *move_at(subject *s, int i)
{
    if (i >= s->moves.n)
        return NULL;
    nd_op *op = s->moves.v[i];
    nd_buf b = {.arena = s->m->ctx->arena};
    nd_print_type(&b, s->m, &op->in[0]->type);
    tell(s, "%s %%%s of %s", nd_op_name(op), op->out[0]->name, b.s);
    return op;
}

static void also(subject *s, const char *fmt, const char *x)
{
    size_t n = strlen(s->what);
    snprintf(s->what + n, sizeof s->what - n, fmt, x);
}

static void replace(subject *s, nd_value *from, nd_value *to)
{
    nd_replace_uses(s->m, from, to);
    if (s->m->loss == from)
        s->m->loss = to;
}

/* A new op runs on the stages that run `op`, after it. */
static void run_after(subject *s, const nd_op *op, nd_op *new)
{
    nd_arena *a = s->m->ctx->arena;
    for (int k = 0; k < s->m->program->nstages; k++) {
        nd_stage *st = &s->m->program->stage[k];
        for (int l = 0; l < STAGE_LISTS; l++) {
            stage_list list = list_of(st, l);
            int at = 0;
            while (at < *list.n && (*list.v)[at] != op)
                at++;
            if (at < *list.n)
                put_op(a, list, at + 1, new);
        }
    }
}

/* Where ops go that follow `op`. */
static nd_builder after(subject *s, const nd_op *op)
{
    nd_builder b = {.m = s->m, .block = op->block, .phase = op->phase,
                    .loc = op->loc, .path = op->path};
    while (op->block->ops.v[b.at++] != op)
        ;
    return b;
}

/* ---- collectives --------------------------------------------------------- */

static made drop(subject *s, int site)
{
    nd_op *op = move_at(s, site);
    if (!op)
        return NO_SITE;
    if (one_rank(s, op->mesh))
        return NO_CHANGE;
    replace(s, op->out[0], op->in[0]);
    return MADE;
}

static made reduce_twice(subject *s, int site)
{
    nd_op *op = move_at(s, site);
    if (!op)
        return NO_SITE;
    if (one_rank(s, op->mesh))
        return NO_CHANGE;
    nd_builder b = after(s, op);
    nd_value *first = op->out[0];
    nd_op *again = nd_clone(&b, op, op->in);
    replace(s, first, again->out[0]);
    again->in[0] = first;
    run_after(s, op, again);
    return MADE;
}

static made wrong_mesh(subject *s, int site)
{
    int n = s->m->mesh.n, k = site % n;
    nd_op *op = move_at(s, site / n);
    if (!op)
        return NO_SITE;
    also(s, ", over %s", s->m->mesh.name[k]);
    if (op->mesh == 1u << k)
        return NO_SENSE;
    if (one_rank(s, op->mesh | 1u << k))
        return NO_CHANGE;
    op->mesh = 1u << k;
    return MADE;
}

/* Over one mesh axis more. */
static made more_mesh(subject *s, int site)
{
    int n = s->m->mesh.n, k = site % n;
    nd_op *op = move_at(s, site / n);
    if (!op)
        return NO_SITE;
    also(s, ", over %s too", s->m->mesh.name[k]);
    if (op->mesh >> k & 1)
        return NO_SENSE;
    if (one_rank(s, 1u << k))
        return NO_CHANGE;
    op->mesh |= 1u << k;
    return MADE;
}

/* Gives the op the attributes that its kind asks for, from what it has. */
static bool complete(subject *s, nd_op *op)
{
    const char *attrs = nd_ops[op->kind].attrs;
    const nd_type *t = &op->in[0]->type;
    int want = strchr(attrs, 'A') ? 2 : strchr(attrs, 'a') ? 1 : 0;
    nd_axis **axes = ND_NEWN(s->m->ctx->arena, nd_axis *, 2);
    int n = 0;
    for (int i = 0; i < op->naxes && n < want; i++)
        axes[n++] = op->axes[i];
    for (int i = 0; i < t->rank && n < want; i++)
        if (!n || axes[0] != t->axis[i])
            axes[n++] = t->axis[i];
    op->axes = axes;
    op->naxes = n;
    if (strchr(attrs, 'r'))
        op->sub = RED_SUM;
    if (strchr(attrs, 'n'))
        op->num = 1;
    return n == want;
}

static made wrong_kind(subject *s, int site)
{
    nd_opcode k = (nd_opcode)(site % OP_COUNT);
    nd_op *op = move_at(s, site / OP_COUNT);
    if (!op)
        return NO_SITE;
    also(s, ", as %s", nd_ops[k].name);
    if (!moves_data(k) || k == op->kind || nd_ops[k].nin != op->nin)
        return NO_SENSE;
    if (one_rank(s, op->mesh))
        return NO_CHANGE;
    op->kind = k;
    return complete(s, op) ? MADE : NO_SENSE;
}

static made wrong_reduction(subject *s, int site)
{
    nd_op *op = move_at(s, site / 2);
    if (!op)
        return NO_SITE;
    if (!strchr(nd_ops[op->kind].attrs, 'r'))
        return NO_SENSE;
    if (one_rank(s, op->mesh))
        return NO_CHANGE;
    op->sub = (op->sub + 1 + site % 2) % (RED_MIN + 1);
    also(s, ", another reduction%s", "");
    return MADE;
}

static made wrong_axis(subject *s, int site)
{
    int which = site / ND_MAX_RANK % 2, to = site % ND_MAX_RANK;
    nd_op *op = move_at(s, site / ND_MAX_RANK / 2);
    if (!op)
        return NO_SITE;
    const nd_type *t = &op->in[0]->type;
    if (which >= op->naxes || to >= t->rank || t->axis[to] == op->axes[which])
        return NO_SENSE;
    also(s, ", along %s", t->axis[to]->name);
    if (one_rank(s, op->mesh))
        return NO_CHANGE;
    nd_axis **axes = ND_NEWN(s->m->ctx->arena, nd_axis *, op->naxes);
    memcpy(axes, op->axes, sizeof *axes * (size_t)op->naxes);
    axes[which] = t->axis[to];
    op->axes = axes;
    return MADE;
}

/* ---- types --------------------------------------------------------------- */

static nd_value *value_at(subject *s, int i)
{
    for (int k = 0; k < s->ops.n; k++) {
        nd_op *op = s->ops.v[k];
        int args = op->body ? op->body->args.n : 0;
        if (i < op->nout + args) {
            nd_value *v = i < op->nout ? op->out[i]
                                       : op->body->args.v[i - op->nout];
            nd_buf b = {.arena = s->m->ctx->arena};
            nd_print_type(&b, s->m, &v->type);
            tell(s, "%%%s: %s", v->name, b.s);
            return v;
        }
        i -= op->nout + args;
    }
    return NULL;
}

static made wrong_sum(subject *s, int site)
{
    int n = s->m->mesh.n, k = site % n;
    nd_value *v = value_at(s, site / n);
    if (!v)
        return NO_SITE;
    if ((nd_cut_mask(&v->type) | v->type.max) >> k & 1)
        return NO_SENSE;
    if (one_rank(s, 1u << k))
        return NO_CHANGE;
    v->type.sum ^= 1u << k;
    also(s, ", +%s changed", s->m->mesh.name[k]);
    return MADE;
}

static made wrong_cut(subject *s, int site)
{
    nd_value *v = value_at(s, site / ND_MAX_RANK);
    int i = site % ND_MAX_RANK;
    if (!v)
        return NO_SITE;
    if (i >= v->type.rank || !v->type.cut[i].n)
        return NO_SENSE;
    nd_cut *cut = &v->type.cut[i];
    if (one_rank(s, 1u << cut->m[cut->n - 1]))
        return NO_CHANGE;
    cut->m[--cut->n] = 0;
    also(s, ", cut of %s shorter", v->type.axis[i]->name);
    return MADE;
}

/* The same of types that do not follow from operands. */
static bool is_given(const nd_value *v)
{
    return v && v->def && strchr(nd_ops[v->def->kind].attrs, 'T');
}

static made wrong_given_sum(subject *s, int site)
{
    const nd_value *v = value_at(s, site / s->m->mesh.n);
    return v && !is_given(v) ? NO_SENSE : wrong_sum(s, site);
}

static made wrong_given_cut(subject *s, int site)
{
    const nd_value *v = value_at(s, site / ND_MAX_RANK);
    return v && !is_given(v) ? NO_SENSE : wrong_cut(s, site);
}

/* The same mesh axes, another order: other pieces on the same ranks. */
static made wrong_order(subject *s, int site)
{
    nd_value *v = value_at(s, site / ND_MAX_RANK);
    int i = site % ND_MAX_RANK;
    if (!v)
        return NO_SITE;
    if (i >= v->type.rank || v->type.cut[i].n < 2)
        return NO_SENSE;
    nd_cut *cut = &v->type.cut[i];
    if (one_rank(s, 1u << cut->m[0]) || one_rank(s, 1u << cut->m[1]))
        return NO_CHANGE;
    uint8_t first = cut->m[0];
    cut->m[0] = cut->m[1];
    cut->m[1] = first;
    also(s, ", cut of %s in another order", v->type.axis[i]->name);
    return MADE;
}

static made wrong_grad(subject *s, int site)
{
    int n = s->m->mesh.n, k = site % n, i = site / n;
    if (i >= s->m->params.n)
        return NO_SITE;
    nd_param *p = s->m->params.v[i];
    tell(s, "gradient of %s, +%s changed", p->name, s->m->mesh.name[k]);
    if (nd_cut_mask(&p->grad) >> k & 1)
        return NO_SENSE;
    if (one_rank(s, 1u << k))
        return NO_CHANGE;
    p->grad.sum ^= 1u << k;
    return MADE;
}

static made wrong_grad_cut(subject *s, int site)
{
    int i = site / ND_MAX_RANK, k = site % ND_MAX_RANK;
    if (i >= s->m->params.n)
        return NO_SITE;
    nd_param *p = s->m->params.v[i];
    if (k >= p->grad.rank || !p->grad.cut[k].n)
        return NO_SENSE;
    tell(s, "gradient of %s, cut of %s gone", p->name, p->grad.axis[k]->name);
    if (one_rank(s, nd_cut_bits(p->grad.cut[k])))
        return NO_CHANGE;
    p->grad.cut[k] = (nd_cut){0};
    return MADE;
}

/* ---- numbers ------------------------------------------------------------- */

static made wrong_number(subject *s, int site)
{
    if (site >= s->ops.n)
        return NO_SITE;
    nd_op *op = s->ops.v[site];
    if (op->kind != OP_CONST || !(fabs(op->num) < 1e6))
        return NO_SENSE;
    tell(s, "%%%s = %g", op->out[0]->name, op->num);
    s->number = op;
    if (op->out[0]->type.dtype == ND_BOOL)
        op->num = !op->num;
    else if (!nd_is_float(op->out[0]->type.dtype))
        op->num += 7;
    else
        op->num = op->num != 0 ? op->num * 1.25 : 0.25;
    return MADE;
}

/* A rotation by one element more. */
static made wrong_shift(subject *s, int site)
{
    if (site >= s->ops.n)
        return NO_SITE;
    nd_op *op = s->ops.v[site];
    const char *attrs = nd_ops[op->kind].attrs;
    if (!strchr(attrs, 'n') || !strchr(attrs, 'a'))
        return NO_SENSE;
    tell(s, "%s %%%s by %g", nd_op_name(op), op->out[0]->name, op->num);
    if (op->axes[0]->size == 1)
        return NO_CHANGE;
    op->num += 1;
    return MADE;
}

/* y = x * c without the c. */
static made no_factor(subject *s, int site)
{
    if (site >= s->ops.n)
        return NO_SITE;
    nd_op *op = s->ops.v[site];
    if (op->kind != OP_MAP || (op->sub != EW_MUL && op->sub != EW_DIV) ||
        !nd_is_float(op->out[0]->type.dtype) ||
        op->in[0]->type.dtype != op->out[0]->type.dtype ||
        !nd_same_axes(&op->in[0]->type, &op->out[0]->type) ||
        !nd_same_cut(&op->in[0]->type, &op->out[0]->type))
        return NO_SENSE;
    tell(s, "%%%s without its factor", op->out[0]->name);
    replace(s, op->out[0], op->in[0]);
    return MADE;
}

/* A mean where a sum is due: what a collective gives, over the ranks. */
static made averaged(subject *s, int site)
{
    nd_op *op = move_at(s, site);
    int ranks = 1;
    if (!op)
        return NO_SITE;
    if (!strchr(nd_ops[op->kind].traits, 'k') ||
        (strchr(nd_ops[op->kind].attrs, 'r') && op->sub != RED_SUM) ||
        !nd_is_float(op->out[0]->type.dtype))
        return NO_SENSE;
    if (one_rank(s, op->mesh))
        return NO_CHANGE;
    for (int i = 0; i < s->m->mesh.n; i++)
        if (op->mesh >> i & 1)
            ranks *= s->m->mesh.size[i];
    nd_builder b = after(s, op);
    nd_value *c = nd_const(&b, op->out[0]->type.dtype, 1.0 / ranks);
    nd_value *in[2] = {op->out[0], c};
    nd_op *mul = nd_op_new(&b, OP_MAP, 2, in, 1, &op->out[0]->type);
    mul->sub = EW_MUL;
    replace(s, op->out[0], mul->out[0]);
    mul->in[0] = op->out[0];
    run_after(s, op, c->def);
    run_after(s, c->def, mul);
    also(s, ", averaged%s", "");
    return MADE;
}

/* Is the gradient 0 but for rounding, as that of a key's bias? */
static bool no_gradient(const subject *s, const nd_param *p)
{
    double mine = 0, most = 0;
    for (int k = 0; k < ND_PROVE_STEPS; k++)
        for (int i = 0; i < s->x->m->params.n; i++) {
            const nd_tensor *t = s->x->grads[k][i];
            bool own = !strcmp(s->x->m->params.v[i]->name, p->name);
            for (int64_t j = 0; j < t->n; j++) {
                most = fmax(most, fabs(t->v[j]));
                mine = fmax(mine, own ? fabs(t->v[j]) : 0);
            }
        }
    return mine < 1e-12 * most;
}

static made grad_doubled(subject *s, int site)
{
    int i = 0, left = site;
    while (i < s->ops.n && (s->ops.v[i]->kind != OP_ACCUM || left-- > 0))
        i++;
    if (i == s->ops.n)
        return NO_SITE;
    nd_op *op = s->ops.v[i];
    tell(s, "gradient of %s doubled", op->name);
    if (no_gradient(s, op->param))
        return NO_CHANGE;
    nd_builder b = after(s, op);
    b.at--;
    nd_value *in[2] = {op->in[0], op->in[0]};
    nd_op *add = nd_op_new(&b, OP_MAP, 2, in, 1, &op->in[0]->type);
    add->sub = EW_ADD;
    run_after(s, op, add);
    op->in[0] = add->out[0];
    for (int k = 0; k < s->m->program->nstages * STAGE_LISTS; k++) {
        stage_list l = list_of(&s->m->program->stage[k / STAGE_LISTS],
                               k % STAGE_LISTS);
        for (int j = 0; j + 1 < *l.n; j++)
            if ((*l.v)[j] == op && (*l.v)[j + 1] == add) {
                (*l.v)[j++] = add;
                (*l.v)[j] = op;
            }
    }
    return MADE;
}

#endif
