/* context_ring.c - attention where blocks of keys move around a ring of ranks.
 *
 *   query -> ring, query_block    key -> ring, key_block    shard ring -> cp
 *   hop 0: every rank's own block
 *   repeat hop: K and V of the next rank, and the online softmax
 *     K = roll[ring: 1] K, V likewise
 *     m' = max(m, max X)   c = exp(m - m')   E = exp(X - m')
 *     l = l c + sum E      o = o c + sum(E V)
 *   O = o / l
 *
 * The maxima are constants to the gradient (the softmax does not depend on
 * them), so backward reads E alone, and nothing of the size of o is kept per
 * hop. What depends on inputs alone is not moved: every rank makes it for the
 * keys that it has at the time.
 *
 * In the order of context_zigzag.c a block is two chunks. Behind hop 0 a causal
 * mask shows two of the four pairs of a query's and a key's chunk: always (1, 0),
 * and (0, 0) or (1, 1). Those two are gathered along an axis `pair`.
 */
#include "context.h"

#include <math.h>
#include <string.h>

/* One pass over the region with the keys of one hop. */
typedef struct turn {
    cx *c;
    const cx_region *r;
    nd_axis *ring, *rows, *keys;     /* rows, keys: the blocks' axes */
    nd_axis *pair;                   /* of chunks, or NULL: whole blocks */
    nd_axis *block;                  /* ... which are halves of such a block */
    nd_axis *row_half, *key_half;
    nd_value *row_of, *key_of;       /* [ring, pair]: which half */
    nd_builder *b;
    nd_table *shared;                /* what all hops have alike */
    nd_table own;                    /* the region's value -> this hop's */
    nd_value *at;                    /* the global index of the keys */
} turn;

static nd_value *map2(nd_builder *b, nd_ew e, nd_value *x, nd_value *y)
{
    return nd_map(b, e, x, y, NULL);
}

/* where(x == bad, instead, x) */
static nd_value *guard(nd_builder *b, nd_value *x, double bad, double instead)
{
    nd_value *hit = map2(b, EW_EQ, x, nd_const(b, ND_F32, bad));
    return nd_map(b, EW_WHERE, hit, nd_const(b, ND_F32, instead), x);
}

/* ---- axes ---------------------------------------------------------------- */

static nd_axis *ring_of(cx *c, int mesh)
{
    nd_module *m = c->m;
    if (c->ring[mesh])
        return c->ring[mesh];
    int n = m->mesh.size[mesh];
    nd_axis *a = nd_axis_new(m, "ring", n, nd_nowhere);
    nd_rule first = {.scope = SCOPE_ALL, .axis = a,
                     .mesh = {1, {(uint8_t)mesh}}, .loc = nd_nowhere};
    cx_first_rule(m, first);
    c->hop[mesh] = nd_axis_new(m, "hop", n - 1, nd_nowhere);
    return c->ring[mesh] = a;
}

/* One of `n` equal parts of an axis; `what` it is called. */
static nd_axis *part_of(cx *c, nd_axis *a, int n, const char *what)
{
    nd_axis *part = nd_table_get(&c->part, a);
    if (part && part->size * n == a->size)
        return part;
    part = nd_axis_new(c->m, nd_fmt(c->m->ctx->arena, "%s_%s", a->name, what),
                       a->size / n, a->loc);
    nd_table_put(&c->part, a, part);
    return part;
}

static nd_axis *block_of(cx *c, nd_axis *a, int n)
{
    return part_of(c, a, n, "block");
}

static nd_axis *chunk_of(cx *c, nd_axis *block)
{
    return part_of(c, block, 2, "chunk");
}

/* The axis of that name that the pass made, or makes now. */
static nd_axis *axis_called(cx *c, const char *name, int64_t size)
{
    nd_axis *a = nd_table_get(&c->named, name);
    if (!a) {
        a = nd_axis_new(c->m, name, size, nd_nowhere);
        nd_table_put(&c->named, name, a);
    }
    return a;
}

