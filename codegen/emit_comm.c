/* emit_comm.c - one call of the runtime per collective.
 *
 *   reduce_scatter [seq] over tp %a   ->  reduce_scatter(r, G_tp, X_seq_tp,
 *                                             a, b, n_batch, 6, 8, NDRT_SUM);
 *
 * Operands and results are packed; what lies around the axis is one count of
 * elements before it and one behind it. What is in flight calls start_..., see
 * emit_flights.c.
 */
#include "codegen.h"

#include <string.h>

static nd_len span(nd_code *c, const nd_ref *r, int from, int to)
{
    nd_len n = {.k = 1};
    for (int i = from; i < to; i++)
        nd_len_mul(c, &n, r->ext[i]);
    return n;
}

static const char *of_dtype(nd_dtype t)
{
    return t == ND_I32 ? "_I32" : t == ND_I64 ? "_I64" : "";
}

/* The beginning of a call: its name and first arguments. What is in flight
 * names its ticket. */
static const char *call(cg_fn *f, nd_kernel *k, const char *prefix,
                        const char *name)
{
    nd_arena *a = f->g->a;
    return k->flight ? nd_fmt(a, "%sstart_%s(r, %s", prefix, name,
                              cg_ticket(f->g, k->flight))
                     : nd_fmt(a, "%s%s(r", prefix, name);
}

static void all_reduce(cg_fn *f, nd_kernel *k, const nd_ref *x,
                       const nd_ref *y)
{
    nd_op *op = k->nodes.v[0].op;
    const char *out = cg_pointer_to(f, y, true)->name;
    const char *in = cg_pointer_to(f, x, false)->name;
    nd_len n = nd_numel_local(f->g->c, y);
    if (strcmp(in, out) != 0)
        cg_line(f, "ndrt_copy(r, %s, %s, %s);", out, in, cg_bytes(f, y));
    cg_line(f, "%s, %s, %s, %s, NDRT_%s%s);",
            call(f, k, "ndrt_", "all_reduce"),
            cg_group_name(f->g, op->mesh), out, cg_len(f, &n),
            op->sub == RED_MAX ? "MAX" : "SUM", of_dtype(y->dtype));
}

static void pieces(cg_fn *f, nd_kernel *k, const nd_ref *x, const nd_ref *y)
{
    nd_op *op = k->nodes.v[0].op;
    bool scatter = op->kind == OP_REDUCE_SCATTER;
    nd_code *c = f->g->c;
    int i = nd_ref_axis(y, op->axes[0]);
    nd_len outer = span(c, y, 0, i), inner = span(c, y, i + 1, y->rank);
    const nd_ref *cut = scatter ? y : x, *whole = scatter ? x : y;
    *(scatter ? k->flight ? &f->g->starts_scatter : &f->g->uses_scatter
      : k->flight ? &f->g->starts_gather : &f->g->uses_gather) = true;
    const char *to = cg_pointer_to(f, y, true)->name;
    const char *from = cg_pointer_to(f, x, false)->name;
    if (y->dtype != ND_F32) {        /* the same bits as floats */
        inner.k = inner.k * (int64_t)nd_dtype_size(y->dtype) / 4;
        from = nd_fmt(f->g->a, "(const float *)%s", from);
        to = nd_fmt(f->g->a, "(float *)%s", to);
    }
    const char *how = scatter ? nd_fmt(f->g->a, ", NDRT_SUM%s",
                                       of_dtype(y->dtype))
                              : "";
    cg_line(f, "%s, %s, %s, %s, %s, %s, %s, %s%s);",
            call(f, k, "", scatter ? "reduce_scatter" : "all_gather"),
            cg_group_name(f->g, op->mesh),
            cg_ext(f->g, cut->ext[nd_ref_axis(cut, op->axes[0])]), from, to,
            cg_len(f, &outer),
            cg_count(f, whole->ext[nd_ref_axis(whole, op->axes[0])]),
            cg_len(f, &inner), how);
}

/* [outer, first axis, mid, second axis, inner], of which one is gathered and
 * the other is cut; inner counts bytes. */
static void all_to_all(cg_fn *f, nd_kernel *k, const nd_ref *x,
                       const nd_ref *y)
{
    nd_op *op = k->nodes.v[0].op;
    nd_code *c = f->g->c;
    int i = nd_ref_axis(y, op->axes[0]), j = nd_ref_axis(y, op->axes[1]);
    bool joins_first = i < j;
    int p = joins_first ? i : j, q = joins_first ? j : i;
    const nd_ref *first = joins_first ? x : y, *second = joins_first ? y : x;
    nd_len outer = span(c, y, 0, p), mid = span(c, y, p + 1, q);
    nd_len inner = span(c, y, q + 1, y->rank);
    inner.k *= (int64_t)nd_dtype_size(y->dtype);
    *(k->flight ? &f->g->starts_exchange : &f->g->uses_exchange) = true;
    cg_line(f, "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s);",
            call(f, k, "", "all_to_all"),
            cg_group_name(f->g, op->mesh), cg_ext(f->g, first->ext[p]),
            cg_ext(f->g, second->ext[q]), cg_pointer_to(f, x, false)->name,
            cg_pointer_to(f, y, true)->name, cg_len(f, &outer),
            cg_len(f, &mid), cg_len(f, &inner),
            joins_first ? "true" : "false");
}

static void shift_ring(cg_fn *f, nd_kernel *k, const nd_ref *x,
                       const nd_ref *y)
{
    nd_op *op = k->nodes.v[0].op;
    const char *to = cg_pointer_to(f, y, true)->name;
    const char *from = cg_pointer_to(f, x, false)->name;
    cg_line(f, "%s, %s, %lld, %s, %s, %s);",
            call(f, k, "ndrt_", "shift_ring"),
            cg_group_name(f->g, op->mesh), (long long)nd_roll_by(op), from, to,
            cg_bytes(f, y));
}

/* What the call does: a change of type, but in a ring. */
static void comment(cg_fn *f, const nd_op *op)
{
    const char *to = cg_type(f->g, &op->out[0]->type);
    const char *mesh = cg_mesh_text(f->g->m, op->mesh);
    if (op->kind != OP_SHIFT_RING) {
        cg_line(f, "/* %s -> %s */", cg_type(f->g, &op->in[0]->type), to);
        return;
    }
    int64_t by = nd_roll_by(op), last = op->axes[0]->size - 1;
    if (by == 1 || by == last)
        cg_line(f, "/* %s of the %s rank along %s */", to,
                by == 1 ? "next" : "previous", mesh);
    else
        cg_line(f, "/* %s of the rank %lld places on along %s */", to,
                (long long)by, mesh);
}

void cg_comm(cg_fn *f, nd_kernel *k)
{
    nd_op *op = k->nodes.v[0].op;
    bool travels = op->kind == OP_DISPATCH || op->kind == OP_COMBINE;
    nd_ref x, y;
    nd_ref_of(f->g->c, op->in[0], &x);
    nd_ref_of(f->g->c, op->out[0], &y);
    f->uses_rank = true;
    if (travels)
        cg_source_comment(f->g, &f->b, f->indent * 4, op->loc);
    comment(f, op);
    if (travels)
        cg_travel(f, op);
    else if (op->kind == OP_ALL_REDUCE)
        all_reduce(f, k, &x, &y);
    else if (op->kind == OP_ALL_TO_ALL)
        all_to_all(f, k, &x, &y);
    else if (op->kind == OP_SHIFT_RING)
        shift_ring(f, k, &x, &y);
    else
        pieces(f, k, &x, &y);
}
