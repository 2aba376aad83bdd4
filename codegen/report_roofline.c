/* report_roofline.c - cg_report_roofline: where the time of a run went, and how
 * far each kernel is from its limit.
 *
 *    time  calls      each  GFLOP/s   GB/s  of its limit    kernel
 *   12.3%     48   1.23 ms    180.2    9.1   92% products   up_y      gpt.nd:26
 *    3.1%     48  210.0 us      2.0   18.1   88% memory     ln1_fwd   gpt.nd:33
 *
 * Times are from a profile (runtime/profile.c), flops and bytes from works.c. A
 * kernel cannot take less than its flops at the rate of large products, nor its
 * bytes at that of large copies, both as the run has measured them; the longer
 * one of these two is its limit. Bytes that are in the caches already come
 * faster, so small kernels may be beyond it.
 */
#include "codegen.h"

#include <stdlib.h>
#include <string.h>

typedef struct row {
    const cg_time *t;
    const cg_work *w;                /* NULL: bytes are not known */
    const char *kind, *where;
    cg_class class;
    double seconds, calls;           /* of the run, by all ranks */
    double limit;                    /* seconds; 0: none is known */
    bool memory;                     /* it is that of memory */
} row;

typedef struct report {
    cg *g;
    nd_ctx *c;
    nd_arena *a;
    nd_buf *b;
    cg_profile p;
    cg_works works;
    ND_VEC(row) rows;
    double all;                      /* seconds */
} report;

/* ---- does the profile belong to the program? ----------------------------- */

static bool check_program(report *r)
{
    const nd_module *m = r->g->m;
    const char *key = nd_fmt(r->a, "%016llx",
                             (unsigned long long)cg_marks_key(r->g));
    if (strcmp(r->p.program, m->name) != 0) {
        nd_error(r->c, r->p.program_at, "this is a profile of `%s`; the "
                 "program is `%s`", r->p.program, m->name);
        return false;
    }
    if (strcmp(r->p.key, key) != 0) {
        nd_error(r->c, r->p.key_at, "this is a profile of another `%s`: its "
                 "source, sizes or plan have changed since; build it again "
                 "with --marks and run it", m->name);
        return false;
    }
    return true;
}

static const cg_work *work_named(const report *r, const char *name,
                                 bool runtime)
{
    for (int i = 0; i < r->works.n; i++)
        if ((r->works.v[i].class == WORK_RUNTIME) == runtime &&
            !strcmp(r->works.v[i].name, name))
            return &r->works.v[i];
    return NULL;
}

static bool no_kernel(report *r, const cg_time *t)
{
    const char **names = ND_NEWN(r->a, const char *, r->g->marks.n + 1);
    for (int i = 0; i < r->g->marks.n; i++)
        names[i] = r->g->marks.v[i].name;
    const char *near = nd_nearest(t->name, names, r->g->marks.n);
    nd_error(r->c, t->loc, "no kernel is called `%s`%s%s%s", t->name,
             near ? "; did you mean `" : "", near ? near : "",
             near ? "`?" : "");
    return false;
}

/* ---- rows ---------------------------------------------------------------- */

static void set_limit(report *r, row *x)
{
    const cg_work *w = x->w;
    if (!w || w->class == WORK_COMM)
        return;
    double memory = (w->read + w->written) / r->p.copy;
    double work = w->flops / (w->narrow ? r->p.bf16 : r->p.product);
    x->memory = memory > work;
    x->limit = x->calls * (x->memory ? memory : work);
}

static void add_row(report *r, const cg_time *t, const cg_work *w)
{
    row x = {.t = t, .w = w, .kind = cg_class_names[WORK_RUNTIME],
             .where = "", .class = WORK_RUNTIME, .seconds = t->seconds,
             .calls = t->calls};
    if (w) {
        x.kind = w->kind;
        x.where = w->where;
        x.class = w->class;
        x.calls /= w->ends;
    }
    set_limit(r, &x);
    r->all += x.seconds;
    if (x.calls > 0)
        ND_PUSH(r->a, &r->rows, x);
}

static bool make_rows(report *r)
{
    nd_table seen = {.arena = r->a, .strings = true};
    for (int i = 0; i < r->p.kernels.n; i++) {
        const cg_time *t = &r->p.kernels.v[i];
        const cg_work *w = work_named(r, t->name, false);
        if (!w)
            return no_kernel(r, t);
        if (nd_table_get(&seen, t->name)) {
            nd_error(r->c, t->loc, "`%s` for the second time", t->name);
            return false;
        }
        nd_table_put(&seen, t->name, (void *)w);
        add_row(r, t, w);
    }
    if (r->p.kernels.n < r->g->marks.n) {
        nd_error(r->c, r->p.key_at, "the profile has %d of the %d kernels of "
                 "`%s`", r->p.kernels.n, r->g->marks.n, r->g->m->name);
        return false;
    }
    for (int i = 0; i < r->p.runtime.n; i++) {
        const cg_time *t = &r->p.runtime.v[i];
        add_row(r, t, work_named(r, t->name, true));
    }
    return true;
}

