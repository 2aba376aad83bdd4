/* check_stmt.c - statements: assignment, return, output, repeat.
 *
 *   repeat layers { x = x + f(x) }
 *     ->  %y = repeat [layers] carry(%x) scan(%w) { ... yield %x2 }
 *
 * What the body assigns and the outside knows is carried. Its type must be the
 * same at entry and exit; the entry value is broadcast where the body makes it
 * larger, which is found by evaluating the body, undoing that, and starting
 * again from the larger type.
 */
#include "frontend.h"

#include <stdio.h>
#include <string.h>

/* ---- assignment ---------------------------------------------------------- */

/* A name that is assigned again before it was read: say so once. */
static void warn_replaced(ck *c, const ck_var *v, nd_loc again)
{
    if (!v->param || c->f->file->lib || !ck_warn_once(c, v->loc))
        return;
    nd_warning(c->ctx, v->loc, "the parameter `%s` is never used", v->name);
    nd_note(c->ctx, again, "`%s` is assigned again here", v->name);
}

/* True when `name` may stand for a value in this frame. */
static bool free_of_axes(ck *c, ast_name name)
{
    ck_bind *b = ck_find_bind(c, name.s);
    if (!b)
        return true;
    ck_error(c, name.loc, "`%s` is an axis; a value may not share its name",
             name.s);
    ck_note(c, b->loc, "the axis is declared here");
    return false;
}

ck_var *ck_assign(ck *c, ast_name name, ck_val v, bool let)
{
    ck_var *var = ck_find_var(c, name.s);
    if (var && (var->let || let)) {
        ck_error(c, name.loc, "`%s` is already defined", name.s);
        ck_note(c, var->loc, "it is defined here");
        return NULL;
    }
    bool ok = var || free_of_axes(c, name);
    if (var)
        warn_replaced(c, var, name.loc);
    if (!var) {
        var = ND_NEW(c->ctx->arena, ck_var);
        var->name = name.s;
        var->scope = c->f->scope;
        var->next = c->f->scope->vars;
        c->f->scope->vars = var;
    }
    var->loc = name.loc;
    var->val = ok ? v : ck_bad();    /* one error is enough */
    var->let = let;
    var->param = NULL;
    return ok ? var : NULL;
}

static void declare_param(ck *c, const ast_stmt *s)
{
    ast_expr *e = s->exprs->v[0];
    ck_axes left, right = {0};
    if (s->names->n != 1) {
        ck_error(c, s->loc, "a `param` has one name");
        return;
    }
    if (c->const_only) {
        ck_error(c, e->loc, "this is not a compile-time constant");
        return;
    }
    bool ok = ck_bracket(c, e->brk->left, &left) &&
              (!e->brk->right || ck_bracket(c, e->brk->right, &right));
    for (int i = 0; ok && i < right.n; i++)
        for (int k = 0; k < left.n; k++)
            if (left.a[k] == right.a[i]) {
                ck_error(c, right.at[i], "`%s` stands on both sides of the "
                         "arrow", right.a[i]->name);
                ok = false;
            }
    for (int k = 0; ok && k < c->nrep; k++)
        for (int i = 0; i < left.n + right.n; i++)
            if ((i < left.n ? left.a[i] : right.a[i - left.n]) ==
                c->rep[k]->axes[0]) {
                ck_error(c, e->loc, "inside `repeat %s` a parameter has that "
                         "axis already", c->rep[k]->axes[0]->name);
                ok = false;
            }
    ck_var *v = ck_assign(c, s->names->v[0], ck_bad(), false);
    if (!v || !ok)
        return;
    v->param = e;
    v->left = left;
    v->right = right;
    v->scope = c->f->scope;
}

static void rename_result(ck *c, const ast_expr *e, ast_name name, ck_val v)
{
    (void)c;
    if (v.kind == VAL_TENSOR && e->kind != E_NAME && v.v->def &&
        v.v->def->kind != OP_PARAM && v.v->def->kind != OP_INPUT)
        v.v->name = name.s;
}

