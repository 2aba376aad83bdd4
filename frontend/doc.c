/* doc.c - ndc doc: the reference of a library, from its sources.
 *
 *   # mse(x, y) = mean (x - y)^2      ->   mse[a](x, y)
 *   fn mse[a](x, y) { ... }                    mse(x, y) = mean (x - y)^2
 *
 * What is said about a function is the comment right above it.
 */
#include "frontend.h"
#include "ndc.h"

#include <errno.h>
#include <string.h>

typedef struct doc {
    nd_ctx *c;
    nd_arena *a;
    const nd_file *src;
    const ast_file *tree;
    bool markdown;
    nd_buf out;
} doc;

/* ---- pieces of the source ------------------------------------------------ */

/* One line, one blank between words, no comments; `fn` is dropped. */
static const char *signature(doc *d, const ast_decl *f)
{
    nd_buf b = {d->a, NULL, 0, 0};
    const char *s = d->src->text + f->name.loc.begin;
    const char *end = d->src->text + f->loc.end;
    bool blank = false;
    nd_put(&b, "");
    for (; s < end; s++) {
        if (*s == '#')
            while (s < end && *s != '\n')
                s++;
        if (s < end && !strchr(" \t\n", *s)) {
            if (blank && !strchr("([", b.s[b.n - 1]) && !strchr(")],", *s))
                nd_put(&b, " ");
            nd_putn(&b, s, 1);
            blank = false;
        } else {
            blank = true;
        }
    }
    return b.s;
}

/* From `fn` to the `}` of its body. */
static const char *whole(doc *d, const ast_decl *f)
{
    const char *begin = d->src->text + f->loc.begin, *s = begin;
    for (int depth = 0; *s; s++) {
        if (*s == '#')
            s += strcspn(s, "\n");
        if (*s == '"')
            s += 1 + strcspn(s + 1, "\"");
        depth += *s == '{' ? 1 : *s == '}' ? -1 : 0;
        if (*s == '}' && !depth)
            break;
    }
    return nd_strndup(d->a, begin, (size_t)(s - begin) + 1);
}

/* The line that ends before `end`; its text without `# `, NULL if it is not a
 * comment on its own. */
static const char *comment_line(doc *d, const char *end, const char **begin)
{
    const char *s = end;
    while (s > d->src->text && s[-1] != '\n')
        s--;
    *begin = s;
    s += strspn(s, " \t");
    if (*s != '#')
        return NULL;
    s += 1 + (s[1] == ' ');
    return nd_strndup(d->a, s, (size_t)(end - s));
}

/* The comment lines right above a place, or NULL. */
static const char *comment_above(doc *d, uint32_t at)
{
    const char *all = NULL, *line, *begin;
    const char *s = d->src->text + at;
    while (s > d->src->text && s[-1] != '\n')
        s--;
    while (s > d->src->text && (line = comment_line(d, s - 1, &begin))) {
        all = nd_fmt(d->a, "%s\n%s", line, all ? all : "");
        s = begin;
    }
    return all;
}

/* What the file says about itself: the comment that it begins with. */
static const char *file_comment(doc *d)
{
    const char *end = d->src->text, *next;
    while (*end == '#' && (next = strchr(end, '\n')))
        end = next + 1;
    return *end == '\n' ? comment_above(d, (uint32_t)(end - d->src->text))
                        : NULL;
}

/* ---- writing ------------------------------------------------------------- */

static void indented(doc *d, const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (n) {
            nd_put(&d->out, "    ");
            nd_putn(&d->out, text, n);
        }
        nd_put(&d->out, "\n");
        text += n + (text[n] == '\n');
    }
}

/* Outside `code`, what markdown would read as its own is escaped. */
static void prose(doc *d, const char *text)
{
    bool code = false;
    for (; *text; text++) {
        code ^= *text == '`';
        if (!code && strchr("*_<[\\|", *text))
            nd_put(&d->out, "\\");
        nd_putn(&d->out, text, 1);
    }
}

static void function(doc *d, const ast_decl *f, bool body)
{
    const char *said = comment_above(d, f->loc.begin);
    const char *model = f->kind == I_MODEL ? "model " : "";
    if (d->markdown) {
        nd_putf(&d->out, "### `%s%s`\n\n", model, signature(d, f));
        if (said)
            prose(d, said);
        if (body)
            nd_putf(&d->out, "%s```nd\n%s\n```\n", said ? "\n" : "",
                    whole(d, f));
        return;
    }
    nd_putf(&d->out, "%s%s\n", model, signature(d, f));
    if (said)
        indented(d, said);
    if (body) {
        nd_put(&d->out, "\n");
        indented(d, whole(d, f));
    }
}

