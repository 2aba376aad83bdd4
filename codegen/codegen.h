/* codegen.h - from kernels and places to C text, an executable and a report.
 *
 *   cg_emit_c        module -> one C file, the same bytes every time
 *   cg_build         C file -> executable, linked with libndrt
 *   cg_report_plan   what a person wants to know before starting a run
 *   cg_report_comm   what each collective moves
 *   cg_report_kernels, cg_report_roofline
 *                    what each kernel reads and writes; how far from the limit
 *
 * Everything else here is shared by the emit_*.c files. A C function under
 * construction is a cg_fn: its body is written first, and what the body turned
 * out to need (pointers, extents, numbers) is declared in front of it.
 */
#ifndef ND_CODEGEN_H
#define ND_CODEGEN_H

#include "../passes/passes.h"

bool cg_emit_c(nd_module *m, nd_buf *out);
/* For which processor: a name that the C compiler's -march knows, or NULL for
 * this one; and the macros that the compiler defines by itself, as lines
 * `#define NAME ...`, or NULL if it cannot be run. */
typedef struct cg_target_cpu {
    const char *cpu, *macros;
} cg_target_cpu;
cg_target_cpu cg_target_for(nd_ctx *ctx, const char *cpu);
/* The same with loop kernels by LLVM: `out` is what those are, `c` the rest. */
typedef enum { CG_LLVM_TEXT, CG_LLVM_ASM, CG_LLVM_OBJECT } cg_llvm_form;
bool cg_emit_llvm(nd_module *m, bool marks, cg_llvm_form form,
                  const cg_target_cpu *cpu, nd_buf *c, nd_buf *out);
/* The same program, which can tell where its time goes: marks.c. */
bool cg_emit_marked(nd_module *m, nd_buf *out);
void cg_report_plan(nd_module *m, nd_buf *out);
/* rank < 0: the first one of each stage. */
void cg_report_comm(nd_module *m, int rank, nd_buf *out);
/* `apart`: by LLVM, or NULL; then the text is there to be read. 0, or the exit
 * status: 1 cannot write or no C compiler that works, 3 it refused the text. */
typedef struct cg_apart {
    nd_buf object, rest;             /* kernels; the C text without them */
} cg_apart;
int cg_build(nd_ctx *ctx, const char *c_text, const cg_apart *apart,
             const char *out_path, const char *cpu);
/* Are loop kernels better made by LLVM? Not where it is missing or may not know
 * the processor, nor without a C compiler, nor where there are flags that are
 * meant for them: those of a sanitizer, or NDC_CFLAGS. If so, *to is for whom.
 */
bool cg_prefers_llvm(nd_ctx *ctx, const char *cpu, cg_target_cpu *to);
/* Does the C compiler know it? If not, after an error. */
bool cg_knows_cpu(nd_ctx *ctx, const char *cpu);
/* The error of a compiler that does not tell its macros. */
void cg_no_macros(nd_ctx *ctx, const char *cpu);
bool cg_report_kernels(nd_module *m, nd_buf *out);
/* profile: the file that the program has written. */
bool cg_report_roofline(nd_module *m, int profile, nd_buf *out);

/* ---- emit.c -------------------------------------------------------------- */

struct cg;
/* codegen/llvm/, if there was an LLVM to build ndc with: the kernels that the C
 * file declares only. */
bool cg_llvm(struct cg *g, cg_llvm_form form, const cg_target_cpu *cpu,
             nd_buf *out);

/* ---- report.c: words for people ------------------------------------------ */

extern const char *const cg_remat_names[];    /* by nd_remat, but auto */
const char *cg_commas(nd_arena *a, int64_t n);             /* "12,345" */
const char *cg_seconds(nd_arena *a, double t);             /* "48.4 us" */
/* The plan's schedule; and what `auto` has found, by its name if it has one. */
const char *cg_schedule_name(const nd_module *m);
/* What else there was, if the plan's is auto. */
void cg_put_searched(const nd_module *m, const char *before, nd_buf *b);
const char *cg_mesh_text(const nd_module *m, uint32_t mesh);   /* "dp,tp" */

/* ---- emit_names.c ------------------------------------------------------- */

typedef struct cg_name {
    const char *s;
    int next;                        /* the first suffix to try, or 0 */
} cg_name;

typedef struct cg_words {            /* a hash set */
    cg_name *v;
    size_t n, cap;
} cg_words;

typedef struct cg_names {            /* names taken in one scope */
    nd_arena *arena;
    struct cg_names *outer;          /* NULL, or the file around a function */
    const struct cg_names *always;   /* taken in every function, or NULL */
    cg_words taken;
    cg_words inside;                 /* taken by functions of this file */
} cg_names;

