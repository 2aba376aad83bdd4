/* parts.c - sums over rows in a fixed number of parts.
 *
 *   for (part of this thread)          g_part = ndrt_new_part(r, 0, part, 384)
 *       for (rows of the part)         g_part[d] += ...
 *   barrier
 *   ndrt_add_parts(r, true, g, 0, 384)
 *
 * The parts of one sum lie in whole cache lines after one another, in the
 * scratch that the compiler has planned (passes/share.c).
 */
#include "ndrt_internal.h"

#include <string.h>

enum { LINE = 16 };                  /* floats of a cache line */

ndrt_span ndrt_rows_of(int64_t part, int64_t n)
{
    return (ndrt_span){n * part / NDRT_PARTS, n * (part + 1) / NDRT_PARTS};
}

static float *part_at(const ndrt_rank *r, int64_t at, int64_t part, int64_t n)
{
    float *scratch = (float *)(r->arena + ndrt_here(r)->scratch);
    return scratch + at + part * ((n + LINE - 1) / LINE * LINE);
}

float *ndrt_new_part(const ndrt_rank *r, int64_t at, int64_t part, int64_t n)
{
    float *x = part_at(r, at, part, n);
    memset(x, 0, (size_t)n * sizeof *x);
    return x;
}

void ndrt_add_parts(ndrt_rank *r, bool acc, float *x, int64_t at, int64_t n)
{
    const float *first = part_at(r, at, 0, n);
    const int64_t step = part_at(r, at, 1, n) - first;
    const ndrt_span mine = ndrt_share(r, n, LINE);
    for (int64_t k = mine.from; k < mine.to; k++) {
        float sum = first[k];
        for (int part = 1; part < NDRT_PARTS; part++)
            sum += first[part * step + k];
        x[k] = acc ? x[k] + sum : sum;
    }
}
