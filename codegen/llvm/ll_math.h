/* ll_math.h - what the files share that make LLVM instructions of C text. */
#ifndef ND_LL_MATH_H
#define ND_LL_MATH_H

#include "ll.h"

/* ---- ll_text.c ----------------------------------------------------------- */

typedef enum { LL_WORD, LL_NUMBER, LL_ARG, LL_SIGN, LL_END } ll_kind;

typedef struct ll_token {
    ll_kind kind;
    const char *s;
    int n;
} ll_token;

struct ll_text {
    ND_VEC(ll_token) v;
    nd_table at;                     /* name of a function -> its `(`, + 1 */
};

bool ll_is(const ll_token *t, const char *s);
/* Past the bracket that closes the one at t. */
const ll_token *ll_past(const ll_token *t);
void ll_read_tokens(const ll *x, ll_text *to, const char *s);
ll_text *ll_math_text(ll *x);        /* runtime/ndrt_math.h */

/* ---- ll_value.c ---------------------------------------------------------- */

bool ll_is_real(ll_type t);
/* What C makes of two operands; small integers become int. */
ll_type ll_common(ll_type a, ll_type b);
ll_value ll_real(ll *x, ll_type t, double v);
/* The kernel cannot be made: "calls erfc". */
ll_value ll_fail(ll *x, const char *why);
ll_value ll_binary(ll *x, const char *op, ll_value a, ll_value b);
ll_value ll_choose(ll *x, ll_value c, ll_value a, ll_value b);   /* c ? a : b */

#endif
