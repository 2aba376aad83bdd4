/* turns.c - what a repeat sends around a ring it sends on in every turn.
 *
 *   repeat carry(%k, %g) { (%k1, %g1)
 *     %k2 = shift_ring [ring] 1 %k1         %k1: one rank on per turn
 *     %g2 = add %g1, ...
 *     %g3 = shift_ring [ring] -1 %g2        %g1: one back
 *     yield %k2, %g3 }
 *
 * A shift has the type of its operand, so types alone do not miss one that is
 * lost or made twice. The pass that makes shifts notes with each carried value
 * how far a turn moves it; the verifier finds the same again, or says so.
 */
#include "ir.h"

enum { APART = -1, TORN = -2 };      /* reads it not; by ways that differ */

/* How far v is from `arg`, in the table plus 3 once it is known. */
static int64_t distance(nd_table *known, nd_value *v, const nd_value *arg)
{
    if (v == arg)
        return 0;
    if (!v->def || v->def->block != arg->owner)
        return APART;
    intptr_t code = (intptr_t)nd_table_get(known, v);
    if (code)
        return code - 3;
    int64_t far = APART;
    for (int i = 0; i < v->def->nin; i++) {
        int64_t d = distance(known, v->def->in[i], arg);
        if (d != APART)
            far = far == APART || far == d ? d : TORN;
    }
    if (far >= 0 && v->def->kind == OP_SHIFT_RING)
        far += nd_roll_by(v->def);
    nd_table_put(known, v, (void *)(intptr_t)(far + 3));
    return far;
}

static bool has_shift(const nd_block *b)
{
    for (int i = 0; i < b->ops.n; i++)
        if (b->ops.v[i]->kind == OP_SHIFT_RING)
            return true;
    return false;
}

static int64_t turn_of(nd_module *m, const nd_op *repeat, int i)
{
    nd_table known = {.arena = m->ctx->arena};
    return distance(&known, repeat->body->yields.v[i],
                    repeat->body->args.v[i]);
}

void nd_note_turns(nd_module *m, nd_op *repeat)
{
    for (int i = 0; i < repeat->ncarry && has_shift(repeat->body); i++) {
        int64_t far = turn_of(m, repeat, i);
        if (far >= 0)
            repeat->body->args.v[i]->turn = 1 + (int)far;
    }
}

const nd_value *nd_wrong_turn(nd_module *m, const nd_op *repeat)
{
    const nd_block *b = repeat->body;
    for (int i = 0; i < repeat->ncarry && i < b->args.n && i < b->yields.n;
         i++) {
        const nd_value *arg = b->args.v[i];
        if (arg->turn && turn_of(m, repeat, i) != arg->turn - 1)
            return arg;
    }
    return NULL;
}
