/* ndrt_internal.h - what the files of libndrt share, and what its tests use.
 * Prototypes are grouped under the file that defines them; a generated program
 * sees ndrt.h only.
 */
#ifndef NDRT_INTERNAL_H
#define NDRT_INTERNAL_H

#include "ndrt.h"
#include "comm.h"
#include "schedule/sched.h"

#include <setjmp.h>
#include <stdio.h>

/* ---- course.c: the schedule of a run ----------------------------------- */

typedef struct ndrt_course {
    ndrt_program program;         /* as it runs */
    sched *sched;                 /* with messages; a row per device */
    uint8_t *cross;               /* by boundary: what the stages send */
    sched_rooms rooms;            /* where microbatches keep what they keep */
    int **needs;                  /* by device, per action: see order.c */
    int *versions;                /* by device: of its weights */
    int **ran_on;                 /* by stage and microbatch: how many updates
                                     of the step its weights have seen */
} ndrt_course;

/* ---- options.c: the command line -------------------------------------- */

typedef struct ndrt_config {
    ndrt_train train;             /* the program's, with overrides */
    const char *log_path, *save_path, *generate, *resume_path;
    const char *comm_path;        /* what each rank sent in a step; or NULL */
    bool load_all;                /* --load: every parameter */
    bool seed_given;              /* --seed */
    const char *eval_path;        /* goes with --data, in either order */
    int64_t tokens;               /* to generate */
    double temperature;
    int64_t threads;              /* per rank; 0: share out the CPUs */
    bool check_replicas;          /* after training */
    bool micro_losses;            /* printed after each step */
    enum { NDRT_WHERE_IT_GAINS, NDRT_OVERLAP_ON, NDRT_OVERLAP_OFF } overlap;
    enum { NDRT_MESSAGES_AHEAD, NDRT_MESSAGES_INLINE } messages;
    const char *schedule;         /* instead of the program's; or NULL */
    int64_t microbatches;         /* 0: the program's */
    const char *trace_path, *times_path, *profile_path;
    const char *products_path;    /* their speed alone; or NULL */
    int64_t trace_step;           /* 0: the third */
    const ndrt_course *course;    /* what these choices come to */
    bool done;                    /* --help or --version: nothing to run */
} ndrt_config;

/* Messages for the user go to `out` (help) and `err`; either may be NULL. */
ndrt_status ndrt_options(const ndrt_program *p, int argc, char **argv,
                         ndrt_config *c, FILE *out, FILE *err);

/* cpu.c: false if this processor lacks what the program was compiled for, which
 * is said on `err` (or NULL). */
bool ndrt_cpu_serves(const ndrt_program *p, FILE *err);

/* libndrt runs on every processor; a hot loop is compiled for several, of which
 * the loader takes the best. All give the same bits (-ffp-contract=off). */
#if defined __x86_64__ && defined __gnu_linux__ && !defined __clang__ && \
    __GNUC__ >= 12 && !defined __SANITIZE_ADDRESS__ && \
    !defined __SANITIZE_THREAD__
#define NDRT_CLONES __attribute__((target_clones( \
    "arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define NDRT_CLONES
#endif

/* ---- the state of a rank ---------------------------------------------- */

typedef struct ndrt_mm ndrt_mm;             /* gemm_dnnl.c, gemm_blas.c */
typedef struct ndrt_data ndrt_data;         /* data.c */
typedef struct ndrt_log ndrt_log;           /* log.c */
typedef struct ndrt_count ndrt_count;       /* count.c */
typedef struct ndrt_air ndrt_air;           /* flight.c */
typedef struct ndrt_early ndrt_early;       /* early.c */
typedef struct ndrt_lane ndrt_lane;         /* messages.c */
typedef struct ndrt_trace ndrt_trace;       /* trace.c */
typedef struct ndrt_team ndrt_team;         /* team.c */
typedef struct ndrt_profile ndrt_profile;   /* profile.c */
typedef struct ndrt_products ndrt_products; /* products.c */

typedef struct ndrt_jitter {      /* jitter.c */
    uint32_t most, random;        /* microseconds; the generator's state */
} ndrt_jitter;

typedef struct ndrt_stamp {       /* when an action ran: seconds */
    double start, end;
} ndrt_stamp;

typedef struct ndrt_step_line {
    int64_t step, tokens;
    double loss, grad_norm, lr;
} ndrt_step_line;

typedef enum {                    /* buffers for operands of a product */
    NDRT_WIDENED,                 /* gemm16.c: narrow ones as floats */
    NDRT_TURNED,                  /* gemm.c: rows of B, transposed */
    NDRT_NBUFFERS
} ndrt_buffer;

typedef struct ndrt_own {         /* what a thread of a rank has for itself */
    ndrt_mm *mm;                  /* matrix products made so far */
    float *buffer[NDRT_NBUFFERS];
    size_t buffer_bytes[NDRT_NBUFFERS];
    jmp_buf jump;                 /* out of generated code */
} ndrt_own;

