/* check_call.c - a call evaluates the function's body in place.
 *
 *   fn linear[in -> out](x) { w = param [in -> out] ~ normal(0.02) ... }
 *   q = linear[d -> heads, head](x) as q
 *
 * binds in = d, out = heads, head, and makes the parameter "attn.q.w". An axis
 * on both sides of the arrow is another axis inside and is renamed back. A
 * parameter is made when it is first read, so a side of `where` that is not
 * taken leaves nothing behind.
 */
#include "frontend.h"

#include <string.h>

/* ---- instance names ------------------------------------------------------ */

static const ck_child *child(const ck_scope *s, const char *name)
{
    for (int i = 0; i < s->children.n; i++)
        if (!strcmp(s->children.v[i].name, name))
            return &s->children.v[i];
    return NULL;
}

static const char *join(ck *c, const char *path, const char *name)
{
    return *path ? nd_fmt(c->ctx->arena, "%s.%s", path, name) : name;
}

/* The instance path of a call: `as`, or the function's name, then _2, _3. NULL
 * where an instance has the name of this `as`. */
const char *ck_instance(ck *c, ast_expr *e, const char *fn)
{
    ck_scope *s = c->f->scope;
    const char *name = e->as.s ? e->as.s : fn;
    const ck_child *first = e->as.s ? child(s, e->as.s) : NULL;
    int k = 1;
    if (first) {
        ck_error(c, e->as.loc, "a second instance `%s`; to share the first "
                 "one's parameters write `like %s`", name, name);
        ck_note(c, first->at, "the first one is here");
        return NULL;
    }
    for (int i = s->children.n - 1; i >= 0 && !e->as.s && k == 1; i--)
        if (!strcmp(s->children.v[i].fn, fn))
            k = s->children.v[i].number + 1;
    if (k > 1)
        name = nd_fmt(c->ctx->arena, "%s_%d", fn, k);
    while (!e->as.s && child(s, name))
        name = nd_fmt(c->ctx->arena, "%s_%d", fn, ++k);
    ck_child ch = {name, e->as.s ? "" : fn, k, e->as.s ? e->as.loc : e->loc};
    ND_PUSH(c->ctx->arena, &s->children, ch);
    return join(c, s->path, name);
}

static const char *shared_instance(ck *c, ast_name like)
{
    for (ck_scope *s = c->f->scope; s; s = s->up)
        if (child(s, like.s))
            return join(c, s->path, like.s);
    ck_unknown(c, like.loc, "instance", like.s);
    return NULL;
}

/* ---- parameters ---------------------------------------------------------- */

ck_param *ck_param_of(ck *c, const nd_value *v)
{
    for (int i = 0; i < c->params.n; i++)
        if (c->params.v[i].v == v)
            return &c->params.v[i];
    return NULL;
}

/* A parameter with more elements is refused by its size. */
static int64_t product(const ck_axes *ax)
{
    int64_t n;
    return ck_count(ax->n, ax->a, &n) ? n : INT64_MAX;
}

static void set_init(ck *c, nd_param *p, ast_expr *e)
{
    static const struct {
        const char *name;
        nd_init init;
        int args;
    } inits[] = {
        {"zeros", INIT_ZEROS, 0},     {"ones", INIT_ONES, 0},
        {"const", INIT_CONST, 1},     {"normal", INIT_NORMAL, 1},
        {"uniform", INIT_UNIFORM, 1}, {"xavier", INIT_XAVIER, 0},
        {"kaiming", INIT_KAIMING, 0},
    };
    const char *names[7];
    int n = e->args ? e->args->n : 0;
    for (int i = 0; i < 7; i++) {
        names[i] = inits[i].name;
        if (strcmp(e->str, inits[i].name))
            continue;
        p->init = inits[i].init;
        if (n != inits[i].args || (n && e->args->v[0].name.s))
            ck_error(c, e->loc, inits[i].args ? "`%s` takes one number"
                                              : "`%s` takes no arguments",
                     e->str);
        else if (p->init == INIT_CONST)
            ck_cfg_num(c, e->args->v[0].e, &p->init_arg);
        else if (n)
            ck_cfg_at_least(c, e->args->v[0].e, 0, &p->init_arg);
        return;
    }
    ck_near_error(c, e->oploc, "initial value", e->str, names, 7);
}

