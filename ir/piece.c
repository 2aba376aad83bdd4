/* piece.c - what the ranks of a mesh hold of a value.
 *
 *   f32[layers, d/tp], 4 layers on 2 stages, d = 5 over tp = 2
 *     rank (pp 1, tp 0)   layers 2 .. 3, d 0 .. 2
 *     rank (pp 1, tp 1)   layers 2 .. 3, d 3 .. 4
 */
#include "priv.h"

/* A stage holds its own iterations of the pipelined axis. */
nd_piece ev_piece_at(const nd_module *m, nd_arena *a, const nd_type *t,
                     const int *coord, const nd_stage *stage)
{
    nd_piece p = {.count = 1};
    for (int i = 0; i < t->rank; i++) {
        if (stage && t->axis[i] == m->plan.pipe_axis && !t->cut[i].n) {
            p.off[i] = stage->lo;
            p.n[i] = stage->hi - stage->lo;
        } else {
            nd_extent(&m->mesh, t->axis[i]->size, t->cut[i], coord, &p.off[i],
                      &p.n[i]);
        }
        p.count *= p.n[i];
    }
    p.v = ND_NEWN(a, double, p.count + 1);
    return p;
}

int nd_stage_of(const nd_module *m, int rank)
{
    int coord[ND_MAX_MESH] = {0};
    if (!m->program || m->mesh.pipe < 0)
        return 0;
    nd_mesh_coords(&m->mesh, rank, coord);
    return coord[m->mesh.pipe];
}

nd_piece nd_piece_new(const nd_module *m, nd_arena *a, const nd_type *t,
                      int rank)
{
    int coord[ND_MAX_MESH] = {0};
    nd_mesh_coords(&m->mesh, rank, coord);
    return ev_piece_at(m, a, t, coord,
                       m->program ? &m->program->stage[nd_stage_of(m, rank)]
                                  : NULL);
}

void nd_piece_fill(nd_piece *p, const nd_tensor *whole)
{
    nd_piece from = ev_whole(whole);
    ev_overlap(&from, p, whole->rank, false);
}
