/* products.c - --products FILE: how fast the products of a step are alone.
 *
 *   {"program":"gpt","ranks":1,"threads":2,"library":"oneDNN","tokens":2048,
 *    "step_s":0.91,"products_s":0.51,"flop":9.9e10,"peak_bytes":1.1e9,
 *    "shapes":[
 *     {"type":"f32","m":2048,"n":1536,"k":384,"a":"rows","b":"columns",
 *      "add":false,"own":false,"calls":6,"flop":1.4e10,"seconds":0.07}, ...]}
 *
 * A step notes every product that it asks for. Behind it, the same calls are
 * made once more, in the same order on the same memory, and nothing else: no
 * step that computes these products, by these means, can be faster. The arena
 * is put back as it was, so training goes on as if nothing had been.
 *
 * The times are medians over the steps but the first, which warms up, unless it
 * is the only one. Shapes are those of rank 0, seconds the mean of its threads;
 * an own product is computed by one of them.
 */
#include "ndrt_internal.h"
#include "trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static const char *const width_names[] = {
    [NDRT_W32] = "f32", [NDRT_WBF16] = "bf16", [NDRT_WF16] = "f16"};

typedef struct product {          /* C (+)= A B, as asked for */
    ndrt_width width;             /* of A and B */
    bool own, acc;                /* by one thread; added to C */
    int64_t m, n, k;
    ndrt_matrix a, b;
    float *c;
    int64_t c_r, c_c;
    double seconds;
} product;

typedef struct list {             /* what a thread has asked for */
    product *v;
    size_t n, room;
} list;

typedef struct shape {            /* products that differ in place alone */
    product like;
    double calls, flop, seconds;
} shape;

struct ndrt_products {
    bool on;                      /* noting */
    _Atomic bool lost;            /* no memory to do so */
    int nthreads;
    list *of;                     /* per thread of the rank's team */
    shape *shapes;
    int nshapes, shapes_room;
    char *aside;                  /* the arena, while products run */
    double began;
    double *step, *alone;         /* seconds of each step that counts */
    int n, room;
    double flop;                  /* of all ranks, in the last step */
    double peak_bytes;            /* before anything was put aside */
};

/* One more element of `size` bytes; false: no memory. */
static bool grow(void *v, size_t *room, size_t n, size_t size)
{
    void **at = v;

    if (n < *room)
        return true;
    size_t more = *room ? 2 * *room : 64;
    void *p = realloc(*at, more * size);
    if (!p)
        return false;
    *at = p;
    *room = more;
    return true;
}

/* ---- noting ----------------------------------------------------------- */

void ndrt_note_product(const ndrt_rank *r, ndrt_width width, bool own, bool acc,
                       const ndrt_matrix *a, const ndrt_matrix *b,
                       const ndrt_matrix *c)
{
    ndrt_products *p = r->state->products;

    if (!p || !p->on)
        return;
    list *l = &p->of[r->thread];
    if (!grow(&l->v, &l->room, l->n, sizeof *l->v)) {
        p->lost = true;
        return;
    }
    l->v[l->n++] = (product){
        .width = width, .own = own, .acc = acc, .m = a->rows, .n = b->cols,
        .k = a->cols,
        .a = *a, .b = *b, .c = (float *)(uintptr_t)c->x, .c_r = c->r,
        .c_c = c->c};
}

/* ---- once more -------------------------------------------------------- */

static void f32(ndrt_rank *r, const product *p)
{
    (p->own ? ndrt_gemm_own : ndrt_gemm)(
        r, p->acc, p->m, p->n, p->k, p->a.x, p->a.r, p->a.c, p->b.x, p->b.r,
        p->b.c, p->c, p->c_r, p->c_c);
}

static void bf16(ndrt_rank *r, const product *p)
{
    (p->own ? ndrt_gemm_bf16_own : ndrt_gemm_bf16)(
        r, p->acc, p->m, p->n, p->k, p->a.x, p->a.r, p->a.c, p->b.x, p->b.r,
        p->b.c, p->c, p->c_r, p->c_c);
}

static void f16(ndrt_rank *r, const product *p)
{
    (p->own ? ndrt_gemm_f16_own : ndrt_gemm_f16)(
        r, p->acc, p->m, p->n, p->k, p->a.x, p->a.r, p->a.c, p->b.x, p->b.r,
        p->b.c, p->c, p->c_r, p->c_c);
}

