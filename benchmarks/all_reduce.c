/* all_reduce.c - time of an all-reduce, and of a plain memcpy of as many bytes
 * on the same CPUs: one line per size, microseconds, medians.
 *
 *   all_reduce 8                               ranks as threads
 *   mpirun -n 8 all_reduce libndrt_mpi.so      as processes
 *
 * An all-reduce of B bytes over N ranks reads N B bytes and writes as many, if
 * no byte is touched twice; so do N ranks that each copy B bytes.
 */
#include "ndrt_internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_RANKS = 64, SMALLEST = 4 << 10, LARGEST = 32 << 20, MOST = 200 };

typedef struct worker {
    pthread_t thread;
    ndrt_comm *comm;
    ndrt_status status;
} worker;

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[n / 2];
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static ndrt_status both(ndrt_comm *c, ndrt_group *g, float *x, float *y,
                        size_t bytes, double took[2])
{
    double start = now();
    ndrt_status s = c->ops->all_reduce(c, g, x, (int64_t)(bytes / sizeof *x),
                                       NDRT_SUM);

    took[0] = (now() - start) * 1e6;
    if (s == NDRT_OK)
        s = c->ops->barrier(c, g);
    start = now();
    memcpy(y, x, bytes);
    if (s == NDRT_OK)
        s = c->ops->barrier(c, g);
    took[1] = (now() - start) * 1e6;
    return s;
}

static ndrt_status one_size(ndrt_comm *c, ndrt_group *g, float *x, float *y,
                            size_t bytes)
{
    double took[2], reduce[MOST], plain[MOST];
    int n = bytes >= 4 << 20 ? 11 : bytes >= 256 << 10 ? 51 : MOST;
    ndrt_status s = NDRT_OK;

    for (int i = -2; i < n && s == NDRT_OK; i++) {
        s = both(c, g, x, y, bytes, took);
        if (i >= 0) {
            reduce[i] = took[0];
            plain[i] = took[1];
        }
    }
    if (s == NDRT_OK && c->rank == 0)
        printf("%zu %.2f %.2f\n", bytes, median(reduce, n), median(plain, n));
    return s;
}

static void *run(void *arg)
{
    worker *w = arg;
    int ranks[MAX_RANKS];
    ndrt_group g = {.n = w->comm->size, .me = w->comm->rank, .ranks = ranks};
    float *x = aligned_alloc(4096, LARGEST), *y = aligned_alloc(4096, LARGEST);

    for (int i = 0; i < g.n; i++)
        ranks[i] = i;
    w->status = x && y ? w->comm->ops->group(w->comm, &g) : NDRT_EINTERNAL;
    if (w->status == NDRT_OK) {
        memset(x, 0, LARGEST);
        memset(y, 0, LARGEST);
    }
    for (size_t n = SMALLEST; n <= LARGEST && w->status == NDRT_OK; n *= 2)
        w->status = one_size(w->comm, &g, x, y, n);
    if (w->status == NDRT_OK)
        w->status = w->comm->ops->barrier(w->comm, &g);
    free(x);
    free(y);
    return NULL;
}

static ndrt_status as_threads(int n)
{
    ndrt_world *world = ndrt_world_new(n);
    static worker w[MAX_RANKS];
    ndrt_status s = NDRT_OK;

    if (!world)
        return NDRT_EINTERNAL;
    for (int i = 0; i < n; i++) {
        w[i].comm = ndrt_world_comm(world, i);
        pthread_create(&w[i].thread, NULL, run, &w[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(w[i].thread, NULL);
        s = s == NDRT_OK ? w[i].status : s;
    }
    ndrt_world_free(world);
    return s;
}

static ndrt_status as_process(const char *plugin)
{
    char error[256] = "";
    void *lib = dlopen(plugin, RTLD_NOW);
    void *f = lib ? dlsym(lib, NDRT_MPI_OPEN) : NULL;
    ndrt_mpi_open_fn *start;
    worker w = {0};

    memcpy(&start, &f, sizeof start);
    if (!f || start(NDRT_PLUGIN_VERSION, ndrt_fold, 0, &w.comm, error,
                    sizeof error) != NDRT_OK) {
        fprintf(stderr, "%s: %s\n", plugin, f ? error : dlerror());
        return NDRT_EINTERNAL;
    }
    run(&w);
    w.comm->ops->close(w.comm);
    return w.status;
}

int main(int argc, char **argv)
{
    int n = argc == 2 ? atoi(argv[1]) : -1;

    if (n < 0 || n > MAX_RANKS) {
        fprintf(stderr, "usage: all_reduce RANKS | PLUGIN\n");
        return NDRT_EUSAGE;
    }
    return n > 0 ? as_threads(n) : as_process(argv[1]);
}
