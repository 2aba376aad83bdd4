/* ndrt_small.h - small products by the calling thread, compiled with the
 * program that makes them, so for its processor: those of a tile, such as
 *
 *   s[64, 256] = q[64, 64] k[64, 256]
 *
 * A block of C, 4 rows of 4 vectors (of 2 without AVX-512), stays in registers
 * while k goes by: one element of A, in all lanes, times a row of B. So A may
 * have any strides. B is read where it lies if its rows are contiguous,
 * otherwise transposed by 64 x 64 elements first. bf16 is packed in pairs along
 * k where the processor multiplies pairs, or else widened.
 *
 * Every element of C adds up its products in order of k, whatever block it is
 * in: the bits depend neither on the compiler nor on the shape. A processor
 * that multiplies pairs adds up in pairs.
 */
#ifndef NDRT_SMALL_H
#define NDRT_SMALL_H

#include <ndrt.h>
#include <ndrt_math.h>

/* ---- vectors ----------------------------------------------------------- */

#if defined __AVX512F__
enum { ND_LANES = 16, ND_VECS = 4 };
#define ND_ALL_LANES(x) {ND_16(x)}
#define ND_REGISTER "v"
#elif defined __AVX__ && defined __FMA__
enum { ND_LANES = 8, ND_VECS = 2 };
#define ND_ALL_LANES(x) {x, x, x, x, x, x, x, x}
#define ND_REGISTER "x"
#else
enum { ND_LANES = 4, ND_VECS = 2 };
#define ND_ALL_LANES(x) {x, x, x, x}
#endif

#ifdef __AVX512BF16__
enum { ND_PAIRS = true };
#else
enum { ND_PAIRS = false };
#endif

typedef float nd_vec __attribute__((vector_size(4 * ND_LANES)));
typedef float nd_vec_at __attribute__((vector_size(4 * ND_LANES), aligned(4),
                                       may_alias));

/* c + a b, rounded once where the processor can. By name, as no notation for it
 * is known to all compilers, and their headers take long to read. */
ND_INLINE nd_vec nd_vec_fma(nd_vec c, nd_vec a, nd_vec b)
{
#ifdef ND_REGISTER
    __asm__("vfmadd231ps %2, %1, %0" : "+" ND_REGISTER(c)
            : ND_REGISTER(a), ND_REGISTER(b));
#else
    for (int l = 0; l < ND_LANES; l++)
        c[l] = nd_fma(a[l], b[l], c[l]);
#endif
    return c;
}

/* The same of two products a lane, of pairs of bf16. */
ND_INLINE nd_vec nd_vec_pairs(nd_vec c, nd_vec a, nd_vec b)
{
#ifdef __AVX512BF16__
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
#else
    return nd_vec_fma(c, a, b);
#endif
}

/* ---- a block of C ------------------------------------------------------ */

enum { ND_ROWS = 4, ND_STEPS = 64, ND_COLS = 64, ND_HEIGHT = 64 };

/* What of a product lies in the caches: `steps` elements of k, or pairs of
 * them. Strides of A are in bytes, those of B and C in elements. */
typedef struct nd_panel {
    bool add;
    int64_t steps;
    const char *a;
    int64_t a_r, a_c;
    const float *b;
    int64_t b_r;
    float *c;
    int64_t c_r;
} nd_panel;

ND_INLINE void nd_block(int rows, int vecs, bool pairs, const nd_panel *p)
{
    nd_vec x[ND_ROWS][ND_VECS] = {0};
    for (int i = 0; p->add && i < rows; i++)
        for (int j = 0; j < vecs; j++)
            x[i][j] = *(const nd_vec_at *)(p->c + i * p->c_r + j * ND_LANES);
    const char *a = p->a;
    const float *b = p->b;
    for (int64_t k = 0; k < p->steps; k++) {
        nd_vec y[ND_VECS];
        for (int j = 0; j < vecs; j++)
            y[j] = *(const nd_vec_at *)(b + j * ND_LANES);
        for (int i = 0; i < rows; i++) {
            float e;
            memcpy(&e, a + i * p->a_r, sizeof e);
            const nd_vec all = ND_ALL_LANES(e);
            for (int j = 0; j < vecs; j++)
                x[i][j] = pairs ? nd_vec_pairs(x[i][j], all, y[j])
                                : nd_vec_fma(x[i][j], all, y[j]);
        }
        a += p->a_c;
        b += p->b_r;
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vecs; j++)
            *(nd_vec_at *)(p->c + i * p->c_r + j * ND_LANES) = x[i][j];
}

