/* kir_c_expr.c - an instruction of a kernel as a C expression.
 *
 *   map mul %0, %1           ->  s_row[kv] * 0.125f
 *   index of loop seq        ->  (int32_t)(o_seq_tp + seq)
 *   at, pick in [vocab]      ->  const int64_t x_at = tokens[...] - o_vocab;
 *                                (uint64_t)x_at < 128 ? wte[x_at * 384] : 0.0f
 */
#include "kir_c.h"

#include <ctype.h>
#include <string.h>

static const char *paren(nd_arena *a, cg_expr x, int need)
{
    return x.tight >= need ? x.s : nd_fmt(a, "(%s)", x.s);
}

/* ---- memory ------------------------------------------------------------- */

static bool is_inner(const kir_c *p, const kir_term *t)
{
    return t->loop < 0 || t->size || p->k->loop[t->loop].inner;
}

static const char *loop_var(kir_c *p, int loop)
{
    p->uses_last |= loop == p->k->nloops - 1;
    return p->var[loop];
}

static const char *index_of(kir_c *p, const kir_term *t)
{
    nd_arena *a = p->f.g->a;
    if (t->inst >= 0)
        return p->text[t->inst].s;
    if (t->loop < 0)
        return nd_fmt(a, "%lld", (long long)t->shift);
    const char *var = loop_var(p, t->loop);
    return t->size ? nd_fmt(a, "((%s + %lld) %% %lld)", var,
                            (long long)t->shift, (long long)t->size)
                   : var;
}

/* The part of the address that the inner (or outer) loop variables make. */
static const char *address(kir_c *p, const kir_place *at, bool inner)
{
    const char *s = NULL;
    for (int i = 0; i < at->n; i++)
        if (is_inner(p, &at->term[i]) == inner)
            s = cg_sum(p->f.g->a, s,
                       cg_scaled(&p->f, index_of(p, &at->term[i]),
                                 &at->term[i].stride));
    return s;
}

const char *kir_c_element(kir_c *p, const kir_place *at, bool write)
{
    nd_arena *a = p->f.g->a;
    cg_pointer *to = cg_pointer_at(&p->f, &p->k->params.v[at->param].to, write);
    const char *outer = address(p, at, false);
    const char *inner = address(p, at, true);
    if (p->rows && outer && inner) {
        if (!to->row) {
            to->row = cg_fresh(&p->f.names, nd_fmt(a, "%s_row", to->name));
            to->row_at = outer;
        }
        if (strcmp(to->row_at, outer) == 0)
            return nd_fmt(a, "%s[%s]", to->row, inner);
    }
    const char *s = cg_sum(a, outer, inner);
    return nd_fmt(a, "%s[%s]", to->part ? to->part : to->name, s ? s : "0");
}

void kir_c_before(kir_c *p, const char *text)
{
    if (!p->before) {
        cg_line(&p->f, "%s", text);
        return;
    }
    nd_buf here = p->f.b;
    int indent = p->f.indent;
    p->f.b = *p->before;
    p->f.indent = p->base;
    cg_line(&p->f, "%s", text);
    *p->before = p->f.b;
    p->f.b = here;
    p->f.indent = indent;
}

/* A value without inner axes is loaded once per row. */
static const char *hoist(kir_c *p, const kir_inst *x, const char *element)
{
    for (int i = 0; i < p->hoisted.n; i++)
        if (strcmp(p->hoisted.v[i].element, element) == 0)
            return p->hoisted.v[i].name;
    kir_hoisted h = {element, cg_fresh(&p->f.names, cg_local_word(x->value))};
    kir_c_before(p, nd_fmt(p->f.g->a, "const %s %s = %s;", cg_ctype(x->type),
                           h.name, element));
    ND_PUSH(p->f.g->a, &p->hoisted, h);
    return h.name;
}

static cg_expr load(kir_c *p, const kir_inst *x)
{
    const char *s = kir_c_element(p, x->place, false);
    if (p->rows && x->once)
        s = hoist(p, x, s);
    return (cg_expr){s, CG_PRIMARY};
}

const char *kir_c_kept(kir_c *p, int kept)
{
    nd_buf b = {.arena = p->f.g->a};
    nd_put(&b, p->kept[kept]);
    for (int i = p->k->nloops - p->k->ninner; i < p->k->nloops; i++)
        nd_putf(&b, "[%s]", loop_var(p, i));
    return b.s;
}

/* ---- indices ------------------------------------------------------------ */

