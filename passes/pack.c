/* pack.c - buffers that live from one time to another, in as few bytes as may
 * be: those that never live together share them.
 *
 *   a 64 bytes, 0 .. 1     b 64 bytes, 1 .. 2     c 64 bytes, 2 .. 3
 *   -> a at 0, b at 64, c at 0: 128 bytes
 */
#include "passes.h"

#include <stdlib.h>

typedef struct ranked {
    nd_item *x;
    int order;
} ranked;

/* Those that have a place; then the largest first; of the same size, the first
 * one. */
static int by_size(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->x->placed != y->x->placed)
        return x->x->placed ? -1 : 1;
    if (x->x->bytes != y->x->bytes)
        return x->x->bytes < y->x->bytes ? 1 : -1;
    return x->order - y->order;
}

/* The placed items by the time they live: each in the few nodes of a binary
 * tree over all times that make up its life, and where it begins. */
typedef struct link {
    nd_item *x;
    int next;                        /* link + 1 */
} link;

typedef struct span {
    size_t at, end;
} span;

typedef struct lives {
    nd_arena *a;
    int times;
    int *during, *begins;            /* link + 1, by node and by time */
    ND_VEC(link) links;
    size_t *full;                    /* by time: no gap is below */
    span *busy, *spare;
} lives;

static void add_link(lives *l, int *head, nd_item *x)
{
    ND_PUSH(l->a, &l->links, ((link){x, *head}));
    *head = l->links.n;
}

static void add_life(lives *l, nd_item *x)
{
    add_link(l, &l->begins[x->from], x);
    for (int t = x->from; t <= x->to; t++)
        if (x->at <= l->full[t] && x->at + x->bytes > l->full[t])
            l->full[t] = x->at + x->bytes;
    int lo = x->from + l->times, hi = x->to + l->times + 1;
    for (; lo < hi; lo /= 2, hi /= 2) {
        if (lo & 1)
            add_link(l, &l->during[lo++], x);
        if (hi & 1)
            add_link(l, &l->during[--hi], x);
    }
}

/* Those that end above `at`. */
static int add_busy(const lives *l, int n, int head, size_t at)
{
    for (; head; head = l->links.v[head - 1].next) {
        const nd_item *x = l->links.v[head - 1].x;
        if (x->at + x->bytes > at)
            l->busy[n++] = (span){x->at, x->at + x->bytes};
    }
    return n;
}

/* Ascending by offset: a radix sort, for thousands may live at once and every
 * item asks anew. Offsets are multiples of 64 bytes. */
static const span *in_order(const lives *l, int n)
{
    enum { BITS = 11, SIZE = 1 << BITS };
    span *from = l->busy, *to = l->spare;
    size_t most = 0;
    for (int i = 0; i < n; i++)
        most = from[i].at > most ? from[i].at : most;
    for (size_t unit = 64; most / unit; unit <<= BITS) {
        int start[SIZE + 1] = {0};
        for (int i = 0; i < n; i++)
            start[from[i].at / unit % SIZE + 1]++;
        for (int k = 0; k < SIZE; k++)
            start[k + 1] += start[k];
        for (int i = 0; i < n; i++)
            to[start[from[i].at / unit % SIZE]++] = from[i];
        span *t = from;
        from = to;
        to = t;
    }
    return from;
}

/* The lowest offset that is free of the placed ones while x lives. */
static size_t lowest_gap(const lives *l, const nd_item *x)
{
    size_t at = 0;
    int n = 0;
    for (int t = x->from; t <= x->to; t++)
        at = l->full[t] > at ? l->full[t] : at;
    for (int node = x->from + l->times; node; node /= 2)
        n = add_busy(l, n, l->during[node], at);
    for (int t = x->from + 1; t <= x->to; t++)
        n = add_busy(l, n, l->begins[t], at);
    const span *busy = in_order(l, n);
    for (int i = 0; i < n && busy[i].at < at + x->bytes; i++)
        at = busy[i].end > at ? busy[i].end : at;
    return at;
}

/* Largest first, each at the lowest offset that is free while it lives. */
size_t nd_pack(nd_arena *a, nd_item *const *it, int n)
{
    size_t end = 0;
    lives l = {.a = a, .times = 1, .busy = ND_NEWN(a, span, n + 1),
               .spare = ND_NEWN(a, span, n + 1)};
    ranked *order = ND_NEWN(a, ranked, n + 1);
    for (int i = 0; i < n; i++) {
        order[i] = (ranked){it[i], i};
        l.times = it[i]->to >= l.times ? it[i]->to + 1 : l.times;
    }
    l.during = ND_NEWN(a, int, 2 * l.times);
    l.begins = ND_NEWN(a, int, l.times);
    l.full = ND_NEWN(a, size_t, l.times);
    qsort(order, (size_t)n, sizeof *order, by_size);
    for (int i = 0; i < n; i++) {
        nd_item *x = order[i].x;
        if (!x->placed)
            x->at = lowest_gap(&l, x);
        end = x->at + x->bytes > end ? x->at + x->bytes : end;
        add_life(&l, x);
    }
    return end;
}
