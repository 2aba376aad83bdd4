/* check_names.c - scopes: what a name means, and messages about names.
 *
 * A name is looked up among the variables and axes of the function being
 * instantiated, then among the axes, lets and functions of the file that holds
 * that function, then in the files it uses. Never in its importer.
 */
#include "frontend.h"

#include <stdlib.h>
#include <string.h>

/* A function called twice is checked twice; its errors are said once, and a
 * note says nothing where its error said nothing. */
static bool said(ck *c, nd_loc at, const char *fmt)
{
    c->quiet = false;
    if (!at.file)
        return false;
    for (int i = 0; i < c->said.n && !c->quiet; i++)
        c->quiet = c->said.v[i].fmt == fmt &&
                   c->said.v[i].at.file == at.file &&
                   c->said.v[i].at.begin == at.begin;
    ck_said s = {at, fmt};
    if (!c->quiet)
        ND_PUSH(c->ctx->arena, &c->said, s);
    return c->quiet;
}

static const char *format(ck *c, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    char *text = nd_alloc(c->ctx->arena, (size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, fmt, ap);
    return text;
}

/* Inside the library the user's call is the place; the library's line is a
 * note. */
void ck_error(ck *c, nd_loc at, const char *fmt, ...)
{
    va_list ap;
    ck_frame *f = c->f;
    bool lib = f && f->file->lib && f->user_loc.file;
    if (said(c, lib ? f->user_loc : at, fmt))
        return;
    va_start(ap, fmt);
    const char *text = format(c, fmt, ap);
    va_end(ap);
    if (lib) {
        nd_error(c->ctx, f->user_loc, "in `%s`: %s",
                 f->fn ? f->fn->name.s : "a default", text);
        nd_note(c->ctx, at, "in the library");
        return;
    }
    nd_error(c->ctx, at, "%s", text);
    if (f && f->fn && f->up && f->up->fn)
        nd_note(c->ctx, f->call, "in this call of `%s`", f->fn->name.s);
}

void ck_say(ck *c, nd_loc at, const char *fmt, ...)
{
    va_list ap;
    if (said(c, at, fmt))
        return;
    va_start(ap, fmt);
    nd_error(c->ctx, at, "%s", format(c, fmt, ap));
    va_end(ap);
}

void ck_note(ck *c, nd_loc at, const char *fmt, ...)
{
    va_list ap;
    if (c->quiet)
        return;
    va_start(ap, fmt);
    nd_note(c->ctx, at, "%s", format(c, fmt, ap));
    va_end(ap);
}

bool ck_warn_once(ck *c, nd_loc at)
{
    for (int i = 0; i < c->warned.n; i++)
        if (c->warned.v[i].file == at.file && c->warned.v[i].begin == at.begin)
            return false;
    ND_PUSH(c->ctx->arena, &c->warned, at);
    return true;
}

void ck_later(ck *c, nd_loc at, const char *what)
{
    ck_error(c, at, "%s: not supported yet", what);
}

nd_loc ck_place(const ck *c, nd_loc at)
{
    return c->f && c->f->file->lib ? c->f->user_loc : at;
}

void ck_at(ck *c, nd_loc at)
{
    c->b.loc = ck_place(c, at);
}

const char *ck_type(ck *c, const nd_type *t)
{
    nd_buf b = {c->ctx->arena, NULL, 0, 0};
    nd_print_type(&b, c->m, t);
    return b.s;
}

ck_var *ck_find_var(ck *c, const char *name)
{
    for (ck_scope *s = c->f->scope; s; s = s->up)
        for (ck_var *v = s->vars; v; v = v->next)
            if (!strcmp(v->name, name))
                return v;
    return NULL;
}

/* ---- a file's own names -------------------------------------------------- */

static const ast_decl *find_decl(const ck_file *f, const char *name,
                                 unsigned kinds)
{
    for (int i = 0; i < f->ast->decls.n; i++) {
        const ast_decl *d = f->ast->decls.v[i];
        if ((kinds >> d->kind & 1) && d->name.s && !strcmp(d->name.s, name))
            return d;
    }
    return NULL;
}

enum {                               /* what shares one space of names */
    DATA = 1u << I_AXIS | 1u << I_LET, CODE = 1u << I_FN | 1u << I_MODEL
};

/* Two files that one uses may not both mean something by a name it needs. */
static void ambiguous(ck *c, const ck_file *f, int use, const ast_decl *x,
                      const ast_decl *y)
{
    ck_say(c, f->use_at.v[use], "`%s` is defined by two files that are used "
           "here; define it in this file or rename one", x->name.s);
    ck_note(c, x->name.loc, "it is defined here");
    ck_note(c, y->name.loc, "and here");
}

/* The declaration in the file itself, else in a file it uses: the only one. */
static const ast_decl *visible(ck *c, ck_file *f, const char *name,
                               unsigned space, ck_file **in)
{
    const ast_decl *d = find_decl(f, name, space);
    *in = f;
    if (d)
        return d;
    for (int i = 0; i < f->uses.n; i++) {
        ck_file *u = f->uses.v[i];
        const ast_decl *x = find_decl(u, name, space);
        if (x && d && x != d) {
            ambiguous(c, f, i, d, x);
            return d;
        }
        if (x && !d) {
            d = x;
            *in = u;
        }
    }
    return d;
}

const ast_decl *ck_find_fn(ck *c, const char *name, ck_file **file)
{
    return visible(c, c->f->file, name, CODE, file);
}

/* Declarations may refer to each other in any order, but not in a circle. */
static bool enter(ck *c, ck_file *f, const ast_decl *d)
{
    for (int i = 0; i < f->busy.n; i++)
        if (f->busy.v[i] == d) {
            ck_error(c, d->loc, "`%s` depends on itself", d->name.s);
            return false;
        }
    if (f->busy.n >= CK_MAX_DEPTH) {
        ck_error(c, d->loc, "declarations depend on each other too deeply");
        return false;
    }
    ND_PUSH(c->ctx->arena, &f->busy, (ast_decl *)d);
    return true;
}

/* A file's expressions see only the file. */
static ck_frame outside(ck_file *f, ck_scope *s)
{
    s->path = "";
    return (ck_frame){.file = f, .scope = s};
}

/* Each is worked out once: lets that use each other twice would take time
 * exponential in their number. */
bool ck_find_let(ck *c, const char *name, ck_val *out)
{
    ck_file *file;
    ck_scope s = {0};
    const ast_decl *d = visible(c, c->f->file, name, DATA, &file);
    *out = ck_bad();
    if (!d || d->kind != I_LET)
        return false;
    for (int i = 0; i < file->lets.n; i++)
        if (file->lets.v[i].decl == d) {
            *out = file->lets.v[i].val;
            return true;
        }
    if (!enter(c, file, d))
        return true;
    ck_frame f = outside(file, &s), *was = c->f;
    bool only = c->const_only;
    c->f = &f;
    c->const_only = true;
    *out = ck_expr(c, d->value);
    c->f = was;
    c->const_only = only;
    file->busy.n--;
    ck_let done = {d, *out};
    ND_PUSH(c->ctx->arena, &file->lets, done);
    return true;
}

static bool overridden(ck *c, const ck_file *f, const char *name,
                       int64_t *size)
{
    size_t n = strlen(name);
    bool found = false;
    for (int i = 0; f == c->main && i < c->opt->nset; i++) {
        const char *s = c->opt->set[i];
        if (!strncmp(s, name, n) && s[n] == '=') {
            *size = strtoll(s + n + 1, NULL, 10);
            found = true;
        }
    }
    return found;
}

static ck_bind *file_axis(ck *c, const char *name)
{
    ck_file *file;
    ck_scope s = {0};
    const ast_decl *d = visible(c, c->f->file, name, DATA, &file);
    if (!d || d->kind != I_AXIS)
        return NULL;
    for (int i = 0; i < file->axes.n; i++)
        if (!strcmp(file->axes.v[i]->name, name))
            return file->axes.v[i];
    ck_frame f = outside(file, &s), *was = c->f;
    ck_bind *list = NULL;
    if (!enter(c, file, d)) {        /* something to go on with */
        ck_bind *b = ND_NEW(c->ctx->arena, ck_bind);
        nd_axis *a = ND_NEW(c->ctx->arena, nd_axis);
        *a = (nd_axis){.name = name, .size = 1, .loc = d->loc};
        *b = (ck_bind){.name = name, .loc = d->loc, .n = 1};
        b->axis = ND_NEW(c->ctx->arena, nd_axis *);
        b->axis[0] = a;
        return b;
    }
    c->f = &f;
    ck_bind *b = ck_declare_axis(c, d->name, d->value, &list);
    c->f = was;
    file->busy.n--;
    ND_PUSH(c->ctx->arena, &file->axes, b);
    return b;
}

ck_bind *ck_find_bind(ck *c, const char *name)
{
    for (ck_scope *s = c->f->scope; s; s = s->up)
        for (ck_bind *b = s->binds; b; b = b->next)
            if (!strcmp(b->name, name))
                return b;
    return file_axis(c, name);
}

/* ---- axes ---------------------------------------------------------------- */

bool ck_count(int n, nd_axis *const *axis, int64_t *out)
{
    *out = 1;
    for (int i = 0; i < n; i++)
        if (__builtin_mul_overflow(*out, axis[i]->size, out))
            return false;
    return true;
}

/* Nothing is said about the size of an axis whose own size is an error. */
bool ck_any_unsized(const ck *c, int n, nd_axis *const *axis)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < c->unsized.n; k++)
            if (c->unsized.v[k] == axis[i])
                return true;
    return false;
}

