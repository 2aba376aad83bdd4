/* ll_math.c - C text as LLVM instructions: the expressions of ops.def and the
 * functions of runtime/ndrt_math.h, so that both printers compute the same.
 *
 *   "nd_exp($0)"  with a vector of 16 floats  ->  nd_exp's body, in vectors
 *
 * What it knows of C is what those are written in: functions that declare and
 * assign locals of number types, tables of constants, loops with a fixed count,
 * and return; every expression without an address; #if of macros that the C
 * compiler has by itself. A function is evaluated wherever it is called.
 */
#include "ll.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

extern const char nd_math_h[];       /* runtime/ndrt_math.h */

typedef enum { WORD, NUMBER, ARG, SIGN, END } kind;

typedef struct token {
    kind kind;
    const char *s;
    int n;
} token;

struct ll_text {
    ND_VEC(token) v;
    nd_table at;                     /* name of a function -> its `(`, + 1 */
};

typedef struct local {
    const token *name;
    ll_value v;
} local;

struct ll_env {
    ll *x;
    const token *t;                  /* the next one */
    const ll_value *arg;             /* $0, $1 ... */
    ND_VEC(local) locals;
    ll_type result;
    ll_value value;
    bool done;
};

/* ---- tokens -------------------------------------------------------------- */

static bool is(const token *t, const char *s)
{
    return strlen(s) == (size_t)t->n && memcmp(t->s, s, (size_t)t->n) == 0;
}

static const char *skip_line(const char *s)
{
    while (*s && *s != '\n') {
        if (*s == '\\' && s[1])
            s++;
        s++;
    }
    return s;
}

static bool is_defined(const char *macros, const char *name, size_t n)
{
    static const char define[] = "#define ";
    for (const char *s = macros; s && *s; s = strchr(s, '\n')) {
        s += *s == '\n';
        const char *at = s + sizeof define - 1;
        if (strncmp(s, define, sizeof define - 1) == 0 &&
            strncmp(at, name, n) == 0 && at[n] == ' ')
            return true;
    }
    return false;
}

/* #ifndef A, or #if defined A || defined B ... */
static bool condition_holds(const char *macros, const char *s)
{
    bool not = strncmp(s, "#ifndef", 7) == 0, any = false;
    const char *end = skip_line(s);
    s += strcspn(s, " ");
    while (s < end) {
        size_t n = strcspn(s, " |\\\n");
        any |= n && is_defined(macros, s, n);
        s += n + 1;
    }
    return any != not;
}

/* Behind the #endif that closes the part in front of s; or behind the #else. */
static const char *skip_part(const char *s, bool to_else)
{
    int depth = 1;
    while (*s && depth) {
        s = skip_line(s);
        s += *s == '\n';
        depth += strncmp(s, "#if", 3) == 0;
        depth -= strncmp(s, "#endif", 6) == 0 ||
                 (to_else && depth == 1 && strncmp(s, "#else", 5) == 0);
    }
    return skip_line(s);
}

static const char *skip_directive(const char *macros, const char *s)
{
    if (strncmp(s, "#else", 5) == 0)             /* what stood before counts */
        return skip_part(s, false);
    if (strncmp(s, "#if", 3) == 0 && !condition_holds(macros, s))
        return skip_part(s, true);
    return skip_line(s);
}

