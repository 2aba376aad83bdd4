/* fit.c - where the plan's rules do not fit the program.
 *
 *   axis batch = 5, shard batch -> dp, dp = 4
 *       runs: one rank holds two rows and the others one, so a note says at
 *       the axis which sizes would divide. Under --require-even an error
 *   shard heads -> tp, seq -> tp, and all values with `seq` have `heads`
 *       the second rule never cuts anything: a note at the rule
 *
 * Read off the types that the shard pass gave, so that nothing is said of what
 * no value has. Microbatches and mesh axes of one rank cut nothing.
 */
#include "passes.h"

/* One way in which values cut an axis. */
typedef struct use {
    nd_axis *axis;
    nd_cut cut;
} use;

typedef struct fit {
    nd_module *m;
    ND_VEC(use) uses;
    bool *exists;                    /* by rule: a value has its axis */
    uint32_t *applied;               /* by rule: mesh axes that it cuts by */
    const nd_value **taken;          /* by rule and mesh axis: a value whose
                                        other axis is cut by it */
} fit;

/* `axis kv = seq`: the user knows both by the first one. */
static nd_axis *lead_of(nd_axis *a)
{
    while (a->like && a->like->size == a->size)
        a = a->like;
    return a;
}

/* The number of the rule that says how `a` is cut, or -1. */
static int rule_of(const nd_module *m, const nd_axis *a)
{
    const nd_rule *r = nd_rule_over(&m->plan, a);
    return r ? (int)(r - m->plan.rules.v) : -1;
}

static nd_cut real_cut(const nd_mesh *mesh, nd_cut cut)
{
    nd_cut real = {0};
    for (int j = 0; j < cut.n; j++)
        if (cut.m[j] != mesh->micro && mesh->size[cut.m[j]] > 1)
            real.m[real.n++] = cut.m[j];
    return real;
}

/* Of a cut, what a rule asked for: `zero` takes the best axis that there is,
 * and no other size would be of use to anybody but it. */
static nd_cut by_rules(const fit *f, nd_cut cut, int rule)
{
    const nd_plan *plan = &f->m->plan;
    uint32_t chosen = plan->zero > 1 ? plan->zero_mesh : 0;
    nd_cut left = {0};
    if (rule >= 0)
        chosen &= ~nd_cut_bits(plan->rules.v[rule].mesh);
    for (int j = 0; j < cut.n; j++)
        if (!(chosen >> cut.m[j] & 1))
            left.m[left.n++] = cut.m[j];
    return left;
}

static void add_use(fit *f, nd_axis *a, nd_cut cut)
{
    for (int i = 0; i < f->uses.n; i++)
        if (f->uses.v[i].axis == a && nd_cut_eq(f->uses.v[i].cut, cut))
            return;
    ND_PUSH(f->m->ctx->arena, &f->uses, ((use){a, cut}));
}

static void see_value(fit *f, const nd_value *v)
{
    uint32_t all = nd_cut_mask(&v->type);
    for (int i = 0; i < v->type.rank; i++) {
        int rule = rule_of(f->m, v->type.axis[i]);
        nd_cut cut = by_rules(f, real_cut(&f->m->mesh, v->type.cut[i]), rule);
        if (cut.n)
            add_use(f, lead_of(v->type.axis[i]), cut);
        if (rule < 0)
            continue;
        f->exists[rule] = true;
        f->applied[rule] |= nd_cut_bits(cut);
        for (int k = 0; k < f->m->mesh.micro; k++) {
            const nd_value **taken = &f->taken[rule * ND_MAX_MESH + k];
            if (!*taken && v->def && (all & ~nd_cut_bits(cut)) >> k & 1)
                *taken = v;
        }
    }
}

static void see_op(nd_op *op, void *user)
{
    for (int i = 0; i < op->nout; i++)
        see_value(user, op->out[i]);
    for (int i = 0; op->body && i < op->body->args.n; i++)
        see_value(user, op->body->args.v[i]);
}

/* ---- sizes that do not divide -------------------------------------------- */

static void put_mesh_axes(nd_buf *b, const nd_mesh *mesh, nd_cut cut)
{
    nd_put(b, cut.n > 1 ? "mesh axes " : "mesh axis ");
    for (int j = 0; j < cut.n; j++)
        nd_putf(b, "%s`%s` of size %d", j ? " and " : "",
                mesh->name[cut.m[j]], mesh->size[cut.m[j]]);
}

