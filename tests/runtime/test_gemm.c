/* test_gemm.c - ndrt_gemm against a loop in double: every combination of
 * storage orders, row strides, sizes with 0 and 1, accumulating or not; and the
 * same for operands of bf16 and f16.
 */
#include "ndrt_internal.h"
#include "ndrt_math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static ndrt_rank *rank;

typedef struct operand {
    float *x;
    int64_t r, c;
    size_t n;
} operand;

/* Storage with `gap` spare elements per row; order 0 row-major, 1 column-major,
 * 2 with no stride of 1. */
static operand make(int64_t rows, int64_t cols, int order, int64_t gap,
                    unsigned seed)
{
    operand o = {.n = (size_t)((rows + gap + 1) * (cols + gap + 1) * 2)};
    int64_t step = order == 2 ? 2 : 1;

    o.x = malloc(o.n * sizeof *o.x);
    for (size_t i = 0; i < o.n; i++) {
        seed = seed * 1664525u + 1013904223u;
        o.x[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
    }
    o.r = order == 1 ? 1 : (cols + gap) * step;
    o.c = order == 1 ? rows + gap : step;
    return o;
}

typedef enum { F32, BF16, F16 } width;

/* The elements as stored, which is what the floats become, too. */
static uint16_t *narrow(operand *o, width w)
{
    uint16_t *h = malloc(o->n * sizeof *h);

    for (size_t i = 0; i < o->n; i++) {
        h[i] = w == BF16 ? nd_to_bf16(o->x[i]) : nd_to_f16(o->x[i]);
        o->x[i] = w == BF16 ? nd_from_bf16(h[i]) : nd_from_f16(h[i]);
    }
    return h;
}

static void multiply(width w, bool acc, int64_t m, int64_t n, int64_t k,
                     operand *a, operand *b, operand *c)
{
    if (w == F32) {
        ndrt_gemm(rank, acc, m, n, k, a->x, a->r, a->c, b->x, b->r, b->c, c->x,
                  c->r, c->c);
        return;
    }
    uint16_t *x = narrow(a, w), *y = narrow(b, w);
    (w == BF16 ? ndrt_gemm_bf16 : ndrt_gemm_f16)(
        rank, acc, m, n, k, x, a->r, a->c, y, b->r, b->c, c->x, c->r, c->c);
    free(x);
    free(y);
}

static void one(width w, int64_t m, int64_t n, int64_t k, const int order[3],
                int64_t gap, bool acc)
{
    operand a = make(m, k, order[0], gap, 1), b = make(k, n, order[1], gap, 2);
    operand c = make(m, n, order[2], gap, 3), d = make(m, n, order[2], gap, 3);

    multiply(w, acc, m, n, k, &a, &b, &c);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            float *z = &d.x[i * d.r + j * d.c];
            double s = acc ? (double)*z : 0.0;
            for (int64_t l = 0; l < k; l++)
                s += (double)a.x[i * a.r + l * a.c] *
                     (double)b.x[l * b.r + j * b.c];
            *z = (float)s;
        }
    }
    /* also what lies between the rows must be as before */
    for (size_t i = 0; i < c.n; i++)
        if (fabsf(c.x[i] - d.x[i]) > 1e-5f * (1.0f + (float)k * 0.1f))
            fail_msg("%lld x %lld x %lld, width %d, orders %d %d %d, acc %d: "
                     "%g is not %g", (long long)m, (long long)n, (long long)k,
                     w, order[0], order[1], order[2], acc, (double)c.x[i],
                     (double)d.x[i]);
    free(a.x);
    free(b.x);
    free(c.x);
    free(d.x);
}

static void all(width w)
{
    static const int64_t sizes[][3] = {
        {0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {1, 1, 1}, {1, 40, 50}, {40, 1, 50},
        {40, 50, 1}, {1, 1, 2000}, {5, 7, 3}, {13, 61, 5}, {32, 16, 8},
        {61, 33, 47}, {100, 1, 61}, {64, 64, 64}, {1, 300, 129},
    };

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int o = 0; o < 27; o++) {
            int order[3] = {o % 3, o / 3 % 3, o / 9};
            for (int g = 0; g < 4; g++)
                one(w, sizes[s][0], sizes[s][1], sizes[s][2], order,
                    g / 2 * 3, g % 2);
        }
    }
}

static void test_all(void **state)
{
    (void)state;
    all(F32);
}

/* Products of two narrow numbers are exact in float: no wider tolerance. */
static void test_narrow(void **state)
{
    (void)state;
    all(BF16);
    all(F16);
}

/* The same product twice gives the same bits: made once, found again. */
static void test_repeats(void **state)
{
    enum { N = 96 };
    operand a = make(N, N, 0, 0, 1), b = make(N, N, 1, 0, 2);
    operand c = make(N, N, 0, 0, 3), d = make(N, N, 0, 0, 4);

    (void)state;
    ndrt_gemm(rank, false, N, N, N, a.x, a.r, a.c, b.x, b.r, b.c, c.x, c.r,
              c.c);
    ndrt_gemm(rank, false, N, N, N, a.x, a.r, a.c, b.x, b.r, b.c, d.x, d.r,
              d.c);
    assert_memory_equal(c.x, d.x, N * N * sizeof(float));
    free(a.x);
    free(b.x);
    free(c.x);
    free(d.x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_repeats),
    };
    const ndrt_stage stage = {0};
    const ndrt_program p = {.name = "gemm", .pipe = -1, .nstages = 1,
                            .stages = &stage};
    ndrt_config config = {0};
    ndrt_world *w = ndrt_world_new(1);

    rank = ndrt_rank_new(&p, &config, ndrt_world_comm(w, 0));
    if (ndrt_mm_open(rank) != NDRT_OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ndrt_own_close(&rank->state->own);
    ndrt_rank_free(rank);
    ndrt_world_free(w);
    return rc;
}
