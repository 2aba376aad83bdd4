/* check.c - from a file and what it uses to a checked module.
 *
 * Loads the files, declares the axes, instantiates the one model that is
 * compiled, then reads the train and plan blocks.
 */
#include "frontend.h"

#include <stdlib.h>
#include <string.h>

int nd_read_file(nd_ctx *c, const char *path)
{
    FILE *f = fopen(path, "rb");
    char chunk[65536];
    nd_buf b = {c->arena, NULL, 0, 0};
    size_t n;
    if (!f)
        return 0;
    nd_put(&b, "");
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        nd_putn(&b, chunk, n);
    bool bad = ferror(f) != 0;
    fclose(f);
    return bad ? 0 : nd_add_file(c, path, b.s, b.n);
}

/* ---- files --------------------------------------------------------------- */

static void no_duplicates(ck *c, const ast_file *f)
{
    for (int i = 0; i < f->decls.n; i++) {
        const ast_decl *d = f->decls.v[i];
        bool data = d->kind == I_AXIS || d->kind == I_LET;
        bool code = d->kind == I_FN || d->kind == I_MODEL;
        for (int k = 0; k < i && (data || code); k++) {
            const ast_decl *e = f->decls.v[k];
            bool same = data ? e->kind == I_AXIS || e->kind == I_LET
                             : e->kind == I_FN || e->kind == I_MODEL;
            if (same && !strcmp(d->name.s, e->name.s)) {
                nd_error(c->ctx, d->name.loc, "a second definition of `%s`",
                         d->name.s);
                nd_note(c->ctx, e->name.loc, "the first one is here");
                break;
            }
        }
    }
}

static ck_file *load(ck *c, int id, bool lib);

static const char *beside(ck *c, const char *from, const char *path)
{
    const char *slash = strrchr(from, '/');
    if (*path == '/' || !slash)
        return path;
    return nd_fmt(c->ctx->arena, "%.*s/%s", (int)(slash - from), from, path);
}

static ck_file *use(ck *c, const ck_file *by, const ast_decl *d)
{
    const char *from = c->ctx->files.v[by->ast->file - 1].name;
    const char *path = d->quoted ? beside(c, from, d->name.s) : "<nn>";
    if (!d->quoted && strcmp(d->name.s, "nn")) {
        nd_error(c->ctx, d->name.loc, "unknown library `%s`; there is `nn`, "
                 "and files: use \"path.nd\"", d->name.s);
        return NULL;
    }
    for (int i = 0; i < c->files.n; i++) {
        int id = c->files.v[i]->ast->file;
        if (!strcmp(c->ctx->files.v[id - 1].name, path))
            return c->files.v[i];
    }
    int id = d->quoted ? nd_read_file(c->ctx, path)
                       : nd_add_file(c->ctx, path, nd_lib_nn,
                                     strlen(nd_lib_nn));
    if (!id) {
        nd_error(c->ctx, d->name.loc, "cannot read `%s`", path);
        return NULL;
    }
    return load(c, id, !d->quoted);
}

static ck_file *load(ck *c, int id, bool lib)
{
    ast_file *ast = nd_parse(c->ctx, id);
    if (!ast)
        return NULL;
    ck_file *f = ND_NEW(c->ctx->arena, ck_file);
    f->ast = ast;
    f->lib = lib;
    ND_PUSH(c->ctx->arena, &c->files, f);
    if (ast->decls.n > CK_MAX_DECLS) {
        nd_error(c->ctx, ast->decls.v[CK_MAX_DECLS]->loc,
                 "more than %d declarations in a file", CK_MAX_DECLS);
        return NULL;
    }
    no_duplicates(c, ast);
    for (int i = 0; i < ast->decls.n; i++) {
        const ast_decl *d = ast->decls.v[i];
        ck_file *u = d->kind == I_USE ? use(c, f, d) : NULL;
        if (u)
            ND_PUSH(c->ctx->arena, &f->uses, u);
        if (d->kind == I_CLUSTER)
            nd_error(c->ctx, d->loc, "`cluster`: not supported yet");
    }
    return f;
}

