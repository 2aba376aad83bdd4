/* search.h - the search for a schedule: what its parts share. Private to
 * search*.c.
 *
 *   model    the question as tables, an order's time, an order's memory
 *   list     one schedule, chosen action by action by a rule
 *   cycle    one that repeats itself, a microbatch per period
 *   beam     many half-made schedules side by side, the hopeless ones dropped
 *   improve  a schedule, changed where its critical path is
 *
 * Microbatches cost the same, so the k-th F of a stage may be called that of
 * microbatch k, and so its k-th I and W: nothing starts later and nothing is
 * kept longer. A rank's order is therefore a string over its kinds of action,
 * `chunk * 3 + step`:
 *
 *   rank 3 of zb_h1:  F I F I F I F I W F I W ..   0 1 0 1 0 1 0 1 2 0 1 2 ..
 */
#ifndef SEARCH_H
#define SEARCH_H

#include "sched.h"

enum { STEP_F, STEP_I, STEP_W, NSTEPS };

/* Tables by stage, but where it says by rank. */
typedef struct search_problem {
    int ranks, stages, v, micro;
    int steps;                   /* 3; 2 where backward is whole: I stands for
                                    B, and nothing for W */
    int length;                  /* actions of a rank */
    sched_where where;
    int *rank_of, *chunk_of;
    int *stage_at;               /* [rank * v + chunk] */
    double *cost[NSTEPS];
    double *lag[2];              /* from F(s-1) to F(s); from I(s+1) to I(s);
                                    less than 0: no dependence */
    double *keep[SCHED_NSPANS];
    double *room;                /* by rank; INFINITY: no limit */
    double *off;                 /* by rank: when its clock starts */
    double *tail;                /* least time from the end of the stage's last
                                    I until the step's */
    bool slots;                  /* room is for slots that are never given
                                    back, as a program lays them out */
    bool careful;                /* no state is a dead end, for which some that
                                    are none are left out where v > 1 */
    double bound;                /* no schedule ends sooner */
    double work;                 /* of the busiest rank for one microbatch */
    void *tables;
} search_problem;

/* What a schedule is worth: less is better, `sum` breaks ties. */
typedef struct search_value {
    double time;                 /* sync: when the last rank ends; else the
                                    longest time from a rank's start to end */
    double sum;                  /* of all ranks' ends */
} search_value;
bool search_better(search_value a, search_value b);

bool search_problem_make(search_problem *q, const sched_ask *ask, bool whole,
                         sched_error *err);
void search_problem_free(search_problem *q);

/* Orders: ranks * length codes. */
static inline uint8_t search_code(int chunk, int step)
{
    return (uint8_t)(chunk * NSTEPS + step);
}
static inline int search_stage(const search_problem *q, int rank, uint8_t code)
{
    return q->stage_at[rank * q->v + code / NSTEPS];
}
sched *search_to_sched(const search_problem *q, const uint8_t *order);
/* False where the schedule has another placement or is not complete. */
bool search_from_sched(const search_problem *q, const sched *s,
                       uint8_t *order);

/* Simulation: `end` and `start` of all actions, by rank and position. `cause`
 * is the position (rank * length + at) of what an action waited for last, or
 * -1. */
typedef struct search_run {
    double *start, *end;
    int *cause;
    int *pos, *queue, *count, *where;
    bool *queued;
} search_run;
search_run *search_run_new(const search_problem *q);
void search_run_free(search_run *run);
/* time is INFINITY where the ranks wait for each other. */
search_value search_eval(const search_problem *q, const uint8_t *order,
                         search_run *run);
/* Does a rank's order stay within its room? */
bool search_fits(const search_problem *q, int rank, const uint8_t *row);

/* A schedule half made. */
typedef struct search_state {
    double *free, *kept;         /* by rank */
    double *end[2];              /* of F, I: [stage * micro + mb] */
    int *n[NSTEPS];              /* done, by stage */
    int *peak;                   /* slots: [stage * SCHED_NSPANS + span] */
    uint8_t *hold[2];            /* F, I, by stage: refused until the rank does
                                    something else */
    size_t bytes;
    void *mem;                   /* all of the above */
} search_state;
bool search_state_new(const search_problem *q, search_state *st);
void search_state_free(search_state *st);
void search_state_copy(search_state *to, const search_state *from);

typedef struct search_move {
    int rank, stage, step;
    double start;
} search_move;
/* What a rank can do next: all of which the operands are made and for which
 * there is room. At most v * NSTEPS. */
int search_moves(const search_problem *q, const search_state *st, int rank,
                 search_move *out);
void search_apply(const search_problem *q, search_state *st, search_move mv);
/* The state can end no sooner. */
search_value search_bound(const search_problem *q, const search_state *st,
                          double *scratch);

/* A rule of the list scheduler. */
typedef struct search_rule {
    bool forward_first;          /* F before I */
    int group;                   /* microbatches that go through one stage
                                    before they go through the next one of the
                                    rank */
    double ahead;                /* how far forwards run ahead of backwards: 1
                                    fills the way to the loss and back, .5 is
                                    1f1b; INFINITY as room allows */
    double gap;                  /* W is put into a gap that is at least this
                                    part of it; 0 W follows I at once */
} search_rule;
bool search_list(const search_problem *q, const search_rule *rule,
                 uint8_t *order);

/* False if not all actions of a microbatch find a place within a period. */
bool search_cycle(const search_problem *q, double period, uint8_t *order);

/* At most `width` states at a time. False if nothing ends sooner than
 * `best->time`; else order and *best are set. */
bool search_beam(const search_problem *q, int width, uint8_t *order,
                 search_value *best);

/* Changes order for the better; tries at most `tries` orders. */
void search_improve(const search_problem *q, int tries, uint8_t *order);

/* The whole, for sched_legal and sched_make of SCHED_KIND_AUTO. */
bool sched_search_legal(const sched_ask *ask, sched_error *err);
sched *sched_search(const sched_ask *ask, sched_error *err);

#endif
