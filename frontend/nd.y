/* nd.y - the grammar; builds the tree in the arena, so nothing is freed.
 *
 * Postfix is uniform: name, e[...], e(...). The checker tells an index from a
 * call. Errors recover at the end of a statement, or after the block of a
 * declaration whose header is broken.
 */
%define api.pure full
%define api.location.type {nd_loc}
%define parse.error custom
%locations
%param {ast_parser *p}
%expect 0

%code requires {
#include "frontend.h"
#include <string.h>
}

%union {
    const char *text;
    ast_kind kind;
    ast_name name;
    ast_names *names;
    ast_expr *expr;
    ast_exprs *exprs;
    ast_item item;
    ast_items *items;
    ast_brk *brk;
    ast_arg arg;
    ast_args *args;
    ast_par par;
    ast_pars *pars;
    ast_stmt *stmt;
    ast_stmts *stmts;
    ast_rule rule;
    ast_rules *rules;
    ast_pent *pent;
    ast_pents *pents;
    ast_decl *decl;
}

%code {
int yylex(YYSTYPE *val, nd_loc *loc, ast_parser *p);
static void yyerror(nd_loc *at, ast_parser *p, const char *msg);

#define YYLLOC_DEFAULT(cur, rhs, n) \
    do { \
        if (n) { \
            (cur) = YYRHSLOC(rhs, 1); \
            if (YYRHSLOC(rhs, n).end > (cur).end) \
                (cur).end = YYRHSLOC(rhs, n).end; \
        } else { \
            (cur) = YYRHSLOC(rhs, 0); \
            (cur).begin = (cur).end; \
        } \
    } while (0)

#define A (p->ctx->arena)
#define LIST(T, dst) ((dst) = ND_NEW(A, T))
#define SPAN(from, to) ((nd_loc){(from).file, (from).begin, (to).end})

static ast_decl *decl(ast_parser *p, ast_item_kind k, nd_loc at, ast_name n)
{
    ast_decl *d = ND_NEW(A, ast_decl);
    d->kind = k;
    d->loc = at;
    d->name = n;
    return d;
}

static ast_stmt *stmt(ast_parser *p, ast_stmt_kind k, nd_loc at)
{
    ast_stmt *s = ND_NEW(A, ast_stmt);
    s->kind = k;
    s->loc = at;
    return s;
}

static ast_stmt *binding(ast_parser *p, ast_stmt_kind k, nd_loc at,
                         ast_names *names, ast_expr *e)
{
    ast_stmt *s = stmt(p, k, at);
    s->names = names;
    s->exprs = ND_NEW(A, ast_exprs);
    ND_PUSH(A, s->exprs, e);
    return s;
}

static ast_names *one_name(ast_parser *p, ast_name n)
{
    ast_names *v = ND_NEW(A, ast_names);
    ND_PUSH(A, v, n);
    return v;
}

static ast_pent *pent(ast_parser *p, ast_pent_kind k, nd_loc at)
{
    ast_pent *e = ND_NEW(A, ast_pent);
    e->kind = k;
    e->loc = at;
    return e;
}

static const ast_name no_name = {NULL, {0, 0, 0}};
}

%token <text> NAME "a name" NUMBER "a number" STRING "a string"
%token NL "end of line"
/* Soft words: also names. */
%token AXIS "axis" LET "let" USE "use" FN "fn" MODEL "model" TRAIN "train"
%token PLAN "plan" CLUSTER "cluster" MESH "mesh" SHARD "shard"
%token PIPELINE "pipeline" ZERO "zero" OVER "over" RECOMPUTE "recompute"
%token COMPRESS "compress" OUTPUT "output" CONTEXT "context"
%token MICROBATCHES "microbatches"
/* Reserved words. */
%token RETURN "return" REPEAT "repeat" PARAM "param" AS "as" LIKE "like"
%token AND "and" OR "or" NOT "not" INF "inf" TRUE "true" FALSE "false"
%token ARROW "->" DOTDOT ".." LE "<=" GE ">=" EQ "==" NE "!=" IDIV "//"

