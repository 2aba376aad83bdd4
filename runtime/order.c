/* order.c - which actions of a device's list wait for which, when messages
 * move on a thread of their own (messages.c).
 *
 *   list            0F0  0SEND_F0  0F1  0SEND_F1  0RECV_B0  0B0  0SEND_B0 ..
 *   computations    0F0  0F1  0B0 ..
 *   messages        0SEND_F0  0SEND_F1  0RECV_B0  0SEND_B0 ..
 *
 * Each of the two streams keeps its order, so "this action needs that one of
 * the other stream" is a number: how many of the other stream must have ended.
 * Actions meet in memory alone, in the slots of their microbatches: who reads a
 * slot needs the last one that wrote it, who writes it needs all that used it.
 *
 * No wait is ever for an action that stands later in the list. So whatever
 * waits, on any device, is a part of the order that sched_check has found to be
 * without a circle (lists, with each pair of messages as one event); among what
 * is left of a finite order without circles, one action always has nothing left
 * to wait for. Hence nothing hangs, even if each message waits for its receiver
 * and takes its lane meanwhile. Actions that are skipped change nothing: they
 * end when it is their turn.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

typedef enum { COMPUTATION, MESSAGE } stream;
typedef enum { READS, WRITES } manner;

/* Of a slot: how far each stream was when it was last used in that manner. */
typedef struct use {
    int until[2][2];              /* [stream][manner] */
} use;

typedef struct orderer {
    const sched *s;
    int device;
    const sched_rooms *rooms;
    use *uses;                    /* by slot */
    int passed[2];                /* by stream */
    int need;                     /* of the action at hand */
} orderer;

static void touch_span(orderer *o, stream mine, int stage, int mb,
                       sched_span span, manner how)
{
    int slot = o->rooms->slot[(stage * o->s->micro + mb) * SCHED_NSPANS + span];

    if (slot < 0)                 /* the stage keeps nothing there */
        return;
    use *u = &o->uses[slot];
    const int *other = u->until[!mine];
    if (other[WRITES] > o->need)
        o->need = other[WRITES];
    if (how == WRITES && other[READS] > o->need)
        o->need = other[READS];
    u->until[mine][how] = o->passed[mine] + 1;
}

/* All of a microbatch; what stands from I until W alone if `later`. */
static void touch(orderer *o, stream mine, int stage, int mb, bool later,
                  manner how)
{
    if (stage < 0 || o->s->rank_of[stage] != o->device)
        return;
    touch_span(o, mine, stage, mb, SCHED_UNTIL_I, how);
    touch_span(o, mine, stage, mb, SCHED_UNTIL_W, how);
    if (later)
        touch_span(o, mine, stage, mb, SCHED_I_TO_W, how);
}

/* A stage on the device of the one before it takes from that one's slot and
 * gives its gradient there. */
static void use_slots(orderer *o, const sched_action *a)
{
    switch (a->op) {
    case SCHED_F:
        touch(o, COMPUTATION, a->stage - 1, a->mb, false, READS);
        touch(o, COMPUTATION, a->stage, a->mb, false, WRITES);
        break;
    case SCHED_B:
    case SCHED_I:
        touch(o, COMPUTATION, a->stage - 1, a->mb, false, WRITES);
        touch(o, COMPUTATION, a->stage, a->mb, true, WRITES);
        break;
    case SCHED_W:
        touch_span(o, COMPUTATION, a->stage, a->mb, SCHED_UNTIL_W, READS);
        touch_span(o, COMPUTATION, a->stage, a->mb, SCHED_I_TO_W, READS);
        break;
    case SCHED_SEND_F:
        touch(o, MESSAGE, a->stage, a->mb, false, READS);
        break;
    case SCHED_SEND_B:
        touch(o, MESSAGE, a->stage, a->mb, true, READS);
        break;
    case SCHED_RECV_F:
    case SCHED_RECV_B:
        touch(o, MESSAGE, a->stage, a->mb, false, WRITES);
        break;
    case SCHED_U:
    case SCHED_NOPS:
        break;
    }
}

bool ndrt_order(const sched *s, int device, const sched_rooms *rooms,
                int *needs)
{
    const sched_row *row = &s->row[device];
    orderer o = {.s = s, .device = device, .rooms = rooms};

    o.uses = calloc((size_t)rooms->slots[device] + 1, sizeof *o.uses);
    for (int i = 0; o.uses && i < row->n; i++) {
        const sched_action *a = &row->v[i];
        o.need = 0;
        use_slots(&o, a);
        needs[i] = o.need;
        o.passed[sched_is_compute(a->op) ? COMPUTATION : MESSAGE]++;
    }
    bool ok = o.uses;
    free(o.uses);
    return ok;
}
