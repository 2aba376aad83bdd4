/* partition.h - cut a chain of units into stages, as numbers alone.
 *
 *   seconds  5 1 1 1 1 4      on 3 stages:  5 | 1 1 1 1 | 4
 *
 * The heaviest device has as little time as can be. Among cuts that are equal
 * in that, the one with the least sum of squares, and then the one with more
 * in earlier stages, is taken. No stage is empty.
 */
#ifndef ND_PARTITION_H
#define ND_PARTITION_H

#include <stdbool.h>

/* Bytes that a stage has once if it holds unit `unit`, unless it holds unit
 * `before` (< unit; -1: none) too: what several units read lies there once. */
typedef struct part_share {
    int unit, before;
    double fixed;                    /* weights and what belongs to them */
    double held;                     /* per microbatch in flight */
} part_share;

typedef struct part_ask {
    int n;                           /* units */
    const double *seconds;           /* of a microbatch, by unit */
    const bool *opens;               /* may a stage begin with the unit? */
    int nshares;
    const part_share *share;         /* ascending by unit */
    int stages, devices;
    const int *device;               /* by stage */
    const int *flight;               /* by stage: microbatches held at once */
    double room;                     /* bytes of a device; 0: no limit */
    const int *least, *most;         /* by stage: where it may begin; or NULL */
} part_ask;

typedef struct part_stage {
    int begin, end;                  /* units */
    double seconds, fixed, held;
} part_stage;

typedef struct part_result {
    part_stage *stage;               /* free() it */
    double heaviest;                 /* seconds of the busiest device */
    double bytes;                    /* of the fullest one */
    bool fits;                       /* false: the cut needs least bytes of
                                        those tried, and that is too much */
} part_result;

/* False: no cut at all (fewer places to cut than stages, or no memory). */
bool part_cut(const part_ask *ask, part_result *out);

#endif
