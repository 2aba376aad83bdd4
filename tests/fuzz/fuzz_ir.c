/* fuzz_ir.c - bytes as a printed graph: what is legal prints as it reads. */
#include "fuzz.h"

#include <string.h>

static const char *print(nd_module *m)
{
    nd_buf b = {.arena = m->ctx->arena};
    nd_print(&b, m);
    return b.s;
}

/* The text of a legal graph is read back as the same graph. */
static void round_trip(nd_module *m)
{
    const char *text = print(m);
    nd_ctx *c = fuzz_ctx((const uint8_t *)text, strlen(text));
    nd_module *again = nd_parse_ir(c, 1);
    if (!again)
        fuzz_broken(c, "a printed graph cannot be read");
    if (!nd_verify(again))
        fuzz_broken(c, "a printed graph is not legal when it is read again");
    if (strcmp(print(again), text))
        fuzz_broken(c, "a graph prints differently when it is read again");
    nd_ctx_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    nd_ctx *c = fuzz_ctx(data, n);
    nd_module *m = nd_parse_ir(c, 1);
    if (m && nd_verify(m) && fuzz_is_small(m))
        round_trip(m);
    else if (!m && !c->nerrors)
        fuzz_broken(c, "no module and no error");
    nd_ctx_free(c);
    return 0;
}
