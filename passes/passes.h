/* passes.h - graph to graph, in the order of passes.def, then the two plans
 * that the code generator prints: kernels (fuse) and memory (memplan).
 *
 * A pass returns false only after it reported an error. It may rely on the
 * state bits that passes.def requires, and the verifier accepts its result.
 */
#ifndef ND_PASSES_H
#define ND_PASSES_H

#include "../ir/ir.h"

typedef struct nd_options {
    const char *dump_after;          /* pass name, "all", or NULL */
    bool verify_each;                /* on in tests */
    FILE *dump_to;
    const char *times;               /* file of measured times of the stages */
} nd_options;

/* ---- runner.c ----------------------------------------------------------- */

/* Runs the whole table; stops at the first pass that fails. */
bool nd_run_passes(nd_module *m, const nd_options *o);
/* Runs up to and including the pass `last` (NULL: all). */
bool nd_run_until(nd_module *m, const nd_options *o, const char *last);
/* From the pass `first` on, which is one of the table. */
bool nd_run_from(nd_module *m, const nd_options *o, const char *first);
/* The same without a word, for trials: what is wrong is told by the run that
 * counts. */
bool nd_run_quietly(nd_module *m, const nd_options *o, const char *first);
void nd_list_passes(FILE *out);

/* ---- the passes --------------------------------------------------------- */

bool pass_twins(nd_module *m, const nd_options *o);
bool pass_experts(nd_module *m, const nd_options *o);
bool pass_precision(nd_module *m, const nd_options *o);
bool pass_context(nd_module *m, const nd_options *o);
bool pass_autodiff(nd_module *m, const nd_options *o);
bool pass_simplify(nd_module *m, const nd_options *o);
bool pass_batch(nd_module *m, const nd_options *o);
bool pass_shard(nd_module *m, const nd_options *o);
bool pass_fit(nd_module *m, const nd_options *o);
bool pass_comm_opt(nd_module *m, const nd_options *o);
bool pass_recompute(nd_module *m, const nd_options *o);
bool pass_pipeline(nd_module *m, const nd_options *o);
bool pass_schedule(nd_module *m, const nd_options *o);

/* routes.c: where the plan cuts rows and their experts by one mesh axis, rows
 * travel to their experts and back. */
void nd_route_experts(nd_module *m);

/* ---- shard_store.c: how parameters are stored --------------------------- */

/* Is a parameter stored in smaller pieces than its uses read? */
bool nd_is_in_pieces(const nd_module *m, const nd_param *p);
/* The mesh axes that share a parameter's state, each a flat part of it, as far
 * as its gradient is summed over them. */
uint32_t nd_zero_mesh(const nd_module *m, const nd_param *p);

/* ---- remat_auto.c ------------------------------------------------------- */

/* Makes of `recompute auto` one of the others, and says which stages run their
 * forward pass again. False after reporting that nothing fits. */
bool nd_choose_recompute(nd_module *m, const nd_options *o);

/* ---- simplify.c --------------------------------------------------------- */

/* Do ops of one result compute the same of the same operands? */
bool nd_same_work(const nd_op *a, const nd_op *b);

/* ---- mincut.c ----------------------------------------------------------- */

typedef struct nd_mincut nd_mincut;
nd_mincut *nd_mincut_new(nd_arena *a, int nodes);
void nd_mincut_node(nd_mincut *c, int v, int64_t weight);  /* cost of cutting */
void nd_mincut_edge(nd_mincut *c, int u, int v);
void nd_mincut_source(nd_mincut *c, int v);
void nd_mincut_sink(nd_mincut *c, int v);
/* kept[v]: v is in the cheapest cut, the one nearest to the sink. */
void nd_mincut_solve(nd_mincut *c, bool *kept);

/* ---- pipeline.c --------------------------------------------------------- */

/* Empty stages, placed as the plan's schedule wants them. */
nd_program *nd_program_new(nd_module *m, int devices);

/* ---- schedule_auto.c ----------------------------------------------------- */

/* Fills plan.searched, if the program can be cut at all. False after reporting
 * that nothing fits into the memory. */
bool nd_choose_schedule(nd_module *m, const nd_options *o);

/* ---- split.c ------------------------------------------------------------- */

/* Does a schedule take gradients of inputs and of weights apart? */
bool nd_in_halves(const sched *x);

/* ---- stage_costs.c ------------------------------------------------------- */

/* Fills program->costs: seconds by nd_default_cluster. `i` is all of backward
 * where the program has no list of weight gradients. */
void nd_stage_costs(nd_module *m);

/* ---- stage_times.c ------------------------------------------------------- */

/* Replaces those by the times that a program has measured. */
bool nd_stage_times(nd_module *m, const char *path);

/* ---- stages_check.c ------------------------------------------------------ */

/* Proves that every stage has what its ops read, and that each iteration and
 * each effect happens once. */
bool nd_stages_check(nd_module *m);

/* ---- schedule.c --------------------------------------------------------- */

