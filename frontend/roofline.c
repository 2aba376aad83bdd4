/* roofline.c - `ndc roofline`: builds a program with marks, runs some steps of
 * it, and tells how far each kernel is from its limit.
 *
 *   ndc roofline gpt.nd --steps 5
 *
 * is what these three do, in a folder that is gone afterwards; options of the
 * build go to the first one, what follows `--` to the second:
 *
 *   ndc gpt.nd --marks -o gpt
 *   ./gpt --steps 5 --profile run.json
 *   ndc gpt.nd --emit=roofline --profile run.json
 */
#include "ndc.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MOST_PATH = 4096, OWN_ARGS = 11 };

static const char default_steps[] = "5";

typedef struct folder {
    char path[MOST_PATH], program[MOST_PATH + 16], profile[MOST_PATH + 16],
        checkpoints[MOST_PATH + 16], report[MOST_PATH + 16];
} folder;

static int cannot(const char *what, const char *path)
{
    fprintf(stderr, "ndc: error: cannot %s `%s`: %s\n", what, path,
            strerror(errno));
    return NDC_BAD_INPUT;
}

static bool make_folder(folder *f)
{
    const char *tmp = getenv("TMPDIR");
    int n = snprintf(f->path, sizeof f->path, "%s/ndc-roofline.XXXXXX",
                     tmp && *tmp ? tmp : "/tmp");
    if (n < 0 || n >= (int)sizeof f->path || !mkdtemp(f->path)) {
        cannot("make the folder", f->path);
        return false;
    }
    snprintf(f->program, sizeof f->program, "%s/program", f->path);
    snprintf(f->profile, sizeof f->profile, "%s/profile.json", f->path);
    snprintf(f->checkpoints, sizeof f->checkpoints, "%s/checkpoints", f->path);
    snprintf(f->report, sizeof f->report, "%s/report", f->path);
    return true;
}

static int remove_one(const char *path, const struct stat *st, int kind,
                      struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

/* What the program prints is not asked for; what is wrong, it says on stderr.
 * It has no terminal to draw on. */
static int run(char *const *argv)
{
    posix_spawn_file_actions_t out;
    pid_t pid;
    int status;
    posix_spawn_file_actions_init(&out);
    posix_spawn_file_actions_addopen(&out, STDOUT_FILENO, "/dev/null",
                                     O_WRONLY, 0);
    int e = posix_spawn(&pid, argv[0], &out, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&out);
    if (e) {
        errno = e;
        return cannot("run", argv[0]);
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return cannot("wait for", argv[0]);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return NDC_OK;
    fprintf(stderr, "ndc: error: the program of the roofline failed\n");
    return NDC_BAD_INPUT;
}

static int run_program(const ndc_roofline_options *o, const folder *f,
                       const char *profile)
{
    const char *own[OWN_ARGS] = {
        f->program, "--steps", o->steps ? o->steps : default_steps,
        "--profile", profile, "--checkpoints", f->checkpoints};
    const char **argv = calloc((size_t)o->nrun + OWN_ARGS + 1, sizeof *argv);
    int n = 7, rc = NDC_BUG;
    if (!argv)
        return rc;
    memcpy(argv, own, sizeof own);
    if (o->data) {
        argv[n++] = "--data";
        argv[n++] = o->data;
    }
    if (o->threads) {
        argv[n++] = "--threads";
        argv[n++] = o->threads;
    }
    for (int i = 0; i < o->nrun; i++)
        argv[n++] = o->run[i];
    rc = run((char *const *)argv);
    free(argv);
    return rc;
}

/* They have been told when the program was built. */
static void only_errors(void *user, int severity, const char *text)
{
    if (severity == *(int *)user)
        fputs(text, stderr);
}

/* The folder is gone before anybody can stop to read. */
static int finish(const folder *f, int rc)
{
    char part[MOST_PATH];
    FILE *text = fopen(f->report, "r");
    nftw(f->path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    for (size_t n; text && (n = fread(part, 1, sizeof part, text)) > 0;)
        fwrite(part, 1, n, stdout);
    if (text)
        fclose(text);
    if (!fflush(stdout) && !ferror(stdout))
        return rc;
    fprintf(stderr, "ndc: error: cannot write `stdout`\n");
    return NDC_BAD_INPUT;
}

int ndc_roofline(const ndc_roofline_options *o)
{
    folder f;
    int error = NDC_SEVERITY_ERROR;
    if (!make_folder(&f))
        return NDC_BAD_INPUT;
    const char *profile = o->build.profile ? o->build.profile : f.profile;
    ndc_options c = o->build;
    c.emit = NDC_EXE;
    c.marks = true;
    c.out = f.program;
    c.profile = NULL;
    int rc = ndc_compile(&c);
    if (rc == NDC_OK)
        rc = run_program(o, &f, profile);
    if (rc == NDC_OK) {
        c.emit = NDC_ROOFLINE;
        c.marks = false;
        c.cpu = c.kernels = c.dump_after = NULL;
        c.out = o->build.out ? o->build.out : f.report;
        c.profile = profile;
        c.sink = only_errors;
        c.sink_user = &error;
        rc = ndc_compile(&c);
    }
    return finish(&f, rc);
}
