/* memplan.c - a fixed place for every buffer.
 *
 *   weights | gradients | optimizer state | loss        of a device, once
 *   | inputs, and what is computed before the microbatches
 *   | temporaries of all lists of all stages, which never run at once
 *   | per stage, per span of time: slots, each for what a microbatch keeps,
 *     and for temporaries while that is not there (memtemps.c); some of it
 *     lies over gradients that come later (lend.c)
 *   | weights of earlier updates, of an asynchronous schedule
 *
 * What a stage keeps of a microbatch lives until its gradients have been taken:
 * until I if W reads it not, else until W; or from I to W. Each span has room
 * for as many microbatches as the schedule lets live at once: slots, which
 * stages of a device may share (memslots.c). Offsets are those within one slot,
 * so another schedule has the same offsets.
 *
 * So the peak is the sum of the parts, known here, and nothing is allocated
 * later.
 */
#include "memplan.h"

#include <stdlib.h>

static size_t up64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

void nd_add_place(nd_code *c, nd_stage_mem *s, const nd_value *v, int room,
                  size_t base)
{
    int stage = (int)(s - c->mem.stage);
    nd_place p = {v, room, base, nd_place_bytes(c, v, stage)};
    ND_PUSH(c->a, &s->places, p);
}

/* ---- a stage ------------------------------------------------------------ */

typedef struct stage_use {
    nd_code *c;
    int list;
    uint8_t *lists;                  /* by mark: bits of the lists */
} stage_use;

static void note_list(void *user, const nd_ref *at, bool write, int index)
{
    stage_use *u = user;
    (void)write;
    (void)index;
    if (at->root == AT_BUFFER &&
        nd_home_block(u->c, at->value) == u->c->m->step)
        u->lists[at->value->mark] |= (uint8_t)(1 << u->list);
}

static void mark_root(nd_code *c, uint8_t *lists, const nd_value *v, int flag)
{
    nd_ref r;
    if (nd_ref_of(c, v, &r) && r.root == AT_BUFFER)
        lists[r.value->mark] |= (uint8_t)flag;
}

/* user: the bits by mark */
static void mark_late(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    (void)in_memory;
    /* The sum of the losses is taken in the forward list. */
    mark_root(c, user, leaf, READ_LATE | 1 << LIST_FWD);
}

bool nd_has_loss(const nd_module *m, int stage)
{
    const nd_stage *st = &m->program->stage[stage];
    for (int i = 0; m->loss && i < st->fwd.n; i++)
        if (st->fwd.v[i] == m->loss->def)
            return true;
    return false;
}

static void find_uses(nd_code *c, int s, uint8_t *lists)
{
    const nd_program *p = c->m->program;
    const nd_stage *st = &p->stage[s];
    stage_use u = {.c = c, .lists = lists};
    for (u.list = 0; u.list < NLISTS; u.list++)
        nd_touch_list(c, &c->stage[s].list[u.list], note_list, &u, -1);
    for (int i = 0; i < st->send_fwd.n; i++)
        mark_root(c, lists, st->send_fwd.v[i].from, CROSSES);
    for (int i = 0; i < st->send_bwd.n; i++)
        mark_root(c, lists, st->send_bwd.v[i].from, CROSSES);
    for (int i = 0; s > 0 && i < p->stage[s - 1].send_fwd.n; i++)
        mark_root(c, lists, p->stage[s - 1].send_fwd.v[i].to, CROSSES);
    for (int i = 0; s + 1 < p->nstages && i < p->stage[s + 1].send_bwd.n; i++)
        mark_root(c, lists, p->stage[s + 1].send_bwd.v[i].to, CROSSES);
    for (int i = 0; i < st->fwd.n; i++)
        if (st->fwd.v[i]->kind == OP_OUTPUT)
            nd_leaves(c, st->fwd.v[i], mark_late, lists);
    if (nd_has_loss(c->m, s))
        nd_leaves_of(c, c->m->loss, false, mark_late, lists);
}

size_t nd_state_bytes(const nd_code *c, int bucket)
{
    const nd_bucket *b = &c->mem.buckets.v[bucket];
    size_t n = b->n;
    for (int i = 0; i < c->m->mesh.n; i++)
        if (b->zero >> i & 1)
            n /= (size_t)c->m->mesh.size[i];
    return n * 4;
}

int nd_states_of(const nd_train *t, bool frozen, bool muon)
{
    if (frozen)
        return 0;
    switch (t->opt) {
    case OPT_SGD:
        return t->momentum != 0;
    case OPT_LION:
        return 1;
    case OPT_ADAM:
    case OPT_ADAMW:
    case OPT_MUON:
        break;
    }
    return muon ? 1 : 2;
}