/* By every thread of the team, as what a stage runs. */
static void again(ndrt_rank *r, void *arg)
{
    (void)arg;
    list *l = &r->state->products->of[r->thread];
    void (*const by_width[])(ndrt_rank *, const product *) = {
        [NDRT_W32] = f32, [NDRT_WBF16] = bf16, [NDRT_WF16] = f16};

    for (size_t i = 0; i < l->n; i++) {
        double t = ndrt_now();
        by_width[l->v[i].width](r, &l->v[i]);
        l->v[i].seconds = ndrt_now() - t;
    }
}

/* ---- shapes ----------------------------------------------------------- */

static bool transposed(const ndrt_matrix *a)
{
    return a->r < a->c;
}

static bool alike(const product *x, const product *y)
{
    return x->width == y->width && x->own == y->own && x->acc == y->acc &&
           x->m == y->m && x->n == y->n && x->k == y->k &&
           transposed(&x->a) == transposed(&y->a) &&
           transposed(&x->b) == transposed(&y->b);
}

static shape *shape_of(ndrt_products *p, const product *x)
{
    size_t room = (size_t)p->shapes_room;

    for (int i = 0; i < p->nshapes; i++)
        if (alike(&p->shapes[i].like, x))
            return &p->shapes[i];
    if (!grow(&p->shapes, &room, (size_t)p->nshapes, sizeof *p->shapes))
        return NULL;
    p->shapes_room = (int)room;
    p->shapes[p->nshapes] = (shape){.like = *x};
    return &p->shapes[p->nshapes++];
}

/* A product that the threads share is in the list of each. */
static double count(ndrt_products *p)
{
    double flop = 0.0;

    for (int t = 0; t < p->nthreads; t++) {
        int sharers = 0;
        for (int u = 0; u < p->nthreads; u++)
            sharers += p->of[u].n > 0;
        for (size_t i = 0; i < p->of[t].n; i++) {
            const product *x = &p->of[t].v[i];
            double part = x->own ? 1.0 : 1.0 / sharers;
            double work = 2.0 * part * (double)x->m * (double)x->n *
                          (double)x->k;
            shape *s = shape_of(p, x);
            flop += work;
            if (!s) {
                p->lost = true;
                continue;
            }
            s->calls += part;
            s->flop += work;
            s->seconds += x->seconds / sharers;
        }
    }
    return flop;
}

/* ---- around a step ---------------------------------------------------- */

ndrt_status ndrt_products_open(ndrt_rank *r)
{
    ndrt_products *p;

    if (!r->state->config->products_path)
        return NDRT_OK;
    p = r->state->products = calloc(1, sizeof *p);
    if (p) {
        p->nthreads = ndrt_threads(r);
        p->of = calloc((size_t)p->nthreads, sizeof *p->of);
    }
    return p && p->of ? NDRT_OK
                      : ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
}

void ndrt_products_free(ndrt_products *p)
{
    if (!p)
        return;
    for (int t = 0; p->of && t < p->nthreads; t++)
        free(p->of[t].v);
    free(p->of);
    free(p->shapes);
    free(p->aside);
    free(p->step);
    free(p->alone);
    free(p);
}

void ndrt_products_begin(ndrt_rank *r)
{
    ndrt_products *p = r->state->products;

    if (!p)
        return;
    for (int t = 0; t < p->nthreads; t++)
        p->of[t].n = 0;
    p->on = true;
    p->began = ndrt_now();
}

/* Until all ranks are here, none has put anything aside. */
static ndrt_status meet(ndrt_rank *r, double *flop)
{
    ndrt_products *p = r->state->products;
    struct rusage usage;

    if (p->peak_bytes == 0.0 && getrusage(RUSAGE_SELF, &usage) == 0)
        p->peak_bytes = 1024.0 * (double)usage.ru_maxrss;
    return ndrt_sum_doubles(r, flop, 1);
}

/* All together: from the first that begins to the last that ends, as ranks may
 * take turns on a CPU. */
static ndrt_status run_again(ndrt_rank *r, double *seconds)
{
    ndrt_products *p = r->state->products;
    size_t bytes = ndrt_arena_bytes(r->state->course, r->device);
    double none = 0.0, at[2], first, last;

    if (!p->aside)
        p->aside = malloc(bytes ? bytes : 1);
    if (!p->aside)
        p->lost = true;
    else
        memcpy(p->aside, r->arena, bytes);
    ndrt_status s = ndrt_sum_doubles(r, &none, 1);
    at[0] = ndrt_now();
    if (s == NDRT_OK && !p->lost)
        s = ndrt_together(r, again, NULL);
    at[1] = ndrt_now();
    if (p->aside)
        memcpy(r->arena, p->aside, bytes);
    if (s == NDRT_OK)
        s = ndrt_gather_doubles(r, at, 2);
    first = at[0];
    last = at[1];
    for (int q = 0; s == NDRT_OK && q < r->state->comm->size; q++) {
        const double *its = &r->state->all[2 * q];
        first = its[0] < first ? its[0] : first;
        last = its[1] > last ? its[1] : last;
    }
    *seconds = last - first;
    return s;
}

