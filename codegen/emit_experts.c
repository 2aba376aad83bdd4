/* emit_experts.c - a product by groups as one call, rows that travel as
 * another.
 *
 *   ndrt_grouped(r, &(ndrt_rows){.n = 2, .len = {n_batch, 2}, .x = {64, 0},
 *       .y = {256, 128}, .id = {2, 1}}, &(ndrt_groups){.width = NDRT_W32,
 *       .first = 0, .n = 4, .in = 64, .out = 128, .w_k = 8192, .w_i = 128,
 *       .w_o = 1, .x_i = 1, .y_o = 1}, x, w1, e, y);
 */
#include "codegen.h"

#include <string.h>

static const char *stride(cg_fn *f, const nd_ref *r, const nd_axis *x)
{
    int i = nd_ref_axis(r, x);
    nd_len none = {0};
    return cg_len(f, i < 0 ? &none : &r->stride[i]);
}

/* The stride of the last of these axes, and the length of all together. */
static const char *step(cg_fn *f, const nd_ref *r, nd_axis *const *axes, int n)
{
    return n ? stride(f, r, axes[n - 1]) : "1";
}

static const char *length(cg_fn *f, const nd_ref *r, nd_axis *const *axes,
                          int n)
{
    nd_len l = {.k = 1};
    for (int i = 0; i < n; i++)
        nd_len_mul(f->g->c, &l, r->ext[nd_ref_axis(r, axes[i])]);
    return cg_len(f, &l);
}

/* The loops over rows, those of length 1 left out: n axes, of the ids. */
static const char *rows_text(cg_fn *f, nd_axis *const *axes, int naxes,
                             const nd_ref *x, const nd_ref *y,
                             const nd_ref *id)
{
    nd_arena *a = f->g->a;
    nd_buf part[4] = {{.arena = a}, {.arena = a}, {.arena = a}, {.arena = a}};
    int n = 0;
    for (int i = 0; i < naxes; i++) {
        int ext = id->ext[nd_ref_axis(id, axes[i])];
        if (f->g->c->exts.v[ext].fixed == 1)
            continue;
        const char *sep = n++ ? ", " : "";
        nd_putf(&part[0], "%s%s", sep, cg_count(f, ext));
        nd_putf(&part[1], "%s%s", sep, stride(f, x, axes[i]));
        if (y)
            nd_putf(&part[2], "%s%s", sep, stride(f, y, axes[i]));
        nd_putf(&part[3], "%s%s", sep, stride(f, id, axes[i]));
    }
    if (!n)
        return "&(ndrt_rows){0}";
    return nd_fmt(a, "&(ndrt_rows){.n = %d, .len = {%s}, .x = {%s}, %s.id = "
                  "{%s}}", n, part[0].s, part[1].s,
                  y ? nd_fmt(a, ".y = {%s}, ", part[2].s) : "", part[3].s);
}

static const char *groups_text(cg_fn *f, const nd_op *op, const nd_ref *x,
                               const nd_ref *y, const nd_ref *w)
{
    static const char *const width[] = {[ND_BF16] = "NDRT_WBF16",
                                        [ND_F16] = "NDRT_WF16"};
    nd_axis *in[ND_MAX_RANK], *out[ND_MAX_RANK];
    int nin = nd_group_axes(op, true, in), nout = nd_group_axes(op, false, out);
    nd_dtype t = op->in[0]->type.dtype;
    int a = nd_ref_axis(w, op->axes[0]);
    return nd_fmt(
        f->g->a, "&(ndrt_groups){.width = %s, .first = %s, .n = %s, .in = %s, "
        ".out = %s, .w_k = %s, .w_i = %s, .w_o = %s, .x_i = %s, .y_o = %s}",
        nd_is_narrow(t) ? width[t] : "NDRT_W32", cg_start(f, w->ext[a]),
        cg_count(f, w->ext[a]), length(f, w, in, nin), length(f, w, out, nout),
        stride(f, w, op->axes[0]), step(f, w, in, nin), step(f, w, out, nout),
        step(f, x, in, nin), step(f, y, out, nout));
}

