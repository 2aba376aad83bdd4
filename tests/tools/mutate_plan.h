/* mutate_plan.h - ways to break what surrounds the graph: buckets, extents,
 * stages, crossings, schedules.
 */
#ifndef MUTATE_PLAN_H
#define MUTATE_PLAN_H

#include "mutate.h"

/* ---- buckets ------------------------------------------------------------- */

static nd_bucket *bucket_at(subject *s, int j)
{
    tell(s, "bucket %d", j);
    return j < s->c->mem.buckets.n ? &s->c->mem.buckets.v[j] : NULL;
}

/* One bit of a mask of mesh axes. */
static made flip(subject *s, int site, size_t field, const char *what)
{
    int n = s->m->mesh.n, k = site % n;
    nd_bucket *b = bucket_at(s, site / n);
    if (!b)
        return NO_SITE;
    tell(s, "bucket %d, %s: %s changed", site / n, what, s->m->mesh.name[k]);
    if (k == s->m->mesh.micro || one_rank(s, 1u << k))
        return NO_CHANGE;
    *(uint32_t *)(void *)((char *)b + field) ^= 1u << k;
    return MADE;
}

static made bucket_sum(subject *s, int site)
{
    return flip(s, site, offsetof(nd_bucket, sum), "sum");
}

static made bucket_cut(subject *s, int site)
{
    return flip(s, site, offsetof(nd_bucket, cut), "pieces in the norm");
}

static made bucket_zero(subject *s, int site)
{
    return flip(s, site, offsetof(nd_bucket, zero), "zero");
}

static made bucket_devices(subject *s, int site)
{
    int n = s->m->program->ndevices;
    nd_bucket *b = bucket_at(s, site / n);
    if (!b)
        return NO_SITE;
    tell(s, "bucket %d, device %d changed", site / n, site % n);
    b->devices ^= 1u << site % n;
    return MADE;
}

static made bucket_flags(subject *s, int site)
{
    nd_bucket *b = bucket_at(s, site / 2);
    if (!b)
        return NO_SITE;
    if (site % 2)
        b->frozen = !b->frozen;
    else
        b->decay = !b->decay;
    return MADE;
}

static nd_bucket *member_at(subject *s, int *k)
{
    for (int j = 0; j < s->c->mem.buckets.n; j++) {
        nd_bucket *b = &s->c->mem.buckets.v[j];
        if (*k < b->params.n) {
            tell(s, "%s in bucket %d", b->params.v[*k]->name, j);
            return b;
        }
        *k -= b->params.n;
    }
    return NULL;
}

static made bucket_missing(subject *s, int site)
{
    nd_bucket *b = member_at(s, &site);
    if (!b)
        return NO_SITE;
    b->params.n--;
    b->at.n--;
    memmove(b->params.v + site, b->params.v + site + 1,
            sizeof *b->params.v * (size_t)(b->params.n - site));
    memmove(b->at.v + site, b->at.v + site + 1,
            sizeof *b->at.v * (size_t)(b->at.n - site));
    return MADE;
}

static made bucket_twice(subject *s, int site)
{
    int n = s->c->mem.buckets.n, to = site % n, k = site / n;
    nd_bucket *b = member_at(s, &k), *other = &s->c->mem.buckets.v[to];
    if (!b)
        return NO_SITE;
    nd_param *p = b->params.v[k];
    tell(s, "%s in bucket %d as well", p->name, to);
    ND_PUSH(s->c->a, &other->params, p);
    ND_PUSH(s->c->a, &other->at, other->n);
    other->n += 16384;
    return MADE;
}

/* Do they differ over mesh axes of one rank alone? */
static bool same_bucket(const subject *s, const nd_bucket *a,
                        const nd_bucket *b)
{
    return one_rank(s, (a->sum ^ b->sum) | (a->cut ^ b->cut) |
                           (a->zero ^ b->zero)) &&
           a->devices == b->devices && a->decay == b->decay &&
           a->frozen == b->frozen && a->muon == b->muon;
}

static made bucket_moved(subject *s, int site)
{
    int n = s->c->mem.buckets.n, to = site % n, k = site / n;
    nd_bucket *b = member_at(s, &k), *other = &s->c->mem.buckets.v[to];
    if (!b)
        return NO_SITE;
    nd_param *p = b->params.v[k];
    if (b == other)
        return NO_SENSE;
    if (same_bucket(s, b, other))
        return NO_CHANGE;
    bucket_missing(s, site / n);
    tell(s, "%s in bucket %d instead", p->name, to);
    s->c->mem.bucket_of[p->index] = to;
    s->c->mem.member_of[p->index] = other->params.n;
    ND_PUSH(s->c->a, &other->params, p);
    ND_PUSH(s->c->a, &other->at, other->n);
    other->n += 16384;
    return MADE;
}

