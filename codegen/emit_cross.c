/* emit_cross.c - what crosses between stages: messages between devices, copies
 * on one.
 *
 *   static void stage2_send_forward(ndrt_rank *r)
 *   {
 *       const float *x = at(r, B_x);
 *
 *       ndrt_send(r, 3, x, 16 * sizeof(float));
 *   }
 *
 *   static void stage2_take_forward(ndrt_rank *r)
 *   {
 *       ndrt_copy(r, at(r, B_x_2), at_stage(r, 1, B_x), 16 * sizeof(float));
 *   }
 */
#include "codegen.h"

typedef struct hand_over {
    const nd_cross *x;
    int n;
    int peer;                        /* the other stage */
    bool send;
} hand_over;

static void emit_messages(cg *g, int s, const char *name, hand_over h)
{
    cg_fn f;
    cg_start_caller(&f, g);
    for (int i = 0; i < h.n; i++) {
        const nd_value *v = h.send ? h.x[i].from : h.x[i].to;
        nd_ref r;
        nd_ref_of(g->c, v, &r);
        f.uses_rank = true;
        cg_line(&f, "ndrt_%s(r, %d, %s, %s);", h.send ? "send" : "recv",
                h.peer, cg_pointer_to(&f, &r, !h.send)->name,
                cg_whole_bytes(&f, v));
    }
    cg_finish_stage_fn(&f, s, name);
}

static const char *place_at(cg_fn *f, int stage, bool here, const nd_value *v)
{
    cg *g = f->g;
    nd_ref r;
    nd_ref_of(g->c, v, &r);
    g->buffer_used[r.value->mark] = true;
    f->uses_rank = true;
    if (here)
        return nd_fmt(g->a, "at(r, B_%s)", cg_value_name(g, r.value));
    g->uses_at_stage = true;
    return nd_fmt(g->a, "at_stage(r, %d, B_%s)", stage,
                  cg_value_name(g, r.value));
}

/* Between stages of one device, from the one's slot to the other's. */
static void emit_copies(cg *g, int s, const char *name, hand_over h)
{
    cg_fn f;
    cg_start_caller(&f, g);
    for (int i = 0; i < h.n; i++) {
        int from = h.send ? s : h.peer, to = h.send ? h.peer : s;
        cg_line(&f, "ndrt_copy(r, %s, %s, %s);",
                place_at(&f, to, to == s, h.x[i].to),
                place_at(&f, from, from == s, h.x[i].from),
                cg_whole_bytes(&f, h.x[i].to));
    }
    cg_finish_stage_fn(&f, s, name);
}

const char *cg_message_fn(cg *g, int s, sched_op op)
{
    const nd_program *p = g->m->program;
    bool ahead = op == SCHED_SEND_F || op == SCHED_RECV_F;
    bool send = op == SCHED_SEND_F || op == SCHED_SEND_B;
    int peer = ahead == send ? s + 1 : s - 1;
    if (peer < 0 || peer >= p->nstages)
        return NULL;
    const nd_stage *from = &p->stage[send ? s : peer];
    if (!(ahead ? from->send_fwd.n : from->send_bwd.n))
        return NULL;
    bool here = p->stage[peer].device == p->stage[s].device;
    switch (op) {
    case SCHED_SEND_F:
        return here ? NULL : "send_forward";
    case SCHED_RECV_F:
        return here ? "take_forward" : "receive_forward";
    case SCHED_SEND_B:
        return here ? "give_backward" : "send_backward";
    default:
        return here ? NULL : "receive_backward";
    }
}

void cg_emit_crossing(cg *g, int s, sched_op op)
{
    const nd_program *p = g->m->program;
    const char *name = cg_message_fn(g, s, op);
    bool ahead = op == SCHED_SEND_F || op == SCHED_RECV_F;
    hand_over h = {.send = op == SCHED_SEND_F || op == SCHED_SEND_B};
    h.peer = ahead == h.send ? s + 1 : s - 1;
    if (!name)
        return;
    const nd_stage *from = &p->stage[h.send ? s : h.peer];
    h.x = ahead ? from->send_fwd.v : from->send_bwd.v;
    h.n = ahead ? from->send_fwd.n : from->send_bwd.n;
    if (p->stage[h.peer].device == p->stage[s].device)
        emit_copies(g, s, name, h);
    else
        emit_messages(g, s, name, h);
}
