/* memplan.c - a fixed place in the stage's arena for every buffer.
 *
 *   weights | gradients | optimizer state | inputs | loss
 *   | saved: values that backward reads or that cross a stage boundary, one
 *     copy per microbatch in flight
 *   | temporaries of pre, forward and backward, which never run at once
 *
 * A temporary lives from the first to the last kernel that touches it; those
 * that never live together share bytes. What a repeat's body makes is planned
 * once and lies in one blob that lives while the repeat runs. So the peak is
 * the sum of the parts, known here, and nothing is allocated later.
 */
#include "passes.h"

#include <stdlib.h>
#include <string.h>

enum { LIST_PRE, LIST_FWD, LIST_BWD, NLISTS };

static size_t up64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* ---- packing intervals -------------------------------------------------- */

typedef struct item {
    const nd_value *v;               /* or */
    struct temps *blob;              /* the temporaries of a body */
    size_t bytes, at;
    int from, to;
} item;

typedef ND_VEC(item) items;

typedef struct ranked {
    item *x;
    int order;
} ranked;

/* Largest first; of the same size, the first one. */
static int by_size(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->x->bytes != y->x->bytes)
        return x->x->bytes < y->x->bytes ? 1 : -1;
    return x->order - y->order;
}

/* The placed items by the time they live: each in the few nodes of a binary
 * tree over all times that make up its life, and where it begins. */
typedef struct link {
    item *x;
    int next;                        /* link + 1 */
} link;

typedef struct span {
    size_t at, end;
} span;

typedef struct lives {
    nd_arena *a;
    int times;
    int *during, *begins;            /* link + 1, by node and by time */
    ND_VEC(link) links;
    size_t *full;                    /* by time: no gap is below */
    span *busy, *spare;
} lives;

static void add_link(lives *l, int *head, item *x)
{
    ND_PUSH(l->a, &l->links, ((link){x, *head}));
    *head = l->links.n;
}

static void add_life(lives *l, item *x)
{
    add_link(l, &l->begins[x->from], x);
    for (int t = x->from; t <= x->to; t++)
        if (x->at <= l->full[t] && x->at + x->bytes > l->full[t])
            l->full[t] = x->at + x->bytes;
    int lo = x->from + l->times, hi = x->to + l->times + 1;
    for (; lo < hi; lo /= 2, hi /= 2) {
        if (lo & 1)
            add_link(l, &l->during[lo++], x);
        if (hi & 1)
            add_link(l, &l->during[--hi], x);
    }
}

/* Those that end above `at`. */
static int add_busy(const lives *l, int n, int head, size_t at)
{
    for (; head; head = l->links.v[head - 1].next) {
        const item *x = l->links.v[head - 1].x;
        if (x->at + x->bytes > at)
            l->busy[n++] = (span){x->at, x->at + x->bytes};
    }
    return n;
}

/* Ascending by offset: a radix sort, for thousands may live at once and every
 * item asks anew. Offsets are multiples of 64 bytes. */
static const span *in_order(const lives *l, int n)
{
    enum { BITS = 11, SIZE = 1 << BITS };
    span *from = l->busy, *to = l->spare;
    size_t most = 0;
    for (int i = 0; i < n; i++)
        most = from[i].at > most ? from[i].at : most;
    for (size_t unit = 64; most / unit; unit <<= BITS) {
        int start[SIZE + 1] = {0};
        for (int i = 0; i < n; i++)
            start[from[i].at / unit % SIZE + 1]++;
        for (int k = 0; k < SIZE; k++)
            start[k + 1] += start[k];
        for (int i = 0; i < n; i++)
            to[start[from[i].at / unit % SIZE]++] = from[i];
        span *t = from;
        from = to;
        to = t;
    }
    return from;
}

