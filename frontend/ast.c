/* ast.c - making the syntax tree and printing it.
 *
 *   x = wte[vocab: tokens] + wpe   ->   (= x (+ wte[vocab: tokens] wpe))
 *
 * Nesting is bounded here, so that every later recursion over a tree is.
 */
#include "frontend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int depth_of(const ast_expr *e)
{
    return e ? e->depth : 0;
}

static ast_expr *make(ast_parser *p, ast_kind k, nd_loc loc, int below)
{
    ast_expr *e = ND_NEW(p->ctx->arena, ast_expr);
    e->kind = k;
    e->loc = e->oploc = loc;
    e->depth = below + 1;
    if (e->depth == AST_MAX_DEPTH && !p->lex->stopped) {
        nd_error(p->ctx, loc, "this expression nests deeper than %d",
                 AST_MAX_DEPTH);
        p->lex->stopped = true;
    }
    return e;
}

/* A tree that is too deep loses its operands; the error is out already. */
static bool too_deep(const ast_expr *e)
{
    return e->depth >= AST_MAX_DEPTH;
}

ast_expr *ast_leaf(ast_parser *p, ast_kind k, nd_loc loc, const char *s)
{
    ast_expr *e = make(p, k, loc, 0);
    e->str = s;
    return e;
}

ast_expr *ast_number(ast_parser *p, nd_loc loc, const char *text)
{
    ast_expr *e = make(p, E_NUM, loc, 0);
    char *end;
    e->str = text;
    e->num = strtod(text, &end);
    e->integer = !memchr(text, '.', (size_t)(end - text)) &&
                 !memchr(text, 'e', (size_t)(end - text)) &&
                 !memchr(text, 'E', (size_t)(end - text));
    while (*end == ' ' || *end == '\t')
        end++;
    if (*end) {
        const char *unit = strchr("KMGT", *end);
        int power = unit ? (int)(unit - "KMGT") + 1 : 0;
        for (int i = 0; i < power; i++)
            e->num *= end[1] == 'i' ? 1024 : 1000;
    }
    if (e->integer && e->num >= 9.2e18) {
        nd_error(p->ctx, loc, "the number %.30s is too large", text);
        e->num = 1;
    }
    if (e->integer)
        e->inum = *end ? (int64_t)e->num : strtoll(text, NULL, 10);
    return e;
}

ast_expr *ast_unary(ast_parser *p, ast_kind k, nd_loc loc, nd_loc op,
                    ast_expr *a)
{
    ast_expr *e = make(p, k, loc, depth_of(a));
    if (too_deep(e))
        return a;
    e->oploc = op;
    e->a = a;
    return e;
}

ast_expr *ast_binary(ast_parser *p, ast_kind k, nd_loc loc, nd_loc op,
                     ast_expr *a, ast_expr *b)
{
    int below = depth_of(a) > depth_of(b) ? depth_of(a) : depth_of(b);
    ast_expr *e = make(p, k, loc, below);
    if (too_deep(e))
        return depth_of(a) > depth_of(b) ? b : a;
    e->oploc = op;
    e->a = a;
    e->b = b;
    return e;
}

static int brk_depth(const ast_brk *b)
{
    int d = 0;
    for (int side = 0; b && side < 2; side++) {
        const ast_items *v = side ? b->right : b->left;
        for (int i = 0; v && i < v->n; i++) {
            int x = depth_of(v->v[i].lo), y = depth_of(v->v[i].hi);
            d = x > d ? x : d;
            d = y > d ? y : d;
        }
    }
    return d;
}

static int args_depth(const ast_args *args)
{
    int d = 0;
    for (int i = 0; args && i < args->n; i++)
        if (depth_of(args->v[i].e) > d)
            d = depth_of(args->v[i].e);
    return d;
}

ast_expr *ast_index(ast_parser *p, nd_loc loc, ast_expr *a, ast_brk *b)
{
    int below = brk_depth(b) > a->depth ? brk_depth(b) : a->depth;
    ast_expr *e = make(p, E_INDEX, loc, below);
    if (too_deep(e))
        return ast_leaf(p, E_INF, loc, NULL);
    e->oploc = a->loc;
    e->a = a;
    e->brk = b;
    return e;
}

ast_expr *ast_call(ast_parser *p, nd_loc loc, ast_expr *f, ast_args *args)
{
    int below = args_depth(args) > f->depth ? args_depth(args) : f->depth;
    ast_expr *e = make(p, E_CALL, loc, below);
    if (too_deep(e))
        return ast_leaf(p, E_INF, loc, NULL);
    e->oploc = f->loc;
    e->a = f;
    e->args = args;
    return e;
}

ast_expr *ast_config(ast_parser *p, ast_kind k, nd_loc loc, ast_args *args)
{
    ast_expr *e = make(p, k, loc, args_depth(args));
    if (too_deep(e))
        return ast_leaf(p, E_INF, loc, NULL);
    e->args = args;
    return e;
}

