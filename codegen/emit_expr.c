/* emit_expr.c - a value, seen from inside a loop nest, as a C expression.
 *
 *   %a = map mul %s, %c      ->  s_row[kv] * 0.125f
 *   index [seq]              ->  (int32_t)(o_seq_tp + seq)
 *   %x = gather [vocab] ...  ->  const int64_t x_at = tokens[...] - o_vocab;
 *                                (uint64_t)x_at < 128 ? wte[x_at * 384] : 0.0f
 */
#include "codegen.h"

#include <ctype.h>
#include <string.h>

const char *cg_paren(nd_arena *a, cg_expr x, int need)
{
    return x.tight >= need ? x.s : nd_fmt(a, "(%s)", x.s);
}

static const cg_axis *find_axis(const cg_env *e, const nd_axis *a)
{
    for (int i = 0; i < e->n; i++)
        if (e->axis[i].axis == a)
            return &e->axis[i];
    return NULL;
}

/* ---- memory ------------------------------------------------------------- */

/* The part of the address that the inner (or outer) loop variables make, and
 * axis `at` as the index `as`, which counts as inner. */
static const char *address(cg_env *e, const nd_ref *r, const nd_axis *at,
                           const char *as, bool inner)
{
    const char *s = NULL;
    for (int i = 0; i < r->rank; i++) {
        const char *var = as;
        bool in = true;
        if (r->axis[i] != at) {
            const cg_axis *x = find_axis(e, r->axis[i]);
            var = x->var;
            in = x->inner;
        }
        if (in == inner)
            s = cg_sum(e->f->g->a, s, cg_scaled(e->f, var, &r->stride[i]));
    }
    return s;
}

const char *cg_element(cg_env *e, const nd_ref *r, bool write,
                       const nd_axis *at, const char *as)
{
    nd_arena *a = e->f->g->a;
    cg_pointer *p = cg_pointer_to(e->f, r, write);
    const char *outer = address(e, r, at, as, false);
    const char *inner = address(e, r, at, as, true);
    if (e->rows && outer && inner) {
        if (!p->row) {
            p->row = cg_fresh(&e->f->names, nd_fmt(a, "%s_row", p->name));
            p->row_at = outer;
        }
        if (strcmp(p->row_at, outer) == 0)
            return nd_fmt(a, "%s[%s]", p->row, inner);
    }
    const char *s = cg_sum(a, outer, inner);
    return nd_fmt(a, "%s[%s]", p->part ? p->part : p->name, s ? s : "0");
}

/* Writes a line in front of the loops of the pass instead of inside them. */
static void line_before(cg_env *e, const char *text)
{
    int depth = e->k->ninner;
    nd_buf here = e->f->b;
    e->f->b = *e->before;
    e->f->indent -= depth;
    cg_line(e->f, "%s", text);
    e->f->indent += depth;
    *e->before = e->f->b;
    e->f->b = here;
}

/* A value without inner axes is loaded once per row. */
static const char *hoist(cg_env *e, const nd_value *v, const char *element)
{
    for (int i = 0; i < e->hoisted.n; i++)
        if (strcmp(e->hoisted.v[i].element, element) == 0)
            return e->hoisted.v[i].name;
    cg_hoisted h = {element, cg_local_name(e->f, v)};
    const char *line = nd_fmt(e->f->g->a, "const %s %s = %s;",
                              cg_ctype(v->type.dtype), h.name, element);
    if (e->before)
        line_before(e, line);
    else
        cg_line(e->f, "%s", line);
    ND_PUSH(e->f->g->a, &e->hoisted, h);
    return h.name;
}

static bool has_inner(const cg_env *e, const nd_type *t)
{
    for (int i = 0; i < t->rank; i++) {
        const cg_axis *x = find_axis(e, t->axis[i]);
        if (x && x->inner)
            return true;
    }
    return false;
}

static const char *kept_element(cg_env *e, const char *row)
{
    nd_buf b = {.arena = e->f->g->a};
    nd_put(&b, row);
    for (int i = 0; i < e->n; i++)
        if (e->axis[i].inner)
            nd_putf(&b, "[%s]", e->axis[i].var);
    return b.s;
}

/* ---- values ------------------------------------------------------------- */