%type <name> name
%type <names> names side
%type <expr> expr or_e and_e not_e cmp sum term un pow post call prim cfg
%type <exprs> exprs
%type <kind> rel
%type <item> bitem
%type <items> group
%type <brk> brk brk_opt
%type <arg> arg kv ent
%type <args> args args_opt kvs ents
%type <par> par
%type <pars> pars pars_opt
%type <stmt> stmt
%type <stmts> stmts block
%type <rule> rule
%type <rules> rules
%type <pent> pent
%type <pents> pents
%type <decl> item

%%

file:
    %empty
  | file NL
  | file item NL             { ND_PUSH(A, &p->out->decls, $2); }
  | file error NL            { lex_skip_block(p->lex);
                               if (p->ctx->nerrors > p->ctx->error_limit)
                                   YYABORT;
                               yyerrok; }
  ;

item:
    AXIS name '=' expr       { $$ = decl(p, I_AXIS, @$, $2); $$->value = $4; }
  | LET name '=' expr        { $$ = decl(p, I_LET, @$, $2); $$->value = $4; }
  | USE name                 { $$ = decl(p, I_USE, @$, $2); }
  | USE STRING               { $$ = decl(p, I_USE, @$,
                                         (ast_name){$2, @2});
                               $$->quoted = true; }
  | FN name brk_opt '(' pars_opt ')' block
        { $$ = decl(p, I_FN, SPAN(@1, @6), $2); $$->brk = $3; $$->pars = $5;
          $$->body = $7; }
  | MODEL name '(' pars_opt ')' block
        { $$ = decl(p, I_MODEL, SPAN(@1, @5), $2); $$->pars = $4;
          $$->body = $6; }
  | TRAIN name '{' ents '}'  { $$ = decl(p, I_TRAIN, SPAN(@1, @2), $2);
                               $$->ents = $4; }
  | TRAIN '{' ents '}'       { $$ = decl(p, I_TRAIN, @1, no_name);
                               $$->ents = $3; }
  | PLAN name '{' pents '}'  { $$ = decl(p, I_PLAN, SPAN(@1, @2), $2);
                               $$->pents = $4; }
  | PLAN '{' pents '}'       { $$ = decl(p, I_PLAN, @1, no_name);
                               $$->pents = $3; }
  | CLUSTER name '{' ents '}' { $$ = decl(p, I_CLUSTER, SPAN(@1, @2), $2);
                               $$->ents = $4; }
  ;

brk_opt:
    %empty                   { $$ = NULL; }
  | brk
  ;

brk:
    '[' ']'                  { $$ = ND_NEW(A, ast_brk);
                               LIST(ast_items, $$->left); $$->loc = @$; }
  | '[' group ']'            { $$ = ND_NEW(A, ast_brk); $$->left = $2;
                               $$->loc = @$; }
  | '[' group ARROW group ']'
        { $$ = ND_NEW(A, ast_brk); $$->left = $2; $$->right = $4;
          $$->loc = @$; }
  ;

group:
    bitem                    { LIST(ast_items, $$); ND_PUSH(A, $$, $1); }
  | group ',' bitem          { $$ = $1; ND_PUSH(A, $$, $3); }
  ;

bitem:
    name                     { $$ = (ast_item){$1, NULL, NULL}; }
  | name ':' sum             { $$ = (ast_item){$1, $3, NULL}; }
  | name ':' sum DOTDOT sum  { $$ = (ast_item){$1, $3, $5}; }
  ;

pars_opt:
    %empty                   { LIST(ast_pars, $$); }
  | pars
  ;

pars:
    par                      { LIST(ast_pars, $$); ND_PUSH(A, $$, $1); }
  | pars ',' par             { $$ = $1; ND_PUSH(A, $$, $3); }
  ;

par:
    name                     { $$ = (ast_par){$1, no_name, NULL, NULL}; }
  | name '=' expr            { $$ = (ast_par){$1, no_name, NULL, $3}; }
  | name ':' name brk_opt    { $$ = (ast_par){$1, $3, $4, NULL}; }
  | name ':' name brk_opt '=' expr
                             { $$ = (ast_par){$1, $3, $4, $6}; }
  ;