static bool too_large(ck *c, ast_expr *e)
{
    ck_error(c, e->loc, "this integer does not fit in 64 bits");
    return false;
}

static bool size_of_name(ck *c, ast_expr *e, int64_t *out)
{
    ck_val v;
    ck_var *var = ck_find_var(c, e->str);
    ck_bind *b = var ? NULL : ck_find_bind(c, e->str);
    if (b && ck_any_unsized(c, b->n, b->axis))
        return false;
    if (b)
        return ck_count(b->n, b->axis, out) || too_large(c, e);
    if (var)
        v = var->val;
    else if (!ck_find_let(c, e->str, &v)) {
        ck_unknown(c, e->loc, "axis", e->str);
        return false;
    }
    if (v.kind == VAL_CONST && v.dtype == ND_I32) {
        *out = v.i;
        return true;
    }
    if (v.kind != VAL_BAD)
        ck_error(c, e->loc, "`%s` is not a compile-time integer", e->str);
    return false;
}

static bool power(int64_t a, int64_t b, int64_t *out)
{
    int64_t r = 1;
    if (b < 0)
        return false;
    if (a == 0 || a == 1) {
        *out = b ? a : 1;
        return true;
    }
    for (int64_t i = 0; i < b; i++)
        if (__builtin_mul_overflow(r, a, &r))
            return false;
    *out = r;
    return true;
}

