/* mincut.c - the cheapest set of nodes that separates a source from the sink.
 *
 * Node v is split into an entry and an exit joined by an edge of its weight;
 * an edge u -> v says that v can be made from u. All shortest paths at once,
 * then the next longer ones (Dinic, 1970). Among the cheapest cuts the one
 * nearest to the sink is taken, so that the least is computed again.
 */
#include "passes.h"

#include <string.h>

typedef struct edge {
    int to, next;                    /* next edge out of the same end */
    int64_t room;                    /* residual capacity; e ^ 1 is its twin */
} edge;

struct nd_mincut {
    nd_arena *arena;
    int ends;                        /* 2 per node, then source and sink */
    int *first;
    ND_VEC(edge) edges;
};

#define UNBOUNDED (INT64_MAX / 4)

nd_mincut *nd_mincut_new(nd_arena *a, int nodes)
{
    nd_mincut *c = ND_NEW(a, nd_mincut);
    c->arena = a;
    c->ends = 2 * nodes + 2;
    c->first = ND_NEWN(a, int, c->ends);
    memset(c->first, -1, sizeof *c->first * (size_t)c->ends);
    return c;
}

static void one_way(nd_mincut *c, int from, int to, int64_t room)
{
    edge e = {to, c->first[from], room};
    c->first[from] = c->edges.n;
    ND_PUSH(c->arena, &c->edges, e);
}

static void join(nd_mincut *c, int from, int to, int64_t room)
{
    one_way(c, from, to, room);
    one_way(c, to, from, 0);
}

void nd_mincut_node(nd_mincut *c, int v, int64_t weight)
{
    join(c, 2 * v, 2 * v + 1, weight);
}

void nd_mincut_edge(nd_mincut *c, int u, int v)
{
    join(c, 2 * u + 1, 2 * v, UNBOUNDED);
}

void nd_mincut_source(nd_mincut *c, int v)
{
    join(c, c->ends - 2, 2 * v, UNBOUNDED);
}

void nd_mincut_sink(nd_mincut *c, int v)
{
    join(c, 2 * v + 1, c->ends - 1, UNBOUNDED);
}

/* Breadth first from the source: how far away each end is, -1 for never. */
static bool find_levels(nd_mincut *c, int *level, int *queue)
{
    memset(level, -1, sizeof *level * (size_t)c->ends);
    int head = 0, tail = 0, source = c->ends - 2;
    queue[tail++] = source;
    level[source] = 0;
    while (head < tail) {
        int x = queue[head++];
        for (int e = c->first[x]; e >= 0; e = c->edges.v[e].next) {
            int y = c->edges.v[e].to;
            if (!c->edges.v[e].room || level[y] >= 0)
                continue;
            level[y] = level[x] + 1;
            queue[tail++] = y;
        }
    }
    return level[c->ends - 1] >= 0;
}

/* Sends what fits along the path; returns the first edge that is full now. */
static int augment(nd_mincut *c, const int *path, int n)
{
    int64_t room = UNBOUNDED;
    int full = 0;
    for (int i = 0; i < n; i++)
        if (c->edges.v[path[i]].room < room)
            room = c->edges.v[path[full = i]].room;
    for (int i = 0; i < n; i++) {
        c->edges.v[path[i]].room -= room;
        c->edges.v[path[i] ^ 1].room += room;
    }
    return full;
}

/* All shortest paths, depth first; `next` is the edge to go on with at each
 * end, so that none is looked at twice. */
static void send_all(nd_mincut *c, int *level, int *next, int *path)
{
    int n = 0, sink = c->ends - 1, x = c->ends - 2;
    memcpy(next, c->first, sizeof *next * (size_t)c->ends);
    for (;;) {
        if (x == sink) {
            n = augment(c, path, n);
            x = c->edges.v[path[n] ^ 1].to;
        }
        int e = next[x];
        while (e >= 0 && (!c->edges.v[e].room ||
                          level[c->edges.v[e].to] != level[x] + 1))
            e = c->edges.v[e].next;
        next[x] = e;
        if (e >= 0) {
            path[n++] = e;
            x = c->edges.v[e].to;
        } else if (n) {
            level[x] = -1;           /* a dead end */
            x = c->edges.v[path[--n] ^ 1].to;
        } else {
            return;
        }
    }
}

void nd_mincut_solve(nd_mincut *c, bool *kept)
{
    int *level = ND_NEWN(c->arena, int, c->ends);
    int *next = ND_NEWN(c->arena, int, c->ends);
    int *path = ND_NEWN(c->arena, int, c->ends);
    int *queue = ND_NEWN(c->arena, int, c->ends);
    while (find_levels(c, level, queue))
        send_all(c, level, next, path);
    /* Backwards from the sink along edges that still have room. */
    bool *reaches = ND_NEWN(c->arena, bool, c->ends);
    int head = 0, tail = 0;
    queue[tail++] = c->ends - 1;
    reaches[c->ends - 1] = true;
    while (head < tail) {
        int x = queue[head++];
        for (int e = c->first[x]; e >= 0; e = c->edges.v[e].next) {
            int y = c->edges.v[e].to;
            if (c->edges.v[e ^ 1].room && !reaches[y]) {
                reaches[y] = true;
                queue[tail++] = y;
            }
        }
    }
    for (int v = 0; 2 * v + 2 < c->ends; v++)
        kept[v] = reaches[2 * v + 1] && !reaches[2 * v];
}
