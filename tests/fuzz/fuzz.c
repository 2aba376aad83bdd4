/* fuzz.c - see fuzz.h. */
#include "fuzz.h"

#include <stdlib.h>

enum { MAX_AXIS = 64, MAX_RANKS = 16, MAX_MICRO = 16, MAX_OPS = 600 };

static void drop(void *user, nd_severity s, const char *text)
{
    (void)user, (void)s, (void)text;
}

nd_ctx *fuzz_ctx(const uint8_t *data, size_t n)
{
    nd_ctx *c = nd_ctx_new();
    c->sink = drop;
    nd_buf bytes = {.arena = c->arena};
    nd_putn(&bytes, (const char *)data, n);
    nd_add_bytes(c, "fuzz", &bytes);
    return c;
}

void fuzz_broken(const nd_ctx *c, const char *promise)
{
    fprintf(stderr, "%s\n%.*s\n", promise, (int)c->files.v[0].len,
            c->files.v[0].text);
    abort();
}

static void count(nd_op *op, void *user)
{
    (void)op;
    ++*(int *)user;
}

bool fuzz_is_small(nd_module *m)
{
    int ops = 0;
    nd_walk(m->step, count, &ops);
    bool small = ops <= MAX_OPS && nd_mesh_ranks(&m->mesh) <= MAX_RANKS &&
                 m->plan.microbatches <= MAX_MICRO;
    for (int i = 0; i < m->axes.n; i++)
        small &= m->axes.v[i]->size <= MAX_AXIS;
    return small;
}
