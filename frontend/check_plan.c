/* check_plan.c - the plan block: mesh, recompute, the whole.
 *
 *   mesh     pp = 2, dp = 2, tp = 2  ->  m->mesh, with `micro` as last axis
 *
 * --mesh changes sizes of the plan's mesh; without a plan block it is the
 * mesh, and `batch -> dp` is the one rule if it has a `dp`.
 */
#include "frontend.h"

#include <stdlib.h>
#include <string.h>

/* ---- mesh ---------------------------------------------------------------- */

/* Puts a mesh axis before `micro`. */
static bool add_mesh_axis(ck *c, nd_loc at, const char *name, int64_t size)
{
    nd_mesh *m = &c->m->mesh;
    if (!strcmp(name, "micro")) {
        ck_say(c, at, "`micro` is the axis of the microbatches; choose "
               "another name");
        return false;
    }
    if (nd_mesh_find(m, name) >= 0) {
        ck_say(c, at, "a second mesh axis `%s`", name);
        return false;
    }
    if (m->n == ND_MAX_MESH) {
        ck_say(c, at, "more than %d mesh axes", ND_MAX_MESH - 1);
        return false;
    }
    m->name[m->n] = m->name[m->n - 1];
    m->size[m->n] = m->size[m->n - 1];
    m->name[m->n - 1] = name;
    m->size[m->n - 1] = (int)size;
    m->micro = m->n++;
    return true;
}

static void mesh_entry(ck *c, const ast_pent *e)
{
    for (int i = 0; i < e->kvs->n; i++) {
        int64_t size;
        const ast_arg *a = &e->kvs->v[i];
        /* One with a bad size is known to the rules all the same. */
        if (!ck_cfg_int(c, a->e, 1, &size)) {
            size = 1;
        } else if (size > 65536) {
            ck_say(c, a->e->loc, "a mesh axis has at most 65536 ranks");
            size = 1;
        }
        if (!add_mesh_axis(c, a->name.loc, a->name.s, size))
            c->mesh_refused = true;
    }
}

/* Where the plan's `mesh` line names this axis, or begins (-1). */
static nd_loc mesh_place(const ck *c, const ast_decl *d, int mesh)
{
    for (int i = 0; d && i < d->pents->n; i++) {
        const ast_pent *e = d->pents->v[i];
        if (e->kind != P_MESH)
            continue;
        for (int k = 0; mesh >= 0 && k < e->kvs->n; k++)
            if (!strcmp(e->kvs->v[k].name.s, c->m->mesh.name[mesh]))
                return e->kvs->v[k].name.loc;
        return e->loc;
    }
    return c->m->plan.loc;
}

static void mesh_list(const ck *c, nd_buf *b)
{
    for (int i = 0; i < c->m->mesh.micro; i++)
        nd_putf(b, "%s%s", i ? ", " : "", c->m->mesh.name[i]);
}

/* --mesh dp=2,tp=4 */
static bool mesh_option(ck *c, bool has_plan)
{
    const char *s = c->opt->mesh;
    nd_mesh *m = &c->m->mesh;
    uint32_t given = 0;
    while (s && *s) {
        size_t n = strcspn(s, ",");
        char *item = nd_strndup(c->ctx->arena, s, n), *end;
        char *eq = strchr(item, '=');
        long size = eq ? strtol(eq + 1, &end, 10) : 0;
        if (!eq || eq == item || *end || size < 1 || size > 65536) {
            ck_say(c, nd_nowhere, "--mesh %s: it is written "
                   "--mesh dp=2,tp=4", item);
            return false;
        }
        *eq = 0;
        int k = nd_mesh_find(m, item);
        if (has_plan && (k < 0 || k == m->micro)) {
            nd_buf b = {c->ctx->arena, NULL, 0, 0};
            nd_put(&b, "");
            mesh_list(c, &b);
            ck_say(c, nd_nowhere, "--mesh: the plan has no mesh axis "
                   "`%s`; it has %s", item, b.n ? b.s : "none");
            return false;
        }
        if (has_plan ? given >> k & 1 : k >= 0 && k != m->micro) {
            ck_say(c, nd_nowhere, "--mesh: `%s` is given twice", item);
            return false;
        }
        if (has_plan)
            m->size[k] = (int)size;
        else if (!add_mesh_axis(c, nd_nowhere, item, size))
            return false;
        given |= has_plan ? 1u << k : 0;
        s += n + (s[n] == ',');
    }
    return true;
}

