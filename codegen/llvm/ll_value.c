/* ll_value.c - what C's operators and conversions are in LLVM, of numbers and
 * of vectors of them: the ranks of types, unsigned or signed, and that an
 * operand that is no vector is spread where the other is.
 */
#include "ll_math.h"

#include <string.h>

/* ---- types --------------------------------------------------------------- */

LLVMTypeRef ll_type_of(ll *x, ll_type t, bool vec)
{
    LLVMTypeRef y = t == LL_BOOL ? x->i1 : t == LL_U16 ? x->i16
                    : t == LL_I32 || t == LL_U32 ? x->i32
                    : t == LL_I64 || t == LL_U64 ? x->i64
                    : t == LL_F32 ? x->f32 : t == LL_F64 ? x->f64 : x->ptr;
    return vec ? x->api->VectorType(y, KIR_LANES) : y;
}

bool ll_is_real(ll_type t)
{
    return t == LL_F32 || t == LL_F64;
}

static bool is_signed(ll_type t)
{
    return t == LL_I32 || t == LL_I64;
}

static int bits(ll_type t)
{
    return t == LL_BOOL ? 1 : t == LL_U16 ? 16
           : t == LL_I32 || t == LL_U32 || t == LL_F32 ? 32 : 64;
}

ll_value ll_int(ll *x, ll_type t, int64_t v)
{
    return (ll_value){x->api->ConstInt(ll_type_of(x, t, false), (uint64_t)v,
                                       is_signed(t)), t, false};
}

ll_value ll_real(ll *x, ll_type t, double v)
{
    return (ll_value){x->api->ConstReal(ll_type_of(x, t, false), v), t, false};
}

ll_value ll_fail(ll *x, const char *why)
{
    x->wrong = x->wrong ? x->wrong : why;
    return ll_int(x, LL_I32, 0);
}

ll_value ll_spread(ll *x, ll_value v)
{
    if (v.vec)
        return v;
    LLVMTypeRef many = ll_type_of(x, v.type, true);
    LLVMTypeRef index = x->api->VectorType(x->i32, KIR_LANES);
    LLVMValueRef first = x->api->BuildInsertElement(
        x->b, x->api->ConstNull(many), v.v, x->api->ConstInt(x->i32, 0, 0), "");
    v.v = x->api->BuildShuffleVector(x->b, first, x->api->ConstNull(many),
                                     x->api->ConstNull(index), "");
    v.vec = true;
    return v;
}

static ll_value compare_zero(ll *x, ll_value v)
{
    LLVMTypeRef t = ll_type_of(x, v.type, v.vec);
    LLVMValueRef zero = x->api->ConstNull(t);
    v.v = ll_is_real(v.type)
              ? x->api->BuildFCmp(x->b, LLVMRealUNE, v.v, zero, "")
              : x->api->BuildICmp(x->b, LLVMIntNE, v.v, zero, "");
    v.type = LL_BOOL;
    return v;
}

ll_value ll_convert(ll *x, ll_value v, ll_type to)
{
    const ll_api *api = x->api;
    LLVMTypeRef t = ll_type_of(x, to, v.vec);
    if (v.type == to || v.type >= LL_NULL || to >= LL_NULL)
        return v;
    if (to == LL_BOOL)
        return compare_zero(x, v);
    if (ll_is_real(v.type) && ll_is_real(to))
        v.v = api->BuildFPCast(x->b, v.v, t, "");
    else if (ll_is_real(v.type))
        v.v = is_signed(to) ? api->BuildFPToSI(x->b, v.v, t, "")
                            : api->BuildFPToUI(x->b, v.v, t, "");
    else if (ll_is_real(to))
        v.v = is_signed(v.type) ? api->BuildSIToFP(x->b, v.v, t, "")
                                : api->BuildUIToFP(x->b, v.v, t, "");
    else if (bits(to) < bits(v.type))
        v.v = api->BuildTrunc(x->b, v.v, t, "");
    else if (bits(to) > bits(v.type))
        v.v = is_signed(v.type) ? api->BuildSExt(x->b, v.v, t, "")
                                : api->BuildZExt(x->b, v.v, t, "");
    v.type = to;
    return v;
}

ll_type ll_common(ll_type a, ll_type b)
{
    a = a < LL_I32 ? LL_I32 : a;
    b = b < LL_I32 ? LL_I32 : b;
    return a > b ? a : b;            /* in the order of their ranks */
}

static void meet(ll *x, ll_value *a, ll_value *b, ll_type t)
{
    *a = ll_convert(x, *a, t);
    *b = ll_convert(x, *b, t);
    if (a->vec || b->vec) {
        *a = ll_spread(x, *a);
        *b = ll_spread(x, *b);
    }
}

/* ---- operators ----------------------------------------------------------- */

