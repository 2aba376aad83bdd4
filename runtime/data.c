/* data.c - training data: which samples make up which batch, and made-up
 * numbers (windows.c: text and token files; arrays.c: tensors of a file).
 *
 * Batch k holds samples k*B .. k*B + B - 1 of the training part, wrapping at
 * its end; a rank takes the rows that its piece of the sample axis covers. So
 * the order of samples does not depend on the mesh. Evaluation has a file of
 * its own or, without one, the last 5% of the samples, which are held out.
 */
#include "ndrt_internal.h"
#include "ndrt_math.h"

#include <stdlib.h>
#include <sys/mman.h>

int64_t ndrt_batch_size(const ndrt_program *p)
{
    return p->sample_extent < 0 ? 1 : p->extents[p->sample_extent].size;
}

/* Positions of the first integer input that has samples, else samples. */
int64_t ndrt_step_tokens(const ndrt_program *p)
{
    for (int i = 0; i < p->ninputs; i++) {
        const ndrt_tensor *t = &p->inputs[i];
        int64_t n = 1;
        bool samples = false;
        for (int a = 0; a < t->naxes; a++) {
            n *= p->extents[t->extent[a]].size;
            samples = samples || ndrt_is_sample(p, t, a);
        }
        if (samples && t->dtype == NDRT_I32)
            return n;
    }
    return ndrt_batch_size(p);
}

void *ndrt_input(const ndrt_rank *r, int input)
{
    size_t at = ndrt_here(r)->inputs[input];

    return at == NDRT_NONE ? NULL : r->arena + at;
}

static int64_t limit_of(const ndrt_program *p, int input)
{
    return p->ranges ? p->ranges[input].limit : 0;
}

ndrt_status ndrt_check_id(ndrt_rank *r, const ndrt_source *f, int input,
                          int64_t v, int64_t where)
{
    const ndrt_program *p = r->program;
    int64_t limit = limit_of(p, input);

    if (limit > 0 ? (v >= 0 && v < limit) || v == p->ranges[input].ignore
                  : v >= INT32_MIN && v <= INT32_MAX)
        return NDRT_OK;
    return ndrt_fail(r, NDRT_EINPUT, "\"%s\": %s has the value %lld at offset "
                     "%lld, outside 0 .. %lld", f->path, p->inputs[input].name,
                     (long long)v, (long long)where,
                     (long long)(limit > 0 ? limit - 1 : INT32_MAX));
}

/* ---- made-up data ----------------------------------------------------- */

enum { EVAL_BIT = 1 << 30, DEFAULT_LIMIT = 256 };

static void made_up_batch(ndrt_rank *r, int input, int64_t k, bool eval)
{
    const ndrt_tensor *in = &r->program->inputs[input];
    char *x = ndrt_input(r, input);
    uint32_t stream = ndrt_stream(in->name);
    uint32_t step = (uint32_t)(k + 1) | (eval ? EVAL_BIT : 0);
    int64_t given = limit_of(r->program, input);
    uint32_t limit = given > 0 ? (uint32_t)given : DEFAULT_LIMIT;
    ndrt_walk w = ndrt_walk_tensor(r->program, r->rank, in, 0);

    while (ndrt_walk_next(&w)) {
        for (int64_t j = 0; j < w.length; j++) {
            uint64_t index = (uint64_t)(w.global + j);
            uint32_t u = nd_philox(r->seed, index, step, stream, NULL);
            if (in->dtype == NDRT_F32)
                ((float *)(void *)x)[w.local + j] = (float)(u >> 8) * 0x1p-24f;
            else if (in->dtype == NDRT_I32)
                ((int32_t *)(void *)x)[w.local + j] = (int32_t)(u % limit);
            else
                x[w.local + j] = (char)(u >> 31);
        }
    }
}

/* ---- all kinds -------------------------------------------------------- */

static ndrt_status open_file(ndrt_rank *r, ndrt_source *f, const char *path)
{
    f->path = path;
    return r->state->data->kind == NDRT_DATA_ARRAYS ? ndrt_arrays_open(r, f)
                                                    : ndrt_windows_open(r, f);
}

static ndrt_status open_files(ndrt_rank *r, ndrt_data *d)
{
    const ndrt_train *t = &r->state->config->train;
    bool eval = t->eval_every > 0 || t->nmetrics > 0;
    ndrt_status s = open_file(r, &d->file[0], t->data_path);
    int64_t n = d->file[0].rows, held = 0;

    if (s == NDRT_OK && eval && t->eval_path) {
        s = open_file(r, &d->file[1], t->eval_path);
        d->part[1] = (ndrt_part){&d->file[1], 0, d->file[1].rows};
    } else {
        if (eval && n >= 2)
            held = n / 20 > 0 ? n / 20 : 1;
        d->part[1] = (ndrt_part){&d->file[0], n - held, held};
    }
    d->part[0] = (ndrt_part){&d->file[0], 0, n - held};
    return s;
}

int64_t ndrt_sample(const ndrt_part *part, int64_t row)
{
    return part->first + row % part->rows;
}

ndrt_status ndrt_data_open(ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    const ndrt_train *t = &r->state->config->train;
    ndrt_data *d = calloc(1, sizeof *d);

    if (!d)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
    r->state->data = d;
    d->kind = t->data;
    if (p->ninputs == 0 || t->steps == 0) {
        d->kind = NDRT_DATA_NONE;
        return NDRT_OK;
    }
    switch (d->kind) {
    case NDRT_DATA_TEXT:
    case NDRT_DATA_TOKENS:
    case NDRT_DATA_ARRAYS:
        return open_files(r, d);
    case NDRT_DATA_SYNTHETIC:
        return NDRT_OK;
    case NDRT_DATA_NONE:
        break;
    }
    return ndrt_fail(r, NDRT_EINPUT, "no data: give --data FILE, or write "
                     "`data = ...` in the train block");
}

void ndrt_data_close(ndrt_rank *r)
{
    ndrt_data *d = r->state->data;

    for (int i = 0; d && i < 2; i++) {
        if (d->file[i].map)
            munmap(d->file[i].map, d->file[i].bytes);
        ndrt_st_close(&d->file[i].file);
        free(d->file[i].tensor);
    }
    free(d);
    r->state->data = NULL;
}

ndrt_status ndrt_data_batch(ndrt_rank *r, int64_t k, bool eval)
{
    const ndrt_data *d = r->state->data;
    ndrt_status s = NDRT_OK;

    for (int i = 0; i < r->program->ninputs && s == NDRT_OK; i++) {
        if (!ndrt_input(r, i))
            continue;
        if (d->kind == NDRT_DATA_TEXT || d->kind == NDRT_DATA_TOKENS)
            s = ndrt_windows_batch(r, i, k, eval);
        else if (d->kind == NDRT_DATA_ARRAYS)
            s = ndrt_arrays_batch(r, i, k, eval);
        else if (d->kind == NDRT_DATA_SYNTHETIC)
            made_up_batch(r, i, k, eval);
    }
    return s;
}

bool ndrt_data_can_eval(const ndrt_rank *r)
{
    const ndrt_data *d = r->state->data;

    if (d->kind == NDRT_DATA_SYNTHETIC)
        return true;
    return d->kind == NDRT_DATA_NONE ? r->program->ninputs == 0
                                     : d->part[1].rows > 0;
}

int64_t ndrt_eval_rows(const ndrt_rank *r)
{
    return r->state->data->part[1].rows;
}
