/* profile.c - --profile FILE: where the time of a step goes, by kernel and by
 * what the runtime does; for `ndc --emit=roofline`.
 *
 *   {"program": "gpt", "key": "92ab01...", "ranks": 1, "threads": 2, ...,
 *    "kernels": [
 *     {"name": "layers_ln1_fwd", "calls": 72, "seconds": 0.0123},
 *     ...
 *
 * A program that was built with marks (`ndc --marks`) says where each kernel
 * ends, the runtime says the same of its own work, and the time since the last
 * mark goes to the one that comes next: so all of a step is someone's, waiting
 * included. Only the rank's own thread tells. The first step prepares what
 * later ones use: it counts only if it is alone. Calls and seconds are of all
 * ranks.
 *
 * What the machine can do at all is measured before the training and after it,
 * by all ranks at once: copies that leave the caches, and products. The better
 * figure counts: for the length of one measurement others may be in the way.
 */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

enum {
    LEAST_TRIES = 5, SIDE = 768,  /* of the matrices */
    MOST_BYTES = 64 << 20, LEAST_BYTES = 8 << 20      /* of a copy */
};

#define LEAST_SECONDS 0.2         /* of all tries */

typedef enum { COPY, FLOAT, BF16, NPEAKS } peak;

typedef struct line {
    double calls, seconds;
} line;

struct ndrt_profile {
    bool on;                      /* inside a step */
    double last;                  /* the latest mark */
    int64_t first, steps;         /* of the run; that count */
    int n;                        /* kernels; then parts */
    char *from, *to;              /* while peaks are measured */
    size_t bytes;
    double peak[NPEAKS];          /* bytes or operations per second */
    line of[];
};

static const char *const part_names[NDRT_NPARTS] = {
    [NDRT_PART_DATA] = "data",
    [NDRT_PART_ZERO] = "zero gradients",
    [NDRT_PART_MESSAGES] = "messages and waiting",
    [NDRT_PART_REDUCE] = "reduce gradients",
    [NDRT_PART_NORM] = "gradient norm",
    [NDRT_PART_SUMS] = "sums of all ranks",
    [NDRT_PART_UPDATE] = "update",
    [NDRT_PART_LOG] = "log",
    [NDRT_PART_OTHER] = "between kernels",
};

/* ---- marks ------------------------------------------------------------- */

static void end(ndrt_profile *p, int at)
{
    double now = ndrt_now();

    p->of[at].calls++;
    p->of[at].seconds += now - p->last;
    p->last = now;
}

void ndrt_mark(ndrt_rank *r, int mark)
{
    ndrt_profile *p = r->state->profile;

    if (p && p->on && r->thread == 0)
        end(p, mark);
}

void ndrt_spent(ndrt_rank *r, ndrt_chore part)
{
    ndrt_profile *p = r->state->profile;

    if (p && p->on)
        end(p, p->n + (int)part);
}

void ndrt_profile_step(ndrt_rank *r, bool on)
{
    ndrt_profile *p = r->state->profile;

    if (!p)
        return;
    if (!on)
        ndrt_spent(r, NDRT_PART_OTHER);
    p->on = on;
    if (!on)
        return;
    if (r->step == p->first + 1) {
        memset(p->of, 0, (size_t)(p->n + NDRT_NPARTS) * sizeof *p->of);
        p->steps = 0;
    }
    p->steps++;
    p->last = ndrt_now();
}

/* ---- what the machine can do -------------------------------------------- */

static void copy(ndrt_rank *r, void *arg)
{
    const ndrt_profile *p = arg;

    ndrt_copy(r, p->to, p->from, p->bytes);
}

static void multiply(ndrt_rank *r, void *arg)
{
    const ndrt_profile *p = arg;
    const float *a = (const float *)(const void *)p->from;

    ndrt_gemm(r, false, SIDE, SIDE, SIDE, a, SIDE, 1, a + SIDE * SIDE, SIDE, 1,
              (float *)(void *)p->to, SIDE, 1);
}

static void multiply_bf16(ndrt_rank *r, void *arg)
{
    const ndrt_profile *p = arg;
    const uint16_t *a = (const uint16_t *)(const void *)p->from;

    ndrt_gemm_bf16(r, false, SIDE, SIDE, SIDE, a, SIDE, 1, a + SIDE * SIDE,
                   SIDE, 1, (float *)(void *)p->to, SIDE, 1);
}

/* Raises the rate to `work` in the time of the fastest try, after one that
 * prepares: where ranks take turns on a CPU, of one that none interrupted. */
static ndrt_status rate_of(ndrt_rank *r, ndrt_work *f, double work,
                           double *rate)
{
    double best = 0.0, sum = 0.0;
    ndrt_status s = ndrt_together(r, f, r->state->profile);

    for (int i = 0; s == NDRT_OK && (i < LEAST_TRIES || sum < LEAST_SECONDS);
         i++) {
        double begin = ndrt_now();
        s = ndrt_together(r, f, r->state->profile);
        double t = ndrt_now() - begin;
        best = i == 0 || t < best ? t : best;
        sum += t;
    }
    if (best > 0.0 && work / best > *rate)
        *rate = work / best;
    return s;
}

