/* shard_store.c - how parameters are stored, and their gradients and state.
 *
 * A parameter is cut by the rules of its axes, as every value is. Scoped rules
 * and `zero` cut further how it is stored, behind those cuts; each use converts
 * to the cut that it needs. That alone is fully sharded data parallelism:
 *
 *   shard batch -> dp                shard params d -> dp
 *   %w = param : f32[d/dp, ffn]      stored
 *   %w_1 = all_gather [d] over dp    before each use, forward and backward
 *   %g_1 = reduce_scatter [d] over dp %g     for the gradient is cut as %w is
 *
 * Where only gradients are cut (`zero 2`, `shard grads`) the parameter is
 * gathered once per step: its op runs in phase PRE, and then what is made of it
 * alone does too. Optimizer state (`zero 1`, `shard optimizer`) is cut by the
 * runtime, flat: see buckets.c.
 *
 * A mesh axis that cuts the samples may cut some parameters as well (experts):
 * the others are then stored in pieces and these stay as they are. Any other
 * mesh axis that cuts a parameter already is no place to store pieces of it.
 */
#include "shard.h"

static bool follows(const nd_axis *a, const nd_axis *lead)
{
    while (a && a != lead)
        a = a->like;
    return a == lead;
}

/* The axis of a parameter that the rule cuts: its own, else one that follows
 * it; -1 if it has none. */
static int axis_of(const nd_rule *r, const nd_type *t)
{
    int at = nd_axis_at(t, r->axis);
    for (int i = 0; at < 0 && i < t->rank; i++)
        if (follows(t->axis[i], r->axis))
            at = i;
    return at;
}

static bool cuts_samples(const nd_module *m, int mesh)
{
    nd_cut c = {0};
    nd_axis *a = m->sample;
    if (a)
        nd_sh_walk(m, 1, &a, 0, PH_PRE, &c);
    return nd_cut_bits(c) >> mesh & 1;
}

/* ---- scoped rules -------------------------------------------------------- */

/* One parameter being given its cut. */
typedef struct store {
    nd_sh *s;
    nd_param *p;
    nd_type home, t;                 /* by the rules for all values; stored */
    const nd_rule *by[ND_MAX_MESH];  /* the scoped rule that took a mesh axis */
} store;

static const char *type_text(nd_module *m, const nd_type *t)
{
    nd_buf b = {.arena = m->ctx->arena};
    nd_print_type(&b, m, t);
    return b.s;
}

/* `mesh` cuts the parameter along axis `at` already. */
static void refuse_twice(store *st, const nd_rule *r, int mesh, int at)
{
    nd_module *m = st->s->m;
    const char *name = m->mesh.name[mesh];
    const nd_rule *first = st->by[mesh];
    if (!first)
        first = nd_rule_over(&m->plan, st->t.axis[at]);
    if (st->s->failed)
        return;
    st->s->failed = true;
    nd_error(m->ctx, r->loc, "`%s` is %s: `%s` cuts `%s` and cannot cut `%s` "
             "too; take another mesh axis here, or drop one of the two rules",
             st->p->name, type_text(m, &st->t), name, st->t.axis[at]->name,
             r->axis->name);
    if (first)
        nd_note(m->ctx, first->loc, "by this rule");
}

/* A mesh axis of one rank cuts nothing. */
static void apply(store *st, const nd_rule *r)
{
    const nd_module *m = st->s->m;
    int at = axis_of(r, &st->t);
    for (int k = 0; at >= 0 && k < r->mesh.n; k++) {
        int mesh = r->mesh.m[k], old = nd_cut_by(&st->t, mesh);
        nd_cut *c = &st->t.cut[at];
        if (m->mesh.size[mesh] == 1)
            continue;
        if (old < 0 && c->n < ND_MAX_CUT) {
            c->m[c->n++] = (uint8_t)mesh;
            st->by[mesh] = r;
        } else if (old >= 0 && old != at &&
                   (r->scope == SCOPE_NAME ||
                    (!st->by[mesh] && !cuts_samples(m, mesh)))) {
            refuse_twice(st, r, mesh, old);
        }
    }
}

