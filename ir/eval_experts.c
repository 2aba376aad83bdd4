/* eval_experts.c - products by expert, and rows that travel to theirs.
 *
 *   x[rows, d], i[rows, slot] -> [routed, d] on rank r: for each rank q of its
 *   group, in order, the (row, slot) pairs of q whose expert r holds, those of
 *   one expert side by side
 *
 * A rank has room for every row of its group: the rest is 0, and -1 where
 * integers travel, so that it is in no group.
 */
#include "priv.h"

#include <stdlib.h>

static bool misfit(ev_stage *s, const nd_op *op)
{
    return ev_error(s, op, "the operands hold different pieces");
}

static const nd_type *in_type(const nd_op *op, int i)
{
    return &op->in[i]->type;
}

static bool get3(ev_stage *s, const nd_op *op, ev_piece *x[3])
{
    for (int k = 0; k < 3; k++)
        if (!(x[k] = ev_get(s, op, op->in[k])))
            return false;
    return true;
}

static void finish(const ev_stage *s, nd_dtype t, ev_piece *p)
{
    for (int64_t i = 0; i < p->count; i++)
        p->v[i] = ev_round(s, t, p->v[i]);
}

/* ---- products ------------------------------------------------------------ */

/* What all walks of a product by groups share: operand 0 is the result, then
 * x, the other one and the ids. by[0] and by[1] step along the groups in the
 * result and in the other one, and are 0 where they have no such axis. */
static bool start(ev_walk *w, const nd_op *op, ev_piece *out,
                  ev_piece *const x[3], int r, int64_t by[2])
{
    const nd_axis *a = op->axes[0];
    const nd_type *t = &op->out[0]->type;
    ev_over(w, t, out, a);
    for (int k = 0; k < 3; k++)
        ev_over(w, in_type(op, k), &x[k][r], a);
    by[0] = ev_bind(w, t, out, a);
    ev_bind(w, in_type(op, 0), &x[0][r], a);
    by[1] = ev_bind(w, in_type(op, 1), &x[1][r], a);
    ev_bind(w, in_type(op, 2), &x[2][r], a);
    return !w->bad;
}

/* Both products: what has the axis of groups, operand 1 or the result, is read
 * or added to at the group of the row; the step along it is 0 in the other. */
static bool by_group(ev_stage *s, const nd_op *op, bool in_result)
{
    ev_piece *x[3];
    if (!get3(s, op, x))
        return false;
    const nd_value *has = in_result ? op->out[0] : op->in[1];
    int at = nd_axis_at(&has->type, op->axes[0]);
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++) {
        ev_walk w = {0};
        int64_t by[2];
        if (!start(&w, op, &out[r], x, r, by))
            return misfit(s, op);
        for (bool go = ev_start(&w); go; go = ev_step(&w)) {
            int64_t g = ev_row_in(in_result ? &out[r] : &x[1][r], at,
                                  w.v[3][w.at[3]]);
            if (g >= 0)
                w.v[0][w.at[0] + g * by[0]] +=
                    w.v[1][w.at[1]] * w.v[2][w.at[2] + g * by[1]];
        }
        finish(s, op->out[0]->type.dtype, &out[r]);
    }
    return true;
}

bool eval_grouped(ev_stage *s, const nd_op *op)
{
    return by_group(s, op, false);
}

bool eval_grouped_sum(ev_stage *s, const nd_op *op)
{
    return by_group(s, op, true);
}

/* ---- rows that travel ---------------------------------------------------- */

/* A row and slot that rank `from` sends: where it lies there, the ids' places
 * counted in the order of the axes of the route. */
typedef struct row {
    int from;
    int64_t place[ND_MAX_RANK];
    int64_t owner, expert, order;
} row;

static int by_expert(const void *a, const void *b)
{
    const row *x = a, *y = b;
    return x->expert != y->expert ? (x->expert > y->expert) -
                                        (x->expert < y->expert)
                                  : (x->order > y->order) -
                                        (x->order < y->order);
}

/* The coordinate along the route's mesh axis that holds an expert; what is no
 * expert at all goes to the nearest. */
static int64_t owner_of(const ev_stage *s, const nd_route *r, double id)
{
    const nd_module *m = s->w->m;
    if (!(m->state & ND_IS_SHARDED))
        return 0;
    int parts = m->mesh.size[r->over];
    for (int c = 0; c < parts; c++) {
        int coord[ND_MAX_MESH] = {0};
        int64_t off, n;
        coord[r->over] = c;
        nd_extent(&m->mesh, r->experts->size,
                  (nd_cut){1, {(uint8_t)r->over}}, coord, &off, &n);
        if (id < (double)(off + n))
            return c;
    }
    return parts - 1;
}

