/* diag.c - messages with a source line and a caret run.
 *
 *   gpt.nd:19:25: error: the argument has no axis `head`
 *      19 |   return linear[heads, head -> d](x)
 *         |                        ^~~~
 *   note: `head` was summed away here
 *
 * Columns count characters; the caret line copies tabs and pads by display
 * width, so it aligns under tabs and wide characters. A very long line is
 * shown through a window around the caret.
 */
#include "ir.h"

#include <stdlib.h>
#include <string.h>

const nd_loc nd_nowhere = {0, 0, 0};

enum { WINDOW = 160 };               /* bytes of a long line that are shown */

/* Something to free with the context. */
typedef struct nd_kept {
    void (*f)(void *);
    void *x;
    struct nd_kept *next;
} kept;

nd_ctx *nd_ctx_new(void)
{
    nd_arena *a = nd_arena_new();
    nd_ctx *c = ND_NEW(a, nd_ctx);
    c->arena = a;
    c->error_limit = 20;
    return c;
}

void nd_ctx_free(nd_ctx *c)
{
    if (!c)
        return;
    for (const kept *k = c->kept; k; k = k->next)
        k->f(k->x);
    nd_arena_free(c->arena);
}

void nd_ctx_keep(nd_ctx *c, void (*f)(void *), void *x)
{
    kept *k = ND_NEW(c->arena, kept);
    *k = (kept){f, x, c->kept};
    c->kept = k;
}

int nd_add_file(nd_ctx *c, const char *name, const char *text, size_t len)
{
    nd_file f = {.name = nd_strdup(c->arena, name),
                 .text = nd_strndup(c->arena, text, len), .len = len};
    ND_PUSH(c->arena, &f.line, 0);
    for (size_t i = 0; i < len; i++)
        if (text[i] == '\n')
            ND_PUSH(c->arena, &f.line, (uint32_t)(i + 1));
    ND_PUSH(c->arena, &c->files, f);
    return c->files.n;
}

static const nd_file *file_of(nd_ctx *c, nd_loc at)
{
    return at.file > 0 && at.file <= c->files.n ? &c->files.v[at.file - 1]
                                                : NULL;
}

/* The line, counted from 0, that holds byte `pos`. */
static int line_at(const nd_file *f, size_t pos)
{
    int lo = 0, hi = f->line.n;
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (f->line.v[mid] <= pos)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* [*b, *e) is the line that holds byte `pos`, without its newline. */
static void line_bounds(const nd_file *f, size_t pos, size_t *b, size_t *e)
{
    int at = line_at(f, pos);
    *b = f->line.v[at];
    *e = at + 1 < f->line.n ? f->line.v[at + 1] - 1 : f->len;
    if (*e > *b && f->text[*e - 1] == '\r')
        --*e;
}

static bool continues(char ch)
{
    return ((unsigned char)ch & 0xc0) == 0x80;
}

void nd_line_col(nd_ctx *c, nd_loc at, int *line, int *col)
{
    const nd_file *f = file_of(c, at);
    *line = *col = 0;
    if (!f)
        return;
    size_t pos = at.begin < f->len ? at.begin : f->len;
    int l = line_at(f, pos);
    *line = l + 1;
    *col = 1;
    for (size_t i = f->line.v[l]; i < pos; i++)
        *col += !continues(f->text[i]);
}

int nd_line_of(nd_ctx *c, nd_loc at)
{
    const nd_file *f = file_of(c, at);
    return f ? line_at(f, at.begin) + 1 : 0;
}

const char *nd_source_line(nd_ctx *c, nd_loc at, size_t most)
{
    const nd_file *f = file_of(c, at);
    size_t b, e;
    if (!f)
        return "";
    line_bounds(f, at.begin, &b, &e);
    while (b < e && (f->text[b] == ' ' || f->text[b] == '\t'))
        b++;
    if (e - b > most)
        return nd_strndup(c->arena, f->text + b, most);
    while (e > b && (f->text[e - 1] == ' ' || f->text[e - 1] == '\t'))
        e--;
    return nd_strndup(c->arena, f->text + b, e - b);
}

/* The code point at s, and its length in bytes; a bad byte stands alone. */
static uint32_t decode(const char *s, size_t n, size_t *len)
{
    unsigned char c = (unsigned char)s[0];
    size_t want = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    uint32_t u = want == 1 ? c : c & (0x7fu >> want);
    *len = 1;
    if (want > n)
        return '?';
    for (size_t i = 1; i < want; i++) {
        if (!continues(s[i]))
            return '?';
        u = u << 6 | ((unsigned char)s[i] & 0x3fu);
    }
    *len = want;
    return u;
}

/* Columns that a terminal gives to a code point. */
static int width(uint32_t u)
{
    if (u >= 0x300 && u <= 0x36f)
        return 0;
    bool wide = (u >= 0x1100 && u <= 0x115f) || (u >= 0x2e80 && u <= 0xa4cf) ||
                (u >= 0xac00 && u <= 0xd7a3) || (u >= 0xf900 && u <= 0xfaff) ||
                (u >= 0xfe30 && u <= 0xfe6f) || (u >= 0xff00 && u <= 0xff60) ||
                (u >= 0x1f300 && u <= 0x1faff) ||
                (u >= 0x20000 && u <= 0x3fffd);
    return wide ? 2 : 1;
}

/* Puts text[b, e) as it is, or as caret line: `under` repeated per column
 * from the second on, the first being '^'. */
static void put_carets(nd_buf *out, const char *s, size_t n)
{
    bool first = true;
    for (size_t i = 0, len; i < n; i += len) {
        int w = width(decode(s + i, n - i, &len));
        for (int k = 0; k < w; k++) {
            nd_put(out, first ? "^" : "~");
            first = false;
        }
    }
    if (first)
        nd_put(out, "^");
}

static void put_padding(nd_buf *out, const char *s, size_t n)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t u = decode(s + i, n - i, &len);
        if (u == '\t')
            nd_put(out, "\t");
        else
            nd_putn(out, "  ", (size_t)width(u));
    }
}