static const char *next_token(const char *macros, const char *s, token *t)
{
    static const char *const pairs[] = {"<<", ">>", "<=", ">=", "==", "!=",
                                        "&&", "||", "+=", "-=", "*=", "++"};
    bool again = true;
    while (again) {
        const char *from = s;
        s += strspn(s, " \t\n");
        if (s[0] == '/' && s[1] == '*')
            s = strstr(s, "*/") + 2;
        if (*s == '#')
            s = skip_directive(macros, s);
        again = s != from;
    }
    const char *e = s + 1;
    t->s = s;
    if (!*s) {
        t->kind = END;
        e = s;
    } else if (isalpha((unsigned char)*s) || *s == '_') {
        t->kind = WORD;
        while (isalnum((unsigned char)*e) || *e == '_')
            e++;
    } else if (isdigit((unsigned char)*s) ||
               (*s == '.' && isdigit((unsigned char)s[1]))) {
        bool hex = s[0] == '0' && s[1] == 'x';
        t->kind = NUMBER;
        while (isalnum((unsigned char)*e) || *e == '.' ||
               ((*e == '-' || *e == '+') &&
                (hex ? e[-1] == 'p' : e[-1] == 'e')))
            e++;
    } else if (*s == '$') {
        t->kind = ARG;
        e = s + 2;
    } else {
        t->kind = SIGN;
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            if (strncmp(s, pairs[i], 2) == 0)
                e = s + 2;
    }
    t->n = (int)(e - s);
    return e;
}

static void read_tokens(const ll *x, ll_text *to, const char *s)
{
    token t;
    do {
        s = next_token(x->macros, s, &t);
        ND_PUSH(x->g->a, &to->v, t);
    } while (t.kind != END);
}

/* Past the bracket that closes the one at t. */
static const token *past(const token *t)
{
    int depth = 0;
    do {
        depth += t->kind == SIGN && strchr("([{", t->s[0]) != NULL;
        depth -= t->kind == SIGN && strchr(")]}", t->s[0]) != NULL;
        t++;
    } while (depth && t->kind != END);
    return t;
}

static ll_text *math_text(ll *x)
{
    nd_arena *a = x->g->a;
    if (x->math)
        return x->math;
    x->math = ND_NEW(a, ll_text);
    x->math->at = (nd_table){.arena = a, .strings = true};
    read_tokens(x, x->math, nd_math_h);
    const token *v = x->math->v.v;
    for (int i = 1; v[i].kind != END; i++)
        if (v[i].kind == WORD && is(&v[i + 1], "(") &&
            v[i - 1].kind == WORD && is(past(&v[i + 1]), "{"))
            nd_table_put(&x->math->at,
                         nd_strndup(a, v[i].s, (size_t)v[i].n),
                         (void *)(intptr_t)(i + 1));
    return x->math;
}

/* ---- types --------------------------------------------------------------- */

LLVMTypeRef ll_type_of(ll *x, ll_type t, bool vec)
{
    LLVMTypeRef y = t == LL_BOOL ? x->i1 : t == LL_U16 ? x->i16
                    : t == LL_I32 || t == LL_U32 ? x->i32
                    : t == LL_I64 || t == LL_U64 ? x->i64
                    : t == LL_F32 ? x->f32 : t == LL_F64 ? x->f64 : x->ptr;
    return vec ? x->api->VectorType(y, KIR_LANES) : y;
}

static bool is_real(ll_type t)
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

static bool type_word(const token *t, ll_type *out)
{
    static const struct {
        const char *word;
        ll_type type;
    } words[] = {{"float", LL_F32}, {"double", LL_F64}, {"bool", LL_BOOL},
                 {"int", LL_I32}, {"int32_t", LL_I32}, {"uint32_t", LL_U32},
                 {"int64_t", LL_I64}, {"uint64_t", LL_U64},
                 {"uint16_t", LL_U16}, {"nd_bf16", LL_U16}, {"nd_f16", LL_U16}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is(t, words[i].word)) {
            *out = words[i].type;
            return true;
        }
    return false;
}

ll_value ll_int(ll *x, ll_type t, int64_t v)
{
    return (ll_value){x->api->ConstInt(ll_type_of(x, t, false), (uint64_t)v,
                                       is_signed(t)), t, false};
}

static ll_value real(ll *x, ll_type t, double v)
{
    return (ll_value){x->api->ConstReal(ll_type_of(x, t, false), v), t, false};
}

