/* files.c - files that a run reads whole and files that it will write: both
 * are looked at before the work begins.
 *
 * Only regular files will do. A FIFO would block the open or never end, a
 * device has no size, and a file that takes the name of either one would
 * destroy it.
 */
#include "ndrt_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static ndrt_status refuse(char *error, size_t size, const char *verb,
                          const char *path, const char *why)
{
    snprintf(error, size, "cannot %s \"%s\": %s", verb, path, why);
    return NDRT_EINPUT;
}

static const char *not_regular(const struct stat *sb)
{
    return S_ISDIR(sb->st_mode) ? strerror(EISDIR) : "it is no regular file";
}

/* Not blocking: a FIFO that nobody writes would be waited for. */
ndrt_status ndrt_map_file(const char *path, void **map, size_t *bytes,
                          char *error, size_t error_size)
{
    struct stat sb;
    const char *why = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    *map = NULL;
    *bytes = 0;
    if (fd < 0 || fstat(fd, &sb) < 0)
        why = strerror(errno);
    else if (!S_ISREG(sb.st_mode))
        why = not_regular(&sb);
    if (!why && sb.st_size > 0) {
        *map = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (*map == MAP_FAILED) {
            why = strerror(errno);
            *map = NULL;
        } else {
            *bytes = (size_t)sb.st_size;
        }
    }
    ndrt_status s = why ? refuse(error, error_size, "read", path, why)
                        : NDRT_OK;
    if (fd >= 0)
        close(fd);
    return s;
}

char *ndrt_tmp_name(const char *path)
{
    char *tmp;

    return asprintf(&tmp, "%s.tmp", path) < 0 ? NULL : tmp;
}

/* Why a file may not come to stand at `path`; NULL if it may. */
static const char *taken(const char *path)
{
    struct stat sb;

    if (stat(path, &sb) < 0)
        return errno == ENOENT ? NULL : strerror(errno);
    if (!S_ISREG(sb.st_mode))
        return not_regular(&sb);
    return access(path, W_OK) < 0 ? strerror(errno) : NULL;
}

/* Tried out, as permissions alone do not tell: a file system may be read-only
 * or unable to hold another name. */
static const char *cannot_create(const char *tmp)
{
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

    if (fd < 0)                      /* an old one is replaced in the end */
        return errno == EEXIST ? NULL : strerror(errno);
    close(fd);
    unlink(tmp);
    return NULL;
}

ndrt_status ndrt_check_target(const char *path, char *error,
                              size_t error_size)
{
    char *tmp = ndrt_tmp_name(path);
    const char *why = tmp ? taken(path) : strerror(ENOMEM);

    if (!why)
        why = taken(tmp);
    if (!why)
        why = cannot_create(tmp);
    ndrt_status s = why ? refuse(error, error_size, "write", path, why)
                        : NDRT_OK;
    free(tmp);
    return s;
}
