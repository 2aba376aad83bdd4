/* fuse_loop.c - which ops share a loop nest, and in which pass each runs.
 *
 * A nest runs over outer axes; per point of those it makes passes over inner
 * axes. softmax over kv of [batch, heads, seq, kv]:
 *
 *   outer batch, heads, seq; inner kv
 *   pass 0   m = max s           a fold: a row value afterwards
 *   pass 1   e = exp(s - m); t = sum e        e is kept: exp is expensive
 *   pass 2   p = e / t           stored
 *
 * A reduce over outer axes (the gradient of a gain) adds to memory in the
 * same nest. Until the first fold decides, all axes count as outer.
 */
#include "passes.h"

#include <string.h>

/* Kept rows lie on the stack of the rank's thread, which has STACK_BYTES (16
 * MiB, runtime/main.c): one row of at most 64 KiB, one nest of 1 MiB. */
enum { MAX_NODES = 48, MAX_KEEP = 1 << 14, MAX_KEEP_ALL = 1 << 18 };

typedef struct space {
    int n;
    int ext[ND_MAX_RANK];
    nd_axis *axis[ND_MAX_RANK];
} space;

static void add_axes(nd_code *c, space *s, const nd_type *t)
{
    for (int i = 0; i < t->rank; i++) {
        bool known = false;
        for (int j = 0; j < s->n; j++)
            known |= s->axis[j] == t->axis[i];
        if (known)
            continue;
        s->axis[s->n] = t->axis[i];
        s->ext[s->n++] = nd_ext_of(c, t, i);
    }
}

static space space_of(nd_code *c, const nd_op *op)
{
    space s = {0};
    switch (op->kind) {
    case OP_REDUCE:
        add_axes(c, &s, &op->in[0]->type);
        break;
    case OP_ACCUM:
        add_axes(c, &s, &nd_accum_source(c, op)->type);
        break;
    case OP_SCATTER_ADD:
        add_axes(c, &s, &op->in[1]->type);
        add_axes(c, &s, &op->in[0]->type);
        break;
    default:
        add_axes(c, &s, &op->out[0]->type);
    }
    return s;
}

static bool has(const int *v, int n, int ext)
{
    for (int i = 0; i < n; i++)
        if (v[i] == ext)
            return true;
    return false;
}

static bool subset(const int *a, int na, const int *b, int nb)
{
    for (int i = 0; i < na; i++)
        if (!has(b, nb, a[i]))
            return false;
    return true;
}

static bool same_set(const int *a, int na, const int *b, int nb)
{
    return na == nb && subset(a, na, b, nb);
}

bool nd_loop_op(const nd_code *c, const nd_op *op)
{
    if (op->kind == OP_ACCUM)
        return true;
    return op->nout == 1 && nd_class_of(c, op->out[0]) == V_LOOP;
}

nd_node *nd_node_of(nd_kernel *k, const nd_value *v)
{
    if (k->kind != K_LOOP)
        return NULL;
    for (int i = 0; i < k->nodes.n; i++)
        if (k->nodes.v[i].op == v->def && v->def)
            return &k->nodes.v[i];
    return NULL;
}

/* ---- joining ------------------------------------------------------------ */

typedef struct check {
    nd_kernel *k;
    bool legal, shares;
} check;

static void check_leaf(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    check *ck = user;
    (void)c;
    const nd_node *n = nd_node_of(ck->k, leaf);
    if (!n)
        return;
    if (in_memory || n->add)
        ck->legal = false;
    ck->shares = true;
}

static void loads_of(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    (void)c;
    (void)in_memory;
    check *ck = user;
    if (leaf == (const nd_value *)ck->k)
        ck->shares = true;
}

/* Does any op of the kernel read the value as well? */
bool nd_loop_reads(nd_code *c, nd_kernel *k, nd_value *v)
{
    check ck = {.k = (nd_kernel *)v};
    for (int i = 0; i < k->nodes.n && !ck.shares; i++)
        nd_leaves(c, k->nodes.v[i].op, loads_of, &ck);
    return ck.shares;
}

static void check_shared(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    check *ck = user;
    (void)in_memory;
    if (!ck->shares && leaf->type.rank > 0)
        ck->shares = nd_loop_reads(c, ck->k, leaf);
}