static int by_time(const void *a, const void *b)
{
    const row *x = a, *y = b;
    if (x->seconds != y->seconds)
        return (x->seconds < y->seconds) - (x->seconds > y->seconds);
    return (x->t > y->t) - (x->t < y->t);
}

/* ---- text ---------------------------------------------------------------- */

static const char *limit_text(const report *r, const row *x)
{
    if (x->limit <= 0 || x->seconds <= 0)
        return "-";
    return nd_fmt(r->a, "%3.0f%% %s", 100 * x->limit / x->seconds,
                  x->memory                      ? "memory"
                  : x->class == WORK_PRODUCT ? "products"
                                             : "arithmetic");
}

static const char *rate_text(const report *r, double work, double seconds)
{
    return work > 0 && seconds > 0
               ? nd_fmt(r->a, "%.1f", work / seconds / 1e9) : "-";
}

static void put_row(const report *r, const row *x)
{
    double flops = x->w ? x->calls * x->w->flops : 0;
    double bytes = x->w ? x->calls * (x->w->read + x->w->written) : 0;
    nd_putf(r->b, "  %5.1f%% %6.0f %9s %8s %6s  %-15s %s",
            100 * x->seconds / r->all, x->calls / r->p.steps,
            cg_seconds(r->a, x->seconds / x->calls),
            rate_text(r, flops, x->seconds), rate_text(r, bytes, x->seconds),
            limit_text(r, x), x->t->name);
    if (x->class == WORK_COMM)
        nd_putf(r->b, "  %s", x->kind);
    nd_putf(r->b, "%s%s\n", *x->where ? "  " : "", x->where);
}

static void put_class(const report *r, cg_class class)
{
    double seconds = 0, limit = 0, limited = 0;
    for (int i = 0; i < r->rows.n; i++) {
        const row *x = &r->rows.v[i];
        if (x->class != class)
            continue;
        seconds += x->seconds;
        limit += x->limit;
        limited += x->limit > 0 ? x->seconds : 0;
    }
    if (seconds <= 0)
        return;
    nd_putf(r->b, "  %5.1f%%  %s%s", 100 * seconds / r->all,
            cg_class_names[class], class == WORK_RUNTIME ? "" : "s");
    if (limited > 0)
        nd_putf(r->b, ": at %.0f%% of the limit", 100 * limit / limited);
    nd_put(r->b, "\n");
}

/* Times are sums over ranks: one rank's is their mean. */
static void put_step(const report *r)
{
    double best = 0, each = r->p.ranks * r->p.steps;
    for (int i = 0; i < r->rows.n; i++) {
        const row *x = &r->rows.v[i];
        bool gains = x->limit > 0 && x->limit < x->seconds;
        best += gains ? x->limit : x->seconds;
    }
    nd_putf(r->b, "\n  a step took %s; %s with all kernels at their limits and "
            "the rest as it is\n", cg_seconds(r->a, r->all / each),
            cg_seconds(r->a, best / each));
}

static void put_head(const report *r)
{
    const cg_profile *p = &r->p;
    nd_putf(r->b, "roofline of %s: %.0f rank%s with %.0f thread%s each, %.0f "
            "step%s\n\n  a rank can do   %.1f GFLOP/s in products (bf16 %.1f), "
            "%.1f GB/s in copies\n\n", r->g->m->name, p->ranks,
            p->ranks == 1 ? "" : "s", p->threads, p->threads == 1 ? "" : "s",
            p->steps, p->steps == 1 ? "" : "s", p->product / 1e9,
            p->bf16 / 1e9, p->copy / 1e9);
    nd_putf(r->b, "  %6s %6s %9s %8s %6s  %-15s %s\n", "time", "calls", "each",
            "GFLOP/s", "GB/s", "of its limit", "kernel");
}

bool cg_report_roofline(nd_module *m, int profile, nd_buf *out)
{
    nd_buf text = {.arena = m->ctx->arena};
    report r = {.c = m->ctx, .a = m->ctx->arena, .b = out};
    if (!cg_read_profile(m->ctx, profile, &r.p))
        return false;
    r.g = cg_emit(m, CG_MARKS, &text);
    if (!r.g)
        return false;
    r.works = cg_works_of(r.g);
    if (!check_program(&r) || !make_rows(&r))
        return false;
    qsort(r.rows.v, (size_t)r.rows.n, sizeof *r.rows.v, by_time);
    put_head(&r);
    for (int i = 0; i < r.rows.n; i++)
        put_row(&r, &r.rows.v[i]);
    nd_put(out, "\n");
    for (int k = 0; k < WORK_NCLASSES; k++)
        put_class(&r, (cg_class)k);
    put_step(&r);
    return true;
}
