/* flight.c - calls in flight: another thread of the rank makes them while the
 * rank computes.
 *
 *   start(ticket, call) ... compute ... wait(ticket)
 *
 * The thread has a double of the rank, with a communicator, groups and buffers
 * of its own, so that it never meets a call of the rank itself. It makes the
 * calls one after another as they were started; since all ranks start the same
 * ones in the same order, they meet. Without the thread, start does it all and
 * wait nothing: results are the same bits either way.
 *
 * A call that fails stops all ranks, as any failure does; its own rank hears of
 * it when it waits.
 */
#include "ndrt_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    void (*run)(ndrt_rank *r, const struct call *c);
    int group, by;
    const void *x;
    void *y;
    int64_t x_o, y_o, outer, mid, inner;
    int64_t *p, *q;               /* copies: a number per member */
    size_t bytes;
    ndrt_fold_kind how;
    bool joins_first;
    int bucket;                   /* of gradients: floats [from, to) */
    size_t from, to;
} call;

typedef struct flight {
    call call;
    bool busy, done;
} flight;

struct ndrt_air {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t started, ended;
    ndrt_rank rank;               /* the double */
    ndrt_state state;
    int n;                        /* flights: those of the program, then
                                     those of gradients */
    flight *flight;               /* by ticket */
    int *queue, first, waiting;   /* tickets in the order of starts: a ring */
    int64_t *lengths;             /* what p and q point to */
    bool running, stop, failed;
    ndrt_jitter jitter;
};

/* ---- the thread -------------------------------------------------------- */

/* A failure inside leaves by longjmp, as out of generated code. */
static bool run(ndrt_air *a, const call *c)
{
    if (setjmp(a->state.own.jump))
        return false;
    ndrt_doze(&a->jitter);
    c->run(&a->rank, c);
    return true;
}

