/* team.c - the threads of a rank, and how they work together.
 *
 *   ndrt_together(r, fn, arg)     the rank         the others of its team
 *                                 fn(r0, arg)      fn(r1, arg)   fn(r2, arg)
 *                                 ..barrier..      ..barrier..   ..barrier..
 *                                 returns when all have
 *
 * r0, r1, .. are doubles of the rank as it is when the work begins: each has a
 * number of its own (r->thread), and behind it what no two threads may share
 * (ndrt_own). The state is the rank's. Outside of joint work the rank is alone
 * and the others sleep.
 *
 * Who waits looks for a short while, if there is a CPU for each thread, then
 * sleeps. A thread that fails leaves by ndrt_raise; the others leave at their
 * next barrier, and the work returns the first failure.
 */
#include "ndrt_internal.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Looking this often takes about as long as to fall asleep and be woken. */
enum { LOOKS = 4000, LINE = 64, COPY_GRAIN = 4096 };

/* Something that happens again and again, and those who wait for it. */
typedef struct event {
    _Alignas(LINE) _Atomic uint32_t times;   /* that it has happened */
    _Atomic uint32_t asleep;
} event;

typedef struct member {
    ndrt_team *team;
    pthread_t thread;
    ndrt_rank rank;               /* the double */
    ndrt_own own;                 /* of all but the first */
    ndrt_jitter jitter;
    int cpu;                      /* to stay on, if bound */
} member;

struct ndrt_team {
    ndrt_rank *rank;
    int n, running;               /* threads; of those, started ones */
    member *member;               /* [0] is the rank's thread */
    bool look, stop, bound;       /* to CPUs */
    cpu_set_t may;                /* where the rank ran before */
    ndrt_work *work;
    void *arg;
    event begun, met, ended;
    _Alignas(LINE) _Atomic int here;         /* at the barrier */
    _Atomic int busy;             /* that have not ended, but for the rank */
    _Atomic bool failed;
    pthread_mutex_t lock;         /* of the rank's failure */
};

/* ---- waiting ----------------------------------------------------------- */

static void pause_briefly(void)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static void happen(event *e)
{
    atomic_fetch_add(&e->times, 1);
    if (atomic_load(&e->asleep))
        syscall(SYS_futex, &e->times, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL,
                0);
}

/* Returns when it has happened more than `times`. */
static void wait_for(event *e, uint32_t times, bool look)
{
    for (int i = 0; look && i < LOOKS; i++) {
        if (atomic_load_explicit(&e->times, memory_order_acquire) != times)
            return;
        pause_briefly();
    }
    atomic_fetch_add(&e->asleep, 1);
    while (atomic_load(&e->times) == times)
        syscall(SYS_futex, &e->times, FUTEX_WAIT_PRIVATE, times, NULL, NULL,
                0);
    atomic_fetch_sub(&e->asleep, 1);
}

void ndrt_barrier(ndrt_rank *r)
{
    ndrt_team *t = r->state->team;

    if (r->nthreads <= 1)
        return;
    uint32_t times = atomic_load(&t->met.times);
    if (atomic_load(&t->failed))
        ndrt_raise(r);
    if (atomic_fetch_add(&t->here, 1) + 1 == t->n) {
        atomic_store(&t->here, 0);
        happen(&t->met);
    } else {
        wait_for(&t->met, times, t->look);
    }
    if (atomic_load(&t->failed))
        ndrt_raise(r);
}

ndrt_rank *ndrt_alone(ndrt_rank *r)
{
    if (r->nthreads <= 1)
        return r;
    if (r->thread == 0)
        return r->state->team->rank;
    ndrt_barrier(r);
    return NULL;
}

/* ---- joint work -------------------------------------------------------- */

ndrt_own *ndrt_mine(const ndrt_rank *r)
{
    return r->thread == 0 ? &r->state->own
                          : &r->state->team->member[r->thread].own;
}

/* False: it failed. */
static bool run(ndrt_rank *r, ndrt_work *work, void *arg)
{
    if (setjmp(ndrt_mine(r)->jump))
        return false;
    work(r, arg);
    return true;
}

/* Those who wait at a barrier must not wait for this one. */
static void take_part(ndrt_team *t, member *m)
{
    ndrt_doze(&m->jitter);
    if (run(&m->rank, t->work, t->arg))
        return;
    atomic_store(&t->failed, true);
    happen(&t->met);
}

