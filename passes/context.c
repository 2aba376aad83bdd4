/* context.c - attention whose keys lie on several ranks.
 *
 * `shard seq -> cp` cuts queries and, since `axis key = seq` follows, keys.
 * Left alone, the keys and values are gathered; this pass finds each attention
 * (context_match.c) and rewrites it before there are gradients, so nothing
 * behind it knows of context parallelism:
 *
 *   ring        blocks of keys and values move on, n - 1 hops (context_ring.c)
 *   all_to_all  cp cuts the heads instead (context_heads.c)
 *   gather      as it is
 *
 * The plan says which (`context ring over cp`), or the bytes that a rank sends
 * do; a ring is taken before a gathering of the same bytes, since it never
 * holds all keys.
 */
#include "context.h"

#include <string.h>

static const nd_context *asked_for(const nd_plan *p, int mesh)
{
    for (int i = 0; i < p->context.n; i++)
        if (p->context.v[i].mesh == mesh)
            return &p->context.v[i];
    return NULL;
}

void cx_first_rule(nd_module *m, nd_rule r)
{
    ND_PUSH(m->ctx->arena, &m->plan.rules, r);
    memmove(m->plan.rules.v + 1, m->plan.rules.v,
            sizeof r * (size_t)(m->plan.rules.n - 1));
    m->plan.rules.v[0] = r;
}

const nd_axis *cx_root(const nd_module *m, const nd_axis *a)
{
    while (a->like && !nd_rule_of(&m->plan, a))
        a = a->like;
    return a;
}

/* ---- the choice ---------------------------------------------------------- */

/* Why keys cannot move in a ring, or NULL. Blocks take one more axis, chunks
 * up to three. */
static const char *against_ring(const nd_module *m, const cx_region *r,
                                const nd_context *ask)
{
    if (r->axes + (ask && ask->zigzag ? 3 : 1) > ND_MAX_RANK)
        return nd_fmt(m->ctx->arena, "with those of a ring there are more "
                      "than %d axes", ND_MAX_RANK);
    const nd_axis *uneven = r->query->size % r->n ? r->query
                            : r->key->size % r->n ? r->key : NULL;
    if (uneven)
        return nd_fmt(m->ctx->arena, "%d ranks do not divide the %lld of `%s`",
                      r->n, (long long)uneven->size, uneven->name);
    return r->no_ring;
}

/* What one rank holds of the values, in bytes. */
static double bytes_of(const nd_module *m, nd_value *const *v, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        nd_type t = nd_sh_home(m, &v[i]->type, PH_FWD);
        double one = (double)nd_dtype_size(t.dtype);
        for (int k = 0; k < t.rank; k++)
            one *= (double)nd_extent_max(&m->mesh, t.axis[k]->size, t.cut[k]);
        sum += one;
    }
    return sum;
}

/* Bytes that one rank sends forward: keys and values to everyone, once around
 * the ring or in one gathering; or the pieces of all values, there and back. */
static double ring_bytes(const nd_module *m, const cx_region *r)
{
    return (r->n - 1) * bytes_of(m, r->moving.v, r->moving.n);
}

static double heads_bytes(const nd_module *m, const cx_region *r)
{
    return (bytes_of(m, r->moving.v, r->moving.n) +
            bytes_of(m, r->queries.v, r->queries.n) +
            bytes_of(m, r->attend->out, 1)) * (r->n - 1) / r->n;
}

typedef struct choice {
    nd_context_form form;
    const char *why;
    nd_axis *heads;
} choice;

static choice cheapest(const nd_module *m, const cx_region *r,
                       const nd_context *ask)
{
    nd_arena *a = m->ctx->arena;
    choice c = {.form = CONTEXT_RING, .heads = cx_heads_of(m, r)};
    const char *no_ring = against_ring(m, r, ask);
    double ring = ring_bytes(m, r), heads = heads_bytes(m, r);
    const char *sent = nd_fmt(a, "a rank sends %.0f bytes forward, with "
                              "all_to_all %.0f", ring, heads);
    if (!c.heads) {
        c.why = "no axis of heads for all_to_all";
    } else if (c.heads->size % cx_parts(m, r, c.heads)) {
        c.why = nd_fmt(a, "%lld parts do not divide the %lld of `%s` for "
                       "all_to_all", (long long)cx_parts(m, r, c.heads),
                       (long long)c.heads->size, c.heads->name);
    } else if (heads < ring || no_ring) {
        c.form = CONTEXT_ALL_TO_ALL;
        c.why = no_ring ? no_ring
                        : nd_fmt(a, "a rank sends %.0f bytes forward, in a "
                                 "ring %.0f", heads, ring);
        return c;
    } else {
        c.why = sent;
    }
    if (no_ring) {
        c.form = CONTEXT_GATHER;
        c.why = nd_fmt(a, "%s; %s", no_ring, c.why);
    }
    return c;
}

