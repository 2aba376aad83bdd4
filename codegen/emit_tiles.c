/* emit_tiles.c - kernels that run tile by tile, as one C function.
 *
 *   static void attn_tiles_fwd(ndrt_rank *r, const float *q, ..., float *o)
 *   {
 *       char *scratch = ndrt_tile_scratch(r);
 *       float *s = (float *)scratch;
 *       const ndrt_span tiles = ndrt_share(r, 8 * 4, 1);
 *       for (int64_t tile = tiles.from; tile < tiles.to; tile++) {
 *           const int64_t o_batch_tile = tile / 4;
 *           const int64_t o_seq_tile = tile % 4 * 64;
 *           const float *q_tile = q + o_batch_tile * 16384 + o_seq_tile * 64;
 *           ...
 *           ndrt_gemm_own(r, false, 64, 256, 64, q_tile, ..., s, 256, 1);
 *           attn_softmax_fwd(o_seq_tile, s, p);
 *           ndrt_gemm_own(r, false, 64, 64, 256, p, ..., o_tile, 64, 1);
 *       }
 *       ndrt_barrier(r);
 *   }
 *
 * Kernels inside take the first global index of the tile's part of an axis, and
 * its length where that varies, as arguments.
 */
#include "codegen.h"

#include <string.h>

bool cg_ref_of(cg_fn *f, const nd_value *v, nd_ref *r)
{
    if (!nd_ref_of(f->g->c, v, r))
        return false;
    if (f->tiles)
        nd_tile_part(f->tiles, false, r);
    return true;
}

void cg_dest_of(cg_fn *f, const nd_value *v, nd_ref *r)
{
    nd_dest_of(f->g->c, v, r);
    if (f->tiles)
        nd_tile_part(f->tiles, false, r);
}

bool cg_adds_tiles(const cg_fn *f, const nd_op *op)
{
    for (int i = 0; f->tiles && i < f->tiles->n; i++)
        if (nd_has_axis(op, f->tiles->axis[i].axis))
            return true;
    return false;
}

/* ---- pointers ------------------------------------------------------------ */

typedef enum {
    OF_FUNCTION,                     /* a parameter, or the thread's scratch */
    OF_SHARED,                       /* moves with the axes that are shared */
    OF_TILE                          /* ... and with the others */
} level;

/* The inner axis moves with the one that is taken in blocks. */
static const nd_tile_axis *axis_of_part(const nd_tiles *t, const nd_term *x)
{
    for (int i = 0; i < t->n; i++)
        if (!x->repeat && t->axis[i].part == x->ext)
            return &t->axis[i];
    return !x->repeat && t->inner_part == x->ext ? &t->axis[t->blocked] : NULL;
}

static level level_of(const cg_fn *f, const cg_target *p)
{
    level l = OF_FUNCTION;
    for (int i = 0; i < p->nterms; i++) {
        const nd_tile_axis *a = axis_of_part(f->tiles, &p->term[i]);
        level of = !a ? OF_FUNCTION : a->serial ? OF_TILE : OF_SHARED;
        l = of > l ? of : l;
    }
    return l;
}

/* The terms of a tile alone, or all others. */
static cg_target with_terms(const cg_fn *f, const cg_target *p, bool of_tile)
{
    cg_target out = *p;
    nd_term *term = ND_NEWN(f->g->a, nd_term, p->nterms);
    out.nterms = 0;
    for (int i = 0; i < p->nterms; i++)
        if ((axis_of_part(f->tiles, &p->term[i]) != NULL) == of_tile)
            term[out.nterms++] = p->term[i];
    out.term = term;
    return out;
}

