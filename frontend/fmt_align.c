/* fmt_align.c - columns that the writer aligned stay aligned.
 *
 *   axis batch = 32     # rows          axis batch = 32  # rows
 *   axis d     = 4      # width         axis d = 4  # width
 *
 * A line may have three points: its first `=` (in a plan entry the word behind
 * `mesh`, `shard` ... instead), its first `~`, and its comment. Lines of one
 * level that follow each other with their points in one column of the source
 * are a run: they get the first column that has room for all. A point in no
 * run gets the usual blanks. Runs end at a line of the level without a point,
 * and at a blank line; lines of a deeper level do not matter.
 *
 * Comments differ in two ways: their runs go on over lines without one, of any
 * level, and keep their column where there is room.
 */
#include "nd_parse.h"

typedef enum { AT_EQUALS, AT_TILDE, AT_COMMENT } point;

typedef struct aligner {
    fmt_text *f;
    ND_VEC(int) lines;               /* the piece that begins each */
    point kind;
} aligner;

static int line_end(const aligner *a, int line)
{
    return line + 1 < a->lines.n ? a->lines.v[line + 1] : a->f->p.n;
}

static const fmt_piece *head(const aligner *a, int line)
{
    return &a->f->p.v[a->lines.v[line]];
}

/* Is the line none of its level: part of a statement, or a comment? */
static bool skipped(const aligner *a, int line)
{
    const fmt_piece *p = head(a, line);
    return p->goes_on || p->tok == FMT_COMMENT || p->tok == ')' ||
           p->tok == ']' || (p->tok == '}' && !p->block);
}

/* `shard batch -> dp`, not the statement `shard = 1` */
static bool is_entry(const aligner *a, int line)
{
    const fmt_piece *p = head(a, line);
    if (line_end(a, line) - a->lines.v[line] < 2 || !p->first)
        return false;
    switch (p->tok) {
    case MESH: case SHARD: case PIPELINE: case ZERO: case RECOMPUTE:
    case COMPRESS: case CONTEXT: case MICROBATCHES:
        return p[1].tok != '=' && p[1].tok != ',' && p[1].tok != FMT_COMMENT;
    default:
        return false;
    }
}

/* The piece that may be aligned, or -1. */
static int point_of(const aligner *a, int line)
{
    int from = a->lines.v[line], to = line_end(a, line);
    const fmt_piece *p = a->f->p.v;
    if (a->kind == AT_COMMENT)
        return p[to - 1].tok == FMT_COMMENT && to - from > 1 ? to - 1 : -1;
    if (skipped(a, line))
        return -1;
    if (a->kind == AT_EQUALS && is_entry(a, line))
        return from + 1;
    for (int i = from + 1; i < to; i++)
        if (p[i].depth == p[from].depth &&
            p[i].tok == (a->kind == AT_EQUALS ? '=' : '~'))
            return i;
    return -1;
}

static int column(const aligner *a, int line, int piece)
{
    int col = -a->f->p.v[piece].width;
    for (int i = a->lines.v[line]; i <= piece; i++)
        col += a->f->p.v[i].space + a->f->p.v[i].width;
    return col;
}

static bool same_column(const aligner *a, int x, int y)
{
    return a->f->p.v[x].col == a->f->p.v[y].col;
}

static int next_comment(const aligner *a, int line)
{
    int here = point_of(a, line), at = -1, i = line + 1;
    while (i < a->lines.n && (at = point_of(a, i)) < 0)
        i++;
    return at >= 0 && same_column(a, here, at) ? i : -1;
}

/* The next line of the run that `line` is in, or -1. */
static int next_in_run(const aligner *a, int line)
{
    int level = head(a, line)->depth, here = point_of(a, line);
    if (a->kind == AT_COMMENT)
        return next_comment(a, line);
    for (int i = line + 1; i < a->lines.n; i++) {
        const fmt_piece *p = head(a, i);
        if (p->blank || p->depth < level)
            return -1;
        if (p->depth > level || skipped(a, i))
            continue;
        int at = point_of(a, i);
        return at >= 0 && same_column(a, here, at) ? i : -1;
    }
    return -1;
}

/* Aligns the run that begins at `line`, unless an earlier one has it. */
static void align_run(aligner *a, int line, bool *done)
{
    int col = a->kind == AT_COMMENT ? a->f->p.v[point_of(a, line)].col : 0;
    if (done[line] || next_in_run(a, line) < 0)
        return;
    for (int i = line; i >= 0; i = next_in_run(a, i)) {
        int here = column(a, i, point_of(a, i));
        col = here > col ? here : col;
    }
    for (int i = line; i >= 0; i = next_in_run(a, i)) {
        int at = point_of(a, i);
        a->f->p.v[at].space += col - column(a, i, at);
        done[i] = true;
    }
}

void fmt_align(fmt_text *f)
{
    aligner a = {.f = f};
    for (int i = 0; i < f->p.n; i++)
        if (f->p.v[i].line)
            ND_PUSH(f->arena, &a.lines, i);
    for (a.kind = AT_EQUALS; a.kind <= AT_COMMENT; a.kind++) {
        bool *done = ND_NEWN(f->arena, bool, a.lines.n + 1);
        for (int i = 0; i < a.lines.n; i++)
            if (point_of(&a, i) >= 0)
                align_run(&a, i, done);
    }
}
