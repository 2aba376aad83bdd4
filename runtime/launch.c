/* launch.c - under a launcher such as mpirun: opens the MPI plug-in and runs
 * one rank in this process.
 *
 * The plug-in is looked for at NDRT_MPI_LIB (where the build put it), then
 * beside the program, then where the loader looks.
 */
#include "ndrt_internal.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef NDRT_MPI_LIB
#define NDRT_MPI_LIB ""
#endif

static const char plugin[] = "libndrt_mpi.so";

bool ndrt_under_launcher(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") ||
           getenv("PMIX_RANK");
}

bool ndrt_launcher_first(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                        "PMIX_RANK"};

    for (int i = 0; i < 3; i++) {
        const char *rank = getenv(names[i]);
        if (rank)
            return strcmp(rank, "0") == 0;
    }
    return true;
}

static void *open_plugin(char *why, size_t size)
{
    char beside[4096] = "";
    ssize_t n = readlink("/proc/self/exe", beside,
                         sizeof beside - sizeof plugin - 1);
    const char *path[3] = {NDRT_MPI_LIB, beside, plugin};

    if (n > 0) {
        beside[n] = '\0';
        char *slash = strrchr(beside, '/');
        memcpy(slash ? slash + 1 : beside, plugin, sizeof plugin);
    }
    why[0] = '\0';
    for (int i = 0; i < 3; i++) {
        /* global: parts that MPI itself opens look for its symbols */
        void *lib = path[i][0] ? dlopen(path[i], RTLD_NOW | RTLD_GLOBAL)
                               : NULL;
        if (lib)
            return lib;
        const char *error = path[i][0] ? dlerror() : NULL;
        if (error && !why[0])
            snprintf(why, size, "%s", error);
    }
    return NULL;
}

static ndrt_status open_mpi(const ndrt_program *p, int more, ndrt_comm **comm)
{
    char why[512];
    void *lib = open_plugin(why, sizeof why);
    void *f = lib ? dlsym(lib, NDRT_MPI_OPEN) : NULL;
    ndrt_mpi_open_fn *start;

    if (!f) {
        fprintf(stderr, "%s: error: cannot open the MPI plug-in: %s; without "
                "mpirun the program needs no MPI\n", p->name,
                lib ? "it is not ours" : why);
        return NDRT_EINTERNAL;
    }
    memcpy(&start, &f, sizeof start);
    ndrt_status s = start(NDRT_PLUGIN_VERSION, ndrt_fold, more, comm, why,
                          sizeof why);
    if (s != NDRT_OK)
        fprintf(stderr, "%s: error: cannot start MPI: %s\n", p->name, why);
    return s;
}

/* The lowest process that cannot run, or -1, and how it fails. */
static ndrt_status first_failure(ndrt_comm *c, ndrt_status mine, int *rank)
{
    size_t n = (size_t)c->size;
    ndrt_group g = {.n = c->size, .me = c->rank};
    int *ranks = calloc(n, sizeof *ranks);
    int64_t *ones = calloc(n, sizeof *ones);
    float *all = calloc(n, sizeof *all), x = (float)mine;
    ndrt_layout l = {.outer = 1, .inner = 1, .n = ones, .x = &x, .y = all};
    ndrt_status s = ranks && ones && all ? NDRT_OK : NDRT_EINTERNAL;

    *rank = -1;
    g.ranks = ranks;
    for (int q = 0; q < c->size && s == NDRT_OK; q++)
        ranks[q] = q, ones[q] = 1;
    if (s == NDRT_OK && c->size > 1)
        s = c->ops->group(c, &g);
    if (s == NDRT_OK && c->size > 1)
        s = c->ops->all_gather(c, &g, &l);
    else if (s == NDRT_OK)
        all[0] = x;
    if (s != NDRT_OK)
        c->ops->abort(c, s, "ndrt: error: the processes cannot meet");
    for (int q = c->size - 1; q >= 0 && s == NDRT_OK; q--)
        if (all[q] != (float)NDRT_OK)
            *rank = q;
    if (*rank >= 0)
        s = (ndrt_status)all[*rank];
    free(ranks);
    free(ones);
    free(all);
    return s;
}

/* What to type instead. Flags that only Open MPI has are told to its users. */
static void wrong_size(const ndrt_program *p, int have)
{
    int want = ndrt_mesh_ranks(p);
    bool open_mpi = getenv("OMPI_COMM_WORLD_SIZE") != NULL;
    bool root = open_mpi && geteuid() == 0;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    fprintf(stderr, "%s: error: %d process%s started, the mesh has %d rank%s; "
            "run\n    %smpirun -n %d %s./PROGRAM\nor ./PROGRAM alone, with "
            "threads as ranks\n", p->name, have, have == 1 ? "" : "es", want,
            want == 1 ? "" : "s",
            root ? "OMPI_ALLOW_RUN_AS_ROOT=1 "
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " : "",
            want, open_mpi && want > cpus ? "--oversubscribe " : "");
}

ndrt_status ndrt_run_mpi(const ndrt_program *p, const ndrt_config *config)
{
    ndrt_comm *comm = NULL;
    int failed;
    bool flies = p->nflights > 0 || p->early;
    int more = (flies && config->overlap != NDRT_OVERLAP_OFF) +
               (p->ndevices > 1 && config->messages == NDRT_MESSAGES_AHEAD);
    ndrt_status s = open_mpi(p, more, &comm);

    if (s != NDRT_OK)
        return s;
    s = first_failure(comm, NDRT_OK, &failed);
    if (s != NDRT_OK) {
        comm->ops->close(comm);
        return s;
    }
    if (comm->size != ndrt_mesh_ranks(p)) {
        if (comm->rank == 0)
            wrong_size(p, comm->size);
        s = NDRT_EUSAGE;
    } else {
        ndrt_rank *r = ndrt_rank_new(p, config, comm);
        if (!r)
            comm->ops->abort(comm, NDRT_EINTERNAL, "ndrt: out of memory");
        s = r ? ndrt_run_rank(r) : NDRT_EINTERNAL;
        if (r)
            ndrt_rank_free(r);
    }
    comm->ops->close(comm);
    return s;
}

void ndrt_mpi_meet(const ndrt_program *p, ndrt_status s, const char *said)
{
    ndrt_comm *comm = NULL;
    int failed;

    if (open_mpi(p, 0, &comm) != NDRT_OK)
        return;
    first_failure(comm, s, &failed);
    if (failed == comm->rank && said)
        fputs(said, stderr);
    comm->ops->close(comm);
}
