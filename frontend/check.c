/* check.c - from a file and what it uses to a checked module.
 *
 * Loads the files, declares the axes, instantiates the one model that is
 * compiled, then reads the train and plan blocks.
 */
#include "frontend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Drops a byte order mark; a lone "\r" and "\r\n" become "\n". */
static size_t tidy(char *s, size_t n)
{
    size_t from = n >= 3 && !memcmp(s, "\xef\xbb\xbf", 3) ? 3 : 0, to = 0;
    while (from < n) {
        char ch = s[from++];
        if (ch == '\r' && from < n && s[from] == '\n')
            continue;
        s[to++] = ch == '\r' ? '\n' : ch;
    }
    return to;
}

bool nd_read_bytes(FILE *f, nd_buf *b)
{
    char chunk[65536];
    size_t n;
    nd_put(b, "");
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        nd_putn(b, chunk, n);
    return !ferror(f);
}

int nd_add_bytes(nd_ctx *c, const char *name, const nd_buf *bytes)
{
    nd_buf b = {c->arena, NULL, 0, 0};
    nd_put(&b, "");
    nd_putn(&b, bytes->s, bytes->n);
    return nd_add_file(c, name, b.s, tidy(b.s, b.n));
}

int nd_read_file(nd_ctx *c, const char *path)
{
    FILE *f = fopen(path, "rb");
    nd_buf b = {c->arena, NULL, 0, 0};
    if (!f)
        return 0;
    bool ok = nd_read_bytes(f, &b);
    int why = errno;
    fclose(f);
    errno = why;
    return ok ? nd_add_bytes(c, path, &b) : 0;
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
                ck_say(c, d->name.loc, "a second definition of `%s`",
                       d->name.s);
                ck_note(c, e->name.loc, "the first one is here");
                break;
            }
        }
    }
}

/* The names that a header declares: its groups, its parameters. */
static void no_duplicate_names(ck *c, const ast_name *v, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (!strcmp(v[i].s, v[k].s)) {
                ck_say(c, v[i].loc, "a second parameter `%s`", v[i].s);
                ck_note(c, v[k].loc, "the first one is here");
                break;
            }
}

static void header_names(ck *c, const ast_decl *d)
{
    ast_names v = {0};
    for (int side = 0; d->brk && side < 2; side++) {
        const ast_items *g = side ? d->brk->right : d->brk->left;
        for (int i = 0; g && i < g->n; i++) {
            ND_PUSH(c->ctx->arena, &v, g->v[i].name);
            if (g->v[i].lo)
                ck_say(c, g->v[i].lo->loc, "a group is declared by its name "
                       "alone");
        }
    }
    for (int i = 0; d->pars && i < d->pars->n; i++) {
        const ast_par *p = &d->pars->v[i];
        ND_PUSH(c->ctx->arena, &v, p->name);
        if (p->brk && p->brk->right)
            ck_say(c, p->brk->loc, "a type has no arrow");
    }
    no_duplicate_names(c, v.v, v.n);
}

static ck_file *load(ck *c, int id, bool lib);

static const char *beside(ck *c, const char *from, const char *path)
{
    const char *slash = strrchr(from, '/');
    if (*path == '/' || !slash)
        return path;
    return nd_fmt(c->ctx->arena, "%.*s/%s", (int)(slash - from), from, path);
}

