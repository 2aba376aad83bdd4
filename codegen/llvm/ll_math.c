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
#include "ll_math.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct local {
    const ll_token *name;
    ll_value v;
} local;

struct ll_env {
    ll *x;
    const ll_token *t;               /* the next one */
    const ll_value *arg;             /* $0, $1 ... */
    ND_VEC(local) locals;
    ll_type result;
    ll_value value;
    bool done;
};

static bool type_word(const ll_token *t, ll_type *out)
{
    static const struct {
        const char *word;
        ll_type type;
    } words[] = {{"float", LL_F32}, {"double", LL_F64}, {"bool", LL_BOOL},
                 {"int", LL_I32}, {"int32_t", LL_I32}, {"uint32_t", LL_U32},
                 {"int64_t", LL_I64}, {"uint64_t", LL_U64},
                 {"uint16_t", LL_U16}, {"nd_bf16", LL_U16}, {"nd_f16", LL_U16}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (ll_is(t, words[i].word)) {
            *out = words[i].type;
            return true;
        }
    return false;
}

/* ---- expressions --------------------------------------------------------- */

static ll_value expression(ll_env *e);

static bool take(ll_env *e, const char *s)
{
    bool yes = ll_is(e->t, s);
    e->t += yes;
    return yes;
}

static ll_value number(ll *x, const ll_token *t)
{
    char s[64];
    snprintf(s, sizeof s, "%.*s", t->n, t->s);
    bool hex = s[0] == '0' && s[1] == 'x';
    if (strpbrk(s, hex ? ".p" : ".e")) {
        bool f = s[t->n - 1] == 'f';
        return ll_real(x, f ? LL_F32 : LL_F64, f ? (double)strtof(s, NULL)
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

static bool named_number(ll *x, const ll_token *t, ll_value *v)
{
    if (ll_is(t, "INFINITY"))
        *v = ll_real(x, LL_F32, (double)INFINITY);
    else if (ll_is(t, "NAN"))
        *v = ll_real(x, LL_F32, (double)NAN);
    else if (ll_is(t, "INT32_MAX") || ll_is(t, "INT32_MIN"))
        *v = ll_int(x, LL_I32, t->s[8] == 'X' ? INT32_MAX : INT32_MIN);
    else if (ll_is(t, "INT64_MAX") || ll_is(t, "INT64_MIN"))
        *v = ll_int(x, LL_I64, t->s[8] == 'X' ? INT64_MAX : INT64_MIN);
    else if (ll_is(t, "true") || ll_is(t, "false"))
        *v = ll_int(x, LL_BOOL, t->s[0] == 't');
    else
        return false;
    return true;
}

static local *find_local(ll_env *e, const ll_token *t)
{
    for (int i = e->locals.n - 1; i >= 0; i--)
        if (e->locals.v[i].name->n == t->n &&
            memcmp(e->locals.v[i].name->s, t->s, (size_t)t->n) == 0)
            return &e->locals.v[i];
    return NULL;
}

/* What the header takes from C itself. */
static bool builtin(ll *x, const ll_token *name, ll_value *arg, int n,
                    ll_value *v)
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
    if (ll_is(name, "INT64_C") && n == 1) {
        *v = ll_convert(x, arg[0], LL_I64);
        return true;
    }
    for (size_t i = 0; i < sizeof casts / sizeof *casts; i++)
        if (ll_is(name, casts[i].name) && n == 1) {
            ll_value a = ll_convert(x, arg[0], casts[i].from);
            LLVMTypeRef t = ll_type_of(x, casts[i].to, a.vec);
            *v = (ll_value){x->api->BuildBitCast(x->b, a.v, t, ""),
                            casts[i].to, a.vec};
            return true;
        }
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (!ll_is(name, calls[i].name))
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

static ll_value call_function(ll *x, const ll_token *name, ll_value *arg,
                              int n);

static ll_value call(ll_env *e, const ll_token *name)
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
        return ll_fail(x, "computes with an address");
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
    const ll_token *t = e->t++;
    ll_value v;
    if (t->kind == LL_NUMBER)
        return number(x, t);
    if (t->kind == LL_ARG)
        return e->arg[t->s[1] - '0'];
    if (ll_is(t, "(")) {
        v = expression(e);
        take(e, ")");
        return v;
    }
    if (t->kind != LL_WORD)
        return ll_fail(x, "is written in more C than is known here");
    if (named_number(x, t, &v))
        return v;
    if (take(e, "("))
        return call(e, t);
    const local *l = find_local(e, t);
    if (!l)
        return ll_fail(x, "names what is not known here");
    return take(e, "[") ? indexed(e, l->v) : l->v;
}

static ll_value unary(ll_env *e)
{
    ll *x = e->x;
    ll_type to;
    if (ll_is(e->t, "(") && type_word(e->t + 1, &to) && ll_is(e->t + 2, ")")) {
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
        v = ll_convert(x, v, ll_common(v.type, LL_I32));
        v.v = ll_is_real(v.type) ? x->api->BuildFNeg(x->b, v.v, "")
                                 : x->api->BuildNeg(x->b, v.v, "");
        return v;
    }
    return primary(e);
}

static int tightness(const ll_token *t)
{
    static const char *const level[][5] = {
        {"||"}, {"&&"}, {"|"}, {"^"}, {"&"}, {"==", "!="},
        {"<", ">", "<=", ">="}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"}};
    for (int i = 0; i < 10 && t->kind == LL_SIGN; i++)
        for (int j = 0; j < 5 && level[i][j]; j++)
            if (ll_is(t, level[i][j]))
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
        a = ll_binary(e->x, op, a, operation(e, k + 1));
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
    return ll_choose(e->x, c, a, expression(e));
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
        ll_fail(e->x, "is written in more C than is known here");
        return;
    }
    e->t += !plain;
    ll_value v = expression(e);
    l = find_local(e, l->name);
    if (!plain)
        v = ll_binary(e->x, op, l->v, v);
    l->v = ll_convert(e->x, v, l->v.type);
    take(e, ";");
}

/* for (int i = 0; i < 10; i++) ... */
static void loop(ll_env *e)
{
    const ll_token *t = e->t, *body = ll_past(t);
    local i = {.name = t + 2};
    int64_t n = strtoll(t[8].s, NULL, 10);
    if (t[8].kind != LL_NUMBER || !ll_is(&t[7], "<")) {
        ll_fail(e->x, "has a loop of unknown length");
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
        ll_fail(e->x, "has a branch");
    while (e->t->kind != LL_END && !take(e, ";"))
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

static ll_value call_function(ll *x, const ll_token *name, ll_value *arg, int n)
{
    ll_text *text = ll_math_text(x);
    const char *s = nd_strndup(x->g->a, name->s, (size_t)name->n);
    int at = (int)(intptr_t)nd_table_get(&text->at, s);
    ll_env e = {.x = x, .t = text->v.v + at};
    if (x->wrong || !at)
        return ll_fail(x, nd_fmt(x->g->a, "calls %s", s));
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
    ll_read_tokens(x, &once, text);
    ll_env e = {.x = x, .t = once.v.v, .arg = arg};
    return expression(&e);
}
