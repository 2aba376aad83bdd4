/* shard_search.c - the cheapest collectives between sharding types of a value.
 *
 *   [a/x, b]   -> [a, b/x]    all_to_all [a, b] over x
 *   [a, b]+x   -> [a, b/x]    reduce_scatter [b] over x
 *   [a, b]+x+y -> [a/y, b]    reduce_scatter [a] over y, all_reduce over x
 *
 * A shortest path (Dijkstra) whose nodes are types: a cut per axis, pending
 * sums. Its edges are the ops: all_reduce; reduce_scatter; all_gather of the
 * last member of a cut; all_to_all of that member to the end of another cut;
 * slice, which is free. An edge costs the bytes that a rank sends (cost.c); of
 * equal paths the one with fewest ops counts, then the one found first.
 *
 * Most mesh axes stay where they are: only those move that do not stand in the
 * same place in all the types at hand, one or two as a rule. Should more move
 * than can be searched at leisure, they only go where they start or end.
 */
#include "shard.h"

#include <math.h>

enum { AT_LEISURE = 3, MOST = 3000 };

/* Where a mesh axis that moves may be put on its way. */
typedef enum { ANYWHERE, KNOWN_PLACES, FINAL_PLACE } freedom;

typedef struct state {
    nd_type t;
    double cost;
    int ops, from;                   /* from: -1 - i at given type i */
    nd_sh_move move;                 /* that led here */
    bool done;
} state;

typedef struct search {
    const nd_module *m;
    nd_arena *arena;
    const nd_type *want;
    uint32_t moving;                 /* mesh axes */
    uint32_t place[ND_MAX_MESH];     /* of each: axes where it starts or ends */
    freedom how;
    nd_table at;                     /* text of a state -> its number + 1 */
    ND_VEC(state) v;
} search;

/* ---- what moves ---------------------------------------------------------- */

static int common(nd_cut a, nd_cut b)
{
    int n = 0;
    while (n < a.n && n < b.n && a.m[n] == b.m[n])
        n++;
    return n;
}

static void find_moving(search *s, int n, const nd_type *const *types)
{
    const nd_type *w = s->want;
    for (int i = 0; i < w->rank; i++) {
        int same = w->cut[i].n;
        for (int k = 0; k < n; k++) {
            int c = common(types[k]->cut[i], w->cut[i]);
            same = c < same ? c : same;
        }
        for (int k = -1; k < n; k++) {
            nd_cut c = k < 0 ? w->cut[i] : types[k]->cut[i];
            for (int j = same; j < c.n; j++) {
                s->moving |= 1u << c.m[j];
                s->place[c.m[j]] |= 1u << i;
            }
        }
    }
    for (int k = 0; k < n; k++)
        s->moving |= types[k]->sum & ~w->sum;
}

/* ---- states -------------------------------------------------------------- */

/* Where each moving axis stands: tells states apart. */
static const char *text_of(const search *s, const nd_type *t)
{
    char *key = nd_alloc(s->arena, ND_MAX_MESH + 1);
    for (int k = 0; k < ND_MAX_MESH; k++)
        key[k] = t->sum >> k & 1 ? 'p' : '.';
    for (int i = 0; i < t->rank; i++)
        for (int j = 0; j < t->cut[i].n; j++)
            key[t->cut[i].m[j]] = (char)(-1 - i * ND_MAX_CUT - j);
    return key;
}

static bool is_less(double a, int a_ops, double b, int b_ops)
{
    if (fabs(a - b) > 1e-9 * fmax(a, b))
        return a < b;
    return a_ops < b_ops;
}

static void reach(search *s, const nd_type *t, double cost, int ops, int from,
                  nd_sh_move move)
{
    const char *key = text_of(s, t);
    int i = (int)(intptr_t)nd_table_get(&s->at, key) - 1;
    bool fresh = i < 0;
    if (fresh) {
        i = s->v.n;
        ND_PUSH(s->arena, &s->v, ((state){.t = *t}));
        nd_table_put(&s->at, key, (void *)(intptr_t)(i + 1));
    }
    state *to = &s->v.v[i];
    if (!fresh && (to->done || !is_less(cost, ops, to->cost, to->ops)))
        return;
    to->cost = cost;
    to->ops = ops;
    to->from = from;
    to->move = move;
}

static int nearest(const search *s)
{
    int best = -1;
    for (int i = 0; i < s->v.n; i++) {
        const state *x = &s->v.v[i], *y = best < 0 ? NULL : &s->v.v[best];
        if (!x->done && (!y || is_less(x->cost, x->ops, y->cost, y->ops)))
            best = i;
    }
    return best;
}

/* ---- moves --------------------------------------------------------------- */

/* Microbatches are the last member of a cut: nothing goes behind it. */
static bool can_append(const search *s, const nd_type *t, int i, int k)
{
    nd_cut c = t->cut[i], w = s->want->cut[i];
    if (c.n == ND_MAX_CUT || (c.n && c.m[c.n - 1] == s->m->mesh.micro))
        return false;
    if (s->how == ANYWHERE)
        return true;
    if (s->how == KNOWN_PLACES)
        return s->place[k] >> i & 1;
    return common(c, w) == c.n && c.n < w.n && w.m[c.n] == k;
}

