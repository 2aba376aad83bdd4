/* memplan_check.c - does nothing lie on what is still needed?
 *
 *   kernel   0  1  2  3
 *   x        w     r           bytes 0 .. 64
 *   y           w     r        bytes 64 .. 128
 *   z              w  r        bytes 0 .. 64: in place of x, if kernel 2 may
 *
 * The check is done on the places themselves, for every stage, after all plans
 * are made; the plan's own lives of values are not asked. A value is needed
 * from the first kernel that touches it to the last one, lists one after
 * another; what a body touches outside of it, while the repeat runs.
 */
#include "passes.h"

#include <stdlib.h>

typedef struct needed {
    const nd_place *p;
    int from, to;                    /* times */
    nd_kernel *first;                /* the kernel at `from`, unless a repeat */
} needed;

typedef struct check {
    nd_code *c;
    const nd_stage_mem *mem;
    int time;
    ND_VEC(needed) v;
    nd_table at;                     /* value -> needed + 1 */
    const nd_block *block;           /* that is gone through */
    nd_kernel *kernel;
    int from;                        /* when it begins */
} check;

static void note(void *user, const nd_ref *at, bool write, int index)
{
    check *k = user;
    (void)write;
    (void)index;
    if (at->root != AT_BUFFER || nd_home_block(k->c, at->value) != k->block)
        return;
    int i = (int)(intptr_t)nd_table_get(&k->at, at->value);
    if (i) {
        k->v.v[i - 1].to = k->time;
        return;
    }
    const nd_place *p = nd_place_of(k->mem, at->value);
    if (!p)
        return;
    needed x = {p, k->from, k->time, k->kernel};
    ND_PUSH(k->c->a, &k->v, x);
    nd_table_put(&k->at, at->value, (void *)(intptr_t)k->v.n);
}

/* Collectives in flight touch their memory while others run: of those,
 * overlap_check.c knows. */
static void go_through(check *k, const nd_kernels *list, const nd_block *block)
{
    for (int i = 0; i < list->v.n; i++) {
        nd_kernel *x = list->v.v[i];
        int from = k->time;
        if (x->body)
            go_through(k, x->body, x->body->block);
        k->block = block;
        k->kernel = x->body ? NULL : x;
        k->from = from;
        nd_touch_kernel(k->c, x, note, k, i);
        k->time++;
    }
}

static int by_time(const void *a, const void *b)
{
    const needed *x = a, *y = b;
    return x->from != y->from ? (x->from > y->from) - (x->from < y->from)
                              : x->p->value->mark - y->p->value->mark;
}

/* May x be there beside y, which was there before? */
static bool may_be(check *k, const needed *x, const needed *y)
{
    if (x->p->room != y->p->room || x->p->base >= y->p->base + y->p->bytes ||
        y->p->base >= x->p->base + x->p->bytes)
        return true;
    return y->to == x->from && y->from < x->from && x->first &&
           x->p->base == y->p->base && x->p->bytes == y->p->bytes &&
           nd_may_take_place(k->c, x->first, x->p->value, y->p->value);
}

/* Those that are needed now; each that comes is compared with all of them. */
static bool check_stage(check *k)
{
    int n = 0;
    if (k->v.n)
        qsort(k->v.v, (size_t)k->v.n, sizeof *k->v.v, by_time);
    const needed **now = ND_NEWN(k->c->a, const needed *, k->v.n + 1);
    for (int i = 0; i < k->v.n; i++) {
        const needed *x = &k->v.v[i];
        int keep = 0;
        for (int j = 0; j < n; j++) {
            if (now[j]->to < x->from)
                continue;
            if (!may_be(k, x, now[j])) {
                nd_error(k->c->m->ctx, x->p->value->def ? x->p->value->def->loc
                                                        : nd_nowhere,
                         "internal error: '%s' lies on '%s', which is still "
                         "needed", x->p->value->name, now[j]->p->value->name);
                return false;
            }
            now[keep++] = now[j];
        }
        now[keep++] = x;
        n = keep;
    }
    return true;
}

bool nd_places_check(nd_code *c)
{
    for (int s = 0; s < c->m->program->nstages; s++) {
        check k = {.c = c, .mem = &c->mem.stage[s], .at = {.arena = c->a}};
        for (int l = 0; l < NLISTS; l++)
            go_through(&k, &c->stage[s].list[l], c->m->step);
        if (!check_stage(&k))
            return false;
    }
    return true;
}
