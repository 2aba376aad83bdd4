/* tiles.h - what tiles.c and tile_group.c share. */
#ifndef ND_TILES_H
#define ND_TILES_H

#include "passes.h"

/* Where tiles have been made, the list has holes until all are: who comes after
 * keeps its number. A group looks at kernels first to last alone, so that each
 * of the tiles of a long program costs no more than those of a short one. */
typedef struct nd_group {
    nd_code *c;
    nd_kernels *list;
    int seed, first, last;           /* members are between them */
    nd_tiles t;
    bool *member;                    /* by kernel of the list */
    bool *after;                     /* runs after the tiles */
    bool grown;
} nd_group;

/* How the tiles cut the axis, or NULL. */
const nd_tile_axis *nd_group_axis(const nd_group *g, const nd_axis *a);
/* Can the kernel run on a tile alone? */
bool nd_group_fits(const nd_group *g, const nd_kernel *k);
/* Does a node of it read x itself, or under another name? */
bool nd_group_reads(nd_code *c, const nd_kernel *k, const nd_value *x);
/* What may join the first one does. */
void nd_group_grow(nd_group *g);
/* Can its kernels run one right after the other? What stands between them goes
 * in front, or behind if it reads what they make. */
bool nd_group_order(nd_group *g);

#endif
