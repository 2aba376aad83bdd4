/* eval_run.c - who runs what, when: microbatches, stages, the schedule.
 *
 * Without a pipeline: PRE ops once, then per microbatch all others. With one:
 * each device follows its row of actions; a message is a rendezvous, so a
 * sender waits until its neighbour stands at the matching receive. When no
 * device can move, the schedule deadlocks and that is an error. Before there is
 * a schedule, all stages run forward in order and then backward in reverse.
 */
#include "priv.h"

#include <string.h>

/* ---- one stage ----------------------------------------------------------- */

static void enter(ev_stage *s, int mb)
{
    s->micro = mb;
    for (int r = 0; r < s->nranks; r++)
        s->coord[r][s->w->m->mesh.micro] = mb;
    if (!s->mb[mb])
        s->mb[mb] = ev_frame_new(s->base);
    s->cur = s->mb[mb];
}

static void leave(ev_stage *s, bool forget)
{
    s->cur = s->base;
    if (!forget)
        return;
    ev_frame_free(s->mb[s->micro]);
    s->mb[s->micro] = NULL;
}

static bool run_list(ev_stage *s, nd_op *const *op, int n)
{
    for (int i = 0; i < n; i++)
        if (!ev_run(s, op[i]))
            return false;
    return true;
}

static void keep_loss(ev_stage *s)
{
    const nd_value *l = s->w->m->loss;
    const ev_piece *p = l ? ev_find(s, l) : NULL;
    if (p)
        ev_keep(s, &s->w->loss, &l->type, p);
}

static bool forward(ev_stage *s, int mb)
{
    enter(s, mb);
    if (!run_list(s, s->plan->fwd.v, s->plan->fwd.n))
        return false;
    keep_loss(s);
    leave(s, false);
    return true;
}

static bool backward(ev_stage *s, int mb)
{
    enter(s, mb);
    return run_list(s, s->plan->bwd.v, s->plan->bwd.n);
}

static bool weights(ev_stage *s, int mb)
{
    enter(s, mb);
    return run_list(s, s->plan->wgt.v, s->plan->wgt.n);
}

/* ---- no pipeline --------------------------------------------------------- */

static bool run_phases(ev_stage *s)
{
    const nd_block *b = s->w->m->step;
    for (int i = 0; i < b->ops.n; i++)
        if (b->ops.v[i]->phase == PH_PRE && !ev_run(s, b->ops.v[i]))
            return false;
    for (int mb = 0; mb < s->w->nmicro; mb++) {
        enter(s, mb);
        for (int i = 0; i < b->ops.n; i++)
            if (b->ops.v[i]->phase != PH_PRE && !ev_run(s, b->ops.v[i]))
                return false;
        keep_loss(s);
        leave(s, true);
    }
    return true;
}

/* ---- messages ------------------------------------------------------------ */

/* Copies what crosses to the neighbour's frame of that microbatch, rank to
 * rank of the same place on the other mesh axes. */
static bool transfer(ev_stage *from, ev_stage *to, const nd_cross *c, int n,
                     int mb)
{
    enter(from, mb);
    enter(to, mb);
    for (int i = 0; i < n; i++) {
        const ev_piece *x = ev_get(from, NULL, c[i].from);
        if (!x)
            return false;
        if (from->nranks != to->nranks)
            return ev_error(from, NULL, "stages of different sizes");
        nd_table_put(&to->cur->table, c[i].to,
                     ev_copy(from, to->cur->arena, x));
    }
    leave(from, false);
    leave(to, false);
    return true;
}

static bool send(ev_world *w, int stage, bool ahead, int mb)
{
    ev_stage *s = &w->stage[stage], *t = &w->stage[stage + (ahead ? 1 : -1)];
    return ahead ? transfer(s, t, s->plan->send_fwd.v, s->plan->send_fwd.n, mb)
                 : transfer(s, t, s->plan->send_bwd.v, s->plan->send_bwd.n, mb);
}

/* ---- stages without a schedule ------------------------------------------- */

static bool run_in_order(ev_world *w)
{
    int last = w->nstages - 1;
    for (int mb = 0; mb < w->nmicro; mb++) {
        for (int i = 0; i <= last; i++)
            if (!forward(&w->stage[i], mb) ||
                (i < last && !send(w, i, true, mb)))
                return false;
        for (int i = last; i >= 0; i--) {
            if (!backward(&w->stage[i], mb) || !weights(&w->stage[i], mb))
                return false;
            leave(&w->stage[i], false);
            if (i > 0 && !send(w, i, false, mb))
                return false;
        }
        for (int i = 0; i <= last; i++) {
            enter(&w->stage[i], mb);
            leave(&w->stage[i], true);
        }
    }
    return true;
}