/* The axes of the open repeats, then its own. */
static nd_type param_type(ck *c, const ck_var *v)
{
    nd_axis *ax[ND_MAX_REPEAT + 2 * ND_MAX_RANK];
    int n = 0;
    for (int i = 0; i < c->nrep; i++)
        ax[n++] = c->rep[i]->axes[0];
    for (int i = 0; i < v->left.n; i++)
        ax[n++] = v->left.a[i];
    for (int i = 0; i < v->right.n; i++)
        ax[n++] = v->right.a[i];
    if (n > ND_MAX_RANK) {
        ck_error(c, v->loc, c->nrep ? "a parameter of more than %d axes, those "
                                      "of the repeats included"
                                    : "a parameter of more than %d axes",
                 ND_MAX_RANK);
        n = ND_MAX_RANK;
    }
    return nd_type_of(ND_F32, n, ax);
}

/* What an open repeat sees of an operand: one slice, however often asked. */
static nd_value *slice_in(ck *c, nd_op *r, nd_value *v)
{
    for (int i = r->ncarry; i < r->nin; i++)
        if (r->in[i] == v)
            return r->body->args.v[i];
    return nd_repeat_scan(c->m, r, v);
}

/* A parameter as the innermost repeat sees it: each repeat over one of its
 * layer axes slices it. NULL if an axis is left over. */
static nd_value *seen_here(ck *c, const nd_param *p)
{
    nd_value *v = p->value;
    int left = p->nlayers;
    for (int k = 0; k < c->nrep; k++)
        for (int i = 0; i < p->nlayers; i++)
            if (p->layer[i].axis == c->rep[k]->axes[0]) {
                v = slice_in(c, c->rep[k], v);
                left--;
            }
    return left ? NULL : v;
}

/* One axis, or one `axis` of the body, which exists anew in every call. */
static bool same_axis(const nd_axis *x, const nd_axis *y)
{
    return x == y || (x->size == y->size && x->loc.file == y->loc.file &&
                      x->loc.begin == y->loc.begin);
}

/* A parameter on the axes of the call that shares it; NULL if they differ. */
static nd_value *on_axes(ck *c, nd_value *v, const ck_axes *from,
                         const ck_axes *to)
{
    if (from->n != to->n)
        return NULL;
    for (int i = 0; v && i < to->n; i++) {
        nd_axis *x = from->a[i], *y = to->a[i];
        if (x == y)
            continue;
        if (!same_axis(x, y) || nd_axis_at(&v->type, y) >= 0)
            return NULL;
        v = nd_rename(&c->b, v, x, y);
    }
    return v;
}

/* "`blocks` and `layers`" */
static const char *layers(ck *c, const nd_param *p)
{
    nd_buf b = {c->ctx->arena, NULL, 0, 0};
    for (int i = 0; i < p->nlayers; i++)
        nd_putf(&b, "%s`%s`", !i ? "" : i + 1 < p->nlayers ? ", " : " and ",
                p->layer[i].axis->name);
    return b.s;
}

