/* print.c - the text form of a module. parse.c reads what this writes.
 *
 *   module gpt
 *   axis batch = 32
 *   axis kv = 256 like seq
 *   sample batch
 *   mesh dp = 2, tp = 2, micro = 4
 *   rule heads -> tp
 *   state grads, phases, sharded
 *   step {
 *     %x = gather [vocab] %wte, %tokens : f32[batch/(dp,micro), seq, d]+tp
 *     bwd accumulate "wte" %g
 *     loss %l
 *   }
 *   grad "wte" : f32[vocab/tp, d]+dp
 *
 * A type is dtype, axes with their cuts, then +a for a sum pending over mesh
 * axis a and ^a for a maximum. An op line is
 *
 *   [pre|bwd] %results = mnemonic attributes %operands : types @path
 *
 * with the attributes in the order of ops.def. Printing is deterministic:
 * names come from the values, a number is added where two clash.
 */
#include "priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const nd_init_names[] = {
    [INIT_ZEROS] = "zeros",     [INIT_ONES] = "ones",
    [INIT_CONST] = "const",     [INIT_NORMAL] = "normal",
    [INIT_UNIFORM] = "uniform", [INIT_XAVIER] = "xavier",
    [INIT_KAIMING] = "kaiming", NULL,
};
const char *const nd_remat_names[] = {"none", "attention", "block",
                                      "auto", NULL};
const char *const nd_context_names[] = {
    [CONTEXT_AUTO] = "auto",       [CONTEXT_RING] = "ring",
    [CONTEXT_ALL_TO_ALL] = "all_to_all",
    [CONTEXT_GATHER] = "gather",   NULL,
};
const char *const nd_red_names[] = {"sum", "max", "min", NULL};
const char *const nd_scope_names[] = {
    [SCOPE_ALL] = "",      [SCOPE_PARAMS] = "params", [SCOPE_GRADS] = "grads",
    [SCOPE_OPT] = "optimizer", NULL,
};

/* ---- words, strings, numbers --------------------------------------------- */

static bool word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '.';
}

bool nd_is_word(const char *s)
{
    if (!*s)
        return false;
    for (; *s; s++)
        if (!word_char(*s))
            return false;
    return true;
}

static void put_string(nd_buf *b, const char *s)
{
    nd_put(b, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            nd_putf(b, "\\%c", c);
        else if (c < 32)
            nd_putf(b, "\\x%02x", c);
        else
            nd_putn(b, s, 1);
    }
    nd_put(b, "\"");
}

/* The fewest digits that read back as the same number. */
static void put_num(nd_buf *b, double x)
{
    char s[40];
    if (isnan(x) || isinf(x)) {
        nd_put(b, isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, x);
        if (strtod(s, NULL) == x)
            break;
    }
    nd_put(b, s);
}

/* ---- types --------------------------------------------------------------- */

static const char *mesh_name(const nd_module *m, int i)
{
    return i < m->mesh.n ? m->mesh.name[i] : "?";
}

/* One name bare, several in parentheses. */
static void put_cut(nd_buf *b, const nd_module *m, nd_cut c, const char *sep)
{
    nd_put(b, c.n > 1 ? "(" : "");
    for (int j = 0; j < c.n; j++)
        nd_putf(b, "%s%s", j ? sep : "", mesh_name(m, c.m[j]));
    nd_put(b, c.n > 1 ? ")" : "");
}

static void put_mask(nd_buf *b, const nd_module *m, uint32_t mask)
{
    bool many = mask & (mask - 1);
    const char *sep = many ? "(" : "";
    for (int i = 0; i < ND_MAX_MESH; i++)
        if (mask >> i & 1) {
            nd_putf(b, "%s%s", sep, mesh_name(m, i));
            sep = ", ";
        }
    nd_put(b, many ? ")" : "");
}

