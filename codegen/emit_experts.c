/* emit_experts.c - a product by groups as one call.
 *
 *   ndrt_grouped(r, &(ndrt_rows){2, {n_batch, 2}, {64, 0}, {256, 128}, {2, 1}},
 *                &(ndrt_groups){NDRT_W32, 0, 4, 64, 128, 8192, 128, 1, 1, 1},
 *                x, w1, e, y);
 */
#include "codegen.h"

#include <string.h>

static int axis_at(const nd_ref *r, const nd_axis *x)
{
    for (int i = 0; i < r->rank; i++)
        if (r->axis[i] == x)
            return i;
    return -1;
}

static const char *stride(cg_fn *f, const nd_ref *r, const nd_axis *x)
{
    int i = axis_at(r, x);
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
        nd_len_mul(f->g->c, &l, r->ext[axis_at(r, axes[i])]);
    return cg_len(f, &l);
}

/* The loops over rows; those of length 1 are left out. */
static const char *rows_text(cg_fn *f, const nd_ref *x, const nd_ref *y,
                             const nd_ref *id)
{
    nd_arena *a = f->g->a;
    nd_buf part[4] = {{.arena = a}, {.arena = a}, {.arena = a}, {.arena = a}};
    int n = 0;
    for (int i = 0; i < id->rank; i++) {
        if (f->g->c->exts.v[id->ext[i]].fixed == 1)
            continue;
        const char *sep = n++ ? ", " : "";
        nd_putf(&part[0], "%s%s", sep, cg_count(f, id->ext[i]));
        nd_putf(&part[1], "%s%s", sep, stride(f, x, id->axis[i]));
        nd_putf(&part[2], "%s%s", sep, stride(f, y, id->axis[i]));
        nd_putf(&part[3], "%s%s", sep, stride(f, id, id->axis[i]));
    }
    if (!n)
        return "&(ndrt_rows){0}";
    return nd_fmt(a, "&(ndrt_rows){%d, {%s}, {%s}, {%s}, {%s}}", n, part[0].s,
                  part[1].s, part[2].s, part[3].s);
}

static const char *groups_text(cg_fn *f, const nd_op *op, const nd_ref *x,
                               const nd_ref *y, const nd_ref *w)
{
    static const char *const width[] = {[ND_BF16] = "NDRT_WBF16",
                                        [ND_F16] = "NDRT_WF16"};
    nd_axis *in[ND_MAX_RANK], *out[ND_MAX_RANK];
    int nin = nd_group_axes(op, true, in), nout = nd_group_axes(op, false, out);
    nd_dtype t = op->in[0]->type.dtype;
    int a = axis_at(w, op->axes[0]);
    return nd_fmt(f->g->a, "&(ndrt_groups){%s, %s, %s, %s, %s, %s, %s, %s, %s, "
                  "%s}", nd_is_narrow(t) ? width[t] : "NDRT_W32",
                  cg_start(f, w->ext[a]), cg_count(f, w->ext[a]),
                  length(f, w, in, nin), length(f, w, out, nout),
                  stride(f, w, op->axes[0]), step(f, w, in, nin),
                  step(f, w, out, nout), step(f, x, in, nin),
                  step(f, y, out, nout));
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
    bool acc = nd_info(c, op->out[0])->accum != NULL;
    f->uses_rank = true;
    cg_source_comment(f->g, &f->b, f->indent * 4, op->loc);
    cg_line(f, "%s(r, %s%s, %s, %s, %s, %s, %s);",
            sum ? "ndrt_grouped_sum" : "ndrt_grouped",
            !sum ? "" : acc ? "true, " : "false, ",
            rows_text(f, &x, y, &id), groups_text(f, op, &x, y, w),
            cg_pointer_to(f, &x, false)->name,
            cg_pointer_to(f, &other, false)->name,
            cg_pointer_to(f, &id, false)->name,
            cg_pointer_to(f, &to, true)->name);
}