static ll_value fail(ll *x, const char *why)
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
    v.v = is_real(v.type) ? x->api->BuildFCmp(x->b, LLVMRealUNE, v.v, zero, "")
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
    if (is_real(v.type) && is_real(to))
        v.v = api->BuildFPCast(x->b, v.v, t, "");
    else if (is_real(v.type))
        v.v = is_signed(to) ? api->BuildFPToSI(x->b, v.v, t, "")
                            : api->BuildFPToUI(x->b, v.v, t, "");
    else if (is_real(to))
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

/* What C makes of two operands; small integers become int. */
static ll_type common(ll_type a, ll_type b)
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
    ll_type t = common(a.type, b.type);
    meet(x, &a, &b, t);
    int i = 0;
    while (strcmp(how[i].op, op) != 0)
        i++;
    a.v = is_real(t) ? x->api->BuildFCmp(x->b, how[i].real, a.v, b.v, "")
                     : x->api->BuildICmp(x->b, is_signed(t) ? how[i].minus
                                                            : how[i].plus,
                                         a.v, b.v, "");
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

static ll_value binary(ll *x, const char *op, ll_value a, ll_value b)
{
    bool shift = strcmp(op, "<<") == 0 || strcmp(op, ">>") == 0;
    if (a.type >= LL_NULL || b.type >= LL_NULL)
        return fail(x, "computes with an address");
    if (strcmp(op, "&&") == 0 || strcmp(op, "||") == 0) {
        meet(x, &a, &b, LL_BOOL);
        a.v = int_op(x, op[0], false, a.v, b.v);
        return a;
    }
    if (strchr("<>=!", op[0]) && !shift)
        return compare(x, op, a, b);
    ll_type t = shift ? common(a.type, LL_I32) : common(a.type, b.type);
    meet(x, &a, &b, t);
    a.v = is_real(t) ? real_op(x, op[0], a.v, b.v)
                     : int_op(x, op[0], is_signed(t), a.v, b.v);
    return a;
}

static ll_value choose(ll *x, ll_value c, ll_value a, ll_value b)
{
    bool same = a.type == b.type;    /* two of bool or 16 bits stay so */
    c = ll_convert(x, c, LL_BOOL);
    meet(x, &a, &b, same ? a.type : common(a.type, b.type));
    if (c.vec && !a.vec) {
        a = ll_spread(x, a);
        b = ll_spread(x, b);
    }
    a.v = x->api->BuildSelect(x->b, c.v, a.v, b.v, "");
    return a;
}

/* ---- expressions --------------------------------------------------------- */

static ll_value expression(ll_env *e);

static bool take(ll_env *e, const char *s)
{
    bool yes = is(e->t, s);
    e->t += yes;
    return yes;
}

static ll_value number(ll *x, const token *t)
{
    char s[64];
    snprintf(s, sizeof s, "%.*s", t->n, t->s);
    bool hex = s[0] == '0' && s[1] == 'x';
    if (strpbrk(s, hex ? ".p" : ".e")) {
        bool f = s[t->n - 1] == 'f';
        return real(x, f ? LL_F32 : LL_F64, f ? (double)strtof(s, NULL)
                                              : strtod(s, NULL));
    }
    char *end;
    uint64_t v = strtoull(s, &end, 0);
    bool u = strchr(end, 'u') != NULL, l = strchr(end, 'l') != NULL;
    if (!l && v <= INT32_MAX)
        return ll_int(x, u ? LL_U32 : LL_I32, (int64_t)v);
    if (!l && v <= UINT32_MAX && (u || hex))
        return ll_int(x, LL_U32, (int64_t)v);
    return ll_int(x, u || v > INT64_MAX ? LL_U64 : LL_I64, (int64_t)v);
}

