/* build.c - making modules, blocks and ops.
 *
 * Each constructor fills the attributes, asks rules.c for the result types and
 * puts the op where the builder stands. A constructor whose operands do not
 * fit reports an error at the builder's location and returns NULL; given a NULL
 * operand it returns NULL silently, so that one mistake is reported once.
 */
#include "ir.h"

#include <string.h>

nd_module *nd_module_new(nd_ctx *c, const char *name)
{
    nd_module *m = ND_NEW(c->arena, nd_module);
    m->ctx = c;
    m->name = nd_strdup(c->arena, name);
    m->mesh = (nd_mesh){.n = 1, .name = {"micro"}, .size = {1}, .pipe = -1};
    m->plan.microbatches = 1;
    m->taken = m->asked = (nd_table){.arena = c->arena, .strings = true};
    m->step = nd_block_new(m, NULL);
    return m;
}

/* The axis that took a name; before it the one that asked for the same. The
 * frontend may shorten the list of axes, so `at` is looked up in it. */
typedef struct taken {
    nd_axis *axis;
    int at, suffix;
    struct taken *before;
} taken;

static bool is_alive(const nd_module *m, const taken *t)
{
    return t && t->at < m->axes.n && m->axes.v[t->at] == t->axis;
}

/* Suffixes below that of the last axis that asked for `name` are taken. */
static taken *take_axis_name(nd_module *m, const char *name)
{
    taken *t = ND_NEW(m->ctx->arena, taken);
    const char *s = name;
    t->before = nd_table_get(&m->asked, name);
    while (t->before && !is_alive(m, t->before))
        t->before = t->before->before;
    t->suffix = t->before ? t->before->suffix : 1;
    if (t->suffix > 1)
        s = t->before->axis->name;
    while (is_alive(m, nd_table_get(&m->taken, s)))
        s = nd_fmt(m->ctx->arena, "%s_%d", name, ++t->suffix);
    t->axis = ND_NEW(m->ctx->arena, nd_axis);
    t->axis->name = nd_strdup(m->ctx->arena, s);
    t->at = m->axes.n;
    nd_table_put(&m->asked, nd_strdup(m->ctx->arena, name), t);
    nd_table_put(&m->taken, t->axis->name, t);
    return t;
}

nd_axis *nd_axis_new(nd_module *m, const char *name, int64_t size, nd_loc loc)
{
    nd_axis *a = take_axis_name(m, name)->axis;
    a->size = size;
    a->loc = loc;
    ND_PUSH(m->ctx->arena, &m->axes, a);
    return a;
}

nd_axis *nd_axis_twin(nd_module *m, nd_axis *a)
{
    nd_axis *twin = nd_axis_new(m, a->name, a->size, a->loc);
    twin->like = a;
    return twin;
}

nd_block *nd_block_new(nd_module *m, nd_op *parent)
{
    nd_block *b = ND_NEW(m->ctx->arena, nd_block);
    b->parent = parent;
    return b;
}

nd_value *nd_block_arg(nd_module *m, nd_block *b, const char *name, nd_type t)
{
    nd_value *v = ND_NEW(m->ctx->arena, nd_value);
    v->name = name;
    v->type = t;
    v->owner = b;
    v->index = b->args.n;
    ND_PUSH(m->ctx->arena, &b->args, v);
    return v;
}

static void insert(nd_builder *b, nd_op *op)
{
    nd_block *blk = b->block;
    op->block = blk;
    ND_PUSH(b->m->ctx->arena, &blk->ops, op);
    if (b->at < 0)
        return;
    memmove(blk->ops.v + b->at + 1, blk->ops.v + b->at,
            sizeof *blk->ops.v * (size_t)(blk->ops.n - 1 - b->at));
    blk->ops.v[b->at++] = op;
}

static nd_value *result_new(nd_builder *b, nd_op *op, int i)
{
    nd_value *v = ND_NEW(b->m->ctx->arena, nd_value);
    const char *base = b->hint;
    if (!base)
        base = nd_op_name(op);
    v->name = base;
    v->def = op;
    v->index = i;
    return v;
}

