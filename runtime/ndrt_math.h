/* ndrt_math.h - what generated kernels compute with: float functions that the
 * C compiler can vectorise, and the counter-based random numbers.
 *
 * exp, log, tanh, ... have no branches and call nothing, because libm's are
 * calls and a call stops vectorisation. Each is within 2 units in the last
 * place of the true value, for every float: subnormal, infinite, NaN
 * (tests/runtime/ulp.sh). Coefficients are minimax fits, rounded to float.
 */
#ifndef NDRT_MATH_H
#define NDRT_MATH_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* A call in a loop stops vectorisation, however long the callee is. */
#define ND_INLINE static inline __attribute__((always_inline))

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

/* a * b + c, rounded once where the processor can. Elsewhere fmaf is a call
 * that stops vectorisation; the functions below keep their word either way. */
ND_INLINE float nd_fma(float a, float b, float c)
{
#if defined __FMA__ || defined __AVX512F__ || defined __FP_FAST_FMAF
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* e^x = 2^n e^r with |r| <= ln2 / 2: e^r. */
ND_INLINE float nd_exp_rest(float x, float n)
{
    float r = nd_fma(n, -0x1.63p-1f, x);         /* exact: ln2's first bits */
    r = nd_fma(n, 0x1.bd0106p-13f, r);
    float p = 0x1.6a2352p-10f;
    p = nd_fma(p, r, 0x1.123a6cp-7f);
    p = nd_fma(p, r, 0x1.5558f4p-5f);
    p = nd_fma(p, r, 0x1.55549p-3f);
    p = nd_fma(p, r, 0x1.fffffcp-2f);
    return nd_fma(p, r * r, r) + 1.0f;
}

/* The sum with 1.5 * 2^23 rounds to a whole number and leaves it, here n + 254,
 * in the low bits. 2^n in two factors, so that results may be subnormal or
 * overflow; the first is 2^(n / 2), whose exponent is those bits moved. NaN
 * comes through all of it. What is too small is cut off as a float and what is
 * too large as bits: of two limits of one number gcc would make branches. */
ND_INLINE float nd_exp(float x)
{
    const int32_t most = (int32_t)nd_float_bits(0x1.8p23f + 254.0f + 128.0f);
    float c = x < -104.0f ? -104.0f : x;
    float t = nd_fma(c, 1.44269504f, 0x1.8p23f + 254.0f);
    int32_t k = (int32_t)nd_float_bits(t);
    k = k < most ? k : most;
    float n = nd_bits_float((uint32_t)k) - (0x1.8p23f + 254.0f);
    uint32_t half = (uint32_t)k << 22 & 0x7f800000u;
    return nd_exp_rest(c, n) * nd_bits_float(half) *
           nd_bits_float(((uint32_t)k << 23) - half);
}

/* The same for numbers from -80 to 80, and NaN: nothing is cut off, and 2^n is
 * one factor, from n + 127 in the low bits. */
ND_INLINE float nd_exp_near(float x)
{
    float t = nd_fma(x, 1.44269504f, 0x1.8p23f + 127.0f);
    return nd_exp_rest(x, t - (0x1.8p23f + 127.0f)) *
           nd_bits_float(nd_float_bits(t) << 23);
}

/* x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt 2): the logarithm is
 * k ln2 + f - f^2 / 2 + f^3 (...), small terms first. */
ND_INLINE float nd_log(float x)
{
    float tiny = x < 0x1p-126f ? 1.0f : 0.0f;
    float z = tiny != 0.0f ? x * 0x1p24f : x;
    int32_t u = (int32_t)(nd_float_bits(z) - 0x3f3504f3u);
    int32_t k = u >> 23;
    float f = nd_bits_float((uint32_t)(u & 0x7fffff) + 0x3f3504f3u) - 1.0f;
    float e = (float)k - 24.0f * tiny, q = f * f;
    float p = -0x1.38b58p-4f;
    p = nd_fma(p, f, 0x1.055b6ap-3f);
    p = nd_fma(p, f, -0x1.0d8544p-3f);
    p = nd_fma(p, f, 0x1.22da1cp-3f);
    p = nd_fma(p, f, -0x1.547244p-3f);
    p = nd_fma(p, f, 0x1.99a008p-3f);
    p = nd_fma(p, f, -0x1.000226p-2f);
    p = nd_fma(p, f, 0x1.555554p-2f);
    float y = nd_fma(e, -0x1.bd0106p-13f, p * f * q);
    y = nd_fma(-0.5f, q, y);
    y = nd_fma(e, 0x1.63p-1f, f + y);
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x == INFINITY || x != x ? x : y;
}

/* By e = e^-|x|, which cannot overflow: 1 / (1 + e) or e / (1 + e), each as a
 * difference of which only the smaller term is a quotient. */
ND_INLINE float nd_sigmoid(float x)
{
    float e = nd_exp(-fabsf(x));
    float n = x < 0.0f ? e : 1.0f;
    return nd_fma(-n, e / (1.0f + e), n);
}

/* Near 0 the difference of 1 loses digits, so an odd polynomial takes over.
 * From 10 on all is 1. */
ND_INLINE float nd_tanh(float x)
{
    float a = fabsf(x), t = x * x;
    float c = a > 10.0f ? 10.0f : a;
    float far = 1.0f - 2.0f / (nd_exp_near(2.0f * c) + 1.0f);
    float p = -0x1.75e1ccp-8f;
    p = nd_fma(p, t, 0x1.52269ap-6f);
    p = nd_fma(p, t, -0x1.b83c5ap-5f);
    p = nd_fma(p, t, 0x1.110726p-3f);
    p = nd_fma(p, t, -0x1.555532p-2f);
    p = nd_fma(p * t, a, a);
    return copysignf(a < 0.625f ? p : far, x);
}

/* Near 0 an odd polynomial; beyond, 1 - e^-g where the polynomial g is the
 * logarithm of 1 / (1 - erf). From 4 on all is 1. */
ND_INLINE float nd_erf(float x)
{
    float a = fabsf(x), q = x * x;
    float c = a > 4.0f ? 4.0f : a;
    float g = -0x1.98d4b6p-13f;
    g = nd_fma(g, c, 0x1.8da186p-9f);
    g = nd_fma(g, c, -0x1.6b8e86p-6f);
    g = nd_fma(g, c, 0x1.a9653cp-4f);
    g = nd_fma(g, c, 0x1.4647b4p-1f);
    g = nd_fma(g, c, 0x1.20ac3p+0f);
    g = nd_fma(g, c, 0x1.b225b4p-13f);
    float far = 1.0f - nd_exp_near(-g);
    float p = 0x1.5f953ap-14f;
    p = nd_fma(p, q, -0x1.ab105cp-11f);
    p = nd_fma(p, q, 0x1.54df1ap-8f);
    p = nd_fma(p, q, -0x1.b810e8p-6f);
    p = nd_fma(p, q, 0x1.ce2e24p-4f);
    p = nd_fma(p, q, -0x1.812744p-2f);
    p = nd_fma(p, q, 0x1.06eba8p-3f);
    p = nd_fma(p, a, a);
    return copysignf(a < 0.92f ? p : far, x);
}

ND_INLINE float nd_sqrt(float x)
{
    return sqrtf(x);
}

ND_INLINE float nd_rsqrt(float x)
{
    return 1.0f / sqrtf(x);
}

ND_INLINE double nd_bits_double(uint64_t u)
{
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

ND_INLINE uint64_t nd_double_bits(double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

/* 2^(y log2 |x|), in double because an error of the exponent counts up to 150
 * times; then the cases that C names. No float is subnormal as a double. */
ND_INLINE float nd_pow(float x, float y)
{
    double a = fabs((double)x), b = y;
    uint64_t u = nd_double_bits(a) - 0x3fe6a09e667f3bcdu + (1024ull << 52);
    double e = nd_bits_double(u >> 52 | 0x433ull << 52) - (0x1p52 + 1024.0);
    double m = nd_bits_double((u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu);
    double s = (m - 1.0) / (m + 1.0), q = s * s;
    double p = 0.3407382739798067;
    p = p * q + 0.4116722222739322;
    p = p * q + 0.5770835943994221;
    p = p * q + 0.9617966732844965;
    p = p * q + 2.8853900817901406;
    double l = p * s + e;
    l = a == 0.0 ? -(double)INFINITY : l;
    l = a < (double)INFINITY ? l : a;
    double t = b * l;
    t = t < -200.0 ? -200.0 : t;
    t = t > 200.0 ? 200.0 : t;
    double k = t + 0x1.8p52;
    double r = t - (k - 0x1.8p52);
    p = 0.0001535336187735481;
    p = p * r + 0.001339887442202703;
    p = p * r + 0.009618437357851256;
    p = p * r + 0.05550332471100982;
    p = p * r + 0.24022647913626344;
    p = p * r + 0.6931472028550821;
    p = p * r + 1.0;
    double z = p * nd_bits_double((nd_double_bits(k) + 1023) << 52);
    double c = fabs(b) < 0x1p53 ? fabs(b) : 0x1p53;
    double whole = c + 0x1p52;                       /* its last bit: odd */
    uint64_t minus = nd_double_bits(whole) & nd_double_bits((double)x) >> 63;
    z = nd_bits_double(nd_double_bits(z) | (minus & 1) << 63);
    bool real = x >= 0.0f || x == -INFINITY || whole - 0x1p52 == c;
    z = real ? z : (double)NAN;
    z = a == 1.0 && fabs(b) == (double)INFINITY ? 1.0 : z;
    z = x == 1.0f || y == 0.0f ? 1.0 : z;
    return (float)z;
}

/* sin(|x| + n pi / 2). |x| / 2 pi modulo 1 in 64 bits: the mantissa times 96
 * bits of 2 / pi, taken from where the exponent says that turns end. Exact
 * for every float, and the same work for all. Then a quarter of the circle and
 * what is left of it, r in [-pi / 4, pi / 4]. */
ND_INLINE float nd_wave(float x, uint32_t n)
{
    static const uint32_t two_over_pi[] = {
        0, 0xa2f9836e, 0x4e441529, 0xfc2757d1,
        0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};
    uint32_t u = nd_float_bits(x) & 0x7fffffffu;
    uint32_t v = u > 120u << 23 ? u : 120u << 23;
    uint32_t at = (v >> 23) - 120, j = at >> 5;
    uint64_t w0 = two_over_pi[j], w1 = two_over_pi[j + 1];
    uint64_t w2 = two_over_pi[j + 2], w3 = two_over_pi[j + 3];
    uint64_t m = (u & 0x7fffffu) | 0x800000u;
    w0 = (w0 << 32 | w1) << (at & 31) >> 32;
    w1 = (w1 << 32 | w2) << (at & 31) >> 32;
    w2 = (w2 << 32 | w3) << (at & 31) >> 32;
    uint64_t turn = (m * w0 << 32) + m * w1 + (m * w2 >> 32);
    uint64_t quarter = (turn + (1ull << 61)) >> 62;
    turn -= quarter << 62;
    double rest = (double)(int32_t)(turn >> 32) * 0x1p-32 +
                  (double)(int32_t)((uint32_t)turn >> 1) * 0x1p-63;
    bool small = u < 0x3f400000u;                               /* 0.75 */
    float r = small ? fabsf(x) : (float)(rest * 6.283185307179586);
    n += small ? 0 : (uint32_t)quarter;
    float q = r * r;
    float s = -0x1.994388p-13f;
    s = nd_fma(s, q, 0x1.11073ap-7f);
    s = nd_fma(s, q, -0x1.555546p-3f);
    s = nd_fma(s * q, r, r);
    float c = 0x1.99eb4ap-16f;
    c = nd_fma(c, q, -0x1.6c0c32p-10f);
    c = nd_fma(c, q, 0x1.55554ap-5f);
    c = nd_fma(c * q, q, nd_fma(-0.5f, q, 1.0f));
    float y = n & 1 ? c : s;
    y = nd_bits_float(nd_float_bits(y) ^ (n & 2) << 30);
    return x - x == 0.0f ? y : NAN;                     /* inf has no sine */
}

ND_INLINE float nd_sin(float x)
{
    uint32_t sign = nd_float_bits(x) & 0x80000000u;
    return nd_bits_float(nd_float_bits(nd_wave(x, 0)) ^ sign);
}

ND_INLINE float nd_cos(float x)
{
    return nd_wave(x, 1);
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

/* One loop for each half: what is asked to be vectors, gcc does not unroll into
 * numbers first. Files of other loops are compiled without such pragmas. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#define ND_HALF(to, from, n, type, combined) \
    for (int i = 0; i < n; i++) { \
        const type a = from[i], b = from[i + n]; \
        to[i] = combined; \
    }
#define ND_FOLD_16(name, type, combined) \
    static inline type name(const type *lane) \
    { \
        type x[8]; \
        _Pragma("omp simd") \
        ND_HALF(x, lane, 8, type, combined) \
        _Pragma("omp simd") \
        ND_HALF(x, x, 4, type, combined) \
        ND_HALF(x, x, 2, type, combined) \
        const type a = x[0], b = x[1]; \
        return combined; \
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
#pragma GCC diagnostic pop

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
