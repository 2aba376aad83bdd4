/* at_hand.c - what backward would make again although its stage has it.
 *
 *   stage 1   %c = sub %x, %m   %mem = mul %c, %g      sends %mem and %c
 *   stage 2   ... %mem ...      bwd %mem_1 = mul %c, %g
 *   ->
 *   stage 1                                            sends %mem
 *   stage 2   ... %mem ...      and backward reads %mem
 *
 * What is cheap is made again in backward, from values that lie there anyway:
 * on one device. Where these are an earlier stage's, they would be sent for
 * nothing else. So if forward has the result itself on the stage, it is kept.
 */
#include "pipeline.h"

typedef struct hand {
    pipe *pp;
    nd_table readers;                /* first operand, or row -> forward ops */
    nd_table equal;                  /* backward value -> forward value */
    nd_table far;                    /* forward value -> 1 + the last stage
                                        that has it */
    nd_table low;                    /* backward value -> 1 + the first stage
                                        that reads it */
    nd_table uses;                   /* value -> how often it is read */
    nd_table here;                   /* ops for which nothing is sent, while
                                        one is asked about */
} hand;

typedef ND_VEC(nd_op *) ops;

static int number(const nd_table *t, const nd_value *v)
{
    return (int)(intptr_t)nd_table_get(t, v);
}

static void set(nd_table *t, const nd_value *v, int n)
{
    nd_table_put(t, v, (void *)(intptr_t)n);
}

static bool is_forward(const hand *h, const nd_value *v)
{
    return v->def->phase == PH_FWD && !pipe_place_of(h->pp, v->def).demand;
}

static const nd_value *as_forward(const hand *h, const nd_value *v)
{
    const nd_value *w = nd_table_get(&h->equal, v);
    return w ? w : v;
}

static const void *key_of(const hand *h, const nd_op *op)
{
    return op->nin ? (const void *)as_forward(h, op->in[0])
                   : (const void *)&nd_ops[op->kind];
}

static bool could_be_again(const nd_op *op)
{
    return op->nout == 1 && !op->body && op->kind != OP_PARAM &&
           op->kind != OP_INPUT && !nd_has_trait(op, 'k');
}

/* ---- which values are equal ---------------------------------------------- */

static void note_forward(hand *h, nd_op *op)
{
    const void *key = key_of(h, op);
    ops *list = nd_table_get(&h->readers, key);
    if (!list) {
        list = ND_NEW(h->pp->a, ops);
        nd_table_put(&h->readers, key, list);
    }
    ND_PUSH(h->pp->a, list, op);
}

static void find_equal(hand *h, nd_op *op)
{
    const ops *list = nd_table_get(&h->readers, key_of(h, op));
    for (int i = 0; list && i < list->n; i++) {
        const nd_op *f = list->v[i];
        bool same = nd_same_work(f, op);
        for (int k = 0; k < op->nin && same; k++)
            same = as_forward(h, op->in[k]) == f->in[k];
        if (same) {
            nd_table_put(&h->equal, op->out[0], f->out[0]);
            return;
        }
    }
}

/* ---- who has and who reads them ------------------------------------------ */

static void note_read(pipe *pp, nd_op *op, nd_value *v, void *user)
{
    hand *h = user;
    pipe_place at = pipe_place_of(pp, op);
    set(&h->uses, v, number(&h->uses, v) + 1);
    if (at.demand)
        return;
    bool carried = false;
    for (int i = 0; pipe_is_piped(pp, op) && i < op->ncarry; i++)
        carried |= op->in[i] == v;
    int last = carried ? at.first : at.last;
    if (op->phase == PH_FWD && last + 1 > number(&h->far, v))
        set(&h->far, v, last + 1);
    int low = number(&h->low, v);
    if (op->phase != PH_FWD && (!low || at.first + 1 < low))
        set(&h->low, v, at.first + 1);
}

static int made_on(const hand *h, const nd_value *v)
{
    return pipe_place_of(h->pp, v->def).last;
}

static bool has(const hand *h, const nd_value *v, int stage)
{
    int from = made_on(h, v);
    return stage == from || (stage > from && stage < number(&h->far, v));
}

/* Must something be sent to the stage for this op alone? Each op below it is
 * looked at once, however many ways lead there. */
static bool is_sent_for(hand *h, nd_op *op, int stage)
{
    for (int i = 0; i < op->nin && !nd_table_get(&h->here, op); i++) {
        const nd_value *x = op->in[i];
        if (is_forward(h, x) ? !has(h, x, stage)
            : nd_table_get(&h->equal, x) && x->def->phase != PH_FWD &&
              is_sent_for(h, x->def, stage))
            return true;
    }
    nd_table_put(&h->here, op, op);
    return false;
}

static void use_forward(hand *h, nd_op *op)
{
    nd_value *v = op->out[0], *w = nd_table_get(&h->equal, v);
    pipe_place at = pipe_place_of(h->pp, op);
    h->here = (nd_table){.arena = h->pp->a};
    if (!w || at.demand || !is_forward(h, w) || !has(h, w, at.first) ||
        number(&h->low, v) <= made_on(h, w) || !is_sent_for(h, op, at.first))
        return;
    nd_replace_uses(h->pp->m, v, w);
    set(&h->uses, v, 0);
}

/* ---- what nobody reads any more ------------------------------------------ */

static void unread(pipe *pp, nd_op *op, nd_value *v, void *user)
{
    hand *h = user;
    (void)pp, (void)op;
    set(&h->uses, v, number(&h->uses, v) - 1);
}

static void drop_unread(hand *h)
{
    nd_block *b = h->pp->m->step;
    for (int i = b->ops.n - 1; i >= 0; i--) {
        nd_op *op = b->ops.v[i];
        if (op->phase == PH_FWD || op->phase == PH_PRE ||
            !could_be_again(op) || number(&h->uses, op->out[0]) > 0)
            continue;
        pipe_reads(h->pp, op, unread, h);
        for (int k = i; k + 1 < b->ops.n; k++)
            b->ops.v[k] = b->ops.v[k + 1];
        b->ops.n--;
    }
}

void pipe_use_at_hand(pipe *pp)
{
    nd_block *b = pp->m->step;
    hand h = {.pp = pp};
    h.readers = h.equal = h.far = h.low = h.uses =
        (nd_table){.arena = pp->a};
    for (int i = 0; i < b->ops.n && pp->p > 1; i++) {
        nd_op *op = b->ops.v[i];
        pipe_reads(pp, op, note_read, &h);
        if (!could_be_again(op))
            continue;
        if (op->phase == PH_FWD || op->phase == PH_PRE)
            note_forward(&h, op);
        else
            find_equal(&h, op);
    }
    for (int i = b->ops.n - 1; i >= 0 && pp->p > 1; i--)
        if (could_be_again(b->ops.v[i]) && b->ops.v[i]->phase == PH_BWD)
            use_forward(&h, b->ops.v[i]);
    if (pp->p > 1) {
        drop_unread(&h);
        pipe_chain_back(pp);
    }
}