/* The plan's schedule, made or read: computations alone, or from a file as they
 * are there. It belongs to the context. NULL after an error. */
sched *nd_schedule_new(nd_module *m, int devices);
/* Gives a schedule its messages, unless it has them. */
bool nd_schedule_lower(const nd_module *m, sched *s, sched_error *e);
/* Proves that every microbatch is computed once on every stage, in order, and
 * that no devices wait for each other in a circle. */
bool nd_schedule_check(nd_module *m);
/* Proves that the slots hold what the microbatches keep. */
bool nd_slots_check(nd_module *m);

/* ---- async.c: weights of several updates --------------------------------- */

/* An update after each microbatch; gradients of the weights before the last
 * update. */
bool nd_is_stashed(const nd_module *m);
bool nd_is_behind(const nd_module *m);
/* How many versions of its weights a device holds, the newest included. */
int nd_versions(const nd_module *m, int device);
/* Can the program be run with them? */
bool nd_async_check(nd_module *m);
/* Does what a stage computes before its microbatches read weights? */
bool nd_prepares_weights(const nd_module *m, int stage);
typedef enum {
    ND_SCHEDULE_DRAWN,               /* for a terminal */
    ND_SCHEDULE_CSV, ND_SCHEDULE_COMMS,      /* computations; messages too */
    ND_SCHEDULE_SVG, ND_SCHEDULE_JSON
} nd_schedule_form;
void nd_schedule_show(nd_buf *b, nd_module *m, nd_schedule_form form);
/* Idle time over all time of all devices, between 0 and 1. */
double nd_schedule_bubble(const nd_module *m);
/* From the first computation of a step to its last, by the stages' times. */
double nd_schedule_seconds(const nd_module *m);

/* ---- cost.c ------------------------------------------------------------- */

double nd_op_flops(const nd_op *op, const nd_mesh *mesh);  /* per rank, ceil */
/* To choose between collectives: the bytes that one rank sends for one between
 * two types of a value, were all pieces as large as the largest. */
double nd_comm_bytes(nd_opcode kind, uint32_t over, const nd_type *in,
                     const nd_type *out, const nd_mesh *mesh);

/* The kinds of calls that carry bytes between ranks, as the runtime counts
 * them. An op may be carried by another one's kind. */
typedef enum {
    COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER, COMM_ALL_TO_ALL,
    COMM_SHIFT, COMM_SEND, COMM_RECV, COMM_NKINDS
} nd_comm_kind;
extern const char *const nd_comm_names[COMM_NKINDS];

/* What the ranks run on: `near` neighbours share fast links. */
typedef struct nd_cluster {
    int near;
    double near_bandwidth, near_latency;     /* bytes per second, seconds */
    double far_bandwidth, far_latency;
    double flops, narrow_flops;      /* per second: f32, products of 16 bits */
    double memory_bandwidth;
} nd_cluster;
extern const nd_cluster nd_default_cluster;
/* Seconds that one call of `members` ranks along `mesh` takes, each of which
 * sends so many bytes. */
double nd_comm_seconds(const nd_cluster *c, const nd_mesh *m, nd_comm_kind k,
                       uint32_t mesh, int members, double bytes);

/* Bytes of a value on the rank that has most of it. */
double nd_local_bytes(const nd_type *t, const nd_mesh *mesh);
/* Seconds of one run of an op there, collectives included; of a repeat, of all
 * its iterations. */
double nd_op_seconds(const nd_module *m, const nd_cluster *c, const nd_op *op);

/* ---- comm_bytes.c: what one rank sends ----------------------------------- */

/* A rank at a microbatch: coord[micro]. */
typedef struct nd_spot {
    const nd_module *m;
    const nd_mesh *mesh;
    int coord[ND_MAX_MESH];
    int stage;                       /* whose iterations it has */
} nd_spot;
/* At the first stage of its device. */
nd_spot nd_spot_of(const nd_module *m, int rank);
/* How many indices of an axis that no mesh axis cuts the stage has. */
int64_t nd_spot_iterations(const nd_spot *s, const nd_axis *a);
int64_t nd_spot_numel(const nd_spot *s, const nd_type *t);
int nd_group_size(const nd_mesh *m, uint32_t mesh);

/* What one op or one step of the update does on a rank: calls of one kind, and
 * the bytes that the rank sends in all of them. */
typedef struct nd_message {
    nd_comm_kind kind;
    int64_t calls, bytes;
    bool about;                      /* the bytes depend on the data */
} nd_message;
nd_message nd_op_message(const nd_op *op, const nd_spot *s);
/* The same of `words` numbers of 4 bytes on every rank of a group: summed; or
 * gathered (or scattered) in equal parts, `words` in all. */
nd_message nd_sum_message(const nd_spot *s, uint32_t mesh, int64_t words);
nd_message nd_parts_message(const nd_spot *s, nd_comm_kind k, uint32_t mesh,
                            int64_t words);