block:
    '{' stmts '}'            { $$ = $2; }
  ;

stmts:
    %empty                   { LIST(ast_stmts, $$); }
  | stmts stmt NL            { $$ = $1; ND_PUSH(A, $$, $2); }
  | stmts NL
  | stmts error NL           { $$ = $1;
                               lex_skip_brace(p->lex);
                               if (p->ctx->nerrors > p->ctx->error_limit)
                                   YYABORT;
                               yyerrok; }
  ;

stmt:
    names '=' expr           { $$ = binding(p, S_ASSIGN, @$, $1, $3); }
  | LET name '=' expr        { $$ = binding(p, S_LET, @$, one_name(p, $2),
                                            $4); }
  | AXIS name '=' expr       { $$ = binding(p, S_AXIS, @$, one_name(p, $2),
                                            $4); }
  | RETURN exprs             { $$ = stmt(p, S_RETURN, @$); $$->exprs = $2; }
  | OUTPUT names             { $$ = stmt(p, S_OUTPUT, @$); $$->names = $2; }
  | REPEAT name block        { $$ = stmt(p, S_REPEAT, SPAN(@1, @2));
                               $$->names = one_name(p, $2);
                               $$->body = $3; }
  | REPEAT name AS name block
                             { $$ = stmt(p, S_REPEAT, SPAN(@1, @4));
                               $$->names = one_name(p, $2);
                               $$->as = $4; $$->body = $5; }
  ;

names:
    name                     { $$ = one_name(p, $1); }
  | names ',' name           { $$ = $1; ND_PUSH(A, $$, $3); }
  ;

exprs:
    expr                     { LIST(ast_exprs, $$); ND_PUSH(A, $$, $1); }
  | exprs ',' expr           { $$ = $1; ND_PUSH(A, $$, $3); }
  ;

expr:
    or_e
  | PARAM brk '~' name       { $$ = ast_param(p, @$, $2, $4, NULL); }
  | PARAM brk '~' name '(' args_opt ')'
                             { $$ = ast_param(p, @$, $2, $4, $6); }
  ;

or_e:
    and_e
  | or_e OR and_e            { $$ = ast_binary(p, E_OR, @$, @2, $1, $3); }
  ;

and_e:
    not_e
  | and_e AND not_e          { $$ = ast_binary(p, E_AND, @$, @2, $1, $3); }
  ;

not_e:
    cmp
  | NOT not_e                { $$ = ast_unary(p, E_NOT, @$, @1, $2); }
  ;

cmp:
    sum
  | sum rel sum              { $$ = ast_binary(p, $2, @$, @2, $1, $3); }
  ;

rel:
    '<'                      { $$ = E_LT; }
  | '>'                      { $$ = E_GT; }
  | LE                       { $$ = E_LE; }
  | GE                       { $$ = E_GE; }
  | EQ                       { $$ = E_EQ; }
  | NE                       { $$ = E_NE; }
  ;

sum:
    term
  | sum '+' term             { $$ = ast_binary(p, E_ADD, @$, @2, $1, $3); }
  | sum '-' term             { $$ = ast_binary(p, E_SUB, @$, @2, $1, $3); }
  ;

term:
    un
  | term '*' un              { $$ = ast_binary(p, E_MUL, @$, @2, $1, $3); }
  | term '/' un              { $$ = ast_binary(p, E_DIV, @$, @2, $1, $3); }
  | term IDIV un             { $$ = ast_binary(p, E_IDIV, @$, @2, $1, $3); }
  | term '%' un              { $$ = ast_binary(p, E_MOD, @$, @2, $1, $3); }
  ;

un:
    pow
  | '-' un                   { $$ = ast_unary(p, E_NEG, @$, @1, $2); }
  ;

pow:
    post
  | post '^' un              { $$ = ast_binary(p, E_POW, @$, @2, $1, $3); }
  ;