ND_INLINE void nd_block_rows(int vecs, bool pairs, int64_t m, nd_panel p)
{
    for (; m >= ND_ROWS; m -= ND_ROWS) {
        nd_block(ND_ROWS, vecs, pairs, &p);
        p.a += ND_ROWS * p.a_r;
        p.c += ND_ROWS * p.c_r;
    }
    for (; m > 0; m--) {
        nd_block(1, vecs, pairs, &p);
        p.a += p.a_r;
        p.c += p.c_r;
    }
}

/* m rows of ND_VECS vectors or of one. Compiled once each. */
#define ND_BLOCKS(name, vecs, pairs) \
    static __attribute__((noinline, unused)) \
    void name(int64_t m, nd_panel p) \
    { \
        nd_block_rows(vecs, pairs, m, p); \
    }
ND_BLOCKS(nd_wide_floats, ND_VECS, false)
ND_BLOCKS(nd_narrow_floats, 1, false)
ND_BLOCKS(nd_wide_pairs, ND_VECS, true)
ND_BLOCKS(nd_narrow_pairs, 1, true)

/* n columns, fewer than a vector has: beside themselves. Rare, and so compiled
 * for size, which takes a compiler less time. */
static __attribute__((cold, noinline, unused))
void nd_tail(bool pairs, int64_t m, int64_t n, nd_panel p)
{
    float b[ND_STEPS][ND_LANES], c[ND_HEIGHT][ND_LANES];
    nd_panel q = p;
    q.b = &b[0][0];
    q.c = &c[0][0];
    q.b_r = q.c_r = ND_LANES;
    memset(b, 0, sizeof b);
    memset(c, 0, sizeof c);
    for (int64_t k = 0; k < p.steps; k++)
        memcpy(b[k], p.b + k * p.b_r, (size_t)n * sizeof(float));
    for (int64_t i = 0; p.add && i < m; i++)
        memcpy(c[i], p.c + i * p.c_r, (size_t)n * sizeof(float));
    (pairs ? nd_narrow_pairs : nd_narrow_floats)(m, q);
    for (int64_t i = 0; i < m; i++)
        memcpy(p.c + i * p.c_r, c[i], (size_t)n * sizeof(float));
}

/* At most ND_HEIGHT rows, n columns. */
ND_INLINE void nd_panel_product(bool pairs, int64_t m, int64_t n, nd_panel p)
{
    while (n >= ND_LANES) {
        bool wide = n >= ND_VECS * ND_LANES;
        int64_t cols = wide ? ND_VECS * ND_LANES : ND_LANES;
        if (wide)
            (pairs ? nd_wide_pairs : nd_wide_floats)(m, p);
        else
            (pairs ? nd_narrow_pairs : nd_narrow_floats)(m, p);
        p.b += cols;
        p.c += cols;
        n -= cols;
    }
    if (n)
        nd_tail(pairs, m, n, p);
}

/* ---- packing ----------------------------------------------------------- */

typedef float nd_pack[ND_STEPS][ND_COLS];

/* What of a matrix is beyond k and j. */
static __attribute__((cold, noinline, unused))
void nd_transpose_rest(nd_pack to, int64_t steps, int64_t n, int64_t k,
                       int64_t j, const char *x, int64_t step)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t l = i < j ? k : 0; l < steps; l++)
            memcpy(&to[l][i], x + i * step + 4 * l, 4);
}

/* to[k][j] = element k of row j, each of 4 bytes; rows are `step` bytes apart.
 * 4 elements of 8 rows at a time, where there are as many: rows 0 to 3 in the
 * lower half of vectors, 4 to 7 in the upper. */