static void declare_pointers(cg_fn *f, level l)
{
    int n = f->ptrs.n;
    for (int i = 0; i < n; i++) {
        const cg_pointer p = f->ptrs.v[i];
        if (p.to.root == AT_TILE || level_of(f, &p.to) != l)
            continue;
        cg_target whole = with_terms(f, &p.to, false);
        cg_target part = with_terms(f, &p.to, true);
        cg_line(f, "%s%s *%s = %s + %s;", p.written ? "" : "const ",
                cg_ctype(p.to.dtype), p.name,
                cg_pointer_at(f, &whole, p.written)->name,
                cg_offset(f, &part));
    }
}

static void declare_scratch(cg_fn *f)
{
    const nd_tiles *t = f->tiles;
    const char *all = cg_fresh(&f->names, "scratch");
    cg_line(f, "char *%s = ndrt_tile_scratch(r);", all);
    for (int i = 0; i < f->ptrs.n; i++) {
        const cg_pointer *p = &f->ptrs.v[i];
        for (int k = 0; k < t->inside.n; k++)
            if (p->to.root == AT_TILE && p->to.value == t->inside.v[k])
                cg_line(f, t->at.v[k] ? "%s *%s = (%s *)(%s + %zu);"
                                      : "%s *%s = (%s *)%s;",
                        cg_ctype(p->to.dtype), p->name,
                        cg_ctype(p->to.dtype), all, t->at.v[k]);
    }
}

/* ---- loops --------------------------------------------------------------- */

static bool uses(const cg_fn *f, int ext, bool length)
{
    for (int i = 0; i < f->exts.n; i++)
        if (f->exts.v[i].ext == ext)
            return length ? f->exts.v[i].len : f->exts.v[i].off;
    return false;
}

static bool is_zero(const char *s)
{
    return strcmp(s, "0") == 0;
}

/* How many parts there are. */
static const char *parts(cg_fn *f, const nd_tile_axis *a)
{
    const nd_ext *e = &f->g->c->exts.v[a->ext];
    long long most = (long long)f->g->c->exts.v[a->part].max;
    if (e->fixed >= 0)
        return nd_fmt(f->g->a, "%lld", (e->fixed + most - 1) / most);
    if (most == 1)
        return cg_count(f, a->ext);
    return nd_fmt(f->g->a, "(%s + %lld) / %lld", cg_count(f, a->ext), most - 1,
                  most);
}

static const char *in_brackets(nd_arena *a, const char *s)
{
    return strchr(s, ' ') ? nd_fmt(a, "(%s)", s) : s;
}

/* The end of the axis here, as a global index. */
static const char *end_of(cg_fn *f, const nd_tile_axis *a)
{
    const char *from = cg_start(f, a->ext), *n = cg_count(f, a->ext);
    return is_zero(from) ? n : nd_fmt(f->g->a, "%s + %s", from, n);
}

static const char *plus(nd_arena *a, const char *x, int64_t n)
{
    return !n ? x : nd_fmt(a, "%s %c %lld", x, n < 0 ? '-' : '+',
                           (long long)(n < 0 ? -n : n));
}

/* Where the inner axis begins and ends beside this block. */
static void declare_inner(cg_fn *f)
{
    const nd_tiles *t = f->tiles;
    const nd_tile_axis *b = &t->axis[t->blocked];
    nd_arena *a = f->g->a;
    const nd_tile_axis inner = {.axis = t->inner, .ext = t->inner_ext};
    const char *first = cg_start(f, t->inner_ext), *all = end_of(f, &inner);
    const char *from = cg_start(f, t->inner_part), *to = all;
    if (t->begins)
        cg_line(f, "const int64_t %s = ndrt_clip(%s, %s, %s);", from,
                plus(a, cg_start(f, b->part), t->begin), first, all);
    if (t->ends)
        to = nd_fmt(a, "ndrt_clip(%s, %s, %s)",
                    plus(a, cg_sum(a, cg_start(f, b->part),
                                   cg_count(f, b->part)), t->end), from, all);
    if (t->begins || t->ends)
        cg_line(f, "const int64_t %s = %s%s%s;", cg_count(f, t->inner_part), to,
                is_zero(from) ? "" : " - ", is_zero(from) ? "" : from);
}