/* In lanes a sum of 32 bits, which needs no vectors of 64. */
static cg_expr index_value(kir_c *p, const kir_inst *x)
{
    nd_arena *a = p->f.g->a;
    const char *from = cg_start(&p->f, p->k->loop[x->slot].ext);
    bool here = strcmp(from, "0") == 0;
    if (p->in_lanes && x->slot == p->k->nloops - 1) {
        const char *at = here ? p->at : nd_fmt(a, "(%s + %s)", from, p->at);
        return (cg_expr){nd_fmt(a, "(int32_t)%s + %s", at, p->lane), CG_SUM};
    }
    const char *var = loop_var(p, x->slot);
    if (here)
        return (cg_expr){nd_fmt(a, "(int32_t)%s", var), CG_UNARY};
    return (cg_expr){nd_fmt(a, "(int32_t)(%s + %s)", from, var), CG_UNARY};
}

/* The position that a pick or an add touches, as a local variable. */
static cg_expr at_value(kir_c *p, const kir_inst *x)
{
    nd_arena *a = p->f.g->a;
    const nd_axis *axis = p->f.g->c->exts.v[x->slot].axis;
    cg_expr i = p->text[x->in[0]];
    const char *from = cg_start(&p->f, x->slot);
    const char *name = cg_fresh(&p->f.names, nd_fmt(a, "%s_at", axis->name));
    const char *s = nd_fmt(a, "const int64_t %s = %s;", name, i.s);
    if (strcmp(from, "0") != 0)
        s = nd_fmt(a, "const int64_t %s = %s - %s;", name, paren(a, i, CG_SUM),
                   from);
    if (x->once)
        kir_c_before(p, s);
    else
        cg_line(&p->f, "%s", s);
    return (cg_expr){name, CG_PRIMARY};
}

static cg_expr pick(kir_c *p, const kir_inst *x)
{
    nd_arena *a = p->f.g->a;
    const char *element = kir_c_element(p, x->place, false);
    const char *zero = nd_is_narrow(x->type) ? "0" : cg_number(a, x->type, 0);
    return (cg_expr){nd_fmt(a, "(uint64_t)%s < (uint64_t)%s ? %s : %s",
                            p->text[x->in[0]].s, cg_count(&p->f, x->slot),
                            element, zero), CG_TERNARY};
}

/* ---- random numbers ----------------------------------------------------- */

/* The row-major index over the whole value, on whatever rank. */
static const char *global_index(kir_c *p, const kir_draw *d)
{
    nd_arena *a = p->f.g->a;
    const char *s = NULL;
    int64_t step = 1;
    for (int i = d->n - 1; i >= 0; i--) {
        const kir_loop *l = &p->k->loop[d->loop[i]];
        const char *from = cg_start(&p->f, l->ext);
        const char *pos = loop_var(p, d->loop[i]);
        if (strcmp(pos, "0") == 0)
            pos = from;
        else if (strcmp(from, "0") != 0)
            pos = nd_fmt(a, step == 1 ? "%s + %s" : "(%s + %s)", from, pos);
        if (step != 1)
            pos = nd_fmt(a, "%s * %lld", pos, (long long)step);
        s = s ? nd_fmt(a, "%s + %s", pos, s) : pos;
        step *= l->axis->size;
    }
    return s ? s : "0";
}

/* Counted over all repeats around it: "l * 3 + l2". */
static const char *iteration(kir_c *p, nd_op *rep)
{
    nd_arena *a = p->f.g->a;
    const char *s = cg_iter(&p->f, rep);
    int64_t each = rep->axes[0]->size;
    while ((rep = rep->block->parent)) {
        s = nd_fmt(a, "%s * %lld + %s", cg_iter(&p->f, rep), (long long)each,
                   s);
        each *= rep->axes[0]->size;
    }
    return s;
}

static cg_expr random_value(kir_c *p, const kir_inst *x)
{
    nd_arena *a = p->f.g->a;
    const char *stream = nd_fmt(a, "0x%08xu", (unsigned)x->draw->stream);
    if (x->draw->repeat)
        stream = nd_fmt(a, "%s + 0x9e3779b9u * (uint32_t)(%s + 1)", stream,
                        iteration(p, x->draw->repeat));
    p->f.uses_random = p->f.uses_rank = true;
    const char *at = global_index(p, x->draw);
    if (x->op == KIR_NORMAL)
        return (cg_expr){nd_fmt(a, "nd_normal(seed, (uint64_t)(%s), step, %s)",
                                at, stream), CG_PRIMARY};
    p->f.uses_training = true;
    return (cg_expr){
        nd_fmt(a, "training ? nd_dropout(%s, seed, (uint64_t)(%s), step, %s) "
               ": 1.0f", cg_number(a, ND_F32, x->num), at, stream),
        CG_TERNARY};
}

/* ---- elementwise -------------------------------------------------------- */

/* Fills $0, $1, $2 of a template. Measured first: texts of thousands of nested
 * values would leave all their shorter buffers behind. */
static const char *fill(nd_arena *a, const char *t, const char *const *x)
{
    size_t n = 1;
    for (const char *s = t; *s; s++)
        n += *s == '$' ? strlen(x[*++s - '0']) : 1;
    char *text = nd_alloc(a, n), *to = text;
    for (; *t; t++) {
        if (*t == '$')
            to = stpcpy(to, x[*++t - '0']);
        else
            *to++ = *t;
    }
    *to = 0;
    return text;
}