static choice choose(const nd_module *m, const cx_region *r,
                     const nd_context *ask)
{
    if (!ask || ask->form == CONTEXT_AUTO)
        return cheapest(m, r, ask);
    choice c = {ask->form, "as the plan says", cx_heads_of(m, r)};
    const char *no_ring = against_ring(m, r, ask);
    if (c.form == CONTEXT_ALL_TO_ALL && !c.heads) {
        nd_error(m->ctx, ask->loc, "no axis of heads: all_to_all cuts an axis "
                 "that queries, keys, values and scores have");
        nd_note(m->ctx, r->attend->loc, "the attention is here");
    }
    if (c.form == CONTEXT_RING && no_ring) {
        c.form = CONTEXT_GATHER;
        c.why = no_ring;
    }
    return c;
}

/* What remains gathered is said so, for a reader of the printed graph. */
static void remember(cx *c, const cx_region *r, choice x)
{
    nd_arena *a = c->m->ctx->arena;
    nd_chosen said = {r->attend->path ? r->attend->path : "",
                      nd_fmt(a, "%s over %s: %s", nd_context_names[x.form],
                             c->m->mesh.name[r->mesh], x.why)};
    ND_PUSH(a, &c->m->plan.chosen, said);
    c->met |= 1u << r->mesh;
    if (x.form == CONTEXT_GATHER)
        c->gathered |= 1u << r->mesh;
}

/* What a ring says of its order. */
static const char *order_of(cx *c, cx_region *r, const nd_context *ask,
                            const char *why)
{
    nd_arena *a = c->m->ctx->arena;
    if (!ask || !ask->zigzag)
        return why;
    const char *no = c->no_zigzag[r->mesh];
    if (!no && !nd_table_get(&c->causal, r->attend))
        return nd_fmt(a, "%s; not in balance: no causal mask", why);
    r->zigzag = !no;
    return no ? nd_fmt(a, "%s; not zigzag: %s", why, no)
              : nd_fmt(a, "%s, zigzag", why);
}

static void region(cx *c, cx_region *r)
{
    nd_module *m = c->m;
    const nd_context *ask = asked_for(&m->plan, r->mesh);
    choice x = choose(m, r, ask);
    if (x.form == CONTEXT_RING)
        x.why = order_of(c, r, ask, x.why);
    remember(c, r, x);
    if (x.form == CONTEXT_GATHER) {
        if (!ask || ask->form != CONTEXT_GATHER)
            nd_perf(m->ctx, ask ? ask->loc : r->attend->loc,
                    "keys and values are gathered over `%s` and held whole: "
                    "%s", m->mesh.name[r->mesh], x.why);
        return;
    }
    c->changed = true;
    if (x.form == CONTEXT_RING)
        cx_ring(c, r);
    else if (x.heads)
        cx_heads(c, r, x.heads);
}

/* Nothing goes around two mesh axes: what follows from the types stays. */
static void gathered_over_several(cx *c, const nd_op *op, uint32_t mesh)
{
    nd_module *m = c->m;
    nd_buf b = {.arena = m->ctx->arena};
    for (int i = 0; i < m->mesh.n; i++)
        if (mesh >> i & 1)
            nd_putf(&b, "%s`%s`", b.n ? " and " : "", m->mesh.name[i]);
    nd_perf(m->ctx, op->loc, "keys and values are gathered over %s and held "
            "whole: in attention a ring or all_to_all goes over one mesh axis",
            b.s);
}

static void block(cx *c, nd_block *b)
{
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        cx_region r;
        if (op->body) {
            block(c, op->body);
        } else if (cx_match(c->m, &c->readers_of, op, &r)) {
            region(c, &r);
            while (b->ops.v[i] != op)
                i++;
        } else if (r.several) {
            gathered_over_several(c, op, r.several);
        }
    }
}

/* ---- zigzag -------------------------------------------------------------- */

