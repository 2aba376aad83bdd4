/* context_match.c - finds softmax attention in the graph.
 *
 *   %m = reduce max [key] %x        %s = reduce sum [key] %e
 *   %e = exp(%x - %m)               %p = %e / %s
 *   %o = contract [key] %p, %v
 *
 * What users write around it is let through: stop_gradient of the maximum, a
 * guard against rows of -inf, dropout and casts between %p and the product.
 */
#include "context.h"

#include <math.h>
#include <string.h>

bool cx_has(const nd_value *v, const nd_axis *a)
{
    return nd_axis_at(&v->type, a) >= 0;
}

static bool is_map(const nd_value *v, nd_ew e)
{
    return v->def && v->def->kind == OP_MAP && v->def->sub == (int)e;
}

static bool reduces(const nd_value *v, nd_red red, const nd_value *x)
{
    return v->def && v->def->kind == OP_REDUCE && v->def->sub == (int)red &&
           v->def->naxes == 1 && v->def->in[0] == x;
}

/* where(v == bad, instead, v), or v: the v. */
static nd_value *unguarded(nd_value *v, double bad, double instead)
{
    if (!is_map(v, EW_WHERE))
        return v;
    nd_value *test = v->def->in[0], *x = v->def->in[2];
    bool same = is_map(test, EW_EQ) && test->def->in[0] == x &&
                nd_is_const(test->def->in[1], bad) &&
                nd_is_const(v->def->in[1], instead);
    return same ? x : v;
}

/* Is p = exp(x - max x) / sum of that, over one axis? */
static bool match_softmax(nd_value *p, cx_region *r)
{
    if (!is_map(p, EW_DIV) || !is_map(p->def->in[0], EW_EXP))
        return false;
    nd_value *e = p->def->in[0], *c = e->def->in[0];
    nd_value *s = unguarded(p->def->in[1], 0, 1);
    if (!reduces(s, RED_SUM, e) || !is_map(c, EW_SUB))
        return false;
    nd_value *most = unguarded(c->def->in[1], -INFINITY, 0);
    if (most->def && most->def->kind == OP_STOP_GRAD)
        most = most->def->in[0];
    r->x = c->def->in[0];
    r->key = s->def->axes[0];
    r->guarded = s != p->def->in[1];
    r->p = p;
    return reduces(most, RED_MAX, r->x) && most->def->axes[0] == r->key;
}

/* From what the product reads back to the softmax. */
static bool match_weights(nd_value *a, cx_region *r, int depth)
{
    if (match_softmax(a, r))
        return true;
    if (!a->def || depth == 0)
        return false;
    if (a->def->kind == OP_CAST)
        return match_weights(a->def->in[0], r, depth - 1);
    return is_map(a, EW_MUL) &&
           (match_weights(a->def->in[0], r, depth - 1) ||
            match_weights(a->def->in[1], r, depth - 1));
}

/* ---- the axes ------------------------------------------------------------ */

/* The axis of the queries: what the mesh axis of the keys cuts in O. */
static bool match_axes(const nd_module *m, cx_region *r)
{
    const nd_type *o = &r->attend->out[0]->type;
    if (!cx_has(r->v, r->key) || r->key == m->sample)
        return false;
    nd_cut cut = cx_cut_of(m, &r->v->type, r->key);
    if (cut.n == 0 || m->mesh.size[cut.m[0]] == 1)
        return false;
    r->mesh = cut.m[0];
    r->n = m->mesh.size[r->mesh];
    for (int i = 0; i < o->rank; i++) {
        nd_axis *a = o->axis[i];
        if (nd_cut_eq(cx_cut_of(m, o, a), cut) && cx_has(r->x, a) &&
            !cx_has(r->v, a) && a != m->sample)
            r->query = a;
    }
    r->several = r->query && cut.n > 1 ? nd_cut_bits(cut) : 0;
    return r->query && cut.n == 1;
}

/* ---- what belongs to it -------------------------------------------------- */

