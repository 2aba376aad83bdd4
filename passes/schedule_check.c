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

static const char *const kind_name[] = {
    [ACT_F] = "F", [ACT_B] = "B",
    [ACT_SEND_F] = "SEND_F", [ACT_RECV_F] = "RECV_F",
    [ACT_SEND_B] = "SEND_B", [ACT_RECV_B] = "RECV_B",
};
enum { NKINDS = ACT_RECV_B + 1 };

static bool wrong(nd_module *m, int stage, nd_action a, const char *what)
{
    nd_error(m->ctx, m->plan.pipe_loc, "schedule: stage %d, %s%d: %s", stage,
             kind_name[a.kind], a.mb, what);
    return false;
}

/* Which message kinds stage s has. */
static bool expects(const nd_program *p, int s, nd_act_kind k)
{
    bool above = s > 0 && nd_schedule_crosses(p, s - 1);
    bool below = s + 1 < p->nstages && nd_schedule_crosses(p, s);
    switch (k) {
    case ACT_F:
    case ACT_B:
        return true;
    case ACT_RECV_F:
    case ACT_SEND_B:
        return above;
    case ACT_SEND_F:
    case ACT_RECV_B:
        return below;
    }
    return false;
}

static bool check_stage(nd_module *m, int s)
{
    static const struct {
        nd_act_kind before, after;
        const char *what;
    } rule[] = {
        {ACT_F, ACT_B, "comes after the backward"},
        {ACT_RECV_F, ACT_F, "comes after the forward that reads it"},
        {ACT_F, ACT_SEND_F, "comes after its result is sent"},
        {ACT_RECV_B, ACT_B, "comes after the backward that reads it"},
        {ACT_B, ACT_SEND_B, "comes after its result is sent"},
    };
    const nd_program *p = m->program;
    const nd_stage *st = &p->stage[s];
    int *at[NKINDS];
    for (int k = 0; k < NKINDS; k++) {
        at[k] = ND_NEWN(m->ctx->arena, int, p->nmicro);
        for (int mb = 0; mb < p->nmicro; mb++)
            at[k][mb] = -1;
    }
    for (int i = 0; i < st->actions.n; i++) {
        nd_action a = st->actions.v[i];
        if (a.mb < 0 || a.mb >= p->nmicro)
            return wrong(m, s, a, "no such microbatch");
        if (!expects(p, s, a.kind))
            return wrong(m, s, a, "there is no such neighbour");
        if (at[a.kind][a.mb] >= 0)
            return wrong(m, s, a, "occurs twice");
        at[a.kind][a.mb] = i;
    }
    for (int mb = 0; mb < p->nmicro; mb++) {
        for (int k = 0; k < NKINDS; k++)
            if (expects(p, s, k) && at[k][mb] < 0)
                return wrong(m, s, (nd_action){k, mb, 0}, "is missing");
        for (size_t r = 0; r < sizeof rule / sizeof *rule; r++) {
            nd_act_kind b = rule[r].before, a = rule[r].after;
            if (expects(p, s, b) && expects(p, s, a) && at[b][mb] > at[a][mb])
                return wrong(m, s, (nd_action){b, mb, 0}, rule[r].what);
        }
    }
    return true;
}

static int next_of(const nd_stage *st, int from, nd_act_kind k)
{
    while (from < st->actions.n && st->actions.v[from].kind != k)
        from++;
    return from;
}

/* Message i that `from` sends is message i that `to` receives. */
static bool check_channel(nd_module *m, int from, int to)
{
    bool back = to < from;
    const nd_stage *a = &m->program->stage[from], *b = &m->program->stage[to];
    int i = -1, j = -1;
    for (;;) {
        i = next_of(a, i + 1, back ? ACT_SEND_B : ACT_SEND_F);
        j = next_of(b, j + 1, back ? ACT_RECV_B : ACT_RECV_F);
        if (i == a->actions.n || j == b->actions.n)
            return true;             /* equal numbers: check_stage counted */
        if (a->actions.v[i].mb != b->actions.v[j].mb)
            return wrong(m, to, b->actions.v[j],
                         "another message is sent first");
    }
}

/* The action that goes with `a` of stage s in the merged graph, and whose. */
static bool partner(nd_action a, int s, int *peer, nd_act_kind *kind)
{
    switch (a.kind) {
    case ACT_SEND_F:
        *peer = s + 1, *kind = ACT_RECV_F;
        return true;
    case ACT_RECV_F:
        *peer = s - 1, *kind = ACT_SEND_F;
        return true;
    case ACT_SEND_B:
        *peer = s - 1, *kind = ACT_RECV_B;
        return true;
    case ACT_RECV_B:
        *peer = s + 1, *kind = ACT_SEND_B;
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
            while (at[s] < p->stage[s].actions.n) {
                nd_action a = p->stage[s].actions.v[at[s]];
                int peer;
                nd_act_kind kind;
                if (partner(a, s, &peer, &kind)) {
                    const nd_stage *other = &p->stage[peer];
                    if (at[peer] == other->actions.n ||
                        other->actions.v[at[peer]].kind != kind ||
                        other->actions.v[at[peer]].mb != a.mb)
                        break;
                    at[peer]++;
                }
                at[s]++;
                moved = true;
            }
        }
    }
    for (int s = 0; s < p->nstages; s++)
        if (at[s] < p->stage[s].actions.n)
            return wrong(m, s, p->stage[s].actions.v[at[s]],
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
        const nd_stage *st = &p->stage[s];
        int *last = ND_NEWN(m->ctx->arena, int, p->nmicro + 1);
        for (int i = 0; i < st->actions.n; i++)
            last[st->actions.v[i].mb] = i;
        for (int i = 0; i < st->actions.n; i++) {
            int before = st->actions.v[i].mb - st->slots;
            if (st->slots < 1 || (before >= 0 && last[before] > i))
                return wrong(m, s, st->actions.v[i],
                             "another microbatch is still in its slot");
        }
    }
    return true;
}
