/* split.h - backward in two halves, for schedules that let one of them wait. */
#ifndef ND_SPLIT_H
#define ND_SPLIT_H

#include "recompute.h"

/* Does the plan's schedule tell I from W? */
bool nd_wants_split(const nd_module *m);
/* Moves what only gradients of weights need into phase WGT: ops, and the half
 * of a repeat. Places are chosen, and known of the new ones. */
bool nd_split_backward(pipe *places);
/* The accumulates of a module in the order of the program. */
typedef struct nd_sums {
    ND_VEC(nd_op *) op;
    ND_VEC(nd_block *) in;           /* the block of each */
} nd_sums;
void nd_sums_of(nd_module *m, nd_sums *out);
/* Proves that nothing waits that may not, and that each gradient is added up as
 * often as `before`, in the same order. */
bool nd_split_check(nd_module *m, const nd_sums *before);

#endif
