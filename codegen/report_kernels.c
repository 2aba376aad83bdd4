/* report_kernels.c - cg_report_kernels: the bytes that each kernel reads and
 * writes in a step, beside the least it could do with; then how they add up,
 * and which values cost the most.
 *
 *   kernel           kind   from        calls     read  written  ratio    GFLOP
 *   layers_ln1_fwd   loop   gpt.nd:33      48   18.874   37.749   1.00    0.038
 *
 * Megabytes of 10^6 bytes, or what suits their sum. What a row, or whatever a
 * nest comes back to soon, finds in the cache counts once: passes/traffic.c.
 */
#include "codegen.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_VALUES = 10 };

typedef struct figures {
    double calls, read, written, least, flops;
} figures;

typedef struct report {
    cg *g;
    nd_arena *a;
    nd_buf *b;
    cg_works works;
    figures all;
    int bytes, flops;                /* units */
    int name, kind, where;           /* widths of columns */
} report;

/* ---- units --------------------------------------------------------------- */

static const struct {
    double one;
    const char *bytes, *flops;
} units[] = {{1, "bytes", "FLOP"}, {1e3, "kB", "kFLOP"},
             {1e6, "MB", "MFLOP"}, {1e9, "GB", "GFLOP"}};

/* The sum has four digits or more. */
static int unit_for(double sum)
{
    int u = 0;
    while (u < 3 && sum >= 1000 * units[u + 1].one)
        u++;
    return u;
}

static const char *in_unit(const report *r, double x, int unit)
{
    return nd_fmt(r->a, unit ? "%.3f" : "%.0f", x / units[unit].one);
}

static const char *bytes_text(const report *r, double bytes)
{
    return in_unit(r, bytes, r->bytes);
}

/* ---- rows ---------------------------------------------------------------- */

static void add(figures *sum, const cg_work *w)
{
    sum->calls += w->calls;
    sum->read += w->calls * w->read;
    sum->written += w->calls * w->written;
    sum->least += w->calls * w->least;
    sum->flops += w->calls * w->flops;
}

static void put_row(report *r, const char *name, const char *kind,
                    const char *where, const figures *x)
{
    nd_putf(r->b, "  %-*s  %-*s  %-*s %6.0f %10s %10s", r->name, name,
            r->kind, kind, r->where, where, x->calls, bytes_text(r, x->read),
            bytes_text(r, x->written));
    if (x->least > 0)
        nd_putf(r->b, " %6.2f", (x->read + x->written) / x->least);
    else
        nd_putf(r->b, " %6s", "-");
    nd_putf(r->b, " %11s\n", in_unit(r, x->flops, r->flops));
}

static int wider(int width, const char *s)
{
    int n = (int)strlen(s);
    return n > width ? n : width;
}

static void put_kernels(report *r)
{
    r->name = 6;
    r->kind = 10;
    r->where = 4;
    for (int i = 0; i < r->works.n; i++) {
        r->name = wider(r->name, r->works.v[i].name);
        r->kind = wider(r->kind, r->works.v[i].kind);
        r->where = wider(r->where, r->works.v[i].where);
    }
    nd_putf(r->b, "\n  %-*s  %-*s  %-*s %6s %10s %10s %6s %11s\n", r->name,
            "kernel", r->kind, "kind", r->where, "from", "calls", "read",
            "written", "ratio", units[r->flops].flops);
    for (int i = 0; i < r->works.n; i++) {
        const cg_work *w = &r->works.v[i];
        figures x = {0};
        add(&x, w);
        put_row(r, w->name, w->kind, w->where, &x);
    }
}

static void put_sums(report *r)
{
    nd_put(r->b, "\n");
    for (int k = 0; k < WORK_NCLASSES; k++) {
        figures x = {0};
        for (int i = 0; i < r->works.n; i++)
            if (r->works.v[i].class == (cg_class)k)
                add(&x, &r->works.v[i]);
        if (x.calls > 0)
            put_row(r, "sum", cg_class_names[k], "", &x);
    }
    put_row(r, "sum", "all", "", &r->all);
}

/* ---- the program --------------------------------------------------------- */

