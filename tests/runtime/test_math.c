/* test_math.c - integer division in generated code: what the evaluator's table
 * says of it, for every kind of operand.
 */
#include "ew_value.h"
#include "ndrt_math.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static void check(int32_t a, int32_t b)
{
    int32_t q = nd_floordiv(a, b), m = nd_floormod(a, b);

    if ((double)q != ew_value(EW_IDIV, a, b, 0) ||
        (double)m != ew_value(EW_MOD, a, b, 0))
        fail_msg("%d // %d gives %d, %% gives %d", (int)a, (int)b, (int)q,
                 (int)m);
    if (b == 0)
        assert_true(q == 0 && m == 0);
    else if (a == INT32_MIN && b == -1)
        assert_true(q == INT32_MIN && m == 0);
    else
        assert_true(b > 0 ? m >= 0 && m < b : m <= 0 && m > b);
}

static void test_edges(void **state)
{
    static const int32_t v[] = {
        0, 1, -1, 2, -2, 3, -3, 7, -7, 46340, 46341, -46341, 65536, 0x3fffffff,
        0x40000000, INT32_MAX - 1, INT32_MAX, INT32_MIN, INT32_MIN + 1};
    enum { N = sizeof v / sizeof *v };

    (void)state;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            check(v[i], v[j]);
}

/* Products and their neighbours, where a rounded quotient would be wrong. */
static void test_near_whole(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t second;
        int32_t b = (int32_t)(nd_philox(1, i, 0, 0, &second) >> (i % 32));
        int32_t q = (int32_t)second >> (31 - i % 32);
        int64_t a = (int64_t)b * q;
        for (int64_t d = -1; d <= 1; d++)
            check((int32_t)(uint32_t)(a + d), i & 1 ? -b : b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_near_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
