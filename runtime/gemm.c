/* gemm.c - ndrt_gemm: any strides in, a library call or a plain loop out.
 *
 * Libraries want row-major C and operands with one stride of 1. If C is stored
 * the other way round, C' = B' A' is computed instead. What remains (odd
 * strides, tiny products that are over before a library call begins) goes
 * through a loop.
 *
 * A product is cut in pieces, rows or columns of C, which the threads share
 * out:
 *
 *   2048 x 384   16 pieces of 128 rows: of two threads, each has 8
 *
 * Some libraries are slow where B is stored transposed. They get it turned
 * around, some rows at a time, in a buffer that the threads share.
 *
 * A library may add up in another order where a product has another shape. So
 * the pieces are the same for any number of threads; those of one thread become
 * one call only where the library is known to give the same bits.
 */
#include "ndrt_internal.h"

#include <dlfcn.h>
#include <string.h>

/* ---- threads ---------------------------------------------------------- */

/* All that a rank holds fits into the cache of one CPU. Its loops would be over
 * before others had joined in. */
enum { SMALL_ARENA = 2 << 20 };

static bool is_small(const ndrt_course *c)
{
    for (int d = 0; d < c->program.ndevices; d++)
        if (ndrt_arena_bytes(c, d) > SMALL_ARENA)
            return false;
    return true;
}

int ndrt_threads(const ndrt_rank *r)
{
    const ndrt_state *st = r->state;
    int64_t asked = st->config->threads;
    int cpus = st->comm->cpus;

    if (asked > 0)
        return (int)asked;
    return cpus < 2 || is_small(st->course) ? 1 : cpus;
}

/* Found at run time: a library may be built without OpenMP, and OpenBLAS has a
 * pool of its own. OpenMP's number is one of the calling thread. */
