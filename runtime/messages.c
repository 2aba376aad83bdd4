/* messages.c - a device's list of actions, followed in two streams: the rank's
 * own thread computes, another one moves messages meanwhile.
 *
 *   list       RECV_F0 F0 SEND_F0 RECV_F1 F1 ..
 *   the rank   ....... F0 F1 ..
 *   the lane   RECV_F0 RECV_F1 SEND_F0 ..        --messages ahead
 *
 * (The lane keeps the order of the list: above, RECV_F1 would stand before
 * SEND_F0 in it.) A receive begins as soon as the slot that it fills is free; a
 * send, when what it sends is made; so computation waits only for what it
 * needs. Which these are, and why nothing hangs, says order.c. Without the
 * lane, the rank does everything itself in the order of the list (--messages
 * inline): the same results, bit for bit.
 *
 * The lane has a double of the rank with a communicator and a current cell of
 * its own. Both threads sleep while they wait. A message that fails stops all
 * ranks, as any failure does; the lane's own rank hears of it when it waits.
 */
#include "ndrt_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct ndrt_lane {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t computing, moving;    /* the other thread got on */
    ndrt_rank rank;               /* the double */
    ndrt_state state;
    ndrt_pass pass;               /* what is being followed */
    int computed, moved;          /* actions of the list that have ended */
    bool running, going, stop, failed;
};

static const sched_row *row_of(const ndrt_rank *r)
{
    return &r->state->course->sched->row[r->device];
}

static const int *needs_of(const ndrt_rank *r)
{
    return r->state->course->needs[r->device];
}

/* ---- one action -------------------------------------------------------- */

static bool is_wanted(const ndrt_pass *pass, const sched_action *a)
{
    bool forward = a->op == SCHED_F || a->op == SCHED_SEND_F ||
                   a->op == SCHED_RECV_F;

    return (forward || !pass->forward) &&
           (pass->only_mb < 0 || a->mb == pass->only_mb);
}

static ndrt_chore part_of(sched_op op)
{
    return op == SCHED_U ? NDRT_PART_UPDATE
           : sched_is_compute(op) ? NDRT_PART_OTHER : NDRT_PART_MESSAGES;
}

/* r: the rank or its double. */
static ndrt_status perform(ndrt_rank *r, int at)
{
    const sched_action *a = &row_of(r)->v[at];
    ndrt_state *st = r->state;

    ndrt_doze(&st->jitter);
    if (st->stamps)
        st->stamps[at].start = ndrt_now();
    ndrt_status s = ndrt_act(r, a);
    if (st->stamps)
        st->stamps[at].end = ndrt_now();
    ndrt_spent(r, part_of(a->op));
    return s;
}

/* ---- the lane ---------------------------------------------------------- */

/* Holds the lock between actions. False: it failed, or was told to stop. */
static bool move_all(ndrt_lane *l)
{
    const sched_row *row = row_of(&l->rank);
    const int *needs = needs_of(&l->rank);

    for (int i = 0; i < row->n; i++) {
        if (sched_is_compute(row->v[i].op))
            continue;
        while (l->computed < needs[i] && !l->stop)
            pthread_cond_wait(&l->computing, &l->lock);
        if (l->stop)
            return false;
        if (is_wanted(&l->pass, &row->v[i])) {
            pthread_mutex_unlock(&l->lock);
            ndrt_status s = perform(&l->rank, i);
            if (s != NDRT_OK)
                ndrt_report(&l->rank, s);
            pthread_mutex_lock(&l->lock);
            if (s != NDRT_OK)
                return false;
        }
        l->moved++;
        pthread_cond_signal(&l->moving);
    }
    return true;
}

