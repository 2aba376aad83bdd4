/* emit_share.c - who runs which iterations of a loop nest (passes/share.c), as
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
 *   ndrt_add_parts(r, true, d_g, 0, 384);
 *   ndrt_barrier(r);
 */
#include "codegen.h"

#include <ctype.h>
#include <string.h>

/* ---- ranges of several axes ---------------------------------------------- */

/* Does the text say the word? */
static bool says(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *s = text; s && (s = strstr(s, word)); s += n) {
        bool starts = s == text || !(isalnum((unsigned char)s[-1]) ||
                                     s[-1] == '_');
        if (starts && !isalnum((unsigned char)s[n]) && s[n] != '_')
            return true;
    }
    return false;
}

static bool is_loop(const cg_axis *a)
{
    return strcmp(a->var, "0") != 0;
}

/* How many iterations axes [from, n) have: "8 * 256". */
static const char *product(cg_fn *f, const cg_axis *a, int from, int n,
                           bool *several)
{
    const char *s = NULL;
    *several = false;
    for (int i = from; i < n; i++) {
        if (!is_loop(&a[i]))
            continue;
        const char *count = cg_count(f, a[i].ext);
        *several = s != NULL;
        s = s ? nd_fmt(f->g->a, "%s * %s", s, count) : count;
    }
    return s ? s : "1";
}

const char *cg_iterations(cg_fn *f, const cg_axis *a, int n)
{
    bool several;
    return product(f, a, 0, n, &several);
}

/* Which of the axes runs alone, or -1. */
static int alone(const cg_axis *a, int n)
{
    int only = -1;
    for (int i = 0; i < n; i++)
        if (is_loop(&a[i])) {
            if (only >= 0)
                return -1;
            only = i;
        }
    return only;
}

const char *cg_counter(const cg_axis *a, int n, const char *name)
{
    int only = alone(a, n);
    return only >= 0 ? a[only].var : name;
}

/* The position on axis i of n that are counted as one. */
static const char *position(cg_fn *f, const cg_axis *a, int n, int i,
                            const char *row)
{
    bool several, outermost = true;
    const char *inside = product(f, a, i + 1, n, &several);
    for (int j = 0; j < i; j++)
        outermost &= !is_loop(&a[j]);
    const char *s = row;
    if (strcmp(inside, "1") != 0)
        s = nd_fmt(f->g->a, several ? "%s / (%s)" : "%s / %s", row, inside);
    return outermost ? s
                     : nd_fmt(f->g->a, "%s %% %s", s, cg_count(f, a[i].ext));
}

void cg_positions(cg_fn *f, const cg_axis *a, int n, const char *row,
                  const char *text)
{
    nd_buf b = {.arena = f->g->a};
    if (alone(a, n) >= 0)
        return;
    for (int i = 0; i < n; i++)
        if (is_loop(&a[i]) && (!text || says(text, a[i].var)))
            nd_putf(&b, "%s%s = %s", b.n ? ", " : "const int64_t ", a[i].var,
                    position(f, a, n, i, row));
    if (b.n)
        cg_line(f, "%s;", b.s);
}

/* ---- what sums begin with ------------------------------------------------ */

const char *cg_identity(nd_arena *a, const nd_op *op)
{
    nd_dtype t = op->kind == OP_ACCUM ? ND_F32 : op->out[0]->type.dtype;
    if (op->sub == RED_SUM || op->kind != OP_REDUCE)
        return cg_number(a, t, 0);
    if (nd_is_float(t))
        return op->sub == RED_MAX ? "-INFINITY" : "INFINITY";
    if (t == ND_I64)
        return op->sub == RED_MAX ? "INT64_MIN" : "INT64_MAX";
    return op->sub == RED_MAX ? "INT32_MIN" : "INT32_MAX";
}

static void clear_target(cg_fn *f, const nd_op *op, nd_share_kind kind)
{
    nd_ref r = nd_add_ref(f->g->c, op);
    const char *p = cg_pointer_to(f, &r, true)->name;
    nd_len len = nd_numel_local(f->g->c, &r);
    const char *zero = cg_identity(f->g->a, op), *n = cg_len(f, &len);
    bool shared = kind == SHARE_ROWS || kind == SHARE_COLUMNS;
    if (shared && (op->kind != OP_REDUCE || op->sub == RED_SUM)) {
        cg_line(f, "ndrt_clear(r, %s, %s);", p, cg_bytes(f, &r));
        return;
    }
    if (len.k == 1 && !len.n) {
        cg_line(f, "%s[0] = %s;", p, zero);
        return;
    }
    const char *v = cg_fresh(&f->names, "k"), *from = "0", *to = n;
    if (shared) {
        const char *all = cg_fresh(&f->names, "all");
        cg_line(f, "const ndrt_span %s = ndrt_share(r, %s, 16);", all, n);
        from = nd_fmt(f->g->a, "%s.from", all);
        to = nd_fmt(f->g->a, "%s.to", all);
    }
    cg_line(f, "for (int64_t %s = %s; %s < %s; %s++)", v, from, v, to, v);
    cg_line(f, "    %s[%s] = %s;", p, v, zero);
    if (shared)
        cg_line(f, "ndrt_barrier(r);");
}

