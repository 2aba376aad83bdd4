/* gemm.c - ndrt_gemm: any strides in, a library call or a plain loop out.
 *
 * Libraries want row-major C and operands with one stride of 1. If C is stored
 * the other way round, C' = B' A' is computed instead. What remains (odd
 * strides, tiny products that are over before a library call begins) goes
 * through a loop.
 */
#include "ndrt_internal.h"

#include <dlfcn.h>
#include <string.h>

/* ---- threads ---------------------------------------------------------- */

int ndrt_threads(const ndrt_rank *r)
{
    int64_t asked = r->state->config->threads;
    int cpus = r->state->comm->cpus;

    if (asked > 0)
        return (int)asked;
    return cpus > 1 ? cpus : 1;
}

/* Found at run time: a library may be built without OpenMP, and OpenBLAS has a
 * pool of its own. OpenMP's number is one of the calling thread, the rank. */
void ndrt_set_threads(const ndrt_rank *r)
{
    static const char *const names[] = {"omp_set_num_threads",
                                        "openblas_set_num_threads"};

    for (int i = 0; i < 2; i++) {
        void *f = dlsym(RTLD_DEFAULT, names[i]);
        void (*set)(int);
        if (!f)
            continue;
        memcpy(&set, &f, sizeof set);
        set(ndrt_threads(r));
    }
}

/* ---- products --------------------------------------------------------- */

/* Below this many multiplications the loop is faster (measured: oneDNN needs
 * about 0.5 us per call, the loop 0.4 ns per multiplication). */
enum { SMALL = 1024 };

typedef struct matrix {
    const float *x;
    int64_t rows, cols, r, c;     /* element (i, j) at x + i*r + j*c */
} matrix;

static matrix transposed(matrix a)
{
    return (matrix){a.x, a.cols, a.rows, a.c, a.r};
}

/* A stride along an axis of length 1 means nothing; make it what a library
 * expects to see. */
static matrix tidy(matrix a)
{
    if (a.rows == 1 && a.cols == 1)
        a.r = a.c = 1;
    else if (a.cols == 1 && a.r != 1)
        a.c = 1;
    else if (a.rows == 1 && a.c != 1)
        a.r = 1;
    if (a.rows == 1 && a.c == 1)
        a.r = a.cols;
    if (a.cols == 1 && a.r == 1)
        a.c = a.rows;
    return a;
}

/* One stride is 1, the other leaves no overlap. Not a vector: it gains nothing
 * from a library, and oneDNN 3.7 computes some strided ones wrongly. */
static bool usable(const matrix *a, bool *trans, int64_t *ld)
{
    if (a->rows == 1 || a->cols == 1)
        return false;
    *trans = a->c != 1;
    *ld = *trans ? a->c : a->r;
    return *trans ? a->r == 1 && a->c >= a->rows : a->r >= a->cols;
}

static void plain(bool acc, const matrix *a, const matrix *b, float *c,
                  int64_t c_r, int64_t c_c)
{
    for (int64_t i = 0; i < a->rows; i++) {
        for (int64_t j = 0; j < b->cols; j++) {
            const float *x = a->x + i * a->r, *y = b->x + j * b->c;
            float sum = 0.0f;
            for (int64_t k = 0; k < a->cols; k++)
                sum += x[k * a->c] * y[k * b->r];
            float *z = c + i * c_r + j * c_c;
            *z = acc ? *z + sum : sum;
        }
    }
}

/* Too large for the loop above, too odd for a library: rows of B are walked in
 * the inner loop, so at least C and B are read in order. */
static void plain_rows(bool acc, const matrix *a, const matrix *b, float *c,
                       int64_t c_r, int64_t c_c)
{
    for (int64_t i = 0; i < a->rows; i++) {
        float *z = c + i * c_r;
        for (int64_t j = 0; j < b->cols && !acc; j++)
            z[j * c_c] = 0.0f;
        for (int64_t k = 0; k < a->cols; k++) {
            float x = a->x[i * a->r + k * a->c];
            const float *y = b->x + k * b->r;
            for (int64_t j = 0; j < b->cols; j++)
                z[j * c_c] += x * y[j * b->c];
        }
    }
}

void ndrt_gemm(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
               const float *a, int64_t a_r, int64_t a_c,
               const float *b, int64_t b_r, int64_t b_c,
               float *c, int64_t c_r, int64_t c_c)
{
    if (m == 0 || n == 0)
        return;
    matrix x = tidy((matrix){a, m, k, a_r, a_c});
    matrix y = tidy((matrix){b, k, n, b_r, b_c});
    matrix z = tidy((matrix){c, m, n, c_r, c_c});
    if (z.c != 1) {
        matrix swap = transposed(x);
        x = transposed(y);
        y = swap;
        z = transposed(z);
    }
    if (k == 0 || x.rows * y.cols * k <= SMALL) {
        plain(acc, &x, &y, c, z.r, z.c);
        return;
    }
    ndrt_mm_key key = {.m = x.rows, .n = y.cols, .k = k, .acc = acc,
                       .ldc = z.r};
    if (z.c != 1 || z.r < z.cols || !usable(&x, &key.ta, &key.lda) ||
        !usable(&y, &key.tb, &key.ldb)) {
        plain_rows(acc, &x, &y, c, z.r, z.c);
        return;
    }
    if (ndrt_mm_run(r, &key, x.x, y.x, c) != NDRT_OK)
        ndrt_raise(r);
}