/* Does another way to cut the axis include this one? What divides over all of
 * its mesh axes divides over fewer. */
static bool is_part(const fit *f, const use *u)
{
    uint32_t mine = nd_cut_bits(u->cut);
    for (int i = 0; i < f->uses.n; i++) {
        const use *o = &f->uses.v[i];
        if (o->axis == u->axis && o->cut.n > u->cut.n &&
            (mine & ~nd_cut_bits(o->cut)) == 0)
            return true;
    }
    return false;
}

static void say_uneven(fit *f, const use *u)
{
    nd_ctx *c = f->m->ctx;
    const nd_axis *a = u->axis;
    int64_t parts = 1;
    for (int j = 0; j < u->cut.n; j++)
        parts *= f->m->mesh.size[u->cut.m[j]];
    if (a->size % parts == 0 || is_part(f, u))
        return;
    int64_t less = a->size / parts, empty = parts - a->size;
    nd_buf b = {c->arena, NULL, 0, 0};
    nd_putf(&b, "axis `%s` of size %lld %s ", a->name, (long long)a->size,
            less ? "does not divide over" : "is shorter than");
    put_mesh_axes(&b, &f->m->mesh, u->cut);
    if (less)
        nd_putf(&b, ": ranks hold %lld or %lld; nearest sizes that divide: "
                "%lld and %lld", (long long)less + 1, (long long)less,
                (long long)(less * parts), (long long)((less + 1) * parts));
    else
        nd_putf(&b, ": %lld of %lld ranks hold%s nothing; the nearest size "
                "that divides: %lld", (long long)empty, (long long)parts,
                empty == 1 ? "s" : "", (long long)parts);
    if (f->m->plan.require_even)
        nd_error(c, a->loc, "%s", b.s);
    else if (less)
        nd_perf(c, a->loc, "%s", b.s);
    else
        nd_warning(c, a->loc, "%s", b.s);
}

/* ---- rules without effect ------------------------------------------------ */

static void say_unused(fit *f, int i, int k)
{
    nd_ctx *c = f->m->ctx;
    const nd_rule *r = &f->m->plan.rules.v[i];
    const char *name = r->axis->name, *mesh = f->m->mesh.name[k];
    const nd_value *v = f->taken[i * ND_MAX_MESH + k];
    if (!v) {
        nd_perf(c, r->loc, "no value is cut by this rule over `%s`: what has "
                "the axis `%s` runs along the whole of it", mesh, name);
        return;
    }
    nd_perf(c, r->loc, "no value is cut by this rule over `%s`: where there is "
            "`%s`, another axis is cut over it already", mesh, name);
    nd_note(c, v->def->loc, "`%s` here is cut over `%s` along `%s`; put the "
            "rule for `%s` before that one, or give it another mesh axis",
            v->name, mesh, v->type.axis[nd_cut_by(&v->type, k)]->name, name);
}

static void say_rule(fit *f, int i)
{
    const nd_module *m = f->m;
    const nd_rule *r = &m->plan.rules.v[i];
    if (r->scope != SCOPE_ALL)
        return;
    if (!f->exists[i]) {
        nd_warning(m->ctx, r->loc, "no value has the axis `%s`: this rule "
                   "cuts nothing", r->axis->name);
        return;
    }
    for (int j = 0; j < r->mesh.n; j++)
        if (m->mesh.size[r->mesh.m[j]] > 1 &&
            !(f->applied[i] >> r->mesh.m[j] & 1))
            say_unused(f, i, r->mesh.m[j]);
}

bool pass_fit(nd_module *m, const nd_options *o)
{
    (void)o;
    int n = m->plan.rules.n;
    nd_arena *a = m->ctx->arena;
    fit f = {.m = m, .exists = ND_NEWN(a, bool, n),
             .applied = ND_NEWN(a, uint32_t, n),
             .taken = ND_NEWN(a, const nd_value *, n * ND_MAX_MESH)};
    int before = m->ctx->nerrors;
    nd_walk(m->step, see_op, &f);
    for (int i = 0; i < m->axes.n; i++)
        for (int k = 0; k < f.uses.n; k++)
            if (f.uses.v[k].axis == m->axes.v[i])
                say_uneven(&f, &f.uses.v[k]);
    for (int i = 0; i < n; i++)
        say_rule(&f, i);
    return m->ctx->nerrors == before;
}
