/* kir.h - the kernel IR: a loop kernel as data, which printers print.
 *
 *   kernel softmax_fwd(s: read, p: written)
 *   for batch, seq                                  a row for each
 *       for kv        %0 = load s[batch * 65536 + seq * 256 + kv]
 *                     fold 0 max %0
 *       row           %1 = total 0
 *       for kv        %2 = load s[batch * 65536 + seq * 256 + kv]
 *                     %3 = map sub %2, %1
 *                     %4 = map exp %3
 *                     fold 1 sum %4
 *                     keep 0 %4
 *       ...
 *
 * kir_build.c makes it of an nd_kernel, kir_check.c says whether it is sound,
 * kir_c.c prints it as C and the files of llvm/ as LLVM IR.
 *
 * Instructions are numbered through the kernel, in the order in which they run.
 * Those of rows run once for each index of the outer axes; those of a pass once
 * for each index of the inner axes too. What a row computes is there until its
 * end, what a pass computes is there in that iteration.
 *
 * What a pass folds goes into KIR_LANES partial results: element i of the
 * innermost axis into lane i % KIR_LANES, lanes in a fixed tree at the end. So
 * the bits of a sum depend neither on the compiler nor on the vectors of the
 * machine.
 */
#ifndef ND_KIR_H
#define ND_KIR_H

#include "codegen.h"

enum { KIR_LANES = 16, KIR_NIN = 3 };

typedef enum {
    /* values */
    KIR_CONST,                       /* num */
    KIR_INDEX,                       /* of loop `slot`, global: i32 */
    KIR_ITER,                        /* of the repeat around it: i32 */
    KIR_LOAD,
    KIR_AT,                          /* in[0] - where extent `slot` begins on
                                        this rank: i64 */
    KIR_PICK,                        /* a load; 0 if in[0], an `at`, is not an
                                        index of extent `slot` */
    KIR_KEPT,                        /* of kept row `slot` */
    KIR_TOTAL,                       /* of fold `slot`, after its pass */
    KIR_SCAN,                        /* fold `slot` with in[0], so far */
    KIR_MAP,                         /* sub: a row of ops.def */
    KIR_CAST,
    KIR_MASK, KIR_NORMAL,            /* random numbers of stream `draw` */
    /* effects */
    KIR_STORE,                       /* in[0] */
    KIR_ADD,                         /* sub: a reduction; what lies there with
                                        in[0]; if in[1], an `at`, is an index
                                        of extent `slot` */
    KIR_KEEP,                        /* in[0] in kept row `slot` */
    KIR_FOLD,                        /* in[0] into fold `slot` */
    KIR_NOPS
} kir_op;

/* index * stride; the index is loop + shift modulo size (size 0: loop), the
 * value of `inst`, or without both the number `shift`. */
typedef struct kir_term {
    int loop, inst;                  /* or -1 */
    int64_t shift, size;
    nd_len stride;
} kir_term;

typedef struct kir_place {           /* an element in memory */
    int param;
    int n;
    kir_term *term;
} kir_place;

/* A stream of random numbers: its name's hash, moved on for each iteration of
 * `repeat`; an element's number is its row-major index in the whole value. */
typedef struct kir_draw {
    uint32_t stream;
    nd_op *repeat;                   /* or NULL */
    int n;
    int loop[ND_MAX_RANK];           /* the last one runs fastest */
} kir_draw;

/* Does the C text name it? */
typedef enum {
    KIR_PART,                        /* never: it is part of an expression */
    KIR_LONG,                        /* if it is long, or used again */
    KIR_OWN,                         /* wherever it is used */
    KIR_NOW                          /* always: what it reads may change */
} kir_naming;

typedef struct kir_inst {
    kir_op op;
    nd_dtype type;                   /* of the result, or of what is stored */
    int sub, slot;
    int nin, in[KIR_NIN];
    double num;
    bool once;                       /* a load, an `at`: the same in a row */
    kir_naming naming;
    const nd_value *value;           /* what it would be called after */
    int uses;                        /* by values and effects */
    bool read;                       /* by more than stores */
    kir_place *place;
    kir_draw *draw;
    nd_op *repeat;
} kir_inst;

typedef struct kir_loop {
    nd_axis *axis;
    int ext;
    bool inner;
    bool once;                       /* outer, of one position: no loop */
} kir_loop;

typedef struct kir_fold {
    int pass, red;
    nd_dtype type;
    bool scan;                       /* a running sum: in order, not in lanes */
    const nd_value *value;
} kir_fold;

typedef struct kir_kept {            /* scratch for the indices of a row */
    nd_dtype type;
    const nd_value *value;
} kir_kept;

typedef struct kir_clear {           /* before all rows: of a reduction */
    int param, red;
    nd_len n;
} kir_clear;

/* What is summed in parts of the rows, NDRT_PARTS of them: while rows run, the
 * part's sum stands for the parameter. */
typedef struct kir_part {
    int param;
    nd_len n;                        /* elements */
    int64_t at;                      /* floats of scratch in front of it */
    bool acc;                        /* added to what is there ... */
    bool first;                      /* unless it is the first in a step */
} kir_part;

/* Instructions [row, body) in the row, [body, after) in loops over the inner
 * axes, [after, end) in the row again. */
typedef struct kir_pass {
    int row, body, after, end;
    bool serial;                     /* no two iterations at once */
} kir_pass;

typedef struct kir_param {
    cg_target to;
    bool written;
    int shares;                      /* written in place of another parameter,
                                        or that one: the other one; or -1 */
} kir_param;

typedef struct kir_kernel {
    nd_kernel *from;
    bool backwards;                  /* the inner loops run so */
    int nloops, ninner;              /* outer loops, then inner ones */
    kir_loop loop[2 * ND_MAX_RANK];
    ND_VEC(kir_param) params;
    ND_VEC(nd_op *) iters;           /* repeats whose iteration it takes */
    nd_share share;                  /* who runs which iterations */
    ND_VEC(kir_clear) clears;
    ND_VEC(kir_part) parts;
    ND_VEC(kir_fold) folds;
    ND_VEC(kir_kept) kept;
    ND_VEC(kir_pass) passes;
    ND_VEC(kir_inst) inst;
} kir_kernel;

/* ---- kir_build.c --------------------------------------------------------- */

kir_kernel *kir_build(cg *g, nd_kernel *k);
/* A value outside of all loops; *at becomes its instruction. */
kir_kernel *kir_build_scalar(cg *g, const nd_value *v, int *at);

/* ---- kir_check.c --------------------------------------------------------- */

/* What is wrong with it, so that no printer may have it; or NULL. */
const char *kir_check(cg *g, const kir_kernel *k);

/* ---- kir_text.c: what instructions compute, as C over $0, $1, $2 --------- */

const char *kir_map_text(const kir_inst *x);
const char *kir_cast_text(nd_arena *a, nd_dtype from, nd_dtype to);
const char *kir_combine_text(int red, nd_dtype t);   /* $0 (+, max, min) $1 */
const char *kir_identity_text(nd_arena *a, int red, nd_dtype t);

/* ---- kir_c.c ------------------------------------------------------------- */

/* The function, with its comment, in g->out; or, if it is not made of C, its
 * declaration. `out`, which has the name that it would like, learns how to call
 * it. */
void kir_print_c(cg *g, kir_kernel *k, cg_kernel *out, bool declare);
/* Does another parameter of the function point there too? */
bool kir_shares(const cg_kernel *k, const cg_target *to);
/* An instruction of kir_build_scalar as an expression. */
const char *kir_scalar_c(cg_fn *f, kir_kernel *k, int at);

#endif