void ndrt_set_threads(void)
{
    static const char *const names[] = {"omp_set_num_threads",
                                        "openblas_set_num_threads"};

    for (int i = 0; i < 2; i++) {
        void *f = dlsym(RTLD_DEFAULT, names[i]);
        void (*set)(int);
        if (!f)
            continue;
        memcpy(&set, &f, sizeof set);
        set(1);
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

/* ---- pieces ------------------------------------------------------------ */

/* What a piece has at least, and how many there are at most. 2^20
 * multiplications take about as long as ten barriers. */
enum { ROWS = 64, COLS = 96, WORK = 1 << 20, PIECES = 16 };

enum { LINE = 16 };               /* floats of a cache line */

typedef struct cut {
    bool rows;                    /* of C; or columns */
    int64_t all, unit;            /* rows; pieces begin at multiples of it */
    int64_t n;                    /* pieces */
} cut;

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static cut cut_up(const ndrt_mm_key *key)
{
    bool rows = key->m / ROWS >= key->n / COLS;
    cut c = {rows, rows ? key->m : key->n, rows ? ROWS : COLS, 1};
    int64_t n = min(c.all / c.unit, key->m * key->n * key->k / WORK);

    c.n = n < 1 ? 1 : min(n, PIECES);
    return c;
}

/* Where piece i begins. The last one has what is left. */
static int64_t begin(const cut *c, int64_t i)
{
    return i == c->n ? c->all : c->all / c->unit * i / c->n * c->unit;
}

static ndrt_mm_key part_of(const ndrt_mm_key *key, const cut *c, int64_t n)
{
    ndrt_mm_key part = *key;

    *(c->rows ? &part.m : &part.n) = n;
    part.in_order = c->n > 1 && (key->ta || !c->rows);
    return part;
}

static void run_part(ndrt_rank *r, const ndrt_mm_key *key, const cut *c,
                     ndrt_span at, const char *a, const char *b, float *to)
{
    ndrt_mm_key part = part_of(key, c, at.to - at.from);
    size_t width = key->bf16 ? sizeof(uint16_t) : sizeof(float);

    if (c->rows) {
        a += (size_t)(at.from * (key->ta ? 1 : key->lda)) * width;
        to += at.from * key->ldc;
    } else {
        b += (size_t)(at.from * (key->tb ? key->ldb : 1)) * width;
        to += at.from;
    }
    if (ndrt_mm_run(r, &part, a, b, to) != NDRT_OK)
        ndrt_raise(r);
}

static void run_share(ndrt_rank *r, const ndrt_mm_key *key, const cut *how,
                      const void *a, const void *b, float *c)
{
    ndrt_span mine = ndrt_share(r, how->n, 1);
    int64_t step = ndrt_mm_merges(key) ? mine.to - mine.from : 1;

    for (int64_t i = mine.from; i < mine.to; i += step) {
        ndrt_span at = {begin(how, i), begin(how, i + step)};
        run_part(r, key, how, at, a, b, c);
    }
}

bool ndrt_mm_has_parts(ndrt_rank *r, const ndrt_mm_key *key)
{
    cut how = cut_up(key);
    ndrt_rank any = *r;           /* each thread of the team by turns */
    int64_t asked = -1;

    for (any.thread = 0; any.thread < r->nthreads; any.thread++) {
        ndrt_span s = ndrt_share(&any, how.n, 1);
        int64_t step = ndrt_mm_merges(key) ? s.to - s.from : 1;
        for (int64_t i = s.from; i < s.to; i += step) {
            int64_t n = begin(&how, i + step) - begin(&how, i);
            ndrt_mm_key part = part_of(key, &how, n);
            if (n != asked && !ndrt_mm_has_bf16(r, &part))
                return false;
            asked = n;
        }
    }
    return true;
}

/* A row of turned numbers, in floats: whole cache lines, and the 16 that a
 * block touches at a time do not compete for the same place in a cache. */
static int64_t turned_row(int64_t n)
{
    return ((n + LINE - 1) / LINE | 1) * LINE;
}

/* B, which is stored transposed, is turned in two halves of a buffer by turns:
 * while one thread still multiplies by rows of one half, others turn the next
 * ones in the other half. */
static void share_turned(ndrt_rank *r, const ndrt_mm_key *key, const cut *how,
                         int64_t rows, const float *a, const float *b,
                         float *c)
{
    ndrt_mm_key part = *key;
    int64_t row = turned_row(key->n);
    float *half[2];

    half[0] = ndrt_buffer_of(r, NDRT_TURNED, 2 * rows * row);
    half[1] = half[0] + rows * row;
    part.tb = false;
    part.ldb = row;
    for (int64_t i = 0, turn = 0; i < key->k; i += rows, turn ^= 1) {
        part.k = min(rows, key->k - i);
        ndrt_span s = ndrt_share(r, part.k, LINE);
        ndrt_turn(half[turn] + s.from * row, row, b + i + s.from, key->ldb,
                  key->n, s.to - s.from);
        ndrt_barrier(r);
        run_share(r, &part, how, a + i, half[turn], c);
        part.acc = true;
    }
}

void ndrt_mm_share(ndrt_rank *r, const ndrt_mm_key *key, const void *a,
                   const void *b, float *c)
{
    cut how = cut_up(key);
    int64_t turns = ndrt_mm_turns(key);

    if (turns)
        share_turned(r, key, &how, turns, a, b, c);
    else
        run_share(r, key, &how, a, b, c);
    ndrt_barrier(r);
}

/* ---- products ---------------------------------------------------------- */

/* Each thread computes some rows of C, or columns if there are more of them. */
static void share_loop(ndrt_rank *r, bool acc, ndrt_matrix a, ndrt_matrix b,
                       float *c, int64_t c_r, int64_t c_c)
{
    bool rows = a.rows >= b.cols;
    ndrt_span s = ndrt_share(r, rows ? a.rows : b.cols, 1);

    if (rows) {
        a.x = (const float *)a.x + s.from * a.r;
        a.rows = s.to - s.from;
        c += s.from * c_r;
    } else {
        b.x = (const float *)b.x + s.from * b.c;
        b.cols = s.to - s.from;
        c += s.from * c_c;
    }
    plain_rows(acc, &a, &b, c, c_r, c_c);
    ndrt_barrier(r);
}

void ndrt_gemm(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
               const float *a, int64_t a_r, int64_t a_c,
               const float *b, int64_t b_r, int64_t b_c,
               float *c, int64_t c_r, int64_t c_c)
{
    ndrt_matrix x = {a, m, k, a_r, a_c}, y = {b, k, n, b_r, b_c};
    ndrt_matrix z = {c, m, n, c_r, c_c};

    if (m == 0 || n == 0)
        return;
    ndrt_note_product(r, NDRT_W32, false, acc, &x, &y, &z);
    ndrt_gemm_noted(r, acc, m, n, k, a, a_r, a_c, b, b_r, b_c, c, c_r, c_c);
}

void ndrt_gemm_noted(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
                     const float *a, int64_t a_r, int64_t a_c,
                     const float *b, int64_t b_r, int64_t b_c,
                     float *c, int64_t c_r, int64_t c_c)
{
    ndrt_matrix x = {a, m, k, a_r, a_c}, y = {b, k, n, b_r, b_c};
    ndrt_matrix z = {c, m, n, c_r, c_c};
    ndrt_mm_key key = {.acc = acc};
    bool library = ndrt_mm_arrange(&x, &y, &z, &key);
    if (library) {
        ndrt_mm_share(r, &key, x.x, y.x, c);
    } else if (k > 0 && x.rows * y.cols * k > SMALL) {
        share_loop(r, acc, x, y, c, z.r, z.c);
    } else {
        if (r->thread == 0 || r->nthreads <= 1)
            plain(acc, &x, &y, c, z.r, z.c);
        ndrt_barrier(r);
    }
}

void ndrt_gemm_own(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
                   const float *a, int64_t a_r, int64_t a_c,
                   const float *b, int64_t b_r, int64_t b_c,
                   float *c, int64_t c_r, int64_t c_c)
{
    ndrt_matrix x = {a, m, k, a_r, a_c}, y = {b, k, n, b_r, b_c};
    ndrt_matrix z = {c, m, n, c_r, c_c};
    ndrt_small *small = r->program->small;

    if (m == 0 || n == 0)
        return;
    ndrt_note_product(r, NDRT_W32, true, acc, &x, &y, &z);
    if (small && small(acc, m, n, k, a, a_r, a_c, b, b_r, b_c, c, c_r, c_c))
        return;
    ndrt_rank one = ndrt_without_team(r);
    ndrt_gemm_noted(&one, acc, m, n, k, a, a_r, a_c, b, b_r, b_c, c, c_r, c_c);
}
