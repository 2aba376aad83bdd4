/* kir_check.c - is a kernel sound? Every operand is computed before it is read
 * and still there, types fit, what an instruction names exists, and both
 * printers can print it.
 */
#include "kir.h"

#include <string.h>

/* How many operands an instruction may have, and whether it has a place. */
static const struct {
    int least, most;
    bool place;
} shapes[KIR_NOPS] = {
    [KIR_LOAD] = {0, 0, true}, [KIR_AT] = {1, 1, false},
    [KIR_PICK] = {1, 1, true}, [KIR_SCAN] = {1, 1, false},
    [KIR_MAP] = {1, KIR_NIN, false}, [KIR_CAST] = {1, 1, false},
    [KIR_STORE] = {1, 1, true}, [KIR_ADD] = {1, 2, true},
    [KIR_KEEP] = {1, 1, false}, [KIR_FOLD] = {1, 1, false},
};

typedef struct check {
    const kir_kernel *k;
    nd_code *c;
    int pass, at;                    /* where it is */
    bool body;
} check;

/* ---- one instruction ---------------------------------------------------- */

/* Values of rows stay, those of a pass's body are there in it only. */
static bool is_there(const check *c, int i)
{
    if (i < 0 || i >= c->at)
        return false;
    for (int p = 0; p < c->k->passes.n; p++) {
        const kir_pass *s = &c->k->passes.v[p];
        if (i >= s->body && i < s->after)
            return !c->k->ninner || (p == c->pass && c->body);
    }
    return true;
}

static bool is_loop_here(const check *c, int loop)
{
    return loop >= 0 && loop < c->k->nloops &&
           (c->body || !c->k->loop[loop].inner);
}

/* A loop, shifted only around its end; an `at`; or a number. */
static const char *check_term(const check *c, const kir_term *t)
{
    if (t->loop < -1 || t->inst < -1 || (t->loop >= 0 && t->inst >= 0) ||
        t->loop >= c->k->nloops ||
        (t->inst >= 0 && (!is_there(c, t->inst) ||
                          c->k->inst.v[t->inst].op != KIR_AT)))
        return "an index that is not there";
    if (t->loop >= 0 && !is_loop_here(c, t->loop))
        return "an inner index outside of the pass";
    if (t->shift < 0 || t->size < 0 || (t->loop < 0 && t->size) ||
        (t->loop >= 0 && t->shift && !t->size) || (t->inst >= 0 && t->shift))
        return "a shift of what cannot be shifted";
    return NULL;
}

/* The `at` without which it does not touch memory, or -1. */
static int tested_by(const kir_inst *x)
{
    return x->op == KIR_PICK ? x->in[0]
           : x->op == KIR_ADD && x->nin > 1 ? x->in[1] : -1;
}

static const char *check_place(const check *c, const kir_inst *x)
{
    if (x->place->param < 0 || x->place->param >= c->k->params.n)
        return "no such parameter";
    const kir_param *p = &c->k->params.v[x->place->param];
    if (p->to.dtype != x->type)
        return "a type that differs from the memory's";
    if ((x->op == KIR_STORE || x->op == KIR_ADD) && !p->written)
        return "a write to what is only read";
    if (x->place->n < 0 || x->place->n > ND_MAX_RANK)
        return "a place of no rank";
    const char *wrong = NULL;
    for (int i = 0; i < x->place->n && !wrong; i++) {
        const kir_term *t = &x->place->term[i];
        wrong = check_term(c, t);
        if (!wrong && t->inst >= 0 && t->inst != tested_by(x))
            wrong = "an index that may lie outside";
    }
    return wrong;
}

static bool is_extent(const check *c, int ext)
{
    return ext >= 0 && ext < c->c->exts.n;
}

/* Is operand i an index that may lie outside of extent `slot`? */
static const char *check_within(const check *c, const kir_inst *x, int i)
{
    return c->k->inst.v[x->in[i]].op == KIR_AT && is_extent(c, x->slot)
               ? NULL : "a test of what is no index";
}

static nd_dtype in_type(const check *c, const kir_inst *x, int i)
{
    return c->k->inst.v[x->in[i]].type;
}

static const char *check_map(const check *c, const kir_inst *x)
{
    if (x->sub < 0 || x->sub >= EW_COUNT || x->nin != nd_ews[x->sub].nin)
        return "a map of something else";
    if (x->sub != EW_WHERE && nd_is_narrow(in_type(c, x, 0)))
        return "a map of 16 bits";
    int from = x->sub == EW_WHERE;
    for (int i = from + 1; i < x->nin; i++)
        if (in_type(c, x, i) != in_type(c, x, from))
            return "operands of two types";
    if (from && in_type(c, x, 0) != ND_BOOL)
        return "a choice by what is no bool";
    if (nd_ews[x->sub].result == 'b' ? x->type != ND_BOOL
                                     : x->type != in_type(c, x, from))
        return "a result of another type";
    return NULL;
}

static bool is_integer(nd_dtype t)
{
    return t == ND_I32 || t == ND_I64;
}

