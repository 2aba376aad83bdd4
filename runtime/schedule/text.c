/* text.c - schedules as text, in the notation of PyTorch's pipelining.
 *
 *   0F0,0F1,,,0B0,0B1              compute alone; an empty cell is idle time
 *   0F0,0SEND_F0,0RECV_B0,0B0      with messages
 *   (0F7;7B3)OVERLAP_F_B           two computations that are one cell
 *
 * One row is one rank. Each cell is read to its end: `2BW0` and `3B1junk` are
 * errors, not a B without a microbatch and a B1. Older files of PyTorch say B
 * for the half of the backward that a W completes; here it is called I.
 */
#include "sched.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sched_name(sched_action a, char buf[SCHED_NAME])
{
    snprintf(buf, SCHED_NAME, "%d%s%d", a.stage, sched_op_name[a.op], a.mb);
    return buf;
}

/* ---- reading ------------------------------------------------------------- */

enum { MOST = 999999 };              /* of stages, of microbatches */

typedef struct reader {
    sched *s;
    sched_error *err;
    const char *at, *end;            /* what is left of the text */
    const char *line;                /* where the row begins */
    const char *cell, *stop;         /* the cell that is read */
    int row;
} reader;

static bool bad(reader *r, const char *what)
{
    char shown[48];
    int n = 0;
    for (const char *c = r->cell; c < r->stop && n < 40; c++)
        shown[n++] = *c >= ' ' && *c <= '~' ? *c : '?';
    shown[n] = 0;
    return sched_fail(r->err, r->row, r->s->row[r->row].n,
                      "row %d, column %d: `%s%s` %s", r->row + 1,
                      (int)(r->cell - r->line) + 1, shown,
                      r->stop - r->cell > n ? "..." : "", what);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Digits at *c, before `stop`: -1 if there are none, MOST + 1 if too many. */
static int number(const char **c, const char *stop)
{
    if (*c == stop || !is_digit(**c))
        return -1;
    int x = 0;
    for (; *c < stop && is_digit(**c); ++*c)
        x = x > MOST ? x : 10 * x + (**c - '0');
    return x > MOST ? MOST + 1 : x;
}

/* Is the word from c to stop `name`? */
static bool is_word(const char *c, const char *stop, const char *name)
{
    size_t n = strlen(name);
    return (size_t)(stop - c) == n && !memcmp(c, name, n);
}

/* What a schedule of ndc has no place for: it gathers weights and reduces
 * gradients when they are due. */
static bool is_derived(const char *c, const char *stop)
{
    return is_word(c, stop, "UNSHARD") || is_word(c, stop, "RESHARD") ||
           is_word(c, stop, "REDUCE_GRAD");
}

static bool read_action(reader *r, const char *c, const char *stop)
{
    int stage = number(&c, stop);
    if (stage < 0)
        return bad(r, "is no action: those are <stage><what><microbatch>, "
                   "as in 2F0");
    const char *word = c;
    while (c < stop && ((*c >= 'A' && *c <= 'Z') || *c == '_'))
        c++;
    if (c == stop && is_derived(word, c))
        return true;
    int op = 0;
    while (op < SCHED_NOPS && !is_word(word, c, sched_op_name[op]))
        op++;
    if (op == SCHED_NOPS)
        return bad(r, "is no action: those are F, B, I, W, U, SEND_F, RECV_F, "
                   "SEND_B, RECV_B");
    int mb = number(&c, stop);
    if (mb < 0)
        return bad(r, "has no microbatch");
    if (c < stop)
        return bad(r, "goes on after its microbatch; commas separate "
                   "actions");
    if (stage > MOST || mb > MOST)
        return bad(r, "has a number above 999999");
    sched_push(r->s, r->row, (sched_op)op, stage, mb);
    if (stage >= r->s->stages)
        r->s->stages = stage + 1;
    if (mb >= r->s->micro)
        r->s->micro = mb + 1;
    r->s->lowered |= !sched_is_compute((sched_op)op);
    return true;
}

/* "(0F7;7B3)OVERLAP_F_B": two actions, the first one joined. */
static bool read_pair(reader *r)
{
    size_t n = (size_t)(r->stop - r->cell);
    const char *close = memchr(r->cell, ')', n);
    const char *semi = memchr(r->cell, ';', n);
    sched_row *row = &r->s->row[r->row];
    int before = row->n;
    if (!close || !semi || semi > close ||
        !is_word(close + 1, r->stop, "OVERLAP_F_B"))
        return bad(r, "is no pair: those are (0F7;7B3)OVERLAP_F_B");
    if (!read_action(r, r->cell + 1, semi) || !read_action(r, semi + 1, close))
        return false;
    if (row->n != before + 2 || row->v[before].op != SCHED_F ||
        !sched_is_back(row->v[before + 1].op))
        return bad(r, "is no pair of a forward and a backward");
    row->v[before].joined = true;
    return true;
}

static bool between(char c) { return c == ' ' || c == '\t' || c == ','; }

static bool read_row(reader *r)
{
    const char *stop = memchr(r->at, '\n', (size_t)(r->end - r->at));
    const char *next = stop ? stop + 1 : r->end;
    stop = stop ? stop : r->end;
    if (stop > r->at && stop[-1] == '\r')
        stop--;
    r->line = r->at;
    for (const char *c = r->at; c < stop;) {
        if (between(*c)) {
            c++;
            continue;
        }
        r->cell = c;
        while (c < stop && !between(*c))
            c++;
        r->stop = c;
        if (*r->cell == '(' ? !read_pair(r)
            : !read_action(r, r->cell, r->stop))
            return false;
    }
    r->at = next;
    return true;
}

/* Lines after the last one that has a cell are no rows. */
static int count_rows(const char *text, const char *end)
{
    int rows = 0, line = 1;
    for (const char *c = text; c < end; c++) {
        if (*c == '\n')
            line++;
        else if (!between(*c) && *c != '\r')
            rows = line;
    }
    return rows;
}

/* Which rank each stage is on: the first that has it. */
static bool place_stages(reader *r)
{
    sched *s = r->s;
    int64_t actions = 0;
    for (int k = 0; k < s->ranks; k++) {
        actions += s->row[k].n;
        if (!s->row[k].n)
            return sched_fail(r->err, k, 0, "row %d has no action", k + 1);
    }
    /* Nothing below costs more than the text is long. */
    if ((int64_t)s->stages * s->micro > actions + 1000)
        return sched_fail(r->err, -1, 0, "%d stages and %d microbatches, but "
                          "%lld actions: most are missing", s->stages,
                          s->micro, (long long)actions);
    int *rank = malloc((size_t)s->stages * sizeof *rank);
    if (!rank)
        return sched_fail(r->err, -1, 0, "no memory");
    free(s->rank_of);
    s->rank_of = rank;
    for (int i = 0; i < s->stages; i++)
        rank[i] = -1;
    for (int k = s->ranks - 1; k >= 0; k--)
        for (int i = 0; i < s->row[k].n; i++)
            rank[s->row[k].v[i].stage] = k;
    for (int i = 0; i < s->stages; i++)
        if (rank[i] < 0)
            return sched_fail(r->err, -1, 0, "stage %d of %d is in no row", i,
                              s->stages);
    return true;
}

/* A B beside a W is an I. */
static bool split_backwards(reader *r)
{
    sched *s = r->s;
    bool *has_w = calloc((size_t)s->stages * (size_t)s->micro + 1, 1);
    if (!has_w)
        return sched_fail(r->err, -1, 0, "no memory");
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < s->ranks; k++)
            for (int i = 0; i < s->row[k].n; i++) {
                sched_action *a = &s->row[k].v[i];
                bool *w = &has_w[(size_t)a->stage * (size_t)s->micro +
                                 (size_t)a->mb];
                if (pass == 0)
                    *w |= a->op == SCHED_W;
                else if (a->op == SCHED_B && *w)
                    a->op = SCHED_I;
            }
    free(has_w);
    return true;
}

