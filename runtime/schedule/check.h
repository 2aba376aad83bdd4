/* check.h - shared by check_slots.c and check_rooms.c. */
#ifndef SCHED_CHECK_H
#define SCHED_CHECK_H

#include "sched.h"

/* Does the action need what its stage's slots of a span hold? What is received
 * is there from then on, what is sent until then. */
bool sched_needs_slot(sched_span span, const sched_action *a);

#endif
