/* emit_loop.c - a loop kernel as one C function.
 *
 *   static void softmax(const float *restrict s, float *restrict p)
 *   {
 *       for (int64_t batch = 0; batch < 4; batch++)
 *           for (int64_t seq = 0; seq < 256; seq++) {
 *               const float *s_row = s + batch * 65536 + seq * 256;
 *               float m = -INFINITY;
 *   #pragma omp simd reduction(nd_max : m)
 *               for (int64_t kv = 0; kv < 256; kv++)
 *                   m = nd_max(m, s_row[kv]);
 *               ...
 */
#include "codegen.h"

#include <string.h>

enum { MAX_INLINE_TEXT = 44 };       /* characters of a nested expression */

typedef struct nest {
    cg *g;
    cg_fn f;
    nd_kernel *k;
    cg_env e;
    bool *need;                      /* by node: computed in this pass */
    int *uses;                       /* by node: in this pass */
    const char **partial;            /* by node: the sum of one row */
} nest;

/* ---- what a pass computes ----------------------------------------------- */

static void need_leaf(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    nest *x = user;
    (void)in_memory;
    nd_node *n = nd_node_of(x->k, leaf);
    if (!n)
        return;
    int i = (int)(n - x->k->nodes.v);
    x->uses[i]++;
    if (n->row || n->fold || x->need[i] ||
        (n->pass < x->e.pass && (n->stored || n->keep)))
        return;
    x->need[i] = true;
    nd_leaves(c, n->op, need_leaf, x);
}

static bool is_sink(const nd_node *n)
{
    return n->stored || n->fold || n->add || n->keep;
}

static void find_needs(nest *x, int pass)
{
    int n = x->k->nodes.n;
    memset(x->need, 0, sizeof *x->need * (size_t)n);
    memset(x->uses, 0, sizeof *x->uses * (size_t)n);
    x->e.pass = pass;
    for (int i = 0; i < n; i++) {
        const nd_node *d = &x->k->nodes.v[i];
        if (d->row || d->pass != pass || !is_sink(d) || x->need[i])
            continue;
        x->need[i] = true;
        nd_leaves(x->g->c, d->op, need_leaf, x);
    }
}

/* ---- adding to memory --------------------------------------------------- */

static bool reduces(const nd_op *op, const nd_axis *a)
{
    for (int i = 0; op->kind == OP_REDUCE && i < op->naxes; i++)
        if (op->axes[i] == a)
            return true;
    return false;
}

/* Does a reduce that adds to memory first sum the whole row? */
static bool by_rows(const nest *x, const nd_node *n)
{
    const nd_kernel *k = x->k;
    return n->add && !n->row && k->ninner &&
           reduces(n->op, k->inner_axis[k->ninner - 1]);
}

/* Integers are compared by an expression that says each of them twice: what is
 * more than a name gets one. */
static const char *named(nest *x, const nd_op *op, cg_expr v)
{
    nd_dtype t = op->out[0]->type.dtype;
    if (op->sub == RED_SUM || nd_is_float(t) || v.tight == CG_PRIMARY)
        return v.s;
    const char *name = cg_fresh(&x->f.names, "v");
    cg_line(&x->f, "const %s %s = %s;", cg_ctype(t), name, v.s);
    return name;
}

static void add_to_memory(nest *x, const nd_node *n, cg_expr v)
{
    const char *value = v.s;
    nd_op *op = n->op;
    nd_ref r = nd_add_ref(x->g->c, op);
    if (op->kind == OP_SCATTER_ADD) {
        const char *at = cg_row_index(&x->e, op);
        const char *s = cg_element(&x->e, &r, true, op->axes[0], at);
        int i = nd_axis_at(&op->out[0]->type, op->axes[0]);
        int ext = nd_ext_of(x->g->c, &op->out[0]->type, i);
        cg_line(&x->f, "if ((uint64_t)%s < (uint64_t)%s)", at,
                cg_count(&x->f, ext));
        x->f.indent++;
        cg_line(&x->f, "%s += %s;", s, value);
        x->f.indent--;
        return;
    }
    const char *s = cg_element(&x->e, &r, true, NULL, NULL);
    if (op->kind == OP_REDUCE && op->sub != RED_SUM)
        cg_line(&x->f, "%s = %s;", s,
                cg_combine(x->g->a, op->sub, r.dtype, s, named(x, op, v)));
    else
        cg_line(&x->f, "%s += %s;", s, value);
}