typedef struct ndrt_state {
    const ndrt_config *config;
    const ndrt_course *course;
    ndrt_comm *comm;
    int coord[NDRT_MAX_MESH];
    int64_t *off, *n;             /* what rank->off and rank->n point to */
    int updated;                  /* updates on the way of this step */
    double squares;               /* of their gradients, see train.c */
    ndrt_group world;
    ndrt_group *groups;           /* per program group */
    ndrt_group *sum, *zero, *tied;   /* per bucket; n is 0 if not needed */
    ndrt_group *whole;            /* per parameter: those that hold the pieces
                                     of its matrices, see ndrt_whole_group */
    int64_t *ones;                /* equal pieces: 1 for every rank */
    int64_t *share;               /* room for a length of every rank */
    double *all;                  /* NDRT_WIDE numbers of every rank */
    ndrt_own own;                 /* of the rank's own thread */
    ndrt_team *team;              /* NULL: there is no other */
    char *tiles;                  /* tile.c: of each thread */
    char *packed;                 /* all_to_all.c: what is sent, received */
    size_t packed_bytes;
    size_t *parts;                /* 4 numbers per rank */
    ndrt_data *data;
    ndrt_log *log;
    ndrt_count *count;            /* NULL: nothing is counted */
    ndrt_air *air;                /* NULL: no call is ever in flight */
    ndrt_early *early;            /* NULL: gradients wait for the end */
    ndrt_lane *lane;              /* NULL: the rank moves its messages */
    ndrt_jitter jitter;
    ndrt_trace *trace;            /* NULL: no time is taken */
    ndrt_stamp *stamps;           /* per action of the list; or NULL */
    ndrt_profile *profile;        /* NULL: marks are passed over */
    ndrt_products *products;      /* NULL: nothing is noted */
    ndrt_status status;           /* first failure, and its text */
    char error[512];
    bool reported;                /* the failure needs no further message */
    bool scratch_told;
    int64_t fail_at;              /* communication calls until a made-up
                                     failure; 0: never */
    int64_t start;                /* steps done by the run that is resumed */
    int64_t updates;              /* optimizer updates so far */
    ndrt_step_line last;          /* the latest step */
    double *tally;                /* sum and count of each metric, or NULL */
    int64_t tally_rows;           /* of the batch, that count */
    bool *made;                   /* per stage: has it made its gradients in
                                     this step, of any microbatch? */
    bool lent;                    /* gradients' memory held something else */
    double *micro_loss;           /* per microbatch; NULL: not asked for */
} ndrt_state;

/* ---- team.c: the threads of a rank ------------------------------------- */

enum { NDRT_STACK_BYTES = 16 << 20 };      /* of each thread that computes */
/* After the rank's own products and helpers are there, as they stay where they
 * are while its threads may be bound to CPUs. */
ndrt_status ndrt_team_open(ndrt_rank *r);
void ndrt_team_close(ndrt_rank *r);
/* Joint work of all threads, each with a double of the rank: a failure in one
 * of them (ndrt_raise) ends it in all, and comes back. */
typedef void ndrt_work(ndrt_rank *r, void *arg);
ndrt_status ndrt_together(ndrt_rank *r, ndrt_work *work, void *arg);
/* For what one thread does for all: to that one the rank itself, with which it
 * is alone; NULL to the others, after it has come to its next barrier. */
ndrt_rank *ndrt_alone(ndrt_rank *r);
/* The rank, for what this thread does by itself while the others do alike. */
static inline ndrt_rank ndrt_without_team(const ndrt_rank *r)
{
    ndrt_rank one = *r;

    one.nthreads = 1;
    return one;
}
/* What this thread has for itself. */
ndrt_own *ndrt_mine(const ndrt_rank *r);
void ndrt_own_close(ndrt_own *own);
/* So many floats, aligned, which all threads of joint work share; or the
 * thread's own, outside of it. All of them call it; it has a barrier. What was
 * there is lost if it grows. */
float *ndrt_buffer_of(ndrt_rank *r, ndrt_buffer which, int64_t floats);
size_t ndrt_own_bytes(const ndrt_rank *r);         /* of all threads */
/* Of n elements this thread's part, as far as it lies in the `length` of them
 * from `at` on; counted from there. */
ndrt_span ndrt_share_run(const ndrt_rank *r, int64_t n, int64_t at,
                         int64_t length);
/* Around changes of the rank's failure. */
void ndrt_lock_failure(ndrt_rank *r, bool lock);

/* ---- experts.c -------------------------------------------------------- */

/* So many bytes of a device's scratch, in whole cache lines; the caller sees to
 * it that they are there. */
void *ndrt_take(char **room, size_t bytes);
int64_t ndrt_count_rows(const ndrt_rows *rows);
/* Where a loop over rows stands. */
typedef struct ndrt_row_step {
    int64_t i[NDRT_MAX_RANK];
    int64_t x, y, id;
} ndrt_row_step;
void ndrt_next_row(const ndrt_rows *rows, ndrt_row_step *s);

/* ---- main.c ----------------------------------------------------------- */

