/* count.c - --comm FILE: what every rank sent in the last training step.
 *
 *   # rank kind over calls bytes
 *   0 all_reduce tp 8 1024
 *   0 send pp 2 256
 *
 * A communicator around the communicator: it counts a call by its arguments and
 * passes it on, so that whoever calls is counted and no caller knows of it.
 * Bytes are those that this rank sends by the ring algorithms, or gets by recv;
 * passes/comm_bytes.c of the compiler says how many, from the types, and a test
 * compares the two.
 */
#include "ndrt_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, SHIFT, SEND, RECV
} kind;

static const char *const names[] = {
    [ALL_REDUCE] = "all_reduce",
    [REDUCE_SCATTER] = "reduce_scatter",
    [ALL_GATHER] = "all_gather",
    [ALL_TO_ALL] = "all_to_all",
    [SHIFT] = "shift",
    [SEND] = "send",
    [RECV] = "recv",
};

enum { MOST = 1024, WORD = 4 };   /* rows: a kind and mesh axes; bytes */

typedef struct line {             /* calls of one kind along mesh axes */
    int32_t kind;
    uint32_t mesh;
    int64_t calls, bytes;
} line;

typedef struct table {
    int64_t n;
    line v[MOST];
} table;

struct ndrt_count {
    ndrt_comm base;               /* what the rank calls */
    ndrt_comm *inner;             /* what does the work */
    const ndrt_program *program;
    bool on;
    table rows;
    ndrt_count *other;            /* the next one of this rank's */
};

/* ---- counting --------------------------------------------------------- */

/* The mesh axes along which two ranks differ. */
static uint32_t axes_between(const ndrt_program *p, int a, int b)
{
    uint32_t mesh = 0;

    for (int i = 0; i < p->nmesh; i++)
        if (ndrt_coord(p, a, i) != ndrt_coord(p, b, i))
            mesh |= 1u << i;
    return mesh;
}

static bool is_before(const line *a, const line *b)
{
    return a->kind < b->kind || (a->kind == b->kind && a->mesh < b->mesh);
}

/* Rows are in order, whoever of the rank's counters saw them first. */
static void add_line(table *t, const line *x)
{
    int64_t i = 0;

    while (i < t->n && is_before(&t->v[i], x))
        i++;
    if (i == t->n || is_before(x, &t->v[i])) {
        if (t->n == MOST)
            return;
        memmove(&t->v[i + 1], &t->v[i], (size_t)(t->n - i) * sizeof t->v[0]);
        t->v[i] = (line){x->kind, x->mesh, 0, 0};
        t->n++;
    }
    t->v[i].calls += x->calls;
    t->v[i].bytes += x->bytes;
}

static void add(ndrt_count *k, kind what, uint32_t mesh, int64_t bytes)
{
    if (k->on && mesh)            /* a group of one sends nothing */
        add_line(&k->rows, &(line){(int32_t)what, mesh, 1, bytes});
}

/* The first and the last member differ along all axes of the group. */
static void add_group(ndrt_count *k, kind what, const ndrt_group *g,
                      int64_t bytes)
{
    add(k, what, axes_between(k->program, g->ranks[0], g->ranks[g->n - 1]),
        bytes);
}

static ndrt_count *of(ndrt_comm *c)
{
    return (ndrt_count *)(void *)c;
}

/* The text of a failure is looked for here. */
static ndrt_status passed(ndrt_count *k, ndrt_status s)
{
    if (s != NDRT_OK)
        memcpy(k->base.error, k->inner->error, sizeof k->base.error);
    return s;
}

/* ---- the calls -------------------------------------------------------- */

static ndrt_status group(ndrt_comm *c, ndrt_group *g)
{
    return passed(of(c), of(c)->inner->ops->group(of(c)->inner, g));
}

/* Piece i of n elements: the first ones are longer. */
static int64_t piece(int64_t n, int parts, int i)
{
    return n / parts + (i < n % parts);
}

