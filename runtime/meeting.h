/* meeting.h - ranks of one process come together and do a piece of work.
 *
 *   each member   says in its slot what it has, and calls ndrt_meet
 *   the last one  finds all slots filled and begins with the work at once;
 *                 members that are awake, or get a CPU, take chunks of it too
 *   all           leave when the last chunk is done
 *
 * So a member sleeps once per meeting, and few of them do the work where there
 * are few CPUs. Which member does a chunk is chance, what it does is not.
 */
#ifndef NDRT_MEETING_H
#define NDRT_MEETING_H

#include "comm.h"

#include <stdalign.h>
#include <stdatomic.h>

/* What a member shows the others. */
typedef struct ndrt_slot {
    float *x, *y;
    int64_t x_o, y_o;             /* strides; elements or bytes of x and y */
} ndrt_slot;

typedef struct ndrt_meeting {
    struct ndrt_meeting *next;
    int lane;                     /* of the communicators that meet here */
    int n;                        /* members */
    int *ranks;
    ndrt_slot *slot;              /* per member */
    size_t *at, *bytes;           /* exchange: n * n, what [from][to] gets */
    bool equal;                   /* all came with the same x_o */
    alignas(64) _Atomic uint32_t phase;      /* see meeting.c */
    _Atomic int sleepers;
    alignas(64) _Atomic int arrived;
    alignas(64) _Atomic int64_t next_chunk;
    _Atomic int64_t left;         /* chunks that are not done */
} ndrt_meeting;

/* The same on all members: chunks [0, n) in any order, on any thread. */
typedef struct ndrt_job {
    int64_t chunks;
    void (*run)(const struct ndrt_job *job, int64_t chunk);
    const void *arg;
    bool equal;                   /* all must come with the same x_o: else it
                                     is not done, and m->equal is false */
    int helpers;                  /* members that are worth waking for it */
    int spins;                    /* before a member sleeps */
} ndrt_job;

ndrt_meeting *ndrt_meeting_new(const int *ranks, int n, int lane);
void ndrt_meeting_free(ndrt_meeting *m);
/* NDRT_ESTOPPED: a member will not come. */
ndrt_status ndrt_meet(ndrt_meeting *m, const ndrt_job *job);
/* Ends all meetings that not all have come to, now and later. */
void ndrt_meeting_stop(ndrt_meeting *m);

#endif
