/* ndrt.h - the thin runtime that a generated program is linked against.
 *
 * A generated program is one C file: tables (mesh, extents, parameters,
 * schedule), kernels, one function per stage and direction, and
 *
 *     int main(int argc, char **argv)
 *     {
 *         return ndrt_main(&program, argc, argv);
 *     }
 *
 * The runtime reads options and data, makes the ranks (threads of this
 * process, or one process each under mpirun), fills the parameters, runs the
 * schedule, reduces gradients, updates, logs and saves. It knows nothing of
 * the compiler. All memory of a rank is one arena whose size the compiler
 * computed; the training loop allocates nothing.
 *
 * Counts are elements and sizes are bytes, both size_t or int64_t, never int.
 * Functions that can fail return ndrt_status; the text of the failure is in
 * the rank (ndrt_fail sets it). Nothing here calls exit.
 */
#ifndef NDRT_H
#define NDRT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ndrt_cpu.h"

enum { NDRT_MAX_MESH = 8, NDRT_MAX_CUT = 4, NDRT_MAX_RANK = 12 };

typedef enum {
    NDRT_OK = 0,
    NDRT_EINPUT,      /* the user's data, option or file: exit status 1 */
    NDRT_EUSAGE,      /* wrong command line: exit status 2 */
    NDRT_EINTERNAL,   /* a library failed, memory ran out: exit status 3 */
    NDRT_ESTOPPED     /* another rank failed and has said why */
} ndrt_status;

typedef enum { NDRT_F32, NDRT_I32, NDRT_BOOL } ndrt_dtype;

/* ---- what the compiler emits ------------------------------------------ */

/* Mesh axes, outermost first, without the time axis. NDRT_MICRO stands for the
 * microbatch as a "mesh axis" that cuts the sample axis in time. */
enum { NDRT_MICRO = 0x7f };

/* How one axis is cut: rank r holds [off, off + n) of [0, size). Cuts apply
 * major first; a piece's first parts are one longer where sizes do not divide.
 * `bounds`, if set, replaces the even split over cut[0] (the pipeline): stage s
 * has [bounds[s], bounds[s + 1]), and a rank those of its stages. */
typedef struct ndrt_extent {
    const char *name;             /* "batch/dp", for messages */
    int64_t size;
    int ncut;
    unsigned char cut[NDRT_MAX_CUT];
    const int64_t *bounds;
} ndrt_extent;

typedef enum {
    NDRT_INIT_ZEROS, NDRT_INIT_ONES, NDRT_INIT_CONST, NDRT_INIT_NORMAL,
    NDRT_INIT_UNIFORM, NDRT_INIT_XAVIER, NDRT_INIT_KAIMING
} ndrt_init;

/* A trained tensor. Stored row-major with the *largest* local size of every
 * axis as its stride, so offsets are the same on all ranks of a device; the
 * elements past a short rank's own size stay zero. Where stages cut an axis,
 * the iterations of a device's stages follow each other. */
typedef struct ndrt_param {
    const char *name;             /* "layers.attn.q.w" */
    int naxes;
    int extent[NDRT_MAX_RANK];    /* extent ids, major axis first */
    int64_t cap[NDRT_MAX_RANK];   /* largest local size of each */
    int nlayers;                  /* leading axes of repeats: saved as one
                                     tensor per index, "layers.0.attn.q.w" */
    int layer_at[NDRT_MAX_RANK];  /* where each index stands in the name */
    ndrt_init init;
    double init_arg;
    int64_t fan_in, fan_out;
    bool decay, frozen;
    uint32_t devices;             /* bit d: device d holds it */
    bool muon;                    /* updated as matrices [fan_in, fan_out], one
                                     per index of its first `lead` axes */
    int lead;
    bool load;                    /* train.load_path holds its initial value */
} ndrt_param;

/* Parameters whose gradients need the same reductions, laid out one after
 * another: weights, gradients and optimizer state are flat ranges of `n`
 * floats, the same on every rank that holds the bucket. */