static made bucket_place(subject *s, int site)
{
    int k = site;
    nd_bucket *b = member_at(s, &k);
    if (!b)
        return NO_SITE;
    /* Into the one before it, or over the end. */
    b->at.v[k] = k ? b->at.v[k] - 16 : b->n;
    return MADE;
}

static made bucket_size(subject *s, int site)
{
    nd_bucket *b = bucket_at(s, site);
    if (!b)
        return NO_SITE;
    b->n = b->at.v[b->at.n - 1];     /* the last one has no room */
    return MADE;
}

/* ---- shards -------------------------------------------------------------- */

static made extent(subject *s, int site)
{
    int i = site / 4;
    if (i >= s->c->exts.n)
        return NO_SITE;
    nd_ext *e = &s->c->exts.v[i];
    int by = site % 2 ? 1 : -1;
    tell(s, "pieces of %s: %s %+d", e->axis->name,
         site % 4 < 2 ? "most" : "each", by);
    if (site % 4 >= 2 && e->fixed < 0)
        e->fixed = e->max;           /* uneven ones taken for even */
    else
        *(site % 4 < 2 ? &e->max : &e->fixed) += by;
    return MADE;
}

static made range(subject *s, int site)
{
    const nd_program *p = s->m->program;
    int k = site / 4, by = site % 2 ? 1 : -1;
    if (k >= p->nstages)
        return NO_SITE;
    if (!s->m->plan.piped.n)
        return NO_SENSE;
    nd_iters *it = p->stage[k].iters;
    int *at = site % 4 < 2 ? &it->lo : &it->hi;
    tell(s, "stage %d: %s %+d", k, site % 4 < 2 ? "lo" : "hi", by);
    *at += by;
    return MADE;
}

/* ---- stages -------------------------------------------------------------- */

/* Crossing i of all; its list, and which stage sends it. */
static nd_cross *cross_at(subject *s, int *i, int **n, int *stage, bool *back)
{
    const nd_program *p = s->m->program;
    for (int k = 0; k < 2 * p->nstages; k++) {
        nd_stage *st = &p->stage[k / 2];
        *n = k % 2 ? &st->send_bwd.n : &st->send_fwd.n;
        if (*i < **n) {
            nd_cross *v = k % 2 ? st->send_bwd.v : st->send_fwd.v;
            *stage = k / 2;
            *back = k % 2;
            tell(s, "%%%s from stage %d, %s", v[*i].from->name, k / 2,
                 k % 2 ? "back" : "ahead");
            return v;
        }
        *i -= **n;
    }
    return NULL;
}

static made cross_dropped(subject *s, int site)
{
    int *n, stage;
    bool back;
    nd_cross *v = cross_at(s, &site, &n, &stage, &back);
    if (!v)
        return NO_SITE;
    memmove(v + site, v + site + 1, sizeof *v * (size_t)(--*n - site));
    return MADE;
}

static made cross_twice(subject *s, int site)
{
    int *n, stage;
    bool back;
    nd_cross *v = cross_at(s, &site, &n, &stage, &back);
    if (!v)
        return NO_SITE;
    nd_stage *st = &s->m->program->stage[stage];
    nd_cross again = v[site];
    if (back)
        ND_PUSH(s->m->ctx->arena, &st->send_bwd, again);
    else
        ND_PUSH(s->m->ctx->arena, &st->send_fwd, again);
    return MADE;
}

/* Sent by each other stage, or in the other direction, instead. */
static made cross_elsewhere(subject *s, int site)
{
    int p = s->m->program->nstages, to = site % (2 * p), *n, stage;
    int i = site / (2 * p);
    bool back;
    nd_cross *v = cross_at(s, &i, &n, &stage, &back);
    if (!v)
        return NO_SITE;
    if (to == 2 * stage + back)
        return NO_SENSE;
    also(s, ", %s instead", nd_fmt(s->m->ctx->arena, "from stage %d, %s",
                                   to / 2, to % 2 ? "back" : "ahead"));
    nd_cross x = v[i];
    memmove(v + i, v + i + 1, sizeof *v * (size_t)(--*n - i));
    nd_stage *st = &s->m->program->stage[to / 2];
    if (to % 2)
        ND_PUSH(s->m->ctx->arena, &st->send_bwd, x);
    else
        ND_PUSH(s->m->ctx->arena, &st->send_fwd, x);
    return MADE;
}

/* Received as what another one should be. */
static made cross_confused(subject *s, int site)
{
    int *n, stage, i = site / 8, k = site % 8;
    bool back;
    nd_cross *v = cross_at(s, &i, &n, &stage, &back);
    if (!v)
        return NO_SITE;
    if (k >= *n || k == i)
        return NO_SENSE;
    nd_value *to = v[i].to;
    v[i].to = v[k].to;
    v[k].to = to;
    return MADE;
}