static void *member_main(void *arg)
{
    member *m = arg;
    ndrt_team *t = m->team;

    for (uint32_t times = 0;; times++) {
        wait_for(&t->begun, times, t->look);
        if (t->stop)
            return NULL;
        take_part(t, m);
        if (atomic_fetch_sub(&t->busy, 1) == 1)
            happen(&t->ended);
    }
}

ndrt_status ndrt_together(ndrt_rank *r, ndrt_work *work, void *arg)
{
    ndrt_team *t = r->state->team;

    if (!t)
        return run(r, work, arg) ? NDRT_OK : r->state->status;
    for (int i = 0; i < t->n; i++) {
        t->member[i].rank = *r;
        t->member[i].rank.thread = i;
        t->member[i].rank.nthreads = t->n;
    }
    t->work = work;
    t->arg = arg;
    atomic_store(&t->here, 0);
    atomic_store(&t->failed, false);
    atomic_store(&t->busy, t->n - 1);
    uint32_t times = atomic_load(&t->ended.times);
    happen(&t->begun);
    take_part(t, &t->member[0]);
    wait_for(&t->ended, times, t->look);
    return atomic_load(&t->failed) ? r->state->status : NDRT_OK;
}

void ndrt_lock_failure(ndrt_rank *r, bool lock)
{
    ndrt_team *t = r->state->team;

    if (t && lock)
        pthread_mutex_lock(&t->lock);
    else if (t)
        pthread_mutex_unlock(&t->lock);
}

/* ---- shares ------------------------------------------------------------ */

ndrt_span ndrt_share(const ndrt_rank *r, int64_t n, int64_t grain)
{
    int64_t t = r->thread, of = r->nthreads;

    if (of <= 1)
        return (ndrt_span){0, n};
    int64_t steps = (n + grain - 1) / grain;
    int64_t from = (steps * t + of - 1) / of * grain;
    int64_t to = (steps * (t + 1) + of - 1) / of * grain;
    return (ndrt_span){from < n ? from : n, to < n ? to : n};
}

ndrt_span ndrt_share_run(const ndrt_rank *r, int64_t n, int64_t at,
                         int64_t length)
{
    ndrt_span s = ndrt_share(r, n, LINE);
    int64_t from = s.from - at, to = s.to - at;

    from = from < 0 ? 0 : from;
    to = to > length ? length : to;
    return (ndrt_span){from, to};
}

void ndrt_copy(ndrt_rank *r, void *to, const void *from, size_t bytes)
{
    ndrt_span s = ndrt_share(r, (int64_t)bytes, COPY_GRAIN);

    if (s.to > s.from)
        memcpy((char *)to + s.from, (const char *)from + s.from,
               (size_t)(s.to - s.from));
    ndrt_barrier(r);
}

void ndrt_clear(ndrt_rank *r, void *x, size_t bytes)
{
    ndrt_span s = ndrt_share(r, (int64_t)bytes, COPY_GRAIN);

    if (s.to > s.from)
        memset((char *)x + s.from, 0, (size_t)(s.to - s.from));
    ndrt_barrier(r);
}

/* ---- opening and closing ----------------------------------------------- */

/* Where ranks * threads are just the CPUs that this process may use, each has
 * one to itself. Fewer would share them with those of a second process while
 * others are idle; and a launcher knows better. */
static void choose_cpus(ndrt_team *t)
{
    const ndrt_comm *c = t->rank->state->comm;
    int first = c->rank * t->n, at = 0;

    if (ndrt_under_launcher() ||
        sched_getaffinity(0, sizeof t->may, &t->may) != 0 ||
        CPU_COUNT(&t->may) != c->size * t->n)
        return;
    t->bound = true;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &t->may))
            continue;
        if (at >= first && at < first + t->n)
            t->member[at - first].cpu = cpu;
        at++;
    }
}

/* What each thread has to do for itself. One that cannot stay where it should
 * works all the same. */
