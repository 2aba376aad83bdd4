/* compile.h - from the text of a program to its graph and further, shared by
 * the unit tests. Whatever is refused on the way fails the test.
 *
 *     nd_ctx *c = nd_ctx_new();
 *     nd_code *code = nd_code_new(compiled(c, "axis a = 5\nmodel m(...) ..."));
 *     ...
 *     nd_ctx_free(c);
 */
#ifndef COMPILE_H
#define COMPILE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "codegen/kir.h"
#include "frontend/frontend.h"

/* As the checker leaves it, before the first pass. */
static inline nd_module *checked(nd_ctx *c, const char *text)
{
    nd_front_options o = {0};
    int file = nd_add_file(c, "t.nd", text, strlen(text));
    nd_module *m = nd_frontend(c, file, &o);
    assert_non_null(m);
    return m;
}

/* After all passes. */
static inline nd_module *compiled(nd_ctx *c, const char *text)
{
    nd_options o = {.verify_each = true};
    nd_module *m = checked(c, text);
    assert_true(nd_run_passes(m, &o));
    return m;
}

/* The same of a model, under the plan of these entries: "mesh dp = 2". */
static inline nd_module *planned(nd_ctx *c, const char *model, const char *plan)
{
    return compiled(c, nd_fmt(c->arena, "%splan {\n  %s\n}\n", model, plan));
}

/* With its kernels, by LLVM where it can. */
static inline cg *emitted(nd_ctx *c, const char *text)
{
    nd_buf out = {.arena = c->arena};
    cg *g = cg_emit(compiled(c, text), CG_LLVM, &out);
    assert_non_null(g);
    return g;
}

#endif
