/* sched.c - making, growing and freeing a schedule, and its tables of names. */
#include "sched.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const sched_op_name[SCHED_NOPS] = {
    [SCHED_F] = "F", [SCHED_B] = "B", [SCHED_I] = "I", [SCHED_W] = "W",
    [SCHED_U] = "U",
    [SCHED_SEND_F] = "SEND_F", [SCHED_RECV_F] = "RECV_F",
    [SCHED_SEND_B] = "SEND_B", [SCHED_RECV_B] = "RECV_B",
};

const sched_info sched_kinds[SCHED_NKINDS] = {
#define SCHED(id, name, v, where, traits, doc) \
    {name, v, SCHED_##where, traits, doc},
#include "sched.def"
#undef SCHED
};

bool sched_has(sched_kind k, char trait)
{
    return k < SCHED_NKINDS && strchr(sched_kinds[k].traits, trait);
}

int sched_per_rank(sched_kind kind, int v)
{
    return kind < SCHED_NKINDS && sched_kinds[kind].v ? sched_kinds[kind].v
           : v > 0                                    ? v
                                                      : 1;
}

/* VEE goes down and up again, as often as there are stages. */
int sched_rank_of(sched_where where, int ranks, int stage)
{
    int turn = stage / ranks, at = stage % ranks;
    return where == SCHED_VEE && turn % 2 ? ranks - 1 - at : at;
}

sched *sched_new(const char *name, int ranks, int stages, int micro,
                 sched_where where)
{
    sched *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    snprintf(s->name, sizeof s->name, "%s", name);
    s->ranks = ranks;
    s->stages = stages;
    s->micro = micro;
    s->rank_of = calloc((size_t)stages + 1, sizeof *s->rank_of);
    s->row = calloc((size_t)ranks + 1, sizeof *s->row);
    if (!s->rank_of || !s->row) {
        sched_free(s);
        return NULL;
    }
    for (int i = 0; i < stages; i++)
        s->rank_of[i] = sched_rank_of(where, ranks, i);
    return s;
}

void sched_free(sched *s)
{
    if (!s)
        return;
    for (int r = 0; s->row && r < s->ranks; r++)
        free(s->row[r].v);
    free(s->row);
    free(s->rank_of);
    free(s);
}

/* Schedules are small beside the models that they are of: a machine that has no
 * room for one cannot do anything else either. */
static void *grow(void *old, size_t bytes)
{
    void *new = realloc(old, bytes);
    if (!new)
        abort();
    return new;
}

void sched_push(sched *s, int rank, sched_op op, int stage, int mb)
{
    sched_row *r = &s->row[rank];
    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 16;
        r->v = grow(r->v, (size_t)r->cap * sizeof *r->v);
    }
    r->v[r->n++] = (sched_action){.op = op, .stage = stage, .mb = mb};
}

sched *sched_copy(const sched *s)
{
    sched *c = sched_new(s->name, s->ranks, s->stages, s->micro, SCHED_LOOP);
    if (!c)
        return NULL;
    memcpy(c->rank_of, s->rank_of, (size_t)s->stages * sizeof *s->rank_of);
    c->lowered = s->lowered;
    for (int r = 0; r < s->ranks; r++) {
        size_t bytes = (size_t)s->row[r].n * sizeof *s->row[r].v;
        c->row[r].v = grow(NULL, bytes + 1);
        c->row[r].n = c->row[r].cap = s->row[r].n;
        if (bytes)
            memcpy(c->row[r].v, s->row[r].v, bytes);
    }
    return c;
}

bool sched_fail(sched_error *err, int rank, int at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    err->rank = rank;
    err->at = at;
    return false;
}

bool sched_crosses(const sched *s, const uint8_t *cross, int stage, int bit)
{
    return stage >= 0 && stage + 1 < s->stages &&
           (!cross || (cross[stage] & bit));
}

int sched_source(const sched *s, const uint8_t *cross, sched_action a)
{
    if (a.op == SCHED_F && sched_crosses(s, cross, a.stage - 1, SCHED_AHEAD))
        return a.stage - 1;
    if (sched_is_back(a.op) && sched_crosses(s, cross, a.stage, SCHED_BACK))
        return a.stage + 1;
    return -1;
}

sched_action sched_other_end(sched_action a)
{
    static const sched_op other[SCHED_NOPS] = {
        [SCHED_SEND_F] = SCHED_RECV_F, [SCHED_RECV_F] = SCHED_SEND_F,
        [SCHED_SEND_B] = SCHED_RECV_B, [SCHED_RECV_B] = SCHED_SEND_B,
    };
    bool up = a.op == SCHED_SEND_F || a.op == SCHED_RECV_B;
    a.stage += up ? 1 : -1;
    a.op = other[a.op];
    return a;
}

void sched_put(sched_text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (t->n + (size_t)n + 1 > t->cap) {
        t->cap = 2 * (t->n + (size_t)n + 64);
        t->s = grow(t->s, t->cap);
    }
    va_start(ap, fmt);
    vsnprintf(t->s + t->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    t->n += (size_t)n;
}