static const char *adds_to(const nd_code *c, const nd_op *op)
{
    if (op->kind == OP_ACCUM)
        return op->name;
    const nd_op *acc = nd_info(c, op->out[0])->accum;
    return acc ? acc->name : NULL;
}

/* One pointer per gradient: two adds to one parameter do not share a nest. */
static bool adds_clash(const nd_code *c, const nd_kernel *k, const nd_op *op)
{
    const char *name = adds_to(c, op);
    for (int i = 0; name && i < k->nodes.n; i++) {
        const char *other = adds_to(c, k->nodes.v[i].op);
        if (other && strcmp(name, other) == 0)
            return true;
    }
    return false;
}

/* Moves the axes in `inner` (of the order in which k has them) inwards. */
static void split(nd_kernel *k, const int *inner, int n)
{
    int keep = 0;
    for (int i = 0; i < k->nouter; i++) {
        if (has(inner, n, k->outer[i])) {
            k->inner[k->ninner] = k->outer[i];
            k->inner_axis[k->ninner++] = k->outer_axis[i];
        } else {
            k->outer[keep] = k->outer[i];
            k->outer_axis[keep++] = k->outer_axis[i];
        }
    }
    k->nouter = keep;
    k->split = true;
}

static void grow(nd_kernel *k, const space *s)
{
    for (int i = 0; i < s->n; i++)
        if (!has(k->outer, k->nouter, s->ext[i])) {
            k->inner[k->ninner] = s->ext[i];
            k->inner_axis[k->ninner++] = s->axis[i];
        }
    k->split = true;
    for (int i = 0; i < k->nodes.n; i++)
        k->nodes.v[i].row = true;
}

/* The reduced axes as extents; returns how many. */
static int reduced(nd_code *c, const nd_op *op, int *over)
{
    const nd_type *t = &op->in[0]->type;
    for (int i = 0; i < op->naxes; i++)
        over[i] = nd_ext_of(c, t, nd_axis_at(t, op->axes[i]));
    return op->naxes;
}

/* Decides how a reduce joins: as a fold over the inner axes, or adding to
 * memory. A sum over all axes adds up rows, which can be shared out. False if
 * it can do neither here. */
static bool fit_reduce(nd_code *c, nd_kernel *k, nd_node *n)
{
    int over[ND_MAX_RANK], m = reduced(c, n->op, over);
    if (n->row || k->nouter + k->ninner == 0) {
        n->add = true;
        return true;
    }
    if (!k->split) {
        int last = k->outer[k->nouter - 1];
        n->fold = has(over, m, last) && (m == 1 || m < k->nouter);
        n->add = !n->fold;
        if (n->fold)
            split(k, over, m);
        else if (has(over, m, last))
            split(k, &last, 1);
        return true;
    }
    if (same_set(over, m, k->inner, k->ninner))
        n->fold = true;
    else
        n->add = true;
    return n->fold || subset(k->inner, k->ninner, over, m) ||
           !has(over, m, k->inner[k->ninner - 1]);
}

static bool place(nd_code *c, nd_kernel *k, nd_op *op, const space *s)
{
    nd_node n = {.op = op};
    int all[2 * ND_MAX_RANK];
    memcpy(all, k->outer, sizeof k->outer);
    memcpy(all + k->nouter, k->inner, sizeof *k->inner * (size_t)k->ninner);
    if (same_set(s->ext, s->n, all, k->nouter + k->ninner)) {
        n.row = false;
    } else if (k->split && same_set(s->ext, s->n, k->outer, k->nouter)) {
        n.row = true;
    } else if (!k->split && k->nouter &&
               subset(k->outer, k->nouter, s->ext, s->n) &&
               !has(k->outer, k->nouter, s->ext[s->n - 1])) {
        grow(k, s);
    } else {
        return false;
    }
    if (op->kind == OP_REDUCE && !fit_reduce(c, k, &n))
        return false;
    if (op->kind == OP_ACCUM || op->kind == OP_SCATTER_ADD)
        n.add = true;
    if (op->kind == OP_CUMSUM) {
        const nd_type *t = &op->out[0]->type;
        int along = nd_ext_of(c, t, nd_axis_at(t, op->axes[0]));
        split(k, &along, 1);
        n.scan = true;
    }
    ND_PUSH(c->a, &k->nodes, n);
    return true;
}

