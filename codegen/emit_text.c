/* emit_text.c - small pieces of C: numbers, lengths, types, lines, pointers. */
#include "codegen.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- lines -------------------------------------------------------------- */

/* How good a line break is at blank i: after a comma best, then after what
 * joins the parts of an expression loosely, never inside a declarator. */
static int break_rank(const char *s, size_t i)
{
    switch (s[i - 1]) {
    case ',':
        return 4;
    case '=':
    case '?':
    case ':':
        return 3;
    case '+':
    case '-':
        return i > 1 && s[i - 2] == ' ' ? 3 : 0;
    case '*':
    case '/':
    case '<':
        return i > 1 && s[i - 2] == ' ' ? 2 : 0;
    default:
        return strchr("+-*/?:=<>%!|&", s[i + 1]) ? 0 : 1;
    }
}

/* The blank to break at so that at most `room` characters come before it: the
 * best one in the second half and outside parentheses, else the last. */
static size_t break_at(const char *s, size_t room)
{
    size_t best = 0;
    int rank = -1, depth = 0;
    bool quoted = false;
    for (size_t i = 0; s[i]; i++) {
        quoted ^= s[i] == '"';
        depth += s[i] == '(' || s[i] == '[';
        depth -= s[i] == ')' || s[i] == ']';
        if (s[i] != ' ' || quoted || i == 0)
            continue;
        if (i > room && best)
            break;
        int r = break_rank(s, i) - 2 * depth - (2 * i < room ? 4 : 0);
        if (r >= rank || !best) {
            rank = r;
            best = i;
        }
    }
    return best;
}

/* Continuations step in by four; those of a comment begin with a star. */
void cg_fold(nd_buf *b, int indent, const char *text)
{
    bool comment = strncmp(text, "/*", 2) == 0;
    int col = indent;
    nd_putf(b, "%*s", indent, "");
    while (strlen(text) + (size_t)col > 80) {
        size_t cut = break_at(text, (size_t)(79 - col));
        if (!cut)
            break;
        nd_putn(b, text, cut);
        nd_putf(b, comment ? "\n%*s * " : "\n%*s    ", indent, "");
        text += cut + 1;
        col = indent + 4;
    }
    nd_put(b, text);
    nd_put(b, "\n");
}

void cg_line(cg_fn *f, const char *fmt, ...)
{
    char small[512], *s = small;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof small) {
        s = nd_alloc(f->g->a, (size_t)n + 1);
        va_start(ap, fmt);
        vsnprintf(s, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    cg_fold(&f->b, f->indent * 4, s);
}

/* cg_declare's names; which of them a function needs shows later. */
static void take_extents(cg_names *n, cg *g)
{
    for (int e = 0; e < g->c->exts.n; e++) {
        if (g->c->exts.v[e].fixed < 0)
            cg_take(n, nd_fmt(g->a, "n_%s", g->ext_name[e] + 2));
        if (!nd_ext_whole(g->c, e))
            cg_take(n, nd_fmt(g->a, "o_%s", g->ext_name[e] + 2));
    }
}

void cg_fn_start(cg_fn *f, cg *g)
{
    *f = (cg_fn){.g = g, .b = {.arena = g->a}, .indent = 1,
                 .names = {.arena = g->a, .outer = &g->global,
                           .always = &g->ext_vars},
                 .ptr_at = {.arena = g->a}};
}

/* The function's note of an extent; made on first use. */
static cg_used *use_of(cg_fn *f, int ext)
{
    int lo = 0, hi = f->exts.n;
    f->uses_rank |= !f->g->c->exts.v[ext].tile;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (f->exts.v[mid].ext < ext)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == f->exts.n || f->exts.v[lo].ext != ext) {
        ND_PUSH(f->g->a, &f->exts, (cg_used){0});
        memmove(&f->exts.v[lo + 1], &f->exts.v[lo],
                sizeof *f->exts.v * (size_t)(f->exts.n - 1 - lo));
        f->exts.v[lo] = (cg_used){.ext = ext};
    }
    return &f->exts.v[lo];
}

void cg_declare(cg_fn *f, nd_buf *b)
{
    cg *g = f->g;
    for (int i = 0; i < f->exts.n; i++) {
        const char *x = cg_ext(g, f->exts.v[i].ext);
        if (g->c->exts.v[f->exts.v[i].ext].tile)
            continue;                /* of the loop around, or an argument */
        if (f->exts.v[i].len)
            nd_putf(b, "    const int64_t n_%s = r->n[%s];\n", x + 2, x);
        if (f->exts.v[i].off)
            nd_putf(b, "    const int64_t o_%s = r->off[%s];\n", x + 2, x);
    }
    if (f->uses_training)
        nd_put(b, "    const bool training = r->training;\n");
    if (f->uses_random)
        nd_put(b, "    const uint64_t seed = r->seed;\n"
                  "    const uint32_t step = (uint32_t)r->step;\n");
}