ast_expr *ast_param(ast_parser *p, nd_loc loc, ast_brk *b, ast_name init,
                    ast_args *args)
{
    ast_expr *e = make(p, E_PARAM, loc, args_depth(args));
    if (too_deep(e))
        return ast_leaf(p, E_INF, loc, NULL);
    e->oploc = init.loc;
    e->brk = b;
    e->str = init.s;
    e->args = args;
    return e;
}

const char *ast_op_text(ast_kind k)
{
    static const char *const text[] = {
        [E_NEG] = "-",  [E_NOT] = "not", [E_ADD] = "+",  [E_SUB] = "-",
        [E_MUL] = "*",  [E_DIV] = "/",   [E_IDIV] = "//", [E_MOD] = "%",
        [E_POW] = "^",  [E_LT] = "<",    [E_LE] = "<=",  [E_GT] = ">",
        [E_GE] = ">=",  [E_EQ] = "==",   [E_NE] = "!=",  [E_AND] = "and",
        [E_OR] = "or",
    };
    return k <= E_OR ? text[k] : NULL;
}

/* ---- searching ----------------------------------------------------------- */

static bool reads(const ast_expr *e, const char *name);

static bool brk_reads(const ast_brk *b, const char *name)
{
    for (int side = 0; b && side < 2; side++) {
        const ast_items *v = side ? b->right : b->left;
        for (int i = 0; v && i < v->n; i++)
            if (reads(v->v[i].lo, name) || reads(v->v[i].hi, name))
                return true;
    }
    return false;
}

static bool reads(const ast_expr *e, const char *name)
{
    if (!e)
        return false;
    if (e->kind == E_NAME)
        return !strcmp(e->str, name);
    for (int i = 0; e->args && i < e->args->n; i++)
        if (reads(e->args->v[i].e, name))
            return true;
    return brk_reads(e->brk, name) || reads(e->a, name) || reads(e->b, name);
}

bool ast_reads(const ast_stmts *body, const char *name)
{
    for (int i = 0; i < body->n; i++) {
        const ast_stmt *s = body->v[i];
        for (int k = 0; s->exprs && k < s->exprs->n; k++)
            if (reads(s->exprs->v[k], name))
                return true;
        for (int k = 0; s->kind == S_OUTPUT && k < s->names->n; k++)
            if (!strcmp(s->names->v[k].s, name))
                return true;
        if (s->body && ast_reads(s->body, name))
            return true;
    }
    return false;
}

/* ---- printing ------------------------------------------------------------ */

static void print_expr(nd_buf *b, const ast_expr *e);

static void print_items(nd_buf *b, const ast_items *v)
{
    for (int i = 0; i < v->n; i++) {
        nd_putf(b, "%s%s", i ? ", " : "", v->v[i].name.s);
        if (v->v[i].lo) {
            nd_put(b, ": ");
            print_expr(b, v->v[i].lo);
        }
        if (v->v[i].hi) {
            nd_put(b, "..");
            print_expr(b, v->v[i].hi);
        }
    }
}

static void print_brk(nd_buf *b, const ast_brk *k)
{
    if (!k)
        return;
    nd_put(b, "[");
    print_items(b, k->left);
    if (k->right) {
        nd_put(b, " -> ");
        print_items(b, k->right);
    }
    nd_put(b, "]");
}

static void print_args(nd_buf *b, const ast_args *v, const char *open,
                       const char *close)
{
    nd_put(b, open);
    for (int i = 0; i < v->n; i++) {
        if (i)
            nd_put(b, ", ");
        if (v->v[i].name.s)
            nd_putf(b, "%s = ", v->v[i].name.s);
        print_expr(b, v->v[i].e);
    }
    nd_put(b, close);
}

static void print_expr(nd_buf *b, const ast_expr *e)
{
    switch (e->kind) {
    case E_NAME:
    case E_NUM:
        nd_put(b, e->str);
        break;
    case E_STR:
        nd_putf(b, "\"%s\"", e->str);
        break;
    case E_INF:
        nd_put(b, "inf");
        break;
    case E_TRUE:
    case E_FALSE:
        nd_put(b, e->kind == E_TRUE ? "true" : "false");
        break;
    case E_INDEX:
        print_expr(b, e->a);
        print_brk(b, e->brk);
        break;
    case E_CALL:
        print_expr(b, e->a);
        print_args(b, e->args, "(", ")");
        if (e->as.s)
            nd_putf(b, " as %s", e->as.s);
        if (e->like.s)
            nd_putf(b, " like %s", e->like.s);
        break;
    case E_PARAM:
        nd_put(b, "param ");
        print_brk(b, e->brk);
        nd_putf(b, " ~ %s", e->str);
        if (e->args)
            print_args(b, e->args, "(", ")");
        break;
    case E_LIST:
        print_args(b, e->args, "[", "]");
        break;
    case E_MAP:
        print_args(b, e->args, "{", "}");
        break;
    default:
        nd_putf(b, "(%s ", ast_op_text(e->kind));
        print_expr(b, e->a);
        if (e->b) {
            nd_put(b, " ");
            print_expr(b, e->b);
        }
        nd_put(b, ")");
    }
}

