/* memslots.c - the memory of what microbatches keep: slots on each device, as
 * many as live at once by the schedule.
 *
 *   bytes(device) = slots that its stages share, or each its own
 *                 + one aside: what the first run of a forward pass that runs
 *                   twice makes for W, which is not for keeping
 */
#include "passes.h"

typedef const size_t (*slot_bytes)[SCHED_NSPANS];

/* By stage and span: what a microbatch keeps. */
static slot_bytes kept_bytes(const nd_module *m, const nd_stage_mem *stage,
                             const bool *again)
{
    const nd_program *p = m->program;
    size_t (*bytes)[SCHED_NSPANS] =
        nd_alloc(m->ctx->arena, sizeof *bytes * (size_t)p->nstages);
    for (int s = 0; s < p->nstages; s++)
        for (int k = 0; k < SCHED_NSPANS; k++)
            bytes[s][k] = stage[s].kept[again[s]][ROOM_UNTIL_I + k];
    return (slot_bytes)bytes;
}

size_t nd_slots_bytes(const nd_module *m, const nd_stage_mem *stage, int device,
                      const bool *again)
{
    const nd_program *p = m->program;
    size_t aside = 0;
    for (int s = 0; s < p->nstages; s++) {
        size_t bytes = stage[s].kept[true][ROOM_I_TO_W];
        if (p->stage[s].device == device && again[s] && bytes > aside)
            aside = bytes;
    }
    return aside + sched_rooms_bytes(p->sched, device,
                                     kept_bytes(m, stage, again));
}

bool nd_rooms_check(const nd_code *c)
{
    const nd_module *m = c->m;
    const nd_program *p = m->program;
    bool *again = ND_NEWN(c->a, bool, p->nstages);
    sched_rooms rooms;
    sched_error e = {.text = "no memory", .rank = -1};
    for (int s = 0; s < p->nstages; s++)
        again[s] = nd_runs_again(&m->plan, s);
    slot_bytes bytes = kept_bytes(m, c->mem.stage, again);
    bool ok = sched_rooms_new(p->sched, bytes, &rooms) &&
              sched_check_rooms(p->sched, bytes, &rooms, &e);
    if (ok || rooms.at)
        sched_rooms_free(&rooms);
    return ok || nd_schedule_error(m->ctx, m->plan.schedule_loc, "schedule",
                                   p->sched, &e);
}

bool nd_memory_check(const nd_code *c)
{
    const nd_module *m = c->m;
    double limit = m->plan.memory;
    bool ok = true;
    for (int d = 0; limit > 0 && d < m->program->ndevices; d++) {
        size_t bytes = c->mem.device[d].arena_bytes;
        if ((double)bytes <= limit)
            continue;
        nd_error(m->ctx, m->plan.pipe_loc, "device %d of the pipeline needs "
                 "%zu bytes, more than its %.0f", d, bytes, limit);
        if (ok)
            nd_note(m->ctx, m->plan.pipe_loc, "`recompute auto(bytes)` keeps "
                    "less, and `schedule = auto` looks for a schedule that "
                    "does");
        ok = false;
    }
    return ok;
}