static void assign(ck *c, const ast_stmt *s)
{
    ast_expr *e = s->exprs->v[0];
    if (e->kind == E_PARAM) {
        declare_param(c, s);
        return;
    }
    ck_val v = ck_expr(c, e);
    int n = s->names->n;
    if (v.kind != VAL_BAD && n != (v.kind == VAL_TUPLE ? v.n : 1)) {
        ck_error(c, s->loc, "%d name%s for %d result%s", n, n == 1 ? "" : "s",
                 v.kind == VAL_TUPLE ? v.n : 1, v.kind == VAL_TUPLE ? "s" : "");
        v = ck_bad();
    }
    for (int i = 0; i < n; i++) {
        ck_val x = v.kind == VAL_TUPLE ? v.item[i] : v;
        rename_result(c, e, s->names->v[i], x);
        ck_assign(c, s->names->v[i], x, false);
    }
}

static void let(ck *c, const ast_stmt *s)
{
    bool was = c->const_only;
    c->const_only = true;
    ck_val v = ck_expr(c, s->exprs->v[0]);
    c->const_only = was;
    if (v.kind == VAL_TENSOR) {
        ck_error(c, s->exprs->v[0]->loc,
                 "`let` names a compile-time constant");
        v = ck_bad();
    }
    ck_assign(c, s->names->v[0], v, true);
}

static void local_axis(ck *c, const ast_stmt *s)
{
    ast_name name = s->names->v[0];
    ck_var *v = ck_find_var(c, name.s);
    if (v) {
        ck_error(c, name.loc, "`%s` is a value; an axis may not share its "
                 "name", name.s);
        ck_note(c, v->loc, "it is assigned here");
        return;
    }
    for (ck_scope *sc = c->f->scope; sc; sc = sc->up)
        for (ck_bind *b = sc->binds; b; b = b->next)
            if (!strcmp(b->name, name.s)) {
                ck_error(c, name.loc, "a second axis `%s`", name.s);
                ck_note(c, b->loc, "the first one is declared here");
                return;
            }
    ck_declare_axis(c, name, s->exprs->v[0], &c->f->scope->binds);
}

static void returns(ck *c, const ast_stmt *s)
{
    int n = s->exprs->n;
    if (c->f->scope->up) {
        ck_error(c, s->loc, "`return` inside `repeat`");
        return;
    }
    ck_val *v = ND_NEWN(c->ctx->arena, ck_val, n);
    bool ok = true;
    for (int i = 0; i < n; i++) {
        v[i] = ck_expr(c, s->exprs->v[i]);
        ok &= n == 1 ? v[i].kind != VAL_BAD
                     : ck_is_value(c, s->exprs->v[i]->loc, v[i]);
    }
    if (ok)
        c->f->ret = n == 1 ? v[0] : (ck_val){.kind = VAL_TUPLE, .n = n,
                                             .item = v};
    c->f->returned = true;
}

static void outputs(ck *c, const ast_stmt *s)
{
    bool inside = c->f->scope->up != NULL;
    if (c->f->fn->kind != I_MODEL || inside) {
        ck_error(c, s->loc, inside ? "`output` inside `repeat`"
                                   : "`output` stands in a model");
        return;
    }
    for (int i = 0; i < s->names->n; i++) {
        ast_name n = s->names->v[i];
        ck_var *v = ck_find_var(c, n.s);
        if (!v) {
            ck_unknown(c, n.loc, "value", n.s);
            continue;
        }
        ck_force(c, v);
        if (!c->f->is_main || !ck_is_value(c, n.loc, v->val))
            continue;
        for (int k = 0; k < c->m->outputs.n; k++)
            if (!strcmp(c->m->outputs.v[k]->name, n.s))
                ck_error(c, n.loc, "a second output `%s`", n.s);
        ck_at(c, n.loc);
        ck_val out = ck_widen(c, v->val);
        if (ck_dtype(out) == ND_I64) {
            ck_error(c, n.loc, "an output is a float, i32 or bool; `%s` is "
                     "i64", n.s);
            continue;
        }
        nd_value *x = ck_strong(c, out, ck_dtype(out));
        if (x)
            nd_output(&c->b, n.s, x);
    }
}

/* ---- repeat -------------------------------------------------------------- */

typedef struct carried {
    ck_var *var;
    ck_val entry;                    /* before the repeat */
    nd_type type;                    /* at entry and exit */
} carried;
typedef ND_VEC(carried) carrieds;

