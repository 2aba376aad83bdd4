/* sched.h - pipeline schedules as data: what each rank of a pipeline does, in
 * which order. READ FIRST for everything in this folder.
 *
 *   rank 0   0F0 0F1 .. 0B0 0B1        <stage><action><microbatch>
 *   rank 1   1F0 1B0 1F1 1B1
 *
 * The model's chain of ops is cut into stages; each stage runs on one rank, a
 * rank has one or several. A schedule is made (make_*.c), or read from text
 * (text.c); given messages (lower.c); proved (check.c); timed (time.c); drawn.
 * The compiler and the runtime share this folder. It knows neither models nor
 * communicators, and needs the C library alone.
 *
 * Memory: a sched owns all that it points to; sched_free. Functions that can
 * fail return false (or NULL) and say why in *err. Times are in any unit, the
 * same for all: slots for the textbook pictures, seconds for real models.
 */
#ifndef SCHED_H
#define SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- actions ------------------------------------------------------------- */

/* B is I and W at once. I: gradients of the stage's input; W: of its weights.
 * U: the update of an asynchronous schedule. SEND_F, RECV_F: activations to the
 * next stage, from the one before. SEND_B, RECV_B: gradients the other way. */
typedef enum {
    SCHED_F, SCHED_B, SCHED_I, SCHED_W, SCHED_U,
    SCHED_SEND_F, SCHED_RECV_F, SCHED_SEND_B, SCHED_RECV_B,
    SCHED_NOPS
} sched_op;
extern const char *const sched_op_name[SCHED_NOPS];    /* "F", "SEND_F" */

typedef struct sched_action {
    sched_op op;
    int stage, mb;
    bool joined;                 /* with the next action: one cell (0F1;3B0) */
    double start, end;           /* set by sched_time */
} sched_action;

static inline bool sched_is_compute(sched_op op) { return op <= SCHED_U; }
/* Gives what goes back to the stage before. */
static inline bool sched_is_back(sched_op op)
{
    return op == SCHED_B || op == SCHED_I;
}
/* "2F3"; of each thing alone, also where it is joined with the next. */
enum { SCHED_NAME = 40 };
const char *sched_name(sched_action a, char buf[SCHED_NAME]);

typedef struct sched_row {
    sched_action *v;
    int n, cap;
} sched_row;

/* ---- kinds --------------------------------------------------------------- */

typedef enum {
#define SCHED(id, ...) SCHED_KIND_##id,
#include "sched.def"
#undef SCHED
    SCHED_NKINDS,
    SCHED_KIND_AUTO = SCHED_NKINDS,  /* searched for */
    SCHED_KIND_FILE                  /* read */
} sched_kind;

typedef enum { SCHED_LOOP, SCHED_VEE } sched_where;

typedef struct sched_info {
    const char *name;
    int v;                       /* 0: the user says */
    sched_where where;
    const char *traits, *doc;
} sched_info;
extern const sched_info sched_kinds[SCHED_NKINDS];
bool sched_has(sched_kind k, char trait);        /* false for AUTO, FILE */

/* ---- a schedule ---------------------------------------------------------- */

typedef struct sched {
    char name[64];               /* "interleaved(2)", or the file's name */
    int ranks, stages, micro;
    int *rank_of;                /* by stage */
    sched_row *row;              /* by rank */
    bool lowered;                /* has its messages */
} sched;

/* Empty rows; rank_of as `where` says. NULL: no memory. */
sched *sched_new(const char *name, int ranks, int stages, int micro,
                 sched_where where);
void sched_free(sched *s);
void sched_push(sched *s, int rank, sched_op op, int stage, int mb);
sched *sched_copy(const sched *s);

/* What is wrong, and where: rank < 0: nowhere. `at` is an index into the row.
 * The message names the action, the rule and, where there are any, legal
 * values. */
typedef struct sched_error {
    char text[400];
    int rank, at;
} sched_error;
bool sched_fail(sched_error *err, int rank, int at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));       /* always false */

/* What crosses the boundary between stage s and s + 1: bits of cross[s]. NULL
 * means both everywhere. Nothing crosses, no message, no dependence. Stages on
 * one rank hand over without a message. */
enum { SCHED_AHEAD = 1, SCHED_BACK = 2 };
bool sched_crosses(const sched *s, const uint8_t *cross, int stage, int bit);
/* The neighbour whose F (of an F), or B or I (of a B or I) makes what `a`
 * reads; -1: none does. */
int sched_source(const sched *s, const uint8_t *cross, sched_action a);
/* A message's other end: SEND_F of stage s is RECV_F of s + 1. */
sched_action sched_other_end(sched_action a);