static void settle(ndrt_rank *r, void *arg)
{
    const ndrt_team *t = arg;
    cpu_set_t one;

    if (t->bound) {
        CPU_ZERO(&one);
        CPU_SET(t->member[r->thread].cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    if (r->thread > 0 && ndrt_mm_open(r) != NDRT_OK)
        ndrt_raise(r);
}

static ndrt_status start_threads(ndrt_rank *r, ndrt_team *t)
{
    pthread_attr_t attr;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, NDRT_STACK_BYTES);
    while (t->running < t->n) {
        member *m = &t->member[t->running];
        m->team = t;
        if (pthread_create(&m->thread, &attr, member_main, m) != 0)
            break;
        t->running++;
    }
    pthread_attr_destroy(&attr);
    return t->running == t->n
               ? NDRT_OK
               : ndrt_fail(r, NDRT_EINTERNAL, "cannot start %d threads; see "
                           "--threads", t->n);
}

ndrt_status ndrt_team_open(ndrt_rank *r)
{
    int n = ndrt_threads(r);
    size_t bytes = (sizeof(ndrt_team) + LINE - 1) / LINE * LINE;
    ndrt_team *t = n > 1 ? aligned_alloc(LINE, bytes) : NULL;

    if (t) {
        memset(t, 0, bytes);
        t->member = calloc((size_t)n, sizeof *t->member);
    }
    if (n > 1 && (!t || !t->member)) {
        free(t);
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for threads");
    }
    if (n == 1)
        return NDRT_OK;
    r->state->team = t;
    t->rank = r;
    t->n = n;
    t->running = 1;
    t->look = n <= r->state->comm->cpus;
    for (int i = 0; i < n; i++)
        t->member[i].jitter = ndrt_jitter_new(r->rank * n + i);
    pthread_mutex_init(&t->lock, NULL);
    choose_cpus(t);
    ndrt_status s = start_threads(r, t);
    return s == NDRT_OK ? ndrt_together(r, settle, t) : s;
}

/* ---- what a thread has for itself ---------------------------------------- */

static void grow(ndrt_rank *r, ndrt_own *own, ndrt_buffer which, size_t bytes)
{
    if (bytes <= own->buffer_bytes[which])
        return;
    free(own->buffer[which]);
    own->buffer[which] = aligned_alloc(LINE, bytes);
    own->buffer_bytes[which] = own->buffer[which] ? bytes : 0;
    if (!own->buffer[which]) {
        ndrt_fail(r, NDRT_EINTERNAL, "out of memory for a product's operands "
                  "(%zu bytes)", bytes);
        ndrt_raise(r);
    }
}

/* All threads use the first one's; it has one more reason to grow it. */
float *ndrt_buffer_of(ndrt_rank *r, ndrt_buffer which, int64_t floats)
{
    size_t bytes = ((size_t)floats * sizeof(float) + LINE) / LINE * LINE;
    ndrt_own *own = r->nthreads > 1 ? &r->state->own : ndrt_mine(r);

    if (own == ndrt_mine(r))
        grow(r, own, which, bytes);
    ndrt_barrier(r);
    return own->buffer[which];
}

static size_t own_bytes(const ndrt_own *own)
{
    size_t bytes = ndrt_mm_scratch(own);

    for (int i = 0; i < NDRT_NBUFFERS; i++)
        bytes += own->buffer_bytes[i];
    return bytes;
}

size_t ndrt_own_bytes(const ndrt_rank *r)
{
    const ndrt_team *t = r->state->team;
    size_t bytes = own_bytes(&r->state->own);

    for (int i = 1; t && i < t->n; i++)
        bytes += own_bytes(&t->member[i].own);
    return bytes;
}

void ndrt_own_close(ndrt_own *own)
{
    ndrt_mm_close(own);
    for (int i = 0; i < NDRT_NBUFFERS; i++) {
        free(own->buffer[i]);
        own->buffer[i] = NULL;
    }
}

void ndrt_team_close(ndrt_rank *r)
{
    ndrt_team *t = r->state->team;

    if (!t)
        return;
    t->stop = true;
    happen(&t->begun);
    for (int i = 1; i < t->running; i++)
        pthread_join(t->member[i].thread, NULL);
    for (int i = 1; i < t->n; i++)
        ndrt_own_close(&t->member[i].own);
    if (t->bound)
        sched_setaffinity(0, sizeof t->may, &t->may);
    pthread_mutex_destroy(&t->lock);
    free(t->member);
    free(t);
    r->state->team = NULL;
}
