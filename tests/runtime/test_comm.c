/* test_comm.c - the local communicator against plain sums, bit for bit. */
#include "ndrt_internal.h"

#include <pthread.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX_RANKS = 8, MAX_N = 5003 };

typedef struct worker {
    int rank, size, round;
    ndrt_comm *comm;
    ndrt_group all;
    float *x, *y;
    ndrt_status status;
    char comm_error[256];
} worker;

/* Numbers whose sum depends on the order of additions. */
static float number(int rank, int64_t i)
{
    uint32_t u = (uint32_t)(rank * 7919 + i * 104729) * 2654435761u;

    return ((float)(u >> 8) - 8388608.0f) * (u & 1 ? 1e-3f : 1e4f);
}

/* Runs `body` once per rank. */
static void on_ranks(int size, int round, void *(*body)(void *), worker *w)
{
    static int ranks[MAX_RANKS];
    ndrt_world *world = ndrt_world_new(size);
    pthread_t t[MAX_RANKS];

    assert_non_null(world);
    for (int i = 0; i < size; i++) {
        ranks[i] = i;
        w[i] = (worker){.rank = i, .size = size, .round = round,
                        .comm = ndrt_world_comm(world, i),
                        .all = {.n = size, .me = i, .ranks = ranks}};
        w[i].x = calloc(4 * MAX_N, sizeof(float));
        w[i].y = calloc(4 * MAX_N, sizeof(float));
    }
    for (int i = 0; i < size; i++)
        pthread_create(&t[i], NULL, body, &w[i]);
    for (int i = 0; i < size; i++)
        pthread_join(t[i], NULL);
    ndrt_world_free(world);
}

static void release(int size, worker *w)
{
    for (int i = 0; i < size; i++) {
        free(w[i].x);
        free(w[i].y);
    }
}

static float expected(int size, int64_t i, bool max)
{
    float s = number(0, i);

    for (int q = 1; q < size; q++) {
        float v = number(q, i);
        s = max ? (v > s ? v : s) : s + v;
    }
    return s;
}

/* ---- all_reduce --------------------------------------------------------- */

static const int64_t lengths[] = {0, 1, 2, 3, 5, 13, 61, 1024, 1025, MAX_N};
enum { NLENGTHS = sizeof lengths / sizeof *lengths };

static void *reduce_body(void *arg)
{
    worker *w = arg;
    int64_t n = lengths[w->round / 2];

    w->status = w->comm->ops->group(w->comm, &w->all);
    for (int64_t i = 0; i < n; i++)
        w->x[i] = number(w->rank, i);
    w->x[n] = 42.0f;
    if (w->status == NDRT_OK)
        w->status = w->comm->ops->all_reduce(w->comm, &w->all, w->x, n,
                                             w->round % 2 ? NDRT_MAX
                                                          : NDRT_SUM);
    return NULL;
}

static void test_all_reduce(void **state)
{
    static const int sizes[] = {2, 3, 4, 5, 6, 7, 8};
    enum { NSIZES = sizeof sizes / sizeof *sizes };
    worker w[MAX_RANKS];

    (void)state;
    for (int s = 0; s < NSIZES; s++) {
        for (int round = 0; round < 2 * NLENGTHS; round++) {
            int64_t n = lengths[round / 2];
            on_ranks(sizes[s], round, reduce_body, w);
            for (int q = 0; q < sizes[s]; q++) {
                assert_int_equal(w[q].status, NDRT_OK);
                for (int64_t i = 0; i < n; i++) {
                    float e = expected(sizes[s], i, round % 2);
                    assert_memory_equal(&w[q].x[i], &e, sizeof e);
                }
                assert_true(w[q].x[n] == 42.0f);
            }
            release(sizes[s], w);
        }
    }
}

/* ---- pieces ------------------------------------------------------------- */

enum { OUTER = 3, INNER = 7, GAP = 5 };

