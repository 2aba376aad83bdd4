/* fmt.c - ndc fmt: one spelling of the blanks and line breaks of a program.
 *
 *   y=sum[ d ](x *w)#why   ->   y = sum[d](x * w)  # why
 *
 * Works on the tokens and comments as they stand, never on the tree: what is
 * not a blank stays as it is and where it is. The rules:
 *
 * - Line breaks are the writer's. Only a block that is open at the end of a
 *   line, or whose line would be longer than 100 columns, is broken behind its
 *   `{` and before its `}`.
 * - Two columns per level. A broken ( or [ indents by one level from the line
 *   that opens it, a statement that goes on outside brackets likewise.
 * - One blank around operators, but none around `^` and `..` and none behind a
 *   sign; none inside brackets; `a, b` and `a: b`; `{ s }` is a block.
 * - Blank lines stay, two or more become one, and none remain behind an open
 *   bracket, before a closing one, or at the ends of the file.
 * - Columns that the writer aligned stay aligned (fmt_align.c).
 */
#include "nd_parse.h"

#include <string.h>

enum { INDENT = 2, WIDTH = 100 };

/* ---- tokens and comments ------------------------------------------------- */

static int text_width(const char *s, uint32_t n)
{
    int w = 0;
    for (uint32_t i = 0; i < n; i++)
        w += ((unsigned char)s[i] & 0xc0) != 0x80;
    return w;
}

static void add(fmt_text *f, int tok, uint32_t begin, uint32_t end, int nl,
                int col)
{
    int w = text_width(f->text + begin, end - begin);
    fmt_piece p = {.tok = tok, .begin = begin, .end = end, .nl = nl,
                   .col = col, .width = w, .match = -1};
    ND_PUSH(f->arena, &f->p, p);
}

/* Between two tokens there are blanks, line ends and comments. */
static void gap(fmt_text *f, uint32_t from, uint32_t to, int *nl, int *col)
{
    for (uint32_t i = from; i < to; i++) {
        if (f->text[i] == '\n') {
            ++*nl;
            *col = 0;
        } else if (f->text[i] == '#') {
            uint32_t end = i;
            while (end < to && f->text[end] != '\n')
                end++;
            uint32_t next = end;
            while (end > i && strchr(" \t\r", f->text[end - 1]))
                end--;
            add(f, FMT_COMMENT, i, end, *nl, *col);
            *nl = 0;
            i = next - 1;
        } else {
            *col = f->text[i] == '\t' ? (*col / 8 + 1) * 8 : *col + 1;
        }
    }
}

static void scan(fmt_text *f, nd_ctx *c, int file)
{
    lexer lx = {.ctx = c, .file = file};
    uint32_t at = 0;
    int nl = 0, col = 0, t;
    nd_loc loc;
    lex_open(&lx, f->text, f->len);
    while ((t = lex_token(&lx, &loc)) != YYEOF) {
        if (t == NL)
            continue;
        gap(f, at, loc.begin, &nl, &col);
        add(f, t, loc.begin, loc.end, nl, col);
        col += f->p.v[f->p.n - 1].width;
        nl = 0;
        at = loc.end;
    }
    gap(f, at, (uint32_t)f->len, &nl, &col);
    lex_close(&lx);
}

/* ---- brackets, statements ------------------------------------------------ */

static bool opens(const fmt_piece *p)
{
    return p->tok == '(' || p->tok == '[' || p->tok == '{';
}

static bool closes(const fmt_piece *p)
{
    return p->tok == ')' || p->tok == ']' || p->tok == '}';
}

/* Pairs brackets, and finds where statements begin and go on. */
static void structure(fmt_text *f)
{
    int open[LEX_MAX_NEST + 1], n = 0;
    const fmt_piece *last = NULL;    /* the token before */
    bool newline = true, rules = false;
    for (int i = 0; i < f->p.n; i++) {
        fmt_piece *p = &f->p.v[i];
        bool inside = n && !f->p.v[open[n - 1]].block;
        newline |= p->nl > 0;
        bool ended = !last || (last->tok == '{' && last->block) ||
                     (newline && !lex_continues(last->tok));
        p->depth = n;
        p->goes_on = !inside && !ended && p->tok != '}';
        if (p->tok == FMT_COMMENT) {
            newline = true;
            continue;
        }
        p->first = !inside && ended && p->tok != '}';
        if (p->first || p->tok == '=')
            rules = p->tok == SHARD || p->tok == PIPELINE;
        p->side = rules && !inside && p->tok == '(';
        if (opens(p)) {
            p->block = p->tok == '{' && !inside && last && last->tok != '=';
            open[n++] = i;
        } else if (closes(p) && n) {
            p->match = open[--n];
            p->block = f->p.v[p->match].block;
            f->p.v[p->match].match = i;
        }
        last = p;
        newline = false;
    }
}

