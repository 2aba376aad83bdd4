/* test_team.c - joint work of a rank's threads: shares, barriers, failures, and
 * products and sums that come out the same for any number of threads.
 */
#include "ndrt_internal.h"
#include "ndrt_math.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MOST = 5 };

static const ndrt_stage stage = {0};
static const uint32_t masks[] = {0};
static const ndrt_program program = {.name = "team", .pipe = -1, .nstages = 1,
                                     .stages = &stage, .ngroups = 1,
                                     .groups = masks};

typedef struct team {
    ndrt_config config;
    ndrt_world *world;
    ndrt_rank *rank;
} team;

static void open_team(team *t, int threads)
{
    t->config = (ndrt_config){.threads = threads};
    t->world = ndrt_world_new(1);
    t->rank = ndrt_rank_new(&program, &t->config, ndrt_world_comm(t->world, 0));
    assert_int_equal(ndrt_open_groups(t->rank), NDRT_OK);
    assert_int_equal(ndrt_mm_open(t->rank), NDRT_OK);
    assert_int_equal(ndrt_team_open(t->rank), NDRT_OK);
}

static void close_team(team *t)
{
    ndrt_team_close(t->rank);
    ndrt_own_close(&t->rank->state->own);
    ndrt_rank_free(t->rank);
    ndrt_world_free(t->world);
}

enum { TEAMS = 4 };              /* of one thread, of two, ... */

static void open_teams(team t[TEAMS], ndrt_rank *rank[TEAMS])
{
    for (int i = 0; i < TEAMS; i++) {
        open_team(&t[i], i + 1);
        rank[i] = t[i].rank;
    }
}

static void close_teams(team t[TEAMS])
{
    for (int i = 0; i < TEAMS; i++)
        close_team(&t[i]);
}

/* ---- shares -------------------------------------------------------------- */

/* All of [0, n) once, in order, in nearly equal parts. */
static void test_shares(void **state)
{
    (void)state;
    for (int of = 1; of <= 7; of++) {
        for (int64_t n = 0; n < 100; n++) {
            for (int64_t grain = 1; grain < 20; grain += 3) {
                int64_t at = 0, steps = (n + grain - 1) / grain;
                for (int t = 0; t < of; t++) {
                    ndrt_rank r = {.thread = t, .nthreads = of};
                    ndrt_span s = ndrt_share(&r, n, grain);
                    assert_int_equal(s.from, at);
                    assert_true(s.to >= s.from && s.to <= n);
                    assert_true(s.to == n || s.to % grain == 0);
                    assert_true((s.to - s.from + grain - 1) / grain <=
                                (steps + of - 1) / of);
                    at = s.to;
                }
                assert_int_equal(at, n);
            }
        }
    }
}

static void test_runs(void **state)
{
    (void)state;
    for (int t = 0; t < 3; t++) {
        ndrt_rank r = {.thread = t, .nthreads = 3};
        ndrt_span s = ndrt_share(&r, 1000, 64);
        int64_t got = 0;
        for (int64_t at = 0; at < 1000; at += 40) {
            ndrt_span p = ndrt_share_run(&r, 1000, at, 40);
            got += p.to > p.from ? p.to - p.from : 0;
        }
        assert_int_equal(got, s.to - s.from);
    }
}

/* ---- barriers ------------------------------------------------------------ */

enum { ROUNDS = 300 };

typedef struct rounds {
    int of, count[MOST];
    bool wrong;
} rounds;

/* What the others have counted is there after a barrier, and no more. */
static void count_rounds(ndrt_rank *r, void *arg)
{
    rounds *x = arg;
    int first = (r->thread + 1) % x->of;

    for (int i = 1; i <= ROUNDS; i++) {
        x->count[r->thread]++;
        ndrt_barrier(r);
        if (x->count[first] != i)
            x->wrong = true;
        ndrt_barrier(r);
    }
}

static void test_barriers(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        team t;
        rounds x = {.of = n};
        open_team(&t, n);
        assert_int_equal(ndrt_together(t.rank, count_rounds, &x), NDRT_OK);
        for (int i = 0; i < n; i++)
            assert_int_equal(x.count[i], ROUNDS);
        assert_false(x.wrong);
        close_team(&t);
    }
}

/* Work after work, and the state of the rank as it is then. */
static void note_step(ndrt_rank *r, void *arg)
{
    ((int64_t *)arg)[r->thread] = r->step * 10 + r->nthreads;
}