/* ---- words -------------------------------------------------------------- */

const char *cg_ctype(nd_dtype t)
{
    switch (t) {
    case ND_I32:
        return "int32_t";
    case ND_I64:
        return "int64_t";
    case ND_BOOL:
        return "bool";
    case ND_BF16:
        return "nd_bf16";
    case ND_F16:
        return "nd_f16";
    default:
        return "float";
    }
}

void cg_name_axes(cg *g)
{
    g->ext_vars.arena = g->axis_at.arena = g->a;
    g->ext_vars.outer = &g->global;
    take_extents(&g->ext_vars, g);
    cg_names names = {.arena = g->a, .always = &g->ext_vars};
    g->axis_var = ND_NEWN(g->a, const char *, g->m->axes.n + 1);
    for (int i = 0; i < g->m->axes.n; i++) {
        g->axis_var[i] = cg_fresh(&names, g->m->axes.v[i]->name);
        nd_table_put(&g->axis_at, g->m->axes.v[i], &g->axis_var[i]);
    }
}

/* The same in every function that only calls; kernels choose afresh. */
const char *cg_axis_var(cg *g, const nd_axis *a)
{
    const char **var = nd_table_get(&g->axis_at, a);
    return var ? *var : "axis";
}

const char *cg_number(nd_arena *a, nd_dtype t, double v)
{
    if (t == ND_BOOL)
        return v != 0 ? "true" : "false";
    if (t == ND_I64)
        return nd_fmt(a, "INT64_C(%.0f)", v);
    if (!nd_is_float(t))
        return nd_fmt(a, "%.0f", v);
    if (isinf(v))
        return v < 0 ? "-INFINITY" : "INFINITY";
    if (isnan(v))
        return "NAN";
    char *s = NULL;
    for (int digits = 6; digits <= 9; digits++) {
        s = nd_fmt(a, "%.*g", digits, v);
        if ((float)atof(s) == (float)v)
            break;
    }
    bool dot = strpbrk(s, ".e") != NULL;
    return nd_fmt(a, dot ? "%sf" : "%s.0f", s);
}

static const char *ext_words(cg *g, int ext)
{
    const nd_ext *e = &g->c->exts.v[ext];
    nd_buf b = {.arena = g->a};
    nd_put(&b, cg_word(g->a, e->axis->name));
    for (int j = 0; j < e->cut.n; j++)
        nd_putf(&b, "_%s", cg_word(g->a, g->m->mesh.name[e->cut.m[j]]));
    if (e->piped)
        nd_putf(&b, "_%s", cg_word(g->a, g->m->mesh.name[g->m->mesh.pipe]));
    if (e->tile)
        nd_put(&b, "_tile");
    return b.s;
}

void cg_name_extents(cg *g)
{
    int n = g->c->exts.n;
    g->ext_name = ND_NEWN(g->a, const char *, n + 1);
    g->ext_used = ND_NEWN(g->a, bool, n + 1);
    cg_names names = {.arena = g->a};
    for (int i = 0; i < n; i++)
        g->ext_name[i] =
            nd_fmt(g->a, "X_%s", cg_unique(&names, ext_words(g, i)));
}

const char *cg_ext(cg *g, int ext)
{
    g->ext_used[ext] = !g->c->exts.v[ext].tile;
    return g->ext_name[ext];
}

const char *cg_mesh_names(cg *g, uint32_t mesh, const char *sep)
{
    nd_buf b = {.arena = g->a};
    nd_put(&b, "");
    for (int i = 0; i < g->m->mesh.n; i++)
        if (mesh >> i & 1)
            nd_putf(&b, "%s%s", b.n ? sep : "",
                    cg_word(g->a, g->m->mesh.name[i]));
    return b.s;
}

int cg_group(cg *g, uint32_t mesh)
{
    for (int i = 0; i < g->groups.n; i++)
        if (g->groups.v[i] == mesh)
            return i;
    const char *name = cg_unique(&g->groups_taken, cg_mesh_names(g, mesh, "_"));
    ND_PUSH(g->a, &g->groups, mesh);
    ND_PUSH(g->a, &g->group_name, nd_fmt(g->a, "G_%s", name));
    return g->groups.n - 1;
}