/* An op with room for its results, not yet typed or inserted. */
static nd_op *op_alloc(nd_builder *b, nd_opcode k, int nin,
                       nd_value *const *in, int nout)
{
    nd_arena *a = b->m->ctx->arena;
    for (int i = 0; i < nin; i++)
        if (!in[i])
            return NULL;
    nd_op *op = ND_NEW(a, nd_op);
    op->kind = k;
    op->nin = nin;
    op->in = ND_NEWN(a, nd_value *, nin);
    if (nin)
        memcpy(op->in, in, sizeof *in * (size_t)nin);
    op->nout = nout;
    op->out = ND_NEWN(a, nd_value *, nout);
    op->phase = b->phase;
    op->loc = b->loc;
    op->path = b->path;
    return op;
}

static void make_results(nd_builder *b, nd_op *op)
{
    for (int i = 0; i < op->nout; i++)
        if (!op->out[i])
            op->out[i] = result_new(b, op, i);
    b->hint = NULL;
}

bool nd_retype(nd_module *m, nd_op *op)
{
    nd_type one = {0}, *t = &one;
    if (op->nout > 1)
        t = ND_NEWN(m->ctx->arena, nd_type, op->nout);
    const char *why = nd_infer(m, op, t);
    if (why) {
        nd_error(m->ctx, op->loc, "%s: %s", nd_op_name(op), why);
        return false;
    }
    for (int i = 0; i < op->nout; i++)
        op->out[i]->type = t[i];
    return true;
}

/* Types the op from its operands and puts it in place; NULL on a misfit. */
static nd_op *finish(nd_builder *b, nd_op *op)
{
    make_results(b, op);
    if (!nd_retype(b->m, op))
        return NULL;
    insert(b, op);
    return op;
}

static nd_value *finish1(nd_builder *b, nd_op *op)
{
    op = finish(b, op);
    return op ? op->out[0] : NULL;
}

nd_op *nd_op_new(nd_builder *b, nd_opcode k, int nin, nd_value *const *in,
                 int nout, const nd_type *types)
{
    nd_op *op = op_alloc(b, k, nin, in, nout);
    if (!op)
        return NULL;
    make_results(b, op);
    for (int i = 0; i < nout; i++)
        op->out[i]->type = types[i];
    insert(b, op);
    return op;
}

/* An op whose one result type is declared rather than inferred. */
static nd_op *declared(nd_builder *b, nd_opcode k, int nin,
                       nd_value *const *in, nd_type t)
{
    nd_op *op = op_alloc(b, k, nin, in, 1);
    if (!op)
        return NULL;
    make_results(b, op);
    op->out[0]->type = t;
    return op;
}

nd_op *nd_clone(nd_builder *b, const nd_op *op, nd_value *const *in)
{
    nd_arena *a = b->m->ctx->arena;
    nd_op *c = ND_NEW(a, nd_op);
    *c = *op;
    c->mark = c->free = 0;
    c->phase = b->phase;
    c->in = ND_NEWN(a, nd_value *, op->nin);
    if (op->nin)
        memcpy(c->in, in, sizeof *in * (size_t)op->nin);
    c->out = ND_NEWN(a, nd_value *, op->nout);
    for (int i = 0; i < op->nout; i++) {
        c->out[i] = ND_NEW(a, nd_value);
        *c->out[i] = *op->out[i];
        c->out[i]->def = c;
        c->out[i]->mark = 0;
    }
    insert(b, c);
    return c;
}

static nd_axis **axis_list(nd_builder *b, int n, nd_axis *const *axes)
{
    nd_axis **copy = ND_NEWN(b->m->ctx->arena, nd_axis *, n);
    if (n)
        memcpy(copy, axes, sizeof *axes * (size_t)n);
    return copy;
}

static void set_axes(nd_builder *b, nd_op *op, int n, nd_axis *const *axes)
{
    op->naxes = n;
    op->axes = axis_list(b, n, axes);
}

nd_value *nd_input(nd_builder *b, const char *name, nd_type t)
{
    b->hint = name;
    nd_op *op = declared(b, OP_INPUT, 0, NULL, t);
    op->name = name;
    ND_PUSH(b->m->ctx->arena, &b->m->inputs, op->out[0]);
    return finish1(b, op);
}

nd_param *nd_param_new(nd_builder *b, const char *name, nd_type t)
{
    nd_param *p = ND_NEW(b->m->ctx->arena, nd_param);
    b->hint = name;
    nd_op *op = declared(b, OP_PARAM, 0, NULL, t);
    op->name = p->name = name;
    op->param = p;
    p->index = b->m->params.n;
    p->value = op->out[0];
    p->loc = b->loc;
    p->grad = t;
    ND_PUSH(b->m->ctx->arena, &b->m->params, p);
    finish1(b, op);
    return p;
}