/* The first causal attention that will go in a ring, of a mesh axis for which
 * the plan asks for balance, says which axis gets another order. */
static void find_causal(cx *c, nd_block *b)
{
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        cx_region r;
        if (op->body)
            find_causal(c, op->body);
        else if (cx_match(c->m, &c->readers_of, op, &r)) {
            const nd_context *ask = asked_for(&c->m->plan, r.mesh);
            const nd_axis *root = cx_root(c->m, r.query);
            for (int k = 0; k < r.row.n; k++)
                nd_table_put(&c->rows, r.row.v[k], r.row.v[k]);
            if (!ask || !ask->zigzag || !r.causal ||
                cx_root(c->m, r.key) != root ||
                choose(c->m, &r, ask).form != CONTEXT_RING)
                continue;
            if (!c->root[r.mesh])
                c->root[r.mesh] = root;
            if (c->root[r.mesh] == root)
                nd_table_put(&c->causal, op, op);
        }
    }
}

static void zigzag(cx *c)
{
    const nd_plan *p = &c->m->plan;
    find_causal(c, c->m->step);
    for (int i = 0; i < p->context.n; i++) {
        const nd_context *x = &p->context.v[i];
        const nd_axis *root = c->root[x->mesh];
        if (!root)
            continue;
        const char *no = cx_zigzag(c->m, root, c->m->mesh.size[x->mesh],
                                   &c->rows);
        c->no_zigzag[x->mesh] = no;
        c->changed |= !no;
        if (no)
            nd_perf(c->m->ctx, x->loc, "the ring is not zigzag: %s", no);
    }
    nd_clear_marks(c->m);
}

/* The first rule for all values that names a mesh axis, or NULL. */
static const nd_rule *first_over(const nd_plan *p, int mesh)
{
    for (int i = 0; i < p->rules.n; i++)
        if (p->rules.v[i].scope == SCOPE_ALL && p->rules.v[i].loc.file &&
            nd_cut_bits(p->rules.v[i].mesh) >> mesh & 1)
            return &p->rules.v[i];
    return NULL;
}

/* Asked for, but there is no such attention: another axis has the mesh axis,
 * or a sequence has two of them. */
static void check_asked(const cx *c)
{
    nd_module *m = c->m;
    for (int i = 0; i < m->plan.context.n; i++) {
        const nd_context *x = &m->plan.context.v[i];
        if (c->met >> x->mesh & 1 || m->mesh.size[x->mesh] == 1)
            continue;
        const char *cp = m->mesh.name[x->mesh];
        nd_error(m->ctx, x->loc, "no attention has both its queries and its "
                 "keys cut by `%s`", cp);
        const nd_rule *r = first_over(&m->plan, x->mesh);
        nd_note(m->ctx, r ? r->loc : x->loc, "%s: attention needs one that "
                "cuts queries and keys by `%s` alone, as seq -> %s does with "
                "`axis key = seq`",
                !r ? "no rule cuts values over it" :
                r->mesh.n > 1 ? "this is the first rule over it, and has "
                                "other mesh axes as well"
                              : "this is the first rule over it", cp, cp);
    }
}

/* The plan as it stands for the graph that there is now. */
static void settle(const cx *c)
{
    nd_plan *p = &c->m->plan;
    p->context.n = 0;
    for (int i = 0; i < c->m->mesh.n; i++)
        if (c->gathered >> i & 1) {
            nd_context x = {.mesh = i, .form = CONTEXT_GATHER, .loc = p->loc};
            ND_PUSH(c->m->ctx->arena, &p->context, x);
        }
}

bool pass_context(nd_module *m, const nd_options *o)
{
    int errors = m->ctx->nerrors;
    cx c = {.m = m, .part = {.arena = m->ctx->arena},
            .named = {.arena = m->ctx->arena, .strings = true},
            .heads = {.arena = m->ctx->arena},
            .causal = {.arena = m->ctx->arena},
            .rows = {.arena = m->ctx->arena}};
    (void)o;
    if (m->state & ND_HAS_GRADS)
        return true;
    nd_clear_marks(m);
    cx_find_readers(m, &c.readers_of);
    zigzag(&c);
    if (c.changed)
        cx_find_readers(m, &c.readers_of);
    block(&c, m->step);
    check_asked(&c);
    settle(&c);
    if (c.changed)
        nd_dce(m);
    return m->ctx->nerrors == errors;
}