/* Exact integer arithmetic, where a division that leaves a rest is an error. */
bool ck_axis_size(ck *c, ast_expr *e, int64_t *out)
{
    int64_t a, b;
    if (e->kind == E_NUM && e->integer) {
        *out = e->inum;
        return true;
    }
    if (e->kind == E_NAME)
        return size_of_name(c, e, out);
    if (e->kind == E_NEG) {
        if (!ck_axis_size(c, e->a, &a))
            return false;
        return !__builtin_sub_overflow((int64_t)0, a, out) || too_large(c, e);
    }
    if (e->kind < E_ADD || e->kind > E_POW) {
        ck_error(c, e->loc, "an axis size is integer arithmetic over numbers "
                 "and axes");
        return false;
    }
    if (!ck_axis_size(c, e->a, &a) || !ck_axis_size(c, e->b, &b))
        return false;
    if (e->kind == E_ADD)
        return !__builtin_add_overflow(a, b, out) || too_large(c, e);
    if (e->kind == E_SUB)
        return !__builtin_sub_overflow(a, b, out) || too_large(c, e);
    if (e->kind == E_MUL)
        return !__builtin_mul_overflow(a, b, out) || too_large(c, e);
    if (e->kind == E_POW)
        return power(a, b, out) || too_large(c, e);
    if (b == 0 || (b == -1 && a == INT64_MIN)) {
        ck_error(c, e->loc, "division by zero");
        return false;
    }
    if (e->kind == E_DIV && a % b) {
        const char *text = c->ctx->files.v[e->loc.file - 1].text;
        ck_error(c, e->loc, "`%.*s`: %lld is not divisible by %lld",
                 (int)(e->loc.end - e->loc.begin), text + e->loc.begin,
                 (long long)a, (long long)b);
        return false;
    }
    int64_t q = a / b - (a % b != 0 && (a < 0) != (b < 0));
    *out = e->kind == E_MOD ? a - q * b : q;
    return true;
}