/* Can a reduction be of that type? */
static const char *check_reduction(int red, nd_dtype t)
{
    if (red < RED_SUM || red > RED_MIN)
        return "no such reduction";
    return t == ND_F32 || is_integer(t) ? NULL : "a reduction of a type of less"
                                                 " than 32 bits";
}

static const char *check_fold(const check *c, const kir_inst *x)
{
    if (x->slot < 0 || x->slot >= c->k->folds.n)
        return "no such fold";
    const kir_fold *f = &c->k->folds.v[x->slot];
    if (f->scan != (x->op == KIR_SCAN))
        return "a running sum that is none";
    if (f->type != x->type || (x->nin && in_type(c, x, 0) != x->type))
        return "a fold of another type";
    if (x->op != KIR_TOTAL && (!c->body || f->pass != c->pass))
        return "a fold outside of its pass";
    if (x->op == KIR_TOTAL && f->pass == c->pass && c->body)
        return "a fold's result in its pass";
    return check_reduction(f->red, f->type);
}

static bool is_iter(const check *c, const nd_op *repeat)
{
    for (int i = 0; i < c->k->iters.n; i++)
        if (c->k->iters.v[i] == repeat)
            return true;
    return false;
}

static const char *check_draw(const check *c, const kir_draw *d)
{
    if (!d)
        return "no stream";
    if (d->n < 0 || d->n > ND_MAX_RANK)
        return "a draw of no rank";
    for (int i = 0; i < d->n; i++)
        if (!is_loop_here(c, d->loop[i]))
            return "a draw along no loop";
    for (const nd_op *r = d->repeat; r; r = r->block->parent)
        if (!is_iter(c, r))
            return "a draw in no repeat";
    return NULL;
}

static const char *check_add(const check *c, const kir_inst *x)
{
    const char *wrong = check_reduction(x->sub, x->type);
    if (!wrong && in_type(c, x, 0) != x->type)
        wrong = "a value of another type";
    if (!wrong && x->nin > 1)
        wrong = check_within(c, x, 1);
    return wrong ? wrong : check_place(c, x);
}

static const char *check_pick(const check *c, const kir_inst *x)
{
    const char *wrong = check_within(c, x, 0);
    return wrong ? wrong : check_place(c, x);
}

static const char *check_operands(const check *c, const kir_inst *x)
{
    if (x->op < 0 || x->op >= KIR_NOPS)
        return "no such instruction";
    if (x->nin < shapes[x->op].least || x->nin > shapes[x->op].most)
        return "too few or too many operands";
    if ((x->place != NULL) != shapes[x->op].place)
        return x->place ? "a place of what has none" : "no place";
    for (int i = 0; i < x->nin; i++)
        if (!is_there(c, x->in[i]))
            return "an operand that is not there";
    return NULL;
}

static const char *check_meaning(const check *c, const kir_inst *x)
{
    switch (x->op) {
    case KIR_INDEX:
        return is_loop_here(c, x->slot) ? NULL : "no such loop";
    case KIR_ITER:
        return is_iter(c, x->repeat) ? NULL : "no such repeat";
    case KIR_AT:
        if (!is_extent(c, x->slot))
            return "no such extent";
        return is_integer(in_type(c, x, 0)) && x->type == ND_I64
                   ? NULL : "an index that is no integer";
    case KIR_STORE:
        if (in_type(c, x, 0) != x->type)
            return "a value of another type";
        return check_place(c, x);
    case KIR_ADD:
        return check_add(c, x);
    case KIR_LOAD:
        return check_place(c, x);
    case KIR_PICK:
        return check_pick(c, x);
    case KIR_KEPT:
    case KIR_KEEP:
        if (x->slot < 0 || x->slot >= c->k->kept.n || !c->body)
            return "no such kept row";
        return c->k->kept.v[x->slot].type == x->type
                   ? NULL : "a kept row of another type";
    case KIR_FOLD:
    case KIR_SCAN:
    case KIR_TOTAL:
        return check_fold(c, x);
    case KIR_MAP:
        return check_map(c, x);
    case KIR_MASK:
    case KIR_NORMAL:
        return check_draw(c, x->draw);
    default:
        return NULL;
    }
}

static const char *check_inst(const check *c, const kir_inst *x)
{
    const char *wrong = check_operands(c, x);
    return wrong ? wrong : check_meaning(c, x);
}

/* ---- in place ----------------------------------------------------------- */

/* Do they go over all loops, so that each iteration has an element of its own,
 * and over the same one? */
static bool same_element(const kir_kernel *k, const kir_place *a,
                         const kir_place *b)
{
    bool over[2 * ND_MAX_RANK] = {false};
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++) {
        const kir_term *s = &a->term[i], *t = &b->term[i];
        if (s->loop != t->loop || s->inst >= 0 || t->inst >= 0 || s->size ||
            t->size || s->shift || t->shift || !nd_len_eq(&s->stride,
                                                          &t->stride))
            return false;
        if (s->loop >= 0)
            over[s->loop] = true;
    }
    for (int i = 0; i < k->nloops; i++)
        if (!over[i] && !k->loop[i].once)
            return false;
    return true;
}

