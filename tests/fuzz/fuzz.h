/* fuzz.h - what the fuzz targets share.
 *
 * A target reads one input as if it were a file and must come back, whatever
 * the bytes: with a result, or with at least one error. Anything else (a
 * signal, a leak, a failed promise, no end) is a fault of the compiler.
 *
 *   tests/fuzz/fuzz_nd -dict=... -jobs=1 FOLDER     built by clang: fuzzes
 *   tests/fuzz_nd FILE...                           otherwise: replays
 */
#ifndef ND_FUZZ_H
#define ND_FUZZ_H

#include "../../frontend/frontend.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A context whose messages go nowhere, holding the bytes as file 1. */
nd_ctx *fuzz_ctx(const uint8_t *data, size_t n);
/* Says what promise was broken and aborts. */
void fuzz_broken(const nd_ctx *c, const char *promise);
/* Nothing that costs time is larger than a test needs it: axes, ranks,
 * microbatches, ops. */
bool fuzz_is_small(nd_module *m);

#endif