const char *cg_group_name(cg *g, uint32_t mesh)
{
    int i = cg_group(g, mesh);
    return g->group_name.v[i];
}

const char *cg_type(cg *g, const nd_type *t)
{
    nd_buf b = {.arena = g->a};
    nd_print_type(&b, g->m, t);
    return b.s;
}

const char *cg_where(cg *g, nd_loc loc)
{
    if (loc.file <= 0)
        return "";
    int line = nd_line_of(g->m->ctx, loc);
    const char *name = g->m->ctx->files.v[loc.file - 1].name;
    const char *slash = strrchr(name, '/');
    return nd_fmt(g->a, "%s:%d", slash ? slash + 1 : name, line);
}

const char *cg_source(cg *g, int indent, nd_loc loc)
{
    if (loc.file <= 0)
        return NULL;
    char *s = nd_fmt(g->a, "%s   %s", cg_where(g, loc),
                     nd_source_line(g->m->ctx, loc, 80));
    for (char *p = s; *p; p++)       /* nothing that opens or ends a comment */
        if (*p == '*' && (p[1] == '/' || (p > s && p[-1] == '/')))
            *p = 'x';
    size_t room = 80 - 6 - (size_t)indent;
    if (strlen(s) > room)
        s = nd_fmt(g->a, "%.*s...", (int)room - 3, s);
    return s;
}

void cg_source_comment(cg *g, nd_buf *b, int indent, nd_loc loc)
{
    const char *s = cg_source(g, indent, loc);
    if (s)
        nd_putf(b, "%*s/* %s */\n", indent, "", s);
}

/* ---- lengths ------------------------------------------------------------ */

const char *cg_count(cg_fn *f, int ext)
{
    const nd_ext *e = &f->g->c->exts.v[ext];
    if (e->fixed >= 0)
        return nd_fmt(f->g->a, "%lld", (long long)e->fixed);
    if (e->axis->route && f->caller) {
        f->uses_rank = true;         /* what it calls sets that */
        return nd_fmt(f->g->a, "r->n[%s]", cg_ext(f->g, ext));
    }
    use_of(f, ext)->len = true;
    return nd_fmt(f->g->a, "n_%s", cg_ext(f->g, ext) + 2);
}

const char *cg_start(cg_fn *f, int ext)
{
    const nd_ext *e = &f->g->c->exts.v[ext];
    if (e->tile && !e->moves)
        return cg_start(f, e->whole);
    if (nd_ext_whole(f->g->c, ext))
        return "0";
    use_of(f, ext)->off = true;
    return nd_fmt(f->g->a, "o_%s", cg_ext(f->g, ext) + 2);
}

const char *cg_len(cg_fn *f, const nd_len *l)
{
    nd_buf b = {.arena = f->g->a};
    if (l->k != 1 || !l->n)
        nd_putf(&b, "%lld", (long long)l->k);
    for (int i = 0; l->k && i < l->n; i++)
        nd_putf(&b, "%s%s", b.n ? " * " : "", cg_count(f, l->ext[i]));
    return b.s;
}

const char *cg_bytes(cg_fn *f, const nd_ref *r)
{
    nd_len n = nd_numel_local(f->g->c, r);
    return cg_bytes_of(f, &n, r->dtype);
}

const char *cg_bytes_of(cg_fn *f, const nd_len *n, nd_dtype t)
{
    const char *s = cg_len(f, n);
    bool plain = n->k == 1 && n->n == 1;
    if (n->n)
        s = nd_fmt(f->g->a, plain ? "(size_t)%s" : "(size_t)(%s)", s);
    return nd_fmt(f->g->a, "%s * sizeof(%s)", s, cg_ctype(t));
}

/* x * l, or NULL if that is 0. */
const char *cg_scaled(cg_fn *f, const char *x, const nd_len *l)
{
    if (!l->k || strcmp(x, "0") == 0)
        return NULL;
    if (l->k == 1 && !l->n)
        return x;
    return nd_fmt(f->g->a, "%s * %s", x, cg_len(f, l));
}

const char *cg_sum(nd_arena *a, const char *x, const char *y)
{
    return !x ? y : !y ? x : nd_fmt(a, "%s + %s", x, y);
}

const char *cg_iter(cg_fn *f, nd_op *repeat)
{
    bool known = false;
    for (int i = 0; i < f->iters.n; i++)
        known |= f->iters.v[i] == repeat;
    if (!known)
        ND_PUSH(f->g->a, &f->iters, repeat);
    int depth = 0;
    for (nd_block *b = repeat->block; b->parent; b = b->parent->block)
        depth++;
    return depth ? nd_fmt(f->g->a, "l%d", depth + 1) : "l";
}

