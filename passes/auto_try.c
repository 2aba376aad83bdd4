/* auto_try.c - what schedule = auto chooses from: how many stages a device has,
 * where they lie, whether backward is in two halves, and what is done in which
 * order.
 *
 *   auto       1 stage, 2 in a loop, 2 in a vee, 4; backward in one or in two
 *   auto(2)    2 in a loop, 2 in a vee; ...
 *
 * Each of them is compiled to the end on a copy of the module, so that times
 * are those of its own stages and bytes those of the program. Then orders for
 * it are made: those with names, and searched ones, which may keep less, too.
 * What is kept of a step is found by laying it out, and nothing is estimated.
 */
#include "schedule_auto.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TRIES = 4 };             /* with less and less room */

/* ---- programs ------------------------------------------------------------ */

static void measure_slots(auto_choice *c, auto_shape *x)
{
    const nd_program *p = x->m->program;
    const nd_code *code = nd_code_new(x->m);
    x->stage = code->mem.stage;
    x->fixed = ND_NEWN(c->a, double, 2 * c->devices);
    x->set = x->fixed + c->devices;
    for (int d = 0; d < c->devices; d++)
        x->fixed[d] = (double)code->mem.device[d].fixed_bytes;
    for (int s = 0; s < p->nstages; s++)
        for (int k = 0; k < SCHED_NSPANS; k++)
            x->set[p->stage[s].device] +=
                (double)x->stage[s].kept[false][1 + k];
}

/* What the search counts with: bytes of slots. */
static void tell_bytes(auto_choice *c, auto_shape *x)
{
    nd_program *p = x->m->program;
    double *kept = ND_NEWN(c->a, double, SCHED_NSPANS * p->nstages);
    for (int s = 0; s < p->nstages; s++)
        for (int k = 0; k < SCHED_NSPANS; k++)
            kept[k * p->nstages + s] =
                (double)x->stage[s].kept[false][1 + k];
    p->costs.until_i = kept;
    p->costs.until_w = kept + p->nstages;
    p->costs.i_to_w = kept + 2 * p->nstages;
}

static bool same_stages(const nd_module *a, const nd_module *b)
{
    for (int s = 0; s < a->program->nstages; s++) {
        const nd_stage *x = &a->program->stage[s], *y = &b->program->stage[s];
        if (x->fwd.n != y->fwd.n)
            return false;
        for (int i = 0; i < a->plan.piped.n; i++)
            if (x->iters[i].lo != y->iters[i].lo ||
                x->iters[i].hi != y->iters[i].hi)
                return false;
    }
    return true;
}

static bool is_known(const auto_choice *c, const auto_shape *x)
{
    for (const auto_shape *y = c->shape; y < x; y++)
        if (y->is.v == x->is.v && y->is.where == x->is.where &&
            y->is.whole == x->is.whole && same_stages(x->m, y->m))
            return true;
    return false;
}

static void add_shape(auto_choice *c, nd_searched is)
{
    auto_shape *x = &c->shape[c->nshapes];
    *x = (auto_shape){.is = is, .m = nd_module_copy(c->m)};
    x->m->plan.per_device = is.v;
    x->m->plan.searched = &x->is;
    if (!nd_run_quietly(x->m, c->o, "pipeline") || is_known(c, x))
        return;
    measure_slots(c, x);
    tell_bytes(c, x);
    c->nshapes++;
}

static int64_t iterations(const nd_module *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->plan.piped.n; i++)
        n += m->plan.piped.v[i]->size;
    return n;
}

/* Backward in one and in two; where memory is scarce, cut for that, too. */
static void add_place(auto_choice *c, int v, sched_where where)
{
    for (int tight = 0; tight <= (c->m->plan.memory > 0); tight++)
        for (int whole = 1; whole >= 0; whole--)
            add_shape(c, (nd_searched){.v = v, .where = where, .whole = whole,
                                       .tight = tight});
}

void auto_add_shapes(auto_choice *c)
{
    int v = c->m->plan.per_device;
    if (v) {
        add_place(c, v, SCHED_LOOP);
        if (v > 1)
            add_place(c, v, SCHED_VEE);
        return;
    }
    add_place(c, 1, SCHED_LOOP);
    if (iterations(c->m) >= 2 * c->devices) {
        add_place(c, 2, SCHED_LOOP);
        add_place(c, 2, SCHED_VEE);
    }
    if (iterations(c->m) >= 4 * c->devices)
        add_place(c, 4, SCHED_LOOP);
}

/* ---- orders -------------------------------------------------------------- */

static sched_ask ask_of(const auto_choice *c, const auto_shape *x,
                        sched_kind kind)
{
    return (sched_ask){.kind = kind, .ranks = c->devices, .v = x->is.v,
                       .micro = c->m->plan.microbatches,
                       .where = x->is.where, .whole = x->is.whole,
                       .costs = &x->m->program->costs,
                       .sync = c->m->train.clip > 0};
}

/* Is it a kind of this shape, and in ascending order of microbatches? */
static bool has_shape(sched_kind k, const auto_shape *x)
{
    const sched_info *i = &sched_kinds[k];
    return !sched_has(k, 'a') && !sched_has(k, 'd') &&
           sched_has(k, 'w') == !x->is.whole &&
           (x->is.v == 1 || i->where == x->is.where) &&
           (i->v ? i->v : x->is.v > 1 ? x->is.v : 0) == x->is.v;
}

static bool same_rows(const sched *a, const sched *b)
{
    for (int r = 0; r < a->ranks; r++) {
        if (a->row[r].n != b->row[r].n)
            return false;
        for (int i = 0; i < a->row[r].n; i++) {
            sched_action x = a->row[r].v[i], y = b->row[r].v[i];
            if (x.op != y.op || x.stage != y.stage || x.mb != y.mb)
                return false;
        }
    }
    return true;
}