static void test_doubles(void **state)
{
    int64_t seen[3];
    team t;

    (void)state;
    open_team(&t, 3);
    for (t.rank->step = 1; t.rank->step < 50; t.rank->step++) {
        assert_int_equal(ndrt_together(t.rank, note_step, seen), NDRT_OK);
        for (int i = 0; i < 3; i++)
            assert_int_equal(seen[i], t.rank->step * 10 + 3);
    }
    assert_int_equal(t.rank->nthreads, 1);
    close_team(&t);
}

static void clear_and_copy(ndrt_rank *r, void *arg)
{
    char *x = arg;

    ndrt_clear(r, x, 30001);
    if (r->thread == 0)
        for (int i = 0; i < 30001; i++)
            x[i] = x[i] ? 1 : (char)(i % 100 + 1);
    ndrt_barrier(r);
    ndrt_copy(r, x + 30001, x, 30001);
}

static void test_copies(void **state)
{
    char *x = malloc(60003);
    team t;

    (void)state;
    for (int n = 1; n <= 3; n++) {
        memset(x, 'x', 60003);
        open_team(&t, n);
        assert_int_equal(ndrt_together(t.rank, clear_and_copy, x), NDRT_OK);
        for (int i = 0; i < 60002; i++)
            assert_int_equal(x[i], i % 30001 % 100 + 1);
        assert_int_equal(x[60002], 'x');
        close_team(&t);
    }
    free(x);
}

/* ---- failures ------------------------------------------------------------ */

typedef struct fault {
    int thread, round;            /* who fails, before which barrier */
} fault;

static void fail_somewhere(ndrt_rank *r, void *arg)
{
    const fault *f = arg;

    for (int i = 0; i < 20; i++) {
        if (i == f->round && (r->thread == f->thread || f->thread < 0)) {
            ndrt_fail(r, NDRT_EINPUT, "thread %d, round %d", r->thread, i);
            ndrt_raise(r);
        }
        ndrt_barrier(r);
    }
}

static void forget(ndrt_rank *r)
{
    r->state->status = NDRT_OK;
    r->state->error[0] = '\0';
}

/* One text, and the team works on. -1: all at once, one of them is first. */
static void test_failures(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        team t;
        open_team(&t, n);
        for (int who = -1; who < n; who++) {
            for (int round = 0; round < 20; round += 5) {
                fault f = {who, round};
                char text[32], round_text[32];
                rounds x = {.of = n};
                assert_int_equal(ndrt_together(t.rank, fail_somewhere, &f),
                                 NDRT_EINPUT);
                snprintf(text, sizeof text, "thread %d, round %d", who, round);
                snprintf(round_text, sizeof round_text, "round %d", round);
                assert_non_null(strstr(t.rank->state->error, round_text));
                if (who >= 0)
                    assert_string_equal(t.rank->state->error, text);
                forget(t.rank);
                assert_int_equal(ndrt_together(t.rank, count_rounds, &x),
                                 NDRT_OK);
                assert_false(x.wrong);
            }
        }
        close_team(&t);
    }
}

/* A call that the first thread makes for all fails while they wait. */
static void call_often(ndrt_rank *r, void *arg)
{
    for (int i = 0; i < 10; i++)
        ndrt_all_reduce(r, 0, arg, 1, NDRT_SUM);
}

static void test_failed_call(void **state)
{
    float x[1] = {1.0f};
    team t;

    (void)state;
    open_team(&t, 3);
    assert_int_equal(ndrt_together(t.rank, call_often, x), NDRT_OK);
    t.rank->state->fail_at = 7;
    assert_int_equal(ndrt_together(t.rank, call_often, x), NDRT_EINTERNAL);
    assert_non_null(strstr(t.rank->state->error, "made-up failure"));
    close_team(&t);
}

/* ---- the same bits ------------------------------------------------------ */

typedef enum { F32, BF16, F16 } width;

typedef struct product {
    int64_t m, n, k;
    bool ta, tb, tc, acc, own, packed;
    width width;
    float *a, *b, *c;
    uint16_t *a16, *b16;
} product;

