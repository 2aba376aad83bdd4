/* experts.c - products in which each row chooses its matrix.
 *
 * The rows are counted by group and listed group after group, in their own
 * order inside one. Then each group multiplies its rows, a block at a time:
 *
 *   id = 2 0 2 1   ->   begin = 0 1 2 4, at = rows 1 | 3 | 0 2
 *
 * A full block whose rows lie at equal steps is taken as it lies; any other is
 * packed, up to a multiple of ROUND rows of which the last may be zeros. So a
 * library sees few shapes, however many rows a group has. The first thread
 * sorts; all of them share out the rows of a block and its product.
 */
#include "ndrt_internal.h"
#include "ndrt_math.h"

#include <string.h>

enum { BLOCK = 256, ROUND = 16 };    /* groups.c knows BLOCK */

typedef struct at {                   /* where a row lies */
    int64_t x, y;
} at;

typedef struct job {
    ndrt_rank *r;
    const ndrt_groups *g;
    size_t width;                     /* bytes of an element of x */
    int64_t *begin;                   /* by group; the last one: the end */
    at *rows;
    char *x, *y;                      /* a packed block of each */
} job;

/* ---- rows by group ---------------------------------------------------- */

void *ndrt_take(char **room, size_t bytes)
{
    void *p = *room;

    *room += (bytes + 63) / 64 * 64;
    return p;
}

int64_t ndrt_count_rows(const ndrt_rows *rows)
{
    int64_t n = 1;

    for (int i = 0; i < rows->n; i++)
        n *= rows->len[i];
    return n;
}

void ndrt_next_row(const ndrt_rows *rows, ndrt_row_step *s)
{
    for (int k = rows->n - 1; k >= 0; k--) {
        s->x += rows->x[k];
        s->y += rows->y[k];
        s->id += rows->id[k];
        if (++s->i[k] < rows->len[k])
            return;
        s->x -= rows->x[k] * rows->len[k];
        s->y -= rows->y[k] * rows->len[k];
        s->id -= rows->id[k] * rows->len[k];
        s->i[k] = 0;
    }
}

/* The group of an id among those held here, or -1. */
static int64_t group_of(const ndrt_groups *g, int32_t id)
{
    int64_t k = (int64_t)id - g->first;

    return k >= 0 && k < g->n ? k : -1;
}

static void sort_rows(const job *j, const ndrt_rows *rows, const int32_t *id)
{
    const ndrt_groups *g = j->g;
    int64_t n = ndrt_count_rows(rows);
    ndrt_row_step s = {{0}, 0, 0, 0};

    memset(j->begin, 0, (size_t)(g->n + 2) * sizeof *j->begin);
    for (int64_t i = 0; i < n; i++, ndrt_next_row(rows, &s)) {
        int64_t k = group_of(g, id[s.id]);
        if (k >= 0)
            j->begin[k + 2]++;
    }
    for (int64_t k = 0; k < g->n; k++)
        j->begin[k + 2] += j->begin[k + 1];
    s = (ndrt_row_step){{0}, 0, 0, 0};
    for (int64_t i = 0; i < n; i++, ndrt_next_row(rows, &s)) {
        int64_t k = group_of(g, id[s.id]);
        if (k >= 0)
            j->rows[j->begin[k + 1]++] = (at){s.x, s.y};
    }
}

static job start(ndrt_rank *r, const ndrt_rows *rows, const ndrt_groups *g,
                 size_t y_width, const int32_t *id)
{
    const ndrt_device *st = ndrt_here(r);
    char *room = r->arena + st->scratch;
    size_t width = g->width == NDRT_W32 ? 4 : 2;
    job j = {.r = r, .g = g, .width = width};

    j.begin = ndrt_take(&room, (size_t)(g->n + 2) * sizeof *j.begin);
    j.rows = ndrt_take(&room, (size_t)ndrt_count_rows(rows) * sizeof *j.rows);
    j.x = ndrt_take(&room, (size_t)(BLOCK * g->in) * width);
    j.y = ndrt_take(&room, (size_t)(BLOCK * g->out) * y_width);
    if ((size_t)(room - r->arena) > st->scratch + st->scratch_bytes) {
        ndrt_fail(r, NDRT_EINTERNAL, "a product by groups needs more room "
                  "than was planned");
        ndrt_raise(r);
    }
    if (r->thread == 0)
        sort_rows(&j, rows, id);
    ndrt_barrier(r);
    return j;
}

