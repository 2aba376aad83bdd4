/* lend_stack.c - a stack of values in the memory of a stack of gradients.
 *
 *   backward runs layer 3, 2, 1, 0; d_down is the first gradient of its bucket
 *
 *   d_down        | 0   | 1   | 2   | 3   |     written in the layer's turn
 *   up    front | 0  | 1  | 2  | 3  |           read there for the last time
 *
 * When an iteration of such a repeat writes its part of the gradient, the parts
 * of the value from there on up have been read. So part l of the value may have
 * bytes in common with part j of the gradient if j < l: as the parts of either
 * lie one behind the other, the value has to begin in front of the gradient by
 * at least one of its parts. That is room which no other gradient has, so only
 * the first one of a bucket is asked.
 */
#include "memplan.h"

#include <string.h>

/* ---- the distance of iterations ------------------------------------------ */

enum { ALIGN = 64 };

/* 0, unless the view is of one iteration of the repeat, all of which have so
 * many bytes, padding aside: then the iterations are the outermost axis, as any
 * other would have half of the bytes at most. */
static size_t step_of(const nd_ref *at, const nd_op *repeat, size_t bytes)
{
    size_t step = 0;
    int n = 0;
    for (int i = 0; i < at->nterms; i++) {
        const nd_term *t = &at->term[i];
        if (t->repeat != repeat)
            continue;
        n++;
        if (!t->turn && t->stride.k > 0 && !t->stride.n)
            step = (size_t)t->stride.k * nd_dtype_size(at->dtype);
    }
    size_t all = step * (size_t)repeat->axes[0]->size;
    return n == 1 && all > ALIGN && all <= bytes && bytes < all + ALIGN ? step
                                                                        : 0;
}

/* What is known of the steps of something, one of which is at hand. */
typedef struct step {
    size_t bytes;
    bool differ;
} step;

static void note(step *s, size_t bytes)
{
    s->differ |= !bytes || (s->bytes && s->bytes != bytes);
    s->bytes = bytes;
}

/* Of all that a repeat reads: by mark. */
typedef struct reads {
    nd_code *c;
    const nd_op *repeat;
    step *of;
} reads;

static void note_operand(reads *r, const nd_value *v)
{
    nd_ref at;
    if (nd_ref_of(r->c, v, &at)) {
        if (at.root == AT_BUFFER)
            note(&r->of[at.value->mark],
                 step_of(&at, r->repeat, nd_bytes_on(r->c, at.value, 0)));
        return;
    }
    for (int i = 0; v->def && i < v->def->nin; i++)
        note_operand(r, v->def->in[i]);
}

static void note_body(reads *r, const nd_block *b)
{
    for (int i = 0; i < b->ops.n; i++) {
        const nd_op *op = b->ops.v[i];
        for (int k = 0; k < op->nin; k++)
            note_operand(r, op->in[k]);
        if (op->body)
            note_body(r, op->body);
    }
    for (int i = 0; i < b->yields.n; i++)
        note_operand(r, b->yields.v[i]);
}

/* What repeats within have in flight ends with an iteration. */
static bool runs_backwards(const nd_kernel *k)
{
    return k->kind == K_REPEAT && k->nodes.v[0].op->reverse &&
           !k->body->flights.n;
}

static reads reads_of(nd_code *c, const nd_kernel *k)
{
    reads r = {c, k->nodes.v[0].op, ND_NEWN(c->a, step, c->nvalues + 1)};
    for (int i = 0; i < r.repeat->ncarry; i++)
        note_operand(&r, r.repeat->in[i]);
    note_body(&r, r.repeat->body);
    return r;
}

static size_t step_at(const reads *r, const nd_value *v)
{
    const step *s = &r->of[v->mark];
    return s->differ ? 0 : s->bytes;
}

size_t nd_step_of_value(nd_code *c, const nd_kernel *k, const nd_value *v)
{
    if (!runs_backwards(k))
        return 0;
    reads r = reads_of(c, k);
    return step_at(&r, v);
}