static void *lane_main(void *arg)
{
    ndrt_lane *l = arg;
    bool ok = true;

    pthread_mutex_lock(&l->lock);
    while (ok) {
        while (!l->going && !l->stop)
            pthread_cond_wait(&l->computing, &l->lock);
        ok = !l->stop && move_all(l);
        l->going = false;
        l->failed = !ok;
        pthread_cond_signal(&l->moving);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- the rank's side --------------------------------------------------- */

/* Nothing moves now: the double becomes what the rank is. */
static void begin(ndrt_rank *r, const ndrt_pass *pass)
{
    ndrt_lane *l = r->state->lane;

    pthread_mutex_lock(&l->lock);
    l->rank.step = r->step;
    l->rank.training = r->training;
    l->state.stamps = r->state->stamps;
    l->pass = *pass;
    l->computed = l->moved = 0;
    l->going = true;
    pthread_cond_signal(&l->computing);
    pthread_mutex_unlock(&l->lock);
}

static ndrt_status check(ndrt_rank *r, bool failed)
{
    return failed ? ndrt_fail(r, NDRT_ESTOPPED, "a message failed") : NDRT_OK;
}

static ndrt_status wait_for(ndrt_rank *r, int messages)
{
    ndrt_lane *l = r->state->lane;

    pthread_mutex_lock(&l->lock);
    while (l->moved < messages && !l->failed)
        pthread_cond_wait(&l->moving, &l->lock);
    bool failed = l->failed;
    pthread_mutex_unlock(&l->lock);
    return check(r, failed);
}

static ndrt_status wait_for_all(ndrt_rank *r)
{
    ndrt_lane *l = r->state->lane;

    pthread_mutex_lock(&l->lock);
    while (l->going)
        pthread_cond_wait(&l->moving, &l->lock);
    bool failed = l->failed;
    pthread_mutex_unlock(&l->lock);
    return check(r, failed);
}

static void got_on(ndrt_lane *l)
{
    pthread_mutex_lock(&l->lock);
    l->computed++;
    pthread_cond_signal(&l->computing);
    pthread_mutex_unlock(&l->lock);
}

ndrt_status ndrt_follow(ndrt_rank *r, const ndrt_pass *pass)
{
    ndrt_lane *l = r->state->lane;
    const sched_row *row = row_of(r);
    ndrt_status s = NDRT_OK;

    if (l)
        begin(r, pass);
    for (int i = 0; i < row->n && s == NDRT_OK; i++) {
        const sched_action *a = &row->v[i];
        if (l && !sched_is_compute(a->op))
            continue;
        bool wanted = is_wanted(pass, a);
        if (l && wanted)
            s = wait_for(r, needs_of(r)[i]);
        if (l && wanted)
            ndrt_spent(r, NDRT_PART_MESSAGES);
        if (s == NDRT_OK && wanted)
            s = perform(r, i);
        if (s == NDRT_OK && wanted && a->op == SCHED_F && r->state->tally)
            ndrt_tally(r);
        if (l)
            got_on(l);
    }
    if (l && s == NDRT_OK)
        s = wait_for_all(r);
    ndrt_spent(r, NDRT_PART_MESSAGES);
    return s;
}

/* ---- opening and closing ----------------------------------------------- */

/* What messages read of a rank is copied; what they change is the double's. */
static bool make_double(ndrt_lane *l, const ndrt_rank *r, ndrt_comm *comm)
{
    ndrt_state *st = r->state;
    size_t ne = (size_t)r->program->nextents + 1;

    l->rank = *r;
    l->rank.state = &l->state;
    l->state = (ndrt_state){.config = st->config, .comm = comm,
                            .course = st->course,
                            .fail_at = st->fail_at,
                            .jitter = ndrt_jitter_new(~r->rank)};
    memcpy(l->state.coord, st->coord, sizeof st->coord);
    l->state.off = malloc(2 * ne * sizeof *l->state.off);
    if (!l->state.off)
        return false;
    memcpy(l->state.off, st->off, 2 * ne * sizeof *l->state.off);
    l->state.n = l->state.off + ne;
    l->rank.off = l->state.off;
    l->rank.n = l->state.n;
    return true;
}

/* A communicator that has no other one: the rank does it all. */
ndrt_status ndrt_lane_open(ndrt_rank *r)
{
    ndrt_state *st = r->state;
    bool wanted = st->course->sched->ranks > 1 &&
                  st->config->messages == NDRT_MESSAGES_AHEAD;
    ndrt_comm *comm = wanted ? st->comm->ops->another(st->comm) : NULL;

    if (!comm)
        return NDRT_OK;
    ndrt_lane *l = st->lane = calloc(1, sizeof *l);
    if (!l || !make_double(l, r, comm))
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for messages");
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->computing, NULL);
    pthread_cond_init(&l->moving, NULL);
    l->running = pthread_create(&l->thread, NULL, lane_main, l) == 0;
    return l->running ? NDRT_OK
                      : ndrt_fail(r, NDRT_EINTERNAL,
                                  "cannot start a thread for messages");
}

void ndrt_lane_close(ndrt_rank *r)
{
    ndrt_lane *l = r->state->lane;

    if (!l || !l->running)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->computing);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->computing);
    pthread_cond_destroy(&l->moving);
    l->running = false;
}

void ndrt_lane_free(ndrt_rank *r)
{
    if (r->state->lane)
        free(r->state->lane->state.off);
    free(r->state->lane);
}
