/* ew_value.h - what the elementwise functions of ir/ops.def mean, in double:
 * ew_value(EW_EXP, x, 0, 0) is exp(x).
 */
#ifndef EW_VALUE_H
#define EW_VALUE_H

#include <math.h>

enum { EW_NONE
#define OP(...)
#define EW(K, ...) , EW_##K
#include "../../ir/ops.def"
#undef OP
#undef EW
};

/* The column `value`. */
static double ew_value(int op, double a, double b, double c)
{
    switch (op) {
#define OP(...)
#define EW(K, name, nin, result, text, cost, v, ...) \
    case EW_##K: \
        return v;
#include "../../ir/ops.def"
#undef OP
#undef EW
    default:
        return c;
    }
}

#endif
