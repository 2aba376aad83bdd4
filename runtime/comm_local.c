/* comm_local.c - ranks as threads of one process.
 *
 * A collective is: put your pointers where the group can see them, wait for
 * all, work on one piece each, wait for all. In all_reduce member i owns piece
 * i of every member's buffer: it alone reads and writes that piece, so the
 * result goes straight to all buffers and nothing is copied twice.
 *
 * Waiting means sleeping on a condition variable, never spinning: two cores
 * may host 64 ranks. Sleepers are woken when the lock is free, or they would go
 * back to sleep on it. A failing rank sets `stopped` and wakes every sleeper.
 */
#include "comm.h"
#include "ndrt_internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct meeting {          /* one group of ranks */
    struct meeting *next;
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    int lane;                     /* of the communicators that meet here */
    int n, arrived;
    uint64_t generation;
    int *ranks;
    struct slot {                 /* what each member shows the others */
        float *x;
        int64_t n;                /* elements, bytes, or the stride x_o */
    } *slot;
    size_t *at, *bytes;           /* exchange: n * n, what [from][to] gets */
} meeting;

/* A send that waits to be taken; lives on the sender's stack. */
typedef struct parcel {
    struct parcel *next;
    int from, lane;
    const void *x;
    size_t bytes;
    bool taken;
} parcel;

typedef struct mailbox {          /* of one receiver */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    parcel *first;
} mailbox;

typedef struct local_comm {
    ndrt_comm base;
    ndrt_world *world;
    int lane;                     /* 0, or which one more of the rank's */
    int given;                    /* lane 0: how many more are in use */
    const float **src;            /* one per rank, for ndrt_fold */
} local_comm;

struct ndrt_world {
    int size;
    pthread_mutex_t lock;         /* meetings, status */
    meeting *meetings;
    mailbox *box;
    local_comm *comm;             /* of all ranks, lane by lane */
    ndrt_status status;
    atomic_bool stopped;
};

static const ndrt_comm_ops local_ops;

/* ---- making and freeing ----------------------------------------------- */

static int allowed_cpus(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

ndrt_world *ndrt_world_new(int size)
{
    ndrt_world *w = calloc(1, sizeof *w);

    if (!w)
        return NULL;
    w->size = size;
    pthread_mutex_init(&w->lock, NULL);
    w->box = calloc((size_t)size, sizeof *w->box);
    w->comm = calloc((size_t)size * NDRT_LANES, sizeof *w->comm);
    const float **src = calloc((size_t)size * (size_t)size * NDRT_LANES,
                               sizeof *src);
    if (!w->box || !w->comm || !src) {
        free(w->box);
        free(w->comm);
        free(src);
        free(w);
        return NULL;
    }
    int cpus = allowed_cpus() / size;
    for (int i = 0; i < size; i++) {
        pthread_mutex_init(&w->box[i].lock, NULL);
        pthread_cond_init(&w->box[i].changed, NULL);
    }
    for (int i = 0; i < size * NDRT_LANES; i++) {
        w->comm[i].base = (ndrt_comm){.ops = &local_ops, .rank = i % size,
                                      .size = size, .cpus = cpus};
        w->comm[i].world = w;
        w->comm[i].lane = i / size;
        w->comm[i].src = src + (size_t)i * (size_t)size;
    }
    return w;
}

ndrt_comm *ndrt_world_comm(ndrt_world *w, int rank)
{
    return &w->comm[rank].base;
}

ndrt_status ndrt_world_status(const ndrt_world *w)
{
    return w->status;
}

static void free_meeting(meeting *m)
{
    free(m->ranks);
    free(m->slot);
    free(m->at);
    free(m->bytes);
    free(m);
}

void ndrt_world_free(ndrt_world *w)
{
    while (w->meetings) {
        meeting *m = w->meetings;
        w->meetings = m->next;
        pthread_mutex_destroy(&m->lock);
        pthread_cond_destroy(&m->all_here);
        free_meeting(m);
    }
    for (int i = 0; i < w->size; i++) {
        pthread_mutex_destroy(&w->box[i].lock);
        pthread_cond_destroy(&w->box[i].changed);
    }
    pthread_mutex_destroy(&w->lock);
    free(w->comm[0].src);
    free(w->comm);
    free(w->box);
    free(w);
}

static meeting *new_meeting(const ndrt_group *g, int lane)
{
    meeting *m = calloc(1, sizeof *m);
    size_t n = (size_t)g->n;

    if (!m)
        return NULL;
    m->lane = lane;
    m->n = g->n;
    m->ranks = malloc(n * sizeof *m->ranks);
    m->slot = calloc(n, sizeof *m->slot);
    m->at = calloc(n * n, sizeof *m->at);
    m->bytes = calloc(n * n, sizeof *m->bytes);
    if (!m->ranks || !m->slot || !m->at || !m->bytes) {
        free_meeting(m);
        return NULL;
    }
    memcpy(m->ranks, g->ranks, n * sizeof *m->ranks);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->all_here, NULL);
    return m;
}

