/* eval_struct.c - repeat, accumulate, output.
 *
 * A repeat runs its body once per index, or over its stage's range of the
 * pipelined axis. An iteration's values live in a frame of their own; what is
 * carried or stacked is copied out before the frame goes.
 */
#include "priv.h"

#include <string.h>

/* ---- repeat -------------------------------------------------------------- */

static int64_t product(const int64_t *n, int from, int to)
{
    int64_t p = 1;
    for (int i = from; i < to; i++)
        p *= n[i];
    return p;
}

/* The slice of a scanned operand at one index of its axis k. */
static bool slice_arg(ev_stage *s, const nd_op *op, int i, int64_t iter)
{
    const nd_value *arg = op->body->args.v[i];
    const ev_piece *x = ev_get(s, op, op->in[i]);
    if (!x)
        return false;
    int rank = op->in[i]->type.rank;
    int k = nd_axis_at(&op->in[i]->type, op->axes[0]);
    ev_piece *y = ev_alloc(s, s->cur->arena, &arg->type);
    for (int r = 0; r < s->nranks; r++) {
        int64_t outer = product(x[r].n, 0, k);
        int64_t inner = product(x[r].n, k + 1, rank);
        int64_t at = iter - x[r].off[k];
        if (at < 0 || at >= x[r].n[k] || outer * inner != y[r].count)
            return ev_error(s, op, "operand %%%s does not hold iteration %lld",
                            op->in[i]->name, (long long)iter);
        for (int64_t o = 0; o < outer; o++)
            memcpy(y[r].v + o * inner, x[r].v + (o * x[r].n[k] + at) * inner,
                   sizeof(double) * (size_t)inner);
    }
    nd_table_put(&s->cur->table, arg, y);
    return true;
}

static bool stack(ev_stage *s, const nd_op *op, int64_t iter, ev_piece *to,
                  const ev_piece *y)
{
    for (int r = 0; r < s->nranks; r++) {
        if (to[r].count != y[r].count * to[r].n[0])
            return ev_error(s, op, "what is stacked changes its size");
        memcpy(to[r].v + (iter - to[r].off[0]) * y[r].count, y[r].v,
               sizeof(double) * (size_t)y[r].count);
    }
    return true;
}

/* One iteration in the current frame: `carry` goes in and the next one comes
 * out, in the arena of the frame around it. */
static bool iterate(ev_stage *s, const nd_op *op, int64_t iter,
                    ev_piece **carry, ev_piece **stacked)
{
    const nd_block *b = op->body;
    for (int i = 0; i < op->nin; i++) {
        if (i < op->ncarry)
            nd_table_put(&s->cur->table, b->args.v[i], carry[i]);
        else if (!slice_arg(s, op, i, iter))
            return false;
    }
    for (int i = 0; i < b->ops.n; i++)
        if (!ev_run(s, b->ops.v[i]))
            return false;
    for (int i = 0; i < op->nout; i++) {
        const ev_piece *y = ev_get(s, op, b->yields.v[i]);
        if (!y)
            return false;
        if (i < op->ncarry)
            carry[i] = ev_copy(s, s->cur->up->arena, y);
        else if (!stack(s, op, iter, stacked[i], y))
            return false;
    }
    return true;
}

bool eval_repeat(ev_stage *s, const nd_op *op)
{
    ev_frame *outer = s->cur;
    ev_piece **value = ND_NEWN(outer->arena, ev_piece *, op->nout + 1);
    for (int i = 0; i < op->ncarry; i++)
        if (!(value[i] = ev_get(s, op, op->in[i])))
            return false;
    for (int i = op->ncarry; i < op->nout; i++)
        value[i] = ev_alloc(s, outer->arena, &op->out[i]->type);
    int64_t lo, hi;
    nd_stage_range(s->w->m, s->plan ? s->index : -1, op->axes[0], &lo, &hi);
    bool ok = true;
    for (int64_t k = lo; ok && k < hi; k++) {
        s->cur = ev_frame_new(outer);
        s->cur->axis = op->axes[0];
        s->cur->iter = op->reverse ? lo + hi - 1 - k : k;
        ok = iterate(s, op, s->cur->iter, value, value);
        ev_frame_free(s->cur);
        s->cur = outer;
    }
    for (int i = 0; i < op->nout; i++)
        nd_table_put(&outer->table, op->out[i], value[i]);
    return ok;
}