static double output_bytes(const report *r)
{
    const nd_module *m = r->g->m;
    double n = 0;
    for (int i = 0; i < m->outputs.n; i++)
        n += nd_local_bytes(&m->outputs.v[i]->in[0]->type, &m->mesh);
    return n * m->program->nmicro;
}

/* Weights and the optimizer's state come and go, inputs come, outputs go. */
static void put_least(report *r)
{
    const nd_memplan *mem = &r->g->c->mem;
    double read = 0, written = output_bytes(r);
    for (int d = 0; d < r->g->m->program->ndevices; d++) {
        const nd_device_mem *x = &mem->device[d];
        read += (double)(x->weight_bytes + x->state_bytes + x->input_bytes);
        written += (double)(x->weight_bytes + x->state_bytes);
    }
    nd_putf(r->b, "\n  least of the program: %s read, %s written: weights, "
            "state, inputs and outputs\n  once; all kernels move %.1f times "
            "that\n", bytes_text(r, read), bytes_text(r, written),
            (r->all.read + r->all.written) / (read + written));
}

/* ---- values -------------------------------------------------------------- */

typedef struct cost {
    const nd_value *v;
    double read, written;            /* in a step */
    int readers;                     /* kernels */
} cost;

typedef ND_VEC(cost) costs;

/* What lies in the arena for the step's own sake. */
static bool is_between(const nd_access *x)
{
    const nd_value *v = x->at.value;
    return !x->at.param && v && !(v->def && v->def->kind == OP_INPUT);
}

static costs costs_of(report *r)
{
    costs all = {0};
    nd_table at = {.arena = r->a};
    for (int i = 0; i < r->g->marks.n; i++) {
        const cg_mark *m = &r->g->marks.v[i];
        for (int j = 0; j < m->t.v.n; j++) {
            const nd_access *x = &m->t.v.v[j];
            if (!is_between(x))
                continue;
            int k = (int)(intptr_t)nd_table_get(&at, x->at.value);
            if (!k) {
                ND_PUSH(r->a, &all, ((cost){.v = x->at.value}));
                k = all.n;
                nd_table_put(&at, x->at.value, (void *)(intptr_t)k);
            }
            all.v[k - 1].read += (double)m->calls * x->reads;
            all.v[k - 1].written += (double)m->calls * x->writes;
            all.v[k - 1].readers += x->read;
        }
    }
    return all;
}

static int by_cost(const void *a, const void *b)
{
    const cost *x = a, *y = b;
    double p = x->read + x->written, q = y->read + y->written;
    return p != q ? (p < q) - (p > q) : x->v->mark - y->v->mark;
}

static void put_values(report *r)
{
    costs all = costs_of(r);
    int n = all.n < MOST_VALUES ? all.n : MOST_VALUES, name = 5;
    if (!n)
        return;
    qsort(all.v, (size_t)all.n, sizeof *all.v, by_cost);
    for (int i = 0; i < n; i++)
        name = wider(name, cg_value_name(r->g, all.v[i].v));
    nd_putf(r->b, "\n  values that cost the most traffic\n  %-*s  %10s %10s "
            "%8s  type\n", name, "value", "read", "written", "readers");
    for (int i = 0; i < n; i++) {
        const cost *x = &all.v[i];
        nd_putf(r->b, "  %-*s  %10s %10s %8d  %s\n", name,
                cg_value_name(r->g, x->v), bytes_text(r, x->read),
                bytes_text(r, x->written), x->readers,
                cg_type(r->g, &x->v->type));
    }
}

bool cg_report_kernels(nd_module *m, nd_buf *out)
{
    nd_buf text = {.arena = m->ctx->arena};
    cg *g = cg_emit(m, CG_MARKS, &text);
    if (!g)
        return false;
    report r = {.g = g, .a = g->a, .b = out, .works = cg_works_of(g)};
    for (int i = 0; i < r.works.n; i++)
        add(&r.all, &r.works.v[i]);
    r.bytes = unit_for(r.all.read + r.all.written);
    r.flops = unit_for(r.all.flops);
    nd_putf(out, "kernels of %s: %s that they read and write in a step, by one "
            "rank%s\n", m->name, units[r.bytes].bytes,
            m->program->nstages > 1 ? " of each stage" : "");
    put_kernels(&r);
    put_sums(&r);
    put_least(&r);
    put_values(&r);
    return true;
}