/* ---- blocks of rows --------------------------------------------------- */

static bool even(const at *rows, int64_t n, bool y)
{
    for (int64_t i = 2; i < n; i++)
        if (y ? rows[i].y - rows[i - 1].y != rows[1].y - rows[0].y
              : rows[i].x - rows[i - 1].x != rows[1].x - rows[0].x)
            return false;
    return true;
}

static int64_t rounded(int64_t n)
{
    return (n + ROUND - 1) / ROUND * ROUND;
}

/* n rows of `len` elements of `width` bytes, `by` apart, packed; then rows of
 * zeros. The caller sees to it that all threads have. */
static void pack(const job *j, char *packed, const char *from, const at *rows,
                 int64_t n, bool y, int64_t len, int64_t by)
{
    const size_t width = j->width;
    ndrt_span s = ndrt_share(j->r, rounded(n), 1);

    for (int64_t i = s.from; i < s.to; i++) {
        char *to = packed + (size_t)(i * len) * width;
        if (i >= n) {
            memset(to, 0, (size_t)len * width);
            continue;
        }
        const char *x = from + (size_t)(y ? rows[i].y : rows[i].x) * width;
        if (by == 1)
            memcpy(to, x, (size_t)len * width);
        for (int64_t k = 0; k < len && by != 1; k++)
            memcpy(to + (size_t)k * width, x + (size_t)(k * by) * width,
                   width);
    }
}

/* A matrix of rows: some that lie at equal steps, or packed ones. */
typedef struct block {
    char *x;
    int64_t row, col;
} block;

static block lies(char *x, const at *rows, bool y, int64_t by, size_t width)
{
    int64_t first = y ? rows[0].y : rows[0].x;
    int64_t second = y ? rows[1].y : rows[1].x;

    return (block){x + (size_t)first * width, second - first, by};
}

static void multiply(const job *j, bool acc, int64_t m, int64_t n, int64_t k,
                     block a, block b, block c)
{
    float *to = (float *)(void *)c.x;
    const void *x = a.x, *y = b.x;

    if (j->g->width == NDRT_W32)
        ndrt_gemm(j->r, acc, m, n, k, x, a.row, a.col, y, b.row, b.col, to,
                  c.row, c.col);
    else if (j->g->width == NDRT_WBF16)
        ndrt_gemm_bf16(j->r, acc, m, n, k, x, a.row, a.col, y, b.row, b.col,
                       to, c.row, c.col);
    else
        ndrt_gemm_f16(j->r, acc, m, n, k, x, a.row, a.col, y, b.row, b.col,
                      to, c.row, c.col);
}

/* ---- y = x w ---------------------------------------------------------- */

static void unpack(const job *j, float *y, const at *rows, int64_t n,
                   int64_t len, int64_t by)
{
    ndrt_span s = ndrt_share(j->r, n, 1);

    for (int64_t i = s.from; i < s.to; i++) {
        const float *from = (const float *)(const void *)j->y + i * len;
        float *to = y + rows[i].y;
        if (by == 1)
            memcpy(to, from, (size_t)len * sizeof *to);
        for (int64_t k = 0; k < len && by != 1; k++)
            to[k * by] = from[k];
    }
    ndrt_barrier(j->r);
}

