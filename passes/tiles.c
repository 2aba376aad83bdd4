/* tiles.c - kernels that run tile by tile, so that what lies between them never
 * reaches memory.
 *
 *   s = q k     [batch, seq, heads, kv]      one batch, one of heads, 64 of seq
 *   p = softmax of s                         at a time: s and p are 64 rows of
 *   o = p v     [batch, seq, heads, head]    kv elements each
 *
 * It begins with a product of two activations that is far larger than both.
 * What makes or reads that, and nobody else needs, joins: a tile has one index
 * or a block of every axis but the inner one, which it has whole or as far as
 * tile_bounds.c says, and each of its kernels must be able to run on that
 * alone. A product may sum over those axes, as backward does for k and v: its
 * parts are then added up in one thread, in order.
 *
 * Whatever does not fit stays as it is: tiles are for speed.
 */
#include "tiles.h"

#include <string.h>

enum {
    CACHE_BYTES = 1 << 19,           /* of a tile's values, if it can be */
    MOST_ROWS = 64, LEAST_ROWS = 16
};

static bool is_narrow_axis(const nd_code *c, int ext)
{
    return c->exts.v[ext].max == 1;
}

/* ---- where it begins ----------------------------------------------------- */

static int64_t most_elements(nd_code *c, const nd_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= c->exts.v[nd_ext_of(c, t, i)].max;
    return n;
}

/* A product of two activations that is far larger than both. */
static bool is_seed(nd_code *c, const nd_kernel *k)
{
    if (k->kind != K_GEMM)
        return false;
    const nd_op *op = k->nodes.v[0].op;
    int64_t n = most_elements(c, &op->out[0]->type);
    for (int i = 0; i < 2; i++)
        if (nd_param_of(op->in[i]) || nd_is_weight_copy(op->in[i]) ||
            ND_FAR_LARGER * most_elements(c, &op->in[i]->type) >= n)
            return false;
    return true;
}

/* The axes of the product: `rows` is the operand with the one that is taken in
 * blocks, and of the other operand's one is the inner one. */
static bool choose_axes(nd_group *g, int rows)
{
    nd_code *c = g->c;
    const nd_op *op = g->list->v.v[g->seed]->nodes.v[0].op;
    const nd_type *t = &op->out[0]->type;
    int64_t most = 1;
    g->t = (nd_tiles){.blocked = -1};
    for (int i = 0; i < t->rank; i++) {
        nd_axis *a = t->axis[i];
        int ext = nd_ext_of(c, t, i);
        if (c->exts.v[ext].piped || a->route)
            return false;
        bool of_rows = nd_axis_at(&op->in[rows]->type, a) >= 0;
        bool of_other = nd_axis_at(&op->in[!rows]->type, a) >= 0;
        if (!of_rows && !is_narrow_axis(c, ext)) {
            if (g->t.inner)
                return false;
            g->t.inner = a;
            g->t.inner_ext = ext;
            continue;
        }
        if (!of_other && c->exts.v[ext].max > most) {
            most = c->exts.v[ext].max;
            g->t.blocked = g->t.n;
        }
        g->t.axis[g->t.n++] = (nd_tile_axis){.axis = a, .ext = ext};
    }
    return g->t.inner && g->t.blocked >= 0;
}

/* ---- sizes --------------------------------------------------------------- */

/* Axes that no product sums over come first: threads share them out. */
static void sort_axes(nd_group *g)
{
    nd_tile_axis blocked = g->t.axis[g->t.blocked], sorted[ND_MAX_RANK];
    int n = 0;
    for (int i = 0; i < g->t.n; i++)
        for (int k = g->first; k <= g->last; k++) {
            const nd_kernel *x = g->list->v.v[k];
            if (g->member[k] && x->kind == K_GEMM &&
                nd_has_axis(x->nodes.v[0].op, g->t.axis[i].axis))
                g->t.axis[i].serial = true;
        }
    for (int serial = 0; serial < 2; serial++)
        for (int i = 0; i < g->t.n; i++)
            if (g->t.axis[i].serial == serial && i != g->t.blocked)
                sorted[n++] = g->t.axis[i];
    blocked.serial = g->t.axis[g->t.blocked].serial;
    int at = n;
    while (at > 0 && !blocked.serial && sorted[at - 1].serial)
        at--;
    memmove(sorted + at + 1, sorted + at, sizeof *sorted * (size_t)(n - at));
    sorted[at] = blocked;
    g->t.blocked = at;
    memcpy(g->t.axis, sorted, sizeof *sorted * (size_t)g->t.n);
}