/* A running sum has its nest to itself: elements follow each other there. */
static bool alone(const nd_kernel *k)
{
    return k->nodes.n && k->nodes.v[0].scan;
}

/* Would the threads still share out the nest, or one of them run all of it for
 * a sum that does not go with the others? */
static bool stays_shared(nd_code *c, const nd_kernel *k, nd_op *op,
                         const space *s)
{
    nd_node nodes[MAX_NODES];
    nd_kernel t = *k;                /* as it would be */
    memcpy(nodes, k->nodes.v, sizeof *nodes * (size_t)k->nodes.n);
    t.nodes.v = nodes;
    t.nodes.cap = MAX_NODES;
    return place(c, &t, op, s) && nd_shares_well(c, &t);
}

bool nd_loop_join(nd_code *c, nd_kernel *k, nd_op *op)
{
    if (k->kind != K_LOOP || k->nodes.n >= MAX_NODES || alone(k) ||
        op->kind == OP_CUMSUM || adds_clash(c, k, op))
        return false;
    check ck = {.k = k, .legal = true};
    nd_leaves(c, op, check_leaf, &ck);
    if (!ck.legal)
        return false;
    nd_leaves(c, op, check_shared, &ck);
    if (!ck.shares)
        return false;
    space s = space_of(c, op);
    return stays_shared(c, k, op, &s) && place(c, k, op, &s);
}

nd_kernel *nd_loop_new(nd_code *c, nd_op *op)
{
    nd_kernel *k = ND_NEW(c->a, nd_kernel);
    space s = space_of(c, op);
    k->kind = K_LOOP;
    k->phase = op->phase;
    k->nouter = s.n;
    memcpy(k->outer, s.ext, sizeof s.ext);
    memcpy(k->outer_axis, s.axis, sizeof s.axis);
    place(c, k, op, &s);
    return k;
}

/* May `late`, whose axes are all alike so far, be split as `early` is? What it
 * adds to memory are sums over outer axes then. */
static bool splits_like(nd_code *c, const nd_kernel *late,
                        const nd_kernel *early, const int *all, int n)
{
    int both[2 * ND_MAX_RANK];
    memcpy(both, early->outer, sizeof early->outer);
    memcpy(both + early->nouter, early->inner,
           sizeof *early->inner * (size_t)early->ninner);
    for (int i = 0; i < late->nodes.n; i++) {
        const nd_op *op = late->nodes.v[i].op;
        int over[ND_MAX_RANK], m = op->kind == OP_REDUCE
                                       ? reduced(c, op, over) : 0;
        if (late->nodes.v[i].add && !m)
            return false;
        for (int j = 0; j < m; j++)
            if (has(early->inner, early->ninner, over[j]))
                return false;
    }
    return same_set(both, early->nouter + early->ninner, all, n);
}

/* Where the ops of `early` stand in the nest of `late`: 1 as row ops, 0 as they
 * are, -1 nowhere. */
static int standing(nd_code *c, const nd_kernel *late, const nd_kernel *early)
{
    int all[2 * ND_MAX_RANK], n = late->nouter + late->ninner;
    memcpy(all, late->outer, sizeof late->outer);
    memcpy(all + late->nouter, late->inner,
           sizeof *late->inner * (size_t)late->ninner);
    if (early->split && !late->split)
        return splits_like(c, late, early, all, n) ? 0 : -1;
    if (early->split)
        return late->split &&
                       same_set(early->outer, early->nouter, late->outer,
                                late->nouter) &&
                       same_set(early->inner, early->ninner, late->inner,
                                late->ninner)
                   ? 0 : -1;
    for (int i = 0; i < early->nodes.n; i++)
        if (early->nodes.v[i].add)
            return -1;
    if (same_set(early->outer, early->nouter, all, n))
        return 0;
    return late->split && same_set(early->outer, early->nouter, late->outer,
                                   late->nouter) ? 1 : -1;
}

/* Does an op of `late` need a result of `early` in memory? */
typedef struct need {
    nd_kernel *early;
    bool memory;
} need;

static void check_need(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    need *n = user;
    (void)c;
    const nd_node *made = nd_node_of(n->early, leaf);
    if (made && (in_memory || made->add))
        n->memory = true;
}

