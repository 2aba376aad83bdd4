/* schedule_auto.c - schedule = auto: how many stages a device has, where they
 * lie, whether backward is in two halves, and what is done in which order.
 *
 *   auto       1 stage, 2 in a loop, 2 in a vee, 4; backward in one or in two
 *   auto(2)    2 in a loop, 2 in a vee; ...
 *
 * Each of them is compiled to the end on a copy of the module, so that times
 * are those of its own stages and bytes those of the program. Then orders for
 * it are made: those with names, and searched ones, which may keep less, too.
 * What is kept of a step is found by laying it out, and nothing is estimated.
 */
#include "passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Gains that are not worth another kind of program, or much more memory. */
static const double small_gain = 1.01, much_more = 1.25;

enum { MOST_SHAPES = 16, MOST_TRIES = 4 };

typedef struct shape {
    nd_searched is;                  /* v, where, whole */
    nd_module *m;                    /* compiled to the end */
    const nd_stage_mem *stage;
    double *fixed, *set;             /* by device: bytes beside the slots; what
                                        all of its stages keep of one
                                        microbatch */
} shape;

typedef struct candidate {
    const shape *at;
    sched_ask ask;                   /* it is made again if it is chosen */
    const char *name;
    double seconds;
    double *by_device, bytes;        /* ... and of the fullest one */
    bool fits;
} candidate;

typedef struct choice {
    nd_module *m;
    nd_arena *a;
    const nd_options *o;
    int devices, nshapes;
    double limit;                    /* bytes of a device; INFINITY: none */
    shape shape[MOST_SHAPES];
    ND_VEC(candidate) all;
} choice;

/* ---- programs ------------------------------------------------------------ */

static void measure_slots(choice *c, shape *x)
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
static void tell_bytes(choice *c, shape *x)
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

static bool is_known(const choice *c, const shape *x)
{
    for (const shape *y = c->shape; y < x; y++)
        if (y->is.v == x->is.v && y->is.where == x->is.where &&
            y->is.whole == x->is.whole && same_stages(x->m, y->m))
            return true;
    return false;
}