nd_value *nd_const(nd_builder *b, nd_dtype t, double v)
{
    nd_op *op = declared(b, OP_CONST, 0, NULL, nd_type_of(t, 0, NULL));
    op->num = v;
    return finish1(b, op);
}

nd_op *nd_enclosing(const nd_block *b, const nd_axis *a)
{
    for (; b && b->parent; b = b->parent->block)
        if (b->parent->axes[0] == a)
            return b->parent;
    return NULL;
}

static nd_value *index_of(nd_builder *b, nd_axis *a, int rank)
{
    nd_op *op = declared(b, OP_INDEX, 0, NULL, nd_type_of(ND_I32, rank, &a));
    set_axes(b, op, 1, &a);
    return finish1(b, op);
}

nd_value *nd_positions(nd_builder *b, nd_axis *a)
{
    return index_of(b, a, 1);
}

nd_value *nd_index(nd_builder *b, nd_axis *a)
{
    return index_of(b, a, nd_enclosing(b->block, a) ? 0 : 1);
}

nd_value *nd_map(nd_builder *b, nd_ew e, nd_value *x, nd_value *y, nd_value *z)
{
    nd_value *in[3] = {x, y, z};
    nd_op *op = op_alloc(b, OP_MAP, nd_ews[e].nin, in, 1);
    if (!op)
        return NULL;
    op->sub = e;
    return finish1(b, op);
}

nd_value *nd_reduce(nd_builder *b, nd_red r, nd_value *x, int n,
                    nd_axis *const *axes)
{
    nd_op *op = op_alloc(b, OP_REDUCE, 1, &x, 1);
    if (!op)
        return NULL;
    op->sub = r;
    set_axes(b, op, n, axes);
    return finish1(b, op);
}

nd_value *nd_contract(nd_builder *b, nd_value *x, nd_value *y, int n,
                      nd_axis *const *axes, const nd_type *order)
{
    nd_value *in[2] = {x, y};
    nd_op *op = op_alloc(b, OP_CONTRACT, 2, in, 1);
    if (!op)
        return NULL;
    set_axes(b, op, n, axes);
    make_results(b, op);
    if (order)
        op->out[0]->type = *order;
    return finish1(b, op);
}

nd_value *nd_gather(nd_builder *b, nd_value *x, nd_axis *a, nd_value *i)
{
    nd_value *in[2] = {x, i};
    nd_op *op = op_alloc(b, OP_GATHER, 2, in, 1);
    if (!op)
        return NULL;
    set_axes(b, op, 1, &a);
    return finish1(b, op);
}

nd_value *nd_grouped(nd_builder *b, nd_value *x, nd_value *w, nd_axis *a,
                     nd_value *i, int n, nd_axis *const *axes)
{
    nd_value *in[3] = {x, w, i};
    nd_axis *all[ND_MAX_RANK + 1] = {a};
    nd_op *op = op_alloc(b, OP_GROUPED, 3, in, 1);
    if (!op)
        return NULL;
    memcpy(all + 1, axes, sizeof *axes * (size_t)n);
    set_axes(b, op, n + 1, all);
    return finish1(b, op);
}

nd_value *nd_grouped_sum(nd_builder *b, nd_value *x, nd_value *g, nd_axis *a,
                         nd_value *i, const nd_type *like)
{
    nd_value *in[3] = {x, g, i};
    nd_axis *all[ND_MAX_RANK + 1] = {a};
    if (!x || !g || !i)
        return NULL;
    nd_type t = {.dtype = ND_F32, .rank = 1, .axis = {a}};
    for (int pass = 0; pass < 2; pass++)         /* a, in, out */
        for (int k = 0; k < like->rank; k++)
            if (like->axis[k] != a &&
                (nd_axis_at(&x->type, like->axis[k]) < 0) == pass)
                t.axis[t.rank++] = like->axis[k];
    nd_op *op = declared(b, OP_GROUPED_SUM, 3, in, t);
    memcpy(all + 1, i->type.axis, sizeof *all * (size_t)i->type.rank);
    set_axes(b, op, i->type.rank + 1, all);
    return finish1(b, op);
}

