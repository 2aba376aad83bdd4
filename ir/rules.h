/* rules.h - what the files of typing rules share. */
#ifndef ND_RULES_H
#define ND_RULES_H

#include "ir.h"

/* The result types from the operands' types; NULL, or why there are none. */
typedef const char *rule_fn(nd_module *m, const nd_op *op, nd_type *out);

#define OP(K, name, nin, attrs, traits, rule, vjp, eval, doc) \
    rule_fn rule_##rule;
#define EW(...)
#include "ops.def"
#undef OP
#undef EW

/* ---- rules.c ------------------------------------------------------------- */

char *ty_text(nd_module *m, const nd_type *t);
/* "why: type and type" */
const char *ty_wrong(nd_module *m, const char *why, const nd_type *a,
                     const nd_type *b);
const nd_type *ty_in(const nd_op *op, int i);      /* of operand i */
/* The union of two operands' axes, whose cuts must agree; or why not. */
const char *ty_join(nd_module *m, const nd_type *a, const nd_type *b,
                    nd_type *u);
/* Why an op cannot compute with operand i, or NULL. */
const char *ty_too_narrow(nd_module *m, const nd_op *op, int i);

#endif
