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
    bool here;                       /* on the same device */
    const char *name;                /* of the function, or NULL: none */
} hand_over;

/* What crosses at stage s by this action. On one device the later stage takes
 * from the earlier one, and gives back to it. */
static hand_over crossing(cg *g, int s, sched_op op)
{
    static const char *const between[] = {"send_forward", "receive_forward",
                                          "send_backward", "receive_backward"};
    static const char *const on_one[] = {NULL, "take_forward", "give_backward",
                                         NULL};
    const nd_program *p = g->m->program;
    bool ahead = op == SCHED_SEND_F || op == SCHED_RECV_F;
    hand_over h = {.send = op == SCHED_SEND_F || op == SCHED_SEND_B};
    h.peer = ahead == h.send ? s + 1 : s - 1;
    if (h.peer < 0 || h.peer >= p->nstages)
        return h;
    const nd_stage *from = &p->stage[h.send ? s : h.peer];
    h.x = ahead ? from->send_fwd.v : from->send_bwd.v;
    h.n = ahead ? from->send_fwd.n : from->send_bwd.n;
    h.here = p->stage[h.peer].device == p->stage[s].device;
    if (h.n)
        h.name = (h.here ? on_one : between)[op - SCHED_SEND_F];
    return h;
}

static void emit_messages(cg *g, int s, hand_over h)
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
    cg_finish_stage_fn(&f, s, h.name);
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
static void emit_copies(cg *g, int s, hand_over h)
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
    cg_finish_stage_fn(&f, s, h.name);
}

const char *cg_message_fn(cg *g, int s, sched_op op)
{
    return crossing(g, s, op).name;
}

void cg_emit_crossing(cg *g, int s, sched_op op)
{
    hand_over h = crossing(g, s, op);
    if (h.name && h.here)
        emit_copies(g, s, h);
    else if (h.name)
        emit_messages(g, s, h);
}