/* The first member to come makes the meeting, the others find it. */
static ndrt_status local_group(ndrt_comm *c, ndrt_group *g)
{
    ndrt_world *w = ((local_comm *)c)->world;
    int lane = ((local_comm *)c)->lane;
    meeting *m;

    pthread_mutex_lock(&w->lock);
    for (m = w->meetings; m; m = m->next) {
        if (m->lane == lane && m->n == g->n &&
            memcmp(m->ranks, g->ranks, (size_t)g->n * sizeof *g->ranks) == 0)
            break;
    }
    if (!m && (m = new_meeting(g, lane))) {
        m->next = w->meetings;
        w->meetings = m;
    }
    pthread_mutex_unlock(&w->lock);
    g->impl = m;
    if (!m)
        snprintf(c->error, sizeof c->error, "out of memory for groups");
    return m ? NDRT_OK : NDRT_EINTERNAL;
}

/* ---- collectives ------------------------------------------------------ */

static ndrt_status wait_all(ndrt_comm *c, meeting *m)
{
    ndrt_world *w = ((local_comm *)c)->world;

    pthread_mutex_lock(&m->lock);
    uint64_t generation = m->generation;
    if (++m->arrived == m->n) {
        m->arrived = 0;
        m->generation++;
        pthread_mutex_unlock(&m->lock);
        pthread_cond_broadcast(&m->all_here);
        return NDRT_OK;
    }
    while (m->generation == generation && !atomic_load(&w->stopped))
        pthread_cond_wait(&m->all_here, &m->lock);
    bool met = m->generation != generation;
    pthread_mutex_unlock(&m->lock);
    return met ? NDRT_OK : NDRT_ESTOPPED;
}

static ndrt_status show(ndrt_comm *c, ndrt_group *g, const void *x, int64_t n)
{
    meeting *m = g->impl;

    m->slot[g->me] = (struct slot){(float *)x, n};
    return wait_all(c, m);
}

static ndrt_status local_all_reduce(ndrt_comm *c, ndrt_group *g, float *x,
                                    int64_t n, ndrt_fold_kind how)
{
    meeting *m = g->impl;
    const float **src = ((local_comm *)c)->src;
    ndrt_status s = show(c, g, x, n);

    if (s != NDRT_OK)
        return s;
    for (int i = 0; i < g->n; i++) {
        if (m->slot[i].n != n) {
            snprintf(c->error, sizeof c->error, "all_reduce of %lld elements "
                     "meets one of %lld", (long long)n,
                     (long long)m->slot[i].n);
            return NDRT_EINTERNAL;
        }
    }
    enum { BLOCK = 1024 };
    float sum[BLOCK];
    int64_t q = n / g->n, rem = n % g->n, me = g->me;
    int64_t at = me * q + (me < rem ? me : rem);
    int64_t end = at + q + (me < rem);
    for (; at < end; at += BLOCK) {
        int64_t len = end - at < BLOCK ? end - at : BLOCK;
        for (int i = 0; i < g->n; i++)
            src[i] = m->slot[i].x + at;
        ndrt_fold(sum, src, g->n, len, how);
        for (int i = 0; i < g->n; i++)
            memcpy(m->slot[i].x + at, sum, (size_t)len * sizeof *sum);
    }
    return wait_all(c, m);
}