/* A type of the region with the ring's axes. */
static nd_type ring_type(const turn *t, const nd_type *x)
{
    nd_type y = {.dtype = x->dtype};
    bool query = nd_axis_at(x, t->r->query) >= 0;
    for (int i = 0; i < x->rank; i++) {
        bool key = x->axis[i] == t->r->key;
        if (x->axis[i] == t->r->query || (key && !query)) {
            y.axis[y.rank++] = t->ring;
            if (t->pair)
                y.axis[y.rank++] = t->pair;
        }
        y.axis[y.rank++] = x->axis[i] == t->r->query ? t->rows
                           : key                     ? t->keys
                                                     : x->axis[i];
    }
    return y;
}

/* ---- values of a hop ----------------------------------------------------- */

static nd_value *split_in(turn *t, nd_value *v, nd_axis *a, nd_axis *block)
{
    nd_axis *to[2] = {t->ring, block};
    t->b->hint = v->name;
    return nd_split(t->b, v, a, 2, to);
}

/* position * block + index[block] */
static nd_value *global_index(nd_builder *b, nd_value *position, nd_axis *block)
{
    nd_value *first = map2(b, EW_MUL, position,
                           nd_const(b, ND_I32, (double)block->size));
    return map2(b, EW_ADD, first, nd_positions(b, block));
}

static bool is_index(const nd_value *v)
{
    return v->def && v->def->kind == OP_INDEX && v->type.rank == 1;
}

/* Of a value in blocks the half that each pair wants. */
static nd_value *halves(turn *t, nd_value *v, nd_axis *block, nd_axis *half,
                        nd_axis *chunk, nd_value *which)
{
    nd_axis *to[2] = {half, chunk};
    t->b->hint = v->name;
    return nd_gather(t->b, nd_split(t->b, v, block, 2, to), half, which);
}

static nd_value *row_halves(turn *t, nd_value *v)
{
    return halves(t, v, t->block, t->row_half, t->rows, t->row_of);
}

static nd_value *of_queries(turn *t, nd_value *v)
{
    nd_value *w = nd_table_get(t->pair ? &t->own : t->shared, v);
    if (w)
        return w;
    if (t->pair) {
        w = row_halves(t, nd_table_get(t->shared, v));
        nd_table_put(&t->own, v, w);
        return w;
    }
    w = is_index(v) ? global_index(t->b, nd_positions(t->b, t->ring), t->rows)
                    : split_in(t, v, t->r->query, t->rows);
    nd_table_put(t->shared, v, w);
    return w;
}

static nd_value *hop_value(turn *t, nd_value *v);

/* The same op on this hop's operands. */
static nd_value *again(turn *t, nd_value *v)
{
    nd_op *op = v->def;
    nd_value **in = ND_NEWN(t->c->m->ctx->arena, nd_value *, op->nin);
    for (int i = 0; i < op->nin; i++)
        in[i] = hop_value(t, op->in[i]);
    nd_op *copy = nd_clone(t->b, op, in);
    copy->out[v->index]->type = ring_type(t, &v->type);
    nd_retype(t->c->m, copy);
    return copy->out[v->index];
}

/* A value with both axes that no op of the region makes: its rows in blocks,
 * and of those the columns of this hop. */
static nd_value *of_both(turn *t, nd_value *v)
{
    nd_value *w = nd_table_get(t->shared, v);
    if (!w) {
        w = split_in(t, v, t->r->query, t->rows);
        nd_table_put(t->shared, v, w);
    }
    if (t->pair)
        w = row_halves(t, w);
    return nd_gather(t->b, w, t->r->key, t->at);
}

static nd_value *hop_value(turn *t, nd_value *v)
{
    bool query = cx_has(v, t->r->query), key = cx_has(v, t->r->key);
    if (!query && !key)
        return v;
    if (!key)
        return of_queries(t, v);
    nd_value *w = nd_table_get(&t->own, v);
    if (w)
        return w;
    if (!query)
        w = is_index(v) ? t->at : nd_gather(t->b, v, t->r->key, t->at);
    else if (cx_holds(&t->r->given, v))
        w = of_both(t, v);
    else
        w = again(t, v);
    nd_table_put(&t->own, v, w);
    return w;
}

/* ---- the two kinds of turn ----------------------------------------------- */

/* m, l, o after a block: E = exp(X - m), l = sum E, o = sum(f(E) V). */
typedef struct softmax {
    nd_value *m, *l, *o;
} softmax;

