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

typedef struct waiter {
    nd_op *op;                       /* NULL: placed */
    bool wanted;                     /* the flush at hand is to place it */
} waiter;

typedef struct fuser {
    nd_code *c;
    nd_kernels *out;
    /* In order; op->mark is position + 1, and -index - 1 in a kernel. */
    ND_VEC(waiter) waiting;
    ND_VEC(int) near;                /* kernels that one op may join */
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

static void clear_mark(nd_op *op, void *user)
{
    (void)user;
    op->mark = 0;
}

static waiter *waiter_of(const fuser *f, const nd_op *op)
{
    return op && op->mark > 0 ? &f->waiting.v[op->mark - 1] : NULL;
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
    int from;
} ready;

static void find_ready(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    ready *r = user;
    (void)in_memory;
    const nd_kernel *k = nd_info(c, leaf)->kernel;
    if (k && k->index > r->latest)
        r->latest = k->index;
    r->missing |= waiter_of(r->f, leaf->def) != NULL;
}

static void add_near(ready *r, int kernel)
{
    fuser *f = r->f;
    if (kernel < r->from)
        return;
    int i = f->near.n;
    while (i > 0 && f->near.v[i - 1] < kernel)
        i--;
    if (i > 0 && f->near.v[i - 1] == kernel)
        return;
    ND_PUSH(f->c->a, &f->near, 0);
    memmove(f->near.v + i + 1, f->near.v + i,
            sizeof *f->near.v * (size_t)(f->near.n - 1 - i));
    f->near.v[i] = kernel;
}

/* An op joins a kernel that makes or reads what it reads: asking those alone
 * keeps a program of thousands of lines near linear. */
static void find_near(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    ready *r = user;
    (void)in_memory;
    const nd_vinfo *info = nd_info(c, leaf);
    if (info->kernel)
        add_near(r, info->kernel->index);
    for (int i = 0; i < info->users.n; i++)
        if (info->users.v[i]->mark < 0)
            add_near(r, -info->users.v[i]->mark - 1);
}

static void placed(fuser *f, nd_kernel *k, nd_op *op)
{
    for (int i = 0; i < op->nout; i++)
        nd_info(f->c, op->out[i])->kernel = k;
    waiter *w = waiter_of(f, op);
    if (w)
        *w = (waiter){0};
    op->mark = k ? -k->index - 1 : 0;
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
    r.from = r.latest > from ? r.latest : from;
    f->near.n = 0;
    if (r.from < f->out->v.n)
        nd_leaves(f->c, op, find_near, &r);
    for (int i = 0; i < f->near.n; i++) {
        nd_kernel *k = f->out->v.v[f->near.v[i]];
        if (nd_loop_join(f->c, k, op)) {
            placed(f, k, op);
            return true;
        }
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
    waiter *w = waiter_of(f, op);
    if (!w || w->wanted)
        return;
    w->wanted = true;
    nd_leaves(f->c, op, want_leaf, f);
}

static void want_leaf(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    (void)c;
    (void)in_memory;
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
        nd_op *op = f->waiting.v[i].op;
        ready r = {.f = (fuser *)f};
        if (!f->waiting.v[i].wanted || (best && axes_of(op) >= axes_of(best)))
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
            if (f->waiting.v[i].wanted)
                joined |= place(f, f->waiting.v[i].op, from, false);
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
        if (f->waiting.v[i].op)
            place(f, f->waiting.v[i].op, from, false);
}

static void compact(fuser *f)
{
    int keep = 0;
    for (int i = 0; i < f->waiting.n; i++)
        if (f->waiting.v[i].op) {
            f->waiting.v[keep++] = f->waiting.v[i];
            f->waiting.v[keep - 1].op->mark = keep;
        }
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

/* While kernels sink, op->mark is the number of its kernel + 1. */
typedef struct sinker {
    nd_code *c;
    nd_kernels *list;
    nd_kernel **by_number;           /* the kernels before any has moved */
    int number;
} sinker;

static void mark_body(nd_op *op, void *user)
{
    op->mark = ((sinker *)user)->number + 1;
}

static void mark_kernel(sinker *s, nd_kernel *k, int number)
{
    s->number = number;
    for (int i = 0; i < k->nodes.n; i++) {
        k->nodes.v[i].op->mark = number + 1;
        if (k->nodes.v[i].op->body)
            nd_walk(k->nodes.v[i].op->body, mark_body, s);
    }
}

/* The first kernel of the list that reads what `from` makes, or NULL. */
static nd_kernel *first_reader(const sinker *s, const nd_kernel *from)
{
    nd_kernel *first = NULL;
    for (int i = 0; i < from->nodes.n; i++)
        for (int j = 0; j < from->nodes.v[i].op->nout; j++) {
            const nd_vinfo *v = nd_info(s->c, from->nodes.v[i].op->out[j]);
            for (int u = 0; u < v->users.n; u++) {
                int number = v->users.v[u]->mark - 1;
                nd_kernel *k = number < 0 ? NULL : s->by_number[number];
                if (k && k != from && (!first || k->index < first->index))
                    first = k;
            }
        }
    return first;
}

/* A nest whose first reader is a nest that can hold it moves in there. */
static void sink_one(sinker *s, int at)
{
    nd_kernels *list = s->list;
    nd_kernel *early = list->v.v[at];
    nd_kernel *late = early->kind == K_LOOP ? first_reader(s, early) : NULL;
    if (!late || late->kind != K_LOOP || !nd_loop_absorb(s->c, late, early))
        return;
    mark_kernel(s, late, late->nodes.v[late->nodes.n - 1].op->mark - 1);
    for (int k = 0; k < early->nodes.n; k++)
        for (int j = 0; j < early->nodes.v[k].op->nout; j++)
            nd_info(s->c, early->nodes.v[k].op->out[j])->kernel = late;
    for (int k = at + 1; k < list->v.n; k++) {
        list->v.v[k - 1] = list->v.v[k];
        list->v.v[k - 1]->index = k - 1;
    }
    list->v.n--;
}

static void sink(nd_code *c, nd_kernels *list)
{
    sinker s = {.c = c, .list = list};
    s.by_number = ND_NEWN(c->a, nd_kernel *, list->v.n + 1);
    nd_walk(c->m->step, clear_mark, NULL);
    for (int i = 0; i < list->v.n; i++) {
        s.by_number[i] = list->v.v[i];
        mark_kernel(&s, list->v.v[i], i);
    }
    for (int i = list->v.n - 1; i >= 0; i--)
        sink_one(&s, i);
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
    nd_walk(c->m->step, clear_mark, NULL);
    for (int i = 0; i < n; i++) {
        if (is_passive(c, ops[i]))
            continue;
        if (!nd_loop_op(c, ops[i])) {
            anchor(&f, ops[i]);
            continue;
        }
        ND_PUSH(c->a, &f.waiting, (waiter){.op = ops[i]});
        ops[i]->mark = f.waiting.n;
    }
    int from = out->v.n;
    for (int i = 0; i < f.waiting.n; i++)
        f.waiting.v[i].wanted = f.waiting.v[i].op != NULL;
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
