/* schedule_cmd.c - `ndc schedule`: makes or reads a schedule, proves it, and
 * shows it.
 *
 *   ndc schedule 1f1b --ranks 2 --microbatches 3
 *   ndc schedule mine.csv --costs 1,1,1,0.1 --emit=svg -o mine.svg
 */
#include "ndc.h"
#include "frontend.h"
#include "../runtime/schedule/sched.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 4096, MOST_MICRO = 100000, MOST_ACTIONS = 20000000 };

typedef enum {
    AS_TIMELINE, AS_FIGURES, AS_CSV, AS_COMMS, AS_SVG, AS_JSON, NFORMS
} form;

static const char *const form_names[] = {
    [AS_TIMELINE] = "timeline", [AS_FIGURES] = "figures", [AS_CSV] = "csv",
    [AS_COMMS] = "comms", [AS_SVG] = "svg", [AS_JSON] = "json",
};

typedef struct job {
    nd_ctx *c;
    const ndc_schedule_options *o;
    sched *s;
    sched_costs costs;
    double f, i, w, message;         /* --costs */
    sched_measured measured;         /* --times */
    double seconds;                  /* of a unit of time; 0: they are slots */
} job;

static bool fail(job *j, const char *what)
{
    nd_error(j->c, nd_nowhere, "%s", what);
    return false;
}

/* ---- what was asked for -------------------------------------------------- */

static bool whole(job *j, const char *option, const char *text, int most,
                  int *out)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end || n < 1 || n > most) {
        nd_error(j->c, nd_nowhere, "%s %s: expected a number from 1 to %d",
                 option, text, most);
        return false;
    }
    *out = (int)n;
    return true;
}

/* "F,I,W" or "F,I,W,MESSAGE", in any unit of time. */
static bool read_costs(job *j, const char *text)
{
    double *to[] = {&j->f, &j->i, &j->w, &j->message};
    int n = 0;
    const char *at = text;
    for (;; at++) {
        char *end;
        double x = strtod(at, &end);
        if (n == 4 || end == at || !isfinite(x) || x < 0 ||
            (*end && *end != ','))
            break;
        *to[n++] = x;
        at = end;
        if (!*at && n >= 3)
            return true;
        if (!*at)
            break;
    }
    nd_error(j->c, nd_nowhere, "--costs %s: expected the times of F, I, W and, "
             "if it takes any, of a message, as in 1,1,1,0.1", text);
    return false;
}

static bool find_form(job *j, form *out)
{
    const char *name = j->o->emit;
    for (int k = 0; k < NFORMS; k++)
        if (!name || !strcmp(name, form_names[k])) {
            *out = (form)k;
            return true;
        }
    nd_error(j->c, nd_nowhere, "--emit=%s: a schedule is shown as timeline, "
             "figures, csv, comms, svg or json", name);
    return false;
}

static const nd_file *load(job *j, const char *path)
{
    int file = nd_read_file(j->c, path);
    if (!file)
        nd_error(j->c, nd_nowhere, "cannot read `%s`: %s", path,
                 strerror(errno));
    return file ? &j->c->files.v[file - 1] : NULL;
}

/* What a program has measured; it knows how many stages it had. */
static bool measured_costs(job *j, int n)
{
    sched_error e;
    const nd_file *f = load(j, j->o->times);
    if (!f)
        return false;
    if (!sched_times_read(f->text, f->len, &j->measured, &e))
        return nd_schedule_error(j->c, nd_nowhere, j->o->times, NULL, &e);
    if (j->measured.stages != n) {
        nd_error(j->c, nd_nowhere, "%s has the times of %d stages; the "
                 "schedule has %d", j->o->times, j->measured.stages, n);
        return false;
    }
    j->costs = j->measured.costs;
    j->seconds = 1;
    return true;
}

/* --costs for each of n stages, or --times. */
static bool find_costs(job *j, int n)
{
    if (j->o->times)
        return measured_costs(j, n);
    double *v = ND_NEWN(j->c->arena, double, 4 * n);
    const double one[] = {j->f, j->i, j->w, j->message};
    for (int k = 0; k < 4 * n; k++)
        v[k] = one[k / n];
    j->costs = (sched_costs){.f = v, .i = v + n, .w = v + 2 * n,
                             .ahead = v + 3 * n, .back = v + 3 * n};
    return true;
}

/* ---- the schedule -------------------------------------------------------- */

static bool tell(job *j, const sched *s, const sched_error *e)
{
    return nd_schedule_error(j->c, nd_nowhere, j->o->what, s, e);
}

static bool read_file(job *j)
{
    sched_error e;
    int ranks = 0, micro = 0;
    const nd_file *f = load(j, j->o->what);
    if (!f)
        return false;
    j->s = sched_read(f->text, f->len, j->o->what, &e);
    if (!j->s)
        return tell(j, NULL, &e);
    if ((j->o->ranks &&
         !whole(j, "--ranks", j->o->ranks, MOST_RANKS, &ranks)) ||
        (j->o->microbatches && !whole(j, "--microbatches", j->o->microbatches,
                                      MOST_MICRO, &micro)))
        return false;
    if ((ranks && ranks != j->s->ranks) || (micro && micro != j->s->micro)) {
        nd_error(j->c, nd_nowhere, "%s: it is for %d ranks and %d "
                 "microbatches", j->o->what, j->s->ranks, j->s->micro);
        return false;
    }
    return find_costs(j, j->s->stages);
}

