/* kir_c_share.c - who runs which iterations of a loop nest (passes/share.c), as
 * C around what a row computes.
 *
 *   const ndrt_span parts = ndrt_share(r, NDRT_PARTS, 1);
 *   for (int64_t part = parts.from; part < parts.to; part++) {
 *       float *restrict d_g_part = ndrt_new_part(r, 0, part, 384);
 *       const ndrt_span rows = ndrt_rows_of(part, 8 * 256);
 *       for (int64_t row = rows.from; row < rows.to; row++) {
 *           const int64_t batch = row / 256, seq = row % 256;
 *           ...
 *       }
 *   }
 *   ndrt_barrier(r);
 *   ndrt_add_parts(r, r->adds, d_g, 0, 384);
 *   ndrt_barrier(r);
 */
#include "kir_c.h"

#include <string.h>

/* ---- what sums begin with ------------------------------------------------ */

static void clear_target(kir_c *p, const kir_clear *x)
{
    cg_fn *f = &p->f;
    const cg_target *to = &p->k->params.v[x->param].to;
    const char *name = cg_pointer_at(f, to, true)->name;
    const char *zero = kir_identity_text(f->g->a, x->red, to->dtype);
    const char *n = cg_len(f, &x->n);
    nd_share_kind kind = p->k->share.kind;
    bool shared = kind == SHARE_ROWS || kind == SHARE_COLUMNS;
    if (shared && x->red == RED_SUM) {
        cg_line(f, "ndrt_clear(r, %s, %s);", name,
                cg_bytes_of(f, &x->n, to->dtype));
        return;
    }
    if (!shared && x->n.k == 1 && !x->n.n) {
        cg_line(f, "%s[0] = %s;", name, zero);
        return;
    }
    const char *v = cg_fresh(&f->names, "k"), *from = "0", *end = n;
    if (shared) {
        const char *all = cg_fresh(&f->names, "all");
        cg_line(f, "const ndrt_span %s = ndrt_share(r, %s, 16);", all, n);
        from = nd_fmt(f->g->a, "%s.from", all);
        end = nd_fmt(f->g->a, "%s.to", all);
    }
    cg_line(f, "for (int64_t %s = %s; %s < %s; %s++)", v, from, v, end, v);
    cg_line(f, "    %s[%s] = %s;", name, v, zero);
    if (shared)
        cg_line(f, "ndrt_barrier(r);");
}

/* ---- parts --------------------------------------------------------------- */

static void begin_parts(kir_c *p, const char *part)
{
    cg_fn *f = &p->f;
    for (int i = 0; i < p->k->parts.n; i++) {
        const kir_part *x = &p->k->parts.v[i];
        const char *len = cg_len(f, &x->n);
        cg_pointer *to = cg_pointer_at(f, &p->k->params.v[x->param].to, true);
        to->part = cg_fresh(&f->names, nd_fmt(f->g->a, "%s_part", to->name));
        cg_line(f, "float *restrict %s = ndrt_new_part(r, %lld, %s, %s);",
                to->part, (long long)x->at, part, len);
    }
}

static void add_parts(kir_c *p)
{
    cg_fn *f = &p->f;
    cg_line(f, "ndrt_barrier(r);");
    for (int i = 0; i < p->k->parts.n; i++) {
        const kir_part *x = &p->k->parts.v[i];
        const cg_target *to = &p->k->params.v[x->param].to;
        cg_line(f, "ndrt_add_parts(r, %s, %s, %lld, %s);",
                x->first ? "r->adds" : x->acc ? "true" : "false",
                cg_pointer_at(f, to, true)->name,
                (long long)x->at, cg_len(f, &x->n));
    }
}

/* ---- loops --------------------------------------------------------------- */

static void open_brace(kir_c *p, kir_around *s)
{
    s->brace[s->braces++] = p->f.indent++;
}

