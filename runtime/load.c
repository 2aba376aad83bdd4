/* load.c - parameters and optimizer state from a safetensors file. Every rank
 * maps the file and takes what it needs, if it matches its checksum.
 */
#include "ndrt_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void print_shape(char out[160], const int64_t *shape, int n)
{
    size_t at = 0;

    out[at++] = '[';
    for (int a = 0; a < n && at < 130; a++)
        at += (size_t)snprintf(out + at, 160 - at, "%s%lld", a ? ", " : "",
                               (long long)shape[a]);
    out[at++] = ']';
    out[at] = '\0';
}

static ndrt_status check_shape(ndrt_rank *r, const char *path, int param,
                               const ndrt_st_tensor *t)
{
    int64_t want[NDRT_MAX_RANK];
    int n = ndrt_file_shape(r->program, param, want);
    char found[160], expected[160];

    if (t->naxes == n &&
        memcmp(t->shape, want, (size_t)n * sizeof *want) == 0)
        return NDRT_OK;
    print_shape(found, t->shape, t->naxes);
    print_shape(expected, want, n);
    return ndrt_fail(r, NDRT_EINPUT, "\"%s\": tensor \"%s\" has the shape %s, "
                     "expected %s", path, t->name, found, expected);
}

typedef struct missing {
    int n;
    char text[200];               /* the first few names */
} missing;

static void add_missing(missing *m, const char *name)
{
    size_t at = strlen(m->text);

    if (m->n++ < 3)
        snprintf(m->text + at, sizeof m->text - at, "%s\"%s\"",
                 at ? ", " : "", name);
}

/* An open file and how its names follow from the parameters'. */
typedef struct source {
    ndrt_st_file f;
    const char *path;
    const char *below;            /* only what is below it, by the rest of the
                                     name; or NULL */
    bool all;                     /* else only what `init = load` chose */
    bool goes_on;                 /* with all that a run had */
    missing m;
} source;

/* NULL if there is none, or none that will do: then *s says so. */
static const ndrt_st_tensor *find(ndrt_rank *r, source *from, const char *name,
                                  ndrt_status *s)
{
    const ndrt_st_tensor *t = ndrt_st_find(&from->f, name);

    if (!t)
        add_missing(&from->m, name);
    if (!t || ndrt_st_whole(&from->f, t))
        return t;
    *s = ndrt_fail(r, NDRT_EINPUT, "\"%s\" is damaged: the data of tensor "
                   "\"%s\" do not match their checksum", from->path, name);
    return NULL;
}

/* State that nobody would read is that of another optimizer. */
static ndrt_status check_state(ndrt_rank *r, const source *from, int param,
                               int64_t layer)
{
    const ndrt_program *p = r->program;
    ndrt_status s = NDRT_OK;

    if (p->params[param].frozen)
        return NDRT_OK;
    for (int kind = 1; kind < NDRT_BEFORE && s == NDRT_OK; kind++) {
        if (ndrt_has_kind(r, param, kind))
            continue;
        char *name = ndrt_layer_name(p, param, layer, ndrt_kind_prefix[kind]);
        if (!name)
            return ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
        if (ndrt_st_find(&from->f, name))
            s = ndrt_fail(r, NDRT_EINPUT, "\"%s\" holds \"%s\", of another "
                          "optimizer than this run's; --load takes the "
                          "weights alone", from->path, name);
        free(name);
    }
    return s;
}

static ndrt_status load_tensor(ndrt_rank *r, source *from, int param,
                               int64_t layer, int kind)
{
    const ndrt_program *p = r->program;
    float *x = ndrt_tensor_at(r, param, kind);
    char *name = ndrt_layer_name(p, param, layer, ndrt_kind_prefix[kind]);

    if (!name)
        return ndrt_fail(r, NDRT_EINTERNAL, "out of memory");
    const char *rest = from->below ? name + strlen(from->below) + 1 : name;
    ndrt_status s = NDRT_OK;
    const ndrt_st_tensor *t = find(r, from, rest, &s);
    free(name);
    if (t)
        s = check_shape(r, from->path, param, t);
    if (s == NDRT_OK && from->goes_on && kind == 0)
        s = check_state(r, from, param, layer);
    if (!t || s != NDRT_OK)
        return s;
    ndrt_walk w = ndrt_walk_param(p, r->rank, param, layer);
    while (ndrt_walk_next(&w))
        ndrt_st_floats(t, w.global, w.length, x + w.local);
    return NDRT_OK;
}