/* Two spellings of one path are one file: its axes exist once. */
static bool same_path(const char *a, const char *b)
{
    struct stat x, y;
    if (!strcmp(a, b))
        return true;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

/* Files may use each other: names are looked up when all are there. */
static ck_file *use(ck *c, const ck_file *by, const ast_decl *d)
{
    const char *from = c->ctx->files.v[by->id - 1].name;
    const char *path = d->quoted ? beside(c, from, d->name.s) : "<nn>";
    if (!d->quoted && strcmp(d->name.s, "nn")) {
        ck_say(c, d->name.loc, "unknown library `%s`; there is `nn`, "
               "and files: use \"path.nd\"", d->name.s);
        return NULL;
    }
    for (int i = 0; i < c->files.n; i++) {
        ck_file *f = c->files.v[i];
        if (same_path(c->ctx->files.v[f->id - 1].name, path))
            return f->ast ? f : NULL;
    }
    int id = !d->quoted ? nd_add_file(c->ctx, path, nd_lib_nn,
                                      strlen(nd_lib_nn))
             : c->opt->sealed ? 0 : nd_read_file(c->ctx, path);
    if (!id) {
        ck_say(c, d->name.loc, c->opt->sealed ? "cannot read `%s`"
                                              : "cannot read `%s`: %s", path,
               strerror(errno));
        return NULL;
    }
    return load(c, id, !d->quoted);
}

static ck_file *load(ck *c, int id, bool lib)
{
    ck_file *f = ND_NEW(c->ctx->arena, ck_file);
    f->id = id;
    f->lib = lib;
    ND_PUSH(c->ctx->arena, &c->files, f);
    ast_file *ast = f->ast = nd_parse(c->ctx, id);
    if (!ast)
        return NULL;
    if (ast->decls.n > CK_MAX_DECLS) {
        ck_say(c, ast->decls.v[CK_MAX_DECLS]->loc,
               "more than %d declarations in a file", CK_MAX_DECLS);
        return NULL;
    }
    no_duplicates(c, ast);
    for (int i = 0; i < ast->decls.n; i++) {
        const ast_decl *d = ast->decls.v[i];
        ck_file *u = d->kind == I_USE ? use(c, f, d) : NULL;
        header_names(c, d);
        if (u) {
            ND_PUSH(c->ctx->arena, &f->uses, u);
            ND_PUSH(c->ctx->arena, &f->use_at, d->name.loc);
        }
        if (d->kind == I_CLUSTER)
            ck_say(c, d->loc, "`cluster`: not supported yet");
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
            ck_say(c, d->loc, "a second `%s` block",
                   k == I_TRAIN ? "train" : "plan");
            ck_note(c, found->loc, "the first one is here");
        }
        found = d;
    }
    return found;
}

enum { MAX_NAMES = 64 };

static int model_names(const ast_file *f, const char **names, int n)
{
    for (int i = 0; i < f->decls.n && n < MAX_NAMES; i++)
        if (f->decls.v[i]->kind == I_MODEL)
            names[n++] = f->decls.v[i]->name.s;
    return n;
}

/* A model of the main file or of one that it uses. */
static const ast_decl *named_model(ck *c, ast_name name, ck_file **in)
{
    const ast_decl *d = ck_find_fn(c, name.s, in);
    if (d && d->kind == I_MODEL)
        return d;
    const char *names[MAX_NAMES];
    int n = model_names(c->main->ast, names, 0);
    for (int i = 0; i < c->main->uses.n; i++)
        n = model_names(c->main->uses.v[i]->ast, names, n);
    ck_near_error(c, name.loc, name.loc.file ? "model" : "model in --model",
                  name.s, names, n);
    return NULL;
}

/* The model that --model or `train NAME` names, else the only one. */
static const ast_decl *choose_model(ck *c, ck_file **in)
{
    const ast_decl *one = NULL, *train = NULL;
    const ast_file *f = c->main->ast;
    int n = 0;
    *in = c->main;
    if (c->opt->model)
        return named_model(c, (ast_name){c->opt->model, {0, 0, 0}}, in);
    for (int i = 0; i < f->decls.n; i++) {
        const ast_decl *d = f->decls.v[i];
        if (d->kind == I_MODEL) {
            n++;
            one = d;
        }
        if (d->kind == I_TRAIN && d->name.s) {
            if (!named_model(c, d->name, in))
                return NULL;
            if (train && strcmp(train->name.s, d->name.s)) {
                ck_say(c, d->loc, "a second `train` block: one model is "
                       "compiled; ndc --model NAME says which");
                ck_note(c, train->loc, "the first one is here");
                return NULL;
            }
            train = d;
        }
    }
    if (train)
        return named_model(c, train->name, in);
    *in = c->main;
    nd_loc end = {f->file, 0, 0};
    if (n == 0)
        ck_say(c, end, "the file has no model");
    else if (n > 1)
        ck_say(c, one->loc, "%d models; `train NAME { }` or ndc --model NAME "
               "says which one to compile", n);
    return n == 1 ? one : NULL;
}

