/* test_mincut.c - the cheapest cut, against all cuts of random small graphs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "passes/passes.h"

enum { N = 9 };

typedef struct graph {
    int64_t weight[N];
    bool edge[N][N], source[N], sink[N];
} graph;

static uint32_t next(uint32_t *s)
{
    return *s = *s * 1664525u + 1013904223u;
}

static graph random_graph(uint32_t *s)
{
    graph g = {0};
    for (int v = 0; v < N; v++) {
        g.weight[v] = 1 + next(s) % 50;
        g.source[v] = v < 3;
        g.sink[v] = v >= N - 3;
        for (int u = 0; u < v; u++)
            g.edge[u][v] = (next(s) >> 16) % 3 == 0;
    }
    return g;
}

/* Can the sink still be reached when the nodes in `cut` are gone? */
static bool leaks(const graph *g, unsigned cut)
{
    bool seen[N];
    for (int v = 0; v < N; v++) {
        seen[v] = g->source[v];
        for (int u = 0; u < v; u++)
            seen[v] |= seen[u] && g->edge[u][v];
        seen[v] &= !(cut >> v & 1);
        if (seen[v] && g->sink[v])
            return true;
    }
    return false;
}

static int64_t price(const graph *g, unsigned cut)
{
    int64_t sum = 0;
    for (int v = 0; v < N; v++)
        sum += cut >> v & 1 ? g->weight[v] : 0;
    return sum;
}

static int64_t cheapest(const graph *g)
{
    int64_t best = INT64_MAX;
    for (unsigned cut = 0; cut < 1u << N; cut++)
        if (price(g, cut) < best && !leaks(g, cut))
            best = price(g, cut);
    return best;
}

static unsigned solve(nd_arena *a, const graph *g)
{
    nd_mincut *c = nd_mincut_new(a, N);
    bool kept[N] = {false};
    unsigned cut = 0;
    for (int v = 0; v < N; v++) {
        nd_mincut_node(c, v, g->weight[v]);
        if (g->source[v])
            nd_mincut_source(c, v);
        if (g->sink[v])
            nd_mincut_sink(c, v);
        for (int u = 0; u < v; u++)
            if (g->edge[u][v])
                nd_mincut_edge(c, u, v);
    }
    nd_mincut_solve(c, kept);
    for (int v = 0; v < N; v++)
        cut |= kept[v] ? 1u << v : 0;
    return cut;
}

static void minimal(void **state)
{
    (void)state;
    uint32_t seed = 1;
    for (int i = 0; i < 200; i++) {
        nd_arena *a = nd_arena_new();
        graph g = random_graph(&seed);
        unsigned cut = solve(a, &g);
        assert_false(leaks(&g, cut));
        assert_int_equal(price(&g, cut), cheapest(&g));
        nd_arena_free(a);
    }
}

/* 0 -> 1 -> 2 with equal weights: keep the last, recompute nothing. */
static void nearest_to_the_sink(void **state)
{
    (void)state;
    nd_arena *a = nd_arena_new();
    graph g = {0};
    for (int v = 0; v < 3; v++) {
        g.weight[v] = 5;
        if (v)
            g.edge[v - 1][v] = true;
    }
    g.source[0] = g.sink[2] = true;
    assert_int_equal(solve(a, &g), 1u << 2);
    nd_arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(minimal),
        cmocka_unit_test(nearest_to_the_sink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
