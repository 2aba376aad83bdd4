/* stage_costs.c - seconds that stages and the messages between them take.
 *
 *   stage 0   F 1.2 ms   B 2.4 ms     ahead 30 us
 *   stage 1   F 1.5 ms   B 3.0 ms     back  30 us
 *
 * Sums over the lists of each stage, for the rank that has most; of a pipelined
 * repeat, the iterations that the stage has. What each stage makes for itself
 * counts on each.
 */
#include "passes.h"

static double list_seconds(const nd_module *m, int stage, nd_op *const *op,
                           int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double x = nd_op_seconds(m, &nd_default_cluster, op[i]);
        int64_t lo, hi;
        if (op[i]->kind == OP_REPEAT && op[i]->block == m->step &&
            nd_stage_range(m, stage, op[i]->axes[0], &lo, &hi))
            x *= (double)(hi - lo) / (double)op[i]->axes[0]->size;
        sum += x;
    }
    return sum;
}

/* Values follow each other as messages of their own. */
static double send_seconds(const nd_module *m, const nd_cross *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += nd_comm_seconds(&nd_default_cluster, &m->mesh, COMM_SEND,
                               1u << m->mesh.pipe, 2,
                               nd_local_bytes(&x[i].from->type, &m->mesh));
    return sum;
}

void nd_stage_costs(nd_module *m)
{
    nd_program *p = m->program;
    nd_arena *a = m->ctx->arena;
    int n = p->nstages;
    double *f = ND_NEWN(a, double, n), *in = ND_NEWN(a, double, n),
           *w = ND_NEWN(a, double, n), *ahead = ND_NEWN(a, double, n),
           *back = ND_NEWN(a, double, n);
    for (int s = 0; s < n; s++) {
        const nd_stage *st = &p->stage[s];
        f[s] = list_seconds(m, s, st->fwd.v, st->fwd.n);
        in[s] = list_seconds(m, s, st->bwd.v, st->bwd.n);
        w[s] = list_seconds(m, s, st->wgt.v, st->wgt.n);
        if (s + 1 < n && st->device != st[1].device)
            ahead[s] = send_seconds(m, st->send_fwd.v, st->send_fwd.n);
        if (s > 0 && st->device != st[-1].device)
            back[s] = send_seconds(m, st->send_bwd.v, st->send_bwd.n);
    }
    p->costs.f = f;
    p->costs.i = in;
    p->costs.w = w;
    p->costs.ahead = ahead;
    p->costs.back = back;
}
