/* build.c - the C compiler: text in, executable out.
 *
 * The text stays beside the executable as OUT.c, which is the file that is
 * compiled, so a compiler message or a debugger points at something that is
 * there to read. Where LLVM makes kernels, what is compiled is the rest, a file
 * that goes away; OUT.c has these kernels in C, too, which compute the same
 * bits. The executable appears under its name only when complete.
 *
 * An installed ndc finds libndrt beside itself, wherever the tree has gone:
 * PREFIX/bin/ndc, PREFIX/lib/libndrt.a. One of a build folder knows the two
 * paths from the build.
 *
 * Environment: CC, the C compiler; NDC_CFLAGS, flags behind ours, such as -O1;
 * NDC_RUNTIME, a folder that holds include/ and lib/ of an installed libndrt.
 */
#include "codegen.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef NDC_CC
#define NDC_CC "cc"
#endif
#ifndef NDC_CFLAGS
#define NDC_CFLAGS ""
#endif
#ifndef NDC_RUNTIME_INCLUDE
#define NDC_RUNTIME_INCLUDE "/usr/local/include"
#endif
#ifndef NDC_RUNTIME_LIB
#define NDC_RUNTIME_LIB "/usr/local/lib/libndrt.a"
#endif
#ifndef NDC_BINDIR
#define NDC_BINDIR "bin"
#define NDC_LIBDIR "lib"
#define NDC_INCLUDEDIR "include"
#endif
#ifndef NDC_LINK_FLAGS
#define NDC_LINK_FLAGS "-ldnnl -ljansson -lz -lpthread -ldl -lm"
#endif

/* Where there are vectors of 512 bits, all of them: some compilers would use
 * half for processors that once slowed down. */
#ifdef __x86_64__
#define WIDE "-mprefer-vector-width=512 "
#else
#define WIDE ""
#endif

/* gcc makes one instruction of products and of the sums and differences of them
 * that it finds side by side in straight code (vfmaddsub), whatever
 * -ffp-contract says. */
#define SIDE_BY_SIDE "-fno-tree-slp-vectorize"

extern char **environ;

enum { EXIT_INPUT = 1, EXIT_INTERNAL = 3 };

typedef struct command {
    nd_arena *a;
    ND_VEC(char *) v;
} command;

static void arg(command *c, const char *s)
{
    ND_PUSH(c->a, &c->v, nd_strdup(c->a, s));
}

/* Words separated by blanks: flags that CMake or CC gave as one string. */
static void args(command *c, const char *s)
{
    while (*s) {
        size_t n = strcspn(s, " ");
        if (n)
            ND_PUSH(c->a, &c->v, nd_strndup(c->a, s, n));
        s += n + strspn(s + n, " ");
    }
}

static bool write_file(nd_ctx *ctx, const char *path, const char *s, size_t n)
{
    FILE *f = fopen(path, "w");
    bool ok = f && fwrite(s, 1, n, f) == n;
    int e = errno;
    if (f && fclose(f) != 0) {
        e = errno;
        ok = false;
    }
    if (!ok)
        nd_error(ctx, (nd_loc){0}, "cannot write '%s': %s", path, strerror(e));
    return ok;
}

/* -1 if the program cannot be started. */
static pid_t begin(command *c, const posix_spawn_file_actions_t *files)
{
    pid_t pid;
    ND_PUSH(c->a, &c->v, NULL);
    int e = posix_spawnp(&pid, c->v.v[0], files, NULL, c->v.v, environ);
    if (!e)
        return pid;
    errno = e;
    return -1;
}