cg_expr cg_value(cg_env *e, const nd_value *v)
{
    nd_code *c = e->f->g->c;
    nd_class k = nd_class_of(c, v);
    if (k == V_INLINE)
        return cg_op_value(e, v->def);
    if (k == V_VIEW && v->def &&
        (v->def->kind == OP_BROADCAST || nd_is_same(c, v->def)))
        return cg_value(e, v->def->in[0]);
    const nd_node *n = nd_node_of(e->k, v);
    if (n) {
        int i = (int)(n - e->k->nodes.v);
        if (e->local[i].s)
            return e->local[i];
        if (e->kept[i])
            return (cg_expr){kept_element(e, e->kept[i]), CG_PRIMARY};
    }
    nd_ref r;
    cg_ref_of(e->f, v, &r);
    const char *s = cg_element(e, &r, false, NULL, NULL);
    if (e->rows && !has_inner(e, &v->type))
        s = hoist(e, v, s);
    return (cg_expr){s, CG_PRIMARY};
}

static cg_expr index_value(cg_env *e, const nd_op *op)
{
    nd_arena *a = e->f->g->a;
    if (op->out[0]->type.rank == 0) {
        nd_op *rep = nd_enclosing(op->block, op->axes[0]);
        return (cg_expr){nd_fmt(a, "(int32_t)%s", cg_iter(e->f, rep)),
                         CG_UNARY};
    }
    const cg_axis *x = find_axis(e, op->axes[0]);
    const char *from = cg_start(e->f, x->ext);
    if (strcmp(from, "0") == 0)
        return (cg_expr){nd_fmt(a, "(int32_t)%s", x->var), CG_UNARY};
    return (cg_expr){nd_fmt(a, "(int32_t)(%s + %s)", from, x->var), CG_UNARY};
}

static cg_expr renamed_value(cg_env *e, const nd_op *op)
{
    cg_env inside = *e;
    for (int i = 0; i < inside.n; i++)
        if (inside.axis[i].axis == op->to[0])
            inside.axis[i].axis = op->axes[0];
    return cg_value(&inside, op->in[0]);
}

/* bf16 and f16 are bits: through a float both ways. */
static cg_expr cast_value(cg_env *e, const nd_op *op)
{
    nd_arena *a = e->f->g->a;
    cg_expr x = cg_value(e, op->in[0]);
    nd_dtype from = op->in[0]->type.dtype, to = op->out[0]->type.dtype;
    if (from == to)
        return x;
    if (nd_is_narrow(from)) {
        x = (cg_expr){nd_fmt(a, "nd_from_%s(%s)", nd_dtype_name(from), x.s),
                      CG_PRIMARY};
        if (to == ND_F32)
            return x;
    }
    if (nd_is_narrow(to))
        return (cg_expr){nd_fmt(a, "nd_to_%s(%s)", nd_dtype_name(to), x.s),
                         CG_PRIMARY};
    if (to == ND_BOOL)
        return (cg_expr){nd_fmt(a, "%s != 0", cg_paren(a, x, CG_SUM)),
                         CG_COMPARE};
    if (!nd_is_float(to) && nd_is_float(from))
        return (cg_expr){nd_fmt(a, "nd_to_%s(%s)", nd_dtype_name(to), x.s),
                         CG_PRIMARY};
    return (cg_expr){nd_fmt(a, "(%s)%s", cg_ctype(to),
                            cg_paren(a, x, CG_UNARY)), CG_UNARY};
}

/* ---- elementwise ops ---------------------------------------------------- */

/* Fills $0, $1, $2 of a template. */
static const char *fill(nd_arena *a, const char *t, const char *const *x)
{
    nd_buf b = {.arena = a};
    for (; *t; t++) {
        if (*t == '$')
            nd_put(&b, x[*++t - '0']);
        else
            nd_putn(&b, t, 1);
    }
    return b.s;
}