/* The last instruction in whose text the load may stand: those that a name is
 * given to hold it no longer. */
static int last_use(const kir_kernel *k, int load)
{
    int last = load;
    nd_arena *a = nd_arena_new();
    bool *holds = ND_NEWN(a, bool, k->inst.n);
    holds[load] = true;
    for (int i = load + 1; i < k->inst.n; i++) {
        const kir_inst *x = &k->inst.v[i];
        bool uses = false;
        for (int j = 0; j < x->nin; j++)
            uses |= holds[x->in[j]];
        for (int j = 0; x->place && j < x->place->n; j++)
            uses |= x->place->term[j].inst >= 0 &&
                    holds[x->place->term[j].inst];
        last = uses ? i : last;
        holds[i] = uses && x->naming != KIR_NOW;
    }
    nd_arena_free(a);
    return last;
}

/* What shares a place with a parameter is stored once, behind everything that
 * reads the same element of it. */
static const char *check_pair(const kir_kernel *k, int out, int in)
{
    int store = -1;
    for (int i = 0; i < k->clears.n + k->parts.n; i++)
        if ((i < k->clears.n ? k->clears.v[i].param
                             : k->parts.v[i - k->clears.n].param) == out)
            return "a sum in place of what is read";
    for (int i = 0; i < k->inst.n; i++) {
        const kir_inst *x = &k->inst.v[i];
        if (x->op != KIR_STORE || x->place->param != out)
            continue;
        if (store >= 0)
            return "two stores in place of what is read";
        store = i;
    }
    for (int i = 0; i < k->inst.n && store >= 0; i++) {
        const kir_inst *x = &k->inst.v[i];
        if (!x->place || x->place->param != in)
            continue;
        if (x->op != KIR_LOAD ||
            !same_element(k, x->place, k->inst.v[store].place))
            return "another element than the one in its place";
        if (last_use(k, i) > store)
            return "a read behind what is stored in its place";
    }
    return store < 0 ? "a sum in place of what is read" : NULL;
}

static const char *check_shared(const kir_kernel *k)
{
    const char *wrong = NULL;
    for (int i = 0; i < k->params.n && !wrong; i++) {
        int in = k->params.v[i].shares;
        if (in >= k->params.n || (in >= 0 && k->params.v[in].shares != i))
            wrong = "a parameter that shares its place with none";
        else if (in >= 0 && k->params.v[i].written)
            wrong = k->params.v[in].written ? "two results in one place"
                                            : check_pair(k, i, in);
    }
    return wrong;
}

/* ---- the kernel --------------------------------------------------------- */

static const char *check_loops(const check *c)
{
    const kir_kernel *k = c->k;
    int outer = k->nloops - k->ninner;
    if (k->nloops < 0 || k->nloops > 2 * ND_MAX_RANK || k->ninner < 0 ||
        outer < 0 || k->share.n > outer)
        return "no such number of loops";
    for (int i = 0; i < k->nloops; i++)
        if (k->loop[i].inner != (i >= outer) || !is_extent(c, k->loop[i].ext) ||
            (k->loop[i].inner && k->loop[i].once))
            return "a loop that cannot be";
    return NULL;
}

static bool is_written(const kir_kernel *k, int param)
{
    return param >= 0 && param < k->params.n && k->params.v[param].written;
}

/* What is there before the rows, and stands for them. */
static const char *check_sums(const check *c)
{
    const kir_kernel *k = c->k;
    for (int i = 0; i < k->clears.n; i++) {
        const kir_clear *x = &k->clears.v[i];
        if (!is_written(k, x->param) ||
            check_reduction(x->red, k->params.v[x->param].to.dtype))
            return "a clear of what is not added up";
    }
    for (int i = 0; i < k->parts.n; i++) {
        const kir_part *x = &k->parts.v[i];
        if (!is_written(k, x->param) ||
            k->params.v[x->param].to.dtype != ND_F32 || x->at < 0)
            return "parts of what is not added up";
    }
    return NULL;
}

static const char *check_range(check *c, int from, int to, bool body)
{
    c->body = body;
    if (c->at != from || to < from)
        return "instructions out of order";
    for (; c->at < to; c->at++) {
        const char *wrong = check_inst(c, &c->k->inst.v[c->at]);
        if (wrong)
            return nd_fmt(c->c->a, "%%%d: %s", c->at, wrong);
    }
    return NULL;
}

const char *kir_check(cg *g, const kir_kernel *k)
{
    check c = {.k = k, .c = g->c};
    const char *wrong = check_loops(&c);
    if (!wrong)
        wrong = check_sums(&c);
    for (; c.pass < k->passes.n && !wrong; c.pass++) {
        const kir_pass *s = &k->passes.v[c.pass];
        wrong = check_range(&c, s->row, s->body, false);
        if (!wrong)
            wrong = check_range(&c, s->body, s->after, true);
        if (!wrong)
            wrong = check_range(&c, s->after, s->end, false);
    }
    if (!wrong && c.at != k->inst.n)
        wrong = "instructions outside of all passes";
    return wrong ? wrong : check_shared(k);
}