static void add_shape(choice *c, nd_searched is)
{
    shape *x = &c->shape[c->nshapes];
    *x = (shape){.is = is, .m = nd_module_copy(c->m)};
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
static void add_place(choice *c, int v, sched_where where)
{
    for (int tight = 0; tight <= (c->m->plan.memory > 0); tight++)
        for (int whole = 1; whole >= 0; whole--)
            add_shape(c, (nd_searched){.v = v, .where = where, .whole = whole,
                                       .tight = tight});
}

static void add_shapes(choice *c)
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

static sched_ask ask_of(const choice *c, const shape *x, sched_kind kind)
{
    return (sched_ask){.kind = kind, .ranks = c->devices, .v = x->is.v,
                       .micro = c->m->plan.microbatches,
                       .where = x->is.where, .whole = x->is.whole,
                       .costs = &x->m->program->costs,
                       .sync = c->m->train.clip > 0};
}

/* Is it a kind of this shape, and in ascending order of microbatches? */
static bool has_shape(sched_kind k, const shape *x)
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
static void find_name(const choice *c, const shape *x, sched *s)
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

static const char *searched_name(const choice *c, const nd_searched *x)
{
    return x->v == 1 ? "auto"
           : nd_fmt(c->a, "auto(%d)%s", x->v,
                    x->where == SCHED_VEE ? " in a vee" : "");
}

/* Makes what is asked for, with its messages, as the program has it. */
static sched *make(const choice *c, const shape *x, const sched_ask *ask)
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

static bool rate(choice *c, const shape *x, const sched_ask *ask,
                 candidate *out)
{
    nd_program *p = x->m->program;
    sched *s = make(c, x, ask), *was = p->sched;
    bool *again = ND_NEWN(c->a, bool, p->nstages);
    if (!s)
        return false;
    *out = (candidate){.at = x, .ask = *ask,
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

static void try_kinds(choice *c, const shape *x)
{
    for (int k = 0; k < SCHED_NKINDS; k++) {
        sched_ask ask = ask_of(c, x, (sched_kind)k);
        candidate found;
        if (has_shape(ask.kind, x) && rate(c, x, &ask, &found))
            ND_PUSH(c->a, &c->all, found);
    }
}

static double *room_within(const choice *c, const shape *x, double bytes)
{
    double *room = ND_NEWN(c->a, double, c->devices);
    for (int d = 0; d < c->devices; d++)
        room[d] = bytes - x->fixed[d];
    return isinf(bytes) ? NULL : room;
}

/* Searches with so many bytes of a device. What is kept when messages and the
 * layout of slots are known may be more: then again with less room. */
static void search(choice *c, const shape *x, double bytes)
{
    sched_ask ask = ask_of(c, x, SCHED_KIND_AUTO);
    double *room = room_within(c, x, bytes);
    candidate found;
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

/* In full, with the room of what was found. */
static void search_more(choice *c, const candidate *x)
{
    sched_ask ask = x->ask;
    candidate found;
    if (ask.kind != SCHED_KIND_AUTO) {
        ask = ask_of(c, x->at, SCHED_KIND_AUTO);
        ask.room = room_within(c, x->at, isinf(c->limit) ? x->bytes : c->limit);
    }
    ask.quick = false;
    if (rate(c, x->at, &ask, &found))
        ND_PUSH(c->a, &c->all, found);
}

/* Of a device that keeps n microbatches, on the fullest one. */
static double bytes_for(const choice *c, const shape *x, int n)
{
    double most = 0;
    for (int d = 0; d < c->devices; d++)
        most = fmax(most, x->fixed[d] + n * x->set[d]);
    return most;
}

/* In all the room there is; in twice what 1f1b needs, and in that. */
static void search_all(choice *c, const shape *x)
{
    search(c, x, c->limit);
    for (int k = 2; k >= 1; k--) {
        double bytes = bytes_for(c, x, k * c->devices);
        if (bytes < c->limit)
            search(c, x, bytes);
    }
}

/* A microbatch at a time: to say how much is needed at least. */
static void search_least(choice *c)
{
    for (int i = 0; i < c->nshapes; i++) {
        sched_ask ask = ask_of(c, &c->shape[i], SCHED_KIND_AUTO);
        candidate found;
        ask.quick = ask.slots = true;
        ask.room = c->shape[i].set;
        if (rate(c, &c->shape[i], &ask, &found))
            ND_PUSH(c->a, &c->all, found);
    }
}

/* ---- the choice ---------------------------------------------------------- */

/* Backward in one goes with better kernels; where memory is not scarce, less of
 * it is of more use than a little time. */
static bool is_better(const choice *c, const candidate *a, const candidate *b)
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
static int best_of(const choice *c)
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
        const candidate *x = &c->all.v[i];
        if (x->fits && x->seconds <= least * small_gain &&
            (!isinf(c->limit) || x->bytes <= smallest * much_more) &&
            (best < 0 || is_better(c, x, &c->all.v[best])))
            best = i;
    }
    return best;
}

static int smallest_of(const choice *c)
{
    int best = 0;
    for (int i = 1; i < c->all.n; i++)
        if (c->all.v[i].bytes < c->all.v[best].bytes)
            best = i;
    return best;
}

static bool refuse(const choice *c, const candidate *least)
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
static void list(const choice *c, int chosen, nd_searched *out)
{
    out->row = ND_NEWN(c->a, nd_candidate, c->all.n);
    for (int i = 0; i < c->all.n; i++) {
        const candidate *x = &c->all.v[i];
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

static bool take(choice *c, int best)
{
    const candidate *x = &c->all.v[best];
    nd_searched *out = ND_NEW(c->a, nd_searched);
    *out = x->at->is;
    out->limit = isinf(c->limit) ? 0 : c->limit;
    out->measured = c->o && c->o->times;
    out->sched = make(c, x->at, &x->ask);
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
    choice c = {.m = m, .a = m->ctx->arena, .o = o,
                .devices = m->mesh.size[m->mesh.pipe],
                .limit = limit_of(&m->plan)};
    add_shapes(&c);
    for (int i = 0; i < c.nshapes; i++) {
        try_kinds(&c, &c.shape[i]);
        search_all(&c, &c.shape[i]);
    }
    if (!c.all.n)                    /* the program's own run tells why */
        return true;
    int best = best_of(&c);
    if (best < 0) {
        search_least(&c);
        best = best_of(&c);
    }
    /* Recompute may still find a way to fit, or tells what is missing. */
    if (best < 0)
        return m->plan.room > 0 ? take(&c, smallest_of(&c))
                                : refuse(&c, &c.all.v[smallest_of(&c)]);
    candidate first = c.all.v[best];
    search_more(&c, &first);
    return take(&c, best_of(&c));
}
