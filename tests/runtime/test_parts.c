/* test_parts.c - sums over rows in a fixed number of parts: which rows a part
 * has, and that the sum is the same for any number of threads. The threads run
 * one after another, from one barrier to the next.
 */
#include "ndrt_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 61, N = 37, ROOM = 48, BEFORE = 32, MOST = 5 };

/* Each row once, in order; no part has many more than another. */
static void test_rows(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 100; n++) {
        int64_t at = 0;
        for (int part = 0; part < NDRT_PARTS; part++) {
            ndrt_span s = ndrt_rows_of(part, n);
            assert_int_equal(s.from, at);
            assert_in_range(s.to - s.from, n / NDRT_PARTS,
                            n / NDRT_PARTS + 1);
            at = s.to;
        }
        assert_int_equal(at, n);
    }
}

static float term(int64_t row, int64_t k)
{
    return (float)(row * 7 % 11) / 3.0f + (float)k * 0.01f;
}

/* Two sums side by side, x and all ones, by a team of `of`. */
static void add_up(int of, bool acc, float *x, float *ones)
{
    static float arena[BEFORE + 2 * NDRT_PARTS * ROOM];
    static const ndrt_device device = {.scratch = BEFORE * sizeof *arena};
    const ndrt_program program = {.devices = &device};
    ndrt_rank r = {.arena = (char *)arena, .program = &program, .nthreads = of};

    for (size_t i = 0; i < sizeof arena / sizeof *arena; i++)
        arena[i] = 99.0f;
    for (r.thread = 0; r.thread < of; r.thread++) {
        ndrt_span parts = ndrt_share(&r, NDRT_PARTS, 1);
        for (int64_t p = parts.from; p < parts.to; p++) {
            float *a = ndrt_new_part(&r, 0, p, N);
            float *b = ndrt_new_part(&r, NDRT_PARTS * ROOM, p, N);
            ndrt_span rows = ndrt_rows_of(p, ROWS);
            for (int64_t row = rows.from; row < rows.to; row++)
                for (int64_t k = 0; k < N; k++) {
                    a[k] += term(row, k);
                    b[k] += 1.0f;
                }
        }
    }
    for (r.thread = 0; r.thread < of; r.thread++) {
        ndrt_add_parts(&r, acc, x, 0, N);
        ndrt_add_parts(&r, acc, ones, NDRT_PARTS * ROOM, N);
    }
    for (int i = 0; i < BEFORE; i++)
        assert_float_equal(arena[i], 99.0f, 0);
}

static void test_sums(void **state)
{
    (void)state;
    float first[N + 1];
    for (int acc = 0; acc < 2; acc++)
        for (int of = 1; of <= MOST; of++) {
            float x[N + 1], ones[N + 1];
            for (int k = 0; k <= N; k++)
                x[k] = ones[k] = 5.0f;
            add_up(of, acc, x, ones);
            for (int64_t k = 0; k < N; k++) {
                double sum = acc ? 5.0 : 0.0;
                for (int64_t row = 0; row < ROWS; row++)
                    sum += term(row, k);
                assert_float_equal(x[k], sum, 1e-3);
                assert_float_equal(ones[k], acc ? ROWS + 5 : ROWS, 0);
            }
            assert_float_equal(x[N], 5.0f, 0);     /* and nothing behind it */
            if (of == 1)
                memcpy(first, x, sizeof x);
            assert_memory_equal(x, first, sizeof x);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
