/* emit_names.c - names in the generated text: C identifiers, unique in their
 * scope, the same for the same program every time.
 */
#include "codegen.h"

#include <ctype.h>
#include <string.h>

/* C11's keywords, and words that the generated text uses itself. */
static const char *const reserved[] = {
    "auto", "bool", "break", "case", "char", "const", "continue", "default",
    "do", "double", "else", "enum", "extern", "false", "float", "for", "goto",
    "if", "inline", "int", "long", "register", "restrict", "return", "short",
    "signed", "sizeof", "static", "struct", "switch", "true", "typedef",
    "union", "unsigned", "void", "volatile", "while", "asm", "typeof",
    "r", "l", "i", "at", "weight", "gradient", "piece", "program", "main",
    "memcpy", "memset", "training", "stream", "seed", "step", "stages",
    "params", "places", "extents", "errno", "stdin", "stdout", "stderr",
    "linux", "unix",
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

static bool is_taken(const cg_names *n, const char *s)
{
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (strcmp(reserved[i], s) == 0)
            return true;
    if (strncmp(s, "ndrt_", 5) == 0 || strncmp(s, "nd_", 3) == 0 ||
        (s[0] && s[1] == '_' && strchr("XBPG", s[0])))
        return true;
    for (int i = 0; i < n->taken.n; i++)
        if (strcmp(n->taken.v[i], s) == 0)
            return true;
    return false;
}

const char *cg_fresh(cg_names *n, const char *want)
{
    const char *base = cg_word(n->arena, want), *s = base;
    for (int i = 2; is_taken(n, s); i++)
        s = nd_fmt(n->arena, "%s_%d", base, i);
    ND_PUSH(n->arena, &n->taken, s);
    return s;
}
