/* verify.c - is the module well formed?
 *
 *   structure   every operand is defined above, in this block or one around
 *               it; links between ops, results and blocks agree; inputs,
 *               params and outputs stand at the top and are listed once
 *   types       every result has the type that rules.c infers, so that a
 *               wrong or missing collective shows here
 *   phases      PRE reads only PRE; forward does not read backward; nothing
 *               but accumulation resolves a sum over microbatches
 *   gradients   what is accumulated looks like the parameter's gradient
 *
 * Only what the module's state claims is asked of it. Reports at the op's
 * location and shows the op.
 */
#include "priv.h"

#include <string.h>

typedef struct checker {
    nd_module *m;
    nd_arena *arena;                 /* for as long as the check takes */
    nd_table seen;                   /* value -> the block that defines it */
    nd_table axes;                   /* the module's axes */
    nd_table params;                 /* name -> nd_param */
    bool ok;
    bool sound;                      /* links hold: types may be looked at */
} checker;

static void complain(checker *c, const nd_op *op, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void complain(checker *c, const nd_op *op, const char *fmt, ...)
{
    char why[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    c->ok = false;
    nd_error(c->m->ctx, op ? op->loc : (nd_loc){0}, "%s", why);
    if (!op)
        return;
    nd_buf b = {.arena = c->arena};
    nd_print_op(&b, c->m, op);
    nd_note(c->m->ctx, (nd_loc){0}, "in `%s`", b.s);
}

static const char *type_text(checker *c, const nd_type *t)
{
    nd_buf b = {.arena = c->arena};
    nd_print_type(&b, c->m, t);
    return b.s;
}

/* ---- types as such ------------------------------------------------------- */

static bool mesh_ok(const checker *c, uint32_t mask)
{
    return !(mask >> c->m->mesh.n);
}

/* Says what is wrong with a type on its own, before anything prints it. */
static const char *bad_type(const checker *c, const nd_type *t)
{
    if (t->rank < 0 || t->rank > ND_MAX_RANK)
        return "a type with too many axes";
    double elements = 1;
    for (int i = 0; i < t->rank; i++) {
        if (!t->axis[i] || !nd_table_get(&c->axes, t->axis[i]))
            return "a type with an axis that the module does not have";
        for (int j = 0; j < i; j++)
            if (t->axis[i] == t->axis[j])
                return "an axis twice in one type";
        if (t->cut[i].n > ND_MAX_CUT)
            return "an axis cut too often";
        elements *= (double)t->axis[i]->size;
    }
    for (int i = 0; i < t->rank && c->m->state & ND_IS_SHARDED; i++)
        if (t->axis[i]->route &&
            !nd_cut_eq(t->cut[i], nd_route_cut(t->axis[i]->route)))
            return "rows that travelled and are not where they went";
    if (elements > 0x1p53)
        return "a value with more elements than can be counted";
    uint32_t cut = nd_cut_mask(t);
    if (!mesh_ok(c, cut | t->sum | t->max))
        return "a mesh axis that does not exist";
    int cuts = 0, bits = 0;
    for (int i = 0; i < t->rank; i++)
        cuts += t->cut[i].n;
    for (int i = 0; i < ND_MAX_MESH; i++)
        bits += cut >> i & 1;
    if (cuts != bits || (cut & t->sum) || (cut & t->max) || (t->sum & t->max))
        return "a mesh axis is used twice in one type";
    if ((cut || t->sum || t->max) && !(c->m->state & ND_IS_SHARDED))
        return "a cut or a pending sum before sharding";
    return NULL;
}

static bool type_ok(checker *c, const nd_value *v)
{
    const char *why = bad_type(c, &v->type);
    if (why)
        complain(c, NULL, "%%%s: %s", v->name ? v->name : "?", why);
    return !why;
}

/* ---- structure ----------------------------------------------------------- */

static bool encloses(const nd_block *outer, const nd_block *b)
{
    for (; b; b = b->parent ? b->parent->block : NULL)
        if (b == outer)
            return true;
    return false;
}

static bool visible(const checker *c, const nd_value *v, const nd_block *b)
{
    const nd_block *home = v ? nd_table_get(&c->seen, v) : NULL;
    return home && encloses(home, b);
}

static void define(checker *c, const nd_op *op, const nd_value *v,
                   const nd_block *b)
{
    if (nd_table_get(&c->seen, v)) {
        complain(c, op, "a value is defined twice");
        c->sound = false;
    }
    nd_table_put(&c->seen, v, (void *)(uintptr_t)b);
}

static bool attrs_ok(const checker *c, const nd_op *op)
{
    const char *attrs = nd_ops[op->kind].attrs;
    if ((strchr(attrs, 'a') && op->naxes != 1) ||
        (strchr(attrs, 't') && op->nto != 1))
        return false;
    for (int i = 0; i < op->naxes; i++)
        if (!op->axes[i] || !nd_table_get(&c->axes, op->axes[i]))
            return false;
    for (int i = 0; i < op->nto; i++)
        if (!op->to[i] || !nd_table_get(&c->axes, op->to[i]))
            return false;
    if (op->kind == OP_MAP && (op->sub < 0 || op->sub >= EW_COUNT))
        return false;
    if (strchr(attrs, 'r') &&
        (op->sub < 0 || op->sub > RED_MIN))
        return false;
    if (op->kind == OP_REPEAT && (op->ncarry < 0 || op->ncarry > op->nin ||
                                  op->ncarry > op->nout || !op->body))
        return false;
    if (strchr(attrs, 's') && !op->name)
        return false;
    return mesh_ok(c, op->mesh);
}

/* Operands, attributes and results as far as typing may rely on them. */
static bool structure_ok(checker *c, const nd_op *op, const nd_block *b)
{
    if (op->kind >= OP_COUNT || !attrs_ok(c, op)) {
        complain(c, NULL, "an op with bad attributes");
        return false;
    }
    bool effect = op->kind == OP_ACCUM || op->kind == OP_OUTPUT;
    int want = op->kind == OP_MAP ? nd_ews[op->sub].nin : nd_ops[op->kind].nin;
    if ((want >= 0 && op->nin != want) ||
        (op->kind != OP_REPEAT && op->nout != !effect)) {
        complain(c, NULL, "%s with %d operands and %d results",
                 nd_ops[op->kind].name, op->nin, op->nout);
        return false;
    }
    for (int i = 0; i < op->nout; i++)
        if (!op->out[i] || op->out[i]->def != op || op->out[i]->index != i) {
            complain(c, NULL, "result %d of %s does not lead back to it", i,
                     nd_ops[op->kind].name);
            return false;
        } else if (!type_ok(c, op->out[i])) {
            return false;
        }
    for (int i = 0; i < op->nin; i++)
        if (!visible(c, op->in[i], b)) {
            if (!op->in[i])
                complain(c, NULL, "%s: no operand %d", nd_ops[op->kind].name,
                         i);
            else
                complain(c, op, "%%%s is not defined above",
                         op->in[i]->name ? op->in[i]->name : "?");
            return false;
        }
    if (op->block != b)
        complain(c, op, "the op does not know its block");
    return true;
}

/* ---- typing -------------------------------------------------------------- */

static void check_types(checker *c, const nd_op *op)
{
    nd_type *want = ND_NEWN(c->arena, nd_type, op->nout + 1);
    const char *why = nd_infer(c->m, op, want);
    if (why) {
        complain(c, op, "%s", why);
        return;
    }
    for (int i = 0; i < op->nout; i++) {
        const nd_type *got = &op->out[i]->type;
        if (got->dtype != want[i].dtype || !nd_same_axes(got, &want[i]) ||
            !nd_same_cut(got, &want[i]))
            complain(c, op, "%%%s should have the type %s", op->out[i]->name,
                     type_text(c, &want[i]));
    }
}

static void check_index(checker *c, const nd_op *op)
{
    const nd_type *t = &op->out[0]->type;
    bool inside = nd_enclosing(op->block, op->axes[0]) != NULL;
    bool fits = t->rank == 0 ? inside
                             : t->rank == 1 && t->axis[0] == op->axes[0];
    if (!fits || t->dtype != ND_I32 || t->sum || t->max)
        complain(c, op, "an index is i32[%s], or i32 in its repeat",
                 op->axes[0]->name);
}

static void check_repeat(checker *c, const nd_op *op)
{
    const nd_block *b = op->body;
    for (int i = 0; i < op->nin && i < b->args.n; i++) {
        const nd_type *x = &op->in[i]->type;
        int k = i < op->ncarry ? -1 : nd_axis_at(x, op->axes[0]);
        if (x->dtype != b->args.v[i]->type.dtype)
            complain(c, op, "operand %%%s and body argument differ in dtype",
                     op->in[i]->name);
        if (k >= 0 && x->cut[k].n)
            complain(c, op, "%%%s is cut along the axis of the repeat",
                     op->in[i]->name);
    }
    for (int i = 0; i < op->ncarry && i < b->yields.n; i++)
        if (b->yields.v[i]->type.dtype != b->args.v[i]->type.dtype)
            complain(c, op, "carried %%%s changes its dtype",
                     op->in[i]->name);
    const nd_value *astray = nd_wrong_turn(c->m, op);
    if (astray)
        complain(c, op, "carried %%%s is not shifted by %d in each turn",
                 astray->name, astray->turn - 1);
    for (int i = 0; i < op->nout; i++)
        if (i >= op->ncarry &&
            nd_axis_at(&b->yields.v[i]->type, op->axes[0]) >= 0)
            complain(c, op, "%%%s has the axis of the repeat already",
                     b->yields.v[i]->name);
}

/* ---- phases, collectives, gradients -------------------------------------- */

static bool is_source(const nd_op *op)
{
    return op->nin == 0 && op->kind != OP_REPEAT;
}

static void check_phase(checker *c, const nd_op *op)
{
    if (nd_has_trait(op, 'k') && op->mesh >> c->m->mesh.micro & 1)
        complain(c, op, "microbatches run at different times: no collective "
                 "joins them");
    for (int i = 0; i < op->nin; i++) {
        const nd_op *def = op->in[i]->def;
        if (!def || is_source(def))
            continue;
        if (op->phase == PH_PRE && def->phase != PH_PRE)
            complain(c, op, "%%%s is computed later than this op runs",
                     op->in[i]->name);
        if (op->phase == PH_FWD && def->phase == PH_BWD)
            complain(c, op, "forward reads %%%s from backward",
                     op->in[i]->name);
        if (op->phase < PH_WGT && def->phase == PH_WGT)
            complain(c, op, "%%%s waits with the gradients of weights",
                     op->in[i]->name);
    }
}

static void check_accumulate(checker *c, const nd_op *op)
{
    const nd_param *p = nd_table_get(&c->params, op->name);
    if (!p) {
        complain(c, op, "no parameter is called \"%s\"", op->name);
        return;
    }
    const nd_type *g = &op->in[0]->type, *t = &p->value->type;
    int missing = 0;
    for (int i = 0; i < t->rank; i++) {
        int k = nd_axis_at(g, t->axis[i]);
        if (k < 0 && !(i < p->nlayers &&
                       nd_enclosing(op->block, t->axis[i])))
            complain(c, op, "the gradient lacks the axis %s",
                     t->axis[i]->name);
        int w = nd_axis_at(&p->grad, t->axis[i]);
        if (k >= 0 && c->m->state & ND_IS_SHARDED && w >= 0 &&
            !nd_cut_eq(g->cut[k], p->grad.cut[w]))
            complain(c, op, "the gradient of \"%s\" should be %s", p->name,
                     type_text(c, &p->grad));
        missing += k < 0;
    }
    if (g->rank + missing != t->rank)
        complain(c, op, "the gradient of %s is %s", type_text(c, t),
                 type_text(c, g));
    else if (c->m->state & ND_IS_SHARDED && (g->sum != p->grad.sum || g->max))
        complain(c, op, "the gradient of \"%s\" should be pending as in %s",
                 p->name, type_text(c, &p->grad));
}

/* ---- the walk ------------------------------------------------------------ */

static void check_block(checker *c, const nd_block *b);

/* Arguments that are there and typed, one per operand. */
static bool args_ok(checker *c, const nd_op *op)
{
    const nd_block *b = op->body;
    if (b->parent != op || b->args.n != op->nin || b->yields.n != op->nout) {
        complain(c, NULL, "repeat: the body does not match");
        return false;
    }
    for (int i = 0; i < b->args.n; i++) {
        const nd_value *v = b->args.v[i];
        if (!v || v->def || v->owner != b || v->index != i) {
            complain(c, NULL, "repeat: argument %d is not the body's", i);
            return false;
        }
        if (!type_ok(c, v))
            return false;
    }
    return true;
}

static void check_body(checker *c, const nd_op *op)
{
    const nd_block *b = op->body;
    if (!args_ok(c, op)) {
        c->sound = false;
        return;
    }
    for (int i = 0; i < b->args.n; i++)
        define(c, op, b->args.v[i], b);
    check_block(c, b);
    for (int i = 0; i < b->yields.n; i++)
        if (!visible(c, b->yields.v[i], b)) {
            complain(c, NULL, "repeat: yield %d is not defined in the body",
                     i);
            c->sound = false;
        }
    if (c->sound)
        check_repeat(c, op);
}

static void check_op(checker *c, const nd_op *op, const nd_block *b)
{
    if (!structure_ok(c, op, b)) {
        c->sound = false;
        return;
    }
    bool top = op->kind == OP_INPUT || op->kind == OP_PARAM ||
               op->kind == OP_OUTPUT;
    if (top && b->parent)
        complain(c, op, "%s inside a body", nd_ops[op->kind].name);
    if (b->parent && b->parent->phase == PH_WGT && op->phase != PH_WGT)
        complain(c, op, "the repeat around it runs in another phase");
    if (op->body)
        check_body(c, op);
    for (int i = 0; i < op->nout; i++)
        define(c, op, op->out[i], b);
    if (!c->sound)
        return;
    check_types(c, op);
    check_phase(c, op);
    if (op->kind == OP_INDEX)
        check_index(c, op);
    if (op->kind == OP_ACCUM)
        check_accumulate(c, op);
}

static void check_block(checker *c, const nd_block *b)
{
    for (int i = 0; i < b->ops.n; i++)
        check_op(c, b->ops.v[i], b);
}

/* ---- lists of the module ------------------------------------------------- */

static void list_params(checker *c)
{
    for (int i = 0; i < c->m->params.n; i++) {
        nd_param *p = c->m->params.v[i];
        if (nd_table_get(&c->params, p->name))
            complain(c, NULL, "parameter \"%s\" twice", p->name);
        nd_table_put(&c->params, p->name, p);
        const char *why = bad_type(c, &p->grad);
        if (why)
            complain(c, NULL, "gradient of \"%s\": %s", p->name, why);
        const nd_type *t = &p->value->type;
        int k = 0;
        while (k < p->nlayers && nd_axis_at(t, p->layer[k].axis) == k)
            k++;
        if (k < p->nlayers)
            complain(c, p->value->def,
                     "\"%s\" does not lead with its layer axes", p->name);
        for (int j = 0; k == p->nlayers && j < p->nlayers; j++)
            if (p->layer[j].at < (j ? p->layer[j - 1].at : 0) ||
                (size_t)p->layer[j].at > strlen(p->name))
                complain(c, p->value->def, "the places of the layers in \"%s\" "
                         "are not in order", p->name);
    }
}

static void check_listed(checker *c)
{
    const nd_block *b = c->m->step;
    int inputs = 0, params = 0, outputs = 0;
    for (int i = 0; i < b->ops.n; i++) {
        nd_opcode k = b->ops.v[i]->kind;
        inputs += k == OP_INPUT;
        params += k == OP_PARAM;
        outputs += k == OP_OUTPUT;
    }
    for (int i = 0; i < c->m->inputs.n; i++)
        if (!visible(c, c->m->inputs.v[i], b))
            complain(c, NULL, "an input that is not in the step");
    for (int i = 0; i < c->m->params.n; i++)
        if (!visible(c, c->m->params.v[i]->value, b))
            complain(c, NULL, "parameter \"%s\" is not in the step",
                     c->m->params.v[i]->name);
    if (inputs != c->m->inputs.n || params != c->m->params.n ||
        outputs != c->m->outputs.n)
        complain(c, NULL, "inputs, params or outputs are not listed once");
    const nd_value *l = c->m->loss;
    if (!l)
        return;
    if (!visible(c, l, b))
        complain(c, NULL, "the loss is not in the step");
    else if (l->type.rank || !nd_is_float(l->type.dtype) || l->type.max)
        complain(c, l->def, "the loss is no scalar: %s",
                 type_text(c, &l->type));
}

bool nd_verify(nd_module *m)
{
    checker c = {.m = m, .arena = nd_arena_new(), .ok = true, .sound = true};
    c.seen = c.axes = c.params = (nd_table){.arena = c.arena};
    c.params.strings = true;
    for (int i = 0; i < m->axes.n; i++)
        nd_table_put(&c.axes, m->axes.v[i], m->axes.v[i]);
    list_params(&c);
    check_block(&c, m->step);
    check_listed(&c);
    nd_arena_free(c.arena);
    return c.ok;
}
