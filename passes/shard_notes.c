/* shard_notes.c - tells where a plan moves more than the operands need.
 *
 *   rule c -> x, a -> x
 *   %w = mul %v, %u      v: [a/x, b], u: [c/x]; the op runs at [a, b, c/x]
 *
 *   perf: `a` is gathered over `x`, which cuts `c` here: 960 bytes per rank and
 *   step; with the rule for `a` before that for `c` it would be 48
 *
 * Two things are worth a note. One value is cut along one axis where it is made
 * and along another where it is read; or two axes of one op want the same mesh
 * axis, and the one that gets it makes more move than the other would. Weights
 * that are cut make what is multiplied with them move: that is what tensor
 * parallelism means, and nobody needs to be told; nor of a rename to a twin of
 * the axis, which is made in order to cut it otherwise (context_heads.c). One
 * note per line and axis; backward mirrors forward and has none.
 */
#include "shard.h"

/* ---- how much ------------------------------------------------------------ */

/* Times per step that a rank runs what stands in b. */
static double runs(const nd_module *m, const nd_block *b, nd_phase phase)
{
    double n = phase == PH_PRE ? 1 : m->plan.microbatches;
    for (; b->parent; b = b->parent->block) {
        int64_t size = b->parent->axes[0]->size, stages = 1;
        if (nd_is_piped(m, b->parent->axes[0]) && m->mesh.pipe >= 0)
            stages = m->mesh.size[m->mesh.pipe];
        n *= (double)((size + stages - 1) / stages);
    }
    return n;
}

/* What the moves over mesh axis k send. */
static double bytes_over(const nd_module *m, const nd_type *from,
                         const nd_sh_path *path, int k)
{
    nd_type t = *from;
    double bytes = 0;
    for (int i = 0; i < path->moves.n; i++) {
        const nd_sh_move *move = &path->moves.v[i];
        nd_type next = nd_sh_moved(&t, move);
        if (move->mesh >> k & 1)
            bytes += nd_comm_bytes(move->kind, move->mesh, &t, &next,
                                   &m->mesh);
        t = next;
    }
    return bytes;
}

/* ---- two axes want one mesh axis ----------------------------------------- */

static const nd_axis *origin(const nd_axis *a)
{
    while (a->like)
        a = a->like;
    return a;
}

static bool is_weight(const nd_value *v)
{
    return nd_param_of(v) || nd_is_weight_copy(v);
}

/* The axis of the op that mesh axis k cuts. */
static nd_axis *holder(const nd_sh_space *sp, int k)
{
    for (int i = 0; i < sp->n; i++)
        if (nd_cut_bits(sp->cut[i]) >> k & 1)
            return sp->axis[i];
    return NULL;
}

/* Bytes that move if `a` and not `b` had k: each operand with b, which is cut
 * by it now, would be gathered or cut along a. -1: not asked of weights, nor of
 * rows, of which each rank loads its own. */
static double otherwise(nd_sh *s, const nd_op *op, nd_axis *a, nd_axis *b,
                        int k)
{
    double bytes = b == s->m->sample ? -1 : 0;
    for (int i = 0; i < op->nin && bytes >= 0; i++) {
        nd_type t = op->in[i]->type;
        int at = nd_axis_at(&t, b), to = nd_axis_at(&t, a);
        if (at < 0)
            continue;
        if (is_weight(op->in[i]))
            return -1;
        if (nd_is_free(op->in[i]))
            continue;
        for (int j = 0; j < t.rank; j++)
            t.cut[j] = nd_sh_cut_of(s->space, t.axis[j]);
        if (!t.cut[at].n || t.cut[at].m[t.cut[at].n - 1] != k)
            return -1;
        nd_sh_move move = {to < 0 ? OP_ALL_GATHER : OP_ALL_TO_ALL, at, to,
                           1u << k};
        if (to >= 0 && t.cut[to].n == ND_MAX_CUT)
            return -1;
        nd_type next = nd_sh_moved(&t, &move);
        bytes += nd_comm_bytes(move.kind, move.mesh, &t, &next, &s->m->mesh);
    }
    return bytes;
}