static nd_op **list_at(subject *s, int *i, int **n, int *stage, int *list)
{
    const nd_program *p = s->m->program;
    for (int k = 0; k < STAGE_LISTS * p->nstages; k++) {
        *stage = k / STAGE_LISTS;
        *list = k % STAGE_LISTS;
        stage_list l = list_of(&p->stage[*stage], *list);
        *n = l.n;
        if (*i < **n) {
            nd_op **v = *l.v;
            tell(s, "stage %d: %s %%%s", *stage, nd_op_name(v[*i]),
                 v[*i]->nout ? v[*i]->out[0]->name : v[*i]->name);
            return v;
        }
        *i -= **n;
    }
    return NULL;
}

static made op_dropped(subject *s, int site)
{
    int *n, stage, list;
    nd_op **v = list_at(s, &site, &n, &stage, &list);
    if (!v)
        return NO_SITE;
    memmove(v + site, v + site + 1, sizeof *v * (size_t)(--*n - site));
    return MADE;
}

static void push_op(subject *s, int stage, int list, nd_op *op)
{
    stage_list l = list_of(&s->m->program->stage[stage], list);
    put_op(s->m->ctx->arena, l, *l.n, op);
}

static made op_twice(subject *s, int site)
{
    int *n, stage, list;
    nd_op **v = list_at(s, &site, &n, &stage, &list);
    if (!v)
        return NO_SITE;
    push_op(s, stage, list, v[site]);
    return MADE;
}

static made op_elsewhere(subject *s, int site)
{
    int p = s->m->program->nstages, *n, stage, list, i = site / p;
    nd_op **v = list_at(s, &i, &n, &stage, &list);
    if (!v)
        return NO_SITE;
    if (site % p == stage)
        return NO_SENSE;
    nd_op *op = v[i];
    memmove(v + i, v + i + 1, sizeof *v * (size_t)(--*n - i));
    push_op(s, site % p, list, op);
    return MADE;
}

static made op_early(subject *s, int site)
{
    int *n, stage, list;
    nd_op **v = list_at(s, &site, &n, &stage, &list);
    if (!v)
        return NO_SITE;
    if (!site)
        return NO_SENSE;
    nd_op *op = v[site];
    v[site] = v[site - 1];
    v[site - 1] = op;
    return MADE;
}

static made param_missing(subject *s, int site)
{
    const nd_program *p = s->m->program;
    for (int k = 0; k < p->nstages; k++) {
        nd_stage *st = &p->stage[k];
        if (site < st->params.n) {
            tell(s, "stage %d without %s", k, st->params.v[site]->name);
            memmove(st->params.v + site, st->params.v + site + 1,
                    sizeof *st->params.v * (size_t)(--st->params.n - site));
            return MADE;
        }
        site -= st->params.n;
    }
    return NO_SITE;
}

/* ---- the schedule -------------------------------------------------------- */

static sched_row *action_at(subject *s, int *i)
{
    sched *x = s->m->program->sched;
    for (int k = 0; k < x->ranks; k++) {
        sched_row *row = &x->row[k];
        if (*i < row->n) {
            tell(s, "device %d, action %d", k, *i);
            return row;
        }
        *i -= row->n;
    }
    return NULL;
}

static made action_dropped(subject *s, int site)
{
    sched_row *row = action_at(s, &site);
    if (!row)
        return NO_SITE;
    row->n--;
    memmove(row->v + site, row->v + site + 1,
            sizeof *row->v * (size_t)(row->n - site));
    return MADE;
}

static made action_twice(subject *s, int site)
{
    sched_row *row = action_at(s, &site);
    if (!row)
        return NO_SITE;
    sched_action again = row->v[site];
    int device = (int)(row - s->m->program->sched->row);
    sched_push(s->m->program->sched, device, again.op, again.stage, again.mb);
    return MADE;
}

static made action_microbatch(subject *s, int site)
{
    sched_row *row = action_at(s, &site);
    int n = s->m->program->nmicro;
    if (!row)
        return NO_SITE;
    if (n == 1)
        return NO_SENSE;
    row->v[site].mb = (row->v[site].mb + 1) % n;
    return MADE;
}

static made action_kind(subject *s, int site)
{
    int k = site % SCHED_NOPS, i = site / SCHED_NOPS;
    sched_row *row = action_at(s, &i);
    if (!row)
        return NO_SITE;
    if (k == (int)row->v[i].op)
        return NO_SENSE;
    row->v[i].op = (sched_op)k;
    return MADE;
}

static made action_early(subject *s, int site)
{
    sched_row *row = action_at(s, &site);
    if (!row)
        return NO_SITE;
    if (!site)
        return NO_SENSE;
    sched_action a = row->v[site];
    row->v[site] = row->v[site - 1];
    row->v[site - 1] = a;
    return MADE;
}

static made slots(subject *s, int site)
{
    int stage = site / SCHED_NSPANS, span = site % SCHED_NSPANS;
    if (stage >= s->m->program->nstages)
        return NO_SITE;
    tell(s, "stage %d: one slot less in span %d", stage, span);
    s->m->program->stage[stage].slots[span]--;
    return MADE;
}

#endif
