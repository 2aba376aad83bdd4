/* lives.h - shared by slots.c and rooms.c. */
#ifndef SCHED_LIVES_H
#define SCHED_LIVES_H

#include "sched.h"

typedef struct sched_life {
    int mb, begin, end;          /* places in the row, both within */
} sched_life;

/* The lives of a stage's microbatches as they begin; how many there are. A
 * joined pair has one place: its two actions run beside each other. of_mb: room
 * for `micro` numbers. */
int sched_lives(const sched *s, int stage, sched_span span, sched_life *out,
                int *of_mb);

#endif
