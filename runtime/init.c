/* init.c - initial values of parameters. A value is a function of (seed, name,
 * global index), so it does not depend on how the tensor is cut, nor on which
 * thread makes it.
 */
#include "ndrt_internal.h"
#include "ndrt_math.h"

uint64_t ndrt_hash(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h;
}

uint32_t ndrt_stream(const char *name)
{
    uint64_t h = ndrt_hash(name);

    return (uint32_t)(h ^ h >> 32);
}

static float normal(double s, uint64_t seed, uint32_t stream, uint64_t index)
{
    return (float)(s * nd_gauss(seed, index, 0, stream));
}

static float uniform(double a, uint64_t seed, uint32_t stream, uint64_t index)
{
    double u = (double)nd_uniform(seed, index, 0, stream);

    return (float)(a * (2.0 * u - 1.0));
}

float ndrt_init_value(const ndrt_param *q, uint64_t seed, uint32_t stream,
                      uint64_t index)
{
    double in = (double)(q->fan_in > 0 ? q->fan_in : 1);
    double out = (double)(q->fan_out > 0 ? q->fan_out : 1);

    switch (q->init) {
    case NDRT_INIT_ZEROS:
        break;
    case NDRT_INIT_ONES:
        return 1.0f;
    case NDRT_INIT_CONST:
        return (float)q->init_arg;
    case NDRT_INIT_NORMAL:
        return normal(q->init_arg, seed, stream, index);
    case NDRT_INIT_UNIFORM:
        return uniform(q->init_arg, seed, stream, index);
    case NDRT_INIT_XAVIER:
        return uniform(sqrt(6.0 / (in + out)), seed, stream, index);
    case NDRT_INIT_KAIMING:
        return normal(sqrt(2.0 / in), seed, stream, index);
    }
    return 0.0f;
}

static void init_param(ndrt_rank *r, int param, uint64_t seed)
{
    const ndrt_program *p = r->program;
    const ndrt_param *q = &p->params[param];
    float *x = (float *)(void *)(r->arena +
                                 ndrt_weights_at(p, r->device, param));
    uint32_t stream = ndrt_stream(q->name);
    ndrt_walk w = ndrt_walk_param(p, r->rank, param, -1);
    int64_t all = ndrt_walk_count(&w), at = 0;

    for (; ndrt_walk_next(&w); at += w.length) {
        ndrt_span s = ndrt_share_run(r, all, at, w.length);
        for (int64_t j = s.from; j < s.to; j++)
            x[w.local + j] = ndrt_init_value(q, seed, stream,
                                             (uint64_t)(w.global + j));
    }
}

static void init_all(ndrt_rank *r, void *seed)
{
    for (int i = 0; i < r->program->nparams; i++)
        if (ndrt_weights_at(r->program, r->device, i) != NDRT_NONE)
            init_param(r, i, *(const uint64_t *)seed);
}

ndrt_status ndrt_init_params(ndrt_rank *r, uint64_t seed)
{
    return ndrt_together(r, init_all, &seed);
}