/* ---- costs --------------------------------------------------------------- */

/* By stage, all of length `stages`; NULL: 1 for f, i, w; 0 for others. */
typedef struct sched_costs {
    const double *f, *i, *w;     /* F, I, W; B takes i + w */
    const double *ahead, *back;  /* a message from stage s to s + 1, to s - 1 */
    /* What a microbatch keeps on the stage, in any unit (bytes): from F until I
     * or B; from F until W or B; from I until W. */
    const double *until_i, *until_w, *i_to_w;
    const uint8_t *cross;        /* see above; stages - 1 of them, or NULL */
} sched_costs;

/* Costs in seconds that a program has measured, one row per stage after the
 * line "stage,F,I,W,B,ahead,back". Errors name row and column. free(out->v). */
typedef struct sched_measured {
    int stages;
    sched_costs costs;           /* within v; says nothing of memory */
    double *v;
} sched_measured;
bool sched_times_read(const char *text, size_t n, sched_measured *out,
                      sched_error *err);

/* ---- making -------------------------------------------------------------- */

typedef struct sched_ask {
    sched_kind kind;
    int ranks, v, micro;         /* v: stages per rank; 0: the kind's own, 1
                                    for AUTO */
    /* AUTO alone. */
    sched_where where;
    const sched_costs *costs;    /* NULL: all 1 */
    const double *room;          /* by rank: what all stages of it may keep;
                                    NULL: no limit */
    bool slots;                  /* ... counted as the sum over stages and spans
                                    of sched_slots, which is enough for any
                                    layout; not the most kept at a moment */
    bool whole;                  /* B only: the program has no I and W */
    bool quick;                  /* those with names, and rules; for many
                                    questions of which one is asked in full */
    bool sync;                   /* a sum over all ranks (clipping) stands
                                    between the last gradient and the update:
                                    the time until the last rank ends counts;
                                    else the longest from a rank's start to its
                                    end, for the next step may follow at once */
} sched_ask;

/* Computations alone, in order. NULL and *err if the kind cannot have these
 * numbers: the text names the rule and the legal values. */
sched *sched_make(const sched_ask *ask, sched_error *err);
/* The one that takes least time of what is asked for: asks of other placements,
 * v or kinds, each with costs of its own stages. NULL if none can be made; *err
 * is of the first. */
sched *sched_make_best(const sched_ask *asks, int n, int *which,
                       sched_error *err);
/* What sched_make_best compares; INFINITY: the ranks wait for each other. */
double sched_step_time(sched *s, const sched_ask *ask);
/* Those rules alone: false and *err where sched_make would refuse. */
bool sched_legal(const sched_ask *ask, sched_error *err);
/* "1f1b", "interleaved(2)": false if there is no such schedule. */
bool sched_parse_name(const char *text, sched_kind *kind, int *v);
/* How many stages a rank has, and where a stage is, for a kind and v. */
int sched_per_rank(sched_kind kind, int v);
int sched_rank_of(sched_where where, int ranks, int stage);

/* ---- messages, proofs ---------------------------------------------------- */

/* Inserts the messages in pairs, in simulated time. */
bool sched_lower(sched *s, const sched_costs *costs, sched_error *err);
/* Is it right? Complete, in order, without deadlock under rendezvous, first in
 * first out on each channel. Of computations alone, or with messages. */
bool sched_check(const sched *s, const uint8_t *cross, sched_error *err);
/* What crosses, as far as a schedule with messages says it: stages - 1 of them;
 * between stages of one device anything may. */
void sched_crossings(const sched *s, uint8_t *cross);
/* The table around what is wrong, as text that the caller frees. */
char *sched_table_around(const sched *s, const sched_error *err);

/* Microbatches of a stage live in slot mb % n from one action until another
 * (B is both I and W). In a schedule with messages, what is received and not
 * used yet lives, and so does a gradient that is not sent yet. The least n, for
 * the three spans of sched_costs. */
typedef enum { SCHED_UNTIL_I, SCHED_UNTIL_W, SCHED_I_TO_W,
               SCHED_NSPANS } sched_span;
int sched_slots(const sched *s, int stage, sched_span span);

/* A place for everything that microbatches keep, device by device, given the
 * bytes of a slot by stage. By (stage * micro + mb) * SCHED_NSPANS + span: how
 * far it is from where the device's slots begin, and the number of the slot on
 * the device; slot -1 and 0 bytes where the stage keeps nothing. */