sched *sched_read(const char *text, size_t n, const char *name,
                  sched_error *err)
{
    static const char mark[] = "\xef\xbb\xbf";   /* of a spreadsheet's UTF-8 */
    if (n >= 3 && !memcmp(text, mark, 3)) {
        text += 3;
        n -= 3;
    }
    reader r = {.err = err, .at = text, .end = text + n};
    int rows = count_rows(text, r.end);
    if (!rows) {
        sched_fail(err, -1, 0, "the schedule is empty: it has a row of actions "
                   "for each rank");
        return NULL;
    }
    r.s = sched_new(name, rows, 0, 0, SCHED_LOOP);
    if (!r.s) {
        sched_fail(err, -1, 0, "no memory");
        return NULL;
    }
    bool ok = true;
    for (; ok && r.row < rows; r.row++)
        ok = read_row(&r);
    if (ok && place_stages(&r) && split_backwards(&r))
        return r.s;
    sched_free(r.s);
    return NULL;
}

/* ---- writing ------------------------------------------------------------- */

/* The cell that begins at action i; returns how many actions it has. */
static int put_cell(const sched_row *row, int i, sched_text *out)
{
    char one[SCHED_NAME], two[SCHED_NAME];
    sched_name(row->v[i], one);
    if (!row->v[i].joined || i + 1 == row->n) {
        sched_put(out, "%s", one);
        return 1;
    }
    sched_put(out, "(%s;%s)OVERLAP_F_B", one, sched_name(row->v[i + 1], two));
    return 2;
}

void sched_write_row(const sched *s, int rank, sched_text *out)
{
    const sched_row *row = &s->row[rank];
    sched_put(out, "%s", "");
    for (int i = 0; i < row->n;) {
        if (i)
            sched_put(out, " ");
        i += put_cell(row, i, out);
    }
}

/* A cell is a unit of time only where all actions begin at whole ones, and
 * none takes so long that the file would be of idle cells. */
static bool whole_times(const sched *s)
{
    double end = 0;
    int64_t actions = 0;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++) {
            const sched_action *a = &s->row[r].v[i];
            if (!sched_is_compute(a->op))
                continue;
            if (a->start != floor(a->start) || a->end != floor(a->end))
                return false;
            end = a->end > end ? a->end : end;
            actions++;
        }
    return end * s->ranks <= 16.0 * (double)actions;
}

/* The first action from i on that is written. */
static int skip(const sched_row *row, int i, bool compute)
{
    while (compute && i < row->n && !sched_is_compute(row->v[i].op))
        i++;
    return i;
}

void sched_write(const sched *s, bool compute, sched_text *out)
{
    bool idle = compute && whole_times(s);
    sched_put(out, "%s", "");
    for (int r = 0; r < s->ranks; r++) {
        const sched_row *row = &s->row[r];
        double column = 0;
        for (int i = skip(row, 0, compute); i < row->n; column++) {
            for (; idle && column < row->v[i].start; column++)
                sched_put(out, ",");
            i = skip(row, i + put_cell(row, i, out), compute);
            if (i < row->n)
                sched_put(out, ",");
        }
        sched_put(out, "\n");
    }
}