/* ---- pointers ----------------------------------------------------------- */

bool cg_same_place(const cg_target *a, const cg_target *b)
{
    if (a->root != b->root || a->value != b->value || a->param != b->param ||
        a->nterms != b->nterms)
        return false;
    for (int i = 0; i < a->nterms; i++) {
        const nd_term *x = &a->term[i], *y = &b->term[i];
        if (x->repeat != y->repeat || x->ext != y->ext ||
            x->base != y->base || !nd_len_eq(&x->stride, &y->stride))
            return false;
    }
    return true;
}

static const char *plain_name(cg *g, const nd_value *v)
{
    const char *name = v->name ? v->name : "x";
    return cg_word(g->a, name);
}

/* Last part of a dotted name. */
static const char *tail(const char *s)
{
    const char *dot = strrchr(s, '.');
    return dot ? dot + 1 : s;
}

/* "attn_q_w" for the parameter layers.attn.q.w: two parts are enough to read,
 * cg_fresh settles clashes. */
static const char *short_param(cg *g, const nd_param *p)
{
    const char *last = tail(p->name), *s = p->name;
    for (const char *q = p->name; q < last; q++)
        if (*q == '.' && q + 1 < last)
            s = q + 1;
    return cg_word(g->a, s);
}

static const char *pointer_word(cg *g, const cg_target *r)
{
    for (int i = 0; i < r->nterms; i++)
        if (!r->term[i].repeat && g->c->exts.v[r->term[i].ext].tile) {
            cg_target whole = *r;
            whole.nterms = 0;
            return nd_fmt(g->a, "%s_tile", pointer_word(g, &whole));
        }
    switch (r->root) {
    case AT_WEIGHT:
        return short_param(g, r->param);
    case AT_GRAD:
        return nd_fmt(g->a, "d_%s", short_param(g, r->param));
    case AT_CARRY_OUT:
        return nd_fmt(g->a, "%s_next", plain_name(g, r->value));
    case AT_CARRY_IN:
        return plain_name(g, r->value);
    case AT_BUFFER:
    case AT_TILE:
        break;
    }
    return cg_value_name(g, r->value);
}

cg_pointer *cg_pointer_to(cg_fn *f, const nd_ref *r, bool write)
{
    cg_target to = {r->root, r->value, r->param, r->dtype, r->nterms, r->term};
    return cg_pointer_at(f, &to, write);
}

cg_pointer *cg_pointer_at(cg_fn *f, const cg_target *to, bool write)
{
    const void *key = to->param ? (const void *)to->param : to->value;
    int first = (int)(intptr_t)nd_table_get(&f->ptr_at, key);
    for (int i = first; i; i = f->ptrs.v[i - 1].next)
        if (cg_same_place(&f->ptrs.v[i - 1].to, to)) {
            f->ptrs.v[i - 1].written |= write;
            return &f->ptrs.v[i - 1];
        }
    cg_pointer p = {.to = *to, .written = write, .next = first,
                    .name = cg_fresh(&f->names, pointer_word(f->g, to))};
    nd_term *term = ND_NEWN(f->g->a, nd_term, to->nterms);
    if (to->nterms)
        memcpy(term, to->term, sizeof *term * (size_t)to->nterms);
    p.to.term = term;
    ND_PUSH(f->g->a, &f->ptrs, p);
    nd_table_put(&f->ptr_at, key, (void *)(intptr_t)f->ptrs.n);
    return &f->ptrs.v[f->ptrs.n - 1];
}

const char *cg_local_word(const nd_value *v)
{
    const char *plain = !v->def ? "x"
                        : v->def->kind == OP_MAP ? nd_ews[v->def->sub].name
                                                 : nd_ops[v->def->kind].name;
    const char *name = v->name ? v->name : plain;
    size_t n = strlen(plain);
    bool own = strncmp(name, plain, n) != 0 ||
               (name[n] && name[n] != '_');
    return own ? name : "t";
}

/* Names of buffers: the value's own if the program gave one, else made from
 * the instance path and what the op is. */
const char *cg_value_name(cg *g, const nd_value *v)
{
    if (g->value_name[v->mark])
        return g->value_name[v->mark];
    nd_buf b = {.arena = g->a};
    const nd_op *op = v->def ? v->def : v->owner->parent;
    if (op->path && *op->path && op->kind != OP_INPUT)
        nd_putf(&b, "%s_", cg_word(g->a, op->path));
    nd_put(&b, plain_name(g, v));
    return g->value_name[v->mark] = cg_unique(&g->buffers, b.s);
}