static void walk(store *st, nd_scope scope)
{
    const nd_plan *plan = &st->s->m->plan;
    for (int i = 0; i < plan->rules.n; i++) {
        const nd_rule *r = &plan->rules.v[i];
        if (r->scope == scope &&
            (scope != SCOPE_NAME || nd_glob(r->pattern, st->p->name)))
            apply(st, r);
    }
}

/* A gradient is cut as its parameter is stored: a rule for gradients may repeat
 * what one for parameters says, no more. */
static void check_grads(store *st)
{
    nd_module *m = st->s->m;
    const nd_type stored = st->t;
    const nd_rule *first = NULL;
    for (int k = 0; k < m->mesh.n; k++)
        first = st->by[k] ? st->by[k] : first;
    for (int i = 0; i < m->plan.rules.n && !st->s->failed; i++) {
        const nd_rule *r = &m->plan.rules.v[i];
        if (r->scope != SCOPE_GRADS)
            continue;
        apply(st, r);
        if (st->s->failed || nd_same_cut(&st->t, &stored))
            continue;
        st->s->failed = true;
        nd_error(m->ctx, r->loc, "a gradient is cut as its parameter is "
                 "stored, and `%s` is stored as %s: change one of the two "
                 "rules", st->p->name, type_text(m, &stored));
        nd_note(m->ctx, first ? first->loc : m->plan.zero_loc,
                first ? "by this rule" : "by `zero`");
    }
    st->t = stored;
}

/* ---- zero 2 and 3 -------------------------------------------------------- */

/* How well an axis serves to store pieces along it: 0 not at all. */
static int fitness(const store *st, int i, int parts)
{
    const nd_axis *a = st->t.axis[i];
    int64_t n = nd_extent_max(&st->s->m->mesh, a->size, st->t.cut[i]);
    if (nd_table_get(&st->s->repeated, a) || st->t.cut[i].n == ND_MAX_CUT ||
        n < 2)
        return 0;
    if (n < parts)
        return 1;
    if (n % parts)
        return 2;
    return st->t.cut[i].n ? 3 : 4;
}

/* The best axis; of equals the longest, of those the first. */
static void cut_over(store *st, int mesh)
{
    const nd_mesh *ms = &st->s->m->mesh;
    int best = -1, most = 0;
    int64_t length = 0;
    for (int i = 0; i < st->t.rank; i++) {
        int fit = fitness(st, i, ms->size[mesh]);
        int64_t n = nd_extent_max(ms, st->t.axis[i]->size, st->t.cut[i]);
        if (fit > most || (fit && fit == most && n > length)) {
            best = i;
            most = fit;
            length = n;
        }
    }
    if (best >= 0)
        st->t.cut[best].m[st->t.cut[best].n++] = (uint8_t)mesh;
}

static void cut_by_zero(store *st)
{
    const nd_module *m = st->s->m;
    for (int k = 0; k < m->mesh.micro; k++)
        if ((m->plan.zero_mesh >> k & 1) && m->mesh.size[k] > 1 &&
            nd_cut_by(&st->t, k) < 0)
            cut_over(st, k);
}

/* ---- a parameter --------------------------------------------------------- */

void nd_sh_store(nd_sh *s, nd_op *op)
{
    nd_param *p = op->param;
    const nd_plan *plan = &s->m->plan;
    store st = {.s = s, .p = p,
                .home = nd_sh_home(s->m, &op->out[0]->type, PH_PRE)};
    st.t = st.home;
    walk(&st, SCOPE_NAME);
    walk(&st, SCOPE_PARAMS);
    /* Frozen ones too: they are what `zero 3` makes smaller. */
    if (plan->zero == 3)
        cut_by_zero(&st);
    bool once = nd_same_cut(&st.t, &st.home);
    if (!p->frozen && once)
        walk(&st, SCOPE_GRADS);
    else if (!p->frozen)
        check_grads(&st);
    /* What a rule gathers at each use stays so. */
    if (!p->frozen && plan->zero == 2)
        cut_by_zero(&st);
    op->out[0]->type = st.t;
    if (once && !nd_same_cut(&st.t, &st.home))
        op->phase = PH_PRE;
}

