/* make.h - the generators of schedules, shared by make.c and make_*.c.
 *
 * Each fills the empty rows of a schedule whose numbers make.c has found legal.
 * p ranks, rank r; m microbatches; v stages per rank.
 */
#ifndef MAKE_H
#define MAKE_H

#include "sched.h"

void make_gpipe(sched *s);
void make_1f1b(sched *s);
void make_interleaved(sched *s);
void make_bfs(sched *s);
void make_zb_h1(sched *s);
void make_zb_h2(sched *s);
void make_zb_v(sched *s);
void make_v_half(sched *s);
void make_v_min(sched *s);
void make_dualpipe_v(sched *s);
void make_pipedream(sched *s);
void make_pipedream_2bw(sched *s);

/* Zeroed; never NULL. */
void *make_room(int count, size_t size);

#endif
