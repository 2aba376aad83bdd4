/* first_check.c - is every gradient cleared, or written before it is read?
 *
 *   device 0, layers 0 .. 2 of d_up      | none | none | none |
 *   stage 0, backward, l = 2: writes     | none | none | held |
 *                      l = 1, 0          | held | held | held |
 *
 * The lists of each device run once, on marks instead of numbers: a mark per
 * parameter and iteration of the repeats that it is made in. In which order the
 * lists run is the schedule's, so what one list writes, no other may touch. Who
 * adds needs something there: what was cleared, or what its own list wrote. At
 * the end nothing of what the device holds is left. When a list runs again, for
 * the next microbatch, it only adds.
 *
 * first.c is asked what one kernel writes, not why it may.
 */
#include "passes.h"

typedef struct mark {
    int by;                          /* the list that touched it, or 0 */
    bool written;                    /* ... by writing, before all others */
} mark;

typedef struct turn {                /* a repeat at an iteration */
    const nd_op *repeat;
    int64_t at;
} turn;

typedef struct checker {
    nd_code *c;
    int device, stage, list;         /* of all lists; from 1 */
    mark **marks;                    /* by parameter */
    bool *cleared;
    int nturns;
    turn turn[ND_MAX_REPEAT];
    bool ok;
} checker;

static void wrong(checker *k, const nd_param *p, const char *what)
{
    if (k->ok)
        nd_error(k->c->m->ctx, p->loc, "the gradient of \"%s\" %s: a fault of "
                 "ndc, please report it", p->name, what);
    k->ok = false;
}

/* ---- iterations ---------------------------------------------------------- */

static const turn *turn_of(const checker *k, const nd_axis *a)
{
    for (int i = k->nturns - 1; i >= 0; i--)
        if (k->turn[i].repeat->axes[0] == a)
            return &k->turn[i];
    return NULL;
}

typedef void slice_fn(checker *k, const nd_param *p, mark *x, bool write);

/* Calls f for each slice that the stage has; of those, if `accum` is not NULL,
 * that it adds to now. */
static void each_slice(checker *k, const nd_param *p, const nd_op *accum,
                       slice_fn *f, bool write)
{
    int64_t lo[ND_MAX_REPEAT], hi[ND_MAX_REPEAT], at[ND_MAX_REPEAT];
    for (int i = 0; i < p->nlayers; i++) {
        nd_axis *a = p->layer[i].axis;
        const turn *t = accum && nd_axis_at(&accum->in[0]->type, a) < 0
                            ? turn_of(k, a) : NULL;
        nd_stage_range(k->c->m, k->stage, a, &lo[i], &hi[i]);
        lo[i] = t ? t->at : lo[i];
        hi[i] = t ? t->at + 1 : hi[i];
        at[i] = lo[i];
        if (lo[i] >= hi[i])
            return;
    }
    for (int last = 0; last >= 0;) {
        int64_t index = 0;
        for (int i = 0; i < p->nlayers; i++)
            index = index * p->layer[i].axis->size + at[i];
        f(k, p, &k->marks[p->index][index], write);
        for (last = p->nlayers - 1; last >= 0 && ++at[last] == hi[last]; last--)
            at[last] = lo[last];
    }
}

/* ---- a kernel ------------------------------------------------------------ */

static void touch(checker *k, const nd_param *p, mark *x, bool write)
{
    if (write && x->by)
        wrong(k, p, "is written over");
    else if (!write && !x->by && !k->cleared[p->index])
        wrong(k, p, "is added to before anything is there");
    else if (x->written && x->by != k->list)
        wrong(k, p, "is written by one stage and touched by another");
    x->by = x->by ? x->by : k->list;
    x->written |= write;
}

/* Where a stage has a list for the gradients of weights alone, that list says
 * when they are made: none is added to before. */
static bool in_last_list(const checker *k)
{
    return (k->list - 1) % NLISTS != LIST_BWD ||
           k->c->stage[k->stage].list[LIST_WGT].v.n == 0;
}

/* Parts of sums are added up when all else of the nest has been done. */
static void run_kernel(checker *k, const nd_kernel *x, bool parts)
{
    for (int i = 0; i < x->nodes.n; i++) {
        const nd_node *n = &x->nodes.v[i];
        const nd_op *accum = nd_added_by(k->c, n);
        if (!accum || n->in_parts != parts)
            continue;
        if (!in_last_list(k))
            wrong(k, accum->param, "is added to before its stage's last list");
        bool write = n->op != accum && nd_info(k->c, n->op->out[0])->first;
        if (write && !nd_writes_all(k->c, x, n))
            wrong(k, accum->param, "is written in part");
        each_slice(k, accum->param, accum, touch, write);
    }
}

static void run_list(checker *k, const nd_kernels *list);

static void run_repeat(checker *k, const nd_kernel *x)
{
    const nd_op *op = x->nodes.v[0].op;
    int64_t lo, hi;
    nd_stage_range(k->c->m, k->stage, op->axes[0], &lo, &hi);
    turn *t = &k->turn[k->nturns++];
    for (int64_t i = 0; i < hi - lo && k->ok; i++) {
        *t = (turn){op, op->reverse ? hi - 1 - i : lo + i};
        run_list(k, x->body);
    }
    k->nturns--;
}

static void run_list(checker *k, const nd_kernels *list)
{
    for (int i = 0; i < list->v.n && k->ok; i++) {
        const nd_kernel *x = list->v.v[i];
        if (x->body) {
            run_repeat(k, x);
            continue;
        }
        run_kernel(k, x, false);
        run_kernel(k, x, true);
    }
}

/* ---- a device ------------------------------------------------------------ */

static void is_held(checker *k, const nd_param *p, mark *x, bool write)
{
    (void)write;
    if (!x->written && !k->cleared[p->index])
        wrong(k, p, "is neither cleared nor written");
}

static void start(checker *k)
{
    const nd_module *m = k->c->m;
    const nd_device_mem *mem = &k->c->mem.device[k->device];
    k->marks = ND_NEWN(k->c->a, mark *, m->params.n + 1);
    k->cleared = ND_NEWN(k->c->a, bool, m->params.n + 1);
    for (int i = 0; i < m->params.n; i++) {
        const nd_param *p = m->params.v[i];
        int64_t n = 1;
        for (int j = 0; j < p->nlayers; j++)
            n *= p->layer[j].axis->size;
        k->marks[i] = ND_NEWN(k->c->a, mark, n);
    }
    for (int i = 0; i < mem->cleared.n; i++)
        k->cleared[mem->cleared.v[i]] = true;
}

static void run_device(checker *k)
{
    const nd_program *p = k->c->m->program;
    start(k);
    for (int s = 0; s < p->nstages; s++)
        for (int l = 0; l < NLISTS && p->stage[s].device == k->device; l++) {
            k->stage = s;
            k->list = 1 + s * NLISTS + l;
            run_list(k, &k->c->stage[s].list[l]);
        }
    for (int s = 0; s < p->nstages; s++)
        for (int i = 0; i < p->stage[s].params.n; i++) {
            nd_param *q = p->stage[s].params.v[i];
            int in = k->c->mem.bucket_of[q->index];
            k->stage = s;
            if (p->stage[s].device == k->device && in >= 0 &&
                !k->c->mem.buckets.v[in].frozen)
                each_slice(k, q, NULL, is_held, false);
        }
}

bool nd_first_check(nd_code *c)
{
    checker k = {.c = c, .ok = true};
    for (; k.device < c->m->program->ndevices && c->m->loss; k.device++)
        run_device(&k);
    return k.ok;
}
