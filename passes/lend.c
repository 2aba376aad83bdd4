/* lend.c - values in the memory of gradients that are not there yet.
 *
 *   backward   logits are read | d_wte is written | d_up, d_down, .. are
 *   memory     | d_wte  | d_up, d_down, ..        |
 *                       | logits |                    until the layers begin
 *
 * The memory of a gradient that a step does not clear (first.c) holds nothing
 * of use before the backward list writes it for the first time. Where a device
 * has one stage, and that one microbatch, what is kept from the forward list
 * may lie there, if it is read for the last time before. The largest value is
 * placed first, where gradients are made latest: then more may take its place
 * (in_place.c). Between gradients are gaps, of which the norm wants zeros:
 * nothing lies across one. What is left serves temporaries (memtemps.c).
 *
 * One stack of values may lie over the gradients of the very repeat that reads
 * it (lend_stack.c), if more bytes are over gradients then than without.
 * lend_check.c proves all of it.
 */
#include "memplan.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST = 1000,                     /* values, for the time that it takes */
    LEAST = 1 << 12                  /* bytes that temporaries are offered */
};

typedef struct stretch {             /* of the memory of one gradient */
    size_t from, to;
    int until;                       /* the last kernel before it is made */
} stretch;

typedef struct lender {
    nd_code *c;
    int *first;                      /* by parameter: who makes it; -1: none, or
                                        it is cleared */
    int *last;                       /* by mark: who reads it last */
    ND_VEC(stretch) free;            /* ascending */
} lender;

/* ---- when ---------------------------------------------------------------- */

static void find_first(lender *l, const nd_kernels *list, int at)
{
    for (int i = 0; i < list->v.n; i++) {
        const nd_kernel *k = list->v.v[i];
        int now = at >= 0                              ? at
                  : k->flight && k->flight->start < i ? k->flight->start
                                                       : i;
        if (k->body)
            find_first(l, k->body, now);
        for (int j = 0; j < k->nodes.n && !k->body; j++) {
            const nd_op *accum = nd_added_by(l->c, &k->nodes.v[j]);
            int *first = accum ? &l->first[accum->param->index] : NULL;
            if (first && (*first < 0 || now < *first))
                *first = now;
        }
    }
}

static void find_last(void *user, const nd_ref *at, bool write, int index)
{
    lender *l = user;
    (void)write;
    if (at->root == AT_BUFFER && index > l->last[at->value->mark])
        l->last[at->value->mark] = index;
}

/* ---- where --------------------------------------------------------------- */

/* A rank whose piece is smaller has a gap behind it. */
size_t nd_grad_bytes(nd_code *c, const nd_param *p)
{
    const nd_type *t = &p->value->type;
    size_t n = 4;
    for (int i = 0; i < t->rank; i++) {
        const nd_ext *x = &c->exts.v[nd_ext_of(c, t, i)];
        n *= x->fixed > 0 ? (size_t)x->fixed : 0;
    }
    return n;
}

static void find_free(lender *l, const nd_device_mem *mem)
{
    for (int i = 0; i < mem->cleared.n; i++)
        l->first[mem->cleared.v[i]] = -1;
    for (int i = 0; i < mem->buckets.n; i++) {
        const nd_bucket_place *at = &mem->buckets.v[i];
        const nd_bucket *b = &l->c->mem.buckets.v[at->bucket];
        for (int k = 0; k < b->params.n && !b->frozen; k++) {
            int p = b->params.v[k]->index;
            size_t from = at->grads + b->at.v[k] * 4;
            stretch x = {from, from + nd_grad_bytes(l->c, b->params.v[k]),
                         l->first[p] - 1};
            if (l->first[p] > 0 && x.to > from)
                ND_PUSH(l->c->a, &l->free, x);
        }
    }
}

/* From the start of stretch i on: how many are needed, or 0; and until when. */
static int covers(const lender *l, int i, const nd_place *p, int *until)
{
    const stretch *x = l->free.v;
    size_t end = x[i].from + p->bytes;
    *until = x[i].until;
    for (int k = i; x[k].until >= l->last[p->value->mark]; k++) {
        *until = x[k].until < *until ? x[k].until : *until;
        if (x[k].to >= end)
            return k + 1 - i;
        if (k + 1 == l->free.n || x[k + 1].from != x[k].to)
            return 0;
    }
    return 0;
}

/* Takes the bytes away: what is left begins behind them. */
static void take(lender *l, int i, int n, size_t end)
{
    stretch *x = l->free.v + i;
    bool rest = x[n - 1].to > end;
    if (rest)
        x[n - 1].from = end;
    n -= rest;
    memmove(x, x + n, sizeof *x * (size_t)(l->free.n - i - n));
    l->free.n -= n;
}