/* Room for muon to gather and orthogonalise one matrix of the largest
 * parameter, laid out by runtime/muon.c. */
static size_t muon_work(nd_code *c, const nd_device_mem *mem)
{
    size_t most = 0;
    for (int i = 0; i < mem->buckets.n; i++) {
        const nd_bucket *b = &c->mem.buckets.v[mem->buckets.v[i].bucket];
        for (int k = 0; k < b->params.n && b->muon; k++) {
            const nd_param *p = b->params.v[k];
            const nd_type *t = &p->value->type;
            size_t rows = (size_t)p->fan_in, cols = (size_t)p->fan_out;
            size_t less = rows < cols ? rows : cols, piece = 1, ranks = 1;
            for (int a = p->lead + p->nlayers; a < t->rank; a++)
                piece *= (size_t)c->exts.v[nd_ext_of(c, t, a)].max;
            for (int a = 0; a < c->m->mesh.n; a++)
                if (nd_matrix_cut(p) >> a & 1)
                    ranks *= (size_t)c->m->mesh.size[a];
            size_t bytes = 2 * up64(rows * cols * 4) +
                           2 * up64(less * less * 4) +
                           (ranks > 1 ? up64(ranks * piece * 4) : 0);
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

/* Flat ranges of the parameters; returns the end. */
static size_t place_buckets(nd_code *c, int device, nd_device_mem *mem)
{
    size_t at = 0;
    for (int i = 0; i < c->mem.buckets.n; i++) {
        const nd_bucket *b = &c->mem.buckets.v[i];
        if (!(b->devices >> device & 1))
            continue;
        nd_bucket_place p = {i, at, (size_t)-1, (size_t)-1, (size_t)-1};
        mem->weight_bytes += b->n * 4;
        at += up64(b->n * 4);
        ND_PUSH(c->a, &mem->buckets, p);
    }
    int older = nd_versions(c->m, device) - 1;
    mem->version_bytes = older ? at : 0;
    mem->older_bytes = at * (size_t)older;
    for (int i = 0; i < mem->buckets.n && c->m->loss; i++) {
        const nd_bucket *b = &c->mem.buckets.v[mem->buckets.v[i].bucket];
        mem->buckets.v[i].grads = at;
        mem->grad_bytes += b->n * 4;
        at += up64(b->n * 4);
    }
    for (int i = 0; i < mem->buckets.n && c->m->loss; i++) {
        nd_bucket_place *p = &mem->buckets.v[i];
        const nd_bucket *b = &c->mem.buckets.v[p->bucket];
        size_t bytes = nd_state_bytes(c, p->bucket);
        int n = nd_states_of(&c->m->train, b->frozen, b->muon);
        for (int k = 0; k < n; k++) {
            *(k ? &p->state2 : &p->state1) = at;
            mem->state_bytes += bytes;
            at += up64(bytes);
        }
    }
    return at;
}

/* What a buffer that outlives its list counts as. A parameter that is gathered
 * once per step is kept as other weights are. */
static void count_bytes(nd_device_mem *d, nd_stage_mem *mem, const nd_value *v,
                        size_t bytes)
{
    if (v->def && v->def->kind == OP_INPUT)
        d->input_bytes += bytes;
    else if (v->def && v->def->phase == PH_PRE && nd_is_weight_copy(v))
        d->weight_bytes += bytes;
    else
        mem->saved_bytes += bytes;
}

/* The room of what a list made or a message brought; -1 of a temporary. What W
 * reads lives until then, from I on if I made it; but messages may come before
 * I and go after W. */
static int room_of(int lists)
{
    enum { PRE = 1 << LIST_PRE, FWD = 1 << LIST_FWD, BWD = 1 << LIST_BWD,
           WGT = 1 << LIST_WGT };
    int in = lists & (FWD | BWD | WGT);
    bool outlives = (lists & CROSSES) || (in & (in - 1));
    if (lists & PRE)
        return in || lists & CROSSES ? ROOM_FIXED : -1;
    if (!outlives)
        return -1;
    return !(in & WGT)                       ? ROOM_UNTIL_I
           : (in & FWD) || (lists & CROSSES) ? ROOM_UNTIL_W
                                             : ROOM_I_TO_W;
}

/* What has a place of its own on the device: the inputs, which all its stages
 * read in the same one, and what a stage computes once per step. */
static size_t place_once(nd_code *c, int s, const uint8_t *lists, bool *skip,
                         size_t *input_at, size_t at)
{
    nd_stage_mem *mem = &c->mem.stage[s];
    nd_device_mem *d = &c->mem.device[c->m->program->stage[s].device];
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < c->nvalues; i++) {
            const nd_value *v = c->info[i].v;
            bool input = v->def && v->def->kind == OP_INPUT;
            if (!lists[i] || input == (pass == 1) ||
                (!input && room_of(lists[i]) != ROOM_FIXED))
                continue;
            bool known = input && input_at[i];
            nd_add_place(c, mem, v, ROOM_FIXED, known ? input_at[i] - 1 : at);
            skip[i] = true;
            if (known)
                continue;
            input_at[i] = at + 1;
            count_bytes(d, mem, v, nd_place_bytes(c, v, s));
            at += nd_place_bytes(c, v, s);
        }
    return at;
}

/* The same on a stage that runs forward again right before backward: what that
 * makes, outputs aside, is there for one microbatch, or from then until W. */
static int room_again(int lists)
{
    int room = room_of(lists);
    if (!(lists & 1 << LIST_FWD) || lists & (CROSSES | READ_LATE))
        return room;
    return room == ROOM_UNTIL_I ? ROOM_FIXED
           : room == ROOM_UNTIL_W ? ROOM_I_TO_W : room;
}

/* What the forward list makes for the backward list alone. */
static bool is_held(int lists)
{
    return room_of(lists) == ROOM_UNTIL_I && room_again(lists) == ROOM_FIXED;
}

/* Some of that has a place over gradients. Returns by how much these moved. */
static size_t find_lent(nd_code *c, int s, const uint8_t *lists, nd_held *held)
{
    ND_VEC(nd_place) kept = {0};
    for (int i = 0; i < c->nvalues; i++) {
        const nd_value *v = c->info[i].v;
        bool input = v->def && v->def->kind == OP_INPUT;
        if (lists[i] && !input && is_held(lists[i]))
            ND_PUSH(c->a, &kept, ((nd_place){v, ROOM_FIXED, 0,
                                             nd_place_bytes(c, v, s)}));
    }
    return nd_lend(c, kept.v, kept.n, held);
}

static void place_lent(nd_code *c, int s, bool *skip, const nd_held *held)
{
    nd_device_mem *d = &c->mem.device[c->m->program->stage[s].device];
    for (int i = 0; i < held->lent.n; i++) {
        const nd_lent *x = &held->lent.v[i];
        if (!x->value)
            continue;
        nd_add_place(c, &c->mem.stage[s], x->value, ROOM_FIXED, x->at);
        skip[x->value->mark] = true;
        d->lent_bytes += x->over;
        d->saved_bytes += x->bytes;
    }
}

/* What each microbatch keeps, as it is and were it otherwise; in either case
 * what is held lies side by side. */
static size_t place_kept(nd_code *c, int s, const uint8_t *lists, bool *skip,
                         nd_held *held, size_t at)
{
    nd_stage_mem *mem = &c->mem.stage[s];
    nd_device_mem *d = &c->mem.device[c->m->program->stage[s].device];
    bool again = nd_runs_again(&c->m->plan, s);
    held->room = again ? ROOM_FIXED : ROOM_UNTIL_I;
    held->base = again ? at : 0;
    place_lent(c, s, skip, held);
    for (int i = 0; i < 2 * c->nvalues; i++) {
        int j = i % c->nvalues;
        const nd_value *v = c->info[j].v;
        int room = lists[j] && !skip[j] ? room_of(lists[j]) : -1;
        if (room < ROOM_UNTIL_I || is_held(lists[j]) != (i < c->nvalues))
            continue;
        int other = room_again(lists[j]), here = again ? other : room;
        size_t bytes = nd_place_bytes(c, v, s);
        skip[j] = true;
        nd_add_place(c, mem, v, here,
                     here == ROOM_FIXED ? at : mem->kept[again][here]);
        if (here == ROOM_FIXED) {
            count_bytes(d, mem, v, bytes);
            at += bytes;
        }
        if (i < c->nvalues) {
            ND_PUSH(c->a, &held->v, ((nd_place){v, here, held->bytes, bytes}));
            held->bytes += bytes;
        }
        mem->kept[false][room] += bytes;
        mem->kept[true][other] += bytes;
    }
    return at;
}

/* The most that any kernel of the list needs aside while it runs. */
static size_t scratch_of(nd_code *c, const nd_kernels *list)
{
    size_t most = 0;
    for (int i = 0; i < list->v.n; i++) {
        const nd_kernel *k = list->v.v[i];
        size_t n = k->body ? scratch_of(c, k->body) : nd_scratch_bytes(c, k);
        most = n > most ? n : most;
    }
    return up64(most);
}

/* The most that one of its kernels keeps of a tile. */
static size_t tiles_of(const nd_kernels *list)
{
    size_t most = 0;
    for (int i = 0; i < list->v.n; i++) {
        const nd_kernel *k = list->v.v[i];
        size_t n = k->body ? tiles_of(k->body) : k->tiles ? k->tiles->bytes : 0;
        most = n > most ? n : most;
    }
    return most;
}

static int by_mark(const void *a, const void *b)
{
    const nd_place *x = a, *y = b;
    return (x->value->mark > y->value->mark) -
           (x->value->mark < y->value->mark);
}

/* The next of the device's stages after s, or nstages. */
static int next_stage(const nd_program *p, int device, int s)
{
    do
        s++;
    while (s < p->nstages && p->stage[s].device != device);
    return s;
}

/* By stage: does it run forward again? */
static const bool *again_on(const nd_code *c)
{
    int n = c->m->program->nstages;
    bool *again = ND_NEWN(c->a, bool, n);
    for (int s = 0; s < n; s++)
        again[s] = nd_runs_again(&c->m->plan, s);
    return again;
}

static void plan_device(nd_code *c, int device, uint8_t **lists, bool **skip,
                        nd_held *held)
{
    const nd_program *p = c->m->program;
    nd_device_mem *d = &c->mem.device[device];
    size_t at = place_buckets(c, device, d);
    size_t *input_at = ND_NEWN(c->a, size_t, c->nvalues + 1);
    d->loss = (size_t)-1;
    for (int s = -1; (s = next_stage(p, device, s)) < p->nstages;) {
        find_uses(c, s, lists[s]);
        at += find_lent(c, s, lists[s], &held[s]);
    }
    for (int s = -1; (s = next_stage(p, device, s)) < p->nstages;)
        if (nd_has_loss(c->m, s)) {
            d->loss = at;
            at += 64;
        }
    for (int s = -1; (s = next_stage(p, device, s)) < p->nstages;) {
        at = place_once(c, s, lists[s], skip[s], input_at, at);
        at = place_kept(c, s, lists[s], skip[s], &held[s], at);
        for (int l = 0; l < NLISTS; l++) {
            size_t n = scratch_of(c, &c->stage[s].list[l]);
            d->scratch_bytes = n > d->scratch_bytes ? n : d->scratch_bytes;
            n = tiles_of(&c->stage[s].list[l]);
            d->tile_bytes = n > d->tile_bytes ? n : d->tile_bytes;
        }
        d->saved_bytes += c->mem.stage[s].saved_bytes;
    }
    d->scratch = at;
    at += d->scratch_bytes;
    d->work = at;
    d->temp_bytes = d->work_bytes = c->m->loss ? muon_work(c, d) : 0;
    for (int s = -1; (s = next_stage(p, device, s)) < p->nstages;) {
        size_t n = nd_place_temps(c, s, lists[s], skip[s], &held[s], at);
        d->temp_bytes = n > d->temp_bytes ? n : d->temp_bytes;
    }
    d->fixed_bytes = at + d->temp_bytes;
    d->temp_bytes += d->scratch_bytes;
    size_t slots = nd_slots_bytes(c->m, c->mem.stage, device, again_on(c));
    d->saved_bytes += slots;
    d->arena_bytes = d->fixed_bytes + slots + d->older_bytes;
}

void nd_memplan_new(nd_code *c)
{
    const nd_program *p = c->m->program;
    uint8_t **lists = ND_NEWN(c->a, uint8_t *, p->nstages);
    bool **skip = ND_NEWN(c->a, bool *, p->nstages);
    nd_held *held = ND_NEWN(c->a, nd_held, p->nstages);
    c->mem.stage = ND_NEWN(c->a, nd_stage_mem, p->nstages);
    for (int s = 0; s < p->nstages; s++) {
        lists[s] = ND_NEWN(c->a, uint8_t, c->nvalues + 1);
        skip[s] = ND_NEWN(c->a, bool, c->nvalues + 1);
    }
    for (int d = 0; d < p->ndevices; d++)
        plan_device(c, d, lists, skip, held);
    for (int s = 0; s < p->nstages; s++) {
        nd_stage_mem *mem = &c->mem.stage[s];
        if (mem->places.n)
            qsort(mem->places.v, (size_t)mem->places.n, sizeof *mem->places.v,
                  by_mark);
    }
}

const nd_place *nd_place_of(const nd_stage_mem *s, const nd_value *v)
{
    int lo = 0, hi = s->places.n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (s->places.v[mid].value->mark < v->mark)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < s->places.n && s->places.v[lo].value == v ? &s->places.v[lo]
                                                          : NULL;
}
