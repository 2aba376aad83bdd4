/* comm_local.c - ranks as threads of one process.
 *
 * A collective is a meeting (meeting.c): its members show their buffers, and
 * who has come last begins to work on them, in chunks that others who are awake
 * take, too. In all_reduce a chunk is a range of elements of all buffers: it is
 * read from each, added up in the order of the ranks, and written to each, so
 * nothing is copied in between and the bits depend on nobody's speed.
 *
 * Messages wait by sleeping on a condition variable. Sleepers are woken when
 * the lock is free, or they would go back to sleep on it. A failing rank sets
 * `stopped` and wakes every sleeper.
 */
#include "meeting.h"
#include "ndrt_internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* A send that waits to be taken; lives on the sender's stack. */
typedef struct parcel {
    struct parcel *next;
    int from, lane;
    const void *x;
    size_t bytes;
    bool held, taken;             /* by the receiver, who copies it */
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
    float **at;                   /* one per rank, for ndrt_fold_to */
} local_comm;

struct ndrt_world {
    int size;
    pthread_mutex_t lock;         /* meetings, status */
    int cpus;                     /* that the ranks share */
    ndrt_meeting *meetings;
    mailbox *box;
    local_comm *comm;             /* of all ranks, lane by lane */
    ndrt_status status;
    atomic_bool stopped;
};