/* The messages of one evaluation of a body: what is said of types that are not
 * the last ones is dropped. */
typedef struct held_text {
    nd_severity sev;
    const char *text;
} held_text;

typedef struct held {
    ck *c;
    void (*sink)(void *user, nd_severity, const char *text);
    void *sink_user;
    ND_VEC(held_text) v;
} held;

static void hold(void *user, nd_severity sev, const char *text)
{
    held *h = user;
    held_text t = {sev, text};
    ND_PUSH(h->c->ctx->arena, &h->v, t);
}

static held *hold_messages(ck *c)
{
    nd_ctx *x = c->ctx;
    held *h = ND_NEW(x->arena, held);
    *h = (held){.c = c, .sink = x->sink, .sink_user = x->sink_user};
    x->sink = hold;
    x->sink_user = h;
    return h;
}

static void release(held *h, bool say)
{
    h->c->ctx->sink = h->sink;
    h->c->ctx->sink_user = h->sink_user;
    for (int i = 0; say && i < h->v.n; i++)
        if (h->sink)
            h->sink(h->sink_user, h->v.v[i].sev, h->v.v[i].text);
        else
            fputs(h->v.v[i].text, stderr);
}

/* What to take back when the body is evaluated again. */
typedef struct mark {
    int step, ops, params, axes, id, mparams, copies, streams, children;
    int warned, nwarnings;
    int nin[ND_MAX_REPEAT];          /* of the open repeats */
} mark;

static mark take_mark(const ck *c)
{
    mark k = {c->m->step->ops.n, c->b.block->ops.n, c->params.n,
              c->m->axes.n, c->m->next_id, c->m->params.n, c->copies.n,
              c->streams.n, c->f->scope->children.n, c->warned.n,
              c->ctx->nwarnings, {0}};
    for (int i = 0; i < c->nrep; i++)
        k.nin[i] = c->rep[i]->nin;
    return k;
}

static void back_to(ck *c, const mark *k)
{
    nd_block *step = c->m->step;
    c->b.block->ops.n = k->ops;
    /* New parameters stand in front of the outermost open repeat, which is the
     * last op; what they added to the open ones goes too. */
    step->ops.n = k->step;
    if (c->nrep)
        step->ops.v[k->step - 1] = c->rep[0];
    for (int i = 0; i < c->nrep; i++)
        c->rep[i]->nin = c->rep[i]->body->args.n = k->nin[i];
    c->params.n = k->params;
    c->m->axes.n = k->axes;
    c->m->next_id = k->id;
    c->m->params.n = k->mparams;
    c->copies.n = k->copies;
    c->streams.n = k->streams;
    c->f->scope->children.n = k->children;
    c->warned.n = k->warned;
    c->ctx->nwarnings = k->nwarnings;
}

static void find_carried(ck *c, const ast_stmts *body, carrieds *out)
{
    for (int i = 0; i < body->n; i++) {
        const ast_stmt *s = body->v[i];
        if (s->kind == S_REPEAT)
            find_carried(c, s->body, out);
        for (int k = 0; s->kind == S_ASSIGN && k < s->names->n; k++) {
            ck_var *v = ck_find_var(c, s->names->v[k].s);
            bool known = !v || v->let;
            for (int j = 0; j < out->n && !known; j++)
                known = out->v[j].var == v;
            if (known)
                continue;
            carried cv = {.var = v, .entry = v->val};
            if (v->val.kind == VAL_TENSOR)
                cv.type = v->val.v->type;
            else
                cv.type = nd_type_of(v->val.dtype, 0, NULL);
            ND_PUSH(c->ctx->arena, out, cv);
        }
    }
}

static nd_value *fit(ck *c, nd_value *v, const nd_type *t)
{
    if (!v || nd_same_axes(&v->type, t))
        return v;
    return nd_broadcast(&c->b, v, t);
}

