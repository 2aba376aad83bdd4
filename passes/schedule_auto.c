/* schedule_auto.c - schedule = auto: how many stages a device has, where they
 * lie, whether backward is in two halves, and what is done in which order.
 *
 *   auto, memory = 80e6    gpipe   1.1 ms   84 MB   too many
 *                          1f1b    1.2 ms   63 MB
 *                          auto    0.9 ms   76 MB   chosen
 *
 * What there is to choose from is rated by the time of a step and the bytes of
 * the fullest device; of what fits, the fastest is taken. It is then searched
 * for once more, in full.
 */
#include "schedule_auto.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Gains that are not worth another kind of program, or much more memory. */
static const double small_gain = 1.01, much_more = 1.25;

/* ---- the choice ---------------------------------------------------------- */

/* Backward in one goes with better kernels; where memory is not scarce, less of
 * it is of more use than a little time. */
static bool is_better(const auto_choice *c, const auto_candidate *a,
                      const auto_candidate *b)
{
    if (a->at->is.whole != b->at->is.whole)
        return a->at->is.whole;
    double time = a->seconds - b->seconds, bytes = a->bytes - b->bytes;
    if (fabs(time) <= 1e-9 * b->seconds)
        time = 0;
    double first = isinf(c->limit) ? bytes : time,
           second = isinf(c->limit) ? time : bytes;
    return first != 0 ? first < 0 : second < 0;
}

/* Of what fits, within a small gain of the fastest; without a limit, and not
 * much larger than the smallest of these. -1: nothing fits. */
static int best_of(const auto_choice *c)
{
    double least = INFINITY, smallest = INFINITY;
    int best = -1;
    for (int i = 0; i < c->all.n; i++)
        if (c->all.v[i].fits)
            least = fmin(least, c->all.v[i].seconds);
    for (int i = 0; i < c->all.n; i++)
        if (c->all.v[i].fits && c->all.v[i].seconds <= least * small_gain)
            smallest = fmin(smallest, c->all.v[i].bytes);
    for (int i = 0; i < c->all.n; i++) {
        const auto_candidate *x = &c->all.v[i];
        if (x->fits && x->seconds <= least * small_gain &&
            (!isinf(c->limit) || x->bytes <= smallest * much_more) &&
            (best < 0 || is_better(c, x, &c->all.v[best])))
            best = i;
    }
    return best;
}

static int smallest_of(const auto_choice *c)
{
    int best = 0;
    for (int i = 1; i < c->all.n; i++)
        if (c->all.v[i].bytes < c->all.v[best].bytes)
            best = i;
    return best;
}

static bool refuse(const auto_choice *c, const auto_candidate *least)
{
    nd_ctx *x = c->m->ctx;
    int d = 0;
    nd_error(x, c->m->plan.schedule_loc, "no schedule fits a device in %.0f "
             "bytes", c->limit);
    for (int i = 1; i < c->devices; i++)
        d = least->by_device[i] > least->by_device[d] ? i : d;
    nd_note(x, nd_nowhere, "%s needs least: %.0f bytes on device %d, of which "
            "%.0f are for weights, gradients, optimizer state, inputs and "
            "temporaries", least->name, least->bytes, d, least->at->fixed[d]);
    return false;
}

static int by_time(const void *x, const void *y)
{
    const nd_candidate *a = x, *b = y;
    return a->seconds != b->seconds ? (a->seconds > b->seconds) -
                                      (a->seconds < b->seconds)
           : a->bytes != b->bytes   ? (a->bytes > b->bytes) -
                                      (a->bytes < b->bytes)
                                    : strcmp(a->name, b->name);
}

/* A row for each name: of several the chosen one, or one that fits, or the
 * fastest. */
static void list(const auto_choice *c, int chosen, nd_searched *out)
{
    out->row = ND_NEWN(c->a, nd_candidate, c->all.n);
    for (int i = 0; i < c->all.n; i++) {
        const auto_candidate *x = &c->all.v[i];
        nd_candidate row = {x->name, x->seconds, x->bytes, x->fits,
                            i == chosen};
        int k = 0;
        while (k < out->n && strcmp(out->row[k].name, x->name))
            k++;
        nd_candidate *old = &out->row[k];
        bool better = k == out->n || row.chosen ||
                      (!old->chosen && (row.fits != old->fits ? row.fits
                                        : by_time(&row, old) < 0));
        if (better)
            *old = row;
        out->n += k == out->n;
    }
    qsort(out->row, (size_t)out->n, sizeof *out->row, by_time);
}

static bool take(auto_choice *c, int best)
{
    const auto_candidate *x = &c->all.v[best];
    nd_searched *out = ND_NEW(c->a, nd_searched);
    *out = x->at->is;
    out->limit = isinf(c->limit) ? 0 : c->limit;
    out->measured = c->o && c->o->times;
    out->sched = auto_make(c, x->at, &x->ask);
    if (!out->sched)
        abort();
    nd_ctx_keep(c->m->ctx, (void (*)(void *))sched_free, out->sched);
    list(c, best, out);
    c->m->plan.searched = out;
    c->m->plan.per_device = out->v;
    return true;
}

/* Of a device: what the plan says, or what recompute may choose by. */
static double limit_of(const nd_plan *p)
{
    return p->memory > 0 && (p->room <= 0 || p->memory < p->room) ? p->memory
           : p->room > 0                                          ? p->room
                                                                  : INFINITY;
}

bool nd_choose_schedule(nd_module *m, const nd_options *o)
{
    auto_choice c = {.m = m, .a = m->ctx->arena, .o = o,
                .devices = m->mesh.size[m->mesh.pipe],
                .limit = limit_of(&m->plan)};
    auto_add_shapes(&c);
    for (int i = 0; i < c.nshapes; i++)
        auto_try(&c, &c.shape[i]);
    if (!c.all.n)                    /* the program's own run tells why */
        return true;
    int best = best_of(&c);
    if (best < 0) {
        auto_search_least(&c);
        best = best_of(&c);
    }
    /* Recompute may still find a way to fit, or tells what is missing. */
    if (best < 0)
        return m->plan.room > 0 ? take(&c, smallest_of(&c))
                                : refuse(&c, &c.all.v[smallest_of(&c)]);
    auto_candidate first = c.all.v[best];
    auto_search_more(&c, &first);
    return take(&c, best_of(&c));
}
