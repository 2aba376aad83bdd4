/* rooms.c - where in a device's memory each microbatch keeps what it keeps.
 *
 *   stage 0   F0 ........ B0 F2 .. B2      3 slots for both stages, where 2 for
 *   stage 3      F0 B0 F1 .. B1            each would be 4
 *
 * Of every span of time, the stages of a device have slots of their own, or all
 * of them share slots as large as the largest stage needs: whichever is less
 * memory. Of shared ones a microbatch has, from when its life begins until it
 * ends, the first that is free; of its own ones stage s gives microbatch mb
 * slot mb % n.
 */
#include "lives.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct maker {
    const sched *s;
    const size_t (*bytes)[SCHED_NSPANS];
    sched_rooms *out;
    sched_life **lives;          /* by stage */
    int *n, *next;               /* by stage: lives, and the first to come */
    int *work;                   /* `micro` numbers */
    int *busy;                   /* by shared slot: until this place */
} maker;

static size_t *index_of(const maker *m, int stage, int mb)
{
    return m->out->at +
           ((size_t)stage * (size_t)m->s->micro + (size_t)mb) * SCHED_NSPANS;
}

static bool is_here(const maker *m, int rank, int stage, sched_span span)
{
    return m->s->rank_of[stage] == rank && m->bytes[stage][span] > 0;
}

/* The stage whose next life begins first; -1: none is left. */
static int next_stage(const maker *m, int rank, sched_span span)
{
    int best = -1;
    for (int i = 0; i < m->s->stages; i++)
        if (is_here(m, rank, i, span) && m->next[i] < m->n[i] &&
            (best < 0 || m->lives[i][m->next[i]].begin <
                             m->lives[best][m->next[best]].begin))
            best = i;
    return best;
}

/* Gives every life the first slot that is free; writes the slots' numbers to
 * `at`. How many there are. */
static int share(maker *m, int rank, sched_span span)
{
    int slots = 0, soonest = INT_MAX;    /* before it ends, none is free */
    for (int i = 0; i < m->s->stages; i++)
        m->next[i] = 0;
    for (int i; (i = next_stage(m, rank, span)) >= 0;) {
        sched_life l = m->lives[i][m->next[i]++];
        int k = soonest < l.begin ? 0 : slots;
        while (k < slots && m->busy[k] >= l.begin)
            k++;
        slots += k == slots;
        m->busy[k] = l.end;
        soonest = l.end < soonest ? l.end : soonest;
        index_of(m, i, l.mb)[span] = (size_t)k;
    }
    return slots;
}

static void find_lives(maker *m, int rank, sched_span span)
{
    for (int i = 0; i < m->s->stages; i++)
        if (is_here(m, rank, i, span))
            m->n[i] = sched_lives(m->s, i, span, m->lives[i], m->work);
}

/* Bytes and slots of the span from there on. */
static void settle(maker *m, int rank, sched_span span)
{
    sched_rooms *out = m->out;
    size_t own = 0, widest = 0, start = out->bytes[rank];
    find_lives(m, rank, span);
    for (int i = 0; i < m->s->stages; i++) {
        if (!is_here(m, rank, i, span))
            continue;
        size_t bytes = m->bytes[i][span];
        own += bytes * (size_t)sched_slots(m->s, i, span);
        widest = bytes > widest ? bytes : widest;
    }
    int shared = share(m, rank, span);
    bool alone = (size_t)shared * widest >= own;
    size_t at = start;
    int slot = out->slots[rank];
    for (int i = 0; i < m->s->stages; i++) {
        if (!is_here(m, rank, i, span))
            continue;
        size_t bytes = alone ? m->bytes[i][span] : widest;
        int n = alone ? sched_slots(m->s, i, span) : shared;
        for (int mb = 0; mb < m->s->micro; mb++) {
            size_t *x = &index_of(m, i, mb)[span];
            size_t k = alone ? (size_t)(mb % n) : *x;
            out->slot[x - out->at] = slot + (int)k;
            *x = at + k * bytes;
        }
        if (alone) {
            at += bytes * (size_t)n;
            slot += n;
        }
    }
    out->bytes[rank] = alone ? at : start + (size_t)shared * widest;
    out->slots[rank] = alone ? slot : slot + shared;
}

static bool make_work(maker *m)
{
    size_t stages = (size_t)m->s->stages, micro = (size_t)m->s->micro;
    bool ok = (m->lives = calloc(stages, sizeof *m->lives));
    for (size_t i = 0; ok && i < stages; i++)
        ok = (m->lives[i] = calloc(micro + 1, sizeof **m->lives));
    m->n = calloc(stages, sizeof *m->n);
    m->next = calloc(stages, sizeof *m->next);
    m->work = calloc(micro + 1, sizeof *m->work);
    m->busy = calloc(stages * micro + 1, sizeof *m->busy);
    return ok && m->n && m->next && m->work && m->busy;
}

static void free_work(maker *m)
{
    for (int i = 0; m->lives && i < m->s->stages; i++)
        free(m->lives[i]);
    free(m->lives);
    free(m->n);
    free(m->next);
    free(m->work);
    free(m->busy);
}

/* Of one device, or (-1) of all. */
static bool make(const sched *s, int device,
                 const size_t (*bytes)[SCHED_NSPANS], sched_rooms *out)
{
    size_t all = (size_t)s->stages * (size_t)s->micro * SCHED_NSPANS;
    maker m = {.s = s, .bytes = bytes, .out = out};
    *out = (sched_rooms){calloc(all + 1, sizeof *out->at),
                         calloc(all + 1, sizeof *out->slot),
                         calloc((size_t)s->ranks, sizeof *out->slots),
                         calloc((size_t)s->ranks, sizeof *out->bytes)};
    bool ok = out->at && out->slot && out->slots && out->bytes &&
              make_work(&m);
    for (size_t i = 0; ok && i < all; i++)
        out->slot[i] = -1;
    for (int r = 0; ok && r < s->ranks; r++)
        for (int k = 0; k < SCHED_NSPANS && (device < 0 || r == device); k++)
            settle(&m, r, (sched_span)k);
    free_work(&m);
    if (!ok)
        sched_rooms_free(out);
    return ok;
}

bool sched_rooms_new(const sched *s, const size_t (*bytes)[SCHED_NSPANS],
                     sched_rooms *out)
{
    return make(s, -1, bytes, out);
}

size_t sched_rooms_bytes(const sched *s, int device,
                         const size_t (*bytes)[SCHED_NSPANS])
{
    sched_rooms r;
    if (!make(s, device, bytes, &r))
        abort();
    size_t n = r.bytes[device];
    sched_rooms_free(&r);
    return n;
}

void sched_rooms_free(sched_rooms *r)
{
    free(r->at);
    free(r->slot);
    free(r->slots);
    free(r->bytes);
    *r = (sched_rooms){0};
}
