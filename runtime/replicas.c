/* replicas.c - do all copies of each parameter hold the same bits?
 *
 * A rank says of every parameter which piece it holds and what is in it, as two
 * hashes; ranks with the same piece must have the same contents. The order of
 * additions is fixed and every copy makes the same update, so there is no
 * rounding to allow for: a difference means that a copy missed a message.
 */
#include "ndrt_internal.h"

#include <string.h>

enum { PIECE, CONTENT, NHASHES };

static uint64_t add_bytes(uint64_t h, const void *x, size_t n)
{
    const unsigned char *b = x;

    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

/* Both are 0 on a rank that holds nothing. */
static void hash_param(const ndrt_rank *r, int param, uint64_t hash[NHASHES])
{
    const ndrt_program *p = r->program;
    bool held = ndrt_weights_at(p, r->device, param) != NDRT_NONE;
    const float *x = held ? ndrt_tensor_at(r, param, 0) : NULL;
    ndrt_walk w = ndrt_walk_param(p, r->rank, param, -1);

    memset(hash, 0, NHASHES * sizeof *hash);
    while (held && ndrt_walk_next(&w)) {
        const int64_t run[] = {w.global, w.length};
        hash[PIECE] = add_bytes(hash[PIECE] + 1, run, sizeof run);
        hash[CONTENT] = add_bytes(hash[CONTENT] + 1, x + w.local,
                                  (size_t)w.length * sizeof *x);
    }
}

static ndrt_status compare(ndrt_rank *r, int param, const uint64_t *all)
{
    for (int q = 1; q < r->state->world.n; q++) {
        const uint64_t *mine = all + q * NHASHES;
        for (int k = 0; k < q; k++) {
            const uint64_t *other = all + k * NHASHES;
            if (other[PIECE] == mine[PIECE] && other[CONTENT] != mine[CONTENT])
                return ndrt_fail(r, NDRT_EINTERNAL, "the copies of \"%s\" on "
                                 "ranks %d and %d differ",
                                 r->program->params[param].name, k, q);
        }
    }
    return NDRT_OK;
}

ndrt_status ndrt_check_replicas(ndrt_rank *r)
{
    ndrt_status s = NDRT_OK;

    for (int i = 0; i < r->program->nparams && s == NDRT_OK; i++) {
        uint64_t hash[NHASHES];
        double bits[NHASHES];
        hash_param(r, i, hash);
        memcpy(bits, hash, sizeof bits);
        s = ndrt_gather_doubles(r, bits, NHASHES);
        if (s == NDRT_OK)
            s = compare(r, i, (const uint64_t *)(const void *)r->state->all);
    }
    return s;
}