const char *cg_combine(nd_arena *a, int red, nd_dtype t, const char *x,
                       const char *y)
{
    const char *arg[2] = {x, y};
    if (red == RED_SUM)
        return nd_fmt(a, "%s + %s", x, y);
    if (nd_is_float(t))
        return fill(a, red == RED_MAX ? "nd_max($0, $1)" : "nd_min($0, $1)",
                    arg);
    return fill(a, red == RED_MAX ? "$0 > $1 ? $0 : $1" : "$0 < $1 ? $0 : $1",
                arg);
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

static cg_expr map_value(cg_env *e, const nd_op *op)
{
    nd_arena *a = e->f->g->a;
    const char *t = nd_ews[op->sub].c, *arg[3];
    binding b = binding_of(op->sub, t);
    if (op->out[0]->type.dtype == ND_I64 &&
        (op->sub == EW_IDIV || op->sub == EW_MOD))
        t = op->sub == EW_IDIV ? "nd_floordiv64($0, $1)"
                               : "nd_floormod64($0, $1)";
    if (!nd_is_float(op->out[0]->type.dtype) && op->sub == EW_ABS) {
        t = "$0 < 0 ? -$0 : $0";
        b = (binding){CG_TERNARY, CG_PRIMARY, CG_PRIMARY};
    }
    if (!nd_is_float(op->out[0]->type.dtype) &&
        (op->sub == EW_MIN || op->sub == EW_MAX)) {
        t = op->sub == EW_MIN ? "$0 < $1 ? $0 : $1" : "$0 > $1 ? $0 : $1";
        b = (binding){CG_TERNARY, CG_SUM, CG_SUM};
    }
    for (int i = 0; i < op->nin; i++) {
        cg_expr x = cg_value(e, op->in[i]);
        arg[i] = cg_paren(a, x, i ? b.right : b.left);
        if (b.result == CG_UNARY && arg[i][0] == '-')
            arg[i] = nd_fmt(a, "(%s)", arg[i]);    /* -(-1.0f) */
    }
    return (cg_expr){fill(a, t, arg), b.result};
}

/* ---- ops with statements of their own ----------------------------------- */

/* The position that a gather or scatter_add touches, as a local variable. */
const char *cg_row_index(cg_env *e, nd_op *op)
{
    nd_arena *a = e->f->g->a;
    bool gather = op->kind == OP_GATHER;
    const nd_value *table = gather ? op->in[0] : op->out[0];
    int i = nd_axis_at(&table->type, op->axes[0]);
    int ext = nd_ext_of(e->f->g->c, &table->type, i);
    cg_expr x = cg_value(e, op->in[1]);
    const char *from = cg_start(e->f, ext);
    const char *name = cg_fresh(&e->f->names, nd_fmt(a, "%s_at",
                                                     op->axes[0]->name));
    const char *s = nd_fmt(a, "const int64_t %s = %s;", name, x.s);
    if (strcmp(from, "0") != 0)
        s = nd_fmt(a, "const int64_t %s = %s - %s;", name,
                   cg_paren(a, x, CG_SUM), from);
    if (e->before && !has_inner(e, &op->in[1]->type))
        line_before(e, s);
    else
        cg_line(e->f, "%s", s);
    return name;
}

static const char *row_length(cg_env *e, const nd_op *op, const nd_value *table)
{
    int i = nd_axis_at(&table->type, op->axes[0]);
    return cg_count(e->f, nd_ext_of(e->f->g->c, &table->type, i));
}

/* Does a constant index an axis that is whole on every rank? */
static bool is_inside(nd_code *c, const nd_op *op)
{
    const nd_op *at = op->in[1]->def;
    const nd_type *t = &op->in[0]->type;
    int i = nd_axis_at(t, op->axes[0]);
    return at && at->kind == OP_CONST && at->num >= 0 &&
           at->num < (double)t->axis[i]->size &&
           nd_ext_whole(c, nd_ext_of(c, t, i));
}

static cg_expr gather_value(cg_env *e, nd_op *op)
{
    nd_arena *a = e->f->g->a;
    nd_ref r;
    cg_ref_of(e->f, op->in[0], &r);
    if (is_inside(e->f->g->c, op)) {
        const char *k = nd_fmt(a, "%lld", (long long)op->in[1]->def->num);
        return (cg_expr){cg_element(e, &r, false, op->axes[0], k), CG_PRIMARY};
    }
    const char *at = cg_row_index(e, op);
    const char *x = cg_element(e, &r, false, op->axes[0], at);
    nd_dtype t = op->out[0]->type.dtype;
    const char *zero = nd_is_narrow(t) ? "0" : cg_number(a, t, 0);
    return (cg_expr){nd_fmt(a, "(uint64_t)%s < (uint64_t)%s ? %s : %s", at,
                            row_length(e, op, op->in[0]), x, zero),
                     CG_TERNARY};
}

static cg_expr roll_value(cg_env *e, nd_op *op)
{
    nd_arena *a = e->f->g->a;
    nd_ref r;
    cg_ref_of(e->f, op->in[0], &r);
    const char *at = nd_fmt(a, "(%s + %lld) %% %lld",
                            find_axis(e, op->axes[0])->var,
                            (long long)nd_roll_by(op),
                            (long long)op->axes[0]->size);
    return (cg_expr){cg_element(e, &r, false, op->axes[0],
                                nd_fmt(a, "(%s)", at)), CG_PRIMARY};
}

/* The row-major index over the whole value, on whatever rank. */
static const char *global_index(cg_env *e, const nd_type *t)
{
    nd_arena *a = e->f->g->a;
    const char *s = NULL;
    int64_t step = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        const cg_axis *x = find_axis(e, t->axis[i]);
        const char *from = cg_start(e->f, x->ext), *pos = x->var;
        if (strcmp(pos, "0") == 0)
            pos = from;
        else if (strcmp(from, "0") != 0)
            pos = nd_fmt(a, step == 1 ? "%s + %s" : "(%s + %s)", from, pos);
        if (step != 1)
            pos = nd_fmt(a, "%s * %lld", pos, (long long)step);
        s = s ? nd_fmt(a, "%s + %s", pos, s) : pos;
        step *= t->axis[i]->size;
    }
    return s ? s : "0";
}

