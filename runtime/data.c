/* data.c - training data: which samples make up which batch, and bytes of text
 * or made-up numbers in the input buffers (arrays.c: tensors of a file).
 *
 * Batch k holds samples k*B .. k*B + B - 1 of the training part, wrapping at
 * its end; a rank takes the rows that its piece of the sample axis covers. So
 * the order of samples does not depend on the mesh. With evaluation on, the
 * last 5% of the samples are held out.
 *
 * A sample of text is a window: window w of length T has tokens byte[w*T + t]
 * and targets byte[w*T + t + 1], so n bytes hold (n - 1) / T windows.
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

void ndrt_hold_out(const ndrt_rank *r, int64_t n, int64_t *train,
                   int64_t *held)
{
    *held = 0;
    if (r->state->config->train.eval_every > 0 && n >= 2)
        *held = n / 20 > 0 ? n / 20 : 1;
    *train = n - *held;
}

void *ndrt_input(const ndrt_rank *r, int input)
{
    size_t at = r->program->stages[r->stage].inputs[input];

    return at == NDRT_NONE ? NULL : r->arena + at;
}

static int64_t limit_of(const ndrt_program *p, int input)
{
    return p->ranges ? p->ranges[input].limit : 0;
}

ndrt_status ndrt_check_ids(ndrt_rank *r, int input, const int32_t *x,
                           int64_t n, int64_t where)
{
    const ndrt_program *p = r->program;
    int64_t limit = limit_of(p, input);

    for (int64_t i = 0; i < n && limit > 0; i++) {
        if ((x[i] < 0 || x[i] >= limit) && x[i] != p->ranges[input].ignore)
            return ndrt_fail(r, NDRT_EINPUT, "\"%s\": %s has the value %d at "
                             "offset %lld, outside 0 .. %lld",
                             r->state->data->path, p->inputs[input].name,
                             (int)x[i], (long long)(where + i),
                             (long long)(limit - 1));
    }
    return NDRT_OK;
}

/* ---- text ------------------------------------------------------------- */

static bool is_text_input(const ndrt_program *p, const ndrt_tensor *t)
{
    return (strcmp(t->name, "tokens") == 0 ||
            strcmp(t->name, "targets") == 0) &&
           t->dtype == NDRT_I32 && t->naxes == 2 && ndrt_is_sample(p, t, 0);
}

static ndrt_status text_length(ndrt_rank *r, int64_t *length)
{
    const ndrt_program *p = r->program;

    *length = 0;
    for (int i = 0; i < p->ninputs; i++) {
        const ndrt_tensor *t = &p->inputs[i];
        if (!is_text_input(p, t))
            return ndrt_fail(r, NDRT_EINPUT, "text data gives i32 inputs "
                             "tokens[%s, x] and targets[%s, x]; \"%s\" is "
                             "none of them",
                             p->sample_axis ? p->sample_axis : "batch",
                             p->sample_axis ? p->sample_axis : "batch",
                             t->name);
        int64_t n = p->extents[t->extent[1]].size;
        if (*length && *length != n)
            return ndrt_fail(r, NDRT_EINPUT, "tokens and targets have "
                             "different lengths, %lld and %lld",
                             (long long)*length, (long long)n);
        *length = n;
    }
    return NDRT_OK;
}

static ndrt_status open_text(ndrt_rank *r, ndrt_data *d)
{
    ndrt_text *t = &d->text;
    char error[sizeof r->state->error];
    void *map;
    ndrt_status s = text_length(r, &t->t);

    if (s != NDRT_OK)
        return s;
    s = ndrt_map_file(d->path, &map, &t->bytes, error, sizeof error);
    t->map = map;
    if (s != NDRT_OK)
        return ndrt_fail(r, s, "%s", error);
    if (t->t == 0)
        return NDRT_OK;
    if (t->bytes < (size_t)t->t + 1)
        return ndrt_fail(r, NDRT_EINPUT, "the data file \"%s\" has %zu bytes; "
                         "windows of %lld need at least %lld", d->path,
                         t->bytes, (long long)t->t, (long long)t->t + 1);
    ndrt_hold_out(r, ((int64_t)t->bytes - 1) / t->t, &t->windows, &t->held);
    return NDRT_OK;
}

static ndrt_status text_batch(ndrt_rank *r, int input, int64_t k, bool eval)
{
    const ndrt_program *p = r->program;
    const ndrt_tensor *in = &p->inputs[input];
    const ndrt_text *t = &r->state->data->text;
    int32_t *x = ndrt_input(r, input);
    int64_t shift = strcmp(in->name, "targets") == 0;
    ndrt_walk w = ndrt_walk_tensor(p, r->rank, in, 0);

    while (ndrt_walk_next(&w)) {
        int64_t row = k * ndrt_batch_size(p) + w.off[0] + w.i[0];
        int64_t window = eval ? t->windows + row % t->held : row % t->windows;
        int64_t at = window * t->t + w.off[1] + shift;
        for (int64_t j = 0; j < w.length; j++)
            x[w.local + j] = t->map[at + j];
        ndrt_status s = ndrt_check_ids(r, input, x + w.local, w.length,
                                       at);
        if (s != NDRT_OK)
            return s;
    }
    return NDRT_OK;
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

ndrt_status ndrt_data_open(ndrt_rank *r)
{
    const ndrt_program *p = r->program;
    const ndrt_train *t = &r->state->config->train;
    ndrt_data *d = calloc(1, sizeof *d);

    if (!d)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
    r->state->data = d;
    d->kind = t->data;
    d->path = t->data_path ? t->data_path : "";
    if (p->ninputs == 0 || t->steps == 0) {
        d->kind = NDRT_DATA_NONE;
        return NDRT_OK;
    }
    switch (d->kind) {
    case NDRT_DATA_TEXT:
        return open_text(r, d);
    case NDRT_DATA_ARRAYS:
        return ndrt_arrays_open(r, d);
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

    if (!d)
        return;
    if (d->text.map)
        munmap((void *)d->text.map, d->text.bytes);
    ndrt_st_close(&d->file);
    free(d->source);
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
        if (d->kind == NDRT_DATA_TEXT)
            s = text_batch(r, i, k, eval);
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

    switch (d->kind) {
    case NDRT_DATA_TEXT:
        return d->text.held > 0;
    case NDRT_DATA_ARRAYS:
        return d->held > 0;
    case NDRT_DATA_SYNTHETIC:
        return true;
    case NDRT_DATA_NONE:
        break;
    }
    return r->program->ninputs == 0;
}
