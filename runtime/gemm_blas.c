/* gemm_blas.c - matrix products by a CBLAS; built where oneDNN is missing.
 * OpenBLAS keeps its own buffers, shared by the ranks of a process.
 */
#include "ndrt_internal.h"

#include <cblas.h>
#include <limits.h>

const char ndrt_mm_name[] = "CBLAS";

ndrt_status ndrt_mm_open(ndrt_rank *r)
{
    (void)r;
    ndrt_set_threads();
    return NDRT_OK;
}

bool ndrt_mm_has_bf16(ndrt_rank *r, const ndrt_mm_key *key)
{
    (void)r;
    (void)key;
    return false;
}

/* Nobody knows which one it is. */
int64_t ndrt_mm_turns(const ndrt_mm_key *key)
{
    (void)key;
    return 0;
}

bool ndrt_mm_merges(const ndrt_mm_key *key)
{
    (void)key;
    return false;
}

ndrt_status ndrt_mm_run(ndrt_rank *r, const ndrt_mm_key *key, const void *a,
                        const void *b, float *c)
{
    const int64_t v[6] = {key->m, key->n, key->k, key->lda, key->ldb,
                          key->ldc};

    for (int i = 0; i < 6; i++)
        if (v[i] > INT_MAX)
            return ndrt_fail(r, NDRT_EINTERNAL, "a matrix of %lld rows or "
                             "columns is too large for the BLAS",
                             (long long)v[i]);
    cblas_sgemm(CblasRowMajor, key->ta ? CblasTrans : CblasNoTrans,
                key->tb ? CblasTrans : CblasNoTrans, (int)key->m, (int)key->n,
                (int)key->k, 1.0f, a, (int)key->lda, b, (int)key->ldb,
                key->acc ? 1.0f : 0.0f, c, (int)key->ldc);
    return NDRT_OK;
}

size_t ndrt_mm_scratch(const ndrt_own *own)
{
    (void)own;
    return 0;
}

void ndrt_mm_close(ndrt_own *own)
{
    (void)own;
}
