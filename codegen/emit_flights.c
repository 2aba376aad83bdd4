/* emit_flights.c - calls that start early and are waited for late.
 *
 *   start_all_gather(r, T_up_w, G_dp, X_d_dp, up_w, w, 1, 6, 13);
 *   ...
 *   ndrt_wait(r, T_up_w);
 *
 * What a repeat gathers one iteration ahead has a function that starts it for
 * any iteration, called before the repeat and then where the call before it was
 * waited for:
 *
 *   ndrt_wait(r, T_up_w);
 *   if (l + 1 < 12)
 *       gather_up_w(r, l + 1);
 */
#include "codegen.h"

#include <string.h>

const char *cg_ticket(cg *g, nd_flight *x)
{
    if (x->ticket < 0) {
        const char *name = cg_value_name(g, x->k->nodes.v[0].op->out[0]);
        x->ticket = g->ticket_name.n;
        ND_PUSH(g->a, &g->ticket_name,
                nd_fmt(g->a, "T_%s", cg_unique(&g->tickets_taken, name)));
    }
    return g->ticket_name.v[x->ticket];
}

static cg_body *emit_ahead(cg *g, nd_flight *x)
{
    cg_body *b = nd_table_get(&g->aheads, x);
    const nd_op *op = x->k->nodes.v[0].op;
    cg_fn f;
    if (b)
        return b;
    b = ND_NEW(g->a, cg_body);
    nd_table_put(&g->aheads, x, b);
    cg_start_caller(&f, g);
    f.in_repeat = x->ahead;
    cg_iter(&f, x->ahead);
    cg_comm(&f, x->k);
    b->name = cg_fresh(&g->global,
                       nd_fmt(g->a, "gather_%s",
                              cg_value_name(g, op->out[0])));
    cg_finish_body(&f, b, g->out);
    return b;
}

/* For iteration `l` of the repeat, inside the iterations around it. */
static void call_ahead(cg_fn *f, nd_flight *x, const char *l)
{
    const cg_body *b = emit_ahead(f->g, x);
    nd_buf s = {.arena = f->g->a};
    f->uses_rank = true;
    nd_putf(&s, "%s(r", b->name);
    for (int i = 0; i < b->iters.n; i++)
        nd_putf(&s, ", %s", b->iters.v[i] == x->ahead
                                ? l
                                : cg_iter(f, b->iters.v[i]));
    cg_line(f, "%s);", s.s);
}

/* The extent of the iterations that this rank has. */
static int iterations_of(cg_fn *f, const nd_flight *x)
{
    nd_ref r;
    nd_ref_of(f->g->c, x->k->nodes.v[0].op->in[0], &r);
    for (int i = 0; i < r.nterms; i++)
        if (r.term[i].repeat == x->ahead && !r.term[i].turn)
            return r.term[i].base;
    return -1;
}

static void start_next(cg_fn *f, nd_flight *x)
{
    const char *l = cg_iter(f, x->ahead);
    int ext = iterations_of(f, x);
    const char *first = cg_start(f, ext);
    if (x->ahead->reverse) {
        cg_line(f, "if (%s > %s)", l, first);
    } else {
        const char *n = cg_count(f, ext);
        cg_line(f, "if (%s + 1 < %s)", l,
                strcmp(first, "0") == 0 ? n : cg_sum(f->g->a, first, n));
    }
    f->indent++;
    call_ahead(f, x, nd_fmt(f->g->a, "%s %c 1", l,
                            x->ahead->reverse ? '-' : '+'));
    f->indent--;
}

static void start_first(cg_fn *f, const nd_kernel *repeat, int stage)
{
    const nd_op *op = repeat->nodes.v[0].op;
    int64_t lo, hi;
    cg_range(f->g, op, stage, &lo, &hi);
    for (int i = 0; i < repeat->body->flights.n && lo < hi; i++) {
        nd_flight *x = repeat->body->flights.v[i];
        if (x->ahead)
            call_ahead(f, x, nd_fmt(f->g->a, "%lld",
                                    (long long)(op->reverse ? hi - 1 : lo)));
    }
}

/* Ends come first: what starts here may write where they read. */
void cg_flights(cg_fn *f, const nd_kernels *list, int i, int stage)
{
    for (int j = 0; j < list->flights.n; j++) {
        nd_flight *x = list->flights.v[j];
        if (x->wait != i)
            continue;
        f->uses_rank = true;
        cg_line(f, "ndrt_wait(r, %s);", cg_ticket(f->g, x));
        if (x->ahead)
            start_next(f, x);
        cg_mark_end(f, x->k, NULL);
    }
    for (int j = 0; j < list->flights.n; j++) {
        nd_flight *x = list->flights.v[j];
        if (x->start != i || x->ahead)
            continue;
        cg_comm(f, x->k);
        cg_mark_end(f, x->k, NULL);
    }
    for (int j = i; j < list->v.n; j++)
        if (list->v.v[j]->body && list->v.v[j]->early == i)
            start_first(f, list->v.v[j], stage);
}
