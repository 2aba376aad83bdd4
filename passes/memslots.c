/* memslots.c - the memory of what microbatches keep: slots on each device, as
 * many as live at once by the schedule.
 *
 *   bytes(device) = slots that its stages share, or each its own
 *                 + one aside: what the first run of a forward pass that runs
 *                   twice makes for W, which is not for keeping
 */
#include "passes.h"

size_t nd_slots_bytes(const nd_module *m, const nd_stage_mem *stage, int device,
                      const bool *again)
{
    const nd_program *p = m->program;
    size_t (*bytes)[SCHED_NSPANS] =
        nd_alloc(m->ctx->arena, sizeof *bytes * (size_t)p->nstages);
    size_t aside = 0;
    for (int s = 0; s < p->nstages; s++) {
        const size_t *kept = stage[s].kept[again[s]];
        for (int k = 0; k < SCHED_NSPANS; k++)
            bytes[s][k] = kept[1 + k];
        if (p->stage[s].device == device && again[s] &&
            kept[ROOM_I_TO_W] > aside)
            aside = kept[ROOM_I_TO_W];
    }
    return aside + sched_rooms_bytes(p->sched, device,
                                     (const size_t (*)[SCHED_NSPANS])bytes);
}