static ndrt_status local_reduce_scatter(ndrt_comm *c, ndrt_group *g,
                                        const ndrt_layout *l)
{
    meeting *m = g->impl;
    const float **src = ((local_comm *)c)->src;
    ndrt_status s = show(c, g, l->x, l->x_o);
    int64_t off = 0;

    if (s != NDRT_OK)
        return s;
    for (int i = 0; i < g->me; i++)
        off += l->n[i];
    for (int64_t o = 0; o < l->outer; o++) {
        for (int i = 0; i < g->n; i++)
            src[i] = m->slot[i].x + o * m->slot[i].n + off * l->inner;
        ndrt_fold(l->y + o * l->y_o, src, g->n, l->n[g->me] * l->inner,
                  l->how);
    }
    return wait_all(c, m);
}

static ndrt_status local_all_gather(ndrt_comm *c, ndrt_group *g,
                                    const ndrt_layout *l)
{
    meeting *m = g->impl;
    ndrt_status s = show(c, g, l->x, l->x_o);

    if (s != NDRT_OK)
        return s;
    float *to = l->y;
    for (int i = 0; i < g->n; i++) {
        int64_t len = l->n[i] * l->inner;
        for (int64_t o = 0; o < l->outer; o++) {
            const float *from = m->slot[i].x + o * m->slot[i].n;
            if (from != to + o * l->y_o)
                memcpy(to + o * l->y_o, from, (size_t)len * sizeof *to);
        }
        to += len;
    }
    return wait_all(c, m);
}

static void copy_bytes(void *to, const void *from, size_t bytes)
{
    if (bytes)
        memcpy(to, from, bytes);
}

static ndrt_status other_bytes(ndrt_comm *c, int from, size_t sent,
                               size_t expected)
{
    snprintf(c->error, sizeof c->error, "rank %d sent %zu bytes, %zu were "
             "expected", from, sent, expected);
    return NDRT_EINTERNAL;
}

/* Ranges are shown as copies, for a member's own may lie on its stack. */
static ndrt_status local_exchange(ndrt_comm *c, ndrt_group *g,
                                  const ndrt_exchange *e)
{
    meeting *m = g->impl;
    size_t n = (size_t)g->n, me = (size_t)g->me;
    ndrt_status s;

    copy_bytes((char *)e->recv + e->recv_at[me],
               (const char *)e->send + e->send_at[me], e->send_n[me]);
    if (n == 1)
        return NDRT_OK;
    memcpy(m->at + me * n, e->send_at, n * sizeof *m->at);
    memcpy(m->bytes + me * n, e->send_n, n * sizeof *m->bytes);
    s = show(c, g, e->send, 0);
    for (size_t i = 0; i < n && s == NDRT_OK; i++) {
        size_t sent = m->bytes[i * n + me];
        if (sent != e->recv_n[i])
            return other_bytes(c, g->ranks[i], sent, e->recv_n[i]);
        if (i != me)
            copy_bytes((char *)e->recv + e->recv_at[i],
                       (const char *)m->slot[i].x + m->at[i * n + me], sent);
    }
    return s == NDRT_OK ? wait_all(c, m) : s;
}

static ndrt_status local_shift(ndrt_comm *c, ndrt_group *g, int by,
                               const void *x, void *y, size_t bytes_out,
                               size_t bytes_in)
{
    meeting *m = g->impl;
    int from = ndrt_member(g, by);
    ndrt_status s;

    if (from == g->me) {
        copy_bytes(y, x, bytes_in);
        return NDRT_OK;
    }
    s = show(c, g, x, (int64_t)bytes_out);
    if (s != NDRT_OK)
        return s;
    if (m->slot[from].n != (int64_t)bytes_in)
        return other_bytes(c, g->ranks[from], (size_t)m->slot[from].n,
                           bytes_in);
    copy_bytes(y, m->slot[from].x, bytes_in);
    return wait_all(c, m);
}

static ndrt_status local_barrier(ndrt_comm *c, ndrt_group *g)
{
    return wait_all(c, g->impl);
}

