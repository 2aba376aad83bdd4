/* cell.c - the stage and the microbatch that a rank runs now, and the memory
 * that goes with them.
 *
 *   arena   fixed | stage 0: slots until I, until W, from I to W | stage 2: ..
 *           | older weights
 *
 * Microbatch mb has slot mb % slots of each span; the schedule says how many a
 * stage needs.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 4096 };

char *ndrt_room(const ndrt_rank *r, int stage, int room)
{
    const ndrt_state *st = r->state;
    int span = room - 1;

    if (room == NDRT_FIXED)
        return r->arena;
    int slots = st->course->slots[stage][span];
    size_t slot = slots > 0 ? (size_t)(r->mb % slots) : 0;
    return r->arena + st->rooms[stage][span] +
           slot * r->program->stages[stage].slot_bytes[span];
}

void ndrt_set_cell(ndrt_rank *r, int stage, int mb)
{
    const ndrt_program *p = r->program;
    ndrt_state *st = r->state;

    r->stage = stage;
    r->mb = mb;
    for (int k = 0; k < NDRT_NROOMS; k++)
        r->room[k] = ndrt_room(r, stage, k);
    for (int e = 0; e < p->nextents; e++)
        if (p->extents[e].bounds || ndrt_follows_micro(&p->extents[e]))
            ndrt_extent_of(p, e, r->rank, stage, mb, &st->off[e], &st->n[e]);
}

void ndrt_put_aside(ndrt_rank *r)
{
    const ndrt_state *st = r->state;
    size_t slots = (size_t)st->course->slots[r->stage][SCHED_I_TO_W];

    r->room[NDRT_I_TO_W] =
        r->arena + st->rooms[r->stage][SCHED_I_TO_W] +
        slots * r->program->stages[r->stage].slot_bytes[SCHED_I_TO_W];
}

/* ---- the arena -------------------------------------------------------- */

/* Sets where the slots of the device's stages and its older weights begin, if
 * asked to. */
static size_t lay_out(const ndrt_course *c, int device,
                      size_t (*rooms)[SCHED_NSPANS], size_t *versions_at)
{
    const ndrt_program *p = &c->program;
    size_t at = p->devices[device].fixed_bytes;

    for (int s = 0; s < p->nstages; s++) {
        for (int k = 0; k < SCHED_NSPANS; k++) {
            if (p->stages[s].device != device)
                continue;
            if (rooms)
                rooms[s][k] = at;
            bool aside = p->stages[s].again && k == SCHED_I_TO_W;
            at += (size_t)(c->slots[s][k] + aside) * p->stages[s].slot_bytes[k];
        }
    }
    if (versions_at)
        *versions_at = at;
    return at + (size_t)(c->versions[device] - 1) *
                    p->devices[device].version_bytes;
}

size_t ndrt_arena_bytes(const ndrt_course *c, int device)
{
    return lay_out(c, device, NULL, NULL);
}

ndrt_status ndrt_make_arena(ndrt_rank *r)
{
    ndrt_state *st = r->state;
    size_t bytes = lay_out(st->course, r->device, st->rooms,
                           &st->versions_at);
    size_t all = (bytes + ARENA_ALIGN) / ARENA_ALIGN * ARENA_ALIGN;

    r->arena = all < bytes ? NULL : aligned_alloc(ARENA_ALIGN, all);
    if (!r->arena) {
        char text[24];
        ndrt_bytes(text, bytes);
        return ndrt_fail(r, NDRT_EINTERNAL, "cannot allocate the arena of %s",
                         text);
    }
    memset(r->arena, 0, all);
    r->weights = r->arena;
    return NDRT_OK;
}
