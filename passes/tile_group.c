/* tile_group.c - which kernels run tile by tile together.
 *
 *   s = q k   begins; softmax reads s, and p v what that makes: they join, and
 *             s and p stay inside. o = (p v) w needs all heads: it does not.
 */
#include "tiles.h"

/* The kernel of the list that has the op, or NULL. */
static nd_kernel *kernel_of(const nd_group *g, const nd_op *op)
{
    return op && op->mark > 0 ? g->list->v.v[op->mark - 1] : NULL;
}

const nd_tile_axis *nd_group_axis(const nd_group *g, const nd_axis *a)
{
    for (int i = 0; i < g->t.n; i++)
        if (g->t.axis[i].axis == a)
            return &g->t.axis[i];
    return NULL;
}

/* ---- who may join -------------------------------------------------------- */

/* Has the value all axes of the tiles and the inner one, and no others? */
static bool is_square(const nd_group *g, const nd_value *v)
{
    const nd_type *t = &v->type;
    if (t->rank != g->t.n + 1)
        return false;
    for (int i = 0; i < t->rank; i++) {
        const nd_tile_axis *a = nd_group_axis(g, t->axis[i]);
        if (nd_ext_of(g->c, t, i) != (a ? a->ext : g->t.inner_ext) ||
            (!a && t->axis[i] != g->t.inner))
            return false;
    }
    return true;
}

/* Is every axis of the tiles cut in v as it is in the others? */
static bool cut_alike(const nd_group *g, const nd_value *v)
{
    for (int i = 0; i < v->type.rank; i++) {
        const nd_tile_axis *a = nd_group_axis(g, v->type.axis[i]);
        int ext = nd_ext_of(g->c, &v->type, i);
        if (v->type.axis[i] == g->t.inner ? ext != g->t.inner_ext
                                          : a && ext != a->ext)
            return false;
    }
    return true;
}

static bool has_axis(const nd_group *g, const nd_axis *a)
{
    return a == g->t.inner || nd_group_axis(g, a) != NULL;
}

/* Does the op read x[i] at places that only the data tell? */
static bool jumps(const nd_group *g, const nd_op *op)
{
    switch (op->kind) {
    case OP_GATHER:
    case OP_ROLL:
        return has_axis(g, op->axes[0]);
    case OP_CUMSUM:
    case OP_SCATTER_ADD:
    case OP_ACCUM:
        return true;
    default:
        return false;
    }
}

static bool loop_fits(const nd_group *g, const nd_kernel *k)
{
    if (k->ninner != 1 || k->inner_axis[0] != g->t.inner ||
        k->inner[0] != g->t.inner_ext || k->nouter != g->t.n)
        return false;
    for (int i = 0; i < k->nouter; i++) {
        const nd_tile_axis *a = nd_group_axis(g, k->outer_axis[i]);
        if (!a || a->ext != k->outer[i])
            return false;
    }
    for (int i = 0; i < k->nodes.n; i++)
        if (k->nodes.v[i].add || k->nodes.v[i].scan ||
            jumps(g, k->nodes.v[i].op))
            return false;
    return true;
}

static bool product_fits(const nd_group *g, const nd_kernel *k)
{
    const nd_op *op = k->nodes.v[0].op;
    const nd_value *y = op->out[0];
    if (nd_info(g->c, y)->accum || !cut_alike(g, op->in[0]) ||
        !cut_alike(g, op->in[1]) || !cut_alike(g, y))
        return false;
    for (int i = 0; i < g->t.n; i++)
        if (nd_axis_at(&y->type, g->t.axis[i].axis) < 0 &&
            !nd_has_axis(op, g->t.axis[i].axis))
            return false;
    /* Loops over what is summed, which may be empty, clear all of the result:
     * see cg_gemm. */
    int others = 0;
    bool even = true;
    for (int i = 0; i < op->naxes; i++) {
        const nd_type *t = &op->in[0]->type;
        int at = nd_axis_at(t, op->axes[i]);
        t = at < 0 ? &op->in[1]->type : t;
        at = nd_axis_at(t, op->axes[i]);
        others += !nd_group_axis(g, op->axes[i]);
        even &= op->axes[i] != g->t.inner &&
                g->c->exts.v[nd_ext_of(g->c, t, at)].fixed > 0;
    }
    return others <= 1 || even;
}

bool nd_group_fits(const nd_group *g, const nd_kernel *k)
{
    return k && (k->kind == K_LOOP   ? loop_fits(g, k)
                 : k->kind == K_GEMM ? product_fits(g, k)
                                     : false);
}

/* Does op read x itself, or a result of its own elements in place? */
typedef struct direct {
    const nd_value *x;
    bool reads, views;
} direct;

static void see_leaf(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    direct *d = user;
    (void)c;
    if (leaf != d->x)
        return;
    d->reads = true;
    d->views |= in_memory;
}

bool nd_group_reads(nd_code *c, const nd_kernel *k, const nd_value *x)
{
    direct d = {.x = x};
    for (int i = 0; i < k->nodes.n; i++)
        nd_leaves(c, k->nodes.v[i].op, see_leaf, &d);
    return d.reads;
}