static void declare_length(cg_fn *f, const nd_tile_axis *a)
{
    if (uses(f, a->part, true)) {
        long long most = (long long)f->g->c->exts.v[a->part].max;
        cg_line(f, "const int64_t %s = ndrt_clip(%s - %s, 0, %lld);",
                cg_count(f, a->part), end_of(f, a), cg_start(f, a->part), most);
    }
    if (a == &f->tiles->axis[f->tiles->blocked])
        declare_inner(f);
}

/* Where the part of a shared axis begins: its digit of the tile's number. */
static void declare_start(cg_fn *f, int axis, const char *number)
{
    nd_arena *a = f->g->a;
    const nd_tile_axis *x = &f->tiles->axis[axis];
    const char *below = NULL, *from = cg_start(f, x->ext), *digit = number;
    bool bound = axis == f->tiles->blocked &&
                 (f->tiles->begins || f->tiles->ends);
    if (!bound && !uses(f, x->part, false) && !uses(f, x->part, true))
        return;
    for (int i = axis + 1; i < f->tiles->n && !f->tiles->axis[i].serial; i++) {
        const char *n = in_brackets(a, parts(f, &f->tiles->axis[i]));
        if (strcmp(n, "1") != 0)
            below = below ? nd_fmt(a, "%s * %s", below, n) : n;
    }
    if (below)
        digit = nd_fmt(a, strchr(below, '*') ? "%s / (%s)" : "%s / %s", number,
                       below);
    if (axis)
        digit = nd_fmt(a, "%s %% %s", digit,
                       in_brackets(a, parts(f, x)));
    if (f->g->c->exts.v[x->part].max > 1)
        digit = nd_fmt(a, "%s * %lld", digit,
                       (long long)f->g->c->exts.v[x->part].max);
    if (strcmp(parts(f, x), "1") == 0)
        cg_line(f, "const int64_t %s = %s;", cg_start(f, x->part), from);
    else
        cg_line(f, "const int64_t %s = %s%s%s;", cg_start(f, x->part),
                is_zero(from) ? "" : from, is_zero(from) ? "" : " + ", digit);
    declare_length(f, x);
}

static void open_serial(cg_fn *f, const nd_tile_axis *x)
{
    const char *o = cg_start(f, x->part);
    long long most = (long long)f->g->c->exts.v[x->part].max;
    cg_line(f, most == 1 ? "for (int64_t %s = %s; %s < %s; %s++) {"
                         : "for (int64_t %s = %s; %s < %s; %s += %lld) {",
            o, cg_start(f, x->ext), o, end_of(f, x), o, most);
    f->indent++;
    declare_length(f, x);
}

/* ---- sums over tiles ----------------------------------------------------- */

/* Sets what the products of the tiles add to to 0, row by row. */
static void clear_sum(cg_fn *f, const nd_value *v)
{
    nd_ref r;
    int row = -1, indent = f->indent;
    const char *at = NULL, *n = "1";
    nd_dest_of(f->g->c, v, &r);
    nd_tile_part(f->tiles, true, &r);
    const char *x = cg_pointer_to(f, &r, true)->name;
    for (int i = 0; i < r.rank; i++)
        if (r.stride[i].k == 1 && !r.stride[i].n &&
            f->g->c->exts.v[r.ext[i]].fixed != 1)
            row = i;
    for (int i = 0; i < r.rank; i++) {
        if (i == row || f->g->c->exts.v[r.ext[i]].fixed == 1)
            continue;
        const char *var = cg_axis_var(f->g, r.axis[i]);
        cg_line(f, "for (int64_t %s = 0; %s < %s; %s++)", var, var,
                cg_count(f, r.ext[i]), var);
        f->indent++;
        at = cg_sum(f->g->a, at, cg_scaled(f, var, &r.stride[i]));
    }
    if (row >= 0)
        n = cg_count(f, r.ext[row]);
    cg_line(f, "memset(%s%s%s, 0, (size_t)%s * sizeof(float));", x,
            at ? " + " : "", at ? at : "", n);
    f->indent = indent;
}

