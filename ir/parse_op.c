/* parse_op.c - reads the op lines of a block. See parse.c for the rest.
 *
 *   block   = {op} with at most one "loss" %value, at the top
 *   op      = ["pre" | "bwd"] [%value {"," %value} "="] mnemonic attrs
 *             [%value {"," %value}] [":" type {"," type}] ["@" path]
 *   repeat  = ... "repeat" "[" axis "]" ["reverse"] ["carry" "(" values ")"]
 *             ["scan" "(" values ")"] ":" types ["@" path] "{"
 *             "(" [%value ":" type {"," ...}] ")" {op} "yield" values "}"
 *
 * Which attributes an op has, and in which order, is the letters of its row in
 * ops.def.
 */
#include "parse.h"

#include <string.h>

enum { MAX_LIST = 4096, MAX_DEPTH = 64 };

typedef ND_VEC(nd_value *) values;
typedef ND_VEC(nd_type) types;

/* An op as far as its line has been read. */
typedef struct line {
    nd_loc loc;
    ND_VEC(nd_token) results;
    nd_op op;                        /* attributes only */
    values in;
    types out;
    nd_param param;
} line;

static nd_value *read_value(nd_reader *r)
{
    nd_rd_expect(r, T_VALUE, "a value");
    if (r->failed)
        return NULL;
    nd_value *v = nd_table_get(&r->values, r->prev.text);
    if (!v)
        nd_rd_fail(r, r->prev.loc, "no value %%%.40s is defined above",
                   r->prev.text);
    return v;
}

static void read_values(nd_reader *r, values *list)
{
    if (!nd_rd_is(r, T_VALUE))
        return;
    do {
        nd_value *v = read_value(r);
        if (list->n == MAX_LIST)
            nd_rd_fail(r, r->prev.loc, "too many operands");
        if (r->failed)
            return;
        ND_PUSH(r->c->arena, list, v);
    } while (nd_rd_take(r, ','));
}

static void define(nd_reader *r, nd_token t, nd_value *v)
{
    if (r->failed)
        return;
    if (nd_table_get(&r->values, t.text)) {
        nd_rd_fail(r, t.loc, "value %%%.40s is defined twice", t.text);
        return;
    }
    v->name = t.text;
    nd_table_put(&r->values, v->name, v);
}

/* ---- attributes ---------------------------------------------------------- */

/* a, b, c; at most as many as a value has. */
static nd_axis **read_axis_list(nd_reader *r, int *n)
{
    ND_VEC(nd_axis *) list = {0};
    while (nd_rd_is(r, T_WORD)) {
        nd_axis *a = nd_rd_axis(r);
        ND_PUSH(r->c->arena, &list, a);
        if (list.n > ND_MAX_RANK)
            nd_rd_fail(r, r->prev.loc, "too many axes");
        if (!nd_rd_take(r, ','))
            break;
    }
    *n = list.n;
    return list.v;
}

/* [a, b] or, with `to`, [a, b -> c]; `one`, `one_to`: exactly one there. */
static void read_axes(nd_reader *r, line *l, bool one, bool to, bool one_to)
{
    nd_rd_expect(r, '[', "`[`");
    l->op.axes = read_axis_list(r, &l->op.naxes);
    if (to) {
        nd_rd_expect(r, T_ARROW, "`->`");
        l->op.to = read_axis_list(r, &l->op.nto);
    }
    nd_rd_expect(r, ']', "`]`");
    if ((one && l->op.naxes != 1) || (one_to && l->op.nto != 1))
        nd_rd_fail(r, l->loc, "%s takes one axis", nd_ops[l->op.kind].name);
}

static void read_init(nd_reader *r, nd_param *p)
{
    p->init = (nd_init)nd_rd_choice(r, nd_init_names, "an initialiser");
    if (!nd_rd_take(r, '('))
        return;
    p->init_arg = nd_rd_num(r);
    nd_rd_expect(r, ')', "`)`");
}

/* layer(blocks, layers 12): the axes, and where their indices stand in the
 * name if that is not where nd_layer_at finds it. */
static void read_layers(nd_reader *r, nd_param *p)
{
    nd_rd_expect(r, '(', "`(`");
    do {
        if (p->nlayers == ND_MAX_REPEAT)
            nd_rd_fail(r, r->tok.loc, "more than %d repeats", ND_MAX_REPEAT);
        nd_axis *a = nd_rd_axis(r);
        if (r->failed)
            return;
        nd_layer *l = &p->layer[p->nlayers++];
        l->axis = a;
        l->at = nd_layer_at(p, l->axis);
        if (nd_rd_is(r, T_WORD))
            l->at = (int)nd_rd_int(r, 0, (int64_t)strlen(p->name), "a place");
    } while (nd_rd_take(r, ','));
    nd_rd_expect(r, ')', "`)`");
}