/* ---- effects ------------------------------------------------------------- */

/* The accumulator has the param's axes, cut and pending as the gradient is;
 * microbatches are what it sums over. */
static bool open_gradient(ev_stage *s, const nd_op *op, const nd_param *p,
                          ev_record *acc)
{
    const nd_type *g = &op->in[0]->type;
    nd_type t = p->value->type;
    for (int i = 0; i < t.rank; i++) {
        int k = nd_axis_at(g, t.axis[i]);
        t.cut[i] = k < 0 ? (nd_cut){0} : g->cut[k];
    }
    t.sum = g->sum & ~(1u << s->w->m->mesh.micro);
    t.max = 0;
    if (acc->set) {
        if (!nd_same_cut(&acc->type, &t))
            return ev_error(s, op, "two kinds of gradient for \"%s\"",
                            p->name);
        return true;
    }
    acc->set = true;
    acc->stage = s->index;
    acc->type = t;
    acc->mb = ND_NEWN(s->w->arena, ev_piece *, s->w->nmicro);
    acc->mb[0] = ev_alloc(s, s->w->arena, &t);
    return true;
}

/* Narrows a piece to the current iteration of `a`, its first axis. */
static bool at_iteration(ev_stage *s, const nd_op *op, const nd_axis *a,
                         nd_type *t, ev_piece *x)
{
    const ev_frame *f = s->cur;
    while (f && f->axis != a)
        f = f->up;
    if (!f || t->axis[0] != a)
        return ev_error(s, op, "not inside a repeat over %s", a->name);
    int64_t i = f->iter - x->off[0], n = x->n[0];
    if (i < 0 || i >= n)
        return ev_error(s, op, "no gradient is kept for iteration %lld",
                        (long long)f->iter);
    nd_drop_axis(t, 0);
    memmove(x->off, x->off + 1, sizeof *x->off * (size_t)t->rank);
    memmove(x->n, x->n + 1, sizeof *x->n * (size_t)t->rank);
    x->v += i * product(x->n, 0, t->rank);
    return true;
}

static bool add_gradient(ev_stage *s, const nd_op *op, const nd_param *p,
                         const ev_record *acc, const ev_piece *g)
{
    const nd_type *tg = &op->in[0]->type;
    for (int r = 0; r < s->nranks; r++) {
        ev_walk w = {0};
        nd_type t = acc->type;
        ev_piece to = acc->mb[0][r];
        for (int k = 0; k < p->nlayers; k++)
            if (nd_axis_at(tg, p->layer[k].axis) < 0 &&
                !at_iteration(s, op, p->layer[k].axis, &t, &to))
                return false;
        ev_over(&w, tg, &g[r], NULL);
        ev_bind(&w, &t, &to, NULL);
        ev_bind(&w, tg, &g[r], NULL);
        if (w.bad)
            return ev_error(s, op, "the gradient is not this rank's piece");
        for (bool go = ev_start(&w); go; go = ev_step(&w)) {
            double *sum = &w.v[0][w.at[0]];
            *sum = ev_round(s, acc->type.dtype, *sum + w.v[1][w.at[1]]);
        }
    }
    return true;
}

bool eval_accum(ev_stage *s, const nd_op *op)
{
    nd_module *m = s->w->m;
    const ev_piece *g = ev_get(s, op, op->in[0]);
    int i = 0;
    while (i < m->params.n && strcmp(m->params.v[i]->name, op->name) != 0)
        i++;
    if (!g || i == m->params.n)
        return false;
    ev_record *acc = &s->grad[i];
    return open_gradient(s, op, m->params.v[i], acc) &&
           add_gradient(s, op, m->params.v[i], acc, g);
}

bool eval_output(ev_stage *s, const nd_op *op)
{
    const ev_piece *x = ev_get(s, op, op->in[0]);
    if (!x)
        return false;
    for (int i = 0; i < s->w->m->outputs.n; i++)
        if (s->w->m->outputs.v[i] == op)
            ev_keep(s, &s->w->output[i], &op->in[0]->type, x);
    return true;
}
