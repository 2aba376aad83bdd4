/* lend_check.c - is all that lies over gradients gone when they are made?
 *
 *   backward, kernel    0        1        2
 *   logits              read                      bytes 640 .. 1280
 *   d_up                                  made    bytes 640 .. 1920: later
 *
 * The lists run once, one after another. A value is needed until the last
 * kernel that touches it, or to the end, if the loss or an output is made of
 * it. A gradient is there from the first kernel on that adds to it; if it is
 * cleared, always. Each place is compared with each gradient that it has bytes
 * in common with, and may have no others there: gaps between gradients count
 * as zeros. With a second microbatch or stage, who knows what comes first?
 *
 * lend.c is not asked.
 */
#include "passes.h"

#include <stdint.h>

typedef struct checker {
    nd_code *c;
    int device, time;
    int *made;                       /* by parameter: when; -1: always there */
    int *needed;                     /* by mark: until when */
} checker;

static void need(void *user, const nd_ref *at, bool write, int index)
{
    checker *k = user;
    (void)write;
    if (at->root == AT_BUFFER && k->time + index > k->needed[at->value->mark])
        k->needed[at->value->mark] = k->time + index;
}

static void need_always(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    checker *k = user;
    nd_ref at;
    (void)in_memory;
    if (nd_ref_of(c, leaf, &at) && at.root == AT_BUFFER)
        k->needed[at.value->mark] = INT32_MAX;
}

static void make(checker *k, const nd_kernel *x, int time)
{
    for (int i = 0; x->body && i < x->body->v.n; i++)
        make(k, x->body->v.v[i], time);
    for (int i = 0; i < x->nodes.n && !x->body; i++) {
        const nd_op *accum = nd_added_by(k->c, &x->nodes.v[i]);
        int *made = accum ? &k->made[accum->param->index] : NULL;
        if (made && time < *made)
            *made = time;
    }
}

static void run_list(checker *k, const nd_kernels *list)
{
    nd_touch_list(k->c, list, need, k, -1);
    for (int i = 0; i < list->v.n; i++) {
        const nd_kernel *x = list->v.v[i];
        make(k, x, k->time + (x->flight ? x->flight->start : i));
    }
    k->time += list->v.n;
}

static void run_stage(checker *k, int s)
{
    const nd_stage *st = &k->c->m->program->stage[s];
    for (int l = 0; l < NLISTS; l++)
        run_list(k, &k->c->stage[s].list[l]);
    for (int i = 0; i < st->fwd.n; i++)
        if (st->fwd.v[i]->kind == OP_OUTPUT)
            nd_leaves(k->c, st->fwd.v[i], need_always, k);
    if (nd_has_loss(k->c->m, s))
        nd_leaves_of(k->c, k->c->m->loss, false, need_always, k);
}

static void start(checker *k)
{
    const nd_device_mem *d = &k->c->mem.device[k->device];
    int n = k->c->m->params.n;
    k->time = 0;
    k->made = ND_NEWN(k->c->a, int, n + 1);
    k->needed = ND_NEWN(k->c->a, int, k->c->nvalues + 1);
    for (int i = 0; i < n; i++)
        k->made[i] = INT32_MAX;
    for (int i = 0; i < d->cleared.n; i++)
        k->made[d->cleared.v[i]] = -1;
}

static size_t common(size_t a, size_t an, size_t b, size_t bn)
{
    size_t from = a > b ? a : b, to = a + an < b + bn ? a + an : b + bn;
    return from < to ? to - from : 0;
}

/* The last parameter of the bucket that begins at or before a float. */
static int param_at(const nd_bucket *b, size_t at)
{
    int lo = 0, hi = b->params.n - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (b->at.v[mid] <= at)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* Where the gradients of a bucket are: the bytes that p has in common with
 * those that come later than it. */
static size_t on_later(checker *k, const nd_place *p, const nd_bucket_place *at)
{
    const nd_bucket *b = &k->c->mem.buckets.v[at->bucket];
    size_t later = 0;
    size_t from = p->base < at->grads ? 0 : (p->base - at->grads) / 4;
    for (int i = param_at(b, from); i < b->params.n; i++) {
        int made = k->made[b->params.v[i]->index];
        if (at->grads + b->at.v[i] * 4 >= p->base + p->bytes)
            break;
        if (made != INT32_MAX && made > k->needed[p->value->mark])
            later += common(p->base, p->bytes, at->grads + b->at.v[i] * 4,
                            nd_grad_bytes(k->c, b->params.v[i]));
    }
    return later;
}

static bool is_clear(checker *k, const nd_place *p)
{
    const nd_program *all = k->c->m->program;
    const nd_device_mem *d = &k->c->mem.device[k->device];
    size_t on = 0, later = 0;
    for (int i = 0; i < d->buckets.n && p->room == ROOM_FIXED; i++) {
        const nd_bucket_place *at = &d->buckets.v[i];
        size_t n = common(p->base, p->bytes, at->grads,
                          k->c->mem.buckets.v[at->bucket].n * 4);
        on += n;
        later += n ? on_later(k, p, at) : 0;
    }
    return !on || (later == p->bytes && all->nmicro == 1 && all->nstages == 1);
}

static bool check_stage(checker *k, int s)
{
    const nd_stage_mem *mem = &k->c->mem.stage[s];
    for (int i = 0; i < mem->places.n; i++) {
        const nd_place *p = &mem->places.v[i];
        if (is_clear(k, p))
            continue;
        nd_error(k->c->m->ctx, p->value->def ? p->value->def->loc : nd_nowhere,
                 "internal error: '%s' lies on gradients that are there, or "
                 "on none", p->value->name);
        return false;
    }
    return true;
}

bool nd_lend_check(nd_code *c)
{
    const nd_program *p = c->m->program;
    for (int s = 0; s < p->nstages && c->m->loss; s++) {
        checker k = {.c = c, .device = p->stage[s].device};
        start(&k);
        for (int i = 0; i < p->nstages; i++)
            if (p->stage[i].device == k.device)
                run_stage(&k, i);
        if (!check_stage(&k, s))
            return false;
    }
    return true;
}