void nd_print_type(nd_buf *b, const nd_module *m, const nd_type *t)
{
    nd_put(b, nd_dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++) {
        nd_putf(b, "%s%s", i ? ", " : "[", t->axis[i]->name);
        if (t->cut[i].n) {
            nd_put(b, "/");
            put_cut(b, m, t->cut[i], ",");
        }
    }
    nd_put(b, t->rank ? "]" : "");
    for (int i = 0; i < ND_MAX_MESH; i++)
        if (t->sum >> i & 1)
            nd_putf(b, "+%s", mesh_name(m, i));
    for (int i = 0; i < ND_MAX_MESH; i++)
        if (t->max >> i & 1)
            nd_putf(b, "^%s", mesh_name(m, i));
}

/* ---- unique names -------------------------------------------------------- */

static const char *clean(nd_arena *a, const char *s)
{
    if (s && nd_is_word(s))
        return s;
    char *t = nd_strdup(a, s && *s ? s : "v");
    for (char *p = t; *p; p++)
        if (!word_char(*p))
            *p = '_';
    return t;
}

/* "x_3" -> "x": a clash is numbered from the base name. */
static const char *base_of(nd_arena *a, const char *s)
{
    size_t n = strlen(s), k = n;
    while (k > 0 && s[k - 1] >= '0' && s[k - 1] <= '9')
        k--;
    if (k < 2 || k == n || s[k - 1] != '_')
        return s;
    return nd_strndup(a, s, k - 1);
}

static void name_value(nd_table *taken, nd_table *last, nd_value *v)
{
    nd_arena *a = taken->arena;
    v->name = clean(a, v->name);
    if (nd_table_get(taken, v->name)) {
        const char *base = base_of(a, v->name);
        int *k = nd_table_get(last, base);
        if (!k) {
            k = ND_NEW(a, int);
            nd_table_put(last, base, k);
        }
        do
            v->name = nd_fmt(a, "%s_%d", base, ++*k);
        while (nd_table_get(taken, v->name));
    }
    nd_table_put(taken, v->name, v);
}

static void name_block(nd_table *taken, nd_table *last, nd_block *b)
{
    for (int i = 0; i < b->args.n; i++)
        name_value(taken, last, b->args.v[i]);
    for (int i = 0; i < b->ops.n; i++) {
        nd_op *op = b->ops.v[i];
        for (int k = 0; k < op->nout; k++)
            name_value(taken, last, op->out[k]);
        if (op->body)
            name_block(taken, last, op->body);
    }
}

/* ---- ops ----------------------------------------------------------------- */

static void put_values(nd_buf *b, nd_value *const *v, int n)
{
    for (int i = 0; i < n; i++)
        nd_putf(b, "%s%%%s", i ? ", " : "", v[i]->name);
}

static void put_axes(nd_buf *b, const nd_op *op)
{
    nd_put(b, " [");
    for (int i = 0; i < op->naxes; i++)
        nd_putf(b, "%s%s", i ? ", " : "", op->axes[i]->name);
    for (int i = 0; i < op->nto; i++)
        nd_putf(b, "%s%s", i ? ", " : " -> ", op->to[i]->name);
    nd_put(b, "]");
}

static void put_param(nd_buf *b, const nd_module *m, const nd_op *op)
{
    const nd_param *p = NULL;
    for (int i = 0; i < m->params.n; i++)
        if (m->params.v[i]->value == op->out[0])
            p = m->params.v[i];
    if (!p)
        return;
    nd_putf(b, " %s", nd_init_names[p->init]);
    if (p->init == INIT_CONST || p->init == INIT_NORMAL ||
        p->init == INIT_UNIFORM) {
        nd_put(b, "(");
        put_num(b, p->init_arg);
        nd_put(b, ")");
    }
    if (p->fan_in || p->fan_out)
        nd_putf(b, " fan(%lld, %lld)", (long long)p->fan_in,
                (long long)p->fan_out);
    nd_put(b, p->matrix ? " matrix" : "");
    nd_put(b, p->decay ? " decay" : "");
    nd_put(b, p->frozen ? " frozen" : "");
    for (int i = 0; i < p->nlayers; i++) {
        const nd_layer *l = &p->layer[i];
        nd_putf(b, "%s%s", i ? ", " : " layer(", l->axis->name);
        if (l->at != nd_layer_at(p, l->axis))
            nd_putf(b, " %d", l->at);
    }
    nd_put(b, p->nlayers ? ")" : "");
}

