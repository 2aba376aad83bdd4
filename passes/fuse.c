/* fuse.c - a list of ops becomes a list of kernels.
 *
 * Ops that can live in a loop nest wait until something needs their result in
 * memory (a product, a collective, a repeat, the end of the list). Then the
 * ones it depends on are placed, each into the latest nest that can take it,
 * and waiting ops that read the same data come along:
 *
 *   contract, collective, repeat   a kernel of its own, in place
 *   everything else                joins a nest or opens one
 *
 * So elementwise work sinks to its first reader, and the gradients of a norm's
 * gain and bias share the nest of its input gradient.
 */
#include "passes.h"

#include <string.h>

typedef struct fuser {
    nd_code *c;
    nd_kernels *out;
    ND_VEC(nd_op *) waiting;         /* in order; placed ones become NULL */
    int first_new;                   /* kernels made by the flush at hand */
} fuser;

static bool is_passive(const nd_code *c, const nd_op *op)
{
    switch (op->kind) {
    case OP_INPUT:
    case OP_PARAM:
    case OP_OUTPUT:
        return true;
    default:
        if (op->nout != 1)
            return false;
        nd_class k = nd_class_of(c, op->out[0]);
        return k == V_VIEW || k == V_INLINE;
    }
}

static nd_kernel *push(fuser *f, nd_kernel *k)
{
    k->index = f->out->v.n;
    ND_PUSH(f->c->a, &f->out->v, k);
    return k;
}

/* ---- placing one op ----------------------------------------------------- */

typedef struct ready {
    fuser *f;
    int latest;                      /* last kernel whose result it reads */
    bool missing;                    /* a producer is still waiting */
} ready;

static void find_ready(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    ready *r = user;
    (void)in_memory;
    const nd_kernel *k = nd_info(c, leaf)->kernel;
    if (k && k->index > r->latest)
        r->latest = k->index;
    for (int i = 0; !k && leaf->def && i < r->f->waiting.n; i++)
        if (r->f->waiting.v[i] == leaf->def)
            r->missing = true;
}

static void placed(fuser *f, nd_kernel *k, nd_op *op)
{
    for (int i = 0; i < op->nout; i++)
        nd_info(f->c, op->out[i])->kernel = k;
    for (int i = 0; i < f->waiting.n; i++)
        if (f->waiting.v[i] == op)
            f->waiting.v[i] = NULL;
}

/* The accumulate whose work its operand's producer already does. */
static bool is_absorbed(const nd_code *c, const nd_op *op)
{
    if (op->kind != OP_ACCUM)
        return false;
    const nd_vinfo *info = nd_info(c, nd_accum_source(c, op));
    if (info->accum != op || !info->kernel)
        return false;
    const nd_node *n = nd_node_of(info->kernel, info->v);
    return !n || n->add;
}

/* Joins a kernel no earlier than `from`, or opens one if told. */
static bool place(fuser *f, nd_op *op, int from, bool open)
{
    ready r = {.f = f};
    nd_leaves(f->c, op, find_ready, &r);
    if (r.missing)
        return false;
    if (is_absorbed(f->c, op)) {
        placed(f, NULL, op);
        return true;
    }
    int last = r.latest > from ? r.latest : from;
    for (int i = f->out->v.n - 1; i >= last; i--)
        if (nd_loop_join(f->c, f->out->v.v[i], op)) {
            placed(f, f->out->v.v[i], op);
            return true;
        }
    if (open)
        placed(f, push(f, nd_loop_new(f->c, op)), op);
    return open;
}

/* ---- flushing ----------------------------------------------------------- */

/* Marks a waiting op and the waiting ops it depends on. */
static void want_leaf(nd_code *c, nd_value *leaf, bool in_memory, void *user);

static void want_op(fuser *f, nd_op *op)
{
    for (int i = 0; i < f->waiting.n; i++)
        if (f->waiting.v[i] == op && !op->mark) {
            op->mark = 1;
            nd_leaves(f->c, op, want_leaf, f);
            return;
        }
}

static void want_leaf(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    (void)c;
    (void)in_memory;
    if (leaf->def)
        want_op(user, leaf->def);
}