static void clear_sums(cg_fn *f)
{
    for (int i = 0; i < f->tiles->v.n; i++) {
        const nd_kernel *k = f->tiles->v.v[i];
        if (k->kind == K_GEMM && cg_adds_tiles(f, k->nodes.v[0].op))
            clear_sum(f, k->nodes.v[0].op->out[0]);
    }
}

/* ---- the function -------------------------------------------------------- */

static int serial_axes(const nd_tiles *t)
{
    int n = 0;
    for (int i = 0; i < t->n; i++)
        n += t->axis[i].serial;
    return n;
}

/* What `emit` writes, at an indentation of its own. */
static nd_buf aside(cg_fn *f, int indent, void (*emit)(cg_fn *))
{
    nd_buf here = f->b;
    int was = f->indent;
    f->b = (nd_buf){.arena = f->g->a};
    f->indent = indent;
    emit(f);
    nd_buf out = f->b;
    f->b = here;
    f->indent = was;
    return out;
}

static void run_kernels(cg_fn *f)
{
    for (int i = 0; i < f->tiles->v.n; i++) {
        nd_kernel *k = f->tiles->v.v[i];
        if (k->kind == K_LOOP)
            cg_call_loop(f, k);
        else
            cg_gemm(f, k);
    }
}

static void shared_pointers(cg_fn *f)
{
    declare_pointers(f, OF_SHARED);
}

static void tile_pointers(cg_fn *f)
{
    declare_pointers(f, OF_TILE);
}

static void put(cg_fn *f, nd_buf b)
{
    nd_put(&f->b, b.s ? b.s : "");
}

/* Inside out, because what a loop declares is what its inside turned out to
 * need. */
static void tile_loops(cg_fn *f)
{
    const nd_tiles *t = f->tiles;
    int serial = serial_axes(t), first = t->n - serial, depth = f->indent + 1;
    const char *count = NULL;
    nd_buf calls = aside(f, depth + serial, run_kernels);
    nd_buf clears = aside(f, depth, clear_sums);
    nd_buf inner = aside(f, depth + serial, tile_pointers);
    nd_buf outer = aside(f, depth, shared_pointers);
    declare_scratch(f);
    const char *span = cg_fresh(&f->names, "tiles");
    const char *i = cg_fresh(&f->names, "tile");
    for (int k = 0; k < first; k++) {
        const char *n = in_brackets(f->g->a, parts(f, &t->axis[k]));
        if (strcmp(n, "1") != 0)
            count = count ? nd_fmt(f->g->a, "%s * %s", count, n) : n;
    }
    cg_line(f, "const ndrt_span %s = ndrt_share(r, %s, 1);", span,
            count ? count : "1");
    cg_line(f, "for (int64_t %s = %s.from; %s < %s.to; %s++) {", i, span, i,
            span, i);
    f->indent++;
    for (int k = 0; k < first; k++)
        declare_start(f, k, i);
    put(f, outer);
    put(f, clears);
    for (int k = first; k < t->n; k++)
        open_serial(f, &t->axis[k]);
    put(f, inner);
    put(f, calls);
    while (f->indent > depth - 1) {
        f->indent--;
        cg_line(f, "}");
    }
    cg_line(f, "ndrt_barrier(r);");
}

static bool is_parameter(const cg_fn *f, const cg_pointer *p)
{
    return p->to.root != AT_TILE && level_of(f, &p->to) == OF_FUNCTION;
}

/* Without the axes of which a tile has one index. */
static const char *tile_type(cg_fn *f, const nd_value *v)
{
    nd_type t = v->type;
    for (int i = 0; i < f->tiles->n; i++) {
        const nd_tile_axis *a = &f->tiles->axis[i];
        if (f->g->c->exts.v[a->part].fixed == 1)
            nd_drop_axis(&t, nd_axis_at(&t, a->axis));
    }
    return cg_type(f->g, &t);
}

