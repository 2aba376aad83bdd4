/* comm_mpi.c - one process per rank. A plug-in of its own, opened only under a
 * launcher, so that a program runs without MPI installed.
 *
 * MPI_Reduce may add in any order. Here sums are made by hand: everybody sends
 * piece i to member i (alltoall), which adds the copies in rank order; then
 * pieces are gathered. The bits equal those of comm_local.c.
 *
 * Counts of MPI calls are ints. Data go in rounds of at most `chunk` elements
 * per member, which also bounds the buffers. Sends are synchronous (Ssend):
 * nothing relies on buffering, as the schedule is free of deadlock without.
 * While MPI waits it takes a whole CPU; where the rank computes at the same
 * time, this thread asks now and then and sleeps in between.
 */
#include "comm.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEFAULT_CHUNK = 1 << 20, SMALL = 2048, TAG = 7 };

typedef struct mpi_comm {
    ndrt_comm base;
    ndrt_fold_fn *fold;
    int64_t chunk;                /* elements per member and round */
    float *out, *in, *sum;        /* size * chunk, size * chunk, chunk */
    int64_t cap;                  /* elements that each of the three has room
                                     for, per member */
    const float **src;
    int *count, *at, *count2, *at2;
    MPI_Comm *made;               /* to be freed */
    int nmade;
    int lane;                     /* 0, or which one more of the rank's */
    struct mpi_comm *more[NDRT_LANES - 1];   /* lane 0: for other threads */
    int nmore, given;             /* how many there are, and are in use */
} mpi_comm;

static ndrt_status failed(ndrt_comm *c, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;

    MPI_Error_string(code, text, &len);
    snprintf(c->error, sizeof c->error, "%.*s: %.200s",
             (int)strcspn(what, "("), what, text);
    return NDRT_EINTERNAL;
}

#define MPI_TRY(c, call) \
    do { \
        int code_ = (call); \
        if (code_ != MPI_SUCCESS) \
            return failed(c, #call, code_); \
    } while (0)

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static ndrt_status no_memory(ndrt_comm *c)
{
    snprintf(c->error, sizeof c->error, "out of memory for MPI buffers");
    return NDRT_EINTERNAL;
}

static ndrt_status other_bytes(ndrt_comm *c, int from, int got, size_t want)
{
    snprintf(c->error, sizeof c->error,
             "rank %d sent %d bytes, %zu were expected", from, got, want);
    return NDRT_EINTERNAL;
}

/* Makes room for `len` elements per member (at most chunk are ever needed). */
static ndrt_status room(mpi_comm *m, int64_t len)
{
    size_t all;

    if (len <= m->cap)
        return NDRT_OK;
    free(m->out);
    free(m->in);
    free(m->sum);
    m->cap = 0;
    all = (size_t)len * (size_t)m->base.size * sizeof(float);
    m->out = malloc(all);
    m->in = malloc(all);
    m->sum = malloc((size_t)len * sizeof(float));
    if (!m->out || !m->in || !m->sum)
        return no_memory(&m->base);
    m->cap = len;
    return NDRT_OK;
}

static ndrt_status mpi_group(ndrt_comm *c, ndrt_group *g)
{
    mpi_comm *m = (mpi_comm *)c;
    MPI_Group all, some;
    MPI_Comm *made = realloc(m->made, (size_t)(m->nmade + 1) * sizeof *made);

    if (!made)
        return no_memory(c);
    m->made = made;
    MPI_TRY(c, MPI_Comm_group(MPI_COMM_WORLD, &all));
    MPI_TRY(c, MPI_Group_incl(all, g->n, g->ranks, &some));
    MPI_TRY(c, MPI_Comm_create_group(MPI_COMM_WORLD, some, TAG,
                                     &made[m->nmade]));
    MPI_TRY(c, MPI_Comm_set_errhandler(made[m->nmade], MPI_ERRORS_RETURN));
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    /* An index, since the array may move. */
    g->impl = (void *)(intptr_t)m->nmade++;
    return NDRT_OK;
}

static MPI_Comm comm_of(const mpi_comm *m, const ndrt_group *g)
{
    return m->made[(intptr_t)g->impl];
}

/* in[] holds one copy of `len` elements per member. */
static void fold_copies(mpi_comm *m, const ndrt_group *g, float *dst,
                        int64_t len, ndrt_fold_kind how)
{
    for (int i = 0; i < g->n; i++)
        m->src[i] = m->in + i * len;
    m->fold(dst, m->src, g->n, len, how);
}

/* ---- all_reduce ------------------------------------------------------- */

static ndrt_status reduce_small(mpi_comm *m, ndrt_group *g, float *x,
                                int64_t n, ndrt_fold_kind how)
{
    ndrt_status s = room(m, n);

    if (s != NDRT_OK)
        return s;
    MPI_TRY(&m->base, MPI_Allgather(x, (int)n, MPI_FLOAT, m->in, (int)n,
                                    MPI_FLOAT, comm_of(m, g)));
    fold_copies(m, g, x, n, how);
    return NDRT_OK;
}

/* n <= chunk * members. */
static ndrt_status reduce_round(mpi_comm *m, ndrt_group *g, float *x,
                                int64_t n, ndrt_fold_kind how)
{
    ndrt_comm *c = &m->base;
    int64_t q = n / g->n, rem = n % g->n, at = 0;
    ndrt_status s = room(m, q + 1);

    if (s != NDRT_OK)
        return s;
    int mine = (int)(q + (g->me < rem));
    for (int i = 0; i < g->n; i++) {
        m->count[i] = (int)(q + (i < rem));
        m->at[i] = (int)at;
        at += m->count[i];
        m->count2[i] = mine;
        m->at2[i] = i * mine;
    }
    MPI_TRY(c, MPI_Alltoallv(x, m->count, m->at, MPI_FLOAT, m->in, m->count2,
                             m->at2, MPI_FLOAT, comm_of(m, g)));
    fold_copies(m, g, x + m->at[g->me], mine, how);
    MPI_TRY(c, MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, x, m->count, m->at,
                              MPI_FLOAT, comm_of(m, g)));
    return NDRT_OK;
}

