/* async.c - schedules that change what is computed, and the weights of several
 * updates that go with them.
 *
 *   pipedream      an update after each microbatch; stage s of p holds p - s
 *                  versions of its weights
 *   pipedream_2bw  gradients of the weights before the last update; two
 *
 * The graph of a step knows nothing of it: which version an action reads is for
 * the runtime to choose (runtime/versions.c). Here is what cannot be run so.
 */
#include "passes.h"

bool nd_is_stashed(const nd_module *m)
{
    return m->loss && m->plan.schedule == SCHED_KIND_PIPEDREAM;
}

bool nd_is_behind(const nd_module *m)
{
    return m->loss && m->plan.schedule == SCHED_KIND_PIPEDREAM_2BW;
}

int nd_versions(const nd_module *m, int device)
{
    const nd_program *p = m->program;
    int most = nd_is_behind(m) ? 2 : 1;
    if (!nd_is_stashed(m))
        return most;
    int *of = ND_NEWN(m->ctx->arena, int, p->nmicro + 1);
    for (int s = 0; s < p->nstages; s++) {
        if (p->stage[s].device != device)
            continue;
        int n = sched_versions(p->sched, s, of);
        most = n > most ? n : most;
    }
    return most;
}

/* The ops of this phase that read parameters stand in no repeat. */
bool nd_prepares_weights(const nd_module *m, int stage)
{
    const nd_stage *st = &m->program->stage[stage];
    for (int i = 0; i < st->pre.n; i++) {
        const nd_op *op = st->pre.v[i];
        for (int k = 0; k < op->nin; k++) {
            const nd_op *from = op->in[k]->def;
            if (from && from->kind == OP_PARAM && !from->param->frozen)
                return true;
        }
    }
    return false;
}

/* ---- what cannot be ------------------------------------------------------ */

static bool has_updates(const nd_module *m)
{
    const sched *x = m->program->sched;
    for (int d = 0; d < x->ranks; d++)
        for (int i = 0; i < x->row[d].n; i++)
            if (x->row[d].v[i].op == SCHED_U)
                return true;
    return false;
}

/* The stages that use a parameter, as bits of their devices. */
static uint32_t devices_of(const nd_module *m, const nd_param *q)
{
    const nd_program *p = m->program;
    uint32_t set = 0;
    for (int s = 0; s < p->nstages; s++)
        for (int i = 0; i < p->stage[s].params.n; i++)
            if (p->stage[s].params.v[i] == q)
                set |= 1u << p->stage[s].device;
    return set;
}

static bool is_cut_in_stages(const nd_module *m, const nd_param *q)
{
    for (int i = 0; i < q->nlayers; i++)
        if (nd_is_piped(m, q->layer[i].axis))
            return true;
    return false;
}

static bool check_tied(nd_module *m)
{
    bool ok = true;
    for (int i = 0; i < m->params.n; i++) {
        const nd_param *q = m->params.v[i];
        uint32_t set = devices_of(m, q);
        if (q->frozen || is_cut_in_stages(m, q) || !(set & (set - 1)))
            continue;
        nd_error(m->ctx, q->loc, "\"%s\" is used on several stages, which "
                 "`pipedream` updates at different times: its copies would "
                 "part", q->name);
        nd_note(m->ctx, m->plan.schedule_loc, "the schedule is here; with "
                "`pipedream_2bw` parameters may be shared");
        ok = false;
    }
    return ok;
}

bool nd_async_check(nd_module *m)
{
    const nd_program *p = m->program;
    sched_error e = {.rank = -1};
    if (m->plan.schedule != SCHED_KIND_PIPEDREAM && has_updates(m)) {
        sched_fail(&e, -1, 0, "%s updates weights on its way (U), which "
                   "changes what is computed: that is for `schedule = "
                   "pipedream`", p->sched->name);
        return nd_schedule_error(m->ctx, m->plan.schedule_loc, "schedule",
                                 p->sched, &e);
    }
    if (!nd_is_stashed(m))
        return true;
    for (int s = 0; s < p->nstages; s++)
        if (!sched_check_versions(p->sched, s,
                                  nd_versions(m, p->stage[s].device), &e))
            return nd_schedule_error(m->ctx, m->plan.schedule_loc, "schedule",
                                     p->sched, &e);
    return check_tied(m);
}
