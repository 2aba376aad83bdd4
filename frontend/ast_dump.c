/* ast_dump.c - the syntax tree, one node a line with where it begins.
 *
 *   x = wte[vocab: t]   ->   5:3     assign
 *                            5:3       name x
 *                            5:7       index
 *                            5:7         name wte
 *                            5:10        axes
 *                            5:11          item vocab
 *                            5:18            name t
 */
#include "frontend.h"

typedef struct dump {
    nd_buf *b;
    nd_arena *a;
    const nd_file *src;
    int depth;
    uint32_t at;                     /* the place counted so far */
    int line, col;
} dump;

/* Nodes come in the order of the text: each place is counted from the one
 * before it, so that a large file takes no longer per node. */
static void count_to(dump *d, uint32_t to)
{
    if (to < d->at || !d->line) {
        d->at = 0;
        d->line = d->col = 1;
    }
    for (; d->at < to; d->at++) {
        unsigned char ch = (unsigned char)d->src->text[d->at];
        d->col = ch == '\n' ? 1 : d->col + ((ch & 0xc0) != 0x80);
        d->line += ch == '\n';
    }
}

/* One line; what follows until the matching `d->depth--` is inside it. */
static void open_node(dump *d, nd_loc at, const char *what, const char *text)
{
    char place[32];
    count_to(d, at.begin);
    snprintf(place, sizeof place, "%d:%d", d->line, d->col);
    nd_putf(d->b, "%-8s%*s%s%s%s\n", place, 2 * d->depth, "", what,
            text ? " " : "", text ? text : "");
    d->depth++;
}

static void leaf(dump *d, nd_loc at, const char *what, const char *text)
{
    open_node(d, at, what, text);
    d->depth--;
}

static void name(dump *d, const char *what, ast_name n)
{
    if (n.s)
        leaf(d, n.loc, what, n.s);
}

static void names(dump *d, const char *what, const ast_names *v)
{
    for (int i = 0; v && i < v->n; i++)
        name(d, what, v->v[i]);
}

static const char *quoted(dump *d, const char *s)
{
    return nd_fmt(d->a, "\"%s\"", s);
}

static void expr(dump *d, const ast_expr *e);

static void items(dump *d, const char *what, const ast_items *v)
{
    for (int i = 0; v && i < v->n; i++) {
        open_node(d, v->v[i].name.loc, what, v->v[i].name.s);
        expr(d, v->v[i].lo);
        expr(d, v->v[i].hi);
        d->depth--;
    }
}

static void bracket(dump *d, const ast_brk *k)
{
    if (!k)
        return;
    open_node(d, k->loc, "axes", NULL);
    items(d, "item", k->left);
    items(d, "-> item", k->right);
    d->depth--;
}

static void args(dump *d, const char *what, const ast_args *v)
{
    for (int i = 0; v && i < v->n; i++) {
        if (v->v[i].name.s)
            open_node(d, v->v[i].name.loc, what, v->v[i].name.s);
        expr(d, v->v[i].e);
        d->depth -= v->v[i].name.s != NULL;
    }
}

static void open_expr(dump *d, const ast_expr *e)
{
    const char *s = e->str;
    switch (e->kind) {
    case E_NAME:
        open_node(d, e->loc, "name", s);
        break;
    case E_NUM:
        open_node(d, e->loc, "number", s);
        break;
    case E_STR:
        open_node(d, e->loc, "string", quoted(d, s));
        break;
    case E_INF:
        open_node(d, e->loc, "inf", NULL);
        break;
    case E_TRUE:
    case E_FALSE:
        open_node(d, e->loc, e->kind == E_TRUE ? "true" : "false", NULL);
        break;
    case E_INDEX:
        open_node(d, e->loc, "index", NULL);
        break;
    case E_CALL:
        open_node(d, e->loc, "call", NULL);
        break;
    case E_PARAM:
        open_node(d, e->loc, "param ~", s);
        break;
    case E_LIST:
        open_node(d, e->loc, "list", NULL);
        break;
    case E_MAP:
        open_node(d, e->loc, "map", NULL);
        break;
    default:
        open_node(d, e->loc, ast_op_text(e->kind), NULL);
    }
}

