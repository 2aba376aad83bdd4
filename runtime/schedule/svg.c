/* svg.c - a timed schedule as a picture: a lane per device, a box per
 * computation with the number of its microbatch, an axis of time, and, where
 * costs say what is kept, the memory of each device over time below its lane.
 *
 * The same schedule gives the same bytes.
 */
#include "sched.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEFT = 80, RIGHT = 90, TOP = 56, LANE = 24, CURVE = 26, GAP = 8,
    LEGEND = 92,                     /* between two of its entries */
    MANY = 20000                     /* actions: no tips for each */
};

static const struct {
    const char *fill, *text, *what;
} paint[] = {
    [SCHED_F] = {"#7fb2e5", "F", "forward"},
    [SCHED_B] = {"#f2a65a", "B", "backward"},
    [SCHED_I] = {"#6cc5b8", "I", "inputs"},
    [SCHED_W] = {"#93c47d", "W", "weights"},
    [SCHED_U] = {"#b39ddb", "U", "update"},
};

typedef struct picture {
    const sched *s;
    const sched_times *t;
    const sched_costs *costs;
    double seconds;
    double scale;                    /* pixels per unit of time */
    double wide, high;
    double most;                     /* most that a rank keeps; 0: no curves */
    int lane;                        /* from one device to the next */
    bool tips;
    sched_text *out;
} picture;

static double x_of(const picture *p, double time)
{
    return LEFT + time * p->scale;
}

static double y_of(const picture *p, int rank)
{
    return TOP + (double)rank * p->lane;
}

/* In XML, some characters of a file's name mean something. */
static void put_escaped(sched_text *out, const char *c)
{
    for (; *c; c++) {
        const char *as = *c == '&' ? "&amp;" : *c == '<' ? "&lt;"
                         : *c == '>' ? "&gt;" : *c == '"' ? "&quot;" : NULL;
        if (as)
            sched_put(out, "%s", as);
        else if ((unsigned char)*c >= ' ')
            sched_put(out, "%c", *c);
    }
}

/* Later stages of a device are darker. */
static double shade(const sched *s, int stage)
{
    int before = 0;
    for (int i = 0; i < stage; i++)
        before += s->rank_of[i] == s->rank_of[stage];
    return before < 4 ? 0.16 * before : 0.64;
}

static void put_box(const picture *p, int rank, const sched_action *a,
                    double from, double to)
{
    double x = x_of(p, from), wide = (to - from) * p->scale;
    double y = y_of(p, rank), dark = shade(p->s, a->stage);
    char name[SCHED_NAME];
    sched_put(p->out, "<g><rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" "
              "height=\"%d\" fill=\"%s\"/>", x, y, wide, LANE,
              paint[a->op].fill);
    if (dark > 0)
        sched_put(p->out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" "
                  "height=\"%d\" fill-opacity=\"%.2f\" stroke=\"none\"/>", x, y,
                  wide, LANE, dark);
    if (wide >= 7 * snprintf(NULL, 0, "%d", a->mb) + 2)
        sched_put(p->out, "<text x=\"%.2f\" y=\"%.2f\">%d</text>",
                  x + wide / 2, y + LANE / 2 + 4, a->mb);
    if (p->tips) {
        sched_put(p->out, "<title>%s: ", sched_name(*a, name));
        sched_put_time(p->out, a->start, p->seconds);
        sched_put(p->out, " to ");
        sched_put_time(p->out, a->end, p->seconds);
        sched_put(p->out, "</title>");
    }
    sched_put(p->out, "</g>\n");
}

/* The two of a pair share their cell. */
static void put_lane(const picture *p, int rank)
{
    const sched_row *row = &p->s->row[rank];
    sched_put(p->out, "<text class=\"side\" x=\"%d\" y=\"%.2f\">device %d"
              "</text>\n", LEFT - 8, y_of(p, rank) + LANE / 2 + 4, rank);
    for (int i = 0; i < row->n; i++) {
        const sched_action *a = &row->v[i];
        double from = a->start, to = a->end;
        if (!sched_is_compute(a->op))
            continue;
        if (a->joined)
            to = from + (to - from) / 3;
        else if (i > 0 && row->v[i - 1].joined)
            from += (to - from) / 3;
        put_box(p, rank, a, from, to);
    }
}

/* ---- memory -------------------------------------------------------------- */

/* Bytes, where times are seconds. */
static void put_amount(const picture *p, double x)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int k = 0;
    for (; p->seconds > 0 && k < 4 && x >= 1024; k++)
        x /= 1024;
    sched_put(p->out, "%.4g%s%s", x, p->seconds > 0 ? " " : "",
              p->seconds > 0 ? unit[k] : "");
}

static void step_to(const picture *p, double base, double time, double kept)
{
    double y = base - (CURVE - 4) * kept / p->most;
    sched_put(p->out, "H%.2fV%.2f", x_of(p, time), y);
}

