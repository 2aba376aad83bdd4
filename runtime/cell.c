/* cell.c - the stage and the microbatch that a rank runs now, and the memory
 * that goes with them.
 *
 *   arena   fixed | slots until I | slots until W | slots from I to W | aside
 *           | older weights
 *
 * Which slot a microbatch has on a stage follows from the schedule: rooms.c in
 * schedule/.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 4096 };

char *ndrt_room(const ndrt_rank *r, int stage, int room)
{
    const ndrt_state *st = r->state;
    const ndrt_course *c = st->course;
    size_t cell = (size_t)(stage * c->sched->micro + r->mb) * SCHED_NSPANS;

    if (room == NDRT_FIXED)
        return r->arena;
    return r->arena + r->program->devices[r->device].fixed_bytes +
           c->rooms.at[cell + (size_t)room - 1];
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

/* Behind all slots: what forward makes that only its second run is to keep. */
void ndrt_put_aside(ndrt_rank *r)
{
    r->room[NDRT_I_TO_W] = r->arena +
                           r->program->devices[r->device].fixed_bytes +
                           r->state->course->rooms.bytes[r->device];
}

/* ---- the arena -------------------------------------------------------- */

static size_t aside_bytes(const ndrt_program *p, int device)
{
    size_t most = 0;

    for (int s = 0; s < p->nstages; s++) {
        const ndrt_stage *stage = &p->stages[s];
        size_t bytes = stage->slot_bytes[SCHED_I_TO_W];
        if (stage->device == device && stage->again && bytes > most)
            most = bytes;
    }
    return most;
}

size_t ndrt_older_at(const ndrt_course *c, int device)
{
    return c->program.devices[device].fixed_bytes + c->rooms.bytes[device] +
           aside_bytes(&c->program, device);
}

size_t ndrt_arena_bytes(const ndrt_course *c, int device)
{
    const ndrt_device *here = &c->program.devices[device];

    return ndrt_older_at(c, device) +
           (size_t)(c->versions[device] - 1) * here->version_bytes;
}

ndrt_status ndrt_make_arena(ndrt_rank *r)
{
    size_t bytes = ndrt_arena_bytes(r->state->course, r->device);
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
