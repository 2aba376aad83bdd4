/* kir_c.c - a kernel as one C function.
 *
 *   static void softmax(const float *restrict s, float *restrict p)
 *   {
 *       for (int64_t batch = 0; batch < 4; batch++)
 *           for (int64_t seq = 0; seq < 256; seq++) {
 *               const float *s_row = s + batch * 65536 + seq * 256;
 *               float m_lanes[16] = {ND_16(-INFINITY)};
 *               for (int64_t kv_at = 0; kv_at < 256; kv_at += 16)
 *   #pragma omp simd
 *                   for (int32_t lane = 0; lane < 16; lane++) {
 *                       const int64_t kv = kv_at + lane;
 *                       m_lanes[lane] = nd_max(m_lanes[lane], s_row[kv]);
 *                   }
 *               const float m = nd_max_16(m_lanes);
 *               ...
 *
 * Instructions become expressions (kir_c_expr.c); here is what stands around
 * them: loops, folds, rows, the signature.
 */
#include "kir_c.h"

#include <string.h>

enum { MAX_INLINE_TEXT = 44 };       /* characters of a nested expression */

/* ---- effects ------------------------------------------------------------ */

/* x = x (+, max, min) the value. Integers are compared by an expression that
 * says each of them twice: what is more than a name gets one. */
static void combine(kir_c *p, int red, nd_dtype t, const char *x, int value)
{
    cg_expr v = p->text[value];
    if (red == RED_SUM) {
        cg_line(&p->f, "%s += %s;", x, v.s);
        return;
    }
    if (!nd_is_float(t) && v.tight != CG_PRIMARY) {
        const char *name = cg_fresh(&p->f.names, "v");
        cg_line(&p->f, "const %s %s = %s;", cg_ctype(t), name, v.s);
        v.s = name;
    }
    cg_line(&p->f, "%s = %s;", x, kir_c_combine(p->f.g->a, red, t, x, v.s));
}

static void add(kir_c *p, const kir_inst *x)
{
    const char *to = kir_c_element(p, x->place, true);
    if (x->nin > 1) {
        cg_line(&p->f, "if ((uint64_t)%s < (uint64_t)%s)",
                p->text[x->in[1]].s, cg_count(&p->f, x->slot));
        p->f.indent++;
    }
    combine(p, x->sub, x->type, to, x->in[0]);
    if (x->nin > 1)
        p->f.indent--;
}

static void keep(kir_c *p, const kir_inst *x)
{
    const kir_kept *row = &p->k->kept.v[x->slot];
    cg_names *names = &p->f.names;
    if (!p->kept[x->slot])
        p->kept[x->slot] = cg_fresh(
            names, nd_fmt(p->f.g->a, "%s_kept",
                          cg_fresh(names, cg_local_word(row->value))));
    cg_line(&p->f, "%s = %s;", kir_c_kept(p, x->slot), p->text[x->in[0]].s);
}

static void fold(kir_c *p, const kir_inst *x)
{
    const kir_fold *f = &p->k->folds.v[x->slot];
    const char *to = p->fold[x->slot];
    if (p->lanes[x->slot])
        to = nd_fmt(p->f.g->a, "%s[%s]", p->lanes[x->slot], p->lane);
    combine(p, f->red, f->type, to, x->in[0]);
}

/* ---- one instruction ---------------------------------------------------- */

static void name_value(kir_c *p, const kir_inst *x, cg_expr *text)
{
    bool own = x->naming == KIR_OWN ||
               (x->naming == KIR_LONG && strlen(text->s) > MAX_INLINE_TEXT);
    bool named = x->naming == KIR_NOW ||
                 (x->naming != KIR_PART && (x->uses > 1 || (x->read && own)));
    if (!named)
        return;
    const char *name = cg_fresh(&p->f.names, cg_local_word(x->value));
    cg_line(&p->f, "const %s %s = %s;", cg_ctype(x->type), name, text->s);
    *text = (cg_expr){name, CG_PRIMARY};
}

