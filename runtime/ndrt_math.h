/* ndrt_math.h - what generated kernels compute with: float functions that the
 * C compiler can vectorise, and the counter-based random numbers.
 *
 * exp, log, tanh and erf are branch-free polynomials (relative error below
 * 7e-7 over the range that matters), because libm's are calls and a call stops
 * vectorisation. -inf is a legal input of nd_exp and yields 0.
 */
#ifndef NDRT_MATH_H
#define NDRT_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float nd_bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t nd_float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* bf16 and f16 are stored as their bits and computed with as floats. Rounding
 * is to nearest even; NaN stays NaN. No branches, so that loops vectorise. */
typedef uint16_t nd_bf16;
typedef uint16_t nd_f16;

static inline float nd_from_bf16(nd_bf16 h)
{
    return nd_bits_float((uint32_t)h << 16);
}

static inline nd_bf16 nd_to_bf16(float x)
{
    uint32_t u = nd_float_bits(x);
    uint32_t r = u + 0x7fffu + (u >> 16 & 1);
    return (nd_bf16)((x != x ? u | 0x400000u : r) >> 16);
}

/* The exponent's bias is 112 less than a float's. Subnormal numbers become
 * subnormal floats first, and the product with a power of two is exact. */
static inline float nd_from_f16(nd_f16 h)
{
    uint32_t mag = (uint32_t)(h & 0x7fff) << 13;
    uint32_t u = nd_float_bits(nd_bits_float(mag) * 0x1p112f);
    u = mag >= 0x0f800000u ? mag | 0x7f800000u : u;
    return nd_bits_float(u | (uint32_t)(h & 0x8000) << 16);
}

/* Below 2^-14 the addition of 0.5 rounds: its last bit is worth 2^-24. */
static inline nd_f16 nd_to_f16(float x)
{
    uint32_t u = nd_float_bits(x), mag = u & 0x7fffffffu;
    uint32_t r = (mag - 0x38000000u + 0xfffu + (mag >> 13 & 1)) >> 13;
    uint32_t tiny = nd_float_bits(nd_bits_float(mag) + 0.5f) - 0x3f000000u;
    r = mag < 0x38800000u ? tiny : r;
    r = mag >= 0x47800000u ? 0x7c00u : r;
    r = mag > 0x7f800000u ? 0x7e00u | (mag >> 13 & 0x3ff) : r;
    return (nd_f16)(r | (u >> 16 & 0x8000));
}

/* e^x = 2^k e^r with |r| <= ln2/2, Taylor to r^6 (Cephes' coefficients are not
 * needed at this width: the remainder is below 1.2e-7). */
static inline float nd_exp(float x)
{
    float c = x < -87.0f ? -87.0f : x;
    c = c > 88.0f ? 88.0f : c;
    float k = rintf(c * 1.44269504f);
    float r = fmaf(k, -0.693145752f, c);
    r = fmaf(k, -1.42860677e-6f, r);
    float p = 1.0f / 5040.0f;
    p = fmaf(p, r, 1.0f / 720.0f);
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    float s = nd_bits_float((uint32_t)((int32_t)k + 127) << 23);
    float y = p * s;
    y = x > 88.7f ? INFINITY : y;
    y = x < -87.0f ? 0.0f : y;
    return x != x ? x : y;
}

/* x = 2^k m with m in [sqrt(1/2), sqrt 2); log m by the atanh series in
 * s = (m-1)/(m+1), |s| <= 0.1716. */
static inline float nd_log(float x)
{
    float tiny = x < 1.17549435e-38f ? 1.0f : 0.0f;
    float z = tiny != 0.0f ? x * 16777216.0f : x;
    uint32_t u = nd_float_bits(z);
    int32_t k = (int32_t)((u - 0x3f3504f3u) >> 23);
    k = (int32_t)(u - 0x3f3504f3u) < 0 ? k - 512 : k;
    float m = nd_bits_float(u - ((uint32_t)k << 23));
    float s = (m - 1.0f) / (m + 1.0f);
    float t = s * s;
    float p = 2.0f / 9.0f;
    p = fmaf(p, t, 2.0f / 7.0f);
    p = fmaf(p, t, 2.0f / 5.0f);
    p = fmaf(p, t, 2.0f / 3.0f);
    p = fmaf(p, t, 2.0f);
    float e = (float)k - 24.0f * tiny;
    float y = fmaf(e, 0.693147182f, p * s);
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x == INFINITY || x != x ? x : y;
}