const char *cg_word(nd_arena *a, const char *s);       /* a C identifier */
void cg_take(cg_names *n, const char *s);
/* `want`, or want_2, want_3 ... if taken. */
const char *cg_unique(cg_names *n, const char *want);
/* The same, and never a word that C or the file uses. */
const char *cg_fresh(cg_names *n, const char *want);

/* ---- the file under construction ---------------------------------------- */

/* What a pointer of a function points at: an nd_ref without its axes, which is
 * small enough to keep for every kernel and call. */
typedef struct cg_target {
    nd_root root;
    const nd_value *value;
    nd_param *param;
    nd_dtype dtype;
    int nterms;
    const nd_term *term;
} cg_target;

typedef struct cg_pointer {          /* a buffer that a function touches */
    cg_target to;
    const char *name;
    bool written;
    const char *part;                /* what stands for it in a part, or NULL */
    const char *row;                 /* "x_row", or NULL */
    const char *row_at;              /* where the row begins */
    int next;                        /* pointer + 1 at the same value, or 0 */
} cg_pointer;

typedef struct cg_used {             /* an extent that a function reads */
    int ext;
    bool len, off;
} cg_used;

typedef struct cg_kernel {           /* an emitted loop kernel */
    const nd_kernel *k;
    const char *name;
    ND_VEC(cg_pointer) ptrs;         /* in the order of the parameters */
    bool needs_rank;
    ND_VEC(cg_used) parts;           /* of tiles: their starts and lengths */
    ND_VEC(nd_op *) iters;           /* repeats whose iteration it takes */
    struct kir_kernel *ir;
    struct cg_kernel *other;         /* with the same first op */
} cg_kernel;

typedef struct cg_body {             /* an emitted repeat body */
    const char *name;
    ND_VEC(cg_pointer) ptrs;         /* carried values, its own first */
    ND_VEC(nd_op *) iters;
} cg_body;

/* A kernel of the program, by the name that its profile has. */
typedef struct cg_mark {
    const char *name;                /* of its function, or of its result */
    nd_kernel *k;
    int64_t calls;                   /* in a step, by one rank of each stage */
    nd_traffic t;                    /* of one call */
} cg_mark;

typedef struct cg {
    nd_code *c;
    nd_module *m;
    nd_arena *a;
    nd_buf *out;
    cg_names global;
    cg_names buffers;                /* of B_..., the values' own names */
    const char **value_name;         /* by mark */
    const char **axis_var;           /* by index in m->axes */
    nd_table axis_at;                /* axis -> its axis_var */
    const char **param_name;         /* by index in m->params */
    const char **ext_name;           /* "X_batch_dp_micro" */
    bool *ext_used;
    ND_VEC(uint32_t) groups;
    ND_VEC(const char *) group_name; /* "G_dp_tp" */
    cg_names groups_taken;
    ND_VEC(const char *) ticket_name;    /* "T_layers_attn_q_w" */
    cg_names tickets_taken;
    nd_table aheads;                 /* nd_flight -> cg_body */
    cg_names ext_vars;               /* n_batch, o_batch: see cg_declare */
    nd_table kernels;                /* first op -> cg_kernel */
    bool llvm;                       /* LLVM makes kernels: */
    ND_VEC(cg_kernel *) by_llvm;     /* these, the C file declares them; */
    ND_VEC(cg_kernel *) by_c;        /* not these */
    nd_table bodies;                 /* nd_kernels -> cg_body */
    bool *buffer_used;               /* by mark */
    bool uses_scatter, uses_gather, uses_exchange;   /* helpers called */
    bool starts_scatter, starts_gather, starts_exchange;
    bool uses_weight, uses_gradient, uses_at_stage;
    bool early;                      /* some function tells what is done */
    bool small, small_bf16;          /* products within tiles */
    bool marked;                     /* its kernels are */
    ND_VEC(cg_mark) marks;           /* in the order of the text */
    nd_table mark_of, mark_named;    /* nd_kernel, function -> mark + 1 */
    cg_names marks_taken;
} cg;

typedef struct cg_fn {
    cg *g;
    nd_buf b;                        /* the body so far */
    int indent;
    cg_names names;
    ND_VEC(cg_used) exts;            /* ascending */
    bool uses_rank, uses_random, uses_training;
    bool caller;                     /* of kernels: no kernel itself */
    const char *call;                /* what counts calls, or NULL */
    ND_VEC(cg_pointer) ptrs;
    nd_table ptr_at;                 /* value or parameter -> pointer + 1 */
    ND_VEC(nd_op *) iters;
    nd_op *in_repeat;                /* the repeat whose body this is */
    const nd_tiles *tiles;           /* it does this for one tile, or NULL */
    const nd_final *finals;          /* of a stage's list that tells; or NULL */
} cg_fn;

