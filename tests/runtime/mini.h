/* mini.h - a small hand-written program in the form that the compiler emits,
 * for any mesh (pp, dp, tp) with pp <= 2, any microbatches, with ZeRO-1 or not.
 *
 *     x: f32[batch, d]; e: [d]; w: [layers, d]          all elementwise
 *     y = x * e * w[0] * w[1] * w[2] * e                e is tied
 *     loss = sum[batch, d](y^2) / batch
 *
 * d is cut over tp, batch over dp and microbatches, layers over pp as 2 + 1.
 * Sizes (6, 5, 3) do not divide by most meshes. Of a rank's threads the first
 * does it all.
 */
#ifndef MINI_H
#define MINI_H

#include "ndrt_internal.h"

#include <string.h>

enum { MINI_BATCH = 6, MINI_D = 5, MINI_LAYERS = 3 };
enum { MB_ROWS, MB_MICRO, MB_D, MB_LAYERS, MB_WHOLE, MB_NEXTENTS };

typedef struct mini {
    ndrt_program p;
    int mesh_size[3];
    ndrt_extent extents[MB_NEXTENTS];
    ndrt_param params[2];
    ndrt_bucket buckets[2];
    ndrt_tensor input;
    ndrt_device devices[2];
    ndrt_stage stages[2];
    ndrt_place places[2][2];
    size_t weights[2][2], grads[2][2], inputs[2][1];
    char rows[2][1024];
    const char *schedule[2];
    uint32_t groups[1];
    int64_t bounds[3];
} mini;

/* Where things lie in the arena, in floats; the same on both stages. */
enum {
    AT_LOSS = 0, AT_E = 16, AT_W = 32, AT_GE = 64, AT_GW = 80, AT_SE = 112,
    AT_SW = 144, AT_X = 208, AT_U = 256, AT_OUT = 512, AT_DOUT = 768,
    MINI_FLOATS = 1024, MINI_BLOCK = 32
};

static inline float *mini_at(const ndrt_rank *r, int at)
{
    return (float *)(void *)r->arena + at;
}

static inline int64_t mini_cap(const ndrt_rank *r)
{
    return r->program->params[0].cap[0];
}

/* Product of this stage's layers but `skip` at local element j. */
static inline float mini_layers(const ndrt_rank *r, int64_t j, int64_t skip)
{
    float p = 1.0f;

    for (int64_t l = 0; l < r->n[MB_LAYERS]; l++)
        if (l != skip)
            p *= mini_at(r, AT_W)[l * mini_cap(r) + j];
    return p;
}

static inline bool mini_first(const ndrt_rank *r)
{
    return r->stage == 0;
}

static inline bool mini_last(const ndrt_rank *r)
{
    return r->stage == r->program->nstages - 1;
}

/* x of the microbatch's row i at local element j. */
static inline float mini_x(const ndrt_rank *r, int64_t i, int64_t j)
{
    int64_t row = r->off[MB_MICRO] - r->off[MB_ROWS] + i;

    return mini_at(r, AT_X)[row * MINI_D + r->off[MB_D] + j];
}

static inline void mini_forward(ndrt_rank *r)
{
    int64_t rows = r->n[MB_MICRO], nd = r->n[MB_D];
    float *u = mini_at(r, AT_U) + r->mb * MINI_BLOCK, sum = 0.0f;
    float *h = mini_at(r, AT_OUT) + r->mb * MINI_BLOCK;

    for (int64_t i = 0; i < rows && r->thread == 0; i++) {
        for (int64_t j = 0; j < nd; j++) {
            if (mini_first(r))
                u[i * nd + j] = mini_x(r, i, j) * mini_at(r, AT_E)[j];
            h[i * nd + j] = u[i * nd + j] * mini_layers(r, j, -1);
            float y = h[i * nd + j] * mini_at(r, AT_E)[j];
            sum += y * y / MINI_BATCH;
        }
    }
    if (!mini_last(r))
        return;
    ndrt_all_reduce(r, 0, &sum, 1, false);
    if (r->thread == 0)
        *mini_at(r, AT_LOSS) += sum;
}