typedef struct ndrt_bucket {
    int nparams;
    const int *params;            /* indices into program->params */
    size_t n;                     /* floats, gaps and final padding included */
    uint32_t sum;                 /* mesh axes the gradient is pending over */
    uint32_t cut;                 /* mesh axes that cut the parameters */
    uint32_t zero;                /* mesh axis (one bit) that partitions the
                                     state (ZeRO-1), or 0; n divides evenly */
    uint32_t devices;             /* that hold it; more than one: tied */
    bool decay, frozen, muon;
} ndrt_bucket;

typedef struct ndrt_rank ndrt_rank;

/* As sched_op of schedule/sched.h: forward; backward in one or in two halves,
 * input and weights; an update; messages. */
typedef enum {
    NDRT_F, NDRT_B, NDRT_I, NDRT_W, NDRT_U,
    NDRT_SEND_F, NDRT_RECV_F, NDRT_SEND_B, NDRT_RECV_B,
    NDRT_NACTIONS
} ndrt_action_kind;

/* Where a bucket lies in a device's arena (bytes from its start). The state
 * ranges have n floats, or n / size(zero) when partitioned. */
typedef struct ndrt_place {
    int bucket;
    size_t weights, grads, state1, state2;
} ndrt_place;

/* Rooms of the arena. The first is there once. The others are arrays of slots,
 * of which each microbatch in flight has one, for what a stage keeps of it: as
 * the spans of schedule/sched.h, until I, until W, from I to W. */
enum { NDRT_FIXED, NDRT_UNTIL_I, NDRT_UNTIL_W, NDRT_I_TO_W, NDRT_NROOMS };

typedef struct ndrt_spot {
    int room;
    size_t at;                    /* bytes; NDRT_NONE: not here */
} ndrt_spot;

/* Which weights a step runs on. A schedule that updates on its way (pipedream)
 * runs each microbatch on those that its forward found, at all times of its
 * life; one that is a step behind (pipedream_2bw) on those before the last
 * update. The older versions lie behind all else in the arena. */
typedef enum { NDRT_NEWEST, NDRT_STASHED, NDRT_BEHIND } ndrt_weights_kind;

/* One place along the pipeline. It runs one stage or several, and its ranks
 * hold the parameters of all of them, each once. */
typedef struct ndrt_device {
    size_t fixed_bytes;           /* of the arena; then its stages' slots */
    size_t temp_bytes;            /* of these, what no list leaves to others */
    int nplaces;
    const ndrt_place *places;     /* buckets on this device, ascending */
    int ncleared;
    const int *cleared;           /* parameters whose gradients are cleared
                                     before a step; all others are written
                                     first: see ndrt_rank.adds */
    const size_t *inputs;         /* per program input: byte offset, or
                                     NDRT_NONE */
    size_t loss;                  /* float: sum of the microbatch losses of
                                     this rank; NDRT_NONE if not here */
    size_t work, work_bytes;      /* for muon: room that nothing else needs
                                     between two steps */
    size_t scratch, scratch_bytes;   /* for one kernel at a time */
    size_t tile_bytes;            /* of each thread, beside the arena */
    size_t version_bytes;         /* of all weights, the arena's beginning,
                                     where there are versions; else 0 */
} ndrt_device;

/* run[NDRT_B] is always there; I and W, if gradients of inputs and of weights
 * can be taken apart. Where the stage before is on the same device, RECV_F
 * copies from its slot just before F and SEND_B to it just after B or I. */
typedef struct ndrt_stage {
    int device;
    size_t slot_bytes[NDRT_NROOMS - 1];
    const size_t *weights;        /* per program param: where the part that the
                                     stage has begins, or NDRT_NONE */
    const size_t *grads;
    const ndrt_spot *outputs;     /* per program output */
    void (*pre)(ndrt_rank *);     /* once per step, whole local batch */
    void (*run[NDRT_NACTIONS])(ndrt_rank *);   /* at rank->mb */
    bool fresh;                   /* `pre` reads weights that change within a
                                     step: it runs before F and before B */
    bool again;                   /* forward runs once more before backward,
                                     which finds what it reads there */
} ndrt_stage;
#define NDRT_NONE ((size_t)-1)

/* A value of the training data: the rows of this rank (sample axis cut by the
 * mesh, not by microbatch), all other axes whole. */
