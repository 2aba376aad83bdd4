/* fuse_uses.c - what becomes of every value, and who reads it.
 *
 *   inline   const, index, and cheap elementwise ops on those alone: computed
 *            again at each use, never stored
 *   view     slice, rename, split, flatten, broadcast, stop_gradient, a scanned
 *            argument: other strides on another value
 *   loop     made inside a loop nest; stored only if somebody needs it there
 *   memory   the rest: parameters, products, results of collectives
 */
#include "passes.h"

#include <string.h>

enum { MAX_INLINE = 16 };            /* ops in one inline expression */

bool nd_is_copy(const nd_op *op)
{
    return op->kind == OP_STOP_GRAD && op->sub != 0;
}

bool nd_is_same(const nd_code *c, const nd_op *op)
{
    const nd_mesh *m = &c->m->mesh;
    if (op->kind == OP_STOP_GRAD)
        return !nd_is_copy(op);
    if ((!nd_has_trait(op, 'k') && op->kind != OP_SLICE) ||
        op->kind == OP_DISPATCH || op->kind == OP_COMBINE)
        return false;                /* those sort, on one rank too */
    for (int i = 0; i < m->n; i++)
        if (op->mesh >> i & 1 && m->size[i] > 1)
            return false;
    return true;
}

nd_value *nd_behind(const nd_code *c, nd_value *v)
{
    while (v->def && (v->def->kind == OP_RENAME || nd_is_same(c, v->def)))
        v = v->def->in[0];
    return v;
}

nd_vinfo *nd_info(const nd_code *c, const nd_value *v)
{
    return &c->info[v->mark];
}

nd_class nd_class_of(const nd_code *c, const nd_value *v)
{
    return nd_info(c, v)->cls;
}

/* ---- classes ------------------------------------------------------------ */

bool nd_is_cheap(const nd_op *op)
{
    return op->kind == OP_CAST ||
           (op->kind == OP_MAP && nd_ews[op->sub].cost < 8);
}

/* Sets info->size and says whether all operands are inline. */
static bool inline_inputs(const nd_code *c, nd_vinfo *info)
{
    const nd_op *op = info->v->def;
    bool all = true;
    info->size = 1;
    for (int i = 0; i < op->nin; i++) {
        const nd_vinfo *in = nd_info(c, op->in[i]);
        all &= in->cls == V_INLINE;
        info->size += in->cls == V_INLINE ? in->size : 1;
    }
    return all && info->size <= MAX_INLINE;
}

/* Other names for the operand: what is computed at each use stays so, however
 * long its expression is. */
static nd_class alias_of(const nd_code *c, nd_vinfo *info)
{
    const nd_vinfo *in = nd_info(c, info->v->def->in[0]);
    info->size = in->cls == V_INLINE ? in->size : 1;
    return in->cls == V_INLINE ? V_INLINE : V_VIEW;
}

static nd_class classify(const nd_code *c, nd_vinfo *info)
{
    const nd_value *v = info->v;
    const nd_op *op = v->def;
    info->size = 1;
    if (!op)
        return v->index < v->owner->parent->ncarry ? V_MEMORY : V_VIEW;
    if (nd_is_same(c, op))
        return alias_of(c, info);
    switch (op->kind) {
    case OP_CONST:
    case OP_INDEX:
        return V_INLINE;
    case OP_SPLIT:
    case OP_FLATTEN:
        return V_VIEW;
    case OP_MAP:
    case OP_CAST:
        return inline_inputs(c, info) && nd_is_cheap(op) ? V_INLINE : V_LOOP;
    default:
        return nd_has_trait(op, 'v')   ? alias_of(c, info)
               : nd_has_trait(op, 'n') ? V_LOOP
                                       : V_MEMORY;
    }
}

/* A scalar that only loops read is computed where it is read. */
static void inline_scalars(nd_code *c)
{
    for (int i = 0; i < c->nvalues; i++) {
        nd_vinfo *info = &c->info[i];
        const nd_op *op = info->v->def;
        if (info->cls != V_LOOP || info->v->type.rank || info->hard ||
            (op->kind != OP_MAP && op->kind != OP_CAST) || !nd_is_cheap(op))
            continue;
        inline_inputs(c, info);
        if (info->size <= MAX_INLINE)
            info->cls = V_INLINE;
    }
}

/* ---- numbering ---------------------------------------------------------- */

typedef struct numbering {
    nd_code *c;
    bool fill;
    int next;
} numbering;

static void number(numbering *n, nd_value *v)
{
    if (n->fill) {
        nd_vinfo *info = &n->c->info[n->next];
        info->v = v;
        info->yield = -1;
        v->mark = n->next;
        info->cls = classify(n->c, info);
    }
    n->next++;
}

static void number_op(nd_op *op, void *user)
{
    for (int i = 0; op->body && i < op->body->args.n; i++)
        number(user, op->body->args.v[i]);
    for (int i = 0; i < op->nout; i++)
        number(user, op->out[i]);
}

void nd_number(nd_code *c)
{
    numbering n = {.c = c};
    nd_walk(c->m->step, number_op, &n);
    c->nvalues = n.next;
    c->info = ND_NEWN(c->a, nd_vinfo, n.next);
    n = (numbering){.c = c, .fill = true};
    nd_walk(c->m->step, number_op, &n);
}

/* Made by a kernel, in memory of its own. */
bool nd_is_direct(const nd_code *c, const nd_value *v)
{
    nd_class k = nd_class_of(c, v);
    return v->def && (k == V_LOOP || k == V_MEMORY) &&
           v->def->kind != OP_PARAM && v->def->kind != OP_INPUT;
}

