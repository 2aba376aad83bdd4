/* lex.c - which newlines end a statement, and where brackets nest.
 *
 * The parser sees one NL token per statement. A newline counts unless it is
 * inside ( or [, follows another newline, or follows a token that cannot end
 * a statement: , = { ~ : -> and the binary operators. A `}` and the end of the
 * file end an open statement.
 */
#include "nd_parse.h"

#include <string.h>

int lex_raw(YYSTYPE *val, nd_loc *loc, lexer *lx);   /* nd.l */
int yylex(YYSTYPE *val, nd_loc *loc, ast_parser *p);

static const struct {
    const char *text;
    int token;
} keywords[] = {
    {"axis", AXIS}, {"let", LET}, {"use", USE}, {"fn", FN}, {"model", MODEL},
    {"train", TRAIN}, {"plan", PLAN}, {"cluster", CLUSTER}, {"mesh", MESH},
    {"shard", SHARD}, {"pipeline", PIPELINE}, {"zero", ZERO}, {"over", OVER},
    {"recompute", RECOMPUTE}, {"compress", COMPRESS}, {"output", OUTPUT},
    {"context", CONTEXT}, {"microbatches", MICROBATCHES},
    {"return", RETURN}, {"repeat", REPEAT},
    {"param", PARAM}, {"as", AS}, {"like", LIKE}, {"and", AND}, {"or", OR},
    {"not", NOT}, {"inf", INF}, {"true", TRUE}, {"false", FALSE},
};

int lex_keyword(const char *s)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (!strcmp(keywords[i].text, s))
            return keywords[i].token;
    return NAME;
}

const char *lex_keyword_text(int i)
{
    int n = sizeof keywords / sizeof *keywords;
    return i >= 0 && i < n ? keywords[i].text : NULL;
}

bool lex_continues(int last)
{
    switch (last) {
    case ',': case '=': case '{': case '~': case ':': case '+': case '-':
    case '*': case '/': case '%': case '^': case '<': case '>':
    case ARROW: case LE: case GE: case EQ: case NE: case IDIV: case AND:
    case OR: case NOT: case AS: case LIKE: case NL:
        return true;
    default:
        return false;
    }
}

static void track(lexer *lx, int t, nd_loc at)
{
    if (t == '(' || t == '[' || t == '{') {
        if (lx->nest == LEX_MAX_NEST) {
            nd_error(lx->ctx, at, "brackets nest deeper than %d",
                     LEX_MAX_NEST);
            lx->stopped = true;
            return;
        }
        lx->open_at[lx->nest] = at;
        lx->open[lx->nest++] = (char)t;
    } else if (t == ')' || t == ']') {
        if (lx->nest && lx->open[lx->nest - 1] != '{')
            lx->nest--;
    } else if (t == '}') {
        /* A brace also closes what was left open inside it. */
        while (lx->nest && lx->open[lx->nest - 1] != '{')
            lx->nest--;
        if (lx->nest)
            lx->nest--;
    }
}

static bool in_parens(const lexer *lx)
{
    return lx->nest && lx->open[lx->nest - 1] != '{';
}

/* Skips to the end of `depth` blocks. */
static void skip_braces(lexer *lx, int depth)
{
    YYSTYPE val;
    nd_loc loc;
    while (depth > 0 && !lx->stopped) {
        int t = lex_raw(&val, &loc, lx);
        if (t == YYEOF)
            lx->stopped = true;
        depth += t == '{' ? 1 : t == '}' ? -1 : 0;
    }
}

/* Behind an error in a body, a block that follows on the line goes whole; else
 * its `}` would end the body. */
static void skip_inner_block(lexer *lx)
{
    int depth = 0;
    for (int i = 0; i < lx->nest; i++)
        depth += lx->open[i] == '{';
    if (!lx->recovering || lx->last != '{' || depth < 2)
        return;
    skip_braces(lx, 1);
    lx->nest--;
    while (in_parens(lx))
        lx->nest--;
    lx->last = '}';
}

int yylex(YYSTYPE *val, nd_loc *loc, ast_parser *p)
{
    lexer *lx = p->lex;
    int t;
    skip_inner_block(lx);
    if (lx->held) {
        t = lx->held;
        lx->held = 0;
        val->text = lx->held_text;
        *loc = lx->held_loc;
    } else {
        do {
            t = lx->stopped ? YYEOF : lex_raw(val, loc, lx);
            if (t == YYEOF)
                *loc = (nd_loc){lx->file, lx->pos, lx->pos};
        } while (t == NL && (in_parens(lx) || lex_continues(lx->last)));
        bool ends = t == YYEOF || t == '}';
        if (ends && lx->last != NL && lx->last != '{' && lx->last != 0) {
            lx->held = t ? t : 0;
            lx->held_text = NULL;
            lx->held_loc = *loc;
            t = NL;
        }
    }
    track(lx, t, *loc);
    if (lx->stopped)                 /* the reason is out: end in silence */
        t = lx->last == YYerror ? YYEOF : YYerror;
    lx->recovering = t == YYerror || (lx->recovering && t != NL);
    lx->last = t;
    return t;
}

int lex_token(lexer *lx, nd_loc *at)
{
    YYSTYPE val;
    return lex_raw(&val, at, lx);
}

void lex_skip_brace(lexer *lx)
{
    YYSTYPE val;
    nd_loc loc;
    int t = lx->held;
    while (!t && !lx->stopped && (t = lex_raw(&val, &loc, lx)) == NL)
        t = 0;
    if (t == '{') {
        lx->held = 0;
        skip_braces(lx, 1);
    } else if (t == YYEOF) {
        lx->stopped = true;
    } else if (!lx->held) {
        lx->held = t;
        lx->held_text = val.text;
        lx->held_loc = loc;
    }
}

void lex_skip_block(lexer *lx)
{
    int depth = 0;
    for (int i = 0; i < lx->nest; i++)
        depth += lx->open[i] == '{';
    if (depth) {
        depth -= lx->held == '}';
        lx->held = 0;
        skip_braces(lx, depth);
        lx->nest = 0;
        lx->last = NL;
    } else {
        lex_skip_brace(lx);
    }
}

char lex_open_bracket(const lexer *lx, nd_loc *open)
{
    if (!lx->nest)
        return 0;
    *open = lx->open_at[lx->nest - 1];
    return lx->open[lx->nest - 1];
}

bool lex_unclosed(const lexer *lx, nd_loc at, nd_loc *open)
{
    int line[2], col;
    if (!in_parens(lx))
        return false;
    *open = lx->open_at[lx->nest - 1];
    nd_line_col(lx->ctx, *open, &line[0], &col);
    nd_line_col(lx->ctx, at, &line[1], &col);
    return line[1] > line[0] || lx->last == NL;
}

ast_file *nd_parse(nd_ctx *c, int file)
{
    const nd_file *f = &c->files.v[file - 1];
    int before = c->nerrors;
    const char *nul = memchr(f->text, 0, f->len);
    if (nul) {
        uint32_t at = (uint32_t)(nul - f->text);
        nd_error(c, (nd_loc){file, at, at + 1}, "the file has a NUL byte");
        return NULL;
    }
    if (f->len > (size_t)1 << 28) {
        nd_error(c, (nd_loc){file, 0, 0}, "the file is larger than 256 MiB");
        return NULL;
    }
    lexer lx = {.ctx = c, .file = file};
    ast_parser p = {c, ND_NEW(c->arena, ast_file), &lx};
    p.out->file = file;
    lex_open(&lx, f->text, f->len);
    int rc = yyparse(&p);
    lex_close(&lx);
    return rc || c->nerrors > before ? NULL : p.out;
}