const char *ast_text(nd_arena *a, const ast_expr *e)
{
    nd_buf b = {a, NULL, 0, 0};
    print_expr(&b, e);
    return b.s;
}

static void print_names(nd_buf *b, const ast_names *v)
{
    for (int i = 0; i < v->n; i++)
        nd_putf(b, "%s%s", i ? ", " : "", v->v[i].s);
}

static void print_exprs(nd_buf *b, const ast_exprs *v)
{
    for (int i = 0; i < v->n; i++) {
        nd_put(b, i ? ", " : "");
        print_expr(b, v->v[i]);
    }
}

static void print_stmts(nd_buf *b, const ast_stmts *v, int indent)
{
    for (int i = 0; i < v->n; i++) {
        const ast_stmt *s = v->v[i];
        nd_putf(b, "%*s(", indent, "");
        switch (s->kind) {
        case S_ASSIGN:
        case S_AXIS:
        case S_LET:
            nd_put(b, s->kind == S_AXIS ? "axis "
                      : s->kind == S_LET ? "let " : "= ");
            print_names(b, s->names);
            nd_put(b, " ");
            print_exprs(b, s->exprs);
            break;
        case S_RETURN:
            nd_put(b, "return ");
            print_exprs(b, s->exprs);
            break;
        case S_OUTPUT:
            nd_put(b, "output ");
            print_names(b, s->names);
            break;
        case S_REPEAT:
            nd_putf(b, "repeat %s", s->names->v[0].s);
            if (s->as.s)
                nd_putf(b, " as %s", s->as.s);
            nd_put(b, "\n");
            print_stmts(b, s->body, indent + 2);
            nd_putf(b, "%*s", indent, "");
            break;
        }
        nd_put(b, ")\n");
    }
}

static void print_pars(nd_buf *b, const ast_pars *v)
{
    nd_put(b, "(");
    for (int i = 0; i < v->n; i++) {
        nd_putf(b, "%s%s", i ? ", " : "", v->v[i].name.s);
        if (v->v[i].type.s)
            nd_putf(b, ": %s", v->v[i].type.s);
        print_brk(b, v->v[i].brk);
        if (v->v[i].value) {
            nd_put(b, " = ");
            print_expr(b, v->v[i].value);
        }
    }
    nd_put(b, ")");
}

static void print_rules(nd_buf *b, const ast_rules *v)
{
    for (int i = 0; i < v->n; i++) {
        nd_put(b, i ? ", (" : "(");
        print_names(b, v->v[i].from);
        nd_put(b, ") -> (");
        print_names(b, v->v[i].to);
        nd_put(b, ")");
    }
}

static void print_pent(nd_buf *b, const ast_pent *e)
{
    static const char *const word[] = {
        "mesh", "shard", "pipeline", "zero", "recompute", "compress",
        "context", "microbatches",
    };
    nd_putf(b, "  (%s", word[e->kind]);
    if (e->scope.s)
        nd_putf(b, e->quoted ? " \"%s\"" : " %s", e->scope.s);
    if (e->more.s)
        nd_putf(b, " %s", e->more.s);
    if (e->value) {
        nd_put(b, " ");
        print_expr(b, e->value);
    }
    if (e->names) {
        nd_put(b, " ");
        print_names(b, e->names);
    }
    if (e->rules) {
        nd_put(b, " ");
        print_rules(b, e->rules);
    }
    if (e->exprs) {
        nd_put(b, " ");
        print_exprs(b, e->exprs);
    }
    if (e->kvs)
        print_args(b, e->kvs, " ", "");
    nd_put(b, ")\n");
}

void ast_print(nd_buf *b, const ast_file *f)
{
    static const char *const word[] = {
        "axis", "let", "use", "fn", "model", "train", "plan", "cluster",
    };
    for (int i = 0; i < f->decls.n; i++) {
        const ast_decl *d = f->decls.v[i];
        nd_putf(b, "(%s", word[d->kind]);
        if (d->name.s)
            nd_putf(b, d->quoted ? " \"%s\"" : " %s", d->name.s);
        print_brk(b, d->brk);
        if (d->pars)
            print_pars(b, d->pars);
        if (d->value) {
            nd_put(b, " ");
            print_expr(b, d->value);
        }
        if (d->body || d->ents || d->pents)
            nd_put(b, "\n");
        if (d->body)
            print_stmts(b, d->body, 2);
        for (int k = 0; d->ents && k < d->ents->n; k++) {
            nd_putf(b, "  (%s = ", d->ents->v[k].name.s);
            print_expr(b, d->ents->v[k].e);
            nd_put(b, ")\n");
        }
        for (int k = 0; d->pents && k < d->pents->n; k++)
            print_pent(b, d->pents->v[k]);
        nd_put(b, ")\n");
    }
}