static void *thread_main(void *arg)
{
    ndrt_air *a = arg;

    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (!a->waiting && !a->stop)
            pthread_cond_wait(&a->started, &a->lock);
        if (a->stop)
            break;
        flight *f = &a->flight[a->queue[a->first]];
        a->first = (a->first + 1) % a->n;
        a->waiting--;
        bool skip = a->failed;
        pthread_mutex_unlock(&a->lock);
        bool ok = !skip && run(a, &f->call);
        if (!ok && !skip)
            ndrt_report(&a->rank, a->state.status);
        pthread_mutex_lock(&a->lock);
        a->failed |= !ok;
        f->done = true;
        pthread_cond_signal(&a->ended);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* ---- start and wait ---------------------------------------------------- */

static void copy_lengths(int64_t **to, int64_t *room, const int64_t *n,
                         const ndrt_group *g)
{
    if (n)
        memcpy(room, n, (size_t)g->n * sizeof *n);
    *to = n ? room : NULL;
}

/* p and q of the call are the caller's and need not last. */
static ndrt_status launch(ndrt_rank *r, int ticket, const call *c,
                          const int64_t *p, const int64_t *q)
{
    ndrt_air *a = r->state->air;
    const ndrt_group *g = &r->state->groups[c->group];
    size_t ranks = (size_t)r->state->comm->size;
    flight *f = &a->flight[ticket];
    int64_t *room = a->lengths + 2 * ranks * (size_t)ticket;

    if (f->busy)
        return ndrt_fail(r, NDRT_EINTERNAL, "call %d is in flight already",
                         ticket);
    f->call = *c;
    copy_lengths(&f->call.p, room, p, g);
    copy_lengths(&f->call.q, room + ranks, q, g);
    pthread_mutex_lock(&a->lock);
    f->busy = true;
    f->done = false;
    a->queue[(a->first + a->waiting) % a->n] = ticket;
    a->waiting++;
    pthread_cond_signal(&a->started);
    pthread_mutex_unlock(&a->lock);
    return NDRT_OK;
}

static ndrt_status await(ndrt_rank *r, int ticket)
{
    ndrt_air *a = r->state->air;
    flight *f = &a->flight[ticket];

    pthread_mutex_lock(&a->lock);
    while (f->busy && !f->done)
        pthread_cond_wait(&a->ended, &a->lock);
    f->busy = false;
    bool failed = a->failed;
    pthread_mutex_unlock(&a->lock);
    return failed ? ndrt_fail(r, NDRT_ESTOPPED, "a call in flight failed")
                  : NDRT_OK;
}

static void start(ndrt_rank *r, int ticket, const call *c, const int64_t *p,
                  const int64_t *q)
{
    if (ndrt_enter(r))
        ndrt_leave(r, launch(r, ticket, c, p, q));
}

void ndrt_wait(ndrt_rank *r, int ticket)
{
    if (!r->state->air || !ndrt_alone(r))
        return;
    if (await(r, ticket) != NDRT_OK)
        ndrt_raise(r);
    ndrt_barrier(r);
}

/* ---- the calls --------------------------------------------------------- */

static void run_all_reduce(ndrt_rank *r, const call *c)
{
    ndrt_all_reduce(r, c->group, c->y, c->inner, c->how);
}

void ndrt_start_all_reduce(ndrt_rank *r, int ticket, int group, void *x,
                           int64_t n, ndrt_fold_kind how)
{
    call c = {.run = run_all_reduce, .group = group, .y = x, .inner = n,
              .how = how};

    if (r->state->air)
        start(r, ticket, &c, NULL, NULL);
    else
        ndrt_all_reduce(r, group, x, n, how);
}

static void run_reduce_scatter(ndrt_rank *r, const call *c)
{
    ndrt_reduce_scatter(r, c->group, c->x, c->x_o, c->y, c->y_o, c->outer,
                        c->p, c->inner, c->how);
}

void ndrt_start_reduce_scatter(ndrt_rank *r, int ticket, int group,
                               const float *x, int64_t x_o, float *y,
                               int64_t y_o, int64_t outer, const int64_t *n,
                               int64_t inner, ndrt_fold_kind how)
{
    call c = {.run = run_reduce_scatter, .group = group, .x = x, .y = y,
              .x_o = x_o, .y_o = y_o, .outer = outer, .inner = inner,
              .how = how};

    if (r->state->air)
        start(r, ticket, &c, n, NULL);
    else
        ndrt_reduce_scatter(r, group, x, x_o, y, y_o, outer, n, inner, how);
}

static void run_all_gather(ndrt_rank *r, const call *c)
{
    ndrt_all_gather(r, c->group, c->x, c->x_o, c->y, c->y_o, c->outer, c->p,
                    c->inner);
}

void ndrt_start_all_gather(ndrt_rank *r, int ticket, int group, const float *x,
                           int64_t x_o, float *y, int64_t y_o, int64_t outer,
                           const int64_t *n, int64_t inner)
{
    call c = {.run = run_all_gather, .group = group, .x = x, .y = y,
              .x_o = x_o, .y_o = y_o, .outer = outer, .inner = inner};

    if (r->state->air)
        start(r, ticket, &c, n, NULL);
    else
        ndrt_all_gather(r, group, x, x_o, y, y_o, outer, n, inner);
}

static void run_all_to_all(ndrt_rank *r, const call *c)
{
    ndrt_all_to_all(r, c->group, c->x, c->y, c->outer, c->p, c->mid, c->q,
                    c->inner, c->joins_first);
}

void ndrt_start_all_to_all(ndrt_rank *r, int ticket, int group, const void *x,
                           void *y, int64_t outer, const int64_t *p,
                           int64_t mid, const int64_t *q, int64_t inner,
                           bool joins_first)
{
    call c = {.run = run_all_to_all, .group = group, .x = x, .y = y,
              .outer = outer, .mid = mid, .inner = inner,
              .joins_first = joins_first};

    if (r->state->air)
        start(r, ticket, &c, p, q);
    else
        ndrt_all_to_all(r, group, x, y, outer, p, mid, q, inner, joins_first);
}

static void run_shift_ring(ndrt_rank *r, const call *c)
{
    ndrt_shift_ring(r, c->group, c->by, c->x, c->y, c->bytes);
}

void ndrt_start_shift_ring(ndrt_rank *r, int ticket, int group, int by,
                           const void *x, void *y, size_t bytes)
{
    call c = {.run = run_shift_ring, .group = group, .by = by, .x = x, .y = y,
              .bytes = bytes};

    if (r->state->air)
        start(r, ticket, &c, NULL, NULL);
    else
        ndrt_shift_ring(r, group, by, x, y, bytes);
}

/* ---- gradients ---------------------------------------------------------- */

static void run_reduce(ndrt_rank *r, const call *c)
{
    if (ndrt_reduce_range(r, c->bucket, c->y, c->from, c->to) != NDRT_OK)
        ndrt_raise(r);
}

ndrt_status ndrt_start_reduce(ndrt_rank *r, int i, int bucket, float *x,
                              size_t from, size_t to)
{
    call c = {.run = run_reduce, .bucket = bucket, .y = x, .from = from,
              .to = to};

    return launch(r, r->program->nflights + i, &c, NULL, NULL);
}

ndrt_status ndrt_await_reduce(ndrt_rank *r, int i)
{
    return await(r, r->program->nflights + i);
}

/* ---- opening and closing ----------------------------------------------- */

/* The same on all ranks: they take communicators in the same order. */
static bool is_wanted(const ndrt_rank *r)
{
    const ndrt_state *st = r->state;

    if ((r->program->nflights == 0 && !ndrt_early_any(r)) ||
        st->config->overlap == NDRT_OVERLAP_OFF)
        return false;
    return st->config->overlap == NDRT_OVERLAP_ON || st->comm->cpus >= 2;
}

static ndrt_air *new_air(const ndrt_rank *r, ndrt_comm *comm)
{
    const ndrt_program *p = r->program;
    ndrt_state *st = r->state;
    int calls = p->nflights + ndrt_early_most(r);
    size_t n = (size_t)calls + 1, nb = (size_t)p->nbuckets + 1;
    ndrt_air *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    st->air = a;
    a->n = calls;
    a->flight = calloc(n, sizeof *a->flight);
    a->queue = calloc(n, sizeof *a->queue);
    a->lengths = calloc(2 * n * (size_t)comm->size, sizeof *a->lengths);
    a->rank = *r;
    a->rank.state = &a->state;
    a->state = (ndrt_state){.config = st->config, .comm = comm,
                            .ones = st->ones};
    a->state.groups = calloc((size_t)p->ngroups + 1, sizeof *a->state.groups);
    a->state.sum = calloc(3 * nb, sizeof *a->state.sum);
    a->state.zero = a->state.sum ? a->state.sum + nb : NULL;
    a->state.tied = a->state.sum ? a->state.zero + nb : NULL;
    a->state.share = calloc((size_t)comm->size, sizeof *a->state.share);
    memcpy(a->state.coord, st->coord, sizeof st->coord);
    return a->flight && a->queue && a->lengths && a->state.groups &&
                   a->state.sum && a->state.share
               ? a : NULL;
}

static ndrt_status start_thread(ndrt_rank *r, ndrt_air *a)
{
    a->jitter = ndrt_jitter_new(r->rank);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->started, NULL);
    pthread_cond_init(&a->ended, NULL);
    a->running = pthread_create(&a->thread, NULL, thread_main, a) == 0;
    return a->running ? NDRT_OK
                      : ndrt_fail(r, NDRT_EINTERNAL,
                                  "cannot start a thread for calls in flight");
}