enum { SPINS = 100 };              /* a few microseconds */

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
    float **at = calloc((size_t)size * (size_t)size * NDRT_LANES, sizeof *at);
    if (!w->box || !w->comm || !at) {
        free(w->box);
        free(w->comm);
        free(at);
        free(w);
        return NULL;
    }
    w->cpus = allowed_cpus();
    for (int i = 0; i < size; i++) {
        pthread_mutex_init(&w->box[i].lock, NULL);
        pthread_cond_init(&w->box[i].changed, NULL);
    }
    for (int i = 0; i < size * NDRT_LANES; i++) {
        w->comm[i].base = (ndrt_comm){.ops = &local_ops, .rank = i % size,
                                      .size = size,
                                      .cpus = w->cpus / size};
        w->comm[i].world = w;
        w->comm[i].lane = i / size;
        w->comm[i].at = at + (size_t)i * (size_t)size;
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

void ndrt_world_free(ndrt_world *w)
{
    while (w->meetings) {
        ndrt_meeting *m = w->meetings;
        w->meetings = m->next;
        ndrt_meeting_free(m);
    }
    for (int i = 0; i < w->size; i++) {
        pthread_mutex_destroy(&w->box[i].lock);
        pthread_cond_destroy(&w->box[i].changed);
    }
    pthread_mutex_destroy(&w->lock);
    free(w->comm[0].at);
    free(w->comm);
    free(w->box);
    free(w);
}

/* The first member to come makes the meeting, the others find it. */
static ndrt_status local_group(ndrt_comm *c, ndrt_group *g)
{
    ndrt_world *w = ((local_comm *)c)->world;
    int lane = ((local_comm *)c)->lane;
    ndrt_meeting *m;

    pthread_mutex_lock(&w->lock);
    for (m = w->meetings; m; m = m->next) {
        if (m->lane == lane && m->n == g->n &&
            memcmp(m->ranks, g->ranks, (size_t)g->n * sizeof *g->ranks) == 0)
            break;
    }
    if (!m && (m = ndrt_meeting_new(g->ranks, g->n, lane))) {
        m->next = w->meetings;
        w->meetings = m;
        if (atomic_load(&w->stopped))
            ndrt_meeting_stop(m);
    }
    pthread_mutex_unlock(&w->lock);
    g->impl = m;
    if (!m)
        snprintf(c->error, sizeof c->error, "out of memory for groups");
    return m ? NDRT_OK : NDRT_EINTERNAL;
}

/* ---- collectives ------------------------------------------------------ */

/* What the chunks of a collective are cut from. */
typedef struct piece_job {
    const ndrt_meeting *m;
    float **at;                   /* room for a pointer per member */
    ndrt_fold_kind how;
    int64_t n, chunk;             /* all_reduce; elements of a chunk */
    const ndrt_layout *l;         /* the others */
} piece_job;

/* Chunks that read and write so many bytes of all members together stay in a
 * cache while they are worked on. */
static int64_t chunk_of(int members)
{
    enum { BYTES = 1 << 17, LEAST = 1024 };
    int64_t n = BYTES / (int64_t)sizeof(float) / members;

    return n > LEAST ? n : LEAST;
}

static int64_t chunks_in(int64_t n, int64_t chunk)
{
    return (n + chunk - 1) / chunk;
}

/* mine: what the others see, if it is another than before. */
static ndrt_status meet(ndrt_comm *c, ndrt_group *g, const ndrt_slot *mine,
                        ndrt_job job)
{
    const local_comm *l = (local_comm *)c;
    ndrt_meeting *m = g->impl;
    int others = l->world->cpus - 1;

    if (mine)
        m->slot[g->me] = *mine;
    job.helpers = others < g->n - 1 ? others : g->n - 1;
    job.spins = c->cpus > 0 && l->lane == 0 ? SPINS : 0;
    return ndrt_meet(m, &job);
}

/* To wait for all, with x for them to see. */
static ndrt_status show(ndrt_comm *c, ndrt_group *g, const void *x, int64_t n)
{
    ndrt_slot mine = {.x = (float *)x, .x_o = n};

    return meet(c, g, &mine, (ndrt_job){0});
}

static ndrt_status wait_all(ndrt_comm *c, ndrt_group *g)
{
    return meet(c, g, NULL, (ndrt_job){0});
}

static void reduce_chunk(const ndrt_job *job, int64_t i)
{
    const piece_job *p = job->arg;
    int64_t from = i * p->chunk, len = p->n - from;
    int n = p->m->n;

    for (int k = 0; k < n; k++)
        p->at[k] = p->m->slot[k].x + from;
    ndrt_fold_to(p->at, n, (const float *const *)p->at, n,
                 len < p->chunk ? len : p->chunk, p->how);
}

static ndrt_status local_all_reduce(ndrt_comm *c, ndrt_group *g, float *x,
                                    int64_t n, ndrt_fold_kind how)
{
    const ndrt_meeting *m = g->impl;
    piece_job p = {.m = m, .at = ((local_comm *)c)->at, .how = how, .n = n,
                   .chunk = chunk_of(g->n)};
    ndrt_job job = {.chunks = chunks_in(n, p.chunk), .run = reduce_chunk,
                    .arg = &p, .equal = true};
    ndrt_status s = meet(c, g, &(ndrt_slot){.x = x, .x_o = n}, job);

    for (int i = 0; i < g->n && s == NDRT_OK && !m->equal; i++) {
        int64_t other = m->slot[i].x_o;
        if (other == n)
            continue;
        snprintf(c->error, sizeof c->error, "all_reduce of %lld elements "
                 "meets one of %lld", (long long)n, (long long)other);
        s = NDRT_EINTERNAL;
    }
    return s == NDRT_OK && !m->equal ? NDRT_EINTERNAL : s;
}

/* ---- pieces of an axis -------------------------------------------------- */

/* Elements [from, from + len) of member `of`'s piece, counted over its rows;
 * what comes before the piece in the whole. */
typedef struct range {
    int of;
    int64_t from, len, before;
} range;

static int64_t piece_chunks(const piece_job *p)
{
    const ndrt_layout *l = p->l;
    int64_t n = 0;

    for (int i = 0; i < p->m->n; i++)
        n += chunks_in(l->outer * l->n[i] * l->inner, p->chunk);
    return n;
}

static range find_range(const piece_job *p, int64_t chunk)
{
    const ndrt_layout *l = p->l;
    range x = {.of = 0};

    for (;; x.of++) {
        int64_t n = l->outer * l->n[x.of] * l->inner;
        int64_t here = chunks_in(n, p->chunk);
        if (chunk < here) {
            x.from = chunk * p->chunk;
            x.len = n - x.from < p->chunk ? n - x.from : p->chunk;
            return x;
        }
        chunk -= here;
        x.before += l->n[x.of] * l->inner;
    }
}

/* The next elements of the range that lie in one row: how many; which row, and
 * where in it. */
static int64_t next_run(const ndrt_layout *l, range *x, int64_t *row,
                        int64_t *at)
{
    int64_t length = l->n[x->of] * l->inner;

    *row = x->from / length;
    *at = x->from % length;
    int64_t n = length - *at < x->len ? length - *at : x->len;
    x->from += n;
    x->len -= n;
    return n;
}

static void scatter_chunk(const ndrt_job *job, int64_t i)
{
    const piece_job *p = job->arg;
    const ndrt_slot *slot = p->m->slot;
    range x = find_range(p, i);

    while (x.len > 0) {
        int64_t o, at, n = next_run(p->l, &x, &o, &at);
        for (int k = 0; k < p->m->n; k++)
            p->at[k] = slot[k].x + o * slot[k].x_o + x.before + at;
        ndrt_fold(slot[x.of].y + o * slot[x.of].y_o + at,
                  (const float *const *)p->at, p->m->n, n, p->how);
    }
}

/* A piece is read once for all who get it. */
static void gather_chunk(const ndrt_job *job, int64_t i)
{
    const piece_job *p = job->arg;
    const ndrt_slot *slot = p->m->slot;
    range x = find_range(p, i);

    while (x.len > 0) {
        int64_t o, at, n = next_run(p->l, &x, &o, &at);
        const float *from = slot[x.of].x + o * slot[x.of].x_o + at;
        for (int k = 0; k < p->m->n; k++) {
            float *to = slot[k].y + o * slot[k].y_o + x.before + at;
            if (to != from)
                memcpy(to, from, (size_t)n * sizeof *to);
        }
    }
}

static ndrt_status on_pieces(ndrt_comm *c, ndrt_group *g, const ndrt_layout *l,
                             void (*run)(const ndrt_job *, int64_t))
{
    piece_job p = {.m = g->impl, .at = ((local_comm *)c)->at, .how = l->how,
                   .chunk = chunk_of(g->n), .l = l};
    ndrt_slot mine = {(float *)l->x, l->y, l->x_o, l->y_o};
    ndrt_job job = {.chunks = piece_chunks(&p), .run = run, .arg = &p};

    return meet(c, g, &mine, job);
}

static ndrt_status local_reduce_scatter(ndrt_comm *c, ndrt_group *g,
                                        const ndrt_layout *l)
{
    return on_pieces(c, g, l, scatter_chunk);
}

static ndrt_status local_all_gather(ndrt_comm *c, ndrt_group *g,
                                    const ndrt_layout *l)
{
    return on_pieces(c, g, l, gather_chunk);
}

/* ---- any bytes ---------------------------------------------------------- */

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
    ndrt_meeting *m = g->impl;
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
    return s == NDRT_OK ? wait_all(c, g) : s;
}