static bool documented(const ast_decl *f)
{
    return f->kind == I_FN || f->kind == I_MODEL;
}

static void all_functions(doc *d)
{
    const char *said = file_comment(d);
    if (said && d->markdown)
        prose(d, said);
    else if (said)
        nd_put(&d->out, said);
    for (int i = 0; i < d->tree->decls.n; i++)
        if (documented(d->tree->decls.v[i])) {
            nd_put(&d->out, d->out.n ? "\n" : "");
            function(d, d->tree->decls.v[i], false);
        }
}

static void all_forms(doc *d)
{
    ck_form f;
    nd_put(&d->out, d->markdown ? "| form | meaning |\n|---|---|\n" : "");
    for (int i = 0; ck_form_at(d->a, i, &f); i++)
        if (d->markdown) {
            nd_putf(&d->out, "| `%s` | ", f.form);
            prose(d, f.meaning);
            nd_put(&d->out, " |\n");
        } else {
            nd_putf(&d->out, "%-28s%s%s\n", f.form,
                    strlen(f.form) > 26 ? "\n                            " : "",
                    f.meaning);
        }
}

static void form(doc *d, const ck_form *f)
{
    if (d->markdown) {
        nd_putf(&d->out, "### `%s`\n\n", f->form);
        prose(d, f->meaning);
        nd_put(&d->out, "\n");
    } else {
        nd_putf(&d->out, "%s\n    %s\n", f->form, f->meaning);
    }
}

static void words(doc *d, ndc_doc_kind kind)
{
    const char *s;
    ck_form f;
    if (kind == NDC_DOC_KEYWORDS)
        for (int i = 0; (s = lex_keyword_text(i)); i++)
            nd_putf(&d->out, "%s\n", s);
    else
        for (int i = 0; ck_form_at(d->a, i, &f); i++)
            nd_putf(&d->out, *f.name ? "%s\n" : "%s", f.name);
}

/* ---- finding ------------------------------------------------------------- */

/* A function of the file comes first, then a built-in one. */
static bool one_name(doc *d, const char *name)
{
    ND_VEC(const char *) known = {0};
    ck_form f;
    for (int i = 0; i < d->tree->decls.n; i++) {
        const ast_decl *v = d->tree->decls.v[i];
        if (!documented(v))
            continue;
        ND_PUSH(d->a, &known, v->name.s);
        if (!strcmp(v->name.s, name)) {
            function(d, v, true);
            return true;
        }
    }
    for (int i = 0; ck_form_at(d->a, i, &f); i++) {
        if (!*f.name)
            continue;
        ND_PUSH(d->a, &known, f.name);
        if (!strcmp(f.name, name)) {
            form(d, &f);
            return true;
        }
    }
    const char *near = nd_nearest(name, known.v, known.n);
    nd_error(d->c, nd_nowhere, "no function is called `%s`%s%s%s", name,
             near ? "; did you mean `" : "", near ? near : "",
             near ? "`?" : "; ndc doc and ndc doc --ops list them");
    return false;
}

static bool load(doc *d, const char *path)
{
    int file = path ? nd_read_file(d->c, path)
                    : nd_add_file(d->c, "nn.nd", nd_lib_nn, strlen(nd_lib_nn));
    if (!file) {
        nd_error(d->c, nd_nowhere, "cannot read `%s`: %s", path,
                 strerror(errno));
        return false;
    }
    d->tree = nd_parse(d->c, file);
    d->src = &d->c->files.v[file - 1];
    return d->tree != NULL;
}

static bool produce(doc *d, const ndc_doc_options *o)
{
    if (o->kind == NDC_DOC_FORMS)
        all_forms(d);
    else if (o->kind != NDC_DOC_FUNCTIONS)
        words(d, o->kind);
    else if (!load(d, o->file) || (o->name && !one_name(d, o->name)))
        return false;
    else if (!o->name)
        all_functions(d);
    return true;
}

int ndc_doc(const ndc_doc_options *o)
{
    nd_ctx *c = nd_ctx_new();
    doc d = {.c = c, .a = c->arena, .markdown = o->markdown,
             .out = {c->arena, NULL, 0, 0}};
    nd_put(&d.out, "");
    bool ok = produce(&d, o);
    if (ok && (fputs(d.out.s, stdout) < 0 || fflush(stdout))) {
        nd_error(c, nd_nowhere, "cannot write `stdout`");
        ok = false;
    }
    nd_ctx_free(c);
    return ok ? NDC_OK : NDC_BAD_INPUT;
}
