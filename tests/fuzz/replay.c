/* replay.c - runs a fuzz target on files, where there is no libFuzzer.
 *
 *   fuzz_nd FILE...
 */
#include "fuzz.h"

int main(int argc, char **argv)
{
    int bad = 0;
    for (int i = 1; i < argc; i++) {
        nd_ctx *c = nd_ctx_new();
        int file = nd_read_file(c, argv[i]);
        if (!file) {
            fprintf(stderr, "cannot read %s\n", argv[i]);
            bad = 1;
        } else {
            LLVMFuzzerTestOneInput((const uint8_t *)c->files.v[0].text,
                                   c->files.v[0].len);
        }
        nd_ctx_free(c);
    }
    return bad;
}