static __attribute__((noinline, unused))
void nd_transpose(nd_pack to, int64_t steps, int64_t n, const char *x,
                  int64_t step)
{
    int64_t steps4 = 0, n8 = 0;
#if defined __clang__ || __GNUC__ >= 12      /* they know how to shuffle */
    typedef float four __attribute__((vector_size(16), aligned(2), may_alias));
    typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
#define ND_BOTH(i) \
    __builtin_shufflevector(*(const four *)(row + (i) * step), \
                            *(const four *)(row + (i + 4) * step), \
                            0, 1, 2, 3, 4, 5, 6, 7)
#define ND_PUT(i, a, b, ...) \
    *(eight *)&to[k + i][j] = __builtin_shufflevector(a, b, __VA_ARGS__)
    steps4 = steps / 4 * 4;
    n8 = n / 8 * 8;
    for (int64_t j = 0; j < n8; j += 8) {
        const char *row = x + j * step;
        for (int64_t k = 0; k < steps4; k += 4, row += 16) {
            const eight a = ND_BOTH(0), b = ND_BOTH(1);
            const eight c = ND_BOTH(2), d = ND_BOTH(3);
            const eight ab =
                __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
            const eight cd =
                __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13);
            ND_PUT(0, ab, cd, 0, 1, 8, 9, 4, 5, 12, 13);
            ND_PUT(1, ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
            const eight ab2 =
                __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
            const eight cd2 =
                __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
            ND_PUT(2, ab2, cd2, 0, 1, 8, 9, 4, 5, 12, 13);
            ND_PUT(3, ab2, cd2, 2, 3, 10, 11, 6, 7, 14, 15);
        }
    }
#undef ND_BOTH
#undef ND_PUT
#endif
    if (steps4 < steps || n8 < n)
        nd_transpose_rest(to, steps, n, steps4, n8, x, step);
}

/* ---- floats ------------------------------------------------------------ */

/* Smaller ones are over before this begins, larger ones are a library's; a
 * column has no vectors, and few rows do not pay for a transposition. */
static inline bool nd_is_small(int64_t m, int64_t n, int64_t k, int64_t b_r,
                               int64_t b_c, int64_t c_c)
{
    enum { LEAST = 1 << 10, MOST = 1 << 26, LEAST_ROWS = 8 };
    return m * n * k > LEAST && m * n * k <= MOST && n > 1 && c_c == 1 &&
           (b_c == 1 || (b_r == 1 && m >= LEAST_ROWS));
}

/* ndrt_gemm_own, or false: it is none for this. */
static inline bool nd_small(bool acc, int64_t m, int64_t n, int64_t k,
                            const float *a, int64_t a_r, int64_t a_c,
                            const float *b, int64_t b_r, int64_t b_c,
                            float *c, int64_t c_r, int64_t c_c)
{
    nd_pack turned;
    if (!nd_is_small(m, n, k, b_r, b_c, c_c))
        return false;
    for (int64_t j = 0; j < n; j += ND_COLS) {
        int64_t cols = ndrt_clip(n - j, 0, ND_COLS);
        for (int64_t l = 0; l < k; l += ND_STEPS) {
            const float *from = b + l * b_r + j * b_c;
            nd_panel p = {
                .add = acc || l, .steps = ndrt_clip(k - l, 0, ND_STEPS),
                .a_r = 4 * a_r, .a_c = 4 * a_c, .b = from, .b_r = b_r,
                .c_r = c_r};
            if (b_c != 1) {
                nd_transpose(turned, p.steps, cols, (const char *)from,
                             4 * b_c);
                p.b = &turned[0][0];
                p.b_r = ND_COLS;
            }
            for (int64_t i = 0; i < m; i += ND_HEIGHT) {
                p.a = (const char *)(a + i * a_r + l * a_c);
                p.c = c + i * c_r + j;
                nd_panel_product(false, ndrt_clip(m - i, 0, ND_HEIGHT), cols,
                                 p);
            }
        }
    }
    return true;
}

/* ---- bf16 -------------------------------------------------------------- */

typedef struct nd_words {            /* of 4 bytes; strides in bytes */
    const char *x;
    int64_t r, c;
} nd_words;