/* Counted over all repeats around it: "l * 3 + l2". */
static const char *iteration(cg_env *e, nd_op *rep)
{
    nd_arena *a = e->f->g->a;
    const char *s = cg_iter(e->f, rep);
    int64_t each = rep->axes[0]->size;
    while ((rep = rep->block->parent)) {
        s = nd_fmt(a, "%s * %lld + %s", cg_iter(e->f, rep), (long long)each,
                   s);
        each *= rep->axes[0]->size;
    }
    return s;
}

/* Dropout is on in training; noise is always there. */
static cg_expr random_value(cg_env *e, const nd_op *op)
{
    nd_arena *a = e->f->g->a;
    uint64_t h = nd_hash(op->name);
    uint32_t fold = (uint32_t)(h ^ h >> 32);
    const char *stream = nd_fmt(a, "0x%08xu", (unsigned)fold);
    if (op->block->parent)
        stream = nd_fmt(a, "%s + 0x9e3779b9u * (uint32_t)(%s + 1)", stream,
                        iteration(e, op->block->parent));
    e->f->uses_random = e->f->uses_rank = true;
    const char *at = global_index(e, &op->out[0]->type);
    if (op->kind == OP_NORMAL)
        return (cg_expr){nd_fmt(a, "nd_normal(seed, (uint64_t)(%s), step, %s)",
                                at, stream), CG_PRIMARY};
    e->f->uses_training = true;
    return (cg_expr){
        nd_fmt(a, "training ? nd_dropout(%s, seed, (uint64_t)(%s), step, %s) "
               ": 1.0f", cg_number(a, ND_F32, op->num), at, stream),
        CG_TERNARY};
}

cg_expr cg_op_value(cg_env *e, nd_op *op)
{
    nd_arena *a = e->f->g->a;
    switch (op->kind) {
    case OP_CONST: {
        const char *s = cg_number(a, op->out[0]->type.dtype, op->num);
        return (cg_expr){s, s[0] == '-' ? CG_UNARY : CG_PRIMARY};
    }
    case OP_INDEX:
        return index_value(e, op);
    case OP_RENAME:
        return renamed_value(e, op);
    case OP_CAST:
        return cast_value(e, op);
    case OP_MAP:
        return map_value(e, op);
    case OP_GATHER:
        return gather_value(e, op);
    case OP_ROLL:
        return roll_value(e, op);
    case OP_RANDOM:
    case OP_NORMAL:
        return random_value(e, op);
    case OP_ACCUM:
        return cg_value(e, nd_accum_source(e->f->g->c, op));
    default:
        return cg_value(e, op->in[0]);
    }
}