static void put_carried(nd_buf *b, const nd_op *op)
{
    nd_put(b, op->reverse ? " reverse" : "");
    if (op->ncarry) {
        nd_put(b, " carry(");
        put_values(b, op->in, op->ncarry);
        nd_put(b, ")");
    }
    if (op->nin > op->ncarry) {
        nd_put(b, " scan(");
        put_values(b, op->in + op->ncarry, op->nin - op->ncarry);
        nd_put(b, ")");
    }
}

static void put_attrs(nd_buf *b, const nd_module *m, const nd_op *op)
{
    for (const char *a = nd_ops[op->kind].attrs; *a; a++)
        switch (*a) {
        case 'a':
        case 'A':
            put_axes(b, op);
            break;
        case 'v':
            nd_put(b, op->reverse ? " reverse" : "");
            break;
        case 'n':
            nd_put(b, " ");
            put_num(b, op->num);
            break;
        case 's':
            nd_put(b, " ");
            put_string(b, op->name);
            break;
        case 'c':
            nd_put(b, " over ");
            put_mask(b, m, op->mesh);
            break;
        case 'r':
            nd_putf(b, " %s", nd_red_names[op->sub]);
            break;
        case 'x':
            nd_put(b, op->sub ? " exact" : "");
            break;
        }
    if (op->kind == OP_PARAM)
        put_param(b, m, op);
}

void nd_print_op(nd_buf *b, const nd_module *m, const nd_op *op)
{
    nd_put(b, op->phase == PH_PRE   ? "pre "
              : op->phase == PH_BWD ? "bwd "
              : op->phase == PH_WGT ? "wgt "
                                    : "");
    put_values(b, op->out, op->nout);
    nd_putf(b, "%s%s", op->nout ? " = " : "", nd_op_name(op));
    put_attrs(b, m, op);
    if (op->kind == OP_REPEAT) {
        put_carried(b, op);
    } else if (op->nin) {
        nd_put(b, " ");
        put_values(b, op->in, op->nin);
    }
    for (int i = 0; i < op->nout; i++) {
        nd_put(b, i ? ", " : " : ");
        nd_print_type(b, m, &op->out[i]->type);
    }
    if (op->path && *op->path) {
        nd_put(b, " @");
        if (nd_is_word(op->path))
            nd_put(b, op->path);
        else
            put_string(b, op->path);
    }
}

static void put_block(nd_buf *b, const nd_module *m, const nd_block *blk,
                      int depth)
{
    if (blk->parent) {
        nd_putf(b, "%*s(", depth * 2, "");
        for (int i = 0; i < blk->args.n; i++) {
            nd_putf(b, "%s%%%s: ", i ? ", " : "", blk->args.v[i]->name);
            nd_print_type(b, m, &blk->args.v[i]->type);
        }
        nd_put(b, ")\n");
    }
    for (int i = 0; i < blk->ops.n; i++) {
        const nd_op *op = blk->ops.v[i];
        nd_putf(b, "%*s", depth * 2, "");
        nd_print_op(b, m, op);
        nd_put(b, op->body ? " {\n" : "\n");
        if (op->body) {
            put_block(b, m, op->body, depth + 1);
            nd_putf(b, "%*s}\n", depth * 2, "");
        }
    }
    if (blk->parent) {
        nd_putf(b, "%*syield%s", depth * 2, "", blk->yields.n ? " " : "");
        put_values(b, blk->yields.v, blk->yields.n);
        nd_put(b, "\n");
    }
}

/* ---- what stands before and after the step ------------------------------- */

static void put_mesh(nd_buf *b, const nd_module *m)
{
    const nd_mesh *s = &m->mesh;
    if (s->n == 1 && s->size[0] == 1)
        return;
    for (int i = 0; i < s->n; i++)
        nd_putf(b, "%s%s = %d", i ? ", " : "mesh ", s->name[i], s->size[i]);
    nd_put(b, "\n");
    if (s->pipe >= 0)
        nd_putf(b, "pipe %s\n", s->name[s->pipe]);
}

