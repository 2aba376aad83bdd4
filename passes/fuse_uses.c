/* fuse_uses.c - what becomes of every value, and who reads it.
 *
 *   inline   const, index, and cheap elementwise ops on those alone: computed
 *            again at each use, never stored
 *   view     slice, rename, broadcast, stop_gradient, a scanned argument:
 *            other strides on another value
 *   loop     made inside a loop nest; stored only if somebody needs it there
 *   memory   the rest: parameters, products, results of collectives
 *
 * Where an op needs memory and has none (a product of a mask, a message that
 * is a slice), a copy is inserted: a stop_gradient with sub = 1, or 2 for an
 * output, which the runtime reads with the strides of the largest rank.
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
    switch (op->kind) {
    case OP_STOP_GRAD:
        return !nd_is_copy(op);
    case OP_ALL_REDUCE:
    case OP_REDUCE_SCATTER:
    case OP_ALL_GATHER:
    case OP_SLICE:
        for (int i = 0; i < m->n; i++)
            if (op->mesh >> i & 1 && m->size[i] > 1)
                return false;
        return true;
    default:
        return false;
    }
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

static bool is_cheap(const nd_op *op)
{
    if (op->kind == OP_CAST)
        return true;
    switch (op->kind == OP_MAP ? op->sub : EW_COUNT) {
    case EW_POW:
    case EW_EXP:
    case EW_LOG:
    case EW_TANH:
    case EW_SIGMOID:
    case EW_ERF:
    case EW_SIN:
    case EW_COS:
    case EW_COUNT:
        return false;
    default:
        return true;
    }
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

static nd_class classify(const nd_code *c, nd_vinfo *info)
{
    const nd_value *v = info->v;
    const nd_op *op = v->def;
    info->size = 1;
    if (!op)
        return v->index < v->owner->parent->ncarry ? V_MEMORY : V_VIEW;
    if (nd_is_same(c, op))
        return inline_inputs(c, info) ? V_INLINE : V_VIEW;
    switch (op->kind) {
    case OP_CONST:
    case OP_INDEX:
        return V_INLINE;
    case OP_STOP_GRAD:
        return V_LOOP;
    case OP_RENAME:
    case OP_SLICE:
    case OP_BROADCAST:
        return inline_inputs(c, info) ? V_INLINE : V_VIEW;
    case OP_MAP:
    case OP_CAST:
        return inline_inputs(c, info) && is_cheap(op) ? V_INLINE : V_LOOP;
    case OP_REDUCE:
    case OP_GATHER:
    case OP_SCATTER_ADD:
    case OP_RANDOM:
        return V_LOOP;
    default:
        return V_MEMORY;
    }
}

/* A scalar that only loops read is computed where it is read. */
static void inline_scalars(nd_code *c)
{
    for (int i = 0; i < c->nvalues; i++) {
        nd_vinfo *info = &c->info[i];
        const nd_op *op = info->v->def;
        if (info->cls != V_LOOP || info->v->type.rank || info->hard ||
            (op->kind != OP_MAP && op->kind != OP_CAST) || !is_cheap(op))
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

static void number_all(nd_code *c)
{
    numbering n = {.c = c};
    nd_walk(c->m->step, number_op, &n);
    c->nvalues = n.next;
    c->info = ND_NEWN(c->a, nd_vinfo, n.next);
    n = (numbering){.c = c, .fill = true};
    nd_walk(c->m->step, number_op, &n);
}

/* ---- copies ------------------------------------------------------------- */

/* Made by a kernel, in memory of its own. */
static bool is_direct(const nd_code *c, const nd_value *v)
{
    nd_class k = nd_class_of(c, v);
    return v->def && (k == V_LOOP || k == V_MEMORY) &&
           v->def->kind != OP_PARAM && v->def->kind != OP_INPUT;
}

static bool is_packed(nd_code *c, const nd_value *v)
{
    nd_ref r;
    return nd_ref_of(c, v, &r) && nd_is_packed(c, &r);
}

/* Do strides by own lengths and by the largest lengths agree? */
static bool even_inside(nd_code *c, const nd_value *v)
{
    for (int i = 1; i < v->type.rank; i++)
        if (c->exts.v[nd_ext_of(c, &v->type, i)].fixed < 0)
            return false;
    return true;
}

static int find_op(nd_op *const *v, int n, const nd_op *op)
{
    for (int i = 0; i < n; i++)
        if (v[i] == op)
            return i;
    return -1;
}

/* Inserts `op` in each stage's lists next to `beside`. */
static void list_beside(nd_code *c, nd_op *op, const nd_op *beside, bool after)
{
    const nd_program *p = c->m->program;
    for (int s = 0; s < p->nstages; s++) {
        nd_stage *st = &p->stage[s];
        for (int k = 0; k < 3; k++) {
            nd_op ***v = k == 0 ? &st->pre.v : k == 1 ? &st->fwd.v : &st->bwd.v;
            int *n = k == 0 ? &st->pre.n : k == 1 ? &st->fwd.n : &st->bwd.n;
            int i = find_op(*v, *n, beside);
            if (i < 0)
                continue;
            nd_op **longer = ND_NEWN(c->a, nd_op *, *n + 1);
            int at = i + after;
            memcpy(longer, *v, sizeof *longer * (size_t)at);
            longer[at] = op;
            memcpy(longer + at + 1, *v + at,
                   sizeof *longer * (size_t)(*n - at));
            *v = longer;
            *n += 1;
            if (k == 0)
                st->pre.cap = *n;
            else if (k == 1)
                st->fwd.cap = *n;
            else
                st->bwd.cap = *n;
        }
    }
}

/* op(v) beside an op of the block (NULL: at the block's end). */
static nd_value *unary_at(nd_code *c, nd_opcode kind, nd_value *v, nd_type t,
                          nd_block *b, nd_op *beside, bool after)
{
    int at = beside ? find_op(b->ops.v, b->ops.n, beside) + after : b->ops.n;
    const nd_op *like = beside ? beside : b->parent;
    nd_builder bld = {.m = c->m, .block = b, .at = at, .phase = like->phase,
                      .loc = like->loc, .path = like->path, .hint = v->name};
    nd_op *op = nd_op_new(&bld, kind, 1, &v, 1, &t);
    if (beside && !b->parent)
        list_beside(c, op, beside, after);
    op->out[0]->mark = v->mark;      /* until everything is numbered again */
    return op->out[0];
}

static nd_value *copy_at(nd_code *c, nd_value *v, nd_block *b, nd_op *beside,
                         bool after)
{
    nd_value *w = unary_at(c, OP_STOP_GRAD, v, v->type, b, beside, after);
    w->def->sub = 1;
    return w;
}

static void copy_operand(nd_code *c, nd_op *op, int i)
{
    op->in[i] = copy_at(c, op->in[i], op->block, op, false);
}

static void copies_for_repeat(nd_code *c, nd_op *op)
{
    for (int i = 0; i < op->nin; i++)
        if (i < op->ncarry ? !is_packed(c, op->in[i])
                           : nd_class_of(c, op->in[i]) == V_INLINE)
            copy_operand(c, op, i);
    nd_block *b = op->body;
    for (int i = 0; i < b->yields.n; i++) {
        nd_value *y = b->yields.v[i], *made = nd_behind(c, y);
        bool first = true;
        for (int j = 0; j < i; j++)
            first &= nd_behind(c, b->yields.v[j]) != made;
        bool kept = i >= op->ncarry && !y->def && y->owner == b &&
                    y->index < op->ncarry &&
                    nd_kept_carry(op, y->index) == op->out[i];
        if (!kept && !(first && is_direct(c, made) && nd_block_of(made) == b))
            b->yields.v[i] = copy_at(c, y, b, NULL, false);
    }
}

/* The runtime moves floats; what else is moved (positions that were looked up
 * in a cut table) goes as floats, exact below 2^24. */
static void move_as_float(nd_code *c, nd_op *op)
{
    nd_value *x = op->in[0], *y = op->out[0];
    nd_type as = x->type, back = y->type;
    as.dtype = ND_F32;
    op->in[0] = unary_at(c, OP_CAST, x, as, op->block, op, false);
    nd_value *w = unary_at(c, OP_CAST, y, back, op->block, op, true);
    nd_replace_uses(c->m, y, w);
    w->def->in[0] = y;
    y->type.dtype = ND_F32;
}

static void copies_for(nd_op *op, void *user)
{
    nd_code *c = user;
    if (nd_is_same(c, op))
        return;
    switch (op->kind) {
    case OP_CONTRACT:
        for (int i = 0; i < 2; i++)
            if (nd_class_of(c, op->in[i]) == V_INLINE)
                copy_operand(c, op, i);
        break;
    case OP_GATHER:
        if (nd_class_of(c, op->in[0]) == V_INLINE)
            copy_operand(c, op, 0);
        break;
    case OP_ALL_REDUCE:
    case OP_REDUCE_SCATTER:
    case OP_ALL_GATHER:
        if (op->in[0]->type.dtype != ND_F32)
            move_as_float(c, op);
        else if (!is_packed(c, op->in[0]))
            copy_operand(c, op, 0);
        break;
    case OP_OUTPUT:
        if (!is_packed(c, op->in[0]) || !even_inside(c, op->in[0])) {
            copy_operand(c, op, 0);
            op->in[0]->def->sub = 2;
        }
        break;
    case OP_REPEAT:
        copies_for_repeat(c, op);
        break;
    default:
        break;
    }
}

/* The copy goes beside the op that makes v, or first in the step. */
static nd_value *copy_crossing(nd_code *c, nd_value *v, bool everywhere)
{
    nd_value *w = copy_at(c, v, c->m->step, v->def, true);
    if (everywhere) {
        nd_replace_uses(c->m, v, w);
        w->def->in[0] = v;
    }
    const nd_program *p = c->m->program;
    for (int s = 0; s < p->nstages; s++) {
        nd_stage *st = &p->stage[s];
        for (int k = 0; k < st->send_fwd.n; k++) {
            nd_cross *x = &st->send_fwd.v[k];
            x->from = x->from == v ? w : x->from;
            x->to = everywhere && x->to == v ? w : x->to;
        }
        for (int k = 0; k < st->send_bwd.n; k++) {
            nd_cross *x = &st->send_bwd.v[k];
            x->from = x->from == v ? w : x->from;
            x->to = everywhere && x->to == v ? w : x->to;
        }
    }
    return w;
}

static void copies_for_cross(nd_code *c, nd_cross *x)
{
    if (!is_direct(c, nd_behind(c, x->to)))
        copy_crossing(c, x->to, true);
    if (!is_direct(c, nd_behind(c, x->from)))
        copy_crossing(c, x->from, false);
}

static void insert_copies(nd_code *c)
{
    const nd_program *p = c->m->program;
    for (int s = 0; s < p->nstages; s++) {
        nd_stage *st = &p->stage[s];
        for (int k = 0; k < st->send_fwd.n; k++)
            copies_for_cross(c, &st->send_fwd.v[k]);
        for (int k = 0; k < st->send_bwd.n; k++)
            copies_for_cross(c, &st->send_bwd.v[k]);
    }
    number_all(c);
    /* Copies are inserted in the list being walked: walk a snapshot. */
    ND_VEC(nd_op *) ops = {0};
    ND_VEC(nd_block *) todo = {0};
    ND_PUSH(c->a, &todo, c->m->step);
    for (int i = 0; i < todo.n; i++)
        for (int k = 0; k < todo.v[i]->ops.n; k++) {
            nd_op *op = todo.v[i]->ops.v[k];
            ND_PUSH(c->a, &ops, op);
            if (op->body)
                ND_PUSH(c->a, &todo, op->body);
        }
    for (int i = 0; i < ops.n; i++)
        copies_for(ops.v[i], c);
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

static void find_homes(nd_op *op, void *user)
{
    nd_code *c = user;
    nd_block *b = op->body;
    for (int i = 0; b && i < b->yields.n; i++)
        if (b->yields.v[i]->def)
            nd_info(c, nd_behind(c, b->yields.v[i]))->yield = i;
    if (op->kind == OP_ALL_REDUCE && !nd_is_same(c, op)) {
        nd_value *x = op->in[0];
        if (is_direct(c, x) && nd_info(c, x)->nuses == 1 &&
            x->def->block == op->block && x->def->phase == op->phase)
            nd_info(c, x)->alias = op->out[0];
    }
    if (op->kind == OP_ACCUM) {
        nd_value *x = nd_accum_source(c, op);
        if (is_direct(c, x) && nd_info(c, x)->nuses == 1 &&
            x->def->block == op->block &&
            (x->def->kind == OP_CONTRACT || x->def->kind == OP_SCATTER_ADD ||
             (x->def->kind == OP_REDUCE && x->def->sub == RED_SUM)))
            nd_info(c, x)->accum = op;
    }
}

void nd_fuse_uses(nd_code *c)
{
    number_all(c);
    insert_copies(c);
    number_all(c);
    find_users(c, false);
    inline_scalars(c);
    find_users(c, true);             /* inline scalars pass their users on */
    nd_walk(c->m->step, find_homes, c);
}