static inline float nd_sigmoid(float x)
{
    return 1.0f / (1.0f + nd_exp(-x));
}

/* Near 0 the quotient form loses digits, so an odd polynomial takes over. */
static inline float nd_tanh(float x)
{
    float a = fabsf(x);
    float e = nd_exp(-2.0f * a);
    float big = (1.0f - e) / (1.0f + e);
    float t = x * x;
    float p = 62.0f / 2835.0f;
    p = fmaf(p, t, -17.0f / 315.0f);
    p = fmaf(p, t, 2.0f / 15.0f);
    p = fmaf(p, t, -1.0f / 3.0f);
    p = fmaf(p * t, a, a);
    float y = a < 0.18f ? p : big;
    return copysignf(y, x);
}

/* Near 0 the Maclaurin series; beyond, 1 - t(...)e^{-x^2} with Abramowitz and
 * Stegun 7.1.26 (absolute error 1.5e-7). */
static inline float nd_erf(float x)
{
    float a = fabsf(x);
    float t = 1.0f / fmaf(0.3275911f, a, 1.0f);
    float p = 1.061405429f;
    p = fmaf(p, t, -1.453152027f);
    p = fmaf(p, t, 1.421413741f);
    p = fmaf(p, t, -0.284496736f);
    p = fmaf(p, t, 0.254829592f);
    float far = 1.0f - p * t * nd_exp(-a * a);
    float q = x * x;
    float s = 1.0f / 1320.0f;
    s = fmaf(s, -q, 1.0f / 216.0f);
    s = fmaf(s, -q, 1.0f / 42.0f);
    s = fmaf(s, -q, 1.0f / 10.0f);
    s = fmaf(s, -q, 1.0f / 3.0f);
    s = fmaf(s, -q, 1.0f);
    float near = 1.12837917f * a * s;
    return copysignf(a < 0.35f ? near : far, x);
}

static inline float nd_sqrt(float x)
{
    return sqrtf(x);
}

static inline float nd_rsqrt(float x)
{
    return 1.0f / sqrtf(x);
}

static inline float nd_pow(float x, float y)
{
    return powf(x, y);
}

static inline float nd_sin(float x)
{
    return sinf(x);
}

static inline float nd_cos(float x)
{
    return cosf(x);
}

static inline float nd_abs(float x)
{
    return fabsf(x);
}

static inline float nd_min(float a, float b)
{
    return a < b ? a : b;
}

static inline float nd_max(float a, float b)
{
    return a > b ? a : b;
}

/* A row is folded in 16 lanes, element i into lane i mod 16, and those by
 * halves: the bits depend neither on the compiler nor on the machine's vectors.
 */
#define ND_16(x) x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x

/* How many elements are left for the lanes. */
static inline int64_t nd_lanes(int64_t left)
{
    return left < 16 ? left : 16;
}

#define ND_FOLD_16(name, type, combined) \
    static inline type name(const type *lane) \
    { \
        type x[8]; \
        for (int i = 0; i < 8; i++) { \
            const type a = lane[i], b = lane[i + 8]; \
            x[i] = combined; \
        } \
        for (int half = 4; half; half /= 2) \
            for (int i = 0; i < half; i++) { \
                const type a = x[i], b = x[i + half]; \
                x[i] = combined; \
            } \
        return x[0]; \
    }
ND_FOLD_16(nd_sum_16, float, a + b)
ND_FOLD_16(nd_max_16, float, nd_max(a, b))
ND_FOLD_16(nd_min_16, float, nd_min(a, b))
ND_FOLD_16(nd_sum_16_i32, int32_t, a + b)
ND_FOLD_16(nd_max_16_i32, int32_t, a > b ? a : b)
ND_FOLD_16(nd_min_16_i32, int32_t, a < b ? a : b)
ND_FOLD_16(nd_sum_16_i64, int64_t, a + b)
ND_FOLD_16(nd_max_16_i64, int64_t, a > b ? a : b)
ND_FOLD_16(nd_min_16_i64, int64_t, a < b ? a : b)