/* ---- blanks -------------------------------------------------------------- */

/* Can this token be the last of an operand? A word that begins a statement is
 * none: no expression stands there. */
static bool ends_operand(const fmt_piece *p)
{
    switch (p->tok) {
    case RETURN: case REPEAT: case PARAM: case AS: case LIKE: case AND:
    case OR: case NOT:
        return false;
    case NAME: case NUMBER: case STRING: case INF: case TRUE: case FALSE:
    case ')': case ']': case '}':
        return !p->first;
    default:
        return p->tok >= AXIS && p->tok <= MICROBATCHES && !p->first;
    }
}

static bool is_sign(const fmt_text *f, int i)
{
    return f->p.v[i].tok == '-' && (i == 0 || !ends_operand(&f->p.v[i - 1]));
}

static int blanks_before(const fmt_text *f, int i)
{
    const fmt_piece *p = &f->p.v[i - 1], *q = &f->p.v[i];
    if (q->tok == FMT_COMMENT)
        return 2;
    if (q->tok == ',' || q->tok == ':' || q->tok == ')' || q->tok == ']' ||
        p->tok == '(' || p->tok == '[')
        return 0;
    if (p->tok == DOTDOT || q->tok == DOTDOT || p->tok == '^' ||
        q->tok == '^' || is_sign(f, i - 1))
        return 0;
    if (p->tok == '{' || q->tok == '}')
        return (p->tok == '{' ? p : q)->block && q->match != i - 1;
    if (q->tok == '[' || q->tok == '(')
        return !ends_operand(p) || q->side;
    return 1;
}

/* ---- lines --------------------------------------------------------------- */

static int line_width(const fmt_text *f, int start)
{
    int w = f->p.v[start].space + f->p.v[start].width;
    for (int i = start + 1; i < f->p.n && !f->p.v[i].line &&
             f->p.v[i].tok != FMT_COMMENT; i++)
        w += f->p.v[i].space + f->p.v[i].width;
    return w;
}

static bool has_break(const fmt_text *f, int from, int to)
{
    for (int i = from; i <= to; i++)
        if (f->p.v[i].line)
            return true;
    return false;
}

/* Behind a `{` may stand a comment; the line ends behind that. */
static void break_block(fmt_text *f, int open)
{
    if (f->p.v[open + 1].tok != FMT_COMMENT)
        f->p.v[open + 1].line = true;
    f->p.v[f->p.v[open].match].line = true;
}

/* At the front of the file or of a bracket, but for a comment that belongs to
 * the line above? */
static bool behind_open(const fmt_text *f, int i)
{
    if (i && f->p.v[i - 1].tok == FMT_COMMENT && !f->p.v[i - 1].line)
        i--;
    return i == 0 || opens(&f->p.v[i - 1]);
}

static void lines(fmt_text *f)
{
    int inner[LEX_MAX_NEST + 2] = {0}, outer[LEX_MAX_NEST + 2] = {0};
    int start = 0;
    for (int i = 0; i < f->p.n; i++) {
        fmt_piece *p = &f->p.v[i];
        p->line = i == 0 || p->nl || f->p.v[i - 1].tok == FMT_COMMENT;
        p->space = i ? blanks_before(f, i) : 0;
    }
    for (int i = 0; i < f->p.n; i++) {
        fmt_piece *p = &f->p.v[i];
        int d = p->depth;
        if (p->line) {
            start = i;
            p->space = closes(p) ? outer[d]
                       : inner[d] + (p->goes_on ? INDENT : 0);
            p->blank = p->nl > 1 && !closes(p) && !behind_open(f, i);
        }
        if (!opens(p))
            continue;
        /* A block belongs to its statement, wherever its `{` stands. */
        outer[d + 1] = p->block ? inner[d] : f->p.v[start].space;
        inner[d + 1] = outer[d + 1] + INDENT;
        if (p->block && p->match > i + 1 &&
            (has_break(f, i + 1, p->match) || line_width(f, start) > WIDTH))
            break_block(f, i);
    }
}

static void write_out(const fmt_text *f, nd_buf *out)
{
    for (int i = 0; i < f->p.n; i++) {
        const fmt_piece *p = &f->p.v[i];
        if (p->line && i)
            nd_put(out, p->blank ? "\n\n" : "\n");
        nd_putf(out, "%*s", p->space, "");
        nd_putn(out, f->text + p->begin, p->end - p->begin);
    }
    if (f->p.n)
        nd_put(out, "\n");
}

void nd_format(nd_ctx *c, int file, nd_buf *out)
{
    const nd_file *src = &c->files.v[file - 1];
    fmt_text f = {.arena = c->arena, .text = src->text, .len = src->len};
    scan(&f, c, file);
    structure(&f);
    lines(&f);
    fmt_align(&f);
    write_out(&f, out);
}