/* The `train` or `plan` block that goes with the model. */
static const ast_decl *block_for(ck *c, const ast_file *f, ast_item_kind k,
                                 const char *model)
{
    const ast_decl *found = NULL;
    for (int i = 0; i < f->decls.n; i++) {
        const ast_decl *d = f->decls.v[i];
        if (d->kind != k || (d->name.s && model && strcmp(d->name.s, model)))
            continue;
        if (found) {
            nd_error(c->ctx, d->loc, "a second `%s` block",
                     k == I_TRAIN ? "train" : "plan");
            nd_note(c->ctx, found->loc, "the first one is here");
        }
        found = d;
    }
    return found;
}

static const ast_decl *named_model(ck *c, const ast_file *f, ast_name name)
{
    const char *names[64];
    int n = 0;
    for (int i = 0; i < f->decls.n; i++) {
        const ast_decl *d = f->decls.v[i];
        if (d->kind != I_MODEL)
            continue;
        if (!strcmp(d->name.s, name.s))
            return d;
        if (n < 64)
            names[n++] = d->name.s;
    }
    ck_near_error(c, name.loc, "model", name.s, names, n);
    return NULL;
}

/* The model that `train NAME` names, else the only one. */
static const ast_decl *choose_model(ck *c, const ast_file *f)
{
    const ast_decl *one = NULL, *train = NULL;
    int n = 0;
    for (int i = 0; i < f->decls.n; i++) {
        const ast_decl *d = f->decls.v[i];
        if (d->kind == I_MODEL) {
            n++;
            one = d;
        }
        if (d->kind == I_TRAIN && d->name.s) {
            if (!named_model(c, f, d->name))
                return NULL;
            train = d;
        }
    }
    if (train)
        return named_model(c, f, train->name);
    nd_loc end = {f->file, 0, 0};
    if (n == 0)
        nd_error(c->ctx, end, "the file has no model");
    else if (n > 1)
        nd_error(c->ctx, one->loc, "%d models; `train NAME { }` says which "
                 "one to compile", n);
    return n == 1 ? one : NULL;
}

/* ---- the model that is compiled ------------------------------------------ */

static bool declare_input(ck *c, const ast_par *p)
{
    nd_dtype t;
    ck_axes ax = {0};
    if (!p->type.s && p->value) {
        ck_val v = ck_expr(c, p->value);
        return v.kind == VAL_CONST && ck_assign(c, p->name, v, false);
    }
    if (!p->type.s) {
        ck_error(c, p->name.loc, "the input `%s` needs a type, such as "
                 "i32[batch, seq]", p->name.s);
        return false;
    }
    if (!nd_dtype_parse(p->type.s, &t)) {
        ck_error(c, p->type.loc, "unknown dtype `%s`; there are f32 f16 bf16 "
                 "i32 i64 bool", p->type.s);
        return false;
    }
    if (t != ND_F32 && t != ND_I32) {
        ck_later(c, p->type.loc, nd_fmt(c->ctx->arena, "an input of dtype %s",
                                        p->type.s));
        return false;
    }
    if (p->brk && (p->brk->right || !ck_bracket(c, p->brk->left, &ax)))
        return false;
    ck_at(c, p->name.loc);
    nd_value *v = nd_input(&c->b, p->name.s, nd_type_of(t, ax.n, ax.a));
    return v && ck_assign(c, p->name, ck_tensor(v), false);
}

static void set_loss(ck *c, const ast_decl *d, ck_val v)
{
    if (v.kind == VAL_TUPLE) {
        nd_error(c->ctx, d->loc, "a model returns its loss alone, `%s` "
                 "returns %d values", d->name.s, v.n);
        return;
    }
    if (v.kind == VAL_CONST || v.kind == VAL_TENSOR) {
        nd_value *x = ck_strong(c, v, ND_F32);
        nd_loc at = d->body->v[d->body->n - 1]->loc;
        if (x && x->type.rank) {
            nd_error(c->ctx, at, "the loss is a scalar, this is %s; take a "
                     "mean over its axes", ck_type(c, &x->type));
            return;
        }
        c->m->loss = x;
    }
}