/* The rows of rank q, by expert. */
static row *rows_of(ev_stage *s, const nd_op *op, const ev_piece *ids, int q)
{
    const nd_route *rt = op->axes[0]->route;
    const nd_type *t = in_type(op, 1);
    row *rows = ND_NEWN(s->w->arena, row, ids[q].count + 1);
    for (int64_t k = 0; k < ids[q].count; k++) {
        int64_t left = k, at[ND_MAX_RANK], order = 0;
        for (int i = t->rank - 1; i >= 0; i--) {
            at[i] = left % ids[q].n[i];
            left /= ids[q].n[i];
        }
        rows[k].from = q;
        for (int i = 0; i < rt->rows.rank; i++) {
            int j = nd_axis_at(t, rt->rows.axis[i]);
            rows[k].place[i] = at[j];
            order = order * ids[q].n[j] + at[j];
        }
        rows[k].order = order;
        rows[k].expert = (int64_t)ids[q].v[k];
        rows[k].owner = owner_of(s, rt, ids[q].v[k]);
    }
    qsort(rows, (size_t)ids[q].count, sizeof *rows, by_expert);
    return rows;
}

/* Element j of the axes of a row that are not the route's. */
typedef struct line {
    int64_t n;                       /* elements */
    int64_t row[ND_MAX_RANK];        /* strides along the route's axes */
    int64_t routed;                  /* stride along the routed axis, or 0 */
    int rank, axis[ND_MAX_RANK];     /* the others, and their strides */
    int64_t len[ND_MAX_RANK], stride[ND_MAX_RANK];
} line;

static line line_of(const nd_op *op, const nd_type *t, const ev_piece *p)
{
    const nd_route *rt = op->axes[0]->route;
    line l = {.n = 1};
    int64_t step = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        int k = nd_axis_at(&rt->rows, t->axis[i]);
        if (k >= 0) {
            l.row[k] = step;
        } else if (t->axis[i] == op->axes[0]) {
            l.routed = step;
        } else {
            l.len[l.rank] = p->n[i];
            l.stride[l.rank++] = step;
            l.n *= p->n[i];
        }
        step *= p->n[i];
    }
    return l;
}

static int64_t element(const line *l, int64_t base, int64_t j)
{
    for (int i = 0; i < l->rank; i++) {
        base += j % l->len[i] * l->stride[i];
        j /= l->len[i];
    }
    return base;
}

static int64_t row_base(const line *l, const nd_route *rt, const row *at)
{
    int64_t base = 0;
    for (int i = 0; i < rt->rows.rank; i++)
        base += at->place[i] * l->row[i];
    return base;
}

void ev_only_arrived(const ev_stage *s, ev_walk *w, int r)
{
    for (int i = 0; i < w->rank; i++) {
        const int64_t *n = w->axis[i]->route
                               ? nd_table_get(&s->arrived, w->axis[i]) : NULL;
        if (n && n[r] < w->n[i])
            w->n[i] = n[r];
    }
}

/* Moves each row between its own rank and the one that holds its expert. */
static bool travel(ev_stage *s, const nd_op *op, bool out_there)
{
    const nd_route *rt = op->axes[0]->route;
    const ev_piece *x = ev_get(s, op, op->in[0]);
    const ev_piece *ids = x ? ev_get(s, op, op->in[1]) : NULL;
    if (!ids)
        return false;
    ev_piece *out = ev_result(s, op, 0);
    const nd_type *tx = in_type(op, 0), *ty = &op->out[0]->type;
    const nd_type *routed = out_there ? ty : tx;
    int at = nd_axis_at(routed, op->axes[0]);
    bool ids_travel = tx->dtype == ND_I32;
    ev_count(s, op);
    row **rows = ND_NEWN(s->w->arena, row *, s->nranks);
    int64_t *arrived = ND_NEWN(s->w->arena, int64_t, s->nranks);
    for (int q = 0; q < s->nranks; q++)
        rows[q] = rows_of(s, op, ids, q);
    for (int r = 0; r < s->nranks; r++) {
        const ev_piece *there = out_there ? &out[r] : &x[r];
        int64_t place = 0, coord = s->coord[r][rt->over];
        bool sharded = s->w->m->state & ND_IS_SHARDED;
        for (int64_t i = 0; out_there && ids_travel && i < out[r].count; i++)
            out[r].v[i] = -1;
        for (int q = 0; q < s->nranks; q++)
            for (int64_t k = 0; k < ids[q].count; k++) {
                const row *w = &rows[q][k];
                if (!ev_same_place(s, q, r, ~op->mesh) ||
                    (sharded && w->owner != coord))
                    continue;
                const ev_piece *here = out_there ? &x[q] : &out[q];
                line a = line_of(op, out_there ? tx : ty, here);
                line b = line_of(op, routed, there);
                if (a.n != b.n || place >= there->n[at])
                    return ev_error(s, op, "no room for a row on rank %d", r);
                for (int64_t j = 0; j < a.n; j++) {
                    double *u = &here->v[element(&a, row_base(&a, rt, w), j)];
                    double *v = &there->v[element(&b, place * b.routed, j)];
                    *(out_there ? v : u) = *(out_there ? u : v);
                }
                place++;
            }
        arrived[r] = place;
    }
    nd_table_put(&s->arrived, op->axes[0], arrived);
    return true;
}

bool eval_dispatch(ev_stage *s, const nd_op *op)
{
    return travel(s, op, true);
}

bool eval_combine(ev_stage *s, const nd_op *op)
{
    return travel(s, op, false);
}