/* ---- one to one ------------------------------------------------------- */

static void unlink_parcel(mailbox *b, parcel *p)
{
    parcel **at = &b->first;

    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
}

static ndrt_status local_send(ndrt_comm *c, int to, const void *x,
                              size_t bytes)
{
    ndrt_world *w = ((local_comm *)c)->world;
    mailbox *b = &w->box[to];
    parcel p = {.from = c->rank, .lane = ((local_comm *)c)->lane, .x = x,
                .bytes = bytes};
    parcel **end;

    pthread_mutex_lock(&b->lock);
    for (end = &b->first; *end; end = &(*end)->next)
        continue;
    *end = &p;
    pthread_cond_broadcast(&b->changed);
    while (!p.taken && !atomic_load(&w->stopped))
        pthread_cond_wait(&b->changed, &b->lock);
    if (!p.taken)
        unlink_parcel(b, &p);
    pthread_mutex_unlock(&b->lock);
    return p.taken ? NDRT_OK : NDRT_ESTOPPED;
}

static parcel *parcel_from(const mailbox *b, int from, int lane)
{
    parcel *p = b->first;

    while (p && (p->from != from || p->lane != lane))
        p = p->next;
    return p;
}

/* The copy is made under the lock, so that a sender which stops meanwhile
 * cannot leave with its parcel. */
static ndrt_status local_recv(ndrt_comm *c, int from, void *x, size_t bytes)
{
    ndrt_world *w = ((local_comm *)c)->world;
    int lane = ((local_comm *)c)->lane;
    mailbox *b = &w->box[c->rank];
    ndrt_status s = NDRT_OK;
    bool took = false;
    parcel *p;

    pthread_mutex_lock(&b->lock);
    while (!(p = parcel_from(b, from, lane)) && !atomic_load(&w->stopped))
        pthread_cond_wait(&b->changed, &b->lock);
    if (!p) {
        s = NDRT_ESTOPPED;
    } else if (p->bytes != bytes) {
        s = other_bytes(c, from, p->bytes, bytes);
    } else {
        copy_bytes(x, p->x, bytes);
        unlink_parcel(b, p);
        p->taken = took = true;
    }
    pthread_mutex_unlock(&b->lock);
    if (took)
        pthread_cond_broadcast(&b->changed);
    return s;
}

/* ---- stopping --------------------------------------------------------- */

static void local_abort(ndrt_comm *c, ndrt_status s, const char *line)
{
    ndrt_world *w = ((local_comm *)c)->world;

    pthread_mutex_lock(&w->lock);
    if (w->status == NDRT_OK) {
        w->status = s;
        fprintf(stderr, "%s\n", line);
    }
    atomic_store(&w->stopped, true);
    for (meeting *m = w->meetings; m; m = m->next) {
        pthread_mutex_lock(&m->lock);
        pthread_cond_broadcast(&m->all_here);
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->size; i++) {
        pthread_mutex_lock(&w->box[i].lock);
        pthread_cond_broadcast(&w->box[i].changed);
        pthread_mutex_unlock(&w->box[i].lock);
    }
}

static size_t local_scratch(const ndrt_comm *c)
{
    return (size_t)c->size * sizeof(float *);
}

static ndrt_comm *local_another(ndrt_comm *c)
{
    local_comm *l = (local_comm *)c;

    if (l->lane || l->given + 1 == NDRT_LANES)
        return NULL;
    l->given++;
    return &l->world->comm[l->given * c->size + c->rank].base;
}

/* All is freed with the world: others may still be using it. */
static void local_close(ndrt_comm *c)
{
    (void)c;
}

static const ndrt_comm_ops local_ops = {
    .group = local_group,
    .all_reduce = local_all_reduce,
    .reduce_scatter = local_reduce_scatter,
    .all_gather = local_all_gather,
    .exchange = local_exchange,
    .shift = local_shift,
    .send = local_send,
    .recv = local_recv,
    .barrier = local_barrier,
    .abort = local_abort,
    .scratch = local_scratch,
    .another = local_another,
    .close = local_close,
};