/* As many rows as lie in the cache with all that a tile has of them. */
static int64_t rows_of(const nd_group *g)
{
    int64_t row = 0;
    for (int i = 0; i < g->t.inside.n; i++)
        row += g->c->exts.v[g->t.inner_ext].max *
               (int64_t)nd_dtype_size(g->t.inside.v[i]->type.dtype);
    int64_t n = CACHE_BYTES / row / LEAST_ROWS * LEAST_ROWS;
    return n > MOST_ROWS ? MOST_ROWS : n < LEAST_ROWS ? LEAST_ROWS : n;
}

static void set_parts(nd_group *g)
{
    for (int i = 0; i < g->t.n; i++) {
        nd_tile_axis *a = &g->t.axis[i];
        const nd_ext *e = &g->c->exts.v[a->ext];
        int64_t most = i == g->t.blocked ? rows_of(g) : 1;
        most = most < e->max ? most : e->max;
        bool even = most == 1 || (e->fixed >= 0 && e->fixed % most == 0);
        a->part = nd_tile_ext(g->c, a->ext, most, even, false);
    }
    g->t.inner_part = g->t.inner_ext;
}

/* Would all of it be one thread's work? */
static bool is_lonely(const nd_group *g)
{
    bool serial = false;
    for (int i = 0; i < g->t.n; i++) {
        const nd_tile_axis *a = &g->t.axis[i];
        serial |= a->serial;
        if (!a->serial && g->c->exts.v[a->ext].max > g->c->exts.v[a->part].max)
            return false;
    }
    return serial;
}

/* ---- the kernel ---------------------------------------------------------- */

/* What is there at the same time has places of its own. */
static void place_inside(nd_code *c, nd_tiles *t)
{
    nd_item **item = ND_NEWN(c->a, nd_item *, t->inside.n);
    for (int i = 0; i < t->inside.n; i++) {
        const nd_value *v = t->inside.v[i];
        nd_ref r;
        item[i] = ND_NEW(c->a, nd_item);
        nd_ref_of(c, v, &r);
        size_t n = nd_dtype_size(v->type.dtype);
        for (int k = 0; k < r.rank; k++)
            n *= (size_t)c->exts.v[r.ext[k]].max;
        *item[i] = (nd_item){.bytes = (n + 63) & ~(size_t)63, .from = t->v.n};
        for (int k = 0; k < t->v.n; k++) {
            bool there = nd_group_reads(c, t->v.v[k], v);
            for (int j = 0; j < t->v.v[k]->nodes.n; j++)
                there |= t->v.v[k]->nodes.v[j].op == v->def;
            if (there) {
                item[i]->from = k < item[i]->from ? k : item[i]->from;
                item[i]->to = k;
            }
        }
    }
    t->bytes = nd_pack(c->a, item, t->inside.n);
    for (int i = 0; i < t->inside.n; i++)
        ND_PUSH(c->a, &t->at, item[i]->at);
}

static nd_kernel *tiles_kernel(nd_group *g)
{
    nd_code *c = g->c;
    nd_kernel *k = ND_NEW(c->a, nd_kernel);
    nd_tiles *t = ND_NEW(c->a, nd_tiles);
    *t = g->t;
    const nd_kernel *first = g->list->v.v[g->seed];
    for (int i = g->first; i <= g->last; i++) {
        nd_kernel *x = g->list->v.v[i];
        if (!g->member[i])
            continue;
        x->tiles = t;
        x->share = (nd_share){.kind = SHARE_NOT};
        for (int j = 0; x->kind == K_LOOP && j < x->nouter; j++)
            x->outer[j] = nd_group_axis(g, x->outer_axis[j])->part;
        for (int j = 0; j < x->nodes.n; j++)
            ND_PUSH(c->a, &k->nodes, x->nodes.v[j]);
        ND_PUSH(c->a, &t->v, x);
    }
    for (int i = 0; i < t->inside.n; i++)
        nd_info(c, t->inside.v[i])->tiles = t;
    nd_bound_tiles(c, t);
    for (int i = 0; i < t->v.n; i++)
        if (t->v.v[i]->kind == K_LOOP)
            t->v.v[i]->inner[0] = t->inner_part;
    place_inside(c, t);
    k->kind = K_TILES;
    k->tiles = t;
    k->phase = first->phase;
    k->op = first->op;
    k->name = first->name;
    k->loc = first->loc;
    return k;
}