typedef struct ndrt_tensor {
    const char *name;             /* "tokens" */
    ndrt_dtype dtype;
    int naxes;
    const char *axis[NDRT_MAX_RANK];
    int extent[NDRT_MAX_RANK];
    int64_t cap[NDRT_MAX_RANK];   /* strides follow these, as for params */
} ndrt_tensor;

/* What integers an input may hold: [0, limit) and `ignore`. limit 0: all. */
typedef struct ndrt_range {
    int64_t limit, ignore;
} ndrt_range;

typedef enum { NDRT_DATA_NONE, NDRT_DATA_TEXT, NDRT_DATA_ARRAYS,
               NDRT_DATA_SYNTHETIC, NDRT_DATA_TOKENS } ndrt_data_kind;
typedef enum { NDRT_SGD, NDRT_ADAM, NDRT_ADAMW, NDRT_LION,
               NDRT_MUON } ndrt_optimizer;
typedef enum { NDRT_LR_CONST, NDRT_LR_COSINE, NDRT_LR_LINEAR,
               NDRT_LR_WSD } ndrt_lr_kind;

typedef struct ndrt_train {
    ndrt_data_kind data;
    const char *data_path;
    const char *eval_path;        /* NULL: part of the data is held out */
    int token_bytes;              /* of a token file: 1, 2 or 4 */
    ndrt_optimizer opt;
    ndrt_lr_kind lr_kind;
    double lr, lr_min;
    double beta1, beta2, eps, weight_decay, momentum;
    bool nesterov;
    int64_t ns_steps;             /* muon: Newton-Schulz steps */
    double adamw_ratio;           /* muon: rate of what AdamW updates / lr */
    int64_t warmup, steps;
    double decay_fraction;        /* wsd: the last part of the steps; 0 means
                                     0.2, negative: none */
    double clip;                  /* 0: off */
    uint64_t seed;
    int64_t eval_every, eval_batches;   /* 0 batches: all there are */
    int nmetrics;
    const int *metrics;           /* indices into program->outputs */
    const char *load_path, *load_prefix;
    int64_t save_every, keep;     /* checkpoints; 0: none, all are kept */
    const char *save_folder;
} ndrt_train;

/* ndrt_gemm_own and ndrt_gemm_bf16_own by what was compiled with the program
 * (ndrt_small.h); false: that is nothing for this product. */
typedef bool ndrt_small(bool acc, int64_t m, int64_t n, int64_t k,
                        const float *a, int64_t a_r, int64_t a_c,
                        const float *b, int64_t b_r, int64_t b_c,
                        float *c, int64_t c_r, int64_t c_c);
typedef bool ndrt_small_bf16(bool acc, int64_t m, int64_t n, int64_t k,
                             const uint16_t *a, int64_t a_r, int64_t a_c,
                             const uint16_t *b, int64_t b_r, int64_t b_c,
                             float *c, int64_t c_r, int64_t c_c);

typedef struct ndrt_program {
    const char *name;             /* "gpt" */
    const char *source;           /* "gpt.nd" */
    const bool *cpu;              /* NDRT_CPU, or NULL: any processor */
    ndrt_small *small;            /* or NULL, as the next */
    ndrt_small_bf16 *small_bf16;
    int nmesh;
    const char *const *mesh_name;
    const int *mesh_size;
    int pipe;                     /* mesh index of the pipeline axis, or -1 */
    int zero;                     /* mesh index, or -1 */
    int nmicro;
    int sample_extent;            /* extent id of the sample axis as inputs
                                     hold it, or -1 */
    const char *sample_axis;      /* "batch", or NULL */
    int nextents;
    const ndrt_extent *extents;
    int nparams;
    const ndrt_param *params;
    int nbuckets;
    const ndrt_bucket *buckets;
    int ninputs;
    const ndrt_tensor *inputs;
    const ndrt_range *ranges;     /* per input, or NULL: nothing is checked */
    int noutputs;
    const ndrt_tensor *outputs;   /* value of the current microbatch */
    int ndevices;
    const ndrt_device *devices;
    int nstages;
    const ndrt_stage *stages;
    ndrt_weights_kind weights;
    const char *schedule_name;    /* "1f1b" */
    const char *const *schedule;  /* a row per device: "0F0 0SEND_F0 ..." */
    int ngroups;
    const uint32_t *groups;       /* mesh masks used by collectives; the
                                     index is the group argument below */
    int nflights;                 /* tickets of calls in flight */
    bool early;                   /* stages call ndrt_gradients_done */
    int nmarks;                   /* kernels, if their ends are marked */
    const char *const *marks;
    uint64_t marks_key;           /* of another program, another one */
    uint32_t loss_sum;            /* mesh axes the loss is pending over */
    ndrt_train train;
} ndrt_program;