const char *kir_c_combine(nd_arena *a, int red, nd_dtype t, const char *x,
                          const char *y)
{
    const char *arg[2] = {x, y};
    return fill(a, kir_combine_text(red, t), arg);
}

/* What an operator binds as, and what its operands must bind as so that they
 * need none. Sums keep those on the right: they are not associative. */
typedef struct binding {
    int result, left, right;
} binding;

static binding binding_of(int ew, const char *c)
{
    switch (ew) {
    case EW_ADD:
    case EW_SUB:
        return (binding){CG_SUM, CG_SUM, CG_PRODUCT};
    case EW_MUL:
    case EW_DIV:
        return (binding){CG_PRODUCT, CG_PRODUCT, CG_UNARY};
    case EW_AND:
    case EW_OR:
        return (binding){CG_LOGIC, CG_COMPARE, CG_COMPARE};
    case EW_WHERE:
        return (binding){CG_TERNARY, CG_LOGIC, CG_LOGIC};
    default:
        if (isalpha((unsigned char)c[0]))
            return (binding){CG_PRIMARY, CG_TERNARY, CG_TERNARY};
        if (c[0] != '$')
            return (binding){CG_UNARY, CG_PRIMARY, CG_PRIMARY};
        return (binding){CG_COMPARE, CG_SUM, CG_SUM};
    }
}

/* Both values of a `where` in a loop, before it chooses: C would read memory
 * only where it is chosen, and that is a branch for compilers that unroll 16
 * lanes before they look for vectors. */
static void read_both(kir_c *p, const kir_inst *x)
{
    for (int i = 1; i < x->nin; i++) {
        cg_expr *v = &p->text[x->in[i]];
        const kir_inst *from = &p->k->inst.v[x->in[i]];
        if (!strchr(v->s, '[') || from->op == KIR_PICK)
            continue;
        const char *name = cg_fresh(&p->f.names, "v");
        cg_line(&p->f, "const %s %s = %s;", cg_ctype(from->type), name, v->s);
        *v = (cg_expr){name, CG_PRIMARY};
    }
}

static cg_expr map_value(kir_c *p, const kir_inst *x)
{
    nd_arena *a = p->f.g->a;
    const char *t = kir_map_text(x), *arg[3];
    binding b = binding_of(x->sub, t);
    if (x->sub == EW_WHERE && p->before)
        read_both(p, x);
    if (strchr(t, '?') && x->sub != EW_WHERE)
        b = (binding){CG_TERNARY, CG_PRIMARY, CG_SUM};
    for (int i = 0; i < x->nin; i++) {
        arg[i] = paren(a, p->text[x->in[i]], i ? b.right : b.left);
        if (b.result == CG_UNARY && arg[i][0] == '-')
            arg[i] = nd_fmt(a, "(%s)", arg[i]);    /* -(-1.0f) */
    }
    return (cg_expr){fill(a, t, arg), b.result};
}

static cg_expr cast_value(kir_c *p, const kir_inst *x)
{
    nd_arena *a = p->f.g->a;
    const char *t = kir_cast_text(a, p->k->inst.v[x->in[0]].type, x->type);
    int need = t[0] == '(' ? CG_UNARY : t[0] == '$' ? CG_SUM : CG_TERNARY;
    const char *v = paren(a, p->text[x->in[0]], need);
    int tight = x->type == ND_BOOL ? CG_COMPARE
                : t[0] == '(' ? CG_UNARY : CG_PRIMARY;
    return (cg_expr){fill(a, t, &v), tight};
}

cg_expr kir_c_value(kir_c *p, const kir_inst *x)
{
    nd_arena *a = p->f.g->a;
    switch (x->op) {
    case KIR_CONST: {
        const char *s = cg_number(a, x->type, x->num);
        return (cg_expr){s, s[0] == '-' ? CG_UNARY : CG_PRIMARY};
    }
    case KIR_INDEX:
        return index_value(p, x);
    case KIR_ITER:
        return (cg_expr){nd_fmt(a, "(int32_t)%s", cg_iter(&p->f, x->repeat)),
                         CG_UNARY};
    case KIR_LOAD:
        return load(p, x);
    case KIR_AT:
        return at_value(p, x);
    case KIR_PICK:
        return pick(p, x);
    case KIR_KEPT:
        return (cg_expr){kir_c_kept(p, x->slot), CG_PRIMARY};
    case KIR_MAP:
        return map_value(p, x);
    case KIR_CAST:
        return cast_value(p, x);
    case KIR_MASK:
    case KIR_NORMAL:
        return random_value(p, x);
    default:                         /* a total, a scan: a fold's result */
        return (cg_expr){p->fold[x->slot], CG_PRIMARY};
    }
}
