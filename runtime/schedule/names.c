/* names.c - schedules by name.
 *
 *   "1f1b" -> 1F1B, 0   "interleaved(2)" -> INTERLEAVED, 2   "1f1b(2)" -> none
 */
#include "sched.h"

#include <stdlib.h>
#include <string.h>

/* "(2)" -> 2; "" -> 0; anything else -> -1. */
static int number_in_brackets(const char *text)
{
    char *end;
    if (!*text)
        return 0;
    if (text[0] != '(' || text[1] < '1' || text[1] > '9')
        return -1;
    long v = strtol(text + 1, &end, 10);
    return strcmp(end, ")") == 0 && v <= 1 << 16 ? (int)v : -1;
}

/* A kind with its own v may be given it: zb_v(2). `auto` may be told one. A
 * kind without needs it. */
bool sched_parse_name(const char *text, sched_kind *kind, int *v)
{
    size_t n = strcspn(text, "(");
    int number = number_in_brackets(text + n);
    if (number < 0)
        return false;
    *v = number;
    if (n == 4 && memcmp(text, "auto", 4) == 0) {
        *kind = SCHED_KIND_AUTO;
        return true;
    }
    for (int k = 0; k < SCHED_NKINDS; k++) {
        const sched_info *i = &sched_kinds[k];
        if (strlen(i->name) != n || memcmp(text, i->name, n) != 0)
            continue;
        *kind = (sched_kind)k;
        return i->v ? number == 0 || number == i->v : number > 0;
    }
    return false;
}