/* ---- heap.c: numbers, the least one first ------------------------------- */

typedef ND_VEC(int) nd_heap;
void nd_heap_put(nd_arena *a, nd_heap *h, int x);
int nd_heap_take(nd_heap *h);        /* of a heap that is not empty */

/* ---- layout.c: how values lie in memory --------------------------------- */

/* One way to cut one axis; `X_batch_dp` in generated code. */
typedef struct nd_ext {
    nd_axis *axis;
    nd_cut cut;
    bool piped;                      /* a stage's iterations [lo, hi) */
    int64_t fixed;                   /* the length, if every rank's; or -1 */
    int64_t max;
    int64_t device;                  /* of all stages of a device: the most */
    bool tile;                       /* a part of `whole`: see nd_tiles */
    bool moves;                      /* ... that begins elsewhere */
    int whole;
} nd_ext;

/* k * n[ext[0]] * n[ext[1]] ... elements. */
typedef struct nd_len {
    int64_t k;
    int n;
    int ext[ND_MAX_RANK];
} nd_len;

/* A summand of an address: (l - off[base]) * stride at iteration l of
 * `repeat`, or (off[ext] - off[base]) * stride for a piece of an axis. */
typedef struct nd_term {
    nd_op *repeat;
    bool turn;                       /* l % 2 and not l - off[base] */
    int ext, base;
    nd_len stride;
} nd_term;

typedef enum {
    AT_BUFFER,                       /* the place of `value` */
    AT_TILE,                         /* the scratch of a thread: of a tile */
    AT_WEIGHT, AT_GRAD,              /* of `param` */
    AT_CARRY_IN, AT_CARRY_OUT        /* of body argument `value`, now */
} nd_root;

/* A view: a root and, per axis, a stride in elements.
 *
 * Activations are packed by the rank's own lengths, so that collectives and
 * messages take them as they are. Parameters, gradients, inputs and outputs
 * are spaced by the largest length of each axis, as ndrt.h wants them. What a
 * repeat stacks lies iteration after iteration, each spaced for the largest
 * rank. */
typedef struct nd_ref {
    nd_root root;
    const nd_value *value;
    nd_param *param;
    nd_dtype dtype;
    int rank;
    nd_axis *axis[ND_MAX_RANK];
    int ext[ND_MAX_RANK];
    nd_len stride[ND_MAX_RANK];
    int nterms;
    nd_term term[3 * ND_MAX_RANK];   /* slices', tiles' and repeats' */
} nd_ref;

/* ---- fuse*.c: ops of one block -> kernels ------ */

typedef enum {
    K_LOOP,                          /* a generated loop nest */
    K_GEMM,                          /* one contract */
    K_GROUPED,                       /* one grouped or grouped_sum */
    K_COMM,                          /* one collective */
    K_TILES,                         /* loop nests and contracts, by tiles */
    K_REPEAT                         /* a repeat; its body has its own list */
} nd_kernel_kind;

/* An op inside a loop nest. A row op runs once per point of the outer axes,
 * before the pass over the inner axes that `pass` names; any other op runs
 * inside passes, first in `pass`. */
typedef struct nd_node {
    nd_op *op;
    bool row;
    int pass;
    bool stored;                     /* the result reaches memory */
    bool keep;                       /* a row of it is kept for later passes */
    bool fold;                       /* a reduce whose result is a row value */
    bool scan;                       /* a running sum along the inner axis */
    bool add;                        /* adds to memory: reduce over outer axes,
                                        scatter_add, accumulate */
    bool in_parts;                   /* it adds up parts of the rows first */
    int64_t part_at;                 /* floats of scratch in front of those */
} nd_node;

/* How the threads of a rank share out a loop nest; see share.c. */
typedef enum {
    SHARE_NOT,                       /* who calls it runs all of it */
    SHARE_ONE,                       /* the first thread does */
    SHARE_ROWS,                      /* ranges of the first outer axes */
    SHARE_COLUMNS                    /* ranges of the innermost axis */
} nd_share_kind;

enum { ND_PARTS = 16 };              /* NDRT_PARTS of runtime/ndrt.h: the
                                        same number, says test_kir.c */

typedef struct nd_share {
    nd_share_kind kind;
    int n;                           /* of rows: how many outer axes are one
                                        range */
    bool parts;                      /* it is cut in ND_PARTS parts, and those
                                        are shared out, */
    int grain;                       /* so many of them at a time */
    size_t bytes;                    /* scratch for the parts' sums */
} nd_share;