/* Results that the nest adds up in memory begin at the identity. */
static void clear_targets(cg_fn *f, const nd_kernel *k)
{
    for (int i = 0; i < k->nodes.n; i++) {
        const nd_node *n = &k->nodes.v[i];
        if (n->add && n->stored && !n->in_parts)
            clear_target(f, n->op, k->share.kind);
    }
}

/* ---- parts --------------------------------------------------------------- */

static const char *part_len(cg_fn *f, const nd_ref *to)
{
    nd_len n = nd_part_len(f->g->c, to);
    return cg_len(f, &n);
}

static void begin_parts(cg_fn *f, const nd_kernel *k, const char *part)
{
    for (int i = 0; i < k->nodes.n; i++) {
        const nd_node *n = &k->nodes.v[i];
        if (!n->in_parts)
            continue;
        nd_ref to = nd_add_ref(f->g->c, n->op);
        const char *len = part_len(f, &to);
        cg_pointer *p = cg_pointer_to(f, &to, true);
        p->part = cg_fresh(&f->names, nd_fmt(f->g->a, "%s_part", p->name));
        cg_line(f, "float *restrict %s = ndrt_new_part(r, %lld, %s, %s);",
                p->part, (long long)n->part_at, part, len);
    }
}

static void add_parts(cg_fn *f, const nd_kernel *k)
{
    cg_line(f, "ndrt_barrier(r);");
    for (int i = 0; i < k->nodes.n; i++) {
        const nd_node *n = &k->nodes.v[i];
        if (!n->in_parts)
            continue;
        nd_ref to = nd_add_ref(f->g->c, n->op);
        cg_line(f, "ndrt_add_parts(r, %s, %s, %lld, %s);",
                n->stored ? "false" : "true",
                cg_pointer_to(f, &to, true)->name, (long long)n->part_at,
                part_len(f, &to));
    }
}

/* ---- loops --------------------------------------------------------------- */

static void open_brace(cg_share *s)
{
    s->brace[s->braces++] = s->e->f->indent++;
}

static void open_rows(cg_share *s, const char *span)
{
    cg_fn *f = s->e->f;
    s->row = cg_counter(s->e->axis, s->e->k->share.n,
                        cg_fresh(&f->names, "row"));
    cg_line(f, "for (int64_t %s = %s.from; %s < %s.to; %s++) {", s->row, span,
            s->row, span, s->row);
    open_brace(s);
    s->inside = f->indent;
}

void cg_open_share(cg_share *s)
{
    cg_fn *f = s->e->f;
    const nd_kernel *k = s->e->k;
    const nd_share *how = &k->share;
    const char *n = cg_iterations(f, s->e->axis, how->n), *rows, *parts, *part;
    if (how->kind == SHARE_ONE) {
        cg_line(f, "if (r->thread == 0) {");
        open_brace(s);
    }
    clear_targets(f, k);
    switch (how->kind) {
    case SHARE_COLUMNS:
        s->e->columns = cg_fresh(&f->names, "columns");
        cg_line(f, "const ndrt_span %s = ndrt_share(r, %s, 16);", s->e->columns,
                cg_count(f, k->inner[k->ninner - 1]));
        break;
    case SHARE_ROWS:
        rows = cg_fresh(&f->names, "rows");
        if (how->parts) {
            parts = cg_fresh(&f->names, "parts");
            part = cg_fresh(&f->names, "part");
            cg_line(f, "const ndrt_span %s = ndrt_share(r, NDRT_PARTS, %s);",
                    parts, how->grain == 1 ? "1" : "NDRT_PARTS");
            cg_line(f, "for (int64_t %s = %s.from; %s < %s.to; %s++) {", part,
                    parts, part, parts, part);
            open_brace(s);
            begin_parts(f, k, part);
            cg_line(f, "const ndrt_span %s = ndrt_rows_of(%s, %s);", rows, part,
                    n);
        } else {
            cg_line(f, "const ndrt_span %s = ndrt_share(r, %s, 1);", rows, n);
        }
        open_rows(s, rows);
        break;
    default:
        break;
    }
}

void cg_open_loops(cg_share *s)
{
    cg_fn *f = s->e->f;
    const nd_kernel *k = s->e->k;
    int last = -1;
    for (int i = k->share.n; i < k->nouter; i++)
        last = is_loop(&s->e->axis[i]) ? i : last;
    for (int i = k->share.n; i <= last; i++) {
        const cg_axis *a = &s->e->axis[i];
        if (!is_loop(a))
            continue;
        cg_line(f, "for (int64_t %s = 0; %s < %s; %s++)%s", a->var, a->var,
                cg_count(f, a->ext), a->var, i == last ? " {" : "");
        if (i == last)
            open_brace(s);
        else
            f->indent++;
    }
}

void cg_share_axes(cg_share *s, const char *text)
{
    cg_fn *f = s->e->f;
    int indent = f->indent;
    if (!s->row)
        return;
    f->indent = s->inside;
    cg_positions(f, s->e->axis, s->e->k->share.n, s->row, text);
    f->indent = indent;
}

void cg_close_share(cg_share *s)
{
    cg_fn *f = s->e->f;
    const nd_kernel *k = s->e->k;
    while (s->braces) {
        f->indent = s->brace[--s->braces];
        cg_line(f, "}");
    }
    f->indent = 1;
    if (k->share.parts)
        add_parts(f, k);
    if (k->share.kind != SHARE_NOT) {
        f->uses_rank = true;
        cg_line(f, "ndrt_barrier(r);");
    }
}
