/* kir_text.c - what an instruction computes, as C text over its operands: both
 * printers read it, and so compute the same.
 */
#include "kir.h"

/* A row of ops.def, but for integers where that speaks of floats. */
const char *kir_map_text(const kir_inst *x)
{
    if (x->type == ND_I64 && x->sub == EW_IDIV)
        return "nd_floordiv64($0, $1)";
    if (x->type == ND_I64 && x->sub == EW_MOD)
        return "nd_floormod64($0, $1)";
    if (!nd_is_float(x->type) && x->sub == EW_ABS)
        return "$0 < 0 ? -$0 : $0";
    if (!nd_is_float(x->type) && (x->sub == EW_MIN || x->sub == EW_MAX))
        return kir_combine_text(x->sub == EW_MIN ? RED_MIN : RED_MAX, x->type);
    return nd_ews[x->sub].c;
}

/* bf16 and f16 are bits: through a float both ways. */
const char *kir_cast_text(nd_arena *a, nd_dtype from, nd_dtype to)
{
    const char *x = "$0";
    if (nd_is_narrow(from)) {
        x = nd_fmt(a, "nd_from_%s($0)", nd_dtype_name(from));
        if (to == ND_F32)
            return x;
    }
    if (nd_is_narrow(to) || (to != ND_BOOL && !nd_is_float(to) &&
                             nd_is_float(from)))
        return nd_fmt(a, "nd_to_%s(%s)", nd_dtype_name(to), x);
    if (to == ND_BOOL)
        return nd_fmt(a, "%s != 0", x);
    return nd_fmt(a, "(%s)%s", cg_ctype(to), x);
}

const char *kir_combine_text(int red, nd_dtype t)
{
    if (red == RED_SUM)
        return "$0 + $1";
    if (nd_is_float(t))
        return red == RED_MAX ? "nd_max($0, $1)" : "nd_min($0, $1)";
    return red == RED_MAX ? "$0 > $1 ? $0 : $1" : "$0 < $1 ? $0 : $1";
}

const char *kir_identity_text(nd_arena *a, int red, nd_dtype t)
{
    if (red == RED_SUM)
        return cg_number(a, t, 0);
    if (nd_is_float(t))
        return red == RED_MAX ? "-INFINITY" : "INFINITY";
    if (t == ND_I64)
        return red == RED_MAX ? "INT64_MIN" : "INT64_MAX";
    return red == RED_MAX ? "INT32_MIN" : "INT32_MAX";
}