static void print_inst(kir_c *p, int i)
{
    const kir_inst *x = &p->k->inst.v[i];
    switch (x->op) {
    case KIR_STORE:
        cg_line(&p->f, "%s = %s;", kir_c_element(p, x->place, true),
                p->text[x->in[0]].s);
        break;
    case KIR_ADD:
        add(p, x);
        break;
    case KIR_KEEP:
        keep(p, x);
        break;
    case KIR_FOLD:
        fold(p, x);
        break;
    case KIR_SCAN:
        fold(p, x);
        /* fall through */
    default:
        p->text[i] = kir_c_value(p, x);
        name_value(p, x, &p->text[i]);
    }
}

static void print_insts(kir_c *p, int from, int to)
{
    for (int i = from; i < to; i++)
        print_inst(p, i);
}

/* ---- folds -------------------------------------------------------------- */

static void start_folds(kir_c *p, int pass)
{
    for (int i = 0; i < p->k->folds.n; i++) {
        const kir_fold *f = &p->k->folds.v[i];
        if (f->pass != pass)
            continue;
        const char *none = kir_identity_text(p->f.g->a, f->red, f->type);
        p->fold[i] = cg_fresh(&p->f.names, cg_local_word(f->value));
        if (f->scan) {
            cg_line(&p->f, "%s %s = %s;", cg_ctype(f->type), p->fold[i], none);
            continue;
        }
        p->lanes[i] = cg_fresh(&p->f.names,
                              nd_fmt(p->f.g->a, "%s_lanes", p->fold[i]));
        if (f->red != RED_SUM)
            none = nd_fmt(p->f.g->a, "ND_16(%s)", none);
        else
            none = "0";
        cg_line(&p->f, "%s %s[%d] = {%s};", cg_ctype(f->type), p->lanes[i],
                KIR_LANES, none);
    }
}

static void end_folds(kir_c *p, int pass)
{
    static const char *const word[] = {"sum", "max", "min"};
    for (int i = 0; i < p->k->folds.n; i++) {
        const kir_fold *f = &p->k->folds.v[i];
        if (f->pass != pass || f->scan)
            continue;
        const char *type = f->type == ND_F32 ? ""
                           : nd_fmt(p->f.g->a, "_%s", nd_dtype_name(f->type));
        cg_line(&p->f, "const %s %s = nd_%s_16%s(%s);", cg_ctype(f->type),
                p->fold[i], word[f->red], type, p->lanes[i]);
    }
}

static bool has_lanes(const kir_kernel *k, int pass)
{
    for (int i = 0; i < k->folds.n; i++)
        if (k->folds.v[i].pass == pass && !k->folds.v[i].scan)
            return true;
    return false;
}

/* ---- loops -------------------------------------------------------------- */

/* A loop of the pass; the innermost may be shared out. */
static void open_inner(kir_c *p, int i, bool brace)
{
    cg_fn *f = &p->f;
    const char *v = p->var[i], *n = cg_count(f, p->k->loop[i].ext);
    const char *open = brace ? " {" : "";
    if (p->k->backwards)
        cg_line(f, "for (int64_t %s = %s - 1; %s >= 0; %s--)%s", v, n, v, v,
                open);
    else if (p->columns && i == p->k->nloops - 1)
        cg_line(f, "for (int64_t %s = %s.from; %s < %s.to; %s++)%s", v,
                p->columns, v, p->columns, v, open);
    else
        cg_line(f, "for (int64_t %s = 0; %s < %s; %s++)%s", v, v, n, v, open);
    f->indent++;
}

static int lines_in(const nd_buf *b)
{
    int n = 0;
    for (const char *s = b->s; s && *s; s++)
        n += *s == '\n';
    return n;
}

/* Does the innermost loop fit into the lanes as it is? */
static bool is_short(const kir_c *p)
{
    const kir_loop *l = &p->k->loop[p->k->nloops - 1];
    int64_t n = p->f.g->c->exts.v[l->ext].fixed;
    return n >= 0 && n <= KIR_LANES;
}

/* The same in all passes of a kernel. */
static void name_lanes(kir_c *p)
{
    const char *var = p->var[p->k->nloops - 1];
    if (is_short(p))
        p->lane = var;
    if (p->lane)
        return;
    p->at = cg_fresh(&p->f.names, nd_fmt(p->f.g->a, "%s_at", var));
    p->lane = cg_fresh(&p->f.names, "lane");
}

/* The loops of an innermost axis in lanes: blocks of 16, or (`rest`) what is
 * left of them. A number says how long a block is: then compilers make it one
 * vector, and a loop of nothing else. */