static ndrt_status local_shift(ndrt_comm *c, ndrt_group *g, int by,
                               const void *x, void *y, size_t bytes_out,
                               size_t bytes_in)
{
    ndrt_meeting *m = g->impl;
    int from = ndrt_member(g, by);
    ndrt_status s;

    if (from == g->me) {
        copy_bytes(y, x, bytes_in);
        return NDRT_OK;
    }
    s = show(c, g, x, (int64_t)bytes_out);
    if (s != NDRT_OK)
        return s;
    if (m->slot[from].x_o != (int64_t)bytes_in)
        return other_bytes(c, g->ranks[from], (size_t)m->slot[from].x_o,
                           bytes_in);
    copy_bytes(y, m->slot[from].x, bytes_in);
    return wait_all(c, g);
}

static ndrt_status local_barrier(ndrt_comm *c, ndrt_group *g)
{
    return wait_all(c, g);
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
    while (!p.taken && (p.held || !atomic_load(&w->stopped)))
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

/* A sender whose parcel is held waits, even if all ranks stop meanwhile; others
 * can put theirs into the box while it is copied. */
static ndrt_status local_recv(ndrt_comm *c, int from, void *x, size_t bytes)
{
    ndrt_world *w = ((local_comm *)c)->world;
    int lane = ((local_comm *)c)->lane;
    mailbox *b = &w->box[c->rank];
    parcel *p;

    pthread_mutex_lock(&b->lock);
    while (!(p = parcel_from(b, from, lane)) && !atomic_load(&w->stopped))
        pthread_cond_wait(&b->changed, &b->lock);
    size_t sent = p ? p->bytes : 0;
    if (p && sent == bytes) {
        unlink_parcel(b, p);
        p->held = true;
    }
    pthread_mutex_unlock(&b->lock);
    if (!p)
        return NDRT_ESTOPPED;
    if (sent != bytes)
        return other_bytes(c, from, sent, bytes);
    copy_bytes(x, p->x, bytes);
    pthread_mutex_lock(&b->lock);
    p->taken = true;
    pthread_mutex_unlock(&b->lock);
    pthread_cond_broadcast(&b->changed);
    return NDRT_OK;
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
    for (ndrt_meeting *m = w->meetings; m; m = m->next)
        ndrt_meeting_stop(m);
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