static void multiply(ndrt_rank *r, void *arg)
{
    const product *p = arg;
    int64_t gap = p->packed ? 0 : 3;
    int64_t ar = p->ta ? 1 : p->k + gap, ac = p->ta ? p->m + gap : 1;
    int64_t br = p->tb ? 1 : p->n + gap, bc = p->tb ? p->k + gap : 1;
    int64_t cr = p->tc ? 1 : p->n + gap, cc = p->tc ? p->m + gap : 1;

    if (p->width == F32 && p->own && r->thread == 0)
        ndrt_gemm_own(r, p->acc, p->m, p->n, p->k, p->a, ar, ac, p->b, br, bc,
                      p->c, cr, cc);
    else if (p->width == F32 && !p->own)
        ndrt_gemm(r, p->acc, p->m, p->n, p->k, p->a, ar, ac, p->b, br, bc,
                  p->c, cr, cc);
    else if (p->width != F32)
        (p->width == BF16 ? ndrt_gemm_bf16 : ndrt_gemm_f16)(
            r, p->acc, p->m, p->n, p->k, p->a16, ar, ac, p->b16, br, bc, p->c,
            cr, cc);
}

static float *random_floats(size_t n, unsigned seed)
{
    float *x = malloc(n * sizeof *x);

    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
    }
    return x;
}

static uint16_t *narrowed(const float *x, size_t n, width w)
{
    uint16_t *h = malloc(n * sizeof *h);

    for (size_t i = 0; i < n; i++)
        h[i] = w == BF16 ? nd_to_bf16(x[i]) : nd_to_f16(x[i]);
    return h;
}

/* By 1 to 4 threads, and by one of them alone. */
static void same_product(ndrt_rank *const rank[4], product p)
{
    size_t na = (size_t)((p.m + 3) * (p.k + 3));
    size_t nb = (size_t)((p.n + 3) * (p.k + 3));
    size_t nc = (size_t)((p.m + 3) * (p.n + 3));
    float *first = random_floats(nc, 3);

    p.a = random_floats(na, 1);
    p.b = random_floats(nb, 2);
    p.a16 = narrowed(p.a, na, p.width);
    p.b16 = narrowed(p.b, nb, p.width);
    p.c = first;
    assert_int_equal(ndrt_together(rank[0], multiply, &p), NDRT_OK);
    for (int t = 1; t < (p.width == F32 ? 5 : 4); t++) {
        p.c = random_floats(nc, 3);
        p.own = t == 4;
        assert_int_equal(ndrt_together(rank[t % 4], multiply, &p), NDRT_OK);
        if (memcmp(p.c, first, nc * sizeof *first) != 0)
            fail_msg("%lld x %lld x %lld, width %d, transposed %d %d %d, acc "
                     "%d: %d threads differ", (long long)p.m, (long long)p.n,
                     (long long)p.k, p.width, p.ta, p.tb, p.tc, p.acc, t + 1);
        free(p.c);
    }
    free(first);
    free(p.a);
    free(p.b);
    free(p.a16);
    free(p.b16);
}

static void test_products(void **state)
{
    static const int64_t sizes[][3] = {
        {5, 3, 13}, {61, 5, 13}, {129, 70, 61}, {200, 61, 1000},
        {61, 300, 401}, {260, 131, 770}, {1, 5000, 7}, {131, 1, 3000},
    };
    team t[TEAMS];
    ndrt_rank *rank[TEAMS];

    (void)state;
    open_teams(t, rank);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int o = 0; o < 16; o++)
            for (int w = F32; w <= F16; w++)
                same_product(rank, (product){
                    .m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2],
                    .ta = o & 1, .tb = o & 2, .tc = o & 4, .acc = o & 8,
                    .width = (width)w});
    close_teams(t);
}

/* Without gaps between rows a library has other ways, but for parts of C that
 * are not whole rows. */
static void test_packed(void **state)
{
    static const int64_t sizes[][3] = {
        {256, 64, 500}, {64, 640, 700}, {64, 400, 1000}, {130, 333, 768},
        {512, 96, 4501},
    };
    team t[TEAMS];
    ndrt_rank *rank[TEAMS];

    (void)state;
    open_teams(t, rank);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int o = 0; o < 8; o++)
            same_product(rank, (product){
                .m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2],
                .ta = o & 1, .tb = o & 2, .acc = o & 4, .packed = true,
                .width = BF16});
    close_teams(t);
}

/* Large enough for B to be turned where it is stored transposed; of as many
 * rows as the first ones alone, which are not, the bits are those. */
