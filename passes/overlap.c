/* overlap.c - start early, wait late: which collectives run beside kernels.
 *
 *   gather w | product | gather v | product with w and v
 *
 * becomes, where another thread can do the gathers,
 *
 *   start w, start v | product | wait for w, v | product with w and v
 *
 * A collective starts right behind what makes its operand and is waited for
 * right before its result is read or its operand's memory is written. So that
 * memory does not stay taken for longer than it helps, it passes at most one
 * product before its own place and one behind it, and never a repeat. Where it
 * passes none, it stays where it is.
 *
 * A parameter's piece that a repeat's body gathers is gathered one iteration
 * ahead: where it is waited for, the next one starts. The first one starts
 * before the repeat, beside the product there if there is one.
 *
 * Every rank of a stage has the same lists: they all start the same collectives
 * in the same order.
 */
#include "passes.h"

enum { FAR = 64 };                   /* kernels to look at, either way */

typedef struct touched {
    nd_root root;
    const void *what;                /* a value or a parameter */
    bool write;
} touched;

typedef ND_VEC(touched) touches;

typedef struct chooser {
    nd_code *c;
    nd_kernels *list;
    touches *by;                     /* by kernel of the list */
} chooser;

static touched touched_of(const nd_ref *at, bool write)
{
    return (touched){at->root, at->param ? (const void *)at->param : at->value,
                     write};
}

static void note(void *user, const nd_ref *at, bool write, int index)
{
    chooser *o = user;
    ND_PUSH(o->c->a, &o->by[index], touched_of(at, write));
}

static bool same(const touched *a, const touched *b)
{
    return a->root == b->root && a->what == b->what;
}

static bool is_product(const nd_kernel *k)
{
    return k->kind == K_GEMM || k->kind == K_GROUPED || k->kind == K_TILES;
}

/* Must kernel i and the collective keep their order? */
static bool meets(const chooser *o, int i, const touched *x, const touched *y)
{
    for (int j = 0; j < o->by[i].n; j++) {
        const touched *t = &o->by[i].v[j];
        if (same(t, y) || (t->write && same(t, x)))
            return true;
    }
    return false;
}

/* From the collective at `at` on, by `step`: the last kernel that it may pass,
 * and whether there is a product among them. */
static int reach(const chooser *o, int at, int step, const touched *x,
                 const touched *y, bool *product)
{
    int i = at + step, n = 0;
    bool found = false;
    for (; i >= 0 && i < o->list->v.n && n < FAR; i += step, n++) {
        const nd_kernel *k = o->list->v.v[i];
        if (k->kind == K_REPEAT || (found && is_product(k)) ||
            meets(o, i, x, y))
            break;
        found |= is_product(k);
    }
    *product |= found;
    return found ? i - step : at;
}

/* The lengths of rows that travelled change with each dispatch. */
static bool has_route(const nd_value *v)
{
    for (int i = 0; i < v->type.rank; i++)
        if (v->type.axis[i]->route)
            return true;
    return false;
}

static bool may_fly(const nd_code *c, const nd_kernel *k)
{
    const nd_op *op = k->nodes.v[0].op;
    if (k->kind != K_COMM || op->kind == OP_DISPATCH || op->kind == OP_COMBINE)
        return false;
    return !has_route(op->in[0]) && !has_route(op->out[0]) &&
           !nd_is_same(c, op);
}

static void add_flight(chooser *o, nd_kernel *k, int start, int wait,
                       nd_op *ahead)
{
    nd_flight *x = ND_NEW(o->c->a, nd_flight);
    *x = (nd_flight){.k = k, .start = start, .wait = wait, .ahead = ahead,
                     .ticket = -1};
    k->flight = x;
    ND_PUSH(o->c->a, &o->list->flights, x);
}

/* ---- one iteration ahead ------------------------------------------------- */

static bool has_work(const nd_kernels *list)
{
    for (int i = 0; i < list->v.n; i++)
        if (is_product(list->v.v[i]) || list->v.v[i]->body)
            return true;
    return false;
}

