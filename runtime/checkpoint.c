/* checkpoint.c - how parameters and their state are called in a file, and where
 * they lie in memory meanwhile; load.c and save.c move them.
 *
 * A file is in global form: one tensor per parameter, one per index for those
 * inside a `repeat`. It does not show how the program that wrote it was cut.
 *
 * Optimizer state goes the same way, as "optimizer.1.wte": for that it takes
 * the place of the gradients, which no one needs between two steps, and there
 * it is whole again where `zero` cuts it. So do the weights before the last
 * update, "before.wte", where a step runs on those (versions.c).
 */
#include "ndrt_internal.h"

#include <stdlib.h>
#include <string.h>

int64_t ndrt_layer_count(const ndrt_program *p, int param)
{
    const ndrt_param *q = &p->params[param];
    int64_t n = 1;

    for (int a = 0; a < q->nlayers; a++)
        n *= p->extents[q->extent[a]].size;
    return n;
}

char *ndrt_layer_name(const ndrt_program *p, int param, int64_t layer,
                      const char *prefix)
{
    const ndrt_param *q = &p->params[param];
    enum { DIGITS = 21 };            /* of an index, with its dot */
    size_t n = strlen(prefix) + strlen(q->name) + 1 +
               (size_t)q->nlayers * DIGITS;
    char *s = malloc(n);
    size_t to = 0;
    int from = 0;
    int64_t below = ndrt_layer_count(p, param);

    if (!s)
        return NULL;
    to = (size_t)snprintf(s, n, "%s", prefix);
    for (int a = 0; a < q->nlayers && layer >= 0; a++) {
        below /= p->extents[q->extent[a]].size;
        to += (size_t)snprintf(s + to, n - to, "%.*s.%lld",
                               q->layer_at[a] - from, q->name + from,
                               (long long)(layer / below));
        layer %= below;
        from = q->layer_at[a];
    }
    snprintf(s + to, n - to, "%s", q->name + from);
    return s;
}

/* The shape of one tensor in the file. */
int ndrt_file_shape(const ndrt_program *p, int param,
                    int64_t shape[NDRT_MAX_RANK])
{
    const ndrt_param *q = &p->params[param];
    int n = 0;

    for (int a = q->nlayers; a < q->naxes; a++)
        shape[n++] = p->extents[q->extent[a]].size;
    return n;
}

/* ---- weights, and state in place of gradients -------------------------- */

const char *const ndrt_kind_prefix[] = {"", "optimizer.1.", "optimizer.2.",
                                        "before."};
const char ndrt_counts_name[] = "optimizer.counts";

/* How many arrays of state a parameter has. */
static int states_of(const ndrt_train *t, const ndrt_param *q)
{
    if (q->frozen)
        return 0;
    if (t->opt == NDRT_SGD)
        return t->momentum != 0.0;
    return t->opt == NDRT_LION || q->muon ? 1 : 2;
}

bool ndrt_has_kind(const ndrt_rank *r, int param, int kind)
{
    const ndrt_param *q = &r->program->params[param];

    return kind == NDRT_BEFORE
               ? ndrt_behind(r) != NULL
               : kind <= states_of(&r->state->config->train, q);
}

/* Where the parameter's weights (0), or its state, lie. */
float *ndrt_tensor_at(const ndrt_rank *r, int param, int kind)
{
    const ndrt_program *p = r->program;
    size_t at = kind ? ndrt_grads_at(p, r->device, param)
                     : ndrt_weights_at(p, r->device, param);

    return (float *)(void *)(r->arena + at);
}

/* Older weights lie as the newest do. */
static float *before_at(const ndrt_rank *r, const ndrt_place *pl)
{
    return (float *)(void *)(ndrt_behind(r) + pl->weights);
}

static float *state_at(const ndrt_rank *r, const ndrt_place *pl, int kind)
{
    size_t at = kind == 1   ? pl->state1
                : kind == 2 ? pl->state2
                            : NDRT_NONE;

    return at == NDRT_NONE ? NULL : (float *)(void *)(r->arena + at);
}

/* From state to gradients, and back. */
ndrt_status ndrt_show_state(ndrt_rank *r, int kind)
{
    const ndrt_device *here = ndrt_here(r);
    ndrt_status s = NDRT_OK;

    r->state->lent = true;
    for (int i = 0; i < here->nplaces && s == NDRT_OK; i++) {
        const ndrt_place *pl = &here->places[i];
        float *g = (float *)(void *)(r->arena + pl->grads);
        size_t from, n;
        if (kind == NDRT_BEFORE)
            memcpy(g, before_at(r, pl),
                   r->program->buckets[pl->bucket].n * sizeof *g);
        const float *x = state_at(r, pl, kind);
        if (!x)
            continue;
        ndrt_my_part(r, pl->bucket, &from, &n);
        memcpy(g + from, x, n * sizeof *g);
        s = ndrt_gather_parts(r, pl->bucket, g);
    }
    return s;
}

void ndrt_take_state(ndrt_rank *r, int kind)
{
    const ndrt_device *here = ndrt_here(r);

    r->state->lent = true;
    for (int i = 0; i < here->nplaces; i++) {
        const ndrt_place *pl = &here->places[i];
        const float *g = (const float *)(const void *)(r->arena + pl->grads);
        size_t from, n;
        if (kind == NDRT_BEFORE)
            memcpy(before_at(r, pl), g,
                   r->program->buckets[pl->bucket].n * sizeof *g);
        float *x = state_at(r, pl, kind);
        if (!x)
            continue;
        ndrt_my_part(r, pl->bucket, &from, &n);
        memcpy(x, g + from, n * sizeof *x);
    }
}