/* ---- the model that is compiled ------------------------------------------ */

static bool declare_input(ck *c, const ast_par *p)
{
    nd_dtype t;
    ck_axes ax = {0};
    if (!p->type.s && p->value) {
        ck_val v = ck_expr(c, p->value);
        if (v.kind == VAL_TENSOR)
            ck_error(c, p->value->loc, "a default is a compile-time constant");
        return v.kind == VAL_CONST && ck_assign(c, p->name, v, false);
    }
    if (p->value) {
        ck_error(c, p->value->loc, "an input has no default: its values are "
                 "data");
        return false;
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
        ck_error(c, p->type.loc, "an input is f32 or i32, this is %s; cast it "
                 "inside: cast[%s](%s)", p->type.s, p->type.s, p->name.s);
        return false;
    }
    if (p->brk && !ck_bracket(c, p->brk->left, &ax))
        return false;
    ck_at(c, p->name.loc);
    nd_value *v = nd_input(&c->b, p->name.s, nd_type_of(t, ax.n, ax.a));
    return v && ck_assign(c, p->name, ck_tensor(v), false);
}

static void set_loss(ck *c, const ast_decl *d, ck_val v)
{
    nd_loc at = d->body->n ? d->body->v[d->body->n - 1]->loc : d->loc;
    if (v.kind == VAL_TUPLE) {
        ck_say(c, at, "a model returns its loss alone, `%s` returns %d values",
               d->name.s, v.n);
        return;
    }
    if (v.kind == VAL_CONST || v.kind == VAL_TENSOR) {
        ck_at(c, at);
        nd_value *x = ck_strong(c, v, ND_F32);
        if (x && x->type.rank) {
            ck_say(c, at, "the loss is a scalar, this is %s; take a "
                   "mean over its axes", ck_type(c, &x->type));
            return;
        }
        c->m->loss = x;
    }
}

/* A value that no machine holds: its byte counts would not fit in 64 bits; one
 * with too many axes once it is kept for the gradient. */
static void refuse_huge(nd_op *op, void *user)
{
    enum { LOG2_MAX = 48 };
    ck *c = user;
    int depth = 0;                   /* what is kept has the repeats' axes */
    for (const nd_op *r = op->block->parent; r; r = r->block->parent)
        depth++;
    for (int i = 0; i < op->nout && !c->huge; i++) {
        const nd_type *t = &op->out[i]->type;
        const char *name = op->name ? op->name : op->out[i]->name;
        int64_t n;
        if (t->rank + depth > ND_MAX_RANK) {
            c->huge = true;
            ck_say(c, op->loc, "%s inside %d repeats: more than %d axes with "
                   "theirs", ck_type(c, t), depth, ND_MAX_RANK);
            continue;
        }
        if (ck_count(t->rank, t->axis, &n) && n <= (int64_t)1 << LOG2_MAX)
            continue;
        c->huge = true;
        ck_say(c, op->loc, "%s has more than 2^%d elements: it is %s",
               name ? nd_fmt(c->ctx->arena, "`%s`", name) : "this value",
               LOG2_MAX, ck_type(c, t));
    }
}

/* False after errors. */
static bool run_model(ck *c, const ast_decl *d, ck_file *file)
{
    ck_scope s = {.path = ""};
    ck_frame f = {.file = file, .fn = d, .scope = &s, .call = d->loc,
                  .label = d->name.s, .is_main = true};
    bool ok = true;
    c->f = &f;
    c->b = (nd_builder){.m = c->m, .block = c->m->step, .at = -1,
                        .phase = PH_FWD, .path = ""};
    for (int i = 0; i < d->pars->n; i++)
        ok &= declare_input(c, &d->pars->v[i]);
    ok = ok && ck_run_body(c, d->body) &&
         (!f.returned || f.ret.kind != VAL_BAD);
    if (ok)
        set_loss(c, d, f.ret);
    c->f = NULL;
    return ok;
}