static ndrt_status all_reduce(ndrt_comm *c, ndrt_group *g, float *x, int64_t n,
                              ndrt_fold_kind how)
{
    ndrt_count *k = of(c);
    int64_t sent = 2 * n - piece(n, g->n, g->me) -
                   piece(n, g->n, (g->me + 1) % g->n);

    add_group(k, ALL_REDUCE, g, sent * WORD);
    return passed(k, k->inner->ops->all_reduce(k->inner, g, x, n, how));
}

/* All pieces but that of member `but`. */
static int64_t pieces(const ndrt_group *g, const ndrt_layout *l, int but)
{
    int64_t n = 0;

    for (int i = 0; i < g->n; i++)
        n += i == but ? 0 : l->n[i];
    return l->outer * l->inner * n * WORD;
}

static ndrt_status reduce_scatter(ndrt_comm *c, ndrt_group *g,
                                  const ndrt_layout *l)
{
    ndrt_count *k = of(c);

    add_group(k, REDUCE_SCATTER, g, pieces(g, l, g->me));
    return passed(k, k->inner->ops->reduce_scatter(k->inner, g, l));
}

static ndrt_status all_gather(ndrt_comm *c, ndrt_group *g,
                              const ndrt_layout *l)
{
    ndrt_count *k = of(c);

    add_group(k, ALL_GATHER, g, pieces(g, l, (g->me + 1) % g->n));
    return passed(k, k->inner->ops->all_gather(k->inner, g, l));
}

static ndrt_status exchange(ndrt_comm *c, ndrt_group *g,
                            const ndrt_exchange *e)
{
    ndrt_count *k = of(c);
    size_t bytes = 0;

    for (int i = 0; i < g->n; i++)
        bytes += i == g->me ? 0 : e->send_n[i];
    add_group(k, ALL_TO_ALL, g, (int64_t)bytes);
    return passed(k, k->inner->ops->exchange(k->inner, g, e));
}

static ndrt_status shift(ndrt_comm *c, ndrt_group *g, int by, const void *x,
                         void *y, size_t bytes_out, size_t bytes_in)
{
    ndrt_count *k = of(c);

    add_group(k, SHIFT, g, (int64_t)bytes_out);
    return passed(k, k->inner->ops->shift(k->inner, g, by, x, y, bytes_out,
                                          bytes_in));
}

static ndrt_status send(ndrt_comm *c, int to, const void *x, size_t bytes)
{
    ndrt_count *k = of(c);

    add(k, SEND, axes_between(k->program, c->rank, to), (int64_t)bytes);
    return passed(k, k->inner->ops->send(k->inner, to, x, bytes));
}

static ndrt_status recv(ndrt_comm *c, int from, void *x, size_t bytes)
{
    ndrt_count *k = of(c);

    add(k, RECV, axes_between(k->program, c->rank, from), (int64_t)bytes);
    return passed(k, k->inner->ops->recv(k->inner, from, x, bytes));
}

static ndrt_status barrier(ndrt_comm *c, ndrt_group *g)
{
    return passed(of(c), of(c)->inner->ops->barrier(of(c)->inner, g));
}

static void stop(ndrt_comm *c, ndrt_status s, const char *text)
{
    of(c)->inner->ops->abort(of(c)->inner, s, text);
}

static size_t scratch(const ndrt_comm *c)
{
    const ndrt_comm *inner = ((const ndrt_count *)(const void *)c)->inner;

    return inner->ops->scratch(inner);
}

static ndrt_comm *another(ndrt_comm *c)
{
    ndrt_count *k = of(c);
    ndrt_comm *inner = k->inner->ops->another(k->inner);

    ndrt_count *one = inner ? ndrt_count_new(k->program, inner) : NULL;

    if (!one)
        return NULL;
    one->other = k->other;
    k->other = one;
    return &one->base;
}