int ck_mesh_axis(ck *c, ast_name n)
{
    const nd_mesh *m = &c->m->mesh;
    int k = nd_mesh_find(m, n.s);
    if (k >= 0 && k != m->micro)
        return k;
    if (c->mesh_refused)
        return -1;
    if (m->micro == 0)
        ck_say(c, n.loc, "`%s`: the plan has no mesh", n.s);
    else
        ck_near_error(c, n.loc, "mesh axis", n.s, m->name, m->micro);
    return -1;
}

nd_axis *ck_model_axis(ck *c, ast_name n)
{
    ck_bind *b = ck_find_bind(c, n.s);
    if (b)
        return b->axis[0];
    ck_unknown(c, n.loc, "axis", n.s);
    return NULL;
}

/* ---- the rest ------------------------------------------------------------ */

static const char *word(const ast_expr *e)
{
    if (e->kind == E_CALL && e->a->kind == E_NAME)
        return e->a->str;
    return e->kind == E_NAME ? e->str : "";
}

/* auto(8e9): bytes of a rank. */
static void recompute_auto(ck *c, ast_expr *e)
{
    static const char *const names[] = {"bytes"};
    ast_expr *slot;
    if (!ck_cfg_args(c, "auto", e->kind == E_CALL ? e->args : NULL, names, 1,
                     &slot))
        return;
    if (!slot)
        ck_error(c, e->loc, "the memory of a rank is not known; say how many "
                 "bytes it may use: auto(8e9)");
    else if (ck_cfg_at_least(c, slot, 1, &c->m->plan.room))
        c->m->plan.recompute = REMAT_AUTO;
}

static void recompute_entry(ck *c, const ast_pent *e)
{
    static const char *const names[] = {"none", "attention", "block", "auto"};
    if (e->exprs->n > 1) {
        ck_error(c, e->loc, "`recompute` takes one word");
        return;
    }
    for (int i = 0; i < 4; i++)
        if (!strcmp(names[i], word(e->exprs->v[0]))) {
            c->m->plan.remat_loc = e->exprs->v[0]->loc;
            if (i == REMAT_AUTO)
                recompute_auto(c, e->exprs->v[0]);
            else if (ck_cfg_word(c, e->exprs->v[0]))
                c->m->plan.recompute = (nd_remat)i;
            return;
        }
    ck_near_error(c, e->exprs->v[0]->loc, "recompute",
                  ast_text(c->ctx->arena, e->exprs->v[0]), names, 4);
}

/* No more microbatches than rows on a rank. */
static void clamp_microbatches(ck *c)
{
    nd_plan *p = &c->m->plan;
    const nd_axis *s = c->m->sample;
    int most = c->opt->microbatches;
    if (most && p->microbatches > most)
        p->microbatches = most;
    if (p->microbatches > 1 && !s) {
        ck_say(c, p->micro_loc.file ? p->micro_loc : p->pipe_loc,
               "microbatches need a sample axis: `batch`, or "
               "train { over = axis }");
        return;
    }
    if (!s)
        return;
    const nd_rule *r = nd_rule_of(p, s);
    int64_t rows = nd_extent_max(&c->m->mesh, s->size,
                                 r ? r->mesh : (nd_cut){0});
    if (p->microbatches > rows) {
        nd_perf(c->ctx, p->micro_loc.file ? p->micro_loc : p->pipe_loc,
                "%d microbatches, but a rank holds %lld row%s of `%s`: using "
                "%lld", p->microbatches, (long long)rows, rows == 1 ? "" : "s",
                s->name, (long long)rows);
        p->microbatches = (int)rows;
    }
}

/* Does `zero` or a scoped rule store pieces over it? */
static bool stores_over(const nd_plan *p, int mesh)
{
    bool found = p->zero && p->zero_mesh >> mesh & 1;
    for (int i = 0; i < p->rules.n; i++)
        found |= nd_cut_bits(p->rules.v[i].mesh) >> mesh & 1;
    return found;
}