/* ---- notes --------------------------------------------------------------- */

static void add(nd_sh *s, nd_sh_note note)
{
    nd_ctx *c = s->m->ctx;
    for (int i = 0; i < s->notes.n; i++) {
        nd_sh_note *n = &s->notes.v[i];
        if (n->axis == note.axis && n->loc.file == note.loc.file &&
            nd_line_of(c, n->loc) == nd_line_of(c, note.loc)) {
            n->bytes += note.bytes;
            n->instead += note.instead;
            return;
        }
    }
    ND_PUSH(c->arena, &s->notes, note);
}

/* The border of an attention for which pass `context` chose all_to_all: the
 * rule of the heads' twin stands in no line. */
static bool is_meant(const nd_module *m, const nd_op *user)
{
    bool made = false;
    for (int i = 0; i < m->plan.rules.n && user->kind == OP_RENAME; i++) {
        const nd_rule *r = &m->plan.rules.v[i];
        made |= (r->axis == user->axes[0] || r->axis == user->to[0]) &&
                r->axis->like && !r->loc.file;
    }
    return made;
}

static void notice_one(nd_sh *s, const nd_op *user, const nd_value *v,
                       const nd_type *want, const nd_sh_path *path, double n,
                       int axis, int k)
{
    if (is_meant(s->m, user))
        return;
    nd_sh_note note = {.loc = user->loc, .axis = v->type.axis[axis],
                       .mesh = k};
    note.bytes = n * bytes_over(s->m, &v->type, path, k);
    int to = nd_cut_by(want, k);
    note.other = to < 0 ? NULL : want->axis[to];
    note.recut = note.other != NULL;
    if (!note.recut && s->space) {
        note.other = holder(s->space, k);
        if (!note.other || origin(note.other) == origin(note.axis))
            return;
        note.instead = n * otherwise(s, user, note.axis, note.other, k);
        if (note.instead < 0 || note.instead >= note.bytes)
            return;
    }
    if (note.other && note.bytes > 0)
        add(s, note);
}

static bool to_twin(const nd_op *op)
{
    return op->kind == OP_RENAME && origin(op->axes[0]) == origin(op->to[0]);
}

void nd_sh_notice(nd_sh *s, const nd_op *user, const nd_block *b,
                  const nd_value *v, const nd_type *want,
                  const nd_sh_path *path)
{
    uint32_t seen = 0;
    if (user->phase == PH_BWD || user->kind == OP_OUTPUT ||
        to_twin(user) || is_weight(v))
        return;
    double n = runs(s->m, b, user->phase);
    for (int i = 0; i < v->type.rank; i++)
        for (int j = 0; j < v->type.cut[i].n; j++) {
            int k = v->type.cut[i].m[j];
            bool moves = false;
            for (int q = 0; q < path->moves.n; q++)
                moves |= path->moves.v[q].mesh >> k & 1;
            if (moves && !(seen >> k & 1))
                notice_one(s, user, v, want, path, n, i, k);
            seen |= 1u << k;
        }
}

void nd_sh_tell(nd_sh *s)
{
    for (int i = 0; i < s->notes.n; i++) {
        const nd_sh_note *n = &s->notes.v[i];
        const char *mesh = s->m->mesh.name[n->mesh];
        if (n->other == n->axis)
            nd_perf(s->m->ctx, n->loc, "`%s` is cut in one order where this is "
                    "made and in another here: %.0f bytes per rank and step "
                    "over `%s`", n->axis->name, n->bytes, mesh);
        else if (n->recut)
            nd_perf(s->m->ctx, n->loc, "`%s` cuts `%s` where this is made and "
                    "`%s` here: %.0f bytes per rank and step", mesh,
                    n->axis->name, n->other->name, n->bytes);
        else
            nd_perf(s->m->ctx, n->loc, "`%s` is gathered over `%s`, which cuts "
                    "`%s` here: %.0f bytes per rank and step; with the rule "
                    "for `%s` first it would be %.0f", n->axis->name, mesh,
                    n->other->name, n->bytes, n->axis->name, n->instead);
    }
}