/* ---- one node ----------------------------------------------------------- */

static void store(nest *x, const nd_node *n, const char *value)
{
    nd_ref r;
    cg_ref_of(&x->f, n->op->out[0], &r);
    cg_line(&x->f, "%s = %s;", cg_element(&x->e, &r, true, NULL, NULL), value);
}

static void fold_into(nest *x, const nd_node *n, const char *name, cg_expr v)
{
    nd_op *op = n->op;
    if (op->sub == RED_SUM)
        cg_line(&x->f, "%s += %s;", name, v.s);
    else
        cg_line(&x->f, "%s = %s;", name,
                cg_combine(x->g->a, op->sub, op->out[0]->type.dtype, name,
                           named(x, op, v)));
}

static const char *scratch(nest *x, int i)
{
    cg_env *e = &x->e;
    nd_buf b = {.arena = x->g->a};
    nd_put(&b, e->kept[i]);
    for (int j = 0; j < e->n; j++)
        if (e->axis[j].inner)
            nd_putf(&b, "[%s]", e->axis[j].var);
    return b.s;
}

static bool is_statement(const nd_op *op)
{
    return op->kind == OP_GATHER || op->kind == OP_RANDOM ||
           op->kind == OP_NORMAL;
}

static void emit_node(nest *x, int i)
{
    nd_node *n = &x->k->nodes.v[i];
    nd_op *op = n->op;
    cg_expr v = cg_op_value(&x->e, op);
    if (n->fold || by_rows(x, n)) {
        fold_into(x, n, n->fold ? x->e.local[i].s : x->partial[i], v);
        return;
    }
    if (n->scan) {
        cg_line(&x->f, "%s += %s;", x->partial[i], v.s);
        store(x, n, x->partial[i]);
        return;
    }
    if (n->add) {
        add_to_memory(x, n, v);
        return;
    }
    bool keep = n->keep && n->pass == x->e.pass;
    bool saved = n->stored && (n->row || n->pass == x->e.pass);
    if ((x->uses[i] > 0 && (saved || keep)) || x->uses[i] > 1 ||
        (x->uses[i] == 1 &&
         (n->row || is_statement(op) || strlen(v.s) > MAX_INLINE_TEXT))) {
        const char *name = cg_local_name(&x->f, op->out[0]);
        cg_line(&x->f, "const %s %s = %s;",
                cg_ctype(op->out[0]->type.dtype), name, v.s);
        v = (cg_expr){name, CG_PRIMARY};
    }
    x->e.local[i] = v;
    if (saved)
        store(x, n, v.s);
    if (keep) {
        const char *row = x->e.kept[i];
        if (!row)
            row = x->e.kept[i] =
                cg_fresh(&x->f.names, nd_fmt(x->g->a, "%s_kept",
                                             cg_local_name(&x->f, op->out[0])));
        cg_line(&x->f, "%s = %s;", scratch(x, i), v.s);
    }
}

/* ---- loops -------------------------------------------------------------- */

/* A loop of the pass; the innermost may be shared out. */
static void open_inner(nest *x, const cg_axis *a, bool last, bool brace)
{
    const nd_node *n = &x->k->nodes.v[0];
    const char *v = a->var, *open = brace ? " {" : "";
    if (n->scan && n->op->reverse)
        cg_line(&x->f, "for (int64_t %s = %s - 1; %s >= 0; %s--)%s", v,
                cg_count(&x->f, a->ext), v, v, open);
    else if (last && x->e.columns)
        cg_line(&x->f, "for (int64_t %s = %s.from; %s < %s.to; %s++)%s", v,
                x->e.columns, v, x->e.columns, v, open);
    else
        cg_line(&x->f, "for (int64_t %s = 0; %s < %s; %s++)%s", v, v,
                cg_count(&x->f, a->ext), v, open);
    x->f.indent++;
}

