/* pipeline.h - where the ops of a pipelined program run: for the files of the
 * pass alone.
 *
 *   embedding    place 0 .. 0
 *   layers       place 0 .. 1       each stage has iterations of it
 *   loss         place 1 .. 1
 *   mask         on demand          each stage that reads it makes it
 */
#ifndef ND_PIPELINE_H
#define ND_PIPELINE_H

#include "passes.h"

typedef struct pipe_place {
    int first, last;                 /* stages; a reverse repeat runs on `last`
                                        first */
    bool demand;                     /* on every stage that reads it */
} pipe_place;

typedef struct pipe {
    nd_module *m;
    nd_arena *a;
    int p;                           /* stages */
    nd_op *fwd, *bwd;                /* the pipelined repeats, or NULL */
    nd_table places;                 /* op of the step -> pipe_place */
    bool **has_op;                   /* [stage][op index] */
    bool **has_param;                /* [stage][param index] */
} pipe;

/* Known from when places are chosen until the pass ends. */
pipe_place pipe_place_of(const pipe *pp, const nd_op *op);
/* For an op that a pass adds after that. */
void pipe_put(pipe *pp, nd_op *op, pipe_place where);

#endif