/* A word holds two elements along k, the first in its low half, or one that is
 * widened. Of n rows with k contiguous elements each, where they are or in
 * `room`, rows of ND_STEPS. */
static __attribute__((noinline, unused))
nd_words nd_rows_of_words(float *room, int64_t n, int64_t k, const nd_bf16 *x,
                          int64_t step)
{
    if (ND_PAIRS && k % 2 == 0)
        return (nd_words){(const char *)x, 2 * step, 4};
    for (int64_t i = 0; i < n; i++) {
        float *to = room + i * ND_STEPS;
        const nd_bf16 *row = x + i * step;
        if (ND_PAIRS) {
            to[k / 2] = 0.0f;
            memcpy(to, row, (size_t)k * sizeof *row);
        }
        for (int64_t l = 0; !ND_PAIRS && l < k; l++)
            to[l] = nd_from_bf16(row[l]);
    }
    return (nd_words){(const char *)room, 4 * ND_STEPS, 4};
}

/* The same of k rows of n contiguous elements each: room[word][n], rows of
 * `width`. */
static __attribute__((noinline, unused))
void nd_columns_of_words(float *room, int64_t width, int64_t n, int64_t k,
                         const nd_bf16 *x, int64_t step)
{
    int64_t each = ND_PAIRS ? 2 : 1;
    for (int64_t l = 0; l < k; l += each) {
        float *to = room + l / each * width;
        const nd_bf16 *low = x + l * step, *high = low + step;
        if (ND_PAIRS && l + 1 < k)
            for (int64_t j = 0; j < n; j++)
                to[j] = nd_bits_float(low[j] | (uint32_t)high[j] << 16);
        else if (ND_PAIRS)
            for (int64_t j = 0; j < n; j++)
                to[j] = nd_bits_float(low[j]);
        else
            for (int64_t j = 0; j < n; j++)
                to[j] = nd_from_bf16(low[j]);
    }
}

/* ndrt_gemm_bf16_own, or false. */
static inline bool nd_small_bf16(bool acc, int64_t m, int64_t n, int64_t k,
                                 const nd_bf16 *a, int64_t a_r, int64_t a_c,
                                 const nd_bf16 *b, int64_t b_r, int64_t b_c,
                                 float *c, int64_t c_r, int64_t c_c)
{
    int64_t each = ND_PAIRS ? 2 : 1;
    float of_a[ND_HEIGHT * ND_STEPS];
    nd_pack of_b, turned;
    if (!nd_is_small(m, n, k, b_r, b_c, c_c) || (a_r != 1 && a_c != 1))
        return false;
    for (int64_t j = 0; j < n; j += ND_COLS) {
        int64_t cols = ndrt_clip(n - j, 0, ND_COLS);
        for (int64_t l = 0; l < k; l += each * ND_STEPS) {
            int64_t part = ndrt_clip(k - l, 0, each * ND_STEPS);
            const nd_bf16 *from = b + l * b_r + j * b_c;
            nd_panel p = {
                .add = acc || l, .steps = (part + each - 1) / each,
                .b = &of_b[0][0], .b_r = ND_COLS, .c_r = c_r};
            if (b_c == 1) {
                nd_columns_of_words(of_b[0], ND_COLS, cols, part, from, b_r);
            } else {
                nd_words w = nd_rows_of_words(turned[0], cols, part, from, b_c);
                nd_transpose(of_b, p.steps, cols, w.x, w.r);
            }
            for (int64_t i = 0; i < m; i += ND_HEIGHT) {
                int64_t rows = ndrt_clip(m - i, 0, ND_HEIGHT);
                const nd_bf16 *x = a + i * a_r + l * a_c;
                nd_words w = {(const char *)of_a, 4, 4 * ND_HEIGHT};
                if (a_c == 1)
                    w = nd_rows_of_words(of_a, rows, part, x, a_r);
                else
                    nd_columns_of_words(of_a, ND_HEIGHT, rows, part, x, a_c);
                p.a = w.x;
                p.a_r = w.r;
                p.a_c = w.c;
                p.c = c + i * c_r + j;
                nd_panel_product(ND_PAIRS, rows, cols, p);
            }
        }
    }
    return true;
}

#endif