static void forget_mark(nd_op *op, void *user)
{
    (void)user;
    op->mark = 0;
}

/* op->mark is the number of its kernel + 1. */
static void number(nd_kernels *list, int from, int to)
{
    for (int i = from; i < to; i++) {
        nd_kernel *k = list->v.v[i];
        if (k)
            k->index = i;
        for (int j = 0; k && j < k->nodes.n; j++) {
            k->nodes.v[j].op->mark = i + 1;
            if (k->body)
                nd_walk(k->nodes.v[j].op->body, forget_mark, NULL);
        }
    }
}

static void replace(nd_group *g)
{
    nd_kernel **at = g->list->v.v + g->first;
    int total = g->last + 1 - g->first, n = 0;
    nd_kernel **old = ND_NEWN(g->c->a, nd_kernel *, total);
    memcpy(old, at, sizeof *old * (size_t)total);
    nd_kernel *tiles = tiles_kernel(g);
    for (int i = 0; i < total; i++)
        if (!g->member[g->first + i] && !g->after[g->first + i])
            at[n++] = old[i];
    at[n++] = tiles;
    for (int i = 0; i < total; i++)
        if (g->after[g->first + i])
            at[n++] = old[i];
    while (n < total)
        at[n++] = NULL;
    number(g->list, g->first, g->last + 1);
}

/* `flags`, all false: two for each kernel of the list. */
static void make_from(nd_code *c, nd_kernels *list, int seed, int rows,
                      bool *flags)
{
    nd_group g = {.c = c, .list = list, .seed = seed, .first = seed,
                  .last = seed, .member = flags, .after = flags + list->v.n};
    if (!choose_axes(&g, rows) || !nd_group_fits(&g, list->v.v[seed]))
        return;
    nd_group_grow(&g);
    if (g.t.inside.n && nd_group_order(&g)) {
        sort_axes(&g);
        set_parts(&g);
        if (!is_lonely(&g))
            replace(&g);
    }
    size_t used = sizeof *flags * (size_t)(g.last + 1 - g.first);
    memset(g.member + g.first, 0, used);
    memset(g.after + g.first, 0, used);
}

static void close_holes(nd_kernels *list)
{
    int n = 0;
    for (int i = 0; i < list->v.n; i++)
        if (list->v.v[i])
            list->v.v[n++] = list->v.v[i];
    list->v.n = n;
}

void nd_make_tiles(nd_code *c, nd_kernels *list)
{
    ND_VEC(nd_kernel *) seeds = {0};
    for (int i = 0; i < list->v.n; i++)
        if (is_seed(c, list->v.v[i]))
            ND_PUSH(c->a, &seeds, list->v.v[i]);
    if (!seeds.n)
        return;
    bool *flags = ND_NEWN(c->a, bool, 2 * list->v.n);
    number(list, 0, list->v.n);
    for (int i = 0; i < seeds.n; i++)
        for (int rows = 0; rows < 2 && !seeds.v[i]->tiles; rows++)
            make_from(c, list, seeds.v[i]->index, rows, flags);
    close_holes(list);
    number(list, 0, list->v.n);
}

static void take_part(nd_ref *r, const nd_axis *a, int ext, int part,
                      bool moves)
{
    int k = nd_ref_axis(r, a);
    if (k < 0 || r->ext[k] != ext)
        return;
    if (r->stride[k].k && moves)
        r->term[r->nterms++] = (nd_term){.ext = part, .base = ext,
                                         .stride = r->stride[k]};
    r->ext[k] = part;
}

void nd_tile_part(const nd_tiles *t, bool shared, nd_ref *r)
{
    for (int i = 0; i < t->n; i++) {
        const nd_tile_axis *a = &t->axis[i];
        if (!shared || !a->serial)
            take_part(r, a->axis, a->ext, a->part, true);
    }
    if (!shared)
        take_part(r, t->inner, t->inner_ext, t->inner_part, t->begins);
}