static ndrt_status mpi_all_reduce(ndrt_comm *c, ndrt_group *g, float *x,
                                  int64_t n, ndrt_fold_kind how)
{
    mpi_comm *m = (mpi_comm *)c;

    if (n <= min64(SMALL, m->chunk))
        return reduce_small(m, g, x, n, how);
    /* q + 1 elements per member must fit in a chunk and all in an int */
    int64_t step = min64((m->chunk - 1 > 0 ? m->chunk - 1 : 1) * g->n,
                         (int64_t)1 << 30);
    for (int64_t at = 0; at < n; at += step) {
        ndrt_status s = reduce_round(m, g, x + at, min64(step, n - at), how);
        if (s != NDRT_OK)
            return s;
    }
    return NDRT_OK;
}

/* ---- pieces of an axis ------------------------------------------------ */

/* Copies elements [at, at + len) of a piece whose `outer` rows of `row`
 * elements are `stride` apart. */
static void pack(float *to, const float *piece, int64_t row, int64_t stride,
                 int64_t at, int64_t len)
{
    while (len > 0) {
        int64_t part = min64(row - at % row, len);
        memcpy(to, piece + at / row * stride + at % row,
               (size_t)part * sizeof *to);
        to += part;
        at += part;
        len -= part;
    }
}

static void unpack(float *piece, const float *from, int64_t row,
                   int64_t stride, int64_t at, int64_t len)
{
    while (len > 0) {
        int64_t part = min64(row - at % row, len);
        memcpy(piece + at / row * stride + at % row, from,
               (size_t)part * sizeof *from);
        from += part;
        at += part;
        len -= part;
    }
}

/* Elements of member i's piece that travel in the round that starts at `at`. */
static int64_t share(const mpi_comm *m, const ndrt_layout *l, int i,
                     int64_t at)
{
    int64_t left = l->outer * l->n[i] * l->inner - at;

    return left < 0 ? 0 : min64(left, m->chunk);
}

static int64_t longest(const ndrt_group *g, const ndrt_layout *l)
{
    int64_t most = 0;

    for (int i = 0; i < g->n; i++)
        most = l->n[i] > most ? l->n[i] : most;
    return l->outer * most * l->inner;
}

