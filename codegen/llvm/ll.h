/* ll.h - kernels as LLVM IR: what the files of this folder share.
 *
 * The innermost axis of a pass runs in vectors of KIR_LANES elements, the last
 * one behind a mask; where elements depend on each other, it runs one by one.
 * What an instruction computes is C text in both printers (ops.def, and the
 * functions of runtime/ndrt_math.h): ll_math.c makes LLVM instructions of it.
 *
 * LLVM itself is a library of 120 MB, which is opened only if kernels are made
 * by it.
 */
#ifndef ND_LL_H
#define ND_LL_H

#include "../kir.h"
#include "../../runtime/ndrt.h"

#include <llvm-c/Analysis.h>
#include <llvm-c/Core.h>
#include <llvm-c/Error.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <llvm-c/Transforms/PassBuilder.h>

typedef struct ll_api {              /* llvm->BuildAdd is LLVMBuildAdd */
#define LL(name) __typeof__(LLVM##name) *name;
#include "ll.def"
#undef LL
} ll_api;

/* ll_load.c. NULL after an error: there is none to open. */
const ll_api *ll_open(nd_ctx *ctx);

/* ---- numbers as C has them ----------------------------------------------- */

typedef enum {
    LL_BOOL, LL_U16, LL_I32, LL_U32, LL_I64, LL_U64, LL_F32, LL_F64,
    LL_NULL,                         /* a null pointer */
    LL_TABLE                         /* an array of u32 */
} ll_type;

typedef struct ll_value {
    LLVMValueRef v;                  /* with `vec` a vector of KIR_LANES */
    ll_type type;
    bool vec;
} ll_value;

typedef struct ll_env ll_env;        /* of a C function that is evaluated */
typedef struct ll_text ll_text;      /* ndrt_math.h, in tokens */

typedef struct ll {                  /* the module under construction */
    const ll_api *api;
    cg *g;
    LLVMContextRef c;
    LLVMModuleRef m;
    LLVMBuilderRef b;
    LLVMTypeRef i1, i8, i16, i32, i64, f32, f64, ptr, nothing;
    LLVMValueRef fn;                 /* the function under construction */
    ll_text *math;
    const char *macros;              /* that C has for this processor */
    const char *wrong;               /* why it cannot be made, or NULL */
} ll;

/* ---- ll_math.c ----------------------------------------------------------- */

/* The value of C text over $0, $1 ...; operands that are no vectors are spread
 * where others are. */
ll_value ll_eval(ll *x, const char *text, const ll_value *arg);

/* ---- ll_value.c ---------------------------------------------------------- */

ll_value ll_convert(ll *x, ll_value v, ll_type to);
ll_value ll_spread(ll *x, ll_value v);           /* as a vector */
LLVMTypeRef ll_type_of(ll *x, ll_type t, bool vec);
ll_value ll_int(ll *x, ll_type t, int64_t v);
LLVMValueRef ll_call(ll *x, const char *intrinsic, int ntypes,
                     LLVMTypeRef *types, int n, LLVMValueRef *arg);

/* ---- ll_kernel.c, ll_expr.c, ll_flow.c ----------------------------------- */

typedef struct ll_kernel {
    ll *x;
    const cg_kernel *c;              /* as the C part calls it */
    kir_kernel *k;
    LLVMValueRef rank;               /* ndrt_rank *, or NULL */
    LLVMValueRef iter[ND_MAX_REPEAT];        /* of k->iters */
    LLVMValueRef *param;             /* as rows see it: a part may stand for
                                        it */
    LLVMValueRef *start, *count;     /* by extent: those of tiles; or NULL */
    LLVMValueRef *kept, *fold;       /* places on the stack */
    ll_value *value;                 /* by instruction */
    LLVMValueRef var[2 * ND_MAX_RANK];       /* of loops: i64; of the innermost
                                        one in vectors, its first element */
    LLVMBasicBlockRef entry;         /* where places on the stack are made */
    /* of the pass at hand */
    bool body, wide;                 /* in vectors */
    LLVMValueRef mask;               /* lanes that count, or NULL: all */
} ll_kernel;

void ll_inst(ll_kernel *p, int i);
/* k * n[ext] * ...; the length of an extent; its first global index. */
LLVMValueRef ll_len(ll_kernel *p, const nd_len *l);
LLVMValueRef ll_count(ll_kernel *p, int ext);
LLVMValueRef ll_start(ll_kernel *p, int ext);
LLVMValueRef ll_field(ll_kernel *p, size_t offset, LLVMTypeRef t);
ll_type ll_type_from(nd_dtype t);
LLVMTypeRef ll_memory_type(ll *x, nd_dtype t);
ll_value ll_identity(ll_kernel *p, int red, nd_dtype t);
/* A place in a pass: does it differ between elements of a vector? */
bool ll_varies(const ll_kernel *p, const kir_place *at);
/* Adds the kernel to the module. False: it cannot, and x->wrong says why. */
bool ll_add_kernel(ll *x, const cg_kernel *c);

#endif