/* Floor of a / b; 0 where b is 0, and INT32_MIN where INT32_MIN is divided by
 * -1: data must not end a program. The quotient is taken in double, which
 * processors divide several of at once: it is off by less than 2^-22 / |b| and
 * a fraction is 1 / |b| away from a whole number, so the floor is exact. */
static inline int32_t nd_floordiv(int32_t a, int32_t b)
{
    int32_t d = b == 0 || b == -1 ? 1 : b;
    int32_t q = (int32_t)floor((double)a / (double)d);
    int32_t minus = (int32_t)(0u - (uint32_t)a);
    q = b == -1 ? minus : q;
    return b == 0 ? 0 : q;
}

/* The same over 64 bits. */
static inline int64_t nd_floordiv64(int64_t a, int64_t b)
{
    int64_t d = b == 0 || b == -1 ? 1 : b;
    int64_t q = a / d - (a % d != 0 && (a < 0) != (d < 0));
    q = b == -1 ? (int64_t)(0u - (uint64_t)a) : q;
    return b == 0 ? 0 : q;
}

static inline int64_t nd_floormod64(int64_t a, int64_t b)
{
    uint64_t m = (uint64_t)a - (uint64_t)b * (uint64_t)nd_floordiv64(a, b);
    return b == 0 ? 0 : (int64_t)m;
}

/* a - b * floor(a / b); 0 where b is 0. */
static inline int32_t nd_floormod(int32_t a, int32_t b)
{
    uint32_t m = (uint32_t)a - (uint32_t)b * (uint32_t)nd_floordiv(a, b);
    return b == 0 ? 0 : (int32_t)m;
}

/* The integer part; what does not fit becomes the nearest that does, NaN 0. */
static inline int32_t nd_to_i32(float x)
{
    float in = x > -2147483648.0f ? x : -2147483648.0f;
    int32_t i = (int32_t)(in < 2147483520.0f ? in : 2147483520.0f);
    return x >= 2147483648.0f ? INT32_MAX : x != x ? 0 : i;
}

static inline int64_t nd_to_i64(float x)
{
    float in = x > -0x1p63f ? x : -0x1p63f;
    int64_t i = (int64_t)(in < 0x1.fffffep62f ? in : 0x1.fffffep62f);
    return x >= 0x1p63f ? INT64_MAX : x != x ? 0 : i;
}

/* Philox4x32-10 (Salmon et al., SC'11). A draw is a pure function of
 *   key     = seed
 *   counter = (64-bit element index, step, stream)
 * so a number depends on where an element stands in the whole tensor and never
 * on who computes it. `stream` = 32-bit fold of the instance path's FNV-1a
 * hash, plus 0x9e3779b9 times (iteration of the enclosing repeat + 1). */
static inline uint32_t nd_philox(uint64_t seed, uint64_t index, uint32_t step,
                                 uint32_t stream, uint32_t *second)
{
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = step, c3 = stream;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    if (second)
        *second = c1;
    return c0;
}

/* Uniform in [0, 1), 24 bits. */
static inline float nd_uniform(uint64_t seed, uint64_t index, uint32_t step,
                               uint32_t stream)
{
    return (float)(nd_philox(seed, index, step, stream, 0) >> 8) * 0x1p-24f;
}

/* A standard normal number (Box and Muller, 1958), in double; u is never 0. */
static inline double nd_gauss(uint64_t seed, uint64_t index, uint32_t step,
                              uint32_t stream)
{
    uint32_t c1, c0 = nd_philox(seed, index, step, stream, &c1);
    double u = ((double)(c0 >> 8) + 1.0) * 0x1p-24;
    double v = (double)(c1 >> 8) * 0x1p-24;
    return sqrt(-2.0 * log(u)) * cos(2.0 * 3.14159265358979323846 * v);
}

static inline float nd_normal(uint64_t seed, uint64_t index, uint32_t step,
                              uint32_t stream)
{
    return (float)nd_gauss(seed, index, step, stream);
}

/* One element of a dropout mask. */
static inline float nd_dropout(float p, uint64_t seed, uint64_t index,
                               uint32_t step, uint32_t stream)
{
    return nd_uniform(seed, index, step, stream) < p ? 0.0f : 1.0f / (1.0f - p);
}

#endif