/* Uneven pieces, one of them may be empty. */
static int64_t pieces(int size, int round, int64_t n[MAX_RANKS])
{
    int64_t whole = 0;

    for (int i = 0; i < size; i++) {
        n[i] = (i + round) % 4;
        whole += n[i];
    }
    return whole;
}

static void *scatter_body(void *arg)
{
    worker *w = arg;
    int64_t n[MAX_RANKS], whole = pieces(w->size, w->round, n);
    int64_t row = whole * INNER + w->rank;   /* strides differ */
    ndrt_layout l = {OUTER, INNER, n, w->x, row, w->y,
                     n[w->rank] * INNER + GAP, NDRT_SUM};

    w->status = w->comm->ops->group(w->comm, &w->all);
    for (int64_t o = 0; o < OUTER; o++)
        for (int64_t i = 0; i < whole * INNER; i++)
            w->x[o * row + i] = number(w->rank, o * 1000 + i);
    if (w->status == NDRT_OK)
        w->status = w->comm->ops->reduce_scatter(w->comm, &w->all, &l);
    return NULL;
}

static void test_reduce_scatter(void **state)
{
    worker w[MAX_RANKS];

    (void)state;
    for (int size = 2; size <= 5; size++) {
        for (int round = 0; round < 4; round++) {
            int64_t n[MAX_RANKS], off = 0;
            on_ranks(size, round, scatter_body, w);
            pieces(size, round, n);
            for (int q = 0; q < size; off += n[q++]) {
                assert_int_equal(w[q].status, NDRT_OK);
                for (int64_t i = 0; i < OUTER * n[q] * INNER; i++) {
                    int64_t o = i / (n[q] * INNER), j = i % (n[q] * INNER);
                    float e = expected(size, o * 1000 + off * INNER + j,
                                       false);
                    assert_memory_equal(
                        &w[q].y[o * (n[q] * INNER + GAP) + j], &e, sizeof e);
                }
            }
            release(size, w);
        }
    }
}

/* Integers wrap around: each member keeps its piece of 2^31 - 1 a few times. */
static void *scatter_ints_body(void *arg)
{
    worker *w = arg;
    int64_t n[MAX_RANKS];
    int32_t most = INT32_MAX;
    ndrt_layout l = {1, 1, n, w->x, 0, w->y, 0, NDRT_SUM_I32};

    for (int i = 0; i < w->size; i++)
        n[i] = i + 1;
    for (int i = 0; i < w->size * (w->size + 1) / 2; i++)
        memcpy(&w->x[i], &most, sizeof most);
    w->status = w->comm->ops->group(w->comm, &w->all);
    if (w->status == NDRT_OK)
        w->status = w->comm->ops->reduce_scatter(w->comm, &w->all, &l);
    return NULL;
}

static void test_reduce_scatter_ints(void **state)
{
    worker w[MAX_RANKS];

    (void)state;
    for (int size = 2; size <= 5; size++) {
        int32_t want = (int32_t)((uint32_t)size * (uint32_t)INT32_MAX), got;
        on_ranks(size, 0, scatter_ints_body, w);
        for (int q = 0; q < size; q++) {
            assert_int_equal(w[q].status, NDRT_OK);
            for (int i = 0; i <= q; i++) {
                memcpy(&got, &w[q].y[i], sizeof got);
                assert_int_equal(got, want);
            }
        }
        release(size, w);
    }
}

static void *gather_body(void *arg)
{
    worker *w = arg;
    int64_t n[MAX_RANKS], whole = pieces(w->size, w->round, n);
    int64_t mine = n[w->rank] * INNER, x_o = mine + w->rank;
    ndrt_layout l = {OUTER, INNER, n, w->x, x_o, w->y, whole * INNER + GAP,
                     NDRT_SUM};

    w->status = w->comm->ops->group(w->comm, &w->all);
    for (int64_t o = 0; o < OUTER; o++)
        for (int64_t i = 0; i < mine; i++)
            w->x[o * x_o + i] = number(w->rank, o * 1000 + i);
    if (w->status == NDRT_OK)
        w->status = w->comm->ops->all_gather(w->comm, &w->all, &l);
    return NULL;
}

