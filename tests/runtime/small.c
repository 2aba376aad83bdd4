/* small.c - the products of ndrt_small.h against loops in double: odd sizes,
 * all orders of both operands, set and added to, f32 and bf16; what lies
 * between the rows of C stays. Each element has the same bits when it is
 * computed in a product of fewer rows and columns. Prints a sum of all bits of
 * either kind: small.sh compares compilers and processors.
 */
#include "ndrt_small.h"

#include <stdio.h>
#include <stdlib.h>

enum { GAP = 3, MOST = 150 };

typedef struct matrix {
    float x[MOST * MOST];
    nd_bf16 narrow[MOST * MOST];
    int64_t r, c, n;
} matrix;

static matrix a, b, c, d;
static uint64_t bits[2];             /* of f32 and of bf16 */

static void fill(matrix *m, int64_t rows, int64_t cols, bool turned,
                 bool narrow, unsigned seed)
{
    m->n = (rows + GAP) * (cols + GAP);
    for (int64_t i = 0; i < m->n; i++) {
        seed = seed * 1664525u + 1013904223u;
        m->x[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
        m->narrow[i] = nd_to_bf16(m->x[i]);
        if (narrow)
            m->x[i] = nd_from_bf16(m->narrow[i]);
    }
    m->r = turned ? 1 : cols + GAP;
    m->c = turned ? rows + GAP : 1;
}

static bool multiply(bool narrow, bool acc, int64_t m, int64_t n, int64_t k,
                     int64_t i, int64_t j, matrix *to)
{
    int64_t x = i * a.r, y = j * b.c, z = i * to->r + j;
    return narrow ? nd_small_bf16(acc, m, n, k, a.narrow + x, a.r, a.c,
                                  b.narrow + y, b.r, b.c, to->x + z, to->r, 1)
                  : nd_small(acc, m, n, k, a.x + x, a.r, a.c, b.x + y, b.r,
                             b.c, to->x + z, to->r, 1);
}

static bool is_right(bool acc, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float *z = &d.x[i * d.r + j];
            double s = acc ? (double)*z : 0.0;
            for (int64_t l = 0; l < k; l++)
                s += (double)a.x[i * a.r + l * a.c] *
                     (double)b.x[l * b.r + j * b.c];
            *z = (float)s;
        }
    for (int64_t i = 0; i < c.n; i++)
        if (fabsf(c.x[i] - d.x[i]) > 1e-6f * (float)(k + 10))
            return false;
    return true;
}

/* The last rows and columns once more, on their own. */
static bool is_same_in_part(bool narrow, bool acc, int64_t m, int64_t n,
                            int64_t k)
{
    int64_t i = m / 3, j = n / 3;
    fill(&d, m, n, false, false, 3);
    if (!multiply(narrow, acc, m - i, n - j, k, i, j, &d))
        return true;
    for (int64_t p = i; p < m; p++)
        if (memcmp(&c.x[p * c.r + j], &d.x[p * d.r + j],
                   (size_t)(n - j) * sizeof(float)))
            return false;
    return true;
}

static int check(bool narrow, int64_t m, int64_t n, int64_t k, int how)
{
    bool acc = how & 1, done;
    fill(&a, m, k, how & 2, narrow, 1);
    fill(&b, k, n, how & 4, narrow, 2);
    fill(&c, m, n, false, false, 3);
    fill(&d, m, n, false, false, 3);
    done = multiply(narrow, acc, m, n, k, 0, 0, &c);
    if (!done) {
        if (m * n * k <= 1024 || n == 1 || (b.c != 1 && m < 8))
            return 0;
        printf("%d x %d x %d, %d: not done\n", (int)m, (int)n, (int)k, how);
        return 1;
    }
    for (int64_t i = 0; i < c.n; i++)
        bits[narrow] = bits[narrow] * 31 + nd_float_bits(c.x[i]);
    bool right = is_right(acc, m, n, k);
    if (right && is_same_in_part(narrow, acc, m, n, k))
        return 0;
    printf("%s, %d x %d x %d, %d: %s\n", narrow ? "bf16" : "f32", (int)m,
           (int)n, (int)k, how, right ? "other bits in part" : "wrong");
    return 1;
}

int main(void)
{
    static const int64_t size[] = {1, 5, 61, 64, 65, 130};
    enum { N = sizeof size / sizeof *size };
    int bad = 0;
    for (int i = 0; i < N * N * N; i++)
        for (int how = 0; how < 8; how++)
            for (int narrow = 0; narrow < 2; narrow++)
                bad += check(narrow, size[i / N / N], size[i / N % N],
                             size[i % N], how);
    printf("%016llx %016llx\n", (unsigned long long)bits[0],
           (unsigned long long)bits[1]);
    return bad != 0;
}
