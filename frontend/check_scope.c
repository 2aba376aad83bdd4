/* check_scope.c - the lines of a plan that say how values are cut: `shard` for
 * all of them or for some, and `zero`.
 *
 *   shard batch -> dp, heads -> tp         all values        SCOPE_ALL
 *   shard params d -> dp                   how parameters are stored
 *   shard grads d -> dp                    gradients, and the stored parameters
 *   shard optimizer d -> dp                optimizer state alone
 *   shard "layers.attn.*.w" head -> tp     the parameters that match
 *   zero 3 over dp                         parameters, along an axis of ndc's
 *                                          choice
 *
 * What a scoped rule does to which parameter is passes/shard_store.c's work.
 */
#include "frontend.h"

#include <string.h>

static const char *const scope_names[] = {"params", "grads", "optimizer"};

/* ---- which parameters a rule is for -------------------------------------- */

static bool is_for(const nd_rule *r, const nd_param *p)
{
    return r->scope == SCOPE_NAME ? nd_glob(r->pattern, p->name)
                                  : r->scope != SCOPE_ALL;
}

static bool has_axis(const nd_param *p, const nd_axis *a)
{
    return nd_axis_at(&p->value->type, a) >= 0;
}

static const char *axes_of(ck *c, const nd_param *p)
{
    const nd_type *t = &p->value->type;
    nd_buf b = {.arena = c->ctx->arena};
    nd_put(&b, "");
    for (int i = 0; i < t->rank; i++)
        nd_putf(&b, "%s`%s`", !i ? "" : i + 1 < t->rank ? ", " : " and ",
                t->axis[i]->name);
    return t->rank ? b.s : "none";
}

static void unmatched(ck *c, nd_loc at, const char *pattern)
{
    int n = c->m->params.n;
    const char **names = ND_NEWN(c->ctx->arena, const char *, n + 1);
    for (int i = 0; i < n; i++)
        names[i] = c->m->params.v[i]->name;
    const char *near = nd_nearest(pattern, names, n);
    ck_say(c, at, "no parameter matches \"%s\"%s", pattern,
           near ? nd_fmt(c->ctx->arena, "; did you mean \"%s\"?", near)
                : "; --emit=plan lists them");
}

/* A rule that no parameter can follow. */
static bool any_follows(ck *c, const nd_rule *r, nd_loc scope_at)
{
    const nd_param *some = NULL;
    for (int i = 0; i < c->m->params.n; i++) {
        const nd_param *p = c->m->params.v[i];
        if (!is_for(r, p))
            continue;
        if (has_axis(p, r->axis))
            return true;
        some = p;
    }
    if (r->scope != SCOPE_NAME)
        ck_say(c, r->loc, "no parameter has the axis `%s`", r->axis->name);
    else if (!some)
        unmatched(c, scope_at, r->pattern);
    else
        ck_say(c, r->loc, "`%s` has no axis `%s`; it has %s", some->name,
               r->axis->name, axes_of(c, some));
    return false;
}

/* ---- shard --------------------------------------------------------------- */

const nd_rule *ck_rule_of(const nd_plan *p, const nd_axis *a)
{
    for (int i = 0; i < p->rules.n; i++)
        if (p->rules.v[i].axis == a && p->rules.v[i].scope == SCOPE_ALL)
            return &p->rules.v[i];
    return NULL;
}

static bool same_scope(const nd_rule *a, const nd_rule *b)
{
    return a->scope == b->scope &&
           (a->scope != SCOPE_NAME || !strcmp(a->pattern, b->pattern));
}

static const nd_rule *earlier(const nd_plan *p, const nd_rule *r)
{
    for (int i = 0; i < p->rules.n; i++)
        if (p->rules.v[i].axis == r->axis && same_scope(&p->rules.v[i], r))
            return &p->rules.v[i];
    return NULL;
}