static void test_all_gather(void **state)
{
    worker w[MAX_RANKS];

    (void)state;
    for (int size = 2; size <= 5; size++) {
        for (int round = 0; round < 4; round++) {
            int64_t n[MAX_RANKS], whole = pieces(size, round, n);
            on_ranks(size, round, gather_body, w);
            for (int q = 0; q < size; q++) {
                const float *y = w[q].y;
                assert_int_equal(w[q].status, NDRT_OK);
                for (int64_t o = 0; o < OUTER; o++) {
                    const float *at = y + o * (whole * INNER + GAP);
                    for (int s = 0; s < size; s++)
                        for (int64_t i = 0; i < n[s] * INNER; i++)
                            assert_true(*at++ == number(s, o * 1000 + i));
                }
            }
            release(size, w);
        }
    }
}

/* ---- one after another --------------------------------------------------- */

enum { ROUNDS = 400 };

/* A sum, its pieces, all of them again: the same as the sum. Lengths change
 * from round to round, up to some chunks; `round` is when rank 1 fails. */
static bool one_round(worker *w, int k)
{
    static const int64_t some[] = {3, 5, 13, 61, 1, 1021, 4 * MAX_N - 3};
    int64_t n[MAX_RANKS], whole = some[k % 7], off = 0;
    const ndrt_comm_ops *ops = w->comm->ops;
    float *z = w->y, *sum = w->x;

    for (int i = 0; i < w->size; i++) {
        n[i] = whole / w->size + (i < whole % w->size);
        off += i < w->rank ? n[i] : 0;
    }
    for (int64_t i = 0; i < whole; i++)
        z[i] = sum[i] = number(w->rank, i + k);
    ndrt_layout scatter = {1, 1, n, z, 0, z + off, 0, NDRT_SUM};
    ndrt_layout gather = {1, 1, n, z + off, 0, z, 0, NDRT_SUM};
    w->status = ops->all_reduce(w->comm, &w->all, sum, whole, NDRT_SUM);
    if (w->status == NDRT_OK)
        w->status = ops->reduce_scatter(w->comm, &w->all, &scatter);
    if (w->status == NDRT_OK)
        w->status = ops->all_gather(w->comm, &w->all, &gather);
    if (w->status == NDRT_OK && k % 3 == 0)
        w->status = ops->barrier(w->comm, &w->all);
    return w->status != NDRT_OK ||
           memcmp(z, sum, (size_t)whole * sizeof *z) == 0;
}

static void *rounds_body(void *arg)
{
    worker *w = arg;
    bool right = true;

    w->status = w->comm->ops->group(w->comm, &w->all);
    for (int k = 0; k < ROUNDS && w->status == NDRT_OK && right; k++) {
        right = one_round(w, k);
        if (k == w->round && w->rank == 1) {
            w->comm->ops->abort(w->comm, NDRT_EINPUT, "expected: rank 1 fails");
            return NULL;
        }
    }
    if (!right)
        w->status = NDRT_EINPUT;
    return NULL;
}

static void test_rounds(void **state)
{
    worker w[MAX_RANKS];

    (void)state;
    for (int size = 2; size <= 8; size += 2) {
        on_ranks(size, ROUNDS, rounds_body, w);
        for (int q = 0; q < size; q++)
            assert_int_equal(w[q].status, NDRT_OK);
        release(size, w);
    }
}

static void test_failure_between(void **state)
{
    worker w[MAX_RANKS];

    (void)state;
    for (int at = 0; at < 20; at++) {
        on_ranks(5, at * 3, rounds_body, w);
        for (int q = 0; q < 5; q++)
            assert_int_equal(w[q].status, q == 1 ? NDRT_OK : NDRT_ESTOPPED);
        release(5, w);
    }
}

static void *lengths_differ_body(void *arg)
{
    worker *w = arg;
    const ndrt_comm_ops *ops = w->comm->ops;

    w->status = ops->group(w->comm, &w->all);
    if (w->status == NDRT_OK)
        w->status = ops->all_reduce(w->comm, &w->all, w->x,
                                    w->rank == 2 ? 13 : 5, NDRT_SUM);
    memcpy(w->comm_error, w->comm->error, sizeof w->comm_error);
    return NULL;
}