/* `like`: the parameter of the other instance with the same path. */
static void share(ck *c, ck_var *v, const char *path)
{
    v->val = ck_bad();
    for (int i = 0; i < c->params.n; i++) {
        ck_param *q = &c->params.v[i];
        if (strcmp(q->path, path))
            continue;
        nd_value *here = seen_here(c, q->p);
        if (!here) {
            ck_error(c, v->loc, "`%s` is a parameter of another `repeat`",
                     path);
            ck_note(c, q->loc, "it is made here, once for each %s",
                    layers(c, q->p));
            return;
        }
        here = on_axes(c, here, &q->left, &v->left);
        here = here ? on_axes(c, here, &q->right, &v->right) : NULL;
        if (here) {
            v->val = ck_tensor(here);
            return;
        }
        ck_error(c, v->loc, "shared parameter `%s` has other axes here", path);
        ck_note(c, q->loc, "`%s` is made here", path);
        return;
    }
    if (!c->ctx->nerrors)            /* else it may lack it for that reason */
        ck_error(c, v->loc, "the shared instance has no parameter `%s`", path);
}

/* A parameter inside repeats has their axes in front and lies outside; the body
 * sees the slice. */
static void create(ck *c, ck_var *v, ast_expr *e, const char *path)
{
    nd_builder b = c->b;
    b.block = c->m->step;
    b.at = -1;
    b.phase = PH_FWD;
    b.path = v->scope->path;
    if (c->nrep) {
        b.at = 0;
        while (b.block->ops.v[b.at] != c->rep[0])
            b.at++;
    }
    nd_type t = param_type(c, v);
    ck_param q = {.path = path, .left = v->left, .right = v->right,
                  .scope = v->scope, .arrow = e->brk->right != NULL,
                  .loc = b.loc};
    nd_param *p = q.p = nd_param_new(&b, path, t);
    p->nlayers = c->nrep;
    for (int i = 0; i < c->nrep; i++)
        p->layer[i] = (nd_layer){c->rep[i]->axes[0],
                                 (int)strlen(c->rep_path[i])};
    p->matrix = p->decay = q.arrow;
    p->fan_in = product(&v->left);
    p->fan_out = q.arrow ? product(&v->right) : p->fan_in;
    set_init(c, p, e);
    q.v = seen_here(c, p);
    ND_PUSH(c->ctx->arena, &c->params, q);
    v->val = ck_tensor(q.v);
}

void ck_force(ck *c, ck_var *v)
{
    ast_expr *e = v->param;
    if (!e)
        return;
    v->param = NULL;
    const char *path = join(c, v->scope->path, v->name);
    nd_loc at = c->b.loc;
    ck_at(c, v->loc);
    v->val = ck_bad();
    if (c->f->shared) {
        share(c, v, path);
    } else {
        ck_param *dup = NULL;
        for (int i = 0; i < c->params.n; i++)
            if (!strcmp(c->params.v[i].path, path))
                dup = &c->params.v[i];
        if (dup) {
            ck_error(c, v->loc, "a second parameter `%s`; give it another "
                     "name", path);
            ck_note(c, dup->loc, "the first one is made here");
            v->val = ck_tensor(dup->v);
        } else {
            create(c, v, e, path);
        }
    }
    c->b.loc = at;
}

void ck_force_all(ck *c)
{
    ck_frame *here = c->f;
    for (ck_frame *f = here; f; f = f->up) {
        c->f = f;
        for (ck_scope *s = f->scope; s; s = s->up)
            for (ck_var *v = s->vars; v; v = v->next)
                ck_force(c, v);
    }
    c->f = here;
}

/* ---- binding groups ------------------------------------------------------ */

/* Another axis of the same size for the inside of linear[d -> d]. */
static ck_copy *copy_of(ck *c, nd_axis *a)
{
    for (int i = 0; i < c->copies.n; i++)
        if (c->copies.v[i].of == a && !c->copies.v[i].used)
            return &c->copies.v[i];
    ck_copy k = {a, nd_axis_new(c->m, a->name, a->size, a->loc), false};
    k.copy->like = a;
    ND_PUSH(c->ctx->arena, &c->copies, k);
    return &c->copies.v[c->copies.n - 1];
}