/* Outer axes, then `npasses` passes over the inner axes. */
typedef struct nd_kernel {
    nd_kernel_kind kind;
    const char *name;                /* the instance path that names it, "" */
    int index;                       /* position in its list */
    nd_phase phase;
    nd_loc loc;
    ND_VEC(nd_node) nodes;           /* one, unless K_LOOP, K_TILES */
    nd_op *op;                       /* the op that gave the name */
    int nouter, ninner;              /* ninner 0: no axes at all */
    int outer[ND_MAX_RANK], inner[ND_MAX_RANK];          /* extents */
    nd_axis *outer_axis[ND_MAX_RANK], *inner_axis[ND_MAX_RANK];
    bool split;                      /* while fusing: inner is decided */
    int npasses;
    nd_share share;                  /* K_LOOP */
    struct nd_kernels *body;         /* K_REPEAT */
    struct nd_tiles *tiles;          /* K_TILES; or that it is one kernel of */
    struct nd_flight *flight;        /* of a K_COMM that others run beside */
    int early;                       /* K_REPEAT: what its first iteration
                                        waits for starts before that kernel */
} nd_kernel;

/* A collective that starts in front of one kernel of its list and is waited for
 * in front of another (n: at the end). What `ahead` names, it starts for the
 * repeat's next iteration where it was waited for in this one: its result has
 * two places, which take turns. See overlap.c. */
typedef struct nd_flight {
    nd_kernel *k;
    int start, wait;
    nd_op *ahead;                    /* or NULL */
    int ticket;                      /* the emitter's */
} nd_flight;

typedef struct nd_kernels {
    nd_block *block;                 /* the body, or NULL for a stage's list */
    ND_VEC(nd_kernel *) v;
    ND_VEC(nd_flight *) flights;     /* in the order of the collectives */
    bool overlapped;                 /* flights have been chosen */
} nd_kernels;

/* An axis of which a tile has a part: the extent, and that of the part. */
typedef struct nd_tile_axis {
    nd_axis *axis;
    int ext, part;
    bool serial;                     /* something sums over it: its parts follow
                                        each other in one thread */
} nd_tile_axis;

/* Kernels that run one after another on a tile, then on the next one. What they
 * make for each other lies in the scratch of the thread, which holds one tile
 * of it:
 *
 *   s[batch, seq, heads, kv]    batch and heads one index at a time, 64 of seq,
 *                               all of kv: 64 * kv floats
 *
 * See tiles.c. */
typedef struct nd_tiles {
    int n;
    nd_tile_axis axis[ND_MAX_RANK];  /* those in one thread last */
    int blocked;                     /* the one that is taken in blocks */
    nd_axis *inner;                  /* the axis that tiles have all of, */
    int inner_ext, inner_part;       /* or as much as they need: */
    bool begins, ends;               /* at the first index of the block + begin,
                                        with the last one + end */
    int64_t begin, end;
    ND_VEC(nd_kernel *) v;
    ND_VEC(nd_value *) inside;       /* what lies in the scratch */
    ND_VEC(size_t) at;               /* ... and where */
    size_t bytes;
} nd_tiles;

/* What becomes of a value in generated code. */
typedef enum {
    V_MEMORY,                        /* lies in memory by its nature */
    V_LOOP,                          /* made in a loop nest */
    V_VIEW,                          /* other strides on another value */
    V_INLINE                         /* an expression, computed at each use */
} nd_class;

typedef struct nd_vinfo {
    nd_value *v;
    nd_class cls;
    int size;                        /* ops in its expression, if inline */
    int again;                       /* 1: inline by fuse_again.c */
    bool hard;                       /* something reads it from memory */
    int nuses;                       /* operands, yields, messages, outputs */
    ND_VEC(nd_op *) users;           /* ops that are neither view nor inline */
    nd_value *alias;                 /* lies where this value lies */
    nd_op *accum;                    /* it only goes into this accumulate */
    bool first;                      /* ... as the first in a step: it writes
                                        then, see first.c */
    int yield;                       /* the body's yield it is written as; -1 */
    nd_op *ahead;                    /* the repeat that gathers it one
                                        iteration ahead; or NULL */
    struct nd_tiles *tiles;          /* it is there for one tile at a time */
    nd_kernel *kernel;               /* where it is made, in the list at hand */
} nd_vinfo;

/* ---- pack.c -------------------------------------------------------------- */

/* So many bytes, a multiple of 64, in use from one time until another one, both
 * included. */
typedef struct nd_item {
    size_t bytes, at;                /* at: where they are packed, */
    bool placed;                     /* or where they are already */
    int from, to;
} nd_item;
/* Returns where the last one ends. */
size_t nd_pack(nd_arena *a, nd_item *const *item, int n);

/* ---- memplan.c: a place for every buffer -------------------------------- */

/* Where a buffer lives: `base` bytes into a room. One room has one copy for all
 * microbatches; the others are those of the spans of runtime/schedule/sched.h,
 * an array of slots each, where a microbatch has one of them. */
enum { ROOM_FIXED, ROOM_UNTIL_I, ROOM_UNTIL_W, ROOM_I_TO_W };

typedef struct nd_place {
    const nd_value *value;
    int room;
    size_t base, bytes;
} nd_place;

typedef struct nd_bucket {
    ND_VEC(nd_param *) params;
    ND_VEC(size_t) at;               /* float offset of each in the bucket */
    size_t n;                        /* floats, padded */
    uint32_t sum, cut, zero, devices;
    bool decay, frozen, muon;
} nd_bucket;