bool cx_holds(const cx_values *list, const nd_value *v)
{
    for (int i = 0; i < list->n; i++)
        if (list->v[i] == v)
            return true;
    return false;
}

static void add_once(nd_module *m, cx_values *list, nd_value *v)
{
    if (!cx_holds(list, v))
        ND_PUSH(m->ctx->arena, list, v);
}

/* From a guarded sum or maximum down to the reduction. */
static void collect_row(nd_module *m, cx_region *r, nd_value *v)
{
    if (!v->def || v->def->kind == OP_CONST || cx_holds(&r->row, v))
        return;
    ND_PUSH(m->ctx->arena, &r->row, v);
    for (int i = 0; v->def->kind != OP_REDUCE && i < v->def->nin; i++)
        collect_row(m, r, v->def->in[i]);
}

static bool runs_along(const nd_op *op, const cx_region *r)
{
    for (int i = 0; i < op->naxes; i++)
        if (op->axes[i] == r->query || op->axes[i] == r->key)
            return true;
    for (int i = 0; i < op->nto; i++)
        if (op->to[i] == r->query || op->to[i] == r->key)
            return true;
    return false;
}

/* Made of parameters and of what is free: it does not grow with what moves.
 * `seen` are values that were asked about. */
static bool stands_still(nd_module *m, nd_table *seen, nd_value *v)
{
    if (nd_is_free(v) || nd_param_of(v) || nd_table_get(seen, v))
        return true;
    if (!v->def || !v->def->nin || v->def->body)
        return false;
    for (int i = 0; i < v->def->nin; i++)
        if (!stands_still(m, seen, v->def->in[i]))
            return false;
    nd_table_put(seen, v, v);
    return true;
}

/* A value with both axes that a rank has for its queries and all keys: no op
 * of the region makes it hop by hop. Random numbers count all keys. */
static bool is_given(nd_module *m, const cx_region *r, nd_value *v)
{
    nd_table seen = {.arena = m->ctx->arena};
    const nd_op *op = v->def;
    if (!op || op->kind == OP_PARAM || op->kind == OP_INPUT ||
        op->kind == OP_RANDOM || op->kind == OP_NORMAL)
        return true;
    return runs_along(op, r) && stands_still(m, &seen, v);
}

/* Axes of an op's operands together. */
static void count_axes(cx_region *r, const nd_op *op)
{
    int n = 0;
    for (int i = 0; i < op->nin; i++)
        for (int k = 0; k < op->in[i]->type.rank; k++) {
            bool seen = false;
            for (int j = 0; j < i; j++)
                seen |= cx_has(op->in[j], op->in[i]->type.axis[k]);
            n += !seen;
        }
    r->axes = n > r->axes ? n : r->axes;
}

static void collect(nd_module *m, cx_region *r, nd_value *v)
{
    bool query = cx_has(v, r->query), key = cx_has(v, r->key);
    if (key != query && !nd_is_free(v) && !cx_holds(&r->row, v))
        add_once(m, key ? &r->moving : &r->queries, v);
    if (!key || !query || cx_holds(&r->inside, v))
        return;
    if (is_given(m, r, v)) {
        add_once(m, &r->given, v);
        return;
    }
    ND_PUSH(m->ctx->arena, &r->inside, v);
    nd_op *op = v->def;
    count_axes(r, op);
    if (op->kind == OP_REPEAT || (runs_along(op, r) && v != r->p))
        r->no_ring = nd_fmt(m->ctx->arena, "`%s` runs along `%s` or `%s`",
                            nd_op_name(op), r->query->name, r->key->name);
    for (int i = 0; i < op->nin; i++)
        collect(m, r, op->in[i]);
}

static bool is_index(const nd_value *v, const nd_axis *a)
{
    return v->def && v->def->kind == OP_INDEX && v->type.rank == 1 &&
           v->type.axis[0] == a;
}

/* Does the condition say, with others, that a key is not behind its query? */
static bool says_causal(const cx_region *r, const nd_value *v)
{
    if (is_map(v, EW_AND))
        return says_causal(r, v->def->in[0]) || says_causal(r, v->def->in[1]);
    return (is_map(v, EW_LE) || is_map(v, EW_LT)) &&
           is_index(v->def->in[0], r->key) && is_index(v->def->in[1], r->query);
}