static int axes_of(const nd_op *op)
{
    return op->kind == OP_REDUCE || op->kind == OP_ACCUM
               ? op->in[0]->type.rank
               : op->out[0]->type.rank;
}

/* The op to open a nest with: few axes first, because a nest can grow inner
 * axes around row values but not the other way round. */
static nd_op *next_opener(const fuser *f)
{
    nd_op *best = NULL;
    for (int i = 0; i < f->waiting.n; i++) {
        nd_op *op = f->waiting.v[i];
        ready r = {.f = (fuser *)f};
        if (!op || !op->mark || (best && axes_of(op) >= axes_of(best)))
            continue;
        nd_leaves(f->c, op, find_ready, &r);
        if (!r.missing)
            best = op;
    }
    return best;
}

/* Places the wanted ops: whatever fits an open nest first. */
static void flush(fuser *f, int from)
{
    for (;;) {
        bool joined = false;
        for (int i = 0; i < f->waiting.n; i++)
            if (f->waiting.v[i] && f->waiting.v[i]->mark)
                joined |= place(f, f->waiting.v[i], from, false);
        if (joined)
            continue;
        nd_op *op = next_opener(f);
        if (!op)
            return;
        place(f, op, 0, true);
    }
}

/* Waiting ops whose operands are ready and that fit a nest just made. */
static void come_along(fuser *f, int from)
{
    if (from == f->out->v.n)
        return;
    for (int i = 0; i < f->waiting.n; i++)
        if (f->waiting.v[i])
            place(f, f->waiting.v[i], from, false);
}

static void compact(fuser *f)
{
    int keep = 0;
    for (int i = 0; i < f->waiting.n; i++)
        if (f->waiting.v[i])
            f->waiting.v[keep++] = f->waiting.v[i];
    f->waiting.n = keep;
}

/* Ops inside a body that read values of this block need them, too. */
static void want_body(nd_op *op, void *user)
{
    fuser *f = user;
    if (!is_passive(f->c, op))
        nd_leaves(f->c, op, want_leaf, f);
}

static void anchor(fuser *f, nd_op *op)
{
    int from = f->out->v.n;
    nd_leaves(f->c, op, want_leaf, f);
    if (op->body)
        nd_walk(op->body, want_body, f);
    flush(f, from);
    come_along(f, from);
    compact(f);
    nd_kernel *k = ND_NEW(f->c->a, nd_kernel);
    k->kind = op->kind == OP_CONTRACT ? K_GEMM
              : op->kind == OP_REPEAT ? K_REPEAT
                                      : K_COMM;
    k->phase = op->phase;
    if (op->body)
        k->body = nd_body_of(f->c, op);
    ND_PUSH(f->c->a, &k->nodes, ((nd_node){.op = op}));
    placed(f, push(f, k), op);
}

/* ---- sinking ------------------------------------------------------------ */

typedef struct feeds {
    nd_kernel *from;
    bool yes;
} feeds;

static void feeds_leaf(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    feeds *f = user;
    (void)in_memory;
    f->yes |= nd_info(c, leaf)->kernel == f->from;
}

typedef struct walk {
    nd_code *c;
    feeds f;
} walk;

static void feeds_body(nd_op *op, void *user)
{
    walk *w = user;
    if (!is_passive(w->c, op))
        nd_leaves(w->c, op, feeds_leaf, &w->f);
}

/* Does kernel k read what `from` makes? */
static bool reads_from(nd_code *c, nd_kernel *k, nd_kernel *from)
{
    walk w = {c, {from, false}};
    for (int i = 0; i < k->nodes.n; i++) {
        nd_leaves(c, k->nodes.v[i].op, feeds_leaf, &w.f);
        if (k->nodes.v[i].op->body)
            nd_walk(k->nodes.v[i].op->body, feeds_body, &w);
    }
    return w.f.yes;
}

