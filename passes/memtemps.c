/* memtemps.c - places of temporaries: what a list makes for itself.
 *
 *   a temporary lives from the first to the last kernel that touches it, and
 *   those that never live together share bytes; what a kernel computes of
 *   something that it reads for the last time may lie in its place (in_place.c)
 *
 *   forward    | kept: free until made       | temporaries
 *   backward   | kept: free once it was read | temporaries
 *
 * What a repeat's body makes is planned once and lies in one blob that lives
 * while the repeat runs.
 */
#include "memplan.h"

typedef struct item {
    ND_VEC(const nd_value *) v;      /* one after another in one place; or */
    struct temps *blob;              /* the temporaries of a body */
    nd_item life;
    int gone;                        /* by this kernel, unless it is 0: then a
                                        gradient lies there */
} item;

typedef struct temps {
    nd_code *c;
    int stage, list;
    nd_kernels *kernels;
    const nd_block *block;           /* whose values are meant */
    const uint8_t *lists;            /* of a stage's list, not of a body: by */
    const bool *skip;                /* mark, as nd_place_temps has them */
    ND_VEC(item) it;
    nd_table at;                     /* value -> item + 1 */
} temps;

/* A carried argument's second buffer belongs to the block of the repeat, and so
 * do the two places of what it gathers ahead. */
const nd_block *nd_home_block(const nd_code *c, const nd_value *v)
{
    const nd_op *ahead = nd_info(c, v)->ahead;
    return ahead    ? ahead->block
           : v->def ? v->def->block
                    : v->owner->parent->block;
}

size_t nd_place_bytes(nd_code *c, const nd_value *v, int stage)
{
    return nd_bytes_on(c, v, stage) * (nd_info(c, v)->ahead ? 2 : 1);
}

/* ---- when they live ------------------------------------------------------ */

static item *item_of(temps *t, const nd_value *v)
{
    int i = (int)(intptr_t)nd_table_get(&t->at, v);
    return i ? &t->it.v[i - 1] : NULL;
}

static void add_item(temps *t, const nd_value *v, nd_item life)
{
    item x = {.life = life};
    ND_PUSH(t->c->a, &x.v, v);
    ND_PUSH(t->c->a, &t->it, x);
    nd_table_put(&t->at, v, (void *)(intptr_t)t->it.n);
}

static void live(void *user, const nd_ref *at, bool write, int index)
{
    temps *t = user;
    const nd_value *v = at->value;
    (void)write;
    if (at->root != AT_BUFFER || nd_home_block(t->c, v) != t->block)
        return;
    item *x = item_of(t, v);
    if (x) {
        x->life.from = index < x->life.from ? index : x->life.from;
        x->life.to = index > x->life.to ? index : x->life.to;
        return;
    }
    if (t->skip && t->skip[v->mark])
        return;
    bool late = t->lists && t->lists[v->mark] & READ_LATE;
    add_item(t, v, (nd_item){.bytes = nd_place_bytes(t->c, v, t->stage),
                             .from = index,
                             .to = late ? t->kernels->v.n : index});
}

/* ---- one in the place of another ----------------------------------------- */

typedef struct taking {
    temps *t;
    int kernel;
    const nd_value *out;
    const nd_value *in;              /* what may give its place, or NULL */
} taking;

/* Does a collective that runs beside the kernel touch what the other one is
 * to lie on? */
typedef struct beside {
    const nd_value *v;
    bool found;
} beside;

static void find_beside(void *user, const nd_ref *at, bool write, int index)
{
    beside *b = user;
    (void)write;
    (void)index;
    b->found |= at->root == AT_BUFFER && at->value == b->v;
}

static bool in_flight(const temps *t, const nd_value *v, int kernel)
{
    beside b = {.v = v};
    for (int i = 0; i < t->kernels->flights.n; i++) {
        const nd_flight *x = t->kernels->flights.v[i];
        if (x->start <= kernel && kernel < x->wait)
            nd_touch_kernel(t->c, x->k, find_beside, &b, kernel);
    }
    return b.found;
}