static void read_param(nd_reader *r, nd_param *p)
{
    const int64_t most = (int64_t)1 << 60;
    read_init(r, p);
    while (nd_rd_is(r, T_WORD)) {
        if (nd_rd_take_word(r, "matrix")) {
            p->matrix = true;
        } else if (nd_rd_take_word(r, "decay")) {
            p->decay = true;
        } else if (nd_rd_take_word(r, "frozen")) {
            p->frozen = true;
        } else if (nd_rd_take_word(r, "layer")) {
            read_layers(r, p);
        } else if (nd_rd_take_word(r, "fan")) {
            nd_rd_expect(r, '(', "`(`");
            p->fan_in = nd_rd_int(r, 0, most, "a size");
            nd_rd_expect(r, ',', "`,`");
            p->fan_out = nd_rd_int(r, 0, most, "a size");
            nd_rd_expect(r, ')', "`)`");
        } else {
            nd_rd_fail(r, r->tok.loc, "`%.40s` says nothing about a parameter",
                       r->tok.text);
        }
    }
}

static void read_attrs(nd_reader *r, line *l)
{
    nd_op *op = &l->op;
    const char *attrs = nd_ops[op->kind].attrs;
    for (const char *a = attrs; *a; a++)
        switch (*a) {
        case 'a':
        case 'A':
            read_axes(r, l, *a == 'a', a[1] == 't' || a[1] == 'u',
                      a[1] == 't');
            break;
        case 'v':
            op->reverse = nd_rd_take_word(r, "reverse");
            break;
        case 'n':
            op->num = nd_rd_num(r);
            break;
        case 's':
            op->name = nd_rd_string(r);
            break;
        case 'c':
            if (!nd_rd_take_word(r, "over"))
                nd_rd_fail(r, r->tok.loc, "expected `over` and mesh axes");
            op->mesh = nd_rd_mask(r);
            break;
        case 'r':
            op->sub = nd_rd_choice(r, nd_red_names, "sum, max or min");
            break;
        case 'x':
            op->sub = nd_rd_take_word(r, "exact");
            break;
        }
    if (op->kind == OP_PARAM) {
        l->param.name = op->name;
        read_param(r, &l->param);
    }
}

static void read_carried(nd_reader *r, line *l)
{
    l->op.reverse = nd_rd_take_word(r, "reverse");
    if (nd_rd_take_word(r, "carry")) {
        nd_rd_expect(r, '(', "`(`");
        read_values(r, &l->in);
        nd_rd_expect(r, ')', "`)`");
    }
    l->op.ncarry = l->in.n;
    if (nd_rd_take_word(r, "scan")) {
        nd_rd_expect(r, '(', "`(`");
        read_values(r, &l->in);
        nd_rd_expect(r, ')', "`)`");
    }
}

/* ---- one line ------------------------------------------------------------ */

static void read_mnemonic(nd_reader *r, line *l)
{
    const char *s = nd_rd_name(r, "an op");
    int k = nd_op_find(s), e = nd_ew_find(s);
    if (r->failed)
        return;
    l->loc = r->prev.loc;
    if (e >= 0) {
        l->op.kind = OP_MAP;
        l->op.sub = e;
    } else if (k >= 0 && k != OP_MAP) {
        l->op.kind = (nd_opcode)k;
    } else {
        nd_rd_fail(r, r->prev.loc, "no op is called `%.40s`", s);
    }
}

static void check_arity(nd_reader *r, const line *l)
{
    int want = l->op.kind == OP_MAP ? nd_ews[l->op.sub].nin
                                    : nd_ops[l->op.kind].nin;
    if (want >= 0 && l->in.n != want)
        nd_rd_fail(r, l->loc, "%s takes %d operands, here are %d",
                   nd_op_name(&l->op), want, l->in.n);
    int results = l->op.kind == OP_ACCUM || l->op.kind == OP_OUTPUT ? 0 : 1;
    if (l->op.kind != OP_REPEAT && l->results.n != results)
        nd_rd_fail(r, l->loc, "%s has %d results",
                   nd_op_name(&l->op), results);
    if (l->out.n != l->results.n)
        nd_rd_fail(r, l->loc, "%d results, but %d types", l->results.n,
                   l->out.n);
}

static void read_types_and_path(nd_reader *r, line *l)
{
    if (nd_rd_take(r, ':'))
        do {
            nd_type t = nd_rd_type(r);
            ND_PUSH(r->c->arena, &l->out, t);
        } while (nd_rd_take(r, ','));
    if (!nd_rd_take(r, '@'))
        return;
    l->op.path = nd_rd_is(r, T_STRING) ? nd_rd_string(r)
                                       : nd_rd_name(r, "a path");
}

static nd_phase read_phase(nd_reader *r)
{
    if (nd_rd_take_word(r, "pre"))
        return PH_PRE;
    if (nd_rd_take_word(r, "wgt"))
        return PH_WGT;
    return nd_rd_take_word(r, "bwd") ? PH_BWD : PH_FWD;
}