/* All see it, none adds. */
static void test_lengths_differ(void **state)
{
    worker w[MAX_RANKS];

    (void)state;
    on_ranks(3, 0, lengths_differ_body, w);
    for (int q = 0; q < 3; q++) {
        assert_int_equal(w[q].status, NDRT_EINTERNAL);
        assert_string_equal(w[q].comm_error, q == 2
                            ? "all_reduce of 13 elements meets one of 5"
                            : "all_reduce of 5 elements meets one of 13");
    }
    release(3, w);
}

/* ---- send and receive ---------------------------------------------------- */

/* A ring in which even ranks send first; 1 .. many bytes. */
static void *ring_body(void *arg)
{
    worker *w = arg;
    const ndrt_comm_ops *ops = w->comm->ops;
    int to = (w->rank + 1) % w->size;
    int from = (w->rank + w->size - 1) % w->size;

    for (int k = 0; k < 50 && w->status == NDRT_OK; k++) {
        size_t bytes = (size_t)(k * k * 4);
        for (int half = 0; half < 2 && w->status == NDRT_OK; half++) {
            bool send = half == (w->rank % 2);
            w->x[0] = number(w->rank, k);
            w->status = send ? ops->send(w->comm, to, w->x, bytes)
                             : ops->recv(w->comm, from, w->y, bytes);
        }
        if (k > 0 && w->y[0] != number(from, k))
            w->status = NDRT_EINPUT;
    }
    return NULL;
}

static void test_ring(void **state)
{
    worker w[MAX_RANKS];

    (void)state;
    for (int size = 2; size <= 8; size += 2) {
        on_ranks(size, 0, ring_body, w);
        for (int q = 0; q < size; q++)
            assert_int_equal(w[q].status, NDRT_OK);
        release(size, w);
    }
}

static void *wrong_size_body(void *arg)
{
    worker *w = arg;
    const ndrt_comm_ops *ops = w->comm->ops;

    w->status = w->rank == 0 ? ops->send(w->comm, 1, w->x, 8)
                             : ops->recv(w->comm, 0, w->y, 12);
    if (w->status == NDRT_EINTERNAL)
        ops->abort(w->comm, w->status, "expected: sizes differ");
    return NULL;
}

static void test_wrong_size(void **state)
{
    worker w[MAX_RANKS];

    (void)state;
    on_ranks(2, 0, wrong_size_body, w);
    assert_int_equal(w[0].status, NDRT_ESTOPPED);
    assert_int_equal(w[1].status, NDRT_EINTERNAL);
    release(2, w);
}

/* Rank `round` never comes; the others wait in a collective or a receive. */
static void *missing_body(void *arg)
{
    worker *w = arg;
    const ndrt_comm_ops *ops = w->comm->ops;

    if (w->rank == w->round) {
        usleep(20000);
        ops->abort(w->comm, NDRT_EINPUT, "expected: a rank stops");
        return NULL;
    }
    ops->group(w->comm, &w->all);
    switch (w->rank % 3) {
    case 0:
        w->status = ops->all_reduce(w->comm, &w->all, w->x, 10, false);
        break;
    case 1:
        w->status = ops->recv(w->comm, w->round, w->x, 10);
        break;
    default:
        w->status = ops->send(w->comm, w->round, w->x, 10);
    }
    return NULL;
}

static void test_missing_rank(void **state)
{
    worker w[MAX_RANKS];

    (void)state;
    for (int round = 0; round < 6; round++) {
        on_ranks(6, round, missing_body, w);
        for (int q = 0; q < 6; q++)
            if (q != round)
                assert_int_equal(w[q].status, NDRT_ESTOPPED);
        release(6, w);
    }
}

