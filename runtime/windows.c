/* windows.c - text and token files: a flat list of words, cut in windows.
 *
 * A sample is a window: window w of length T has tokens word[w*T + t] and
 * targets word[w*T + t + 1], so n words hold (n - 1) / T windows. A word of
 * text is a byte; a token has 1, 2 or 4 bytes, little-endian. A token file may
 * begin with 256 int32s: 20240520, the version, which is 1, the number of
 * tokens, and 253 that mean nothing here.
 */
#include "ndrt_internal.h"

#include <string.h>

enum { MAGIC = 20240520, HEADER_BYTES = 1024 };

/* Does text give this input? */
static bool is_text_input(const ndrt_program *p, const ndrt_tensor *t)
{
    return (strcmp(t->name, "tokens") == 0 ||
            strcmp(t->name, "targets") == 0) &&
           t->dtype == NDRT_I32 && t->naxes == 2 && ndrt_is_sample(p, t, 0);
}

bool ndrt_takes_text(const ndrt_program *p)
{
    for (int i = 0; i < p->ninputs; i++)
        if (!is_text_input(p, &p->inputs[i]))
            return false;
    return true;
}

static ndrt_status window_length(ndrt_rank *r, int64_t *length)
{
    const ndrt_program *p = r->program;
    const char *what = r->state->data->kind == NDRT_DATA_TEXT ? "text"
                                                              : "token";

    *length = 0;
    for (int i = 0; i < p->ninputs; i++) {
        const ndrt_tensor *t = &p->inputs[i];
        if (!is_text_input(p, t))
            return ndrt_fail(r, NDRT_EINPUT, "%s data gives i32 inputs "
                             "tokens[%s, x] and targets[%s, x]; \"%s\" is "
                             "none of them", what,
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

static int64_t word_at(const unsigned char *p, int width)
{
    uint32_t v = 0;

    for (int i = width - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return (int64_t)v;
}

/* Skips the header, if there is one; *bytes are those of the words. */
static ndrt_status skip_header(ndrt_rank *r, ndrt_source *f, size_t *bytes)
{
    const unsigned char *p = f->words;

    if (r->state->data->kind != NDRT_DATA_TOKENS || *bytes < HEADER_BYTES ||
        word_at(p, 4) != MAGIC)
        return NDRT_OK;
    int64_t version = word_at(p + 4, 4), count = word_at(p + 8, 4);
    if (version != 1)
        return ndrt_fail(r, NDRT_EINPUT, "the token file \"%s\" has a header "
                         "of version %lld; only 1 is known", f->path,
                         (long long)version);
    f->words += HEADER_BYTES;
    *bytes -= HEADER_BYTES;
    if (*bytes != (size_t)count * (size_t)f->width)
        return ndrt_fail(r, NDRT_EINPUT, "the token file \"%s\" says that it "
                         "has %lld tokens, which are %lld bytes as u%d; %zu "
                         "bytes follow its header", f->path, (long long)count,
                         (long long)count * f->width, 8 * f->width, *bytes);
    return NDRT_OK;
}

static ndrt_status check_size(ndrt_rank *r, const ndrt_source *f,
                              size_t bytes)
{
    size_t need = (size_t)r->state->data->window + 1;
    size_t width = (size_t)f->width;

    if (bytes % width)
        return ndrt_fail(r, NDRT_EINPUT, "the token file \"%s\" has %zu "
                         "bytes, which is no whole number of u%d tokens",
                         f->path, bytes, 8 * f->width);
    if (bytes / width >= need)
        return NDRT_OK;
    if (r->state->data->kind == NDRT_DATA_TEXT)
        return ndrt_fail(r, NDRT_EINPUT, "the data file \"%s\" has %zu bytes; "
                         "windows of %zu need at least %zu", f->path, bytes,
                         need - 1, need);
    return ndrt_fail(r, NDRT_EINPUT, "the token file \"%s\" has %zu tokens; "
                     "windows of %zu need at least %zu", f->path,
                     bytes / width, need - 1, need);
}

ndrt_status ndrt_windows_open(ndrt_rank *r, ndrt_source *f)
{
    ndrt_data *d = r->state->data;
    char error[sizeof r->state->error];
    ndrt_status s = window_length(r, &d->window);

    if (s != NDRT_OK)
        return s;
    f->width = d->kind == NDRT_DATA_TOKENS
               ? r->state->config->train.token_bytes : 1;
    s = ndrt_map_file(f->path, &f->map, &f->bytes, error, sizeof error);
    if (s != NDRT_OK)
        return ndrt_fail(r, s, "%s", error);
    if (d->window == 0)
        return NDRT_OK;
    size_t bytes = f->bytes;
    f->words = f->map;
    s = skip_header(r, f, &bytes);
    if (s == NDRT_OK)
        s = check_size(r, f, bytes);
    f->rows = ((int64_t)(bytes / (size_t)f->width) - 1) / d->window;
    return s;
}

ndrt_status ndrt_windows_batch(ndrt_rank *r, int input, int64_t k, bool eval)
{
    const ndrt_program *p = r->program;
    const ndrt_tensor *in = &p->inputs[input];
    const ndrt_data *d = r->state->data;
    const ndrt_part *part = &d->part[eval];
    const ndrt_source *f = part->from;
    int32_t *x = ndrt_input(r, input);
    int64_t shift = strcmp(in->name, "targets") == 0;
    ndrt_walk w = ndrt_walk_tensor(p, r->rank, in, 0);

    while (ndrt_walk_next(&w)) {
        int64_t row = k * ndrt_batch_size(p) + w.off[0] + w.i[0];
        int64_t at = ndrt_sample(part, row) * d->window + w.off[1] + shift;
        for (int64_t j = 0; j < w.length; j++) {
            int64_t v = word_at(f->words + (at + j) * f->width, f->width);
            ndrt_status s = ndrt_check_id(r, f, input, v, at + j);
            if (s != NDRT_OK)
                return s;
            x[w.local + j] = (int32_t)v;
        }
    }
    return NDRT_OK;
}