/* A nest whose first reader is a nest that can hold it moves in there. */
static bool sink_one(nd_code *c, nd_kernels *list, int at)
{
    nd_kernel *early = list->v.v[at];
    if (early->kind != K_LOOP)
        return false;
    for (int i = at + 1; i < list->v.n; i++) {
        nd_kernel *late = list->v.v[i];
        if (!reads_from(c, late, early))
            continue;
        if (late->kind != K_LOOP || !nd_loop_absorb(c, late, early))
            return false;
        for (int k = 0; k < early->nodes.n; k++)
            for (int j = 0; j < early->nodes.v[k].op->nout; j++)
                nd_info(c, early->nodes.v[k].op->out[j])->kernel = late;
        for (int k = at + 1; k < list->v.n; k++) {
            list->v.v[k - 1] = list->v.v[k];
            list->v.v[k - 1]->index = k - 1;
        }
        list->v.n--;
        return true;
    }
    return false;
}

static void sink(nd_code *c, nd_kernels *list)
{
    for (int i = list->v.n - 1; i >= 0; i--)
        sink_one(c, list, i);
}

/* ---- names -------------------------------------------------------------- */

static const char *path_of(const nd_op *op)
{
    return op->path ? op->path : "";
}

/* Named after the instance that most of its ops belong to, the first one if
 * several do: "layers.attn.softmax". */
static void name_kernel(nd_kernel *k)
{
    int most = 0;
    for (int i = 0; i < k->nodes.n; i++) {
        nd_op *op = k->nodes.v[i].op;
        int n = 0;
        for (int j = 0; j < k->nodes.n; j++)
            n += strcmp(path_of(op), path_of(k->nodes.v[j].op)) == 0;
        n *= *path_of(op) ? 2 : 1;
        if (n > most) {
            most = n;
            k->op = op;
        }
    }
    k->loc = k->op->loc;
    k->name = path_of(k->op);
}

/* ---- lists -------------------------------------------------------------- */

static void fuse_list(nd_code *c, nd_op *const *ops, int n, nd_kernels *out)
{
    fuser f = {.c = c, .out = out};
    for (int i = 0; i < c->nvalues; i++)
        c->info[i].kernel = NULL;
    for (int i = 0; i < n; i++) {
        if (is_passive(c, ops[i]))
            continue;
        ops[i]->mark = 0;
        if (nd_loop_op(c, ops[i]))
            ND_PUSH(c->a, &f.waiting, ops[i]);
        else
            anchor(&f, ops[i]);
    }
    int from = out->v.n;
    for (int i = 0; i < f.waiting.n; i++)
        if (f.waiting.v[i])
            f.waiting.v[i]->mark = 1;
    flush(&f, from);
    sink(c, out);
    for (int i = 0; i < out->v.n; i++) {
        nd_kernel *k = out->v.v[i];
        if (k->kind == K_LOOP)
            nd_loop_finish(c, k);
        name_kernel(k);
    }
}

static void fuse_body(nd_op *op, void *user)
{
    nd_code *c = user;
    if (!op->body)
        return;
    nd_walk(op->body, fuse_body, c);
    if (nd_body_of(c, op))
        return;
    nd_kernels *k = ND_NEW(c->a, nd_kernels);
    k->block = op->body;
    fuse_list(c, op->body->ops.v, op->body->ops.n, k);
    ND_PUSH(c->a, &c->bodies, k);
}

nd_kernels *nd_body_of(const nd_code *c, const nd_op *repeat)
{
    for (int i = 0; i < c->bodies.n; i++)
        if (c->bodies.v[i]->block == repeat->body)
            return c->bodies.v[i];
    return NULL;
}

void nd_fuse(nd_code *c)
{
    const nd_program *p = c->m->program;
    nd_walk(c->m->step, fuse_body, c);
    c->stage = ND_NEWN(c->a, nd_stage_code, p->nstages);
    for (int s = 0; s < p->nstages; s++) {
        const nd_stage *st = &p->stage[s];
        fuse_list(c, st->pre.v, st->pre.n, &c->stage[s].pre);
        fuse_list(c, st->fwd.v, st->fwd.n, &c->stage[s].fwd);
        fuse_list(c, st->bwd.v, st->bwd.n, &c->stage[s].bwd);
    }
}

nd_code *nd_code_new(nd_module *m)
{
    nd_code *c = ND_NEW(m->ctx->arena, nd_code);
    c->m = m;
    c->a = m->ctx->arena;
    nd_extents(c);
    nd_fuse_uses(c);
    nd_fuse(c);
    nd_buckets(c);
    nd_memplan_new(c);
    return c;
}
