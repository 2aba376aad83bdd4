/* op.c - ops.def as tables: names, arities, elementwise meanings. */
#include "ir.h"

#include <math.h>
#include <string.h>

const nd_op_info nd_ops[OP_COUNT] = {
#define OP(K, name, nin, attrs, traits, rule, vjp, eval, doc) \
    [OP_##K] = {name, nin, attrs, traits, doc},
#define EW(...)
#include "ops.def"
#undef OP
#undef EW
};

const nd_ew_info nd_ews[EW_COUNT] = {
#define OP(...)
#define EW(K, name, nin, result, c, cost, value, vjp, doc) \
    [EW_##K] = {name, nin, result, c, cost, doc},
#include "ops.def"
#undef OP
#undef EW
};

bool nd_has_trait(const nd_op *op, char trait)
{
    return strchr(nd_ops[op->kind].traits, trait) != NULL;
}

bool nd_is_linear(const nd_op *op)
{
    if (op->kind == OP_CAST) {
        nd_dtype to = op->out[0]->type.dtype;
        return nd_is_float(op->in[0]->type.dtype) && nd_is_float(to) &&
               !nd_is_narrow(to);    /* nothing is rounded or wraps */
    }
    return nd_has_trait(op, 'l') &&
           (op->kind != OP_REDUCE || op->sub == RED_SUM);
}

int64_t nd_roll_by(const nd_op *op)
{
    int64_t size = op->axes[0]->size;
    if (!size)
        return 0;
    int64_t by = (int64_t)op->num % size;
    return by < 0 ? by + size : by;
}

const char *nd_op_name(const nd_op *op)
{
    return op->kind == OP_MAP ? nd_ews[op->sub].name : nd_ops[op->kind].name;
}

int nd_op_find(const char *name)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (strcmp(nd_ops[i].name, name) == 0)
            return i;
    return -1;
}

int nd_ew_find(const char *name)
{
    for (int i = 0; i < EW_COUNT; i++)
        if (strcmp(nd_ews[i].name, name) == 0)
            return i;
    return -1;
}

double nd_ew_eval(nd_ew e, double a, double b, double c)
{
    (void)b;
    (void)c;
    switch (e) {
#define OP(...)
#define EW(K, name, nin, result, ctext, cost, value, vjp, doc) \
    case EW_##K: \
        return value;
#include "ops.def"
#undef OP
#undef EW
    case EW_COUNT:
        break;
    }
    return 0;
}

void nd_list_ops(FILE *out)
{
    for (int i = 0; i < OP_COUNT; i++)
        fprintf(out, "%-16s %s\n", nd_ops[i].name, nd_ops[i].doc);
    for (int i = 0; i < EW_COUNT; i++)
        fprintf(out, "%-16s elementwise: %s\n", nd_ews[i].name, nd_ews[i].doc);
}
