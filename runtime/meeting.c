/* meeting.c - how members of a meeting wait for each other.
 *
 *   phase   p, members come | p + 2, they work | p + 4, members come again
 *
 * Bit 0 of the phase says that some rank has failed. A phase of work ends
 * nevertheless, as nobody waits inside a chunk. No member is a meeting ahead:
 * the next one begins when all have come to it, and who is late may still look
 * at the counters of this one.
 *
 * Waiting means sleeping on the phase (a futex), after a few looks at it where
 * every rank has a CPU to itself: two cores may host 64 ranks.
 */
#include "meeting.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STOPPED = 1, STEP = 2 };

ndrt_meeting *ndrt_meeting_new(const int *ranks, int n, int lane)
{
    ndrt_meeting *m = aligned_alloc(alignof(ndrt_meeting), sizeof *m);
    size_t k = (size_t)n;

    if (!m)
        return NULL;
    memset(m, 0, sizeof *m);
    m->lane = lane;
    m->n = n;
    m->ranks = malloc(k * sizeof *m->ranks);
    m->slot = calloc(k, sizeof *m->slot);
    m->at = calloc(k * k, sizeof *m->at);
    m->bytes = calloc(k * k, sizeof *m->bytes);
    if (!m->ranks || !m->slot || !m->at || !m->bytes) {
        ndrt_meeting_free(m);
        return NULL;
    }
    memcpy(m->ranks, ranks, k * sizeof *ranks);
    return m;
}

void ndrt_meeting_free(ndrt_meeting *m)
{
    free(m->ranks);
    free(m->slot);
    free(m->at);
    free(m->bytes);
    free(m);
}

/* ---- waiting ----------------------------------------------------------- */

static void look_again(void)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static void wake(ndrt_meeting *m, int n)
{
    if (n > 0 && atomic_load(&m->sleepers) > 0)
        syscall(SYS_futex, &m->phase, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Returns when the phase is another one, or sooner. */
static void wait_while(ndrt_meeting *m, uint32_t phase, int spins)
{
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&m->phase, memory_order_relaxed) != phase)
            return;
        look_again();
    }
    atomic_fetch_add(&m->sleepers, 1);
    syscall(SYS_futex, &m->phase, FUTEX_WAIT_PRIVATE, phase, NULL, NULL, 0);
    atomic_fetch_sub(&m->sleepers, 1);
}

void ndrt_meeting_stop(ndrt_meeting *m)
{
    atomic_fetch_or(&m->phase, STOPPED);
    wake(m, INT_MAX);
}

/* ---- working ----------------------------------------------------------- */

/* Who does the last chunk ends the phase. */
static void work(ndrt_meeting *m, const ndrt_job *job)
{
    int64_t i, done = 0;

    while ((i = atomic_fetch_add(&m->next_chunk, 1)) < job->chunks) {
        job->run(job, i);
        done++;
    }
    if (done && atomic_fetch_sub(&m->left, done) == done) {
        atomic_fetch_add(&m->phase, STEP);
        wake(m, INT_MAX);
    }
}

static bool all_equal(const ndrt_meeting *m)
{
    for (int i = 1; i < m->n; i++)
        if (m->slot[i].x_o != m->slot[0].x_o)
            return false;
    return true;
}

/* All have come, and none has left: they only do when the phase says stopped,
 * and then nothing begins. */
static bool begin(ndrt_meeting *m, const ndrt_job *job, uint32_t here)
{
    m->equal = !job->equal || all_equal(m);
    int64_t chunks = m->equal ? job->chunks : 0;
    atomic_store(&m->arrived, 0);
    atomic_store(&m->next_chunk, 0);
    atomic_store(&m->left, chunks);
    uint32_t next = here + (chunks ? STEP : 2 * STEP);
    if (!atomic_compare_exchange_strong(&m->phase, &here, next))
        return false;
    wake(m, !chunks                    ? INT_MAX
            : chunks <= job->helpers ? (int)chunks - 1
                                     : job->helpers);
    if (chunks)
        work(m, job);
    return true;
}

ndrt_status ndrt_meet(ndrt_meeting *m, const ndrt_job *job)
{
    uint32_t here = atomic_load(&m->phase), now;
    bool helped = false;

    if (here & STOPPED)
        return NDRT_ESTOPPED;
    if (atomic_fetch_add(&m->arrived, 1) + 1 == m->n) {
        if (!begin(m, job, here))
            return NDRT_ESTOPPED;
        helped = true;
    }
    while (((now = atomic_load(&m->phase)) | STOPPED) !=
           ((here + 2 * STEP) | STOPPED)) {
        bool working = (now | STOPPED) == ((here + STEP) | STOPPED);
        if (!working && (now & STOPPED))
            return NDRT_ESTOPPED;
        if (working && !helped)
            work(m, job);
        else
            wait_while(m, now, job->spins);
        helped |= working;
    }
    return NDRT_OK;
}
