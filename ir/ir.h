/* ir.h - the graph: values over named axes, ops, blocks, sharding types.
 *
 * READ FIRST. Everything between the frontend and the code generator is
 * written in these structures. A module holds one block, `step`: the forward
 * ops, and after autodiff the backward ops, in dependence order. `repeat`
 * keeps its body as a nested block, so nothing here grows with the number of
 * layers.
 *
 *   value  = dtype + ordered named axes + where each piece lives
 *            f32[batch/dp, seq, heads/tp, head]      cut over mesh axes
 *            f32[batch/dp, seq, d]+tp                a sum still pending
 *   op     = kind (a row of ops.def) + operands + attributes + results
 *
 * bf16 and f16 are how values are stored: such a value is cast, moved, indexed
 * and multiplied (contract: two of one width, summed in f32), and everything
 * else reads it through a cast to f32. Gradients are f32 whatever they are of.
 *
 * Sizes are element counts, offsets are global element indices, memory is in
 * bytes. Functions that can fail report through nd_error and return false or
 * NULL; nothing in this library exits.
 */
#ifndef ND_IR_H
#define ND_IR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "../runtime/schedule/sched.h"

/* ---- base.c: arena, vectors, strings ---------------------------------- */

typedef struct nd_arena nd_arena;
nd_arena *nd_arena_new(void);
void nd_arena_free(nd_arena *a);
/* Zero-filled, 16-byte aligned, lives until the arena is freed. */
void *nd_alloc(nd_arena *a, size_t bytes);
char *nd_strdup(nd_arena *a, const char *s);
char *nd_strndup(nd_arena *a, const char *s, size_t n);
char *nd_fmt(nd_arena *a, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
#define ND_NEW(arena, T) ((T *)nd_alloc(arena, sizeof(T)))
#define ND_NEWN(arena, T, n) ((T *)nd_alloc(arena, sizeof(T) * (size_t)(n)))

/* A growable array: struct { T *v; int n, cap; }. */
#define ND_VEC(T) \
    struct { \
        T *v; \
        int n, cap; \
    }
#define ND_PUSH(arena, vec, x) \
    do { \
        if ((vec)->n == (vec)->cap) \
            (vec)->v = nd_grow(arena, (vec)->v, (vec)->n, &(vec)->cap, \
                               sizeof *(vec)->v); \
        (vec)->v[(vec)->n++] = (x); \
    } while (0)
void *nd_grow(nd_arena *a, void *old, int n, int *cap, size_t elem);

/* A string builder in an arena; `s` is always terminated. */
typedef struct nd_buf {
    nd_arena *arena;
    char *s;
    size_t n, cap;
} nd_buf;
void nd_put(nd_buf *b, const char *s);
void nd_putf(nd_buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void nd_putn(nd_buf *b, const char *s, size_t n);
/* A pattern over parameters: `*` is any characters, `?` one. */
bool nd_glob(const char *pattern, const char *text);
uint64_t nd_hash(const char *s);     /* FNV-1a; names random streams too */

/* ---- table.c: pointers or strings -> pointers ---------------------------- */

typedef struct nd_table {
    nd_arena *arena;
    bool strings;                    /* keys compare by text */
    int n, cap;
    const void **key;
    void **val;
} nd_table;
void *nd_table_get(const nd_table *t, const void *key);   /* or NULL */
void nd_table_put(nd_table *t, const void *key, void *val);

/* ---- diag.c: locations, messages ---------------------------------------- */

/* Byte range in a file; file 0 means "nowhere". */
typedef struct nd_loc {
    int file;
    uint32_t begin, end;
} nd_loc;

extern const nd_loc nd_nowhere;

typedef enum { ND_NOTE, ND_PERF, ND_WARNING, ND_ERROR } nd_severity;

typedef struct nd_file {
    const char *name;
    const char *text;
    size_t len;
    ND_VEC(uint32_t) line;           /* where each line begins */
} nd_file;

typedef struct nd_ctx {
    nd_arena *arena;
    ND_VEC(nd_file) files;           /* file id i is files.v[i - 1] */
    int nerrors, nwarnings;
    int error_limit;                 /* 20; further errors are counted only */
    bool werror;                     /* a warning makes the exit status 1 */
    /* Receives each finished message (text with caret lines, newline-ended).
     * NULL prints to stderr. */
    void (*sink)(void *user, nd_severity, const char *text);
    void *sink_user;
    bool muted;                      /* the last message was over the limit */
    int note_file;                   /* file of the last message */
    struct nd_kept *kept;            /* freed with the context */
} nd_ctx;

nd_ctx *nd_ctx_new(void);
void nd_ctx_free(nd_ctx *c);
/* When the context is freed, f(x) is called: for what is not in its arena. */
void nd_ctx_keep(nd_ctx *c, void (*f)(void *), void *x);
int nd_add_file(nd_ctx *c, const char *name, const char *text, size_t len);
/* `file:line:col: error: message`, the source line, a caret run. Notes attach
 * to the message before them. */
void nd_error(nd_ctx *c, nd_loc at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void nd_warning(nd_ctx *c, nd_loc at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void nd_perf(nd_ctx *c, nd_loc at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void nd_note(nd_ctx *c, nd_loc at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* 1-based line and column (columns in characters, a tab is one). */
void nd_line_col(nd_ctx *c, nd_loc at, int *line, int *col);
int nd_line_of(nd_ctx *c, nd_loc at);           /* the line alone, or 0 */
/* The source line that holds `at`, trimmed and at most `most` bytes of it, or
 * "" (for comments in output). */
const char *nd_source_line(nd_ctx *c, nd_loc at, size_t most);
/* The candidate nearest to `name` by edit distance, or NULL if none is near. */
const char *nd_nearest(const char *name, const char *const *cand, int n);

/* ---- types --------------------------------------------------------------- */

enum {
    ND_MAX_RANK = 12, ND_MAX_MESH = 8, ND_MAX_CUT = 4,
    ND_MAX_REPEAT = 8                /* repeats nest at most so deep */
};

typedef enum { ND_F32, ND_I32, ND_I64, ND_BOOL, ND_BF16, ND_F16 } nd_dtype;
const char *nd_dtype_name(nd_dtype t);
bool nd_dtype_parse(const char *s, nd_dtype *t);
bool nd_is_float(nd_dtype t);
bool nd_is_narrow(nd_dtype t);       /* bf16, f16: stored, never computed in */
size_t nd_dtype_size(nd_dtype t);    /* bytes; bool is 1 */

typedef struct nd_axis {
    const char *name;                /* unique in the module */
    int64_t size;                    /* global size */
    struct nd_axis *like;            /* `axis kv = seq`: follows its rules */
    struct nd_route *route;          /* its rows travel: see nd_route */
    nd_loc loc;
} nd_axis;

/* The mesh: axes outermost first. The last one is the time axis `micro`: its
 * "ranks" are the microbatches, which run one after another on the same
 * device. Cutting the sample axis over it is what microbatching means, and a
 * sum pending over it is what gradient accumulation resolves. */
typedef struct nd_mesh {
    int n;                           /* axes, `micro` included */
    const char *name[ND_MAX_MESH];
    int size[ND_MAX_MESH];
    int micro;                       /* index of `micro`, always n - 1 */
    int pipe;                        /* index of the pipeline axis, or -1 */
} nd_mesh;
int nd_mesh_ranks(const nd_mesh *m); /* product without micro */
int nd_mesh_find(const nd_mesh *m, const char *name);           /* or -1 */
/* coord[i] of rank r; the last real mesh axis varies fastest. */
void nd_mesh_coords(const nd_mesh *m, int rank, int coord[ND_MAX_MESH]);

/* An axis is cut by these mesh axes, the first is the major one. */
typedef struct nd_cut {
    uint8_t n, m[ND_MAX_CUT];
} nd_cut;

typedef struct nd_type {
    nd_dtype dtype;
    int rank;
    nd_axis *axis[ND_MAX_RANK];
    nd_cut cut[ND_MAX_RANK];
    uint32_t sum;                    /* mesh axes (bits) with a pending sum */
    uint32_t max;                    /* ... with a pending maximum */
} nd_type;

/* An axis of rows that lie with the rank that holds their expert (dispatch).
 * `rows` are they as they lie elsewhere, i32[batch/(dp,ep), seq, slot]. A rank
 * has room for all rows of its group along `over`, and as many as there may be
 * is what the axis counts: rows that are not there are 0, and their expert is
 * -1. The axis is cut by all mesh axes that cut `rows`, in their order. */
typedef struct nd_route {
    nd_axis *experts;                /* each is held by one rank ... */
    int over;                        /* ... of those along this mesh axis */
    nd_type rows;
} nd_route;
/* The axis of t whose rows travel, or NULL. */
nd_axis *nd_routed_axis(const nd_type *t);
nd_cut nd_route_cut(const nd_route *r);
int64_t nd_route_size(const nd_mesh *m, const nd_route *r);

nd_type nd_type_of(nd_dtype t, int rank, nd_axis *const *axes);
int nd_axis_at(const nd_type *t, const nd_axis *a);   /* position or -1 */
int64_t nd_numel(const nd_type *t);                   /* global elements */
uint32_t nd_cut_bits(nd_cut c);           /* the mesh axes of one cut */
uint32_t nd_cut_mask(const nd_type *t);   /* mesh axes that cut any axis */
nd_cut nd_cut_at(const nd_type *t, const nd_axis *a);  /* none: no such axis */
int nd_cut_by(const nd_type *t, int mesh);    /* position of the axis, or -1 */
void nd_drop_axis(nd_type *t, int i);     /* removes axis number i */
bool nd_same_axes(const nd_type *a, const nd_type *b);  /* and same order */
bool nd_cut_eq(nd_cut a, nd_cut b);
bool nd_cut_begins(nd_cut a, nd_cut b);   /* ... with b */
bool nd_same_cut(const nd_type *a, const nd_type *b);   /* cuts and pendings */
/* Union of the axes: a's order, then b's new ones. Cuts are not set. (A map's
 * result starts from its operand with most axes: see rules.c.) */
nd_type nd_union(const nd_type *a, const nd_type *b);

/* The piece of [0, size) at mesh coordinates `coord`: halved major axis first,
 * first pieces one longer where sizes do not divide. */
void nd_extent(const nd_mesh *m, int64_t size, nd_cut cut, const int *coord,
               int64_t *off, int64_t *n);
int64_t nd_extent_max(const nd_mesh *m, int64_t size, nd_cut cut);

/* ---- ops ----------------------------------------------------------------- */

typedef enum {
#define OP(K, ...) OP_##K,
#define EW(...)
#include "ops.def"
#undef OP
#undef EW
    OP_COUNT
} nd_opcode;

typedef enum {
#define OP(...)
#define EW(K, ...) EW_##K,
#include "ops.def"
#undef OP
#undef EW
    EW_COUNT
} nd_ew;

typedef enum { RED_SUM, RED_MAX, RED_MIN } nd_red;

/* When an op runs. PRE sees the whole local batch once per step and depends on
 * inputs alone; FWD, BWD and WGT run once per microbatch. WGT: gradients of
 * weights, where the schedule lets them wait; BWD has all the others then. */
typedef enum { PH_FWD, PH_BWD, PH_WGT, PH_PRE } nd_phase;

typedef struct nd_value nd_value;
typedef struct nd_op nd_op;
typedef struct nd_block nd_block;

struct nd_value {
    const char *name;                /* unique in the module once printed */
    nd_type type;
    nd_op *def;                      /* NULL: an argument of `owner` */
    nd_block *owner;                 /* the block whose argument it is */
    int index;                       /* which result or argument */
    int turn;                        /* carried: 1 + how far a turn of the
                                        repeat shifts it; 0: not said */
    int mark;                        /* scratch for the pass that runs */
};

struct nd_block {
    nd_op *parent;                   /* the repeat that holds it, or NULL */
    ND_VEC(nd_value *) args;         /* repeat: carried, then scanned slices */
    ND_VEC(nd_op *) ops;             /* in dependence order */
    ND_VEC(nd_value *) yields;       /* repeat: carried next, then stacked */
};

/* Attributes: each op uses the few that its row in ops.def names. */
struct nd_op {
    nd_opcode kind;
    int sub;                         /* map: nd_ew; reduce, all_reduce: nd_red;
                                        contract: exact; stop_gradient: 1 a
                                        copy, 2 an output's */
    int nin, nout;
    nd_value **in;
    nd_value **out;
    int naxes;                       /* along which; rename, split, flatten:
                                        from */
    nd_axis **axes;
    int nto;                         /* rename, split, flatten: to */
    nd_axis **to;
    double num;                      /* const value, dropout probability, ... */
    const char *name;                /* input, param, output, random stream */
    nd_block *body;                  /* repeat */
    bool reverse;                    /* repeat, cumsum: last index first */
    int ncarry;                      /* repeat: carried operands come first */
    uint32_t mesh;                   /* collectives: over these mesh axes */
    nd_phase phase;
    nd_block *block;                 /* the block that holds it */
    nd_loc loc;                      /* where the user wrote it */
    const char *path;                /* instance path, "layers.attn.q" */
    struct nd_param *param;          /* param, accumulate: the named one */
    int mark;                        /* scratch for the pass that runs */
    int free;                        /* nd_is_free's answer; 0: not asked */
};

/* ---- parameters, training, plan: what the user asked for ----------------- */

typedef enum {
    INIT_ZEROS, INIT_ONES, INIT_CONST, INIT_NORMAL, INIT_UNIFORM,
    INIT_XAVIER, INIT_KAIMING
} nd_init;

/* A leading axis of a parameter that is made inside a repeat. In a file's names
 * the index stands behind the part that is the repeat: "layers.2.attn.q.w". */
typedef struct nd_layer {
    nd_axis *axis;
    int at;                          /* characters of the name before it */
} nd_layer;

typedef struct nd_param {
    const char *name;                /* path: "layers.attn.q.w" */
    int index;                       /* in the module's list */
    nd_value *value;                 /* result of its param op, in `step` */
    int nlayers;                     /* leading axes of repeats ... */
    nd_layer layer[ND_MAX_REPEAT];   /* ... the outermost first */
    nd_init init;
    double init_arg;
    int64_t fan_in, fan_out;         /* products of the arrow's sides */
    bool matrix;                     /* written with an arrow: decays */
    int lead;                        /* axes of which each index has its own
                                        matrix, the first ones after `layer`;
                                        -1: they are not the first ones */
    bool decay, frozen;              /* after train { decay, freeze } */
    bool load;                       /* train { init = load() } gives it */
    bool muon;                       /* updated as a matrix */
    nd_type grad;                    /* type of the accumulated gradient */
    nd_loc loc;
} nd_param;

typedef enum { OPT_SGD, OPT_ADAM, OPT_ADAMW, OPT_LION,
               OPT_MUON } nd_optimizer;
typedef enum { LR_CONST, LR_COSINE, LR_LINEAR, LR_WSD } nd_lr_kind;
typedef enum { DATA_NONE, DATA_TEXT, DATA_ARRAYS, DATA_SYNTHETIC,
               DATA_TOKENS } nd_data;

typedef struct nd_train {
    nd_data data;
    const char *data_path, *eval_path;   /* eval_path: NULL, held out */
    int token_bytes;                 /* DATA_TOKENS: 1, 2 or 4 */
    nd_optimizer opt;
    nd_lr_kind lr_kind;
    double lr, lr_min, beta1, beta2, eps, weight_decay, momentum;
    bool nesterov;
    int64_t ns_steps;                /* muon: Newton-Schulz steps */
    double adamw_ratio;              /* muon: rate of the others over lr */
    int64_t warmup, decay_steps;     /* decay_steps: the last ones, of wsd */
    double clip;                     /* 0: off */
    int64_t steps;
    uint64_t seed;
    int64_t eval_every, eval_batches;    /* 0 batches: all there are */
    ND_VEC(const char *) metrics;    /* outputs, by name */
    nd_dtype precision;              /* of products: f32, or bf16 */
    const char *load_path, *load_prefix;
    int64_t save_every, keep;        /* checkpoints; keep 0: all */
    const char *save_folder;
    nd_loc loc;
} nd_train;

typedef enum {
    SCOPE_ALL, SCOPE_PARAMS, SCOPE_GRADS, SCOPE_OPT, SCOPE_NAME
} nd_scope;

typedef struct nd_rule {             /* shard axis -> mesh axes */
    nd_scope scope;
    const char *pattern;             /* SCOPE_NAME */
    nd_axis *axis;
    nd_cut mesh;
    nd_loc loc;
} nd_rule;

typedef enum { REMAT_NONE, REMAT_ATTENTION, REMAT_BLOCK,
               REMAT_AUTO } nd_remat;

/* How attention over keys that a mesh axis cuts finds them. */
typedef enum {
    CONTEXT_AUTO, CONTEXT_RING, CONTEXT_ALL_TO_ALL, CONTEXT_GATHER
} nd_context_form;

extern const char *const nd_context_names[];

typedef struct nd_context {          /* context ring zigzag over cp */
    int mesh;
    nd_context_form form;
    bool zigzag;                     /* rank c has chunks c and 2n-1-c */
    nd_loc loc;
} nd_context;

typedef struct nd_chosen {           /* for the report: one attention */
    const char *path, *text;
} nd_chosen;

/* What `schedule = auto` has found: where stages are, the order of their
 * actions, and what else there was. */
typedef struct nd_candidate {
    const char *name;
    double seconds, bytes;           /* of a step; of the fullest device */
    bool fits, chosen;
} nd_candidate;

typedef struct nd_searched {
    int v;                           /* stages of a device */
    sched_where where;
    bool whole;                      /* backward is not in two halves */
    bool tight;                      /* stages are cut for memory, too, and not
                                        for time alone */
    sched *sched;                    /* NULL: not known yet */
    double limit;                    /* bytes of a device; 0: none */
    bool measured;                   /* times are those of a file */
    int n;
    nd_candidate *row;               /* the fastest first */
} nd_searched;

typedef struct nd_plan {
    ND_VEC(nd_rule) rules;           /* in priority order */
    ND_VEC(nd_context) context;      /* one per mesh axis at most */
    ND_VEC(nd_chosen) chosen;        /* what pass `context` made of it */
    ND_VEC(nd_axis *) piped;         /* whose repeats are cut in stages */
    sched_kind schedule;
    int per_device;                  /* stages; 0: as the schedule says */
    const char *schedule_file;       /* SCHED_KIND_FILE */
    const nd_searched *searched;     /* SCHED_KIND_AUTO; NULL: not yet */
    int microbatches;                /* >= 1 */
    int nstages_given;               /* 0: auto */
    int *stages_given;               /* iterations per stage, of all repeats
                                        that are cut together */
    int zero;                        /* 0..3 */
    uint32_t zero_mesh;
    nd_remat recompute;
    double memory;                   /* bytes of a device; 0: no limit */
    double room;                     /* recompute auto: bytes of a rank; 0: not
                                        said */
    int nagain;                      /* stages that auto has chosen for ... */
    bool *again;                     /* ... by stage: forward runs once more,
                                        before backward, which finds one set of
                                        values and not one per microbatch */
    size_t *unspared;                /* ... by device: bytes without any */
    bool require_even;               /* sizes that do not divide are errors */
    nd_loc loc, pipe_loc, schedule_loc, micro_loc, zero_loc, remat_loc;
} nd_plan;
/* plan.c. The rule that cuts all values along an axis, or NULL: its own; and,
 * if it has none, that of what it follows. */
const nd_rule *nd_rule_of(const nd_plan *p, const nd_axis *a);
const nd_rule *nd_rule_over(const nd_plan *p, const nd_axis *a);
/* "1f1b", "interleaved(2)", "auto(2)", "file("x.csv", 2)": the number where it
 * is not the schedule's own. */
const char *nd_schedule_name(nd_arena *a, const nd_plan *p);
/* What is wrong with the schedule `what`, with the table around it as notes,
 * unless s is NULL. Always false. */
bool nd_schedule_error(nd_ctx *c, nd_loc at, const char *what, const sched *s,
                       const sched_error *e);
/* Does the stage run forward again, before backward? */
bool nd_runs_again(const nd_plan *p, int stage);

/* ---- the pipelined program: what each stage runs, in which order --------- */

/* A value that crosses a stage boundary: the sender's value, and the value it
 * is bound to on the receiver. They differ for what a repeat carries: sent as
 * a result of the repeat, received as its initial operand. */
typedef struct nd_cross {
    nd_value *from, *to;
} nd_cross;

/* lo .. hi-1 of the repeats over one axis; none where lo == hi. */
typedef struct nd_iters {
    int lo, hi;
} nd_iters;

typedef struct nd_stage {
    nd_iters *iters;                 /* by axis of plan.piped */
    int device;                      /* along the pipeline's mesh axis */
    ND_VEC(nd_op *) pre, fwd, bwd;   /* ops of module->step, in order */
    ND_VEC(nd_op *) wgt;             /* W; none: bwd is I and W at once */
    ND_VEC(nd_cross) send_fwd;       /* to stage + 1, wherever that is */
    ND_VEC(nd_cross) send_bwd;       /* to stage - 1 */
    ND_VEC(nd_value *) saved;        /* FWD or received values BWD reads */
    ND_VEC(nd_param *) params;       /* used on this stage */
    int slots[SCHED_NSPANS];         /* microbatches alive at once */
} nd_stage;

/* A device is one place along the pipeline's mesh axis: it has one set of
 * weights and runs one stage or several. */
typedef struct nd_program {
    int nstages, ndevices;
    nd_stage *stage;
    int nmicro;
    sched *sched;                    /* a row per device */
    sched_costs costs;               /* of the stages */
    bool measured;                   /* ... in a run, not by the cost model */
} nd_program;

/* ---- module -------------------------------------------------------------- */

enum {                               /* what has been established */
    ND_HAS_GRADS = 1,                /* autodiff ran */
    ND_HAS_PHASES = 2,               /* batch analysis ran */
    ND_IS_SHARDED = 4,               /* every type says where it lives */
    ND_HAS_STAGES = 8,               /* pipeline ran: program->stage */
    ND_IS_SCHEDULED = 16             /* program->sched */
};

typedef struct nd_module {
    nd_ctx *ctx;
    const char *name;
    ND_VEC(nd_axis *) axes;
    nd_axis *sample;                 /* the sample axis, or NULL */
    nd_mesh mesh;
    nd_block *step;
    ND_VEC(nd_value *) inputs;
    ND_VEC(nd_param *) params;
    ND_VEC(nd_op *) outputs;         /* OP_OUTPUT ops */
    nd_value *loss;                  /* scalar, or NULL in a test module */
    nd_train train;
    nd_plan plan;
    nd_program *program;
    uint32_t state;                  /* ND_HAS_... */
    uint64_t meaning;                /* before sharding; 0: not known */
    int next_id;                     /* fresh names */
    nd_table taken, asked;           /* names of axes: see nd_axis_new */
} nd_module;

/* ---- op.c: the table ----------------------------------------------------- */

typedef struct nd_op_info {
    const char *name;                /* mnemonic in the text form */
    int nin;                         /* -1: any number */
    const char *attrs, *traits;      /* letters, see ops.def */
    const char *doc;
} nd_op_info;
extern const nd_op_info nd_ops[OP_COUNT];

typedef struct nd_ew_info {
    const char *name;
    int nin;
    char result;                     /* 'n' number, 'b' bool, 's' select */
    const char *c;                   /* C expression, $0 $1 $2 operands */
    int cost;                        /* in additions; 8 and more: a value worth
                                        keeping rather than computing twice */
    const char *doc;
} nd_ew_info;
extern const nd_ew_info nd_ews[EW_COUNT];

bool nd_has_trait(const nd_op *op, char trait);
/* Is it among op->axes: what a reduce or a contract sums over, and so on? */
bool nd_has_axis(const nd_op *op, const nd_axis *a);
/* Linear in its first operand while the others stay fixed, maps aside. */
bool nd_is_linear(const nd_op *op);
int64_t nd_roll_by(const nd_op *op); /* of a roll, shift_ring: 0 .. size - 1 */
const char *nd_op_name(const nd_op *op);   /* a map's is its function's */
int nd_op_find(const char *name);    /* -1 if unknown; maps: nd_ew_find */
int nd_ew_find(const char *name);
double nd_ew_eval(nd_ew e, double a, double b, double c);
void nd_list_ops(FILE *out);

/* ---- rules.c: one local typing rule per op ------------------------------- */

/* The result types that follow from the operands' types, cuts and pending sums
 * included: out[0 .. nout-1]. Types that an op declares itself (attribute T)
 * are read from its results. NULL, or the reason why the op is not typed. */
const char *nd_infer(nd_module *m, const nd_op *op, nd_type *out);

/* May a split axis be cut so? Its pieces are whole multiples of the minor part,
 * so that it and its major part mean the same elements on every rank. */
bool nd_cuts_alike(const nd_module *m, nd_cut cut, const nd_axis *major);

/* ---- build.c: making ops ----------------------------------------------- */

nd_module *nd_module_new(nd_ctx *c, const char *name);
nd_axis *nd_axis_new(nd_module *m, const char *name, int64_t size,
                     nd_loc loc);    /* renames on a clash: name_2 */
/* Another axis of the same size, which follows its rules. */
nd_axis *nd_axis_twin(nd_module *m, nd_axis *a);
nd_block *nd_block_new(nd_module *m, nd_op *parent);
nd_value *nd_block_arg(nd_module *m, nd_block *b, const char *name, nd_type t);

/* Where new ops go and what they inherit. */
typedef struct nd_builder {
    nd_module *m;
    nd_block *block;
    int at;                          /* insert before ops.v[at]; -1: append */
    nd_phase phase;
    nd_loc loc;
    const char *path;
    const char *hint;                /* name for the next result, or NULL */
} nd_builder;

nd_op *nd_op_new(nd_builder *b, nd_opcode k, int nin, nd_value *const *in,
                 int nout, const nd_type *types);
/* The same op on other operands, placed where the builder stands, with the
 * types of `op`'s results (retype it if the operands' types differ). */
nd_op *nd_clone(nd_builder *b, const nd_op *op, nd_value *const *in);
nd_value *nd_input(nd_builder *b, const char *name, nd_type t);
nd_param *nd_param_new(nd_builder *b, const char *name, nd_type t);
nd_value *nd_const(nd_builder *b, nd_dtype t, double v);
nd_value *nd_positions(nd_builder *b, nd_axis *a);   /* 0 .. size-1: i32[a] */
/* The positions; inside the repeat over `a` the iteration, an i32. */
nd_value *nd_index(nd_builder *b, nd_axis *a);
nd_value *nd_map(nd_builder *b, nd_ew e, nd_value *x, nd_value *y,
                 nd_value *z);       /* y, z NULL where not needed */
nd_value *nd_reduce(nd_builder *b, nd_red r, nd_value *x, int n,
                    nd_axis *const *axes);
/* sum[axes](x * y), its axes in the order of `order`, or (NULL) x's, then y's
 * new ones. f32, also of narrow operands. */
nd_value *nd_contract(nd_builder *b, nd_value *x, nd_value *y, int n,
                      nd_axis *const *axes, const nd_type *order);
/* x[a: i]: axes shared by x and i are aligned; outside 0..size-1 reads 0. */
nd_value *nd_gather(nd_builder *b, nd_value *x, nd_axis *a, nd_value *i);
/* sum[axes](x * w[a: i]) as one product, of which nothing as large as w for
 * every row is made: x[rows, in], w[a, in, out], i[rows] -> [rows, out]. */
nd_value *nd_grouped(nd_builder *b, nd_value *x, nd_value *w, nd_axis *a,
                     nd_value *i, int n, nd_axis *const *axes);
/* Its adjoint in w: x[rows, in], g[rows, out], i[rows] -> [a, in, out], the sum
 * of x * g over the rows with i = a, for the axes of `like`. */
nd_value *nd_grouped_sum(nd_builder *b, nd_value *x, nd_value *g, nd_axis *a,
                         nd_value *i, const nd_type *like);
/* x[rows, d] as [routed, d]: a row per expert in i[rows, slot], with the rank
 * that holds it, those of one expert side by side. */
nd_value *nd_dispatch(nd_builder *b, nd_value *x, nd_value *i,
                      nd_axis *routed);
/* The way back: y[routed, d] as [rows, slot, d]. */
nd_value *nd_combine(nd_builder *b, nd_value *y, nd_value *i,
                     nd_axis *routed);
/* Adjoint of gather: result has x's axes; rows of `g` add at a: i. */
nd_value *nd_scatter_add(nd_builder *b, nd_value *g, nd_axis *a, nd_value *i,
                         const nd_type *like);
nd_value *nd_rename(nd_builder *b, nd_value *x, nd_axis *from, nd_axis *to);
/* Axis a as the axes `to`, the major one first; sizes multiply to a's. */
nd_value *nd_split(nd_builder *b, nd_value *x, nd_axis *a, int n,
                   nd_axis *const *to);
/* The adjoint: `from`, the first is the major one, as one axis. */
nd_value *nd_flatten(nd_builder *b, nd_value *x, int n, nd_axis *const *from,
                     nd_axis *a);
/* Running sums along a; from the last index on if `reverse`. */
nd_value *nd_cumsum(nd_builder *b, nd_value *x, nd_axis *a, bool reverse);
/* Element i is x[(i + by) mod size] along a. */
nd_value *nd_roll(nd_builder *b, nd_value *x, nd_axis *a, int64_t by);
nd_value *nd_broadcast(nd_builder *b, nd_value *x, const nd_type *like);
nd_value *nd_cast(nd_builder *b, nd_value *x, nd_dtype t);
nd_value *nd_stop_gradient(nd_builder *b, nd_value *x);
/* A mask of 0 and 1/(1-p) over like's axes, keyed by `stream`; all 1 outside
 * training. */
nd_value *nd_dropout_mask(nd_builder *b, const nd_type *like, double p,
                          const char *stream);
/* Standard normal numbers over like's axes, keyed in the same way. */
nd_value *nd_random_normal(nd_builder *b, const nd_type *like,
                           const char *stream);
/* param's gradient += g (at the iteration, for a stacked one in a body). */
nd_op *nd_accumulate(nd_builder *b, nd_param *p, nd_value *g);
nd_op *nd_output(nd_builder *b, const char *name, nd_value *x);
/* Repeat over axis a. Make it with the initial values, fill r->body, then
 * yield. Scanned operands have `a` as an axis; the body sees the slice. */
nd_op *nd_repeat_begin(nd_builder *b, nd_axis *a, int ncarry,
                       nd_value *const *init);
nd_value *nd_repeat_scan(nd_module *m, nd_op *r, nd_value *x);  /* body arg */
/* Adds a stacked result with `a` leading; returns it. */
nd_value *nd_repeat_stack(nd_module *m, nd_op *r, nd_value *y);
void nd_repeat_yield(nd_module *m, nd_op *r, nd_value *const *next);

/* The parameter that v is, the whole of it or its slice in a body; or NULL. */
nd_param *nd_param_of(const nd_value *v);
/* Where a layer's index stands unless the program says otherwise: behind the
 * part of the name that is called like its axis, else behind the first. */
int nd_layer_at(const nd_param *p, const nd_axis *a);
/* Is v computed from inputs, indices and constants alone? The answer is kept
 * until marks are cleared: what v reads must not be exchanged meanwhile for
 * something of the other kind. */
bool nd_is_free(const nd_value *v);
/* The same for every value at once, in the order of the program: its mark. */
void nd_mark_free(nd_module *m);
/* Is v (or what it broadcasts) the constant c? */
bool nd_is_const(const nd_value *v, double c);
/* Is v a parameter, or its slice in a body, in another dtype or at another cut?
 * Who holds the one can make the other. */
bool nd_is_weight_copy(const nd_value *v);
nd_block *nd_block_of(const nd_value *v);
/* The repeat over `a` that encloses block b, or NULL. */
nd_op *nd_enclosing(const nd_block *b, const nd_axis *a);
/* Follow a type change: set the op's result types from its operands. False
 * after reporting why they do not fit. */
bool nd_retype(nd_module *m, nd_op *op);
/* Replace every use of `from` in the module by `to`. */
void nd_replace_uses(nd_module *m, nd_value *from, nd_value *to);
/* Calls f on every op, bodies included, in order. */
void nd_walk(nd_block *b, void (*f)(nd_op *, void *), void *user);
/* Zeroes the marks of all ops, results and body arguments, and forgets what is
 * free. */
void nd_clear_marks(nd_module *m);
/* Removes ops whose results nobody reads; keeps accumulate, output, loss. */
void nd_dce(nd_module *m);

/* ---- copy.c -------------------------------------------------------------- */

/* A module that can be changed while this one stays. They share a context. */
nd_module *nd_module_copy(const nd_module *m);

/* ---- turns.c ------------------------------------------------------------- */

/* Notes with what the repeat carries how far its body shifts it. */
void nd_note_turns(nd_module *m, nd_op *repeat);
/* A carried value that the body does not shift as noted, or NULL. */
const nd_value *nd_wrong_turn(nd_module *m, const nd_op *repeat);

/* ---- ids.c --------------------------------------------------------------- */

/* What an integer input may hold: [0, limit) and `ignore`. limit 0: all. */
typedef struct nd_range {
    int64_t limit, ignore;
} nd_range;
nd_range nd_range_of(nd_module *m, const nd_value *input);

/* ---- autodiff.c, vjp.c --------------------------------------------------- */

/* Appends the backward ops (phase BWD) for m->loss. */
bool nd_autodiff(nd_module *m);

/* What a rule of vjp.c works with: the place where backward ops go. */
typedef struct nd_ad nd_ad;
nd_builder *nd_ad_builder(nd_ad *d);
/* A forward value as backward code may read it here. */
nd_value *nd_ad_use(nd_ad *d, nd_value *v);
/* Does a gradient flow into v? */
bool nd_ad_active(const nd_ad *d, const nd_value *v);
/* The gradient of v gains g, summed or broadcast to v's axes first. */
void nd_ad_add(nd_ad *d, nd_value *v, nd_value *g);
/* Dispatch by ops.def: operands gain what g, the result's gradient, gives. */
void nd_vjp(nd_ad *d, nd_op *op, nd_value *g);

/* ---- print.c, parse.c, verify.c: the text form --------------------------- */

void nd_print_type(nd_buf *b, const nd_module *m, const nd_type *t);
void nd_print(nd_buf *b, nd_module *m);
nd_module *nd_parse_ir(nd_ctx *c, int file);
/* Structure, shapes, sharding: every op by its local rule. */
bool nd_verify(nd_module *m);

/* ---- meaning.c ----------------------------------------------------------- */

/* A number for what the step computes, wherever: passes from `shard` on keep
 * it. */
uint64_t nd_meaning(nd_module *m);

/* ---- eval.c: the meaning ------------------------------------------------- */

/* A dense array in row-major order; always held as double. */
typedef struct nd_tensor {
    int rank;
    int64_t dim[ND_MAX_RANK];
    int64_t n;                       /* elements */
    double *v;
} nd_tensor;

typedef struct nd_feed {             /* a global value for an input or param */
    const char *name;
    const nd_tensor *t;
} nd_feed;

/* What one rank holds of a value: per axis the first global index and the
 * length, then the elements in row-major order. v NULL: nothing. */
typedef struct nd_piece {
    int64_t off[ND_MAX_RANK], n[ND_MAX_RANK];
    int64_t count;
    double *v;
} nd_piece;

typedef struct nd_eval_options {
    bool f32;                        /* round every result to float */
    bool exact;                      /* round nothing, bf16 and f16 neither */
    bool coarse;                     /* exact, but on a grid of 24 bits that 1
                                        is not on: shows what rounding does */
    bool training;                   /* dropout on */
    uint64_t seed;
    int64_t step;
    int nfeeds;
    const nd_feed *feeds;            /* a missing param starts from its init */
    /* By param, [stage * ranks of the mesh + rank]: what the ranks hold of the
     * params, which no feed gives then. NULL otherwise. */
    nd_piece *const *held;
} nd_eval_options;

typedef struct nd_eval_result {
    double loss;
    nd_tensor **grads;               /* per m->params, global; or NULL */
    /* With `held`, instead: in the same order what the rank accumulated, its
     * cut as p->grad says, what is pending there still pending. */
    nd_piece **held_grads;
    nd_tensor **outputs;             /* per m->outputs, global */
    /* collectives run, by opcode, over all ranks' groups once each */
    int64_t collectives[OP_COUNT];
} nd_eval_result;

/* One device if the module is not sharded; all ranks of its mesh, with the
 * schedule if there is one, otherwise. Checks that replicas agree. */
bool nd_eval(nd_module *m, const nd_eval_options *o, nd_eval_result *r);
/* An op with more results than an evaluation holds (2^28), or NULL. */
const nd_op *nd_too_large(nd_module *m);

/* ---- made_up.c: inputs nobody has data for ------------------------------- */

/* As runtime/data.c makes the training batch of a step, 1 the first: uniform
 * in [0, 1), integers below their limit. */
nd_tensor *nd_made_up(nd_module *m, const nd_value *input, uint64_t seed,
                      int64_t step);
/* Then most integers of an input that is compared with constants become one of
 * these or what is beside it, if they may; and some elements are left out, more
 * of them in later rows: indices become what the program ignores, if it ignores
 * anything, other integers 0. */
void nd_leave_out(nd_module *m, const nd_value *input, uint64_t seed,
                  int64_t step, nd_tensor *t);

/* ---- piece.c: what the ranks of a mesh hold ------------------------------ */

/* Where along the pipeline a rank is; 0 without one. */
int nd_device_of(const nd_module *m, int rank);
/* Is `a` one of the axes whose repeats are cut in stages? */
bool nd_is_piped(const nd_module *m, const nd_axis *a);
bool nd_stage_has(const nd_stage *st, const nd_param *p);
/* The iterations lo .. hi-1 of `a` that a stage runs and has. False: all of
 * them, whatever the stage (-1: not one of a program). */
bool nd_stage_range(const nd_module *m, int stage, const nd_axis *a,
                    int64_t *lo, int64_t *hi);
/* The most iterations of `a` that a stage has, and that a device has, which
 * holds those of its stages one after another. */
int64_t nd_range_max(const nd_module *m, const nd_axis *a);
int64_t nd_device_max(const nd_module *m, const nd_axis *a);
/* How many of its device's iterations are those of earlier stages. */
int64_t nd_range_at(const nd_module *m, int stage, const nd_axis *a);
/* The piece of `t` that a stage has on a rank of the mesh, zeros; it has its
 * own iterations of a pipelined axis. */
nd_piece nd_piece_new(const nd_module *m, nd_arena *a, const nd_type *t,
                      int rank, int stage);
/* Its elements, from the whole tensor. */
void nd_piece_fill(nd_piece *p, const nd_tensor *whole);

/* ---- random.c: the runtime's random numbers ------------------------------ */

/* Initial value of a param, as the runtime makes it. */
nd_tensor *nd_eval_init(nd_module *m, const nd_param *p, uint64_t seed);
/* The fold of a name's hash that names a random stream. */
uint32_t nd_stream(const char *name, int64_t iteration);  /* -1: outside */
/* Two 32-bit words of Philox4x32-10. */
void nd_philox_draw(uint64_t seed, uint64_t index, uint32_t step,
                    uint32_t stream, uint32_t out[2]);

#endif
