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
    bool queued;                     /* in one of the heaps below */
    bool fresh;                      /* not tried since it became ready */
    int missing;                     /* operands whose producers wait */
    ND_VEC(int) near;                /* kernels that changed since it was tried
                                        and make or read what it reads */
} waiter;

typedef ND_VEC(nd_value *) values;

/* Waiting ops are tried in the order of the program, round after round, until
 * none fits. Only those are tried whose producers have been placed, with the
 * kernels that changed: so thousands of lines take near linear time. */
typedef struct fuser {
    nd_code *c;
    nd_kernels *out;
    ND_VEC(values) touched;          /* by kernel: what it makes or reads */
    int from;                        /* the first kernel of this flush */
    int at;                          /* the waiter that is tried */
    bool along;                      /* this flush placed all it was to place */
    /* In order; op->mark is position + 1, and -index - 1 in a kernel. */
    ND_VEC(waiter) waiting;
    nd_heap now, next;               /* wanted, to try in this round, in the
                                        next one */
    nd_heap others;                  /* not wanted, to try at the end */
    nd_heap openers[ND_MAX_RANK + 1];    /* wanted and ready, by axes */
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

/* Leaves no trace of a list for the next one. */
static void forget(nd_op *op, void *user)
{
    nd_code *c = user;
    op->mark = 0;
    for (int i = 0; i < op->nout; i++)
        nd_info(c, op->out[i])->kernel = NULL;
    if (op->body)
        nd_walk(op->body, forget, c);
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

/* ---- who may fit now ---------------------------------------------------- */

static int index_of(const fuser *f, const waiter *w)
{
    return (int)(w - f->waiting.v);
}

static void queue(fuser *f, waiter *w)
{
    int i = index_of(f, w);
    if (w->queued || (f->along && i <= f->at))
        return;
    w->queued = true;
    nd_heap_put(f->c->a, !w->wanted ? &f->others
                         : i > f->at ? &f->now : &f->next, i);
}

/* The op to open a nest with: few axes first, because a nest can grow inner
 * axes around row values but not the other way round. */
static int axes_of(const nd_op *op)
{
    return op->kind == OP_REDUCE || op->kind == OP_ACCUM
               ? op->in[0]->type.rank
               : op->out[0]->type.rank;
}

/* It may be tried, and a kernel may be opened for it. */
static void offer(fuser *f, waiter *w)
{
    queue(f, w);
    if (w->wanted)
        nd_heap_put(f->c->a, &f->openers[axes_of(w->op)], index_of(f, w));
}

/* Tells the waiting ops that read v. */
static void now_there(fuser *f, const nd_value *v)
{
    const nd_vinfo *info = nd_info(f->c, v);
    for (int i = 0; i < info->users.n; i++) {
        waiter *w = waiter_of(f, info->users.v[i]);
        if (w && --w->missing == 0)
            offer(f, w);
    }
}

static void changed(fuser *f, const nd_kernel *k, const nd_value *v)
{
    const nd_vinfo *info = nd_info(f->c, v);
    for (int i = 0; i < info->users.n; i++) {
        waiter *w = waiter_of(f, info->users.v[i]);
        if (!w || w->missing)
            continue;
        if (!w->near.n || w->near.v[w->near.n - 1] != k->index)
            ND_PUSH(f->c->a, &w->near, k->index);
        queue(f, w);
    }
}

typedef struct touching {
    fuser *f;
    int kernel;
} touching;

static void touch(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    touching *t = user;
    values *v = &t->f->touched.v[t->kernel];
    (void)in_memory;
    for (int i = 0; i < v->n; i++)
        if (v->v[i] == leaf)
            return;
    ND_PUSH(c->a, v, leaf);
}

/* ---- placing one op ----------------------------------------------------- */

/* The last kernel whose result an op reads. */
typedef struct ready {
    fuser *f;
    int latest;
    int from;
} ready;

static void find_latest(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    ready *r = user;
    (void)in_memory;
    const nd_kernel *k = nd_info(c, leaf)->kernel;
    if (k && k->index > r->latest)
        r->latest = k->index;
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

/* k NULL: nothing is left to do for it. */
static void placed(fuser *f, nd_kernel *k, nd_op *op)
{
    waiter *w = waiter_of(f, op);
    if (w)
        w->op = NULL;
    op->mark = k ? -k->index - 1 : 0;
    for (int i = 0; i < op->nout; i++) {
        nd_info(f->c, op->out[i])->kernel = k;
        now_there(f, op->out[i]);
    }
    if (!k || k->kind != K_LOOP)
        return;
    touching t = {f, k->index};
    while (f->touched.n <= k->index)
        ND_PUSH(f->c->a, &f->touched, (values){0});
    nd_leaves(f->c, op, touch, &t);
    for (int i = 0; i < op->nout; i++)
        touch(f->c, op->out[i], false, &t);
    for (int i = 0; i < f->touched.v[k->index].n; i++)
        changed(f, k, f->touched.v[k->index].v[i]);
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
static bool place(fuser *f, waiter *w, int from, bool open)
{
    nd_op *op = w->op;
    ready r = {.f = f};
    if (is_absorbed(f->c, op)) {
        placed(f, NULL, op);
        return true;
    }
    nd_leaves(f->c, op, find_latest, &r);
    r.from = r.latest > from ? r.latest : from;
    f->near.n = 0;
    if ((w->fresh || open) && r.from < f->out->v.n)
        nd_leaves(f->c, op, find_near, &r);
    else
        for (int i = 0; i < w->near.n; i++)
            add_near(&r, w->near.v[i]);
    w->near.n = 0;
    w->fresh = false;
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
    w->queued = false;               /* not among the others any more */
    if (!w->missing)
        offer(f, w);
    nd_leaves(f->c, op, want_leaf, f);
}

static void want_leaf(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    (void)c;
    (void)in_memory;
    want_op(user, leaf->def);
}

/* Tries the ops of a heap, which grows meanwhile. */
static bool try_all(fuser *f, nd_heap *h)
{
    bool joined = false;
    while (h->n) {
        f->at = nd_heap_take(h);
        waiter *w = &f->waiting.v[f->at];
        w->queued = false;
        if (w->op)
            joined |= place(f, w, f->from, false);
    }
    f->at = -1;
    return joined;
}

static waiter *next_opener(fuser *f)
{
    for (int axes = 0; axes <= ND_MAX_RANK; axes++)
        while (f->openers[axes].n) {
            int i = nd_heap_take(&f->openers[axes]);
            if (f->waiting.v[i].op)
                return &f->waiting.v[i];
        }
    return NULL;
}

/* Places the wanted ops: whatever fits an open nest first. Then others whose
 * operands are ready and that fit a nest just made come along. */
static void flush(fuser *f)
{
    for (;;) {
        while (try_all(f, &f->now)) {
            nd_heap done = f->now;
            f->now = f->next;
            f->next = done;
        }
        waiter *w = next_opener(f);
        if (!w)
            break;
        place(f, w, 0, true);
    }
    f->along = true;
    try_all(f, &f->others);
    f->along = false;
    f->from = f->out->v.n;
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
    f->from = f->out->v.n;
    nd_leaves(f->c, op, want_leaf, f);
    if (op->body)
        nd_walk(op->body, want_body, f);
    flush(f);
    nd_kernel *k = ND_NEW(f->c->a, nd_kernel);
    k->kind = op->kind == OP_CONTRACT ? K_GEMM
              : op->kind == OP_GROUPED || op->kind == OP_GROUPED_SUM
                  ? K_GROUPED
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
    list->v.v[at] = NULL;
}

static void sink(nd_code *c, nd_kernels *list)
{
    sinker s = {.c = c, .list = list};
    s.by_number = ND_NEWN(c->a, nd_kernel *, list->v.n + 1);
    for (int i = 0; i < list->v.n; i++) {
        s.by_number[i] = list->v.v[i];
        mark_kernel(&s, list->v.v[i], i);
    }
    for (int i = list->v.n - 1; i >= 0; i--)
        sink_one(&s, i);
    int keep = 0;
    for (int i = 0; i < list->v.n; i++)
        if (list->v.v[i]) {
            list->v.v[i]->index = keep;
            list->v.v[keep++] = list->v.v[i];
        }
    list->v.n = keep;
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

typedef struct counting {
    const fuser *f;
    waiter *w;
} counting;

static void count_missing(nd_code *c, nd_value *leaf, bool in_memory,
                          void *user)
{
    counting *n = user;
    (void)c;
    (void)in_memory;
    n->w->missing += waiter_of(n->f, leaf->def) != NULL;
}

static void fuse_list(nd_code *c, nd_op *const *ops, int n, nd_kernels *out)
{
    fuser f = {.c = c, .out = out, .at = -1};
    for (int i = 0; i < n; i++) {
        if (is_passive(c, ops[i]))
            continue;
        if (!nd_loop_op(c, ops[i])) {
            anchor(&f, ops[i]);
            continue;
        }
        waiter w = {.op = ops[i], .fresh = true};
        nd_leaves(c, ops[i], count_missing, &(counting){&f, &w});
        ND_PUSH(c->a, &f.waiting, w);
        ops[i]->mark = f.waiting.n;
    }
    f.from = out->v.n;
    for (int i = 0; i < f.waiting.n; i++)
        if (f.waiting.v[i].op)
            want_op(&f, f.waiting.v[i].op);
    flush(&f);
    sink(c, out);
    nd_fuse_again(c, out);
    for (int i = 0; i < out->v.n; i++)
        if (out->v.v[i]->kind == K_LOOP)
            nd_loop_finish(c, out->v.v[i]);
    for (int i = 0; i < out->v.n; i++)
        name_kernel(out->v.v[i]);
    nd_make_tiles(c, out);
    for (int i = 0; i < n; i++)
        forget(ops[i], c);
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
    nd_table_put(&c->bodies, op->body, k);
}

nd_kernels *nd_body_of(const nd_code *c, const nd_op *repeat)
{
    return nd_table_get(&c->bodies, repeat->body);
}

void nd_fuse(nd_code *c)
{
    const nd_program *p = c->m->program;
    c->bodies.arena = c->a;
    nd_walk(c->m->step, forget, c);
    nd_walk(c->m->step, fuse_body, c);
    c->stage = ND_NEWN(c->a, nd_stage_code, p->nstages);
    for (int s = 0; s < p->nstages; s++) {
        const nd_stage *st = &p->stage[s];
        nd_kernels *list = c->stage[s].list;
        fuse_list(c, st->pre.v, st->pre.n, &list[LIST_PRE]);
        fuse_list(c, st->fwd.v, st->fwd.n, &list[LIST_FWD]);
        fuse_list(c, st->bwd.v, st->bwd.n, &list[LIST_BWD]);
        fuse_list(c, st->wgt.v, st->wgt.n, &list[LIST_WGT]);
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
    nd_overlap(c);
    nd_buckets(c);
    nd_first_sums(c);
    nd_memplan_new(c);
    return c;
}
