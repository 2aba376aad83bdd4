/* nd_forms.h - how a program says each row of ops.def.
 *
 *   row DIV   "$0 / (1.5 + $1 * $1)"    over operands of class "nn"
 *
 * The random programs and the gradient tests are made from this table, so a new
 * row of ops.def is tested once it has a form here, and the tests fail until it
 * has one. Forms keep their operands where the function is defined and smooth.
 */
#ifndef ND_FORMS_H
#define ND_FORMS_H

#include "../../ir/ir.h"

/* Operands: n number (all floats or all integers), f float, i integer,
 * b condition. */
typedef struct ew_form {
    const char *text, *args;
} ew_form;

static const ew_form ew_forms[EW_COUNT] = {
    [EW_ADD] = {"$0 + $1", "nn"},
    [EW_SUB] = {"$0 - $1", "nn"},
    [EW_MUL] = {"$0 * $1", "nn"},
    [EW_DIV] = {"$0 / (1.5 + $1 * $1)", "ff"},
    [EW_IDIV] = {"$0 // $1", "ii"},
    [EW_MOD] = {"$0 % $1", "ii"},
    [EW_POW] = {"(abs($0) + 0.5) ^ $1", "ff"},
    [EW_NEG] = {"-$0", "n"},
    [EW_EXP] = {"exp(0.5 * $0)", "f"},
    [EW_LOG] = {"log(abs($0) + 1)", "f"},
    [EW_SQRT] = {"sqrt($0 * $0 + 0.5)", "f"},
    [EW_RSQRT] = {"rsqrt($0 * $0 + 0.5)", "f"},
    [EW_TANH] = {"tanh($0)", "f"},
    [EW_SIGMOID] = {"sigmoid($0)", "f"},
    [EW_ERF] = {"erf($0)", "f"},
    [EW_SIN] = {"sin($0)", "f"},
    [EW_COS] = {"cos($0)", "f"},
    [EW_ABS] = {"abs($0)", "n"},
    [EW_MIN] = {"minimum($0, $1)", "nn"},
    [EW_MAX] = {"maximum($0, $1)", "nn"},
    [EW_LT] = {"$0 < $1", "nn"},
    [EW_LE] = {"$0 <= $1", "nn"},
    [EW_EQ] = {"$0 == $1", "ii"},
    [EW_NE] = {"$0 != $1", "ii"},
    [EW_AND] = {"$0 and $1", "bb"},
    [EW_OR] = {"$0 or $1", "bb"},
    [EW_NOT] = {"not $0", "b"},
    [EW_WHERE] = {"where($0, $1, $2)", "bnn"},
};

/* The first row without a form, or NULL. */
static inline const char *ew_without_form(void)
{
    for (int i = 0; i < EW_COUNT; i++)
        if (!ew_forms[i].text)
            return nd_ews[i].name;
    return NULL;
}

/* Writes form `k` in parentheses over the operands. */
static inline void ew_say(nd_buf *b, int k, const char *const *operand)
{
    nd_put(b, "(");
    for (const char *s = ew_forms[k].text; *s; s++)
        if (*s == '$')
            nd_put(b, operand[*++s - '0']);
        else
            nd_putn(b, s, 1);
    nd_put(b, ")");
}

#endif