typedef struct nd_bucket_place {
    int bucket;
    size_t weights, grads, state1, state2;
} nd_bucket_place;

typedef struct nd_stage_mem {
    size_t kept[2][1 + SCHED_NSPANS];        /* by room: the bytes of a
                                        microbatch; did the stage not run
                                        forward again, and did it */
    size_t saved_bytes;              /* what outlives a list without a slot */
    ND_VEC(nd_place) places;         /* ascending by the value's number */
} nd_stage_mem;

/* The arena of a device: its fixed room, then the slots of its stages (rooms.c
 * in runtime/schedule), and one aside if any stage runs forward again. */
typedef struct nd_device_mem {
    size_t fixed_bytes, arena_bytes;
    /* parts of the arena, for the report */
    size_t weight_bytes, grad_bytes, state_bytes, input_bytes, saved_bytes,
        temp_bytes, older_bytes;
    size_t lent_bytes;               /* of those saved: in place of gradients */
    size_t version_bytes;            /* of all weights, if there are older ones
                                        too; else 0 */
    size_t loss;                     /* the float, or (size_t)-1 */
    size_t work, work_bytes;         /* for matrices that muon gathers; shares
                                        its memory with temporaries */
    size_t scratch, scratch_bytes;   /* for one kernel at a time */
    size_t tile_bytes;               /* of each thread, beside the arena */
    ND_VEC(nd_bucket_place) buckets;
    ND_VEC(int) cleared;             /* parameters: a step begins with clearing
                                        their gradients */
} nd_device_mem;

typedef struct nd_memplan {
    ND_VEC(nd_bucket) buckets;
    int *bucket_of, *member_of;      /* by parameter: its bucket or -1, and
                                        where it stands in the list there */
    nd_stage_mem *stage;
    nd_device_mem *device;
} nd_memplan;

/* ---- fuse.c: everything the emitters and the report read ---------------- */

/* The lists of a stage, in the order in which they run. */
enum { LIST_PRE, LIST_FWD, LIST_BWD, LIST_WGT, NLISTS };

typedef struct nd_stage_code {
    nd_kernels list[NLISTS];
} nd_stage_code;

typedef struct nd_code {
    nd_module *m;
    nd_arena *a;
    ND_VEC(nd_ext) exts;
    int nvalues;
    nd_vinfo *info;                  /* by value->mark */
    nd_table bodies;                 /* block -> nd_kernels, for all stages */
    nd_stage_code *stage;
    nd_memplan mem;
} nd_code;

/* Makes both plans. May insert copies (stop_gradient with sub = 1) where a
 * collective or a repeat needs packed memory; the meaning stays. */
nd_code *nd_code_new(nd_module *m);

void nd_extents(nd_code *c);         /* all that occur in the module */
int nd_ext_of(nd_code *c, const nd_type *t, int i);
int64_t nd_len_max(const nd_code *c, const nd_len *l);
void nd_len_mul(const nd_code *c, nd_len *l, int ext);
bool nd_len_eq(const nd_len *a, const nd_len *b);
bool nd_ext_whole(const nd_code *c, int ext);
/* Where v can be read or written; false for an inline value. */
bool nd_ref_of(nd_code *c, const nd_value *v, nd_ref *r);
/* The part of a parameter's gradient that an accumulate adds to, with the axis
 * names of what it adds. */
nd_ref nd_grad_ref(nd_code *c, const nd_op *accum);
nd_value *nd_accum_source(const nd_code *c, const nd_op *accum);
/* Where the result of an op goes that accumulates or stores; see vinfo. */
bool nd_dest_of(nd_code *c, const nd_value *v, nd_ref *r);
int nd_ref_axis(const nd_ref *r, const nd_axis *a);  /* position or -1 */
bool nd_is_packed(const nd_code *c, const nd_ref *r);
nd_len nd_numel_local(nd_code *c, const nd_ref *r);  /* of this rank */
/* The place of v, rounded: what a stage stacks is for its own iterations; -1:
 * for those of the stage with most. */
size_t nd_bytes_on(nd_code *c, const nd_value *v, int stage);
nd_vinfo *nd_info(const nd_code *c, const nd_value *v);
nd_kernels *nd_body_of(const nd_code *c, const nd_op *repeat);
/* The stacked result that the carried argument i is kept in, or NULL. */
nd_value *nd_kept_carry(const nd_op *repeat, int i);

/* Of a product by groups: the axes of the weight that x has too (or the others)
 * in the order of the weight, and whether each steps over exactly the next one
 * in r. */
int nd_group_axes(const nd_op *op, bool of_x, nd_axis **axes);
bool nd_group_nests(nd_code *c, const nd_op *op, bool of_x, const nd_ref *r);
/* Does r, the weight or its gradient, step so in both? */
bool nd_weight_nests(nd_code *c, const nd_op *op, const nd_ref *r);
/* Of a dispatch or combine: the axes of what is sent of a row, and whether its
 * operand lies so that it can be sent. */
