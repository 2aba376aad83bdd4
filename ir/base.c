/* base.c - arena, growable arrays, string builder.
 *
 * One arena per compilation: everything the compiler makes lives until the
 * compilation ends, so there is nothing to free and no ownership to explain.
 * Define NDC_ARENA_MALLOC to give each allocation its own malloc block, which
 * lets AddressSanitizer see overruns between neighbours.
 */
#include "ir.h"

#include <stdlib.h>
#include <string.h>

typedef struct chunk {
    struct chunk *next;
    size_t used, cap;
    _Alignas(16) char mem[];
} chunk;

struct nd_arena {
    chunk *head;
};

enum { CHUNK = 1 << 16 };

nd_arena *nd_arena_new(void)
{
    nd_arena *a = calloc(1, sizeof *a);
    if (!a)
        abort();
    return a;
}

void nd_arena_free(nd_arena *a)
{
    if (!a)
        return;
    for (chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(a);
}

void *nd_alloc(nd_arena *a, size_t bytes)
{
    size_t need = (bytes + 15) & ~(size_t)15;
#ifdef NDC_ARENA_MALLOC
    bool fits = false;
#else
    bool fits = a->head && a->head->cap - a->head->used >= need;
#endif
    if (!fits) {
#ifdef NDC_ARENA_MALLOC
        size_t cap = bytes;
#else
        size_t cap = need > CHUNK ? need : CHUNK;
#endif
        /* Out of memory in a compiler has no better answer than to stop. */
        chunk *c = calloc(1, sizeof *c + cap);
        if (!c)
            abort();
        c->cap = cap;
        c->next = a->head;
        a->head = c;
    }
    void *p = a->head->mem + a->head->used;
    a->head->used += fits || need <= a->head->cap ? need : a->head->cap;
    return p;
}

/* Makes the newest allocation longer where it is. */
static bool stretch(nd_arena *a, const void *p, size_t old, size_t bytes)
{
    chunk *c = a->head;
    old = (old + 15) & ~(size_t)15;
    bytes = (bytes + 15) & ~(size_t)15;
    if (!p || !c || c->used < old || c->mem + c->used - old != p ||
        c->cap - c->used + old < bytes)
        return false;
    c->used += bytes - old;
    return true;
}

/* A string that fills a chunk takes the chunk along, so that a long text costs
 * its length, not what all shorter versions of it cost. */
static char *move_chunk(nd_arena *a, const char *s, size_t bytes)
{
    if (!a->head || a->head->mem != s || bytes <= CHUNK)
        return NULL;
    chunk *c = realloc(a->head, sizeof *c + bytes);
    if (!c)
        abort();
    c->used = c->cap = bytes;
    a->head = c;
    return c->mem;
}

void *nd_grow(nd_arena *a, void *old, int n, int *cap, size_t elem)
{
    size_t was = (size_t)*cap * elem;
    *cap = *cap ? *cap * 2 : elem > 64 ? 2 : 8;
    if (stretch(a, old, was, (size_t)*cap * elem))
        return old;
    void *p = nd_alloc(a, (size_t)*cap * elem);
    if (n)
        memcpy(p, old, (size_t)n * elem);
    return p;
}

char *nd_strndup(nd_arena *a, const char *s, size_t n)
{
    char *p = nd_alloc(a, n + 1);
    memcpy(p, s, n);
    return p;
}

char *nd_strdup(nd_arena *a, const char *s)
{
    return nd_strndup(a, s, strlen(s));
}

static char *vfmt(nd_arena *a, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    char *p = nd_alloc(a, (size_t)n + 1);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    return p;
}

char *nd_fmt(nd_arena *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *p = vfmt(a, fmt, ap);
    va_end(ap);
    return p;
}

void nd_putn(nd_buf *b, const char *s, size_t n)
{
    if (b->n + n + 1 > b->cap) {
        size_t cap = b->cap ? b->cap : 64;
        while (cap < b->n + n + 1)
            cap *= 2;
        char *p = b->s;
        if (!stretch(b->arena, b->s, b->cap, cap) &&
            !(p = move_chunk(b->arena, b->s, cap))) {
            p = nd_alloc(b->arena, cap);
            if (b->n)
                memcpy(p, b->s, b->n);
        }
        b->s = p;
        b->cap = cap;
    }
    memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = 0;
}

void nd_put(nd_buf *b, const char *s)
{
    nd_putn(b, s, strlen(s));
}

void nd_putf(nd_buf *b, const char *fmt, ...)
{
    va_list ap;
    char small[256];
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < (int)sizeof small) {
        nd_putn(b, small, (size_t)n);
        return;
    }
    va_start(ap, fmt);
    char *p = vfmt(b->arena, fmt, ap);
    va_end(ap);
    nd_putn(b, p, (size_t)n);
}

uint64_t nd_hash(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h;
}

bool nd_glob(const char *p, const char *s)
{
    const char *star = NULL, *back = NULL;
    while (*s) {
        if (*p == '*') {
            star = p++;
            back = s;
        } else if (*p == *s || *p == '?') {
            p++;
            s++;
        } else if (star) {
            p = star + 1;
            s = ++back;
        } else {
            return false;
        }
    }
    while (*p == '*')
        p++;
    return !*p;
}