static void read_line(nd_reader *r, line *l)
{
    l->op.phase = read_phase(r);
    while (nd_rd_is(r, T_VALUE)) {
        ND_PUSH(r->c->arena, &l->results, r->tok);
        nd_rd_next(r);
        if (!nd_rd_take(r, ','))
            break;
    }
    if (l->results.n)
        nd_rd_expect(r, '=', "`=`");
    read_mnemonic(r, l);
    if (r->failed)
        return;
    read_attrs(r, l);
    if (l->op.kind == OP_REPEAT)
        read_carried(r, l);
    else
        read_values(r, &l->in);
    read_types_and_path(r, l);
    check_arity(r, l);
}

/* ---- from lines to ops --------------------------------------------------- */

static void read_args(nd_reader *r, nd_block *b)
{
    nd_rd_expect(r, '(', "`(` and the arguments of the body");
    while (nd_rd_is(r, T_VALUE)) {
        nd_token name = r->tok;
        nd_rd_next(r);
        nd_rd_expect(r, ':', "`:`");
        nd_type t = nd_rd_type(r);
        if (r->failed)
            return;
        define(r, name, nd_block_arg(r->m, b, name.text, t));
        if (!nd_rd_take(r, ','))
            break;
    }
    nd_rd_expect(r, ')', "`)`");
}

static void read_body(nd_reader *r, nd_op *op)
{
    op->body = nd_block_new(r->m, op);
    nd_rd_expect(r, '{', "`{` and the body");
    if (++r->depth > MAX_DEPTH)
        nd_rd_fail(r, r->prev.loc, "bodies nest too deep");
    read_args(r, op->body);
    nd_rd_block(r, op->body);
    r->depth--;
    if (!r->failed && op->body->args.n != op->nin)
        nd_rd_fail(r, op->loc, "%d operands, but %d arguments of the body",
                   op->nin, op->body->args.n);
    if (!r->failed && op->body->yields.n != op->nout)
        nd_rd_fail(r, op->loc, "%d results, but the body yields %d", op->nout,
                   op->body->yields.n);
    if (!r->failed && op->nout < op->ncarry)
        nd_rd_fail(r, op->loc, "%d values are carried, but %d result",
                   op->ncarry, op->nout);
}

static void enrol_param(nd_reader *r, nd_op *op, const nd_param *from)
{
    nd_param *p = ND_NEW(r->c->arena, nd_param);
    *p = *from;
    p->name = op->name;
    p->value = op->out[0];
    p->grad = op->out[0]->type;
    p->loc = op->loc;
    p->index = r->m->params.n;
    op->param = p;
    if (nd_table_get(&r->params, p->name))
        nd_rd_fail(r, op->loc, "parameter `%.40s` is declared twice",
                   p->name);
    nd_table_put(&r->params, p->name, p);
    ND_PUSH(r->c->arena, &r->m->params, p);
}

static void read_op(nd_reader *r, nd_block *b)
{
    line l = {0};
    read_line(r, &l);
    if (r->failed)
        return;
    bool top_only = l.op.kind == OP_INPUT || l.op.kind == OP_PARAM ||
                    l.op.kind == OP_OUTPUT;
    if (top_only && b->parent)
        nd_rd_fail(r, l.loc, "%s inside a body", nd_ops[l.op.kind].name);
    nd_builder build = {.m = r->m, .block = b, .at = -1,
                        .phase = l.op.phase, .loc = l.loc, .path = l.op.path};
    nd_op *op = nd_op_new(&build, l.op.kind, l.in.n, l.in.v, l.results.n,
                          l.out.v);
    op->sub = l.op.sub;
    op->naxes = l.op.naxes;
    op->axes = l.op.axes;
    op->nto = l.op.nto;
    op->to = l.op.to;
    op->num = l.op.num;
    op->name = l.op.name;
    op->mesh = l.op.mesh;
    op->reverse = l.op.reverse;
    op->ncarry = l.op.ncarry;
    if (op->kind == OP_REPEAT)
        read_body(r, op);
    for (int i = 0; i < op->nout; i++)
        define(r, l.results.v[i], op->out[i]);
    if (op->kind == OP_INPUT)
        ND_PUSH(r->c->arena, &r->m->inputs, op->out[0]);
    if (op->kind == OP_OUTPUT)
        ND_PUSH(r->c->arena, &r->m->outputs, op);
    if (op->kind == OP_PARAM)
        enrol_param(r, op, &l.param);
}

static void read_loss(nd_reader *r, nd_block *b)
{
    if (b->parent || r->m->loss)
        nd_rd_fail(r, r->prev.loc, "a second loss, or one inside a body");
    r->m->loss = read_value(r);
}

void nd_rd_block(nd_reader *r, nd_block *b)
{
    while (!r->failed && !nd_rd_is(r, '}') && !nd_rd_is(r, T_END)) {
        if (nd_rd_take_word(r, "loss")) {
            read_loss(r, b);
        } else if (b->parent && nd_rd_take_word(r, "yield")) {
            values list = {0};
            read_values(r, &list);
            for (int i = 0; i < list.n; i++)
                ND_PUSH(r->c->arena, &b->yields, list.v[i]);
            break;
        } else {
            read_op(r, b);
        }
    }
    nd_rd_expect(r, '}', "`}`");
}