void cg_grouped(cg_fn *f, nd_kernel *k)
{
    nd_op *op = k->nodes.v[0].op;
    nd_code *c = f->g->c;
    bool sum = op->kind == OP_GROUPED_SUM;
    nd_ref x, other, id, to;
    nd_ref_of(c, op->in[0], &x);
    nd_ref_of(c, op->in[1], &other);
    nd_ref_of(c, op->in[2], &id);
    nd_dest_of(c, op->out[0], &to);
    const nd_ref *w = sum ? &to : &other, *y = sum ? &other : &to;
    f->uses_rank = true;
    cg_source_comment(f->g, &f->b, f->indent * 4, op->loc);
    cg_line(f, "%s(r, %s%s, %s, %s, %s, %s, %s);",
            sum ? "ndrt_grouped_sum" : "ndrt_grouped",
            sum ? nd_fmt(f->g->a, "%s, ",
                         cg_adding_text(cg_adds(c, op->out[0]))) : "",
            rows_text(f, id.axis, id.rank, &x, y, &id),
            groups_text(f, op, &x, y, w),
            cg_pointer_to(f, &x, false)->name,
            cg_pointer_to(f, &other, false)->name,
            cg_pointer_to(f, &id, false)->name,
            cg_pointer_to(f, &to, true)->name);
}

/* ---- rows that travel ---------------------------------------------------- */

/* The loops go over rows as the route names them, so that all that travel along
 * one axis take one order. */
void cg_travel(cg_fn *f, nd_op *op)
{
    nd_code *c = f->g->c;
    const nd_axis *routed = op->axes[0];
    const nd_route *rt = routed->route;
    bool go = op->kind == OP_DISPATCH;
    nd_ref x, y, id;
    nd_ref_of(c, op->in[0], &x);
    nd_ref_of(c, op->in[1], &id);
    nd_ref_of(c, op->out[0], &y);
    const nd_ref *here = go ? &x : &y, *there = go ? &y : &x;
    nd_axis *row[ND_MAX_RANK];
    int n = nd_travel_axes(op, row);
    int ext = there->ext[nd_ref_axis(there, routed)];
    nd_dtype t = op->in[0]->type.dtype;
    const char *travel = nd_fmt(
        f->g->a, "&(ndrt_travel){.group = %s, .extent = %s, .experts = %lld, "
        ".room = %lld, .len = %s, .width = %zu%s}",
        cg_group_name(f->g, op->mesh), cg_ext(f->g, ext),
        (long long)rt->experts->size, (long long)c->exts.v[ext].max,
        length(f, &x, row, n), nd_dtype_size(t),
        go && t == ND_I32 && !n ? ", .ids = true" : "");
    cg_line(f, "%s(r, %s, %s, %s, %s, %s);",
            go ? "ndrt_dispatch" : "ndrt_combine", travel,
            rows_text(f, rt->rows.axis, rt->rows.rank, here, NULL, &id),
            cg_pointer_to(f, &x, false)->name,
            cg_pointer_to(f, &id, false)->name,
            cg_pointer_to(f, &y, true)->name);
}

static bool makes(const nd_kernels *list, const nd_value *v)
{
    for (int i = 0; i < list->v.n; i++)
        if (list->v.v[i]->nodes.v[0].op == v->def)
            return true;
    return false;
}

void cg_arrivals(cg_fn *f, const nd_kernels *list)
{
    nd_code *c = f->g->c;
    nd_table told = {.arena = f->g->a};
    for (int i = 0; i < list->v.n; i++) {
        nd_kernel *k = list->v.v[i];
        if (k->kind != K_GROUPED)
            continue;
        nd_value *ids = k->nodes.v[0].op->in[2];
        nd_axis *a = nd_routed_axis(&ids->type);
        nd_ref r;
        if (!a || nd_table_get(&told, a) || makes(list, nd_behind(c, ids)))
            continue;
        nd_table_put(&told, a, a);
        nd_ref_of(c, ids, &r);
        f->uses_rank = true;
        int ext = r.ext[nd_ref_axis(&r, a)];
        cg_line(f, "ndrt_arrived(r, %s, %lld, %s);", cg_ext(f->g, ext),
                (long long)c->exts.v[ext].max,
                cg_pointer_to(f, &r, false)->name);
    }
}