static void test_turned(void **state)
{
    static const int64_t sizes[][3] = {
        {259, 61, 13}, {256, 130, 401}, {300, 96, 1000}, {517, 5, 770},
    };
    team t[TEAMS];
    ndrt_rank *rank[TEAMS];

    (void)state;
    open_teams(t, rank);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int acc = 0; acc < 2; acc++)
            for (int tc = 0; tc < 2; tc++)
                same_product(rank, (product){
                    .m = sizes[s][tc], .n = sizes[s][1 - tc],
                    .k = sizes[s][2], .tb = true, .tc = tc,
                    .acc = acc});
    close_teams(t);
}

/* More columns than the library is given at a time, by one thread or by
 * several; one more than so many units of them. */
static void test_wide(void **state)
{
    static const int64_t sizes[][3] = {
        {64, 4225, 384}, {67, 4097, 401}, {13, 12289, 61}, {61, 8450, 130},
    };
    team t[TEAMS];
    ndrt_rank *rank[TEAMS];

    (void)state;
    open_teams(t, rank);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int o = 0; o < 8; o++)
            same_product(rank, (product){
                .m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2],
                .ta = o & 1, .tb = o & 2, .acc = o & 4});
    close_teams(t);
}

/* Of a part of its rows, too few to turn B for, a product has the same bits. */
static void test_part(void **state)
{
    enum { M = 300, N = 131, K = 1000, PART = 128 };
    float *a = random_floats(M * K, 1), *b = random_floats(N * K, 2);
    float *c = random_floats(M * N, 3), *d = random_floats(PART * N, 3);
    ndrt_mm_key key = {.m = M, .n = N, .k = K, .lda = K, .ldb = K, .ldc = N,
                       .tb = true, .acc = true};
    team t;

    (void)state;
    open_team(&t, 1);
    int64_t turns = ndrt_mm_turns(&key);
    key.m = PART;
    assert_int_equal(ndrt_mm_turns(&key), 0);
    ndrt_gemm(t.rank, true, M, N, K, a, K, 1, b, 1, K, c, N, 1);
    ndrt_gemm(t.rank, true, PART, N, K, a, K, 1, b, 1, K, d, N, 1);
    if (turns)
        assert_memory_equal(c, d, PART * N * sizeof *d);
    close_team(&t);
    free(a);
    free(b);
    free(c);
    free(d);
}

static void test_turn(void **state)
{
    enum { SIDE = 70 };
    float x[SIDE * SIDE], y[SIDE * SIDE];

    (void)state;
    for (int i = 0; i < SIDE * SIDE; i++)
        x[i] = (float)i;
    for (int rows = 0; rows < SIDE; rows += 3) {
        for (int cols = 0; cols < SIDE; cols++) {
            memset(y, 0, sizeof y);
            ndrt_turn(y, SIDE, x, SIDE, rows, cols);
            for (int i = 0; i < SIDE; i++)
                for (int j = 0; j < SIDE; j++)
                    assert_true(y[i * SIDE + j] ==
                                (i < cols && j < rows ? x[j * SIDE + i]
                                                      : 0.0f));
        }
    }
}

typedef struct squares {
    size_t n;
    const float *x;
    double sums[NDRT_SUMS];
} squares;

static void add_squares(ndrt_rank *r, void *arg)
{
    squares *s = arg;

    ndrt_add_squares(r, s->x, s->n, s->sums);
}

static void test_squares(void **state)
{
    float *x = random_floats(100003, 9);
    static const size_t sizes[] = {0, 1, 5, 61, 1030, 100003};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double total[MOST + 1], all = 0.0;
        for (int n = 1; n <= MOST; n++) {
            team t;
            squares s = {.n = sizes[i], .x = x};
            open_team(&t, n);
            assert_int_equal(ndrt_together(t.rank, add_squares, &s), NDRT_OK);
            total[n] = ndrt_total(s.sums);
            assert_memory_equal(&total[n], &total[1], sizeof *total);
            close_team(&t);
        }
        for (size_t k = 0; k < sizes[i]; k++)
            all += (double)x[k] * (double)x[k];
        assert_true(fabs(all - total[1]) <= 1e-12 * (1.0 + all));
    }
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_failed_call),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_turned),
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_part),
        cmocka_unit_test(test_turn),
        cmocka_unit_test(test_squares),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
