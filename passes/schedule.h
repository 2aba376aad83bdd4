/* schedule.h - shared by schedule.c, schedule_check.c and schedule_draw.c. */
#ifndef ND_SCHEDULE_H
#define ND_SCHEDULE_H

#include "passes.h"

/* Time slots that an action takes; messages are free. A backward computes two
 * products for each one of the forward. */
enum { ND_SLOTS_F = 1, ND_SLOTS_B = 2 };

/* Does anything cross between stage s and s + 1, in either direction? */
bool nd_schedule_crosses(const nd_program *p, int s);
/* Proves that the actions of all stages compute every microbatch once, in
 * order, and never wait for each other in a circle. Reports what is wrong. */
bool nd_schedule_check(nd_module *m);
/* Proves that the slots hold what the microbatches keep. */
bool nd_slots_check(nd_module *m);
/* Most microbatches between their forward and the end of their backward. */
int nd_schedule_in_flight(const sched_row *r);
/* Slots from start to end. */
int nd_schedule_timeline(const sched *s);

#endif