bool nd_is_in_pieces(const nd_module *m, const nd_param *p)
{
    nd_type home = nd_sh_home(m, &p->value->type, PH_PRE);
    return !nd_same_cut(&p->value->type, &home);
}

uint32_t nd_zero_mesh(const nd_module *m, const nd_param *p)
{
    uint32_t mask = m->plan.zero == 1 ? m->plan.zero_mesh : 0;
    for (int i = 0; i < m->plan.rules.n; i++) {
        const nd_rule *r = &m->plan.rules.v[i];
        if (r->scope == SCOPE_OPT && axis_of(r, &p->value->type) >= 0)
            mask |= nd_cut_bits(r->mesh);
    }
    return mask & ~nd_cut_mask(&p->value->type);
}

/* ---- what the plan asked for and did not get ----------------------------- */

/* Elements of trained parameters whose gradient is summed over a mesh axis, so
 * that its ranks can share something; and of those that it cuts already. */
typedef struct shares {
    double some, none;
    const nd_param *cut;             /* the first one of these */
} shares;

static shares shares_over(const nd_sh *s, int mesh, const nd_rule *r)
{
    shares q = {0};
    for (int i = 0; i < s->m->params.n; i++) {
        const nd_param *p = s->m->params.v[i];
        nd_type home = nd_sh_home(s->m, &p->value->type, PH_PRE);
        double n = (double)nd_numel(&home);
        if (p->frozen || (r && axis_of(r, &home) < 0))
            continue;
        if (s->summed[p->index] >> mesh & 1)
            q.some += n;
        if (nd_cut_by(&home, mesh) < 0)
            continue;
        q.cut = q.none == 0 ? p : q.cut;
        q.none += n;
    }
    return q;
}

/* Does a rule for all values cut anything over it? If not, that is said. */
static bool is_used(const nd_module *m, int mesh)
{
    for (int i = 0; i < m->plan.rules.n; i++)
        if (m->plan.rules.v[i].scope == SCOPE_ALL &&
            (nd_cut_bits(m->plan.rules.v[i].mesh) >> mesh & 1))
            return true;
    return false;
}

/* `r` is NULL for the `zero` line. */
static void check_over(nd_sh *s, int mesh, const nd_rule *r)
{
    nd_module *m = s->m;
    const char *name = m->mesh.name[mesh];
    nd_loc loc = r ? r->loc : m->plan.zero_loc;
    shares q = shares_over(s, mesh, r);
    if (s->failed || m->mesh.size[mesh] == 1 || cuts_samples(m, mesh))
        return;
    if (q.none > q.some) {
        nd_type home = nd_sh_home(m, &q.cut->value->type, PH_PRE);
        const nd_axis *a = home.axis[nd_cut_by(&home, mesh)];
        const nd_rule *by = nd_rule_over(&m->plan, a);
        s->failed = true;
        nd_error(m->ctx, loc, "`%s` is cut along `%s` over `%s` already, whose "
                 "ranks hold different pieces of it and share nothing; take "
                 "the mesh axis that cuts `%s`", q.cut->name, a->name, name,
                 m->sample ? m->sample->name : "the samples");
        if (by)
            nd_note(m->ctx, by->loc, "by this rule");
    } else if (q.some == 0 && is_used(m, mesh)) {
        nd_perf(m->ctx, loc, "no gradient is summed over `%s`: %s", name,
                m->plan.zero == 1 || (r && r->scope == SCOPE_OPT)
                    ? "its ranks share no state"
                    : "pieces are stored and gathered, but the work is not "
                      "shared; cut the samples over it");
    }
}

void nd_sh_check_store(nd_sh *s)
{
    const nd_plan *plan = &s->m->plan;
    for (int k = 0; plan->zero && k < s->m->mesh.micro; k++)
        if (plan->zero_mesh >> k & 1)
            check_over(s, k, NULL);
    for (int i = 0; i < plan->rules.n; i++)
        for (int k = 0; plan->rules.v[i].scope == SCOPE_OPT &&
                        k < plan->rules.v[i].mesh.n; k++)
            check_over(s, plan->rules.v[i].mesh.m[k], &plan->rules.v[i]);
}