/* Compares exit with entry; grows `cv->type` if that would help. */
static bool settle(ck *c, nd_loc at, carried *cv, bool *grown)
{
    ck_force(c, cv->var);
    ck_val x = cv->var->val;
    if (!ck_is_value(c, cv->var->loc, x))
        return false;
    nd_type exit = x.kind == VAL_TENSOR ? x.v->type
                                        : nd_type_of(x.dtype, 0, NULL);
    nd_type want = cv->type;
    bool literal = ck_weak(cv->entry);
    if (x.kind == VAL_TENSOR && exit.dtype != want.dtype) {
        if (!literal || ck_class(exit.dtype) < ck_class(want.dtype))
            goto differ;
        want.dtype = exit.dtype;
    } else if (x.kind == VAL_CONST && ck_class(exit.dtype) >
                                          ck_class(want.dtype)) {
        if (!literal)
            goto differ;
        want.dtype = exit.dtype;
    }
    for (int i = 0; x.kind == VAL_TENSOR && i < want.rank; i++)
        if (nd_axis_at(&exit, want.axis[i]) < 0)
            goto differ;
    if (x.kind == VAL_TENSOR && exit.rank > want.rank) {
        nd_dtype t = want.dtype;
        want = exit;
        want.dtype = t;
    }
    if (want.rank != cv->type.rank || want.dtype != cv->type.dtype) {
        cv->type = want;
        *grown = true;
    }
    return true;
differ:
    ck_error(c, cv->var->loc, "`%s` enters `repeat` as %s and leaves it as %s",
             cv->var->name, ck_type(c, &want), ck_type(c, &exit));
    ck_note(c, at, "a carried variable keeps its type");
    for (ck_gone *g = x.gone; g; g = g->next)
        if (nd_axis_at(&want, g->axis) >= 0 && nd_axis_at(&exit, g->axis) < 0) {
            ck_note(c, g->loc, "`%s` was %s here", g->axis->name, g->how);
            break;
        }
    return false;
}

/* The op with its initial values; carried variables become its arguments. */
static nd_op *open_repeat(ck *c, nd_axis *a, carrieds *cv)
{
    nd_value **init = ND_NEWN(c->ctx->arena, nd_value *, cv->n + 1);
    for (int i = 0; i < cv->n; i++) {
        carried *k = &cv->v[i];
        init[i] = fit(c, ck_strong(c, k->entry, k->type.dtype), &k->type);
        if (!init[i])
            return NULL;
        if (init[i]->def && init[i]->def->kind == OP_CONST)
            init[i]->name = k->var->name;
    }
    nd_op *r = nd_repeat_begin(&c->b, a, cv->n, init);
    for (int i = 0; r && i < cv->n; i++) {
        r->body->args.v[i]->name = r->out[i]->name = cv->v[i].var->name;
        cv->v[i].var->val = ck_tensor(r->body->args.v[i]);
        cv->v[i].var->val.weak = ck_weak(cv->v[i].entry);
    }
    return r;
}

static bool close_repeat(ck *c, nd_op *r, carrieds *cv, nd_block *outer)
{
    nd_value **next = ND_NEWN(c->ctx->arena, nd_value *, cv->n + 1);
    for (int i = 0; i < cv->n; i++) {
        carried *k = &cv->v[i];
        ck_gone *gone = k->var->val.gone;
        bool weak = ck_weak(k->entry) && ck_weak(k->var->val);
        next[i] = fit(c, ck_strong(c, k->var->val, k->type.dtype), &k->type);
        if (!next[i])
            return false;
        r->out[i]->type = r->body->args.v[i]->type;
        k->var->val = ck_tensor(r->out[i]);
        k->var->val.gone = gone;
        k->var->val.weak = weak;
    }
    nd_repeat_yield(c->m, r, next);
    c->b.block = outer;
    return true;
}