/* The lowest offset that is free of the placed ones while x lives. */
static size_t lowest_gap(const lives *l, const item *x)
{
    size_t at = 0;
    int n = 0;
    for (int t = x->from; t <= x->to; t++)
        at = l->full[t] > at ? l->full[t] : at;
    for (int node = x->from + l->times; node; node /= 2)
        n = add_busy(l, n, l->during[node], at);
    for (int t = x->from + 1; t <= x->to; t++)
        n = add_busy(l, n, l->begins[t], at);
    const span *busy = in_order(l, n);
    for (int i = 0; i < n && busy[i].at < at + x->bytes; i++)
        at = busy[i].end > at ? busy[i].end : at;
    return at;
}

/* Largest first, each at the lowest offset that is free while it lives. */
static size_t pack(nd_arena *a, items *it)
{
    size_t end = 0;
    lives l = {.a = a, .times = 1, .busy = ND_NEWN(a, span, it->n + 1),
               .spare = ND_NEWN(a, span, it->n + 1)};
    ranked *order = ND_NEWN(a, ranked, it->n + 1);
    for (int i = 0; i < it->n; i++) {
        order[i] = (ranked){&it->v[i], i};
        l.times = it->v[i].to >= l.times ? it->v[i].to + 1 : l.times;
    }
    l.during = ND_NEWN(a, int, 2 * l.times);
    l.begins = ND_NEWN(a, int, l.times);
    l.full = ND_NEWN(a, size_t, l.times);
    qsort(order, (size_t)it->n, sizeof *order, by_size);
    for (int i = 0; i < it->n; i++) {
        item *x = order[i].x;
        x->at = lowest_gap(&l, x);
        end = x->at + x->bytes > end ? x->at + x->bytes : end;
        add_life(&l, x);
    }
    return end;
}

/* ---- temporaries of a list ---------------------------------------------- */

typedef struct temps {
    nd_code *c;
    const nd_block *block;           /* whose values are meant */
    const bool *skip;                /* by mark: has a place already */
    items it;
    nd_table at;                     /* value -> item + 1 */
} temps;

/* A carried argument's second buffer belongs to the block of the repeat, and so
 * do the two places of what it gathers ahead. */
static const nd_block *home_block(const nd_code *c, const nd_value *v)
{
    const nd_op *ahead = nd_info(c, v)->ahead;
    return ahead    ? ahead->block
           : v->def ? v->def->block
                    : v->owner->parent->block;
}

static size_t bytes_of(nd_code *c, const nd_value *v)
{
    return nd_bytes_max(c, v) * (nd_info(c, v)->ahead ? 2 : 1);
}

static void live(void *user, const nd_ref *at, bool write, int index)
{
    temps *t = user;
    const nd_value *v = at->value;
    (void)write;
    if (at->root != AT_BUFFER || home_block(t->c, v) != t->block ||
        (t->skip && t->skip[v->mark]))
        return;
    int i = (int)(intptr_t)nd_table_get(&t->at, v);
    if (i) {
        item *old = &t->it.v[i - 1];
        old->from = index < old->from ? index : old->from;
        old->to = index > old->to ? index : old->to;
        return;
    }
    item x = {.v = v, .bytes = bytes_of(t->c, v), .from = index,
              .to = index};
    ND_PUSH(t->c->a, &t->it, x);
    nd_table_put(&t->at, v, (void *)(intptr_t)t->it.n);
}

static void find_temps(nd_code *c, nd_kernels *list, const nd_block *block,
                       temps *t)
{
    t->c = c;
    t->block = block;
    t->at.arena = c->a;
    nd_touch_list(c, list, live, t, -1);
    for (int i = 0; i < list->v.n; i++) {
        nd_kernels *body = list->v.v[i]->body;
        if (!body)
            continue;
        temps *inner = ND_NEW(c->a, temps);
        find_temps(c, body, body->block, inner);
        item x = {.blob = inner, .from = i, .to = i,
                  .bytes = pack(c->a, &inner->it)};
        ND_PUSH(c->a, &t->it, x);
    }
}