static ck_bind *group_new(ck *c, const ast_name name, const ck_axes *ax,
                          int first, int n)
{
    nd_arena *a = c->ctx->arena;
    ck_bind *b = ND_NEW(a, ck_bind);
    b->name = name.s;
    b->loc = name.loc;
    b->group = true;
    b->n = n;
    b->axis = ND_NEWN(a, nd_axis *, n);
    b->at = ND_NEWN(a, nd_loc, n);
    b->src = ND_NEWN(a, ck_bind *, n);
    for (int i = 0; i < n; i++) {
        b->axis[i] = ax->a[first + i];
        b->at[i] = ax->at[first + i];
        b->src[i] = ax->src[first + i];
    }
    return b;
}

/* One side of the brackets: a lone name takes all axes, several one each. */
static bool bind_side(ck *c, const ast_items *given, const char *fn,
                      const ast_items *formal, const ck_axes *ax,
                      ck_scope *s)
{
    int n = formal->n;
    if (n > 1 && n != ax->n) {
        nd_loc at = given->v[0].name.loc;
        at.end = given->v[given->n - 1].name.loc.end;
        ck_error(c, at, "`%s` wants %d axes here, found %d", fn, n, ax->n);
        ck_note(c, formal->v[0].name.loc, "`%s` is declared here", fn);
        return false;
    }
    for (int i = 0; i < n; i++) {
        ck_bind *b = n == 1 ? group_new(c, formal->v[0].name, ax, 0, ax->n)
                            : group_new(c, formal->v[i].name, ax, i, 1);
        b->next = s->binds;
        s->binds = b;
    }
    return true;
}

/* attention[seq, seq](x, x): two names may stand for one axis. */
static bool read_side(ck *c, const ast_items *given, const ast_items *formal,
                      ck_axes *out)
{
    return formal->n > 1 ? ck_bracket_each(c, given, out)
                         : ck_bracket(c, given, out);
}

typedef struct copies {              /* fresh axes of one instance */
    int n, index[ND_MAX_RANK];
} copies;

static bool bind_groups(ck *c, ast_expr *e, const ast_decl *fn, ast_brk *brk,
                        ck_scope *s, copies *cp)
{
    ck_axes left, right;
    const char *name = fn->name.s;
    if (!fn->brk != !brk || (brk && !fn->brk->right != !brk->right)) {
        nd_loc at = brk ? brk->loc : e->oploc;
        ck_error(c, at, !fn->brk ? "`%s` takes no axes"
                        : !brk ? "`%s` needs its axes in brackets"
                        : brk->right ? "`%s` takes axes without an arrow"
                                     : "`%s` takes axes on both sides of an "
                                       "arrow", name);
        ck_note(c, fn->loc, "`%s` is declared here", name);
        return false;
    }
    if (!brk)
        return true;
    if (!read_side(c, brk->left, fn->brk->left, &left) ||
        !bind_side(c, brk->left, name, fn->brk->left, &left, s))
        return false;
    if (!brk->right)
        return true;
    if (!read_side(c, brk->right, fn->brk->right, &right))
        return false;
    for (int i = 0; i < right.n; i++)
        for (int k = 0; k < left.n; k++)
            if (right.a[i] == left.a[k]) {
                ck_copy *y = copy_of(c, right.a[i]);
                y->used = true;
                cp->index[cp->n++] = (int)(y - c->copies.v);
                right.a[i] = y->copy;
                break;
            }
    return bind_side(c, brk->right, name, fn->brk->right, &right, s);
}

/* On return the fresh axes get their own names back. */
static ck_val rename_back(ck *c, ast_expr *e, ck_val x, const copies *cp)
{
    if (x.kind == VAL_TUPLE) {
        for (int i = 0; i < x.n; i++)
            x.item[i] = rename_back(c, e, x.item[i], cp);
        return x;
    }
    for (int i = 0; i < cp->n && x.kind == VAL_TENSOR; i++) {
        ck_copy *y = &c->copies.v[cp->index[i]];
        if (nd_axis_at(&x.v->type, y->copy) < 0)
            continue;
        if (nd_axis_at(&x.v->type, y->of) >= 0) {
            ck_error(c, e->loc, "the result has `%s` twice: from the left and "
                     "from the right of the arrow", y->of->name);
            return ck_bad();
        }
        ck_at(c, e->loc);
        ck_val r = x;
        r.v = nd_rename(&c->b, x.v, y->copy, y->of);
        x = r.v ? r : ck_bad();
    }
    return x;
}