/* The exit status, or -1. */
static int end(pid_t pid)
{
    int status;
    if (pid < 0)
        return -1;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static int run(command *c, const posix_spawn_file_actions_t *files)
{
    return end(begin(c, files));
}

/* PREFIX if this is PREFIX/bin/ndc and the runtime is there too. */
static const char *installed(nd_arena *a)
{
    enum { MAX = 4096 };
    char self[MAX];
    static const char bin[] = "/" NDC_BINDIR "/";
    ssize_t n = readlink("/proc/self/exe", self, MAX);
    if (n <= 0 || n == MAX)
        return NULL;
    self[n] = 0;
    char *name = strrchr(self, '/');
    size_t before = name ? (size_t)(name + 1 - self) : 0, k = sizeof bin - 1;
    if (before < k || memcmp(self + before - k, bin, k))
        return NULL;
    const char *prefix = nd_strndup(a, self, before - k);
    const char *lib = nd_fmt(a, "%s/" NDC_LIBDIR "/libndrt.a", prefix);
    return access(lib, R_OK) ? NULL : prefix;
}

static void inputs(command *c, const char *const *in)
{
    for (; *in; in++)
        arg(c, *in);
}

/* The runtime in `lib`; programs look there for the MPI plug-in. */
static void runtime(command *c, const char *include, const char *const *in,
                    const char *lib)
{
    arg(c, nd_fmt(c->a, "-I%s", include));
    inputs(c, in);
    arg(c, nd_fmt(c->a, "%s/libndrt.a", lib));
    args(c, "-Xlinker -rpath -Xlinker");
    arg(c, lib);
}

static command compiler(nd_ctx *ctx, const char *cpu)
{
    command c = {.a = ctx->arena};
    const char *cc = getenv("CC");
    args(&c, cc && *cc ? cc : NDC_CC);
    arg(&c, nd_fmt(c.a, "-march=%s", cpu ? cpu : "native"));
    return c;
}

bool cg_knows_cpu(nd_ctx *ctx, const char *cpu)
{
    command c = compiler(ctx, cpu);
    posix_spawn_file_actions_t quiet;
    args(&c, "-E -x c /dev/null -o /dev/null");
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
    int status = run(&c, &quiet);
    posix_spawn_file_actions_destroy(&quiet);
    if (status < 0)
        nd_error(ctx, nd_nowhere, "cannot run the C compiler `%s`: %s",
                 c.v.v[0], strerror(errno));
    else if (status)
        nd_error(ctx, nd_nowhere, "--cpu=%s: the C compiler `%s` knows no such "
                 "processor; native, x86-64-v2, x86-64-v3, x86-64-v4 and all "
                 "others of its -march are names", cpu, c.v.v[0]);
    return status == 0;
}

/* Ours, CMake's, and those of the environment, which have the last word. Calls
 * alone take gcc three to ten times as long with -O3, and run no faster. */
static void compile_flags(command *c, bool calls_alone)
{
    const char *flags = getenv("NDC_CFLAGS");
    args(c, calls_alone ? "-O1" : "-O3");
    args(c, "-std=c11 " WIDE "-fopenmp-simd -fwrapv -fno-math-errno "
            "-fno-trapping-math -ffp-contract=off " SIDE_BY_SIDE);
    args(c, NDC_CFLAGS);
    args(c, flags ? flags : "");
}

static void read_all(int fd, nd_buf *out)
{
    char part[4096];
    ssize_t n;
    while ((n = read(fd, part, sizeof part)) > 0 || (n < 0 && errno == EINTR))
        nd_putn(out, part, n > 0 ? (size_t)n : 0);
}

cg_target_cpu cg_target_for(nd_ctx *ctx, const char *cpu)
{
    command c = compiler(ctx, cpu);
    nd_buf out = {.arena = ctx->arena};
    posix_spawn_file_actions_t files;
    int fd[2], status = -1;
    compile_flags(&c, false);
    args(&c, "-E -dM -x c /dev/null");
    if (pipe(fd) == 0) {
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_adddup2(&files, fd[1], STDOUT_FILENO);
        posix_spawn_file_actions_addclose(&files, fd[0]);
        pid_t pid = begin(&c, &files);
        posix_spawn_file_actions_destroy(&files);
        close(fd[1]);
        read_all(fd[0], &out);
        close(fd[0]);
        status = end(pid);
    }
    return (cg_target_cpu){cpu, status == 0 ? out.s : NULL};
}

void cg_no_macros(nd_ctx *ctx, const char *cpu)
{
    nd_error(ctx, nd_nowhere, "the C compiler `%s` does not tell its macros",
             compiler(ctx, cpu).v.v[0]);
}

bool cg_prefers_llvm(nd_ctx *ctx, const char *cpu, cg_target_cpu *to)
{
#ifdef NDC_LLVM_LIB
    const char *flags = getenv("NDC_CFLAGS");
    bool meant = *NDC_CFLAGS || (flags && *flags);
    bool known = !cpu || !strcmp(cpu, "native") || !strncmp(cpu, "x86-64", 6);
    if (meant || !known || !dlopen(NDC_LLVM_LIB, RTLD_NOW | RTLD_LOCAL))
        return false;
    *to = cg_target_for(ctx, cpu);
    return to->macros;
#else
    (void)ctx, (void)cpu, (void)to;
    return false;
#endif
}

static command compile_command(nd_ctx *ctx, const char *const *in,
                               bool calls_alone, const char *out,
                               const char *cpu)
{
    command c = compiler(ctx, cpu);
    const char *root = getenv("NDC_RUNTIME");
    const char *prefix = root && *root ? NULL : installed(c.a);
    compile_flags(&c, calls_alone);
    if (root && *root) {
        runtime(&c, nd_fmt(c.a, "%s/include", root), in,
                nd_fmt(c.a, "%s/lib", root));
    } else if (prefix) {
        runtime(&c, nd_fmt(c.a, "%s/" NDC_INCLUDEDIR, prefix), in,
                nd_fmt(c.a, "%s/" NDC_LIBDIR, prefix));
    } else {
        arg(&c, "-I" NDC_RUNTIME_INCLUDE);
        inputs(&c, in);
        arg(&c, NDC_RUNTIME_LIB);
    }
    args(&c, NDC_LINK_FLAGS);
    arg(&c, "-o");
    arg(&c, out);
    return c;
}

/* Does it compile anything with these flags? If not, it has said why. */
static bool works(nd_ctx *ctx, const char *source, const char *half,
                  const char *cpu)
{
    static const char nothing[] = "int main(void) { return 0; }\n";
    const char *const in[] = {source, NULL};
    command c = compile_command(ctx, in, false, half, cpu);
    posix_spawn_file_actions_t quiet;
    if (!write_file(ctx, source, nothing, sizeof nothing - 1))
        return true;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
    int status = run(&c, &quiet);
    posix_spawn_file_actions_destroy(&quiet);
    unlink(source);
    return status == 0;
}

/* Only a program that it refuses while it takes another one is our fault. */
static int explain(nd_ctx *ctx, const char *c_path, const char *half,
                   const char *cpu)
{
    const char *source = nd_fmt(ctx->arena, "%s.c", half);
    const char *const in[] = {c_path, NULL};
    command c = compile_command(ctx, in, false, half, cpu);
    if (works(ctx, source, half, cpu)) {
        nd_error(ctx, (nd_loc){0}, "internal error: the C compiler refused the "
                 "generated program; it is kept in '%s'", c_path);
        return EXIT_INTERNAL;
    }
    nd_buf line = {.arena = ctx->arena};
    for (int i = 0; i < c.v.n; i++)
        nd_putf(&line, "%s%s", i ? " " : "", c.v.v[i]);
    nd_error(ctx, (nd_loc){0}, "the C compiler `%s` does not compile an empty "
             "program either; see CC and NDC_CFLAGS, and what it said above",
             c.v.v[0]);
    nd_note(ctx, (nd_loc){0}, "it was run as: %s", line.s);
    return EXIT_INPUT;
}

/* The exit status of the compiler, or -1. */
static int compile(nd_ctx *ctx, const char *const *in, bool calls_alone,
                   const char *half, const char *cpu, const char **cc)
{
    command c = compile_command(ctx, in, calls_alone, half, cpu);
    *cc = c.v.v[0];
    return run(&c, NULL);
}

/* Writes what LLVM has made, and the rest, where they are there for the C
 * compiler alone. */
static bool write_apart(nd_ctx *ctx, const cg_apart *apart,
                        const char *const *in)
{
    return write_file(ctx, in[0], apart->rest.s, apart->rest.n) &&
           write_file(ctx, in[1], apart->object.s, apart->object.n);
}

static int build(nd_ctx *ctx, const char *c_path, const cg_apart *apart,
                 const char *half, const char *cpu)
{
    const char *rest[] = {nd_fmt(ctx->arena, "%s.c", half),
                          nd_fmt(ctx->arena, "%s.o", half), NULL};
    const char *const all[] = {c_path, NULL};
    const char *cc = NULL;
    bool written = !apart || write_apart(ctx, apart, rest);
    int status = !written ? 0 : compile(ctx, apart ? rest : all, apart != NULL,
                                        half, cpu, &cc), e = errno;
    for (int i = 0; apart && rest[i]; i++)
        unlink(rest[i]);
    if (status < 0)
        nd_error(ctx, (nd_loc){0}, "cannot run the C compiler `%s`: %s; CC "
                 "names another one; the program is kept in '%s'", cc,
                 strerror(e), c_path);
    if (status > 0)
        return explain(ctx, c_path, half, cpu);
    return !written || status < 0 ? EXIT_INPUT : 0;
}

int cg_build(nd_ctx *ctx, const char *c_text, const cg_apart *apart,
             const char *out_path, const char *cpu)
{
    if (out_path[0] == '-')          /* not an option of the C compiler */
        out_path = nd_fmt(ctx->arena, "./%s", out_path);
    const char *c_path = nd_fmt(ctx->arena, "%s.c", out_path);
    char *half = nd_fmt(ctx->arena, "%s.XXXXXX", out_path);
    if (!write_file(ctx, c_path, c_text, strlen(c_text)))
        return EXIT_INPUT;
    int fd = mkstemp(half);
    if (fd < 0) {
        nd_error(ctx, (nd_loc){0}, "cannot write '%s': %s", out_path,
                 strerror(errno));
        return EXIT_INPUT;
    }
    close(fd);
    int status = build(ctx, c_path, apart, half, cpu);
    if (status) {
        unlink(half);
        return status;
    }
    /* mkstemp's file is private; a program has the usual permissions. */
    mode_t mask = umask(0);
    umask(mask);
    chmod(half, 0777 & ~mask);
    if (rename(half, out_path) != 0) {
        nd_error(ctx, (nd_loc){0}, "cannot write '%s': %s", out_path,
                 strerror(errno));
        unlink(half);
        return EXIT_INPUT;
    }
    return 0;
}
