/* check_plan.c - the plan block: mesh, pipeline, recompute, the whole.
 *
 *   mesh     pp = 2, dp = 2, tp = 2  ->  m->mesh, with `micro` as last axis
 *   pipeline layers -> pp            ->  m->plan.piped
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
        add_mesh_axis(c, a->name.loc, a->name.s, size);
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

/* ---- pipeline ------------------------------------------------------------ */

static const char *word(const ast_expr *e)
{
    if (e->kind == E_CALL && e->a->kind == E_NAME)
        return e->a->str;
    return e->kind == E_NAME ? e->str : "";
}

static void schedule(ck *c, ast_expr *e)
{
    static const char *const names[] = {
        "gpipe", "1f1b", "interleaved", "bfs", "zb_h1", "zb_h2", "zb_v",
        "v_half", "v_min", "dualpipe_v", "pipedream", "pipedream_2bw", "auto",
        "file",
    };
    enum { N = sizeof names / sizeof *names };
    for (int i = 0; i < N; i++)
        if (!strcmp(names[i], word(e))) {
            nd_plan *p = &c->m->plan;
            if (i <= 1)
                ck_cfg_word(c, e);
            else if (sched_parse_name(ast_text(c->ctx->arena, e), &p->schedule,
                                      &p->per_device))
                return;
            else
                ck_later(c, e->loc, nd_fmt(c->ctx->arena, "the schedule `%s`",
                                           names[i]));
            c->m->plan.schedule =
                i == 0 ? SCHED_KIND_GPIPE : SCHED_KIND_1F1B;
            return;
        }
    ck_near_error(c, e->loc, "schedule", ast_text(c->ctx->arena, e), names, N);
}

static int64_t iterations(const nd_plan *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->piped.n; i++)
        n += p->piped.v[i]->size;
    return n;
}

static const char *axes_text(ck *c)
{
    nd_buf b = {.arena = c->ctx->arena};
    for (int i = 0; i < c->m->plan.piped.n; i++)
        nd_putf(&b, "%s%s", i ? "`, `" : "", c->m->plan.piped.v[i]->name);
    return b.s;
}

static void stages(ck *c, ast_expr *e)
{
    nd_plan *p = &c->m->plan;
    int64_t sum = 0, want = c->m->mesh.size[c->m->mesh.pipe];
    int64_t most = iterations(p);
    if (e->kind == E_NAME && !strcmp(e->str, "auto"))
        return;
    if (e->kind != E_LIST) {
        ck_error(c, e->loc, "stages are `auto` or a list: [6, 6]");
        return;
    }
    int n = e->args->n;
    if (n != want) {
        ck_error(c, e->loc, "%d stage%s for a mesh axis of size %lld", n,
                 n == 1 ? "" : "s", (long long)want);
        return;
    }
    p->stages_given = ND_NEWN(c->ctx->arena, int, n);
    for (int i = 0; i < n; i++) {
        int64_t k;
        if (!ck_cfg_int(c, e->args->v[i].e, 1, &k))
            return;
        p->stages_given[i] = (int)(k > most ? most + 1 : k);
        sum += k;
    }
    if (sum != most)
        ck_error(c, e->loc, "the stages hold %lld of %lld `%s`",
                 (long long)sum, (long long)most, axes_text(c));
    p->nstages_given = n;
}

static void microbatches(ck *c, ast_expr *e)
{
    nd_plan *p = &c->m->plan;
    int64_t n;
    if (p->micro_loc.file && p->micro_loc.begin != e->loc.begin) {
        ck_say(c, e->loc, "the microbatches are given twice");
        ck_note(c, p->micro_loc, "they are given here already");
        return;
    }
    p->micro_loc = e->loc;
    if (!ck_cfg_int(c, e, 1, &n))
        return;
    if (n > 1 << 20)
        ck_error(c, e->loc, "more than %d microbatches", 1 << 20);
    else
        p->microbatches = (int)n;
}

typedef struct seek {
    nd_axis *axis;
    nd_op *found;                    /* a repeat over it, the outermost */
} seek;

static void find_repeat(nd_op *op, void *user)
{
    seek *s = user;
    if (op->kind == OP_REPEAT && op->axes[0] == s->axis &&
        (!s->found || s->found->block->parent))
        s->found = op;
}

