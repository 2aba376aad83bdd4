/* times.c - measured costs as text, as programs write them with --times:
 * seconds, by stage.
 *
 *   stage,F,I,W,B,ahead,back
 *   0,0.0021,0,0,0.0043,0.0001,0
 *   1,0.0019,0.0018,0.0017,,0,0.0001
 *
 * An empty cell is 0. Where neither I nor W was measured, each is half of B; B
 * is not used otherwise, for it takes the time of both.
 */
#include "sched.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COL_STAGE, COL_F, COL_I, COL_W, COL_B, COL_AHEAD, COL_BACK, NCOLS };

static const char *const column[NCOLS] = {
    "stage", "F", "I", "W", "B", "ahead", "back",
};

typedef struct reader {
    const char *at, *end;
    int row;
    sched_error *err;
} reader;

static bool bad_cell(const reader *r, int col, const char *cell, size_t n,
                     const char *what)
{
    return sched_fail(r->err, -1, 0, "row %d, column %d (%s): `%.*s` is not %s",
                      r->row, col + 1, column[col],
                      (int)(n < 40 ? n : 40), cell, what);
}

/* The next line without its end; false: there is none. */
static bool next_line(reader *r, const char **line, size_t *n)
{
    if (r->at == r->end)
        return false;
    const char *stop = memchr(r->at, '\n', (size_t)(r->end - r->at));
    *line = r->at;
    r->at = stop ? stop + 1 : r->end;
    *n = (size_t)((stop ? stop : r->end) - *line);
    if (*n && (*line)[*n - 1] == '\r')
        --*n;
    r->row++;
    return true;
}

static bool read_header(reader *r)
{
    static const char want[] = "stage,F,I,W,B,ahead,back";
    const char *line;
    size_t n;
    if (next_line(r, &line, &n) && n == sizeof want - 1 &&
        memcmp(line, want, n) == 0)
        return true;
    return sched_fail(r->err, -1, 0, "row 1 must be `%s`", want);
}

/* A number of seconds; nothing is 0. */
static bool read_cell(const reader *r, int col, const char *cell, size_t n,
                      double *out)
{
    char copy[64], *end;
    *out = 0;
    if (n == 0 && col != COL_STAGE && col != COL_F)
        return true;
    if (n == 0 || n >= sizeof copy || !strchr("0123456789.", cell[0]))
        return bad_cell(r, col, cell, n, "a number of seconds");
    memcpy(copy, cell, n);
    copy[n] = 0;
    *out = strtod(copy, &end);
    if (*end || !isfinite(*out))
        return bad_cell(r, col, cell, n, "a number of seconds");
    return true;
}

static bool read_row(const reader *r, const char *line, size_t n, double *out)
{
    const char *end = line + n;
    for (int col = 0; col < NCOLS; col++) {
        const char *stop = memchr(line, ',', (size_t)(end - line));
        if ((stop != NULL) != (col + 1 < NCOLS))
            return sched_fail(r->err, -1, 0, "row %d: %s cells than %d",
                              r->row, stop ? "more" : "less", NCOLS);
        size_t len = (size_t)((stop ? stop : end) - line);
        if (!read_cell(r, col, line, len, &out[col]))
            return false;
        if (col == COL_STAGE && out[col] != r->row - 2)
            return sched_fail(r->err, -1, 0, "row %d, column 1 (stage): `%.*s` "
                              "is not %d; stages are in order", r->row,
                              (int)(len < 40 ? len : 40), line, r->row - 2);
        line += len + 1;
    }
    if (out[COL_I] + out[COL_W] + out[COL_B] <= 0)
        return sched_fail(r->err, -1, 0, "row %d: neither I and W nor B was "
                          "measured", r->row);
    return true;
}

/* Columns of one stage after another become a table by stage. */
static bool fill(sched_measured *m, const double *rows, sched_error *err)
{
    size_t n = (size_t)m->stages;
    double *v = m->v = malloc(NCOLS * n * sizeof *v);
    if (!v)
        return sched_fail(err, -1, 0, "no memory for the times of %d stages",
                          m->stages);
    for (size_t s = 0; s < n; s++) {
        const double *row = rows + s * NCOLS;
        bool halves = row[COL_I] + row[COL_W] <= 0;
        for (size_t col = 0; col < NCOLS; col++)
            v[col * n + s] = row[col];
        if (halves)
            v[COL_I * n + s] = v[COL_W * n + s] = row[COL_B] / 2;
    }
    m->costs = (sched_costs){.f = v + COL_F * n, .i = v + COL_I * n,
                             .w = v + COL_W * n, .ahead = v + COL_AHEAD * n,
                             .back = v + COL_BACK * n};
    return true;
}

bool sched_times_read(const char *text, size_t n, sched_measured *out,
                      sched_error *err)
{
    reader r = {.at = text, .end = text + n, .err = err};
    double *rows = NULL;
    const char *line;
    bool ok = read_header(&r);
    *out = (sched_measured){0};
    while (ok && next_line(&r, &line, &n)) {
        size_t bytes = (size_t)(out->stages + 1) * NCOLS * sizeof *rows;
        double *more = realloc(rows, bytes);
        rows = more ? more : rows;
        ok = more ? read_row(&r, line, n, rows + out->stages * NCOLS)
                  : sched_fail(err, -1, 0, "no memory for row %d", r.row);
        out->stages++;
    }
    if (ok && !out->stages)
        ok = sched_fail(err, -1, 0, "no stage after row 1");
    ok = ok && fill(out, rows, err);
    free(rows);
    return ok;
}
