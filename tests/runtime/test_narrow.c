/* test_narrow.c - bf16 and f16 to float and back: every one of the 65536
 * numbers there and back, and every number between two neighbours that decides
 * the rounding, against arithmetic in double.
 */
#include "ndrt_math.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <cmocka.h>

typedef struct format {
    const char *name;
    int mantissa, bias;           /* explicit bits */
    float (*from)(uint16_t);
    uint16_t (*to)(float);
} format;

static const format formats[] = {
    {"bf16", 7, 127, nd_from_bf16, nd_to_bf16},
    {"f16", 10, 15, nd_from_f16, nd_to_f16},
};
enum { FORMATS = 2 };

static bool is_nan(const format *f, uint32_t h)
{
    return (h & 0x7fff) > (0x7fffu >> f->mantissa << f->mantissa);
}

/* What the bits say; the number after the largest where they say infinity. */
static double meaning(const format *f, uint32_t h)
{
    int e = (int)((h & 0x7fff) >> f->mantissa);
    double m = h & ((1u << f->mantissa) - 1);
    double x = e ? ldexp(m + (1 << f->mantissa), e - f->bias - f->mantissa)
                 : ldexp(m, 1 - f->bias - f->mantissa);

    return h & 0x8000 ? -x : x;
}

static void test_from(void **state)
{
    (void)state;
    for (int k = 0; k < FORMATS; k++) {
        const format *f = &formats[k];
        uint32_t infinity = 0x7fffu >> f->mantissa << f->mantissa;
        for (uint32_t h = 0; h < 65536; h++) {
            float x = f->from((uint16_t)h);
            if (is_nan(f, h))
                assert_true(x != x);
            else if ((h & 0x7fff) == infinity)
                assert_true(isinf(x) && (x < 0) == (h >> 15));
            else if (x != meaning(f, h) || !signbit(x) != !(h >> 15))
                fail_msg("%s %04x is %a", f->name, (unsigned)h, (double)x);
        }
    }
}

static void test_there_and_back(void **state)
{
    (void)state;
    for (int k = 0; k < FORMATS; k++) {
        const format *f = &formats[k];
        for (uint32_t h = 0; h < 65536; h++) {
            uint32_t g = f->to(f->from((uint16_t)h));
            if (is_nan(f, h) ? !is_nan(f, g) || (g ^ h) >> 15 : g != h)
                fail_msg("%s %04x comes back as %04x", f->name, (unsigned)h,
                         (unsigned)g);
        }
    }
}

static void expect(const format *f, float x, uint32_t want)
{
    uint32_t got = f->to(x);

    if (got != want)
        fail_msg("%a is %s %04x, not %04x", (double)x, f->name, (unsigned)got,
                 (unsigned)want);
}

/* Between two neighbours: the middle goes to the even one, its own neighbours
 * among the floats to the nearer one. The middles of bf16's smallest numbers
 * are floats too. */
static void test_rounding(void **state)
{
    (void)state;
    for (int k = 0; k < FORMATS; k++) {
        const format *f = &formats[k];
        uint32_t infinity = 0x7fffu >> f->mantissa << f->mantissa;
        for (uint32_t h = 0; h < infinity; h++)
            for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
                double below = meaning(f, h), above = meaning(f, h + 1);
                float mid = (float)((below + above) / 2);
                float s = sign ? -1.0f : 1.0f;
                expect(f, s * mid, sign | (h & 1 ? h + 1 : h));
                expect(f, s * nextafterf(mid, 0.0f), sign | h);
                expect(f, s * nextafterf(mid, INFINITY), sign | (h + 1));
            }
    }
}

/* No number stays none, whichever bits say so. */
static void test_nan(void **state)
{
    (void)state;
    for (int k = 0; k < FORMATS; k++)
        for (int bit = 0; bit < 23; bit++)
            for (uint32_t sign = 0; sign < 2; sign++) {
                uint32_t u = sign << 31 | 0x7f800000u | 1u << bit;
                uint32_t h = formats[k].to(nd_bits_float(u));
                assert_true(is_nan(&formats[k], h));
            }
}

static void test_wide_division(void **state)
{
    static const int64_t v[] = {
        0, 1, -1, 2, -3, 7, -7, INT32_MIN, (int64_t)1 << 40, INT64_MAX,
        INT64_MIN, INT64_MIN + 1};
    enum { N = sizeof v / sizeof *v };

    (void)state;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            int64_t a = v[i], b = v[j];
            int64_t q = nd_floordiv64(a, b), m = nd_floormod64(a, b);
            if (b == 0 || (b == -1 && a == INT64_MIN)) {
                assert_true(m == 0 && q == (b ? INT64_MIN : 0));
                continue;
            }
            assert_true((uint64_t)q * (uint64_t)b + (uint64_t)m ==
                        (uint64_t)a);
            assert_true(b > 0 ? m >= 0 && m < b : m <= 0 && m > b);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from),
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_wide_division),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
