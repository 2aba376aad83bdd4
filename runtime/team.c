/* team.c - the threads of a rank. For now there is one. */
#include "ndrt_internal.h"

#include <string.h>

ndrt_span ndrt_share(const ndrt_rank *r, int64_t n, int64_t grain)
{
    (void)r;
    (void)grain;
    return (ndrt_span){0, n};
}

void ndrt_barrier(ndrt_rank *r)
{
    (void)r;
}

void ndrt_copy(ndrt_rank *r, void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    ndrt_barrier(r);
}

void ndrt_clear(ndrt_rank *r, void *x, size_t bytes)
{
    memset(x, 0, bytes);
    ndrt_barrier(r);
}

void ndrt_gemm_own(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
                   const float *a, int64_t a_r, int64_t a_c,
                   const float *b, int64_t b_r, int64_t b_c,
                   float *c, int64_t c_r, int64_t c_c)
{
    ndrt_gemm(r, acc, m, n, k, a, a_r, a_c, b, b_r, b_c, c, c_r, c_c);
}

void ndrt_gemm_bf16_own(ndrt_rank *r, bool acc, int64_t m, int64_t n,
                        int64_t k, const uint16_t *a, int64_t a_r,
                        int64_t a_c, const uint16_t *b, int64_t b_r,
                        int64_t b_c, float *c, int64_t c_r, int64_t c_c)
{
    ndrt_gemm_bf16(r, acc, m, n, k, a, a_r, a_c, b, b_r, b_c, c, c_r, c_c);
}

void ndrt_gemm_f16_own(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
                       const uint16_t *a, int64_t a_r, int64_t a_c,
                       const uint16_t *b, int64_t b_r, int64_t b_c,
                       float *c, int64_t c_r, int64_t c_c)
{
    ndrt_gemm_f16(r, acc, m, n, k, a, a_r, a_c, b, b_r, b_c, c, c_r, c_c);
}