static void open_lanes(kir_c *p, bool rest, bool serial)
{
    cg_fn *f = &p->f;
    nd_arena *a = f->g->a;
    const char *at = p->at;
    const kir_loop *l = &p->k->loop[p->k->nloops - 1];
    const char *n = cg_count(f, l->ext), *whole, *left;
    int64_t fixed = f->g->c->exts.v[l->ext].fixed;
    if (fixed < 0) {
        whole = nd_fmt(a, "(%s & -16)", n);
        left = nd_fmt(a, "%s - %s", n, at);
    } else {
        whole = nd_fmt(a, "%lld", (long long)(fixed / KIR_LANES * KIR_LANES));
        left = nd_fmt(a, "%lld", (long long)(fixed % KIR_LANES));
    }
    cg_line(f, "for (int64_t %s = %s; %s < %s; %s += %d)", at,
            rest ? whole : "0", at, rest ? n : whole, at, KIR_LANES);
    if (!serial)
        nd_put(&f->b, "#pragma omp simd\n");
    f->indent++;
    cg_line(f, "for (int32_t %s = 0; %s < %s; %s++) {", p->lane, p->lane,
            rest ? left : "16", p->lane);
    f->indent++;
}

/* The text of a pass's body, as deep as it will stand. */
static nd_buf body_of(kir_c *p, const kir_pass *s, nd_buf *before,
                      const char *at)
{
    cg_fn *f = &p->f;
    int last = p->k->nloops - 1;
    nd_buf so_far = f->b, body;
    f->b = (nd_buf){.arena = f->g->a};
    p->base = f->indent;
    f->indent += p->k->ninner + (at != NULL);
    p->before = before;
    p->uses_last = false;
    p->in_lanes = at != NULL;
    print_insts(p, s->body, s->after);
    p->in_lanes = false;
    p->before = NULL;
    body = f->b;
    if (at && p->uses_last) {
        f->b = (nd_buf){.arena = f->g->a};
        cg_line(f, "const int64_t %s = %s + %s;", p->var[last], at, p->lane);
        nd_put(&f->b, body.s);
        body = f->b;
    }
    f->indent = p->base;
    f->b = so_far;
    return body;
}

static void put_body(kir_c *p, const nd_buf *body, bool brace)
{
    cg_fn *f = &p->f;
    nd_put(&f->b, body->s ? body->s : "");
    f->indent--;
    if (brace)
        cg_line(f, "}");
}

/* All blocks of 16, then what is left; neither if it is known to be nothing. */
static void lane_loops(kir_c *p, const nd_buf *body, bool serial)
{
    int base = p->f.indent;
    const nd_ext *x = &p->f.g->c->exts.v[p->k->loop[p->k->nloops - 1].ext];
    for (int rest = 0; rest < 2; rest++) {
        if (rest ? x->fixed >= 0 && x->fixed % KIR_LANES == 0
                 : x->max < KIR_LANES)
            continue;
        open_lanes(p, rest, serial);
        put_body(p, body, true);
        p->f.indent = base;
    }
}

static void inner_loops(kir_c *p, int pass)
{
    cg_fn *f = &p->f;
    const kir_pass *s = &p->k->passes.v[pass];
    int first = p->k->nloops - p->k->ninner, last = p->k->nloops - 1;
    int base = f->indent;
    nd_buf before = {.arena = f->g->a};
    const char *at = NULL;
    if (has_lanes(p->k, pass)) {
        name_lanes(p);
        at = is_short(p) ? NULL : p->at;
    }
    nd_buf body = body_of(p, s, &before, at);
    nd_put(&f->b, before.s ? before.s : "");
    bool brace = lines_in(&body) > 1;
    for (int i = first; i < last; i++)
        open_inner(p, i, at && i == last - 1);
    if (at) {
        lane_loops(p, &body, s->serial);
    } else {
        if (!s->serial)
            nd_put(&f->b, "#pragma omp simd\n");
        open_inner(p, last, brace);
        put_body(p, &body, brace);
    }
    if (at && first < last) {
        f->indent--;
        cg_line(f, "}");
    }
    f->indent = base;
}

/* ---- rows --------------------------------------------------------------- */