static ndrt_status measure(ndrt_rank *r, ndrt_profile *p)
{
    ndrt_comm *c = r->state->comm;
    size_t each = (size_t)MOST_BYTES / (size_t)c->size;
    const double flops = 2.0 * SIDE * SIDE * SIDE;
    ndrt_status s = NDRT_OK;

    p->bytes = each > LEAST_BYTES ? each : LEAST_BYTES;
    p->from = calloc(2, p->bytes);
    if (!p->from)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for the profile");
    p->to = p->from + p->bytes;
    memset(p->from, 0, 2 * p->bytes);      /* the pages are there */
    if (c->size > 1)
        s = ndrt_comm_check(r, c->ops->barrier(c, &r->state->world));
    if (s == NDRT_OK)
        s = rate_of(r, copy, 2.0 * (double)p->bytes, &p->peak[COPY]);
    if (s == NDRT_OK)
        s = rate_of(r, multiply, flops, &p->peak[FLOAT]);
    if (s == NDRT_OK)
        s = rate_of(r, multiply_bf16, flops, &p->peak[BF16]);
    free(p->from);
    p->from = p->to = NULL;
    return s;
}

ndrt_status ndrt_profile_open(ndrt_rank *r)
{
    ndrt_state *st = r->state;
    int n = r->program->nmarks;

    if (!st->config->profile_path)
        return NDRT_OK;
    if (!n)
        return ndrt_fail(r, NDRT_EUSAGE, "--profile: this program was built "
                         "without marks; build it with `ndc --marks`");
    if (st->config->train.steps <= st->start)
        return ndrt_fail(r, NDRT_EUSAGE, "--profile: the run has no step to "
                         "take the time of");
    st->profile = calloc(1, sizeof *st->profile +
                                (size_t)(n + NDRT_NPARTS) * sizeof(line));
    if (!st->profile)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for the profile");
    st->profile->n = n;
    st->profile->first = st->start + 1;
    return NDRT_OK;
}

/* All ranks are there. */
ndrt_status ndrt_profile_peaks(ndrt_rank *r)
{
    return r->state->profile ? measure(r, r->state->profile) : NDRT_OK;
}

void ndrt_profile_free(ndrt_rank *r)
{
    free(r->state->profile);
}

/* ---- the file ----------------------------------------------------------- */

static void put_lines(sched_text *t, const char *what, const char *const *name,
                      const line *of, int n)
{
    sched_put(t, " \"%s\": [\n", what);
    for (int i = 0; i < n; i++)
        sched_put(t, "  {\"name\": \"%s\", \"calls\": %.0f, \"seconds\": "
                  "%.9f}%s\n", name[i], of[i].calls, of[i].seconds,
                  i + 1 < n ? "," : "");
    sched_put(t, " ]");
}

static ndrt_status put_file(ndrt_rank *r, const ndrt_profile *p)
{
    const ndrt_program *q = r->program;
    sched_text t = {0};

    sched_put(&t, "{\"program\": \"%s\", \"key\": \"%016llx\",\n"
              " \"ranks\": %d, \"threads\": %d, \"microbatches\": %d, "
              "\"steps\": %lld,\n", q->name, (unsigned long long)q->marks_key,
              r->state->comm->size, ndrt_threads(r), q->nmicro,
              (long long)p->steps);
    sched_put(&t, " \"copy\": %.0f, \"product\": %.0f, \"bf16\": %.0f,\n",
              p->peak[COPY], p->peak[FLOAT], p->peak[BF16]);
    put_lines(&t, "kernels", q->marks, p->of, p->n);
    sched_put(&t, ",\n");
    put_lines(&t, "runtime", part_names, p->of + p->n, NDRT_NPARTS);
    sched_put(&t, "}\n");
    ndrt_status s = trace_put_file(r, r->state->config->profile_path, &t);
    free(t.s);
    return s;
}

static void add(ndrt_profile *sum, const ndrt_profile *p)
{
    for (int i = 0; i < sum->n + NDRT_NPARTS; i++) {
        sum->of[i].calls += p->of[i].calls;
        sum->of[i].seconds += p->of[i].seconds;
    }
    for (int k = 0; k < NPEAKS; k++)
        sum->peak[k] += p->peak[k];
}

ndrt_status ndrt_profile_write(ndrt_rank *r)
{
    ndrt_comm *c = r->state->comm;
    ndrt_profile *mine = r->state->profile;
    ndrt_status s = NDRT_OK;

    if (!mine)
        return NDRT_OK;
    size_t bytes = sizeof *mine +
                   (size_t)(mine->n + NDRT_NPARTS) * sizeof(line);
    if (r->rank != 0)
        return ndrt_comm_check(r, c->ops->send(c, 0, mine, bytes));
    ndrt_profile *other = malloc(bytes);
    if (!other)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory for the profile");
    for (int q = 1; q < c->size && s == NDRT_OK; q++) {
        s = ndrt_comm_check(r, c->ops->recv(c, q, other, bytes));
        if (s == NDRT_OK)
            add(mine, other);
    }
    for (int k = 0; k < NPEAKS; k++)
        mine->peak[k] /= c->size;
    free(other);
    return s == NDRT_OK ? put_file(r, mine) : s;
}