/* What a tile is, and what lies in it. */
static void put_comment(cg_fn *f, nd_buf *b, const nd_kernel *k)
{
    const nd_tiles *t = f->tiles;
    nd_arena *a = f->g->a;
    const char *source = cg_source(f->g, 0, k->loc);
    nd_buf s = {.arena = a};
    nd_putf(b, "/* %s\n", source ? source : k->name);
    nd_put(&s, " * Tile by tile:");
    for (int i = 0; i < t->n; i++) {
        long long n = (long long)f->g->c->exts.v[t->axis[i].part].max;
        nd_putf(&s, "%s %lld of %s", i ? "," : "", n, t->axis[i].axis->name);
    }
    nd_putf(&s, t->begins || t->ends ? ", and of %s what the mask leaves."
                                     : " and all of %s.", t->inner->name);
    nd_put(&s, " One tile at a time is there of");
    int col = 0;
    for (const char *w = s.s; *w;) {             /* folded at 80 columns */
        int n = (int)strcspn(w + 1, " ") + 1;
        if (col + n > 79) {
            nd_put(b, "\n *");
            col = 2;
        }
        nd_putn(b, w, (size_t)n);
        col += n;
        w += n;
    }
    nd_put(b, "\n");
    for (int i = 0; i < f->ptrs.n; i++)
        if (f->ptrs.v[i].to.root == AT_TILE)
            nd_putf(b, " *    %s %s\n", f->ptrs.v[i].name,
                    tile_type(f, f->ptrs.v[i].to.value));
    nd_put(b, " */\n");
}

static void put_signature(cg_fn *f, nd_buf *b, const char *name)
{
    nd_buf s = {.arena = f->g->a};
    nd_putf(&s, "static void %s(ndrt_rank *r", name);
    for (int i = 0; i < f->iters.n; i++)
        nd_putf(&s, ", int64_t %s", cg_iter(f, f->iters.v[i]));
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < f->ptrs.n; i++) {
            const cg_pointer *p = &f->ptrs.v[i];
            if (p->written == w && is_parameter(f, p))
                nd_putf(&s, ", %s%s *%s", w ? "" : "const ",
                        cg_ctype(p->to.dtype), p->name);
        }
    nd_put(&s, ")");
    cg_fold(b, 0, s.s);
}

static void call(cg_fn *f, const cg_fn *t, const char *name)
{
    nd_buf s = {.arena = f->g->a};
    f->uses_rank = true;
    nd_putf(&s, "%s(r", name);
    for (int i = 0; i < t->iters.n; i++)
        nd_putf(&s, ", %s", cg_iter(f, t->iters.v[i]));
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < t->ptrs.n; i++) {
            const cg_pointer *p = &t->ptrs.v[i];
            if (p->written == w && is_parameter(t, p))
                nd_putf(&s, ", %s", cg_pointer_at(f, &p->to, w)->name);
        }
    nd_put(&s, ");");
    cg_line(f, "%s", s.s);
}

const char *cg_tiles(cg_fn *f, nd_kernel *k)
{
    cg *g = f->g;
    cg_fn t;
    cg_start_caller(&t, g);
    t.tiles = k->tiles;
    t.in_repeat = f->in_repeat;
    tile_loops(&t);
    static const char *const phase[] = {"fwd", "bwd", "wgt", "pre"};
    const char *name = cg_fresh(&g->global, nd_fmt(g->a, "%s_tiles_%s",
                                    *k->name ? k->name : g->m->name,
                                    phase[k->phase]));
    put_comment(&t, g->out, k);
    put_signature(&t, g->out, name);
    nd_put(g->out, "{\n");
    cg_declare(&t, g->out);
    nd_put(g->out, t.b.s);
    nd_put(g->out, "}\n\n");
    call(f, &t, name);
    return name;
}
