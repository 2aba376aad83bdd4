/* schedule_auto.h - schedule = auto: the question, and what there is to choose
 * from. auto_try.c makes it, schedule_auto.c chooses. */
#ifndef ND_SCHEDULE_AUTO_H
#define ND_SCHEDULE_AUTO_H

#include "passes.h"

/* A program: stages per device, their places, halves of backward. */
typedef struct auto_shape {
    nd_searched is;                  /* v, where, whole */
    nd_module *m;                    /* compiled to the end */
    const nd_stage_mem *stage;
    double *fixed, *set;             /* by device: bytes beside the slots; what
                                        all of its stages keep of one
                                        microbatch */
} auto_shape;

/* An order of what its devices do. */
typedef struct auto_candidate {
    const auto_shape *at;
    sched_ask ask;                   /* it is made again if it is chosen */
    const char *name;
    double seconds;
    double *by_device, bytes;        /* ... and of the fullest one */
    bool fits;
} auto_candidate;

enum { MOST_SHAPES = 16 };

typedef struct auto_choice {
    nd_module *m;
    nd_arena *a;
    const nd_options *o;
    int devices, nshapes;
    double limit;                    /* bytes of a device; INFINITY: none */
    auto_shape shape[MOST_SHAPES];
    ND_VEC(auto_candidate) all;
} auto_choice;

/* Compiles every shape to the end on a copy of the module, as far as it can be
 * cut at all. */
void auto_add_shapes(auto_choice *c);
/* Schedules with names, and searched ones: quickly. */
void auto_try(auto_choice *c, const auto_shape *x);
/* A search in full, with the room of what was found. */
void auto_search_more(auto_choice *c, const auto_candidate *x);
/* A microbatch at a time: to say how much is needed at least. */
void auto_search_least(auto_choice *c);
/* Makes what is asked for, with its messages, as the program has it. */
sched *auto_make(const auto_choice *c, const auto_shape *x,
                 const sched_ask *ask);

#endif