static void try_place(void *user, const nd_ref *at, bool write, int index)
{
    taking *u = user;
    temps *t = u->t;
    const nd_value *in = at->value;
    if (u->in || write || at->root != AT_BUFFER || in == u->out)
        return;
    const item *from = item_of(t, in), *to = item_of(t, u->out);
    if (from && from != to && from->v.v[from->v.n - 1] == in &&
        from->life.to == index && from->life.bytes == to->life.bytes &&
        !(from->life.placed && to->life.placed) &&
        !(from->gone && to->life.to >= from->gone) &&
        nd_may_take_place(t->c, t->kernels->v.v[index], u->out, in) &&
        !in_flight(t, in, index) && !in_flight(t, u->out, index))
        u->in = in;
}

/* The two become one item, which keeps the place that one of them has. */
static void join(temps *t, const nd_value *in, const nd_value *out)
{
    item *a = item_of(t, in), *b = item_of(t, out);
    for (int i = 0; i < b->v.n; i++) {
        ND_PUSH(t->c->a, &a->v, b->v.v[i]);
        nd_table_put(&t->at, b->v.v[i], (void *)(intptr_t)(a - t->it.v + 1));
    }
    a->life.to = b->life.to;
    if (b->life.placed) {
        a->life.placed = true;
        a->life.at = b->life.at;
    }
    b->v.n = 0;
    b->life.bytes = 0;
}

static void take_places(temps *t)
{
    for (int i = 0; i < t->kernels->v.n; i++) {
        nd_kernel *k = t->kernels->v.v[i];
        for (int j = 0; k->kind == K_LOOP && j < k->nodes.n; j++) {
            const nd_node *n = &k->nodes.v[j];
            taking u = {t, i, n->stored ? n->op->out[0] : NULL, NULL};
            const item *x = u.out ? item_of(t, u.out) : NULL;
            if (!x || x->v.v[0] != u.out || x->life.from != i)
                continue;
            nd_touch_kernel(t->c, k, try_place, &u, i);
            if (u.in)
                join(t, u.in, u.out);
        }
    }
}

/* ---- packing ------------------------------------------------------------- */

static size_t pack(nd_code *c, temps *t)
{
    nd_item **life = ND_NEWN(c->a, nd_item *, t->it.n + 1);
    for (int i = 0; i < t->it.n; i++)
        life[i] = &t->it.v[i].life;
    return nd_pack(c->a, life, t->it.n);
}

static void find_temps(temps *t)
{
    nd_code *c = t->c;
    t->at.arena = c->a;
    nd_touch_list(c, t->kernels, live, t, -1);
    take_places(t);
    for (int i = 0; i < t->kernels->v.n; i++) {
        nd_kernels *body = t->kernels->v.v[i]->body;
        if (!body)
            continue;
        temps *inner = ND_NEW(c->a, temps);
        *inner = (temps){.c = c, .stage = t->stage, .kernels = body,
                         .block = body->block};
        find_temps(inner);
        item x = {.blob = inner,
                  .life = {.bytes = pack(c, inner), .from = i, .to = i}};
        ND_PUSH(c->a, &t->it, x);
    }
}

static void emit_places(nd_code *c, nd_stage_mem *s, const temps *t, int room,
                        size_t base)
{
    for (int i = 0; i < t->it.n; i++) {
        const item *x = &t->it.v[i];
        for (int k = 0; k < x->v.n; k++)
            if (!t->skip || !t->skip[x->v.v[k]->mark])
                nd_add_place(c, s, x->v.v[k], room, base + x->life.at);
        if (x->blob)
            emit_places(c, s, x->blob, room, base + x->life.at);
    }
}

/* ---- beside what is held ------------------------------------------------- */

enum { GUARD = 64 };                 /* nothing lies across the end of it */

