/* ulp.c - the functions of ndrt_math.h against libm's in double: the largest
 * error of each in units in the last place; 1 if one has more than 2.
 *
 *   ulp 4093        every 4093rd float and the neighbours of every power of 2
 *   ulp 1           all 2^32
 *
 * ulp.sh compiles this as ndc compiles a generated program, for several
 * processors, and reads the assembly: loop_exp and the others call nothing.
 */
#include "ew_value.h"
#include "ndrt_math.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 4096, LIMIT = 2 };

typedef void loop(float *restrict y, const float *restrict x,
                  const float *restrict z);

#define LOOP(name, result) \
    loop loop_##name; \
    void loop_##name(float *restrict y, const float *restrict x, \
                     const float *restrict z) \
    { \
        (void)z; \
        _Pragma("omp simd") \
        for (int i = 0; i < N; i++) \
            y[i] = result; \
    }

LOOP(exp, nd_exp(x[i]))
LOOP(log, nd_log(x[i]))
LOOP(sigmoid, nd_sigmoid(x[i]))
LOOP(tanh, nd_tanh(x[i]))
LOOP(erf, nd_erf(x[i]))
LOOP(sqrt, nd_sqrt(x[i]))
LOOP(rsqrt, nd_rsqrt(x[i]))
LOOP(sin, nd_sin(x[i]))
LOOP(cos, nd_cos(x[i]))
LOOP(pow, nd_pow(x[i], z[i]))

typedef struct fn {
    const char *name;
    int op;
    loop *loop;
    double worst;
    float at, with;
} fn;

/* How far y is from what it should be, in units of the last place of that: of
 * subnormal numbers the smallest one, of those beyond the largest 2^104. */
static double ulps(float y, double want)
{
    if (want != want || y != y)
        return want != want && y != y ? 0 : INFINITY;
    if ((float)want == y)
        return !signbit(want) == !signbit(y) ? 0 : INFINITY;
    double over = fabs(want) > 0x1p128 ? copysign(0x1p128, want) : want;
    double got = isinf(y) ? copysign(0x1p128, y) : (double)y;
    int e = over == 0 ? -126 : ilogb(over);
    e = e < -126 ? -126 : e > 127 ? 127 : e;
    return fabs(got - over) / ldexp(1, e - 23);
}

static void check(fn *f, const float *x, const float *z, int n)
{
    static float y[N];
    f->loop(y, x, z);
    for (int i = 0; i < n; i++) {
        double d = ulps(y[i], ew_value(f->op, x[i], z[i], 0));
        if (d > f->worst) {
            f->worst = d;
            f->at = x[i];
            f->with = z[i];
        }
    }
}

/* A second operand for pow: often a small number, whole or not; often what
 * makes a result near the ends of the range; sometimes any float. */
static float partner(float x, uint64_t i)
{
    static const float small[] = {0, 0.5f, 1, 2, 3, -1, -0.5f, 0.333f, 10, -7,
                                  INFINITY, -INFINITY, NAN, -0.0f, 1e30f};
    uint32_t more, u = nd_philox(7, i, 0, 0, &more);
    double l = log2(fabs((double)x));
    switch (more % 4) {
    case 0:
        return small[u % (sizeof small / sizeof *small)];
    case 1:
        return (float)((double)u * 0x1p-32 * 320 - 160) / (float)l;
    case 2:
        return (float)(int32_t)(u >> 16) - 0x1p15f;
    default:
        return nd_bits_float(u);
    }
}

static uint64_t done;

static void check_all(fn *f, int nf, float *x, int n)
{
    static float z[N];
    for (int i = 0; i < n; i++)
        z[i] = partner(x[i], done++);
    for (int i = 0; i < nf; i++)
        check(&f[i], x, z, n);
}

int main(int argc, char **argv)
{
    fn f[] = {
#define FN(K, name) {#name, EW_##K, loop_##name, 0, 0, 0}
        FN(EXP, exp), FN(LOG, log), FN(SIGMOID, sigmoid), FN(TANH, tanh),
        FN(ERF, erf), FN(SQRT, sqrt), FN(RSQRT, rsqrt), FN(SIN, sin),
        FN(COS, cos), FN(POW, pow),
    };
    enum { F = sizeof f / sizeof *f };
    uint32_t step = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 4093;
    static float x[N];
    int n = 0, bad = 0;

    for (uint64_t u = 0; step && u < 1ull << 32; u += step) {
        x[n++] = nd_bits_float((uint32_t)u);
        if (n == N)
            check_all(f, F, x, n), n = 0;
    }
    check_all(f, F, x, n);
    n = 0;
    for (uint32_t e = 0; e < 512; e++)
        for (uint32_t d = 0; d < 8; d++)
            x[n++] = nd_bits_float((e << 23) + d - 4);
    check_all(f, F, x, n);
    for (int i = 0; i < F; i++) {
        bool over = !(f[i].worst <= LIMIT);
        printf("%-8s %.3f ulp at %a", f[i].name, f[i].worst, (double)f[i].at);
        if (f[i].op == EW_POW)
            printf(", %a", (double)f[i].with);
        printf("%s\n", over ? ", too much" : "");
        bad |= over;
    }
    return bad;
}
