/* mutate.h - what nd_mutate.c and its lists of mutations share. */
#ifndef MUTATE_H
#define MUTATE_H

#include "../../frontend/frontend.h"
#include "../../passes/passes.h"

#include <math.h>
#include <string.h>

/* The program under mutation. Each mutation is made in a process of its own,
 * so nothing has to be undone. */
typedef struct subject {
    nd_module *m;
    nd_code *c;                      /* for those that break buckets */
    ND_VEC(nd_op *) ops;             /* all, bodies included, in order */
    ND_VEC(nd_op *) moves;           /* collectives and slices */
    const nd_answers *x;             /* what one device computes */
    nd_op *number;                   /* the constant that was changed */
    char what[200];                  /* the mutation that was made */
} subject;

/* What came of asking for the mutation at a site. */
typedef enum {
    NO_SITE,                         /* there are no more sites */
    NO_SENSE,                        /* not at this one */
    NO_CHANGE,                       /* equivalent: over one rank */
    MADE
} made;

typedef enum {
    MUST_SHOW,                       /* the static checks must reject it */
    MUST_DIFFER,                     /* they or the simulation must */
    MAY_BE_RIGHT                     /* what they accept must be right */
} demand;

typedef struct mutation {
    const char *kind;
    demand demand;
    made (*make)(subject *s, int site);
    bool retype;                     /* types then follow, as if a pass had
                                        left the op out or made it so */
    bool buckets;                    /* made on finished buckets */
} mutation;

/* The lists of a stage, by number. */
enum { STAGE_LISTS = 4 };
typedef struct stage_list {
    nd_op ***v;
    int *n;
} stage_list;

static inline stage_list list_of(nd_stage *s, int k)
{
    return k == 0   ? (stage_list){&s->pre.v, &s->pre.n}
           : k == 1 ? (stage_list){&s->fwd.v, &s->fwd.n}
           : k == 2 ? (stage_list){&s->bwd.v, &s->bwd.n}
                    : (stage_list){&s->wgt.v, &s->wgt.n};
}

/* One more, in front of number `at`. */
static inline void put_op(nd_arena *a, stage_list l, int at, nd_op *op)
{
    nd_op **more = ND_NEWN(a, nd_op *, *l.n + 1);
    memcpy(more, *l.v, sizeof *more * (size_t)at);
    more[at] = op;
    memcpy(more + at + 1, *l.v + at, sizeof *more * (size_t)(*l.n - at));
    *l.v = more;
    ++*l.n;
}

static inline bool one_rank(const subject *s, uint32_t mesh)
{
    for (int i = 0; i < s->m->mesh.n; i++)
        if (mesh >> i & 1 && s->m->mesh.size[i] > 1)
            return false;
    return true;
}

static inline void tell(subject *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static inline void tell(subject *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->what, sizeof s->what, fmt, ap);
    va_end(ap);
}

#endif