/* Sets the rank's failure, unless it has one, and returns it. */
ndrt_status ndrt_fail(ndrt_rank *r, ndrt_status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A rank is made, run from set-up to the end, and freed. Threads free theirs
 * when all have ended: after a failure others may still read its memory. */
ndrt_rank *ndrt_rank_new(const ndrt_program *p, const ndrt_config *config,
                         ndrt_comm *comm);              /* NULL: no memory */
ndrt_status ndrt_run_rank(ndrt_rank *r);
void ndrt_rank_free(ndrt_rank *r);
/* All ranks as threads. */
ndrt_status ndrt_run_local(const ndrt_program *p, const ndrt_config *config);

/* Tells the first failure of all, and stops all ranks. */
void ndrt_report(ndrt_rank *r, ndrt_status s);

/* ---- flight.c: calls that another thread makes ------------------------- */

/* All ranks call it, once their groups are open. Starts the thread where the
 * program has use for one and it gains something. */
ndrt_status ndrt_air_open(ndrt_rank *r);
/* After the last call, or a failure that all ranks have been told of. */
void ndrt_air_close(ndrt_rank *r);
void ndrt_air_free(ndrt_rank *r);
/* ndrt_reduce_range, as call `i` of a step's; and its end. */
ndrt_status ndrt_start_reduce(ndrt_rank *r, int i, int bucket, float *x,
                              size_t from, size_t to);
ndrt_status ndrt_await_reduce(ndrt_rank *r, int i);

/* ---- early.c: gradients summed while backward goes on ------------------- */

/* The most calls of a step; 0: all is left to the end. */
int ndrt_early_most(const ndrt_rank *r);
/* Has any device one? The answer of every rank. */
bool ndrt_early_any(const ndrt_rank *r);
/* After ndrt_air_open. */
ndrt_status ndrt_early_open(ndrt_rank *r);
void ndrt_early_free(ndrt_rank *r);
/* Around an action. */
void ndrt_early_begin(ndrt_rank *r, const sched_action *a);
ndrt_status ndrt_early_end(ndrt_rank *r, const sched_action *a);
/* Resolves what the gradients are pending over: after it every rank holds the
 * sum, or its zero part of it. */
ndrt_status ndrt_reduce_grads(ndrt_rank *r);

/* ---- jitter.c: delays, for tests ---------------------------------------- */

ndrt_jitter ndrt_jitter_new(int seed);
void ndrt_doze(ndrt_jitter *j);

/* What the configuration asks for; a failure is told on `err`, if there is
 * one. */
ndrt_status ndrt_course_open(ndrt_course *c, const ndrt_program *p,
                             const ndrt_config *config, FILE *err);
void ndrt_course_close(ndrt_course *c);

/* ---- order.c, messages.c: a device's list of actions -------------------- */

/* needs, per action of the device's row: how many of the messages before it
 * must have ended if it computes; of the computations, if it is a message.
 * False: no memory. */
bool ndrt_order(const sched *s, int device, const sched_rooms *rooms,
                int *needs);

typedef struct ndrt_pass {        /* over a list: what of it is done */
    bool forward;                 /* that alone */
    int only_mb;                  /* one microbatch; -1: all */
} ndrt_pass;
/* Does what the list says, and its messages at the same time where there is a
 * thread for them. */
ndrt_status ndrt_follow(ndrt_rank *r, const ndrt_pass *pass);
/* All ranks call it, once the arena is there. */
ndrt_status ndrt_lane_open(ndrt_rank *r);
/* As ndrt_air_close. */
void ndrt_lane_close(ndrt_rank *r);
void ndrt_lane_free(ndrt_rank *r);

/* ---- trace.c: when what ran ---------------------------------------------- */

ndrt_status ndrt_trace_open(ndrt_rank *r);
/* Around the actions of a training step. */
ndrt_status ndrt_trace_begin(ndrt_rank *r);
void ndrt_trace_end(ndrt_rank *r);
/* All ranks call it; rank 0 writes the files. */
ndrt_status ndrt_trace_write(ndrt_rank *r);
void ndrt_trace_free(ndrt_rank *r);

/* ---- profile.c: the time of kernels -------------------------------------- */

typedef enum {
    NDRT_PART_DATA, NDRT_PART_ZERO, NDRT_PART_MESSAGES, NDRT_PART_REDUCE,
    NDRT_PART_NORM, NDRT_PART_SUMS, NDRT_PART_UPDATE, NDRT_PART_LOG,
    NDRT_PART_OTHER, NDRT_NPARTS
} ndrt_chore;
/* That part of the runtime's work ends here: as ndrt_mark. */
void ndrt_spent(ndrt_rank *r, ndrt_chore part);
/* A training step begins, or ends: marks outside of one mean nothing. */
void ndrt_profile_step(ndrt_rank *r, bool on);
ndrt_status ndrt_profile_open(ndrt_rank *r);
/* All ranks call these; rank 0 writes the file. Peaks are measured once more at
 * each call, and the best is kept. */
ndrt_status ndrt_profile_peaks(ndrt_rank *r);
ndrt_status ndrt_profile_write(ndrt_rank *r);
void ndrt_profile_free(ndrt_rank *r);

/* ---- rank.c: where a rank stands, what it holds ----------------------- */

int ndrt_mesh_ranks(const ndrt_program *p);
int ndrt_coord(const ndrt_program *p, int rank, int axis);
int ndrt_device_of(const ndrt_program *p, int rank);
void ndrt_extent_of(const ndrt_program *p, int extent, int rank, int stage,
                    int mb, int64_t *off, int64_t *n);
bool ndrt_follows_micro(const ndrt_extent *e);     /* cut by microbatch */
/* Mesh axes that cut one of the extents. */
uint32_t ndrt_cut_mask(const ndrt_program *p, const int *extent, int n);
/* Groups: every rank calls it, before anything that may fail on one alone. */
ndrt_status ndrt_open_world(ndrt_rank *r);          /* first of all groups */
ndrt_status ndrt_open_groups(ndrt_rank *r);
/* Those of its buckets, into state->sum, zero and tied. */
ndrt_status ndrt_open_buckets(ndrt_rank *r);
void ndrt_free_bucket(ndrt_rank *r, int bucket);
/* What the rank's device has and needs. */
const ndrt_device *ndrt_here(const ndrt_rank *r);
/* Where a parameter or its gradient lies on a device; NDRT_NONE: nowhere. */
size_t ndrt_weights_at(const ndrt_program *p, int device, int param);
size_t ndrt_grads_at(const ndrt_program *p, int device, int param);
/* Is `rank` the one that speaks for its piece of the parameter? */
/* Room of a parameter on a rank, from axis `first` on: 1 is that of a layer. */
size_t ndrt_param_floats(const ndrt_param *q, int first);
bool ndrt_owns_param(const ndrt_program *p, int rank, int param);
/* The devices of a bucket whose copies must be added up; 0: not tied. */
uint32_t ndrt_tied_devices(const ndrt_program *p, int bucket);
/* Is axis `a` of the tensor the sample axis? */
bool ndrt_is_sample(const ndrt_program *p, const ndrt_tensor *t, int a);

/* Runs of a local piece that are contiguous both here and in the whole:
 *     ndrt_walk w = ndrt_walk_...; while (ndrt_walk_next(&w)) ...
 * visits them in ascending order. */
typedef struct ndrt_walk {
    int naxes;
    int64_t off[NDRT_MAX_RANK], n[NDRT_MAX_RANK];
    int64_t cap[NDRT_MAX_RANK], size[NDRT_MAX_RANK];
    int64_t i[NDRT_MAX_RANK];
    const ndrt_program *p;
    int device, piped;            /* the axis that stages cut: of it the device
                                     has a run per stage; or -1 */
    const int64_t *bounds;        /* of the stages along it */
    int64_t base;                 /* added to local */
    bool started;
    int64_t local, global, length;
} ndrt_walk;
/* The piece of a parameter on `rank`. layer >= 0: only that index of a layered
 * parameter (counted over its leading axes, the last one fastest), with
 * `global` counted inside it; nothing if not held. */
ndrt_walk ndrt_walk_param(const ndrt_program *p, int rank, int param,
                          int64_t layer);
ndrt_walk ndrt_walk_tensor(const ndrt_program *p, int rank,
                           const ndrt_tensor *t, int mb);
bool ndrt_walk_next(ndrt_walk *w);
int64_t ndrt_walk_count(const ndrt_walk *w);       /* elements of all runs */

/* ---- cell.c: the stage and the microbatch that run ---------------------- */

void ndrt_set_cell(ndrt_rank *r, int stage, int mb);
/* For a forward pass that runs again later: what waits for W stays. */
void ndrt_put_aside(ndrt_rank *r);
size_t ndrt_arena_bytes(const ndrt_course *c, int device);
size_t ndrt_older_at(const ndrt_course *c, int device);    /* older weights */
ndrt_status ndrt_make_arena(ndrt_rank *r);

/* ---- tile.c -------------------------------------------------------------- */

ndrt_status ndrt_tiles_open(ndrt_rank *r);

/* ---- versions.c: older weights ------------------------------------------- */

/* Sets r->weights for an action. */
void ndrt_choose_weights(ndrt_rank *r, sched_op op, int stage, int mb);
/* Where a step runs on the weights before the last update: those of now will be
 * that, says keep; where they lie, or NULL. */
void ndrt_keep_behind(ndrt_rank *r);
char *ndrt_behind(const ndrt_rank *r);
/* The update after one microbatch. */
ndrt_status ndrt_update_now(ndrt_rank *r, const sched_action *a);

/* ---- replicas.c --------------------------------------------------------- */

/* Fails unless all copies of each parameter hold the same bits. */
ndrt_status ndrt_check_replicas(ndrt_rank *r);

/* ---- init.c: initial values ------------------------------------------- */

uint64_t ndrt_hash(const char *s);                 /* FNV-1a, 64 bits */
uint32_t ndrt_stream(const char *name);            /* its 32-bit fold */
float ndrt_init_value(const ndrt_param *q, uint64_t seed, uint32_t stream,
                      uint64_t index);
ndrt_status ndrt_init_params(ndrt_rank *r, uint64_t seed);

/* ---- fold.c ----------------------------------------------------------- */

/* See ndrt_fold_fn. */
void ndrt_fold(float *dst, const float *const *src, int nsrc, int64_t n,
               ndrt_fold_kind how);
/* To several destinations. */
void ndrt_fold_to(float *const *dst, int ndst, const float *const *src,
                  int nsrc, int64_t n, ndrt_fold_kind how);

/* ---- comm.c ----------------------------------------------------------- */

enum { NDRT_WIDE = 4 };
/* The bits of v[0..n) of every rank, in rank order, to state->all. */
ndrt_status ndrt_gather_doubles(ndrt_rank *r, const double *v, int n);
/* Adds up v[0..n) over all ranks in rank order; the same bits everywhere.
 * n <= NDRT_WIDE. */
ndrt_status ndrt_sum_doubles(ndrt_rank *r, double *v, int n);
/* All ranks return the failure of the lowest rank that has one. */
ndrt_status ndrt_agree(ndrt_rank *r, ndrt_status mine);
/* A communication call of generated code passes the first of these before and
 * the second after, which does not return to it after a failure. Of a team's
 * threads the first makes the call: to the others enter returns NULL, when all
 * is done. */
ndrt_comm *ndrt_enter(ndrt_rank *r);
void ndrt_leave(ndrt_rank *r, ndrt_status s);
/* The failure that tests ask for, if it is time. */
void ndrt_count_down(ndrt_rank *r);
/* Turns a communicator's status into the rank's failure. */
ndrt_status ndrt_comm_check(ndrt_rank *r, ndrt_status s);
/* Bytes between any members of a program's group; returns when all is there. */
void ndrt_swap(ndrt_rank *r, int group, const ndrt_exchange *e);
/* Members of a mesh mask, or of a set of devices along the pipeline axis. */
ndrt_status ndrt_group_open(ndrt_rank *r, ndrt_group *g, uint32_t mask,
                            uint32_t devices);
void ndrt_group_free(ndrt_group *g);

/* ---- gemm.c ----------------------------------------------------------- */

/* Threads that each rank computes with. */
int ndrt_threads(const ndrt_rank *r);
/* A library starts no threads for the calling one. */
void ndrt_set_threads(void);
/* Element (i, j) of [rows, cols] is x[i*r + j*c]. */
typedef struct ndrt_matrix {
    const void *x;
    int64_t rows, cols, r, c;
} ndrt_matrix;
/* C row-major with row stride ldc; a matrix is [rows, cols] with row stride ld,
 * or stored transposed with that stride between columns. */
typedef struct ndrt_mm_key {
    int64_t m, n, k, lda, ldb, ldc;
    bool ta, tb, acc;
    bool bf16;                    /* A and B are; C is float */
    bool in_order;                /* a piece, see gemm_dnnl.c; or several */
} ndrt_mm_key;
/* ndrt_gemm of a product that --products has noted. */
void ndrt_gemm_noted(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
                     const float *a, int64_t a_r, int64_t a_c,
                     const float *b, int64_t b_r, int64_t b_c,
                     float *c, int64_t c_r, int64_t c_c);
/* Turns C = A B around where that makes the rows of C contiguous, and fills
 * the key; false if no library takes the operands as they lie. */
bool ndrt_mm_arrange(ndrt_matrix *a, ndrt_matrix *b, ndrt_matrix *c,
                     ndrt_mm_key *key);
/* The pieces of a product, shared out; ends with a barrier. And before, of
 * bf16: has the library what each thread of the team would ask for? All get the
 * same answer. */
void ndrt_mm_share(ndrt_rank *r, const ndrt_mm_key *key, const void *a,
                   const void *b, float *c);
bool ndrt_mm_has_parts(ndrt_rank *r, const ndrt_mm_key *key);

/* ---- turn.c ------------------------------------------------------------ */

/* to[j * to_row + i] = x[i * x_row + j] */
void ndrt_turn(float *to, int64_t to_row, const float *x, int64_t x_row,
               int64_t rows, int64_t cols);

/* ---- products.c: the products of a step, alone --------------------------- */

ndrt_status ndrt_products_open(ndrt_rank *r);
/* Whoever computes a product says so. own: by the calling thread alone. */
void ndrt_note_product(const ndrt_rank *r, ndrt_width width, bool own, bool acc,
                       const ndrt_matrix *a, const ndrt_matrix *b,
                       const ndrt_matrix *c);
/* Around a training step; all ranks call them. */
void ndrt_products_begin(ndrt_rank *r);
ndrt_status ndrt_products_end(ndrt_rank *r);
/* Rank 0 writes the file. */
ndrt_status ndrt_products_write(ndrt_rank *r);
void ndrt_products_free(ndrt_products *p);

/* ---- gemm_dnnl.c or gemm_blas.c --------------------------------------- */

ndrt_status ndrt_mm_open(ndrt_rank *r);            /* for the calling thread */
/* Is there something faster for these bf16 operands than to widen them? */
bool ndrt_mm_has_bf16(ndrt_rank *r, const ndrt_mm_key *key);
ndrt_status ndrt_mm_run(ndrt_rank *r, const ndrt_mm_key *key, const void *a,
                        const void *b, float *c);
/* So many rows of a B that is stored transposed are better turned around, then
 * multiplied, than left to the library; the bits of C are the same. 0: none. */
int64_t ndrt_mm_turns(const ndrt_mm_key *key);
/* Does C come out the same, bit by bit, whether its pieces are computed one by
 * one or several at one go? */
bool ndrt_mm_merges(const ndrt_mm_key *key);
size_t ndrt_mm_scratch(const ndrt_own *own);       /* bytes */
void ndrt_mm_close(ndrt_own *own);
extern const char ndrt_mm_name[];

/* ---- files.c: only regular files ---------------------------------------- */

/* The whole file; NULL and 0 if it is empty. error[] names the path. */
ndrt_status ndrt_map_file(const char *path, void **map, size_t *bytes,
                          char *error, size_t error_size);
/* Can a file be written and then take the name `path`? */
ndrt_status ndrt_check_target(const char *path, char *error,
                              size_t error_size);
/* What it is called until then; malloc'ed, NULL: no memory. */
char *ndrt_tmp_name(const char *path);

/* ---- checksum.c: in the header of a safetensors file -------------------- */

extern const char ndrt_sums_key[];                 /* of the metadata */
bool ndrt_is_note(const char *key);                /* is it one of ours? */
size_t ndrt_sums_length(int ntensors);             /* of their text */
/* Where they stand in the header; 0: there are none. */
size_t ndrt_sums_at(const char *header, size_t len);
uint32_t ndrt_sum(const void *x, size_t bytes);
uint32_t ndrt_sum_header(const char *header, size_t len, size_t sums);
/* The i-th of the text; 0 is the header's. */
void ndrt_put_sum(char *sums, int i, uint32_t sum);
bool ndrt_is_sum(const char *sums, int i, uint32_t sum);

/* ---- safetensors.c: the file format ----------------------------------- */

typedef enum {
    NDRT_ST_F32, NDRT_ST_F64, NDRT_ST_F16, NDRT_ST_BF16, NDRT_ST_I32,
    NDRT_ST_I64, NDRT_ST_U8, NDRT_ST_BOOL, NDRT_ST_NTYPES
} ndrt_st_type;

typedef struct ndrt_st_tensor {
    const char *name;
    ndrt_st_type type;
    int naxes;
    int64_t shape[NDRT_MAX_RANK];
    const unsigned char *data;    /* not aligned */
} ndrt_st_tensor;

typedef struct ndrt_st_file {
    void *map;
    size_t bytes;
    void *header;                 /* json_t; owns the names */
    const char *sums;             /* checksums, or NULL: it has none */
    int nowned;                   /* .npz: names, and data unpacked */
    void **owned;
    int n;
    ndrt_st_tensor *t;
} ndrt_st_file;

/* A file that is being read, and where what is wrong with it goes. */
typedef struct ndrt_reader {
    ndrt_st_file *f;
    const char *path;
    char *error;
    size_t error_size;
} ndrt_reader;
/* Maps the file and lets `read` find its tensors; closes it if that fails. */
ndrt_status ndrt_read_file(ndrt_reader *rd,
                           ndrt_status (*read)(ndrt_reader *));
/* A failure leaves its text, which names the path, in error[]. */
ndrt_status ndrt_st_open(ndrt_st_file *f, const char *path, char *error,
                         size_t error_size);
void ndrt_st_close(ndrt_st_file *f);
const ndrt_st_tensor *ndrt_st_find(const ndrt_st_file *f, const char *name);
const char *ndrt_st_type_name(ndrt_st_type t);
size_t ndrt_st_type_size(ndrt_st_type t);
size_t ndrt_st_bytes(const ndrt_st_tensor *t);     /* of its data */
/* Do the data match their checksum, if the file has them? */
bool ndrt_st_whole(const ndrt_st_file *f, const ndrt_st_tensor *t);
/* n elements from element `at` on. */
void ndrt_st_floats(const ndrt_st_tensor *t, int64_t at, int64_t n,
                    float *out);
int64_t ndrt_st_int(const ndrt_st_tensor *t, int64_t at);  /* no float type */

typedef enum {                    /* of the run that wrote it; see notes.c */
    NDRT_NOTE_HOLDS, NDRT_NOTE_SEED, NDRT_NOTE_OPTIMIZER, NDRT_NOTE_INPUTS,
    NDRT_NOTE_DATA, NDRT_NNOTES
} ndrt_note;
typedef struct ndrt_notes {
    char *text[NDRT_NNOTES];      /* NULL: is not noted */
} ndrt_notes;
const char *ndrt_st_note(const ndrt_st_file *f, ndrt_note note);   /* or NULL */

typedef struct ndrt_st_writer {
    FILE *f;
    char *path, *tmp;
    char *header;                 /* its text, to be completed: */
    size_t header_bytes, sums;    /* where the checksums stand in it */
    int written;                  /* tensors */
} ndrt_st_writer;
/* All tensors are F32; their data follow in the order given, a call for each.
 * The file takes its name in ndrt_st_finish; until then nothing is at `path`.
 */
ndrt_status ndrt_st_create(ndrt_st_writer *w, const char *path,
                           const ndrt_st_tensor *t, int n,
                           const ndrt_notes *notes, char *error,
                           size_t error_size);
ndrt_status ndrt_st_write(ndrt_st_writer *w, const float *x, int64_t n,
                          char *error, size_t error_size);
ndrt_status ndrt_st_finish(ndrt_st_writer *w, char *error, size_t error_size);
void ndrt_st_cancel(ndrt_st_writer *w);

/* ---- notes.c: what a file says of the run that wrote it ----------------- */

extern const char *const ndrt_note_key[];          /* in the metadata */
/* False if there is no memory. Free them in any case. */
bool ndrt_notes_make(const ndrt_rank *r, bool checkpoint, ndrt_notes *n);
void ndrt_notes_free(ndrt_notes *n);
/* Can the run go on from this file, which was written after that step? Takes
 * over its seed, and tells of other data. */
ndrt_status ndrt_notes_heed(ndrt_rank *r, const ndrt_st_file *f,
                            const char *path, int64_t step);

/* ---- npz.c: the same from a zip of .npy files -------------------------- */

bool ndrt_is_npz(const char *path);
ndrt_status ndrt_npz_open(ndrt_st_file *f, const char *path, char *error,
                          size_t error_size);      /* closed by ndrt_st_close */

/* ---- checkpoint.c: what files call parameters and their state ---------- */

/* Indices of a layered parameter, in all. */
int64_t ndrt_layer_count(const ndrt_program *p, int param);
/* "layers.attn.q.w" at 3 -> "layers.3.attn.q.w"; malloc'ed. */
char *ndrt_layer_name(const ndrt_program *p, int param, int64_t layer,
                      const char *prefix);
/* What a parameter has by kind: weights (0), up to two arrays of state, older
 * weights. */
enum { NDRT_BEFORE = 3, NDRT_NKINDS };             /* weights before the last
                                                      update, if a step runs on
                                                      those */
extern const char *const ndrt_kind_prefix[];       /* of its name in a file */
bool ndrt_has_kind(const ndrt_rank *r, int param, int kind);
/* The shape of one tensor in the file; returns its axes. */
int ndrt_file_shape(const ndrt_program *p, int param,
                    int64_t shape[NDRT_MAX_RANK]);
/* Where weights or, between show and take, state of a kind lie. */
float *ndrt_tensor_at(const ndrt_rank *r, int param, int kind);
/* From state to gradients, and back. */
ndrt_status ndrt_show_state(ndrt_rank *r, int kind);
void ndrt_take_state(ndrt_rank *r, int kind);
/* The step and the number of updates, as four floats of 24 bits. */
extern const char ndrt_counts_name[];
enum { NDRT_HALF = 1 << 24 };

/* ---- load.c, save.c ---------------------------------------------------- */

/* What train.load_path holds: of the parameters that `init = load` chose, or
 * of all of them where the command line names the file. */
ndrt_status ndrt_load(ndrt_rank *r);
ndrt_status ndrt_save(ndrt_rank *r, const char *path);
/* With the optimizer's state, the step and the number of updates. */
ndrt_status ndrt_load_all(ndrt_rank *r, const char *path, int64_t counts[2]);
ndrt_status ndrt_save_all(ndrt_rank *r, const char *path);

/* ---- resume.c: a folder of checkpoints --------------------------------- */

/* Before the training: what --resume names is loaded, and the folder that new
 * checkpoints go to is made ready. */
ndrt_status ndrt_resume(ndrt_rank *r);
ndrt_status ndrt_check_folder(ndrt_rank *r);
bool ndrt_checkpoint_due(const ndrt_rank *r);
ndrt_status ndrt_checkpoint(ndrt_rank *r);

/* ---- data.c, windows.c, arrays.c -------------------------------------- */

typedef struct ndrt_source {      /* one file */
    const char *path;
    void *map;                    /* text, tokens: */
    size_t bytes;
    const unsigned char *words;   /* behind the header */
    int width;                    /* bytes of a word */
    ndrt_st_file file;            /* arrays */
    const ndrt_st_tensor **tensor;   /* arrays: per input */
    int64_t rows;                 /* samples */
} ndrt_source;

typedef struct ndrt_part {        /* samples for training, or for evaluation */
    const ndrt_source *from;
    int64_t first, rows;
} ndrt_part;

struct ndrt_data {
    ndrt_data_kind kind;
    int64_t window;               /* text, tokens: length of a sample */
    ndrt_source file[2];          /* [1]: for evaluation alone, if given */
    ndrt_part part[2];            /* by `eval` */
};

ndrt_status ndrt_data_open(ndrt_rank *r);
void ndrt_data_close(ndrt_rank *r);
/* Fills the input buffers with batch `k`, counted from 0. */
ndrt_status ndrt_data_batch(ndrt_rank *r, int64_t k, bool eval);
bool ndrt_data_can_eval(const ndrt_rank *r);
/* Samples for evaluation; 0: as many as are asked for. */
int64_t ndrt_eval_rows(const ndrt_rank *r);
/* The sample, counted in its file, at `row` of all batches; wraps. */
int64_t ndrt_sample(const ndrt_part *part, int64_t row);
int64_t ndrt_batch_size(const ndrt_program *p);    /* global */
int64_t ndrt_step_tokens(const ndrt_program *p);   /* unique ones */
/* Is v, at offset `where` of the file, an id that the input may hold? */
ndrt_status ndrt_check_id(ndrt_rank *r, const ndrt_source *f, int input,
                          int64_t v, int64_t where);
void *ndrt_input(const ndrt_rank *r, int input);   /* NULL: not here */
/* Can text give all inputs? */
bool ndrt_takes_text(const ndrt_program *p);
ndrt_status ndrt_windows_open(ndrt_rank *r, ndrt_source *f);
ndrt_status ndrt_windows_batch(ndrt_rank *r, int input, int64_t k, bool eval);
ndrt_status ndrt_arrays_open(ndrt_rank *r, ndrt_source *f);
ndrt_status ndrt_arrays_batch(ndrt_rank *r, int input, int64_t k, bool eval);

/* ---- optim.c ---------------------------------------------------------- */

double ndrt_lr(const ndrt_train *t, int64_t update);       /* 1-based */
/* Floats [from, to) of a bucket that lies at x: adds up what they are pending
 * over, each rank of the zero group what is in its part. */
ndrt_status ndrt_reduce_range(ndrt_rank *r, int bucket, float *x, size_t from,
                              size_t to);
/* This rank's share of the squared norm: each element counts on one rank. */
double ndrt_square_norm(ndrt_rank *r);
/* In joint work: the sum of squares of x in NDRT_SUMS parts. Each thread adds
 * those of its parts to sums; their sum in order does not depend on how many
 * threads there are. */
enum { NDRT_SUMS = 64 };
void ndrt_add_squares(const ndrt_rank *r, const float *x, size_t n,
                      double sums[NDRT_SUMS]);
double ndrt_total(const double sums[NDRT_SUMS]);
ndrt_status ndrt_update(ndrt_rank *r, double scale, double lr);
/* The part of the bucket's flat range that this rank updates. */
void ndrt_my_part(const ndrt_rank *r, int bucket, size_t *from, size_t *n);
/* Every rank of the zero group gets the others' parts of x. */
ndrt_status ndrt_gather_parts(ndrt_rank *r, int bucket, float *x);

/* ---- optim_rules.c: updates of n elements at a time ------------------- */

/* What the elements of a bucket have in common at one update. */
typedef struct ndrt_rule {
    const ndrt_train *train;
    int64_t update;               /* 1-based */
    double lr, weight_decay;
    float scale;                  /* of the gradient, from the clip */
} ndrt_rule;
double ndrt_sum_squares(const float *x, size_t n);
void ndrt_sgd(const ndrt_rule *u, size_t n, float *w, const float *g,
              float *m);          /* m: NULL without momentum */
void ndrt_adam(const ndrt_rule *u, bool decoupled, size_t n, float *w,
               const float *g, float *m, float *v);
void ndrt_lion(const ndrt_rule *u, size_t n, float *w, const float *g,
               float *m);

/* ---- muon.c ----------------------------------------------------------- */

/* NULL if this rank holds the matrices whole. */
const ndrt_group *ndrt_whole_group(const ndrt_rank *r, int param);
ndrt_status ndrt_open_whole(ndrt_rank *r);
ndrt_status ndrt_muon(ndrt_rank *r, const ndrt_place *pl, const ndrt_rule *u);

/* ---- grads.c ---------------------------------------------------------- */

/* No gradient has been made: what there is of them is cleared, or will be
 * written over. */
ndrt_status ndrt_no_grads(ndrt_rank *r);
/* After an action. */
void ndrt_grads_made(ndrt_rank *r, const sched_action *a);

/* ---- train.c ---------------------------------------------------------- */

ndrt_status ndrt_train_loop(ndrt_rank *r);
/* The forward pass alone with training off. only_mb >= 0: that microbatch. */
ndrt_status ndrt_forward(ndrt_rank *r, int only_mb);
/* The sum of the losses of the microbatches here; NULL: not on this stage. */
float *ndrt_loss_at(const ndrt_rank *r);
/* One action of the list, at its stage and microbatch. */
ndrt_status ndrt_act(ndrt_rank *r, const sched_action *a);
/* Runs generated code, by this thread alone or by all of them; a failure inside
 * it comes back as a status. */
ndrt_status ndrt_call(ndrt_rank *r, void (*f)(ndrt_rank *));
ndrt_status ndrt_compute(ndrt_rank *r, void (*f)(ndrt_rank *));
/* Leaves generated code after a failure. */
_Noreturn void ndrt_raise(ndrt_rank *r);

/* ---- eval.c ----------------------------------------------------------- */

/* This rank's share of the loss. */
double ndrt_loss_share(const ndrt_rank *r);
/* Adds the outputs of the microbatch to r->state->tally. */
void ndrt_tally(ndrt_rank *r);
/* After a step: if it is time. */
ndrt_status ndrt_evaluate(ndrt_rank *r);

/* ---- generate.c ------------------------------------------------------- */

ndrt_status ndrt_generate(ndrt_rank *r, FILE *out);

/* ---- micro.c: the loss of each microbatch ------------------------------- */

ndrt_status ndrt_micro_open(ndrt_rank *r);
/* Runs forward of microbatch r->mb. */
ndrt_status ndrt_micro_forward(ndrt_rank *r, void (*f)(ndrt_rank *));
/* The same once more, for what backward reads: no loss is added. */
ndrt_status ndrt_micro_again(ndrt_rank *r, void (*f)(ndrt_rank *));
/* Prints and forgets those of this step; all ranks call it. */
ndrt_status ndrt_micro_report(ndrt_rank *r);

/* ---- log.c ------------------------------------------------------------ */

double ndrt_now(void);                         /* seconds */
ndrt_status ndrt_log_open(ndrt_rank *r);       /* rank 0; others: no-ops */
void ndrt_log_step(ndrt_rank *r, const ndrt_step_line *s);
void ndrt_log_micro(ndrt_rank *r, int mb, double loss);
/* metrics: a mean for each of the train block's. */
void ndrt_log_eval(ndrt_rank *r, double loss, int64_t batches,
                   const double *metrics);
/* What came after the last line is no part of the next step. */
void ndrt_log_skip(ndrt_rank *r);
void ndrt_log_note(ndrt_rank *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
ndrt_status ndrt_log_close(ndrt_rank *r);     /* were all lines written? */
void ndrt_banner(ndrt_rank *r, bool local);
void ndrt_bytes(char out[24], size_t bytes);   /* "12.5 MiB" */

/* ---- same.c: were all ranks started alike? ------------------------------ */

/* All ranks call each, and all fail, if one differs from the first. */
ndrt_status ndrt_same_options(ndrt_rank *r);
ndrt_status ndrt_same_data(ndrt_rank *r);

/* ---- count.c: what a rank sends ---------------------------------------- */

ndrt_count *ndrt_count_new(const ndrt_program *p, ndrt_comm *comm);
/* What the rank talks through from then on. */
ndrt_comm *ndrt_count_comm(ndrt_count *k);
void ndrt_count_free(ndrt_count *k);
/* Starts anew with a training step, and ends with it. */
void ndrt_count_step(ndrt_rank *r, bool on);
/* All ranks call it; rank 0 writes the file. */
ndrt_status ndrt_count_write(ndrt_rank *r);

/* ---- launch.c: under mpirun ------------------------------------------- */

bool ndrt_under_launcher(void);
bool ndrt_launcher_first(void);                /* this process may speak */
ndrt_status ndrt_run_mpi(const ndrt_program *p, const ndrt_config *config);
/* This process cannot run: `s`. All wait for each other: the launcher ends the
 * job when the first one fails, maybe before the one that may speak has spoken.
 * `said` is printed if all before this one can run; or NULL. */
void ndrt_mpi_meet(const ndrt_program *p, ndrt_status s, const char *said);

#endif