static int lines_in(const nd_buf *b)
{
    int n = 0;
    for (const char *s = b->s; s && *s; s++)
        n += *s == '\n';
    return n;
}

/* The vector pragma, unless two elements of the innermost loop may add to one
 * place or follow each other. */
static void simd_pragma(nest *x)
{
    nd_kernel *k = x->k;
    const nd_axis *last = k->inner_axis[k->ninner - 1];
    nd_buf b = {.arena = x->g->a};
    nd_put(&b, "#pragma omp simd");
    for (int i = 0; i < k->nodes.n; i++) {
        const nd_node *n = &k->nodes.v[i];
        if (!x->need[i])
            continue;
        if (n->scan || (n->op->kind == OP_SCATTER_ADD &&
                        nd_axis_at(&n->op->in[1]->type, last) >= 0))
            return;
        static const char *const op[] = {"+", "max", "min"};
        bool ours = n->op->sub && nd_is_float(n->op->out[0]->type.dtype);
        const char *var = n->fold ? x->e.local[i].s
                          : by_rows(x, n) ? x->partial[i] : NULL;
        if (var)
            nd_putf(&b, " reduction(%s%s : %s)", ours ? "nd_" : "",
                    op[n->op->sub], var);
    }
    nd_putf(&x->f.b, "%s\n", b.s);
}

static void inner_loops(nest *x)
{
    cg_fn *f = &x->f;
    int first = x->e.n - x->k->ninner, base = f->indent;
    nd_buf so_far = f->b, before = {.arena = x->g->a};
    f->b = (nd_buf){.arena = x->g->a};
    f->indent = base + x->k->ninner;
    x->e.before = &before;
    for (int i = 0; i < x->k->nodes.n; i++)
        if (x->need[i])
            emit_node(x, i);
    x->e.before = NULL;
    nd_buf body = f->b;
    f->b = so_far;
    f->indent = base;
    nd_put(&f->b, before.s ? before.s : "");
    bool brace = lines_in(&body) > 1;
    for (int i = first; i < x->e.n; i++) {
        bool last = i == x->e.n - 1;
        if (last)
            simd_pragma(x);
        open_inner(x, &x->e.axis[i], last, last && brace);
    }
    nd_put(&f->b, body.s ? body.s : "");
    f->indent--;
    if (brace)
        cg_line(f, "}");
    f->indent = base;
}

static void start_folds(nest *x, int pass)
{
    for (int i = 0; i < x->k->nodes.n; i++) {
        nd_node *n = &x->k->nodes.v[i];
        if (n->row || n->pass != pass ||
            !(n->fold || n->scan || by_rows(x, n)))
            continue;
        const char *name = cg_local_name(&x->f, n->op->out[0]);
        cg_line(&x->f, "%s %s = %s;", cg_ctype(n->op->out[0]->type.dtype),
                name, cg_identity(x->g->a, n->op));
        if (n->fold)
            x->e.local[i] = (cg_expr){name, CG_PRIMARY};
        else
            x->partial[i] = name;
    }
}

static void end_folds(nest *x, int pass)
{
    for (int i = 0; i < x->k->nodes.n; i++) {
        nd_node *n = &x->k->nodes.v[i];
        if (n->row || n->pass != pass)
            continue;
        if (by_rows(x, n))
            add_to_memory(x, n, (cg_expr){x->partial[i], CG_PRIMARY});
        else if (n->fold && n->stored)
            store(x, n, x->e.local[i].s);
        else if (!n->fold)
            continue;
    }
    for (int i = 0; i < x->k->nodes.n; i++)
        if (!x->k->nodes.v[i].row && !x->k->nodes.v[i].fold)
            x->e.local[i].s = NULL;
}

