/* priv.h - what some files of ir/ share and nobody outside needs.
 *
 * print.c: one op as text, for the verifier.
 * eval*.c: the evaluator's ranks, frames and pieces; random.c: its numbers.
 */
#ifndef ND_PRIV_H
#define ND_PRIV_H

#include "ir.h"

/* ---- print.c ------------------------------------------------------------- */

/* The op's line without its body; needs no unique names. */
void nd_print_op(nd_buf *b, const nd_module *m, const nd_op *op);
bool nd_is_word(const char *s);      /* prints bare: letters, digits, _ . */
extern const char *const nd_init_names[];   /* by nd_init */
extern const char *const nd_remat_names[];  /* by nd_remat */
extern const char *const nd_red_names[];    /* by nd_red */
extern const char *const nd_scope_names[];  /* by nd_scope, "" for all */

/* ---- random.c ------------------------------------------------------------ */

/* A standard normal number from two words (Box and Muller, 1958). */
double nd_normal_of(const uint32_t c[2]);

/* ---- eval.c -------------------------------------------------------------- */

typedef nd_piece ev_piece;

/* Where values live: the step's (params, inputs, PRE), a microbatch's, or one
 * iteration's. Values of outer frames are visible. */
typedef struct ev_frame {
    struct ev_frame *up;
    nd_arena *arena;                 /* freed with the frame */
    nd_table table;                  /* nd_value -> ev_piece[nranks] */
    const nd_axis *axis;             /* an iteration of this axis, or NULL */
    int64_t iter;
} ev_frame;

/* What is collected of a gradient, the loss or an output: pieces per
 * microbatch (one for gradients) and rank. */
typedef struct ev_record {
    bool set;
    int stage;                       /* where it was computed */
    nd_type type;
    ev_piece **mb;                   /* [nmicro][nranks] */
} ev_record;

typedef struct ev_world ev_world;

/* The ranks that run one pipeline stage; all ranks when there is no pipeline.
 * Every op runs on all of them before the next op starts. */
typedef struct ev_stage {
    ev_world *w;
    int index;
    const nd_stage *plan;            /* NULL without a pipeline */
    int nranks;
    int (*coord)[ND_MAX_MESH];       /* `micro` follows the microbatch */
    int *rank;                       /* their numbers in the mesh */
    ev_frame *base, **mb, *cur;
    int micro;                       /* the current microbatch */
    ev_record *grad;                 /* per param */
    nd_table arrived;                /* axis -> int64_t[nranks]: how many rows
                                        the last dispatch along it brought */
} ev_stage;

struct ev_world {
    nd_module *m;
    const nd_eval_options *o;
    nd_eval_result *r;
    nd_arena *arena;                 /* freed when the evaluation ends */
    int nstages, nmicro;
    ev_stage *stage;
    ev_record loss, *output;         /* per m->outputs */
};

bool ev_error(ev_stage *s, const nd_op *op, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool ev_run(ev_stage *s, const nd_op *op);
/* The pieces of a value, one per rank; NULL if it has not been computed. */
ev_piece *ev_find(ev_stage *s, const nd_value *v);
/* The same, or NULL after reporting that it is not there. Values that read
 * nothing (params, constants) are made when somebody asks for them. */
ev_piece *ev_get(ev_stage *s, const nd_op *user, const nd_value *v);
/* Fresh pieces of that type, zero-filled, in the arena. */
ev_piece *ev_alloc(ev_stage *s, nd_arena *a, const nd_type *t);
ev_piece *ev_result(ev_stage *s, const nd_op *op, int i);
ev_piece *ev_copy(const ev_stage *s, nd_arena *a, const ev_piece *p);
ev_frame *ev_frame_new(ev_frame *up);
void ev_frame_free(ev_frame *f);
/* Copies a value's pieces into the record of this microbatch. */
void ev_keep(ev_stage *s, ev_record *r, const nd_type *t, const ev_piece *p);
/* To the width of the dtype: f32 when rounding is on, bf16 and f16 always. */
double ev_round(const ev_stage *s, nd_dtype t, double x);

/* ---- piece.c ------------------------------------------------------------- */

/* The zeroed piece at mesh coordinates; `stage` -1 without a pipeline. */
nd_piece ev_piece_at(const nd_module *m, nd_arena *a, const nd_type *t,
                     const int *coord, int stage);

/* ---- eval_walk.c: loops over named axes ---------------------------------- */

enum { EV_AXES = 2 * ND_MAX_RANK, EV_OPERANDS = 4 };

/* A nest of loops, the last axis innermost, and where each operand stands. */
typedef struct ev_walk {
    int rank, nops;
    bool bad;                        /* an operand holds another piece */
    const nd_axis *axis[EV_AXES];
    int64_t off[EV_AXES], n[EV_AXES], i[EV_AXES];
    int64_t left;                    /* iterations to go */
    double *v[EV_OPERANDS];
    int64_t stride[EV_OPERANDS][EV_AXES], at[EV_OPERANDS];
} ev_walk;

/* Adds the axes of a value that the walk does not have yet; not `except`. */
void ev_over(ev_walk *w, const nd_type *t, const ev_piece *p,
             const nd_axis *except);
/* Adds an operand; returns the stride of its axis `except`, which the walk
 * does not move along. */
int64_t ev_bind(ev_walk *w, const nd_type *t, const ev_piece *p,
                const nd_axis *except);
bool ev_start(ev_walk *w);           /* false: nothing to do */
bool ev_step(ev_walk *w);            /* false after the last one */
/* Copies (or with `add` adds) the overlap of one piece of a value to another.
 * Axes match by position. Returns the elements that overlap. */
int64_t ev_overlap(const ev_piece *from, const ev_piece *to, int rank,
                   bool add);

/* Where a global index lies in the piece, or -1. NaN lies nowhere. */
int64_t ev_row_in(const ev_piece *p, int axis, double index);

/* ---- eval_experts.c ------------------------------------------------------ */

/* A walk of rank r leaves out rows that are not there, whatever was made of
 * their zeros. */
void ev_only_arrived(const ev_stage *s, ev_walk *w, int r);

/* ---- eval_ranks.c: replicas, collectives, joining pieces ----------------- */

/* Do two ranks have the same place on all mesh axes of `mask`? */
bool ev_same_place(const ev_stage *s, int a, int b, uint32_t mask);
void ev_count(ev_stage *s, const nd_op *op);     /* a collective ran */

/* Do ranks that must hold the same numbers hold the same bits? */
bool ev_same_replicas(ev_stage *s, const nd_op *op, const nd_type *t,
                      const ev_piece *p);
/* Joins the pieces of all microbatches and ranks, resolving what is pending,
 * and adds the whole to `out`. */
bool ev_join(ev_stage *s, const ev_record *r, nd_tensor *out);
nd_tensor *ev_tensor(nd_arena *a, const nd_type *t);
ev_piece ev_whole(const nd_tensor *t);

/* ---- eval_run.c: microbatches, stages, messages -------------------------- */

bool ev_run_all(ev_world *w);

/* ---- eval_ops.c, eval_ranks.c, eval_struct.c: one function per op -------- */

#define OP(K, name, nin, attrs, traits, rule, vjp, eval, doc) \
    bool eval_##eval(ev_stage *s, const nd_op *op);
#define EW(...)
#include "ops.def"
#undef OP
#undef EW

#endif
