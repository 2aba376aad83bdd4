/* emit_names.c - names in the generated text: C identifiers, unique in their
 * scope, the same for the same program every time.
 *
 *   softmax     softmax
 *   softmax     softmax_2      taken already
 *   int, X_h    v_int, v_X_h   means something to C or to this file
 *
 * Names that a prefix makes harmless (B_int) go through cg_unique instead.
 */
#include "codegen.h"

#include <ctype.h>
#include <string.h>

/* Keywords of C11 and C23, lower-case macros of the headers, and words that
 * the generated functions use themselves. */
static const char *const reserved[] = {
    "alignas", "alignof", "asm", "auto", "bool", "break", "case", "char",
    "const", "constexpr", "continue", "default", "do", "double", "else",
    "enum", "extern", "false", "float", "for", "goto", "if", "inline", "int",
    "long", "nullptr", "register", "restrict", "return", "short", "signed",
    "sizeof", "static", "static_assert", "struct", "switch", "thread_local",
    "true", "typedef", "typeof", "typeof_unqual", "union", "unsigned", "void",
    "volatile", "while",
    "fpclassify", "isfinite", "isgreater", "isgreaterequal", "isinf", "isless",
    "islessequal", "islessgreater", "isnan", "isnormal", "isunordered",
    "math_errhandling", "offsetof", "signbit", "errno", "stdin", "stdout",
    "stderr", "linux", "unix",
    "int32_t", "int64_t", "uint32_t", "uint64_t", "size_t", "memcpy", "memset",
    "main", "r", "i", "training", "seed", "step",
};

const char *cg_word(nd_arena *a, const char *s)
{
    char *w = nd_strdup(a, s);
    for (char *p = w; *p; p++)
        if (!isalnum((unsigned char)*p))
            *p = '_';
    if (!*w || isdigit((unsigned char)*w))
        return nd_fmt(a, "v%s", w);
    return w;
}

/* NULL, INT32_MAX: a header may define any such word. */
static bool is_shouted(const char *s)
{
    return strlen(s) > 2 && !s[strcspn(s, "abcdefghijklmnopqrstuvwxyz")];
}

/* "l", "l2": what cg_iter calls iterations. */
static bool is_iteration(const char *s)
{
    return s[0] == 'l' && !s[1 + strspn(s + 1, "0123456789")];
}

static bool is_reserved(const char *s)
{
    if (s[0] == '_' || strncmp(s, "nd_", 3) == 0 ||
        strncmp(s, "ndrt_", 5) == 0 || is_shouted(s) || is_iteration(s) ||
        (s[0] && s[1] == '_' && strchr("XBPGMK", s[0])))
        return true;
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (reserved[i][0] == s[0] && strcmp(reserved[i], s) == 0)
            return true;
    return false;
}

/* ---- sets of words ------------------------------------------------------ */

static cg_name *slot_of(const cg_words *w, const char *s)
{
    size_t mask = w->cap - 1, i = (size_t)nd_hash(s) & mask;
    while (w->v[i].s && strcmp(w->v[i].s, s) != 0)
        i = (i + 1) & mask;
    return &w->v[i];
}

static bool has_word(const cg_words *w, const char *s)
{
    return w->cap && slot_of(w, s)->s;
}

static cg_name *put_word(nd_arena *a, cg_words *w, const char *s)
{
    if (2 * w->n >= w->cap) {        /* at most half full */
        cg_words old = *w;
        w->cap = old.cap ? 2 * old.cap : 64;
        w->v = ND_NEWN(a, cg_name, w->cap);
        for (size_t i = 0; i < old.cap; i++)
            if (old.v[i].s)
                *slot_of(w, old.v[i].s) = old.v[i];
    }
    cg_name *x = slot_of(w, s);
    w->n += !x->s;
    x->s = s;
    return x;
}

/* ---- scopes ------------------------------------------------------------- */

void cg_take(cg_names *n, const char *s)
{
    put_word(n->arena, &n->taken, s);
    if (n->outer)
        put_word(n->arena, &n->outer->inside, s);
}

/* A local name hides a function that its own function might call, so the two
 * scopes have no name in common. */
static bool is_taken(const cg_names *n, const char *s)
{
    return has_word(&n->taken, s) || has_word(&n->inside, s) ||
           (n->always && has_word(&n->always->taken, s)) ||
           (n->outer && has_word(&n->outer->taken, s));
}

const char *cg_unique(cg_names *n, const char *want)
{
    const char *base = cg_word(n->arena, want), *s = base;
    if (is_taken(n, s)) {
        int i = put_word(n->arena, &n->taken, base)->next;
        for (i = i ? i : 2; is_taken(n, s); i++)
            s = nd_fmt(n->arena, "%s_%d", base, i);
        slot_of(&n->taken, base)->next = i;
    }
    cg_take(n, s);
    return s;
}

const char *cg_fresh(cg_names *n, const char *want)
{
    const char *base = cg_word(n->arena, want);
    if (is_reserved(base))           /* a suffix would leave it reserved */
        base = nd_fmt(n->arena, "v_%s", base);
    return cg_unique(n, base);
}