/* A communicator that has no other one makes all calls itself. */
ndrt_status ndrt_air_open(ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    ndrt_comm *c = r->state->comm;
    ndrt_comm *comm = is_wanted(r) ? c->ops->another(c) : NULL;
    ndrt_status s = NDRT_OK;

    if (!comm)
        return NDRT_OK;
    ndrt_air *a = new_air(r, comm);
    if (!a)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for calls in "
                         "flight");
    for (int g = 0; g < p->ngroups && s == NDRT_OK; g++)
        s = ndrt_group_open(&a->rank, &a->state.groups[g], p->groups[g], 0);
    if (s == NDRT_OK && ndrt_early_any(r))
        s = ndrt_open_buckets(&a->rank);
    if (s != NDRT_OK)
        return ndrt_fail(r, s, "%s", a->state.error);
    return start_thread(r, a);
}

void ndrt_air_close(ndrt_rank *r)
{
    ndrt_air *a = r->state->air;

    if (!a || !a->running)
        return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    pthread_cond_signal(&a->started);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->started);
    pthread_cond_destroy(&a->ended);
    a->running = false;
}

void ndrt_air_free(ndrt_rank *r)
{
    ndrt_air *a = r->state->air;

    if (!a)
        return;
    for (int g = 0; a->state.groups && g < r->program->ngroups; g++)
        ndrt_group_free(&a->state.groups[g]);
    for (int b = 0; a->state.sum && b < r->program->nbuckets; b++)
        ndrt_free_bucket(&a->rank, b);
    free(a->state.groups);
    free(a->state.sum);
    free(a->state.share);
    free(a->state.packed);
    free(a->state.parts);
    free(a->flight);
    free(a->queue);
    free(a->lengths);
    free(a);
}
