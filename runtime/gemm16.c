/* gemm16.c - products of bf16 or f16 operands, summed in float.
 *
 * A library that multiplies bf16 on this CPU gets them as they are. Otherwise
 * both operands are widened into packed floats, in a buffer that all threads
 * share or one of the thread's own, and ndrt_gemm takes those: the product of
 * two narrow numbers is exact in float, so both ways add up the same numbers.
 */
#include "ndrt_internal.h"
#include "ndrt_math.h"

enum { ALIGN = 16 };              /* floats: a cache line */

typedef void widen_fn(float *to, const uint16_t *x, int64_t n, int64_t step);

NDRT_CLONES
static void widen_bf16(float *to, const uint16_t *x, int64_t n, int64_t step)
{
    if (step == 1)
        for (int64_t i = 0; i < n; i++)
            to[i] = nd_from_bf16(x[i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = nd_from_bf16(x[i * step]);
}

NDRT_CLONES
static void widen_f16(float *to, const uint16_t *x, int64_t n, int64_t step)
{
    if (step == 1)
        for (int64_t i = 0; i < n; i++)
            to[i] = nd_from_f16(x[i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = nd_from_f16(x[i * step]);
}

/* Packed in the order in which the operand lies. */
static ndrt_matrix widen(const ndrt_rank *r, const ndrt_matrix *a, float *to,
                         widen_fn *f)
{
    const uint16_t *x = a->x;
    ndrt_matrix w = {to, a->rows, a->cols, a->cols, 1};
    bool rows = a->c <= a->r;
    ndrt_span s = ndrt_share(r, rows ? a->rows : a->cols, 1);

    if (rows) {
        for (int64_t i = s.from; i < s.to; i++)
            f(to + i * a->cols, x + i * a->r, a->cols, a->c);
        return w;
    }
    for (int64_t j = s.from; j < s.to; j++)
        f(to + j * a->rows, x + j * a->c, a->rows, a->r);
    w.r = 1;
    w.c = a->rows;
    return w;
}

static void wide_gemm(ndrt_rank *r, bool acc, const ndrt_matrix *a,
                      const ndrt_matrix *b, const ndrt_matrix *c, float *to,
                      widen_fn *f)
{
    int64_t na = (a->rows * a->cols + ALIGN - 1) / ALIGN * ALIGN;
    float *w = ndrt_buffer_of(r, NDRT_WIDENED, na + b->rows * b->cols);
    ndrt_matrix x = widen(r, a, w, f), y = widen(r, b, w + na, f);

    ndrt_barrier(r);
    ndrt_gemm_noted(r, acc, c->rows, c->cols, a->cols, x.x, x.r, x.c, y.x, y.r,
                    y.c, to, c->r, c->c);
}

/* ---- products --------------------------------------------------------- */

static void noted_bf16(ndrt_rank *r, bool acc, ndrt_matrix x, ndrt_matrix y,
                       ndrt_matrix z, float *c)
{
    ndrt_mm_key key = {.acc = acc, .bf16 = true};
    bool library = ndrt_mm_arrange(&x, &y, &z, &key);

    if (library && ndrt_mm_has_parts(r, &key))
        ndrt_mm_share(r, &key, x.x, y.x, c);
    else
        wide_gemm(r, acc, &x, &y, &z, c, widen_bf16);
}

void ndrt_gemm_bf16(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
                    const uint16_t *a, int64_t a_r, int64_t a_c,
                    const uint16_t *b, int64_t b_r, int64_t b_c,
                    float *c, int64_t c_r, int64_t c_c)
{
    ndrt_matrix x = {a, m, k, a_r, a_c}, y = {b, k, n, b_r, b_c};
    ndrt_matrix z = {c, m, n, c_r, c_c};

    if (m == 0 || n == 0)
        return;
    ndrt_note_product(r, NDRT_WBF16, false, acc, &x, &y, &z);
    noted_bf16(r, acc, x, y, z, c);
}

void ndrt_gemm_bf16_own(ndrt_rank *r, bool acc, int64_t m, int64_t n,
                        int64_t k, const uint16_t *a, int64_t a_r,
                        int64_t a_c, const uint16_t *b, int64_t b_r,
                        int64_t b_c, float *c, int64_t c_r, int64_t c_c)
{
    ndrt_matrix x = {a, m, k, a_r, a_c}, y = {b, k, n, b_r, b_c};
    ndrt_matrix z = {c, m, n, c_r, c_c};
    ndrt_small_bf16 *small = r->program->small_bf16;

    if (m == 0 || n == 0)
        return;
    ndrt_note_product(r, NDRT_WBF16, true, acc, &x, &y, &z);
    if (small && small(acc, m, n, k, a, a_r, a_c, b, b_r, b_c, c, c_r, c_c))
        return;
    ndrt_rank one = ndrt_without_team(r);
    noted_bf16(&one, acc, x, y, z, c);
}

static void gemm_f16(ndrt_rank *r, bool own, bool acc, const ndrt_matrix *x,
                     const ndrt_matrix *y, const ndrt_matrix *z, float *c)
{
    if (x->rows == 0 || y->cols == 0)
        return;
    ndrt_note_product(r, NDRT_WF16, own, acc, x, y, z);
    wide_gemm(r, acc, x, y, z, c, widen_f16);
}

void ndrt_gemm_f16(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
                   const uint16_t *a, int64_t a_r, int64_t a_c,
                   const uint16_t *b, int64_t b_r, int64_t b_c,
                   float *c, int64_t c_r, int64_t c_c)
{
    ndrt_matrix x = {a, m, k, a_r, a_c}, y = {b, k, n, b_r, b_c};
    ndrt_matrix z = {c, m, n, c_r, c_c};

    gemm_f16(r, false, acc, &x, &y, &z, c);
}

void ndrt_gemm_f16_own(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
                       const uint16_t *a, int64_t a_r, int64_t a_c,
                       const uint16_t *b, int64_t b_r, int64_t b_c,
                       float *c, int64_t c_r, int64_t c_c)
{
    ndrt_matrix x = {a, m, k, a_r, a_c}, y = {b, k, n, b_r, b_c};
    ndrt_matrix z = {c, m, n, c_r, c_c};
    ndrt_rank one = ndrt_without_team(r);

    gemm_f16(&one, true, acc, &x, &y, &z, c);
}