/* Those that it keeps: made some time in the forward list, read for the last
 * time somewhere in the backward list. */
static void add_held(temps *t, const nd_held *held)
{
    int end = t->kernels->v.n;
    for (int i = 0; i < held->v.n; i++) {
        const nd_place *p = &held->v.v[i];
        bool fwd = t->list == LIST_FWD;
        add_item(t, p->value, (nd_item){.bytes = p->bytes, .at = p->base,
                                        .placed = true, .from = fwd ? end : 0,
                                        .to = fwd ? end : 0});
    }
    nd_item guard = {.bytes = GUARD, .at = held->bytes, .placed = true,
                     .to = end};
    ND_PUSH(t->c->a, &t->it, ((item){.life = guard}));
}

/* And over gradients: each as if it lay behind that, a guard between any two;
 * until it is made in the forward list there is nothing else, and afterwards a
 * gradient. Where no value is kept there is nothing until then. */
static size_t add_lent(temps *t, const nd_held *held, size_t at)
{
    int end = t->kernels->v.n;
    bool fwd = t->list == LIST_FWD;
    for (int i = 0; i < held->lent.n; i++) {
        const nd_lent *x = &held->lent.v[i];
        nd_item life = {.bytes = x->bytes, .at = at, .placed = true,
                        .from = fwd ? end : 0, .to = fwd ? end : 0};
        if (x->value) {
            add_item(t, x->value, life);
            t->it.v[t->it.n - 1].gone = fwd ? 0 : x->until + 1;
        }
        at += x->bytes;
        nd_item guard = {.bytes = GUARD, .at = at, .placed = true, .to = end};
        ND_PUSH(t->c->a, &t->it, ((item){.life = guard}));
        life.from = fwd ? end : x->until + 1;
        life.to = end;
        if (!(fwd && x->value) && life.from <= end)
            ND_PUSH(t->c->a, &t->it, ((item){.life = life}));
        at += GUARD;
    }
    return at;
}

/* Where what was packed at `at` really is: the room, and what to add. */
static int real_place(const nd_held *held, size_t at, size_t *add)
{
    size_t from = held->bytes + GUARD;
    *add = held->base;
    if (at < from)
        return held->room;
    for (int i = 0; i < held->lent.n; i++) {
        *add = held->lent.v[i].at - from;
        from += held->lent.v[i].bytes + GUARD;
        if (at < from)
            break;
    }
    return ROOM_FIXED;
}

static size_t place_list(temps *t, const nd_held *held, size_t at)
{
    nd_stage_mem *mem = &t->c->mem.stage[t->stage];
    bool shared = (held->bytes || held->lent.n) &&
                  (t->list == LIST_FWD || t->list == LIST_BWD);
    size_t front = 0;
    t->at.arena = t->c->a;
    if (shared) {
        add_held(t, held);
        front = add_lent(t, held, held->bytes + GUARD);
    }
    find_temps(t);
    size_t bytes = pack(t->c, t);
    for (int i = 0; i < t->it.n; i++) {
        const item *x = &t->it.v[i];
        size_t add = at - front;
        temps one = *t;
        one.it.v = &t->it.v[i];
        one.it.n = 1;
        int room = x->life.at < front ? real_place(held, x->life.at, &add)
                                      : ROOM_FIXED;
        emit_places(t->c, mem, &one, room, add);
    }
    return bytes > front ? bytes - front : 0;
}

size_t nd_place_temps(nd_code *c, int stage, const uint8_t *lists,
                      const bool *skip, const nd_held *held, size_t at)
{
    size_t most = 0;
    for (int l = 0; l < NLISTS; l++) {
        temps t = {.c = c, .stage = stage, .list = l, .lists = lists,
                   .skip = skip, .block = c->m->step,
                   .kernels = &c->stage[stage].list[l]};
        size_t bytes = place_list(&t, held, at);
        most = bytes > most ? bytes : most;
    }
    return most;
}
