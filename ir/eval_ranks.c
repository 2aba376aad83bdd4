/* eval_ranks.c - what ranks have to do with each other: collectives, replicas
 * that must agree, and joining pieces into the whole.
 *
 * A group of a collective over mesh axes M is the ranks that differ in M only.
 * Group members are taken in rank order, so every member gets the same bits.
 */
#include "priv.h"

#include <math.h>
#include <string.h>

/* Do two ranks have the same place on all mesh axes of `mask`? */
bool ev_same_place(const ev_stage *s, int a, int b, uint32_t mask)
{
    for (int i = 0; i < s->w->m->mesh.n; i++)
        if (mask >> i & 1 && s->coord[a][i] != s->coord[b][i])
            return false;
    return true;
}

void ev_count(ev_stage *s, const nd_op *op)
{
    for (int r = 0; r < s->nranks; r++) {
        bool first = true;
        for (int i = 0; i < s->w->m->mesh.n; i++)
            if (op->mesh >> i & 1 && s->coord[r][i])
                first = false;
        s->w->r->collectives[op->kind] += first;
    }
}

/* ---- collectives --------------------------------------------------------- */

bool eval_all_reduce(ev_stage *s, const nd_op *op)
{
    const ev_piece *x = ev_get(s, op, op->in[0]);
    if (!x)
        return false;
    const nd_type *t = &op->out[0]->type;
    ev_piece *out = ev_result(s, op, 0);
    ev_count(s, op);
    for (int r = 0; r < s->nranks; r++) {
        bool first = true;
        for (int q = 0; q < s->nranks; q++) {
            if (!ev_same_place(s, q, r, ~op->mesh))
                continue;
            if (x[q].count != out[r].count)
                return ev_error(s, op, "ranks hold pieces of different sizes");
            for (int64_t i = 0; i < x[q].count; i++) {
                double *y = &out[r].v[i], a = x[q].v[i];
                if (op->sub == RED_SUM)
                    *y += a;
                else if (first || (op->sub == RED_MAX ? a > *y : a < *y) ||
                         isnan(a))
                    *y = a;
            }
            first = false;
        }
        for (int64_t i = 0; i < out[r].count; i++)
            out[r].v[i] = ev_round(s, t->dtype, out[r].v[i]);
    }
    return true;
}

/* Each rank fills its piece of the result from the pieces of its group. */
static bool exchange(ev_stage *s, const nd_op *op, bool add)
{
    const ev_piece *x = ev_get(s, op, op->in[0]);
    if (!x)
        return false;
    const nd_type *t = &op->out[0]->type;
    ev_piece *out = ev_result(s, op, 0);
    ev_count(s, op);
    for (int r = 0; r < s->nranks; r++) {
        int64_t moved = 0, members = 0;
        for (int q = 0; q < s->nranks; q++)
            if (ev_same_place(s, q, r, ~op->mesh)) {
                moved += ev_overlap(&x[q], &out[r], t->rank, add);
                members++;
            }
        if (moved != out[r].count * (add ? members : 1))
            return ev_error(s, op, "the group does not hold what rank %d "
                            "needs", r);
        for (int64_t i = 0; i < out[r].count; i++)
            out[r].v[i] = ev_round(s, t->dtype, out[r].v[i]);
    }
    return true;
}

bool eval_reduce_scatter(ev_stage *s, const nd_op *op)
{
    return exchange(s, op, true);
}

bool eval_all_gather(ev_stage *s, const nd_op *op)
{
    return exchange(s, op, false);
}

