/* fuzz_fmt.c - bytes as a program that is formatted: the same program, and
 * formatting it again changes nothing more. */
#include "fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    nd_ctx *c = fuzz_ctx(data, n);
    ast_file *tree = nd_parse(c, 1);
    if (tree) {
        nd_buf once = {.arena = c->arena}, twice = {.arena = c->arena};
        nd_put(&once, "");
        nd_put(&twice, "");
        nd_format(c, 1, &once);
        if (!nd_format_keeps(c, 1, tree, &once))
            fuzz_broken(c, "formatting changed the program");
        nd_format(c, nd_add_bytes(c, "formatted", &once), &twice);
        if (strcmp(once.s, twice.s))
            fuzz_broken(c, "formatting twice is not formatting once");
    }
    nd_ctx_free(c);
    return 0;
}