static bool is_causal(const cx_region *r)
{
    const nd_value *x = r->x;
    return is_map(x, EW_WHERE) && nd_is_const(x->def->in[2], -INFINITY) &&
           says_causal(r, x->def->in[0]);
}

/* ---- nobody else reads it ------------------------------------------------ */

/* An op that reads a value; NULL: a body yields it. */
typedef struct reader {
    const nd_op *op;
    struct reader *next;
} reader;

typedef struct readers {
    nd_arena *arena;
    nd_table *of;                    /* value -> its readers */
} readers;

static void add_reader(readers *u, nd_value *v, const nd_op *op)
{
    reader *r = ND_NEW(u->arena, reader);
    *r = (reader){op, nd_table_get(u->of, v)};
    nd_table_put(u->of, v, r);
}

static void note_readers(nd_op *op, void *user)
{
    for (int i = 0; i < op->nin; i++)
        add_reader(user, op->in[i], op);
    for (int i = 0; op->body && i < op->body->yields.n; i++)
        add_reader(user, op->body->yields.v[i], NULL);
}

void cx_find_readers(nd_module *m, nd_table *readers_of)
{
    *readers_of = (nd_table){.arena = m->ctx->arena};
    readers u = {.arena = m->ctx->arena, .of = readers_of};
    nd_walk(m->step, note_readers, &u);
}

static bool makes_any(const nd_op *op, const nd_table *values)
{
    for (int i = 0; i < op->nout; i++)
        if (nd_table_get(values, op->out[i]))
            return true;
    return false;
}

/* Do ops read v that are not of the region? */
static bool read_elsewhere(const cx_region *r, const nd_table *readers_of,
                           const nd_table *inside, const nd_value *v)
{
    for (const reader *u = nd_table_get(readers_of, v); u; u = u->next)
        if (!u->op || (u->op != r->attend && !makes_any(u->op, inside)))
            return true;
    return false;
}

/* Who else needs the scores has them whole already. */
static void check_readers(nd_module *m, cx_region *r,
                          const nd_table *readers_of)
{
    nd_table inside = {.arena = m->ctx->arena};
    cx_values all = {0};
    for (int i = 0; i < r->inside.n; i++)
        if (!nd_is_free(r->inside.v[i]))
            ND_PUSH(m->ctx->arena, &all, r->inside.v[i]);
    for (int i = 0; i < r->row.n; i++)
        ND_PUSH(m->ctx->arena, &all, r->row.v[i]);
    for (int i = 0; i < all.n; i++)
        nd_table_put(&inside, all.v[i], all.v[i]);
    for (int i = 0; i < all.n && !r->no_ring; i++)
        if (read_elsewhere(r, readers_of, &inside, all.v[i]))
            r->no_ring = nd_fmt(m->ctx->arena, "its `%s` is used elsewhere "
                                "too", all.v[i]->name);
}

bool cx_match(nd_module *m, const nd_table *readers_of, nd_op *op,
              cx_region *r)
{
    uint32_t several = 0;
    *r = (cx_region){0};
    if (op->kind != OP_CONTRACT || op->naxes != 1)
        return false;
    for (int i = 0; i < 2; i++) {
        *r = (cx_region){.attend = op, .a = op->in[i], .v = op->in[1 - i],
                         .several = several};
        if (!match_weights(r->a, r, 8) || r->key != op->axes[0])
            continue;
        if (!match_axes(m, r)) {
            several = r->several;
            continue;
        }
        count_axes(r, op);
        collect_row(m, r, r->p->def->in[1]);
        collect_row(m, r, r->p->def->in[0]->def->in[0]->def->in[1]);
        collect(m, r, r->a);
        collect(m, r, r->v);
        r->causal = is_causal(r);
        if (!r->no_ring)
            check_readers(m, r, readers_of);
        return true;
    }
    return false;
}
