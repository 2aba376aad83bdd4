/* test_optim.c - learning rates, the norm, random numbers, extents. */
#include "ndrt_internal.h"
#include "ndrt_math.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void is(double a, double b)
{
    if (fabs(a - b) > 1e-12 * (1.0 + fabs(b)))
        fail_msg("%.17g is not %.17g", a, b);
}

/* ---- learning rate ------------------------------------------------------ */

static void test_cosine(void **state)
{
    ndrt_train t = {.lr_kind = NDRT_LR_COSINE, .lr = 2.0, .lr_min = 0.2,
                    .warmup = 10, .steps = 100};

    (void)state;
    is(ndrt_lr(&t, 1), 0.2);
    is(ndrt_lr(&t, 5), 1.0);
    is(ndrt_lr(&t, 10), 2.0);
    is(ndrt_lr(&t, 55), 1.1);
    is(ndrt_lr(&t, 100), 0.2);
    is(ndrt_lr(&t, 500), 0.2);
    for (int k = 10; k < 100; k++)
        assert_true(ndrt_lr(&t, k + 1) < ndrt_lr(&t, k));
}

static void test_other_schedules(void **state)
{
    ndrt_train t = {.lr_kind = NDRT_LR_CONST, .lr = 1.0, .steps = 100};

    (void)state;
    is(ndrt_lr(&t, 1), 1.0);
    is(ndrt_lr(&t, 1000), 1.0);
    t.warmup = 4;
    is(ndrt_lr(&t, 1), 0.25);
    is(ndrt_lr(&t, 4), 1.0);
    t.lr_kind = NDRT_LR_LINEAR;
    t.warmup = 0;
    is(ndrt_lr(&t, 50), 0.5);
    is(ndrt_lr(&t, 100), 0.0);
    t.lr_kind = NDRT_LR_WSD;
    t.lr_min = 0.5;
    is(ndrt_lr(&t, 80), 1.0);
    is(ndrt_lr(&t, 90), 0.75);
    is(ndrt_lr(&t, 100), 0.5);
    t.decay_fraction = 0.5;       /* of the steps, however many */
    is(ndrt_lr(&t, 50), 1.0);
    is(ndrt_lr(&t, 75), 0.75);
    t.steps = 10;
    is(ndrt_lr(&t, 5), 1.0);
    is(ndrt_lr(&t, 6), 0.9);
    is(ndrt_lr(&t, 10), 0.5);
    t.steps = 49;                 /* 7 of 49 written by hand */
    t.decay_fraction = 7.0 / 49.0;
    is(ndrt_lr(&t, 42), 1.0);
    assert_true(ndrt_lr(&t, 43) < 1.0);
    t.decay_fraction = -1.0;      /* none at all */
    is(ndrt_lr(&t, 49), 1.0);
    t.decay_fraction = 0.0;
    t.steps = 100;
    t.warmup = 200;               /* longer than the run */
    is(ndrt_lr(&t, 100), 0.5);
    t.steps = 1;
    t.warmup = 0;
    is(ndrt_lr(&t, 1), 0.5);
}

/* ---- random numbers ----------------------------------------------------- */

/* Known answers of Random123 (kat_vectors, philox4x32 10). */
static void test_philox(void **state)
{
    uint32_t second;

    (void)state;
    assert_int_equal(nd_philox(0, 0, 0, 0, &second), 0x6627e8d5u);
    assert_int_equal(second, 0xe169c58du);
    assert_int_equal(nd_philox(UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT32_MAX,
                               &second), 0x408f276du);
    assert_int_equal(second, 0x41c83b0eu);
    assert_int_equal(nd_philox(0x299f31d0a4093822u, 0x85a308d3243f6a88u,
                               0x13198a2eu, 0x03707344u, &second),
                     0xd16cfe09u);
    assert_int_equal(second, 0x94fdccebu);
}

static void test_initial_moments(void **state)
{
    enum { N = 20000 };
    ndrt_param q = {.init = NDRT_INIT_NORMAL, .init_arg = 2.0, .fan_in = 3,
                    .fan_out = 3};
    double sum = 0.0, squares = 0.0;

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        double v = (double)ndrt_init_value(&q, 1, ndrt_stream("w"), i);
        sum += v;
        squares += v * v;
    }
    assert_true(fabs(sum / N) < 0.06);
    assert_true(fabs(squares / N - 4.0) < 0.15);
    q.init = NDRT_INIT_XAVIER;    /* uniform in [-1, 1) for these fans */
    for (uint64_t i = 0; i < N; i++)
        assert_true(fabsf(ndrt_init_value(&q, 1, 5, i)) <= 1.0f);
}

/* ---- the norm ----------------------------------------------------------- */

/* A replicated scalar with gradient 3 and a vector of norm 4 cut over tp:
 * together 5, however many ranks hold a copy of the scalar (case A15). */