/* ---- calls --------------------------------------------------------------- */

static bool recursive(ck *c, ast_expr *e, const ast_decl *fn)
{
    for (ck_frame *f = c->f; f; f = f->up)
        if (f->fn == fn) {
            ck_error(c, e->oploc, "`%s` calls itself; use `repeat`",
                     fn->name.s);
            ck_note(c, fn->loc, "`%s` is declared here", fn->name.s);
            return true;
        }
    return false;
}

static ck_val default_value(ck *c, ck_file *file, const ast_par *p)
{
    ck_scope s = {.path = ""};
    ck_frame f = {.up = c->f, .file = file, .scope = &s,
                  .user_loc = c->f->user_loc, .call = c->f->call};
    bool was = c->const_only;
    c->f = &f;
    c->const_only = true;
    ck_val v = ck_expr(c, p->value);
    c->const_only = was;
    c->f = f.up;
    return v;
}

/* A typed parameter: `tokens: i32[batch, seq]`. A whole literal may stand for a
 * float. */
static bool fits_type(ck *c, nd_loc at, const ast_par *p, ck_val *v)
{
    ck_val x = *v;
    nd_dtype t;
    ck_axes ax = {0};
    if (!p->type.s)
        return true;
    if (!nd_dtype_parse(p->type.s, &t)) {
        ck_error(c, p->type.loc, "unknown dtype `%s`", p->type.s);
        return false;
    }
    if (p->brk && !ck_bracket(c, p->brk->left, &ax))
        return false;
    nd_type want = nd_type_of(t, ax.n, ax.a);
    bool same = x.kind == VAL_TENSOR ? x.v->type.rank == ax.n : ax.n == 0;
    for (int i = 0; i < ax.n && same; i++)
        same = nd_axis_at(&x.v->type, ax.a[i]) >= 0;
    if (same && ck_class(ck_dtype(x)) == ck_class(t))
        return true;
    if (same && x.kind == VAL_CONST && ck_class(x.dtype) == 1 &&
        ck_class(t) == 2) {
        *v = ck_num(ND_F32, x.f);
        return true;
    }
    ck_say(c, at, "`%s` wants %s, found %s", p->name.s,
           ck_type(c, &want), x.kind == VAL_TENSOR
               ? ck_type(c, &x.v->type) : nd_dtype_name(x.dtype));
    ck_note(c, p->name.loc, "`%s` is declared here", p->name.s);
    return false;
}

static bool eval_args(ck *c, ast_expr *e, const ast_decl *fn, ck_file *file,
                      ck_val *val, nd_loc *at)
{
    int n = fn->pars->n;
    const char **names = ND_NEWN(c->ctx->arena, const char *, n + 1);
    ast_expr **slot = ND_NEWN(c->ctx->arena, ast_expr *, n + 1);
    for (int i = 0; i < n; i++)
        names[i] = fn->pars->v[i].name.s;
    if (!ck_cfg_args(c, fn->name.s, e->args, names, n, slot))
        return false;
    for (int i = 0; i < n; i++) {
        const ast_par *p = &fn->pars->v[i];
        at[i] = slot[i] ? slot[i]->loc : p->name.loc;
        if (!slot[i] && !p->value) {
            ck_error(c, e->loc, "`%s` lacks the argument `%s`", fn->name.s,
                     p->name.s);
            ck_note(c, fn->loc, "`%s` is declared here", fn->name.s);
            return false;
        }
        val[i] = slot[i] ? ck_expr(c, slot[i]) : default_value(c, file, p);
        if (!ck_is_value(c, at[i], val[i]))
            return false;
    }
    return true;
}