typedef struct sched_rooms {
    size_t *at;
    int *slot;
    int *slots;                  /* by device: how many there are */
    size_t *bytes;               /* by device */
} sched_rooms;
bool sched_rooms_new(const sched *s, const size_t (*bytes)[SCHED_NSPANS],
                     sched_rooms *out);          /* false: no memory */
void sched_rooms_free(sched_rooms *r);
/* Its bytes on one device. */
size_t sched_rooms_bytes(const sched *s, int device,
                         const size_t (*bytes)[SCHED_NSPANS]);
/* Proves that nobody overwrites what is still needed, in slots that do not
 * overlap. */
bool sched_check_rooms(const sched *s, const size_t (*bytes)[SCHED_NSPANS],
                       const sched_rooms *r, sched_error *err);
/* Are n enough? Names the action that overwrites what is still needed. */
bool sched_check_slots(const sched *s, int stage, sched_span span, int n,
                       sched_error *err);

/* By microbatch, how many updates (U) of the stage stand before its F: the
 * version of the weights that F and all of its backward run on. Returns how
 * many versions the stage holds at once; without U that is 1. */
int sched_versions(const sched *s, int stage, int *of);
/* Are n enough? Names the action whose version is gone. */
bool sched_check_versions(const sched *s, int stage, int n, sched_error *err);

/* ---- time ---------------------------------------------------------------- */

typedef struct sched_rank_time {
    double busy, first, last;    /* computing; first start, last end */
    double kept;                 /* peak of what its stages keep, in the units
                                    of the costs; at the beginning of an action
                                    what it makes is there, at its end what it
                                    frees is gone */
    int chunks;                  /* peak of microbatches held, over all stages
                                    of the rank, until W or B */
} sched_rank_time;

typedef struct sched_times {
    double makespan;
    double ideal;                /* the busiest rank's work */
    double bubble_ideal;         /* (makespan - ideal) / ideal */
    double bubble_total;         /* (makespan - mean busy) / makespan */
    int64_t messages;
    sched_rank_time *rank;       /* free() it */
} sched_times;

/* Sets start and end of all actions. An action starts when its rank is free and
 * its operands are there; a message is under way beside computation and takes
 * its time from when it was made. False if the ranks wait for each other. */
bool sched_time(sched *s, const sched_costs *costs, sched_times *out,
                sched_error *err);

/* How long an action takes. */
double sched_takes(const sched_costs *costs, const sched_action *a);
/* What an action adds to what its stages keep when it begins; less, what it
 * frees when it ends. */
double sched_keeps(const sched_costs *costs, const sched_action *a);
double sched_frees(const sched_costs *costs, const sched_action *a);

/* ---- text and pictures --------------------------------------------------- */

/* A growing text; free(t.s). */
typedef struct sched_text {
    char *s;
    size_t n, cap;
} sched_text;
void sched_put(sched_text *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* One row per rank, cells "2F0", "1SEND_F3", "(0F7;7B3)OVERLAP_F_B". Separated
 * by `,` or spaces; empty ones are idle and, like "0UNSHARD", "0RESHARD" and
 * "0REDUCE_GRAD", skipped. Where a B has a W beside it, B means I. */
sched *sched_read(const char *text, size_t n, const char *name,
                  sched_error *err);
/* As CSV: computations alone, with an empty cell for an idle slot if their
 * times are whole numbers; or all there is. */
void sched_write(const sched *s, bool compute, sched_text *out);
/* One row's actions, separated by spaces. */
void sched_write_row(const sched *s, int rank, sched_text *out);
/* Of schedules that sched_time has timed. `seconds`: of a unit of time; 0: the
 * times are slots. For a terminal: */
void sched_draw(const sched *s, const sched_times *t, double seconds,
                sched_text *out);
/* What it comes to on each rank. */
void sched_figures(const sched *s, const sched_times *t, double seconds,
                   sched_text *out);
/* The first line of both alone. */
void sched_headline(const sched *s, const sched_times *t, double seconds,
                    sched_text *out);
/* With the memory over time, where costs say what is kept; or NULL. */
void sched_svg(const sched *s, const sched_times *t, const sched_costs *costs,
               double seconds, sched_text *out);
/* Events for Chrome's and Perfetto's trace viewers. */
void sched_trace(const sched *s, const sched_costs *costs, double seconds,
                 sched_text *out);
/* The same, piece by piece: copies of one schedule, counted from 0, each with
 * times of its own. */
void sched_trace_begin(sched_text *out);
void sched_trace_copy(const sched *s, const sched_costs *costs, double seconds,
                      int copy, sched_text *out);
void sched_trace_end(sched_text *out);
/* "12 slots", "3.05 ms" */
void sched_put_time(sched_text *t, double time, double seconds);

#endif
