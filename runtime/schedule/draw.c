/* draw.c - the timeline of a schedule for a terminal.
 *
 *   1f1b: 2 stages, 3 microbatches, 12 slots, bubble 25.0% of the time, 33.3%
 *   of the work, in flight 2 1                                   (one line)
 *   stage 0 | F0 F1 .. .. B0 -  F2 B1 -  .. B2 -
 *   stage 1 | .. F0 B0 -  F1 B1 -  F2 B2 -  .. ..
 *
 * `..` is an idle slot, `-` goes on with what is before it. Where times are no
 * whole numbers, a column is a part of the time: `F0--F1-...B0-----`. What is
 * long is folded in the middle, where schedules repeat themselves.
 */
#include "sched.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 124, MAX_SLOTS = 40 };

typedef struct view {
    const sched *s;
    double makespan, seconds;
    int *chunk;                  /* by stage: the how manieth of its rank */
    int chunks;                  /* most stages of a rank */
    bool plain;                  /* stage i is on rank i */
    bool pairs;                  /* some actions are joined */
    bool whole;                  /* a cell is a slot */
    int width;                   /* of a cell, with a space */
    double scale;                /* columns per unit of time */
    int columns;
    int head, tail;              /* columns that are shown at either end */
} view;

void sched_put_time(sched_text *t, double time, double seconds)
{
    double s = time * seconds;
    if (seconds <= 0)
        sched_put(t, "%g slot%s", time, time == 1 ? "" : "s");
    else if (s >= 1 || s == 0)
        sched_put(t, "%.3g s", s);
    else if (s >= 1e-3)
        sched_put(t, "%.3g ms", s * 1e3);
    else
        sched_put(t, "%.3g us", s * 1e6);
}

/* ---- names --------------------------------------------------------------- */

/* F3, f3 for the second stage of a rank; 5F3 where ranks have more. */
static void name_of(const view *v, const sched_action *a, char *out)
{
    const char *op = sched_op_name[a->op];
    if (v->chunks > 2)
        sched_name(*a, out);
    else
        snprintf(out, SCHED_NAME, "%c%d", v->chunk[a->stage]
                 ? op[0] - 'A' + 'a' : op[0], a->mb);
}

/* ---- one row ------------------------------------------------------------- */

static bool is_second(const sched_row *row, int i)
{
    return i > 0 && row->v[i - 1].joined;
}

static int column(const view *v, double time)
{
    int c = (int)floor(time * v->scale + 0.5);
    return c < v->columns ? c : v->columns;
}

static void write_at(const view *v, char *line, int at, const char *text)
{
    for (; *text && at < v->columns; text++)
        line[at++] = *text;
}

/* In slots: a name in the first one. Of a pair, each has one; an update, which
 * takes no time, has the end of what is before it. */
static void put_slots(const view *v, char *line, const sched_row *row, int i)
{
    const sched_action *a = &row->v[i];
    char name[SCHED_NAME + 1] = "+";
    double start = a->start + is_second(row, i), end = a->end;
    for (double t = start; t < end; t++) {
        memset(line + column(v, t), ' ', 2);
        write_at(v, line, column(v, t), "-");
    }
    if (a->start == a->end)
        start = a->start - 1;
    name_of(v, a, name + is_second(row, i));
    if (a->start < a->end || (start >= 0 && line[column(v, start)] == '-'))
        write_at(v, line, column(v, start), name);
}

/* To scale: the name, cut to its columns, and `-` to the end. */
static void put_scaled(const view *v, char *line, const sched_row *row, int i)
{
    const sched_action *a = &row->v[i];
    char name[SCHED_NAME + 1] = "+";
    int from = column(v, a->start), to = column(v, a->end);
    if (is_second(row, i))
        from += (to - from) / 3;
    name_of(v, a, name + is_second(row, i));
    for (int c = from; c < to; c++)
        line[c] = '-';
    if ((int)strlen(name) > to - from)
        name[to > from] = 0;
    write_at(v, line, from, name);
}

static void draw_row(const view *v, const sched_row *row, char *line)
{
    memset(line, v->whole ? ' ' : '.', (size_t)v->columns);
    for (int c = 0; v->whole && c < v->columns; c += v->width)
        memset(line + c, '.', 2);
    for (int i = 0; i < row->n; i++) {
        if (!sched_is_compute(row->v[i].op))
            continue;
        if (v->whole)
            put_slots(v, line, row, i);
        else
            put_scaled(v, line, row, i);
    }
}

/* Without spaces at its end. */
static void put_line(sched_text *out, const char *c, int n)
{
    while (n > 0 && c[n - 1] == ' ')
        n--;
    sched_put(out, "%s%.*s\n", n ? " " : "", n, c);
}

/* ---- all of it ----------------------------------------------------------- */