LLVMValueRef ll_call(ll *x, const char *intrinsic, int ntypes,
                     LLVMTypeRef *types, int n, LLVMValueRef *arg)
{
    unsigned id = x->api->LookupIntrinsicID(intrinsic, strlen(intrinsic));
    LLVMValueRef f = x->api->GetIntrinsicDeclaration(x->m, id, types,
                                                     (size_t)ntypes);
    LLVMTypeRef t = x->api->IntrinsicGetType(x->c, id, types, (size_t)ntypes);
    return x->api->BuildCall2(x->b, t, f, arg, (unsigned)n, "");
}

static ll_value compare(ll *x, const char *op, ll_value a, ll_value b)
{
    static const struct {
        const char *op;
        LLVMRealPredicate real;
        LLVMIntPredicate plus, minus;        /* unsigned, signed */
    } how[] = {{"<", LLVMRealOLT, LLVMIntULT, LLVMIntSLT},
               {">", LLVMRealOGT, LLVMIntUGT, LLVMIntSGT},
               {"<=", LLVMRealOLE, LLVMIntULE, LLVMIntSLE},
               {">=", LLVMRealOGE, LLVMIntUGE, LLVMIntSGE},
               {"==", LLVMRealOEQ, LLVMIntEQ, LLVMIntEQ},
               {"!=", LLVMRealUNE, LLVMIntNE, LLVMIntNE}};
    ll_type t = ll_common(a.type, b.type);
    meet(x, &a, &b, t);
    int i = 0;
    while (strcmp(how[i].op, op) != 0)
        i++;
    LLVMIntPredicate whole = is_signed(t) ? how[i].minus : how[i].plus;
    a.v = ll_is_real(t) ? x->api->BuildFCmp(x->b, how[i].real, a.v, b.v, "")
                        : x->api->BuildICmp(x->b, whole, a.v, b.v, "");
    a.type = LL_BOOL;
    return a;
}

static LLVMValueRef real_op(ll *x, char op, LLVMValueRef a, LLVMValueRef b)
{
    switch (op) {
    case '+':
        return x->api->BuildFAdd(x->b, a, b, "");
    case '-':
        return x->api->BuildFSub(x->b, a, b, "");
    case '*':
        return x->api->BuildFMul(x->b, a, b, "");
    default:
        return x->api->BuildFDiv(x->b, a, b, "");
    }
}

static LLVMValueRef int_op(ll *x, char op, bool minus, LLVMValueRef a,
                           LLVMValueRef b)
{
    switch (op) {
    case '+':
        return x->api->BuildAdd(x->b, a, b, "");
    case '-':
        return x->api->BuildSub(x->b, a, b, "");
    case '*':
        return x->api->BuildMul(x->b, a, b, "");
    case '/':
        return minus ? x->api->BuildSDiv(x->b, a, b, "")
                     : x->api->BuildUDiv(x->b, a, b, "");
    case '%':
        return minus ? x->api->BuildSRem(x->b, a, b, "")
                     : x->api->BuildURem(x->b, a, b, "");
    case '&':
        return x->api->BuildAnd(x->b, a, b, "");
    case '|':
        return x->api->BuildOr(x->b, a, b, "");
    case '^':
        return x->api->BuildXor(x->b, a, b, "");
    case '<':
        return x->api->BuildShl(x->b, a, b, "");
    default:
        return minus ? x->api->BuildAShr(x->b, a, b, "")
                     : x->api->BuildLShr(x->b, a, b, "");
    }
}

ll_value ll_binary(ll *x, const char *op, ll_value a, ll_value b)
{
    bool shift = strcmp(op, "<<") == 0 || strcmp(op, ">>") == 0;
    if (a.type >= LL_NULL || b.type >= LL_NULL)
        return ll_fail(x, "computes with an address");
    if (strcmp(op, "&&") == 0 || strcmp(op, "||") == 0) {
        meet(x, &a, &b, LL_BOOL);
        a.v = int_op(x, op[0], false, a.v, b.v);
        return a;
    }
    if (strchr("<>=!", op[0]) && !shift)
        return compare(x, op, a, b);
    ll_type t = shift ? ll_common(a.type, LL_I32) : ll_common(a.type, b.type);
    meet(x, &a, &b, t);
    a.v = ll_is_real(t) ? real_op(x, op[0], a.v, b.v)
                        : int_op(x, op[0], is_signed(t), a.v, b.v);
    return a;
}

ll_value ll_choose(ll *x, ll_value c, ll_value a, ll_value b)
{
    bool same = a.type == b.type;    /* two of bool or 16 bits stay so */
    c = ll_convert(x, c, LL_BOOL);
    meet(x, &a, &b, same ? a.type : ll_common(a.type, b.type));
    if (c.vec && !a.vec) {
        a = ll_spread(x, a);
        b = ll_spread(x, b);
    }
    a.v = x->api->BuildSelect(x->b, c.v, a.v, b.v, "");
    return a;
}