static void close_inner(ndrt_comm *c)
{
    of(c)->inner->ops->close(of(c)->inner);
}

static const ndrt_comm_ops counting = {
    .group = group,
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .exchange = exchange,
    .shift = shift,
    .send = send,
    .recv = recv,
    .barrier = barrier,
    .abort = stop,
    .scratch = scratch,
    .another = another,
    .close = close_inner,
};

/* ---- the rank's counter ----------------------------------------------- */

ndrt_count *ndrt_count_new(const ndrt_program *p, ndrt_comm *comm)
{
    ndrt_count *k = calloc(1, sizeof *k);

    if (!k)
        return NULL;
    k->base = *comm;
    k->base.ops = &counting;
    k->inner = comm;
    k->program = p;
    return k;
}

ndrt_comm *ndrt_count_comm(ndrt_count *k)
{
    return &k->base;
}

void ndrt_count_free(ndrt_count *k)
{
    if (k)
        ndrt_count_free(k->other);
    free(k);
}

/* Nothing is in flight between two steps. */
void ndrt_count_step(ndrt_rank *r, bool on)
{
    for (ndrt_count *k = r->state->count; k; k = k->other) {
        if (on)
            memset(&k->rows, 0, sizeof k->rows);
        k->on = on;
    }
}

/* ---- the file --------------------------------------------------------- */

static void put_axes(FILE *f, const ndrt_program *p, uint32_t mesh)
{
    const char *sep = "";

    for (int i = 0; i < p->nmesh; i++)
        if (mesh >> i & 1) {
            fprintf(f, "%s%s", sep, p->mesh_name[i]);
            sep = ",";
        }
}

static void put_table(FILE *f, const ndrt_program *p, int rank, const table *t)
{
    for (int i = 0; i < t->n; i++) {
        const line *x = &t->v[i];
        fprintf(f, "%d %s ", rank, names[x->kind]);
        put_axes(f, p, x->mesh);
        fprintf(f, " %lld %lld\n", (long long)x->calls, (long long)x->bytes);
    }
}

/* Rank 0 gets the tables of the others one by one. */
static ndrt_status collect(ndrt_rank *r, FILE *f)
{
    ndrt_count *k = r->state->count;
    ndrt_comm *c = k->inner;
    table *other = malloc(sizeof *other);
    ndrt_status s = other ? NDRT_OK
                          : ndrt_fail(r, NDRT_EINTERNAL, "out of memory");

    fputs("# rank kind over calls bytes\n", f);
    put_table(f, r->program, 0, &k->rows);
    for (int q = 1; q < c->size && s == NDRT_OK; q++) {
        s = passed(k, c->ops->recv(c, q, other, sizeof *other));
        if (s == NDRT_OK)
            put_table(f, r->program, q, other);
        else
            ndrt_comm_check(r, s);
    }
    free(other);
    return s;
}

ndrt_status ndrt_count_write(ndrt_rank *r)
{
    ndrt_count *k = r->state->count;
    const char *path = r->state->config->comm_path;
    ndrt_status s;

    if (!k)
        return NDRT_OK;
    for (const ndrt_count *o = k->other; o; o = o->other)
        for (int i = 0; i < o->rows.n; i++)
            add_line(&k->rows, &o->rows.v[i]);
    if (r->rank != 0) {
        s = k->inner->ops->send(k->inner, 0, &k->rows, sizeof k->rows);
        return ndrt_comm_check(r, passed(k, s));
    }
    FILE *f = fopen(path, "we");
    if (!f)
        return ndrt_fail(r, NDRT_EINPUT, "cannot write \"%s\": %s", path,
                         strerror(errno));
    s = collect(r, f);
    bool bad = ferror(f) != 0;
    bad |= fclose(f) != 0;
    return bad && s == NDRT_OK
               ? ndrt_fail(r, NDRT_EINPUT, "cannot write \"%s\"", path) : s;
}