post:
    prim
  | post brk                 { $$ = ast_index(p, @$, $1, $2); }
  | call
  | call AS name             { $$ = $1; $$->as = $3; $$->loc = @$; }
  | call LIKE name           { $$ = $1; $$->like = $3; $$->loc = @$; }
  ;

call:
    post '(' args_opt ')'    { $$ = ast_call(p, @$, $1, $3); }
  ;

prim:
    name                     { $$ = ast_leaf(p, E_NAME, @1, $1.s); }
  | NUMBER                   { $$ = ast_number(p, @1, $1); }
  | STRING                   { $$ = ast_leaf(p, E_STR, @1, $1); }
  | INF                      { $$ = ast_leaf(p, E_INF, @1, NULL); }
  | TRUE                     { $$ = ast_leaf(p, E_TRUE, @1, NULL); }
  | FALSE                    { $$ = ast_leaf(p, E_FALSE, @1, NULL); }
  | '(' expr ')'             { $$ = $2; }
  ;

args_opt:
    %empty                   { LIST(ast_args, $$); }
  | args
  ;

args:
    arg                      { LIST(ast_args, $$); ND_PUSH(A, $$, $1); }
  | args ',' arg             { $$ = $1; ND_PUSH(A, $$, $3); }
  ;

arg:
    expr                     { $$ = (ast_arg){no_name, $1}; }
  | name '=' cfg             { $$ = (ast_arg){$1, $3}; }
  ;

cfg:
    expr
  | '[' args_opt ']'         { $$ = ast_config(p, E_LIST, @$, $2); }
  | '{' kvs nl_opt '}'       { $$ = ast_config(p, E_MAP, @$, $2); }
  ;

nl_opt:
    %empty
  | NL
  ;

ents:
    %empty                   { LIST(ast_args, $$); }
  | ents ent NL              { $$ = $1; ND_PUSH(A, $$, $2); }
  | ents NL
  | ents error NL            { $$ = $1;
                               if (p->ctx->nerrors > p->ctx->error_limit)
                                   YYABORT;
                               yyerrok; }
  ;

ent:
    name '=' cfg             { $$ = (ast_arg){$1, $3}; }
  ;

pents:
    %empty                   { LIST(ast_pents, $$); }
  | pents pent NL            { $$ = $1; ND_PUSH(A, $$, $2); }
  | pents NL
  | pents error NL           { $$ = $1;
                               if (p->ctx->nerrors > p->ctx->error_limit)
                                   YYABORT;
                               yyerrok; }
  ;

pent:
    MESH kvs                 { $$ = pent(p, P_MESH, @$); $$->kvs = $2; }
  | SHARD rules              { $$ = pent(p, P_SHARD, @$); $$->rules = $2; }
  | SHARD name rules         { $$ = pent(p, P_SHARD, @$); $$->scope = $2;
                               $$->rules = $3; }
  | SHARD STRING rules       { $$ = pent(p, P_SHARD, @$);
                               $$->scope = (ast_name){$2, @2};
                               $$->quoted = true; $$->rules = $3; }
  | PIPELINE rule            { $$ = pent(p, P_PIPELINE, @$);
                               $$->rules = ND_NEW(A, ast_rules);
                               ND_PUSH(A, $$->rules, $2); }
  | PIPELINE rule ',' kvs    { $$ = pent(p, P_PIPELINE, @$);
                               $$->rules = ND_NEW(A, ast_rules);
                               ND_PUSH(A, $$->rules, $2); $$->kvs = $4; }
  | MICROBATCHES sum         { $$ = pent(p, P_MICROBATCHES, @$);
                               $$->value = $2; }
  | ZERO NUMBER OVER names   { $$ = pent(p, P_ZERO, @$);
                               $$->value = ast_number(p, @2, $2);
                               $$->names = $4; }
  | RECOMPUTE exprs          { $$ = pent(p, P_RECOMPUTE, @$);
                               $$->exprs = $2; }
  | CONTEXT name OVER names  { $$ = pent(p, P_CONTEXT, @$);
                               $$->scope = $2; $$->names = $4; }
  | CONTEXT name NAME OVER names
                             { $$ = pent(p, P_CONTEXT, @$);
                               $$->scope = $2; $$->more = (ast_name){$3, @3};
                               $$->names = $5; }
  | COMPRESS name name OVER name
                             { $$ = pent(p, P_COMPRESS, @$);
                               $$->names = one_name(p, $2);
                               ND_PUSH(A, $$->names, $3);
                               ND_PUSH(A, $$->names, $5); }
  ;