/* Those that the body of a repeat within adds to have an iteration of that,
 * too: of these nothing is said. */
static void note_grads(nd_code *c, const nd_kernels *list, const nd_op *repeat,
                       const nd_param *p, step *s)
{
    for (int i = 0; i < list->v.n; i++) {
        const nd_kernel *k = list->v.v[i];
        if (k->body)
            note_grads(c, k->body, repeat, p, s);
        for (int j = 0; j < k->nodes.n && !k->body; j++) {
            const nd_op *accum = nd_added_by(c, &k->nodes.v[j]);
            if (!accum || accum->param != p)
                continue;
            nd_ref at = nd_grad_ref(c, accum);
            note(s, accum->block == repeat->body
                        ? step_of(&at, repeat, nd_grad_bytes(c, p))
                        : 0);
        }
    }
}

size_t nd_step_of_grad(nd_code *c, const nd_kernel *k, const nd_param *p)
{
    step s = {0};
    if (!runs_backwards(k))
        return 0;
    note_grads(c, k->body, k->nodes.v[0].op, p, &s);
    return s.differ ? 0 : s.bytes;
}

/* ---- which value, over which gradient ------------------------------------ */

typedef struct readers {
    int *last, *first;               /* by mark: kernels; first -1: none */
} readers;

static void note_reader(void *user, const nd_ref *at, bool write, int index)
{
    readers *r = user;
    (void)write;
    if (at->root != AT_BUFFER)
        return;
    int i = at->value->mark;
    r->first[i] = r->first[i] < 0 || index < r->first[i] ? index : r->first[i];
    r->last[i] = index > r->last[i] ? index : r->last[i];
}

/* How far in front of the gradient the value begins: then its last byte of part
 * l is at most where part l of the gradient begins. */
static size_t front_of(size_t value, size_t grad, size_t n)
{
    size_t bytes = value <= grad ? value : n * value - (n - 1) * grad;
    return (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

/* May v lie over a gradient with such a step, by more bytes than what is lent?
 */
static bool try_stack(const reads *r, const nd_place *v, size_t grad,
                      nd_lent *lent, size_t *front)
{
    size_t value = step_at(r, v->value);
    size_t n = (size_t)r->repeat->axes[0]->size;
    size_t before = value ? front_of(value, grad, n) : v->bytes;
    if (before >= v->bytes || v->bytes - before <= lent->over ||
        v->bytes - before > n * grad)
        return false;
    *lent = (nd_lent){.value = v->value, .bytes = v->bytes,
                      .over = v->bytes - before};
    *front = before;
    return true;
}

bool nd_lend_stack(nd_code *c, const nd_place *kept, int n, const int *made,
                   nd_lent *lent, int *place, size_t *front)
{
    const nd_kernels *bwd = &c->stage[0].list[LIST_BWD];
    const nd_device_mem *mem = &c->mem.device[0];
    readers r = {ND_NEWN(c->a, int, c->nvalues + 1),
                 ND_NEWN(c->a, int, c->nvalues + 1)};
    memset(r.first, -1, sizeof *r.first * (size_t)(c->nvalues + 1));
    nd_touch_list(c, bwd, note_reader, &r, -1);
    *lent = (nd_lent){0};
    for (int i = 0; i < mem->buckets.n; i++) {
        const nd_bucket_place *at = &mem->buckets.v[i];
        const nd_param *p = c->mem.buckets.v[at->bucket].params.v[0];
        int by = made[p->index];
        size_t grad = by < 0 ? 0 : nd_step_of_grad(c, bwd->v.v[by], p);
        if (!grad)
            continue;
        reads all = reads_of(c, bwd->v.v[by]);
        for (int j = 0; j < n; j++) {
            int mark = kept[j].value->mark;
            if (r.first[mark] != by || r.last[mark] != by ||
                !try_stack(&all, &kept[j], grad, lent, front))
                continue;
            lent->at = at->grads;
            lent->until = by;
            *place = i;
        }
    }
    return lent->value;
}