static void append(nd_type *t, int i, int k)
{
    t->cut[i].m[t->cut[i].n++] = (uint8_t)k;
}

nd_type nd_sh_moved(const nd_type *from, const nd_sh_move *move)
{
    nd_type t = *from;
    int k = 0;
    while (!(move->mesh >> k & 1))
        k++;
    if (move->kind == OP_ALL_REDUCE || move->kind == OP_REDUCE_SCATTER)
        t.sum &= ~move->mesh;
    if (move->kind == OP_ALL_GATHER || move->kind == OP_ALL_TO_ALL)
        t.cut[move->axis].m[--t.cut[move->axis].n] = 0;
    if (move->kind == OP_ALL_TO_ALL)
        append(&t, move->to, k);
    if (move->kind == OP_REDUCE_SCATTER || move->kind == OP_SLICE)
        append(&t, move->axis, k);
    return t;
}

static void go(search *s, int from, nd_sh_move move)
{
    nd_type in = s->v.v[from].t, t = nd_sh_moved(&in, &move);
    reach(s, &t,
          s->v.v[from].cost + nd_comm_bytes(move.kind, move.mesh, &in, &t,
                                            &s->m->mesh),
          s->v.v[from].ops + 1, from, move);
}

static void reduce(search *s, int from)
{
    nd_type t = s->v.v[from].t;
    uint32_t due = t.sum & ~s->want->sum & ~(1u << s->m->mesh.micro);
    for (uint32_t some = due; some; some = (some - 1) & due)
        go(s, from, (nd_sh_move){OP_ALL_REDUCE, 0, 0, some});
    for (int k = 0; k < s->m->mesh.n; k++)
        for (int i = 0; due >> k & 1 && i < t.rank; i++)
            if (can_append(s, &t, i, k))
                go(s, from, (nd_sh_move){OP_REDUCE_SCATTER, i, 0, 1u << k});
}

static void take_last(search *s, int from)
{
    nd_type t = s->v.v[from].t;
    for (int i = 0; i < t.rank; i++) {
        int k = t.cut[i].n ? t.cut[i].m[t.cut[i].n - 1] : s->m->mesh.micro;
        if (k == s->m->mesh.micro || !(s->moving >> k & 1))
            continue;
        go(s, from, (nd_sh_move){OP_ALL_GATHER, i, 0, 1u << k});
        for (int j = 0; j < t.rank; j++)
            if (j != i && can_append(s, &t, j, k))
                go(s, from, (nd_sh_move){OP_ALL_TO_ALL, i, j, 1u << k});
    }
}

/* Microbatches are cut last, when all else is as it should be. */
static bool is_last_but_micro(const search *s, const nd_type *t, int i)
{
    nd_type u = *t;
    append(&u, i, s->m->mesh.micro);
    return nd_same_cut(&u, s->want);
}

static void cut(search *s, int from)
{
    nd_type t = s->v.v[from].t;
    uint32_t used = nd_cut_mask(&t) | t.sum, micro = 1u << s->m->mesh.micro;
    for (int k = 0; k < s->m->mesh.n; k++)
        for (int i = 0; s->moving >> k & 1 && !(used >> k & 1) && i < t.rank;
             i++)
            if (can_append(s, &t, i, k) &&
                (1u << k != micro || is_last_but_micro(s, &t, i)))
                go(s, from, (nd_sh_move){OP_SLICE, i, 0, 1u << k});
}

/* ---- the search ---------------------------------------------------------- */

static bool run(search *s, int n, const nd_type *const *types, int *end)
{
    s->at = (nd_table){.arena = s->arena, .strings = true};
    s->v.n = 0;
    for (int i = 0; i < n; i++)
        reach(s, types[i], 0, 0, -1 - i, (nd_sh_move){0});
    while ((*end = nearest(s)) >= 0) {
        s->v.v[*end].done = true;
        if (nd_same_cut(&s->v.v[*end].t, s->want))
            return true;
        if (s->v.n > MOST && s->how != FINAL_PLACE)
            return false;
        reduce(s, *end);
        take_last(s, *end);
        cut(s, *end);
    }
    return false;
}

static void trace(const search *s, int at, nd_sh_path *path)
{
    int n = s->v.v[at].ops;
    path->bytes = s->v.v[at].cost;
    path->moves.n = path->moves.cap = n;
    path->moves.v = ND_NEWN(s->arena, nd_sh_move, n + 1);
    for (; s->v.v[at].from >= 0; at = s->v.v[at].from)
        path->moves.v[--n] = s->v.v[at].move;
    path->from = -1 - s->v.v[at].from;
}

bool nd_sh_search(const nd_module *m, int n, const nd_type *const *types,
                  const nd_type *want, nd_sh_path *path)
{
    search s = {.m = m, .arena = m->ctx->arena, .want = want};
    int end, moving = 0;
    find_moving(&s, n, types);
    for (int k = 0; k < m->mesh.n; k++)
        moving += s.moving >> k & 1;
    for (int how = moving > AT_LEISURE ? KNOWN_PLACES : ANYWHERE;
         how <= FINAL_PLACE; how++) {
        s.how = (freedom)how;
        if (run(&s, n, types, &end)) {
            trace(&s, end, path);
            return true;
        }
    }
    return false;
}