/* Rank r takes what the rank `by` places further along the axis holds. */
bool eval_shift_ring(ev_stage *s, const nd_op *op)
{
    const ev_piece *x = ev_get(s, op, op->in[0]);
    if (!x)
        return false;
    int k = nd_axis_at(&op->out[0]->type, op->axes[0]);
    int64_t size = op->axes[0]->size;
    ev_piece *out = ev_result(s, op, 0);
    ev_count(s, op);
    for (int r = 0; r < s->nranks; r++) {
        int64_t want = (out[r].off[k] + nd_roll_by(op)) % size;
        int q = 0;
        while (q < s->nranks && !(ev_same_place(s, q, r, ~op->mesh) &&
                                  x[q].n[k] == 1 && x[q].off[k] == want))
            q++;
        if (q == s->nranks || x[q].count != out[r].count)
            return ev_error(s, op, "the group does not hold what rank %d "
                            "needs", r);
        memcpy(out[r].v, x[q].v, sizeof(double) * (size_t)x[q].count);
    }
    return true;
}

bool eval_all_to_all(ev_stage *s, const nd_op *op)
{
    return exchange(s, op, false);
}

bool eval_slice(ev_stage *s, const nd_op *op)
{
    const ev_piece *x = ev_get(s, op, op->in[0]);
    if (!x)
        return false;
    ev_piece *out = ev_result(s, op, 0);
    for (int r = 0; r < s->nranks; r++)
        if (ev_overlap(&x[r], &out[r], op->out[0]->type.rank, false) !=
            out[r].count)
            return ev_error(s, op, "rank %d does not hold its slice", r);
    return true;
}

/* ---- replicas ------------------------------------------------------------ */

static uint32_t bits_of(const nd_type *t)
{
    return nd_cut_mask(t) | t->sum | t->max;
}

/* The first rank that holds the same piece of the same summand as r. */
static int original(const ev_stage *s, int r, uint32_t bits)
{
    int q = 0;
    while (!ev_same_place(s, q, r, bits))
        q++;
    return q;
}

static bool same_bits(const ev_piece *a, const ev_piece *b)
{
    return a->count == b->count &&
           memcmp(a->v, b->v, sizeof(double) * (size_t)a->count) == 0;
}

bool ev_same_replicas(ev_stage *s, const nd_op *op, const nd_type *t,
                      const ev_piece *p)
{
    for (int r = 1; r < s->nranks; r++) {
        int q = original(s, r, bits_of(t));
        if (!same_bits(&p[q], &p[r]))
            return ev_error(s, op, "ranks %d and %d of stage %d should hold "
                            "the same values", q, r, s->index);
    }
    return true;
}

/* ---- joining ------------------------------------------------------------- */

nd_tensor *ev_tensor(nd_arena *a, const nd_type *t)
{
    nd_tensor *x = ND_NEW(a, nd_tensor);
    x->rank = t->rank;
    x->n = nd_numel(t);
    for (int i = 0; i < t->rank; i++)
        x->dim[i] = t->axis[i]->size;
    x->v = ND_NEWN(a, double, x->n + 1);
    return x;
}

ev_piece ev_whole(const nd_tensor *t)
{
    ev_piece p = {.count = t->n, .v = t->v};
    for (int i = 0; i < t->rank; i++)
        p.n[i] = t->dim[i];
    return p;
}

bool ev_join(ev_stage *s, const ev_record *r, nd_tensor *out)
{
    const nd_type *t = &r->type;
    uint32_t bits = bits_of(t);
    bool timed = bits >> s->w->m->mesh.micro & 1;
    ev_piece whole = ev_whole(out);
    if (t->max)
        return ev_error(s, NULL, "a maximum is left pending");
    for (int k = 0; k < s->w->nmicro; k++) {
        if (!r->mb[k])
            continue;
        for (int q = 0; q < s->nranks; q++) {
            int first = original(s, q, bits);
            const ev_piece *p = &r->mb[timed ? k : 0][first];
            if (!same_bits(p, &r->mb[k][q]))
                return ev_error(s, NULL, "a gradient, output or the loss "
                                "differs between replicas (rank %d, "
                                "microbatch %d)", q, k);
            if (first == q && (timed || k == 0))
                ev_overlap(p, &whole, t->rank, true);
        }
    }
    return true;
}
