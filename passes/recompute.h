/* recompute.h - what a later block keeps of an earlier one, and what it makes
 * again: shared by recompute.c (backward, of forward) and split.c (gradients of
 * weights, of those of inputs).
 */
#ifndef ND_RECOMPUTE_H
#define ND_RECOMPUTE_H

#include "pipeline.h"

/* A block and the one that reads it, later. At the top they are the same; for
 * two repeats they are the bodies, joined by stacked values. */
typedef struct nd_pair {
    nd_block *from, *to;
    nd_op *early, *late;             /* the repeats, or NULL at the top */
    nd_phase reader;                 /* phase of the ops that read: BWD, WGT */
    pipe *places;                    /* of the step's ops; NULL: not chosen */
} nd_pair;

/* Rewrites what the later block reads to what costs the fewest bytes to keep.
 * Leaves the operands of `late` that nothing reads any more: nd_dce. */
void nd_keep_or_repeat(nd_module *m, const nd_pair *p);
/* v, of the body of p->early, as the body of p->late has it: scanned there as
 * well, or stacked. `b` stands in the later body. */
nd_value *nd_hand_over(const nd_pair *p, nd_builder *b, nd_value *v);

/* written.c. Of v, the values of block b in order, each with 1 + its index
 * as its mark: does it lie in memory whether or not it is kept? */
void nd_find_written(nd_arena *a, nd_value *const *v, int n,
                     const nd_block *b, bool *written);

#endif
