/* overlap_check.c - is what is in flight left alone?
 *
 *   start gather w -> y | a | b | wait
 *
 * Between the two, neither a nor b nor another collective may read or write y,
 * write w, or have anything in memory that overlaps either of them. The check
 * is done on the places themselves, for every stage, after all plans are made;
 * overlap.c is not asked why it chose what it chose.
 */
#include "passes.h"

typedef struct span {
    int room;
    size_t from, to;                 /* bytes of the room */
} span;

enum { MOST = 3 };

typedef struct spans {               /* where a value may lie */
    int n;
    span v[MOST];
} spans;

typedef struct checker {
    nd_code *c;
    const nd_stage_mem *mem;
    const nd_flight *x;
    bool read;                       /* its result may be read beside it, */
    bool write;                      /* its operand written: in both cases it is
                                        the other one of two places */
    nd_ref operand, result;
    spans in, out;
    const char *wrong;
} checker;

static bool same(const nd_ref *a, const nd_ref *b)
{
    return a->root == b->root && a->value == b->value && a->param == b->param;
}

static void add_span(const checker *k, spans *s, const nd_value *v)
{
    const nd_place *p = v ? nd_place_of(k->mem, v) : NULL;
    if (!p)
        return;
    s->v[s->n++] = (span){p->room, p->base, p->base + p->bytes};
}

/* What a repeat carries lies in its own buffer, in its result, or where it is
 * kept. */
static spans spans_of(const checker *k, const nd_ref *r)
{
    spans s = {0};
    if (r->root == AT_BUFFER) {
        add_span(k, &s, r->value);
    } else if (r->root == AT_CARRY_IN || r->root == AT_CARRY_OUT) {
        const nd_op *repeat = r->value->owner->parent;
        add_span(k, &s, r->value);
        add_span(k, &s, repeat->out[r->value->index]);
        add_span(k, &s, nd_kept_carry(repeat, r->value->index));
    }
    return s;
}

static bool overlap(const spans *a, const spans *b)
{
    for (int i = 0; i < a->n; i++)
        for (int j = 0; j < b->n; j++)
            if (a->v[i].room == b->v[j].room &&
                a->v[i].from < b->v[j].to && b->v[j].from < a->v[i].to)
                return true;
    return false;
}

static void check_touch(void *user, const nd_ref *at, bool write, int index)
{
    checker *k = user;
    spans s = {0};
    (void)index;
    bool in = same(at, &k->operand), out = same(at, &k->result);
    if (at->root == AT_BUFFER)
        add_span(k, &s, at->value);
    if (out && !k->read)
        k->wrong = "its result is in use";
    else if (in && write && !k->write)
        k->wrong = "its operand is written";
    else if ((!in && overlap(&s, &k->in)) || (!out && overlap(&s, &k->out)))
        k->wrong = "its memory has another use";
}

static bool tell(checker *k)
{
    const nd_op *op = k->x->k->nodes.v[0].op;
    if (!k->wrong)
        return true;
    nd_error(k->c->m->ctx, op->loc, "%s %%%s in flight: %s",
             nd_ops[op->kind].name, op->out[0]->name ? op->out[0]->name : "?",
             k->wrong);
    return false;
}

static void begin(checker *k, const nd_flight *x)
{
    const nd_op *op = x->k->nodes.v[0].op;
    k->x = x;
    nd_ref_of(k->c, op->in[0], &k->operand);
    nd_ref_of(k->c, op->out[0], &k->result);
    k->in = spans_of(k, &k->operand);
    k->out = spans_of(k, &k->result);
}

/* Both in the air at some time. */
static bool meet(const nd_flight *x, const nd_flight *y)
{
    return x->ahead || y->ahead || (x->start < y->wait && y->start < x->wait);
}

/* What is gathered ahead is in flight for as long as the repeat runs, and read
 * behind the wait from its other place. */
static bool check_flight(checker *k, const nd_kernels *list, const nd_flight *x)
{
    begin(k, x);
    int from = x->ahead ? 0 : x->start;
    int to = x->ahead ? list->v.n : x->wait;
    for (int i = from; i < to; i++) {
        nd_kernel *other = list->v.v[i];
        k->read = x->ahead && i >= x->wait;
        if (other != x->k && !other->flight)
            nd_touch_kernel(k->c, other, check_touch, k, i);
    }
    for (int i = 0; i < list->flights.n; i++) {
        const nd_flight *y = list->flights.v[i];
        k->read = x->ahead && y->start >= x->wait;
        k->write = y->ahead && x->start >= y->wait;
        if (y != x && meet(x, y))
            nd_touch_kernel(k->c, y->k, check_touch, k, y->start);
    }
    k->write = false;
    if (!x->ahead && (x->k->index < x->start || x->k->index >= x->wait))
        k->wrong = "it starts or ends out of order";
    return tell(k);
}

/* What is started before a repeat, beside the kernels in front of it. */
static bool check_early(checker *k, const nd_kernels *list, const nd_kernel *of)
{
    k->read = false;
    for (int i = 0; i < of->body->flights.n; i++) {
        if (!of->body->flights.v[i]->ahead)
            continue;
        begin(k, of->body->flights.v[i]);
        for (int j = of->early; j < of->index; j++)
            nd_touch_kernel(k->c, list->v.v[j], check_touch, k, j);
        if (!tell(k))
            return false;
    }
    return true;
}

static bool check_list(checker *k, const nd_kernels *list)
{
    for (int i = 0; i < list->flights.n; i++)
        if (!check_flight(k, list, list->flights.v[i]))
            return false;
    for (int i = 0; i < list->v.n; i++)
        if (list->v.v[i]->body && (!check_early(k, list, list->v.v[i]) ||
                                   !check_list(k, list->v.v[i]->body)))
            return false;
    return true;
}

bool nd_overlap_check(nd_code *c)
{
    for (int s = 0; s < c->m->program->nstages; s++) {
        checker k = {.c = c, .mem = &c->mem.stage[s]};
        for (int l = 0; l < NLISTS; l++)
            if (!check_list(&k, &c->stage[s].list[l]))
                return false;
    }
    return true;
}