/* The pipelined axis needs a repeat that is in no other one. */
static void check_repeat(ck *c, const ast_rule *r, nd_axis *a)
{
    seek s = {.axis = a};
    nd_loc at = r->from->v[0].loc;
    nd_walk(c->m->step, find_repeat, &s);
    if (!s.found) {
        ck_say(c, at, "the model has no `repeat %s` to cut in stages",
               a->name);
    } else if (s.found->block->parent) {
        nd_op *outer = s.found->block->parent;
        while (outer->block->parent)
            outer = outer->block->parent;
        ck_say(c, at, "`repeat %s` is inside `repeat %s`: an outermost repeat "
               "is cut in stages", a->name, outer->axes[0]->name);
        ck_note(c, s.found->loc, "the repeat is here");
    }
}

static void pipeline_entry(ck *c, const ast_pent *e)
{
    static const char *const names[] = {"schedule", "microbatches", "stages"};
    nd_plan *p = &c->m->plan;
    nd_mesh *m = &c->m->mesh;
    const ast_rule *r = &e->rules->v[0];
    ast_expr *slot[3];
    if (p->piped.n) {
        ck_say(c, e->loc, "a second `pipeline`");
        ck_note(c, p->pipe_loc, "the first one is here");
        return;
    }
    if (r->from->n != 1 || r->to->n != 1) {
        ck_say(c, r->loc, "a pipeline is one axis -> one mesh axis");
        return;
    }
    nd_axis *a = ck_model_axis(c, r->from->v[0]);
    int k = ck_mesh_axis(c, r->to->v[0]);
    if (!a || k < 0)
        return;
    ND_PUSH(c->ctx->arena, &p->piped, a);
    p->pipe_loc = r->loc;
    m->pipe = k;
    if (c->m->loss)
        check_repeat(c, r, a);
    if (m->size[k] > a->size) {
        ck_say(c, r->loc, "%d stages for %lld `%s`: a stage would be "
               "empty", m->size[k], (long long)a->size, a->name);
        return;
    }
    if (!ck_cfg_args(c, "pipeline", e->kvs, names, 3, slot))
        return;
    p->schedule = SCHED_KIND_1F1B;
    if (slot[0])
        schedule(c, slot[0]);
    if (slot[1])
        microbatches(c, slot[1]);
    else if (!p->micro_loc.file)
        p->microbatches = m->size[k];
    if (slot[2])
        stages(c, slot[2]);
}

/* An axis or a mesh axis in both pipeline and shard. */
static void pipeline_conflicts(ck *c)
{
    const nd_plan *p = &c->m->plan;
    const nd_mesh *m = &c->m->mesh;
    for (int i = 0; p->piped.n && i < p->rules.n; i++) {
        const nd_rule *r = &p->rules.v[i];
        if (nd_is_piped(c->m, r->axis)) {
            ck_say(c, r->loc, "`%s` is cut in pipeline stages and "
                   "cannot be in `shard`", r->axis->name);
            ck_note(c, p->pipe_loc, "the pipeline is here");
        }
        for (int k = 0; k < r->mesh.n; k++)
            if (r->mesh.m[k] == m->pipe) {
                ck_say(c, r->loc, "the mesh axis `%s` holds the "
                       "pipeline stages and cannot be in `shard`",
                       m->name[m->pipe]);
                ck_note(c, p->pipe_loc, "the pipeline is here");
            }
    }
}

/* ---- the rest ------------------------------------------------------------ */

static void recompute_entry(ck *c, const ast_pent *e)
{
    static const char *const names[] = {"none", "attention", "block", "auto"};
    static const nd_remat remat[] = {REMAT_NONE, REMAT_ATTENTION,
                                     REMAT_BLOCK};
    if (e->exprs->n > 1) {
        ck_error(c, e->loc, "`recompute` takes one word");
        return;
    }
    for (int i = 0; i < 4; i++)
        if (!strcmp(names[i], word(e->exprs->v[0]))) {
            if (i == 3)
                ck_later(c, e->loc, "recompute auto");
            else if (ck_cfg_word(c, e->exprs->v[0]))
                c->m->plan.recompute = remat[i];
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
            pipeline_entry(c, e);
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
            microbatches(c, e->value);
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
    pipeline_conflicts(c);
    ck_scopes(c);
    if (c->ctx->nerrors)
        return;
    clamp_microbatches(c);
    unused_mesh_axes(c, d);
    c->m->mesh.size[c->m->mesh.micro] = p->microbatches;
}