/* Calls what was searched for by the name that it has otherwise. */
static void find_name(const auto_choice *c, const auto_shape *x, sched *s)
{
    for (int k = 0; k < SCHED_NKINDS; k++) {
        sched_ask ask = ask_of(c, x, (sched_kind)k);
        sched_error e;
        sched *named = has_shape(ask.kind, x) ? sched_make(&ask, &e) : NULL;
        bool same = named && same_rows(s, named);
        if (same)
            memcpy(s->name, named->name, sizeof s->name);
        sched_free(named);
        if (same)
            return;
    }
}

static const char *searched_name(const auto_choice *c, const nd_searched *x)
{
    return x->v == 1 ? "auto"
           : nd_fmt(c->a, "auto(%d)%s", x->v,
                    x->where == SCHED_VEE ? " in a vee" : "");
}

sched *auto_make(const auto_choice *c, const auto_shape *x,
                 const sched_ask *ask)
{
    sched_error e;
    sched *s = sched_make(ask, &e);
    if (s && ask->kind == SCHED_KIND_AUTO)
        find_name(c, x, s);
    if (!s || nd_schedule_lower(x->m, s, &e))
        return s;
    sched_free(s);
    return NULL;
}

static bool rate(auto_choice *c, const auto_shape *x, const sched_ask *ask,
                 auto_candidate *out)
{
    nd_program *p = x->m->program;
    sched *s = auto_make(c, x, ask), *was = p->sched;
    bool *again = ND_NEWN(c->a, bool, p->nstages);
    if (!s)
        return false;
    *out = (auto_candidate){.at = x, .ask = *ask,
                       .by_device = ND_NEWN(c->a, double, c->devices)};
    p->sched = s;
    for (int d = 0; d < c->devices; d++) {
        size_t slots = nd_slots_bytes(x->m, x->stage, d, again);
        out->by_device[d] = x->fixed[d] + (double)slots;
        out->bytes = fmax(out->bytes, out->by_device[d]);
    }
    p->sched = was;
    out->fits = out->bytes <= c->limit;
    out->seconds = sched_step_time(s, ask);
    out->name = strcmp(s->name, "auto") ? nd_strdup(c->a, s->name)
                                        : searched_name(c, &x->is);
    sched_free(s);
    return true;
}

static void try_kinds(auto_choice *c, const auto_shape *x)
{
    for (int k = 0; k < SCHED_NKINDS; k++) {
        sched_ask ask = ask_of(c, x, (sched_kind)k);
        auto_candidate found;
        if (has_shape(ask.kind, x) && rate(c, x, &ask, &found))
            ND_PUSH(c->a, &c->all, found);
    }
}

static double *room_within(const auto_choice *c, const auto_shape *x,
                           double bytes)
{
    double *room = ND_NEWN(c->a, double, c->devices);
    for (int d = 0; d < c->devices; d++)
        room[d] = bytes - x->fixed[d];
    return isinf(bytes) ? NULL : room;
}

/* Searches with so many bytes of a device. What is kept when messages and the
 * layout of slots are known may be more: then again with less room. */
static void search(auto_choice *c, const auto_shape *x, double bytes)
{
    sched_ask ask = ask_of(c, x, SCHED_KIND_AUTO);
    double *room = room_within(c, x, bytes);
    auto_candidate found;
    ask.quick = true;
    ask.room = room;
    for (int i = 1; rate(c, x, &ask, &found); i++) {
        if (i == MOST_TRIES || found.fits) {
            ND_PUSH(c->a, &c->all, found);
            return;
        }
        double *less = ND_NEWN(c->a, double, c->devices);
        for (int d = 0; d < c->devices; d++)
            less[d] = room[d] - (ask.slots ? fmax(0, found.by_device[d] - bytes)
                                           : 0);
        ask.room = room = less;
        ask.slots = true;
    }
}

void auto_search_more(auto_choice *c, const auto_candidate *x)
{
    sched_ask ask = x->ask;
    auto_candidate found;
    if (ask.kind != SCHED_KIND_AUTO) {
        ask = ask_of(c, x->at, SCHED_KIND_AUTO);
        ask.room = room_within(c, x->at, isinf(c->limit) ? x->bytes : c->limit);
    }
    ask.quick = false;
    if (rate(c, x->at, &ask, &found))
        ND_PUSH(c->a, &c->all, found);
}

/* Of a device that keeps n microbatches, on the fullest one. */
static double bytes_for(const auto_choice *c, const auto_shape *x, int n)
{
    double most = 0;
    for (int d = 0; d < c->devices; d++)
        most = fmax(most, x->fixed[d] + n * x->set[d]);
    return most;
}

/* Searched for in all the room there is; in twice what 1f1b needs; in that. */
void auto_try(auto_choice *c, const auto_shape *x)
{
    try_kinds(c, x);
    search(c, x, c->limit);
    for (int k = 2; k >= 1; k--) {
        double bytes = bytes_for(c, x, k * c->devices);
        if (bytes < c->limit)
            search(c, x, bytes);
    }
}

void auto_search_least(auto_choice *c)
{
    for (int i = 0; i < c->nshapes; i++) {
        sched_ask ask = ask_of(c, &c->shape[i], SCHED_KIND_AUTO);
        auto_candidate found;
        ask.quick = ask.slots = true;
        ask.room = c->shape[i].set;
        if (rate(c, &c->shape[i], &ask, &found))
            ND_PUSH(c->a, &c->all, found);
    }
}
