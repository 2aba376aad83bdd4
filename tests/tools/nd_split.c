/* nd_split.c - is backward in two halves the same backward?
 *
 *   nd_split FILE [--mesh=... --plan=FILE --model=NAME --set a=N] [--costs]
 *
 * Compiles the program for a schedule that knows B alone and for one that tells
 * I from W, runs both on all ranks of the mesh and fails unless the loss, every
 * output and every element of every gradient is the same, to the last bit.
 * Prints a line per stage: what W needs of I, and the work in both. --costs
 * prints that alone.
 *
 *   stage 0: 12 ops wait, 5120 bytes of all layers are kept for them, flops ...
 */
#include "../../frontend/frontend.h"
#include "../../passes/passes.h"

#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *path;
    bool costs;
    nd_front_options front;
} options;

static nd_module *compile(const options *o, sched_kind k)
{
    nd_ctx *c = nd_ctx_new();
    int file = nd_read_file(c, o->path);
    nd_module *m = file ? nd_frontend(c, file, &o->front) : NULL;
    nd_options p = {.verify_each = true};
    if (m)
        m->plan.schedule = k;
    if (m && nd_run_until(m, &p, "pipeline"))
        return m;
    if (!file)
        fprintf(stderr, "nd_split: cannot read %s\n", o->path);
    nd_ctx_free(c);
    return NULL;
}

static int make_feeds(nd_module *m, nd_arena *a, nd_feed *feeds)
{
    for (int i = 0; i < m->inputs.n; i++) {
        const nd_value *v = m->inputs.v[i];
        nd_tensor *t = nd_made_up(m, v, 7, 1);
        nd_leave_out(m, v, 7, 1, t);
        feeds[i] = (nd_feed){nd_strdup(a, v->def->name), t};
    }
    return m->inputs.n;
}

static bool same(const char *what, const char *name, const nd_tensor *x,
                 const nd_tensor *y)
{
    if (x->n == y->n && memcmp(x->v, y->v, sizeof *x->v * (size_t)x->n) == 0)
        return true;
    int64_t i = 0;
    while (i < x->n && i < y->n && memcmp(&x->v[i], &y->v[i], 8) == 0)
        i++;
    printf("%s %s: element %lld is %.17g, not %.17g\n", what, name,
           (long long)i, y->v[i], x->v[i]);
    return false;
}

static bool compare(const nd_module *a, const nd_module *b,
                    const nd_eval_result *x, const nd_eval_result *y)
{
    nd_tensor lx = {.n = 1, .v = (double *)&x->loss};
    nd_tensor ly = {.n = 1, .v = (double *)&y->loss};
    bool ok = !a->loss || same("loss", "", &lx, &ly);
    for (int i = 0; i < a->outputs.n && i < b->outputs.n; i++)
        ok &= same("output", a->outputs.v[i]->name, x->outputs[i],
                   y->outputs[i]);
    for (int i = 0; x->grads && i < a->params.n; i++)
        ok &= same("gradient", a->params.v[i]->name, x->grads[i], y->grads[i]);
    return ok && a->params.n == b->params.n;
}

/* ---- what it costs ------------------------------------------------------- */

typedef struct cost {
    const nd_module *m;
    nd_table seen;
    int64_t kept;
} cost;

static void keep(cost *c, const nd_value *v)
{
    if (!v->def || v->def->block != c->m->step || v->def->phase != PH_BWD ||
        nd_table_get(&c->seen, v))
        return;
    nd_table_put(&c->seen, v, c);
    int64_t n = (int64_t)nd_dtype_size(v->type.dtype);
    for (int i = 0; i < v->type.rank; i++)
        n *= nd_extent_max(&c->m->mesh, v->type.axis[i]->size, v->type.cut[i]);
    c->kept += n;
}

static void keep_reads(cost *c, const nd_op *op)
{
    for (int i = 0; i < op->nin; i++)
        keep(c, op->in[i]);
    for (int i = 0; op->body && i < op->body->ops.n; i++)
        keep_reads(c, op->body->ops.v[i]);
    for (int i = 0; op->body && i < op->body->yields.n; i++)
        keep(c, op->body->yields.v[i]);
}

static double flops(const nd_module *m, nd_op *const *op, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += nd_op_flops(op[i], &m->mesh);
    return sum;
}

static void report(const nd_module *m)
{
    for (int s = 0; s < m->program->nstages; s++) {
        const nd_stage *st = &m->program->stage[s];
        cost c = {.m = m, .seen = {.arena = m->ctx->arena}};
        for (int i = 0; i < st->wgt.n; i++)
            keep_reads(&c, st->wgt.v[i]);
        printf("stage %d: %d ops wait, %lld bytes of all layers are kept for "
               "them, flops I %.0f W %.0f\n", s, st->wgt.n, (long long)c.kept,
               flops(m, st->bwd.v, st->bwd.n), flops(m, st->wgt.v, st->wgt.n));
    }
}

static int run(const options *o)
{
    nd_module *a = compile(o, SCHED_KIND_1F1B);
    nd_module *b = a ? compile(o, SCHED_KIND_ZB_H1) : NULL;
    nd_eval_result x, y;
    bool ok = b != NULL;
    if (ok)
        report(b);
    if (ok && !o->costs) {
        nd_feed *f = ND_NEWN(a->ctx->arena, nd_feed, a->inputs.n + 1);
        nd_eval_options e = {.training = true, .seed = 7, .step = 1,
                             .feeds = f};
        e.nfeeds = make_feeds(a, a->ctx->arena, f);
        ok = nd_eval(a, &e, &x) && nd_eval(b, &e, &y) && compare(a, b, &x, &y);
        printf("%s\n", ok ? "equal" : "DIFFERS");
    }
    if (a)
        nd_ctx_free(a->ctx);
    if (b)
        nd_ctx_free(b->ctx);
    return !ok;
}

static const char *value(const char *name, const char *arg)
{
    size_t n = strlen(name);
    return strncmp(arg, name, n) || arg[n] != '=' ? NULL : arg + n + 1;
}

int main(int argc, char **argv)
{
    options o = {.path = NULL};
    const char **set = calloc((size_t)argc, sizeof *set);
    bool bad = !set;
    o.front.set = set;
    for (int i = 1; i < argc && !bad; i++) {
        const char *v;
        if ((v = value("--mesh", argv[i])))
            o.front.mesh = v;
        else if ((v = value("--plan", argv[i])))
            o.front.plan_path = v;
        else if ((v = value("--model", argv[i])))
            o.front.model = v;
        else if (!strcmp(argv[i], "--costs"))
            o.costs = true;
        else if (!strcmp(argv[i], "--set") && i + 1 < argc)
            set[o.front.nset++] = argv[++i];
        else if (argv[i][0] != '-' && !o.path)
            o.path = argv[i];
        else
            bad = true;
    }
    if (bad || !o.path)
        fprintf(stderr, "usage: nd_split FILE [--mesh=.. --plan=.. --model=.. "
                "--set a=N] [--costs]\n");
    int rc = bad || !o.path ? 2 : run(&o);
    free(set);
    return rc;
}