static inline void mini_backward(ndrt_rank *r)
{
    int64_t rows = r->n[MB_MICRO], nd = r->n[MB_D];
    const float *u = mini_at(r, AT_U) + r->mb * MINI_BLOCK;
    float *h = mini_at(r, AT_OUT) + r->mb * MINI_BLOCK;
    float *d = mini_at(r, AT_DOUT) + r->mb * MINI_BLOCK;

    for (int64_t i = 0; i < rows && r->thread == 0; i++) {
        for (int64_t j = 0; j < nd; j++) {
            int64_t at = i * nd + j;
            float e = mini_at(r, AT_E)[j], dh = d[at];
            if (mini_last(r)) {
                float dy = 2.0f * h[at] * e / MINI_BATCH;
                mini_at(r, AT_GE)[j] += dy * h[at];
                dh = dy * e;
            }
            for (int64_t l = 0; l < r->n[MB_LAYERS]; l++)
                mini_at(r, AT_GW)[l * mini_cap(r) + j] +=
                    dh * u[at] * mini_layers(r, j, l);
            d[at] = dh * mini_layers(r, j, -1);
            if (mini_first(r))
                mini_at(r, AT_GE)[j] += d[at] * mini_x(r, i, j);
        }
    }
}

static inline size_t mini_bytes(const ndrt_rank *r)
{
    return (size_t)(r->n[MB_MICRO] * r->n[MB_D]) * sizeof(float);
}

static inline void mini_send_f(ndrt_rank *r)
{
    ndrt_send(r, r->stage + 1, mini_at(r, AT_OUT) + r->mb * MINI_BLOCK,
              mini_bytes(r));
}

static inline void mini_recv_f(ndrt_rank *r)
{
    ndrt_recv(r, r->stage - 1, mini_at(r, AT_U) + r->mb * MINI_BLOCK,
              mini_bytes(r));
}

static inline void mini_send_b(ndrt_rank *r)
{
    ndrt_send(r, r->stage - 1, mini_at(r, AT_DOUT) + r->mb * MINI_BLOCK,
              mini_bytes(r));
}

static inline void mini_recv_b(ndrt_rank *r)
{
    ndrt_recv(r, r->stage + 1, mini_at(r, AT_DOUT) + r->mb * MINI_BLOCK,
              mini_bytes(r));
}

/* All forwards, then all backwards. */
static inline void mini_schedule(mini *m, int s)
{
    char *row = m->rows[s];
    int n = 0, room = sizeof m->rows[s];
    bool first = s == 0, last = s == m->p.nstages - 1;

    for (int b = 0; b < m->p.nmicro; b++) {
        if (!first)
            n += snprintf(row + n, (size_t)(room - n), "%dRECV_F%d ", s, b);
        n += snprintf(row + n, (size_t)(room - n), "%dF%d ", s, b);
        if (!last)
            n += snprintf(row + n, (size_t)(room - n), "%dSEND_F%d ", s, b);
    }
    for (int b = 0; b < m->p.nmicro; b++) {
        if (!last)
            n += snprintf(row + n, (size_t)(room - n), "%dRECV_B%d ", s, b);
        n += snprintf(row + n, (size_t)(room - n), "%dB%d ", s, b);
        if (!first)
            n += snprintf(row + n, (size_t)(room - n), "%dSEND_B%d ", s, b);
    }
    row[n - 1] = 0;
    m->schedule[s] = row;
}

static inline void mini_stage(mini *m, int s)
{
    const size_t f = sizeof(float);

    m->weights[s][0] = AT_E * f;
    m->weights[s][1] = AT_W * f;
    m->grads[s][0] = AT_GE * f;
    m->grads[s][1] = AT_GW * f;
    m->inputs[s][0] = s == 0 ? AT_X * f : NDRT_NONE;
    m->places[s][0] = (ndrt_place){0, AT_E * f, AT_GE * f, AT_SE * f,
                                   (AT_SE + 16) * f};
    m->places[s][1] = (ndrt_place){1, AT_W * f, AT_GW * f, AT_SW * f,
                                   (AT_SW + 32) * f};
    static const int cleared[] = {0, 1};     /* backward only adds */
    m->devices[s] = (ndrt_device){
        .fixed_bytes = MINI_FLOATS * f, .nplaces = 2, .places = m->places[s],
        .ncleared = 2, .cleared = cleared,
        .inputs = m->inputs[s],
        .loss = s == m->p.nstages - 1 ? AT_LOSS * f : NDRT_NONE};
    m->stages[s] = (ndrt_stage){
        .device = s, .slot_bytes = {4 * MINI_D},
        .weights = m->weights[s], .grads = m->grads[s],
        .run = {[NDRT_F] = mini_forward, [NDRT_B] = mini_backward,
                [NDRT_SEND_F] = mini_send_f, [NDRT_RECV_F] = mini_recv_f,
                [NDRT_SEND_B] = mini_send_b, [NDRT_RECV_B] = mini_recv_b}};
    mini_schedule(m, s);
}