static void add_place(nd_code *c, nd_stage_mem *s, const nd_value *v,
                      size_t base, size_t slot_stride)
{
    nd_place p = {v, base, bytes_of(c, v), slot_stride};
    ND_PUSH(c->a, &s->places, p);
}

static void emit_places(nd_code *c, nd_stage_mem *s, const temps *t,
                        size_t base)
{
    for (int i = 0; i < t->it.n; i++) {
        const item *x = &t->it.v[i];
        if (x->v) {
            add_place(c, s, x->v, base + x->at, 0);
            continue;
        }
        emit_places(c, s, x->blob, base + x->at);
    }
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
    if (at->root == AT_BUFFER && home_block(u->c, at->value) == u->c->m->step)
        u->lists[at->value->mark] |= (uint8_t)(1 << u->list);
}

static nd_kernels *list_of(nd_stage_code *s, int list)
{
    return list == LIST_PRE ? &s->pre : list == LIST_FWD ? &s->fwd : &s->bwd;
}

enum { CROSSES = 8, READ_LATE = 16 };

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

static bool has_loss(const nd_code *c, int s)
{
    const nd_stage *st = &c->m->program->stage[s];
    for (int i = 0; c->m->loss && i < st->fwd.n; i++)
        if (st->fwd.v[i] == c->m->loss->def)
            return true;
    return false;
}

static void find_uses(nd_code *c, int s, uint8_t *lists)
{
    const nd_program *p = c->m->program;
    const nd_stage *st = &p->stage[s];
    stage_use u = {.c = c, .lists = lists};
    for (u.list = 0; u.list < NLISTS; u.list++)
        nd_touch_list(c, list_of(&c->stage[s], u.list), note_list, &u, -1);
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
    if (has_loss(c, s))
        nd_leaves_of(c, c->m->loss, false, mark_late, lists);
}