static void one_row(kir_c *p)
{
    for (int i = 0; i < p->k->passes.n; i++) {
        const kir_pass *s = &p->k->passes.v[i];
        print_insts(p, s->row, s->body);
        start_folds(p, i);
        if (p->k->ninner && s->body < s->after)
            inner_loops(p, i);
        else
            print_insts(p, s->body, s->after);
        end_folds(p, i);
        print_insts(p, s->after, s->end);
    }
}

static void declare_scratch(kir_c *p)
{
    const kir_kernel *k = p->k;
    for (int i = 0; i < k->kept.n; i++) {
        nd_buf b = {.arena = p->f.g->a};
        for (int j = k->nloops - k->ninner; j < k->nloops; j++)
            nd_putf(&b, "[%lld]",
                    (long long)p->f.g->c->exts.v[k->loop[j].ext].max);
        cg_line(&p->f, "%s %s%s;", cg_ctype(k->kept.v[i].type), p->kept[i],
                b.s ? b.s : "");
    }
}

static void declare_rows(kir_c *p)
{
    for (int i = 0; i < p->f.ptrs.n; i++) {
        const cg_pointer *x = &p->f.ptrs.v[i];
        if (x->row)
            cg_line(&p->f, "%s%s *%s = %s + %s;", x->written ? "" : "const ",
                    cg_ctype(x->to.dtype), x->row, x->part ? x->part : x->name,
                    x->row_at);
    }
}

static nd_buf cut_off(kir_c *p)
{
    nd_buf b = p->f.b;
    p->f.b = (nd_buf){.arena = p->f.g->a};
    return b;
}

/* What a row needs, and which axes it names, shows when it is written. */
static void print_nest(kir_c *p)
{
    kir_around s = {0};
    kir_c_open_share(p, &s);
    nd_buf around = cut_off(p);
    kir_c_open_loops(p, &s);
    nd_buf loops = cut_off(p);
    one_row(p);
    nd_buf row = cut_off(p);
    p->f.b = loops;
    declare_scratch(p);
    declare_rows(p);
    nd_put(&p->f.b, row.s ? row.s : "");
    nd_buf inside = cut_off(p);
    p->f.b = around;
    kir_c_share_axes(p, &s, inside.s);
    nd_put(&p->f.b, inside.s ? inside.s : "");
    kir_c_close_share(p, &s);
}

/* ---- the function ------------------------------------------------------- */

/* The parameter behind a pointer. */
static const kir_param *param_at(const cg_kernel *k, const cg_target *to)
{
    const kir_kernel *ir = k->ir;
    for (int i = 0; i < ir->params.n; i++)
        if (cg_same_place(&ir->params.v[i].to, to))
            return &ir->params.v[i];
    return NULL;
}

bool kir_shares(const cg_kernel *k, const cg_target *to)
{
    const kir_param *p = param_at(k, to);
    return p && p->shares >= 0;
}

/* ", in place of x" of what is written there, or "". */
static const char *in_place_of(cg *g, const cg_kernel *k, const cg_pointer *p)
{
    const kir_param *out = param_at(k, &p->to);
    if (!p->written || !out || out->shares < 0)
        return "";
    const kir_param *in = &k->ir->params.v[out->shares];
    for (int i = 0; i < k->ptrs.n; i++)
        if (cg_same_place(&k->ptrs.v[i].to, &in->to))
            return nd_fmt(g->a, ", in place of %s", k->ptrs.v[i].name);
    return "";
}

/* The line of the source, what the kernel reads and (->) what it writes. */
static void put_comment(cg *g, nd_buf *b, const cg_kernel *k)
{
    const char *source = cg_source(g, 0, k->k->loc);
    const char *path = k->k->op->path;
    nd_putf(b, "/* %s", source ? source : path && *path ? path : g->m->name);
    int wide = 0;
    for (int i = 0; i < k->ptrs.n; i++) {
        int n = (int)strlen(k->ptrs.v[i].name);
        wide = n > wide && n < 28 ? n : wide;
    }
    for (int i = 0; i < k->ptrs.n; i++) {
        const cg_pointer *p = &k->ptrs.v[i];
        const nd_type *t = p->to.param ? &p->to.param->value->type
                                       : &p->to.value->type;
        const char *type = nd_fmt(g->a, "%s%s", cg_type(g, t),
                                  in_place_of(g, k, p));
        bool folds = strlen(p->name) + strlen(type) > 72 ||
                     (size_t)wide + strlen(type) > 72;
        nd_putf(b, "\n * %s %-*s%s%s", p->written ? "->" : "  ",
                folds ? 0 : wide, p->name, folds ? "\n *       " : " ", type);
    }
    nd_put(b, " */\n");
}

