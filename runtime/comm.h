/* comm.h - the one interface between the runtime and what carries its bytes.
 *
 * comm_local.c runs ranks as threads of one process; comm_mpi.c is a plug-in
 * with one process per rank. fold.c has the order of additions that both share,
 * comm.c everything that is not transport.
 *
 * A group is a list of world ranks in ascending order; collectives add in
 * that order, so results are the same bits on every member and with every
 * communicator. All members make the same calls in the same order. A call
 * returns NDRT_ESTOPPED when another rank has failed meanwhile, and leaves a
 * text in comm->error when it fails by itself.
 */
#ifndef NDRT_COMM_H
#define NDRT_COMM_H

#include "ndrt.h"

typedef struct ndrt_comm ndrt_comm;

typedef struct ndrt_group {
    int n, me;                    /* members; which one this rank is */
    const int *ranks;             /* world ranks, ascending */
    void *impl;                   /* the communicator's own */
} ndrt_group;

/* The pieces of one axis, see ndrt_reduce_scatter in ndrt.h. y may be this
 * rank's own piece inside x (reduce_scatter), or x its own piece inside y
 * (all_gather). */
typedef struct ndrt_layout {
    int64_t outer, inner;
    const int64_t *n;             /* per member */
    const float *x;
    int64_t x_o;
    float *y;
    int64_t y_o;
    ndrt_fold_kind how;           /* reduce_scatter: NDRT_SUM, _MAX, _..._I32 */
} ndrt_layout;

/* What one member sends to each member and receives from each: ranges of bytes,
 * its own included, which are copied. send_n[i] here is recv_n[me] at member i.
 * As with every collective, memory that is sent stays until all ranks end: a
 * member that another one's failure stops may leave others behind, reading. */
typedef struct ndrt_exchange {
    const void *send;
    const size_t *send_at, *send_n;   /* per member */
    void *recv;
    const size_t *recv_at, *recv_n;
} ndrt_exchange;

/* dst[i] = src[0][i] + src[1][i] + ..., or their maximum. dst may be one of
 * the sources. Integers travel as the floats of the same bits. */
typedef void ndrt_fold_fn(float *dst, const float *const *src, int nsrc,
                          int64_t n, ndrt_fold_kind how);

typedef struct ndrt_comm_ops {
    /* Fills g->impl from g->ranks; every member calls it, in one order. */
    ndrt_status (*group)(ndrt_comm *c, ndrt_group *g);
    ndrt_status (*all_reduce)(ndrt_comm *c, ndrt_group *g, float *x,
                              int64_t n, ndrt_fold_kind how);
    ndrt_status (*reduce_scatter)(ndrt_comm *c, ndrt_group *g,
                                  const ndrt_layout *l);
    ndrt_status (*all_gather)(ndrt_comm *c, ndrt_group *g,
                              const ndrt_layout *l);
    /* A group of one need not have been opened for these two. */
    ndrt_status (*exchange)(ndrt_comm *c, ndrt_group *g,
                            const ndrt_exchange *e);
    /* y becomes the x of member (me + by) mod n; both know its bytes. */
    ndrt_status (*shift)(ndrt_comm *c, ndrt_group *g, int by, const void *x,
                         void *y, size_t bytes_out, size_t bytes_in);
    ndrt_status (*send)(ndrt_comm *c, int to, const void *x, size_t bytes);
    ndrt_status (*recv)(ndrt_comm *c, int from, void *x, size_t bytes);
    ndrt_status (*barrier)(ndrt_comm *c, ndrt_group *g);
    /* Prints `line`, if this is the first failure, and stops all ranks. */
    void (*abort)(ndrt_comm *c, ndrt_status s, const char *line);
    size_t (*scratch)(const ndrt_comm *c);       /* bytes of buffers held */
    /* One more of this rank, with groups of its own, that another thread may
     * use at the same time; it meets those that the other ranks asked for as
     * the same one in turn. NULL: there are no more. Closed with this one. */
    ndrt_comm *(*another)(ndrt_comm *c);
    void (*close)(ndrt_comm *c);
} ndrt_comm_ops;

/* The member `by` places on; `by` may be negative. */
static inline int ndrt_member(const ndrt_group *g, int by)
{
    return ((g->me + by % g->n) % g->n + g->n) % g->n;
}

struct ndrt_comm {
    const ndrt_comm_ops *ops;
    int rank, size;
    int cpus;                     /* that each rank may keep busy; the same on
                                     all, for the bits of a product may depend
                                     on it; 0: fewer than one */
    char error[256];
};

/* Threads of a rank that may communicate: the rank's own, the one that makes
 * calls in flight (flight.c), the one for messages (messages.c). */
enum { NDRT_LANES = 3 };

/* ---- comm_local.c ----------------------------------------------------- */

typedef struct ndrt_world ndrt_world;
ndrt_world *ndrt_world_new(int size);            /* NULL: no memory */
ndrt_comm *ndrt_world_comm(ndrt_world *w, int rank);
ndrt_status ndrt_world_status(const ndrt_world *w);    /* first failure */
/* After all ranks have closed their comm. */
void ndrt_world_free(ndrt_world *w);

/* ---- comm_mpi.c, loaded with dlopen ----------------------------------- */

enum { NDRT_PLUGIN_VERSION = 6 };
/* `fold` is handed over because the plug-in links to nothing of ours; `more`:
 * so many others may be asked for. */
typedef ndrt_status ndrt_mpi_open_fn(int version, ndrt_fold_fn *fold, int more,
                                     ndrt_comm **comm, char *error,
                                     size_t error_size);
#define NDRT_MPI_OPEN "ndrt_mpi_open"

#endif