static bool used_inside(const nest *x, const nd_value *v)
{
    const nd_vinfo *info = nd_info(x->g->c, v);
    for (int u = 0; u < info->users.n; u++)
        for (int j = 0; j < x->k->nodes.n; j++)
            if (x->k->nodes.v[j].op == info->users.v[u])
                return true;
    return false;
}

/* Row ops that are ready before `pass`. */
static void row_ops(nest *x, int pass)
{
    for (int i = 0; i < x->k->nodes.n; i++) {
        const nd_node *n = &x->k->nodes.v[i];
        if (!n->row || n->pass != pass)
            continue;
        x->uses[i] = n->op->nout && used_inside(x, n->op->out[0]);
        emit_node(x, i);
    }
}

static void one_row(nest *x)
{
    for (int p = 0; p < x->k->npasses; p++) {
        x->e.pass = p;
        row_ops(x, p);
        find_needs(x, p);
        start_folds(x, p);
        if (x->k->ninner) {
            inner_loops(x);
        } else {
            for (int i = 0; i < x->k->nodes.n; i++)
                if (x->need[i])
                    emit_node(x, i);
        }
        end_folds(x, p);
    }
    x->e.pass = x->k->npasses;
    row_ops(x, x->k->npasses);
}

/* ---- the function ------------------------------------------------------- */

static void set_up(nest *x, cg *g, nd_kernel *k)
{
    size_t n = (size_t)k->nodes.n;
    x->g = g;
    x->k = k;
    cg_fn_start(&x->f, g);
    x->f.tiles = k->tiles;
    x->e = (cg_env){.f = &x->f, .k = k, .rows = k->nouter && k->ninner};
    x->e.local = ND_NEWN(g->a, cg_expr, n);
    x->e.kept = ND_NEWN(g->a, const char *, n);
    x->need = ND_NEWN(g->a, bool, n);
    x->uses = ND_NEWN(g->a, int, n);
    x->partial = ND_NEWN(g->a, const char *, n);
    for (int i = 0; i < k->nouter + k->ninner; i++) {
        bool in = i >= k->nouter;
        int j = in ? i - k->nouter : i;
        nd_axis *a = in ? k->inner_axis[j] : k->outer_axis[j];
        int ext = in ? k->inner[j] : k->outer[j];
        bool once = !in && g->c->exts.v[ext].fixed == 1;
        x->e.axis[x->e.n++] = (cg_axis){
            a, once ? "0" : cg_fresh(&x->f.names, a->name), ext, in};
    }
}

static void declare_scratch(nest *x)
{
    for (int i = 0; i < x->k->nodes.n; i++) {
        if (!x->e.kept[i])
            continue;
        nd_buf b = {.arena = x->g->a};
        for (int j = 0; j < x->k->ninner; j++)
            nd_putf(&b, "[%lld]",
                    (long long)x->g->c->exts.v[x->k->inner[j]].max);
        cg_line(&x->f, "%s %s%s;",
                cg_ctype(x->k->nodes.v[i].op->out[0]->type.dtype),
                x->e.kept[i], b.s ? b.s : "");
    }
}

static void declare_rows(nest *x)
{
    for (int i = 0; i < x->f.ptrs.n; i++) {
        const cg_pointer *p = &x->f.ptrs.v[i];
        if (p->row)
            cg_line(&x->f, "%s%s *%s = %s + %s;", p->written ? "" : "const ",
                    cg_ctype(p->to.dtype), p->row, p->part ? p->part : p->name,
                    p->row_at);
    }
}

static nd_buf cut_off(nest *x)
{
    nd_buf b = x->f.b;
    x->f.b = (nd_buf){.arena = x->g->a};
    return b;
}