static void put_signature(cg *g, nd_buf *b, const cg_kernel *k, bool declare)
{
    nd_buf s = {.arena = g->a};
    nd_putf(&s, "%svoid %s(", declare ? "" : "static ", k->name);
    const char *sep = "";
    if (k->needs_rank) {
        nd_put(&s, "ndrt_rank *r");
        sep = ", ";
    }
    for (int i = 0; i < k->parts.n; i++) {
        const cg_used *x = &k->parts.v[i];
        const char *name = g->ext_name[x->ext] + 2;
        if (x->off)
            nd_putf(&s, "%sint64_t o_%s", sep, name);
        if (x->off && x->len)
            sep = ", ";
        if (x->len)
            nd_putf(&s, "%sint64_t n_%s", sep, name);
        sep = ", ";
    }
    cg_fn names = {.g = g};
    for (int i = 0; i < k->iters.n; i++, sep = ", ")
        nd_putf(&s, "%sint64_t %s", sep, cg_iter(&names, k->iters.v[i]));
    for (int i = 0; i < k->ptrs.n; i++, sep = ", ")
        nd_putf(&s, "%s%s%s *%s%s", sep,
                k->ptrs.v[i].written ? "" : "const ",
                cg_ctype(k->ptrs.v[i].to.dtype),
                kir_shares(k, &k->ptrs.v[i].to) ? "" : "restrict ",
                k->ptrs.v[i].name);
    nd_put(&s, declare ? ");" : ")");
    cg_fold(b, 0, s.s);
}

/* Reads first, then what is written. */
static void order_pointers(cg_kernel *out, kir_c *p)
{
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < p->f.ptrs.n; i++)
            if (p->f.ptrs.v[i].written == w)
                ND_PUSH(p->f.g->a, &out->ptrs, p->f.ptrs.v[i]);
}

static void set_up(kir_c *p, cg *g, kir_kernel *k)
{
    *p = (kir_c){.k = k, .rows = k->ninner && k->ninner < k->nloops};
    cg_fn_start(&p->f, g);
    p->f.tiles = k->from->tiles;
    p->text = ND_NEWN(g->a, cg_expr, k->inst.n);
    p->fold = ND_NEWN(g->a, const char *, k->folds.n);
    p->lanes = ND_NEWN(g->a, const char *, k->folds.n);
    p->kept = ND_NEWN(g->a, const char *, k->kept.n);
    for (int i = 0; i < k->iters.n; i++)
        cg_iter(&p->f, k->iters.v[i]);
    for (int i = 0; i < k->nloops; i++)
        p->var[i] = k->loop[i].once
                        ? "0" : cg_fresh(&p->f.names, k->loop[i].axis->name);
}

void kir_print_c(cg *g, kir_kernel *k, cg_kernel *out, bool declare)
{
    kir_c p;
    set_up(&p, g, k);
    print_nest(&p);
    order_pointers(out, &p);
    out->name = cg_fresh(&g->global, out->name);
    out->needs_rank = p.f.uses_rank;
    out->iters.n = 0;
    for (int i = 0; i < k->iters.n; i++)
        ND_PUSH(g->a, &out->iters, k->iters.v[i]);
    for (int i = 0; i < p.f.exts.n; i++)
        if (g->c->exts.v[p.f.exts.v[i].ext].tile)
            ND_PUSH(g->a, &out->parts, p.f.exts.v[i]);
    put_comment(g, g->out, out);
    put_signature(g, g->out, out, declare);
    if (declare) {
        nd_put(g->out, "\n");
        return;
    }
    nd_put(g->out, "{\n");
    cg_declare(&p.f, g->out);
    nd_put(g->out, p.f.b.s ? p.f.b.s : "");
    nd_put(g->out, "}\n\n");
}

const char *kir_scalar_c(cg_fn *f, kir_kernel *k, int at)
{
    kir_c p = {.f = *f, .k = k};
    p.text = ND_NEWN(f->g->a, cg_expr, k->inst.n);
    print_insts(&p, 0, k->inst.n);
    *f = p.f;
    return p.text[at].s;
}