static void put_curve(const picture *p, int rank)
{
    const sched_row *row = &p->s->row[rank];
    double base = y_of(p, rank) + LANE + CURVE, kept = 0;
    sched_put(p->out, "<path class=\"kept\" d=\"M%.2f %.2f", x_of(p, 0), base);
    for (int i = 0; i < row->n; i++) {
        const sched_action *a = &row->v[i];
        double more = sched_keeps(p->costs, a);
        double less = sched_frees(p->costs, a);
        if (more != 0)
            step_to(p, base, a->start, kept += more);
        if (less != 0)
            step_to(p, base, a->end, kept -= less);
    }
    sched_put(p->out, "H%.2fV%.2fZ\"/>\n", x_of(p, p->t->makespan), base);
    sched_put(p->out, "<text class=\"peak\" x=\"%.2f\" y=\"%.2f\">",
              x_of(p, p->t->makespan) + 6, base - 6);
    put_amount(p, p->t->rank[rank].kept);
    sched_put(p->out, "</text>\n");
}

/* ---- around it ----------------------------------------------------------- */

/* A round distance between marks, about a hundred pixels. */
static double mark_every(const picture *p)
{
    double raw = 100 / p->scale, unit = pow(10, floor(log10(raw)));
    double by = raw / unit;
    return unit * (by > 5 ? 10 : by > 2 ? 5 : by > 1 ? 2 : 1);
}

static void put_axis(const picture *p)
{
    double y = y_of(p, p->s->ranks) + 6, step = mark_every(p);
    sched_put(p->out, "<path class=\"axis\" d=\"M%.2f %.2fH%.2f\"/>\n",
              x_of(p, 0), y, x_of(p, p->t->makespan));
    for (int k = 0; k * step <= p->t->makespan * (1 + 1e-9); k++) {
        double x = x_of(p, k * step);
        sched_put(p->out, "<path class=\"axis\" d=\"M%.2f %.2fv5\"/>"
                  "<text x=\"%.2f\" y=\"%.2f\">", x, y, x, y + 18);
        if (p->seconds > 0)
            sched_put_time(p->out, k * step, p->seconds);
        else
            sched_put(p->out, "%g", k * step);
        sched_put(p->out, "</text>\n");
    }
}

static void put_legend(const picture *p)
{
    bool used[SCHED_U + 1] = {false};
    int n = 0;
    for (int r = 0; r < p->s->ranks; r++)
        for (int i = 0; i < p->s->row[r].n; i++)
            if (sched_is_compute(p->s->row[r].v[i].op))
                used[p->s->row[r].v[i].op] = true;
    for (int op = 0; op <= SCHED_U; op++) {
        if (!used[op])
            continue;
        int x = LEFT + LEGEND * n++;
        sched_put(p->out, "<rect x=\"%d\" y=\"32\" width=\"14\" height=\"14\" "
                  "fill=\"%s\"/><text class=\"key\" x=\"%d\" y=\"43\">%s %s"
                  "</text>\n", x, paint[op].fill, x + 19, paint[op].text,
                  paint[op].what);
    }
    if (p->s->stages > p->s->ranks)
        sched_put(p->out, "<text class=\"key\" x=\"%d\" y=\"43\">darker: a "
                  "later stage of the device</text>\n", LEFT + LEGEND * n);
}

static void put_head(const picture *p)
{
    sched_text line = {0};
    sched_put(p->out, "<svg xmlns=\"http://www.w3.org/2000/svg\" "
              "width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n",
              p->wide, p->high, p->wide, p->high);
    sched_put(p->out, "<style>text{font:11px sans-serif;text-anchor:middle;"
              "fill:#222}rect{stroke:#fff;stroke-width:.6}"
              ".side{text-anchor:end}.key,.peak,.head{text-anchor:start}"
              ".head{font-size:13px}.kept{fill:#d9d9d9;stroke:#777;"
              "stroke-width:.8}.axis{fill:none;stroke:#555}</style>\n"
              "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
              "<text class=\"head\" x=\"8\" y=\"20\">");
    sched_headline(p->s, p->t, p->seconds, &line);
    line.s[strcspn(line.s, "\n")] = 0;
    put_escaped(p->out, line.s);
    sched_put(p->out, "</text>\n");
    free(line.s);
}

/* About 22 pixels for an action, as far as a screen or two allow. */
static void measure(picture *p)
{
    enum { LEAST = 600, MOST = 4000 };
    double busy = 0, span = p->t->makespan > 0 ? p->t->makespan : 1;
    int n = 0;
    for (int r = 0; r < p->s->ranks; r++) {
        for (int i = 0; i < p->s->row[r].n; i++)
            n += sched_is_compute(p->s->row[r].v[i].op);
        busy += p->t->rank[r].busy;
        p->most = fmax(p->most, p->t->rank[r].kept);
    }
    double wide = busy > 0 ? 22 * n * span / busy : LEAST;
    wide = fmin(fmax(wide, LEAST), MOST);
    p->scale = wide / span;
    p->tips = n <= MANY;
    p->lane = LANE + GAP + (p->most > 0 ? CURVE : 0);
    p->wide = LEFT + wide + RIGHT;
    p->high = y_of(p, p->s->ranks) + 32;
}

void sched_svg(const sched *s, const sched_times *t, const sched_costs *costs,
               double seconds, sched_text *out)
{
    picture p = {.s = s, .t = t, .costs = costs, .seconds = seconds,
                 .out = out};
    measure(&p);
    put_head(&p);
    put_legend(&p);
    for (int r = 0; r < s->ranks; r++) {
        put_lane(&p, r);
        if (p.most > 0)
            put_curve(&p, r);
    }
    put_axis(&p);
    sched_put(out, "</svg>\n");
}
