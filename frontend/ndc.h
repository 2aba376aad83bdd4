/* ndc.h - PUBLIC: the compiler as a library call.
 *
 *   ndc_options o = {.file = "gpt.nd", .out = "gpt"};
 *   int status = ndc_compile(&o);
 *
 * Messages go to stderr, or to `sink`. Nothing is written to `out` unless the
 * whole compilation succeeds.
 */
#ifndef NDC_H
#define NDC_H

#include <stdbool.h>
#include <stdio.h>

#define NDC_VERSION "0.1"

typedef enum {
    NDC_EXE,                         /* build an executable */
    NDC_CHECK,                       /* run all passes, write nothing */
    NDC_AST,                         /* the syntax tree */
    NDC_IR,                          /* the graph, as the program says it */
    NDC_VALUES,                      /* what it computes on one device */
    NDC_SPMD,                        /* the graph after all passes */
    NDC_SCHEDULE,                    /* the pipeline's timeline */
    NDC_SCHEDULE_CSV,                /* its computations, as a file */
    NDC_SCHEDULE_COMMS,              /* ... with messages */
    NDC_SCHEDULE_SVG,                /* a picture of it */
    NDC_SCHEDULE_JSON,               /* ... for trace viewers */
    NDC_C,                           /* the generated program */
    NDC_LLVM,                        /* its kernels as LLVM IR */
    NDC_ASM,                         /* ... as assembly */
    NDC_PLAN,                        /* memory, communication, bubble */
    NDC_COMM,                        /* every collective, its bytes and time */
    NDC_KERNELS,                     /* what each kernel reads and writes */
    NDC_ROOFLINE                     /* ... and how far it is from its limit */
} ndc_emit;

enum { NDC_SEVERITY_ERROR = 3 };     /* of a message to a sink; less: lighter */
enum { NDC_OK = 0, NDC_BAD_INPUT = 1, NDC_BAD_USAGE = 2, NDC_BUG = 3 };

typedef struct ndc_options {
    const char *file;                /* .nd, or .ndir: the printed graph */
    const char *out;                 /* NULL: stdout; executables: the stem */
    ndc_emit emit;
    const char *mesh;                /* "dp=2,tp=4": sizes of mesh axes */
    const char *model;               /* NULL: the one that `train` names */
    const char *plan;                /* file whose plan block is used */
    int nset;
    const char *const *set;          /* "axis=N" */
    const char *dump_after;          /* pass name or "all": to stderr */
    const char *until;               /* last pass to run, for NDC_IR */
    bool require_even;               /* a size that does not divide is an
                                        error */
    const char *times;               /* file of measured times of the stages */
    const char *kernels;             /* for NDC_EXE: "c", the default, or
                                        "llvm" */
    const char *cpu;                 /* for NDC_EXE: "x86-64-v3", or another
                                        -march; NULL: native */
    const char *rank;                /* for NDC_COMM; NULL: the first ones */
    const char *profile;             /* for NDC_ROOFLINE: what a run wrote */
    bool marks;                      /* the program can write that */
    bool verify_each;                /* verify after every pass */
    bool werror;                     /* a warning fails the compilation */
    void (*sink)(void *user, int severity, const char *text);
    void *sink_user;
} ndc_options;

int ndc_compile(const ndc_options *o);          /* NDC_OK ... NDC_BUG */
/* "ir" -> NDC_IR; -1 if --emit knows no such form. */
int ndc_emit_find(const char *name);
void ndc_list_ops(FILE *out);
void ndc_list_passes(FILE *out);
/* The candidate that is spelled most like `name`, or NULL. */
const char *ndc_nearest(const char *name, const char *const *cand, int n);

/* ---- verifying a plan ---------------------------------------------------- */

typedef struct ndc_verify_options {
    const char *file;                /* a program (.nd) */
    const char *mesh, *model, *plan; /* as in ndc_options */
    int nset;
    const char *const *set;
    bool all;                        /* meshes of all small sizes */
    bool keep_sizes;                 /* do not shrink the axes */
} ndc_verify_options;

/* Proves on simulated ranks that the plan computes what one device computes;
 * a table to stdout. NDC_BAD_INPUT if it does not, or cannot be kept. */
int ndc_verify(const ndc_verify_options *o);

/* ---- where the time goes ------------------------------------------------- */

typedef struct ndc_roofline_options {
    ndc_options build;               /* of a program (.nd); `out`: of the text,
                                        NULL: stdout; `profile`: keep the run's,
                                        NULL: do not */
    const char *steps, *threads, *data;      /* of the run; NULL: 5 steps, the
                                        others as the program has them */
    int nrun;
    char *const *run;                /* more options of the run, as its command
                                        line has them */
} ndc_roofline_options;

/* Builds, runs, and tells how far each kernel is from its limit. */
int ndc_roofline(const ndc_roofline_options *o);

/* ---- formatting ---------------------------------------------------------- */

typedef struct ndc_fmt_options {
    const char *file;                /* "-": stdin, written to stdout */
    bool check;                      /* print the name of a file that would */
                                     /* change, which is NDC_BAD_INPUT */
    bool to_stdout;
} ndc_fmt_options;

int ndc_fmt(const ndc_fmt_options *o);

/* ---- the reference ------------------------------------------------------- */

typedef enum {
    NDC_DOC_FUNCTIONS,               /* of the library or of `file` */
    NDC_DOC_FORMS,                   /* operators and built-in functions */
    NDC_DOC_KEYWORDS, NDC_DOC_BUILTINS       /* the words alone */
} ndc_doc_kind;

typedef struct ndc_doc_options {
    ndc_doc_kind kind;
    const char *file;                /* NULL: the library */
    const char *name;                /* one function, with its body */
    bool markdown;
} ndc_doc_options;

int ndc_doc(const ndc_doc_options *o);       /* to stdout */

/* ---- pipeline schedules -------------------------------------------------- */

typedef struct ndc_schedule_options {
    const char *what;                /* "1f1b", "interleaved(2)", or a file:
                                        its name has a dot or a slash */
    const char *ranks, *microbatches;        /* numbers; of a file: its own */
    const char *costs;               /* "F,I,W" or "F,I,W,MESSAGE": times of all
                                        stages; NULL: 1,1,1,0 */
    const char *times;               /* instead: a file that a program wrote */
    const char *room;                /* of auto: microbatches of one stage that
                                        a rank may hold; NULL: any number */
    const char *emit;                /* timeline (NULL), figures, csv, comms,
                                        svg or json */
    const char *out;                 /* NULL: stdout */
    bool list;                       /* the schedules that have a name */
} ndc_schedule_options;

/* Makes or reads a schedule, proves it and shows it. */
int ndc_schedule(const ndc_schedule_options *o);

#endif
