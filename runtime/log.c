/* log.c - what a run says: a banner, one progress line per step (a live bar on
 * a terminal, plain lines in a pipe), and a JSON object per step and evaluation
 * for --log.
 *
 *     step 3/1000  loss 5.531012  norm 2.3811  lr 9e-06  8123 tok/s  eta 21:40
 *     {"step":3,"loss":5.531012,"grad_norm":2.3811, ...}
 *     {"eval":3,"loss":5.620418,"accuracy":0.03125}
 *
 * Progress goes to stdout, everything else to stderr. Only rank 0 speaks.
 * Tokens are the unique ones of the global batch, whatever the mesh.
 */
#include "ndrt_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct ndrt_log {
    FILE *json;
    int json_errno;               /* of the first write that failed */
    bool terminal, open_line;     /* a bar that waits to be overwritten */
    double begin, last;           /* seconds; begin: after the first step */
    int64_t first;                /* the step that `begin` ended */
};

double ndrt_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

ndrt_status ndrt_log_open(ndrt_rank *r)
{
    const char *path = r->state->config->log_path;
    ndrt_log *l;

    if (r->rank != 0)
        return NDRT_OK;
    l = calloc(1, sizeof *l);
    if (!l)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
    r->state->log = l;
    /* A launcher may give a process a terminal of its own and pass the output
     * on into a file: plain lines there. */
    l->terminal = isatty(STDOUT_FILENO) && !ndrt_under_launcher();
    l->last = ndrt_now();
    /* a run that goes on adds to its log */
    const char *mode = r->state->config->resume_path ? "ae" : "we";
    if (path && !(l->json = fopen(path, mode)))
        return ndrt_fail(r, NDRT_EINPUT, "cannot write \"%s\": %s", path,
                         strerror(errno));
    return NDRT_OK;
}

/* A full disk is told here, at the end: the weights are worth more than the
 * lines. */
ndrt_status ndrt_log_close(ndrt_rank *r)
{
    ndrt_log *l = r->state->log;
    int error;

    if (!l)
        return NDRT_OK;
    if (l->open_line)
        putchar('\n');
    fflush(stdout);
    error = l->json_errno;
    if (l->json && fclose(l->json) != 0 && !error)
        error = errno;
    free(l);
    r->state->log = NULL;
    if (!error)
        return NDRT_OK;
    return ndrt_fail(r, NDRT_EINPUT, "cannot write the log \"%s\": %s",
                     r->state->config->log_path, strerror(error));
}

/* A message of its own line, below a bar that may be there. */
static void end_bar(ndrt_log *l)
{
    if (l->open_line) {
        putchar('\n');
        fflush(stdout);
    }
    l->open_line = false;
}