static void put_routes(nd_buf *b, const nd_module *m)
{
    for (int i = 0; i < m->axes.n; i++) {
        const nd_route *r = m->axes.v[i]->route;
        if (!r)
            continue;
        nd_putf(b, "route %s to %s over %s : ", m->axes.v[i]->name,
                r->experts->name, mesh_name(m, r->over));
        nd_print_type(b, m, &r->rows);
        nd_put(b, "\n");
    }
}

static void put_rules(nd_buf *b, const nd_module *m)
{
    for (int i = 0; i < m->plan.rules.n; i++) {
        const nd_rule *r = &m->plan.rules.v[i];
        nd_put(b, "rule ");
        if (r->scope == SCOPE_NAME) {
            put_string(b, r->pattern);
            nd_put(b, " ");
        } else if (r->scope != SCOPE_ALL) {
            nd_putf(b, "%s ", nd_scope_names[r->scope]);
        }
        nd_putf(b, "%s -> ", r->axis->name);
        put_cut(b, m, r->mesh, ", ");
        nd_put(b, "\n");
    }
}

/* A file's name may have to be written with escapes. */
static void put_schedule(nd_buf *b, const nd_plan *p)
{
    if (p->schedule != SCHED_KIND_FILE) {
        nd_put(b, nd_schedule_name(b->arena, p));
        return;
    }
    nd_put(b, "file(");
    put_string(b, p->schedule_file);
    if (p->per_device)
        nd_putf(b, ", %d", p->per_device);
    nd_put(b, ")");
}

/* recompute auto 300000      recompute none again 0, 1 */
static void put_recompute(nd_buf *b, const nd_plan *p)
{
    const char *sep = " again ";
    nd_buf t = {.arena = b->arena};
    if (p->recompute == REMAT_AUTO && p->room > 0)
        nd_putf(&t, " %.17g", p->room);
    for (int i = 0; i < p->nagain; i++)
        if (p->again[i]) {
            nd_putf(&t, "%s%d", sep, i);
            sep = ", ";
        }
    if (p->recompute || t.n)
        nd_putf(b, "recompute %s%s\n", nd_remat_names[p->recompute],
                t.n ? t.s : "");
}

static void put_plan(nd_buf *b, const nd_module *m)
{
    const nd_plan *p = &m->plan;
    put_rules(b, m);
    if (p->piped.n) {
        for (int i = 0; i < p->piped.n; i++)
            nd_putf(b, "%s%s", i ? " + " : "pipeline ", p->piped.v[i]->name);
        if (m->mesh.pipe >= 0)
            nd_putf(b, " -> %s", m->mesh.name[m->mesh.pipe]);
        nd_put(b, ", schedule = ");
        put_schedule(b, p);
        nd_putf(b, ", microbatches = %d", p->microbatches);
        for (int i = 0; i < p->nstages_given; i++)
            nd_putf(b, "%s%d", i ? ", " : ", stages = [", p->stages_given[i]);
        nd_put(b, p->nstages_given ? "]" : "");
        if (p->memory > 0)
            nd_putf(b, ", memory = %.17g", p->memory);
        nd_put(b, "\n");
    } else if (p->microbatches > 1) {
        nd_putf(b, "microbatches %d\n", p->microbatches);
    }
    if (p->zero) {
        nd_putf(b, "zero %d over ", p->zero);
        put_mask(b, m, p->zero_mesh);
        nd_put(b, "\n");
    }
    for (int i = 0; i < p->context.n; i++) {
        const nd_context *x = &p->context.v[i];
        nd_putf(b, "context %s%s over %s\n", nd_context_names[x->form],
                x->zigzag ? " zigzag" : "", m->mesh.name[x->mesh]);
    }
    put_recompute(b, p);
}

static void put_header(nd_buf *b, const nd_module *m)
{
    nd_put(b, "module ");
    if (nd_is_word(m->name))
        nd_put(b, m->name);
    else
        put_string(b, m->name);
    nd_put(b, "\n");
    for (int i = 0; i < m->axes.n; i++) {
        const nd_axis *a = m->axes.v[i];
        nd_putf(b, "axis %s = %lld", a->name, (long long)a->size);
        nd_putf(b, "%s%s\n", a->like ? " like " : "",
                a->like ? a->like->name : "");
    }
    if (m->sample)
        nd_putf(b, "sample %s\n", m->sample->name);
    put_mesh(b, m);
    put_routes(b, m);
    put_plan(b, m);
    static const char *const bits[] = {"grads", "phases", "sharded"};
    const char *sep = "state ";
    for (int i = 0; i < 3; i++)
        if (m->state >> i & 1) {
            nd_putf(b, "%s%s", sep, bits[i]);
            sep = ", ";
        }
    nd_put(b, sep[0] == ',' ? "\n" : "");
}