static void product(job *j, const at *rows, int64_t n, char *x, block w,
                    float *y)
{
    const ndrt_groups *g = j->g;
    bool full = n == BLOCK, there = full && even(rows, n, true);
    int64_t m = full ? n : rounded(n);
    block a = {j->x, g->in, 1}, c = {j->y, g->out, 1};

    if (full && even(rows, n, false)) {
        a = lies(x, rows, false, g->x_i, j->width);
    } else {
        pack(j, j->x, x, rows, n, false, g->in, g->x_i);
        ndrt_barrier(j->r);
    }
    if (there)
        c = lies((char *)y, rows, true, g->y_o, sizeof *y);
    multiply(j, false, m, g->out, g->in, a, w, c);
    if (!there)
        unpack(j, y, rows, n, g->out, g->y_o);
}

/* Rows of no group here. */
static void clear(const ndrt_rank *r, const ndrt_rows *rows,
                  const ndrt_groups *g, const int32_t *id, float *y)
{
    ndrt_span mine = ndrt_share(r, ndrt_count_rows(rows), 1);
    ndrt_row_step s = {{0}, 0, 0, 0};

    for (int64_t i = 0; i < mine.to; i++, ndrt_next_row(rows, &s))
        for (int64_t k = 0; k < g->out && i >= mine.from &&
                            group_of(g, id[s.id]) < 0; k++)
            y[s.y + k * g->y_o] = 0;
}

void ndrt_grouped(ndrt_rank *r, const ndrt_rows *rows, const ndrt_groups *g,
                  const void *x, const void *w, const int32_t *id, float *y)
{
    if (ndrt_count_rows(rows) == 0 || g->out == 0)
        return;
    job j = start(r, rows, g, sizeof *y, id);
    clear(r, rows, g, id, y);
    for (int64_t k = 0; k < g->n; k++) {
        block b = {(char *)w + (size_t)(k * g->w_k) * j.width, g->w_i, g->w_o};
        for (int64_t i = j.begin[k]; i < j.begin[k + 1]; i += BLOCK) {
            int64_t n = j.begin[k + 1] - i;
            product(&j, j.rows + i, n < BLOCK ? n : BLOCK, (char *)x, b, y);
        }
    }
    ndrt_barrier(r);
}

/* ---- w = x' y --------------------------------------------------------- */

static block rows_of(const job *j, const at *rows, int64_t n, char *x, bool y,
                     char *packed, int64_t len, int64_t by)
{
    if (n == BLOCK && even(rows, n, y))
        return lies(x, rows, y, by, j->width);
    pack(j, packed, x, rows, n, y, len, by);
    return (block){packed, len, 1};
}

static void clear_sum(const job *j, float *w)
{
    const ndrt_groups *g = j->g;
    ndrt_span s = ndrt_share(j->r, g->in, 1);

    for (int64_t i = s.from; i < s.to; i++)
        for (int64_t o = 0; o < g->out; o++)
            w[i * g->w_i + o * g->w_o] = 0;
}

void ndrt_grouped_sum(ndrt_rank *r, bool acc, const ndrt_rows *rows,
                      const ndrt_groups *g, const void *x, const void *y,
                      const int32_t *id, float *w)
{
    job j = start(r, rows, g, g->width == NDRT_W32 ? 4 : 2, id);

    for (int64_t k = 0; k < g->n; k++) {
        float *to = w + k * g->w_k;
        block c = {(char *)to, g->w_i, g->w_o};
        if (!acc && j.begin[k] == j.begin[k + 1])
            clear_sum(&j, to);
        for (int64_t i = j.begin[k]; i < j.begin[k + 1]; i += BLOCK) {
            const at *some = j.rows + i;
            int64_t n = j.begin[k + 1] - i;
            n = n < BLOCK ? n : BLOCK;
            block a = rows_of(&j, some, n, (char *)x, false, j.x, g->in,
                              g->x_i);
            block b = rows_of(&j, some, n, (char *)y, true, j.y, g->out,
                              g->y_o);
            block turned = {a.x, a.col, a.row};
            ndrt_barrier(r);
            multiply(&j, acc || i > j.begin[k], g->in, g->out,
                     n < BLOCK ? rounded(n) : BLOCK, turned, b, c);
        }
    }
    ndrt_barrier(r);
}