static void norm_on(int dp, int tp, bool zero)
{
    static const char *const names[] = {"dp", "tp"};
    static const int p0[] = {0}, p1[] = {1};
    const int size[] = {dp, tp};
    int64_t n1 = 16 / tp;
    const ndrt_extent extents[] = {{"v/tp", 16, 1, {1}, NULL}};
    const ndrt_param params[] = {
        {.name = "s", .devices = 1},
        {.name = "v", .naxes = 1, .extent = {0}, .cap = {n1}, .devices = 1}};
    const ndrt_bucket buckets[] = {
        {1, p0, 16, 3, 0, zero ? 1 : 0, 1, false, false, false},
        {1, p1, (size_t)n1, 1, 2, 0, 1, false, false, false}};
    const ndrt_place places[] = {{0, 0, 64, NDRT_NONE, NDRT_NONE},
                                 {1, 128, 192, NDRT_NONE, NDRT_NONE}};
    const size_t at[] = {0, 128}, grads[] = {64, 192};
    const ndrt_device device = {.fixed_bytes = 512, .nplaces = 2,
                                .places = places, .loss = NDRT_NONE};
    const ndrt_stage stage = {.weights = at, .grads = grads};
    const char *const schedule[] = {"0F0"};
    const ndrt_program p = {
        .name = "norm", .nmesh = 2, .mesh_name = names, .mesh_size = size,
        .pipe = -1, .nmicro = 1, .sample_extent = -1, .nextents = 1,
        .extents = extents, .nparams = 2, .params = params, .nbuckets = 2,
        .buckets = buckets, .ndevices = 1, .devices = &device, .nstages = 1,
        .stages = &stage, .schedule_name = "test", .schedule = schedule};
    ndrt_course course;
    ndrt_config config = {.course = &course};
    ndrt_world *w = ndrt_world_new(dp * tp);
    double total = 0.0;

    assert_int_equal(ndrt_course_open(&course, &p, &config, stderr),
                     NDRT_OK);
    for (int q = 0; q < dp * tp; q++) {
        ndrt_rank *r = ndrt_rank_new(&p, &config, ndrt_world_comm(w, q));
        assert_int_equal(ndrt_open_groups(r), NDRT_OK);
        assert_int_equal(ndrt_make_arena(r), NDRT_OK);
        ((float *)(void *)(r->arena + 64))[0] = 3.0f;
        for (int64_t i = 0; i < n1; i++)
            ((float *)(void *)(r->arena + 192))[i] = 1.0f;
        total += ndrt_square_norm(r);
        ndrt_rank_free(r);
    }
    ndrt_world_free(w);
    ndrt_course_close(&course);
    is(sqrt(total), 5.0);
}

static void test_norm_counts_once(void **state)
{
    (void)state;
    for (int zero = 0; zero < 2; zero++) {
        norm_on(1, 1, zero);
        norm_on(1, 2, zero);
        norm_on(1, 4, zero);
        norm_on(2, 2, zero);
        norm_on(4, 4, zero);
    }
}

/* ---- extents ------------------------------------------------------------- */

static void test_extents(void **state)
{
    static const int64_t bounds[] = {0, 4, 8, 11};
    static const char *const names[] = {"a", "b"};
    const int size[] = {3, 2};
    const ndrt_extent extents[] = {{"x/(a,b)", 11, 2, {0, 1}, NULL},
                                   {"l/a", 11, 1, {0}, bounds},
                                   {"y/(b,micro)", 5, 2, {1, NDRT_MICRO},
                                    NULL}};
    const ndrt_program p = {.nmesh = 2, .mesh_name = names, .mesh_size = size,
                            .pipe = -1, .nmicro = 4, .nextents = 3,
                            .extents = extents};
    static const int64_t x_off[] = {0, 2, 4, 6, 8, 10};
    static const int64_t x_n[] = {2, 2, 2, 2, 2, 1};
    static const int64_t y_n[2][4] = {{1, 1, 1, 0}, {1, 1, 0, 0}};
    int64_t off, n, next = 0;

    (void)state;
    for (int r = 0; r < 6; r++) {
        ndrt_extent_of(&p, 0, r, 0, 0, &off, &n);
        assert_int_equal(off, x_off[r]);
        assert_int_equal(n, x_n[r]);
        ndrt_extent_of(&p, 1, r, r / 2, 0, &off, &n);
        assert_int_equal(off, bounds[r / 2]);
        assert_int_equal(off + n, bounds[r / 2 + 1]);
    }
    for (int b = 0; b < 2; b++) {
        for (int mb = 0; mb < 4; mb++) {
            ndrt_extent_of(&p, 2, b, 0, mb, &off, &n);
            assert_int_equal(off, next);
            assert_int_equal(n, y_n[b][mb]);
            next += n;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cosine),
        cmocka_unit_test(test_other_schedules),
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_initial_moments),
        cmocka_unit_test(test_norm_counts_once),
        cmocka_unit_test(test_extents),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
