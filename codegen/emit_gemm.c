/* emit_gemm.c - a contract as ndrt_gemm, a collective as its call.
 *
 * The axes of a product fall into four groups: batch (in both operands and the
 * result), m (left and result), n (right and result), k (summed). Neighbouring
 * axes whose strides nest are one dimension; the largest such run of each of
 * m, n, k goes into the call and the others become loops around it.
 *
 *   q[batch seq, heads head] = x[batch seq, d] w[d, heads head]
 */
#include "codegen.h"

#include <string.h>

enum { MANY_CALLS = 16, SMALL_CALL = 1 << 21 };   /* multiplications */

typedef struct dim {                 /* a run of axes taken as one */
    int first, n;                    /* in the group; n 0: length 1 */
} dim;

typedef struct group {
    int n;
    nd_axis *axis[2 * ND_MAX_RANK];
    int ext[2 * ND_MAX_RANK];
} group;

typedef struct loops {
    int n;
    cg_axis axis[2 * ND_MAX_RANK];
} loops;

typedef struct product {
    cg_fn *f;
    nd_ref a, b, c;
    group batch, m, n, k;
    dim dm, dn, dk;
} product;

static nd_len stride_of(const nd_ref *r, const nd_axis *x)
{
    int i = nd_ref_axis(r, x);
    return i < 0 ? (nd_len){0} : r->stride[i];
}

static void put(group *g, const nd_ref *r, int i)
{
    for (int j = 0; j < g->n; j++)
        if (g->axis[j] == r->axis[i])
            return;
    g->axis[g->n] = r->axis[i];
    g->ext[g->n++] = r->ext[i];
}

static void sort_axes(product *p)
{
    for (int i = 0; i < p->c.rank; i++) {
        bool in_a = nd_ref_axis(&p->a, p->c.axis[i]) >= 0;
        bool in_b = nd_ref_axis(&p->b, p->c.axis[i]) >= 0;
        put(in_a && in_b ? &p->batch : in_a ? &p->m : &p->n, &p->c, i);
    }
    for (int i = 0; i < p->a.rank; i++)
        if (nd_ref_axis(&p->c, p->a.axis[i]) < 0)
            put(&p->k, &p->a, i);
    for (int i = 0; i < p->b.rank; i++)
        if (nd_ref_axis(&p->c, p->b.axis[i]) < 0)
            put(&p->k, &p->b, i);
}

/* Is the axis of stride 1 of the result in the group? */
static bool ends_with(const nd_ref *c, const group *g)
{
    for (int i = 0; i < g->n; i++) {
        int k = nd_ref_axis(c, g->axis[i]);
        if (c->stride[k].k == 1 && !c->stride[k].n)
            return true;
    }
    return false;
}

/* Does axis i step over exactly one whole axis i + 1? */
static bool nests(const nd_code *c, const nd_ref *r, const group *g, int i)
{
    nd_len out = stride_of(r, g->axis[i]), in = stride_of(r, g->axis[i + 1]);
    nd_len_mul(c, &in, g->ext[i + 1]);
    return nd_len_eq(&out, &in);
}

static dim largest_run(const nd_code *c, const group *g, const nd_ref *x,
                       const nd_ref *y)
{
    dim best = {0};
    int64_t most = -1;
    for (int i = 0; i < g->n; i++) {
        int64_t size = c->exts.v[g->ext[i]].max;
        int n = 1;
        while (i + n < g->n && nests(c, x, g, i + n - 1) &&
               nests(c, y, g, i + n - 1))
            size *= c->exts.v[g->ext[i + n++]].max;
        if (size > most) {
            most = size;
            best = (dim){i, n};
        }
    }
    return best;
}

static nd_len dim_len(const nd_code *c, const group *g, dim d)
{
    nd_len l = {.k = 1};
    for (int i = 0; i < d.n; i++)
        nd_len_mul(c, &l, g->ext[d.first + i]);
    return l;
}

static const char *dim_stride(product *p, const nd_ref *r, const group *g,
                              dim d)
{
    nd_len one = {.k = 1};
    nd_len s = d.n ? stride_of(r, g->axis[d.first + d.n - 1]) : one;
    return cg_len(p->f, &s);
}

/* ---- loops around the call ---------------------------------------------- */

static bool in_dim(dim d, int i)
{
    return i >= d.first && i < d.first + d.n;
}

static void each(product *p, const group *g, dim d, loops *out)
{
    for (int i = 0; i < g->n; i++) {
        if (in_dim(d, i) || p->f->g->c->exts.v[g->ext[i]].fixed == 1)
            continue;
        out->axis[out->n++] = (cg_axis){
            g->axis[i], cg_axis_var(p->f->g, g->axis[i]), g->ext[i]};
    }
}