static void put_ops(nd_buf *b, const char *what, nd_op *const *op, int n)
{
    if (!n)
        return;
    nd_putf(b, "#   %s:", what);
    for (int i = 0; i < n; i++) {
        nd_putf(b, "%s %s", i ? "," : "", nd_op_name(op[i]));
        if (op[i]->nout)
            nd_putf(b, " %%%s", op[i]->out[0]->name);
        else if (op[i]->name)
            nd_putf(b, " %s", op[i]->name);
    }
    nd_put(b, "\n");
}

static void put_crossings(nd_buf *b, const char *what, const nd_cross *c, int n)
{
    for (int i = 0; i < n; i++)
        nd_putf(b, "#   %s: %%%s as %%%s\n", what, c[i].from->name,
                c[i].to->name);
}

/* Comments: the stages follow from the graph and the plan, so a reader makes
 * them again. */
static void put_stage(nd_buf *b, const nd_module *m, int s)
{
    const nd_stage *t = &m->program->stage[s];
    nd_putf(b, "# stage %d: ", s);
    for (int i = 0; i < m->plan.piped.n; i++)
        nd_putf(b, "%s %d .. %d, ",
                m->plan.piped.n > 1 ? m->plan.piped.v[i]->name : "iterations",
                t->iters[i].lo, t->iters[i].hi);
    nd_putf(b, "%d slots", t->slots[SCHED_UNTIL_I]);
    if (t->wgt.n && t->slots[SCHED_UNTIL_W])
        nd_putf(b, ", %d until W, %d from I to W", t->slots[SCHED_UNTIL_W],
                t->slots[SCHED_I_TO_W]);
    nd_put(b, "\n");
    put_ops(b, "pre", t->pre.v, t->pre.n);
    put_ops(b, "fwd", t->fwd.v, t->fwd.n);
    put_ops(b, "bwd", t->bwd.v, t->bwd.n);
    put_ops(b, "wgt", t->wgt.v, t->wgt.n);
    put_crossings(b, "sends forward", t->send_fwd.v, t->send_fwd.n);
    put_crossings(b, "sends back", t->send_bwd.v, t->send_bwd.n);
    if (t->saved.n) {
        nd_put(b, "#   saved: ");
        put_values(b, t->saved.v, t->saved.n);
        nd_put(b, "\n");
    }
}

static void put_rows(nd_buf *b, const sched *x)
{
    for (int d = 0; x && d < x->ranks; d++) {
        nd_putf(b, "# device %d:", d);
        for (int i = 0; i < x->row[d].n; i++) {
            const sched_action *a = &x->row[d].v[i];
            nd_putf(b, " %d%s%d", a->stage, sched_op_name[a->op], a->mb);
        }
        nd_put(b, "\n");
    }
}

void nd_print(nd_buf *b, nd_module *m)
{
    nd_table taken = {.arena = m->ctx->arena, .strings = true};
    nd_table last = taken;
    name_block(&taken, &last, m->step);
    put_header(b, m);
    nd_put(b, "step {\n");
    put_block(b, m, m->step, 1);
    if (m->loss)
        nd_putf(b, "  loss %%%s\n", m->loss->name);
    nd_put(b, "}\n");
    for (int i = 0; i < m->params.n && m->state & ND_HAS_GRADS; i++) {
        nd_putf(b, "grad ");
        put_string(b, m->params.v[i]->name);
        nd_put(b, " : ");
        nd_print_type(b, m, &m->params.v[i]->grad);
        nd_put(b, "\n");
    }
    for (int i = 0; m->program && i < m->program->nstages; i++)
        put_stage(b, m, i);
    if (m->program)
        put_rows(b, m->program->sched);
}
