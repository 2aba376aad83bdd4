/* arrays.c - inputs by name from a safetensors or an .npz file. A tensor has
 * the axes of the input in the same order; its sample axis is as long as there
 * are samples, the same in all tensors.
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

static bool converts(ndrt_dtype to, ndrt_st_type from)
{
    switch (to) {
    case NDRT_F32:
        return true;
    case NDRT_I32:
        return from == NDRT_ST_I32 || from == NDRT_ST_I64 ||
               from == NDRT_ST_U8 || from == NDRT_ST_BOOL;
    case NDRT_BOOL:
        return from == NDRT_ST_U8 || from == NDRT_ST_BOOL;
    }
    return false;
}

static ndrt_status check_axis(ndrt_rank *r, const ndrt_source *d,
                              const ndrt_tensor *in, const ndrt_st_tensor *t,
                              int a, int64_t *samples)
{
    int64_t want = r->program->extents[in->extent[a]].size;

    if (!ndrt_is_sample(r->program, in, a)) {
        if (t->shape[a] == want)
            return NDRT_OK;
        return ndrt_fail(r, NDRT_EINPUT, "\"%s\": tensor \"%s\" has length "
                         "%lld along axis \"%s\", expected %lld", d->path,
                         in->name, (long long)t->shape[a], in->axis[a],
                         (long long)want);
    }
    if (t->shape[a] == 0)
        return ndrt_fail(r, NDRT_EINPUT, "\"%s\": tensor \"%s\" has no "
                         "samples, at least 1 is needed", d->path, in->name);
    if (*samples >= 0 && *samples != t->shape[a])
        return ndrt_fail(r, NDRT_EINPUT, "\"%s\": tensor \"%s\" has %lld "
                         "samples, another one %lld", d->path, in->name,
                         (long long)t->shape[a], (long long)*samples);
    *samples = t->shape[a];
    return NDRT_OK;
}

static ndrt_status check_input(ndrt_rank *r, const ndrt_source *d,
                               const ndrt_tensor *in, const ndrt_st_tensor *t,
                               int64_t *samples)
{
    static const char *const name[] = {"f32", "i32", "bool"};

    if (!t)
        return ndrt_fail(r, NDRT_EINPUT, "\"%s\" has no tensor \"%s\", which "
                         "the model takes as input", d->path, in->name);
    if (!converts(in->dtype, t->type))
        return ndrt_fail(r, NDRT_EINPUT, "\"%s\": tensor \"%s\" is %s, the "
                         "model wants %s", d->path, in->name,
                         ndrt_st_type_name(t->type), name[in->dtype]);
    if (t->naxes != in->naxes)
        return ndrt_fail(r, NDRT_EINPUT, "\"%s\": tensor \"%s\" has %d axes, "
                         "expected %d", d->path, in->name, t->naxes,
                         in->naxes);
    for (int a = 0; a < in->naxes; a++) {
        ndrt_status s = check_axis(r, d, in, t, a, samples);
        if (s != NDRT_OK)
            return s;
    }
    return NDRT_OK;
}

ndrt_status ndrt_arrays_open(ndrt_rank *r, ndrt_source *f)
{
    const ndrt_program *p = r->program;
    char error[sizeof r->state->error];
    int64_t samples = -1;
    ndrt_status s = ndrt_is_npz(f->path)
        ? ndrt_npz_open(&f->file, f->path, error, sizeof error)
        : ndrt_st_open(&f->file, f->path, error, sizeof error);

    if (s != NDRT_OK)
        return ndrt_fail(r, s, "%s", error);
    f->tensor = calloc((size_t)p->ninputs, sizeof *f->tensor);
    if (!f->tensor)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
    for (int i = 0; i < p->ninputs && s == NDRT_OK; i++) {
        f->tensor[i] = ndrt_st_find(&f->file, p->inputs[i].name);
        s = check_input(r, f, &p->inputs[i], f->tensor[i], &samples);
    }
    f->rows = samples < 0 ? 1 : samples;
    return s;
}

static ndrt_status take(ndrt_rank *r, const ndrt_source *f, int input,
                        int64_t local, int64_t at, int64_t n)
{
    const ndrt_tensor *in = &r->program->inputs[input];
    const ndrt_st_tensor *t = f->tensor[input];
    char *x = ndrt_input(r, input);
    ndrt_status s = NDRT_OK;

    if (in->dtype == NDRT_F32) {
        ndrt_st_floats(t, at, n, (float *)(void *)x + local);
    } else if (in->dtype == NDRT_BOOL) {
        for (int64_t i = 0; i < n; i++)
            x[local + i] = t->data[at + i] != 0;
    } else {
        int32_t *v = (int32_t *)(void *)x + local;
        for (int64_t i = 0; i < n && s == NDRT_OK; i++) {
            int64_t id = ndrt_st_int(t, at + i);
            s = ndrt_check_id(r, f, input, id, at + i);
            v[i] = (int32_t)id;
        }
    }
    return s;
}

/* Index in the file of the run's first element; `row` is where its sample
 * stands in the batch. */
static int64_t file_index(const ndrt_rank *r, const ndrt_tensor *in,
                          const ndrt_st_tensor *t, const ndrt_walk *w,
                          int64_t inner, int64_t k, bool eval)
{
    const ndrt_part *part = &r->state->data->part[eval];
    int64_t at = 0;

    for (int a = 0; a < in->naxes; a++) {
        int64_t i = w->off[a] + (a == in->naxes - 1 ? inner : w->i[a]);
        if (ndrt_is_sample(r->program, in, a))
            i = ndrt_sample(part, k * ndrt_batch_size(r->program) + i);
        at = at * t->shape[a] + i;
    }
    return at;
}

ndrt_status ndrt_arrays_batch(ndrt_rank *r, int input, int64_t k, bool eval)
{
    const ndrt_tensor *in = &r->program->inputs[input];
    const ndrt_source *f = r->state->data->part[eval].from;
    ndrt_walk w = ndrt_walk_tensor(r->program, r->rank, in, 0);
    /* along the sample axis a run may wrap: element by element */
    bool singly = in->naxes > 0 &&
                  ndrt_is_sample(r->program, in, in->naxes - 1);
    ndrt_status s = NDRT_OK;

    while (s == NDRT_OK && ndrt_walk_next(&w)) {
        int64_t part = singly ? 1 : w.length;
        for (int64_t j = 0; j < w.length && s == NDRT_OK; j += part)
            s = take(r, f, input, w.local + j,
                     file_index(r, in, f->tensor[input], &w, j, k, eval),
                     part);
    }
    return s;
}