static ndrt_status load_param(ndrt_rank *r, source *from, int param, int kind)
{
    const ndrt_program *p = r->program;
    ndrt_status s = NDRT_OK;

    if (!p->params[param].nlayers)
        return load_tensor(r, from, param, -1, kind);
    for (int64_t i = 0; i < ndrt_layer_count(p, param) && s == NDRT_OK; i++) {
        ndrt_walk w = ndrt_walk_param(p, r->rank, param, i);
        if (ndrt_walk_next(&w))
            s = load_tensor(r, from, param, i, kind);
    }
    return s;
}

static ndrt_status load_counts(ndrt_rank *r, source *from, int64_t counts[2])
{
    ndrt_status s = NDRT_OK;
    const ndrt_st_tensor *t = find(r, from, ndrt_counts_name, &s);
    float x[4] = {0};

    if (t && t->naxes == 1 && t->shape[0] == 4)
        ndrt_st_floats(t, 0, 4, x);
    else if (t)
        add_missing(&from->m, ndrt_counts_name);
    if (s != NDRT_OK)
        return s;
    for (int i = 0; i < 4; i++)
        if (!(x[i] >= 0 && x[i] < NDRT_HALF) || x[i] != floorf(x[i]))
            return ndrt_fail(r, NDRT_EINPUT, "\"%s\": \"%s\" holds no counts",
                             from->path, ndrt_counts_name);
    for (int i = 0; i < 2; i++)
        counts[i] = (int64_t)x[2 * i] * NDRT_HALF + (int64_t)x[2 * i + 1];
    return NDRT_OK;
}

static ndrt_status load_kind(ndrt_rank *r, source *from, int kind)
{
    const ndrt_program *p = r->program;
    ndrt_status s = NDRT_OK;

    for (int i = 0; i < p->nparams && s == NDRT_OK; i++)
        if (ndrt_weights_at(p, r->device, i) != NDRT_NONE &&
            ndrt_has_kind(r, i, kind) &&
            (from->all || p->params[i].load))
            s = load_param(r, from, i, kind);
    return s;
}

/* Kinds 0 .. kinds - 1 of the parameters. */
static ndrt_status load_file(ndrt_rank *r, source *from, int kinds,
                             int64_t counts[2])
{
    char error[sizeof r->state->error];
    ndrt_status s = ndrt_st_open(&from->f, from->path, error, sizeof error);

    if (s != NDRT_OK)
        return ndrt_fail(r, s, "%s", error);
    if (counts)
        s = load_counts(r, from, counts);
    if (counts && s == NDRT_OK)
        s = ndrt_notes_heed(r, &from->f, from->path, counts[0]);
    for (int kind = 0; kind < kinds && s == NDRT_OK; kind++) {
        s = load_kind(r, from, kind);
        if (kind && (kind != NDRT_BEFORE || ndrt_behind(r)))
            ndrt_take_state(r, kind);
    }
    if (s == NDRT_OK && from->m.n > 0)
        s = ndrt_fail(r, NDRT_EINPUT, "\"%s\" lacks %d of the parameters: "
                      "%s%s", from->path, from->m.n, from->m.text,
                      from->m.n > 3 ? ", ..." : "");
    ndrt_st_close(&from->f);
    return s;
}

ndrt_status ndrt_load(ndrt_rank *r)
{
    const ndrt_config *c = r->state->config;
    source from = {.path = c->train.load_path, .all = c->load_all,
                   .below = c->load_all ? NULL : c->train.load_prefix};

    return load_file(r, &from, 1, NULL);
}

ndrt_status ndrt_load_all(ndrt_rank *r, const char *path, int64_t counts[2])
{
    source from = {.path = path, .all = true, .goes_on = true};

    return load_file(r, &from, NDRT_NKINDS, counts);
}