static bool read_mesh(ck *c, const ast_rule *r, nd_cut *out)
{
    for (int i = 0; i < r->to->n; i++) {
        int k = ck_mesh_axis(c, r->to->v[i]);
        if (k < 0)
            return false;
        for (int j = 0; j < out->n; j++)
            if (out->m[j] == k) {
                ck_say(c, r->to->v[i].loc,
                       "the mesh axis `%s` stands twice in this rule",
                       r->to->v[i].s);
                return false;
            }
        if (out->n == ND_MAX_CUT - 1) {
            ck_say(c, r->to->v[i].loc,
                   "an axis is cut by at most %d mesh axes", ND_MAX_CUT - 1);
            return false;
        }
        out->m[out->n++] = (uint8_t)k;
    }
    return true;
}

/* `out` says which values the rule is for. */
static void add_rule(ck *c, const ast_rule *r, nd_rule out, nd_loc scope_at)
{
    nd_plan *p = &c->m->plan;
    out.loc = r->loc;
    if (r->from->n != 1) {
        ck_say(c, r->loc, "a rule cuts one axis: a -> m, b -> m");
        return;
    }
    out.axis = ck_model_axis(c, r->from->v[0]);
    if (!out.axis)
        return;
    const nd_rule *old = earlier(p, &out);
    if (old) {
        ck_say(c, r->loc, "a second rule for `%s`; to cut it by several "
               "mesh axes write %s -> (a, b)", out.axis->name,
               out.axis->name);
        ck_note(c, old->loc, "the first one is here");
        return;
    }
    if (!read_mesh(c, r, &out.mesh) ||
        (out.scope != SCOPE_ALL && c->m->loss &&
         !any_follows(c, &out, scope_at)))
        return;
    ND_PUSH(c->ctx->arena, &p->rules, out);
}

void ck_shard(ck *c, const ast_pent *e)
{
    static const nd_scope scope[] = {SCOPE_PARAMS, SCOPE_GRADS, SCOPE_OPT};
    nd_rule like = {.scope = SCOPE_ALL};
    int k = 0;
    if (e->quoted) {
        like.scope = SCOPE_NAME;
        like.pattern = e->scope.s;
    } else if (e->scope.s) {
        while (k < 3 && strcmp(scope_names[k], e->scope.s))
            k++;
        if (k == 3) {
            ck_near_error(c, e->scope.loc, "scope", e->scope.s, scope_names,
                          3);
            return;
        }
        like.scope = scope[k];
    }
    for (int i = 0; i < e->rules->n; i++)
        add_rule(c, &e->rules->v[i], like, e->scope.loc);
}

/* ---- zero ---------------------------------------------------------------- */

void ck_zero(ck *c, const ast_pent *e)
{
    nd_plan *p = &c->m->plan;
    int64_t level;
    uint32_t here = 0;
    p->zero_loc = e->loc;
    if (!ck_cfg_int(c, e->value, 0, &level))
        return;
    if (level > 3) {
        ck_error(c, e->value->loc, "zero is 0, 1, 2 or 3");
        return;
    }
    p->zero = (int)level;
    for (int i = 0; i < e->names->n; i++) {
        int k = ck_mesh_axis(c, e->names->v[i]);
        if (k < 0)
            continue;
        if (k == c->m->mesh.pipe)
            ck_say(c, e->names->v[i].loc, "`%s` holds the pipeline "
                   "stages; their states differ already",
                   e->names->v[i].s);
        else if (here >> k & 1)
            ck_say(c, e->names->v[i].loc, "the mesh axis `%s` stands twice in "
                   "this line", e->names->v[i].s);
        here |= 1u << k;
    }
    p->zero_mesh |= here;
}

/* A mesh axis is given to `zero` or to scoped rules. */
void ck_scopes(ck *c)
{
    const nd_plan *p = &c->m->plan;
    for (int i = 0; p->zero && i < p->rules.n; i++) {
        const nd_rule *r = &p->rules.v[i];
        if (r->scope == SCOPE_ALL)
            continue;
        for (int k = 0; k < r->mesh.n; k++) {
            if (!(p->zero_mesh >> r->mesh.m[k] & 1))
                continue;
            const char *mesh = c->m->mesh.name[r->mesh.m[k]];
            ck_say(c, r->loc, "`%s` is cut over `%s` here, over which `zero "
                   "%d` cuts parameters along axes of its own choice: keep one "
                   "of the two, or give them different mesh axes",
                   r->axis->name, mesh, p->zero);
            ck_note(c, p->zero_loc, "`zero` is here");
        }
    }
}