static void test_max_keeps_nan(void **state)
{
    float a[3] = {1, NAN, 3}, b[3] = {NAN, 2, 4}, y[3];
    const float *src[2] = {a, b};

    (void)state;
    ndrt_fold(y, src, 2, 3, true);
    assert_true(isnan(y[0]) && isnan(y[1]) && y[2] == 4.0f);
}

/* CPUs are shared out; more ranks than CPUs leave none to spare. */
static void test_cpus(void **state)
{
    (void)state;
    ndrt_world *one = ndrt_world_new(1);
    int cpus = ndrt_world_comm(one, 0)->cpus;
    ndrt_world *two = ndrt_world_new(2);
    ndrt_world *many = ndrt_world_new(cpus + 1);
    ndrt_config config = {0};
    ndrt_device device = {.fixed_bytes = 4 << 20};
    size_t rooms[] = {0};
    int versions[] = {1};
    const ndrt_course course = {.program = {.ndevices = 1,
                                            .devices = &device},
                                .rooms = {.bytes = rooms},
                                .versions = versions};
    ndrt_state st = {.config = &config, .course = &course,
                     .comm = ndrt_world_comm(one, 0)};
    const ndrt_rank r = {.state = &st};

    assert_true(cpus >= 1);
    assert_int_equal(ndrt_world_comm(two, 1)->cpus, cpus / 2);
    assert_int_equal(ndrt_world_comm(many, cpus)->cpus, 0);
    assert_int_equal(ndrt_threads(&r), cpus);
    device.fixed_bytes = 1000;    /* it has little to do */
    assert_int_equal(ndrt_threads(&r), 1);
    device.fixed_bytes = 4 << 20;
    st.comm = ndrt_world_comm(many, 0);
    assert_int_equal(ndrt_threads(&r), 1);
    config.threads = 5;
    assert_int_equal(ndrt_threads(&r), 5);
    ndrt_world_free(one);
    ndrt_world_free(two);
    ndrt_world_free(many);
}

/* ---- lanes --------------------------------------------------------------- */

typedef struct sender {
    pthread_t thread;
    ndrt_comm *comm;
    int value;
    ndrt_status status;
} sender;

static void *send_value(void *arg)
{
    sender *s = arg;

    s->status = s->comm->ops->send(s->comm, 1, &s->value, sizeof s->value);
    return NULL;
}

/* Messages of one lane never meet those of another, whichever comes first; a
 * rank has so many lanes and no more. */
static void test_lanes(void **state)
{
    ndrt_world *w = ndrt_world_new(2);
    ndrt_comm *lane[2][NDRT_LANES];
    sender s[NDRT_LANES];

    (void)state;
    for (int q = 0; q < 2; q++) {
        ndrt_comm *c = lane[q][0] = ndrt_world_comm(w, q);
        for (int k = 1; k < NDRT_LANES; k++)
            assert_non_null(lane[q][k] = c->ops->another(c));
        assert_null(c->ops->another(c));
    }
    for (int k = 0; k < NDRT_LANES; k++) {
        s[k] = (sender){.comm = lane[0][k], .value = k};
        pthread_create(&s[k].thread, NULL, send_value, &s[k]);
    }
    for (int k = NDRT_LANES - 1; k >= 0; k--) {
        int got = -1;
        ndrt_comm *c = lane[1][k];
        assert_int_equal(c->ops->recv(c, 0, &got, sizeof got), NDRT_OK);
        assert_int_equal(got, k);
    }
    for (int k = 0; k < NDRT_LANES; k++) {
        pthread_join(s[k].thread, NULL);
        assert_int_equal(s[k].status, NDRT_OK);
    }
    ndrt_world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reduce),
        cmocka_unit_test(test_reduce_scatter),
        cmocka_unit_test(test_reduce_scatter_ints),
        cmocka_unit_test(test_all_gather),
        cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_failure_between),
        cmocka_unit_test(test_lengths_differ),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_wrong_size),
        cmocka_unit_test(test_missing_rank),
        cmocka_unit_test(test_max_keeps_nan),
        cmocka_unit_test(test_cpus),
        cmocka_unit_test(test_lanes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