/* --set gives an axis one size. */
static void set_twice(ck *c, int i)
{
    const char *s = c->opt->set[i];
    size_t n = strcspn(s, "=");
    for (int k = 0; k < i; k++)
        if (!strncmp(s, c->opt->set[k], n + 1)) {
            ck_say(c, nd_nowhere, "--set: `%.*s` is set twice, by %s "
                   "and %s", (int)n, s, c->opt->set[k], s);
            return;
        }
}

/* --set is about the main file; says so where a file that it uses has it. */
static bool of_used_file(ck *c, const char *name)
{
    for (int i = 1; i < c->files.n; i++) {
        const ck_file *f = c->files.v[i];
        for (int k = 0; k < f->ast->decls.n; k++) {
            const ast_decl *d = f->ast->decls.v[k];
            if (d->kind != I_AXIS || strcmp(d->name.s, name))
                continue;
            ck_say(c, nd_nowhere, "--set: `%s` is an axis of `%s`; "
                   "sizes are set for the axes of `%s` alone", name,
                   c->ctx->files.v[f->id - 1].name,
                   c->ctx->files.v[c->main->id - 1].name);
            ck_note(c, d->name.loc, "it is declared here");
            return true;
        }
    }
    return false;
}

static void check_set(ck *c)
{
    for (int i = 0; i < c->opt->nset; i++) {
        set_twice(c, i);
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
        if (!known && of_used_file(c, name))
            continue;
        if (!known)
            ck_near_error(c, nd_nowhere, "axis in --set", name, names,
                          n);
        else if (!eq || strtoll(eq + 1, &end, 10) < 1 || *end)
            ck_say(c, nd_nowhere,
                   "--set %s: a size is a positive integer", s);
    }
}

static const ast_decl *plan_block(ck *c, const char *model)
{
    if (!c->opt->plan_path)
        return block_for(c, c->main->ast, I_PLAN, model);
    int id = nd_read_file(c->ctx, c->opt->plan_path);
    if (!id) {
        ck_say(c, nd_nowhere, "cannot read the plan `%s`: %s",
               c->opt->plan_path, strerror(errno));
        return NULL;
    }
    ast_file *f = nd_parse(c->ctx, id);
    const ast_decl *d = f ? block_for(c, f, I_PLAN, model) : NULL;
    if (f && !d)
        ck_say(c, (nd_loc){id, 0, 0}, "the file has no plan block");
    return d;
}

nd_module *nd_frontend(nd_ctx *ctx, int file, const nd_front_options *o)
{
    ck c = {.ctx = ctx, .opt = o};
    int before = ctx->nerrors;
    c.main = load(&c, file, false);
    const ast_decl *model = NULL;
    ck_file *of = NULL;
    ck_scope s = {.path = ""};
    ck_frame top = {.file = c.main, .scope = &s};
    c.f = &top;
    if (c.main && ctx->nerrors == before)
        model = choose_model(&c, &of);
    if (!model || ctx->nerrors > before)
        return NULL;
    c.m = nd_module_new(ctx, model->name.s);
    c.b = (nd_builder){.m = c.m, .block = c.m->step, .at = -1};
    check_set(&c);
    if (ctx->nerrors > before)
        return NULL;

    for (int i = 0; i < c.main->ast->decls.n; i++) {
        const ast_decl *d = c.main->ast->decls.v[i];
        ck_val v;
        if (d->kind == I_AXIS)
            ck_find_bind(&c, d->name.s);
        else if (d->kind == I_LET)
            ck_find_let(&c, d->name.s, &v);
    }
    if (ctx->nerrors > before)
        return NULL;
    const ast_decl *train = block_for(&c, c.main->ast, I_TRAIN,
                                      model->name.s);
    ck_sample_axis(&c, train, of);
    bool ok = run_model(&c, model, of);
    nd_walk(c.m->step, refuse_huge, &c);
    c.f = &top;
    ck_train(&c, train);
    const ast_decl *plan = plan_block(&c, model->name.s);
    if (plan || !o->plan_path)
        ck_plan(&c, plan);
    return ok && ctx->nerrors == before ? c.m : NULL;
}
