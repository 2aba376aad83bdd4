/* kir_check.c - is a kernel sound? Every operand is computed before it is read
 * and still there, types fit, and what an instruction names exists.
 */
#include "kir.h"

#include <string.h>

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

static const char *check_place(const check *c, const kir_inst *x)
{
    if (!x->place)
        return "no place";
    if (x->place->param < 0 || x->place->param >= c->k->params.n)
        return "no such parameter";
    const kir_param *p = &c->k->params.v[x->place->param];
    if (p->to.dtype != x->type)
        return "a type that differs from the memory's";
    if ((x->op == KIR_STORE || x->op == KIR_ADD) && !p->written)
        return "a write to what is only read";
    for (int i = 0; i < x->place->n; i++) {
        const kir_term *t = &x->place->term[i];
        if (t->loop >= c->k->nloops ||
            (t->inst >= 0 && (!is_there(c, t->inst) ||
                              c->k->inst.v[t->inst].op != KIR_AT)))
            return "an index that is not there";
        if (t->loop >= 0 && c->k->loop[t->loop].inner && !c->body)
            return "an inner index outside of the pass";
    }
    return NULL;
}

static nd_dtype in_type(const check *c, const kir_inst *x, int i)
{
    return c->k->inst.v[x->in[i]].type;
}

static const char *check_map(const check *c, const kir_inst *x)
{
    if (x->sub < 0 || x->sub >= EW_COUNT || x->nin != nd_ews[x->sub].nin)
        return "a map of something else";
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

static const char *check_fold(const check *c, const kir_inst *x)
{
    if (x->slot < 0 || x->slot >= c->k->folds.n)
        return "no such fold";
    const kir_fold *f = &c->k->folds.v[x->slot];
    if (f->type != x->type || (x->nin && in_type(c, x, 0) != x->type))
        return "a fold of another type";
    if (x->op != KIR_TOTAL && (!c->body || f->pass != c->pass))
        return "a fold outside of its pass";
    if (x->op == KIR_TOTAL && f->pass == c->pass && c->body)
        return "a fold's result in its pass";
    return NULL;
}

static const char *check_inst(const check *c, const kir_inst *x)
{
    for (int i = 0; i < x->nin; i++)
        if (!is_there(c, x->in[i]))
            return "an operand that is not there";
    switch (x->op) {
    case KIR_INDEX:
        return x->slot < 0 || x->slot >= c->k->nloops ? "no such loop" : NULL;
    case KIR_ITER:
        return x->repeat ? NULL : "no repeat";
    case KIR_AT:
        return is_integer(in_type(c, x, 0)) && x->type == ND_I64
                   ? NULL : "an index that is no integer";
    case KIR_STORE:
        if (in_type(c, x, 0) != x->type)
            return "a value of another type";
        return check_place(c, x);
    case KIR_ADD:
        if (in_type(c, x, 0) != x->type)
            return "a value of another type";
        return check_place(c, x);
    case KIR_LOAD:
    case KIR_PICK:
        return check_place(c, x);
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
        return x->draw ? NULL : "no stream";
    default:
        return NULL;
    }
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
    const char *wrong = NULL;
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
