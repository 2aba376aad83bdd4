/* shard_rules.c - from the plan's rules to the cut of a list of axes.
 *
 * Rules are walked in priority order; a rule applies if one of the axes is its
 * axis and its mesh axis is still free. `batch -> dp, heads -> tp, seq -> tp`:
 *
 *   [batch, seq, d]         -> [batch/dp, seq/tp, d]
 *   [batch, heads, seq, kv] -> [batch/dp, heads/tp, seq, kv]
 *
 * That order *is* tensor parallelism with sequence parallelism.
 */
#include "shard.h"

/* `axis kv = seq` follows seq's rules unless it has its own. */
static bool follows(const nd_module *m, const nd_axis *a, const nd_axis *lead)
{
    while (a && a != lead && !nd_rule_of(&m->plan, a))
        a = a->like;
    return a == lead;
}

/* A mesh axis of one rank cuts nothing. */
static void apply(const nd_mesh *mesh, const nd_rule *r, uint32_t *taken,
                  nd_cut *cut)
{
    for (int j = 0; j < r->mesh.n; j++) {
        uint32_t bit = 1u << r->mesh.m[j];
        if ((*taken & bit) || cut->n == ND_MAX_CUT ||
            mesh->size[r->mesh.m[j]] == 1)
            continue;
        cut->m[cut->n++] = r->mesh.m[j];
        *taken |= bit;
    }
}

void nd_sh_walk(const nd_module *m, int n, nd_axis *const *axes,
                uint32_t taken, nd_phase phase, nd_cut *cut)
{
    for (int i = 0; i < n; i++)
        cut[i] = (nd_cut){0};
    for (int i = 0; i < n; i++)
        if (axes[i]->route) {        /* as it was made: see experts.c */
            cut[i] = nd_route_cut(axes[i]->route);
            taken |= nd_cut_bits(cut[i]);
        }
    for (int k = 0; k < m->plan.rules.n; k++) {
        const nd_rule *r = &m->plan.rules.v[k];
        if (r->scope != SCOPE_ALL)
            continue;
        for (int i = 0; i < n; i++)
            if (axes[i] == r->axis)
                apply(&m->mesh, r, &taken, &cut[i]);
        for (int i = 0; i < n; i++)
            if (axes[i] != r->axis && follows(m, axes[i], r->axis))
                apply(&m->mesh, r, &taken, &cut[i]);
    }
    if (phase == PH_PRE || m->plan.microbatches == 1)
        return;
    for (int i = 0; i < n; i++)
        if (axes[i] == m->sample && cut[i].n < ND_MAX_CUT)
            cut[i].m[cut[i].n++] = (uint8_t)m->mesh.micro;
}

nd_type nd_sh_home(const nd_module *m, const nd_type *t, nd_phase phase)
{
    nd_type h = *t;
    h.sum = h.max = 0;
    nd_sh_walk(m, h.rank, h.axis, 0, phase, h.cut);
    return h;
}
