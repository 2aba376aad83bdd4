/* fuzz_all.c - bytes as a program, all the way: a program that the checker
 * accepts is refused by a pass with the reason, or becomes C text. */
#include "fuzz.h"

#include "../../codegen/codegen.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    nd_ctx *c = fuzz_ctx(data, n);
    nd_front_options o = {.sealed = true};
    nd_options passes = {.verify_each = true};
    nd_module *m = nd_frontend(c, 1, &o);
    if (m && fuzz_is_small(m)) {
        nd_buf text = {.arena = c->arena};
        bool ok = nd_run_passes(m, &passes) && cg_emit_c(m, &text);
        if (!ok && !c->nerrors)
            fuzz_broken(c, "a stage failed without saying why");
        if (ok && !text.n)
            fuzz_broken(c, "no C text");
    }
    nd_ctx_free(c);
    return 0;
}