static nd_value *block_max(turn *t, nd_value *x)
{
    t->b->hint = "m";
    return nd_stop_gradient(t->b, nd_reduce(t->b, RED_MAX, x, 1, &t->keys));
}

/* The sums of one block relative to the maximum `most`. */
static softmax sums(turn *t, nd_value *x, nd_value *most)
{
    nd_builder *b = t->b;
    softmax s = {.m = most};
    nd_value *e = nd_map(b, EW_EXP, map2(b, EW_SUB, x,
                                         guard(b, most, -INFINITY, 0)),
                         NULL, NULL);
    s.l = nd_reduce(b, RED_SUM, e, 1, &t->keys);
    nd_table_put(&t->own, t->r->p, e);
    nd_value *in[2] = {hop_value(t, t->r->a), hop_value(t, t->r->v)};
    nd_type order = ring_type(t, &t->r->attend->out[0]->type);
    s.o = nd_contract(b, in[0], in[1], 1, &t->keys, &order);
    s.o->def->sub = t->r->attend->sub;
    return s;
}

static void set_moving(turn *t, nd_value *const *v)
{
    for (int i = 0; i < t->r->moving.n; i++) {
        nd_value *w = v[i];
        if (t->pair)
            w = halves(t, w, block_of(t->c, t->r->key, t->r->n), t->key_half,
                       t->keys, t->key_of);
        nd_table_put(&t->own, t->r->moving.v[i], w);
    }
}

/* The blocks at home, with the keys of this rank. */
static softmax first_turn(turn *t, nd_value **moving)
{
    const cx_region *r = t->r;
    for (int i = 0; i < r->moving.n; i++)
        moving[i] = split_in(t, r->moving.v[i], r->key, t->keys);
    set_moving(t, moving);
    t->at = global_index(t->b, nd_positions(t->b, t->ring), t->keys);
    nd_value *x = hop_value(t, r->x);
    return sums(t, x, block_max(t, x));
}

static nd_value *rescaled(nd_builder *b, nd_value *old, nd_value *by,
                          nd_value *more)
{
    return map2(b, EW_ADD, map2(b, EW_MUL, old, by), more);
}

/* ---- pairs of chunks ----------------------------------------------------- */

/* Which halves the pairs are: (1, 0), then (0, 0) where the keys come from a
 * rank before this one, (1, 1) where from one behind. `from`: i32[ring]. */
static void choose_pairs(turn *t, nd_value *from)
{
    nd_builder *b = t->b;
    nd_value *behind = nd_cast(b, map2(b, EW_LT, nd_positions(b, t->ring),
                                       from), ND_I32);
    nd_value *first = map2(b, EW_EQ, nd_positions(b, t->pair),
                           nd_const(b, ND_I32, 0));
    t->row_of = nd_map(b, EW_WHERE, first, nd_const(b, ND_I32, 1), behind);
    t->key_of = nd_map(b, EW_WHERE, first, nd_const(b, ND_I32, 0), behind);
}

/* What pairs give, for the half that each belongs to: their sum or maximum. */
static nd_value *to_halves(turn *t, nd_value *v, nd_red red)
{
    nd_builder *b = t->b;
    nd_value *hit = map2(b, EW_EQ, t->row_of, nd_positions(b, t->row_half));
    nd_value *none = nd_const(b, ND_F32, red == RED_SUM ? 0 : -INFINITY);
    return nd_reduce(b, red, nd_map(b, EW_WHERE, hit, v, none), 1, &t->pair);
}

/* The turn after the first one works on chunks. */
static void halve(turn *t)
{
    cx *c = t->c;
    t->block = t->rows;
    t->pair = axis_called(c, "pair", 2);
    t->row_half = axis_called(c, "half", 2);
    t->key_half = axis_called(c, "key_half", 2);
    t->rows = chunk_of(c, t->rows);
    t->keys = chunk_of(c, t->keys);
}

/* ---- the other hops ------------------------------------------------------ */

