/* schedule_check.c - is a schedule right? Looks at the finished lists only.
 *
 * On every stage: each microbatch forward once and backward once, forward
 * first; a value is received before it is used and sent after it is made.
 * On every boundary and direction: the sender's messages are the receiver's,
 * in the same order, so that messages need no tags.
 * Over all stages: the graph of all actions, each send merged with its receive
 * (they happen together, or block together), edges along every stage's list,
 * has no cycle. Running the lists with blocking messages is a topological sort
 * of that graph: it gets stuck exactly if there is a cycle.
 */
#include "schedule.h"

static bool wrong(nd_module *m, int stage, sched_action a, const char *what)
{
    nd_error(m->ctx, m->plan.pipe_loc, "schedule: stage %d, %s%d: %s", stage,
             sched_op_name[a.op], a.mb, what);
    return false;
}

/* Which message kinds stage s has. */
static bool expects(const nd_program *p, int s, sched_op k)
{
    bool above = s > 0 && nd_schedule_crosses(p, s - 1);
    bool below = s + 1 < p->nstages && nd_schedule_crosses(p, s);
    switch (k) {
    case SCHED_F:
    case SCHED_B:
        return true;
    case SCHED_RECV_F:
    case SCHED_SEND_B:
        return above;
    case SCHED_SEND_F:
    case SCHED_RECV_B:
        return below;
    default:
        return false;
    }
}

static bool check_stage(nd_module *m, int s)
{
    static const struct {
        sched_op before, after;
        const char *what;
    } rule[] = {
        {SCHED_F, SCHED_B, "comes after the backward"},
        {SCHED_RECV_F, SCHED_F, "comes after the forward that reads it"},
        {SCHED_F, SCHED_SEND_F, "comes after its result is sent"},
        {SCHED_RECV_B, SCHED_B, "comes after the backward that reads it"},
        {SCHED_B, SCHED_SEND_B, "comes after its result is sent"},
    };
    const nd_program *p = m->program;
    const sched_row *st = &p->sched->row[s];
    int *at[SCHED_NOPS];
    for (int k = 0; k < SCHED_NOPS; k++) {
        at[k] = ND_NEWN(m->ctx->arena, int, p->nmicro);
        for (int mb = 0; mb < p->nmicro; mb++)
            at[k][mb] = -1;
    }
    for (int i = 0; i < st->n; i++) {
        sched_action a = st->v[i];
        if (a.mb < 0 || a.mb >= p->nmicro)
            return wrong(m, s, a, "no such microbatch");
        if (!expects(p, s, a.op))
            return wrong(m, s, a, "there is no such neighbour");
        if (at[a.op][a.mb] >= 0)
            return wrong(m, s, a, "occurs twice");
        at[a.op][a.mb] = i;
    }
    for (int mb = 0; mb < p->nmicro; mb++) {
        for (int k = 0; k < SCHED_NOPS; k++)
            if (expects(p, s, (sched_op)k) && at[k][mb] < 0)
                return wrong(m, s, (sched_action){.op = (sched_op)k, .mb = mb},
                             "is missing");
        for (size_t r = 0; r < sizeof rule / sizeof *rule; r++) {
            sched_op b = rule[r].before, a = rule[r].after;
            if (expects(p, s, b) && expects(p, s, a) && at[b][mb] > at[a][mb])
                return wrong(m, s, (sched_action){.op = b, .mb = mb},
                             rule[r].what);
        }
    }
    return true;
}

static int next_of(const sched_row *st, int from, sched_op k)
{
    while (from < st->n && st->v[from].op != k)
        from++;
    return from;
}

/* Message i that `from` sends is message i that `to` receives. */
static bool check_channel(nd_module *m, int from, int to)
{
    bool back = to < from;
    const sched_row *a = &m->program->sched->row[from];
    const sched_row *b = &m->program->sched->row[to];
    int i = -1, j = -1;
    for (;;) {
        i = next_of(a, i + 1, back ? SCHED_SEND_B : SCHED_SEND_F);
        j = next_of(b, j + 1, back ? SCHED_RECV_B : SCHED_RECV_F);
        if (i == a->n || j == b->n)
            return true;             /* equal numbers: check_stage counted */
        if (a->v[i].mb != b->v[j].mb)
            return wrong(m, to, b->v[j],
                         "another message is sent first");
    }
}

/* The action that goes with `a` of stage s in the merged graph, and whose. */
static bool partner(sched_action a, int s, int *peer, sched_op *kind)
{
    switch (a.op) {
    case SCHED_SEND_F:
        *peer = s + 1, *kind = SCHED_RECV_F;
        return true;
    case SCHED_RECV_F:
        *peer = s - 1, *kind = SCHED_SEND_F;
        return true;
    case SCHED_SEND_B:
        *peer = s - 1, *kind = SCHED_RECV_B;
        return true;
    case SCHED_RECV_B:
        *peer = s + 1, *kind = SCHED_SEND_B;
        return true;
    default:
        return false;
    }
}

static bool check_deadlock(nd_module *m)
{
    const nd_program *p = m->program;
    int *at = ND_NEWN(m->ctx->arena, int, p->nstages);
    bool moved = true;
    while (moved) {
        moved = false;
        for (int s = 0; s < p->nstages; s++) {
            while (at[s] < p->sched->row[s].n) {
                sched_action a = p->sched->row[s].v[at[s]];
                int peer;
                sched_op kind;
                if (partner(a, s, &peer, &kind)) {
                    const sched_row *other = &p->sched->row[peer];
                    if (at[peer] == other->n ||
                        other->v[at[peer]].op != kind ||
                        other->v[at[peer]].mb != a.mb)
                        break;
                    at[peer]++;
                }
                at[s]++;
                moved = true;
            }
        }
    }
    for (int s = 0; s < p->nstages; s++)
        if (at[s] < p->sched->row[s].n)
            return wrong(m, s, p->sched->row[s].v[at[s]],
                         "waits for ever: the stages block each other");
    return true;
}

bool nd_schedule_check(nd_module *m)
{
    const nd_program *p = m->program;
    for (int s = 0; s < p->nstages; s++)
        if (!check_stage(m, s))
            return false;
    for (int s = 0; s + 1 < p->nstages; s++)
        if (!check_channel(m, s, s + 1) || !check_channel(m, s + 1, s))
            return false;
    return check_deadlock(m);
}

/* Microbatch mb lives in slot mb % slots: it must be done with before the next
 * one that lives there begins. */
bool nd_slots_check(nd_module *m)
{
    const nd_program *p = m->program;
    for (int s = 0; s < p->nstages; s++) {
        const sched_row *st = &p->sched->row[s];
        int slots = p->stage[s].slots[SCHED_UNTIL_I];
        int *last = ND_NEWN(m->ctx->arena, int, p->nmicro + 1);
        for (int i = 0; i < st->n; i++)
            last[st->v[i].mb] = i;
        for (int i = 0; i < st->n; i++) {
            int before = st->v[i].mb - slots;
            if (slots < 1 || (before >= 0 && last[before] > i))
                return wrong(m, s, st->v[i],
                             "another microbatch is still in its slot");
        }
    }
    return true;
}
