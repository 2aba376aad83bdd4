/* profile.c - reads what `./train --profile FILE` has written: JSON, of which
 * runtime/profile.c has an example.
 *
 *   run.json:5:11: error: expected a number
 *
 * What is wrong is told at its place. Nothing but what the runtime writes is
 * accepted, in any order and spacing.
 */
#include "codegen.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    nd_ctx *c;
    int file;
    const char *text;
    size_t at, n;
    cg_profile *out;
} reader;

static nd_loc place(const reader *r, size_t begin, size_t end)
{
    return (nd_loc){r->file, (uint32_t)begin,
                    (uint32_t)(end > begin ? end : begin + 1)};
}

static bool expected(reader *r, const char *what)
{
    nd_error(r->c, place(r, r->at, r->at + 1), "expected %s", what);
    return false;
}

/* ---- words --------------------------------------------------------------- */

static char next(reader *r)
{
    while (r->at < r->n && strchr(" \t\r\n", r->text[r->at]))
        r->at++;
    return r->at < r->n ? r->text[r->at] : 0;
}

static bool take(reader *r, char c)
{
    if (next(r) != c)
        return expected(r, nd_fmt(r->c->arena, "`%c`", c));
    r->at++;
    return true;
}

/* Names have nothing to escape. */
static bool read_string(reader *r, const char **s, nd_loc *loc)
{
    if (next(r) != '"')
        return expected(r, "a string");
    size_t begin = ++r->at;
    while (r->at < r->n && !strchr("\"\\\n", r->text[r->at]))
        r->at++;
    if (r->at == r->n || r->text[r->at] != '"')
        return expected(r, "`\"`");
    *s = nd_strndup(r->c->arena, r->text + begin, r->at - begin);
    *loc = place(r, begin, r->at++);
    return true;
}

static bool read_number(reader *r, double *x)
{
    char word[64], *end;
    next(r);
    size_t n = strspn(r->text + r->at, "0123456789+-.eE");
    snprintf(word, sizeof word, "%.*s", (int)(n < 63 ? n : 63),
             r->text + r->at);
    *x = strtod(word, &end);
    if (!n || n > 63 || *end || !isfinite(*x) || *x < 0)
        return expected(r, "a number that is not negative");
    r->at += n;
    return true;
}

/* ---- structure ----------------------------------------------------------- */

/* One pair of an object: reads the value of `key`. */
typedef bool pair_fn(reader *r, const char *key, nd_loc at, void *x);

static bool read_object(reader *r, pair_fn *pair, void *x)
{
    if (!take(r, '{'))
        return false;
    for (bool first = true; next(r) != '}'; first = false) {
        const char *key;
        nd_loc at;
        if ((!first && !take(r, ',')) || !read_string(r, &key, &at) ||
            !take(r, ':') || !pair(r, key, at, x))
            return false;
    }
    return take(r, '}');
}

static bool unknown(reader *r, const char *key, nd_loc at)
{
    nd_error(r->c, at, "a profile has no `%s`", key);
    return false;
}

static bool time_pair(reader *r, const char *key, nd_loc at, void *x)
{
    cg_time *t = x;
    if (!strcmp(key, "name"))
        return read_string(r, &t->name, &t->loc);
    if (!strcmp(key, "calls"))
        return read_number(r, &t->calls);
    return !strcmp(key, "seconds") ? read_number(r, &t->seconds)
                                   : unknown(r, key, at);
}

static bool read_times(reader *r, cg_times *out)
{
    if (!take(r, '['))
        return false;
    for (bool first = true; next(r) != ']'; first = false) {
        cg_time t = {0};
        if (!first && !take(r, ','))
            return false;
        next(r);
        size_t begin = r->at;
        if (!read_object(r, time_pair, &t))
            return false;
        if (!t.name) {
            nd_error(r->c, place(r, begin, r->at), "expected a `name`");
            return false;
        }
        ND_PUSH(r->c->arena, out, t);
    }
    return take(r, ']');
}

static bool top_pair(reader *r, const char *key, nd_loc at, void *x)
{
    cg_profile *p = x;
    const struct {
        const char *key;
        double *to;
    } numbers[] = {
        {"ranks", &p->ranks}, {"threads", &p->threads},
        {"microbatches", &p->microbatches}, {"steps", &p->steps},
        {"copy", &p->copy}, {"product", &p->product}, {"bf16", &p->bf16},
    };
    if (!strcmp(key, "program"))
        return read_string(r, &p->program, &p->program_at);
    if (!strcmp(key, "key"))
        return read_string(r, &p->key, &p->key_at);
    if (!strcmp(key, "kernels"))
        return read_times(r, &p->kernels);
    if (!strcmp(key, "runtime"))
        return read_times(r, &p->runtime);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].key))
            return read_number(r, numbers[i].to);
    return unknown(r, key, at);
}

bool cg_read_profile(nd_ctx *c, int file, cg_profile *out)
{
    const nd_file *f = &c->files.v[file - 1];
    reader r = {.c = c, .file = file, .text = f->text, .n = f->len};
    *out = (cg_profile){0};
    if (!read_object(&r, top_pair, out))
        return false;
    if (next(&r))
        return expected(&r, "the end of the file");
    const char *missing = !out->program      ? "program"
                          : !out->key        ? "key"
                          : out->ranks < 1   ? "ranks"
                          : out->steps < 1   ? "steps"
                          : !out->kernels.n  ? "kernels"
                          : out->copy <= 0   ? "copy"
                          : out->product <= 0 ? "product"
                          : out->bf16 <= 0   ? "bf16" : NULL;
    if (missing)
        nd_error(c, place(&r, 0, 1), "the profile says nothing of `%s`",
                 missing);
    return !missing;
}