/* What a row needs, and which axes it names, shows when it is written. */
static void emit_nest(nest *x)
{
    cg_share s = {.e = &x->e};
    cg_open_share(&s);
    nd_buf around = cut_off(x);
    cg_open_loops(&s);
    nd_buf loops = cut_off(x);
    one_row(x);
    nd_buf row = cut_off(x);
    x->f.b = loops;
    declare_scratch(x);
    declare_rows(x);
    nd_put(&x->f.b, row.s ? row.s : "");
    nd_buf inside = cut_off(x);
    x->f.b = around;
    cg_share_axes(&s, inside.s);
    nd_put(&x->f.b, inside.s ? inside.s : "");
    cg_close_share(&s);
}

/* Reads first, then what is written. */
static void order_pointers(cg_kernel *out, nest *x)
{
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < x->f.ptrs.n; i++)
            if (x->f.ptrs.v[i].written == w)
                ND_PUSH(x->g->a, &out->ptrs, x->f.ptrs.v[i]);
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
        const char *type = cg_type(g, t);
        bool folds = strlen(p->name) + strlen(type) > 72 ||
                     (size_t)wide + strlen(type) > 72;
        nd_putf(b, "\n * %s %-*s%s%s", p->written ? "->" : "  ",
                folds ? 0 : wide, p->name, folds ? "\n *       " : " ", type);
    }
    nd_put(b, " */\n");
}

static void put_signature(cg *g, nd_buf *b, const cg_kernel *k)
{
    nd_buf s = {.arena = g->a};
    nd_putf(&s, "static void %s(", k->name);
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
        nd_putf(&s, "%s%s%s *restrict %s", sep,
                k->ptrs.v[i].written ? "" : "const ",
                cg_ctype(k->ptrs.v[i].to.dtype), k->ptrs.v[i].name);
    nd_put(&s, ")");
    cg_fold(b, 0, s.s);
}

static bool same_kernel(const nd_kernel *a, const nd_kernel *b)
{
    if (a->nodes.n != b->nodes.n)
        return false;
    for (int i = 0; i < a->nodes.n; i++)
        if (a->nodes.v[i].op != b->nodes.v[i].op ||
            a->nodes.v[i].stored != b->nodes.v[i].stored)
            return false;
    return a->tiles == b->tiles;
}

cg_kernel *cg_loop_kernel(cg *g, nd_kernel *k)
{
    /* Stages share kernels; within one, each is called in one place. */
    const nd_op *key = k->nodes.v[0].op;
    cg_kernel *first = nd_table_get(&g->kernels, key);
    for (cg_kernel *x = first; x; x = x->other)
        if (g->m->program->nstages > 1 && same_kernel(x->k, k))
            return x;
    static const char *const phase[] = {"fwd", "bwd", "wgt", "pre"};
    cg_kernel *out = ND_NEW(g->a, cg_kernel);
    nest x = {0};
    set_up(&x, g, k);
    emit_nest(&x);
    out->k = k;
    const char *base = *k->name ? k->name : g->m->name;
    out->name = cg_fresh(&g->global,
                         nd_fmt(g->a, "%s_%s", base, phase[k->phase]));
    order_pointers(out, &x);
    out->needs_rank = x.f.uses_rank;
    for (int i = 0; i < x.f.iters.n; i++)
        ND_PUSH(g->a, &out->iters, x.f.iters.v[i]);
    for (int i = 0; i < x.f.exts.n; i++)
        if (g->c->exts.v[x.f.exts.v[i].ext].tile)
            ND_PUSH(g->a, &out->parts, x.f.exts.v[i]);
    out->other = first;
    nd_table_put(&g->kernels, key, out);
    put_comment(g, g->out, out);
    put_signature(g, g->out, out);
    nd_put(g->out, "{\n");
    cg_declare(&x.f, g->out);
    nd_put(g->out, x.f.b.s ? x.f.b.s : "");
    nd_put(g->out, "}\n\n");
    return out;
}
