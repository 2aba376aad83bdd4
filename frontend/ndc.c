/* ndc.c - libndc: runs the stages in order and writes what was asked for.
 *
 *   text -> frontend -> passes -> codegen -> C compiler
 */
#include "ndc.h"
#include "frontend.h"
#include "../codegen/codegen.h"
#include "../passes/passes.h"

#include <string.h>

static const char *const emit_names[] = {
    [NDC_EXE] = "exe", [NDC_AST] = "ast",           [NDC_IR] = "ir",
    [NDC_SPMD] = "spmd", [NDC_SCHEDULE] = "schedule", [NDC_C] = "c",
    [NDC_PLAN] = "plan",
};
enum { NEMIT = sizeof emit_names / sizeof *emit_names };

int ndc_emit_find(const char *name)
{
    for (int i = 0; i < NEMIT; i++)
        if (!strcmp(emit_names[i], name))
            return i;
    return -1;
}

void ndc_list_ops(FILE *out)
{
    nd_list_ops(out);
}

void ndc_list_passes(FILE *out)
{
    nd_list_passes(out);
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && !strcmp(s + n - k, tail);
}

/* The file's stem in the current folder: models/gpt.nd -> gpt */
static const char *default_out(nd_arena *a, const char *file)
{
    const char *base = strrchr(file, '/');
    base = base ? base + 1 : file;
    const char *dot = strrchr(base, '.');
    return dot && dot > base ? nd_strndup(a, base, (size_t)(dot - base))
                             : nd_fmt(a, "%s.out", base);
}

static int write_text(nd_ctx *c, const char *path, const nd_buf *b)
{
    FILE *f = path ? fopen(path, "w") : stdout;
    bool ok = f && (b->n == 0 || fwrite(b->s, 1, b->n, f) == b->n);
    ok = f && !fflush(f) && ok;
    if (f && path)
        ok = !fclose(f) && ok;
    if (ok)
        return NDC_OK;
    nd_error(c, (nd_loc){0, 0, 0}, "cannot write `%s`",
             path ? path : "stdout");
    return NDC_BAD_USAGE;
}

/* Fills `text`, or builds; false after errors. */
static bool produce(nd_ctx *c, const ndc_options *o, int file, nd_buf *text)
{
    nd_front_options fo = {o->mesh, o->nset, o->set, o->plan};
    nd_options po = {o->dump_after, o->verify_each, stderr};
    bool graph = ends_with(o->file, ".ndir");
    if (o->emit == NDC_AST) {
        ast_file *f = graph ? NULL : nd_parse(c, file);
        if (graph)
            nd_error(c, (nd_loc){0, 0, 0}, "a graph has no syntax tree");
        if (f)
            ast_print(text, f);
        return f != NULL;
    }
    nd_module *m = graph ? nd_parse_ir(c, file) : nd_frontend(c, file, &fo);
    if (!m || ((graph || o->verify_each) && !nd_verify(m)))
        return false;
    if (o->emit == NDC_IR) {
        if (o->until && !nd_run_until(m, &po, o->until))
            return false;
        nd_print(text, m);
        return true;
    }
    if (!nd_run_passes(m, &po))
        return false;
    switch (o->emit) {
    case NDC_SPMD:
        nd_print(text, m);
        return true;
    case NDC_SCHEDULE:
        nd_schedule_draw(text, m);
        return true;
    case NDC_PLAN:
        cg_report_plan(m, text);
        return true;
    default:
        return cg_emit_c(m, text);
    }
}

static int finish(nd_ctx *c, const ndc_options *o, const nd_buf *text)
{
    if (o->emit != NDC_EXE)
        return write_text(c, o->out, text);
    return cg_build(c, text->s, o->out ? o->out
                                       : default_out(c->arena, o->file));
}

/* The two severities have the same values; the types differ so that ndc.h
 * needs no other header. */
typedef struct forward {
    const ndc_options *o;
} forward;

static void forward_message(void *user, nd_severity s, const char *text)
{
    const ndc_options *o = ((forward *)user)->o;
    o->sink(o->sink_user, (int)s, text);
}

int ndc_compile(const ndc_options *o)
{
    nd_ctx *c = nd_ctx_new();
    forward fw = {o};
    int rc;
    c->werror = o->werror;
    if (o->sink) {
        c->sink = forward_message;
        c->sink_user = &fw;
    }
    nd_buf text = {c->arena, NULL, 0, 0};
    nd_put(&text, "");
    int file = nd_read_file(c, o->file);
    if (!file) {
        nd_error(c, (nd_loc){0, 0, 0}, "cannot read `%s`", o->file);
        rc = NDC_BAD_USAGE;
    } else if (!produce(c, o, file, &text)) {
        rc = c->nerrors ? NDC_BAD_INPUT : NDC_BUG;
        if (!c->nerrors)
            nd_error(c, (nd_loc){0, 0, 0}, "internal error: a stage failed "
                     "without saying why");
    } else if (c->nerrors || (c->werror && c->nwarnings)) {
        rc = NDC_BAD_INPUT;
    } else {
        rc = finish(c, o, &text);
    }
    nd_ctx_free(c);
    return rc;
}