/* ---- the schedule -------------------------------------------------------- */

static bool on_one_device(const ev_world *w, int s, int t)
{
    return s >= 0 && t < w->nstages &&
           w->stage[s].plan->device == w->stage[t].plan->device;
}

/* Weights do not change here: of a schedule that updates on its way, these are
 * the gradients of all microbatches at the same weights.
 *
 * Of one stage; what a stage of the same device has for it is fetched before,
 * and handed on after. */
static bool compute(ev_world *w, sched_op op, int s, int mb)
{
    ev_stage *x = &w->stage[s];
    if (op == SCHED_U)
        return true;
    if (op == SCHED_F)
        return (!on_one_device(w, s - 1, s) || send(w, s - 1, true, mb)) &&
               forward(x, mb);
    if (op != SCHED_W && !backward(x, mb))
        return false;
    if (op != SCHED_W && on_one_device(w, s - 1, s) && !send(w, s, false, mb))
        return false;
    if (op != SCHED_I && !weights(x, mb))
        return false;
    leave(x, false);
    return true;
}

static const sched_action *next_action(const ev_world *w, const int *at, int d)
{
    const sched_row *r = &w->m->program->sched->row[d];
    return at[d] == r->n ? NULL : &r->v[at[d]];
}

/* The send `a` meets what its peer does next. 1: done, 0: waits, -1: failed. */
static int try_send(ev_world *w, int *at, const sched_action *a)
{
    bool ahead = a->op == SCHED_SEND_F;
    int s = a->stage, to = ahead ? s + 1 : s - 1;
    if (to < 0 || to >= w->nstages)
        return ev_error(&w->stage[s], NULL, "stage %d sends to no stage", s)
                   ? 1 : -1;
    int device = w->stage[to].plan->device;
    const sched_action *b = next_action(w, at, device);
    if (!b || b->stage != to || b->op != (ahead ? SCHED_RECV_F : SCHED_RECV_B))
        return 0;
    if (b->mb != a->mb) {
        ev_error(&w->stage[s], NULL, "stage %d sends microbatch %d, but "
                 "stage %d expects %d", s, a->mb, to, b->mb);
        return -1;
    }
    at[device]++;
    return send(w, s, ahead, a->mb) ? 1 : -1;
}

/* Tries the next action of device d. 1: done, 0: waits, -1: failed. */
static int try_action(ev_world *w, int *at, int d)
{
    const sched_action *a = next_action(w, at, d);
    int k = 0;
    if (!a || a->op == SCHED_RECV_F || a->op == SCHED_RECV_B)
        return 0;
    if (a->mb < 0 || a->mb >= w->nmicro) {
        ev_error(&w->stage[a->stage], NULL, "stage %d runs microbatch %d",
                 a->stage, a->mb);
        return -1;
    }
    if (!sched_is_compute(a->op))
        k = try_send(w, at, a);
    else
        k = compute(w, a->op, a->stage, a->mb) ? 1 : -1;
    if (k > 0)
        at[d]++;
    return k;
}

static bool report_deadlock(ev_world *w, const int *at)
{
    nd_buf b = {.arena = w->arena};
    for (int d = 0; d < w->m->program->ndevices; d++) {
        const sched_action *a = next_action(w, at, d);
        if (a)
            nd_putf(&b, " device %d at %d%s%d;", d, a->stage,
                    sched_op_name[a->op], a->mb);
    }
    return ev_error(&w->stage[0], NULL, "the schedule deadlocks:%s", b.s);
}

static bool run_schedule(ev_world *w)
{
    int n = w->m->program->ndevices, *at = ND_NEWN(w->arena, int, n);
    for (;;) {
        bool moved = false, done = true;
        for (int d = 0; d < n; d++) {
            int k = try_action(w, at, d);
            if (k < 0)
                return false;
            moved |= k > 0;
        }
        for (int d = 0; d < n; d++)
            done &= !next_action(w, at, d);
        if (done)
            return true;
        if (!moved)
            return report_deadlock(w, at);
    }
}

bool ev_run_all(ev_world *w)
{
    if (!w->stage[0].plan)
        return run_phases(&w->stage[0]);
    for (int i = 0; i < w->nstages; i++) {
        ev_stage *s = &w->stage[i];
        if (!s->nranks)
            return ev_error(s, NULL, "stage %d has no rank in the mesh", i);
        if (!run_list(s, s->plan->pre.v, s->plan->pre.n))
            return false;
    }
    return w->m->program->sched ? run_schedule(w) : run_in_order(w);
}