static void open_loops(cg_fn *f, const loops *l)
{
    for (int i = 0; i < l->n; i++) {
        const char *v = l->axis[i].var;
        cg_line(f, "for (int64_t %s = 0; %s < %s; %s++)", v, v,
                cg_count(f, l->axis[i].ext), v);
        f->indent++;
    }
}

/* Does each thread get calls of its own, as there are many, or small ones? Or
 * is each call shared out? */
static bool own_calls(const nd_code *c, const loops *l, int64_t work)
{
    int64_t n = 1;
    for (int i = 0; i < l->n; i++)
        n *= c->exts.v[l->axis[i].ext].max;
    return n >= MANY_CALLS || (n > 1 && work <= SMALL_CALL);
}

/* The loops as one, of which this thread has a range. */
static void open_range(cg_fn *f, const loops *l)
{
    const char *calls = cg_fresh(&f->names, "calls");
    f->call = f->call ? f->call : cg_fresh(&f->names, "call");
    const char *call = cg_counter(l->axis, l->n, f->call);
    cg_line(f, "const ndrt_span %s = ndrt_share(r, %s, 1);", calls,
            cg_iterations(f, l->axis, l->n));
    cg_line(f, "for (int64_t %s = %s.from; %s < %s.to; %s++) {", call, calls,
            call, calls, call);
    f->indent++;
    cg_positions(f, l->axis, l->n, call, NULL);
}

static void add_offsets(product *p, const nd_ref *r, const group *g, dim d,
                        const char **at)
{
    for (int i = 0; i < g->n; i++) {
        if (in_dim(d, i) || p->f->g->c->exts.v[g->ext[i]].fixed == 1)
            continue;
        nd_len s = stride_of(r, g->axis[i]);
        *at = cg_sum(p->f->g->a, *at,
                     cg_scaled(p->f, cg_axis_var(p->f->g, g->axis[i]), &s));
    }
}

static const char *operand(product *p, const nd_ref *r, bool write)
{
    const char *at = NULL, *x = cg_pointer_to(p->f, r, write)->name;
    dim none = {0};
    add_offsets(p, r, &p->batch, none, &at);
    add_offsets(p, r, &p->m, p->dm, &at);
    add_offsets(p, r, &p->n, p->dn, &at);
    add_offsets(p, r, &p->k, p->dk, &at);
    return at ? nd_fmt(p->f->g->a, "%s + %s", x, at) : x;
}

/* As `a` says, or "d > 0" where a summed axis is a loop, or one of both. */
static const char *accumulate(product *p, cg_adding a)
{
    const char *s = a == CG_WRITES ? NULL : cg_adding_text(a);
    for (int i = 0; i < p->k.n && a != CG_ADDS; i++) {
        if (in_dim(p->dk, i) || p->f->g->c->exts.v[p->k.ext[i]].fixed == 1)
            continue;
        const char *v = cg_axis_var(p->f->g, p->k.axis[i]);
        s = s ? nd_fmt(p->f->g->a, "%s || %s > 0", s, v)
              : nd_fmt(p->f->g->a, "%s > 0", v);
    }
    return s ? s : cg_adding_text(CG_WRITES);
}

/* A loop over a summed axis that may be empty writes nothing: clear first. */
static bool may_skip(const product *p)
{
    const nd_code *c = p->f->g->c;
    for (int i = 0; i < p->k.n; i++)
        if (!in_dim(p->dk, i) && c->exts.v[p->k.ext[i]].fixed <= 0)
            return true;
    return false;
}

static void clear_result(product *p, cg_adding a)
{
    bool first = a == CG_ADDS_LATER;
    const char *x = cg_pointer_to(p->f, &p->c, true)->name;
    p->f->uses_rank = true;
    if (first)
        cg_line(p->f, "if (!r->adds)");
    cg_line(p->f, "%sndrt_clear(r, %s, %s);", first ? "    " : "", x,
            cg_bytes(p->f, &p->c));
}

/* ---- comments ----------------------------------------------------------- */

static void put_axes(nd_buf *b, const group *g, dim d)
{
    for (int i = 0; i < d.n; i++)
        nd_putf(b, "%s%s", i ? " " : "", g->axis[d.first + i]->name);
    if (!d.n)
        nd_put(b, "1");
}

static void put_matrix(product *p, nd_buf *b, const nd_ref *r, const group *x,
                       dim dx, const group *y, dim dy)
{
    nd_putf(b, "%s[", cg_pointer_to(p->f, r, r == &p->c)->name);
    put_axes(b, x, dx);
    nd_put(b, ", ");
    put_axes(b, y, dy);
    nd_put(b, "]");
}