/* `axis name = e`; always yields a binding, so that one error is enough. */
ck_bind *ck_declare_axis(ck *c, ast_name name, ast_expr *e, ck_bind **list)
{
    nd_arena *ar = c->ctx->arena;
    ck_bind *b = ND_NEW(ar, ck_bind), *same = NULL;
    int64_t size;
    bool set = !c->f->fn && overridden(c, c->f->file, name.s, &size);
    bool sized = set || ck_axis_size(c, e, &size);
    if (sized && (size < 1 || size > INT32_MAX)) {
        ck_error(c, name.loc, "the axis `%s` has size %lld; sizes are 1 to "
                 "2147483647", name.s, (long long)size);
        sized = false;
    }
    if (e->kind == E_NAME && !ck_find_var(c, e->str))
        same = ck_find_bind(c, e->str);
    b->name = name.s;
    b->loc = name.loc;
    b->n = 1;
    b->axis = ND_NEW(ar, nd_axis *);
    b->axis[0] = nd_axis_new(c->m, name.s, sized ? size : 1, name.loc);
    if (!sized)
        ND_PUSH(ar, &c->unsized, b->axis[0]);
    if (same && same->n == 1)
        b->axis[0]->like = same->axis[0];
    b->next = *list;
    *list = b;
    return b;
}

static bool add_axis(ck *c, ck_axes *out, nd_axis *a, nd_loc at, ck_bind *b,
                     bool twice)
{
    for (int k = 0; k < out->n && !twice; k++)
        if (out->a[k] == a) {
            ck_error(c, at, "the axis `%s` appears twice", a->name);
            ck_note(c, out->at[k], "it is here already");
            return false;
        }
    if (out->n == ND_MAX_RANK) {
        ck_error(c, at, "more than %d axes", ND_MAX_RANK);
        return false;
    }
    out->a[out->n] = a;
    out->at[out->n] = at;
    out->src[out->n++] = b;
    return true;
}

static bool spell_out(ck *c, const ast_items *v, bool twice, ck_axes *out)
{
    out->n = 0;
    for (int i = 0; i < v->n; i++) {
        const ast_item *it = &v->v[i];
        if (it->lo) {
            ck_error(c, it->name.loc, "only axes stand in these brackets");
            return false;
        }
        ck_bind *b = ck_find_bind(c, it->name.s);
        if (!b) {
            ck_unknown(c, it->name.loc, "axis", it->name.s);
            return false;
        }
        for (int k = 0; k < b->n; k++)
            if (!add_axis(c, out, b->axis[k], it->name.loc, b, twice))
                return false;
    }
    return true;
}

bool ck_bracket(ck *c, const ast_items *v, ck_axes *out)
{
    return spell_out(c, v, false, out);
}

bool ck_bracket_each(ck *c, const ast_items *v, ck_axes *out)
{
    return spell_out(c, v, true, out);
}