static bool named_number(ll *x, const token *t, ll_value *v)
{
    if (is(t, "INFINITY"))
        *v = real(x, LL_F32, (double)INFINITY);
    else if (is(t, "NAN"))
        *v = real(x, LL_F32, (double)NAN);
    else if (is(t, "INT32_MAX") || is(t, "INT32_MIN"))
        *v = ll_int(x, LL_I32, t->s[8] == 'X' ? INT32_MAX : INT32_MIN);
    else if (is(t, "INT64_MAX") || is(t, "INT64_MIN"))
        *v = ll_int(x, LL_I64, t->s[8] == 'X' ? INT64_MAX : INT64_MIN);
    else if (is(t, "true") || is(t, "false"))
        *v = ll_int(x, LL_BOOL, t->s[0] == 't');
    else
        return false;
    return true;
}

static local *find_local(ll_env *e, const token *t)
{
    for (int i = e->locals.n - 1; i >= 0; i--)
        if (e->locals.v[i].name->n == t->n &&
            memcmp(e->locals.v[i].name->s, t->s, (size_t)t->n) == 0)
            return &e->locals.v[i];
    return NULL;
}

/* What the header takes from C itself. */
static bool builtin(ll *x, const token *name, ll_value *arg, int n, ll_value *v)
{
    static const struct {
        const char *name, *intrinsic;
        ll_type type;
    } calls[] = {{"fmaf", "llvm.fma", LL_F32}, {"fabsf", "llvm.fabs", LL_F32},
                 {"sqrtf", "llvm.sqrt", LL_F32}, {"rintf", "llvm.rint", LL_F32},
                 {"copysignf", "llvm.copysign", LL_F32},
                 {"floor", "llvm.floor", LL_F64}, {"fabs", "llvm.fabs", LL_F64},
                 {"floorf", "llvm.floor", LL_F32}};
    static const struct {
        const char *name;
        ll_type from, to;
    } casts[] = {{"nd_bits_float", LL_U32, LL_F32},
                 {"nd_float_bits", LL_F32, LL_U32},
                 {"nd_bits_double", LL_U64, LL_F64},
                 {"nd_double_bits", LL_F64, LL_U64}};
    for (size_t i = 0; i < sizeof casts / sizeof *casts; i++)
        if (is(name, casts[i].name) && n == 1) {
            ll_value a = ll_convert(x, arg[0], casts[i].from);
            LLVMTypeRef t = ll_type_of(x, casts[i].to, a.vec);
            *v = (ll_value){x->api->BuildBitCast(x->b, a.v, t, ""),
                            casts[i].to, a.vec};
            return true;
        }
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (!is(name, calls[i].name))
            continue;
        LLVMValueRef a[3];
        bool vec = false;
        for (int k = 0; k < n; k++)
            vec |= arg[k].vec;
        for (int k = 0; k < n; k++) {
            ll_value one = ll_convert(x, arg[k], calls[i].type);
            a[k] = (vec ? ll_spread(x, one) : one).v;
        }
        LLVMTypeRef t = ll_type_of(x, calls[i].type, vec);
        *v = (ll_value){ll_call(x, calls[i].intrinsic, 1, &t, n, a),
                        calls[i].type, vec};
        return true;
    }
    return false;
}

static ll_value call_function(ll *x, const token *name, ll_value *arg, int n);

static ll_value call(ll_env *e, const token *name)
{
    enum { MOST = 8 };
    ll_value arg[MOST], v;
    int n = 0;
    while (!take(e, ")") && n < MOST && !e->x->wrong) {
        arg[n++] = expression(e);
        take(e, ",");
    }
    return builtin(e->x, name, arg, n, &v)
               ? v : call_function(e->x, name, arg, n);
}

/* An element of a table, or one for each element of a vector. */
static ll_value indexed(ll_env *e, ll_value table)
{
    ll *x = e->x;
    ll_value i = ll_convert(x, expression(e), LL_I64);
    take(e, "]");
    if (table.type != LL_TABLE)
        return fail(x, "computes with an address");
    LLVMValueRef at = x->api->BuildGEP2(x->b, x->i32, table.v, &i.v, 1, "");
    if (!i.vec)
        return (ll_value){x->api->BuildLoad2(x->b, x->i32, at, ""), LL_U32,
                          false};
    LLVMTypeRef t[2] = {ll_type_of(x, LL_U32, true), x->api->TypeOf(at)};
    LLVMValueRef all = ll_spread(x, ll_int(x, LL_BOOL, 1)).v;
    LLVMValueRef arg[] = {at, ll_int(x, LL_I32, 4).v, all,
                          x->api->ConstNull(t[0])};
    return (ll_value){ll_call(x, "llvm.masked.gather", 2, t, 4, arg), LL_U32,
                      true};
}