static void comment(product *p, nd_op *op, const char *becomes)
{
    cg *g = p->f->g;
    nd_buf b = {.arena = g->a};
    nd_put(&b, "/* ");
    put_matrix(p, &b, &p->c, &p->m, p->dm, &p->n, p->dn);
    nd_putf(&b, " %s ", becomes);
    put_matrix(p, &b, &p->a, &p->m, p->dm, &p->k, p->dk);
    nd_put(&b, " ");
    put_matrix(p, &b, &p->b, &p->k, p->dk, &p->n, p->dn);
    nd_put(&b, " */");
    cg_source_comment(g, &p->f->b, p->f->indent * 4, op->loc);
    cg_line(p->f, "%s", b.s);
}

cg_adding cg_adds(const nd_code *c, const nd_value *v)
{
    const nd_vinfo *info = nd_info(c, v);
    return info->first ? CG_ADDS_LATER : info->accum ? CG_ADDS : CG_WRITES;
}

const char *cg_adding_text(cg_adding a)
{
    return a == CG_WRITES ? "false" : a == CG_ADDS ? "true" : "r->adds";
}

/* ---- the call ----------------------------------------------------------- */

void cg_gemm(cg_fn *f, nd_kernel *k)
{
    nd_op *op = k->nodes.v[0].op;
    nd_code *c = f->g->c;
    product p = {.f = f};
    cg_adding acc = cg_adds_tiles(f, op) ? CG_ADDS : cg_adds(c, op->out[0]);
    cg_ref_of(f, op->in[0], &p.a);
    cg_ref_of(f, op->in[1], &p.b);
    cg_dest_of(f, op->out[0], &p.c);
    sort_axes(&p);
    if (ends_with(&p.c, &p.m) && !ends_with(&p.c, &p.n)) {
        nd_ref t = p.a;              /* (B'A')' so that rows are contiguous */
        p.a = p.b;
        p.b = t;
        p.batch.n = p.m.n = p.n.n = p.k.n = 0;
        sort_axes(&p);
    }
    p.dm = largest_run(c, &p.m, &p.a, &p.c);
    p.dn = largest_run(c, &p.n, &p.b, &p.c);
    p.dk = largest_run(c, &p.k, &p.a, &p.b);
    comment(&p, op, acc == CG_WRITES ? "=" : acc == CG_ADDS ? "+=" : "(+)=");
    if (acc != CG_ADDS && may_skip(&p)) {
        clear_result(&p, acc);
        acc = CG_ADDS;
    }
    int indent = f->indent;
    dim none = {0};
    loops around = {0}, sums = {0};
    each(&p, &p.batch, none, &around);
    each(&p, &p.m, p.dm, &around);
    each(&p, &p.n, p.dn, &around);
    each(&p, &p.k, p.dk, &sums);
    nd_len m = dim_len(c, &p.m, p.dm), n = dim_len(c, &p.n, p.dn);
    nd_len s = dim_len(c, &p.k, p.dk);
    bool share = !f->tiles &&
        own_calls(c, &around, nd_len_max(c, &m) * nd_len_max(c, &n) *
                                  nd_len_max(c, &s));
    if (share)
        open_range(f, &around);
    else
        open_loops(f, &around);
    open_loops(f, &sums);
    f->uses_rank = true;
    nd_dtype t = op->in[0]->type.dtype;
    f->g->small |= f->tiles && t == ND_F32;
    f->g->small_bf16 |= f->tiles && t == ND_BF16;
    cg_line(f, "ndrt_gemm%s%s(r, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, "
            "%s, %s);", t == ND_BF16 ? "_bf16" : t == ND_F16 ? "_f16" : "",
            share || f->tiles ? "_own" : "", accumulate(&p, acc),
            cg_len(f, &m), cg_len(f, &n),
            cg_len(f, &s), operand(&p, &p.a, false),
            dim_stride(&p, &p.a, &p.m, p.dm), dim_stride(&p, &p.a, &p.k, p.dk),
            operand(&p, &p.b, false), dim_stride(&p, &p.b, &p.k, p.dk),
            dim_stride(&p, &p.b, &p.n, p.dn), operand(&p, &p.c, true),
            dim_stride(&p, &p.c, &p.m, p.dm), dim_stride(&p, &p.c, &p.n, p.dn));
    f->indent = indent;
    if (share) {
        cg_line(f, "}");
        cg_line(f, "ndrt_barrier(r);");
    }
}