/* ---- what generated code reads ---------------------------------------- */

struct ndrt_rank {
    char *arena;
    char *weights;                /* those to run on: as the arena begins */
    char *room[NDRT_NROOMS];      /* at this stage and microbatch */
    const int64_t *off, *n;       /* per extent: first global index, length;
                                     those cut by NDRT_MICRO follow `mb`, those
                                     cut in stages `stage` */
    int rank, device;
    int stage, mb;                /* what is running */
    int64_t step;
    uint64_t seed;
    bool training;                /* dropout on */
    bool adds;                    /* the stage has made gradients since the last
                                     update, of another microbatch; if not,
                                     what comes first there writes them */
    int thread, nthreads;         /* which one of the team runs this; 0 and 1
                                     outside of a stage's functions */
    const ndrt_program *program;
    struct ndrt_state *state;     /* the runtime's own */
};

/* ---- a rank's team of threads ------------------------------------------
 *
 * All threads of the team run a stage's functions, each with its own double of
 * the rank. Loops share out their iterations and end with a barrier, and so do
 * products and copies; of a collective or a message the first thread takes
 * care. What is computed does not depend on the number of threads. */

typedef struct ndrt_span {
    int64_t from, to;
} ndrt_span;

/* This thread's part of [0, n), in steps of `grain`. */
ndrt_span ndrt_share(const ndrt_rank *r, int64_t n, int64_t grain);
/* Returns when all threads have come here. */
void ndrt_barrier(ndrt_rank *r);
/* memcpy and a memset to 0, shared out. They end with a barrier. */
void ndrt_copy(ndrt_rank *r, void *to, const void *from, size_t bytes);
void ndrt_clear(ndrt_rank *r, void *x, size_t bytes);

/* Of a program that can tell where its time goes: kernel `mark` ends here. */
void ndrt_mark(ndrt_rank *r, int mark);

/* Long sums over rows are made in NDRT_PARTS parts of the rows, each by one
 * thread; then the parts are added up in order. So it does not matter how many
 * threads there are. */
enum { NDRT_PARTS = 16 };
/* The rows of a part of [0, n). */
ndrt_span ndrt_rows_of(int64_t part, int64_t n);
/* n zeros for the sums of a part. Where the parts of these sums lie is `at`
 * floats into the device's scratch. */
float *ndrt_new_part(const ndrt_rank *r, int64_t at, int64_t part, int64_t n);
/* x[n] (+)= what the parts hold; shared out, without a barrier. acc: add to
 * x. */
void ndrt_add_parts(ndrt_rank *r, bool acc, float *x, int64_t at, int64_t n);

/* ---- what generated code calls ---------------------------------------- */

/* C[m,n] (+)= A[m,k] B[k,n]; element (i,j) of X lies at x + i*x_r + j*x_c.
 * Every matrix has one stride equal to 1, or is small. float, row order is
 * free. acc: add to C instead of overwriting. m, n or k of 0 is legal. */
void ndrt_gemm(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
               const float *a, int64_t a_r, int64_t a_c,
               const float *b, int64_t b_r, int64_t b_c,
               float *c, int64_t c_r, int64_t c_c);
/* The same of operands that are stored as bf16 or f16 (ndrt_math.h): products
 * of two are exact in float, and so are the sums as for float. */
void ndrt_gemm_bf16(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
                    const uint16_t *a, int64_t a_r, int64_t a_c,
                    const uint16_t *b, int64_t b_r, int64_t b_c,
                    float *c, int64_t c_r, int64_t c_c);
void ndrt_gemm_f16(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
                   const uint16_t *a, int64_t a_r, int64_t a_c,
                   const uint16_t *b, int64_t b_r, int64_t b_c,
                   float *c, int64_t c_r, int64_t c_c);