int nd_travel_axes(const nd_op *op, nd_axis **axes);
bool nd_travel_nests(nd_code *c, const nd_op *op, const nd_ref *r);
/* Bytes that one run of a kernel needs aside, as runtime/experts.c and travel.c
 * lay it out. */
size_t nd_scratch_bytes(nd_code *c, const nd_kernel *k);

void nd_number(nd_code *c);          /* fresh info for every value */
void nd_insert_copies(nd_code *c);
void nd_fuse_uses(nd_code *c);       /* copies, classes, users, homes */
/* Made by a kernel, in memory of its own? */
bool nd_is_direct(const nd_code *c, const nd_value *v);
bool nd_is_cheap(const nd_op *op);   /* less to compute than to load */
/* fuse_again.c. Once it is known which ops share a nest. */
void nd_fuse_again(nd_code *c, nd_kernels *list);
nd_class nd_class_of(const nd_code *c, const nd_value *v);
bool nd_is_copy(const nd_op *op);
/* Does the op change names only: a collective of one rank, stop_gradient? */
bool nd_is_same(const nd_code *c, const nd_op *op);
/* The value behind renames and the like. */
nd_value *nd_behind(const nd_code *c, nd_value *v);
/* Calls f for each value that a kernel's expression of v reads or needs. */
typedef void nd_leaf_fn(nd_code *c, nd_value *leaf, bool in_memory, void *u);
void nd_leaves(nd_code *c, nd_op *op, nd_leaf_fn *f, void *user);
void nd_leaves_of(nd_code *c, nd_value *v, bool in_memory, nd_leaf_fn *f,
                  void *user);

void nd_fuse(nd_code *c);            /* fills stage[] and bodies */
bool nd_loop_op(const nd_code *c, const nd_op *op);
nd_kernel *nd_loop_new(nd_code *c, nd_op *op);
bool nd_loop_join(nd_code *c, nd_kernel *k, nd_op *op);   /* false: no fit */
/* Puts the ops of `early` in front of those of `late`, which reads them. */
bool nd_loop_absorb(nd_code *c, nd_kernel *late, const nd_kernel *early);
bool nd_loop_reads(nd_code *c, nd_kernel *k, nd_value *v);
void nd_loop_finish(nd_code *c, nd_kernel *k);
nd_node *nd_node_of(nd_kernel *k, const nd_value *v);     /* or NULL */

/* ---- tiles.c ------------------------------------------------------------- */

/* So many times larger than either operand is a product that tiles begin with,
 * and that is rather computed again than kept. */
enum { ND_FAR_LARGER = 2 };
/* Makes K_TILES of kernels of the list, which are ready to be printed. */
void nd_make_tiles(nd_code *c, nd_kernels *list);
/* The extent of parts of `ext`, of at most `max` elements; always as many if
 * `even`; each from the start on if `first`. */
int nd_tile_ext(nd_code *c, int ext, int64_t max, bool even, bool first);
/* tile_bounds.c. Where the inner axis may begin and end. */
void nd_bound_tiles(nd_code *c, nd_tiles *t);
/* The part of r that a tile has of the axes that it splits; only of those that
 * threads share if `shared`. */
void nd_tile_part(const nd_tiles *t, bool shared, nd_ref *r);

/* ---- share.c ------------------------------------------------------------- */

/* Decides, and puts the outer axes in the order that it wants. */
void nd_share_out(nd_code *c, nd_kernel *k);
/* Or does one thread run all of a large nest because of a sum in it? */
bool nd_shares_well(nd_code *c, const nd_kernel *k);
/* Where a node that adds to memory does. */
nd_ref nd_add_ref(nd_code *c, const nd_op *op);
/* The elements of a part's sum, which lie as they do there. */
nd_len nd_part_len(nd_code *c, const nd_ref *to);

/* ---- touches.c: which memory a kernel reads and writes ------------------- */

/* `at` is where; index is the kernel's position in the list that was given, or
 * what was given instead. */
typedef void nd_touch_fn(void *user, const nd_ref *at, bool write, int index);
void nd_touch_kernel(nd_code *c, nd_kernel *k, nd_touch_fn *f, void *user,
                     int index);
/* All kernels. A collective's memory is in use from its start to its wait.
 * index < 0: the kernel's own position. */
void nd_touch_list(nd_code *c, const nd_kernels *list, nd_touch_fn *f,
                   void *user, int index);

/* ---- traffic.c: what a kernel moves through memory ----------------------- */

typedef struct nd_access {           /* an operand of a kernel */
    nd_ref at;
    double bytes;                    /* of what is used of it, once */
    bool read, written;
    bool cleared;                    /* written with zeros first */
    bool by_row;                     /* indexed: some of its rows */
    bool at_end;                     /* parts are added to it, once */
    double reads, writes;            /* bytes moved in one run */
} nd_access;