static ndrt_status scatter_round(mpi_comm *m, ndrt_group *g,
                                 const ndrt_layout *l, int64_t at)
{
    int mine = (int)share(m, l, g->me, at);
    int64_t put = 0, off = 0;

    for (int i = 0; i < g->n; i++) {
        m->count[i] = (int)share(m, l, i, at);
        m->at[i] = (int)put;
        pack(m->out + put, l->x + off * l->inner, l->n[i] * l->inner, l->x_o,
             at, m->count[i]);
        put += m->count[i];
        off += l->n[i];
        m->count2[i] = mine;
        m->at2[i] = i * mine;
    }
    MPI_TRY(&m->base, MPI_Alltoallv(m->out, m->count, m->at, MPI_FLOAT, m->in,
                                    m->count2, m->at2, MPI_FLOAT,
                                    comm_of(m, g)));
    fold_copies(m, g, m->sum, mine, l->how);
    unpack(l->y, m->sum, l->n[g->me] * l->inner, l->y_o, at, mine);
    return NDRT_OK;
}

static ndrt_status mpi_reduce_scatter(ndrt_comm *c, ndrt_group *g,
                                      const ndrt_layout *l)
{
    mpi_comm *m = (mpi_comm *)c;
    int64_t most = longest(g, l);
    ndrt_status s = room(m, min64(most, m->chunk));

    for (int64_t at = 0; at < most && s == NDRT_OK; at += m->chunk)
        s = scatter_round(m, g, l, at);
    return s;
}

static ndrt_status gather_round(mpi_comm *m, ndrt_group *g,
                                const ndrt_layout *l, int64_t at)
{
    int mine = (int)share(m, l, g->me, at);
    int64_t put = 0, off = 0;

    pack(m->out, l->x, l->n[g->me] * l->inner, l->x_o, at, mine);
    for (int i = 0; i < g->n; i++) {
        m->count[i] = (int)share(m, l, i, at);
        m->at[i] = (int)put;
        put += m->count[i];
    }
    /* bytes and not floats: any bits may be inside */
    MPI_TRY(&m->base, MPI_Allgatherv(m->out, mine, MPI_UINT32_T, m->in,
                                     m->count, m->at, MPI_UINT32_T,
                                     comm_of(m, g)));
    for (int i = 0; i < g->n; i++) {
        unpack(l->y + off * l->inner, m->in + m->at[i], l->n[i] * l->inner,
               l->y_o, at, m->count[i]);
        off += l->n[i];
    }
    return NDRT_OK;
}

static ndrt_status mpi_all_gather(ndrt_comm *c, ndrt_group *g,
                                  const ndrt_layout *l)
{
    mpi_comm *m = (mpi_comm *)c;
    int64_t most = longest(g, l);
    ndrt_status s = room(m, min64(most, m->chunk));

    for (int64_t at = 0; at < most && s == NDRT_OK; at += m->chunk)
        s = gather_round(m, g, l, at);
    return s;
}

/* ---- any bytes between members ---------------------------------------- */

/* Sends to one member while it receives from another, both in rounds. Both ends
 * know how many there are, so a round waits for the same round elsewhere and
 * never for a later one. */
static ndrt_status pass(mpi_comm *m, ndrt_group *g, int to, const char *x,
                        size_t out, int from, char *y, size_t in)
{
    ndrt_comm *c = &m->base;
    size_t most = (size_t)m->chunk * sizeof(float);

    while (out > 0 || in > 0) {
        size_t put = out < most ? out : most, get = in < most ? in : most;
        MPI_Status status;
        int got;
        MPI_TRY(c, MPI_Sendrecv(x, (int)put, MPI_BYTE,
                                put ? to : MPI_PROC_NULL, TAG, y, (int)get,
                                MPI_BYTE, get ? from : MPI_PROC_NULL, TAG,
                                comm_of(m, g), &status));
        MPI_TRY(c, MPI_Get_count(&status, MPI_BYTE, &got));
        if (get && (size_t)got != get)
            return other_bytes(c, g->ranks[from], got, get);
        x += put;
        out -= put;
        y += get;
        in -= get;
    }
    return NDRT_OK;
}

static ndrt_status mpi_exchange(ndrt_comm *c, ndrt_group *g,
                                const ndrt_exchange *e)
{
    const char *x = e->send;
    char *y = e->recv;
    ndrt_status s = NDRT_OK;

    if (e->send_n[g->me])
        memcpy(y + e->recv_at[g->me], x + e->send_at[g->me],
               e->send_n[g->me]);
    for (int by = 1; by < g->n && s == NDRT_OK; by++) {
        int to = ndrt_member(g, by), from = ndrt_member(g, -by);
        s = pass((mpi_comm *)c, g, to, x + e->send_at[to], e->send_n[to],
                 from, y + e->recv_at[from], e->recv_n[from]);
    }
    return s;
}