/* Control characters and broken UTF-8 would garble the terminal. */
static void put_text(nd_buf *out, const char *s, size_t n)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t u = decode(s + i, n - i, &len);
        bool raw = len > 1 || (u >= 0x20 && u < 0x7f) || u == '\t';
        nd_putn(out, raw ? s + i : "?", raw ? len : 1);
    }
}

static void put_snippet(nd_buf *out, const nd_file *f, nd_loc at, int line)
{
    size_t b, e, from = at.begin < f->len ? at.begin : f->len;
    line_bounds(f, from, &b, &e);
    if (from > e)
        from = e;
    size_t to = at.end > from ? at.end : from;
    bool head = false, tail = false;
    if (e - b > WINDOW) {
        if (from - b > WINDOW / 2) {
            b = from - WINDOW / 2;
            while (b < from && continues(f->text[b]))
                b++;
            head = true;
        }
        if (e - b > WINDOW) {
            e = b + WINDOW;
            while (e > from && continues(f->text[e]))
                e--;
            tail = true;
        }
    }
    if (to > e)
        to = e;
    nd_putf(out, "%5d | %s", line, head ? "..." : "");
    put_text(out, f->text + b, e - b);
    nd_putf(out, "%s\n      | %s", tail ? "..." : "", head ? "   " : "");
    put_padding(out, f->text + b, from - b);
    put_carets(out, f->text + from, to - from);
    nd_put(out, "\n");
}

static void deliver(nd_ctx *c, nd_severity sev, const char *text)
{
    if (c->sink)
        c->sink(c->sink_user, sev, text);
    else
        fputs(text, stderr);
}

static void message(nd_ctx *c, nd_severity sev, nd_loc at, const char *fmt,
                    va_list ap)
{
    static const char *const word[] = {"note", "perf", "warning", "error"};
    if (c->muted)
        return;
    nd_buf b = {c->arena, NULL, 0, 0};
    const nd_file *f = file_of(c, at);
    int line = 0, col = 0;
    if (f)
        nd_line_col(c, at, &line, &col);
    if (f && !(sev == ND_NOTE && at.file == c->note_file))
        nd_putf(&b, "%s:%d:%d: ", f->name, line, col);
    else if (!f && sev != ND_NOTE)
        nd_put(&b, "ndc: ");
    nd_putf(&b, "%s: ", word[sev]);
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    char *text = nd_alloc(c->arena, (size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, fmt, ap);
    put_text(&b, text, (size_t)n);
    nd_put(&b, "\n");
    if (f)
        put_snippet(&b, f, at, line);
    if (sev != ND_NOTE)
        c->note_file = at.file;
    deliver(c, sev, b.s);
}

void nd_error(nd_ctx *c, nd_loc at, const char *fmt, ...)
{
    va_list ap;
    c->nerrors++;
    if (c->nerrors > c->error_limit) {
        if (c->nerrors == c->error_limit + 1)
            deliver(c, ND_ERROR,
                    "ndc: error: too many errors, the rest is only counted\n");
        c->muted = true;
        return;
    }
    c->muted = false;
    va_start(ap, fmt);
    message(c, ND_ERROR, at, fmt, ap);
    va_end(ap);
}

void nd_warning(nd_ctx *c, nd_loc at, const char *fmt, ...)
{
    va_list ap;
    c->nwarnings++;
    c->muted = false;
    va_start(ap, fmt);
    message(c, ND_WARNING, at, fmt, ap);
    va_end(ap);
}

void nd_perf(nd_ctx *c, nd_loc at, const char *fmt, ...)
{
    va_list ap;
    c->muted = false;
    va_start(ap, fmt);
    message(c, ND_PERF, at, fmt, ap);
    va_end(ap);
}

void nd_note(nd_ctx *c, nd_loc at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    message(c, ND_NOTE, at, fmt, ap);
    va_end(ap);
}

enum { NEAR_MAX = 63 };

/* Edit distance with transpositions of neighbours. */
static int distance(const char *a, const char *b)
{
    int row[3][NEAR_MAX + 2];
    int na = (int)strlen(a), nb = (int)strlen(b);
    for (int j = 0; j <= nb; j++)
        row[1][j] = j;
    for (int i = 1; i <= na; i++) {
        int *cur = row[(i + 1) % 3], *up = row[i % 3], *up2 = row[(i + 2) % 3];
        cur[0] = i;
        for (int j = 1; j <= nb; j++) {
            int d = up[j - 1] + (a[i - 1] != b[j - 1]);
            d = up[j] + 1 < d ? up[j] + 1 : d;
            d = cur[j - 1] + 1 < d ? cur[j - 1] + 1 : d;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] &&
                           a[i - 2] == b[j - 1];
            if (swapped && up2[j - 2] + 1 < d)
                d = up2[j - 2] + 1;
            cur[j] = d;
        }
    }
    return row[(na + 1) % 3][nb];
}

const char *nd_nearest(const char *name, const char *const *cand, int n)
{
    const char *best = NULL;
    size_t len = strlen(name);
    int limit = len <= 4 ? 1 : len < 9 ? (int)len / 3 : 3;
    if (len > NEAR_MAX)
        return NULL;
    for (int i = 0; i < n; i++) {
        if (!cand[i] || strlen(cand[i]) > NEAR_MAX)
            continue;
        int d = distance(name, cand[i]);
        if (d > 0 && d <= limit && d < (int)len) {
            best = cand[i];
            limit = d - 1;
        }
    }
    return best;
}
