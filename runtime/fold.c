/* fold.c - the one order in which reductions add.
 *
 *   dst[i] = ((src[0][i] + src[1][i]) + src[2][i]) + ..
 *
 * Every source is read once, block by block; up to four are added in one pass
 * over the block, which stays in the first cache.
 */
#include "ndrt_internal.h"

#include <string.h>

enum { BLOCK = 2048, AT_ONCE = 4 };    /* elements; sources of a pass */

/* sum += src[0], += src[1] .. up to src[3], if there are so many. */
NDRT_CLONES
static void add(float *restrict sum, const float *const *src, int nsrc,
                int64_t at, int64_t n)
{
    const float *a = src[0] + at, *b = src[nsrc > 1] + at;
    const float *c = src[nsrc > 2 ? 2 : 0] + at;
    const float *d = src[nsrc > 3 ? 3 : 0] + at;

    switch (nsrc) {
    case 1:
        for (int64_t i = 0; i < n; i++)
            sum[i] += a[i];
        break;
    case 2:
        for (int64_t i = 0; i < n; i++)
            sum[i] = (sum[i] + a[i]) + b[i];
        break;
    case 3:
        for (int64_t i = 0; i < n; i++)
            sum[i] = ((sum[i] + a[i]) + b[i]) + c[i];
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            sum[i] = (((sum[i] + a[i]) + b[i]) + c[i]) + d[i];
    }
}

NDRT_CLONES
static void max_floats(float *restrict sum, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] = x[i] > sum[i] || x[i] != x[i] ? x[i] : sum[i];
}

/* The bits of a float array are integers: copied out and back, for a pointer
 * to one type may not point to the other. */
static void fold_ints(float *sum, const float *from, int64_t n, bool max)
{
    int32_t y[BLOCK], x[BLOCK];

    memcpy(y, sum, (size_t)n * sizeof *y);
    memcpy(x, from, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        y[i] = !max          ? (int32_t)((uint32_t)y[i] + (uint32_t)x[i])
               : x[i] > y[i] ? x[i]
                             : y[i];
    memcpy(sum, y, (size_t)n * sizeof *y);
}

static void fold_block(float *sum, const float *const *src, int nsrc,
                       int64_t at, int64_t n, ndrt_fold_kind how)
{
    int step = how == NDRT_SUM ? AT_ONCE : 1;

    memcpy(sum, src[0] + at, (size_t)n * sizeof *sum);
    for (int s = 1; s < nsrc; s += step) {
        if (how == NDRT_SUM)
            add(sum, src + s, nsrc - s, at, n);
        else if (how == NDRT_MAX)
            max_floats(sum, src[s] + at, n);
        else
            fold_ints(sum, src[s] + at, n, how == NDRT_MAX_I32);
    }
}

/* All sources of a block are read before it is written, so a destination may be
 * one of them. */
void ndrt_fold_to(float *const *dst, int ndst, const float *const *src,
                  int nsrc, int64_t n, ndrt_fold_kind how)
{
    float sum[BLOCK];

    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t len = n - at < BLOCK ? n - at : BLOCK;
        fold_block(sum, src, nsrc, at, len, how);
        for (int d = 0; d < ndst; d++)
            memcpy(dst[d] + at, sum, (size_t)len * sizeof *sum);
    }
}

void ndrt_fold(float *dst, const float *const *src, int nsrc, int64_t n,
               ndrt_fold_kind how)
{
    ndrt_fold_to(&dst, 1, src, nsrc, n, how);
}