void ndrt_log_note(ndrt_rank *r, const char *fmt, ...)
{
    va_list ap;

    if (!r->state->log)
        return;
    end_bar(r->state->log);
    va_start(ap, fmt);
    fprintf(stderr, "%s: ", r->program->name);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

static void print_eta(char out[32], double seconds)
{
    long s = (long)(seconds + 0.5);

    if (s >= 3600)
        snprintf(out, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, 32, "%ld:%02ld", s / 60, s % 60);
}

static void print_line(ndrt_log *l, const ndrt_step_line *s, int64_t steps,
                       double rate, const char *eta)
{
    if (l->terminal) {
        enum { WIDTH = 20 };
        char bar[WIDTH + 1];
        int full = (int)(s->step * WIDTH / (steps > 0 ? steps : 1));
        for (int i = 0; i < WIDTH; i++)
            bar[i] = i < full ? '#' : '.';
        bar[WIDTH] = '\0';
        printf("\r\033[K[%s] ", bar);
    }
    printf("step %lld/%lld  loss %.6f  norm %.5g  lr %.4g  %.0f tok/s  eta %s",
           (long long)s->step, (long long)steps, s->loss, s->grad_norm, s->lr,
           rate, eta);
    l->open_line = l->terminal;
    if (!l->terminal)
        putchar('\n');
    fflush(stdout);
}

static void flush_json(ndrt_log *l)
{
    if (fflush(l->json) != 0 && !l->json_errno)
        l->json_errno = errno;
}

static void print_json(ndrt_log *l, const ndrt_step_line *s, double rate)
{
    fprintf(l->json, "{\"step\":%lld,\"loss\":%.9g,\"grad_norm\":%.9g,"
            "\"lr\":%.9g,\"tokens\":%lld,\"tokens_per_s\":%.6g}\n",
            (long long)s->step, s->loss, s->grad_norm, s->lr,
            (long long)s->tokens, rate);
    flush_json(l);
}

void ndrt_log_step(ndrt_rank *r, const ndrt_step_line *s)
{
    ndrt_log *l = r->state->log;
    int64_t steps = r->state->config->train.steps;
    size_t scratch = ndrt_own_bytes(r) + r->state->packed_bytes +
                     r->state->comm->ops->scratch(r->state->comm);
    double t = ndrt_now(), per_step;
    char eta[32], text[24];

    if (!l)
        return;
    per_step = t - l->last;
    double rate = (double)s->tokens / (per_step > 1e-9 ? per_step : 1e-9);
    /* the first step also warms up: later ones predict the end better */
    if (l->begin == 0.0) {
        l->begin = t;
        l->first = s->step;
    } else {
        per_step = (t - l->begin) / (double)(s->step - l->first);
    }
    print_eta(eta, per_step * (double)(steps - s->step));
    print_line(l, s, steps, rate, eta);
    if (l->json)
        print_json(l, s, rate);
    if (!r->state->scratch_told) {
        ndrt_bytes(text, scratch);
        ndrt_log_note(r, "library scratch beside the arena: %s per rank (%s)",
                      text, ndrt_mm_name);
        r->state->scratch_told = true;
    }
    l->last = ndrt_now();
}

void ndrt_log_skip(ndrt_rank *r)
{
    if (r->state->log)
        r->state->log->last = ndrt_now();
}

void ndrt_log_micro(ndrt_rank *r, int mb, double loss)
{
    if (!r->state->log)
        return;
    end_bar(r->state->log);
    printf("step %lld microbatch %d  loss %.9g\n", (long long)r->step, mb,
           loss);
    fflush(stdout);
}

void ndrt_log_eval(ndrt_rank *r, double loss, int64_t batches,
                   const double *metrics)
{
    const ndrt_train *t = &r->state->config->train;
    ndrt_log *l = r->state->log;

    if (!l)
        return;
    end_bar(l);
    printf("eval %lld  loss %.6f", (long long)r->step, loss);
    if (l->json)
        fprintf(l->json, "{\"eval\":%lld,\"loss\":%.9g", (long long)r->step,
                loss);
    for (int k = 0; k < t->nmetrics; k++) {
        const char *name = r->program->outputs[t->metrics[k]].name;
        printf("  %s=%.6g", name, metrics[k]);
        if (l->json)
            fprintf(l->json, ",\"%s\":%.9g", name, metrics[k]);
    }
    printf("  (%lld held-out batch%s)\n", (long long)batches,
           batches == 1 ? "" : "es");
    fflush(stdout);
    if (l->json) {
        fputs("}\n", l->json);
        flush_json(l);
    }
    l->last = ndrt_now();              /* not part of the next step */
}

void ndrt_bytes(char out[24], size_t bytes)
{
    static const char *const unit[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int u = 0;

    for (; v >= 1024.0 && u < 4; u++)
        v /= 1024.0;
    snprintf(out, 24, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
}

/* The arena of a device by what it holds. */
static void print_parts(ndrt_rank *r, int device)
{
    const ndrt_course *c = r->state->course;
    const ndrt_device *d = &c->program.devices[device];
    size_t rest = ndrt_arena_bytes(c, device);
    struct {
        const char *what;
        size_t bytes;
    } part[] = {{"weights", 0}, {"gradients", 0}, {"optimizer", 0},
                {"versions", rest - ndrt_older_at(c, device)},
                {"temporary", d->temp_bytes}, {"inputs and saved", 0}};
    enum { N = sizeof part / sizeof *part };
    char text[24];

    for (int i = 0; i < d->nplaces; i++) {
        const ndrt_place *p = &d->places[i];
        const ndrt_bucket *b = &c->program.buckets[p->bucket];
        size_t n = b->n * sizeof(float), zero = b->zero ? 1 : 0;
        for (int a = 0; zero && a < c->program.nmesh; a++)
            if (b->zero >> a & 1)
                zero *= (size_t)c->program.mesh_size[a];
        part[0].bytes += n;
        part[1].bytes += p->grads == NDRT_NONE ? 0 : n;
        n /= zero ? zero : 1;
        part[2].bytes += (p->state1 == NDRT_NONE ? 0 : n) +
                         (p->state2 == NDRT_NONE ? 0 : n);
    }
    for (int i = 0; i < N - 1; i++)
        rest -= part[i].bytes;
    part[N - 1].bytes = rest;
    for (int i = 0, any = 0; i < N; i++) {
        if (!part[i].bytes)
            continue;
        ndrt_bytes(text, part[i].bytes);
        fprintf(stderr, "%s%s %s", any++ ? ", " : "  ", part[i].what, text);
    }
    fputc('\n', stderr);
}

void ndrt_banner(ndrt_rank *r, bool local)
{
    const ndrt_program *p = r->program;
    int ranks = ndrt_mesh_ranks(p), threads = ndrt_threads(r);
    char text[24];

    if (r->rank != 0)
        return;
    fprintf(stderr, "%s: %d rank%s", p->name, ranks, ranks == 1 ? "" : "s");
    for (int a = 0; a < p->nmesh; a++)
        fprintf(stderr, "%s%s=%d", a ? ", " : " (", p->mesh_name[a],
                p->mesh_size[a]);
    fprintf(stderr, "%s as %s", p->nmesh ? ")" : "",
            local ? "threads of this process" : "MPI processes");
    if (threads > 1)
        fprintf(stderr, ", %d threads per rank", threads);
    fputc('\n', stderr);
    for (int d = 0; d < p->ndevices; d++) {
        size_t bytes = ndrt_arena_bytes(r->state->course, d);
        ndrt_bytes(text, bytes);
        fprintf(stderr, "%s: ", p->name);
        if (p->ndevices > 1)
            fprintf(stderr, "device %d: ", d);
        fprintf(stderr, "arena %s per rank (%zu bytes)\n%s:", text, bytes,
                p->name);
        print_parts(r, d);
    }
    if (r->state->comm->cpus == 0)
        fprintf(stderr, "%s: note: there are more ranks than CPUs\n",
                p->name);
    if (r->state->config->overlap == NDRT_OVERLAP_ON && p->nflights > 0 &&
        !r->state->air)
        fprintf(stderr, "%s: note: this MPI can be called by one thread only: "
                "no call is in flight\n", p->name);
}