/* Which of its rank's stages each is. */
static void count_chunks(view *v)
{
    const sched *s = v->s;
    v->plain = s->stages == s->ranks;
    for (int r = 0; r < s->ranks; r++) {
        int n = 0;
        for (int i = 0; i < s->stages; i++)
            if (s->rank_of[i] == r)
                v->chunk[i] = n++;
        v->chunks = n > v->chunks ? n : v->chunks;
        v->plain = v->plain && s->rank_of[r] == r;
    }
}

/* How wide a cell is and what is shown. */
static void measure(view *v)
{
    const sched *s = v->s;
    double busy = 0;
    int actions = 0, name = 2;
    char text[SCHED_NAME];
    v->whole = true;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->row[r].n; i++) {
            const sched_action *a = &s->row[r].v[i];
            if (!sched_is_compute(a->op))
                continue;
            v->whole &= a->start == floor(a->start) && a->end == floor(a->end);
            v->pairs |= a->joined;
            busy += a->end - a->start;
            actions++;
            name_of(v, a, text);
            name = (int)strlen(text) > name ? (int)strlen(text) : name;
        }
    name += v->pairs;
    v->width = name + 1;
    double mean = actions && busy > 0 ? busy / actions : 1;
    v->whole &= mean <= 8;
    v->scale = v->whole ? v->width : (v->width + 1) / mean;
    double columns = ceil(v->makespan * v->scale);
    v->columns = columns < 1e8 ? (int)columns : 0;
    int shown = LINE;
    if (v->whole)
        shown = LINE / v->width < MAX_SLOTS ? LINE / v->width * v->width
                                           : MAX_SLOTS * v->width;
    v->head = v->columns;
    if (v->columns > shown) {
        v->head = v->whole ? shown / v->width / 2 * v->width : shown / 2;
        v->tail = shown - v->head;
    }
}

static const char *many(int n, const char *one, const char *more)
{
    return n == 1 ? one : more;
}

/* Of many ranks, the least and the most. */
static void put_in_flight(const sched *s, const sched_times *t, sched_text *out)
{
    enum { MANY = 16 };
    int least = INT_MAX, most = 0;
    for (int r = 0; r < s->ranks; r++) {
        int n = t->rank[r].chunks;
        if (s->ranks <= MANY)
            sched_put(out, " %d", n);
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    if (s->ranks > MANY && least == most)
        sched_put(out, " %d", most);
    else if (s->ranks > MANY)
        sched_put(out, " %d to %d", least, most);
}

void sched_headline(const sched *s, const sched_times *t, double seconds,
                    sched_text *out)
{
    sched_put(out, "%s: %d stage%s", s->name, s->stages,
              many(s->stages, "", "s"));
    if (s->stages > s->ranks)
        sched_put(out, " on %d device%s", s->ranks, many(s->ranks, "", "s"));
    sched_put(out, ", %d microbatch%s, ", s->micro, many(s->micro, "", "es"));
    sched_put_time(out, t->makespan, seconds);
    sched_put(out, ", bubble %.1f%% of the time, %.1f%% of the work, in flight",
              100 * t->bubble_total, 100 * t->bubble_ideal);
    put_in_flight(s, t, out);
    sched_put(out, "\n");
}

static void put_legend(const view *v, sched_text *out)
{
    if (v->chunks == 2)
        sched_put(out, "capitals: the first stage of a device; small letters: "
                  "its second\n");
    if (v->chunks > 2)
        sched_put(out, "5F3: stage 5, forward of microbatch 3\n");
    if (v->pairs)
        sched_put(out, "+: in one cell with what is before it\n");
    if (v->tail > 0 && v->whole) {
        sched_put(out, "~~ stands for slots %d to %d\n", v->head / v->width,
                  (v->columns - v->tail) / v->width - 1);
    } else if (v->tail > 0) {
        sched_put(out, "~~ stands for ");
        sched_put_time(out, v->head / v->scale, v->seconds);
        sched_put(out, " to ");
        sched_put_time(out, (v->columns - v->tail) / v->scale, v->seconds);
        sched_put(out, "\n");
    }
}

void sched_draw(const sched *s, const sched_times *t, double seconds,
                sched_text *out)
{
    view v = {.s = s, .makespan = t->makespan, .seconds = seconds,
              .chunk = calloc((size_t)s->stages + 1, sizeof *v.chunk)};
    sched_headline(s, t, seconds, out);
    if (!v.chunk)
        return;
    count_chunks(&v);
    measure(&v);
    char *line = malloc((size_t)v.columns + 2);
    int digits = snprintf(NULL, 0, "%d", s->ranks - 1);
    for (int r = 0; line && r < s->ranks; r++) {
        draw_row(&v, &s->row[r], line);
        sched_put(out, "%s %*d |", v.plain ? "stage" : "device", digits, r);
        if (v.tail > 0)
            sched_put(out, " %.*s~~", v.head, line);
        put_line(out, line + (v.tail > 0 ? v.columns - v.tail : 0),
                 v.tail > 0 ? v.tail : v.columns);
    }
    put_legend(&v, out);
    free(line);
    free(v.chunk);
}
