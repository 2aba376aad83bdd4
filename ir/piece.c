/* piece.c - what the ranks of a mesh hold of a value, stage by stage.
 *
 *   f32[layers, d/tp], 4 layers on 2 stages, d = 5 over tp = 2
 *     rank (pp 1, tp 0)   layers 2 .. 3, d 0 .. 2
 *     rank (pp 1, tp 1)   layers 2 .. 3, d 3 .. 4
 */
#include "priv.h"

static int piped_index(const nd_module *m, const nd_axis *a)
{
    int i = m->plan.piped.n - 1;
    while (i >= 0 && m->plan.piped.v[i] != a)
        i--;
    return i;
}

bool nd_is_piped(const nd_module *m, const nd_axis *a)
{
    return piped_index(m, a) >= 0;
}

bool nd_stage_has(const nd_stage *st, const nd_param *p)
{
    for (int i = 0; i < st->params.n; i++)
        if (st->params.v[i] == p)
            return true;
    return false;
}

bool nd_stage_range(const nd_module *m, int stage, const nd_axis *a,
                    int64_t *lo, int64_t *hi)
{
    int i = m->program && stage >= 0 ? piped_index(m, a) : -1;
    *lo = i < 0 ? 0 : m->program->stage[stage].iters[i].lo;
    *hi = i < 0 ? a->size : m->program->stage[stage].iters[i].hi;
    return i >= 0;
}

int64_t nd_range_max(const nd_module *m, const nd_axis *a)
{
    int64_t most = 0;
    for (int s = 0; s < m->program->nstages; s++) {
        int64_t lo, hi;
        nd_stage_range(m, s, a, &lo, &hi);
        most = hi - lo > most ? hi - lo : most;
    }
    return most;
}

int64_t nd_range_at(const nd_module *m, int stage, const nd_axis *a)
{
    const nd_program *p = m->program;
    int64_t at = 0, lo, hi;
    for (int s = 0; s < stage; s++)
        if (p->stage[s].device == p->stage[stage].device &&
            nd_stage_range(m, s, a, &lo, &hi))
            at += hi - lo;
    return at;
}

int64_t nd_device_max(const nd_module *m, const nd_axis *a)
{
    int64_t most = 0;
    for (int s = 0; s < m->program->nstages; s++) {
        int64_t lo, hi, at = nd_range_at(m, s, a);
        nd_stage_range(m, s, a, &lo, &hi);
        most = at + hi - lo > most ? at + hi - lo : most;
    }
    return most;
}

/* A stage holds its own iterations of the pipelined axes. */
nd_piece ev_piece_at(const nd_module *m, nd_arena *a, const nd_type *t,
                     const int *coord, int stage)
{
    nd_piece p = {.count = 1};
    for (int i = 0; i < t->rank; i++) {
        int64_t hi;
        if (!t->cut[i].n &&
            nd_stage_range(m, stage, t->axis[i], &p.off[i], &hi))
            p.n[i] = hi - p.off[i];
        else
            nd_extent(&m->mesh, t->axis[i]->size, t->cut[i], coord, &p.off[i],
                      &p.n[i]);
        p.count *= p.n[i];
    }
    p.v = ND_NEWN(a, double, p.count + 1);
    return p;
}

int nd_device_of(const nd_module *m, int rank)
{
    int coord[ND_MAX_MESH] = {0};
    if (!m->program || m->mesh.pipe < 0)
        return 0;
    nd_mesh_coords(&m->mesh, rank, coord);
    return coord[m->mesh.pipe];
}

nd_piece nd_piece_new(const nd_module *m, nd_arena *a, const nd_type *t,
                      int rank, int stage)
{
    int coord[ND_MAX_MESH] = {0};
    nd_mesh_coords(&m->mesh, rank, coord);
    return ev_piece_at(m, a, t, coord, stage);
}

void nd_piece_fill(nd_piece *p, const nd_tensor *whole)
{
    nd_piece from = ev_whole(whole);
    ev_overlap(&from, p, whole->rank, false);
}