static void lend(lender *l, const nd_place *p, nd_held *held)
{
    int best = -1, most = -1, n = 0;
    for (int i = 0; i < l->free.n; i++) {
        int until, needed = l->free.v[i].until > most
                                ? covers(l, i, p, &until) : 0;
        if (needed && until > most) {
            best = i;
            most = until;
            n = needed;
        }
    }
    if (best < 0)
        return;
    size_t from = l->free.v[best].from;
    nd_lent x = {p->value, from, p->bytes, p->bytes, most};
    ND_PUSH(l->c->a, &held->lent, x);
    take(l, best, n, from + p->bytes);
}

static int by_bytes(const void *a, const void *b)
{
    const nd_place *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes)
                                : x->value->mark - y->value->mark;
}

/* Those that have a place already aside. Returns the bytes over gradients. */
static size_t lend_all(lender *l, const nd_place *kept, int n, nd_held *held)
{
    size_t over = 0;
    const nd_value *there = held->lent.n ? held->lent.v[0].value : NULL;
    for (int i = 0; i < n && i < MOST; i++)
        if (kept[i].value != there)
            lend(l, &kept[i], held);
    for (int i = 0; i < held->lent.n; i++)
        over += held->lent.v[i].over;
    return over;
}

/* Neighbours that are free as long are one. */
static void lend_rest(lender *l, nd_held *held)
{
    for (int i = 0; i < l->free.n;) {
        stretch x = l->free.v[i];
        for (i++; i < l->free.n && l->free.v[i].from == x.to &&
                  l->free.v[i].until == x.until; i++)
            x.to = l->free.v[i].to;
        nd_lent rest = {NULL, x.from, (x.to - x.from) / 64 * 64, 0, x.until};
        if (rest.bytes >= LEAST && held->lent.n < MOST)
            ND_PUSH(l->c->a, &held->lent, rest);
    }
}

/* ---- a stack in front ---------------------------------------------------- */

/* The bytes that it has in common with the first gradient of a bucket. */
static void take_front(lender *l, const nd_lent *x)
{
    for (int i = 0; i < l->free.n; i++)
        if (l->free.v[i].from == x->at)
            take(l, i, 1, x->at + x->over);
}

/* Makes room in front of the gradients of a bucket. */
static void move_behind(nd_device_mem *mem, int place, size_t front,
                        nd_held *held)
{
    size_t from = mem->buckets.v[place].grads;
    for (int i = 0; i < mem->buckets.n; i++) {
        nd_bucket_place *p = &mem->buckets.v[i];
        size_t *at[] = {&p->grads, &p->state1, &p->state2};
        for (size_t j = 0; j < sizeof at / sizeof *at; j++)
            if (*at[j] != (size_t)-1 && *at[j] >= from)
                *at[j] += front;
    }
    for (int i = 1; i < held->lent.n; i++)
        if (held->lent.v[i].at >= from)
            held->lent.v[i].at += front;
}

/* A lender of the same stretches. */
static lender copy_of(const lender *l)
{
    lender copy = *l;
    copy.free = (__typeof__(copy.free)){0};
    for (int i = 0; i < l->free.n; i++)
        ND_PUSH(l->c->a, &copy.free, l->free.v[i]);
    return copy;
}

bool nd_may_lend(const nd_module *m)
{
    return m->loss && m->program->nstages == 1 && m->program->nmicro == 1;
}

size_t nd_lend(nd_code *c, nd_place *kept, int n, nd_held *held)
{
    const nd_kernels *list = c->stage[0].list;
    lender l = {.c = c};
    nd_device_mem *mem = &c->mem.device[0];
    nd_held with = *held;
    nd_lent stack;
    int place;
    size_t front;
    if (!nd_may_lend(c->m) || list[LIST_WGT].v.n)
        return 0;
    l.first = ND_NEWN(c->a, int, c->m->params.n + 1);
    l.last = ND_NEWN(c->a, int, c->nvalues + 1);
    memset(l.first, -1, sizeof *l.first * (size_t)c->m->params.n);
    find_first(&l, &list[LIST_BWD], -1);
    nd_touch_list(c, &list[LIST_BWD], find_last, &l, -1);
    find_free(&l, mem);
    if (n)
        qsort(kept, (size_t)n, sizeof *kept, by_bytes);
    lender other = copy_of(&l);
    size_t over = lend_all(&l, kept, n, held);
    if (nd_lend_stack(c, kept, n, l.first, &stack, &place, &front)) {
        ND_PUSH(c->a, &with.lent, stack);
        take_front(&other, &stack);
        if (lend_all(&other, kept, n, &with) > over) {
            lend_rest(&other, &with);
            *held = with;
            move_behind(mem, place, front, held);
            return front;
        }
    }
    lend_rest(&l, held);
    return 0;
}