/* ---- leaves ------------------------------------------------------------- */

void nd_leaves_of(nd_code *c, nd_value *v, bool in_memory, nd_leaf_fn *f,
                  void *user)
{
    nd_class k = nd_class_of(c, v);
    if (k == V_INLINE) {
        for (int i = 0; i < v->def->nin; i++)
            nd_leaves_of(c, v->def->in[i], in_memory, f, user);
    } else if (k != V_VIEW) {
        f(c, v, in_memory, user);
    } else if (!v->def) {
        nd_leaves_of(c, v->owner->parent->in[v->index], true, f, user);
    } else {
        bool moves = v->def->kind != OP_BROADCAST && !nd_is_same(c, v->def);
        nd_leaves_of(c, v->def->in[0], in_memory || moves, f, user);
    }
}

void nd_leaves(nd_code *c, nd_op *op, nd_leaf_fn *f, void *user)
{
    switch (op->kind) {
    case OP_ACCUM:
        nd_leaves_of(c, nd_accum_source(c, op), false, f, user);
        break;
    case OP_CUMSUM:
    case OP_ROLL:
        nd_leaves_of(c, op->in[0], true, f, user);
        break;
    case OP_GATHER:
        nd_leaves_of(c, op->in[0], true, f, user);
        nd_leaves_of(c, op->in[1], false, f, user);
        break;
    default:
        for (int i = 0; i < op->nin; i++)
            nd_leaves_of(c, op->in[i], !nd_loop_op(c, op), f, user);
    }
}

/* ---- users -------------------------------------------------------------- */

typedef struct reader {
    nd_op *op;                       /* NULL: a yield, a message, the loss */
} reader;

static void add_user(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    reader *r = user;
    nd_vinfo *info = nd_info(c, leaf);
    info->nuses++;
    info->hard |= in_memory;
    if (r->op)
        ND_PUSH(c->a, &info->users, r->op);
}

static void read_by(nd_op *op, void *user)
{
    nd_code *c = user;
    reader r = {op};
    bool passive = op->nout == 1 && (nd_class_of(c, op->out[0]) == V_VIEW ||
                                     nd_class_of(c, op->out[0]) == V_INLINE);
    if (!passive)
        nd_leaves(c, op, add_user, &r);
    r.op = NULL;
    for (int i = 0; op->body && i < op->body->yields.n; i++)
        nd_leaves_of(c, op->body->yields.v[i], true, add_user, &r);
}

static void find_users(nd_code *c, bool scalars_inline)
{
    for (int i = 0; i < c->nvalues; i++) {
        c->info[i].users.n = c->info[i].nuses = 0;
        c->info[i].hard = false;
    }
    nd_walk(c->m->step, read_by, c);
    const nd_program *p = c->m->program;
    reader r = {NULL};
    for (int s = 0; s < p->nstages; s++) {
        const nd_stage *st = &p->stage[s];
        for (int k = 0; k < st->send_fwd.n; k++) {
            nd_leaves_of(c, st->send_fwd.v[k].from, true, add_user, &r);
            nd_leaves_of(c, st->send_fwd.v[k].to, true, add_user, &r);
        }
        for (int k = 0; k < st->send_bwd.n; k++) {
            nd_leaves_of(c, st->send_bwd.v[k].from, true, add_user, &r);
            nd_leaves_of(c, st->send_bwd.v[k].to, true, add_user, &r);
        }
    }
    if (c->m->loss)
        nd_leaves_of(c, c->m->loss, scalars_inline, add_user, &r);
}

/* ---- homes -------------------------------------------------------------- */

/* The sums of a product by groups go where they are added, if they can lie so.
 */
static void home_of_group(nd_code *c, nd_value *x, nd_op *accum)
{
    nd_ref r = nd_grad_ref(c, accum);
    if (nd_info(c, x)->nuses == 1 && x->def->block == accum->block &&
        nd_weight_nests(c, x->def, &r))
        nd_info(c, x)->accum = accum;
}

static void find_homes(nd_op *op, void *user)
{
    nd_code *c = user;
    nd_block *b = op->body;
    for (int i = 0; b && i < b->yields.n; i++)
        if (b->yields.v[i]->def)
            nd_info(c, nd_behind(c, b->yields.v[i]))->yield = i;
    if (op->kind == OP_ALL_REDUCE && !nd_is_same(c, op)) {
        nd_value *x = op->in[0];
        if (nd_is_direct(c, x) && nd_info(c, x)->nuses == 1 &&
            x->def->block == op->block && x->def->phase == op->phase)
            nd_info(c, x)->alias = op->out[0];
    }
    if (op->kind == OP_ACCUM) {
        nd_value *x = nd_accum_source(c, op);
        if (nd_is_direct(c, x) && nd_info(c, x)->nuses == 1 &&
            x->def->block == op->block && x->def->phase == op->phase &&
            (x->def->kind == OP_CONTRACT || x->def->kind == OP_SCATTER_ADD ||
             (x->def->kind == OP_REDUCE && x->def->sub == RED_SUM)))
            nd_info(c, x)->accum = op;
        else if (x->def && x->def->kind == OP_GROUPED_SUM)
            home_of_group(c, x, op);
    }
}

void nd_fuse_uses(nd_code *c)
{
    nd_number(c);
    nd_insert_copies(c);
    nd_number(c);
    find_users(c, false);
    inline_scalars(c);
    find_users(c, true);             /* inline scalars pass their users on */
    nd_walk(c->m->step, find_homes, c);
}
