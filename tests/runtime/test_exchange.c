/* test_exchange.c - exchange and shift, on every communicator: as threads, and
 * under mpirun with the path of the MPI plug-in as argument (exchange.sh).
 */
#include "ndrt_internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX = 8, ROOM = 1 << 16 };

typedef struct member {
    ndrt_comm *comm;
    ndrt_group group;
    int round;
    char *x, *y;
    size_t send_at[MAX], send_n[MAX], recv_at[MAX], recv_n[MAX];
    ndrt_status status;
    const char *wrong;
    char error[256];                 /* the communicator's */
} member;

static member *member_new(ndrt_comm *c, int round)
{
    static const int ranks[MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
    member *w = calloc(1, sizeof *w);

    w->comm = c;
    w->group = (ndrt_group){.n = c->size, .me = c->rank, .ranks = ranks};
    w->round = round;
    w->x = malloc(ROOM);
    w->y = malloc(ROOM);
    memset(w->y, '.', ROOM);
    if (c->size > 1)
        w->status = c->ops->group(c, &w->group);
    return w;
}

static void member_free(member *w)
{
    free(w->x);
    free(w->y);
    free(w);
}

/* Bytes that `from` sends to `to`: any number, none every now and then. */
static size_t length(int round, int from, int to)
{
    static const size_t some[] = {0, 1, 7, 4096, 13, 0, 5003};

    return round == 0 ? 0 : some[(round * 5 + from * 3 + to) % 7];
}

static char byte(int from, int to, size_t i)
{
    return (char)(from * 31 + to * 17 + (int)(i % 251));
}

/* Ranges lie apart and in descending order; gaps keep what they hold. */
static void lay_out(member *w, bool send)
{
    size_t *at = send ? w->send_at : w->recv_at;
    size_t *n = send ? w->send_n : w->recv_n, place = 3;
    int me = w->group.me;

    for (int i = w->group.n - 1; i >= 0; i--) {
        n[i] = send ? length(w->round, me, i) : length(w->round, i, me);
        at[i] = place;
        place += n[i] + 5;
        for (size_t k = 0; send && k < n[i]; k++)
            w->x[at[i] + k] = byte(me, i, k);
    }
}

static void check_exchange(member *w)
{
    size_t dots = 0;

    lay_out(w, true);
    lay_out(w, false);
    ndrt_exchange e = {w->x, w->send_at, w->send_n,
                       w->y, w->recv_at, w->recv_n};
    w->status = w->comm->ops->exchange(w->comm, &w->group, &e);
    for (int i = 0; i < w->group.n; i++) {
        for (size_t k = 0; k < w->recv_n[i]; k++)
            if (w->y[w->recv_at[i] + k] != byte(i, w->group.me, k))
                w->wrong = "exchange: another member's bytes";
        for (size_t k = w->recv_n[i]; k < w->recv_n[i] + 5; k++)
            dots += w->y[w->recv_at[i] + k] == '.';
    }
    if (dots != 5 * (size_t)w->group.n)
        w->wrong = "exchange: bytes outside the ranges";
}

static void check_shift(member *w, int by)
{
    int n = w->group.n, me = w->group.me;
    int from = ((me + by) % n + n) % n;
    size_t out = length(w->round, me, 0), in = length(w->round, from, 0);

    memset(w->y, '.', ROOM);
    for (size_t i = 0; i < out; i++)
        w->x[i] = byte(me, by & 7, i);
    w->status = w->comm->ops->shift(w->comm, &w->group, by, w->x, w->y, out,
                                    in);
    for (size_t i = 0; i < in; i++)
        if (w->y[i] != byte(from, by & 7, i))
            w->wrong = "shift: another member's bytes";
    if (w->y[in] != '.')
        w->wrong = "shift: too many bytes";
}

static void *all_checks(void *arg)
{
    member *w = arg;

    for (w->round = 0; w->round < 8 && w->status == NDRT_OK; w->round++) {
        memset(w->y, '.', ROOM);
        check_exchange(w);
        for (int by = -6; by <= 6 && w->status == NDRT_OK; by++)
            check_shift(w, by);
    }
    return NULL;
}

/* ---- threads ------------------------------------------------------------- */

static void on_threads(int size, int round, void *(*body)(void *), member **w)
{
    ndrt_world *world = ndrt_world_new(size);
    pthread_t t[MAX];

    assert_non_null(world);
    for (int i = 0; i < size; i++)
        w[i] = member_new(ndrt_world_comm(world, i), round);
    for (int i = 0; i < size; i++)
        pthread_create(&t[i], NULL, body, w[i]);
    for (int i = 0; i < size; i++)
        pthread_join(t[i], NULL);
    ndrt_world_free(world);
}

static void test_threads(void **state)
{
    static const int sizes[] = {1, 2, 3, 5, 8};
    member *w[MAX];

    (void)state;
    for (int k = 0; k < 5; k++) {
        on_threads(sizes[k], 0, all_checks, w);
        for (int i = 0; i < sizes[k]; i++) {
            assert_int_equal(w[i]->status, NDRT_OK);
            assert_null(w[i]->wrong);
            member_free(w[i]);
        }
    }
}

/* Rank `round` never comes; the others wait for it. */
static void *missing(void *arg)
{
    member *w = arg;
    size_t at[MAX] = {0}, n[MAX] = {0};
    ndrt_exchange e = {w->x, at, n, w->y, at, n};
    const ndrt_comm_ops *ops = w->comm->ops;

    if (w->group.me == w->round) {
        usleep(20000);
        ops->abort(w->comm, NDRT_EINPUT, "expected: a rank stops");
        return NULL;
    }
    w->status = w->round % 2
                    ? ops->exchange(w->comm, &w->group, &e)
                    : ops->shift(w->comm, &w->group, 1, w->x, w->y, 4, 4);
    return NULL;
}

static void test_missing(void **state)
{
    member *w[MAX];

    (void)state;
    for (int round = 0; round < 4; round++) {
        on_threads(4, round, missing, w);
        for (int i = 0; i < 4; i++) {
            if (i != round)
                assert_int_equal(w[i]->status, NDRT_ESTOPPED);
            member_free(w[i]);
        }
    }
}

/* Member 0 expects a byte more than is sent. */
static void *longer(void *arg)
{
    member *w = arg;
    size_t at[MAX] = {0}, n[MAX] = {4, 4, 4}, more[MAX] = {4, 4, 5};
    bool greedy = w->group.me == 0;
    ndrt_exchange e = {w->x, at, n, w->y, at, greedy ? more : n};
    const ndrt_comm_ops *ops = w->comm->ops;

    w->status = w->round
                    ? ops->exchange(w->comm, &w->group, &e)
                    : ops->shift(w->comm, &w->group, 1, w->x, w->y, 4,
                                 greedy ? 5 : 4);
    if (w->status != NDRT_EINTERNAL)
        return NULL;
    memcpy(w->error, w->comm->error, sizeof w->error);
    ops->abort(w->comm, w->status, "expected: sizes differ");
    return NULL;
}

static void test_sizes_differ(void **state)
{
    member *w[MAX];

    (void)state;
    for (int round = 0; round < 2; round++) {
        on_threads(3, round, longer, w);
        assert_int_equal(w[0]->status, NDRT_EINTERNAL);
        assert_non_null(strstr(w[0]->error, "sent 4 bytes, 5 were"));
        for (int i = 0; i < 3; i++) {
            if (i)
                assert_int_equal(w[i]->status, NDRT_ESTOPPED);
            member_free(w[i]);
        }
    }
}

/* ---- processes ----------------------------------------------------------- */

static int under_mpi(const char *plugin)
{
    char error[512] = "";
    void *lib = dlopen(plugin, RTLD_NOW | RTLD_GLOBAL);
    void *f = lib ? dlsym(lib, NDRT_MPI_OPEN) : NULL;
    ndrt_mpi_open_fn *start;
    ndrt_comm *comm = NULL;

    if (!f) {
        fprintf(stderr, "cannot open %s\n", plugin);
        return 1;
    }
    memcpy(&start, &f, sizeof start);
    if (start(NDRT_PLUGIN_VERSION, ndrt_fold, false, &comm, error,
              sizeof error)) {
        fprintf(stderr, "cannot start MPI: %s\n", error);
        return 1;
    }
    member *w = member_new(comm, 0);
    all_checks(w);
    int bad = w->status != NDRT_OK || w->wrong;
    if (bad)
        fprintf(stderr, "rank %d: %s\n", comm->rank,
                w->wrong ? w->wrong : comm->error);
    member_free(w);
    comm->ops->close(comm);
    return bad;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_sizes_differ),
    };

    if (argc > 1)
        return under_mpi(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
