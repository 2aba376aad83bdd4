/* test_experts.c - products in which each row chooses its matrix, against loops
 * in double: rows of one group that fill blocks and that do not, groups without
 * rows, rows without a group, rows and columns at any strides.
 */
#include "ndrt_internal.h"
#include "ndrt_math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROOM = 1 << 22 };

static ndrt_rank *rank;

static float number(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) * 0x1p-23f - 1.0f;
}

static float *numbers(int64_t n, unsigned seed)
{
    float *x = malloc((size_t)(n + 1) * sizeof *x);

    for (int64_t i = 0; i <= n; i++)
        x[i] = number(&seed);
    return x;
}

/* x and y have a row per pair (i, j) of n * m, or x one per i alone. */
typedef struct shape {
    int64_t n, m, groups, first, in, out;
    bool shared;                      /* x has no j */
    bool turned;                      /* a row's elements lie far apart */
    int last;                         /* ids go from -1 to this */
} shape;

typedef struct test {
    shape s;
    ndrt_rows rows;
    ndrt_groups g;
    float *x, *y, *w;
    int32_t *id;
} test;

static test make(shape s)
{
    int64_t rows = s.n * s.m, xrows = s.shared ? s.n : rows;
    int64_t step = s.turned ? 1 : s.in, y_step = s.turned ? 1 : s.out;
    int64_t j = s.shared ? 0 : step;
    unsigned seed = (unsigned)(s.n * 31 + s.in);
    test t = {
        .s = s,
        .rows = {2, {s.n, s.m}, {s.shared ? step : j * s.m, j},
                 {y_step * s.m, y_step}, {s.m, 1}},
        .g = {NDRT_W32, s.first, s.groups, s.in, s.out, s.in * s.out + 3,
              s.out, 1, s.turned ? xrows : 1, s.turned ? rows : 1},
        .x = numbers(xrows * s.in, 1),
        .y = numbers(rows * s.out, 2),
        .w = numbers(s.groups * (s.in * s.out + 3), 3),
        .id = malloc((size_t)rows * sizeof *t.id)};

    for (int64_t i = 0; i < rows; i++)
        t.id[i] = (int32_t)((number(&seed) + 1) / 2 *
                            (float)(s.last + 2)) - 1;
    return t;
}

static void release(test *t)
{
    free(t->x);
    free(t->y);
    free(t->w);
    free(t->id);
}

static int64_t group(const test *t, int64_t row)
{
    int64_t k = t->id[row] - t->s.first;

    return k >= 0 && k < t->s.groups ? k : -1;
}

static float *x_at(const test *t, int64_t row, int64_t i)
{
    return t->x + row / t->s.m * t->rows.x[0] + row % t->s.m * t->rows.x[1] +
           i * t->g.x_i;
}

static float *y_at(const test *t, int64_t row, int64_t o)
{
    return t->y + row / t->s.m * t->rows.y[0] + row % t->s.m * t->rows.y[1] +
           o * t->g.y_o;
}

static float *w_at(const test *t, int64_t k, int64_t i, int64_t o)
{
    return t->w + k * t->g.w_k + i * t->g.w_i + o * t->g.w_o;
}

static void check_product(shape s)
{
    test t = make(s);

    ndrt_grouped(rank, &t.rows, &t.g, t.x, t.w, t.id, t.y);
    for (int64_t row = 0; row < s.n * s.m; row++)
        for (int64_t o = 0; o < s.out; o++) {
            double want = 0;
            int64_t k = group(&t, row);
            for (int64_t i = 0; i < s.in && k >= 0; i++)
                want += (double)*x_at(&t, row, i) * *w_at(&t, k, i, o);
            assert_true(fabs(want - *y_at(&t, row, o)) < 1e-4);
        }
    release(&t);
}

static void check_sum(shape s, bool acc)
{
    test t = make(s), old = make(s);

    ndrt_grouped_sum(rank, acc, &t.rows, &t.g, t.x, t.y, t.id, t.w);
    for (int64_t k = 0; k < s.groups; k++)
        for (int64_t i = 0; i < s.in; i++)
            for (int64_t o = 0; o < s.out; o++) {
                double want = acc ? *w_at(&old, k, i, o) : 0;
                for (int64_t row = 0; row < s.n * s.m; row++)
                    if (group(&t, row) == k)
                        want += (double)*x_at(&t, row, i) * *y_at(&t, row, o);
                assert_true(fabs(want - *w_at(&t, k, i, o)) < 1e-3);
            }
    release(&t);
    release(&old);
}

static const shape shapes[] = {
    {5, 2, 3, 0, 4, 7, true, false, 2},
    {61, 3, 4, 2, 13, 5, false, false, 9},
    {400, 2, 2, 0, 17, 33, false, false, 1},
    {400, 2, 2, 0, 17, 33, true, true, 1},
    {700, 1, 1, 0, 8, 16, false, false, 0},
    {3, 1, 5, 0, 1, 1, false, true, 4},
    {0, 2, 3, 0, 4, 7, false, false, 2},
};

static void test_products(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_product(shapes[i]);
}

static void test_sums(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_sum(shapes[i], false);
        check_sum(shapes[i], true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_sums),
    };
    const ndrt_device device = {.fixed_bytes = ROOM, .scratch_bytes = ROOM};
    const ndrt_stage stage = {0};
    const char *const schedule[] = {"0F0"};
    const ndrt_program p = {.name = "experts", .pipe = -1, .ndevices = 1,
                            .devices = &device, .nstages = 1,
                            .stages = &stage, .schedule_name = "test",
                            .schedule = schedule};
    ndrt_course course;
    ndrt_config config = {.course = &course};
    ndrt_world *w = ndrt_world_new(1);

    if (ndrt_course_open(&course, &p, &config, stderr) != NDRT_OK)
        return 1;
    rank = ndrt_rank_new(&p, &config, ndrt_world_comm(w, 0));
    if (ndrt_make_arena(rank) != NDRT_OK || ndrt_mm_open(rank) != NDRT_OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ndrt_own_close(&rank->state->own);
    ndrt_rank_free(rank);
    ndrt_world_free(w);
    ndrt_course_close(&course);
    return rc;
}