static ndrt_status mpi_shift(ndrt_comm *c, ndrt_group *g, int by,
                             const void *x, void *y, size_t bytes_out,
                             size_t bytes_in)
{
    int from = ndrt_member(g, by);

    if (from != g->me)
        return pass((mpi_comm *)c, g, ndrt_member(g, -by), x, bytes_out, from,
                    y, bytes_in);
    if (bytes_in)
        memcpy(y, x, bytes_in);
    return NDRT_OK;
}

static ndrt_status mpi_barrier(ndrt_comm *c, ndrt_group *g)
{
    MPI_TRY(c, MPI_Barrier(comm_of((mpi_comm *)c, g)));
    return NDRT_OK;
}

/* ---- one to one ------------------------------------------------------- */

static int tag_of(const ndrt_comm *c)
{
    return TAG + ((const mpi_comm *)(const void *)c)->lane;
}

/* Sleeps are short at first: most messages are soon there. */
static int finish(const ndrt_comm *c, MPI_Request *request, MPI_Status *status)
{
    enum { FIRST = 10000, LONGEST = 200000 };     /* nanoseconds */
    struct timespec t = {0, FIRST};
    int done = 0, code = MPI_SUCCESS;

    if (((const mpi_comm *)(const void *)c)->lane == 0)
        return MPI_Wait(request, status);
    while (code == MPI_SUCCESS && !done) {
        code = MPI_Test(request, &done, status);
        if (code == MPI_SUCCESS && !done)
            nanosleep(&t, NULL);
        t.tv_nsec = t.tv_nsec < LONGEST / 2 ? 2 * t.tv_nsec : LONGEST;
    }
    return code;
}

static ndrt_status mpi_send(ndrt_comm *c, int to, const void *x, size_t bytes)
{
    size_t most = (size_t)((mpi_comm *)c)->chunk * sizeof(float);
    const char *p = x;

    do {
        size_t len = bytes < most ? bytes : most;
        MPI_Request request;
        MPI_TRY(c, MPI_Issend(p, (int)len, MPI_BYTE, to, tag_of(c),
                              MPI_COMM_WORLD, &request));
        MPI_TRY(c, finish(c, &request, MPI_STATUS_IGNORE));
        p += len;
        bytes -= len;
    } while (bytes > 0);
    return NDRT_OK;
}

static ndrt_status mpi_recv(ndrt_comm *c, int from, void *x, size_t bytes)
{
    size_t most = (size_t)((mpi_comm *)c)->chunk * sizeof(float);
    char *p = x;

    do {
        size_t len = bytes < most ? bytes : most;
        MPI_Request request;
        MPI_Status status;
        int got;
        MPI_TRY(c, MPI_Irecv(p, (int)len, MPI_BYTE, from, tag_of(c),
                             MPI_COMM_WORLD, &request));
        MPI_TRY(c, finish(c, &request, &status));
        MPI_TRY(c, MPI_Get_count(&status, MPI_BYTE, &got));
        if ((size_t)got != len)
            return other_bytes(c, from, got, len);
        p += len;
        bytes -= len;
    } while (bytes > 0);
    return NDRT_OK;
}

/* ---- start and end ---------------------------------------------------- */

static void mpi_abort(ndrt_comm *c, ndrt_status s, const char *line)
{
    (void)c;
    fprintf(stderr, "%s\n", line);
    MPI_Abort(MPI_COMM_WORLD, (int)s);
}

static size_t mpi_scratch(const ndrt_comm *c)
{
    const mpi_comm *m = (const mpi_comm *)c;
    int64_t cap = m->cap;

    for (int i = 0; i < m->nmore; i++)
        cap += m->more[i]->cap;
    return (size_t)cap * (2 * (size_t)c->size + 1) * sizeof(float);
}

static ndrt_comm *mpi_another(ndrt_comm *c)
{
    mpi_comm *m = (mpi_comm *)c;

    return m->given < m->nmore ? &m->more[m->given++]->base : NULL;
}

static void mpi_free(mpi_comm *m)
{
    for (int i = 0; i < m->nmade; i++)
        MPI_Comm_free(&m->made[i]);
    free(m->out);
    free(m->in);
    free(m->sum);
    free(m->src);
    free(m->count);
    free(m->made);
    free(m);
}

static void mpi_close(ndrt_comm *c)
{
    mpi_comm *m = (mpi_comm *)c;

    for (int i = 0; i < m->nmore; i++)
        mpi_free(m->more[i]);
    mpi_free(m);
    MPI_Finalize();
}

