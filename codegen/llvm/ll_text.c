/* ll_text.c - C text in tokens: `nd_exp(-$0)` are five.
 *
 * Of runtime/ndrt_math.h those count that the C compiler would see for the same
 * processor, by the macros that it has by itself.
 */
#include "ll_math.h"

#include <ctype.h>
#include <string.h>

extern const char nd_math_h[];       /* runtime/ndrt_math.h */

bool ll_is(const ll_token *t, const char *s)
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

static const char *next_token(const char *macros, const char *s, ll_token *t)
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
        t->kind = LL_END;
        e = s;
    } else if (isalpha((unsigned char)*s) || *s == '_') {
        t->kind = LL_WORD;
        while (isalnum((unsigned char)*e) || *e == '_')
            e++;
    } else if (isdigit((unsigned char)*s) ||
               (*s == '.' && isdigit((unsigned char)s[1]))) {
        bool hex = s[0] == '0' && s[1] == 'x';
        t->kind = LL_NUMBER;
        while (isalnum((unsigned char)*e) || *e == '.' ||
               ((*e == '-' || *e == '+') &&
                (hex ? e[-1] == 'p' : e[-1] == 'e')))
            e++;
    } else if (*s == '$') {
        t->kind = LL_ARG;
        e = s + 2;
    } else {
        t->kind = LL_SIGN;
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            if (strncmp(s, pairs[i], 2) == 0)
                e = s + 2;
    }
    t->n = (int)(e - s);
    return e;
}

void ll_read_tokens(const ll *x, ll_text *to, const char *s)
{
    ll_token t;
    do {
        s = next_token(x->macros, s, &t);
        ND_PUSH(x->g->a, &to->v, t);
    } while (t.kind != LL_END);
}

const ll_token *ll_past(const ll_token *t)
{
    int depth = 0;
    do {
        depth += t->kind == LL_SIGN && strchr("([{", t->s[0]) != NULL;
        depth -= t->kind == LL_SIGN && strchr(")]}", t->s[0]) != NULL;
        t++;
    } while (depth && t->kind != LL_END);
    return t;
}

ll_text *ll_math_text(ll *x)
{
    nd_arena *a = x->g->a;
    if (x->math)
        return x->math;
    x->math = ND_NEW(a, ll_text);
    x->math->at = (nd_table){.arena = a, .strings = true};
    ll_read_tokens(x, x->math, nd_math_h);
    const ll_token *v = x->math->v.v;
    for (int i = 1; v[i].kind != LL_END; i++)
        if (v[i].kind == LL_WORD && ll_is(&v[i + 1], "(") &&
            v[i - 1].kind == LL_WORD && ll_is(ll_past(&v[i + 1]), "{"))
            nd_table_put(&x->math->at,
                         nd_strndup(a, v[i].s, (size_t)v[i].n),
                         (void *)(intptr_t)(i + 1));
    return x->math;
}
