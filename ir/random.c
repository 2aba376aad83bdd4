/* random.c - counter-based random numbers and initial values.
 *
 * The same definitions as runtime/ndrt_math.h and the runtime's parameters,
 * written a second time: the compiler includes nothing of the runtime, and two
 * independent versions of a definition check each other. A number is a pure
 * function of (seed, global element index, step, stream), so it does not
 * depend on the mesh.
 */
#include "priv.h"

#include <math.h>

typedef struct words {
    uint32_t w[4];
} words;

/* One round of Philox4x32: two 32x32 products, their halves crossed over. */
static words mix(words c, uint32_t key_lo, uint32_t key_hi)
{
    uint64_t p = (uint64_t)c.w[0] * 0xD2511F53u;
    uint64_t q = (uint64_t)c.w[2] * 0xCD9E8D57u;
    return (words){{
        (uint32_t)(q >> 32) ^ c.w[1] ^ key_lo,
        (uint32_t)q,
        (uint32_t)(p >> 32) ^ c.w[3] ^ key_hi,
        (uint32_t)p,
    }};
}

void nd_philox_draw(uint64_t seed, uint64_t index, uint32_t step,
                    uint32_t stream, uint32_t out[2])
{
    words c = {{(uint32_t)index, (uint32_t)(index >> 32), step, stream}};
    uint32_t lo = (uint32_t)seed, hi = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        c = mix(c, lo, hi);
        lo += 0x9E3779B9u;           /* golden ratio */
        hi += 0xBB67AE85u;           /* sqrt(3) - 1 */
    }
    out[0] = c.w[0];
    out[1] = c.w[1];
}

uint32_t nd_stream(const char *name, int64_t iteration)
{
    uint64_t h = nd_hash(name);
    return (uint32_t)(h ^ h >> 32) + 0x9e3779b9u * (uint32_t)(iteration + 1);
}

double nd_normal_of(const uint32_t c[2])
{
    double u = ((double)(c[0] >> 8) + 1) * 0x1p-24;
    double v = (double)(c[1] >> 8) * 0x1p-24;
    return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
}

static double draw(const nd_param *p, const uint32_t c[2])
{
    double bound = p->init_arg;
    switch (p->init) {
    case INIT_ZEROS:
        return 0;
    case INIT_ONES:
        return 1;
    case INIT_CONST:
        return p->init_arg;
    case INIT_NORMAL:
        return p->init_arg * nd_normal_of(c);
    case INIT_KAIMING:
        return sqrt(2.0 / (double)p->fan_in) * nd_normal_of(c);
    case INIT_XAVIER:
        bound = sqrt(6.0 / (double)(p->fan_in + p->fan_out));
        break;
    case INIT_UNIFORM:
        break;
    }
    return bound * (2 * ((double)(c[0] >> 8) * 0x1p-24) - 1);
}

nd_tensor *nd_eval_init(nd_module *m, const nd_param *p, uint64_t seed)
{
    nd_tensor *t = ev_tensor(m->ctx->arena, &p->value->type);
    uint32_t stream = nd_stream(p->name, -1), c[2];
    for (int64_t i = 0; i < t->n; i++) {
        nd_philox_draw(seed, (uint64_t)i, 0, stream, c);
        t->v[i] = (float)draw(p, c);
    }
    return t;
}
