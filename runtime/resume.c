/* resume.c - a folder of checkpoints, one file per step that was saved:
 *
 *     checkpoints/step-200.safetensors
 *
 * with weights, optimizer state and counts in global form, so that the run goes
 * on from there bit for bit, and on another mesh to rounding. A file takes its
 * name when it is complete and on disk; only then are old ones removed. All
 * ranks look into the folder that a run is resumed from; rank 0 alone writes.
 */
#include "ndrt_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *name_of(const char *folder, int64_t step)
{
    char *s;
    int n = asprintf(&s, "%s/step-%lld.safetensors", folder, (long long)step);

    return n < 0 ? NULL : s;
}

/* The step of a file's name, or -1. */
static int64_t step_of(const char *name)
{
    char *end;

    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    return errno == 0 && strcmp(end, ".safetensors") == 0 ? step : -1;
}

/* Calls f on every step in the folder; false with errno if it cannot be
 * read. */
static bool each_step(const char *folder, void (*f)(int64_t step, void *user),
                      void *user)
{
    DIR *d = opendir(folder);
    struct dirent *e;

    if (!d)
        return false;
    while ((e = readdir(d)))
        if (step_of(e->d_name) >= 0)
            f(step_of(e->d_name), user);
    closedir(d);
    return true;
}

static void take_last(int64_t step, void *user)
{
    int64_t *last = user;

    *last = step > *last ? step : *last;
}

ndrt_status ndrt_resume(ndrt_rank *r)
{
    const char *folder = r->state->config->resume_path;
    int64_t last = -1, counts[2] = {0};

    if (!each_step(folder, take_last, &last))
        return ndrt_fail(r, NDRT_EINPUT, "cannot read the folder \"%s\": %s",
                         folder, strerror(errno));
    if (last < 0)
        return ndrt_fail(r, NDRT_EINPUT, "\"%s\" holds no checkpoint, which "
                         "is called step-N.safetensors", folder);
    char *path = name_of(folder, last);
    if (!path)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
    ndrt_status s = ndrt_load_all(r, path, counts);
    free(path);
    r->state->start = counts[0];
    r->state->updates = counts[1];
    return s;
}

/* A later step in the folder is of another run, which would lose its files to
 * this one, or this one its own. */
ndrt_status ndrt_check_folder(ndrt_rank *r)
{
    const ndrt_train *t = &r->state->config->train;
    const char *folder = t->save_folder;
    char error[sizeof r->state->error];
    int64_t last = -1;

    if (t->save_every <= 0 || r->rank != 0 || t->steps <= r->state->start)
        return NDRT_OK;
    if ((mkdir(folder, 0777) < 0 && errno != EEXIST) ||
        !each_step(folder, take_last, &last))
        return ndrt_fail(r, NDRT_EINPUT, "cannot use the folder \"%s\" for "
                         "checkpoints: %s", folder, strerror(errno));
    if (last > r->state->start)
        return ndrt_fail(r, NDRT_EINPUT, "\"%s\" holds step %lld of an earlier "
                         "run: go on with --resume %s, or choose another "
                         "folder with --checkpoints", folder, (long long)last,
                         folder);
    char *path = name_of(folder, r->state->start);
    if (!path)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
    ndrt_status s = ndrt_check_target(path, error, sizeof error);
    free(path);
    return s == NDRT_OK ? s : ndrt_fail(r, s, "%s", error);
}

bool ndrt_checkpoint_due(const ndrt_rank *r)
{
    const ndrt_train *t = &r->state->config->train;

    return t->save_every > 0 &&
           (r->step % t->save_every == 0 || r->step == t->steps);
}

/* ---- removing old ones -------------------------------------------------- */

typedef struct steps {
    int64_t n, room, *v;
    bool full;                    /* no memory for more */
} steps;

static void add_step(int64_t step, void *user)
{
    steps *s = user;

    if (s->n == s->room) {
        int64_t room = 2 * s->room + 16;
        int64_t *v = realloc(s->v, (size_t)room * sizeof *v);
        s->full = !v;
        if (!v)
            return;
        s->v = v;
        s->room = room;
    }
    s->v[s->n++] = step;
}

static int latest_first(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return (*x < *y) - (*x > *y);
}

/* What cannot be removed stays; the next time will try again. */
static void prune(const char *folder, int64_t keep)
{
    steps s = {0};

    if (each_step(folder, add_step, &s) && !s.full && s.n > keep) {
        qsort(s.v, (size_t)s.n, sizeof *s.v, latest_first);
        for (int64_t i = keep; i < s.n; i++) {
            char *path = name_of(folder, s.v[i]);
            if (path)
                unlink(path);
            free(path);
        }
    }
    free(s.v);
}

/* The name is on disk too before an old file goes. */
static bool sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;

    if (fd >= 0)
        close(fd);
    return ok;
}

ndrt_status ndrt_checkpoint(ndrt_rank *r)
{
    const ndrt_train *t = &r->state->config->train;
    char *path = name_of(t->save_folder, r->step);

    if (!path)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
    ndrt_status s = ndrt_save_all(r, path);
    if (s == NDRT_OK && r->rank == 0) {
        if (!sync_folder(t->save_folder))
            s = ndrt_fail(r, NDRT_EINPUT, "cannot write \"%s\": %s", path,
                          strerror(errno));
        else if (t->keep > 0)
            prune(t->save_folder, t->keep);
    }
    free(path);
    return s;
}