typedef struct nd_traffic {
    ND_VEC(nd_access) v;
    double read, written;            /* bytes of one run ... */
    double least;                    /* ... were each operand moved once */
    double flops;
} nd_traffic;
/* Of any kernel but a repeat. */
nd_traffic nd_kernel_traffic(nd_code *c, nd_kernel *k);

/* ---- overlap.c, overlap_check.c: collectives beside kernels -------------- */

void nd_overlap(nd_code *c);         /* fills the lists' flights */
/* Is what is in flight left alone, in every place of every stage? */
bool nd_overlap_check(nd_code *c);

/* ---- final.c: gradients that a list has done with ------------------------ */

typedef struct nd_final {
    int last;                        /* the last kernel that adds to it; -1:
                                        none, or nobody needs to know */
    bool layered;                    /* that is a repeat, whose iteration l adds
                                        to the slice l alone */
} nd_final;
/* By parameter; NULL if the list has nothing to tell. */
nd_final *nd_finals(nd_code *c, int stage, const nd_kernels *list);

/* ---- first.c, first_check.c: gradients that a step need not clear -------- */

void nd_first_sums(nd_code *c);      /* fills vinfo.first; makes mem.device, of
                                        which it fills `cleared` */
/* The accumulate that a node does the work of, or NULL. */
const nd_op *nd_added_by(const nd_code *c, const nd_node *n);
/* Can it write all of what it adds to, instead of adding? */
bool nd_writes_all(nd_code *c, const nd_kernel *k, const nd_node *n);
/* Is each gradient cleared, or written first, on every schedule? */
bool nd_first_check(nd_code *c);

/* ---- lend*.c: values over gradients -------------------------------------- */

/* One stage, and that one microbatch? Then a gradient is made once per step,
 * and what has been before is known. */
bool nd_may_lend(const nd_module *m);

/* Of a parameter's gradient, without gaps; 0 if not every rank has as many. */
size_t nd_grad_bytes(nd_code *c, const nd_param *p);
/* The bytes from one iteration of the kernel, a repeat, to the next: of all
 * that it does with a value or adds to a gradient. 0 if something asks for more
 * than the iteration at hand has, or a collective runs beside it. */
size_t nd_step_of_value(nd_code *c, const nd_kernel *repeat, const nd_value *v);
size_t nd_step_of_grad(nd_code *c, const nd_kernel *repeat, const nd_param *p);
/* Is nothing there that is still needed when the gradient is made? */
bool nd_lend_check(nd_code *c);

void nd_memplan_new(nd_code *c);
/* Of one state of a bucket's optimizer, on one rank. */
size_t nd_state_bytes(const nd_code *c, int bucket);
/* memtemps.c. The block whose runs a value's place is for, and its bytes. */
const nd_block *nd_home_block(const nd_code *c, const nd_value *v);
size_t nd_place_bytes(nd_code *c, const nd_value *v, int stage);
/* in_place.c. May the kernel write `out` where it reads `in`, which nobody
 * reads later? */
bool nd_may_take_place(nd_code *c, nd_kernel *k, const nd_value *out,
                       const nd_value *in);
/* Do two values have bytes in common, on any stage? */
bool nd_share_bytes(const nd_code *c, const nd_value *a, const nd_value *b);
/* memplan_check.c. Does nothing lie on what is still needed? */
bool nd_places_check(nd_code *c);
bool nd_has_loss(const nd_module *m, int stage);     /* is it this stage's? */
/* memslots.c. The bytes of a device's slots, with these stages running forward
 * again. */
size_t nd_slots_bytes(const nd_module *m, const nd_stage_mem *stage, int device,
                      const bool *again);
/* Does every device fit the plan's memory, to the byte? Reports those that do
 * not. */
bool nd_memory_check(const nd_code *c);
/* Proves that they hold what the microbatches keep. Reports what is wrong. */
bool nd_rooms_check(const nd_code *c);
/* Arrays of optimizer state that a parameter has. */
int nd_states_of(const nd_train *t, bool frozen, bool muon);
const nd_place *nd_place_of(const nd_stage_mem *s, const nd_value *v);

/* ---- buckets.c, buckets_check.c ------------------------------------------ */

void nd_buckets(nd_code *c);
/* The most that any device holds of axis i of a parameter's type. */
int64_t nd_param_cap(nd_code *c, const nd_type *t, int i);
/* The mesh axes that cut the matrices of a parameter, not only their list. */
uint32_t nd_matrix_cut(const nd_param *p);
/* The devices that hold copies of a bucket, or 0: one alone does, or each has
 * layers of its own. */
uint32_t nd_tied_devices(const nd_module *m, const nd_bucket *b);
/* Is every parameter in the one bucket that does what its types demand? */
bool nd_buckets_check(nd_code *c);
/* Are the lengths of pieces, on every rank, as generated code assumes? */
bool nd_extents_check(nd_code *c);