kvs:
    kv                       { LIST(ast_args, $$); ND_PUSH(A, $$, $1); }
  | kvs ',' kv               { $$ = $1; ND_PUSH(A, $$, $3); }
  ;

kv:
    name '=' cfg             { $$ = (ast_arg){$1, $3}; }
  ;

rules:
    rule                     { LIST(ast_rules, $$); ND_PUSH(A, $$, $1); }
  | rules ',' rule           { $$ = $1; ND_PUSH(A, $$, $3); }
  ;

rule:
    side ARROW side          { $$ = (ast_rule){$1, $3, @$}; }
  ;

side:
    name                     { $$ = one_name(p, $1); }
  | '(' names ')'            { $$ = $2; }
  ;

name:
    NAME                     { $$ = (ast_name){$1, @1}; }
  | AXIS                     { $$ = (ast_name){"axis", @1}; }
  | LET                      { $$ = (ast_name){"let", @1}; }
  | USE                      { $$ = (ast_name){"use", @1}; }
  | FN                       { $$ = (ast_name){"fn", @1}; }
  | MODEL                    { $$ = (ast_name){"model", @1}; }
  | TRAIN                    { $$ = (ast_name){"train", @1}; }
  | PLAN                     { $$ = (ast_name){"plan", @1}; }
  | CLUSTER                  { $$ = (ast_name){"cluster", @1}; }
  | MESH                     { $$ = (ast_name){"mesh", @1}; }
  | SHARD                    { $$ = (ast_name){"shard", @1}; }
  | PIPELINE                 { $$ = (ast_name){"pipeline", @1}; }
  | ZERO                     { $$ = (ast_name){"zero", @1}; }
  | OVER                     { $$ = (ast_name){"over", @1}; }
  | RECOMPUTE                { $$ = (ast_name){"recompute", @1}; }
  | COMPRESS                 { $$ = (ast_name){"compress", @1}; }
  | OUTPUT                   { $$ = (ast_name){"output", @1}; }
  | CONTEXT                  { $$ = (ast_name){"context", @1}; }
  | MICROBATCHES             { $$ = (ast_name){"microbatches", @1}; }
  ;

%%

static void yyerror(nd_loc *at, ast_parser *p, const char *msg)
{
    if (!strcmp(msg, "memory exhausted"))
        msg = "this nests too deeply";
    nd_error(p->ctx, *at, "%s", msg);
}

static bool soft(yysymbol_kind_t s)
{
    return s >= YYSYMBOL_AXIS && s <= YYSYMBOL_MICROBATCHES;
}

static const char *shown(ast_parser *p, yysymbol_kind_t s)
{
    const char *n = yysymbol_name(s);
    if (s == YYSYMBOL_YYEOF)
        return "end of file";
    if (s >= YYSYMBOL_NAME && s <= YYSYMBOL_NL)
        return n;
    if (n[0] == '\'')
        return nd_fmt(A, "`%c`", n[1]);
    return nd_fmt(A, "`%s`", n);
}

/* The token as it stands in the file. A `}` or the end of the file ends an
 * open statement, and comes with an end of line that nobody wrote. */
static const char *found(ast_parser *p, yysymbol_kind_t got, nd_loc at)
{
    const nd_file *f = &p->ctx->files.v[at.file - 1];
    int n = at.end - at.begin > 40 ? 40 : (int)(at.end - at.begin);
    if (got >= YYSYMBOL_NAME && got <= YYSYMBOL_STRING)
        return nd_fmt(A, "`%.*s`", n, f->text + at.begin);
    if (got == YYSYMBOL_NL && at.begin >= f->len)
        return "end of file";
    if (got == YYSYMBOL_NL && f->text[at.begin] == '}')
        return "`}`";
    return shown(p, got);
}

