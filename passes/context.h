/* context.h - what the files of the context pass share. */
#ifndef ND_CONTEXT_H
#define ND_CONTEXT_H

#include "passes.h"
#include "shard.h"

typedef ND_VEC(nd_value *) cx_values;

/* Softmax attention, found in the graph:
 *
 *   E = exp(X - max[key] X)   S = sum[key] E   A = f(E / S)
 *   O = sum[key](A * V)
 *
 * X is made from values with the axis `key`, values with the axis `query` and
 * values with neither; f is a product with such values and casts. */
typedef struct cx_region {
    nd_op *attend;                   /* the contract that makes O */
    nd_value *x, *p, *a, *v;         /* X, E / S, A, V */
    bool guarded;                    /* a row with S = 0 gives 0 */
    nd_axis *query, *key;
    int mesh, n;                     /* what cuts both, its size */
    int axes;                        /* the most that one op has together */
    uint32_t several;                /* these do: more than one is no region */
    bool causal;                     /* a key behind its query is hidden */
    bool zigzag;                     /* and chunks are in balance */
    cx_values inside;                /* with both axes, from X to A */
    cx_values given;                 /* with both, all keys at once */
    cx_values row;                   /* made of those, without keys */
    cx_values moving, queries;       /* that come in with one, not free */
    const char *no_ring;             /* why not, or NULL */
} cx_region;

/* context_match.c: is this contract the last op of such a region, and does the
 * plan cut its two axes by one mesh axis? */
bool cx_match(nd_module *m, const nd_table *readers_of, nd_op *op,
              cx_region *r);
/* Who reads each value now. Rewriting a region adds no readers to values of
 * another one. */
void cx_find_readers(nd_module *m, nd_table *readers_of);
bool cx_has(const nd_value *v, const nd_axis *a);
bool cx_holds(const cx_values *list, const nd_value *v);

/* The pass: axes that it makes, to be used again. */
typedef struct cx {
    nd_module *m;
    bool changed;
    uint32_t met, gathered;          /* mesh axes of regions; of those left */
    nd_axis *ring[ND_MAX_MESH], *hop[ND_MAX_MESH];
    nd_table part;                   /* axis -> block of it -> chunk of that */
    nd_table named;                  /* name -> axis */
    nd_table heads;                  /* axis -> its twin that cp cuts too */
    nd_table causal;                 /* the attentions that are in balance */
    nd_table rows;                   /* sums and maxima of all attentions */
    nd_table readers_of;             /* value -> the ops that read it */
    const nd_axis *root[ND_MAX_MESH];    /* the axis in zigzag order */
    const char *no_zigzag[ND_MAX_MESH];
} cx;

/* context.c: a rule before all others; the axis whose rules `a` follows. */
void cx_first_rule(nd_module *m, nd_rule r);
const nd_axis *cx_root(const nd_module *m, const nd_axis *a);

/* context_zigzag.c: in all of the module the axis `root` and those that follow
 * it are in the order of chunks; or why that cannot be. `rows` has the maxima
 * of softmaxes, which are constants to the gradient. */
const char *cx_zigzag(nd_module *m, const nd_axis *root, int n,
                      const nd_table *rows);

/* context_ring.c: rewrites the region to keys that move around a ring. */
void cx_ring(cx *c, const cx_region *r);

/* context_heads.c */
/* The cut of an axis where a value of that type is made. */
nd_cut cx_cut_of(const nd_module *m, const nd_type *t, const nd_axis *a);
/* An axis that all of the region has and nothing is summed along: the one with
 * most indices for each of `cx_parts` pieces. NULL if there is none. */
nd_axis *cx_heads_of(const nd_module *m, const cx_region *r);
/* Pieces of such an axis if the keys' mesh axis cuts it, too. */
int64_t cx_parts(const nd_module *m, const cx_region *r, const nd_axis *a);
/* Rewrites the region so that the mesh axis cuts `heads`. */
void cx_heads(cx *c, const cx_region *r, nd_axis *heads);

#endif
