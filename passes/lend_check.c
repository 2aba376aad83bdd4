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
 * If a repeat reads the value last and makes the gradient, it is asked
 * iteration by iteration. What a value has in front of a gradient it has in
 * common with no weights and nothing else that stays.
 *
 * lend.c is not asked, nor the places that lend_stack.c finds; what that says
 * of a repeat's iterations is taken from there.
 */
#include "passes.h"

#include <stdint.h>

typedef struct checker {
    nd_code *c;
    int device, time;
    int *made;                       /* by parameter: when; -1: always there */
    nd_kernel **by;                  /* by parameter: what makes it first */
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

/* `all`: x, or the repeat that it is in */
static void make(checker *k, const nd_kernel *x, nd_kernel *all, int time)
{
    for (int i = 0; x->body && i < x->body->v.n; i++)
        make(k, x->body->v.v[i], all, time);
    for (int i = 0; i < x->nodes.n && !x->body; i++) {
        const nd_op *accum = nd_added_by(k->c, &x->nodes.v[i]);
        if (!accum || time >= k->made[accum->param->index])
            continue;
        k->made[accum->param->index] = time;
        k->by[accum->param->index] = all;
    }
}

static void run_list(checker *k, const nd_kernels *list)
{
    nd_touch_list(k->c, list, need, k, -1);
    for (int i = 0; i < list->v.n; i++) {
        nd_kernel *x = list->v.v[i];
        make(k, x, x, k->time + (x->flight ? x->flight->start : i));
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
    k->by = ND_NEWN(k->c->a, nd_kernel *, n + 1);
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

/* Does a collective of the list touch the value while the kernel runs? */
typedef struct touched {
    const nd_value *v;
    bool found;
} touched;

static void find_touched(void *user, const nd_ref *at, bool write, int index)
{
    touched *t = user;
    (void)write;
    (void)index;
    t->found |= at->root == AT_BUFFER && at->value == t->v;
}

static bool in_flight(checker *k, const nd_kernel *by, const nd_value *v)
{
    const nd_kernels *list = &k->c->stage[0].list[LIST_BWD];
    touched t = {.v = v};
    for (int i = 0; i < list->flights.n; i++) {
        const nd_flight *x = list->flights.v[i];
        if (x->start <= by->index && by->index < x->wait)
            nd_touch_kernel(k->c, x->k, find_touched, &t, 0);
    }
    return t.found;
}

/* In the repeat that makes it first, is iteration l of the value read for the
 * last time before iteration l, or one that has been before that, of a gradient
 * takes its bytes? */
static bool gives_way(checker *k, const nd_place *p, const nd_param *q,
                      size_t grad)
{
    nd_kernel *by = k->by[q->index];
    size_t step = nd_step_of_grad(k->c, by, q);
    size_t own = nd_step_of_value(k->c, by, p->value);
    if (!step || !own || in_flight(k, by, p->value))
        return false;
    size_t n = (size_t)by->nodes.v[0].op->axes[0]->size;
    for (size_t l = 0; l < n; l++)
        if (common(p->base + l * own, own, grad + l * step, (n - l) * step))
            return false;
    return true;
}

static bool is_later(checker *k, const nd_place *p, const nd_param *q,
                     size_t grad)
{
    int made = k->made[q->index], needed = k->needed[p->value->mark];
    return made != INT32_MAX &&
           (made > needed || (made == needed && gives_way(k, p, q, grad)));
}

/* Where the gradients of a bucket are: the bytes that p has in common with
 * those that come later than it. */
static size_t on_later(checker *k, const nd_place *p, const nd_bucket_place *at)
{
    const nd_bucket *b = &k->c->mem.buckets.v[at->bucket];
    size_t later = 0;
    size_t from = p->base < at->grads ? 0 : (p->base - at->grads) / 4;
    for (int i = param_at(b, from); i < b->params.n; i++) {
        const nd_param *q = b->params.v[i];
        size_t grad = at->grads + b->at.v[i] * 4;
        if (grad >= p->base + p->bytes)
            break;
        if (is_later(k, p, q, grad))
            later += common(p->base, p->bytes, grad, nd_grad_bytes(k->c, q));
    }
    return later;
}

/* Bytes in common with what stays from step to step. */
static size_t on_others(checker *k, const nd_place *p)
{
    const nd_device_mem *d = &k->c->mem.device[k->device];
    size_t n = common(p->base, p->bytes, d->scratch, d->scratch_bytes);
    if (d->loss != (size_t)-1)
        n += common(p->base, p->bytes, d->loss, sizeof(float));
    for (int i = 0; i < d->buckets.n; i++) {
        const nd_bucket_place *at = &d->buckets.v[i];
        size_t all = k->c->mem.buckets.v[at->bucket].n * 4;
        size_t whole = nd_state_bytes(k->c, at->bucket);
        n += common(p->base, p->bytes, at->weights, all);
        if (at->state1 != (size_t)-1)
            n += common(p->base, p->bytes, at->state1, whole);
        if (at->state2 != (size_t)-1)
            n += common(p->base, p->bytes, at->state2, whole);
    }
    return n;
}

static bool is_clear(checker *k, const nd_place *p)
{
    const nd_device_mem *d = &k->c->mem.device[k->device];
    size_t on = 0, later = 0;
    if (p->room != ROOM_FIXED)
        return true;
    for (int i = 0; i < d->buckets.n; i++) {
        const nd_bucket_place *at = &d->buckets.v[i];
        size_t n = common(p->base, p->bytes, at->grads,
                          k->c->mem.buckets.v[at->bucket].n * 4);
        on += n;
        later += n ? on_later(k, p, at) : 0;
    }
    return (!on || (later == on && nd_may_lend(k->c->m))) && !on_others(k, p);
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
                 "on what stays", p->value->name);
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