/* ---- comm_report.c: what a rank sends in a step -------------------------- */

/* One collective of the program, or one that the runtime adds to it. */
typedef struct nd_comm_row {
    const char *when;                /* "forward", "gradients", ... */
    const char *name;                /* of the op, or of the kind */
    nd_comm_kind kind;
    uint32_t mesh;                   /* no axis of size 1 */
    int members;                     /* of the group */
    nd_loc loc;                      /* where the program asks for it */
    const char *what;                /* ... or what the runtime does it for */
    int64_t calls;                   /* of a step */
    int64_t once;                    /* bytes of a call, the largest or, where
                                        one op makes several, their mean */
    bool about;                      /* the bytes depend on the data */
    int64_t bytes;                   /* of the step; a receive's are sent by
                                        another rank */
    double seconds;
    const nd_flight *flight;         /* kernels run beside it; or NULL */
} nd_comm_row;
typedef ND_VEC(nd_comm_row) nd_comm_rows;
/* In the order of the program. */
void nd_comm_rows_of(nd_code *c, int rank, const nd_cluster *cluster,
                     nd_comm_rows *rows);
/* The first rank of a device: it has the largest pieces. */
int nd_first_rank(const nd_module *m, int device);

/* ---- simulate.c: training steps of the compiled program, by rank --------- */

/* One step of gradient descent: w -= lr * x with x = g * min(1, clip / norm),
 * plus decay * w where the parameter decays. */
typedef struct nd_sgd {
    double lr, clip, decay;
} nd_sgd;

/* Every rank's weights and gradients, in the flat ranges of the buckets. */
typedef struct nd_sim {
    nd_code *c;
    nd_arena *a;
    int nranks;
    double **weights, **grads;       /* [bucket * nranks + rank]; NULL where
                                        the rank's device lacks the bucket */
    double loss, norm;               /* of the last step */
    nd_eval_result result;           /* ... and what else it computed */
    int64_t reductions;              /* of buckets, each group once, so far */
} nd_sim;

/* The buckets of a module, which stays as it is. */
nd_code *nd_sim_code(nd_module *m);
/* All ranks begin with these weights, by index of the parameter. */
nd_sim *nd_sim_new(nd_code *c, nd_arena *a, nd_tensor *const *weights);
/* Computes, reduces and updates as the generated program does. False after an
 * error: a rank lacks what it needs, or replicas differ. */
bool nd_sim_step(nd_sim *s, const nd_eval_options *inputs, const nd_sgd *g);
/* What a rank holds of a parameter for one of its stages, and of its gradient
 * when all reductions are done; v NULL: nothing. */
nd_piece nd_sim_weight(nd_sim *s, const nd_param *p, int rank, int stage);
nd_piece nd_sim_grad(nd_sim *s, const nd_param *p, int rank, int stage);

/* ---- prove.c: one device against all ranks ------------------------------- */

enum { ND_PROVE_STEPS = 3 };

/* What one device computes: the right answers. */
typedef struct nd_answers {
    nd_module *m;                    /* the source graph with its gradients */
    nd_arena *a;
    uint64_t seed;
    nd_sgd sgd;                      /* clip: half of the first norm */
    int nfeeds;
    nd_feed *feeds[ND_PROVE_STEPS];  /* inputs of each step */
    double loss[ND_PROVE_STEPS], norm[ND_PROVE_STEPS];
    nd_tensor **outputs[ND_PROVE_STEPS];
    nd_tensor **grads[ND_PROVE_STEPS];       /* by parameter */
    nd_tensor **weights[ND_PROVE_STEPS + 1]; /* before and after each step */
    struct {                         /* what rounding may do to each, in any */
        double loss, norm;           /* step; by output, by parameter */
        double *outputs, *grads;
    } slack;
} nd_answers;

typedef struct nd_proof_row {        /* of a parameter */
    const nd_param *p;
    double grad, weight;             /* largest differences, see prove.c */
    bool live;                       /* the gradient is not 0 in every step */
} nd_proof_row;

typedef struct nd_proof {
    int nrows;
    nd_proof_row *row;
    double loss[ND_PROVE_STEPS], norm[ND_PROVE_STEPS];
    double worst;                    /* of everything compared */
    int64_t collectives[OP_COUNT];   /* in all steps */
    int64_t reductions;              /* ... and those of buckets */
    bool equal;
    char what[256];                  /* the first thing that differs */
} nd_proof;

/* NULL after an error. */
nd_answers *nd_answers_new(nd_module *m, uint64_t seed);
void nd_answers_free(nd_answers *x);
/* Is every gradient 0, but for rounding? */
bool nd_answers_flat(const nd_answers *x);
/* Runs the same steps on all ranks and compares. False if that failed, which
 * was reported. */
bool nd_prove(const nd_answers *x, nd_code *c, nd_proof *out);
/* Equal, as far as sums in another order can be: 1e-9. */
extern const double nd_prove_room;

#endif
