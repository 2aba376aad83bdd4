/* ids.c - what an integer input may hold follows from its uses: it indexes an
 * axis, and a constant that it is compared with outside that axis is its
 * ignore value.
 *
 *   wte[vocab: tokens]                 tokens are 0 .. vocab - 1
 *   where(targets == -1, 0, ...)       and targets may be -1 too
 */
#include "ir.h"

typedef struct search {
    const nd_value *input;
    nd_range r;
} search;

/* Does a gather put the elements along an axis in another order, along a twin
 * of it, as zigzag does? One that picks some of them computes an index: that is
 * not direct. */
static bool reorders(const nd_op *op)
{
    if (op->kind != OP_GATHER)
        return false;
    const nd_type *index = &op->in[1]->type;
    return index->rank == 1 && index->axis[0]->like == op->axes[0] &&
           index->axis[0]->size == op->axes[0]->size;
}

/* What v has its numbers from, directly. */
static const nd_value *whole_of(const nd_value *v)
{
    while (v->def && (v->def->kind == OP_SLICE || v->def->kind == OP_RENAME ||
                      reorders(v->def)))
        v = v->def->in[0];
    return v;
}

static void note_index(nd_op *op, void *user)
{
    search *s = user;
    if (op->kind != OP_GATHER || whole_of(op->in[1]) != s->input)
        return;
    int64_t size = op->axes[0]->size;
    size = size < INT32_MAX ? size : INT32_MAX;    /* ids are i32 */
    s->r.limit = s->r.limit && s->r.limit < size ? s->r.limit : size;
}

static void note_ignored(nd_op *op, void *user)
{
    search *s = user;
    if (op->kind != OP_MAP || (op->sub != EW_EQ && op->sub != EW_NE))
        return;
    for (int i = 0; i < 2; i++) {
        const nd_op *c = op->in[!i]->def;
        if (whole_of(op->in[i]) == s->input && c && c->kind == OP_CONST &&
            (c->num < 0 || c->num >= (double)s->r.limit))
            s->r.ignore = (int64_t)c->num;
    }
}

nd_range nd_range_of(nd_module *m, const nd_value *input)
{
    search s = {.input = input};
    nd_walk(m->step, note_index, &s);
    nd_walk(m->step, note_ignored, &s);
    return s.r;
}