static void unused_mesh_axes(ck *c, const ast_decl *d)
{
    const nd_mesh *m = &c->m->mesh;
    const nd_plan *p = &c->m->plan;
    uint32_t used = m->pipe >= 0 ? 1u << m->pipe : 0;
    for (int i = 0; i < p->rules.n; i++)
        if (p->rules.v[i].scope == SCOPE_ALL)
            used |= nd_cut_bits(p->rules.v[i].mesh);
    for (int k = 0; k < m->micro; k++)
        if (!(used >> k & 1) && m->size[k] > 1)
            nd_perf(c->ctx, mesh_place(c, d, k), "no rule %s the mesh axis "
                    "`%s`: its ranks do the same work",
                    stores_over(p, k) ? "cuts values over" : "uses",
                    m->name[k]);
}

static void default_rules(ck *c)
{
    int k = nd_mesh_find(&c->m->mesh, "dp");
    nd_rule r = {.scope = SCOPE_ALL, .axis = c->m->sample};
    if (k < 0 || !c->m->sample)
        return;
    r.mesh.n = 1;
    r.mesh.m[0] = (uint8_t)k;
    ND_PUSH(c->ctx->arena, &c->m->plan.rules, r);
}

/* Of these a plan has one line each. */
static void lines_twice(ck *c, const ast_decl *d)
{
    static const char *const word[] = {
        [P_MESH] = "mesh", [P_ZERO] = "zero", [P_RECOMPUTE] = "recompute",
        [P_MICROBATCHES] = NULL,
    };
    const ast_pent *first[P_MICROBATCHES + 1] = {0};
    for (int i = 0; i < d->pents->n; i++) {
        const ast_pent *e = d->pents->v[i];
        if (!word[e->kind])
            continue;
        if (first[e->kind]) {
            ck_say(c, e->loc, "a second `%s` line", word[e->kind]);
            ck_note(c, first[e->kind]->loc, "the first one is here");
        } else {
            first[e->kind] = e;
        }
    }
}

static void entries(ck *c, const ast_decl *d, bool mesh)
{
    for (int i = 0; i < d->pents->n; i++) {
        const ast_pent *e = d->pents->v[i];
        if (mesh != (e->kind == P_MESH))
            continue;
        switch (e->kind) {
        case P_MESH:
            mesh_entry(c, e);
            break;
        case P_SHARD:
            ck_shard(c, e);
            break;
        case P_PIPELINE:
            ck_pipeline(c, e);
            break;
        case P_ZERO:
            ck_zero(c, e);
            break;
        case P_RECOMPUTE:
            recompute_entry(c, e);
            break;
        case P_CONTEXT:
            ck_context(c, e);
            break;
        case P_COMPRESS:
            ck_later(c, e->loc, "`compress`");
            break;
        case P_MICROBATCHES:
            ck_microbatches(c, e->value);
            break;
        }
    }
}

static void check_ranks(ck *c, const ast_decl *d)
{
    double n = 1;                    /* seven axes of 65536 */
    for (int i = 0; i < c->m->mesh.micro; i++)
        n *= c->m->mesh.size[i];
    if (n > 65536)
        ck_say(c, mesh_place(c, d, -1), "a mesh of %.0f ranks; at most 65536",
               n);
}

void ck_plan(ck *c, const ast_decl *d)
{
    nd_plan *p = &c->m->plan;
    *p = (nd_plan){.schedule = SCHED_KIND_1F1B, .microbatches = 1,
                   .require_even = c->opt->require_even};
    if (d) {
        p->loc = d->loc;
        lines_twice(c, d);
        entries(c, d, true);
    }
    if (!mesh_option(c, d != NULL))
        return;
    if (d)
        entries(c, d, false);
    else
        default_rules(c);
    check_ranks(c, d);
    ck_pipeline_conflicts(c);
    ck_scopes(c);
    if (c->ctx->nerrors)
        return;
    clamp_microbatches(c);
    ck_pipeline_numbers(c);
    unused_mesh_axes(c, d);
    c->m->mesh.size[c->m->mesh.micro] = p->microbatches;
}
