/* shard.h - what the files of the shard pass share. */
#ifndef ND_SHARD_H
#define ND_SHARD_H

#include "passes.h"

/* What is known of a value: its copies under other sharding types. */
typedef struct nd_sh_info {
    ND_VEC(nd_value *) variants;
    bool open;                       /* a carried zero: any type will do yet */
    bool partial;                    /* a sum over microbatches, not whole */
} nd_sh_info;

/* A block being rewritten; `at` is the op that is being given its cut. New
 * conversions go before it. */
typedef struct nd_sh_level {
    struct nd_sh_level *up;
    nd_block *block;
    int at;
} nd_sh_level;

/* The axes that an op runs over, each at its cut. */
typedef struct nd_sh_space {
    int n;
    nd_axis *axis[2 * ND_MAX_RANK];
    nd_cut cut[2 * ND_MAX_RANK];
} nd_sh_space;
nd_cut nd_sh_cut_of(const nd_sh_space *sp, const nd_axis *a);

/* Bytes that move although other cuts would do: see shard_notes.c. */
typedef struct nd_sh_note {
    nd_loc loc;
    nd_axis *axis, *other;
    int mesh;
    bool recut;
    double bytes, instead;           /* that a rank sends per step */
} nd_sh_note;

typedef struct nd_sh {
    nd_module *m;
    ND_VEC(nd_sh_info *) info;       /* by value mark */
    ND_VEC(nd_op *) accumulates;
    nd_table repeated;               /* axes of repeats */
    bool *graded;                    /* by param: a contribution was seen */
    uint32_t *summed;                /* by param: what one was pending over */
    ND_VEC(nd_sh_note) notes;
    const nd_sh_space *space;        /* of the op whose operands convert */
    bool failed;
} nd_sh;

nd_sh_info *nd_sh_info_of(nd_sh *s, nd_value *v);

/* shard_rules.c: cuts of `n` axes by walking the rules; mesh axes in `taken`
 * are not used. Microbatches cut the sample axis outside phase PRE. */
void nd_sh_walk(const nd_module *m, int n, nd_axis *const *axes,
                uint32_t taken, nd_phase phase, nd_cut *cut);
/* t with the cut of its own axes and nothing pending. */
nd_type nd_sh_home(const nd_module *m, const nd_type *t, nd_phase phase);

/* One collective, or a slice: what it does to a type. */
typedef struct nd_sh_move {
    nd_opcode kind;
    int axis, to;                    /* positions; to: all_to_all alone */
    uint32_t mesh;
} nd_sh_move;

typedef struct nd_sh_path {
    int from;                        /* which of the given types it starts at */
    double bytes;                    /* that a rank sends */
    ND_VEC(nd_sh_move) moves;
} nd_sh_path;

/* The type after a move. */
nd_type nd_sh_moved(const nd_type *from, const nd_sh_move *move);
/* shard_search.c: the cheapest moves from one of n types of a value to `want`;
 * false if there are none, as rows do not move between microbatches. Nothing
 * is pending as a maximum. */
bool nd_sh_search(const nd_module *m, int n, const nd_type *const *types,
                  const nd_type *want, nd_sh_path *path);

/* shard_store.c: the type that a parameter is stored in; and what the plan says
 * of that and is not so. */
void nd_sh_store(nd_sh *s, nd_op *param);
void nd_sh_check_store(nd_sh *s);

/* shard_micro.c: sets `partial`. */
void nd_sh_find_partial(nd_sh *s);

/* shard_notes.c: v goes that way to be what `user` wants, in block b. What is
 * worth a note is told at the end of the pass. */
void nd_sh_notice(nd_sh *s, const nd_op *user, const nd_block *b,
                  const nd_value *v, const nd_type *want,
                  const nd_sh_path *path);
void nd_sh_tell(nd_sh *s);

/* shard_convert.c: v under the cuts and pending sums of `want`, made from
 * collectives and slices where no such copy exists. */
nd_value *nd_sh_convert(nd_sh *s, nd_sh_level *lv, nd_value *v,
                        const nd_type *want);
/* v, which the op at lv->at has just made, without its pending maximum. */
nd_value *nd_sh_settle_max(nd_sh *s, nd_sh_level *lv, nd_value *v);

#endif