/* "; did you mean `model`?" for a name where only words may stand. */
static const char *near_word(ast_parser *p, const char *name,
                             const yysymbol_kind_t *want, int n)
{
    const char *word[64];
    int m = 0;
    for (int i = 0; i < n && m < 64; i++)
        if (want[i] >= YYSYMBOL_AXIS && want[i] <= YYSYMBOL_FALSE)
            word[m++] = yysymbol_name(want[i]);
    const char *near = nd_nearest(name, word, m);
    return near ? nd_fmt(A, "; did you mean `%s`?", near) : "";
}

static bool compares(yysymbol_kind_t got)
{
    const char *n = yysymbol_name(got);
    return (got >= YYSYMBOL_LE && got <= YYSYMBOL_NE) ||
           !strcmp(n, "'<'") || !strcmp(n, "'>'");
}

/* What the mistake probably is, or "". */
static const char *advice(ast_parser *p, yysymbol_kind_t got, nd_loc at,
                          const yysymbol_kind_t *want, int n, bool names)
{
    const char *text = p->ctx->files.v[at.file - 1].text + at.begin;
    bool ends = false;               /* may the statement end here? */
    nd_loc open;
    for (int i = 0; i < n; i++)
        ends |= want[i] == YYSYMBOL_NL;
    if (ends && (got == YYSYMBOL_AS || got == YYSYMBOL_LIKE))
        return nd_fmt(A, "; `%s` follows a call", yysymbol_name(got));
    if (ends && compares(got))
        return "; comparisons do not chain: 0 < x and x < 1";
    if (got == YYSYMBOL_NL && n == 1 && yysymbol_name(want[0])[1] == '{')
        return " on the same line";
    if (got == YYSYMBOL_NAME && !names)
        return near_word(p, nd_strndup(A, text, at.end - at.begin), want, n);
    if (names && (got == YYSYMBOL_NUMBER || *text == ':') &&
        lex_open_bracket(p->lex, &open) == '[')
        return "; axes have names: x[a: 0], sum[a](x)";
    return "";
}

/* "unexpected X, expected Y or Z"; the list only when it is short enough to
 * help. */
static int yyreport_syntax_error(const yypcontext_t *ctx, ast_parser *p)
{
    enum { ALL = 64, FEW = 4 };
    yysymbol_kind_t want[ALL], got = yypcontext_token(ctx);
    int n = yypcontext_expected_tokens(ctx, want, ALL), m = 0;
    bool names = false, values = false;
    nd_loc at = *yypcontext_location(ctx), open;
    nd_buf b = {A, NULL, 0, 0};
    for (int i = 0; i < n; i++) {
        names |= want[i] == YYSYMBOL_NAME;
        values |= want[i] == YYSYMBOL_NUMBER;
    }
    for (int i = 0; i < n; i++)
        if (!(names && soft(want[i])))
            want[m++] = want[i];
    if (got == YYSYMBOL_PARAM && values)
        nd_put(&b, "`param` stands alone on the right of `name =`");
    else if (got >= YYSYMBOL_RETURN && got <= YYSYMBOL_FALSE && names)
        nd_putf(&b, "`%s` is a reserved word and cannot stand here",
                yysymbol_name(got));
    else
        nd_putf(&b, "unexpected %s", found(p, got, at));
    if (m && m <= FEW)
        for (int i = 0; i < m; i++)
            nd_putf(&b, "%s%s", i == 0 ? ", expected "
                                : i + 1 < m ? ", " : " or ",
                    shown(p, want[i]));
    nd_put(&b, advice(p, got, at, want, m, names));
    nd_error(p->ctx, at, "%s", b.s);
    p->lex->recovering = got != YYSYMBOL_NL;
    if (lex_unclosed(p->lex, at, &open) ||
        (got == YYSYMBOL_YYEOF && lex_open_bracket(p->lex, &open)))
        nd_note(p->ctx, open, "`%c` is opened here",
                p->ctx->files.v[open.file - 1].text[open.begin]);
    return 0;
}
