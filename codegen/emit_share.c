/* emit_share.c - several axes counted as one, so that threads can share them
 * out:
 *
 *   const ndrt_span rows = ndrt_share(r, 8 * 256, 1);
 *   for (int64_t row = rows.from; row < rows.to; row++) {
 *       const int64_t batch = row / 256, seq = row % 256;
 */
#include "codegen.h"

#include <ctype.h>
#include <string.h>

/* ---- ranges of several axes ---------------------------------------------- */

/* Does the text say the word? */
static bool says(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *s = text; s && (s = strstr(s, word)); s += n) {
        bool starts = s == text || !(isalnum((unsigned char)s[-1]) ||
                                     s[-1] == '_');
        if (starts && !isalnum((unsigned char)s[n]) && s[n] != '_')
            return true;
    }
    return false;
}

static bool is_loop(const cg_axis *a)
{
    return strcmp(a->var, "0") != 0;
}

/* How many iterations axes [from, n) have: "8 * 256". */
static const char *product(cg_fn *f, const cg_axis *a, int from, int n,
                           bool *several)
{
    const char *s = NULL;
    *several = false;
    for (int i = from; i < n; i++) {
        if (!is_loop(&a[i]))
            continue;
        const char *count = cg_count(f, a[i].ext);
        *several = s != NULL;
        s = s ? nd_fmt(f->g->a, "%s * %s", s, count) : count;
    }
    return s ? s : "1";
}

const char *cg_iterations(cg_fn *f, const cg_axis *a, int n)
{
    bool several;
    return product(f, a, 0, n, &several);
}

/* Which of the axes runs alone, or -1. */
static int alone(const cg_axis *a, int n)
{
    int only = -1;
    for (int i = 0; i < n; i++)
        if (is_loop(&a[i])) {
            if (only >= 0)
                return -1;
            only = i;
        }
    return only;
}

const char *cg_counter(const cg_axis *a, int n, const char *name)
{
    int only = alone(a, n);
    return only >= 0 ? a[only].var : name;
}

/* The position on axis i of n that are counted as one. */
static const char *position(cg_fn *f, const cg_axis *a, int n, int i,
                            const char *row)
{
    bool several, outermost = true;
    const char *inside = product(f, a, i + 1, n, &several);
    for (int j = 0; j < i; j++)
        outermost &= !is_loop(&a[j]);
    const char *s = row;
    if (strcmp(inside, "1") != 0)
        s = nd_fmt(f->g->a, several ? "%s / (%s)" : "%s / %s", row, inside);
    return outermost ? s
                     : nd_fmt(f->g->a, "%s %% %s", s, cg_count(f, a[i].ext));
}

void cg_positions(cg_fn *f, const cg_axis *a, int n, const char *row,
                  const char *text)
{
    nd_buf b = {.arena = f->g->a};
    if (alone(a, n) >= 0)
        return;
    for (int i = 0; i < n; i++)
        if (is_loop(&a[i]) && (!text || says(text, a[i].var)))
            nd_putf(&b, "%s%s = %s", b.n ? ", " : "const int64_t ", a[i].var,
                    position(f, a, n, i, row));
    if (b.n)
        cg_line(f, "%s;", b.s);
}
