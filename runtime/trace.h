/* trace.h - what trace.c has taken and gathered on rank 0, for the files that
 * are made of it.
 */
#ifndef TRACE_H
#define TRACE_H

#include "ndrt_internal.h"

enum { TRACE_KEPT = 32 };         /* steps that count; the last ones */

typedef struct trace_line {       /* of an action */
    ndrt_stamp stamp;             /* in the step that is traced */
    double took;                  /* the median */
} trace_line;

typedef struct trace_taken {      /* by a rank */
    double list[TRACE_KEPT];      /* its whole list, by step */
    trace_line line[];            /* per action of the list */
} trace_taken;

typedef struct trace_gathered {
    const ndrt_rank *r;
    const ndrt_course *course;
    int ranks, steps;             /* steps that were kept */
    trace_taken **of;             /* by rank */
} trace_gathered;

const sched_row *trace_row(const trace_gathered *g, int rank);
/* Along other mesh axes than the pipeline's, other ranks follow the same rows:
 * which of these copies is the rank in? */
int trace_copy(const trace_gathered *g, int rank);
double trace_median(double *x, int n);             /* sorts x; 0 if n is */
ndrt_status trace_put_file(ndrt_rank *r, const char *path,
                           const sched_text *text);

/* times.c */
ndrt_status trace_put_times(ndrt_rank *r, const trace_gathered *g);

#endif
