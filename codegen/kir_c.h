/* kir_c.h - what the files of the C printer share. */
#ifndef ND_KIR_C_H
#define ND_KIR_C_H

#include "kir.h"

/* How tightly an expression's outermost operator binds. */
enum {
    CG_TERNARY, CG_LOGIC, CG_COMPARE, CG_SUM, CG_PRODUCT, CG_UNARY, CG_PRIMARY
};

typedef struct cg_expr {
    const char *s;
    int tight;                       /* how tightly its operator binds */
} cg_expr;

typedef struct kir_hoisted {         /* a load that a pass repeats */
    const char *element, *name;
} kir_hoisted;

typedef struct kir_c {               /* a kernel under print */
    cg_fn f;
    kir_kernel *k;
    cg_expr *text;                   /* by instruction */
    const char *var[2 * ND_MAX_RANK];        /* by loop */
    const char **fold;               /* by fold: the name of its result */
    const char **lanes;              /* ... and of its lanes */
    const char **kept;               /* by kept row, or NULL so far */
    const char *lane;                /* the lane of an element, if named yet */
    const char *at;                  /* where the lanes are: "kv_at" */
    bool in_lanes;                   /* in a body of both */
    bool uses_last;                  /* the innermost loop's variable */
    bool rows;                       /* use row pointers */
    const char *columns;             /* this thread's range of the innermost
                                        axis, or NULL: all */
    nd_buf *before;                  /* in a pass: text in front of its loops */
    int base;                        /* ... and its indentation */
    ND_VEC(kir_hoisted) hoisted;
} kir_c;

/* ---- kir_c_share.c ------------------------------------------------------- */

typedef struct kir_around {          /* what stands around a row */
    cg_axis axis[ND_MAX_RANK];       /* the outer loops */
    int n;
    const char *row;                 /* the loop over this thread's rows: its
                                        variable, or NULL, */
    int inside;                      /* and the indentation in there */
    int braces, brace[ND_MAX_RANK + 2];      /* to close: their indentations */
} kir_around;

/* Opens what shares out: of rows, the loop over this thread's. Then the loops
 * inside; and, in front of them, where such a row stands on the axes that the
 * text mentions. */
void kir_c_open_share(kir_c *p, kir_around *s);
void kir_c_open_loops(kir_c *p, kir_around *s);
void kir_c_share_axes(kir_c *p, kir_around *s, const char *text);
/* Closes all that, and adds up parts. All threads are there afterwards. */
void kir_c_close_share(kir_c *p, kir_around *s);

/* ---- kir_c_expr.c -------------------------------------------------------- */

/* The expression of an instruction that is a value. */
cg_expr kir_c_value(kir_c *p, const kir_inst *x);
const char *kir_c_element(kir_c *p, const kir_place *at, bool write);
const char *kir_c_kept(kir_c *p, int kept);      /* "e_kept[kv]" */
const char *kir_c_combine(nd_arena *a, int red, nd_dtype t, const char *x,
                          const char *y);        /* x (+, max, min) y */
/* A line in front of the loops of the pass, if it is in one. */
void kir_c_before(kir_c *p, const char *text);

#endif