static ll_value primary(ll_env *e)
{
    ll *x = e->x;
    const token *t = e->t++;
    ll_value v;
    if (t->kind == NUMBER)
        return number(x, t);
    if (t->kind == ARG)
        return e->arg[t->s[1] - '0'];
    if (is(t, "(")) {
        v = expression(e);
        take(e, ")");
        return v;
    }
    if (t->kind != WORD)
        return fail(x, "is written in more C than is known here");
    if (named_number(x, t, &v))
        return v;
    if (take(e, "("))
        return call(e, t);
    const local *l = find_local(e, t);
    if (!l)
        return fail(x, "names what is not known here");
    return take(e, "[") ? indexed(e, l->v) : l->v;
}

static ll_value unary(ll_env *e)
{
    ll *x = e->x;
    ll_type to;
    if (is(e->t, "(") && type_word(e->t + 1, &to) && is(e->t + 2, ")")) {
        e->t += 3;
        return ll_convert(x, unary(e), to);
    }
    if (take(e, "!")) {
        ll_value v = ll_convert(x, unary(e), LL_BOOL);
        v.v = x->api->BuildNot(x->b, v.v, "");
        return v;
    }
    if (take(e, "-")) {
        ll_value v = unary(e);
        v = ll_convert(x, v, common(v.type, LL_I32));
        v.v = is_real(v.type) ? x->api->BuildFNeg(x->b, v.v, "")
                              : x->api->BuildNeg(x->b, v.v, "");
        return v;
    }
    return primary(e);
}