static void open_rows(kir_c *p, kir_around *s, const char *span)
{
    cg_fn *f = &p->f;
    s->row = cg_counter(s->axis, p->k->share.n, cg_fresh(&f->names, "row"));
    cg_line(f, "for (int64_t %s = %s.from; %s < %s.to; %s++) {", s->row, span,
            s->row, span, s->row);
    open_brace(p, s);
    s->inside = f->indent;
}

static void open_shared_rows(kir_c *p, kir_around *s, const char *n)
{
    cg_fn *f = &p->f;
    const nd_share *how = &p->k->share;
    const char *rows = cg_fresh(&f->names, "rows");
    if (how->parts) {
        const char *parts = cg_fresh(&f->names, "parts");
        const char *part = cg_fresh(&f->names, "part");
        cg_line(f, "const ndrt_span %s = ndrt_share(r, NDRT_PARTS, %s);", parts,
                how->grain == 1 ? "1" : "NDRT_PARTS");
        cg_line(f, "for (int64_t %s = %s.from; %s < %s.to; %s++) {", part,
                parts, part, parts, part);
        open_brace(p, s);
        begin_parts(p, part);
        cg_line(f, "const ndrt_span %s = ndrt_rows_of(%s, %s);", rows, part, n);
    } else {
        cg_line(f, "const ndrt_span %s = ndrt_share(r, %s, 1);", rows, n);
    }
    open_rows(p, s, rows);
}

void kir_c_open_share(kir_c *p, kir_around *s)
{
    cg_fn *f = &p->f;
    const kir_kernel *k = p->k;
    s->n = k->nloops - k->ninner;
    for (int i = 0; i < s->n; i++)
        s->axis[i] = (cg_axis){k->loop[i].axis, p->var[i], k->loop[i].ext};
    const char *n = cg_iterations(f, s->axis, k->share.n);
    if (k->share.kind == SHARE_ONE) {
        cg_line(f, "if (r->thread == 0) {");
        open_brace(p, s);
    }
    for (int i = 0; i < k->clears.n; i++)
        clear_target(p, &k->clears.v[i]);
    if (k->share.kind == SHARE_COLUMNS) {
        p->columns = cg_fresh(&f->names, "columns");
        cg_line(f, "const ndrt_span %s = ndrt_share(r, %s, 16);", p->columns,
                cg_count(f, k->loop[k->nloops - 1].ext));
    } else if (k->share.kind == SHARE_ROWS) {
        open_shared_rows(p, s, n);
    }
}

void kir_c_open_loops(kir_c *p, kir_around *s)
{
    cg_fn *f = &p->f;
    int last = -1;
    for (int i = p->k->share.n; i < s->n; i++)
        last = p->k->loop[i].once ? last : i;
    for (int i = p->k->share.n; i <= last; i++) {
        const char *v = s->axis[i].var;
        if (p->k->loop[i].once)
            continue;
        cg_line(f, "for (int64_t %s = 0; %s < %s; %s++)%s", v, v,
                cg_count(f, s->axis[i].ext), v, i == last ? " {" : "");
        if (i == last)
            open_brace(p, s);
        else
            f->indent++;
    }
}

void kir_c_share_axes(kir_c *p, kir_around *s, const char *text)
{
    cg_fn *f = &p->f;
    int indent = f->indent;
    if (!s->row)
        return;
    f->indent = s->inside;
    cg_positions(f, s->axis, p->k->share.n, s->row, text);
    f->indent = indent;
}

void kir_c_close_share(kir_c *p, kir_around *s)
{
    cg_fn *f = &p->f;
    while (s->braces) {
        f->indent = s->brace[--s->braces];
        cg_line(f, "}");
    }
    f->indent = 1;
    if (p->k->share.parts)
        add_parts(p);
    if (p->k->share.kind != SHARE_NOT) {
        f->uses_rank = true;
        cg_line(f, "ndrt_barrier(r);");
    }
}