/* x, but at least lo and at most hi. */
static inline int64_t ndrt_clip(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* What the calling thread has for one tile: tile_bytes of the device. */
void *ndrt_tile_scratch(const ndrt_rank *r);

/* The same by the calling thread alone: for loops that are shared out. */
void ndrt_gemm_own(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
                   const float *a, int64_t a_r, int64_t a_c,
                   const float *b, int64_t b_r, int64_t b_c,
                   float *c, int64_t c_r, int64_t c_c);
void ndrt_gemm_bf16_own(ndrt_rank *r, bool acc, int64_t m, int64_t n,
                        int64_t k, const uint16_t *a, int64_t a_r,
                        int64_t a_c, const uint16_t *b, int64_t b_r,
                        int64_t b_c, float *c, int64_t c_r, int64_t c_c);
void ndrt_gemm_f16_own(ndrt_rank *r, bool acc, int64_t m, int64_t n, int64_t k,
                       const uint16_t *a, int64_t a_r, int64_t a_c,
                       const uint16_t *b, int64_t b_r, int64_t b_c,
                       float *c, int64_t c_r, int64_t c_c);

/* Rows of a product by groups: a nest of loops, and by how much x, y and the
 * group ids step along each. */
typedef struct ndrt_rows {
    int n;
    int64_t len[NDRT_MAX_RANK], x[NDRT_MAX_RANK], y[NDRT_MAX_RANK],
        id[NDRT_MAX_RANK];
} ndrt_rows;

typedef enum { NDRT_W32, NDRT_WBF16, NDRT_WF16 } ndrt_width;

/* The groups [first, first + n) and their matrices [in, out]: matrix k lies at
 * w + k*w_k, its element (i,j) at + i*w_i + j*w_o. A row of x has `in` elements
 * x_i apart, one of y `out` that are y_o apart. */
typedef struct ndrt_groups {
    ndrt_width width;             /* of x, and of w or g */
    int64_t first, n, in, out;
    int64_t w_k, w_i, w_o, x_i, y_o;
} ndrt_groups;

/* y[row, out] = x[row, in] w[id[row], in, out]; 0 where no group is here. */
void ndrt_grouped(ndrt_rank *r, const ndrt_rows *rows, const ndrt_groups *g,
                  const void *x, const void *w, const int32_t *id, float *y);
/* w[k, in, out] (+)= the sum of x[row, in] y[row, out] over the rows of id k,
 * in the order of the rows. acc: add to w. */
void ndrt_grouped_sum(ndrt_rank *r, bool acc, const ndrt_rows *rows,
                      const ndrt_groups *g, const void *x, const void *y,
                      const int32_t *id, float *w);

/* Rows of `len` elements of `width` bytes that go to the members of the group
 * that hold their experts: of `rows`, x is where a row lies. `extent` is that
 * of the axis along which they lie where they go, in room for `room` rows; ids
 * say there where the rows end. */
typedef struct ndrt_travel {
    int group, extent;
    int64_t experts, room, len;
    size_t width;
    bool ids;
} ndrt_travel;
#define NDRT_NO_ROW INT32_MIN

/* y, packed: the rows whose experts this rank holds. Sets n of the extent. */
void ndrt_dispatch(ndrt_rank *r, const ndrt_travel *t, const ndrt_rows *rows,
                   const void *x, const int32_t *id, void *y);
/* x: its rows, back from y, where dispatch would send them. */
void ndrt_combine(ndrt_rank *r, const ndrt_travel *t, const ndrt_rows *rows,
                  const void *y, const int32_t *id, void *x);
/* n of the extent, once more as it was when these ids arrived. */
void ndrt_arrived(ndrt_rank *r, int extent, int64_t room, const int32_t *id);

/* What a reduction makes of the members' numbers. Integers wrap around. */
typedef enum {
    NDRT_SUM, NDRT_MAX,           /* of floats */
    NDRT_SUM_I32, NDRT_MAX_I32,
    NDRT_SUM_I64, NDRT_MAX_I64
} ndrt_fold_kind;

/* In place, over the group's ranks, summed in rank order: the same bits on
 * every rank and every communicator. n elements of 4 bytes, or 8 of i64. */
void ndrt_all_reduce(ndrt_rank *r, int group, void *x, int64_t n,
                     ndrt_fold_kind how);

/* Pieces of one axis. The whole is [outer, sum of n_i, inner]; member i of the
 * group (in coordinate order) holds n_i = n[i]. x is packed [outer, whole,
 * inner] on every rank for reduce_scatter and packed [outer, n_me, inner] for
 * all_gather; y is the other one. Strides in elements are given for both, so
 * that storage with spare room can be used: x_o, y_o step `outer`, `inner`
 * elements are contiguous and the axis steps by `inner`. */
void ndrt_reduce_scatter(ndrt_rank *r, int group, const float *x, int64_t x_o,
                         float *y, int64_t y_o, int64_t outer,
                         const int64_t *n, int64_t inner, ndrt_fold_kind how);
void ndrt_all_gather(ndrt_rank *r, int group, const float *x, int64_t x_o,
                     float *y, int64_t y_o, int64_t outer, const int64_t *n,
                     int64_t inner);
/* Two axes change places as the one that the group cuts. The whole is [outer,
 * P, mid, Q, inner bytes], all packed; member i holds p[i] of P or q[i] of Q.
 * x is [.., p[me], .., whole Q, ..] and y [.., whole P, .., q[me], ..] if it
 * joins_first; the other way round if not. */
void ndrt_all_to_all(ndrt_rank *r, int group, const void *x, void *y,
                     int64_t outer, const int64_t *p, int64_t mid,
                     const int64_t *q, int64_t inner, bool joins_first);
/* The n_i that those take, for extent `e` cut last by the group's axis:
 * writes one length per member (at the current microbatch). */
void ndrt_pieces(const ndrt_rank *r, int group, int extent, int64_t *n);

/* y becomes the x of the member `by` places further, around the group. */
void ndrt_shift_ring(ndrt_rank *r, int group, int by, const void *x, void *y,
                     size_t bytes);

/* The same calls, which another thread of the rank makes where there is one
 * (--overlap), while the caller goes on; until ndrt_wait has returned, nobody
 * writes what they read or touches what they write. A ticket is a number below
 * program->nflights, and free again then. All ranks start the same calls in the
 * same order. */
void ndrt_start_all_reduce(ndrt_rank *r, int ticket, int group, void *x,
                           int64_t n, ndrt_fold_kind how);
void ndrt_start_reduce_scatter(ndrt_rank *r, int ticket, int group,
                               const float *x, int64_t x_o, float *y,
                               int64_t y_o, int64_t outer, const int64_t *n,
                               int64_t inner, ndrt_fold_kind how);
void ndrt_start_all_gather(ndrt_rank *r, int ticket, int group, const float *x,
                           int64_t x_o, float *y, int64_t y_o, int64_t outer,
                           const int64_t *n, int64_t inner);
void ndrt_start_all_to_all(ndrt_rank *r, int ticket, int group, const void *x,
                           void *y, int64_t outer, const int64_t *p,
                           int64_t mid, const int64_t *q, int64_t inner,
                           bool joins_first);
void ndrt_start_shift_ring(ndrt_rank *r, int ticket, int group, int by,
                           const void *x, void *y, size_t bytes);
void ndrt_wait(ndrt_rank *r, int ticket);

/* The calling stage's backward function, of this microbatch, will not touch the
 * gradients of these parameters again, or those of the stage's iteration
 * `layer` of them: if it is the last microbatch, they may be added up over the
 * ranks. */
void ndrt_gradients_done(ndrt_rank *r, const int *params, int n,
                         int64_t layer);
enum { NDRT_WHOLE = -1 };

/* The room of another stage of this device, at the same microbatch. */
char *ndrt_room(const ndrt_rank *r, int stage, int room);

/* Rendezvous with the rank that runs stage `stage` (same other coordinates).
 * Blocks until the peer has taken, or given, the bytes. */
void ndrt_send(ndrt_rank *r, int stage, const void *x, size_t bytes);
void ndrt_recv(ndrt_rank *r, int stage, void *x, size_t bytes);

int ndrt_main(const ndrt_program *p, int argc, char **argv);

#endif