/* ---- unknown names ------------------------------------------------------- */

typedef ND_VEC(const char *) names;

static void add(ck *c, names *v, const char *s)
{
    ND_PUSH(c->ctx->arena, v, s);
}

static void file_names(ck *c, names *v, const ck_file *f, unsigned kinds)
{
    for (int i = 0; i < f->ast->decls.n; i++)
        if (kinds >> f->ast->decls.v[i]->kind & 1 &&
            f->ast->decls.v[i]->name.s)
            add(c, v, f->ast->decls.v[i]->name.s);
}

static void candidates(ck *c, names *v, const char *what)
{
    bool fn = !strcmp(what, "function"), axis = !strcmp(what, "axis");
    unsigned kinds = fn     ? 1u << I_FN | 1u << I_MODEL
                     : axis ? 1u << I_AXIS
                            : 1u << I_AXIS | 1u << I_LET;
    for (ck_scope *s = c->f->scope; s && !fn; s = s->up) {
        for (int i = 0; i < s->children.n; i++)
            if (!strcmp(what, "instance"))
                add(c, v, s->children.v[i].name);
        for (ck_var *x = s->vars; x && !axis; x = x->next)
            add(c, v, x->name);
        for (ck_bind *b = s->binds; b; b = b->next)
            add(c, v, b->name);
    }
    file_names(c, v, c->f->file, kinds);
    for (int i = 0; i < c->f->file->uses.n; i++)
        file_names(c, v, c->f->file->uses.v[i], kinds);
    ck_form f;
    for (int i = 0; fn && ck_form_at(c->ctx->arena, i, &f); i++)
        if (*f.name)
            add(c, v, f.name);
}

static bool in_library(ck *c, const char *name)
{
    const char *a = nd_fmt(c->ctx->arena, "fn %s[", name);
    const char *b = nd_fmt(c->ctx->arena, "fn %s(", name);
    return strstr(nd_lib_nn, a) || strstr(nd_lib_nn, b);
}

/* A name that one function does not know is one error, however often it reads
 * it. */
static bool asked_before(ck *c, const char *what, const char *name)
{
    ck_asked q = {c->f->file, c->f->fn, what, name};
    for (int i = 0; i < c->asked.n; i++) {
        const ck_asked *p = &c->asked.v[i];
        if (p->file == q.file && p->fn == q.fn && p->fn &&
            !strcmp(p->what, what) && !strcmp(p->name, name)) {
            c->quiet = true;
            return true;
        }
    }
    ND_PUSH(c->ctx->arena, &c->asked, q);
    return false;
}

void ck_unknown(ck *c, nd_loc at, const char *what, const char *name)
{
    names v = {0};
    ck_file *file;
    ck_var *var = ck_find_var(c, name);
    if (!strcmp(what, "axis") && var) {
        ck_error(c, at, "`%s` is a value, not an axis", name);
        ck_note(c, var->loc, "it is assigned here");
        return;
    }
    if (!strcmp(what, "value") && ck_find_bind(c, name)) {
        ck_error(c, at, "`%s` is an axis; give its size a name: n = %s", name,
                 name);
        return;
    }
    if (!strcmp(what, "name") &&
        (ck_find_fn(c, name, &file) || ck_is_builtin(name))) {
        ck_error(c, at, "`%s` is a function; call it: %s(...)", name, name);
        return;
    }
    if (!strcmp(what, "function") && ck_find_bind(c, name)) {
        ck_error(c, at, "`%s` is an axis, not a function", name);
        return;
    }
    if (asked_before(c, what, name))
        return;
    candidates(c, &v, what);
    const char *near = nd_nearest(name, v.v, v.n);
    if (!strcmp(what, "function") && in_library(c, name))
        ck_error(c, at, "unknown function `%s`; it is in the library: `use nn`",
                 name);
    else if (near)
        ck_error(c, at, "unknown %s `%s`; did you mean `%s`?", what, name,
                 near);
    else
        ck_error(c, at, "unknown %s `%s`", what, name);
}