static void run_model(ck *c, const ast_decl *d)
{
    ck_scope s = {.path = ""};
    ck_frame f = {.file = c->main, .fn = d, .scope = &s, .call = d->loc,
                  .label = d->name.s, .is_main = true};
    bool ok = true;
    c->f = &f;
    c->b = (nd_builder){.m = c->m, .block = c->m->step, .at = -1,
                        .phase = PH_FWD, .path = ""};
    for (int i = 0; i < d->pars->n; i++)
        ok &= declare_input(c, &d->pars->v[i]);
    if (ok && ck_run_body(c, d->body))
        set_loss(c, d, f.ret);
    c->f = NULL;
}

static void check_set(ck *c)
{
    for (int i = 0; i < c->opt->nset; i++) {
        const char *s = c->opt->set[i], *eq = strchr(s, '=');
        const char *names[256];
        int n = 0;
        bool known = false;
        const char *name = eq ? nd_strndup(c->ctx->arena, s, (size_t)(eq - s))
                              : s;
        for (int k = 0; k < c->main->ast->decls.n; k++) {
            const ast_decl *d = c->main->ast->decls.v[k];
            if (d->kind != I_AXIS)
                continue;
            known |= !strcmp(d->name.s, name);
            if (n < 256)
                names[n++] = d->name.s;
        }
        char *end = NULL;
        if (!known)
            ck_near_error(c, (nd_loc){0, 0, 0}, "axis in --set", name, names,
                          n);
        else if (!eq || strtoll(eq + 1, &end, 10) < 1 || *end)
            nd_error(c->ctx, (nd_loc){0, 0, 0},
                     "--set %s: a size is a positive integer", s);
    }
}

static const ast_decl *plan_block(ck *c, const char *model)
{
    if (!c->opt->plan_path)
        return block_for(c, c->main->ast, I_PLAN, model);
    int id = nd_read_file(c->ctx, c->opt->plan_path);
    if (!id) {
        nd_error(c->ctx, (nd_loc){0, 0, 0}, "cannot read the plan `%s`",
                 c->opt->plan_path);
        return NULL;
    }
    ast_file *f = nd_parse(c->ctx, id);
    const ast_decl *d = f ? block_for(c, f, I_PLAN, model) : NULL;
    if (f && !d)
        nd_error(c->ctx, (nd_loc){id, 0, 0}, "the file has no plan block");
    return d;
}

nd_module *nd_frontend(nd_ctx *ctx, int file, const nd_front_options *o)
{
    ck c = {.ctx = ctx, .opt = o};
    int before = ctx->nerrors;
    c.main = load(&c, file, false);
    const ast_decl *model = NULL;
    if (c.main)
        model = choose_model(&c, c.main->ast);
    if (!model || ctx->nerrors > before)
        return NULL;
    c.m = nd_module_new(ctx, model->name.s);
    c.b = (nd_builder){.m = c.m, .block = c.m->step, .at = -1};
    check_set(&c);
    if (ctx->nerrors > before)
        return NULL;

    ck_scope s = {.path = ""};
    ck_frame top = {.file = c.main, .scope = &s};
    c.f = &top;
    for (int i = 0; i < c.main->ast->decls.n; i++) {
        const ast_decl *d = c.main->ast->decls.v[i];
        ck_val v;
        if (d->kind == I_AXIS)
            ck_find_bind(&c, d->name.s);
        else if (d->kind == I_LET)
            ck_find_let(&c, d->name.s, d->loc, &v);
    }
    if (ctx->nerrors > before)
        return NULL;
    const ast_decl *train = block_for(&c, c.main->ast, I_TRAIN,
                                      model->name.s);
    ck_sample_axis(&c, train);
    run_model(&c, model);
    c.f = &top;
    ck_train(&c, train);
    const ast_decl *plan = plan_block(&c, model->name.s);
    if (plan || !o->plan_path)
        ck_plan(&c, plan);
    return ctx->nerrors > before ? NULL : c.m;
}