static nd_value *travel(nd_builder *b, nd_opcode k, nd_value *x, nd_value *i,
                        nd_axis *routed)
{
    nd_value *in[2] = {x, i};
    nd_op *op = op_alloc(b, k, 2, in, 1);
    if (!op)
        return NULL;
    set_axes(b, op, 1, &routed);
    op->mesh = 1u << routed->route->over;
    return finish1(b, op);
}

/* Does the op do no more than repeat its operand for rows that travel? */
static bool repeats_rows(const nd_op *op, const nd_type *rows)
{
    if (!op || op->kind != OP_BROADCAST)
        return false;
    for (int k = 0; k < op->out[0]->type.rank; k++)
        if (nd_axis_at(&op->in[0]->type, op->out[0]->type.axis[k]) < 0 &&
            nd_axis_at(rows, op->out[0]->type.axis[k]) < 0)
            return false;
    return true;
}

nd_value *nd_dispatch(nd_builder *b, nd_value *x, nd_value *i,
                      nd_axis *routed)
{
    while (x && i && repeats_rows(x->def, &i->type))
        x = x->def->in[0];           /* a row is sent for each slot anyway */
    return travel(b, OP_DISPATCH, x, i, routed);
}

nd_value *nd_combine(nd_builder *b, nd_value *y, nd_value *i,
                     nd_axis *routed)
{
    return travel(b, OP_COMBINE, y, i, routed);
}

nd_value *nd_scatter_add(nd_builder *b, nd_value *g, nd_axis *a, nd_value *i,
                         const nd_type *like)
{
    nd_value *in[2] = {g, i};
    if (!g || !i)
        return NULL;
    nd_op *op = declared(b, OP_SCATTER_ADD, 2, in, *like);
    set_axes(b, op, 1, &a);
    return finish1(b, op);
}

/* The axes `from` of x become the axes `to`. */
static nd_value *regroup(nd_builder *b, nd_opcode k, nd_value *x, int nfrom,
                         nd_axis *const *from, int nto, nd_axis *const *to)
{
    nd_op *op = op_alloc(b, k, 1, &x, 1);
    if (!op)
        return NULL;
    set_axes(b, op, nfrom, from);
    op->nto = nto;
    op->to = axis_list(b, nto, to);
    return finish1(b, op);
}

nd_value *nd_rename(nd_builder *b, nd_value *x, nd_axis *from, nd_axis *to)
{
    return regroup(b, OP_RENAME, x, 1, &from, 1, &to);
}

nd_value *nd_split(nd_builder *b, nd_value *x, nd_axis *a, int n,
                   nd_axis *const *to)
{
    return regroup(b, OP_SPLIT, x, 1, &a, n, to);
}

nd_value *nd_flatten(nd_builder *b, nd_value *x, int n, nd_axis *const *from,
                     nd_axis *a)
{
    return regroup(b, OP_FLATTEN, x, n, from, 1, &a);
}

nd_value *nd_cumsum(nd_builder *b, nd_value *x, nd_axis *a, bool reverse)
{
    nd_op *op = op_alloc(b, OP_CUMSUM, 1, &x, 1);
    if (!op)
        return NULL;
    op->reverse = reverse;
    set_axes(b, op, 1, &a);
    return finish1(b, op);
}

nd_value *nd_roll(nd_builder *b, nd_value *x, nd_axis *a, int64_t by)
{
    nd_op *op = op_alloc(b, OP_ROLL, 1, &x, 1);
    if (!op)
        return NULL;
    op->num = (double)by;
    set_axes(b, op, 1, &a);
    return finish1(b, op);
}

nd_value *nd_broadcast(nd_builder *b, nd_value *x, const nd_type *like)
{
    if (!x)
        return NULL;
    nd_type t = *like;
    t.dtype = x->type.dtype;
    nd_op *op = declared(b, OP_BROADCAST, 1, &x, t);
    return op ? finish1(b, op) : NULL;
}

nd_value *nd_cast(nd_builder *b, nd_value *x, nd_dtype t)
{
    if (!x)
        return NULL;
    if (x->type.dtype == t)
        return x;
    nd_type ty = x->type;
    ty.dtype = t;
    return finish1(b, declared(b, OP_CAST, 1, &x, ty));
}

