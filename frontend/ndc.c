/* ndc.c - libndc: runs the stages in order and writes what was asked for.
 *
 *   text -> frontend -> passes -> codegen -> C compiler
 */
#include "ndc.h"
#include "frontend.h"
#include "../codegen/codegen.h"
#include "../passes/passes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const emit_names[] = {
    [NDC_EXE] = "exe",   [NDC_CHECK] = "check",       [NDC_AST] = "ast",
    [NDC_IR] = "ir",     [NDC_VALUES] = "values",     [NDC_SPMD] = "spmd",
    [NDC_C] = "c",       [NDC_PLAN] = "plan", [NDC_SCHEDULE] = "schedule",
    [NDC_SCHEDULE_CSV] = "schedule.csv",
    [NDC_SCHEDULE_COMMS] = "schedule.comms.csv",
    [NDC_SCHEDULE_SVG] = "schedule.svg",
    [NDC_SCHEDULE_JSON] = "schedule.json",
    [NDC_LLVM] = "llvm", [NDC_ASM] = "asm",           [NDC_COMM] = "comm",
    [NDC_KERNELS] = "kernels",
    [NDC_ROOFLINE] = "roofline",
};
enum { NEMIT = sizeof emit_names / sizeof *emit_names };

int ndc_emit_find(const char *name)
{
    for (int i = NDC_AST; i < NEMIT; i++)
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

const char *ndc_nearest(const char *name, const char *const *cand, int n)
{
    return nd_nearest(name, cand, n);
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

/* ---- options that do not go together ------------------------------------- */

static bool known_pass(nd_ctx *c, const char *option, const char *name)
{
    static const char *const names[] = {
#define PASS(name, fn, requires, ensures, summary) name,
#include "../passes/passes.def"
#undef PASS
        "all",
    };
    enum { N = sizeof names / sizeof *names };
    int n = strcmp(option, "--until") ? N : N - 1;
    for (int i = 0; i < n; i++)
        if (!strcmp(name, names[i]))
            return true;
    const char *near = nd_nearest(name, names, n);
    nd_error(c, nd_nowhere, "%s: no pass is called `%s`%s%s%s", option, name,
             near ? "; did you mean `" : "", near ? near : "",
             near ? "`?" : "; see ndc --list-passes");
    return false;
}

/* What would be ignored in silence is wrong usage. */
static bool check_usage(nd_ctx *c, const ndc_options *o)
{
    bool runs = o->emit != NDC_AST && o->emit != NDC_VALUES &&
                (o->emit != NDC_IR || o->until);
    if (ends_with(o->file, ".ndir")) {
        const char *option = o->nset ? "--set" : o->mesh ? "--mesh"
                             : o->plan ? "--plan"
                             : o->model ? "--model"
                             : o->require_even ? "--require-even" : NULL;
        if (option)
            nd_error(c, nd_nowhere, "%s is for programs; `%s` is a graph, "
                     "whose sizes and plan are fixed", option, o->file);
    }
    if (o->until && o->emit != NDC_IR)
        nd_error(c, nd_nowhere, "--until goes with --emit=ir only");
    if (o->rank && o->emit != NDC_COMM)
        nd_error(c, nd_nowhere, "--rank goes with --emit=comm only");
    bool code = o->emit == NDC_EXE || o->emit == NDC_LLVM || o->emit == NDC_ASM;
    if (o->cpu && !code)
        nd_error(c, nd_nowhere, "--cpu: --emit=%s builds nothing",
                 emit_names[o->emit]);
    if (o->kernels && o->emit != NDC_EXE)
        nd_error(c, nd_nowhere, "--kernels: --emit=%s builds nothing",
                 emit_names[o->emit]);
    if (o->kernels && strcmp(o->kernels, "c") && strcmp(o->kernels, "llvm"))
        nd_error(c, nd_nowhere, "--kernels=%s: kernels are made by `c` or by "
                 "`llvm`", o->kernels);
    if (o->profile && o->emit != NDC_ROOFLINE)
        nd_error(c, nd_nowhere, "--profile goes with --emit=roofline only");
    if (o->emit == NDC_ROOFLINE && !o->profile)
        nd_error(c, nd_nowhere, "--emit=roofline needs --profile FILE, which a "
                 "program built with --marks writes; `ndc roofline` does all "
                 "of it");
    if (o->marks && o->emit != NDC_EXE && o->emit != NDC_C)
        nd_error(c, nd_nowhere, "--marks goes with an executable or "
                 "--emit=c only");
    if (o->dump_after && !runs)
        nd_error(c, nd_nowhere, "--dump-after: --emit=%s runs no pass",
                 emit_names[o->emit]);
    if (o->times && !runs)
        nd_error(c, nd_nowhere, "--times: --emit=%s has no stages",
                 emit_names[o->emit]);
    if (o->until)
        known_pass(c, "--until", o->until);
    if (o->dump_after)
        known_pass(c, "--dump-after", o->dump_after);
    if (o->cpu && !c->nerrors)
        cg_knows_cpu(c, o->cpu);
    return !c->nerrors;
}

/* ---- writing ------------------------------------------------------------- */

/* Would writing `path` destroy a file that was read? */
static bool is_source(nd_ctx *c, const char *path)
{
    struct stat out, in;
    if (stat(path, &out))
        return false;
    for (int i = 0; i < c->files.n; i++)
        if (!stat(c->files.v[i].name, &in) && in.st_dev == out.st_dev &&
            in.st_ino == out.st_ino) {
            nd_error(c, nd_nowhere, "`%s` is the source file `%s`; choose "
                     "another output", path, c->files.v[i].name);
            return true;
        }
    return false;
}

static bool is_folder(nd_ctx *c, const char *path)
{
    struct stat st;
    if (stat(path, &st) || !S_ISDIR(st.st_mode))
        return false;
    nd_error(c, nd_nowhere, "cannot write `%s`: it is a folder", path);
    return true;
}

/* OUT.c is not what the user named: only ndc's own file gives way. The header
 * of every generated program says whose it is. */
static bool is_foreign(nd_ctx *c, const char *path)
{
    char head[4096];
    struct stat st;
    if (stat(path, &st) || !S_ISREG(st.st_mode) || !st.st_size)
        return false;
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(head, 1, sizeof head - 1, f) : 0;
    if (f)
        fclose(f);
    head[n] = 0;
    const char *mark = strstr(head, "compiled by ndc");
    const char *end = strstr(head, "*/");
    if (!strncmp(head, "/*", 2) && mark && (!end || mark < end))
        return false;
    nd_error(c, nd_nowhere, "`%s` exists and was not written by ndc; the "
             "program is kept there: choose another output with -o", path);
    return true;
}

bool nd_write(nd_ctx *c, const char *path, const char *s, size_t n)
{
    if (path && (is_source(c, path) || is_folder(c, path)))
        return false;
    FILE *f = path ? fopen(path, "w") : stdout;
    bool ok = f && (n == 0 || fwrite(s, 1, n, f) == n);
    ok = f && !fflush(f) && ok;
    if (f && path)
        ok = !fclose(f) && ok;
    if (!ok)
        nd_error(c, nd_nowhere, "cannot write `%s`", path ? path : "stdout");
    return ok;
}

/* A file of functions, which no program uses so far: only its syntax can be
 * checked. */
static bool is_library(const ast_file *f)
{
    bool program = f->decls.n == 0;
    for (int i = 0; i < f->decls.n; i++) {
        ast_item_kind k = f->decls.v[i]->kind;
        program |= k == I_MODEL || k == I_TRAIN || k == I_PLAN;
    }
    return !program;
}

static bool report_comm(nd_module *m, const char *given, nd_buf *text)
{
    int n = nd_mesh_ranks(&m->mesh);
    char *end = NULL;
    long rank = given ? strtol(given, &end, 10) : -1;
    if (given && (end == given || *end || rank < 0 || rank >= n)) {
        nd_error(m->ctx, nd_nowhere, "--rank %s: the ranks of this mesh are "
                 "0 to %d", given, n - 1);
        return false;
    }
    cg_report_comm(m, (int)rank, text);
    return true;
}

/* If so, *cpu is for whom. */
static bool by_llvm(nd_ctx *c, const ndc_options *o, cg_target_cpu *cpu)
{
    if (!o->kernels)
        return cg_prefers_llvm(c, o->cpu, cpu);
    if (strcmp(o->kernels, "llvm"))
        return false;
    *cpu = cg_target_for(c, o->cpu);
    return true;
}

/* The text of an executable's program, and what LLVM makes of it. */
static bool program(nd_module *m, const ndc_options *o, nd_buf *text,
                    cg_apart *apart)
{
    cg_target_cpu cpu;
    if (by_llvm(m->ctx, o, &cpu) &&
        !cg_emit_llvm(m, o->marks, CG_LLVM_OBJECT, &cpu, &apart->rest,
                      &apart->object))
        return false;
    return o->marks ? cg_emit_marked(m, text) : cg_emit_c(m, text);
}

static bool llvm_text(nd_module *m, const ndc_options *o, cg_llvm_form form,
                      nd_buf *text)
{
    cg_target_cpu cpu = cg_target_for(m->ctx, o->cpu);
    nd_buf rest = {.arena = m->ctx->arena};
    return cg_emit_llvm(m, false, form, &cpu, &rest, text);
}

static bool report_roofline(nd_module *m, const char *path, nd_buf *text)
{
    int file = nd_read_file(m->ctx, path);
    if (!file)
        nd_error(m->ctx, nd_nowhere, "--profile: cannot read `%s`: %s", path,
                 strerror(errno));
    return file && cg_report_roofline(m, file, text);
}

/* Fills `text`, and of what LLVM makes kernels for what is built apart; false
 * after errors. */
static bool produce(nd_ctx *c, const ndc_options *o, int file, nd_buf *text,
                    cg_apart *apart)
{
    nd_front_options fo = {.mesh = o->mesh, .nset = o->nset, .set = o->set,
                           .plan_path = o->plan, .model = o->model,
                           .require_even = o->require_even};
    nd_options po = {o->dump_after, o->verify_each, stderr, o->times};
    bool graph = ends_with(o->file, ".ndir");
    if (o->emit == NDC_AST) {
        ast_file *f = graph ? NULL : nd_parse(c, file);
        if (graph)
            nd_error(c, nd_nowhere, "a graph has no syntax tree");
        if (f)
            ast_dump(c, text, f);
        return f != NULL;
    }
    if (graph && o->emit == NDC_EXE) {
        nd_error(c, nd_nowhere, "`%s` is a graph and has no train block; an "
                 "executable is built from a program (.nd)", o->file);
        return false;
    }
    if (o->emit == NDC_CHECK && !graph) {
        ast_file *f = nd_parse(c, file);
        if (!f || is_library(f))
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
    if (o->emit == NDC_VALUES)
        return (!m->loss || m->state & ND_HAS_GRADS ||
                nd_run_until(m, &po, "autodiff")) && nd_values(m, text);
    if (!graph && !m->loss) {
        nd_error(c, nd_nowhere, "the model `%s` returns no loss: there is "
                 "nothing to train; --emit=values shows what it computes",
                 m->name);
        return false;
    }
    if (!nd_run_passes(m, &po))
        return false;
    switch (o->emit) {
    case NDC_CHECK:
        return true;
    case NDC_SPMD:
        nd_print(text, m);
        return true;
    case NDC_SCHEDULE:
    case NDC_SCHEDULE_CSV:
    case NDC_SCHEDULE_COMMS:
    case NDC_SCHEDULE_SVG:
    case NDC_SCHEDULE_JSON:
        nd_schedule_show(text, m,
                         (nd_schedule_form)(o->emit - NDC_SCHEDULE));
        return true;
    case NDC_PLAN:
        cg_report_plan(m, text);
        return true;
    case NDC_COMM:
        return report_comm(m, o->rank, text);
    case NDC_KERNELS:
        return cg_report_kernels(m, text);
    case NDC_ROOFLINE:
        return report_roofline(m, o->profile, text);
    case NDC_LLVM:
        return llvm_text(m, o, CG_LLVM_TEXT, text);
    case NDC_ASM:
        return llvm_text(m, o, CG_LLVM_ASM, text);
    case NDC_EXE:
        return program(m, o, text, apart);
    default:
        return o->marks ? cg_emit_marked(m, text) : cg_emit_c(m, text);
    }
}

static int finish(nd_ctx *c, const ndc_options *o, const nd_buf *text,
                  const cg_apart *apart)
{
    const char *out = o->out;
    if (o->emit == NDC_CHECK)
        return NDC_OK;
    if (o->emit == NDC_EXE && !out)
        out = default_out(c->arena, o->file);
    if (o->emit != NDC_EXE)
        return nd_write(c, out, text->s, text->n) ? NDC_OK : NDC_BAD_INPUT;
    if (is_source(c, out) || is_folder(c, out))
        return NDC_BAD_INPUT;
    const char *c_path = nd_fmt(c->arena, "%s.c", out);
    if (is_source(c, c_path) || is_foreign(c, c_path))
        return NDC_BAD_INPUT;
    return cg_build(c, text->s, apart->rest.s ? apart : NULL, out, o->cpu);
}

/* The two severities have the same values; the types differ so that ndc.h
 * needs no other header. */
_Static_assert((int)ND_ERROR == (int)NDC_SEVERITY_ERROR, "of one message");

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
    cg_apart apart = {text, text};
    nd_put(&text, "");
    bool usable = check_usage(c, o);
    int file = usable ? nd_read_file(c, o->file) : 0;
    if (!usable) {
        rc = NDC_BAD_USAGE;
    } else if (!file) {
        nd_error(c, nd_nowhere, "cannot read `%s`: %s", o->file,
                 strerror(errno));
        rc = NDC_BAD_INPUT;
    } else if (!produce(c, o, file, &text, &apart)) {
        rc = c->nerrors ? NDC_BAD_INPUT : NDC_BUG;
        if (!c->nerrors)
            nd_error(c, nd_nowhere, "internal error: a stage failed without "
                     "saying why");
    } else if (c->nerrors || (c->werror && c->nwarnings)) {
        rc = NDC_BAD_INPUT;
    } else {
        rc = finish(c, o, &text, &apart);
    }
    nd_ctx_free(c);
    return rc;
}
