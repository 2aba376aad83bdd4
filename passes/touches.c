/* touches.c - which memory a kernel reads and writes.
 *
 *   y[batch, ffn] = h[batch, d] w[d, ffn]    reads h and w, writes y
 *   repeat                                   all that its body does, too, and
 *                                            its results
 *
 * Views are followed to the buffer behind them, and what is computed at each
 * use to what that reads. What only goes into a gradient is no write here.
 */
#include "passes.h"

typedef struct walker {
    nd_code *c;
    nd_kernel *k;
    nd_touch_fn *touch;
    void *user;
    int index;
} walker;

static void touch_value(walker *w, const nd_value *v, bool write)
{
    nd_ref r;
    if (nd_ref_of(w->c, v, &r) && r.root != AT_TILE)
        w->touch(w->user, &r, write, w->index);
}

static void touch_leaf(nd_code *c, nd_value *leaf, bool in_memory, void *user)
{
    walker *w = user;
    (void)c;
    (void)in_memory;
    const nd_node *n = nd_node_of(w->k, leaf);
    if (!n || n->stored)
        touch_value(w, leaf, false);
}

static void touch_repeat(walker *w)
{
    nd_op *op = w->k->nodes.v[0].op;
    for (int i = 0; i < op->nin; i++)
        nd_leaves_of(w->c, op->in[i], true, touch_leaf, w);
    for (int i = 0; i < op->nout; i++)
        touch_value(w, op->out[i], true);
    /* The other half of the pair that a carried value alternates between. */
    for (int i = 0; i < op->ncarry; i++) {
        nd_ref half = {.root = AT_BUFFER, .value = op->body->args.v[i]};
        if (!nd_kept_carry(op, i))
            w->touch(w->user, &half, true, w->index);
    }
    nd_touch_list(w->c, w->k->body, w->touch, w->user, w->index);
}

void nd_touch_kernel(nd_code *c, nd_kernel *k, nd_touch_fn *f, void *user,
                     int index)
{
    walker w = {c, k, f, user, index};
    if (k->kind == K_REPEAT) {
        touch_repeat(&w);
        return;
    }
    if (k->kind == K_TILES) {
        for (int i = 0; i < k->tiles->v.n; i++)
            nd_touch_kernel(c, k->tiles->v.v[i], f, user, index);
        return;
    }
    for (int j = 0; j < k->nodes.n; j++) {
        nd_node *n = &k->nodes.v[j];
        nd_leaves(c, n->op, touch_leaf, &w);
        bool out = k->kind == K_LOOP ? n->stored
                                     : !nd_info(c, n->op->out[0])->accum;
        if (n->op->nout && out)
            touch_value(&w, n->op->out[0], true);
    }
}

/* What the first iteration waits for is written from its start on. */
static void touch_early(nd_code *c, nd_kernel *k, nd_touch_fn *f, void *user)
{
    for (int i = 0; i < k->body->flights.n; i++) {
        const nd_flight *x = k->body->flights.v[i];
        walker w = {c, x->k, f, user, k->early};
        if (x->ahead)
            touch_value(&w, x->k->nodes.v[0].op->out[0], true);
    }
}

void nd_touch_list(nd_code *c, const nd_kernels *list, nd_touch_fn *f,
                   void *user, int index)
{
    for (int i = 0; i < list->v.n; i++) {
        nd_kernel *k = list->v.v[i];
        nd_touch_kernel(c, k, f, user, index < 0 ? i : index);
        if (index >= 0)
            continue;
        if (k->flight && !k->flight->ahead) {
            nd_touch_kernel(c, k, f, user, k->flight->start);
            nd_touch_kernel(c, k, f, user, k->flight->wait - 1);
        } else if (k->body) {
            touch_early(c, k, f, user);
        }
    }
}