static const ndrt_comm_ops mpi_ops = {
    .group = mpi_group,
    .all_reduce = mpi_all_reduce,
    .reduce_scatter = mpi_reduce_scatter,
    .all_gather = mpi_all_gather,
    .exchange = mpi_exchange,
    .shift = mpi_shift,
    .send = mpi_send,
    .recv = mpi_recv,
    .barrier = mpi_barrier,
    .abort = mpi_abort,
    .scratch = mpi_scratch,
    .another = mpi_another,
    .close = mpi_close,
};

/* NDRT_CHUNK makes the rounds small, for tests; rank 0 decides for all. */
static int64_t chunk_size(int size)
{
    const char *text = getenv("NDRT_CHUNK");
    long long chunk = text ? strtoll(text, NULL, 10) : DEFAULT_CHUNK;
    long long most = ((long long)1 << 30) / size;

    if (chunk < 1)
        chunk = DEFAULT_CHUNK;
    if (chunk > most)             /* a whole round is counted in an int */
        chunk = most;
    MPI_Bcast(&chunk, 1, MPI_LONG_LONG, 0, MPI_COMM_WORLD);
    return chunk;
}

/* A launcher may bind each rank to CPUs of its own or let all roam: the ranks
 * of a host share what any of them may use, but none leaves its own. Hosts may
 * differ; the least counts. */
static int cpus_per_rank(int rank)
{
    cpu_set_t mine, host;
    MPI_Comm local;
    int ranks, cpus;

    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank,
                        MPI_INFO_NULL, &local);
    MPI_Comm_size(local, &ranks);
    MPI_Allreduce(&mine, &host, (int)sizeof mine, MPI_BYTE, MPI_BOR, local);
    MPI_Comm_free(&local);
    cpus = CPU_COUNT(&host) / ranks;
    if (cpus > CPU_COUNT(&mine))
        cpus = CPU_COUNT(&mine);
    MPI_Allreduce(MPI_IN_PLACE, &cpus, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return cpus;
}

/* NULL: no memory. */
static mpi_comm *new_comm(ndrt_fold_fn *fold, int rank, int size, int cpus,
                          int64_t chunk)
{
    mpi_comm *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    m->base = (ndrt_comm){.ops = &mpi_ops, .rank = rank, .size = size,
                          .cpus = cpus};
    m->fold = fold;
    m->chunk = chunk;
    m->src = calloc((size_t)size, sizeof *m->src);
    m->count = calloc((size_t)size * 4, sizeof *m->count);
    if (!m->src || !m->count) {
        mpi_free(m);
        return NULL;
    }
    m->at = m->count + size;
    m->count2 = m->count + 2 * size;
    m->at2 = m->count + 3 * size;
    return m;
}

/* Two threads may call MPI at once, on every rank. */
static bool all_have(int level)
{
    int lowest = level;

    MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return lowest >= MPI_THREAD_MULTIPLE;
}

ndrt_mpi_open_fn ndrt_mpi_open;

ndrt_status ndrt_mpi_open(int version, ndrt_fold_fn *fold, int more,
                          ndrt_comm **comm, char *error, size_t error_size)
{
    int had, rank, size;

    if (version != NDRT_PLUGIN_VERSION) {
        snprintf(error, error_size,
                 "it is of another version than the program");
        return NDRT_EINTERNAL;
    }
    if (MPI_Init_thread(NULL, NULL,
                        more ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED,
                        &had) != MPI_SUCCESS) {
        snprintf(error, error_size, "MPI_Init_thread failed");
        return NDRT_EINTERNAL;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int cpus = cpus_per_rank(rank);
    int64_t chunk = chunk_size(size);
    mpi_comm *m = new_comm(fold, rank, size, cpus, chunk);
    if (!all_have(more ? had : MPI_THREAD_SINGLE))
        more = 0;
    for (int i = 0; m && i < more; i++) {
        m->more[i] = new_comm(fold, rank, size, cpus, chunk);
        if (!m->more[i])
            break;
        m->more[i]->lane = i + 1;
        m->nmore++;
    }
    if (!m || m->nmore < more) {
        snprintf(error, error_size, "out of memory");
        MPI_Abort(MPI_COMM_WORLD, NDRT_EINTERNAL);
        return NDRT_EINTERNAL;
    }
    *comm = &m->base;
    return NDRT_OK;
}