/* Does a body gather this iteration's slice of a parameter, as it lies there,
 * into a buffer that nothing but the body reads? */
static bool is_slice_gather(nd_code *c, const nd_op *op, const nd_op *repeat)
{
    const nd_vinfo *to = nd_info(c, op->out[0]);
    nd_ref x;
    if (op->kind != OP_ALL_GATHER || to->yield >= 0 || to->alias || to->accum ||
        !nd_ref_of(c, op->in[0], &x) || x.root != AT_WEIGHT)
        return false;
    for (int i = 0; i < x.nterms; i++)
        if (x.term[i].repeat == repeat)
            return true;
    return false;
}

static int first_reader(const chooser *o, int at, const touched *y)
{
    for (int i = at + 1; i < o->list->v.n; i++)
        for (int j = 0; j < o->by[i].n; j++)
            if (same(&o->by[i].v[j], y))
                return i;
    return -1;
}

static bool fly_ahead(chooser *o, nd_kernel *k, const touched *y)
{
    nd_op *op = k->nodes.v[0].op;
    nd_op *repeat = o->list->block ? o->list->block->parent : NULL;
    if (!repeat || repeat->axes[0]->size < 2 || !has_work(o->list) ||
        !is_slice_gather(o->c, op, repeat))
        return false;
    int wait = first_reader(o, k->index, y);
    if (wait < 0)
        return false;
    add_flight(o, k, wait, wait, repeat);
    nd_info(o->c, op->out[0])->ahead = repeat;
    return true;
}

/* In front of the nearest product before the repeat, if there is one. */
static int early_of(const nd_kernels *list, int repeat)
{
    for (int i = repeat - 1; i >= 0 && !list->v.v[i]->body; i--)
        if (is_product(list->v.v[i]))
            return i;
    return repeat;
}

/* ---- a list -------------------------------------------------------------- */

/* Nor may it start before what it needs has been waited for. */
static int after_others(const chooser *o, int start, const touched *x,
                        const touched *y)
{
    for (int i = 0; i < o->list->flights.n; i++) {
        const nd_flight *f = o->list->flights.v[i];
        if (f->wait > start && meets(o, f->k->index, x, y))
            start = f->wait;
    }
    return start;
}

static void choose(chooser *o, nd_kernel *k)
{
    const nd_op *op = k->nodes.v[0].op;
    nd_ref from, to;
    bool product = false;
    if (!may_fly(o->c, k) || !nd_ref_of(o->c, op->in[0], &from) ||
        !nd_ref_of(o->c, op->out[0], &to))
        return;
    touched x = touched_of(&from, false), y = touched_of(&to, true);
    if (fly_ahead(o, k, &y))
        return;
    int start = reach(o, k->index, -1, &x, &y, &product);
    int wait = reach(o, k->index, 1, &x, &y, &product) + 1;
    start = after_others(o, start, &x, &y);
    if (product && wait - start > 1)
        add_flight(o, k, start, wait, NULL);
}

static void overlap_list(nd_code *c, nd_kernels *list)
{
    chooser o = {.c = c, .list = list};
    if (list->overlapped)            /* a body that stages share */
        return;
    list->overlapped = true;
    o.by = ND_NEWN(c->a, touches, list->v.n + 1);
    for (int i = 0; i < list->v.n; i++) {
        nd_kernel *k = list->v.v[i];
        if (k->body)
            overlap_list(c, k->body);
        nd_touch_kernel(c, k, note, &o, i);
    }
    for (int i = 0; i < list->v.n; i++) {
        choose(&o, list->v.v[i]);
        if (list->v.v[i]->body)
            list->v.v[i]->early = early_of(list, i);
    }
}

void nd_overlap(nd_code *c)
{
    for (int s = 0; s < c->m->program->nstages; s++)
        for (int l = 0; l < NLISTS; l++)
            overlap_list(c, &c->stage[s].list[l]);
}