bool nd_loop_absorb(nd_code *c, nd_kernel *late, const nd_kernel *early)
{
    int row = standing(c, late, early);
    need n = {.early = (nd_kernel *)early};
    if (row < 0 || early->nodes.n + late->nodes.n > MAX_NODES ||
        alone(early) || alone(late))
        return false;
    for (int i = 0; i < late->nodes.n; i++) {
        nd_leaves(c, late->nodes.v[i].op, check_need, &n);
        if (n.memory || adds_clash(c, early, late->nodes.v[i].op))
            return false;
    }
    if (early->split && !late->split)
        split(late, early->inner, early->ninner);
    nd_kernel old = *late;
    memset(&late->nodes, 0, sizeof late->nodes);
    for (int i = 0; i < early->nodes.n; i++) {
        nd_node x = early->nodes.v[i];
        x.row |= row == 1;
        ND_PUSH(c->a, &late->nodes, x);
    }
    for (int i = 0; i < old.nodes.n; i++)
        ND_PUSH(c->a, &late->nodes, old.nodes.v[i]);
    if (nd_shares_well(c, late))
        return true;
    *late = old;
    return false;
}

/* ---- passes ------------------------------------------------------------- */

typedef struct timing {
    nd_kernel *k;
    int pass;
} timing;

static void leaf_pass(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    (void)c;
    (void)in_memory;
    timing *t = user;
    const nd_node *n = nd_node_of(t->k, leaf);
    if (!n)
        return;
    int ready = n->pass + n->fold;
    t->pass = ready > t->pass ? ready : t->pass;
}

static void time_nodes(nd_code *c, nd_kernel *k)
{
    for (int i = 0; i < k->nodes.n; i++) {
        nd_node *n = &k->nodes.v[i];
        timing t = {.k = k};
        nd_leaves(c, n->op, leaf_pass, &t);
        n->pass = t.pass;
        if (!n->row && n->pass + 1 > k->npasses)
            k->npasses = n->pass + 1;
    }
}

static bool used_elsewhere(const nd_code *c, nd_kernel *k, const nd_value *v)
{
    const nd_vinfo *info = nd_info(c, v);
    if (info->hard)
        return true;
    for (int i = 0; i < info->users.n; i++) {
        bool here = false;
        for (int j = 0; j < k->nodes.n; j++)
            here |= k->nodes.v[j].op == info->users.v[i];
        if (!here)
            return true;
    }
    return false;
}

static bool expensive(const nd_op *op)
{
    return op->kind == OP_RANDOM || op->kind == OP_NORMAL ||
           op->kind == OP_GATHER ||
           (op->kind == OP_MAP && nd_ews[op->sub].cost >= 8);
}

static int kept_rows(const nd_kernel *k)
{
    int n = 0;
    for (int i = 0; i < k->nodes.n; i++)
        n += k->nodes.v[i].keep;
    return n;
}

static void keep_leaf(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    timing *t = user;
    (void)in_memory;
    nd_node *n = nd_node_of(t->k, leaf);
    if (!n || n->row || n->fold)
        return;
    if (n->pass < t->pass) {
        int64_t row = 1;
        for (int i = 0; i < t->k->ninner; i++)
            row *= c->exts.v[t->k->inner[i]].max;
        if (n->stored || n->keep)
            return;
        if (expensive(n->op) && row <= MAX_KEEP &&
            row * (kept_rows(t->k) + 1) <= MAX_KEEP_ALL) {
            n->keep = true;
            return;
        }
    }
    nd_leaves(c, n->op, keep_leaf, t);
}

void nd_loop_finish(nd_code *c, nd_kernel *k)
{
    if (!k->split && k->nouter)
        split(k, &k->outer[k->nouter - 1], 1);
    time_nodes(c, k);
    for (int i = 0; i < k->nodes.n; i++) {
        nd_node *n = &k->nodes.v[i];
        if (n->op->kind == OP_ACCUM)
            continue;
        nd_value *v = n->op->out[0];
        n->stored = n->add ? !nd_info(c, v)->accum
                           : n->scan || used_elsewhere(c, k, v);
    }
    for (int p = k->npasses - 1; p > 0; p--)
        for (int i = 0; i < k->nodes.n; i++) {
            const nd_node *n = &k->nodes.v[i];
            timing t = {.k = k, .pass = p};
            if (!n->row && n->pass == p &&
                (n->stored || n->fold || n->add || n->keep))
                nd_leaves(c, n->op, keep_leaf, &t);
        }
    nd_share_out(c, k);
}
