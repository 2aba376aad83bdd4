/* memplan.h - what memplan.c and memtemps.c tell each other. */
#ifndef ND_MEMPLAN_H
#define ND_MEMPLAN_H

#include "passes.h"

/* In what a stage's uses of a value are noted: a bit per list, and these. */
enum { CROSSES = 1 << NLISTS, READ_LATE = 2 << NLISTS };

/* What a microbatch keeps from its forward to its backward list, side by side
 * in a room. Bytes of it are free in the forward list until the value that will
 * lie there is made, and in the backward list once it has been read. */
typedef struct nd_lent {
    const nd_value *value;           /* NULL: for temporaries alone */
    size_t at, bytes;                /* of the arena */
    size_t over;                     /* those that are gradients */
    int until;                       /* the last kernel of the backward list for
                                        which it may be there */
} nd_lent;

typedef struct nd_held {
    int room;
    size_t base, bytes;
    ND_VEC(nd_place) v;              /* base: from the start of the first one */
    ND_VEC(nd_lent) lent;            /* not there, but over gradients */
} nd_held;

void nd_add_place(nd_code *c, nd_stage_mem *s, const nd_value *v, int room,
                  size_t base);
/* Returns the bytes that the temporaries of the stage share, beside those in
 * what it holds. `lists` are the uses by mark, `skip` says what else has a
 * place already. */
size_t nd_place_temps(nd_code *c, int stage, const uint8_t *lists,
                      const bool *skip, const nd_held *held, size_t at);

/* lend.c. Which of n values that a microbatch keeps may lie over gradients, and
 * what is left? Sorts them and fills held->lent. Returns the bytes by which the
 * gradients of a bucket, and what comes behind, moved away from the start of
 * the arena. */
size_t nd_lend(nd_code *c, nd_place *kept, int n, nd_held *held);
/* lend_stack.c. Of n values, the one most of which can lie over the first
 * gradient of a bucket, an iteration of a repeat over earlier ones. Says which
 * place of a bucket that is, and how many bytes the value begins in front of
 * it. False if there is none. `made` says by parameter which kernel of the
 * backward list makes the gradient; -1: none, or it is cleared. */
bool nd_lend_stack(nd_code *c, const nd_place *kept, int n, const int *made,
                   nd_lent *lent, int *place, size_t *front);

#endif