bool ck_run_body(ck *c, const ast_stmts *body)
{
    int before = c->ctx->nerrors;
    ck_stmts(c, body);
    bool shows = c->f->is_main && c->m->outputs.n;   /* it need not train */
    if (!c->f->returned && !shows && c->ctx->nerrors == before) {
        ck_say(c, c->f->fn->loc, "`%s` has no `return`",
               c->f->fn->name.s);
        return false;
    }
    return c->f->returned || shows;
}

static ck_val instantiate(ck *c, ast_expr *e, const ast_decl *fn,
                          ck_file *file, ast_brk *brk)
{
    int n = fn->pars->n;
    ck_val *val = ND_NEWN(c->ctx->arena, ck_val, n + 1);
    nd_loc *at = ND_NEWN(c->ctx->arena, nd_loc, n + 1);
    copies cp = {0};
    ck_val r = ck_bad();
    if (!eval_args(c, e, fn, file, val, at))
        return r;
    if (recursive(c, e, fn))
        return r;
    if (++c->calls > CK_MAX_CALLS) {
        if (c->calls == CK_MAX_CALLS + 1)
            ck_error(c, e->loc, "more than %d calls to evaluate",
                     CK_MAX_CALLS);
        return r;
    }
    const char *path = e->like.s ? shared_instance(c, e->like)
                                 : ck_instance(c, e, fn->name.s);
    if (!path)
        return r;
    ck_scope *s = ND_NEW(c->ctx->arena, ck_scope);
    s->path = path;
    ck_frame f = {.up = c->f, .file = file, .fn = fn, .scope = s,
                  .label = ast_text(c->ctx->arena, e->a), .call = e->loc,
                  .user_loc = ck_place(c, e->loc),
                  .shared = c->f->shared || e->like.s != NULL};
    bool ok = bind_groups(c, e, fn, brk, s, &cp);
    const char *was = c->b.path;
    c->f = &f;
    c->b.path = path;
    for (int i = 0; i < n && ok; i++)
        ok = fits_type(c, at[i], &fn->pars->v[i], &val[i]) &&
             ck_assign(c, fn->pars->v[i].name, val[i], false);
    if (ok && ck_run_body(c, fn->body))
        r = f.ret;
    c->f = f.up;
    c->b.path = was;
    r = rename_back(c, e, r, &cp);
    for (int i = 0; i < cp.n; i++)
        c->copies.v[cp.index[i]].used = false;
    return r;
}

ck_val ck_call(ck *c, ast_expr *e)
{
    ast_expr *base = e->a;
    ast_brk *brk = NULL;
    ck_file *file = NULL;
    if (base->kind == E_INDEX) {
        brk = base->brk;
        base = base->a;
    }
    if (base->kind != E_NAME) {
        ck_error(c, base->loc, "this cannot be called");
        return ck_bad();
    }
    ck_var *var = ck_find_var(c, base->str);
    if (var) {
        ck_error(c, e->loc, "`%s` is a value, not a function", base->str);
        ck_note(c, var->loc, "it is assigned here");
        return ck_bad();
    }
    const ast_decl *fn = ck_find_fn(c, base->str, &file);
    bool builtin = !fn && ck_is_builtin(base->str);
    if (!fn && !builtin) {
        ck_unknown(c, base->loc, "function", base->str);
        return ck_bad();
    }
    if (c->const_only && (fn || nd_ew_find(base->str) < 0)) {
        ck_error(c, e->loc, "this is not a compile-time constant");
        return ck_bad();
    }
    if (builtin)
        return ck_builtin(c, e, base->str, brk);
    if (brk) {
        for (int i = 0; i < brk->left->n; i++)
            if (brk->left->v[i].lo) {
                ck_error(c, brk->loc, "`%s` takes axes in brackets",
                         base->str);
                return ck_bad();
            }
    }
    return instantiate(c, e, fn, file, brk);
}