/* Appends a line at the function's indentation, folded at 80 columns. */
void cg_line(cg_fn *f, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void cg_fold(nd_buf *b, int indent, const char *text);
void cg_fn_start(cg_fn *f, cg *g);
void cg_name_extents(cg *g);
void cg_name_axes(cg *g);
/* `const int64_t n_batch = r->n[X_batch_dp];` and so on, for what was used. */
void cg_declare(cg_fn *f, nd_buf *b);

/* ---- emit_text.c: small pieces of C ------------------------------------- */

const char *cg_ctype(nd_dtype t);
const char *cg_axis_var(cg *g, const nd_axis *a);   /* its loop variable */
const char *cg_number(nd_arena *a, nd_dtype t, double v);
const char *cg_ext(cg *g, int ext);                 /* "X_batch_dp" */
int cg_group(cg *g, uint32_t mesh);
const char *cg_group_name(cg *g, uint32_t mesh);    /* "G_dp_tp" */
const char *cg_mesh_names(cg *g, uint32_t mesh, const char *sep);
const char *cg_count(cg_fn *f, int ext);            /* "256" or "n_batch" */
const char *cg_start(cg_fn *f, int ext);            /* "0" or "o_seq" */
const char *cg_len(cg_fn *f, const nd_len *l);      /* "256 * n_batch" */
const char *cg_bytes(cg_fn *f, const nd_ref *r);     /* of a packed value */
const char *cg_bytes_of(cg_fn *f, const nd_len *n, nd_dtype t);
const char *cg_scaled(cg_fn *f, const char *x, const nd_len *l);
const char *cg_sum(nd_arena *a, const char *x, const char *y);
const char *cg_type(cg *g, const nd_type *t);       /* as in the IR */
const char *cg_iter(cg_fn *f, nd_op *repeat);       /* "l" */
const char *cg_where(cg *g, nd_loc loc);            /* "gpt.nd:21", or "" */
const char *cg_source(cg *g, int indent, nd_loc loc);   /* or NULL */
void cg_source_comment(cg *g, nd_buf *b, int indent, nd_loc loc);
/* The pointer of this function to the buffer; made on first use. */
cg_pointer *cg_pointer_to(cg_fn *f, const nd_ref *r, bool write);
cg_pointer *cg_pointer_at(cg_fn *f, const cg_target *to, bool write);
const char *cg_value_name(cg *g, const nd_value *v);
/* What a local variable for v is called: as v is, or t. */
const char *cg_local_word(const nd_value *v);
bool cg_same_place(const cg_target *a, const cg_target *b);

/* ---- works.c ------------------------------------------------------------- */

typedef enum {
    WORK_LOOP, WORK_PRODUCT, WORK_COMM, WORK_RUNTIME, WORK_NCLASSES
} cg_class;
extern const char *const cg_class_names[WORK_NCLASSES];

/* A kernel, or a part of the runtime's work whose bytes are known. */
typedef struct cg_work {
    const char *name;
    cg_class class;
    const char *kind, *where;        /* "all_gather"; "gpt.nd:18", or "" */
    bool narrow;                     /* a product of bf16 */
    double calls;                    /* of a step, by one rank of each stage */
    int ends;                        /* marks of a call */
    double read, written, least;     /* bytes of one call */
    double flops;
} cg_work;
typedef ND_VEC(cg_work) cg_works;
/* The kernels in the order of the text, then the others. */
cg_works cg_works_of(cg *g);

/* ---- profile.c: what a run has measured ---------------------------------- */

typedef struct cg_time {
    const char *name;
    nd_loc loc;
    double calls, seconds;           /* of all ranks and steps */
} cg_time;
typedef ND_VEC(cg_time) cg_times;

typedef struct cg_profile {
    const char *program, *key;
    nd_loc program_at, key_at;
    double ranks, threads, microbatches, steps;
    double copy, product, bf16;      /* bytes, operations per second, a rank */
    cg_times kernels, runtime;
} cg_profile;
bool cg_read_profile(nd_ctx *c, int file, cg_profile *out);

/* ---- emit_share.c: several axes counted as one --------------------------- */

typedef struct cg_axis {             /* a loop variable */
    const nd_axis *axis;
    const char *var;                 /* "0": of one position, without a loop */
    int ext;
} cg_axis;

/* How many iterations they have, what counts them (`name`, or the one axis
 * itself), and where each stands then: those that the text mentions, or all of
 * them (text NULL). */
const char *cg_iterations(cg_fn *f, const cg_axis *a, int n);
const char *cg_counter(const cg_axis *a, int n, const char *name);
void cg_positions(cg_fn *f, const cg_axis *a, int n, const char *row,
                  const char *text);

/* ---- emit_loop.c, emit_gemm.c, emit_calls.c, emit_tables.c, emit_header.c */

cg_kernel *cg_loop_kernel(cg *g, nd_kernel *k);
void cg_gemm(cg_fn *f, nd_kernel *k);
/* Does what makes v add to what lies there? Of a gradient perhaps not the first
 * time in a step, which is known when the program runs. */
typedef enum { CG_WRITES, CG_ADDS, CG_ADDS_LATER } cg_adding;
cg_adding cg_adds(const nd_code *c, const nd_value *v);
const char *cg_adding_text(cg_adding a);
void cg_grouped(cg_fn *f, nd_kernel *k);            /* emit_experts.c */
/* Both give the name of the function. */
const char *cg_call_loop(cg_fn *f, nd_kernel *k);
/* How far into its root a view begins, or NULL. */
const char *cg_offset(cg_fn *f, const cg_target *r);
/* emit_tiles.c. nd_ref_of and nd_dest_of, where the function does one tile:
 * the tile's part. */
const char *cg_tiles(cg_fn *f, nd_kernel *k);
bool cg_ref_of(cg_fn *f, const nd_value *v, nd_ref *r);
void cg_dest_of(cg_fn *f, const nd_value *v, nd_ref *r);
/* Does the product sum over tiles? */
bool cg_adds_tiles(const cg_fn *f, const nd_op *op);
void cg_travel(cg_fn *f, nd_op *op);                /* dispatch, combine */
/* The lengths of axes along which rows had travelled before this list. */
void cg_arrivals(cg_fn *f, const nd_kernels *list);
void cg_comm(cg_fn *f, nd_kernel *k);
void cg_list(cg_fn *f, const nd_kernels *list, int stage);
cg_body *cg_emit_body(cg *g, nd_op *repeat);
void cg_start_caller(cg_fn *f, cg *g);
/* The function of an iteration: the iterations that it is told, and its text
 * once its name is known; `out` follows it. */
void cg_order_iters(cg_fn *f, cg_body *b);
void cg_finish_body(cg_fn *f, cg_body *b, nd_buf *out);
/* The iterations [lo, hi) of a repeat that a list of this stage has; stage < 0:
 * of a body. */
void cg_range(cg *g, const nd_op *repeat, int stage, int64_t *lo, int64_t *hi);
/* emit_flights.c: what ends and what starts in front of kernel i. */
void cg_flights(cg_fn *f, const nd_kernels *list, int i, int stage);
const char *cg_ticket(cg *g, nd_flight *x);
/* emit_final.c: what is done in front of kernel i, and at the end of an
 * iteration of a stage that begins with iteration lo. */
void cg_done_before(cg_fn *f, const nd_kernels *list, int i);
void cg_done_layer(cg_fn *f, nd_kernel *k, int64_t lo);
void cg_emit_stage(cg *g, int s);
/* The function of a stage that sends or receives, or that copies from or to a
 * stage of the same device ("take_forward"); or NULL. */
const char *cg_message_fn(cg *g, int s, sched_op op);
void cg_emit_crossing(cg *g, int s, sched_op op);    /* that function */
/* The end of a stage's function. */
void cg_finish_stage_fn(cg_fn *f, int s, const char *name);
const char *cg_whole_bytes(cg_fn *f, const nd_value *v);
const char *cg_place(cg *g, size_t x);              /* or NDRT_NONE */
void cg_emit_enums(cg *g, nd_buf *b);
void cg_emit_places(cg *g, nd_buf *b);
void cg_emit_tables(cg *g, nd_buf *b);
const char *cg_text_of(cg *g, const char *s);       /* "s" or NULL */
const char *cg_real(cg *g, double v);
void cg_emit_metrics(cg *g, nd_buf *b);
void cg_emit_train(cg *g, nd_buf *b);
void cg_emit_header(cg *g, nd_buf *b);
/* emit.c: the file, and all that is known of it; NULL after an error. */
enum { CG_MARKS = 1, CG_LLVM = 2 };  /* with marks; kernels by LLVM */
cg *cg_emit(nd_module *m, unsigned how, nd_buf *out);
/* marks.c. Says that the kernel ends here, if the program is to have marks;
 * `name` is its function's, or NULL. */
void cg_mark_end(cg_fn *f, nd_kernel *k, const char *name);
void cg_count_marks(cg *g);          /* fills calls and t */
uint64_t cg_marks_key(const cg *g);  /* of another program, another one */
void cg_emit_marks(cg *g, nd_buf *b);
const char *cg_stage_prefix(cg *g, int s);          /* "" or "stage0_" */
const char *cg_device_prefix(cg *g, int d);         /* "" or "device0_" */

#endif