static void repeat_body(ck *c, const ast_stmt *s, nd_axis *a, carrieds *cv,
                        const char *path)
{
    enum { TRIES = ND_MAX_RANK + 2 };
    nd_block *outer = c->b.block;
    const char *was = c->b.path;
    for (int t = 0; t < TRIES; t++) {
        mark start = take_mark(c);
        int before = c->ctx->nerrors;
        bool ok = true, grown = false;
        ck_at(c, s->loc);
        nd_op *r = open_repeat(c, a, cv);
        if (!r)
            break;
        held *messages = hold_messages(c);
        ck_scope *in = ND_NEW(c->ctx->arena, ck_scope);
        in->up = c->f->scope;
        in->path = path;
        c->f->scope = in;
        c->b.block = r->body;
        c->b.path = path;
        c->rep_path[c->nrep] = path;
        c->rep[c->nrep++] = r;
        ck_stmts(c, s->body);
        ck_at(c, s->loc);
        for (int i = 0; i < cv->n && c->ctx->nerrors == before; i++)
            ok &= settle(c, s->loc, &cv->v[i], &grown);
        ok &= c->ctx->nerrors == before;
        if (ok && !grown)
            ok = close_repeat(c, r, cv, outer);
        c->nrep--;
        c->f->scope = in->up;
        c->b.block = outer;
        c->b.path = was;
        release(messages, !ok || !grown);
        if (!ok)
            break;
        if (!grown)
            return;
        back_to(c, &start);
        for (int i = 0; i < cv->n; i++)
            cv->v[i].var->val = cv->v[i].entry;
    }
    for (int i = 0; i < cv->n; i++)
        cv->v[i].var->val = ck_bad();
}

static void repeat(ck *c, const ast_stmt *s)
{
    ck_axes ax;
    carrieds cv = {0};
    ast_items one = {(ast_item[]){{s->names->v[0], NULL, NULL}}, 1, 1};
    ast_expr e = {.kind = E_CALL, .loc = s->loc, .as = s->as};
    if (!ck_bracket(c, &one, &ax))
        return;
    if (ax.n != 1) {
        ck_error(c, s->loc, "`repeat` takes one axis");
        return;
    }
    for (int k = 0; k < c->nrep; k++)
        if (c->rep[k]->axes[0] == ax.a[0]) {
            ck_error(c, s->loc, "`repeat %s` inside itself", ax.a[0]->name);
            return;
        }
    if (c->nrep == ND_MAX_REPEAT) {
        ck_error(c, s->loc, "repeats nest deeper than %d", ND_MAX_REPEAT);
        return;
    }
    ck_force_all(c);
    find_carried(c, s->body, &cv);
    for (int i = 0; i < cv.n; i++) {
        const nd_type *t = &cv.v[i].type;
        if (cv.v[i].entry.kind == VAL_BAD)
            return;
        if (cv.v[i].entry.kind == VAL_TENSOR && nd_axis_at(t, ax.a[0]) >= 0) {
            ck_error(c, s->loc, "the carried `%s` has the axis `%s` itself",
                     cv.v[i].var->name, ax.a[0]->name);
            return;
        }
    }
    if (!cv.n) {
        ck_error(c, s->loc, "this repeat changes no variable from outside");
        return;
    }
    const char *path = ck_instance(c, &e, s->names->v[0].s);
    if (path)
        repeat_body(c, s, ax.a[0], &cv, path);
}

/* ---- a body -------------------------------------------------------------- */

static void one(ck *c, const ast_stmt *s)
{
    switch (s->kind) {
    case S_ASSIGN:
        assign(c, s);
        break;
    case S_RETURN:
        returns(c, s);
        break;
    case S_OUTPUT:
        outputs(c, s);
        break;
    case S_REPEAT:
        repeat(c, s);
        break;
    case S_AXIS:
        local_axis(c, s);
        break;
    case S_LET:
        let(c, s);
        break;
    }
}

/* A parameter that nobody reads does not exist; say so once. A side of `where`
 * that is not taken reads it too. */
static void warn_unread(ck *c, const ast_stmts *body)
{
    ck_scope *s = c->f->scope;
    for (ck_var *v = s->vars; v; v = v->next) {
        if (!v->param || c->f->file->lib || ast_reads(body, v->name) ||
            !ck_warn_once(c, v->loc))
            continue;
        nd_warning(c->ctx, v->loc, "the parameter `%s` is never used",
                   v->name);
    }
}

void ck_stmts(ck *c, const ast_stmts *body)
{
    int before = c->ctx->nerrors;
    if (body->n > CK_MAX_STMTS) {
        ck_error(c, body->v[CK_MAX_STMTS]->loc,
                 "more than %d statements in a body", CK_MAX_STMTS);
        return;
    }
    for (int i = 0; i < body->n; i++) {
        if (c->f->returned) {
            ck_error(c, body->v[i]->loc, "a statement after `return`");
            return;
        }
        one(c, body->v[i]);
    }
    if (c->ctx->nerrors == before)
        warn_unread(c, body);
}
