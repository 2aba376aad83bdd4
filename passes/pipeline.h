/* pipeline.h - where the ops of a pipelined program run: for the files of the
 * pass alone.
 *
 * The forward ops and the iterations of the pipelined repeats are a chain of
 * units; a backward op belongs to a unit too. A stage is a part of the chain:
 *
 *   unit     0          1  2  3  4  5    6     7
 *            embedding  layers 0 .. 4    head  loss
 *   stage    0          0  0  0  1  1    1     1
 */
#ifndef ND_PIPELINE_H
#define ND_PIPELINE_H

#include "passes.h"
#include "partition.h"

/* Where an op runs: from `first` to `last`. Ordinary ops have one place, a
 * pipelined repeat those of its iterations (a reverse one begins at `last`). */
typedef struct pipe_place {
    int first, last;
    bool demand;                     /* wherever something reads it */
} pipe_place;

/* A repeat whose iterations are cut in stages. */
typedef struct pipe_repeat {
    nd_op *fwd;
    int base, n;                     /* units */
} pipe_repeat;

typedef struct pipe_unit {
    double seconds;                  /* of a microbatch, there and back */
    bool opens;                      /* may a stage begin here, */
    bool inner;                      /* ... inside what is not a repeat? */
} pipe_unit;

typedef struct pipe {
    nd_module *m;
    nd_arena *a;
    int p, devices;                  /* stages, and where they run */
    ND_VEC(pipe_repeat) repeats;     /* in the order of the chain */
    int n;
    pipe_unit *unit;
    ND_VEC(part_share) shares;       /* bytes of units */
    nd_table places;                 /* op -> pipe_place, in units */
    int *stage_of;                   /* by unit */
} pipe;

/* Hoisted ops depend on inputs alone even where a collective brought them. A
 * weight is cast on each stage that reads it rather than sent. */
bool pipe_on_demand(const nd_op *op);
/* Is op one of the repeats, there or back, that stages share? */
bool pipe_is_piped(const pipe *pp, const nd_op *op);

/* The stages on which an op of the step runs; known once the chain is cut. */
pipe_place pipe_place_of(const pipe *pp, const nd_op *op);
/* An op that is made after that runs where another one does. */
void pipe_place_like(pipe *pp, nd_op *op, const nd_op *other);

/* Calls f for every value of the step that op, or a body in it, reads, and for
 * the parameters that it accumulates to. */
typedef void pipe_read_fn(pipe *pp, nd_op *op, nd_value *v, void *user);
void pipe_reads(pipe *pp, nd_op *op, pipe_read_fn *f, void *user);

/* ---- chain.c: the units, and the unit of every op ------------------------ */

void pipe_chain(pipe *pp);
/* Backward ops again, after some of them changed. */
void pipe_chain_back(pipe *pp);

/* ---- weigh.c: what units cost -------------------------------------------- */

void pipe_weigh(pipe *pp);

/* ---- cut.c: the units of every stage ------------------------------------- */

bool pipe_cut(pipe *pp);

/* ---- at_hand.c: what backward need not make again ------------------------ */

/* Takes from forward what stages have, and places backward again. */
void pipe_use_at_hand(pipe *pp);

/* ---- stages.c: the lists of every stage, and what crosses ---------------- */

void pipe_fill(pipe *pp);

#endif