static size_t state_floats(const nd_code *c, const nd_bucket *b)
{
    size_t n = b->n;
    for (int i = 0; i < c->m->mesh.n; i++)
        if (b->zero >> i & 1)
            n /= (size_t)c->m->mesh.size[i];
    return n;
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
static size_t muon_work(nd_code *c, const nd_stage_mem *mem)
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
static size_t place_buckets(nd_code *c, int s, nd_stage_mem *mem)
{
    size_t at = 0;
    for (int i = 0; i < c->mem.buckets.n; i++) {
        const nd_bucket *b = &c->mem.buckets.v[i];
        if (!(b->stages >> s & 1))
            continue;
        nd_bucket_place p = {i, at, (size_t)-1, (size_t)-1, (size_t)-1};
        mem->weight_bytes += b->n * 4;
        at += up64(b->n * 4);
        ND_PUSH(c->a, &mem->buckets, p);
    }
    for (int i = 0; i < mem->buckets.n && c->m->loss; i++) {
        const nd_bucket *b = &c->mem.buckets.v[mem->buckets.v[i].bucket];
        mem->buckets.v[i].grads = at;
        mem->grad_bytes += b->n * 4;
        at += up64(b->n * 4);
    }
    for (int i = 0; i < mem->buckets.n && c->m->loss; i++) {
        nd_bucket_place *p = &mem->buckets.v[i];
        const nd_bucket *b = &c->mem.buckets.v[p->bucket];
        size_t bytes = state_floats(c, b) * 4;
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
static size_t *part_of(nd_stage_mem *mem, const nd_value *v)
{
    if (v->def && v->def->kind == OP_INPUT)
        return &mem->input_bytes;
    return v->def && v->def->phase == PH_PRE && nd_is_weight_copy(v)
               ? &mem->weight_bytes
               : &mem->saved_bytes;
}

/* Buffers that outlive their list; sets skip for them. Returns the end. */
static size_t place_lasting(nd_code *c, int s, nd_stage_mem *mem,
                            const uint8_t *lists, bool *skip, size_t at)
{
    size_t slots = (size_t)c->m->program->stage[s].slots[SCHED_UNTIL_I];
    bool again = nd_runs_again(&c->m->plan, s);
    slots = slots ? slots : 1;
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0; i < c->nvalues; i++) {
            const nd_value *v = c->info[i].v;
            bool input = v->def && v->def->kind == OP_INPUT;
            int in = lists[i] & 7;
            bool saved = (lists[i] & CROSSES) || (in & 6) == 6;
            int want = input ? 0 : saved && !(in & 1) ? 2 : 1;
            if (!lists[i] || want != pass)
                continue;
            if (pass == 1 && !(in & 1 && (in & 6 || lists[i] & CROSSES)))
                continue;            /* a temporary */
            size_t bytes = nd_bytes_max(c, v);
            bool crosses = lists[i] & CROSSES;
            size_t copies = pass == 2 && (crosses || !again) ? slots : 1;
            add_place(c, mem, v, at, copies > 1 ? bytes : 0);
            *part_of(mem, v) += bytes * copies;
            if (!crosses)
                mem->spare_bytes += bytes * (copies - 1);
            at += bytes * copies;
            skip[i] = true;
        }
    return at;
}

static size_t place_temps(nd_code *c, int s, nd_stage_mem *mem,
                          const uint8_t *lists, const bool *skip, size_t at)
{
    size_t most = 0;
    for (int l = 0; l < NLISTS; l++) {
        temps t = {.skip = skip};
        nd_kernels *list = list_of(&c->stage[s], l);
        find_temps(c, list, c->m->step, &t);
        for (int i = 0; i < t.it.n; i++) {
            item *x = &t.it.v[i];
            if (x->v && lists[x->v->mark] & READ_LATE)
                x->to = list->v.n;
        }
        size_t bytes = pack(c->a, &t.it);
        emit_places(c, mem, &t, at);
        most = bytes > most ? bytes : most;
    }
    mem->temp_bytes = most;
    return at + most;
}

/* The most that any kernel of the list needs aside while it runs. */
static size_t scratch_of(nd_code *c, const nd_kernels *list)
{
    size_t most = 0;
    for (int i = 0; i < list->v.n; i++) {
        const nd_kernel *k = list->v.v[i];
        size_t n = k->body ? scratch_of(c, k->body)
                           : nd_scratch_bytes(c, k->nodes.v[0].op);
        most = n > most ? n : most;
    }
    return up64(most);
}

static int by_mark(const void *a, const void *b)
{
    const nd_place *x = a, *y = b;
    return (x->value->mark > y->value->mark) -
           (x->value->mark < y->value->mark);
}

void nd_memplan_new(nd_code *c)
{
    const nd_program *p = c->m->program;
    c->mem.stage = ND_NEWN(c->a, nd_stage_mem, p->nstages);
    for (int s = 0; s < p->nstages; s++) {
        nd_stage_mem *mem = &c->mem.stage[s];
        uint8_t *lists = ND_NEWN(c->a, uint8_t, c->nvalues + 1);
        bool *skip = ND_NEWN(c->a, bool, c->nvalues + 1);
        find_uses(c, s, lists);
        size_t at = place_buckets(c, s, mem);
        mem->loss = (size_t)-1;
        if (has_loss(c, s)) {
            mem->loss = at;
            at += 64;
        }
        at = place_lasting(c, s, mem, lists, skip, at);
        for (int l = 0; l < NLISTS; l++) {
            size_t n = scratch_of(c, list_of(&c->stage[s], l));
            mem->scratch_bytes = n > mem->scratch_bytes ? n
                                                        : mem->scratch_bytes;
        }
        mem->scratch = at;
        at += mem->scratch_bytes;
        mem->arena_bytes = place_temps(c, s, mem, lists, skip, at);
        mem->work = at;
        mem->work_bytes = c->m->loss ? muon_work(c, mem) : 0;
        if (at + mem->work_bytes > mem->arena_bytes) {
            mem->temp_bytes = mem->work_bytes;
            mem->arena_bytes = at + mem->work_bytes;
        }
        mem->temp_bytes += mem->scratch_bytes;
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