static bool reads_plainly(nd_code *c, const nd_kernel *k, const nd_value *x)
{
    for (int i = 0; i < k->nodes.n; i++) {
        nd_op *op = k->nodes.v[i].op;
        direct d = {.x = x};
        nd_leaves(c, op, see_leaf, &d);
        if (k->kind == K_LOOP && d.views)
            return false;
        for (int j = 0; d.reads && k->kind == K_GEMM && j < 2; j++) {
            nd_ref r, own;
            bool same = nd_ref_of(c, x, &own) && nd_ref_of(c, op->in[j], &r) &&
                        r.root == own.root && r.value == own.value;
            if (same && !nd_same_axes(&op->in[j]->type, &x->type))
                return false;
        }
    }
    return true;
}

/* Is v made and used up by kernels that may all be in the group? */
static bool stays_inside(const nd_group *g, const nd_value *v)
{
    const nd_vinfo *info = nd_info(g->c, v);
    const nd_kernel *made = kernel_of(g, v->def);
    if (!is_square(g, v) || info->alias || info->accum || info->yield >= 0 ||
        info->nuses != info->users.n || !nd_group_fits(g, made))
        return false;
    for (int i = 0; i < info->users.n; i++) {
        const nd_kernel *k = kernel_of(g, info->users.v[i]);
        if (!nd_group_fits(g, k) || (k != made && !reads_plainly(g->c, k, v)))
            return false;
    }
    return true;
}

/* ---- growing ------------------------------------------------------------- */

static void join(nd_group *g, const nd_kernel *k)
{
    g->grown |= !g->member[k->index];
    g->member[k->index] = true;
    g->first = k->index < g->first ? k->index : g->first;
    g->last = k->index > g->last ? k->index : g->last;
}

static bool is_inside(const nd_group *g, const nd_value *v)
{
    for (int i = 0; i < g->t.inside.n; i++)
        if (g->t.inside.v[i] == v)
            return true;
    return false;
}

static void join_around(nd_code *c, nd_value *v, bool in_memory, void *user)
{
    nd_group *g = user;
    (void)in_memory;
    if (!kernel_of(g, v->def) || is_inside(g, v) || !stays_inside(g, v))
        return;
    ND_PUSH(c->a, &g->t.inside, v);
    join(g, kernel_of(g, v->def));
    const nd_vinfo *info = nd_info(c, v);
    for (int i = 0; i < info->users.n; i++)
        join(g, kernel_of(g, info->users.v[i]));
}

static bool is_stored(const nd_kernel *k, int node)
{
    return k->nodes.v[node].op->nout &&
           (k->kind == K_GEMM || k->nodes.v[node].stored);
}

void nd_group_grow(nd_group *g)
{
    join(g, g->list->v.v[g->seed]);
    do {
        g->grown = false;
        for (int i = g->first; i <= g->last; i++) {
            nd_kernel *k = g->list->v.v[i];
            for (int j = 0; g->member[i] && j < k->nodes.n; j++) {
                nd_leaves(g->c, k->nodes.v[j].op, join_around, g);
                if (is_stored(k, j))
                    join_around(g->c, k->nodes.v[j].op->out[0], true, g);
            }
        }
    } while (g->grown);
    /* What never leaves its loop nest has no place. */
    int n = 0;
    for (int i = 0; i < g->t.inside.n; i++) {
        nd_value *v = g->t.inside.v[i];
        const nd_kernel *k = kernel_of(g, v->def);
        if (k->kind == K_GEMM || nd_node_of((nd_kernel *)k, v)->stored)
            g->t.inside.v[n++] = v;
    }
    g->t.inside.n = n;
}

/* ---- order --------------------------------------------------------------- */

typedef struct needs {
    const nd_group *g;
    const nd_kernel *k;
    bool tiles, after;               /* reads what those make */
    bool unfinished;                 /* reads sums that are not complete, or
                                        elements of another tile */
} needs;

static void need_leaf(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    needs *n = user;
    const nd_group *g = n->g;
    const nd_kernel *made = kernel_of(g, leaf->def);
    (void)c;
    (void)in_memory;
    if (!made || made == n->k)
        return;
    n->tiles |= g->member[made->index];
    n->after |= g->after[made->index];
    if (!g->member[made->index] || is_inside(g, leaf))
        return;
    for (int i = 0; i < g->t.n; i++)
        n->unfinished |= nd_axis_at(&leaf->type, g->t.axis[i].axis) < 0;
    n->unfinished |= !reads_plainly(g->c, n->k, leaf);
}

static void need_of_body(nd_op *op, void *user)
{
    needs *n = user;
    nd_leaves(n->g->c, op, need_leaf, n);
}

static needs needs_of(const nd_group *g, const nd_kernel *k)
{
    needs n = {.g = g, .k = k};
    for (int i = 0; i < k->nodes.n; i++) {
        nd_op *op = k->nodes.v[i].op;
        nd_leaves(g->c, op, need_leaf, &n);
        if (op->body)
            nd_walk(op->body, need_of_body, &n);
    }
    return n;
}

bool nd_group_order(nd_group *g)
{
    for (int i = g->first; i <= g->last; i++) {
        const nd_kernel *k = g->list->v.v[i];
        needs n = k ? needs_of(g, k) : (needs){0};
        if (!g->member[i])
            g->after[i] = n.tiles || n.after;
        else if (n.after || n.unfinished)
            return false;
    }
    return true;
}
