/* fuzz_nd.c - bytes as a program: syntax tree, its text, the checked graph. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    nd_ctx *c = fuzz_ctx(data, n);
    ast_file *f = nd_parse(c, 1);
    nd_buf b = {.arena = c->arena};
    if (f)
        ast_print(&b, f);
    else if (!c->nerrors)
        fuzz_broken(c, "no tree and no error");
    nd_front_options o = {.sealed = true};
    nd_module *m = f ? nd_frontend(c, 1, &o) : NULL;
    if (f && !m && !c->nerrors)
        fuzz_broken(c, "no module and no error");
    if (m && !nd_verify(m))
        fuzz_broken(c, "the checker made a graph that is not legal");
    nd_ctx_free(c);
    return 0;
}
