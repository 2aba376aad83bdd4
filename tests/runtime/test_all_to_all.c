/* test_all_to_all.c - ndrt_all_to_all against the whole array, in both
 * directions, for pieces of every size and elements of 1 to 8 bytes; and an
 * i64 reduce_scatter.
 */
#include "ndrt_internal.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX = 5 };

typedef struct shape {
    int64_t outer, p, mid, q, inner;   /* inner: bytes */
} shape;

typedef struct worker {
    ndrt_state state;
    ndrt_rank rank;
    ndrt_group group;
    shape s;
    bool wrong;
} worker;

static const int ranks[MAX] = {0, 1, 2, 3, 4};
static int64_t ones[MAX] = {1, 1, 1, 1, 1};

static void pieces(int64_t size, int n, int64_t *of)
{
    for (int i = 0; i < n; i++)
        of[i] = size / n + (i < size % n);
}

static int64_t before(const int64_t *n, int member)
{
    int64_t at = 0;

    for (int i = 0; i < member; i++)
        at += n[i];
    return at;
}

static unsigned char byte(const shape *s, int64_t o, int64_t p, int64_t m,
                          int64_t q, int64_t b)
{
    int64_t at = (((o * s->p + p) * s->mid + m) * s->q + q) * s->inner + b;

    return (unsigned char)(at * 167 % 251);
}

/* Visits [outer, n_p at p0, mid, n_q at q0, inner]: fills x, or checks it. */
static bool visit(const shape *s, unsigned char *x, int64_t p0, int64_t np,
                  int64_t q0, int64_t nq, bool fill)
{
    bool same = true;

    for (int64_t o = 0; o < s->outer; o++)
        for (int64_t p = p0; p < p0 + np; p++)
            for (int64_t m = 0; m < s->mid; m++)
                for (int64_t q = q0; q < q0 + nq; q++)
                    for (int64_t b = 0; b < s->inner; b++, x++) {
                        if (fill)
                            *x = byte(s, o, p, m, q, b);
                        same &= *x == byte(s, o, p, m, q, b);
                    }
    return same;
}

static void *body(void *arg)
{
    worker *w = arg;
    const shape *s = &w->s;
    int64_t p[MAX], q[MAX];
    int n = w->group.n, me = w->group.me;
    size_t all = (size_t)(s->outer * s->p * s->mid * s->q * s->inner) + 1;
    unsigned char *x = malloc(all), *y = malloc(all);

    if (n > 1)
        w->state.comm->ops->group(w->state.comm, &w->group);
    w->state.groups = &w->group;
    pieces(s->p, n, p);
    pieces(s->q, n, q);
    visit(s, x, before(p, me), p[me], 0, s->q, true);
    ndrt_all_to_all(&w->rank, 0, x, y, s->outer, p, s->mid, q, s->inner, true);
    w->wrong = !visit(s, y, 0, s->p, before(q, me), q[me], false);
    ndrt_all_to_all(&w->rank, 0, y, x, s->outer, p, s->mid, q, s->inner,
                    false);
    w->wrong |= !visit(s, x, before(p, me), p[me], 0, s->q, false);
    free(x);
    free(y);
    return NULL;
}

static void on_ranks(int n, const shape *s, void *(*f)(void *))
{
    ndrt_world *world = ndrt_world_new(n);
    static worker w[MAX];
    pthread_t t[MAX];

    for (int i = 0; i < n; i++) {
        w[i] = (worker){.group = {.n = n, .me = i, .ranks = ranks}, .s = *s};
        w[i].state.comm = ndrt_world_comm(world, i);
        w[i].state.ones = ones;
        w[i].rank.state = &w[i].state;
    }
    for (int i = 0; i < n; i++)
        pthread_create(&t[i], NULL, f, &w[i]);
    for (int i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < n; i++) {
        assert_false(w[i].wrong);
        free(w[i].state.packed);
        free(w[i].state.parts);
    }
    ndrt_world_free(world);
}

static void test_shapes(void **state)
{
    static const shape shapes[] = {
        {1, 4, 1, 4, 4}, {1, 5, 1, 7, 4}, {3, 5, 2, 7, 2}, {2, 2, 1, 3, 8},
        {1, 1, 3, 1, 1}, {2, 13, 3, 5, 20}, {0, 3, 1, 3, 4},
    };

    (void)state;
    for (int n = 1; n <= MAX; n += n < 3 ? 1 : 2)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            on_ranks(n, &shapes[i], body);
}

/* 64 bits: [2, S] summed, each member keeps its columns. */
static void *scatter_body(void *arg)
{
    worker *w = arg;
    int64_t n[MAX], x[2 * 7], y[2 * 7];
    int me = w->group.me;

    if (w->group.n > 1)
        w->state.comm->ops->group(w->state.comm, &w->group);
    w->state.groups = &w->group;
    pieces(7, w->group.n, n);
    for (int i = 0; i < 14; i++)
        x[i] = ((int64_t)1 << 40) * i + me;
    ndrt_reduce_scatter(&w->rank, 0, (const float *)(const void *)x, 14,
                        (float *)(void *)y, 2 * n[me], 2, n, 2, NDRT_SUM_I64);
    for (int64_t o = 0; o < 2; o++)
        for (int64_t i = 0; i < n[me]; i++) {
            int64_t k = o * 7 + before(n, me) + i, size = w->group.n;
            w->wrong |= y[o * n[me] + i] !=
                        ((int64_t)1 << 40) * k * size + size * (size - 1) / 2;
        }
    return NULL;
}

static void test_scatter_i64(void **state)
{
    shape s = {0};

    (void)state;
    for (int n = 1; n <= MAX; n++)
        on_ranks(n, &s, scatter_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_scatter_i64),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