static inline void mini_params(mini *m, int pp, int dp, int tp, bool zero)
{
    static const int e_only[] = {0}, w_only[] = {1};
    int64_t cap = (MINI_D + tp - 1) / tp;
    uint32_t devices = pp > 1 ? 3 : 1, bit_dp = 2, bit_tp = 4;

    m->params[0] = (ndrt_param){
        .name = "e", .naxes = 1, .extent = {MB_D}, .cap = {cap},
        .init = NDRT_INIT_UNIFORM, .init_arg = 1.5, .devices = devices};
    m->params[1] = (ndrt_param){
        .name = "layers.a.w", .naxes = 2, .extent = {MB_LAYERS, MB_D},
        .cap = {pp > 1 ? 2 : 3, cap}, .nlayers = 1, .layer_at = {6},
        .init = NDRT_INIT_NORMAL, .init_arg = 1.0, .decay = true,
        .devices = devices};
    for (int b = 0; b < 2; b++) {
        int64_t n = b == 0 ? cap : m->params[1].cap[0] * cap;
        n = zero ? (n + dp - 1) / dp * dp : n;
        m->buckets[b] = (ndrt_bucket){
            .nparams = 1, .params = b ? w_only : e_only, .n = (size_t)n,
            .sum = bit_dp, .cut = bit_tp | (b ? 1u : 0),
            .zero = zero ? bit_dp : 0, .devices = devices, .decay = b == 1};
    }
}

/* Mesh axes are 0 pp, 1 dp, 2 tp. */
static inline const ndrt_program *mini_make(mini *m, int pp, int dp, int tp,
                                            int micro, bool zero)
{
    static const char *const names[] = {"pp", "dp", "tp"};

    memset(m, 0, sizeof *m);
    memcpy(m->mesh_size, (int[]){pp, dp, tp}, sizeof m->mesh_size);
    m->bounds[0] = 0;
    m->bounds[1] = pp > 1 ? 2 : 3;
    m->bounds[2] = 3;
    m->extents[MB_ROWS] = (ndrt_extent){"batch/dp", MINI_BATCH, 1, {1}, NULL};
    m->extents[MB_MICRO] = (ndrt_extent){"batch/(dp,micro)", MINI_BATCH, 2,
                                         {1, NDRT_MICRO}, NULL};
    m->extents[MB_D] = (ndrt_extent){"d/tp", MINI_D, 1, {2}, NULL};
    m->extents[MB_LAYERS] = (ndrt_extent){"layers/pp", MINI_LAYERS, 1, {0},
                                          m->bounds};
    m->extents[MB_WHOLE] = (ndrt_extent){"d", MINI_D, 0, {0}, NULL};
    mini_params(m, pp, dp, tp, zero);
    m->input = (ndrt_tensor){
        .name = "x", .dtype = NDRT_F32, .naxes = 2, .axis = {"batch", "d"},
        .extent = {MB_ROWS, MB_WHOLE},
        .cap = {(MINI_BATCH + dp - 1) / dp, MINI_D}};
    m->groups[0] = 4;
    m->p = (ndrt_program){
        .name = "mini", .source = "mini.nd", .nmesh = 3, .mesh_name = names,
        .mesh_size = m->mesh_size, .pipe = 0, .zero = zero ? 1 : -1,
        .nmicro = micro, .sample_extent = MB_ROWS, .sample_axis = "batch",
        .nextents = MB_NEXTENTS, .extents = m->extents, .nparams = 2,
        .params = m->params, .nbuckets = 2, .buckets = m->buckets,
        .ninputs = 1, .inputs = &m->input, .ndevices = pp,
        .devices = m->devices, .nstages = pp, .stages = m->stages,
        .schedule_name = "gpipe", .schedule = m->schedule,
        .ngroups = 1, .groups = m->groups,
        .loss_sum = 2,
        .train = {.data = NDRT_DATA_SYNTHETIC, .opt = NDRT_SGD, .lr = 0.1,
                  .steps = 4, .seed = 7, .clip = 0.5, .beta1 = 0.9,
                  .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}};
    for (int s = 0; s < pp; s++)
        mini_stage(m, s);
    return &m->p;
}

#endif