static int tightness(const token *t)
{
    static const char *const level[][5] = {
        {"||"}, {"&&"}, {"|"}, {"^"}, {"&"}, {"==", "!="},
        {"<", ">", "<=", ">="}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"}};
    for (int i = 0; i < 10 && t->kind == SIGN; i++)
        for (int j = 0; j < 5 && level[i][j]; j++)
            if (is(t, level[i][j]))
                return i + 1;
    return 0;
}

static ll_value operation(ll_env *e, int least)
{
    ll_value a = unary(e);
    int k;
    while ((k = tightness(e->t)) >= least && k && !e->x->wrong) {
        char op[3];
        snprintf(op, sizeof op, "%.*s", e->t->n, e->t->s);
        e->t++;
        a = binary(e->x, op, a, operation(e, k + 1));
    }
    return a;
}

static ll_value expression(ll_env *e)
{
    ll_value c = operation(e, 1);
    if (!take(e, "?"))
        return c;
    ll_value a = expression(e);
    take(e, ":");
    return choose(e->x, c, a, expression(e));
}

/* ---- statements ---------------------------------------------------------- */

static void statement(ll_env *e);

static ll_value table(ll_env *e)
{
    ll *x = e->x;
    ND_VEC(LLVMValueRef) v = {0};
    take(e, "]");
    take(e, "=");
    take(e, "{");
    while (!take(e, "}") && !x->wrong) {
        ll_value one = ll_convert(x, expression(e), LL_U32);
        ND_PUSH(x->g->a, &v, one.v);
        take(e, ",");
    }
    LLVMTypeRef t = x->api->ArrayType2(x->i32, (uint64_t)v.n);
    LLVMValueRef g = x->api->AddGlobal(x->m, t, "table");
    x->api->SetInitializer(g, x->api->ConstArray2(x->i32, v.v, (uint64_t)v.n));
    x->api->SetGlobalConstant(g, 1);
    x->api->SetLinkage(g, LLVMPrivateLinkage);
    return (ll_value){g, LL_TABLE, false};
}

static void declaration(ll_env *e, ll_type type)
{
    do {
        local l = {.name = e->t++};
        if (take(e, "["))
            l.v = table(e);
        else if (take(e, "="))
            l.v = ll_convert(e->x, expression(e), type);
        else
            l.v = ll_convert(e->x, ll_int(e->x, LL_I32, 0), type);
        ND_PUSH(e->x->g->a, &e->locals, l);
    } while (take(e, ","));
    take(e, ";");
}

static void assignment(ll_env *e)
{
    local *l = find_local(e, e->t++);
    char op[2] = {e->t->s[0], 0};
    bool plain = take(e, "=");
    if (!l || (!plain && !strchr("+-*", op[0]))) {
        fail(e->x, "is written in more C than is known here");
        return;
    }
    e->t += !plain;
    ll_value v = expression(e);
    l = find_local(e, l->name);
    if (!plain)
        v = binary(e->x, op, l->v, v);
    l->v = ll_convert(e->x, v, l->v.type);
    take(e, ";");
}

/* for (int i = 0; i < 10; i++) ... */
static void loop(ll_env *e)
{
    const token *t = e->t, *body = past(t);
    local i = {.name = t + 2};
    int64_t n = strtoll(t[8].s, NULL, 10);
    if (t[8].kind != NUMBER || !is(&t[7], "<")) {
        fail(e->x, "has a loop of unknown length");
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        int outside = e->locals.n;
        i.v = ll_int(e->x, LL_I32, k);
        ND_PUSH(e->x->g->a, &e->locals, i);
        e->t = body;
        statement(e);
        e->locals.n = outside;
    }
}

/* Of pointers: is there one? There never is. */
static void condition(ll_env *e)
{
    take(e, "(");
    ll_value c = expression(e);
    take(e, ")");
    if (c.type != LL_NULL)
        fail(e->x, "has a branch");
    while (e->t->kind != END && !take(e, ";"))
        e->t++;
}

static void statement(ll_env *e)
{
    ll_type type;
    if (take(e, "{")) {
        while (!e->x->wrong && !e->done && !take(e, "}"))
            statement(e);
        return;
    }
    if (take(e, "return")) {
        e->value = ll_convert(e->x, expression(e), e->result);
        e->done = true;
        return;
    }
    if (take(e, "for")) {
        loop(e);
        return;
    }
    if (take(e, "if")) {
        condition(e);
        return;
    }
    while (take(e, "static") || take(e, "const"))
        ;
    if (type_word(e->t, &type)) {
        e->t++;
        declaration(e, type);
    } else {
        assignment(e);
    }
}

static ll_value call_function(ll *x, const token *name, ll_value *arg, int n)
{
    ll_text *text = math_text(x);
    const char *s = nd_strndup(x->g->a, name->s, (size_t)name->n);
    int at = (int)(intptr_t)nd_table_get(&text->at, s);
    ll_env e = {.x = x, .t = text->v.v + at};
    if (x->wrong || !at)
        return fail(x, nd_fmt(x->g->a, "calls %s", s));
    type_word(e.t - 2, &e.result);
    take(&e, "(");
    for (int i = 0; i < n && !take(&e, ")"); i++) {
        ll_type type = LL_I32;
        while (take(&e, "const"))
            ;
        type_word(e.t++, &type);
        bool pointer = take(&e, "*");
        local l = {.name = e.t++, .v = ll_convert(x, arg[i], type)};
        if (pointer)
            l.v.type = LL_NULL;
        ND_PUSH(x->g->a, &e.locals, l);
        take(&e, ",");
    }
    take(&e, ")");
    statement(&e);
    return x->wrong ? ll_int(x, LL_I32, 0) : e.value;
}

ll_value ll_eval(ll *x, const char *text, const ll_value *arg)
{
    ll_text once = {0};
    read_tokens(x, &once, text);
    ll_env e = {.x = x, .t = once.v.v, .arg = arg};
    return expression(&e);
}
