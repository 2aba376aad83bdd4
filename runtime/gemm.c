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

static ndrt_matrix transposed(ndrt_matrix a)
{
    return (ndrt_matrix){a.x, a.cols, a.rows, a.c, a.r};
}

/* A stride along an axis of length 1 means nothing; make it what a library
 * expects to see. */
static ndrt_matrix tidy(ndrt_matrix a)
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
static bool usable(const ndrt_matrix *a, bool *trans, int64_t *ld)
{
    if (a->rows == 1 || a->cols == 1)
        return false;
    *trans = a->c != 1;
    *ld = *trans ? a->c : a->r;
    return *trans ? a->r == 1 && a->c >= a->rows : a->r >= a->cols;
}

static void plain(bool acc, const ndrt_matrix *a, const ndrt_matrix *b,
                  float *c, int64_t c_r, int64_t c_c)
{
    for (int64_t i = 0; i < a->rows; i++) {
        for (int64_t j = 0; j < b->cols; j++) {
            const float *x = (const float *)a->x + i * a->r;
            const float *y = (const float *)b->x + j * b->c;
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
static void plain_rows(bool acc, const ndrt_matrix *a, const ndrt_matrix *b,
                       float *c, int64_t c_r, int64_t c_c)
{
    for (int64_t i = 0; i < a->rows; i++) {
        float *z = c + i * c_r;
        for (int64_t j = 0; j < b->cols && !acc; j++)
            z[j * c_c] = 0.0f;
        for (int64_t k = 0; k < a->cols; k++) {
            float x = ((const float *)a->x)[i * a->r + k * a->c];
            const float *y = (const float *)b->x + k * b->r;
            for (int64_t j = 0; j < b->cols; j++)
                z[j * c_c] += x * y[j * b->c];
        }
    }
}

bool ndrt_mm_arrange(ndrt_matrix *a, ndrt_matrix *b, ndrt_matrix *c,
                     ndrt_mm_key *key)
{
    *a = tidy(*a);
    *b = tidy(*b);
    *c = tidy(*c);
    if (c->c != 1) {
        ndrt_matrix swap = transposed(*a);
        *a = transposed(*b);
        *b = swap;
        *c = transposed(*c);
    }
    key->m = c->rows;
    key->n = c->cols;
    key->k = a->cols;
    key->ldc = c->r;
    return a->rows * a->cols * b->cols > SMALL && c->c == 1 &&
           c->r >= c->cols && usable(a, &key->ta, &key->lda) &&
           usable(b, &key->tb, &key->ldb);
}

void ndrt_gemm(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
               const float *a, int64_t a_r, int64_t a_c,
               const float *b, int64_t b_r, int64_t b_c,
               float *c, int64_t c_r, int64_t c_c)
{
    if (m == 0 || n == 0)
        return;
    ndrt_matrix x = {a, m, k, a_r, a_c}, y = {b, k, n, b_r, b_c};
    ndrt_matrix z = {c, m, n, c_r, c_c};
    ndrt_mm_key key = {.acc = acc};
    ndrt_note_product(r, NDRT_W32, false, acc, &x, &y, &z);
    bool library = ndrt_mm_arrange(&x, &y, &z, &key);
    if (k == 0 || x.rows * y.cols * k <= SMALL)
        plain(acc, &x, &y, c, z.r, z.c);
    else if (!library)
        plain_rows(acc, &x, &y, c, z.r, z.c);
    else if (ndrt_mm_run(r, &key, x.x, y.x, c) != NDRT_OK)
        ndrt_raise(r);
}