static void expr(dump *d, const ast_expr *e)
{
    if (!e)
        return;
    open_expr(d, e);
    expr(d, e->a);
    expr(d, e->b);
    bracket(d, e->brk);
    args(d, "argument", e->args);
    name(d, "as", e->as);
    name(d, "like", e->like);
    d->depth--;
}

static void exprs(dump *d, const ast_exprs *v)
{
    for (int i = 0; v && i < v->n; i++)
        expr(d, v->v[i]);
}

static void stmts(dump *d, const ast_stmts *v)
{
    static const char *const word[] = {
        [S_ASSIGN] = "assign", [S_RETURN] = "return", [S_OUTPUT] = "output",
        [S_REPEAT] = "repeat", [S_AXIS] = "axis", [S_LET] = "let",
    };
    for (int i = 0; v && i < v->n; i++) {
        const ast_stmt *s = v->v[i];
        open_node(d, s->loc, word[s->kind], NULL);
        names(d, "name", s->names);
        exprs(d, s->exprs);
        name(d, "as", s->as);
        stmts(d, s->body);
        d->depth--;
    }
}

static void pars(dump *d, const ast_pars *v)
{
    for (int i = 0; v && i < v->n; i++) {
        open_node(d, v->v[i].name.loc, "parameter", v->v[i].name.s);
        name(d, "type", v->v[i].type);
        bracket(d, v->v[i].brk);
        expr(d, v->v[i].value);
        d->depth--;
    }
}

static void entries(dump *d, const ast_pents *v)
{
    static const char *const word[] = {
        [P_MESH] = "mesh", [P_SHARD] = "shard", [P_PIPELINE] = "pipeline",
        [P_ZERO] = "zero", [P_RECOMPUTE] = "recompute",
        [P_COMPRESS] = "compress", [P_CONTEXT] = "context",
        [P_MICROBATCHES] = "microbatches",
    };
    for (int i = 0; v && i < v->n; i++) {
        const ast_pent *e = v->v[i];
        open_node(d, e->loc, word[e->kind], NULL);
        if (e->scope.s)
            leaf(d, e->scope.loc, e->kind == P_CONTEXT ? "form" : "scope",
                 e->quoted ? quoted(d, e->scope.s) : e->scope.s);
        if (e->more.s)
            leaf(d, e->more.loc, "form", e->more.s);
        expr(d, e->value);
        names(d, "name", e->names);
        for (int k = 0; e->rules && k < e->rules->n; k++) {
            open_node(d, e->rules->v[k].loc, "rule", NULL);
            names(d, "name", e->rules->v[k].from);
            names(d, "-> name", e->rules->v[k].to);
            d->depth--;
        }
        exprs(d, e->exprs);
        args(d, "entry", e->kvs);
        d->depth--;
    }
}

void ast_dump(nd_ctx *c, nd_buf *b, const ast_file *f)
{
    static const char *const word[] = {
        [I_AXIS] = "axis", [I_LET] = "let", [I_USE] = "use", [I_FN] = "fn",
        [I_MODEL] = "model", [I_TRAIN] = "train", [I_PLAN] = "plan",
        [I_CLUSTER] = "cluster",
    };
    dump d = {.b = b, .a = c->arena, .src = &c->files.v[f->file - 1]};
    for (int i = 0; i < f->decls.n; i++) {
        const ast_decl *v = f->decls.v[i];
        open_node(&d, v->loc, word[v->kind],
                  v->quoted ? quoted(&d, v->name.s) : v->name.s);
        bracket(&d, v->brk);
        pars(&d, v->pars);
        expr(&d, v->value);
        stmts(&d, v->body);
        args(&d, "entry", v->ents);
        entries(&d, v->pents);
        d.depth--;
    }
}