nd_value *nd_stop_gradient(nd_builder *b, nd_value *x)
{
    nd_op *op = op_alloc(b, OP_STOP_GRAD, 1, &x, 1);
    return op ? finish1(b, op) : NULL;
}

nd_value *nd_dropout_mask(nd_builder *b, const nd_type *like, double p,
                          const char *stream)
{
    nd_type t = *like;
    t.dtype = ND_F32;
    t.sum = t.max = 0;
    nd_op *op = declared(b, OP_RANDOM, 0, NULL, t);
    op->num = p;
    op->name = stream;
    return finish1(b, op);
}

nd_value *nd_random_normal(nd_builder *b, const nd_type *like,
                           const char *stream)
{
    nd_type t = *like;
    t.dtype = ND_F32;
    t.sum = t.max = 0;
    nd_op *op = declared(b, OP_NORMAL, 0, NULL, t);
    op->name = stream;
    return finish1(b, op);
}

nd_op *nd_accumulate(nd_builder *b, nd_param *p, nd_value *g)
{
    nd_op *op = op_alloc(b, OP_ACCUM, 1, &g, 0);
    if (!op)
        return NULL;
    op->name = p->name;
    op->param = p;
    return finish(b, op);
}

nd_op *nd_output(nd_builder *b, const char *name, nd_value *x)
{
    nd_op *op = op_alloc(b, OP_OUTPUT, 1, &x, 0);
    if (!op)
        return NULL;
    op->name = name;
    ND_PUSH(b->m->ctx->arena, &b->m->outputs, op);
    return finish(b, op);
}

nd_op *nd_repeat_begin(nd_builder *b, nd_axis *a, int ncarry,
                       nd_value *const *init)
{
    nd_op *op = op_alloc(b, OP_REPEAT, ncarry, init, ncarry);
    if (!op)
        return NULL;
    set_axes(b, op, 1, &a);
    op->ncarry = ncarry;
    op->body = nd_block_new(b->m, op);
    for (int i = 0; i < ncarry; i++)
        nd_block_arg(b->m, op->body, init[i]->name, init[i]->type);
    for (int i = 0; i < ncarry; i++) {
        op->out[i] = result_new(b, op, i);
        op->out[i]->name = init[i]->name;
        op->out[i]->type = init[i]->type;
    }
    insert(b, op);
    return op;
}

static void append_value(nd_module *m, nd_value ***list, int *n, nd_value *v)
{
    nd_value **grown = ND_NEWN(m->ctx->arena, nd_value *, *n + 1);
    if (*n)
        memcpy(grown, *list, sizeof *grown * (size_t)*n);
    grown[(*n)++] = v;
    *list = grown;
}

nd_value *nd_repeat_scan(nd_module *m, nd_op *r, nd_value *x)
{
    nd_type t = x->type;
    nd_drop_axis(&t, nd_axis_at(&t, r->axes[0]));
    append_value(m, &r->in, &r->nin, x);
    return nd_block_arg(m, r->body, x->name, t);
}

nd_value *nd_repeat_stack(nd_module *m, nd_op *r, nd_value *y)
{
    nd_value *v = ND_NEW(m->ctx->arena, nd_value);
    v->name = y->name;
    v->def = r;
    v->index = r->nout;
    v->type = y->type;
    v->type.rank = y->type.rank + 1;
    memmove(v->type.axis + 1, y->type.axis,
            sizeof *y->type.axis * (size_t)y->type.rank);
    memmove(v->type.cut + 1, y->type.cut,
            sizeof *y->type.cut * (size_t)y->type.rank);
    v->type.axis[0] = r->axes[0];
    v->type.cut[0] = (nd_cut){0};
    append_value(m, &r->out, &r->nout, v);
    ND_PUSH(m->ctx->arena, &r->body->yields, y);
    return v;
}

void nd_repeat_yield(nd_module *m, nd_op *r, nd_value *const *next)
{
    /* Stacked values may have been yielded already: carried ones go first. */
    nd_block *b = r->body;
    for (int i = 0; i < r->ncarry; i++)
        ND_PUSH(m->ctx->arena, &b->yields, NULL);
    if (!r->ncarry)
        return;
    memmove(b->yields.v + r->ncarry, b->yields.v,
            sizeof *b->yields.v * (size_t)(b->yields.n - r->ncarry));
    memcpy(b->yields.v, next, sizeof *next * (size_t)r->ncarry);
}