static bool unknown(job *j)
{
    const char *names[SCHED_NKINDS];
    for (int k = 0; k < SCHED_NKINDS; k++)
        names[k] = nd_fmt(j->c->arena, "%s%s", sched_kinds[k].name,
                          sched_kinds[k].v ? "" : "(2)");
    const char *near = nd_nearest(j->o->what, names, SCHED_NKINDS);
    nd_error(j->c, nd_nowhere, "no schedule is called `%s`%s%s%s", j->o->what,
             near ? "; did you mean `" : "", near ? near : "",
             near ? "`?" : "; see ndc schedule --list");
    return false;
}

/* Over a loop and, where stages can lie so, over a vee. */
static bool search(job *j, sched_ask ask)
{
    int v = sched_per_rank(ask.kind, ask.v), room = 0, which;
    double *each = ND_NEWN(j->c->arena, double, v * ask.ranks);
    double *most = ND_NEWN(j->c->arena, double, ask.ranks);
    sched_costs costs = j->costs;
    sched_error e;
    if (j->o->room && !whole(j, "--room", j->o->room, MOST_ACTIONS, &room))
        return false;
    for (int s = 0; s < v * ask.ranks; s++)
        each[s] = 1;
    for (int r = 0; r < ask.ranks; r++)
        most[r] = room;
    costs.until_w = each;
    ask.costs = &costs;
    ask.room = room ? most : NULL;
    ask.sync = true;
    sched_ask asks[] = {ask, ask};
    asks[1].where = SCHED_VEE;
    j->s = sched_make_best(asks, v > 1 ? 2 : 1, &which, &e);
    return j->s || tell(j, NULL, &e);
}

static bool make(job *j)
{
    sched_ask ask = {.costs = &j->costs, .sync = true};
    sched_error e;
    if (!sched_parse_name(j->o->what, &ask.kind, &ask.v))
        return unknown(j);
    if (!j->o->ranks || !j->o->microbatches)
        return fail(j, "a schedule is made for --ranks P and --microbatches M");
    if (!whole(j, "--ranks", j->o->ranks, MOST_RANKS, &ask.ranks) ||
        !whole(j, "--microbatches", j->o->microbatches, MOST_MICRO,
               &ask.micro))
        return false;
    int64_t v = sched_per_rank(ask.kind, ask.v);
    if (2 * v * ask.ranks * ask.micro > MOST_ACTIONS)
        return fail(j, "that is a schedule of more than 20 million actions");
    if (!sched_legal(&ask, &e))
        return fail(j, e.text);      /* it begins with the schedule's name */
    if (!find_costs(j, (int)v * ask.ranks))
        return false;
    if (ask.kind == SCHED_KIND_AUTO)
        return search(j, ask);
    if (j->o->room)
        return fail(j, "--room goes with auto: other schedules take what they "
                    "need");
    j->s = sched_make(&ask, &e);
    return j->s || tell(j, NULL, &e);
}

static bool is_file(const char *what)
{
    return strpbrk(what, "./") != NULL;
}

/* ---- what it is shown as ------------------------------------------------- */

/* Messages are made, and the whole proved, whatever is shown. */
static bool prove(job *j)
{
    sched_error e;
    if (j->s->lowered) {             /* a file says itself what crosses */
        uint8_t *cross = ND_NEWN(j->c->arena, uint8_t, j->s->stages);
        sched_crossings(j->s, cross);
        j->costs.cross = cross;
    }
    if (!sched_check(j->s, j->costs.cross, &e))
        return tell(j, j->s, &e);
    if (j->s->lowered)
        return true;
    if (!sched_lower(j->s, &j->costs, &e) || !sched_check(j->s, NULL, &e))
        return tell(j, j->s, &e);
    return true;
}

static bool show(job *j, form as, sched_text *out)
{
    sched_error e;
    sched_times t;
    if (!sched_time(j->s, &j->costs, &t, &e))
        return tell(j, j->s, &e);
    if (as == AS_TIMELINE)
        sched_draw(j->s, &t, j->seconds, out);
    else if (as == AS_FIGURES)
        sched_figures(j->s, &t, j->seconds, out);
    else if (as == AS_SVG)
        sched_svg(j->s, &t, &j->costs, j->seconds, out);
    else if (as == AS_JSON)
        sched_trace(j->s, &j->costs, j->seconds, out);
    else
        sched_write(j->s, as == AS_CSV, out);
    free(t.rank);
    return true;
}

static void list_kinds(sched_text *out)
{
    for (int k = 0; k < SCHED_NKINDS; k++) {
        const sched_info *i = &sched_kinds[k];
        sched_put(out, "%s%-*s%s\n", i->name, 18 - (int)strlen(i->name),
                  i->v ? "" : "(v)", i->doc);
    }
    sched_put(out, "auto(v)           the fastest that a search finds for "
              "--costs or --times\n");
}

static bool produce(job *j, sched_text *out)
{
    form as;
    if (j->o->list) {
        list_kinds(out);
        return true;
    }
    if (j->o->costs && j->o->times)
        return fail(j, "times are --costs or --times FILE, not both");
    if (!find_form(j, &as) || (j->o->costs && !read_costs(j, j->o->costs)))
        return false;
    return (is_file(j->o->what) ? read_file(j) : make(j)) && prove(j) &&
           show(j, as, out);
}

int ndc_schedule(const ndc_schedule_options *o)
{
    job j = {.c = nd_ctx_new(), .o = o, .f = 1, .i = 1, .w = 1};
    sched_text out = {0};
    bool ok = produce(&j, &out) && nd_write(j.c, o->out, out.s, out.n);
    free(out.s);
    free(j.measured.v);
    sched_free(j.s);
    nd_ctx_free(j.c);
    return ok ? NDC_OK : NDC_BAD_INPUT;
}
