/* names.c - how a schedule is called: `1f1b`, `interleaved(2)`. */
#include "sched.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* `(2)` and nothing after it; 0 if it is not that. */
static int in_brackets(const char *text)
{
    char *end;

    if (text[0] != '(' || !isdigit((unsigned char)text[1]))
        return 0;
    long v = strtol(text + 1, &end, 10);
    return strcmp(end, ")") == 0 && v <= 1 << 16 ? (int)v : 0;
}

bool sched_parse_name(const char *text, sched_kind *kind, int *v)
{
    size_t n = strcspn(text, "(");

    if (strcmp(text, "auto") == 0) {
        *kind = SCHED_KIND_AUTO;
        *v = 0;
        return true;
    }
    for (int k = 0; k < SCHED_NKINDS; k++) {
        const sched_info *x = &sched_kinds[k];
        if (strlen(x->name) != n || strncmp(x->name, text, n) != 0)
            continue;
        *kind = (sched_kind)k;
        *v = x->v ? 0 : in_brackets(text + n);
        return x->v ? text[n] == 0 : *v > 0;
    }
    return false;
}