/* m, l and o so far go over to the new maximum. */
static softmax merged(turn *t, softmax old, nd_value *x)
{
    nd_builder *b = t->b;
    nd_value *most = block_max(t, x);
    if (t->pair)
        most = to_halves(t, most, RED_MAX);
    most = nd_stop_gradient(b, map2(b, EW_MAX, old.m, most));
    nd_value *by = nd_map(b, EW_EXP, map2(b, EW_SUB, old.m,
                                          guard(b, most, -INFINITY, 0)),
                          NULL, NULL);
    softmax s = sums(t, x, t->pair ? nd_gather(b, most, t->row_half, t->row_of)
                                   : most);
    if (t->pair) {
        s.l = to_halves(t, s.l, RED_SUM);
        s.o = to_halves(t, s.o, RED_SUM);
    }
    return (softmax){most, rescaled(b, old.l, by, s.l),
                     rescaled(b, old.o, by, s.o)};
}

/* The body of the repeat: K and V come from the next rank. */
static void next_turn(turn *t, nd_op *repeat)
{
    const cx_region *r = t->r;
    nd_builder *b = t->b;
    nd_value **arg = repeat->body->args.v;
    int k = r->moving.n;
    nd_value **next = ND_NEWN(t->c->m->ctx->arena, nd_value *, k + 3);
    for (int i = 0; i < k; i++)
        next[i] = nd_roll(b, arg[i], t->ring, 1);
    nd_value *hop = map2(b, EW_ADD, nd_index(b, repeat->axes[0]),
                         nd_const(b, ND_I32, 1));
    nd_value *from = map2(b, EW_MOD,
                          map2(b, EW_ADD, nd_positions(b, t->ring), hop),
                          nd_const(b, ND_I32, r->n));
    if (t->pair) {
        choose_pairs(t, from);
        from = map2(b, EW_ADD, map2(b, EW_MUL, from, nd_const(b, ND_I32, 2)),
                    t->key_of);
    }
    t->at = global_index(b, from, t->keys);
    set_moving(t, next);
    softmax old = {arg[k], arg[k + 1], arg[k + 2]};
    softmax s = merged(t, old, hop_value(t, r->x));
    next[k] = s.m;
    next[k + 1] = s.l;
    next[k + 2] = s.o;
    nd_repeat_yield(t->c->m, repeat, next);
}

void cx_ring(cx *c, const cx_region *r)
{
    nd_module *m = c->m;
    nd_arena *a = m->ctx->arena;
    nd_block *block = r->attend->block;
    nd_builder b = {.m = m, .block = block, .phase = PH_FWD,
                    .loc = r->attend->loc, .path = r->attend->path};
    while (block->ops.v[b.at] != r->attend)
        b.at++;
    nd_table shared = {.arena = a}, empty = {.arena = a};
    turn t = {.c = c, .r = r, .ring = ring_of(c, r->mesh),
              .rows = block_of(c, r->query, r->n),
              .keys = block_of(c, r->key, r->n), .b = &b, .shared = &shared,
              .own = empty};

    int k = r->moving.n;
    nd_value **init = ND_NEWN(a, nd_value *, k + 3);
    softmax s = first_turn(&t, init);
    init[k] = s.m;
    init[k + 1] = s.l;
    init[k + 2] = s.o;
    if (r->zigzag) {
        halve(&t);
        nd_axis *to[2] = {t.row_half, t.rows};
        for (int i = k; i < k + 3; i++)
            init[i] = nd_split(&b, init[i], t.block, 2, to);
    }
    nd_op *repeat = nd_repeat_begin(&b, c->hop[r->mesh], k + 3, init);
    nd_builder inside = b;
    inside.block = repeat->body;
    inside.at = -1;
    t.b = &inside;
    t.own = empty;
    next_turn(&t, repeat);

    nd_value *l = repeat->out[k + 1];
    nd_value *o = map2(&b, EW_DIV, repeat->out[k + 2],
                       r->guarded ? guard(&b, l, 0, 1) : l);
    nd_axis *whole[2] = {t.ring, t.rows};
    nd_axis *parts[3] = {t.ring, t.row_half, t.rows};
    b.hint = r->attend->out[0]->name;
    o = nd_flatten(&b, o, t.pair ? 3 : 2, t.pair ? parts : whole, r->query);
    nd_replace_uses(m, r->attend->out[0], o);
}