static bool keep(ndrt_products *p, double step, double alone)
{
    if (p->n == p->room) {
        int room = p->room ? 2 * p->room : 64;
        double *x = realloc(p->step, (size_t)room * sizeof *x);
        p->step = x ? x : p->step;
        double *y = realloc(p->alone, (size_t)room * sizeof *y);
        p->alone = y ? y : p->alone;
        if (!x || !y)
            return false;
        p->room = room;
    }
    p->step[p->n] = step;
    p->alone[p->n++] = alone;
    return true;
}

ndrt_status ndrt_products_end(ndrt_rank *r)
{
    ndrt_products *p = r->state->products;
    bool last = r->step == r->state->config->train.steps;
    double flop, none = 0.0, alone;

    if (!p)
        return NDRT_OK;
    double step = ndrt_now() - p->began;
    p->on = false;
    if (r->step == r->state->start + 1 && !last)
        return NDRT_OK;
    ndrt_status s = meet(r, &none);
    if (s == NDRT_OK)
        s = run_again(r, &alone);
    if (s != NDRT_OK)
        return s;
    flop = count(p);
    s = ndrt_sum_doubles(r, &flop, 1);
    p->flop = flop;
    p->lost |= !keep(p, step, alone);
    ndrt_log_skip(r);
    return s;
}

/* ---- the file --------------------------------------------------------- */

static void put_shape(FILE *f, const shape *s, int steps)
{
    const product *x = &s->like;

    fprintf(f, " {\"type\":\"%s\",\"m\":%lld,\"n\":%lld,\"k\":%lld,"
            "\"a\":\"%s\",\"b\":\"%s\",\"add\":%s,\"own\":%s,\"calls\":%.6g,"
            "\"flop\":%.9g,\"seconds\":%.6g}",
            width_names[x->width], (long long)x->m,
            (long long)x->n, (long long)x->k,
            transposed(&x->a) ? "columns" : "rows",
            transposed(&x->b) ? "columns" : "rows", x->acc ? "true" : "false",
            x->own ? "true" : "false", s->calls / steps, s->flop / steps,
            s->seconds / steps);
}

static int by_work(const void *a, const void *b)
{
    const shape *x = a, *y = b;

    return (x->flop < y->flop) - (x->flop > y->flop);
}

static void put(FILE *f, ndrt_rank *r)
{
    ndrt_products *p = r->state->products;
    int steps = p->n > 0 ? p->n : 1;
    double step = trace_median(p->step, p->n);
    double alone = trace_median(p->alone, p->n);

    fprintf(f, "{\"program\":\"%s\",\"ranks\":%d,\"threads\":%d,"
            "\"library\":\"%s\",\"tokens\":%lld,\n \"step_s\":%.6g,"
            "\"products_s\":%.6g,\"flop\":%.9g,\"peak_bytes\":%.10g,"
            "\"shapes\":[\n", r->program->name, r->state->comm->size,
            p->nthreads, ndrt_mm_name,
            (long long)ndrt_step_tokens(r->program), step, alone, p->flop,
            p->peak_bytes);
    if (p->nshapes > 0)
        qsort(p->shapes, (size_t)p->nshapes, sizeof *p->shapes, by_work);
    for (int i = 0; i < p->nshapes; i++) {
        put_shape(f, &p->shapes[i], steps);
        fputs(i + 1 < p->nshapes ? ",\n" : "\n", f);
    }
    fputs("]}\n", f);
    if (alone > 0.0 && step > 0.0)
        ndrt_log_note(r, "products of a step, alone: %.4g s, %.1f GFLOP/s; a "
                      "step takes %.4g s, of which they are %.0f%%", alone,
                      1e-9 * p->flop / alone, step, 100.0 * alone / step);
}

ndrt_status ndrt_products_write(ndrt_rank *r)
{
    ndrt_products *p = r->state->products;
    const char *path = r->state->config->products_path;

    if (p && p->lost)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for the products");
    if (!p || r->rank != 0)
        return NDRT_OK;
    FILE *f = fopen(path, "we");
    if (!f)
        return ndrt_fail(r, NDRT_EINPUT, "cannot write \"%s\": %s", path,
                         strerror(errno));
    put(f, r);
    bool bad = ferror(f) != 0;
    bad |= fclose(f) != 0;
    return bad ? ndrt_fail(r, NDRT_EINPUT, "cannot write \"%s\"", path)
               : NDRT_OK;
}
